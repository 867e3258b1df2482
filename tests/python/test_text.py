"""The text form of bundles: accx dump, build and diff."""
from __future__ import annotations

import json
import os
import pathlib
import random
import re
import subprocess

import numpy as np
import pytest

import accrt
import random_bundles
import rotation
from accrt import bundle_reader
from accrt import bundle_writer as bw
from accx_tool import ACCX, ROOT, accx, needs_tool

pytestmark = needs_tool
SEED = rotation.SEED
ROUNDS = int(os.environ.get("ACCRT_TEST_ROUNDS", "40"))


def accepted(path: pathlib.Path) -> bool:
    return subprocess.run([str(ACCX), "verify", str(path)], capture_output=True).returncode == 0


def round_trip(path: pathlib.Path, folder: pathlib.Path, *options: object) -> str:
    text = folder / "bundle.yaml"
    accx("dump", path, "--output", text, *options)
    accx("build", text, "--output", folder / "again.accx")
    assert (folder / "again.accx").read_bytes() == path.read_bytes()
    assert accx("diff", path, folder / "again.accx") == "no differences\n"
    return text.read_text(encoding="utf-8")


GOLDEN = [p for p in sorted((ROOT / "tests" / "golden").glob("**/*.accx")) if "next" not in p.parts]
MODELS = pathlib.Path(os.environ.get("ACCRT_TEST_BUNDLES", ROOT / "build" / "models"))


@pytest.mark.parametrize("path", GOLDEN, ids=lambda p: str(p.relative_to(ROOT / "tests" / "golden")))
def test_golden_bundles_come_back_byte_for_byte(path: pathlib.Path, tmp_path: pathlib.Path) -> None:
    if not accepted(path):
        assert "(rule " in accx("dump", path, code=3)
        return
    round_trip(path, tmp_path)


@pytest.mark.parametrize("name", ["bytelm", "minilm"])
def test_models_come_back_byte_for_byte(name: str, tmp_path: pathlib.Path) -> None:
    path = MODELS / f"{name}.accx"
    if not path.exists():
        pytest.skip(f"no {path}")
    text = round_trip(path, tmp_path)
    assert len(text) < 1 << 20


def test_what_needs_newer_versions_is_not_written_out(tmp_path: pathlib.Path) -> None:
    path = ROOT / "tests" / "golden" / "0.3" / "next" / "minor-additions.accx"
    assert accx("dump", path).startswith("accx: 1\n")
    assert "needs newer versions" in accx("dump", path, "--output", tmp_path / "x.yaml", code=3)
    assert list(tmp_path.iterdir()) == []


# ---- Random bundles ------------------------------------------------------------------------------


def test_random_bundles_come_back_byte_for_byte(tmp_path: pathlib.Path) -> None:
    """Kernels with variants, calls, control flow, weights in layouts, files, shards, sections that
    nobody knows, and odd names."""
    path = tmp_path / "random.accx"
    for seed in range(SEED, SEED + ROUNDS):
        print("seed", seed)
        rng = random.Random(seed)
        path.write_bytes(random_bundles.random_bundle(rng, newest=seed % 4 > 0, odd=rng.choice([0, 0.3, 0.8])).to_bytes())
        round_trip(path, tmp_path, "--inline", rng.choice([0, 8, 64, 4096]))


