"""Dimensions of a function's arguments as expressions of symbols, which are calculated with
whatever sizes are: int, or the symbols of another library. Not for users: accrt.torch and accrt.jax
stand on it."""
from __future__ import annotations

import ast
import operator
from typing import Any, Callable, Mapping, Sequence

_BINARY = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod}
_COMPARE = {ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge}


def _ceildiv(a: Any, b: Any) -> Any:
    return -(-a // b)


#: What expressions call, of plain numbers.
FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "ceildiv": _ceildiv, "min": min, "max": max, "select": lambda condition, a, b: a if condition else b, "not": lambda a: not a,
}


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
