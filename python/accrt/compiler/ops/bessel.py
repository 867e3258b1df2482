"""Bessel functions of orders 0 and 1, by element in f64: of the first and second kind, and the
modified ones of the second kind. Near 0 their series. Else the integral of exp(-s^2) / sqrt(2 z +
s^2) over all s, which is K0(z) exp(z), as a sum over evenly spaced places (trapezoidal rule); for
J and Y, z is -i x."""

from __future__ import annotations

import math
from typing import Tuple

from ..ir import Value
from . import elementwise, functions  # noqa: F401  - the methods that are used here
from .widened import narrow, wide

_EULER = 0.57721566490153286
#: Series to here, sums from here on: of J and Y, and of K. The larger, the wider the places may be.
_BORDER, _BORDER_K = 4.0, 2.0
_APART, _APART_K = 0.32, 0.3
#: The least number above 0.
_LEAST = 5e-324
#: Terms of the series: the next one is below 1e-20.
_TERMS = 20


def _weights(apart: float) -> list[Tuple[float, float]]:
    """(s^2, weight) of each place from 0 on, until the weights vanish."""
    places = [(k * apart) ** 2 for k in range(int(6.4 / apart) + 1)]
    return [(square, apart * math.exp(-square) * (2.0 if square else 1.0)) for square in places]


def _series(square: Value, order: int, sign: float) -> Tuple[Value, Value]:
    """The sum over k of (sign * square)^k / (k! (k + order)!), and that of these terms, each times
    the sum of 1 / j up to k, in order 1 plus that up to k + 1."""
    terms, shares = [], []
    for k in range(_TERMS + 1):
        terms.append(sign**k / (math.factorial(k) * math.factorial(k + order)))
        shares.append(math.fsum(1 / j for j in range(1, k + 1)) + (math.fsum(1 / j for j in range(1, k + 2)) if order else 0.0))
    made = []
    for factors in (terms, [t * h for t, h in zip(terms, shares)]):
        total = square * 0.0 + factors[-1]
        for factor in reversed(factors[:-1]):
            total = total * square + factor
        made.append(total)
    return made[0], made[1]


def _logarithm(x: Value) -> Value:
    """log(x / 2) + Euler's constant: half of the least number above 0 would be 0."""
    return x.log() + (_EULER - math.log(2))


def _near(x: Value, order: int) -> Tuple[Value, Value]:
    """J and Y up to the border. x is above 0."""
    first, second = _series(x * x * 0.25, order, -1.0)
    logarithm = _logarithm(x)
    if order == 0:
        return first, (logarithm * first - second) * (2 / math.pi)
    half = x * 0.5
    return half * first, half * (logarithm * first * (2 / math.pi) - second * (1 / math.pi)) - (x * (math.pi / 2)).reciprocal()


def _far(x: Value, order: int) -> Tuple[Value, Value]:
    """J and Y from the border on."""
    cosines, sines = x * 0.0, x * 0.0
    for square, weight in _weights(_APART):
        ratio = (x * 2.0).reciprocal() * square  # s^2 / (2 x)
        size = (ratio * ratio + 1.0).sqrt()
        root = (size + ratio).sqrt()  # and 1 / root is sqrt(size - ratio)
        real, imaginary = root / size, (root * size).reciprocal()
        if order:
            real, imaginary = real - ratio * 2.0 * imaginary, imaginary + ratio * 2.0 * real
        cosines, sines = cosines + real * weight, sines + imaginary * weight
    scale = x.rsqrt() * (1 / math.pi)
    sin, cos = x.sin(), x.cos()
    if order == 0:
        return (cosines * sin + sines * cos) * scale, (sines * sin - cosines * cos) * scale
    return (sines * sin - cosines * cos) * scale, (cosines * sin + sines * cos) * (scale * -1.0)


def bessel_j(x: Value, order: int) -> Value:
    """The Bessel function of the first kind, of order 0 or 1."""
    y, dtype = wide(x, "f64")
    size = y.abs()
    near = size.minimum(_BORDER)
    first, _ = _series(near * near * 0.25, order, -1.0)
    made = size.gt(_BORDER).where(_far(size.maximum(_BORDER), order)[0], first * near * 0.5 if order else first)
    if order:
        made = y.eq(0.0).where(y, y.lt(0.0).where(-made, made))  # of -0 it is -0
    return narrow(y.ne(y).where(y, made), dtype)


def bessel_y(x: Value, order: int) -> Value:
    """The Bessel function of the second kind, of order 0 or 1: NaN below 0."""
    y, dtype = wide(x, "f64")
    made = y.gt(_BORDER).where(_far(y.maximum(_BORDER), order)[1], _near(y.minimum(_BORDER).maximum(_LEAST), order)[1])
    made = y.eq(0.0).where(-math.inf, y.lt(0.0).where(math.nan, made))
    return narrow(y.ne(y).where(y, made), dtype)


def bessel_k(x: Value, order: int, scaled: bool = False) -> Value:
    """The modified Bessel function of the second kind, of order 0 or 1; `scaled`: by exp(x). NaN
    below 0."""
    y, dtype = wide(x, "f64")
    near, far = y.minimum(_BORDER_K).maximum(_LEAST), y.maximum(_BORDER_K)
    first, second = _series(near * near * 0.25, order, 1.0)
    logarithm = _logarithm(near)
    if order == 0:
        small = second - logarithm * first
    else:
        half = near * 0.5
        small = near.reciprocal() + half * (logarithm * first - second * 0.5)
    inverse = far.reciprocal()  # 0 of an infinity
    large = inverse * 0.0
    for square, weight in _weights(_APART_K):
        ratio = inverse * (square * 0.5)
        large = large + weight * (1.0 + ratio).rsqrt() * (1.0 + ratio * 2.0 if order else 1.0)
    large = large * far.rsqrt() * math.sqrt(0.5)
    made = y.gt(_BORDER_K).where(large, small * near.exp()) if scaled else y.gt(_BORDER_K).where(large * (-far).exp(), small)
    made = y.eq(0.0).where(math.inf, y.lt(0.0).where(math.nan, made))
    return narrow(y.ne(y).where(y, made), dtype)
