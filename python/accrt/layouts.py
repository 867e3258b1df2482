"""Weight layouts: what quantized weights' bytes mean, and their exact conversion from and to f32, on numpy arrays.

    from accrt import layouts
    packed = layouts.quantize(weight, "q4_k")              # components as byte arrays, and an error report
    again = layouts.dequantize(packed)                     # f32, exactly by the formula of docs/layouts.md

The work is done by libaccrt; needs numpy.
"""
from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from typing import Mapping, Sequence

import numpy as np

from . import _ffi
from ._library import check, lib, struct

ROLES = ("data", "scales", "zeros", "group_index", "global_scale")
FREE_GROUP, WRITABLE = 1, 2
# Ids of data types (accrt/kernel.h).
DTYPES = {"bool": 1, "i8": 2, "i16": 3, "i32": 4, "i64": 5, "u8": 6, "u16": 7, "u32": 8, "u64": 9, "f16": 10, "bf16": 11,
          "f32": 12, "f64": 13, "f8e4m3fn": 14, "f8e5m2": 15, "f8e8m0": 16, "f4e2m1": 17, "i4": 18, "u4": 19}
_NAMES = {number: name for name, number in DTYPES.items()}


@dataclass(frozen=True)
class Info:
    """What is known of a layout."""
    id: int
    name: str
    free_group: bool
    writable: bool
    block_elements: int
    block_bytes: int
    row_multiple: int
    tile_rows: int
    group_elements: int
    required: tuple[str, ...]
    dtypes: Mapping[str, tuple[str, ...]]


def layout_id(layout: int | str) -> int:
    """The id of a layout by name; an id as it is."""
    if not isinstance(layout, str):
        return int(layout)
    found = ctypes.c_uint32()
    check(lib.accrt_layout_find(layout.encode(), ctypes.byref(found)))
    return found.value


def info(layout: int | str) -> Info:
    """What is known of a layout, by id or name."""
    raw = struct(_ffi.accrt_layout_info)
    check(lib.accrt_layout_info(layout_id(layout), ctypes.byref(raw)))
    return Info(
        raw.id, raw.name.decode(), bool(raw.flags & FREE_GROUP), bool(raw.flags & WRITABLE), raw.block_elements,
        raw.block_bytes, raw.row_multiple, raw.tile_rows, raw.group_elements,
        tuple(role for i, role in enumerate(ROLES) if raw.required_roles >> i & 1),
        {role: tuple(name for number, name in _NAMES.items() if raw.dtypes[i] >> number & 1)
         for i, role in enumerate(ROLES) if raw.dtypes[i]})


def all_layouts() -> list[Info]:
    """All layouts that the library knows."""
    found = []
    for number in range(256):
        try:
            found.append(info(number))
        except LookupError:
            continue
        except Exception as error:  # accrt.NotFound is made when the library is loaded
            if type(error).__name__ != "NotFoundError":
                raise
    return found


@dataclass
class Component:
    """Bytes of one component, and their data type."""
    dtype: str
    data: np.ndarray


@dataclass
class Packed:
    """A weight in a layout."""
    layout: int
    shape: tuple[int, ...]
    components: dict[str, Component]
    group_elements: int = 0
    dtype: str = "f32"
    error: "object | None" = field(default=None, compare=False)

    @property
    def size_bytes(self) -> int:
        return sum(c.data.nbytes for c in self.components.values())


def _tensor(layout: int, shape: Sequence[int], dtype: str, group: int, components: Mapping[str, Component]):
    """The C struct, and what must live as long as it."""
    tensor = struct(_ffi.accrt_layout_tensor, layout=layout, dtype=DTYPES[dtype], group_elements=group, rank=len(shape))
    dims = (ctypes.c_int64 * max(len(shape), 1))(*shape)
    tensor.shape = ctypes.cast(dims, ctypes.POINTER(ctypes.c_int64))
    for role, component in components.items():
        slot = tensor.components[ROLES.index(role)]
        slot.dtype = DTYPES[component.dtype]
        if component.data is not None:
            slot.data = component.data.ctypes.data
            slot.size_bytes = component.data.nbytes
    return tensor, dims


def component_size(layout: int | str, shape: Sequence[int], role: str, dtype: str, *, group_elements: int = 0,
                   weight_dtype: str = "f32") -> int:
    """Exact bytes of a component of a weight of this shape."""
    number = layout_id(layout)
    logical = dtype if number == 0 else weight_dtype
    tensor, _keep = _tensor(number, shape, logical, group_elements, {role: Component(dtype, None)})
    size = ctypes.c_uint64()
    check(lib.accrt_layout_component_size(ctypes.byref(tensor), ROLES.index(role), ctypes.byref(size)))
    return size.value


def dequantize(packed: Packed, first: int = 0, count: int | None = None) -> np.ndarray:
    """Rows [first, first + count) as f32, exactly; all of them, in the weight's shape, when nothing is said."""
    components = {role: Component(c.dtype, np.ascontiguousarray(c.data)) for role, c in packed.components.items()}
    tensor, _keep = _tensor(packed.layout, packed.shape, packed.dtype, packed.group_elements, components)
    columns = packed.shape[-1] if packed.shape else 1
    rows = int(np.prod(packed.shape[:-1], dtype=np.int64))
    wanted = rows - first if count is None else count
    out = np.empty((wanted, columns), np.float32)
    check(lib.accrt_layout_dequantize(ctypes.byref(tensor), first, wanted, out.ctypes.data_as(ctypes.POINTER(ctypes.c_float))))
    return out.reshape(packed.shape) if first == 0 and wanted == rows else out
