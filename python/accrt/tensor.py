"""Tensors: views of device memory that numpy, torch, JAX and CuPy take without a copy. The way in
for theirs is in _incoming.py.

numpy is optional: without it, anything with the buffer protocol goes in, and results come out as
Tensors with `memoryview()`, `tolist()` and `__dlpack__`.
"""
from __future__ import annotations

import ctypes
import math
import sys
from operator import index as _index
from typing import TYPE_CHECKING, Any, Iterator, Sequence

from . import _fast, _ffi, _incoming, _nibbles, _values
from ._bits import BIT_TYPES, FROM_ML_DTYPES, ML_DTYPES, Interface, as_ml_dtype, refuse_masked, with_bits
from ._library import _State, _owner, check, describe, lib, need, never_raises
from ._incoming import (  # noqa: F401 - some are for others
    _PyBuffer, _array_dtype, _from_capsule, _given_back, _lent, _same_size, _taken, as_view, created_over, from_dlpack, host_bytes,
)
from ._views import (  # noqa: F401 - some are for others
    DTYPES, View, _CODES, _CPU, _CUDA, _DLPACK_NAME, _DLPACK_OLD_NAME, _FROM_CODE, _FROM_TYPESTR, _INTEGERS, _NAMES, _TYPESTR, _VIEW_CODES,
    _pyapi, contiguous_strides, dtype_id, extent,
)
from .errors import Error, OutOfRangeError
from .memory import Buffer

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

_retain_buffer = lib["accrt_buffer_retain"]  # of an address; a function object of its own
_retain_buffer.argtypes, _retain_buffer.restype = [ctypes.c_void_p], _owner("accrt_buffer")
#: What a Tensor of the quick way's gets when it is asked for (Tensor._unpack_result).
_PARTS = frozenset(("_buffer", "_pointer", "_offset_bytes", "_dtype", "_shape", "_strides", "_read_only", "_external"))


