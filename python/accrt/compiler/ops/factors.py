"""Eigenvalues of symmetric matrices, singular values and QR factors of small matrices, and the
exponential of matrices.

Eigenvalues and singular values come from Jacobi's rotations: a step turns half as many pairs of
columns as there are columns, all at once, and moves the columns so that the next step meets other
pairs. After one step less than there are columns each pair has met, and all are where they were.
"""

from __future__ import annotations

import math
from typing import Any, List, Optional, Tuple

from .. import expr as ex
from ..declared import FLOATS
from ..ir import IRError, Value
from . import elementwise, functions, indexing, linear, ordering, products, reductions, shapes  # noqa: F401  - the methods that are used here


def _sweeps(size: int) -> int:
    """How often each pair is met. The error is squared by each of the last ones."""
    return 5 + math.ceil(math.log2(size))


def _need(x: Value, what: str, least: int) -> None:
    small = x.rank > 1 and isinstance(least, int) and 0 < least <= linear.MOST
    if not small or x.dtype not in FLOATS:
        raise IRError(
            f"function {x.function.name!r}: {what} of {x.type}: matrices of floats whose smaller side is 1 to {linear.MOST}, known while compiling, have them"
        )


def _smaller(x: Value) -> Any:
    """The smaller side, or None where it is not known."""
    known = [size for size in x.shape[-2:] if isinstance(size, int)]
    return min(known) if len(known) == 2 else known[0] if known and known[0] <= linear.MOST else None


def _padded(x: Value, axis: int) -> Value:
    """With one more place of zeros where their number is odd: it turns with none."""
    size = x.shape[axis]
    return shapes.cat([x, x.slice(axis, 0, 1) * 0.0], axis) if size % 2 else x


def _moved(first: Value, second: Value, axis: int) -> Value:
    """The two halves, with all but the first place moved on by one around them."""
    half = first.shape[axis]
    if half == 1:
        return shapes.cat([first, second], axis)
    pieces = [first.slice(axis, 0, 1), second.slice(axis, 0, 1), *([first.slice(axis, 1, half - 1)] if half > 2 else []),
              second.slice(axis, 1, half), first.slice(axis, half - 1, half)]  # fmt: skip
    return shapes.cat(pieces, axis)


def _turned(x: Value, axis: int, cos: Value, sin: Value) -> Value:
    """x with its halves turned by angles, and moved on."""
    half = x.shape[axis] // 2
    first, second = x.slice(axis, 0, half), x.slice(axis, half, 2 * half)
    return _moved(first * cos - second * sin, first * sin + second * cos, axis)


def _angle(p: Value, q: Value, both: Value) -> Tuple[Value, Value]:
    """Cosine and sine of the angle that makes [[p, both], [both, q]] diagonal."""
    none = both.eq(0.0)
    ratio = (q - p) / (none.where(1.0, both) * 2.0)
    tangent = none.where(0.0, ratio.lt(0.0).where(-1.0, 1.0) / (ratio.abs() + (ratio * ratio + 1.0).sqrt()))
    cos = (tangent * tangent + 1.0).rsqrt()
    return cos, cos * tangent


def _scale(x: Value) -> Value:
    """The largest element's size, by which squares neither overflow nor vanish; 1 of zeros."""
    most = x.abs().amax([-2, -1], True)
    return most.eq(0.0).where(1.0, most)


def _mirrored(a: Value, upper: bool) -> Value:
    """The symmetric matrix that one triangle says."""
    rows = a.function.arange(a.shape[-1])
    own = rows.unsqueeze(1).le(rows.unsqueeze(0)) if upper else rows.unsqueeze(1).ge(rows.unsqueeze(0))
    return own.where(a, a.transpose(-1, -2))


