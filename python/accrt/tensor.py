"""Tensors: views of device memory that numpy, torch, JAX and CuPy take without a copy, and the way in for theirs.

numpy is optional: without it, anything with the buffer protocol goes in, and results come out as Tensors with
`memoryview()`, `tolist()` and `__dlpack__`.
"""
from __future__ import annotations

import ctypes
import struct as _struct
from typing import Sequence

from . import _ffi
from ._library import check, created, lib
from .memory import Buffer

DTYPES = {lib.accrt_dtype_name(v).decode(): v for n, v in vars(_ffi).items()
          if n.startswith("ACCRT_DTYPE_") and n != "ACCRT_DTYPE_NONE"}
_NAMES = {v: k for k, v in DTYPES.items()}
# struct module codes and numpy typestrs of the types that they have.
_CODES = {"bool": "?", "i8": "b", "u8": "B", "i16": "h", "u16": "H", "i32": "i", "u32": "I", "i64": "q", "u64": "Q",
          "f16": "e", "f32": "f", "f64": "d"}
_TYPESTR = {"bool": "|b1", "i8": "|i1", "u8": "|u1", "i16": "<i2", "u16": "<u2", "i32": "<i4", "u32": "<u4", "i64": "<i8",
            "u64": "<u8", "f16": "<f2", "f32": "<f4", "f64": "<f8"}
_FROM_TYPESTR = {v: DTYPES[k] for k, v in _TYPESTR.items()}
_FROM_CODE = {c: DTYPES[n] for n, c in _CODES.items()}
_FROM_CODE.update({"l": DTYPES["i64"], "L": DTYPES["u64"], "c": DTYPES["u8"]})
_FROM_ML_DTYPES = {"bfloat16": "bf16", "float8_e4m3fn": "f8e4m3fn", "float8_e5m2": "f8e5m2", "float8_e8m0fnu": "f8e8m0"}

_CPU, _CUDA = 1, 2  # as DLPack numbers devices
_DLPACK_NAME = b"dltensor_versioned"
_DLPACK_USED = b"used_dltensor_versioned"
_pyapi = ctypes.pythonapi
_pyapi.PyCapsule_New.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
_pyapi.PyCapsule_New.restype = ctypes.py_object
_pyapi.PyCapsule_IsValid.argtypes = [ctypes.py_object, ctypes.c_char_p]
_pyapi.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
_pyapi.PyCapsule_GetPointer.restype = ctypes.c_void_p
_pyapi.PyCapsule_SetName.argtypes = [ctypes.py_object, ctypes.c_char_p]


def dtype_id(dtype: str | int) -> int:
    """Id of a data type by its short name ("f32", "bf16", ...)."""
    if isinstance(dtype, int):
        return dtype
    if dtype not in DTYPES:
        raise ValueError(f"data type {dtype!r} is not known; there are {', '.join(DTYPES)}")
    return DTYPES[dtype]


class View:
    """A C tensor and what keeps its memory alive. Not for users: what functions take apart their arguments into."""

    __slots__ = ("c", "shape_array", "strides_array", "owner", "read_only")

    def __init__(self, buffer: int | None, data: int | None, offset: int, dtype: int, shape: Sequence[int],
                 strides: Sequence[int] | None, owner: object, read_only: bool = False) -> None:
        rank = len(shape)
        if rank > _ffi.ACCRT_MAX_RANK:
            raise ValueError(f"tensor has {rank} dimensions, at most {_ffi.ACCRT_MAX_RANK} are supported")
        self.shape_array = (ctypes.c_int64 * max(rank, 1))(*shape)
        self.strides_array = (ctypes.c_int64 * max(rank, 1))(*strides) if strides is not None else None
        self.c = _ffi.accrt_tensor(buffer, data, offset, dtype, rank, self.shape_array, self.strides_array)
        self.owner = owner
        self.read_only = read_only


