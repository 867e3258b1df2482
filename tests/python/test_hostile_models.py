"""Folders of models that somebody made to harm: each file of theirs is read or refused in words, in
time and memory that follow from its size, and a chat template ends."""
from __future__ import annotations

import json
import os
import random
import re
import signal
import struct
import subprocess
import sys
import threading
import time
import tracemalloc

import pytest

import family_models as family
import rotation
import tiny_models as tiny
from accrt import models, serve
from accrt.errors import InvalidFormatError
from accrt.models import Refused, _tokens
from accrt.models._config import MEANINGFUL, Config
from accrt.serve import text
from accrt.serve.embedding import pooling_of
from apart import Apart
from limited_processes import Watched

pytestmark = pytest.mark.quick_kernels  # in a run of the whole folder

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


def content_of(**changes):
    model = {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]}
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None, "pre_tokenizer": None, "post_processor": None,
            "decoder": None, "model": model, **changes}  # fmt: skip


def tokenizer_of(**changes):
    return text.Tokenizer(json.dumps(content_of(**changes)).encode())


BERT = {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None, "lowercase": True}
CUT = {"max_length": 2, "strategy": "LongestFirst", "stride": 0, "direction": "Right"}
FILLED = {"strategy": {"Fixed": 10**9}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 1, "pad_type_id": 0, "pad_token": "b"}


@pytest.mark.parametrize("changes", [{"truncation": CUT}, {"truncation": {**CUT, "max_length": 1, "stride": 5}}, {"padding": FILLED}, {"truncation": CUT, "padding": FILLED}])
def test_a_tokenizer_cuts_no_prompt_and_fills_none_up(changes):
    assert tokenizer_of(**changes).encode("abbaab") == [2, 1, 0, 2]


REPLACE = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 1000}
TWICE = {"type": "TemplateProcessing", "single": [{"Sequence": {"id": "A", "type_id": 0}}] * 70000, "pair": [], "special_tokens": {}}
ADDED = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "X", "type_id": 0}}] * 2000 + [{"Sequence": {"id": "A", "type_id": 0}}], "pair": [],
         "special_tokens": {"X": {"id": "X", "ids": [0] * 2000, "tokens": ["a"] * 2000}}}  # fmt: skip


def sequence(*parts, kind="normalizers"):
    return {"type": "Sequence", kind: list(parts)}


def untyped(part):
    """The same in an older form, which the package reads, too: its keys say what it is."""
    return {key: value for key, value in part.items() if key != "type"}


@pytest.mark.parametrize("changes, size", [
    ({"normalizer": sequence(*[REPLACE] * 3)}, 3 * 10**9),
    ({"normalizer": sequence(sequence(REPLACE, REPLACE), {**REPLACE, "pattern": {"Regex": ""}})}, 3003 * 10**6),
    ({"normalizer": REPLACE, "post_processor": {"type": "Sequence", "processors": [TWICE]}}, 21 * 10**7),
    ({"normalizer": sequence(*[{"type": "ByteLevel"}] * 30)}, 3 * 2**30),
    ({"pre_tokenizer": sequence(*[{"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": False}] * 15, kind="pretokenizers")}, 3 * 2**30),
    ({"pre_tokenizer": sequence(*[{"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always", "split": True}] * 20, kind="pretokenizers")}, 3 * 10**12),
    ({"normalizer": sequence(*[{"type": "Prepend", "prepend": "x" * 10**6}] * 70)}, 3 + 70 * 10**6),
    ({"normalizer": sequence(*[REPLACE, {"type": "NFKD"}] * 2, {"type": "Lowercase"}, {"type": "NFC"})}, 3 * 1000**2 * 11**2 * 2 * 3),
    ({"post_processor": ADDED}, 3 + 64 * 2000**2),
    ({"normalizer": sequence(*[untyped(REPLACE)] * 3)}, 3 * 10**9),
    ({"normalizer": {"normalizers": [{"prepend": "x" * 10**6}] * 70}}, 3 + 70 * 10**6),
    ({"normalizer": sequence({**REPLACE, "normalizers": []}, *[{**REPLACE, "pattern": {"Regex": "a"}, "normalizers": []}] * 2)}, 3 * 1000 * 1001**2),
    ({"normalizer": REPLACE, "post_processor": untyped(TWICE)}, 21 * 10**7),
    ({"normalizer": sequence(*[{**BERT, "type": "x"}] * 8)}, 3 * 12**8), ({"normalizer": sequence(*[{**BERT, "type": "CTC"}] * 8)}, 3 * 12**8),
], ids=range(15))  # fmt: skip
def test_a_tokenizer_that_lengthens_texts_without_end_is_not_followed(changes, size):
    """With the parts that the limit did not count, a text of 20 letters ended the process."""
    with pytest.raises(serve.parameters.BadParameter, match=f"a text of 3 characters is too long for this model's tokenizer, which can make {size} bytes of it"):
        tokenizer_of(**changes).encode("aaa")


