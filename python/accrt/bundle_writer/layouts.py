"""Weight layouts as the writer knows them: which components a weight has, and their exact sizes. docs/layouts.md has what the
bytes mean; this is the registry of loader/layout.c once more, and a test holds the two together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, Mapping, Sequence, Tuple

from .common import DTYPES, MAX_RANK, BundleError, Encoding, Role, dtype_size_bytes

FLOATS = ("f32", "f16", "bf16")
_F8 = ("f8e4m3fn", "f8e5m2")


@dataclass(frozen=True)
class Layout:
    """`components` by role: (extent, data types); the last dimension is a multiple of `block`, the one before of `rows`."""

    components: Mapping[Role, Tuple[str, Tuple[str, ...]]]
    optional: Tuple[Role, ...] = ()
    block: int = 1
    block_bytes: int = 0
    rows: int = 1
    tile: int = 1
    group: int = 0  # elements that share a scale; 0: the row
    free_group: bool = False
    ranks: Tuple[int, int] = (1, MAX_RANK)


def _blocks(block: int, size_bytes: int) -> Layout:
    return Layout({Role.DATA: ("blocks", ("u8",))}, block=block, block_bytes=size_bytes)


_INDEX = (Role.GROUP_INDEX,)
_WORDS = {Role.DATA: ("words", ("i32",)), Role.SCALES: ("groups", FLOATS), Role.ZEROS: ("group_words", ("i32",))}
_GPTQ = Layout({**_WORDS, Role.GROUP_INDEX: ("columns", ("i32",))}, _INDEX, block=8, rows=8, free_group=True, ranks=(2, 2))

LAYOUTS: Dict[Encoding, Layout] = {
    Encoding.F8_TENSOR: Layout({Role.DATA: ("elements", _F8), Role.SCALES: ("one", FLOATS)}),
    Encoding.F8_CHANNEL: Layout({Role.DATA: ("elements", _F8), Role.SCALES: ("rows", FLOATS)}),
    Encoding.F8_BLOCK128: Layout({Role.DATA: ("elements", _F8), Role.SCALES: ("tiles", FLOATS)}, tile=128, group=128),
    Encoding.I8_CHANNEL: Layout({Role.DATA: ("elements", ("i8",)), Role.SCALES: ("rows", FLOATS)}),
    Encoding.I8_GROUP: Layout({Role.DATA: ("elements", ("i8",)), Role.SCALES: ("groups", FLOATS)}, free_group=True),
    Encoding.I4_GROUP: Layout(
        {Role.DATA: ("elements", ("u4",)), Role.SCALES: ("groups", FLOATS), Role.GROUP_INDEX: ("columns", ("i32",))},
        _INDEX, block=2, free_group=True,
    ),
    Encoding.I4_GROUP_ASYM: Layout(
        {Role.DATA: ("elements", ("u4",)), Role.SCALES: ("groups", FLOATS), Role.ZEROS: ("group_pairs", ("u4",)),
         Role.GROUP_INDEX: ("columns", ("i32",))},
        _INDEX, block=2, free_group=True,
    ),
    Encoding.GPTQ_V1: _GPTQ,
    Encoding.GPTQ_V2: _GPTQ,
    Encoding.AWQ: Layout(_WORDS, rows=8, free_group=True, ranks=(2, 2)),
    Encoding.Q8_0: _blocks(32, 34),
    Encoding.Q4_0: _blocks(32, 18),
    Encoding.Q4_1: _blocks(32, 20),
    Encoding.Q4_K: _blocks(256, 144),
    Encoding.Q5_K: _blocks(256, 176),
    Encoding.Q6_K: _blocks(256, 210),
    Encoding.GGML_MXFP4: _blocks(32, 17),
    Encoding.GGML_NVFP4: _blocks(64, 36),
    Encoding.MXFP4: Layout({Role.DATA: ("elements", ("f4e2m1",)), Role.SCALES: ("groups", ("f8e8m0",))}, block=32, group=32),
    Encoding.MXFP8: Layout({Role.DATA: ("elements", _F8), Role.SCALES: ("groups", ("f8e8m0",))}, block=32, group=32),
    Encoding.NVFP4: Layout(
        {Role.DATA: ("elements", ("f4e2m1",)), Role.SCALES: ("groups", ("f8e4m3fn",)), Role.GLOBAL_SCALE: ("one", ("f32",))},
        block=16, group=16,
    ),
}  # fmt: skip


def check(encoding: Encoding, dtype: str, shape: Sequence[int], group: int, where: str) -> None:
    """That a layout takes a type."""
    layout, name = LAYOUTS[encoding], encoding.name
    if dtype not in FLOATS:
        raise BundleError(f"{where}: a weight in {name} is of type f32, f16 or bf16, not {dtype}")
    if layout.free_group != bool(group) or (group and (group % 8 or group < 0 or group > 1 << 24)):
        wanted = "a multiple of 8 up to 2^24" if layout.free_group else "0"
        raise BundleError(f"{where}: group_elements {group}; {name} needs {wanted}")
    low, high = layout.ranks
    if not low <= len(shape) <= high:
        raise BundleError(f"{where}: rank {len(shape)}; {name} takes {low} to {high}")
    rows, columns = shape[-2] if len(shape) > 1 else 1, shape[-1]
    if columns % layout.block or rows % layout.rows:
        raise BundleError(
            f"{where}: shape {tuple(shape)}; {name} needs columns in multiples of {layout.block} and rows of {layout.rows}"
        )


def size_bytes(encoding: Encoding, role: Role, dtype: str, shape: Sequence[int], group: int) -> int:
    """Exact bytes of a component."""
    layout = LAYOUTS[encoding]
    batch, n, k = 1, shape[-2] if len(shape) > 1 else 1, shape[-1]
    for size in shape[:-2]:
        batch *= size
    rows = batch * n
    each = group or layout.group or k
    groups = -(-k // each) if each else 0
    elements = {
        "elements": rows * k, "blocks": rows * (k // layout.block) * layout.block_bytes, "words": rows // 8 * k, "one": 1,
        "rows": rows, "groups": rows * groups, "group_pairs": rows * (groups + groups % 2), "group_words": rows // 8 * groups,
        "tiles": batch * -(-n // layout.tile) * groups, "columns": k,
    }[layout.components[role][0]]  # fmt: skip
    return dtype_size_bytes(dtype, elements)


def unit_along(encoding: Encoding, dtype: str, group: int, rank: int, axis: int) -> int:
    """What parts of a shard are a multiple of along an axis, so that no byte, block, group or tile is cut."""
    if encoding <= Encoding.OPAQUE:
        return max(1, 8 // DTYPES[dtype][1])
    layout = LAYOUTS[encoding]
    if axis == rank - 1:
        return max(layout.block, group, layout.group)
    return max(layout.rows, layout.tile) if axis == rank - 2 else 1
