"""Reads .safetensors files: named arrays, mapped and not copied, and the file's metadata. It needs
numpy alone."""

from __future__ import annotations

import json
import mmap
import os
import struct
from typing import Dict, Tuple, Union

import numpy as np

from .._files import regular
from ..errors import named_files
from .ir import Module

_DTYPES = {
    "BOOL": ("bool", np.bool_), "I8": ("i8", np.int8), "U8": ("u8", np.uint8), "I32": ("i32", np.int32), "I64": ("i64", np.int64),
    "F16": ("f16", np.float16), "BF16": ("bf16", np.uint16), "F32": ("f32", np.float32), "F64": ("f64", np.float64),
}  # fmt: skip
MAX_HEADER_BYTES = 100_000_000


class SafetensorsError(ValueError):
    """The file is no well-formed safetensors file."""


def read(path: Union[str, "os.PathLike[str]"]) -> Tuple[Dict[str, Tuple[str, np.ndarray]], Dict[str, str]]:
    """({name: (data type, array)}, metadata). bf16 arrays hold bits as uint16. Arrays stay valid as
    long as they are held."""
    with named_files(), open(path, "rb", opener=regular) as file:
        content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    if len(content) < 8:
        raise SafetensorsError(f"{path}: {len(content)} bytes are no safetensors file")
    (size,) = struct.unpack_from("<Q", content, 0)
    if size > min(MAX_HEADER_BYTES, len(content) - 8):
        raise SafetensorsError(f"{path}: a header of {size} bytes in a file of {len(content)}")
    header = json.loads(content[8 : 8 + size])
    metadata = header.pop("__metadata__", {})
    return {name: _tensor(path, name, entry, content, 8 + size) for name, entry in header.items()}, metadata


def _tensor(path: object, name: str, entry: Dict, content: mmap.mmap, base: int) -> Tuple[str, np.ndarray]:
    if entry["dtype"] not in _DTYPES:
        raise SafetensorsError(f"{path}: tensor {name!r} has the type {entry['dtype']}, which is not known here")
    dtype, kind = _DTYPES[entry["dtype"]]
    begin, end = entry["data_offsets"]
    count = 1
    for extent in entry["shape"]:
        count *= extent
    if not 0 <= begin <= end <= len(content) - base or end - begin != count * np.dtype(kind).itemsize:
        raise SafetensorsError(f"{path}: tensor {name!r} of shape {entry['shape']} lies at [{begin}, {end})")
    if count == 0:
        return dtype, np.empty(entry["shape"], kind)
    flat = np.frombuffer(content, kind, count, base + begin)
    return dtype, flat.reshape(entry["shape"])


def add_constants(module: Module, tensors: Dict[str, Tuple[str, np.ndarray]]) -> None:
    """Adds every tensor as a constant of the same name."""
    for name, (dtype, array) in tensors.items():
        module.constant(name, array, dtype)
