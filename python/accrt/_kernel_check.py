"""`Kernel.check`: runs a kernel of a host on copies of its arguments between red zones, several
times, and says what it does beside its task.

The words are those of `accx kernel check` (tools/accx/kernel_words.c). With `isolated` all of it
happens in a process of its own (`_kernel_child`), which also lays each argument at the edge of
pages that nothing may touch.
"""
from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, Callable, Mapping, Sequence

from . import _kernel_call
from ._library import check as passed
from ._library import lib
from .memory import Buffer
from .stream import Stream
from .tensor import as_view, contiguous_strides, extent, View

if TYPE_CHECKING:
    from .kernels import Kernel

_ZONE, _ALIGN = 64 << 10, 64  # bytes of a red zone, and of the alignment of what is between two


class _Guarded:
    """A copy of an argument between two red zones. Taken by `as_view` as it is."""

    def __init__(self, name: str, written: bool, like: View, content: bytes) -> None:
        self.name, self.written, self.like, self.content = name, written, like, content
        self._memory = (ctypes.c_uint8 * (2 * _ZONE + len(content) + _ALIGN))()
        address = ctypes.addressof(self._memory)
        self._begin = -(-(address + _ZONE) // _ALIGN) * _ALIGN - address
        self.zone = 0

    def fill(self, zone: int, content: bytes) -> None:
        self.zone = zone
        ctypes.memset(self._memory, zone, len(self._memory))
        ctypes.memmove(ctypes.addressof(self._memory) + self._begin, content, len(content))

    def bytes(self) -> bytes:
        return ctypes.string_at(ctypes.addressof(self._memory) + self._begin, len(self.content))

    def outside(self) -> str:
        """Which byte of the red zones was written, if any was."""
        after = self._begin + len(self.content)
        whole = bytes(self._memory)
        for first, last, step in ((after, len(whole), 1), (self._begin - 1, -1, -1)):
            zone = whole[first:] if step > 0 else whole[: first + 1]
            if zone.count(self.zone) == len(zone):
                continue
            found = next((at for at in range(first, last, step) if whole[at] != self.zone), None)
            if found is not None:
                return f"byte {found - after} after its end" if step > 0 else f"byte {self._begin - found} before its beginning"
        return ""

    def _weight_view(self, _dtype: int | None) -> View:
        rank = self.like.c.rank
        return View(None, ctypes.addressof(self._memory) + self._begin, 0, self.like.c.dtype, self.like.shape_array[:rank], None, self)


def _silent(_what: str) -> None:
    """Ignores which run begins."""


def check(kernel: Kernel, given: Sequence, grid: Any, named: Mapping[str, Any], isolated: bool, seconds: float | None) -> list[str]:
    """What is amiss, each in a line; nothing: an empty list."""
    device = kernel.pack.device if kernel.pack.device is not None else kernel.pack.instance.device("host")
    if not device.info.host_memory:
        raise ValueError(f"kernel {kernel.name} runs on {device.name}, and only those of hosts are checked here: accx kernel check checks those of GPUs")
    values = _kernel_call.ordered(kernel, given, named)
    _kernel_call.arguments(kernel, values, device)  # what a call refuses is refused here
    guarded = [_guard(kernel, place, value, device) for place, value in zip(kernel._places, values)]
    sizes = _kernel_call._sizes(kernel, values, grid)
    if isolated:
        from ._kernel_apart import check_apart
        return check_apart(kernel, guarded, sizes, seconds)
    return [f"kernel {kernel.name} {line}" for line in look(kernel, guarded, sizes, _silent)]


def look(kernel: Kernel, guarded: Sequence, sizes: Sequence[int], begin: Callable[[str], None]) -> list[str]:
    """The findings, without the kernel's name. `begin` hears of each run, with what it is of: "",
    or "sizes of 0"."""
    memory = [one for one in guarded if isinstance(one, _Guarded)]
    found: list[str] = []
    first = _run(kernel, guarded, memory, sizes, 0xA5, 0, found, begin)
    for zone, flip, recorded, text in ((0xA5, 0, False, "gives other bytes in {name} when it runs again: from byte {at} on"),
                                       (0x5A, 0, False, "reads outside of its arguments: {name} depends on what lies there, from byte {at} on"),
                                       (0xA5, 0xFF, False, "does not write all of {name}, or reads it: byte {at} depends on what was there before"),
                                       (0xA5, 0, True, "gives other bytes in {name} from a recorded list: from byte {at} on")):
        if not found:
            _compare(found, memory, first, _run(kernel, guarded, memory, sizes, zone, flip, found, begin, recorded), text)
    return found or _empty(kernel, guarded, begin)


def _guard(kernel: Kernel, place: Any, value: Any, device: Any) -> Any:
    scalar, written, (name, _kind, _size) = place
    if scalar or value is None:
        return value
    if isinstance(value, Buffer):
        raise TypeError(f"kernel {kernel.name}: {name} is a Buffer: a check takes arrays, which it copies")
    view = as_view(value, device)
    shape = tuple(view.shape_array[:view.c.rank])
    strides = tuple(view.strides_array[:view.c.rank]) if view.strides_array else contiguous_strides(shape)
    _low, high = extent(shape, strides)
    if high and strides != contiguous_strides(shape):
        raise ValueError(f"kernel {kernel.name}: {name} has the strides {strides}: a check takes contiguous arrays")
    size = (high * lib.accrt_dtype_bits(view.c.dtype) + 7) // 8
    address = view.owner.address if view.c.buffer else view.c.data
    return _Guarded(name, written, view, ctypes.string_at(address, size) if size else b"")


def _run(kernel: Kernel, guarded: Sequence, memory: Sequence[_Guarded], sizes: Sequence[int], zone: int, flip: int, found: list[str],
         begin: Callable[[str], None], recorded: bool = False) -> list[bytes]:
    """One run, or two of a recorded list, as a captured graph is replayed; flip: changes what lies
    in arguments that are written only. What they hold then."""
    only_written = {p[2][0] for p, access in zip(kernel._places, kernel._accesses) if access == 2}
    replay = None
    for _again in range(2 if recorded else 1):
        if found:
            break
        for at, one in enumerate(memory):
            # each has another zone, so that a copy of one to another shows
            one.fill((zone + 29 * at) & 0xFF, bytes(byte ^ flip for byte in one.content) if flip and one.name in only_written else one.content)
        begin("")
        if recorded:
            replay = replay or _recorded(kernel, guarded, sizes)
            replay()
        else:
            _direct(kernel, guarded, sizes)
        _look_around(memory, found)
    return [one.bytes() for one in memory]


def _look_around(memory: Sequence[_Guarded], found: list[str]) -> None:
    for one in memory:
        outside = one.outside()
        if outside:
            found.append(f"writes outside of {one.name}: {outside}")
        if not one.written and one.bytes() != one.content:
            found.append(f"writes {one.name}, which is declared as read: byte {_differs(one.bytes(), one.content)}")


def _direct(kernel: Kernel, guarded: Sequence, sizes: Sequence[int]) -> None:
    if 0 not in sizes:
        _kernel_call.call(kernel, guarded, sizes, None, {})


def _recorded(kernel: Kernel, guarded: Sequence, sizes: Sequence[int]) -> Callable[[], None]:
    """What runs a list with the kernel."""
    from .kernels import Commands
    pack = kernel.pack
    stream = Stream(pack.device if pack.device is not None else pack.instance.device("host"))
    if 0 in sizes:
        return stream.synchronize
    table, keep = _kernel_call.arguments(kernel, guarded, stream.device)
    commands = Commands(stream.device)
    passed(lib.accrt_commands_dispatch(commands.handle, kernel.handle, (ctypes.c_uint32 * 3)(*sizes), table, len(guarded), ctypes.sizeof(table) // max(len(table), 1),
                                       None, None))
    commands.finalize()

    def replay(_keep: Any = keep) -> None:
        commands.submit(stream)
        stream.synchronize()

    return replay


def _compare(found: list[str], memory: Sequence[_Guarded], before: Sequence[bytes], after: Sequence[bytes], text: str) -> None:
    if found:
        return
    for one, a, b in zip(memory, before, after):
        if a != b:
            found.append(text.format(name=one.name, at=_differs(a, b)))


def _differs(a: bytes, b: bytes) -> int:
    return next(at for at, (x, y) in enumerate(zip(a, b)) if x != y)


def _empty(kernel: Kernel, given: Sequence, begin: Callable[[str], None]) -> list[str]:
    """The kernel with arguments without elements and sizes of 0, in one workgroup, as a grid that
    is rounded up has it."""
    if not any(kind == "symbol" for _name, kind, _size in kernel._parameters):
        return []
    guarded: list[Any] = []
    for place, one in zip(kernel._places, given):
        if isinstance(one, _Guarded):
            one = _Guarded(one.name, one.written, one.like, b"")
            one.like = View(None, None, 0, one.like.c.dtype, (0,) * max(one.like.c.rank, 1), None, None)
        guarded.append(0 if place[2][1] == "symbol" else one)
    found: list[str] = []
    try:
        _run(kernel, guarded, [one for one in guarded if isinstance(one, _Guarded)], (1, 1, 1), 0xA5, 0, found, lambda _: begin("sizes of 0"))
    except Exception as error:  # noqa: BLE001 - what the kernel says of it
        return [f"refuses its arguments: {error}, with sizes of 0"]
    return [f"{line}, with sizes of 0" for line in found]
