"""accrt.LLM and accrt-serve over the simulated model: texts, streams, what is said when something
is wrong, and how the command ends."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib.util
import json
import os
import pathlib
import pickle
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading

import numpy as np
import pytest
import serve_http
import kernel_harness as kh
import tiny_models as tiny
from serve_http import TEMPLATE, Answer, descriptors, get, post, read_all, until

serve_http.need_server()

import accrt  # noqa: E402
from accrt import serve  # noqa: E402

pytestmark = pytest.mark.quick_kernels  # in a run of the whole folder

PYTHON = str(pathlib.Path(serve_http.__file__).parents[2] / "python")
GREEDY = {"max_tokens": 24, "temperature": 0, "seed": 1}


@pytest.fixture(scope="module")
def llm():
    with accrt.LLM(serve.simulated(chat_template=TEMPLATE)) as one:
        yield one


def text_of(ids):
    return bytes(ids).decode(errors="replace")


# ---- all at once ---------------------------------------------------------------------------------


def test_one_prompt_and_many(llm):
    one = llm.generate("first", **GREEDY)
    both = llm.generate(["first", [115, 101]], **GREEDY)
    assert one.text == both[0].text == text_of(one.token_ids) and len(one.token_ids) == 24 and one.finish_reason == "length"
    assert both[1].prompt_token_ids == [115, 101] and both[1].text == llm.generate("se", **GREEDY).text
    assert "Completion(index=0" in repr(one) and repr(llm) == "<accrt.LLM simulated>"


def test_more_prompts_than_the_queue_takes():
    with accrt.LLM(serve.simulated(), max_queued=8, max_running=4) as small:
        outputs = small.generate([f"{i}" for i in range(200)], **GREEDY)
        assert [o.text for o in outputs[:3]] == [small.generate(f"{i}", **GREEDY).text for i in range(3)]
        assert all(len(o.token_ids) == 24 for o in outputs)


def test_chats_sequences_and_log_probabilities(llm):
    messages = [{"role": "user", "content": "hello"}]
    rendered = "user: hello\nassistant:"
    assert llm.chat(messages, **GREEDY).token_ids == llm.generate(rendered, **GREEDY).token_ids
    assert [o.text for o in llm.chat([messages, messages], **GREEDY)] == [llm.chat(messages, **GREEDY).text] * 2
    output = llm.generate("x", max_tokens=5, n=3, logprobs=2, seed=4)
    assert len(output.completions) == 3 and [len(c.logprobs) for c in output.completions] == [5, 5, 5]
    assert all(len(entry) == 3 for entry in output.completions[0].logprobs)
    assert output.completions[0].logprobs[0][0][0] == output.completions[0].token_ids[0]


def test_the_end(llm):
    whole = llm.generate("stop here", **GREEDY)
    assert llm.generate("stop here", **GREEDY, stop_token_ids=[whole.token_ids[3]]).token_ids == whole.token_ids[:4]
    forced = {"logit_bias": {ord("a"): 100}, "max_tokens": 10}
    assert llm.generate("b", **forced).text == "a" * 10
    stopped = llm.generate("b", **forced, stop="aaa")
    assert stopped.text == "" and stopped.finish_reason == "stop"
    assert llm.generate("b", **forced, stop="aaa", include_stop_str_in_output=True).text == "aaa"


@pytest.mark.parametrize("parameters,message", [
    ({"temperature": "hot"}, "temperature is 'hot'"), ({"temprature": 1}, "did you mean temperature"), ({"max_tokens": -1}, "at least 0"), ({"max_tokens": 0}, "at least 1"),
    ({"max_tokens": True}, "expected an integer"), ({"stop": 3}, "expected a string or a list"), ({"max_tokens": np.float32(3)}, "expected an integer"),
    ({"user": "half \ud83d"}, "user has half of a surrogate pair at character 5"),
])  # fmt: skip
def test_bad_parameters(llm, parameters, message):
    with pytest.raises(serve.BadParameter, match=re.escape(message)):
        llm.generate("x", **parameters)


def test_what_the_engine_refuses(llm):
    for make in (llm.generate, lambda *given, **parameters: list(llm.stream(*given, **parameters))):
        with pytest.raises(accrt.BadParameter, match="max_tokens is 5000: after a prompt of 1 tokens at most 4095 fit") as caught:
            make("x", max_tokens=5000)
        assert isinstance(caught.value, (accrt.Error, ValueError)) and caught.value.parameter == "max_tokens"
    copy = pickle.loads(pickle.dumps(caught.value))
    assert type(copy) is accrt.BadParameter and (copy.parameter, copy.message, copy.code) == ("max_tokens", caught.value.message, caught.value.code)
    with pytest.raises(serve.BadParameter, match="no tokens"):
        llm.generate("")
    with accrt.LLM(serve.simulated()) as plain, pytest.raises(serve.BadParameter, match="no chat template"):
        plain.chat([{"role": "user", "content": "x"}])
    with pytest.raises(TypeError, match="LLM has no option 'maximum'"):
        accrt.LLM("simulated:", maximum=3)


@pytest.mark.parametrize("prompts,message", [
    (None, "prompts is None, expected a text, a list of token ids, or a list of those"), (5, "prompts is 5"), ({"prompt": "x"}, "prompts is {'prompt': 'x'}"),
    ([None], "prompts[0] is None, expected a string or a list of token ids"), (["a", {"b": 1}], "prompts[1] is {'b': 1}"),
    (np.array([1.5]), "prompts[0] is 1.5"), ([1, "a"], "prompt is [1, 'a']"), ([0, 256], "prompt[1] is 256; the model's tokens are 0 to 255"),
])  # fmt: skip
def test_prompts_that_are_none(llm, prompts, message):
    with pytest.raises(accrt.BadParameter, match=re.escape(message)):
        llm.generate(prompts)


def test_a_prompt_of_several_is_named(llm):
    for prompts, message in ((["a", [5] * 5000], "prompts[1] has 5000 tokens"), (["a", [300]], "prompts[1][0] is 300"), (["a", ""], "prompts[1] has no tokens"),
                             ([5] * 5000, "prompt has 5000 tokens"), ("x" * 5000, "prompt has 5000 tokens")):  # fmt: skip
        with pytest.raises(accrt.BadParameter, match="^" + re.escape(message)):
            llm.generate(prompts)
    with pytest.raises(accrt.BadParameter, match=r"^messages\[1\] has 5"):
        llm.chat([[{"role": "user", "content": "x"}], [{"role": "user", "content": "x" * 5000}]])


def test_an_option_of_0_is_the_default_as_the_help_says(capsys):
    from accrt.serve import command as module
    from accrt.serve import server as server_module

    with pytest.raises(SystemExit):
        module.main(["--help"])
    words = " ".join(capsys.readouterr().out.split())
    numbers = [name for name, (default, _help) in server_module.OPTIONS.items() if default and isinstance(default, (int, float)) and name != "port"]
    assert sorted(numbers) == sorted(server_module.ZEROS)
    for name in numbers:
        help_text = words.split(f" --{name.replace('_', '-')} ")[-1].split(" --")[0]
        assert f"(default: {server_module.OPTIONS[name][0]}, also for 0)" in help_text, help_text
    with serve_http.served(**dict.fromkeys(numbers, 0)) as server:
        assert ask(server.port, post("/v1/completions", {"prompt": "x", "max_tokens": 2})).status == 200


def test_arrays_are_prompts(llm):
    whole = llm.generate("se", **GREEDY)
    assert llm.generate(np.array([115, 101]), **GREEDY).text == whole.text
    assert [o.text for o in llm.generate(np.array([[115, 101], [115, 101]], np.int16), **GREEDY)] == [whole.text] * 2
    assert "".join(piece.text for piece in llm.stream(np.array([115, 101]), **GREEDY)) == whole.text


@pytest.mark.parametrize("messages", ["hi", {"role": "user", "content": "hi"}, None, 5])
def test_conversations_that_are_none(llm, messages):
    with pytest.raises(accrt.BadParameter, match=re.escape("expected a list of messages, as [{'role': 'user', 'content': 'Hello'}]")):
        llm.chat(messages)


def test_streams_are_hinted_at(llm):
    with pytest.raises(accrt.BadParameter, match=re.escape("stream is no parameter here: for pieces as they come, `for piece in llm.stream(...)`")):
        llm.generate("x", stream=True)
    with pytest.raises(accrt.BadParameter, match="llm.stream_chat"):
        llm.chat([{"role": "user", "content": "hi"}], stream=True)
    with pytest.raises(accrt.BadParameter, match="gives pieces as they come already"):
        llm.stream("x", stream=True)


def test_threads_share_an_engine(llm):
    alone = [llm.generate(f"thread {i}", **GREEDY).text for i in range(6)]
    found = [None] * 6

    def one(i):
        found[i] = llm.generate(f"thread {i}", **GREEDY).text

    threads = [threading.Thread(target=one, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == alone


# ---- piece by piece ------------------------------------------------------------------------------


def test_pieces_are_the_whole(llm):
    whole = llm.generate("pieces", **GREEDY)
    pieces = list(llm.stream("pieces", **GREEDY))
    assert "".join(p.text for p in pieces) == whole.text and [t for p in pieces for t in p.token_ids] == whole.token_ids
    assert len(pieces) > 5 and pieces[-1].finish_reason == "length"


@pytest.mark.parametrize("first", ["for", "async for"])
@pytest.mark.parametrize("second", ["for", "async for"])
@pytest.mark.parametrize("whole", [True, False])
def test_a_stream_is_for_one_loop(llm, first, second, whole):
    """A second loop would send the request again and take the first one's pieces."""
    submitted = llm.engine.stats()["submitted"]
    stream = llm.stream("once", max_tokens=50)

    def loop(kind):
        async def leave():
            async for _ in stream:
                if not whole:
                    break

        if kind == "async for":
            return asyncio.run(leave())
        for _ in stream:
            if not whole:
                break

    loop(first)
    with pytest.raises(accrt.InvalidStateError, match="this stream has been looped over"):
        loop(second)
    assert llm.engine.stats()["submitted"] == submitted + 1
    assert until(lambda: llm.engine.stats()["running"] == 0)


