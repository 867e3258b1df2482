"""Functions: signatures, slots, and the commands of their bodies."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple, Union

from .common import (
    ACCESSES, BIG_ALIGN, FEATURE_FUNCTION_TARGET, MAX_RANK, OPCODES, AliasKind, ArgumentKind, BundleError, Encoding, Opcode, OperandKind,
    check_name, dtype_id, whole,
)  # fmt: skip
from .expressions import Expr, Size, constant, nonnegative, present
from .kernels import Kernel, Parameter

if TYPE_CHECKING:
    from .extras import Location
    from .model import BundleWriter, Constant, State

# ---- What commands refer to ----------------------------------------------------------------------


@dataclass(frozen=True)
class Scalar:
    """The bits of a SCALAR argument, little-endian."""

    data: bytes


def scalar(value: Any, dtype: str) -> Scalar:
    """A number as a scalar argument of the given type."""
    codes = {"bool": "?", "i8": "b", "i16": "h", "i32": "i", "i64": "q", "u8": "B", "u16": "H", "u32": "I", "u64": "Q",
             "f16": "e", "f32": "f", "f64": "d"}  # fmt: skip
    if dtype not in codes:
        raise BundleError(f"no scalar of type {dtype!r}")
    try:
        return Scalar(struct.pack("<" + codes[dtype], value))
    except (struct.error, OverflowError) as error:
        raise BundleError(f"{value!r} as a scalar of type {dtype}: {error}") from error


@dataclass(frozen=True)
class Range:
    """Bytes of a slot, and what a command does to them. `size` None: to the slot's end."""

    slot: "Slot"
    access: str
    offset: Size = 0
    size: Optional[Size] = None

    def tensor(self, dtype: str, shape: Sequence[Size], strides: Optional[Sequence[Size]] = None) -> "TensorRange":
        """The range seen as a tensor, for TENSOR parameters; strides in elements, row-major if not
        given."""
        if strides is None:
            steps: List[Size] = []
            step: Size = 1
            for size in reversed(tuple(shape)):
                steps.append(step)
                step = step * size
            strides = tuple(reversed(steps))
        if len(shape) != len(strides) or len(shape) > MAX_RANK:
            raise BundleError(f"a tensor of shape {tuple(shape)} with strides {tuple(strides)}; ranks up to {MAX_RANK}")
        return TensorRange(self, dtype, tuple(shape), tuple(strides))


@dataclass(frozen=True)
class TensorRange:
    range: Range
    dtype: str
    shape: Tuple[Size, ...]
    strides: Tuple[Size, ...]


class Slot:
    """A storage of one function: an argument, a constant, a state, or the transient arena. Compared
    by identity."""

    def __init__(self, function: "Function", kind: int, target: Any, name: str, component: int = 0):
        self.function, self.kind, self.target, self.name, self.component = function, kind, target, name, component

    def __repr__(self) -> str:
        return f"<slot {self.name!r} of {self.function.name!r}>"

    def read(self, offset: Size = 0, size: Optional[Size] = None) -> Range:
        return Range(self, "read", offset, size)

    def write(self, offset: Size = 0, size: Optional[Size] = None) -> Range:
        return Range(self, "write", offset, size)

    def update(self, offset: Size = 0, size: Optional[Size] = None) -> Range:
        """Read and written."""
        return Range(self, "read_write", offset, size)


# ---- Functions and commands ----------------------------------------------------------------------

_OPCODE_WORDS = {opcode: word for opcode, word in enumerate(OPCODES) if word}
BUFFER, TENSOR, SCALAR, SYMBOL, WORKSPACE, ABSENT = OperandKind
READ, READ_WRITE, DONATED, RESULT, SCALAR_ARGUMENT = ArgumentKind
ARGUMENT_ACCESS = {"read": READ, "read_write": READ_WRITE, "donated": DONATED}


