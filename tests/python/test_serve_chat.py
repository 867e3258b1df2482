"""What a conversation becomes for the model: messages that go on, roles, reasoning. And what a
client is told whose request is wrong, in the words of JSON."""

from __future__ import annotations

import json

import pytest
import serve_http
from serve_http import Answer, post

serve_http.need_server()

import accrt  # noqa: E402
from accrt import serve  # noqa: E402
from accrt.serve import requests, text  # noqa: E402

pytestmark = pytest.mark.quick_kernels  # in a run of the whole folder

PLAIN = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</{{ m.role }}>{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
TRIMMED = PLAIN.replace("m.content", "m.content | trim")
USER = {"role": "user", "content": "x"}


def prompt_of(template, messages, **more):
    """The text that a chat gives the model."""
    one = text.Text(text.Bytes(), text.ChatTemplate(template))
    try:
        (request,) = requests.chat({"messages": messages, **more}, one, ["model"], 0).requests
        found = bytes(request._prompt).decode()
        counted = requests.tokenize({"messages": messages, **more}, one, ["model"])
        assert bytes(counted["tokens"]).decode() == found
        return found
    finally:
        one.close()


# ---- messages that go on -------------------------------------------------------------------------


@pytest.mark.parametrize("template, said, prompt", [
    (PLAIN, "The sky", "The sky"), (PLAIN, " The sky is  ", " The sky is  "), (TRIMMED, " The sky is  ", "The sky is"), (PLAIN, "x", "x"),
])  # fmt: skip
def test_the_last_message_goes_on(template, said, prompt):
    messages = [USER, {"role": "assistant", "content": said}]
    assert prompt_of(template, messages, continue_final_message=True) == "<user>x</user><assistant>" + prompt
    assert prompt_of(template, messages, continue_final_message=True, add_generation_prompt=False) == "<user>x</user><assistant>" + prompt


def test_a_prompt_without_the_head_of_an_answer():
    assert prompt_of(PLAIN, [USER], add_generation_prompt=False) == "<user>x</user>"
    assert prompt_of(PLAIN, [USER], add_generation_prompt=True, continue_final_message=False) == prompt_of(PLAIN, [USER]) == "<user>x</user><assistant>"


@pytest.mark.parametrize("template, messages, more, parameter, words", [
    (PLAIN, [USER], {"add_generation_prompt": True}, "continue_final_message", "are both true"),
    (PLAIN, [USER], {}, "messages", "ends with a message of the assistant"),
    (PLAIN, [USER, {"role": "assistant", "content": ""}], {}, "messages", "with content"),
    (PLAIN, [USER], {"continue_final_message": "yes"}, "continue_final_message", "expected true or false"),
    ("{{ messages[0].content }}", [USER, {"role": "assistant", "content": "y"}], {}, "continue_final_message", "leaves out the last message"),
])  # fmt: skip
def test_what_cannot_go_on_is_refused(template, messages, more, parameter, words):
    with pytest.raises(serve.BadParameter, match=words) as caught:
        prompt_of(template, messages, **{"continue_final_message": True, **more})
    assert caught.value.parameter == parameter


def test_the_last_message_goes_on_in_this_process():
    messages = [USER, {"role": "assistant", "content": "Yes, "}]
    with accrt.LLM(serve.simulated(chat_template=PLAIN)) as llm:
        output = llm.chat(messages, continue_final_message=True, max_tokens=1)
        assert bytes(output.prompt_token_ids) == b"<user>x</user><assistant>Yes, "
        assert bytes(llm.chat([[USER]], add_generation_prompt=False, max_tokens=1)[0].prompt_token_ids) == b"<user>x</user>"
        assert list(llm.stream_chat(messages, continue_final_message=True, max_tokens=1))
        with pytest.raises(serve.BadParameter, match="are both true"):
            llm.stream_chat(messages, continue_final_message=True, add_generation_prompt=True)


# ---- roles and fields of messages ----------------------------------------------------------------


def test_a_developer_is_the_system_where_the_template_knows_none():
    """Many templates leave out what has a role that they do not know."""
    messages = [{"role": "developer", "content": "Be short."}, USER]
    assert prompt_of(PLAIN, messages) == "<system>Be short.</system><user>x</user><assistant>"
    assert prompt_of("{# developer #}" + PLAIN, messages) == "<developer>Be short.</developer><user>x</user><assistant>"


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_a_template_finds_earlier_reasoning_by_both_names(name):
    messages = [USER, {"role": "assistant", "content": "y", name: "because"}]
    assert prompt_of("{% for m in messages %}{{ m.reasoning }}{{ m.reasoning_content }}{% endfor %}", messages) == "because" * 2


def test_a_template_of_plans_finds_earlier_reasoning():
    """Command's name for it, in messages with calls."""
    messages = [USER, {"role": "assistant", "content": "", "reasoning": "because", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}]
    assert prompt_of("{# <|END_THINKING|> #}{% for m in messages %}{{ m.tool_plan }}{% endfor %}", messages) == "because"


def test_parts_of_contents():
    """OpenAI's clients send back what an assistant has refused."""
    parts = [{"type": "text", "text": "a"}, {"type": "refusal", "refusal": "no"}]
    assert prompt_of(PLAIN, [{"role": "assistant", "content": parts}, USER]) == "<assistant>ano</assistant><user>x</user><assistant>"
    for role, wrong in (("user", parts[1]), ("assistant", {"type": "refusal"}), ("user", {"type": "image_url", "image_url": {"url": "x"}}), ("user", "x")):
        with pytest.raises(serve.BadParameter, match=r"messages\[0\].content\[0\] is .*: only parts of type text are supported"):
            prompt_of(PLAIN, [{"role": role, "content": [wrong]}])


# ---- what a client is told -----------------------------------------------------------------------


@pytest.mark.parametrize("path, body, parameter, words", [
    ("chat/completions", {"messages": [USER], "temperature": True}, "temperature", "temperature is true, expected a number"),
    ("chat/completions", {"messages": [USER], "temperature": "hot"}, "temperature", "temperature is 'hot', expected a number"),
    ("chat/completions", {"messages": [USER], "stop": {"a": None}}, "stop", 'stop is {"a": null}, expected'),
    ("chat/completions", {"messages": [USER, {"role": None}]}, "messages[1].role", "messages[1].role is null, expected one of"),
    ("chat/completions", {"messages": None}, "messages", "messages is missing"),
    ("chat/completions", {"messages": [USER], "tools": [{"type": "custom", "custom": {}}]}, "tools[0]", '"type": "custom"'),
    ("chat/completions", {"messages": [USER], "functions": [{"name": "f"}]}, "functions", "which is not supported: tools are"),
    ("chat/completions", {"messages": [USER], "response_format": {"type": False}}, "response_format.type", "is false, expected text, json_object or json_schema"),
    ("chat/completions", {"messages": [USER], "modalities": ["text", "audio"]}, "modalities", '["text", "audio"], which is not supported'),
    ("completions", {"prompt": {"text": None}}, "prompt", 'prompt is {"text": null}, expected a string'),
    ("completions", {"prompt": "x", "n_predict": 3}, "n_predict", "did you mean max_tokens?"),
    ("completions", {"prompt": "x", "model": "a\tb\"c'"}, "model", "model is 'a\\tb\"c''; here is 'sim'"),
    ("embeddings", {"input": None}, "input", "input is missing"),
    ("chat/completions", {"prompt": "x"}, "prompt", "prompt is for /v1/completions; here there are messages"),
    ("completions", {"messages": [USER]}, "messages", "messages is for /v1/chat/completions; here there is a prompt"),
    ("completions", {"prompt": "x", "tools": []}, "tools", "tools is for /v1/chat/completions"),
    ("chat/completions", {"input": "x"}, "input", "/v1/responses"),
    ("chat/completions", {"messages": [USER], "json_schema": {}}, "json_schema", "did you mean guided_json?"),
])  # fmt: skip
def test_errors_have_the_words_of_json(path, body, parameter, words):
    with serve_http.served() as server:
        answer = Answer(server.raw(post("/v1/" + path, body)))
    assert answer.status == (404 if parameter == "model" else 400) and answer.error["param"] == parameter
    assert words in answer.error["message"]


@pytest.mark.parametrize("body, status, found", [
    ({"tokens": [97, 195, 169]}, 200, "aé"), ({"tokens": []}, 200, ""), ({"tokens": [255]}, 200, "\ufffd"), ({"tokens": [256]}, 400, "tokens[0] is 256"),
    ({"tokens": [-1]}, 400, "tokens[0] is -1"), ({"tokens": "ab"}, 400, "tokens is 'ab', expected a list"), ({"tokens": [True]}, 400, "expected"),
    ({}, 400, "tokens is missing"), ({"tokens": [97], "text": "a"}, 400, "unknown parameter 'text'"),
])  # fmt: skip
def test_detokenize(body, status, found):
    with serve_http.served() as server:
        answer = Answer(server.raw(post("/detokenize", body)))
    assert answer.status == status
    assert answer.json["prompt"] == found if status == 200 else found in answer.error["message"] and answer.error["param"]


def test_a_tokenizer_gives_its_special_tokens_back():
    tokenizers = pytest.importorskip("tokenizers")
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({"x": 0, "y": 1}, unk_token="x"))
    made.add_special_tokens(["<end>"])
    assert text.Tokenizer(made.to_str().encode()).decode([1, 0, 2]) == "y x <end>"


