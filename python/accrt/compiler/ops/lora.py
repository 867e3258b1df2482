"""Low-rank adapters (LoRA), one for each token: y + (x A^T) B, where A and B are rows of states
that the token's index chooses."""

from __future__ import annotations

from typing import Any, List, Tuple

from .. import expr as ex
from ..declared import State, TensorType
from ..ir import IRError, Op, Value
from .effects import check_state
from .schema import define, need_same, numpy, Types

_TYPES = ("f32", "f16", "bf16")


#: Parts of an operand that the pass join_adapters puts side by side, at most.
MOST_PARTS = 3
#: Names of the states of factors, one for each part.
FACTORS = ("factors", "factors1", "factors2")


def factors_of(op: Op) -> List[State]:
    """The states of factors, in the order of the parts."""
    return [op.attrs[name] for name in FACTORS if name in op.attrs]


def _factors(op: Op, state: State, operand: Value, index: Value, what: str) -> Tuple[Any, ...]:
    """Shape of a state of factors, whose first dimension the index chooses from."""
    check_state(op, state)
    if operand.rank != 2 or operand.dtype not in _TYPES:
        raise IRError(f"{what} of {operand.type}; f32, f16 or bf16 [tokens, size] is needed")
    if state.type.rank != 3 or state.type.dtype not in _TYPES or not all(isinstance(size, int) for size in state.type.shape[1:]):
        raise IRError(f"{what} with factors of {state.type}; f32, f16 or bf16 [adapters, rank, size] is needed, rank and size known while compiling")
    if index.dtype != "i32" or index.rank != 1:
        raise IRError(f"{what} with an index of {index.type}; i32 [tokens] is needed")
    need_same(index.shape[0], operand.shape[0], f"{what}, tokens of the index")
    return state.type.shape


def _need_size(state: State, operand: Value, size: Any, what: str) -> None:
    need_same(operand.shape[1], size, f"{what}, size of {operand.type} for state {state.name!r} of {state.type}")


def _check(index: Any, factors: Any) -> None:
    wrong = index[(index < -1) | (index >= len(factors))]
    if wrong.size:
        raise IndexError(f"adapter {wrong[0]} of {len(factors)}")


def _lora_shrink(x: Any, index: Any, factors: Any) -> Any:
    np = numpy()
    _check(index, factors)
    out = np.zeros((len(x), factors.shape[1]))
    for i, adapter in enumerate(index):
        if adapter >= 0:
            out[i] = factors[adapter] @ x[i]
    return out


@define("accrt.lora_shrink(Tensor self, State factors, Tensor index)", reference=_lora_shrink)
def _infer_lora_shrink(op: Op) -> Types:
    """The first half of a low-rank product: x [tokens, size] times row index[t] of a state of
    factors [adapters, rank, size]; f32 [tokens, rank]. An index of -1 gives zeros; any other
    outside fails the call."""
    x, index = op.operands
    _adapters, rank, size = _factors(op, op.attrs["factors"], x, index, "lora_shrink")
    _need_size(op.attrs["factors"], x, size, "lora_shrink")
    return [TensorType("f32", (x.shape[0], rank))]


def _lora_expand(y: Any, shrunk: Any, index: Any, factors: Any) -> Any:
    _check(index, factors)
    out = y.copy()
    for i, adapter in enumerate(index):
        if adapter >= 0:
            out[i] += shrunk[i] @ factors[adapter]
    return out


@define("accrt.lora_expand(Tensor self, Tensor shrunk, State factors, Tensor index)", reference=_lora_expand)
def _infer_lora_expand(op: Op) -> Types:
    """The second half: y [tokens, size] plus what lora_shrink gave, f32 [tokens, rank], times row
    index[t] of a state of factors [adapters, rank, size]. A token of index -1 keeps its y; any
    other outside fails the call."""
    y, shrunk, index = op.operands
    _adapters, rank, size = _factors(op, op.attrs["factors"], y, index, "lora_expand")
    _need_size(op.attrs["factors"], y, size, "lora_expand")
    if shrunk.dtype != "f32" or shrunk.rank != 2:
        raise IRError(f"lora_expand of {shrunk.type}; f32 [tokens, rank] is needed")
    need_same(shrunk.shape[0], y.shape[0], "lora_expand, tokens")
    need_same(shrunk.shape[1], rank, f"lora_expand, rank of state {op.attrs['factors'].name!r}")
    return [y.type]


# ---- Several at once: what the pass join_adapters makes of those that share their input ----------


def _shrink_parts(x: Any, index: Any, **factors: Any) -> Any:
    return numpy().concatenate([_lora_shrink(x, index, one) for one in factors.values()], 1)


def _expand_parts(y: Any, shrunk: Any, index: Any, **factors: Any) -> Any:
    np, parts = numpy(), list(factors.values())
    columns = np.split(y, np.cumsum([one.shape[2] for one in parts])[:-1], 1)
    ranks = np.split(shrunk, len(parts), 1)
    return np.concatenate([_lora_expand(*given, index, one) for *given, one in zip(columns, ranks, parts)], 1)


