"""The registry of weight layouts, as far as sizes go: docs/layouts.md has what the bytes mean. It
knows no bundle."""

from __future__ import annotations

from typing import Dict, NamedTuple, Optional, Sequence, Tuple

from . import records as r

_I8, _I32, _U8, _F16, _BF16, _F32, _E4M3, _E5M2, _E8M0, _E2M1, _U4 = 2, 4, 6, 10, 11, 12, 14, 15, 16, 17, 19
_FLOATS = (_F16, _BF16, _F32)
_F8 = (_E4M3, _E5M2)
MAX_GROUP_ELEMENTS = 1 << 24


class Layout(NamedTuple):
    """One layout.

    Attributes:
        free_group: the constant says how many elements a group has.
        ranks: the least and the greatest.
        block: elements that the last dimension is a multiple of.
        block_bytes: of such a block, where DATA is made of blocks.
        row_multiple: of the dimension before the last.
        group: elements of a group, where that is fixed.
        required: roles that must be there.
        components: by role: how many elements, and the data types it may have.
    """

    name: str
    components: Dict[int, Tuple[str, Sequence[int]]]
    required: Sequence[int] = (0, 1)
    free_group: bool = False
    ranks: Tuple[int, int] = (1, 8)
    block: int = 1
    block_bytes: int = 0
    row_multiple: int = 1
    tile_rows: int = 1
    group: int = 0


def _blocks(name: str, block: int, block_bytes: int, group: int = 32) -> Layout:
    return Layout(name, {0: ("blocks", (_U8,))}, (0,), block=block, block_bytes=block_bytes, group=group)


def _int4(name: str, roles: Sequence[int]) -> Layout:
    every = {0: ("elements", (_U4,)), 1: ("groups", _FLOATS), 2: ("group_pairs", (_U4,)), 3: ("columns", (_I32,))}
    return Layout(name, {role: every[role] for role in every if role in (*roles, 3)}, roles, True, block=2)


def _words(name: str, block: int, indexed: bool) -> Layout:
    components = {0: ("words", (_I32,)), 1: ("groups", _FLOATS), 2: ("group_words", (_I32,))}
    if indexed:
        components[3] = ("columns", (_I32,))
    return Layout(name, components, (0, 1, 2), True, (2, 2), block, row_multiple=8)


LAYOUTS: Dict[int, Layout] = {
    0: Layout("plain", {0: ("elements", ())}, (0,), ranks=(0, 8)),
    1: Layout("opaque", {0: ("any", ())}, (0,), ranks=(0, 8)),
    2: Layout("f8_tensor", {0: ("elements", _F8), 1: ("one", _FLOATS)}),
    3: Layout("f8_channel", {0: ("elements", _F8), 1: ("rows", _FLOATS)}),
    4: Layout("f8_block128", {0: ("elements", _F8), 1: ("tiles", _FLOATS)}, tile_rows=128, group=128),
    5: Layout("i8_channel", {0: ("elements", (_I8,)), 1: ("rows", _FLOATS)}),
    6: Layout("i8_group", {0: ("elements", (_I8,)), 1: ("groups", _FLOATS)}, free_group=True),
    7: _int4("i4_group", (0, 1)),
    8: _int4("i4_group_asym", (0, 1, 2)),
    9: _words("gptq_v1", 8, True),
    10: _words("gptq_v2", 8, True),
    11: _words("awq", 1, False),
    16: _blocks("q8_0", 32, 34),
    17: _blocks("q4_0", 32, 18),
    18: _blocks("q4_1", 32, 20),
    19: _blocks("q4_k", 256, 144),
    20: _blocks("q5_k", 256, 176),
    21: _blocks("q6_k", 256, 210, 16),
    22: _blocks("ggml_mxfp4", 32, 17),
    23: _blocks("ggml_nvfp4", 64, 36, 16),
    24: Layout("mxfp4", {0: ("elements", (_E2M1,)), 1: ("groups", (_E8M0,))}, block=32, group=32),
    25: Layout("mxfp8", {0: ("elements", _F8), 1: ("groups", (_E8M0,))}, block=32, group=32),
    26: Layout(
        "nvfp4", {0: ("elements", (_E2M1,)), 1: ("groups", (_E4M3,)), 4: ("one", (_F32,))}, (0, 1, 4), block=16, group=16
    ),
    27: _blocks("q5_0", 32, 22),
    28: _blocks("q5_1", 32, 24),
    29: _blocks("q2_k", 256, 84, 16),
    30: _blocks("q3_k", 256, 110, 16),
    31: _blocks("iq4_nl", 32, 18),
}


