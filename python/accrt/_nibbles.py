"""Types of less than 8 bits, between numpy and the runtime. An array of ml_dtypes' int4, uint4 or
float4_e2m1fn has one element in each byte, in its low bits. The runtime's i4, u4 and f4e2m1 have
two: of elements in row-major order the first has the low bits, and rows are not filled up. So they
go in and out by a copy.

Nothing here loads the library.
"""
from __future__ import annotations

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
