"""Special functions by element: the inverse of erf in f32, modified Bessel functions of the first
kind, the logarithm of the gamma function and its derivative; signs, extremes without NaN, rounding
to digits."""

from __future__ import annotations

import math

from ..declared import FLOATS
from ..ir import IRError, Value
from . import elementwise, functions, normal, shapes  # noqa: F401  - the methods that are used here
from .widened import narrow, wide


def erfinv(x: Value) -> Value:
    """The number whose erf is x: a first guess within 0.2 %, and three of Halley's steps. Near 1
    the rest up to 1 decides, so that no digit is lost."""
    if x.dtype == "f64":
        return normal.erfinv(x)
    y, dtype = wide(x)
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
    return narrow(y.eq(0.0).where(y, y.lt(0.0).where(-made, made)), dtype)


def bessel_i(x: Value, order: int = 0, scaled: bool = False) -> Value:
    """The modified Bessel function of the first kind, of order 0 or 1; `scaled`: by exp(-|x|). Its
    series for small numbers, its asymptotic one for large ones."""
    y, dtype = wide(x)
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
    return narrow(y.ne(y).where(y, made), dtype)


#: Of Lanczos' series with g = 7: of these, gamma is exact to 15 digits.
_LANCZOS = (
    0.99999999999980993, 676.5203681218851, -1259.1392167224028, 771.32342877765313, -176.61502916214059, 12.507343278686905, -0.13857109526572012,
    9.9843695780195716e-6, 1.5056327351493116e-7,
)  # fmt: skip


def lgamma(x: Value) -> Value:
    """The logarithm of the size of gamma(x), in f64: by Lanczos' series, and left of 0.5 by what
    gamma(x) * gamma(1 - x) is."""
    dtype = x.dtype if x.dtype in FLOATS else "f32"
    y = x if x.dtype == "f64" else x.to_copy("f64")
    left = y.lt(0.5)
    z = left.where(y * -1.0, y - 1.0)
    series = z * 0.0 + _LANCZOS[0]
    for k, share in enumerate(_LANCZOS[1:], 1):
        series = series + share / (z + float(k))
    far = z + 7.5
    made = (z + 0.5) * far.log() - far + (series * math.sqrt(2 * math.pi)).log()
    # the sine's places between whole numbers are exact, so that gamma's poles are
    made = left.where(math.log(math.pi) - ((y - y.round()) * math.pi).sin().abs().log() - made, made)
    return narrow(y.abs().eq(math.inf).where(math.inf, made), dtype)


def digamma(x: Value) -> Value:
    """The derivative of lgamma, in f64: by its series for large numbers, to which ten steps
    lead."""
    dtype = x.dtype if x.dtype in FLOATS else "f32"
    y = x if x.dtype == "f64" else x.to_copy("f64")
    left = y.lt(0.5)
    z, steps = left.where(1.0 - y, y), None
    for _ in range(10):
        small = z.lt(10.0)
        step = small.where(z.reciprocal(), 0.0)
        steps, z = step if steps is None else steps + step, small.where(z + 1.0, z)
    inverse = (z * z).reciprocal()
    rest = inverse * 0.0
    for share in (1 / 12, -691 / 32760, 1 / 132, -1 / 240, 1 / 252, -1 / 120, 1 / 12):
        rest = (rest + share) * inverse
    made = z.eq(math.inf).where(math.inf, z.log() - 0.5 / z - rest) - steps
    between = y - y.round()
    turned = made - (between * math.pi).cos() / (between * math.pi).sin() * math.pi
    # at 0 an infinity with the sign that torch gives; at other poles none is right
    pole = left.logical_and(between.eq(0.0))
    made = pole.where(y.eq(0.0).where(y.reciprocal() * -1.0, math.nan), left.where(turned, made))
    return narrow(y.eq(-math.inf).where(math.nan, made), dtype)


#: Bernoulli's numbers of even order from 2 on, over the factorial of that order.
_BERNOULLI = tuple(number / math.factorial(2 * k) for k, number in enumerate(
    (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510, 43867 / 798, -174611 / 330, 854513 / 138, -236364091 / 2730), 1))  # fmt: skip


