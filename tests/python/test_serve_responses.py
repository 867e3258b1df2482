"""/v1/responses: what a request becomes for the model, the items of the output, and the events of
streams, which are read by the rules of OpenAI's protocol and by OpenAI's own client."""

from __future__ import annotations

import asyncio
import json
import re

import pytest
import serve_http
from serve_http import Answer, post

serve_http.need_server()

from accrt import serve  # noqa: E402
from accrt.serve import responses, text  # noqa: E402

pytestmark = pytest.mark.quick_kernels  # in a run of the whole folder

PATH = "/v1/responses"
SHOWN = "{% for t in tools or [] %}{{ t.function.name }};{% endfor %}{% for m in messages %}<{{ m.role }}>{% if m.reasoning_content %}({{ m.reasoning_content }}){% endif %}{{ m.content }}" \
        "{% for c in m.tool_calls or [] %}[{{ c.id }} {{ c.function.name }} {{ c.function.arguments | tojson }}]{% endfor %}{% if m.tool_call_id %}={{ m.tool_call_id }}{% endif %}{% endfor %}"  # fmt: skip
THINKS = "<think></think><tool_call></tool_call>" + serve_http.TEMPLATE
ADD = {"type": "function", "name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "integer", "minimum": 1, "maximum": 9}},
       "required": ["a"], "additionalProperties": False}, "strict": True}  # fmt: skip


@pytest.fixture(scope="module")
def work_of():
    """What a request becomes, and the grammars of it."""
    one = text.Text(text.Bytes(), text.ChatTemplate(SHOWN), "hermes")

    def work(given):
        found = []
        return responses.response(given, one, ["model"], 0, found.append), found

    yield work
    one.close()


def read(body):
    """The events of a stream, each with its name; the response that ends it."""
    parts = body.split(b"\n\n")
    assert parts.pop() == b""
    events = []
    for i, part in enumerate(parts):
        name, data = re.fullmatch(rb"event: ([a-z_.]+)\ndata: ([^\n]*)", part).groups()
        events.append(json.loads(data))
        assert events[-1]["type"] == name.decode() and events[-1]["sequence_number"] == i
    first, last = [event["response"] for event in (events[0], events[-1])]
    assert [event["type"] for event in events[:2]] == ["response.created", "response.in_progress"] and events[1]["response"] == first
    assert first["status"] == "in_progress" and first["output"] == [] and first["usage"] is None and first["incomplete_details"] is None
    assert events[-1]["type"] == "response." + last["status"] and {**first, **{key: last[key] for key in ("status", "output", "usage", "incomplete_details", "error")}} == last
    assert items_of(events[2:-1]) == last["output"]
    return events, last


def items_of(events):
    """Items put together from their pieces; each must be as the events that end it say."""
    made = []
    while events:
        begin, *events = events
        item, place = begin["item"], {"output_index": len(made), "item_id": begin["item"]["id"]}
        assert begin["type"] == "response.output_item.added" and begin["output_index"] == len(made) and item["status"] == "in_progress"
        count = next(i for i, event in enumerate(events) if event["type"] == "response.output_item.done")
        inner, (end, *events) = events[:count], events[count:]
        if item["type"] != "function_call":
            assert item["content"] == []
            place["content_index"] = 0
            assert [inner[i]["type"] for i in (0, -1)] == ["response.content_part.added", "response.content_part.done"] and inner[0]["part"]["text"] == ""
            assert end["item"]["content"] == [inner[-1]["part"]] and all(place.items() <= inner[i].items() for i in (0, -1))
            inner = inner[1:-1]
        *deltas, done = inner
        kind = {"message": "output_text", "reasoning": "reasoning_text", "function_call": "function_call_arguments"}[item["type"]]
        assert [event["type"] for event in inner] == [f"response.{kind}.delta"] * len(deltas) + [f"response.{kind}.done"]
        assert all(place.items() <= event.items() for event in inner)
        whole = end["item"]["arguments"] if item["type"] == "function_call" else end["item"]["content"][0]["text"]
        assert "".join(delta["delta"] for delta in deltas) == whole == done["arguments" if item["type"] == "function_call" else "text"]
        if item["type"] == "message":
            assert [one for delta in deltas for one in delta["logprobs"]] == done["logprobs"] == end["item"]["content"][0]["logprobs"]
        made.append(end["item"])
    return made