def test_a_closed_model_prints_that_it_is_closed():
    with accrt.LLM(serve.simulated()) as model:
        assert repr(model) == f"<accrt.LLM {model.name}>"
    assert repr(model) == f"<accrt.LLM {model.name}, closed>"


def test_a_loop_that_is_closed_with_a_stream_hurts_nobody():
    """Its pieces go nowhere: its request ends, and the thread that takes all events goes on."""
    with accrt.LLM(serve.simulated(step_ns=1_000_000)) as model:
        alone = model.generate("x", **GREEDY).text
        streams = [model.stream("left", max_tokens=4000) for _ in range(3)]
        left = []

        async def begin(stream):
            pieces = stream.__aiter__()
            left.append(pieces)  # no aclose: nothing ends it but its loop's end
            await pieces.__anext__()

        for stream in streams:
            loop = asyncio.new_event_loop()
            loop.run_until_complete(begin(stream))
            loop.close()
        for _ in range(5):
            assert model.generate("x", **GREEDY).text == alone
        assert until(lambda: model.generate("x", max_tokens=1) and model.engine.stats()["running"] == 0)
        left.clear()


CHILD = """
import gc, os, signal, sys, threading, time
import accrt
from accrt import serve

llm = accrt.LLM(serve.simulated())
text = llm.generate("x", max_tokens=5, seed=1).text
busy = threading.Thread(target=llm.generate, args=("y",), kwargs={"max_tokens": 4000})  # it holds the hub's locks, now and then
busy.start()
stream = iter(llm.stream("z", max_tokens=4000))
next(stream)

def say(what, may_end=False):
    try:
        print(what.__name__, "gives", repr(what())[:100], file=sys.stderr)
    except accrt.ForkedError:
        return
    wrong.extend([] if may_end else [what.__name__])

wrong = []
for _ in range(8):
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        def generates(): return llm.generate("x")
        def streams(): return [next(iter(llm.stream("x"))) for _ in range(100)]
        def goes_on(): return list(stream)
        def makes(): return accrt.LLM(serve.simulated())
        for one in (generates, streams, makes):
            say(one)
        say(goes_on, may_end=True)  # where all of its pieces were there before the fork
        llm.close()
        del llm, stream
        gc.collect()
        os._exit(len(wrong))
    assert os.waitpid(child, 0)[1] == 0
stream.close()
assert llm.generate("x", max_tokens=5, seed=1).text == text
busy.join()
llm.close()
print("good")
"""


