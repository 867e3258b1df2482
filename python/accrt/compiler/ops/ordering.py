"""Running sums, sorting, elements written at places, products of groups of rows. Where no kernel
does them they are made of comparisons and sums, at the cost of the product of two sizes."""

from __future__ import annotations

from typing import Any, List

from .. import expr as ex
from ..expr import same, Size
from ..declared import FLOATS, TensorType
from ..ir import IRError, Op, Value
from .indexing import check_index
from .products import check_product_types
from .shapes import cat
from .schema import axis_of, define, need_same, numpy, resized, Types


def _to_last(x: Value, axis: int) -> Value:
    return x if axis == x.rank - 1 else x.transpose(axis, x.rank - 1)


# ---- Running sums --------------------------------------------------------------------------------


def _cumsum(x: Any, dim: int) -> Any:
    np = numpy()
    return np.cumsum(x, dim if x.ndim else None, dtype=x.dtype if x.dtype.kind == "f" else np.int64).reshape(x.shape)


def _decompose_cumsum(op: Op) -> Value:
    """The sum over k of x[k] where k <= i: the comparison is made where it is used, in the kernel
    of the sum."""
    x, function = op.operands[0], op.block.function
    if x.rank == 0:
        return x if x.dtype == op.result.dtype else x.to_copy(op.result.dtype)
    axis = axis_of(op.attrs["dim"], x.rank)
    places = function.arange(x.shape[axis])
    seen = (places.unsqueeze(0) <= places.unsqueeze(1)).to_copy(op.result.dtype)
    wide = x if x.dtype == op.result.dtype else x.to_copy(op.result.dtype)
    return _to_last((_to_last(wide, axis).unsqueeze(x.rank - 1) * seen).sum(-1), axis)


@define("aten.cumsum(Tensor self, int dim)", reference=_cumsum, decompose=_decompose_cumsum)
def _infer_cumsum(op: Op) -> Types:
    """Each place is the sum of the elements up to its own. Of integers and bools i64; floats are
    added in f64 on hosts."""
    x = op.operands[0]
    axis_of(op.attrs["dim"], x.rank)
    return resized(op, x.shape, x.dtype if x.dtype in FLOATS else "i64")


# ---- Sorting -------------------------------------------------------------------------------------


def _sort(x: Any, dim: int = -1, descending: bool = False) -> Any:
    np = numpy()
    if not x.ndim:
        return x.copy(), np.int64(0)
    count = x.shape[dim]
    if descending:  # the first of equal ones stays first: the last of the turned ones
        places = count - 1 - np.flip(np.argsort(np.flip(x, dim), dim, kind="stable"), dim)
    else:
        places = np.argsort(x, dim, kind="stable")
    return np.take_along_axis(x, places, dim), places


def _decompose_sort(op: Op) -> List[Value]:
    """Few floats as the largest of all. Else the place of each element is the number of those
    before it: less, or equal and earlier."""
    x, down, function = op.operands[0], op.attrs["descending"], op.block.function
    if x.rank == 0:
        return [x.clone(), function.full([], 0, "i64")]
    axis = axis_of(op.attrs["dim"], x.rank)
    size = x.shape[axis]
    if x.dtype in ("f32", "f16", "bf16"):
        if not isinstance(size, int) or size > 512:
            raise IRError(f"sort of {size} floats: only hosts have a kernel for that")
        values, places = (x if down else -x).topk(size, axis)
        return [values if down else -values, places]
    last = x.rank - 1
    moved = _to_last(x if x.dtype in ("f64", "u64") else x.to_copy("i64"), axis)
    own, other, places = moved.unsqueeze(last + 1), moved.unsqueeze(last), function.arange(size)
    earlier = places.unsqueeze(0) < places.unsqueeze(1)
    before = (other.gt(own) if down else other.lt(own)).logical_or(other.eq(own).logical_and(earlier))
    rank = before.to_copy("i64").sum(-1)
    found = (rank.unsqueeze(last).eq(places.unsqueeze(1)).to_copy("i64") * places).sum(-1)
    values = moved.gather(last, found)
    return [_to_last(values if values.dtype == x.dtype else values.to_copy(x.dtype), axis), _to_last(found, axis)]