def _tail(s: Value, q: Value) -> Value:
    """The sum of (q + k)^-s over k from 0 on, for s above 1 and q above 0: ten terms, and Euler and
    Maclaurin's sum for the rest."""
    made, z = q.pow(-s), q
    for _ in range(9):
        z = z + 1.0
        made = made + z.pow(-s)
    z = z + 1.0
    last = z.pow(-s)
    made = made + last * z / (s - 1.0) + last * 0.5
    term, square = last * s / z, (z * z).reciprocal()
    for k, share in enumerate(_BERNOULLI, 1):
        made = made + term * share
        term = term * (s + (2.0 * k - 1.0)) * (s + 2.0 * k) * square
    return q.eq(math.inf).logical_and(s.gt(1.0)).where(0.0, made)


def zeta(s: Value, q: Value) -> Value:
    """Hurwitz's zeta function, the sum of (q + k)^-s, in f64. Left of 0 it has numbers where s is
    whole: of the sum over all whole k, which depends on the part of q behind the point alone, what
    is missing is a sum of the same kind."""
    dtype = (s + q).dtype
    dtype = dtype if dtype in FLOATS else "f32"
    s, q = (x if x.dtype == "f64" else x.to_copy("f64") for x in (s, q))
    q = q + s * 0.0  # as large as both
    part = q - q.floor()
    left = q.lt(0.0)
    # one text for all three: it is long
    places = shapes.cat([left.where(x, other).unsqueeze(0) for x, other in ((part, q), (1.0 - part, 1.0), (1.0 - q, 1.0))], 0)
    sums = _tail(s, places)
    first, second, third = (sums.select(0, k) for k in range(3))
    odd = (s * 0.5).floor().ne(s * 0.5)
    made = left.where(first + odd.where(third - second, second - third), first)
    made = left.logical_and(s.floor().ne(s)).where(math.nan, made)
    made = q.le(0.0).logical_and(part.eq(0.0)).where(math.inf, made)
    made = s.eq(1.0).where(math.inf, s.gt(1.0).where(made, math.nan))
    return narrow(made, dtype)


def polygamma(x: Value, order: int) -> Value:
    """The derivative of digamma, of that order."""
    if order < 0:
        raise IRError(f"function {x.function.name!r}: polygamma of order {order}: orders from 0 on are there")
    if order == 0:
        return digamma(x)
    if order > 170:
        raise IRError(f"function {x.function.name!r}: polygamma of order {order}: its factor, the factorial, is beyond f64 above 170")
    dtype = x.dtype if x.dtype in FLOATS else "f32"
    y = x if x.dtype == "f64" else x.to_copy("f64")
    made = zeta(y.minimum(1.0).maximum(-1.0) * 0.0 + (order + 1.0), y) * (math.factorial(order) * (1.0 if order % 2 else -1.0))
    return narrow(y.abs().eq(math.inf).where(y.lt(0.0).where(math.nan, made), made), dtype)


def has_sign(x: Value) -> Value:
    """Whether a number is below 0, or -0."""
    return x.lt(0).logical_or(x.eq(0).logical_and(x.reciprocal().lt(0))) if x.dtype in FLOATS else x.lt(0)


def with_sign(x: Value, y: Value) -> Value:
    """x with the sign of y, in the type of both."""
    dtype = x.maximum(y).dtype
    wanted = dtype if dtype in FLOATS else "f32"
    size = (x if x.dtype == wanted else x.to_copy(wanted)).abs()
    return has_sign(y).where(-size, size)


def extreme(x: Value, y: Value, is_least: bool) -> Value:
    """The larger or the lesser one, and of a NaN and a number the number."""
    made = x.minimum(y) if is_least else x.maximum(y)
    return x.ne(x).where(y, y.ne(y).where(x, made)) if made.dtype in FLOATS else made


def rounded(x: Value, digits: int) -> Value:
    """To so many digits after the point; before it where they are negative."""
    factor = 10.0 ** abs(digits)
    return (x * factor).round() / factor if digits > 0 else (x / factor).round() * factor if digits else x.round()


Value.erfinv, Value.bessel_i, Value.lgamma, Value.digamma = erfinv, bessel_i, lgamma, digamma
