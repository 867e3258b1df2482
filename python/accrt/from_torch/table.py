"""Lowerings by operation: TABLE[str(target)] is a function of (lowering, *args, **kwargs), with
torch's own arguments."""

from __future__ import annotations

from typing import Any, Callable, Dict, Tuple

Lower = Callable[..., Any]


def new_table() -> Tuple[Dict[str, Lower], Callable[..., Callable[[Lower], Lower]]]:
    """A table of lowerings, and what registers them in it."""
    table: Dict[str, Lower] = {}

    def registers(*targets: str) -> Callable[[Lower], Lower]:
        """Registers a lowering: lowers("aten.add.Tensor", "aten.add.Scalar")."""

        def register(function: Lower) -> Lower:
            for target in targets:
                assert target not in table, target
                table[target] = function
            return function

        return register

    return table, registers


TABLE, lowers = new_table()
