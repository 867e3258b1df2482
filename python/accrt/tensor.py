"""Tensors: views of device memory that numpy, torch, JAX and CuPy take without a copy, and the way
in for theirs.

numpy is optional: without it, anything with the buffer protocol goes in, and results come out as
Tensors with `memoryview()`, `tolist()` and `__dlpack__`.
"""
from __future__ import annotations

import ctypes
import math
import sys
from operator import index as _index
from typing import TYPE_CHECKING, Any, Iterator, Sequence

from . import _fast, _ffi, _nibbles, _values
from ._bits import BIT_TYPES, FROM_ML_DTYPES, ML_DTYPES, Interface, as_ml_dtype, refuse_masked, with_bits
from ._library import _State, _owner, adopted, check, created, describe, lib, need, never_raises
from .errors import Error, OutOfRangeError, UnsupportedError
from .instance import Device
from .memory import Buffer

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

DTYPES = {lib.accrt_dtype_name(v).decode(): v for n, v in vars(_ffi).items()
          if n.startswith("ACCRT_DTYPE_") and n != "ACCRT_DTYPE_NONE"}
_NAMES = {v: k for k, v in DTYPES.items()}
# struct module codes and numpy typestrs of the types that they have.
_INTEGERS = ("i4", "u4", "i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64")
_CODES = {"bool": "?", "i8": "b", "u8": "B", "i16": "h", "u16": "H", "i32": "i", "u32": "I", "i64": "q", "u64": "Q",
          "f16": "e", "f32": "f", "f64": "d"}
#: Those that memoryview casts to.
_VIEW_CODES = {k: v for k, v in _CODES.items() if v != "e" or sys.version_info >= (3, 12)}
_TYPESTR = {"bool": "|b1", "i8": "|i1", "u8": "|u1", "i16": "<i2", "u16": "<u2", "i32": "<i4", "u32": "<u4", "i64": "<i8",
            "u64": "<u8", "f16": "<f2", "f32": "<f4", "f64": "<f8"}
_FROM_TYPESTR = {v: DTYPES[k] for k, v in _TYPESTR.items()}
_FROM_CODE = {c: DTYPES[n] for n, c in _CODES.items()}
_FROM_CODE.update({"l": DTYPES["i64"], "L": DTYPES["u64"], "c": DTYPES["u8"]})

_CPU, _CUDA = 1, 2  # as DLPack numbers devices
_DLPACK_NAME = b"dltensor_versioned"
_DLPACK_USED = b"used_dltensor_versioned"
_DLPACK_OLD_NAME, _DLPACK_OLD_USED = b"dltensor", b"used_dltensor"
_pyapi = ctypes.pythonapi
_pyapi.PyCapsule_New.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
_pyapi.PyCapsule_New.restype = ctypes.py_object
_pyapi.PyCapsule_IsValid.argtypes = [ctypes.py_object, ctypes.c_char_p]
_pyapi.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
_pyapi.PyCapsule_GetPointer.restype = ctypes.c_void_p
_pyapi.PyCapsule_SetName.argtypes = [ctypes.py_object, ctypes.c_char_p]


def dtype_id(dtype: str | int) -> int:
    """Id of a data type by its short name ("f32", "bf16", ...)."""
    if isinstance(dtype, int) and dtype in _NAMES:
        return dtype
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise ValueError(f"data type {dtype!r} is not known; there are {', '.join(DTYPES)}")
    return DTYPES[dtype]


_retain_buffer = lib["accrt_buffer_retain"]  # of an address; a function object of its own
_retain_buffer.argtypes, _retain_buffer.restype = [ctypes.c_void_p], _owner("accrt_buffer")
#: What a Tensor of the quick way's gets when it is asked for (Tensor._unpack_result).
_PARTS = frozenset(("_buffer", "_pointer", "_offset_bytes", "_dtype", "_shape", "_strides", "_read_only", "_external"))


class View:
    """A C tensor and what keeps its memory alive. Not for users: what functions take apart their
    arguments into."""

    __slots__ = ("c", "shape_array", "strides_array", "owner", "read_only")

    def __init__(self, buffer, data: int | None, offset: int, dtype: int, shape: Sequence[int],
                 strides: Sequence[int] | None, owner: object, read_only: bool = False) -> None:
        rank = len(shape)
        if rank > _ffi.ACCRT_MAX_RANK:
            raise ValueError(f"tensor has {rank} dimensions, at most {_ffi.ACCRT_MAX_RANK} are supported")
        self.shape_array = (ctypes.c_int64 * max(rank, 1))(*shape)
        self.strides_array = (ctypes.c_int64 * max(rank, 1))(*strides) if strides is not None else None
        self.c = _ffi.accrt_tensor(buffer, data, offset, dtype, rank, self.shape_array, self.strides_array)
        self.owner = owner
        self.read_only = read_only