class Tensor:
    """A tensor in memory of the runtime. Results of functions are of this kind.

    Goes into numpy (`numpy.asarray`, `.numpy()`), torch and others (`from_dlpack`) without a copy, keeps its memory alive, and
    goes into functions of the runtime.

    Attributes:
        shape (tuple[int, ...]). dtype (str): short name, "f32". strides (tuple[int, ...]): in elements.
        buffer (Buffer), offset_bytes (int): where it lies. read_only (bool): its producer (DLPack) forbids writing.
    """

    __slots__ = ("buffer", "offset_bytes", "dtype", "shape", "strides", "read_only", "_external", "__weakref__")

    def __init__(self, buffer: Buffer, dtype: str | int, shape: Sequence[int], strides: Sequence[int] | None = None,
                 offset_bytes: int = 0) -> None:
        self.buffer = buffer
        self.offset_bytes = offset_bytes
        self.dtype = _NAMES[dtype_id(dtype)]
        self.shape = tuple(int(d) for d in shape)
        self.strides = tuple(strides) if strides is not None else contiguous_strides(self.shape)
        self.read_only = False
        self._external = None

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        count = 1
        for d in self.shape:
            count *= d
        return count

    @property
    def nbytes(self) -> int:
        return (self.size * lib.accrt_dtype_bits(DTYPES[self.dtype]) + 7) // 8

    @property
    def address(self) -> int:
        """Device address of element 0."""
        return self.buffer.address + self.offset_bytes

    def view(self) -> View:
        return View(self.buffer.handle, None, self.offset_bytes, DTYPES[self.dtype], self.shape, self.strides, self,
                    self.read_only)

    @property
    def __array_interface__(self) -> dict:
        typestr = _typestr(self.dtype)
        if typestr is None:
            raise AttributeError(f"numpy has no type for {self.dtype}")
        if self.buffer.host_pointer is None:
            raise AttributeError("this memory is not reachable from the host")
        bytes_each = int(typestr[2:])
        return {"version": 3, "typestr": typestr, "shape": self.shape,
                "data": (self.buffer.host_pointer + self.offset_bytes, self.read_only),
                "strides": tuple(s * bytes_each for s in self.strides)}

    @property
    def __cuda_array_interface__(self) -> dict:
        typestr = _TYPESTR.get(self.dtype)
        if typestr is None or self.__dlpack_device__()[0] != _CUDA:
            raise AttributeError(f"{self.dtype} on device {self.__dlpack_device__()} has no CUDA array interface")
        bytes_each = int(typestr[2:])
        stream = self.buffer.stream.native if self.buffer.stream is not None else None
        return {"version": 3, "typestr": typestr, "shape": self.shape, "data": (self.address, self.read_only),
                "strides": tuple(s * bytes_each for s in self.strides), "stream": stream}

    def __array__(self, dtype=None, copy=None):
        """A numpy array: of the memory itself where the host reaches it, else of a copy."""
        import numpy
        if self.size == 0:
            array = numpy.empty(self.shape, self._numpy_typestr())
        elif self.buffer.host_pointer is not None:
            array = numpy.asarray(_Interface(self.__array_interface__, self))
        elif copy is False:
            raise ValueError("memory of a device comes to numpy by a copy")
        else:
            array = numpy.frombuffer(self._read(), self._numpy_typestr()).reshape(self.shape)
        return array if dtype is None else array.astype(dtype)

    def _numpy_typestr(self) -> str:
        typestr = _typestr(self.dtype)
        if typestr is None:
            raise TypeError(f"numpy has no type for {self.dtype}")
        return typestr

    def _read(self) -> memoryview:
        """Bytes of a contiguous tensor, wherever it lies."""
        if self.strides != contiguous_strides(self.shape):
            raise ValueError("the tensor is not contiguous")
        return self.buffer.read(self.offset_bytes, self.nbytes)

    def numpy(self):
        """The tensor as a numpy array: it shares the memory where the host reaches it, and is a copy of a device's. bf16 and f8
        come as ml_dtypes' types when that package is there, else as their bits (uint16, uint8)."""
        import numpy
        array = numpy.asarray(self)
        name = {v: k for k, v in _FROM_ML_DTYPES.items()}.get(self.dtype)
        if name is None:
            return array
        try:
            import ml_dtypes
        except ImportError:
            return array
        return array.view(getattr(ml_dtypes, name))

    def memoryview(self) -> memoryview:
        """The elements as a memoryview (contiguous tensors of types that the buffer protocol has), without a copy."""
        if self.strides != contiguous_strides(self.shape):
            raise ValueError("the tensor is not contiguous")
        raw = self.buffer.memoryview()[self.offset_bytes:self.offset_bytes + self.nbytes]
        raw = raw.toreadonly() if self.read_only else raw
        code = _CODES.get(self.dtype)
        if code is None or self.size == 0:
            return raw
        return raw.cast(code, self.shape) if self.shape else raw.cast(code)

    def tolist(self) -> list:
        """The elements as nested lists."""
        if self.size == 0:
            return _empty_list(self.shape)
        if self.dtype not in _CODES:
            raise NotImplementedError(f"tolist of {self.dtype}: use numpy()")
        raw = self._read()
        return raw.cast(_CODES[self.dtype], self.shape).tolist() if self.shape else raw.cast(_CODES[self.dtype])[0]

    def item(self):
        """The value of a tensor with one element."""
        if self.size != 1:
            raise ValueError(f"item() of a tensor with {self.size} elements")
        return _struct.unpack("<" + _CODES[self.dtype], self.buffer.read(self.offset_bytes, self.nbytes))[0]

    def __dlpack_device__(self) -> tuple[int, int]:
        if self.buffer.host_pointer is not None or self.buffer.device is None:
            return (_CPU, 0)
        return self.buffer.device.info.dlpack_device

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        """A DLPack 1.x capsule that shares the memory. The consumer must understand versioned capsules
        (max_version >= (1, 0)), as numpy >= 2.1, torch >= 2.9 and JAX do; numpy.asarray works with every version."""
        if max_version is None or tuple(max_version) < (1, 0):
            raise BufferError("only DLPack 1.0 and newer capsules are exported: pass max_version=(1, 0), or use numpy.asarray")
        if copy:
            raise BufferError("copy=True is not supported")
        if dl_device is not None and tuple(dl_device) != self.__dlpack_device__():
            raise BufferError(f"the tensor is on device {self.__dlpack_device__()}, not {tuple(dl_device)}")
        self._order_before(stream)
        managed = ctypes.c_void_p()
        view = self.view()
        check(lib.accrt_dlpack_export(ctypes.byref(view.c), int(self.read_only), ctypes.byref(managed)))
        return _pyapi.PyCapsule_New(managed, _DLPACK_NAME, ctypes.cast(_CAPSULE_DESTRUCTOR, ctypes.c_void_p))

    def _order_before(self, consumer) -> None:
        """Makes work that a consumer enqueues come after the work that fills this tensor. DLPack's stream numbers."""
        own = self.buffer.stream
        if own is None or consumer == -1:
            return
        if self.__dlpack_device__()[0] != _CUDA or consumer is None:
            own.synchronize()
            return
        from .stream import Event, Stream
        event = Event(own.device)
        own.record(event)
        Stream.wrap(own.device, 0 if consumer == 1 else consumer).wait_event(event)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of a tensor without dimensions")
        return self.shape[0]

    def __repr__(self) -> str:
        return f"<accrt.Tensor {self.dtype}{list(self.shape)} at 0x{self.address:x}>"

    def _repr_html_(self) -> str:
        return (f"<table><tr><th>accrt.Tensor</th><th>{self.dtype}</th></tr><tr><td>shape</td><td>{list(self.shape)}</td></tr>"
                f"<tr><td>bytes</td><td>{self.nbytes:,}</td></tr></table>")


