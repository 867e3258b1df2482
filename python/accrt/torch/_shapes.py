"""Types of a function's arguments, as torch's fake tensors need them: dimensions as expressions of
symbols, which are calculated with whatever sizes are (int or torch.SymInt)."""
from __future__ import annotations

from typing import Any, Callable, Iterable, Mapping, Sequence

import torch

from .. import _dimensions
from .._dimensions import Type

#: torch's types, by ours.
DTYPES = {"bool": torch.bool, "i8": torch.int8, "i16": torch.int16, "i32": torch.int32, "i64": torch.int64, "u8": torch.uint8, "u16": torch.uint16,
          "u32": torch.uint32, "u64": torch.uint64, "f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32, "f64": torch.float64}


def _select(condition: Any, a: Any, b: Any) -> Any:
    return torch.sym_ite(condition, a, b) if isinstance(condition, torch.SymBool) else a if condition else b


_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    **_dimensions.FUNCTIONS, "min": lambda a, b: torch.sym_min(a, b), "max": lambda a, b: torch.sym_max(a, b), "select": _select,
    "not": lambda a: torch.sym_not(a) if isinstance(a, torch.SymBool) else not a,
}


def parsed(where: str, text: str) -> Type:
    """The type of a text as Bundle.signature gives it: "f32[batch, 8]". It is read, never executed.
    ValueError: torch has no such type."""
    if text.partition("[")[0] not in DTYPES or "[" not in text:
        raise ValueError(f"{where} is {text}, and torch has no such type")
    name, dims = _dimensions.read(where, text)
    return Type(DTYPES[name], dims, text)


def size_of(node: Any, symbols: Mapping[str, Any], present: Sequence[bool]) -> Any:
    """A dimension's size. KeyError: a symbol that nothing binds."""
    return _dimensions.size_of(node, symbols, present, _FUNCTIONS)


def bind(where: str, types: Sequence[tuple[str, Type]], tensors: Sequence[Any], symbols: dict[str, Any]) -> None:
    """As _dimensions.bind, with torch's checks of symbolic sizes."""
    _dimensions.bind(where, types, tensors, symbols, [t is not None for t in tensors], _FUNCTIONS, torch._check_value)


def span(value: Any) -> tuple[int, int]:
    """The address of a tensor's first byte, and the one behind its last; equal if it has none."""
    size = (sum((n - 1) * stride for n, stride in zip(value.shape, value.stride())) + 1) * value.element_size() if value.numel() else 0
    return value.data_ptr(), value.data_ptr() + size


def meet(spans: Iterable[tuple[int, int]]) -> bool:
    """Whether two of these spans have a byte in common."""
    ordered = sorted(spans)
    return any(after[0] < before[1] for before, after in zip(ordered, ordered[1:]))


def meets(one: tuple[int, int], others: Iterable[tuple[int, int]]) -> bool:
    """Whether a span has a byte in common with one of others."""
    return any(first < one[1] and one[0] < last for first, last in others)
