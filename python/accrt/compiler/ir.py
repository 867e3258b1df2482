"""The IR: typed SSA over tensors with symbolic dimensions and encodings, and the Python API that builds it.

A Module owns symbols, constants, states and functions. A Function is a Block of Ops in order; an Op's regions (bodies of
repeat and cond) are Blocks too. Operations are defined in ops.py and are methods of Value and Block:

    m = Module("demo")
    n = m.symbol("n", maximum=4096)
    f = m.function("scale")
    x = f.input("x", "f32", [n, 8])
    f.result("y", (x * 2.0).relu())

`str(module)` prints it; `verify` checks every rule and is run after every pass. This module knows no kernel and no file.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple, Union

from ..bundle_writer import FileKind, Segment, SymbolClass
from . import expr as ex
from .expr import Expr, Size

DTYPES = ("bool", "i8", "u8", "i32", "u32", "i64", "f16", "bf16", "f32", "f64")
FLOATS = ("f16", "bf16", "f32", "f64")
DTYPE_BYTES = {"bool": 1, "i8": 1, "u8": 1, "i32": 4, "u32": 4, "i64": 8, "f16": 2, "bf16": 2, "f32": 4, "f64": 8}


class IRError(ValueError):
    """A rule of the IR is broken; the message names the function and the operation."""


@dataclass(frozen=True)
class TensorType:
    """Data type, dimensions and encoding: plain, a layout of quantized weights, or `opaque` bytes that kernels alone understand."""

    dtype: str
    shape: Tuple[Size, ...]
    encoding: str = "plain"

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise IRError(f"no data type {self.dtype!r}; there are {', '.join(DTYPES)}")
        object.__setattr__(self, "shape", tuple(ex.simplify(size) for size in self.shape))
        if any(isinstance(size, int) and size < 0 for size in self.shape) or len(self.shape) > 8:
            raise IRError(f"no tensor has the shape [{', '.join(map(str, self.shape))}]")

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def elements(self) -> Size:
        return ex.product(self.shape)

    @property
    def size_bytes(self) -> Size:
        return ex.simplify(self.elements * DTYPE_BYTES[self.dtype])

    def __str__(self) -> str:
        dims = ", ".join(ex.size_text(size) for size in self.shape)
        return f"{self.dtype}[{dims}]" + ("" if self.encoding == "plain" else f" {self.encoding}")


@dataclass(eq=False)
class Symbol:
    """A shape symbol: its class says who fixes the value, and when."""

    name: str
    symbol_class: SymbolClass
    minimum: int
    maximum: int
    divisor: int = 1
    buckets: Tuple[int, ...] = ()


@dataclass(frozen=True)
class Shard:
    """What each of `degree` ranks has of a tensor: all of it, or (with an axis) its part of each of `segments`, which are cut on their
    own; by default there is one, the whole axis."""

    degree: int
    axis: Optional[int] = None
    segments: Tuple[Segment, ...] = ()

    def part_of(self, shape: Sequence[int]) -> Tuple[int, ...]:
        """The shape of a rank's part."""
        if self.axis is None:
            return tuple(shape)
        pieces = self.segments or (Segment(0, shape[self.axis]),)
        part = sum((piece.end - piece.begin) * piece.replicas // self.degree for piece in pieces)
        return (*shape[: self.axis], part, *shape[self.axis + 1 :])


@dataclass(frozen=True)
class External:
    """Where the bytes of a weight are that the bundle does not hold. `file`: the bare name of a file beside the bundle (Module.file); none:
    whatever is given at load. `tensor`: its name there, where that is another. `digest`: XXH3-128 of its bytes, and no others are taken;
    with `by_name` the name and the type are enough."""

    file: str = ""
    tensor: str = ""
    digest: Optional[bytes] = None
    by_name: bool = False
    shard: Optional[Shard] = None
    extent: int = 0  # of the full tensor along the shard's axis


@dataclass(frozen=True)
class WeightFile:
    """A file beside the bundle, by its bare name. `size_bytes` 0: any; `digest`: XXH3-128 of the whole file."""

    name: str
    kind: FileKind
    size_bytes: int = 0
    digest: Optional[bytes] = None


@dataclass(eq=False)
class Constant:
    """A weight. `data`: a numpy array (bf16 as uint16 bits), or a Quantized where the type's encoding is a layout; None where its bytes
    are not known here: made by a prepare function, or (`external`) outside the bundle."""

    name: str
    type: TensorType
    data: Any = None
    external: Optional[External] = None


@dataclass(eq=False)
class State:
    """Memory of a session."""

    name: str
    type: TensorType
    fill_pattern: int = 0


class Value:
    """One SSA value. `op` is None for inputs, constants and the arguments of regions. Operations are methods of it."""

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

    def __getitem__(self, index: Any) -> "Value":
        """Basic indexing: integers or expressions select, slices slice, None adds a dimension, ... stands for the rest."""
        items = list(index) if isinstance(index, tuple) else [index]
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
                    value = value.slice(axis, 0 if item.start is None else item.start, item.stop, item.step or 1)
                axis += 1
            else:
                value = value.select(axis, item)
        return value


class Op:
    """One operation: operands (None where an optional one is absent), attributes, results, nested blocks."""

    def __init__(self, name: str, operands: Sequence[Optional[Value]], attrs: Mapping[str, Any], block: "Block"):
        self.name, self.operands, self.attrs, self.block = name, list(operands), dict(attrs), block
        self.results: List[Value] = []
        self.regions: List[Block] = []
        self.label = ""

    @property
    def result(self) -> Value:
        return self.results[0]

    @property
    def where(self) -> str:
        named = ", ".join("%" + r.name for r in self.results if r.name)
        return f"function {self.block.function.name!r}, operation {self.name}" + (f" ({named})" if named else "")


class Block:
    """Operations in order, with arguments (values that each run of the block starts with) and yields."""

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
        self.inputs: List[Input] = []
        self.results: List[Result] = []
        self.body = Block(self)
        self.constants: Dict[str, Value] = {}
        self._insertion = [self.body]
        self._label = ""

    def __repr__(self) -> str:
        return f"<function {self.name!r}>"

    # -- signature

    def input(
        self, name: str, dtype: str, shape: Sequence[Size], *, access: str = "read", optional: bool = False, doc: str = "",
        adapter: str = "", scaled: bool = False,
    ) -> Value:  # fmt: skip
        """Adds a tensor input. A dimension that is a bare symbol binds it. `access`: read, read_write or donated. An optional
        one may be left out by the caller: use it only inside `cond(f.present(value), ...)`. `adapter`: the tensor that it takes
        of a LoRA adapter's file, where a session has one; `scaled`: alpha / rank is multiplied in."""
        self._new_name(name, [i.name for i in self.inputs], "input")
        where = f"function {self.name!r}, input {name!r}"
        if (adapter and not optional) or (scaled and not adapter):
            raise IRError(f"{where}: adapters fill optional inputs, and scale those that they fill")
        if access not in ("read", "read_write", "donated"):
            raise IRError(f"{where}: no access {access!r}")
        value = Value(self, TensorType(dtype, tuple(shape)), name=name)
        if scaled and (dtype not in ("f16", "bf16", "f32") or not any(isinstance(size, Expr) and size.op == "symbol" for size in value.shape)):
            raise IRError(f"{where}: {value.type} is not scaled by alpha / rank: f32, f16 and bf16 are, whose first symbol is the rank")
        self.inputs.append(Input(name, value, access, optional, doc=doc, adapter=adapter, scaled=scaled))
        return value

    def present(self, value: Value) -> Expr:
        """1 where the caller gave an optional input, else 0: for conditions."""
        for index, i in enumerate(self.inputs):
            if i.value is value and i.optional:
                return ex.present(index)
        raise IRError(f"function {self.name!r}: {value!r} is no optional input")

    def scalar(self, name: str, symbol: Expr, *, doc: str = "") -> None:
        """Adds an integer input that gives a symbol its value."""
        self._new_name(name, [i.name for i in self.inputs], "input")
        if not isinstance(symbol, Expr) or symbol.op != "symbol" or symbol.value not in self.module.symbols:
            raise IRError(f"function {self.name!r}, scalar {name!r}: {symbol} is no symbol of the module")
        self.inputs.append(Input(name, symbol=symbol.value, doc=doc))

    def result(self, name: str, value: Value, *, alias: str = "", alias_must: bool = False, doc: str = "") -> None:
        """Adds a result. `alias`: an input whose storage it may (or must) share."""
        self._new_name(name, [r.name for r in self.results], "result")
        if value.function is not self:
            raise IRError(f"function {self.name!r}, result {name!r}: {value!r} belongs to another function")
        self.results.append(Result(name, value, alias, alias_must, doc))

    def _new_name(self, name: str, known: Sequence[str], what: str) -> None:
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
        """A constant as a value."""
        if constant.name not in self.constants:
            value = Value(self, constant.type, name=constant.name)
            value.constant = constant
            self.constants[constant.name] = value
        return self.constants[constant.name]

    def as_value(self, item: Any) -> Optional[Value]:
        return self.constant(item) if isinstance(item, Constant) else item

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
        """Runs `body(index, *carried)` `count` times; what it returns is carried to the next run and, at last, returned.
        The index is an expression; it may stand in slices, selects, scalars and offsets."""
        depth = sum(1 for block in self._insertion if block.parent is not None and block.parent.name == "accrt.repeat")
        op = Op("accrt.repeat", carried, {"count": ex.simplify(count), "depth": depth}, self.block)
        op.label = self._label
        region = Block(self, op)
        region.args = [Value(self, value.type) for value in carried]
        with self.inside(region):
            made = body(ex.induction(depth), *region.args)
            region.yields = [self.as_value(v) for v in (made if isinstance(made, (list, tuple)) else [made])]
        op.regions = [region]
        op.results = [Value(self, value.type, op) for value in carried]
        self.block.ops.append(op)
        _verify_op(op)
        return list(op.results)

    def cond(self, condition: Size, then: Callable[[], Any], otherwise: Callable[[], Any]) -> List[Value]:
        """`then()` where the condition (an expression of SPECIALIZE and SESSION symbols) is not 0, else `otherwise()`; both
        return values of the same types."""
        op = Op("accrt.cond", [], {"condition": ex.simplify(condition)}, self.block)
        op.label = self._label
        for make in (then, otherwise):
            region = Block(self, op)
            with self.inside(region):
                made = make()
                region.yields = [self.as_value(v) for v in (made if isinstance(made, (list, tuple)) else [made])]
            op.regions.append(region)
        op.results = [Value(self, value.type, op) for value in op.regions[0].yields]
        self.block.ops.append(op)
        _verify_op(op)
        return list(op.results)

    def call(self, callee: "Function", *operands: Value, **scalars: Size) -> List[Value]:
        """Runs another function of the module in place, before this one in it; `scalars` by the name of its scalar inputs.
        Its other symbols mean what they mean here."""
        attrs = {"callee": callee.name, "scalars": {name: ex.simplify(size) for name, size in scalars.items()}}
        return self.add("accrt.call", operands, attrs).results

    def kernel(
        self,
        kernel: Any,
        operands: Sequence[Value],
        results: Sequence[TensorType],
        reference: Optional[Callable[..., Any]] = None,
        **values: Any,
    ) -> List[Value]:
        """Runs a user's KernelDef. Its buffers are bound in order: those that it reads to `operands`, those that it writes to
        `results`; `values`: its symbols and scalars by name. `reference(*operands, **values)`: the same in numpy, for the
        interpreter."""
        attrs = {"kernel": kernel, "types": tuple(results), "values": values, "reference": reference}
        return self.add("accrt.kernel", operands, attrs).results


class Module:
    """What a bundle is made from."""

    def __init__(self, name: str = "module"):
        self.name = name
        self.symbols: Dict[str, Symbol] = {}
        self.constants: Dict[str, Constant] = {}
        self.states: Dict[str, State] = {}
        self.functions: Dict[str, Function] = {}
        self.metadata: Dict[str, str] = {}
        self.files: Dict[str, WeightFile] = {}
        #: The type that f32 work is done in, by family of targets ({"cuda": "f16"}); none: as it is written.
        self.compute: Dict[str, str] = {}

    def _new(self, table: Mapping[str, Any], name: str, what: str) -> None:
        if not name or name in table:
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
        """Declares a shape symbol; the result stands for it in shapes."""
        self._new(self.symbols, name, "symbol")
        self.symbols[name] = Symbol(name, SymbolClass(symbol_class), minimum, maximum, divisor, tuple(buckets))
        return ex.symbol(name)

    def _constant(self, made: Constant) -> Constant:
        self._new(self.constants, made.name, "constant")
        self.constants[made.name] = made
        return made

    def constant(self, name: str, data: Any, dtype: str = "") -> Constant:
        """Adds a weight from a numpy array. For bf16 give its bits as uint16 and the dtype."""
        if not hasattr(data, "dtype") or hasattr(data, "layout"):
            raise IRError(f"constant {name!r}: a {type(data).__name__} is no numpy array; quantized weights are added by weight()")
        dtype = dtype or _NUMPY_DTYPES.get(str(data.dtype), str(data.dtype))
        return self._constant(Constant(name, TensorType(dtype, tuple(data.shape)), data))

    def weight(self, name: str, quantized: Any) -> Constant:
        """Adds a quantized weight (encodings.Quantized). Operations take it as they take a plain one of its type and shape."""
        if not hasattr(quantized, "layout"):
            raise IRError(f"constant {name!r}: a {type(quantized).__name__} is no Quantized; plain arrays are added by constant()")
        return self._constant(Constant(name, TensorType(quantized.dtype, tuple(quantized.shape), quantized.layout), quantized))

    def file(self, name: str, kind: Union[str, FileKind] = "", *, size_bytes: int = 0, digest: Optional[bytes] = None) -> str:
        """Says what is known of a file that weights lie in: its kind ("safetensors", "gguf", "accx"; by default what its name ends in),
        size, and digest."""
        self._new(self.files, name, "file")
        wanted = kind if isinstance(kind, FileKind) else (kind or name.rpartition(".")[2]).upper()
        try:
            found = wanted if isinstance(wanted, FileKind) else FileKind[wanted]
        except KeyError:
            raise IRError(f"file {name!r}: its kind is safetensors, gguf or accx, not {kind or name.rpartition('.')[2]!r}") from None
        self.files[name] = WeightFile(name, found, size_bytes, digest)
        return name

    def external(
        self, name: str, dtype: str, shape: Sequence[int], *, layout: str = "plain", group: int = 0,
        components: Mapping[str, str] = MappingProxyType({}), file: str = "", tensor: str = "", digest: Optional[bytes] = None,
        by_name: bool = False, shard: Optional[Shard] = None,
    ) -> Constant:  # fmt: skip
        """Adds a weight whose bytes are outside the bundle and not known here (External says where). `shape` is that of the tensor; with
        a shard the weight is a rank's part of it. `layout`: its encoding, with `group` where that is free and the types of
        `components` by role where they are."""
        where, full = f"constant {name!r}", tuple(int(size) for size in shape)
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
            from .encodings import declared

            try:
                data = declared(layout, full, group=group, dtype=dtype, components=components)
            except ValueError as error:
                raise IRError(f"{where}: {error}") from None
        return self._constant(Constant(name, TensorType(dtype, full, layout), data, External(file, tensor, digest, by_name, shard, extent)))

    def state(self, name: str, dtype: str, shape: Sequence[Size], *, fill_pattern: int = 0) -> State:
        """Declares memory of a session; its dimensions are sizes or expressions of SESSION symbols."""
        self._new(self.states, name, "state")
        made = State(name, TensorType(dtype, tuple(shape)), fill_pattern)
        self.states[name] = made
        return made

    def function(self, name: str, *, internal: bool = False, prepare: bool = False, doc: str = "") -> Function:
        self._new(self.functions, name, "function")
        made = Function(self, name, internal, prepare, doc)
        self.functions[name] = made
        return made

    def ranges(self) -> Dict[str, Tuple[int, int]]:
        return {s.name: (s.minimum, s.maximum) for s in self.symbols.values()}

    def __str__(self) -> str:
        from .printer import print_module

        return print_module(self)


_NUMPY_DTYPES = {
    "bool": "bool", "int8": "i8", "uint8": "u8", "int32": "i32", "uint32": "u32", "int64": "i64", "float16": "f16",
    "float32": "f32", "float64": "f64",
}  # fmt: skip


# ---- The verifier ----------------------------------------------------------------------------------------------------


def verify(module: Module) -> None:
    """Raises IRError unless the whole module keeps every rule."""
    for function in module.functions.values():
        verify_function(function)


def verify_function(function: Function) -> None:
    known = {id(i.value) for i in function.inputs if i.value is not None}
    known |= {id(value) for value in function.constants.values()}
    for value in function.constants.values():
        if function.module.constants.get(value.constant.name) is not value.constant:
            raise IRError(f"function {function.name!r}: constant {value.constant.name!r} is not in the module")
    _verify_block(function.body, known)
    for result in function.results:
        if id(result.value) not in known:
            raise IRError(f"function {function.name!r}: result {result.name!r} is not defined in its body")
        _verify_alias(function, result)
    _verify_symbols(function)


def _verify_alias(function: Function, result: Result) -> None:
    if not result.alias:
        return
    found = [i for i in function.inputs if i.name == result.alias and i.access in ("donated", "read_write")]
    if not found or found[0].value.type != result.value.type:
        raise IRError(
            f"function {function.name!r}, result {result.name!r}: {result.alias!r} is no donated or read_write input of type "
            f"{result.value.type}"
        )


def _verify_block(block: Block, known: set) -> None:
    for op in block.ops:
        if op.block is not block:
            raise IRError(f"{op.where}: it stands in another block than it says")
        for operand in op.operands:
            if operand is not None and id(operand) not in known:
                raise IRError(f"{op.where}: operand {operand!r} is not defined before it")
        _verify_op(op)
        for region in op.regions:
            inner = known | {id(value) for value in region.args}
            _verify_block(region, inner)
            for value in region.yields:
                if id(value) not in inner:
                    raise IRError(f"{op.where}: it yields {value!r}, which its body does not define")
        for result in op.results:
            if result.op is not op or id(result) in known:
                raise IRError(f"{op.where}: result {result!r} is defined twice")
            known.add(id(result))


def _verify_op(op: Op) -> None:
    from . import ops

    if op.name in ("accrt.repeat", "accrt.cond"):
        wanted = [[r.type for r in op.results]] * len(op.regions)
        found = [[v.type for v in region.yields] for region in op.regions]
        if wanted != found:
            raise IRError(f"{op.where}: its bodies yield {[[str(t) for t in f] for f in found]}, not {[str(t) for t in wanted[0]]}")
        return
    types = ops.infer(op)
    if [r.type for r in op.results] != types:
        raise IRError(f"{op.where}: results of types {[str(t) for t in types]} follow, it has {[str(r.type) for r in op.results]}")


def verify_optional(function: Function) -> None:
    """Optional inputs stand only where a condition says that they are there: a call without one has nothing to read."""
    missing = {id(i.value): (index, i.name) for index, i in enumerate(function.inputs) if i.optional}
    if missing:
        _verify_optional(function, function.body, missing)
        for result in function.results:
            _refuse_optional(function, result.value, missing, f"result {result.name!r}")


def _refuse_optional(function: Function, value: Optional[Value], missing: Mapping[int, Tuple[int, str]], what: str) -> None:
    if id(value) in missing:
        name = missing[id(value)][1]
        raise IRError(
            f"function {function.name!r}: the optional input {name!r} is used by {what}, outside of cond(f.present({name}), ...): "
            "a call without it has no value there"
        )


def _verify_optional(function: Function, block: Block, missing: Mapping[int, Tuple[int, str]]) -> None:
    for op in block.ops:
        what = f"operation {op.name}" + (f" ({op.label})" if op.label else "")
        for operand in op.operands:
            _refuse_optional(function, operand, missing, what)
        for region, taken in zip(op.regions, (True, False)):
            inner = missing
            if op.name == "accrt.cond":
                inner = {key: at for key, at in missing.items() if not _says_present(op.attrs["condition"], at[0], taken)}
            _verify_optional(function, region, inner)
            for value in region.yields:
                _refuse_optional(function, value, inner, f"what {what} yields")


def _says_present(condition: Size, index: int, taken: bool) -> bool:
    """Whether the branch is one that no call without the input takes."""
    value = ex.known(condition, index, 0)
    return value is not None and bool(value) != taken


def verify_adapters(module: Module) -> None:
    """Slots are the bundle's: an input's name means one tensor in all functions, a tensor is one input's, and of a pair both have a slot."""
    inputs: Dict[str, Input] = {}
    slots: Dict[str, str] = {}
    for function, i in ((function, i) for function in module.functions.values() for i in function.inputs):
        first, where = inputs.setdefault(i.name, i), f"function {function.name!r}, input {i.name!r}"
        if (i.adapter, i.scaled) != (first.adapter, first.scaled):
            raise IRError(f"{where}: another function's input of this name has another adapter slot, or none")
        if i.adapter and slots.setdefault(i.adapter, i.name) != i.name:
            raise IRError(f"{where}: the adapter slot {i.adapter!r} is that of input {slots[i.adapter]!r}")
    for slot in slots:
        at = slot.rfind("lora_") + len("lora_")
        other = slot[:at] + slot[at : at + 1].translate(str.maketrans("ABab", "BAba")) + slot[at + 1 :] if at >= len("lora_") else slot
        if other not in slots:
            raise IRError(f"adapter slot {slot!r} is of a pair, and {other!r} is no input's")


def _verify_symbols(function: Function) -> None:
    known = function.module.symbols
    for op in function.body.walk():
        for value in op.results:
            for size in value.shape:
                for name in ex.symbols_of(size):
                    if name not in known:
                        raise IRError(f"{op.where}: symbol {name!r} is not in the module")
