"""The canonical form of expressions, and what it proves of them.

Sums of products are expanded, terms sorted, constants folded; what is proved (by symbols being >=
0, or by ranges) is resolved. An expression means the same before and after for all values that do
not overflow.
"""

from __future__ import annotations

import functools
import itertools
import math
from typing import Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

from .expressions import Expr, Size, constant, same

_Monomial = Tuple[Expr, ...]
_Polynomial = Dict[_Monomial, int]

#: So many values are tried for a proof; and the greatest divisor that is made of two.
_TRIED, _DIVISOR = 1 << 14, 1 << 31

FOLD = {
    "floordiv": lambda a, b: a // b, "ceildiv": lambda a, b: -(-a // b), "mod": lambda a, b: a % b, "min": min, "max": max,
    "eq": lambda a, b: int(a == b), "ne": lambda a, b: int(a != b), "lt": lambda a, b: int(a < b), "le": lambda a, b: int(a <= b),
    "and": lambda a, b: int(bool(a) and bool(b)), "or": lambda a, b: int(bool(a) or bool(b)),
    "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b,
}  # fmt: skip


@functools.lru_cache(maxsize=None)
def _key(e: Expr) -> str:
    """Text that orders atoms: the same in every process."""
    return repr(e)


@functools.lru_cache(maxsize=65536)
def _polynomial(e: Expr) -> Tuple[Tuple[_Monomial, int], ...]:
    if e.op == "constant":
        return (((), e.value),) if e.value else ()
    if e.op in ("add", "sub"):
        total = dict(_polynomial(e.args[0]))
        sign = 1 if e.op == "add" else -1
        for monomial, factor in _polynomial(e.args[1]):
            total[monomial] = total.get(monomial, 0) + sign * factor
        return _frozen(total)
    if e.op == "mul":
        total = {}
        for left, a in _polynomial(e.args[0]):
            for right, b in _polynomial(e.args[1]):
                monomial = tuple(sorted(left + right, key=_key))
                total[monomial] = total.get(monomial, 0) + a * b
        return _frozen(total)
    atom = _atom(e)
    if atom is e:
        return (((e,), 1),)
    return _polynomial(atom)


def _frozen(polynomial: _Polynomial) -> Tuple[Tuple[_Monomial, int], ...]:
    terms = [(m, f) for m, f in polynomial.items() if f]
    return tuple(sorted(terms, key=lambda term: (-len(term[0]), [_key(atom) for atom in term[0]])))


def _build(terms: Sequence[Tuple[_Monomial, int]]) -> Expr:
    """The expression of a polynomial; positive terms first, so that there is something to subtract
    from."""
    result: Optional[Expr] = None
    for monomial, factor in sorted(terms, key=lambda term: term[1] < 0):
        value = functools.reduce(lambda a, b: Expr("mul", (a, b)), monomial) if monomial else None
        size = abs(factor) if result is not None else factor
        if value is None:
            value = constant(size)
        elif size != 1:
            value = Expr("mul", (value, constant(size)))
        result = value if result is None else Expr("add" if factor > 0 else "sub", (result, value))
    return constant(0) if result is None else result


def _divide(terms: Sequence[Tuple[_Monomial, int]], divisor: Sequence[Tuple[_Monomial, int]]) -> Optional[Expr]:
    """The exact quotient, or None."""
    rest, quotient = dict(terms), {}
    for _ in range(len(terms)):
        found = _divided(_frozen(rest)[0], divisor[0]) if rest else None
        if found is None:
            break
        quotient[found[0]] = found[1]
        for monomial, factor in divisor:
            product = tuple(sorted(monomial + found[0], key=_key))
            rest[product] = rest.get(product, 0) - factor * found[1]
        rest = {m: f for m, f in rest.items() if f}
    return None if rest else _build(_frozen(quotient))