class Tensor:
    """A tensor in memory of the runtime. Results of functions are of this kind.

    numpy (`numpy.asarray`, `.numpy()`), torch and others (`from_dlpack`) use its memory without a
    copy, and functions of the runtime take it. It keeps its memory alive. `==`, `!=`, `<`, `<=`,
    `>`, `>=` compare by element and give numpy arrays of bool; `x in t` looks for a value. The hash
    is of the object, as torch's is.

    Attributes:
        shape (tuple[int, ...]). dtype (str): short name, "f32". strides (tuple[int, ...]): in
        elements. buffer (Buffer), offset_bytes (int): where it lies. read_only (bool): its producer
        (DLPack) forbids writing.
    """

    __slots__ = ("_buffer", "_pointer", "_offset_bytes", "_dtype", "_shape", "_strides", "_read_only", "_external", "_given", "_handle", "_owned", "__weakref__")

    def __init__(self, buffer: Buffer, dtype: str | int, shape: Sequence[int], strides: Sequence[int] | None = None,
                 offset_bytes: int = 0) -> None:
        self._pointer = need(buffer, Buffer)  # the memory, also when the buffer is closed
        self._buffer = buffer
        self._dtype = _NAMES[dtype_id(dtype)]
        self._shape = _numbers(shape, "shape")
        if any(d < 0 for d in self._shape):
            raise ValueError(f"shape is {self._shape}, which has a negative dimension")
        self._strides = _numbers(strides, "strides") if strides is not None else contiguous_strides(self._shape)
        self._offset_bytes = _index(offset_bytes)
        self._read_only = buffer.read_only
        self._external = None
        self._check_reach(buffer.size_bytes)

    @classmethod
    def _of(cls, buffer: Buffer, dtype: int, shape: Sequence[int], strides: Sequence[int], offset_bytes: int) -> Tensor:
        """What the library itself describes."""
        self = cls.__new__(cls)
        self._pointer, self._buffer, self._dtype = buffer._pointer, buffer, _NAMES[dtype]
        self._shape, self._strides, self._offset_bytes = tuple(shape), tuple(strides), offset_bytes
        self._read_only, self._external = buffer._read_only, None
        return self

    def _unpack_result(self) -> None:
        """What `_of` sets, from what the quick way has kept of a result. Two threads may do so at
        once: they find the same."""
        address, device, self._dtype, self._shape, self._strides, self._offset_bytes = object.__getattribute__(self, "_owned").parts()
        pointer = _retain_buffer(address)
        buffer = Buffer._of_pointer(pointer, device)
        self._read_only, self._external, self._pointer, self._buffer = False, None, pointer, buffer

    def _check_reach(self, size_bytes: int) -> None:
        """Every element lies inside the buffer."""
        if len(self._strides) != len(self._shape):
            raise ValueError(f"shape {self._shape} and strides {self._strides} have different lengths")
        low, high = extent(self._shape, self._strides)
        bits = lib.accrt_dtype_bits(DTYPES[self._dtype])
        begin = self._offset_bytes + low * bits // 8
        end = self._offset_bytes + (high * bits + 7) // 8
        if begin < 0 or self._offset_bytes < 0 or end > size_bytes:
            raise OutOfRangeError(f"{self._dtype}{list(self._shape)} with strides {list(self._strides)} at offset {self._offset_bytes} "
                                  f"reaches from byte {begin} to byte {end} of a buffer of {size_bytes} bytes")

    @property
    def buffer(self) -> Buffer:
        return self._buffer

    @property
    def offset_bytes(self) -> int:
        return self._offset_bytes

    @property
    def dtype(self) -> str:
        return self._dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return self._shape

    @property
    def strides(self) -> tuple[int, ...]:
        return self._strides

    @property
    def read_only(self) -> bool:
        return self._read_only

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        count = 1
        for d in self.shape:
            count *= d
        return count

    @property
    def nbytes(self) -> int:
        return (self.size * lib.accrt_dtype_bits(DTYPES[self.dtype]) + 7) // 8

    @property
    def address(self) -> int:
        """Device address of element 0."""
        return self.buffer.address + self.offset_bytes

    def view(self) -> View:
        return View(self._pointer, None, self.offset_bytes, DTYPES[self.dtype], self.shape, self.strides, self,
                    self.read_only)

    @property
    def __array_interface__(self) -> dict[str, Any]:
        if self.dtype not in _TYPESTR:
            # bits would pass for numbers: __array__ knows what is asked for
            raise AttributeError(f"numpy has no type for {self.dtype}")
        return self._interface(_TYPESTR[self.dtype])

    def _interface(self, typestr: str) -> dict[str, Any]:
        if self.buffer.host_pointer is None:
            raise AttributeError("this memory is not reachable from the host")
        self._buffer._settle()
        bytes_each = int(typestr[2:])
        return {"version": 3, "typestr": typestr, "shape": self.shape,
                "data": (self.buffer.host_pointer + self.offset_bytes, self.read_only),
                "strides": tuple(s * bytes_each for s in self.strides)}

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        typestr = _TYPESTR.get(self.dtype)
        if typestr is None or self.__dlpack_device__()[0] != _CUDA:
            raise AttributeError(f"{self.dtype} on device {self.__dlpack_device__()} has no CUDA array interface")
        bytes_each = int(typestr[2:])
        # 1 is the legacy default stream: the interface has no 0
        stream = self.buffer.stream.native or 1 if self.buffer.stream is not None else None
        return {"version": 3, "typestr": typestr, "shape": self.shape, "data": (self.address if self.size else 0, self.read_only),
                "strides": tuple(s * bytes_each for s in self.strides), "stream": stream}

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """A numpy array: of the memory itself where the host reaches it, else of a copy. bf16, f8
        and types of 4 bits come as `numpy()` says; as another dtype by value."""
        import numpy
        wanted = None if dtype is None else numpy.dtype(dtype)
        if self.dtype in _nibbles._PLAIN:
            return _nibbles.array(self, wanted, copy)
        typestr = self._numpy_typestr()
        if wanted is None or wanted == typestr or self.dtype in _TYPESTR:
            array = self._elements(typestr, copy)
            array = array if wanted is not None else as_ml_dtype(array, self.dtype)
        else:
            if copy is False:
                raise ValueError(f"{self.dtype} comes to numpy as {wanted} by a copy")
            array = _values.array(self) if wanted.name != ML_DTYPES.get(self.dtype) else self.numpy()
        if wanted is not None and array.dtype != wanted:
            return array.astype(wanted)
        return array.copy() if copy and self.buffer.host_pointer is not None else array

    def _elements(self, typestr: str, copy: bool | None = None) -> NDArray[Any]:
        """The elements, or their bits, as a numpy array, whose base says what type the bits are
        of."""
        import numpy
        if self.size == 0:
            return with_bits(numpy.empty(self.shape, typestr), self.dtype)
        if self.buffer.host_pointer is not None:
            return numpy.asarray(Interface(self._interface(typestr), self, self.dtype))
        if copy is False:
            raise ValueError("memory of a device comes to numpy by a copy")
        low, high = extent(self.shape, self.strides)
        bytes_each = int(typestr[2:])
        data = self.buffer.read(self.offset_bytes + low * bytes_each, (high - low) * bytes_each)
        near = numpy.ndarray(self.shape, typestr, data, -low * bytes_each, tuple(s * bytes_each for s in self.strides))
        return with_bits(near, self.dtype)

    def _numpy_typestr(self) -> str:
        typestr = _typestr(self.dtype)
        if typestr is None:
            raise TypeError(f"numpy has no type for {self.dtype}: tolist() has the values")
        return typestr

    def _read(self) -> memoryview:
        """Bytes of a contiguous tensor, wherever it lies."""
        if self.strides != contiguous_strides(self.shape):
            raise ValueError("the tensor is not contiguous")
        return self.buffer.read(self.offset_bytes, self.nbytes)

    def numpy(self) -> NDArray[Any]:
        """The tensor as a numpy array: it shares memory that the host reaches, and copies other
        memory. bf16 and f8 come as ml_dtypes' types when that package is there, else as their bits
        (uint16, uint8): `numpy.asarray(t, numpy.float32)` has the values either way. Types of 4
        bits come as a copy, of ml_dtypes' types, with an element in each byte."""
        return self.__array__()

    def __array_ufunc__(self, ufunc: numpy.ufunc, method: str, *inputs: Any, out: Any = (), **named: Any) -> Any:
        """numpy's functions calculate with the values, also of types that numpy has not."""
        if any(isinstance(one, Tensor) for one in out):
            return NotImplemented
        given = [_values.array(one) if isinstance(one, Tensor) else one for one in inputs]
        return getattr(ufunc, method)(*given, **named, **({"out": out} if out else {}))

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """torch asks this where one of its functions gets a Tensor of the package."""
        raise TypeError(f"torch's {getattr(function, '__name__', 'function')} takes torch's tensors, and this is an accrt.Tensor: torch.from_dlpack(t) makes one of it")

    # ---- comparison: by element, on the host

    def _compare(self, other: Any, ufunc: str) -> Any:
        other = _comparable(other)
        if other is NotImplemented:
            return NotImplemented
        try:
            import numpy
        except ImportError:
            raise ImportError("comparing a tensor needs numpy; without it compare what tolist() gives") from None
        return getattr(numpy, ufunc)(_values.array(self), _values.array(other) if isinstance(other, Tensor) else other)

    def __eq__(self, other: object) -> NDArray[numpy.bool_]:  # type: ignore[override]
        """By element and by value, with numpy's broadcasting; a numpy array of bool. `is` says
        whether two names are of one tensor.

        Raises:
            ValueError: shapes that do not broadcast. ImportError: there is no numpy.
        """
        return self._compare(other, "equal")

    def __ne__(self, other: object) -> NDArray[numpy.bool_]:  # type: ignore[override]
        return self._compare(other, "not_equal")

    def __lt__(self, other: object) -> NDArray[numpy.bool_]:
        return self._compare(other, "less")

    def __le__(self, other: object) -> NDArray[numpy.bool_]:
        return self._compare(other, "less_equal")

    def __gt__(self, other: object) -> NDArray[numpy.bool_]:
        return self._compare(other, "greater")

    def __ge__(self, other: object) -> NDArray[numpy.bool_]:
        return self._compare(other, "greater_equal")

    __hash__ = object.__hash__

    def __contains__(self, item: Any) -> bool:
        """Whether any element equals `item`; of an array, any element of what broadcasts."""
        found = self._compare(item, "equal")
        return found is not NotImplemented and bool(found.any())

    def memoryview(self) -> memoryview:
        """The elements of a contiguous tensor as a memoryview, without a copy. For types that
        memoryview lacks (f16 before Python 3.12) it has the bytes."""
        if self.strides != contiguous_strides(self.shape):
            raise ValueError("the tensor is not contiguous")
        self._buffer._settle()
        raw = self.buffer.memoryview()[self.offset_bytes:self.offset_bytes + self.nbytes]
        raw = raw.toreadonly() if self.read_only else raw
        code = _VIEW_CODES.get(self.dtype)
        if code is None or self.size == 0:
            return raw
        return raw.cast(code, self.shape) if self.shape else raw.cast(code)

    def tolist(self) -> Any:
        """The elements as nested lists of numbers; for a tensor without dimensions, one number. It
        works for all strides and all memory."""
        if self.dtype not in _VIEW_CODES or self.size == 0 or self.strides != contiguous_strides(self.shape):
            return _values.nested(self)
        raw = self._read()
        code = _VIEW_CODES[self.dtype]
        return raw.cast(code, self.shape).tolist() if self.shape else raw.cast(code)[0]

    def item(self) -> _values.Number:
        """The value of a tensor with one element, as a Python number."""
        if self.size != 1:
            raise ValueError(f"item() of a tensor with {self.size} elements")
        return self._value("item()")

    def _value(self, what: str) -> _values.Number:
        if self.size != 1:
            raise ValueError(f"{what} of a tensor of shape {list(self.shape)}: it takes one element, and this one has {self.size}")
        value: _values.Number = _values.nested(self[(0,) * self.ndim])
        return value

    def __float__(self) -> float:
        return float(self._value("float()"))

    def __int__(self) -> int:
        return int(self._value("int()"))

    def __index__(self) -> int:
        """The value of a tensor with one element of an integer type: where a whole number is asked
        for, such as a position."""
        if self.size != 1 or self.dtype not in _INTEGERS:
            raise TypeError(f"{self.dtype}{list(self.shape)} is no integer: one element of an integer type is")
        return int(self._value("an integer"))

    def __round__(self, digits: int | None = None) -> int | float:
        """As round() of the number: a whole number where no digits are asked for."""
        return round(self._value("round()"), digits)

    def __trunc__(self) -> int:
        return math.trunc(self._value("trunc()"))

    def __floor__(self) -> int:
        return math.floor(self._value("floor()"))

    def __ceil__(self) -> int:
        return math.ceil(self._value("ceil()"))

    def __format__(self, spec: str) -> str:
        if spec and self.size == 1:
            return format(self.item(), spec)
        try:
            return format(str(self), spec)
        except ValueError:
            self._value(f"format {spec!r}")
            raise

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError("a Tensor is memory of this process: it can be neither copied nor pickled; numpy() and tolist() give what can")

    if not TYPE_CHECKING:  # type checkers know the attributes that there are

        def __getattr__(self, name: str) -> Any:
            if name in _PARTS:  # of a result of the quick way, which has only what C gave
                self._unpack_result()
                return object.__getattribute__(self, name)
            if name == "_handle":  # asked for by the quick way alone
                self._handle = self._pointer.__index__()
                return self._handle
            if name.startswith("_"):
                raise AttributeError(name)
            raise AttributeError(f"an accrt.Tensor has no {name!r}: it holds values; t.numpy() is an array of them, which calculates, and so "
                                 "is torch.from_dlpack(t)")

        def _calculate(self, *others: Any) -> Any:
            # an array's own operators calculate with the values; numpy's scalars count as arrays
            if others and type(others[0]) not in (int, float, complex, bool) and not isinstance(others[0], Tensor):
                return NotImplemented
            raise TypeError("an accrt.Tensor holds values and does not calculate: t.numpy() is an array of them, which does, and so does torch.from_dlpack(t)")

        __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __matmul__ = __rmatmul__ = __truediv__ = __rtruediv__ = _calculate
        __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __pow__ = __rpow__ = __neg__ = __pos__ = __abs__ = _calculate

    def __bool__(self) -> bool:
        """Whether the one element is not zero: not whether there are elements."""
        return bool(self._value("bool()"))

    @property
    def _element_bits(self) -> int:
        return lib.accrt_dtype_bits(DTYPES[self._dtype])

    def __getitem__(self, key: Any) -> Tensor:
        """A view of a part: `t[0]`, `t[-1]`, `t[1:3, ::-2]`, `t[..., 0]`, `t[None]`. It shares the
        memory and keeps it; nothing is copied.

        Raises:
            IndexError: an index outside its dimension, or more indices than dimensions. TypeError:
                another kind of index (lists, masks).
            NotImplementedError: a view that does not begin at a whole byte, of types with 4 bits.
        """
        shape, strides, first = _part(self, key if isinstance(key, tuple) else (key,))
        offset_bits = first * self._element_bits
        if offset_bits % 8:
            raise NotImplementedError(f"a view of {self.dtype}{list(self.shape)} would begin within a byte, at element {first}")
        view = Tensor.__new__(Tensor)
        view._pointer, view._buffer, view._dtype = self._pointer, self._buffer, self._dtype
        view._shape, view._strides, view._offset_bytes = shape, strides, self._offset_bytes + offset_bits // 8
        view._read_only, view._external = self._read_only, self._external
        return view

    def __iter__(self) -> Iterator[Tensor]:
        """Views of the places of the first dimension."""
        if not self.shape:
            raise TypeError("iteration over a tensor without dimensions")
        return map(self.__getitem__, range(self.shape[0]))

    def __dlpack_device__(self) -> tuple[int, int]:
        if self.buffer.host_pointer is not None or self.buffer.device is None:
            return (_CPU, 0)
        return self.buffer.device.info.dlpack_device

    def __dlpack__(self, *, stream: Any = None, max_version: tuple[int, int] | None = None, dl_device: tuple[int, int] | None = None,
                   copy: bool | None = None) -> Any:
        """A DLPack capsule that shares the memory: of DLPack 1.0 for consumers that ask for it with
        max_version (numpy >= 2.1, torch >= 2.9), else of the form before (JAX). That one cannot say
        that a tensor may not be written, so read-only tensors are given to the former alone. f4e2m1
        goes to the former by pairs, as torch has it, where its last dimension allows that. A copy
        is made with copy=True (on the tensor's own device), for dl_device=(1, 0) of a GPU's tensor
        (on the host), and of a host's tensor with negative strides, which torch has not."""
        own = self.__dlpack_device__()
        target = own if dl_device is None else tuple(dl_device)
        from ._copies import given_copy, runs_backwards  # circular: copies are Tensors
        backwards = runs_backwards(self)
        if backwards and own == (_CPU, 0) and copy is False:
            raise BufferError(f"strides are {tuple(self.strides)}: negative ones are exported by a copy alone, which copy=False forbids; numpy() shares them")
        if copy or target != own or backwards and own == (_CPU, 0):
            return given_copy(self, own, target, copy, max_version)
        old = max_version is None or tuple(max_version) < (1, 0)
        if old and self.read_only:
            raise BufferError("the tensor is read-only, which only DLPack 1.0 and newer can say: pass max_version=(1, 0)")
        self._order_before(stream)
        managed = ctypes.c_void_p()
        view = self.view()
        if old:
            check(lib.accrt_dlpack_export_unversioned(ctypes.byref(view.c), ctypes.byref(managed)))
        else:
            check(lib.accrt_dlpack_export(ctypes.byref(view.c), int(self.read_only), ctypes.byref(managed)))
            if self._dtype == "f4e2m1":
                _nibbles.give_pairs(managed.value or 0)
        capsule = _pyapi.PyCapsule_New(managed, _DLPACK_OLD_NAME if old else _DLPACK_NAME, None)
        given = getattr(self, "_given", None)
        if given is None:
            given = self._given = _Given()
        given.look(_outlived)
        given.look()
        given.append(capsule)
        return capsule

    def _forwards(self) -> Tensor:
        """For DLPack's C exchange."""
        from ._copies import forwards
        return forwards(self)

    def _order_before(self, consumer) -> None:
        """Makes work that a consumer enqueues come after the work that fills this tensor. DLPack's
        stream numbers."""
        own = self.buffer.stream
        if own is None or consumer == -1:
            return
        if self.__dlpack_device__()[0] != _CUDA or consumer is None:
            own.synchronize()
            return
        number = 0 if consumer == 1 else consumer
        if number == own.native:
            return  # one stream is in order, also while it is captured
        from .stream import Event, Stream
        event = Event(own.device)
        own.record(event)
        Stream.wrap(own.device, number).wait_event(event)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of a tensor without dimensions")
        return self.shape[0]

    def _show(self, indent: int = 0) -> str:
        """The values, or why they cannot be read: what is shown raises nothing."""
        try:
            return _values.show(self, indent)
        except (Error, ValueError, NotImplementedError) as error:
            return f"<no values: {error}>"

    @never_raises
    def __repr__(self) -> str:
        head = "accrt.Tensor("
        return f"{head}{self._show(len(head))}, {self.dtype}{list(self.shape)})"

    @never_raises
    def __str__(self) -> str:
        return self._show()

    @never_raises
    def _repr_html_(self) -> str:
        import html
        return (f"<table><tr><th>accrt.Tensor</th><th>{self.dtype}</th></tr><tr><td>shape</td><td>{list(self.shape)}</td></tr>"
                f"<tr><td>bytes</td><td>{self.nbytes:,}</td></tr></table><pre>{html.escape(self._show())}</pre>")


