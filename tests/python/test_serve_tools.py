"""Calls of tools: what a request may say of them, what earlier calls become for a chat template,
and calls that are forced by a grammar, in whole answers and in streams, for each form. How calls
are found in a text: serve/http/tools_test.c."""

from __future__ import annotations

import functools
import json

import pytest
import serve_http
from serve_http import Answer, post

serve_http.need_server()

from accrt import serve  # noqa: E402
from accrt.serve import text, tools  # noqa: E402

pytestmark = pytest.mark.quick_kernels  # in a run of the whole folder

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
    ("<tool_call><function=f><parameter=a></parameter>", "qwen3_coder"), ("<tool_call>f<arg_key>a</arg_key><arg_value></arg_value>", "glm45"), ("<|tool_call|>", "granite"),
    ("<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{}<|tool_call_end|>", "kimi_k2"), ("<seed:tool_call><function=f><parameter=a></parameter>", "seed_oss"),
    ("<function=f><parameter=a></parameter>", None), ('<minimax:tool_call><invoke name="f"><parameter name="a"></parameter></invoke>', "minimax_m2"),
    ("<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f<｜tool▁call▁end｜>", "deepseek"), ("<|channel|>commentary<|message|>{}<|call|>", "harmony"),
    ("<|START_ACTION|>", "command"), ("<|python_start|>", "pythonic"), ("as [func_name1(params_name1=params_value1), func_name2(params)]", "pythonic"), ("<|channel|>", None),
])  # fmt: skip
def test_the_template_says_the_form(template, form):
    assert tools.detect(template) == form


@pytest.mark.parametrize("given, parameter", [
    ({"tools": 5}, "tools"), ({"tools": [5]}, "tools[0]"), ({"tools": [{"type": "function"}]}, "tools[0]"),
    ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
    ({"tools": [{"type": "function", "function": {"name": "a", "parameters": 3}}]}, "tools[0].function.parameters"),
    ({"tools": [TIME], "tool_choice": "always"}, "tool_choice"), ({"tool_choice": "required"}, "tool_choice"),
    ({"tools": [TIME], "tool_choice": {"type": "function", "function": {"name": "weather"}}}, "tool_choice"),
    ({"tools": [TIME], "tool_choice": {"type": "custom"}}, "tool_choice"), ({"tools": [TIME], "tool_choice": ["auto"]}, "tool_choice"),
    ({"tools": [TIME], "tool_choice": {"type": "allowed_tools"}}, "tool_choice.allowed_tools"),
    ({"tools": [TIME], "tool_choice": {"type": "allowed_tools", "allowed_tools": {"tools": [TIME]}}}, "tool_choice.allowed_tools.mode"),
    ({"tools": [TIME], "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}}}, "tool_choice.allowed_tools.tools"),
    ({"tools": [TIME], "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [WEATHER]}}}, "tool_choice.allowed_tools.tools[0]"),
    ({"tools": [TIME], "parallel_tool_calls": 1}, "parallel_tool_calls"),
])  # fmt: skip
def test_what_is_wrong_is_named(given, parameter):
    with pytest.raises(serve.BadParameter) as caught:
        tools.asked(given, "hermes")
    assert caught.value.parameter == parameter


def test_a_model_of_no_known_form_is_refused():
    with pytest.raises(serve.BadParameter, match="start with --tool-parser, one of hermes, llama3_json, mistral, qwen3_coder, glm45, granite, kimi_k2, seed_oss, minimax_m2, deepseek, pythonic, command, harmony"):
        tools.asked({"tools": [TIME]}, None)
    assert tools.asked({"tools": [TIME], "tool_choice": "none"}, None) is None and tools.asked({}, None) is None
    with pytest.raises(ValueError, match="tool_parser is 'hermess', expected one of"):
        serve.load("simulated:", tool_parser="hermess")


@pytest.mark.parametrize("one", [{"type": "function", "function": {"name": "time"}}, {"type": "function", "name": "time"}, TIME])
@pytest.mark.parametrize("mode", ["auto", "required"])
def test_some_of_the_tools_are_allowed(mode, one):
    """A free model is told of these alone; a forced one can write no others."""
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [one]}}
    found = tools.asked({"tools": [WEATHER, TIME], "tool_choice": choice}, "hermes")
    assert found.choices == [TIME["function"]] and found.forced == (mode == "required") and not found.one
    assert found.tools == ([TIME] if mode == "auto" else [WEATHER, TIME])


def test_earlier_calls_have_objects_for_the_template():
    call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"place": "Ulm"}'}}
    messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "call_1", "content": "rain"}]  # fmt: skip
    made = text.check_messages(messages)
    assert made[1]["tool_calls"][0]["function"]["arguments"] == {"place": "Ulm"} and made[2]["content"] == "rain"
    for wrong in (5, [5], [{"function": {}}]):
        with pytest.raises(serve.BadParameter):
            text.check_messages([{"role": "assistant", "tool_calls": wrong}])


