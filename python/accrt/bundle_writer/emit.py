"""Hands a bundle's parts to the C writer (accrt/write/bundle_writer.h), which encodes, checks and
writes them.

It knows no byte of the format. Mistakes that the C writer finds come back as BundleError, in its
words.
"""

from __future__ import annotations

import ctypes
import errno
import io
import os
import struct
from _thread import allocate_lock
from typing import TYPE_CHECKING, Any, BinaryIO, Dict, Iterable, List, Optional, Sequence, Tuple, Union

from .common import (
    ACCESSES, ADAPTER_SCALED, BINDING_BY_NAME, COMMAND_FIELDS, DTYPES, EXPRESSION_OPS, FEATURE_FUNCTION_TARGET, MAX_RANK, PARAMETER_KINDS,
    PREDICATES, EXTERNAL, BundleError, Encoding, Opcode, Role,
)  # fmt: skip
from .expressions import Expr, Size, constant, same
from .functions import (
    ABSENT, SCALAR, SCALAR_ARGUMENT, SYMBOL, TENSOR, Argument, Block, Command, Function, Range, Slot, nested_blocks,
)  # fmt: skip
from .target import TargetError

if TYPE_CHECKING:
    from .extras import Location
    from .kernels import Kernel, Variant
    from .model import BundleWriter, Constant

#: How messages of the verifier begin, which reads what would be written.
_WHOLE = "bundle: "
_POINTER = struct.Struct("P")
_OPS = {name: number for number, name in enumerate(EXPRESSION_OPS)}


class Signer:
    """What `BundleWriter.write` signs with. `accrt.trust.SigningKey` is one."""

    #: The 32 bytes of the public Ed25519 key.
    public_key: bytes

    def sign(self, message: bytes) -> bytes:
        """The 64 bytes of the signature."""
        raise NotImplementedError


def text(value: Any) -> bytes:
    """A string as C takes it."""
    try:
        encoded: bytes = value.encode("utf-8")
    except (AttributeError, UnicodeEncodeError):
        raise BundleError(f"{value!r:.80} stands where a text is, and is none that UTF-8 can write") from None
    if b"\0" in encoded:
        raise BundleError(f"a string may not hold NUL: {encoded!r:.80}")
    return encoded


class Views:
    """Memory of constants that C reads while it writes: up to `count` buffers, which can neither be
    freed nor resized meanwhile."""

    def __init__(self, count: int) -> None:
        from ..tensor import _PyBuffer, _pyapi

        self.api, self.each = _pyapi, ctypes.sizeof(_PyBuffer)
        self.buffers = (_PyBuffer * max(count, 1))()
        self.first = self.buffers[0]
        self.used = 0

    def address(self, data: memoryview) -> int:
        at = self.used * self.each
        self.api.PyObject_GetBuffer(data, ctypes.byref(self.first, at), 0)
        self.used += 1
        found: int = _POINTER.unpack_from(self.buffers, at)[0]
        return found

    def release(self) -> None:
        for index in range(self.used):
            self.api.PyBuffer_Release(ctypes.byref(self.first, index * self.each))
        self.used = 0


