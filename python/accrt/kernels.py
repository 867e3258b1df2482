"""Kernel packs, launches and recorded commands: kernels without a bundle."""
from __future__ import annotations

import ctypes
import os
import struct as _struct
from operator import index as _index
from time import monotonic_ns
from typing import Callable, Iterable, NamedTuple, Sequence

from . import _ffi
from ._library import Handle, c_path, c_text, check, created, describe, filled, last_error, lib, need, never_raises, not_copied, number, struct, text
from ._waits import SHORT_NS, SLICE_NS, apart
from .errors import InvalidArgumentError, TimeoutError
from .instance import Device, Instance
from .memory import Buffer
from .stream import Stream, pattern_of
from .tensor import Tensor, as_view, contiguous_strides, extent, host_bytes

_BYTES = {"buffer": _ffi.ACCRT_KERNEL_PARAM_BUFFER, "tensor": _ffi.ACCRT_KERNEL_PARAM_TENSOR,
          "scalar": _ffi.ACCRT_KERNEL_PARAM_SCALAR, "symbol": _ffi.ACCRT_KERNEL_PARAM_SYMBOL,
          "workspace": _ffi.ACCRT_KERNEL_PARAM_WORKSPACE}
_WHOLE = (1 << 64) - 1
_LAUNCH, _ARGUMENT_BYTES = lib.accrt_stream_launch, ctypes.sizeof(_ffi.accrt_kernel_argument)


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
    """What a kernel of a device module takes and how it is launched: for `KernelPack.of_module`.
    Checked when it is made: ValueError or TypeError, with the value.

    Attributes:
        name: the symbol in the image. parameters: (name, type) in the kernel's order; the type is
            "read", "write" or "read_write" for a pointer to memory, or a scalar's: "i32", "f32",
            "i64", ...
        block: threads of a workgroup in x, y, z. shared_bytes: dynamic shared memory. cluster:
            workgroups of a cluster.
        cooperative: all workgroups run at once. overlaps_previous: the kernel itself waits for the
            previous one.
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
        entry.name, entry.align_log2, entry.offset_bytes, entry.size_bytes = c_text(name), size.bit_length() - 1, end, size
        entry.kind = _ffi.ACCRT_KERNEL_PARAM_BUFFER if kind in _ACCESS else _ffi.ACCRT_KERNEL_PARAM_SCALAR
        entry.access = _ACCESS.get(kind, _ffi.ACCRT_KERNEL_ACCESS_NONE)
        end += size
    out.struct_size, out.name, out.params = ctypes.sizeof(out), c_text(kernel.name), params
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

    Raises UntrustedError when the instance was made with trust="no-host-code", and
    PermissionDeniedError when others may write to the file or to a folder above it.
    """

    __slots__ = ("instance", "types", "device", "_source")
    _kind = "accrt_kernel_pack"

    def __init__(self, instance: Instance, source: str | os.PathLike | bytes, name: str = "") -> None:
        if isinstance(source, (bytes, bytearray)):
            data = bytes(source)
            made = (lib.accrt_kernel_pack_load, need(instance, Instance), data, len(data), c_text(name) or None)
        else:
            made = (lib.accrt_kernel_pack_open, need(instance, Instance), c_path(os.path.abspath(source)))
        handle = apart(lambda: created(*made))
        super().__init__(handle)
        self.instance, self.device = instance, None  # the device: of a device module
        # for a check in another process
        self._source = data if isinstance(source, (bytes, bytearray)) else os.path.abspath(source)
        self.types = {}  # of kernels' parameters, where they were described here

    @classmethod
    def of_module(cls, device: Device, image: bytes | str, kernels: Sequence[DeviceKernel], kind: str = "", name: str = "") -> KernelPack:
        """Kernels of a device's machine code: a cubin or fatbin (bytes), or PTX (text). Every
        declared parameter is checked against the image.

        Args:
            kind: "cubin", "ptx" or "fatbin"; default: recognized from the image.
        Raises:
            InvalidFormatError: a declaration that the image contradicts. NoVariantError: code of
                another architecture.
        """
        if kind not in _MODULES:
            raise ValueError(f"kind is {kind!r}, expected one of {', '.join(map(repr, _MODULES))}")
        target = need(device, Device)
        kernels = list(kernels)
        for kernel in kernels:
            if not isinstance(kernel, DeviceKernel):
                raise TypeError(f"kernels has {describe(kernel)}, expected accrt.DeviceKernel")
        data = image.encode() + b"\0" if isinstance(image, str) else bytes(memoryview(image))
        table = (_ffi.accrt_kernel_def * max(len(kernels), 1))()
        keep = [_describe(kernel, entry) for kernel, entry in zip(kernels, table)]
        options = struct(_ffi.accrt_module_options, kind=_MODULES[kind], size_bytes=len(data), name=c_text(name) or None,
                         kernel_count=len(kernels), kernel_size_bytes=ctypes.sizeof(_ffi.accrt_kernel_def))
        held = ctypes.create_string_buffer(data, len(data))
        options.image, options.kernels = ctypes.addressof(held), table
        self = cls.__new__(cls)
        Handle.__init__(self, apart(lambda: (created(lib.accrt_kernel_module_load, target, ctypes.byref(options)), keep, held)[0]))
        self.instance, self.device, self._source = device.instance, device, b""
        self.types = {kernel.name: tuple(kind for _, kind in kernel.parameters) for kernel in kernels}
        return self

    def kernel(self, name: str) -> Kernel:
        """A kernel by name. Raises NotFoundError with near names."""
        return Kernel(self, created(lib.accrt_kernel_pack_find, self.handle, c_text(name)))

    def kernels(self) -> list[Kernel]:
        count = ctypes.c_uint32()
        check(lib.accrt_kernel_pack_kernel_count(self.handle, ctypes.byref(count)))
        return [Kernel(self, created(lib.accrt_kernel_pack_kernel, self.handle, i)) for i in range(count.value)]


