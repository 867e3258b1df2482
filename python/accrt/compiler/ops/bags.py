"""embedding_bag: rows of a table, gathered and reduced by bag. Made of lookups and sums."""

from __future__ import annotations

from typing import Optional

from ..expr import Size
from ..ir import IRError, Value
from . import elementwise, indexing, reductions, shapes  # noqa: F401  - the methods that are used here

MODES = ("sum", "mean", "max")


def embedding_bag(
    weight: Value, indices: Value, offsets: Optional[Value], mode: str = "sum", weights: Optional[Value] = None, padding: int = -1, size: Size = 1
) -> Value:
    """aten.embedding_bag.

    Args:
        weight: the table, [rows, width].
        indices: rows to take, [count].
        offsets: where each bag begins in `indices`, ascending, the first one 0; None: every bag has
            `size` indices.
        mode: "sum", "mean" or "max"; "max" only where bags have one size, and without `padding`.
        weights: what each taken row is multiplied by, [count].
        padding: an index that does not count; -1: there is none.
    Returns:
        [bags, width].
    """
    if mode not in MODES or mode == "max" and (offsets is not None or padding >= 0):
        raise IRError(f"function {weight.function.name!r}: embedding_bag of mode {mode!r} with bags of several sizes or with padding")
    counts = indices.ne(padding).to_copy(weight.dtype)
    rows = weight.embedding(indices)
    if weights is not None or padding >= 0:
        rows = rows * (counts if weights is None else weights * counts).unsqueeze(1)
    if offsets is None:
        rows, counts = (value.view([-1, size, *value.shape[1:]]) for value in (rows, counts))
        made = rows.amax([1]) if mode == "max" else rows.sum([1])
        counts = counts.sum([1])
    else:
        place = weight.function.arange(indices.shape[0]).unsqueeze(1)
        bags = place.ge(offsets.unsqueeze(0)).to_copy("i64").sum([1]) - 1  # of each index
        made, counts = (_by_bag(value, bags, offsets.shape[0]) for value in (rows, counts))
    return made / counts.maximum(1.0).unsqueeze(1) if mode == "mean" else made


def _by_bag(values: Value, bags: Value, count: Size) -> Value:
    """The sum of each bag's values."""
    zeros = values.function.full([count, *values.shape[1:]], 0.0, values.dtype)
    return zeros.scatter(bags, values, 0, True)
