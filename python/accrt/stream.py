"""Streams, events and timeline semaphores."""
from __future__ import annotations

import ctypes
import os

from . import _ffi
from ._in_flight import InFlight
from ._library import Handle, c_text, check, created, describe, from_record, last_error, lib, need, never_raises, number, struct
from ._waits import apart, seconds as _seconds, until
from .errors import OutOfRangeError
from .instance import Device, Instance
from .memory import Buffer

_POLICIES = {"block": _ffi.ACCRT_WAIT_BLOCK, "yield": _ffi.ACCRT_WAIT_YIELD, "spin": _ffi.ACCRT_WAIT_SPIN}


def timeout_ns(seconds: float | None) -> int:
    """Nanoseconds for the C API: None and infinity wait for ever."""
    limit = _seconds(seconds) if seconds is not None else None
    return _ffi.ACCRT_TIMEOUT_INFINITE if limit is None else int(limit * 1e9)


def pattern_of(pattern: int, pattern_bytes: int) -> tuple[int, int]:
    """The pattern of a fill, which fits its size. C says which sizes there are."""
    size = number(pattern_bytes, "pattern_bytes", 32)
    return number(pattern, "pattern", 8 * size if size in (1, 2, 4) else 64), size


def _policy(name: str) -> int:
    if name not in _POLICIES:
        raise ValueError(f"policy is {name!r}, expected one of {', '.join(map(repr, _POLICIES))}")
    return _POLICIES[name]


def failure(function, handle):
    """The record that `function` (an accrt_..._error) gives, as an exception object, or None."""
    record = struct(_ffi.accrt_error)
    check(function(handle, ctypes.byref(record)))
    return from_record(record, record.status) if record.status else None


class Semaphore(Handle):
    """A 64-bit timeline between streams, devices and the host. Values only grow."""

    __slots__ = ("instance",)
    _kind = "accrt_semaphore"

    def __init__(self, instance: Instance, initial: int = 0) -> None:
        super().__init__(created(lib.accrt_semaphore_create, need(instance, Instance), number(initial, "initial")))
        self.instance = instance

    @property
    def value(self) -> int:
        """The value reached. Raises PoisonedError when the semaphore has failed."""
        out = ctypes.c_uint64()
        check(lib.accrt_semaphore_query(self.handle, ctypes.byref(out)))
        return out.value

    def signal(self, value: int) -> None:
        """Raises the value from the host."""
        check(lib.accrt_semaphore_signal(self.handle, number(value, "value")))

    def wait(self, value: int, timeout: float | None = None, policy: str = "block") -> None:
        """Waits until `value` is reached. Raises TimeoutError (NotReadyError for timeout 0) or
        PoisonedError (CancelledWorkError if the work that would have signalled it was cancelled).
        The GIL is released meanwhile, and Ctrl-C ends the wait."""
        check(until(lib.accrt_semaphore_wait, timeout_ns(timeout), self.handle, number(value, "value"), tail=(_policy(policy),)))

    def fail(self, message: str = "cancelled", status: int = _ffi.ACCRT_ERROR_CANCELLED) -> None:
        """Fails the semaphore for ever. Use it to cancel work that waits for the semaphore."""
        check(lib.accrt_semaphore_fail(self.handle, number(status, "status", 32, signed=True), c_text(message)))

    @property
    def error(self):
        """The failure, as an exception object, or None."""
        return failure(lib.accrt_semaphore_error, self.handle)

    def eventfd(self, value: int) -> int:
        """A new file descriptor that becomes readable at `value` or on failure. The caller closes
        it."""
        out = ctypes.c_int32(-1)
        check(lib.accrt_semaphore_export_eventfd(self.handle, number(value, "value"), ctypes.byref(out)))
        return out.value

    async def wait_async(self, value: int) -> None:
        """Waits in an asyncio event loop without a thread: through an eventfd. Raises PoisonedError
        on failure, as `wait` does."""
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

    @never_raises
    def __repr__(self) -> str:
        error = self.error
        return f"<accrt.Semaphore failed: {error}>" if error else f"<accrt.Semaphore at {self.value}>"


