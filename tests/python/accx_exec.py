"""Reads and runs .accx bundles in Python alone: an independent check of the writer and of what the
compiler emits.

It shares no code with accrt.bundle_writer: the byte layout is written down here again, from
format/format.h. Kernels are called in the bundle's own x86 or Arm image through ctypes. Commands
run in a shuffled order that their predecessors allow, transient memory and results start as NaN
patterns, so a missing dependency or an unwritten byte shows.
"""

from __future__ import annotations

import ctypes
import os
import random
import struct
import tempfile
from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy as np
import xxhash

from kernel_harness import _ENTRY, ENVIRONMENT, SEED, _Dispatch, _Table, _Workgroup, host_targets

NONE = 0xFFFFFFFF
DTYPES = {
    1: np.bool_, 2: np.int8, 3: np.int16, 4: np.int32, 5: np.int64, 6: np.uint8, 7: np.uint16, 8: np.uint32, 9: np.uint64,
    10: np.float16, 11: np.uint16, 12: np.float32, 13: np.float64,
}  # fmt: skip
RECORD_BYTES = {
    1: 0, 2: 8, 3: 40, 4: 8, 5: 24, 6: 96, 7: 24, 8: 64, 9: 64, 10: 80, 11: 16, 12: 72, 13: 16, 14: 0, 15: 32, 16: 16, 17: 48,
    18: 16, 19: 24, 20: 16, 21: 40, 40: 80, 41: 112, 43: 32, 62: 0, 63: 0,
}  # fmt: skip
SIGNED = (40, 41, 43)  # tree, signatures, leaves: what the compiler adds when it signs
GUARD = 256


class FormatError(Exception):
    pass


def check(condition: bool, message: str) -> None:
    if not condition:
        raise FormatError(message)


@dataclass
class Symbol:
    name: str
    kind: int
    minimum: int
    maximum: int
    divisor: int
    buckets: Tuple[int, ...]


@dataclass
class Function:
    name: str
    flags: int
    inputs: List[dict]
    results: List[dict]
    slots: List[Tuple[int, int, int]]
    expressions: List[Tuple]
    body: int
    transient_size: int
    transient_align: int
    target: str


