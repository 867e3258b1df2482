"""Weights in the layouts of the registry: what components each has, and exact values in numpy
(quantizers.py makes them).

A Quantized is a weight [..., n, k] with its components as numpy arrays (docs/layouts.md has the
formulas). `Module.weight` makes a constant of one; operations take it as they take any other, and
the compiler picks kernels by its encoding:

    m.weight("w", quantize(array, "q4_k"))
    y = x.linear(w)
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Dict, Iterator, Mapping, Sequence, Tuple

import numpy as np

from ..bundle_writer import Encoding, Role
from .. import _format
from ..bundle_writer import layouts as writer

ROLES = _format.ROLES


@dataclass(frozen=True)
class Layout:
    """`block`: elements and bytes of a block, of layouts with one component; `group`: elements that
    share a scale (0: the tensor says). `types`: of components, the first where nothing is said.
    `endings`: of a form that checkpoints alone have, what the tensors are called behind the
    weight's name."""

    id: int
    name: str
    roles: Tuple[str, ...] = ("data",)
    block: Tuple[int, int] = (1, 0)
    group: int = 0
    free_group: bool = False
    types: Mapping[str, Tuple[str, ...]] = field(default_factory=dict)
    endings: Mapping[str, str] = field(default_factory=dict)


_SCALES = ("f32", "f16", "bf16")
_PACKED_INTEGERS = {"data": ("i32",), "scales": _SCALES, "zeros": ("i32",)}


def _apart(number: int, name: str, block: int, types: Mapping[str, Tuple[str, ...]], convention: str, group: int = 0) -> Layout:
    """A form that is not in the registry: as checkpoints have a weight whose numbers are those of a
    layout, and lie otherwise. Each component is a tensor of its own, and a plain constant of the
    bundle; prepare functions alone read them. kernels/layouts.h has the numbers, too."""
    endings = {role: _format.CONVENTIONS[convention][role] for role in types}
    return Layout(number, name, tuple(types), (block, 0), group, not group, types, endings)


#: compressed-tensors: integers in words, zero points along the rows or a byte each, and NVFP4 whose
#: global scale divides.
APART: Dict[str, Layout] = {
    made.name: made
    for made in (
        _apart(128, "ct_i4_asym", 8, {**_PACKED_INTEGERS, "group_index": ("i32",)}, "int4_packed"),
        _apart(129, "ct_i8", 4, {role: _PACKED_INTEGERS[role] for role in ("data", "scales")}, "int4_packed"),
        _apart(130, "ct_i8_asym", 4, _PACKED_INTEGERS, "int4_packed"),
        _apart(131, "i8_asym", 1, {"data": ("i8",), "scales": _SCALES, "zeros": ("i8",)}, "scaled"),
        _apart(132, "ct_nvfp4", 16, {"data": ("u8",), "scales": ("f8e4m3fn",), "global_scale": ("f32",)}, "nvfp4_packed", 16),
    )
}

LAYOUTS: Dict[str, Layout] = {
    **{
        name: Layout(number, name, roles, (elements, size) if size else (1, 0), group, free)
        for name, (number, roles, elements, size, group, free) in _format.LAYOUTS.items()
        if number > _format.Encoding.OPAQUE
    },
    **APART,
}