@define("aten.sort(Tensor self, int dim=-1, bool descending=False)", reference=_sort, decompose=_decompose_sort)
def _infer_sort(op: Op) -> Types:
    """All elements of a dimension in order, and their places (i64). Equal ones keep their order,
    NaN is the largest."""
    x = op.operands[0]
    axis_of(op.attrs["dim"], x.rank)
    return [*resized(op, x.shape), *resized(op, x.shape, "i64")]


# ---- Elements at places --------------------------------------------------------------------------


def placed(x: Value, at: int, index: Value, values: Value, add: bool) -> Value:
    """Each place of a dimension takes the last of the elements that go there, or the sum of all. An
    index that is smaller beside the dimension goes into that part of x."""
    part = x
    for d, size in enumerate(index.shape):
        values = values if same(values.shape[d], size) else values.slice(d, 0, size)
        part = part if d == at or same(part.shape[d], size) else part.slice(d, 0, size)
    made = part.scatter(index, values, at, add)
    return made if part is x else put_corner(x, made)


def put_corner(x: Value, made: Value) -> Value:
    """x with its first elements in each dimension replaced."""
    for d in reversed(range(x.rank)):
        size = made.shape[d]
        if not same(size, x.shape[d]):
            rest = x.slice(d, size, x.shape[d])
            for other in range(d):
                rest = rest if same(made.shape[other], x.shape[other]) else rest.slice(other, 0, made.shape[other])
            made = cat([made, rest], d)
    return made


def masked(x: Value, mask: Value, source: Value) -> Value:
    """aten.masked_scatter: the n-th place of the mask takes the n-th element."""
    mask, source = mask.expand(list(x.shape)), source.flatten()
    number = mask.to_copy("i64").flatten().cumsum(0) - 1
    last = ex.simplify(ex.constant(source.shape[0]) - 1)
    return mask.where(source.index_select(0, number.maximum(0).minimum(last)).view(list(x.shape)), x)


def _scatter(x: Any, index: Any, source: Any, dim: int, add: bool = False) -> Any:
    np = numpy()
    y, places = x.copy(), index.astype(np.int64)
    if index.ndim < x.ndim:
        places = np.broadcast_to(places.reshape([-1 if d == dim % x.ndim else 1 for d in range(x.ndim)]), source.shape)
    if places.size and (places.min() < 0 or places.max() >= x.shape[dim]):
        raise IndexError(f"a place outside dimension {dim} of {x.shape}")
    at = [np.arange(size).reshape([-1 if d == axis else 1 for d in range(x.ndim)]) for axis, size in enumerate(places.shape)]
    at[dim] = places
    if add:
        np.add.at(y, tuple(at), source)
        return y
    for j in range(places.shape[dim]):  # in order: the last one stays
        part = [np.take(np.broadcast_to(a, places.shape), j, dim) for a in at]
        y[tuple(part)] = np.take(source, j, dim)
    return y


def _decompose_scatter(op: Op) -> Value:
    """For each place the last element that goes there, or the sum of all."""
    x, index, source = op.operands
    axis, last, function = axis_of(op.attrs["dim"], x.rank), x.rank - 1, op.block.function
    if index.rank < x.rank:
        return _decompose_scattered_rows(x, index, source, axis, op.attrs["add"])
    moved, places, values = (_to_last(v, axis) for v in (x, index, source))
    # [..., size, count]
    goes = places.unsqueeze(last).eq(function.arange(moved.shape[last]).unsqueeze(1))
    if op.attrs["add"]:
        added = goes.where(values.unsqueeze(last), function.full([], 0, x.dtype)).sum(-1)
        return _to_last(moved + (added if added.dtype == x.dtype else added.to_copy(x.dtype)), axis)
    # 0: nothing goes there
    number = (goes.to_copy("i64") * (function.arange(places.shape[last]) + 1)).amax([-1])
    taken = values.gather(last, (number - 1).maximum(0))
    return _to_last(number.gt(0).where(taken, moved), axis)