class Kernel:
    """One kernel: of a pack (`KernelPack.kernel`, `Kernel.from_pack`), of C source
    (`Kernel.from_c`), of CUDA C++ (`Kernel.from_cuda`), or of a device's machine code
    (`Kernel.from_module`). Keeps the pack's code, also when the pack is closed.

    `kernel(*values, grid=None, stream=None, **named)` checks the values, launches, and waits.
    Values are arrays, tensors and Buffers for memory, and numbers for the rest, in the kernel's
    order or by name. `grid` is the workgroups in x, y, z; a kernel from source knows them itself.
    With a stream, the kernel is enqueued there, and the call does not wait; with torch's or CuPy's
    tensors on a GPU it is enqueued on that library's current stream, as its own work is. A wrong
    argument is one error, before anything runs.

    Attributes:
        pack (KernelPack). name (str). parameters: (name, kind, size in bytes) of each.
        definition: of a kernel from C source, its record for the reference compiler
            (accrt.compiler.KernelDef); else None.
    """

    __slots__ = ("_pack", "_pointer", "_owner", "name", "_parameters", "_written", "_places", "_template", "_accesses", "_types", "_definition", "_idle",
                 "_grid", "_borrowed", "_aligns", "__weakref__")
    __reduce_ex__ = not_copied

    def __init__(self, pack: KernelPack, handle) -> None:
        self._owner = need(pack, KernelPack, "pack")
        if not isinstance(handle, _ffi.accrt_kernel_p):
            raise TypeError(f"a kernel is made by KernelPack.kernel, not of {describe(handle)}")
        self._pack, self._pointer = pack, handle
        raw = filled(_ffi.accrt_kernel_info, lib.accrt_kernel_info, handle)
        self.name = text(raw.name)
        kinds = {v: k for k, v in _BYTES.items()}
        given = raw.params[:raw.param_count] if raw.param_count else ()
        self._parameters = tuple((text(p.name), kinds.get(p.kind, str(p.kind)), p.size_bytes) for p in given)
        self._written = tuple(bool(p.access & _ffi.ACCRT_KERNEL_ACCESS_WRITE) for p in given)
        self._accesses = tuple(p.access for p in given)
        # What is the same in every launch: (scalar, written, parameter) of each, and the C table
        # without values.
        self._places = tuple((p[1] in ("scalar", "symbol"), w, p) for p, w in zip(self._parameters, self._written))
        self._template = (_ffi.accrt_kernel_argument * max(len(given), 1))()
        for entry, (_name, kind, _size) in zip(self._template, self._parameters):
            entry.kind, entry.binding, entry.size_bytes = _BYTES.get(kind, 0), _ffi.ACCRT_BINDING_NONE, _WHOLE
        scalars = pack.types.get(self.name, ())
        # of what is declared: "" says nothing
        self._types = tuple("" if kind in _ACCESS else kind for kind in scalars)
        self._definition, self._idle = None, []
        self._grid: Callable | None = None  # from the values to the workgroups
        # of memory, in bytes, where it is more than the element's
        self._aligns: tuple[int, ...] = ()
        self._borrowed: dict[int, Stream] = {}  # other libraries' streams by number

    @classmethod
    def from_c(cls, source, name: str, parameters, grid: Callable, *, entry: str = "", flags: Sequence[str] = (), cuda=None,
               block: Sequence[int] = (256,), instance: Instance | None = None) -> Kernel:
        """A kernel of hosts from C source, compiled with gcc or clang at first use and kept on disk
        by its content. Needs numpy and xxhash, as the reference compiler does.
        docs/custom-kernels.md is the guide.

        Args:
            source: C text, or the path of a C file. It defines the function `entry`
                (docs/kernel-abi.md: "A workgroup"), whose block of parameters is the struct
                `<entry>_params_t`: it is made of `parameters`, and is there without an #include.
            name: of the kernel. entry: of the C function; default: the name.
            parameters: (name, type) in order, or a dict. The type is "read", "write" or
                "read_write" for memory, with the type of its elements ("read f32"); "symbol" for a
                size (int64_t); or a scalar's type ("f32", "i32", ...).
            grid: from the symbols and scalars, by name, to the workgroups: `lambda v: ((v["n"] +
                255) // 256, 1, 1)`.
            flags: more options for the compiler. cuda: CUDA C++ text or a file with the same
                function as `extern "C" __global__`, for bundles; block: its threads. Or a kernel
                that `from_triton`, `from_cuda` or `from_cubin` gave.
        Raises:
            accrt.compiler.kernels.image.ImageError: it does not compile; the message has the
                compiler's. TypeError, ValueError: a
            parameter. OSError: the file.
        """
        from ._kernel_source import definition, image_of
        from .instance import default_instance
        record, known = definition(source, name, parameters, grid, entry, flags, cuda, block)
        root = instance if instance is not None else default_instance()
        pack = KernelPack(root, image_of(record, root.device("host").info.arch), name)
        self = pack.kernel(name)
        self._definition, self._types, self._grid = record, tuple(dtype for _name, _kind, dtype in known), record.grid
        return self

    @classmethod
    def from_pack(cls, source: str | os.PathLike | bytes, name: str = "", instance: Instance | None = None) -> Kernel:
        """A kernel of a compiled pack: a shared object (a path) or a freestanding image (bytes).
        name: may be left out if the pack has only one kernel."""
        from .instance import default_instance
        pack = KernelPack(instance if instance is not None else default_instance(), source)
        if name:
            return pack.kernel(name)
        kernels = pack.kernels()
        if len(kernels) != 1:
            raise ValueError(f"the pack has {len(kernels)} kernels, say which: {', '.join(kernel.name for kernel in kernels)}")
        return kernels[0]

    @classmethod
    def from_module(cls, device: Device, image: bytes | str, kernel: DeviceKernel, kind: str = "") -> Kernel:
        """A kernel of a device's machine code, as `KernelPack.of_module` takes it: a cubin or
        fatbin (bytes), or PTX (text)."""
        return KernelPack.of_module(device, image, [kernel], kind).kernel(kernel.name)

    @classmethod
    def from_cuda(cls, source, name: str, parameters, grid: Callable | None = None, *, block: Sequence[int] | int = (256,), shared_bytes: int = 0,
                  options: Sequence[str] = (), entry: str = "", arch: str | Sequence[str] = (), cluster: Sequence[int] = (), cooperative: bool = False,
                  instance: Instance | None = None) -> Kernel:
        """A kernel of GPUs from CUDA C++, compiled by NVRTC for each GPU when it is first called
        there, and kept on disk by its content. NVRTC is opened where CUDA's wheels and toolkits
        have it, or at $ACCRT_NVRTC. docs/custom-kernels.md is the guide.

        Args:
            source: CUDA C++ text, or the path of a file. parameters, grid: as for `from_c`; without
                a grid, each call must pass one.
            entry: the function in the source, if it differs from the name. An instance of a
                template, such as "scale<float>", needs a name, too.
            block: threads of a block in x, y, z. shared_bytes: dynamic shared memory. cluster,
                cooperative: as in DeviceKernel.
            options: more for NVRTC, as ["--use_fast_math"]. arch: compile for these now ("sm_90");
                it needs no GPU.
        Raises:
            accrt.CompileError: it does not compile (the message begins with NVRTC's lines), or
                there is no NVRTC. TypeError, ValueError: a
            parameter. OSError: the file.
        """
        from ._kernel_gpu import from_cuda
        return from_cuda(source, name, parameters, grid, block, shared_bytes, options, entry, arch, cluster, cooperative, instance)

    @classmethod
    def from_cubin(cls, image, name: str, parameters, grid: Callable | None = None, *, block: Sequence[int] | int = (256,), shared_bytes: int = 0,
                   entry: str = "", cluster: Sequence[int] = (), cooperative: bool = False, instance: Instance | None = None) -> Kernel:
        """A kernel of GPUs from a cubin or fatbin: bytes, the path of a file, or a dict with one
        for each architecture ({"sm_90": ...}). The rest is as for `from_cuda`; `entry` is the
        symbol in the image, if it differs from the name. Each parameter is checked against the
        image when it is loaded."""
        from ._kernel_gpu import from_image
        return from_image(image, name, parameters, grid, block, shared_bytes, entry, cluster, cooperative, instance, False)

    @classmethod
    def from_ptx(cls, text, name: str, parameters, grid: Callable | None = None, *, block: Sequence[int] | int = (256,), shared_bytes: int = 0,
                 entry: str = "", cluster: Sequence[int] = (), cooperative: bool = False, instance: Instance | None = None) -> Kernel:
        """The same from PTX: text, or the path of a file. CUDA's driver compiles it when it is
        loaded."""
        from ._kernel_gpu import from_image
        return from_image(text, name, parameters, grid, block, shared_bytes, entry, cluster, cooperative, instance, True)

    @classmethod
    def from_triton(cls, function, signature, constexprs=None, grid: Callable | None = None, *, num_warps: int = 4, num_stages: int | None = None,
                    target: str | Sequence[str] = "sm_90", writes: Sequence[str] | None = None, options=None, name: str = "",
                    instance: Instance | None = None) -> Kernel:
        """A kernel of GPUs from a Triton function, compiled ahead of time by Triton's own compiler,
        without a GPU, and kept in Triton's cache. Calls do not pass through Triton.

        Args:
            function: what triton.jit gives. signature: Triton's types by parameter, in order:
                "*fp32", "i32", "fp32"; "*fp32:16" is memory that begins at multiples of 16 bytes
                (faster, and checked). constexprs: values of the rest; numbers may be in the
                signature, too.
            grid: as for `from_cuda`. num_warps, num_stages, options: Triton's. target: compile for
                these now; others when they are called.
            writes: the pointers that are written, and the others are read; default: all are both.
        Raises:
            accrt.CompileError: there is no Triton, it is of a version that is not known here, or it
                refuses the function. TypeError,
            ValueError: a parameter.
        """
        from ._kernel_triton import from_triton
        return from_triton(function, signature, constexprs, grid, num_warps, num_stages, target, writes, options, name, instance)

    def __call__(self, *values, grid: Sequence[int] | int | None = None, stream: Stream | None = None, **named) -> None:
        from ._kernel_call import call
        call(self, values, grid, stream, named)

    def check(self, *values, grid: Sequence[int] | int | None = None, isolated: bool = False, seconds: float | None = 10.0, **named) -> list[str]:
        """Runs a kernel of a host several times with copies of these arguments, between red zones,
        and returns a list with one line for each fault: writes outside of an argument or to one
        that is read, reads outside, results that differ between runs or in a recorded list, written
        arguments that are not written as a whole, and any of these with sizes of 0. An empty list
        means that there is no fault.

        Args:
            isolated: in a process of its own, so that a crash is a finding too, and a run that
                takes longer than `seconds` (None: no limit). Each argument then also lies at the
                edge of inaccessible pages. Without `isolated`, a kernel that crashes ends this
                process.
        """
        from ._kernel_check import check
        return check(self, values, grid, named, isolated, seconds)

    @property
    def definition(self):
        return self._definition

    @property
    def pack(self) -> KernelPack:
        return self._pack

    @property
    def parameters(self) -> list[tuple[str, str, int]]:
        return list(self._parameters)

    @property
    def handle(self):
        """The C handle, lent by the pack: a ctypes pointer."""
        pointer = self._pointer
        if not isinstance(pointer, _ffi.accrt_kernel_p):
            raise TypeError(f"this Kernel is broken: its _pointer was set to {describe(pointer)}")
        return pointer

    def arguments(self, values: Sequence, device: Device):
        """Packs Python values for a launch; returns the C array and what keeps its memory alive."""
        if len(values) != len(self._parameters):
            raise TypeError(f"kernel {self.name} takes {len(self._parameters)} arguments, {len(values)} were given")
        table, keep = type(self._template).from_buffer_copy(self._template), [self._owner]
        for entry, value, place in zip(table, values, self._places):
            kept = self._argument(entry, value, place, device)
            if kept is not None:
                keep.append(kept)
        return table, keep

    def _entry(self, index: int, value, device: Device):
        """One argument by itself: its C record, and what keeps its memory alive."""
        entry = _ffi.accrt_kernel_argument.from_buffer_copy(self._template[index])
        return entry, self._argument(entry, value, self._places[index], device)

    def _argument(self, entry: _ffi.accrt_kernel_argument, value, place, device: Device, stream: Stream | None = None):
        """Packs one into a record of the template; returns what keeps its memory alive."""
        scalar, written, parameter = place
        if scalar:
            entry.value = _bits(value, parameter[2], self, parameter)
            return None
        if type(value) is Buffer and not (written and value._read_only):
            entry.buffer = pointer = value.handle
            return pointer
        what = _what(self, parameter)
        if parameter[1] not in _BYTES:
            raise TypeError(f"{what} is of a kind that is not given: {parameter[1]}")
        if isinstance(value, _Binding):
            entry.binding, entry.offset_bytes = value.index, value.offset_bytes
            return None
        return _memory_argument(entry, value, parameter[1], device, what, written, stream)

    @never_raises
    def __repr__(self) -> str:
        return f"<accrt.Kernel {self.name}({', '.join(f'{n}: {k}' for n, k, _ in self._parameters)})>"