@dataclass(frozen=True, eq=False)
class Quantized:
    """A weight [..., n, k]. `dtype`: the type that it stands for. Components by role; floats of 8
    bits and less are uint8 arrays, 4-bit elements two to a byte, bf16 uint16; None where the bytes
    are not known here. `types`: data types of components where the array does not say ("f8e5m2",
    "bf16")."""

    layout: str
    shape: Tuple[int, ...]
    components: Mapping[str, Any]
    group: int = 0
    dtype: str = "f32"
    types: Mapping[str, str] = ()

    def __post_init__(self) -> None:
        layout = LAYOUTS.get(self.layout)
        if layout is None:
            raise ValueError(f"no layout {self.layout!r}; there are {', '.join(LAYOUTS)}")
        unknown = [role for role in self.components if role not in layout.roles]
        if unknown or "data" not in self.components:
            raise ValueError(f"layout {self.layout}: components {list(self.components)}; it has {', '.join(layout.roles)}")
        if len(self.shape) < 2 or layout.free_group != (self.group > 0) or self.shape[-1] % layout.block[0]:
            raise ValueError(f"layout {self.layout}: shape {self.shape} with groups of {self.group}")
        index = self.components.get("group_index")
        if index is not None and not ((0 <= np.asarray(index)) & (np.asarray(index) < self.groups)).all():
            raise ValueError(f"layout {self.layout}: group_index names groups outside the {self.groups} that there are")
        object.__setattr__(self, "types", dict(self.types))

    def component_type(self, role: str) -> str:
        return self.types.get(role) or _default_type(self.layout, role, self.components[role])

    @property
    def rows(self) -> int:
        return math.prod(self.shape[:-1])

    @property
    def columns(self) -> int:
        return self.shape[-1]

    @property
    def effective_group(self) -> int:
        """Elements of a row that share a scale."""
        return self.group or LAYOUTS[self.layout].group or max(self.columns, 1)

    @property
    def groups(self) -> int:
        return -(-self.columns // self.effective_group)

    def part_shape(self, role: str) -> Tuple[int, ...]:
        """Of a component that is a tensor of its own."""
        (n, k), groups = self.shape, self.groups
        words = {"ct_i4_asym": 8, "ct_i8": 4, "ct_i8_asym": 4, "ct_nvfp4": 2}.get(self.layout, 1)
        rows = -(-n // words) if self.layout.startswith("ct_") else n
        return {"data": (n, k // words), "scales": (n, groups), "zeros": (rows, groups), "group_index": (k,), "global_scale": (1,)}[role]

    def size_bytes(self, role: str) -> int:
        """Of a component."""
        if self.layout in APART:
            return math.prod(self.part_shape(role)) * {"i32": 4, "f32": 4, "f16": 2, "bf16": 2}.get(self.component_type(role), 1)
        encoding = Encoding(LAYOUTS[self.layout].id)
        return writer.size_bytes(encoding, Role[role.upper()], self.component_type(role), self.shape, self.group)


def declared(layout: str, shape: Sequence[int], *, group: int = 0, dtype: str = "f32", components: Mapping[str, str] = MappingProxyType({})) -> Quantized:
    """A weight whose bytes are not known here. `components`: types by role, where the layout leaves
    a choice, and of those that it can do without."""
    if layout not in LAYOUTS:
        raise ValueError(f"no layout {layout!r}; there are {', '.join(LAYOUTS)}")
    types: Dict[str, str] = {}
    for name, allowed, optional in _choices(layout, shape, dtype, group):
        if name not in components and optional:
            continue
        types[name] = components.get(name, allowed[0])
        if types[name] not in allowed:
            raise ValueError(f"layout {layout}: {name} is {' or '.join(allowed)}, not {types[name]!r}")
    unknown = [name for name in components if name not in types]
    if unknown:
        raise ValueError(f"layout {layout} has no component {unknown[0]!r}")
    return Quantized(layout, tuple(shape), dict.fromkeys(types), group, dtype, types)


def _choices(layout: str, shape: Sequence[int], dtype: str, group: int) -> Iterator[Tuple[str, Tuple[str, ...], bool]]:
    """A layout's components: their types, and whether they may be left out. Raises where the layout
    does not take the weight."""
    if layout in APART:
        if len(shape) != 2 or shape[-1] % LAYOUTS[layout].block[0] or dtype not in _SCALES:
            raise ValueError(f"layout {layout}: {dtype}{list(shape)}; it has matrices whose rows are a multiple of {LAYOUTS[layout].block[0]}")
        yield from ((role, types, role == "group_index") for role, types in LAYOUTS[layout].types.items())
        return
    encoding = Encoding(LAYOUTS[layout].id)
    writer.check(encoding, dtype, shape, group, f"layout {layout}")
    known = writer.of(encoding)
    yield from ((role.name.lower(), allowed, role in known.optional) for role, allowed in known.components.items())


def _default_type(layout: str, role: str, array: Any) -> str:
    if layout in APART and role != "scales":
        return LAYOUTS[layout].types[role][0]
    if role == "data":
        if LAYOUTS[layout].block[1]:
            return "u8"
        for prefix, dtype in (("f8", "f8e4m3fn"), ("mxfp8", "f8e4m3fn"), ("i8", "i8"), ("i4", "u4"), ("mxfp4", "f4e2m1"), ("nvfp4", "f4e2m1")):
            if layout.startswith(prefix):
                return dtype
        return "i32"
    if role == "zeros":
        return "u4" if layout == "i4_group_asym" else "i32"
    if role == "scales" and layout in ("mxfp4", "mxfp8", "nvfp4", "ct_nvfp4"):
        return "f8e4m3fn" if layout.endswith("nvfp4") else "f8e8m0"
    return {"float32": "f32", "float16": "f16", "uint16": "bf16", "int32": "i32"}[str(np.asarray(array).dtype)]


# ---- Values --------------------------------------------------------------------------------------


def _bytes(q: Quantized, role: str) -> np.ndarray:
    return np.ascontiguousarray(q.components[role]).reshape(-1).view(np.uint8)


def _scales(q: Quantized, role: str = "scales") -> np.ndarray:
    array = np.asarray(q.components[role]).reshape(-1)
    if q.component_type(role) == "bf16":
        return (array.astype(np.uint32) << 16).view(np.float32)
    return array.astype(np.float32)


def f8_values(codes: np.ndarray, e5m2: bool) -> np.ndarray:
    c = codes.astype(np.int32)
    bits, bias = (2, 15) if e5m2 else (3, 7)
    exponent, mantissa = (c & 127) >> bits, c & ((1 << bits) - 1)
    value = np.where(exponent > 0, np.ldexp(1.0 + mantissa / (1 << bits), exponent - bias), np.ldexp(mantissa / (1 << bits), 1 - bias))
    if e5m2:
        value = np.where(exponent == 31, np.where(mantissa == 0, np.inf, np.nan), value)
    else:
        value = np.where(c & 127 == 127, np.nan, value)
    return np.where(c & 128, -value, value).astype(np.float32)


E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)


def _powers(codes: np.ndarray) -> np.ndarray:
    return np.where(codes == 255, np.nan, np.ldexp(1.0, codes.astype(np.int32) - 127)).astype(np.float32)


def _nibbles(data: np.ndarray, count: int) -> np.ndarray:
    return np.stack([data & 15, data >> 4], axis=-1).reshape(-1)[:count].astype(np.int32)


def _halves(data: np.ndarray) -> np.ndarray:
    """Low nibbles of all bytes, then high nibbles, along the last axis."""
    return np.concatenate([data & 15, data >> 4], axis=-1).astype(np.int32)


def dequantize(q: Quantized) -> np.ndarray:
    """The weight in f32, in the order of f32 operations that the registry says."""
    if any(array is None for array in q.components.values()):
        raise ValueError(f"the bytes of this {q.layout} weight {list(q.shape)} are not known here")
    with np.errstate(all="ignore"):
        return _VALUES[q.layout](q).reshape(q.shape).astype(np.float32)


def _of_scaled(q: Quantized) -> np.ndarray:
    n, k = q.rows, q.columns
    data, name = _bytes(q, "data"), q.layout
    values = f8_values(data, q.component_type("data") == "f8e5m2") if name.startswith("f8") else data.view(np.int8).astype(np.float32)
    scales = _scales(q)
    if name == "f8_tensor":
        spread = np.broadcast_to(scales.reshape(1, 1), (n, k))
    else:
        rows = scales.reshape(-1, q.groups if name != "f8_channel" and name != "i8_channel" else 1)
        if name == "f8_block128":
            matrix = q.shape[-2]
            rows = rows[np.arange(n) // matrix * -(-matrix // 128) + np.arange(n) % matrix // 128]
        spread = rows[:, np.arange(k) // q.effective_group]
    return values.reshape(n, k) * spread


def _of_int4(q: Quantized) -> np.ndarray:
    n, k = q.rows, q.columns
    index = np.asarray(q.components["group_index"]).reshape(-1) if "group_index" in q.components else np.arange(k) // q.effective_group
    scales = _scales(q)
    if q.layout.startswith(("i4", "ct")):
        codes, scales = _nibbles(_bytes(q, "data"), n * k).reshape(n, k), scales.reshape(n, q.groups)
        zeros: Any = np.full((n, q.groups), 8)
        if q.layout == "i4_group_asym":
            zeros = _nibbles(_bytes(q, "zeros"), n * ((q.groups + 1) // 2 * 2)).reshape(n, -1)[:, : q.groups]
        elif q.layout == "ct_i4_asym":
            words = np.asarray(q.components["zeros"]).view(np.uint32).reshape(-1, 1, q.groups)
            zeros = (words >> np.arange(0, 32, 4, dtype=np.uint32)[None, :, None] & 15).reshape(-1, q.groups)[:n].astype(np.int32)
    else:
        shifts = np.arange(8, dtype=np.uint32) * 4
        scales = scales.reshape(q.groups, n).T
        order = np.array([0, 4, 1, 5, 2, 6, 3, 7]) if q.layout == "awq" else np.arange(8)
        zeros = np.asarray(q.components["zeros"]).view(np.uint32).reshape(q.groups, n // 8)
        zeros = (zeros[:, :, None] >> shifts[order] & 15).reshape(q.groups, n).T.astype(np.int32) + (q.layout == "gptq_v1")
        words = np.asarray(q.components["data"]).view(np.uint32)
        if q.layout == "awq":
            codes = (words.reshape(k, n // 8)[:, :, None] >> shifts[order] & 15).reshape(k, n).T.astype(np.int32)
        else:
            codes = (words.reshape(k // 8, 1, n) >> shifts[None, :, None] & 15).reshape(k, n).T.astype(np.int32)
    return (codes - zeros[:, index]).astype(np.float32) * scales[:, index]


def _blocks(q: Quantized) -> np.ndarray:
    return _bytes(q, "data").reshape(-1, LAYOUTS[q.layout].block[1])


def _f16(b: np.ndarray, at: int) -> np.ndarray:
    return np.ascontiguousarray(b[:, at : at + 2]).view(np.float16).astype(np.float32)


def _of_q8_0(q: Quantized) -> np.ndarray:
    b = _blocks(q)
    return _f16(b, 0) * np.ascontiguousarray(b[:, 2:]).view(np.int8).astype(np.float32)


def _of_q4_0(q: Quantized) -> np.ndarray:
    b = _blocks(q)
    return _f16(b, 0) * (_halves(b[:, 2:]) - 8).astype(np.float32)


def _of_q4_1(q: Quantized) -> np.ndarray:
    b = _blocks(q)
    return _f16(b, 0) * _halves(b[:, 4:]).astype(np.float32) + _f16(b, 2)


def _small_scales(s: np.ndarray) -> Tuple[np.ndarray, np.ndarray]:
    low, high, top = s[:, :4], s[:, 4:8], s[:, 8:12]
    scales = np.concatenate([low & 63, (top & 15) | (low >> 6) << 4], axis=1)
    return scales.astype(np.float32), np.concatenate([high & 63, top >> 4 | (high >> 6) << 4], axis=1).astype(np.float32)


def _of_q4_k(q: Quantized) -> np.ndarray:
    b = _blocks(q)
    scales, least = _small_scales(b[:, 4:16])
    codes = _halves(b[:, -128:].reshape(-1, 4, 32)).reshape(-1, 8, 32)
    if q.layout == "q5_k":
        codes = codes + ((b[:, None, 16:48] >> np.arange(8, dtype=np.uint8)[None, :, None]) & 1).astype(np.int32) * 16
    scaled = (_f16(b, 0) * scales)[:, :, None] * codes.astype(np.float32)
    return scaled - (_f16(b, 2) * least)[:, :, None]


def _of_q6_k(q: Quantized) -> np.ndarray:
    b = _blocks(q)
    low, high = b[:, :128].reshape(-1, 2, 2, 32), b[:, 128:192].reshape(-1, 2, 1, 32)
    codes = np.concatenate([low & 15, low >> 4], axis=2) | ((high >> np.array([0, 2, 4, 6], np.uint8)[None, None, :, None]) & 3) << 4
    scales = _f16(b, 208) * np.ascontiguousarray(b[:, 192:208]).view(np.int8).astype(np.float32)
    return np.repeat(scales, 16, axis=1) * (codes.reshape(-1, 256).astype(np.int32) - 32).astype(np.float32)


def _fifth(b: np.ndarray, at: int) -> np.ndarray:
    bits = np.unpackbits(np.ascontiguousarray(b[:, at : at + 4]), axis=1, bitorder="little").astype(np.int32)
    return _halves(b[:, at + 4 : at + 20]) | bits << 4


def _of_q5_0(q: Quantized) -> np.ndarray:
    b = _blocks(q)
    return _f16(b, 0) * (_fifth(b, 2) - 16).astype(np.float32)


def _of_q5_1(q: Quantized) -> np.ndarray:
    b = _blocks(q)
    return _f16(b, 0) * _fifth(b, 4).astype(np.float32) + _f16(b, 2)


def _pairs_of_bits(b: np.ndarray) -> np.ndarray:
    """Sixteen groups of sixteen 2-bit codes, as Q2_K and Q3_K have them."""
    shifts = np.array([0, 2, 4, 6], np.uint8)[None, None, :, None]
    return (b.reshape(-1, 2, 1, 32) >> shifts & 3).reshape(-1, 16, 16).astype(np.int32)


def _of_q2_k(q: Quantized) -> np.ndarray:
    b = _blocks(q)
    scales, least = _f16(b, 80) * (b[:, :16] & 15).astype(np.float32), _f16(b, 82) * (b[:, :16] >> 4).astype(np.float32)
    return scales[:, :, None] * _pairs_of_bits(b[:, 16:80]).astype(np.float32) - least[:, :, None]


def _of_q3_k(q: Quantized) -> np.ndarray:
    b = _blocks(q)
    s = b[:, 96:108]
    top = (s[:, None, 8:] >> np.array([0, 2, 4, 6], np.uint8)[None, :, None] & 3).reshape(-1, 16)
    small = (np.concatenate([s[:, :8] & 15, s[:, :8] >> 4], axis=1) | top << 4).astype(np.int32) - 32
    high = (b[:, None, :32] >> np.arange(8, dtype=np.uint8)[None, :, None] & 1).reshape(-1, 16, 16).astype(np.int32)
    codes = (_pairs_of_bits(b[:, 32:96]) | high << 2) - 4
    return (_f16(b, 108) * small.astype(np.float32))[:, :, None] * codes.astype(np.float32)


IQ4_NL = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32)


def _of_iq4_nl(q: Quantized) -> np.ndarray:
    b = _blocks(q)
    return _f16(b, 0) * IQ4_NL[_halves(b[:, 2:])]


def _of_ggml_mxfp4(q: Quantized) -> np.ndarray:
    b = _blocks(q)
    return np.ldexp(np.float32(1), b[:, :1].astype(np.int32) - 128) * (E2M1[_halves(b[:, 1:])] * np.float32(2))


def _of_ggml_nvfp4(q: Quantized) -> np.ndarray:
    b = _blocks(q)
    low = b[:, :4] & 127
    scales = np.where(low == 127, np.where(b[:, :4] == 127, 0, 240), f8_values(low, False) * np.float32(0.5)).astype(np.float32)
    codes = _halves(b[:, 4:].reshape(-1, 4, 8))
    return scales[:, :, None] * (E2M1[codes] * np.float32(2))


def _of_mx(q: Quantized) -> np.ndarray:
    data = _bytes(q, "data")
    values = E2M1[_nibbles(data, q.rows * q.columns)] if q.layout == "mxfp4" else f8_values(data, q.component_type("data") == "f8e5m2")
    return _powers(_bytes(q, "scales")).reshape(-1, 1) * values.reshape(-1, 32)


def _of_i8_apart(q: Quantized) -> np.ndarray:
    n, k = q.shape
    biased, zeros = np.uint8(0x80 if q.layout == "i8_asym" else 0), np.full((n, q.groups), 128)
    if "zeros" in q.components:
        # in words of four rows, or a byte each
        rows = (_bytes(q, "zeros") ^ biased).reshape(-1, q.groups, 1 if biased else 4)
        zeros = rows.transpose(0, 2, 1).reshape(-1, q.groups)[:n].astype(np.int32)
    at = np.arange(k) // q.effective_group
    codes = (_bytes(q, "data") ^ biased).reshape(n, k).astype(np.int32)
    return (codes - zeros[:, at]).astype(np.float32) * _scales(q).reshape(n, q.groups)[:, at]


def _of_nvfp4(q: Quantized) -> np.ndarray:
    values = E2M1[_nibbles(_bytes(q, "data"), q.rows * q.columns)].reshape(-1, 16)
    whole = np.float32(_scales(q, "global_scale")[0])
    scales = f8_values(_bytes(q, "scales"), False) * (np.float32(1) / whole if q.layout == "ct_nvfp4" else whole)
    return scales.reshape(-1, 1) * values


_VALUES = {
    **{name: _of_scaled for name in ("f8_tensor", "f8_channel", "f8_block128", "i8_channel", "i8_group")},
    **{name: _of_int4 for name in ("i4_group", "i4_group_asym", "gptq_v1", "gptq_v2", "awq", "ct_i4_asym")},
    **{name: _of_i8_apart for name in ("ct_i8", "ct_i8_asym", "i8_asym")},
    "q8_0": _of_q8_0, "q4_0": _of_q4_0, "q4_1": _of_q4_1, "q4_k": _of_q4_k, "q5_k": _of_q4_k, "q6_k": _of_q6_k,
    "q5_0": _of_q5_0, "q5_1": _of_q5_1, "q2_k": _of_q2_k, "q3_k": _of_q3_k, "iq4_nl": _of_iq4_nl,
    "ggml_mxfp4": _of_ggml_mxfp4, "ggml_nvfp4": _of_ggml_nvfp4, "mxfp4": _of_mx, "mxfp8": _of_mx, "nvfp4": _of_nvfp4,
    "ct_nvfp4": _of_nvfp4,
}  # fmt: skip
