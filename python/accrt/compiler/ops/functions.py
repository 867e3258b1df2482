"""Functions by element and of rows that are made of simpler operations: methods with ATen's names,
arguments and formulas.

They are written so that nothing overflows on the way to a finite result, and small results keep
their digits.
"""

from __future__ import annotations

import math
from typing import Any, Callable, Optional

from .. import expr as ex
from ..declared import FLOATS, INTEGERS
from ..ir import IRError, Value
from . import elementwise, ordering, products, reductions, shapes  # noqa: F401  - the methods that are used here
from .schema import axes_of, method_axis


def _method(function: Callable[..., Value]) -> Callable[..., Value]:
    setattr(Value, function.__name__.strip("_"), function)
    return function


@_method
def log2(x: Value) -> Value:
    """The logarithm to base 2."""
    return x.log() * (1 / math.log(2))


@_method
def log10(x: Value) -> Value:
    """The logarithm to base 10."""
    return x.log() * (1 / math.log(10))


@_method
def exp2(x: Value) -> Value:
    """2 to the power of x."""
    return 2.0**x


@_method
def square(x: Value) -> Value:
    """x * x."""
    return x * x


@_method
def sign(x: Value) -> Value:
    """-1, 0 or 1; NaN stays."""
    return x.gt(0).to_copy(x.dtype) - x.lt(0).to_copy(x.dtype)


@_method
def _round(x: Value) -> Value:
    """To the nearest, ties to even."""
    if x.dtype not in FLOATS:
        return x
    low = x.floor()
    apart = x - low
    odd = (low * 0.5).floor() * 2.0
    return apart.gt(0.5).logical_or(apart.eq(0.5).logical_and(low.ne(odd))).where(low + 1.0, low)


@_method
def trunc(x: Value) -> Value:
    """Towards zero."""
    return x if x.dtype not in FLOATS else x.lt(0.0).where(x.ceil(), x.floor())


@_method
def tan(x: Value) -> Value:
    """Sin(x) / cos(x)."""
    return x.sin() / x.cos()


@_method
def cosh(x: Value) -> Value:
    """The hyperbolic cosine: exp(x) may be infinite where it is not."""
    half = (x.abs() * 0.5).exp()
    return half * 0.5 * half + 0.5 / half / half


@_method
def sinh(x: Value) -> Value:
    """The hyperbolic sine, by expm1."""
    return x.tanh() * x.cosh()


@_method
def asinh(x: Value) -> Value:
    """By log1p, with the sign put back: small numbers keep their digits."""
    a = x.abs()
    near = (a + a * a / ((a * a + 1.0).sqrt() + 1.0)).log1p()
    made = a.gt(1e8 if x.dtype == "f64" else 1e4).where(a.log() + math.log(2), near)
    return x.eq(0.0).where(x, x.lt(0.0).where(-made, made))


@_method
def acosh(x: Value) -> Value:
    """By log1p, so that what is near 1 keeps its digits; 2 x may be infinite."""
    above = x - 1.0
    return x.gt(1e8).where(x.log() + math.log(2), (above + above.sqrt() * (above + 2.0).sqrt()).log1p())


@_method
def atanh(x: Value) -> Value:
    """By log1p, so that small numbers keep their digits."""
    return (x * 2.0 / (1.0 - x)).log1p() * 0.5


@_method
def asin(x: Value) -> Value:
    """By atan; NaN beyond -1 and 1."""
    return (x / ((1.0 - x) * (1.0 + x)).sqrt()).atan()


@_method
def acos(x: Value) -> Value:
    """By atan, so that what is near 1 keeps its digits; NaN beyond -1 and 1."""
    return ((1.0 - x) / (1.0 + x)).sqrt().atan() * 2.0


@_method
def atan2(x: Value, other: Value) -> Value:
    """The angle of (other, x), with the signs of zeros: atan of the smaller by the larger size, and
    turned to its eighth of the circle."""
    # the least integer has no size of its type
    dtype = next((value.dtype for value in (x, other) if value.dtype in FLOATS), "f32")
    x, other = (value if value.dtype in FLOATS else value.to_copy(dtype) for value in (x, other))
    high, low = x.abs(), other.abs()
    top, least = high.maximum(low), high.minimum(low)
    ratio = top.eq(0.0).where(0.0, least.eq(math.inf).where(1.0, least / top))
    angle = high.gt(low).where(math.pi / 2 - ratio.atan(), ratio.atan())
    angle = other.reciprocal().lt(0.0).logical_or(other.lt(0.0)).where(math.pi - angle, angle)
    return x.reciprocal().lt(0.0).logical_or(x.lt(0.0)).where(-angle, angle)


@_method
def hypot(x: Value, other: Value) -> Value:
    """Divided by the larger one, so that no square overflows. Infinite where one of them is, beside
    NaN, too."""
    a, b = x.abs(), other.abs()
    top, low = a.maximum(b), a.minimum(b)
    ratio = top.gt(0.0).where(low / top, 0.0)
    return a.eq(math.inf).logical_or(b.eq(math.inf)).where(math.inf, top * (ratio * ratio + 1.0).sqrt())


