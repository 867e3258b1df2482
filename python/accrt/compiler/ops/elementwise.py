"""Operations by element: arithmetic, comparison, logic, casts and constants; Python's operators on
values."""

from __future__ import annotations

import math
from typing import Any, Callable, Dict, Optional, Sequence

from .. import arguments
from .. import expr as ex
from ..expr import Expr, Size
from ..declared import FLOATS, INTEGERS, RANGES, TensorType, UNSIGNED
from ..ir import Function, IRError, Op, Value
from .schema import broadcast, build, define, numpy, Types


def _erf(x: Any) -> Any:
    np = numpy()
    return np.vectorize(math.erf, otypes=[np.float64])(x) if x.size else x


def _divide(a: Any, b: Any) -> Any:
    """Floats as they are, integers towards zero."""
    np = numpy()
    if a.dtype.kind == "f":
        return a / b
    if a.dtype.kind == "u":
        return np.where(b == 0, np.zeros_like(a), a // np.where(b == 0, np.ones_like(b), b))
    quotient = np.abs(a.astype(object)) // np.where(b == 0, 1, np.abs(b.astype(object))) if a.size and b.size else a * b
    sign = np.sign(a.astype(np.int64)) * np.sign(b.astype(np.int64))
    return (quotient * sign).astype(a.dtype) if a.size and b.size else (a * b)


def _sigmoid(x: Any) -> Any:
    np = numpy()
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + e), e / (1 + e))


def _gelu(x: Any, approximate: str = "none") -> Any:
    np = numpy()
    if approximate == "tanh":
        return 0.5 * x * (1 + np.tanh(0.7978845608028654 * (x + 0.044715 * x**3)))
    return 0.5 * x * (1 + _erf(x / math.sqrt(2)))


def _pow(a: Any, b: Any) -> Any:
    np = numpy()
    if a.dtype.kind == "f":
        # power() of numpy 2 takes the square root for an exponent of 0.5, which differs at -inf and
        # -0
        return np.float_power(a, b)
    bits = 8 * a.dtype.itemsize
    exact = [pow(int(p), int(q), 1 << bits) if q >= 0 else int(p == 1) or (-1 if p == -1 and q % 2 else int(p == -1)) for p, q in np.broadcast(a, b)]
    wrapped = [(v + (1 << (bits - 1))) % (1 << bits) - (1 << (bits - 1)) if a.dtype.kind == "i" else v % (1 << bits) for v in exact]
    return np.array(wrapped, a.dtype).reshape(np.broadcast(a, b).shape)


_UNARY_FLOAT = {
    "sqrt": lambda x: numpy().sqrt(x), "rsqrt": lambda x: 1 / numpy().sqrt(x), "reciprocal": lambda x: 1 / x,
    "floor": lambda x: numpy().floor(x), "ceil": lambda x: numpy().ceil(x), "exp": lambda x: numpy().exp(x),
    "expm1": lambda x: numpy().expm1(x), "log1p": lambda x: numpy().log1p(x),
    "log": lambda x: numpy().log(x), "tanh": lambda x: numpy().tanh(x), "erf": _erf, "sin": lambda x: numpy().sin(x),
    "cos": lambda x: numpy().cos(x), "atan": lambda x: numpy().arctan(x), "sigmoid": _sigmoid, "silu": lambda x: x * _sigmoid(x),
}  # fmt: skip
_UNARY_ANY = {"neg": lambda x: -x, "abs": lambda x: numpy().abs(x), "relu": lambda x: numpy().where(x < 0, numpy().zeros_like(x), x)}
_BINARY = {
    "add": ("add", lambda a, b: a + b), "sub": ("sub", lambda a, b: a - b), "mul": ("mul", lambda a, b: a * b),
    "div": ("div", lambda a, b: a / b), "maximum": ("max", lambda a, b: numpy().maximum(a, b)),
    "minimum": ("min", lambda a, b: numpy().minimum(a, b)), "pow": ("pow", _pow),
}  # fmt: skip
#: Of those, what ATen calculates of integers as they are, or refuses.
_NOT_TO_FLOAT = ("floor", "ceil", "silu")
_COMPARE = {name: (lambda np_name: lambda a, b: getattr(numpy(), np_name)(a, b))(np_name) for name, np_name in (
    ("eq", "equal"), ("ne", "not_equal"), ("lt", "less"), ("le", "less_equal"), ("gt", "greater"), ("ge", "greater_equal"))}  # fmt: skip
