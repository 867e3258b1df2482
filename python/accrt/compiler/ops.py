"""The operations: schema, shape inference, float64 reference, and decomposition where one is composite.

Named as ATen names them where ATen has them; `accrt.` marks our own. A schema lists what a builder takes: `Tensor` and
`Tensor?` parameters become operands, all others attributes. Each operation is a method of Value under the last part of its
name (`x.softmax(-1)`); those without a tensor operand are methods of Function (`f.arange(n)`).

The reference of an operation calculates in float64 for every float type and exactly for integers; reference.py runs whole
functions with them. Nothing here knows kernels.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from . import expr as ex
from .expr import Expr, Size
from .ir import DTYPES, FLOATS, Function, IRError, Op, TensorType, Value

Types = List[TensorType]


@dataclass(frozen=True)
class Parameter:
    name: str
    kind: str  # "Tensor", "Tensor?", "Tensor[]", or "" for an attribute
    default: Any = None
    required: bool = True


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
        if not kind.startswith("Tensor"):
            kind = ""
        value = None if not default else {"None": None, "True": True, "False": False}.get(default, default)
        if isinstance(value, str):
            value = float(value) if re.match(r"-?\d+(\.\d+)?e", value) or "." in value else int(value) if re.match(r"-?\d+\Z", value) else value
        parameters.append(Parameter(word or text, kind, value, not default))
    return name, tuple(parameters)


def define(schema: str, **options: Any) -> Callable[[Callable[[Op], Types]], Callable[[Op], Types]]:
    """Registers an operation around its shape inference and makes it a method."""

    def register(infer_function: Callable[[Op], Types]) -> Callable[[Op], Types]:
        name, parameters = _parse(schema)
        definition = OpDef(name, parameters, infer_function, **options)
        OPS[name] = definition
        method = name.rpartition(".")[2].lstrip("_")
        if any(p.kind and not p.kind.endswith("?") for p in parameters):
            setattr(Value, method, _value_method(definition))
        elif parameters and name.partition(".")[0] in ("aten", "accrt"):
            setattr(Function, method, _function_method(definition))
        return infer_function

    return register


def _value_method(definition: OpDef) -> Callable[..., Any]:
    def method(self: Value, *args: Any, **named: Any) -> Any:
        return build(self.function, definition.name, self, *args, **named)

    method.__doc__ = f"{definition.name}({', '.join(p.name for p in definition.parameters)})"
    return method


def _function_method(definition: OpDef) -> Callable[..., Any]:
    def method(self: Function, *args: Any, **named: Any) -> Any:
        return build(self, definition.name, *args, **named)

    method.__doc__ = f"{definition.name}({', '.join(p.name for p in definition.parameters)})"
    return method


def build(function: Function, name: str, *args: Any, **named: Any) -> Any:
    """Adds operation `name` with arguments as its schema says; the result, or a list where there are several."""
    definition = OPS[name]
    if len(args) > len(definition.parameters):
        raise IRError(f"{name}: {len(args)} arguments for {[p.name for p in definition.parameters]}")
    given = dict(zip((p.name for p in definition.parameters), args))
    for key, value in named.items():
        if key in given or key not in [p.name for p in definition.parameters]:
            raise IRError(f"{name}: argument {key!r} is unknown or given twice")
        given[key] = value
    for parameter in definition.parameters:
        if parameter.name not in given:
            if parameter.required and parameter.kind != "Tensor?":
                raise IRError(f"{name}: argument {parameter.name!r} is missing")
            given[parameter.name] = parameter.default
    operands: List[Any] = []
    for parameter in definition.tensors:
        value = given.pop(parameter.name)
        operands += list(value) if parameter.kind == "Tensor[]" else [value]
    operands = [function.as_value(operand) for operand in operands]
    if definition.scalar_op and definition.tensors:
        operands = _promoted(function, definition, operands)
    op = function.add(name, operands, given)
    return op.result if len(op.results) == 1 else op.results


def _promoted(function: Function, definition: OpDef, operands: List[Any]) -> List[Any]:
    """Numbers become constants of the tensors' type, and tensors of different types the type that holds both."""
    tensors = [v for v in operands if isinstance(v, Value)]
    first = 1 if definition.name == "aten.where" else 0
    common = _common_dtype([v.dtype for v in operands[first:] if isinstance(v, Value)] or [tensors[0].dtype])
    if common not in FLOATS and any(isinstance(v, float) for v in operands):
        common = "f32"
    made = []
    for index, item in enumerate(operands):
        if index < first or item is None:
            made.append(item)
        elif isinstance(item, Value):
            made.append(item if item.dtype == common else item.to_copy(common))
        elif isinstance(item, (int, float, Expr)):
            made.append(function.full((), item, common))
        else:
            raise IRError(f"{definition.name}: {item!r} is neither a value nor a number")
    return made


