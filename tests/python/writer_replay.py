"""Makes a bundle again through the C writer: reads the bytes of one with `struct` alone and
declares what is in it, in an order that a generator chooses, so that equal bytes show both that the
writer is canonical and that it can express everything."""

from __future__ import annotations

import ctypes
import os
import random
import struct
import tempfile

from accrt import _ffi
from accrt._library import check, lib, struct as new_struct

NONE = 0xFFFFFFFF
#: Sections that the writer makes from what it is told; others are given as bytes.
MADE = {*range(1, 22), 32, 33, 37, 38, 39, 42, 46, 62, 63}
OPERANDS = {1: "range", 2: "range", 5: "range"}


class Parsed:
    """Sections and strings of a file."""

    def __init__(self, data: bytes):
        self.data = data
        self.versions = struct.unpack_from("<8H", data, 8)
        self.optional_features, count = struct.unpack_from("<QI", data, 40)
        self.sections = {}
        for i in range(count):
            kind, _flags, offset, size, record, records, name = struct.unpack_from("<2I2Q2I16s", data, 128 + 64 * i)
            self.sections[kind] = (offset, size, record, records, name.rstrip(b"\0").decode())
        self.read_strings = {0}

    def bytes(self, kind: int) -> bytes:
        offset, size = self.sections.get(kind, (0, 0))[:2]
        return self.data[offset : offset + size]

    def records(self, kind: int) -> list:
        size = self.sections[kind][2] if kind in self.sections else 0
        data = self.bytes(kind)
        return [data[i : i + size] for i in range(0, len(data), size or 1)]

    def raw_text(self, offset: int) -> bytes:
        strings = self.bytes(1)
        self.read_strings.add(offset)
        return strings[offset : strings.index(b"\0", offset)]

    def unread_strings(self) -> list:
        strings, at, found = self.bytes(1), 0, []
        while at < len(strings):
            end = strings.index(b"\0", at)
            if at not in self.read_strings:
                found.append(strings[at:end])
            at = end + 1
        return found