def test_python_gets_its_own_words():
    with accrt.LLM(serve.simulated()) as llm, pytest.raises(serve.BadParameter, match="temperature is True, expected a number"):
        llm.generate("x", temperature=True)


@pytest.mark.parametrize("value, words", [
    (None, "null"), (True, "true"), ({"a": [None, 1.5, "é"]}, '{"a": [null, 1.5, "é"]}'), ("it's", "'it's'"), ("\u2028\x1b\ud800", "'\\u2028\\u001b\\ud800'"),
    ([[[]]], "[[[]]]"), pytest.param(10**5000, "a value of type number", id="digits"),
])  # fmt: skip
def test_values_are_shown_as_json(value, words):
    from accrt.serve.parameters import json_words, shown

    with json_words():
        assert shown(value) == words
        assert len(shown(["x" * 1000] * 1000)) == 80
    assert shown(None) == "None"


def test_a_closed_llm_is_called_by_its_name():
    llm = accrt.LLM(serve.simulated(chat_template=PLAIN))
    stream = llm.stream("x")
    llm.close()
    for use in (lambda: llm.generate("x"), lambda: llm.chat([USER]), lambda: list(stream), lambda: list(llm.stream("x")), lambda: llm.adapters,
                lambda: llm.unload_adapter("a"), lambda: llm.engine.stats()):  # fmt: skip
        with pytest.raises(ValueError, match="this LLM is closed"):
            use()
    loaded = serve.simulated()
    engine = serve.Engine(loaded.model)
    engine.close()
    loaded.text.close()
    with pytest.raises(ValueError, match="this Engine is closed"):
        engine.stats()


