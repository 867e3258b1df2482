"""Both ends of a step of few rows on CUDA: the rows of the embedding that it begins with, and the
tokens that it chooses. Each is a chain of small kernels, and becomes one operation."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Sequence, Set

from .. import expr as ex
from .. import ops
from ..ir import Function, Module, Op, Value
from .rewrite import uses
from .tidy import rewrite_tidily

Used = Dict[int, List[Any]]


class _Known:
    """Of a function before it is rewritten: uses of values, operations in order and those of
    attention, and which states a value is a view of. `gone`: those that another has taken in."""

    def __init__(self, function: Function):
        self.used: Used = uses(function)
        self.order = list(function.body.walk())
        self.places = {id(op): place for place, op in enumerate(self.order)}
        self.attention = [op for op in self.order if op.name == "accrt.paged_attention"]
        self.views: Dict[int, Set[int]] = {}
        for op in self.order:
            if op.name == "accrt.state_read":
                self.views[id(op.result)] = {id(op.attrs["state"])}
            elif op.name in ops.OPS and ops.OPS[op.name].view:
                self.views.update({id(v): set().union(*(self._states(x) for x in op.operands)) for v in op.results})
        self.gone: Set[int] = set()

    def _states(self, value: Optional[Value]) -> Set[int]:
        return self.views.get(id(value), set())

    def touches_between(self, first: Op, last: Op, state: Any) -> bool:
        """Whether an operation between two reads or writes a state: to move the one to the other
        would change what it finds there, or what is found behind it."""
        for op in self.order[self.places[id(first)] + 1 : self.places[id(last)]]:
            if op.regions or any(s is state for s, _ in ops.states_of(op)) or any(id(state) in self._states(v) for v in op.operands):
                return True
        return False


def join_step_ends(module: Module) -> None:
    for function in [f for f in module.functions.values() if not f.prepare]:
        for join in (_first, _walked, _greedy):
            known = _Known(function)
            rewrite_tidily(function, lambda op, join=join, known=known: join(op, known))


def _made_by(value: Value, name: str, used: Used) -> Optional[Op]:
    """The operation of that name that makes a value, where nothing else uses it."""
    op = value.op
    return op if op is not None and op.name == name and len(used.get(id(value), ())) == 1 else None


def _is_index(value: Value) -> bool:
    return value.rank == 1 and value.dtype == "i32"


def _is_below_zero(op: Optional[Op], given: Value) -> bool:
    """given < 0"""
    zero = op.operands[1].op if op is not None and op.operands[0] is given else None
    return zero is not None and zero.name == "aten.full" and zero.attrs["fill_value"] == 0


def _first(op: Op, known: _Known) -> Optional[Sequence[Value]]:
    """embedding(weight, (given < 0).where(last[row_ids[rows]], given).clamp(0, most)), and the
    writing of the page table before it."""
    if op.name != "aten.embedding":
        return None
    (weight, ids), used = op.operands, known.used
    held = _made_by(ids, "aten.clamp", used)
    chosen = _made_by(held.operands[0], "aten.where", used) if held is not None else None
    if chosen is None or held is None or (held.attrs["min"], held.attrs["max"]) != (0, weight.shape[0] - 1) or chosen.operands[0].op is None:
        return None
    condition, found, given = chosen.operands
    picked = _made_by(found, "aten.index_select", used)
    below = _made_by(condition, "aten.lt", used)
    if picked is None or not _is_below_zero(below, given) or not _is_index(given):
        return None
    read, its_rows = picked.operands[0].op, _made_by(picked.operands[1], "aten.index_select", used)
    if read is None or read.name != "accrt.state_read" or its_rows is None or not all(map(_is_index, (*its_rows.operands, picked.operands[0]))):
        return None
    write, attention = _last_write(op, read), _attention(known, its_rows.operands[0])
    if write is not None and known.touches_between(write, op, write.attrs["state"]):
        return None
    if write is None or attention is None or not all(map(_is_index, write.operands)) or op.result.dtype != weight.dtype or weight.constant is None:
        return None
    op.block.ops.remove(write)
    attrs = {"last": read.attrs["state"], "page_table": write.attrs["state"]}
    row_ids, rows = its_rows.operands
    return op.block.function.add("accrt.step_tokens", [given, weight, rows, row_ids, *write.operands, *attention.operands[2:4]], attrs).results[:1]


def _attention(known: _Known, row_ids: Value) -> Optional[Op]:
    """The first attention of these rows, which inputs of the function say."""
    found = (op for op in known.attention if op.operands[1] is row_ids)
    return next((op for op in found if all(value.op is None for value in op.operands[1:4])), None)


def _walked(op: Op, _known: _Known) -> Optional[Sequence[Value]]:
    """Attention of the tokens that step_tokens has an order of."""
    if op.name != "accrt.paged_attention":
        return None
    first = next((before for before in op.block.ops if before.name == "accrt.step_tokens"), None)
    if first is None or any(first.operands[i] is not own for i, own in zip((3, 6, 7), op.operands[1:4])):
        return None
    if not ex.same_shape(first.results[1].shape, op.operands[0].shape[:1]):
        return None
    return [op.block.function.add("accrt.walked_attention", [*op.operands, first.results[1]], op.attrs).result]


def _last_write(op: Op, read: Op) -> Optional[Op]:
    """The write of a state before an operation, where nothing between them but `read` has to do
    with states."""
    for before in reversed(op.block.ops):
        if before is read:
            continue
        if before.name == "accrt.state_scatter":
            state = before.attrs["state"]
            return before if state.type.dtype == "i32" and state is not read.attrs["state"] else None
        if before.regions or ops.OPS[before.name].effect or ops.states_of(before):
            return None
    return None


def _greedy(op: Op, known: _Known) -> Optional[Sequence[Value]]:
    """The place of the largest of each row as i32, which is written to a state."""
    used = known.used
    if id(op) in known.gone:
        return []
    largest = _made_by(op.operands[0], "aten.argmax", used) if op.name == "aten._to_copy" and op.result.dtype == "i32" else None
    if largest is None or largest.attrs["keepdim"] or largest.attrs["dim"] is None:
        return None
    x = largest.operands[0]
    if x.rank != 2 or x.dtype not in ("f32", "f16", "bf16") or ops.axis_of(largest.attrs["dim"], 2) != 1:
        return None
    writes = [user for user in used[id(op.result)] if user is not None and user.name == "accrt.state_scatter" and user.operands[0] is op.result]
    if len(writes) != 1 or writes[0].block is not op.block or not _is_index(writes[0].operands[1]) or writes[0].operands[1].op is not None:
        return None
    state = writes[0].attrs["state"]
    if state.type.dtype != "i32" or any(user not in (None, writes[0]) for user in used[id(op.result)]):
        return None
    if known.touches_between(op, writes[0], state):
        return None
    known.gone.add(id(writes[0]))
    return [op.block.function.add("accrt.greedy", [x, writes[0].operands[1]], {"last": state}).result]