def _common_dtype(dtypes: Sequence[str]) -> str:
    kinds = [d for d in dtypes if d in FLOATS] or [d for d in dtypes if d != "bool"] or list(dtypes)
    unique = sorted(set(kinds), key=DTYPES.index)
    if len(unique) == 1:
        return unique[0]
    if set(unique) == {"f16", "bf16"}:
        return "f32"
    return {"i8": "i32"}.get(unique[-1], unique[-1]) if unique[-1] == "u8" else unique[-1]


# ---- Helpers of inference --------------------------------------------------------------------------------------------


def axis_of(dim: int, rank: int) -> int:
    if not isinstance(dim, int) or not -max(rank, 1) <= dim < max(rank, 1):
        raise IRError(f"dimension {dim} of a tensor of rank {rank}")
    return dim + rank if dim < 0 else dim


def axes_of(dims: Any, rank: int) -> List[int]:
    if dims is None:
        return list(range(rank))
    return sorted({axis_of(d, rank) for d in (dims if isinstance(dims, (list, tuple)) else [dims])})


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
    "div": ("div", _divide), "maximum": ("max", lambda a, b: _np().maximum(a, b)),
    "minimum": ("min", lambda a, b: _np().minimum(a, b)), "pow": ("pow", _pow),
}  # fmt: skip
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
        return [TensorType(result or a.dtype, broadcast([a.shape, b.shape]))]

    return infer_binary


for _name, _reference in _UNARY_FLOAT.items():
    define(f"aten.{_name}(Tensor self)", reference=_reference, scalar_op=_name)(_infer_unary(True))
for _name, _reference in _UNARY_ANY.items():
    define(f"aten.{_name}(Tensor self)", reference=_reference, scalar_op=_name)(_infer_unary(False))
for _name, (_scalar, _reference) in _BINARY.items():
    define(f"aten.{_name}(Tensor self, Tensor other)", reference=_reference, scalar_op=_scalar)(_infer_binary())
for _name, _reference in _COMPARE.items():
    define(f"aten.{_name}(Tensor self, Tensor other)", reference=_reference, scalar_op=_name)(_infer_binary("bool"))
for _name, _reference in _LOGICAL.items():
    define(f"aten.{_name}(Tensor self, Tensor other)", reference=_reference, scalar_op=_name)(_infer_binary("bool"))


@define("aten.gelu(Tensor self, approximate=none)", reference=_gelu, scalar_op="gelu")
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


@define("aten.clamp(Tensor self, min=None, max=None)", reference=_clamp, scalar_op="clamp")
def _infer_clamp(op: Op) -> Types:
    return _infer_unary(False)(op)


@define("aten._to_copy(Tensor self, dtype)", scalar_op="cast")
def _infer_cast(op: Op) -> Types:
    return [TensorType(op.attrs["dtype"], op.operands[0].shape)]


@define("aten.full(size, fill_value, dtype=f32)", scalar_op="const")
def _infer_full(op: Op) -> Types:
    value, dtype = op.attrs["fill_value"], op.attrs["dtype"]
    if isinstance(value, Expr):
        if dtype not in ("i64", "i32", "f32", "f64"):
            raise IRError(f"{value} as {dtype}")
    elif dtype not in FLOATS and dtype != "bool" and value != int(value):
        raise IRError(f"{value} as {dtype}")
    return [TensorType(dtype, tuple(op.attrs["size"]))]


@define("aten.arange(end, start=0, step=1, dtype=i64)", scalar_op="index")
def _infer_arange(op: Op) -> Types:
    count = ex.ceildiv(op.attrs["end"] - ex.constant(op.attrs["start"]), op.attrs["step"])
    return [TensorType(op.attrs["dtype"], (count,))]


def _operator(name: str, swapped: bool = False) -> Callable[[Value, Any], Value]:
    def method(self: Value, other: Any) -> Value:
        if swapped:
            other = self.function.full((), other, self.dtype if not isinstance(other, float) or self.dtype in FLOATS else "f32")
            return build(self.function, name, other, self)
        return build(self.function, name, self, other)

    return method