def _what(kernel: Kernel, parameter) -> str:
    return f"kernel {kernel.name}: {parameter[0]}"


_FLOATS = {4: ctypes.c_float, 8: ctypes.c_double}


def _bits(value, size: int, kernel: Kernel, parameter) -> int:
    if isinstance(value, float):
        kind = _FLOATS.get(size)
        if kind is None:
            raise TypeError(f"{_what(kernel, parameter)}: a float does not fit {size} bytes; pass its bits as an int")
        return int.from_bytes(bytes(kind(value)), "little")
    found = _index(value)
    if not -(1 << 8 * size - 1) <= found < 1 << 8 * size:
        raise OverflowError(f"{_what(kernel, parameter)}: {found} does not fit {size} bytes")
    return found & ((1 << (8 * size)) - 1)


def _memory_argument(entry: _ffi.accrt_kernel_argument, value, kind: str, device: Device, what: str, written: bool, stream: Stream | None = None):
    if value is None:  # absent: no pointer, and not a range of 0 bytes
        return None
    if isinstance(value, Buffer):
        if written and value.read_only:
            raise ValueError(f"{what} is written, and the buffer is read-only")
        entry.buffer = value.handle
        return value.handle
    if isinstance(value, Handle):
        raise TypeError(f"{what} is {describe(value)}, expected memory")
    view = as_view(value, device, stream=stream)
    if written and view.read_only:
        raise ValueError(f"{what} is written, and the array is read-only")
    shape = tuple(view.shape_array[:view.c.rank])
    strides = tuple(view.strides_array[:view.c.rank]) if view.strides_array else contiguous_strides(shape)
    low, high = extent(shape, strides)
    if low < 0 or kind != "tensor" and strides != contiguous_strides(shape) and high > 0:
        raise ValueError(f"{what}: strides are {strides}, and " + ("element 0 must come first" if low < 0 else "the array must be contiguous"))
    entry.buffer, entry.offset_bytes = view.c.buffer, view.c.offset_bytes
    entry.pointer = view.c.data
    entry.size_bytes = (high * lib.accrt_dtype_bits(view.c.dtype) + 7) // 8
    if kind != "tensor":
        return view
    described = _ffi.accrt_kernel_tensor(None, view.c.dtype, view.c.rank)
    described.shape[:len(shape)], described.strides[:len(shape)] = shape, strides
    entry.tensor = ctypes.pointer(described)
    return view, described


