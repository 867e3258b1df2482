"""Complex numbers as two tensors, and their arithmetic: made of operations on real numbers."""

from __future__ import annotations

from typing import Any, Callable, Dict, NamedTuple, Sequence

from ..ir import IRError, Value
from . import elementwise, functions, products, reductions, shapes  # noqa: F401  - the methods that are used here
from .einsum import einsum


class Complex(NamedTuple):
    """Complex numbers as two tensors of one shape."""

    real: Value
    imag: Value

    @property
    def shape(self) -> Any:
        return self.real.shape

    @property
    def dtype(self) -> str:
        return "complex"


def of(x: Any) -> Complex:
    """A number, or a tensor of real numbers, as complex ones."""
    if isinstance(x, Complex):
        return x
    if isinstance(x, Value):
        return Complex(x, x.function.full(list(x.shape), 0, x.dtype))
    return Complex(x.real, x.imag)


def of_number(x: Any) -> Any:
    """A number as a complex one; what is none as it is."""
    return of(x) if isinstance(x, (int, float, complex)) else x


def _real(x: Any) -> bool:
    return isinstance(x, Value) or isinstance(x, (int, float))


def multiplied(a: Any, b: Any) -> Complex:
    """a * b, element by element; of a real number and a complex one, two products."""
    if _real(a) or _real(b):
        (real, imag), factor = (of(b), a) if _real(a) else (of(a), b)
        return Complex(real * factor, imag * factor)
    (a, b), (c, d) = of(a), of(b)
    return Complex(a * c - b * d, a * d + b * c)


def divided(a: Any, b: Any) -> Complex:
    """a / b; the divisor's larger part comes out first, so that no square of it overflows. By 0
    each part is divided alone, as torch does."""
    if _real(b):
        real, imag = of(a)
        return Complex(real / b, imag / b)
    (p, q), (c, d) = of(a), of(b)
    if not isinstance(c, Value):
        size = c * c + d * d
        return multiplied(Complex(p, q), Complex(c / size, -d / size))
    top = c.abs().maximum(d.abs())
    none = top.eq(0.0)
    c, d, p, q = c / top, d / top, p / top, q / top
    size = c * c + d * d
    return Complex(none.where(p, (p * c + q * d) / size), none.where(q, (q * c - p * d) / size))


def added(a: Any, b: Any, alpha: Any = 1) -> Complex:
    """a + alpha * b."""
    (p, q), (c, d) = of(a), of(b)
    return Complex(p + c * alpha, q + d * alpha)


def turned(angle: Value, size: Any = 1) -> Complex:
    """Numbers by size and angle."""
    return Complex(angle.cos() * size, angle.sin() * size)


def product(by: Callable[[Value, Value], Value], a: Any, b: Any) -> Complex:
    """What is linear in both operands, as a product of matrices is; one may be real."""
    (p, q), (c, d) = of(a), of(b)
    if isinstance(a, Value) or isinstance(b, Value):
        return Complex(by(p, c), by(p, d) if isinstance(a, Value) else by(q, c))
    return Complex(by(p, c) - by(q, d), by(p, d) + by(q, c))


def by_equation(equation: str, operands: Sequence[Any], path: Any = None) -> Complex:
    """aten.einsum of one or two operands."""
    if len(operands) > 2:
        raise IRError(f"einsum of {len(operands)} operands, some of them complex: one and two are there")
    if len(operands) == 1:
        return Complex(*(einsum(equation, [part]) for part in operands[0]))
    return product(lambda x, y: einsum(equation, [x, y]), *operands)


def power(a: Any, exponent: Any) -> Complex:
    """To a whole power of 1 to 64: by products."""
    if not isinstance(exponent, (int, float)) or exponent != int(exponent) or not 0 < exponent <= 64:
        raise IRError(f"complex numbers to the power of {exponent}: whole powers of 1 to 64 are there")
    made = a
    for _ in range(int(exponent) - 1):
        made = multiplied(made, a)
    return of(made)


def _exp(x: Complex) -> Complex:
    return turned(x.imag, x.real.exp())


#: By operation of torch, what gives complex numbers or real ones out of complex ones.
ARITHMETIC: Dict[str, Callable[..., Any]] = {
    "mul": multiplied, "div": divided, "add": added, "sub": lambda a, b, alpha=1: added(a, b, -alpha), "rsub": lambda a, b, alpha=1: added(b, a, -alpha),
    "reciprocal": lambda x: divided(1, x), "square": lambda x: multiplied(x, x), "pow": power, "exp": _exp, **dict.fromkeys(("resolve_conj", "resolve_neg"), lambda x: x),
    "abs": lambda x: x.real.hypot(x.imag), "angle": lambda x: x.imag.atan2(x.real), "log": lambda x: Complex(x.real.hypot(x.imag).log(), x.imag.atan2(x.real)),
    "real": lambda x: x.real, "imag": lambda x: x.imag, "conj": lambda x: Complex(x.real, -x.imag), "view_as_real": lambda x: pairs(x),
    "complex": lambda a, b: Complex(a, b), "polar": lambda size, angle: turned(angle, size), "view_as_complex": lambda x: Complex(x.select(-1, 0), x.select(-1, 1)),
    "einsum": by_equation,
}  # fmt: skip
for _same, _as in (("multiply", "mul"), ("divide", "div"), ("true_divide", "div"), ("subtract", "sub"), ("_conj", "conj"), ("conj_physical", "conj"), ("_conj_physical", "conj")):
    ARITHMETIC[_same] = ARITHMETIC[_as]


def pairs(x: Complex) -> Value:
    """The two parts side by side, as a last dimension of 2."""
    return shapes.cat([part.unsqueeze(part.rank) for part in x], x.real.rank)


#: What writes through views that are not of each part alone: the whole, with the view's content.
PUTS: Dict[str, Callable[[Any, Any], Any]] = {
    "aten.real.default": lambda whole, part: Complex(part, whole.imag),
    "aten.imag.default": lambda whole, part: Complex(whole.real, part),
    "aten.view_as_real.default": lambda _whole, part: ARITHMETIC["view_as_complex"](part),
    "aten.view_as_complex.default": lambda _whole, part: pairs(part),
}
