"""Lowerings of what torch says of a tensor's memory: elements by their places in it, the same bits
as another type, and diagonals that are filled there. For accrt.from_torch.
"""

from __future__ import annotations

from typing import Any, List, Sequence

from .compiler import Value
from .compiler import expr as ex
from .from_torch.aliasing import _layout, root_of
from .from_torch.ops_math import filling
from .from_torch.ops_views import _put
from .from_torch.table import lowers
from .from_torch.values import dtype_of, Known, Unsupported

#: Bytes of a whole number of each type.
_BYTES = {"bool": 1, "i8": 1, "u8": 1, "i16": 2, "u16": 2, "i32": 4, "u32": 4, "i64": 8, "u64": 8}
#: Of so many bytes: the types with and without a sign.
_SIGNED, _UNSIGNED = {1: "i8", 2: "i16", 4: "i32", 8: "i64"}, {1: "u8", 2: "u16", 4: "u32", 8: "u64"}


# ---- elements by their places


@lowers("aten.as_strided.default", "aten.as_strided_copy.default")
def as_strided(lo: Any, x: Any, size: Sequence[Any], stride: Sequence[Any], storage_offset: Any = None) -> Any:
    """Elements by their places in the memory that the tensor is, or is a part of. `x` is the
    tensor, or what has that memory."""
    given = lo.node.args[0]
    root = root_of(given)
    flat = _memory(lo, lo._current(root) if x is lo.env.get(given) else x, _layout(root))
    first = _layout(given).storage_offset() if storage_offset is None else storage_offset
    if storage_offset is None and not isinstance(first, int):
        raise Unsupported("it goes through the memory of a part whose place is known to the call alone: call contiguous() first")
    places = lo.function.full([], first, "i64")
    for d, (count, step) in enumerate(zip(size, stride)):
        places = places + (lo.function.arange(count) * step).view([*[1] * d, count, *[1] * (len(size) - d - 1)])
    return flat.index_select(0, places.flatten()).view(list(size)) if len(size) else flat.index_select(0, places.view([1])).view([])


def _memory(lo: Any, x: Any, layout: Any) -> Value:
    """All elements of a tensor as they lie in its memory, which has no others."""
    if isinstance(x, Known) and not x.tensor.is_contiguous():
        layout = x.tensor
    order = _order(layout)
    if order is None or not (isinstance(layout.storage_offset(), int) and layout.storage_offset() == 0):
        raise Unsupported("it goes through the memory of a tensor that has other elements between its own: call contiguous() first")
    return lo.value(x).permute(order).flatten()


def _order(layout: Any) -> Any:
    """The dimensions of a tensor in the order of its memory, or None where that has other elements
    too. By texts: what is unknown while exporting is not asked for."""
    import torch

    left: List[int] = list(range(layout.dim()))
    order: List[int] = []
    wanted: Any = 1
    while left:
        at = next((d for d in reversed(left) if str(layout.shape[d]) == "1" or str(layout.stride(d)) == str(wanted)), None)
        if at is None:
            return None
        left.remove(at)
        order.insert(0, at)
        size = layout.shape[at]
        wanted = wanted * (max(size, 1) if isinstance(size, int) else torch.sym_max(size, 1))
    return order


# ---- the same bits as another type


def _bits(x: Value, dtype: str) -> Value:
    """Whole numbers as those of another type whose bits they are; the last dimension is longer or
    shorter where the type is."""
    if x.dtype == dtype:
        return x
    if x.dtype not in _BYTES or dtype not in _BYTES or dtype == "bool":
        raise Unsupported(f"the bits of {x.dtype} as {dtype}: only integers are seen as others; give it as an input of that type, or bring a kernel of your own (docs/missing-operations.md)")
    own, other = _BYTES[x.dtype], _BYTES[dtype]
    if own == other:
        return x.to_copy(dtype)
    *before, last = x.shape
    if own > other:
        x = x.to_copy(_SIGNED[own]).unsqueeze(x.rank)
        shifts = x.function.arange(own // other).to_copy(x.dtype) * (8 * other)
        return x.bitwise_right_shift(shifts).to_copy(dtype).view([*before, ex.simplify(ex.constant(last) * (own // other))])
    count = other // own
    parts = x.to_copy(_UNSIGNED[own]).view([*before, ex.simplify(ex.constant(last) // count), count]).to_copy(_SIGNED[other])
    made = parts.select(-1, 0)
    for i in range(1, count):
        made = made.bitwise_or(parts.select(-1, i).bitwise_left_shift(8 * own * i))
    return made.to_copy(dtype)


lowers("aten.view.dtype")(lambda lo, x, dtype: _bits(lo.value(x), dtype_of(dtype)))
_put("aten.view.dtype")(lambda lo, whole, part, dtype: _bits(lo.value(part), lo.dtype(whole)))


# ---- diagonals


@lowers("aten.fill_diagonal.default")
def fill_diagonal(lo: Any, x: Any, value: Any, wrap: bool = False) -> Any:
    """Elements whose places are the same in all dimensions; with `wrap`, of a tall matrix also
    those that begin anew behind its width."""
    x = lo.value(x)
    places = lo.function.arange(x.shape[0])
    if wrap and x.rank == 2:
        turn = ex.simplify(ex.constant(x.shape[1]) + 1)
        places = places - places.div(turn, rounding_mode="trunc") * turn
    there = None
    for d in range(1, x.rank):
        same = lo.function.arange(x.shape[d]).view([1] * d + [-1] + [1] * (x.rank - d - 1)).eq(places.view([-1] + [1] * (x.rank - 1)))
        there = same if there is None else there.logical_and(same)
    return there.where(filling(value, x.dtype), x)
