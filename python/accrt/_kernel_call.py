"""Calling a kernel directly: what it is given is checked, each by what the kernel declares, then
launched, then waited for."""
from __future__ import annotations

import ctypes
import struct as _struct
from operator import index as _index
from typing import TYPE_CHECKING, Any, Mapping, Sequence

from . import _ffi
from ._library import describe, lib, need, number
from .errors import Error, InvalidStateError
from .memory import Buffer
from .stream import Stream
from ._incoming import META
from .tensor import _NAMES, Tensor, View

if TYPE_CHECKING:
    from .instance import Device
    from .kernels import Kernel

_CODES = {"f16": "e", "i8": "b", "u8": "B", "bool": "?", "i16": "h", "u16": "H", "i32": "i", "u32": "I", "f32": "f", "i64": "q", "u64": "Q", "f64": "d"}
_GRID, _ARGUMENT_BYTES = ctypes.c_uint32 * 3, ctypes.sizeof(_ffi.accrt_kernel_argument)
_IDLE = 8  # streams that a kernel keeps for its next calls


def call(kernel: Kernel, given: Sequence, grid: Any, stream: Stream | None, named: Mapping[str, Any]) -> None:
    """One launch. Without a stream it is waited for."""
    values = ordered(kernel, given, named)
    if stream is not None:
        need(stream, Stream)
    own = None  # a stream of this call alone is waited for
    if stream is None:
        stream = _borrowed(kernel, values)
        own = taken(kernel) if stream is None else None
    where = stream if stream is not None else own
    table, keep = arguments(kernel, values, where.device, where)
    sizes = _sizes(kernel, values, grid)
    if 0 in sizes:  # of what the kernel's own grid says of nothing
        give(kernel, own)
        return
    try:
        where._enqueue(keep, lib.accrt_stream_launch, kernel.handle, _GRID(*sizes), table, len(kernel._accesses),
                       _ARGUMENT_BYTES)
    except InvalidStateError:
        if own is not None:
            raise
        _into_graph(kernel, where, sizes, table, keep)
    except Error:
        kernel._borrowed.clear()  # a stream that has failed is not used again
        raise
    if own is not None:
        own.synchronize()  # the same: neither one that is not waited for to its end
        give(kernel, own)


_in_graphs: list = []  # packs whose code is in graphs of others, whose end is not reported


def _into_graph(kernel: Kernel, stream: Stream, sizes: Sequence[int], table: Any, keep: Any) -> None:
    """The stream's owner captures it: a list becomes part of its graph, which a single launch does
    not."""
    from .kernels import Commands
    commands = Commands(stream.device)
    commands._record(keep, lib.accrt_commands_dispatch, kernel.handle, _GRID(*sizes), table, len(kernel._accesses), _ARGUMENT_BYTES, None)
    commands.finalize().submit(stream)
    if kernel._owner not in _in_graphs:
        _in_graphs.append(kernel._owner)


def _borrowed(kernel: Kernel, values: Sequence) -> Stream | None:
    """The stream of the library whose tensors are given, of a kernel of a GPU."""
    if kernel._pack.device is None:
        return None
    from ._kernel_gpu import borrowed
    return borrowed(kernel, values, kernel._pack.device)


def taken(kernel: Kernel) -> Stream:
    try:
        return kernel._idle.pop()
    except IndexError:
        pack = kernel._pack
        return Stream(pack.device if pack.device is not None else pack.instance.device("host"))


def give(kernel: Kernel, own: Stream | None) -> None:
    if own is not None and len(kernel._idle) < _IDLE:
        kernel._idle.append(own)


def ordered(kernel: Kernel, given: Sequence, named: Mapping[str, Any]) -> list:
    """The arguments in the kernel's order."""
    names = [name for name, _kind, _size in kernel._parameters]
    listed = f"kernel {kernel.name} takes {len(names)} arguments ({', '.join(names)})"
    if len(given) > len(names):
        raise TypeError(f"{listed}, {len(given) + len(named)} were given")
    found = dict(zip(names, given))
    for name, value in named.items():
        if name not in names:
            raise TypeError(f"{listed}, and none is named {name!r}")
        if name in found:
            raise TypeError(f"{listed}, and {name} was given twice")
        found[name] = value
    missing = [name for name in names if name not in found]
    if missing:
        raise TypeError(f"{listed}, {', '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing")
    return [found[name] for name in names]


def arguments(kernel: Kernel, values: Sequence, device: Device, stream: Stream | None = None):
    """The C array, and what keeps its memory alive, with each value checked by the type that the
    kernel declares."""
    table, keep = type(kernel._template).from_buffer_copy(kernel._template), [kernel._owner]
    more = kernel._aligns or (1,) * len(values)
    for entry, value, place, dtype, align in zip(table, values, kernel._places, kernel._types or [""] * len(values), more):
        what = f"kernel {kernel.name}: {place[2][0]}"
        if place[0] and dtype:
            entry.value = _scalar(what, value, dtype)
            continue
        if not place[0]:
            _refuse_elsewhere(what, value, device)
        try:
            kept = kernel._argument(entry, value, place, device, stream)
        except (TypeError, ValueError, OverflowError, BufferError) as error:
            if what not in str(error):
                error.args = (f"{what}: {error}",)
            raise
        if kept is not None:
            keep.append(kept)
        if not place[0]:
            _check_memory(what, value, kept, dtype, device, align)
    return table, keep


