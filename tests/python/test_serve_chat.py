"""What a conversation becomes for the model: messages that go on, roles, reasoning. And what a
client is told whose request is wrong, in the words of JSON."""

from __future__ import annotations

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
])  # fmt: skip
def test_errors_have_the_words_of_json(path, body, parameter, words):
    with serve_http.served() as server:
        answer = Answer(server.raw(post("/v1/" + path, body)))
    assert answer.status == (404 if parameter == "model" else 400) and answer.error["param"] == parameter
    assert words in answer.error["message"]


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
