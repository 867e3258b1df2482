"""Layers that go through a sequence: LSTM, GRU and the plain recurrent one, with torch's gates and
its order of weights.

What the inputs give is one product over the whole sequence; a step has the product with what the
step before gave. Short sequences of fixed length are written out, others are a loop.
"""

from __future__ import annotations

from typing import Any, Callable, List, NamedTuple, Optional, Sequence, Tuple

from ..ir import Function, IRError, Value
from . import elementwise, functions, ordering, products, shapes  # noqa: F401  - the methods that are used here

#: Steps that are written out.
WRITTEN_OUT = 8

State = List[Value]


class Cell(NamedTuple):
    """What a step does: `gates` as many as the hidden size in its weights, and how the product of
    the inputs and that of the state make a new state. `joined`: their biases are one."""

    gates: int
    step: Callable[[Value, Value, State], State]
    joined: bool


def _lstm(given: Value, own: Value, state: State) -> State:
    i, f, g, o = (given + own).chunk(4, -1)
    cell = f.sigmoid() * state[1] + i.sigmoid() * g.tanh()
    return [o.sigmoid() * cell.tanh(), cell]


def _gru(given: Value, own: Value, state: State) -> State:
    (r, z, n), (own_r, own_z, own_n) = given.chunk(3, -1), own.chunk(3, -1)
    kept = (z + own_z).sigmoid()
    new = (n + (r + own_r).sigmoid() * own_n).tanh()
    return [new + (state[0] - new) * kept]


CELLS = {
    "lstm": Cell(4, _lstm, True), "gru": Cell(3, _gru, False), "rnn_tanh": Cell(1, lambda given, own, state: [(given + own).tanh()], True),
    "rnn_relu": Cell(1, lambda given, own, state: [(given + own).relu()], True),
}  # fmt: skip


def recurrent(kind: str, x: Value, states: Sequence[Value], weights: Sequence[Value], has_biases: bool, layers: int, both_ways: bool, batch_first: bool) -> List[Value]:
    """The outputs of the last layer [steps, batch, size], and the last states [layers * ways,
    batch, size]. `states` begin likewise, `weights` are torch's flat list."""
    cell, ways, function = CELLS[kind], 2 if both_ways else 1, x.function
    unbatched = x.rank == 2
    x = x.unsqueeze(1) if unbatched else x.transpose(0, 1) if batch_first else x
    states = [s.unsqueeze(1) if unbatched else s for s in states]
    each = len(weights) // (layers * ways)
    if each * layers * ways != len(weights) or each not in ((4, 5) if has_biases else (2, 3)):
        raise IRError(f"function {function.name!r}: {kind} of {layers} layers with {len(weights)} weights")
    last: List[State] = []
    for layer in range(layers):
        made = []
        for way in range(ways):
            at = layer * ways + way
            own = list(weights[at * each : (at + 1) * each])
            output, state = _direction(cell, x, [s.select(0, at) for s in states], own, has_biases, way == 1)
            made.append(output)
            last.append(state)
        x = shapes.cat(made, 2) if ways > 1 else made[0]
    finals = [_stacked([state[i] for state in last]) for i in range(len(states))]
    if unbatched:
        return [x.select(1, 0), *(f.select(1, 0) for f in finals)]
    return [x.transpose(0, 1) if batch_first else x, *finals]


def _stacked(parts: Sequence[Value]) -> Value:
    wide = [part.unsqueeze(0) for part in parts]
    return shapes.cat(wide, 0) if len(wide) > 1 else wide[0]


def _direction(cell: Cell, x: Value, state: State, weights: List[Value], has_biases: bool, backwards: bool) -> Tuple[Value, State]:
    w_in, w_own = weights[:2]
    b_in, b_own = weights[2:4] if has_biases else (None, None)
    projection: Optional[Value] = weights[-1] if len(weights) % 2 else None
    if cell.joined and b_in is not None and b_own is not None:
        b_in, b_own = b_in + b_own, None
    given, steps = x.linear(w_in, b_in), x.shape[0]

    def step(part: Value, before: State) -> State:
        made = cell.step(part, before[0].linear(w_own, b_own), before)
        return made if projection is None else [made[0].linear(projection), *made[1:]]

    if isinstance(steps, int) and steps <= WRITTEN_OUT:
        outputs: List[Any] = [None] * steps
        for i in reversed(range(steps)) if backwards else range(steps):
            state = step(given.select(0, i), state)
            outputs[i] = state[0].unsqueeze(0)
        return shapes.cat(outputs, 0) if steps > 1 else outputs[0], state
    return _loop(x.function, given, steps, state, step, backwards)


def _loop(function: Function, given: Value, steps: Any, state: State, step: Callable[[Value, State], State], backwards: bool) -> Tuple[Value, State]:
    size = state[0].shape
    first = function.full([steps, *size], 0.0, state[0].dtype)

    def body(index: Any, outputs: Value, *before: Value) -> List[Value]:
        at = (steps - 1 - index) if backwards else index
        after = step(given.select(0, at), list(before))
        return [outputs.scatter(function.full([1], at, "i64"), after[0].unsqueeze(0), 0, False), *after]

    outputs, *last = function.repeat(steps, [first, *state], body)
    return outputs, last