def test_a_forked_child_is_refused_and_does_not_hang():
    done = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and done.stdout == "good\n", done.stderr


def test_many_streams_at_once(llm):
    async def one(prompt):
        return "".join([piece.text async for piece in llm.stream(prompt, **GREEDY)])

    async def all_of_them():
        return await asyncio.gather(*[one(f"async {i}") for i in range(20)])

    assert asyncio.run(all_of_them()) == [llm.generate(f"async {i}", **GREEDY).text for i in range(20)]
    assert asyncio.run(one("again")) == llm.generate("again", **GREEDY).text


def test_who_leaves_a_stream_ends_its_request():
    before = descriptors()
    with accrt.LLM(serve.simulated(step_ns=1_000_000)) as model:
        for piece in model.stream("long", max_tokens=4000):
            break
        gc.collect()
        assert until(lambda: model.engine.stats()["running"] == 0)

        async def leave():
            async for _ in model.stream("long", max_tokens=4000):
                break

        asyncio.run(leave())
        assert until(lambda: serve_http.holds_no_page(model.engine))
    assert until(lambda: descriptors() <= before)


# ---- the command ---------------------------------------------------------------------------------


@pytest.fixture
def command(tmp_path):
    """accrt-serve in a process of its own."""
    running = []

    def start(*arguments):
        process = subprocess.Popen([sys.executable, "-m", "accrt.serve", *arguments], stderr=subprocess.PIPE, text=True,
                                   env={**os.environ, "PYTHONPATH": PYTHON})  # fmt: skip
        running.append(process)
        lines = []
        for line in process.stderr:
            lines.append(line)
            found = re.search(r"at http://\S+:(\d+) after", line)
            if found:
                return process, int(found[1]), lines
        process.wait()
        return process, None, lines

    yield start
    for process in running:
        process.kill()
        process.wait()
        process.stderr.close()


def ask(port, data):
    with socket.create_connection(("127.0.0.1", port), timeout=30) as client:
        client.sendall(data)
        return Answer(read_all(client))


