"""Lowerings of operations by element, of comparisons, of casts, and of reductions. Formulas are
those of torch's documentation."""

from __future__ import annotations

import math
import operator
from typing import Any, Callable, Optional, Sequence

from .._torch_numbers import filling, held, operands, widely, wrapped
from .._torch_sizes import beside
from ..compiler import Expr, Value
from ..compiler import expr as ex
from ..compiler import affine
from ..compiler.declared import FLOATS
from ..compiler.declared import INTEGERS as _INTEGERS
from ..compiler.ops.elementwise import has_floats
from ..compiler.ops.schema import result_type
from .ops_views import cat, dropout, slice_
from .table import lowers
from .values import dtype_of, Known, number_of, Unsupported

INTEGERS = ("bool", *_INTEGERS)


def _pair(lo: Any, a: Any, b: Any) -> Any:
    """Both operands; at least the first is a value."""
    a, b = operands(lo, a, b)
    if isinstance(a, Value):
        return a, b
    return (lo.value(a, b.dtype if _same_kind(a, b.dtype) else ""), b) if isinstance(b, Value) else (lo.value(a), b)


def _same_kind(number: Any, dtype: str) -> bool:
    return dtype in FLOATS or (dtype != "bool" and not isinstance(number, float))


def _binary(method: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    def lower(lo: Any, a: Any, b: Any) -> Any:
        return method(*_pair(lo, a, b))

    return lower


def _scaled(x: Value, b: Any, alpha: Any) -> Any:
    """What is added to x, in the type of the sum."""
    if isinstance(alpha, int) and alpha == 1:
        return b
    dtype = result_type("a sum", [x, b])
    b = b.to_copy(dtype) if isinstance(b, Value) and b.dtype != dtype else b
    return b * wrapped(alpha, dtype) if isinstance(b, Value) else wrapped(b * alpha, dtype)


def _added(lo: Any, a: Any, b: Any, sign: int, alpha: Any) -> Any:
    first, second = lo.pattern(a), lo.pattern(b)
    if not isinstance(a, Value) and not isinstance(b, Value) and isinstance(lo.operand(a), (Expr, int)) and isinstance(lo.operand(b), (Expr, int)):
        a, b = lo.value(lo.operand(a)), lo.operand(b)
    x, y = _pair(lo, a, b)
    if x.dtype == "bool" and isinstance(y, Value) and y.dtype == "bool":
        return x.logical_or(y)
    scaled = _scaled(x, y, alpha)
    result = widely(operator.add if sign > 0 else operator.sub, x, scaled)
    known = isinstance(first, affine.Affine) and isinstance(second, affine.Affine) and isinstance(alpha, int) and alpha == 1
    return lo.marked(result, affine.add(first, second, sign) if known else None)


@lowers("aten.add.Tensor", "aten.add.Scalar")
def add(lo: Any, a: Any, b: Any, alpha: Any = 1) -> Any:
    return _added(lo, a, b, 1, alpha)


@lowers("aten.sub.Tensor", "aten.sub.Scalar", "aten.subtract.Tensor", "aten.subtract.Scalar")
def sub(lo: Any, a: Any, b: Any, alpha: Any = 1) -> Any:
    return _added(lo, a, b, -1, alpha)


@lowers("aten.rsub.Scalar", "aten.rsub.Tensor")
def rsub(lo: Any, a: Any, b: Any, alpha: Any = 1) -> Any:
    return _added(lo, b, a, -1, alpha)


@lowers("aten.mul.Tensor", "aten.mul.Scalar", "aten.multiply.Tensor", "aten.multiply.Scalar")
def mul(lo: Any, a: Any, b: Any) -> Any:
    if lo.node in lo.done:
        return a
    x, y = _pair(lo, a, b)
    return x.logical_and(y) if x.dtype == "bool" and isinstance(y, Value) and y.dtype == "bool" else widely(operator.mul, x, y)


lowers("aten.maximum.default", "aten.max.other")(_binary(lambda a, b: Value.maximum(*held(a, b))))
lowers("aten.minimum.default", "aten.min.other")(_binary(lambda a, b: Value.minimum(*held(a, b))))
lowers("aten.logical_xor.default")(_binary(lambda a, b: a.logical_xor(b)))


@lowers("aten.pow.Tensor_Scalar", "aten.pow.Tensor_Tensor")
def pow_(lo: Any, a: Any, b: Any) -> Any:
    """Small whole powers are products, as torch has them."""
    x, y = _pair(lo, a, b)
    if isinstance(y, float) and x.dtype in INTEGERS:
        x = x.to_copy("f32")
    if isinstance(y, (int, float)) and y in (2, 3):
        return x * x if y == 2 else x * x * x
    return x**y


@lowers("aten.pow.Scalar")
def pow_scalar(lo: Any, a: Any, b: Any) -> Any:
    a, b = operands(lo, a, lo.value(b))
    return a**b


@lowers("aten.div.Tensor", "aten.div.Scalar", "aten.true_divide.Tensor", "aten.div.Tensor_mode", "aten.div.Scalar_mode",
        "aten.divide.Tensor", "aten.divide.Scalar", "aten.divide.Tensor_mode", "aten.divide.Scalar_mode")  # fmt: skip
def div(lo: Any, a: Any, b: Any, rounding_mode: Optional[str] = None) -> Any:
    x, y = _pair(lo, a, b)
    return _rounded(x, y, rounding_mode) if rounding_mode else widely(operator.truediv, x, y)


def _rounded(x: Value, y: Any, mode: str) -> Any:
    if mode == "floor":
        return x.floor_divide(y)
    return (x / y).trunc() if has_floats(x, y) else x.div(y, rounding_mode=mode)


for _name in ("floor_divide", "remainder", "fmod"):
    lowers(f"aten.{_name}.{'default' if _name == 'floor_divide' else 'Tensor'}", f"aten.{_name}.Scalar")(_binary(lambda x, y, name=_name: getattr(x, name)(y)))


def method(name: str) -> Callable[..., Any]:
    return lambda lo, x, *args, **named: getattr(lo.value(x), name)(*args, **named)


for _name in (
    "acos", "acosh", "asin", "asinh", "atan", "atanh", "ceil", "celu", "cos", "cosh", "elu", "erf", "erfc", "exp", "exp2", "expm1", "floor", "gelu", "glu",
    "hardsigmoid", "hardswish", "isinf", "isnan", "logsumexp", "diagonal", "unfold", "pixel_shuffle",
    "leaky_relu", "log", "log10", "log1p", "log2", "log_sigmoid", "mish", "neg", "reciprocal", "relu", "relu6", "round", "rsqrt", "selu", "sigmoid", "sign", "silu",
    "sin", "sinh", "softplus", "sqrt", "square", "tan", "tanh", "trunc",
):  # fmt: skip
    lowers(f"aten.{_name}.default")(method(_name))
@lowers("aten.abs.default")
def abs_(lo: Any, x: Any) -> Any:
    pattern = lo.pattern(x)
    return lo.marked(lo.value(x).abs(), affine.Distance(pattern) if isinstance(pattern, affine.Affine) else None)


lowers("aten.fix.default")(method("trunc"))
lowers("aten.rrelu.default")(lambda lo, x, low=1 / 8, high=1 / 3, training=False, generator=None: dropout(lo, lo.value(x).leaky_relu((low + high) / 2), 1.0, training))
lowers("aten.sgn.default")(method("sign"))
for _name in ("arccos", "arccosh", "arcsin", "arcsinh", "arctan", "arctanh"):
    lowers(f"aten.{_name}.default")(method(_name.replace("arc", "a")))


@lowers("aten.clamp.default", "aten.clip.default", "aten.clamp_min.default", "aten.clamp.Tensor", "aten.clamp_min.Tensor")
def clamp(lo: Any, x: Any, min: Any = None, max: Any = None) -> Any:
    x = lo.value(x)
    for bound, take in ((min, Value.maximum), (max, Value.minimum)):
        x = x if bound is None else take(*held(*operands(lo, x, bound)))
    return x


@lowers("aten.clamp_max.default", "aten.clamp_max.Tensor")
def clamp_max(lo: Any, x: Any, max: Any) -> Any:
    return clamp(lo, x, None, max)


# ---- comparisons and truth


def _comparison(kind: str) -> Callable[..., Any]:
    def lower(lo: Any, a: Any, b: Any) -> Any:
        first, second = lo.pattern(a), lo.pattern(b)
        x, y = held(*_pair(lo, a, b))
        result = getattr(x, kind)(y)
        if first is None or second is None or isinstance(first, affine.Truth) or isinstance(second, affine.Truth):
            return result
        if kind == "ne" and isinstance(first, affine.Affine) and isinstance(second, affine.Affine):
            return _known_truth(lo, result, affine.differs(first, second))
        return lo.marked(result, affine.compare(kind, first, second))

    return lower


def _known_truth(lo: Any, result: Value, truth: Optional[bool]) -> Any:
    """A comparison whose outcome is the same everywhere."""
    if truth is None:
        return result
    made = lo.function.full([], truth, "bool").expand(list(result.shape))
    # False is the number 0 in what adds it up.
    return lo.marked(made, affine.Truth(result.rank) if truth else affine.constant(result.rank, 0))


for _kind in ("eq", "ne", "lt", "le", "gt", "ge"):
    lowers(f"aten.{_kind}.Tensor", f"aten.{_kind}.Scalar")(_comparison(_kind))


@lowers("aten.__and__.Tensor", "aten.__and__.Scalar", "aten.logical_and.default", "aten.bitwise_and.Tensor", "aten.bitwise_and.Scalar")
def and_(lo: Any, a: Any, b: Any) -> Any:
    made, first, second = _bits(lo, a, b, "and"), lo.truth(a), lo.truth(b)
    return lo.marked(made, affine.both(first, second) if first is not None and second is not None else None)


@lowers("aten.__or__.Tensor", "aten.logical_or.default", "aten.bitwise_or.Tensor", "aten.bitwise_or.Scalar", "aten.__or__.Scalar")
def or_(lo: Any, a: Any, b: Any) -> Any:
    return _bits(lo, a, b, "or")


@lowers("aten.bitwise_xor.Tensor", "aten.bitwise_xor.Scalar", "aten.__xor__.Tensor", "aten.__xor__.Scalar")
def xor(lo: Any, a: Any, b: Any) -> Any:
    return _bits(lo, a, b, "xor")


def _bits(lo: Any, a: Any, b: Any, name: str) -> Value:
    """Of bools, and where the operation is a logical one, truth; of integers their bits."""
    x, y = _pair(lo, a, b)
    is_bool = x.dtype == "bool" and (y.dtype == "bool" if isinstance(y, Value) else isinstance(y, bool))
    if "logical" in str(lo.node.target) or is_bool:
        return getattr(x, f"logical_{name}")(lo.value(y))
    return getattr(x, f"bitwise_{name}")(y)


lowers("aten.bitwise_left_shift.Tensor", "aten.bitwise_left_shift.Tensor_Scalar", "aten.__lshift__.Scalar", "aten.__lshift__.Tensor")(
    _binary(lambda a, b: a.bitwise_left_shift(b)))  # fmt: skip
lowers("aten.bitwise_right_shift.Tensor", "aten.bitwise_right_shift.Tensor_Scalar", "aten.__rshift__.Scalar", "aten.__rshift__.Tensor")(
    _binary(lambda a, b: a.bitwise_right_shift(b)))  # fmt: skip


@lowers("aten.bitwise_not.default", "aten.logical_not.default", "aten.__invert__.default")
def not_(lo: Any, x: Any) -> Any:
    x = lo.value(x)
    return x.logical_not() if "logical" in str(lo.node.target) else x.bitwise_not()


@lowers("aten.where.self", "aten.where.ScalarOther", "aten.where.ScalarSelf", "aten.where.Scalar")
def where(lo: Any, condition: Any, a: Any, b: Any) -> Any:
    first, second = lo.operand(a), lo.operand(b)
    if not isinstance(first, Value) and not isinstance(second, Value):  # a tensor has its type
        first, second = (first, lo.value(b)) if isinstance(a, (int, float)) else (lo.value(a), second)
    else:
        first, second = held(*operands(lo, a, b))
    return lo.value(condition).where(*beside(first, second))


@lowers("aten.masked_fill.Scalar", "aten.masked_fill.Tensor")
def masked_fill(lo: Any, x: Any, mask: Any, value: Any) -> Any:
    x = lo.value(x)
    number = filling(lo.operand(value), x.dtype)
    filled = number if not isinstance(number, Value) else number.to_copy(x.dtype)
    result = lo.value(mask).where(filled, x)
    return result if result.dtype == x.dtype else result.to_copy(x.dtype)


# ---- casts and new tensors


def cast(lo: Any, x: Any, dtype: str) -> Any:
    x, pattern = lo.value(x), lo.pattern(x)
    if x.dtype == dtype:
        return x
    return lo.marked(x.to_copy(dtype), pattern if isinstance(pattern, affine.Affine) and dtype in ("i32", "i64") else None)


@lowers("aten.to.dtype")
def to_dtype(lo: Any, x: Any, dtype: Any, *rest: Any, **named: Any) -> Any:
    return cast(lo, x, dtype_of(dtype))


@lowers("aten.to.dtype_layout", "aten._to_copy.default")
def to_layout(lo: Any, x: Any, dtype: Any = None, **named: Any) -> Any:
    return x if dtype is None else cast(lo, x, dtype_of(dtype))


@lowers("aten.type_as.default", "aten.to.other")
def type_as(lo: Any, x: Any, other: Any, *rest: Any, **named: Any) -> Any:
    return cast(lo, x, lo.dtype(other))


def full_of(lo: Any, size: Sequence[Any], value: Any, dtype: str) -> Any:
    value = filling(lo.operand(value), dtype)
    if isinstance(value, Value):
        made = value.to_copy(dtype) if value.dtype != dtype else value
        return made.expand(list(size)) if size else made
    made = lo.function.full(list(size), value, dtype)
    if dtype == "bool":
        return lo.marked(made, affine.Truth(len(size)) if value else None)
    return lo.marked(made, affine.constant(len(size), value) if dtype in ("i32", "i64") and not isinstance(value, float) else None)


def _default_dtype(value: Any) -> str:
    import torch

    return "bool" if isinstance(value, bool) else "i64" if isinstance(value, (int, Expr)) else dtype_of(torch.get_default_dtype())


@lowers("aten.full.default")
def full(lo: Any, size: Sequence[Any], value: Any, dtype: Any = None, **named: Any) -> Any:
    return full_of(lo, size, value, dtype_of(dtype) if dtype is not None else _default_dtype(value))


@lowers("aten.zeros.default", "aten.empty.memory_format")
def zeros(lo: Any, size: Sequence[Any], dtype: Any = None, **named: Any) -> Any:
    return full_of(lo, size, 0, dtype_of(dtype) if dtype is not None else _default_dtype(0.0))


@lowers("aten.ones.default")
def ones(lo: Any, size: Sequence[Any], dtype: Any = None, **named: Any) -> Any:
    return full_of(lo, size, 1, dtype_of(dtype) if dtype is not None else _default_dtype(0.0))


def _like(*known: Any) -> Callable[..., Any]:
    """A tensor of the shape of another, full of a value that is known or the next argument."""

    def lower(lo: Any, x: Any, *value: Any, dtype: Any = None, **named: Any) -> Any:
        return full_of(lo, lo.shape(x), *(known or value), dtype_of(dtype) if dtype is not None else lo.dtype(x))

    return lower


def _new(*known: Any) -> Callable[..., Any]:
    """The same of a shape that is an argument."""

    def lower(lo: Any, x: Any, size: Sequence[Any], *value: Any, dtype: Any = None, **named: Any) -> Any:
        return full_of(lo, size, *(known or value), dtype_of(dtype) if dtype is not None else lo.dtype(x))

    return lower


lowers("aten.zeros_like.default", "aten.empty_like.default")(_like(0))
lowers("aten.ones_like.default")(_like(1))
lowers("aten.full_like.default")(_like())
lowers("aten.new_zeros.default", "aten.new_empty.default")(_new(0))
lowers("aten.new_ones.default")(_new(1))
lowers("aten.new_full.default")(_new())


@lowers("aten.scalar_tensor.default")
def scalar_tensor(lo: Any, value: Any, dtype: Any = None, **named: Any) -> Any:
    return full_of(lo, [], value, dtype_of(dtype) if dtype is not None else _default_dtype(0.0))


@lowers("aten.fill.Scalar", "aten.fill.Tensor")
def fill(lo: Any, x: Any, value: Any) -> Any:
    return full_of(lo, lo.shape(x), value, lo.dtype(x))


@lowers("aten.zero.default")
def zero(lo: Any, x: Any) -> Any:
    return full_of(lo, lo.shape(x), 0, lo.dtype(x))


@lowers("aten.copy.default")
def copy(lo: Any, x: Any, source: Any, non_blocking: bool = False) -> Any:
    made = cast(lo, source, lo.dtype(x))
    return made if ex.same_shape(lo.shape(made), lo.shape(x)) else made.expand(list(lo.shape(x)))


@lowers("aten.arange.default", "aten.arange.start", "aten.arange.start_step")
def arange(lo: Any, *bounds: Any, dtype: Any = None, **named: Any) -> Any:
    numbers = [b for b in bounds if not isinstance(b, Expr)]
    wanted = dtype_of(dtype) if dtype is not None else "i64" if not any(isinstance(n, float) for n in numbers) else _default_dtype(0.0)
    if any(isinstance(n, float) and n != int(n) for n in numbers):
        raise Unsupported(f"arange{bounds}")
    start, end, step = (0, bounds[0], 1) if len(bounds) == 1 else (*bounds, 1)[:3]
    whole = [int(b) if isinstance(b, float) else b for b in (start, end, step)]
    made = lo.function.arange(*whole)
    made = lo.marked(made, affine.iota(whole[0], whole[2]) if isinstance(whole[2], int) else None)
    return made if wanted == "i64" else cast(lo, made, wanted)


# ---- reductions


def _dims(lo: Any, x: Value, dim: Any) -> Any:
    if dim is None or (isinstance(dim, (list, tuple)) and not dim):
        return None
    return [lo.axis(x, d) for d in ([dim] if isinstance(dim, int) else dim)]


def _reduction(name: str) -> Callable[..., Any]:
    def lower(lo: Any, x: Any, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Any:
        x = lo.value(x)
        x = x if dtype is None else cast(lo, x, dtype_of(dtype))
        if x.dtype == "bool" and name in ("amax", "amin"):
            return getattr(x.to_copy("i32"), name)(_dims(lo, x, dim), keepdim).ne(0)
        made = getattr(x, name)(_dims(lo, x, dim), keepdim)
        return made if dtype is None else cast(lo, made, dtype_of(dtype))

    return lower


lowers("aten.sum.default", "aten.sum.dim_IntList")(_reduction("sum"))
lowers("aten.mean.default", "aten.mean.dim")(_reduction("mean"))
lowers("aten.amax.default", "aten.max.default")(_reduction("amax"))
lowers("aten.amin.default", "aten.min.default")(_reduction("amin"))
lowers("aten.aminmax.default")(lambda lo, x, *, dim=None, keepdim=False: [_reduction(name)(lo, x, dim, keepdim) for name in ("amin", "amax")])


@lowers("aten.max.dim", "aten.min.dim")
def extreme(lo: Any, x: Any, dim: int, keepdim: bool = False) -> Any:
    x, at = lo.value(x), lo.axis(x, dim)
    if "max" in str(lo.node.target):
        return [x.amax(at, keepdim), x.argmax(at, keepdim)]
    return [x.amin(at, keepdim), _turned(x).argmax(at, keepdim)]


@lowers("aten.argmax.default")
def argmax(lo: Any, x: Any, dim: Any = None, keepdim: bool = False) -> Any:
    return lo.value(x).argmax(dim, keepdim)


@lowers("aten.argmin.default")
def argmin(lo: Any, x: Any, dim: Any = None, keepdim: bool = False) -> Any:
    return _turned(lo.value(x)).argmax(dim, keepdim)


def _turned(x: Value) -> Value:
    """What is largest where x is least: integers without overflow."""
    return -x if x.dtype in FLOATS else (x.to_copy("u8") if x.dtype == "bool" else x).bitwise_not()


@lowers("aten.topk.default")
def topk(lo: Any, x: Any, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    x = lo.value(x)
    if x.dtype not in ("f32", "f16", "bf16"):
        return [part.slice(lo.axis(x, dim), 0, k) if x.rank else part for part in x.sort(dim, largest)]
    if not largest:
        values, places = (-x).topk(k, dim)
        return [-values, places]
    return x.topk(k, dim)


@lowers("aten.sort.default", "aten.sort.stable")
def sort(lo: Any, x: Any, *rest: Any, dim: int = -1, descending: bool = False, stable: Any = None) -> Any:
    # there, `stable` is the first one
    given = list(rest[1:] if "sort.stable" in str(lo.node.target) and stable is None else rest)
    return lo.value(x).sort(given[0] if given else dim, bool(given[1] if len(given) > 1 else descending))


@lowers("aten.argsort.default", "aten.argsort.stable")
def argsort(lo: Any, x: Any, dim: int = -1, descending: bool = False, stable: bool = False) -> Any:
    return lo.value(x).sort(dim, descending)[1]


@lowers("aten.bucketize.Tensor", "aten.searchsorted.Tensor")
def bucketize(lo: Any, x: Any, boundaries: Any, out_int32: bool = False, right: bool = False, **named: Any) -> Any:
    if "searchsorted" in str(lo.node.target):
        x, boundaries = boundaries, x
    x, boundaries = lo.value(x), lo.value(boundaries)
    wide = x.unsqueeze(x.rank)
    if boundaries.rank != 1:  # rows of their own
        boundaries = boundaries.unsqueeze(boundaries.rank - 1)
    found = (wide.ge(boundaries) if right else wide.gt(boundaries)).to_copy("i64").sum(-1)
    return cast(lo, found, "i32") if out_int32 else found


@lowers("aten.any.default", "aten.any.dim", "aten.any.dims")
def any_(lo: Any, x: Any, dim: Any = None, keepdim: bool = False) -> Any:
    x = lo.value(x)
    return cast(lo, x.ne(0).to_copy("i32").amax(_dims(lo, x, dim), keepdim).ne(0), "u8" if x.dtype == "u8" else "bool")


@lowers("aten.all.default", "aten.all.dim", "aten.all.dims")
def all_(lo: Any, x: Any, dim: Any = None, keepdim: bool = False) -> Any:
    x = lo.value(x)
    return cast(lo, x.ne(0).to_copy("i32").amin(_dims(lo, x, dim), keepdim).ne(0), "u8" if x.dtype == "u8" else "bool")


@lowers("aten.var.correction")
def var(lo: Any, x: Any, dim: Any = None, correction: Any = None, keepdim: bool = False) -> Any:
    return lo.value(x).var(dim, correction, keepdim)


@lowers("aten.std.correction")
def std(lo: Any, x: Any, dim: Any = None, correction: Any = None, keepdim: bool = False) -> Any:
    return var(lo, x, dim, correction, keepdim).sqrt()


lowers("aten.var.dim")(lambda lo, x, dim=None, unbiased=True, keepdim=False: var(lo, x, dim, int(unbiased), keepdim))
lowers("aten.std.dim")(lambda lo, x, dim=None, unbiased=True, keepdim=False: std(lo, x, dim, int(unbiased), keepdim))
lowers("aten.var.default")(lambda lo, x, unbiased=True: var(lo, x, None, int(unbiased)))
lowers("aten.std.default")(lambda lo, x, unbiased=True: std(lo, x, None, int(unbiased)))


@lowers("aten.linalg_vector_norm.default")
def vector_norm(lo: Any, x: Any, ord: float = 2, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Any:
    x = lo.value(to_layout(lo, x, dtype))
    if x.dtype in ("f16", "bf16"):
        return cast(lo, vector_norm(lo, cast(lo, x, "f32"), ord, dim, keepdim), x.dtype)
    dims = _dims(lo, x, dim)
    if ord == 2:
        return (x * x).sum(dims, keepdim).sqrt()
    if ord == 1:
        return x.abs().sum(dims, keepdim)
    if ord in (math.inf, -math.inf):
        return x.abs().amax(dims, keepdim) if ord > 0 else x.abs().amin(dims, keepdim)
    return x.ne(0).to_copy(x.dtype).sum(dims, keepdim) if ord == 0 else (x.abs() ** ord).sum(dims, keepdim) ** (1 / ord)


@lowers("aten.norm.ScalarOpt_dim")
def norm(lo: Any, x: Any, ord: Any, dim: Any, keepdim: bool = False) -> Any:
    return vector_norm(lo, x, 2 if ord is None else ord, dim, keepdim)


@lowers("aten.softmax.int", "aten._softmax.default", "aten.special_softmax.int")
def softmax(lo: Any, x: Any, dim: int, dtype: Any = None) -> Any:
    x = lo.value(x)
    x = cast(lo, x, dtype_of(dtype)) if dtype is not None and not isinstance(dtype, bool) else x
    at = lo.axis(x, dim)
    if at == x.rank - 1:
        return x.softmax(-1)
    return x.transpose(at, x.rank - 1).softmax(-1).transpose(at, x.rank - 1)


@lowers("aten.log_softmax.int", "aten._log_softmax.default")
def log_softmax(lo: Any, x: Any, dim: int, dtype: Any = None) -> Any:
    x = lo.value(x)
    x = cast(lo, x, dtype_of(dtype)) if dtype is not None and not isinstance(dtype, bool) else x
    return x.log_softmax(dim)


@lowers("aten.cumsum.default")
def cumsum(lo: Any, x: Any, dim: int, dtype: Any = None) -> Any:
    """Of what is 0 everywhere it is 0."""
    pattern = lo.pattern(x)
    x = lo.value(x)
    wanted = dtype_of(dtype) if dtype is not None else "i64" if x.dtype in INTEGERS else x.dtype
    if isinstance(pattern, affine.Affine) and pattern.is_constant and ex.same(pattern.offset, 0):
        return full_of(lo, x.shape, 0, wanted)
    return cast(lo, cast(lo, x, wanted).cumsum(dim), wanted)


@lowers("aten.diff.default")
def diff(lo: Any, x: Any, n: int = 1, dim: int = -1, prepend: Any = None, append: Any = None) -> Any:
    if n != 1:
        raise Unsupported(f"diff of order {n}")
    at = lo.axis(x, dim)
    pattern = lo.pattern(x)
    whole = cat(lo, [item for item in (prepend, x, append) if item is not None], at)
    size = lo.shape(whole)[at]
    result = sub(lo, slice_(lo, whole, at, 1, size), slice_(lo, whole, at, 0, ex.simplify(ex.constant(size) - 1)))
    return lo.marked(result, _difference(lo, pattern, lo.pattern(prepend) if prepend is not None else None, at, append is None))


def _difference(lo: Any, pattern: Any, before: Any, at: int, is_all: bool) -> Any:
    """An arange whose prepended element continues it downwards has one difference everywhere."""
    if not isinstance(pattern, affine.Affine) or not isinstance(before, affine.Affine) or not is_all:
        return None
    step = pattern.coefficients[at]
    first = affine.Affine(tuple(0 if d == at else c for d, c in enumerate(pattern.coefficients)), pattern.offset)
    prepended = affine.Affine(tuple(0 if d == at else c for d, c in enumerate(before.coefficients)), before.offset)
    if affine.differs(affine.add(first, affine.constant(0, step), -1), prepended) is not False:
        return None
    return affine.constant(len(pattern.coefficients), step)


@lowers("aten._assert_tensor_metadata.default", "aten._assert_async.msg", "aten._assert_scalar.default", "aten.sym_constrain_range_for_size.default",
        "aten.sym_constrain_range.default", "aten._assert_async.default", "aten._linalg_check_errors.default")
def asserts(lo: Any, *args: Any, **named: Any) -> Any:
    """What torch found true of the example; the compiler proves or checks sizes of its own."""
    return None


@lowers("aten.item.default", "aten._local_scalar_dense.default")
def item(lo: Any, x: Any) -> Any:
    number = number_of(x) if isinstance(x, Known) else None
    if number is None:
        raise Unsupported("a number that the call calculates cannot decide shapes or branches")
    return number