# ---- schemas -------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", [{"type": "json_object", "schema": {"const": 5}}, {"type": "json_schema", "schema": {"const": 5}},
                                   {"type": "json_schema", "json_schema": {"name": "five", "strict": True, "schema": {"const": 5}}}])  # fmt: skip
def test_a_schema_is_read_where_clients_put_it(given):
    """llama.cpp has it beside the type: leaving it out without a word would be worse than an
    error."""
    from accrt.serve.parameters import response_format

    assert '"const": 5' in response_format("response_format", given).text


# ---- reasoning -----------------------------------------------------------------------------------

OPENS = PLAIN.replace("<assistant>{% endif %}", "<assistant><think>\n{% endif %}")
CLOSES = PLAIN + "{# </think> #}"
REASONS = 'start: "<think>\\n" /[a-z]{5}/ "\\n\\n" /[a-z]{3}/ "\\n</think>\\n\\n" /[A-Z]{4}/'


@pytest.mark.parametrize("template, name", [(PLAIN, "none"), (OPENS, "none"), (CLOSES, "think"), ("[/THINK]", "mistral"), ("</seed:think>", "seed_oss"),
                                            ("<|END_THINKING|>", "command"), ("<|end|>", "none"), ("<|start|>a<|channel|>final<|message|>", "harmony")])  # fmt: skip
def test_the_template_says_how_the_model_reasons(template, name):
    from accrt.serve import reasoning

    assert reasoning.detect(template, lambda mark: False) == name
    assert reasoning.detect(PLAIN, "</seed:think>".__eq__) == "seed_oss"
    with pytest.raises(ValueError, match="reasoning_parser is 'thinks', expected one of think, mistral, seed_oss, command, harmony, none"):
        serve.load("simulated:", reasoning_parser="thinks")


def test_marks_of_reasoning_may_be_tokens():
    """Special ones stay in the text: nothing would be found there, and what keeps its reasoning
    keeps its marks. Where reasoning is nothing special, they do not."""
    tokenizers = pytest.importorskip("tokenizers")
    from accrt import _ffi

    for special in (True, False):
        made = tokenizers.Tokenizer(tokenizers.models.WordLevel({"x": 0}, unk_token="x"))
        (made.add_special_tokens if special else made.add_tokens)(["[THINK]", "[/THINK]"])
        without = text.Text(text.Tokenizer(made.to_str().encode()), text.ChatTemplate(PLAIN), reasoning_parser="none")
        one = text.Text(text.Tokenizer(made.to_str().encode()), text.ChatTemplate(PLAIN))
        try:
            assert one.reasoning_parser == "mistral"
            work = requests.chat({"messages": [USER]}, one, ["model"], 0)
            assert bool(work.requests[0].struct.flags & _ffi.ACCRT_SERVE_SPECIAL) == special and work.reasoning == _ffi.ACCRT_HTTP_REASONING_BRACKETS
            work = requests.chat({"messages": [USER], "separate_reasoning": False}, one, ["model"], 0)
            assert bool(work.requests[0].struct.flags & _ffi.ACCRT_SERVE_SPECIAL) == special and work.reasoning == 0
            work = requests.chat({"messages": [USER]}, without, ["model"], 0)
            assert not work.requests[0].struct.flags & _ffi.ACCRT_SERVE_SPECIAL and work.reasoning == 0
        finally:
            one.close()
            without.close()


@pytest.mark.parametrize("said, goes_on, is_open", [
    ("x", False, False), ("what is <think>", False, False), ("<think>Hm", True, True), ("<think>", True, True), ("<think> \n", True, True), ("<think>Hm</think>Yes", True, False), ("Yes", True, False),
])  # fmt: skip
def test_the_prompt_may_have_opened_the_reasoning(said, goes_on, is_open):
    for template, opens in ((CLOSES, False), (OPENS + "{# </think> #}", not goes_on)):
        one = text.Text(text.Bytes(), text.ChatTemplate(template))
        try:
            messages = [USER, {"role": "assistant", "content": said}] if goes_on else [{"role": "user", "content": said}]
            found = one.chat(messages, goes_on=goes_on)
            assert found.opened == (is_open or opens) and found.begun == (is_open and not said.endswith(("<think>", "\n")))
        finally:
            one.close()


