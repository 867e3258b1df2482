"""Types of less than 8 bits, between numpy and the runtime. An array of ml_dtypes' int4, uint4 or
float4_e2m1fn has one element in each byte, in its low bits. The runtime's i4, u4 and f4e2m1 have
two: of elements in row-major order the first has the low bits, and rows are not filled up. So they
go in and out by a copy.

Nothing here loads the library.
"""
from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

from . import _values

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .tensor import Tensor

FROM_ML_DTYPES = {"int4": "i4", "uint4": "u4", "float4_e2m1fn": "f4e2m1"}
_ML_DTYPES = {v: k for k, v in FROM_ML_DTYPES.items()}
_PLAIN = {"i4": "int8", "u4": "uint8", "f4e2m1": "float32"}


def type_of(value: Any) -> str:
    """The runtime's type of an array of such elements; "" of others."""
    own = getattr(value, "dtype", None)
    return FROM_ML_DTYPES.get(getattr(own, "name", ""), "") if is_of_ml_dtypes(own) else ""


def is_of_ml_dtypes(dtype: Any) -> bool:
    return getattr(getattr(dtype, "type", None), "__module__", "") == "ml_dtypes"


def packed(array: NDArray[Any]) -> bytes:
    """The elements, two in a byte."""
    import numpy
    bits = numpy.frombuffer(array.tobytes(), numpy.uint8) & 15
    if bits.size % 2:
        bits = numpy.append(bits, numpy.uint8(0))
    return bytes(bits[::2] | bits[1::2] << 4)


def bits_of(tensor: Tensor) -> NDArray[Any]:
    """The bits of each element of a tensor, wherever it lies, in an uint8 of its own."""
    import numpy
    if tensor.size == 0:
        return numpy.empty(tensor.shape, numpy.uint8)
    low, high = _values._reach(tensor.shape, tensor.strides)
    low -= low % 2  # to a whole byte
    begin = tensor.offset_bytes + low // 2
    data = numpy.frombuffer(tensor.buffer.read(begin, tensor.offset_bytes + (high + 1) // 2 - begin), numpy.uint8)
    flat = numpy.stack([data & 15, data >> 4], axis=-1).reshape(-1)
    view = numpy.lib.stride_tricks.as_strided(flat[-low:], tensor.shape, tensor.strides, writeable=False)
    return numpy.array(view)


class _Described(ctypes.Structure):
    """DLManagedTensorVersioned from its tensor on, which is at 32, without what lies behind
    strides."""

    _fields_ = [("data", ctypes.c_void_p), ("device", ctypes.c_int32 * 2), ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
                ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64))]


def give_pairs(managed: int) -> None:
    """Describes an export of f4e2m1 in DLPack 1 as torch has it, where that is possible: two
    elements of the last dimension are one of two lanes. The same is in native/offer.c."""
    tensor = _Described.from_address(managed + 32)
    sizes, last = tensor.shape[:tensor.ndim], tensor.ndim - 1
    steps = tensor.strides[:tensor.ndim]
    if last < 0 or sizes[last] % 2 or (steps[last] != 1 and sizes[last]):
        return
    if 0 not in sizes and any(step % 2 and size > 1 for size, step in zip(sizes[:last], steps)):
        return
    tensor.lanes = 2
    tensor.shape[last] //= 2
    for i in range(last):
        tensor.strides[i] //= 2


def values(tensor: Tensor) -> NDArray[Any]:
    """The values, in a type of numpy's that has them all."""
    import numpy
    decode = _values._DECODERS[tensor.dtype][1]
    chosen: NDArray[Any] = numpy.array([decode(i) for i in range(16)], _PLAIN[tensor.dtype])[bits_of(tensor)]
    return chosen


def array(tensor: Tensor, wanted: Any, copy: bool | None) -> NDArray[Any]:
    """What numpy gets: ml_dtypes' type, or the type that is wanted, by value.

    Raises:
        TypeError: no type is wanted, and there is no ml_dtypes. ValueError: copy=False.
    """
    import numpy
    name = _ML_DTYPES[tensor.dtype]
    if copy is False:
        raise ValueError(f"{tensor.dtype} comes to numpy by a copy: two elements of it are in a byte")
    if wanted is not None and wanted.name != name:
        return values(tensor).astype(wanted)
    try:
        import ml_dtypes
    except ImportError:
        raise TypeError(f"numpy has no type for {tensor.dtype}: tolist() has the values, and so has numpy.asarray(t, numpy.{_PLAIN[tensor.dtype]}); "
                        "ml_dtypes has the type") from None
    bits: NDArray[Any] = numpy.asarray(bits_of(tensor).view(getattr(ml_dtypes, name)))
    return bits