@pytest.mark.parametrize("decoders, size", [
    ([REPLACE] * 3, 12 * 10**9), ([untyped(REPLACE)] * 3, 12 * 10**9), ([{**REPLACE, "pattern": {"Regex": ""}}] * 3, 12 * 1001**3), ([{"type": "BPEDecoder", "suffix": ""}] * 20, 12 * 3**20),
    ([{"type": "CTC", "pad_token": "x", "word_delimiter_token": "", "cleanup": True}] * 20, 12 * 3**20), ([{"type": "WordPiece", "prefix": "", "cleanup": False}] * 40, 12 * 2**40),
    ([{"type": "x", "suffix": ""}] * 20, 12 * 3**20), ([{"type": None, "suffix": ""}] * 20, 12 * 3**20), ([{"type": "Lowercase", "suffix": ""}] * 20, 12 * 3**20),
], ids=range(9))  # fmt: skip
def test_a_decoder_that_lengthens_texts_without_end_is_not_followed(decoders, size):
    """Six tokens ended the process. Each is a letter, and a space may stand before it."""
    made = tokenizer_of(decoder=sequence(*decoders, kind="decoders"))
    with pytest.raises(serve.parameters.BadParameter, match=f"6 tokens are too many for this model's tokenizer, which can make {min(size, 12 * 10**12) + 6 * 64} bytes of them"):
        made.decode([0, 1, 0, 1, 0, 1])


def test_tokens_that_become_a_text_are_few():
    """A list of 16 MB took 800 MiB."""
    made = tokenizer_of()
    with pytest.raises(serve.parameters.BadParameter, match="8000000 tokens are too many"):
        made.decode([0] * 8_000_000)
    assert made.decode([0, 1] * 200_000).split() == ["a", "b"] * 200_000


