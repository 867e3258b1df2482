"""The operations: schema, shape inference, float64 reference, and decomposition where one is composite.

Named as ATen names them where ATen has them; `accrt.` marks our own. A schema lists what a builder takes: `Tensor` and
`Tensor?` parameters become operands, all others attributes. Each operation is a method of Value under the last part of its
name (`x.softmax(-1)`); those without a tensor operand are methods of Function (`f.arange(n)`).

The reference of an operation calculates in float64 for every float type and exactly for integers; reference.py runs whole
functions with them. Nothing here knows kernels.
"""

from __future__ import annotations

import functools
import math
import re
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from . import arguments
from . import expr as ex
from .expr import Expr, Size
from .arguments import DTYPES
from .ir import FLOATS, Function, IRError, Op, State, TensorType, Value

Types = List[TensorType]


@dataclass(frozen=True)
class Parameter:
    name: str
    kind: str  # "Tensor", "Tensor?", "Tensor[]", or "" for an attribute
    default: Any = None
    required: bool = True
    type: str = ""  # of an attribute: what arguments.CONVERT makes of it; "" as it is

    def __str__(self) -> str:
        return self.name if self.required else f"{self.name}={self.default}"


@dataclass
class OpDef:
    """One operation. `scalar_op`: its name in element-wise kernels. `effect`: it must run even when nothing uses it."""

    name: str
    parameters: Tuple[Parameter, ...]
    infer: Callable[[Op], Types]
    reference: Optional[Callable[..., Any]] = None
    decompose: Optional[Callable[[Op], Value]] = None
    scalar_op: str = ""
    effect: bool = False
    view: bool = False

    @property
    def tensors(self) -> List[Parameter]:
        return [p for p in self.parameters if p.kind]


OPS: Dict[str, OpDef] = {}


def infer(op: Op) -> Types:
    """Types of the results; IRError names the function, the operation and what does not fit."""
    if op.name not in OPS:
        raise IRError(f"function {op.block.function.name!r}: there is no operation {op.name!r}")
    try:
        return OPS[op.name].infer(op)
    except IRError as error:
        raise IRError(f"{op.where}: {error}") from None


def _parse(schema: str) -> Tuple[str, Tuple[Parameter, ...]]:
    name, inside = re.match(r"([\w.]+)\((.*)\)\Z", schema).groups()
    parameters = []
    for item in filter(None, (part.strip() for part in inside.split(","))):
        text, _, default = item.partition("=")
        kind, _, word = text.rpartition(" ")
        type_ = ""
        if not kind.startswith("Tensor"):
            kind, type_ = "", kind
        value = None if not default else {"None": None, "True": True, "False": False}.get(default, default)
        if isinstance(value, str):
            value = float(value) if re.match(r"-?\d+(\.\d+)?e", value) or "." in value else int(value) if re.match(r"-?\d+\Z", value) else value
        parameters.append(Parameter(word or text, kind, value, not default, type_))
    return name, tuple(parameters)


def define(schema: str, **options: Any) -> Callable[[Callable[[Op], Types]], Callable[[Op], Types]]:
    """Registers an operation around its shape inference and makes it a method."""

    def register(infer_function: Callable[[Op], Types]) -> Callable[[Op], Types]:
        name, parameters = _parse(schema)
        definition = OpDef(name, parameters, infer_function, **options)
        OPS[name] = definition
        method = name.rpartition(".")[2].lstrip("_")
        if parameters and parameters[0].kind == "Tensor":
            setattr(Value, method, _value_method(definition))
        elif not any(p.kind for p in parameters):
            setattr(Function, method, _function_method(definition))
        return infer_function

    return register


def _value_method(definition: OpDef) -> Callable[..., Any]:
    def method(self: Value, *args: Any, **named: Any) -> Any:
        return build(self.function, definition.name, self, *args, **named)

    method.__doc__ = _doc(definition, definition.parameters[1:])
    return method


def _doc(definition: OpDef, parameters: Sequence[Parameter]) -> str:
    """What `help` says: the arguments, and what inference has to say of them."""
    said = definition.infer.__doc__ or ""
    return f"{definition.name.rpartition('.')[2].lstrip('_')}({', '.join(map(str, parameters))}): {definition.name}.{' ' * bool(said)}{said}"


def _function_method(definition: OpDef) -> Callable[..., Any]:
    def method(self: Function, *args: Any, **named: Any) -> Any:
        return build(self, definition.name, *args, **named)

    method.__doc__ = _doc(definition, definition.parameters)
    return method


def build(function: Function, name: str, *args: Any, **named: Any) -> Any:
    """Adds operation `name` with arguments as its schema says; the result, or a list where there are several."""
    definition = OPS[name]
    takes = ", ".join(map(str, definition.parameters))
    where = f"function {function.name!r}, operation {name}"
    if len(args) > len(definition.parameters):
        raise IRError(f"{where}: {len(args)} arguments are given, it takes ({takes})")
    given = dict(zip((p.name for p in definition.parameters), args))
    for key, value in named.items():
        if key in given or key not in [p.name for p in definition.parameters]:
            raise IRError(f"{where}: argument {key!r} is {'given twice' if key in given else 'unknown'}; it takes ({takes})")
        given[key] = value
    for parameter in definition.parameters:
        if parameter.name not in given:
            if parameter.required and parameter.kind != "Tensor?":
                raise IRError(f"{where}: argument {parameter.name!r} is missing; it takes ({takes})")
            given[parameter.name] = parameter.default
        elif not parameter.kind:
            given[parameter.name] = arguments.converted(parameter.type, given[parameter.name], f"{where}: {parameter.name}")
    operands: List[Any] = []
    for parameter in definition.tensors:
        value, what = given.pop(parameter.name), f"{where}: {parameter.name}"
        many = arguments.listed(value, what, "values") if parameter.kind == "Tensor[]" else [value]
        operands += [_operand(function, definition, parameter, item, what) for item in many]
    if definition.scalar_op and definition.tensors:
        operands = _promoted(function, definition, operands)
    op = function.add(name, operands, given)
    return op.result if len(op.results) == 1 else op.results


def _operand(function: Function, definition: OpDef, parameter: Parameter, item: Any, what: str) -> Any:
    """A value of the function; where operations work by element, a number too."""
    if item is None and parameter.kind == "Tensor?":
        return None
    if definition.scalar_op and (isinstance(item, Expr) or arguments.is_number(item)):
        return arguments.plain(item)
    return function.needed_value(item, what)


def _promoted(function: Function, definition: OpDef, operands: List[Any]) -> List[Any]:
    """Numbers become constants, and tensors of different types the type that ATen promotes them to."""
    first = 1 if definition.name == "aten.where" else 0
    common = _result_type(f"function {function.name!r}, operation {definition.name}", operands[first:])
    if common not in FLOATS and definition.name in TO_FLOAT:
        common = "f32"
    made = []
    for index, item in enumerate(operands):
        if index < first or item is None:
            made.append(item if item is None or isinstance(item, Value) else function.full((), item))
        elif isinstance(item, Value):
            made.append(item if item.dtype == common else item.to_copy(common))
        else:
            made.append(function.full((), item, common))
    return made


def _result_type(name: str, operands: Sequence[Any]) -> str:
    """ATen's promotion (c10's update_result_type_state): tensors with dimensions decide; tensors without any, then numbers, count
    only where they are of a higher kind (bool, integers, floats)."""
    tensors = [v for v in operands if isinstance(v, Value)]
    with_dims = _common_dtype(name, [v.dtype for v in tensors if v.rank])
    without = _common_dtype(name, [v.dtype for v in tensors if not v.rank])
    numbers = [v for v in operands if v is not None and not isinstance(v, Value)]
    kinds = ["bool" if isinstance(n, bool) else "f32" if isinstance(n, float) else "i64" for n in numbers]
    return _higher(with_dims, _higher(without, _common_dtype(name, kinds)))


