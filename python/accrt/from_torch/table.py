"""Lowerings by operation: TABLE[str(target)] is a function of (lowering, *args, **kwargs), with torch's own arguments."""

from __future__ import annotations

from typing import Any, Callable, Dict

Lower = Callable[..., Any]
TABLE: Dict[str, Lower] = {}


def lowers(*targets: str) -> Callable[[Lower], Lower]:
    """Registers a lowering: lowers("aten.add.Tensor", "aten.add.Scalar")."""

    def register(function: Lower) -> Lower:
        for target in targets:
            assert target not in TABLE, target
            TABLE[target] = function
        return function

    return register
