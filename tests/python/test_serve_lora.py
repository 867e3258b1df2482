"""LoRA adapters from Python and over HTTP: accrt.LLM, the model of a request, loading and unloading
while others stream, and the command."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading

import pytest
import serve_http
from serve_http import Answer, get, post, read_all, served, until

serve_http.need_server()

import tiny_adapters  # noqa: E402
import tiny_models as tiny  # noqa: E402

import accrt  # noqa: E402
from accrt import models, serve  # noqa: E402

pytestmark = pytest.mark.quick_kernels  # in a run of the whole folder

LLAMA = tiny.CONFIGS["llama"]
GREEDY = {"max_tokens": 12, "temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module")
def weights():
    return tiny.tensors(LLAMA, 7, gain=1.0)


@pytest.fixture(scope="module")
def model(tmp_path_factory, weights):
    return tiny.write_folder(tmp_path_factory.mktemp("lora") / "Tiny-1", LLAMA, weights)


@pytest.fixture(scope="module")
def folders(tmp_path_factory, weights):
    """Three adapters' folders, and the merged weights of each."""
    place, found = tmp_path_factory.mktemp("peft"), {}
    for i, name in enumerate("abc"):
        made = tiny_adapters.random_adapter(weights, i, rank=i + 2)
        found[name] = tiny_adapters.write_adapter(place / name, made, alpha=i + 2), tiny_adapters.merged(weights, made, 1.0)
    return found


@pytest.fixture(scope="module")
def llm(model):
    with accrt.LLM(model, adapters=3, max_rank=4) as one:
        yield one


def likeliest(weights, prompt, tokens):
    """Whether each token is the likeliest one in numpy, but for rounding."""
    logits = tiny.reference(LLAMA, weights, prompt + tokens)[0][len(prompt) - 1 : -1]
    return all(row[token] >= row.max() - 1e-3 for token, row in zip(tokens, logits))


# ---- accrt.LLM ----


def test_an_adapter_of_a_request(llm, folders, weights):
    for name, (folder, _merged) in folders.items():
        llm.load_adapter(name, folder)
    assert llm.adapters == ["a", "b", "c"]
    outputs = {name: llm.generate("Hello there", adapter=name, **GREEDY) for name in (None, *folders)}
    for name, output in outputs.items():
        assert likeliest(folders[name][1] if name else weights, output.prompt_token_ids, output.token_ids)
    assert len({tuple(output.token_ids) for output in outputs.values()}) == 4
    pieces = "".join(piece.text for piece in llm.stream("Hello there", adapter="b", **GREEDY))
    assert pieces == outputs["b"].text
    for name in folders:
        llm.unload_adapter(name)
    assert llm.adapters == []


def test_what_is_wrong_is_said(llm, folders, tmp_path):
    with pytest.raises(accrt.NotFoundError, match="no adapter 'a' is loaded"):
        llm.generate("x", adapter="a")
    with pytest.raises(accrt.NotFoundError, match="no adapter 'a' is loaded"):
        llm.unload_adapter("a")
    with pytest.raises(serve.BadParameter, match="adapter is 3, expected a string"):
        llm.generate("x", adapter=3)
    with pytest.raises(TypeError, match="an adapter's name is 3"):
        llm.load_adapter(3, folders["a"][0])
    with pytest.raises(TypeError, match="folder is 3, expected a path"):
        llm.load_adapter("a", 3)
    for name in ("", "a\0b", "x" * 5000, "\ud800"):
        with pytest.raises(ValueError, match="an adapter's name is"):
            llm.load_adapter(name, folders["a"][0])
    with pytest.raises(accrt.NotFoundError, match="no adapter_config.json"):
        llm.load_adapter("a", tmp_path)
    wide = tiny_adapters.write_adapter(tmp_path / "wide", tiny_adapters.random_adapter(tiny.tensors(LLAMA, 7), 1, rank=5))
    with pytest.raises(models.Refused, match="its rank is 5; this model was made for rank 4 at most, as max_rank says"):
        llm.load_adapter("a", wide)
    llm.load_adapter("a", folders["a"][0])
    with pytest.raises(accrt.AlreadyExistsError, match="adapter 'a' is loaded"):
        llm.load_adapter("a", folders["b"][0])
    for name in "bc":
        llm.load_adapter(name, folders[name][0])
    with pytest.raises(accrt.NotReadyError, match="all 3 places"):
        llm.load_adapter("d", folders["a"][0])
    for name in "abc":
        llm.unload_adapter(name)