class Command:
    """One command of a block. Pass it as `after` to commands that must follow it."""

    def __init__(self, block: "Block", opcode: int, name: str, after: Iterable["Command"]):
        self.block, self.opcode, self.name = block, opcode, name
        self.index = len(block.commands)
        self.location: Optional["Location"] = None
        self.required = False  # of opcodes that this writer does not know
        self.fields: Dict[str, Any] = {}
        self.predecessors = sorted({self._predecessor(command) for command in after})

    def _predecessor(self, command: "Command") -> int:
        if not isinstance(command, Command) or command.block is not self.block:
            raise BundleError(f"{self}: a predecessor must be an earlier command of the same block, not {command!r}")
        return command.index

    def __repr__(self) -> str:
        kind = _OPCODE_WORDS.get(self.opcode, f"opcode {self.opcode}")
        label = f" {self.name!r}" if self.name else ""
        return f"function {self.block.function.name!r}, command {self.index} ({kind}{label})"

    def at(self, location: "Location") -> "Command":
        """Says where the command comes from (`BundleWriter.location`), for traces and messages.
        Returns the command."""
        self.location = location
        return self

    @property
    def body(self) -> "Block":
        """The block that a repeat runs."""
        return self.fields["block"]

    @property
    def then(self) -> "Block":
        return self.fields["then"]

    @property
    def otherwise(self) -> "Block":
        """The else block of a branch; made when it is first used."""
        if self.fields["else"] is None:
            self.fields["else"] = Block(self.block.function)
        return self.fields["else"]