@pytest.mark.parametrize("shown, found", [("arguments']", '{"place": "Ulm"}'), ("arguments'] | tojson", '{"place": "Ulm"}')])
def test_arguments_are_a_text_where_the_template_joins_them(shown, found):
    """DeepSeek's templates do; others get objects."""
    from accrt.serve import requests

    call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"place": "Ulm"}'}}
    source = "{% for m in messages %}{% for c in m.tool_calls or [] %}{{ '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' + (c['function']['" + shown + ") + '<｜tool▁call▁end｜>' }}{% endfor %}{% endfor %}"
    one = text.Text(text.Bytes(), text.ChatTemplate(source))
    try:
        assert one.tool_parser == "deepseek"
        (request,) = requests.chat({"messages": [*BODY["messages"], {"role": "assistant", "tool_calls": [call]}]}, one, ["model"], 0).requests
        assert f"begin｜>{found}<" in bytes(request._prompt).decode()
    finally:
        one.close()


def test_reasoning_effort_is_for_the_template():
    from accrt.serve import requests

    one = text.Text(text.Bytes(), text.ChatTemplate("{{ reasoning_effort or 'nothing' }}"))
    try:
        said = lambda **more: bytes(requests.chat({**BODY, **more}, one, ["model"], 0).requests[0]._prompt).decode()  # noqa: E731
        assert said() == said(reasoning_effort=None) == "nothing"
        assert said(reasoning_effort="low") == "low" and said(reasoning_effort="high", chat_template_kwargs={"reasoning_effort": "x"}) == "x"
        counted = requests.tokenize({"messages": BODY["messages"], "reasoning_effort": "low"}, one, ["model"])
        assert counted["count"] == len("low")
        for wrong in (3, "", "x" * 65):
            with pytest.raises(serve.BadParameter, match="reasoning_effort is"):
                said(reasoning_effort=wrong)
    finally:
        one.close()


@pytest.mark.parametrize("form", tools.FORMS)
def test_marks_that_are_special_tokens_stay_in_the_text(form):
    """Whether they are is the tokenizer's choice, and no call is found without them."""
    tokenizers = pytest.importorskip("tokenizers")
    from accrt import _ffi
    from accrt.serve import requests

    mark = tools.FORMS[form].open
    for special in (True, False):
        made = tokenizers.Tokenizer(tokenizers.models.WordLevel({"x": 0}, unk_token="x"))
        (made.add_special_tokens if special else made.add_tokens)([mark])
        one = text.Text(text.Tokenizer(made.to_str().encode()), text.ChatTemplate(TEMPLATE), form)
        try:
            for wanted in (None, True, False):
                body = {**BODY, "tools": [TIME], "skip_special_tokens": wanted}
                (request,) = requests.chat(body, one, ["model"], 0).requests
                assert bool(request.struct.flags & _ffi.ACCRT_SERVE_SPECIAL) == (special or wanted is False), (special, wanted)
        finally:
            one.close()