def test_one_that_is_used_stays(llm, folders):
    """The request may have ended before it is looked at: then once more."""
    for _turn in range(100):
        llm.load_adapter("a", folders["a"][0])
        stream = iter(llm.stream("x", adapter="a", max_tokens=200, ignore_eos=True))
        next(stream)
        try:
            llm.unload_adapter("a", timeout=0)
        except accrt.NotReadyError as error:
            assert "1 requests use adapter 'a'" in str(error)
            break
        finally:
            stream.close()
    else:
        pytest.fail("every request had ended")
    assert llm.adapters == ["a"]
    llm.unload_adapter("a")


def test_a_model_without_places(model, folders):
    with accrt.LLM(model) as plain:
        with pytest.raises(accrt.UnsupportedError, match="no places for adapters: its bundle was made without the option 'adapters'"):
            plain.load_adapter("a", folders["a"][0])


def test_a_bundle_has_its_own_places(model, folders, tmp_path):
    path = tmp_path / "m.accx"
    models.open(model, options=models.Options(adapters=1, max_rank=4), targets=models._targets(None)[:2], output=path)
    with pytest.raises(ValueError, match="adapters is 2, and the bundle has 1"):
        accrt.LLM(path, weights=[model / "model.safetensors"], adapters=2)
    with accrt.LLM(path, weights=[model / "model.safetensors"]) as one:
        one.load_adapter("a", folders["a"][0])
        output = one.generate("Hello", adapter="a", **GREEDY)
        assert likeliest(folders["a"][1], output.prompt_token_ids, output.token_ids)


# ---- over HTTP, with the simulated model ----


@pytest.fixture
def server():
    with served(model={"eos": -1, "adapter_count": 2}, adapter_loading=True) as one:
        yield one


def adapter_folder(place, content):
    place.mkdir()
    (place / "adapter_model.safetensors").write_bytes(content)
    return str(place)


def ask(server, path, body):
    return Answer(server.raw(post(path, body)))


def text_of(server, **body):
    answer = ask(server, "/v1/completions", {"prompt": "x" * 40, "max_tokens": 12, "temperature": 0, **body})
    assert answer.status == 200, answer.body
    return answer.json["choices"][0]["text"], answer.json["model"]


