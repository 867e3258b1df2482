"""Bodies of requests that somebody made to take the server's memory and time before they are
refused: what is refused takes about as much as was sent."""
from __future__ import annotations

import json
import re
import os
import select
import signal
import socket
import subprocess
import sys
import time
import tracemalloc
import zlib

import pytest

from accrt.serve import requests, tools
from accrt.serve.parameters import BadParameter, checked, near, shown
from accrt.serve.text import Text, limited, template_names
from serve_http import get, need_server, post, read_all, served, until

need_server()

MIB = 1 << 20


def cost(work):
    """Seconds of processor time, and bytes of memory at once."""
    tracemalloc.start()
    try:
        begin = time.process_time()
        work()
        return time.process_time() - begin, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("letters", ["A", "ab", "abcdefghijklmnop", "max_tokens"])
def test_unknown_parameters_with_long_names_are_not_compared(letters):
    name = (letters * MIB)[:MIB]

    def refused():
        with pytest.raises(BadParameter, match="unknown parameter"):
            checked({name: 1})

    seconds, size = cost(refused)
    assert size < 8 * MIB and seconds < 5, (seconds, size)
    assert near("max_new_tokens", ["max_tokens"]) == "max_tokens" and near("temprature", ["temperature"]) == "temperature"


@pytest.mark.parametrize("part", [b"[],", b"{},", b'{"":0},', b'[[[[""]]]],'])
def test_lists_and_objects_of_a_body_are_counted(part):
    body = b'{"metadata":[' + part * (4 * MIB // len(part)) + b"0]}"

    def refused():
        with pytest.raises(BadParameter, match="lists and objects, expected at most 524288"):
            requests.parse(body)

    seconds, size = cost(refused)
    assert size < MIB and seconds < 5, (seconds, size)


@pytest.mark.parametrize("names", [b'"%d":1,', b'"%d" :1,', b'"":%d,'])
def test_names_of_a_body_are_counted(names):
    body = b'{"logit_bias":{' + b"".join(names % i for i in range(1 << 20)) + b'"":1}}'

    def refused():
        with pytest.raises(BadParameter, match="the body has 1048578 names, expected at most 524288"):
            requests.parse(body)

    seconds, size = cost(refused)
    assert size < MIB and seconds < 2, (seconds, size)


@pytest.mark.parametrize("name, value, words", [
    ("logit_bias", {str(i): 1 for i in range(500000)}, "logit_bias has 500000 tokens, expected at most 1024"),
    ("logit_bias", {i: 1 for i in range(1025)}, "logit_bias has 1025 tokens, expected at most 1024"),
    ("stop_token_ids", [1] * 5000000, "stop_token_ids has 5000000 tokens, expected at most 1024"),
    ("stop_token_ids", (1,) * 1025, "stop_token_ids has 1025 tokens, expected at most 1024"),
])  # fmt: skip
def test_tokens_that_the_engine_looks_at_in_each_step_are_few(name, value, words):
    def refused():
        with pytest.raises(BadParameter) as error:
            checked({name: value})
        assert error.value.message == words and error.value.parameter == name

    seconds, size = cost(refused)
    assert size < MIB and seconds < 1, (seconds, size)
    few = list(range(1024))
    assert checked({name: {str(i): 1 for i in few} if name == "logit_bias" else few})[name] == ({i: 1 for i in few} if name == "logit_bias" else tuple(few))


LONG = [[1.5] * 3000000, [[[7] * 3000000]], {"a": {"b": [1] * 3000000}}, "a" * 30 * MIB, {f"k{i}": i for i in range(300000)}, ([""] * 3000000,)]


@pytest.mark.parametrize("value", LONG, ids=range(len(LONG)))
def test_a_long_value_is_shown_by_its_beginning(value):
    seconds, size = cost(lambda: shown(value))
    assert size < MIB and seconds < 0.5, (seconds, size)
    assert shown(value) == repr(value)[:77] + "..."


@pytest.mark.parametrize("value", [1, None, True, 1.5, "a", "'\n", [], {}, (), (1,), [[]], {"a": [1, {"b": None}]}, list(range(26)), list(range(27)), "a" * 78, "a" * 79, "a" * 81,
                                   {1: 2, (1, 2): 3}, [[[[1]]]] * 20, "[" * 100, ["a" * 90] * 90, {"a" * 79 + "b": 1, "a" * 79 + "c": 1}])  # fmt: skip
def test_short_values_are_shown_whole(value):
    whole = repr(value)
    assert shown(value) == (whole if len(whole) <= 80 else whole[:77] + "...")


def test_names_for_a_chat_template_are_few():
    with pytest.raises(BadParameter, match="chat_template_kwargs has 257 names, expected at most 256"):
        template_names({f"k{i}": 1 for i in range(257)})
    assert len(template_names({f"k{i}": 1 for i in range(256)})) == 256


@pytest.mark.parametrize("stop, where", [("\ud800", "stop"), (["a", "\udfff"], r"stop\[1\]")])
def test_halves_of_surrogate_pairs_are_named(stop, where):
    with pytest.raises(BadParameter, match=f"{where} has half of a surrogate pair at character 0, which is no text"):
        checked({"stop": stop})


def test_tools_whose_calls_are_forced_have_the_limit_of_a_schema():
    wide = {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(10000)}}
    given = {"tools": [{"type": "function", "function": {"name": "f", "parameters": wide}}]}
    assert tools.asked(given, "hermes").grammar(lambda text: None, None) is None
    with pytest.raises(BadParameter, match="tools makes a grammar of [0-9]+ bytes, expected at most 262144"):
        tools.asked({**given, "tool_choice": "required"}, "hermes").grammar(lambda text: None, None)