def _typestr(dtype: str) -> str | None:
    """numpy's name of a type; of its bits where it has none; None where elements are no whole bytes."""
    return _TYPESTR.get(dtype) or ("<u2" if dtype == "bf16" else "|u1" if dtype.startswith("f8") else None)


class _Interface:
    """An array interface with its owner."""

    __slots__ = ("__array_interface__", "owner")

    def __init__(self, interface: dict, owner: object) -> None:
        self.__array_interface__, self.owner = interface, owner


def _empty_list(shape: Sequence[int]) -> list:
    return [_empty_list(shape[1:]) for _ in range(shape[0])] if shape else []


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Row-major strides in elements."""
    strides, step = [], 1
    for d in reversed(shape):
        strides.append(step)
        step *= max(d, 1)
    return tuple(reversed(strides))


class _Managed(ctypes.Structure):
    """The head of DLManagedTensorVersioned: version, context, deleter."""

    _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("context", ctypes.c_void_p),
                ("deleter", ctypes.CFUNCTYPE(None, ctypes.c_void_p))]


@ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
def _CAPSULE_DESTRUCTOR(capsule: int) -> None:
    """Frees an export that nobody took. Runs with the GIL held."""
    valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_IsValid", _pyapi))
    if not valid(capsule, _DLPACK_NAME):
        return
    get = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_GetPointer", _pyapi))
    managed = get(capsule, _DLPACK_NAME)
    _Managed.from_address(managed).deleter(managed)


def from_dlpack(source, device, stream=None) -> Tensor:
    """Imports a tensor that has `__dlpack__` without a copy. The producer's memory stays alive while the result does.

    Args:
        source: numpy array, torch tensor, ...: must export DLPack 1.x capsules. device: the accrt.Device that will use it.
        stream: the accrt.Stream that will use it: work that still fills the tensor on a GPU then comes first. Without it,
            the producer's default applies.
    """
    if stream is not None and source.__dlpack_device__()[0] == _CUDA:
        capsule = source.__dlpack__(max_version=(1, 0), stream=stream.native)
    else:
        capsule = source.__dlpack__(max_version=(1, 0))
    if not _pyapi.PyCapsule_IsValid(capsule, _DLPACK_NAME):
        raise BufferError(f"{type(source).__name__} gave a DLPack capsule of version 0; pass it through numpy instead")
    managed = _pyapi.PyCapsule_GetPointer(capsule, _DLPACK_NAME)
    shape, strides = (ctypes.c_int64 * _ffi.ACCRT_MAX_RANK)(), (ctypes.c_int64 * _ffi.ACCRT_MAX_RANK)()
    out, read_only = _ffi.accrt_tensor(), ctypes.c_uint32()
    check(lib.accrt_dlpack_import(device.handle, managed, ctypes.byref(out), shape, strides, ctypes.byref(read_only)))
    _pyapi.PyCapsule_SetName(capsule, _DLPACK_USED)
    tensor = Tensor(Buffer(out.buffer, device), out.dtype, shape[:out.rank], strides[:out.rank], out.offset_bytes)
    tensor._external = source
    tensor.read_only = bool(read_only.value)
    return tensor


def _from_array_interface(value, interface: dict, dtype: int | None) -> View:
    typestr = interface["typestr"]
    if interface["shape"] == () and not hasattr(value, "__setitem__"):
        # A numpy scalar: its interface points into a temporary array that is gone already.
        raise TypeError(f"{type(value).__name__} is a scalar without memory of its own: pass numpy.asarray(value)")
    known = _FROM_TYPESTR.get(typestr) if dtype is None else dtype
    if known is None:
        name = _FROM_ML_DTYPES.get(getattr(getattr(value, "dtype", None), "name", ""))
        if name is None:
            raise TypeError(f"arrays of type {getattr(value, 'dtype', typestr)} are not supported")
        known = DTYPES[name]
    address, read_only = interface["data"]
    shape, strides = interface["shape"], interface.get("strides")
    if strides is not None:
        bytes_each = int(typestr[2:])
        if any(s % bytes_each for s in strides):
            raise ValueError(f"strides {strides} are not multiples of the element's {bytes_each} bytes")
        strides = [s // bytes_each for s in strides]
    return View(None, address, 0, known, shape, strides, value, read_only)


def _from_buffer(value, dtype: int | None) -> View:
    raw = value if isinstance(value, memoryview) else memoryview(value)
    code = raw.format.lstrip("@=<")
    known = _FROM_CODE.get(code) if dtype is None else dtype
    if known is None or (raw.format[:1] in ">!" and raw.itemsize > 1):
        raise TypeError(f"buffers of format {raw.format!r} are not supported")
    if not raw.c_contiguous:
        raise ValueError("the buffer is not contiguous: pass a contiguous copy")
    address, _, owner = host_bytes(raw, writable=False)
    return View(None, address, 0, known, raw.shape, None, owner, raw.readonly)


class _PyBuffer(ctypes.Structure):
    """The C struct of the buffer protocol (PEP 3118); gives the address of read-only memory too."""

    _fields_ = [("buf", ctypes.c_void_p), ("obj", ctypes.py_object), ("len", ctypes.c_ssize_t),
                ("itemsize", ctypes.c_ssize_t), ("readonly", ctypes.c_int), ("ndim", ctypes.c_int),
                ("format", ctypes.c_char_p), ("shape", ctypes.c_void_p), ("strides", ctypes.c_void_p),
                ("suboffsets", ctypes.c_void_p), ("internal", ctypes.c_void_p)]


_pyapi.PyObject_GetBuffer.argtypes = [ctypes.py_object, ctypes.POINTER(_PyBuffer), ctypes.c_int]
_pyapi.PyBuffer_Release.argtypes = [ctypes.POINTER(_PyBuffer)]
_pyapi.PyBuffer_Release.restype = None


class _BufferOwner:
    """Holds an exported buffer: the memory can be neither freed nor resized while this lives."""

    __slots__ = ("raw",)

    def __init__(self, value: object, writable: bool) -> None:
        self.raw = None
        raw = _PyBuffer()
        _pyapi.PyObject_GetBuffer(value, ctypes.byref(raw), 1 if writable else 0)  # raises BufferError itself
        self.raw = raw

    def __del__(self) -> None:
        if self.raw is not None:
            _pyapi.PyBuffer_Release(ctypes.byref(self.raw))


def host_bytes(value, writable: bool) -> tuple[int, int, object]:
    """Address, size in bytes and owner of a contiguous host object (array interface or buffer protocol)."""
    if isinstance(value, Tensor):
        if value.buffer.host_pointer is None:
            raise TypeError("the tensor's memory is not reachable from the host: use its buffer")
        return value.buffer.host_pointer + value.offset_bytes, value.nbytes, value
    try:
        owner = _BufferOwner(value, writable)
    except TypeError:
        raise TypeError(f"{type(value).__name__} has no buffer protocol") from None
    except BufferError as error:
        raise ValueError(str(error)) from None
    return owner.raw.buf or 0, owner.raw.len, owner


#: Host memory that the library uses in place until it says that it no longer does: programs have references of their own to sources.
_lent: dict[int, object] = {}


@ctypes.CFUNCTYPE(None, ctypes.c_void_p)
def _given_back(key, lent=_lent):
    lent.pop(key, None)


_pyapi.Py_IncRef(ctypes.py_object(_given_back))  # the library may call it when this module is gone


def created_over(value, function, instance: int, options) -> int:
    """The new handle of a function that uses a host object's memory in place. The object lives until the library lets go of it."""
    address, size, owner = host_bytes(value, writable=False)
    _lent[id(owner)] = owner
    try:
        return created(function, instance, address, size, _given_back, id(owner), options)
    except BaseException:
        del _lent[id(owner)]
        raise


def as_view(value, device, dtype: int | None = None, stream=None) -> View:
    """The C tensor for an argument: a Tensor, anything with an array interface, DLPack or the buffer protocol. No copy.

    Args:
        dtype: take the elements as this type instead of the object's own (bits of bf16 held in uint16).
        stream: the Stream that will use it; see from_dlpack.
    """
    if isinstance(value, Tensor):
        return value.view()
    interface = getattr(value, "__array_interface__", None)
    if interface is not None:
        return _from_array_interface(value, interface, dtype)
    try:
        return _from_buffer(value, dtype)
    except TypeError:
        if not hasattr(value, "__dlpack__"):
            raise TypeError(f"{type(value).__name__} is not a tensor: it has no array interface, no DLPack and no buffer "
                            "protocol") from None
    return from_dlpack(value, device, stream).view()
