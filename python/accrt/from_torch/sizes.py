"""Sizes that an export has as expressions of its symbols (2*n, n + 1): as the compiler's."""

from __future__ import annotations

from typing import Any, Dict, Optional, Tuple

from ..compiler import expr as ex
from ..compiler.expr import Size
from .values import Unsupported

#: By an export's symbol: its size.
Bound = Dict[str, Size]


def solved(expression: Any, symbol: Any) -> Optional[Tuple[int, int]]:
    """(factor, number) where the expression is factor * symbol + number and the symbol follows from
    it: all multiples of the factor are sizes. None where it does not."""
    import sympy

    if expression.free_symbols != {symbol}:
        return None
    terms = sympy.Poly(expression, symbol).all_coeffs() if expression.is_polynomial(symbol) else []
    if len(terms) != 2 or not all(t.is_Integer for t in terms):
        return None
    factor, number = map(int, terms)
    return (factor, number) if factor == 1 or (factor > 1 and number == 0) else None


def size_of(expression: Any, symbols: Bound) -> Size:
    missing = sorted(str(s) for s in expression.free_symbols if str(s) not in symbols)
    if missing:
        raise Unsupported(f"no input has a dimension of which {missing[0]} follows; give it one as {missing[0]} is, {missing[0]} + 1 or 2*{missing[0]}")
    return _converted(expression, symbols)


def _converted(expression: Any, values: Bound) -> Size:
    if expression.is_Symbol:
        return values[str(expression)]
    if expression.is_Integer:
        return int(expression)
    made = [ex.constant(_converted(a, values)) for a in expression.args]
    kind = type(expression).__name__
    if kind == "Pow" and expression.args[1].is_Integer and int(expression.args[1]) > 0:
        return ex.product([made[0]] * int(expression.args[1]))
    if kind == "Add":
        return ex.simplify(sum(made[1:], made[0]))
    if kind in ("FloorDiv", "Mod", "PythonMod"):
        return ex.simplify(made[0] // made[1] if kind == "FloorDiv" else made[0] % made[1])
    if kind != "Mul":
        raise Unsupported(f"{kind} of sizes")
    return ex.product(made)