class Bundle:
    """A parsed bundle; every structural rule that the specification names is checked while
    parsing."""

    def __init__(self, data: bytes):
        self.data = data
        self._header()
        self.strings_seen: set = {0}
        self.symbols = [self._symbol(r) for r in self.records(3)]
        self.expressions = [struct.unpack("<4Iq", r) for r in self.records(5)]
        self.components = [struct.unpack("<2I2Q", r) for r in self.records(7)]
        self.constants = [self._constant(r) for r in self.records(6)]
        self.states = [self._state(r) for r in self.records(8)]
        self.arguments = [self._argument(r) for r in self.records(10)]
        self.slots = [struct.unpack("<4I", r)[:3] for r in self.records(11)]
        self.views = [struct.unpack("<18I", r) for r in self.records(12)]
        self.blocks = [struct.unpack("<Q2I", r) for r in self.records(13)]
        self.functions = [self._function(r) for r in self.records(9)]
        self.parameters = [struct.unpack("<I4B2I", r) for r in self.records(16)]
        self.predicates = [struct.unpack("<2Iq", r) for r in self.records(18)]
        self.variants = [struct.unpack("<3Ii2Q4I", r) for r in self.records(17)]
        self.kernels = [struct.unpack("<8I", r) for r in self.records(15)]
        self.images = [struct.unpack("<2I2Q", r) for r in self.records(19)]
        self.launches = [struct.unpack("<10I", r) for r in self.records(21)]
        self.metadata = {self.string(k): self.string(v) for k, v in (struct.unpack("<2I", r) for r in self.records(2))}
        self._check_names()
        self._check_launches()
        self._check_versions()
        self.block_commands = [self._commands(b) for b in self.blocks]

    def _header(self) -> None:
        data = self.data
        check(data[:8] == b"\x89ACCX\r\n\x1a", "magic")
        versions = struct.unpack_from("<8H", data, 8)
        check(versions[0::2] == (0,) * 4 and versions[3] == versions[7] == 1, f"versions {versions}")
        self.versions = versions
        size, required, optional, count, record, table, flags = struct.unpack_from("<3Q2I2Q", data, 24)
        check((size, required, optional, record, table, flags) == (len(data), 0, 0, 64, 128, 0), "header fields")
        check(1 <= count <= 64 and data[72:112] == bytes(40), "section count or reserved bytes")
        digest = xxhash.xxh3_128_digest(data[:112] + bytes(16) + data[128 : 128 + 64 * count])
        check(digest == data[112:128], "header digest")
        self.sections: Dict[int, Tuple[int, int, int]] = {}
        end = 128 + 64 * count
        last = 0
        for i in range(count):
            kind, flags, offset, size, record, number, name = struct.unpack_from("<2I2Q2I16s", data, 128 + 64 * i)
            check(kind > last and flags == int(kind not in (2, *SIGNED)), f"section {kind}: order or flags")
            align = 4096 if kind in (62, 63) else 8
            check(offset == (end + align - 1) // align * align and not any(data[end:offset]), f"section {kind}: place or gap")
            check(record == RECORD_BYTES[kind] and (not record or record * number == size), f"section {kind}: records")
            body = data[offset : offset + size]
            digested = self._body(20) if kind == 63 else body
            check(xxhash.xxh3_128_digest(digested) == data[128 + 64 * i + 48 : 128 + 64 * i + 64], f"section {kind}: digest")
            self.sections[kind] = (offset, size, number)
            last, end = kind, offset + size
        check(end == len(data), "the file ends elsewhere than its last section")
        self._check_chunks()
        strings = self._body(1)
        check(strings[:1] == b"\0" and strings[-1:] == b"\0", "strings")
        parts = strings[:-1].split(b"\0")
        check(parts == sorted(set(parts)) and len(parts) == self.sections[1][2], "strings are not sorted or not unique")

    def _check_chunks(self) -> None:
        body, digests = self._body(63), self._body(20)
        made = b"".join(xxhash.xxh3_128_digest(body[i : i + (1 << 20)]) for i in range(0, len(body), 1 << 20))
        check(made == digests, "chunk digests")

    def _body(self, kind: int) -> bytes:
        if kind not in self.sections:
            return b""
        offset, size, _ = self.sections[kind]
        return self.data[offset : offset + size]

    def records(self, kind: int) -> List[bytes]:
        body, size = self._body(kind), RECORD_BYTES[kind]
        return [body[i : i + size] for i in range(0, len(body), size)]

    def string(self, offset: int) -> str:
        body = self._body(1)
        check(offset < len(body) and (offset == 0 or body[offset - 1] == 0), f"string offset {offset}")
        return body[offset : body.index(b"\0", offset)].decode()

    def _symbol(self, record: bytes) -> Symbol:
        name, kind, low, high, divisor, first, count = struct.unpack("<2I3q2I", record)
        buckets = struct.unpack_from(f"<{count}q", self._body(4), 8 * first) if count else ()
        check(0 <= low <= high <= 1 << 48 and divisor >= 1 and kind < 4, f"symbol {name}")
        check(not buckets or (list(buckets) == sorted(set(buckets)) and buckets[-1] >= high), "buckets")
        return Symbol(self.string(name), kind, low, high, divisor, buckets)

    def _constant(self, record: bytes) -> dict:
        head, shape = struct.unpack("<8I", record[:32]), struct.unpack("<8q", record[32:])
        name, source, dtype, encoding, rank, first, count, reserved = head
        check(count == 1 and not reserved and not any(shape[rank:]), f"constant {self.string(name)}")
        role, _dtype, offset, size = self.components[first]
        elements = int(np.prod(shape[:rank], dtype=object)) if rank else 1
        check(role == 0 and offset % 256 == 0, "component")
        check(encoding != 0 or size == elements * np.dtype(DTYPES[dtype]).itemsize, f"size of constant {self.string(name)}")
        check(source == 1 or offset + size <= self.sections.get(63, (0, 0, 0))[1], "constant outside DATA")
        made = dict(name=self.string(name), prepared=source == 1, dtype=DTYPES[dtype], shape=shape[:rank], size=size)
        base = self.sections[63][0] if 63 in self.sections else 0
        made["bytes"] = None if source == 1 else self.data[base + offset : base + offset + size]
        return made

    def _type(self, record: bytes) -> dict:
        dtype, encoding, rank, reserved, *dims = struct.unpack("<12I", record)
        check(not reserved and all(d == NONE for d in dims[rank:]) and NONE not in dims[:rank], "type")
        return dict(dtype=DTYPES[dtype], encoding=encoding, dims=dims[:rank])

    def _state(self, record: bytes) -> dict:
        name, flags = struct.unpack("<2I", record[:8])
        check(flags == 0, "state flags")
        return dict(name=self.string(name), fill=struct.unpack("<Q", record[56:])[0], **self._type(record[8:56]))

    def _argument(self, record: bytes) -> dict:
        keys = ("name", "kind", "flags", "symbol", "alias_kind", "alias_input", "constant", "doc")
        made = dict(zip(keys, struct.unpack("<8I", record[:32])))
        made["name"], made["doc"] = self.string(made["name"]), self.string(made["doc"])
        return dict(made, **self._type(record[32:]))

    def _function(self, record: bytes) -> Function:
        name, flags, features = struct.unpack("<2IQ", record[:16])
        a, inputs, results, s, slots, e, expressions, body, size, align, doc, target = struct.unpack("<12I", record[16:])
        check(features == int(target != 0) and flags < 4, "function flags")
        nodes = self.expressions[e : e + expressions]
        for at, (op, *operands, _immediate) in enumerate(nodes):
            check(op < 20 and all(o == NONE or o < at for o in operands), f"expression {at}")
        made = Function(
            self.string(name), flags, self.arguments[a : a + inputs], self.arguments[a + inputs : a + inputs + results],
            self.slots[s : s + slots], nodes, body, size, align, self.string(target),
        )  # fmt: skip
        for index in range(inputs + results):
            check(made.slots[index] == (0, index, 0), f"slot {index} is not argument {index}")
        return made

    def _check_names(self) -> None:
        for names in ([s.name for s in self.symbols], [c["name"] for c in self.constants], [s["name"] for s in self.states],
                      [self.string(k[0]) for k in self.kernels]):  # fmt: skip
            check(names == sorted(set(names)), f"names are not sorted or not unique: {names}")
        names = [(f.name, f.target) for f in self.functions]
        check(len(names) == len(set(names)), "functions of one name and target")
        for function in self.functions:
            first = next(f for f in self.functions if f.name == function.name)
            check(self._signature(first) == self._signature(function), f"signatures of {function.name}")

    @staticmethod
    def _signature(function: Function) -> Tuple:
        lines = [{k: v for k, v in a.items() if k != "doc"} for a in function.inputs + function.results]
        last = max((d for line in lines for d in line["dims"]), default=-1)
        return function.flags, len(function.inputs), lines, function.expressions[: last + 1]

    def _check_launches(self) -> None:
        device = [i for i, v in enumerate(self.variants) if self.images[v[6]][0] in (2, 3, 4)]
        check([launch[0] for launch in self.launches] == device, "launches are not those of the device code")
        for _variant, traits, x, y, z, cx, cy, cz, shared, reserved in self.launches:
            check(traits & ~96 == 0 and 1 <= x * y * z <= 1024 and reserved == 0, "launch")
            check((cx, cy, cz) == (0, 0, 0) or 1 <= cx * cy * cz <= 64, "cluster")

    def _check_versions(self) -> None:
        packs = any(kind == 5 for kind, *_ in self.images)
        floors = any(v[1] == 0 and v[2] != 0 for v in self.variants)
        newer = packs or floors or self.launches or any(f.target for f in self.functions)
        least = 3 if any(kind in self.sections for kind in SIGNED) else 2 if newer else 1
        check(self.versions[1] == least, f"container version {self.versions}")
        check(self.versions[5] == (2 if packs or self.launches else 1), f"kernel ABI version {self.versions}")

    def function(self, name: str) -> Function:
        """The version that a host device uses."""
        found = [f for f in self.functions if f.name == name and f.target in ("", "host")]
        return max(found, key=lambda f: f.target)

    def _commands(self, block: Tuple[int, int, int]) -> List[dict]:
        at, size, count = block
        body, end = self._body(14), at + size
        made = []
        for index in range(count):
            made.append(self._command(body, at, index))
            at += made[-1]["size"]
        check(at == end, "commands do not fill their block")
        return made

    def _command(self, body: bytes, at: int, index: int) -> dict:
        opcode, flags, size, name, location, before, reserved = struct.unpack_from("<2H5I", body, at)
        check(size % 8 == 0 and reserved == 0 and location == NONE and flags == int(opcode != 8), f"command {index}")
        fields, cursor = dict(op=opcode, size=size, name=self.string(name)), at + 24
        if opcode in (1, 5):
            form = "<6I" if opcode == 1 else "<2I"
            fields["head"] = struct.unpack_from(form, body, cursor)
            cursor += struct.calcsize(form)
            fields["operands"] = []
            for _ in range(fields["head"][1]):
                kind, expression, view, zero, *span, immediate = struct.unpack_from("<8IQ", body, cursor)
                check(zero == 0, "operand")
                fields["operands"].append((kind, expression, view, tuple(span), immediate))
                cursor += 40
        else:
            form = {2: "<16I", 3: "<4IQ2I", 4: "", 6: "<2I", 7: "<4I", 8: "<2I"}[opcode]
            fields["head"] = struct.unpack_from(form, body, cursor)
            cursor += struct.calcsize(form)
        fields["before"] = struct.unpack_from(f"<{before}I", body, cursor)
        check(list(fields["before"]) == sorted(set(fields["before"])) and all(p < index for p in fields["before"]), "predecessors")
        cursor += 4 * before
        check(at + size == (cursor + 7) // 8 * 8 and not any(body[cursor : at + size]), f"size of command {index}")
        return fields


def _fold(op: int, a: int, b: int) -> Any:
    if op in (6, 7, 8) and b == 0:
        return None
    table = {
        3: lambda: a + b, 4: lambda: a - b, 5: lambda: a * b, 6: lambda: a // b, 7: lambda: -(-a // b), 8: lambda: a % b,
        9: lambda: min(a, b), 10: lambda: max(a, b), 11: lambda: int(a == b), 12: lambda: int(a != b), 13: lambda: int(a < b),
        14: lambda: int(a <= b), 15: lambda: int(bool(a) and bool(b)), 16: lambda: int(bool(a) or bool(b)),
    }  # fmt: skip
    value = table[op]()
    return value if -(1 << 63) <= value < 1 << 63 else None


class Expressions:
    """Values of one scope for given symbols."""

    def __init__(self, nodes: Sequence[Tuple], names: Sequence[str], symbols: Dict[str, int], present: Sequence[bool]):
        self.nodes, self.names, self.symbols, self.present = nodes, names, symbols, present
        self.inductions: List[int] = []

    def value(self, index: int) -> Any:
        op, a, b, c, immediate = self.nodes[index]
        if op == 0:
            return immediate
        if op == 1:
            return self.symbols.get(self.names[immediate])
        if op == 2:
            return self.inductions[immediate] if immediate < len(self.inductions) else None
        if op == 19:
            return int(self.present[immediate])
        if op == 18:
            condition = self.value(a)
            return None if condition is None else self.value(b if condition else c)
        left = self.value(a)
        if op == 17:
            return None if left is None else int(not left)
        right = self.value(b)
        return None if left is None or right is None else _fold(op, left, right)

    def __getitem__(self, index: int) -> int:
        value = self.value(index)
        check(value is not None, f"expression {index} has no value")
        return value


class Memory:
    """Bytes at an aligned address with guards on both sides."""

    def __init__(self, size: int, fill: int = 0xFF, content: Optional[bytes] = None):
        self.size = size
        self.block = np.full(size + 2 * GUARD + 4096, fill, np.uint8)
        self.start = (-self.block.ctypes.data - GUARD) % 4096 + GUARD
        self.before = None
        self.array = self.block[self.start : self.start + size]
        if content is not None:
            self.array[:] = np.frombuffer(content, np.uint8)
        self.block[: self.start] = 0xA5
        self.block[self.start + size :] = 0xA5

    @property
    def address(self) -> int:
        return self.block.ctypes.data + self.start

    def check(self, name: str) -> None:
        ok = (self.block[: self.start] == 0xA5).all() and (self.block[self.start + self.size :] == 0xA5).all()
        check(bool(ok), f"{name}: written outside")


class Program:
    """A bundle on this machine: the image loaded, prepare functions run."""

    def __init__(self, data: bytes, target: str = "", seed: int = SEED):
        self.bundle = Bundle(data)
        self.target = target or host_targets()[-1]
        self.random = random.Random(seed)
        self.entries: Dict[Tuple[int, str], Any] = {}
        self.tables: Dict[int, Dict[str, Any]] = {}
        self.constants = [None if c["prepared"] else Memory(c["size"], content=c["bytes"]) for c in self.bundle.constants]
        self.dispatches = 0
        for function in self.bundle.functions:
            if function.flags & 1 and function.target in ("", "host") and function is self.bundle.function(function.name):
                self._prepare(function)

    def _prepare(self, function: Function) -> None:
        memories = []
        for argument in function.inputs + function.results:
            constant = self.bundle.constants[argument["constant"]]
            if self.constants[argument["constant"]] is None:
                self.constants[argument["constant"]] = Memory(constant["size"])
            memories.append(self.constants[argument["constant"]])
        expressions = Expressions(function.expressions, [s.name for s in self.bundle.symbols], {}, [])
        _Run(self, function, memories, expressions, {}).run()

    def image(self, index: int) -> Dict[str, Any]:
        if index not in self.tables:
            _kind, _name, offset, size = self.bundle.images[index]
            base = self.bundle.sections[62][0]
            handle, path = tempfile.mkstemp(suffix=".so")
            with os.fdopen(handle, "wb") as out:
                out.write(self.bundle.data[base + offset : base + offset + size])
            library = ctypes.CDLL(path)
            os.unlink(path)
            library.accrt_kernel_pack_query.restype = ctypes.POINTER(_Table)
            table = library.accrt_kernel_pack_query(ctypes.c_uint32(3), ctypes.byref(ENVIRONMENT)).contents
            self.tables[index] = {table.kernels[i].name.decode(): table.kernels[i] for i in range(table.kernel_count)}
        return self.tables[index]

    def entry(self, kernel: int) -> Any:
        name, traits, _pf, _pc, params_size, local, first, count = self.bundle.kernels[kernel]
        for variant in self.bundle.variants[first : first + count]:
            driver, _kind, arch, _priority, _features, _required, image, entry, _qf, _qc = variant
            if self.bundle.string(driver) == "host" and self.bundle.string(arch) == self.target:
                record = self.image(image)[self.bundle.string(entry)]
                same = (record.params_size_bytes, record.local_memory_size_bytes, record.traits) == (params_size, local, traits)
                check(same, f"kernel {self.bundle.string(name)}: image and bundle disagree")
                return record
        raise FormatError(f"kernel {self.bundle.string(name)} has no variant for {self.target}")


class Session:
    """State, and calls of functions."""

    def __init__(self, program: Program, **symbols: int):
        self.program = program
        bundle = program.bundle
        self.symbols = {s.name: symbols.get(s.name, s.maximum) for s in bundle.symbols if s.kind == 3}
        scope = Expressions(bundle.expressions, [s.name for s in bundle.symbols], self.symbols, [])
        self.states = []
        for state in bundle.states:
            shape = [scope[d] for d in state["dims"]]
            item = np.dtype(state["dtype"]).itemsize
            pattern = state["fill"].to_bytes(8, "little")[:item]
            self.states.append(Memory(int(np.prod(shape, dtype=np.int64)) * item, content=pattern * int(np.prod(shape, dtype=np.int64))))

    def state(self, name: str) -> np.ndarray:
        index = [s["name"] for s in self.program.bundle.states].index(name)
        return self.states[index].array.view(self.program.bundle.states[index]["dtype"])

    def run(self, name: str, *tensors: Any, **scalars: int) -> List[np.ndarray]:
        """Tensors in order (None: an optional one is absent), scalars by name. Returns results;
        read_write inputs are updated in place."""
        bundle = self.program.bundle
        function = bundle.function(name)
        symbols = dict(self.symbols)
        arrays: List[Any] = []
        pending = list(tensors)
        for argument in function.inputs:
            arrays.append(None if argument["kind"] == 4 else pending.pop(0))
            if argument["kind"] == 4:
                symbols[bundle.symbols[argument["symbol"]].name] = scalars[argument["name"]]
        names = [s.name for s in bundle.symbols]
        expressions = Expressions(function.expressions, names, symbols, [a is not None for a in arrays])
        self._bind(function, arrays, expressions)
        memories: List[Optional[Memory]] = []
        for argument, array in zip(function.inputs, arrays):
            memories.append(None if array is None else Memory(array.nbytes, content=np.ascontiguousarray(array).tobytes()))
        shapes = [[expressions[d] for d in r["dims"]] for r in function.results]
        for result, shape in zip(function.results, shapes):
            memories.append(Memory(int(np.prod(shape, dtype=np.int64)) * np.dtype(result["dtype"]).itemsize))
        _Run(self.program, function, memories, expressions, self.states).run()
        for argument, array, memory in zip(function.inputs, arrays, memories):
            if argument["kind"] == 1 and array is not None:
                array[...] = memory.array.view(array.dtype).reshape(array.shape)
            elif argument["kind"] == 0 and array is not None:
                check(memory.array.tobytes() == np.ascontiguousarray(array).tobytes(), f"{argument['name']} was written to")
        made = memories[len(function.inputs) :]
        return [m.array.view(r["dtype"]).reshape(s) for m, r, s in zip(made, function.results, shapes)]

    def _bind(self, function: Function, arrays: Sequence[Any], expressions: Expressions) -> None:
        for argument, array in zip(function.inputs, arrays):
            for dim, size in zip(argument["dims"], () if array is None else array.shape):
                op, *_rest, immediate = function.expressions[dim]
                if op == 1:
                    expressions.symbols.setdefault(expressions.names[immediate], size)
        for argument, array in zip(function.inputs, arrays):
            if array is None:
                continue
            check(array.dtype == argument["dtype"], f"{argument['name']}: {array.dtype}, not {argument['dtype']}")
            expected = tuple(expressions[d] for d in argument["dims"])
            check(array.shape == expected, f"{argument['name']}: shape {array.shape}, not {expected}")
        for symbol in self.program.bundle.symbols:
            value = expressions.symbols.get(symbol.name)
            inside = value is None or (symbol.minimum <= value <= symbol.maximum and value % symbol.divisor == 0)
            check(inside, f"symbol {symbol.name} = {value}")


class _Run:
    """One run of a function with its memory bound."""

    def __init__(self, program: Program, function: Function, memories: List, expressions: Expressions, states: Any):
        self.program, self.function, self.e, self.states = program, function, expressions, states
        self.slots: List[Optional[Memory]] = []
        for kind, index, _component in function.slots:
            if kind == 0:
                self.slots.append(memories[index])
            elif kind == 1:
                self.slots.append(program.constants[index])
            elif kind == 2:
                self.slots.append(states[index])
            else:
                self.slots.append(Memory(expressions[function.transient_size]))

    def run(self) -> None:
        self.block(self.function.body)
        for index, memory in enumerate(self.slots):
            if memory is not None:
                memory.check(f"{self.function.name}: slot {index}")

    def block(self, index: int) -> None:
        commands = self.program.bundle.block_commands[index]
        waiting = {i: set(c["before"]) for i, c in enumerate(commands)}
        barrier = max((i for i, c in enumerate(commands) if c["op"] == 4), default=-1)
        for i in waiting:
            for b in range(barrier + 1):
                if commands[b]["op"] == 4:
                    waiting[i] |= set(range(b)) if i == b else {b} if i > b else set()
        while waiting:
            ready = [i for i, before in waiting.items() if not before]
            chosen = self.program.random.choice(ready)
            self.command(commands[chosen])
            del waiting[chosen]
            for before in waiting.values():
                before.discard(chosen)

    def span(self, span: Tuple[int, ...]) -> Tuple[Memory, int, int]:
        slot, _access, offset, size = span
        memory = self.slots[slot]
        start = self.e[offset]
        length = memory.size - start if size == NONE else self.e[size]
        check(0 <= start and 0 <= length and start + length <= memory.size, f"range [{start}, +{length}) of {memory.size} bytes")
        return memory, start, length

    def command(self, command: dict) -> None:
        op, head = command["op"], command["head"]
        if op == 1:
            self.dispatch(command)
        elif op == 2:
            self.copy(head)
        elif op == 3:
            memory, start, length = self.span(head[:4])
            pattern = head[4].to_bytes(8, "little")[: head[5]]
            memory.array[start : start + length] = np.frombuffer(pattern * (length // head[5]), np.uint8)
        elif op == 5:
            self.call(command)
        elif op == 6:
            for i in range(self.e[head[0]]):
                self.e.inductions.append(i)
                self.block(head[1])
                self.e.inductions.pop()
        elif op == 7:
            chosen = head[1] if self.e[head[0]] else head[2]
            if chosen != NONE:
                self.block(chosen)

    def copy(self, head: Tuple[int, ...]) -> None:
        source, start, _ = self.span(head[:4])
        target, to, _ = self.span(head[4:8])
        x, y, z = (self.e[i] for i in head[8:11])
        steps = [self.e[i] for i in head[11:15]]
        check(min(x, y, z, *steps) >= 0, f"out of range: extents {x}, {y}, {z} and strides {steps}")
        if x == 0:
            return  # a condition: what it says of a dimension was just checked
        for k in range(z):
            for j in range(y):
                a, b = start + j * steps[0] + k * steps[1], to + j * steps[2] + k * steps[3]
                check(a + x <= source.size and b + x <= target.size, "copy outside")
                target.array[b : b + x] = source.array[a : a + x]

    def dispatch(self, command: dict) -> None:
        kernel, _count, gx, gy, gz, zero = command["head"]
        record = self.program.bundle.kernels[kernel]
        entry = self.program.entry(kernel)
        params = self.program.bundle.parameters[record[2] : record[2] + record[3]]
        block = bytearray(record[4])
        for (name, kind, access, flags, _align, offset, size), operand in zip(params, command["operands"]):
            block[offset : offset + size] = self.argument(kind, access, flags, size, operand)
        grid = (self.e[gx], self.e[gy], self.e[gz])
        check(zero == 0 and min(grid) >= 0, f"grid {grid}")
        self.program.dispatches += 1
        self.launch(command["name"], entry, bytes(block), grid, record[5])

    def argument(self, kind: int, access: int, flags: int, size: int, operand: Tuple) -> bytes:
        what, expression, view, span, immediate = operand
        if what == 6:
            check(bool(flags & 1), "an argument is absent that is not optional")
            return bytes(size)
        if what == 3:
            return immediate.to_bytes(8, "little")[:size]
        if what == 4:
            return struct.pack("<q", self.e[expression])
        check(span[1] == access and kind == {1: 1, 2: 2, 5: 5}[what], "access of an operand")
        if self.slots[span[0]] is None:
            return bytes(size)
        memory, start, _length = self.span(span)
        address = struct.pack("<Q", memory.address + start)
        if what != 2:
            return address
        dtype, rank, *dims = self.program.bundle.views[view]
        shape = [self.e[d] for d in dims[:rank]] + [0] * (8 - rank)
        strides = [self.e[d] for d in dims[8 : 8 + rank]] + [0] * (8 - rank)
        return address + struct.pack("<2I8q8q", dtype, rank, *shape, *strides)

    def launch(self, name: str, record: Any, params: bytes, grid: Tuple[int, int, int], local: int) -> None:
        if 0 in grid:
            return
        entry = _ENTRY(record.entry)
        block = Memory(len(params), content=params)
        scratch = Memory(local)
        dispatch = _Dispatch(ctypes.sizeof(_Dispatch), grid, block.address, len(params), 1, 1)
        message = ctypes.create_string_buffer(256)
        group = _Workgroup(
            ctypes.sizeof(_Workgroup), (0, 0, 0), 0, local, scratch.address if local else None, ctypes.addressof(message), 256, 0
        )
        for z in range(grid[2]):
            for y in range(grid[1]):
                for x in range(grid[0]):
                    group.workgroup_id[0], group.workgroup_id[1], group.workgroup_id[2] = x, y, z
                    code = entry(ctypes.byref(ENVIRONMENT), ctypes.byref(dispatch), ctypes.byref(group))
                    if code:
                        raise RuntimeError(f"{name}: {code}: {message.value.decode()}")
        scratch.check(f"{name}: local memory")

    def call(self, command: dict) -> None:
        callee = self.program.bundle.functions[command["head"][0]]
        symbols = dict(self.e.symbols)
        memories: List[Optional[_Slice]] = []
        for argument, operand in zip(callee.inputs + callee.results, command["operands"]):
            if operand[0] == 4:
                symbols[self.e.names[argument["symbol"]]] = self.e[operand[1]]
                memories.append(None)
            elif operand[0] == 6:
                memories.append(None)
            else:
                memories.append(_Slice(*self.span(operand[3])))
        present = [m is not None for m in memories]
        expressions = Expressions(callee.expressions, self.e.names, symbols, present)
        _Run(self.program, callee, memories, expressions, self.states).run()


class _Slice:
    """A part of a Memory."""

    def __init__(self, memory: Any, start: int, size: int):
        self.address, self.size, self.array = memory.address + start, size, memory.array[start : start + size]

    def check(self, name: str) -> None:
        pass
