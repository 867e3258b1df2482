"""Header, section table, digests and forms of records (rules 1 to 20, 114, 115): from bytes to
sections in their newest form."""

from __future__ import annotations

from typing import Any, Dict, List, Optional

try:
    import xxhash
except ModuleNotFoundError as error:
    raise ModuleNotFoundError("accrt.bundle_reader needs the package 'xxhash': pip install 'accrt[compiler]'", name=error.name) from None

from . import records as r

SectionRecord = r.SECTION.type


class FormatError(ValueError):
    """A bundle that keeps a rule of the format not.

    Attributes:
        rule: the number in docs/accx-format.md.
        name: the rule's name there.
        status: "INVALID_FORMAT", "VERSION_MISMATCH" or "DATA_CORRUPT".
    """

    def __init__(self, rule: int, message: str, newer: bool = False):
        self.rule = rule
        self.name, self.status = r.RULES[rule]
        note = ""
        if newer and self.status == "INVALID_FORMAT" and rule > 7:
            self.status, note = "VERSION_MISMATCH", "; the file needs a newer version than this reader's"
        super().__init__(f"{message} (rule {rule}, {self.name}){note}")


def digest_of(data: Any) -> bytes:
    """XXH3-128, seed 0, canonical order."""
    return bytes(xxhash.xxh3_128_digest(data))


def form_minor(section: Any) -> Optional[int]:
    """The container minor that brought records of this section's size, or None."""
    kind = r.SECTION_KINDS[section.type]
    for size, minor, _ in r.FORMS.get(kind.name, ()):
        if section.record_bytes == size:
            return minor
    record = r.RECORDS.get(kind.name)
    newest = 3 if kind.name in r.FORMS else int(kind.since_minor)
    return newest if section.record_bytes == (record.size_bytes if record else 0) else None


def _wide_bytes(section: Any) -> int:
    record = r.RECORDS.get(r.SECTION_KINDS[section.type].name)
    older = record is not None and section.record_bytes != record.size_bytes
    return record.size_bytes * section.record_count if record is not None and older else 0


