"""Types of a function's arguments, as torch's fake tensors need them: dimensions as expressions of
symbols, which are calculated with whatever sizes are (int or torch.SymInt)."""
from __future__ import annotations

import ast
from typing import Any, Callable, Mapping, NamedTuple, Sequence

import torch

from .. import _dimensions

#: torch's types, by ours.
DTYPES = {"bool": torch.bool, "i8": torch.int8, "i16": torch.int16, "i32": torch.int32, "i64": torch.int64, "u8": torch.uint8, "u16": torch.uint16,
          "u32": torch.uint32, "u64": torch.uint64, "f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32, "f64": torch.float64}


def _select(condition: Any, a: Any, b: Any) -> Any:
    return torch.sym_ite(condition, a, b) if isinstance(condition, torch.SymBool) else a if condition else b


_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    **_dimensions.FUNCTIONS, "min": lambda a, b: torch.sym_min(a, b), "max": lambda a, b: torch.sym_max(a, b), "select": _select,
    "not": lambda a: torch.sym_not(a) if isinstance(a, torch.SymBool) else not a,
}


class Type(NamedTuple):
    """An argument's type. dims: an int, or the tree of an expression."""

    dtype: torch.dtype
    dims: tuple[Any, ...]
    text: str


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
    """Checks what is given against the types, and adds the symbols that it binds. TypeError,
    ValueError: one line."""
    for (name, wanted), tensor in zip(types, tensors):
        if tensor is None:
            continue
        if tensor.dtype != wanted.dtype:
            raise TypeError(f"{where}: {name} is of {tensor.dtype}, and {wanted.text} is needed")
        if tensor.dim() != len(wanted.dims):
            raise ValueError(f"{where}: {name} has {tensor.dim()} dimensions, and {wanted.text} is needed")
        for node, size in zip(wanted.dims, tensor.shape):
            if isinstance(node, ast.Name):
                symbols.setdefault(node.id, size)
    present = [t is not None for t in tensors]
    for (name, wanted), tensor in zip(types, tensors):
        if tensor is None:
            continue
        for at, (node, size) in enumerate(zip(wanted.dims, tensor.shape)):
            expected = size_of(node, symbols, present)
            torch._check_value(size == expected, lambda: f"{where}: dimension {at} of {name} is {size}, and {wanted.text} is needed")
