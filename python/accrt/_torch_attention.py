"""Attention whose query, keys and values have different dimensions before the last two, for
accrt.from_torch: torch expands those that are missing or 1 as a product of matrices does."""

from __future__ import annotations

from typing import Any, List, Sequence

from .compiler import expr as ex


def together(operands: Sequence[Any], grouped: bool) -> List[Any]:
    """Query, keys and values of the same rank, with the same sizes before the last two dimensions.
    What attention reads without a copy stays: of four dimensions, one head of keys and values for
    all heads of the query, and, where they are grouped, any number of them."""
    rank = max(x.rank for x in operands)
    if rank < 3 or all(x.rank == rank and ex.same_shape(x.shape[: rank - 2 - grouped], operands[0].shape[: rank - 2 - grouped]) for x in operands) and grouped:
        return list(operands)
    wide = [x if x.rank == rank else x.view([*[1] * (rank - x.rank), *x.shape]) for x in operands]
    wanted = [_size([x.shape[d] for x in wide]) for d in range(rank - 2)]
    one_head = rank == 4 and not grouped and all(ex.same(x.shape[1], 1) for x in wide[1:])
    made = []
    for at, x in enumerate(wide):
        leading = list(wanted)
        if grouped or one_head and at:
            leading[-1] = x.shape[rank - 3]
        shape = [*leading, *x.shape[-2:]]
        made.append(x if ex.same_shape(shape, x.shape) else x.expand(shape))
    return made


def _size(sizes: Sequence[Any]) -> Any:
    return next((size for size in sizes if not ex.same(size, 1)), 1)
