"""Safetensors files for tests, written without their package."""

from __future__ import annotations

import json
import struct
from typing import Mapping

import numpy as np

_TYPES = {"float64": "F64", "float32": "F32", "float16": "F16", "int64": "I64", "int32": "I32", "int8": "I8", "uint8": "U8"}


def safetensors_bytes(
    tensors: Mapping[str, np.ndarray | tuple[str, np.ndarray]], metadata: Mapping[str, str] | None = None, pad: int = 0, align: int = 1
) -> bytes:
    """Of arrays, or of (type, array) with the bits of what numpy has no type for. `pad`: spaces
    behind the header; `align`: of the header."""
    header: dict[str, object] = {"__metadata__": metadata} if metadata else {}
    data = b""
    for name, value in tensors.items():
        kind, array = value if isinstance(value, tuple) else (_TYPES[value.dtype.name], value)
        header[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": [len(data), len(data) + array.nbytes]}
        data += array.tobytes()
    text = json.dumps(header).encode() + b" " * pad
    text += b" " * (-len(text) % align)
    return struct.pack("<Q", len(text)) + text + data
