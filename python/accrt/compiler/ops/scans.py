"""What each place of a dimension has seen so far: running extremes, products and logarithms of
sums; and medians."""

from __future__ import annotations

import math
from typing import Any, Callable, List, Optional, Sequence

from .. import expr as ex
from ..declared import FLOATS
from ..ir import Value
from . import elementwise, functions, indexing, ordering, reductions, shapes  # noqa: F401  - the methods that are used here
from .schema import method_axis

Parts = List[Value]


def scanned(parts: Sequence[Value], at: int, both: Callable[[Parts, Parts], Parts]) -> Parts:
    """`both` of all elements up to each place, of tensors of one shape: of 2, then of 4, 8 and so
    on before each. `both` gets the earlier ones first."""
    first = parts[0]
    made, function, size, reach = list(parts), first.function, first.shape[at], 1
    _least, most = ex.bounds(size, function.module.ranges())
    places = function.arange(size)
    while most is None or reach < most:
        before = [part.index_select(at, (places - reach).maximum(0)) for part in made]
        there = places.ge(reach).view([-1 if d == at else 1 for d in range(first.rank)])
        made = [there.where(new, old) for new, old in zip(both(before, made), made)]
        reach *= 2
        if reach > 1 << 40:
            break
    return made


def _running(x: Value, dim: int, name: str, both: Callable[[Value, Value], Value]) -> Value:
    at = method_axis(x, dim, name)
    return x if not x.rank else scanned([x], at, lambda a, b: [both(a[0], b[0])])[0]


def cumprod(x: Value, dim: int) -> Value:
    """Products of the elements up to each place; of integers and bools i64."""
    if x.dtype in ("f16", "bf16"):  # what lies between may be beyond their range
        return cumprod(x.to_copy("f32"), dim).to_copy(x.dtype)
    return _running(x if x.dtype in FLOATS or x.dtype == "i64" else x.to_copy("i64"), dim, "cumprod", lambda a, b: a * b)


def logcumsumexp(x: Value, dim: int) -> Value:
    """The logarithm of running sums of exponentials, without overflow."""

    def both(a: Value, b: Value) -> Value:
        top, apart = a.maximum(b), (a - b).abs()
        # two infinities of one sign are 0 apart
        return top.abs().eq(math.inf).where(top, top + (apart * -1.0).exp().log1p())

    return _running(x, dim, "logcumsumexp", both)


def _extremes(x: Value, dim: int, name: str, is_least: bool) -> Parts:
    """The extreme so far and its place: of equal ones the last, and NaN before all else."""
    at = method_axis(x, dim, name)
    if not x.rank:
        return [x, x.function.full([], 0, "i64")]

    def both(a: Parts, b: Parts) -> Parts:
        later = (b[0].le(a[0]) if is_least else b[0].ge(a[0])).logical_or(b[0].ne(b[0]))
        return [later.where(b[0], a[0]), later.where(b[1], a[1])]

    places = x.function.arange(x.shape[at]).view([-1 if d == at else 1 for d in range(x.rank)]).expand(list(x.shape))
    return scanned([x, places], at, both)


def cummax(x: Value, dim: int) -> Parts:
    """The largest so far, and its place."""
    return _extremes(x, dim, "cummax", False)


def cummin(x: Value, dim: int) -> Parts:
    """The least so far, and its place."""
    return _extremes(x, dim, "cummin", True)


def median(x: Value, dim: Optional[int] = None, keepdim: bool = False, without_nan: bool = False) -> Any:
    """The lower one of the middle elements, and with `dim` its place. NaN where one is there, or of
    those that are no NaN."""
    flat = x.flatten() if dim is None or not x.rank else x
    if dim is None and x.dtype in FLOATS and ex.same(flat.shape[0], 0):
        return x.function.full([], math.nan, x.dtype)
    at = 0 if flat.rank == 1 else method_axis(x, dim, "median")
    values, places = flat.sort(at)
    size = ex.constant(flat.shape[at])
    middle: Any = ex.simplify((size - 1) // 2)
    if x.dtype in FLOATS:
        count = flat.ne(flat).to_copy("i64").sum([at], True)  # NaN is sorted to the end
        left = count * -1 + ex.simplify(size)
        middle = (left - 1).maximum(0).div(2, rounding_mode="floor") if without_nan else count.gt(0).where(left.minimum(ex.simplify(size - 1)), middle)
        made = [part.gather(at, middle) for part in (values, places)]
    else:
        made = [part.slice(at, middle, ex.simplify(ex.constant(middle) + 1)) for part in (values, places)]
    if dim is None:
        return made[0].view([])
    return made if keepdim and x.rank else [part.select(at, 0) for part in made]


def mode(x: Value, dim: int = -1, keepdim: bool = False) -> Parts:
    """The most frequent element, the least of several, and the last place of it: sorted, it ends
    the first one of the longest runs."""
    if not x.rank:
        return [x, x.function.full([], 0, "i64")]
    at = method_axis(x, dim, "mode")
    values, places = x.sort(at)
    size = x.shape[at]
    order = x.function.arange(size).view([-1, *[1] * (x.rank - at - 1)])
    last = ex.simplify(ex.constant(size) - 1)
    before = shapes.cat([values.slice(at, 0, 1), values.slice(at, 0, last)], at)
    first = values.ne(before).where(order, 0)
    longest = (order - first.cummax(at)[0]).argmax(at, True)
    made = [part.gather(at, longest) for part in (values, places)]
    return made if keepdim else [part.select(at, 0) for part in made]


def prod(x: Value, dim: Optional[int] = None, keepdim: bool = False) -> Value:
    """Of 64 elements at most neighbours first, so that errors stay small; of more the last of their
    running products."""
    flat = x.view([-1]) if dim is None or not x.rank else x
    at = 0 if flat.rank == 1 else method_axis(x, dim, "prod")
    flat = flat if flat.dtype in FLOATS or flat.dtype == "i64" else flat.to_copy("i64")
    size = flat.shape[at]
    if ex.same(size, 0):
        parts = [flat.function.full([1 if d == at else s for d, s in enumerate(flat.shape)], 1, flat.dtype)]
    elif isinstance(size, int) and size <= 64:
        parts = [flat.slice(at, i, i + 1) for i in range(size)]
        while len(parts) > 1:
            parts = [parts[i] * parts[i + 1] if i + 1 < len(parts) else parts[i] for i in range(0, len(parts), 2)]
    else:
        parts = [cumprod(flat, at).slice(at, ex.simplify(ex.constant(size) - 1), size)]
    return parts[0] if keepdim and dim is not None and x.rank else parts[0].select(at, 0)


for _function in (cumprod, logcumsumexp, cummax, cummin, median, mode, prod):
    setattr(Value, _function.__name__, _function)
