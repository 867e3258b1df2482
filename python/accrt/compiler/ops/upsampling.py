"""More places between those of the last dimensions: the nearest place, or a part of each of the two
nearest; and pixel_shuffle."""

from __future__ import annotations

from fractions import Fraction
from typing import Any, Callable, Optional, Sequence

from .. import arguments
from .. import expr as ex
from ..expr import Size
from ..declared import FLOATS
from ..ir import IRError, Value
from . import elementwise, indexing, shapes  # noqa: F401  - the methods that are used here


def each_dimension(x: Value, sizes: Optional[Sequence[Size]], factors: Optional[Sequence[float]], resize: Callable[..., Value]) -> Value:
    """One dimension after the other: resize(x, dimension, places, factor or None)."""
    count = len(sizes if sizes is not None else factors or ())
    if any(isinstance(size, int) and size < 1 for size in sizes or ()) or any(factor is not None and not factor > 0 for factor in factors or ()):
        raise IRError(f"function {x.function.name!r}: {x.type} to {sizes if sizes is not None else factors}: sizes and factors are above 0")
    for d in range(count):
        at, factor = x.rank - count + d, None if factors is None else factors[d]
        x = resize(x, at, sizes[d] if sizes is not None else _times(x, x.shape[at], factor), factor)
    return x


def _times(x: Value, extent: Size, factor: Any) -> Size:
    """Places of a dimension by a factor, rounded down."""
    if isinstance(extent, int):
        return int(extent * factor)
    ratio = Fraction(factor)
    if ratio.denominator > 1 << 16:
        raise IRError(f"function {x.function.name!r}: a dimension of {extent} by {factor}, which is no ratio of small numbers")
    return ex.simplify(ex.constant(extent) * ratio.numerator // ratio.denominator)


def _number(x: Value, size: Size, dtype: str) -> Any:
    return float(size) if isinstance(size, int) else x.function.full([], size, dtype)


def _upsample_nearest(self: Value, size: Optional[Sequence[Size]] = None, scale_factors: Optional[Sequence[float]] = None, exact: bool = False) -> Value:
    """aten.upsample_nearest of the last dimensions; `exact`: from the middles of places. The place
    is calculated in f32, as ATen does."""

    def resize(x: Value, at: int, target: Size, factor: Optional[float]) -> Value:
        extent = x.shape[at]
        step = 1 / factor if factor else _number(x, extent, "f32") / _number(x, target, "f32")
        places = x.function.arange(target).to_copy("f32")
        places = ((places + 0.5 if exact else places) * step).floor().to_copy("i64")
        return x.index_select(at, places.minimum(ex.simplify(ex.constant(extent) - 1)))

    return each_dimension(self, size, scale_factors, resize)


def source_places(x: Value, at: int, target: Size, factor: Optional[float], align_corners: bool) -> Value:
    """Where in a dimension each of `target` places is, in f64: no digit of a share is lost."""
    if x.dtype not in FLOATS:
        raise IRError(f"function {x.function.name!r}: pictures of {x.dtype} by shares of places; cast them to f32 first")
    extent = x.shape[at]
    places = x.function.arange(target).to_copy("f64")
    if align_corners:
        gaps, last = ex.simplify(ex.maximum(ex.simplify(ex.constant(target) - 1), 1)), ex.simplify(ex.constant(extent) - 1)
        return places * (_number(x, last, "f64") / _number(x, gaps, "f64"))
    step = 1 / factor if factor else _number(x, extent, "f64") / _number(x, target, "f64")
    return (places + 0.5) * step - 0.5


def _upsample_linear(self: Value, size: Optional[Sequence[Size]], align_corners: bool, scale_factors: Optional[Sequence[float]] = None) -> Value:
    """aten.upsample_linear1d, and bilinear2d, of the last dimensions."""

    def resize(x: Value, at: int, target: Size, factor: Optional[float]) -> Value:
        last = ex.simplify(ex.constant(x.shape[at]) - 1)
        places = source_places(x, at, target, factor, align_corners)
        places = places if align_corners else places.maximum(0.0)
        low = places.floor().to_copy("i64").minimum(last)
        share = (places - low.to_copy("f64")).to_copy(x.dtype).view([-1, *[1] * (x.rank - at - 1)])
        first, second = x.index_select(at, low), x.index_select(at, (low + 1).minimum(last))
        return first + (second - first) * share

    return each_dimension(self, size, scale_factors, resize)


def _pixel_shuffle(self: Value, upscale_factor: int) -> Value:
    """aten.pixel_shuffle: [n, c * r * r, h, w] as [n, c, h * r, w * r]."""
    where = f"function {self.function.name!r}: pixel_shuffle"
    r = arguments.integer(upscale_factor, f"{where}: its factor", 1)
    if self.rank != 4 or isinstance(self.shape[1], int) and self.shape[1] % r**2:
        raise IRError(f"{where} of {self.type} by {r}: expected four dimensions, the second a multiple of {r**2}")
    n, c, h, w = self.shape
    parts = self.view([n, c // r**2, r, r, h, w]).permute([0, 1, 4, 2, 5, 3])
    return parts.view([n, c // r**2, ex.simplify(ex.constant(h) * r), ex.simplify(ex.constant(w) * r)])


Value.upsample_nearest, Value.upsample_linear, Value.pixel_shuffle = _upsample_nearest, _upsample_linear, _pixel_shuffle