class Emission:
    """One C writer with the content of a bundle. Use as a context manager: what it holds is given
    back at its end."""

    def __init__(self, bundle: "BundleWriter"):
        from .. import _ffi, _library
        from ..tensor import host_bytes

        self.host_bytes = host_bytes
        self.views = Views(sum(len(item.components) for item in bundle._constants.values()))
        self.ffi, self.struct, self.last_error = _ffi, _library.struct, _library.last_error
        self.lib = _library.lib.write()
        self.kept: List[Any] = []  # what C has pointers to
        self.ids: Dict[int, int] = {}  # of objects, by id()
        self.numbers: Dict[int, int] = {}
        self.symbols: Dict[str, int] = {}
        self.locations: Dict["Location", int] = {}
        self.failure: Optional[BaseException] = None  # of a callback
        self._out = ctypes.c_uint32()
        self._out_at = ctypes.byref(self._out)
        # One struct for all constants: there may be tens of thousands.
        self._record = self.struct(_ffi.accrt_writer_constant)
        parts = (_ffi.accrt_writer_component * len(Role))()
        self._record.components = parts
        self._record_at, self._shape, self._record_parts = ctypes.byref(self._record), self._record.shape, [(p, p.bytes) for p in parts]
        # of the writer: a thread that Ctrl-C has left may still write
        self.uses, self.guard = 1, allocate_lock()
        self.writer = _ffi.accrt_bundle_writer_p()
        options = self.struct(_ffi.accrt_bundle_writer_options)
        if bundle._target is not None:
            options.target = ctypes.pointer(bundle._target.raw)
        self._check(self.lib.accrt_bundle_writer_create(ctypes.byref(options), ctypes.byref(self.writer)))
        try:
            self._parts(bundle)
            self._functions(bundle)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        with self.guard:
            self.uses -= 1
            if self.uses:
                return
        self.lib.accrt_bundle_writer_release(self.writer)
        self.writer = None
        self.views.release()

    def __enter__(self) -> "Emission":
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    # -- calls

    def _check(self, status: int, path: Optional[str] = None) -> None:
        if status == 0:
            return
        if self.failure is not None:
            raise self.failure
        error = self.last_error(status)
        if status == self.ffi.ACCRT_ERROR_IO and error.driver_code:
            why = error.message.rpartition(": ")[2]  # strerror's text, or what it has no words for
            raise OSError(error.driver_code, why, path) if path else OSError(error.driver_code, error.message)
        if status == self.ffi.ACCRT_ERROR_OUT_OF_MEMORY:
            raise MemoryError(error.message)
        message = error.message[len(_WHOLE) :] if error.message.startswith(_WHOLE) else error.message
        raise (TargetError if status == self.ffi.ACCRT_ERROR_UNSUPPORTED else BundleError)(message) from None

    def _call(self, name: str, *arguments: Any) -> None:
        try:
            status = getattr(self.lib, "accrt_bundle_writer_" + name)(self.writer, *arguments)
        except ctypes.ArgumentError as error:  # what a record holds is of another type
            raise BundleError(f"{name.replace('_', ' ')}: {error}") from None
        self._check(status)

    def _id(self, name: str, *arguments: Any) -> int:
        self._call(name, *arguments, self._out_at)
        return self._out.value

    def _array(self, kind: Any, items: Sequence[Any]) -> Any:
        """Of C structs or numbers, for the length of a call."""
        return (kind * len(items))(*items) if items else None

    def _bytes(self, data: Any, where: str) -> Any:
        """Memory that C reads while it writes."""
        try:
            address, size, owner = self.host_bytes(data, False)
        except (TypeError, ValueError) as problem:
            raise BundleError(f"{where}: {problem}") from problem
        self.kept.append(owner)
        return self.ffi.accrt_writer_bytes(size_bytes=size, data=address)

    def _of(self, item: Any, where: Any, what: str) -> int:
        """The id of a part that must be of this bundle."""
        found = self.ids.get(id(item))
        if found is None:
            raise BundleError(f"{where}: {what} {item.name!r} belongs to another bundle")
        return found

    # -- parts beside functions

    def _parts(self, bundle: "BundleWriter") -> None:
        ffi = self.ffi
        for key, value in bundle._metadata.items():
            self._call("add_metadata", text(key), text(value))
        for extra in bundle._texts:
            self._call("add_string", text(extra))
        self._call("set_optional_features", bundle._optional_features)
        for s in bundle._symbols.values():
            made = self.struct(ffi.accrt_writer_symbol, symbol_class=s.symbol_class, name=text(s.name), minimum=s.minimum, maximum=s.maximum,
                               divisor=s.divisor, buckets=self._array(ctypes.c_int64, s.buckets), bucket_count=len(s.buckets),
                               flags=ffi.ACCRT_WRITER_SYMBOL_ZERO_MAXIMUM)  # fmt: skip
            self.symbols[s.name] = self._id("add_symbol", ctypes.byref(made))
        for f in bundle._files.values():
            digest = None if f.digest is None else (ctypes.c_ubyte * 16)(*f.digest)
            self.ids[id(f)] = self._id("add_file", text(f.name), f.kind, f.size_bytes, digest)
        for item in bundle._constants.values():
            self.ids[id(item)] = self._constant(item)
        for state in bundle._states.values():
            made = self.struct(ffi.accrt_writer_state, name=text(state.name), fill_pattern=state.fill_pattern,
                               type=self._type(state.dtype, state.encoding, 0, state.shape, Scope(self, f"state {state.name!r}")))  # fmt: skip
            self.ids[id(state)] = self._id("add_state", ctypes.byref(made))
        for shard in bundle._shards:
            # A constant that was taken out again has no id, and its shard goes with it.
            if id(shard.constant) in self.ids:
                segments = [ffi.accrt_writer_segment(s.begin, s.end, s.replicas) for s in shard.segments]
                self._call("add_shard", self.ids[id(shard.constant)], int(shard.axis is not None), shard.axis or 0, shard.degree, shard.extent,
                           self._array(ffi.accrt_writer_segment, segments), len(segments))  # fmt: skip
        for adapter in bundle._adapters.values():
            self._call("add_adapter", text(adapter.slot), text(adapter.input), ADAPTER_SCALED if adapter.scaled else 0)
        for asset in bundle._assets.values():
            data = self._bytes(asset.data, f"asset {asset.name!r}")
            self._call("add_asset", text(asset.name), text(asset.media_type), ctypes.byref(data))
        for raw in bundle._sections:
            made = self.struct(ffi.accrt_writer_section, type=raw.type, name=text(raw.name), record_bytes=raw.record_bytes,
                               record_count=raw.record_count, bytes=self._bytes(raw.data, f"section {raw.name!r}"),
                               flags=ffi.ACCRT_WRITER_SECTION_REQUIRED if raw.required else 0)  # fmt: skip
            self._call("add_section", ctypes.byref(made))
        for image in bundle._images:
            code = None if image.kind == ffi.ACCRT_IMAGE_PACK else ctypes.byref(self._bytes(image.data, f"image {image.name!r}"))
            self.ids[id(image)] = self._id("add_image", text(image.name), image.kind, code)
        for kernel in bundle._kernels.values():
            self._kernel(kernel)

    def _constant(self, item: "Constant") -> int:
        record, external = self._record, item.source == EXTERNAL
        record.source, record.name, record.dtype, record.encoding = item.source, text(item.name), DTYPES[item.dtype][0], item.encoding
        record.rank, record.group_elements, record.component_count = len(item.shape), item.group_elements, len(item.components)
        self._shape[: len(item.shape)] = item.shape
        for (target, given), part in zip(self._record_parts, item.components):
            target.role, target.dtype, given.size_bytes = part.role, DTYPES[part.dtype][0], part.size_bytes
            if part.data is not None and part.size_bytes:
                given.data = self.views.address(part.data)
        if external:
            record.tensor = text(item.tensor)
            record.file = 0 if item.file is None else self._of(item.file, f"constant {item.name!r}", "file")
            record.binding_flags = BINDING_BY_NAME if item.digest is None else 0
            record.digest = (ctypes.c_ubyte * 16)(*(item.digest or b""))
        number = self._id("add_constant", self._record_at)
        if external:
            record.tensor, record.file, record.binding_flags, record.digest = None, 0, 0, (ctypes.c_ubyte * 16)()
        return number

    def _kernel(self, kernel: "Kernel") -> None:
        ffi = self.ffi
        parameters = [ffi.accrt_writer_parameter(text(p.name), PARAMETER_KINDS[p.kind], ACCESSES[p.access], int(p.optional),
                                                 p.size_bytes if p.kind == "scalar" else 0, p.offset_bytes) for p in kernel.parameters]  # fmt: skip
        made = self.struct(ffi.accrt_writer_kernel, name=text(kernel.name), traits=kernel.traits, parameter_count=len(parameters),
                           parameters=self._array(ffi.accrt_writer_parameter, parameters), params_size_bytes=kernel.params_size_bytes,
                           local_memory_bytes=kernel.local_memory_bytes)  # fmt: skip
        self.ids[id(kernel)] = number = self._id("add_kernel", ctypes.byref(made))
        for variant in kernel.variants:
            self._call("add_variant", number, ctypes.byref(self._variant(kernel, variant)))

    def _variant(self, kernel: "Kernel", v: "Variant") -> Any:
        ffi = self.ffi
        predicates = [ffi.accrt_writer_predicate(text(p.parameter), PREDICATES[p.kind], 0, p.value) for p in v.predicates]
        made = self.struct(ffi.accrt_writer_variant, arch_kind=v.arch_kind, driver=text(v.driver), arch=text(v.arch), entry=text(v.entry),
                           image=self._of(v.image, f"kernel {kernel.name!r}", "image"), priority=v.priority, cpu_features=v.cpu_features,
                           required_features=v.required_features, predicates=self._array(ffi.accrt_writer_predicate, predicates),
                           predicate_count=len(predicates))  # fmt: skip
        if v.launch is not None:
            three = ctypes.c_uint32 * 3
            made.block, made.cluster = three(*v.launch.block), three(*v.launch.cluster)
            made.dynamic_shared_bytes, made.launch_traits = v.launch.dynamic_shared_bytes, v.launch.traits
        return made

    def _type(self, dtype: str, encoding: Encoding, group: int, shape: Sequence[Size], scope: "Scope") -> Any:
        dims = (ctypes.c_uint32 * MAX_RANK)(*map(scope.size, shape))
        return self.ffi.accrt_writer_type(DTYPES[dtype][0], encoding, group, len(shape), dims)

    # -- functions

    def _functions(self, bundle: "BundleWriter") -> None:
        """All signatures, then all bodies: a call needs the callee's arguments."""
        bodies = []
        for function in bundle._functions.values():
            made = self.struct(self.ffi.accrt_writer_function, flags=int(function.prepare) | int(function.internal) << 1, name=text(function.name),
                               doc=text(function.doc), target=text(function.target),
                               required_features=function.required_features & ~FEATURE_FUNCTION_TARGET)  # fmt: skip
            body = ctypes.c_uint32()
            number = self._id_and_body(made, body)
            self.ids[id(function)] = number
            scope = Scope(self, f"function {function.name!r}", function, number)
            bodies.append((function, scope, body.value))
            for argument in function.arguments:
                scope.slots[id(function.slots[(0, id(argument), 0)])] = self._argument(function, argument, scope)
        for function, scope, block in bodies:
            if function.transient_align != 1 or not same(function.transient_size, constant(0)):
                self._id("arena", scope.number, scope.size(function.transient_size), function.transient_align)
            self._block(function.body, block, scope)

    def _id_and_body(self, made: Any, body: ctypes.c_uint32) -> int:
        self._call("add_function", ctypes.byref(made), self._out_at, ctypes.byref(body))
        return self._out.value

    def _argument(self, function: Function, argument: Argument, scope: "Scope") -> int:
        made = self.struct(self.ffi.accrt_writer_argument, kind=argument.kind, name=text(argument.name), doc=text(argument.doc),
                           optional=int(argument.optional), alias_kind=argument.alias_kind)  # fmt: skip
        if argument.alias_input is not None:
            made.alias_input = scope.slots[id(function.slots[(0, id(argument.alias_input), 0)])]
        if argument.kind == SCALAR_ARGUMENT:
            made.symbol = scope.symbol(str(argument.symbol))
        elif argument.constant is not None:
            made.constant = self._of(argument.constant, scope.where, "constant")
        else:
            made.type = self._type(argument.dtype, argument.encoding, argument.group_elements, argument.shape, scope)
        return self._id("add_argument", scope.number, ctypes.byref(made))

    def _block(self, block: Block, number: int, scope: "Scope") -> None:
        made: List[int] = []
        for command in block.commands:
            after = self._array(ctypes.c_uint32, [made[index] for index in command.predecessors])
            record = self.struct(self.ffi.accrt_writer_command, opcode=command.opcode, name=text(command.name), after=after,
                                 after_count=len(command.predecessors))  # fmt: skip
            if command.location is not None:
                record.location = self._location(command.location)
            blocks = self._fill(command, record, scope)
            made.append(self._id("add_command", number, ctypes.byref(record)))
            for index, nested in blocks:
                self._block(nested, self._id("block", made[-1], index), scope)

    def _location(self, place: "Location") -> int:
        if place not in self.locations:
            self.locations[place] = self._id("add_location", text(place.file), place.line, place.column, text(place.name))
        return self.locations[place]

    def _fill(self, command: Command, record: Any, scope: "Scope") -> Iterable[Tuple[int, Block]]:
        """What a command's opcode has of its own; gives the blocks in it."""
        fields, opcode = command.fields, command.opcode
        if "operands" in fields:
            operands = (self.ffi.accrt_writer_operand * max(len(fields["operands"]), 1))()
            for target, (kind, value) in zip(operands, fields["operands"]):
                self._operand(target, kind, value, scope)
            record.operands, record.operand_count = operands, len(fields["operands"])
        for name, kind, count, member in COMMAND_FIELDS.get(opcode, ()):
            setattr(record, member, self._field(command, name, kind, count, scope))
        if opcode == Opcode.REPEAT:
            return [(0, fields["block"])]
        if opcode == Opcode.BRANCH:
            return [(i, b) for i, b in enumerate((fields["then"], fields["else"])) if b in nested_blocks(command)]
        if "raw" in fields:
            record.raw = ctypes.cast(ctypes.c_char_p(fields["raw"]), ctypes.c_void_p)
            record.raw_size_bytes, record.flags = len(fields["raw"]), int(command.required)
        return ()

    def _field(self, command: Command, name: str, kind: str, count: int, scope: "Scope") -> Any:
        """A field of a command as the C writer takes it; kinds are those of format/format.def."""
        value = command.fields[name]
        if kind.startswith(("READ", "WRITE", "UPDATE")):
            span = self.ffi.accrt_writer_range()
            self._range(span, value, scope)
            return span
        if kind in ("SIZE", "DECIDED", "DECIDED_SIZE"):
            return scope.size(value) if count == 1 else (ctypes.c_uint32 * count)(*map(scope.size, value))
        if kind == "ITEM":
            return self._of(value, command, name)
        return text(value) if kind == "STRING" else value

    def _operand(self, record: Any, kind: int, value: Any, scope: "Scope") -> None:
        """By its place among the operands, not by name."""
        record.kind = kind
        if kind == SYMBOL:
            record.value = scope.size(value)
        elif kind == SCALAR:
            record.bits = value
        elif kind == TENSOR:
            self._range(record.range, value.range, scope)
            record.dtype, record.rank = self._dtype(value.dtype, scope), len(value.shape)
            for i, (size, stride) in enumerate(zip(value.shape, value.strides)):
                record.shape[i], record.strides[i] = scope.size(size), scope.size(stride)
        elif kind != ABSENT:
            self._range(record.range, value, scope)

    @staticmethod
    def _dtype(name: str, scope: "Scope") -> int:
        if name not in DTYPES:
            raise BundleError(f"{scope.where}: no data type {name!r}; there are {', '.join(DTYPES)}")
        return DTYPES[name][0]

    @staticmethod
    def _range(record: Any, span: Range, scope: "Scope") -> None:
        record.slot, record.access = scope.slot(span.slot), ACCESSES[span.access]
        record.offset = scope.size(span.offset) if isinstance(span.offset, Expr) or span.offset else 0
        record.size = 0 if span.size is None else scope.size(span.size)

    # -- writing

    def _callback(self, function: Any) -> Any:
        """As C calls it: an exception is kept, and ends the writing."""

        def called(_self: Any, *arguments: Any) -> int:
            try:
                function(*arguments)
                return 0
            except BaseException as problem:  # noqa: BLE001 - also what ends the program
                self.failure = problem
                return errno.EIO

        return called

    def sign_with(self, signer: Optional[Signer]) -> None:
        """From now on. Without a signer only the code root is made."""
        made = self.ffi.accrt_writer_signer()
        if signer is not None:

            def sign(message: int, size: int, target: Any) -> None:
                signature = signer.sign(ctypes.string_at(message, size))
                if len(signature) != 64:
                    raise BundleError(f"a signature of {len(signature)} bytes; Ed25519 has 64")
                ctypes.memmove(target, signature, 64)

            made.sign = dict(made._fields_)["sign"](self._callback(sign))
            made.public_key = (ctypes.c_ubyte * 32)(*signer.public_key)
            self.kept.append(made.sign)
        self._call("set_signer", ctypes.byref(made))

    def write_path(self, path: Union[str, bytes]) -> None:
        encoded = os.fsencode(path)
        if b"\0" in encoded:
            raise ValueError("embedded null byte")
        from .._waits import apart
        from ..errors import need_folder

        need_folder(path)
        self.uses += 1
        apart(lambda: self._write_path(encoded))

    def _write_path(self, encoded: bytes) -> None:
        try:
            self._check(self.lib.accrt_bundle_writer_write_path(self.writer, encoded), os.fsdecode(encoded))
        finally:
            self.close()

    def write_file(self, file: BinaryIO) -> None:
        """From its position on; the position is then the bundle's end."""
        start = file.tell()
        end = start

        def write(offset: int, data: int, size: int) -> None:
            nonlocal end
            view = memoryview((ctypes.c_char * size).from_address(data)).cast("B")
            try:
                file.seek(start + offset)
                done = 0
                while done < size:  # an unbuffered file may take less
                    taken = file.write(view[done:] if done else view)
                    done = size if taken is None else done + taken
            finally:
                view.release()
            end = max(end, start + offset + size)

        output = self.ffi.accrt_writer_output()
        output.write = dict(output._fields_)["write"](self._callback(write))
        self._call("write_callback", ctypes.byref(output))
        file.seek(end)

    def to_bytes(self) -> bytes:
        stream = io.BytesIO()
        self.write_file(stream)
        return stream.getvalue()

    def code_root(self) -> bytes:
        root = (ctypes.c_ubyte * 32)()
        self._call("code_root", root)
        return bytes(root)


