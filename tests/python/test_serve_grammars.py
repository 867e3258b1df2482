"""Structured output: what a request says that the text must be, it is, whatever the model would
say. Grammars are llguidance's.

Set ACCRT_TEST_SEED to repeat a run with the schemas and seeds that it prints.
"""

from __future__ import annotations

import json
import os
import queue
import random
import re
import signal
import sys
import threading
import time

import pytest
import rotation
import serve_http
from limited_processes import Watched
from serve_http import Answer, post, read_all, served, until

serve_http.need_server()

import accrt  # noqa: E402
from accrt import _limited, serve  # noqa: E402
from accrt.serve import grammar, parameters, turns  # noqa: E402
from accrt.serve.text import ChatTemplate  # noqa: E402

SEED = rotation.SEED
WHOLE = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 9}, "age": {"type": "integer"}}, "required": ["name", "age"],
         "additionalProperties": False}  # fmt: skip


@pytest.fixture(scope="module")
def llm():
    pytest.importorskip("llguidance")
    with accrt.LLM(serve.simulated(chat_template=serve_http.TEMPLATE), max_running=16) as one:
        yield one


# ---- what is asked -------------------------------------------------------------------------------


@pytest.mark.parametrize("expression,python", [
    (r"\d{6}", "[0-9]{6}"), (r"[\d]{6}", "[0-9]{6}"), (r"[\d.x-]{6}", "[0-9.x-]{6}"), (r"[^\D]{6}", "[0-9]{6}"), (r"[^\d]{3}", "[^0-9]{3}"), (r"\D{3}", "[^0-9]{3}"),
    (r"[a-c\D]{3}", "[^0-9]{3}"), (r"\\d{3}", r"\\d{3}"), (r"(\d|[ab]){4}-\d", "([0-9]|[ab]){4}-[0-9]"), (r"[\w--\d]{2}", r"[^\W0-9]{2}"),
])  # fmt: skip
def test_digits_are_ascii(llm, expression, python):
    """As in a schema's patterns."""
    pytest.importorskip("llguidance", reason="the package llguidance is not here")
    for seed in range(12):
        text = llm.generate("x", guided_regex=expression, max_tokens=80, seed=seed, temperature=2.0).text
        assert re.fullmatch(python, text, re.DOTALL) or "\ufffd" in text, (seed, text)


def test_all_names_for_the_same():
    def grammar_of(**given):
        return parameters.grammar_of(parameters.checked(given))

    assert grammar_of() is None and grammar_of(response_format={"type": "text"}) is None
    schema = grammar_of(guided_json=WHOLE)
    assert schema.kind == "json" and json.loads(schema.text)["required"] == ["name", "age"]
    others = [grammar_of(guided_json=json.dumps(WHOLE)), grammar_of(structured_outputs={"json": WHOLE}),
              grammar_of(response_format={"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": WHOLE}})]  # fmt: skip
    assert {one.text for one in others} == {schema.text}
    assert grammar_of(response_format={"type": "json_object"}).text == grammar_of(structured_outputs={"json_object": True}).text
    assert grammar_of(guided_choice=["a", 'b"\n']) == grammar_of(guided_choice=("a", 'b"\n')) == ("guided_choice", "lark", 'start: "a" | "b\\"\\n"')
    assert grammar_of(guided_regex="a+") == ("guided_regex", "regex", "a+")
    assert "x-guidance" in json.loads(schema.text) and json.loads(grammar_of(guided_json={"x-guidance": {}}).text) == {"x-guidance": {}}