def eigh(a: Value, upper: bool = False, vectors: bool = True) -> List[Value]:
    """Eigenvalues of symmetric matrices, of whose one triangle is read, from the least to the
    largest; and the vectors as columns, in each of which the largest element is positive."""
    size = linear._square(a, "eigenvalues")
    a = _mirrored(a, upper)
    if size == 1:
        return [a.select(-1, 0), a * 0.0 + 1.0]
    scale = _scale(a)
    whole = _padded(_padded(a / scale, a.rank - 1), a.rank - 2)
    wide = whole.shape[-1]
    half, rank = wide // 2, a.rank

    def step(_index: Any, x: Value, *turned: Value) -> List[Value]:
        upper_rows = x.slice(-2, 0, half)
        p, both = upper_rows.slice(-1, 0, half).diagonal(0, -2, -1), upper_rows.slice(-1, half, wide).diagonal(0, -2, -1)
        cos, sin = _angle(p, x.slice(-2, half, wide).slice(-1, half, wide).diagonal(0, -2, -1), both)
        across, down = (cos.unsqueeze(rank - 2), sin.unsqueeze(rank - 2)), (cos.unsqueeze(rank - 1), sin.unsqueeze(rank - 1))
        return [_turned(_turned(x, rank - 2, *down), rank - 1, *across), *(_turned(v, rank - 1, *across) for v in turned)]

    first = [linear._eye(whole)] if vectors else []
    done, *turned = a.function.repeat(_sweeps(size) * (wide - 1), [whole, *first], step)
    found, places = done.diagonal(0, -2, -1).slice(-1, 0, size).sort(-1)
    found = found * scale.select(-1, 0)
    if not vectors:
        return [found]
    return [found, _positive(_ordered(turned[0].slice(-2, 0, size), places))[0]]


def _ordered(x: Value, places: Value) -> Value:
    """The columns in an order for each matrix."""
    wanted = [*x.shape[:-1], places.shape[-1]]
    return x.gather(x.rank - 1, places.unsqueeze(x.rank - 2).expand(wanted))


def _positive(x: Value) -> Tuple[Value, Value]:
    """Columns whose largest element is positive, and the signs that make them so."""
    size = x.abs()
    sign = size.eq(size.amax([-2], True)).where(x, 0.0).sum([-2], True).lt(0.0).where(-1.0, 1.0)
    sign = sign if sign.dtype == x.dtype else sign.to_copy(x.dtype)
    return x * sign, sign


def svd(a: Value, full: bool = True, vectors: bool = True) -> List[Value]:
    """U, the singular values from the largest to the least, and V transposed. In each column of U
    the largest element is positive. `full`: U and V are square."""
    least = _smaller(a)
    _need(a, "singular values", least)
    if a.shape[-1] != least:
        u, found, v = svd(a.transpose(-1, -2), full, vectors) if vectors else (None, *svd(a.transpose(-1, -2), full, False), None)
        return [v.transpose(-1, -2), found, u.transpose(-1, -2)] if vectors else [found]
    scale = _scale(a)
    whole = _padded(a / scale, a.rank - 1)
    wide = whole.shape[-1]
    half, rank = wide // 2, a.rank

    def step(_index: Any, x: Value, *turned: Value) -> List[Value]:
        first, second = x.slice(-1, 0, half), x.slice(-1, half, wide)
        sums = [(one * other).sum([-2], True) for one, other in ((first, first), (second, second), (first, second))]
        cos, sin = _angle(*sums)
        return [_turned(part, rank - 1, cos, sin) for part in (x, *turned)]

    square = whole.slice(-2, 0, 1).expand([*whole.shape[:-2], wide, wide])
    first = [linear._eye(square)] if vectors else []
    done, *turned = a.function.repeat(_sweeps(max(least, 2)) * (wide - 1), [whole, *first], step)
    done = done.slice(-1, 0, least)
    sizes = (done * done).sum([-2]).sqrt()
    found, places = sizes.sort(-1, True)
    if not vectors:
        return [found * scale.select(-1, 0)]
    done, right = _ordered(done, places), _ordered(turned[0].slice(-2, 0, least).slice(-1, 0, least), places)
    # columns of zeros, too, become orthogonal ones
    q, r = qr(done, full)
    upright = r.diagonal(0, -2, -1).lt(0.0).where(-1.0, 1.0).to_copy(a.dtype).unsqueeze(rank - 2)
    own, sign = _positive(q.slice(-1, 0, least) * upright)
    more = [q.slice(-1, least, q.shape[-1])] if full and not ex.same(q.shape[-1], least) else []
    return [shapes.cat([own, *more], rank - 1) if more else own, found * scale.select(-1, 0), (right * sign).transpose(-1, -2)]


