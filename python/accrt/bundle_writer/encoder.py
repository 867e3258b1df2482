"""The bytes of a bundle: orders its parts, checks what spans parts, makes the sections."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, BinaryIO, Dict, Iterable, List, Mapping, Optional, Sequence, Set, Tuple

try:
    import xxhash
except ImportError as problem:
    raise ImportError(
        "accrt.bundle_writer needs the package 'xxhash' (pip install xxhash, or Debian's python3-xxhash)", name="xxhash"
    ) from problem

from .common import (
    ACCESSES, ARCH_KINDS, BIG_ALIGN, CHUNK_BYTES, DTYPES, MAGIC, MAX_RANK, MAX_STRING_BYTES, NONE, PARAMETER_KINDS,
    PREDICATES, TENSOR_ALIGN, ADAPTER_SCALED, BINDING_BY_NAME, FEATURE_ENCRYPTED_DATA, BundleError, Encoding, ImageKind, SymbolClass, align_up, dtype_id,
)  # fmt: skip
from .expressions import LEAVES, OP_IDS, Expr, Size, constant
from .functions import (
    ABSENT, BRANCH, CALL, COPY, DISPATCH, FILL, MARKER, REPEAT, RESULT, SCALAR, SYMBOL, TENSOR, Argument, Block, Command, Function,
    Range, Slot, TensorRange, nested_blocks, used_slots,
)  # fmt: skip

from .kernels import Image, Kernel, Variant
from . import signing
from .target import OPCODES, Omissions, TargetCaps, place_of

if TYPE_CHECKING:
    from .extras import RawSection
    from .model import BundleWriter, Constant

class Scope:
    """Expressions of one scope, in order of first use."""

    def __init__(self, symbol_indices: Mapping[str, int], where: str, target: Optional[TargetCaps] = None):
        self.symbol_indices, self.where, self.target = symbol_indices, where, target
        self.place = where  # what is being encoded: for what a target does not know
        self.indices: Dict[Expr, int] = {}
        self.records: List[bytes] = []
        self.symbols: Set[str] = set()

    def add(self, expression: Optional[Size]) -> int:
        """Index of the expression's node."""
        if expression is None:
            return NONE
        pending = [constant(expression)]
        while pending:
            node = pending[-1]
            if node in self.indices:
                pending.pop()
                continue
            missing = [a for a in reversed(node.args) if a not in self.indices]
            if missing:
                pending.extend(missing)
                continue
            pending.pop()
            self.indices[node] = len(self.records)
            self.records.append(self._record(node))
        return self.indices[constant(expression)]

    def _record(self, node: Expr) -> bytes:
        operands = [self.indices[a] for a in node.args] + [NONE] * (3 - len(node.args))
        immediate = node.value if node.op in LEAVES else 0
        if self.target is not None:
            self.target.need_operation(node.op, self.place)
        if node.op == "symbol":
            if node.value not in self.symbol_indices:
                raise BundleError(f"{self.where}: symbol {node.value!r} is not declared in this bundle")
            self.symbols.add(node.value)
            immediate = self.symbol_indices[node.value]
        return struct.pack("<4Iq", OP_IDS[node.op], *operands, immediate)


class Strings:
    def __init__(self) -> None:
        self.texts: Set[str] = {""}
        self.offsets: Dict[str, int] = {}

    def collect(self, *texts: str) -> None:
        self.texts.update(texts)

    def finish(self) -> bytes:
        data = bytearray()
        try:
            ordered = sorted(text.encode("utf-8") for text in self.texts)
        except (AttributeError, UnicodeEncodeError) as problem:
            wrong = problem.object if isinstance(problem, UnicodeEncodeError) else next(t for t in self.texts if not isinstance(t, str))
            raise BundleError(f"{wrong!r:.80} stands where a text is, and is none that UTF-8 can write") from None
        for encoded in ordered:
            if len(encoded) > MAX_STRING_BYTES:
                raise BundleError(f"a string of {len(encoded)} bytes, {encoded[:40]!r}...; at most {MAX_STRING_BYTES} are allowed")
            if b"\0" in encoded:
                raise BundleError(f"a string may not hold NUL: {encoded!r}")
            self.offsets[encoded.decode("utf-8")] = len(data)
            data += encoded + b"\0"
        return bytes(data)

    def __getitem__(self, text: str) -> int:
        return self.offsets[text]


