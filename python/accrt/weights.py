"""Weights from where they are: safetensors, GGUF and .accx files as mappings from names to
tensors."""
from __future__ import annotations

import ctypes
import os
import struct as _struct
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Callable, Iterator, NamedTuple

from . import _ffi, _format, budget as _budgets
from ._bits import ML_DTYPES, as_ml_dtype, bits_of, decoded, with_bits
from ._library import Handle, allowed, c_path, c_text, check, created, describe, filled, lib, need, never_raises, number, struct, text
from ._waits import apart
from .bundle import _VERIFY, Bundle
from .errors import OutOfRangeError
from .instance import Instance, default_instance
from .tensor import _CODES, _NAMES, DTYPES, View, _same_size, host_bytes

if TYPE_CHECKING:
    from numpy.typing import NDArray

_SHORT_BYTES = 1 << 23  # checked so quickly that no wait is noticed
_KINDS = {_ffi.ACCRT_WEIGHTS_KIND_ACCX: "accx", _ffi.ACCRT_WEIGHTS_KIND_SAFETENSORS: "safetensors",
          _ffi.ACCRT_WEIGHTS_KIND_GGUF: "gguf"}
ROLES = _format.ROLES
# struct codes of metadata types, by GGUF's numbers; strings and arrays have none.
_METADATA_CODES = ("B", "b", "H", "h", "I", "i", "f", "?", "", "", "Q", "q", "d")


class WeightsInfo(NamedTuple):
    """Facts about a source of weights. kind: "accx", "safetensors" or "gguf"; version: of GGUF."""

    name: str
    kind: str
    size_bytes: int
    data_size_bytes: int
    version: int
    files: tuple[str, ...]


class Weight:
    """One tensor of a source. Its bytes are mapped, not copied: arrays made of them are read-only,
    and keep the source open.

    Attributes:
        name, shape. dtype: "f32", ... or "" if a quantized type does not name one. type_name: the
            type's name in its file.
        encoding: layout id, 0 for plain elements. group_elements: of layouts with a free group
            size. nbytes: all components.
    """

    __slots__ = ("name", "type_name", "dtype", "encoding", "group_elements", "shape", "nbytes", "index", "_weights", "_count")

    def __init__(self, weights: Weights, index: int) -> None:
        raw = filled(_ffi.accrt_weights_tensor, lib.accrt_weights_tensor, need(weights, Weights), number(index, "index", 32))
        self.name, self.type_name = text(raw.name), text(raw.type_name)
        self.dtype = _NAMES.get(raw.dtype, "")
        self.encoding, self.group_elements = raw.encoding, raw.group_elements
        self.shape = tuple(raw.shape[:raw.rank]) if raw.rank else ()
        self.nbytes, self.index = raw.size_bytes, index
        self._weights, self._count = weights, raw.component_count

    def component(self, index: int = 0) -> tuple[str, str, memoryview]:
        """Role, data type and bytes of a component."""
        own = (need(self._weights, Weights), number(self.index, "index", 32), number(index, "index", 32))
        place = filled(_ffi.accrt_weights_component, lib.accrt_weights_component, *own)
        data, size = ctypes.c_void_p(), ctypes.c_uint64()
        where = (*own, ctypes.byref(data), ctypes.byref(size))
        if place.size_bytes < _SHORT_BYTES:
            check(lib.accrt_weights_data(*where))
        else:
            apart(lambda: check(lib.accrt_weights_data(*where)))  # digests are checked
        view = memoryview(b"")
        if size.value:
            raw = (ctypes.c_char * size.value).from_address(data.value)
            raw._owner = self._weights.handle
            view = memoryview(raw).cast("B").toreadonly()
        return ROLES[place.role], _NAMES.get(place.dtype, ""), view

    @property
    def components(self) -> dict[str, tuple[str, memoryview]]:
        """All components by role: data type and bytes."""
        return {role: (dtype, view) for role, dtype, view in map(self.component, range(self._count))}

    def memoryview(self) -> memoryview:
        """The bytes of the data, without a copy."""
        return self.component(0)[2]

    def read(self, offset_bytes: int, size_bytes: int, component: int = 0) -> bytes:
        """A part of a component's bytes, read from the file. Use it to read a small part of a large
        tensor."""
        size_bytes = number(size_bytes, "size_bytes")
        if size_bytes > self.nbytes:
            raise OutOfRangeError(f"{size_bytes} bytes of a tensor of {self.nbytes}")
        target = ctypes.create_string_buffer(size_bytes)
        place = (need(self._weights, Weights), number(self.index, "index", 32), number(component, "component", 32), number(offset_bytes, "offset_bytes"))
        if size_bytes < _SHORT_BYTES:
            check(lib.accrt_weights_read(*place, target, size_bytes))
        else:
            apart(lambda: check(lib.accrt_weights_read(*place, target, size_bytes)))
        return target.raw

    def numpy(self) -> NDArray[Any]:
        """The elements as a read-only numpy array without a copy; bf16 and f8 as ml_dtypes' types
        when that package is there, else as their bits (uint16, uint8), as are packed and quantized
        ones (uint8). See `dequantize`."""
        import numpy
        view = self.memoryview()
        if self.encoding or self.dtype not in _CODES and self.dtype not in ML_DTYPES:
            return numpy.frombuffer(view, numpy.uint8) if len(view) else numpy.empty(0, numpy.uint8)
        if self.dtype not in ML_DTYPES:
            return numpy.frombuffer(view, numpy.dtype("<" + _CODES[self.dtype])).reshape(self.shape) if len(view) \
                else numpy.empty(self.shape, numpy.dtype("<" + _CODES[self.dtype]))
        bits = numpy.uint16 if self.dtype == "bf16" else numpy.uint8
        array = numpy.frombuffer(view, bits).reshape(self.shape) if len(view) else numpy.empty(self.shape, bits)
        return as_ml_dtype(with_bits(array, self.dtype), self.dtype)

    def _weight_view(self, dtype: int | None) -> View:
        """As an argument."""
        if self.encoding or not self.dtype:
            raise TypeError(f"{self!r} is quantized: dequantize() gives its values")
        data = self.memoryview()
        known = DTYPES[self.dtype] if dtype is None else _same_size(dtype, lib.accrt_dtype_bits(DTYPES[self.dtype]), repr(self))
        return View(None, host_bytes(data, writable=False)[0], 0, known, self.shape, None, data, read_only=True)

    def __array__(self, dtype=None, copy=None):
        array = self.numpy()
        if dtype is None or array.dtype == dtype:
            return array.copy() if copy else array
        bits = bits_of(array)
        return (decoded(array, bits) if bits else array).astype(dtype)

    def dequantize(self) -> NDArray[Any]:
        """The values as an f32 numpy array, by the formula of its layout (docs/layouts.md). It uses
        this tensor alone, and not scales that a checkpoint keeps in another tensor; `accx pack`
        joins such tensors."""
        import numpy
        from . import layouts
        parts = {role: layouts.Component(dtype, numpy.frombuffer(view, numpy.uint8))
                 for role, (dtype, view) in self.components.items()}
        return layouts.dequantize(layouts.Packed(self.encoding, self.shape, parts, dtype=self.dtype or "f32",
                                                 group_elements=self.group_elements))

    @never_raises
    def __repr__(self) -> str:
        return f"<accrt.Weight {self.name!r}: {self.type_name} {list(self.shape)}>"


