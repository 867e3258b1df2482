"""The CUDA array interface, version 3: how arrays of a GPU are given that have no DLPack (older
Numba, PyCUDA, arrays of one's own).

The producer names its stream, if work on it may still fill the array: the consumer's stream then
waits for what that one has now, or the host does where the consumer has no stream yet. Nothing is
done if both are one stream, as inside of a captured graph.
"""
from __future__ import annotations

import contextlib
import ctypes
import functools
import types
from operator import index as _index
from typing import Any, Iterator, Sequence

from . import _fast, _ffi
from ._library import created, describe, lib, need
from ._system import loaded_library
from .errors import Error
from .instance import Device
from .memory import Buffer, Pool
from .stream import Stream
from .tensor import _array_dtype, _CUDA, _given_back, _lent, contiguous_strides, extent, Tensor

_NEWEST = 3
_LEGACY = 1
_DEFAULT = {0, _LEGACY}  # numbers of the legacy default stream
_NO_TIMING = 2  # CU_EVENT_DISABLE_TIMING


def from_cuda_array(source: Any, device: Device, stream: Stream | None = None) -> Tensor:
    """Imports an array that has `__cuda_array_interface__` (version 2 or 3) without a copy. Its
    memory stays alive until the device is done with it.

    Args:
        source: the array.
        device: the GPU that has it.
        stream: the accrt.Stream that will use it: work of the array's own stream then comes first.
            Without it, that work is waited for here.
    Raises:
        TypeError: no such interface, a type that the runtime has not, or a mask. ValueError:
            strides, an address or a device that cannot be. BufferError: the two streams cannot be
            ordered, because one of them is captured into a graph.
    """
    target = need(device, Device)
    interface = getattr(source, "__cuda_array_interface__", None)
    if not isinstance(interface, dict):
        raise TypeError(f"source is {describe(source)}, which has no __cuda_array_interface__")
    where = type(source).__name__
    try:
        shape, typestr = tuple(map(_index, interface["shape"])), interface["typestr"]
        address, read_only = _index(interface["data"][0] or 0), bool(interface["data"][1])
        version, strides = _index(interface["version"]), interface.get("strides")
    except (KeyError, TypeError, IndexError, ValueError):
        raise TypeError(f"{where} has a CUDA array interface without shape, typestr, data or version") from None
    if version not in (2, _NEWEST):
        raise TypeError(f"{where} has a CUDA array interface of version {version}: versions 2 and {_NEWEST} are read")
    if interface.get("mask") is not None:
        raise TypeError(f"{where} has a mask, which would be lost: pass an array without one")
    if device.info.dlpack_device[0] != _CUDA:
        raise ValueError(f"{where} lies on a GPU, and {device.name} is none")
    dtype = _array_dtype(source, typestr, None)
    steps = _steps(where, shape, strides, lib.accrt_dtype_bits(dtype) // 8)
    buffer, offset = _memory(where, source, target, device, address, shape, steps, lib.accrt_dtype_bits(dtype) // 8)
    buffer._read_only = read_only
    _order(where, interface.get("stream") if version == _NEWEST else None, device, stream)
    tensor = Tensor._of(buffer, dtype, shape, steps, offset)
    tensor._external = source
    return tensor


def _steps(where: str, shape: Sequence[int], strides: Sequence[int] | None, size: int) -> tuple[int, ...]:
    """Strides in elements."""
    if len(shape) > _ffi.ACCRT_MAX_RANK:
        raise ValueError(f"{where} has {len(shape)} dimensions: at most {_ffi.ACCRT_MAX_RANK} are supported")
    if any(d < 0 for d in shape):
        raise ValueError(f"{where} has shape {shape}, with a negative dimension")
    if strides is None:
        return contiguous_strides(shape)
    if len(strides) != len(shape) or any(s % size for s in strides):
        raise ValueError(f"{where} has strides {tuple(strides)}, which are no multiples of the element's {size} bytes for each of {len(shape)} dimensions")
    return tuple(s // size for s in strides)


def _memory(where: str, source: Any, target: Any, device: Device, address: int, shape: Sequence[int], steps: Sequence[int], size: int) -> tuple[Buffer, int]:
    """The memory as a buffer, and where in it element 0 is."""
    low, high = extent(shape, steps)
    if low == high:
        return Pool(device).buffer(64), 0
    begin = address + low * size
    if not address or begin <= 0 or begin + (high - low) * size >= 1 << 64:
        raise ValueError(f"{where} has its data at {address:#x}, and {high - low} elements there")
    if _fast.native is not None:
        release, user = _fast.native.keep(source)
    else:
        held = [source]
        release, user = ctypes.cast(_given_back, ctypes.c_void_p).value, id(held)
        _lent[user] = held
    give = lib.accrt_buffer_import.argtypes[3](release)
    try:
        handle = created(lib.accrt_buffer_import, target, begin, (high - low) * size, give, user)
    except BaseException:
        give(user)
        raise
    return Buffer(handle, device), -low * size


def _order(where: str, producer: Any, device: Device, consumer: Stream | None) -> None:
    """Makes what the consumer enqueues on the device come after what the producer's stream has
    now."""
    if producer is None:
        return
    number = _index(producer)
    if number == 0:
        raise ValueError(f"{where} names stream 0, which may be either of CUDA's default streams: 1 is the legacy one, 2 that of each thread")
    own = None
    if consumer is not None:
        with contextlib.suppress(Error):  # it holds work back until a semaphore is signalled
            own = consumer.native
    if own is not None and (own == number or {own, number} <= _DEFAULT):
        return
    with _entered(where, device):
        if own is None:
            _check(where, "cuStreamSynchronize", number)
            return
        event = ctypes.c_void_p()
        _check(where, "cuEventCreate", ctypes.byref(event), _NO_TIMING)
        try:
            _check(where, "cuEventRecord", event, number)
            _check(where, "cuStreamWaitEvent", own, event, 0)
        finally:
            _driver().cuEventDestroy_v2(event)  # the wait stays


def wait_for_default_stream(where: str, device: Device) -> None:
    """Waits for what CUDA's legacy default stream has now.

    Raises:
        BufferError: it cannot be waited for, because a stream is captured into a graph.
    """
    with _entered(where, device):
        _check(where, "cuStreamSynchronize", _LEGACY)


@contextlib.contextmanager
def _entered(where: str, device: Device) -> Iterator[None]:
    """The device's primary context is the thread's."""
    context, ordinal = ctypes.c_void_p(), device.info.dlpack_device[1]
    _check(where, "cuDevicePrimaryCtxRetain", ctypes.byref(context), ordinal)
    try:
        _check(where, "cuCtxPushCurrent_v2", context)
        try:
            yield
        finally:
            _driver().cuCtxPopCurrent_v2(ctypes.byref(context))
    finally:
        _driver().cuDevicePrimaryCtxRelease_v2(ordinal)


_POINTER, _PLACE = ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p)
_ARGUMENTS = {"cuDevicePrimaryCtxRetain": (_PLACE, ctypes.c_int), "cuDevicePrimaryCtxRelease_v2": (ctypes.c_int,),
              "cuCtxPushCurrent_v2": (_POINTER,), "cuCtxPopCurrent_v2": (_PLACE,), "cuStreamSynchronize": (_POINTER,),
              "cuEventCreate": (_PLACE, ctypes.c_uint), "cuEventRecord": (_POINTER, _POINTER), "cuEventDestroy_v2": (_POINTER,),
              "cuStreamWaitEvent": (_POINTER, _POINTER, ctypes.c_uint)}


@functools.lru_cache(maxsize=None)
def _driver() -> Any:
    """CUDA's driver, which the device has loaded: functions of its own, since argtypes are set."""
    library = loaded_library("libcuda.so.1")
    if library is None:
        raise BufferError("CUDA's driver is not in this process under its own name")
    found = types.SimpleNamespace()
    for name, arguments in _ARGUMENTS.items():
        function = library[name]
        function.argtypes, function.restype = arguments, ctypes.c_int
        setattr(found, name, function)
    return found


def _check(where: str, name: str, *given: Any) -> None:
    result = getattr(_driver(), name)(*given)
    if result:
        raise BufferError(f"{where}: its stream and the one that uses it cannot be ordered: {name} gave {result}, of CUDA's driver")
