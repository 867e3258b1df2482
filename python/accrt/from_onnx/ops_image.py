"""Lowerings of operations that give images other sizes."""

from __future__ import annotations

import math
from typing import Any, List, Optional, Tuple

import numpy as np

from ..compiler import Expr, Value
from ..compiler import expr as ex
from .folding import check_room
from .table import lowers
from .values import Known, numpy_type, Unsupported

#: For each place of a result: the places that it is made of, and their shares. Of one row for each
#: place.
Taps = Tuple[Any, Any]
#: Most places of the input that one of a result is made of: each is an operation of its own.
MOST_TAPS = 1 << 10


@lowers("Resize")
def resize(
    lo: Any, x: Any, roi: Any = None, scales: Any = None, sizes: Any = None, *, antialias: int = 0, axes: Any = None,
    coordinate_transformation_mode: str = "half_pixel", cubic_coeff_a: float = -0.75, exclude_outside: int = 0, extrapolation_value: float = 0.0,
    keep_aspect_ratio_policy: str = "stretch", mode: str = "nearest", nearest_mode: str = "round_prefer_floor",
) -> Any:  # fmt: skip
    """One dimension after the other: each place is a sum of places of the input, by shares that are
    calculated now."""
    x = lo.value(x)
    dims = list(range(x.rank)) if axes is None else [lo.axis(x, a) for a in axes]
    regions = _regions(roi, len(dims)) if coordinate_transformation_mode == "tf_crop_and_resize" else [None] * len(dims)
    factors, wanted = _factors(lo, x, dims, scales, sizes, keep_aspect_ratio_policy)
    for at, factor, size, region in zip(dims, factors, wanted, regions):
        if ex.same(size, x.shape[at]) and factor == 1 and region is None:
            continue
        if isinstance(x.shape[at], Expr):
            x = _repeated(lo, x, at, factor, size, mode, coordinate_transformation_mode, nearest_mode)
            continue
        last, spread = x.shape[at] - 1, min(factor, 1.0) if antialias else 1.0
        check_room(lo, size * max(1, 0 if mode == "nearest" else 4 / spread))
        places = _places(x.shape[at], size, factor, coordinate_transformation_mode) if region is None else _inside(region, last, size)
        if mode == "nearest":
            x = x.index_select(at, lo.value(Known(_nearest(places, x.shape[at], nearest_mode))))
        else:
            x = _mixed(lo, x, at, _taps(places, x.shape[at], mode, cubic_coeff_a, spread, bool(exclude_outside)))
        if region is not None and ((places < 0) | (places > last)).any():
            there = lo.value(Known((places >= 0) & (places <= last))).view([-1 if d == at else 1 for d in range(x.rank)])
            x = there.where(x, extrapolation_value)
    return x


def _regions(roi: Any, count: int) -> List[Any]:
    """Start and end of each dimension, as parts of it."""
    if not isinstance(roi, Known) or roi.is_symbolic or roi.array.size != 2 * count:
        raise Unsupported("regions of interest, which only a call knows: constants= gives an input's content when the bundle is made")
    return list(zip(roi.array[:count].astype(np.float64), roi.array[count:].astype(np.float64)))


def _inside(region: Any, last: int, wanted: int) -> Any:
    start, end = region
    if wanted == 1:
        return np.array([0.5 * (start + end) * last])
    return start * last + np.arange(wanted) * ((end - start) * last / (wanted - 1))


def _factors(lo: Any, x: Value, dims: List[int], scales: Any, sizes: Any, policy: str) -> Tuple[List[Any], List[Any]]:
    """By how much each dimension grows, and its new size."""
    if scales is not None and not (isinstance(scales, Known) and scales.array.size == 0):
        if not isinstance(scales, Known) or scales.is_symbolic:
            raise Unsupported("factors, which only a call knows: constants= gives an input's content when the bundle is made")
        factors = [float(f) for f in scales.array.reshape(-1)]
        return factors, [_scaled(x.shape[d], f) for d, f in zip(dims, factors)]
    wanted = lo.sizes(sizes, "sizes of a result")
    if policy != "stretch":
        known = lo.integers(sizes, "sizes that keep an aspect")
        ratios = [w / x.shape[d] for w, d in zip(known, dims)]
        factor = min(ratios) if policy == "not_larger" else max(ratios)
        return [factor] * len(dims), [math.floor(factor * x.shape[d] + 0.5) for d in dims]
    factors = [_ratio(w, x.shape[d]) for w, d in zip(wanted, dims)]
    return factors, wanted


