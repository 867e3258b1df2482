"""Weight layouts: what quantized weights' bytes mean, and their exact conversion from and to f32,
on numpy arrays.

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

from . import _ffi, _format
from ._bits import float_array
from ._library import c_text, check, lib, number, struct
from ._waits import apart

ROLES = _format.ROLES
FREE_GROUP, WRITABLE = _ffi.ACCRT_LAYOUT_FLAG_FREE_GROUP, _ffi.ACCRT_LAYOUT_FLAG_WRITABLE
# Ids of data types (accrt/kernel.h).
DTYPES = {name: number for name, (number, _bits) in _format.DTYPES.items()}
_NAMES = {value: name for name, value in DTYPES.items()}


@dataclass(frozen=True)
class Info:
    """Facts about a layout."""
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
        return number(layout, "layout", 32)
    found = ctypes.c_uint32()
    check(lib.accrt_layout_find(c_text(layout), ctypes.byref(found)))
    return found.value


def info(layout: int | str) -> Info:
    """Facts about a layout, by its id or name."""
    raw = struct(_ffi.accrt_layout_info)
    check(lib.accrt_layout_info(layout_id(layout), ctypes.byref(raw)))
    return Info(
        raw.id, raw.name.decode(), bool(raw.flags & FREE_GROUP), bool(raw.flags & WRITABLE), raw.block_elements,
        raw.block_bytes, raw.row_multiple, raw.tile_rows, raw.group_elements,
        tuple(role for i, role in enumerate(ROLES) if raw.required_roles >> i & 1),
        {role: tuple(name for bit, name in _NAMES.items() if raw.dtypes[i] >> bit & 1)
         for i, role in enumerate(ROLES) if raw.dtypes[i]})


def all_layouts() -> list[Info]:
    """All layouts that the library knows."""
    numbers = {value for name, value in vars(_ffi).items() if name.startswith("ACCRT_LAYOUT_") and isinstance(value, int)
               and not name.startswith(("ACCRT_LAYOUT_ROLE_", "ACCRT_LAYOUT_FLAG_", "ACCRT_LAYOUT_TENSOR_"))}
    return [info(number) for number in sorted(numbers)]


@dataclass(eq=False)
class Component:
    """Bytes of one component, and their data type. Two components are equal if both are."""
    dtype: str
    data: np.ndarray

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Component):
            return NotImplemented
        return self.dtype == other.dtype and np.array_equal(*(np.ascontiguousarray(c.data).reshape(-1).view(np.uint8) for c in (self, other)))

    __hash__ = None  # type: ignore[assignment]


@dataclass
class Packed:
    """A weight in a layout."""
    layout: int
    shape: tuple[int, ...]
    components: dict[str, Component]
    group_elements: int = 0
    dtype: str = "f32"
    error: "Report | None" = field(default=None, compare=False)

    @property
    def size_bytes(self) -> int:
        return sum(c.data.nbytes for c in self.components.values())


def _tensor(layout: int, shape: Sequence[int], dtype: str, group: int, components: Mapping[str, Component]):
    """The C struct, and what must live as long as it."""
    tensor = struct(_ffi.accrt_layout_tensor, layout=number(layout, "layout", 32), dtype=DTYPES[dtype], rank=len(shape),
                    group_elements=number(group, "group_elements", 32))
    dims = (ctypes.c_int64 * max(len(shape), 1))(*(number(size, "shape", 64, signed=True) for size in shape))
    tensor.shape = dims
    for role, component in components.items():
        slot = tensor.components[ROLES.index(role)]
        slot.dtype = DTYPES[component.dtype]
        if component.data is not None:
            slot.data = component.data.ctypes.data
            slot.size_bytes = component.data.nbytes
    return tensor, dims


_FLOATS = ctypes.c_float * 1


def _floats(array: np.ndarray):
    """An array's memory for C, which keeps the array. Not `data_as`, whose pointers are in
    cycles."""
    memory = _FLOATS.from_address(array.ctypes.data)
    memory.owner = array  # type: ignore[attr-defined]
    return memory


def component_size(layout: int | str, shape: Sequence[int], role: str, dtype: str, *, group_elements: int = 0,
                   weight_dtype: str = "f32") -> int:
    """Exact bytes of a component of a weight of this shape."""
    known = layout_id(layout)
    logical = dtype if known == 0 else weight_dtype
    tensor, _keep = _tensor(known, shape, logical, group_elements, {role: Component(dtype, None)})
    size = ctypes.c_uint64()
    check(lib.accrt_layout_component_size(ctypes.byref(tensor), ROLES.index(role), ctypes.byref(size)))
    return size.value


def dequantize(packed: Packed, first: int = 0, count: int | None = None) -> np.ndarray:
    """Rows [first, first + count) as f32, exactly; all of them, in the weight's shape, without
    `first` and `count`."""
    components = {role: Component(c.dtype, np.ascontiguousarray(c.data)) for role, c in packed.components.items()}
    tensor, _keep = _tensor(packed.layout, packed.shape, packed.dtype, packed.group_elements, components)
    columns = packed.shape[-1] if packed.shape else 1
    rows = int(np.prod(packed.shape[:-1], dtype=np.int64))
    first = number(first, "first")
    wanted = number(rows - first if count is None else count, "count")
    out = np.empty((wanted, columns), np.float32)
    target = _floats(out)
    apart(lambda: (check(lib.accrt_layout_dequantize(ctypes.byref(tensor), first, wanted, target)), components, _keep))
    return out.reshape(packed.shape) if first == 0 and wanted == rows else out


@dataclass(frozen=True)
class Report:
    """The error of quantizing. Decibels and shares are of squares; the weighted ones count inputs
    by their importance."""
    elements: int
    amax: float
    max_error: float
    rms_error: float
    rms_weight: float
    sqnr_db: float
    weighted_sqnr_db: float


def _decibels(signal: float, noise: float) -> float:
    return float("inf") if noise == 0 else 10 * float(np.log10(signal / noise)) if signal > 0 else float("-inf")


def _report(raw) -> Report:
    count = max(raw.elements, 1)
    return Report(raw.elements, raw.amax, raw.max_error, (raw.error_squares / count) ** 0.5, (raw.weight_squares / count) ** 0.5,
                  _decibels(raw.weight_squares, raw.error_squares),
                  _decibels(raw.weighted_squares, raw.weighted_error_squares))


def quantize(weight: np.ndarray, layout: int | str, *, group_elements: int = 0, data: str | None = None, scales: str | None = None,
             importance: np.ndarray | None = None, search: bool | None = None, dtype: str = "f32") -> Packed:
    """Quantizes a weight [..., N, K]; `error` of the result says what was lost.

    `importance`: K numbers by which squared errors count, e.g. the mean square of each input
    channel's activations. `search` (the default when there is an importance): scales that make the
    error least. `data` and `scales`: the types of these components, if the layout leaves a choice.
    `group_elements`: of layouts with a free group size (0: 128). `dtype`: the type that the weight
    had; for the layout `plain`, the type that it gets."""
    known = info(layout)
    if known.free_group and group_elements == 0:
        group_elements = 128
    weight = float_array(weight, "weight")
    chosen = {"data": data, "scales": scales}
    components = {}
    for role in known.required:
        allowed = known.dtypes[role]
        kind = chosen.get(role) or (dtype if known.id == 0 else "f32" if "f32" in allowed else allowed[0])
        size = component_size(known.id, weight.shape, role, kind, group_elements=group_elements, weight_dtype=dtype)
        components[role] = Component(kind, np.zeros(size, np.uint8))
    tensor, _keep = _tensor(known.id, weight.shape, dtype, group_elements, components)
    options = struct(_ffi.accrt_quantize_options)
    options.method = int(search if search is not None else importance is not None)
    if importance is not None:
        importance = float_array(importance, "importance")
        if importance.shape != weight.shape[-1:]:
            raise ValueError(f"importance has shape {importance.shape}, the weight has {weight.shape[-1]} inputs")
        options.importance = _floats(importance)
    report = struct(_ffi.accrt_quantize_report)
    rows = int(np.prod(weight.shape[:-1], dtype=np.int64))
    values = _floats(weight)
    apart(lambda: (check(lib.accrt_layout_quantize(ctypes.byref(tensor), values, 0, rows, ctypes.byref(options),
                                                   ctypes.byref(report))), components, _keep, importance))
    return Packed(known.id, weight.shape, components, group_elements, dtype, _report(report))