class Weights(Handle, Mapping):
    """A source of weights: names -> Weight. Immutable, usable from any thread.

    Args:
        source: a path (a file, an index of files, a folder), an open file descriptor (int), an
            accrt.Bundle, or bytes-like memory (kept alive). Its content decides how it is read.
        one_file: open only this file, not a set. follow_links: the other files of a set may be
            symbolic links, as in download caches.
        verify: of .accx files, as for Bundle.
    Raises:
        InvalidFormatError, VersionMismatchError, DataCorruptError, NotFoundError, IoError,
        PermissionDeniedError; UntrustedError (option
        trust.weights: safetensors and GGUF files have no signatures).
    """

    __slots__ = ("instance", "_count")
    _kind = "accrt_weights"

    def __init__(self, source, instance: Instance | None = None, *, one_file: bool = False, follow_links: bool = False,
                 verify: str = "default", budget: _budgets.Budget | None = None) -> None:
        allowed(instance, Instance)
        self.instance = instance if instance is not None else source.instance if isinstance(source, Bundle) else default_instance()
        if verify not in _VERIFY:
            raise ValueError(f"verify is {verify!r}, expected one of {', '.join(map(repr, _VERIFY))}")
        flags = one_file * _ffi.ACCRT_WEIGHTS_FLAG_ONE_FILE | follow_links * _ffi.ACCRT_WEIGHTS_FLAG_FOLLOW_LINKS
        raw = struct(_ffi.accrt_weights_options, flags=flags, verify=_VERIFY[verify])
        _budgets.put(raw, budget)
        options = ctypes.byref(raw)
        handle = apart(lambda: self._open(source, options))
        super().__init__(handle)
        self._count = filled(_ffi.accrt_weights_info, lib.accrt_weights_info, handle).tensor_count

    def _open(self, source, options):
        if isinstance(source, Bundle):
            return created(lib.accrt_weights_open_bundle, source.handle)
        if isinstance(source, (str, os.PathLike)):
            return created(lib.accrt_weights_open_path, self.instance.handle, c_path(source), options)
        if isinstance(source, int):
            return created(lib.accrt_weights_open_fd, self.instance.handle, number(source, "source", 32, signed=True), options)
        if source is None or isinstance(source, (list, tuple, Mapping)):
            raise TypeError(f"a source of weights is a path, a descriptor, an accrt.Bundle or memory, not {type(source).__name__}")
        from .tensor import created_over
        return created_over(source, lib.accrt_weights_open_memory, self.instance.handle, options)

    @classmethod
    def open(cls, source, **options) -> Weights:
        """The same as Weights(source, ...)."""
        return cls(source, **options)

    @property
    def info(self) -> WeightsInfo:
        raw = filled(_ffi.accrt_weights_info, lib.accrt_weights_info, self.handle)
        name, files = ctypes.c_char_p(), []
        for i in range(raw.file_count):
            check(lib.accrt_weights_file(self.handle, i, ctypes.byref(name)))
            files.append(text(name.value))
        return WeightsInfo(text(raw.name), _KINDS[raw.kind], raw.size_bytes, raw.data_size_bytes, raw.version, tuple(files))

    @property
    def metadata(self) -> dict[str, object]:
        """Metadata in the file's order, of the first file of a set: strings, numbers, booleans,
        lists of them. Strings in lists that are not UTF-8 come as bytes."""
        out = {}
        for i in range(filled(_ffi.accrt_weights_info, lib.accrt_weights_info, self.handle).metadata_count):
            raw = filled(_ffi.accrt_weights_metadata, lib.accrt_weights_metadata, self.handle, i)
            out[text(raw.key)] = _value(raw)
        return out

    def __getitem__(self, name: str) -> Weight:
        index = ctypes.c_uint32()
        try:
            check(lib.accrt_weights_find(self.handle, c_text(name), ctypes.byref(index)))
        except LookupError as error:
            raise KeyError(str(error)) from None
        return Weight(self, index.value)

    def __contains__(self, name: object) -> bool:
        index = ctypes.c_uint32()
        return isinstance(name, str) and lib.accrt_weights_find(self.handle, c_text(name), ctypes.byref(index)) == 0

    def __iter__(self) -> Iterator[str]:
        return (Weight(self, i).name for i in range(self._count))

    def __len__(self) -> int:
        return self._count

    def load(self, progress: Callable[[int, int], None] | None = None) -> dict[str, object]:
        """All tensors as numpy arrays of their own, copied. `progress` is called with the bytes
        done and the bytes of all."""
        total, done, out = self.info.data_size_bytes, 0, {}
        for i in range(self._count):
            weight = Weight(self, i)
            out[weight.name] = weight.numpy().copy()
            done += weight.nbytes
            if progress is not None:
                progress(done, total)
        return out

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)

    @never_raises
    def __repr__(self) -> str:
        info = self.info
        return f"<accrt.Weights {info.name!r}: {info.kind}, {len(self)} tensors>"


