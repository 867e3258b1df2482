"""What accrt.from_torch reads in torch's exports about sizes: fractions of them, and the sizes for
which an export holds. Under Dim.AUTO and Dim.DYNAMIC torch notes as conditions ("guards") what its
trace assumed of sizes, such as n % 4 == 0 for the branch that it took. The text of a guard may be a
file's, so it is read and never run.
"""

from __future__ import annotations

import ast
import functools
import linecache
import operator
import os
import re
import warnings
from fractions import Fraction
from typing import Any, Callable, Dict, FrozenSet, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ._torch_ones import refused as refused_ones
from .bundle_writer import less, less_equal, logical_and, logical_not, logical_or, not_equal
from .compiler import Value
from .compiler.declared import FLOATS
from .compiler.expr import equal, Expr, maximum, minimum, Size

#: By a symbol of the export: its least and its greatest value.
Ranges = Mapping[str, Tuple[int, int]]
Limits = Dict[str, Tuple[int, int, int]]
#: A condition of sizes that a call checks, and its text, by the sizes of the export's symbols.
Check = Callable[[Dict[str, Size]], Tuple[Size, str]]
#: So many values of a symbol are tried at each end of its range, in such parts, and so many of
#: several symbols. f64 has all whole numbers up to the last.
_TRIED, _PART, _PAIRS, _EXACT = 1 << 16, 1 << 13, 4096, 1 << 52
#: Of one guard and of all: nodes of the tree. And its depth, and the greatest exponent.
_NODES, _ALL_NODES, _DEPTH, _EXPONENT = 1 << 12, 1 << 16, 100, 8
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
    """The size and the factor of a size times a number, or divided by one, where floats calculate
    that exactly."""
    from .from_torch.values import Unsupported

    size, number = parts[::-1] if operation is operator.mul and isinstance(parts[1], Expr) else parts
    if operation not in (operator.mul, operator.truediv) or not isinstance(size, Expr) or not isinstance(number, (int, float)) or not number:
        raise Unsupported("what is rounded is no product or quotient of a size and a number")
    factor = Fraction(number) if operation is operator.mul else 1 / Fraction(number)
    if max(abs(factor.numerator), factor.denominator) > 1 << 20:
        near, word = factor.limit_denominator(1000), "times" if operation is operator.mul else "by"
        example = f", as in n * {near.numerator} // {near.denominator}" if near else ""
        raise Unsupported(f"a size {word} {number} is not exact: write it with whole numbers{example}")
    return size, factor


def as_number(value: Value) -> Value:
    """The value of arithmetic of sizes: a number of Python's to torch, and no tensor."""
    vars(value)["is_number"] = True
    return value


def beside(a: Any, b: Any) -> Tuple[Any, Any]:
    """Both operands. A number has torch's default type beside a tensor of integers, and the type of
    a tensor of floats that has no dimensions either."""

    def typed(x: Any, other: Any) -> Any:
        if not _is_marked(x) or not isinstance(other, Value) or _is_marked(other):
            return x
        if other.dtype not in FLOATS:
            import torch  # only a program of torch's has such numbers
            from .from_torch.values import dtype_of
            return x.to_copy(dtype_of(torch.get_default_dtype()))
        return x if other.rank else x.to_copy(other.dtype)

    return typed(a, b), typed(b, a)


def _is_marked(x: Any) -> bool:
    return isinstance(x, Value) and "is_number" in vars(x)


def dim_name(dim: Any) -> str:
    """The name for a dimension of which torch's `dim` is said: that of the Dim, or of the Dim that
    it follows from ("h_times_2"). "": it has none."""
    root, name = getattr(dim, "root", None), getattr(dim, "__name__", None)
    if root is not None:
        name, more = getattr(root, "__name__", None), dim.fn(0)
        factor = dim.fn(1) - more
        times = f"_times_{factor}" if factor != 1 else ""
        name = f"{name}{times}{'_plus_' if more > 0 else '_minus_'}{abs(more)}" if more else f"{name}{times}"
    return name if isinstance(name, str) and name.isidentifier() else ""


