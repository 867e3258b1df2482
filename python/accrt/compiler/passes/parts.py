"""Element-wise work moves past concatenations and slices on hosts: what comes behind a
concatenation is done in each part, and what comes before slices in each slice. So padding, rolling
and gates of two halves are no tensors between kernels."""

from __future__ import annotations

from typing import Dict, List, Optional, Sequence, Tuple

from .. import expr as ex
from .. import ops
from ..expr import Size
from ..ir import Function, Op, Value
from .rewrite import constant_derived, is_plain_work, moves_past_write, rewrite, uses
from .tidy import remove_unused

MAX_PARTS = 4
MAX_ROUNDS = 16


def work_in_parts(function: Function) -> None:
    for _round in range(MAX_ROUNDS):
        if not _Round(function).run():
            break
        remove_unused(function)


class _Round:
    """Moves work by one operation. What is made here moves on in the next round."""

    def __init__(self, function: Function):
        self.function, self.changed = function, False
        self.used, self.derived = uses(function), constant_derived(function)
        self.pending = {id(block): list(block.ops) for block in function.body.blocks()}
        self.ranges = function.module.ranges()
        self.cuts: Dict[int, bool] = {}  # whether a value is better made in the slices of it

    def run(self) -> bool:
        rewrite(self.function, self._visit)
        return self.changed

    def _visit(self, op: Op) -> Optional[Sequence[Value]]:
        made = None
        if op.name == "accrt.elementwise":
            made = self._in_parts(op)
        elif op.name == "aten.slice":
            made = self._in_slice(op)
        self.changed |= made is not None
        return made

    def _in_parts(self, op: Op) -> Optional[Sequence[Value]]:
        """Work behind a concatenation that nothing else uses."""
        if not is_plain_work(op):
            return None
        for value in op.operands:
            joined = value.op
            if joined is None or joined.name != "aten.cat" or joined.block is not op.block or id(value) in self.derived:
                continue
            if any(user is not op for user in self.used.get(id(value), [None])) or not ex.same_shape(value.shape, op.attrs["shape"]):
                continue
            if len(joined.operands) > MAX_PARTS or any(_has_kernel(part) for part in joined.operands) or self._passes_write(joined, op):
                continue
            axis, at, parts = ops.axis_of(joined.attrs["dim"], value.rank), 0, []
            for part in joined.operands:
                end = ex.simplify(ex.constant(at) + part.shape[axis])
                given = [part if v is value else _cut(v, axis, value.rank, at, end, 1) for v in op.operands]
                parts.append(self._work(op, given, part.shape))
                at = end
            return [ops.cat(parts, axis)]
        return None

    def _in_slice(self, op: Op) -> Optional[Sequence[Value]]:
        """Work before slices that nothing else uses."""
        value = op.operands[0]
        work = value.op
        if not is_plain_work(work) or work.block is not op.block or id(value) in self.derived:
            return None
        if not self._is_cut(value) or self._passes_write(work, op) or not ex.same_shape(value.shape, work.attrs["shape"]):
            return None
        axis, (start, end) = ops.axis_of(op.attrs["dim"], value.rank), ops.slice_bounds(op)
        given = [_cut(v, axis, value.rank, start, end, op.attrs["step"]) for v in work.operands]
        return [self._work(work, given, op.result.shape)]

    def _is_cut(self, value: Value) -> bool:
        if id(value) not in self.cuts:
            self.cuts[id(value)] = self._only_cut(value)
        return self.cuts[id(value)]

    def _only_cut(self, value: Value) -> bool:
        """Whether a value is used by slices alone that do not overlap, and these by work or
        concatenations."""
        users = self.used.get(id(value), [None])
        if any(user is None or user.name != "aten.slice" or user.block is not value.op.block for user in users):
            return False
        if len(users) > MAX_PARTS or len({ops.axis_of(user.attrs["dim"], value.rank) for user in users}) > 1:
            return False
        if any(next_ is None or next_.name not in ("accrt.elementwise", "aten.cat") for user in users for next_ in self.used.get(id(user.result), [None])):
            return False
        bounds = [ops.slice_bounds(user) for user in users]
        limit = value.shape[ops.axis_of(users[0].attrs["dim"], value.rank)]
        if any(user.attrs["step"] != 1 for user in users) or not all(self._is_inside(start, end, limit) for start, end in bounds):
            return False
        return all(
            ex.proved_less_equal(a[1], b[0]) or ex.proved_less_equal(b[1], a[0]) for i, a in enumerate(bounds) for b in bounds[i + 1 :]
        )

    def _is_inside(self, start: Size, end: Size, limit: Size) -> bool:
        """Whether no call need check a slice: the check names the value that is cut."""
        sides = (ex.constant(start), ex.constant(end) - start, ex.constant(limit) - end)
        least = [ex.bounds(side, self.ranges)[0] for side in sides]
        return all(low is not None and low >= 0 for low in least)

    def _passes_write(self, first: Op, second: Op) -> bool:
        return moves_past_write(first, second, self.pending[id(second.block)])

    def _work(self, op: Op, operands: Sequence[Value], shape: Tuple[Size, ...]) -> Value:
        attrs = {"program": op.attrs["program"], "symbols": op.attrs["symbols"], "shape": tuple(shape)}
        return self.function.add("accrt.elementwise", list(operands), attrs).result


def _has_kernel(value: Value) -> bool:
    """Whether a kernel that is no element-wise work writes a value, which it can do right into the
    concatenation."""
    while value.op is not None and value.op.name in ("aten.view", "aten.permute"):
        value = value.op.operands[0]
    if value.op is not None and value.op.name == "aten.cat":
        return any(map(_has_kernel, value.op.operands))
    return value.op is not None and value.op.name not in ("accrt.elementwise", "accrt.state_read") and not ops.OPS[value.op.name].view


def _cut(value: Value, axis: int, rank: int, start: Size, end: Size, step: int) -> Value:
    """What of an operand belongs to places from start to end along an axis of the shape that it
    broadcasts to."""
    here = axis - (rank - value.rank)
    if here < 0 or ex.same(value.shape[here], 1):
        return value
    return value.slice(here, start, end, step)


__all__: List[str] = ["work_in_parts"]
