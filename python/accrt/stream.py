"""Streams, events and timeline semaphores."""
from __future__ import annotations

import ctypes
import os

from . import _ffi
from ._library import Handle, check, created, from_record, lib, struct
from .instance import Device, Instance
from .memory import Buffer

_POLICIES = {"block": _ffi.ACCRT_WAIT_BLOCK, "yield": _ffi.ACCRT_WAIT_YIELD, "spin": _ffi.ACCRT_WAIT_SPIN}


def timeout_ns(seconds: float | None) -> int:
    """Nanoseconds for the C API: None waits for ever."""
    if seconds is None:
        return _ffi.ACCRT_TIMEOUT_INFINITE
    if not seconds >= 0:
        raise ValueError(f"timeout is {seconds!r} seconds, expected None or a number that is not negative")
    return min(int(seconds * 1e9), _ffi.ACCRT_TIMEOUT_INFINITE - 1)


def _policy(name: str) -> int:
    if name not in _POLICIES:
        raise ValueError(f"policy is {name!r}, expected one of {', '.join(map(repr, _POLICIES))}")
    return _POLICIES[name]


def failure(function, handle: int):
    """The record that `function` (an accrt_..._error) gives, as an exception object, or None."""
    record = struct(_ffi.accrt_error)
    check(function(handle, ctypes.byref(record)))
    return from_record(record, record.status) if record.status else None


class Semaphore(Handle):
    """A 64-bit timeline between streams, devices and the host. Values only grow."""

    __slots__ = ("instance",)
    _release_name = "accrt_semaphore_release"

    def __init__(self, instance: Instance, initial: int = 0) -> None:
        self._handle = None
        super().__init__(created(lib.accrt_semaphore_create, instance.handle, initial))
        self.instance = instance

    @property
    def value(self) -> int:
        """The value reached. Raises PoisonedError when the semaphore has failed."""
        out = ctypes.c_uint64()
        check(lib.accrt_semaphore_query(self.handle, ctypes.byref(out)))
        return out.value

    def signal(self, value: int) -> None:
        """Raises the value from the host."""
        check(lib.accrt_semaphore_signal(self.handle, value))

    def wait(self, value: int, timeout: float | None = None, policy: str = "block") -> None:
        """Waits until `value` is reached. Raises TimeoutError (NotReadyError for timeout 0) or PoisonedError. The GIL is
        released meanwhile."""
        check(lib.accrt_semaphore_wait(self.handle, value, timeout_ns(timeout), _policy(policy)))

    def fail(self, message: str = "cancelled", status: int = _ffi.ACCRT_ERROR_CANCELLED) -> None:
        """Fails it for ever: how work that waits for it is cancelled."""
        check(lib.accrt_semaphore_fail(self.handle, status, message.encode()))

    @property
    def error(self):
        """The failure, as an exception object, or None."""
        return failure(lib.accrt_semaphore_error, self.handle)

    def eventfd(self, value: int) -> int:
        """A new file descriptor that becomes readable at `value` or on failure. The caller closes it."""
        out = ctypes.c_int32(-1)
        check(lib.accrt_semaphore_export_eventfd(self.handle, value, ctypes.byref(out)))
        return out.value

    async def wait_async(self, value: int) -> None:
        """Waits in an asyncio event loop without a thread: through an eventfd. Raises PoisonedError on failure."""
        import asyncio  # here: it takes longer to import than the rest of the package
        loop = asyncio.get_running_loop()
        fd = self.eventfd(value)
        done = loop.create_future()
        try:
            loop.add_reader(fd, lambda: done.done() or done.set_result(None))
            await done
        finally:
            loop.remove_reader(fd)
            os.close(fd)
        self.wait(value, 0)

    def __repr__(self) -> str:
        error = self.error
        return f"<accrt.Semaphore failed: {error}>" if error else f"<accrt.Semaphore at {self.value}>"


