"""A folder as people have it, served: its tokenizer, its chat template and its step program, over
HTTP and in process."""

from __future__ import annotations

import json

import pytest
import serve_http
from serve_http import Answer, post, until

pytestmark = pytest.mark.quick_kernels  # in a run of the whole folder

serve_http.need_server()

pytest.importorskip("numpy")
pytest.importorskip("tokenizers", reason="the package tokenizers is not here")
tiny = pytest.importorskip("tiny_models")

import accrt  # noqa: E402
import kernel_harness as kh  # noqa: E402
from accrt import models, serve  # noqa: E402

LLAMA = tiny.CONFIGS["llama"]


class Said:
    """What a program is told while it loads."""

    def __init__(self):
        self.done, self.begun, self.farther = [], [], []
        self.begins, self.goes_on = self.begun.append, self.farther.append

    def __call__(self, what, seconds):
        self.done.append(what)


@pytest.fixture(scope="module")
def loaded(tmp_path_factory, request):
    place = tmp_path_factory.mktemp("served")
    folder = tiny.write_folder(place / "Tiny-1", LLAMA, tiny.tensors(LLAMA, 7, gain=1.0))
    (folder / "chat_template.jinja").write_text(serve_http.TEMPLATE)
    patch = pytest.MonkeyPatch()
    patch.setenv("XDG_CACHE_HOME", kh.other_cache(place / "cache"))
    request.addfinalizer(patch.undo)
    said = Said()
    out = serve.load(folder, max_length=256, kv_bytes=1 << 20, progress=said)
    assert any(step.startswith("weights take") for step in said.done)
    # What may take long is told before it begins, and of a compilation how far it is.
    begun = "\n".join(said.begun)
    assert "compiling for " in begun and "of weights on host" in begun and "making the session" in begun and "preparing sizes of steps" in begun
    assert any("pieces of code" in step for step in said.farther)
    return out


@pytest.fixture(scope="module")
def llm(loaded):
    with accrt.LLM(loaded) as one:
        yield one


def test_text_becomes_tokens_and_text_again(llm, loaded):
    output = llm.generate("hello", max_tokens=8, temperature=0, ignore_eos=True)
    assert output.prompt_token_ids == loaded.text.tokenizer.encode("hello") and len(output.token_ids) == 8
    together = llm.generate(["x", "hello", "yes"], max_tokens=8, temperature=0, ignore_eos=True)
    assert together[1].token_ids == output.token_ids
    assert loaded.name == "Tiny-1" and llm.engine.model.info["max_length"] == 256


def test_keys_and_values_of_another_type(loaded, tmp_path):
    """Half the bytes a token, so twice the pages in the same memory; a bundle has its own type."""
    folder = tiny.write_folder(tmp_path / "Tiny-1", LLAMA, tiny.tensors(LLAMA, 7, gain=1.0))
    found = {}
    for kind in ("f32", "bf16", "fp8"):
        with accrt.LLM(folder, max_length=256, kv_bytes=1 << 18, kv_dtype=kind) as one:
            assert len(one.generate("hello", max_tokens=8, temperature=0, ignore_eos=True).token_ids) == 8
            found[kind] = one.engine.model.info["page_count"]
    assert found["fp8"] // 2 == found["bf16"] and found["fp8"] // 4 == found["f32"]
    made = models.open(folder, options=models.Options(kv_type="fp8"), targets=[kh.host_targets()[-1]], output=tmp_path / "tiny.accx")
    with pytest.raises(ValueError, match="kv_dtype is f16, and the keys and values of the bundle are of fp8"):
        accrt.LLM(made.bundle, weights=str(folder / "model.safetensors"), kv_dtype="f16")
    with accrt.LLM(made.bundle, weights=str(folder / "model.safetensors"), kv_dtype="fp8", kv_bytes=1 << 18) as one:
        assert one.engine.model.info["page_count"] == found["fp8"]


def test_over_http_and_in_process_are_the_same(llm, loaded):
    parameters = {"max_tokens": 12, "temperature": 0, "ignore_eos": True}
    messages = [{"role": "user", "content": "hello"}]
    expected = llm.chat(messages, **parameters), llm.generate("once", **parameters)
    # takes the engine's events from here on
    server = serve.Server(llm.engine, loaded.text, name=loaded.name, port=0)
    here = serve_http.Served(server, llm.engine)
    try:
        chat = Answer(here.raw(post("/v1/chat/completions", {"messages": messages, **parameters})))
        assert chat.json["choices"][0]["message"]["content"] == expected[0].text
        assert chat.json["usage"]["prompt_tokens"] == len(expected[0].prompt_token_ids)
        stream = Answer(here.raw(post("/v1/completions", {"prompt": "once", "stream": True, **parameters})))
        assert "".join(json.loads(event)["choices"][0]["text"] for event in stream.events[:-1]) == expected[1].text
        tokens = Answer(here.raw(post("/v1/completions", {"prompt": expected[1].prompt_token_ids, **parameters})))
        assert tokens.json["choices"][0]["text"] == expected[1].text
        assert until(here.at_rest)
    finally:
        server.close()


def test_a_bundle_alone_needs_its_weights(loaded, tmp_path):
    with pytest.raises(accrt.Error):
        serve.load(tmp_path / "nothing.accx")


def test_handles_of_other_kinds_are_type_errors():
    """Not an exception of ctypes', whatever is given."""
    from accrt.serve.engine import Engine, Model
    from accrt.serve.grammar import Grammars
    from accrt.serve.server import Server

    model = Model.simulated()
    engine = Engine(model)
    for wrong in (engine, accrt.default_instance(), accrt.default_instance().device("host"), None, 3, "model", object()):
        with pytest.raises(TypeError, match="model is .*, expected an accrt.Model"):
            Engine(wrong)
        with pytest.raises(TypeError, match="model is .*, expected an accrt.Model"):
            Grammars(wrong)
    for wrong in (model, accrt.default_instance(), None, 3):
        with pytest.raises(TypeError, match="expected an accrt.serve.Request"):
            engine.submit(wrong)
        with pytest.raises(TypeError, match="engine is .*, expected an accrt.Engine"):
            Server(wrong, None, name="m")
    engine.close()