def _scalar(what: str, value: Any, dtype: str) -> int:
    code = _CODES[dtype]
    try:
        if dtype[0] != "f":
            value = _truth(value) if dtype == "bool" else _index(value)
        elif isinstance(value, (str, bytes)):
            raise TypeError("a str is no number")
        else:
            value = float(value)
        return int.from_bytes(_struct.pack("<" + code, value), "little")
    except (TypeError, ValueError) as error:
        raise TypeError(f"{what} is {value!r:.80}, expected a number of type {dtype}: {error}") from None
    except (_struct.error, OverflowError):
        raise OverflowError(f"{what} is {value!r:.80}, which does not fit {dtype}") from None


def _truth(value: Any) -> bool:
    """A bool, numpy's too, or the number 0 or 1; "no" and None have a truth value, and are none."""
    found = value if isinstance(value, bool) else _index(value.item() if hasattr(value, "item") else value)
    if found not in (0, 1):
        raise ValueError("only 0 and 1 are")
    return bool(found)


def _refuse_elsewhere(what: str, value: Any, device: Device) -> None:
    """Memory of a GPU given to a kernel of a host, or the other way round, before the library is
    called."""
    ask = getattr(value, "__dlpack_device__", None)
    if not callable(ask):
        return
    if getattr(value, "is_meta", False) is True:
        raise BufferError(f"{what}: {META}")
    try:
        found, index = map(int, ask())
    except (ValueError, RuntimeError, BufferError) as error:  # torch's, of tensors that are none
        raise BufferError(f"{what}: {str(error).partition(chr(10))[0]}") from None
    here, own = device.info.dlpack_device
    if {found, here} == {1, 2}:
        # as DLPack numbers hosts and CUDA; memory of both kinds has numbers of its own
        raise ValueError(f"{what} lies on {'a GPU' if here == 1 else 'the host'}, and the kernel runs on {device.name}")
    if found == here == 2 and index != own:
        raise ValueError(f"{what} lies on cuda:{index}, and the kernel runs on {device.name}")


def _check_memory(what: str, value: Any, kept: Any, dtype: str, device: Device, more: int) -> None:
    """Element type, alignment and device of a tensor; a Buffer is bytes."""
    view = kept[0] if isinstance(kept, tuple) else kept
    if value is None or isinstance(value, Buffer) or not isinstance(view, View):
        return
    owner = value if isinstance(value, Tensor) else view.owner
    if isinstance(owner, Tensor) and owner.buffer.device.name != device.name:
        raise ValueError(f"{what} lies on {owner.buffer.device.name}, and the kernel runs on {device.name}")
    found = _NAMES[view.c.dtype]
    if dtype and found != dtype:
        raise TypeError(f"{what} has elements of type {found}, and the kernel takes {dtype}")
    align = max(lib.accrt_dtype_bits(view.c.dtype) // 8, 1)
    address = owner.address if isinstance(owner, Tensor) else view.c.offset_bytes if view.c.buffer else view.c.data or 0
    if more > align and address % more:
        raise ValueError(f"{what}: its address is no multiple of the {more} bytes that it was compiled for")
    if address % align:
        raise ValueError(f"{what}: its address is no multiple of the {align} bytes of {found}: pass a copy")


def _sizes(kernel: Kernel, values: Sequence, grid: Any) -> tuple[int, ...]:
    own, where = kernel._grid, f"kernel {kernel.name}: grid"
    if grid is not None:
        sizes = grid if isinstance(grid, (tuple, list)) else (grid,)
        least = 1
    elif own is None:
        raise TypeError(f"{where} is missing: say how many workgroups in x, y, z, as grid=(4, 1, 1)")
    else:
        known = {p[2][0]: value for p, value in zip(kernel._places, values) if p[0]}
        try:
            sizes = own(known)
        except KeyError as error:
            raise KeyError(f"{where} asks for {error}; it gets {', '.join(known) or 'nothing'}") from error
        sizes = sizes if isinstance(sizes, (tuple, list)) else (sizes,)
        least = 0
    if not 1 <= len(sizes) <= 3 or not all(hasattr(size, "__index__") for size in sizes):
        given = sizes[0] if len(sizes) == 1 else sizes
        raise TypeError(f"{where} is {given!r:.80}, expected 1 to 3 whole numbers, workgroups in x, y, z" if sizes is not None else describe(sizes))
    found = [_index(size) for size in sizes]
    if min(found) < least:
        raise ValueError(f"{where} is {tuple(found)}: each size is {least} or more")
    return tuple(number(size, where, 32) for size in (*found, 1, 1)[:3])
