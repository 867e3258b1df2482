"""einsum, diagonal and unfold: made of products, sums and lookups."""

from __future__ import annotations

import string
from typing import List, Optional, Sequence, Tuple

from .. import expr as ex
from ..ir import IRError, Value
from . import elementwise, indexing, products, reductions, shapes  # noqa: F401  - the methods that are used here
from .schema import method_axis


def _diagonal(x: Value, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Value:
    """aten.diagonal: the elements whose places in two dimensions are `offset` apart, as the last
    dimension."""
    first, second = method_axis(x, dim1, "diagonal"), method_axis(x, dim2, "diagonal")
    rest = [d for d in range(x.rank) if d not in (first, second)]
    x = x.permute([*rest, first, second])
    rows, columns = (ex.constant(size) for size in x.shape[-2:])
    count = ex.minimum(rows, columns - offset) if offset >= 0 else ex.minimum(rows + offset, columns)
    start = ex.constant(offset) if offset >= 0 else columns * -offset
    places = x.function.arange(ex.simplify(count)) * ex.simplify(columns + 1) + ex.simplify(start)
    return x.flatten(-2).index_select(x.rank - 2, places)


def _unfold(x: Value, dimension: int, size: int, step: int) -> Value:
    """aten.unfold: windows along a dimension; the places in a window are the last dimension."""
    at = method_axis(x, dimension, "unfold")
    count = ex.simplify((ex.constant(x.shape[at]) - size) // step + 1)
    places = (x.function.arange(count) * step).unsqueeze(1) + x.function.arange(size)
    made = x.index_select(at, places.flatten()).view([*x.shape[:at], count, size, *x.shape[at + 1 :]])
    return made.permute([*(d for d in range(made.rank) if d != at + 1), at + 1])


def cartesian(values: Sequence[Value]) -> Value:
    """aten.cartesian_prod: rows of one element of each, the last one first to change."""
    shape = [x.shape[0] for x in values]
    each = [x.view([-1 if d == at else 1 for d in range(len(shape))]).expand(shape).flatten().unsqueeze(1) for at, x in enumerate(values)]
    return shapes.cat(each, 1) if len(each) > 1 else values[0]


Value.diagonal, Value.unfold = _diagonal, _unfold


def _spelled(equation: str, operands: Sequence[Value]) -> Tuple[List[str], str]:
    """The operands' letters and the result's, with a letter for each dimension of an ellipsis."""
    terms, arrow, result = equation.replace(" ", "").partition("->")
    letters = terms.split(",")
    hidden = [x.rank - len(term) + 3 if "..." in term else 0 for term, x in zip(letters, operands)]
    extra = "".join(c for c in string.ascii_letters if c not in equation)[: max(hidden)]
    letters = [term.replace("...", extra[len(extra) - count :]) for term, count in zip(letters, hidden)]
    every = "".join(letters)
    implied = extra + "".join(sorted(c for c in set(every) - set(extra) if every.count(c) == 1))
    return letters, result.replace("...", extra) if arrow else implied


def _product(x: Value, left: str, y: Value, right: str, kept: str) -> Tuple[Value, str]:
    """A product over the letters that nothing else needs, batched over those that both have."""
    size = {**dict(zip(left, x.shape)), **dict(zip(right, y.shape))}
    both = [c for c in left if c in right]
    if any(not ex.same(x.shape[left.index(c)], size[c]) for c in both):
        raise IRError(f"function {x.function.name!r}: einsum with dimensions that broadcast")
    batch, inner = [c for c in both if c in kept], [c for c in both if c not in kept]
    rows, columns = [c for c in left if c not in right], [c for c in right if c not in left]

    def block(value: Value, term: str, *groups: List[str]) -> Value:
        order = [c for group in groups for c in group]
        return value.permute([term.index(c) for c in order]).view([*(size[c] for c in groups[0]), *(ex.product(size[c] for c in g) for g in groups[1:])])

    made = block(x, left, batch, rows, inner).matmul(block(y, right, batch, inner, columns))
    order = batch + rows + columns
    return made.view([size[c] for c in order]), "".join(order)


def einsum(equation: str, operands: Sequence[Value]) -> Value:
    """aten.einsum, from left to right: each letter that no later operand and not the result has is
    summed as soon as it can be."""
    letters, result = _spelled(equation, operands)
    made: Optional[Value] = None
    have = ""
    for i, (term, x) in enumerate(zip(letters, operands)):
        for c in [c for c in dict.fromkeys(term) if term.count(c) > 1]:
            while term.count(c) > 1:
                first = term.index(c)
                second = term.index(c, first + 1)
                x, term = x.diagonal(0, first, second), term[:first] + term[first + 1 : second] + term[second + 1 :] + c
        kept = result + "".join(letters[i + 1 :])
        alone = [d for d, c in enumerate(term) if c not in kept and c not in have]
        if alone:
            x, term = x.sum(alone), "".join(c for d, c in enumerate(term) if d not in alone)
        made, have = (x, term) if made is None else _product(made, have, x, term, kept)
    assert made is not None
    return made.permute([have.index(c) for c in result]) if have != result else made


def bilinear(x: Value, y: Value, weight: Value, bias: Optional[Value] = None) -> Value:
    """[..., o]: the sum over i and j of x[..., i] * weight[o, i, j] * y[..., j]."""
    if x.rank == 1:
        return bilinear(x.unsqueeze(0), y.unsqueeze(0), weight, bias).select(0, 0)
    outputs, first, second = weight.shape
    each = x.matmul(weight.permute([1, 0, 2]).view([first, ex.product([outputs, second])])).view([*x.shape[:-1], outputs, second])
    made = (each * y.unsqueeze(y.rank - 1)).sum([-1])
    return made if bias is None else made + bias
