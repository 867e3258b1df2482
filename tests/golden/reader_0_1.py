"""A reader of the first draft of the format (container 0.1), frozen: it knows nothing of what came later, and is not changed any
more. It is what an old program is: files that need 0.1 alone it reads, whoever wrote them; of others it ignores what may be
ignored, and refuses the rest by version.

    bundle = reader_0_1.read(data)      # raises Refused(status, message)

It reads structure, names, constants with their bytes, and signatures; it runs nothing. It needs nothing but the standard library
(so it checks no digest).
"""

import struct

MAGIC = b"\x89ACCX\r\n\x1a"
NONE = 0xFFFFFFFF
VERSIONS = {"container": (0, 1), "commands": (0, 1), "kernel_abi": (0, 1), "layouts": (0, 1)}
REQUIRED = 1

#: number: (name, record bytes, required)
SECTIONS = {
    1: ("strings", 0, True), 2: ("metadata", 8, False), 3: ("symbols", 40, True), 4: ("buckets", 8, True),
    5: ("expressions", 24, True), 6: ("constants", 96, True), 7: ("components", 24, True), 8: ("states", 64, True),
    9: ("functions", 64, True), 10: ("arguments", 80, True), 11: ("slots", 16, True), 12: ("views", 72, True),
    13: ("blocks", 16, True), 14: ("commands", 0, True), 15: ("kernels", 32, True), 16: ("parameters", 16, True),
    17: ("variants", 48, True), 18: ("predicates", 16, True), 19: ("images", 24, True), 20: ("chunk_digests", 16, True),
    62: ("code", 0, True), 63: ("data", 0, True),
}  # fmt: skip
OPCODES = range(1, 9)
DTYPE_BITS = (0, 8, 8, 16, 32, 64, 8, 16, 32, 64, 16, 16, 32, 64, 8, 8, 8, 4, 4, 4)


class Refused(Exception):
    """`status`: INVALID_FORMAT or VERSION_MISMATCH."""

    def __init__(self, status, message):
        super().__init__(f"{status}: {message}")
        self.status = status


class Bundle:
    """`newer`: the file needs newer minor versions, so that what is unknown is no mistake of it."""

    def __init__(self, data):
        self.data, self.newer = data, False
        self.sections, self.ignored = {}, []
        self._header()
        self._table()
        self.metadata = {self.string(k): self.string(v) for k, v in self.records(2, "<2I")}
        self.constants = dict(self._constant(*record) for record in self.records(6, "<8I8q"))
        self.functions = dict(self._function(*record) for record in self.records(9, "<2IQ12I"))
        self.commands = self._commands()
        for record in self.records(17, "<3Ii2Q4I"):
            arch_kind, arch = record[1], record[2]
            if arch_kind > 2 or (arch_kind == 0 and arch != 0):
                self.refuse(f"a variant with architecture {self.string(arch)!r} of kind {arch_kind}")
        for record in self.records(19, "<2I2Q"):
            if not 1 <= record[0] <= 4:
                self.refuse(f"image {self.string(record[1])!r} of kind {record[0]}")

    def refuse(self, message):
        raise Refused("VERSION_MISMATCH" if self.newer else "INVALID_FORMAT", message)

    def _header(self):
        if self.data[:8] != MAGIC:
            raise Refused("INVALID_FORMAT", "no bundle")
        found = struct.unpack_from("<8H", self.data, 8)
        for at, (name, known) in enumerate(VERSIONS.items()):
            needed = found[2 * at : 2 * at + 2]
            if needed[0] != known[0]:
                raise Refused("VERSION_MISMATCH", f"the file needs {name} {needed[0]}.{needed[1]}, this reads {known[0]}.{known[1]}")
            self.newer |= needed[1] > known[1]
        size, required, _optional, count = struct.unpack_from("<3QI", self.data, 24)
        if required:
            raise Refused("VERSION_MISMATCH", f"required features {required:#x}")
        if size != len(self.data):
            self.refuse(f"{len(self.data)} bytes, not {size}")
        self.count = count

    def _table(self):
        for i in range(self.count):
            kind, flags, offset, size, record_bytes, _count, name = struct.unpack_from("<2I2Q2I16s", self.data, 128 + 64 * i)
            name = name.rstrip(b"\0").decode()
            if kind not in SECTIONS:
                if flags & REQUIRED:
                    raise Refused("VERSION_MISMATCH", f"the file requires section {name!r} ({kind})")
                self.ignored.append(name)
                continue
            known, known_bytes, required = SECTIONS[kind]
            if name != known or flags != int(required) or record_bytes != known_bytes or offset + size > len(self.data):
                self.refuse(f"section {name!r} of records of {record_bytes} bytes, flags {flags}; {known} has {known_bytes}")
            self.sections[kind] = self.data[offset : offset + size]

    def records(self, kind, form):
        return struct.iter_unpack(form, self.sections.get(kind, b""))

    def string(self, offset):
        strings = self.sections[1]
        return strings[offset : strings.index(b"\0", offset)].decode()

    def _constant(self, name, source, dtype, encoding, rank, first, count, reserved, *shape):
        text = self.string(name)
        if source > 1 or encoding > 1 or count != 1 or reserved or rank > 8 or not 0 < dtype < len(DTYPE_BITS):
            self.refuse(f"constant {text!r}: source {source}, encoding {encoding}, {count} components, reserved {reserved}")
        _role, _dtype, offset, size = list(self.records(7, "<2I2Q"))[first]
        content = None if source else bytes(self.sections.get(63, b"")[offset : offset + size])
        return text, (dtype, encoding, tuple(shape[:rank]), content)

    def _function(self, name, flags, features, first, inputs, results, *rest):
        text, target = self.string(name), rest[-1]
        if target or flags & ~3:
            self.refuse(f"function {text!r}: flags {flags}, reserved {target}")
        arguments = list(self.records(10, "<20I"))[first : first + inputs + results]
        for argument in arguments:
            if argument[11] or argument[9] > 1:
                self.refuse(f"function {text!r}: an argument of encoding {argument[9]}, reserved {argument[11]}")
        names = [self.string(argument[0]) for argument in arguments]
        return text, (features, names[:inputs], names[inputs:])

    def _commands(self):
        """Opcodes in order; unknown ones without the REQUIRED bit do nothing."""
        stream, at, found = self.sections.get(14, b""), 0, []
        while at < len(stream):
            opcode, flags, size = struct.unpack_from("<2HI", stream, at)
            if opcode not in OPCODES and flags & REQUIRED:
                raise Refused("VERSION_MISMATCH", f"the file requires opcode {opcode}")
            if size < 24 or size % 8 or at + size > len(stream):
                self.refuse(f"a command of {size} bytes")
            found.append(opcode)
            at += size
        return found


def read(data):
    return Bundle(bytes(data))