def _value(raw) -> object:
    if raw.type == _ffi.ACCRT_METADATA_STRING:
        return text(raw.text)
    data = ctypes.string_at(raw.data, raw.size_bytes) if raw.size_bytes else b""
    if raw.element_type == _ffi.ACCRT_METADATA_STRING:
        return _strings(data, raw.count)
    values = list(_struct.unpack(f"<{raw.count}{_METADATA_CODES[raw.element_type]}", data))
    return values if raw.type == _ffi.ACCRT_METADATA_ARRAY else values[0]


def _strings(data: bytes, count: int) -> list[str | bytes]:
    out: list[str | bytes] = []
    at = 0
    for _ in range(count):
        size = int.from_bytes(data[at:at + 8], "little")
        at += 8 + size
        piece = data[at - size:at]
        try:
            out.append(piece.decode())
        except UnicodeDecodeError:
            out.append(piece)
    return out


def refuse_unused(bundle: Bundle) -> None:
    """ValueError: the bundle has all of its weights, and others would be passed over."""
    if not bundle._reads_weights():
        raise ValueError(f"weights= is for what is not in the bundle, and {bundle.info['name']!r} has all of its weights: none would be "
                         "replaced. session.program.load_weights(weights, names=[...]) replaces some")


def handles(weights, instance: Instance) -> tuple[ctypes.Array, int]:
    """A C array of sources, of which paths are opened. Not for users."""
    if isinstance(weights, Mapping) and not isinstance(weights, Weights):
        raise TypeError(f"weights is {describe(weights)}, expected files: accrt.Weights or paths. Arrays replace weights of a program that has "
                        "all: program.swap_weights(...)")
    given = [weights] if isinstance(weights, (Weights, str, os.PathLike)) else list(weights)
    sources = [Weights(one, instance) if isinstance(one, (str, os.PathLike)) else one for one in given]
    for one in sources:
        if not isinstance(one, Weights):
            raise TypeError(f"weights are accrt.Weights or paths, not {type(one).__name__}: accrt.Weights(...) makes them")
    table = (_ffi.accrt_weights_p * max(len(sources), 1))(*[one.handle for one in sources])
    table._keep = sources
    return table, len(sources)


__all__ = ["Weight", "Weights", "WeightsInfo"]
