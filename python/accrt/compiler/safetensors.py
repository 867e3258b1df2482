"""Reads .safetensors files: named arrays, mapped and not copied, and the file's metadata. It needs
numpy alone."""

from __future__ import annotations

import json
import math
import mmap
import os
import struct
from collections import Counter
from typing import Any, Dict, List, Optional, Tuple, Union

import numpy as np

from .._files import regular
from ..errors import named_files
from .ir import Module

_DTYPES = {
    "BOOL": ("bool", np.bool_), "I8": ("i8", np.int8), "U8": ("u8", np.uint8), "I16": ("i16", np.int16), "U16": ("u16", np.uint16),
    "I32": ("i32", np.int32), "U32": ("u32", np.uint32), "I64": ("i64", np.int64), "U64": ("u64", np.uint64),
    "F16": ("f16", np.float16), "BF16": ("bf16", np.uint16), "F32": ("f32", np.float32), "F64": ("f64", np.float64),
}  # fmt: skip
MAX_HEADER_BYTES = 100_000_000
_MOST_DIMENSIONS = 32  # numpy's own limit
_SHOWN = 200  # characters of what a message repeats


class SafetensorsError(ValueError):
    """The file is no well-formed safetensors file."""


def read(path: Union[str, "os.PathLike[str]"]) -> Tuple[Dict[str, Tuple[str, np.ndarray]], Dict[str, str]]:
    """({name: (data type, array)}, metadata). bf16 arrays hold bits as uint16. Arrays stay valid as
    long as they are held."""
    with named_files(), open(path, "rb", opener=regular) as file:
        length = os.fstat(file.fileno()).st_size
        if length < 8:
            raise SafetensorsError(f"{path}: {length} bytes are no safetensors file")
        content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    (size,) = struct.unpack_from("<Q", content, 0)
    if size > min(MAX_HEADER_BYTES, len(content) - 8):
        raise SafetensorsError(f"{path}: a header of {size} bytes in a file of {len(content)}")
    try:
        header = json.loads(content[8 : 8 + size], object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise SafetensorsError(f"{path}: its header cannot be read: {str(error)[:_SHOWN]}") from None
    if not isinstance(header, dict):
        raise SafetensorsError(f"{path}: its header is {header!r:.{_SHOWN}}, expected an object")
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise SafetensorsError(f"{path}: its metadata are {metadata!r:.{_SHOWN}}, expected texts by name")
    tensors, places = {}, []
    for name, entry in header.items():
        tensors[name], begin, end = _tensor(path, name, entry, content, 8 + size)
        places += [(begin, end, name)] * (begin < end)
    places.sort()
    for (_, end, one), (begin, _, other) in zip(places, places[1:]):
        if begin < end:
            raise SafetensorsError(f"{path}: tensors {one!r:.{_SHOWN}} and {other!r:.{_SHOWN}} share bytes from {begin} on")
    return tensors, metadata


def _once(pairs: List[Tuple[str, Any]]) -> Dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        twice = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
        raise ValueError(f"{twice!r} is there twice")
    return made


def _sizes(given: Any) -> Optional[List[int]]:
    """Whole numbers from 0 on; None: they are something else."""
    good = isinstance(given, list) and all(type(one) is int and 0 <= one < 1 << 63 for one in given)
    return given if good else None


def _tensor(path: object, name: str, entry: Any, content: mmap.mmap, base: int) -> Tuple[Tuple[str, np.ndarray], int, int]:
    entry = entry if isinstance(entry, dict) else {}
    kind_name, shape, place = entry.get("dtype"), _sizes(entry.get("shape")), _sizes(entry.get("data_offsets"))
    if not isinstance(kind_name, str) or shape is None or place is None or len(place) != 2:
        raise SafetensorsError(f"{path}: tensor {name!r:.{_SHOWN}} is {entry!r:.{_SHOWN}}, expected its dtype, its shape and two data_offsets")
    if kind_name not in _DTYPES:
        raise SafetensorsError(f"{path}: tensor {name!r:.{_SHOWN}} has the type {kind_name:.{_SHOWN}}, which is not known here")
    dtype, kind = _DTYPES[kind_name]
    begin, end = place
    # numpy makes no array of larger dimensions, be one of them 0
    fits = len(shape) <= _MOST_DIMENSIONS and math.prod(max(size, 1) for size in shape) < 1 << 58
    count = math.prod(shape) if fits else -1
    if not begin <= end <= len(content) - base or end - begin != count * np.dtype(kind).itemsize:
        raise SafetensorsError(f"{path}: tensor {name!r:.{_SHOWN}} of shape {shape!r:.{_SHOWN}} lies at [{begin}, {end})")
    if count == 0:
        return (dtype, np.empty(shape, kind)), begin, end
    flat = np.frombuffer(content, kind, count, base + begin)
    return (dtype, flat.reshape(shape)), begin, end


def add_constants(module: Module, tensors: Dict[str, Tuple[str, np.ndarray]]) -> None:
    """Adds every tensor as a constant of the same name."""
    for name, (dtype, array) in tensors.items():
        module.constant(name, array, dtype)
