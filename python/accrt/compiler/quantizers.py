"""Weights rounded to the nearest that a layout has, by the library (accrt_layout_quantize)."""

from __future__ import annotations

from typing import Any, List

import numpy as np

from .._bits import float_array
from .encodings import LAYOUTS, Quantized

FLOAT_BITS = {"f32": np.float32, "f16": np.float16, "bf16": np.uint16}
#: Squares of what is quantized stay finite in f32.
_MOST = np.float32(2.0**60)


def makes() -> List[str]:
    """The layouts that there is a quantizer for: all that the library writes."""
    from .. import layouts

    return [known.name for known in layouts.all_layouts() if known.writable and known.name in LAYOUTS]


def quantize(array: Any, layout: str, *, group: int = 0, dtype: str = "f32", data: str = "", scales: str = "") -> Quantized:
    """A weight [..., n, k] of floats in a layout, each number rounded to the nearest that its scale
    gives. `group`: of layouts that leave it free (128). `data`, `scales`: types of these components
    where the layout leaves a choice (f8e4m3fn, f32). There is a quantizer for each layout but GPTQ
    and AWQ, which are for weights that come so."""
    from .. import layouts

    weight = float_array(array, "the weight")
    if weight.ndim < 2 or layout not in makes():
        raise ValueError(f"no quantizer makes {layout!r} of an array of shape {weight.shape}; there are {', '.join(makes())} of matrices")
    if LAYOUTS[layout].free_group:
        group = group or 128
    if weight.shape[-1] % LAYOUTS[layout].block[0]:
        raise ValueError(f"layout {layout}: rows of {weight.shape[-1]}, a multiple of {LAYOUTS[layout].block[0]} is needed")
    wrong = np.argwhere(~(np.abs(weight) <= _MOST))
    if len(wrong):
        raise ValueError(f"layout {layout}: the value at {wrong[0].tolist()} is {weight[tuple(wrong[0])]}: not finite, or above 2^60")
    if (data and data not in ("f8e4m3fn", "f8e5m2")) or (scales and scales not in FLOAT_BITS):
        raise ValueError(f"layout {layout}: data of {data or 'its type'}, scales of {scales or 'their type'}")
    packed = layouts.quantize(weight, layout, group_elements=group, data=data or None, scales=scales or None, search=False, dtype=dtype)
    kinds = {**FLOAT_BITS, "i8": np.int8}
    parts = {role: component.data.view(kinds.get(component.dtype, np.uint8)) for role, component in packed.components.items()}
    return Quantized(layout, weight.shape, parts, group, dtype, {role: component.dtype for role, component in packed.components.items()})
