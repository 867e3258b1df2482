"""Lowerings of operations that move elements: views, parts, lookups by index, and new tensors."""

from __future__ import annotations

from typing import Any, List, Sequence

import numpy as np

from ..compiler import Expr, Value
from ..compiler import expr as ex
from ..compiler.ops.schema import broadcast
from ..compiler.ops import ordering, windows
from ..compiler import affine
from ..from_torch import ops_nn as aten_nn
from ..from_torch import ops_views as aten
from ..from_torch.ops_math import cast, full_of
from .folding import of_proto
from .ops_math import _product
from .table import lowers
from .values import dtype_named, Known, number_of, Unsupported


@lowers("Reshape")
def reshape(lo: Any, x: Any, shape: Any, allowzero: int = 0) -> Any:
    x, wanted = lo.value(x), lo.sizes(shape, "the shape of a reshape")
    sizes = [x.shape[d] if ex.same(s, 0) and not allowzero else s for d, s in enumerate(wanted)]
    return aten.view(lo, x, sizes)


@lowers("Flatten")
def flatten(lo: Any, x: Any, axis: int = 1) -> Any:
    x = lo.value(x)
    at = axis + x.rank if axis < 0 else axis
    return x.view([ex.product(x.shape[:at]), ex.product(x.shape[at:])])


@lowers("Transpose")
def transpose(lo: Any, x: Any, perm: Any = None) -> Any:
    x = lo.value(x)
    return aten.permute(lo, x, list(range(x.rank))[::-1] if perm is None else list(perm))


@lowers("Unsqueeze")
def unsqueeze(lo: Any, x: Any, axes: Any) -> Any:
    x, dims = lo.value(x), lo.integers(axes, "dimensions to add")
    for at in sorted(d + x.rank + len(dims) if d < 0 else d for d in dims):
        x = aten.unsqueeze(lo, x, at)
    return x


@lowers("Squeeze")
def squeeze(lo: Any, x: Any, axes: Any = None) -> Any:
    return aten.squeeze(lo, x, None if axes is None else lo.integers(axes, "dimensions to take out"))


@lowers("Expand")
def expand(lo: Any, x: Any, shape: Any) -> Any:
    """Both sides broadcast."""
    x, wanted = lo.value(x), lo.sizes(shape, "the shape to expand to")
    return aten.expand(lo, x, list(broadcast([x.shape, tuple(wanted)])))


@lowers("Concat")
def concat(lo: Any, *items: Any, axis: int) -> Any:
    return aten.cat(lo, items, axis)