_LOGICAL = {name: (lambda np_name: lambda a, b: getattr(numpy(), np_name)(a, b))(name) for name in (
    "logical_and", "logical_or", "logical_xor")}  # fmt: skip


def unary_inference(floats_only: bool) -> Callable[[Op], Types]:
    def infer_unary(op: Op) -> Types:
        dtype = op.operands[0].dtype
        if dtype == "bool" or (floats_only and dtype not in FLOATS):
            raise IRError(f"{op.name} of {dtype}")
        return [op.operands[0].type]

    return infer_unary


def _infer_binary(result: str = "") -> Callable[[Op], Types]:
    def infer_binary(op: Op) -> Types:
        a, b = op.operands
        if a.dtype != b.dtype:
            raise IRError(f"types {a.dtype} and {b.dtype} differ")
        if not result and a.dtype == "bool":
            raise IRError(f"{op.name} of bool")
        if op.name == "aten.div" and a.dtype not in FLOATS:
            raise IRError(f"{op.name} of {a.dtype}: its result is f32, so cast first")
        return [TensorType(result or a.dtype, broadcast([a.shape, b.shape]))]

    return infer_binary


for _name, _reference in _UNARY_FLOAT.items():
    define(f"aten.{_name}(Tensor self)", reference=_reference, scalar_op=_name, to_float=_name not in _NOT_TO_FLOAT)(unary_inference(True))
for _name, _reference in _UNARY_ANY.items():
    define(f"aten.{_name}(Tensor self)", reference=_reference, scalar_op=_name)(unary_inference(False))
for _name, (_scalar, _reference) in _BINARY.items():
    define(f"aten.{_name}(Tensor self, Tensor other)", reference=_reference, scalar_op=_scalar, to_float=_name == "div")(_infer_binary())


@define("accrt.div_trunc(Tensor self, Tensor other)", reference=_divide, scalar_op="div")
def _infer_div_trunc(op: Op) -> Types:
    """The quotient of integers towards zero; by 0 it is 0."""
    if op.operands[0].dtype in FLOATS:
        raise IRError(f"{op.name} of {op.operands[0].dtype}")
    return _infer_binary()(op)


for _name, _reference in _COMPARE.items():
    define(f"aten.{_name}(Tensor self, Tensor other)", reference=_reference, scalar_op=_name)(_infer_binary("bool"))
for _name, _reference in _LOGICAL.items():
    define(f"aten.{_name}(Tensor self, Tensor other)", reference=_reference, scalar_op=_name)(_infer_binary("bool"))


def _shifted(left: bool) -> Callable[[Any, Any], Any]:
    def reference(a: Any, b: Any) -> Any:
        np = numpy()
        bits = 8 * a.dtype.itemsize
        outside = (b < 0) | (b >= bits)
        count = np.where(outside, 0, b).astype(a.dtype)
        if left:
            return np.where(outside, 0, np.left_shift(a, count)).astype(a.dtype)
        return np.where(outside, np.where(a < 0, -1, 0).astype(a.dtype), np.right_shift(a, count))

    return reference


#: By the operation: its name in kernels, and its reference.
_BITS: Dict[str, Any] = {
    **{f"bitwise_{name}": (f"bitwise_{name}", (lambda np_name: lambda a, b: getattr(numpy(), np_name)(a, b))(f"bitwise_{name}")) for name in ("and", "or", "xor")},
    "bitwise_left_shift": ("shift_left", _shifted(True)), "bitwise_right_shift": ("shift_right", _shifted(False)),
}  # fmt: skip
for _name, (_scalar, _reference) in _BITS.items():

    @define(f"aten.{_name}(Tensor self, Tensor other)", reference=_reference, scalar_op=_scalar)
    def _infer_bits(op: Op) -> Types:
        """Of integers. Shifts by all bits, or by less than 0, leave 0; to the right of negative
        ones -1."""
        if op.operands[0].dtype in FLOATS or op.operands[0].dtype == "bool":
            raise IRError(f"{op.name} of {op.operands[0].dtype}")
        return _infer_binary()(op)


