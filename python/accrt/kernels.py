"""Kernel packs, launches and recorded commands: kernels without a bundle."""
from __future__ import annotations

import ctypes
import os
from typing import Iterable, Sequence

from . import _ffi
from ._library import Handle, check, created, filled, lib, text
from .instance import Device, Instance
from .memory import Buffer
from .stream import Stream
from .tensor import Tensor, as_view

_BYTES = {"buffer": _ffi.ACCRT_KERNEL_PARAM_BUFFER, "tensor": _ffi.ACCRT_KERNEL_PARAM_TENSOR,
          "scalar": _ffi.ACCRT_KERNEL_PARAM_SCALAR, "symbol": _ffi.ACCRT_KERNEL_PARAM_SYMBOL,
          "workspace": _ffi.ACCRT_KERNEL_PARAM_WORKSPACE}
_WHOLE = (1 << 64) - 1


class KernelPack(Handle):
    """A pack of kernels from a shared object (a path) or from a freestanding ELF image (bytes).

    Raises PermissionDeniedError unless the instance was made with host_code="all".
    """

    __slots__ = ("instance",)
    _release_name = "accrt_kernel_pack_release"

    def __init__(self, instance: Instance, source: str | os.PathLike | bytes, name: str = "") -> None:
        self._handle = None
        if isinstance(source, (bytes, bytearray)):
            data = bytes(source)
            handle = created(lib.accrt_kernel_pack_load, instance.handle, data, len(data), name.encode() or None)
        else:
            handle = created(lib.accrt_kernel_pack_open, instance.handle, os.fsencode(source))
        super().__init__(handle)
        self.instance = instance

    def kernel(self, name: str) -> Kernel:
        """A kernel by name. Raises NotFoundError with near names."""
        return Kernel(self, created(lib.accrt_kernel_pack_find, self.handle, name.encode()))

    def kernels(self) -> list[Kernel]:
        count = ctypes.c_uint32()
        check(lib.accrt_kernel_pack_kernel_count(self.handle, ctypes.byref(count)))
        return [Kernel(self, created(lib.accrt_kernel_pack_kernel, self.handle, i)) for i in range(count.value)]


class Kernel:
    """One kernel of a pack. `parameters`: (name, kind, size in bytes) of each."""

    __slots__ = ("pack", "handle", "name", "parameters")

    def __init__(self, pack: KernelPack, handle: int) -> None:
        self.pack, self.handle = pack, handle
        raw = filled(_ffi.accrt_kernel_info, lib.accrt_kernel_info, handle)
        self.name = text(raw.name)
        kinds = {v: k for k, v in _BYTES.items()}
        self.parameters = [(text(p.name), kinds.get(p.kind, str(p.kind)), p.size_bytes)
                           for p in (raw.params[:raw.param_count] if raw.param_count else ())]

    def arguments(self, values: Sequence, device: Device):
        """Packs Python values for a launch; returns the C array and what keeps its memory alive."""
        if len(values) != len(self.parameters):
            raise TypeError(f"kernel {self.name} takes {len(self.parameters)} arguments, {len(values)} were given")
        table, keep = (_ffi.accrt_kernel_argument * max(len(values), 1))(), []
        for entry, value, (name, kind, size) in zip(table, values, self.parameters):
            entry.kind, entry.binding, entry.size_bytes = _BYTES[kind], _ffi.ACCRT_BINDING_NONE, _WHOLE
            if kind in ("scalar", "symbol"):
                entry.value = _bits(value, size, f"kernel {self.name}: {name}")
            elif isinstance(value, _Binding):
                entry.binding, entry.offset_bytes = value.index, value.offset_bytes
            else:
                keep.append(_memory_argument(entry, value, kind, device))
        return table, keep

    def __repr__(self) -> str:
        return f"<accrt.Kernel {self.name}({', '.join(f'{n}: {k}' for n, k, _ in self.parameters)})>"


def _bits(value, size: int, what: str) -> int:
    if isinstance(value, float):
        kind = {4: ctypes.c_float, 8: ctypes.c_double}.get(size)
        if kind is None:
            raise TypeError(f"{what}: a float does not fit {size} bytes; pass its bits as an int")
        return int.from_bytes(bytes(kind(value)), "little")
    return int(value) & ((1 << (8 * size)) - 1)


def _memory_argument(entry: _ffi.accrt_kernel_argument, value, kind: str, device: Device):
    if value is None:  # absent: no pointer, and not a range of 0 bytes
        return None
    if isinstance(value, Buffer):
        entry.buffer = value.handle
        return value
    view = as_view(value, device)
    entry.buffer, entry.offset_bytes = view.c.buffer, view.c.offset_bytes
    entry.pointer = view.c.data
    if not entry.buffer:
        bits = lib.accrt_dtype_bits(view.c.dtype)
        count = 1
        for i in range(view.c.rank):
            count *= view.shape_array[i]
        entry.size_bytes = (count * bits + 7) // 8
    if kind != "tensor":
        return view
    described = _ffi.accrt_kernel_tensor(None, view.c.dtype, view.c.rank)
    step = 1
    for i in reversed(range(view.c.rank)):
        described.shape[i] = view.shape_array[i]
        described.strides[i] = view.strides_array[i] if view.strides_array else step
        step *= max(view.shape_array[i], 1)
    entry.tensor = ctypes.pointer(described)
    return view, described


class _Binding:
    """A place in a binding table; made by Commands.binding."""

    __slots__ = ("index", "offset_bytes")

    def __init__(self, index: int, offset_bytes: int) -> None:
        self.index, self.offset_bytes = index, offset_bytes


