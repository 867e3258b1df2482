"""Weight layouts as the library knows them: which components a weight has, and their exact sizes.
docs/layouts.md has what the bytes mean."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import lru_cache
from typing import Mapping, Sequence, Tuple

from .common import DTYPES, BundleError, Encoding, Role

_NAMES = {number: name for name, (number, _bits) in DTYPES.items()}


@dataclass(frozen=True)
class Layout:
    """Data types of the `components` by role; those of `optional` may be left out. The last
    dimension is a multiple of `block`, the one before of `rows`; `tile` rows share a scale, and
    `group` elements of a row (0: free, or the row)."""

    components: Mapping[Role, Tuple[str, ...]]
    optional: Tuple[Role, ...]
    block: int
    rows: int
    tile: int
    group: int
    free_group: bool


@lru_cache(maxsize=None)
def of(encoding: Encoding) -> Layout:
    """What is known of a layout."""
    from .. import _ffi, _library

    info = _library.filled(_ffi.accrt_layout_info, _library.lib.accrt_layout_info, int(encoding))
    components = {}
    for role in Role:
        # f32 first: it is what is taken where nothing is said.
        types = sorted((number for number in _NAMES if info.dtypes[role] >> number & 1), key=lambda number: _NAMES[number] != "f32")
        if types:
            components[role] = tuple(_NAMES[number] for number in types)
    optional = tuple(role for role in components if not info.required_roles >> role & 1)
    free = bool(info.flags & _ffi.ACCRT_LAYOUT_FLAG_FREE_GROUP)
    return Layout(components, optional, info.block_elements, info.row_multiple, info.tile_rows, info.group_elements, free)


def size_bytes(encoding: Encoding, role: Role, dtype: str, shape: Sequence[int], group: int, *, weight: str = "f32", where: str = "") -> int:
    """Exact bytes of a component of a weight of data type `weight`. Raises BundleError where the
    layout does not take that."""
    from .. import _ffi, _library

    dims = (ctypes.c_int64 * max(len(shape), 1))(*shape)
    tensor = _library.struct(_ffi.accrt_layout_tensor, layout=int(encoding), dtype=DTYPES[weight][0], group_elements=group, rank=len(shape),
                             shape=dims)  # fmt: skip
    tensor.components[role].dtype = DTYPES[dtype][0]
    size = ctypes.c_uint64()
    status = _library.lib.accrt_layout_component_size(ctypes.byref(tensor), int(role), ctypes.byref(size))
    if status != 0:
        raise BundleError(f"{where or encoding.name}: {_library.last_error(status).message}")
    return size.value


def check(encoding: Encoding, dtype: str, shape: Sequence[int], group: int, where: str) -> None:
    """That a layout takes a type."""
    if dtype not in DTYPES or not 0 <= group < 1 << 32 or any(not 0 <= size < 1 << 63 for size in shape):
        raise BundleError(f"{where}: data type {dtype!r}, shape {tuple(shape)}, group_elements {group}")
    data = of(encoding).components[Role.DATA][0]
    size_bytes(encoding, Role.DATA, data, shape, group, weight=dtype, where=where)


def unit_along(encoding: Encoding, dtype: str, group: int, rank: int, axis: int) -> int:
    """What parts of a shard are a multiple of along an axis, so that no byte, block, group or tile
    is cut."""
    if encoding <= Encoding.OPAQUE:
        return max(1, 8 // DTYPES[dtype][1])
    layout = of(encoding)
    if axis == rank - 1:
        return max(layout.block, group, layout.group)
    return max(layout.rows, layout.tile) if axis == rank - 2 else 1
