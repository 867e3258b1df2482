"""Copying a module, and keeping it tidy: equal operations once, views of views joined, what nothing
uses removed."""

from __future__ import annotations

import dataclasses
from typing import Any, Dict, List, Optional, Sequence

from .. import expr as ex
from .. import ops
from ..ir import Block, Function, Module, Op, Result, Value
from .rewrite import mutable_root, rewrite, uses, Visit


def clone(module: Module) -> Module:
    """A copy that shares nothing but the data of constants (and the Symbol, Constant and State
    records)."""
    copy = Module(module.name)
    copy.symbols, copy.constants = dict(module.symbols), dict(module.constants)
    copy.states, copy.metadata, copy.compute = dict(module.states), dict(module.metadata), dict(module.compute)
    copy.batch_invariant = module.batch_invariant
    copy.files = dict(module.files)
    for function in module.functions.values():
        copy.functions[function.name] = _clone_function(copy, function)
    return copy


def _clone_function(module: Module, source: Function) -> Function:
    made = Function(module, source.name, source.internal, source.prepare, source.doc)
    values: Dict[int, Value] = {}

    def value(old: Optional[Value]) -> Optional[Value]:
        if old is None:
            return None
        if id(old) not in values:
            values[id(old)] = Value(made, old.type, name=old.name)
            values[id(old)].constant = old.constant
        return values[id(old)]

    def block(old: Block, parent: Optional[Op]) -> Block:
        new = Block(made, parent) if parent is not None else made.body
        new.args = [value(v) for v in old.args]
        for op in old.ops:
            copied = Op(op.name, [value(v) for v in op.operands], op.attrs, new)
            copied.label = op.label
            copied.results = [value(v) for v in op.results]
            for result in copied.results:
                result.op = copied
            copied.regions = [block(region, copied) for region in op.regions]
            new.ops.append(copied)
        new.yields = [value(v) for v in old.yields]
        return new

    made.inputs = [dataclasses.replace(i, value=value(i.value)) for i in source.inputs]
    made.required = list(source.required)
    made.constants = {name: value(v) for name, v in source.constants.items()}
    block(source.body, None)
    made.results = [Result(r.name, value(r.value), r.alias, r.alias_must, r.doc) for r in source.results]
    return made


def tidy(module: Module) -> None:
    for function in module.functions.values():
        rewrite(function, _identity)
        _share(function)
        remove_unused(function)


def _identity(op: Op) -> Optional[Sequence[Value]]:
    """Views that change nothing, casts to the same type, views of views."""
    if not op.operands or op.operands[0] is None or not op.results:
        return None
    source = op.operands[0]
    if op.name == "aten._to_copy" and source.dtype == op.attrs["dtype"]:
        return [source]
    definition = ops.OPS.get(op.name)
    if definition is None or not definition.view:
        return None
    if op.name == "aten.permute":
        dims = [ops.axis_of(d, source.rank) for d in op.attrs["dims"]]
        if dims == list(range(source.rank)):
            return [source]
        if source.op is not None and source.op.name == "aten.permute":
            inner = [ops.axis_of(d, source.rank) for d in source.op.attrs["dims"]]
            return [source.op.operands[0].permute([inner[d] for d in dims])]
        return None
    if op.name == "aten.view" and source.op is not None and source.op.name == "aten.view":
        return [source.op.operands[0].view(list(op.result.shape))]
    if op.name in ("aten.view", "aten.expand", "aten.slice") and op.result.type.same(source.type):
        if op.name != "aten.slice" or (op.attrs["step"] == 1 and ex.same(ops.slice_bounds(op)[0], 0)):
            return [source]
    return None


def _key(op: Op) -> Any:
    def frozen(item: Any) -> Any:
        if isinstance(item, (list, tuple)):
            return tuple(frozen(i) for i in item)
        if isinstance(item, dict):
            return tuple(sorted((k, frozen(v)) for k, v in item.items()))
        if isinstance(item, float):
            return repr(item)
        return ex.simplify(item) if isinstance(item, ex.Expr) else item

    try:
        attrs = frozen(op.attrs)
        key = (op.name, tuple(id(v) for v in op.operands), attrs, tuple(type(v).__name__ for v in op.attrs.values()))
        hash(key)
    except TypeError:
        return None
    return key


def _share(function: Function) -> None:
    """Equal operations without effects become one, within a block."""
    seen: Dict[Any, Op] = {}

    def visit(op: Op) -> Optional[Sequence[Value]]:
        definition = ops.OPS.get(op.name)
        if definition is None or definition.effect or definition.states or op.regions or any(mutable_root(v) is not None for v in op.operands):
            return None
        key = _key(op)
        if key is None:
            return None
        earlier = seen.setdefault((id(op.block), key), op)
        return None if earlier is op else earlier.results

    rewrite(function, visit)


def rewrite_tidily(function: Function, visit: Visit) -> None:
    """Rewrites a function, and removes what nothing uses any more."""
    rewrite(function, visit)
    remove_unused(function)


def remove_unused(function: Function) -> None:
    while True:
        used = uses(function)
        removed = False
        for block in function.body.blocks():
            keep: List[Op] = []
            for op in block.ops:
                if _must_run(op) or any(id(v) in used for v in op.results):
                    keep.append(op)
                else:
                    removed = True
            block.ops = keep
        if not removed:
            break
    used = uses(function)
    function.constants = {name: v for name, v in function.constants.items() if id(v) in used}


def _must_run(op: Op) -> bool:
    if op.regions:
        return any(_must_run(inner) for region in op.regions for inner in region.ops)
    return ops.OPS[op.name].effect