@pytest.mark.parametrize("given,parameter", [
    ({"response_format": "json"}, "response_format"), ({"response_format": {"type": "xml"}}, "response_format.type"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"), ({"guided_json": 3}, "guided_json"), ({"guided_json": "{"}, "guided_json"),
    ({"guided_choice": []}, "guided_choice"), ({"guided_choice": "ab"}, "guided_choice"), ({"guided_regex": 1}, "guided_regex"),
    ({"structured_outputs": {}}, "structured_outputs"), ({"structured_outputs": {"json": {}, "regex": "a"}}, "structured_outputs"),
    ({"guided_json": {}, "guided_regex": "a"}, "guided_regex"), ({"response_format": {"type": "json_schema", "json_schema": {"schema": 3}}}, "response_format.json_schema.schema"),
])  # fmt: skip
def test_what_is_no_grammar_is_refused(given, parameter):
    with pytest.raises(serve.BadParameter) as caught:
        parameters.checked(given)
    assert caught.value.parameter == parameter


@pytest.mark.parametrize("name, given, most", [
    ("guided_regex", "a?" * (8 << 10) + "b", 16 << 10), ("guided_grammar", 'start: "a"' + " " * (64 << 10), 64 << 10),
    ("guided_choice", ["x" * 99] * 700, 64 << 10), ("guided_json", {"description": "x" * (256 << 10)}, 256 << 10),
    ("guided_json", {"items": [{"pattern": "a?" * (5 << 10)}, {"properties": {"x": {"pattern": "a?" * (5 << 10)}}}]}, 16 << 10),
    ("guided_json", {"patternProperties": {"a?" * (9 << 10): {}}}, 16 << 10),
    ("guided_json", {"x-guidance": {"whitespace_pattern": "a?" * (9 << 10)}}, 16 << 10),
])  # fmt: skip
def test_what_takes_too_long_to_compile_is_refused(name, given, most):
    with pytest.raises(serve.BadParameter, match=f"{name} .* expected at most {most}") as caught:
        parameters.checked({name: given})
    assert caught.value.parameter == name and len(str(caught.value)) < 200


def test_grammars_that_are_kept_have_a_size(llm):
    compiler = llm.engine.constraint
    for at in range(40):
        compiler(parameters.grammar_of(parameters.checked({"guided_regex": "a" * (15 << 10) + str(at)})))
    kept = llm.engine._compiler._grammars._constraints
    assert 1 <= len(kept) <= 17 and sum(len(text) for _, text in kept) <= 256 << 10


ENDLESS = {
    "conjunctions": {"guided_grammar": "start: T\nT: " + " & ".join("/x|.*a.{%d}b.*/" % i for i in range(20, 60))},
    "patterns": {"guided_json": {"allOf": [{"type": "string", "pattern": "a.{%d}b" % i} for i in range(20, 60)]}},
    "properties": {"guided_json": {"type": "object", "properties": {f"{i:x}": {} for i in range(20000)}}},
}


@pytest.mark.parametrize("name", ENDLESS)
def test_a_small_grammar_that_never_compiles_holds_no_worker(llm, name, capfd, monkeypatch):
    """The first two took gigabytes in this process, without an end: it does not compile them
    now."""
    watched, made, text = Watched(monkeypatch), [], parameters.grammar_of(parameters.checked(ENDLESS[name])).text.encode()
    created = grammar.created
    monkeypatch.setattr(grammar, "created", lambda function, *given: made.extend(given) or created(function, *given))
    wanted = pytest.raises(serve.BadParameter, match="(takes longer than 4 seconds|takes more than 512 MiB of memory) to compile")
    with monkeypatch.context() as patch, wanted as caught:
        patch.setattr(grammar, "TRIAL_SECONDS", 4.0)
        llm.generate("x", **ENDLESS[name], max_tokens=3)
    assert caught.value.code == "grammar_too_complex" and capfd.readouterr().err == ""
    assert watched.fit(grammar._STACK_BYTES + grammar.TRIAL_BYTES, 4 * grammar.MOST_WORDS) and text not in made
    count = 4 + list(ENDLESS).index(name)  # which no other case has compiled
    assert llm.generate("x", guided_regex=f"a{{{count}}}", max_tokens=9).text == count * "a" and f"a{{{count}}}".encode() in made


def test_a_grammar_that_was_too_complex_is_not_tried_again_at_once(monkeypatch):
    tried = []

    class Late:
        def __init__(self, model):
            pass

        def constraint(self, kind, text, helper, turn):
            tried.append(text)
            raise _limited.Overdue("no answer")

    monkeypatch.setattr(grammar, "Grammars", Late)
    compiler = grammar.Compiler(None)
    for text in "aaba":
        with pytest.raises(serve.BadParameter, match="guided_regex takes longer than 10 seconds to compile") as caught:
            compiler(parameters.Grammar("guided_regex", "regex", text))
        assert caught.value.code == "grammar_too_complex"
    assert tried == ["a", "b"]
    monkeypatch.setattr(grammar, "monotonic", lambda: time.monotonic() + 61)
    with pytest.raises(serve.BadParameter, match="takes longer"):
        compiler(parameters.Grammar("guided_regex", "regex", "a"))
    assert tried == ["a", "b", "a"]


def test_a_wrong_grammar_is_not_compiled_again_at_once(monkeypatch):
    tried = []

    class Wrong:
        def __init__(self, model):
            pass

        def constraint(self, kind, text, helper, turn):
            tried.append(text)
            raise accrt.InvalidFormatError("regex: no such escape")

    monkeypatch.setattr(grammar, "Grammars", Wrong)
    compiler = grammar.Compiler(None)
    for name in ("guided_regex", "structured_outputs.regex"):
        with pytest.raises(serve.BadParameter, match=f"^{name}: regex: no such escape$") as caught:
            compiler(parameters.Grammar(name, "regex", "a"))
        assert caught.value.parameter == name and caught.value.code == "invalid_value"
    assert tried == ["a"]


def test_threads_with_one_grammar_compile_it_once(monkeypatch):
    pytest.importorskip("llguidance")
    asked, ask = [], _limited.Helper.ask
    monkeypatch.setattr(_limited.Helper, "ask", lambda self, *given: asked.append(given[0]) or ask(self, *given))
    with accrt.LLM(serve.simulated()) as one:
        texts, together = [None] * 12, threading.Barrier(12)

        def run(i):
            together.wait(20)
            texts[i] = one.generate("x", guided_regex="a{%d}" % (2 + i % 2), max_tokens=9).text

        threads = [threading.Thread(target=run, args=(i,)) for i in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert texts == ["aa", "aaa"] * 6 and len(asked) == 2


class Held:
    """A turn that lasts until it is let go. `said` has what became of the requests, in order."""

    def __init__(self, most=1, most_waiting=99):
        self.turns, self.said, self._begun, self._ended = turns.Turns(most, most_waiting), queue.Queue(), threading.Event(), threading.Event()
        assert self.turns.wait("held", self._hold, lambda: self.said.put("held refused"))
        assert self._begun.wait(20)

    def _hold(self, _now):
        self._begun.set()
        assert self._ended.wait(20)
        self.said.put("held")

    def wait(self, key, name=None):
        said = name or key
        return self.turns.wait(key, lambda now: self.said.put(said if now else f"{said} late"), lambda: self.said.put(f"{said} refused"))

    def let_go(self):
        self._ended.set()

    def heard(self, count):
        return [self.said.get(timeout=20) for _ in range(count)]


def test_grammars_wait_for_their_turn():
    """The oldest first. Requests with the same one have the turn together, also in its course."""
    held = Held()
    for key, name in [("a", "a1"), ("b", "b1"), ("a", "a2"), ("held", "held2"), ("b", "b2"), ("c", "c1"), ("a", "a3")]:
        assert held.wait(key, name)
    held.let_go()
    assert held.heard(8) == ["held", "held2", "a1", "a2", "a3", "b1", "b2", "c1"]
    assert held.wait("d") and held.heard(1) == ["d"]
    held.turns.close()
    assert not held.wait("e") and held.said.empty()


def test_a_request_waits_for_its_own_time(monkeypatch):
    held = Held()
    monkeypatch.setattr(turns, "PATIENCE_SECONDS", 60.0)
    assert held.wait("a", "patient")
    monkeypatch.setattr(turns, "PATIENCE_SECONDS", 0.2)
    assert held.wait("b") and held.wait("c") and held.wait("c", "d")
    assert held.heard(3) == ["b refused", "c refused", "d refused"]
    held.let_go()
    assert held.heard(2) == ["held", "patient"]
    held.turns.close()


def test_a_turn_may_last_longer_than_a_request_waits(monkeypatch):
    held = Held()
    monkeypatch.setattr(turns, "PATIENCE_SECONDS", 0.1)
    assert held.wait("held", "next") and held.wait("a") and held.heard(1) == ["a refused"]
    held.let_go()
    assert held.heard(2) == ["held", "next late"]
    held.turns.close()


def test_what_fails_in_its_turn_holds_no_other(capfd):
    held = Held(most=2)
    assert held.turns.wait("a", lambda now: 1 // 0, lambda: None) and held.wait("a", "next") and held.heard(1) == ["next"]
    assert "ZeroDivisionError" in capfd.readouterr().err
    held.let_go()
    held.turns.close()
    assert held.heard(1) == ["held"]


def test_the_number_of_requests_that_wait_has_a_bound():
    held = Held(most_waiting=5)
    assert [held.wait(key) for key in ("a", "b", "a", "held", "c", "a", "d")] == [True] * 5 + [False] * 2
    held.let_go()
    assert held.heard(6) == ["held", "held", "a", "a", "b", "c"]
    held.turns.close()


def test_what_fails_to_be_refused_holds_no_other(monkeypatch, capfd):
    held = Held()
    monkeypatch.setattr(turns, "PATIENCE_SECONDS", 0.1)
    assert held.turns.wait("a", lambda now: None, lambda: 1 // 0) and held.wait("b") and held.heard(1) == ["b refused"]
    assert "ZeroDivisionError" in capfd.readouterr().err
    held.let_go()
    held.turns.close()


def no_thread(self):
    raise RuntimeError("can't start new thread")


def test_a_request_that_cannot_wait_without_a_thread_says_so(monkeypatch):
    monkeypatch.setattr(threading.Thread, "start", no_thread)
    with pytest.raises(_limited.NotStarted, match="no thread can be started: can't start new thread"):
        turns.Turns(1, 5).wait("a", lambda now: None, lambda: None)


def test_a_turn_without_a_thread_is_tried_again(monkeypatch):
    held, start, failed = Held(), threading.Thread.start, []

    def fails_once(self):
        if self.name == "accrt-serve-grammar" and not failed:
            failed.append(self)
            raise RuntimeError("can't start new thread")
        start(self)

    monkeypatch.setattr(threading.Thread, "start", fails_once)
    assert held.wait("a")
    held.let_go()
    assert held.heard(2) == ["held", "a"] and failed
    assert held.wait("b") and held.heard(1) == ["b"]
    held.turns.close()


def test_requests_that_wait_are_refused_at_the_end():
    held = Held()
    assert held.wait("a") and held.wait("held", "late") and held.wait("b")
    closer = threading.Thread(target=held.turns.close)
    closer.start()
    assert held.heard(2) == ["a refused", "b refused"]
    held.let_go()
    assert held.heard(2) == ["held", "late refused"]
    closer.join()


def together(server, bodies):
    """The answers to requests that are sent at once."""
    clients = [server.connect() for _ in bodies]
    for client, body in zip(clients, bodies):
        client.sendall(post("/v1/completions", {"prompt": "x", "max_tokens": 30, **body}))
    answers = [Answer(read_all(client)) for client in clients]
    for client in clients:
        client.close()
    return answers


@pytest.mark.parametrize("workers", [1, 4])
def test_requests_with_one_new_schema_are_all_answered(workers):
    """47 of 64 got 503."""
    pytest.importorskip("llguidance")
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": ["left", "right"]}}}
    with served(workers=workers) as server:
        answers = together(server, [{"response_format": form}] * 64)
        assert [answer.status for answer in answers] == [200] * 64
        assert {answer.json["choices"][0]["text"].strip() for answer in answers} <= {'"left"', '"right"'}


def test_a_request_that_waits_for_its_grammar_is_made_once(monkeypatch):
    """In its turn it is only given to the engine: the messages become tokens before it waits."""
    pytest.importorskip("llguidance")
    made, render = [], ChatTemplate.render

    def counted(self, messages, extra=None):
        made.append(messages[0]["content"])
        return render(self, messages, extra)

    monkeypatch.setattr(ChatTemplate, "render", counted)
    with served(workers=2) as server:
        clients = [server.connect() for _ in range(8)]
        for i, client in enumerate(clients):
            path, said = ("chat/completions", {"messages": [{"role": "user", "content": str(i)}]}) if i % 2 else ("responses", {"input": str(i)})
            client.sendall(post(f"/v1/{path}", {**said, "guided_regex": "[a-d]{9}"}))
        for client in clients:
            with client:
                assert Answer(read_all(client)).status == 200
    assert sorted(made) == [str(i) for i in range(8)]


def test_requests_with_as_many_new_grammars_are_all_answered():
    pytest.importorskip("llguidance")
    with served() as server:
        answers = together(server, [{"guided_regex": "a{%d}" % (i + 1)} for i in range(24)])
        assert [answer.json["choices"][0]["text"] for answer in answers] == ["a" * (i + 1) for i in range(24)]


def test_more_requests_than_may_wait_get_429(monkeypatch):
    """max_jobs of them. Those whose clients have left meanwhile are not compiled; time counts from
    the begin of the wait."""
    pytest.importorskip("llguidance")
    go, asked, ask = threading.Event(), queue.Queue(), _limited.Helper.ask

    def held_ask(self, question, *given):
        if self._module == "accrt.serve._trial":
            asked.put(json.loads(question)["text"])
            assert go.wait(20)
        return ask(self, question, *given)

    monkeypatch.setattr(_limited.Helper, "ask", held_ask)
    with served(workers=1, max_jobs=3) as server:
        clients = []
        for source, more in [("a{1}", {}), ("a{2}", {"timeout": 0.001}), ("a{3}", {}), ("a{4}", {})]:
            clients.append(server.connect())
            clients[-1].sendall(post("/v1/completions", {"prompt": "x", "guided_regex": source, **more}))
            if len(clients) == 1:
                first = asked.get(timeout=20)
            else:  # the worker has put the one before into its queue
                assert until(lambda: server.server.counts()["queued"] == 0)
                assert server.raw(post("/v1/completions", {"prompt": "x", "max_tokens": 1})).startswith(b"HTTP/1.1 200 ")
        refused = Answer(server.raw(post("/v1/completions", {"prompt": "x", "guided_regex": "a{5}"})))
        assert refused.status == 429 and refused.error["code"] == "overloaded" and "retry-after" in refused.headers
        clients[2].close()
        assert until(lambda: server.server.counts()["connections"] == 3)
        go.set()
        answers = [Answer(read_all(clients[i])) for i in (0, 1, 3)]
        assert [answer.status for answer in answers] == [200, 504, 200] and answers[2].json["choices"][0]["text"] == "aaaa"
        assert "a{3}" not in [first, *(asked.get() for _ in range(asked.qsize()))]
        for client in clients:
            client.close()


def test_a_grammar_that_takes_longer_than_a_request_waits(monkeypatch):
    """The requests that waited for it behind the first one have it, too. They got 503."""
    pytest.importorskip("llguidance")
    go, asked, ask = threading.Event(), threading.Event(), _limited.Helper.ask

    def held_ask(self, question, *given):
        if self._module == "accrt.serve._trial":
            asked.set()
            assert go.wait(20)
        return ask(self, question, *given)

    monkeypatch.setattr(_limited.Helper, "ask", held_ask)
    with served(workers=1) as server:
        clients = [server.connect() for _ in range(4)]
        for i, client in enumerate(clients):
            client.sendall(post("/v1/completions", {"prompt": "x", "guided_regex": "a{3}" if i < 3 else "b{3}"}))
            assert asked.wait(20) and until(lambda: i == 3 or server.server.counts()["jobs"] == i + 1)
            monkeypatch.setattr(turns, "PATIENCE_SECONDS", 0.1)
        # It has had no turn. The one worker has done with those before it.
        assert read_all(clients[3]).startswith(b"HTTP/1.1 503 ")
        go.set()
        answers = [Answer(read_all(client)) for client in clients[:3]]
        assert [(answer.status, answer.json["choices"][0]["text"]) for answer in answers] == [(200, "aaa")] * 3
        for client in clients:
            client.close()


@pytest.mark.parametrize("workers", [1, 2])
def test_a_server_with_endless_grammars_goes_on(monkeypatch, workers):
    pytest.importorskip("llguidance")
    monkeypatch.setattr(turns, "PATIENCE_SECONDS", 1.0)
    with served(workers=workers) as server:
        clients = [server.connect() for _ in range(3)]
        for i, client in enumerate(clients):
            source = ENDLESS["conjunctions"]["guided_grammar"] + f" & /.{{{i + 1}}}.*/"
            client.sendall(post("/v1/completions", {"prompt": "x", "guided_grammar": source}))
        for _ in range(3):
            begin = time.monotonic()
            answer = server.raw(post("/v1/completions", {"prompt": "x", "max_tokens": 3}))
            assert answer.startswith(b"HTTP/1.1 200 ") and time.monotonic() - begin < grammar.TRIAL_SECONDS / 2
        answers = sorted(read_all(client) for client in clients)
        assert b"grammar_too_complex" in answers[0] and all(one.startswith(b"HTTP/1.1 503 ") for one in answers[1:]), answers
        for client in clients:
            client.close()
        answer = server.raw(post("/v1/completions", {"prompt": "x", "guided_regex": "a{2}"}))
        assert answer.startswith(b"HTTP/1.1 200 ") and b'"text":"aa"' in answer


def test_a_process_that_tries_grammars_is_replaced(monkeypatch):
    """Without memory for its stack; and after somebody else has ended it."""
    pytest.importorskip("llguidance")
    with monkeypatch.context() as patch, accrt.LLM(serve.simulated()) as one:
        patch.setattr(one.engine._compiler._helper, "_memory", grammar.TRIAL_BYTES)
        with pytest.raises(serve.BadParameter, match="takes more than 512 MiB of memory to compile, or ended the compiler: no thread with a stack") as caught:
            one.generate("x", guided_regex="a{2}", max_tokens=9)
        assert caught.value.code == "grammar_too_complex"
    with accrt.LLM(serve.simulated()) as one:
        assert one.generate("x", guided_regex="a{2}", max_tokens=9).text == "aa"
        helper = one.engine._compiler._helper
        process = helper._idle[0]
        os.kill(process._process.pid, signal.SIGKILL)
        while not process.has_ended():
            time.sleep(0.01)
        assert one.generate("x", guided_regex="a{3}", max_tokens=9).text == "aaa"
        pid = helper._idle[0]._process.pid
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_grammars_of_others_leave_their_memory(llm):
    """Each takes some 9 MiB: together they took the 512 MiB that one may take."""
    for i in range(80):
        words = " & ".join("/x|.*a.{%d}b.*/" % (i + k) for k in range(6))
        assert llm.generate("x", guided_grammar=f"start: T\nT: {words}", max_tokens=1).token_ids


@pytest.mark.parametrize("program, said", [("/nonexistent/python", "no helper process can be started with /nonexistent/python: .*No such file"), ("/bin/true", "did not become a helper process: exit code 0")])
def test_a_process_that_cannot_be_started_is_not_the_client_s_fault(monkeypatch, program, said):
    pytest.importorskip("llguidance")
    with accrt.LLM(serve.simulated()) as one:
        monkeypatch.setattr(sys, "executable", program)
        with pytest.raises(_limited.NotStarted, match=said):
            one.generate("x", guided_regex="a{2}", max_tokens=9)


@pytest.mark.parametrize("rule", ['{0}: "a" {1}', "{0}:{1}"])
@pytest.mark.parametrize("terminal", [False, True])
def test_a_grammar_of_nested_rules_ends_nothing(llm, rule, terminal):
    """Each rule of few bytes takes some KiB of stack: 3,000 ended the process."""
    names = [f"{'R' if terminal else 'r'}{i}" for i in range(3900)]
    grammar = "start: " + names[0] + "\n" + "\n".join(rule.format(one, other) for one, other in zip(names, names[1:])) + f'\n{names[-1]}: "b"'
    assert llm.generate("x", guided_grammar=grammar, max_tokens=3).token_ids


def test_without_llguidance_it_is_refused_by_name(monkeypatch):
    monkeypatch.setattr(grammar, "_library", lambda: "/nowhere/libllguidance.so")
    with accrt.LLM(serve.simulated()) as one:
        with pytest.raises(serve.BadParameter, match="guided_regex needs the package `llguidance`: pip install llguidance"):
            one.generate("x", guided_regex="a+")
        assert one.generate("x", max_tokens=3).finish_reason == "length"


# ---- what comes of it ----------------------------------------------------------------------------


@pytest.mark.parametrize("given,pattern", [
    ({"guided_regex": "[a-f]{3,5}-[0-9]{1,3}x"}, "[a-f]{3,5}-[0-9]{1,3}x"), ({"guided_choice": ["yes", "no", "m\u00f6glich"]}, "yes|no|m\u00f6glich"),
    ({"guided_grammar": 'start: "(" start ")" | "x"\n'}, r"\(*x\)*"), ({"structured_outputs": {"regex": "(ab)+;"}}, "(ab)+;"),
])  # fmt: skip
def test_texts_match(llm, given, pattern):
    found = set()
    for i in range(5):
        output = llm.generate(f"prompt {i}", n=8, max_tokens=300, seed=i, **given)
        found |= {(c.text, c.finish_reason) for c in output.completions}
    ended = {text for text, reason in found if reason == "stop"}
    assert ended and all(re.fullmatch(pattern, text) for text in ended), ended
    assert all(reason in ("stop", "length") for _, reason in found)


def test_it_ends_where_nothing_may_follow(llm):
    """Without an end token, and before min_tokens."""
    output = llm.generate("x", guided_choice=["abc"], max_tokens=50, min_tokens=20, ignore_eos=True)
    assert output.text == "abc" and output.finish_reason == "stop" and output.token_ids == list(b"abc")


def test_an_end_token_comes_where_it_may(llm):
    with accrt.LLM(serve.simulated(eos=0)) as one:
        for i in range(20):
            output = one.generate("x", guided_regex="[a-c]{4,}", seed=i, max_tokens=300, logit_bias={0: 99}, temperature=2.0)
            assert re.fullmatch("[a-c]{4,}", output.text) and output.finish_reason == "stop" and output.token_ids[-1] == 0
            output = one.generate("x", guided_regex="[a-c]{4,}", seed=i, max_tokens=30, ignore_eos=True)
            assert output.finish_reason == "length" and len(output.token_ids) == 30


def test_a_bad_grammar_is_refused_and_says_why(llm):
    for given, words in [({"guided_json": {"type": "objekt"}}, "objekt"), ({"guided_regex": "[a"}, "unclosed character class"), ({"guided_grammar": "start: foo"}, "foo")]:
        with pytest.raises(serve.BadParameter, match=words) as caught:
            llm.generate("x", **given)
        assert caught.value.parameter == next(iter(given)) and "\n" not in str(caught.value)


def test_a_grammar_that_becomes_too_complex_is_named(llm):
    """As the server does."""
    given = {"guided_regex": "(a|aa)*" * 1000, "max_tokens": 90}
    with pytest.raises(accrt.OutOfRangeError, match="the grammar became too complex for its text"):
        llm.generate("a", **given)
    with pytest.raises(accrt.OutOfRangeError, match="the grammar became too complex for its text"):
        list(llm.stream("a", **given))


def test_stop_strings_penalties_and_log_probabilities(llm):
    output = llm.generate("x", guided_regex="(ab){30}", stop="bab", logprobs=1, repetition_penalty=1.2, max_tokens=80)
    assert output.text == "a" and output.finish_reason == "stop" and len(output.completions[0].logprobs) == len(output.token_ids) == 4


# ---- random schemas ------------------------------------------------------------------------------


def random_schema(rng, depth=0):
    """A schema that llguidance and `fits` know all of. Strings and lists are short, so that the
    text ends."""
    kind = rng.choice(["string", "integer", "number", "boolean", "null", "enum"] + ["object", "array", "anyOf"] * (depth < 3))
    if kind == "string":
        return {"type": "string", "maxLength": rng.randint(0, 8)}
    if kind == "integer":
        low = rng.randint(-1000, 1000)
        return {"type": "integer", "minimum": low, "maximum": low + rng.randint(0, 5000)}
    if kind == "number":
        return {"type": "number", "minimum": 0, "maximum": 8}
    if kind == "enum":
        return {"enum": rng.sample(["a", "\u00e9\"\\", 1, -2.5, True, None, "zz"], rng.randint(1, 4))}
    if kind == "array":
        return {"type": "array", "items": random_schema(rng, depth + 1), "minItems": rng.randint(0, 1), "maxItems": rng.randint(1, 3)}
    if kind == "anyOf":
        return {"anyOf": [random_schema(rng, depth + 1) for _ in range(2)]}
    if kind == "object":
        names = rng.sample(["a", "b c", "\u00fc", "x\"y", "long_name"], rng.randint(0, 4))
        return {"type": "object", "properties": {name: random_schema(rng, depth + 1) for name in names}, "required": names[: rng.randint(0, len(names))],
                "additionalProperties": False}  # fmt: skip
    return {"type": kind}


def fits(value, schema):
    if "anyOf" in schema:
        return any(fits(value, one) for one in schema["anyOf"])
    if "enum" in schema:
        return any(type(value) is type(one) and value == one for one in schema["enum"])
    kind = schema["type"]
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if kind in ("integer", "number"):
        return number and (kind == "number" or value == int(value)) and schema["minimum"] <= value <= schema["maximum"]
    if kind == "string":
        return isinstance(value, str) and len(value) <= schema["maxLength"]
    if kind == "array":
        return isinstance(value, list) and schema["minItems"] <= len(value) <= schema["maxItems"] and all(fits(one, schema["items"]) for one in value)
    if kind == "object":
        return isinstance(value, dict) and set(schema["required"]) <= set(value) <= set(schema["properties"]) and all(fits(one, schema["properties"][key]) for key, one in value.items())
    return value is None if kind == "null" else isinstance(value, bool)


def test_random_schemas_always_fit(llm):
    """Every text of a random model that ends is JSON, and fits its schema."""
    rotation.seed()
    rng, ended = random.Random(SEED), 0
    for i in range(60):
        schema = random_schema(rng)
        output = llm.generate(f"{i}", guided_json=schema, n=6, max_tokens=1500, seed=rng.randrange(1 << 30))
        for one in output.completions:
            if one.finish_reason == "stop":
                ended += 1
                assert fits(json.loads(one.text), schema), (schema, one.text)
            else:
                assert one.finish_reason == "length"
    assert ended > 200


def test_mixed_with_others_the_texts_are_the_same(llm):
    """Beside others, preempted, overlapped: the text of a request with a seed is the one that it
    has alone."""
    schemas = [random_schema(random.Random(SEED + i)) for i in range(24)]
    alone = [llm.generate(f"{i}", guided_json=schema, max_tokens=120, seed=i).text for i, schema in enumerate(schemas)]
    with accrt.LLM(serve.simulated(flags=1, page_count=18, page_size=8, step_ns=100000, max_rows=9, max_tokens=64, max_length=512)) as small:
        outputs = [None] * 24

        def run(i):
            outputs[i] = small.generate(f"{i}", max_tokens=120, seed=i, **({"guided_json": schemas[i]} if i % 3 else {}))

        threads = [threading.Thread(target=run, args=(i,)) for i in range(24)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        stats = small.engine.stats()
    assert [output.text for i, output in enumerate(outputs) if i % 3] == [text for i, text in enumerate(alone) if i % 3]
    assert stats["step_failures"] == 0


# ---- over HTTP -----------------------------------------------------------------------------------


def test_over_http():
    pytest.importorskip("llguidance")
    body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 600, "seed": 1}
    schema = {"response_format": {"type": "json_schema", "json_schema": {"name": "person", "schema": WHOLE}}}
    with serve_http.served() as server:
        whole = Answer(server.raw(post("/v1/chat/completions", {**body, **schema, "n": 4}))).json
        for choice in whole["choices"]:
            value = json.loads(choice["message"]["content"])
            assert choice["finish_reason"] == "stop" and isinstance(value["age"], int) and len(value["name"]) <= 9
        events = Answer(server.raw(post("/v1/chat/completions", {**body, **schema, "stream": True}))).events
        text = "".join(json.loads(event)["choices"][0]["delta"].get("content", "") for event in events[:-1])
        assert text == Answer(server.raw(post("/v1/chat/completions", {**body, **schema}))).json["choices"][0]["message"]["content"]
        choice = Answer(server.raw(post("/v1/completions", {"prompt": ["a", "b"], "guided_choice": ["left", "right"]}))).json["choices"]
        assert {one["text"] for one in choice} <= {"left", "right"}
        answer = Answer(server.raw(post("/v1/chat/completions", {**body, "response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "objekt"}}}})))
        assert answer.status == 400 and answer.error["param"] == "response_format.json_schema.schema" and "objekt" in answer.error["message"]
        answer = Answer(server.raw(post("/v1/completions", {"prompt": "a", "guided_regex": "(a|aa)*" * 1000, "max_tokens": 90})))
        assert answer.status == 400 and answer.error["code"] == "grammar_too_complex"
        assert Answer(server.raw(post("/v1/completions", {"prompt": "a", "max_tokens": 2}))).status == 200


def test_the_openai_client():
    openai = pytest.importorskip("openai")
    pytest.importorskip("llguidance")
    with serve_http.served(check_descriptors=False) as server, openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="x") as client:
        form = {"type": "json_schema", "json_schema": {"name": "person", "schema": WHOLE, "strict": True}}
        answer = client.chat.completions.create(model="sim", messages=[{"role": "user", "content": "x"}], response_format=form, max_tokens=600)
        assert set(json.loads(answer.choices[0].message.content)) == {"name", "age"}
        pydantic = pytest.importorskip("pydantic")

        class Person(pydantic.BaseModel):
            name: str = pydantic.Field(max_length=5)
            old: bool

        parsed = client.chat.completions.parse(model="sim", messages=[{"role": "user", "content": "x"}], response_format=Person, max_tokens=600)
        assert isinstance(parsed.choices[0].message.parsed, Person)
