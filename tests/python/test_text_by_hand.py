"""Programs that a person writes as text: with kernels, branches, repeats, states, weights, quantized weights and files. They run, and
mistakes in them are told with the place that they are made at."""

from __future__ import annotations

import json
import pathlib
import re
import struct
import sys

import numpy as np
import pytest

import accrt
from test_text import ROOT, accx, round_trip

sys.path.insert(0, str(ROOT / "tests" / "golden"))

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
    (KERNEL, "a: {f32: 2}", "a: {bits: 2.5}", r":38:17: '2.5' is no whole number"),
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