def test_honest_parts_are_followed():
    tokenizers = pytest.importorskip("tokenizers")
    steps = sequence({"type": "Prepend", "prepend": "\u2581"}, {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"})
    assert text.growth(steps) == (3, 9)
    assert tokenizer_of(normalizer=steps).encode("ab") == [2]
    split = {"type": "Split", "pattern": {"Regex": "a|b"}, "behavior": "Isolated", "invert": False}
    made = tokenizer_of(normalizer={"type": "NFC"}, pre_tokenizer=sequence(split, {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}, kind="pretokenizers"))
    assert made.encode("ab" * 10**6) == [0, 1] * 10**6
    words = ["a\u0390", "\ufdfa\u0130\U0001d160", " \u4e2d\u00e9", "\U0001d15e" * 3]
    for kind in (*text._TIMES, "Nmt", "StripAccents"):
        more = {"clean_text": True, "handle_chinese_chars": True, "strip_accents": True, "lowercase": True} if kind == "BertNormalizer" else {}
        inner = tokenizers.Tokenizer.from_str(json.dumps(content_of(normalizer={"type": kind, **more})))
        for word in words:
            assert len(inner.normalizer.normalize_str(word).encode()) <= text.growth({"type": kind}).of(len(word.encode())), kind


def test_panics_of_a_tokenizer_are_told_in_a_line(capfd):
    cycle = {"type": "BPE", "vocab": {"a": 0, "aa": 1}, "merges": ["a a", "aa a"]}
    missing = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "x", "type_id": 0}}], "pair": [], "special_tokens": {}}
    with pytest.raises((ValueError, text.TokenizerError), match="^[ -~]*$"):
        tokenizer_of(model=cycle).encode("aaaa")
    for changes in ({"post_processor": missing}, {"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False}}):
        with pytest.raises((ValueError, text.TokenizerError), match="^[ -~]*$"):
            tokenizer_of(**changes).encode("a" * 40 + "b")


@pytest.mark.parametrize("source", ["{{ raise_exception('\x1b[2Jevil\nline') }}", "{{ raise_exception('\u202e') }}", "{% for", "{{ '\x1b[2J' | nothing('\n') }}"])
def test_what_a_template_says_is_one_printable_line(source):
    with pytest.raises(ValueError) as caught:
        text.ChatTemplate(source).render([{"role": "user", "content": "a"}])
    assert str(caught.value).isprintable(), repr(str(caught.value))


@pytest.mark.parametrize("part, name", [("decoder", "decoders"), ("pre_tokenizer", "pretokenizers")])
def test_sequences_in_a_tokenizer_may_be_deep(part, name):
    """As deep as JSON is read, which may be deeper than Python calls."""
    for inner, found in (({"type": "ByteLevel"}, b" "), ({"type": "Fuse"}, "\u0120".encode())):
        for _ in range(100_000):
            inner = {"type": "Sequence", name: [inner]}
        tokenizer = {**TOKENIZER, "decoder": None, "pre_tokenizer": None, part: inner, "model": {"type": "BPE", "vocab": {"\u0120": 0}}, "added_tokens": []}
        assert _tokens.of_tokenizer(tokenizer, 1)[0] == [found]
        while "type" in inner and name in inner:  # a thing so deep is taken apart, not collected
            inner = inner.pop(name)[0]


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


# ---- every family --------------------------------------------------------------------------------

FAMILIES = sorted(family.recorded())
#: What no key of a configuration may be.
ODD = [0, -1, 2**31 - 1, 2**40, 10**30, 10**400, 0.5, 1e-300, float("nan"), float("inf"), True, "", "x", "\x1b[31m\n", [], [1], [[]], {}, {"a": 1}, ["full_attention"],
       {"rope_type": "yarn", "factor": 1e-300}, {"rope_type": ["x"]}, {"rope_type": "llama3", "factor": 0}, {"full_attention": 1, "sliding_attention": {"rope_theta": "x"}}]  # fmt: skip


def rewritten(folder, part=None, **changes):
    """The configuration of a folder, or a part of it, with other values."""
    config = json.loads((folder / "config.json").read_text())
    (config if part is None else config[part]).update(changes)
    (folder / "config.json").write_text(json.dumps(config))


def with_header(folder, tensors, content=b""):
    header = json.dumps(tensors).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + content)


def answered(folder):
    """What is refused, or nothing."""
    try:
        opened(folder)
    except Enough:
        return ""
    except Refused as error:
        return str(error)


def answered_apart(given):
    """In a process of its own, with the test's cache. A number is that of bytes to take."""
    folder, os.environ["XDG_CACHE_HOME"] = given
    return len(bytearray(b"x") * folder) if isinstance(folder, int) else answered(folder)


def process_apart(folder):
    good = tiny.write_folder(folder / "model", LLAMA, tiny.tensors(LLAMA, 1))
    return Apart("test_hostile_models:answered_apart", [str(good), str(folder / "cache")])


@pytest.fixture(scope="module")
def apart(tmp_path_factory):
    child = process_apart(tmp_path_factory.mktemp("good"))
    yield child
    child.end()


def refused_or_read(apart, folder, seconds=30):
    """Within limits that a file of this size is far from."""
    message, taken, peak = apart([str(folder), os.environ["XDG_CACHE_HOME"]])
    assert all(line.isprintable() and len(line) < 1200 for line in message.splitlines()) and len(message) < 300_000
    assert taken < seconds and peak < 1 << 20, "KiB"
    return message


def test_memory_that_a_folder_takes_is_seen(tmp_path):
    """Whatever this process had."""
    held, child = bytearray(b"x") * (1 << 28), process_apart(tmp_path)
    try:
        cache = os.environ["XDG_CACHE_HOME"]
        assert child([0, cache]).peak < 64 << 10 and child([1 << 28, cache]).peak >= 192 << 10 and held
    finally:
        child.end()


@pytest.mark.rotating(24)
@pytest.mark.parametrize("name", FAMILIES)
def test_keys_with_odd_values_are_refused_or_read(apart, tmp_path, monkeypatch, name):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    rng = random.Random(f"{rotation.seed()} {name}")
    folder = family.write(tmp_path / "model", name)[0]
    config = (folder / "config.json").read_text()
    part = "text_config" if "text_config" in family.CONFIGS[name] else None
    keys = sorted({*family.text_of(family.CONFIGS[name]), *MEANINGFUL} - {"model_type"})
    for _ in range(12):
        changes = {key: rng.choice(ODD) for key in rng.sample(keys, rng.choice((1, 1, 2)))}
        print(changes)
        (folder / "config.json").write_text(config)
        rewritten(folder, part, **changes)
        refused_or_read(apart, folder)
    for _ in range(6):
        changed = json.loads(config)
        places = list(within(changed))
        if not places:
            break
        inner, key = rng.choice(places)
        inner[key] = rng.choice(ODD)
        print(changed)
        (folder / "config.json").write_text(json.dumps(changed))
        refused_or_read(apart, folder)


def within(given):
    """The places of the values in the lists and objects of a configuration."""
    for value in given.values() if isinstance(given, dict) else given:
        if isinstance(value, (dict, list)):
            yield from ((value, key) for key in (value if isinstance(value, dict) else range(len(value))))
            yield from within(value)


def test_a_long_model_type_is_not_compared_with_the_known_ones(tmp_path):
    """Comparing took 48 bytes of memory for each letter."""
    folder = family.write(tmp_path / "model", FAMILIES[0])[0]
    rewritten(folder, model_type="x" * (4 << 20))
    tracemalloc.start()
    try:
        said = answered(folder)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert "model_type is 'xxx" in said and len(said) < 20000 and peak < 100 << 20, (len(said), peak)


@pytest.mark.parametrize("name,changes,words", [
    ("bloom-heads", {"num_attention_heads": 3}, "num_attention_heads is 3, which does not divide hidden_size, 64"),
    ("bloom-heads", {"num_attention_heads": 2**31 - 1}, "num_attention_heads is 2147483647, expected an integer from 1 to 65536"),
    ("mpt-clipped", {"head_dim": 2}, r"Wqkv.weight"), ("pythia", {"head_dim": 32}, r"query_key_value.weight"), ("persimmon", {"head_dim": 32}, r"query_key_value.weight"),
    ("codegen", {"head_dim": 32}, "qkv_proj.weight"),
])  # fmt: skip
def test_heads_that_do_not_fit_are_refused_by_name(apart, tmp_path, name, changes, words):
    """Tables of 2^31 heads were made, and sizes of heads met in the compiler."""
    folder = family.write(tmp_path / "model", name)[0]
    rewritten(folder, **changes)
    assert re.search(words, refused_or_read(apart, folder))


@pytest.mark.parametrize("name,changes", [
    ("mixtral", {"num_local_experts": 4096, "num_hidden_layers": 512}), ("stablelm2-12b", {"num_attention_heads": 1 << 24, "num_key_value_heads": 1 << 24, "hidden_size": 1 << 24, "head_dim": 16}),
    ("qwen2-moe", {"num_experts": 4096, "num_hidden_layers": 512}), ("opt", {"num_hidden_layers": 4096}), ("llama", {"vocab_size": 2**31 - 1}), ("cohere2", {"num_hidden_layers": 512}),
])  # fmt: skip
def test_counts_without_weights_take_no_time_and_no_memory(apart, tmp_path, monkeypatch, name, changes):
    """A table of 2^31 tokens was made, and millions of tensors were missed one after another."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = family.write(tmp_path / "model", name)[0] if name in FAMILIES else tiny.write_folder(tmp_path / "model", LLAMA, {})
    rewritten(folder, **changes)
    for rows in (0, 2**31):
        with_header(folder, {"model.embed_tokens.weight": {"dtype": "F32", "shape": [rows, 0], "data_offsets": [0, 0]}})
        assert refused_or_read(apart, folder, seconds=15)


def test_layers_have_an_end_that_a_message_names(folder):
    rewritten(folder, num_hidden_layers=513)
    refused(folder, "num_hidden_layers is 513, expected an integer from 1 to 512")


@pytest.mark.parametrize("theta", [1e-60, 1e-300])
def test_frequencies_that_no_f32_holds_are_refused(folder, theta):
    rewritten(folder, rope_theta=theta, head_dim=64)
    refused(folder, "its frequencies are not finite")


@pytest.mark.parametrize("kind", ["linear", "yarn"])
@pytest.mark.parametrize("factor", [1e9, 1e300])
def test_a_factor_that_makes_sequences_without_end_is_refused(folder, kind, factor):
    rewritten(folder, rope_scaling={"rope_type": kind, "factor": factor, "original_max_position_embeddings": 2048}, max_position_embeddings=2048)
    refused(folder, f"rope_scaling of type '{kind}': its factor gives ", "positions, expected at most 2147483647")


@pytest.mark.parametrize("name", ["deepseek-v2", "deepseek-v32"])
@pytest.mark.parametrize("changes", [{"factor": 10**400}, {"mscale_all_dim": 10**400}, {"mscale_all_dim": float("nan")}, {"mscale_all_dim": 1e300}, {"factor": float("inf")}], ids=range(5))
def test_what_makes_scores_larger_is_finite(tmp_path, monkeypatch, apart, name, changes):
    """An integer beyond every float was a traceback, and NaN went unnoticed."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = family.write(tmp_path / "model", name)[0]
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "mscale_all_dim": 1.0}
    rewritten(folder, rope_scaling=scaling, rope_parameters=None)
    assert refused_or_read(apart, folder) == ""
    rewritten(folder, rope_scaling={**scaling, **changes})
    assert "rope_scaling" in refused_or_read(apart, folder)