@pytest.mark.parametrize("form, said", [
    ("qwen3_coder", '"<tool_call>\\n<function=weather>\\n<parameter=place>\\n" /[0-9]{4}/ "\\n</parameter>\\n<parameter=days>\\n" /[1-9]/ "\\n</parameter>\\n</function>\\n</tool_call>"'),
    ("glm45", '"<tool_call>weather\\n<arg_key>place</arg_key>\\n<arg_value>" /[0-9]{4}/ "</arg_value>\\n<arg_key>days</arg_key>\\n<arg_value>" /[1-9]/ "</arg_value>\\n</tool_call>"'),
    ("seed_oss", '"<seed:tool_call>\\n<function=weather>\\n<parameter=place>" /[0-9]{4}/ "</parameter>\\n<parameter=days>" /[1-9]/ "</parameter>\\n</function>\\n</seed:tool_call>"'),
    ("minimax_m2", r'"<minimax:tool_call>\n<invoke name=\"weather\">\n<parameter name=\"place\">" /[0-9]{4}/ "</parameter>\n<parameter name=\"days\">" /[1-9]/ "</parameter>\n</invoke>\n</minimax:tool_call>"'),
    ("pythonic", """ "[weather(place='" /[0-9]{4}/ "', days=" /[1-9]/ ")]" """),
    ("deepseek", r'"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{\"place\": \"" /[0-9]{4}/ "\", \"days\": " /[1-9]/ "}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"'),
    ("kimi_k2", r'"<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>{\"place\": \"" /[0-9]{4}/ "\", \"days\": " /[1-9]/ "}<|tool_call_end|><|tool_calls_section_end|>"'),
])  # fmt: skip
def test_arguments_of_free_calls_have_the_types_of_the_schema(form, said, monkeypatch):
    """The model is made to write a free call by a grammar, which requests cannot have beside
    tools."""
    import accrt

    pytest.importorskip("llguidance")
    monkeypatch.setattr(tools.Asked, "grammar", lambda self, special, other: other)
    body = {"messages": BODY["messages"], "tools": [WEATHER], "guided_grammar": f"start: {said}", "max_tokens": 300, "seed": 1}
    with serve_http.served(model={"chat_template": TEMPLATE, "tool_parser": form}) as server:
        (call,) = Answer(server.raw(post("/v1/chat/completions", body))).json["choices"][0]["message"]["tool_calls"]
        pieces, reason, content = calls_of(Answer(server.raw(post("/v1/chat/completions", {**body, "stream": True}))).events[:-1])
    arguments = json.loads(call["function"]["arguments"])
    assert call["function"]["name"] == "weather" and isinstance(arguments["place"], str) and arguments["place"].isdigit() and 1 <= arguments["days"] <= 9
    assert reason == "tool_calls" and not content and [(one["name"], one["arguments"]) for one in pieces] == [("weather", call["function"]["arguments"])]
    with accrt.LLM(serve.simulated(chat_template=TEMPLATE, tool_parser=form)) as one:
        (same,) = one.chat(**body).tool_calls
    assert same["function"] == call["function"]
    assert (same["id"] == call["id"] == "functions.weather:0") == (form == "kimi_k2")


TEXT, TEXT_OR_NULL, NO_TEXT = b"f a\n", b"?f a\n", b""


@pytest.mark.parametrize("schema, line", [
    ({"type": "string"}, TEXT), ({"enum": ["a", 1]}, TEXT), ({"const": "5"}, TEXT), ({"anyOf": [{"type": "string"}, {"type": "integer"}]}, TEXT),
    ({"type": ["string"], "enum": ["a"]}, TEXT), ({"allOf": [{"type": "string"}, {"maxLength": 3}]}, TEXT), ({"oneOf": [{"const": "5"}, {"enum": ["6"]}]}, TEXT),
    ({"allOf": [{"type": "string"}, {"type": ["string", "null"]}]}, TEXT), ({"anyOf": [{"anyOf": [{"type": "string"}]}, {"type": "array"}]}, TEXT),
    ({"type": ["string", "null"]}, TEXT_OR_NULL), ({"anyOf": [{"type": "string"}, {"type": "null"}], "default": None}, TEXT_OR_NULL),
    ({"oneOf": [{"type": "null"}, {"type": "string"}]}, TEXT_OR_NULL), ({"enum": ["a", None]}, TEXT_OR_NULL), ({"type": "string", "nullable": True}, TEXT_OR_NULL),
    ({"anyOf": [{"const": "a"}, {"const": None}]}, TEXT_OR_NULL), ({"allOf": [{"type": ["string", "null"]}, {"maxLength": 3}]}, TEXT_OR_NULL),
    ({"type": "integer"}, NO_TEXT), ({}, NO_TEXT), (True, NO_TEXT), ({"enum": [1]}, NO_TEXT), ({"anyOf": [5]}, NO_TEXT), ({"type": 5}, NO_TEXT),
    ({"type": "null"}, NO_TEXT), ({"type": ["integer", "null"]}, NO_TEXT), ({"const": 5}, NO_TEXT), ({"type": [{}]}, NO_TEXT), ({"allOf": 5, "enum": 5}, NO_TEXT),
    (functools.reduce(lambda inner, _: {"anyOf": [inner]}, range(5000), {}), NO_TEXT),
])  # fmt: skip
def test_which_parameters_are_text(schema, line):
    tool = {"type": "function", "function": {"name": "f", "parameters": {"properties": {"a": schema, "b\n": {"type": "string"}}}}}
    assert tools.asked({"tools": [tool]}, "glm45").text_parameters == line
    assert tools.asked({"tools": [tool]}, "hermes").text_parameters is None


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
        allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [{"type": "function", "function": {"name": "time"}}]}}
        some = {**required, "tool_choice": allowed}
        (call,) = Answer(server.raw(post("/v1/chat/completions", some))).json["choices"][0]["message"]["tool_calls"]
        assert call["function"]["name"] == "time"
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


