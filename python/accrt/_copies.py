"""Arguments that the runtime cannot take as they lie in memory, copied into a form that it takes:
what `copy=True` does.

It needs no numpy: arrays are read through the buffer protocol or their array interface.
"""
from __future__ import annotations

import ctypes
import functools
import math
import struct
from typing import Any, Callable, Sequence

from . import _ffi, _nibbles
from ._bits import refuse_masked
from ._library import check, describe, lib, shown
from ._library import struct as struct_of
from .memory import Pool
from .tensor import (_CODES, _CPU, _DLPACK_NAME, _FROM_CODE, _NAMES, DTYPES, Tensor, View, _array_dtype, _pyapi, _same_size, as_view,
                     contiguous_strides, dtype_id, extent, from_dlpack)

_ALIGNMENT = 64
_HOST = (_CPU, 0)


def _owned(data, dtype: int, shape: Sequence[int]) -> View:
    """A View of aligned memory of its own with these bytes."""
    size = len(data)
    memory = (ctypes.c_char * (size + _ALIGNMENT))()
    address = -(-ctypes.addressof(memory) // _ALIGNMENT) * _ALIGNMENT
    ctypes.memmove(address, bytes(data), size)
    return View(None, address, 0, dtype, shape, None, memory)


def _swapped(data: bytes, bytes_each: int) -> bytes:
    """Each element's bytes in the other order."""
    if bytes_each == 1:
        return data
    swapped = bytearray(len(data))
    for i in range(bytes_each):
        swapped[i::bytes_each] = data[bytes_each - 1 - i::bytes_each]
    return bytes(swapped)


def fits(view: View) -> bool:
    """Whether the runtime takes it as it lies: contiguous, and aligned."""
    tensor = view.c
    shape = view.shape_array[:tensor.rank]
    if view.strides_array is not None and 0 not in shape:
        wanted = contiguous_strides(shape)
        if any(d != 1 and s != w for d, s, w in zip(shape, view.strides_array, wanted)):
            return False
    size = lib.accrt_dtype_bits(tensor.dtype) // 8
    for d in shape:
        size *= d
    least = 16 if size >= 16 else max(lib.accrt_dtype_bits(tensor.dtype) // 8, 1)
    begin = tensor.data or 0
    if tensor.buffer:
        info = struct_of(_ffi.accrt_buffer_info)
        check(lib.accrt_buffer_info(tensor.buffer, ctypes.byref(info)))
        begin = info.device_address + tensor.offset_bytes
    return begin % least == 0


def _from_interface(value: Any, dtype: int | None) -> View:
    typestr, shape = value.__array_interface__["typestr"], value.__array_interface__["shape"]
    half = _nibbles.type_of(value)
    if half and dtype in (None, DTYPES[half]):
        return _owned(_nibbles.packed(value), DTYPES[half], shape)
    data = value.tobytes()  # in C order, whatever the strides
    if typestr[0] == ">":
        data, typestr = _swapped(data, int(typestr[2:])), "<" + typestr[1:]
    return _owned(data, _array_dtype(value, typestr, dtype), shape)


def _from_memory(raw: memoryview, dtype: int | None) -> View:
    order, code = (raw.format[0], raw.format[1:]) if raw.format[:1] in "@=<>!" else ("@", raw.format)
    known = _FROM_CODE.get(code)
    if known is None:
        raise TypeError(f"buffers of format {raw.format!r} are not supported")
    known = _same_size(known if dtype is None else dtype, 8 * raw.itemsize, f"a buffer of format {raw.format!r}")
    data = raw.tobytes()
    return _owned(_swapped(data, raw.itemsize) if order in ">!" else data, known, raw.shape)


def _gathered(data: memoryview, shape: Sequence[int], strides: Sequence[int], at: int, size: int) -> bytes:
    """Elements of `size` bytes in C order; strides and `at` in bytes."""
    if not shape:
        return bytes(data[at:at + size])
    return b"".join(_gathered(data, shape[1:], strides[1:], at + i * strides[0], size) for i in range(shape[0]))


def _from_tensor(tensor: Tensor, dtype: int | None) -> View:
    bits = lib.accrt_dtype_bits(DTYPES[tensor.dtype])
    if bits % 8:
        raise TypeError(f"a tensor of {tensor.dtype} with strides {list(tensor.strides)} cannot be copied element by element")
    size = bits // 8
    lows = [min(0, (d - 1) * s) for d, s in zip(tensor.shape, tensor.strides)]
    highs = [max(0, (d - 1) * s) for d, s in zip(tensor.shape, tensor.strides)]
    empty = 0 in tensor.shape
    begin, reach = (0, 0) if empty else (sum(lows), sum(highs) - sum(lows) + 1)
    data = tensor.buffer.read(tensor.offset_bytes + begin * size, reach * size)
    strides = [s * size for s in tensor.strides]
    gathered = b"" if empty else _gathered(memoryview(data).cast("B"), tensor.shape, strides, -begin * size, size)
    known = DTYPES[tensor.dtype]
    return _owned(gathered, known if dtype is None else _same_size(dtype, bits, f"a tensor of {tensor.dtype}"), tensor.shape)


def _flat(value: Any, shape: list[int], depth: int, out: list[Any], path: str) -> None:
    """Appends the numbers of nested lists; every list of one depth is as long as the first."""
    if not isinstance(value, (list, tuple)):
        if depth != len(shape):
            raise ValueError(f"{path} is a number, and others at its depth are lists")
        out.append(value)
        return
    if depth == len(shape):
        if out:
            raise ValueError(f"{path} is a list, and others at its depth are numbers")
        shape.append(len(value))
    elif len(value) != shape[depth]:
        raise ValueError(f"{path} has {len(value)} elements, the first list of its depth has {shape[depth]}")
    for i, item in enumerate(value):
        _flat(item, shape, depth + 1, out, f"{path}[{i}]")


def _bf16(value: Any) -> bytes:
    """Nearest, ties to even. OverflowError for a finite number that would become infinite."""
    near = struct.pack("<f", value)
    bits, (single,), value = int.from_bytes(near, "little"), struct.unpack("<f", near), float(value)
    if single != single:
        return b"\xc0\x7f"
    if bits & 0xFFFF == 0x8000 and single != value:  # only the rounding to f32 made it a tie
        bits += 1 if abs(value) > abs(single) else -1
    bits = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    if bits & 0x7FFF == 0x7F80 and not math.isinf(single):
        raise OverflowError("too large for bf16")
    return bits.to_bytes(2, "little")


def _bool(value: Any) -> bytes:
    """True, False, 1 and 0: the others would become True."""
    if isinstance(value, (str, bytes)) or not (value == 0 or value == 1):
        raise TypeError("neither True nor False")
    return b"\1" if value else b"\0"


_PACKERS: dict[str, Callable[[Any], bytes]] = {"bf16": _bf16, "bool": _bool}
_WRONG = (struct.error, OverflowError, TypeError, ValueError)


def _first_wrong(numbers: list[Any], shape: Sequence[int], pack: Callable[[Any], bytes]) -> str:
    """The first element that is no number of this type: where it is, and what."""
    for i, number in enumerate(numbers):
        try:
            pack(number)
        except _WRONG:
            place = ""
            for size in reversed(shape):
                i, at = divmod(i, size)  # noqa: PLW2901
                place = f"[{at}]{place}"
            more = "; numpy.array makes one array of a list of arrays" if hasattr(number, "__array__") else ""
            return f"element {place} is {shown(number)}{more}" if place else f"it is {shown(number)}{more}"
    return ""


def _from_numbers(value: Any, dtype: int) -> View:
    shape: list[int] = []
    numbers: list[Any] = []
    _flat(value, shape, 0, numbers, "the list")
    name = _NAMES[dtype]
    code = _CODES.get(name, "")
    pack = _PACKERS.get(name)
    if not code and pack is None:
        raise TypeError(f"lists of {name} are not supported: pass its bits as an array")
    try:
        data = b"".join(map(pack, numbers)) if pack is not None else struct.pack(f"<{len(numbers)}{code}", *numbers)
    except _WRONG as error:
        wrong = _first_wrong(numbers, shape, pack or functools.partial(struct.pack, "<" + code))
        raise ValueError(f"the list does not fit {name}: {wrong or error}") from None
    return _owned(data, dtype, shape)


def copied_view(value: Any, device, dtype: int | None, declared: str, stream=None) -> View:
    """The C tensor for an argument, of a copy where the runtime cannot take what is given.

    Args:
        dtype: as for as_view. declared: the argument's own type, which numbers of lists become.
    """
    if isinstance(value, (list, tuple, bool, int, float)):
        return _from_numbers(value, dtype_id(declared) if dtype is None else dtype)
    refuse_masked(value)
    try:
        view = as_view(value, device, dtype, stream)
        if fits(view):
            return view
    except (TypeError, ValueError, BufferError):
        if not _copyable(value):
            raise
    if isinstance(value, Tensor):
        return _from_tensor(value, dtype)
    if hasattr(value, "__array_interface__") and hasattr(value, "tobytes"):
        return _from_interface(value, dtype)
    try:
        raw = memoryview(value)
    except TypeError:
        if hasattr(value, "__dlpack__"):
            return _from_tensor(from_dlpack(value, device, stream), dtype)
        if hasattr(value, "__cuda_array_interface__"):
            from ._cuda_arrays import from_cuda_array  # circular
            return _from_tensor(from_cuda_array(value, device, stream), dtype)
        raise TypeError(f"{describe(value)} cannot be copied") from None
    return _from_memory(raw, dtype)


def _copyable(value: Any) -> bool:
    if hasattr(value, "__array_interface__") and hasattr(value, "tobytes"):
        return True
    try:
        memoryview(value)
    except TypeError:
        return False
    return True


def copies(value: Any) -> bool:
    """Whether a copy would be taken where `value` is not: what it is can be copied, and of a type
    that the runtime has."""
    if isinstance(value, (list, tuple, bool, int, float, Tensor)):
        return True
    if hasattr(value, "__array_interface__"):
        try:
            refuse_masked(value)
            typestr = value.__array_interface__["typestr"]
            if _nibbles.type_of(value):
                return True
            _array_dtype(value, "<" + typestr[1:] if typestr[:1] == ">" else typestr, None)
        except (TypeError, KeyError):
            return False
        return True
    try:
        return memoryview(value).format.lstrip("@=<>!") in _FROM_CODE
    except (TypeError, BufferError):
        return hasattr(value, "__dlpack__")


_IS_COPIED = 2  # DLPack's flag, of a managed tensor whose flags are at byte 24


def given_copy(tensor: Tensor, own: tuple[int, int], target: tuple[int, int], copy: bool | None, max_version: Any) -> Any:
    """The DLPack capsule of a copy in the memory of the tensor's device or the host: what
    `Tensor.__dlpack__` gives with copy=True, or for another device."""
    if target not in (own, _HOST):
        raise BufferError(f"the tensor is on device {own}, and copies are made there or on (1, 0), not on {target}")
    if copy is False:
        raise BufferError(f"the tensor is on device {own}, not {target}, and copy=False forbids a copy")
    backwards = runs_backwards(tensor)
    if backwards and target != _HOST:
        raise BufferError(f"a tensor with negative strides is copied to the host alone: pass dl_device={_HOST}")
    made = forwards(tensor) if backwards else _copy_to(tensor, "host" if target == _HOST else "device")
    capsule = made.__dlpack__(max_version=max_version)
    if max_version is not None and tuple(max_version) >= (1, 0):
        flags = ctypes.c_uint64.from_address(_pyapi.PyCapsule_GetPointer(capsule, _DLPACK_NAME) + 24)
        flags.value |= _IS_COPIED
    return capsule


def runs_backwards(tensor: Tensor) -> bool:
    """Whether a stride is negative, which torch has not: it ends the process where it gets one."""
    return any(stride < 0 and size > 1 for size, stride in zip(tensor.shape, tensor.strides))


def forwards(tensor: Tensor) -> Tensor:
    """The same values in order, in memory of the host's."""
    try:
        import numpy
    except ImportError:
        raise BufferError("a tensor with negative strides is exported by a copy, which needs numpy") from None
    if lib.accrt_dtype_bits(DTYPES[tensor.dtype]) < 8:
        raise BufferError(f"a tensor of {tensor.dtype} with negative strides is not exported: copy it first")
    made = host_copy(tensor)
    ordered = numpy.ascontiguousarray(made.numpy())
    buffer = Pool(tensor.buffer.device, "host").buffer(max(ordered.nbytes, 1))
    buffer.memoryview()[:ordered.nbytes] = ordered.reshape(-1).view(numpy.uint8).data
    return Tensor._of(buffer, DTYPES[tensor.dtype], tensor.shape, contiguous_strides(tensor.shape), 0)


def host_copy(tensor: Tensor) -> Tensor:
    """The same values and strides in memory of the host's, which may be written."""
    return _copy_to(tensor, "host")


def _copy_to(tensor: Tensor, kind: str) -> Tensor:
    """The same values and strides in memory of this kind, of the tensor's device. The copy is over
    when this returns, so no consumer has to wait for it."""
    device = tensor.buffer.device
    if device is None:
        raise BufferError("this memory does not know its device, so there is nowhere to copy it to")
    low, high = extent(tensor.shape, tensor.strides)
    bits = lib.accrt_dtype_bits(DTYPES[tensor.dtype])
    begin = tensor.offset_bytes + low * bits // 8
    size = tensor.offset_bytes + (high * bits + 7) // 8 - begin
    buffer = Pool(device, kind).buffer(max(size, 1))
    if buffer.host_pointer is not None:
        buffer.memoryview()[:size] = tensor.buffer.read(begin, size)
    elif size:
        from .stream import Stream  # circular: streams know buffers
        tensor.buffer._settle()
        stream = Stream(device)
        stream.copy(tensor.buffer, buffer, size, source_offset=begin)
        stream.synchronize()
    return Tensor._of(buffer, DTYPES[tensor.dtype], tensor.shape, tensor.strides, tensor.offset_bytes - begin)
