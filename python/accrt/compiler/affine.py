"""Integers that follow from their place, and what is decided by comparing them: causal, window and
empty masks.

Models build masks out of arange, comparisons and `and`. A Pattern says what such a tensor has at
place (i0, i1, ...):

- Affine: offset + sum of coefficients[d] * i[d]; Distance: the absolute value of such a one;
- Truth: the conjunction of conditions, each an Affine that is >= 0, and of factors: tensors of
  truth, such as a mask of padding, of the same rank and of size 1 where they do not vary. None of
  both: everywhere true.

Patterns only say more about a value that is lowered all the same. What nothing uses in the end is
not compiled.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Sequence, Tuple, Union

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
class Distance:
    of: Affine


@dataclass(frozen=True)
class Truth:
    rank: int
    conditions: Tuple[Affine, ...] = ()
    factors: Tuple[Any, ...] = ()


Pattern = Union[Affine, Distance, Truth]


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


def compare(kind: str, a: Pattern, b: Pattern) -> Optional[Truth]:
    """a kind b, where it is a conjunction."""
    if isinstance(a, Distance) and isinstance(b, Affine) and kind in ("le", "lt"):
        minus = add(constant(0, 0), a.of, -1)
        return both(compare(kind, a.of, b), compare(kind, minus, b))
    if not isinstance(a, Affine) or not isinstance(b, Affine):
        return compare({"ge": "le", "gt": "lt"}[kind], b, a) if isinstance(b, Distance) and kind in ("ge", "gt") else None
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


def truth(rank: int, conditions: Sequence[Affine], factors: Sequence[Any] = ()) -> Truth:
    """Conditions that always hold are left out."""
    left = [_padded(c, rank) for c in conditions if not is_natural(c)]
    wide = [f if f.rank == rank else f.view([1] * (rank - f.rank) + list(f.shape)) for f in factors]
    return Truth(rank, tuple(dict.fromkeys(left)), tuple({id(f): f for f in wide}.values()))


def both(a: Truth, b: Truth) -> Truth:
    return truth(max(a.rank, b.rank), a.conditions + b.conditions, a.factors + b.factors)


def factor(value: Any) -> Truth:
    """Of a tensor of truth of which nothing more is known: as small as before it was expanded."""
    while value.op is not None and value.op.name == "aten.expand" and value.op.operands[0].rank == value.rank:
        value = value.op.operands[0]
    return Truth(value.rank, (), (value,))


def mapped(pattern: Pattern, move: Dict[int, Optional[int]], rank: int) -> Optional[Pattern]:
    """Old dimension d becomes move[d]; None: it is gone (of size 1, or place 0 is taken)."""

    def one(a: Affine) -> Affine:
        coefficients = [0] * rank
        for old, factor in enumerate(a.coefficients):
            target = move[old]
            if target is not None:
                coefficients[target] = factor
        return Affine(tuple(coefficients), a.offset)

    if not isinstance(pattern, Truth):
        return one(pattern) if isinstance(pattern, Affine) else Distance(one(pattern.of))
    factors = [_moved(f, move, rank) for f in pattern.factors]
    return None if None in factors else truth(rank, [one(c) for c in pattern.conditions], factors)


def _moved(factor: Any, move: Dict[int, Optional[int]], rank: int) -> Optional[Any]:
    if any(target is None and not ex.same(factor.shape[d], 1) for d, target in move.items()):
        return None
    kept = sorted((target, d) for d, target in move.items() if target is not None)
    shape: List[Size] = [1] * rank
    for target, d in kept:
        shape[target] = factor.shape[d]
    order = [d for _target, d in kept] + [d for d, target in move.items() if target is None]
    made = factor if order == list(range(factor.rank)) else factor.permute(order)
    return made if ex.same_shape(tuple(shape), made.shape) else made.view(shape)


def shifted(pattern: Pattern, axis: int, start: Size) -> Optional[Pattern]:
    """What is there from place `start` of a dimension on."""

    def one(a: Affine) -> Affine:
        return Affine(a.coefficients, ex.simplify(ex.constant(a.offset) + ex.constant(start) * a.coefficients[axis]))

    if not isinstance(pattern, Truth):
        return one(pattern) if isinstance(pattern, Affine) else Distance(one(pattern.of))
    if not all(ex.same(f.shape[axis], 1) for f in pattern.factors):
        return None
    return truth(pattern.rank, [one(c) for c in pattern.conditions], pattern.factors)


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
    if not isinstance(source, Truth) or source.factors:
        return None
    return truth(rank, [one(c) for c in source.conditions])


@dataclass(frozen=True)
class Mask:
    """What of the keys a query sees: those up to its own number + offset, or all of them; from its
    own number + first on, or all before; and of these the ones that `tensor` has, if any."""

    causal: bool = False
    offset: Size = 0
    first: Optional[Size] = None
    tensor: Optional[Any] = None


def pattern_of(array: Any) -> Optional[Pattern]:
    """Of small numpy arrays: a constant, an arange along one dimension, or all true."""
    if array.size == 0 or array.size > 1 << 20 or array.dtype.kind not in "biu":
        return None
    if array.dtype.kind == "b":
        return Truth(array.ndim) if bool(array.all()) else _band_of(array)
    flat = array.reshape(-1)
    first = int(flat[0])
    if bool((flat == first).all()):
        return constant(array.ndim, first)
    long = [d for d, size in enumerate(array.shape) if size > 1]
    if len(long) != 1 or not bool((flat[1:] == flat[:-1] + 1).all()):
        return None
    return Affine(tuple(int(d == long[0]) for d in range(array.ndim)), first)


def _band_of(array: Any) -> Optional[Pattern]:
    """Of a mask whose last two dimensions are a band: query + first <= key <= query + last."""
    import numpy as np

    if array.ndim < 2 or not array.any() or not bool((array == array[(0,) * (array.ndim - 2)]).all()):
        return None
    square = array[(0,) * (array.ndim - 2)]
    apart = np.arange(square.shape[1]) - np.arange(square.shape[0])[:, None]
    first, last = int(apart[square].min()), int(apart[square].max())
    if not bool((square == ((apart >= first) & (apart <= last))).all()):
        return None
    before = [0] * (array.ndim - 2)
    limits = [Affine((*before, 1, -1), last)] if last < apart.max() else []
    return Truth(array.ndim, tuple(limits + ([Affine((*before, -1, 1), -first)] if first > apart.min() else [])))


def attention_mask(pattern: Optional[Pattern], queries: Size, keys: Size) -> Optional[Mask]:
    """The mask whose limits attention needs no tensor for; None: it needs one for all. The last two
    dimensions are query and key."""
    if not isinstance(pattern, Truth) or pattern.rank < 2:
        return None
    last: Optional[Size] = None
    first: Optional[Size] = None
    for c in pattern.conditions:
        if any(c.coefficients[:-2]) or c.coefficients[-2:] not in ((1, -1), (-1, 1)):
            return None
        if c.coefficients[-1] < 0:  # key <= query + offset
            last = c.offset if last is None else ex.minimum(last, c.offset)
        else:  # key >= query - offset
            least = ex.simplify(ex.constant(0) - c.offset)
            first = least if first is None else ex.maximum(first, least)
    tensor = None
    for f in pattern.factors:
        tensor = f if tensor is None else tensor.logical_and(f)
    return Mask(last is not None, 0 if last is None else last, first, tensor)
