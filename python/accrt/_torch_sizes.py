"""What accrt.from_torch reads in torch's exports about sizes: fractions of them, and the sizes for
which an export holds. Under Dim.AUTO and Dim.DYNAMIC torch notes as conditions ("guards") what its
trace assumed of sizes, such as n % 4 == 0 for the branch that it took. The text of a guard may be a
file's, so it is read and never run.
"""

from __future__ import annotations

import ast
import operator
import warnings
from fractions import Fraction
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

from .compiler.expr import Expr

#: By a symbol of the export: its least and its greatest value.
Ranges = Mapping[str, Tuple[int, int]]
Limits = Dict[str, Tuple[int, int, int]]
#: So many values of a symbol are tried at each end of its range, and so many pairs of several.
_TRIED = 1 << 16
_PAIRS = 4096
_SEED = 20261130
_OPERATIONS: Dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv, ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod, ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}  # fmt: skip


class _Unread(Exception):
    """A guard of another form than arithmetic of sizes."""


#: What reading a text may raise that is no guard of sizes.
_ODD = (_Unread, SyntaxError, ValueError, ArithmeticError, RecursionError, MemoryError)


def fraction(operation: Any, parts: Any) -> Tuple[Expr, Fraction]:
    """Of a size times a number, or divided by one: both, where floats calculate them exactly."""
    from .from_torch.values import Unsupported

    size, number = parts[::-1] if operation is operator.mul and isinstance(parts[1], Expr) else parts
    if operation not in (operator.mul, operator.truediv) or not isinstance(size, Expr) or not isinstance(number, (int, float)) or not number:
        raise Unsupported("what is rounded is no product or quotient of a size and a number")
    factor = Fraction(number) if operation is operator.mul else 1 / Fraction(number)
    if max(abs(factor.numerator), factor.denominator) > 1 << 20:
        near, word = factor.limit_denominator(1000), "times" if operation is operator.mul else "by"
        raise Unsupported(f"a size {word} {number} is not exact: write it with whole numbers, as in n * {near.numerator} // {near.denominator}")
    return size, factor


def holds(program: Any, shapes: Mapping[str, Sequence[Any]], symbols: Sequence[str], maximum: int) -> Tuple[Limits, List[Tuple[str, str]]]:
    """Of each symbol least, greatest, and what divides it, as the export holds for these sizes. And
    what a bundle cannot check at a call: the input and the reason."""
    ends = {}
    known = {str(symbol): bounds for symbol, bounds in program.range_constraints.items()}
    for name in symbols:
        lower, upper = (str(getattr(known.get(name), end, "")) for end in ("lower", "upper"))
        ends[name] = max(int(lower) if lower.isdigit() else 2, 2), int(upper) if upper.isdigit() else maximum
    limits, refused = _narrowed(getattr(program, "_guards_code", None) or (), shapes, ends)
    advice = "give these dimensions as torch.export.Dim, with min, max or relations, or leave one fixed"
    return (
        {name: limits.get(name, (1 if least == 2 else least, most, 1)) for name, (least, most) in ends.items()},
        [(name, f"torch's export holds only where {guard}: {advice}") for name, guard in refused],
    )


def _narrowed(guards: Sequence[str], shapes: Mapping[str, Sequence[Any]], ranges: Ranges) -> Tuple[Limits, List[Tuple[str, str]]]:
    """Of each symbol that guards limit: least, greatest, and the number that divides all. And the
    guards that no such limit says, each with the input that it begins with.

    What torch assumes of sizes in general is no limit, because the compiler infers shapes again:
    that one is not 1, and not equal to another or to a number."""
    import numpy as np

    limits: Limits = {}
    refused: List[Tuple[str, str]] = []
    by_symbol: Dict[str, List[Tuple[str, ast.expr]]] = {}
    generator = np.random.default_rng(_SEED)
    for guard in dict.fromkeys(guards):
        try:
            tree = ast.parse(guard, mode="eval").body
            names = sorted({str(s) for size in _sizes(tree, shapes) for s in getattr(size, "free_symbols", ())})
            if not names or _in_general(tree) or any(name not in ranges for name in names):
                continue
            if len(names) == 1:
                by_symbol.setdefault(names[0], []).append((guard, tree))
            else:
                tried = {name: _pairs(generator, *ranges[name]) for name in names}
                if not bool(np.all(_value(tree, shapes, tried))):
                    refused.append(_named(guard, tree))
        except _ODD:
            continue
    for name, of_it in by_symbol.items():
        least, most = ranges[name]
        values = np.unique(np.concatenate([np.arange(least, min(most, least + _TRIED) + 1), np.arange(max(least, most - _TRIED), most + 1)]))
        kept = np.ones(len(values), bool)
        limiting = []
        for guard, tree in of_it:
            try:
                right = np.broadcast_to(_value(tree, shapes, {name: values.astype(np.float64)}), values.shape)
            except _ODD:
                continue
            if not right.all():
                kept &= right
                limiting.append(_named(guard, tree))
        if not limiting:
            continue
        step = int(np.gcd.reduce(values[kept])) if kept.any() else 0
        if step and (kept == (values >= values[kept][0]) & (values <= values[kept][-1]) & (values % step == 0)).all():
            limits[name] = int(values[kept][0]), int(values[kept][-1]), step if int(kept.sum()) > 1 else 1
            warnings.warn(f"torch's export holds only where {' and '.join(guard for _, guard in limiting)}: other sizes are refused at the call", stacklevel=2)
        else:
            refused += limiting
    return limits, refused


