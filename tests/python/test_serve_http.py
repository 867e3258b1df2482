"""The server on plain sockets: answers byte for byte, and clients that are malformed, slow, too
many, or gone."""

from __future__ import annotations

import collections
import json
import pathlib
import random
import re
import socket
import struct
import threading

import pytest
import rotation
import serve_http
from serve_http import Answer, descriptors, get, post, read_all, served, until

serve_http.need_server()

from accrt import llm, serve  # noqa: E402


@pytest.fixture(scope="module")
def server():
    with served(model={"eos": 0}, check_descriptors=False) as one:
        yield one


def ask(server, path, body, *headers):
    return Answer(server.raw(post(path, body, *headers)))


CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


# ---- answers, byte for byte ----------------------------------------------------------------------


def neutral(data):
    """Without what differs from run to run."""
    data = re.sub(rb'"id":"(chatcmpl|cmpl)-[0-9a-f]{24}"', rb'"id":"ID"', data)
    return re.sub(rb'"created":\d+', rb'"created":1', data)


def compact(value):
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


@pytest.fixture(scope="module")
def reference():
    """The same model in this process: what text the engine gives, piece by piece."""
    with llm.LLM(serve.simulated(chat_template=serve_http.TEMPLATE, eos=0)) as model:
        yield model


def chunk(kind, choices, **more):
    names = {"id": "ID", "object": "chat.completion.chunk" if kind == "chat" else "text_completion", "created": 1, "model": "sim"}
    return compact({**names, "choices": choices, **more})


def expected_stream(kind, output, pieces, usage):
    """What OpenAI's interface has: the role first, no reason before the end, an empty last delta,
    the usage, [DONE]."""
    def one(delta, reason=None):
        body = {"delta": delta} if kind == "chat" else {"text": delta.get("content", "")}
        choice = {"index": 0, **body, "logprobs": None, "finish_reason": reason}
        return chunk(kind, [choice], **({"usage": None} if usage else {}))

    lines = [one({"role": "assistant", "content": ""})] if kind == "chat" else []
    lines += [one({"content": piece.text}) for piece in pieces if piece.text]
    lines += [one({}, pieces[-1].finish_reason)]
    if usage:
        count, made = len(output.prompt_token_ids), len(output.token_ids)
        figures = {"prompt_tokens": count, "completion_tokens": made, "total_tokens": count + made, "prompt_tokens_details": {"cached_tokens": 0}}
        lines += [chunk(kind, [], usage=figures)]
    return lines + [b"[DONE]"]


@pytest.mark.parametrize("usage", [False, True])
@pytest.mark.parametrize("kind", ["chat", "completion"])
def test_streams_byte_for_byte(server, reference, kind, usage):
    messages, prompt = [{"role": "user", "content": f"{kind} {usage}"}], f"{kind} {usage} prompt"
    given = {"messages": messages} if kind == "chat" else {"prompt": prompt}
    parameters = {"max_tokens": 40, "temperature": 0, "seed": 1}
    stream = reference.stream_chat(messages, **parameters) if kind == "chat" else reference.stream(prompt, **parameters)
    pieces = list(stream)
    output = reference.chat(messages, **parameters) if kind == "chat" else reference.generate(prompt, **parameters)
    options = {"stream_options": {"include_usage": True}} if usage else {}
    answer = ask(server, CHAT if kind == "chat" else COMPLETIONS, {**given, **parameters, "stream": True, **options})
    assert answer.status == 200 and answer.whole
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8" and answer.headers["cache-control"] == "no-cache"
    expected = [line.replace("\u0085".encode(), b"\\u0085") for line in expected_stream(kind, output, pieces, usage)]
    assert [neutral(event) for event in answer.events] == expected


@pytest.mark.parametrize("kind", ["chat", "completion"])
def test_whole_answers_byte_for_byte(server, reference, kind):
    messages, prompt, parameters = [{"role": "user", "content": "whole"}], "whole prompt", {"max_tokens": 20, "temperature": 0, "seed": 1}
    output = reference.chat(messages, **parameters) if kind == "chat" else reference.generate(prompt, **parameters)
    given = {"messages": messages} if kind == "chat" else {"prompt": prompt}
    answer = ask(server, CHAT if kind == "chat" else COMPLETIONS, {**given, **parameters})
    body = {"message": {"role": "assistant", "content": output.text, "refusal": None}} if kind == "chat" else {"text": output.text}
    count, made = len(output.prompt_token_ids), len(output.token_ids)
    assert answer.status == 200 and answer.headers["content-type"] == "application/json"
    assert neutral(answer.body) == compact({
        "id": "ID", "object": "chat.completion" if kind == "chat" else "text_completion", "created": 1, "model": "sim",
        "choices": [{"index": 0, **body, "logprobs": None, "finish_reason": output.finish_reason}],
        "usage": {"prompt_tokens": count, "completion_tokens": made, "total_tokens": count + made, "prompt_tokens_details": {"cached_tokens": 0}},
    })  # fmt: skip