#: Number and record size of each section, in order. Constants without EXTERNAL ones have the 96 bytes of container 0.1.
SECTIONS = {
    "strings": (1, 0), "metadata": (2, 8), "symbols": (3, 40), "buckets": (4, 8), "expressions": (5, 24),
    "constants": (6, 96), "components": (7, 24), "states": (8, 64), "functions": (9, 64), "arguments": (10, 80),
    "slots": (11, 16), "views": (12, 72), "blocks": (13, 16), "commands": (14, 0), "kernels": (15, 32),
    "parameters": (16, 16), "variants": (17, 48), "predicates": (18, 16), "images": (19, 24), "chunk_digests": (20, 16),
    "launches": (21, 40), "assets": (32, 32), "locations": (33, 16), "files": (37, 40), "shards": (38, 32),
    "adapters": (39, 16), "tree": (40, 80), "signatures": (41, 112), "segments": (42, 24), "leaves": (43, 32),
    "encryption": (44, 64), "tags": (45, 16), "asset_data": (46, 0), "code": (62, 0), "data": (63, 0),
}  # fmt: skip
IGNORABLE = ("metadata", "assets", "locations", "adapters", "tree", "signatures", "leaves", "asset_data")
EXTERNAL_RECORD_BYTES = 128


class Encoder:
    """One encoding of a bundle: orders its parts, checks what spans parts, and makes the sections."""

    def __init__(self, bundle: BundleWriter, target: Optional[TargetCaps] = None):
        self.target = target
        self.omitted = Omissions() if target is None else target.omissions(bundle)
        self.symbols = [bundle._symbols[name] for name in sorted(bundle._symbols)]
        self.constants = [bundle._constants[name] for name in sorted(set(bundle._constants) - self.omitted.constants)]
        self.states = [bundle._states[name] for name in sorted(bundle._states)]
        self.kernels = [bundle._kernels[name] for name in sorted(set(bundle._kernels) - self.omitted.kernels)]
        self.images = self._used_images(bundle)
        self.metadata = sorted(bundle._metadata.items())
        kept = {key: function for key, function in bundle._functions.items() if key not in self.omitted.functions}
        self.functions = self._ordered(kept)
        self.files = [bundle._files[name] for name in sorted(bundle._files)]
        self.adapters = self._unless("adapters", [bundle._adapters[slot] for slot in sorted(bundle._adapters)])
        self.assets = self._unless("assets", [bundle._assets[name] for name in sorted(bundle._assets)])
        found = {command.location for function in self.functions for command in function.commands()} - {None}
        self.locations = self._unless("locations", sorted(found))
        self.raw_sections = list(bundle._sections)
        self.optional_features = bundle._optional_features
        self._leaves: Optional[List[bytes]] = None
        self.by_name = {symbol.name: symbol for symbol in self.symbols}
        for table in (self.constants, self.states, self.kernels, self.images, self.functions, self.files):
            for index, item in enumerate(table):
                item.index = index
        self.shards = sorted((s for s in bundle._shards if s.constant in self.constants), key=lambda shard: shard.constant.index)
        self.location_indices = {location: index for index, location in enumerate(self.locations)}
        self.strings = Strings()
        self.strings.collect(*bundle._texts)
        self.symbol_indices = {symbol.name: index for index, symbol in enumerate(self.symbols)}
        self._check()
        if target is not None:
            target.check_devices(self)
        self._collect_strings()
        self.sections: Dict[str, bytes] = {"strings": self.strings.finish()}
        self.data_size = self._place_data()
        self._encode()
        if target is not None:
            target.check(self)

    # -- what a target does without

    def _unless(self, section: str, items: List[Any]) -> List[Any]:
        return [] if section in self.omitted.sections else items

    def _variants(self, kernel: Kernel) -> List[Variant]:
        return [variant for variant in kernel.variants if id(variant) not in self.omitted.variants]

    def _used_images(self, bundle: BundleWriter) -> List[Image]:
        """Images that only omitted variants have go with them."""
        used = {id(v.image) for kernel in self.kernels for v in self._variants(kernel)}
        omitted = {id(v.image) for kernel in bundle._kernels.values() for v in kernel.variants} - used
        return sorted((image for image in bundle._images if id(image) not in omitted), key=lambda image: image.name)

    # -- order and checks

    @staticmethod
    def _callees(block: Block) -> Iterable[Function]:
        for command in block.commands:
            if command.opcode == CALL:
                yield command.fields["function"]
            for nested in nested_blocks(command):
                yield from Encoder._callees(nested)

    def _ordered(self, functions: Dict[Tuple[str, str], Function]) -> List[Function]:
        """Callees before callers; by name and target where that leaves a choice."""
        depths: Dict[Function, int] = {}

        def depth(function: Function, path: Tuple[Function, ...]) -> int:
            if function in path:
                raise BundleError(f"function {function.name!r} calls itself, through {' -> '.join(f.name for f in path)}")
            if functions.get((function.name, function.target)) is not function:
                raise BundleError(f"function {function.name!r} is called but belongs to another bundle")
            if function not in depths:
                below = [depth(f, path + (function,)) for f in self._callees(function.body)]
                depths[function] = 1 + max(below, default=-1)
            return depths[function]

        return sorted(functions.values(), key=lambda function: (depth(function, ()), function.name, function.target))

    def _check_targets(self) -> None:
        firsts: Dict[str, Function] = {}
        for function in self.functions:
            for callee in self._callees(function.body):
                if callee.target not in ("", function.target):
                    raise BundleError(f"{function} calls {callee}: only functions without a target, or with the caller's")
            first = firsts.setdefault(function.name, function)
            if self._signature(first) != self._signature(function):
                raise BundleError(f"{first} and {function} have different signatures")

    @staticmethod
    def _signature(function: Function) -> Tuple[Any, ...]:
        def line(a: Argument) -> Tuple[Any, ...]:
            alias = None if a.alias_input is None else function.inputs.index(a.alias_input)
            constant_name = None if a.constant is None else a.constant.name
            return (a.name, a.kind, a.dtype, a.shape, a.encoding, a.group_elements, a.optional, a.symbol, a.alias_kind, alias, constant_name)

        lines = (tuple(line(a) for a in function.inputs), tuple(line(a) for a in function.results))
        return (function.prepare, function.internal, *lines)

    def _check(self) -> None:
        self._check_targets()
        made: Dict[str, str] = {}
        for function in self.functions:
            if function.prepare:
                self._check_prepare(function, made)
        for constant_ in self.constants:
            if constant_.prepared and constant_.name not in made:
                raise BundleError(f"constant {constant_.name!r} is made by no prepare function")
        for kernel in self.kernels:
            if not self._variants(kernel):
                raise BundleError(f"kernel {kernel.name!r} has no variant")
            for variant in self._variants(kernel):
                if variant.image not in self.images:
                    raise BundleError(f"kernel {kernel.name!r}: image {variant.image.name!r} belongs to another bundle")
        self._check_adapters()
        self._check_shards()
        for state in self.states:
            for symbol in sorted(set().union(*[d.symbols() for d in state.shape], set())):
                if symbol not in self.by_name or self.by_name[symbol].symbol_class != SymbolClass.SESSION:
                    raise BundleError(f"state {state.name!r}: symbol {symbol!r} is not a SESSION symbol of this bundle")

    def _check_adapters(self) -> None:
        for adapter in self.adapters:
            found = [a.optional for f in self.functions for a in f.inputs if a.name == adapter.input]
            if not found or not all(found):
                raise BundleError(f"adapter {adapter.slot!r}: {adapter.input!r} is no optional input wherever it is one")

    def _check_shards(self) -> None:
        sharded = [shard.constant for shard in self.shards]
        for item in self.constants:
            if sharded and item.source == 2 and item not in sharded:
                raise BundleError(f"constant {item.name!r} is external and has no shard, where others have")

    @staticmethod
    def _check_prepare(function: Function, made: Dict[str, str]) -> None:
        if not function.results:
            raise BundleError(f"prepare function {function.name!r} makes nothing")
        for argument in function.arguments:
            if argument.constant is None:
                raise BundleError(f"prepare function {function.name!r}: argument {argument.name!r} is no constant")
        inputs = [argument.constant for argument in function.inputs]
        for slot in used_slots(function.body):
            if slot.kind == 1 and (slot.component == 0 or slot.target not in inputs):
                raise BundleError(f"prepare function {function.name!r} touches constant {slot.name!r}; sources are its inputs")
        for argument in function.results:
            name = argument.constant.name
            if made.get(name, function.name) != function.name:
                raise BundleError(f"constant {name!r} is made by both {made[name]!r} and {function.name!r}")
            made[name] = function.name

    def _check_symbols(self, function: Function, used: Set[str]) -> None:
        bound = function.bound_symbols()
        for name in sorted(used - bound):
            if self.by_name[name].symbol_class != SymbolClass.SESSION and not function.internal:
                raise BundleError(
                    f"function {function.name!r}: symbol {name!r} is used, but no input has it as a dimension and no scalar "
                    "gives it"
                )
        for argument in function.inputs:
            if argument.symbol and argument.symbol not in self.by_name:
                raise BundleError(f"function {function.name!r}, scalar {argument.name!r}: no symbol {argument.symbol!r}")

    # -- strings

    def _collect_strings(self) -> None:
        collect = self.strings.collect
        for pair in self.metadata:
            collect(*pair)
        for item in self.constants:
            collect(item.tensor)
        for adapter in self.adapters:
            collect(adapter.slot, adapter.input)
        for asset in self.assets:
            collect(asset.name, asset.media_type)
        for location in self.locations:
            collect(location.file, location.name)
        for table in (self.symbols, self.constants, self.states, self.images, self.files):
            collect(*(item.name for item in table))  # type: ignore[attr-defined]
        for kernel in self.kernels:
            collect(kernel.name, *(p.name for p in kernel.parameters))
            for variant in self._variants(kernel):
                collect(variant.driver, variant.arch, variant.entry)
        for function in self.functions:
            collect(function.name, function.doc, function.target)
            for argument in function.arguments:
                collect(argument.name, argument.doc)
            self._collect_block_strings(function.body)

    def _collect_block_strings(self, block: Block) -> None:
        for command in block.commands:
            self.strings.collect(command.name)
            if command.opcode == MARKER:
                self.strings.collect(command.fields["text"])
            for nested in nested_blocks(command):
                self._collect_block_strings(nested)

    # -- sections

    def _place_data(self) -> int:
        end = 0
        for item in self.constants:
            for component in item.components if item.source == 0 else ():
                component.offset_bytes = align_up(end, TENSOR_ALIGN)
                end = component.offset_bytes + component.size_bytes
        return end

    def _encode(self) -> None:
        strings = self.strings
        self.sections["metadata"] = b"".join(struct.pack("<2I", strings[k], strings[v]) for k, v in self.metadata)
        self._encode_symbols()
        module = Scope(self.symbol_indices, "a state", self.target)
        self._encode_constants()
        self._encode_states(module)
        self.scopes = [module]
        self._tables: Dict[str, bytearray] = {
            key: bytearray() for key in ("functions", "arguments", "slots", "views", "blocks", "commands")
        }
        self._command_count = 0
        for function in self.functions:
            self._encode_function(function)
        self.sections.update({key: bytes(table) for key, table in self._tables.items()})
        self.sections["expressions"] = b"".join(record for scope in self.scopes for record in scope.records)
        self._encode_kernels()
        self._encode_images()
        self._encode_extras()

    def _encode_symbols(self) -> None:
        records, buckets = [], []
        for symbol in self.symbols:
            first = len(buckets) if symbol.buckets else 0
            records.append(
                struct.pack(
                    "<2I3q2I", self.strings[symbol.name], symbol.symbol_class, symbol.minimum, symbol.maximum, symbol.divisor,
                    first, len(symbol.buckets),
                )  # fmt: skip
            )
            buckets += symbol.buckets
        self.sections["symbols"] = b"".join(records)
        self.sections["buckets"] = struct.pack(f"<{len(buckets)}q", *buckets)

    def _encode_constants(self) -> None:
        """In the form of container 0.1, where nothing is EXTERNAL."""
        wide = any(item.source == 2 for item in self.constants)
        self._constant_bytes = EXTERNAL_RECORD_BYTES if wide else SECTIONS["constants"][1]
        records, components = [], []
        for item in self.constants:
            self._check_constant(item)
            dtype = dtype_id(item.dtype, item.name)
            shape = item.shape + (0,) * (MAX_RANK - len(item.shape))
            head = (self.strings[item.name], item.source, dtype, item.encoding, len(item.shape), len(components))
            records.append(struct.pack("<8I8q", *head, len(item.components), item.group_elements, *shape))
            if wide:
                records.append(self._binding(item))
            for part in item.components:
                offset = part.offset_bytes if item.source == 0 else 0
                components.append(struct.pack("<2I2Q", part.role, DTYPES[part.dtype][0], offset, part.size_bytes))
        self.sections["constants"] = b"".join(records)
        self.sections["components"] = b"".join(components)

    def _check_constant(self, item: Constant) -> None:
        if self.target is None:
            return
        place = f"constant '{item.name}'"
        if item.source == 2:
            self.target.need_container(3, "EXTERNAL constants", place)
        self.target.need_type(item.dtype, item.encoding, len(item.shape), item.group_elements, place)
        for part in item.components:
            self.target.need_dtype(part.dtype, place)

    def _binding(self, item: Constant) -> bytes:
        if item.source != 2:
            return struct.pack("<2I16s2I", NONE, 0, bytes(16), 0, 0)
        file = NONE if item.file is None else item.file.index
        flags = BINDING_BY_NAME if item.digest is None else 0
        return struct.pack("<2I16s2I", file, self.strings[item.tensor], item.digest or bytes(16), flags, 0)

    def _encode_extras(self) -> None:
        strings, sections = self.strings, self.sections
        sections["files"] = b"".join(
            struct.pack("<2IQ16s2I", strings[f.name], f.kind, f.size_bytes, f.digest or bytes(16), 0, 0) for f in self.files
        )
        shards, segments = [], []
        for shard in self.shards:
            split = shard.axis is not None
            first = len(segments) if split else 0
            shards.append(
                struct.pack(
                    "<4Iq2I", shard.constant.index, int(split), shard.axis or 0, shard.degree, shard.extent, first,
                    len(shard.segments),
                )  # fmt: skip
            )
            segments += [struct.pack("<2q2I", s.begin, s.end, s.replicas, 0) for s in shard.segments]
        sections["shards"], sections["segments"] = b"".join(shards), b"".join(segments)
        sections["adapters"] = b"".join(
            struct.pack("<4I", strings[a.slot], strings[a.input], ADAPTER_SCALED if a.scaled else 0, 0) for a in self.adapters
        )
        sections["locations"] = b"".join(
            struct.pack("<4I", strings[at.file], at.line, at.column, strings[at.name]) for at in self.locations
        )
        assets, data = [], bytearray()
        for asset in self.assets:
            data += bytes(align_up(len(data), 8) - len(data))
            assets.append(struct.pack("<2I3Q", strings[asset.name], strings[asset.media_type], len(data), len(asset.data), 0))
            data += asset.data
        sections["assets"], sections["asset_data"] = b"".join(assets), bytes(data)
        given = self._given_data()
        if given is not None and (len(given) != self.data_size or self._raw("encryption") is None):
            raise BundleError(f"section data of {len(given)} bytes is given, where constants have {self.data_size} (and only encrypted ones may be)")
        for raw in self.raw_sections:
            sections[raw.name] = raw.data

    def _type(self, dtype: str, encoding: Encoding, group: int, shape: Sequence[Expr], scope: Scope) -> bytes:
        if self.target is not None:
            self.target.need_type(dtype, encoding, len(shape), group, scope.place)
        dims = [scope.add(size) for size in shape] + [NONE] * (MAX_RANK - len(shape))
        return struct.pack("<12I", DTYPES[dtype][0], encoding, len(shape), group, *dims)

    def _encode_states(self, scope: Scope) -> None:
        records = []
        for state in self.states:
            scope.place = f"state '{state.name}'"
            type_ = self._type(state.dtype, state.encoding, 0, state.shape, scope)
            records.append(struct.pack("<2I", self.strings[state.name], 0) + type_ + struct.pack("<Q", state.fill_pattern))
        self.sections["states"] = b"".join(records)

    def _encode_function(self, function: Function) -> None:
        scope = Scope(self.symbol_indices, f"function {function.name!r}", self.target)
        place = place_of(function)
        tables = self._tables
        argument_first = len(tables["arguments"]) // 80
        for argument in function.arguments:
            scope.place = f"{place}, {'result' if argument.kind == RESULT else 'input'} '{argument.name}'"
            tables["arguments"] += self._argument(function, argument, scope)
        scope.place = place
        transient_size = scope.add(function.transient_size)
        slot_first = len(tables["slots"]) // 16
        slots = self._slots(function)
        for slot in slots:
            tables["slots"] += self._slot(function, slot)
        self._slot_indices = {id(slot): index for index, slot in enumerate(slots)}
        self._view_indices: Dict[bytes, int] = {}
        blocks = self._blocks(function.body)
        body = len(tables["blocks"]) // 16
        self._block_indices = {id(block): body + index for index, block in enumerate(blocks)}
        for block in blocks:
            first = len(tables["commands"])
            for command in block.commands:
                word = OPCODES[command.opcode] if command.opcode < len(OPCODES) else "command"
                scope.place = f"{place}, command {command.index} ({word} '{command.name}')"
                tables["commands"] += self._command(command, scope)
            tables["blocks"] += struct.pack("<Q2I", first, len(tables["commands"]) - first, len(block.commands))
            self._command_count += len(block.commands)
        self._check_symbols(function, scope.symbols)
        expression_first = sum(len(s.records) for s in self.scopes)
        self.scopes.append(scope)
        flags = int(function.prepare) | int(function.internal) << 1
        features = function.required_features
        tables["functions"] += struct.pack(
            "<2IQ12I", self.strings[function.name], flags, features, argument_first, len(function.inputs), len(function.results),
            slot_first, len(slots), expression_first, len(scope.records), body, transient_size, function.transient_align,
            self.strings[function.doc], self.strings[function.target],
        )  # fmt: skip

    def _argument(self, function: Function, argument: Argument, scope: Scope) -> bytes:
        symbol = NONE if argument.symbol is None else self.symbol_indices.get(argument.symbol, NONE)
        alias = NONE if argument.alias_input is None else function.inputs.index(argument.alias_input)
        constant_index = NONE if argument.constant is None else argument.constant.index
        head = struct.pack(
            "<8I", self.strings[argument.name], argument.kind, int(argument.optional), symbol, argument.alias_kind, alias,
            constant_index, self.strings[argument.doc],
        )  # fmt: skip
        return head + self._type(argument.dtype, argument.encoding, argument.group_elements, argument.shape, scope)

    @staticmethod
    def _slots(function: Function) -> List[Slot]:
        """Arguments in order; then constants, states and transient memory that a command touches."""
        used = {id(slot) for slot in used_slots(function.body)}
        arguments = [function.slots[(0, id(argument), 0)] for argument in function.arguments]
        others = [slot for slot in function.slots.values() if slot.kind != 0 and (id(slot) in used or slot.kind == 3)]
        if function.transient_size == constant(0) and not any(s.kind == 3 and id(s) in used for s in others):
            others = [slot for slot in others if slot.kind != 3]
        return arguments + sorted(others, key=lambda s: (s.kind, 0 if s.kind == 3 else s.target.index, s.component))

    @staticmethod
    def _slot(function: Function, slot: Slot) -> bytes:
        index = function.arguments.index(slot.target) if slot.kind == 0 else 0 if slot.kind == 3 else slot.target.index
        return struct.pack("<4I", slot.kind, index, slot.component, 0)

    def _blocks(self, block: Block) -> List[Block]:
        """A block and those nested in it, outer before inner."""
        found = [block]
        for command in block.commands:
            for nested in nested_blocks(command):
                found += self._blocks(nested)
        return found

    def _range(self, span: Optional[Range], scope: Scope) -> bytes:
        if span is None:
            return struct.pack("<4I", NONE, 0, NONE, NONE)
        offset = scope.add(span.offset)
        return struct.pack("<4I", self._slot_indices[id(span.slot)], ACCESSES[span.access], offset, scope.add(span.size))

    def _view(self, value: TensorRange, scope: Scope) -> int:
        if self.target is not None:
            self.target.need_type(value.dtype, Encoding.PLAIN, len(value.shape), 0, scope.place)
        shape = [scope.add(size) for size in value.shape] + [NONE] * (MAX_RANK - len(value.shape))
        strides = [scope.add(size) for size in value.strides] + [NONE] * (MAX_RANK - len(value.strides))
        record = struct.pack("<18I", dtype_id(value.dtype, scope.where), len(value.shape), *shape, *strides)
        if record not in self._view_indices:
            self._view_indices[record] = len(self._tables["views"]) // 72
            self._tables["views"] += record
        return self._view_indices[record]

    def _operand(self, kind: int, value: Any, scope: Scope) -> bytes:
        expression, view, span, immediate = NONE, NONE, None, 0
        if kind == SYMBOL:
            expression = scope.add(value)
        elif kind == SCALAR:
            immediate = value
        elif kind == TENSOR:
            view, span = self._view(value, scope), value.range
        elif kind != ABSENT:
            span = value
        return struct.pack("<4I", kind, expression, view, 0) + self._range(span, scope) + struct.pack("<Q", immediate)

    def _command(self, command: Command, scope: Scope) -> bytes:
        required = command.opcode < MARKER or command.required
        if self.target is not None and required:
            self.target.need_opcode(command.opcode, scope.place)
        body = self._command_body(command, scope)
        predecessors = command.predecessors
        data = body + struct.pack(f"<{len(predecessors)}I", *predecessors)
        data += bytes(-len(data) % 8)
        flags = int(required)
        name = self.strings[command.name]
        location = self.location_indices.get(command.location, NONE)  # type: ignore[arg-type]
        return struct.pack("<2H5I", command.opcode, flags, 24 + len(data), name, location, len(predecessors), 0) + data

    def _command_body(self, command: Command, scope: Scope) -> bytes:
        fields = command.fields
        if command.opcode == DISPATCH:
            kernel = fields["kernel"]
            if kernel not in self.kernels:
                raise BundleError(f"{command}: kernel {kernel.name!r} belongs to another bundle")
            grid = [scope.add(size) for size in fields["grid"]]
            head, place = struct.pack("<6I", kernel.index, len(fields["operands"]), *grid, 0), scope.place
            for parameter, (kind, value) in zip(kernel.parameters, fields["operands"]):
                scope.place = f"{place}, parameter '{parameter.name}'"
                head += self._operand(kind, value, scope)
            return head
        if command.opcode == COPY:
            spans = self._range(fields["source"], scope) + self._range(fields["target"], scope)
            sizes = [scope.add(size) for size in (*fields["extent"], *fields["steps"][0], *fields["steps"][1])]
            return spans + struct.pack("<8I", *sizes, 0)
        if command.opcode == FILL:
            tail = struct.pack("<Q2I", fields["pattern"], fields["pattern_bytes"], 0)
            return self._range(fields["target"], scope) + tail
        if command.opcode == CALL:
            head = struct.pack("<2I", fields["function"].index, len(fields["operands"]))
            return head + b"".join(self._operand(kind, value, scope) for kind, value in fields["operands"])
        if command.opcode == REPEAT:
            return struct.pack("<2I", scope.add(fields["count"]), self._block_indices[id(fields["block"])])
        if command.opcode == BRANCH:
            blocks = [NONE if b is None or not b.commands else self._block_indices[id(b)] for b in (fields["then"], fields["else"])]
            return struct.pack("<4I", scope.add(fields["condition"]), *blocks, 0)
        if command.opcode == MARKER:
            return struct.pack("<2I", self.strings[fields["text"]], 0)
        return fields.get("raw", b"")

    def _encode_kernels(self) -> None:
        kernels, parameters, variants, predicates, launches = [], [], [], [], []
        for kernel in self.kernels:
            head = (self.strings[kernel.name], kernel.traits, len(parameters), len(kernel.parameters), kernel.params_size_bytes)
            kernels.append(struct.pack("<8I", *head, kernel.local_memory_bytes, len(variants), len(self._variants(kernel))))
            names = [p.name for p in kernel.parameters]
            for p in kernel.parameters:
                align_log2 = min(p.size_bytes, 8).bit_length() - 1
                kind, access = PARAMETER_KINDS[p.kind], ACCESSES[p.access]
                packed = (self.strings[p.name], kind, access, int(p.optional), align_log2, p.offset_bytes, p.size_bytes)
                parameters.append(struct.pack("<I4B2I", *packed))
            for v in self._variants(kernel):
                head = (self.strings[v.driver], v.arch_kind, self.strings[v.arch], v.priority, v.cpu_features, v.required_features)
                tail = (v.image.index, self.strings[v.entry], len(predicates), len(v.predicates))
                if v.launch is not None:
                    sizes = (*v.launch.block, *v.launch.cluster, v.launch.dynamic_shared_bytes, 0)
                    launches.append(struct.pack("<10I", len(variants), v.launch.traits, *sizes))
                variants.append(struct.pack("<3Ii2Q4I", *head, *tail))
                for q in v.predicates:
                    predicates.append(struct.pack("<2Iq", PREDICATES[q.kind], names.index(q.parameter), q.value))
        tables = {"kernels": kernels, "parameters": parameters, "variants": variants, "predicates": predicates, "launches": launches}
        self.sections.update({key: b"".join(records) for key, records in tables.items()})

    def _encode_images(self) -> None:
        records, code = [], bytearray()
        for image in self.images:
            if self.target is not None:
                self.target.need_image(image.kind, f"image '{image.name}'")
            if image.kind == ImageKind.PACK:
                records.append(struct.pack("<2I2Q", image.kind, self.strings[image.name], 0, 0))
                continue
            code += bytes(align_up(len(code), BIG_ALIGN) - len(code))
            records.append(struct.pack("<2I2Q", image.kind, self.strings[image.name], len(code), len(image.data)))
            code += image.data
        self.sections["images"] = b"".join(records)
        self.sections["code"] = bytes(code)

    # -- the file

    def _layout(self) -> List[Tuple[str, int, int]]:
        """(name, offset, size) of each section that the file has; those without content are left out."""
        chunks = align_up(self.data_size, CHUNK_BYTES) // CHUNK_BYTES
        sizes = {name: len(data) for name, data in self.sections.items()}
        sizes.update(chunk_digests=16 * chunks, data=self.data_size)
        names = sorted((name for name in sizes if sizes[name]), key=self._number)
        offset = 128 + 64 * len(names)
        layout = []
        for name in names:
            offset = align_up(offset, BIG_ALIGN if name in ("code", "data") else 8)
            layout.append((name, offset, sizes[name]))
            offset += sizes[name]
        return layout

    def _raw(self, name: str) -> Optional[RawSection]:
        return next((raw for raw in self.raw_sections if raw.name == name), None)

    def _given_data(self) -> Optional[bytes]:
        """Encrypted weights, when they are given as a section."""
        return next((raw.data for raw in self.raw_sections if raw.type == SECTIONS["data"][0]), None)

    @property
    def required_features(self) -> int:
        """Of the file."""
        return FEATURE_ENCRYPTED_DATA if self._raw("encryption") is not None else 0

    def _number(self, name: str) -> int:
        raw = self._raw(name)
        return SECTIONS[name][0] if raw is None else raw.type

    def _required(self, name: str) -> bool:
        raw = self._raw(name)
        return name not in IGNORABLE if raw is None or name in SECTIONS else raw.required

    def _records(self, name: str, size: int) -> Tuple[int, int]:
        """Size and number of a section's records."""
        raw = self._raw(name)
        if raw is not None:
            return raw.record_bytes, raw.record_count
        record_bytes = self._constant_bytes if name == "constants" else SECTIONS[name][1]
        counts = {"commands": self._command_count, "strings": len(self.strings.texts)}
        return record_bytes, counts.get(name, size // record_bytes if record_bytes else 0)

    def section_needs(self) -> Iterable[Tuple[str, int, bool, str]]:
        """(name, number, whether it is required, what it is for) of each section."""
        first = {"files": ("file", self.files), "shards": ("shard", [s.constant for s in self.shards])}
        for name, _offset, _size in self._layout():
            word, items = first.get(name, ("", ()))
            yield name, self._number(name), self._required(name), f"{word} '{items[0].name}'" if items else ""

    def _place_signatures(self) -> None:
        """Sections of the right sizes: their bytes come when all others are known."""
        chunks = align_up(self.data_size, CHUNK_BYTES) // CHUNK_BYTES
        self.sections["tree"] = bytes(signing.TREE_BYTES)
        self.sections["leaves"] = bytes(signing.LEAF_BYTES * chunks)
        self.sections["signatures"] = bytes(signing.SIGNATURE_BYTES * len(signing.scopes(self.data_size)))

    def _code_root(self, layout: Sequence[Tuple[str, int, int]]) -> bytes:
        covered = []
        for name, _offset, size in layout:
            numbers = (self._number(name), int(self._required(name)), *self._records(name, size))
            covered.append((name, numbers, self.sections.get(name, b"")))
        return signing.code_root(covered, self.optional_features)

    def emit(self, file: BinaryIO, signer: Optional[signing.Signer] = None) -> bytes:
        """Streams the weights to their place first, then writes what depends on their digests. Returns the code root."""
        start = file.tell()
        if signer is not None:
            self._place_signatures()
            self._leaves = []
        layout = self._layout()
        end = layout[-1][1] + layout[-1][2]
        for name, offset, _size in layout:
            if name == "data":
                self.sections["chunk_digests"] = self._stream_data(file, start, offset)
        code_root = self._code_root(layout)
        if signer is not None:
            self.sections["leaves"] = leaves = b"".join(self._leaves or ())
            weights = signing.weight_root(self.data_size, leaves)
            self.sections["tree"] = signing.tree(code_root, weights)
            self.sections["signatures"] = signing.signatures(signer, code_root, weights if self.data_size else None)
        table = bytearray()
        previous_end = 128 + 64 * len(layout)
        for name, offset, size in layout:
            record_bytes, record_count = self._records(name, size)
            content = self.sections["chunk_digests"] if name == "data" else self.sections[name]
            head = (self._number(name), int(self._required(name)), offset, size, record_bytes, record_count)
            table += struct.pack("<2I2Q2I16s", *head, name.encode())
            table += xxhash.xxh3_128_digest(content)
            file.seek(start + previous_end)
            file.write(bytes(offset - previous_end))
            if name != "data":
                file.write(content)
            previous_end = offset + size
        file.seek(start)
        file.write(self._header(self.versions(), end, len(layout), bytes(table)) + table)
        file.seek(start + end)
        return code_root

    def versions(self) -> Tuple[int, ...]:
        """The least of container, commands, kernel ABI and layouts that a reader must speak."""
        variants = [v for kernel in self.kernels for v in self._variants(kernel)]
        packs = any(image.kind == ImageKind.PACK for image in self.images)
        launches = any(v.launch is not None for v in variants)
        targets = any(function.target for function in self.functions)
        floors = any(v.arch_kind == ARCH_KINDS["portable"] and v.arch for v in variants)
        container = 2 if packs or launches or targets or floors else 1
        sections = [self._number(name) for name, _offset, _size in self._layout()]
        newer = any(32 <= number <= 46 and number not in (34, 35, 36) for number in sections)
        if newer or self._constant_bytes == EXTERNAL_RECORD_BYTES or any(item.group_elements for item in self.constants):
            container = 3
        quantized = any(item.encoding > Encoding.OPAQUE for item in self.constants)
        return (0, container, 0, 1, 0, 2 if packs or launches else 1, 0, 2 if quantized else 1)

    def _header(self, versions: Tuple[int, ...], file_size: int, section_count: int, table: bytes) -> bytes:
        fixed = (file_size, self.required_features, self.optional_features, section_count, 64, 128, 0)
        head = struct.pack("<8s8H3Q2I2Q40x", MAGIC, *versions, *fixed)
        return head + xxhash.xxh3_128_digest(head + bytes(16) + table)

    def _stream_data(self, file: BinaryIO, start: int, offset: int) -> bytes:
        digests = ChunkDigests(self._leaves)
        file.seek(start + offset)
        at = 0
        given = self._given_data()
        if given is not None:
            digests.update(memoryview(given))
            file.write(given)
            return digests.finish()
        for item in self.constants:
            for part in item.components if item.source == 0 else ():
                padding = bytes(part.offset_bytes - at)
                for piece in (padding, part.data):
                    digests.update(memoryview(piece))
                    file.write(piece)
                at = part.offset_bytes + part.size_bytes
        return digests.finish()


class ChunkDigests:
    """Digests of consecutive chunks of a stream."""

    def __init__(self, leaves: Optional[List[bytes]] = None) -> None:
        """`leaves`: where each chunk's leaf goes, too."""
        self.digests: List[bytes] = []
        self.hasher = xxhash.xxh3_128()
        self.filled = 0
        self.leaves = leaves
        self.leaf = signing.Leaf(0)

    def update(self, data: memoryview) -> None:
        while len(data):
            piece = data[: CHUNK_BYTES - self.filled]
            self.hasher.update(piece)
            if self.leaves is not None:
                self.leaf.pieces.append(piece)
            self.filled += len(piece)
            data = data[len(piece) :]
            if self.filled == CHUNK_BYTES:
                self._next()

    def _next(self) -> None:
        self.digests.append(self.hasher.digest())
        if self.leaves is not None:
            self.leaves.append(self.leaf.finish())
            self.leaf = signing.Leaf(len(self.leaves))
        self.hasher = xxhash.xxh3_128()
        self.filled = 0

    def finish(self) -> bytes:
        if self.filled:
            self._next()
        return b"".join(self.digests)