def launch(stream: Stream, kernel: Kernel, grid: Sequence[int], *values) -> None:
    """Enqueues one dispatch.

    Args:
        grid: workgroups in x, y, z (missing ones are 1). values: one for each parameter: Buffers, arrays or Tensors (None for
            absent optional ones), ints and floats. Arrays must stay alive until the stream has passed the launch.
    """
    table, keep = kernel.arguments(values, stream.device)
    stream._keep.append(keep)
    check(lib.accrt_stream_launch(stream.handle, kernel.handle, _grid(grid), table, len(values), ctypes.sizeof(_ffi.accrt_kernel_argument)))


def _grid(grid: Sequence[int]):
    return (ctypes.c_uint32 * 3)(*(tuple(grid) + (1, 1, 1))[:3])


class Commands(Handle):
    """A list of commands, recorded once and submitted many times. `after=None` orders a command after the one recorded before
    it; a list of indices (which recording returns) names its predecessors; [] starts it at once."""

    __slots__ = ("device", "_keep")
    _release_name = "accrt_commands_release"

    def __init__(self, device: Device, bindings: int = 0) -> None:
        self._handle = None
        super().__init__(created(lib.accrt_commands_create, device.handle, bindings))
        self.device, self._keep = device, []

    def binding(self, index: int, offset_bytes: int = 0) -> _Binding:
        """Stands for entry `index` of the binding table in `dispatch`, `copy` and `fill`."""
        return _Binding(index, offset_bytes)

    def dispatch(self, kernel: Kernel, grid: Sequence[int], *values, after: Iterable[int] | None = None) -> int:
        table, keep = kernel.arguments(values, self.device)
        self._keep.append((kernel, keep))
        index, predecessors = ctypes.c_uint32(), _predecessors(after)
        check(lib.accrt_commands_dispatch(self.handle, kernel.handle, _grid(grid), table, len(values),
                                          ctypes.sizeof(_ffi.accrt_kernel_argument), predecessors, ctypes.byref(index)))
        return index.value

    def copy(self, source, target, size_bytes: int, after: Iterable[int] | None = None) -> int:
        region = _ffi.accrt_copy_region((ctypes.c_uint64 * 3)(size_bytes, 1, 1))
        index = ctypes.c_uint32()
        check(lib.accrt_commands_copy(self.handle, ctypes.byref(self._place(source)), ctypes.byref(self._place(target)),
                                      ctypes.byref(region), _predecessors(after), ctypes.byref(index)))
        return index.value

    def fill(self, target, size_bytes: int, pattern: int, pattern_bytes: int = 1, after: Iterable[int] | None = None) -> int:
        index = ctypes.c_uint32()
        check(lib.accrt_commands_fill(self.handle, ctypes.byref(self._place(target)), size_bytes, pattern, pattern_bytes,
                                      _predecessors(after), ctypes.byref(index)))
        return index.value

    def barrier(self) -> int:
        index = ctypes.c_uint32()
        check(lib.accrt_commands_barrier(self.handle, ctypes.byref(index)))
        return index.value

    def marker(self, name: str, after: Iterable[int] | None = None) -> int:
        index = ctypes.c_uint32()
        check(lib.accrt_commands_marker(self.handle, name.encode(), _predecessors(after), ctypes.byref(index)))
        return index.value

    def _place(self, where):
        if isinstance(where, _Binding):
            return _ffi.accrt_binding_place(where.index, 0, _ffi.accrt_place(None, None, where.offset_bytes))
        self._keep.append(where)
        return _ffi.accrt_binding_place(_ffi.ACCRT_BINDING_NONE, 0, _ffi.accrt_place(where.handle, None, 0))

    def finalize(self) -> Commands:
        """Ends recording."""
        check(lib.accrt_commands_finalize(self.handle))
        return self

    def submit(self, stream: Stream, *bindings) -> None:
        """Enqueues the list with a binding table of Buffers, Tensors and arrays (kept alive until the stream is synchronized)."""
        table, keep = self._bindings(bindings)
        stream._keep.append((self, keep))
        check(lib.accrt_stream_submit(stream.handle, self.handle, table, len(bindings), ctypes.sizeof(_ffi.accrt_binding)))

    def run(self, stream: Stream, *bindings) -> None:
        """Submits and waits; on an idle stream the calling thread does the work."""
        table, _keep = self._bindings(bindings)
        check(lib.accrt_stream_run(stream.handle, self.handle, table, len(bindings), ctypes.sizeof(_ffi.accrt_binding),
                                   _ffi.ACCRT_TIMEOUT_INFINITE))

    def _bindings(self, values: Sequence):
        table, keep = (_ffi.accrt_binding * max(len(values), 1))(), []
        for entry, value in zip(table, values):
            if isinstance(value, Buffer):
                entry.buffer, entry.size_bytes = value.handle, _WHOLE
            elif isinstance(value, Tensor):
                entry.buffer, entry.offset_bytes, entry.size_bytes = value.buffer.handle, value.offset_bytes, value.nbytes
            else:
                from .tensor import host_bytes
                entry.pointer, entry.size_bytes, owner = host_bytes(value, writable=False)
                keep.append(owner)
        return table, keep


def _predecessors(after: Iterable[int] | None):
    if after is None:
        return None
    indices = list(after)
    array = (ctypes.c_uint32 * max(len(indices), 1))(*indices)
    return ctypes.byref(_ffi.accrt_predecessors(array, len(indices), 0))
