"""The values of a Tensor as Python numbers and as text: decoding of every data type, and reading
with elision.

Nothing here knows a device: bytes come from `Buffer.read`, which copies them to the host where that
is needed.
"""
from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Callable, List, Optional, Sequence, Union

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .tensor import Tensor

Number = Union[bool, int, float]

_CODES = {"bool": "?", "i8": "b", "u8": "B", "i16": "h", "u16": "H", "i32": "i", "u32": "I", "i64": "q", "u64": "Q",
          "f16": "e", "f32": "f", "f64": "d"}
_F4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)

#: Tensors with more elements are shown with their first and last `_EDGE` places along each
#: dimension.
_WHOLE_ELEMENTS = 1000
_EDGE = 3
#: A read of more bytes than this is split into one for each row.
_READ_BYTES = 1 << 20
_LINE_COLUMNS = 100


def _bf16(bits: int) -> float:
    value: float = struct.unpack("<f", struct.pack("<I", bits << 16))[0]
    return value


def _f8e5m2(bits: int) -> float:
    value: float = struct.unpack("<e", struct.pack("<H", bits << 8))[0]
    return value


def _f8e4m3fn(bits: int) -> float:
    sign, exponent, fraction = -1.0 if bits & 0x80 else 1.0, bits >> 3 & 15, bits & 7
    if exponent == 15 and fraction == 7:
        return float("nan")
    return sign * (fraction * 2.0 ** -9 if exponent == 0 else (8 + fraction) * 2.0 ** (exponent - 10))


def _f8e8m0(bits: int) -> float:
    return float("nan") if bits == 255 else 2.0 ** (bits - 127)


def _f4e2m1(bits: int) -> float:
    return -_F4[bits & 7] if bits & 8 else _F4[bits]


def _i4(bits: int) -> int:
    return bits - 16 if bits & 8 else bits


def _u4(bits: int) -> int:
    return bits


#: Types that `struct` does not know: bits of an element, and its value from them. Of two elements
#: in a byte the first is the low one.
_DECODERS: "dict[str, tuple[int, Callable[[int], Number]]]" = {
    "bf16": (16, _bf16), "f8e5m2": (8, _f8e5m2), "f8e4m3fn": (8, _f8e4m3fn), "f8e8m0": (8, _f8e8m0), "f4e2m1": (4, _f4e2m1),
    "i4": (4, _i4), "u4": (4, _u4)}


