"""gcd and lcm of integers; nextafter, the neighbour of a number in its type, and frexp, its parts;
by element."""

from __future__ import annotations

import math

from ..ir import IRError, Value
from . import elementwise, functions, special  # noqa: F401  - the methods that are used here

#: Euclid's steps that any two numbers of a type need: those of neighbours in Fibonacci's sequence.
_STEPS = {"i8": 12, "u8": 13, "i16": 23, "u16": 24, "i32": 46, "u32": 47, "i64": 92, "u64": 93}
#: Of a type: the digits of its numbers in base 2, the least number above 0 (a power of 2), the
#: largest number.
_FORMS = {
    "f16": (11, -24, 65504.0), "bf16": (8, -133, float.fromhex("0x1.fep127")), "f32": (24, -149, float.fromhex("0x1.fffffep127")),
    "f64": (53, -1074, float.fromhex("0x1.fffffffffffffp1023")),
}  # fmt: skip
#: What small numbers of f64 are multiplied by, so that their digits are not cut.
_UP = 2.0**100


def _both(a: Value, b: Value, name: str) -> tuple[Value, Value]:
    dtype = a.maximum(b).dtype
    if dtype not in _STEPS:
        raise IRError(f"function {a.function.name!r}: {name} of {dtype}: it is one of integers")
    a, b = (x if x.dtype == dtype else x.to_copy(dtype) for x in (a, b))
    return a, b


def gcd(a: Value, b: Value) -> Value:
    """The greatest common divisor, of 0 and 0 it is 0: by Euclid."""
    a, b = _both(a, b, "gcd")
    a, b = a.abs(), b.abs()
    for _ in range(_STEPS[a.dtype]):
        done = a.eq(0)
        a, b = done.where(a, b - b.div(a, rounding_mode="trunc") * a), done.where(b, a)
    return b


def lcm(a: Value, b: Value) -> Value:
    """The least common multiple; of 0 and any number it is 0."""
    a, b = _both(a, b, "lcm")
    dtype = a.dtype
    if dtype in ("i8", "u8", "i16", "u16"):  # cut at the end, as torch does
        a, b = a.to_copy("i64"), b.to_copy("i64")
    made = (a.div(gcd(a, b), rounding_mode="trunc") * b).abs()  # a division by 0 gives 0
    return made if made.dtype == dtype else made.to_copy(dtype)


def frexp(x: Value) -> list[Value]:
    """The number as m * 2^e: m from 0.5 up to 1, with its sign, and e (i32). Infinities and NaN are
    m, and e is 0."""
    if x.dtype not in _FORMS:
        raise IRError(f"function {x.function.name!r}: frexp of {x.dtype}: it is one of floating-point numbers")
    wide = x if x.dtype == "f64" else x.to_copy("f64")
    size, exponent = wide.abs(), x.function.full([], 0, "i32")
    steps = [1 << k for k in reversed(range(10 if x.dtype == "f64" else 8))]
    for step in (steps[0], *steps):  # up to 0.5
        is_small = size.lt(2.0**-step)
        size, exponent = is_small.where(size * 2.0**step, size), is_small.where(exponent - step, exponent)
    for step, least in (*((step, 2.0**step) for step in steps), (1, 1.0)):  # below 1
        is_large = size.ge(least)
        size, exponent = is_large.where(size * 2.0**-step, size), is_large.where(exponent + step, exponent)
    kept = wide.eq(0.0).logical_or(wide.abs().lt(math.inf).logical_not())
    made = kept.where(wide, wide.lt(0.0).where(-size, size))
    return [made if x.dtype == "f64" else made.to_copy(x.dtype), kept.where(0, exponent)]


def nextafter(x: Value, y: Value) -> Value:
    """The number after x, in its type, in the direction of y."""
    dtype = x.maximum(y).dtype
    if dtype not in _FORMS:
        raise IRError(f"function {x.function.name!r}: nextafter of {dtype}: it is one of floating-point numbers")
    digits, least, largest = _FORMS[dtype]
    x, y = (v if v.dtype == "f64" else v.to_copy("f64") for v in (x, y))
    size = x.abs()
    # a little more than half of what lies between two numbers is rounded to the next one; below the
    # least number that has all digits, all are equally far apart
    share = 2.0**-digits * (1 + 2.0 ** (1 - min(digits, 53)) if dtype == "f64" else 1 + 2.0**-20)
    step = size * share
    if dtype == "f64":
        lifted = size * _UP
        lifted_step = (lifted * share).maximum(2.0**least * _UP)
        is_small = size.lt(2.0**-900)
        larger = is_small.where((lifted + lifted_step) * (1 / _UP), size + step)
        lesser = is_small.where((lifted - lifted_step) * (1 / _UP), size - step)
    else:
        step = step.maximum(2.0**least)
        larger, lesser = size + step, size - step
    lesser = size.eq(math.inf).where(largest, lesser)
    above = y.gt(x)
    grows = above.where(x.ge(0.0), x.le(0.0))
    made = grows.where(larger, lesser)
    negative = x.eq(0.0).where(y.lt(0.0), x.lt(0.0))
    made = negative.where(-made, made)
    made = x.eq(y).where(y, x.ne(x).where(x, y.ne(y).where(y, made)))
    return made if dtype == "f64" else made.to_copy(dtype)
