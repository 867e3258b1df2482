"""Kernel packs, launches and recorded commands: kernels without a bundle."""
from __future__ import annotations

import ctypes
import os
import struct as _struct
from typing import Callable, Iterable, NamedTuple, Sequence

from . import _ffi
from ._library import Handle, check, created, filled, last_error, lib, struct, text
from .errors import InvalidArgumentError
from .instance import Device, Instance
from .memory import Buffer
from .stream import Stream
from .tensor import Tensor, as_view

_BYTES = {"buffer": _ffi.ACCRT_KERNEL_PARAM_BUFFER, "tensor": _ffi.ACCRT_KERNEL_PARAM_TENSOR,
          "scalar": _ffi.ACCRT_KERNEL_PARAM_SCALAR, "symbol": _ffi.ACCRT_KERNEL_PARAM_SYMBOL,
          "workspace": _ffi.ACCRT_KERNEL_PARAM_WORKSPACE}
_WHOLE = (1 << 64) - 1


_MODULES = {"": 0, "cubin": _ffi.ACCRT_MODULE_CUBIN, "ptx": _ffi.ACCRT_MODULE_PTX, "fatbin": _ffi.ACCRT_MODULE_FATBIN}
_ACCESS = {"read": _ffi.ACCRT_KERNEL_ACCESS_READ, "write": _ffi.ACCRT_KERNEL_ACCESS_WRITE,
           "read_write": _ffi.ACCRT_KERNEL_ACCESS_READ_WRITE}
_SCALARS = {"i8": 1, "u8": 1, "bool": 1, "i16": 2, "u16": 2, "f16": 2, "i32": 4, "u32": 4, "f32": 4, "i64": 8, "u64": 8, "f64": 8}
_CODES = {"i8": "b", "u8": "B", "bool": "?", "i16": "h", "u16": "H", "f16": "e", "i32": "i", "u32": "I", "f32": "f", "i64": "q",
          "u64": "Q", "f64": "d"}


class _DeviceKernel(NamedTuple):
    name: str
    parameters: Sequence[tuple[str, str]]
    block: Sequence[int]
    shared_bytes: int = 0
    cluster: Sequence[int] = ()
    cooperative: bool = False
    overlaps_previous: bool = False


class DeviceKernel(_DeviceKernel):
    """What a kernel of a device module takes and how it is launched: for `KernelPack.of_module`. Checked when it is made: ValueError
    or TypeError, with the value.

    Attributes:
        name: the symbol in the image. parameters: (name, type) in the kernel's order; the type is "read", "write" or
            "read_write" for a pointer to memory, or a scalar's: "i32", "f32", "i64", ...
        block: threads of a workgroup in x, y, z. shared_bytes: dynamic shared memory. cluster: workgroups of a cluster.
        cooperative: all workgroups run at once. overlaps_previous: it waits for the kernel ahead of it itself.
    """

    __slots__ = ()

    def __new__(cls, *values, **named) -> DeviceKernel:
        self = super().__new__(cls, *values, **named)
        if not isinstance(self.name, str) or not self.name:
            raise TypeError(f"a kernel's name is {self.name!r}, expected its symbol in the image")
        where = f"kernel {self.name}"
        for parameter in self.parameters:
            if isinstance(parameter, str) or len(parameter) != 2:
                raise TypeError(f"{where}: parameter {parameter!r}, expected (name, type)")
            name, kind = parameter
            if kind not in _ACCESS and kind not in _SCALARS:
                raise ValueError(f"{where}: parameter {name} is {kind!r}, expected one of {', '.join([*_ACCESS, *_SCALARS])}")
        _check_sizes(where, "block", self.block, 1)
        _check_sizes(where, "cluster", self.cluster, 0)
        if not isinstance(self.shared_bytes, int) or not 0 <= self.shared_bytes < 1 << 32:
            raise ValueError(f"{where}: shared_bytes is {self.shared_bytes!r}, expected a number of bytes")
        return self

    @classmethod
    def _make(cls, values) -> DeviceKernel:
        """What `_replace` calls, which would skip the checks."""
        return cls(*values)


