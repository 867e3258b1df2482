"""Inverses, determinants and factors of small matrices of a fixed size, by elimination: each step
is an operation on all matrices of a batch."""

from __future__ import annotations

from typing import Any, List, Tuple

from .. import expr as ex
from ..declared import FLOATS
from ..ir import IRError, Value
from . import elementwise, functions, indexing, products, reductions, shapes  # noqa: F401  - the methods that are used here

#: Rows of the largest matrix: each is a step of its own.
MOST = 32


def _square(x: Value, what: str) -> int:
    size = x.shape[-1] if x.rank > 1 else None
    if not isinstance(size, int) or x.shape[-2] != size or not 0 < size <= MOST or x.dtype not in FLOATS:
        raise IRError(f"function {x.function.name!r}: {what} of {x.type}: matrices of floats with 1 to {MOST} rows and columns, known while compiling, have one")
    return size


def _eye(x: Value) -> Value:
    places = x.function.arange(x.shape[-1])
    return places.unsqueeze(1).eq(places.unsqueeze(0)).to_copy(x.dtype).expand(list(x.shape))


def _column(x: Value, at: int) -> Value:
    return x.slice(-1, at, at + 1)


def _row(x: Value, at: int) -> Value:
    return x.slice(-2, at, at + 1)


def _eliminated(a: Value, b: Any) -> Tuple[List[Value], List[Value], Any]:
    """Gauss and Jordan, with the largest element of each column as its pivot: the pivots, whether
    rows were exchanged for them, and b as it is then: the solution of a @ x = b."""
    size, rank = a.shape[-1], a.rank
    both = a if b is None else shapes.cat([a, b], rank - 1)
    rows = a.function.arange(size).unsqueeze(1)
    pivots, exchanged = [], []
    for k in range(size):
        column = _column(both, k)
        lost = rows.lt(k).where(-1.0, column.abs())
        found = lost.select(-1, 0).argmax(-1).unsqueeze(rank - 2).unsqueeze(rank - 1)  # [..., 1, 1]
        both = _exchanged(both, k, found)
        row = _row(both, k)
        pivot = _column(row, k)
        row = row / pivot
        factor = rows.eq(k).where(0.0, _column(both, k))
        both = rows.eq(k).where(row, both - factor * row)
        pivots.append(pivot.view(list(a.shape[:-2])))
        exchanged.append(found.ne(k).view(list(a.shape[:-2])))
    return pivots, exchanged, None if b is None else both.slice(-1, size, both.shape[-1])


def lu_factor(a: Value, pivot: bool = True) -> Tuple[Value, Value]:
    """Both triangles in one matrix, without the ones of the lower one, and which row each one was
    exchanged with, counted from 1: a vector of i32."""
    size = _square(a, "LU factors")
    if not pivot:
        raise IRError(f"function {a.function.name!r}: LU factors without rows exchanged")
    rows, rank = a.function.arange(size).unsqueeze(1), a.rank
    columns, pivots = a.function.arange(size).unsqueeze(0), []
    for k in range(size):
        lost = rows.lt(k).where(-1.0, _column(a, k).abs())
        found = lost.select(-1, 0).argmax(-1).unsqueeze(rank - 2).unsqueeze(rank - 1)
        a = _exchanged(a, k, found)
        # a column of zeros has nothing to eliminate
        largest = _column(_row(a, k), k)
        factor = largest.eq(0.0).where(0.0, _column(a, k) / largest)
        rest = columns.eq(k).where(factor, a - factor * _row(a, k))
        a = rows.gt(k).logical_and(columns.ge(k)).where(rest, a)
        pivots.append(found.view([*a.shape[:-2], 1]) + 1)
    return a, (shapes.cat(pivots, rank - 2) if size > 1 else pivots[0]).to_copy("i32")


def _exchanged(a: Value, k: int, other: Value) -> Value:
    """With row k in the place of another one, [..., 1, 1], and that one in its place."""
    rows = a.function.arange(a.shape[-2]).unsqueeze(1)
    picked = rows.eq(other)
    row = picked.where(a, 0.0).sum([-2], True)
    return rows.eq(k).where(row, picked.where(_row(a, k), a))


def lu(a: Value, pivot: bool = True) -> List[Value]:
    """p, l and u of p @ l @ u = a."""
    return lu_parts(*lu_factor(a, pivot))


def lu_parts(both: Value, pivots: Value, all_parts: bool = True) -> List[Value]:
    """p, l and u, of what lu_factor gives."""
    if not all_parts:
        raise IRError(f"function {both.function.name!r}: some of the LU factors alone")
    size, turned = _square(both, "LU factors"), _eye(both)
    for k in range(size):
        turned = _exchanged(turned, k, (pivots.slice(-1, k, k + 1) - 1).unsqueeze(pivots.rank))
    places = both.function.arange(size)
    below, on = places.unsqueeze(1).gt(places.unsqueeze(0)), places.unsqueeze(1).eq(places.unsqueeze(0))
    return [turned.transpose(-1, -2), on.where(1.0, below.where(both, 0.0)), below.where(0.0, both)]