def _kind(dtype: str) -> int:
    return 0 if not dtype else 1 if dtype == "bool" else 3 if dtype in FLOATS else 2


def _higher(first: str, second: str) -> str:
    return second if _kind(second) > _kind(first) else first


def _common_dtype(name: str, dtypes: Sequence[str]) -> str:
    """The type that ATen promotes tensors of these types to; "" for none."""
    if not dtypes:
        return ""
    top = max(map(_kind, dtypes))
    unique = sorted({d for d in dtypes if _kind(d) == top}, key=DTYPES.index)
    if len(unique) == 1:
        return unique[0]
    if top == 3:
        return "f32" if set(unique) == {"f16", "bf16"} else unique[-1]
    if "u32" in unique or set(unique) == {"i8", "u8"}:
        # torch refuses u32 beside other integers; its int16 for i8 and u8 is no type of ours.
        raise IRError(f"{name}: types {' and '.join(unique)} have no common type; cast one with to_copy()")
    return unique[-1]


# ---- Helpers of inference --------------------------------------------------------------------------------------------


def axis_of(dim: int, rank: int) -> int:
    """The dimension from 0 on; as in ATen, tensors without any have dimension 0 (and -1) all the same."""
    dim = arguments.integer(dim, "the dimension")
    if not -max(rank, 1) <= dim < max(rank, 1):
        raise IRError(f"dimension {dim} of a tensor of rank {rank}")
    return dim + max(rank, 1) if dim < 0 else dim


def _axis(value: Value, dim: Any, what: str, more: int = 0) -> int:
    """A dimension that a method gets; `more`: of a result with so many more dimensions."""
    try:
        return axis_of(dim, value.rank + more)
    except IRError:
        raise IRError(f"function {value.function.name!r}: {what} at dimension {arguments.described(dim)} of {value.type}") from None


def axes_of(dims: Any, rank: int) -> List[int]:
    """Dimensions of a reduction, in order: all for None and, as in ATen, for an empty list."""
    chosen = [] if dims is None else [axis_of(d, rank) for d in arguments.dims(dims, "the dimensions")]
    if len(set(chosen)) != len(chosen):
        raise IRError(f"dimensions {list(dims)} of a tensor of rank {rank}: one stands there twice")
    return sorted(chosen) or list(range(rank))


def broadcast(shapes: Sequence[Sequence[Size]]) -> Tuple[Size, ...]:
    """The shape that all shapes broadcast to, as numpy does."""
    rank = max(len(shape) for shape in shapes)
    result: List[Size] = []
    for axis in range(rank):
        sizes = [shape[axis - rank + len(shape)] for shape in shapes if axis - rank + len(shape) >= 0]
        chosen = next((size for size in sizes if size != 1), 1)
        for size in sizes:
            if size != 1 and not ex.proved_equal(size, chosen):
                texts = ["[" + ", ".join(map(str, shape)) + "]" for shape in shapes]
                raise IRError(f"shapes {' and '.join(texts)} do not broadcast: {size} is not proved to equal {chosen}")
        result.append(chosen)
    return tuple(result)


def _same(a: Size, b: Size, what: str) -> None:
    if not ex.proved_equal(a, b):
        raise IRError(f"{what}: {a} is not proved to equal {b}")


def _types(op: Op) -> List[TensorType]:
    return [v.type for v in op.operands if v is not None]


def _resize(op: Op, shape: Sequence[Size], dtype: str = "") -> Types:
    return [TensorType(dtype or op.operands[0].dtype, tuple(shape))]


# ---- Element-wise ----------------------------------------------------------------------------------------------------


def _np():
    import numpy

    return numpy


def _erf(x: Any) -> Any:
    np = _np()
    return np.vectorize(math.erf, otypes=[np.float64])(x) if x.size else x


def _divide(a: Any, b: Any) -> Any:
    """Floats as they are, integers towards zero."""
    np = _np()
    if a.dtype.kind == "f":
        return a / b
    quotient = np.abs(a.astype(object)) // np.where(b == 0, 1, np.abs(b.astype(object))) if a.size and b.size else a * b
    sign = np.sign(a.astype(np.int64)) * np.sign(b.astype(np.int64))
    return (quotient * sign).astype(a.dtype) if a.size and b.size else (a * b)


def _sigmoid(x: Any) -> Any:
    np = _np()
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + e), e / (1 + e))


def _gelu(x: Any, approximate: str = "none") -> Any:
    np = _np()
    if approximate == "tanh":
        return 0.5 * x * (1 + np.tanh(0.7978845608028654 * (x + 0.044715 * x**3)))
    return 0.5 * x * (1 + _erf(x / math.sqrt(2)))


def _pow(a: Any, b: Any) -> Any:
    np = _np()
    if a.dtype.kind == "f":
        return np.power(a, b)
    exact = [int(p) ** int(q) if q >= 0 else int(p == 1) or (-1 if p == -1 and q % 2 else int(p == -1)) for p, q in np.broadcast(a, b)]
    bits = 8 * a.dtype.itemsize
    wrapped = [(v + (1 << (bits - 1))) % (1 << bits) - (1 << (bits - 1)) if a.dtype.kind == "i" else v % (1 << bits) for v in exact]
    return np.array(wrapped, a.dtype).reshape(np.broadcast(a, b).shape)


_UNARY_FLOAT = {
    "sqrt": lambda x: _np().sqrt(x), "rsqrt": lambda x: 1 / _np().sqrt(x), "reciprocal": lambda x: 1 / x,
    "floor": lambda x: _np().floor(x), "ceil": lambda x: _np().ceil(x), "exp": lambda x: _np().exp(x),
    "log": lambda x: _np().log(x), "tanh": lambda x: _np().tanh(x), "erf": _erf, "sin": lambda x: _np().sin(x),
    "cos": lambda x: _np().cos(x), "sigmoid": _sigmoid, "silu": lambda x: x * _sigmoid(x),
}  # fmt: skip
_UNARY_ANY = {"neg": lambda x: -x, "abs": lambda x: _np().abs(x), "relu": lambda x: _np().where(x < 0, _np().zeros_like(x), x)}
_BINARY = {
    "add": ("add", lambda a, b: a + b), "sub": ("sub", lambda a, b: a - b), "mul": ("mul", lambda a, b: a * b),
    "div": ("div", lambda a, b: a / b), "maximum": ("max", lambda a, b: _np().maximum(a, b)),
    "minimum": ("min", lambda a, b: _np().minimum(a, b)), "pow": ("pow", _pow),
}  # fmt: skip
#: What ATen calculates in floats: integers and bools become f32 (torch's default type) first.
TO_FLOAT = {"aten." + name for name in _UNARY_FLOAT if name not in ("floor", "ceil", "silu")} | {"aten.div"}
_COMPARE = {name: (lambda np_name: lambda a, b: getattr(_np(), np_name)(a, b))(np_name) for name, np_name in (
    ("eq", "equal"), ("ne", "not_equal"), ("lt", "less"), ("le", "less_equal"), ("gt", "greater"), ("ge", "greater_equal"))}  # fmt: skip
_LOGICAL = {name: (lambda np_name: lambda a, b: getattr(_np(), np_name)(a, b))(name) for name in (
    "logical_and", "logical_or", "logical_xor")}  # fmt: skip


def _infer_unary(floats_only: bool) -> Callable[[Op], Types]:
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
    define(f"aten.{_name}(Tensor self)", reference=_reference, scalar_op=_name)(_infer_unary(True))
for _name, _reference in _UNARY_ANY.items():
    define(f"aten.{_name}(Tensor self)", reference=_reference, scalar_op=_name)(_infer_unary(False))
for _name, (_scalar, _reference) in _BINARY.items():
    define(f"aten.{_name}(Tensor self, Tensor other)", reference=_reference, scalar_op=_scalar)(_infer_binary())


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


