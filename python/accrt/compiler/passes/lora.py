"""Low-rank products beside those that they are added to: a residual goes to the product, where it
costs nothing, and those of one joined product become one."""

from __future__ import annotations

from typing import Dict, List, Optional, Sequence, Tuple

from .. import expr as ex
from .. import ops
from ..ir import Block, Function, Module, Op, Value
from ..ops.lora import FACTORS, MOST_PARTS
from .rewrite import rewrite, uses

SHRINK, EXPAND = "accrt.lora_shrink", "accrt.lora_expand"


def join_adapters(module: Module) -> None:
    for function in module.functions.values():
        if any(op.name == EXPAND for op in function.body.walk()):
            _residuals_first(function)
            _join(function)


def _residuals_first(function: Function) -> None:
    """expand(y) + z becomes expand(y + z)."""
    used = uses(function)

    def visit(op: Op) -> Optional[Sequence[Value]]:
        if op.name != "aten.add":
            return None
        for value, other in (op.operands, op.operands[::-1]):
            expand = value.op
            if expand is None or expand.name != EXPAND or expand.block is not op.block or len(used.get(id(value), ())) != 1:
                continue
            if all(v.type.same(value.type) for v in (other, op.result)):
                return [function.add(EXPAND, [expand.operands[0] + other, *expand.operands[1:]], expand.attrs).result]
        return None

    rewrite(function, visit)


class _Group:
    """Expansions of columns that together are a whole value."""

    def __init__(self, members: List[Op]):
        self.members = members
        self.made: Dict[int, Value] = {}

    def value(self, op: Op) -> Value:
        if not self.made:
            first, function = self.members[0], op.block.function
            count, index = len(self.members), first.operands[2]
            shrinks = [m.operands[1].op for m in self.members]
            states = [{name: m.attrs["factors"] for name, m in zip(FACTORS, side)} for side in (shrinks, self.members)]
            shrunk = function.add(f"{SHRINK}{count}", [shrinks[0].operands[0], index], states[0]).result
            whole = function.add(f"{EXPAND}{count}", [first.operands[0].op.operands[0], shrunk, index], states[1]).result
            for member in self.members:
                start, end = ops.slice_bounds(member.operands[0].op)
                self.made[id(member)] = whole.slice(-1, start, end)
        return self.made[id(op)]


def _join(function: Function) -> None:
    groups: Dict[int, _Group] = {}
    for block in function.body.blocks():
        for members in _candidates(block):
            group = _Group(members)
            groups.update({id(op): group for op in members})
    if groups:
        rewrite(function, lambda op: [groups[id(op)].value(op)] if id(op) in groups else None)


def _candidates(block: Block) -> List[List[Op]]:
    """Expansions of slices of one value, of one input, in the order of their columns, which are all
    that the value has."""
    found: Dict[Tuple, List[Op]] = {}
    for op in block.ops:
        if op.name != EXPAND:
            continue
        columns, shrink = op.operands[0].op, op.operands[1].op
        if columns is None or columns.name != "aten.slice" or shrink is None or shrink.name != SHRINK or shrink.operands[1] is not op.operands[2]:
            continue
        base = columns.operands[0]
        if base.rank == 2 and columns.attrs["step"] == 1 and ops.axis_of(columns.attrs["dim"], 2) == 1 and base.op is not None and base.op.block is block:
            types = op.attrs["factors"].type, shrink.attrs["factors"].type
            key = (id(base), id(shrink.operands[0]), id(op.operands[2]), *((t.dtype, t.shape[0], t.shape[1]) for t in types))
            found.setdefault(key, []).append(op)
    return [members for members in map(_ordered, found.values()) if 2 <= len(members) <= MOST_PARTS and _is_whole(members)]


def _ordered(members: List[Op]) -> List[Op]:
    bounds = [ops.slice_bounds(m.operands[0].op) for m in members]
    if not all(isinstance(size, int) for pair in bounds for size in pair):
        return []
    return [m for _bounds, m in sorted(zip(bounds, members), key=lambda pair: pair[0])]


def _is_whole(members: List[Op]) -> bool:
    bounds = [ops.slice_bounds(m.operands[0].op) for m in members]
    joined = all(a[1] == b[0] for a, b in zip(bounds, bounds[1:]))
    return joined and bounds[0][0] == 0 and ex.same(members[0].operands[0].op.operands[0].shape[1], bounds[-1][1])
