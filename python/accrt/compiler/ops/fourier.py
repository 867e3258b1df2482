"""Fourier transforms of real numbers, and distances of rows: made of products and sums."""

from __future__ import annotations

import math
from typing import NamedTuple, Sequence

from ..ir import Value
from . import elementwise, products, reductions, shapes  # noqa: F401  - the methods that are used here

#: Norms that `distances` knows.
NORMS = (1.0, 2.0, math.inf)


class Complex(NamedTuple):
    """Complex numbers as two tensors."""

    real: Value
    imag: Value


def transformed(x: Value, axes: Sequence[int]) -> Complex:
    """The discrete Fourier transform of real numbers along `axes`: products with cosines and sines,
    for one dimension after the other."""
    function, made = x.function, Complex(x, x * 0)
    for at in axes:
        place, count = function.arange(x.shape[at]), function.full([], x.shape[at], "i64")
        angle = (place.unsqueeze(1) * place % count).to_copy("f32") * (2 * math.pi) / count.to_copy("f32")
        (a, c), (b, s) = ([part.transpose(at, -1).matmul(turn).transpose(at, -1) for turn in (angle.cos(), angle.sin())] for part in made)
        made = Complex(a + s, b - c)
    return made


def distances(x: Value, y: Value, norm: float) -> Value:
    """[..., i, j]: the norm of row i of x less row j of y."""
    gap = x.unsqueeze(x.rank - 1) - y.unsqueeze(y.rank - 2)
    return gap.square().sum([-1]).sqrt() if norm == 2 else gap.abs().sum([-1]) if norm == 1 else gap.abs().amax([-1])