@define("aten.gelu(Tensor self, str approximate=none)", reference=_gelu, scalar_op="gelu")
def _infer_gelu(op: Op) -> Types:
    if op.attrs["approximate"] not in ("none", "tanh"):
        raise IRError(f"gelu approximated by {op.attrs['approximate']!r}")
    return _infer_unary(True)(op)


@define("aten.logical_not(Tensor self)", reference=lambda x: ~x.astype(bool), scalar_op="logical_not")
def _infer_not(op: Op) -> Types:
    if op.operands[0].dtype != "bool":
        raise IRError(f"logical_not of {op.operands[0].dtype}")
    return [op.operands[0].type]


@define("aten.where(Tensor condition, Tensor self, Tensor other)", reference=lambda c, a, b: _np().where(c, a, b), scalar_op="where")
def _infer_where(op: Op) -> Types:
    condition, a, b = op.operands
    if condition.dtype != "bool" or a.dtype != b.dtype:
        raise IRError(f"where of types {condition.dtype}, {a.dtype}, {b.dtype}")
    return [TensorType(a.dtype, broadcast([condition.shape, a.shape, b.shape]))]


def _clamp(x: Any, min: Any = None, max: Any = None) -> Any:
    np = _np()
    low = x if min is None else np.maximum(x, np.asarray(min, x.dtype))
    return low if max is None else np.minimum(low, np.asarray(max, x.dtype))


@define("aten.clamp(Tensor self, Scalar? min=None, Scalar? max=None)", reference=_clamp, scalar_op="clamp")
def _infer_clamp(op: Op) -> Types:
    if any(isinstance(at, Expr) for at in (op.attrs["min"], op.attrs["max"])):
        raise IRError("clamp between numbers; minimum() and maximum() take expressions")
    if op.attrs["min"] is None and op.attrs["max"] is None:
        raise IRError("clamp takes a minimum, a maximum or both")
    return _infer_unary(False)(op)


@define("aten._to_copy(Tensor self, dtype dtype)", scalar_op="cast")
def _infer_cast(op: Op) -> Types:
    return [TensorType(op.attrs["dtype"], op.operands[0].shape)]


#: Least and greatest integers of each type.
_RANGES = {"i8": (-128, 127), "u8": (0, 255), "i32": (-(1 << 31), (1 << 31) - 1), "u32": (0, (1 << 32) - 1), "i64": (-(1 << 63), (1 << 63) - 1)}


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
        if dtype not in ("i64", "i32", "f32", "f64"):
            raise IRError(f"{value} as {dtype}")
    elif dtype not in FLOATS and dtype != "bool":
        low, high = _RANGES[dtype]
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
    """arange(end), arange(start, end) or arange(start, end, step): integers from start up to end, without it; aten.arange."""
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


def _div(self: Value, other: Any, rounding_mode: Optional[str] = None) -> Value:
    """aten.div: the quotient in floats (of integers in f32). `rounding_mode`: "trunc" or "floor" gives integers' quotient as an
    integer, towards zero or towards minus infinity; by 0 it is 0, where torch raises."""
    if rounding_mode is None:
        return build(self.function, "aten.div", self, other)
    if rounding_mode not in ("trunc", "floor"):
        raise IRError(f"aten.div: rounding_mode is None, 'trunc' or 'floor', not {rounding_mode!r}")
    floats = self.dtype in FLOATS or isinstance(arguments.plain(other), float) or getattr(self.function.as_value(other), "dtype", "") in FLOATS
    if floats:
        raise IRError(f"function {self.function.name!r}: quotients that are rounded are of integers, not of {self.dtype} and "
                      f"{arguments.described(other)}: (x / y).floor() is that of floats")
    quotient = build(self.function, "accrt.div_trunc", self, other)
    if rounding_mode == "trunc" or quotient.dtype in ("u8", "u32"):
        return quotient
    other = self.function.as_value(other)
    other = other if isinstance(other, Value) else self.function.full((), other, quotient.dtype)
    rest = self.sub(quotient.mul(other))
    below = rest.ne(0).logical_and(rest.lt(0).ne(other.lt(0))).logical_and(other.ne(0))
    return quotient - below.to_copy(quotient.dtype)


def _pow_method(self: Value, exponent: Any, swapped: bool = False) -> Value:
    """aten.pow. Integers have no negative powers; tensors of exponents give 0 there, and 1 and -1 of themselves."""
    number = arguments.plain(exponent)
    if not swapped and isinstance(number, int) and not isinstance(number, bool) and number < 0 and self.dtype not in FLOATS:
        raise IRError(f"function {self.function.name!r}: pow of {self.dtype} to {number}: integers have no negative powers; cast with to_copy()")
    return build(self.function, "aten.pow", exponent, self) if swapped else build(self.function, "aten.pow", self, exponent)


def _clamp_method(self: Value, min: Any = None, max: Any = None) -> Value:
    """aten.clamp: between two numbers, of which one may be left out. Integers between floats become f32, as in ATen."""
    floats = any(isinstance(arguments.plain(bound), float) for bound in (min, max))
    return build(self.function, "aten.clamp", self.to_copy("f32") if floats and self.dtype not in FLOATS else self, min, max)


Value.pow, Value.__pow__, Value.clamp = _pow_method, _pow_method, _clamp_method


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
    """Of bools what logical_and() and its like do. Bits of integers are not combined here."""

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


def _remainder(self: Value, other: Any) -> Value:
    """aten.remainder of integers: it has the divisor's sign; by 0 it is the dividend, where torch raises."""
    return self - _div(self, other, "floor") * other


def _floor_divide(self: Value, other: Any) -> Value:
    """aten.floor_divide of integers: the quotient towards minus infinity; by 0 it is 0, where torch raises."""
    return _div(self, other, "floor")


Value.div, Value.floor_divide, Value.remainder = _div, _floor_divide, _remainder
Value.__floordiv__, Value.__mod__ = Value.floor_divide, _remainder


# ---- Views -----------------------------------------------------------------------------------------------------------


