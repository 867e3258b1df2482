"""A GPU's memory as one buffer, in which tensors of other libraries are places: nothing is
imported or released for each of them.

What an argument of a bound call costs (python/native/gpu.c), in foreign calls and Python objects:

- torch and others with DLPack's C exchange: the exchange gives address, shape, strides and a
  reference to the memory (one call, one object of ours that gives it back); two attributes say that
  it is plain; one call asks for torch's current stream, one for the session's. Where they differ, an
  event is recorded and waited for: seven short calls of CUDA's driver. One call binds.
- CuPy and others with the CUDA array interface: one dict, which they make, with eight entries; one
  call of CUDA's driver says which GPU has the memory. The streams as above. One call binds.

If the session has a stream of its own and the library's is the default stream, the event is
recorded once, before the next submission of the session (`Gpu.order`), and not for each argument.
The wait then covers what the default stream has by the submission. That is all that it had when the
argument was bound, and maybe more.

The call's `_views` holds what keeps the memory, until another tensor is bound and the work that was
submitted by then is over (_in_flight.py). Where a stream is captured into a graph and is not the
session's own, or anything else is unknown, Python code does it all in many steps.
"""
from __future__ import annotations

import contextlib
import ctypes
import operator
from typing import Any

from ._library import created, lib, need
from ._system import loaded_library
from .errors import Error
from .instance import Device
from .stream import Event, Stream

CUDA = 2  # as DLPack numbers devices
_REACH = 1 << 57  # bytes, from the lowest address of a tensor so far: all that processors have
#: As python/native/gpu.c has them.
_FUNCTIONS = ("cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRelease_v2", "cuCtxPushCurrent_v2", "cuCtxPopCurrent_v2", "cuEventCreate",
              "cuEventDestroy_v2", "cuEventRecord", "cuStreamWaitEvent", "cuStreamIsCapturing", "cuPointerGetAttributes")

_connected: list[bool] = []


class Window:
    """The memory of a GPU from an address on, as a buffer, in which a tensor's place is an offset.
    It reserves and maps nothing."""

    __slots__ = ("pointer", "base")

    def __init__(self, device: Device, base: int) -> None:
        nothing = lib.accrt_buffer_import.argtypes[3]()
        self.pointer, self.base = created(lib.accrt_buffer_import, need(device, Device), base, _REACH, nothing, None), base


def connect(native: Any) -> bool:
    """Whether the C part has CUDA's driver, which a device has loaded."""
    if not _connected:
        library = loaded_library("libcuda.so.1")
        try:
            addresses = tuple(ctypes.cast(library[name], ctypes.c_void_p).value for name in _FUNCTIONS)
        except (TypeError, AttributeError):  # it is not there, or lacks one
            _connected.append(False)
        else:
            _connected.append(native.connect_cuda(addresses))
    return _connected[0]


def gpu_of(native: Any, session: Any) -> Any:
    """What places tensors of others among the arguments of a session's calls: native.Gpu; None: its
    device is no GPU of CUDA's."""
    kind, index = session.program.device.info.dlpack_device
    if kind != CUDA or not connect(native):
        return None
    gpu = session._gpu
    if gpu is None:
        pointer = session._in_flight.stream
        gpu = session._gpu = native.Gpu(pointer, operator.index(pointer), kind, index, session._pointer.stream is None)
    return gpu


def order(session: Any) -> None:
    """What Gpu.order does, where the C part cannot: the session's stream holds work back until a
    semaphore is signalled. It then waits for the default stream behind that work."""
    device = session.program.device
    event, default = Event(device), Stream.wrap(device, 0)
    default.record(event)
    session.stream.wait_event(event)
    session._in_flight.keep((default, event))  # its release would wait for what it has
    session._gpu.ordered()


def widen(gpu: Any, device: Device) -> None:
    """Lets the buffer reach what was out of it when it was last asked."""
    address = gpu.wanted()
    if address:
        with contextlib.suppress(Error):  # the memory has gone meanwhile
            window = Window(device, address)
            gpu.use(window.pointer, operator.index(window.pointer), window.base)