@_method
def isnan(x: Value) -> Value:
    """Whether an element is NaN."""
    return x.ne(x)


@_method
def isinf(x: Value) -> Value:
    """Whether an element is infinite, of either sign."""
    return x.abs().eq(math.inf)


@_method
def softplus(x: Value, beta: float = 1, threshold: float = 20) -> Value:
    """log(1 + exp(beta x)) / beta: the larger of beta x and 0, and what is left of it."""
    y = x * beta
    soft = (y.maximum(0.0) + (y.abs() * -1.0).exp().log1p()) * (1 / beta if beta else math.inf)
    return y.gt(threshold).where(x, soft)


@_method
def log_sigmoid(x: Value) -> Value:
    """Log(sigmoid(x)), without overflow."""
    return x.minimum(0.0) - (x.abs() * -1.0).exp().log1p()


@_method
def elu(x: Value, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Value:
    """x, or alpha * (exp(x) - 1) where x is below 0, by expm1."""
    return x.gt(0.0).where(x * scale, (x * input_scale).expm1() * (alpha * scale))


@_method
def celu(x: Value, alpha: float = 1.0) -> Value:
    """x, or alpha * (exp(x / alpha) - 1) where x is below 0."""
    if isinstance(alpha, (int, float)) and alpha == 0:
        raise IRError(f"function {x.function.name!r}: celu: alpha is {alpha}, and x is divided by it")
    return x.elu(alpha, 1.0, 1 / alpha)


@_method
def selu(x: Value) -> Value:
    """Elu with the scales that keep means and variances."""
    return x.elu(1.6732632423543772, 1.0507009873554805)


@_method
def leaky_relu(x: Value, negative_slope: float = 0.01) -> Value:
    """x, or x * negative_slope where x is below 0."""
    return x.gt(0.0).where(x, x * negative_slope)


@_method
def mish(x: Value) -> Value:
    """x * tanh(softplus(x))."""
    return x * x.softplus().tanh()


@_method
def hardtanh(x: Value, min_val: float = -1.0, max_val: float = 1.0) -> Value:
    """x within two bounds; of integers within the whole parts of the bounds."""
    return x.clamp(int(min_val), int(max_val)) if x.dtype in INTEGERS else x.clamp(min_val, max_val)


@_method
def relu6(x: Value) -> Value:
    """x within 0 and 6."""
    return x.hardtanh(0.0, 6.0)


@_method
def hardsigmoid(x: Value) -> Value:
    """Clamp(x + 3, 0, 6) / 6."""
    return (x * (1 / 6) + 0.5).clamp(0.0, 1.0)


@_method
def hardswish(x: Value) -> Value:
    """x * hardsigmoid(x)."""
    return x * x.hardsigmoid()


@_method
def glu(x: Value, dim: int = -1) -> Value:
    """One half of a dimension, times the sigmoid of the other half."""
    first, second = x.chunk(2, method_axis(x, dim, "glu"))
    return first * second.sigmoid()


@_method
def var(x: Value, dim: Any = None, correction: Optional[float] = None, keepdim: bool = False) -> Value:
    """The sum of squares from the mean, by the number of elements less `correction` (1)."""
    dims = axes_of(dim, x.rank)
    apart = x - x.mean(dims, True)
    count = ex.product(x.shape[d] for d in dims)
    return (apart * apart).sum(dims, keepdim) / ex.simplify(ex.constant(count) - int(1 if correction is None else correction))


@_method
def batch_norm(x: Value, weight: Optional[Value], bias: Optional[Value], mean: Value, variance: Value, eps: float = 1e-5) -> Value:
    """In evaluation: one factor and one summand of each channel. Where all is weights, they are
    made when the bundle is loaded."""
    factor = (variance + eps).rsqrt()
    factor = factor if weight is None else factor * weight
    summand = -(mean * factor) if bias is None else bias - mean * factor
    shape = [1, -1, *[1] * (x.rank - 2)]
    return x * factor.view(shape) + summand.view(shape)


@_method
def logsumexp(x: Value, dim: Any, keepdim: bool = False) -> Value:
    """The logarithm of the sum of exponentials, without overflow."""
    dims = axes_of(dim, x.rank)
    # infinities less themselves would be NaN
    limit = {"f16": 65504.0, "f64": 1e308}.get(x.dtype, 3e38)
    top = x.amax(dims, True).maximum(-limit).minimum(limit)
    total = (x - top).exp().sum(dims, True).log() + top
    return total if keepdim else total.sum(dims, False)


@_method
def log_softmax(x: Value, dim: int) -> Value:
    """x less the logarithm of the sum of exponentials along a dimension."""
    at = method_axis(x, dim, "log_softmax")
    apart = x - x.amax(at, True)
    return apart - apart.exp().sum(at, True).log()
