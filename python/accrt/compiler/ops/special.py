"""Special functions by element: the inverse of erf, and modified Bessel functions of the first
kind."""

from __future__ import annotations

import math
from typing import Tuple

from ..declared import FLOATS
from ..ir import IRError, Value
from . import elementwise, functions  # noqa: F401  - the methods that are used here


def _wide(x: Value) -> Tuple[Value, str]:
    """The numbers in f32 or f64, and the type of the result."""
    dtype = x.dtype if x.dtype in FLOATS else "f32"
    wide = "f64" if dtype == "f64" else "f32"
    return (x if x.dtype == wide else x.to_copy(wide)), dtype


def _narrow(x: Value, dtype: str) -> Value:
    return x if x.dtype == dtype else x.to_copy(dtype)


def erfinv(x: Value) -> Value:
    """The number whose erf is x: a first guess within 0.2 %, and three of Halley's steps. Near 1
    the rest up to 1 decides, so that no digit is lost."""
    y, dtype = _wide(x)
    if y.dtype == "f64":
        raise IRError(f"function {x.function.name!r}: erfinv of f64: there is one of f32, f16 and bf16")
    a = y.abs()
    rest = 1.0 - a
    logarithm = a.gt(0.5).where((rest * (1.0 + a)).log(), (a * a * -1.0).log1p())
    # Winitzki: x^2 = sqrt(t^2 - l / 0.147) - t, where t = 2 / (0.147 pi) + l / 2 and
    # l = log(1 - y^2)
    t, gap = logarithm * 0.5 + 2 / (math.pi * 0.147), logarithm * (-1 / 0.147)
    made = (gap / ((t * t + gap).sqrt() + t)).sqrt()
    for _ in range(3):
        apart = a.gt(0.5).where(rest - made.erfc(), made.erf() - a)
        step = apart * (made * made).exp() * (math.sqrt(math.pi) / 2)
        made = made - step / (1.0 + made * step)
    made = a.eq(1.0).where(math.inf, a.gt(1.0).where(math.nan, made))
    return _narrow(y.lt(0.0).where(-made, made), dtype)


def bessel_i(x: Value, order: int = 0, scaled: bool = False) -> Value:
    """The modified Bessel function of the first kind, of order 0 or 1; `scaled`: by exp(-|x|). Its
    series for small numbers, its asymptotic one for large ones."""
    y, dtype = _wide(x)
    if order not in (0, 1):
        raise IRError(f"function {x.function.name!r}: bessel_i of order {order}: orders 0 and 1 are there")
    a = y.abs()
    border, terms, far_terms = (20.0, 52, 24) if y.dtype == "f64" else (10.0, 26, 12)
    near = a.minimum(border)
    square = near * near * 0.25
    series = square * 0.0 + 1.0
    for k in range(terms, 0, -1):
        series = series * square * (1 / (k * (k + order))) + 1.0
    series = series * near * 0.5 if order else series
    far = a.maximum(border)
    inverse = far.reciprocal()
    rest = inverse * 0.0 + 1.0
    for k in range(far_terms, 0, -1):
        rest = rest * inverse * (-(4 * order * order - (2 * k - 1) ** 2) / (8 * k)) + 1.0
    rest = rest * (inverse * (1 / (2 * math.pi))).sqrt()
    # exp(far) may be infinite where its root is not
    root = (far * 0.5).exp()
    small, large = (series * (near * -1.0).exp(), rest) if scaled else (series, rest * root * root)
    made = a.gt(border).where(large, small)
    made = y.lt(0.0).where(-made, made) if order else made
    return _narrow(y.ne(y).where(y, made), dtype)


Value.erfinv, Value.bessel_i = erfinv, bessel_i