@define("aten.erfc(Tensor self)", reference=lambda x: numpy().vectorize(math.erfc, otypes=[float])(x) if x.size else x, scalar_op="erfc", to_float=True)
def _infer_erfc(op: Op) -> Types:
    if op.operands[0].dtype == "f64":
        raise IRError("erfc of f64: there is one of f32, f16 and bf16")
    return unary_inference(True)(op)


@define("aten.gelu(Tensor self, str approximate=none)", reference=_gelu, scalar_op="gelu")
def _infer_gelu(op: Op) -> Types:
    if op.attrs["approximate"] not in ("none", "tanh"):
        raise IRError(f"gelu approximated by {op.attrs['approximate']!r}")
    return unary_inference(True)(op)


@define("aten.logical_not(Tensor self)", reference=lambda x: ~x.astype(bool), scalar_op="logical_not")
def _infer_not(op: Op) -> Types:
    if op.operands[0].dtype != "bool":
        raise IRError(f"logical_not of {op.operands[0].dtype}")
    return [op.operands[0].type]


@define("aten.where(Tensor condition, Tensor self, Tensor other)", reference=lambda c, a, b: numpy().where(c, a, b), scalar_op="where")
def _infer_where(op: Op) -> Types:
    condition, a, b = op.operands
    if condition.dtype != "bool" or a.dtype != b.dtype:
        raise IRError(f"where of types {condition.dtype}, {a.dtype}, {b.dtype}")
    return [TensorType(a.dtype, broadcast([condition.shape, a.shape, b.shape]))]


def _clamp(x: Any, min: Any = None, max: Any = None) -> Any:
    np = numpy()
    low = x if min is None else np.maximum(x, np.asarray(min, x.dtype))
    return low if max is None else np.minimum(low, np.asarray(max, x.dtype))


@define("aten.clamp(Tensor self, Scalar? min=None, Scalar? max=None)", reference=_clamp, scalar_op="clamp")
def _infer_clamp(op: Op) -> Types:
    if any(isinstance(at, Expr) for at in (op.attrs["min"], op.attrs["max"])):
        raise IRError("clamp between numbers; minimum() and maximum() take expressions")
    if op.attrs["min"] is None and op.attrs["max"] is None:
        raise IRError("clamp takes a minimum, a maximum or both")
    return unary_inference(False)(op)


@define("aten._to_copy(Tensor self, dtype dtype)", scalar_op="cast")
def _infer_cast(op: Op) -> Types:
    return [TensorType(op.attrs["dtype"], op.operands[0].shape)]


def _no_negative(sizes: Sequence[Size]) -> None:
    if any(isinstance(size, int) and size < 0 for size in sizes):
        raise IRError(f"no tensor has the shape [{', '.join(map(str, sizes))}]")


@define("aten.full(Size[] size, Scalar fill_value, dtype? dtype=None)", scalar_op="const")
def _infer_full(op: Op) -> Types:
    """Without a dtype the number's own: bool, i64 (also for expressions) or f32."""
    value, dtype = op.attrs["fill_value"], op.attrs["dtype"]
    _no_negative(op.attrs["size"])
    if dtype is None:
        dtype = "bool" if isinstance(value, bool) else "f32" if isinstance(value, float) else "i64"
    if isinstance(value, Expr):
        if dtype not in (*INTEGERS, "f32", "f64"):
            raise IRError(f"{value} as {dtype}")
    elif dtype not in FLOATS and dtype != "bool":
        low, high = RANGES[dtype]
        if not (math.isfinite(value) and value == int(value) and low <= value <= high):
            raise IRError(f"{value} is no {dtype}")
    return [TensorType(dtype, tuple(op.attrs["size"]))]


@define("aten.arange(Size end, Size start=0, int step=1, dtype dtype=i64)", scalar_op="index")
def _infer_arange(op: Op) -> Types:
    """From start (0) up to end, without it."""
    if op.attrs["step"] == 0 or op.attrs["dtype"] == "bool":
        raise IRError(f"arange with step {op.attrs['step']} of {op.attrs['dtype']}")
    count = ex.ceildiv(op.attrs["end"] - ex.constant(op.attrs["start"]), op.attrs["step"])
    return [TensorType(op.attrs["dtype"], (count,))]