for _count in range(2, MOST_PARTS + 1):
    _states = ", ".join(f"State {name}" for name in FACTORS[:_count])

    @define(f"accrt.lora_shrink{_count}(Tensor self, {_states}, Tensor index)", reference=_shrink_parts)
    def _infer_shrink_parts(op: Op) -> Types:
        """lora_shrink of one input with several states of one rank, side by side."""
        x, index = op.operands
        shapes = [_factors(op, state, x, index, "lora_shrink") for state in factors_of(op)]
        for state, shape in zip(factors_of(op), shapes):
            _need_size(state, x, shape[2], "lora_shrink")
        if any(shape[1] != shapes[0][1] for shape in shapes):
            raise IRError("lora_shrink of several states: they have one rank")
        return [TensorType("f32", (x.shape[0], len(shapes) * shapes[0][1]))]

    @define(f"accrt.lora_expand{_count}(Tensor self, Tensor shrunk, {_states}, Tensor index)", reference=_expand_parts)
    def _infer_expand_parts(op: Op) -> Types:
        """lora_expand of columns that lie side by side, each with a state of its own."""
        y, shrunk, index = op.operands
        shapes = [_factors(op, state, y, index, "lora_expand") for state in factors_of(op)]
        need_same(y.shape[1], sum(shape[2] for shape in shapes), "lora_expand of several states, columns")
        need_same(shrunk.shape[1], sum(shape[1] for shape in shapes), "lora_expand of several states, rank")
        return [y.type]


# ---- Both halves: what the pass join_adapter_halves makes of them for CUDA -----------------------

#: Names of the states of the second factors beside FACTORS.
SECOND_FACTORS = ("second", "second1", "second2")
#: Tokens of a record of token_groups, numbers of a record, and adapters at most.
RECORD_TOKENS, RECORD, RECORD_ADAPTERS = 32, 36, 1024


def _token_groups(index: Any, adapters: int) -> Any:
    np = numpy()
    index = np.asarray(index, np.int64)
    group = np.where((index < 0) | (index >= adapters), adapters, index)
    out = np.zeros((-(-len(index) // RECORD_TOKENS) + adapters + 1, RECORD), np.int32)
    at = 0
    for one in range(adapters + 1):
        tokens = np.flatnonzero(group == one)
        for first in range(0, len(tokens), RECORD_TOKENS):
            own = tokens[first : first + RECORD_TOKENS]
            out[at, :2] = one if one < adapters else -1, len(own)
            out[at, 4:] = own[-1]
            out[at, 4 : 4 + len(own)] = own
            at += 1
    return out


@define("accrt.token_groups(Tensor self, int adapters)", reference=_token_groups)
def _infer_token_groups(op: Op) -> Types:
    """Tokens sorted by adapter: records of adapter (-1: none), count, two numbers that mean
    nothing, and up to 32 tokens in their order, the last one again in places that are left over.
    Records of no tokens end it."""
    (index,) = op.operands
    if index.dtype != "i32" or index.rank != 1:
        raise IRError(f"token_groups of {index.type}; i32 [tokens] is needed")
    if not 0 < op.attrs["adapters"] <= RECORD_ADAPTERS:
        raise IRError(f"token_groups of {op.attrs['adapters']} adapters; 1 to {RECORD_ADAPTERS} are possible")
    return [TensorType("i32", (ex.ceildiv(index.shape[0], RECORD_TOKENS) + (op.attrs["adapters"] + 1), RECORD))]


for _count in range(1, MOST_PARTS + 1):
    _states = ", ".join(f"State {name}" for names in (FACTORS, SECOND_FACTORS) for name in names[:_count])

    @define(f"accrt.lora_pair{'' if _count == 1 else _count}(Tensor self, Tensor input, {_states}, Tensor index, Tensor groups, gate)")
    def _infer_pair(op: Op) -> Types:
        """lora_expand of lora_shrink of an input. `groups`: token_groups of the index. `gate`: an
        activation of the first part's columns, which are multiplied by those of the second; None:
        columns as they are."""
        y, x, index, _groups = op.operands
        sides = [[op.attrs[name] for name in names if name in op.attrs] for names in (FACTORS, SECOND_FACTORS)]
        shapes = [[_factors(op, state, value, index, "lora_pair") for state in states] for value, states in zip((x, y), sides)]
        for state in sides[0]:
            _need_size(state, x, state.type.shape[2], "lora_pair")
        need_same(y.shape[1], sum(shape[2] for shape in shapes[1]), "lora_pair, columns")
        if any(shape[1] != shapes[0][0][1] for side in shapes for shape in side):
            raise IRError("lora_pair of several states: they have one rank")
        if op.attrs["gate"] is None:
            return [y.type]
        need_same(y.shape[1], 2 * shapes[1][0][2], "lora_pair, columns of a gate")
        return [TensorType(y.dtype, (y.shape[0], shapes[1][0][2]))]