def without_ids(output):
    return [{key: value for key, value in item.items() if key not in ("id", "call_id")} for item in output]


def both(server, **given):
    """The response of a whole answer; a stream of the same request ends with the same."""
    body = {"input": "x", "seed": 5, "max_output_tokens": 200, **given}
    whole = Answer(server.raw(post(PATH, body)))
    assert whole.status == 200, whole.body
    streamed = Answer(server.raw(post(PATH, {**body, "stream": True})))
    assert streamed.headers["content-type"].startswith("text/event-stream") and streamed.whole
    _events, last = read(streamed.body)
    found = whole.json
    for name in ("id", "created_at", "output", "usage"):
        last[name], found[name] = last.pop(name), found.pop(name)
    cached = [one["usage"]["input_tokens_details"].pop("cached_tokens") for one in (last, found)]
    assert without_ids(last.pop("output")) == without_ids(found["output"]) and all(count >= 0 for count in cached)
    assert {**found, **{name: last[name] for name in ("id", "created_at")}, "output": None} == {**last, "output": None}
    return found


@pytest.fixture(scope="module")
def server():
    with serve_http.served(model={"chat_template": THINKS}) as found:
        yield found


# ---- what a request becomes ----------------------------------------------------------------------


@pytest.mark.parametrize("given, prompt", [
    ({"input": "Hello"}, "<user>Hello"), ({"input": "Hello", "instructions": "Be brief."}, "<system>Be brief.<user>Hello"),
    ({"input": [{"role": "user", "content": "a"}, {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "b", "annotations": []}]},
                {"role": "user", "content": [{"type": "input_text", "text": "c"}, {"type": "input_text", "text": "d"}]}]}, "<user>a<assistant>b<user>cd"),
    ({"input": [{"role": "developer", "content": "a"}, {"role": "system", "content": "b"}]}, "<system>a<system>b"),
    ({"input": [{"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]},
                {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [{"type": "output_text", "text": "I add."}]},
                {"type": "function_call", "call_id": "call_1", "name": "add", "arguments": '{"a": 1}'}, {"type": "function_call", "call_id": "call_2", "name": "add", "arguments": '{"a": 2}'},
                {"type": "function_call_output", "call_id": "call_1", "output": "1"}, {"type": "function_call_output", "call_id": "call_2", "output": [{"type": "input_text", "text": "2"}]}],
      "tools": [ADD]}, 'add;<assistant>(Hm.)I add.[call_1 add {"a": 1}][call_2 add {"a": 2}]<tool>1=call_1<tool>2=call_2'),
    ({"input": [{"role": "assistant", "content": "a"}, {"role": "assistant", "content": "b"}, {"type": "reasoning", "summary": [{"type": "summary_text", "text": "s"}]},
                {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}]}, "<assistant>a<assistant>b<assistant>(s)[c f {}]"),
    ({"input": [{"type": "reasoning", "summary": []}, {"role": "user", "content": "a"}]}, "<assistant><user>a"),
    ({"input": "x", "tools": [ADD], "tool_choice": "none"}, "<user>x"),
])  # fmt: skip
def test_input_becomes_messages(work_of, given, prompt):
    (request,) = work_of(given)[0].requests
    assert bytes(request._prompt).decode() == prompt