# ---- in this process -----------------------------------------------------------------------------

#: A grammar makes the model write two calls and a text around them.
TWO = 'start: "Hm. <tool_call>\\n" a "\\n</tool_call>\\n<tool_call>\\n" b "\\n</tool_call>"\n' \
      'a: "{\\"name\\": \\"weather\\", \\"arguments\\": {\\"place\\": \\"" /[a-z]{3}/ "\\"}}"\nb: "{\\"name\\": \\"time\\", \\"arguments\\": {}}"'


@pytest.fixture(scope="module")
def llm():
    import accrt

    with accrt.LLM(serve.simulated(chat_template=TEMPLATE, tool_parser="hermes")) as one:
        yield one


def test_a_parser_without_a_server():
    """Wherever a text is cut, its calls are the same; what is none is text."""
    from accrt.serve.calls import Calls, join

    text = 'Hm <tool_call>{"name": "f", "arguments": {"a": "é"}}</tool_call><tool_call>{"name": "g"}</tool_call> <too'
    for step in (1, 2, 7, 1000):
        parser, content, calls = Calls(tools.FORMS["hermes"]), "", []
        pieces = [text[at : at + step] for at in range(0, len(text), step)]
        for i, piece in enumerate(pieces):
            found = parser.push(piece, last=i + 1 == len(pieces))
            content += found.text
            join(calls, found.calls)
        assert content == "Hm <too"
        assert [call["function"] for call in calls] == [{"name": "f", "arguments": '{"a": "é"}'}, {"name": "g", "arguments": "{}"}]
        with pytest.raises(Exception, match="the text has ended"):
            parser.push("x")


@pytest.mark.parametrize("form", tools.FORMS)
def test_forced_calls_in_this_process(form):
    """The same as over HTTP."""
    import accrt

    pytest.importorskip("llguidance")
    loaded = serve.simulated(chat_template=TEMPLATE, tool_parser=form)
    asked = {"tools": [WEATHER, TIME], "tool_choice": {"type": "function", "function": {"name": "weather"}}, "max_tokens": 400, "seed": 1}
    messages = [{"role": "user", "content": "x"}]
    with accrt.LLM(loaded) as one:
        output = one.chat(messages, **asked)
        (call,) = output.tool_calls
        assert output.finish_reason == "tool_calls" and call["type"] == "function" and call["id"] and call["function"]["name"] == "weather"
        assert json.loads(call["function"]["arguments"])["days"] >= 1 and not output.text.strip()
        again = one.chat([*messages, output.message, {"role": "tool", "tool_call_id": call["id"], "content": "rain"}], max_tokens=5)
        assert again.tool_calls == [] and again.message == {"role": "assistant", "content": again.text}
        pieces = list(one.stream_chat(messages, **asked))
        assert pieces[-1].finish_reason == "tool_calls" and not "".join(piece.text for piece in pieces).strip()
        arguments = "".join(entry["function"]["arguments"] for piece in pieces for entry in piece.tool_calls)
        assert arguments == call["function"]["arguments"]
        if form != "hermes":
            return
        with serve_http.served(check_descriptors=False, model={"chat_template": TEMPLATE, "tool_parser": form}) as server:
            body = Answer(server.raw(post("/v1/chat/completions", {"messages": messages, **asked}))).json["choices"][0]["message"]["tool_calls"]
        assert [one["function"] for one in body] == [call["function"]]


def test_parallel_calls_in_this_process(llm):
    pytest.importorskip("llguidance")
    asked = {"tools": [WEATHER, TIME], "max_tokens": 400, "seed": 1}
    messages = [{"role": "user", "content": "x"}]
    with pytest.raises(serve.BadParameter, match="guided_grammar and tools with tool_choice auto"):
        llm.chat(messages, **asked, guided_grammar=TWO)
    required = {**asked, "tool_choice": "required", "n": 2}
    output = llm.chat(messages, **required, parallel_tool_calls=False)
    for completion in output.completions:
        (call,) = completion.tool_calls
        assert call["function"]["name"] in ("weather", "time")
    with pytest.raises(serve.BadParameter, match="tool_choice is 'required', but there are no tools"):
        llm.chat(messages, tool_choice="required")
    assert llm.chat(messages, chat_template_kwargs={"tools": [TIME]}, max_tokens=1).prompt_token_ids[:5] == list(b"time;")
    with pytest.raises(serve.BadParameter, match="chat_template_kwargs is 5"):
        llm.chat(messages, chat_template_kwargs=5)
    with pytest.raises(serve.BadParameter, match=r"tools\[0\] is 5"):
        llm.stream_chat(messages, tools=[5])
