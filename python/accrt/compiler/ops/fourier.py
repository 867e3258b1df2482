"""Fourier transforms of fixed and of varying sizes, and distances of rows: made of products and
sums.

A transform of n elements is a product with cosines and sines, which takes n * n operations. One of
a fixed size n = a * b beyond SHORT is made of transforms of a and of b.
"""

from __future__ import annotations

import math
from typing import Any, List, Optional, Sequence, Tuple

from .. import expr as ex
from ..expr import Size
from ..ir import Function, IRError, Value
from . import elementwise, functions, indexing, ordering, products, reductions, shapes  # noqa: F401  - the methods that are used here
from .complexes import Complex, multiplied, of, turned

#: Sizes up to here are one product.
SHORT = 64


def _angles(function: Function, rows: Size, columns: Size, size: Size) -> Value:
    """2 pi * row * column / size, in f64: no digit is lost."""
    turn = function.arange(rows).unsqueeze(1) * function.arange(columns)
    turn = turn % (size if isinstance(size, int) else function.full([], size, "i64"))
    return turn.to_copy("f64") * (2 * math.pi) / (float(size) if isinstance(size, int) else function.full([], size, "f64"))


def _waves(x: Value, columns: Size, inverse: bool) -> Tuple[Value, Value]:
    """Cosines and sines of a transform of x's last dimension."""
    return _waves_of(x, x.shape[-1], columns, x.shape[-1], inverse)


def _waves_of(x: Value, rows: Size, columns: Size, size: Size, inverse: bool) -> Tuple[Value, Value]:
    """The same of so many rows and columns, in x's type."""
    wave = turned(_angles(x.function, rows, columns, size))
    return wave.real.to_copy(x.dtype), (wave.imag if inverse else -wave.imag).to_copy(x.dtype)


def _product(x: Value, wave: Value) -> Value:
    return x.matmul(wave) if x.rank > 1 else x.unsqueeze(0).matmul(wave).select(0, 0)