def holds(program: Any, shapes: Mapping[str, Sequence[Any]], symbols: Sequence[str], most: int) -> Tuple[Limits, List[Tuple[str, str]], List[Check]]:
    """For each symbol its least and greatest value and its divisor, for which the export holds.
    What a bundle cannot check at a call: the input and the reason. And what it checks beside."""
    ends = {}
    known = {str(symbol): bounds for symbol, bounds in program.range_constraints.items()}
    for name in symbols:
        lower, upper = (str(getattr(known.get(name), end, "")) for end in ("lower", "upper"))
        ends[name] = max(int(lower) if lower.isdigit() else 2, 2), min(int(upper), most) if upper.isdigit() else most
    guards, own = getattr(program, "_guards_code", None) or (), _of_model(shapes)
    limits, refused, checked = _narrowed([*own, *guards], shapes, ends, own)
    limits = {name: limits.get(name, (1 if least == 2 else least, most, 1)) for name, (least, most) in ends.items()}
    ones = refused_ones(program, shapes, limits)
    for _symbols, said in ones:
        warnings.warn(f"{said}: other sizes are refused at the call", stacklevel=2)
    unknown = _unknown(program, shapes, limits, [] if own else guards)
    if unknown:
        warnings.warn(f"a program that was exported before does not say {unknown}; a module that from_torch exports does", stacklevel=2)
    advice = "give these dimensions as torch.export.Dim, with min, max or relations, or leave one fixed"
    return (
        limits,
        [(name, f"torch's export holds only where {guard}: {advice}") for name, guard in refused],
        [functools.partial(_check, guard, shapes) for guard in checked] + [functools.partial(_not_ones, *one) for one in ones],
    )


def _unknown(program: Any, shapes: Mapping[str, Sequence[Any]], limits: Limits, guards: Sequence[str]) -> str:
    """What a program does not say that was not exported here: whether lines of its model ask for a
    size of 1. And a file: which conditions are of such lines."""
    if hasattr(program, "_accrt_ones"):
        return ""
    plain = {str(size.node.expr): f"{name}.shape[{d}]" for name, shape in shapes.items() for d, size in enumerate(shape) if not isinstance(size, int)}
    cases = [f"{plain[name]} is 1" for name, (least, _most, _step) in limits.items() if least == 1 and name in plain]
    if hasattr(program, "_accrt_file"):
        read = _read(guards, shapes, {name: (2, most) for name, (_least, most, _step) in limits.items()}, [], guards)
        apart = [_named(guard.text, guard.tree)[1] for guard in read if len(guard.names) > 1 and _is_unequal(guard.tree) and not _of_remainder(guard.tree)]
        cases += [text.replace(" != ", " == ") for text in apart]
    return f"whether its model does something else where {' or '.join(cases[:8])}" if cases else ""


def _not_ones(names: FrozenSet[str], said: str, symbols: Dict[str, Size]) -> Tuple[Size, str]:
    return functools.reduce(logical_or, (less(1, symbols[name]) for name in sorted(names))), said


def _check(guard: _Guard, shapes: Mapping[str, Sequence[Any]], symbols: Dict[str, Size]) -> Tuple[Size, str]:
    from .from_torch.sizes import size_of

    made = _condition(guard.tree, lambda size: size if isinstance(size, int) else size_of(size.node.expr, symbols), shapes)
    return made, f"torch's export holds only where {_named(guard.text, guard.tree)[1]}"


def _of_model(shapes: Mapping[str, Sequence[Any]]) -> List[str]:
    """The conditions a != b that lines of the model ask for, where the export was made here: torch
    notes others for itself. Of two sizes, the line has a comparison: torch's functions in C++
    compare sizes too, in the line that calls them."""
    import torch

    sizes = {str(size.node.expr): (f"L['{name}'].size()[{d}]", size.node) for name, shape in shapes.items() for d, size in enumerate(shape) if not isinstance(size, int)}
    environments = {id(node.shape_env): node.shape_env for _text, node in sizes.values()}
    found = []
    for guard in (guard for environment in environments.values() for guard in getattr(environment, "guards", ())):
        frame = getattr(getattr(guard, "sloc", None), "framework_loc", None)
        text = re.fullmatch(r"Ne\(([^,]*), ([^,]*)\)", str(guard.expr))
        if text is None or re.search(r"\w\(", text[1] + text[2]) or not getattr(frame, "filename", "") or frame.filename.startswith(os.path.dirname(torch.__file__) + os.sep):
            continue
        if re.fullmatch(r"-?\d+", text[2]) or re.search("==|!=", linecache.getline(frame.filename, frame.lineno)):
            found.append(re.sub(r"[a-z]\w*", lambda name: sizes.get(name[0], name)[0], f"({text[1]}) != {text[2]}"))
    return found