@lowers("Split")
def split(lo: Any, x: Any, sizes: Any = None, axis: int = 0, num_outputs: int = 0) -> Any:
    x = lo.value(x)
    at, count = lo.axis(x, axis), num_outputs or len(lo.node.output)
    if sizes is not None:
        return x.split(lo.sizes(sizes, "sizes of a split"), at)
    size = x.shape[at]
    if not isinstance(size, int):
        raise Unsupported(f"equal parts of a dimension of {size}")
    each = -(-size // count)
    return x.split([max(min(each, size - i * each), 0) for i in range(count)], at)


@lowers("Slice")
def slice_(lo: Any, x: Any, starts: Any, ends: Any, axes: Any = None, steps: Any = None) -> Any:
    x = lo.value(x)
    first, last = lo.sizes(starts, "the start of a slice"), lo.sizes(ends, "the end of a slice")
    dims = list(range(len(first))) if axes is None else lo.integers(axes, "dimensions of a slice")
    by = [1] * len(first) if steps is None else lo.integers(steps, "the step of a slice")
    for start, end, dim, step in zip(first, last, dims, by):
        at = lo.axis(x, dim)
        x = aten.slice_(lo, x, at, start, end, step) if step > 0 else _backwards(lo, x, at, start, end, step)
    return x


def _backwards(lo: Any, x: Value, at: int, start: Any, end: Any, step: int) -> Value:
    size = x.shape[at]
    if isinstance(size, int) and isinstance(start, int) and isinstance(end, int):
        places = np.array(list(range(size))[slice(start, None if end < -size else end, step)], np.int64)
        return x.index_select(at, lo.value(Known(places)))
    if not isinstance(start, int) or not isinstance(end, int) or (0 <= start < 1 << 31 and start != -1) or end > -(1 << 31):
        raise Unsupported("a part of a dimension that varies, backwards")
    whole = aten.flip(lo, x, [at])
    return whole if step == -1 else aten.slice_(lo, whole, at, 0, None, -step)


@lowers("Tile")
def tile(lo: Any, x: Any, repeats: Any) -> Any:
    return aten.repeat(lo, x, lo.sizes(repeats, "how often to repeat"))


@lowers("Pad")
def pad(lo: Any, x: Any, pads: Any, number: Any = None, axes: Any = None, mode: str = "constant") -> Any:
    x, sizes = lo.value(x), lo.sizes(pads, "sizes of padding")
    half = len(sizes) // 2
    dims = range(x.rank) if axes is None else [lo.axis(x, a) for a in lo.integers(axes, "dimensions of padding")]
    pairs: List[Any] = [(0, 0)] * x.rank
    for i, d in enumerate(dims):
        pairs[d] = (sizes[i], sizes[half + i])
    if mode == "constant":
        filled = 0 if number is None else number_of(number)
        return windows.padded(x, pairs, lo.value(number).view([]) if filled is None else filled)
    if mode == "wrap":
        return _wrapped(lo, x, pairs)
    while pairs and pairs[0] == (0, 0):
        pairs = pairs[1:]
    flat = [size for before_after in pairs[::-1] for size in before_after]
    return aten_nn.pad(lo, x, flat, {"reflect": "reflect", "edge": "replicate"}[mode])


def _wrapped(lo: Any, x: Value, pairs: Sequence[Any]) -> Value:
    for at, (before, after) in enumerate(pairs):
        if before or after:
            size = x.shape[at]
            places = lo.function.arange(ex.simplify(ex.constant(size) + before + after)) - before
            x = x.index_select(at, places.remainder(size) if isinstance(size, int) else places.remainder(lo.function.full([], size, "i64")))
    return x


# ---- lookups


def _natural(lo: Any, index: Any, size: Any) -> Value:
    """Places counted from the start."""
    known, places = lo.pattern(index), lo.value(index)
    if isinstance(index, Known) and not index.is_symbolic:
        if not (index.array < 0).any():
            return places
    if isinstance(known, affine.Affine) and affine.is_natural(known):
        return places
    return places.lt(0).where(places + size, places)


@lowers("Gather")
def gather(lo: Any, x: Any, index: Any, axis: int = 0) -> Any:
    at, number = lo.axis(x, axis), number_of(index) if isinstance(index, Known) else None
    if number is not None and not index.shape:
        return aten.select(lo, x, at, number)
    value = lo.value(x)
    places = _natural(lo, index, value.shape[at])
    if at == 0 and value.rank == 2:
        made = value.embedding(places)
    else:
        made = value.index_select(at, places if places.rank == 1 else places.view([ex.product(places.shape)]))
        made = made if places.rank == 1 else made.view([*value.shape[:at], *places.shape, *value.shape[at + 1 :]])
    source, known = lo.pattern(x), lo.pattern(index)
    if source is not None and value.rank == 1 and isinstance(known, affine.Affine):
        return lo.marked(made, affine.looked_up(source, [known]))
    return made


@lowers("GatherElements")
def gather_elements(lo: Any, x: Any, index: Any, axis: int = 0) -> Any:
    x = lo.value(x)
    at = lo.axis(x, axis)
    return x.gather(at, _natural(lo, index, x.shape[at]))


@lowers("GatherND")
def gather_nd(lo: Any, x: Any, index: Any, batch_dims: int = 0) -> Any:
    """The last dimension of the index has one place for each of the dimensions after those of the
    batch."""
    source = lo.value(x)
    places = lo.value(index)
    count = places.shape[-1]
    if not isinstance(count, int):
        raise Unsupported(f"an index of {count} places")
    last, batch = places.rank - 1, source.shape[:batch_dims]
    shape = [*places.shape[:-1], *source.shape[batch_dims + count :]]
    total: Any = None
    for d in range(count):
        size = source.shape[batch_dims + d]
        place = places.select(last, d)
        place = place.lt(0).where(place + size, place)
        total = place if total is None else total * size + place
    extent = ex.product(source.shape[batch_dims : batch_dims + count])
    for d in range(batch_dims):  # the place of the batch comes before
        rank = [1] * total.rank
        rank[d] = batch[d]
        step = ex.simplify(ex.product(batch[d + 1 :]) * ex.constant(extent))
        total = total + lo.function.arange(batch[d]).view(rank) * step
    flat = source.view([ex.simplify(ex.product(batch) * ex.constant(extent)), *source.shape[batch_dims + count :]])
    made = flat.index_select(0, total if total.rank == 1 else total.view([ex.product(total.shape)])).view(shape)
    return made


@lowers("ScatterElements")
def scatter_elements(lo: Any, x: Any, index: Any, updates: Any, axis: int = 0, reduction: str = "none") -> Any:
    """Each place takes the last of the elements that go there, or what `reduction` makes of them
    and its own."""
    x, source = lo.value(x), lo.value(updates)
    at, last = lo.axis(x, axis), lo.rank(x) - 1
    places = _natural(lo, index, x.shape[at])
    if reduction in ("none", "add"):
        return ordering.placed(x, at, places, source, reduction == "add")
    for d, (a, b) in enumerate(zip(x.shape, places.shape)):
        if d != at and not ex.same(a, b):
            if not isinstance(a, int) or not isinstance(b, int) or b > a:
                raise Unsupported(f"an index {places.type} into {x.type}: the other dimensions differ")
            places = windows.padded(places, [(0, a - b if e == d else 0) for e in range(places.rank)], -1)
            source = windows.padded(source, [(0, a - b if e == d else 0) for e in range(places.rank)], 0)
    moved, places, source = x.transpose(at, last), places.transpose(at, last), source.transpose(at, last)
    # [..., size, count]
    goes = places.unsqueeze(last).eq(lo.function.arange(moved.shape[last]).unsqueeze(1))
    return _scattered(lo, moved, goes, source.unsqueeze(last), reduction).transpose(at, last)


def _scattered(lo: Any, x: Value, goes: Value, source: Value, reduction: str) -> Value:
    """`goes` [..., size, count]: whether the element of the last dimension of `source` [..., 1,
    count] goes to the place."""
    last = goes.rank - 1
    if reduction == "mul":
        return x * _product(lo, goes.where(source, full_of(lo, [], 1, x.dtype)), [last], False)
    there = goes.where(source, x.unsqueeze(last))
    return x.maximum(there.amax(last)) if reduction == "max" else x.minimum(there.amin(last))


@lowers("ScatterND")
def scatter_nd(lo: Any, x: Any, index: Any, updates: Any, reduction: str = "none") -> Any:
    """As rows of a matrix: the place of each update is one number, and each row takes the last of
    its updates."""
    x, places, source = lo.value(x), lo.value(index), lo.value(updates)
    count = places.shape[-1]
    if not isinstance(count, int):
        raise Unsupported(f"an index of {count} places")
    total: Any = None
    for d in range(count):
        place = places.select(places.rank - 1, d)
        place = place.lt(0).where(place + x.shape[d], place)
        total = place if total is None else total * x.shape[d] + place
    rows, width, updated = ex.product(x.shape[:count]), ex.product(x.shape[count:]), ex.product(places.shape[:-1])
    flat, source = x.view([rows, width]), source.view([updated, width])
    if reduction in ("none", "add"):
        return flat.scatter(total.view([updated]), source, 0, reduction == "add").view(list(x.shape))
    # [rows, updated]
    goes = total.view([updated]).unsqueeze(0).eq(lo.function.arange(rows).unsqueeze(1))
    made = _scattered(lo, flat.transpose(0, 1), goes.unsqueeze(0), source.transpose(0, 1).unsqueeze(1), reduction)
    return made.transpose(0, 1).view(list(x.shape))


@lowers("OneHot")
def one_hot(lo: Any, index: Any, depth: Any, values: Any, axis: int = -1) -> Any:
    size = lo.integer(depth, "the number of classes")
    places = lo.value(index)
    places = places if places.dtype in ("i64", "i32") else cast(lo, places, "i64")
    at = axis + places.rank + 1 if axis < 0 else axis
    places = places.lt(0).where(places + size, places)
    shape = [1] * (places.rank + 1)
    shape[at] = size
    hot = places.unsqueeze(at).eq(lo.function.arange(size).view(shape))
    pairs = lo.value(values)
    return hot.where(pairs.select(0, 1), pairs.select(0, 0))


@lowers("Trilu")
def trilu(lo: Any, x: Any, k: Any = None, upper: int = 1) -> Any:
    diagonal = 0 if k is None else lo.sizes(k, "the diagonal")[0]
    pattern = lo.pattern(x)
    x = lo.value(x)
    rows, columns = lo.function.arange(x.shape[-2]).unsqueeze(1), lo.function.arange(x.shape[-1])
    kept = columns.ge(rows + diagonal) if upper else columns.le(rows + diagonal)
    if x.dtype != "bool":
        return kept.where(x, full_of(lo, [], 0, x.dtype))
    made = x.logical_and(kept)
    if not isinstance(pattern, affine.Truth) or upper or not isinstance(diagonal, int):
        return made
    axes = [0] * x.rank
    axes[-2:] = [1, -1]
    return lo.marked(made, affine.both(pattern, affine.Truth(x.rank, (affine.Affine(tuple(axes), diagonal),))))


# ---- new tensors


@lowers("ConstantOfShape")
def constant_of_shape(lo: Any, shape: Any, value: Any = None) -> Any:
    filled = Known(np.zeros(1, np.float32)) if value is None else of_proto(value)
    return full_of(lo, lo.sizes(shape, "the shape of a new tensor"), number_of(filled), filled.dtype)


@lowers("Range")
def range_(lo: Any, start: Any, limit: Any, delta: Any) -> Any:
    bounds = [number_of(item) if isinstance(item, Known) else None for item in (start, limit, delta)]
    if any(b is None for b in bounds):
        raise Unsupported("a range whose bounds only a call knows: constants= gives an input's content when the bundle is made")
    dtype = lo.dtype(start)
    if any(isinstance(b, float) and b != int(b) for b in bounds) or isinstance(bounds[2], Expr):
        raise Unsupported(f"a range {bounds}")
    whole = [int(b) if isinstance(b, float) else b for b in bounds]
    made = lo.marked(lo.function.arange(*whole), affine.iota(whole[0], whole[2]))
    return made if dtype == "i64" else cast(lo, made, dtype)


@lowers("EyeLike")
def eye_like(lo: Any, x: Any, dtype: Any = None, k: int = 0) -> Any:
    rows, columns = lo.shape(x)
    eye = lo.function.arange(columns).eq(lo.function.arange(rows).unsqueeze(1) + k)
    return cast(lo, eye, lo.dtype(x) if dtype is None else dtype_named(dtype))


@lowers("DepthToSpace")
def depth_to_space(lo: Any, x: Any, blocksize: int, mode: str = "DCR") -> Any:
    x = lo.value(x)
    n, c, h, w = x.shape
    depth = c // blocksize**2
    tall, wide = ex.simplify(ex.constant(h) * blocksize), ex.simplify(ex.constant(w) * blocksize)
    if mode == "CRD":
        parts = x.view([n, depth, blocksize, blocksize, h, w]).permute([0, 1, 4, 2, 5, 3])
    else:
        parts = x.view([n, blocksize, blocksize, depth, h, w]).permute([0, 3, 4, 1, 5, 2])
    return parts.view([n, depth, tall, wide])


@lowers("SpaceToDepth")
def space_to_depth(lo: Any, x: Any, blocksize: int) -> Any:
    x = lo.value(x)
    n, c, h, w = x.shape
    tall, wide = ex.simplify(ex.constant(h) // blocksize), ex.simplify(ex.constant(w) // blocksize)
    parts = x.view([n, c, tall, blocksize, wide, blocksize]).permute([0, 3, 5, 1, 2, 4])
    return parts.view([n, c * blocksize**2, tall, wide])
