"""Expressions of shape symbols: sizes that are known when a bundle runs."""

from __future__ import annotations

import functools
from numbers import Number
from operator import index
from typing import Any, Sequence, Set, Tuple, Union

from .common import EXPRESSION_OPERANDS as ARITY
from .common import BundleError

Size = Union[int, "Expr"]


class Expr:
    """An integer expression of shape symbols: immutable, and hashed by its structure.

    It stands for checked 64-bit arithmetic: overflow, division by zero or a symbol without a value
    is an error where the expression is used. `//` floors and `%` has the divisor's sign, as in
    Python. `==` is True where both sides are equal for all values of the symbols, False where they
    are for none, and else refused: `equal(a, b)` makes an expression that is 1 or 0, and `same(a,
    b)` says whether both are one expression.
    """

    __slots__ = ("op", "args", "value", "_hash")
    __array_ufunc__ = None  # numpy leaves operators to this class
    op: str
    args: Tuple["Expr", ...]
    value: Any

    def __init__(self, op: str, args: Sequence["Expr"] = (), value: Any = None):
        if op not in ARITY or len(args) != ARITY[op]:
            raise BundleError(f"no expression {op!r} of {len(args)} operands")
        object.__setattr__(self, "op", op)
        object.__setattr__(self, "args", tuple(args))
        object.__setattr__(self, "value", value)
        # Python hashes -1 as -2: two expressions of one hash would be compared by `==`.
        object.__setattr__(self, "_hash", hash((op, self.args, str(value))))

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError("expressions are immutable")

    def __reduce__(self) -> Any:
        return Expr, (self.op, self.args, self.value)

    def __copy__(self) -> "Expr":
        return self

    def __deepcopy__(self, memo: Any) -> "Expr":
        return self

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: Any) -> bool:
        if not isinstance(other, (Expr, Number)):
            return NotImplemented
        if same(self, other):
            return True
        from .canonical import always_equal

        answer = always_equal(self, other)
        if answer is None:
            raise BundleError(f"whether {self} == {other} is not known while compiling; use equal() in select() or cond()")
        return answer

    def __bool__(self) -> bool:
        raise BundleError(f"the truth of {self} is not known while compiling; use select() or a branch command")

    def __add__(self, other: Size) -> "Expr":
        return Expr("add", (self, constant(other)))

    def __radd__(self, other: Size) -> "Expr":
        return Expr("add", (constant(other), self))

    def __sub__(self, other: Size) -> "Expr":
        return Expr("sub", (self, constant(other)))

    def __rsub__(self, other: Size) -> "Expr":
        return Expr("sub", (constant(other), self))

    def __mul__(self, other: Size) -> "Expr":
        return Expr("mul", (self, constant(other)))

    def __rmul__(self, other: Size) -> "Expr":
        return Expr("mul", (constant(other), self))

    def __floordiv__(self, other: Size) -> "Expr":
        return Expr("floordiv", (self, constant(other)))

    def __rfloordiv__(self, other: Size) -> "Expr":
        return Expr("floordiv", (constant(other), self))

    def __mod__(self, other: Size) -> "Expr":
        return Expr("mod", (self, constant(other)))

    def __rmod__(self, other: Size) -> "Expr":
        return Expr("mod", (constant(other), self))

    def __truediv__(self, other: Any) -> "Expr":
        raise BundleError(f"{self} / {other}: sizes are integers; // floors, ceildiv(a, b) rounds up")

    __rtruediv__ = __truediv__

    def __lt__(self, other: Any) -> bool:
        raise BundleError(f"how {self} compares with {other} is not known while compiling; use minimum(), maximum(), select() or a branch")

    __le__ = __gt__ = __ge__ = __lt__

    def __neg__(self) -> "Expr":
        return Expr("sub", (constant(0), self))

    def __repr__(self) -> str:
        infix = {"add": "+", "sub": "-", "mul": "*", "floordiv": "//", "mod": "%", "eq": "==", "ne": "!=", "lt": "<", "le": "<="}
        if self.op in ("constant", "symbol"):
            return str(self.value)
        if self.op in infix:
            return f"({self.args[0]} {infix[self.op]} {self.args[1]})"
        inside = ", ".join(map(str, self.args)) if self.args else str(self.value)
        return f"{self.op}({inside})"

    def symbols(self) -> Set[str]:
        """Names of the symbols in it."""
        found: Set[str] = set()
        seen: Set[int] = set()
        pending = [self]
        while pending:
            node = pending.pop()
            if id(node) in seen:
                continue
            seen.add(id(node))
            if node.op == "symbol":
                found.add(node.value)
            pending.extend(node.args)
        return found