class _Guard(NamedTuple):
    text: str
    tree: ast.expr
    names: List[str]


def _narrowed(guards: Sequence[str], shapes: Mapping[str, Sequence[Any]], ranges: Ranges, own: Sequence[str] = ()) -> Tuple[Limits, List[Tuple[str, str]], List[_Guard]]:
    """For each symbol that guards limit: least, greatest, and the number that divides all. The
    guards that no such limit says and no call checks, or that are not read, each with the input
    that it begins with. And those that a call checks.

    What torch assumes of sizes in general is no limit, because the compiler infers shapes again:
    that one is not 0 or 1, and not equal to another. `own`: where it is the model's own line. They
    come first, so that of two that say the same, theirs is read."""
    limits: Limits = {}
    refused: List[Tuple[str, str]] = []
    checked: List[_Guard] = []
    by_symbol: Dict[str, List[_Guard]] = {}
    several: List[_Guard] = []
    for guard in _read(guards, shapes, ranges, refused, own):
        if _is_number_apart(guard.tree, guard.text in own) and _is_checked(guard, shapes):
            checked.append(guard)
        elif len(guard.names) == 1:
            by_symbol.setdefault(guard.names[0], []).append(guard)
        else:
            several.append(guard)
    for name, of_it in by_symbol.items():
        limit, limiting = _of_one(name, of_it, shapes, ranges[name], refused)
        if limit is None and any(_is_checked(guard, shapes) for guard in limiting):
            checked += [guard for guard in limiting if _is_checked(guard, shapes)]
            limit, limiting = _of_one(name, [guard for guard in limiting if not _is_checked(guard, shapes)], shapes, ranges[name], refused)
        if limit is not None:
            limits[name] = limit
            _tell(limiting, "other sizes are refused at the call")
        else:
            refused += [_named(guard.text, guard.tree) for guard in limiting]
    for guard in several:
        try:
            raised = _of_several(guard, shapes, {name: limits.get(name, (*ranges[name], 1)) for name in guard.names})
        except _ODD:
            raised = None
        if raised is None and _is_checked(guard, shapes):
            checked.append(guard)
        elif raised is None:
            refused.append(_named(guard.text, guard.tree))
        elif raised:
            limits.update(raised)
            _tell([guard], "small sizes are refused at the call")
    checked = list({ast.unparse(guard.tree): guard for guard in checked}.values())
    for guard in checked:
        _tell([guard], "other sizes are refused at the call")
    return limits, refused, checked


def _tell(guards: Sequence[_Guard], what: str) -> None:
    text = " and ".join(_named(guard.text, guard.tree)[1] for guard in guards)
    warnings.warn(f"torch's export holds only where {text}: {what}", stacklevel=2)


def _read(guards: Sequence[str], shapes: Mapping[str, Sequence[Any]], ranges: Ranges, refused: List[Tuple[str, str]], own: Sequence[str]) -> Iterator[_Guard]:
    """The guards that limit sizes. Those that are too long or too deep are refused."""
    all_nodes = 0
    known = set()
    for text in dict.fromkeys(guards):
        try:
            tree = ast.parse(text, mode="eval").body
            names = sorted({str(s) for size in _sizes(tree, shapes) for s in getattr(size, "free_symbols", ())})
        except _ODD:
            if ".size()" in text:
                warnings.warn(f"torch's export holds only where {_short(text)}: this is not checked, because it cannot be read", stacklevel=2)
            continue
        if not names or any(name not in ranges for name in names):
            continue
        nodes, depth = _extent(tree)
        all_nodes += nodes
        if nodes > _NODES or all_nodes > _ALL_NODES or depth > _DEPTH:
            refused.append(_named(text, tree))
            continue
        if ast.unparse(tree) in known:
            continue
        known.add(ast.unparse(tree))
        if _is_number_apart(tree, text in own) or not _in_general(tree, len(names) > 1):
            yield _Guard(text, tree, names)


