"""Calls of tools: what a request may say of them, what earlier calls become for a chat template, and calls that are forced by a grammar, in
whole answers and in streams, for each form. How calls are found in a text: serve/http/tools_test.c."""

from __future__ import annotations

import json

import pytest
import serve_http
from serve_http import Answer, post

serve_http.need_server()

from accrt import serve  # noqa: E402
from accrt.serve import text, tools  # noqa: E402

#: Parameters of one length, so that a random model ends.
WEATHER = {"type": "function", "function": {"name": "weather", "description": "of a place", "parameters": {
    "type": "object", "properties": {"place": {"type": "string", "maxLength": 4}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["place", "days"], "additionalProperties": False}}}  # fmt: skip
TIME = {"type": "function", "function": {"name": "time", "parameters": {"type": "object", "properties": {}, "additionalProperties": False}}}
TEMPLATE = ("{% for t in tools or [] %}{{ t.function.name }};{% endfor %}{% for m in messages %}{{ m.role }}: {{ m.content }}"
            "{% for c in m.tool_calls or [] %}{{ c.function.arguments.place }}{% endfor %}\n{% endfor %}assistant:")  # fmt: skip
BODY = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 400, "seed": 1}


@pytest.mark.parametrize("template, form", [
    ("<tool_call>", "hermes"), ("[TOOL_CALLS]", "mistral"), ("<|python_tag|>", "llama3_json"), ("<tool_call><function=", None), ("{{ messages }}", None),
])  # fmt: skip
def test_the_template_says_the_form(template, form):
    assert tools.detect(template) == form


@pytest.mark.parametrize("given, parameter", [
    ({"tools": 5}, "tools"), ({"tools": [5]}, "tools[0]"), ({"tools": [{"type": "function"}]}, "tools[0]"),
    ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
    ({"tools": [{"type": "function", "function": {"name": "a", "parameters": 3}}]}, "tools[0].function.parameters"),
    ({"tools": [TIME], "tool_choice": "always"}, "tool_choice"), ({"tool_choice": "required"}, "tool_choice"),
    ({"tools": [TIME], "tool_choice": {"type": "function", "function": {"name": "weather"}}}, "tool_choice"),
    ({"tools": [TIME], "parallel_tool_calls": 1}, "parallel_tool_calls"),
])  # fmt: skip
def test_what_is_wrong_is_named(given, parameter):
    with pytest.raises(serve.BadParameter) as caught:
        tools.asked(given, "hermes")
    assert caught.value.parameter == parameter


def test_a_model_of_no_known_form_is_refused():
    with pytest.raises(serve.BadParameter, match="start with --tool-parser, one of hermes, llama3_json, mistral"):
        tools.asked({"tools": [TIME]}, None)
    assert tools.asked({"tools": [TIME], "tool_choice": "none"}, None) is None and tools.asked({}, None) is None
    with pytest.raises(ValueError, match="tool_parser is 'hermess', expected one of"):
        serve.load("simulated:", tool_parser="hermess")


def test_earlier_calls_have_objects_for_the_template():
    call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"place": "Ulm"}'}}
    messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "call_1", "content": "rain"}]  # fmt: skip
    made = text.check_messages(messages)
    assert made[1]["tool_calls"][0]["function"]["arguments"] == {"place": "Ulm"} and made[2]["content"] == "rain"
    for wrong in (5, [5], [{"function": {}}]):
        with pytest.raises(serve.BadParameter):
            text.check_messages([{"role": "assistant", "tool_calls": wrong}])


def calls_of(events):
    """The calls that a stream's pieces make, by index."""
    calls, reason, content = {}, None, ""
    for event in events:
        choice = json.loads(event)["choices"][0]
        reason = choice["finish_reason"] or reason
        content += choice["delta"].get("content") or ""
        for piece in choice["delta"].get("tool_calls", []):
            call = calls.setdefault(piece["index"], {"id": "", "name": "", "arguments": ""})
            call["id"] += piece.get("id", "")
            call["name"] += piece["function"].get("name", "")
            call["arguments"] += piece["function"].get("arguments", "")
    return [calls[i] for i in sorted(calls)], reason, content


@pytest.mark.parametrize("form", tools.FORMS)
def test_forced_calls(form):
    pytest.importorskip("llguidance")
    with serve_http.served(model={"chat_template": TEMPLATE, "tool_parser": form}) as server:
        one = {**BODY, "tools": [WEATHER, TIME], "tool_choice": {"type": "function", "function": {"name": "weather"}}}
        choice = Answer(server.raw(post("/v1/chat/completions", one))).json["choices"][0]
        (call,) = choice["message"]["tool_calls"]
        assert choice["finish_reason"] == "tool_calls" and call["type"] == "function" and call["id"] and call["function"]["name"] == "weather"
        arguments = json.loads(call["function"]["arguments"])
        assert len(arguments["place"]) <= 4 and 1 <= arguments["days"] <= 9
        pieces, reason, content = calls_of(Answer(server.raw(post("/v1/chat/completions", {**one, "stream": True}))).events[:-1])
        assert reason == "tool_calls" and not content.strip()
        assert [(p["name"], p["arguments"]) for p in pieces] == [("weather", call["function"]["arguments"])]
        required = {**BODY, "tools": [WEATHER, TIME], "tool_choice": "required", "parallel_tool_calls": False}
        (call,) = Answer(server.raw(post("/v1/chat/completions", required))).json["choices"][0]["message"]["tool_calls"]
        assert call["function"]["name"] in ("weather", "time")
        plain = Answer(server.raw(post("/v1/chat/completions", {**BODY, "tools": [TIME], "tool_choice": "none", "max_tokens": 5}))).json
        assert "tool_calls" not in plain["choices"][0]["message"]


def test_the_openai_client_calls():
    openai = pytest.importorskip("openai")
    pytest.importorskip("llguidance")
    with serve_http.served(check_descriptors=False, model={"chat_template": TEMPLATE, "tool_parser": "hermes"}) as server:
        with openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="x") as client:
            asked = dict(model="sim", messages=[{"role": "user", "content": "x"}], tools=[WEATHER], tool_choice="required", parallel_tool_calls=False,
                         max_tokens=400, seed=3)  # fmt: skip
            message = client.chat.completions.create(**asked).choices[0].message
            assert message.tool_calls[0].function.name == "weather" and json.loads(message.tool_calls[0].function.arguments)["days"]
            again = [{"role": "user", "content": "x"}, message.model_dump(exclude_none=True),
                     {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "rain"}]  # fmt: skip
            assert client.chat.completions.create(**{**asked, "messages": again}).choices[0].finish_reason == "tool_calls"
            deltas = [c.choices[0].delta for c in client.chat.completions.create(**asked, stream=True) if c.choices]
            text = "".join(call.function.arguments or "" for d in deltas for call in d.tool_calls or [])
            assert text == message.tool_calls[0].function.arguments