def _arange(self: Function, *bounds: Size, start: Size = 0, end: Optional[Size] = None, step: int = 1, dtype: str = "i64") -> Value:
    """arange(end), arange(start, end) or arange(start, end, step): integers from start up to end,
    without it; aten.arange."""
    if len(bounds) > 3 or (len(bounds) > (1 if end is None else 0) and not (end is None and start == 0)) or (not bounds and end is None):
        raise IRError(f"function {self.name!r}, operation aten.arange: it takes (end), (start, end) or (start, end, step)")
    if len(bounds) == 1:
        end = bounds[0]
    elif bounds:
        start, end = bounds[:2]
        step = bounds[2] if len(bounds) == 3 else step
    return build(self, "aten.arange", end, start, step, dtype)


Function.arange = _arange


def _operator(name: str, swapped: bool = False) -> Callable[[Value, Any], Value]:
    def method(self: Value, other: Any) -> Value:
        return build(self.function, name, other, self) if swapped else build(self.function, name, self, other)

    return method


for _symbol, _name in (
    ("add", "aten.add"), ("sub", "aten.sub"), ("mul", "aten.mul"), ("truediv", "aten.div"), ("pow", "aten.pow"),
    ("matmul", "aten.matmul"), ("lt", "aten.lt"), ("le", "aten.le"), ("gt", "aten.gt"), ("ge", "aten.ge"),
):  # fmt: skip
    setattr(Value, f"__{_symbol}__", _operator(_name))
    if _symbol in ("add", "sub", "mul", "truediv", "pow"):
        setattr(Value, f"__r{_symbol}__", _operator(_name, swapped=True))
Value.__neg__ = lambda self: self.neg()


def has_floats(x: Value, other: Any) -> bool:
    """Whether one of them is of floats."""
    return x.dtype in FLOATS or isinstance(arguments.plain(other), float) or getattr(x.function.as_value(other), "dtype", "") in FLOATS


def _div(self: Value, other: Any, rounding_mode: Optional[str] = None) -> Value:
    """aten.div: the quotient in floats (of integers in f32). `rounding_mode`: "trunc" or "floor"
    gives integers' quotient as an integer, towards zero or towards minus infinity; by 0 it is 0,
    where torch raises."""
    if rounding_mode is None:
        return build(self.function, "aten.div", self, other)
    if rounding_mode not in ("trunc", "floor"):
        raise IRError(f"aten.div: rounding_mode is None, 'trunc' or 'floor', not {rounding_mode!r}")
    if has_floats(self, other):
        raise IRError(f"function {self.function.name!r}: quotients that are rounded are of integers, not of {self.dtype} and "
                      f"{arguments.described(other)}: x // y and (x / y).trunc() are those of floats")
    quotient = build(self.function, "accrt.div_trunc", self, other)
    if rounding_mode == "trunc" or quotient.dtype in UNSIGNED:
        return quotient
    other = self.function.as_value(other)
    other = other if isinstance(other, Value) else self.function.full((), other, quotient.dtype)
    rest = self.sub(quotient.mul(other))
    below = rest.ne(0).logical_and(rest.lt(0).ne(other.lt(0))).logical_and(other.ne(0))
    return quotient - below.to_copy(quotient.dtype)


def _pow_method(self: Value, exponent: Any, swapped: bool = False) -> Value:
    """aten.pow. Integers have no negative powers; tensors of exponents give 0 there, and 1 and -1
    of themselves. The numbers 0.5 and -0.5 are sqrt() and rsqrt() of other types than f16, as in
    ATen."""
    number = arguments.plain(exponent)
    if not swapped and isinstance(number, float) and abs(number) == 0.5 and self.dtype != "f16":
        # which ATen gives to powf
        return self.sqrt() if number > 0 else self.rsqrt()
    if not swapped and isinstance(number, int) and not isinstance(number, bool) and number < 0 and self.dtype not in FLOATS:
        raise IRError(f"function {self.function.name!r}: pow of {self.dtype} to {number}: integers have no negative powers; cast with to_copy()")
    return build(self.function, "aten.pow", exponent, self) if swapped else build(self.function, "aten.pow", self, exponent)