def test_an_adapter_is_a_model(server, tmp_path):
    plain, name = text_of(server)
    assert name == "sim"
    for one, content in (("first", b"1"), ("second/ä", b"2")):
        answer = ask(server, "/v1/load_lora_adapter", {"lora_name": one, "lora_path": adapter_folder(tmp_path / one[:5], content)})
        assert answer.status == 200 and answer.body.decode() == f"Success: LoRA adapter '{one}' added successfully."
    figures = Answer(server.raw(get("/metrics"))).body.decode()
    for figure, value in (("adapters", 2), ("adapter_places", 2), ("adapter_loads_total", 2)):
        assert re.search(rf"^accrt:{figure}{{[^}}]*}} {value}$", figures, re.M), figures
    listed = Answer(server.raw(get("/v1/models"))).json["data"]
    assert [(m["id"], m.get("parent")) for m in listed] == [("sim", None), ("first", "sim"), ("second/ä", "sim")]
    assert Answer(server.raw(get("/v1/models/second%2F%C3%A4"))).json["id"] == "second/ä"
    texts = {plain, text_of(server, model="sim")[0], *(text_of(server, model=one)[0] for one in ("first", "second/ä"))}
    assert len(texts) == 3
    assert text_of(server, model="first")[1] == "first"
    assert text_of(server, adapter="first") == (text_of(server, model="first")[0], "sim")
    chats = [ask(server, "/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "max_tokens": 9, "temperature": 0, "model": one})
             for one in ("sim", "first")]  # fmt: skip
    assert chats[0].json["choices"] != chats[1].json["choices"] and chats[1].json["model"] == "first"
    answer = ask(server, "/v1/unload_lora_adapter", {"lora_name": "first"})
    assert answer.status == 200 and answer.body.decode() == "Success: LoRA adapter 'first' removed successfully."
    answer = ask(server, "/v1/completions", {"prompt": "x", "model": "first"})
    assert (answer.status, answer.error["code"]) == (404, "model_not_found")
    assert ask(server, "/v1/completions", {"prompt": "x", "adapter": "first"}).status == 404
    assert Answer(server.raw(get("/v1/models/first"))).status == 404


def test_refusals(server, tmp_path):
    path = adapter_folder(tmp_path / "a", b"1")

    def refused(kind, body):
        answer = ask(server, f"/v1/{kind}_lora_adapter", body)
        return answer.status, answer.error["code"], answer.error["param"]

    assert refused("load", {}) == (400, "missing_parameter", "lora_name")
    assert refused("load", {"lora_name": "", "lora_path": path})[::2] == (400, "lora_name")
    assert refused("load", {"lora_name": "a\0", "lora_path": path})[::2] == (400, "lora_name")
    assert refused("load", {"lora_name": "a"}) == (400, "missing_parameter", "lora_path")
    assert refused("load", {"lora_name": "a", "lora_path": path, "load_inplace": True}) == (400, "unknown_parameter", "load_inplace")
    assert refused("load", {"lora_name": "sim", "lora_path": path})[::2] == (400, "lora_name")
    for wrong in (str(tmp_path / "nothing"), "/dev/zero", "a\0b", "", "/proc/self/mem", "x" * 10000):
        assert refused("load", {"lora_name": "a", "lora_path": wrong}) == (400, "invalid_adapter", "lora_path"), wrong
    assert refused("unload", {}) == (400, "missing_parameter", "lora_name")
    assert refused("unload", {"lora_name": "a"}) == (404, "model_not_found", "lora_name")
    assert refused("unload", {"lora_name": "a", "timeout": 1e9})[::2] == (400, "timeout")
    for name in "ab":
        assert ask(server, "/v1/load_lora_adapter", {"lora_name": name, "lora_path": path}).status == 200
    assert refused("load", {"lora_name": "a", "lora_path": path}) == (409, "adapter_exists", "lora_name")
    assert refused("load", {"lora_name": "c", "lora_path": path}) == (409, "no_place", "lora_name")
    assert ask(server, "/v1/completions", {"prompt": "x", "model": "a", "adapter": "b"}).error["param"] == "adapter"


def test_loading_must_be_allowed(tmp_path):
    with served(model={"adapter_count": 1}) as server:
        for kind in ("load", "unload"):
            answer = ask(server, f"/v1/{kind}_lora_adapter", {"lora_name": "a", "lora_path": adapter_folder(tmp_path / kind, b"1")})
            assert answer.status == 404 and "--adapter-loading" in answer.error["message"]


def test_adapters_come_and_go_while_others_stream(tmp_path):
    """Streams of the model and of an adapter are what they are alone, while another adapter changes
    all the time; one in use is not taken away."""
    paths = [adapter_folder(tmp_path / str(i), bytes([i])) for i in range(4)]
    with served(model={"eos": -1, "adapter_count": 2, "step_ns": 200_000}, adapter_loading=True) as server:
        assert ask(server, "/v1/load_lora_adapter", {"lora_name": "stays", "lora_path": paths[0]}).status == 200
        body = {"prompt": "y" * 33, "max_tokens": 150, "temperature": 0, "stream": True}
        wanted = {name: text_of(server, prompt=body["prompt"], max_tokens=150, model=name)[0] for name in ("sim", "stays")}
        found, over = {"sim": [], "stays": []}, threading.Event()

        def stream(name):
            while not over.is_set():
                answer = Answer(server.raw(post("/v1/completions", {**body, "model": name})))
                events = [json.loads(event) for event in answer.events[:-1]]
                found[name].append("".join(event["choices"][0]["text"] for event in events))

        threads = [threading.Thread(target=stream, args=(name,)) for name in found]
        for thread in threads:
            thread.start()
        try:
            for turn in range(30):
                assert ask(server, "/v1/load_lora_adapter", {"lora_name": "goes", "lora_path": paths[1 + turn % 3]}).status == 200
                assert text_of(server, model="goes")[1] == "goes"
                assert ask(server, "/v1/unload_lora_adapter", {"lora_name": "goes", "timeout": 20}).status == 200
            assert until(lambda: server.busy() > 0)
        finally:
            over.set()
            for thread in threads:
                thread.join()
        for name, texts in found.items():
            assert texts and set(texts) == {wanted[name]}


# ---- the command ----


def test_the_command_loads_adapters(model, folders, tmp_path):
    arguments = [str(model), "--port", "0", "--max-rank", "4", *(f"--adapter={name}={folder}" for name, (folder, _merged) in folders.items())]
    environment = {**os.environ, "PYTHONPATH": os.path.dirname(os.path.dirname(accrt.__file__))}
    process = subprocess.Popen([sys.executable, "-m", "accrt.serve", *arguments], stderr=subprocess.PIPE, text=True, env=environment)
    try:
        lines = []
        for line in process.stderr:
            lines.append(line)
            found = re.search(r"at http://\S+:(\d+) after", line)
            if found:
                break
        assert found, lines
        import socket

        with socket.create_connection(("127.0.0.1", int(found[1])), timeout=30) as client:
            client.sendall(get("/v1/models"))
            assert [m["id"] for m in Answer(read_all(client)).json["data"]] == ["Tiny-1", "a", "b", "c"]
    finally:
        process.kill()
        process.wait()
        process.stderr.close()
    assert any("loaded the adapter b" in line for line in lines)
    process = subprocess.run([sys.executable, "-m", "accrt.serve", str(model), "--port", "0", "--adapter", f"x={tmp_path}"], capture_output=True, text=True,
                             env=environment)  # fmt: skip
    assert process.returncode == 1 and "no adapter_config.json" in process.stderr.splitlines()[-1]
