"""Integers that follow from their place, and what is decided by comparing them: causal, window and
empty masks.

Models build masks out of arange, comparisons and `and`. A Pattern says what such a tensor has at
place (i0, i1, ...):

- Affine: offset + sum of coefficients[d] * i[d];
- Truth: the conjunction of conditions, each an Affine that is >= 0; none: everywhere true.

Patterns only say more about a value that is lowered all the same. What nothing uses in the end is
not compiled.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, Optional, Sequence, Tuple, Union

from . import expr as ex
from .expr import Size


@dataclass(frozen=True)
class Affine:
    coefficients: Tuple[int, ...]
    offset: Size = 0

    @property
    def is_constant(self) -> bool:
        return not any(self.coefficients)


@dataclass(frozen=True)
class Truth:
    rank: int
    conditions: Tuple[Affine, ...] = ()


Pattern = Union[Affine, Truth]


def constant(rank: int, value: Size) -> Affine:
    return Affine((0,) * rank, value)


def iota(start: Size = 0, step: int = 1) -> Affine:
    return Affine((step,), start)


def _padded(a: Affine, rank: int) -> Affine:
    return Affine((0,) * (rank - len(a.coefficients)) + a.coefficients, a.offset)


def add(a: Affine, b: Affine, sign: int = 1) -> Affine:
    rank = max(len(a.coefficients), len(b.coefficients))
    a, b = _padded(a, rank), _padded(b, rank)
    coefficients = tuple(x + sign * y for x, y in zip(a.coefficients, b.coefficients))
    return Affine(coefficients, ex.simplify(ex.constant(a.offset) + b.offset) if sign > 0 else ex.simplify(ex.constant(a.offset) - b.offset))


def compare(kind: str, a: Affine, b: Affine) -> Optional[Truth]:
    """a kind b, where it is a conjunction."""
    rank = max(len(a.coefficients), len(b.coefficients))
    one = constant(rank, 1)
    conditions = {
        "le": lambda: (add(b, a, -1),),
        "lt": lambda: (add(add(b, a, -1), one, -1),),
        "ge": lambda: (add(a, b, -1),),
        "gt": lambda: (add(add(a, b, -1), one, -1),),
        "eq": lambda: (add(a, b, -1), add(b, a, -1)),
    }.get(kind)
    return None if conditions is None else truth(rank, conditions())


def is_natural(a: Affine) -> bool:
    """Whether it is 0 or more everywhere."""
    return all(c >= 0 for c in a.coefficients) and isinstance(a.offset, int) and a.offset >= 0


def differs(a: Affine, b: Affine) -> Optional[bool]:
    """Whether a != b everywhere (True), nowhere (False), or neither is known."""
    apart = add(a, b, -1)
    return bool(apart.offset) if apart.is_constant and isinstance(apart.offset, int) else None


def truth(rank: int, conditions: Sequence[Affine]) -> Truth:
    """Conditions that always hold are left out."""
    left = [_padded(c, rank) for c in conditions if not is_natural(c)]
    return Truth(rank, tuple(dict.fromkeys(left)))


def both(a: Truth, b: Truth) -> Truth:
    return truth(max(a.rank, b.rank), a.conditions + b.conditions)


def mapped(pattern: Pattern, move: Dict[int, Optional[int]], rank: int) -> Pattern:
    """Old dimension d becomes move[d]; None: it is gone (of size 1, or place 0 is taken)."""

    def one(a: Affine) -> Affine:
        coefficients = [0] * rank
        for old, factor in enumerate(a.coefficients):
            target = move[old]
            if target is not None:
                coefficients[target] = factor
        return Affine(tuple(coefficients), a.offset)

    if isinstance(pattern, Affine):
        return one(pattern)
    return truth(rank, [one(c) for c in pattern.conditions])


def shifted(pattern: Pattern, axis: int, start: Size) -> Pattern:
    """What is there from place `start` of a dimension on."""

    def one(a: Affine) -> Affine:
        return Affine(a.coefficients, ex.simplify(ex.constant(a.offset) + ex.constant(start) * a.coefficients[axis]))

    if isinstance(pattern, Affine):
        return one(pattern)
    return truth(pattern.rank, [one(c) for c in pattern.conditions])


def looked_up(source: Pattern, indices: Sequence[Affine]) -> Optional[Pattern]:
    """source[indices]: one index for each dimension of the source, of one rank after
    broadcasting."""
    rank = max(len(i.coefficients) for i in indices)

    def one(a: Affine) -> Affine:
        total = constant(rank, a.offset)
        for factor, index in zip(a.coefficients, indices):
            for _ in range(abs(factor)):
                total = add(total, index, 1 if factor > 0 else -1)
        return total

    if isinstance(source, Affine):
        return one(source) if all(abs(f) <= 4 for f in source.coefficients) else None
    return truth(rank, [one(c) for c in source.conditions])


@dataclass(frozen=True)
class Mask:
    """What of the keys a query sees: those up to its own number + offset, or all of them."""

    causal: bool = False
    offset: Size = 0


def pattern_of(array: Any) -> Optional[Pattern]:
    """Of small numpy arrays: a constant, an arange along one dimension, or all true."""
    if array.size == 0 or array.size > 1 << 20 or array.dtype.kind not in "biu":
        return None
    if array.dtype.kind == "b":
        return Truth(array.ndim) if bool(array.all()) else _triangle_of(array)
    flat = array.reshape(-1)
    first = int(flat[0])
    if bool((flat == first).all()):
        return constant(array.ndim, first)
    long = [d for d, size in enumerate(array.shape) if size > 1]
    if len(long) != 1 or not bool((flat[1:] == flat[:-1] + 1).all()):
        return None
    return Affine(tuple(int(d == long[0]) for d in range(array.ndim)), first)


def _triangle_of(array: Any) -> Optional[Pattern]:
    """Of a mask whose last two dimensions are a triangle: key <= query + offset."""
    import numpy as np

    if array.ndim < 2 or not bool((array == array[(0,) * (array.ndim - 2)]).all()):
        return None
    square = array[(0,) * (array.ndim - 2)]
    offset = int(square[0].sum()) - 1
    rows, columns = np.arange(square.shape[0])[:, None], np.arange(square.shape[1])
    if not bool((square == (columns <= rows + offset)).all()):
        return None
    coefficients = [0] * array.ndim
    coefficients[-2:] = [1, -1]
    return Truth(array.ndim, (Affine(tuple(coefficients), offset),))


def attention_mask(pattern: Optional[Pattern], queries: Size, keys: Size) -> Optional[Mask]:
    """The mask that attention needs no tensor for; None: it needs one. The last two dimensions are
    query and key."""
    if not isinstance(pattern, Truth) or pattern.rank < 2:
        return None
    mask = Mask()
    for c in pattern.conditions:
        if any(c.coefficients[:-2]):
            return None
        if c.coefficients[-2:] != (1, -1) or mask.causal:
            return None
        mask = Mask(True, c.offset)
    return mask