class _Binding:
    """A place in a binding table; made by Commands.binding."""

    __slots__ = ("index", "offset_bytes")

    def __init__(self, index: int, offset_bytes: int) -> None:
        self.index, self.offset_bytes = number(index, "index", 32), number(offset_bytes, "offset_bytes")


def launch(stream: Stream, kernel: Kernel, grid: Sequence[int], *values) -> None:
    """Enqueues one dispatch.

    Args:
        grid: workgroups in x, y, z (missing ones are 1). values: one for each parameter: Buffers,
            arrays or Tensors (None for absent optional ones), ints and floats. Arrays live until
            the launch is over, even if they are dropped.
    """
    where = need(stream, Stream)
    kernel = _kernel(kernel, stream.device)
    table, keep = kernel.arguments(values, stream.device)
    try:
        status = _LAUNCH(where, kernel.handle, _grid(grid), table, len(kernel._accesses), _ARGUMENT_BYTES)
    finally:
        stream._in_flight.keep(keep)
    if status:
        raise last_error(status)


def _kernel(value, device: Device | None = None) -> Kernel:
    if not isinstance(value, Kernel):
        raise TypeError(f"kernel is {describe(value)}, expected an accrt.Kernel")
    on = getattr(value, "on", None)  # of a kernel that each GPU has apart
    return on(device) if on is not None and device is not None else value


