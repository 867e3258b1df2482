"""Lookups as element-wise programs: what is looked up is read through the index by the loop that
uses it, and is no tensor of its own."""

from __future__ import annotations

from typing import Callable, List, Optional, Sequence, Tuple

from .. import expr as ex
from .. import ops
from ..ir import Module, Op, Value
from ..kernels import elementwise as ew
from .rewrite import rewrite

#: Operands, program and symbols of element-wise work.
Parts = Tuple[List[Value], ew.Program, Tuple[object, ...]]

LOOKUPS = ("aten.index_select", "aten.embedding")


def form_lookups(module: Module) -> None:
    """Each gather becomes element-wise work: an index for each element is one for each of the
    loop."""

    def visit(op: Op) -> Optional[Sequence[Value]]:
        if op.name != "aten.gather" or not op.result.rank:
            return None
        source, index = op.operands
        axis = ops.axis_of(op.attrs["dim"], source.rank)
        for i in range(source.rank):
            if i != axis and not ex.same(index.shape[i], source.shape[i]):
                source = source.slice(i, 0, index.shape[i])
        return [_elementwise(op, [source, index], axis)]

    for function in module.functions.values():
        rewrite(function, visit)


def _elementwise(op: Op, operands: List[Value], axis: int) -> Value:
    program = _program(operands, axis)
    return op.block.function.add("accrt.elementwise", operands, {"program": program, "symbols": (), "shape": op.result.shape}).result


def _program(operands: Sequence[Value], axis: int) -> ew.Program:
    source, index = operands
    nodes = (ew.Node("input", index.dtype, (), 1), ew.Node("take", source.dtype, (0,), (0, (axis,))))
    return ew.Program(nodes, (1,))


def parts_of(op: Op) -> Parts:
    """A lookup as element-wise work of its result's shape. Adds a view of the index."""
    source, index = op.operands
    axis = 0 if op.name == "aten.embedding" else ops.axis_of(op.attrs["dim"], source.rank)
    behind = source.rank - axis - 1
    operands = [source, index.view([*index.shape, *[1] * behind]) if behind else index]
    return operands, _program(operands, axis), ()


def through(
    axes: Sequence[int], places: Sequence[int], rank: int, put: Callable[[ew.Node], int], take: Callable[[Value, Sequence[int]], int]
) -> Callable[[Value, str, Sequence[int], Sequence[int]], int]:
    """How a program over a shape of `rank` axes is calculated at looked-up places along some of
    them: a function that reads an operand there, which may be taken along axes already."""

    def read(value: Value, dtype: str, taken: Sequence[int] = (), given: Sequence[int] = ()) -> int:
        own, at = list(taken), list(given)
        for axis, place in zip(axes, places):
            here = axis - (rank - value.rank)
            if here >= 0 and here not in own and not ex.same(value.shape[here], 1):
                own.append(here)
                at.append(place)
        if not own:
            return put(ew.Node("input", dtype, (), take(value, ())))
        return put(ew.Node("take", dtype, tuple(at), (take(value, own), tuple(own))))

    return read


def is_varied(operands: Sequence[Value], axes: Sequence[int], rank: int) -> bool:
    """Whether an operand has each of these axes of a shape of `rank` axes: a place that is outside
    is then found."""

    def has(value: Value, axis: int) -> bool:
        here = axis - (rank - value.rank)
        return here >= 0 and not ex.same(value.shape[here], 1)

    return all(any(has(value, axis) for value in operands) for axis in axes)
