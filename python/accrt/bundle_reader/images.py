"""What is checked of images of device code and how they are launched (rules 106 to 109). Functions
of the tables that verify.py makes."""

from __future__ import annotations

from typing import Any, Optional

from . import records as r
from .container import FormatError, digest_of


def check_images(tables: Any) -> None:
    previous = end = 0
    code = tables.container.sections.get("code", memoryview(b""))
    for index, image in enumerate(tables.images):
        where = f"images[{index}]"
        tables._ordered(image.name, previous, where + ".name")
        previous = image.name
        if image.kind == 5:
            _pack(tables, image, where)
            continue
        if not 1 <= image.kind <= 4:
            raise tables.fail(107, f"{where}: kind {image.kind}")
        place = -(-end // r.BIG_ALIGN) * r.BIG_ALIGN
        if image.offset_bytes != place or not image.size_bytes or place + image.size_bytes > len(code):
            raise tables.fail(106, f"{where}: {image.size_bytes} bytes at {image.offset_bytes}")
        end = place + image.size_bytes
    if end != len(code):
        raise tables.fail(106, f"{len(code)} bytes of code, images end at {end}")
    _launches(tables)
    problem = _code_problem(tables, code)
    if 62 in tables.container.by_type and digest_of(code) != tables.container.by_type[62].digest:
        raise tables.fail(20, "the digest of section code does not match")
    if problem:
        raise problem


def _pack(tables: Any, image: Any, where: str) -> None:
    if image.offset_bytes or image.size_bytes:
        raise tables.fail(106, f"{where}: a pack with {image.size_bytes} bytes")
    name = tables.strings[image.name]
    plain = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
    good = len(name) <= r.MAX_PACK_NAME_BYTES and name[0] in plain and all(byte in plain + b"._-" for byte in name)
    if not good:
        raise tables.fail(107, f"{where}: {name!r} is no name of a pack")


def _launches(tables: Any) -> None:
    if not tables.launches and tables.container.header.container_minor < 2:
        return
    following = 0
    for index, variant in enumerate(tables.variants):
        if tables.images[variant.image].kind not in (2, 3, 4):
            continue
        if following == len(tables.launches) or tables.launches[following].variant != index:
            raise tables.fail(109, f"variants[{index}] has no launch in its place")
        _launch(tables, tables.launches[following], following)
        following += 1
    if following != len(tables.launches):
        raise tables.fail(109, f"launches[{following}]: variant {tables.launches[following].variant}")


def _launch(tables: Any, launch: Any, index: int) -> None:
    block, cluster = launch[2:5], launch[5:8]
    threads, blocks = block[0] * block[1] * block[2], cluster[0] * cluster[1] * cluster[2]
    good = 1 <= threads <= r.MAX_BLOCK_THREADS and (cluster == (0, 0, 0) or 1 <= blocks <= r.MAX_CLUSTER_BLOCKS)
    if launch.traits & ~96 or launch.reserved or not good or launch.dynamic_shared_bytes > r.MAX_LOCAL_BYTES:
        raise tables.fail(109, f"launches[{index}]: {tuple(launch)}")


def _code_problem(tables: Any, code: memoryview) -> Optional[FormatError]:
    at = 0
    for index, image in enumerate(tables.images):
        if image.kind == 5:
            continue
        if any(code[at : image.offset_bytes]):
            return tables.fail(106, f"bytes before images[{index}] are not 0")
        at = image.offset_bytes + image.size_bytes
        content = code[image.offset_bytes : at]
        if image.kind == 1 and not _elf_header_good(content):
            return tables.fail(108, f"images[{index}]: no ELF image whose headers lie inside it")
        if image.kind == 3 and content[-1]:
            return tables.fail(108, f"images[{index}]: PTX does not end with NUL")
    return None


def _elf_header_good(image: memoryview) -> bool:
    if len(image) < 64 or bytes(image[:7]) != b"\x7fELF\x02\x01\x01":
        return False

    def number(offset: int, size: int) -> int:
        return int.from_bytes(image[offset : offset + size], "little")

    if number(16, 2) != 3 or number(52, 2) != 64:
        return False
    programs, sections = number(56, 2), number(60, 2)
    if number(54, 2) != 56 or not programs or number(32, 8) + programs * 56 > len(image):
        return False
    return not sections or (number(58, 2) == 64 and number(40, 8) + sections * 64 <= len(image))