def _part(tensor: Tensor, keys: tuple[Any, ...]) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    """Shape, strides and first element of what indices choose."""
    keys = _without_ellipsis(keys, tensor)
    shape, strides, first, axis = [], [], 0, 0
    for key in keys:
        if key is None:
            shape.append(1)
            strides.append(0)
            continue
        size, step = tensor.shape[axis], tensor.strides[axis]
        if isinstance(key, slice):
            places = range(*key.indices(size))
            shape.append(len(places))
            strides.append(step * places.step)
            first += places.start * step if places else 0
        else:
            first += _place(key, size, axis, tensor) * step
        axis += 1
    if len(shape) > _ffi.ACCRT_MAX_RANK:
        raise IndexError(f"a view with {len(shape)} dimensions: at most {_ffi.ACCRT_MAX_RANK} are supported")
    return tuple(shape), tuple(strides), first if 0 not in shape else 0


def _without_ellipsis(keys: tuple[Any, ...], tensor: Tensor) -> tuple[Any, ...]:
    """One index for each dimension (and None for new ones)."""
    used = sum(key is not None and key is not Ellipsis for key in keys)
    if used > tensor.ndim:
        raise IndexError(f"{used} indices of a tensor of shape {list(tensor.shape)}")
    at = [i for i, key in enumerate(keys) if key is Ellipsis]
    if len(at) > 1:
        raise IndexError("an index has one ellipsis at most")
    middle = at[0] if at else len(keys)
    return keys[:middle] + (slice(None),) * (tensor.ndim - used) + keys[middle + 1:]


