"""What belongs to the normal distribution, by element in f64: erfcx, erfc, and the inverses erfinv
and ndtri. Sums over evenly spaced places of a Gaussian, corrected for the pole beside them, are
exact to f64 (trapezoidal rule)."""

from __future__ import annotations

import math

from ..ir import Value
from . import elementwise, functions  # noqa: F401  - the methods that are used here
from .widened import narrow, wide

#: Places of the sum, and their distance: what it leaves out is exp(-(pi / 0.5)^2), 7e-18.
_PLACES, _APART = 13, 0.5


def _square_exp(x: Value, sign: float) -> Value:
    """exp(x^2) or exp(-x^2). The square is two terms, so that its rounding is not multiplied by
    its size."""
    high = x.to_copy("f32").to_copy("f64")
    rest = (x - high) * (x + high)
    return (high * high * sign).exp() * (rest * sign).exp()


def _scaled(x: Value) -> Value:
    """exp(x^2) * erfc(x) for x from 0.5 on."""
    square = x * x
    made = square.reciprocal()
    for k in range(1, _PLACES):
        place = (k * _APART) ** 2
        made = made + 2 * math.exp(-place) / (square + place)
    # the pole at i x, which lies within what the sum takes for smooth
    pole = x.minimum(math.pi / _APART)
    share = 2.0 * (pole * pole).exp() / (pole * (2 * math.pi / _APART)).expm1()
    return made * x * (_APART / math.pi) - x.lt(math.pi / _APART).where(share, 0.0)


def _near(x: Value) -> Value:
    return x.lt(0.5)


def _erfc(x: Value) -> Value:
    far = x.maximum(0.5).minimum(28.0)
    return _near(x).where(1.0 - x.erf(), _square_exp(far, -1.0) * _scaled(far))


def erfcx(x: Value) -> Value:
    """exp(x^2) * erfc(x), where neither overflows nor vanishes first."""
    y, dtype = wide(x, "f64")
    near = y.minimum(0.5)
    made = _near(y).where(_square_exp(near.maximum(-30.0), 1.0) * (1.0 - near.erf()), _scaled(y.maximum(0.5)))
    return narrow(y.ne(y).where(y, y.eq(math.inf).where(0.0, made)), dtype)


def _inverse(inner: Value, outer: Value) -> Value:
    """The z from 0 on with erf(z) = inner and erfc(z) = outer: that of them which has its digits
    decides. A first guess within 0.2 %, and three of Halley's steps; where outer is tiny, three of
    Newton's for its logarithm."""
    is_near = inner.lt(0.5)
    bounded = outer.maximum(5e-324)
    logarithm = is_near.where((inner * inner * -1.0).log1p(), (bounded * (1.0 + inner)).log())
    # Winitzki: z^2 = sqrt(t^2 - l / 0.147) - t, where t = 2 / (0.147 pi) + l / 2 and
    # l = log(1 - inner^2)
    t, gap = logarithm * 0.5 + 2 / (math.pi * 0.147), logarithm * (-1 / 0.147)
    guess = (gap / ((t * t + gap).sqrt() + t)).sqrt()
    made = guess
    for _ in range(3):
        apart = is_near.where(made.erf() - inner, bounded - _erfc(made))
        step = apart * _square_exp(made, 1.0) * (math.sqrt(math.pi) / 2)
        made = made - step / (1.0 + made * step)
    wanted, tail = outer.log(), guess.maximum(2.0)
    for _ in range(3):
        scaled = _scaled(tail)
        tail = tail + (scaled.log() - tail * tail - wanted) * scaled * (math.sqrt(math.pi) / 2)
    return outer.lt(1e-6).where(tail, made)


def erfinv(x: Value) -> Value:
    """The number whose erf is x."""
    y, dtype = wide(x, "f64")
    inner = y.abs()
    made = _inverse(inner.minimum(1.0), (1.0 - inner).maximum(0.0))
    made = inner.eq(0.0).where(y, inner.eq(1.0).where(math.inf, inner.gt(1.0).where(math.nan, made)))
    return narrow(y.ne(y).where(y, y.lt(0.0).where(-made, made)), dtype)


def ndtri(x: Value) -> Value:
    """The number below which x of a normal distribution lies."""
    y, dtype = wide(x, "f64")
    half = y.minimum(1.0 - y)  # exact: from 0.5 on, 1 - y is
    made = _inverse((1.0 - half * 2.0).maximum(0.0), (half * 2.0).maximum(0.0)) * math.sqrt(2)
    made = half.eq(0.0).where(math.inf, half.lt(0.0).where(math.nan, half.eq(0.5).where(0.0, made)))
    return narrow(y.ne(y).where(y, y.lt(0.5).where(-made, made)), dtype)


_of_f32 = Value.erfc


def erfc(x: Value) -> Value:
    """1 - erf(x), which keeps its digits where erf(x) is near 1."""
    if x.dtype != "f64":
        return _of_f32(x)
    return x.ne(x).where(x, _erfc(x))


Value.erfc = erfc