def test_what_else_is_asked(work_of):
    (request,) = work_of({"input": "x", "max_output_tokens": 7, "temperature": 0.5, "top_p": 0.25, "top_k": 3, "user": "u", "store": True, "metadata": {"a": "b"}, "truncation": "disabled",
                          "background": False, "previous_response_id": None, "parallel_tool_calls": False, "service_tier": "auto", "include": [], "max_tool_calls": 3})[0].requests  # fmt: skip
    assert (request.struct.max_new_tokens, request.struct.temperature, request.struct.top_p, request.struct.top_k) == (7, 0.5, 0.25, 3)
    schema = {"type": "object", "properties": {}}
    (grammar,) = work_of({"input": "x", "text": {"format": {"type": "json_schema", "name": "s", "schema": schema, "strict": True}, "verbosity": "low"}})[1]
    (same,) = work_of({"input": "x", "response_format": None, "text": {"format": {"type": "json_schema", "name": "s", "schema": schema}}})[1]
    assert grammar.kind == "json" and json.loads(grammar.text).items() >= schema.items() and grammar == same
    assert work_of({"input": "x", "text": {"format": {"type": "text"}}})[1] == work_of({"input": "x", "text": {}})[1] == [None]
    for choice in ({"type": "function", "name": "add"}, "required", {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "add"}]}):
        work, (forced,) = work_of({"input": "x", "tools": [ADD], "tool_choice": choice})
        assert work.tools and "add" in forced.text
    assert work_of({"input": "x", "top_logprobs": 0})[0].flags == 0
    for asks in ({"top_logprobs": 2}, {"include": ["message.output_text.logprobs"], "top_logprobs": 2}):
        assert work_of({"input": "x", **asks})[0].top_logprobs == 2


