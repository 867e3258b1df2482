"""What is beside a program: files, shards, adapters, assets, locations, trees, signatures,
encryption (rules 120 to 157), and how constants are bound to files (121). Functions of the tables
that verify.py makes."""

from __future__ import annotations

from typing import Any, List

from . import layouts
from . import records as r

_ZEROS = bytes(16)


def check_files(tables: Any) -> None:
    previous = 0
    for index, file in enumerate(tables.files):
        where = f"files[{index}]"
        tables._ordered(file.name, previous, where + ".name")
        previous = file.name
        name = tables.strings[file.name]
        control = any(byte < 0x20 or byte == 0x7F or byte in b"/\\" for byte in name)
        bare = len(name) <= r.MAX_FILE_NAME_BYTES and name not in (b".", b"..") and not control
        if not bare or file.kind not in (1, 2, 3) or file.flags or file.reserved:
            raise tables.fail(120, f"{where}: {name!r} of kind {file.kind}")


def check_binding(tables: Any, constant: Any, where: str) -> None:
    has_digest = constant.digest != _ZEROS
    if constant.source == 2:
        flags = constant.binding_flags
        good = (constant.file == r.NONE or constant.file < len(tables.files)) and flags <= 1 and bool(flags) != has_digest
    else:
        good = (constant.file, constant.tensor, constant.binding_flags) == (r.NONE, 0, 0) and not has_digest
    if constant.reserved or not good:
        raise tables.fail(121, f"{where}: file {constant.file}, flags 0x{constant.binding_flags:x}")
    if constant.tensor:
        tables._name(constant.tensor, where + ".tensor")


def check_shards(tables: Any) -> None:
    following, previous = 0, -1
    for index, shard in enumerate(tables.shards):
        where = f"shards[{index}]"
        good = previous < shard.constant < len(tables.constants) and shard.kind <= 1
        good = good and 1 <= shard.degree == tables.shards[0].degree
        if good and shard.kind == 1:
            good = shard.axis < tables.constants[shard.constant].rank and shard.extent >= 0 and shard.segment_count >= 1
        elif good:
            good = (shard.axis, shard.extent, shard.segment_first, shard.segment_count) == (0, 0, 0, 0)
        if not good:
            raise tables.fail(130, f"{where}: {tuple(shard)}")
        previous = shard.constant
        if shard.kind == 1:
            following = _segments(tables, shard, following, where)
    if following != len(tables.segments):
        raise tables.fail(131, f"{len(tables.segments)} segments, shards name {following}")
    sharded = {shard.constant for shard in tables.shards}
    for index, constant in enumerate(tables.constants if sharded else ()):
        if constant.source == 2 and index not in sharded:
            raise tables.fail(130, f"constants[{index}] is EXTERNAL and has no shard")


def _segments(tables: Any, shard: Any, following: int, where: str) -> int:
    last = following + shard.segment_count
    if shard.segment_first != following or last > len(tables.segments):
        raise tables.fail(131, f"{where}: {shard.segment_count} segments from {shard.segment_first}")
    constant = tables.constants[shard.constant]
    unit = layouts.unit_along(constant.encoding, constant.dtype, constant.group_elements, constant.rank, shard.axis)
    end = local = 0
    for index in range(following, last):
        segment = tables.segments[index]
        good = segment.begin == end < segment.end <= shard.extent and not segment.reserved
        if not good or not segment.replicas or shard.degree % segment.replicas:
            raise tables.fail(131, f"segments[{index}]: {tuple(segment)} after {end}")
        parts = shard.degree // segment.replicas
        part, rest = divmod(segment.end - segment.begin, parts)
        tail = parts == 1 and segment.end == shard.extent
        if rest or (part % unit and not tail):
            raise tables.fail(131, f"segments[{index}]: {tuple(segment)} does not cut evenly")
        end, local = segment.end, local + part
    if end != shard.extent or local != tables.shape(tables.constants[shard.constant])[shard.axis]:
        raise tables.fail(131, f"{where}: segments end at {end} and give a rank {local}")
    return int(last)


def check_adapters(tables: Any) -> None:
    previous = 0
    for index, adapter in enumerate(tables.adapters):
        tables._ordered(adapter.slot, previous, f"adapters[{index}].slot")
        tables._name(adapter.input, f"adapters[{index}].input")
        previous = adapter.slot
    flags: dict = {}
    for function in tables.functions if tables.adapters else ():
        for argument in tables.arguments[function.argument_first : function.argument_first + function.input_count]:
            flags.setdefault(argument.name, set()).add(argument.flags & 1)
    for index, adapter in enumerate(tables.adapters):
        if adapter.flags > 1 or adapter.reserved or flags.get(adapter.input) != {1}:
            raise tables.fail(135, f"adapters[{index}]: {tables.text(adapter.input)!r} is no OPTIONAL input")


def check_assets(tables: Any) -> None:
    previous = end = 0
    content = tables.container.sections.get("asset_data", memoryview(b""))
    for index, asset in enumerate(tables.assets):
        where = f"assets[{index}]"
        tables._ordered(asset.name, previous, where + ".name")
        tables._string(asset.media_type, where + ".media_type")
        previous = asset.name
        if asset.reserved:
            raise tables.fail(155, f"{where}: reserved {asset.reserved}")
        place = -(-end // 8) * 8
        inside = asset.offset_bytes == place and place + asset.size_bytes <= len(content)
        if not inside or any(content[end:place]):
            raise tables.fail(156, f"{where}: {asset.size_bytes} bytes at {asset.offset_bytes}, expected at {place}")
        end = place + asset.size_bytes
    if end != len(content):
        raise tables.fail(156, f"{len(content)} bytes of asset_data, assets end at {end}")


def check_locations(tables: Any) -> None:
    before: Any = None
    for index, location in enumerate(tables.locations):
        tables._string(location.file, f"locations[{index}].file")
        tables._string(location.name, f"locations[{index}].name")
        if before is not None and tuple(location) <= before:
            raise tables.fail(157, f"locations[{index}]: {tuple(location)}")
        before = tuple(location)


def check_trust(tables: Any) -> None:
    for tree in tables.tree:
        chunks = len(tables.chunk_digests)
        rootless = not chunks and any(tree.weight_root)
        if (tree.algorithm, tree.chunk_log2, tree.reserved, len(tables.leaves)) != (1, 20, 0, chunks) or rootless:
            raise tables.fail(140, f"tree: algorithm {tree.algorithm}, {len(tables.leaves)} leaves of {chunks} chunks")
    before: List[Any] = []
    for index, signature in enumerate(tables.signatures):
        key = [signature.scope, signature.key]
        known = signature.scope in (1, 2) and signature.algorithm == 1 and not signature.reserved
        known = known and (signature.scope == 1 or bool(tables.leaves))
        if not known or (before and key <= before):
            raise tables.fail(141, f"signatures[{index}]: scope {signature.scope}, algorithm {signature.algorithm}")
        before = key
    wanted = bool(tables.container.header.required_features & r.FEATURE_ENCRYPTED_DATA)
    good = wanted == bool(tables.encryption)
    for encryption in tables.encryption:
        good = good and encryption.algorithm in (1, 2) and (encryption.reserved, encryption.reserved_2) == (0, 0)
    if not good:
        raise tables.fail(150, f"required features {tables.container.header.required_features}, {len(tables.encryption)} records")
