"""Lowerings that are made of others: masks as places, parts of matrices, windows, functions of one or two numbers."""

from __future__ import annotations

import math
import string
from typing import Any, List, Sequence, Tuple

from ..compiler import Value
from ..compiler import expr as ex
from .ops_math import cast, mul, var
from .table import lowers
from .values import Unsupported


@lowers("aten.masked_scatter.default")
def masked_scatter(lo: Any, x: Any, mask: Any, source: Any) -> Any:
    """The n-th place of the mask takes the n-th element."""
    x, source = lo.value(x), cast(lo, source, lo.dtype(x)).flatten()
    mask = lo.value(mask).expand(list(x.shape))
    number = mask.to_copy("i64").flatten().cumsum(0) - 1
    last = ex.simplify(ex.constant(source.shape[0]) - 1)
    return mask.where(source.index_select(0, number.maximum(0).minimum(last)).view(list(x.shape)), x)


def put_mask(lo: Any, x: Value, mask: Any, at: int, values: Value, add: bool) -> Value:
    """x[:, mask] = values, or +=, where the values do not depend on how many places the mask has."""
    mask = lo.value(mask)
    after = x.rank - at - mask.rank
    if values.rank > after:
        if not ex.same(values.shape[values.rank - after - 1], 1):
            raise Unsupported("a mask as places of several values: how many, is known to the call alone")
        lead = values.rank - after - 1
        values = values.view([*values.shape[:lead], *[1] * mask.rank, *values.shape[lead + 1 :]])
    places = mask.view([*[1] * at, *mask.shape, *[1] * after])
    values = cast(lo, values, x.dtype)
    return places.where(x + values if add else values, x)


@lowers("aten.scatter_reduce.two")
def scatter_reduce(lo: Any, x: Any, dim: int, index: Any, source: Any, reduce: str, include_self: bool = True) -> Any:
    if reduce != "sum":
        raise Unsupported(f"scatter_reduce by {reduce!r}")
    from .ops_nn import scattered

    return scattered(lo, x if include_self else scattered(lo, x, dim, index, 0, False), dim, index, source, True)


@lowers("aten.var_mean.correction")
def var_mean(lo: Any, x: Any, dim: Any = None, correction: Any = None, keepdim: bool = False) -> Any:
    x = lo.value(x)
    dims = None if dim is None or not len(dim) else [lo.axis(x, d) for d in dim]
    return [var(lo, x, dims, True, correction, keepdim), x.mean(dims, keepdim)]