class Replay:
    """One writer with the content of a file. `order` chooses whatever can be chosen."""

    def __init__(self, data: bytes, order: random.Random, target=None):
        self.file, self.order = Parsed(data), order
        self.alive, self.tasks, self.ids = [], {}, {}
        options = new_struct(_ffi.accrt_bundle_writer_options)
        if target is not None:
            options.target = ctypes.pointer(target)
        self.writer = _ffi.accrt_bundle_writer_p()
        check(lib.accrt_bundle_writer_create(ctypes.byref(options), ctypes.byref(self.writer)))
        self.copy = tempfile.TemporaryFile()
        self.copy.write(data)
        self.copy.flush()
        self._plan()
        self._run()

    def close(self):
        lib.accrt_bundle_writer_release(self.writer)
        self.copy.close()

    # -- calls

    def call(self, name: str, *arguments):
        check(getattr(lib, "accrt_bundle_writer_" + name)(self.writer, *arguments))

    def id_of(self, name: str, *arguments) -> int:
        out = ctypes.c_uint32()
        self.call(name, *arguments, ctypes.byref(out))
        return out.value

    def array(self, kind, items):
        items = list(items)
        made = (kind * max(len(items), 1))(*items)
        self.alive.append(made)
        return ctypes.cast(made, ctypes.POINTER(kind))

    def source(self, offset: int, size: int):
        """Bytes of the file, from memory, from a file, or through a function."""
        made = _ffi.accrt_writer_bytes(size_bytes=size, kind=self.order.randrange(3))
        if made.kind == 0:
            buffer = ctypes.create_string_buffer(self.file.data[offset : offset + size], max(size, 1))
            self.alive.append(buffer)
            made.data = ctypes.addressof(buffer)
        elif made.kind == 1:
            made.fd, made.offset = self.copy.fileno(), offset
        else:
            def read(_self, at, target, count):
                ctypes.memmove(target, self.file.data[offset + at : offset + at + count], count)
                return 0

            made.read = dict(_ffi.accrt_writer_bytes._fields_)["read"](read)
            self.alive.append(made.read)
        return made

    # -- tasks

    def task(self, key, needs, run):
        self.tasks[key] = (set(needs), run)

    def _run(self):
        done, waiting = set(), dict(self.tasks)
        while waiting:
            ready = [key for key, (needs, _run) in waiting.items() if needs <= done]
            key = self.order.choice(ready)
            self.ids[key] = waiting.pop(key)[1]()
            done.add(key)
        for text in self.file.unread_strings():
            self.call("add_string", text)
        self.call("set_optional_features", self.file.optional_features)

    def text(self, offset: int) -> bytes:
        return self.file.raw_text(offset)

    def _plan(self):
        records = self.file.records
        for i, record in enumerate(records(2)):
            key, value = struct.unpack("<2I", record)
            self.task(("metadata", i), (), lambda k=key, v=value: self.call("add_metadata", self.text(k), self.text(v)))
        for i, record in enumerate(records(3)):
            self.task(("symbol", i), (), lambda r=record: self._symbol(r))
        for i, record in enumerate(records(37)):
            self.task(("file", i), (), lambda r=record: self._file(r))
        for i, record in enumerate(records(33)):
            self.task(("location", i), (), lambda r=record: self._location(r))
        for i, record in enumerate(records(6)):
            needs = [("file", f) for f in struct.unpack("<I", record[96:100]) if f != NONE] if len(record) > 96 else []
            self.task(("constant", i), needs, lambda r=record: self._constant(r))
        for i, record in enumerate(records(8)):
            self.task(("state", i), [("symbol", s) for s in range(len(records(3)))], lambda r=record: self._state(r))
        for i, record in enumerate(records(38)):
            self.task(("shard", i), [("constant", struct.unpack("<I", record[:4])[0])], lambda r=record: self._shard(r))
        for i, record in enumerate(records(39)):
            slot, name, flags, _ = struct.unpack("<4I", record)
            self.task(("adapter", i), (), lambda s=slot, n=name, f=flags: self.call("add_adapter", self.text(s), self.text(n), f))
        for i, record in enumerate(records(32)):
            self.task(("asset", i), (), lambda r=record: self._asset(r))
        for kind in self.file.sections:
            # What is encrypted between constants is in the section alone.
            if kind not in MADE or (kind == 63 and 44 in self.file.sections):
                self.task(("section", kind), (), lambda k=kind: self._section(k))
        self._plan_kernels()
        self._plan_functions()

    # -- parts

    def _symbol(self, record):
        name, kind, low, high, divisor, first, count = struct.unpack("<2I3q2I", record)
        bounds = [struct.unpack("<q", r)[0] for r in self.file.records(4)[first : first + count]]
        made = new_struct(_ffi.accrt_writer_symbol, symbol_class=kind, name=self.text(name), minimum=low, maximum=high, divisor=divisor,
                          buckets=self.array(ctypes.c_int64, bounds), bucket_count=count, flags=int(high == 0))  # fmt: skip
        return self.id_of("add_symbol", ctypes.byref(made))

    def _file(self, record):
        name, kind, size, digest = struct.unpack("<2IQ16s8x", record)
        return self.id_of("add_file", self.text(name), kind, size, self.array(ctypes.c_ubyte, digest))

    def _location(self, record):
        file, line, column, name = struct.unpack("<4I", record)
        return self.id_of("add_location", self.text(file), line, column, self.text(name))

    def _constant(self, record):
        name, source, dtype, encoding, rank, first, count, group, *shape = struct.unpack("<8I8q", record[:96])
        components = []
        for r in self.file.records(7)[first : first + count]:
            role, stored, offset, size = struct.unpack("<2I2Q", r)
            given = self.source(self.file.sections[63][0] + offset, size) if source == 0 and 63 in self.file.sections else None
            given = given if given is not None else _ffi.accrt_writer_bytes(size_bytes=size)
            components.append(_ffi.accrt_writer_component(role=role, dtype=stored, bytes=given))
        made = new_struct(_ffi.accrt_writer_constant, source=source, name=self.text(name), dtype=dtype, encoding=encoding, rank=rank,
                          group_elements=group, shape=(ctypes.c_int64 * 8)(*shape), component_count=count,
                          components=self.array(_ffi.accrt_writer_component, components))  # fmt: skip
        if source == 2:
            file, tensor, digest, flags = struct.unpack("<2I16sI4x", record[96:])
            made.file = 0 if file == NONE else self.ids["file", file]
            made.tensor, made.binding_flags = self.text(tensor), flags
            made.digest = (ctypes.c_ubyte * 16)(*digest)
        return self.id_of("add_constant", ctypes.byref(made))

    def _type(self, record, expression):
        dtype, encoding, rank, group, *dims = struct.unpack("<12I", record)
        sizes = [expression(d) if d != NONE else 0 for d in dims]
        return _ffi.accrt_writer_type(dtype, encoding, group, rank, (ctypes.c_uint32 * 8)(*sizes))

    def _state(self, record):
        made = new_struct(_ffi.accrt_writer_state, name=self.text(struct.unpack("<I", record[:4])[0]),
                          type=self._type(record[8:56], self._scope(0, None)))  # fmt: skip
        made.fill_pattern = struct.unpack("<Q", record[56:])[0]
        return self.id_of("add_state", ctypes.byref(made))

    def _shard(self, record):
        constant, kind, axis, degree, extent, first, count = struct.unpack("<4Iq2I", record)
        segments = [_ffi.accrt_writer_segment(*struct.unpack("<2q2I", r)) for r in self.file.records(42)[first : first + count]]
        self.call("add_shard", self.ids["constant", constant], kind, axis, degree, extent,
                  self.array(_ffi.accrt_writer_segment, segments), count)  # fmt: skip

    def _asset(self, record):
        name, media, offset, size, _ = struct.unpack("<2I3Q", record)
        start = self.file.sections[46][0] if 46 in self.file.sections else 0
        self.call("add_asset", self.text(name), self.text(media), ctypes.byref(self.source(start + offset, size)))

    def _section(self, kind):
        offset, size, record, count, name = self.file.sections[kind]
        made = new_struct(_ffi.accrt_writer_section, type=kind, name=name.encode(), record_bytes=record, record_count=count,
                          bytes=self.source(offset, size))  # fmt: skip
        self.call("add_section", ctypes.byref(made))

    # -- code

    def _plan_kernels(self):
        for i, record in enumerate(self.file.records(19)):
            self.task(("image", i), (), lambda r=record: self._image(r))
        launches = {}
        for record in self.file.records(21):
            variant, traits, *sizes, shared, _ = struct.unpack("<10I", record)
            launches[variant] = (traits, sizes[:3], sizes[3:], shared)
        for i, record in enumerate(self.file.records(15)):
            first, count = struct.unpack("<2I", record[24:])
            self.task(("kernel", i), (), lambda r=record: self._kernel(r))
            for v in range(first, first + count):
                variant = self.file.records(17)[v]
                image = struct.unpack("<I", variant[32:36])[0]
                needs = [("kernel", i), ("image", image)] + ([("variant", v - 1)] if v > first else [])
                self.task(("variant", v), needs, lambda k=i, r=variant, a=launches.get(v): self._variant(k, r, a))

    def _image(self, record):
        kind, name, offset, size = struct.unpack("<2I2Q", record)
        given = ctypes.byref(self.source(self.file.sections[62][0] + offset, size)) if kind != 5 else None
        return self.id_of("add_image", self.text(name), kind, given)

    def _kernel(self, record):
        name, traits, first, count, size, local = struct.unpack("<6I", record[:24])
        parameters = []
        for r in self.file.records(16)[first : first + count]:
            label, kind, access, flags, align, offset, bytes_ = struct.unpack("<I4B2I", r)
            parameters.append(_ffi.accrt_writer_parameter(self.text(label), kind, access, flags, bytes_, offset, 1 << align))
        made = new_struct(_ffi.accrt_writer_kernel, name=self.text(name), traits=traits, parameter_count=count, params_size_bytes=size,
                          parameters=self.array(_ffi.accrt_writer_parameter, parameters), local_memory_bytes=local)  # fmt: skip
        return self.id_of("add_kernel", ctypes.byref(made))

    def _parameters(self, kernel):
        first, count = struct.unpack("<2I", self.file.records(15)[kernel][8:16])
        return [struct.unpack("<I4B2I", r) for r in self.file.records(16)[first : first + count]]

    def _variant(self, kernel, record, launch):
        driver, arch_kind, arch, priority, cpu, features, image, entry, first, count = struct.unpack("<3Ii2Q4I", record)
        names = [p[0] for p in self._parameters(kernel)]
        predicates = []
        for r in self.file.records(18)[first : first + count]:
            kind, parameter, value = struct.unpack("<2Iq", r)
            predicates.append(_ffi.accrt_writer_predicate(self.text(names[parameter]), kind, 0, value))
        self.order.shuffle(predicates)
        made = new_struct(_ffi.accrt_writer_variant, arch_kind=arch_kind, driver=self.text(driver), arch=self.text(arch),
                          entry=self.text(entry), image=self.ids["image", image], priority=priority, cpu_features=cpu,
                          required_features=features, predicate_count=count,
                          predicates=self.array(_ffi.accrt_writer_predicate, predicates))  # fmt: skip
        if launch is not None:
            made.launch_traits, made.dynamic_shared_bytes = launch[0], launch[3]
            made.block, made.cluster = (ctypes.c_uint32 * 3)(*launch[1]), (ctypes.c_uint32 * 3)(*launch[2])
        elif struct.unpack("<I", self.file.records(19)[image][:4])[0] in (2, 3, 4):
            made.flags = 1
        self.call("add_variant", self.ids["kernel", kernel], ctypes.byref(made))

    # -- functions

    def _plan_functions(self):
        functions = self.file.records(9)
        everything = [key for key in self.tasks if key[0] in ("symbol", "constant", "state", "kernel", "location")]
        for i, record in enumerate(functions):
            symbols = [key for key in everything if key[0] in ("symbol", "constant")]
            self.task(("function", i), symbols, lambda n=i, r=record: self._function(n, r))
        for i in range(len(functions)):
            before = [("function", f) for f in range(i + 1)]
            self.task(("body", i), everything + before, lambda n=i: self._body(n))

    def _scope(self, first, function):
        """Ids of the nodes of a scope by place."""
        nodes = self.file.records(5)
        made = {}

        def expression(index):
            if index not in made:
                op, a, b, c, value = struct.unpack("<4Iq", nodes[first + index])
                if op == 0:
                    made[index] = self.id_of("integer", value)
                elif op == 1:
                    made[index] = self.ids["symbol", value]
                elif op == 2:
                    made[index] = self.id_of("induction", value)
                elif op == 19:
                    made[index] = self.id_of("present", self.ids["slots", function][value])
                else:
                    made[index] = self.id_of("expression", op, *(expression(x) if x != NONE else 0 for x in (a, b, c)))
            return made[index]

        return expression

    def _function(self, number, record):
        name, flags, features, first, inputs, results = struct.unpack("<2IQ3I", record[:28])
        scope, doc, target = struct.unpack("<I16xII", record[36:])
        made = new_struct(_ffi.accrt_writer_function, flags=flags, name=self.text(name), doc=self.text(doc), target=self.text(target),
                          required_features=features & ~1)  # fmt: skip
        out, body = ctypes.c_uint32(), ctypes.c_uint32()
        self.call("add_function", ctypes.byref(made), ctypes.byref(out), ctypes.byref(body))
        self.ids["block", number] = body.value
        slots = self.ids["slots", number] = []
        expression = self._scope(scope, number)
        for r in self.file.records(10)[first : first + inputs + results]:
            slots.append(self._argument(out.value, r, slots, expression))
        return out.value

    def _argument(self, function, record, slots, expression):
        name, kind, flags, symbol, alias_kind, alias, constant, doc = struct.unpack("<8I", record[:32])
        made = new_struct(_ffi.accrt_writer_argument, kind=kind, name=self.text(name), doc=self.text(doc), optional=flags,
                          alias_kind=alias_kind, alias_input=slots[alias] if alias != NONE else 0)  # fmt: skip
        if kind == 4:
            made.symbol = self.ids["symbol", symbol]
        elif constant != NONE:
            made.constant = self.ids["constant", constant]
        else:
            made.type = self._type(record[32:], expression)
        return self.id_of("add_argument", function, ctypes.byref(made))

    def _body(self, number):
        record = self.file.records(9)[number]
        slot_first, slot_count, scope, _count, body, size, align = struct.unpack("<7I", record[28:56])
        function = self.ids["function", number]
        expression = self._scope(scope, number)
        slots = self.ids["slots", number]
        arena = None
        for r in self.file.records(11)[slot_first + len(slots) : slot_first + slot_count]:
            kind, index, component, _ = struct.unpack("<4I", r)
            if kind == 3:
                arena = len(slots)
                slots.append(self.id_of("arena", function, 0, 0))
            else:
                slots.append(self.id_of("slot", function, self.ids["constant" if kind == 1 else "state", index], component))
        if arena is not None or align != 1:
            self.id_of("arena", function, expression(size), align)
        self._block(body, self.ids["block", number], slots, expression)

    # -- commands

    def _commands(self, block):
        offset, size, count = struct.unpack("<Q2I", self.file.records(13)[block])
        stream, at = self.file.bytes(14), offset
        for _ in range(count):
            length = struct.unpack_from("<I", stream, at + 4)[0]
            yield stream[at : at + length]
            at += length

    def _block(self, block, target, slots, expression):
        made = []
        for data in self._commands(block):
            opcode, flags, _size, name, location, count, _ = struct.unpack("<2H5I", data[:24])
            padded = (count + count % 2) * 4
            before = list(struct.unpack_from(f"<{count}I", data, len(data) - padded))
            self.order.shuffle(before)
            body = data[24 : len(data) - padded]
            command = new_struct(_ffi.accrt_writer_command, opcode=opcode, name=self.text(name), after_count=count,
                                 after=self.array(ctypes.c_uint32, [made[b] for b in before]))  # fmt: skip
            if location != NONE:
                command.location = self.ids["location", location]
            blocks = self._fill_command(command, opcode, flags, body, slots, expression)
            made.append(self.id_of("add_command", target, ctypes.byref(command)))
            for index, nested in blocks:
                self._block(nested, self.id_of("block", made[-1], index), slots, expression)

    def _range(self, data, slots, expression):
        slot, access, offset, size = struct.unpack("<4I", data)
        return _ffi.accrt_writer_range(slots[slot], access, expression(offset), expression(size) if size != NONE else 0)

    def _fill_command(self, command, opcode, flags, body, slots, expression):
        """Returns (index, number) of the blocks that it holds."""
        three, two = ctypes.c_uint32 * 3, ctypes.c_uint32 * 2
        if opcode == 1:
            kernel, count, *grid = struct.unpack("<5I", body[:20])
            command.target, command.grid = self.ids["kernel", kernel], three(*map(expression, grid))
            names = [self.text(p[0]) for p in self._parameters(kernel)]
            self._operands(command, body[24:], names, slots, expression)
        elif opcode == 2:
            command.source = self._range(body[:16], slots, expression)
            command.destination = self._range(body[16:32], slots, expression)
            sizes = [expression(e) for e in struct.unpack("<7I", body[32:60])]
            command.extent, command.source_stride, command.destination_stride = three(*sizes[:3]), two(*sizes[3:5]), two(*sizes[5:])
        elif opcode == 3:
            command.destination = self._range(body[:16], slots, expression)
            command.pattern, command.pattern_bytes = struct.unpack("<QI", body[16:28])
        elif opcode == 5:
            function, count = struct.unpack("<2I", body[:8])
            command.target = self.ids["function", function]
            first, inputs, results = struct.unpack("<3I", self.file.records(9)[function][16:28])
            names = [self.text(struct.unpack("<I", r[:4])[0]) for r in self.file.records(10)[first : first + inputs + results]]
            self._operands(command, body[8:], names, slots, expression)
        elif opcode == 6:
            count, block = struct.unpack("<2I", body)
            command.value = expression(count)
            return [(0, block)]
        elif opcode == 7:
            condition, *blocks = struct.unpack("<3I", body[:12])
            command.value = expression(condition)
            return [(i, b) for i, b in enumerate(blocks) if b != NONE]
        elif opcode == 8:
            command.text = self.text(struct.unpack("<I", body[:4])[0])
        elif opcode != 4:
            command.raw = ctypes.cast(self.array(ctypes.c_ubyte, body), ctypes.c_void_p)
            command.raw_size_bytes, command.flags = len(body), flags
        return []

    def _operands(self, command, data, names, slots, expression):
        by_name = len(set(names)) == len(names)
        made = []
        for i, name in enumerate(names):
            kind, value, view, _, *_range, bits = struct.unpack("<4I4IQ", data[40 * i : 40 * i + 40])
            operand = _ffi.accrt_writer_operand(name=name if by_name else None, kind=kind, bits=bits)
            if kind in OPERANDS:
                operand.range = self._range(data[40 * i + 16 : 40 * i + 32], slots, expression)
            if kind == 4:
                operand.value = expression(value)
            if kind == 2:
                operand.dtype, operand.rank, *sizes = struct.unpack("<18I", self.file.records(12)[view])
                ids = [expression(s) if s != NONE else 0 for s in sizes]
                operand.shape, operand.strides = (ctypes.c_uint32 * 8)(*ids[:8]), (ctypes.c_uint32 * 8)(*ids[8:])
            if kind != 6 or not by_name or self.order.random() < 0.5:
                made.append(operand)
        if by_name:
            self.order.shuffle(made)
        command.operand_count, command.operands = len(made), self.array(_ffi.accrt_writer_operand, made)

    # -- results

    def summary(self):
        made = new_struct(_ffi.accrt_writer_summary)
        self.call("check", ctypes.byref(made))
        return made

    def to_bytes(self, in_order: bool) -> bytes:
        """Through the callback."""
        out = bytearray()

        def write(_self, offset, data, size):
            if in_order and offset != len(out):
                return 22
            if offset + size > len(out):
                out.extend(bytes(offset + size - len(out)))
            out[offset : offset + size] = ctypes.string_at(data, size)
            return 0

        output = _ffi.accrt_writer_output(None, dict(_ffi.accrt_writer_output._fields_)["write"](write), int(in_order), 0)
        self.call("write_callback", ctypes.byref(output))
        return bytes(out)

    def write(self, path):
        self.call("write_path", os.fspath(path).encode())


def rewritten(data: bytes, order: random.Random, target=None) -> bytes:
    """The same content, through the C writer."""
    replay = Replay(data, order, target)
    try:
        return replay.to_bytes(in_order=order.random() < 0.5)
    finally:
        replay.close()