def lu_solve(both: Value, pivots: Value, b: Value, left: bool = True, adjoint: bool = False) -> Value:
    """x of a @ x = b (or x @ a = b), where lu_factor gave both and pivots of a; `adjoint`: of a's
    transposed."""
    if not left:
        return lu_solve(both, pivots, b.transpose(-1, -2), True, not adjoint).transpose(-1, -2)
    p, lower, upper = lu_parts(both, pivots)
    if adjoint:
        b = solve_triangular(upper.transpose(-1, -2), b, False)
        return p.matmul(solve_triangular(lower.transpose(-1, -2), b, True, True, True))
    return solve_triangular(upper, solve_triangular(lower, p.transpose(-1, -2).matmul(b), False, True, True), True)


def solve(a: Value, b: Value, left: bool = True) -> Value:
    """x of a @ x = b, or of x @ a = b; b is a matrix, or a vector for each matrix."""
    _square(a, "a solution")
    if b.rank == 1 or (b.rank == a.rank - 1 and ex.same_shape(tuple(b.shape), tuple(a.shape[:-1]))):
        return solve(a, b.unsqueeze(b.rank)).select(-1, 0)
    if not left:
        return solve(a.transpose(-1, -2), b.transpose(-1, -2)).transpose(-1, -2)
    lead = shapes_of(a, b)
    a, b = a.expand([*lead, *a.shape[-2:]]), b.expand([*lead, *b.shape[-2:]])
    return _eliminated(a, b)[2]


def shapes_of(a: Value, b: Value) -> List[Any]:
    """The leading dimensions of both."""
    from .schema import broadcast

    return list(broadcast([a.shape[:-2], b.shape[:-2]])) if a.rank > 2 or b.rank > 2 else []


def inverse(a: Value) -> Value:
    """The inverse of each matrix; of one without, infinities and NaN."""
    _square(a, "the inverse")
    return solve(a, _eye(a))


def determinant(a: Value) -> Value:
    """The product of the pivots, whose sign each exchange turns."""
    _square(a, "the determinant")
    # a column of zeros ends it: 0, where its pivot would give NaN
    made = a.function.full(list(a.shape[:-2]), 1.0, a.dtype)
    pivots, exchanged, _none = _eliminated(a, None)
    for pivot, turn in zip(pivots, exchanged):
        made = made.eq(0.0).where(made, made * turn.where(-pivot, pivot))
    return made


def sign_and_logarithm(a: Value) -> List[Value]:
    """The determinant's sign, and the logarithm of its size."""
    _square(a, "the determinant")
    sign, total = (a.function.full(list(a.shape[:-2]), number, a.dtype) for number in (1.0, 0.0))
    pivots, exchanged, _none = _eliminated(a, None)
    for pivot, turn in zip(pivots, exchanged):
        over = sign.eq(0.0)
        sign, total = over.where(sign, sign * turn.where(-pivot, pivot).sign()), over.where(total, total + pivot.abs().log())
    return [sign, total]


def cholesky(a: Value, upper: bool = False) -> Value:
    """The triangle l of which a is l @ l^T; NaN where there is none."""
    size = _square(a, "the Cholesky factor")
    a = a.transpose(-1, -2) if upper else a
    rows, rest, columns = a.function.arange(size).unsqueeze(1), a, []
    for k in range(size):
        column = rows.ge(k).where(_column(rest, k), 0.0) / _column(_row(rest, k), k).sqrt()
        rest = rest - column * column.transpose(-1, -2)
        columns.append(column)
    made = shapes.cat(columns, a.rank - 1) if size > 1 else columns[0]
    return made.transpose(-1, -2) if upper else made


def solve_triangular(a: Value, b: Value, upper: bool, left: bool = True, unitriangular: bool = False) -> Value:
    """x of a @ x = b (or x @ a = b), of a's one triangle alone."""
    size = _square(a, "a solution")
    if not left:
        return solve_triangular(a.transpose(-1, -2), b.transpose(-1, -2), not upper, True, unitriangular).transpose(-1, -2)
    lead = shapes_of(a, b)
    a, rest = a.expand([*lead, *a.shape[-2:]]), b.expand([*lead, *b.shape[-2:]])
    rows, made = a.function.arange(size).unsqueeze(1), {}
    for k in reversed(range(size)) if upper else range(size):
        made[k] = _row(rest, k) if unitriangular else _row(rest, k) / _column(_row(a, k), k)
        rest = (rows.lt(k) if upper else rows.gt(k)).where(rest - _column(a, k) * made[k], rest)
    return shapes.cat([made[k] for k in range(size)], rest.rank - 2) if size > 1 else made[0]


def cholesky_inverse(a: Value, upper: bool = False) -> Value:
    """The inverse of l @ l^T, where a is l, or l^T."""
    _square(a, "the inverse")
    return cholesky_solve(_eye(a), a, upper)


def cholesky_solve(b: Value, a: Value, upper: bool = False) -> Value:
    """x of l @ l^T @ x = b, where a is l, or l^T."""
    first, second = (a.transpose(-1, -2), a) if upper else (a, a.transpose(-1, -2))
    return solve_triangular(second, solve_triangular(first, b, False), True)
