"""LoRA adapters of an engine: PEFT folders that are loaded and unloaded, by name, while it runs."""

from __future__ import annotations

import ctypes
import json
import os
import threading
from time import monotonic_ns
from typing import Any, Dict, List, Mapping, Optional

from .. import _ffi
from .._files import read_small
from .._library import check, lib, shown
from .._waits import SLICE_NS, apart

#: Options of a model, by the names that accrt.LLM and accrt-serve have.
OPTIONS = {
    "adapters": (0, "places for LoRA adapters; 0: none"),
    "max_rank": (16, "the largest rank of an adapter"),
    "adapter_targets": (None, "ends of the names of products that adapters change, separated by commas; default: all"),
}
MOST_NAME_BYTES = 4096
#: Of an adapter of a simulated model, whose tokens its bytes change.
_SIMULATED_BYTES = 1 << 20


class Adapters:
    """The adapters of one engine. `layout`: the bundle's asset serve.adapters; None: the model has
    no places, or is a simulated one. Threads may share it."""

    def __init__(self, engine: Any, layout: Optional[bytes]) -> None:
        self._engine = engine
        self._layout = None if layout is None else json.loads(layout)
        self._guard = threading.Lock()
        self._paths: Dict[str, str] = {}

    def __contains__(self, name: object) -> bool:
        return name in self.names()

    def names(self) -> List[str]:
        """Those that requests may have now."""
        size, count = ctypes.c_uint64(), ctypes.c_uint32()
        names = ctypes.create_string_buffer(0)
        while True:
            check(lib.accrt_serve_engine_adapters(self._engine.handle, names, len(names), ctypes.byref(size), ctypes.byref(count)))
            if size.value <= len(names):
                return [name.decode() for name in names.raw[: size.value].split(b"\0")[:-1]]
            names = ctypes.create_string_buffer(size.value)

    def path(self, name: str) -> str:
        """The folder that it was loaded from."""
        with self._guard:
            return self._paths[name]

    def load(self, name: str, path: "str | os.PathLike[str]") -> None:
        """Loads a PEFT folder under a name, which requests may have from then on.

        Raises:
            accrt.models.Refused: what stands against the adapter, all of it. NotFoundError: no such
                folder. AlreadyExistsError: the name is
            taken. NotReadyError: all places are. UnsupportedError: the model has none.
        """
        name_of(name)
        self.put(name, path, self.read(path))

    def put(self, name: str, path: "str | os.PathLike[str]", tensors: Mapping[str, Any]) -> None:
        """Loads what `read` gave."""
        checked = name_of(name)
        given = (_ffi.accrt_serve_adapter_tensor * max(len(tensors), 1))()
        for place, (state, array) in zip(given, tensors.items()):
            place.name, place.data, place.size_bytes = state.encode(), array.ctypes.data, array.nbytes
        handle, size = self._engine.handle, ctypes.sizeof(_ffi.accrt_serve_adapter_tensor)
        apart(lambda: check(lib.accrt_serve_engine_load_adapter(handle, checked, given, len(tensors), size)))
        with self._guard:
            self._paths[name] = os.path.abspath(os.fspath(path))

    def read(self, path: "str | os.PathLike[str]") -> Mapping[str, Any]:
        """What an adapter's folder has for the model, by the names of its states."""
        if not isinstance(path, (str, os.PathLike)):
            raise TypeError(f"the adapter's folder is {shown(path)}, expected a path")
        path = os.fspath(path)
        if self._layout is not None:
            from ..models import read_adapter

            return read_adapter(path, self._layout).tensors
        if not self._engine.model.info["adapter_count"]:
            return {}  # for the engine to refuse
        import numpy

        content = read_small(os.path.join(path, "adapter_model.safetensors"), _SIMULATED_BYTES)
        return {"any": numpy.frombuffer(content, numpy.uint8)}

    def unload(self, name: str, seconds: float = 30.0) -> None:
        """Takes an adapter away when the requests that have it have ended. Others may not name it
        meanwhile.

        Raises:
            NotFoundError: there is none of this name. NotReadyError: it is used still, after so
                many seconds; then it stays.
        """
        checked, end = name_of(name), monotonic_ns() + int(seconds * 1e9)
        while True:  # in slices, between which Ctrl-C ends it
            left = max(end - monotonic_ns(), 0)
            status = lib.accrt_serve_engine_unload_adapter(self._engine.handle, checked, min(left, SLICE_NS))
            if status != _ffi.ACCRT_ERROR_NOT_READY or left <= SLICE_NS:
                break
        check(status)
        with self._guard:
            self._paths.pop(name, None)


def name_of(name: Any) -> bytes:
    """A name as the engine takes it."""
    if not isinstance(name, str):
        raise TypeError(f"an adapter's name is {shown(name)}, expected a string")
    try:
        encoded = name.encode()
    except UnicodeEncodeError:
        raise ValueError(f"an adapter's name is {name!r}, which is no Unicode text") from None
    if not encoded or b"\0" in encoded or len(encoded) > MOST_NAME_BYTES:
        raise ValueError(f"an adapter's name is {shown(name)}, expected 1 to {MOST_NAME_BYTES} bytes without a NUL")
    return encoded


__all__ = ["Adapters", "OPTIONS", "name_of"]
