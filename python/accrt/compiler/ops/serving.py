"""What a step of a serving engine needs: positions, slots and pages that tensors give."""

from __future__ import annotations

from typing import Any, List

from .. import expr as ex
from ..ir import FLOATS, Function, IRError, Op, State, TensorType, Value
from .effects import check_state
from .schema import build, define, need_same, numpy, Types
from .shapes import cat

INDICES = ("i32", "i64")


def _index_of(op: Op, value: Value, what: str, length: Any) -> None:
    """Indices [length]."""
    if value.dtype not in INDICES or value.rank != 1:
        raise IRError(f"{what} of {value.type}; i32 [{length}] are needed")
    need_same(value.shape[0], length, what)


# ---- Rotary embedding at given positions -----------------------------------------------------------------------------


def _rope_at(x: Any, positions: Any, frequencies: Any, scale: float = 1.0, interleaved: bool = False) -> Any:
    np = numpy()
    angles = positions.astype(np.float64)[:, None, None] * frequencies
    cos, sin = np.cos(angles) * scale, np.sin(angles) * scale
    half, y = frequencies.shape[0], x.copy()
    first, second = (slice(0, 2 * half, 2), slice(1, 2 * half, 2)) if interleaved else (slice(0, half), slice(half, 2 * half))
    a, b = x[..., first], x[..., second]
    y[..., first], y[..., second] = a * cos - b * sin, b * cos + a * sin
    return y


def _decompose_rope_at(op: Op) -> Value:
    x, positions, frequencies = op.operands
    half, size, lead = frequencies.shape[0], x.shape[-1], list(x.shape[:-1])
    angles = positions.to_copy("f64").view([-1, 1, 1]) * frequencies.to_copy("f64")
    cos, sin = ((part * op.attrs["scale"]).to_copy(x.dtype) for part in (angles.cos(), angles.sin()))
    rest = [x.slice(-1, 2 * half, size)] if size != 2 * half else []
    if op.attrs["interleaved"]:
        pairs = x.slice(-1, 0, 2 * half).view([*lead, half, 2])
        a, b = pairs.select(-1, 0), pairs.select(-1, 1)
        turned = cat([(a * cos - b * sin).unsqueeze(-1), (b * cos + a * sin).unsqueeze(-1)], -1)
        return cat([turned.view([*lead, 2 * half]), *rest], -1)
    a, b = x.slice(-1, 0, half), x.slice(-1, half, 2 * half)
    return cat([a * cos - b * sin, b * cos + a * sin, *rest], -1)


@define(
    "accrt.rope_at(Tensor self, Tensor positions, Tensor frequencies, float scale=1.0, bool interleaved=False)",
    reference=_rope_at, decompose=_decompose_rope_at,
)  # fmt: skip
def _infer_rope_at(op: Op) -> Types:
    """Rotary embedding of [tokens, heads, size] at positions [tokens]. Frequencies [r / 2] of f32 turn the first r of each head: pair i
    is (i, i + r / 2), or (2 i, 2 i + 1) where interleaved. Cosines and sines are multiplied by `scale`, as YaRN has it."""
    x, positions, frequencies = op.operands
    if x.rank != 3 or x.dtype not in FLOATS:
        raise IRError(f"rotary embedding of {x.type}; floats [tokens, heads, size] are needed")
    _index_of(op, positions, "positions", x.shape[0])
    half, size = frequencies.shape[0] if frequencies.rank == 1 else None, x.shape[2]
    if frequencies.dtype != "f32" or not isinstance(half, int) or not isinstance(size, int) or not 0 < 2 * half <= size:
        raise IRError(f"rotary embedding of {x.type} with frequencies of {frequencies.type}; f32 [r / 2] with r of 2 to the head's size are needed")
    return [x.type]


# ---- Rows of a state -------------------------------------------------------------------------------------------------


def _leading(value: Value, state: State) -> int:
    """How many dimensions of the state are taken as one, of rows."""
    lead = state.type.rank - (value.rank - 1)
    if value.rank < 1 or lead < 1:
        raise IRError(f"{value.type} into state {state.name!r} of {state.type}: it has a dimension of rows, and then last ones of the state")
    return lead


def _state_scatter(value: Any, slots: Any, state: Any) -> None:
    rows = state.reshape(-1, *value.shape[1:])
    for row, slot in zip(value, slots):
        if not -1 <= slot < len(rows):
            raise IndexError(f"slot {slot} is outside a state of {len(rows)} rows")
    for row, slot in zip(value, slots):
        if slot >= 0:
            rows[slot] = row


@define("accrt.state_scatter(Tensor value, State! state, Tensor slots)", reference=_state_scatter, effect=True)
def _infer_state_scatter(op: Op) -> Types:
    """Writes row i of [n, ...] into a state at slots[i]. The state's last dimensions are those of a row; the ones before are taken as
    one, of slots. -1 writes nothing; any other slot outside fails the call. Where a slot stands twice, the last row stays. Values are
    cast to the state's type."""
    (value, slots), state = op.operands, op.attrs["state"]
    check_state(op, state)
    lead = _leading(value, state)
    if value.dtype != state.type.dtype:
        raise IRError(f"{value.type} into state {state.name!r} of {state.type}; cast it with to_copy()")
    for a, b in zip(value.shape[1:], state.type.shape[lead:]):
        need_same(a, b, f"rows of {value.type} for state {state.name!r} of {state.type}")
    _index_of(op, slots, "slots", value.shape[0])
    return []


_scatter_rows = Value.state_scatter


def _cast_and_scatter(self: Value, state: State, slots: Value) -> List[Value]:
    cast = isinstance(state, State) and state.type.dtype != self.dtype
    return _scatter_rows(self.to_copy(state.type.dtype) if cast else self, state, slots)


_cast_and_scatter.__doc__ = _scatter_rows.__doc__
Value.state_scatter = _cast_and_scatter


def _state_gather(index: Any, state: Any, dims: int = 1) -> Any:
    rows = state.reshape(-1, *state.shape[dims:])
    wrong = index[(index < 0) | (index >= len(rows))]
    if wrong.size:
        raise IndexError(f"index {wrong[0]} is outside a state of {len(rows)} rows")
    return rows[index]


def _decompose_state_gather(op: Op) -> Value:
    state, dims = op.attrs["state"], op.attrs["dims"]
    rows = op.block.function.state_read(state).view([ex.product(state.type.shape[:dims]), *state.type.shape[dims:]])
    return rows.index_select(0, op.operands[0])


@define("accrt.state_gather(State state, Tensor index, int dims=1)", reference=_state_gather, decompose=_decompose_state_gather)
def _infer_state_gather(op: Op) -> Types:
    """Rows of a state by index [n], without a copy of the state: its first `dims` dimensions are taken as one, of rows. An index outside
    fails the call."""
    (index,), state, dims = op.operands, op.attrs["state"], op.attrs["dims"]
    check_state(op, state)
    _index_of(op, index, "index", index.shape[0] if index.rank else 0)
    if not 1 <= dims <= state.type.rank:
        raise IRError(f"rows of {dims} dimensions of state {state.name!r} of {state.type}")
    return [TensorType(state.type.dtype, (index.shape[0], *state.type.shape[dims:]))]


def _function_state_gather(self: Function, state: State, index: Value, dims: int = 1) -> Value:
    return build(self, "accrt.state_gather", state, index, dims)


_function_state_gather.__doc__ = f"state_gather(state, index, dims=1): accrt.state_gather. {_infer_state_gather.__doc__}"
Function.state_gather = _function_state_gather
