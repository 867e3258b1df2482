"""The IR: typed SSA over tensors with symbolic dimensions and encodings, and the Python API that
builds it.

A Module owns symbols, constants, states and functions. A Function is a Block of Ops in order; an
Op's regions (bodies of repeat and cond) are Blocks too. Operations are defined in ops/ and are
methods of Value and Block:

    m = Module("demo")
    n = m.symbol("n", maximum=4096)
    f = m.function("scale")
    x = f.input("x", "f32", [n, 8])
    f.result("y", (x * 2.0).relu())

`str(module)` prints it; `verify` (verifier.py) checks every rule and is run after every pass.
Types, constants and states are those of declared.py. This module knows no kernel and no file.
"""

from __future__ import annotations

import contextlib
import keyword
import operator
import warnings
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterator, List, Mapping, NoReturn, Optional, Sequence, Tuple, Union

from .._bits import bits_of, refuse_masked
from ..bundle_writer import FileKind, Segment, SymbolClass
from . import arguments
from . import expr as ex
from .arguments import IRError, described, near
from .declared import RESERVED_NAMES, Constant, External, Shard, State, Symbol, TensorType, WeightFile
from .expr import Expr, Size


class Value:
    """One SSA value. `op` is None for inputs, constants and the arguments of regions. Operations
    are methods of it."""

    def __init__(self, function: "Function", type_: TensorType, op: Optional["Op"] = None, name: str = ""):
        self.function, self.type, self.op, self.name = function, type_, op, name
        self.constant: Optional[Constant] = None

    @property
    def shape(self) -> Tuple[Size, ...]:
        return self.type.shape

    @property
    def dtype(self) -> str:
        return self.type.dtype

    @property
    def rank(self) -> int:
        return self.type.rank

    def __repr__(self) -> str:
        return f"<%{self.name or '?'}: {self.type}>"

    def __getattr__(self, name: str) -> Callable[..., "Value"]:
        # of what is there, ops/ makes methods
        if name.startswith("_") or "function" not in self.__dict__:
            raise AttributeError(name)
        there = [n for n in dir(Value) if not n.startswith("_")]
        more = f": it is a method of functions, f.{name}(...)" if hasattr(Function, name) else near(name, there, "docs/compiler.md lists what there is:")
        raise AttributeError(f"function {self.function.name!r}: a value has no operation {name!r}{more}")

    if TYPE_CHECKING:  # what ops/ makes of the operations

        def __add__(self, other: Any) -> Value: ...
        def __radd__(self, other: Any) -> Value: ...
        def __sub__(self, other: Any) -> Value: ...
        def __rsub__(self, other: Any) -> Value: ...
        def __mul__(self, other: Any) -> Value: ...
        def __rmul__(self, other: Any) -> Value: ...
        def __truediv__(self, other: Any) -> Value: ...
        def __rtruediv__(self, other: Any) -> Value: ...
        def __pow__(self, other: Any) -> Value: ...
        def __rpow__(self, other: Any) -> Value: ...
        def __matmul__(self, other: Any) -> Value: ...
        def __lt__(self, other: Any) -> Value: ...
        def __le__(self, other: Any) -> Value: ...
        def __gt__(self, other: Any) -> Value: ...
        def __ge__(self, other: Any) -> Value: ...
        def __neg__(self) -> Value: ...

    # A value stands for numbers that are there when the program runs: Python cannot branch on them
    # or count them now.

    def _refuse(self, what: str, instead: str) -> NoReturn:
        raise IRError(f"function {self.function.name!r}: {what} {self!r} is not known while compiling; {instead}")

    def __eq__(self, other: Any) -> Any:
        """By element, as eq() does; `is` says whether two names are of one value."""
        return self.eq(other) if isinstance(other, (Value, Expr, Constant)) or arguments.is_number(other) else NotImplemented

    def __ne__(self, other: Any) -> Any:
        return self.ne(other) if isinstance(other, (Value, Expr, Constant)) or arguments.is_number(other) else NotImplemented

    __hash__ = object.__hash__

    def __bool__(self) -> bool:
        self._refuse("the truth of", "where() chooses by element, cond() by an expression of symbols")

    def _number(self) -> NoReturn:
        self._refuse("the number in", "it stays a value")

    __int__ = __float__ = __index__ = __complex__ = _number

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **named: Any) -> "Value":
        """Numbers of numpy on the left of an operator; nothing else of numpy takes a value."""
        name = _OPERATORS.get(ufunc.__name__)
        if name is None or method != "__call__" or named or not all(isinstance(i, Value) or arguments.is_number(i) for i in inputs):
            self.__array__()
        values = [arguments.plain(i) for i in inputs]
        return getattr(values[0], name)(values[1]) if isinstance(values[0], Value) else getattr(operator, name.strip("_"))(*values)

    def __array__(self, *args: Any, **named: Any) -> NoReturn:
        self._refuse("what is in", "numpy's functions take arrays; a value has methods of the same names")

    def __len__(self) -> int:
        if not self.rank:
            raise IRError(f"function {self.function.name!r}: {self!r} has no dimension, so it has no length")
        if not isinstance(self.shape[0], int):
            self._refuse(f"the length, {self.shape[0]}, of", "shape[0] is the length as an expression")
        return self.shape[0]

    def __iter__(self) -> Iterator["Value"]:
        if not self.rank or not isinstance(self.shape[0], int):
            what = f"how often to iterate over dimension 0 ({self.shape[0]}) of" if self.rank else "iteration over no dimension of"
            self._refuse(what, "use repeat(), or operations on the whole value")
        return (self[i] for i in range(self.shape[0]))

    def __contains__(self, item: Any) -> bool:
        self._refuse("what is in", "eq() compares by element")

    def __getitem__(self, index: Any) -> "Value":
        """Basic indexing: integers or expressions select, slices slice, None adds a dimension, ...
        stands for the rest."""
        items = list(index) if isinstance(index, tuple) else [index]
        self._check_items(items)
        taken = sum(1 for item in items if item is not None and item is not Ellipsis)
        if Ellipsis in [i for i in items if not isinstance(i, (Expr, Value))]:
            at = next(i for i, item in enumerate(items) if item is Ellipsis)
            items[at : at + 1] = [slice(None)] * (self.rank - taken)
        value, axis = self, 0
        for item in items:
            if item is None:
                value, axis = value.unsqueeze(axis), axis + 1
            elif isinstance(item, slice):
                if item != slice(None):
                    value = value.slice(axis, 0 if item.start is None else item.start, item.stop, 1 if item.step is None else item.step)
                axis += 1
            else:
                value = value.select(axis, item)
        return value


    def _check_items(self, items: Sequence[Any]) -> None:
        where = f"function {self.function.name!r}: {self!r}"
        for item in items:
            parts = (item.start, item.stop, item.step) if isinstance(item, slice) else (item,)
            for part in parts:
                if isinstance(part, Value):
                    instead = "where() chooses by element" if part.dtype == "bool" else "use index_select() or gather()"
                    raise IRError(f"{where} indexed by the value {part!r}: {instead}")
                if part is not None and part is not Ellipsis and not _is_size(part):
                    raise IRError(f"{where} indexed by {part!r}: integers, expressions, slices of them, None and ... index")
        if sum(1 for item in items if item is Ellipsis) > 1 or sum(1 for item in items if item is not None and item is not Ellipsis) > self.rank:
            raise IRError(f"{where} has {self.rank} dimensions; the index {items} is of more")