@pytest.mark.parametrize("given, parameter, words", [
    ({}, "input", "is missing"), ({"input": 5}, "input", "expected a text or a list"), ({"input": []}, "input", "at least one item"), ({"input": ""}, "input", "expected a text"),
    ({"input": "x", "previous_response_id": "resp_1"}, "previous_response_id", "not stored here: send the whole conversation as input"),
    ({"input": "x", "conversation": "conv_1"}, "conversation", "not stored"), ({"input": "x", "prompt": {"id": "p"}}, "prompt", "not stored"),
    ({"input": "x", "background": True}, "background", "while its client waits"), ({"input": "x", "background": 0}, "background", "not supported"),
    ({"input": "x", "truncation": "auto"}, "truncation", "too long is refused"), ({"input": "x", "n": 2}, "n", "one output"), ({"input": "x", "store": "no"}, "store", "expected true or false"),
    ({"input": "x", "messages": []}, "messages", "/v1/chat/completions"), ({"input": "x", "max_tokens": True}, "max_tokens", "integer"),
    ({"input": "x", "max_output_tokens": "many"}, "max_output_tokens", "max_output_tokens is 'many'"), ({"input": "x", "max_output_tokens": 0}, "max_output_tokens", "at least 1"),
    ({"input": "x", "instructions": ["a"]}, "instructions", "expected a string"), ({"input": ["x"]}, "input[0]", "whose type is one of message, function_call"),
    ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0]", "whose type is one of"), ({"input": [{"type": ["message"]}]}, "input[0]", "whose type is one of"),
    ({"input": [{"role": "user", "content": "x"}, {"role": "robot", "content": "x"}], "instructions": "y"}, "input[1].role", "input[1].role is 'robot'"),
    ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "data:"}]}]}, "input[0].content[0]", "only parts of type text"),
    ({"input": [{"type": "function_call", "call_id": "c", "name": "f"}]}, "input[0].arguments", "expected a string"),
    ({"input": [{"type": "function_call_output", "call_id": "c"}]}, "input[0].output", "expected a text or a list"),
    ({"input": [{"type": "function_call_output", "output": "c"}]}, "input[0].call_id", "expected a string"),
    ({"input": [{"type": "reasoning", "summary": [5]}]}, "input[0].summary", "objects with a text"), ({"input": "\ud800"}, "input", "surrogate"),
    ({"input": "x", "tools": [{"type": "web_search"}]}, "tools[0]", "other tools are not here"), ({"input": "x", "tools": 3}, "tools", "expected a list"), ({"input": "x", "tools": {}}, "tools", "expected a list"),
    ({"input": "x", "metadata": {"a": [float("inf")]}}, "metadata", "too large to be repeated"), ({"input": "x", "top_p": 0.5, "tools": [{**ADD, "description": "d", "x": float("inf")}]}, "tools", "too large"),
    ({"input": "x", "tools": [{"type": "function", "name": "a b"}]}, "tools[0].name", "tools[0].name is 'a b'"),
    ({"input": "x", "tools": [ADD], "tool_choice": {"type": "function", "name": "sub"}}, "tool_choice", "none of the tools"),
    ({"input": "x", "tools": [ADD], "tool_choice": {"type": "web_search"}}, "tool_choice", "expected none, auto"),
    ({"input": "x", "reasoning": "high"}, "reasoning", "expected an object"), ({"input": "x", "reasoning": {"effort": 3}}, "reasoning.effort", "expected a string"),
    ({"input": "x", "reasoning": {"depth": 3}}, "reasoning.depth", "there are effort"), ({"input": "x", "text": []}, "text", "expected an object"),
    ({"input": "x", "text": {"format": {"type": "xml"}}}, "text.format.type", "expected text, json_object or json_schema"), ({"input": "x", "text": {"format": 3}}, "text.format", "expected an object"),
    ({"input": "x", "text": {"format": {"type": "json_schema", "name": "s", "schema": 3}}}, "text.format.schema", "text.format.schema is 3"),
    ({"input": "x", "include": ["message.everything"]}, "include", "message.output_text.logprobs"), ({"input": "x", "include": [{}]}, "include", "expected a list"),
    ({"input": "x", "top_logprobs": 21}, "top_logprobs", "from 0 to 20"), ({"input": "x", "colour": 1}, "colour", "unknown parameter"), ({"input": "x", "prompt_logprobs": 1}, "prompt_logprobs", "chat"),
])  # fmt: skip
def test_what_is_refused_is_named_as_the_request_has_it(work_of, given, parameter, words):
    with pytest.raises(serve.BadParameter) as caught:
        work_of(given)
    assert caught.value.parameter == parameter and words in caught.value.message and "\n" not in caught.value.message
    assert not re.search("messages|response_format|max_completion", caught.value.message) or parameter == "messages"


def test_many_calls_of_one_turn_take_time_in_proportion():
    """Each call joins the list that is there: a copy of it for each call takes minutes for as many
    calls as a body can have."""
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    message = responses._message("input[0]", call)
    calls = message["tool_calls"]
    for count in range(2, 5):
        assert responses._joins(message, responses._message("input[1]", call))
        assert message["tool_calls"] is calls and len(calls) == count


# ---- answers -------------------------------------------------------------------------------------


def test_text(server):
    found = both(server, instructions="Be brief.", metadata={"k": "v"}, max_output_tokens=9)
    (item,) = found["output"]
    assert found["object"] == "response" and re.fullmatch("resp_[0-9a-f]{24}", found["id"]) and found["model"] == "sim" and found["error"] is None
    assert found["status"] == item["status"] == "incomplete" and found["incomplete_details"] == {"reason": "max_output_tokens"}
    assert item["type"] == "message" and item["role"] == "assistant" and item["content"][0]["text"]
    assert (found["instructions"], found["metadata"], found["store"], found["max_output_tokens"], found["previous_response_id"]) == ("Be brief.", {"k": "v"}, False, 9, None)
    usage = found["usage"]
    assert usage["output_tokens"] == 9 and usage["total_tokens"] == usage["input_tokens"] + 9
    chat = {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "x"}], "seed": 5, "max_tokens": 9}
    said = Answer(server.raw(post("/v1/chat/completions", chat))).json
    assert said["choices"][0]["message"]["content"] == item["content"][0]["text"] and said["usage"]["prompt_tokens"] == usage["input_tokens"]