@pytest.mark.parametrize("coding", ["gzip", "br", "gzip, identity", "zstd", "x" * 5000])
def test_encoded_bodies_are_refused_by_name(coding):
    bomb = zlib.compress(b" " * 64 * MIB)
    with served() as server:
        answer = server.raw(post("/v1/completions", bomb, f"Content-Encoding: {coding}"))
        assert answer.startswith(b"HTTP/1.1 415 Unsupported Media Type") and b'"code":"unsupported_encoding"' in answer, answer
        plain = server.raw(post("/v1/completions", {"prompt": "x", "max_tokens": 2}, "Content-Encoding: Identity"))
        assert plain.startswith(b"HTTP/1.1 200 "), plain


class Words:
    """A tokenizer with a token for each word. It says how much became tokens at once and in all."""

    def __init__(self):
        self.most = self.sum = 0

    def encode(self, text, special=True):
        self.most, self.sum = max(self.most, len(text)), self.sum + len(text)
        return [0] * special + [len(word) for word in text.split()]

    def has(self, text):
        return False


def test_a_text_that_is_too_long_does_not_become_tokens():
    """All of it did, before its tokens were counted: 16 MB of short words took 5 GB."""
    text = Text(Words(), longest=10_000)
    with pytest.raises(BadParameter, match=r"prompt\[3\] has more than 10000 tokens, and the model takes 10000") as caught:
        text.prompt("a " * (8 * MIB), "prompt[3]")
    assert caught.value.code == "context_length_exceeded"
    assert text.tokenizer.most <= 64 << 10 and text.tokenizer.sum <= 128 << 10