def _is_size(item: Any) -> bool:
    """An integer (of numpy too, but no array) or an expression."""
    return isinstance(item, Expr) or arguments.is_integer(item)


#: numpy's functions for Python's operators.
_OPERATORS = {
    "add": "__add__", "subtract": "__sub__", "multiply": "__mul__", "divide": "__truediv__", "true_divide": "__truediv__", "power": "__pow__",
    "floor_divide": "__floordiv__", "remainder": "__mod__", "equal": "__eq__", "not_equal": "__ne__", "less": "__lt__",
    "less_equal": "__le__", "greater": "__gt__", "greater_equal": "__ge__",
}  # fmt: skip


class Op:
    """One operation: operands (None where an optional one is absent), attributes, results, nested
    blocks."""

    def __init__(self, name: str, operands: Sequence[Optional[Value]], attrs: Mapping[str, Any], block: "Block"):
        self.name, self.operands, self.attrs, self.block = name, list(operands), dict(attrs), block
        self.results: List[Value] = []
        self.regions: List[Block] = []
        self.label = ""
        #: what its types followed from when the verifier inferred them last
        self.verified: Optional[List[Any]] = None

    @property
    def result(self) -> Value:
        return self.results[0]

    @property
    def where(self) -> str:
        named = ", ".join("%" + r.name for r in self.results if r.name)
        return f"function {self.block.function.name!r}, operation {self.name}" + (f" ({named})" if named else "")