class Scope:
    """Ids of the expressions and slots of one function, or of none."""

    def __init__(self, emission: Emission, where: str, function: Optional[Function] = None, number: int = 0):
        self.emission, self.where, self.function, self.number = emission, where, function, number
        self.expressions: Dict[Expr, int] = {}
        self.slots: Dict[int, int] = {}

    def symbol(self, name: str) -> int:
        found = self.emission.symbols.get(name)
        if found is None:
            raise BundleError(f"{self.where}: symbol {name!r} is not declared in this bundle")
        return found

    def size(self, value: Size) -> int:
        """The id of an expression; what it is made of comes before it."""
        expression = constant(value)
        if expression.op == "constant":
            return self._leaf(expression)
        pending = [expression]
        while pending:
            node = pending[-1]
            missing = [a for a in reversed(node.args) if a.op != "constant" and a not in self.expressions]
            if missing and node not in self.expressions:
                pending.extend(missing)
                continue
            pending.pop()
            if node not in self.expressions:
                self.expressions[node] = self._node(node)
        return self.expressions[expression]

    def _node(self, node: Expr) -> int:
        if not node.args:
            return self._leaf(node)
        operands = [self._leaf(a) if a.op == "constant" else self.expressions[a] for a in node.args]
        return self.emission._id("expression", _OPS[node.op], *operands, *(0,) * (3 - len(operands)))

    def _leaf(self, node: Expr) -> int:
        emission = self.emission
        if node.op == "constant":
            if node.value not in emission.numbers:
                emission.numbers[node.value] = emission._id("integer", node.value)
            return emission.numbers[node.value]
        if node.op == "symbol":
            return self.symbol(node.value)
        if node.op == "induction":
            return emission._id("induction", node.value)
        inputs = self.function.inputs if self.function is not None else []
        if self.function is None or not 0 <= node.value < len(inputs):
            raise BundleError(f"{self.where}: {node} names no input")
        found = self.slots.get(id(self.function.slots[(0, id(inputs[node.value]), 0)]))
        if found is None:
            raise BundleError(f"{self.where}: {node} in the type of an argument")
        return emission._id("present", found)

    def slot(self, slot: Slot) -> int:
        found = self.slots.get(id(slot))
        if found is None:
            emission = self.emission
            if slot.kind == 3:
                found = emission._id("arena", self.number, 0, 0)
            else:
                target = emission._of(slot.target, self.where, "constant" if slot.kind == 1 else "state")
                found = emission._id("slot", self.number, target, slot.component)
            self.slots[id(slot)] = found
        return found