@pytest.mark.parametrize("said, keeps", [("<think>Hm", True), ("<think>Hm ", True), ("<think>", False), ("<think>\n", False)])
def test_reasoning_that_goes_on_keeps_its_first_bytes(said, keeps):
    """What a continuation begins with belongs to what was there: `Hm` and ` so` are no `Hmso`."""
    given = {"messages": [USER, {"role": "assistant", "content": said}], "continue_final_message": True, "max_tokens": 13,
             "logit_bias": {"32": 100}, "frequency_penalty": 2}  # fmt: skip
    with serve_http.served(model={"chat_template": CLOSES}) as server:
        whole = answered(server, separate_reasoning=False, **given).json["choices"][0]["message"]["content"]
        assert whole[0] == " " and whole[1:].strip(" \n\r\t")
        expected = whole.rstrip(" \n\r\t") if keeps else whole.strip(" \n\r\t")
        assert answered(server, **given).json["choices"][0]["message"]["reasoning"] == expected
    with accrt.LLM(serve.simulated(chat_template=CLOSES)) as llm:
        assert llm.chat(given.pop("messages"), seed=1, **{**given, "logit_bias": {32: 100}}).reasoning == expected


def answered(server, **body):
    return Answer(server.raw(post("/v1/chat/completions", {"messages": [USER], "max_tokens": 60, "seed": 1, **body})))


def test_reasoning_over_http():
    pytest.importorskip("llguidance")
    with serve_http.served(model={"chat_template": CLOSES}) as server:
        whole = answered(server, guided_grammar=REASONS).json
        message = whole["choices"][0]["message"]
        assert len(message["content"]) == 4 and message["content"].isupper()
        assert message["reasoning"] == message["reasoning_content"] and len(message["reasoning"]) == 10 and message["reasoning"][5:7] == "\n\n"
        # each byte is a token: those between the marks, and those of which the last ends no mark
        assert whole["usage"]["completion_tokens_details"] == {"reasoning_tokens": len("\n") + 10 + len("\n") + len("</think>") - 1}
        stream = [json.loads(event) for event in answered(server, guided_grammar=REASONS, stream=True, stream_options={"include_usage": True}).events[:-1]]
        deltas = [chunk["choices"][0]["delta"] for chunk in stream if chunk["choices"]]
        assert "".join(delta.get("content") or "" for delta in deltas) == message["content"]
        assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "".join(delta.get("reasoning", "") for delta in deltas) == message["reasoning"]
        details = whole["usage"]["completion_tokens_details"]
        assert stream[-1]["usage"]["completion_tokens_details"] == details
        plain = answered(server, guided_grammar=REASONS, separate_reasoning=False).json["choices"][0]["message"]
        assert plain["content"] == f"<think>\n{message['reasoning']}\n</think>\n\n{message['content']}" and "reasoning" not in plain
        less = answered(server, guided_grammar=REASONS, include_reasoning=False).json
        assert "reasoning" not in less["choices"][0]["message"] and less["choices"][0]["message"]["content"] == message["content"]
        assert less["usage"]["completion_tokens_details"] == details
        scored = answered(server, guided_grammar=REASONS, include_reasoning=False, logprobs=True).json
        assert "".join(one["token"] for one in scored["choices"][0]["logprobs"]["content"]) == message["content"]
        assert scored["usage"]["completion_tokens_details"] == details
        scored = answered(server, guided_grammar=REASONS, logprobs=True).json
        assert len(scored["choices"][0]["logprobs"]["content"]) == scored["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
        pieces = [json.loads(event)["choices"][0] for event in answered(server, guided_grammar=REASONS, logprobs=True, stream=True).events[:-1]]
        assert "".join(piece["delta"].get("content") or "" for piece in pieces) == message["content"]
        assert [one for piece in pieces for one in (piece["logprobs"] or {"content": []})["content"]] == scored["choices"][0]["logprobs"]["content"]


@pytest.mark.parametrize("said", ["<b>x", " \n Hi", "<thi", "<think>a</think>b"])
def test_an_answer_may_end_anywhere(said):
    """The beginning of an answer, which may be a mark, is not lost with the last token, and neither
    with a stop string that holds text back."""
    pytest.importorskip("llguidance")
    with serve_http.served(model={"chat_template": CLOSES}) as server:
        for count in range(1, len(said) + 1):
            text = said[:count]
            given = {"guided_grammar": "start: " + json.dumps(said), "max_tokens": count, "stop": ["no such word"]}
            _, opened, inner = text.partition("<think>")
            reasoning, _, after = inner.partition("</think>")
            message = answered(server, **given).json["choices"][0]["message"]
            deltas = [json.loads(event)["choices"][0]["delta"] for event in answered(server, stream=True, **given).events[:-1]]
            assert (message["content"] or "") == "".join(delta.get("content", "") for delta in deltas) == (after if opened else text)
            assert message.get("reasoning", "") == "".join(delta.get("reasoning", "") for delta in deltas) == reasoning
            given = {**given, "include_reasoning": False, "logprobs": True, "top_logprobs": 2}
            (less,) = answered(server, **given).json["choices"]
            scores = less["logprobs"]["content"]
            assert (less["message"]["content"] or "") == "".join(one["token"] for one in scores) == (after if opened else text)
            pieces = [json.loads(event)["choices"][0] for event in answered(server, stream=True, **given).events[:-1]]
            assert "".join(piece["delta"].get("content") or "" for piece in pieces) == (after if opened else text)
            assert [one for piece in pieces for one in (piece["logprobs"] or {"content": []})["content"]] == scores


def test_a_text_that_ends_within_the_reasoning():
    with serve_http.served(model={"chat_template": OPENS + "{# </think> #}"}) as server:
        answer = answered(server, max_tokens=20, n=2).json
        for choice in answer["choices"]:
            assert choice["message"]["content"] is None and choice["message"]["reasoning"] and choice["finish_reason"] == "length"
        assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] == answer["usage"]["completion_tokens"] == 40
        for count in (1, 20):
            (choice,) = answered(server, max_tokens=count, include_reasoning=False).json["choices"]
            assert choice["message"]["content"] is None and "reasoning" not in choice["message"]
        # nothing but white space, which is left out
        assert answered(server, max_tokens=1, logit_bias={"32": 100}).json["choices"][0]["message"]["content"] is None
        unseparated = answered(server, max_tokens=20, separate_reasoning=False).json
        assert unseparated["choices"][0]["message"]["content"] and "completion_tokens_details" not in unseparated["usage"]
        assert answered(server, separate_reasoning="no").error["param"] == "separate_reasoning"
    with serve_http.served(model={"chat_template": OPENS + "{# </think> #}", "reasoning_parser": "none"}) as server:
        assert answered(server, max_tokens=20).json["choices"][0]["message"]["content"]