class Block:
    """Operations in order, with arguments (values that each run of the block starts with) and
    yields."""

    def __init__(self, function: "Function", parent: Optional[Op] = None):
        self.function, self.parent = function, parent
        self.ops: List[Op] = []
        self.args: List[Value] = []
        self.yields: List[Value] = []

    def walk(self) -> Iterator[Op]:
        """Every operation, nested ones after the operation that holds them."""
        for op in self.ops:
            yield op
            for region in op.regions:
                yield from region.walk()

    def blocks(self) -> Iterator["Block"]:
        yield self
        for op in self.ops:
            for region in op.regions:
                yield from region.blocks()


@dataclass
class Input:
    """One input of a function: a tensor value, or (symbol) an integer."""

    name: str
    value: Optional[Value] = None
    access: str = "read"
    optional: bool = False
    symbol: str = ""
    doc: str = ""
    adapter: str = ""  # the tensor of an adapter's file that it takes
    scaled: bool = False


@dataclass
class Result:
    name: str
    value: Value
    alias: str = ""  # name of a donated or read_write input whose storage it may take
    alias_must: bool = False
    doc: str = ""


class Function:
    """A function of the module, and the place where operations are added."""

    def __init__(self, module: "Module", name: str, internal: bool = False, prepare: bool = False, doc: str = ""):
        self.module, self.name, self.internal, self.prepare, self.doc = module, name, internal, prepare, doc
        # pickle and copy.deepcopy go through attributes in this order: to operations in theirs, so
        # that none is reached through those that it is made of, however many these are
        self.body = Block(self)
        self.inputs: List[Input] = []
        self.results: List[Result] = []
        self.required: List[Tuple[Expr, str]] = []
        self.constants: Dict[str, Value] = {}
        self._insertion = [self.body]
        self._label = ""

    def __getattr__(self, name: str) -> Callable[..., Any]:  # of what is there, ops/ makes methods
        if name.startswith("_") or "module" not in self.__dict__:
            raise AttributeError(name)
        there = [n for n in dir(Function) if not n.startswith("_") and n not in ("add", "as_value", "block", "inside", "needed_value")]
        more = f": it is a method of values, x.{name}(...)" if hasattr(Value, name) else near(name, there)
        raise AttributeError(f"function {self.name!r} has no {name!r}{more}")

    def __repr__(self) -> str:
        return f"<function {self.name!r}>"

    # -- signature

    def input(
        self, name: str, dtype: str, shape: Sequence[Size], *, access: str = "read", optional: bool = False, doc: str = "",
        adapter: str = "", scaled: bool = False,
    ) -> Value:  # fmt: skip
        """Adds a tensor input. A dimension that is a bare symbol binds it. `access`: read,
        read_write or donated. An optional one may be left out by the caller: use it only inside
        `cond(f.present(value), ...)`. `adapter`: the tensor of a LoRA adapter's file that the input
        gets if the session has an adapter; `scaled`: the tensor is multiplied by alpha / rank."""
        self._new_name(name, [i.name for i in self.inputs], "input")
        where = f"function {self.name!r}, input {name!r}"
        optional, scaled = arguments.flag(optional, f"{where}: optional"), arguments.flag(scaled, f"{where}: scaled")
        if (adapter and not optional) or (scaled and not adapter):
            raise IRError(f"{where}: adapters fill optional inputs, and scale those that they fill")
        if access not in ("read", "read_write", "donated"):
            raise IRError(f"{where}: no access {access!r}{near(access, ('read', 'read_write', 'donated'))}")
        dtype, shape = arguments.dtype(dtype, where), arguments.sizes(shape, f"{where}: shape")
        if any(isinstance(size, int) and size < 0 for size in shape) or len(shape) > 8:
            raise IRError(f"{where}: no tensor has the shape [{', '.join(map(str, shape))}]")
        value = Value(self, TensorType(dtype, shape), name=name)
        if scaled and (dtype not in ("f16", "bf16", "f32") or not any(isinstance(size, Expr) and size.op == "symbol" for size in value.shape)):
            raise IRError(f"{where}: {value.type} is not scaled by alpha / rank: f32, f16 and bf16 are, whose first symbol is the rank")
        self.inputs.append(Input(name, value, access, optional, doc=doc, adapter=adapter, scaled=scaled))
        return value

    def present(self, value: Value) -> Expr:
        """1 if the caller passed the optional input, else 0; for conditions."""
        for index, i in enumerate(self.inputs):
            if i.value is value and i.optional:
                return ex.present(index)
        raise IRError(f"function {self.name!r}: {value!r} is no optional input")

    def scalar(self, name: str, symbol: Expr, *, doc: str = "") -> None:
        """Adds an integer input that gives a symbol its value."""
        self._new_name(name, [i.name for i in self.inputs], "input")
        if not isinstance(symbol, Expr) or symbol.op != "symbol" or symbol.value not in self.module.symbols:
            raise IRError(f"function {self.name!r}, scalar {name!r}: {symbol} is no symbol of the module: it takes what m.symbol(...) gives")
        self.inputs.append(Input(name, symbol=symbol.value, doc=doc))

    def result(self, name: str, value: Value, *, alias: str = "", alias_must: bool = False, doc: str = "") -> None:
        """Adds a result. `alias`: an input whose storage it may (or must) share."""
        self._new_name(name, [r.name for r in self.results], "result")
        value = self.needed_value(value, f"function {self.name!r}, result {name!r}")
        if value.function is not self:
            raise IRError(f"function {self.name!r}, result {name!r}: {value!r} belongs to another function")
        self.results.append(Result(name, value, alias, alias_must, doc))

    def require(self, condition: Size, what: str) -> None:
        """Refuses calls for whose sizes the condition is 0; the message has `what`. A condition is
        made with `equal`, `less` and their like, and has the value 0 or 1."""
        if ex.same(ex.simplify(ex.constant(condition)), 0):
            raise IRError(f"function {self.name!r}: no sizes meet what is required: {what}")
        self.required.append((ex.constant(condition), arguments.text(what, f"function {self.name!r}: what is required")))

    def _new_name(self, name: str, known: Sequence[str], what: str) -> None:
        arguments.text(name, f"function {self.name!r}: the name of an {what}" if what == "input" else f"function {self.name!r}: the name of a {what}")
        if not name or name in known:
            raise IRError(f"function {self.name!r}, {what} {name!r}: the name is empty or used twice")

    # -- building

    @property
    def block(self) -> Block:
        """Where operations are added now."""
        return self._insertion[-1]

    @contextlib.contextmanager
    def inside(self, block: Block) -> Iterator[Block]:
        self._insertion.append(block)
        try:
            yield block
        finally:
            self._insertion.pop()

    @contextlib.contextmanager
    def label(self, text: str) -> Iterator[None]:
        """Names the operations made inside, for traces and messages ("layer 3/attention")."""
        before, self._label = self._label, f"{self._label}/{text}" if self._label else text
        try:
            yield
        finally:
            self._label = before

    def constant(self, constant: Constant) -> Value:
        """A constant of the module, which `m.constant(...)` made, as a value of this function:
        `f.constant(w).relu()`. Operations take constants as they are, too: `x.linear(w)`.
        `m.constant(name, array)` adds an array, `f.full(size, number)` is a number."""
        if not isinstance(constant, Constant):
            raise IRError(f"function {self.name!r}: constant() takes what m.constant(name, array) gives, not {described(constant)}; "
                          "f.full(size, number) is a number")
        if constant.name not in self.constants:
            value = Value(self, constant.type, name=constant.name)
            value.constant = constant
            self.constants[constant.name] = value
        return self.constants[constant.name]

    def as_value(self, item: Any) -> Optional[Value]:
        return self.constant(item) if isinstance(item, Constant) else item

    def needed_value(self, item: Any, where: str) -> Value:
        """A value of this function."""
        value = self.as_value(item)
        if isinstance(value, Value) and value.function is self:
            return value
        if isinstance(value, Value):
            raise IRError(f"{where}: {value!r} belongs to function {value.function.name!r}, which is another")
        more = ": m.constant(name, array) adds an array" if hasattr(item, "dtype") or isinstance(item, (list, tuple)) else ""
        raise IRError(f"{where}: {described(item)} is no value of the function{more}")

    def add(self, name: str, operands: Sequence[Any], attrs: Mapping[str, Any]) -> Op:
        """Adds an operation with inferred results."""
        from . import ops

        op = Op(name, [self.as_value(operand) for operand in operands], attrs, self.block)
        op.label = self._label
        types = ops.infer(op)
        op.results = [Value(self, type_, op) for type_ in types]
        self.block.ops.append(op)
        return op

    def repeat(
        self, count: Size, carried: Sequence[Value], body: Callable[..., Sequence[Value]]
    ) -> List[Value]:
        """Runs `body(index, *carried)` `count` times (an expression of SPECIALIZE and SESSION
        symbols); what it returns is carried to the next run; the values of the last run are
        returned. The index is an expression; it may stand in slices, selects, scalars and
        offsets."""
        where = f"function {self.name!r}, repeat"
        count = arguments.size(count, f"{where}: count")
        carried = [self.needed_value(value, f"{where}: carried[{i}]") for i, value in enumerate(arguments.listed(carried, f"{where}: carried", "values"))]
        self._callable(body, f"{where}: body")
        depth = sum(1 for block in self._insertion if block.parent is not None and block.parent.name == "accrt.repeat")
        op = Op("accrt.repeat", carried, {"count": ex.simplify(count), "depth": depth}, self.block)
        op.label = self._label
        region = Block(self, op)
        region.args = [Value(self, value.type) for value in carried]
        with self.inside(region):
            region.yields = self._made(body(ex.induction(depth), *region.args), f"{where}: what its body returns")
        op.regions = [region]
        op.results = [Value(self, value.type, op) for value in carried]
        self.block.ops.append(op)
        self._check(op)
        return list(op.results)

    def cond(self, condition: Size, then: Callable[[], Any], otherwise: Callable[[], Any]) -> List[Value]:
        """`then()` where the condition (an expression of SPECIALIZE and SESSION symbols) is not 0,
        else `otherwise()`; both return values of the same types."""
        where = f"function {self.name!r}, cond"
        for made in (then, otherwise):
            self._callable(made, f"{where}: a branch")
        if isinstance(condition, Value):
            condition._refuse("the value of", "cond() takes an expression of symbols; where() chooses by element")
        op = Op("accrt.cond", [], {"condition": arguments.size(condition, f"{where}: condition")}, self.block)
        op.label = self._label
        for make in (then, otherwise):
            region = Block(self, op)
            with self.inside(region):
                region.yields = self._made(make(), f"{where}: what a branch returns")
            op.regions.append(region)
        op.results = [Value(self, value.type, op) for value in op.regions[0].yields]
        self.block.ops.append(op)
        self._check(op)
        return list(op.results)

    @staticmethod
    def _check(op: Op) -> None:
        """By the rules, which stand on this module."""
        from .verifier import verify_op

        verify_op(op)

    def _callable(self, item: Any, what: str) -> None:
        if not callable(item):
            raise IRError(f"{what} is {described(item)}, expected a function that makes values")

    def _made(self, made: Any, what: str) -> List[Value]:
        return [self.needed_value(v, what) for v in (made if isinstance(made, (list, tuple)) else [made])]

    def call(self, callee: "Function", *operands: Value, **scalars: Size) -> List[Value]:
        """Runs another function of the module in place, before this one in it; `scalars` by the
        name of its scalar inputs. Its other symbols mean what they mean here."""
        where = f"function {self.name!r}, call"
        if isinstance(callee, str) and callee in self.module.functions:
            callee = self.module.functions[callee]
        if not isinstance(callee, Function) or self.module.functions.get(callee.name) is not callee:
            raise IRError(f"{where}: {described(callee)} is no function of this module{near(callee, self.module.functions)}")
        operands = tuple(self.needed_value(v, f"{where} of {callee.name!r}") for v in operands)
        sizes = {name: arguments.size(size, f"{where} of {callee.name!r}: {name}") for name, size in scalars.items()}
        attrs = {"callee": callee.name, "scalars": sizes}
        return self.add("accrt.call", operands, attrs).results

    def kernel(
        self,
        kernel: Any,
        operands: Sequence[Union[Value, State]],
        results: Sequence[TensorType],
        reference: Optional[Callable[..., Any]] = None,
        **values: Any,
    ) -> List[Value]:
        """Runs a user's KernelDef, or an accrt.Kernel from source or a GPU's machine code. Its
        buffers are bound in order: those that it reads to `operands`, those that it writes to
        `results`; `values`: its symbols and scalars by name. A buffer that it reads, or reads and
        writes, may be a state: it is read and written in place. `reference(*operands, **values)`:
        the same in numpy, for the interpreter; a state is an array there, which it changes."""
        where = f"function {self.name!r}, kernel"
        offered, kernel = kernel, getattr(kernel, "definition", kernel)
        if not hasattr(kernel, "params") or not hasattr(kernel, "grid"):
            raise IRError(f"{where}: {described(offered)} is no KernelDef" + (", and of a pack" if kernel is None else ""))
        where = f"{where} {kernel.name!r}"
        given = arguments.listed(operands, f"{where}: operands", "values or states")
        states = tuple((i, v) for i, v in enumerate(given) if isinstance(v, State))
        operands = [self.needed_value(v, where) for v in given if not isinstance(v, State)]
        for type_ in arguments.listed(results, f"{where}: results", "TensorTypes"):
            if not isinstance(type_, TensorType):
                raise IRError(f"{where}: a result of {described(type_)}, expected a TensorType(dtype, shape)")
        kinds = {p.name: p.dtype if p.kind == "scalar" else "i64" for p in kernel.params if p.kind in ("scalar", "symbol")}
        values = {name: arguments.typed(item, kinds.get(name, ""), f"{where}: {name}") for name, item in values.items()}
        attrs = {"kernel": kernel, "types": tuple(results), "values": values, "states": states, "reference": reference}
        return self.add("accrt.kernel", operands, attrs).results


