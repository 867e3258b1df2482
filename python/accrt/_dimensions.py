"""Dimensions of a function's arguments as expressions of symbols, which are calculated with
whatever sizes are: int, or the symbols of another library. Not for users: accrt.torch and accrt.jax
stand on it."""
from __future__ import annotations

import ast
import operator
from typing import Any, Callable, Mapping, NamedTuple, Sequence

from ._advice import unless_written

_BINARY = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod}
_COMPARE = {ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge}


def _ceildiv(a: Any, b: Any) -> Any:
    return -(-a // b)


#: What expressions call, of plain numbers.
FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "ceildiv": _ceildiv, "min": min, "max": max, "select": lambda condition, a, b: a if condition else b, "not": lambda a: not a,
}


class Type(NamedTuple):
    """An argument's type. dtype: as the other library has it. dims: an int, or the tree of an
    expression. kind: of the argument, as Bundle.signature gives it."""

    dtype: Any
    dims: tuple[Any, ...]
    text: str
    kind: str = "read"


def read(where: str, text: str) -> tuple[str, tuple[Any, ...]]:
    """A data type's name and the dimensions of a text as Bundle.signature gives it:
    "f32[batch, 8]". A dimension is an int or the tree of an expression. It is read, never executed.
    ValueError: it cannot be read."""
    name, bracket, rest = text.partition("[")
    try:
        tree = ast.parse(f"[{rest.replace('not(', '_not(')}", mode="eval").body
        assert bracket and isinstance(tree, ast.List)
    except (SyntaxError, AssertionError, ValueError, RecursionError):
        raise ValueError(f"{where} is {text}, whose dimensions cannot be read") from None
    return name, tuple(_known(where, text, node) for node in tree.elts)


def _known(where: str, text: str, node: ast.expr) -> Any:
    for part in ast.walk(node):
        fine = isinstance(part, (ast.Name, ast.Load, ast.BinOp, ast.Compare, ast.BoolOp, ast.And, ast.Or, *_BINARY, *_COMPARE))
        fine = fine or isinstance(part, ast.Constant) and type(part.value) is int
        fine = fine or isinstance(part, (ast.UnaryOp, ast.USub))
        fine = fine or isinstance(part, ast.Call) and isinstance(part.func, ast.Name) and not part.keywords
        if not fine:
            raise ValueError(f"{where} is {text}, whose dimensions cannot be read")
    return node.value if isinstance(node, ast.Constant) else node


def names_of(node: Any) -> set[str]:
    """The symbols of a dimension."""
    if isinstance(node, int):
        return set()
    called = {id(part.func) for part in ast.walk(node) if isinstance(part, ast.Call)}
    return {part.id for part in ast.walk(node) if isinstance(part, ast.Name) and id(part) not in called}


def size_of(node: Any, symbols: Mapping[str, Any], present: Sequence[bool], functions: Mapping[str, Callable[..., Any]] = FUNCTIONS) -> Any:
    """A dimension's size. KeyError: a symbol that nothing binds."""
    def size(part: Any) -> Any:
        return size_of(part, symbols, present, functions)

    if isinstance(node, int):
        return node
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name):
        return symbols[node.id]
    if isinstance(node, ast.UnaryOp):
        return -size(node.operand)
    if isinstance(node, ast.BinOp):
        return _BINARY[type(node.op)](size(node.left), size(node.right))
    if isinstance(node, ast.Compare):
        return _COMPARE[type(node.ops[0])](size(node.left), size(node.comparators[0]))
    if isinstance(node, ast.BoolOp):
        found = [size(value) for value in node.values]
        return all(found) if isinstance(node.op, ast.And) else any(found)
    arguments = [size(value) for value in node.args]
    name = node.func.id.lstrip("_")
    return present[arguments[0]] if name == "present" else functions[name](*arguments)


def _refuse(holds: Any, message: Callable[[], str]) -> None:
    if not holds:
        raise ValueError(message())


def bind(where: str, types: Sequence[tuple[str, Type]], tensors: Sequence[Any], symbols: dict[str, Any], present: Sequence[bool],
         functions: Mapping[str, Callable[..., Any]] = FUNCTIONS, check: Callable[[Any, Callable[[], str]], None] = _refuse) -> None:  # fmt: skip
    """Checks what is given against the types, and adds the symbols that it binds. None is an
    optional one that is not given. check: refuses a size with a ValueError of the message.
    TypeError, ValueError: one line."""
    given = [(name, wanted, tensor) for (name, wanted), tensor in zip(types, tensors) if tensor is not None]
    for name, wanted, tensor in given:
        if tensor.dtype != wanted.dtype:
            way = unless_written(wanted.kind, f"{name if name.isidentifier() else 'tensor'}.to({wanted.dtype}) converts it", f"a tensor of {wanted.dtype}")
            advice = f": {way}" if str(wanted.dtype).startswith("torch.") else ""
            raise TypeError(f"{where}: {name} is of {tensor.dtype}, and {wanted.text} is needed{advice}")
        if tensor.ndim != len(wanted.dims):
            raise ValueError(f"{where}: {name} has {tensor.ndim} dimensions, and {wanted.text} is needed")
        for node, size in zip(wanted.dims, tensor.shape):
            if isinstance(node, ast.Name):
                symbols.setdefault(node.id, size)
    for name, wanted, tensor in given:
        for at, (node, size) in enumerate(zip(wanted.dims, tensor.shape)):
            message = f"{where}: dimension {at} of {name} is "
            check(size == size_of(node, symbols, present, functions), lambda: f"{message}{size}, and {wanted.text} is needed")