class Container:
    """The sections of a file whose frame is right.

    Attributes:
        header: the header's record.
        table: every section's record, in order.
        newer: the file needs a newer minor of something.
        sections: bytes of each known section, by name, records in their newest form; `data` is not
            checked against its chunks.
        kept: bytes of unknown, ignorable sections, by type.
    """

    def __init__(self, data: Any):
        self.data = memoryview(data).cast("B")
        self.newer = False
        self.sections: Dict[str, memoryview] = {}
        self.kept: Dict[int, memoryview] = {}
        self.by_type: Dict[int, Any] = {}
        self.table: List[Any] = []
        self._read_header()
        self._read_table()
        self._check_gaps()
        self._check_digests()
        self._check_pairs()

    def fail(self, rule: int, message: str) -> FormatError:
        return FormatError(rule, message, self.newer)

    def _read_header(self) -> None:
        size = len(self.data)
        if size < r.HEADER_BYTES:
            raise self.fail(1, f"the file has {size} bytes, a header {r.HEADER_BYTES}")
        header = self.header = r.HEADER.at(self.data, 0)
        if header.magic != r.MAGIC:
            raise self.fail(2, "this is not an .accx bundle")
        for what, (major, minor) in r.VERSIONS.items():
            found = getattr(header, what + "_major"), getattr(header, what + "_minor")
            if found[0] != major:
                raise self.fail(3, f"{what}: the file needs {found[0]}.{found[1]}, this reads {major}.0 to {major}.{minor}")
            self.newer |= found[1] > minor
        if header.section_record_bytes != r.SECTION_BYTES or header.section_table_offset != r.HEADER_BYTES:
            raise self.fail(4, "header: record size or offset of the section table")
        if header.flags or any(header.reserved):
            raise self.fail(4, "header: flags or reserved bytes are not 0")
        if header.file_size_bytes != size:
            raise self.fail(1, f"header: file_size_bytes is {header.file_size_bytes}, the file has {size}")
        count = header.section_count
        if not 1 <= count <= r.MAX_SECTIONS or r.HEADER_BYTES + count * r.SECTION_BYTES > size:
            raise self.fail(5, f"header: {count} sections")
        self.table_end = r.HEADER_BYTES + count * r.SECTION_BYTES
        table = self.data[r.HEADER_BYTES : self.table_end]
        covered = bytes(self.data[: r.HEADER_BYTES - 16]) + bytes(16) + bytes(table)
        if digest_of(covered) != header.digest:
            raise self.fail(6, "header: the digest does not match")
        if header.required_features & ~r.FILE_FEATURES:
            raise self.fail(7, f"header: required_features 0x{header.required_features:x}")
        self.table = r.SECTION.all(table)

    def _read_table(self) -> None:
        previous = 0
        for section in self.table:
            self._check_identity(section, previous)
            previous = section.type
        end = self.table_end
        for section in self.table:
            self._check_place(section, end)
            self._check_records(section)
            if section.type in r.SECTION_KINDS:
                self.by_type[section.type] = section
            end = section.offset + section.size_bytes
        if end != len(self.data):
            raise self.fail(15, f"the last section ends at {end}, the file at {len(self.data)}")
        if 1 not in self.by_type:
            raise self.fail(18, "there is no section 'strings'")
        data_bytes = self.by_type[63].size_bytes if 63 in self.by_type else 0
        chunks = -(-data_bytes // r.CHUNK_BYTES)
        found = self.by_type[20].record_count if 20 in self.by_type else 0
        if chunks != found:
            raise self.fail(18, f"{found} chunk digests for {data_bytes} bytes of data")

    def _check_identity(self, section: Any, previous: int) -> None:
        if section.type <= previous:
            raise self.fail(10, f"section type {section.type} after {previous}")
        name = section.name.rstrip(b"\0")
        if not name or any(not 0x21 <= byte <= 0x7E for byte in name):
            raise self.fail(11, f"section type {section.type}: name {section.name!r}")
        kind = r.SECTION_KINDS.get(section.type)
        if kind and kind.name.encode() != name:
            raise self.fail(11, f"section type {section.type} is {kind.name!r}, not {name!r}")
        if section.flags & ~1 or (kind and section.flags != int(kind.required)):
            raise self.fail(12, f"flags 0x{section.flags:x} of section {name!r}")
        if not kind and section.flags & 1:
            raise self.fail(13, f"the file requires section {name!r} (type {section.type})")

    def _check_place(self, section: Any, previous_end: int) -> None:
        kind = r.SECTION_KINDS.get(section.type)
        alignment = kind.alignment if kind else 8
        expected = -(-previous_end // alignment) * alignment
        if section.offset != expected:
            raise self.fail(14, f"section {section.name!r} is at {section.offset}, not at {expected}")
        if section.size_bytes == 0 or section.offset + section.size_bytes > len(self.data):
            raise self.fail(15, f"section {section.name!r} has {section.size_bytes} bytes at {section.offset}")

    def _check_records(self, section: Any) -> None:
        kind = r.SECTION_KINDS.get(section.type)
        size = section.record_bytes
        fits = not size or size * section.record_count == section.size_bytes
        if not kind:
            if not fits:
                raise self.fail(16, f"{section.record_count} records of {size} bytes in {section.name!r}")
            return
        bytes_alone = kind.name in ("code", "data", "asset_data")
        if form_minor(section) is None or not fits or (bytes_alone and section.record_count):
            raise self.fail(16, f"{section.record_count} records of {section.record_bytes} bytes in {kind.name}")
        limit = {"code": r.MAX_CODE_BYTES, "data": 1 << 64}.get(kind.name, r.MAX_METADATA_BYTES)
        if section.size_bytes > limit or section.record_count > r.MAX_RECORDS:
            raise self.fail(17, f"{section.size_bytes} bytes and {section.record_count} records in {kind.name}")

    def _check_gaps(self) -> None:
        end = self.table_end
        for section in self.table:
            if any(self.data[end : section.offset]):
                raise self.fail(19, f"bytes between {end} and {section.offset} are not 0")
            end = section.offset + section.size_bytes

    def _check_digests(self) -> None:
        copied = [s for s in self.table if s.type in r.SECTION_KINDS and s.type not in (62, 63)]
        total = sum(-(-s.size_bytes // 16) * 16 + -(-_wide_bytes(s) // 16) * 16 for s in copied)
        if total > r.MAX_METADATA_BYTES:
            raise self.fail(17, f"{total} bytes of metadata")
        for section in self.table:
            content = self.data[section.offset : section.offset + section.size_bytes]
            kind = r.SECTION_KINDS.get(section.type)
            if not kind:
                self.kept[section.type] = content
                continue
            self.sections[kind.name] = content
            if section.type in (62, 63):
                continue
            if digest_of(content) != section.digest:
                raise self.fail(20, f"the digest of section {kind.name} does not match")
            if section.type == 20 and digest_of(content) != self.by_type[63].digest:
                raise self.fail(20, "the digest of section data is not that of its chunk digests")
            self._widen(kind.name, section)

    def _widen(self, name: str, section: Any) -> None:
        """Makes records of an older form new, and refuses a newer form that is not needed."""
        content, record = self.sections[name], r.RECORDS.get(name)
        for size, _, tail in r.FORMS.get(name, ()):
            assert record is not None
            if section.record_bytes == size:
                pieces = (bytes(content[at : at + size]) + tail for at in range(0, len(content), size))
                self.sections[name] = memoryview(b"".join(pieces))
            elif all(content[at + size : at + record.size_bytes] == tail for at in range(0, len(content), record.size_bytes)):
                raise self.fail(114, f"{name}: records of {section.record_bytes} bytes, whose last fields no record uses")

    def _check_pairs(self) -> None:
        types = {kind.name: kind.type for kind in r.SECTION_KINDS.values()}
        chunks = self.by_type[20].record_count if 20 in self.by_type else 0
        for name, needs, how in r.PAIRS:
            section = self.by_type.get(types[name])
            if section is None:
                continue
            if types[needs] not in self.by_type:
                raise self.fail(115, f"there is {name!r}, but no {needs!r}")
            expected = {"any": section.record_count, "one": 1, "chunks": chunks}[how]
            if section.record_count != expected:
                raise self.fail(115, f"{name} has {section.record_count} records, expected {expected}")
