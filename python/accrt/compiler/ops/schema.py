"""What an operation is: its schema, its registration as a method, and the building of one from
arguments.

Also what the inference of several kinds of operations uses.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from .. import arguments
from .. import expr as ex
from ..arguments import DTYPES
from ..expr import Expr, Size
from ..declared import FLOATS, State, TensorType
from ..ir import Function, IRError, Op, Value

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
    """One operation. `scalar_op`: its name in element-wise kernels. `to_float`: calculated in
    floats, so integers and bools become f32 (torch's default type) first. `effect`: it must run
    even when nothing uses it."""

    name: str
    parameters: Tuple[Parameter, ...]
    infer: Callable[[Op], Types]
    reference: Optional[Callable[..., Any]] = None
    # a value, a list of them, or None where it is as simple as it gets
    decompose: Optional[Callable[[Op], Any]] = None
    scalar_op: str = ""
    to_float: bool = False
    effect: bool = False
    view: bool = False

    @property
    def tensors(self) -> List[Parameter]:
        return [p for p in self.parameters if p.kind]

    @property
    def states(self) -> List[Tuple[str, bool]]:
        """Names of the attributes that are states, and whether the operation writes them: `State`
        and `State!` in the schema."""
        return [(p.name, p.type == "State!") for p in self.parameters if p.type in ("State", "State!")]


OPS: Dict[str, OpDef] = {}


def states_of(op: Op) -> List[Tuple[State, bool]]:
    """The states that an operation touches where they lie, in the order of its schema, and whether
    it writes them. A user's kernel has those that it was given; a call's are its callee's."""
    if op.name == "accrt.kernel":
        taken = [p for p in op.attrs["kernel"].params if p.kind == "buffer" and p.access != "write"]
        return [(state, taken[index].access != "read") for index, state in op.attrs["states"]]
    definition = OPS.get(op.name)
    return [] if definition is None else [(op.attrs[name], written) for name, written in definition.states]


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
    """Adds operation `name` with arguments as its schema says; the result, or a list where there
    are several."""
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
    """Numbers become constants, and tensors of different types the type that ATen promotes them
    to."""
    first = 1 if definition.name == "aten.where" else 0
    common = result_type(f"function {function.name!r}, operation {definition.name}", operands[first:])
    if common not in FLOATS and definition.to_float:
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


def result_type(name: str, operands: Sequence[Any]) -> str:
    """ATen's promotion (c10's update_result_type_state): tensors with dimensions decide; tensors
    without any, then numbers, count only where they are of a higher kind (bool, integers,
    floats)."""
    tensors = [v for v in operands if isinstance(v, Value)]
    with_dims = common_dtype(name, [v.dtype for v in tensors if v.rank])
    without = common_dtype(name, [v.dtype for v in tensors if not v.rank])
    numbers = [v for v in operands if v is not None and not isinstance(v, Value)]
    kinds = ["bool" if isinstance(n, bool) else "f32" if isinstance(n, float) else "i64" for n in numbers]
    return _higher(with_dims, _higher(without, common_dtype(name, kinds)))


def kind_of(dtype: str) -> int:
    """Higher for integers than for bools, and for floats than for integers; 0 for none."""
    return 0 if not dtype else 1 if dtype == "bool" else 3 if dtype in FLOATS else 2


def _higher(first: str, second: str) -> str:
    return second if kind_of(second) > kind_of(first) else first


def common_dtype(name: str, dtypes: Sequence[str]) -> str:
    """The type that ATen promotes tensors of these types to; "" for none."""
    if not dtypes:
        return ""
    top = max(map(kind_of, dtypes))
    unique = sorted({d for d in dtypes if kind_of(d) == top}, key=DTYPES.index)
    if len(unique) == 1:
        return unique[0]
    if top == 3:
        return "f32" if set(unique) == {"f16", "bf16"} else unique[-1]
    if {"u16", "u32", "u64"} & set(unique):  # which torch refuses beside other integers
        raise IRError(f"{name}: types {' and '.join(unique)} have no common type; cast one with to_copy()")
    return "i16" if unique == ["i8", "u8"] else unique[-1]


# ---- Helpers of inference ------------------------------------------------------------------------


def axis_of(dim: int, rank: int) -> int:
    """The dimension from 0 on; as in ATen, tensors without any have dimension 0 (and -1) all the
    same."""
    dim = arguments.integer(dim, "the dimension")
    if not -max(rank, 1) <= dim < max(rank, 1):
        raise IRError(f"dimension {dim} of a tensor of rank {rank}")
    return dim + max(rank, 1) if dim < 0 else dim


def method_axis(value: Value, dim: Any, what: str, more: int = 0) -> int:
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
        chosen = next((size for size in sizes if not ex.same(size, 1)), 1)
        for size in sizes:
            if not ex.same(size, 1) and not ex.proved_equal(size, chosen):
                texts = ["[" + ", ".join(map(str, shape)) + "]" for shape in shapes]
                raise IRError(f"shapes {' and '.join(texts)} do not broadcast: {size} is not proved to equal {chosen}")
        result.append(chosen)
    return tuple(result)


def need_same(a: Size, b: Size, what: str) -> None:
    if not ex.proved_equal(a, b):
        raise IRError(f"{what}: {a} is not proved to equal {b}")


def resized(op: Op, shape: Sequence[Size], dtype: str = "") -> Types:
    return [TensorType(dtype or op.operands[0].dtype, tuple(shape))]


def numpy() -> Any:
    """numpy, which the references need and compiling does not."""
    import numpy

    return numpy