def test_a_long_text_of_few_tokens_is_taken():
    """Cutting words apart for the count refuses nothing: these are as many as there may be."""
    text, words = limited(Text(Words()), 10_000), " ".join(["word" * 300] * 9_999)
    assert len(words) > 8 * MIB and text.prompt(words) == [0] + [1200] * 9_999
    short = "a " * (MIB // 2)  # it is refused by what looks at the tokens, with their number
    assert len(text.prompt(short)) == MIB // 2 + 1
    assert len(Text(Words()).prompt("a " * MIB)) == MIB + 1


def test_the_server_and_its_model_say_how_long_a_text_may_be():
    with served() as server:
        for path, body in (("/v1/completions", {"prompt": "a" * (2 * MIB)}), ("/tokenize", {"prompt": "a" * (2 * MIB)})):
            answer = server.raw(post(path, body))
            assert answer.startswith(b"HTTP/1.1 400 ") and b'"code":"context_length_exceeded"' in answer, answer[:300]
            assert b"prompt has more than 4096 tokens, and the model takes 4096" in answer, answer[:300]


LARGE = {"prompt": ["ab"] * 16, "n": 16, "max_tokens": 100, "ignore_eos": True}


@pytest.mark.parametrize("body", [
    {**LARGE, "logprobs": 20}, {**LARGE, "logprobs": 20, "stream": True}, {**LARGE, "prompt": ["ab" * 400] * 16, "echo": True, "logprobs": 20},
    {**LARGE, "prompt": ["ab" * 400] * 16, "echo": True, "logprobs": 20, "stream": True}, {**LARGE, "prompt": ["ab" * 400] * 16, "prompt_logprobs": 20},
])  # fmt: skip
def test_an_answer_that_is_too_large_ends_alone(body):
    with served(max_held_bytes=MIB, max_output_bytes=16 * MIB) as server:
        with server.connect(receive_bytes=4096) as client:
            client.sendall(post("/v1/completions", body))
            most = 0

            def ended():
                nonlocal most
                most = max(most, server.server.counts()["held_bytes"])
                return server.engine.stats()["submitted"] > 0 and not server.busy()

            assert until(ended)
            assert most < 3 * MIB, most
            other = server.raw(post("/v1/completions", {"prompt": "x", "max_tokens": 3}))
            assert other.startswith(b"HTTP/1.1 200 "), other
            answer = read_all(client)
        if body.get("stream"):  # cut off: the last chunk is missing
            assert not answer.endswith(b"0\r\n\r\n"), answer[-80:]
        else:
            assert answer.startswith(b"HTTP/1.1 400 ") and b'"code":"answer_too_large"' in answer, answer[:300]
            assert b"The answer has more than 524288 bytes: ask for fewer choices or log probabilities" in answer


@pytest.mark.parametrize("stream", [False, True])
def test_prompts_that_an_answer_repeats_count_before_the_engine_has_the_request(stream):
    """One for each choice: 256 of 4,000 bytes."""
    with served(max_held_bytes=MIB) as server:
        answer = server.raw(post("/v1/completions", {**LARGE, "prompt": ["ab" * 2000] * 16, "echo": True, "max_tokens": 1, "stream": stream}))
        assert answer.startswith(b"HTTP/1.1 400 ") and b'"code":"answer_too_large"' in answer, answer[:300]
        assert b"the prompts in the answer have more than 524288 bytes" in answer, answer
        assert until(lambda: server.server.counts()["held_bytes"] == 0) and server.engine.stats()["submitted"] == 0
        other = server.raw(post("/v1/completions", {"prompt": "x", "max_tokens": 3}))
        assert other.startswith(b"HTTP/1.1 200 "), other


@pytest.mark.parametrize("body", [
    {"prompt": "\x01" * 4000, "n": 40, "echo": True, "max_tokens": 1},  # six bytes for each
    {"prompt": "ab" * 50, "n": 64, "max_tokens": 1, "prompt_logprobs": 20},  # in each choice
    {"prompt": "ab", "n": 128, "max_tokens": 2000, "ignore_eos": True, "logit_bias": {"1": 100}},
])  # fmt: skip
def test_what_becomes_longer_as_json_counts(body):
    with served(max_held_bytes=MIB) as server:
        answer = server.raw(post("/v1/completions", body))
        assert answer.startswith(b"HTTP/1.1 400 ") and b'"code":"answer_too_large"' in answer, (len(answer), answer[:300])
        other = server.raw(post("/v1/completions", {"prompt": "x", "max_tokens": 3}))
        assert other.startswith(b"HTTP/1.1 200 "), other


def test_answers_that_nobody_reads_are_bounded_together():
    body = {**LARGE, "max_tokens": 32, "logprobs": 20}  # some 6 MiB, of which sockets take a part
    with served(max_held_bytes=8 * MIB) as server:
        clients = [server.connect(receive_bytes=4096) for _ in range(8)]
        most = 0
        for client in clients:
            submitted = server.engine.stats()["submitted"]
            client.sendall(post("/v1/completions", body))
            assert until(lambda: server.engine.stats()["submitted"] > submitted and not server.busy() and server.server.counts()["jobs"] == 0)
            most = max(most, server.server.counts()["held_bytes"])
            other = server.raw(post("/v1/completions", {"prompt": "x", "max_tokens": 3}))
            assert other.startswith(b"HTTP/1.1 200 "), other
        assert MIB < most < 12 * MIB, most  # without a limit more than 16 MiB
        assert until(lambda: server.server.counts()["held_bytes"] <= 8 * MIB)
        for client in clients:
            client.close()


ASKED = '{"prompt":"a","max_tokens":1}'


@pytest.mark.parametrize("body, words", [
    *((ASKED.encode(coding), "the body is no JSON") for coding in ("utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be")),
    (b'{"prompt":"\xed\xa0\x80"}', "the body is no JSON"),
    (b'{"prompt":"a","prompt":"b"}', "has the name 'prompt' twice"),
    (b'{"prompt":"a","max_tokens":1,"max_\\u0074okens":2}', "has the name 'max_tokens' twice"),
    (b'{"messages":[{"role":"user","content":"a","content":"b"}]}', "has the name 'content' twice"),
    (b'{"logit_bias":{"1":5,"2":1,"1":-5}}', "has the name '1' twice"),
    (b'{"\x1b[31m' + b"x" * 4000 + b'":1,"\x1b[31m' + b"x" * 4000 + b'":1}', "the body is no JSON"),
    (b'{"' + b"x" * 4000 + b'":1,"' + b"x" * 4000 + b'":1}', "twice"),
])  # fmt: skip
def test_bodies_that_are_read_in_two_ways_are_refused(body, words):
    """Other codings than UTF-8 were read, and of two equal names the last one counted: a proxy
    before the server may look at another one."""
    with pytest.raises(BadParameter, match=re.escape(words)) as caught:
        requests.parse(body)
    assert str(caught.value).isprintable() and len(str(caught.value)) < 400
    assert requests.parse(b"\xef\xbb\xbf" + ASKED.encode()) == json.loads(ASKED)


def test_many_objects_are_compared_in_linear_time():
    body = b'{"metadata":[' + b'{"a":1},' * 500_000 + b"0]}"
    begin = time.process_time()
    assert len(requests.parse(body)["metadata"]) == 500_001
    assert time.process_time() - begin < 5


def test_large_honest_bodies_are_taken():
    prompts = [list(range(8000)) for _ in range(128)]
    assert requests.parse(json.dumps({"prompt": prompts}).encode())["prompt"] == prompts
    text = json.dumps([{"a": [1, 2]}] * 100000)
    assert requests.parse(json.dumps({"prompt": text}).encode())["prompt"] == text


def test_requests_without_memory_end_alone(monkeypatch, capfd):
    """Neither does a worker end whose report of a failure fails."""
    def failing(error):
        def work(*_):
            raise error("x")
        return work

    monkeypatch.setattr("traceback.print_exc", failing(MemoryError))
    with served(workers=2) as server:
        for error, status, word in ((MemoryError, b"503", b'"code":"overloaded"'), (KeyError, b"500", b'"code":"internal"')):
            with monkeypatch.context() as patch:
                patch.setattr(requests, "tokenize", failing(error))
                for _ in range(4):
                    answer = server.raw(post("/tokenize", {"prompt": "x"}))
                    assert answer.startswith(b"HTTP/1.1 " + status) and word in answer, answer
        assert server.raw(post("/tokenize", {"prompt": "x"})).startswith(b"HTTP/1.1 200 ")
    assert capfd.readouterr().err == ""


# A server with few descriptors; clients are in the process of the test.
SERVER = """
import os, resource, sys
from accrt import serve
import serve_http
loaded = serve.simulated(chat_template=serve_http.TEMPLATE)
engine = serve.Engine(loaded.model)
server = serve.Server(engine, loaded.text, name="sim", port=0)
resource.setrlimit(resource.RLIMIT_NOFILE, (24, 24))
print(server.port, flush=True)
sys.stdin.readline()
drained = server.drain(20)
server.close(), engine.close(), loaded.text.close()
print(drained, flush=True)
"""


class WithoutDescriptors:
    """A server in another process, which has room for some connections."""

    def __enter__(self):
        path = os.pathsep.join([os.path.dirname(os.path.abspath(__file__)), *filter(None, [os.environ.get("PYTHONPATH")])])
        self.process = subprocess.Popen([sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                        env={**os.environ, "PYTHONPATH": path})  # fmt: skip
        self.port = int(self.process.stdout.readline())
        return self

    def __exit__(self, *_):
        out, _ = self.process.communicate("\n", timeout=60)
        assert out == "True\n" and self.process.returncode == 0

    def connect(self):
        return socket.create_connection(("127.0.0.1", self.port), timeout=30)

    def open_files(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def seconds(self):
        """Processor time."""
        with open(f"/proc/{self.process.pid}/stat") as file:
            return sum(map(int, file.read().rsplit(")", 1)[1].split()[11:13])) / os.sysconf("SC_CLK_TCK")

    def helpers(self):
        tasks = f"/proc/{self.process.pid}/task"
        return [int(child) for task in os.listdir(tasks) for child in open(f"{tasks}/{task}/children").read().split()]

    def fill(self, spare):
        """Connections, until so many descriptors are left; the server's own spare one is open.
        After the last connection it is closed for a moment, as accept() needs one to say that
        nobody waits. Who connects then is refused."""
        clients = []
        while (before := self.open_files()) < 24 - spare:
            client = self.connect()
            assert until(lambda: self.open_files() > before or select.select([client], [], [], 0)[0])
            clients.append(client)
        return clients


def test_without_descriptors_clients_are_refused_and_others_served():
    with WithoutDescriptors() as server:
        rest = server.open_files()
        clients = server.fill(0)
        for _ in range(3):
            with server.connect() as late:
                late.sendall(get("/health"))
                assert read_all(late).startswith(b"HTTP/1.1 503 ")
        clients[0].sendall(post("/v1/completions", {"prompt": "x", "max_tokens": 3}))
        assert read_all(clients[0]).startswith(b"HTTP/1.1 200 ")
        clients[0].close()
        more = server.fill(0)
        waiting = [server.connect() for _ in range(20)]
        before = server.seconds()
        time.sleep(1)
        assert server.seconds() - before < 0.5
        for client in clients + more + waiting:
            client.close()
        assert until(lambda: server.open_files() <= rest)
        with server.connect() as client:
            client.sendall(get("/health"))
            assert read_all(client).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("spare", range(4))
def test_a_process_that_cannot_start_leaves_no_descriptor(spare):
    """One for chat templates: it needs six for a moment, of which the one that ended had two."""
    chat = post("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "max_tokens": 3}, close=False)
    with WithoutDescriptors() as server:
        rest = server.open_files()
        clients = server.fill(spare)
        for helper in server.helpers():
            os.kill(helper, signal.SIGKILL)
            assert until(lambda: open(f"/proc/{helper}/stat").read().rsplit(")", 1)[1].split()[0] == "Z")
        for _ in range(3):
            clients[0].sendall(chat)
            answer = clients[0].recv(65536)
            assert answer.startswith(b"HTTP/1.1 503 ") and b"no helper process can be started" in answer, answer
        for client in clients:
            client.close()
        assert until(lambda: server.open_files() <= rest - 2), (server.open_files(), rest)
        with server.connect() as client:
            client.sendall(chat)
            assert client.recv(65536).startswith(b"HTTP/1.1 200 ")