class Stream(Handle):
    """An in-order queue of a device. Methods enqueue and do not wait; failures found later surface
    in `synchronize`."""

    __slots__ = ("device", "_in_flight")
    _kind = "accrt_stream"

    def __init__(self, device: Device, priority: int = 0, label: str = "", *, ahead: int = 0, commands_per_piece: int = 0) -> None:
        """
        Args:
            priority: higher is more urgent; 0 is normal.
            label: shown in messages and traces.
            ahead: the most pieces of work (copies, launches, calls) that the device has at a time.
                `cancel` drops the others. With 1 the device is idle between pieces. 0: no limit.
            commands_per_piece: with `ahead`, the most commands of a call that are one piece, so
                that `cancel` ends a long call between two pieces. 0: a call is one piece.

        Raises:
            InvalidArgumentError: `commands_per_piece` without `ahead`.
        """
        options = struct(_ffi.accrt_stream_options, priority=number(priority, "priority", 32, signed=True), label=c_text(label), ahead=number(ahead, "ahead"),
                         commands_per_piece=number(commands_per_piece, "commands_per_piece"))
        self._setup(created(lib.accrt_stream_create, need(device, Device), ctypes.byref(options)), device)

    def _setup(self, pointer, device: Device, in_flight: InFlight | None = None) -> None:
        super().__init__(pointer)
        self.device = device
        # memory of callers that what is in flight uses
        self._in_flight = in_flight or InFlight(pointer)

    @classmethod
    def _of_in_flight(cls, in_flight: InFlight, device: Device) -> Stream:
        self = cls.__new__(cls)
        self._setup(in_flight.stream, device, in_flight)
        return self

    @classmethod
    def wrap(cls, device: Device, native) -> Stream:
        """Another library's queue as a Stream, without taking it over.

        Args:
            native: an object with `__cuda_stream__` (cuda.core, torch, CuPy), which lives as long
                as anything of this stream is in use; or the number of a CUstream (0: the legacy
                default stream), which must live that long.
        """
        owner = native
        if hasattr(native, "__cuda_stream__"):
            protocol = native.__cuda_stream__
            native = (protocol() if callable(protocol) else protocol)[1]
        elif not isinstance(native, int):
            native = getattr(native, "cuda_stream", getattr(native, "ptr", native))
        if not isinstance(native, int):
            raise TypeError(f"{native!r} is no stream: expected an object with __cuda_stream__, or the number of a CUstream")
        self = cls.__new__(cls)
        pointer = created(lib.accrt_stream_wrap, need(device, Device), number(native, "native"))
        pointer.owner = owner  # it goes after the library's reference
        self._setup(pointer, device)
        return self

    @property
    def native(self) -> int:
        """The queue of the device under this stream (CUDA: a CUstream's number), for other
        libraries to enqueue to."""
        out = ctypes.c_void_p()
        check(lib.accrt_stream_native(self.handle, ctypes.byref(out)))
        return out.value or 0

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
        """Waits for all enqueued work. Raises TimeoutError, or the stream's failure. Ctrl-C ends
        the wait, and the work goes on; `cancel` ends the work."""
        limit, tail = timeout_ns(timeout), (_policy(policy),)
        status = until(lib.accrt_stream_synchronize, limit, self.handle, tail=tail)
        if status == _ffi.ACCRT_ERROR_POISONED and limit == _ffi.ACCRT_TIMEOUT_INFINITE:
            # A slice ends as soon as the stream has failed; a wait without limit, when nothing of
            # it runs any more.
            apart(lambda: lib.accrt_stream_synchronize(self.handle, limit, *tail))
        if status == _ffi.ACCRT_ERROR_POISONED:
            raise self.error or last_error(status)
        check(status)
        self._in_flight.look()

    @property
    def error(self):
        """The failure that the stream carries, as an exception object, or None."""
        return failure(lib.accrt_stream_error, self.handle)

    def cancel(self) -> None:
        """Ends submitted work that is not complete. The work fails with CancelledError, on hosts
        before its next workgroup. Work that has not begun is dropped, and semaphores that it would
        have signalled fail. `reset` makes the stream usable again. Work that a GPU already has runs
        to its end; `ahead` and `commands_per_piece` limit how much that is. Any thread may call
        this. If no work is in flight, nothing happens."""
        check(lib.accrt_stream_cancel(self.handle))

    def reset(self) -> None:
        """Clears a failure. Drops work that has not run, and waits for work that still runs."""
        apart(lambda: check(lib.accrt_stream_reset(self.handle)))
        self._in_flight.look()

    def wait(self, semaphore: Semaphore, value: int) -> None:
        """Later work on the stream waits until the semaphore reaches `value`. The signal may come
        later."""
        check(lib.accrt_stream_wait(self.handle, need(semaphore, Semaphore), number(value, "value")))

    def signal(self, semaphore: Semaphore, value: int) -> None:
        """Raises the semaphore to `value` when all earlier work is complete."""
        check(lib.accrt_stream_signal(self.handle, need(semaphore, Semaphore), number(value, "value")))

    def record(self, event: Event) -> None:
        check(lib.accrt_stream_record(self.handle, need(event, Event)))

    def wait_event(self, event: Event) -> None:
        check(lib.accrt_stream_wait_event(self.handle, need(event, Event)))

    def copy(self, source, target, size_bytes: int | None = None, source_offset: int = 0, target_offset: int = 0) -> None:
        """Copies bytes between Buffers and host objects with the buffer protocol (numpy arrays,
        bytearrays, memoryviews). Host objects are kept alive until the copy is over, even if they
        and this stream are dropped.

        Args:
            size_bytes: default: all of the source from its offset.
        Raises:
            IndexError: an offset or the size lies outside the source or the target. ValueError: a
                target that is read-only.
        """
        read, written = _Place(source, source_offset, False), _Place(target, target_offset, True)
        size = written.size(read.size(size_bytes))
        owners = None if read.owner is None and written.owner is None else (read.owner, written.owner)
        self._enqueue(owners, lib.accrt_stream_copy, ctypes.byref(read.c), ctypes.byref(written.c), size)

    def fill(self, target: Buffer, pattern: int, pattern_bytes: int = 1, offset: int = 0,
             size_bytes: int | None = None) -> None:
        """Fills with a repeated pattern of 1, 2, 4 or 8 bytes. size_bytes: default: to the end."""
        pattern, pattern_bytes = pattern_of(pattern, pattern_bytes)
        place = _Place(target, offset, True)
        size = place.size(size_bytes)
        self._enqueue(place.owner, lib.accrt_stream_fill, ctypes.byref(place.c), size, pattern, pattern_bytes)

    def read_file(self, file, target: Buffer, size_bytes: int, file_offset: int = 0, target_offset: int = 0) -> None:
        """Copies bytes of a file into a buffer; later work on the stream waits for them. Failures
        surface in `synchronize`.

        Args:
            file: a file object with a descriptor, or the descriptor. It may be closed at once.
        """
        descriptor = number(file if isinstance(file, int) else file.fileno(), "file", 32, signed=True)
        place = _Place(target, target_offset, True)
        size = place.size(size_bytes)
        self._enqueue(place.owner, lib.accrt_stream_read_file, descriptor, number(file_offset, "file_offset"),
                      ctypes.byref(place.c), size, 0)

    def _enqueue(self, kept: object, function, *arguments) -> None:
        """Calls `function(stream, *arguments)`; `kept` (None: nothing) lives until what it enqueued
        is over."""
        try:
            check(function(self.handle, *arguments))
        finally:
            if kept is not None:
                self._in_flight.keep(kept)

    @never_raises
    def __repr__(self) -> str:
        return f"<accrt.Stream {self.id} on {self.device.name}>"


