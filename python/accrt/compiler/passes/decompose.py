"""Composite operations become simpler ones where no kernel does them whole."""

from __future__ import annotations

from typing import Optional, Sequence

from .. import ops, select
from ..ir import Module, Op, Value
from .rewrite import rewrite

ALWAYS = ("aten.linear", "aten.mm", "aten.bmm", "aten.addmm", "aten.gather", "accrt.state_gather")
MAX_DEPTH = 8


def decompose(module: Module, family: str = "host") -> None:
    for function in module.functions.values():
        for _round in range(MAX_DEPTH):
            changed = []

            def visit(op: Op) -> Optional[Sequence[Value]]:
                definition = ops.OPS.get(op.name)
                if definition is None or definition.decompose is None:
                    return None
                if op.name not in ALWAYS and select.supported(op, family):
                    return None
                made = definition.decompose(op)
                if made is None:
                    return None
                changed.append(op)
                return made if isinstance(made, list) else [made]

            rewrite(function, visit)
            if not changed:
                break