class Stream(Handle):
    """An in-order queue of a device. Methods enqueue and do not wait; failures found later surface in `synchronize`."""

    __slots__ = ("device", "_keep")
    _release_name = "accrt_stream_release"

    def __init__(self, device: Device, priority: int = 0, label: str = "") -> None:
        self._handle = None
        options = struct(_ffi.accrt_stream_options, priority=priority, label=label.encode())
        super().__init__(created(lib.accrt_stream_create, device.handle, ctypes.byref(options)))
        self.device = device
        self._keep = []  # host memory that copies in flight read or write

    @classmethod
    def _borrowed(cls, handle: int, device: Device) -> Stream:
        self = cls.__new__(cls)
        Handle.__init__(self, lib.accrt_stream_retain(handle))
        self.device = device
        self._keep = []
        return self

    @classmethod
    def wrap(cls, device: Device, native) -> Stream:
        """Somebody else's queue as a Stream, without taking it over: it must live as long as this.

        Args:
            native: an object with `__cuda_stream__` (cuda.core, torch, CuPy), or the number of a CUstream (0: the legacy
                default stream).
        """
        if hasattr(native, "__cuda_stream__"):
            protocol = native.__cuda_stream__
            native = (protocol() if callable(protocol) else protocol)[1]
        elif not isinstance(native, int):
            native = getattr(native, "cuda_stream", getattr(native, "ptr", native))
        if not isinstance(native, int):
            raise TypeError(f"{native!r} is no stream: expected an object with __cuda_stream__, or the number of a CUstream")
        self = cls.__new__(cls)
        self._handle = None
        Handle.__init__(self, created(lib.accrt_stream_wrap, device.handle, native))
        self.device = device
        self._keep = []
        return self

    @property
    def native(self) -> int:
        """The queue of the device under this stream (CUDA: a CUstream's number), for other libraries to enqueue to."""
        return created(lib.accrt_stream_native, self.handle)

    def __cuda_stream__(self) -> tuple[int, int]:
        """The CUDA stream protocol: (0, CUstream)."""
        return (0, self.native)

    @property
    def id(self) -> int:
        return lib.accrt_stream_id(self.handle)

    def done(self) -> bool:
        """True when everything enqueued is complete. Raises when the stream has failed."""
        status = lib.accrt_stream_query(self.handle)
        if status == _ffi.ACCRT_ERROR_NOT_READY:
            return False
        check(status)
        return True

    def synchronize(self, timeout: float | None = None, policy: str = "block") -> None:
        """Waits for everything enqueued. Raises TimeoutError, or what the stream failed with."""
        status = lib.accrt_stream_synchronize(self.handle, timeout_ns(timeout), _policy(policy))
        if status == _ffi.ACCRT_ERROR_POISONED:
            error = self.error
            if error is not None:
                raise error
        check(status)
        self._keep.clear()

    @property
    def error(self):
        """The failure that the stream carries, as an exception object, or None."""
        return failure(lib.accrt_stream_error, self.handle)

    def reset(self) -> None:
        """Clears a failure; what was not run is dropped."""
        check(lib.accrt_stream_reset(self.handle))
        self._keep.clear()

    def wait(self, semaphore: Semaphore, value: int) -> None:
        """All that follows waits until the semaphore reaches `value`; it may be signalled later."""
        check(lib.accrt_stream_wait(self.handle, semaphore.handle, value))

    def signal(self, semaphore: Semaphore, value: int) -> None:
        """Raises the semaphore when all before is complete."""
        check(lib.accrt_stream_signal(self.handle, semaphore.handle, value))

    def record(self, event: Event) -> None:
        check(lib.accrt_stream_record(self.handle, event.handle))

    def wait_event(self, event: Event) -> None:
        check(lib.accrt_stream_wait_event(self.handle, event.handle))

    def copy(self, source, target, size_bytes: int | None = None, source_offset: int = 0, target_offset: int = 0) -> None:
        """Copies bytes between Buffers and host objects with the buffer protocol (numpy arrays, bytearrays, memoryviews).
        Host objects are kept alive until the stream is synchronized.

        Args:
            size_bytes: default: all of the source from its offset.
        """
        source_place, source_size = self._place(source, source_offset, writable=False)
        target_place, _ = self._place(target, target_offset, writable=True)
        size = source_size - source_offset if size_bytes is None else size_bytes
        check(lib.accrt_stream_copy(self.handle, ctypes.byref(source_place), ctypes.byref(target_place), size))

    def fill(self, target: Buffer, pattern: int, pattern_bytes: int = 1, offset: int = 0,
             size_bytes: int | None = None) -> None:
        """Fills with a repeated pattern of 1, 2, 4 or 8 bytes. size_bytes: default: to the end."""
        place, total = self._place(target, offset, writable=True)
        size = total - offset if size_bytes is None else size_bytes
        check(lib.accrt_stream_fill(self.handle, ctypes.byref(place), size, pattern, pattern_bytes))

    def read_file(self, file, target: Buffer, size_bytes: int, file_offset: int = 0, target_offset: int = 0) -> None:
        """Copies bytes of a file into a buffer; later work on the stream waits for them. Failures surface in `synchronize`.

        Args:
            file: a file object with a descriptor, or the descriptor. It may be closed at once.
        """
        descriptor = file if isinstance(file, int) else file.fileno()
        place, _ = self._place(target, target_offset, writable=True)
        check(lib.accrt_stream_read_file(self.handle, descriptor, file_offset, ctypes.byref(place), size_bytes, 0))

    def _place(self, where, offset: int, writable: bool):
        if isinstance(where, Buffer):
            return _ffi.accrt_place(where.handle, None, offset), where.size_bytes
        from .tensor import host_bytes  # circular: tensors know streams
        address, size, owner = host_bytes(where, writable)
        if not 0 <= offset <= size:
            raise IndexError(f"offset {offset} lies outside a host object of {size} bytes")
        self._keep.append(owner)
        return _ffi.accrt_place(None, address, offset), size

    def __repr__(self) -> str:
        return f"<accrt.Stream {self.id} on {self.device.name}>"


class Event(Handle):
    """A point in a stream: orders streams of a device and, with timing=True, tells the time between two."""

    __slots__ = ()
    _release_name = "accrt_event_release"

    def __init__(self, device: Device, timing: bool = False) -> None:
        self._handle = None
        super().__init__(created(lib.accrt_event_create, device.handle, _ffi.ACCRT_EVENT_FLAG_TIMING if timing else 0))

    def done(self) -> bool:
        status = lib.accrt_event_query(self.handle)
        if status == _ffi.ACCRT_ERROR_NOT_READY:
            return False
        check(status)
        return True

    def synchronize(self, timeout: float | None = None, policy: str = "block") -> None:
        check(lib.accrt_event_synchronize(self.handle, timeout_ns(timeout), _policy(policy)))

    def elapsed_ns(self, end: Event) -> int:
        """Nanoseconds from this event to `end`."""
        out = ctypes.c_int64()
        check(lib.accrt_event_elapsed(self.handle, end.handle, ctypes.byref(out)))
        return out.value