@functools.lru_cache(maxsize=None)
def _small(number: int) -> Expr:
    return Expr("constant", (), number)


def constant(value: Size) -> Expr:
    """An integer as an expression; an expression as it is."""
    if isinstance(value, Expr):
        return value
    if type(value) is int and -1024 <= value <= 65536:
        return _small(value)
    try:
        number = index(value)
        if isinstance(value, bool) or type(value).__name__ == "bool_":
            raise TypeError
    except TypeError:
        raise BundleError(f"a size must be an integer or an expression, not {value!r}") from None
    if not -(1 << 63) <= number < 1 << 63:
        raise BundleError(f"{number} does not fit a signed 64-bit expression")
    return Expr("constant", (), number)


def same(a: Any, b: Any) -> bool:
    """Whether both are one integer, or one expression by its structure."""
    if not isinstance(a, Expr) or not isinstance(b, Expr):
        return not isinstance(a, Expr) and not isinstance(b, Expr) and bool(a == b)
    if a is b:
        return True
    if a._hash != b._hash or (a.op, a.value, len(a.args)) != (b.op, b.value, len(b.args)):
        return False
    return all(map(same, a.args, b.args))


def nonnegative(value: Size, what: str) -> Expr:
    """What counts bytes or elements, as an expression; `what` is said of a number below 0, which no
    reader takes."""
    made = constant(value)
    if made.op == "constant" and made.value < 0:
        raise BundleError(f"{what} is {made.value}, which is negative")
    return made


def _binary(op: str, a: Size, b: Size) -> Expr:
    return Expr(op, (constant(a), constant(b)))


def ceildiv(a: Size, b: Size) -> Expr:
    """a / b rounded up."""
    return _binary("ceildiv", a, b)


def minimum(a: Size, b: Size) -> Expr:
    return _binary("min", a, b)


def maximum(a: Size, b: Size) -> Expr:
    return _binary("max", a, b)


def equal(a: Size, b: Size) -> Expr:
    """1 where a equals b, else 0; likewise the other comparisons."""
    return _binary("eq", a, b)


def not_equal(a: Size, b: Size) -> Expr:
    return _binary("ne", a, b)


def less(a: Size, b: Size) -> Expr:
    return _binary("lt", a, b)


def less_equal(a: Size, b: Size) -> Expr:
    return _binary("le", a, b)


def logical_and(a: Size, b: Size) -> Expr:
    return _binary("and", a, b)


def logical_or(a: Size, b: Size) -> Expr:
    return _binary("or", a, b)


def logical_not(a: Size) -> Expr:
    return Expr("not", (constant(a),))


def select(condition: Size, then: Size, otherwise: Size) -> Expr:
    """`then` where the condition is not 0, else `otherwise`."""
    return Expr("select", (constant(condition), constant(then), constant(otherwise)))


def induction(depth: int = 0) -> Expr:
    """Number of the current iteration of the repeat command at nesting depth `depth`, 0 the
    outermost."""
    return Expr("induction", (), int(depth))


def present(input_index: int) -> Expr:
    """1 when the optional input was given, else 0. `Function.present` takes the input itself."""
    return Expr("present", (), int(input_index))
