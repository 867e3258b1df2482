"""Pictures at other places: cubic and filtered changes of size, and samples at places that are
values."""

from __future__ import annotations

from typing import Any, List, Optional, Sequence, Tuple

from .. import expr as ex
from ..expr import Size
from ..ir import IRError, Value
from . import elementwise, functions, indexing, products, reductions, shapes, upsampling  # noqa: F401  - the methods that are used here
from .upsampling import each_dimension, source_places


def _cubic(apart: Value, a: float) -> Value:
    """The share of what is so far away, below 2."""
    near = ((apart * (a + 2.0) - (a + 3.0)) * apart) * apart + 1.0
    far = ((apart * a - 5.0 * a) * apart + 8.0 * a) * apart - 4.0 * a
    return apart.le(1.0).where(near, far)


def upsample_cubic(x: Value, size: Optional[Sequence[Size]], align_corners: bool, scale_factors: Optional[Sequence[float]] = None) -> Value:
    """aten.upsample_bicubic2d: of the four nearest places in each dimension."""

    def resize(x: Value, at: int, target: Size, factor: Optional[float]) -> Value:
        last = ex.simplify(ex.constant(x.shape[at]) - 1)
        places = source_places(x, at, target, factor, align_corners)
        low = places.floor()
        share, first, shape = (places - low).to_copy(x.dtype), low.to_copy("i64"), [-1, *[1] * (x.rank - at - 1)]
        total: Any = None
        for k, apart in ((-1, share + 1.0), (0, share), (1, 1.0 - share), (2, 2.0 - share)):
            part = x.index_select(at, (first + k).maximum(0).minimum(last)) * _cubic(apart, -0.75).view(shape)
            total = part if total is None else total + part
        return total

    return each_dimension(x, size, scale_factors, resize)


def upsample_filtered(x: Value, size: Optional[Sequence[Size]], align_corners: bool, scale_factors: Optional[Sequence[float]] = None, cubic: bool = False) -> Value:
    """Antialiased sizes, bilinear or bicubic: each place is made of all that it covers. A product
    with a matrix of shares."""

    def resize(x: Value, at: int, target: Size, factor: Optional[float]) -> Value:
        extent, function = x.shape[at], x.function
        ratio = _ratio(x, extent, target, factor, align_corners)
        middles = (function.arange(target).to_copy("f64") + 0.5) * ratio - 0.5
        wide = ratio.maximum(1.0) if isinstance(ratio, Value) else max(ratio, 1.0)
        apart = ((function.arange(extent).to_copy("f64").unsqueeze(0) - middles.unsqueeze(1)) / wide).abs()
        share = apart.lt(2.0).where(_cubic(apart, -0.5), 0.0) if cubic else (1.0 - apart).maximum(0.0)
        matrix = (share / share.sum([1], True)).to_copy(x.dtype)
        return x.transpose(at, -1).matmul(matrix.transpose(0, 1)).transpose(at, -1)

    return each_dimension(x, size, scale_factors, resize)


def _ratio(x: Value, extent: Size, target: Size, factor: Optional[float], align_corners: bool) -> Any:
    """Places of the input for each of the result."""
    if align_corners and ex.same(target, 1):
        return 0.0
    if align_corners:
        extent, target = ex.simplify(ex.constant(extent) - 1), ex.simplify(ex.maximum(ex.simplify(ex.constant(target) - 1), 1))
    if isinstance(extent, int) and isinstance(target, int):
        return extent / target if not factor or align_corners else 1 / factor
    return x.function.full([], extent, "f64") / x.function.full([], target, "f64")


# ---- Samples -------------------------------------------------------------------------------------


