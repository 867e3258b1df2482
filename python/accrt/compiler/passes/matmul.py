"""Matrix products with weights: those of one input become one, and weights are packed when the
bundle is loaded."""

from __future__ import annotations

from typing import Dict, List, Optional, Sequence, Tuple

from .. import ops
from ..ir import Block, Function, Module, Op, Value
from ..kernels.matmul import PANEL
from .rewrite import constant_derived, mutable_root, rewrite

PACKED = ("f32", "f16", "bf16")


def merge_linears(module: Module) -> None:
    """linear(x, w1, b1), linear(x, w2, b2), ... in one block become slices of one linear with
    joined weights."""
    for function in module.functions.values():
        derived = constant_derived(function)
        groups: Dict[int, Tuple[List[Op], Dict[int, Value]]] = {}
        for block in function.body.blocks():
            for members in _groups(block, derived):
                entry = (members, {})
                groups.update({id(op): entry for op in members})
        if groups:
            rewrite(function, lambda op: _merged(op, groups))


def _groups(block: Block, derived: Dict[int, List[str]]) -> List[List[Op]]:
    by_input: Dict[Tuple, List[Op]] = {}
    for op in block.ops:
        if op.name != "aten.linear":
            continue
        x, weight, bias = op.operands
        if weight.constant is None or (bias is not None and bias.constant is None) or mutable_root(x) is not None:
            continue
        key = (id(x), weight.dtype, None if bias is None else bias.dtype)
        by_input.setdefault(key, []).append(op)
    return [members for members in by_input.values() if len(members) > 1]


def _merged(op: Op, groups: Dict[int, Tuple[List[Op], Dict[int, Value]]]) -> Optional[Sequence[Value]]:
    if id(op) not in groups:
        return None
    members, made = groups[id(op)]
    if not made:
        weight = ops.cat([m.operands[1] for m in members], 0)
        bias = None if members[0].operands[2] is None else ops.cat([m.operands[2] for m in members], 0)
        joined = op.operands[0].linear(weight, bias)
        at = 0
        for member in members:
            columns = member.operands[1].shape[0]
            made[id(member)] = joined.slice(-1, at, at + columns)
            at += columns
    return [made[id(op)]]


def _packed(function: Function, weight: Value) -> Value:
    """The packed form; of joined weights whose columns fill whole panels, the packed forms joined,
    which saves a copy."""
    joined = weight.op.operands[0].op if weight.op is not None and weight.op.name == "aten.permute" else None
    if joined is not None and joined.name == "aten.cat" and joined.attrs["dim"] == 0:
        if all(part.shape[0] % PANEL == 0 for part in joined.operands):
            return ops.cat([ops.build(function, "accrt.pack", part.t()) for part in joined.operands], 0)
    return ops.build(function, "accrt.pack", weight)


def pack_weights(module: Module) -> None:
    """x @ w with a weight w becomes a product with its packed form."""
    for function in module.functions.values():
        if function.prepare:
            continue
        derived = constant_derived(function)

        def visit(op: Op) -> Optional[Sequence[Value]]:
            if op.name != "aten.matmul":
                return None
            x, weight = op.operands
            if id(weight) not in derived or id(x) in derived or weight.rank != 2 or weight.dtype not in PACKED or x.dtype not in PACKED:
                return None
            if not all(isinstance(size, int) and size > 0 for size in weight.shape):
                return None
            packed = _packed(function, weight)
            attrs = {"columns": weight.shape[1], "activation": "none", "dtype": op.result.dtype}
            return [function.add("accrt.matmul_packed", [x, packed, None, None], attrs).result]

        rewrite(function, visit)