def test_reasoning_in_this_process():
    pytest.importorskip("llguidance")
    with accrt.LLM(serve.simulated(chat_template=CLOSES)) as llm:
        output = llm.chat([USER], guided_grammar=REASONS, seed=1, max_tokens=60)
        assert len(output.text) == 4 and len(output.reasoning) == 10
        assert output.message == {"role": "assistant", "content": output.text, "reasoning_content": output.reasoning}
        pieces = list(llm.stream_chat([USER], guided_grammar=REASONS, seed=1, max_tokens=60))
        assert "".join(piece.text for piece in pieces) == output.text and "".join(piece.reasoning for piece in pieces) == output.reasoning
        plain = llm.chat([USER], guided_grammar=REASONS, seed=1, max_tokens=60, separate_reasoning=False)
        assert plain.reasoning == "" and plain.text == f"<think>\n{output.reasoning}\n</think>\n\n{output.text}"
        both = llm.chat([[USER], [USER]], guided_grammar=REASONS, seed=1, max_tokens=60)
        assert [one.reasoning for one in both] == [output.reasoning] * 2


@pytest.mark.parametrize("given, fits, fails", [
    ({"guided_regex": "[a-c]+/\\d"}, "ab/3", "x"), ({"guided_choice": ["yes", "no"]}, "yes", "maybe"),
    ({"response_format": {"type": "json_object"}}, '{"a": 1}', "[1]"), ({"structured_outputs": {"json": {"type": "integer"}}}, "17", '"a"'),
])  # fmt: skip
def test_a_grammar_holds_behind_reasoning_that_the_prompt_opened(given, fits, fails):
    llguidance = pytest.importorskip("llguidance")
    from accrt.serve import reasoning
    from accrt.serve.parameters import checked, grammar_of

    tokenizer = llguidance.LLTokenizer("byte")

    def accepts(grammar, said):
        matcher = llguidance.LLMatcher(tokenizer, grammar.text)
        assert not matcher.get_error()
        return matcher.try_consume_tokens(list(said.encode())) == len(said.encode()) and matcher.is_accepting()

    found = reasoning.Asked(reasoning.FORMS["think"], True, False)
    grammar = reasoning.behind(grammar_of(checked(given)), found, lambda mark: None)
    assert grammar.kind == "lark"
    for before in ("</think>", "Hm. < </thin {\n</think>\n\n", "é\n</think>"):
        assert accepts(grammar, before + fits) and not accepts(grammar, before + fails), before
    assert not accepts(grammar, fits) and not accepts(grammar, "a</think>b</think>" + fits)


def test_a_grammar_of_ones_own_is_of_the_whole_text():
    """Its rules may have any names."""
    one = text.Text(text.Bytes(), text.ChatTemplate(OPENS + "{# </think> #}"))
    try:
        seen = []
        work = requests.chat({"messages": [USER], "guided_grammar": 'start: "a"'}, one, ["model"], 0, seen.append)
        assert seen[0].text == 'start: "a"' and work.reasoning == 1
    finally:
        one.close()


_CALLED = {"type": "function", "function": {"name": "f"}}