def test_the_command_serves_and_ends(command, tmp_path):
    template = tmp_path / "template.jinja"
    template.write_text(TEMPLATE)
    process, port, lines = command("simulated:", "--port", "0", "--name", "mine", "--chat-template", str(template), "--api-key", "k")
    assert port and lines[0].startswith("Loading simulated:")
    answer = ask(port, post("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "max_tokens": 3}, "Authorization: Bearer k"))
    assert answer.status == 200 and answer.json["model"] == "mine"
    assert ask(port, get("/v1/models")).status == 401
    under_way = socket.create_connection(("127.0.0.1", port), timeout=30)
    under_way.sendall(post("/v1/completions", {"prompt": "x", "max_tokens": 2000, "stream": True}, "Authorization: Bearer k"))
    assert under_way.recv(100)
    process.send_signal(signal.SIGTERM)
    assert read_all(under_way).endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
    under_way.close()
    assert process.wait(30) == 0
    log = process.stderr.read()
    assert '"POST /v1/chat/completions" 200' in log and '"GET /v1/models" 401' in log and "Ending" in log


def test_the_command_says_what_is_wrong(command, tmp_path):
    process, port, lines = command(str(tmp_path / "nothing.accx"), "--port", "0")
    assert port is None and process.wait(30) == 1
    assert lines[-1].startswith("accrt-serve: ") and "nothing.accx" in lines[-1] and len(lines) == 2
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        process, port, lines = command("simulated:", "--port", str(taken.getsockname()[1]))
        assert port is None and process.wait(30) == 1 and "cannot listen at 127.0.0.1" in lines[-1]


def test_the_command_ends_when_the_engine_has_failed_for_good(monkeypatch, capsys):
    """A supervisor starts it again; without one, nobody is told 200 by a server that can do
    nothing."""
    from accrt.serve import command as module
    from accrt.serve import server as server_module

    def start(job, work):
        raise accrt.PoisonedError("the engine has failed")

    monkeypatch.setattr(server_module, "start", start)
    port, answers = serve_http.free_port(), []

    def client():
        def up():
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                return True

        assert until(up)
        answers.append(ask(port, post("/v1/completions", {"prompt": "x"})))
        if answers[0].status != 503:
            os.kill(os.getpid(), signal.SIGTERM)  # it would not end

    thread = threading.Thread(target=client)
    thread.start()
    assert module.main(["simulated:", "--port", str(port)]) == 1
    thread.join()
    assert answers[0].status == 503 and answers[0].error["code"] == "engine_failed"
    assert "accrt-serve: the engine has failed for good" in capsys.readouterr().err


def test_what_takes_long_is_told_while_it_goes_on(capsys, monkeypatch):
    from accrt.serve import command as module

    monkeypatch.setattr(module, "_AGAIN_SECONDS", 0.5)
    progress, said = module._Progress(), []

    def tells(pattern):
        said.append(capsys.readouterr().err)
        return re.search(pattern, "".join(said))

    try:
        progress.begins("binding 3 MiB of weights on host")
        # more than 1 s where the thread that says it wakes up late
        assert until(lambda: tells(r"^  binding 3 MiB of weights on host \([1-9]\d* s so far\)\n"))
        progress.goes_on("binding the rest")
        assert until(lambda: tells(r"(?m)^  binding the rest \([1-9]\d* s so far\)$"))
        progress("bound the weights on host", 2.0)
        assert until(lambda: tells(r"(?m)^  bound the weights on host \(2\.00 s\)$"))
    finally:
        progress.end()


# ---- told to stop while it compiles --------------------------------------------------------------


def beneath(pid):
    """Processes that this one, or one of its session, has started."""
    found = []
    for entry in os.listdir("/proc"):
        with contextlib.suppress(OSError, ValueError):
            stat = pathlib.Path("/proc", str(int(entry)), "stat").read_text()
            if int(stat.rpartition(")")[2].split()[1]) == pid:
                found += [int(entry), *beneath(int(entry))]
    return found


def runs(pid):
    with contextlib.suppress(OSError):
        return pathlib.Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_told_to_stop_while_compiling(tmp_path, number):
    """One line, no compiler left, no temporary file left."""
    folder = tiny.write_folder(tmp_path / "model", tiny.CONFIGS["llama"], tiny.tensors(tiny.CONFIGS["llama"], 1))
    temporary, cache = tmp_path / "temporary", tmp_path / "cache"
    temporary.mkdir()
    environment = {**os.environ, "PYTHONPATH": PYTHON, "TMPDIR": str(temporary), "XDG_CACHE_HOME": str(cache)}
    process = subprocess.Popen([sys.executable, "-m", "accrt.serve", str(folder), "--port", "0"], stderr=subprocess.PIPE, text=True, env=environment,
                               # nohup ignores SIGHUP, and what it starts too
                               preexec_fn=lambda: signal.signal(number, signal.SIG_DFL))
    try:
        assert until(lambda: serve_http.stopped_within(process, lambda: list(temporary.glob("accrt-kernel-*")) and beneath(process.pid)), 120)
        compilers = beneath(process.pid)
        process.send_signal(number)
        process.send_signal(signal.SIGCONT)
        assert process.wait(60) == 128 + number
        lines = process.stderr.read().splitlines()
    finally:
        process.kill()
        process.stderr.close()
    assert lines[-1] == f"accrt-serve: ended by {number.name} while it was loading" and not any("Traceback" in line for line in lines)
    assert until(lambda: not any(runs(pid) for pid in compilers))
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize("reads", [True, False])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_told_to_stop_while_importing(tmp_path, number, reads):
    """One line in place of a traceback out of some module, also where nobody reads it any more: its
    terminal was closed."""
    (tmp_path / "argparse.py").write_text(f"import pathlib, time; pathlib.Path({str(tmp_path / 'there')!r}).touch(); time.sleep(60)")
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{PYTHON}"}
    process = subprocess.Popen([sys.executable, "-m", "accrt.serve", "simulated:"], stderr=subprocess.PIPE, text=True, env=environment,
                               preexec_fn=lambda: signal.signal(number, signal.SIG_DFL))  # fmt: skip
    try:
        assert until((tmp_path / "there").exists)
        if not reads:
            process.stderr.close()
        process.send_signal(number)
        assert process.wait(30) == 128 + number
        assert not reads or process.stderr.read() == f"accrt-serve: ended by {number.name} while it was starting\n"
    finally:
        process.kill()
        process.stderr.close()


# ---- what is wrong is said before anything is compiled -------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model that nothing was compiled for."""
    return tiny.write_folder(tmp_path_factory.mktemp("models") / "tiny", tiny.CONFIGS["llama"], tiny.tensors(tiny.CONFIGS["llama"], 1))


def test_weights_that_are_no_numbers_fail_their_requests_alone(tmp_path):
    """The model is blamed, by name, and neither the library nor another request."""
    weights = tiny.tensors(tiny.CONFIGS["llama"], 1)
    weights["model.embed_tokens.weight"][7] = np.nan
    bad = tiny.write_folder(tmp_path / "bad", tiny.CONFIGS["llama"], weights)
    with accrt.LLM(bad) as model:
        alone = model.generate([5, 6], seed=1, max_tokens=4, logit_bias={7: -100}).token_ids
        for parameters in ({}, {"logprobs": 2}, {"prompt_logprobs": 1}, {"n": 2}):
            with pytest.raises(accrt.KernelError, match="the model failed at the request: its results are not finite numbers"):
                model.generate([5, 7, 6], seed=1, max_tokens=4, **parameters)
            with pytest.raises(accrt.KernelError, match="its results are not finite numbers"):
                model.generate([[5, 6], [5, 7, 6]], seed=1, max_tokens=4, **parameters)
        with pytest.raises(accrt.KernelError):
            model.embed([5, 7, 6])
        assert model.generate([5, 6], seed=1, max_tokens=4, logit_bias={7: -100}).token_ids == alone
    loaded = serve.load(bad)
    with serve.Engine(loaded.model) as engine, serve.Server(engine, loaded.text, name="bad", port=0) as server:
        for parameters in ({}, {"logprobs": 2}, {"stream": True}):
            answer = ask(server.port, post("/v1/completions", {"prompt": [5, 7, 6], "seed": 1, **parameters}))
            assert answer.status == 500 and answer.error["code"] == "model_failed" and "NaN" in answer.error["message"]
    loaded.text.close()


@pytest.fixture
def no_compiler(monkeypatch, tmp_path):
    from accrt.compiler import _children

    def run(*arguments, **options):
        pytest.fail(f"a compiler is started: {arguments}")

    monkeypatch.setattr(_children, "run", run)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@pytest.mark.parametrize("options,message", [
    (["--device", "cuda:9"], "cuda:9"), (["--host", "no such host"], "host 'no such host'"), (["--max-length", "257"], "max_length is 257, and the model has 256"),
    (["--max-rows", "100000"], "max_rows is 100000, and the model has "), (["--chat-template", "nofile"], "nofile: No such file"),
    (["--chat-template", "/"], "chat_template /: it is not a regular file"), (["--weights", "other.safetensors"], "weights are other.safetensors, but"),
    (["--max-running", "5000000000"], "max_running is 5000000000, which does not fit"),
    (["--max-running", "100000"], "max_running is 100000, and the model's is "), (["--max-step-tokens", "100000"], "max_step_tokens is 100000"),
    (["--max-rows", "4", "--max-running", "8"], "max_running is 8, and the model's is 4"), (["--num-speculative-tokens", "1000"], "num_speculative_tokens is 1000"),
    (["--prompt-lookup-max", "1", "--prompt-lookup-min", "3"], "prompt_lookup_min is 3, above"), (["--kv-bytes", "1"], "kv_bytes is 1, and a page"),
    (["--adapter", "a=/no/such"], "/no/such: there is no adapter_config.json"),
    (["--workers", "100000"], "workers is 100000, expected at most 1024"), (["--cors-origin", "a\nb"], "cors_origin is 'a\\nb', expected one origin"),
    (["--adapter", "tiny=/x"], "an adapter is called 'tiny', which is the model's own name"),
    (["--name", "sql", "--adapter", "sql=/x"], "an adapter is called 'sql', which is the model's own name"),
    (["--adapter", "a=/x", "--adapter", "a=/y"], "two adapters are called 'a'"), (["--api-key", "two words"], "the API key has characters"),
])  # fmt: skip
def test_options_are_looked_at_before_compiling(folder, no_compiler, capsys, options, message):
    from accrt.serve import command as module

    assert module.main([str(folder), "--port", "0", *options]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) <= 5 and lines[-1].startswith("accrt-serve: ") and message in lines[-1], lines


def test_an_empty_key_locks_nothing(folder, no_compiler, capsys, monkeypatch):
    """Where a secret was to be put in and is not there, nobody is let in unasked."""
    from accrt.serve import command as module

    monkeypatch.setenv("ACCRT_API_KEY", "")
    assert module.main([str(folder), "--port", "0"]) == 1
    assert "the API key is empty" in capsys.readouterr().err
    with pytest.raises(ValueError, match="api_key"):
        serve_http.served(api_key="").__enter__()


def test_options_are_looked_at_before_a_cached_model_is_loaded(folder, tmp_path, monkeypatch):
    """LLM's too, and for a bundle that lies in the cache."""
    from accrt.serve import loading

    monkeypatch.setenv("XDG_CACHE_HOME", kh.other_cache(tmp_path))
    with accrt.LLM(folder, device="host", kv_bytes=1 << 20):
        pass
    monkeypatch.setattr(loading, "_program", lambda *arguments: pytest.fail("weights are loaded"))
    for options, message in (({"max_running": 300}, "max_running is 300"), ({"kv_bytes": 5}, "kv_bytes is 5"), ({"max_length": 257}, "max_length is 257")):
        with pytest.raises((ValueError, accrt.Error), match=message):
            accrt.LLM(folder, device="host", **options)


@pytest.mark.parametrize("is_host,memory,kv,weights,message", [
    (False, 1000, 0, 2000, "the weights take .*, and cuda:0 has"), (False, 10000, 0, 2000, None), (True, 1000, 0, 2000, None),
    (False, 1000, 4000, 0, "kv_bytes is 4000, and cuda:0 has 1000"), (True, 1000, 4000, 0, "kv_bytes is 4000"), (True, 0, 4000, 2000, None),
    (True, 1000, 10**15, 0, "kv_bytes is 1"), (True, 100_000, 10**15, 0, None),
])  # fmt: skip
def test_what_does_not_fit_into_memory(is_host, memory, kv, weights, message):
    """Beyond what all rows can use, a limit for keys and values takes nothing."""
    from accrt.serve import fitting

    metadata = {"serve.row_buckets": "1,8", "serve.sample_buckets": "8", "serve.token_buckets": "64", "serve.max_position": "256",
                "serve.page_size": "16", "serve.kv_bytes_per_token": "4"}  # fmt: skip
    chosen = {"max_rows": 0, "max_length": 0, "kv_bytes": kv}
    with pytest.raises(ValueError, match=message) if message else contextlib.nullcontext():
        fitting.check(metadata, None, chosen, fitting.Wanted(), fitting.Place("host:0" if is_host else "cuda:0", is_host, memory), weights)


def test_a_port_and_a_template_are_looked_at_before_compiling(folder, no_compiler, capsys, tmp_path):
    from accrt.serve import command as module

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert module.main([str(folder), "--port", str(taken.getsockname()[1])]) == 1
    assert "cannot listen at 127.0.0.1 port" in capsys.readouterr().err
    template = tmp_path / "template.jinja"
    for content, message in ((b"{% for %}", "the chat template cannot be read"), (b"\xff", "byte 0 is no UTF-8"), (b"x" * 2_000_000, "more than 1048576 bytes")):
        template.write_bytes(content)
        assert module.main([str(folder), "--port", "0", "--chat-template", str(template)]) == 1
        line = capsys.readouterr().err.splitlines()[-1]
        assert message in line and str(template) in line


@pytest.mark.parametrize("name,content,message", [
    ("tokenizer.json", "", "tokenizer.json: it is not JSON"), ("tokenizer.json", '{"model": {"vo', "tokenizer.json: it is not JSON"),
    ("tokenizer.json", '{"a": 1}', "tokenizer.json: there is no model"), ("tokenizer.json", "[1]", "tokenizer.json: it is [1], expected an object"),
    ("tokenizer.json", '{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": [["a", "b"]]}}', "tokenizer.json: Token `b` out of vocabulary"),
    ("tokenizer_config.json", "{", "tokenizer_config.json: it is not JSON"), ("tokenizer_config.json", "3", "tokenizer_config.json: it is 3, expected an object"),
    ("chat_template.jinja", "{% if %}", "the chat template cannot be read"), ("config.json", "{", "config.json: it is not JSON"),
])  # fmt: skip
def test_files_of_a_folder_that_are_broken(folder, no_compiler, capsys, tmp_path, name, content, message):
    from accrt.serve import command as module

    broken = tmp_path / "broken"
    shutil.copytree(folder, broken)
    (broken / name).write_text(content)
    assert module.main([str(broken), "--port", "0"]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) <= 5 and lines[-1].startswith("accrt-serve: ") and message in lines[-1], lines


@pytest.mark.parametrize("model,message", [(None, "model is None, expected the path"), (5, "model is 5, expected the path")])
def test_a_model_that_is_no_path(model, message):
    with pytest.raises(TypeError, match=message):
        accrt.LLM(model)


@pytest.mark.parametrize("options,error,message", [
    ({"max_running": "8"}, TypeError, "max_running is '8', expected an integer"), ({"kv_bytes": 1.5}, TypeError, "kv_bytes is 1.5, expected an integer"),
    ({"device": 0}, TypeError, "device is 0, expected a string"), ({"max_lenght": 3}, TypeError, "did you mean 'max_length'?"),
    ({"kv_dtype": "f8"}, ValueError, "kv_dtype is 'f8', expected one of f32, f16, bf16, fp8"), ({"seed": -1}, OverflowError, "seed is -1"), ({"max_rows": True}, TypeError, "max_rows is True"),
])  # fmt: skip
def test_options_of_another_type_are_named(options, error, message):
    with pytest.raises(error, match=re.escape(message)):
        accrt.LLM("no such folder", **options)


def test_numbers_of_numpy_are_numbers(llm):
    greedy = {**GREEDY, "max_tokens": np.int64(5), "temperature": np.float32(0)}
    assert llm.generate([np.int64(115), np.int32(101)], **greedy).text == llm.generate("se", **{**GREEDY, "max_tokens": 5}).text


@pytest.mark.parametrize("prompt", ["\ud800", "half \ud83d"])
def test_half_a_character_is_refused(llm, prompt):
    """As JavaScript leaves it where it cuts a string: it has no UTF-8 bytes."""
    with pytest.raises(serve.BadParameter, match="half of a surrogate pair"):
        llm.generate(prompt)
    with pytest.raises(serve.BadParameter, match="messages has half of a surrogate pair"):
        llm.chat([{"role": "user", "content": prompt}])


@pytest.mark.parametrize("option,message", [
    (("--workers", "-1"), "'-1' is not a whole number"), (("--kv-bytes", "1Q"), "'1Q' is not a number of bytes"), (("--port", "99999999"), "is not a port"),
    (("--drain-timeout", "-4"), "'-4' is not a number of seconds"), (("--idle-timeout", "inf"), "'inf' is not a number of seconds"),
    (("--port", "http"), "'http' is not a port: a number from 0 to 65535"), (("--stall-timeout", "1m"), "'1m' is not a number of seconds"),
])  # fmt: skip
def test_options_are_checked_before_anything_is_loaded(capsys, option, message):
    from accrt.serve import command as module

    with pytest.raises(SystemExit):
        module.main(["simulated:", "=".join(option)])
    assert message in capsys.readouterr().err


def test_help_names_every_option():
    from accrt.serve import command as module
    from accrt.serve import engine, loading, server

    text = module._parser().format_help()
    for options in (engine.OPTIONS, loading.OPTIONS, server.OPTIONS):
        assert [name for name in options if "--" + name.replace("_", "-") not in text] == []


def test_help_says_what_each_option_is():
    """A help stands alone: it does not go on from the option's name."""
    from accrt.serve import engine, loading, server

    helps = {name: words for options in (engine.OPTIONS, loading.OPTIONS, server.OPTIONS) for name, (_, words) in options.items()}
    assert [name for name, words in helps.items() if re.match(r"(?:of|after|more|without|as|0:)\b", words)] == [] and len(helps) > 30


@contextlib.contextmanager
def page_of(server, folder):
    """The page in a browser without a window."""
    program = shutil.which("chromium") or pytest.skip("there is no chromium")
    spec = importlib.util.spec_from_file_location("browser", pathlib.Path(__file__).parents[1] / "docs" / "browser.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    browser = module.Browser(program, str(folder))
    try:
        target = browser.call("Target.createTarget", url="about:blank")["targetId"]
        browser.session = browser.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        browser.call("Network.enable")
        browser.call("Page.navigate", url=f"http://127.0.0.1:{server.port}/")
        browser.until("document.readyState === 'complete' && !!document.getElementById('text')")
        yield browser
    finally:
        browser.end()


def say(browser, text, tokens=50):
    browser.value(f"document.getElementById('tokens').value = {tokens}")
    browser.value("document.getElementById('text').focus()")
    browser.call("Input.insertText", text=text)
    for kind in ("keyDown", "keyUp"):
        browser.call("Input.dispatchKeyEvent", type=kind, key="Enter", code="Enter", windowsVirtualKeyCode=13, text="\r" if kind == "keyDown" else "")


BUTTON = "document.getElementById('send').textContent"
LAST = "[...document.querySelectorAll('p.{}')].at(-1)?.textContent"


def test_the_page_in_a_browser(tmp_path):
    """An answer comes while it is made and can be stopped; the conversation goes on; what is wrong
    is shown."""
    with serve_http.served(check_descriptors=False, model={"step_ns": 5_000_000}) as server, page_of(server, tmp_path) as browser:
        assert browser.until("document.getElementById('model').textContent === 'sim'")
        say(browser, "hello", tokens=4000)
        some = browser.until(LAST.format("assistant"))
        assert browser.value(BUTTON) == "Stop" and browser.value(LAST.format("user")) == "hello"
        assert browser.until(f"{LAST.format('assistant')}.length > {len(some) + 20}")  # it streams
        browser.value("document.getElementById('send').click()")
        assert browser.until(f"{BUTTON} === 'Send'") and until(lambda: not server.busy())
        assert browser.value("messages.map(m => m.role).join()") == "user,assistant"
        say(browser, "again", tokens=9)
        assert browser.until("messages.length === 4") and "9 tokens" in browser.until(LAST.format("assistant"))
        say(browser, "too much", tokens=99999)
        assert "max_tokens is 99999" in browser.until(LAST.format("error"))
        assert browser.value("messages.length") == 4 and browser.value(BUTTON) == "Send"
        assert all(url.startswith((f"http://127.0.0.1:{server.port}/", "about:")) for url in browser.requests)


def test_the_page_asks_for_a_key_in_a_browser(tmp_path):
    with serve_http.served(check_descriptors=False, api_key="secret") as server, page_of(server, tmp_path) as browser:
        assert "key" in browser.until(LAST.format("error"))
        browser.value("document.getElementById('key').value = 'secret'; document.getElementById('key').dispatchEvent(new Event('change'))")
        assert browser.until("document.getElementById('model').textContent === 'sim'")
        say(browser, "hello", tokens=5)
        assert "5 tokens" in browser.until(LAST.format("assistant") + "?.match(/5 tokens/)?.[0]")


# ---- the official client -------------------------------------------------------------------------


def test_generating_without_await_imports_no_event_loop():
    """asyncio and what it imports (ssl, logging) take a third of a start's imports."""
    code = ("import sys, accrt; from accrt import serve\n"
            "with accrt.LLM(serve.simulated()) as llm: llm.generate('a', max_tokens=2)\n"
            "print(sorted(set(sys.modules) & {'asyncio', 'ssl', 'numpy', 'accrt.compiler'}))")  # fmt: skip
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, env=dict(os.environ, PYTHONPATH=PYTHON))
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr


def test_the_openai_client():
    openai = pytest.importorskip("openai", reason="the openai client is not here (./dev check openai has it)")
    messages = [{"role": "user", "content": "hello"}]
    with serve_http.served(check_descriptors=False, api_key="k") as server:
        url = f"http://127.0.0.1:{server.port}/v1"
        with openai.OpenAI(base_url=url, api_key="k", max_retries=0) as client:
            whole = client.chat.completions.create(model="sim", messages=messages, max_tokens=10, temperature=0, logprobs=True, top_logprobs=2)
            assert whole.usage.completion_tokens == 10 and len(whole.choices[0].logprobs.content) == 10
            options = {"include_usage": True}
            chunks = list(client.chat.completions.create(model="sim", messages=messages, max_tokens=10, temperature=0, stream=True, stream_options=options))
            assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == whole.choices[0].message.content
            assert chunks[0].choices[0].delta.role == "assistant" and chunks[-1].usage.total_tokens == whole.usage.total_tokens
            assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "length"
            text = client.completions.create(model="sim", prompt=["a", "b"], n=2, max_tokens=4, logprobs=1)
            assert len(text.choices) == 4 and len(text.choices[3].logprobs.tokens) == 4
            assert [m.id for m in client.models.list()] == ["sim"] and client.models.retrieve("sim").id == "sim"
            with pytest.raises(openai.BadRequestError, match="temperature is -1") as caught:
                client.completions.create(model="sim", prompt="x", temperature=-1)
            assert caught.value.param == "temperature" and caught.value.code == "invalid_value"
            with pytest.raises(openai.NotFoundError):
                client.completions.create(model="other", prompt="x")
            stream = client.completions.create(model="sim", prompt="x", max_tokens=4000, stream=True)
            next(iter(stream))
            stream.close()
            assert until(lambda: not server.busy())
        with openai.OpenAI(base_url=url, api_key="wrong", max_retries=0) as client, pytest.raises(openai.AuthenticationError):
            client.models.list()

        async def both():
            async with openai.AsyncOpenAI(base_url=url, api_key="k", max_retries=0) as client:
                async def one(i):
                    stream = await client.completions.create(model="sim", prompt=f"{i}", max_tokens=20, temperature=0, stream=True)
                    return "".join([chunk.choices[0].text async for chunk in stream])

                async def other(i):
                    return (await client.completions.create(model="sim", prompt=f"{i}", max_tokens=20, temperature=0)).choices[0].text

                streamed = await asyncio.gather(*[one(i) for i in range(10)])
                return streamed, await asyncio.gather(*[other(i) for i in range(10)])

        streamed, at_once = asyncio.run(both())
        assert streamed == at_once
    assert json.dumps(streamed)


@pytest.mark.parametrize("begun", [
    "pieces = iter(llm.stream('x', max_tokens=4000)); next(pieces)", "pieces = iter(llm.stream_chat([{'role': 'user', 'content': 'x'}], max_tokens=4000)); next(pieces)",
    "stream = llm.stream('x', max_tokens=4000); loop = asyncio.new_event_loop(); pieces = stream.__aiter__(); loop.run_until_complete(pieces.__anext__())",
    "threading.Thread(target=llm.generate, args=(['x'] * 50,), kwargs={'max_tokens': 4000}, daemon=True).start()",
    "pieces = iter(llm.stream('x', max_tokens=4000)); next(pieces); pid = os.fork(); os.waitpid(pid, 0) if pid else sys.exit(0)",
])  # fmt: skip
def test_a_script_that_ends_in_the_middle_says_nothing(begun):
    """What is called for the first time then was a KeyError, told as an ignored exception."""
    code = f"import asyncio, os, sys, threading\nfrom accrt import LLM, serve\nllm = LLM(serve.simulated(chat_template='{{{{ messages }}}}'))\ndef kept():\n    pass\n{begun}\nsys.exit(0)\n"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, env=dict(os.environ, PYTHONPATH=PYTHON))
    assert done.returncode == 0 and "accrt" not in done.stderr, done.stderr
