"""What several elements that go to one place make of it: sums, means, products and extremes."""

from __future__ import annotations

from typing import Tuple

from ..declared import FLOATS
from ..expr import same
from ..ir import IRError, Value
from .ordering import placed
from .scans import scanned


def _cut(x: Value, index: Value) -> Value:
    """The part of a tensor that an index of that shape goes through."""
    for d, size in enumerate(index.shape):
        x = x if same(x.shape[d], size) else x.slice(d, 0, size)
    return x


def largest_last(source: Value, index: Value, dim: int, least: bool) -> Tuple[Value, Value]:
    """Elements of a dimension and their places in such an order that the last one for each place is
    the largest (or the least), which is the one that a scatter keeps; NaN comes after all."""
    source = _cut(source, index)

    def turned(x: Value) -> Value:
        return x if not least else -x if x.dtype in FLOATS else x.bitwise_not()

    values, order = turned(source).sort(dim)
    return index.gather(dim, order), turned(values)


def _nothing_where(x: Value, at: int, index: Value) -> Value:
    """Whether no element goes to a place of x."""
    function = x.function
    there = function.full([], 0, "u8").expand(list(index.shape))
    return placed(function.full([], 1, "u8").expand(list(x.shape)), at, index, there, False).ne(0)


def _products(x: Value, at: int, index: Value, source: Value) -> Value:
    """For each place of x the product of the elements that go there, 1 where none does. Elements
    are sorted by their places, so the last product of each place is that of all of its elements."""
    # what lies between may be beyond the range of 16 bits
    kind = "f32" if x.dtype in ("f16", "bf16") else x.dtype
    places, order = index.to_copy("i64").sort(at)
    factors = _cut(source, index).gather(at, order)
    factors = factors if factors.dtype == kind else factors.to_copy(kind)
    made, places = scanned([factors, places], at, lambda a, b: [a[1].eq(b[1]).where(a[0] * b[0], b[0]), b[1]])
    ones = x.function.full([], 1, kind).expand(list(x.shape))
    product = placed(ones, at, places, made, False)
    return product if kind == x.dtype else product.to_copy(x.dtype)


def reduced(x: Value, at: int, index: Value, source: Value, reduce: str, include_self: bool) -> Value:
    """aten.scatter_reduce: sums, means, products and extremes of what goes to each place."""
    if x.rank == 0:
        index, source = (item if item.rank else item.unsqueeze(0) for item in (index, source))
        return reduced(x.unsqueeze(0), 0, index, source, reduce, include_self).select(0, 0)
    if x.dtype == "bool":
        of_truth = {"sum": "amax", "prod": "amin"}.get(reduce, reduce)
        return reduced(x.to_copy("i32"), at, index, source.to_copy("i32"), of_truth, include_self).to_copy("bool")
    if reduce == "mean":
        total = reduced(x, at, index, source, "sum", include_self)
        ones = x.function.full([], 1, x.dtype).expand(list(index.shape))
        count = placed(x.function.full([], int(include_self), x.dtype).expand(list(x.shape)), at, index, ones, True).maximum(1)
        return total / count if x.dtype in FLOATS else total.div(count, rounding_mode="floor")
    if reduce == "sum":
        nothing = x.function.full([], 0, x.dtype).expand(list(index.shape))
        return placed(x if include_self else placed(x, at, index, nothing, False), at, index, source, True)
    if reduce == "prod":
        made = _products(x, at, index, source)
        return x * made if include_self else _nothing_where(x, at, index).where(x, made)
    if reduce not in ("amax", "amin"):
        raise IRError(f"function {x.function.name!r}: scatter_reduce by {reduce!r}")
    made = placed(x, at, *largest_last(source, index, at, reduce == "amin"), False)
    return made if not include_self else x.maximum(made) if reduce == "amax" else x.minimum(made)
