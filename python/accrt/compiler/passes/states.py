"""A state of which some places are written: they are written where they lie, and the rest is not
copied."""

from __future__ import annotations

from typing import Dict, Optional, Sequence

from .. import expr as ex
from .. import ops
from ..declared import State
from ..ir import Function, Module, Op, Value
from .rewrite import rewrite


def scatter_states(module: Module, family: str = "host") -> None:
    """What is read of a state, changed at some places of a dimension, and written back to it as a
    whole, as caches of keys are. On CUDA, where of several rows for one place any stays, a single
    place alone."""
    for function in module.functions.values():
        found = {} if function.prepare else _found(function, family)
        if found:
            _place(function, found)


def _found(function: Function, family: str) -> Dict[int, State]:
    """States by the operations that change them. Each is written once, in the function's own
    block."""
    if any(op.name == "accrt.call" for op in function.body.walk()):
        return {}
    writes: Dict[str, list] = {}
    for op in function.body.walk():
        for state, written in ops.states_of(op):
            if written:
                writes.setdefault(state.name, []).append(op)
    found = {}
    for (op, *more) in writes.values():
        change = op.operands[0].op if op.operands else None
        if not more and op.name == "accrt.state_write" and op.block is function.body and change is not None:
            if change.block is function.body and _fits(op, change, family):
                found[id(change)] = found[id(op)] = op.attrs["state"]
    return found


def _fits(write: Op, change: Op, family: str) -> bool:
    state, shape = write.attrs["state"], write.attrs["state"].type.shape
    whole = change.name == "accrt.scatter" and ex.same_shape(change.result.shape, shape) and all(ex.same(o, 0) for o in write.attrs["offsets"])
    if not whole or change.attrs["add"] or change.operands[1].rank != 1 or change.result.dtype != state.type.dtype:
        return False
    read, axis = change.operands[0].op, ops.axis_of(change.attrs["dim"], len(shape))
    if read is None or read.name != "accrt.state_read" or read.attrs["state"] is not state or axis == len(shape) - 1:
        return False
    known = all(isinstance(size, int) for size in shape) and 0 < ex.product(shape[: axis + 1]) < 1 << 31
    return known and (family == "host" or ex.same(change.operands[1].shape[0], 1))


def _place(function: Function, found: Dict[int, State]) -> None:
    def visit(op: Op) -> Optional[Sequence[Value]]:
        state = found.get(id(op))
        if state is None:
            return None
        if op.name == "accrt.state_write":  # it is there
            return []
        _x, index, source = op.operands
        axis = ops.axis_of(op.attrs["dim"], source.rank)
        source.view([-1, *source.shape[axis + 1 :]]).state_scatter(state, _slots(function, index, state.type.shape[: axis + 1]))
        return [function.state_read(state)]

    rewrite(function, visit)


def _slots(function: Function, index: Value, shape: Sequence[int]) -> Value:
    """Rows of the state, whose first dimensions are taken as one: the places in each of them. What
    is outside stays outside."""
    size, rows = shape[-1], ex.product(shape)
    index = index.to_copy("i64") if index.dtype != "i64" else index
    inside = index.ge(0).logical_and(index.lt(size))
    first = function.arange(rows // size).unsqueeze(1) * size
    return inside.where(first + index, rows).view([-1]).to_copy("i32")