def pseudo_inverse(a: Value, absolute: Optional[Value] = None, relative: Optional[Value] = None, symmetric: bool = False) -> Value:
    """V * S^-1 * U^T, without singular values that are not above the tolerances; the relative one
    is by default as many units of the type's precision as the larger side has places, or 0 beside
    an absolute one above 0."""
    u, found, v = svd(_mirrored(a, False) if symmetric else a, False)
    if relative is None:
        places = a.function.full([], ex.simplify(ex.maximum(*a.shape[-2:])), "f64")
        relative = places * (2.0**-52 if a.dtype == "f64" else 2.0**-23)
        if absolute is not None:
            relative = absolute.gt(0.0).where(0.0, relative)
    most = found.amax([-1], True)
    limit = most * _beside(relative, most)
    kept = found.gt(limit if absolute is None else limit.maximum(_beside(absolute, most)))
    shares = kept.where(kept.where(found, 1.0).reciprocal(), 0.0)
    return (v.transpose(-1, -2) * shares.unsqueeze(a.rank - 2)).matmul(u.transpose(-1, -2))


def _beside(limit: Value, found: Value) -> Value:
    limit = limit if limit.dtype == found.dtype else limit.to_copy(found.dtype)
    return limit.unsqueeze(limit.rank) if limit.rank else limit


def qr(a: Value, complete: bool = False) -> List[Value]:
    """Q with orthogonal columns and R, of zeros below its diagonal: by Householder's reflections,
    with LAPACK's signs."""
    least = _smaller(a)
    _need(a, "QR factors", least)
    rows, columns = a.shape[-2:]
    scale = _scale(a)
    function, r = a.function, a / scale
    if complete and not isinstance(rows, int):
        raise IRError(f"function {function.name!r}: all QR factors of {a.type}: how many rows it has is known to the call alone")
    down, reflectors = function.arange(rows).unsqueeze(1), []
    for k in range(least):
        column = linear._column(r, k)
        below = down.gt(k).where(column, 0.0)
        rest, head = (below * below).sum([-2], True), linear._row(column, k)
        size = (head * head + rest).sqrt()
        new = rest.eq(0.0).where(head, head.lt(0.0).where(size, -size))
        vector = down.eq(k).where(head - new, below)
        # 2 / |vector|^2 = 1 / (new * (new - head)); of no rest nothing is reflected
        factor = rest.eq(0.0).where(0.0, 1.0 / rest.eq(0.0).where(1.0, new * (new - head)))
        r = r - vector * ((vector * factor).transpose(-1, -2).matmul(r))
        reflectors.append((vector, factor))
    size = rows if complete else least
    places = down.eq(function.arange(size).unsqueeze(0)).to_copy(a.dtype).expand([*a.shape[:-2], rows, size])
    for vector, factor in reversed(reflectors):
        places = places - (vector * factor) * (vector.transpose(-1, -2).matmul(places))
    top = r if ex.same(rows, size) else r.slice(-2, 0, size)
    upper = function.arange(size).unsqueeze(1).le(function.arange(columns).unsqueeze(0))
    return [places, upper.where(top * scale, 0.0)]


#: How often a matrix may be halved before its exponential is squared as often.
_HALVINGS = 24


def exponential(a: Value) -> Value:
    """The exponential of each square matrix: Taylor's series of the matrix halved until its norm is
    1 at most, and then squared."""
    size = a.shape[-1] if a.rank > 1 else None
    if not isinstance(size, int) or a.shape[-2] != size or a.dtype not in FLOATS:
        raise IRError(f"function {a.function.name!r}: the exponential of {a.type}: square matrices of floats, of a size that is known while compiling, have one")
    norm = a.abs().sum([-1], True).amax([-2], True)
    halvings = norm.gt(1.0).where(norm, 1.0).log2().ceil().minimum(float(_HALVINGS))
    part, one = a * (halvings * -1.0).exp2(), linear._eye(a)
    series = one
    for k in range(20 if a.dtype == "f64" else 13, 0, -1):
        series = one + part.matmul(series) * (1 / k)

    def step(index: Any, made: Value) -> List[Value]:
        return [halvings.gt(a.function.full([], index, "i64").to_copy(a.dtype)).where(made.matmul(made), made)]

    return a.function.repeat(_HALVINGS, [series], step)[0]
