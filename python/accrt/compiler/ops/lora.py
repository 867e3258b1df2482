"""Low-rank adapters (LoRA), one for each token: y + (x A^T) B, where A and B are rows of states that the token's index chooses."""

from __future__ import annotations

from typing import Any, Tuple

from ..ir import IRError, Op, State, TensorType, Value
from .effects import check_state
from .schema import define, need_same, numpy, Types

_TYPES = ("f32", "f16", "bf16")


def _factors(op: Op, operand: Value, index: Value, what: str) -> Tuple[Any, ...]:
    """Shape of the state of factors, whose first dimension the index chooses from."""
    state: State = op.attrs["factors"]
    check_state(op, state)
    if operand.rank != 2 or operand.dtype not in _TYPES:
        raise IRError(f"{what} of {operand.type}; f32, f16 or bf16 [tokens, size] is needed")
    if state.type.rank != 3 or state.type.dtype not in _TYPES or not all(isinstance(size, int) for size in state.type.shape[1:]):
        raise IRError(f"{what} with factors of {state.type}; f32, f16 or bf16 [adapters, rank, size] is needed, rank and size known while compiling")
    if index.dtype != "i32" or index.rank != 1:
        raise IRError(f"{what} with an index of {index.type}; i32 [tokens] is needed")
    need_same(index.shape[0], operand.shape[0], f"{what}, tokens of the index")
    need_same(operand.shape[1], state.type.shape[2], f"{what}, size of {operand.type} for state {state.name!r} of {state.type}")
    return state.type.shape


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
    """The first half of a low-rank product: x [tokens, size] times row index[t] of a state of factors [adapters, rank, size]; f32
    [tokens, rank]. An index of -1 gives zeros; any other outside fails the call."""
    x, index = op.operands
    _adapters, rank, _size = _factors(op, x, index, "lora_shrink")
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
    """The second half: y [tokens, size] plus what lora_shrink gave, f32 [tokens, rank], times row index[t] of a state of factors
    [adapters, rank, size]. A token of index -1 keeps its y; any other outside fails the call."""
    y, shrunk, index = op.operands
    _adapters, rank, _size = _factors(op, y, index, "lora_expand")
    if shrunk.dtype != "f32" or shrunk.rank != 2:
        raise IRError(f"lora_expand of {shrunk.type}; f32 [tokens, rank] is needed")
    need_same(shrunk.shape[0], y.shape[0], "lora_expand, tokens")
    need_same(shrunk.shape[1], rank, f"lora_expand, rank of state {op.attrs['factors'].name!r}")
    return [y.type]