def _view_shape(op: Op) -> Tuple[Size, ...]:
    source, wanted = op.operands[0].type, [ex.simplify(s) for s in op.attrs["size"]]
    if wanted.count(-1) > 1:
        raise IRError(f"view to {wanted}: one size may be -1")
    if -1 in wanted:
        known = ex.product(s for s in wanted if s != -1)
        if known == 0:
            raise IRError(f"view of {source} as {wanted}: -1 may be anything beside a size of 0")
        missing = ex.simplify(ex.constant(source.elements) // known)
        wanted[wanted.index(-1)] = missing
    _same(ex.product(wanted), source.elements, f"view of {source} as [{', '.join(map(str, wanted))}]")
    return tuple(wanted)


@define("aten.view(Tensor self, Size[] size)", view=True)
def _infer_view(op: Op) -> Types:
    """The same elements in another shape: sizes in a list or one by one, of which one may be -1. It copies where it has to, so reshape()
    is the same."""
    return _resize(op, _view_shape(op))



def _several(method: Callable[..., Value]) -> Callable[..., Value]:
    """Sizes and dimensions may be given one by one, as in torch: x.view(2, 3) is x.view([2, 3])."""

    @functools.wraps(method)
    def several(self: Value, *items: Any, **named: Any) -> Value:
        one_by_one = len(items) > 1 or (len(items) == 1 and (isinstance(items[0], Expr) or arguments.is_integer(items[0])))
        return method(self, items, **named) if one_by_one else method(self, *items, **named)

    return several


Value.view = _several(Value.view)
Value.reshape = Value.view


def _flatten(self: Value, start_dim: int = 0, end_dim: int = -1) -> Value:
    """Joins the dimensions from start_dim to end_dim, both included."""
    first, last = _axis(self, start_dim, "flatten"), _axis(self, end_dim, "flatten")
    if first > last:
        raise IRError(f"function {self.function.name!r}: flatten from dimension {start_dim} to {end_dim} of {self.type}")
    return self.view([*self.shape[:first], ex.product(self.shape[first : last + 1]), *self.shape[last + 1 :]])


Value.flatten = _flatten


@define("aten.permute(Tensor self, int[] dims)", view=True)
def _infer_permute(op: Op) -> Types:
    rank = op.operands[0].rank
    dims = [axis_of(d, rank) for d in op.attrs["dims"]]
    if sorted(dims) != list(range(rank)):
        raise IRError(f"permutation {op.attrs['dims']} of rank {rank}")
    return _resize(op, [op.operands[0].shape[d] for d in dims])


Value.permute = _several(Value.permute)


def _transpose(self: Value, dim0: int, dim1: int) -> Value:
    """Two dimensions swapped."""
    a, b = _axis(self, dim0, "transpose"), _axis(self, dim1, "transpose")
    if self.rank == 0:
        return self
    dims = list(range(self.rank))
    dims[a], dims[b] = dims[b], dims[a]
    return self.permute(dims)


def _t(self: Value) -> Value:
    """A matrix transposed; tensors with fewer dimensions as they are."""
    if self.rank > 2:
        raise IRError(f"function {self.function.name!r}: t() of {self.type}, which has more than two dimensions: transpose(-1, -2) swaps the last")
    return self.permute([1, 0]) if self.rank == 2 else self


Value.transpose, Value.t = _transpose, _t


@define("aten.expand(Tensor self, Size[] size)", view=True)
def _infer_expand(op: Op) -> Types:
    source, wanted = op.operands[0], [ex.simplify(s) for s in op.attrs["size"]]
    lead = len(wanted) - source.rank
    if lead < 0 or -1 in wanted[:lead]:
        raise IRError(f"expand of {source.type} to [{', '.join(map(str, wanted))}]: it has fewer dimensions" if lead < 0 else
                      f"expand of {source.type} to [{', '.join(map(str, wanted))}]: -1 stands for a dimension that is not there yet")
    wanted = [source.shape[i - lead] if s == -1 else s for i, s in enumerate(wanted)]
    result = broadcast([source.shape, wanted])
    for a, b in zip(result, wanted):
        _same(a, b, f"expand of {source.type}")
    return _resize(op, wanted)


Value.expand = _several(Value.expand)


@define("aten.slice(Tensor self, int dim, Size? start=0, Size? end=None, int step=1)", view=True)
def _infer_slice(op: Op) -> Types:
    """Start and end are not clamped: 0 <= start <= end <= size is proved, or checked at each call."""
    source, at = op.operands[0], op.attrs
    axis = axis_of(at["dim"], source.rank)
    start, end = slice_bounds(op)
    if at["step"] < 1:
        raise IRError(f"slice with step {at['step']}")
    _, most = ex.bounds(ex.constant(source.shape[axis]) - end, source.function.module.ranges())
    if (isinstance(start, int) and start < 0) or (most is not None and most < 0) or (isinstance(end, int) and isinstance(start, int) and end < start):
        raise IRError(f"slice [{start}:{end}] of dimension {axis} of {source.type}")
    shape = list(source.shape)
    shape[axis] = ex.ceildiv(ex.constant(end) - start, at["step"])
    return _resize(op, shape)


def slice_bounds(op: Op) -> Tuple[Size, Size]:
    source, at = op.operands[0], op.attrs
    size = source.shape[axis_of(at["dim"], source.rank)]
    start, end = (0 if at["start"] is None else at["start"]), (size if at["end"] is None else at["end"])
    if isinstance(start, int) and start < 0:
        start = ex.simplify(ex.constant(size) + start)
    if isinstance(end, int) and end < 0:
        end = ex.simplify(ex.constant(size) + end)
    if isinstance(end, int) and isinstance(size, int):
        end = min(end, size)
    return ex.simplify(start), ex.simplify(end)


@define("aten.select(Tensor self, int dim, Size index)", view=True)
def _infer_select(op: Op) -> Types:
    source = op.operands[0]
    axis = axis_of(op.attrs["dim"], source.rank)
    index, size = op.attrs["index"], source.shape[axis]
    if isinstance(index, int) and isinstance(size, int) and not -size <= index < size:
        raise IRError(f"index {index} of dimension {axis} of {source.type}")
    return _resize(op, source.shape[:axis] + source.shape[axis + 1 :])


def _unsqueeze(self: Value, dim: int) -> Value:
    """A dimension of size 1 before dimension dim; -1: after the last."""
    axis = _axis(self, dim, "unsqueeze", 1)
    return self.view([*self.shape[:axis], 1, *self.shape[axis:]])


def _squeeze(self: Value, dim: Any = None) -> Value:
    """Without those of the dimensions (None: of all) that have size 1; others stay as they are."""
    axes = range(self.rank) if dim is None else [_axis(self, d, "squeeze") for d in arguments.dims(dim, f"function {self.function.name!r}: squeeze: dim")]
    if len(set(axes)) != len(axes):
        raise IRError(f"function {self.function.name!r}: squeeze of {self.type}: a dimension stands twice in {dim}")
    if not self.rank:
        return self
    gone = []
    for axis in axes:
        size = self.shape[axis]
        low, high = ex.bounds(size, self.function.module.ranges())
        if isinstance(size, Expr) and (low is None or low <= 1) and (high is None or high >= 1):
            raise IRError(f"function {self.function.name!r}: squeeze of dimension {axis} of {self.type}: {size} may be 1 and may be more, "
                          "and then the result has another rank: give the symbol a minimum of 2, or use view()")
        gone += [axis] if size == 1 else []
    return self.view([size for axis, size in enumerate(self.shape) if axis not in gone]) if gone else self


def _split(self: Value, split_size: Any, dim: int = 0) -> List[Value]:
    """Parts along a dimension: of one size each (the last may be smaller), or of the sizes in a list, whose sum is the dimension's."""
    where, axis = f"function {self.function.name!r}: split", _axis(self, dim, "split")
    whole = self.shape[axis] if self.rank else 0
    if not self.rank:
        raise IRError(f"{where} of {self.type}, which has no dimension")
    if arguments.is_integer(split_size):
        return _parts(self, _equal_sizes(self, arguments.integer(split_size, f"{where}: its size", 1), axis, where), axis)
    sizes = arguments.sizes(split_size, f"{where}: sizes")
    total = ex.simplify(sum((ex.constant(size) for size in sizes), ex.constant(0)))
    if any(isinstance(size, int) and size < 0 for size in sizes) or not ex.proved_equal(total, whole):
        raise IRError(f"{where} of {self.type} into {list(map(str, sizes))}: their sum {total} is not proved to equal dimension {axis}, {whole}")
    return _parts(self, sizes, axis)


def _equal_sizes(self: Value, size: int, axis: int, where: str) -> List[int]:
    whole = self.shape[axis]
    if not isinstance(whole, int):
        raise IRError(f"{where} of {self.type}: how many parts {whole} gives is not known while compiling; a list of sizes says it")
    return [min(size, whole - at) for at in range(0, whole, size)] or [0]


def _parts(self: Value, sizes: Sequence[Size], axis: int) -> List[Value]:
    made, start = [], ex.constant(0)
    for size in sizes:
        made.append(self.slice(axis, ex.simplify(start), ex.simplify(start + size)))
        start = start + size
    return made


def _chunk(self: Value, chunks: int, dim: int = 0) -> List[Value]:
    """At most `chunks` parts of one size, of which the last may be smaller."""
    where, axis = f"function {self.function.name!r}: chunk", _axis(self, dim, "chunk")
    count = arguments.integer(chunks, f"{where}: chunks", 1)
    if not self.rank:
        raise IRError(f"{where} of {self.type}, which has no dimension")
    whole = self.shape[axis]
    if isinstance(whole, int) and whole == 0:
        return _parts(self, [0] * count, axis)
    return _parts(self, _equal_sizes(self, -(-whole // count) if isinstance(whole, int) else 1, axis, where), axis)


def _narrow(self: Value, dim: int, start: Size, length: Size) -> Value:
    """`length` elements of a dimension from `start` on, which may be negative; refused where they do not fit, here or at the call."""
    where, axis = f"function {self.function.name!r}: narrow", _axis(self, dim, "narrow")
    first, count = arguments.size(start, f"{where}: start"), arguments.size(length, f"{where}: length")
    if not self.rank:
        raise IRError(f"{where} of {self.type}, which has no dimension")
    whole = self.shape[axis]
    if isinstance(first, int) and first < 0:
        first = ex.simplify(ex.constant(whole) + first)
    end = ex.simplify(ex.constant(first) + count)
    short = isinstance(count, int) and count < 0
    if short or (isinstance(first, int) and first < 0) or (isinstance(end, int) and isinstance(whole, int) and end > whole):
        raise IRError(f"{where} of dimension {axis} of {self.type}: {length} elements from {start} on do not fit in {whole}")
    return self.slice(axis, first, end)


Value.unsqueeze, Value.squeeze, Value.split, Value.chunk, Value.narrow = _unsqueeze, _squeeze, _split, _chunk, _narrow


# ---- Copies ----------------------------------------------------------------------------------------------------------


@define("aten.clone(Tensor self)", reference=lambda x: x.copy())
def _infer_clone(op: Op) -> Types:
    return [op.operands[0].type]



def _contiguous(self: Value) -> Value:
    """The same value: what lies how is the compiler's."""
    return self


Value.contiguous = _contiguous


@define("aten.cat(Tensor[] tensors, int dim=0)")
def _infer_cat(op: Op) -> Types:
    if not op.operands:
        raise IRError("cat of no values")
    if op.operands[0].rank == 0:
        raise IRError("cat of values without dimensions: unsqueeze(0) gives them one")
    first = op.operands[0]
    axis = axis_of(op.attrs["dim"], first.rank)
    total: Size = 0
    for value in op.operands:
        if (value.rank, value.dtype, value.type.encoding) != (first.rank, first.dtype, first.type.encoding):
            raise IRError(f"cat of {first.type} and {value.type}" + ("; cast one with to_copy()" if value.dtype != first.dtype else ""))
        for i in range(first.rank):
            if i != axis:
                _same(value.shape[i], first.shape[i], f"cat, dimension {i}")
        total = ex.simplify(value.shape[axis] + ex.constant(total))
    return [TensorType(first.dtype, first.shape[:axis] + (total,) + first.shape[axis + 1 :], first.type.encoding)]


def cat(values: Sequence[Value], dim: int = 0) -> Value:
    """Joins values along a dimension. Their other dimensions are the same, and their types: to_copy() casts. The same as f.cat(values, dim)."""
    given = arguments.listed(values, "cat: its values", "values")
    found = next((v.function for v in given if isinstance(v, Value)), None)
    if found is None:
        raise IRError(f"cat of {arguments.described(values)}: it takes values of a function; f.cat(...) joins constants")
    return build(found, "aten.cat", given, dim)


def _function_cat(self: Function, tensors: Sequence[Any], dim: int = 0) -> Value:
    """cat(tensors, dim=0): aten.cat. Joins values, and constants, along a dimension."""
    return build(self, "aten.cat", tensors, dim)


Function.cat = _function_cat


# ---- Reductions ------------------------------------------------------------------------------------------------------


def _reduced(op: Op) -> Tuple[Size, ...]:
    source = op.operands[0]
    axes = axes_of(op.attrs["dim"], source.rank)
    if op.attrs["keepdim"]:
        return tuple(1 if i in axes else s for i, s in enumerate(source.shape))
    return tuple(s for i, s in enumerate(source.shape) if i not in axes)


def _reduce(kind: str) -> Callable[..., Any]:
    def reference(x: Any, dim: Any = None, keepdim: bool = False) -> Any:
        np = _np()
        if x.ndim == 0:
            x, dim, keepdim = x[None], None, False
        axes = tuple(axes_of(dim, x.ndim))
        count = math.prod(x.shape[a] for a in axes)
        if kind == "sum":
            return np.sum(x, axes, keepdims=keepdim, dtype=x.dtype if x.dtype.kind == "f" else np.int64)
        if kind == "mean":
            with np.errstate(all="ignore"):
                return np.sum(x, axes, keepdims=keepdim) / np.float64(count)
        if count == 0:
            shape = np.sum(x, axes, keepdims=keepdim).shape
            low = -np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min
            high = np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).max
            return np.full(shape, low if kind == "amax" else high, x.dtype)
        return (np.max if kind == "amax" else np.min)(x, axes, keepdims=keepdim)

    return reference


for _name in ("sum", "mean", "amax", "amin"):

    @define(f"aten.{_name}(Tensor self, int[]? dim=None, bool keepdim=False)", reference=_reduce(_name))
    def _infer_reduce(op: Op) -> Types:
        """Over some dimensions, or all. Sums of integers and bools are i64."""
        dtype = op.operands[0].dtype
        if op.name in ("aten.amax", "aten.amin"):
            gone = [axis for axis in axes_of(op.attrs["dim"], op.operands[0].rank) if op.operands[0].rank and op.operands[0].shape[axis] == 0]
            if gone:
                raise IRError(f"{op.name} over dimension {gone[0]} of {op.operands[0].type}: nothing has no extreme")
        if op.name == "aten.sum" and dtype not in FLOATS:
            return _resize(op, _reduced(op), "i64")
        if dtype == "bool" or (op.name == "aten.mean" and dtype not in FLOATS):
            raise IRError(f"{op.name} of {dtype}")
        return _resize(op, _reduced(op))


def _softmax(x: Any, dim: int = -1) -> Any:
    np = _np()
    if not x.size or not x.ndim:
        return x * 0 + 1
    top = np.max(x, dim, keepdims=True)
    e = np.exp(x - np.where(np.isfinite(top), top, 0))
    return e / np.sum(e, dim, keepdims=True)


def _decompose_softmax(op: Op) -> Value:
    x, dim = op.operands[0], op.attrs["dim"]
    e = (x - x.amax(dim, True)).exp()
    return e / e.sum(dim, True)


@define("aten.softmax(Tensor self, int dim=-1)", reference=_softmax, decompose=_decompose_softmax)
def _infer_softmax(op: Op) -> Types:
    axis_of(op.attrs["dim"], op.operands[0].rank)
    return _infer_unary(True)(op)


def _layer_norm(x: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    np = _np()
    mean = np.mean(x, -1, keepdims=True) if x.size else x
    variance = np.mean((x - mean) ** 2, -1, keepdims=True) if x.size else x
    y = (x - mean) / np.sqrt(variance + eps)
    y = y if weight is None else y * weight
    return y if bias is None else y + bias


def _decompose_layer_norm(op: Op) -> Value:
    x, weight, bias = op.operands
    centered = x - x.mean(-1, True)
    y = centered * ((centered * centered).mean(-1, True) + op.attrs["eps"]).rsqrt()
    y = y if weight is None else y * weight
    return y if bias is None else y + bias


def _infer_norm(op: Op) -> Types:
    x = op.operands[0]
    if x.rank == 0:
        raise IRError(f"{op.name} of {x.type}")
    for parameter in op.operands[1:]:
        if parameter is not None:
            if parameter.rank != 1 or (parameter.dtype != x.dtype and not (parameter.dtype in _MIXED and x.dtype in _MIXED)):
                raise IRError(f"{op.name} with weights of {parameter.type} for {x.type}; cast them with to_copy()")
            _same(parameter.shape[0], x.shape[-1], "weights of a norm")
    return _infer_unary(True)(op)


define(
    "aten.layer_norm(Tensor self, Tensor? weight=None, Tensor? bias=None, float eps=1e-5)",
    reference=_layer_norm, decompose=_decompose_layer_norm,
)(_infer_norm)  # fmt: skip


def _rms_norm(x: Any, weight: Any = None, eps: float = 0.0) -> Any:
    np = _np()
    y = x / np.sqrt(np.mean(x * x, -1, keepdims=True) + eps) if x.size else x
    return y if weight is None else y * weight


def _decompose_rms_norm(op: Op) -> Value:
    x, weight = op.operands
    y = x * ((x * x).mean(-1, True) + op.attrs["eps"]).rsqrt()
    return y if weight is None else y * weight


@define("aten.rms_norm(Tensor self, Tensor? weight=None, float? eps=None)", reference=_rms_norm, decompose=_decompose_rms_norm)
def _infer_rms_norm(op: Op) -> Types:
    """Without an eps it is the machine epsilon of the type that the norm is calculated in."""
    if op.attrs["eps"] is None:
        op.attrs["eps"] = 2.0**-52 if op.operands[0].dtype == "f64" else 2.0**-23
    return _infer_norm(op)


# ---- Matrix products -------------------------------------------------------------------------------------------------


#: Float types that a product may mix: it calculates in f32, and gives the type of the left side.
_MIXED = ("f16", "bf16", "f32")
#: Other types of products, each with its own alone.
_UNMIXED = ("f64", "i32", "u32", "i64")


def _product_types(left: str, right: str, what: str = "product") -> None:
    """ATen refuses two types; here those of _MIXED go together, as weights in 16 bits have it."""
    if (left in _MIXED and right in _MIXED) or (left == right and left in _UNMIXED):
        return
    if left == right:
        raise IRError(f"{what} of {left}: there are products of {', '.join((*_MIXED, *_UNMIXED))}; cast with to_copy()")
    raise IRError(f"{what} of {left} and {right}: both are of one type, or both of {', '.join(_MIXED)}; cast one with to_copy()")


@define("aten.matmul(Tensor self, Tensor other)", reference=lambda a, b: a @ b)
def _infer_matmul(op: Op) -> Types:
    """[..., m, k] @ [..., k, n]; leading dimensions broadcast."""
    a, b = op.operands
    if a.rank < 2 or b.rank < 2:
        raise IRError(f"product of {a.type} and {b.type}; both need two dimensions at least")
    _product_types(a.dtype, b.dtype)
    _same(a.shape[-1], b.shape[-2], f"inner dimension of {a.type} @ {b.type}")
    return _resize(op, broadcast([a.shape[:-2], b.shape[:-2]]) + (a.shape[-2], b.shape[-1]) if a.rank + b.rank > 4 else (a.shape[0], b.shape[1]))


def _decompose_product(op: Op) -> Value:
    return op.operands[0].matmul(op.operands[1])


for _name, _rank in (("mm", 2), ("bmm", 3)):

    @define(f"aten.{_name}(Tensor self, Tensor mat2)", reference=lambda a, b: a @ b, decompose=_decompose_product)
    def _infer_mm(op: Op, rank: int = _rank) -> Types:
        if any(v.rank != rank for v in op.operands):
            raise IRError(f"{op.name} of {op.operands[0].type} and {op.operands[1].type}")
        if rank == 3:
            _same(op.operands[0].shape[0], op.operands[1].shape[0], "batch of bmm")
        return _infer_matmul(op)


@define(
    "aten.addmm(Tensor self, Tensor mat1, Tensor mat2)", reference=lambda c, a, b: a @ b + c,
    decompose=lambda op: op.operands[1].matmul(op.operands[2]) + op.operands[0],
)  # fmt: skip
def _infer_addmm(op: Op) -> Types:
    """mat1 @ mat2 + self, which broadcasts to the product's shape."""
    c, a, b = op.operands
    if a.rank != 2 or b.rank != 2 or c.rank > 2:
        raise IRError(f"addmm of {c.type}, {a.type} and {b.type}: matrices, and what broadcasts to their product, are needed")
    _product_types(a.dtype, b.dtype, "addmm")
    _product_types(a.dtype, c.dtype, "addmm and what is added")
    _same(a.shape[-1], b.shape[-2], "inner dimension")
    shape = (a.shape[0], b.shape[1])
    for size, wanted in zip(broadcast([c.shape, shape]), shape):
        _same(size, wanted, f"addmm, what is added, {c.type},")
    return [TensorType(a.dtype, shape)]


def _decompose_linear(op: Op) -> Value:
    x, weight, bias = op.operands
    flat = x if x.rank > 1 else x.unsqueeze(0)
    y = flat.matmul(weight.t())
    if bias is not None:
        y = y + bias
    return y if x.rank > 1 else y.squeeze(0)


def _linear(x: Any, weight: Any, bias: Any = None) -> Any:
    y = x @ weight.T
    return y if bias is None else y + bias


@define("aten.linear(Tensor self, Tensor weight, Tensor? bias=None)", reference=_linear, decompose=_decompose_linear)
def _infer_linear(op: Op) -> Types:
    x, weight, bias = op.operands
    if weight.rank != 2 or x.rank < 1 or (bias is not None and bias.rank != 1):
        raise IRError(f"linear of {x.type} with weight {weight.type}" + (f" and bias {bias.type}" if bias is not None else ""))
    _product_types(x.dtype, weight.dtype, "linear")
    if bias is not None:
        _product_types(x.dtype, bias.dtype, "linear and its bias")
    _same(x.shape[-1], weight.shape[1], "inner dimension of a linear layer")
    if bias is not None:
        _same(bias.shape[0], weight.shape[0], "bias of a linear layer")
    return _resize(op, x.shape[:-1] + (weight.shape[0],))


# ---- Attention -------------------------------------------------------------------------------------------------------


def _sdpa(
    q: Any, k: Any, v: Any, attn_mask: Any = None, is_causal: bool = False, scale: Any = None, causal_offset: Any = None
) -> Any:
    """Rows that see no key at all give zeros."""
    np = _np()
    group = q.shape[-3] // k.shape[-3] if q.ndim > 2 and k.shape[-3] else 1
    if group > 1:
        k, v = np.repeat(k, group, -3), np.repeat(v, group, -3)
    scores = (q @ np.swapaxes(k, -1, -2)) * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    seen = np.ones(scores.shape, bool)
    if is_causal:
        offset = causal_offset or 0
        seen &= np.arange(k.shape[-2])[None, :] <= np.arange(q.shape[-2])[:, None] + offset
    if attn_mask is not None and attn_mask.dtype == bool:
        seen &= attn_mask
    elif attn_mask is not None:
        scores = scores + attn_mask
    scores = np.where(seen, scores, -np.inf)
    top = np.max(scores, -1, keepdims=True, initial=-np.inf)
    e = np.exp(scores - np.where(np.isneginf(top), 0, top))
    total = np.sum(e, -1, keepdims=True)
    return (e / np.where(total == 0, 1, total)) @ v


def causal_offset(op: Op) -> Size:
    """Of causal attention: what is added to a query's number."""
    return 0 if op.attrs["causal_offset"] is None else op.attrs["causal_offset"]


def _decompose_sdpa(op: Op) -> Value:
    q, k, v, mask = op.operands
    scale = 1 / math.sqrt(q.shape[-1]) if op.attrs["scale"] is None else op.attrs["scale"]
    batch, heads, length, head = q.shape
    kv_heads, keys = k.shape[1], k.shape[2]
    group = heads // kv_heads
    grouped = q.view([batch, kv_heads, group, length, head])
    scores = grouped.matmul(k.transpose(-1, -2).unsqueeze(2)) * scale
    function = op.block.function
    seen = None
    if op.attrs["is_causal"]:
        rows = function.arange(length).unsqueeze(1) + causal_offset(op)
        seen = function.arange(keys).unsqueeze(0) <= rows
    if mask is not None:
        lead = [1] * (4 - mask.rank) + list(mask.shape)
        heads_of = [kv_heads, group] if lead[1] != 1 else [1, 1]
        shaped = mask.view([lead[0], *heads_of, *lead[2:]])
        if mask.dtype == "bool":
            seen = shaped if seen is None else seen.logical_and(shaped)
        else:
            scores = scores + shaped.to_copy(scores.dtype)
    if seen is not None:
        scores = seen.where(scores, -math.inf)
    # A row that sees no key has a maximum of -inf; a finite one in its place makes every weight exp(-inf) = 0.
    e = (scores - scores.amax(-1, True).maximum(-1e30)).exp()
    total = e.sum(-1, True)
    weights = e / total.eq(0.0).where(1.0, total)
    return weights.matmul(v.unsqueeze(2)).view([batch, heads, length, v.shape[-1]])


@define(
    "aten.scaled_dot_product_attention(Tensor query, Tensor key, Tensor value, Tensor? attn_mask=None, "
    "bool is_causal=False, float? scale=None, Size? causal_offset=None)",
    reference=_sdpa, decompose=_decompose_sdpa,
)  # fmt: skip
def _infer_sdpa(op: Op) -> Types:
    """[batch, heads, length, size]; key heads divide query heads. Causal: query i sees keys up to i, as torch aligns
    it, or up to i + causal_offset: number of keys - number of queries where the queries are the last of the sequence. A bool mask is true where seen, a float one is added."""
    q, k, v, mask = op.operands
    if any(t.rank != 4 for t in (q, k, v)) or q.dtype not in FLOATS:
        raise IRError(f"attention of {q.type}, {k.type}, {v.type}; floats [batch, heads, length, size] are needed")
    for other in (k, v):
        _product_types(q.dtype, other.dtype, "attention")
    if mask is not None and mask.dtype != "bool" and mask.dtype != q.dtype and not (mask.dtype in _MIXED and q.dtype in _MIXED):
        raise IRError(f"attention of {q.dtype} with a mask of {mask.dtype}: bool, or the type of the query, is needed")
    for a, b, what in ((q.shape[0], k.shape[0], "batch"), (k.shape[0], v.shape[0], "batch"), (k.shape[1], v.shape[1], "key heads"),
                       (k.shape[2], v.shape[2], "keys"), (q.shape[3], k.shape[3], "head size")):  # fmt: skip
        _same(a, b, f"attention, {what}")
    if not isinstance(q.shape[1], int) or not isinstance(k.shape[1], int) or q.shape[1] % k.shape[1]:
        raise IRError(f"attention with {q.shape[1]} heads and {k.shape[1]} key heads")
    if mask is not None:
        if mask.rank > 4:
            raise IRError(f"attention with a mask of {mask.type}")
        wanted = (q.shape[0], q.shape[1], q.shape[2], k.shape[2])
        for a, b in zip(broadcast([mask.shape, wanted]), wanted):
            _same(a, b, "attention mask")
    return _resize(op, (*q.shape[:3], v.shape[3]))


def _rope(x: Any, position: int = 0, theta: float = 10000.0) -> Any:
    np = _np()
    half = x.shape[-1] // 2
    angles = (position + np.arange(x.shape[-2], dtype=np.float64))[:, None] * theta ** (-np.arange(half, dtype=np.float64) / max(half, 1))
    cos, sin = np.cos(angles), np.sin(angles)
    a, b = x[..., :half], x[..., half:]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


def _decompose_rope(op: Op) -> Value:
    x, function = op.operands[0], op.block.function
    half = x.shape[-1] // 2
    with_position = function.arange(x.shape[-2], dtype="f64") + function.full((), op.attrs["position"], "f64")
    rates = (function.arange(half, dtype="f64") * (-math.log(op.attrs["theta"]) / max(half, 1))).exp()
    angles = with_position.unsqueeze(1) * rates.unsqueeze(0)
    cos, sin = angles.cos().to_copy(x.dtype), angles.sin().to_copy(x.dtype)
    a, b = x.slice(-1, 0, half), x.slice(-1, half, 2 * half)
    return cat([a * cos - b * sin, b * cos + a * sin], -1)


@define("accrt.rope(Tensor self, Size position=0, float theta=10000.0)", reference=_rope, decompose=_decompose_rope)
def _infer_rope(op: Op) -> Types:
    """Rotary embedding, halves split: row t of [..., length, size] is at position + t."""
    x = op.operands[0]
    if x.rank < 2 or x.dtype not in FLOATS or not isinstance(x.shape[-1], int) or x.shape[-1] % 2:
        raise IRError(f"rotary embedding of {x.type}")
    return [x.type]


# ---- Indexing --------------------------------------------------------------------------------------------------------


def _check_index(value: Value) -> None:
    if value.dtype not in ("u8", "i32", "u32", "i64"):
        raise IRError(f"indices of {value.dtype}")


@define("aten.embedding(Tensor weight, Tensor indices)", reference=lambda w, i: w[i.astype(_np().int64)])
def _infer_embedding(op: Op) -> Types:
    weight, indices = op.operands
    _check_index(indices)
    if weight.rank != 2:
        raise IRError(f"embedding in {weight.type}")
    return [TensorType(weight.dtype, indices.shape + (weight.shape[1],))]


@define("aten.index_select(Tensor self, int dim, Tensor index)")
def _infer_index_select(op: Op) -> Types:
    source, index = op.operands
    _check_index(index)
    axis = axis_of(op.attrs["dim"], source.rank)
    if index.rank != 1:
        raise IRError(f"index of {index.type}")
    return _resize(op, source.shape[:axis] + index.shape + source.shape[axis + 1 :])


def _decompose_gather(op: Op) -> Value:
    """The linear place of every element, then one lookup in the flat source."""
    source, index = op.operands
    axis, function = axis_of(op.attrs["dim"], source.rank), op.block.function
    for i in range(source.rank):  # a call whose index is larger beside the dimension is refused by this slice
        if i != axis and not ex.proved_less_equal(index.shape[i], source.shape[i]):
            source = source.slice(i, 0, index.shape[i])
    # An index that leaves its dimension would stay inside the flat source. So each is looked up in its dimension first, which gives the
    # index itself, or fails with it and the dimension's size. CUDA cannot fail: there the lookup below gets -1, and gives 0.
    given = index.to_copy("i64")
    inside = given.ge(0).logical_and(given.lt(source.shape[axis]))
    places = function.arange(source.shape[axis])
    place = places.index_select(0, given.flatten()).view(list(index.shape))
    step: Size = 1
    total: Optional[Value] = None
    for i in reversed(range(source.rank)):
        shape = [1] * source.rank
        shape[i] = index.shape[i]
        part = (place if i == axis else function.arange(index.shape[i]).view(shape)) * step
        total = part if total is None else total + part
        step = ex.simplify(ex.constant(step) * source.shape[i])
    total = inside.where(total, -1)
    return source.flatten().index_select(0, total.flatten()).view(list(op.result.shape))


@define("aten.gather(Tensor self, int dim, Tensor index)", decompose=_decompose_gather)
def _infer_gather(op: Op) -> Types:
    source, index = op.operands
    _check_index(index)
    if index.rank != source.rank:
        raise IRError(f"gather from {source.type} with {index.type}")
    axis = axis_of(op.attrs["dim"], source.rank)
    for i in range(source.rank):
        least, _most = ex.bounds(ex.constant(index.shape[i]) - source.shape[i], source.function.module.ranges())
        if i != axis and least is not None and least > 0:
            raise IRError(f"gather from {source.type} with {index.type}: dimension {i} of the index is larger")
    return _resize(op, index.shape)


# ---- State, calls, users' kernels ------------------------------------------------------------------------------------


def _check_state(op: Op, state: Any) -> None:
    known = op.block.function.module.states
    if not isinstance(state, State):
        raise IRError(f"{arguments.described(state)} is no state: it takes what m.state(...) gives{arguments.near(state, known)}")
    if known.get(state.name) is not state:
        raise IRError(f"state {state.name!r} is of another module")


@define("accrt.state_read(state)")
def _infer_state_read(op: Op) -> Types:
    """What is in a state: what m.state(...) gave."""
    _check_state(op, op.attrs["state"])
    return [op.attrs["state"].type]


@define("accrt.state_write(Tensor value, state, Size[] offsets)", effect=True)
def _infer_state_write(op: Op) -> Types:
    """Writes `value` into the state, its first element at `offsets` (sizes or expressions, one per dimension)."""
    value, state = op.operands[0], op.attrs["state"]
    _check_state(op, state)
    if value.dtype != state.type.dtype or value.rank != state.type.rank or len(op.attrs["offsets"]) != value.rank:
        raise IRError(f"{value.type} into state {state.name!r} of {state.type} at {op.attrs['offsets']}")
    return []


@define("accrt.write_input(Tensor value, str name)", effect=True)
def _infer_write_input(op: Op) -> Types:
    """Overwrites a read_write input; reads of it that come later see the new content."""
    value = op.operands[0]
    found = [i for i in op.block.function.inputs if i.name == op.attrs["name"] and i.access == "read_write"]
    if not found or found[0].value.type != value.type:
        raise IRError(f"{value.type} into {op.attrs['name']!r}, which is no read_write input of that type")
    return []


@define("accrt.call(Tensor[] operands, callee, scalars)", effect=True)
def _infer_call(op: Op) -> Types:
    callee = op.block.function.module.functions.get(op.attrs["callee"])
    if callee is None:
        raise IRError(f"there is no function {op.attrs['callee']!r}")
    names = [i.name for i in callee.inputs if i.symbol]
    if sorted(op.attrs["scalars"]) != sorted(names):
        raise IRError(f"{callee.name!r} takes scalars {names}, not {sorted(op.attrs['scalars'])}")
    given = {i.symbol: op.attrs["scalars"][i.name] for i in callee.inputs if i.symbol}
    wanted = [_given_type(i.value.type, given) for i in callee.inputs if i.value is not None]
    if [v.type for v in op.operands] != wanted:
        raise IRError(f"{callee.name!r} takes {[str(t) for t in wanted]}, not {[str(v.type) for v in op.operands]}")
    return [_given_type(r.value.type, given) for r in callee.results]


def _given_type(type_: TensorType, given: Dict[str, Size]) -> TensorType:
    """A callee's type as its caller sees it: with what the scalars of the call give its symbols."""
    return TensorType(type_.dtype, tuple(ex.substitute(size, given) for size in type_.shape), type_.encoding)


@define("accrt.kernel(Tensor[] operands, kernel, types, values, reference=None)", effect=True)
def _infer_kernel(op: Op) -> Types:
    kernel = op.attrs["kernel"]
    read = [p.name for p in kernel.params if p.kind == "buffer" and p.access == "read"]
    written = [p.name for p in kernel.params if p.kind == "buffer" and p.access == "write"]
    if len(op.operands) != len(read) or len(op.attrs["types"]) != len(written):
        raise IRError(f"kernel {kernel.name!r} reads {read} and writes {written}; {len(op.operands)} operands, {len(op.attrs['types'])} results")
    values = [p.name for p in kernel.params if p.kind in ("symbol", "scalar")]
    if sorted(op.attrs["values"]) != sorted(values):
        raise IRError(f"kernel {kernel.name!r} needs values {values}, not {sorted(op.attrs['values'])}")
    return list(op.attrs["types"])


# ---- Made by passes --------------------------------------------------------------------------------------------------


@define("accrt.elementwise(Tensor[] inputs, program, symbols)")
def _infer_elementwise(op: Op) -> Types:
    """A fused chain: `program` (kernels/elementwise.py) over inputs that broadcast to `shape`."""
    program, shape = op.attrs["program"], op.attrs["shape"]
    for value in op.operands:
        for a, b in zip(broadcast([value.shape, shape]), shape):
            _same(a, b, "element-wise input")
    return [TensorType(program.nodes[index].dtype, shape) for index in program.outputs]


@define("accrt.pack(Tensor self)")
def _infer_pack(op: Op) -> Types:
    """[k, n] as panels for accrt.matmul_packed."""
    from .kernels import matmul

    k, n = op.operands[0].shape
    spec = matmul.packed_spec(n, k, op.operands[0].dtype)
    return [TensorType(spec.dtype, spec.shape, "opaque")]


@define("accrt.matmul_packed(Tensor self, Tensor packed, Tensor? bias, Tensor? residual, columns, activation, dtype)")
def _infer_matmul_packed(op: Op) -> Types:
    return [TensorType(op.attrs["dtype"], op.operands[0].shape[:-1] + (op.attrs["columns"],))]


@define("accrt.product(Tensor self, Tensor other, Tensor? bias, Tensor? residual, columns, activation, dtype)")
def _infer_product(op: Op) -> Types:
    """activation(self @ other + bias) + residual, where other is [k, n] as it lies (a transposed view of a weight, mostly),
    bias [n] and residual of the result's type."""
    x, weight, bias, residual = op.operands
    _same(x.shape[-1], weight.shape[0], "inner dimension of a product")
    _same(weight.shape[1], op.attrs["columns"], "columns of a product")
    result = TensorType(op.attrs["dtype"], x.shape[:-1] + (op.attrs["columns"],))
    if (bias is not None and bias.shape != result.shape[-1:]) or (residual is not None and residual.type != result):
        raise IRError(f"product of {result} with another bias or residual")
    return [result]


# ---- Quantized weights: what passes/quantized.py makes of operations on them ------------------------------------------------


@define("accrt.component(Tensor self, role)", view=True)
def _infer_component(op: Op) -> Types:
    """The bytes of one component of a quantized constant."""
    constant = op.operands[0].constant
    if constant is None or op.attrs["role"] not in getattr(constant.data, "components", {}):
        raise IRError(f"{op.operands[0].type} has no component {op.attrs['role']!r}")
    return [TensorType("u8", (constant.data.size_bytes(op.attrs["role"]),))]


@define("accrt.pack_quantized(Tensor[] components, form, family)")
def _infer_pack_quantized(op: Op) -> Types:
    """A quantized weight as the family's kernels read it; `form`: a packing.Form, whose components are the operands in order."""
    from .packing import packed_bytes

    size = packed_bytes(op.attrs["form"], op.attrs["family"])
    if size is None or len(op.operands) != len(op.attrs["form"].roles):
        raise IRError(f"no packed form of {op.attrs['form'].name} for {op.attrs['family']}")
    return [TensorType("u8", (size,), "opaque")]


@define("accrt.linear_quantized(Tensor self, Tensor packed, Tensor? bias, Tensor? residual, form, columns, activation, dtype)")
def _infer_linear_quantized(op: Op) -> Types:
    """activation(self @ weight^T + bias) + residual."""
    x, form = op.operands[0], op.attrs["form"]
    _same(x.shape[-1], form.k, "inner dimension of a product")
    _same(op.attrs["columns"], form.n, "columns of a product")
    return [TensorType(op.attrs["dtype"], x.shape[:-1] + (form.n,))]


@define("accrt.dequantize(Tensor[] components, form)")
def _infer_dequantize(op: Op) -> Types:
    form = op.attrs["form"]
    return [TensorType(form.dtype, form.shape)]


@define("accrt.embedding_quantized(Tensor[] operands, form)")
def _infer_embedding_quantized(op: Op) -> Types:
    """Rows of a quantized weight; the operands are its components, then the indices."""
    form, indices = op.attrs["form"], op.operands[-1]
    _check_index(indices)
    return [TensorType(form.dtype, indices.shape + (form.k,))]
