"""Types of a function's arguments, as torch's fake tensors need them: dimensions as expressions of
symbols, which are calculated with whatever sizes are (int or torch.SymInt)."""
from __future__ import annotations

import ast
import operator
from typing import Any, Callable, Mapping, NamedTuple, Sequence

import torch

#: torch's types, by ours.
DTYPES = {"bool": torch.bool, "i8": torch.int8, "i16": torch.int16, "i32": torch.int32, "i64": torch.int64, "u8": torch.uint8, "u16": torch.uint16,
          "u32": torch.uint32, "u64": torch.uint64, "f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32, "f64": torch.float64}

_BINARY = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod}
_COMPARE = {ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge}


def _ceildiv(a: Any, b: Any) -> Any:
    return -(-a // b)


def _select(condition: Any, a: Any, b: Any) -> Any:
    return torch.sym_ite(condition, a, b) if isinstance(condition, torch.SymBool) else a if condition else b


_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "ceildiv": _ceildiv, "min": lambda a, b: torch.sym_min(a, b), "max": lambda a, b: torch.sym_max(a, b), "select": _select,
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
    name, bracket, rest = text.partition("[")
    if name not in DTYPES or not bracket:
        raise ValueError(f"{where} is {text}, and torch has no such type")
    try:
        tree = ast.parse(f"[{rest.replace('not(', '_not(')}", mode="eval").body
        assert isinstance(tree, ast.List)
    except (SyntaxError, AssertionError, ValueError, RecursionError):
        raise ValueError(f"{where} is {text}, whose dimensions cannot be read") from None
    return Type(DTYPES[name], tuple(_known(where, text, node) for node in tree.elts), text)


def _known(where: str, text: str, node: ast.expr) -> Any:
    for part in ast.walk(node):
        fine = isinstance(part, (ast.Name, ast.Load, ast.BinOp, ast.Compare, ast.BoolOp, ast.And, ast.Or, *_BINARY, *_COMPARE))
        fine = fine or isinstance(part, ast.Constant) and type(part.value) is int
        fine = fine or isinstance(part, (ast.UnaryOp, ast.USub))
        fine = fine or isinstance(part, ast.Call) and isinstance(part.func, ast.Name) and not part.keywords
        if not fine:
            raise ValueError(f"{where} is {text}, whose dimensions cannot be read")
    return node.value if isinstance(node, ast.Constant) else node


def size_of(node: Any, symbols: Mapping[str, Any], present: Sequence[bool]) -> Any:
    """A dimension's size. KeyError: a symbol that nothing binds."""
    if isinstance(node, int):
        return node
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name):
        return symbols[node.id]
    if isinstance(node, ast.UnaryOp):
        return -size_of(node.operand, symbols, present)
    if isinstance(node, ast.BinOp):
        return _BINARY[type(node.op)](size_of(node.left, symbols, present), size_of(node.right, symbols, present))
    if isinstance(node, ast.Compare):
        return _COMPARE[type(node.ops[0])](size_of(node.left, symbols, present), size_of(node.comparators[0], symbols, present))
    if isinstance(node, ast.BoolOp):
        found = [size_of(value, symbols, present) for value in node.values]
        return all(found) if isinstance(node.op, ast.And) else any(found)
    arguments = [size_of(value, symbols, present) for value in node.args]
    name = node.func.id.lstrip("_")
    return present[arguments[0]] if name == "present" else _FUNCTIONS[name](*arguments)


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