@lowers("aten.diagonal.default")
def diagonal(lo: Any, x: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    x = lo.value(x)
    first, second = lo.axis(x, dim1), lo.axis(x, dim2)
    rest = [d for d in range(x.rank) if d not in (first, second)]
    x = x.permute([*rest, first, second])
    rows, columns = (ex.constant(size) for size in x.shape[-2:])
    count = ex.minimum(rows, columns - offset) if offset >= 0 else ex.minimum(rows + offset, columns)
    start = ex.constant(offset) if offset >= 0 else columns * -offset
    places = lo.function.arange(ex.simplify(count)) * ex.simplify(columns + 1) + ex.simplify(start)
    return x.flatten(-2).index_select(x.rank - 2, places)


@lowers("aten.unfold.default")
def unfold(lo: Any, x: Any, dim: int, size: int, step: int) -> Any:
    """Windows along a dimension; the places in a window are the last dimension."""
    x = lo.value(x)
    at = lo.axis(x, dim)
    count = ex.simplify((ex.constant(x.shape[at]) - size) // step + 1)
    places = (lo.function.arange(count) * step).unsqueeze(1) + lo.function.arange(size)
    made = x.index_select(at, places.flatten()).view([*x.shape[:at], count, size, *x.shape[at + 1 :]])
    return made.permute([*(d for d in range(made.rank) if d != at + 1), at + 1])


@lowers("aten.prod.default", "aten.prod.dim_int")
def prod(lo: Any, x: Any, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Any:
    x = lo.value(x)
    flat, at = (x.flatten(), 0) if dim is None else (x, lo.axis(x, dim))
    size = flat.shape[at] if flat.rank else 1
    if dtype is not None or not isinstance(size, int) or not 0 < size <= 64:
        raise Unsupported(f"a product of {size} elements")
    parts: List[Value] = [flat.select(at, i) for i in range(size)] if flat.rank else [flat]
    parts = [cast(lo, part, "i64") if part.dtype in ("bool", "u8", "i8", "i32", "u32") else part for part in parts]
    while len(parts) > 1:  # neighbours first: small errors
        parts = [mul(lo, *parts[i : i + 2]) if i + 1 < len(parts) else parts[i] for i in range(0, len(parts), 2)]
    return parts[0].unsqueeze(at) if keepdim and dim is not None else parts[0]


@lowers("aten.kthvalue.default")
def kthvalue(lo: Any, x: Any, k: int, dim: int = -1, keepdim: bool = False) -> Any:
    at = lo.axis(x, dim)
    return [part.slice(at, k - 1, k) if keepdim else part.select(at, k - 1) for part in lo.value(x).sort(at)]


# ---- functions


@lowers("aten.log10.default")
def log10(lo: Any, x: Any) -> Any:
    return lo.value(x).log() * (1 / math.log(10))


@lowers("aten.exp2.default")
def exp2(lo: Any, x: Any) -> Any:
    return lo.value(2.0) ** lo.value(x)


@lowers("aten.cosh.default")
def cosh(lo: Any, x: Any) -> Any:
    x = lo.value(x)
    return (x.exp() + (-x).exp()) * 0.5


@lowers("aten.sinh.default")
def sinh(lo: Any, x: Any) -> Any:
    return lo.value(x).tanh() * cosh(lo, x)


@lowers("aten.hypot.default")
def hypot(lo: Any, a: Any, b: Any) -> Any:
    """Divided by the larger one, so that no square overflows."""
    a, b = lo.value(a).abs(), lo.value(b).abs()
    top, low = a.maximum(b), a.minimum(b)
    ratio = top.gt(0.0).where(low / top, 0.0)
    return top * (ratio * ratio + 1.0).sqrt()


def permuted(x: Value, indices: Sequence[Any], axes: Sequence[int]) -> Any:
    """Indices with whole dimensions between them: torch puts what they give first."""
    return x.permute([*axes, *(d for d in range(x.rank) if d not in axes)]), [indices[d] for d in axes]


# ---- einsum


def _spelled(lo: Any, equation: str, operands: Sequence[Any]) -> Tuple[List[str], str]:
    """The operands' letters and the result's, with a letter for each dimension of an ellipsis."""
    terms, arrow, result = equation.replace(" ", "").partition("->")
    letters = terms.split(",")
    hidden = [lo.rank(x) - len(term) + 3 if "..." in term else 0 for term, x in zip(letters, operands)]
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
        raise Unsupported("einsum with dimensions that broadcast")
    batch, inner = [c for c in both if c in kept], [c for c in both if c not in kept]
    rows, columns = [c for c in left if c not in right], [c for c in right if c not in left]

    def block(value: Value, term: str, *groups: List[str]) -> Value:
        order = [c for group in groups for c in group]
        return value.permute([term.index(c) for c in order]).view([*(size[c] for c in groups[0]), *(ex.product(size[c] for c in g) for g in groups[1:])])

    made = block(x, left, batch, rows, inner).matmul(block(y, right, batch, inner, columns))
    order = batch + rows + columns
    return made.view([size[c] for c in order]), "".join(order)


@lowers("aten.einsum.default")
def einsum(lo: Any, equation: str, operands: Sequence[Any], path: Any = None) -> Any:
    """From left to right: each letter that no later operand and not the result has is summed as soon as it can be."""
    letters, result = _spelled(lo, equation, operands)
    made, have = None, ""
    for i, (term, operand) in enumerate(zip(letters, operands)):
        x = lo.value(operand)
        for c in [c for c in dict.fromkeys(term) if term.count(c) > 1]:
            while term.count(c) > 1:
                first = term.index(c)
                second = term.index(c, first + 1)
                x, term = diagonal(lo, x, 0, first, second), term[:first] + term[first + 1 : second] + term[second + 1 :] + c
        kept = result + "".join(letters[i + 1 :])
        alone = [d for d, c in enumerate(term) if c not in kept and c not in have]
        if alone:
            x, term = x.sum(alone), "".join(c for d, c in enumerate(term) if d not in alone)
        made, have = (x, term) if made is None else _product(made, have, x, term, kept)
    assert made is not None
    return made.permute([have.index(c) for c in result]) if have != result else made
