"""What is known while lowering: weights by ONNX's own reference evaluator, and shapes, whose
elements may be expressions of symbols.

FOLDS has the operations that chains of shapes are made of. Their arrays have Python's integers and
expressions as elements, so numpy moves them as it moves numbers.
"""

from __future__ import annotations

import math
import operator
from typing import Any, Callable, Dict, List, Optional, Sequence

import numpy as np

from ..compiler import Expr
from ..compiler import expr as ex
from ..compiler.declared import INTEGERS
from ..from_torch.lowering import FOLDED_BYTES
from ._external import check
from .values import DTYPES, dtype_named, Known, known_sizes, listed, NUMPY, Unsupported

#: Never folded: what they give is not the same each time, or is no tensor.
NOT_FOLDED = (
    "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli", "Multinomial", "Dropout", "Loop", "Scan", "If",
)  # fmt: skip
#: Elements of inputs whose values are given to ONNX's inference of shapes: they may be sizes.
_FEW = 64
#: Most elements of an array of sizes: each is an object of Python's.
MOST_SIZES = 1 << 16
#: Bytes of memory that all folded results may have: so many, and so often the bytes of the weights.
#: A chain of nodes can double what it is given in each.
SPARE_BYTES, SPARE_TIMES = 64 << 20, 8


def check_room(lo: Any, count: float) -> None:
    """For numbers that are calculated for an operation, such as where a resized image's places are:
    they take memory as folded results do."""
    if 8 * count > lo.spare:
        raise Unsupported(f"{count:.0f} numbers would be calculated now: that takes too much memory")


def of_proto(tensor: Any, name: str = "") -> Known:
    """The content of a TensorProto."""
    import onnx
    from onnx import numpy_helper

    if tensor.data_type not in onnx.TensorProto.DataType.values():
        raise Unsupported(f"a tensor of the type {tensor.data_type}, which ONNX does not have")
    dtype_named(tensor.data_type)
    check(tensor)
    if tensor.data_location == onnx.TensorProto.EXTERNAL:  # which to_array would open
        raise Unsupported("a tensor in another file: give from_onnx the path of the model, not what onnx.load made of it without its external data")
    try:
        return Known(numpy_helper.to_array(tensor), name)
    except (TypeError, ValueError) as error:
        raise ValueError(f"weight {tensor.name!r}: {error}") from None


def constant(named: Dict[str, Any]) -> Known:
    """Of a Constant node: one of its attributes has the content."""
    if "value" in named:
        return of_proto(named["value"])
    for key, dtype in (("value_int", "int64"), ("value_ints", "int64"), ("value_float", "float32"), ("value_floats", "float32")):
        if key in named:
            return Known(np.array(named[key], dtype))
    raise Unsupported(f"a constant of {', '.join(named)}")


def folded(lo: Any, node: Any, name: str, inputs: Sequence[Any], named: Dict[str, Any]) -> Optional[List[Any]]:
    """The results of a node whose inputs are known; None where they are not, or where folding makes
    too much of them."""
    if name in ("Shape", "Size") and len(inputs) == 1 and hasattr(inputs[0], "shape"):
        return [_shape(lo.shape(inputs[0]), named) if name == "Shape" else known_sizes(np.array(ex.product(lo.shape(inputs[0])), dtype=object))]
    if not inputs or not all(i is None or isinstance(i, Known) for i in inputs) or name in NOT_FOLDED or name not in _onnx_names(node):
        return None
    if any(i is not None and i.is_symbolic for i in inputs):
        return _of_sizes(lo, name, inputs, named)
    return _evaluated(lo, node, name, inputs, named)


def _onnx_names(node: Any) -> Sequence[str]:
    return (node.op_type,) if node.domain in ("", "ai.onnx") else ()


def _shape(shape: Sequence[Any], named: Dict[str, Any]) -> Known:
    return known_sizes(np.array(list(shape)[named.get("start", 0) : named.get("end", len(shape))], dtype=object))