def _place(key: Any, size: int, axis: int, tensor: Tensor) -> int:
    try:
        if isinstance(key, bool):
            raise TypeError
        place = _index(key)
    except TypeError:
        raise TypeError(f"an index is a whole number, a slice, ... or None, not {describe(key)}: use numpy() for others") from None
    if not -size <= place < size:
        raise IndexError(f"index {place} of dimension {axis}, which has {size}: the tensor's shape is {list(tensor.shape)}")
    return place % size


def _numbers(values: Sequence[int], what: str) -> tuple[int, ...]:
    found = tuple(map(_index, values))
    if len(found) > _ffi.ACCRT_MAX_RANK:
        raise ValueError(f"{what} is {found}: at most {_ffi.ACCRT_MAX_RANK} dimensions are supported")
    if any(abs(v) >= 1 << 62 for v in found):
        raise OverflowError(f"{what} is {found}, which does not fit")
    return found


def _typestr(dtype: str) -> str | None:
    """numpy's name of a type; of its bits where it has none; None where elements are no whole
    bytes."""
    return _TYPESTR.get(dtype) or BIT_TYPES.get(dtype)


#: Kinds of numpy's types that have an order or equality with numbers.
_NUMBER_KINDS = "biufc"


def _comparable(other: Any) -> Any:
    """A Tensor, or what numpy makes of numbers; NotImplemented of anything else."""
    if isinstance(other, (Tensor, int, float, complex)):
        return other
    if not isinstance(other, (list, tuple)) and not any(hasattr(other, f"__{way}__") for way in ("array_interface", "array", "dlpack")):
        return NotImplemented
    import numpy
    refuse_masked(other)
    try:
        array = numpy.asarray(other)
    except TypeError:  # torch's bfloat16
        if not hasattr(other, "__dlpack__"):
            raise
        from .instance import default_instance
        return from_dlpack(other, default_instance().device("host"))
    if array.dtype.name in FROM_ML_DTYPES:
        return array.astype(numpy.float32)
    return array if array.dtype.kind in _NUMBER_KINDS else NotImplemented


