"""The way in for other libraries' arrays: DLPack, array interfaces, the buffer protocol, bytes.
None of them is copied."""
from __future__ import annotations

import ctypes
import sys
from typing import TYPE_CHECKING, Any

from . import _fast, _ffi, _nibbles
from ._bits import FROM_ML_DTYPES, refuse_masked
from ._library import adopted, check, created, describe, lib, need
from ._views import (
    DTYPES, View, _CUDA, _CUDA_MANAGED, _OF_HOST, _DLPACK_NAME, _DLPACK_OLD_NAME, _DLPACK_OLD_USED, _DLPACK_USED, _FROM_CODE, _FROM_TYPESTR, _NAMES, _pyapi,
    contiguous_strides,
)
from .errors import InvalidArgumentError, UnsupportedError
from .instance import Device, default_instance
from .memory import Buffer

if TYPE_CHECKING:
    from .tensor import Tensor
else:
    Tensor = None  # tensor.py puts its class here, for it uses this module

_TRACED = "a tensor that is traced has no memory: accrt.{0}.{1} makes a function of a bundle one of {2}'s, which can be traced"
META = "the tensor is on torch's meta device, which has shapes and no values: pass one with memory (torch.empty_like(t, device='cpu'))"


def _device_of(source: Any) -> Device:
    """Of the default instance; memory of the host, pinned or not, is the host's, and managed memory
    is the GPU's that the producer names."""
    kind, index = source.__dlpack_device__()
    if kind in (_CUDA, _CUDA_MANAGED):
        return default_instance().device(f"cuda:{index}")
    return default_instance().device("host") if kind in _OF_HOST else _device_at((int(kind), index))


def _device_at(where: tuple[int, int]) -> Device:
    """The default instance's device that has this type and number in DLPack."""
    for device in default_instance().devices():
        if device.info.dlpack_device == where:
            return device
    raise BufferError(f"no device here has the memory of DLPack's device {where}")


def from_dlpack(source: Any, device: Device | None = None, stream: Any = None) -> Tensor:
    """Imports a tensor that has `__dlpack__` without a copy. The producer's memory stays alive
    while the result does.

    Args:
        source: a numpy array, a torch tensor, a JAX array or another object with __dlpack__. A
            tensor in the form before DLPack 1.0 (JAX's) is read-only here, because it cannot say
            whether it may be written.
        device: the accrt.Device that will use it. None: the device that has the memory, of the
            default instance.
        stream: the accrt.Stream that will use it: work that still fills the tensor on a GPU then
            comes first. Without it, that work is waited for here.
    """
    if not hasattr(source, "__dlpack__"):
        raise TypeError(f"source is {describe(source)}, which has no __dlpack__")
    if device is None:
        device = _device_of(source)
    target = need(device, Device)
    refuse_masked(source)
    if getattr(source, "is_meta", False) is True:
        raise BufferError(META)
    if getattr(source, "is_neg", bool)():  # torch's; DLPack cannot say it, and torch does not look
        raise BufferError("the tensor's numbers are the negatives of what lies in its memory: pass tensor.resolve_neg()")
    if type(source).__module__.startswith("jax") and type(source).__name__.endswith("Tracer"):
        raise BufferError(_TRACED.format("jax", "function", "JAX"))
    is_ordered = stream is not None and device.info.dlpack_device[0] == _CUDA and source.__dlpack_device__()[0] == _CUDA
    order = {"stream": stream.native or 1} if is_ordered else {}
    try:
        capsule = _fast.capsule(source)
        if capsule is None:
            try:
                capsule = source.__dlpack__(max_version=(1, 0), **order)
            except TypeError:  # from before there were versions to ask for
                capsule = source.__dlpack__(**order)
        tensor = _taken(capsule, target, device, type(source).__name__)
    except UnsupportedError as error:  # it knows a type's number alone
        error.message += f": the tensor is of {source.dtype}" if hasattr(source, "dtype") else ""
        error.args = (error.message,)
        raise
    except (BufferError, InvalidArgumentError, RuntimeError) as error:
        is_nested, layout = getattr(source, "is_nested", False), str(getattr(source, "layout", "torch.strided"))
        if _is_torch(source) and (is_nested or layout != "torch.strided"):
            kind, way = ("nested", "torch.nested.to_padded_tensor(t, 0.)") if is_nested else (layout, "tensor.to_dense()")
            raise BufferError(f"the tensor is {kind}, which has no memory of one form: pass {way}") from None
        if _is_torch(source) and ("data pointer" in str(error) or "pointer is NULL" in str(error)):
            raise BufferError(_TRACED.format("torch", "operator", "torch")) from None
        raise
    if stream is None and device.info.dlpack_device[0] == _CUDA:
        # By DLPack's standard the producer has ordered its work before CUDA's legacy default
        # stream, on which no stream of ours waits.
        from ._cuda_arrays import wait_for_default_stream

        wait_for_default_stream(type(source).__name__, device)
    tensor._external = source
    return tensor