def since(encoding: int) -> int:
    """The minor version of the registry that brought a layout."""
    return 1 if encoding <= 1 else 2 if encoding <= 26 else 3


def type_good(encoding: int, dtype: int, group: int, rank: int) -> bool:
    """Whether a layout takes a (logical) data type, a group size and a rank."""
    layout = LAYOUTS[encoding]
    if encoding > 1 and dtype not in _FLOATS:
        return False
    if layout.free_group:
        if not 0 < group <= MAX_GROUP_ELEMENTS or group % 8:
            return False
    elif group:
        return False
    return layout.ranks[0] <= rank <= layout.ranks[1]


def takes(encoding: int, dtype: int, role: int, stored: int) -> bool:
    """Whether a component may have a role and a data type, in a constant of data type `dtype`."""
    component = LAYOUTS[encoding].components.get(role)
    if component is None:
        return False
    return stored in component[1] if encoding > 1 else stored == dtype


def _elements(layout: Layout, shape: Sequence[int], group: int, extent: str) -> int:
    k = shape[-1] if shape else 1
    n = shape[-2] if len(shape) > 1 else 1
    batch = 1
    for size in shape[:-2]:
        batch *= size
    rows = batch * n
    width = group or layout.group or k
    groups = -(-k // width) if width else 0
    return {
        "elements": rows * k,
        "blocks": rows * (k // layout.block * layout.block_bytes),
        "words": rows // 8 * k,
        "one": 1,
        "rows": rows,
        "groups": rows * groups,
        "group_pairs": rows * (groups + groups % 2),
        "group_words": rows // 8 * groups,
        "tiles": batch * -(-n // layout.tile_rows) * groups,
        "columns": k,
    }[extent]


def size_of(encoding: int, shape: Sequence[int], group: int, role: int, stored: int) -> Optional[int]:
    """Bytes of a component; None where they do not fit 63 bits, or where any size will do
    (OPAQUE)."""
    extent = LAYOUTS[encoding].components[role][0]
    if extent == "any":
        return None
    bits = _elements(LAYOUTS[encoding], shape, group, extent) * r.DTYPE_BITS[stored]
    return (bits + 7) // 8 if bits <= (1 << 64) - 8 and (bits + 7) // 8 < 1 << 63 else None


def shape_good(encoding: int, dtype: int, shape: Sequence[int], group: int) -> bool:
    """Whether a layout takes a shape: multiples of its block, and sizes that fit with the widest
    data types."""
    layout = LAYOUTS[encoding]
    k = shape[-1] if shape else 1
    n = shape[-2] if len(shape) > 1 else 1
    if k % layout.block or n % layout.row_multiple:
        return False
    for role, (extent, dtypes) in layout.components.items():
        widest = dtype if encoding <= 1 else _F32 if _F32 in dtypes else min(dtypes)
        if extent != "any" and size_of(encoding, shape, group, role, widest) is None:
            return False
    return True


def unit_along(encoding: int, dtype: int, group: int, rank: int, axis: int) -> int:
    """What parts of a shard are a multiple of along an axis."""
    layout, bits = LAYOUTS[encoding], r.DTYPE_BITS[dtype]
    if encoding <= 1:
        return 8 // bits if bits < 8 else 1
    if axis == rank - 1:
        return max(layout.block, group, layout.group)
    return max(layout.row_multiple, layout.tile_rows) if axis == rank - 2 else 1