def _decompose_scattered_rows(x: Value, index: Value, source: Value, axis: int, add: bool) -> Value:
    function, size = x.function, x.shape[axis]
    goes = function.arange(size).unsqueeze(1).eq(index.unsqueeze(0))  # [size, count]
    if add:
        rows = source.transpose(axis, 0).flatten(1)
        shape = list(x.shape)
        shape[0], shape[axis] = shape[axis], shape[0]
        return x + goes.to_copy(x.dtype).matmul(rows).view(shape).transpose(axis, 0)
    # 0: nothing goes there
    number = (goes.to_copy("i64") * (function.arange(index.shape[0]) + 1)).amax([1])
    taken = source.index_select(axis, (number - 1).maximum(0))
    return number.gt(0).view([size if d == axis else 1 for d in range(x.rank)]).where(taken, x)


@define("accrt.scatter(Tensor self, Tensor index, Tensor source, int dim, bool add=False)", reference=_scatter, decompose=_decompose_scatter)
def _infer_scatter(op: Op) -> Types:
    """self with source[..., j, ...] written, or added, at place index[..., j, ...] of a dimension;
    an index of one dimension is the same everywhere beside it. Of several elements for one place
    the last stays; they are added in order. A place outside the dimension fails the call on hosts,
    and on CUDA writes nothing."""
    x, index, source = op.operands
    check_index(index)
    if x.rank == 0 or index.rank not in (1, x.rank) or source.rank != x.rank or source.dtype != x.dtype:
        raise IRError(f"scatter of {source.type} at {index.type} into {x.type}")
    axis = axis_of(op.attrs["dim"], x.rank)
    if op.attrs["add"] and x.dtype == "bool":
        raise IRError("scatter adds no bools")
    need_same(source.shape[axis], index.shape[axis if index.rank == x.rank else 0], f"dimension {axis} of the source of a scatter")
    for d in range(x.rank):
        if d != axis:
            need_same(index.shape[d] if index.rank == x.rank else x.shape[d], x.shape[d], f"dimension {d} of the index of a scatter")
            need_same(source.shape[d], x.shape[d], f"dimension {d} of the source of a scatter")
    return resized(op, x.shape)


# ---- Groups of rows ------------------------------------------------------------------------------


def _grouped(x: Any, weight: Any, ends: Any) -> Any:
    np = numpy()
    y, begin = np.zeros((x.shape[0], weight.shape[2]), np.result_type(x, weight)), 0
    for e, end in enumerate(np.minimum(ends.astype(np.int64), x.shape[0])):
        if end > begin:
            y[begin:end] = x[begin:end] @ weight[e]
        begin = max(begin, int(end))
    return y


def _decompose_grouped(op: Op) -> Value:
    """Each matrix takes all rows, of which its own are kept."""
    x, weight, ends = op.operands
    count, function = weight.shape[0], op.block.function
    if not isinstance(count, int):
        raise IRError(f"grouped_matmul of {count} matrices, a number that only a call knows")
    owner = function.arange(x.shape[0]).unsqueeze(1).ge(ends.unsqueeze(0)).to_copy("i64").sum(1, True)
    total: Any = None
    for e in range(count):
        product = x.matmul(weight.select(0, e))
        part = owner.eq(e).where(product, function.full([], 0, product.dtype))
        total = part if total is None else total + part
    return total


