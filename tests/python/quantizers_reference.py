"""Quantizers that round to nearest, in numpy: the oracle of accrt_layout_quantize
(write/layout_encode*.c), byte for byte. Every operation is the C code's, on all groups at once: f32
unless it says f64, sums element by element.
"""

from __future__ import annotations

import math
from typing import Callable, Dict, Tuple

import numpy as np

from accrt.compiler.encodings import E2M1, LAYOUTS, Quantized, f8_values

_TINY = np.float32(2.0**-100)
_E4M3, _E5M2 = f8_values(np.arange(127, dtype=np.uint8), False), f8_values(np.arange(124, dtype=np.uint8), True)
_CHUNK = 1 << 15


def by_numpy(weight: np.ndarray, layout: str, group: int, dtype: str, data: str, scales: str) -> Quantized:
    with np.errstate(all="ignore"):
        parts, types = _MAKERS[layout](weight, layout, group, data or "f8e4m3fn", scales or "f32")
    return Quantized(layout, weight.shape, parts, group, dtype, types)


# ---- Scales and elements -------------------------------------------------------------------------


def _f16(values: np.ndarray) -> np.ndarray:
    return np.clip(values, -65504, 65504).astype(np.float16)


def _stored(scales: np.ndarray, kind: str) -> Tuple[np.ndarray, np.ndarray]:
    """Scales as a type has them, and what they are then."""
    if kind == "f16":
        return _f16(scales), _f16(scales).astype(np.float32)
    if kind == "bf16":
        bits = scales.view(np.uint32).astype(np.uint64)
        codes = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
        return codes, (codes.astype(np.uint32) << 16).view(np.float32)
    return scales, scales


def _inverse(scales: np.ndarray) -> np.ndarray:
    inverse = np.float32(1) / scales
    return np.where(np.isfinite(inverse), inverse, np.float32(0))


def _integers(values: np.ndarray, low: int, high: int) -> np.ndarray:
    return np.rint(np.clip(values, low, high))


def _floats(values: np.ndarray, table: np.ndarray, sign: int) -> np.ndarray:
    """Codes of the nearest entries of an ascending table; of two, the even one. There is no zero to
    take off, but it is added: -0 is 0."""
    values = values + np.float32(0)
    middle = (table[:-1].astype(np.float64) + table[1:]) / 2
    low, high = np.searchsorted(middle, np.abs(values), "left"), np.searchsorted(middle, np.abs(values), "right")
    return (np.where(low % 2 == 0, low, high) | np.where(np.signbit(values), sign, 0)).astype(np.uint8)


def _f8(values: np.ndarray, dtype: str) -> np.ndarray:
    return _floats(values, _E5M2 if dtype == "f8e5m2" else _E4M3, 128)


def _pairs(codes: np.ndarray) -> np.ndarray:
    """Two to a byte, the even one in the low nibble."""
    flat = codes.astype(np.uint8).reshape(-1)
    flat = np.concatenate([flat, np.zeros(flat.size % 2, np.uint8)])
    return flat[::2] | flat[1::2] << 4


def _halves(codes: np.ndarray) -> np.ndarray:
    """The first half of a run in the low nibbles."""
    codes = codes.astype(np.uint8)
    half = codes.shape[-1] // 2
    return codes[..., :half] | codes[..., half:] << 4