@pytest.mark.parametrize("given, parsers, is_behind", [
    ({"guided_regex": "[a-c]+"}, {}, True), ({"response_format": {"type": "json_object"}}, {}, True),
    ({"tools": [_CALLED], "tool_choice": "required"}, {"tool_parser": "hermes"}, True),
    # such calls are found at the beginning of the text alone
    ({"tools": [_CALLED], "tool_choice": "required"}, {"tool_parser": "llama3_json"}, False),
    ({"guided_grammar": 'start: "a"'}, {}, False), ({"guided_regex": "[a-c]+"}, {"reasoning_parser": "none"}, False),
])  # fmt: skip
def test_a_grammar_holds_behind_reasoning_that_stays_text(given, parsers, is_behind):
    found = []
    for template in (OPENS, PLAIN):
        one = text.Text(text.Bytes(), text.ChatTemplate(template + "{# </think> #}"), **parsers)
        try:
            assert requests.chat({"messages": [USER], "separate_reasoning": False, **given}, one, ["model"], 0, found.append).reasoning == 0
            if is_behind and template == OPENS:
                requests.chat({"messages": [USER], **given}, one, ["model"], 0, found.append)
                assert found.pop() == found[0]
        finally:
            one.close()
    assert (found[0] != found[1]) == is_behind and ("thoughts" in found[0].text) == is_behind


def test_reasoning_that_stays_text_is_free():
    pytest.importorskip("llguidance")
    for parser, is_free in (("think", True), ("none", False)):
        with serve_http.served(model={"chat_template": OPENS, "reasoning_parser": parser}) as server:
            content = answered(server, guided_choice=["yes"], separate_reasoning=False, max_tokens=20).json["choices"][0]["message"]["content"]
            assert (content != "yes") == is_free


def test_the_openai_client_reads_reasoning_and_errors():
    openai = pytest.importorskip("openai")
    pytest.importorskip("llguidance")
    with serve_http.served(check_descriptors=False, model={"chat_template": CLOSES}) as server:
        with openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="x") as client:
            asked = dict(model="sim", messages=[USER], max_completion_tokens=60, seed=1, extra_body={"guided_grammar": REASONS})
            answer = client.chat.completions.create(**asked)
            message = answer.choices[0].message
            assert message.reasoning_content == message.reasoning and len(message.reasoning) == 10 and len(message.content) == 4
            assert answer.usage.completion_tokens_details.reasoning_tokens == 1 + 10 + 1 + 7
            chunks = list(client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
            deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
            assert "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas) == message.reasoning
            assert "".join(delta.content or "" for delta in deltas) == message.content
            assert chunks[-1].usage.completion_tokens_details.reasoning_tokens == 19
            again = [USER, message.model_dump(exclude_none=True), USER]
            assert client.chat.completions.create(**{**asked, "messages": again}).choices[0].message.content
            with pytest.raises(openai.BadRequestError) as caught:
                client.chat.completions.create(**{**asked, "temperature": "hot"})
            assert caught.value.param == "temperature" and "temperature is 'hot', expected a number" in caught.value.message


def test_marks_around_the_answer_are_left_out():
    """Command's, also in streams."""
    pytest.importorskip("llguidance")
    say = 'start: "<|START_THINKING|>" /[a-z]{4}/ "<|END_THINKING|><|START_RESPONSE|>" /[A-Z]{4}/ "<|END_RESPONSE|>"'
    with serve_http.served(model={"chat_template": PLAIN + "{# <|END_THINKING|> #}"}) as server:
        message = answered(server, guided_grammar=say, max_tokens=120).json["choices"][0]["message"]
        assert len(message["content"]) == 4 and message["content"].isupper() and len(message["reasoning"]) == 4
        deltas = [json.loads(event)["choices"][0]["delta"] for event in answered(server, guided_grammar=say, max_tokens=120, stream=True).events[:-1]]
        assert "".join(delta.get("content") or "" for delta in deltas) == message["content"]
        assert "".join(delta.get("reasoning") or "" for delta in deltas) == message["reasoning"]


# ---- messages with channels, as GPT-OSS writes them ----------------------------------------------

#: A template that, as GPT-OSS's does, takes reasoning as `thinking`, and one text beside calls.
CHANNELS = """{%- for m in messages %}{% if m.role == 'assistant' %}{% if m.tool_calls and m.thinking and m.content %}{{ raise_exception('both') }}{% endif -%}
{% if m.thinking %}<|start|>assistant<|channel|>analysis<|message|>{{ m.thinking }}<|end|>{% endif %}{% for c in m.tool_calls or [] -%}
<|start|>assistant to=functions.{{ c.function.name }}<|channel|>commentary json<|message|>{{ c.function.arguments|tojson }}<|call|>
{%- else %}<|start|>assistant<|channel|>final<|message|>{{ m.content }}<|end|>{% endfor %}
{%- else %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endif %}{% endfor %}{% if add_generation_prompt %}<|start|>assistant{% endif %}"""
ADD = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "integer", "minimum": 1, "maximum": 9}},
       "required": ["a"], "additionalProperties": False}}}  # fmt: skip
SAYS = 'start: "<|channel|>analysis<|message|>" /[a-z]{5}/ " \\n<|end|><|start|>assistant<|channel|>final<|message|>" /[A-Z]{4}/ "\\n"'