def test_a_text_that_ends(server):
    """The first character of another answer stops this one, which is an empty message then."""
    (item,) = both(server, max_output_tokens=30)["output"]
    found = both(server, stop=[item["content"][0]["text"][0]])
    assert found["status"] == "completed" and found["incomplete_details"] is None
    assert [(one["type"], one["status"], one["content"][0]["text"]) for one in found["output"]] == [("message", "completed", "")]


def test_log_probabilities(server):
    (item,) = both(server, max_output_tokens=20, top_logprobs=2, include=["message.output_text.logprobs"])["output"]
    (part,) = item["content"]
    chat = {"messages": [{"role": "user", "content": "x"}], "seed": 5, "max_tokens": 20, "logprobs": True, "top_logprobs": 2}
    same = Answer(server.raw(post("/v1/chat/completions", chat))).json["choices"][0]["logprobs"]["content"]
    assert part["logprobs"] == same and len(same) == 20 and b"".join(bytes(one["bytes"]) for one in same).decode(errors="replace") == part["text"]


def test_reasoning_text_and_calls_are_items(server, monkeypatch):
    """Calls are found where a grammar has the model write them. Text behind them is another
    message."""
    pytest.importorskip("llguidance")
    monkeypatch.setattr("accrt.serve.tools.Asked.grammar", lambda self, special, other: other)
    call = '<tool_call>{\\"name\\": \\"add\\", \\"arguments\\": {\\"a\\": %d}}</tool_call>'
    say = f'start: "<think>Hm.</think>Ab" /[a-z]/ "{call % 3}{call % 4}" "x"'
    found = both(server, guided_grammar=say, tools=[ADD], logprobs=None, include=["message.output_text.logprobs"])
    thought, message, *calls, last = found["output"]
    assert thought["content"] == [{"type": "reasoning_text", "text": "Hm."}] and thought["summary"] == []
    assert message["content"][0]["text"][:2] == "Ab" and last["content"][0]["text"].strip() == "x"
    assert "".join(one["token"] for one in message["content"][0]["logprobs"]) == message["content"][0]["text"]
    assert [(one["type"], one["name"], one["arguments"]) for one in calls] == [("function_call", "add", '{"a": 3}'), ("function_call", "add", '{"a": 4}')]
    assert len({one["id"] for one in found["output"]}) == 5 and len({one["call_id"] for one in calls}) == 2 and {one["status"] for one in found["output"]} == {"completed"}
    assert found["usage"]["output_tokens_details"]["reasoning_tokens"] == len("Hm.") + len("</think")
    assert [one["name"] for one in found["tools"]] == ["add"]
    again = [{"role": "user", "content": "x"}, *found["output"], *({"type": "function_call_output", "call_id": one["call_id"], "output": "1"} for one in calls)]
    assert Answer(server.raw(post(PATH, {"input": again, "max_output_tokens": 1}))).status == 200
    less = both(server, guided_grammar=say, tools=[ADD], include_reasoning=False, parallel_tool_calls=False)
    assert [one["type"] for one in less["output"]] == ["message", "function_call", "message"]


def test_reasoning_that_is_cut_off(server):
    pytest.importorskip("llguidance")
    (thought,) = both(server, guided_regex="<think>[a-z]{50}</think>", max_output_tokens=20)["output"]
    assert thought["type"] == "reasoning" and thought["status"] == "incomplete" and len(thought["content"][0]["text"]) == 20 - len("<think>")