def _extent(tree: ast.AST) -> Tuple[int, int]:
    """How many nodes a tree has, and how deep."""
    nodes, depth, level = 0, 0, [tree]
    while level:
        nodes, depth, level = nodes + len(level), depth + 1, [child for node in level for child in ast.iter_child_nodes(node)]
    return nodes, depth


def _of_one(
    name: str, guards: Sequence[_Guard], shapes: Mapping[str, Sequence[Any]], ends: Tuple[int, int], refused: List[Tuple[str, str]]
) -> Tuple[Optional[Tuple[int, int, int]], List[_Guard]]:
    """The limit of a symbol by the guards that have it alone, and those guards that limit it."""
    import numpy as np

    least, most = ends
    top = min(most, _EXACT)
    if least > top:
        return None, []
    values = np.unique(np.concatenate([np.arange(least, min(top, least + _TRIED) + 1), np.arange(max(least, top - _TRIED), top + 1)]))
    limiting = []
    for guard in guards:
        try:
            right = _right(guard.tree, shapes, name, values)
        except _ODD:
            refused.append(_named(guard.text, guard.tree))
            continue
        if right.all():
            continue
        if not _is_unequal(guard.tree) or _of_remainder(guard.tree):
            limiting.append(guard)
        # torch notes it for nearly every model where only the smallest sizes fail
        elif not right[np.argmax(right) :].all():
            _tell([guard], "this is not checked")
    if not limiting:
        return None, []

    def holding(tried: Any) -> Any:
        return functools.reduce(np.logical_and, (_right(guard.tree, shapes, name, tried) for guard in limiting))

    limit = _limit(holding, values, least, top)
    if limit is None:
        return None, limiting
    first, last, step = limit
    if first == least == 2 and step == 1 and holding(np.array([1])).all():
        first = 1
    return (first, most if last == top else last, step), limiting