def _whole(name: str) -> Callable[[Value], Value]:
    def method(self: Value) -> Value:
        return self if self.dtype in INTEGERS else build(self.function, name, self)

    method.__doc__ = f"{name.rpartition('.')[2]}(): {name}; integers are whole."
    return method


def _extreme_method(name: str, of_bools: str) -> Callable[[Value, Any], Value]:
    def method(self: Value, other: Any) -> Value:
        bools = self.dtype == "bool" and (other.dtype == "bool" if isinstance(other, Value) else isinstance(other, bool))
        return getattr(self, of_bools)(other) if bools else build(self.function, name, self, other)

    method.__doc__ = f"{name.rpartition('.')[2]}(other): {name}; of bools {of_bools}()."
    return method


def _clamp_method(self: Value, min: Any = None, max: Any = None) -> Value:
    """aten.clamp: between two numbers, of which one may be left out. Integers between floats become
    f32, as in ATen."""
    floats = any(isinstance(arguments.plain(bound), float) for bound in (min, max))
    return build(self.function, "aten.clamp", self.to_copy("f32") if floats and self.dtype not in FLOATS else self, min, max)


Value.pow, Value.__pow__, Value.clamp = _pow_method, _pow_method, _clamp_method
Value.floor, Value.ceil = _whole("aten.floor"), _whole("aten.ceil")
Value.maximum, Value.minimum = _extreme_method("aten.maximum", "logical_or"), _extreme_method("aten.minimum", "logical_and")


def _bitwise_not(self: Value) -> Value:
    """bitwise_not(): the other bits of integers (aten.bitwise_not); of bools logical_not()."""
    if self.dtype == "bool":
        return self.logical_not()
    if self.dtype in FLOATS:
        raise IRError(f"function {self.function.name!r}: bitwise_not of {self.dtype}")
    return self.bitwise_xor(RANGES[self.dtype][1] if self.dtype in UNSIGNED else -1)


Value.bitwise_not = _bitwise_not


def _truth(function: Function, item: Any, where: str) -> Value:
    """Whether an operand is not 0, as ATen's logical operations take it."""
    if arguments.is_number(item):
        return function.full((), bool(item), "bool")
    value = function.needed_value(item, where)
    return value if value.dtype == "bool" else value.ne(0)


def _logical_method(name: str) -> Callable[..., Value]:
    def method(self: Value, other: Any) -> Value:
        return build(self.function, name, _truth(self.function, self, name), _truth(self.function, other, f"function {self.function.name!r}, operation {name}"))

    method.__doc__ = f"{name.rpartition('.')[2]}(other): {name}, of what is not 0."
    return method


for _name in _LOGICAL:
    setattr(Value, _name, _logical_method("aten." + _name))
_bool_not = Value.logical_not


def _logical_not(self: Value) -> Value:
    """logical_not(): aten.logical_not: what is 0."""
    return _bool_not(self) if self.dtype == "bool" else self.eq(0)


Value.logical_not = _logical_not


def _bool_operator(symbol: str, name: str) -> Callable[[Value, Any], Value]:
    """Of bools what logical_and() and its like do. Bits of integers are combined by bitwise_and()
    and its like."""

    def method(self: Value, other: Any) -> Value:
        types = [self.dtype, *([other.dtype] if isinstance(other, Value) else [] if isinstance(arguments.plain(other), bool) else [arguments.described(other)])]
        if set(types) != {"bool"}:
            raise IRError(f"function {self.function.name!r}: {symbol} of {' and '.join(types)}: it takes bools; {name}() takes what is not 0 for true")
        return getattr(self, name)(other)

    return method


def _invert(self: Value) -> Value:
    if self.dtype != "bool":
        raise IRError(f"function {self.function.name!r}: ~ of {self.dtype}: it takes bools; logical_not() takes what is not 0 for true")
    return self.logical_not()


for _symbol, _word in (("&", "and"), ("|", "or"), ("^", "xor")):
    setattr(Value, f"__{_word}__", _bool_operator(_symbol, f"logical_{_word}"))
    setattr(Value, f"__r{_word}__", getattr(Value, f"__{_word}__"))
Value.__invert__, Value.__abs__ = _invert, lambda self: self.abs()


Value.div = _div