def test_forced_calls_and_formats(server):
    pytest.importorskip("llguidance")
    found = both(server, tools=[{**ADD, "parameters": {**ADD["parameters"], "x-guidance": {"whitespace_flexible": False}}}], tool_choice={"type": "function", "name": "add"})
    (call,) = found["output"]
    assert call["type"] == "function_call" and json.loads(call["arguments"])["a"] in range(1, 10)
    schema = {"type": "object", "properties": {"a": {"enum": ["b"]}}, "required": ["a"], "additionalProperties": False, "x-guidance": {"whitespace_flexible": False}}
    found = both(server, text={"format": {"type": "json_schema", "name": "s", "schema": schema}})
    assert json.loads(found["output"][0]["content"][0]["text"]) == {"a": "b"} and found["text"]["format"]["name"] == "s"


# ---- failures and clients ------------------------------------------------------------------------


def test_a_failure_after_the_beginning_ends_the_stream():
    with serve_http.served(model={"step_ns": 20_000_000}) as server:
        answer = Answer(server.raw(post(PATH, {"input": "x", "stream": True, "timeout": 0.5, "seed": 1})))
        if answer.status == 200:  # else no token came in that time
            events, last = read(answer.body)
            assert last["status"] == "failed" and last["error"] == {"code": "server_error", "message": "The request's time was over."}
            assert last["usage"] is None and {item["status"] for item in last["output"]} <= {"incomplete"}
        else:
            assert answer.status == 504 and answer.error["code"] == "deadline"


def test_what_a_response_repeats_is_bounded():
    with serve_http.served(max_held_bytes=1 << 20) as server:
        large = Answer(server.raw(post(PATH, {"input": "x", "metadata": {"k": "v" * 600_000}, "max_output_tokens": 2})))
        assert large.status == 400 and large.error["code"] == "answer_too_large" and "repeats" in large.error["message"]


def test_what_a_stream_repeats_makes_no_slow_client():
    """It is more than a client may leave unread, and than the sockets hold, and comes at once."""
    with serve_http.served() as server:
        body = {"input": "x", "metadata": {"k": "v" * 5_000_000}, "max_output_tokens": 20, "stream": True, "seed": 1}
        answer = Answer(server.raw(post(PATH, body), receive_bytes=4096))
        assert answer.status == 200 and answer.whole and read(answer.body)[1]["usage"]["output_tokens"] == 20


def test_a_client_that_leaves_ends_its_response():
    with serve_http.served(model={"step_ns": 2_000_000}) as server:
        for stream in (True, False):
            with server.connect() as client:
                client.sendall(post(PATH, {"input": "x", "stream": stream}))
                assert serve_http.until(server.busy) and (not stream or client.recv(1 << 16))
            assert serve_http.until(server.at_rest)


def test_the_openai_client():
    openai = pytest.importorskip("openai", reason="the openai client is not here (./dev check openai has it)")
    with serve_http.served(check_descriptors=False) as server:
        url = f"http://127.0.0.1:{server.port}/v1"
        with openai.OpenAI(base_url=url, api_key="k", max_retries=0) as client:
            given = {"model": "sim", "input": "Hello", "max_output_tokens": 40, "extra_body": {"seed": 2}}
            whole = client.responses.create(**given)
            assert whole.output_text and whole.status == "incomplete" and whole.usage.output_tokens == 40
            events = list(client.responses.create(**given, stream=True))
            assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == whole.output_text
            stop = whole.output_text[10]
            with client.responses.stream(**{**given, "extra_body": {"seed": 2, "stop": [stop]}}) as stream:
                for _event in stream:
                    pass
                assert stream.get_final_response().output_text == whole.output_text.partition(stop)[0]
            with pytest.raises(openai.BadRequestError, match="not stored here") as caught:
                client.responses.create(**given, previous_response_id=whole.id)
            assert caught.value.param == "previous_response_id"
            with pytest.raises(openai.NotFoundError, match="whose answers are not stored"):
                client.responses.retrieve(whole.id)

        async def many():
            async with openai.AsyncOpenAI(base_url=url, api_key="k", max_retries=0) as client:
                return await asyncio.gather(*[client.responses.create(**given) for _ in range(20)])

        assert {one.output_text for one in asyncio.run(many())} == {whole.output_text}