def _divided(term: Tuple[_Monomial, int], by: Tuple[_Monomial, int]) -> Optional[Tuple[_Monomial, int]]:
    """A term by a term, or None."""
    rest = list(term[0])
    for atom in by[0]:
        at = next((i for i, other in enumerate(rest) if same(other, atom)), None)
        if at is None:
            return None
        del rest[at]
    return None if term[1] % by[1] else (tuple(rest), term[1] // by[1])


def _quotient(op: str, a: Expr, b: Expr) -> Expr:
    terms, divisor = _polynomial(a), _polynomial(b)
    if same(a, b) and divisor:
        return constant(1)
    exact = _divide(terms, divisor) if divisor else None
    if exact is not None:
        return exact
    if b.op == "constant" and b.value > 0:
        whole = [(m, f // b.value) for m, f in terms if f % b.value == 0]
        rest = [(m, f) for m, f in terms if f % b.value]
        if whole:
            return _build(_frozen(dict(_polynomial(Expr("add", (_build(whole), Expr(op, (_build(rest), b))))))))
        return _nested(op, terms, b.value)
    return Expr(op, (a, b))


def _nested(op: str, terms: Sequence[Tuple[_Monomial, int]], by: int) -> Expr:
    """A quotient in the fewest steps: (4*x + 5) // 6 is (2*x + 2) // 3, (x // 2 + y) // 3 is
    (x + 2*y) // 6."""
    number = sum(f for m, f in terms if not m)
    common = math.gcd(by, *(f for m, f in terms if m))
    if common > 1:
        parts = [(m, f // common) for m, f in terms if m] + [((), FOLD[op](number, common))]
        return _canonical(Expr(op, (_build(parts), constant(by // common))))
    for at, (monomial, factor) in enumerate(terms):
        inner = monomial[0] if len(monomial) == factor == 1 else None
        if inner is None or inner.op != op or inner.args[1].op != "constant" or not 0 < inner.args[1].value <= _DIVISOR // by:
            continue
        scale = inner.args[1].value
        rest = _build([(m, f * scale) for m, f in (*terms[:at], *terms[at + 1 :])])
        return _canonical(Expr(op, (Expr("add", (inner.args[0], rest)), constant(by * scale))))
    return Expr(op, (_build(terms), constant(by)))


def _modulo(a: Expr, b: Expr) -> Expr:
    terms, divisor = _polynomial(a), _polynomial(b)
    if divisor and _divide(terms, divisor) is not None:
        return constant(0)
    if b.op == "constant" and b.value > 0:
        return Expr("mod", (_build([(m, f % b.value) for m, f in terms if f % b.value]), b))
    return Expr("mod", (a, b))


def _ordered(op: str, a: Expr, b: Expr) -> Expr:
    """min and max: resolved where one side is proved, constants last."""
    if same(a, b) or proved_less_equal(a, b):
        return a if op == "min" else b
    if proved_less_equal(b, a):
        return b if op == "min" else a
    if (a.op == "constant", _key(a)) > (b.op == "constant", _key(b)):
        a, b = b, a
    return Expr(op, (a, b))


def _compared(op: str, a: Expr, b: Expr) -> Expr:
    if same(a, b):
        return constant(int(op in ("eq", "le")))
    if op == "le" and proved_less_equal(a, b):
        return constant(1)
    if op == "lt" and proved_less_equal(b, a):
        return constant(0)
    return Expr(op, (a, b))


@functools.lru_cache(maxsize=65536)
def _atom(e: Expr) -> Expr:
    """Canonical form of anything but a sum or product."""
    args = tuple(_canonical(a) for a in e.args)
    if args and all(a.op == "constant" for a in args):
        values = [a.value for a in args]
        if e.op in FOLD and not (e.op in ("floordiv", "ceildiv", "mod") and values[1] == 0):
            return constant(FOLD[e.op](*values))
        if e.op == "not":
            return constant(int(not values[0]))
    if e.op in ("floordiv", "ceildiv"):
        return _quotient(e.op, *args)
    if e.op == "mod":
        return _modulo(*args)
    if e.op in ("min", "max"):
        return _ordered(e.op, *args)
    if e.op in ("eq", "ne", "lt", "le"):
        return _compared(e.op, *args)
    if e.op == "select" and args[0].op == "constant":
        return args[1] if args[0].value else args[2]
    if e.op == "select" and same(args[1], args[2]):
        return args[1]
    return e if all(map(same, args, e.args)) else Expr(e.op, args, e.value)


@functools.lru_cache(maxsize=65536)
def _canonical(e: Expr) -> Expr:
    return _build(_polynomial(e))


def simplify(size: Size) -> Size:
    """The canonical form: an int where the value is known."""
    if type(size) is int and -(1 << 63) <= size < 1 << 63:
        return size
    if not isinstance(size, Expr):
        return constant(size).value  # refuses what is no integer
    result = _canonical(size)
    return result.value if result.op == "constant" else result


def proved_equal(a: Size, b: Size) -> bool:
    """Whether both are the same for all values of the symbols. False may also mean: not known."""
    a, b = constant(a), constant(b)
    if same(a, b):
        return True
    if a.op == b.op == "constant":
        return False
    return _difference_is_zero(a, b)


@functools.lru_cache(maxsize=65536)
def _difference_is_zero(a: Expr, b: Expr) -> bool:
    difference = constant(simplify(a - b))
    return same(difference, constant(0)) or _decided(difference, lambda step: step == 0, natural=False)


def proved_less_equal(a: Size, b: Size) -> bool:
    """Whether a <= b for all values; symbols are >= 0."""
    difference = Expr("sub", (constant(b), constant(a)))
    low, _high = bounds(difference, {})
    return low is not None and low >= 0 or _decided(_canonical(difference), lambda step: step >= 0, natural=True)


#: By variable: its period and its degree.
_Periods = Dict[Expr, Tuple[int, int]]


def _periods(e: Expr) -> _Periods:
    """A size is a polynomial of its variables where each stays in one class of remainders of its
    period. The polynomial has whole coefficients, of the steps of one period: so a quotient by c
    is one again for c periods, and a remainder is constant for these. What is no sum, product,
    quotient by a number or remainder by one is a variable itself."""
    if e.op == "constant":
        return {}
    by = e.args[1] if len(e.args) == 2 else None
    if e.op in ("floordiv", "ceildiv", "mod") and by is not None and by.op == "constant" and by.value > 0:
        grown = {v: (period * by.value if degree else period, degree) for v, (period, degree) in _periods(e.args[0]).items()}
        return {v: (period, 0 if e.op == "mod" else degree) for v, (period, degree) in grown.items()}
    if e.op not in ("add", "sub", "mul"):
        return {e: (1, 1)}
    found = _periods(e.args[0])
    for variable, (period, degree) in _periods(e.args[1]).items():
        other, most = found.get(variable, (1, 0))
        found[variable] = math.lcm(period, other), degree + most if e.op == "mul" else max(degree, most)
    return found


def _valued(e: Expr, values: Mapping[Expr, int]) -> int:
    if e.op == "constant":
        return e.value
    return values[e] if e in values else FOLD[e.op](*(_valued(a, values) for a in e.args))


def _coefficients(e: Expr, variables: Sequence[Tuple[Expr, int, int]]) -> Iterator[int]:
    """Those of the polynomials that a size is (`_periods`), class by class, in Newton's form: the
    value at the least point, and the differences from there. Where all are 0, the size is 0
    everywhere; where all are >= 0, it is so for variables >= 0."""

    def of(values: Dict[Expr, int], rest: Sequence[Tuple[Expr, int, int, int]]) -> List[int]:
        if not rest:
            return [_valued(e, values)]
        (variable, first, period, degree), *others = rest
        rows = [of({**values, variable: first + period * step}, others) for step in range(degree + 1)]
        found = []
        while rows:
            found += rows[0]
            rows = [[b - a for a, b in zip(below, above)] for below, above in zip(rows, rows[1:])]
        return found

    for firsts in itertools.product(*(range(period) for _, period, _ in variables)):
        yield from of({}, [(v, first, period, degree) for first, (v, period, degree) in zip(firsts, variables)])


def _decided(e: Expr, holds: Callable[[int], bool], natural: bool) -> bool:
    """Whether this holds for all coefficients of a size, of variables that are >= 0 if `natural`
    says so. False may also mean that there are too many."""
    variables = [(v, period, degree) for v, (period, degree) in _periods(e).items()]
    if math.prod(period * (degree + 1) for _, period, degree in variables) > _TRIED:
        return False
    if natural and not all(_is_natural(v) for v, _, _ in variables):
        return False
    return all(map(holds, _coefficients(e, variables)))


def _is_natural(variable: Expr) -> bool:
    low, _high = _atom_bounds(variable, {})
    return low is not None and low >= 0


def always_equal(a: Size, b: Size) -> Optional[bool]:
    """True where both are equal for all values of the symbols, False where they are for none, and
    None where it is not known."""
    difference = simplify(constant(a) - constant(b))
    low, high = bounds(difference, {})
    if (low is not None and low > 0) or (high is not None and high < 0):
        return False
    return True if proved_equal(difference, 0) else None


Bound = Optional[int]


def bounds(size: Size, ranges: Mapping[str, Tuple[int, int]]) -> Tuple[Bound, Bound]:
    """The least and the greatest value, where known, given ranges of symbols; a symbol without one
    is >= 0."""
    e = constant(size)
    low: Bound = 0
    high: Bound = 0
    for monomial, factor in _polynomial(e):
        part = _scaled(_monomial_bounds(monomial, ranges), factor)
        low = None if low is None or part[0] is None else low + part[0]
        high = None if high is None or part[1] is None else high + part[1]
    return low, high


def _scaled(pair: Tuple[Bound, Bound], factor: int) -> Tuple[Bound, Bound]:
    low, high = (None if bound is None else bound * factor for bound in pair)
    return (low, high) if factor >= 0 else (high, low)


def _monomial_bounds(monomial: _Monomial, ranges: Mapping[str, Tuple[int, int]]) -> Tuple[Bound, Bound]:
    low: Bound = 1
    high: Bound = 1
    for atom in monomial:
        a, b = _atom_bounds(atom, ranges)
        if a is None or a < 0 or low is None:
            return None, None
        low = low * a
        high = None if high is None or b is None else high * b
    return low, high


def _atom_bounds(atom: Expr, ranges: Mapping[str, Tuple[int, int]]) -> Tuple[Bound, Bound]:
    if atom.op == "symbol":
        return ranges.get(atom.value, (0, None))
    if atom.op == "induction":
        return 0, None
    if atom.op in ("eq", "ne", "lt", "le", "and", "or", "not", "present"):
        return 0, 1
    sides = [bounds(a, ranges) for a in atom.args]
    lows, highs = [s[0] for s in sides], [s[1] for s in sides]
    if atom.op == "select":
        return (None if None in lows[1:] else min(lows[1:])), (None if None in highs[1:] else max(highs[1:]))
    if atom.op == "min":
        known = [h for h in highs if h is not None]
        return (None if None in lows else min(lows)), min(known) if known else None
    if atom.op == "max":
        known = [b for b in lows if b is not None]
        return (max(known) if known else None), (None if None in highs else max(highs))
    divisor = atom.args[1]
    if divisor.op != "constant" or divisor.value <= 0:
        return None, None
    if atom.op == "mod":
        return 0, divisor.value - 1
    fold = FOLD[atom.op]
    return tuple(None if bound is None else fold(bound, divisor.value) for bound in sides[0])  # type: ignore[return-value]
