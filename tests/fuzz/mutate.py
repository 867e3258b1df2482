"""Mutates bundles with their structure in view: fields, records, sections, then the frame (places,
sizes, digests) is made right again, so that what is behind it is reached. It knows the frame of the
format and the sizes of records, and no more."""
from __future__ import annotations

import random
import struct
from typing import List

import xxhash

HEADER, SECTION, CHUNK = 128, 64, 1 << 20
_INTERESTING = [0, 1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 31, 63, 64, 127, 128, 255, 256, 4095, 4096, 65535, 1 << 24, (1 << 31) - 1, 1 << 31,
                0xFFFFFFFE, 0xFFFFFFFF]  # fmt: skip
_WIDE = [1 << 32, (1 << 48) - 1, 1 << 48, (1 << 48) + 1, (1 << 61), (1 << 63) - 1, 1 << 63, (1 << 64) - 8, (1 << 64) - 1]


class Section:
    """One section: what its table entry says, and its bytes."""

    def __init__(self, raw: bytes, content: bytes):
        self.type, self.flags, _, _, self.record_bytes, self.record_count, self.name, _ = struct.unpack("<IIQQII16s16s", raw)
        self.content = bytearray(content)

    def copy(self) -> "Section":
        other = object.__new__(Section)
        other.__dict__.update(self.__dict__, content=bytearray(self.content))
        return other


