#!/usr/bin/env python3
"""Every dequantizer of the library beside an implementation that is not ours, element for element
in f32.

    oracles.py [--blocks N] [--seed S] [--json FILE] [LAYOUT...]

Blocks are random bits, so scales are NaN, infinite, subnormal and negative too. Equal means: the
same bits, or NaN on both sides. The packages are those of docs/layouts.md; a case whose package is
missing is reported as skipped, and only --allow-missing makes that a success. With the default seed
and number of blocks the hashes of the values are compared with those in docs/layouts.md. `./dev
check layouts` runs this with all packages.
"""
from __future__ import annotations

import argparse
import ast
import json
import os
import pathlib
import sys
import time
import types
from typing import Callable, NamedTuple

import numpy as np
import xxhash

from accrt import layouts
from accrt.layouts import Component, Packed

DOCUMENT = pathlib.Path(__file__).resolve().parents[2] / "docs" / "layouts.md"
CASES: list["Case"] = []


class Case(NamedTuple):
    name: str  #: layout, and variant after a slash
    oracle: str  #: packages, or where the formula is from
    make: Callable[[np.random.Generator, int], Packed]  #: random weight of at least so many blocks
    expect: Callable[[Packed], np.ndarray]


def case(name: str, oracle: str, make):
    def add(expect):
        CASES.append(Case(name, oracle, make, expect))
        return expect
    return add


def random_bytes(rng: np.random.Generator, size: int) -> np.ndarray:
    return np.frombuffer(rng.bytes(size), np.uint8).copy()