def _scaled(size: Any, factor: float) -> Any:
    if isinstance(size, int):
        return math.floor(size * factor)
    return ex.simplify(ex.constant(size) * int(factor)) if factor == int(factor) else None


def _ratio(wanted: Any, size: Any) -> Any:
    if isinstance(wanted, int) and isinstance(size, int):
        return wanted / size
    return next((float(k) for k in range(1, 17) if ex.same(ex.simplify(ex.constant(size) * k), wanted)), None)


def _repeated(lo: Any, x: Value, at: int, factor: Any, size: Any, mode: str, coordinates: str, rounding: str) -> Value:
    """A dimension that varies, each place of it several times."""
    plain = (coordinates, rounding) in (("asymmetric", "floor"), ("half_pixel", "round_prefer_floor"), ("half_pixel", "round_prefer_ceil"))
    if mode != "nearest" or factor is None or factor != int(factor) or not plain or (coordinates != "asymmetric" and int(factor) % 2 == 0 and factor > 2):
        raise Unsupported(f"a dimension of {x.shape[at]} by {mode}, {coordinates}")
    return x.index_select(at, lo.function.arange(size).div(int(factor), rounding_mode="floor"))


def _places(size: int, wanted: int, factor: float, mode: str) -> Any:
    """Where in the input each place of the result is."""
    out = np.arange(wanted, dtype=np.float64)
    if mode == "asymmetric":
        return out / factor
    if mode == "align_corners":
        return out * ((size - 1) / (factor * size - 1)) if factor * size > 1 else out * 0
    if mode == "pytorch_half_pixel":
        return (out + 0.5) / factor - 0.5 if wanted > 1 else out * 0
    if mode == "half_pixel_symmetric":
        true = factor * size
        return size / 2 * (1 - wanted / true) + (out + 0.5) / factor - 0.5
    if mode == "half_pixel":
        return (out + 0.5) / factor - 0.5
    raise Unsupported(f"coordinates of mode {mode!r}")


def _nearest(places: Any, size: int, rounding: str) -> Any:
    found = {
        "round_prefer_floor": lambda: np.ceil(places - 0.5), "round_prefer_ceil": lambda: np.floor(places + 0.5), "floor": lambda: np.floor(places),
        "ceil": lambda: np.ceil(places),
    }[rounding]()  # fmt: skip
    return np.clip(found, 0, size - 1).astype(np.int64)


def _taps(places: Any, size: int, mode: str, a: float, spread: float, exclude: bool) -> Taps:
    """The shares of a triangle (linear) or of a cubic around each place, which is `1 / spread`
    times as wide."""
    reach = (1 if mode == "linear" else 2) / spread
    first = np.floor(places - reach).astype(np.int64) + 1
    if mode not in ("linear", "cubic"):
        raise Unsupported(f"of mode {mode!r}")
    index = first[:, None] + np.arange(int(math.ceil(2 * reach)) + (1 if spread < 1 else 0))
    apart = np.abs(index - places[:, None]) * spread
    share = np.maximum(1 - apart, 0) if mode == "linear" else _cubic(apart, a)
    if exclude:
        share = share * ((index >= 0) & (index < size))
    if exclude or spread < 1:
        share = share / share.sum(1, keepdims=True)
    return np.clip(index, 0, size - 1), share


def _cubic(apart: Any, a: float) -> Any:
    near = ((a + 2) * apart - (a + 3)) * apart**2 + 1
    far = ((a * apart - 5 * a) * apart + 8 * a) * apart - 4 * a
    return np.where(apart <= 1, near, np.where(apart < 2, far, 0))


def _mixed(lo: Any, x: Value, at: int, taps: Taps) -> Value:
    index, share = taps
    if index.shape[1] > MOST_TAPS:
        raise Unsupported(f"places that are made of {index.shape[1]} others")
    shape = [1] * x.rank
    shape[at] = len(index)
    total: Optional[Value] = None
    for k in range(index.shape[1]):
        part = x.index_select(at, lo.value(Known(np.ascontiguousarray(index[:, k]))))
        part = part * lo.value(Known(np.ascontiguousarray(share[:, k]).astype(numpy_type(x.dtype)))).view(shape)
        total = part if total is None else total + part
    assert total is not None
    return total