def test_signed_and_encrypted_bundles_come_back_byte_for_byte(tmp_path: pathlib.Path) -> None:
    """Trees, leaves, signatures, and tags of encrypted weights are kept as they are."""
    key, secret, plain = tmp_path / "key.pem", tmp_path / "secret", tmp_path / "random.accx"
    if accx("keygen", "--output", key, code=None):
        pytest.skip("no libcrypto")
    accx("keygen", "--secret", "--output", secret)
    for seed in range(SEED, SEED + ROUNDS // 8):
        print("seed", seed)
        path = plain
        path.write_bytes(random_bundles.random_bundle(random.Random(seed), odd=0.2).to_bytes())
        sealed = seed % 2 == 1 and 63 in {section.type for section in bundle_reader.read(plain).container.table}
        if sealed:
            path = tmp_path / "encrypted.accx"
            accx("encrypt", plain, "--secret-key", secret, "--output", path)
        accx("sign", path, "--vouch", "--key", key, "--output", tmp_path / "signed.accx")
        text = round_trip(tmp_path / "signed.accx", tmp_path)
        assert "signatures" in text and ("encryption" in text) == sealed


def test_shared_and_deep_expressions_stay_short(tmp_path: pathlib.Path) -> None:
    writer = bw.BundleWriter()
    n = writer.symbol("n", bw.SymbolClass.SPECIALIZE, maximum=4)
    doubled = n
    for _ in range(60):
        doubled = doubled + doubled
    deep = n
    for index in range(3000):
        deep = deep + index
    function = writer.function("f")
    x = function.input("x", "f32", [n])
    y = function.result("y", "f32", [n])
    function.body.copy(x.read(doubled), y.write(deep), extent=4)
    path = tmp_path / "shared.accx"
    path.write_bytes(writer.to_bytes())
    assert len(round_trip(path, tmp_path)) < 60_000


# ---- By hand -------------------------------------------------------------------------------------


def example() -> str:
    text = (ROOT / "docs" / "text-form.md").read_text(encoding="utf-8")
    found = re.search(r"```yaml\n(.*?)```", text, re.DOTALL)
    assert found
    return found.group(1)


def test_the_document_s_example_runs(tmp_path: pathlib.Path) -> None:
    (tmp_path / "rows.yaml").write_text(example(), encoding="utf-8")
    accx("build", tmp_path / "rows.yaml", "--output", tmp_path / "rows.accx")
    accx("verify", "--full", tmp_path / "rows.accx")
    x = np.arange(6, dtype=np.float32)
    expected = np.stack([x, x, x])
    expected[0, :4] = [1, 2.5, -3, 4]
    rows = np.asarray(accrt.Program(tmp_path / "rows.accx").session().rows(x))
    np.testing.assert_array_equal(rows, expected)


# What is wrong in a copy of the example, and what is said of it.
MISTAKES = [
    ("accx: 1", "accx: 2", r":1:7: text form 2; this tool reads form 1"),
    ("class: specialize", "class: special", r":4:24: no class 'special', did you mean 'specialize'\? \(there are specialize, bucket"),
    ("minimum: 1,", "minimun: 1,", r":4:36: a symbol has no 'minimun', did you mean 'minimum'\?"),
    ("minimum: 1,", "minimum: one,", r":4:45: 'one' is not a whole number"),
    ("dtype: f32, shape: [4], values", "dtype: f33, shape: [4], values", r":6:28: no dtype 'f33'"),
    ("values: [1, 2.5, -3, 4]", "values: [1, 2.5, -3]", r":6:3: .*first_row"),
    ("values: [1, 2.5, -3, 4]", "values: [1, two, -3, 4]", r":6:57: 'two' is not a number"),
    ("from: {input: x}", "from: {input: y}", r":18:21: no input 'y'"),
    ("offset: induction(0) * width * 4", "offset: induction(0) * widht * 4", r":19:49: no symbol 'widht'"),
    ("extent: width * 4", "extent: width * (4", r":20:\d+: 'width \* \(4': '\)' is expected"),
    ("extent: width * 4", "extent: [width * 4, 1, 1, 1]", r":20:15: 'extent' has at most 3 entries"),
    ("after: [0]", "after: [1]", r":22:13: 1 is not an earlier command of this block; this is command 1"),
    ("- copy: true\n    after", "- kopy: true\n    after", r":21:5: a command has one of dispatch.*, did you mean 'copy'\?"),
    ("- copy: true\n    after", "- copy:\n    after", r":21:10: 'copy' must be true"),
    ("    extent: width * 4", "    extent: width * 4\n      grid: 4", r":21:7: copy has no 'grid' beside the rest of this"),
    ("dtype: f32, shape: [4], values", "dtyp: f32, shape: [4], values", r":6:21: a constant needs 'dtype', which may be misspelled as 'dtyp'"),
    ("extent: width * 4", "extnet: width * 4", r":20:7: copy has no 'extnet', did you mean 'extent'\?"),
    ("from: {input: x}", "from: {inptu: x}", r":18:14: one of input, .* is needed, did you mean 'input'\?"),
    ("from: {constant: first_row}", "from: {constant: frist_row}", r"no constant 'frist_row', did you mean 'first_row'\?"),
    ("- repeat: 3", "- call: row", r"no function 'row', did you mean 'rows'\?"),
    ("name: rows\n", "name: \"ro\\x1b[2Jws\\\\\\n'\"\n- name: \"ro\\x1b[2Jws\\\\\\n'\"\n",
     r":9:3: 'ro\\x1b\[2Jws\\\\\\n\\'' is there already, in line 8"),
    ("accx: 1", "accx: 1\nsymbol: []", r":2:1: the text has no 'symbol', did you mean 'symbols'\?"),
    ("name: x,", "name: *x,", r":11:12: anchors"),
    ("name: x,", "name: &a x,", r"anchors, aliases and tags are not used"),
    ("name: x,", "name: !!str x,", r"anchors, aliases and tags are not used"),
    ("name: x,", "name: x, name: z,", r":11:15: the key 'name' is there twice"),
    ("accx: 1", "accx: 1\n---\naccx: 1", r"second document"),
    ("  doc: three", "\tdoc: three", r":\d+:\d+: "),
]


@pytest.mark.parametrize("old,new,said", MISTAKES, ids=[new.split("\n")[0][:30] for _, new, _ in MISTAKES])
def test_mistakes_are_told_with_their_place(old: str, new: str, said: str, tmp_path: pathlib.Path) -> None:
    text = example()
    assert old in text
    path = tmp_path / "wrong.yaml"
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    message = accx("build", path, "--output", tmp_path / "wrong.accx", code=1)
    assert message.count("\n") == 1
    assert re.search(said, message), message
    assert not (tmp_path / "wrong.accx").exists()


def test_what_only_shows_as_a_whole_is_told_too(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "wrong.yaml"
    path.write_text(example().replace("shape: [width]", "shape: [8]").replace("shape: [3, width]", "shape: [3, 8]"), encoding="utf-8")
    assert "width" in accx("build", path, "--output", tmp_path / "wrong.accx", code=1)


@pytest.mark.parametrize("name", ["../secret", "/etc/hostname", "a/../../secret", "link", "folder/link", ".", "missing", "folder"])
def test_files_lie_beneath_the_text(name: str, tmp_path: pathlib.Path) -> None:
    (tmp_path / "secret").write_bytes(b"1234")
    here = tmp_path / "here"
    (here / "folder").mkdir(parents=True)
    (here / "link").symlink_to("../secret")
    (here / "folder" / "link").symlink_to("/etc/hostname")
    (here / "text.yaml").write_text(f"accx: 1\nconstants:\n- {{name: w, dtype: u8, shape: [4], data: {{file: {name}}}}}\n", encoding="utf-8")
    message = accx("build", here / "text.yaml", "--output", here / "out.accx", code=1)
    assert re.search(r"text.yaml:3:\d+: '", message), message
    assert not (here / "out.accx").exists()


def test_text_that_was_only_for_reading_is_refused(tmp_path: pathlib.Path) -> None:
    writer = bw.BundleWriter()
    writer.constant("w", bytes(1000))
    (tmp_path / "w.accx").write_bytes(writer.to_bytes())
    (tmp_path / "w.yaml").write_text(accx("dump", tmp_path / "w.accx"), encoding="utf-8")
    assert "only their digest is here" in accx("build", tmp_path / "w.yaml", "--output", tmp_path / "x.accx", code=1)


def test_damaged_weights_do_not_become_good_text(tmp_path: pathlib.Path) -> None:
    writer = bw.BundleWriter()
    writer.constant("w", bytes(1000))
    data = bytearray(writer.to_bytes())
    data[-1] ^= 1
    (tmp_path / "w.accx").write_bytes(data)
    assert "does not match its digest" in accx("dump", tmp_path / "w.accx", "--output", tmp_path / "w.yaml", code=3)
    assert [path.name for path in tmp_path.iterdir()] == ["w.accx"]
    (tmp_path / "w.yaml.d").mkdir()
    (tmp_path / "w.yaml.d" / "data.bin").write_bytes(b"of before")
    accx("dump", tmp_path / "w.accx", "--output", tmp_path / "w.yaml", code=3)
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")) == ["w.accx", "w.yaml.d", "w.yaml.d/data.bin"]
    assert (tmp_path / "w.yaml.d" / "data.bin").read_bytes() == b"of before"


def test_what_is_read_is_not_written_over(tmp_path: pathlib.Path) -> None:
    text = tmp_path / "a.yaml"
    bundle = built(tmp_path, "a", FULL)
    before = {path: path.read_bytes() for path in (text, bundle)}
    (tmp_path / "link.yaml").symlink_to("a.yaml")
    (tmp_path / "folder").mkdir()
    for arguments in (("build", text, "--output", text), ("build", text, "--output", tmp_path / "link.yaml"), ("dump", bundle, "--output", bundle)):
        assert "is the input" in accx(*arguments, code=2)
    for verb, source in (("build", text), ("dump", bundle)):
        assert "it is a folder" in accx(verb, source, "--output", tmp_path / "folder", code=1)
        assert re.search("missing/x.*: No such file", accx(verb, source, "--output", tmp_path / "missing" / "x", code=1))
    assert {path: path.read_bytes() for path in before} == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.accx", "a.yaml", "folder", "link.yaml"]


@pytest.mark.parametrize("written,bits", [
    ("[0.1, -0, 1e-45, inf]", "3dcccccd 80000000 00000001 7f800000"), ("[-inf, nan, 0x1p-3, 16777217]", "ff800000 7fc00000 3e000000 4b800000"),
    # Rounded once: through f64 it would be 1.
    ("[1.000000059604644775390625001, 3.4028235e38, 0, 0]", "3f800001 7f7fffff 00000000 00000000")])  # fmt: skip
def test_floats_are_the_nearest(written: str, bits: str, tmp_path: pathlib.Path) -> None:
    (tmp_path / "w.yaml").write_text(f"accx: 1\nconstants:\n- {{name: w, dtype: f32, shape: [4], values: {written}}}\n", encoding="utf-8")
    accx("build", tmp_path / "w.yaml", "--output", tmp_path / "w.accx")
    found = np.frombuffer(accrt.Bundle(tmp_path / "w.accx").constant_bytes("w"), dtype="<u4")
    assert [f"{value:08x}" for value in found] == bits.split()


def test_values_may_stand_in_rows(tmp_path: pathlib.Path) -> None:
    for name, values in (("rows", "[[[1, 2], [3, 4]], [[5, 6], [7, 8]]]"), ("flat", "[1, 2, 3, 4, 5, 6, 7, 8]")):
        built(tmp_path, name, f"accx: 1\nconstants:\n- {{name: w, dtype: i16, shape: [2, 2, 2], values: {values}}}\n- {{name: e, dtype: f32, shape: [2, 0], values: [[], []]}}\n")
    assert (tmp_path / "rows.accx").read_bytes() == (tmp_path / "flat.accx").read_bytes()
    for shape, values, said in [("[2, 2]", "[[1, 2], [3]]", "a list of 1"), ("[2, 3]", "[[1, 2], [3, 4], [5, 6]]", "a list of 3"), ("[4]", "[[1, 2], [3, 4]]", "a list of 2"),
                                ("[2, 2]", "[[1, 2], 3]", "a row of values is a list, not a word"), ("[2]", "[1, [2]]", "a value is a word, not a list"),
                                ("[1, 1]", "[[[1]]]", "a value is a word, not a list")]:  # fmt: skip
        (tmp_path / "w.yaml").write_text(f"accx: 1\nconstants:\n- {{name: w, dtype: f32, shape: {shape}, values: {values}}}\n", encoding="utf-8")
        assert re.search(rf"w.yaml:3:\d+: {said}", accx("build", tmp_path / "w.yaml", "--output", tmp_path / "w.accx", code=1))


@pytest.mark.parametrize("dtype,values,said", [
    ("f32", "[1e39]", r":3:46: '1e39' is too large for f32"), ("f64", "[1e400]", "'1e400' is too large for f64"), ("f32", "[1,5,2x]", "'2x' is not a number"),
    ("bool", "[true, false, 2]", "'2' does not fit the data type"), ("i8", "[true]", "'true' is not a whole number"), ("f16", "[1]", "values of bool, whole numbers, f32 and f64")])  # fmt: skip
def test_values_that_are_none(dtype: str, values: str, said: str, tmp_path: pathlib.Path) -> None:
    (tmp_path / "w.yaml").write_text(f"accx: 1\nconstants:\n- {{name: w, dtype: {dtype}, shape: [1], values: {values}}}\n", encoding="utf-8")
    assert re.search(said, accx("build", tmp_path / "w.yaml", "--output", tmp_path / "w.accx", code=1))


# ---- Differences ---------------------------------------------------------------------------------


FULL = """\
accx: 1
metadata: {license: Apache-2.0}
symbols:
- {name: n, class: specialize, minimum: 1, maximum: 1000}
- {name: cap, class: session, maximum: 8}
files:
- {name: weights.gguf, kind: gguf, size: 100}
constants:
- {name: w, dtype: f32, shape: [2, 20], values: [1, 2.5, -3, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7]}
- name: q
  dtype: f32
  encoding: i8_channel
  shape: [2, 4]
  components:
    data: {dtype: i8, values: [1, 2, 3, 4, -1, -2, -3, -4]}
    scales: {dtype: f32, values: [0.5, 2]}
- {name: e, source: external, dtype: f32, shape: [4], file: weights.gguf, tensor: model.e}
states:
- {name: memory, dtype: f32, shape: [cap]}
images:
- {name: code, kind: pack}
- {name: ptx, kind: ptx, data: {text: "ptx"}}
kernels:
- name: k
  traits: [deterministic]
  parameters:
  - {name: x, kind: buffer, access: read}
  - {name: y, kind: buffer, access: write}
  - {name: n, kind: symbol}
  - {name: a, kind: scalar, size: 4}
  variants:
  - {image: code, arch: x86-64-v3}
locations:
- {file: model.py, line: 7}
functions:
- name: f
  doc: doubles
  inputs:
  - {name: x, dtype: f32, shape: [n]}
  - {name: z, dtype: f32, shape: [n]}
  results:
  - {name: y, dtype: f32, shape: [n]}
  arena: {size: n * 4 + n * n * 4}
  commands:
  - {fill: 0, to: {arena: true, offset: n * 4, size: n * n * 4}}
  - {copy: true, from: {input: x}, to: {arena: true}, extent: n * 4}
  - dispatch: k
    after: [0, 1]
    location: 0
    grid: ceildiv(n * n * 4, 16)
    arguments: {x: {arena: true}, y: {result: y}, n: n, a: {f32: 2}}
assets:
- {name: tokenizer, data: "00"}
"""

# A change of it, and all that is said.
DIFFERENCES = [
    ("Apache-2.0", "MIT", ["metadata, license: Apache-2.0 in A, MIT in B"]),
    ("maximum: 1000", "maximum: 500", ["symbol 'n', maximum: 1000 in A, 500 in B"]),
    ("[1, 2.5, -3,", "[1, 2.5, -3.5,", ["constant 'w', data: 1 of 40 values differ, the first at [0, 2]: -3 in A, -3.5 in B"]),
    ("values: [0.5, 2]", "values: [0.5, 4]", ["constant 'q', components, scales, data: 1 of 2 values differ, the first at 1: 2 in A, 4 in B"]),
    ("i8_channel\n  shape: [2, 4]\n  components:\n    data: {dtype: i8, values: [1, 2, 3, 4, -1, -2, -3, -4]}", "f8_channel\n  shape: [2, 4]\n  components:\n    data: {dtype: f8e5m2, data: 0102030405060708}",
     ["constant 'q', encoding: i8_channel in A, f8_channel in B", "constant 'q', components, data, dtype: i8 in A, f8e5m2 in B",
      "constant 'q', components, data, data: 8 bytes 01020304fffefdfc in A, 8 bytes 0102030405060708 in B"]),
    ("size: 100", "size: 101", ["file 'weights.gguf', size: 100 in A, 101 in B"]),
    ("weights.gguf", "other.gguf", ["file 'weights.gguf' is named 'other.gguf' in B", "constant 'e', file: weights.gguf in A, other.gguf in B"]),
    ("tensor: model.e", "tensor: model.f", ["constant 'e', tensor: model.e in A, model.f in B"]),
    ("shape: [cap]", "shape: [cap, 2]", ["state 'memory', shape: [cap] in A, [cap, 2] in B"]),
    ('text: "ptx"', 'text: "ptx2"', ["image 'ptx', data: 4 bytes 70747800 in A, 5 bytes 7074783200 in B"]),
    ("[deterministic]", "[deterministic, capturable]", ["kernel 'k', traits: [deterministic] in A, [deterministic, capturable] in B"]),
    ("x86-64-v3", "x86-64-v4", ["only in A: kernel 'k', variant 0 (host x86-64-v3)", "only in B: kernel 'k', variant 0 (host x86-64-v4)"]),
    ("doc: doubles", "doc: halves", ["function 'f', doc: doubles in A, halves in B"]),
    ("name: f\n", "name: g\n", ["function 'f' is named 'g' in B"]),
    (" k\n", " kk\n", ["kernel 'k' is named 'kk' in B", "function 'f', command 2 (dispatch 'k'), dispatch: k in A, kk in B"]),
    ("  - {name: x, dtype: f32, shape: [n]}\n  - {name: z, dtype: f32, shape: [n]}\n", "  - {name: z, dtype: f32, shape: [n]}\n  - {name: x, dtype: f32, shape: [n]}\n",
     ["function 'f', inputs, order: 'x', 'z' in A, 'z', 'x' in B"]),
    ("a: {f32: 2}", "a: {f32: 3}", ["function 'f', command 2 (dispatch 'k'), arguments, a, bits: 0x40000000 (f32: 2) in A, 0x40400000 (f32: 3) in B"]),
    ("from: {input: x}", "from: {input: z}", ["function 'f', command 1 (copy), from, input: x in A, z in B"]),
    ("after: [0, 1]", "after: [1]", ["function 'f', command 2 (dispatch 'k'), after: [0, 1] in A, [1] in B (as B numbers commands)"]),
    ("line: 7", "line: 8", ["function 'f', command 2 (dispatch 'k'), location: {file: model.py, line: 7, column: 0} in A, {file: model.py, line: 8, column: 0} in B"]),
    # What comes before makes nothing after it different: neither commands, nor names of
    # expressions.
    ("  commands:\n", "  commands:\n  - {copy: true, from: {input: x}, to: {result: y}, extent: \"max(n * 7, n * 7)\"}\n", ["only in B: function 'f', command 0 (copy)"]),
    ("functions:\n", 'sections:\n- {type: 0x10001, name: acme.x, data: "0011"}\nfunctions:\n', ["only in B: section 'acme.x'"]),
    ("- {name: tokenizer, data: \"00\"}", "- {name: tokenizer, data: \"01\"}", ["asset 'tokenizer', data: 1 bytes 00 in A, 1 bytes 01 in B"]),
    ("doc: doubles", "doc: \"\\x1b]0;x\\a\\n\\u202e\\x85'\"", ["function 'f', doc: doubles in A, '\\x1b]0;x\\x07\\n\\u202e\\x85\\'' in B"]),
]  # fmt: skip


def built(folder: pathlib.Path, name: str, text: str) -> pathlib.Path:
    text = text.replace("\n    after: [0, 1]", "\n    after: [1, 2]") if "n * 7" in text else text
    (folder / f"{name}.yaml").write_text(text, encoding="utf-8")
    accx("build", folder / f"{name}.yaml", "--output", folder / f"{name}.accx")
    return folder / f"{name}.accx"


@pytest.mark.parametrize("old,new,said", DIFFERENCES, ids=[f"{i}" for i in range(len(DIFFERENCES))])
def test_differences_are_told_in_words(old: str, new: str, said: list[str], tmp_path: pathlib.Path) -> None:
    assert old in FULL
    a, b = built(tmp_path, "a", FULL), built(tmp_path, "b", FULL.replace(old, new))
    assert accx("diff", "--exit-code", a, a) == "no differences\n"
    assert accx("diff", a, b).splitlines() == said
    assert json.loads(accx("diff", "--json", a, b)) == {"differences": said}
    assert len(accx("diff", b, a).splitlines()) == len(said)
    assert subprocess.run([str(ACCX), "diff", "--exit-code", str(a), str(b)], capture_output=True, text=True).stdout.splitlines() == said
    assert accx("diff", "--exit-code", a, b, code=5) == ""


# Weights of a type, and what is said of another one in them.
VALUES = [
    ("f64", "values: [0.1, 2]", "values: [0.25, 2]", "1 of 2 values differ, the first at [0]: 0.10000000000000001 in A, 0.25 in B"),
    ("i8", "values: [-1, 2]", "values: [-128, 127]", "2 of 2 values differ, the first at [0]: -1 in A, -128 in B"),
    ("i64", "values: [-1, 5]", "values: [1, 5]", "1 of 2 values differ, the first at [0]: -1 in A, 1 in B"),
    ("u64", "values: [18446744073709551615, 5]", "values: [1, 5]", "1 of 2 values differ, the first at [0]: 18446744073709551615 in A, 1 in B"),
    ("bool", "values: [true, false]", "values: [true, true]", "1 of 2 values differ, the first at [1]: 0 in A, 1 in B"),
    ("f16", 'data: "003c0000"', 'data: "003c00c0"', "1 of 2 values differ, the first at [1]: 0 in A, -2 in B"),
    ("bf16", 'data: "803f0000"', 'data: "803fc07f"', "1 of 2 values differ, the first at [1]: 0 in A, nan in B"),
    ("f8e8m0", 'data: "7f7f"', 'data: "807f"', "1 of 2 values differ, the first at [0]: 1 in A, 2 in B|0x7f in A, 0x80 in B"),
    ("u4", 'data: "10"', 'data: "11"', "1 of 1 bytes differ, the first at 0: 16 in A, 17 in B"),
]  # fmt: skip


@pytest.mark.parametrize("dtype,one,two,said", VALUES, ids=[value[0] for value in VALUES])
def test_values_that_differ_are_told(dtype: str, one: str, two: str, said: str, tmp_path: pathlib.Path) -> None:
    text = "accx: 1\nconstants:\n- {{name: w, dtype: {}, shape: [2], {}}}\n"
    a, b = built(tmp_path, "a", text.format(dtype, one)), built(tmp_path, "b", text.format(dtype, two))
    line = accx("diff", a, b).strip()
    assert any(line.endswith(words) for words in said.split("|")), line


def test_what_is_only_at_one_side_is_told_with_its_value(tmp_path: pathlib.Path) -> None:
    """Names of expressions that change, opaque weights of other sizes, text that is long, and what
    goes to a scalar of 8 bytes."""
    text = """accx: 1
symbols: [{{name: n, class: specialize, maximum: 9}}]
constants: [{{name: w, dtype: u8, encoding: opaque, shape: [{2}], data: "{0}"}}]
kernels: [{{name: k, parameters: [{{name: a, kind: scalar, size: 8}}], variants: [{{image: p, arch_kind: portable, {3}}}]}}]
images: [{{name: p, kind: pack}}]
locations: [{{file: a, line: 1}}]
functions:
- name: f
  doc: "{4}"
  let: {{e: n * {1} + 5 - n}}
  inputs: [{{name: x, dtype: u8, shape: [n]}}]
  results: [{{name: y, dtype: u8, shape: [$e * 2]}}, {{name: z, dtype: u8, shape: [$e * 3]}}]
  commands:
  - {{dispatch: k, name: {5}, location: 0, arguments: {{a: {{f64: {1}.5}}}}}}
"""
    a = built(tmp_path, "a", text.format("0011", 2, 2, "required_features: 0", "short", "one"))
    b = built(tmp_path, "b", text.format("001122", 3, 3, "entry: other", "long " * 100, "two"))
    said = accx("diff", a, b).splitlines()
    assert said[:2] == ["constant 'w', shape: [2] in A, [3] in B", "constant 'w', data: 2 bytes 0011 in A, 3 bytes 001122 in B"]
    assert "only in B: kernel 'k', variant 0 (host), entry: other" in said
    assert "function 'f', e0: n * 2 + 5 - n in A, n * 3 + 5 - n in B" in said
    assert any(line.startswith("function 'f', doc: short in A, 'long long") and line.endswith("...' in B") for line in said)
    assert "function 'f', command 0 (dispatch 'k' 'one'), name: one in A, two in B" in said
    assert any("a, bits: 0x4004000000000000 (f64: 2.5) in A, 0x400c000000000000 (f64: 3.5) in B" in line for line in said)
    assert len(said) == 7
    # Places are compared as what they are, and counted.
    c = built(tmp_path, "c", text.replace("location: 0, ", "").format("0011", 2, 2, "required_features: 0", "short", "one"))
    assert accx("diff", a, c).splitlines() == ["only in A: function 'f', command 0 (dispatch 'k' 'one'), location: {file: a, line: 1, column: 0}", "locations: 1 in A, 0 in B"]


def test_long_lists_of_commands_are_compared(tmp_path: pathlib.Path) -> None:
    """Too many for every pair of them: what is in the same place is compared."""
    text = "accx: 1\nfunctions:\n- {{name: f, commands: [{}]}}\n"
    a = built(tmp_path, "a", text.format(", ".join(f"{{marker: a{i}}}" for i in range(3000))))
    b = built(tmp_path, "b", text.format(", ".join(f"{{marker: {'a' if i % 2 else 'b'}{i}}}" for i in range(3000))))
    said = accx("diff", a, b).splitlines()
    assert len(said) == 1500 and said[1] == "function 'f', command 2 (marker), marker: a2 in A, b2 in B"


@pytest.mark.parametrize("name,said,code", [("missing", "No such file", 1), ("folder", "it is not a regular file", 1), ("short", r"\(rule 1\)", 3), ("table", r"\(rule", 3)])
def test_what_is_no_bundle_is_told(name: str, said: str, code: int, tmp_path: pathlib.Path) -> None:
    good = built(tmp_path, "good", FULL)
    (tmp_path / "folder").mkdir()
    (tmp_path / "short").write_bytes(good.read_bytes()[:100])
    (tmp_path / "table").write_bytes(good.read_bytes()[:300])
    for arguments in (("dump", tmp_path / name), ("diff", tmp_path / name, good), ("diff", good, tmp_path / name)):
        message = accx(*arguments, code=code)
        assert re.search(rf"{name}.*{said}", message), message


def test_folders_that_cannot_be_written_are_told(tmp_path: pathlib.Path) -> None:
    bundle = built(tmp_path, "a", FULL)
    (tmp_path / "x.yaml.d").write_text("a file")
    assert re.search(r"x.yaml.d.*(Not a directory|File exists)", accx("dump", bundle, "--inline", 0, "--output", tmp_path / "x.yaml", code=1))
    (tmp_path / "y.yaml.d" / "data.bin").mkdir(parents=True)
    assert re.search(r"data.bin: Is a directory", accx("dump", bundle, "--inline", 0, "--output", tmp_path / "y.yaml", code=1))
    assert not (tmp_path / "x.yaml").exists() and not (tmp_path / "y.yaml").exists()
    assert "cannot write standard output" in subprocess.run(f"{ACCX} dump {bundle} > /dev/full", shell=True, capture_output=True, text=True).stderr


def test_signatures_are_a_difference(tmp_path: pathlib.Path) -> None:
    path = built(tmp_path, "a", FULL)
    accx("keygen", "--output", tmp_path / "key.pem")
    accx("sign", path, "--vouch", "--key", tmp_path / "key.pem", "--output", tmp_path / "b.accx")
    assert accx("diff", path, tmp_path / "b.accx").splitlines() == [f"only in B: section '{name}'" for name in ("tree", "signatures", "leaves")]


def test_what_differs_in_random_bundles_is_told(tmp_path: pathlib.Path) -> None:
    """A bundle without its last function or constant, and no two lines for what is the same."""
    for seed in range(SEED, SEED + ROUNDS // 4):
        print("seed", seed)
        for name, odd in (("a", 0.3), ("b", 0.3)):
            (tmp_path / f"{name}.accx").write_bytes(random_bundles.random_bundle(random.Random(seed + (name == "b")), odd=odd).to_bytes())
        said = accx("diff", tmp_path / "a.accx", tmp_path / "b.accx")
        assert said != "no differences\n" and not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e]", said)
        assert accx("diff", tmp_path / "b.accx", tmp_path / "b.accx") == "no differences\n"