def random_weight(layout: str, shape: tuple[int, ...], dtypes: dict[str, str], group: int = 0,
                  skip: tuple[str, ...] = ()) -> Callable[[np.random.Generator], Packed]:
    """A weight whose components are random bits; GROUP_INDEX is random groups."""
    def make(rng: np.random.Generator) -> Packed:
        number = layouts.layout_id(layout)
        logical = dtypes["data"] if number == 0 else "f32"
        components = {}
        for role in layouts.ROLES:
            if role not in dtypes or role in skip:
                continue
            size = layouts.component_size(number, shape, role, dtypes[role], group_elements=group, weight_dtype=logical)
            data = random_bytes(rng, size)
            if role == "global_scale" or (layout == "f8_tensor" and role == "scales"):
                # The only one: a usual number, since random bits would make all values 0 or
                # infinite.
                kind = number_types()[dtypes[role]]
                data = np.array([rng.uniform(1e-3, 2)]).astype(kind).view(np.uint8)
            if role == "group_index":
                data = rng.integers(0, -(-shape[-1] // group), shape[-1], dtype=np.int32).view(np.uint8)
            components[role] = Component(dtypes[role], data)
        return Packed(number, shape, components, group, logical)
    return make


# ---- Numbers, by ml_dtypes and numpy -------------------------------------------------------------

def number_types() -> dict:
    import ml_dtypes as m
    return {"f32": np.float32, "f16": np.float16, "bf16": m.bfloat16, "i8": np.int8, "u8": np.uint8, "i32": np.int32,
            "f8e4m3fn": m.float8_e4m3fn, "f8e5m2": m.float8_e5m2, "f8e8m0": m.float8_e8m0fnu, "f4e2m1": m.float4_e2m1fn,
            "u4": m.uint4, "i4": m.int4}


def numbers(component: Component) -> np.ndarray:
    """A component's elements as f32; two a byte are taken apart, the low nibble first."""
    kind = number_types()[component.dtype]
    data = component.data
    if component.dtype in ("f4e2m1", "u4", "i4"):
        data = np.stack([data & 15, data >> 4], -1).reshape(-1)
    with np.errstate(invalid="ignore"):
        return data.view(kind).astype(np.float32)


PLAIN = {"f32": 1, "f16": 1, "bf16": 1, "i8": 1, "u8": 1, "f8e4m3fn": 1, "f8e5m2": 1, "f4e2m1": 1, "i4": 1, "u4": 1}
for _type in PLAIN:
    @case(f"plain/{_type}", "numpy" if _type in ("f32", "f16", "i8", "u8") else "ml_dtypes",
          lambda rng, blocks, t=_type: random_weight("plain", (blocks // 100, 3200), {"data": t})(rng))
    def _plain(packed: Packed) -> np.ndarray:
        return numbers(packed.components["data"])[:int(np.prod(packed.shape))].reshape(packed.shape)


# ---- GGUF, by the gguf package -------------------------------------------------------------------

GGUF = {"q8_0": "Q8_0", "q4_0": "Q4_0", "q4_1": "Q4_1", "q4_k": "Q4_K", "q5_k": "Q5_K", "q6_k": "Q6_K",
        "ggml_mxfp4": "MXFP4", "ggml_nvfp4": "NVFP4",
        "q5_0": "Q5_0", "q5_1": "Q5_1", "q2_k": "Q2_K", "q3_k": "Q3_K", "iq4_nl": "IQ4_NL"}
for _name, _type in GGUF.items():
    @case(_name, "gguf", lambda rng, blocks, n=_name: random_weight(
        n, (blocks // 8, 8 * layouts.info(n).block_elements), {"data": "u8"})(rng))
    def _gguf(packed: Packed, t=_type) -> np.ndarray:
        import gguf
        with np.errstate(all="ignore"):
            rows = packed.components["data"].data.reshape(packed.shape[0], -1)
            return gguf.dequantize(rows, gguf.GGMLQuantizationType[t]).astype(np.float32)


# ---- Elements with scales beside them, by compressed-tensors and torchao -------------------------

def torch_of(component: Component):
    """A component as a torch tensor of its own type; words of 4-bit values as int32, two a byte as
    uint8."""
    import torch
    kinds = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16, "i8": torch.int8, "i32": torch.int32,
             "f8e4m3fn": torch.float8_e4m3fn, "f8e5m2": torch.float8_e5m2}
    tensor = torch.from_numpy(component.data)
    return tensor.view(kinds[component.dtype]) if component.dtype in kinds else tensor


def compressed(packed: Packed, elements, zeros=None, **arguments) -> np.ndarray:
    """compressed-tensors' dequantize with f32 scales."""
    from compressed_tensors.quantization import QuantizationArgs
    from compressed_tensors.quantization.lifecycle.forward import dequantize
    rows, columns = packed.shape
    scales = torch_of(packed.components["scales"]).float()
    strategy = arguments["strategy"]
    scales = scales.reshape({"tensor": (1,), "channel": (rows, 1)}.get(strategy, (-(-rows // 128), -1)
                                                                      if strategy == "block" else (rows, -1)))
    made = dequantize(elements, scales, zeros, QuantizationArgs(**arguments))
    return made.numpy()


def rows_of(component: Component, packed: Packed):
    return torch_of(component).reshape(packed.shape)


def nibbles(component: Component, packed: Packed, rows: int = -1):
    """Two a byte, by torchao."""
    from torchao.prototype.mx_formats.kernels import unpack_uint4
    return unpack_uint4(torch_of(component)).reshape(packed.shape[0] if rows < 0 else rows, -1)


F8_SHAPES = {"f8_tensor": ("tensor", (1000, 3200)), "f8_channel": ("channel", (1000, 3200)),
             "f8_block128": ("block", (128 * 10 - 5, 128 * 200 - 77))}
for _name, (_strategy, _shape) in F8_SHAPES.items():
    for _type, _scale in (("f8e4m3fn", "f32"), ("f8e5m2", "f32"), ("f8e4m3fn", "bf16")):
        @case(f"{_name}/{_type}/{_scale}", "compressed-tensors",
              lambda rng, blocks, n=_name, s=_shape, t=_type, c=_scale: random_f8(n, s, blocks, t, c)(rng))
        def _f8(packed: Packed, strategy=_strategy) -> np.ndarray:
            elements = rows_of(packed.components["data"], packed)
            more = {"block_structure": [128, 128]} if strategy == "block" else {}
            if strategy == "block":  # its padding of ragged edges knows no 8-bit types
                elements = elements.float()
            return compressed(packed, elements, num_bits=8, type="float", strategy=strategy, symmetric=True, **more)


def random_f8(layout: str, shape: tuple[int, int], blocks: int, data: str, scales: str):
    """Tiles of 128x128 with ragged edges, some thousands at a time; else blocks of 32 elements."""
    if layout != "f8_block128":
        shape = (blocks * 32 // shape[1], shape[1])
    return random_weight(layout, shape, {"data": data, "scales": scales})


for _scale in ("f32", "f16", "bf16"):
    @case(f"i8_channel/{_scale}", "compressed-tensors", lambda rng, blocks, c=_scale: random_weight(
        "i8_channel", (blocks // 100, 3200), {"data": "i8", "scales": c})(rng))
    def _i8_channel(packed: Packed) -> np.ndarray:
        return compressed(packed, rows_of(packed.components["data"], packed), num_bits=8, type="int", strategy="channel",
                          symmetric=True)

    @case(f"i8_group/{_scale}", "compressed-tensors", lambda rng, blocks, c=_scale: random_weight(
        "i8_group", (blocks // 50, 50 * 32), {"data": "i8", "scales": c}, 32)(rng))
    def _i8_group(packed: Packed) -> np.ndarray:
        return compressed(packed, rows_of(packed.components["data"], packed), num_bits=8, type="int", strategy="group",
                          group_size=packed.group_elements, symmetric=True)

    @case(f"i4_group/{_scale}", "torchao, compressed-tensors", lambda rng, blocks, c=_scale: random_weight(
        "i4_group", (blocks // 50, 50 * 32), {"data": "u4", "scales": c}, 32)(rng))
    def _i4_group(packed: Packed) -> np.ndarray:
        import torch
        elements = nibbles(packed.components["data"], packed).to(torch.int8) - 8
        return compressed(packed, elements, num_bits=4, type="int", strategy="group", group_size=packed.group_elements,
                          symmetric=True)

    @case(f"i4_group_asym/{_scale}", "torchao, compressed-tensors", lambda rng, blocks, c=_scale: random_weight(
        "i4_group_asym", (-(-blocks // 51), 51 * 32), {"data": "u4", "scales": c, "zeros": "u4"}, 32)(rng))
    def _i4_asym(packed: Packed) -> np.ndarray:
        import torch
        zeros = nibbles(packed.components["zeros"], packed)[:, :packed.shape[1] // packed.group_elements]
        return compressed(packed, nibbles(packed.components["data"], packed).to(torch.int8), zeros.to(torch.int8), num_bits=4,
                          type="int", strategy="group", group_size=packed.group_elements, symmetric=False)


@case("mxfp4", "torchao", lambda rng, blocks: random_weight(
    "mxfp4", (blocks // 50, 50 * 32), {"data": "f4e2m1", "scales": "f8e8m0"})(rng))
def _mxfp4(packed: Packed) -> np.ndarray:
    import torch
    from torchao.prototype.mx_formats.mx_tensor import to_dtype
    data = torch_of(packed.components["data"]).reshape(packed.shape[0], -1)
    scales = torch_of(packed.components["scales"]).reshape(packed.shape[0], -1)
    return to_dtype(data, scales, torch.float4_e2m1fn_x2, 32, torch.float32).numpy()


for _type in ("f8e4m3fn", "f8e5m2"):
    @case(f"mxfp8/{_type}", "torchao", lambda rng, blocks, t=_type: random_weight(
        "mxfp8", (blocks // 50, 50 * 32), {"data": t, "scales": "f8e8m0"})(rng))
    def _mxfp8(packed: Packed) -> np.ndarray:
        import torch
        from torchao.prototype.mx_formats.mx_tensor import to_dtype
        data = rows_of(packed.components["data"], packed)
        scales = torch_of(packed.components["scales"]).reshape(packed.shape[0], -1)
        return to_dtype(data, scales, data.dtype, 32, torch.float32).numpy()


@case("nvfp4", "torchao", lambda rng, blocks: random_weight(
    "nvfp4", (blocks // 50, 50 * 16), {"data": "f4e2m1", "scales": "f8e4m3fn", "global_scale": "f32"})(rng))
def _nvfp4(packed: Packed) -> np.ndarray:
    import torch
    from torchao.prototype.mx_formats.nvfp4_tensor import NVFP4Tensor
    data = torch_of(packed.components["data"]).reshape(packed.shape[0], -1)
    scales = torch_of(packed.components["scales"]).reshape(packed.shape[0], -1)
    weight = NVFP4Tensor(data, scales, 16, torch.float32, torch_of(packed.components["global_scale"]).reshape(()))
    return weight.dequantize(torch.float32).numpy()


# ---- GPTQ and AWQ, by their own projects' code ---------------------------------------------------
# Those packages need much more than their dequantizers do, so the functions alone are taken out of
# their sources and run.

def source_of(project: str, path: str) -> str:
    import glob
    folder = os.environ.get("ACCRT_ORACLE_SOURCES", "build/check/layouts/sources")
    found = glob.glob(os.path.join(folder, project + "*", path))
    if not found:
        raise ImportError(f"the sources of {project} are not under {folder}")
    with open(found[0]) as file:
        return file.read()


def statements(text: str, owner: str, function: str) -> list[ast.stmt]:
    """The body of a method in a source text."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ClassDef) and node.name == owner:
            for member in node.body:
                if isinstance(member, ast.FunctionDef) and member.name == function:
                    return member.body
    raise ImportError(f"no {owner}.{function} in the source")


def if_body(body: list[ast.stmt], test: str) -> list[ast.stmt]:
    """The last `if` in `body` (and below) with this test."""
    found = [n for s in body for n in ast.walk(s) if isinstance(n, ast.If) and ast.unparse(n.test) == test]
    return found[-1].body


def execute(body: list[ast.stmt], names: dict) -> dict:
    exec(compile(ast.fix_missing_locations(ast.Module(body, [])), "oracle", "exec"), names)  # noqa: S102
    return names


def gptq_self(packed: Packed):
    import torch
    rows, columns = packed.shape
    index = packed.components.get("group_index")
    made = types.SimpleNamespace(bits=4, maxq=15, pack_factor=8, in_features=columns, dequant_dtype=torch.int8)
    made.qweight = torch_of(packed.components["data"]).reshape(columns // 8, rows)
    made.qzeros = torch_of(packed.components["zeros"]).reshape(-1, rows // 8)
    made.scales = torch_of(packed.components["scales"]).float().reshape(-1, rows)
    made.g_idx = torch_of(index) if index else torch.arange(columns) // packed.group_elements
    made.wf = torch.arange(0, 32, 4, dtype=torch.int32).unsqueeze(0)
    made.wf_unsqueeze_zero, made.wf_unsqueeze_neg_one = made.wf.unsqueeze(0), made.wf.unsqueeze(-1)
    return made


GPTQ_TYPES = {"data": "i32", "scales": "f16", "zeros": "i32", "group_index": "i32"}
for _skip in ((), ("group_index",)):
    _suffix = "in order" if _skip else "g_idx"

    @case(f"gptq_v1/{_suffix}", "auto-gptq qlinear_cuda.py", lambda rng, blocks, skip=_skip: random_weight(
        "gptq_v1", (1600, blocks // 50), GPTQ_TYPES, 32, skip)(rng))
    def _gptq_v1(packed: Packed) -> np.ndarray:
        import torch
        body = statements(source_of("auto_gptq", "auto_gptq/nn_modules/qlinear/qlinear_cuda.py"), "QuantLinear", "forward")
        names = {"torch": torch, "self": gptq_self(packed)}
        execute(if_body(body, "self.bits in [2, 4, 8]"), names)
        weight = names["weight"]
        names["weight"] = weight.reshape(weight.shape[0] * weight.shape[1], weight.shape[2])
        return execute(if_body(body, "num_itr == 1"), names)["weights"].numpy().T.copy()

    @case(f"gptq_v2/{_suffix}", "gptqmodel qlinear/__init__.py", lambda rng, blocks, skip=_skip: random_weight(
        "gptq_v2", (1600, blocks // 50), GPTQ_TYPES, 32, skip)(rng))
    def _gptq_v2(packed: Packed) -> np.ndarray:
        import torch
        text = source_of("gptqmodel", "gptqmodel/nn_modules/qlinear/__init__.py")
        owner = next(n.name for n in ast.walk(ast.parse(text)) if isinstance(n, ast.ClassDef)
                     and any(getattr(m, "name", "") == "dequantize_weight" for m in n.body))
        body = statements(text, owner, "dequantize_weight")
        names = {"t": torch, "self": gptq_self(packed), "num_itr": 1, "_torch_right_shift": torch.bitwise_right_shift}
        execute(if_body(body, "self.bits in [2, 4, 8]"), names)
        weight = names["weight"]
        names["weight"] = weight.reshape(weight.shape[0] * weight.shape[1], weight.shape[2])
        final = if_body(statements(text, owner, "_dequantize_from_codes"), "num_itr == 1")
        return execute(final, names)["weights"].numpy().T.copy()


@case("awq", "autoawq packing_utils.py", lambda rng, blocks: random_weight(
    "awq", (1600, -(-blocks // 1600) * 32), {"data": "i32", "scales": "f16", "zeros": "i32"}, 32)(rng))
def _awq(packed: Packed) -> np.ndarray:
    names: dict = {}
    exec(source_of("autoawq", "awq/utils/packing_utils.py"), names)  # noqa: S102
    rows, columns = packed.shape
    made = names["dequantize_gemm"](
        torch_of(packed.components["data"]).reshape(columns, rows // 8),
        torch_of(packed.components["zeros"]).reshape(-1, rows // 8),
        torch_of(packed.components["scales"]).float().reshape(-1, rows), 4, packed.group_elements)
    return made.numpy().T.copy()


# ---- What no package does: by numpy, from the formula --------------------------------------------

def by_numpy(packed: Packed) -> np.ndarray:
    """(q - z) * s with the group of each column by GROUP_INDEX, or ragged last groups."""
    rows, columns = packed.shape
    groups = -(-columns // packed.group_elements)
    index = packed.components.get("group_index")
    group = index.data.view(np.int32) if index else np.arange(columns) // packed.group_elements
    elements = numbers(packed.components["data"]).reshape(rows, columns)
    scales = numbers(packed.components["scales"]).reshape(rows, groups)
    zeros = np.full((rows, groups), 8 if packed.components["data"].dtype == "u4" else 0, np.float32)
    if "zeros" in packed.components:
        zeros = numbers(packed.components["zeros"]).reshape(rows, -1)[:, :groups]
    with np.errstate(all="ignore"):
        return (elements - zeros[:, group]) * scales[:, group]


for _name, _types in (("i8_group", {"data": "i8", "scales": "f16"}), ("i4_group", {"data": "u4", "scales": "f16"}),
                      ("i4_group_asym", {"data": "u4", "scales": "f16", "zeros": "u4"})):
    @case(f"{_name}/ragged", "numpy, from the formula", lambda rng, blocks, n=_name, t=_types: random_weight(
        n, (blocks // 50, 50 * 32 + 6), t, 32)(rng))
    def _ragged(packed: Packed) -> np.ndarray:
        return by_numpy(packed)

    if "u4" in _types.values():
        @case(f"{_name}/g_idx", "numpy, from the formula", lambda rng, blocks, n=_name, t=_types: random_weight(
            n, (blocks // 50, 50 * 32), {**t, "group_index": "i32"}, 32)(rng))
        def _indexed(packed: Packed) -> np.ndarray:
            return by_numpy(packed)


# ---- The runner ----------------------------------------------------------------------------------

def canonical(values: np.ndarray) -> bytes:
    """The f32 values with every NaN as 0x7FC00000."""
    bits = values.astype(np.float32, copy=True).view(np.uint32).reshape(-1)
    bits[np.isnan(values).reshape(-1)] = 0x7FC00000
    return bits.tobytes()


def compare(got: np.ndarray, expected: np.ndarray) -> str | None:
    if got.shape != expected.shape or expected.dtype != np.float32:
        return f"{got.shape} {got.dtype} beside {expected.shape} {expected.dtype}"
    same = got.view(np.uint32) == expected.view(np.uint32)
    if not same.all():
        same |= np.isnan(got) & np.isnan(expected)
    if same.all():
        return None
    at = tuple(int(i) for i in np.argwhere(~same)[0])
    return f"{np.count_nonzero(~same)} of {same.size} differ; at {at} {got[at]!r} beside {expected[at]!r}"


def block_count(packed: Packed) -> int:
    """Blocks of a layout: those that have a scale of their own; 32 elements where the whole row or
    tensor shares one."""
    if packed.layout == layouts.layout_id("f8_block128"):
        return -(-packed.shape[0] // 128) * -(-packed.shape[1] // 128)
    info = layouts.info(packed.layout)
    size = packed.group_elements or info.group_elements or 32
    return int(np.prod(packed.shape)) // max(size, info.block_elements)


def run(one: Case, blocks: int, seed: int) -> dict:
    """Weights of a case until there were `blocks` blocks; the hash is XXH3-128 of all values."""
    rng = np.random.default_rng([seed, *one.name.encode()])
    record = {"case": one.name, "oracle": one.oracle, "seed": seed, "blocks": 0, "nan": 0, "result": "equal"}
    hasher = xxhash.xxh3_128()
    while record["blocks"] < blocks:
        packed = one.make(rng, blocks)
        got = layouts.dequantize(packed)
        hasher.update(canonical(got))
        record["blocks"] += block_count(packed)
        record["nan"] += int(np.isnan(got).sum())
        try:
            record["result"] = compare(got, one.expect(packed)) or "equal"
        except ImportError as error:
            record["result"] = f"skipped: {error}"
        if record["result"] != "equal":
            break
    record["hash"] = hasher.hexdigest()
    return record


# ---- Quantizers ----------------------------------------------------------------------------------

def rounding(layout: str, data: str, largest: float, rng: np.random.Generator) -> dict:
    """Elements are rounded as ml_dtypes rounds them, where the scale is 1: ties to even, and no
    value above the largest."""
    values = (rng.standard_normal((50_000, 32)) * largest * 10.0 ** rng.uniform(-7, 0, (50_000, 32))).astype(np.float32)
    grid = numbers(Component(data, np.arange(256 if data != "f4e2m1" else 128, dtype=np.uint8)))
    grid = np.unique(np.abs(grid[np.isfinite(grid)]))
    values[::2, 1::2] = rng.choice((grid[:-1] + grid[1:]) / 2, values[::2, 1::2].shape)  # ties
    values = np.clip(values, -largest, largest)
    values[:, 0] = largest
    packed = layouts.quantize(values, layout, data=data)
    with np.errstate(over="ignore"):
        expected = values.astype(number_types()[data]).astype(np.float32)
    return {"case": f"rounding to {data}", "oracle": "ml_dtypes", "blocks": len(values),
            "result": compare(layouts.dequantize(packed), expected) or "equal"}


def beside_gguf(layout: str, rng: np.random.Generator) -> dict:
    """Round to nearest loses no more than the package's own quantizer does (0.05 dB)."""
    import gguf
    values = (rng.standard_normal((3000, 1024)) * 0.02).astype(np.float32)
    values[rng.random(values.shape) < 0.002] *= 6
    kind = gguf.GGMLQuantizationType[GGUF[layout]]
    theirs = gguf.dequantize(gguf.quantize(values, kind), kind)
    signal = (values.astype(np.float64) ** 2).sum()
    field = 10 * np.log10(signal / ((theirs.astype(np.float64) - values) ** 2).sum())
    ours, searched = (layouts.quantize(values, layout, search=s).error.sqnr_db for s in (False, True))
    good = ours >= field - 0.05
    return {"case": f"{layout} quantizer", "oracle": "gguf", "blocks": values.size // 32,
            "result": f"{'equal' if good else 'worse'}: {ours:.2f} dB, searched {searched:.2f}, gguf's {field:.2f}"}


def quantizers(seed: int) -> list[dict]:
    rng = np.random.default_rng([seed, 1])
    found = []
    for make in (lambda: rounding("f8_tensor", "f8e4m3fn", 448, rng), lambda: rounding("f8_tensor", "f8e5m2", 57344, rng),
                 lambda: rounding("mxfp4", "f4e2m1", 6, rng),
                 *(lambda n=n: beside_gguf(n, rng) for n in ("q8_0", "q4_0", "q4_1", "ggml_mxfp4"))):
        try:
            found.append(make())
        except ImportError as error:
            found.append({"case": "quantizers", "oracle": "", "result": f"skipped: {error}"})
            continue
        print(f"{found[-1]['case']:<28} {found[-1]['oracle']:<12} {found[-1]['result']}", flush=True)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--blocks", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=20261120)
    parser.add_argument("--json")
    parser.add_argument("--allow-missing", action="store_true")
    parser.add_argument("only", nargs="*")
    options = parser.parse_args()
    records = []
    for one in CASES:
        if options.only and one.name.split("/")[0] not in options.only and one.name not in options.only:
            continue
        start = time.monotonic()
        record = run(one, options.blocks, options.seed)
        records.append(record)
        print(f"{record['result'][:90]:<8} {one.name:<24} {one.oracle:<34} {record['blocks']:>8} blocks  NaN {record['nan']:>8}  "
              f"{record['hash']}  {time.monotonic() - start:.1f} s", flush=True)
    if (options.blocks, options.seed) == (parser.get_default("blocks"), parser.get_default("seed")):
        for record in records:
            if record["result"] == "equal" and record["hash"] not in DOCUMENT.read_text():
                record["result"] = f"equal, but {DOCUMENT.name} has another hash for {record['case']}"
                print(record["result"])
    if not options.only or "quantizers" in options.only:
        records += quantizers(options.seed)
    if options.json:
        with open(options.json, "w") as file:
            json.dump(records, file, indent=1)
    bad = [r for r in records if not (r["result"] == "equal" or r["result"].startswith("equal: ") or (options.allow_missing and r["result"].startswith("skipped")))]
    print(f"{len(records) - len(bad)} of {len(records)} equal; seed {options.seed}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