class Module:
    """The program and the weights that a bundle is made from."""

    def __init__(self, name: str = "module"):
        self.name = arguments.name(name, "the module's name")
        self.symbols: Dict[str, Symbol] = {}
        self.constants: Dict[str, Constant] = {}
        self.states: Dict[str, State] = {}
        self.functions: Dict[str, Function] = {}
        self.metadata: Dict[str, str] = {}
        self.files: Dict[str, WeightFile] = {}
        #: The type that f32 work is done in, by family of targets ({"cuda": "f16"}); none: as it is
        #: written.
        self.compute: Dict[str, str] = {}
        #: On CUDA, whether products give a row the same bits whatever the number of rows: by one
        #: kernel for all. On hosts they always do.
        self.batch_invariant = False
        #: What the module is compiled for, while it is.
        self.targets: Tuple[str, ...] = ()

    def _new(self, table: Mapping[str, Any], name: str, what: str) -> None:
        if not arguments.text(name, f"the name of a {what}") or name in table:
            raise IRError(f"{what} {name!r}: the name is empty or used twice")

    def symbol(
        self,
        name: str,
        symbol_class: SymbolClass = SymbolClass.SPECIALIZE,
        *,
        minimum: int = 0,
        maximum: int = 1 << 31,
        divisor: int = 1,
        buckets: Sequence[int] = (),
    ) -> Expr:
        """Declares a shape symbol; the result stands for it in shapes. Its values are from
        `minimum` to `maximum`, both included, and multiples of `divisor`."""
        self._new(self.symbols, name, "symbol")
        where = f"symbol {name!r}"
        try:
            chosen = SymbolClass(symbol_class)
        except ValueError:
            known = near(symbol_class, [c.name for c in SymbolClass])
            raise IRError(f"{where}: symbol_class is {described(symbol_class)}, expected one of SymbolClass, as SymbolClass.SESSION{known}") from None
        least, most = arguments.integer(minimum, f"{where}: minimum", 0), arguments.integer(maximum, f"{where}: maximum", 0)
        if least > most:
            raise IRError(f"{where}: minimum {least} is more than maximum {most}")
        bounds = tuple(arguments.integer(b, f"{where}: buckets[{i}]", 0) for i, b in enumerate(arguments.listed(buckets, f"{where}: buckets")))
        self.symbols[name] = Symbol(name, chosen, least, most, arguments.integer(divisor, f"{where}: divisor", 1), bounds)
        return ex.symbol(name)

    def _constant(self, made: Constant) -> Constant:
        self._new(self.constants, made.name, "constant")
        self.constants[made.name] = made
        return made

    def constant(self, name: str, data: Any, dtype: str = "") -> Constant:
        """Adds a weight from a numpy array. bf16: ml_dtypes' arrays, what `accrt.Weights` and
        Tensors give, or bits as uint16 with dtype="bf16"."""
        if not hasattr(data, "dtype") or not hasattr(data, "view") or not hasattr(data, "__array_interface__"):
            more = _TORCHS if hasattr(data, "detach") else "quantized weights are added by weight()" if hasattr(data, "layout") else "numpy.asarray(...) makes one"
            raise IRError(f"constant {name!r}: a {type(data).__name__} is no numpy array; {more}")
        try:
            refuse_masked(data)
        except TypeError as error:
            raise IRError(f"constant {name!r}: {error}") from None
        dtype = dtype or bits_of(data) or _NUMPY_DTYPES.get(str(data.dtype), str(data.dtype))
        if dtype == "bf16" and str(data.dtype) == "bfloat16":
            data = data.view("uint16")
        arguments.dtype(dtype, f"constant {name!r}")
        if str(data.dtype) != _STORED.get(dtype):
            raise IRError(f"constant {name!r}: an array of {data.dtype} is not {dtype}: array.astype({_STORED[dtype]!r}) converts "
                          "numbers" if dtype != "bf16" else f"constant {name!r}: an array of {data.dtype} is not bf16: give ml_dtypes' bfloat16, or its bits as uint16")
        return self._constant(Constant(name, TensorType(dtype, tuple(data.shape)), data))

    def weight(self, name: str, quantized: Any) -> Constant:
        """Adds a quantized weight (encodings.Quantized). Operations take it like a plain weight of
        its type and shape."""
        if not hasattr(quantized, "components"):
            more = _TORCHS if hasattr(quantized, "detach") else "plain arrays are added by constant()"
            raise IRError(f"constant {name!r}: a {type(quantized).__name__} is no Quantized; {more}")
        return self._constant(Constant(name, TensorType(quantized.dtype, tuple(quantized.shape), quantized.layout), quantized))

    def file(
        self, name: str, kind: Union[str, FileKind] = "", *, size_bytes: int = 0, digest: Optional[bytes] = None,
        sha256: Optional[bytes] = None,
    ) -> str:  # fmt: skip
        """Describes a file with weights: its kind ("safetensors", "gguf", "accx"; by default the
        end of its name), size, digest, and SHA-256."""
        self._new(self.files, name, "file")
        wanted = kind if isinstance(kind, FileKind) else (kind or name.rpartition(".")[2]).upper()
        try:
            found = wanted if isinstance(wanted, FileKind) else FileKind[wanted]
        except KeyError:
            raise IRError(f"file {name!r}: its kind is safetensors, gguf or accx, not {kind or name.rpartition('.')[2]!r}") from None
        self.files[name] = WeightFile(name, found, size_bytes, digest, sha256)
        return name

    def external(
        self, name: str, dtype: str, shape: Sequence[int], *, layout: str = "plain", group: int = 0,
        components: Mapping[str, str] = MappingProxyType({}), file: str = "", tensor: str = "", digest: Optional[bytes] = None,
        sha256: Optional[bytes] = None, by_name: bool = False, shard: Optional[Shard] = None,
    ) -> Constant:  # fmt: skip
        """Adds a weight whose bytes are outside the bundle and not known here (External says
        where). `shape` is that of the tensor; with a shard the weight is a rank's part of it.
        `layout`: its encoding; `group` and the types of `components` by role, if the layout leaves
        them free."""
        where = f"constant {name!r}"
        full = tuple(arguments.integer(size, f"{where}: shape[{i}]", 0) for i, size in enumerate(arguments.listed(shape, f"{where}: shape")))
        if (digest is None) != by_name or (digest is not None and (not isinstance(digest, bytes) or len(digest) != 16 or not any(digest))):
            raise IRError(f"{where}: it is bound by a digest of 16 bytes, or by_name=True says that its name is enough")
        if file and file not in self.files:
            self.file(file)
        extent = 0
        if shard is not None:
            if not isinstance(shard.degree, int) or shard.degree < 1 or not all(isinstance(piece, Segment) for piece in shard.segments):
                raise IRError(f"{where}: a shard of degree {shard.degree!r}; it is 1 or more, and segments are Segment(begin, end, replicas)")
            if shard.axis is not None and not 0 <= shard.axis < len(full):
                raise IRError(f"{where}: a shard along axis {shard.axis} of rank {len(full)}")
            extent = 0 if shard.axis is None else full[shard.axis]
            full = shard.part_of(full)
        data = None
        if layout != "plain":
            from .encodings import APART, declared

            if layout in APART and (digest is not None or shard is not None):
                raise IRError(f"{where}: {layout} is several tensors: it is bound by their names, and is no rank's part")
            try:
                data = declared(layout, full, group=group, dtype=dtype, components=components)
            except ValueError as error:
                raise IRError(f"{where}: {error}") from None
        return self._constant(Constant(name, TensorType(dtype, full, layout), data, External(file, tensor, digest, by_name, shard, extent, sha256)))

    def state(self, name: str, dtype: str, shape: Sequence[Size], *, fill_pattern: int = 0) -> State:
        """Declares memory of a session; its dimensions are sizes or expressions of SESSION
        symbols."""
        self._new(self.states, name, "state")
        where = f"state {name!r}"
        type_ = TensorType(arguments.dtype(dtype, where), arguments.sizes(shape, f"{where}: shape"))
        made = State(name, type_, arguments.integer(fill_pattern, f"{where}: fill_pattern", 0))
        self.states[name] = made
        return made

    def function(self, name: str, *, internal: bool = False, prepare: bool = False, doc: str = "") -> Function:
        """Adds a function. Callers reach it as `session.name(...)`. If a session has an attribute
        of this name, or if it is no name in Python, they use `session["name"](...)`, and a warning
        here says so."""
        self._new(self.functions, name, "function")
        if not internal and not prepare and (name in RESERVED_NAMES or name.startswith("_") or not name.isidentifier() or keyword.iskeyword(name)):
            what = "a session has an attribute of this name" if name in RESERVED_NAMES else "this is no name of an attribute"
            warnings.warn(f'function "{name}": {what}, so in Python it is called as session["{name}"](...)', stacklevel=2)
        made = Function(self, name, internal, prepare, doc)
        self.functions[name] = made
        return made

    def ranges(self) -> Dict[str, Tuple[int, int]]:
        return {s.name: (s.minimum, s.maximum) for s in self.symbols.values()}

    def __str__(self) -> str:
        from .printer import print_module

        return print_module(self)


_TORCHS = "t.detach().numpy() gives one; of bfloat16: t.detach().view(torch.uint16).numpy(), with dtype='bf16'"
_NUMPY_DTYPES = {
    "bool": "bool", "int8": "i8", "uint8": "u8", "int16": "i16", "uint16": "u16", "int32": "i32", "uint32": "u32", "int64": "i64",
    "uint64": "u64", "float16": "f16", "float32": "f32", "float64": "f64", "bfloat16": "bf16",
}  # fmt: skip
#: What numpy holds each of our types in.
_STORED = {**{ours: theirs for theirs, ours in _NUMPY_DTYPES.items()}, "bf16": "uint16"}
