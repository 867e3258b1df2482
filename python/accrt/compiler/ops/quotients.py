"""Remainders, and quotients that are rounded down: of integers, and of floats as C's fmod and torch
have them. Methods with ATen's names.

x - floor(x / y) * y is wrong where x / y is rounded up to a whole number, and where x is many times
y. So floats are divided in f64, in steps: by 2^96, 2^72, 2^48 and 2^24 times y, and by y. The
quotient of a step has 24 bits then, and y is cut in two parts of 26 bits (Veltkamp), so that the
products and the remainders are exact. They are not where x is more than 2^120 times y.
"""

from __future__ import annotations

import math
from typing import Any, Tuple

from ..ir import Value
from .elementwise import has_floats
from .schema import numpy, result_type

_STEPS = (96, 72, 48, 24, 0)


def _wide(x: Value, other: Any) -> Tuple[str, Value, Value]:
    """The type of the result, and both in f64."""
    other = x.function.as_value(other)
    dtype = result_type(f"function {x.function.name!r}, a quotient", [x, other])
    if isinstance(other, (int, float)):
        wide = x.function.full((), _rounded(float(other), dtype), "f64")
    else:
        wide = (other if isinstance(other, Value) else x.function.full((), other, dtype)).to_copy(dtype).to_copy("f64")
    return dtype, x.to_copy(dtype).to_copy("f64"), wide


def _rounded(number: float, dtype: str) -> float:
    """What a tensor of the type has in the number's place."""
    if dtype == "bf16":
        from .. import _bf16

        return float(_bf16.rounded(number)[0])
    return float(numpy().dtype({"f16": "float16", "f32": "float32", "f64": "float64"}[dtype]).type(number))


def _parts(y: Value) -> Tuple[Value, Value]:
    """Two numbers of 26 bits whose sum is y."""
    small = y * 2.0**-30  # so that nothing overflows
    large = small * (2.0**27 + 1.0)
    high = (large - (large - small)) * 2.0**30
    return high, y - high


def _left(dtype: str, x: Value, y: Value) -> Value:
    """What is left of x, with its sign."""
    size, by = x.abs(), y.abs()
    left, (high, low) = size, _parts(by)
    for bits in _STEPS[3:] if dtype == "f16" else _STEPS:
        step = by * 2.0**bits
        count = (left / step).floor()
        less = (left - count * (high * 2.0**bits)) - count * (low * 2.0**bits)
        less = less.lt(0.0).where(less + step, less)
        less = less.ge(step).where(less - step, less)
        left = left.ge(step).where(less, left) if bits else less  # a step may be beyond f64
    left = size.lt(math.inf).where(by.eq(math.inf).where(size, left), math.nan)
    return left.eq(0.0).where(x * 0.0, x.lt(0.0).where(-left, left))


def _below(left: Value, y: Value) -> Value:
    """Whether the quotient towards zero is one more than that towards minus infinity."""
    return left.ne(0).logical_and(left.lt(0).ne(y.lt(0)))


def fmod(x: Value, other: Any) -> Value:
    """aten.fmod: what the quotient towards zero leaves, with the sign of x."""
    if not has_floats(x, other):
        return x - x.div(other, rounding_mode="trunc") * other
    dtype, wide, y = _wide(x, other)
    return _left(dtype, wide, y).to_copy(dtype)


def remainder(x: Value, other: Any) -> Value:
    """aten.remainder: what the quotient towards minus infinity leaves, with the divisor's sign. By
    0, that of integers is x, where torch raises."""
    if not has_floats(x, other):
        return x - x.div(other, rounding_mode="floor") * other
    dtype, wide, y = _wide(x, other)
    left = _left(dtype, wide, y)
    return _below(left, y).where(left + y, left).to_copy(dtype)


def floor_divide(x: Value, other: Any) -> Value:
    """aten.floor_divide: the quotient towards minus infinity. By 0, that of integers is 0, where
    torch raises, and that of floats is x / y."""
    if not has_floats(x, other):
        return x.div(other, rounding_mode="floor")
    dtype, wide, y = _wide(x, other)
    left, plain = _left(dtype, wide, y), wide / y
    whole = ((wide - left) / y + 0.5).floor()
    whole = _below(left, y).where(whole - 1.0, whole)
    return y.eq(0.0).where(plain, whole.eq(0.0).where(plain * 0.0, whole)).to_copy(dtype)


Value.fmod, Value.remainder, Value.floor_divide = fmod, remainder, floor_divide
Value.__mod__, Value.__floordiv__ = remainder, floor_divide