def _limit(holding: Callable[[Any], Any], values: Any, least: int, top: int) -> Optional[Tuple[int, int, int]]:
    """The multiples of a number between two for which this holds: it is tried for these values, and
    where they leave out a middle part, for some of it, and at the borders. None: there is no such
    limit, or it is not certain."""
    import numpy as np

    whole, kept = len(values) == top - least + 1, holding(values)
    if not kept.any():
        return None
    if not whole:
        generator = np.random.default_rng(_SEED)
        values = np.unique(np.concatenate([values, generator.integers(least, top, _PAIRS, endpoint=True)]))
        step = int(np.gcd.reduce(values[holding(values)]))
        if step > _TRIED:
            return None
        more = generator.integers(-(-least // step), top // step, _PAIRS, endpoint=True) * step
        values = np.unique(np.concatenate([values, more]))
        kept = holding(values)
    step = int(np.gcd.reduce(values[kept]))
    first, last = int(values[kept][0]), int(values[kept][-1])
    if not (kept == (values >= first) & (values <= last) & (values % step == 0)).all():
        return None
    multiples = values[values % step == 0]
    below, above = multiples[multiples < first], multiples[multiples > last]
    first = _border(holding, first, int(below[-1]), step) if len(below) else first
    last = _border(holding, last, int(above[0]), step) if len(above) else last
    return first, last, step if last > first else 1


def _border(holding: Callable[[Any], Any], good: int, bad: int, step: int) -> int:
    """Of the multiples between one for which this holds and one for which it does not, the last for
    which it holds."""
    import numpy as np

    while abs(bad - good) > step:
        middle = good + (bad - good) // step // 2 * step
        good, bad = (middle, bad) if holding(np.array([middle])).all() else (good, middle)
    return good


def _of_several(guard: _Guard, shapes: Mapping[str, Sequence[Any]], limits: Limits) -> Optional[Limits]:
    """The limits that change where a guard of several symbols holds for all but small sizes: torch
    notes that a product of sizes is not 1. None: it does not hold for others either."""
    import numpy as np

    def fails(least: Mapping[str, int]) -> bool:
        generator = np.random.default_rng(_SEED)
        tried = {name: _pairs(generator, least.get(name, first), last, step) for name, (first, last, step) in limits.items()}
        return not bool(np.all(_value(guard.tree, shapes, tried)))

    if not fails({}):
        return {}
    given = {name: _example(name, shapes) or 2 * limits[name][0] for name in guard.names}
    for names in [*([name] for name in guard.names), guard.names]:

        def raised(to: int) -> Dict[str, int]:
            return {name: max(limits[name][0], min(to, given[name])) for name in names}

        bad, good = min(limits[name][0] for name in names), max(given[name] for name in names)
        if good <= bad or fails(raised(good)):
            continue
        while good - bad > 1:
            middle = (bad + good) // 2
            bad, good = (middle, good) if fails(raised(middle)) else (bad, middle)
        return {name: (-(-least // limits[name][2]) * limits[name][2], *limits[name][1:]) for name, least in raised(good).items()}
    return None


def _example(name: str, shapes: Mapping[str, Sequence[Any]]) -> int:
    """The size that a symbol has in torch's example, or 0."""
    for size in (size for shape in shapes.values() for size in shape if not isinstance(size, int)):
        if str(size.node.expr) == name and isinstance(getattr(size.node, "hint", None), int):
            return int(size.node.hint)
    return 0


def _pairs(generator: Any, least: int, most: int, step: int) -> Any:
    """Sizes for trying several symbols: many small ones."""
    import numpy as np

    first, last = -(-least // step), max(most // step, -(-least // step))
    parts = [generator.integers(first, min(last, first + far), _PAIRS // 4, endpoint=True) for far in (2, 20, 60, last)]
    return (np.concatenate(parts) * step).astype(np.float64)


def _in_general(tree: ast.expr, several: bool) -> bool:
    """x >= 2, 1 < x and x != 1 of a plain size x; and any != of several, but for a remainder."""
    if not isinstance(tree, ast.Compare) or len(tree.ops) != 1:
        return False
    kind, left, right = type(tree.ops[0]), tree.left, tree.comparators[0]
    if kind is ast.NotEq:
        plain = isinstance(left, ast.Subscript) or isinstance(right, ast.Subscript)
        return (several or plain) and not _of_remainder(tree)
    if isinstance(left, ast.Subscript):
        return (kind, _constant(right)) in ((ast.GtE, 2), (ast.Gt, 1))
    return isinstance(right, ast.Subscript) and (kind, _constant(left)) in ((ast.Lt, 1), (ast.LtE, 2))


def _is_number_apart(tree: ast.expr, is_own: bool) -> bool:
    """Whether it says that a size is not 16 (in the model's own line: not 1, not another size)."""
    return _is_unequal(tree) and not _of_remainder(tree) and (is_own or any(
        type(_constant(side)) is int and _constant(side) > 1 for side in (tree.left, tree.comparators[0])  # type: ignore[attr-defined]
    ))


def _is_checked(guard: _Guard, shapes: Mapping[str, Sequence[Any]]) -> bool:
    """Whether a call can check it. Where sizes are equal, that alone helps nothing: the shapes that
    follow would have to be those of the export."""
    from .from_torch.values import Unsupported

    if any(isinstance(node, ast.Eq) for node in ast.walk(guard.tree)):
        return False
    try:
        _check(guard, shapes, {name: Expr("symbol", (), name) for name in guard.names})
    except (Unsupported, *_ODD):
        return False
    return True


_COMPARED: Dict[type, Callable[[Any, Any], Size]] = {
    ast.Eq: equal, ast.NotEq: not_equal, ast.Lt: less, ast.LtE: less_equal, ast.Gt: lambda a, b: less(b, a), ast.GtE: lambda a, b: less_equal(b, a),
}  # fmt: skip


def _condition(node: ast.expr, of: Callable[[Any], Size], shapes: Mapping[str, Sequence[Any]]) -> Size:
    """A guard of whole numbers as an expression of a bundle."""

    def part(inner: ast.expr) -> Size:
        return _condition(inner, of, shapes)

    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return int(node.value)
    if isinstance(node, ast.Subscript):
        return of(_size(node, shapes))
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Mod)):
        return _OPERATIONS[type(node.op)](part(node.left), part(node.right))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.Not)):
        return 0 - part(node.operand) if isinstance(node.op, ast.USub) else logical_not(part(node.operand))
    if isinstance(node, ast.Compare) and all(type(op) in _COMPARED for op in node.ops):
        sides = [part(side) for side in (node.left, *node.comparators)]
        return functools.reduce(logical_and, (_COMPARED[type(op)](a, b) for op, a, b in zip(node.ops, sides, sides[1:])))
    if isinstance(node, ast.BoolOp):
        return functools.reduce(logical_and if isinstance(node.op, ast.And) else logical_or, map(part, node.values))
    if isinstance(node, ast.Call) and _called(node) in ("min", "max") and len(node.args) > 1 and not node.keywords:
        return functools.reduce(minimum if _called(node) == "min" else maximum, map(part, node.args))
    raise _Unread


def _is_unequal(tree: ast.expr) -> bool:
    return isinstance(tree, ast.Compare) and len(tree.ops) == 1 and isinstance(tree.ops[0], ast.NotEq)


def _of_remainder(tree: ast.expr) -> bool:
    """Whether a side of a comparison is x % 4, or that plus or times a number."""
    return isinstance(tree, ast.Compare) and any(map(_is_remainder, (tree.left, *tree.comparators)))


def _is_remainder(node: ast.expr) -> bool:
    while True:
        if isinstance(node, ast.UnaryOp):
            node = node.operand
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
            return _is_number(node.right)
        elif isinstance(node, ast.BinOp) and (_is_number(node.left) or _is_number(node.right)):
            node = node.right if _is_number(node.left) else node.left
        else:
            return False


def _is_number(node: ast.expr) -> bool:
    return isinstance(node.operand if isinstance(node, ast.UnaryOp) else node, ast.Constant)


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
    try:
        text = ast.unparse(tree)
    except RecursionError:
        text = guard
    text = re.sub(r"\bL((?:\['?\w+'?\])+)\.size\(\)", lambda found: "_".join(re.findall(r"\w+", found[1])) + ".shape", text)
    return inputs[0] if inputs else "", _short(text.replace("torch.sym_float", "").replace("math.", ""))


def _short(text: str) -> str:
    return text if len(text) <= 200 else text[:197] + "..."


def _right(tree: ast.expr, shapes: Mapping[str, Sequence[Any]], name: str, values: Any) -> Any:
    """Whether a guard holds, for each value of its symbol: in parts, for little memory."""
    import numpy as np

    parts = np.array_split(values, -(-len(values) // _PART))
    return np.concatenate([np.broadcast_to(_value(tree, shapes, {name: part.astype(np.float64)}), part.shape).astype(bool) for part in parts])


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
        return functools.reduce(np.logical_and, (_OPERATIONS[type(op)](a, b) for op, a, b in zip(node.ops, sides, sides[1:])))
    if isinstance(node, ast.BoolOp):
        return functools.reduce(np.logical_and if isinstance(node.op, ast.And) else np.logical_or, map(part, node.values))
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow) and type(_constant(node.right)) is int and 0 <= _constant(node.right) <= _EXPONENT:
        return part(node.left) ** _constant(node.right)
    of_one = {"math.trunc": np.trunc, "math.floor": np.floor, "math.ceil": np.ceil, "torch.sym_float": np.float64, "abs": np.abs}
    of_many = {"min": np.minimum, "max": np.maximum}
    name = _called(node) if isinstance(node, ast.Call) and not node.keywords else ""
    if isinstance(node, ast.Call) and name in of_one and len(node.args) == 1:
        return of_one[name](part(node.args[0]))
    if isinstance(node, ast.Call) and name in of_many and len(node.args) > 1:
        return functools.reduce(of_many[name], map(part, node.args))
    raise _Unread


def _called(node: ast.Call) -> str:
    if isinstance(node.func, ast.Name):
        return node.func.id
    return f"{node.func.value.id}.{node.func.attr}" if isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name) else ""


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