@define("accrt.grouped_matmul(Tensor self, Tensor weight, Tensor ends)", reference=_grouped, decompose=_decompose_grouped)
def _infer_grouped(op: Op) -> Types:
    """Rows ends[e - 1] up to ends[e] of self [rows, k] by matrix e of weight [matrices, k, n], as
    experts take them; ends do not fall. Rows behind the last end give zeros."""
    x, weight, ends = op.operands
    check_index(ends)
    if x.rank != 2 or weight.rank != 3 or ends.rank != 1:
        raise IRError(f"grouped_matmul of {x.type} and {weight.type} with {ends.type}")
    check_product_types(x.dtype, weight.dtype, "grouped_matmul")
    need_same(x.shape[1], weight.shape[1], "inner dimension of grouped_matmul")
    need_same(ends.shape[0], weight.shape[0], "ends of grouped_matmul")
    size: Size = weight.shape[2]
    return [TensorType(x.dtype, (x.shape[0], size))]


def _grouped_linear(x: Any, *rest: Any) -> Any:
    np = numpy()
    *weights, ends = rest
    weight = weights[0] if weights[0].ndim == 3 else np.stack(weights)
    return _grouped(x, weight.swapaxes(1, 2), ends)


def _decompose_grouped_linear(op: Op) -> Value:
    x, *weights, ends = op.operands
    if weights[0].rank == 3:
        return x.grouped_matmul(weights[0].transpose(1, 2), ends)
    # of matrices, as a view of each would have to be looked at in every pass
    joined = cat(weights, 0).view([len(weights), *weights[0].shape])
    return x.grouped_matmul(joined.transpose(1, 2), ends)


@define("accrt.grouped_linear(Tensor self, Tensor[] weights, Tensor ends)", reference=_grouped_linear, decompose=_decompose_grouped_linear)
def _infer_grouped_linear(op: Op) -> Types:
    """grouped_matmul with the transposed matrices of one weight [matrices, n, k], or with those of
    many weights [n, k]. Quantized ones stay packed where kernels read them so."""
    x, *weights, ends = op.operands
    check_index(ends)
    first = weights[0] if weights else None
    if first is None or x.rank != 2 or ends.rank != 1 or first.rank not in (2, 3) or (first.rank == 3 and len(weights) > 1):
        raise IRError(f"grouped_linear of {x.type} and {', '.join(str(w.type) for w in weights[:2]) or 'no matrix'} with {ends.type}")
    for weight in weights:
        check_product_types(x.dtype, weight.dtype, "grouped_linear")
        if (weight.shape, weight.dtype) != (first.shape, first.dtype):
            raise IRError(f"grouped_linear: matrices of {first.type} and of {weight.type}")
    need_same(x.shape[1], first.shape[-1], "inner dimension of grouped_linear")
    need_same(ends.shape[0], first.shape[0] if first.rank == 3 else len(weights), "ends of grouped_linear")
    size: Size = first.shape[-2]
    return [TensorType(x.dtype, (x.shape[0], size))]


def kth(x: Value, k: int, dim: int, keepdim: bool) -> List[Value]:
    """The k-th smallest elements, and their places."""
    at = axis_of(dim, x.rank)
    return [part.slice(at, k - 1, k) if keepdim else part.select(at, k - 1) for part in x.sort(at)]


def histogram(x: Value, bins: int, least: float, most: float) -> Value:
    """How many elements are in each of `bins` equal parts of [least, most]; `most` itself is in the
    last."""
    if least == most:
        raise IRError(f"function {x.function.name!r}: histc of the range that its elements have")
    flat = (x if x.dtype in FLOATS else x.to_copy("f32")).flatten()
    place = ((flat - least) * (bins / (most - least))).floor().minimum(float(bins - 1))
    inside = flat.ge(least).logical_and(flat.le(most))
    parts = x.function.arange(bins).to_copy(flat.dtype).unsqueeze(1)
    counts = place.unsqueeze(0).eq(parts).logical_and(inside.unsqueeze(0)).to_copy("f32").sum(1)
    return counts if x.dtype == "f32" else counts.to_copy(x.dtype)