class Block:
    """Commands that start as soon as their predecessors (`after`) are complete; without any, when
    the block starts."""

    def __init__(self, function: "Function"):
        self.function = function
        self.commands: List[Command] = []

    def _add(self, opcode: int, name: str, after: Iterable[Command], **fields: Any) -> Command:
        command = Command(self, opcode, name, after)
        command.fields = fields
        self.commands.append(command)
        return command

    def _where(self, what: str, name: str) -> str:
        return f"function {self.function.name!r}, command {len(self.commands)} ({what} {name!r})"

    def dispatch(
        self,
        kernel: Kernel,
        arguments: Mapping[str, Any],
        grid: Sequence[Size] = (1, 1, 1),
        *,
        after: Iterable[Command] = (),
        name: str = "",
    ) -> Command:
        """Launches a kernel. `arguments` by parameter name: Range for buffers and workspaces,
        TensorRange for tensors, `scalar(...)` (or a plain int or float) for scalars, int or Expr
        for symbols; an optional buffer may be left out."""
        where = self._where("dispatch of kernel", kernel.name)
        unknown = set(arguments) - {p.name for p in kernel.parameters}
        if unknown:
            raise BundleError(f"{where}: the kernel has no parameter {sorted(unknown)[0]!r}")
        if len(grid) != 3:
            raise BundleError(f"{where}: the grid needs three sizes, not {tuple(grid)}")
        operands = []
        for parameter in kernel.parameters:
            operands.append(self._operand(parameter, arguments.get(parameter.name), f"{where}, parameter {parameter.name!r}"))
        sizes = tuple(nonnegative(size, f"{where}: {axis} of the grid") for size, axis in zip(grid, "xyz"))
        return self._add(Opcode.DISPATCH, name or kernel.name, after, kernel=kernel, operands=operands, grid=sizes)

    def _operand(self, parameter: Parameter, value: Any, where: str) -> Tuple[int, Any]:
        if value is None:
            if parameter.kind == "buffer" and parameter.optional:
                return ABSENT, None
            raise BundleError(f"{where}: no argument is given")
        if parameter.kind == "scalar":
            return SCALAR, self._scalar_bits(parameter, value, where)
        if parameter.kind == "symbol":
            return SYMBOL, constant(value)
        kinds = {"buffer": (Range, BUFFER), "workspace": (Range, WORKSPACE), "tensor": (TensorRange, TENSOR)}
        wanted, operand = kinds[parameter.kind]
        if not isinstance(value, wanted):
            raise BundleError(f"{where}: a {parameter.kind} needs a {wanted.__name__}, not {type(value).__name__}")
        span = value.range if operand == TENSOR else value
        if span.access != parameter.access:
            raise BundleError(f"{where}: the kernel declares {parameter.access}, the range is for {span.access}")
        self._check_range(span, where)
        for index, size in enumerate(value.shape if operand == TENSOR else ()):
            nonnegative(size, f"{where}: dimension {index} of the tensor")
        if operand == WORKSPACE and span.slot.kind != 3:
            raise BundleError(f"{where}: a workspace lies in the transient arena, not in {span.slot}")
        return operand, value

    @staticmethod
    def _scalar_bits(parameter: Parameter, value: Any, where: str) -> int:
        size = parameter.size_bytes
        if isinstance(value, bool) or not isinstance(value, (Scalar, int, float)):
            raise BundleError(f"{where}: a scalar needs scalar(...), an int or a float, not {value!r}")
        if isinstance(value, int):
            if not -(1 << (8 * size - 1)) <= value < 1 << (8 * size):
                raise BundleError(f"{where}: {value} does not fit {size} bytes")
            return value & ((1 << (8 * size)) - 1)
        if isinstance(value, float):
            if size not in (4, 8):
                raise BundleError(f"{where}: a float for a scalar of {size} bytes; use scalar(value, dtype)")
            value = scalar(value, "f32" if size == 4 else "f64")
        if len(value.data) != size:
            raise BundleError(f"{where}: {len(value.data)} bytes for a scalar of {size}")
        return int.from_bytes(value.data, "little")

    def _check_range(self, span: Range, where: str) -> None:
        if not isinstance(span, Range) or span.access not in ACCESSES:
            raise BundleError(f"{where}: {span!r} is no range of a slot")
        slot = span.slot
        if slot.function is not self.function:
            raise BundleError(f"{where}: {slot} belongs to another function")
        writes = span.access in ("write", "read_write")
        if slot.kind == 1 and writes:
            raise BundleError(f"{where}: constant {slot.name!r} is read only")
        if slot.kind == 0 and writes and slot.target.kind == READ:
            raise BundleError(f"{where}: input {slot.name!r} is read only; declare it read_write or donated to write it")
        if slot.kind == 0 and slot.target.kind == SCALAR_ARGUMENT:
            raise BundleError(f"{where}: {slot.name!r} is a scalar and has no storage")
        nonnegative(span.offset, f"{where}: the offset in {slot.name!r}")
        if span.size is not None:
            nonnegative(span.size, f"{where}: the size of the range of {slot.name!r}")

    def copy(
        self,
        source: Range,
        target: Range,
        extent: Union[Size, Sequence[Size]],
        source_strides: Sequence[Size] = (0, 0),
        target_strides: Sequence[Size] = (0, 0),
        *,
        after: Iterable[Command] = (),
        name: str = "",
    ) -> Command:
        """Copies bytes; or rows of bytes, `extent` = (bytes, rows) or (bytes, rows, planes), with
        byte strides between rows and between planes. The ranges' sizes follow from the extents and
        are not given. Rows of the target may not overlap; those of the source may (a stride of 0
        repeats a row)."""
        where = self._where("copy", name)
        extents = [extent] if isinstance(extent, (int, Expr)) else list(extent)
        if not 1 <= len(extents) <= 3:
            raise BundleError(f"{where}: one to three extents, not {len(extents)}")
        for span, access in ((source, "read"), (target, "write")):
            self._check_range(span, where)
            if span.access != access or span.size is not None:
                raise BundleError(f"{where}: {span} must be for {access} and without a size")
        full = [nonnegative(e, f"{where}: extent {i}") for i, e in enumerate(extents)] + [constant(1)] * (3 - len(extents))
        steps = []
        for what, strides in (("source", source_strides), ("target", target_strides)):
            padded = list(strides) + [0] * (2 - len(strides))
            live = [s if i + 1 < len(extents) else 0 for i, s in enumerate(padded[:2])]
            steps.append(tuple(nonnegative(s, f"{where}: stride {i} of the {what}") for i, s in enumerate(live)))
        return self._add(Opcode.COPY, name, after, source=source, target=target, extent=full, source_stride=steps[0],
                         target_stride=steps[1])  # fmt: skip

    def check(self, offset: Size, size: Size, limit: Size, slot: Slot, *, after: Iterable[Command] = (), name: str = "") -> Command:
        """Checks at each call that `size` elements from `offset` on lie in a dimension of `limit`.
        If they do not, the call is refused before anything runs; the message has `name`, which
        should say what is checked. The check is a copy of no bytes within `slot`, which must be
        writable, and costs no command."""
        where = self._where("check", name)
        left = constant(limit) - offset - size
        sizes = [constant(0), constant(offset), left, constant(size), constant(limit)]
        if left.op == "sub" and all(e.op == "constant" for e in sizes[1:2] + sizes[3:]):
            sizes[2] = constant(sizes[4].value - sizes[1].value - sizes[3].value)
        for what, value in zip(("offset", "what is left", "size", "limit"), sizes[1:]):
            nonnegative(value, f"{where}: {what}")
        for span in (slot.read(), slot.write()):
            self._check_range(span, where)
        fields = {"source": slot.read(), "target": slot.write(), "extent": sizes[:3], "source_stride": sizes[3:],
                  "target_stride": (constant(0), constant(0))}  # fmt: skip
        return self._add(Opcode.COPY, name, after, **fields)

    def fill(
        self, target: Range, pattern: int = 0, pattern_bytes: int = 1, *, after: Iterable[Command] = (), name: str = ""
    ) -> Command:
        """Fills with a repeated pattern of 1, 2, 4 or 8 bytes."""
        where = self._where("fill", name)
        self._check_range(target, where)
        whole(pattern, 0, (1 << 64) - 1, f"{where}: pattern")
        if target.access != "write" or pattern_bytes not in (1, 2, 4, 8) or not 0 <= pattern < 1 << (8 * pattern_bytes):
            raise BundleError(f"{where}: pattern {pattern} of {pattern_bytes} bytes into a range for {target.access}")
        return self._add(Opcode.FILL, name, after, target=target, pattern=pattern, pattern_bytes=pattern_bytes)

    def barrier(self, *, name: str = "") -> Command:
        """All later commands wait for all earlier ones."""
        return self._add(Opcode.BARRIER, name, ())

    def call(
        self, function: "Function", arguments: Mapping[str, Any], *, after: Iterable[Command] = (), name: str = ""
    ) -> Command:
        """Runs another function in place. `arguments` by name, inputs and results: Range for
        tensors, int or Expr for scalars; an optional input may be left out."""
        where = self._where("call of", function.name)
        known = {a.name for a in function.arguments}
        if len(known) != len(function.arguments):
            raise BundleError(f"{where}: an input and a result have the same name, so it cannot be called by name")
        if set(arguments) - known:
            raise BundleError(f"{where}: it has no argument {sorted(set(arguments) - known)[0]!r}")
        operands = [self._call_operand(a, arguments.get(a.name), f"{where}, argument {a.name!r}") for a in function.arguments]
        return self._add(Opcode.CALL, name or function.name, after, function=function, operands=operands)

    def _call_operand(self, argument: "Argument", value: Any, where: str) -> Tuple[int, Any]:
        if value is None:
            if argument.optional:
                return ABSENT, None
            raise BundleError(f"{where}: nothing is given")
        if argument.kind == SCALAR_ARGUMENT:
            return SYMBOL, constant(value)
        if not isinstance(value, Range):
            raise BundleError(f"{where}: a Range is needed, not {type(value).__name__}")
        access = {READ: "read", RESULT: "write"}.get(argument.kind, "read_write")
        if value.access != access:
            raise BundleError(f"{where}: the callee needs {access}, the range is for {value.access}")
        self._check_range(value, where)
        return BUFFER, value

    def repeat(self, count: Size, *, after: Iterable[Command] = (), name: str = "") -> Command:
        """Runs the block `.body` of the returned command `count` times, in order;
        `induction(depth)` is the iteration."""
        times = nonnegative(count, f"{self._where('repeat', name)}: the count")
        return self._add(Opcode.REPEAT, name, after, count=times, block=Block(self.function))

    def branch(self, condition: Size, *, after: Iterable[Command] = (), name: str = "") -> Command:
        """Runs the block `.then` where the condition is not 0, else `.otherwise`; decided when the
        plan is made."""
        fields = {"condition": constant(condition), "then": Block(self.function), "else": None}
        return self._add(Opcode.BRANCH, name, after, **fields)

    def marker(self, text: str, *, after: Iterable[Command] = ()) -> Command:
        """Text for traces."""
        return self._add(Opcode.MARKER, "", after, text=text)


    def raw(
        self, opcode: int, data: bytes, *, after: Iterable[Command] = (), name: str = "", required: bool = False
    ) -> Command:
        """A command that this writer does not know, by its own fields. A reader that does not know
        the command skips it. If it is `required`, such a reader does not run the function, which
        must then have a required feature."""
        where = self._where(f"opcode {opcode}", name)
        if opcode in _OPCODE_WORDS or not 0 < opcode <= 0xFFFF or len(data) % 8:
            raise BundleError(f"{where}: {len(data)} bytes; opcodes from {len(OPCODES)} up, bytes in multiples of 8")
        made = self._add(opcode, name, after, raw=bytes(data))
        made.required = required
        return made


