"""Pools and buffers."""
from __future__ import annotations

import contextlib
import ctypes
from operator import index

from . import _ffi
from ._library import Handle, _owner, allowed, c_text, check, created, filled, lib, need, never_raises, number, retained, struct
from ._records import PoolEntry
from ._waits import apart
from .errors import Error
from .instance import Device

KINDS = {"device": _ffi.ACCRT_MEMORY_DEVICE, "pinned": _ffi.ACCRT_MEMORY_PINNED, "host": _ffi.ACCRT_MEMORY_HOST,
         "imported": _ffi.ACCRT_MEMORY_IMPORTED, "mapped": _ffi.ACCRT_MEMORY_MAPPED}
_KIND_NAMES = {v: k for k, v in KINDS.items()}


class Pool(Handle):
    """A memory pool of a device.

    Args:
        kind: "device", "pinned" or "host". limit_bytes: most bytes it may reserve, 0 for no limit.
        label: names it in errors and snapshots.
    """

    __slots__ = ("device",)
    _kind = "accrt_pool"

    def __init__(self, device: Device, kind: str = "device", limit_bytes: int = 0, label: str = "") -> None:
        if kind not in KINDS:
            raise ValueError(f"kind is {kind!r}, expected one of {', '.join(map(repr, KINDS))}")
        options = struct(_ffi.accrt_pool_options, kind=KINDS[kind], limit_bytes=number(limit_bytes, "limit_bytes"), label=c_text(label))
        super().__init__(created(lib.accrt_pool_create, need(device, Device), ctypes.byref(options)))
        self.device = device

    @property
    def statistics(self) -> dict[str, int]:
        """Bytes and counts; every byte reserved is in exactly one of used, retiring and free."""
        raw = filled(_ffi.accrt_pool_statistics, lib.accrt_pool_statistics, self.handle)
        return {n: getattr(raw, n) for n, _ in raw._fields_ if n not in ("struct_size", "reserved", "next")}

    def snapshot(self) -> list[PoolEntry]:
        """The pool's buffers, with their labels and sizes."""
        count = ctypes.c_uint32()
        size = ctypes.sizeof(_ffi.accrt_pool_entry)
        check(lib.accrt_pool_snapshot(self.handle, None, 0, size, ctypes.byref(count)))
        entries = (_ffi.accrt_pool_entry * max(count.value, 1))()
        capacity = count.value
        check(lib.accrt_pool_snapshot(self.handle, entries, capacity, size, ctypes.byref(count)))
        return [PoolEntry(e.buffer_id, e.address, e.size_bytes, bool(e.retiring), e.label.decode("utf-8", "replace"))
                for e in entries[:min(capacity, count.value)]]

    def trim(self, keep_bytes: int = 0) -> None:
        """Gives free memory back until at most keep_bytes stay reserved."""
        pool, keep = self.handle, number(keep_bytes, "keep_bytes")
        apart(lambda: check(lib.accrt_pool_trim(pool, keep)))

    def buffer(self, size_bytes: int, alignment_bytes: int = 0, label: str = "") -> Buffer:
        """Allocates a buffer, whose contents are undefined. Raises OutOfDeviceMemoryError, whose
        message lists the buffers."""
        options = struct(_ffi.accrt_buffer_options, alignment_bytes=number(alignment_bytes, "alignment_bytes"), label=c_text(label))
        size_bytes = number(size_bytes, "size_bytes")
        return Buffer(created(lib.accrt_buffer_create, self.handle, size_bytes, ctypes.byref(options)), self.device)


_retain = _owner("accrt_buffer").retain


