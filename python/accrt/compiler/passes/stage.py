"""Reductions and running sums on hosts take the element-wise work before them and behind them: what
is reduced is calculated a few hundred elements at a time, and no tensor of its own."""

from __future__ import annotations

from typing import Dict, List, Optional, Sequence

from .. import expr as ex
from .. import ops, select
from ..expr import Size
from ..ir import Function, Module, Op, Value
from ..kernels import fused
from .fuse import MAX_INPUTS
from .rewrite import constant_derived, is_plain_work, moves_past_write, uses
from .tidy import rewrite_tidily

CORES = (*select.REDUCTIONS, "aten.cumsum")


def stage_reductions(module: Module) -> None:
    for function in module.functions.values():
        _Stage(function).run()


class _Stage:
    def __init__(self, function: Function):
        self.function = function
        self.used, self.derived = uses(function), constant_derived(function)
        self.ranges = function.module.ranges()
        self.pending = {id(block): list(block.ops) for block in function.body.blocks()}
        #: Of results with no work behind them yet: what they stand for.
        self.standing: Dict[int, Op] = {}

    def run(self) -> None:
        rewrite_tidily(self.function, self._visit)

    def _visit(self, op: Op) -> Optional[Sequence[Value]]:
        if op.results and id(op.results[0]) in self.derived:
            return None  # made when the program is loaded
        if op.name in CORES:
            return self._with_work_before(op)
        if op.name == "accrt.elementwise":
            return self._with_reduction_before(op)
        return None

    def _with_work_before(self, op: Op) -> Optional[Sequence[Value]]:
        x = op.operands[0]
        work = x.op
        if not is_plain_work(work) or work.block is not op.block or x.rank == 0 or id(x) in self.derived:
            return None
        if any(user is not op for user in self.used.get(id(x), [None])) or not ex.same_shape(x.shape, work.attrs["shape"]):
            return None
        if moves_past_write(work, op, self.pending[id(op.block)]) or self._is_better_shared_out(op, work):
            return None
        return self._made(op, op, _attributes(op, work), work.operands)

    def _is_better_shared_out(self, op: Op, work: Op) -> bool:
        """Whether many threads can do the work before a reduction, and few the reduction: it has
        few results, each made by one thread."""
        if not any(fused.ew.is_dear(node) for node in work.attrs["program"].nodes):
            return False
        shape = op.operands[0].shape
        pieces, most = _pieces(op, shape), ex.bounds(ex.product(shape), self.ranges)[1]
        return isinstance(pieces, int) and pieces < FEW_PIECES and (most is None or most > ALONE)

    def _with_reduction_before(self, op: Op) -> Optional[Sequence[Value]]:
        if not is_plain_work(op):
            return None
        for index, value in enumerate(op.operands):
            reduction = value.op
            if reduction is None or reduction.name not in (*CORES, "accrt.staged") or not ex.same_shape(value.shape, op.attrs["shape"]):
                continue
            # of the function as it was; a reduction that has work behind it takes no more
            stood = self.standing.get(id(value)) if reduction.name == "accrt.staged" else reduction
            if stood is None or reduction.block is not op.block or id(value) in self.derived:
                continue
            if any(user is not op for user in self.used.get(id(stood.result), [None])):
                continue
            if reduction.name != "accrt.staged" and reduction.operands[0].rank == 0:
                continue
            if moves_past_write(stood, op, self.pending[id(op.block)]):
                continue
            made = self._with_work_behind(reduction, op, index)
            if made is not None:
                return made
        return None

    def _with_work_behind(self, reduction: Op, op: Op, index: int) -> Optional[Sequence[Value]]:
        if reduction.name == "accrt.staged":
            attrs, operands = dict(reduction.attrs), list(reduction.operands)
        else:
            attrs, operands = _attributes(reduction, None), [reduction.operands[0]]
        order = [index, *(i for i in range(len(op.operands)) if i != index)]
        if any(op.operands[i] is op.operands[index] for i in order[1:]):
            return None
        attrs.update(after=_renumbered(op.attrs["program"], order), after_symbols=op.attrs["symbols"])
        return self._made(op, None, attrs, [*operands, *(op.operands[i] for i in order[1:])])

    def _made(self, op: Op, stands_for: Optional[Op], attrs: Dict[str, object], operands: List[Value]) -> Optional[Sequence[Value]]:
        """In the place of `op`, if a kernel does it."""
        if len(operands) > MAX_INPUTS:
            return None
        trial = Op("accrt.staged", list(operands), attrs, op.block)
        trial.results = [Value(self.function, op.result.type)]
        if not select.supported(trial):
            return None
        made = self.function.add("accrt.staged", list(operands), attrs)
        if stands_for is not None:
            self.standing[id(made.result)] = stands_for
        return [made.result]


#: Dear work on more elements than these is left to all threads, where a reduction has few pieces.
ALONE, FEW_PIECES = 65536, 8


def _pieces(op: Op, shape: Sequence[Size]) -> Size:
    """How many pieces a reduction has, each for one thread."""
    summed = op.name == "aten.cumsum"
    axes = [ops.axis_of(op.attrs["dim"], len(shape))] if summed else ops.axes_of(op.attrs["dim"], len(shape))
    kept = [size for axis, size in enumerate(shape) if axis not in axes]
    last = next((axis for axis in reversed(range(len(shape))) if not ex.same(shape[axis], 1)), -1)
    if last in axes:
        piece = 1 if summed else fused.ROW_PIECE
    else:
        piece = fused.LINE_PIECE if summed else fused.COLUMN_PIECE
    return ex.simplify(ex.ceildiv(ex.product(kept), piece))


def _attributes(op: Op, work: Optional[Op]) -> Dict[str, object]:
    """Of a reduction with work before it, or with none."""
    x = op.operands[0]
    before, symbols, count = (fused.same(x.dtype), (), 1) if work is None else (work.attrs["program"], work.attrs["symbols"], len(work.operands))
    return {
        "core": op.name, "core_attrs": op.attrs, "before": before, "before_symbols": symbols, "after": fused.same(op.result.dtype),
        "after_symbols": (), "shape": x.shape, "count": count,
    }  # fmt: skip


def _renumbered(program, order: Sequence[int]):
    """The program with its inputs in another order."""
    place = {old: new for new, old in enumerate(order)}
    nodes = tuple(fused.ew.Node(n.op, n.dtype, n.args, place[n.value]) if n.op == "input" else n for n in program.nodes)
    return fused.ew.Program(nodes, program.outputs)
