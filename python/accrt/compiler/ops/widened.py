"""The types in which functions by element are computed."""

from __future__ import annotations

from typing import Tuple

from ..declared import FLOATS
from ..ir import Value


def wide(x: Value, least: str = "f32") -> Tuple[Value, str]:
    """The numbers in f64 where they are that, else in `least`; and the type of the result."""
    dtype = x.dtype if x.dtype in FLOATS else "f32"
    target = "f64" if dtype == "f64" else least
    return (x if x.dtype == target else x.to_copy(target)), dtype


def narrow(x: Value, dtype: str) -> Value:
    return x if x.dtype == dtype else x.to_copy(dtype)