class Tensor:
    """A tensor in memory of the runtime. Results of functions are of this kind.

    Goes into numpy (`numpy.asarray`, `.numpy()`), torch and others (`from_dlpack`) without a copy,
    keeps its memory alive, and goes into functions of the runtime. `==`, `!=`, `<`, `<=`, `>`, `>=`
    compare by element and give numpy arrays of bool; `x in t` looks for a value. The hash is of the
    object, as torch's is.

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
        """The tensor as a numpy array: it shares the memory where the host reaches it, and is a
        copy of a device's. bf16 and f8 come as ml_dtypes' types when that package is there, else as
        their bits (uint16, uint8): `numpy.asarray(t, numpy.float32)` has the values either way.
        Types of 4 bits come as a copy, of ml_dtypes' types, with an element in each byte."""
        return self.__array__()

    def __array_ufunc__(self, ufunc: numpy.ufunc, method: str, *inputs: Any, out: Any = (), **named: Any) -> Any:
        """numpy's functions calculate with the values, also of types that numpy has not."""
        if any(isinstance(one, Tensor) for one in out):
            return NotImplemented
        given = [_values.array(one) if isinstance(one, Tensor) else one for one in inputs]
        return getattr(ufunc, method)(*given, **named, **({"out": out} if out else {}))

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
        """The elements as a memoryview of contiguous tensors, without a copy; the bytes, of types
        that memoryview lacks (f16 before Python 3.12)."""
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
        """The elements as nested lists of numbers; one number of a tensor without dimensions. Any
        strides, any memory."""
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
        return format(self.item(), spec) if spec and self.size == 1 else format(str(self), spec)

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
        that a tensor may not be written, so read-only tensors are given to the former alone. A copy
        is made on the host alone: with copy=True, or for dl_device=(1, 0) of a GPU's tensor."""
        own = self.__dlpack_device__()
        target = own if dl_device is None else tuple(dl_device)
        if copy or target != own:
            from ._copies import given_copy  # circular: copies are Tensors
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
        capsule = _pyapi.PyCapsule_New(managed, _DLPACK_OLD_NAME if old else _DLPACK_NAME, None)
        given = getattr(self, "_given", None)
        if given is None:
            given = self._given = _Given()
        given.look(_outlived)
        given.look()
        given.append(capsule)
        return capsule

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


