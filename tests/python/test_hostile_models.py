"""Folders of models that somebody made to harm: each file of theirs is read or refused in words, in
time and memory that follow from its size, and a chat template ends."""
from __future__ import annotations

import json
import struct
import time

import pytest

import tiny_models as tiny
from accrt import models, serve
from accrt.models import Refused
from accrt.models._config import Config
from accrt.serve import text

LLAMA = tiny.CONFIGS["llama"]
DEEP = ["[" * 100_000 + "]" * 100_000, '{"a":' * 100_000 + "1" + "}" * 100_000, '{"x": ' + "[" * 100_000 + "]" * 100_000 + "}"]
TOKENIZER = tiny.byte_tokenizer()


class Enough(ValueError):
    """Nothing was refused."""


def opened(folder):
    def stop(*_):
        raise Enough

    models.open(folder, targets=("x86-64-v3",), check=stop)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tiny.write_folder(tmp_path / "model", LLAMA, tiny.tensors(LLAMA, 1))


def refused(folder, *words):
    with pytest.raises(Refused) as caught:
        opened(folder)
    message = str(caught.value)
    assert len(message) < 20_000 and not any(name in message for name in ("RecursionError", "AttributeError"))
    for word in words:
        assert word in message
    return message


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"])
@pytest.mark.parametrize("content", [*DEEP, "", "null", "1", '"x"', "{\0}", '{"a": ' + "9" * 5000 + "}", "\ufeff{", "{} x"], ids=range(11))
def test_a_file_that_is_no_object_is_refused_by_name(folder, name, content):
    (folder / name).write_text(content)
    refused(folder, name)


@pytest.mark.parametrize("template", [1, True, [1], {"a": 1}, [{"name": "default", "template": 1}], [{"name": ["x"], "template": {}}], ["x"], "\ud800"])
def test_a_chat_template_of_another_type_is_refused(folder, template):
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    if template in ([1], ["x"]):  # no template at all
        with pytest.raises(Enough):
            opened(folder)
    else:
        refused(folder, "tokenizer_config.json: chat_template: ")


@pytest.mark.parametrize("changes", [
    {"added_tokens": [1]}, {"added_tokens": "x"}, {"added_tokens": [{"id": 3}]}, {"added_tokens": [{"id": 10**30, "content": 5}]}, {"model": None}, {"model": "x"},
    {"model": {**TOKENIZER["model"], "vocab": [1]}}, {"model": {**TOKENIZER["model"], "vocab": {"a": "b"}}}, {"decoder": 3}, {"model": {**TOKENIZER["model"], "vocab": {"\ud800": 1}}},
], ids=range(10))  # fmt: skip
def test_a_tokenizer_of_another_form_is_refused_or_read(folder, changes):
    (folder / "tokenizer.json").write_text(json.dumps({**TOKENIZER, **changes}))
    with pytest.raises((Refused, Enough)) as caught:
        opened(folder)
    assert isinstance(caught.value, Enough) or "tokenizer.json: " in str(caught.value)


def test_what_stands_against_it_has_an_end(folder):
    """A header may name hundreds of thousands of tensors without bytes."""
    header = json.dumps({f"t{i}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for i in range(20_000)}).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    assert "more" in refused(folder).splitlines()[-1]


def test_points_are_gathered_in_linear_time():
    config, begin = Config({}), time.process_time()
    for i in range(200_000):
        config.refuse(f"tensor t{i}: this family has no use for it")
    assert len(config.points) == 200_000 and time.process_time() - begin < 10  # else 400 s


@pytest.mark.parametrize("changes", [{"hidden_size": 10**9}, {"head_dim": 2**31 - 1}])
def test_a_size_takes_no_memory_before_it_is_checked(tmp_path, monkeypatch, changes):
    import tracemalloc

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    name = "phi3-long" if "hidden_size" in changes else "llama"
    folder = tiny.write_folder(tmp_path / "model", {**tiny.CONFIGS[name], **changes}, tiny.tensors(tiny.CONFIGS[name], 1))
    tracemalloc.start()
    try:
        refused(folder, "head_dim")
        assert tracemalloc.get_traced_memory()[1] < 200 << 20
    finally:
        tracemalloc.stop()


def test_a_safetensors_file_without_a_configuration_is_refused(tmp_path):
    header = b'{"__metadata__": {"x": "' + b"[" * 50_000 + b'"}}'
    (tmp_path / "x.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    with pytest.raises(Refused, match="without a configuration"):
        opened(tmp_path / "x.safetensors")


# ---- chat templates ------------------------------------------------------------------------------

MESSAGES = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize("source", ["{{ " + "(" * 20_000 + "1" + ")" * 20_000 + " }}", "{% if 1 %}" * 5000 + "{% endif %}" * 5000, "{{ ", "{% nothing %}", "{{ 1 + }}"],
                         ids=range(5))
def test_a_template_that_cannot_be_read_is_a_value_error(source):
    pytest.importorskip("jinja2")
    with pytest.raises(ValueError, match="the chat template cannot be read: "):
        text.ChatTemplate(source)


@pytest.mark.parametrize("source", [
    "{% for i in range(99999) %}{% for j in range(99999) %}{{ '' }}{% endfor %}{% endfor %}", "{{ lipsum(n=1000000000) }}",
    "{% macro f(n) %}{% for i in range(9) %}{{ f(n - 1) if n else '' }}{% endfor %}{% endmacro %}{{ f(30) }}"])  # fmt: skip
def test_a_template_without_an_end_is_ended(monkeypatch, source):
    pytest.importorskip("jinja2")
    monkeypatch.setattr(text, "RENDER_SECONDS", 0.5)
    begin = time.monotonic()
    with pytest.raises(serve.BadParameter, match="takes longer than 0.5 seconds"):
        text.ChatTemplate(source).render(MESSAGES)
    assert time.monotonic() - begin < 60
    assert text.ChatTemplate("{{ messages[0].content }}").render(MESSAGES) == "hi"


@pytest.mark.parametrize("source", ["{{ 'a' * 2**62 }}", "{{ '{:>4611686018427387904}'.format(1) }}", "{% include '/etc/passwd' %}",
                                    "{{ messages.append(1) }}", "{{ 1 / 0 }}", "{{ cycler.__init__.__globals__ }}"])  # fmt: skip
def test_what_a_template_may_not_do_is_the_requests_failure(source):
    pytest.importorskip("jinja2")
    with pytest.raises(serve.BadParameter) as caught:
        print(text.ChatTemplate(source).render(MESSAGES))
    assert caught.value.parameter == "messages"


def test_many_limits_at_once_leave_nothing_behind():
    """The limit that is over just when the work is: one of both, and nothing afterwards."""
    ends = {"work": 0, "late": 0}
    for i in range(200):
        try:
            text.within(0.001, lambda: time.sleep(0.001 * (i % 3) / 2) or "x")
            ends["work"] += 1
        except TimeoutError:
            ends["late"] += 1
    assert sum(ends.values()) == 200 and sum(range(100_000)) > 0