def _check_sizes(where: str, what: str, sizes: Sequence[int], least: int) -> None:
    if not isinstance(sizes, (tuple, list)) or not least <= len(sizes) <= 3:
        raise TypeError(f"{where}: {what} is {sizes!r}, expected {least} to 3 whole numbers")
    if not all(isinstance(size, int) and 0 < size < 1 << 32 for size in sizes):
        raise ValueError(f"{where}: {what} is {sizes!r}, expected whole numbers above 0")


def _describe(kernel: DeviceKernel, out: _ffi.accrt_kernel_def):
    """Fills the C record; returns what it points to."""
    params = (_ffi.accrt_kernel_param * max(len(kernel.parameters), 1))()
    end = 0
    for entry, (name, kind) in zip(params, kernel.parameters):
        size = _SCALARS.get(kind, 8)
        end = -(-end // size) * size
        entry.name, entry.align_log2, entry.offset_bytes, entry.size_bytes = name.encode(), size.bit_length() - 1, end, size
        entry.kind = _ffi.ACCRT_KERNEL_PARAM_BUFFER if kind in _ACCESS else _ffi.ACCRT_KERNEL_PARAM_SCALAR
        entry.access = _ACCESS.get(kind, _ffi.ACCRT_KERNEL_ACCESS_NONE)
        end += size
    out.struct_size, out.name, out.params = ctypes.sizeof(out), kernel.name.encode(), params
    out.param_count, out.params_size_bytes = len(kernel.parameters), -(-end // 8) * 8
    out.local_memory_size_bytes = kernel.shared_bytes
    out.traits = (_ffi.ACCRT_KERNEL_TRAIT_COOPERATIVE if kernel.cooperative else 0) | (
        _ffi.ACCRT_KERNEL_TRAIT_OVERLAPS_PREVIOUS if kernel.overlaps_previous else 0)
    out.block[:] = (*kernel.block, 1, 1)[:3]
    if kernel.cluster:
        out.cluster[:] = (*kernel.cluster, 1, 1)[:3]
    return params


class KernelPack(Handle):
    """A pack of kernels from a shared object (a path) or from a freestanding ELF image (bytes).

    Raises UntrustedError when the instance was made with trust="no-host-code".
    """

    __slots__ = ("instance", "types")
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
        self.types = {}  # of kernels' parameters, where they were described here

    @classmethod
    def of_module(cls, device: Device, image: bytes | str, kernels: Sequence[DeviceKernel], kind: str = "", name: str = "") -> KernelPack:
        """Kernels of a device's machine code: a cubin or fatbin (bytes), or PTX (text). Every declared parameter is checked against
        the image.

        Args:
            kind: "cubin", "ptx" or "fatbin"; default: told from the image.
        Raises:
            InvalidFormatError: a declaration that the image contradicts. NoVariantError: code of another architecture.
        """
        if kind not in _MODULES:
            raise ValueError(f"kind is {kind!r}, expected one of {', '.join(map(repr, _MODULES))}")
        data = image.encode() + b"\0" if isinstance(image, str) else bytes(image)
        table = (_ffi.accrt_kernel_def * max(len(kernels), 1))()
        keep = [_describe(kernel, entry) for kernel, entry in zip(kernels, table)]
        options = struct(_ffi.accrt_module_options, kind=_MODULES[kind], size_bytes=len(data), name=name.encode() or None,
                         kernel_count=len(kernels), kernel_size_bytes=ctypes.sizeof(_ffi.accrt_kernel_def))
        held = ctypes.create_string_buffer(data, len(data))
        options.image, options.kernels = ctypes.addressof(held), table
        self = cls.__new__(cls)
        self._handle = None
        Handle.__init__(self, created(lib.accrt_kernel_module_load, device.handle, ctypes.byref(options)))
        del keep
        self.instance = device.instance
        self.types = {kernel.name: tuple(kind for _, kind in kernel.parameters) for kernel in kernels}
        return self

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


class Launch(Handle):
    """One kernel, made ready to be launched again and again; on CUDA faster than cuLaunchKernel. Externally synchronized.

        step = accrt.Launch(device, kernel)
        step.set(0, buffer); step.set(1, 2.5); step(stream, (8,))       # checked, keeps the buffers
        fire = step.on(stream, (8,)); fire(out.address, 2.5)            # raw: one foreign call, memory is the caller's care
    """

    __slots__ = ("device", "kernel", "_set")
    _release_name = "accrt_launch_release"

    def __init__(self, device: Device, kernel: Kernel) -> None:
        self._handle = None
        super().__init__(created(lib.accrt_launch_create, device.handle, kernel.handle))
        self.device, self.kernel, self._set = device, kernel, {}

    def set(self, index: int, value) -> None:
        """Sets an argument: a Buffer, tensor or array for memory, an int or float for a scalar."""
        name, kind, size = self.kernel.parameters[index]
        entry = _ffi.accrt_kernel_argument(kind=_BYTES[kind], binding=_ffi.ACCRT_BINDING_NONE, size_bytes=_WHOLE)
        kept = None
        if kind in ("scalar", "symbol"):
            entry.value = _bits(value, size, f"kernel {self.kernel.name}: {name}")
        else:
            kept = _memory_argument(entry, value, kind, self.device)
        check(lib.accrt_launch_set(self.handle, index, ctypes.byref(entry), ctypes.sizeof(entry)))
        self._set[index] = kept

    def __call__(self, stream: Stream, grid: Sequence[int]) -> None:
        """Enqueues it with its arguments as they are now."""
        check(lib.accrt_stream_launch_prepared(stream.handle, self.handle, _grid(grid)))

    def on(self, stream: Stream, grid: Sequence[int]) -> Callable[..., None]:
        """A function that launches on `stream` with this grid: `fire(*values)`, an address (int) for memory and a number for each
        scalar, in the kernel's order. Nothing is checked, and nothing keeps the memory alive but the caller. Scalars of kernels
        that `KernelPack.of_module` did not describe are given as the bits of an unsigned int."""
        layout = self._layout()
        block = (ctypes.c_char * max(layout.size, 1)).from_address(lib.accrt_launch_params(self.handle))
        pack, call = layout.pack_into, lib.accrt_stream_launch_prepared
        on, launch, size = ctypes.c_void_p(stream.handle), ctypes.c_void_p(self.handle), _grid(grid)

        def fire(*values, _owners=(self, stream)) -> None:
            try:
                pack(block, 0, *values)
            except _struct.error as problem:
                raise self._wrong_values(values, layout, problem) from None
            status = call(on, launch, size)
            if status:
                raise last_error(status)
        return fire

    def _wrong_values(self, values: Sequence, layout: _struct.Struct, problem: Exception) -> Exception:
        """What `on`'s function says to values that do not fit: which parameter, and the value."""
        where = f"kernel {self.kernel.name}"
        parameters = self.kernel.parameters
        if len(values) != len(parameters):
            return TypeError(f"{where} takes {len(parameters)} values ({', '.join(p[0] for p in parameters)}), {len(values)} were given")
        codes = [c for c in layout.format if c.isalpha() and c != "x" or c == "?"]
        for (name, _kind, size), code, value in zip(parameters, codes, values):
            try:
                _struct.pack("<" + code, value)
            except (_struct.error, OverflowError) as why:
                return InvalidArgumentError(f"{where}: {name} is {value!r}, which is no value of its {size} bytes: {why}")
        return InvalidArgumentError(f"{where}: {problem}")

    def _layout(self) -> _struct.Struct:
        raw = filled(_ffi.accrt_kernel_info, lib.accrt_kernel_info, self.kernel.handle)
        types = self.kernel.pack.types.get(self.kernel.name) or ("",) * raw.param_count
        code, end = "<", 0
        for p, kind in zip(raw.params[:raw.param_count], types):
            if p.kind not in (_ffi.ACCRT_KERNEL_PARAM_BUFFER, _ffi.ACCRT_KERNEL_PARAM_SCALAR, _ffi.ACCRT_KERNEL_PARAM_SYMBOL):
                raise TypeError(f"kernel {self.kernel.name}: parameter {text(p.name)} is neither memory nor a scalar: use set()")
            code += f"{p.offset_bytes - end}x" + (_CODES.get(kind) or {1: "B", 2: "H", 4: "I", 8: "Q"}[p.size_bytes])
            end = p.offset_bytes + p.size_bytes
        return _struct.Struct(code)

    def __repr__(self) -> str:
        return f"<accrt.Launch of {self.kernel!r} on {self.device.name}>"


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