def test_choices_logprobs_and_echo(server):
    answer = ask(server, COMPLETIONS, {"prompt": ["one", "two"], "n": 2, "max_tokens": 3, "echo": True, "seed": 1})
    texts = [choice["text"] for choice in answer.json["choices"]]
    assert [c["index"] for c in answer.json["choices"]] == [0, 1, 2, 3]
    assert [text[:3] for text in texts] == ["one", "one", "two", "two"]
    assert answer.json["usage"]["prompt_tokens"] == 6 and answer.json["usage"]["completion_tokens"] == 12
    answer = ask(server, COMPLETIONS, {"prompt": "x", "max_tokens": 3, "logprobs": 2, "temperature": 0, "ignore_eos": True})
    lists = answer.json["choices"][0]["logprobs"]
    assert [len(lists[name]) for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset")] == [3, 3, 3, 3]
    assert lists["text_offset"][0] == 0 and all(number <= 0 for number in lists["token_logprobs"])
    answer = ask(server, CHAT, {"messages": [{"role": "user", "content": "x"}], "max_tokens": 3, "logprobs": True, "top_logprobs": 2,
                                "temperature": 0, "ignore_eos": True, "stream": True})  # fmt: skip
    entries = [e for event in answer.events[:-1] for e in (json.loads(event)["choices"][0]["logprobs"] or {"content": []})["content"]]
    assert len(entries) == 3 and all(len(e["top_logprobs"]) == 2 and len(e["bytes"]) == 1 and e["logprob"] <= 0 for e in entries)


def test_tokens_of_a_prompt_are_counted(server):
    assert ask(server, "/tokenize", {"prompt": "abc"}).json == {"count": 3, "tokens": [97, 98, 99], "max_model_len": 4096}


class Begins:
    """A tokenizer with a token that begins each text."""

    def encode(self, text, special=True):
        return ([1] if special else []) + list(text.encode())

    def special(self, text):
        return None


def test_special_tokens_are_added_as_the_request_says(monkeypatch):
    """`add_special_tokens` was taken and did nothing."""
    with served() as server:
        monkeypatch.setattr(server.server._text, "tokenizer", Begins())
        chat = {"messages": [{"role": "user", "content": "x"}]}
        for body, path, default in (({"prompt": "abc"}, COMPLETIONS, True), (chat, CHAT, False)):
            bare = len(ask(server, "/tokenize", {**body, "add_special_tokens": False}).json["tokens"])
            for value in (None, True, False):
                wanted = bare + int(default if value is None else value)
                given = {**body, "add_special_tokens": value}
                assert ask(server, "/tokenize", given).json["count"] == wanted
                assert ask(server, path, {**given, "max_tokens": 1}).json["usage"]["prompt_tokens"] == wanted
            answer = ask(server, path, {**body, "add_special_tokens": 1})
            assert answer.status == 400 and answer.error["param"] == "add_special_tokens"


@pytest.mark.parametrize("body,parameter,code", [
    ({"prompt": "x", "temperature": 1}, "temperature", "unknown_parameter"), ({}, "prompt", "missing_parameter"),
    ({"prompt": "x", "messages": [{"role": "user", "content": "x"}]}, "prompt", "invalid_value"), ({"messages": []}, "messages", "invalid_type"),
    ({"prompt": "x", "add_special_tokens": "no"}, "add_special_tokens", "invalid_type"), ({"prompt": ["x"]}, "prompt", "invalid_type"),
    ({"messages": [{"role": "user", "content": "x"}], "chat_template_kwargs": 1}, "chat_template_kwargs", "invalid_type"),
])  # fmt: skip
def test_what_cannot_be_counted_is_named(server, body, parameter, code):
    answer = ask(server, "/tokenize", body)
    assert answer.status == 400 and (answer.error["param"], answer.error["code"]) == (parameter, code), answer.body


def test_a_model_or_an_adapter_that_is_not_there_is_named(server):
    for path, body in ((COMPLETIONS, {"prompt": "x"}), (CHAT, {"messages": [{"role": "user", "content": "x"}]}), ("/v1/embeddings", {"input": "x"}), ("/tokenize", {"prompt": "x"})):
        for name in ("model", "adapter")[: 1 if path == "/tokenize" else 2]:
            answer = ask(server, path, {**body, name: "nobody"})
            assert answer.status == 404 and answer.error["param"] == name and "'nobody'" in answer.error["message"], answer.body


# ---- what is refused -----------------------------------------------------------------------------

REFUSED = [
    ({"prompt": "x", "temperature": "hot"}, "temperature", "temperature is 'hot', expected a number"),
    ({"prompt": "x", "temprature": 1}, "temprature", "did you mean temperature?"),
    ({"prompt": "x", "max_tokens": 0}, "max_tokens", "max_tokens is 0, expected a number at least 1"),
    ({"prompt": "x", "n": 1000}, "n", "n is 1000, expected a number from 1 to 128"),
    ({"prompt": "x", "top_p": 0}, "top_p", "top_p is 0, expected a number above 0"),
    ({"prompt": "x", "stop": [""]}, "stop", "none of them empty"),
    ({"prompt": "x", "logit_bias": {"a": 1}}, "logit_bias", "has the key 'a', expected a token id"),
    *(({"prompt": "x", "logit_bias": {key: 1}}, "logit_bias", f"has the key {key!r}, expected a token id") for key in ("01", "+1", " 1", "1_0", "\u0661", "1.0", "1e2", "-01", "-0", "1 ", "")),
    ({"prompt": "x", "stop": ["a", "b" * 4097]}, "stop", "stop[1] has 4097 bytes, expected at most 4096"),
    ({"prompt": "x", "k" * 1000: 1}, "k" * 77 + "...", "unknown parameter 'kkk"),
    ({"prompt": "x", "logit_bias": {"1": 101}}, "logit_bias[1]", "is 101, expected a number from -100 to 100"),
    ({"prompt": "x", "logprobs": 21}, "logprobs", "logprobs is 21"),
    ({"prompt": "x", "stream": 1}, "stream", "stream is 1, expected true or false"),
    ({"prompt": "x", "stream_options": {}}, "stream_options", "stream is not true"),
    ({"prompt": "x", "tools": [{}]}, "tools", "is for /v1/chat/completions"),
    ({"prompt": "x", "response_format": {"type": "xml"}}, "response_format.type", "expected text, json_object or json_schema"),
    ({"prompt": ""}, "prompt", "prompt has no tokens"),
    ({"prompt": {"a": 1}}, "prompt", "expected a string or a list of token ids"),
    ({}, "prompt", "prompt is missing"),
    ({"prompt": ["x", ""]}, "prompt[1]", "prompt[1] has no tokens"),
    ({"prompt": ["x", "\ud800"]}, "prompt[1]", "prompt[1] has half of a surrogate pair"),
    ({"prompt": ["x", [1.5]]}, "prompt[1]", "prompt[1] is [1.5]"),
    ({"prompt": ["x", "y" * 4096]}, "prompt[1]", "prompt[1] has 4096 tokens"),
    ({"prompt": [1, 256]}, "prompt", "prompt[1] is 256; the model's tokens are 0 to 255"),
    ({"prompt": ["x", [1, 1 << 40]]}, "prompt[1]", "prompt[1][1] is 1099511627776; the model's tokens are 0 to 255"),
    ({"prompt": "x" * 4096}, "prompt", "prompt has 4096 tokens, and with a new one at most 4096 fit"),
    ({"prompt": "xy", "max_tokens": 5000}, "max_tokens", "max_tokens is 5000: after a prompt of 2 tokens at most 4094 fit, as the model takes 4096"),
    ({"prompt": "x", "max_tokens": 1 << 40}, "max_tokens", "max_tokens is 1099511627776"),
    ({"prompt": "x", "min_tokens": 5, "max_tokens": 3}, "min_tokens", "min_tokens is 5, above max_tokens, which is 3"),
    ({"prompt": "x", "min_tokens": 1 << 40, "max_tokens": 3}, "min_tokens", "above max_tokens"),
    ({"prompt": "x", "stop_token_ids": [3, 300]}, "stop_token_ids", "stop_token_ids[1] is 300; the model's tokens are 0 to 255"),
    ({"prompt": "x", "logit_bias": {"1": 1, "300": 5}}, "logit_bias", "logit_bias has the token 300; the model's tokens are 0 to 255"),
    ({"prompt": "x", "temperature": 10**400}, "temperature", "expected a finite number"),
    ({"prompt": "x", "max_completion_tokens": 3}, "max_completion_tokens", "did you mean max_tokens?"),
    ({"prompt": "x", "maxTokens": 3}, "maxTokens", "did you mean max_tokens?"),
    ({"prompt": "x", "max_new_tokens": 3}, "max_new_tokens", "did you mean max_tokens?"),
    (b'{"prompt": "x", "temperature": ' + b"[" * 900 + b"]" * 900 + b"}", "temperature", "expected a number"),
    (b'{"prompt": "x", "seed": ' + b"7" * 5000 + b"}", None, "a number has too many digits"),
    ({"prompt": "\ud800"}, "prompt", "half of a surrogate pair"),
    (b"{", None, "the body is no JSON"),
    (b"[1]", None, "the body is no JSON object"),
    (b'{"prompt": "x", "temperature": NaN}', None, "NaN is no JSON"),
    (b"[" * 100000, None, "lists or objects are nested too deeply"),
]


@pytest.mark.parametrize("body,parameter,message", REFUSED)
def test_bad_parameters_are_named(server, body, parameter, message):
    answer = ask(server, COMPLETIONS, body)
    assert answer.status == 400, answer.body
    error = answer.error
    assert set(error) == {"message", "type", "param", "code"} and error["type"] == "invalid_request_error"
    assert error["param"] == parameter and message in error["message"]


@pytest.mark.parametrize("messages,parameter", [
    (None, "messages"), ([], "messages"), (["x"], "messages[0]"), ([{"role": "king", "content": "x"}], "messages[0].role"),
    ([{"role": "user"}], "messages[0].content"), ([{"role": "user", "content": [{"type": "image_url"}]}], "messages[0].content[0]"),
])  # fmt: skip
def test_bad_messages_are_named(server, messages, parameter):
    answer = ask(server, CHAT, {"messages": messages})
    assert answer.status == 400 and answer.error["param"] == parameter, answer.body


@pytest.mark.parametrize("parameters,parameter,message", [
    ({"max_completion_tokens": 5000}, "max_completion_tokens", "max_completion_tokens is 5000: after a prompt of "),
    ({"max_tokens": 5000}, "max_tokens", "max_tokens is 5000"), ({"max_completion_token": 5}, "max_completion_token", "did you mean max_completion_tokens?"),
    ({"maxCompletionTokens": 5}, "maxCompletionTokens", "did you mean max_completion_tokens?"),
    ({"messages": [{"role": "user", "content": "x" * 5000}]}, "messages", "messages has 5017 tokens, and with a new one at most 4096 fit"),
    ({"min_tokens": 9, "max_completion_tokens": 3}, "min_tokens", "above max_completion_tokens, which is 3"),
])  # fmt: skip
def test_bad_parameters_of_chats_are_named(server, parameters, parameter, message):
    answer = ask(server, CHAT, {"messages": [{"role": "user", "content": "x"}], **parameters})
    assert answer.status == 400 and answer.error["param"] == parameter and message in answer.error["message"], answer.body


def test_more_prompts_than_wait_are_refused_for_good():
    """429 would ask the client to try again, and the queue never takes them all at once."""
    with served(engine={"max_queued": 8}) as server:
        answer = ask(server, COMPLETIONS, {"prompt": ["x"] * 9, "max_tokens": 1})
        assert answer.status == 400 and answer.error["param"] == "prompt" and "9 prompts, and the queue takes 8" in answer.error["message"]
        assert len(ask(server, COMPLETIONS, {"prompt": ["x"] * 8, "max_tokens": 1}).json["choices"]) == 8


@pytest.mark.hostile
def test_a_bad_request_fails_alone(slow):
    """Streams beside it have the tokens that they have alone."""
    body = {"max_tokens": 80, "seed": 1, "ignore_eos": True, "stream": True}
    alone = [neutral(ask(slow, COMPLETIONS, {**body, "prompt": f"{i}"}).body) for i in range(4)]
    found = [b""] * 4

    def one(i):
        found[i] = neutral(ask(slow, COMPLETIONS, {**body, "prompt": f"{i}"}).body)

    submitted = slow.submitted()
    threads = [threading.Thread(target=one, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    assert until(lambda: slow.submitted() > submitted)
    failures = slow.engine.stats()["step_failures"]
    for bad in [body for body, _parameter, _message in REFUSED if isinstance(body, dict)]:
        assert ask(slow, COMPLETIONS, bad).status == 400
    for thread in threads:
        thread.join()
    assert found == alone and slow.engine.stats()["step_failures"] == failures


def test_another_model_is_not_found(server):
    answer = ask(server, COMPLETIONS, {"prompt": "x", "model": "gpt"})
    assert answer.status == 404 and answer.error["code"] == "model_not_found" and answer.error["param"] == "model"
    assert Answer(server.raw(get("/v1/models/sim"))).json["id"] == "sim"
    assert Answer(server.raw(get("/v1/models/other"))).status == 404


def test_a_template_is_in_a_sandbox(server):
    from accrt.serve import BadParameter, ChatTemplate

    hostile = ChatTemplate("{{ messages.__class__.__mro__ }}{{ ''.__class__.__mro__[1].__subclasses__() }}")
    with pytest.raises(BadParameter, match="chat template"):
        hostile.render([{"role": "user", "content": "x"}])
    with pytest.raises(BadParameter, match="only one"):
        ChatTemplate("{{ raise_exception('only one') }}").render([])


MALFORMED = [
    (b"nonsense\r\n\r\n", 400), (b"GET / HTTP/9.9\r\n\r\n", 400), (b"GET / HTTP/1.1\r\nHost: a\r\nno colon\r\n\r\n", 400),
    (b"GET / HTTP/1.1\r\nHost: a\r\nA: \x01\r\n\r\n", 400),
    (b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
    (b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
    (b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n", 400),
    (b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n", 400),
    (b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999999999999999\r\n\r\n", 400),
    (b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999\r\n\r\n", 413),
    (b"GET /" + b"a" * 70000 + b" HTTP/1.1\r\n\r\n", 431), (b"GET / HTTP/1.1\r\nA: " + b"b" * 70000 + b"\r\n\r\n", 431),
    (b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 20000 + b"\r\n", 431),
    (b"GET /health HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400), (get("/v1/models", "Authorization: Bearer a", "Authorization: Bearer b"), 400),
    (b"GET /health HTTP/1.1\r\nHost:\r\nhost: b\r\n\r\n", 400), (b"GET /health HTTP/1.1\r\nHost: b\r\nHOST:\r\n\r\n", 400),
    (get("/v1/models", "Authorization:", "Authorization: Bearer b"), 400),
    (get("/nothing"), 404), (get("/v1/completions"), 405), (get("/health", method="DELETE"), 405),
]  # fmt: skip


@pytest.mark.hostile
@pytest.mark.parametrize("data,status", MALFORMED)
def test_malformed_requests(server, data, status):
    answer = Answer(server.raw(data))
    assert answer.status == status and answer.error["message"], answer.body
    if status == 405:
        assert "OPTIONS" in answer.headers["allow"] and answer.error["message"].startswith(f"This path takes {answer.headers['allow'].partition(',')[0]},")


def test_many_requests_at_once_wait_for_their_turn(tmp_path):
    """Clients that send thousands of requests in one go get their answers in turns, so that another
    client waits for one of each, not for all."""
    clients, count = 4, 8000
    log = open(tmp_path / "log", "w+b")
    with log, served(log_fd=log.fileno(), check_descriptors=False) as server:
        sockets = [server.connect() for _ in range(clients)]
        ports = {str(one.getsockname()[1]).encode() for one in sockets}
        readers = [threading.Thread(target=read_all, args=(one,)) for one in sockets]
        for thread in readers:
            thread.start()
        senders = [threading.Thread(target=one.sendall, args=(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n" * (count - 1) + get("/health"),)) for one in sockets]
        for thread in senders:
            thread.start()
        for thread in senders + readers:
            thread.join()
        for one in sockets:
            one.close()
        lines = [found[1] for found in re.finditer(rb':(\d+) "GET /health" 200', (tmp_path / "log").read_bytes())]
    assert collections.Counter(lines) == {port: count for port in ports}
    changes = sum(one != other for one, other in zip(lines, lines[1:]))
    assert changes > clients * count / 20, changes  # 60 KiB of one client in a go: some 80


@pytest.mark.hostile
def test_any_cut_and_any_flipped_byte_is_answered_or_closed(server):
    whole = post(COMPLETIONS, {"prompt": "x", "max_tokens": 1})
    generator = random.Random(7)
    for _ in range(150):
        data = bytearray(whole)
        for _ in range(generator.randrange(1, 4)):
            data[generator.randrange(len(data))] = generator.randrange(256)
        with server.connect() as client:
            client.sendall(bytes(data))
            client.shutdown(socket.SHUT_WR)
            read_all(client)
    assert Answer(server.raw(whole)).status == 200


# ---- connections ---------------------------------------------------------------------------------


def test_a_connection_serves_one_request_after_the_other(server):
    with server.connect() as client:
        for i in range(3):
            client.sendall(post(COMPLETIONS, {"prompt": f"{i}", "max_tokens": 2}, close=False))
            data = b""
            while b"total_tokens" not in data:
                data += client.recv(1 << 16)
            assert Answer(data).status == 200 and "connection" not in Answer(data).headers
    piped = post(COMPLETIONS, {"prompt": "a", "max_tokens": 1}, close=False) * 3 + get("/health")
    answers, rest = [], server.raw(piped)
    while rest:
        answers.append(Answer(rest))
        rest = answers[-1].rest
    assert [a.status for a in answers] == [200] * 4 and answers[-1].json == {"status": "ok"}


@pytest.mark.hostile
def test_bodies_in_pieces_and_in_chunks(server):
    body = json.dumps({"prompt": "x", "max_tokens": 1}).encode()
    with server.connect() as client:
        for byte in post(COMPLETIONS, body):
            client.sendall(bytes([byte]))
        assert Answer(read_all(client)).status == 200
    pieces = b"".join(b"%x\r\n%s\r\n" % (len(body[i : i + 5]), body[i : i + 5]) for i in range(0, len(body), 5))
    head = b"POST /v1/completions HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
    assert Answer(server.raw(head + pieces + b"0\r\n\r\n")).status == 200
    with server.connect() as client:
        client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: test\r\nExpect: 100-continue\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body))
        assert client.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.sendall(body)
        assert Answer(read_all(client)).status == 200


def test_old_clients(server):
    body = json.dumps({"prompt": "x", "max_tokens": 2, "stream": True}).encode()
    data = server.raw(b"POST /v1/completions HTTP/1.0\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    answer = Answer(data)
    assert answer.headers["connection"] == "close" and "transfer-encoding" not in answer.headers
    assert answer.events[-1] == b"[DONE]"


def test_plain_paths(server):
    assert Answer(server.raw(get("/health"))).json == {"status": "ok"}
    models = Answer(server.raw(get("/v1/models"))).json
    assert [(m["id"], m["object"], m["max_model_len"]) for m in models["data"]] == [("sim", "model", 4096)]
    page = Answer(server.raw(get("/")))
    assert page.headers["content-type"].startswith("text/html") and b"<script>" in page.body
    assert not re.search(rb"(src|href)=|https?://", page.body) and "default-src 'none'" in page.headers["content-security-policy"]
    head = Answer(server.raw(get("/v1/models", method="HEAD")))
    assert head.status == 200 and head.body == b"" and int(head.headers["content-length"]) > 0
    assert Answer(server.raw(get("http://test/health?x=1"))).status == 200


def test_a_predicted_text_changes_nothing(server):
    """It would only make OpenAI's answers faster."""
    body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 9, "seed": 3}
    plain, predicted = [Answer(server.raw(post(CHAT, {**body, **more}))).json for more in ({}, {"prediction": {"type": "content", "content": "y"}})]
    assert predicted["choices"] == plain["choices"]


def test_a_base_url_without_v1_is_said(server):
    answer = Answer(server.raw(post("/chat/completions", {"messages": []})))
    assert answer.status == 404 and answer.error["code"] == "unknown_path" and "a client's base_url ends with /v1" in answer.error["message"]


def test_what_needs_stored_responses_is_not_here(server):
    for path in ("/v1/responses/resp_1", "/v1/responses/resp_1/cancel", "/v1/conversations"):
        answer = Answer(server.raw(post(path, {"model": "sim", "input": "hello"})))
        assert answer.status == 404 and answer.error["type"] == "invalid_request_error" and answer.error["code"] == "unknown_path"
        assert "/v1/responses (whose answers are not stored)" in answer.error["message"] and "/v1/chat/completions" in answer.error["message"]
    assert Answer(server.raw(get("/v1/responses"))).status == 405


def test_keys_and_other_origins():
    with served(api_key="secret", cors_origin="https://here.example") as server:
        for headers, status in [((), 401), (("Authorization: Bearer wrong",), 401), (("Authorization: Bearer secre",), 401),
                                (("Authorization: Bearer secrett",), 401), (("authorization: bearer secret",), 200)]:  # fmt: skip
            answer = ask(server, COMPLETIONS, {"prompt": "x", "max_tokens": 1}, *headers)
            assert answer.status == status and answer.headers["access-control-allow-origin"] == "https://here.example"
        answer = ask(server, COMPLETIONS, {"prompt": "x"})
        assert answer.error["code"] == "invalid_api_key" and answer.headers["www-authenticate"] == "Bearer"
        assert Answer(server.raw(get("/health"))).status == 200
        asked = Answer(server.raw(get(CHAT, "Origin: https://here.example", "Access-Control-Request-Headers: x-mine", method="OPTIONS")))
        assert asked.status == 204 and asked.headers["access-control-allow-headers"] == "x-mine" and "POST" in asked.headers["access-control-allow-methods"]


# ---- metrics and health --------------------------------------------------------------------------


def samples(text):
    return {m[1]: float(m[2]) for m in re.finditer(r'^([a-zA-Z0-9_:]+\{[^}]*\}) (\S+)$', text, re.M)}


def test_the_document_has_all_metrics(server):
    text = (pathlib.Path(__file__).resolve().parents[2] / "docs/server.md").read_text().partition("\n## Metrics\n")[2].partition("\n## ")[0]
    named = set(re.findall(r"`vllm:(\w+)`", text)) | {name for row in re.findall(r"^\| (`[^|]*) \|", text, re.M) for name in re.findall(r"`(\w+)`", row)}
    found = {m[1] for m in re.finditer(r"^# TYPE (?:vllm|accrt):(\w+) ", Answer(server.raw(get("/metrics"))).body.decode(), re.M)}
    assert found == named - {"reason", "status", "memory", "host", "device"}


def test_metrics(server):
    ask(server, COMPLETIONS, {"prompt": "counted", "max_tokens": 3, "ignore_eos": True})
    answer = Answer(server.raw(get("/metrics")))
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    found = samples(answer.body.decode())
    label = '{model_name="sim"}'
    assert found[f"vllm:num_requests_running{label}"] == 0 and found[f"vllm:kv_cache_usage_perc{label}"] == 0
    assert found[f"vllm:generation_tokens_total{label}"] >= 3 and found[f"vllm:prompt_tokens_total{label}"] >= 7
    assert found['vllm:request_success_total{model_name="sim",finished_reason="length"}'] >= 1
    for name in ("time_to_first_token_seconds", "inter_token_latency_seconds", "e2e_request_latency_seconds", "request_queue_time_seconds"):
        buckets = [v for k, v in found.items() if k.startswith(f"vllm:{name}_bucket")]
        assert buckets == sorted(buckets) and buckets[-1] == found[f"vllm:{name}_count{label}"] > 0
    parser = pytest.importorskip("prometheus_client.parser", reason="prometheus_client is not here")
    families = list(parser.text_string_to_metric_families(answer.body.decode()))
    assert len(families) > 15 and all(f.documentation and f.type in ("gauge", "counter", "histogram") for f in families)


def test_health_fails_when_work_waits_and_no_step_is_made():
    with served(model={"step_ns": 2_000_000_000}, health_timeout=0.2) as server:
        with server.connect() as client:
            client.sendall(post(COMPLETIONS, {"prompt": "x", "max_tokens": 2}))
            assert until(lambda: Answer(server.raw(get("/health"))).status == 503)
        assert until(server.at_rest)
        assert Answer(server.raw(get("/health"))).status == 200


class Panic(BaseException):
    """As pyo3 has it, with which tokenizers is made: no Exception."""


@pytest.mark.hostile
def test_a_panic_of_a_tokenizer_ends_its_request_alone(monkeypatch, capsys):
    """The thread died with it, its client waited for ever, and after a few of them nobody was
    answered."""
    with served(workers=1, health_timeout=0.2) as server:
        real = server.server._text.prompt

        def prompt(given, *more):
            if given == "panic":
                raise Panic("index out of bounds")
            return real(given, *more)

        monkeypatch.setattr(server.server._text, "prompt", prompt)
        for _ in range(2):
            answer = Answer(server.raw(post(COMPLETIONS, {"prompt": "panic", "max_tokens": 2})))
            assert answer.status == 500 and answer.error["code"] == "internal"
        assert Answer(server.raw(post(COMPLETIONS, {"prompt": "x", "max_tokens": 2}))).status == 200
        assert until(lambda: Answer(server.raw(get("/health"))).status == 200)
    assert "index out of bounds" in capsys.readouterr().err


def test_health_fails_when_nobody_takes_requests(monkeypatch):
    """A tokenizer that does not come back."""
    free = threading.Event()
    with served(workers=1, health_timeout=0.2) as server:
        real = server.server._text.prompt
        monkeypatch.setattr(server.server._text, "prompt", lambda *given: free.wait(60) and real(*given))
        with server.connect() as first, server.connect() as second:
            for client in (first, second):
                client.sendall(post(COMPLETIONS, {"prompt": "x", "max_tokens": 2}))
            assert until(lambda: Answer(server.raw(get("/health"))).status == 503)
            assert Answer(server.raw(get("/health"))).error["code"] == "workers_stuck"
            free.set()
            assert Answer(read_all(second)).status == 200
        assert until(lambda: Answer(server.raw(get("/health"))).status == 200)


# ---- clients that leave, stall, dawdle -----------------------------------------------------------

LONG = {"prompt": "x", "max_tokens": 4000, "ignore_eos": True}


@pytest.fixture(scope="module")
def slow():
    """A step takes 2 ms."""
    with served(model={"step_ns": 2_000_000}, check_descriptors=False) as one:
        yield one


def leave_close(client):
    client.close()


def leave_reset(client):
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


def leave_half(client):
    client.shutdown(socket.SHUT_WR)
    read_all(client)
    client.close()


@pytest.mark.hostile
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("leave", [leave_close, leave_reset, leave_half])
def test_a_client_that_leaves_ends_its_request(slow, leave, stream):
    client, submitted = slow.connect(), slow.submitted()
    client.sendall(post(COMPLETIONS, {**LONG, "stream": stream, "n": 3}))
    assert until(lambda: slow.submitted() > submitted)
    if stream:
        assert client.recv(100)
    cancelled = slow.engine.stats()["finished_cancelled"]
    leave(client)
    assert until(slow.at_rest)
    assert slow.engine.stats()["finished_cancelled"] > cancelled


@pytest.mark.hostile
@pytest.mark.parametrize("leave", [leave_close, leave_reset, leave_half, None], ids=["close", "reset", "half", "stalled"])
def test_survivors_are_not_disturbed(leave):
    """They have the tokens that they have alone, whatever others do; stalled ones read nothing
    until the server has ended their requests."""
    body = {"prompt": "survivor", "max_tokens": 60, "seed": 1, "ignore_eos": True}
    with served(model={"step_ns": 2_000_000}, stall_timeout=0.3) as server:
        alone = ask(server, COMPLETIONS, body).json["choices"]
        found, stalled = [], []
        thread = threading.Thread(target=lambda: found.extend(ask(server, COMPLETIONS, body).json["choices"] for _ in range(5)))
        thread.start()
        for _ in range(15 if leave else 3):
            client = server.connect(receive_bytes=None if leave else 4096)
            client.sendall(post(COMPLETIONS, {**LONG, "stream": True, "n": 1 if leave else 60}))
            client.recv(100)
            leave(client) if leave else stalled.append(client)
        thread.join()
        assert found == [alone] * 5
        assert until(lambda: not server.busy(), 60) and server.engine.stats()["finished_cancelled"] > 0
        for client in stalled:
            client.close()


@pytest.mark.hostile
def test_a_client_that_reads_nothing_is_cut_off():
    with served(max_output_bytes=65536, stall_timeout=60) as server:
        with server.connect(receive_bytes=4096) as client:
            client.sendall(post(COMPLETIONS, {**LONG, "stream": True, "n": 128, "max_tokens": 4000}))
            assert until(server.submitted)
            assert until(lambda: not server.busy(), 60)
        assert samples(Answer(server.raw(get("/metrics"))).body.decode())['accrt:http_clients_stalled_total{model_name="sim"}'] == 1
    with served(stall_timeout=0.3, model={"step_ns": 1_000_000}) as server:
        with server.connect(receive_bytes=4096) as client:
            client.sendall(post(COMPLETIONS, {**LONG, "stream": True, "n": 100}))
            assert until(server.submitted)
            assert until(lambda: not server.busy(), 60)


def test_a_slow_reader_gets_everything_in_fewer_chunks():
    with served() as server:
        with server.connect(receive_bytes=4096) as client:
            client.sendall(post(COMPLETIONS, {**LONG, "n": 8, "stream": True, "seed": 1}))
            assert until(server.submitted)
            assert until(lambda: not server.busy(), 60)
            answer = Answer(read_all(client))
        assert answer.whole and answer.events[-1] == b"[DONE]"
        texts = collections.defaultdict(str)
        for event in answer.events[:-1]:
            choice = json.loads(event)["choices"][0]
            texts[choice["index"]] += choice["text"]
        whole = ask(server, COMPLETIONS, {**LONG, "n": 8, "seed": 1}).json["choices"]
        assert [texts[i] for i in range(8)] == [choice["text"] for choice in whole]


def lists_of(choices):
    """Text and lists of log probabilities of a stream's choices, put together."""
    out = {}
    for choice in choices:
        text, entries = out.setdefault(choice["index"], ["", collections.defaultdict(list)])
        out[choice["index"]][0] = text + choice["text"]
        for name, values in (choice["logprobs"] or {}).items():
            entries[name] += values
    return {index: (text, dict(entries)) for index, (text, entries) in out.items()}


@pytest.mark.hostile
def test_many_log_probabilities_reach_a_slow_reader():
    """They wait as numbers, and are written as JSON when the client takes them."""
    body = {**LONG, "max_tokens": 300, "n": 8, "logprobs": 20, "seed": 1}
    with served() as server:
        with server.connect(receive_bytes=4096) as client:
            client.sendall(post(COMPLETIONS, {**body, "stream": True}))
            assert until(lambda: server.engine.stats()["output_tokens"] >= 8 * 300 and not server.busy(), 60)
            answer = Answer(read_all(client))
        assert answer.whole and answer.events[-1] == b"[DONE]"
        assert max(map(len, answer.events)) < 100_000
        whole = ask(server, COMPLETIONS, body).json["choices"]
        assert lists_of(json.loads(event)["choices"][0] for event in answer.events[:-1]) == lists_of(whole)


def test_a_client_that_left_is_in_the_log_with_what_was_made(tmp_path):
    with open(tmp_path / "log", "w+") as log, served(model={"step_ns": 1_000_000}, log_fd=log.fileno()) as server:
        client = server.connect()
        client.sendall(post(COMPLETIONS, {**LONG, "stream": True}))
        assert client.recv(4000)
        assert until(lambda: server.engine.stats()["output_tokens"] > 5)
        leave_reset(client)
        assert until(server.at_rest)
        log.seek(0)
        found = re.search(r'"POST /v1/completions" (\d+) \S+ prompt=(\d+) cached=0 output=(\d+) ', log.read())
    assert found and found[1] == "499" and found[2] == "1" and int(found[3]) > 0


def pairs_only_once(pairs):
    assert len({key for key, _ in pairs}) == len(pairs), pairs
    return dict(pairs)


def test_alternatives_have_each_text_once_and_the_chosen_token(server):
    """As OpenAI: a map cannot have a text twice, and the token that was drawn is in it, however
    improbable."""
    body = {"prompt": "x", "max_tokens": 40, "logprobs": 5, "temperature": 2, "seed": 3, "ignore_eos": True}
    answer = Answer(server.raw(post(COMPLETIONS, body)))
    lists = json.loads(answer.body, object_pairs_hook=pairs_only_once)["choices"][0]["logprobs"]
    assert len(lists["tokens"]) == 40 and any(token.startswith("bytes:\\x") for token in lists["tokens"])
    for token, logprob, top in zip(lists["tokens"], lists["token_logprobs"], lists["top_logprobs"]):
        assert top[token] == logprob and 5 <= len(top) <= 6
        values = list(top.values())
        assert values == sorted(values, reverse=True)


@pytest.mark.hostile
def test_requests_that_do_not_arrive_in_time():
    with served(idle_timeout=0.2) as server, server.connect() as client:
        assert read_all(client) == b""
    with served(request_timeout=0.2) as server:  # what is sent late is no idle connection's
        for part in (b"GET / HT", b"POST /v1/completions HTTP/1.1\r\nHost: test\r\nContent-Length: 10\r\n\r\n{"):
            with server.connect() as client:
                client.sendall(part)
                answer = Answer(read_all(client))
            assert answer.status == 408 and answer.headers["connection"] == "close"


def test_too_many_connections():
    with served(max_connections=3) as server:
        clients = [server.connect() for _ in range(3)]
        for client in clients:
            client.sendall(get("/health").replace(b"Connection: close\r\n", b""))
            assert b"200 OK" in client.recv(1000)
        assert server.raw(b"").startswith(b"HTTP/1.1 503 ")
        for client in clients:
            client.close()
        assert until(lambda: server.server.counts()["connections"] == 0)
        assert Answer(server.raw(get("/health"))).status == 200


@pytest.mark.hostile
def test_bodies_are_bounded_together():
    with served(max_body_bytes=1000, max_held_bytes=1500) as server:
        assert Answer(server.raw(post(COMPLETIONS, b"x" * 1001))).status == 413
        with server.connect() as first, server.connect() as second:
            first.sendall(post(COMPLETIONS, b"x" * 1000)[:-100])
            assert until(lambda: server.server.counts()["held_bytes"] == 900)
            second.sendall(post(COMPLETIONS, b"x" * 1000)[:-100])
            answer = Answer(read_all(second))
            assert answer.status == 503 and answer.headers["retry-after"] == "1"
            assert server.server.counts()["held_bytes"] == 900


@pytest.mark.hostile
def test_ten_times_too_much():
    """Who is served gets all, who is not is told when to come back. Four of them take a quarter of
    a second: on a busy machine, too, all come before the first ones are done."""
    with served(model={"step_ns": 30_000_000}, engine={"max_running": 4, "max_queued": 4}, max_jobs=8) as server:
        found = []

        def one(i):
            body = {"prompt": f"{i}", "max_tokens": 8, "ignore_eos": True, "temperature": 0}
            found.append((body, ask(server, COMPLETIONS, body)))

        threads = [threading.Thread(target=one, args=(i,)) for i in range(80)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        counts = collections.Counter(answer.status for _body, answer in found)
        # The queue takes four. More are served if the engine takes some out before others come.
        assert set(counts) == {200, 429} and counts[200] >= 4, counts
        for body, answer in found:
            if answer.status == 200:
                assert answer.json["usage"]["completion_tokens"] == 8
                assert answer.json["choices"] == ask(server, COMPLETIONS, body).json["choices"]
            else:
                assert int(answer.headers["retry-after"]) >= 1 and answer.error["code"] == "overloaded"


def test_retry_after_tells_of_the_queue():
    """Eight requests of 0.4 s wait: who comes then is told to come back when they have begun, not
    after a second."""
    with served(model={"step_ns": 100_000_000}, engine={"max_running": 1, "max_queued": 8}) as server:
        body = {"prompt": "a", "max_tokens": 4, "ignore_eos": True}
        ended = threading.Event()

        def ask_again():
            """The queue stays full for as long as these go on."""
            while not ended.is_set():
                if ask(server, COMPLETIONS, body).status == 429:
                    ended.wait(0.02)

        threads = [threading.Thread(target=ask_again) for _ in range(12)]
        for thread in threads:
            thread.start()
        try:
            assert until(lambda: server.engine.stats()["queue_ns"] > 2.5e9)
            answers = (ask(server, COMPLETIONS, body) for _ in range(100))
            answer = next(a for a in answers if a.status == 429)
            assert 2 <= int(answer.headers["retry-after"]) <= 600
            found = samples(Answer(server.raw(get("/metrics"))).body.decode())
            assert found['accrt:queue_seconds{model_name="sim"}'] > 1 and found['accrt:requests_never_begun_total{model_name="sim"}'] == 0
        finally:
            ended.set()
            for thread in threads:
                thread.join()


@pytest.mark.hostile
def test_chaos():
    """Many clients that do anything, from a seed, and one that has the same tokens all the time;
    `served` sees to it that nothing is left."""
    with served(model={"step_ns": 200_000}) as server:
        honest = {"prompt": "survivor", "max_tokens": 40, "temperature": 0, "ignore_eos": True}
        alone = ask(server, COMPLETIONS, honest).json["choices"]

        def one(seed):
            generator = random.Random(seed)
            for _ in range(25):
                body = {"prompt": "c" * generator.randrange(1, 50), "max_tokens": generator.randrange(1, 80), "n": generator.randrange(1, 4),
                        "stream": generator.random() < 0.7}  # fmt: skip
                data = post(COMPLETIONS, body)
                client = server.connect()
                try:
                    cut = generator.random() < 0.2
                    client.sendall(data[: generator.randrange(1, len(data))] if cut else data)
                    for _ in range(0 if cut else generator.randrange(0, 12)):
                        if generator.random() < 0.3 or not client.recv(400):
                            break
                except OSError:
                    pass
                (leave_reset if generator.random() < 0.3 else leave_close)(client)

        threads = [threading.Thread(target=one, args=(seed,)) for seed in range(8)]
        for thread in threads:
            thread.start()
        beside = [ask(server, COMPLETIONS, honest).json["choices"] for _ in range(20)]
        for thread in threads:
            thread.join()
        assert beside == [alone] * 20


# ---- the end -------------------------------------------------------------------------------------


@pytest.mark.hostile
def test_a_drain_lets_answers_end():
    with served(model={"step_ns": 3_000_000}) as server:
        body = {"prompt": "x", "max_tokens": 60, "ignore_eos": True, "temperature": 0}
        alone = ask(server, COMPLETIONS, body).json["choices"][0]["text"]
        idle, under_way = server.connect(), server.connect()
        submitted = server.submitted()
        under_way.sendall(post(COMPLETIONS, {**body, "stream": True}, close=False))
        assert until(lambda: server.submitted() > submitted)
        assert server.server.drain(20)
        assert read_all(idle) == b""
        answer = Answer(read_all(under_way))
        assert answer.whole and answer.events[-1] == b"[DONE]"
        assert "".join(json.loads(event)["choices"][0]["text"] for event in answer.events[:-1]) == alone
        with pytest.raises(OSError):
            server.connect()
        idle.close()
        under_way.close()


@pytest.mark.hostile
def test_a_drain_ends_at_its_limit():
    with served(model={"step_ns": 3_000_000}) as server:
        with server.connect() as client:
            client.sendall(post(COMPLETIONS, {**LONG, "stream": True}))
            assert until(server.submitted)
            assert not server.server.drain(0.1)
            assert not Answer(read_all(client)).whole
        assert until(lambda: not server.busy())


@pytest.mark.hostile
def test_servers_come_and_go():
    before = descriptors()
    for _ in range(5):
        with served() as server:
            assert Answer(server.raw(get("/health"))).status == 200
    assert until(lambda: descriptors() <= before)  # fewer, where what other tests made has gone
    with served() as server, pytest.raises(OSError, match="cannot listen"):
        serve.Server(server.engine, serve.simulated().text, name="x", port=server.port)


# ---- values of any type --------------------------------------------------------------------------

VALUES = [None, True, False, 0, 1, -1, 1.5, 1e308, 10**400, 2**31, 2**63, 2**64, "", "x", "1", "\ud800", "\0", [], [1], [None], [[]], [["x"]], ["x", 1], {}, {"a": 1},
          {"type": 5}, {"type": "json_schema"}, {"include_usage": 1}, [{}], [{"role": "user"}], [{"role": "user", "content": 5}], [{"role": ["user"], "content": "x"}],
          [{"role": "user", "content": [{"type": "text", "text": None}]}], [{"role": "tool", "content": "x", "tool_call_id": 5}],
          [{"role": "assistant", "content": None, "tool_calls": {"a": 1}}], [{"type": "function", "function": {"name": "f", "parameters": {"type": 5}}}],
          {"type": "function", "function": {"name": 5}}]  # fmt: skip
BASES = {COMPLETIONS: {"prompt": "x", "max_tokens": 2}, CHAT: {"messages": [{"role": "user", "content": "x"}], "max_tokens": 2}, "/v1/embeddings": {"input": "x"},
         "/v1/responses": {"input": "x", "max_output_tokens": 2}, "/tokenize": {"prompt": "x"}, "/v1/load_lora_adapter": {"lora_name": "a", "lora_path": "/nowhere"}, "/v1/unload_lora_adapter": {"lora_name": "a"}}  # fmt: skip


def test_values_of_any_type_are_taken_or_refused_in_a_line():
    """Never a failure of the server's own."""
    from accrt.serve import embedding, parameters, requests, responses

    chance = random.Random(rotation.seed())
    names = sorted({*parameters.PARAMETERS, *requests._SHARED, *requests._CHAT, *requests._COMPLETION, *requests._IGNORED, *requests._MISSING, *responses._OWN, *responses._MISSING, *embedding.OWN,
                    "input", "encoding_format", "lora_name", "lora_path", "unknown"})  # fmt: skip
    with served(check_descriptors=False, model={"tool_parser": "hermes"}, adapter_loading=True) as server:
        for _ in range(1500):
            path = chance.choice(list(BASES))
            body = {**BASES[path], **{chance.choice(names): chance.choice(VALUES) for _ in range(chance.choice((1, 1, 2)))}}
            answer = Answer(server.raw(post(path, body)))
            assert answer.status in (200, 400, 404, 409), (path, body, answer.body)
            if answer.status != 200:
                message = answer.error["message"]
                assert message and "\n" not in message and answer.error["type"] and answer.error["code"], (path, body, answer.body)
        assert Answer(server.raw(post(COMPLETIONS, b" "))).error["message"] == "the body is empty, expected a JSON object"