def extent(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, int]:
    """The first element that a tensor has, and the one behind its last, counted from element 0; (0,
    0) when it has none."""
    if 0 in shape:
        return 0, 0
    steps = [(d - 1) * s for d, s in zip(shape, strides)]
    return sum(min(step, 0) for step in steps), sum(max(step, 0) for step in steps) + 1


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


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Row-major strides in elements."""
    strides, step = [], 1
    for d in reversed(shape):
        strides.append(step)
        step *= max(d, 1)
    return tuple(reversed(strides))


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


def from_dlpack(source: Any, device: Device, stream: Any = None) -> Tensor:
    """Imports a tensor that has `__dlpack__` without a copy. The producer's memory stays alive
    while the result does.

    Args:
        source: numpy array, torch tensor, JAX array, ...: whatever has __dlpack__. What comes in
            the form before DLPack 1.0 (JAX's) is read-only here, because it cannot say whether it
            may be written. device: the accrt.Device that will use it.
        stream: the accrt.Stream that will use it: work that still fills the tensor on a GPU then
            comes first. Without it, that work is waited for here.
    """
    target = need(device, Device)
    if not hasattr(source, "__dlpack__"):
        raise TypeError(f"source is {describe(source)}, which has no __dlpack__")
    refuse_masked(source)
    if getattr(source, "is_neg", bool)():  # torch's; DLPack cannot say it, and torch does not look
        raise BufferError("the tensor's numbers are the negatives of what lies in its memory: pass tensor.resolve_neg()")
    order = {"stream": stream.native or 1} if stream is not None and source.__dlpack_device__()[0] == _CUDA else {}
    capsule = _fast.capsule(source)
    if capsule is None:
        try:
            capsule = source.__dlpack__(max_version=(1, 0), **order)
        except TypeError:  # from before there were versions to ask for
            capsule = source.__dlpack__(**order)
    try:
        tensor = _taken(capsule, target, device, type(source).__name__)
    except UnsupportedError as error:  # it knows a type's number alone
        error.message += f": the tensor is of {source.dtype}" if hasattr(source, "dtype") else ""
        error.args = (error.message,)
        raise
    if stream is None and device.info.dlpack_device[0] == _CUDA:
        # By DLPack's standard the producer has ordered its work before CUDA's legacy default
        # stream, on which no stream of ours waits.
        from ._cuda_arrays import wait_for_default_stream

        wait_for_default_stream(type(source).__name__, device)
    tensor._external = source
    return tensor


def _taken(capsule, target, device: Device, what: str) -> Tensor:
    """A Tensor of a capsule's, which is used up."""
    old = not _pyapi.PyCapsule_IsValid(capsule, _DLPACK_NAME)
    name, used = (_DLPACK_OLD_NAME, _DLPACK_OLD_USED) if old else (_DLPACK_NAME, _DLPACK_USED)
    if not _pyapi.PyCapsule_IsValid(capsule, name):
        raise BufferError(f"{what}.__dlpack__() gave no unused DLPack capsule")
    managed = _pyapi.PyCapsule_GetPointer(capsule, name)
    shape, strides = (ctypes.c_int64 * _ffi.ACCRT_MAX_RANK)(), (ctypes.c_int64 * _ffi.ACCRT_MAX_RANK)()
    out, read_only = _ffi.accrt_tensor(), ctypes.c_uint32(1)
    if old:
        check(lib.accrt_dlpack_import_unversioned(target, managed, ctypes.byref(out), shape, strides))
    else:
        check(lib.accrt_dlpack_import(target, managed, ctypes.byref(out), shape, strides, ctypes.byref(read_only)))
    _pyapi.PyCapsule_SetName(capsule, used)
    buffer = Buffer(adopted(out.buffer), device, read_only=bool(read_only.value))
    return Tensor._of(buffer, out.dtype, shape[:out.rank], strides[:out.rank], out.offset_bytes)


def _from_capsule(capsule) -> Tensor:
    """A Tensor of what comes through DLPack's C exchange: on the default instance's device that has
    the memory."""
    from .instance import default_instance
    managed = _pyapi.PyCapsule_GetPointer(capsule, _DLPACK_NAME)
    # device_type and device_id of the DLTensor, which is at 32
    where = tuple((ctypes.c_int32 * 2).from_address(managed + 40))
    for device in default_instance().devices():
        if device.info.dlpack_device == where:
            tensor = _taken(capsule, need(device, Device), device, "the producer")
            tensor._external = True
            return tensor
    raise BufferError(f"no device here has the memory of DLPack's device {where}")


def _same_size(known: int, bits: int, what: str) -> int:
    """The type, if its elements are as large as those of what is given."""
    own = lib.accrt_dtype_bits(known)
    if own != bits:
        raise TypeError(f"{what} has elements of {bits} bits, {_NAMES[known]} has {own}")
    return known


#: numpy's types from elsewhere (ml_dtypes) that the quick way knows.
_learned: list[Any] = []


def _array_dtype(value, typestr: str, dtype: int | None) -> int:
    known = _FROM_TYPESTR.get(typestr)
    if known is not None and (dtype is None or dtype == known):
        return known
    own = getattr(value, "dtype", None)
    name = FROM_ML_DTYPES.get(getattr(own, "name", ""))
    plain = known is not None or name is not None
    if dtype is None and name is not None:
        if _fast.native is not None and own not in _learned:
            _learned.append(own)
            _fast.native.learn_dtype(own, DTYPES[name])
        return DTYPES[name]
    if _nibbles.type_of(value):
        raise TypeError(f"an array of {own} has one element in each byte, and the runtime's {_nibbles.type_of(value)} has two: it is taken by a copy")
    if not plain and _nibbles.is_of_ml_dtypes(own):
        raise TypeError(f"arrays of type {own} are not supported: the runtime has no such type. array.astype converts, to numpy.float32 or one of "
                        f"ml_dtypes.{', '.join(FROM_ML_DTYPES)}")
    if dtype is None or not plain:
        raise TypeError(f"arrays of type {own if own is not None else typestr} are not supported")
    return _same_size(dtype, 8 * int(typestr[2:]), f"an array of type {typestr}")


def _from_array_interface(value, interface: dict, dtype: int | None) -> View:
    try:
        typestr, shape, (address, read_only) = interface["typestr"], interface["shape"], interface["data"]
        strides = interface.get("strides")
    except (AttributeError, KeyError, TypeError, ValueError):
        raise TypeError(f"{describe(value)} has an array interface without type, shape or address") from None
    if shape == () and not hasattr(value, "__setitem__"):
        # A numpy scalar: its interface points into a temporary array that is gone already.
        raise TypeError(f"{type(value).__name__} is a scalar without memory of its own: pass numpy.asarray(value)")
    if type(value).__module__ != "numpy":
        _check_interface(value, interface, typestr, shape, address, strides)
    known = _FROM_TYPESTR.get(typestr) if dtype is None else None
    if known is None:
        known = _array_dtype(value, typestr, dtype)
    for size in shape:
        if size < 0:
            raise ValueError(f"shape is {shape}, which has a negative dimension")
    if strides is not None:
        bytes_each = int(typestr[2:])
        if len(strides) != len(shape) or any(s % bytes_each for s in strides):
            raise ValueError(f"strides {strides} are not multiples of the element's {bytes_each} bytes")
        strides = [s // bytes_each for s in strides]
    return View(None, address, 0, known, shape, strides, value, bool(read_only))


def _check_interface(value, interface: dict, typestr, shape, address, strides) -> None:
    """Of what is not numpy's own."""
    where = f"the array interface of {describe(value)}"
    for name, given in (("shape", shape), ("strides", () if strides is None else strides)):
        if not isinstance(given, (tuple, list)) or not all(hasattr(size, "__index__") for size in given):
            raise TypeError(f"{where} has {name} {given!r}, which are no integers")
    if not isinstance(typestr, str) or not isinstance(address, int):
        raise TypeError(f"{where} has type {typestr!r} and address {address!r}: a text and an integer are needed")
    if not 0 <= address < 1 << 64 or not address and 0 not in shape:
        raise ValueError(f"{where} has its data at {address:#x}")
    if interface.get("mask") is not None:
        raise TypeError(f"{where} has a mask, which would be lost: pass an array without one")


def _from_buffer(value, dtype: int | None) -> View:
    raw = value if isinstance(value, memoryview) else memoryview(value)
    known = _FROM_CODE.get(raw.format.lstrip("@=<"))
    if known is None or (raw.format[:1] in (">", "!") and raw.itemsize > 1):
        raise TypeError(f"buffers of format {raw.format!r} are not supported")
    if not raw.c_contiguous:
        raise ValueError("the buffer is not contiguous: pass a contiguous copy")
    known = _same_size(known if dtype is None else dtype, 8 * raw.itemsize, f"a buffer of format {raw.format!r}")
    address, _, owner = host_bytes(raw, writable=False)
    return View(None, address, 0, known, raw.shape, None, owner, raw.readonly)


class _PyBuffer(ctypes.Structure):
    """The C struct of the buffer protocol (PEP 3118); gives the address of read-only memory too."""

    _fields_ = [("buf", ctypes.c_void_p), ("obj", ctypes.py_object), ("len", ctypes.c_ssize_t),
                ("itemsize", ctypes.c_ssize_t), ("readonly", ctypes.c_int), ("ndim", ctypes.c_int),
                ("format", ctypes.c_char_p), ("shape", ctypes.c_void_p), ("strides", ctypes.c_void_p),
                ("suboffsets", ctypes.c_void_p), ("internal", ctypes.c_void_p)]


_pyapi.PyObject_GetBuffer.argtypes = [ctypes.py_object, ctypes.POINTER(_PyBuffer), ctypes.c_int]
_pyapi.PyBuffer_Release.argtypes = [ctypes.POINTER(_PyBuffer)]
_pyapi.PyBuffer_Release.restype = None


class _BufferOwner:
    """Holds an exported buffer: the memory can be neither freed nor resized while this lives."""

    __slots__ = ("raw",)

    def __init__(self, value: object, writable: bool) -> None:
        self.raw = None
        raw = _PyBuffer()
        # raises BufferError itself
        _pyapi.PyObject_GetBuffer(value, ctypes.byref(raw), 1 if writable else 0)
        self.raw = raw

    def __del__(self) -> None:
        if self.raw is not None:
            _pyapi.PyBuffer_Release(ctypes.byref(self.raw))


def host_bytes(value, writable: bool) -> tuple[int, int, object]:
    """Address, size in bytes and owner of a contiguous host object (array interface or buffer
    protocol)."""
    if isinstance(value, Tensor):
        if value.buffer.host_pointer is None:
            raise TypeError("the tensor's memory is not reachable from the host: use its buffer")
        if value.strides != contiguous_strides(value.shape):
            raise ValueError("the tensor is not contiguous")
        if writable and value.read_only:
            raise ValueError("the tensor is read-only")
        return value.buffer.host_pointer + value.offset_bytes, value.nbytes, value
    refuse_masked(value)
    try:
        if writable and _POINTERS.intersection(memoryview(value).format):
            raise ValueError(f"{type(value).__name__} holds references to objects, which bytes may not replace")
        owner = _BufferOwner(value, writable)
    except TypeError:
        raise TypeError(f"{type(value).__name__} has no buffer protocol") from None
    except BufferError as error:
        raise ValueError(str(error)) from None
    return owner.raw.buf or 0, owner.raw.len, owner


#: Formats of the buffer protocol whose elements are pointers or names of objects.
_POINTERS = frozenset("OPzZX&")

#: Host memory that the library uses in place until it says that it no longer does: programs have
#: references of their own to sources.
_lent: dict[int, object] = {}


@ctypes.CFUNCTYPE(None, ctypes.c_void_p)
def _given_back(key, lent=_lent):
    lent.pop(key, None)


_pyapi.Py_IncRef(ctypes.py_object(_given_back))  # the library may call it when this module is gone


def created_over(value, function, instance, options):
    """The new handle of a function that uses a host object's memory in place. The object lives
    until the library lets go of it."""
    address, size, owner = host_bytes(value, writable=False)
    _lent[id(owner)] = owner
    try:
        return created(function, instance, address, size, _given_back, id(owner), options)
    except BaseException:
        del _lent[id(owner)]
        raise


def as_view(value, device, dtype: int | None = None, stream=None) -> View:
    """The C tensor for an argument: a Tensor, anything with an array interface, the buffer
    protocol, DLPack or the CUDA array interface, looked for in this order. No copy.

    Args:
        dtype: take the elements as this type instead of the object's own (bits of bf16 held in
            uint16).
        stream: the Stream that will use it; see from_dlpack.
    """
    if isinstance(value, Tensor):
        return _tensor_view(value, dtype)
    weight_view = getattr(value, "_weight_view", None)
    if weight_view is not None:
        return weight_view(dtype)
    interface = getattr(value, "__array_interface__", None)
    if interface is not None:
        if type(value).__name__ != "ndarray":
            refuse_masked(value)
        return _from_array_interface(value, interface, dtype)
    try:
        return _from_buffer(value, dtype)
    except BufferError as error:  # JAX's arrays of a GPU have the protocol, and refuse
        if not hasattr(value, "__dlpack__"):
            raise ValueError(f"{type(value).__name__} gives no buffer: {error}") from None
    except TypeError:
        if not hasattr(value, "__dlpack__"):
            if hasattr(value, "__cuda_array_interface__"):
                from ._cuda_arrays import from_cuda_array  # circular: its arrays are Tensors
                return _tensor_view(from_cuda_array(value, device, stream), dtype)
            more = ": encode() gives its bytes" if isinstance(value, str) else ": numpy.asarray makes an array of it" if hasattr(value, "__array__") or isinstance(value, (list, tuple)) else ""
            raise TypeError(f"{type(value).__name__} is not a tensor: it has no array interface, no DLPack and no buffer protocol{more}") from None
    return _tensor_view(from_dlpack(value, device, stream), dtype)


def _tensor_view(tensor: Tensor, dtype: int | None) -> View:
    view = tensor.view()
    if dtype is not None:
        view.c.dtype = _same_size(dtype, lib.accrt_dtype_bits(view.c.dtype), f"a tensor of {tensor.dtype}")
    return view


if _fast.native is not None:
    _fast.native.learn_tensor(Tensor, DTYPES)
    _fast.native.learn_results(Tensor, _NAMES)
    _fast.native.learn_type_strings(_FROM_TYPESTR)
    Tensor.__dlpack_c_exchange_api__ = _fast.native.offer(_from_capsule)  # type: ignore[attr-defined]