def test_a_value_in_a_message_is_short_and_a_name_is_escaped(apart, folder):
    rewritten(folder, hidden_size="x" * 900_000)
    assert len(refused(folder, "hidden_size is 'xxx", "expected an integer from 1")) < 2000
    with_header(folder, {"a\x1b[31m\nFAKE\u202e": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}})
    rewritten(folder, hidden_size=48)
    assert "tensor a\\x1b[31m\\nFAKE\\u202e: this family" in refused_or_read(apart, folder)


# ---- packed weights ------------------------------------------------------------------------------


def placed(**tensors):
    """Tensors by name (dots as two underscores), each (type, shape, bytes)."""
    header, at = {}, 0
    for name, (dtype, shape, size) in tensors.items():
        header[name.replace("__", ".")] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    return header, bytes(at)


PACKED = {
    "gptq": placed(model__a__qweight=("I32", [1, 1], 4), model__a__scales=("F16", [1, 8], 16), model__a__qzeros=("I32", [1, 1], 4)),
    "awq": placed(model__a__qweight=("I32", [1, 1], 4), model__a__scales=("F16", [1, 8], 16), model__a__qzeros=("I32", [1, 1], 4)),
    "fp8": placed(model__a__weight=("F8_E4M3", [2, 2], 4), model__a__weight_scale_inv=("F32", [1, 1], 4)),
    "mxfp4": placed(model__a_blocks=("U8", [2, 2, 1, 16], 64), model__a_scales=("U8", [2, 2, 1], 4), model__b_blocks=("U8", [2, 1, 16], 32), model__c_blocks=("F32", [1, 1, 1, 16], 64)),
    "modelopt": placed(model__a__weight=("U8", [1, 8], 8), model__a__weight_scale=("F8_E4M3", [1, 1], 1)),
    "compressed-tensors": placed(model__a__weight_packed=("I32", [1, 1], 4), model__a__weight_scale=("F32", [1, 1], 4), model__b__weight=("F8_E4M3", [2, 2], 4), model__b__weight_scale=("F32", [1, 1], 4)),
}
ENTRIES = {"gptq": ["bits", "group_size", "desc_act", "checkpoint_format"], "awq": ["bits", "group_size", "version"], "fp8": ["weight_block_size"], "mxfp4": ["modules_to_not_convert", "group_size"], "modelopt": ["kv_cache_scheme"],
           "compressed-tensors": ["format", "config_groups", "sparsity_config"]}  # fmt: skip
