"""Pools and buffers."""
from __future__ import annotations

import ctypes

from . import _ffi
from ._library import Handle, check, created, filled, lib, struct
from ._records import PoolEntry
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
    _release_name = "accrt_pool_release"

    def __init__(self, device: Device, kind: str = "device", limit_bytes: int = 0, label: str = "") -> None:
        self._handle = None
        if kind not in KINDS:
            raise ValueError(f"kind is {kind!r}, expected one of {', '.join(map(repr, KINDS))}")
        options = struct(_ffi.accrt_pool_options, kind=KINDS[kind], limit_bytes=limit_bytes, label=label.encode())
        super().__init__(created(lib.accrt_pool_create, device.handle, ctypes.byref(options)))
        self.device = device

    @property
    def statistics(self) -> dict[str, int]:
        """Bytes and counts; every byte reserved is in exactly one of used, retiring and free."""
        raw = filled(_ffi.accrt_pool_statistics, lib.accrt_pool_statistics, self.handle)
        return {n: getattr(raw, n) for n, _ in raw._fields_ if n not in ("struct_size", "reserved", "next")}

    def snapshot(self) -> list[PoolEntry]:
        """Who holds what."""
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
        check(lib.accrt_pool_trim(self.handle, keep_bytes))

    def buffer(self, size_bytes: int, alignment_bytes: int = 0, label: str = "") -> Buffer:
        """Allocates. Contents are undefined. Raises OutOfDeviceMemoryError, which says who holds what."""
        options = struct(_ffi.accrt_buffer_options, alignment_bytes=alignment_bytes, label=label.encode())
        return Buffer(created(lib.accrt_buffer_create, self.handle, size_bytes, ctypes.byref(options)), self.device)


class Buffer(Handle):
    """Memory of a device, with the buffer protocol through `memoryview()` where the host can reach it.

    Attributes:
        device (Device | None): whose memory it is, where that is known. stream (Stream | None): work that is still filling it.
    """

    __slots__ = ("_info", "device", "stream")
    _release_name = "accrt_buffer_release"

    def __init__(self, handle: int, device: Device | None = None, stream=None) -> None:
        super().__init__(handle)
        self.device, self.stream = device, stream
        self._info = filled(_ffi.accrt_buffer_info, lib.accrt_buffer_info, handle)

    @classmethod
    def borrowed(cls, handle: int, device: Device | None = None, stream=None) -> Buffer:
        """A new owner of a borrowed handle."""
        return cls(lib.accrt_buffer_retain(handle), device, stream)

    @property
    def size_bytes(self) -> int:
        return self._info.size_bytes

    @property
    def address(self) -> int:
        """What kernels get."""
        return self._info.device_address

    @property
    def host_pointer(self) -> int | None:
        return self._info.host_pointer

    @property
    def kind(self) -> str:
        return _KIND_NAMES.get(self._info.kind, str(self._info.kind))

    def memoryview(self) -> memoryview:
        """The bytes, writable, without a copy; valid while this object lives. Order it against streams yourself."""
        if not self.host_pointer and self.size_bytes:
            raise NotImplementedError(f"memory of kind {self.kind!r} is not reachable from the host: copy it with a Stream")
        raw = (ctypes.c_char * self.size_bytes).from_address(self.host_pointer or 0) if self.size_bytes else b""
        if self.size_bytes:
            raw._owner = self
        return memoryview(raw).cast("B")

    def read(self, offset: int = 0, size: int | None = None) -> memoryview:
        """Bytes for the host to read: the memory itself where the host reaches it, else a copy, made and waited for here."""
        size = self.size_bytes - offset if size is None else size
        if not 0 <= offset <= offset + size <= self.size_bytes:
            raise IndexError(f"bytes {offset} to {offset + size} lie outside a buffer of {self.size_bytes} bytes")
        if self.stream is not None:
            self.stream.synchronize()
            self.stream = None
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

    def __len__(self) -> int:
        return self.size_bytes

    def __repr__(self) -> str:
        return f"<accrt.Buffer {self.size_bytes} bytes of {self.kind} memory at 0x{self.address:x}>"