def _grouped(weight: np.ndarray, group: int) -> np.ndarray:
    """[rows, groups, group], filled up with zeros: they change no range, and 0 is always in it."""
    k = weight.shape[-1]
    flat = weight.reshape(-1, k)
    groups = -(-k // group)
    padded = np.zeros((flat.shape[0], groups * group), np.float32)
    padded[:, :k] = flat
    return padded.reshape(flat.shape[0], groups, group)


def _flat(grouped: np.ndarray, k: int) -> np.ndarray:
    rows, groups, group = grouped.shape
    return grouped.reshape(rows, groups * group)[:, :k]


def _range(grouped: np.ndarray) -> Tuple[np.ndarray, np.ndarray]:
    zero = np.float32(0)  # added: the ends are never -0
    return grouped.min(axis=-1, initial=0) + zero, grouped.max(axis=-1, initial=0) + zero


def _power(scales: np.ndarray) -> Tuple[np.ndarray, np.ndarray]:
    """The power of two not above a scale: its code, and itself."""
    codes = np.minimum(scales.view(np.uint32) >> 23 & 255, 254).astype(np.uint8)
    bits = np.where(codes == 0, 0x00400000, codes.astype(np.uint32) << 23).astype(np.uint32)
    return codes, bits.view(np.float32)


# ---- Layouts -------------------------------------------------------------------------------------

Made = Tuple[Dict[str, np.ndarray], Dict[str, str]]


def _make_f8(weight: np.ndarray, layout: str, group: int, data: str, scales: str) -> Made:
    n, k = weight.shape[-2:]
    flat, top = weight.reshape(-1, k), np.float32(57344 if data == "f8e5m2" else 448)
    magnitude = np.abs(weight)
    if layout == "f8_tensor":
        made = np.array([magnitude.max(initial=0) / top], np.float32)
    elif layout == "f8_channel":
        made = magnitude.reshape(-1, k).max(axis=1, initial=0) / top
    else:
        many, tall, wide = math.prod(weight.shape[:-2]), -(-n // 128), -(-k // 128)
        padded = np.zeros((many, tall * 128, wide * 128), np.float32)
        padded[:, :n, :k] = magnitude.reshape(many, n, k)
        made = padded.reshape(many, tall, 128, wide, 128).max(axis=(2, 4), initial=0) / top
    codes, exact = _stored(made, scales)
    inverse = _inverse(exact)
    if layout == "f8_block128":
        inverse = np.repeat(np.repeat(inverse, 128, 1)[:, :n], 128, 2)[:, :, :k].reshape(-1, k)
    elif layout == "f8_channel":
        inverse = inverse[:, None]
    return {"data": _f8(flat * inverse, data), "scales": codes.reshape(-1)}, {"data": data, "scales": scales}


def _make_i8(weight: np.ndarray, layout: str, group: int, data: str, scales: str) -> Made:
    k = weight.shape[-1]
    grouped = _grouped(weight, group or max(k, 1))
    codes, exact = _stored(np.abs(grouped).max(axis=2) / np.float32(127), scales)
    data_codes = _integers(grouped * _inverse(exact)[:, :, None], -127, 127).astype(np.int8)
    return {"data": _flat(data_codes, k).copy(), "scales": codes.reshape(-1)}, {"scales": scales}


def _extreme_by_eight(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    return np.where(-low > high, -low, -high) / np.float32(8)


def _make_i4(weight: np.ndarray, layout: str, group: int, data: str, scales: str) -> Made:
    k = weight.shape[-1]
    grouped = _grouped(weight, group)
    low, high = _range(grouped)
    if layout == "i4_group":
        codes, exact = _stored(_extreme_by_eight(low, high), scales)
        levels = _integers(grouped * _inverse(exact)[:, :, None], -8, 7) + 8
    else:
        codes, exact = _stored(high / np.float32(15) - low / np.float32(15), scales)
        zeros = np.where(exact > 0, np.minimum(np.rint(-low / exact), 15), 0).astype(np.float32)
        levels = _integers(grouped * _inverse(exact)[:, :, None] + zeros[:, :, None], 0, 15)
    parts = {"data": _pairs(_flat(levels, k)), "scales": codes.reshape(-1)}
    if layout == "i4_group_asym":
        padded = np.zeros((grouped.shape[0], -(-grouped.shape[1] // 2) * 2), np.uint8)
        padded[:, : grouped.shape[1]] = zeros
        parts["zeros"] = _pairs(padded)
    return parts, {"scales": scales}


def _make_simple_block(weight: np.ndarray, layout: str, group: int, data: str, scales: str) -> Made:
    x = weight.reshape(-1, 32)
    low, high = _range(x)
    if layout == "q8_0":
        d = _f16(np.abs(x).max(axis=1) / np.float32(127))
        codes = _integers(x * _inverse(d.astype(np.float32))[:, None], -127, 127).astype(np.int8).view(np.uint8)
        return {"data": np.concatenate([d[:, None].view(np.uint8), codes], axis=1)}, {}
    if layout == "q4_0":
        d = _f16(_extreme_by_eight(low, high))
        head = d[:, None].view(np.uint8)
        levels = _integers(x * _inverse(d.astype(np.float32))[:, None], -8, 7) + 8
    else:
        low, high = x.min(axis=1), x.max(axis=1)
        d, m = _f16((high - low) / np.float32(15)), _f16(low + np.float32(0))
        head = np.concatenate([d[:, None].view(np.uint8), m[:, None].view(np.uint8)], axis=1)
        levels = _integers((x - m.astype(np.float32)[:, None]) * _inverse(d.astype(np.float32))[:, None], 0, 15)
    return {"data": np.concatenate([head, _halves(levels)], axis=1)}, {}


def _make_power(weight: np.ndarray, layout: str, group: int, data: str, scales: str) -> Made:
    x = weight.reshape(-1, 32)
    top = {"f8e5m2": 32768, "f8e4m3fn": 256}[data] if layout == "mxfp8" else 4
    codes, exact = _power(np.abs(x).max(axis=1) / np.float32(top))
    scaled = x * _inverse(exact)[:, None]
    if layout == "mxfp8":
        return {"data": _f8(scaled, data), "scales": codes}, {"data": data}
    elements = _floats(scaled, E2M1[:8], 8)
    if layout == "mxfp4":
        return {"data": _pairs(elements), "scales": codes}, {}
    return {"data": np.concatenate([codes[:, None], _halves(elements)], axis=1)}, {}


def _make_nvfp4(weight: np.ndarray, layout: str, group: int, data: str, scales: str) -> Made:
    x = weight.reshape(-1, 16)
    whole = np.float32(1) if layout == "ggml_nvfp4" else np.abs(weight).max(initial=0) / np.float32(448 * 6)
    made = np.abs(x).max(axis=1) / np.float32(6)
    codes = _floats(made / whole if whole > 0 else np.zeros_like(made), _E4M3, 128)
    elements = _floats(x * _inverse(_E4M3[codes] * whole)[:, None], E2M1[:8], 8)
    if layout == "nvfp4":
        return {"data": _pairs(elements), "scales": codes, "global_scale": np.array([whole], np.float32)}, {}
    return {"data": np.concatenate([codes.reshape(-1, 4), _halves(elements.reshape(-1, 4, 16)).reshape(-1, 32)], axis=1)}, {}


# ---- Superblocks: scales that are themselves quantized, fitted with larger weights for larger
# values


def _sum(terms: np.ndarray) -> np.ndarray:
    """Along the first axis, one after the other."""
    total = terms[0].copy()
    for term in terms[1:]:
        total += term
    return total


def _fit_line(values: np.ndarray, weights: np.ndarray, inverse: np.ndarray, least: np.ndarray, most: int) -> Tuple[np.ndarray, ...]:
    """With elements fixed the best scale and least value are those of a weighted line; [elements,
    groups]. Sums are f64."""
    levels = np.clip(np.rint(inverse * (values - least)), 0, most).astype(np.float64)
    w, x = weights.astype(np.float64), values.astype(np.float64)
    sw, sl, sll, sx, sxl = (_sum(terms) for terms in (w, w * levels, w * levels * levels, w * x, w * x * levels))
    determinant = sw * sll - sl * sl
    scale = np.where(determinant > 0, (sw * sxl - sx * sl) / determinant, 0)
    offset = np.where(determinant > 0, (sll * sx - sl * sxl) / determinant, 0)
    without = (determinant <= 0) | (offset > 0)
    offset = np.where(without, 0, offset)
    scale = np.where(without, np.where(sll > 0, sxl / sll, 0), scale)
    error = scale * scale * sll + 2 * scale * offset * sl + offset * offset * sw - 2 * scale * sxl - 2 * offset * sx
    return scale.astype(np.float32), offset.astype(np.float32), error


def _fit_affine(values: np.ndarray, weights: np.ndarray, most: int) -> Tuple[np.ndarray, np.ndarray]:
    least, largest = values.min(axis=0, initial=0) + np.float32(0), values.max(axis=0)
    span = largest - least
    best = _fit_line(values, weights, np.float32(most) / span, least, most)
    for step in range(21):
        inverse = (np.float32(most - 1) + np.float32(0.1) * np.float32(step)) / span
        line = _fit_line(values, weights, inverse, least, most)
        again = _fit_line(values, weights, np.float32(1) / line[0], line[1], most)
        line = tuple(np.where(line[0] > 0, b, a) for a, b in zip(line, again))
        better = (line[0] > 0) & (line[2] < best[2])
        best = tuple(np.where(better, a, b) for a, b in zip(line, best))
    flat = span < _TINY
    return np.where(flat | ~(best[0] > 0), np.float32(0), best[0]), np.where(flat, least, best[1])


def _fit_symmetric(values: np.ndarray, weights: np.ndarray, low: int) -> np.ndarray:
    extreme = np.take_along_axis(values, np.abs(values).argmax(axis=0)[None], 0)[0]
    scale, best = np.zeros_like(extreme), np.full(extreme.shape, -1.0)
    w, x = weights.astype(np.float64), values.astype(np.float64)
    for step in range(-9, 10):
        inverse = (np.float32(low) - np.float32(0.1) * np.float32(step)) / extreme
        levels = np.clip(np.rint(inverse * values), low, -low - 1).astype(np.float64)
        sxl, sll = _sum(w * x * levels), _sum(w * levels * levels)
        better = (sll > 0) & (sxl * sxl > best * sll)
        best = np.where(better, sxl * sxl / sll, best)
        scale = np.where(better, sxl / sll, scale).astype(np.float32)
    return np.where(np.abs(extreme) >= _TINY, scale, np.float32(0))


def _largest(values: np.ndarray) -> np.ndarray:
    """Of each row what has the largest magnitude, the first where several have it."""
    return np.take_along_axis(values, np.abs(values).argmax(axis=1)[:, None], 1)


def _sixbit(values: np.ndarray) -> Tuple[np.ndarray, np.ndarray]:
    """[blocks, 8] in units of the largest: that unit as f16, and the codes."""
    unit = _f16(_largest(values) / np.float32(63))
    exact = unit.astype(np.float32)
    return unit, np.where(exact > 0, np.clip(np.rint(values / exact), 0, 63), 0).astype(np.uint8)


def _make_q45(x: np.ndarray, layout: str) -> np.ndarray:
    most = 15 if layout == "q4_k" else 31
    values = np.ascontiguousarray(x.reshape(-1, 32).T)
    weights = np.sqrt(_sum(values * values) / np.float32(32)) + np.abs(values)
    scales, least = (made.reshape(-1, 8) for made in _fit_affine(values, weights, most))
    (d, s), (dmin, m) = _sixbit(scales), _sixbit(-least)
    small = np.concatenate([s[:, :4] | s[:, 4:] >> 4 << 6, m[:, :4] | m[:, 4:] >> 4 << 6, (s[:, 4:] & 15) | (m[:, 4:] & 15) << 4], axis=1)
    step, base = (d.astype(np.float32) * s)[:, :, None], (dmin.astype(np.float32) * m)[:, :, None]
    codes = np.where(step > 0, np.clip(np.rint((x.reshape(-1, 8, 32) + base) / step), 0, most), 0).astype(np.uint8)
    parts = [d.view(np.uint8), dmin.view(np.uint8), small]
    if layout == "q5_k":
        parts.append(np.bitwise_or.reduce((codes >> 4) << np.arange(8, dtype=np.uint8)[None, :, None], axis=1))
    low = (codes & 15).reshape(-1, 4, 2, 32)
    return np.concatenate([*parts, (low[:, :, 0] | low[:, :, 1] << 4).reshape(-1, 128)], axis=1)


def _make_q6(x: np.ndarray, layout: str) -> np.ndarray:
    values = np.ascontiguousarray(x.reshape(-1, 16).T)
    scales = _fit_symmetric(values, values * values, -32).reshape(-1, 16)
    d = _f16(_largest(scales) / np.float32(-128))
    exact = d.astype(np.float32)
    small = np.where(exact != 0, np.clip(np.rint(scales / exact), -128, 127), 0).astype(np.float32)
    step = (exact * small)[:, :, None]
    levels = np.where(step != 0, np.clip(np.rint(x.reshape(-1, 16, 16) / step), -32, 31), 0)
    codes = (levels + 32).astype(np.uint8).reshape(-1, 2, 4, 32)
    low = (codes[:, :, :2] & 15) | (codes[:, :, 2:] & 15) << 4
    high = np.bitwise_or.reduce((codes >> 4) << np.array([0, 2, 4, 6], np.uint8)[None, None, :, None], axis=2)
    return np.concatenate([low.reshape(-1, 128), high.reshape(-1, 64), small.astype(np.int8).view(np.uint8), d.view(np.uint8)], axis=1)


def _make_superblocks(weight: np.ndarray, layout: str, group: int, data: str, scales: str) -> Made:
    x = weight.reshape(-1, 256)
    make = _make_q6 if layout == "q6_k" else _make_q45
    made = [make(x[at : at + _CHUNK], layout) for at in range(0, len(x), _CHUNK)]
    return {"data": np.concatenate(made) if made else np.zeros((0, LAYOUTS[layout].block[1]), np.uint8)}, {}


_MAKERS: Dict[str, Callable[..., Made]] = {
    **dict.fromkeys(("f8_tensor", "f8_channel", "f8_block128"), _make_f8), **dict.fromkeys(("i8_channel", "i8_group"), _make_i8),
    **dict.fromkeys(("i4_group", "i4_group_asym"), _make_i4), **dict.fromkeys(("q8_0", "q4_0", "q4_1"), _make_simple_block),
    **dict.fromkeys(("q4_k", "q5_k", "q6_k"), _make_superblocks), **dict.fromkeys(("ggml_mxfp4", "mxfp4", "mxfp8"), _make_power),
    **dict.fromkeys(("ggml_nvfp4", "nvfp4"), _make_nvfp4),
}  # fmt: skip
