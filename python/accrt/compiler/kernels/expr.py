"""Arithmetic on sizes that may be known (int) or symbolic (a type of the compiler's IR).

Kernel records write their grids and sizes with `+ - * // %` and the helpers here. This module knows
no symbolic type: the owner of one registers it once with `register`. It imports nothing from the
rest of the compiler.
"""

from __future__ import annotations

from functools import singledispatch
from typing import Any, Callable


def is_static(value: Any) -> bool:
    """True when the value is a plain integer, known while compiling."""
    return isinstance(value, int) and not isinstance(value, bool)


@singledispatch
def _minimum(symbolic: Any, other: Any) -> Any:
    raise TypeError(f"no minimum is registered for sizes of type {type(symbolic).__name__}")


@singledispatch
def _maximum(symbolic: Any, other: Any) -> Any:
    raise TypeError(f"no maximum is registered for sizes of type {type(symbolic).__name__}")


@singledispatch
def _equal(symbolic: Any, other: Any) -> bool:
    return symbolic is other


def register(
    symbolic_type: type,
    *,
    minimum: Callable[[Any, Any], Any],
    maximum: Callable[[Any, Any], Any],
    equal: Callable[[Any, Any], bool],
) -> None:
    """Teaches the helpers a symbolic type. `equal` answers "is it proved that these are the same
    for all values?"."""
    _minimum.register(symbolic_type, minimum)
    _maximum.register(symbolic_type, maximum)
    _equal.register(symbolic_type, equal)


def minimum(a: Any, b: Any) -> Any:
    if is_static(a):
        return min(a, b) if is_static(b) else _minimum(b, a)
    return _minimum(a, b)


def maximum(a: Any, b: Any) -> Any:
    if is_static(a):
        return max(a, b) if is_static(b) else _maximum(b, a)
    return _maximum(a, b)


def equal(a: Any, b: Any) -> bool:
    """True when a and b are proved equal; False when they differ or when it is not known."""
    if is_static(a):
        return a == b if is_static(b) else _equal(b, a)
    return _equal(a, b)


def ceildiv(a: Any, b: Any) -> Any:
    """Rounded-up quotient, for a >= 0 and b > 0."""
    return a if is_static(b) and b == 1 else (a + (b - 1)) // b


def product(values: Any) -> Any:
    result: Any = 1
    for value in values:
        result = value if is_static(result) and result == 1 else result * value
    return result