FEW = [0, 3, -1, 2**31 - 1, 10**30, 4.0, float("nan"), True, "4", "x", [], [[]], {}, {"a": 1}]


@pytest.mark.parametrize("method", PACKED)
def test_lies_about_packed_weights_are_refused_in_words(apart, folder, method):
    with_header(folder, *PACKED[method])
    odd = [{key: value} for key in ENTRIES[method] for value in FEW]
    if method == "compressed-tensors":
        schemes = (("num_bits", {}), ("block_structure", {"strategy": "block"}), ("strategy", {}), ("symmetric", {}))
        odd += [{"config_groups": {"g": group}} for group in (*FEW, *({"weights": {key: value, **more}} for key, more in schemes for value in FEW))]
    for changes in odd:
        print(changes)
        rewritten(folder, quantization_config={"quant_method": method, **changes})
        assert refused_or_read(apart, folder)


def test_groups_of_packed_weights_have_an_end(folder):
    tensors = {f"t{i}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for i in range(5000)}
    with_header(folder, tensors)
    rewritten(folder, quantization_config={"quant_method": "compressed-tensors", "config_groups": {str(i): {"format": "dense"} for i in range(10_000)}})
    begin = time.process_time()
    refused(folder, "quantization_config has 10000 config_groups; there may be 1024")
    assert time.process_time() - begin < 3


# ---- names ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("other", ["", "blk", "blk.", "blk.0", "blk.0.weight", "blk..weight", "blk.x.attn_q.weight", "a\x1b[31m"])
def test_names_of_a_gguf_file_are_of_any_form(tmp_path, monkeypatch, other):
    write = tiny.write_gguf
    monkeypatch.setattr(tiny, "write_gguf", lambda path, metadata, arrays, types: write(path, metadata, {**arrays, other: arrays["output_norm.weight"]}, types))
    family.write_gguf(tmp_path / "m.gguf", "phi4")
    with pytest.raises((Refused, InvalidFormatError)) as caught:
        opened(tmp_path / "m.gguf")
    assert all(line.isprintable() for line in str(caught.value).splitlines())


def test_two_tensors_that_become_one_weight_are_refused(apart, tmp_path, folder, monkeypatch):
    """The last one won, without a word."""
    words = "two tensors of the file are this weight"
    write, named = tiny.write_gguf, "model.layers.0.input_layernorm.weight"
    monkeypatch.setattr(tiny, "write_gguf", lambda path, metadata, arrays, types: write(path, metadata, {**arrays, named: arrays["output_norm.weight"]}, types))
    family.write_gguf(tmp_path / "m.gguf", "phi4")
    assert f"tensor {named}: {words}" in refused_or_read(apart, tmp_path / "m.gguf")
    header, content = placed(model__a__weight=("F32", [1], 4), model__a__qweight=("I32", [1, 1], 4), model__a__scales=("F16", [1, 8], 16))
    with_header(folder, header, content)
    rewritten(folder, quantization_config={"quant_method": "gptq"})
    assert f"tensor model.a.weight: {words}" in refused_or_read(apart, folder)
    several = family.write(tmp_path / "several", "mistral3")[0]
    with_header(several, *placed(**{"language_model__model__norm__weight": ("F32", [1], 4), "model__language_model__norm__weight": ("F32", [1], 4)}))
    assert f"tensor model.norm.weight: {words}" in refused_or_read(apart, several)


def test_a_safetensors_file_without_a_configuration_is_refused(tmp_path):
    header = b'{"__metadata__": {"x": "' + b"[" * 50_000 + b'"}}'
    (tmp_path / "x.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    with pytest.raises(Refused, match="without a configuration"):
        opened(tmp_path / "x.safetensors")


def test_many_ids_of_ends_take_linear_time(folder):
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": list(range(60_000))}))
    begin = time.process_time()
    refused(folder, "eos_token_id is 320, and vocab_size 320")
    assert time.process_time() - begin < 5  # else 9 s


@pytest.mark.parametrize("name", ["modules.json", "1_Pooling/config.json"])
@pytest.mark.parametrize("content", [*(text.encode() for text in DEEP), b"", b"{", b"\xff", b"9" * 5000])
def test_files_of_sentence_transformers_that_are_no_json(name, content):
    with pytest.raises(ValueError, match=re.escape(name) + ": "):
        pooling_of({name: content})


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
    template, begin = text.ChatTemplate(source), time.monotonic()
    with monkeypatch.context() as patch, pytest.raises(serve.BadParameter, match="takes longer than 0.5 seconds"):
        patch.setattr(text, "RENDER_SECONDS", 0.5)
        template.render(MESSAGES)
    assert time.monotonic() - begin < 60
    assert text.ChatTemplate("{{ messages[0].content }}").render(MESSAGES) == "hi"


def test_jinja_is_loaded_before_the_limits_of_a_template_begin():
    """On a busy machine that took longer than a template may take to be read."""
    pytest.importorskip("jinja2")
    code = "import sys, accrt._template; print('jinja2.sandbox' in sys.modules)"
    path = os.pathsep.join(filter(None, sys.path))
    ran = subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=True)
    assert ran.stdout == "True\n"


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


@pytest.mark.rotating(8)
@pytest.mark.parametrize("source", LARGE)
def test_the_memory_of_a_template_has_an_end(monkeypatch, source):
    """In a process of its own, and as an answer."""
    pytest.importorskip("jinja2")
    monkeypatch.setattr(text, "RENDER_BYTES", 128 << 20)
    monkeypatch.setattr(text, "RENDERED_BYTES", 4 << 20)
    monkeypatch.setattr(text, "RENDER_SECONDS", 5.0)
    watched = Watched(monkeypatch)
    try:
        template = text.ChatTemplate(source)
    except ValueError as error:  # its constants are calculated when it is read
        assert re.search("cannot be read: it takes (more than 128 MiB of memory|longer than 5 s)", str(error))
    else:
        with pytest.raises(serve.BadParameter, match="takes more than 128 MiB of memory|makes more than 4 MiB|too large|ended the process|longer than 5 s|fails with") as caught:
            template.render(MESSAGES)
        assert len(str(caught.value)) < 5000
        del template
    assert watched.fit(128 << 20, 4 << 20)


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
    process, = template._helper._idle
    os.kill(process._process.pid, signal.SIGKILL)  # by somebody else
    while not process.has_ended():
        time.sleep(0.01)
    assert template.render(MESSAGES) == "hi"
    pid = template._helper._idle[0]._process.pid
    del template
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.parametrize("config, said", [
    ({f"a{i}_token": "" for i in range(257)}, "has 257 special tokens"), ({"bos_token": "x" * (64 << 10)}, "has 1 special tokens of 65553 bytes"),
])  # fmt: skip
def test_special_tokens_of_a_template_are_few(config, said):
    """Each chat takes them along: 200,000 of them cost it more than a second."""
    with pytest.raises(ValueError, match=f"tokenizer_config.json {said}"):
        text.ChatTemplate("x", config)
    deep = []
    for _ in range(5000):
        deep = [deep]
    with pytest.raises(ValueError, match="tokenizer_config.json: a special token is nested too deeply"):
        text.ChatTemplate("x", {"bos_token": deep})
    least = {name: value[1:] for name, value in list(config.items())[:253] if name != "bos_token"}
    made = text.ChatTemplate("{{ a0_token }}{{ messages[0].content }}", {**least, "bos_token": "<s>", "add_bos_token": True, "eos_token": None})
    assert made.render([{"role": "user", "content": "y"}]) == "y"
    made.close()


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
