"""Views of an input that is updated in place keep what they showed: where they are used after a
write, they become copies."""

from __future__ import annotations

from typing import Dict, List, Optional, Sequence, Tuple

from .. import ops
from ..ir import Function, Module, Op, Value
from .rewrite import mutable_root, rewrite, uses

_Span = Tuple[float, float]


def snapshot_views(module: Module) -> None:
    for function in module.functions.values():
        writes = _writes(function)
        if writes:
            _snapshot(function, writes)


def _writes(function: Function) -> Dict[str, List[_Span]]:
    """For each input, when it is written: from and to which operation. A write in a loop counts for
    all of the loop."""
    order = {id(op): at for at, op in enumerate(function.body.walk())}
    found: Dict[str, List[_Span]] = {}
    for top in function.body.ops:
        inside = [top] + [op for region in top.regions for op in region.walk()]
        for op in inside:
            if op.name == "accrt.write_input":
                found.setdefault(op.attrs["name"], []).append((order[id(top)], order[id(inside[-1])]))
    return found


def _snapshot(function: Function, writes: Dict[str, List[_Span]]) -> None:
    order = {id(op): at for at, op in enumerate(function.body.walk())}
    used = uses(function)
    names = {id(i.value): i.name for i in function.inputs if i.value is not None}

    def last_use(value: Value) -> float:
        """Through views: they show the same memory."""
        last = -1.0
        for user in used.get(id(value), ()):
            if user is None or user.regions:
                return float("inf")
            last = max(last, order[id(user)])
            if ops.OPS[user.name].view:
                last = max(last, last_use(user.result))
        return last

    def visit(op: Op) -> Optional[Sequence[Value]]:
        if op.regions or not ops.OPS[op.name].view or id(op) not in order:
            return None
        root = mutable_root(op.result)
        if root is None:
            return None
        end = last_use(op.result)
        if not any(order[id(op)] < to and end > begin for begin, to in writes.get(names[id(root)], ())):
            return None
        copied = ops.build(function, op.name, op.operands[0], **op.attrs)
        return [copied.clone()]

    rewrite(function, visit)