def _evaluated(lo: Any, node: Any, name: str, inputs: Sequence[Any], named: Dict[str, Any]) -> Optional[List[Any]]:
    """What onnx's reference evaluator gives."""
    from onnx.reference import ReferenceEvaluator

    given_bytes = sum({id(i.array): i.array.nbytes for i in inputs if i is not None}.values())
    most = min(max(FOLDED_BYTES, 2 * given_bytes), lo.spare)
    size = _inferred(lo, node, inputs)
    if (size > most if size is not None else name not in _NO_LARGER or given_bytes > most):
        return None
    given = {n: i.array for n, i in zip(node.input, inputs) if i is not None}
    try:
        made = ReferenceEvaluator(lo._with_attributes(node), opsets=dict(lo.opsets)).run(None, given)
    except Exception:  # of many kinds: then the operation is lowered, or named as missing
        return None
    if any(not isinstance(m, (np.ndarray, np.generic)) or np.asarray(m).nbytes > most or str(np.asarray(m).dtype) not in NUMPY.values() for m in made):
        return None
    lo.spare -= sum(np.asarray(m).nbytes for m in made)
    return [Known(np.asarray(m)) for m in made]


#: What follows from the values of an input, and is no larger than it.
_NO_LARGER = ("NonZero", "Compress", "Unique")


def _inferred(lo: Any, node: Any, inputs: Sequence[Any]) -> Optional[int]:
    """Bytes of a node's results, as ONNX infers their types and shapes before anything is
    calculated; None: it cannot."""
    from onnx import defs, helper, numpy_helper, shape_inference

    types, data = {}, {}
    try:
        for name, item in zip(node.input, inputs):
            if item is None:
                continue
            dtype = np.dtype(np.int64) if item.is_symbolic else item.array.dtype
            types[name] = helper.make_tensor_type_proto(helper.np_dtype_to_tensor_dtype(dtype), item.array.shape)
            if not item.is_symbolic and item.array.size <= _FEW:
                data[name] = numpy_helper.from_array(np.ascontiguousarray(item.array).reshape(item.array.shape), name)
        schema = defs.get_schema(node.op_type, lo._version(node), "")
        made = shape_inference.infer_node_outputs(schema, lo._with_attributes(node), types, data)
        found = [made[name].tensor_type for name in node.output if name and made[name].tensor_type.HasField("shape")]
        shapes = [one.shape.dim for one in found]
        item_bytes = [helper.tensor_dtype_to_np_dtype(one.elem_type).itemsize for one in found]
    except Exception:  # of many kinds: what it does not know
        return None
    if len(shapes) != sum(map(bool, node.output)) or not all(dim.HasField("dim_value") for shape in shapes for dim in shape):
        return None
    return sum(size * math.prod(dim.dim_value for dim in shape) for size, shape in zip(item_bytes, shapes))


# ---- arrays of sizes

FOLDS: Dict[str, Callable[..., Any]] = {}


