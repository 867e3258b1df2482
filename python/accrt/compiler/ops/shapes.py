"""Views (other shapes and parts of the same elements) and copies."""

from __future__ import annotations

import functools
from typing import Any, Callable, List, Sequence, Tuple

from .. import arguments
from .. import expr as ex
from ..expr import Expr, Size
from ..declared import TensorType
from ..ir import Function, IRError, Op, Value
from .schema import axis_of, broadcast, build, define, method_axis, need_same, resized, Types

#: Most values that split and chunk give.
MOST_PARTS = 65536


def _view_shape(op: Op) -> Tuple[Size, ...]:
    source, wanted = op.operands[0].type, [ex.simplify(s) for s in op.attrs["size"]]
    left = [at for at, size in enumerate(wanted) if ex.same(size, -1)]
    if len(left) > 1:
        raise IRError(f"view to {wanted}: one size may be -1")
    if left:
        known = ex.product(size for at, size in enumerate(wanted) if at not in left)
        if ex.same(known, 0):
            raise IRError(f"view of {source} as {wanted}: -1 may be anything beside a size of 0")
        missing = ex.simplify(ex.constant(source.elements) // known)
        wanted[left[0]] = missing
    need_same(ex.product(wanted), source.elements, f"view of {source} as [{', '.join(map(str, wanted))}]")
    return tuple(wanted)


@define("aten.view(Tensor self, Size[] size)", view=True)
def _infer_view(op: Op) -> Types:
    """The same elements in another shape: sizes in a list or one by one, of which one may be -1. It
    copies where it has to, so reshape() is the same."""
    return resized(op, _view_shape(op))


def _several(method: Callable[..., Value]) -> Callable[..., Value]:
    """Sizes and dimensions may be given one by one, as in torch: x.view(2, 3) is x.view([2, 3])."""

    @functools.wraps(method)
    def several(self: Value, *items: Any, **named: Any) -> Value:
        one_by_one = len(items) > 1 or (len(items) == 1 and (isinstance(items[0], Expr) or arguments.is_integer(items[0])))
        return method(self, items, **named) if one_by_one else method(self, *items, **named)

    return several


Value.view = _several(Value.view)
Value.reshape = Value.view


def _flatten(self: Value, start_dim: int = 0, end_dim: int = -1) -> Value:
    """Joins the dimensions from start_dim to end_dim, both included."""
    first, last = method_axis(self, start_dim, "flatten"), method_axis(self, end_dim, "flatten")
    if first > last:
        raise IRError(f"function {self.function.name!r}: flatten from dimension {start_dim} to {end_dim} of {self.type}")
    return self.view([*self.shape[:first], ex.product(self.shape[first : last + 1]), *self.shape[last + 1 :]])


Value.flatten = _flatten


@define("aten.permute(Tensor self, int[] dims)", view=True)
def _infer_permute(op: Op) -> Types:
    rank = op.operands[0].rank
    dims = [axis_of(d, rank) for d in op.attrs["dims"]]
    if sorted(dims) != list(range(rank)):
        raise IRError(f"permutation {op.attrs['dims']} of rank {rank}")
    return resized(op, [op.operands[0].shape[d] for d in dims])


Value.permute = _several(Value.permute)


def _transpose(self: Value, dim0: int, dim1: int) -> Value:
    """Two dimensions swapped."""
    a, b = method_axis(self, dim0, "transpose"), method_axis(self, dim1, "transpose")
    if self.rank == 0:
        return self
    dims = list(range(self.rank))
    dims[a], dims[b] = dims[b], dims[a]
    return self.permute(dims)


def _t(self: Value) -> Value:
    """A matrix transposed; tensors with fewer dimensions as they are."""
    if self.rank > 2:
        raise IRError(f"function {self.function.name!r}: t() of {self.type}, which has more than two dimensions: transpose(-1, -2) swaps the last")
    return self.permute([1, 0]) if self.rank == 2 else self


Value.transpose, Value.t = _transpose, _t


@define("aten.expand(Tensor self, Size[] size)", view=True)
def _infer_expand(op: Op) -> Types:
    source, wanted = op.operands[0], [ex.simplify(s) for s in op.attrs["size"]]
    lead = len(wanted) - source.rank
    if lead < 0 or any(ex.same(size, -1) for size in wanted[:lead]):
        raise IRError(f"expand of {source.type} to [{', '.join(map(str, wanted))}]: it has fewer dimensions" if lead < 0 else
                      f"expand of {source.type} to [{', '.join(map(str, wanted))}]: -1 stands for a dimension that is not there yet")
    wanted = [source.shape[i - lead] if ex.same(s, -1) else s for i, s in enumerate(wanted)]
    result = broadcast([source.shape, wanted])
    for a, b in zip(result, wanted):
        need_same(a, b, f"expand of {source.type}")
    return resized(op, wanted)


Value.expand = _several(Value.expand)


@define("aten.slice(Tensor self, int dim, Size? start=0, Size? end=None, int step=1)", view=True)
def _infer_slice(op: Op) -> Types:
    """Start and end are not clamped: 0 <= start <= end <= size is proved, or checked at each
    call."""
    source, at = op.operands[0], op.attrs
    axis = axis_of(at["dim"], source.rank)
    start, end = slice_bounds(op)
    if at["step"] < 1:
        raise IRError(f"slice with step {at['step']}")
    _, most = ex.bounds(ex.constant(source.shape[axis]) - end, source.function.module.ranges())
    if (isinstance(start, int) and start < 0) or (most is not None and most < 0) or (isinstance(end, int) and isinstance(start, int) and end < start):
        raise IRError(f"slice [{start}:{end}] of dimension {axis} of {source.type}")
    shape = list(source.shape)
    shape[axis] = ex.ceildiv(ex.constant(end) - start, at["step"])
    return resized(op, shape)


def slice_bounds(op: Op) -> Tuple[Size, Size]:
    source, at = op.operands[0], op.attrs
    size = source.shape[axis_of(at["dim"], source.rank)]
    start, end = (0 if at["start"] is None else at["start"]), (size if at["end"] is None else at["end"])
    if isinstance(start, int) and start < 0:
        start = ex.simplify(ex.constant(size) + start)
    if isinstance(end, int) and end < 0:
        end = ex.simplify(ex.constant(size) + end)
    if isinstance(end, int) and isinstance(size, int):
        end = min(end, size)
    return ex.simplify(start), ex.simplify(end)


@define("aten.select(Tensor self, int dim, Size index)", view=True)
def _infer_select(op: Op) -> Types:
    source = op.operands[0]
    axis = axis_of(op.attrs["dim"], source.rank)
    index, size = op.attrs["index"], source.shape[axis]
    if isinstance(index, int) and isinstance(size, int) and not -size <= index < size:
        raise IRError(f"index {index} of dimension {axis} of {source.type}")
    return resized(op, source.shape[:axis] + source.shape[axis + 1 :])


def _unsqueeze(self: Value, dim: int) -> Value:
    """A dimension of size 1 before dimension dim; -1: after the last."""
    axis = method_axis(self, dim, "unsqueeze", 1)
    return self.view([*self.shape[:axis], 1, *self.shape[axis:]])


def _squeeze(self: Value, dim: Any = None) -> Value:
    """Without those of the dimensions (None: of all) that have size 1; others stay as they are."""
    axes = range(self.rank) if dim is None else [method_axis(self, d, "squeeze") for d in arguments.dims(dim, f"function {self.function.name!r}: squeeze: dim")]
    if len(set(axes)) != len(axes):
        raise IRError(f"function {self.function.name!r}: squeeze of {self.type}: a dimension stands twice in {dim}")
    if not self.rank:
        return self
    gone = []
    for axis in axes:
        size = self.shape[axis]
        low, high = ex.bounds(size, self.function.module.ranges())
        if isinstance(size, Expr) and (low is None or low <= 1) and (high is None or high >= 1):
            raise IRError(f"function {self.function.name!r}: squeeze of dimension {axis} of {self.type}: {size} may be 1 and may be more, "
                          "and then the result has another rank: give the symbol a minimum of 2, or use view()")
        gone += [axis] if ex.same(size, 1) else []
    return self.view([size for axis, size in enumerate(self.shape) if axis not in gone]) if gone else self


def _split(self: Value, split_size: Any, dim: int = 0) -> List[Value]:
    """Parts along a dimension: of one size each (the last may be smaller), or of the sizes in a
    list, whose sum is the dimension's."""
    where, axis = f"function {self.function.name!r}: split", method_axis(self, dim, "split")
    whole = self.shape[axis] if self.rank else 0
    if not self.rank:
        raise IRError(f"{where} of {self.type}, which has no dimension")
    if arguments.is_integer(split_size):
        return _parts(self, _equal_sizes(self, arguments.integer(split_size, f"{where}: its size", 1), axis, where), axis)
    sizes = arguments.sizes(split_size, f"{where}: sizes")
    total = ex.simplify(sum((ex.constant(size) for size in sizes), ex.constant(0)))
    if any(isinstance(size, int) and size < 0 for size in sizes) or not ex.proved_equal(total, whole):
        raise IRError(f"{where} of {self.type} into {list(map(str, sizes))}: their sum {total} is not proved to equal dimension {axis}, {whole}")
    return _parts(self, sizes, axis)


def _equal_sizes(self: Value, size: int, axis: int, where: str) -> List[int]:
    whole = self.shape[axis]
    if not isinstance(whole, int):
        raise IRError(f"{where} of {self.type}: how many parts {whole} gives is not known while compiling; a list of sizes says it")
    _few(-(-whole // size), where)
    return [min(size, whole - at) for at in range(0, whole, size)] or [0]


def _few(count: int, where: str) -> None:
    """Each part is a value, and an operation: a slip would take all memory."""
    if count > MOST_PARTS:
        raise IRError(f"{where} gives {count} parts; at most {MOST_PARTS}")


def _parts(self: Value, sizes: Sequence[Size], axis: int) -> List[Value]:
    made, start = [], ex.constant(0)
    for size in sizes:
        made.append(self.slice(axis, ex.simplify(start), ex.simplify(start + size)))
        start = start + size
    return made


def _chunk(self: Value, chunks: int, dim: int = 0) -> List[Value]:
    """At most `chunks` parts of one size, of which the last may be smaller."""
    where, axis = f"function {self.function.name!r}: chunk", method_axis(self, dim, "chunk")
    count = arguments.integer(chunks, f"{where}: chunks", 1)
    if not self.rank:
        raise IRError(f"{where} of {self.type}, which has no dimension")
    whole = self.shape[axis]
    if isinstance(whole, int) and whole == 0:
        _few(count, where)
        return _parts(self, [0] * count, axis)
    return _parts(self, _equal_sizes(self, -(-whole // count) if isinstance(whole, int) else 1, axis, where), axis)


def _narrow(self: Value, dim: int, start: Size, length: Size) -> Value:
    """`length` elements of a dimension from `start` on, which may be negative; refused where they
    do not fit, here or at the call."""
    where, axis = f"function {self.function.name!r}: narrow", method_axis(self, dim, "narrow")
    first, count = arguments.size(start, f"{where}: start"), arguments.size(length, f"{where}: length")
    if not self.rank:
        raise IRError(f"{where} of {self.type}, which has no dimension")
    whole = self.shape[axis]
    if isinstance(first, int) and first < 0:
        first = ex.simplify(ex.constant(whole) + first)
    end = ex.simplify(ex.constant(first) + count)
    short = isinstance(count, int) and count < 0
    if short or (isinstance(first, int) and first < 0) or (isinstance(end, int) and isinstance(whole, int) and end > whole):
        raise IRError(f"{where} of dimension {axis} of {self.type}: {length} elements from {start} on do not fit in {whole}")
    return self.slice(axis, first, end)


Value.unsqueeze, Value.squeeze, Value.split, Value.chunk, Value.narrow = _unsqueeze, _squeeze, _split, _chunk, _narrow


# ---- Copies --------------------------------------------------------------------------------------


@define("aten.clone(Tensor self)", reference=lambda x: x.copy())
def _infer_clone(op: Op) -> Types:
    return [op.operands[0].type]


def _contiguous(self: Value) -> Value:
    """The same value: what lies how is the compiler's."""
    return self


Value.contiguous = _contiguous


@define("aten.cat(Tensor[] tensors, int dim=0)")
def _infer_cat(op: Op) -> Types:
    if not op.operands:
        raise IRError("cat of no values")
    if op.operands[0].rank == 0:
        raise IRError("cat of values without dimensions: unsqueeze(0) gives them one")
    first = op.operands[0]
    axis = axis_of(op.attrs["dim"], first.rank)
    total: Size = 0
    for value in op.operands:
        if (value.rank, value.dtype, value.type.encoding) != (first.rank, first.dtype, first.type.encoding):
            raise IRError(f"cat of {first.type} and {value.type}" + ("; cast one with to_copy()" if value.dtype != first.dtype else ""))
        for i in range(first.rank):
            if i != axis:
                need_same(value.shape[i], first.shape[i], f"cat, dimension {i}")
        total = ex.simplify(value.shape[axis] + ex.constant(total))
    return [TensorType(first.dtype, first.shape[:axis] + (total,) + first.shape[axis + 1 :], first.type.encoding)]


def cat(values: Sequence[Value], dim: int = 0) -> Value:
    """Joins values along a dimension. Their other dimensions are the same, and their types:
    to_copy() casts. The same as f.cat(values, dim)."""
    given = arguments.listed(values, "cat: its values", "values")
    found = next((v.function for v in given if isinstance(v, Value)), None)
    if found is None:
        raise IRError(f"cat of {arguments.described(values)}: it takes values of a function; f.cat(...) joins constants")
    return build(found, "aten.cat", given, dim)


def _function_cat(self: Function, tensors: Sequence[Any], dim: int = 0) -> Value:
    """cat(tensors, dim=0): aten.cat. Joins values, and constants, along a dimension."""
    return build(self, "aten.cat", tensors, dim)


Function.cat = _function_cat