def element(dtype: str, data: memoryview, index: int) -> Number:
    """Element `index` of packed bytes."""
    code = _CODES.get(dtype)
    if code is not None:
        value: Number = struct.unpack_from("<" + code, data, index * struct.calcsize("<" + code))[0]
        return value
    bits, decode = _DECODERS[dtype]
    if bits == 4:
        return decode(data[index // 2] >> 4 * (index % 2) & 15)
    size = bits // 8
    return decode(int.from_bytes(data[index * size:(index + 1) * size], "little"))


def _reach(shape: Sequence[int], strides: Sequence[int]) -> "tuple[int, int]":
    """The first element and the one behind the last, counted from element 0. There is at least
    one."""
    steps = [(d - 1) * s for d, s in zip(shape, strides)]
    return sum(min(step, 0) for step in steps), sum(max(step, 0) for step in steps) + 1


def nested(tensor: Tensor) -> Any:
    """The values as nested lists, wherever the tensor lies and whatever its strides are; one number
    without dimensions."""
    shape, strides = tensor.shape, tensor.strides
    if 0 in shape:
        return _empty(shape)
    bits = tensor._element_bits
    low, high = _reach(shape, strides)
    if shape and bits >= 8 and (high - low) * bits > 8 * _READ_BYTES and tensor.buffer.host_pointer is None:
        return [nested(tensor[i]) for i in range(shape[0])]
    low -= low * bits % 8 // bits  # to a whole byte
    begin = tensor.offset_bytes + low * bits // 8
    end = tensor.offset_bytes + (high * bits + 7) // 8
    return _gather(tensor.dtype, tensor.buffer.read(begin, end - begin), shape, strides, -low)


def array(tensor: Tensor) -> NDArray[Any]:
    """The values as a numpy array: the memory itself where numpy has the type and the host reaches
    it; bf16, f8 and f4 in f32."""
    import numpy
    name = tensor.dtype
    if name in _CODES:
        return numpy.asarray(tensor)
    bits = _DECODERS[name][0]
    if bits == 4:
        from . import _nibbles  # circular, too
        return _nibbles.values(tensor)
    from ._bits import decoded  # circular: it knows the decoders
    return decoded(tensor._elements("<u2" if bits == 16 else "|u1"), name)


def _empty(shape: Sequence[int]) -> "list[Any]":
    return [_empty(shape[1:]) for _ in range(shape[0])] if shape else []


def _gather(dtype: str, data: memoryview, shape: Sequence[int], strides: Sequence[int], at: int) -> Any:
    if not shape:
        return element(dtype, data, at)
    return [_gather(dtype, data, shape[1:], strides[1:], at + i * strides[0]) for i in range(shape[0])]


# ---- text

def _shown(tensor: Tensor, elide: bool) -> Any:
    """Nested lists of values, with None where places are left out."""
    if not tensor.shape or 0 in tensor.shape or not elide:
        return nested(tensor)
    if tensor._element_bits < 8:  # views may not begin within a byte
        return _elided(nested(tensor))
    if tensor.ndim == 1:
        if tensor.shape[0] <= 2 * _EDGE:
            return nested(tensor)
        return nested(tensor[:_EDGE]) + [None] + nested(tensor[-_EDGE:])
    count = tensor.shape[0]
    if count <= 2 * _EDGE:
        return [_shown(tensor[i], elide) for i in range(count)]
    places: List[Optional[int]] = [*range(_EDGE), None, *range(count - _EDGE, count)]
    return [None if i is None else _shown(tensor[i], elide) for i in places]


def _elided(values: Any) -> Any:
    if not isinstance(values, list):
        return values
    kept = values if len(values) <= 2 * _EDGE else values[:_EDGE] + [None] + values[-_EDGE:]
    return [_elided(v) for v in kept]


def _number_text(value: Optional[Number]) -> str:
    if value is None:
        return "..."
    if isinstance(value, float):
        short = f"{value:.6g}"
        return short if any(c in short for c in ".en") else short + ".0"
    return str(value)


def _texts(values: Any) -> "list[str]":
    """Of all numbers; places that are left out have none."""
    if isinstance(values, list):
        return [t for v in values for t in _texts(v)]
    return [] if values is None else [_number_text(values)]


def _lines(values: Any, width: int, indent: int, depth: int) -> str:
    """Nested lists in brackets; rows of numbers are broken where a line is full."""
    if not isinstance(values, list):
        return _number_text(values).rjust(width if values is not None else 0)
    pad = " " * (indent + 1)
    if depth > 1:
        gap = "," + "\n" * (depth - 1) + pad
        return "[" + gap.join(_lines(v, width, indent + 1, depth - 1) for v in values) + "]"
    lines: List[str] = []
    line = ""
    for text in (_lines(v, width, 0, 0) for v in values):
        if line and indent + 1 + len(line) + 2 + len(text) > _LINE_COLUMNS:
            lines.append(line + ",")
            line = text
        else:
            line = f"{line}, {text}" if line else text
    return "[" + ("\n" + pad).join([*lines, line]) + "]"


def show(tensor: Tensor, indent: int = 0) -> str:
    """The values in brackets, as numpy shows them: floats with six digits, and of large tensors the
    edges alone."""
    values = _shown(tensor, tensor.size > _WHOLE_ELEMENTS)
    width = max(map(len, _texts(values)), default=0)
    return _lines(values, width, indent, tensor.ndim) if tensor.ndim else _number_text(values)
