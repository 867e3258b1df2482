"""Weights in the layouts of the registry: what components each has, exact values in numpy, and quantizers that round to nearest.

A Quantized is a weight [n, k] with its components as numpy arrays (docs/layouts.md has the formulas). `Module.weight` makes a
constant of one; operations take it as they take any other, and the compiler picks kernels by its encoding:

    m.weight("w", quantize(array, "q4_k"))
    y = x.linear(w)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, Mapping, Tuple

import numpy as np

ROLES = ("data", "scales", "zeros", "group_index", "global_scale")


@dataclass(frozen=True)
class Layout:
    """`block`: elements and bytes of a block, of layouts with one component; `group`: elements that share a scale (0: the tensor says)."""

    id: int
    name: str
    roles: Tuple[str, ...] = ("data",)
    block: Tuple[int, int] = (1, 0)
    group: int = 0
    free_group: bool = False


LAYOUTS: Dict[str, Layout] = {
    layout.name: layout
    for layout in (
        Layout(2, "f8_tensor", ROLES[:2]), Layout(3, "f8_channel", ROLES[:2]), Layout(4, "f8_block128", ROLES[:2], group=128),
        Layout(5, "i8_channel", ROLES[:2]), Layout(6, "i8_group", ROLES[:2], free_group=True),
        Layout(7, "i4_group", ("data", "scales", "group_index"), free_group=True),
        Layout(8, "i4_group_asym", ROLES[:4], free_group=True), Layout(9, "gptq_v1", ROLES[:4], free_group=True),
        Layout(10, "gptq_v2", ROLES[:4], free_group=True), Layout(11, "awq", ROLES[:3], free_group=True),
        Layout(16, "q8_0", block=(32, 34), group=32), Layout(17, "q4_0", block=(32, 18), group=32),
        Layout(18, "q4_1", block=(32, 20), group=32), Layout(19, "q4_k", block=(256, 144), group=32),
        Layout(20, "q5_k", block=(256, 176), group=32), Layout(21, "q6_k", block=(256, 210), group=16),
        Layout(22, "ggml_mxfp4", block=(32, 17), group=32), Layout(23, "ggml_nvfp4", block=(64, 36), group=16),
        Layout(24, "mxfp4", ROLES[:2], group=32), Layout(25, "mxfp8", ROLES[:2], group=32),
        Layout(26, "nvfp4", ("data", "scales", "global_scale"), group=16),
    )
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Quantized:
    """A weight [n, k]. `dtype`: the type that it stands for. Components by role; floats of 8 bits and less are uint8 arrays, 4-bit
    elements two to a byte, bf16 uint16. `types`: data types of components where the array does not tell ("f8e5m2", "bf16")."""

    layout: str
    shape: Tuple[int, int]
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
        if layout.free_group != (self.group > 0) or self.shape[-1] % layout.block[0]:
            raise ValueError(f"layout {self.layout}: shape {self.shape} with groups of {self.group}")
        object.__setattr__(self, "types", dict(self.types))

    def component_type(self, role: str) -> str:
        return self.types.get(role) or _default_type(self.layout, role, self.components[role])

    @property
    def effective_group(self) -> int:
        """Elements of a row that share a scale."""
        return self.group or LAYOUTS[self.layout].group or max(self.shape[1], 1)

    @property
    def groups(self) -> int:
        return -(-self.shape[1] // self.effective_group)


def _default_type(layout: str, role: str, array: Any) -> str:
    if role == "data":
        if LAYOUTS[layout].block[1]:
            return "u8"
        for prefix, dtype in (("f8", "f8e4m3fn"), ("mxfp8", "f8e4m3fn"), ("i8", "i8"), ("i4", "u4"), ("mxfp4", "f4e2m1"), ("nvfp4", "f4e2m1")):
            if layout.startswith(prefix):
                return dtype
        return "i32"
    if role == "zeros":
        return "u4" if layout == "i4_group_asym" else "i32"
    if role == "scales" and layout in ("mxfp4", "mxfp8", "nvfp4"):
        return "f8e4m3fn" if layout == "nvfp4" else "f8e8m0"
    return {"float32": "f32", "float16": "f16", "uint16": "bf16", "int32": "i32"}[str(np.asarray(array).dtype)]


# ---- Values ------------------------------------------------------------------------------------------------------------


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


_E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)


def _powers(codes: np.ndarray) -> np.ndarray:
    return np.where(codes == 255, np.nan, np.ldexp(1.0, codes.astype(np.int32) - 127)).astype(np.float32)


def _nibbles(data: np.ndarray, count: int) -> np.ndarray:
    return np.stack([data & 15, data >> 4], axis=-1).reshape(-1)[:count].astype(np.int32)


def _halves(data: np.ndarray) -> np.ndarray:
    """Low nibbles of all bytes, then high nibbles, along the last axis."""
    return np.concatenate([data & 15, data >> 4], axis=-1).astype(np.int32)


def dequantize(q: Quantized) -> np.ndarray:
    """The weight in f32, in the order of f32 operations that the registry says."""
    with np.errstate(all="ignore"):
        return _VALUES[q.layout](q).reshape(q.shape).astype(np.float32)


def _of_scaled(q: Quantized) -> np.ndarray:
    n, k = q.shape
    data, name = _bytes(q, "data"), q.layout
    values = f8_values(data, q.component_type("data") == "f8e5m2") if name.startswith("f8") else data.view(np.int8).astype(np.float32)
    scales = _scales(q)
    if name == "f8_tensor":
        spread = np.broadcast_to(scales.reshape(1, 1), (n, k))
    else:
        rows = scales.reshape(-1, q.groups if name != "f8_channel" and name != "i8_channel" else 1)
        rows = rows[np.arange(n) // 128] if name == "f8_block128" else rows
        spread = rows[:, np.arange(k) // q.effective_group]
    return values.reshape(n, k) * spread


def _of_int4(q: Quantized) -> np.ndarray:
    n, k = q.shape
    index = np.asarray(q.components["group_index"]).reshape(-1) if "group_index" in q.components else np.arange(k) // q.effective_group
    scales = _scales(q)
    if q.layout.startswith("i4"):
        codes, scales = _nibbles(_bytes(q, "data"), n * k).reshape(n, k), scales.reshape(n, q.groups)
        zeros: Any = np.full((n, q.groups), 8)
        if q.layout == "i4_group_asym":
            zeros = _nibbles(_bytes(q, "zeros"), n * ((q.groups + 1) // 2 * 2)).reshape(n, -1)[:, : q.groups]
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


def _of_ggml_mxfp4(q: Quantized) -> np.ndarray:
    b = _blocks(q)
    return np.ldexp(np.float32(1), b[:, :1].astype(np.int32) - 128) * (_E2M1[_halves(b[:, 1:])] * np.float32(2))


def _of_ggml_nvfp4(q: Quantized) -> np.ndarray:
    b = _blocks(q)
    low = b[:, :4] & 127
    scales = np.where(low == 127, np.where(b[:, :4] == 127, 0, 240), f8_values(low, False) * np.float32(0.5)).astype(np.float32)
    codes = _halves(b[:, 4:].reshape(-1, 4, 8))
    return scales[:, :, None] * (_E2M1[codes] * np.float32(2))


def _of_mx(q: Quantized) -> np.ndarray:
    data = _bytes(q, "data")
    values = _E2M1[_nibbles(data, q.shape[0] * q.shape[1])] if q.layout == "mxfp4" else f8_values(data, q.component_type("data") == "f8e5m2")
    return _powers(_bytes(q, "scales")).reshape(-1, 1) * values.reshape(-1, 32)


def _of_nvfp4(q: Quantized) -> np.ndarray:
    values = _E2M1[_nibbles(_bytes(q, "data"), q.shape[0] * q.shape[1])].reshape(-1, 16)
    scales = f8_values(_bytes(q, "scales"), False) * np.float32(_scales(q, "global_scale")[0])
    return scales.reshape(-1, 1) * values


_VALUES = {
    **{name: _of_scaled for name in ("f8_tensor", "f8_channel", "f8_block128", "i8_channel", "i8_group")},
    **{name: _of_int4 for name in ("i4_group", "i4_group_asym", "gptq_v1", "gptq_v2", "awq")},
    "q8_0": _of_q8_0, "q4_0": _of_q4_0, "q4_1": _of_q4_1, "q4_k": _of_q4_k, "q5_k": _of_q4_k, "q6_k": _of_q6_k,
    "ggml_mxfp4": _of_ggml_mxfp4, "ggml_nvfp4": _of_ggml_nvfp4, "mxfp4": _of_mx, "mxfp8": _of_mx, "nvfp4": _of_nvfp4,
}  # fmt: skip


# ---- Quantizers: round to nearest, for tests and examples ---------------------------------------------------------------------


def quantize(array: Any, layout: str, *, group: int = 0, dtype: str = "f32") -> Quantized:
    """A weight [n, k] of floats in a layout, each number rounded to the nearest that its scale gives. `group`: of layouts that leave it free
    (128). There is one for each layout but GPTQ and AWQ, which are for weights that come so."""
    weight = np.asarray(array, np.float32)
    if weight.ndim != 2 or layout not in _QUANTIZERS:
        raise ValueError(f"no quantizer makes {layout!r} of an array of shape {weight.shape}; there are {', '.join(_QUANTIZERS)} of matrices")
    if LAYOUTS[layout].free_group:
        group = group or 128
    if weight.shape[1] % LAYOUTS[layout].block[0]:
        raise ValueError(f"layout {layout}: rows of {weight.shape[1]}, a multiple of {LAYOUTS[layout].block[0]} is needed")
    return _QUANTIZERS[layout](weight, layout, group, dtype)


def _grouped(weight: np.ndarray, group: int) -> np.ndarray:
    """[n, groups, group], filled up with zeros."""
    n, k = weight.shape
    padded = np.zeros((n, -(-k // group) * group), np.float32)
    padded[:, :k] = weight
    return padded.reshape(n, -1, group)


def _inverse(scale: np.ndarray) -> np.ndarray:
    return np.divide(1, scale, out=np.zeros_like(scale, dtype=np.float64), where=scale != 0)


def _two_to_a_byte(codes: np.ndarray) -> np.ndarray:
    flat = codes.astype(np.uint8).reshape(-1)
    flat = np.concatenate([flat, np.zeros(flat.size % 2, np.uint8)])
    return flat[::2] | flat[1::2] << 4


def _make_i8(weight: np.ndarray, layout: str, group: int, dtype: str) -> Quantized:
    n, k = weight.shape
    grouped = _grouped(weight, group or max(k, 1))
    scales = (np.abs(grouped).max(axis=2) / 127).astype(np.float32)
    codes = np.rint(grouped * _inverse(scales)[:, :, None]).clip(-127, 127).astype(np.int8).reshape(n, -1)[:, :k]
    return Quantized(layout, (n, k), {"data": np.ascontiguousarray(codes), "scales": scales if group else scales[:, 0].copy()}, group, dtype)


def _make_i4(weight: np.ndarray, layout: str, group: int, dtype: str) -> Quantized:
    n, k = weight.shape
    grouped = _grouped(weight, group)
    if layout == "i4_group":
        scales = (np.abs(grouped).max(axis=2) / 7).astype(np.float16)
        zeros = np.full(scales.shape, 8)
    else:
        low, high = np.minimum(grouped.min(axis=2), 0), np.maximum(grouped.max(axis=2), 0)
        scales = ((high - low) / 15).astype(np.float16)
        zeros = np.rint(-low * _inverse(scales)).clip(0, 15)
    codes = (np.rint(grouped * _inverse(scales)[:, :, None]) + zeros[:, :, None]).clip(0, 15).reshape(n, -1)[:, :k]
    components = {"data": _two_to_a_byte(codes), "scales": scales}
    if layout == "i4_group_asym":
        padded = np.zeros((n, (zeros.shape[1] + 1) // 2 * 2), np.uint8)
        padded[:, : zeros.shape[1]] = zeros
        components["zeros"] = _two_to_a_byte(padded)
    return Quantized(layout, (n, k), components, group, dtype)


def _nearest(values: np.ndarray, table: np.ndarray) -> np.ndarray:
    """Indices of the nearest entries of an ascending table; of two, the even one."""
    middle = (table[:-1].astype(np.float64) + table[1:]) / 2
    low, high = np.searchsorted(middle, values, "left"), np.searchsorted(middle, values, "right")
    return np.where(low % 2 == 0, low, high)


def _to_f8(values: np.ndarray) -> np.ndarray:
    table = f8_values(np.arange(127, dtype=np.uint8), False)
    return (_nearest(np.abs(values), table) | np.where(np.signbit(values), 128, 0)).astype(np.uint8)


def _to_e2m1(values: np.ndarray) -> np.ndarray:
    return (_nearest(np.abs(values), _E2M1[:8]) | np.where(np.signbit(values), 8, 0)).astype(np.uint8)


def _make_f8(weight: np.ndarray, layout: str, group: int, dtype: str) -> Quantized:
    n, k = weight.shape
    if layout == "f8_tensor":
        scales = np.array([np.abs(weight).max(initial=0) / 448], np.float32)
        spread = np.broadcast_to(scales, (n, k))
    elif layout == "f8_channel":
        scales = (np.abs(weight).max(axis=1, initial=0) / 448).astype(np.float32)
        spread = np.broadcast_to(scales[:, None], (n, k))
    else:
        padded = np.zeros((-(-n // 128) * 128, -(-k // 128) * 128), np.float32)
        padded[:n, :k] = np.abs(weight)
        scales = (padded.reshape(padded.shape[0] // 128, 128, -1, 128).max(axis=(1, 3)) / 448).astype(np.float32)
        spread = np.repeat(np.repeat(scales, 128, 0), 128, 1)[:n, :k]
    return Quantized(layout, (n, k), {"data": _to_f8(weight * _inverse(spread)), "scales": scales}, 0, dtype)


def _make_simple_block(weight: np.ndarray, layout: str, group: int, dtype: str) -> Quantized:
    x = weight.reshape(-1, 32)
    if layout == "q8_0":
        d = (np.abs(x).max(axis=1, keepdims=True) / 127).astype(np.float16)
        codes = np.rint(x * _inverse(d)).clip(-127, 127).astype(np.int8).view(np.uint8)
        return Quantized(layout, weight.shape, {"data": np.concatenate([d.view(np.uint8), codes], axis=1)}, 0, dtype)
    if layout == "q4_0":
        top = np.take_along_axis(x, np.abs(x).argmax(axis=1)[:, None], 1)
        d = (top / -8).astype(np.float16)
        head, codes = d.view(np.uint8), np.rint(x * _inverse(d)) + 8
    else:
        low = x.min(axis=1, keepdims=True)
        d = ((x.max(axis=1, keepdims=True) - low) / 15).astype(np.float16)
        head, codes = np.concatenate([d.view(np.uint8), low.astype(np.float16).view(np.uint8)], axis=1), np.rint((x - low.astype(np.float16)) * _inverse(d))
    codes = codes.clip(0, 15).astype(np.uint8)
    return Quantized(layout, weight.shape, {"data": np.concatenate([head, codes[:, :16] | codes[:, 16:] << 4], axis=1)}, 0, dtype)


def _make_k_block(weight: np.ndarray, layout: str, group: int, dtype: str) -> Quantized:
    """Scales and minima of 32 elements rounded to 6 bits, then the codes to the nearest."""
    most = 15 if layout == "q4_k" else 31
    x = weight.reshape(-1, 8, 32)
    low = np.minimum(x.min(axis=2), 0)
    steps = (x.max(axis=2) - low) / most
    d, dmin = ((v.max(axis=1, keepdims=True) / 63).astype(np.float16) for v in (steps, -low))
    scales = np.rint(steps * _inverse(d)).clip(0, 63).astype(np.uint8)
    least = np.rint(-low * _inverse(dmin)).clip(0, 63).astype(np.uint8)
    step, base = d.astype(np.float64) * scales, dmin.astype(np.float64) * least
    codes = np.rint((x + base[:, :, None]) * _inverse(step)[:, :, None]).clip(0, most).astype(np.uint8)
    small = np.concatenate([scales[:, :4] | scales[:, 4:] >> 4 << 6, least[:, :4] | least[:, 4:] >> 4 << 6, (scales[:, 4:] & 15) | least[:, 4:] << 4], axis=1)
    pairs = (codes & 15).reshape(-1, 4, 2, 32)
    parts = [d.view(np.uint8), dmin.view(np.uint8), small]
    if layout == "q5_k":
        parts.append(np.bitwise_or.reduce((codes >> 4) << np.arange(8, dtype=np.uint8)[None, :, None], axis=1))
    parts.append((pairs[:, :, 0] | pairs[:, :, 1] << 4).reshape(-1, 128))
    return Quantized(layout, weight.shape, {"data": np.concatenate(parts, axis=1)}, 0, dtype)


def _make_q6_k(weight: np.ndarray, layout: str, group: int, dtype: str) -> Quantized:
    x = weight.reshape(-1, 16, 16)
    steps = np.abs(x).max(axis=2) / 31
    d = (steps.max(axis=1, keepdims=True) / 127).astype(np.float16)
    scales = np.rint(steps * _inverse(d)).clip(-128, 127).astype(np.int8)
    step = d.astype(np.float64) * scales
    codes = (np.rint(x * _inverse(step)[:, :, None]).clip(-32, 31) + 32).astype(np.uint8).reshape(-1, 2, 4, 32)
    low = (codes[:, :, :2] & 15) | (codes[:, :, 2:] & 15) << 4
    high = np.bitwise_or.reduce((codes >> 4) << np.array([0, 2, 4, 6], np.uint8)[None, None, :, None], axis=2)
    parts = [low.reshape(-1, 128), high.reshape(-1, 64), scales.view(np.uint8), d.view(np.uint8)]
    return Quantized(layout, weight.shape, {"data": np.concatenate(parts, axis=1)}, 0, dtype)


def _make_fp4(weight: np.ndarray, layout: str, group: int, dtype: str) -> Quantized:
    if layout in ("mxfp4", "mxfp8", "ggml_mxfp4"):
        x = weight.reshape(-1, 32)
        top = np.abs(x).max(axis=1, keepdims=True)
        power = np.floor(np.log2(np.where(top > 0, top, 1))).astype(np.int32) - (8 if layout == "mxfp8" else 2)
        powers = (np.where(top > 0, power, -127) + 127).clip(0, 254).astype(np.uint8)
        scaled = np.ldexp(x.astype(np.float64), 127 - powers.astype(np.int32))
        if layout == "mxfp8":
            return Quantized(layout, weight.shape, {"data": _to_f8(scaled), "scales": powers[:, 0].copy()}, 0, dtype)
        codes = _to_e2m1(scaled)
        if layout == "mxfp4":
            return Quantized(layout, weight.shape, {"data": _two_to_a_byte(codes), "scales": powers[:, 0].copy()}, 0, dtype)
        return Quantized(layout, weight.shape, {"data": np.concatenate([powers, codes[:, :16] | codes[:, 16:] << 4], axis=1)}, 0, dtype)
    x = weight.reshape(-1, 16)
    top = np.abs(x).max(axis=1, keepdims=True)
    whole = np.float32(1 if layout == "ggml_nvfp4" else np.abs(weight).max(initial=0) / 2688 or 1)
    scales = _to_f8(top / 6 / whole).clip(0, 126)
    codes = _to_e2m1(x * _inverse(f8_values(scales, False).astype(np.float64) * whole))
    if layout == "nvfp4":
        return Quantized(layout, weight.shape, {"data": _two_to_a_byte(codes), "scales": scales[:, 0].copy(), "global_scale": np.array([whole])}, 0, dtype)
    pairs = codes.reshape(-1, 4, 16)
    parts = [scales.reshape(-1, 4), (pairs[:, :, :8] | pairs[:, :, 8:] << 4).reshape(-1, 32)]
    return Quantized(layout, weight.shape, {"data": np.concatenate(parts, axis=1)}, 0, dtype)


_QUANTIZERS = {
    "f8_tensor": _make_f8, "f8_channel": _make_f8, "f8_block128": _make_f8, "i8_channel": _make_i8, "i8_group": _make_i8,
    "i4_group": _make_i4, "i4_group_asym": _make_i4, "q8_0": _make_simple_block, "q4_0": _make_simple_block, "q4_1": _make_simple_block,
    "q4_k": _make_k_block, "q5_k": _make_k_block, "q6_k": _make_q6_k, "ggml_mxfp4": _make_fp4, "ggml_nvfp4": _make_fp4,
    "mxfp4": _make_fp4, "mxfp8": _make_fp4, "nvfp4": _make_fp4,
}  # fmt: skip