def _folds(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        FOLDS.update({name: function for name in names})
        return function

    return register


class _Open(Exception):
    """It cannot be decided now: the operation is lowered as any other."""


def _of_sizes(lo: Any, name: str, inputs: Sequence[Any], named: Dict[str, Any]) -> Optional[List[Any]]:
    if name not in FOLDS:
        return None
    try:
        if max(_inferred(lo, lo.node, inputs) or 0, *(8 * i.array.size for i in inputs if i is not None)) > 8 * MOST_SIZES:
            return None
        arrays = [None if i is None else _objects(i) for i in inputs]
        made = FOLDS[name](lo, *arrays, **named)
    except (_Open, TypeError, ValueError, IndexError, ArithmeticError):
        return None
    of = next(i.dtype for i in inputs if i is not None and i.is_symbolic)
    of = "bool" if name in _TRUTHS else dtype_named(named["to"]) if name == "Cast" else of
    made = made if isinstance(made, list) else [made]
    return [known_sizes(m, of) for m in made] if of in NUMPY else None


def _objects(item: Known) -> Any:
    """Python's numbers and expressions."""
    if item.is_symbolic:
        return item.array
    if item.dtype not in (*INTEGERS, "bool"):
        raise _Open
    made = np.empty(item.array.shape, dtype=object)
    made[...] = item.array.tolist() if item.array.shape else item.array.item()
    return made


def _each(function: Callable[..., Any]) -> Callable[..., Any]:
    """Element by element, broadcast."""

    def fold(lo: Any, *arrays: Any, **named: Any) -> Any:
        shape = np.broadcast_shapes(*(a.shape for a in arrays))
        flat = [np.broadcast_to(a, shape).reshape(-1) for a in arrays]
        made = np.empty(int(np.prod(shape)), dtype=object)
        for at in range(made.size):
            given = [f[at] for f in flat]
            made[at] = function(lo, *given)
        return made.reshape(shape)

    return fold


def _symbolic(*items: Any) -> bool:
    return any(isinstance(i, Expr) for i in items)


def _is_natural(lo: Any, size: Any) -> bool:
    least, _most = ex.bounds(ex.constant(size), lo.module.ranges())
    return least is not None and least >= 0


def _arithmetic(function: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    return lambda lo, a, b: ex.simplify(function(ex.constant(a), b)) if _symbolic(a, b) else function(a, b)


def _div(lo: Any, a: Any, b: Any) -> Any:
    """Towards zero."""
    if not _symbolic(a, b):
        return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
    if not _is_natural(lo, a) or not _is_natural(lo, b):
        raise _Open
    return ex.simplify(ex.constant(a) // b)


def _mod(lo: Any, a: Any, b: Any) -> Any:
    if not _symbolic(a, b):
        return a % b
    if not _is_natural(lo, a) or not _is_natural(lo, b):
        raise _Open
    return ex.simplify(ex.constant(a) % b)


def _compared(kind: str) -> Callable[..., Any]:
    def compare(lo: Any, a: Any, b: Any) -> bool:
        if not _symbolic(a, b):
            return bool(getattr(operator, kind)(a, b))
        apart = ex.simplify(ex.constant(a) - b)
        least, most = ex.bounds(ex.constant(apart), lo.module.ranges())
        never = (least is not None and least > 0) or (most is not None and most < 0)
        if kind == "eq" and (never or ex.same(apart, 0)):
            return not never
        if kind in ("lt", "ge") and most is not None and most < 0 or kind in ("gt", "le") and least is not None and least > 0:
            return kind in ("lt", "gt")
        if kind in ("lt", "ge") and least is not None and least >= 0 or kind in ("gt", "le") and most is not None and most <= 0:
            return kind in ("ge", "le")
        raise _Open

    return compare


def _larger(lo: Any, a: Any, b: Any) -> Any:
    return ex.simplify(ex.maximum(a, b)) if _symbolic(a, b) else max(a, b)


def _smaller(lo: Any, a: Any, b: Any) -> Any:
    return ex.simplify(ex.minimum(a, b)) if _symbolic(a, b) else min(a, b)


_TRUTHS = ("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Not", "And", "Or", "Xor")
for _name, _function in (
    ("Add", _arithmetic(operator.add)), ("Sub", _arithmetic(operator.sub)), ("Mul", _arithmetic(operator.mul)), ("Div", _div), ("Mod", _mod),
    ("Neg", lambda lo, a: ex.simplify(ex.constant(0) - a) if _symbolic(a) else -a), ("Equal", _compared("eq")), ("Less", _compared("lt")),
    ("LessOrEqual", _compared("le")), ("Greater", _compared("gt")), ("GreaterOrEqual", _compared("ge")), ("Not", lambda lo, a: not a),
    ("And", lambda lo, a, b: a and b), ("Or", lambda lo, a, b: a or b), ("Where", lambda lo, c, a, b: a if c else b),
    ("Abs", lambda lo, a: a if _symbolic(a) and _is_natural(lo, a) else abs(a)), ("Identity", lambda lo, a: a),
):  # fmt: skip
    FOLDS[_name] = _each(_function)


def _several(function: Callable[..., Any]) -> Callable[..., Any]:
    def fold(lo: Any, *arrays: Any) -> Any:
        made = arrays[0]
        for array in arrays[1:]:
            made = _each(function)(lo, made, array)
        return made

    return fold


FOLDS["Max"], FOLDS["Min"], FOLDS["Sum"] = _several(_larger), _several(_smaller), _several(_arithmetic(operator.add))


@_folds("Cast")
def _cast(lo: Any, x: Any, to: int, **named: Any) -> Any:
    if dtype_named(to) not in ("i64", "i32"):
        raise _Open
    return x


@_folds("Gather")
def _gather(lo: Any, x: Any, places: Any, axis: int = 0) -> Any:
    return np.take(x, places.astype(np.int64), axis)


@_folds("Concat")
def _concat(lo: Any, *arrays: Any, axis: int) -> Any:
    return np.concatenate(arrays, axis)


@_folds("Slice")
def _slice(lo: Any, x: Any, starts: Any, ends: Any, axes: Any = None, steps: Any = None) -> Any:
    count = len(starts)
    axes = range(count) if axes is None else [int(a) for a in axes]
    where = [slice(None)] * x.ndim
    for start, end, axis, step in zip(starts, ends, axes, [1] * count if steps is None else steps):
        if _symbolic(start, end, step):
            raise _Open
        end = None if step < 0 and end < -x.shape[axis] else int(end)
        where[axis] = slice(int(start), end, int(step))
    return x[tuple(where)]


@_folds("Unsqueeze")
def _unsqueeze(lo: Any, x: Any, axes: Any) -> Any:
    return np.expand_dims(x, tuple(int(a) for a in axes.reshape(-1)))


@_folds("Squeeze")
def _squeeze(lo: Any, x: Any, axes: Any = None) -> Any:
    return np.squeeze(x, None if axes is None else tuple(int(a) for a in axes.reshape(-1)))


@_folds("Reshape")
def _reshape(lo: Any, x: Any, shape: Any, allowzero: int = 0) -> Any:
    return x.reshape([x.shape[i] if s == 0 and not allowzero else int(s) for i, s in enumerate(shape.tolist())])


@_folds("Flatten")
def _flatten(lo: Any, x: Any, axis: int = 1) -> Any:
    return x.reshape(int(np.prod(x.shape[:axis])), -1)


@_folds("Transpose")
def _transpose(lo: Any, x: Any, perm: Any = None) -> Any:
    return np.transpose(x, perm)


@_folds("Expand")
def _expand(lo: Any, x: Any, shape: Any) -> Any:
    if _symbolic(*shape.tolist()):
        raise _Open
    return np.broadcast_to(x, np.broadcast_shapes(x.shape, tuple(int(s) for s in shape)))


@_folds("Tile")
def _tile(lo: Any, x: Any, repeats: Any) -> Any:
    return np.tile(x, [int(r) for r in repeats])


@_folds("Split")
def _split(lo: Any, x: Any, sizes: Any = None, axis: int = 0, num_outputs: int = 0) -> Any:
    if sizes is None:
        each = -(-x.shape[axis] // (num_outputs or len(lo.node.output)))
        cuts = list(range(each, x.shape[axis], each))
    else:
        cuts = np.cumsum([int(s) for s in sizes])[:-1].tolist()
    return np.split(x, cuts, axis)


def _reduced(function: Callable[..., Any]) -> Callable[..., Any]:
    def fold(lo: Any, x: Any, axes: Any = None, keepdims: int = 1, noop_with_empty_axes: int = 0) -> Any:
        dims = set(range(x.ndim)) if axes is None else {int(a) % x.ndim for a in np.asarray(axes).reshape(-1)}
        if dims != set(range(x.ndim)):
            raise _Open
        made = x.reshape(-1)[0]
        for item in x.reshape(-1)[1:]:
            made = function(lo, made, item)
        whole = np.empty([1] * x.ndim if keepdims else [], dtype=object)
        whole[...] = made
        return whole

    return fold


FOLDS["ReduceProd"], FOLDS["ReduceSum"] = _reduced(_arithmetic(operator.mul)), _reduced(_arithmetic(operator.add))
FOLDS["ReduceMax"], FOLDS["ReduceMin"] = _reduced(_larger), _reduced(_smaller)

__all__ = ["DTYPES", "FOLDS", "constant", "folded", "listed", "of_proto"]