for _symbol, _name in (
    ("add", "aten.add"), ("sub", "aten.sub"), ("mul", "aten.mul"), ("truediv", "aten.div"), ("pow", "aten.pow"),
    ("matmul", "aten.matmul"), ("lt", "aten.lt"), ("le", "aten.le"), ("gt", "aten.gt"), ("ge", "aten.ge"),
):  # fmt: skip
    setattr(Value, f"__{_symbol}__", _operator(_name))
    if _symbol in ("add", "sub", "mul", "truediv", "pow"):
        setattr(Value, f"__r{_symbol}__", _operator(_name, swapped=True))
Value.__neg__ = lambda self: self.neg()


# ---- Views -----------------------------------------------------------------------------------------------------------


def _view_shape(op: Op) -> Tuple[Size, ...]:
    source, wanted = op.operands[0].type, [ex.simplify(s) for s in op.attrs["size"]]
    if wanted.count(-1) > 1:
        raise IRError(f"view to {wanted}: one size may be -1")
    if -1 in wanted:
        known = ex.product(s for s in wanted if s != -1)
        missing = ex.simplify(ex.constant(source.elements) // known) if known != 0 else 0
        wanted[wanted.index(-1)] = missing
    _same(ex.product(wanted), source.elements, f"view of {source} as [{', '.join(map(str, wanted))}]")
    return tuple(wanted)


@define("aten.view(Tensor self, size)", view=True)
def _infer_view(op: Op) -> Types:
    return _resize(op, _view_shape(op))


Value.reshape = Value.view
Value.flatten = lambda self: self.view([-1])


@define("aten.permute(Tensor self, dims)", view=True)
def _infer_permute(op: Op) -> Types:
    rank = op.operands[0].rank
    dims = [axis_of(d, rank) for d in op.attrs["dims"]]
    if sorted(dims) != list(range(rank)):
        raise IRError(f"permutation {op.attrs['dims']} of rank {rank}")
    return _resize(op, [op.operands[0].shape[d] for d in dims])


def _transpose(self: Value, dim0: int, dim1: int) -> Value:
    dims = list(range(self.rank))
    a, b = axis_of(dim0, self.rank), axis_of(dim1, self.rank)
    dims[a], dims[b] = dims[b], dims[a]
    return self.permute(dims)


Value.transpose = _transpose
Value.t = lambda self: self.permute([1, 0])


@define("aten.expand(Tensor self, size)", view=True)
def _infer_expand(op: Op) -> Types:
    source, wanted = op.operands[0], [ex.simplify(s) for s in op.attrs["size"]]
    lead = len(wanted) - source.rank
    wanted = [source.shape[i - lead] if s == -1 else s for i, s in enumerate(wanted)]
    result = broadcast([source.shape, wanted])
    for a, b in zip(result, wanted):
        _same(a, b, f"expand of {source.type}")
    return _resize(op, wanted)


@define("aten.slice(Tensor self, dim, start=0, end=None, step=1)", view=True)
def _infer_slice(op: Op) -> Types:
    """Start and end are not clamped: 0 <= start <= end <= size is the caller's promise where it is not known."""
    source, at = op.operands[0], op.attrs
    axis = axis_of(at["dim"], source.rank)
    start, end = slice_bounds(op)
    if not isinstance(at["step"], int) or at["step"] < 1:
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


@define("aten.select(Tensor self, dim, index)", view=True)
def _infer_select(op: Op) -> Types:
    source = op.operands[0]
    axis = axis_of(op.attrs["dim"], source.rank)
    index, size = op.attrs["index"], source.shape[axis]
    if isinstance(index, int) and isinstance(size, int) and not -size <= index < size:
        raise IRError(f"index {index} of dimension {axis} of {source.type}")
    return _resize(op, source.shape[:axis] + source.shape[axis + 1 :])


def _unsqueeze(self: Value, dim: int) -> Value:
    axis = dim + self.rank + 1 if dim < 0 else dim
    return self.view(list(self.shape[:axis]) + [1] + list(self.shape[axis:]))


def _squeeze(self: Value, dim: int) -> Value:
    axis = axis_of(dim, self.rank)
    if self.shape[axis] != 1:
        raise IRError(f"squeeze of dimension {axis} of {self.type}")
    return self.view(list(self.shape[:axis]) + list(self.shape[axis + 1 :]))


def _split(self: Value, sizes: Sequence[int], dim: int = 0) -> List[Value]:
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    return [self.slice(dim, start, start + size) for start, size in zip(starts, sizes)]


Value.unsqueeze, Value.squeeze, Value.split = _unsqueeze, _squeeze, _split
Value.narrow = lambda self, dim, start, length: self.slice(dim, start, start + length)


# ---- Copies ----------------------------------------------------------------------------------------------------------


@define("aten.clone(Tensor self)", reference=lambda x: x.copy())
def _infer_clone(op: Op) -> Types:
    return [op.operands[0].type]


Value.contiguous = lambda self: self


@define("aten.cat(Tensor[] tensors, dim=0)")
def _infer_cat(op: Op) -> Types:
    first = op.operands[0]
    axis = axis_of(op.attrs["dim"], first.rank)
    total: Size = 0
    for value in op.operands:
        if (value.rank, value.dtype, value.type.encoding) != (first.rank, first.dtype, first.type.encoding):
            raise IRError(f"cat of {first.type} and {value.type}")
        for i in range(first.rank):
            if i != axis:
                _same(value.shape[i], first.shape[i], f"cat, dimension {i}")
        total = ex.simplify(value.shape[axis] + ex.constant(total))
    return [TensorType(first.dtype, first.shape[:axis] + (total,) + first.shape[axis + 1 :], first.type.encoding)]


def cat(values: Sequence[Value], dim: int = 0) -> Value:
    """Joins values along a dimension."""
    return build(values[0].function, "aten.cat", list(values), dim)


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
            return np.sum(x, axes, keepdims=keepdim, dtype=x.dtype)
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

    @define(f"aten.{_name}(Tensor self, dim=None, keepdim=False)", reference=_reduce(_name))
    def _infer_reduce(op: Op) -> Types:
        dtype = op.operands[0].dtype
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


@define("aten.softmax(Tensor self, dim=-1)", reference=_softmax, decompose=_decompose_softmax)
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
            if parameter.rank != 1 or parameter.dtype not in FLOATS:
                raise IRError(f"weights of {parameter.type} for {x.type}")
            _same(parameter.shape[0], x.shape[-1], "weights of a norm")
    return _infer_unary(True)(op)


define(
    "aten.layer_norm(Tensor self, Tensor? weight=None, Tensor? bias=None, eps=1e-5)",
    reference=_layer_norm, decompose=_decompose_layer_norm,
)(_infer_norm)  # fmt: skip


def _rms_norm(x: Any, weight: Any = None, eps: float = 1e-6) -> Any:
    np = _np()
    y = x / np.sqrt(np.mean(x * x, -1, keepdims=True) + eps) if x.size else x
    return y if weight is None else y * weight


def _decompose_rms_norm(op: Op) -> Value:
    x, weight = op.operands
    y = x * ((x * x).mean(-1, True) + op.attrs["eps"]).rsqrt()
    return y if weight is None else y * weight


define(
    "aten.rms_norm(Tensor self, Tensor? weight=None, eps=1e-6)", reference=_rms_norm, decompose=_decompose_rms_norm
)(_infer_norm)


# ---- Matrix products -------------------------------------------------------------------------------------------------


@define("aten.matmul(Tensor self, Tensor other)", reference=lambda a, b: a @ b)
def _infer_matmul(op: Op) -> Types:
    """[..., m, k] @ [..., k, n]; leading dimensions broadcast."""
    a, b = op.operands
    if a.rank < 2 or b.rank < 2 or a.dtype == "bool":
        raise IRError(f"product of {a.type} and {b.type}; both need two dimensions at least")
    if a.dtype != b.dtype and not (a.dtype in FLOATS and b.dtype in FLOATS):
        raise IRError(f"product of {a.dtype} and {b.dtype}")
    _same(a.shape[-1], b.shape[-2], f"inner dimension of {a.type} @ {b.type}")
    return _resize(op, broadcast([a.shape[:-2], b.shape[:-2]]) + (a.shape[-2], b.shape[-1]) if a.rank + b.rank > 4 else (a.shape[0], b.shape[1]))


def _decompose_product(op: Op) -> Value:
    return op.operands[0].matmul(op.operands[1])


for _name, _rank in (("mm", 2), ("bmm", 3)):

    @define(f"aten.{_name}(Tensor self, Tensor mat2)", reference=lambda a, b: a @ b, decompose=_decompose_product)
    def _infer_mm(op: Op, rank: int = _rank) -> Types:
        if any(v.rank != rank for v in op.operands):
            raise IRError(f"{op.name} of {op.operands[0].type} and {op.operands[1].type}")
        return _infer_matmul(op)


@define(
    "aten.addmm(Tensor self, Tensor mat1, Tensor mat2)", reference=lambda c, a, b: a @ b + c,
    decompose=lambda op: op.operands[1].matmul(op.operands[2]) + op.operands[0],
)  # fmt: skip
def _infer_addmm(op: Op) -> Types:
    c, a, b = op.operands
    _same(a.shape[-1], b.shape[-2], "inner dimension")
    return [TensorType(a.dtype, broadcast([c.shape, (a.shape[0], b.shape[1])]))]


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
        raise IRError(f"linear of {x.type} with weight {weight.type}")
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
        offset = k.shape[-2] - q.shape[-2] if causal_offset is None else causal_offset
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
        offset = ex.simplify(keys - ex.constant(length)) if op.attrs["causal_offset"] is None else op.attrs["causal_offset"]
        rows = function.arange(length).unsqueeze(1) + offset
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
    "aten.scaled_dot_product_attention(Tensor query, Tensor key, Tensor value, Tensor? attn_mask=None, is_causal=False, "
    "scale=None, causal_offset=None)",
    reference=_sdpa, decompose=_decompose_sdpa,
)  # fmt: skip
def _infer_sdpa(op: Op) -> Types:
    """[batch, heads, length, size]; key heads divide query heads. Causal: query i sees keys up to i + causal_offset (by default
    number of keys - number of queries). A bool mask is true where seen, a float one is added."""
    q, k, v, mask = op.operands
    if any(t.rank != 4 for t in (q, k, v)) or q.dtype not in FLOATS:
        raise IRError(f"attention of {q.type}, {k.type}, {v.type}; [batch, heads, length, size] is needed")
    for a, b, what in ((q.shape[0], k.shape[0], "batch"), (k.shape[0], v.shape[0], "batch"), (k.shape[1], v.shape[1], "key heads"),
                       (k.shape[2], v.shape[2], "keys"), (q.shape[3], k.shape[3], "head size")):  # fmt: skip
        _same(a, b, f"attention, {what}")
    if not isinstance(q.shape[1], int) or not isinstance(k.shape[1], int) or q.shape[1] % k.shape[1]:
        raise IRError(f"attention with {q.shape[1]} heads and {k.shape[1]} key heads")
    if mask is not None:
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