def _pairs(generator: Any, least: int, most: int) -> Any:
    import numpy as np

    few = generator.integers(least, min(most, least + 40), _PAIRS // 2, endpoint=True)
    return np.concatenate([few, generator.integers(least, most, _PAIRS // 2, endpoint=True)]).astype(np.float64)


def _in_general(tree: ast.expr) -> bool:
    """x != 1, x >= 2, 1 < x; and x != y, but for a remainder of one size that is not 0."""
    if not isinstance(tree, ast.Compare) or len(tree.ops) != 1:
        return False
    left, right = (getattr(part, "value", None) if isinstance(part, ast.Constant) else None for part in (tree.left, tree.comparators[0]))
    kind = type(tree.ops[0])
    if kind is ast.NotEq:
        of = tree.left if right == 0 else tree.comparators[0]
        return not (0 in (left, right) and isinstance(of, ast.BinOp) and isinstance(of.op, ast.Mod) and isinstance(of.right, ast.Constant))
    return (kind, right) in ((ast.GtE, 2), (ast.Gt, 1)) or (kind, left) in ((ast.Lt, 1), (ast.LtE, 2))


def _sizes(tree: ast.expr, shapes: Mapping[str, Sequence[Any]]) -> Iterator[Any]:
    """The expressions that the export has for the sizes in a guard."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Call):
            size = _size(node, shapes)
            yield size if isinstance(size, int) else size.node.expr


def _size(node: ast.Subscript, shapes: Mapping[str, Sequence[Any]]) -> Any:
    """Of L['x'].size()[0]: the size in the shape of x; of L['pair'][0] that of pair_0."""
    of = node.value.func if isinstance(node.value, ast.Call) and not node.value.args else None
    name, dim = _input(of.value) if isinstance(of, ast.Attribute) and of.attr == "size" else "", _constant(node.slice)
    if name not in shapes or not isinstance(dim, int) or not 0 <= dim < len(shapes[name]):
        raise _Unread
    return shapes[name][dim]


def _input(node: ast.expr) -> str:
    keys = []
    while isinstance(node, ast.Subscript):
        keys.append(str(_constant(node.slice)))
        node = node.value
    return "_".join(keys[::-1]) if isinstance(node, ast.Name) and node.id == "L" else ""


def _constant(node: ast.expr) -> Any:
    return node.value if isinstance(node, ast.Constant) else None


def _named(guard: str, tree: ast.expr) -> Tuple[str, str]:
    """The first input of a guard, and its text as a user would write it."""
    called = [node.func.value for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)]
    inputs = [name for name in map(_input, called) if name]
    text = ast.unparse(tree)
    for name in inputs:
        text = text.replace(f"L['{name}']", name)
    return inputs[0] if inputs else "", text.replace(".size()", ".shape").replace("torch.sym_float", "").replace("math.", "")


def _value(node: ast.expr, shapes: Mapping[str, Sequence[Any]], values: Mapping[str, Any]) -> Any:
    """What a guard gives for these values of the symbols, in f64: exact below 2^53."""
    import numpy as np

    with np.errstate(all="ignore"):
        return _calculated(node, lambda size: _of_size(size, values), shapes)


def _calculated(node: ast.expr, of: Callable[[Any], Any], shapes: Mapping[str, Sequence[Any]]) -> Any:
    import numpy as np

    def part(inner: ast.expr) -> Any:
        return _calculated(inner, of, shapes)

    if isinstance(node, ast.Constant) and isinstance(node.value, (bool, int, float)):
        return np.float64(node.value)
    if isinstance(node, ast.Subscript):
        return of(_size(node, shapes))
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATIONS:
        return _OPERATIONS[type(node.op)](part(node.left), part(node.right))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.Not)):
        return -part(node.operand) if isinstance(node.op, ast.USub) else np.logical_not(part(node.operand))
    if isinstance(node, ast.Compare) and all(type(op) in _OPERATIONS for op in node.ops):
        sides = [part(side) for side in (node.left, *node.comparators)]
        return np.logical_and.reduce(np.broadcast_arrays(*(_OPERATIONS[type(op)](a, b) for op, a, b in zip(node.ops, sides, sides[1:]))))
    if isinstance(node, ast.BoolOp):
        return (np.logical_and if isinstance(node.op, ast.And) else np.logical_or).reduce(np.broadcast_arrays(*map(part, node.values)))
    rounded = {"math.trunc": np.trunc, "math.floor": np.floor, "math.ceil": np.ceil, "torch.sym_float": np.float64}
    if isinstance(node, ast.Call) and len(node.args) == 1 and not node.keywords and ast.unparse(node.func) in rounded:
        return rounded[ast.unparse(node.func)](part(node.args[0]))
    raise _Unread


def _of_size(size: Any, values: Mapping[str, Any]) -> Any:
    import numpy as np

    def part(expression: Any) -> Any:
        if expression.is_Symbol and str(expression) in values:
            return values[str(expression)]
        if expression.is_Integer:
            return np.float64(int(expression))
        if not expression.args or not (expression.is_Add or expression.is_Mul):
            raise _Unread
        total: Optional[Any] = None
        for argument in expression.args:
            total = part(argument) if total is None else total + part(argument) if expression.is_Add else total * part(argument)
        return total

    return np.float64(size) if isinstance(size, int) else part(size.node.expr)