class _Place:
    """One end of a copy, and what keeps it alive."""

    __slots__ = ("c", "room", "owner", "_what")  # owner: None where C keeps it

    def __init__(self, where, offset: int, writable: bool) -> None:
        self._what = "target" if writable else "source"
        offset = number(offset, f"{self._what}_offset")
        if isinstance(where, Buffer):
            if writable and where.read_only:
                raise ValueError("the target is a buffer over memory that is read-only")
            pointer, total = where.handle, where.size_bytes
            self.c = _ffi.accrt_place(pointer, None, offset)
            # all others C keeps, and calls no Python for
            self.owner = pointer if where.kind == "imported" else None
        else:
            from .tensor import host_bytes  # circular: tensors know streams
            if isinstance(where, Handle) or where is None:
                raise TypeError(f"the {self._what} is {describe(where)}, expected an accrt.Buffer or an object with the buffer protocol")
            address, total, self.owner = host_bytes(where, writable)
            self.c = _ffi.accrt_place(None, address, offset)
        if offset > total:
            raise OutOfRangeError(f"offset {offset} lies outside the {self._what} of {total} bytes")
        self.room = total - offset

    def size(self, wanted: int | None) -> int:
        """`wanted` bytes, or all."""
        if wanted is None:
            return self.room
        wanted = number(wanted, "size_bytes")
        if wanted > self.room:
            raise OutOfRangeError(f"{wanted} bytes from offset {self.c.offset_bytes} do not fit the {self._what} of "
                                  f"{self.c.offset_bytes + self.room} bytes")
        return wanted


class Event(Handle):
    """A point in a stream: orders streams of a device and, with timing=True, measures the time
    between two."""

    __slots__ = ()
    _kind = "accrt_event"

    def __init__(self, device: Device, timing: bool = False) -> None:
        super().__init__(created(lib.accrt_event_create, need(device, Device), _ffi.ACCRT_EVENT_FLAG_TIMING if timing else 0))

    def done(self) -> bool:
        status = lib.accrt_event_query(self.handle)
        if status == _ffi.ACCRT_ERROR_NOT_READY:
            return False
        check(status)
        return True

    def synchronize(self, timeout: float | None = None, policy: str = "block") -> None:
        """Waits for the latest record; Ctrl-C ends the wait."""
        check(until(lib.accrt_event_synchronize, timeout_ns(timeout), self.handle, tail=(_policy(policy),)))

    def elapsed_ns(self, end: Event) -> int:
        """Nanoseconds from this event to `end`."""
        out = ctypes.c_int64()
        check(lib.accrt_event_elapsed(self.handle, need(end, Event), ctypes.byref(out)))
        return out.value