def test_a_conversation_with_channels():
    """What an answer gave is taken back: reasoning by the template's name, also beside calls."""
    call = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    said = {"role": "assistant", "content": "Yes.", "reasoning_content": "Hm."}
    head = "<|start|>user<|message|>x<|end|>"
    assert prompt_of(CHANNELS, [USER, said]) == (
        head + "<|start|>assistant<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes.<|end|><|start|>assistant")
    for content, thinking in ((None, "Hm."), ("I add.", "Hm.\nI add.")):
        assert prompt_of(CHANNELS, [USER, {**said, "content": content, "tool_calls": [call]}, {"role": "tool", "tool_call_id": "call_1", "content": "2"}]) == (
            f'{head}<|start|>assistant<|channel|>analysis<|message|>{thinking}<|end|><|start|>assistant to=functions.add<|channel|>commentary json<|message|>{{"a": 1}}<|call|>'
            "<|start|>tool<|message|>2<|end|><|start|>assistant")  # fmt: skip
    goes_on = prompt_of(CHANNELS, [USER, {"role": "assistant", "content": "Yes, "}], continue_final_message=True)
    assert goes_on.endswith("<|start|>assistant<|channel|>final<|message|>Yes, ")


def test_channels_are_told_apart():
    pytest.importorskip("llguidance")
    given = {"guided_grammar": SAYS, "max_tokens": 120}
    with serve_http.served(model={"chat_template": CHANNELS}) as server:
        whole = answered(server, **given).json
        message, usage = whole["choices"][0]["message"], whole["usage"]
        assert len(message["content"]) == 5 and message["content"].strip().isupper() and len(message["reasoning"]) == 5 and message["reasoning"].islower()
        assert message["reasoning"] == message["reasoning_content"] and whole["choices"][0]["finish_reason"] == "stop"
        # each byte is a token: those of the message, and those of which the last ends no mark
        assert usage["completion_tokens_details"] == {"reasoning_tokens": 7 + len("<|end|")}
        deltas = [json.loads(event)["choices"][0]["delta"] for event in answered(server, **given, stream=True).events[:-1]]
        assert "".join(delta.get("content") or "" for delta in deltas) == message["content"]
        assert "".join(delta.get("reasoning_content") or "" for delta in deltas) == message["reasoning"]
        less = answered(server, **given, include_reasoning=False, logprobs=True).json
        assert "reasoning" not in less["choices"][0]["message"] and less["choices"][0]["message"]["content"] == message["content"]
        assert "".join(one["token"] for one in less["choices"][0]["logprobs"]["content"]) == message["content"]
        assert less["usage"]["completion_tokens_details"] == usage["completion_tokens_details"]
        scored = answered(server, **given, logprobs=True).json
        assert len(scored["choices"][0]["logprobs"]["content"]) == usage["completion_tokens"]
        cut = answered(server, **{**given, "max_tokens": 40}).json["choices"][0]
        assert cut["finish_reason"] == "length" and cut["message"]["content"] is None
        refused = answered(server, tools=[ADD], separate_reasoning=False)
        assert refused.status == 400 and "harmony" in refused.error["message"]


@pytest.mark.parametrize("given, call", [
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": {"type": "integer", "minimum": 1, "maximum": 9}}}}, False),
    ({"tools": [ADD], "tool_choice": "required"}, True),
])  # fmt: skip
def test_a_grammar_is_of_the_last_channel_alone(given, call):
    """Before it may come any messages of reasoning."""
    llguidance = pytest.importorskip("llguidance")
    found = []
    one = text.Text(text.Bytes(), text.ChatTemplate(CHANNELS), "harmony" if call else None)
    try:
        assert one.reasoning_parser == one.tool_parser == "harmony"
        work = requests.chat({"messages": [USER], **given}, one, ["model"], 0, found.append)
        assert work.reasoning and bool(work.tools) == call
    finally:
        one.close()
    tokenizer = llguidance.LLTokenizer("byte")

    def accepts(said):
        matcher = llguidance.LLMatcher(tokenizer, found[0].text)
        assert not matcher.get_error()
        return matcher.try_consume_tokens(list(said.encode())) == len(said.encode()) and matcher.is_accepting()

    final, called = "<|channel|>final<|message|>", "<|channel|>commentary to=functions.add <|constrain|>json<|message|>"
    fits = [called + '{"a": 3}'] if call else [final + "7", "<|channel|>final <|constrain|>json<|message|>7"]
    fails = [called + '{"a": 30}', called + "7", final + "7", "7"] if call else [final + "x", called + '{"a": 3}', "7"]
    for before in ("", "<|channel|>analysis<|message|>Hm. <|channel|> é {<|end|><|start|>assistant",
                   "<|channel|>analysis<|message|><|end|><|start|>assistant<|channel|>commentary<|message|>I look.<|end|><|start|>assistant"):  # fmt: skip
        assert all(accepts(before + one) for one in fits) and not any(accepts(before + one) for one in fails), before
    assert not accepts(f"<|channel|>analysis<|message|>{fits[0]}")