@dataclass(eq=False)
class Argument:
    name: str
    kind: int
    dtype: str
    shape: Tuple[Expr, ...]
    encoding: Encoding = Encoding.PLAIN
    optional: bool = False
    symbol: Optional[str] = None
    alias_kind: AliasKind = AliasKind.NONE
    alias_input: Optional["Argument"] = None
    constant: Optional[Constant] = None
    doc: str = ""
    group_elements: int = 0


class Function:
    """A function of the bundle: its signature, its slots and its commands (`body`)."""

    def __init__(
        self, bundle: "BundleWriter", name: str, prepare: bool, internal: bool, doc: str, target: str, required_features: int
    ):
        self.bundle, self.name, self.prepare, self.internal, self.doc = bundle, name, prepare, internal, doc
        self.target = target
        self.required_features = required_features | (FEATURE_FUNCTION_TARGET if target else 0)
        self.inputs: List[Argument] = []
        self.results: List[Argument] = []
        self.slots: Dict[Tuple[int, int, int], Slot] = {}
        self.transient_size: Expr = constant(0)
        self.transient_align = 1
        self.body = Block(self)

    def __repr__(self) -> str:
        return f"<function {self.name!r}" + (f" for {self.target}>" if self.target else ">")

    @property
    def arguments(self) -> List[Argument]:
        return self.inputs + self.results

    def _argument(self, among: List[Argument], argument: Argument, what: str) -> Slot:
        where = f"function {self.name!r}, {what} {argument.name!r}"
        if argument.encoding > Encoding.OPAQUE and argument.constant is None:
            raise BundleError(f"{where}: quantized are only constants and the arguments of prepare functions")
        if not argument.name or any(a.name == argument.name for a in among):
            raise BundleError(f"{where}: the name is empty or used twice")
        check_name(argument.name, f"function {self.name!r}, {what}")
        dtype_id(argument.dtype, where)
        if len(argument.shape) > MAX_RANK:
            raise BundleError(f"{where}: rank {len(argument.shape)}; at most {MAX_RANK}")
        for index, size in enumerate(argument.shape):
            nonnegative(size, f"{where}: dimension {index}")
        among.append(argument)
        slot = Slot(self, 0, argument, argument.name)
        self.slots[(0, id(argument), 0)] = slot
        return slot

    def input(
        self,
        name: str,
        dtype: str,
        shape: Sequence[Size],
        *,
        access: str = "read",
        optional: bool = False,
        encoding: Encoding = Encoding.PLAIN,
        doc: str = "",
    ) -> Slot:
        """Adds a tensor input. `access`: read, read_write (updated in place) or donated (may be
        overwritten). A dimension that is a bare symbol binds it; any other is checked at each
        call."""
        if access not in ARGUMENT_ACCESS:
            raise BundleError(f"function {self.name!r}, input {name!r}: no access {access!r}")
        dims = tuple(constant(size) for size in shape)
        made = Argument(name, ARGUMENT_ACCESS[access], dtype, dims, encoding, optional, doc=doc)
        return self._argument(self.inputs, made, "input")

    def scalar(self, name: str, symbol: Expr, *, optional: bool = False, doc: str = "") -> None:
        """Adds an integer input that gives a symbol its value."""
        if not isinstance(symbol, Expr) or symbol.op != "symbol":
            raise BundleError(f"function {self.name!r}, scalar {name!r}: {symbol!r} is no symbol")
        made = Argument(name, SCALAR_ARGUMENT, "i64", (), Encoding.PLAIN, optional, symbol=symbol.value, doc=doc)
        self._argument(self.inputs, made, "scalar")

    def result(
        self,
        name: str,
        dtype: str,
        shape: Sequence[Size],
        *,
        alias: Optional[Slot] = None,
        alias_kind: AliasKind = AliasKind.MAY,
        encoding: Encoding = Encoding.PLAIN,
        doc: str = "",
    ) -> Slot:
        """Adds a tensor result. `alias`: an input whose storage it may or must share."""
        dims = tuple(constant(size) for size in shape)
        made = Argument(name, RESULT, dtype, dims, encoding, doc=doc)
        if alias is not None:
            if not isinstance(alias, Slot):
                raise BundleError(
                    f"function {self.name!r}, result {name!r}: alias is {alias!r}; it must be what input() returned"
                )
            if alias.function is not self or alias.target not in self.inputs or alias_kind == AliasKind.NONE:
                raise BundleError(f"function {self.name!r}, result {name!r}: {alias} is no input to share storage with")
            if alias.target.kind not in (READ_WRITE, DONATED):
                raise BundleError(f"function {self.name!r}, result {name!r}: input {alias.name!r} is read only")
            made.alias_kind, made.alias_input = AliasKind(alias_kind), alias.target
        return self._argument(self.results, made, "result")

    def source(self, name: str, value: Constant) -> Slot:
        """For a prepare function: adds a stored or external constant that the function reads. The
        slot is the constant's first component; `constant(value, component)` gives those of the
        others."""
        if not self.prepare or value.prepared:
            raise BundleError(f"function {self.name!r}, source {name!r}: prepare functions read constants stored in the bundle")
        dims = tuple(constant(size) for size in value.shape)
        made = Argument(name, READ, value.dtype, dims, value.encoding, constant=value, group_elements=value.group_elements)
        return self._argument(self.inputs, made, "source")

    def product(self, name: str, value: Constant) -> Slot:
        """For a prepare function: adds a prepared constant that the function makes."""
        if not self.prepare or not value.prepared:
            raise BundleError(f"function {self.name!r}, product {name!r}: prepare functions make prepared constants")
        dims = tuple(constant(size) for size in value.shape)
        made = Argument(name, RESULT, value.dtype, dims, value.encoding, constant=value, group_elements=value.group_elements)
        return self._argument(self.results, made, "product")

    def commands(self) -> Iterable[Command]:
        """All commands, those of nested blocks too."""
        pending = [self.body]
        while pending:
            block = pending.pop()
            for command in block.commands:
                yield command
                pending.extend(nested_blocks(command))

    def present(self, slot: Slot) -> Expr:
        """1 when the optional input was given, else 0."""
        if slot.function is not self or slot.target not in self.inputs or not slot.target.optional:
            raise BundleError(f"function {self.name!r}: {slot} is no optional input")
        return present(self.inputs.index(slot.target))

    def _slot(self, kind: int, target: Any, name: str, component: int = 0) -> Slot:
        key = (kind, id(target), component)
        if key not in self.slots:
            self.slots[key] = Slot(self, kind, target, name, component)
        return self.slots[key]

    def constant(self, value: Constant, component: int = 0) -> Slot:
        """The slot of a constant's component, by its place among them."""
        if not 0 <= component < len(value.components):
            raise BundleError(f"function {self.name!r}: constant {value.name!r} has no component {component}")
        return self._slot(1, value, value.name, component)

    def state(self, value: State) -> Slot:
        """The slot of a state."""
        return self._slot(2, value, value.name)

    def transient(self, size_bytes: Optional[Size] = None, align: int = 256) -> Slot:
        """The slot of the transient arena: memory for the time of one call. The size may be given
        later."""
        if size_bytes is not None:
            self.transient_size = nonnegative(size_bytes, f"function {self.name!r}: the size of its transient memory")
            if align < 1 or align & (align - 1) or align > BIG_ALIGN:
                raise BundleError(f"function {self.name!r}: transient memory aligned to {align}")
            self.transient_align = align
        return self._slot(3, self, "transient memory")


def nested_blocks(command: Command) -> List[Block]:
    """Blocks that a command holds, those without commands left out (but for a repeat's body, which
    is always there)."""
    if command.opcode == Opcode.REPEAT:
        return [command.fields["block"]]
    if command.opcode == Opcode.BRANCH:
        return [b for b in (command.fields["then"], command.fields["else"]) if b is not None and b.commands]
    return []
