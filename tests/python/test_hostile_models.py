"""Folders of models that somebody made to harm: each file of theirs is read or refused in words, in
time and memory that follow from its size, and a chat template ends."""
from __future__ import annotations

import json
import os
import re
import resource
import signal
import struct
import threading
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


#: Each takes gigabytes where nothing ends it, by another operation of Jinja's or Python's.
LARGE = [
    "{{ 'a' * 2**33 }}", "{% set x = 'a' * 2**30 %}{% set y = x ~ x ~ x ~ x %}{{ 1 }}", "{{ [0] * 2**30 }}", "{{ '{:>8000000000}'.format(1) }}", "{{ '%8000000000d' % 1 }}",
    "{{ 'a'.ljust(2**33) }}", "{{ 'a'.zfill(2**33) }}", "{{ '\\t'.expandtabs(2**30 * 2 - 1) ~ '\\t'.expandtabs(2**30 * 2 - 1) }}", "{{ 'a'|center(2**33) }}",
    "{{ lipsum(n=10**4, min=10**4, max=10**4 + 1) }}", "{{ 'a'|indent(2**33, first=true) }}", "{{ [1, [1]]|tojson(indent=2**33) }}", "{{ (2**20 * 'ab').replace('a', 2**14 * 'c') }}", "{{ (2**14 * 'a').join(2**20 * 'b') }}",
    "{{ range(99999)|map('center', 99999)|list|length }}", "{{ range(99999)|batch(2**30, 0)|list|length }}", "{{ range(9)|slice(2**30)|list|length }}",
    "{% set n = namespace(x='a' * 99) %}{% for i in range(99) %}{% set n.x = n.x + n.x %}{% endfor %}", "{{ 2 ** (2 ** 36) }}",
    "{% set n = namespace(x=[]) %}{% for i in range(99999) %}{% set n.x = [n.x, 'a' * i] %}{% endfor %}", "{% for i in range(99999) %}{{ 'a' * 99999 }}{% endfor %}",
    "{% set x %}{% for i in range(99999) %}{{ 'a' * 99999 }}{% endfor %}{% endset %}{{ x|length }}", "{{ dict(messages[0], x='a' * 2**33) }}", "{{ messages[0].content * 2**32 }}",
]  # fmt: skip


def peak_of_children():
    """KiB, of the largest one that has ended."""
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss


@pytest.mark.parametrize("source", LARGE)
def test_the_memory_of_a_template_has_an_end(monkeypatch, source):
    """In a process of its own, and as an answer."""
    pytest.importorskip("jinja2")
    monkeypatch.setattr(text, "RENDER_BYTES", 128 << 20)
    monkeypatch.setattr(text, "RENDERED_BYTES", 4 << 20)
    monkeypatch.setattr(text, "RENDER_SECONDS", 5.0)
    own, before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, peak_of_children()
    try:
        template = text.ChatTemplate(source)
    except ValueError as error:  # its constants are calculated when it is read
        assert re.search("cannot be read: it takes (more than 128 MiB of memory|longer than 5 s)", str(error))
    else:
        with pytest.raises(serve.BadParameter, match="takes more than 128 MiB of memory|makes more than 4 MiB|too large|ended the process|longer than 5 s|fails with") as caught:
            template.render(MESSAGES)
        assert len(str(caught.value)) < 5000
        del template
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - own < 64 << 10
    assert peak_of_children() <= max(before, 400 << 10)


def test_templates_go_on_after_a_limit():
    """A process that was ended is replaced, and none is left when the template is dropped."""
    pytest.importorskip("jinja2")
    template = text.ChatTemplate("{% if messages[0].content == 'x' %}{{ 'a' * 2**40 }}{% endif %}{{ messages[0].content }}")
    for content in ("1", "x", "2", "x", "3"):
        if content == "x":
            with pytest.raises(serve.BadParameter, match="takes more than 512 MiB of memory with these messages"):
                template.render([{"role": "user", "content": content}])
        else:
            assert template.render([{"role": "user", "content": content}]) == content
    pids = [process._process.pid for process in template._helper._idle]
    assert len(pids) == 1
    os.kill(pids[0], signal.SIGKILL)  # by somebody else
    with pytest.raises(serve.BadParameter, match="ended the process that runs it"):
        template.render(MESSAGES)
    assert template.render(MESSAGES) == "hi"
    pid = template._helper._idle[0]._process.pid
    del template
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_many_threads_and_a_fork_render_at_once():
    pytest.importorskip("jinja2")
    template, wrong = text.ChatTemplate("{{ messages[0].content * 100 }}"), []

    def renders(name):
        for i in range(30):
            content = f"{name}.{i} "
            if template.render([{"role": "user", "content": content}]) != content * 100:
                wrong.append(content)

    threads = [threading.Thread(target=renders, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and len(template._helper._idle) <= (os.cpu_count() or 1)
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if template.render([{"role": "user", "content": "child"}]) == "child" * 100 else 1)
        finally:
            os._exit(2)
    assert template.render([{"role": "user", "content": "parent"}]) == "parent" * 100
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert template.render([{"role": "user", "content": "parent"}]) == "parent" * 100


def test_names_that_are_no_json_are_refused():
    pytest.importorskip("jinja2")
    template = text.ChatTemplate("{{ x }}")
    with pytest.raises(serve.BadParameter, match="are no JSON: Object of type object is not JSON serializable"):
        template.render(MESSAGES, {"x": object()})
    assert template.render(MESSAGES, {"x": [1, "\ud83d\ude00"]}) == "[1, '\U0001f600']"