class File:
    """A bundle as a header and sections."""

    def __init__(self, data: bytes):
        self.header = bytearray(data[:HEADER])
        count = struct.unpack_from("<I", data, 48)[0]
        self.sections: List[Section] = []
        for index in range(count):
            raw = data[HEADER + index * SECTION : HEADER + (index + 1) * SECTION]
            offset, size = struct.unpack_from("<QQ", raw, 8)
            self.sections.append(Section(raw, data[offset : offset + size]))

    def copy(self) -> "File":
        other = object.__new__(File)
        other.header = bytearray(self.header)
        other.sections = [section.copy() for section in self.sections]
        return other

    def build(self) -> bytearray:
        """The bytes, with every place, size, count and digest right."""
        out = bytearray(self.header)
        out += bytes(SECTION * len(self.sections))
        chunks = bytes(16)
        data = next((s for s in self.sections if s.type == 63), None)
        for section in self.sections:
            if section.type == 20 and data is not None:
                pieces = [data.content[at : at + CHUNK] for at in range(0, len(data.content), CHUNK)]
                section.content = bytearray(b"".join(xxhash.xxh3_128_digest(bytes(piece)) for piece in pieces))
        for index, section in enumerate(self.sections):
            align = 4096 if section.type in (62, 63) else 8
            out += bytes(-len(out) % align)
            digest = xxhash.xxh3_128_digest(bytes(section.content))
            if section.type == 20:
                chunks = digest
            if section.type == 63:
                digest = chunks
            if section.record_bytes:
                section.record_count = (len(section.content) // section.record_bytes) & 0xFFFFFFFF
            struct.pack_into(
                "<IIQQII16s16s", out, HEADER + index * SECTION, section.type, section.flags, len(out), len(section.content),
                section.record_bytes, section.record_count, section.name, digest,
            )  # fmt: skip
            out += section.content
        struct.pack_into("<Q", out, 24, len(out))
        struct.pack_into("<I", out, 48, len(self.sections) & 0xFFFFFFFF)
        seal(out)
        return out


def seal(data: bytearray) -> None:
    """Makes the header's digest right, where there is a header."""
    if len(data) < HEADER:
        return
    count = struct.unpack_from("<I", data, 48)[0]
    covered = bytes(data[:112]) + bytes(16) + bytes(data[HEADER : HEADER + min(count, 64) * SECTION])
    data[112:128] = xxhash.xxh3_128_digest(covered)


class Mutator:
    """Mutations of a set of bundles, from a seeded source of numbers.

    Args:
        seeds: bundles that are well-formed.
        rng: where every choice comes from.
    """

    def __init__(self, seeds: List[bytes], rng: random.Random):
        self.files = [File(seed) for seed in seeds]
        # A file with many kinds of records has more to break.
        self.weights = [len(file.sections) ** 2 for file in self.files]
        self.rng = rng

    def next(self) -> bytes:
        """One file: most have a right frame and one to three things changed in them."""
        rng = self.rng
        file = rng.choices(self.files, self.weights)[0].copy()
        for _ in range(rng.choice((1, 1, 1, 1, 2, 3))):
            self._mutate(file)
        out = file.build()
        if rng.random() < 0.06:
            self._damage(out)
        return bytes(out)

    def _mutate(self, file: File) -> None:
        if not file.sections:
            return self._header(file)
        draw = self.rng.random()
        if draw < 0.70:
            self._field(self._pick(file).content)
        elif draw < 0.86:
            self._records(file)
        elif draw < 0.93:
            self._section(file)
        else:
            self._header(file)

    def _pick(self, file: File) -> Section:
        """Most of the rules are about commands and small records; any byte of a string breaks the
        same two."""
        weights = [{1: 1, 14: 12, 62: 1, 63: 1}.get(section.type, 4) for section in file.sections]
        return self.rng.choices(file.sections, weights)[0]

    def _value(self, content: bytearray, width: int) -> int:
        rng, draw = self.rng, self.rng.random()
        if draw < 0.35:
            return rng.choice(_INTERESTING + (_WIDE if width == 8 else []))
        if draw < 0.6 and len(content) >= width:
            at = rng.randrange(0, len(content) - width + 1)
            return int.from_bytes(content[at - at % width : at - at % width + width], "little")
        return rng.randrange(0, 24) if draw < 0.9 else rng.getrandbits(8 * width)

    def _field(self, content: bytearray) -> None:
        rng = self.rng
        if not content:
            return
        width = rng.choice((1, 2, 4, 4, 4, 4, 8, 8))
        at = rng.randrange(0, len(content)) // width * width
        old = int.from_bytes(content[at : at + width], "little")
        draw = rng.random()
        value = old + rng.choice((-1, 1)) if draw < 0.3 else old ^ (1 << rng.randrange(8 * width)) if draw < 0.45 else self._value(content, width)
        piece = (value & ((1 << 8 * width) - 1)).to_bytes(width, "little")
        content[at : at + width] = piece[: len(content) - at]

    def _records(self, file: File) -> None:
        rng, section = self.rng, self._pick(file)
        step = section.record_bytes or rng.choice((1, 8, 24, 40))
        count = len(section.content) // step
        if not count:
            return
        one, two = rng.randrange(count) * step, rng.randrange(count) * step
        piece = section.content[one : one + step]
        draw = rng.random()
        if draw < 0.25:
            section.content[one : one + step] = section.content[two : two + step]
            section.content[two : two + step] = piece
        elif draw < 0.5:
            section.content[two:two] = piece
        elif draw < 0.75:
            del section.content[one : one + step]
        else:
            section.content[two : two + step] = piece
        if not section.record_bytes and rng.random() < 0.5:
            section.record_count = (section.record_count + rng.choice((-1, 1))) & 0xFFFFFFFF

    def _section(self, file: File) -> None:
        rng = self.rng
        place = rng.randrange(len(file.sections))
        draw, section = rng.random(), file.sections[place]
        if draw < 0.2:
            del file.sections[place]
        elif draw < 0.3:
            file.sections[place : place + 2] = file.sections[place : place + 2][::-1]
        elif draw < 0.6:
            other = section.copy()
            other.type = rng.choice((22, 34, 35, 61, 64, 1000, 0x10000, section.type + 1))
            other.flags, other.name = rng.choice((0, 0, 1, 2)), rng.choice((b"x.y", b"", b"a b", b"strings")).ljust(16, b"\0")
            file.sections.insert(place + 1, other)
            file.sections.sort(key=lambda s: s.type)
        elif draw < 0.75:
            section.flags ^= rng.choice((1, 1, 2, 1 << 31))
        elif draw < 0.9:
            section.record_bytes = rng.choice((0, 8, 16, 24, section.record_bytes + 8, 96, 128))
        else:
            section.content = section.content[: rng.randrange(len(section.content) + 1)]

    def _header(self, file: File) -> None:
        rng = self.rng
        at = rng.choice((8, 10, 12, 14, 16, 18, 20, 22, 32, 40, 52, 56, 64, 72, 0, 100))
        if at in range(8, 24):
            struct.pack_into("<H", file.header, at, rng.choice((0, 0, 1, 2, 3, 4, 5, 9, 65535)))
        else:
            struct.pack_into("<B", file.header, at + rng.randrange(4), rng.choice((0, 1, 2, 128, 255)))

    def _damage(self, out: bytearray) -> None:
        """Past the frame: a table entry, the file's end, or any byte; digests of the header made
        right or not."""
        rng, draw = self.rng, self.rng.random()
        if draw < 0.4 and len(out) >= HEADER + SECTION:
            count = max(1, (struct.unpack_from("<I", out, 48)[0]))
            at = HEADER + rng.randrange(min(count, 64)) * SECTION + rng.choice((0, 4, 8, 16, 24, 28, 32, 48))
            if at + 8 <= len(out):
                struct.pack_into("<Q", out, at, (struct.unpack_from("<Q", out, at)[0] + rng.choice((1, -1, 8, 1 << 32, 1 << 63))) % (1 << 64))
        elif draw < 0.6:
            del out[rng.randrange(len(out)) :]
        elif draw < 0.8:
            out += bytes(rng.randrange(1, 9))
        elif out:
            out[rng.randrange(len(out))] ^= 1 << rng.randrange(8)
        if rng.random() < 0.6:
            seal(out)
