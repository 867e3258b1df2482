"""numpy and the types that it lacks: bf16 and 8-bit floats, which it holds as their bits, or as
ml_dtypes' types where that package is.

Nothing here loads the library.
"""
from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from . import _values

if TYPE_CHECKING:
    from numpy.typing import NDArray

FROM_ML_DTYPES = {"bfloat16": "bf16", "float8_e4m3fn": "f8e4m3fn", "float8_e5m2": "f8e5m2", "float8_e8m0fnu": "f8e8m0"}
ML_DTYPES = {v: k for k, v in FROM_ML_DTYPES.items()}
#: numpy's types of the bits of those.
BIT_TYPES = {name: "<u2" if name == "bf16" else "|u1" for name in ML_DTYPES}

#: Values of all bits of an 8-bit type, as numpy arrays.
_tables: "dict[str, NDArray[Any]]" = {}


class Interface:
    """An array interface with its owner. numpy keeps it as the base of every view: `bits_of` finds
    the type there."""

    __slots__ = ("__array_interface__", "owner", "dtype")

    def __init__(self, interface: "dict[str, Any]", owner: object, dtype: str) -> None:
        self.__array_interface__, self.owner, self.dtype = interface, owner, dtype


def bits_of(array: Any) -> str:
    """The type without a name in numpy ("bf16") whose bits an array has, since it is the memory of
    such a Tensor or Weight; "" of others: their numbers may be numbers."""
    base, typestr = array, getattr(array, "__array_interface__", {}).get("typestr", "")
    while base is not None and not isinstance(base, Interface):
        base = getattr(base, "base", None)
    return base.dtype if base is not None and BIT_TYPES.get(base.dtype) == typestr else ""


def with_bits(array: NDArray[Any], dtype: str) -> NDArray[Any]:
    """The same bits in an array whose base says of which type they are."""
    import numpy
    return numpy.asarray(Interface(array.__array_interface__, array, dtype))


def as_ml_dtype(array: NDArray[Any], dtype: str) -> NDArray[Any]:
    """Bits as ml_dtypes' type where that package is there; other types as they are."""
    name = ML_DTYPES.get(dtype)
    if name is None:
        return array
    try:
        import ml_dtypes
    except ImportError:
        return array
    return array.view(getattr(ml_dtypes, name))


def decoded(bits: NDArray[Any], dtype: str) -> NDArray[Any]:
    """The values of bits of bf16 or an 8-bit float, in f32."""
    import numpy
    if dtype == "bf16":
        # numpy 1 widens a scalar that is shifted.
        wide: NDArray[Any] = numpy.asarray(bits.astype(numpy.uint32) << 16, numpy.uint32)
        return wide.view(numpy.float32)
    if dtype not in _tables:
        decode = _values._DECODERS[dtype][1]
        _tables[dtype] = numpy.array([decode(i) for i in range(256)], numpy.float32)
    values: NDArray[Any] = _tables[dtype][bits]
    return values


def float_array(array: Any, what: str) -> NDArray[Any]:
    """A contiguous f32 array of what a caller gives as floats.

    Raises:
        TypeError: a masked array, or uint16 and uint8, which may be the bits of floats, unless they
            are known to be.
    """
    import numpy
    refuse_masked(array)
    known = bits_of(array)
    if known:
        return decoded(array, known)
    dtype = getattr(array, "dtype", None)
    if isinstance(dtype, numpy.dtype) and dtype.name in ("uint16", "uint8"):
        raise TypeError(f"{what} is an array of {dtype.name}, whose numbers may be the bits of bf16 or f8: pass floats. Of bits of bf16: "
                        "(array.astype(numpy.uint32) << 16).view(numpy.float32); of integers: array.astype(numpy.float32)")
    return numpy.ascontiguousarray(array, numpy.float32)


def refuse_masked(value: Any) -> None:
    """TypeError of numpy's masked arrays: their memory has the values under the mask, too."""
    if type(value).__name__ == "ndarray":
        return
    ma = sys.modules.get("numpy.ma")
    if ma is not None and isinstance(value, ma.MaskedArray):
        raise TypeError(f"a {type(value).__name__} has a mask, which would be lost: pass array.filled(value), or array.data with the "
                        "values under the mask")