def _is_torch(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _taken(capsule, target, device: Device, what: str) -> Tensor:
    """A Tensor of a capsule's, which is used up."""
    old = not _pyapi.PyCapsule_IsValid(capsule, _DLPACK_NAME)
    name, used = (_DLPACK_OLD_NAME, _DLPACK_OLD_USED) if old else (_DLPACK_NAME, _DLPACK_USED)
    if not _pyapi.PyCapsule_IsValid(capsule, name):
        raise BufferError(f"{what}.__dlpack__() gave no unused DLPack capsule")
    managed = _pyapi.PyCapsule_GetPointer(capsule, name)
    shape, strides = (ctypes.c_int64 * _ffi.ACCRT_MAX_RANK)(), (ctypes.c_int64 * _ffi.ACCRT_MAX_RANK)()
    out, read_only = _ffi.accrt_tensor(), ctypes.c_uint32(1)
    if old:
        check(lib.accrt_dlpack_import_unversioned(target, managed, ctypes.byref(out), shape, strides))
    else:
        check(lib.accrt_dlpack_import(target, managed, ctypes.byref(out), shape, strides, ctypes.byref(read_only)))
    _pyapi.PyCapsule_SetName(capsule, used)
    buffer = Buffer(adopted(out.buffer), device, read_only=bool(read_only.value))
    return Tensor._of(buffer, out.dtype, shape[:out.rank], strides[:out.rank], out.offset_bytes)


def _from_capsule(capsule) -> Tensor:
    """A Tensor of what comes through DLPack's C exchange: on the default instance's device that has
    the memory."""
    managed = _pyapi.PyCapsule_GetPointer(capsule, _DLPACK_NAME)
    # device_type and device_id of the DLTensor, which is at 32
    where = tuple((ctypes.c_int32 * 2).from_address(managed + 40))
    device = _device_at(where)
    tensor = _taken(capsule, need(device, Device), device, "the producer")
    tensor._external = True
    return tensor


def _same_size(known: int, bits: int, what: str) -> int:
    """The type, if its elements are as large as those of what is given."""
    own = lib.accrt_dtype_bits(known)
    if own != bits:
        raise TypeError(f"{what} has elements of {bits} bits, {_NAMES[known]} has {own}")
    return known


#: numpy's types from elsewhere (ml_dtypes) that the quick way knows.
_learned: list[Any] = []


def _array_dtype(value, typestr: str, dtype: int | None) -> int:
    known = _FROM_TYPESTR.get(typestr)
    if known is not None and (dtype is None or dtype == known):
        return known
    own = getattr(value, "dtype", None)
    name = FROM_ML_DTYPES.get(getattr(own, "name", ""))
    plain = known is not None or name is not None
    if dtype is None and name is not None:
        if _fast.native is not None and own not in _learned:
            _learned.append(own)
            _fast.native.learn_dtype(own, DTYPES[name])
        return DTYPES[name]
    if _nibbles.type_of(value):
        raise TypeError(f"an array of {own} has one element in each byte, and the runtime's {_nibbles.type_of(value)} has two: it is taken by a copy")
    if not plain and _nibbles.is_of_ml_dtypes(own):
        raise TypeError(f"arrays of type {own} are not supported: the runtime has no such type. array.astype converts, to numpy.float32 or one of "
                        f"ml_dtypes.{', '.join(FROM_ML_DTYPES)}")
    if dtype is None or not plain:
        raise TypeError(f"arrays of type {own if own is not None else typestr} are not supported")
    return _same_size(dtype, 8 * int(typestr[2:]), f"an array of type {typestr}")


def _from_array_interface(value, interface: dict, dtype: int | None) -> View:
    try:
        typestr, shape, (address, read_only) = interface["typestr"], interface["shape"], interface["data"]
        strides = interface.get("strides")
    except (AttributeError, KeyError, TypeError, ValueError):
        raise TypeError(f"{describe(value)} has an array interface without type, shape or address") from None
    if shape == () and not hasattr(value, "__setitem__"):
        # A numpy scalar: its interface points into a temporary array that is gone already.
        raise TypeError(f"{type(value).__name__} is a scalar without memory of its own: pass numpy.asarray(value)")
    if type(value).__module__ != "numpy":
        _check_interface(value, interface, typestr, shape, address, strides)
    known = _FROM_TYPESTR.get(typestr) if dtype is None else None
    if known is None:
        known = _array_dtype(value, typestr, dtype)
    for size in shape:
        if size < 0:
            raise ValueError(f"shape is {shape}, which has a negative dimension")
    if strides is not None:
        bytes_each = int(typestr[2:])
        if len(strides) != len(shape) or any(s % bytes_each for s in strides):
            raise ValueError(f"strides {strides} are not multiples of the element's {bytes_each} bytes")
        strides = [s // bytes_each for s in strides]
    return View(None, address, 0, known, shape, strides, value, bool(read_only))


def _check_interface(value, interface: dict, typestr, shape, address, strides) -> None:
    """Of what is not numpy's own."""
    where = f"the array interface of {describe(value)}"
    for name, given in (("shape", shape), ("strides", () if strides is None else strides)):
        if not isinstance(given, (tuple, list)) or not all(hasattr(size, "__index__") for size in given):
            raise TypeError(f"{where} has {name} {given!r}, which are no integers")
    if not isinstance(typestr, str) or not isinstance(address, int):
        raise TypeError(f"{where} has type {typestr!r} and address {address!r}: a text and an integer are needed")
    if not 0 <= address < 1 << 64 or not address and 0 not in shape:
        raise ValueError(f"{where} has its data at {address:#x}")
    if interface.get("mask") is not None:
        raise TypeError(f"{where} has a mask, which would be lost: pass an array without one")


def _from_buffer(value, dtype: int | None) -> View:
    raw = value if isinstance(value, memoryview) else memoryview(value)
    known = _FROM_CODE.get(raw.format.lstrip("@=<"))
    if known is None or (raw.format[:1] in (">", "!") and raw.itemsize > 1):
        raise TypeError(f"buffers of format {raw.format!r} are not supported")
    if not raw.c_contiguous:
        raise ValueError("the buffer is not contiguous: pass a contiguous copy")
    known = _same_size(known if dtype is None else dtype, 8 * raw.itemsize, f"a buffer of format {raw.format!r}")
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
        # raises BufferError itself
        _pyapi.PyObject_GetBuffer(value, ctypes.byref(raw), 1 if writable else 0)
        self.raw = raw

    def __del__(self) -> None:
        if self.raw is not None:
            _pyapi.PyBuffer_Release(ctypes.byref(self.raw))


def host_bytes(value, writable: bool) -> tuple[int, int, object]:
    """Address, size in bytes and owner of a contiguous host object (array interface or buffer
    protocol)."""
    if isinstance(value, Tensor):
        if value.buffer.host_pointer is None:
            raise TypeError("the tensor's memory is not reachable from the host: use its buffer")
        if value.strides != contiguous_strides(value.shape):
            raise ValueError("the tensor is not contiguous")
        if writable and value.read_only:
            raise ValueError("the tensor is read-only")
        return value.buffer.host_pointer + value.offset_bytes, value.nbytes, value
    refuse_masked(value)
    try:
        if writable and _POINTERS.intersection(memoryview(value).format):
            raise ValueError(f"{type(value).__name__} holds references to objects, which bytes may not replace")
        owner = _BufferOwner(value, writable)
    except TypeError:
        raise TypeError(f"{type(value).__name__} has no buffer protocol") from None
    except BufferError as error:
        raise ValueError(str(error)) from None
    return owner.raw.buf or 0, owner.raw.len, owner


#: Formats of the buffer protocol whose elements are pointers or names of objects.
_POINTERS = frozenset("OPzZX&")

#: Host memory that the library uses in place until it says that it no longer does: programs have
#: references of their own to sources.
_lent: dict[int, object] = {}


@ctypes.CFUNCTYPE(None, ctypes.c_void_p)
def _given_back(key, lent=_lent):
    lent.pop(key, None)


_pyapi.Py_IncRef(ctypes.py_object(_given_back))  # the library may call it when this module is gone


def created_over(value, function, instance, options):
    """The new handle of a function that uses a host object's memory in place. The object lives
    until the library lets go of it."""
    address, size, owner = host_bytes(value, writable=False)
    _lent[id(owner)] = owner
    try:
        return created(function, instance, address, size, _given_back, id(owner), options)
    except BaseException:
        del _lent[id(owner)]
        raise


def as_view(value, device, dtype: int | None = None, stream=None) -> View:
    """The C tensor for an argument: a Tensor, anything with an array interface, the buffer
    protocol, DLPack or the CUDA array interface, looked for in this order. No copy.

    Args:
        dtype: take the elements as this type instead of the object's own (bits of bf16 held in
            uint16).
        stream: the Stream that will use it; see from_dlpack.
    """
    if isinstance(value, Tensor):
        return _tensor_view(value, dtype)
    weight_view = getattr(value, "_weight_view", None)
    if weight_view is not None:
        return weight_view(dtype)
    interface = getattr(value, "__array_interface__", None)
    if interface is not None:
        if type(value).__name__ != "ndarray":
            refuse_masked(value)
        return _from_array_interface(value, interface, dtype)
    try:
        return _from_buffer(value, dtype)
    except BufferError as error:  # JAX's arrays of a GPU have the protocol, and refuse
        if not hasattr(value, "__dlpack__"):
            raise ValueError(f"{type(value).__name__} gives no buffer: {error}") from None
    except TypeError:
        if not hasattr(value, "__dlpack__"):
            if hasattr(value, "__cuda_array_interface__"):
                from ._cuda_arrays import from_cuda_array  # circular: its arrays are Tensors
                return _tensor_view(from_cuda_array(value, device, stream), dtype)
            more = ": encode() gives its bytes" if isinstance(value, str) else ": numpy.asarray makes an array of it" if hasattr(value, "__array__") or isinstance(value, (list, tuple)) else ""
            raise TypeError(f"{type(value).__name__} is not a tensor: it has no array interface, no DLPack and no buffer protocol{more}") from None
    return _tensor_view(from_dlpack(value, device, stream), dtype)


def _tensor_view(tensor: Tensor, dtype: int | None) -> View:
    view = tensor.view()
    if dtype is not None:
        view.c.dtype = _same_size(dtype, lib.accrt_dtype_bits(view.c.dtype), f"a tensor of {tensor.dtype}")
    return view