class Launch(Handle):
    """One kernel, made ready to be launched again and again; on CUDA faster than cuLaunchKernel.
    Externally synchronized.

        step = accrt.Launch(device, kernel)
        step.set(0, buffer); step.set(1, 2.5); step(stream, (8,))       # checked, keeps the buffers
        fire = step.on(stream, (8,)); fire(out.address, 2.5)            # raw: one foreign call, memory is the caller's care
    """

    __slots__ = ("device", "_called", "_set", "_kept")
    _kind = "accrt_launch"

    def __init__(self, device: Device, kernel: Kernel) -> None:
        kernel = _kernel(kernel, device)
        super().__init__(created(lib.accrt_launch_create, need(device, Device), kernel.handle))
        self.device, self._called, self._set, self._kept = device, kernel, {}, ()

    @property
    def kernel(self) -> Kernel:
        return _kernel(self._called)

    def set(self, index: int, value) -> None:
        """Sets an argument: a Buffer, tensor or array for memory, an int or float for a scalar."""
        if not 0 <= index < len(self.kernel._parameters):
            raise IndexError(f"kernel {self.kernel.name} has {len(self.kernel._parameters)} parameters, there is no {index}")
        entry, kept = self.kernel._entry(index, value, self.device)
        before = self._kept
        self._kept = (*before, kept)  # whatever comes in between (Ctrl-C)
        check(lib.accrt_launch_set(self.handle, index, ctypes.byref(entry), ctypes.sizeof(entry)))
        self._set[index] = kept
        self._kept = (self.handle, *self._set.values())

    def __call__(self, stream: Stream, grid: Sequence[int]) -> None:
        """Enqueues it with its arguments as they are now, whose memory lives until it is over."""
        need(stream, Stream)
        stream._enqueue(self._kept, lib.accrt_stream_launch_prepared, self.handle, _grid(grid))

    def on(self, stream: Stream, grid: Sequence[int]) -> Callable[..., None]:
        """A function that launches on `stream` with this grid: `fire(*values)`, an address (int)
        for memory and a number for each scalar, in the kernel's order. Nothing is checked, and the
        caller must keep the memory alive. Scalars of kernels that `KernelPack.of_module` did not
        describe are given as the bits of an unsigned int."""
        need(stream, Stream)
        layout = self._layout()
        block = (ctypes.c_char * max(layout.size, 1)).from_address(lib.accrt_launch_params(self.handle))
        pack, call = layout.pack_into, lib["accrt_stream_launch_prepared"]
        call.argtypes = None  # these three are what they have to be
        owners = (self.handle, stream.handle)  # also when they are closed
        on, launch, size = ctypes.c_void_p(_index(owners[1])), ctypes.c_void_p(_index(owners[0])), _grid(grid)

        def fire(*values, _owners=owners) -> None:
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
        parameters = self.kernel._parameters
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
        types = self.kernel._pack.types.get(self.kernel.name) or ("",) * raw.param_count
        code, end = "<", 0
        for p, kind in zip(raw.params[:raw.param_count], types):
            if p.kind not in (_ffi.ACCRT_KERNEL_PARAM_BUFFER, _ffi.ACCRT_KERNEL_PARAM_SCALAR, _ffi.ACCRT_KERNEL_PARAM_SYMBOL):
                raise TypeError(f"kernel {self.kernel.name}: parameter {text(p.name)} is neither memory nor a scalar: use set()")
            code += f"{p.offset_bytes - end}x" + (_CODES.get(kind) or {1: "B", 2: "H", 4: "I", 8: "Q"}[p.size_bytes])
            end = p.offset_bytes + p.size_bytes
        return _struct.Struct(code)

    @never_raises
    def __repr__(self) -> str:
        return f"<accrt.Launch of {self.kernel!r} on {self.device.name}>"


