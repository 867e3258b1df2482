"""Symbolic sizes of the IR: int where known, else the `Expr` of the file format, kept in its
canonical form.

A size is compared with `same` (is it this number, or this expression?) or with `proved_equal`: `==`
refuses what only a call decides. The module also teaches the kernel records (kernels/expr.py) to
calculate with these sizes.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any, Iterable, List, Mapping, Optional, Sequence

from ..bundle_writer import Expr, Size, constant, induction, present, same
from ..bundle_writer.canonical import FOLD, bounds, proved_equal, proved_less_equal, simplify
from .kernels import expr as kernel_expr

__all__ = [
    "Expr", "Size", "align_up", "bounds", "ceildiv", "equal", "evaluate", "induction", "maximum", "minimum", "present",
    "product", "proved_equal", "proved_less_equal", "rounded", "same", "same_shape", "select", "simplify", "size_text", "substitute", "symbol",
    "symbols_of",
]  # fmt: skip


def symbol(name: str) -> Expr:
    return Expr("symbol", (), name)


def _make(op: str, *args: Size) -> Size:
    return simplify(Expr(op, tuple(constant(a) for a in args)))


def ceildiv(a: Size, b: Size) -> Size:
    return _make("ceildiv", a, b)


def minimum(a: Size, b: Size) -> Size:
    return _make("min", a, b)


def maximum(a: Size, b: Size) -> Size:
    return _make("max", a, b)


def equal(a: Size, b: Size) -> Size:
    """1 where equal, else 0."""
    return _make("eq", a, b)


def select(condition: Size, then: Size, otherwise: Size) -> Size:
    return _make("select", condition, then, otherwise)


def align_up(size: Size, alignment: int) -> Size:
    return simplify(ceildiv(size, alignment) * alignment)


def product(sizes: Iterable[Size]) -> Size:
    result: Size = 1
    for size in sizes:
        result = simplify(size * result)
    return result


def rounded(way: str, size: Size, factor: Fraction) -> Size:
    """The size times the factor, as "floor", "ceil" or "trunc" (toward zero) gives it."""
    whole = size * factor.numerator
    below, above = _make("floordiv", whole, factor.denominator), ceildiv(whole, factor.denominator)
    return {"floor": below, "ceil": above}.get(way, simplify(maximum(below, 0) + minimum(above, 0)))


def same_shape(a: Sequence[Size], b: Sequence[Size]) -> bool:
    """Whether all sizes are the same numbers and expressions."""
    return len(a) == len(b) and all(map(same, a, b))


def evaluate(size: Size, values: Mapping[str, int], inductions: Sequence[int] = ()) -> int:
    """The value for given symbol values; KeyError for a symbol without one, ZeroDivisionError as in
    the file."""
    if not isinstance(size, Expr):
        return int(size)
    if size.op == "constant":
        return size.value
    if size.op == "symbol":
        return values[size.value]
    if size.op == "induction":
        return inductions[size.value]
    if size.op == "select":
        chosen = size.args[1] if evaluate(size.args[0], values, inductions) else size.args[2]
        return evaluate(chosen, values, inductions)
    args = [evaluate(a, values, inductions) for a in size.args]
    if size.op == "not":
        return int(not args[0])
    if size.op == "present":
        return values[f"present({size.value})"]
    return FOLD[size.op](*args)


def known(size: Size, present_index: int, present_value: int) -> Optional[int]:
    """The value if it follows from one optional input's being there or not; None: it depends on
    more."""
    if not isinstance(size, Expr) or size.op == "constant":
        return size.value if isinstance(size, Expr) else int(size)
    if size.op == "present":
        return present_value if size.value == present_index else None
    args = [known(a, present_index, present_value) for a in size.args]
    if size.op in ("mul", "and") and 0 in args:
        return 0
    if size.op == "or" and any(args):
        return 1
    if size.op == "select":
        both = args[1] if same(args[1], args[2]) else None
        return both if args[0] is None else args[1] if args[0] else args[2]
    if not args or None in args:
        return None
    return int(not args[0]) if size.op == "not" else FOLD[size.op](*args)


def substitute(size: Size, values: Mapping[str, Size]) -> Size:
    """The size with expressions, or numbers, in the place of symbols."""
    return simplify(_substituted(size, values)) if isinstance(size, Expr) else size


def _substituted(e: Expr, values: Mapping[str, Size]) -> Expr:
    if e.op == "symbol":
        return constant(values[e.value]) if e.value in values else e
    return Expr(e.op, tuple(_substituted(a, values) for a in e.args), e.value) if e.args else e


def symbols_of(size: Size) -> List[str]:
    return sorted(size.symbols()) if isinstance(size, Expr) else []


def is_known(size: Size, late: Any) -> bool:
    """Whether a size has none of the symbols in `late`, which only a run knows."""
    return not any(name in late for name in symbols_of(size))


def size_text(size: Any) -> str:
    text = str(size)
    return text[1:-1] if text.startswith("(") and text.endswith(")") and text.count("(") == 1 else text


def _kernel_equal(a: Any, b: Any) -> bool:
    return proved_equal(a, b)


kernel_expr.register(Expr, minimum=minimum, maximum=maximum, equal=_kernel_equal)