def _parts(size: Size) -> Optional[Tuple[int, int]]:
    """Two factors of a size that are near each other, where it has such."""
    if not isinstance(size, int) or size <= SHORT:
        return None
    low = next(k for k in range(math.isqrt(size), 0, -1) if size % k == 0)
    return (low, size // low) if low > 1 else None


def _last(x: Complex, inverse: bool) -> Complex:
    """The transform of the last dimension."""
    size, parts = x.real.shape[-1], _parts(x.real.shape[-1])
    if parts is None:
        cosines, sines = _waves(x.real, size, inverse)
        (a, b), (c, d) = (tuple(_product(part, wave) for wave in (cosines, sines)) for part in x)
        return Complex(a - d, b + c)
    # Place a * high + b gives place c + low * d: transforms over a, turned by b * c, then over b.
    low, high = parts
    split = Complex(*(part.view([*part.shape[:-1], low, high]).transpose(-1, -2) for part in x))
    both = multiplied(_last(split, inverse), Complex(*_waves_of(x.real, high, low, size, inverse)))
    made = _last(Complex(*(part.transpose(-1, -2) for part in both)), inverse)
    return Complex(*(part.transpose(-1, -2).flatten(-2) for part in made))


def _along(x: Complex, at: int, inverse: bool) -> Complex:
    made = _last(Complex(*(part.transpose(at, -1) for part in x)), inverse)
    return Complex(*(part.transpose(at, -1) for part in made))


def _scaled(x: Any, sizes: Sequence[Size], norm: int) -> Any:
    """As torch numbers norms: 0 as it is, 1 by the root of all elements, 2 by their number."""
    if norm == 0:
        return x
    count, like = ex.product(sizes), x.real if isinstance(x, Complex) else x
    if isinstance(count, int):
        factor: Any = 1 / count if norm == 2 else count**-0.5
    else:
        whole = like.function.full([], count, "f64")
        factor = (whole.reciprocal() if norm == 2 else whole.rsqrt()).to_copy(like.dtype)
    return multiplied(x, factor) if isinstance(x, Complex) else x * factor


def transformed(x: Complex, axes: Sequence[int], norm: int = 0, inverse: bool = False) -> Complex:
    """The discrete Fourier transform along `axes`, one dimension after the other."""
    sizes = [x.real.shape[at] for at in axes]
    for at in axes:
        x = _along(x, at, inverse)
    return _scaled(x, sizes, norm)


def of_real(x: Value, axes: Sequence[int], norm: int = 0, onesided: bool = False) -> Complex:
    """The same of real numbers; `onesided`: of the last one of the axes the first half, which the
    other half mirrors."""
    at, sizes = axes[-1], [x.shape[d] for d in axes]
    moved, size = x.transpose(at, -1), x.shape[at]
    half = ex.simplify(ex.constant(size) // 2 + 1) if onesided else size
    if _parts(size) is None:
        made = Complex(*(_product(moved, wave) for wave in _waves(moved, half, False)))
    else:
        made = Complex(*(part.slice(-1, 0, half) for part in _last(of(moved), False)))
    made = Complex(*(part.transpose(at, -1) for part in made))
    return _scaled(transformed(made, axes[:-1]), sizes, norm)


def to_real(x: Complex, axes: Sequence[int], norm: int, size: Size) -> Value:
    """The inverse of a onesided transform, of `size` elements along the last axis."""
    sizes: List[Size] = [*(x.real.shape[d] for d in axes[:-1]), size]
    made, at = transformed(x, axes[:-1], 0, True), axes[-1]
    half = ex.simplify(ex.constant(size) // 2 + 1)
    real, imag = (_cut(part.transpose(at, -1), half) for part in made)
    if _parts(size) is not None:
        rest = real.function.arange(ex.simplify(ex.constant(size) - half)) * -1 + ex.simplify(ex.constant(size) - half)
        ends = [shapes.cat([part, part.index_select(part.rank - 1, rest) * sign], -1) for part, sign in ((real, 1.0), (imag.slice(-1, 0, half), -1.0))]
        return _scaled(_last(Complex(ends[0], _without_ends(ends[1], size)), True).real.transpose(at, -1), sizes, norm)
    wave, k = turned(_angles(real.function, half, size, size)), real.function.arange(half).unsqueeze(1)
    single = k.eq(0).logical_or((k * 2).eq(size))  # those that mirror themselves
    factor = single.where(1.0, real.function.full([], 2.0, "f64"))
    cosines, sines = ((part * factor).to_copy(real.dtype) for part in wave)
    return _scaled((_product(real, cosines) - _product(imag, sines)).transpose(at, -1), sizes, norm)


def _without_ends(imag: Value, size: Size) -> Value:
    """Zeros where a number is its own mirror: its imaginary part does not count."""
    k = imag.function.arange(size)
    return k.eq(0).logical_or((k * 2).eq(size)).where(0.0, imag)


def _cut(x: Value, size: Size) -> Value:
    """The first places of the last dimension; zeros where it has fewer."""
    have = x.shape[-1]
    if ex.same(have, size):
        return x
    if isinstance(have, int) and isinstance(size, int) and have < size:
        return shapes.cat([x, x.function.full([*x.shape[:-1], size - have], 0.0, x.dtype)], -1)
    return x.slice(-1, 0, size)


def distances(x: Value, y: Value, norm: float) -> Value:
    """[..., i, j]: the norm of row i of x less row j of y."""
    gap = x.unsqueeze(x.rank - 1) - y.unsqueeze(y.rank - 2)
    if norm in (1, 2):
        return gap.square().sum([-1]).sqrt() if norm == 2 else gap.abs().sum([-1])
    if norm == math.inf:
        return gap.abs().amax([-1])
    return gap.ne(0.0).to_copy(gap.dtype).sum([-1]) if norm == 0 else (gap.abs() ** norm).sum([-1]) ** (1 / norm)


def distances_between(x: Value, norm: float) -> Value:
    """aten.pdist: the norm of each row less each later one."""
    rows = x.shape[0]
    if not isinstance(rows, int):
        raise IRError(f"function {x.function.name!r}: distances between the rows of {x.type}: how many there are is known to the call alone")
    pairs = [(i, j) for i in range(rows) for j in range(i + 1, rows)]
    if not pairs:
        return x.function.full([0], 0.0, x.dtype)
    function, made = x.function, distances(x, x, norm).flatten()
    first, second = (function.arange(rows).unsqueeze(1 - d).expand([rows, rows]).flatten() for d in (0, 1))
    order = first.lt(second).where(first * rows + second, rows * rows).sort(0)[0].slice(0, 0, len(pairs))
    return made.index_select(0, order)