class _Managed(ctypes.Structure):
    """The head of DLManagedTensorVersioned: version, context, deleter."""

    _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("context", ctypes.c_void_p),
                ("deleter", ctypes.CFUNCTYPE(None, ctypes.c_void_p))]


class _OldManaged(ctypes.Structure):
    """DLManagedTensor: the tensor's 48 bytes, context, deleter."""

    _fields_ = [("tensor", ctypes.c_uint64 * 6), ("context", ctypes.c_void_p), ("deleter", ctypes.CFUNCTYPE(None, ctypes.c_void_p))]


def _references(count=sys.getrefcount) -> int:
    """To what one local name has alone."""
    capsule = [object()].pop(0)
    return count(capsule)


class _Given(list):
    """The capsules that a tensor has given, of which some may never be taken. Their exports are
    freed here, and not by destructors: a consumer that refuses a tensor drops its capsule while its
    exception is on the way, and no Python function may run then."""

    __slots__ = ()

    def look(self, capsules: list | None = None, _alone=_references(), _count=sys.getrefcount, _valid=_pyapi.PyCapsule_IsValid,
             _pointer=_pyapi.PyCapsule_GetPointer, _kinds=((_DLPACK_NAME, _Managed), (_DLPACK_OLD_NAME, _OldManaged))) -> None:
        """Drops those that are taken or that have no other owner."""
        if capsules is None:
            capsules = self
        for _ in range(len(capsules)):
            try:
                capsule = capsules.pop(0)
            except IndexError:  # another thread looks, too
                return
            for name, kind in _kinds:
                if not _valid(capsule, name):
                    continue
                if _count(capsule) > _alone:
                    capsules.append(capsule)
                else:
                    managed = _pointer(capsule, name)
                    kind.from_address(managed).deleter(managed)

    def __del__(self, _state=_State) -> None:
        if _state.gives_back:
            self.look()
            _outlived.extend(self)
            self.look(_outlived)


#: Capsules whose tensors are gone, while a consumer has them and may take them.
_outlived: list = []


_incoming.Tensor = Tensor  # type: ignore[misc]
if _fast.native is not None:
    _fast.native.learn_tensor(Tensor, DTYPES)
    _fast.native.learn_results(Tensor, _NAMES)
    _fast.native.learn_type_strings(_FROM_TYPESTR)
    Tensor.__dlpack_c_exchange_api__ = _fast.native.offer(_from_capsule)  # type: ignore[attr-defined]
