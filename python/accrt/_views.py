"""The base of tensors: data types by name, a C tensor with what keeps its memory alive, strides."""
from __future__ import annotations

import ctypes
import sys
from typing import Sequence

from . import _ffi
from ._library import lib

DTYPES = {lib.accrt_dtype_name(v).decode(): v for n, v in vars(_ffi).items()
          if n.startswith("ACCRT_DTYPE_") and n != "ACCRT_DTYPE_NONE"}
_NAMES = {v: k for k, v in DTYPES.items()}
# struct module codes and numpy typestrs of the types that they have.
_INTEGERS = ("i4", "u4", "i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64")
_CODES = {"bool": "?", "i8": "b", "u8": "B", "i16": "h", "u16": "H", "i32": "i", "u32": "I", "i64": "q", "u64": "Q",
          "f16": "e", "f32": "f", "f64": "d"}
#: Those that memoryview casts to.
_VIEW_CODES = {k: v for k, v in _CODES.items() if v != "e" or sys.version_info >= (3, 12)}
_TYPESTR = {"bool": "|b1", "i8": "|i1", "u8": "|u1", "i16": "<i2", "u16": "<u2", "i32": "<i4", "u32": "<u4", "i64": "<i8",
            "u64": "<u8", "f16": "<f2", "f32": "<f4", "f64": "<f8"}
_FROM_TYPESTR = {v: DTYPES[k] for k, v in _TYPESTR.items()}
_FROM_CODE = {c: DTYPES[n] for n, c in _CODES.items()}
_FROM_CODE.update({"l": DTYPES["i64"], "L": DTYPES["u64"], "c": DTYPES["u8"]})

_CPU, _CUDA, _CUDA_MANAGED = 1, 2, 13  # as DLPack numbers devices
_OF_HOST = (_CPU, 3, 11)  # pinned for CUDA or ROCm, too
_DLPACK_NAME = b"dltensor_versioned"
_DLPACK_USED = b"used_dltensor_versioned"
_DLPACK_OLD_NAME, _DLPACK_OLD_USED = b"dltensor", b"used_dltensor"
_pyapi = ctypes.pythonapi
_pyapi.PyCapsule_New.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
_pyapi.PyCapsule_New.restype = ctypes.py_object
_pyapi.PyCapsule_IsValid.argtypes = [ctypes.py_object, ctypes.c_char_p]
_pyapi.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
_pyapi.PyCapsule_GetPointer.restype = ctypes.c_void_p
_pyapi.PyCapsule_SetName.argtypes = [ctypes.py_object, ctypes.c_char_p]


def dtype_id(dtype: str | int) -> int:
    """Id of a data type by its short name ("f32", "bf16", ...)."""
    if isinstance(dtype, int) and dtype in _NAMES:
        return dtype
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise ValueError(f"data type {dtype!r} is not known; there are {', '.join(DTYPES)}")
    return DTYPES[dtype]


class View:
    """A C tensor and what keeps its memory alive. Not for users: what functions take apart their
    arguments into."""

    __slots__ = ("c", "shape_array", "strides_array", "owner", "read_only")

    def __init__(self, buffer, data: int | None, offset: int, dtype: int, shape: Sequence[int],
                 strides: Sequence[int] | None, owner: object, read_only: bool = False) -> None:
        rank = len(shape)
        if rank > _ffi.ACCRT_MAX_RANK:
            raise ValueError(f"tensor has {rank} dimensions, at most {_ffi.ACCRT_MAX_RANK} are supported")
        self.shape_array = (ctypes.c_int64 * max(rank, 1))(*shape)
        self.strides_array = (ctypes.c_int64 * max(rank, 1))(*strides) if strides is not None else None
        self.c = _ffi.accrt_tensor(buffer, data, offset, dtype, rank, self.shape_array, self.strides_array)
        self.owner = owner
        self.read_only = read_only


def extent(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, int]:
    """The first element that a tensor has, and the one behind its last, counted from element 0; (0,
    0) when it has none."""
    if 0 in shape:
        return 0, 0
    steps = [(d - 1) * s for d, s in zip(shape, strides)]
    return sum(min(step, 0) for step in steps), sum(max(step, 0) for step in steps) + 1


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Row-major strides in elements."""
    strides, step = [], 1
    for d in reversed(shape):
        strides.append(step)
        step *= max(d, 1)
    return tuple(reversed(strides))