class Buffer(Handle):
    """Memory of a device, with the buffer protocol through `memoryview()` where the host can reach
    it.

    Views and arrays of the memory keep it, also when the buffer is closed.

    Attributes:
        device (Device | None): the device that has the memory, if known. stream (Stream | None): a
            stream whose work may still fill it.
        read_only (bool): the memory's owner forbids writing (DLPack).
    """

    __slots__ = ("_known", "device", "stream", "_read_only")
    _kind = "accrt_buffer"

    def __init__(self, handle, device: Device | None = None, stream=None, read_only: bool = False) -> None:
        super().__init__(handle)
        allowed(device, Device)
        self.device, self.stream, self._read_only = device, stream, read_only
        self._known: _ffi.accrt_buffer_info | None = None

    @classmethod
    def borrowed(cls, handle, device: Device | None = None, stream=None) -> Buffer:
        """A new owner of a borrowed handle: a ctypes pointer of its kind."""
        if not isinstance(handle, _ffi.accrt_buffer_p):
            raise TypeError(f"handle is {handle!r}, expected a ctypes pointer to an accrt_buffer_t")
        return cls(retained(handle), device, stream)

    @classmethod
    def _of_result(cls, handle, device: Device | None, stream) -> Buffer:
        """What `borrowed` makes, for each result of each call: of what the library itself gives."""
        return cls._of_pointer(_retain(handle), device, stream)

    @classmethod
    def _of_pointer(cls, pointer, device: Device | None, stream=None) -> Buffer:
        """The same of a reference that is the caller's."""
        self = cls.__new__(cls)
        self._pointer = pointer
        self.device, self.stream, self._read_only, self._known = device, stream, False, None
        return self

    @property
    def _info(self) -> _ffi.accrt_buffer_info:
        """Asked for once, by who wants it first: most results are read through a tensor, which does
        not."""
        info = self._known
        if info is None:
            info = struct(_ffi.accrt_buffer_info)  # without the reference that `filled` keeps
            check(lib.accrt_buffer_info(self.handle, ctypes.byref(info)))
            self._known = info
        return info

    def close(self) -> None:
        """Releases the reference now. The memory's size and kind can still be read."""
        if self._pointer is not None and self._known is None:
            with contextlib.suppress(Error):  # in a forked child
                self._info  # noqa: B018 - before the handle goes
        super().close()

    @property
    def read_only(self) -> bool:
        return self._read_only

    @property
    def size_bytes(self) -> int:
        return self._info.size_bytes

    @property
    def address(self) -> int:
        """The address that kernels get."""
        return self._info.device_address

    @property
    def host_pointer(self) -> int | None:
        return self._info.host_pointer

    @property
    def kind(self) -> str:
        return _KIND_NAMES.get(self._info.kind, str(self._info.kind))

    def memoryview(self) -> memoryview:
        """The bytes, writable unless the memory is read-only, without a copy. The view keeps the
        memory. You must order its use with streams yourself."""
        pointer = self.handle
        if not self.size_bytes:
            return memoryview(b"")
        if not self.host_pointer:
            raise NotImplementedError(f"memory of kind {self.kind!r} is not reachable from the host: copy it with a Stream")
        raw = (ctypes.c_char * self.size_bytes).from_address(self.host_pointer)
        raw._owner = pointer  # the memory, not this object, which may be closed
        view = memoryview(raw).cast("B")
        return view.toreadonly() if self._read_only else view

    def read(self, offset: int = 0, size: int | None = None) -> memoryview:
        """Bytes that the host can read: the memory itself if the host reaches it, else a copy,
        which this call makes and waits for."""
        offset = index(offset)
        size = self.size_bytes - offset if size is None else index(size)
        if not 0 <= offset <= offset + size <= self.size_bytes:
            raise IndexError(f"bytes {offset} to {offset + size} lie outside a buffer of {self.size_bytes} bytes")
        self._settle()
        if self.host_pointer or size == 0:
            return self.memoryview()[offset:offset + size]
        if self.device is None:
            raise NotImplementedError("this buffer does not know its device: copy it with a Stream")
        from .stream import Stream  # circular: streams know buffers
        out = bytearray(size)
        stream = Stream(self.device)
        stream.copy(self, out, size, source_offset=offset)
        stream.synchronize()
        return memoryview(out)

    def _settle(self) -> None:
        """Waits for the work that is still filling the memory, if there is any. Raises what it
        failed with."""
        if self.stream is not None:
            self.stream.synchronize()
            self.stream = None

    def __len__(self) -> int:
        return self.size_bytes

    @never_raises
    def __repr__(self) -> str:
        return f"<accrt.Buffer {self.size_bytes} bytes of {self.kind} memory at 0x{self.address:x}>"