def test_calls_or_an_answer_in_channels():
    """With tools and a schema the model chooses between a call and such JSON."""
    llguidance = pytest.importorskip("llguidance")
    found = []
    one = text.Text(text.Bytes(), text.ChatTemplate(CHANNELS))
    try:
        requests.chat({"messages": [USER], "tools": [ADD], "response_format": {"type": "json_object"}}, one, ["model"], 0, found.append)
    finally:
        one.close()
    tokenizer = llguidance.LLTokenizer("byte")
    for said, fits in (('<|channel|>final<|message|>{"b": 1}', True), ('<|channel|>commentary to=functions.add <|constrain|>json<|message|>{"a": 1}', True),
                       ('<|channel|>commentary to=functions.sub <|constrain|>json<|message|>{"a": 1}', False), ("<|channel|>final<|message|>1", False)):  # fmt: skip
        matcher = llguidance.LLMatcher(tokenizer, found[0].text)
        assert not matcher.get_error()
        assert (matcher.try_consume_tokens(list(said.encode())) == len(said) and matcher.is_accepting()) == fits, said


def test_marks_of_channels_that_are_tokens():
    """They stay in the text, are named in grammars by their numbers, and two of them end it."""
    tokenizers = pytest.importorskip("tokenizers")
    from accrt import _ffi

    marks = ["<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|return|>", "<|call|>"]
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({"x": 0}, unk_token="x"))
    made.add_special_tokens(marks)
    number = {mark: 1 + i for i, mark in enumerate(marks)}
    one = text.Text(text.Tokenizer(made.to_str().encode()), text.ChatTemplate(CHANNELS))
    try:
        found = []
        (request,) = requests.chat({"messages": [USER], "stop_token_ids": [0], "response_format": {"type": "json_object"}}, one, ["model"], 0, found.append).requests
        assert request.struct.flags & _ffi.ACCRT_SERVE_SPECIAL
        assert [request.struct.stop_tokens[i] for i in range(request.struct.stop_token_count)] == [0, number["<|return|>"], number["<|call|>"]]
        assert all(f"<[{number[mark]}]>" in found[0].text for mark in marks[:5]) and "<|" not in found[0].text
        (request,) = requests.chat({"messages": [USER], "ignore_eos": True}, one, ["model"], 0).requests
        assert request.struct.stop_token_count == 0
        (request,) = requests.chat({"messages": [USER], "stop_token_ids": [0] * 1023 + [number["<|call|>"]], "ignore_eos": True}, one, ["model"], 0).requests
        assert request.struct.stop_token_count == 1024
        (request,) = requests.chat({"messages": [USER], "stop_token_ids": [0] * 1022 + [number["<|call|>"]]}, one, ["model"], 0).requests
        assert [request.struct.stop_tokens[i] for i in range(1021, 1024)] == [0, number["<|call|>"], number["<|return|>"]]
        with pytest.raises(serve.BadParameter, match="stop_token_ids has 1023 tokens, expected at most 1022: 2 more end the texts of this model") as caught:
            requests.chat({"messages": [USER], "stop_token_ids": [0] * 1023}, one, ["model"], 0)
        assert caught.value.parameter == "stop_token_ids"
        (request,) = requests.chat({"messages": [USER], "separate_reasoning": False}, one, ["model"], 0).requests
        assert request.struct.flags & _ffi.ACCRT_SERVE_SPECIAL  # headers are part of the content
        requests.chat({"messages": [USER], "tools": [ADD], "tool_choice": "required"}, one, ["model"], 0, found.append)
        assert "<|" not in found[1].text
    finally:
        one.close()


def test_calls_in_channels_in_this_process():
    pytest.importorskip("llguidance")
    say = 'start: "<|channel|>analysis<|message|>" /[a-z]{3}/ "<|end|><|start|>assistant<|channel|>commentary to=functions.add <|constrain|>json<|message|>{\\"a\\": " /[1-9]/ "}"'
    with accrt.LLM(serve.simulated(chat_template=CHANNELS)) as llm:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("accrt.serve.tools.Asked.grammar", lambda self, special, other: other)
            output = llm.chat([USER], tools=[ADD], guided_grammar=say, seed=1, max_tokens=150)
            pieces = list(llm.stream_chat([USER], tools=[ADD], guided_grammar=say, seed=1, max_tokens=150))
        (call,) = output.tool_calls
        assert call["function"]["name"] == "add" and json.loads(call["function"]["arguments"])["a"] in range(1, 10)
        assert output.finish_reason == "tool_calls" and output.text == "" and len(output.reasoning) == 3
        assert "".join(one["function"]["arguments"] for piece in pieces for one in piece.tool_calls) == call["function"]["arguments"]
        assert "".join(piece.reasoning for piece in pieces) == output.reasoning
        again = llm.chat([USER, output.message, {"role": "tool", "tool_call_id": call["id"], "content": "2"}], max_tokens=1)
        assert f"analysis<|message|>{output.reasoning}<|end|><|start|>assistant to=functions.add".encode() in bytes(again.prompt_token_ids)
        with pytest.raises(serve.BadParameter, match="harmony"):
            llm.chat([USER], tools=[ADD], separate_reasoning=False)