@define("accrt.rope(Tensor self, position=0, theta=10000.0)", reference=_rope, decompose=_decompose_rope)
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


@define("aten.index_select(Tensor self, dim, Tensor index)")
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
    place = index.to_copy("i64")
    step: Size = 1
    total: Optional[Value] = None
    for i in reversed(range(source.rank)):
        shape = [1] * source.rank
        shape[i] = index.shape[i]
        part = (place if i == axis else function.arange(index.shape[i]).view(shape)) * step
        total = part if total is None else total + part
        step = ex.simplify(ex.constant(step) * source.shape[i])
    return source.flatten().index_select(0, total.flatten()).view(list(op.result.shape))


@define("aten.gather(Tensor self, dim, Tensor index)", decompose=_decompose_gather)
def _infer_gather(op: Op) -> Types:
    source, index = op.operands
    _check_index(index)
    if index.rank != source.rank:
        raise IRError(f"gather from {source.type} with {index.type}")
    axis_of(op.attrs["dim"], source.rank)
    return _resize(op, index.shape)


# ---- State, calls, users' kernels ------------------------------------------------------------------------------------


@define("accrt.state_read(state)")
def _infer_state_read(op: Op) -> Types:
    return [op.attrs["state"].type]


@define("accrt.state_write(Tensor value, state, offsets)", effect=True)
def _infer_state_write(op: Op) -> Types:
    """Writes `value` into the state, its first element at `offsets` (sizes or expressions, one per dimension)."""
    value, state = op.operands[0], op.attrs["state"]
    if value.dtype != state.type.dtype or value.rank != state.type.rank or len(op.attrs["offsets"]) != value.rank:
        raise IRError(f"{value.type} into state {state.name!r} of {state.type} at {op.attrs['offsets']}")
    return []


@define("accrt.write_input(Tensor value, name)", effect=True)
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
    wanted = [i.value.type for i in callee.inputs if i.value is not None]
    if [v.type for v in op.operands] != wanted:
        raise IRError(f"{callee.name!r} takes {[str(t) for t in wanted]}, not {[str(v.type) for v in op.operands]}")
    names = [i.name for i in callee.inputs if i.symbol]
    if sorted(op.attrs["scalars"]) != sorted(names):
        raise IRError(f"{callee.name!r} takes scalars {names}, not {sorted(op.attrs['scalars'])}")
    return [r.value.type for r in callee.results]


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
