"""Lowerings of operations by element, comparisons, casts and reductions. Formulas are those of
ONNX's documentation."""

from __future__ import annotations

import math
from typing import Any, Callable, List, Optional

from ..compiler import Value
from ..compiler import expr as ex
from ..compiler import affine
from ..from_torch import ops_math as aten
from ..from_torch.ops_math import cast, FLOATS, INTEGERS
from ..from_torch.ops_views import flip, slice_
from .table import lowers
from .values import dtype_named, Known, number_of, numpy_type, Unsupported


def pair(lo: Any, a: Any, b: Any) -> Any:
    """Both operands, of one type. What has one element and no more dimensions than the other is a
    number."""
    first, second = _number(a, b), _number(b, a)
    if first is not None and second is None:
        return lo.function.full([], first, lo.dtype(a)), lo.value(b)
    return lo.value(a), lo.value(b) if second is None else second


def _number(item: Any, other: Any) -> Any:
    return number_of(item) if isinstance(item, Known) and isinstance(other, Value) and len(item.shape) <= other.rank else None


def _binary(method: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    return lambda lo, a, b: method(*pair(lo, a, b))


def _added(sign: int) -> Callable[..., Any]:
    def lower(lo: Any, a: Any, b: Any) -> Any:
        first, second = lo.pattern(a), lo.pattern(b)
        x, y = pair(lo, a, b)
        made = x + y if sign > 0 else x - y
        is_known = isinstance(first, affine.Affine) and isinstance(second, affine.Affine)
        return lo.marked(made, affine.add(first, second, sign) if is_known else None)

    return lower


lowers("Add")(_added(1))
lowers("Sub")(_added(-1))
lowers("Mul")(_binary(lambda a, b: a * b))


@lowers("Div")
def div(lo: Any, a: Any, b: Any) -> Any:
    """Of integers towards zero."""
    x, y = pair(lo, a, b)
    return x.div(y, rounding_mode="trunc") if x.dtype in INTEGERS else x / y


@lowers("Mod")
def mod(lo: Any, a: Any, b: Any, fmod: int = 0) -> Any:
    """With the divisor's sign; with fmod the dividend's."""
    x, y = pair(lo, a, b)
    return x.fmod(y) if fmod else x.remainder(y)


@lowers("Pow")
def pow_(lo: Any, a: Any, b: Any) -> Any:
    """In the type of the base."""
    base, power = lo.value(a), number_of(b) if isinstance(b, Known) and len(b.shape) <= len(a.shape) else None
    if power is not None and power in (2, 3):
        return base * base if power == 2 else base * base * base
    if power is not None and power == 0.5 and base.dtype in FLOATS:
        return base.sqrt()
    exponent = power if power is not None else lo.value(b)
    if base.dtype in INTEGERS and (isinstance(exponent, float) or isinstance(exponent, Value) and exponent.dtype in FLOATS):
        return cast(lo, cast(lo, base, "f64") ** exponent, base.dtype)
    return cast(lo, base**exponent, base.dtype)


def _variadic(method: Callable[[Any, Any], Any], after: Any = None) -> Callable[..., Any]:
    def lower(lo: Any, *items: Any) -> Any:
        total = lo.value(items[0])
        for item in items[1:]:
            total = method(total, lo.value(item))
        return total if after is None else after(total, len(items))

    return lower


lowers("Max")(_variadic(lambda a, b: a.maximum(b)))
lowers("Min")(_variadic(lambda a, b: a.minimum(b)))
lowers("Sum")(_variadic(lambda a, b: a + b))
lowers("Mean")(_variadic(lambda a, b: a + b, lambda total, count: total * (1 / count)))


def _unary(name: str) -> Callable[..., Any]:
    return lambda lo, x: getattr(lo.value(x), name)()


for _name, _ours in (
    ("Abs", "abs"), ("Cos", "cos"), ("Erf", "erf"), ("Exp", "exp"), ("Log", "log"), ("Neg", "neg"), ("Reciprocal", "reciprocal"), ("Relu", "relu"),
    ("Sigmoid", "sigmoid"), ("Sin", "sin"), ("Sqrt", "sqrt"), ("Tanh", "tanh"), ("Ceil", "ceil"), ("Floor", "floor"), ("Sign", "sign"), ("Round", "round"),
    ("Tan", "tan"), ("IsNaN", "isnan"), ("Softplus", "softplus"), ("HardSwish", "hardswish"), ("Mish", "mish"),
):  # fmt: skip
    lowers(_name)(_unary(_ours))


@lowers("Identity")
def identity(lo: Any, x: Any) -> Any:
    return x


@lowers("Dropout")
def dropout(lo: Any, x: Any, ratio: Any = None, training: Any = None, seed: Any = None) -> Any:
    if training is not None and number_of(training) is not False and (ratio is None or number_of(ratio) != 0):
        raise Unsupported("in training mode")
    return [x, lo.function.full(list(lo.shape(x)), True, "bool")] if len(lo.node.output) > 1 else x


@lowers("Gelu")
def gelu(lo: Any, x: Any, approximate: str = "none") -> Any:
    return lo.value(x).gelu(approximate)


@lowers("Swish")
def swish(lo: Any, x: Any, alpha: float = 1.0) -> Any:
    x = lo.value(x)
    return x.silu() if alpha == 1.0 else x * (x * alpha).sigmoid()


@lowers("Elu")
def elu(lo: Any, x: Any, alpha: float = 1.0) -> Any:
    return lo.value(x).elu(alpha)


@lowers("Selu")
def selu(lo: Any, x: Any, alpha: float = 1.6732632423543772, gamma: float = 1.0507009873554805) -> Any:
    return lo.value(x).elu(alpha, gamma)


@lowers("Celu")
def celu(lo: Any, x: Any, alpha: float = 1.0) -> Any:
    return lo.value(x).elu(alpha, 1.0, 1 / alpha)


@lowers("LeakyRelu")
def leaky_relu(lo: Any, x: Any, alpha: float = 0.01) -> Any:
    return lo.value(x).leaky_relu(alpha)


@lowers("PRelu")
def prelu(lo: Any, x: Any, slope: Any) -> Any:
    x = lo.value(x)
    return x.lt(0).where(x * lo.value(slope), x)


@lowers("HardSigmoid")
def hard_sigmoid(lo: Any, x: Any, alpha: float = 0.2, beta: float = 0.5) -> Any:
    return (lo.value(x) * alpha + beta).clamp(0.0, 1.0)


@lowers("ThresholdedRelu")
def thresholded_relu(lo: Any, x: Any, alpha: float = 1.0) -> Any:
    x = lo.value(x)
    return x.gt(alpha).where(x, 0.0)


@lowers("Shrink")
def shrink(lo: Any, x: Any, bias: float = 0.0, lambd: float = 0.5) -> Any:
    x = lo.value(x)
    return x.lt(-lambd).where(x + bias, x.gt(lambd).where(x - bias, 0.0))


@lowers("Softsign")
def softsign(lo: Any, x: Any) -> Any:
    x = lo.value(x)
    return x / (x.abs() + 1.0)


@lowers("Sinh", "Cosh")
def sinh(lo: Any, x: Any) -> Any:
    x = lo.value(x)
    up, down = x.exp(), (x * -1.0).exp()
    return ((up - down) if lo.node.op_type == "Sinh" else (up + down)) * 0.5


@lowers("IsInf")
def isinf(lo: Any, x: Any, detect_negative: int = 1, detect_positive: int = 1) -> Any:
    x = lo.value(x)
    if detect_negative and detect_positive:
        return x.isinf()
    if not detect_negative and not detect_positive:
        return lo.function.full(list(x.shape), False, "bool")
    return x.eq(math.inf if detect_positive else -math.inf)


@lowers("Clip")
def clip(lo: Any, x: Any, low: Any = None, high: Any = None) -> Any:
    x = lo.value(x)
    x = x if low is None else x.maximum(pair(lo, x, low)[1])
    return x if high is None else x.minimum(pair(lo, x, high)[1])


# ---- comparisons and truth

for _name, _kind in (("Equal", "eq"), ("Less", "lt"), ("LessOrEqual", "le"), ("Greater", "gt"), ("GreaterOrEqual", "ge")):
    lowers(_name)(aten._comparison(_kind))


@lowers("And")
def and_(lo: Any, a: Any, b: Any) -> Any:
    first, second = lo.pattern(a), lo.pattern(b)
    truth = affine.both(first, second) if isinstance(first, affine.Truth) and isinstance(second, affine.Truth) else None
    return lo.marked(lo.value(a).logical_and(lo.value(b)), truth)


lowers("Or")(lambda lo, a, b: lo.value(a).logical_or(lo.value(b)))
lowers("Xor")(lambda lo, a, b: lo.value(a).logical_xor(lo.value(b)))
for _name, _kind in (("And", "and"), ("Or", "or"), ("Xor", "xor")):
    lowers(f"Bitwise{_name}")(_binary(lambda a, b, _kind=_kind: getattr(a, f"bitwise_{_kind}")(b)))


@lowers("BitShift")
def bit_shift(lo: Any, x: Any, by: Any, direction: str) -> Any:
    a, b = pair(lo, x, by)
    return a.bitwise_left_shift(b) if direction == "LEFT" else a.bitwise_right_shift(b)


@lowers("BitwiseNot")
def bitwise_not(lo: Any, x: Any) -> Any:
    return lo.value(x).bitwise_not()


lowers("Not")(lambda lo, x: lo.value(x).logical_not())


@lowers("Where")
def where(lo: Any, condition: Any, a: Any, b: Any) -> Any:
    a, b = lo.value(a), lo.value(b)
    return lo.value(condition).where(a, b)


# ---- casts


@lowers("Cast")
def cast_to(lo: Any, x: Any, to: int, saturate: int = 1, round_mode: str = "up") -> Any:
    return cast(lo, x, dtype_named(to))


@lowers("CastLike")
def cast_like(lo: Any, x: Any, other: Any, saturate: int = 1, round_mode: str = "up") -> Any:
    dtype = lo.dtype(other)
    if isinstance(x, Known) and not x.is_symbolic:
        return Known(x.array.astype(numpy_type(dtype)))
    return cast(lo, x, dtype)


# ---- reductions


def axes_of(lo: Any, x: Any, axes: Any, is_none_all: bool = True) -> Optional[List[int]]:
    """Dimensions from an attribute or an input; None: all of them."""
    found = [] if axes is None else [int(a) for a in lo.integers(axes, "dimensions to reduce")]
    return [lo.axis(x, a) for a in found] or (None if is_none_all else [])


def _reduction(reduce: Callable[..., Any], before: Any = None) -> Callable[..., Any]:
    def lower(lo: Any, x: Any, axes: Any = None, keepdims: int = 1, noop_with_empty_axes: int = 0) -> Any:
        x = lo.value(x)
        dims = axes_of(lo, x, axes, not noop_with_empty_axes)
        whole = x if before is None else before(x)
        return whole if dims == [] else reduce(lo, whole, dims, bool(keepdims))

    return lower


def _summed(lo: Any, x: Any, dims: Any, keep: bool) -> Any:
    return cast(lo, x.sum(dims, keep), x.dtype)


def _mean(lo: Any, x: Any, dims: Any, keep: bool) -> Any:
    if x.dtype in FLOATS:
        return x.mean(dims, keep)
    count = ex.product(x.shape[d] for d in (range(x.rank) if dims is None else dims))
    return cast(lo, x.sum(dims, keep).div(count, rounding_mode="trunc"), x.dtype)


def _extreme(name: str) -> Callable[..., Any]:
    def reduce(lo: Any, x: Any, dims: Any, keep: bool) -> Any:
        if any(ex.same(x.shape[d], 0) for d in (range(x.rank) if dims is None else dims)):
            return _of_nothing(lo, x, dims, keep, _least(name, x.dtype))
        if x.dtype == "bool":
            return getattr(cast(lo, x, "i32"), name)(dims, keep).ne(0)
        return getattr(x, name)(dims, keep)

    return reduce


def _least(name: str, dtype: str) -> Any:
    """What the largest, or the least, of no elements is."""
    if dtype in FLOATS:
        return -math.inf if name == "amax" else math.inf
    return name == "amin" if dtype == "bool" else None


def _of_nothing(lo: Any, x: Any, dims: Any, keep: bool, number: Any) -> Any:
    if number is None:
        raise Unsupported(f"the extreme of no elements of {x.dtype}")
    gone = set(range(x.rank) if dims is None else dims)
    shape = [1 if d in gone else s for d, s in enumerate(x.shape) if keep or d not in gone]
    return lo.function.full(shape, number, x.dtype)


def _product(lo: Any, x: Any, dims: Any, keep: bool) -> Any:
    """Element by element along each dimension, half by half."""
    dims = list(range(x.rank)) if dims is None else dims
    for at in dims:
        size = x.shape[at]
        if not isinstance(size, int):
            raise Unsupported(f"the product over a dimension of {size}")
        if size == 0:
            x = lo.function.full([1 if d == at else s for d, s in enumerate(x.shape)], 1, x.dtype)
        while size > 1:
            half = size // 2
            made = x.slice(at, 0, half) * x.slice(at, half, 2 * half)
            x = lo.function.cat([made, x.slice(at, size - 1, size)], at) if size % 2 else made
            size = half + size % 2
    return x if keep else x.view([s for d, s in enumerate(x.shape) if d not in dims])


def _log_sum_exp(lo: Any, x: Any, dims: Any, keep: bool) -> Any:
    if any(ex.same(x.shape[d], 0) for d in (range(x.rank) if dims is None else dims)):
        return _of_nothing(lo, x, dims, keep, -math.inf)
    return x.logsumexp(dims, keep)


for _name, _reduce, _before in (
    ("ReduceSum", _summed, None), ("ReduceMean", _mean, None), ("ReduceMax", _extreme("amax"), None), ("ReduceMin", _extreme("amin"), None),
    ("ReduceProd", _product, None), ("ReduceL1", _summed, lambda x: x.abs()), ("ReduceSumSquare", _summed, lambda x: x * x),
    ("ReduceL2", lambda lo, x, dims, keep: cast(lo, (x * x).sum(dims, keep).sqrt(), x.dtype), None),
    ("ReduceLogSum", lambda lo, x, dims, keep: x.sum(dims, keep).log(), None), ("ReduceLogSumExp", _log_sum_exp, None),
):  # fmt: skip
    lowers(_name)(_reduction(_reduce, _before))


@lowers("ArgMax", "ArgMin")
def arg_extreme(lo: Any, x: Any, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Any:
    x = lo.value(x)
    x = aten._turned(x) if lo.node.op_type == "ArgMin" else x
    at = lo.axis(x, axis)
    if not select_last_index:
        return x.argmax(at, bool(keepdims))
    size = x.shape[at]
    turned = flip(lo, x, [at])
    return turned.argmax(at, bool(keepdims)) * -1 + ex.simplify(ex.constant(size) - 1)


@lowers("Softmax")
def softmax(lo: Any, x: Any, axis: int = -1) -> Any:
    return aten.softmax(lo, x, axis)


@lowers("LogSoftmax")
def log_softmax(lo: Any, x: Any, axis: int = -1) -> Any:
    return aten.log_softmax(lo, x, axis)


@lowers("Hardmax")
def hardmax(lo: Any, x: Any, axis: int = -1) -> Any:
    x = lo.value(x)
    at = lo.axis(x, axis)
    shape = [1] * x.rank
    shape[at] = x.shape[at]
    return cast(lo, x.argmax(at, True).eq(lo.function.arange(x.shape[at]).view(shape)), x.dtype)


@lowers("CumSum")
def cumsum(lo: Any, x: Any, axis: Any, exclusive: int = 0, reverse: int = 0) -> Any:
    """Up to each place; exclusive: without it; reverse: from the end."""
    at = lo.axis(x, lo.integer(axis, "the dimension of a sum"))
    dtype, whole = lo.dtype(x), x
    if reverse:
        whole = flip(lo, x, [at])
    total = cast(lo, aten.cumsum(lo, whole, at), dtype)
    if exclusive:
        total = _moved(lo, total, at)
    return flip(lo, total, [at]) if reverse else total


def _moved(lo: Any, x: Value, at: int) -> Value:
    """One place further, with a zero before."""
    zeros = lo.function.full([1 if d == at else s for d, s in enumerate(x.shape)], 0, x.dtype)
    return lo.function.cat([zeros, slice_(lo, x, at, 0, ex.simplify(ex.constant(x.shape[at]) - 1))], at)


@lowers("TopK")
def topk(lo: Any, x: Any, k: Any, axis: int = -1, largest: int = 1, sorted: int = 1) -> Any:
    return aten.topk(lo, x, lo.integer(k, "the number of the largest elements"), axis, bool(largest))
