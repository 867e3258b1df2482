"""Programs that a person writes as text: with kernels, branches, repeats, states, weights,
quantized weights and files. They run, and mistakes in them are told with the place that they are
made at."""

from __future__ import annotations

import json
import pathlib
import random
import re
import struct
import subprocess
import sys

import numpy as np
import pytest

import accrt
from accx_tool import ACCX, ROOT, accx, needs_tool
from test_text import ROUNDS, SEED, round_trip

sys.path.insert(0, str(ROOT / "tests" / "golden"))

pytestmark = needs_tool

KERNEL = """\
# y = 2 * x + y, where y begins as a weight
accx: 1
symbols:
- {name: n, class: specialize, minimum: 1, maximum: 1000}
constants:
- name: w
  dtype: f32
  shape: [4]
  values: [1, 2, 3, 4]
images:
- {name: code, kind: host_elf, data: {file: scale_add.so}}
kernels:
- name: scale_add
  traits: [deterministic]
  parameters:
  - {name: x, kind: buffer, access: read}
  - {name: y, kind: buffer, access: read_write}
  - {name: n, kind: symbol}
  - {name: a, kind: scalar, size: 4}
  variants:
  - {image: code, arch: x86-64-v3}
functions:
- name: f
  inputs:
  - {name: x, dtype: f32, shape: [n]}
  results:
  - {name: y, dtype: f32, shape: [n]}
  commands:
  - {copy: true, from: {constant: w}, to: {result: y}, extent: "min(n, 4) * 4"}
  - {fill: 0, to: {result: y, offset: "min(n, 4) * 4"}}
  - dispatch: scale_add
    after: [0, 1]
    grid: ceildiv(n, 1024)
    arguments:
      x: {input: x}
      y: {result: y}
      n: n
      a: {f32: 2}
"""

CONTROL = """\
accx: 1
symbols:
- {name: cap, class: session, minimum: 4, maximum: 64}
states:
- {name: memory, dtype: f32, shape: [cap], fill: 0x40000000}
functions:
- name: g
  inputs:
  - {name: x, dtype: f32, shape: [4]}
  - {name: maybe, dtype: f32, shape: [4], optional: true}
  results:
  - {name: y, dtype: f32, shape: [8]}
  arena: {size: 64}
  commands:
  - branch: present(maybe)
    then:
    - {copy: true, from: {input: maybe}, to: {arena: true}, extent: 16}
    else:
    - {copy: true, from: {input: x}, to: {arena: true}, extent: 16}
  - repeat: 3
    after: [0]
    commands:
    - fill: 0x3f800000
      pattern_bytes: 4
      to: {arena: true, offset: 4 + induction(0) * 4, size: 4}
  - {copy: true, after: [1], from: {arena: true}, to: {result: y}, extent: 16}
  - {copy: true, from: {state: memory}, to: {result: y, offset: 16}, extent: 16}
"""

WEIGHTS = """\
accx: 1
files:
- {name: weights.safetensors, kind: safetensors}
constants:
- name: q
  dtype: f32
  encoding: i8_channel
  shape: [2, 4]
  components:
    data: {dtype: i8, values: [1, 2, 3, 4, -1, -2, -3, -4]}
    scales: {dtype: f32, values: [0.5, 2]}
- name: e
  source: external
  dtype: f32
  shape: [4]
  file: weights.safetensors
  tensor: model.e
functions:
- name: read
  results:
  - {name: y, dtype: f32, shape: [4]}
  - {name: z, dtype: i8, shape: [2, 4]}
  - {name: s, dtype: f32, shape: [2]}
  commands:
  - {copy: true, from: {constant: e}, to: {result: y}, extent: 16}
  - {copy: true, from: {constant: q}, to: {result: z}, extent: 8}
  - {copy: true, from: {constant: q, component: scales}, to: {result: s}, extent: 8}
"""