_GRID = ctypes.c_uint32 * 3


def _grid(grid: Sequence[int]):
    sizes = [number(size, "grid", 32) for size in grid]
    if len(sizes) == 1:
        return _GRID(sizes[0], 1, 1)
    if len(sizes) > 3:
        raise ValueError(f"grid is {tuple(sizes)}, expected workgroups in x, y, z")
    return _GRID(*sizes, *[1] * (3 - len(sizes)))


class Commands(Handle):
    """A list of commands, recorded once and submitted many times. `after=None` orders a command
    after the one recorded before it; a list of indices (which recording returns) names its
    predecessors; [] starts it at once."""

    __slots__ = ("device", "_kept", "_written", "_took_ns")
    _kind = "accrt_commands"

    def __init__(self, device: Device, bindings: int = 0) -> None:
        super().__init__(created(lib.accrt_commands_create, need(device, Device), number(bindings, "bindings", 32)))
        self.device, self._kept, self._written = device, [self.handle], set()
        self._took_ns = _WHOLE  # the latest run

    def binding(self, index: int, offset_bytes: int = 0) -> _Binding:
        """Stands for entry `index` of the binding table in `dispatch`, `copy` and `fill`."""
        return _Binding(index, offset_bytes)

    def dispatch(self, kernel: Kernel, grid: Sequence[int], *values, after: Iterable[int] | None = None) -> int:
        kernel = _kernel(kernel, self.device)
        table, keep = kernel.arguments(values, self.device)
        self._written.update(value.index for value, written in zip(values, kernel._written) if written and isinstance(value, _Binding))
        return self._record(keep, lib.accrt_commands_dispatch, kernel.handle, _grid(grid), table, len(kernel._accesses),
                            ctypes.sizeof(_ffi.accrt_kernel_argument), _predecessors(after))

    def copy(self, source, target, size_bytes: int, after: Iterable[int] | None = None) -> int:
        region = _ffi.accrt_copy_region((ctypes.c_uint64 * 3)(number(size_bytes, "size_bytes"), 1, 1))
        read, written = self._place(source, False), self._place(target, True)
        return self._record((read, written), lib.accrt_commands_copy, ctypes.byref(read), ctypes.byref(written), ctypes.byref(region),
                            _predecessors(after))

    def fill(self, target, size_bytes: int, pattern: int, pattern_bytes: int = 1, after: Iterable[int] | None = None) -> int:
        place = self._place(target, True)
        return self._record(place, lib.accrt_commands_fill, ctypes.byref(place), number(size_bytes, "size_bytes"),
                            *pattern_of(pattern, pattern_bytes), _predecessors(after))

    def barrier(self) -> int:
        return self._record(None, lib.accrt_commands_barrier)

    def marker(self, name: str, after: Iterable[int] | None = None) -> int:
        return self._record(None, lib.accrt_commands_marker, c_text(name), _predecessors(after))

    def _record(self, kept, function, *arguments) -> int:
        """Records a command; `kept` lives as long as the list. Returns its index."""
        out = ctypes.c_uint32()
        self._kept.append(kept)
        check(function(self.handle, *arguments, ctypes.byref(out)))
        return out.value

    def _place(self, where, writable: bool):
        if isinstance(where, _Binding):
            if writable:
                self._written.add(where.index)
            return _ffi.accrt_binding_place(where.index, 0, _ffi.accrt_place(None, None, where.offset_bytes))
        pointer = need(where, Buffer, "target" if writable else "source")
        if writable and where.read_only:
            raise ValueError("the target is a buffer over memory that is read-only")
        return _ffi.accrt_binding_place(_ffi.ACCRT_BINDING_NONE, 0, _ffi.accrt_place(pointer, None, 0))

    def finalize(self) -> Commands:
        """Ends recording."""
        apart(lambda: check(lib.accrt_commands_finalize(self.handle)))
        return self

    def submit(self, stream: Stream, *bindings) -> None:
        """Enqueues the list with a binding table of Buffers, Tensors and arrays, which live until
        it is over."""
        need(stream, Stream)
        table, keep = self._bindings(bindings) if bindings else (None, ())
        stream._enqueue((self._kept, keep), lib.accrt_stream_submit, self.handle, table, len(bindings), ctypes.sizeof(_ffi.accrt_binding))

    def run(self, stream: Stream, *bindings) -> None:
        """Submits and waits; on an idle stream the calling thread does the work of a list whose
        latest run was short. Ctrl-C ends the wait, and the run goes on; `Stream.cancel` ends the
        run."""
        need(stream, Stream)
        table, keep = self._bindings(bindings)
        # Who does the work cannot leave it, nor who waits without a limit.
        here = self._took_ns <= SHORT_NS and lib.accrt_stream_query(stream.handle) == 0
        self._took_ns, begin = _WHOLE, monotonic_ns()
        try:
            stream._enqueue((self._kept, keep), lib.accrt_stream_run, self.handle, table, len(bindings), ctypes.sizeof(_ffi.accrt_binding),
                            _ffi.ACCRT_TIMEOUT_INFINITE if here else SLICE_NS)
        except TimeoutError:
            stream.synchronize()
        self._took_ns = monotonic_ns() - begin

    def _bindings(self, values: Sequence):
        table, keep = (_ffi.accrt_binding * max(len(values), 1))(), []
        for index, (entry, value) in enumerate(zip(table, values)):
            written = index in self._written
            if isinstance(value, (Buffer, Tensor)):
                if written and value.read_only:
                    raise ValueError(f"binding {index} is written, and it is read-only")
                keep.append(value)
            if isinstance(value, Buffer):
                entry.buffer, entry.size_bytes = value.handle, _WHOLE
            elif isinstance(value, Tensor):
                if value.strides != contiguous_strides(value.shape):
                    raise ValueError(f"binding {index}: the tensor is not contiguous")
                entry.buffer, entry.offset_bytes, entry.size_bytes = value._pointer, value.offset_bytes, value.nbytes
            elif isinstance(value, Handle) or value is None:
                raise TypeError(f"binding {index} is {describe(value)}, expected memory")
            else:
                entry.pointer, entry.size_bytes, owner = host_bytes(value, written)
                keep.append(owner)
        return table, keep


def _predecessors(after: Iterable[int] | None):
    if after is None:
        return None
    indices = [number(index, "after", 32) for index in after]
    array = (ctypes.c_uint32 * max(len(indices), 1))(*indices)
    return ctypes.byref(_ffi.accrt_predecessors(array, len(indices), 0))
