"""State, inputs that are overwritten, calls and users' kernels."""

from __future__ import annotations

from typing import Any, Dict, Sequence

from .. import arguments
from .. import expr as ex
from ..expr import Size
from ..declared import State, TensorType, same_types
from ..ir import IRError, Op
from .schema import define, Types


def check_state(op: Op, state: Any) -> None:
    known = op.block.function.module.states
    if not isinstance(state, State):
        raise IRError(f"{arguments.described(state)} is no state: it takes what m.state(...) gives{arguments.near(state, known)}")
    if known.get(state.name) is not state:
        raise IRError(f"state {state.name!r} is of another module")


@define("accrt.state_read(State state)")
def _infer_state_read(op: Op) -> Types:
    """What is in a state: what m.state(...) gave."""
    check_state(op, op.attrs["state"])
    return [op.attrs["state"].type]


@define("accrt.state_write(Tensor value, State! state, Size[] offsets)", effect=True)
def _infer_state_write(op: Op) -> Types:
    """Writes `value` into the state, its first element at `offsets` (sizes or expressions, one per
    dimension)."""
    value, state = op.operands[0], op.attrs["state"]
    check_state(op, state)
    if value.dtype != state.type.dtype or value.rank != state.type.rank or len(op.attrs["offsets"]) != value.rank:
        raise IRError(f"{value.type} into state {state.name!r} of {state.type} at {op.attrs['offsets']}")
    return []


@define("accrt.write_input(Tensor value, str name)", effect=True)
def _infer_write_input(op: Op) -> Types:
    """Overwrites a read_write input; reads of it that come later see the new content."""
    value = op.operands[0]
    found = [i for i in op.block.function.inputs if i.name == op.attrs["name"] and i.access == "read_write"]
    if not found or not found[0].value.type.same(value.type):
        raise IRError(f"{value.type} into {op.attrs['name']!r}, which is no read_write input of that type")
    return []


@define("accrt.call(Tensor[] operands, callee, scalars)", effect=True)
def _infer_call(op: Op) -> Types:
    callee = op.block.function.module.functions.get(op.attrs["callee"])
    if callee is None:
        raise IRError(f"there is no function {op.attrs['callee']!r}")
    names = [i.name for i in callee.inputs if i.symbol]
    if sorted(op.attrs["scalars"]) != sorted(names):
        raise IRError(f"{callee.name!r} takes scalars {names}, not {sorted(op.attrs['scalars'])}")
    given = {i.symbol: op.attrs["scalars"][i.name] for i in callee.inputs if i.symbol}
    wanted = [_given_type(i.value.type, given) for i in callee.inputs if i.value is not None]
    if not same_types([v.type for v in op.operands], wanted):
        raise IRError(f"{callee.name!r} takes {[str(t) for t in wanted]}, not {[str(v.type) for v in op.operands]}")
    return [_given_type(r.value.type, given) for r in callee.results]


def _given_type(type_: TensorType, given: Dict[str, Size]) -> TensorType:
    """A callee's type as its caller sees it: with what the scalars of the call give its symbols."""
    return TensorType(type_.dtype, tuple(ex.substitute(size, given) for size in type_.shape), type_.encoding)


@define("accrt.kernel(Tensor[] operands, kernel, types, values, states=None, reference=None)", effect=True)
def _infer_kernel(op: Op) -> Types:
    """`states`: those among what the kernel takes, with their places there."""
    kernel, states = op.attrs["kernel"], dict(op.attrs["states"])
    taken = [p for p in kernel.params if p.kind == "buffer" and p.access != "write"]
    written = [p for p in kernel.params if p.kind == "buffer" and p.access == "write"]
    if len(op.operands) + len(states) != len(taken) or len(op.attrs["types"]) != len(written):
        raise IRError(f"kernel {kernel.name!r} reads {[p.name for p in taken]} and writes {[p.name for p in written]}; "
                      f"{len(op.operands) + len(states)} operands, {len(op.attrs['types'])} results")  # fmt: skip
    _check_states(op, states, taken)
    values_left = iter(op.operands)
    given = [(p, states[i].type if i in states else next(values_left).type) for i, p in enumerate(taken)]
    for param, type_ in [*given, *zip(written, op.attrs["types"])]:
        if param.dtype and param.dtype != type_.dtype:
            raise IRError(f"kernel {kernel.name!r} takes {param.name} as {param.dtype}, and it is {type_}")
    values = [p.name for p in kernel.params if p.kind in ("symbol", "scalar")]
    if sorted(op.attrs["values"]) != sorted(values):
        raise IRError(f"kernel {kernel.name!r} needs values {values}, not {sorted(op.attrs['values'])}")
    return list(op.attrs["types"])


def _check_states(op: Op, states: Dict[int, State], taken: Sequence[Any]) -> None:
    kernel, found = op.attrs["kernel"], list(states.values())
    both = [p.name for i, p in enumerate(taken) if p.access == "read_write" and i not in states]
    if both:
        raise IRError(f"kernel {kernel.name!r} reads and writes {both}, and values of a program do not change: "
                      "give it a state there, or let it read one buffer and write another")  # fmt: skip
    for index, state in states.items():
        check_state(op, state)
        if taken[index].access != "read" and sum(other is state for other in found) > 1:
            raise IRError(f"kernel {kernel.name!r} gets state {state.name!r} twice, and writes it as {taken[index].name}")