def grid_sample(x: Value, grid: Value, mode: int = 0, padding: int = 0, align_corners: bool = False) -> Value:
    """aten.grid_sampler of two or three dimensions, modes and paddings numbered as there: places
    come from the grid, between -1 and 1; rows of channels are looked up, and mixed by shares."""
    dims, function = x.rank - 2, x.function
    if dims not in (2, 3) or grid.rank != x.rank or not ex.same(grid.shape[-1], dims):
        raise IRError(f"function {function.name!r}: samples of {x.type} at {grid.type}")
    if mode not in (0, 1, 2) or padding not in (0, 1, 2):
        raise IRError(f"function {function.name!r}: samples of mode {mode} and padding {padding}: 0, 1 and 2 are there")
    if mode == 2 and dims == 3:
        raise IRError(f"function {function.name!r}: cubic samples of {x.type}: of two dimensions they are there")
    batch, channels, *sizes = x.shape
    out = list(grid.shape[1:-1])
    rows = x.permute([0, *range(2, x.rank), 1]).view([ex.product([batch, *sizes]), channels])
    places = [_placed(grid.select(-1, dims - 1 - d), size, align_corners) for d, size in enumerate(sizes)]
    if mode != 2:
        places = [_padded(place, size, padding, align_corners) for place, size in zip(places, sizes)]
    each = [_shares(place, mode) for place in places]
    first = (function.arange(batch) * ex.product(sizes)).view([batch, *[1] * len(out)])
    total: Any = None
    for chosen in _every(each):
        index, share, inside = first, None, None
        step: Size = 1
        for (place, own), size in reversed(list(zip(chosen, sizes))):
            place = _padded(place, size, padding, align_corners) if mode == 2 else place
            last = ex.simplify(ex.constant(size) - 1)
            there = place.ge(0.0).logical_and(place.le(_float(function, last, place.dtype)))
            inside = there if inside is None else inside.logical_and(there)
            share = own if share is None or own is None else share * own
            index = index + place.to_copy("i64").maximum(0).minimum(last) * step
            step = ex.simplify(ex.constant(step) * size)
        taken = rows.index_select(0, index.flatten()).view([batch, *out, channels])
        part = taken if share is None else taken * (share if share.dtype == x.dtype else share.to_copy(x.dtype)).unsqueeze(len(out) + 1)
        # what lies outside is not looked at: it may be infinite where it is looked up instead
        part = inside.unsqueeze(len(out) + 1).where(part, 0.0)
        total = part if total is None else total + part
    return total.permute([0, x.rank - 1, *range(1, x.rank - 1)])


def _float(function: Any, size: Size, dtype: str) -> Any:
    return float(size) if isinstance(size, int) else function.full([], size, dtype)


def _placed(x: Value, size: Size, align_corners: bool) -> Value:
    """Places of a dimension, where -1 and 1 are its ends: the middles of the first and last place,
    or their outer sides."""
    if align_corners:
        return (x + 1.0) * (_float(x.function, ex.simplify(ex.constant(size) - 1), x.dtype) * 0.5)
    return ((x + 1.0) * _float(x.function, size, x.dtype) - 1.0) * 0.5


def _padded(x: Value, size: Size, padding: int, align_corners: bool) -> Value:
    """Places outside as they are (0), as the nearest one inside (1), or mirrored (2)."""
    if padding == 0:
        return x
    last = _float(x.function, ex.simplify(ex.constant(size) - 1), x.dtype)
    if padding == 2:
        low, span = (0.0, last) if align_corners else (-0.5, _float(x.function, size, x.dtype))
        if ex.same(size, 1) and align_corners:
            return x * 0.0
        span = span.maximum(1.0) if isinstance(span, Value) else span  # 0 where there is one place
        apart = (x - low).abs()
        turns = (apart / span).floor()
        over = apart - turns * span
        odd = (turns - (turns * 0.5).floor() * 2.0).gt(0.5)
        x = odd.where(span - over, over) + low
    return x.maximum(0.0).minimum(last)


def _shares(place: Value, mode: int) -> List[Tuple[Value, Optional[Value]]]:
    """Places that a sample is made of in one dimension, and their shares."""
    if mode == 1:
        return [(place.round(), None)]
    low = place.floor()
    share = place - low
    if mode == 0:
        return [(low, 1.0 - share), (low + 1.0, share)]
    return [(low + float(k), _cubic(apart, -0.75)) for k, apart in ((-1, share + 1.0), (0, share), (1, 1.0 - share), (2, 2.0 - share))]


def _every(each: Sequence[List[Any]]) -> List[List[Any]]:
    """All choices of one of each list."""
    return [[]] if not each else [[item, *rest] for item in each[0] for rest in _every(each[1:])]


Value.upsample_cubic, Value.upsample_filtered, Value.grid_sample = upsample_cubic, upsample_filtered, grid_sample
