"""Files of an ONNX model: the model itself, and those beside it that have its weights. onnx would
open whatever a model's text names."""

from __future__ import annotations

import math
import os
import stat
from typing import Any, Iterator, Optional

from .._files import regular
from ..errors import named_files

#: Bytes of an element of the types that are read, by their numbers in onnx.TensorProto.DataType.
_BYTES = {1: 4, 2: 1, 3: 1, 6: 4, 7: 8, 9: 1, 10: 2, 11: 8, 12: 4, 16: 2}


def read(path: str) -> Any:
    """The ModelProto, with external data. OSError: a file; ValueError: a name that leads out of the
    model's folder, or past a file's end."""
    import onnx

    with named_files():
        opened = open(path, "rb", opener=regular)
    with opened as file:
        model = onnx.load(file, load_external_data=False)
    folder = os.path.dirname(os.path.abspath(path))
    for tensor in _tensors(model):
        check(tensor)
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            tensor.raw_data = _bytes(tensor, folder)
            tensor.data_location = onnx.TensorProto.DEFAULT
            del tensor.external_data[:]
    return model


def _tensors(model: Any) -> Iterator[Any]:
    graphs, nodes = [model.graph], [node for function in model.functions for node in function.node]
    while graphs or nodes:
        if graphs:
            graph = graphs.pop()
            yield from graph.initializer
            for sparse in graph.sparse_initializer:
                yield from (sparse.values, sparse.indices)
            nodes += graph.node
        for node in nodes:
            for attribute in node.attribute:
                if attribute.HasField("t"):
                    yield attribute.t
                yield from attribute.tensors
                for sparse in (*([attribute.sparse_tensor] if attribute.HasField("sparse_tensor") else []), *attribute.sparse_tensors):
                    yield from (sparse.values, sparse.indices)
                graphs += [*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs]
        nodes = []


def check(tensor: Any) -> Optional[int]:
    """The bytes that a tensor's type and dimensions ask for; None: of a type that is refused
    elsewhere. ValueError: it has others, or dimensions that are none."""
    import onnx

    what, dims = f"weight {tensor.name!r}", list(tensor.dims)
    if any(extent < 0 for extent in dims):
        raise ValueError(f"{what}: its dimensions are {dims!r:.200}, of which one is negative")
    if tensor.data_type not in _BYTES:
        return None
    size = math.prod(dims) * _BYTES[tensor.data_type]
    if tensor.data_location != onnx.TensorProto.EXTERNAL and tensor.HasField("raw_data") and len(tensor.raw_data) != size:
        raise ValueError(f"{what}: it has {len(tensor.raw_data)} bytes, expected {size} for the dimensions {dims!r:.200}")
    return size


def _bytes(tensor: Any, folder: str) -> bytes:
    expected = check(tensor)
    fields = {entry.key: entry.value for entry in tensor.external_data}
    what = f"weight {tensor.name!r}"
    try:
        offset, length = int(fields.get("offset", "0")), int(fields.get("length", "-1"))
    except ValueError:
        raise ValueError(f"{what}: its offset or length is no number") from None
    with open(_beneath(folder, fields.get("location", ""), what), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if length < 0 and "length" not in fields:
            length = max(size - offset, 0)
        if offset < 0 or length < 0 or offset > size or length > size - offset:
            raise ValueError(f"{what}: {length} bytes from {offset} on are not in {fields['location']!r}, which has {size}")
        if expected is not None and length != expected:  # before it takes memory
            raise ValueError(f"{what}: it has {length} bytes in {fields['location']!r}, expected {expected} for the dimensions {list(tensor.dims)!r:.200}")
        file.seek(offset)
        data = file.read(length)
    if len(data) != length:
        raise ValueError(f"{what}: {fields['location']} was cut while it was read")
    return data


def _beneath(folder: str, location: str, what: str) -> int:
    """Opens a regular file in the folder or below it; no part of its name is a link, and the file
    has no other name."""
    parts = [part for part in location.split("/") if part != "."]
    if not parts or "\0" in location or any(part in ("", "..") for part in parts):
        raise ValueError(f"{what}: its file {location!r} is not beneath the model's folder")
    at = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
    try:
        for part in parts[:-1]:
            inner = os.open(part, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
            os.close(at)
            at = inner
        file = os.open(parts[-1], flags, dir_fd=at)
    except OSError as error:
        error.filename = os.path.join(folder, location)
        raise
    finally:
        os.close(at)
    facts = os.fstat(file)
    if stat.S_ISREG(facts.st_mode) and facts.st_nlink == 1:
        return file
    os.close(file)
    raise ValueError(f"{what}: its file {location!r} is no regular file, or has other names")