@pytest.fixture(scope="session")
def code(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    import scale_add

    path = tmp_path_factory.mktemp("code") / "scale_add.so"
    image = scale_add.image("x86-64-v3")
    if image is None:
        pytest.skip("no gcc for x86-64")
    path.write_bytes(image)
    return path


def built(folder: pathlib.Path, text: str, code: pathlib.Path) -> pathlib.Path:
    (folder / "scale_add.so").write_bytes(code.read_bytes())
    (folder / "hand.yaml").write_text(text, encoding="utf-8")
    accx("build", folder / "hand.yaml", "--output", folder / "hand.accx")
    round_trip(folder / "hand.accx", folder)
    return folder / "hand.accx"


def test_the_document_has_the_kernel() -> None:
    assert f"```yaml\n{KERNEL}```" in (ROOT / "docs" / "text-form.md").read_text(encoding="utf-8")


def test_a_kernel(code: pathlib.Path, tmp_path: pathlib.Path) -> None:
    x = np.arange(6, dtype=np.float32)
    y = np.asarray(accrt.load(built(tmp_path, KERNEL, code), trust="all").f(x))
    np.testing.assert_array_equal(y, 2 * x + [1, 2, 3, 4, 0, 0])


def test_branches_repeats_and_states(code: pathlib.Path, tmp_path: pathlib.Path) -> None:
    session = accrt.Program(built(tmp_path, CONTROL, code)).session()
    x, maybe = np.arange(4, dtype=np.float32), np.full(4, 7, np.float32)
    np.testing.assert_array_equal(np.asarray(session.g(x)), [0, 1, 1, 1, 2, 2, 2, 2])
    np.testing.assert_array_equal(np.asarray(session.g(x, maybe)), [7, 1, 1, 1, 2, 2, 2, 2])


def test_quantized_weights_and_files(code: pathlib.Path, tmp_path: pathlib.Path) -> None:
    header = json.dumps({"model.e": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}).encode()
    header += b" " * (-len(header) % 8)
    (tmp_path / "weights.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + struct.pack("<4f", 9, 8, 7, 6))
    y, z, s = map(np.asarray, accrt.Program(built(tmp_path, WEIGHTS, code)).session().read())
    assert (y.tolist(), z.tolist(), s.tolist()) == ([9, 8, 7, 6], [[1, 2, 3, 4], [-1, -2, -3, -4]], [0.5, 2])


# What is wrong, and what is said of it.
MISTAKES = [
    (KERNEL, "kind: host_elf", "kind: elf", r":11:22: no kind 'elf' \(there are host_elf, cubin, ptx, fatbin, pack\)"),
    (KERNEL, "[deterministic]", "[determinstic]", r":14:12: no trait 'determinstic', did you mean 'deterministic'\?"),
    (KERNEL, "scale_add.so}", "scale_add.s}", r":11:45: 'scale_add.s': No such file"),
    (KERNEL, "kind: buffer, access: read}", "kind: buffer}", r":16:5: kernel 'scale_add', parameter 'x'"),
    (KERNEL, ", arch: x86-64-v3", "", r":21:5: kernel 'scale_add', variant"),
    (KERNEL, "      y: {result: y}\n", "", r":31:5: .*parameter 'y': it is not optional"),
    (KERNEL, "y: {result: y}", "yy: {result: y}", r":36:7: 'scale_add' takes no 'yy'"),
    (KERNEL, "y: {result: y}", "y: y", r":36:10: a buffer is given as \{input: NAME\}"),
    (KERNEL, "n: n\n", "n: {input: x}\n", r":37:11: a symbol has no 'input' beside the rest"),
    (KERNEL, "a: {f32: 2}", "a: 2", r":38:10: a scalar is given as \{bits: 0x...\}"),
    (KERNEL, "a: {f32: 2}", "a: {f23: 2}", r":38:10: a scalar is given as \{bits: 0x...\}"),
    (KERNEL, "a: {f32: 2}", "a: {f64: 2}", r":38:7: .*does not fit 4 bytes"),
    (KERNEL, "a: {f32: 2}", "a: {bits: 2.5}", r":38:17: '2.5' is not a whole number"),
    (KERNEL, "y: {result: y}", "y: {result: y, f32: 3}", r":36:22: a buffer has no 'f32' beside the rest"),
    (KERNEL, "from: {constant: w}", "from: {constant: w, component: scale}", r"no component 'scale', did you mean 'scales'\?"),
    (KERNEL, '"min(n, 4) * 4"', "min(n, 4) * 4", r":29:69: 'min\(n': ',' is expected; within \{\} and \[\] an expression with a comma stands in quotes"),
    (CONTROL, "present(maybe)", "present(mabye)", r":15:13: no input 'mabye', did you mean 'maybe'\?"),
    (CONTROL, "else:", "esle:", r":18:5: branch has no 'esle', did you mean 'else'\?"),
    (CONTROL, "repeat: 3", "repeat: cpa", r":20:13: no symbol 'cpa', did you mean 'cap'\?"),
    (CONTROL, "state: memory", "state: memroy", r"no state 'memroy', did you mean 'memory'\?"),
    (CONTROL, "induction(0)", "induction(1)", r":23:7: .*repeat at depth 1"),
    (WEIGHTS, "    scales: {dtype: f32, values: [0.5, 2]}\n", "", r":5:3: constant 'q': encoding i8_channel needs a component"),
    (WEIGHTS, "1, 2, 3, 4, -1", "1, 2, 3, 400, -1", r":10:41: '400' does not fit the data type"),
    (WEIGHTS, "    scales:", "    scale:", r":11:5: no component 'scale', did you mean 'scales'\?"),
    (WEIGHTS, "file: weights.safetensors", "file: weights.safetensor", r"no file 'weights.safetensor', did you mean 'weights.safetensors'\?"),
    (WEIGHTS, "tensor: model.e\n", "tensor: model.e\n  digest: 00ff\n", r":18:11: a digest has 16 bytes, not 2"),
    # What only the whole shows.
    (KERNEL, "file: scale_add.so", "file: hand.yaml", r":11:3: images\[0\]: 'code': it is not an ELF file"),
    (KERNEL, "shape: [n]", "shape: [8]", r":23:3: functions\[0\]: 'f' needs symbol 'n'"),
    (CONTROL, "- {copy: true, from: {input: x}", "- {call: g, inputs: {x: {input: x}}, results: {y: {result: y}}}\n    - {copy: true, from: {input: x}",
     r":7:3: function 'g'.*it calls itself"),
    (WEIGHTS, "tensor: model.e\n", "tensor: model.e\n  shard: {degree: 2, axis: 0, extent: 8, segments: [[0, 7]]}\n",
     r":18:10: segments\[0\]: \[0, 7\) with 1 replicas of degree 2"),
    (WEIGHTS, "functions:\n", "adapters:\n- {slot: lora, input: x}\nfunctions:\n", r":19:3: adapters\[0\].input: 'x' is no OPTIONAL input"),
    (WEIGHTS, "- name: e\n  source: external\n", "- name: e\n  source: prepared\n", r":12:3: "),
]  # fmt: skip


@pytest.mark.parametrize("text,old,new,said", MISTAKES, ids=[new.split("\n")[0][:40] for _, _, new, _ in MISTAKES])
def test_mistakes_have_their_place(text: str, old: str, new: str, said: str, code: pathlib.Path, tmp_path: pathlib.Path) -> None:
    assert old in text
    if "shape: [n]" in old:
        text = text.replace("shape: [n]", "shape: [8]", 1)
    (tmp_path / "scale_add.so").write_bytes(code.read_bytes())
    (tmp_path / "hand.yaml").write_text(text.replace(old, new, 1), encoding="utf-8")
    message = accx("build", tmp_path / "hand.yaml", "--output", tmp_path / "hand.accx", code=1)
    assert message.count("\n") == 1
    assert re.search(said, message), message
    assert sorted(p.name for p in tmp_path.iterdir()) == ["hand.yaml", "scale_add.so"]


# ---- Every node, broken in every way ----

def everything() -> dict:
    """A text that has every key (but those that exclude another), as JSON is YAML too."""
    tensor = {"dtype": "f32", "shape": ["n"]}
    arena = {"arena": True, "offset": "8 + induction(0) * 0", "size": "max($bytes, 16)"}
    return {
        "accx": 1, "optional_features": "0x100", "metadata": {"license": "none"},
        "symbols": [{"name": "n", "class": "specialize", "minimum": 1, "maximum": 64, "divisor": 1}, {"name": "b", "class": "bucket", "maximum": 8, "buckets": [4, 8]},
                    {"name": "r", "class": "runtime", "maximum": 4}, {"name": "cap", "class": "session", "maximum": 4}],
        "files": [{"name": "w.gguf", "kind": "gguf", "size": 64, "digest": "00" * 16}],
        "constants": [
            {"name": "w", "dtype": "f32", "shape": [4], "values": [1, 2, 3, 4]}, {"name": "d", "dtype": "u8", "shape": [4], "data": {"file": "data.bin", "offset": 4, "size": 4}},
            {"name": "t", "dtype": "u8", "shape": [3], "data": {"text": "abc"}}, {"name": "p", "source": "prepared", "dtype": "f32", "shape": [4], "size": 16},
            {"name": "q", "dtype": "f32", "encoding": "i8_group", "group": 32, "shape": [2, 32],
             "components": {"data": {"dtype": "i8", "data": "00" * 64}, "scales": {"dtype": "f32", "values": [1, 2]}}},
            {"name": "x", "source": "external", "dtype": "f32", "shape": [4], "file": "w.gguf", "tensor": "t", "digest": "11" * 16,
             "shard": {"degree": 2, "axis": 0, "extent": 8, "segments": [[0, 4, 1], [4, 8]]}},
            {"name": "y", "source": "external", "dtype": "f32", "shape": [4], "shard": {"degree": 2}}],
        "let_of_states": {"twice": "cap * 2"}, "states": [{"name": "s", "dtype": "f32", "shape": ["$twice"], "fill": "0x3f800000"}],
        "images": [{"name": "pack", "kind": "pack"}, {"name": "ptx", "kind": "ptx", "data": {"text": "//"}}],
        "kernels": [{
            "name": "k", "traits": ["deterministic"], "local_memory_bytes": 64, "block_bytes": 256,
            "parameters": [{"name": "x", "kind": "buffer", "access": "read", "optional": True, "offset": 0, "align": 8}, {"name": "t", "kind": "tensor", "access": "write"},
                           {"name": "a", "kind": "scalar", "size": 4}, {"name": "f", "kind": "scalar", "size": 8}, {"name": "n", "kind": "symbol"},
                           {"name": "work", "kind": "workspace", "access": "read_write"}],
            "variants": [{"image": "pack", "driver": "host", "arch_kind": "portable", "priority": 1, "cpu_features": [], "required_features": 0, "entry": "e",
                          "when": [{"parameter": "n", "divisible": 4}, {"parameter": "x", "aligned": 16}]},
                         {"image": "ptx", "driver": "cuda", "arch": "sm_90", "block": [32, 1, 1], "cluster": [1], "dynamic_shared_bytes": 16, "launch_traits": ["cooperative"]}]}],
        "locations": [{"file": "m.py", "line": 1, "column": 2, "name": "op"}],
        "functions": [
            {"name": "make", "prepare": True, "results": [{"name": "p", "constant": "p"}], "commands": [{"fill": 0, "to": {"result": "p"}}]},
            {"name": "inner", "internal": True, "inputs": [{"name": "x", **tensor}, {"name": "r", "symbol": "r"}], "results": [{"name": "y", **tensor}]},
            {"name": "f", "doc": "all", "required_features": 0, "let": {"bytes": "n * 4", "there": "present(z)"},
             "inputs": [{"name": "x", "kind": "read", "doc": "d", **tensor}, {"name": "u", "kind": "read_write", **tensor}, {"name": "z", "optional": True, **tensor},
                        {"name": "g", "dtype": "f32", "shape": ["b"]}, {"name": "r", "kind": "scalar", "symbol": "r"}],
             "results": [{"name": "y", **tensor}, {"name": "v", "must_alias": "u", **tensor}], "arena": {"size": "n * 64", "align": 64},
             "commands": [
                 {"dispatch": "k", "grid": ["n", 1, 1], "name": "first", "location": 0, "arguments": {
                     "x": {"input": "x", "offset": 0, "size": "$bytes"}, "t": {"result": "y", "dtype": "f32", "shape": ["n"], "strides": [1]},
                     "a": {"bits": "0x10"}, "f": {"f64": 1.5}, "n": {"value": "n + 1"}, "work": {"arena": True, "size": 64}}},
                 {"copy": True, "after": [0], "from": {"constant": "q", "component": "scales"}, "to": {"arena": True}, "extent": [4, 1, 1], "from_strides": [4, 4], "to_strides": [4, 4]},
                 {"barrier": True}, {"marker": "here"}, {"opcode": 32769, "raw": "0011223344556677", "required": False},
                 {"call": "inner", "inputs": {"x": {"input": "x"}, "r": "r"}, "results": {"y": {"result": "y"}}},
                 {"repeat": "min(cap, 2)", "commands": [{"fill": "0xff", "pattern_bytes": 1, "to": arena}]},
                 {"branch": "$there and n % 2 == 0 or not(ceildiv(n, 2) > 3)", "then": [{"fill": 1, "to": {"state": "s"}}], "else": [{"marker": "no"}]}]}],
        "adapters": [{"slot": "lora", "input": "z", "scaled": True}], "assets": [{"name": "a", "media_type": "text/plain", "data": "00"}],
        "sections": [{"type": 65536, "name": "acme", "record_bytes": 2, "record_count": 1, "data": "0011"}], "strings": ["loose"],
    }  # fmt: skip


def broken(node: object, root: dict):
    """Copies of the text, each with one node in another way: gone, of another kind, with another
    name, odd. And whether each is always tried."""
    if isinstance(node, dict):
        for key in list(node):
            value = node[key]
            yield from broken(value, root)
            for other in (None, [], {}, [[]], "", "odd word", "-1", "99999999999999999999", "0x1g", "$none + (", "`", "present(", "1e999", "ff", [1] * 9, {"a": 1}):
                node[key] = other
                if other is None:
                    del node[key]
                yield other == ({} if isinstance(value, list) else []), json.dumps(root)
                node[key] = value
            del node[key]
            node[key + "s"] = value
            yield True, json.dumps(root)
            del node[key + "s"]
            node[key] = value
    elif isinstance(node, list):
        for index, value in enumerate(node):
            yield from broken(value, root)
            for other in ([], {}, "odd word", "99999999999999999999", "-1"):
                node[index] = other
                yield other == [], json.dumps(root)
            node[index] = value
        node.append(node[-1] if node else "more")
        yield False, json.dumps(root)
        node.pop()


def test_every_mistake_has_a_place(tmp_path: pathlib.Path) -> None:
    """A piece of all that can be wrong with one node, another one each time: refused in one line
    with a place, or built to what verifies."""
    print("seed", SEED)
    (tmp_path / "data.bin").write_bytes(bytes(8))
    root = everything()
    path, out = tmp_path / "wrong.json", tmp_path / "out.accx"
    path.write_text(json.dumps(root), encoding="utf-8")
    accx("build", path, "--output", out)
    accx("verify", "--full", out)
    round_trip(out, tmp_path)
    every = list(broken(root, root))
    others = [text for always, text in every if not always]
    wrong = [text for always, text in every if always] + random.Random(SEED).sample(others, min(len(others), 8 * ROUNDS))
    refused = 0
    for text in wrong:
        path.write_text(text, encoding="utf-8")
        out.unlink(missing_ok=True)
        done = subprocess.run([str(ACCX), "build", str(path), "--output", str(out)], capture_output=True, text=True)
        if done.returncode == 0:
            accx("verify", out)
            continue
        refused += 1
        assert done.returncode in (1, 3) and re.fullmatch(r"accx: .*wrong\.json:\d+:\d+: [^\n]+\n", done.stderr), (done.stderr, text)
        assert not out.exists()
    assert refused > len(wrong) // 2


F, K, W, Q, X, CALL = 2, 0, 0, 4, 5, 5  # places in everything()


def at(root: dict, *path: object) -> tuple:
    for key in path[:-1]:
        root = root[key]
    return root, path[-1]


def put(*path_and_value: object):
    def edit(root: dict) -> None:
        place, key = at(root, *path_and_value[:-1])
        place[key] = path_and_value[-1]

    return edit


def drop(*path: object):
    def edit(root: dict) -> None:
        place, key = at(root, *path)
        del place[key]

    return edit


C = ("functions", F, "commands")
# One thing that is wrong, and what is said of it.
WRONG = [
    (put("constants", 1, "data", {"file": "data.bin", "offset": 7, "size": 4}), "'data.bin' has 8 bytes, too few for offset 7 and size 4"),
    (put("constants", 1, "data", {"file": "data.bin", "offset": 0, "size": 2**64 - 1}), "'data.bin' has 8 bytes, too few for offset 0 and size 18446744073709551615"),
    (put("constants", 1, "data", {"file": "data.bin", "size": 2**64}), "'18446744073709551616' is not a whole number from 0 to 2\\^64 - 1"),
    (put("constants", 1, "data", {"file": "data.bin", "text": "x"}), "'data' needs 'file' or 'text'"),
    (put("constants", 1, "data", {"file": "data.bin", "ofset": 1}), "'data' has no 'ofset', did you mean 'offset'"),
    (put("files", 0, "digest", "00"), "a digest has 16 bytes, not 1"), (put("metadata", "\x00", "x"), "NUL|null|control characters"),
    (put("optional_features", "-1"), "not a whole number from 0"), (put("strings", ["a" * 70000]), "limit is 65535"),
    (put("symbols", 0, "maximum", 0), "range"), (put("symbol", []), "the text has no 'symbol', did you mean 'symbols'"),
    (put("let_of_states", "twice", "cap +"), "a number, a symbol or"), (put("let_of_states", ["x"]), "let_of_states is a map"),
    (put("constants", Q, "components", "zero", {"dtype": "i8", "data": "00"}), "no component 'zero', did you mean 'zeros'"),
    (put("constants", Q, "components", {str(i): {"dtype": "i8", "data": "00"} for i in range(6)}), "at most 5 components"),
    (put("constants", X, "shard", "segments", [[0]]), r"a segment is \[begin, end\]"), (put("constants", X, "shard", "segments", [[0, 4, 2**40]]), "does not fit 32 bits"),
    (put("constants", X, "digest", "zz"), "character 1 of 2 is 'z'"), (put("constants", W, "shape", [1] * 9), "9 dimensions; 8 are possible"),
    (put("states", 0, "shape", ["1"] * 9), "9 dimensions; 8 are possible"), (put("kernels", K, "traits", [2**40]), "traits are 32 bits"),
    (put("kernels", K, "variants", 1, "launch_traits", [2**40]), "launch traits are 32 bits"), (put("kernels", K, "variants", 0, "priority", 2**40), "priority .* does not fit 32 bits"),
    (put("kernels", K, "variants", 1, "block", []), "'block' has 1 to 3 numbers"), (put("kernels", K, "variants", 1, "cluster", [2**33]), "does not fit 32 bits"),
    (put("kernels", K, "variants", 0, "when", [{"parameter": "n"}]), "a condition is a parameter and one of"),
    (put("kernels", K, "variants", 0, "when", [{"parameter": "m", "equal": 1}]), "'m'"), (drop("kernels", K, "variants"), "a kernel needs 'variants'"),
    (drop("kernels", K, "variants", 0, "image"), "a variant needs 'image'"), (put("kernels", K, "parameters", 0, "kind", 7), "kind 7|kind"),
    (put("kernels", K, "parameters", [{"name": f"p{i}", "kind": "symbol"} for i in range(300)]), "300 parameters; .* are possible"),
    (put("functions", F, "inputs", 0, "kind", "result"), "'x' is among the inputs"), (put("functions", F, "results", 0, "kind", "read"), "'y' is among the results"),
    (put("functions", F, "results", 1, "must_alias", "uu"), "no input 'uu'"), (drop("functions", F, "arena", "size"), "an arena needs 'size'"),
    (put("functions", F, "inputs", [{"name": f"i{i}", "dtype": "f32", "shape": []} for i in range(5000)]), "5000 arguments; 4096 are possible"),
    (put("functions", F, "let", {"bytes": "n * 4", "there": "present(z)", "v": "$w", "w": "$v + present(z)"}), "'w' is defined after this"),
    (put(*C, 0, "arguments", "t", "strides", [1, 1]), "2 strides of 1 dimensions"), (put(*C, 0, "arguments", "a", {"f32": []}), "a number is a word"),
    (put(*C, 0, "location", 1), "location 1 of 1"), (put(*C, 0, "copy", True), "a command is one thing, not two"),
    (put(*C, 1, "from", {"constant": "q", "component": "zeros"}), "constant 'q' has no such component"), (put(*C, 1, "from", {"constant": "w", "component": 9}), "no such component"),
    (put(*C, 4, "opcode", 2**20), "opcode 1048576 has 16 bits"), (put(*C, 4, "raw", "0"), "an even number of hexadecimal digits"),
    (put(*C, CALL, "target", "cuda"), "no function 'inner' for 'cuda'"), (put(*C, CALL, "results", "y", {"input": "x"}), ""),
    (put(*C, CALL, "inputs", "x", None), "a buffer is given as"), (drop(*C, CALL, "inputs", "x"), "argument 'x': it is not optional"),
    (put(*C, 6, "repeat", "select(n, 1)"), "',' is expected"), (put(*C, 6, "repeat", "min(2, 1"), r"'\)' is expected"), (put(*C, 6, "repeat", "induction(16)"), "the depth of a repeat"),
    (put(*C, 6, "repeat", "induction(0"), "'\\)' is expected"), (put(*C, 6, "repeat", "present(z"), "'\\)' is expected"), (put(*C, 6, "repeat", "nothing(1)"), "no such function"),
    (put(*C, 6, "repeat", "`" + "a" * 1100 + "`"), "more than 1023 bytes"), (put(*C, 6, "repeat", "(" * 300 + "1"), "nested more than 256 deep"), (put(*C, 6, "repeat", "1 +* 2"), "a number, a symbol"),
    (put(*C, 6, "repeat", "1 < 2 < 3"), "an operator is expected"), (put(*C, 6, "repeat", "1 or"), "a number"), (put(*C, 6, "repeat", "1 and"), "a number"), (put(*C, 6, "repeat", "1 =="), "a number"),
    (put(*C, 6, "repeat", "12x"), "no number of 64 bits"), (put(*C, 6, "repeat", "$"), "a name is expected"), (put(*C, 6, "repeat", "$none"), "no 'let' name 'none'"),
    (put(*C, 7, "then", "x"), "commands is a list, not a word"), (put("adapters", 0, "input", "x"), "'x' is no OPTIONAL input"), (put("adapters", 0, "scaled", "maybe"), "'scaled' is true or false"),
    (put("sections", 0, "type", 2**33), "does not fit 32 bits"), (put("sections", 0, "type", 5), "makes sections of type 5 itself"), (put("assets", 0, "name", ""), "name is empty|empty"),
    (put("functions", 0, "commands", 0, "to", {"state": "s"}), "prepare function|'make'"), (put("functions", 0, "results", []), "'make'|'p'"),
]  # fmt: skip


# What is found when all is there, and the line of what it is about (in everything() with an entry a
# line).
WHOLE = [
    (put("kernels", K, "variants", 1, "cluster", [100, 100]), r'^   "name": "k",$', r"launches\[0\]"),
    (put("constants", 6, "shard", "degree", 3), r'^   "shard": \{$', r"shards\[1\]|shard"),
    (put("constants", X, "shard", "segments", 1, [4, 9]), r'^   "shard": \{$', r"segments\[1\]|shards\[0\]"),
    (lambda root: root["functions"].append({"name": "f", "target": "cuda", "commands": []}), r'^   "(name|target)": "(f|cuda)",$', "'f'.* 'cuda'|'cuda'.* 'f'"),
    (put("functions", F, "results", 1, "must_alias", "g"), r'^     "name": "v",$|^   "name": "f",$', ""),
    (put("images", 1, "data", {"file": "data.bin", "size": 7}), r'^   "name": "ptx",$', "'ptx'"),
    (drop("symbols", 3), "", "no symbol 'cap'"),
]  # fmt: skip


@pytest.mark.parametrize("edit,line,said", WHOLE, ids=[f"{i}" for i in range(len(WHOLE))])
def test_what_only_the_whole_shows_has_its_place(edit, line: str, said: str, tmp_path: pathlib.Path) -> None:
    (tmp_path / "data.bin").write_bytes(b"12345678")
    root = everything()
    edit(root)
    (tmp_path / "wrong.json").write_text(json.dumps(root, indent=1), encoding="utf-8")
    message = accx("build", tmp_path / "wrong.json", "--output", tmp_path / "out.accx", code=1)
    place = re.search(r"wrong.json:(\d+):\d+: (.*)", message)
    assert place and re.search(said, place.group(2)), message
    lines = (tmp_path / "wrong.json").read_text(encoding="utf-8").splitlines()
    number = int(place.group(1))
    assert number > 1 and any(re.search(line, near) for near in lines[number - 1 : number + 1]), (message, lines[number - 2 : number + 2])


@pytest.mark.parametrize("edit,said", WRONG, ids=[f"{i}" for i in range(len(WRONG))])
def test_what_is_wrong_is_said(edit, said: str, tmp_path: pathlib.Path) -> None:
    (tmp_path / "data.bin").write_bytes(bytes(8))
    root = everything()
    edit(root)
    (tmp_path / "wrong.json").write_text(json.dumps(root, indent=1), encoding="utf-8")
    message = accx("build", tmp_path / "wrong.json", "--output", tmp_path / "out.accx", code=1)
    assert re.search(rf"wrong.json:\d+:\d+: .*({said})", message), message


@pytest.mark.parametrize("text,said", [
    ("", ": the text is empty"), ("# nothing", ": the text is empty"), ("accx: 1\nfunctions: " + "[" * 80 + "]" * 80, "nest more than 64 deep"), ("accx: 1\n[a]: 1", "a key is a word"),
    ('accx: "\\0"', "a word may not contain NUL"), ("accx: 1\n\x01", "control characters|allowed"), ("\ufeffaccx: 1\nsymbol: 1", "2:1: the text has no 'symbol'"),
    ("accx: 2", "1:7: text form 2"), ("- accx", "1:1: the text is a map, not a list")])  # fmt: skip
def test_texts_that_are_none(text: str, said: str, tmp_path: pathlib.Path) -> None:
    (tmp_path / "wrong.yaml").write_text(text, encoding="utf-8")
    assert re.search(said, accx("build", tmp_path / "wrong.yaml", "--output", tmp_path / "out.accx", code=1))
