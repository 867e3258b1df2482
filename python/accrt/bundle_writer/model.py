"""The bundle being made, and the parts that are neither kernels nor functions."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, BinaryIO, Dict, List, Mapping, Optional, Sequence, Tuple, Union

from .._bits import refuse_masked
from ..errors import named_files
from . import layouts
from .common import (
    DTYPES, EXTERNAL, FORMAT_DTYPES, INLINE, MAX_FILE_NAME_BYTES, MAX_FUNCTION_TARGETS, MAX_PACK_NAME_BYTES, MAX_RANK, PREPARED, SECTIONS, SYMBOL_LIMIT,
    TRAIT_DETERMINISTIC, BundleError, Encoding, FileKind, ImageKind, Role, SymbolClass, check_name, dtype_id, dtype_size_bytes,
    whole,
)  # fmt: skip
from .emit import Emission, Signer
from .expressions import Expr, Size, nonnegative
from .extras import Adapter, Asset, File, Location, RawSection, Segment, Shard
from .functions import Function
from .kernels import Image, Kernel, Parameter, features
from .target import TargetCaps

#: Sections about the finished file: given as bytes, by who signs or encrypts it.
_GIVEN = ("tree", "signatures", "leaves", "encryption", "tags", "data")


@dataclass(eq=False)
class Component:
    """Bytes of one role, or (data None) what they will be like."""

    role: Role
    dtype: str
    data: Optional[memoryview]
    size_bytes: int


@dataclass(eq=False)
class Constant:
    """A weight: in the bundle (INLINE), made by a prepare function (PREPARED), or outside the
    bundle (EXTERNAL)."""

    name: str
    dtype: str
    shape: Tuple[int, ...]
    encoding: Encoding
    group_elements: int
    source: int
    components: Tuple[Component, ...]
    file: Optional[File] = None
    tensor: str = ""
    digest: Optional[bytes] = None

    @property
    def prepared(self) -> bool:
        return self.source == PREPARED

    @property
    def size_bytes(self) -> int:
        return sum(component.size_bytes for component in self.components)


@dataclass(eq=False)
class State:
    name: str
    dtype: str
    shape: Tuple[Expr, ...]
    encoding: Encoding
    fill_pattern: int


@dataclass(eq=False)
class Symbol:
    name: str
    symbol_class: SymbolClass
    minimum: int
    maximum: int
    divisor: int
    buckets: Tuple[int, ...]


class BundleWriter:
    """A bundle being made. Declare its parts in any order, then `write` or `to_bytes`, as often as
    you like."""

    def __init__(self, target_caps: Any = None) -> None:
        """`target_caps`: what the readers can do: the JSON of `accx caps` on their machine (its
        path, text or dictionary), or `accrt.caps()`. If they lack a feature, the writer uses an
        older form with the same meaning; if there is none, it refuses the feature by name
        (TargetError) before it writes anything. docs/contract.md says which features have an older
        form."""
        self._target = TargetCaps.of(target_caps) if target_caps is not None else None
        self._metadata: Dict[str, str] = {}
        self._symbols: Dict[str, Symbol] = {}
        self._constants: Dict[str, Constant] = {}
        self._states: Dict[str, State] = {}
        self._functions: Dict[Tuple[str, str], Function] = {}
        self._kernels: Dict[str, Kernel] = {}
        self._images: List[Image] = []
        self._files: Dict[str, File] = {}
        self._shards: List[Shard] = []
        self._adapters: Dict[str, Adapter] = {}
        self._assets: Dict[str, Asset] = {}
        self._sections: List[RawSection] = []
        self._texts: set = set()
        self._optional_features = 0
        #: SHA-256 over all that says what runs, of the last bundle that was written
        #: (docs/accx-format.md).
        self.code_root: Optional[bytes] = None

    @staticmethod
    def _new(table: Dict[str, Any], name: str, what: str) -> None:
        if not name:
            raise BundleError(f"a {what} needs a name")
        check_name(name, what)
        if name in table:
            raise BundleError(f"there are two {what}s named {name!r}")

    def metadata(self, key: str, value: str) -> None:
        """Adds a line of provenance, license and the like; a reader may ignore it."""
        self._new(self._metadata, key, "metadata key")
        self._metadata[key] = value

    def symbol(
        self,
        name: str,
        symbol_class: SymbolClass = SymbolClass.SPECIALIZE,
        *,
        minimum: int = 0,
        maximum: int = SYMBOL_LIMIT,
        divisor: int = 1,
        buckets: Sequence[int] = (),
    ) -> Expr:
        """Declares a shape symbol with its range and divisor; a BUCKET symbol has ascending bounds,
        the last >= maximum."""
        self._new(self._symbols, name, "symbol")
        where = f"symbol {name!r}"
        for what, value in (("minimum", minimum), ("maximum", maximum), ("divisor", divisor)):
            whole(value, -(1 << 63), (1 << 63) - 1, f"{where}: {what}")
        if not 0 <= minimum <= maximum <= SYMBOL_LIMIT or divisor < 1:
            raise BundleError(f"{where}: range [{minimum}, {maximum}], divisor {divisor}; 0 <= minimum <= maximum <= 2^48")
        if maximum // divisor * divisor < minimum:
            raise BundleError(f"{where}: range [{minimum}, {maximum}] in multiples of {divisor}, with none in it")
        bounds = tuple(buckets)
        if (symbol_class == SymbolClass.BUCKET) != bool(bounds):
            raise BundleError(f"{where}: BUCKET symbols have buckets, others have none")
        if list(bounds) != sorted(set(bounds)) or (bounds and (bounds[0] < 1 or bounds[-1] < maximum)):
            raise BundleError(f"{where}: buckets {list(bounds)} must ascend and reach the maximum {maximum}")
        self._symbols[name] = Symbol(name, SymbolClass(symbol_class), minimum, maximum, divisor, bounds)
        return Expr("symbol", (), name)

    def constant(
        self,
        name: str,
        data: Any,
        *,
        dtype: str = "",
        shape: Optional[Sequence[int]] = None,
        encoding: Encoding = Encoding.PLAIN,
        group_elements: int = 0,
    ) -> Constant:
        """Adds a weight. `data` is a numpy array or anything with the buffer protocol; it is
        neither copied nor read before the bundle is written, so keep it unchanged. Type and shape
        come from the buffer unless they are given.

        Quantized: `encoding` is a layout, `dtype` (f32, f16 or bf16; f32 if not given) and `shape`
        are of what it stands for, and `data` has the components by role, {"data": q, "scales": s,
        ...}, each a buffer or (buffer, data type)."""
        self._new(self._constants, name, "constant")
        where = f"constant {name!r}"
        encoding = Encoding(encoding)
        if encoding > Encoding.OPAQUE:
            dims = self._dims(shape, where)
            parts = self._quantized(data, dtype or "f32", dims, encoding, group_elements, where)
            return self._add_constant(name, dtype or "f32", dims, encoding, group_elements, INLINE, parts)
        view = self._view(data, where)
        dtype = dtype or self._buffer_dtype(view, where)
        dtype_id(dtype, where)
        dims = tuple(int(size) for size in (view.shape if shape is None else shape))
        self._check_shape(dims, dtype, encoding, view.nbytes, where)
        part = Component(Role.DATA, dtype, self._flat(view), view.nbytes)
        return self._add_constant(name, dtype, dims, encoding, group_elements, INLINE, (part,))

    def _add_constant(self, name: str, *fields: Any, **more: Any) -> Constant:
        made = Constant(name, *fields, **more)
        if made.encoding <= Encoding.OPAQUE and made.group_elements:
            raise BundleError(f"constant {name!r}: {made.encoding.name} has no group size")
        self._constants[name] = made
        return made

    @staticmethod
    def _view(data: Any, where: str) -> memoryview:
        try:
            refuse_masked(data)
        except TypeError as error:
            raise BundleError(f"{where}: {error}") from None
        view = memoryview(data)
        if not view.c_contiguous:
            raise BundleError(f"{where}: the data is not contiguous")
        return view

    @staticmethod
    def _flat(view: memoryview) -> memoryview:
        return view.cast("B") if view.nbytes else memoryview(b"")

    @staticmethod
    def _buffer_dtype(view: memoryview, where: str) -> str:
        code = view.format.lstrip("@=<")
        if code not in FORMAT_DTYPES:
            raise BundleError(f"{where}: no data type for buffer format {view.format!r}; give dtype")
        return FORMAT_DTYPES[code]

    @staticmethod
    def _dims(shape: Optional[Sequence[int]], where: str) -> Tuple[int, ...]:
        if shape is None:
            raise BundleError(f"{where}: give the shape of what it stands for")
        dims = tuple(int(size) for size in shape)
        if any(size < 0 for size in dims):
            raise BundleError(f"{where}: shape {dims}")
        return dims

    def _quantized(
        self, data: Any, dtype: str, shape: Tuple[int, ...], encoding: Encoding, group: int, where: str
    ) -> Tuple[Component, ...]:
        layouts.check(encoding, dtype, shape, group, where)
        layout = layouts.of(encoding)
        given = self._roles(data if isinstance(data, Mapping) else {Role.DATA: data}, encoding, where)
        parts = []
        for role in sorted(given):
            buffer, kind = given[role] if isinstance(given[role], tuple) else (given[role], "")
            view = self._view(buffer, where)
            allowed = layout.components[role]
            kind = kind or (allowed[0] if len(allowed) == 1 else self._buffer_dtype(view, f"{where}, {role.name}"))
            parts.append(self._component(encoding, role, kind, shape, group, where, view))
        return tuple(parts)

    @staticmethod
    def _roles(given: Mapping[Any, Any], encoding: Encoding, where: str) -> Dict[Role, Any]:
        """By role; complete."""
        layout = layouts.of(encoding)
        named = {role.name.lower(): role for role in Role}
        found: Dict[Role, Any] = {}
        for key, value in given.items():
            role = named.get(key) if isinstance(key, str) else Role(key)
            if role not in layout.components:
                raise BundleError(f"{where}: {encoding.name} has no component {key!r}")
            found[role] = value
        missing = [role.name for role in layout.components if role not in found and role not in layout.optional]
        if missing:
            raise BundleError(f"{where}: {encoding.name} needs the component {missing[0]}")
        return found

    @staticmethod
    def _component(
        encoding: Encoding, role: Role, dtype: str, shape: Tuple[int, ...], group: int, where: str,
        view: Optional[memoryview] = None,
    ) -> Component:  # fmt: skip
        allowed = layouts.of(encoding).components[role]
        if dtype not in allowed:
            raise BundleError(f"{where}: {role.name} of {encoding.name} is {' or '.join(allowed)}, not {dtype!r}")
        size = layouts.size_bytes(encoding, role, dtype, shape, group)
        if view is not None and view.nbytes != size:
            raise BundleError(f"{where}: {view.nbytes} bytes of {role.name}; {encoding.name} {list(shape)} has {size}")
        return Component(role, dtype, None if view is None else BundleWriter._flat(view), size)

    @staticmethod
    def _check_shape(shape: Tuple[int, ...], dtype: str, encoding: Encoding, size_bytes: int, where: str) -> None:
        elements = 1
        for size in shape:
            if size < 0:
                raise BundleError(f"{where}: shape {shape}")
            elements *= size
        if len(shape) > MAX_RANK:
            raise BundleError(f"{where}: rank {len(shape)}; at most {MAX_RANK}")
        if encoding == Encoding.PLAIN and size_bytes != dtype_size_bytes(dtype, elements):
            raise BundleError(
                f"{where}: {size_bytes} bytes for {dtype} {list(shape)}, which has {dtype_size_bytes(dtype, elements)}"
            )

    def prepared(
        self, name: str, size_bytes: int, *, dtype: str = "u8", shape: Optional[Sequence[int]] = None,
        encoding: Encoding = Encoding.OPAQUE, group_elements: int = 0,
    ) -> Constant:  # fmt: skip
        """Declares a constant that a prepare function makes at load; by default `size_bytes` opaque
        bytes. It has one component."""
        self._new(self._constants, name, "constant")
        where = f"constant {name!r}"
        dims = (int(size_bytes),) if shape is None else tuple(int(size) for size in shape)
        dtype_id(dtype, where)
        if encoding > Encoding.OPAQUE:
            layouts.check(encoding, dtype, dims, group_elements, where)
            layout = layouts.of(encoding)
            if set(layout.components) - set(layout.optional) != {Role.DATA}:
                raise BundleError(f"{where}: {encoding.name} has several components; a prepared constant has one")
            part = self._component(encoding, Role.DATA, layout.components[Role.DATA][0], dims, group_elements, where)
        else:
            self._check_shape(dims, dtype, encoding, size_bytes, where)
            part = Component(Role.DATA, dtype, None, int(size_bytes))
        return self._add_constant(name, dtype, dims, Encoding(encoding), group_elements, PREPARED, (part,))

    def _strong(self, where: str, digest: Optional[bytes], sha256: Optional[bytes]) -> None:
        """Records which SHA-256 the bytes have that a digest stands for, where readers look for it
        (docs/accx-format.md)."""
        if sha256 is None:
            return
        if digest is None or len(sha256) != 32:
            raise BundleError(f"{where}: sha256 is 32 bytes, and goes with a digest")
        if self._metadata.setdefault(f"sha256/{digest.hex()}", sha256.hex()) != sha256.hex():
            raise BundleError(f"{where}: something else has the digest {digest.hex()} and another SHA-256: they cannot be distinguished")

    def file(
        self, name: str, kind: FileKind, *, size_bytes: int = 0, digest: Optional[bytes] = None, sha256: Optional[bytes] = None
    ) -> File:  # fmt: skip
        """Declares a file beside the bundle, by its bare name. `size_bytes` 0: any; `digest`:
        XXH3-128 of the whole file, which finds damage; `sha256`: with a digest, the SHA-256 of the
        whole file, so that a replaced file is noticed."""
        self._new(self._files, name, "file")
        bare = name not in (".", "..") and not any(c in "/\\\x7f" or c < " " for c in name)
        if not bare or len(name.encode()) > MAX_FILE_NAME_BYTES or (digest is not None and len(digest) != 16):
            raise BundleError(f"file {name!r}: a bare file name of at most {MAX_FILE_NAME_BYTES} bytes, a digest of 16")
        self._strong(f"file {name!r}", digest, sha256)
        made = File(name, FileKind(kind), int(size_bytes), digest)
        self._files[name] = made
        return made

    def external(
        self,
        name: str,
        dtype: str,
        shape: Sequence[int],
        *,
        file: Optional[File] = None,
        tensor: str = "",
        digest: Optional[bytes] = None,
        sha256: Optional[bytes] = None,
        encoding: Encoding = Encoding.PLAIN,
        group_elements: int = 0,
        components: Optional[Mapping[Any, str]] = None,
        size_bytes: int = 0,
    ) -> Constant:
        """Declares a weight outside the bundle: `tensor` (the constant's name by default) in
        `file`, or in a source that is given at load. `digest`: XXH3-128 of its components' bytes
        one after another; None: any bytes of the right name and type. `sha256`: with a digest, that
        of the same bytes: a digest alone can be forged. Quantized: the data types of `components`
        by role, where the layout leaves a choice. OPAQUE: `size_bytes`."""
        self._new(self._constants, name, "constant")
        where = f"constant {name!r}"
        check_name(tensor, f"{where}, tensor")
        dims = self._dims(shape, where)
        dtype_id(dtype, where)
        if digest is not None and (len(digest) != 16 or not any(digest)):
            raise BundleError(f"{where}: a digest of 16 bytes, not all zero")
        self._strong(where, digest, sha256)
        if file is not None and self._files.get(file.name) is not file:
            raise BundleError(f"{where}: file {file.name!r} belongs to another bundle")
        parts = self._external_parts(dtype, dims, Encoding(encoding), group_elements, components, size_bytes, where)
        return self._add_constant(
            name, dtype, dims, Encoding(encoding), group_elements, EXTERNAL, parts, file=file, tensor=tensor, digest=digest
        )

    def _external_parts(
        self, dtype: str, shape: Tuple[int, ...], encoding: Encoding, group: int, components: Optional[Mapping[Any, str]],
        size_bytes: int, where: str,
    ) -> Tuple[Component, ...]:  # fmt: skip
        if encoding <= Encoding.OPAQUE:
            elements = 1
            for size in shape:
                elements *= size
            size = size_bytes if encoding == Encoding.OPAQUE else dtype_size_bytes(dtype, elements)
            self._check_shape(shape, dtype, encoding, size, where)
            return (Component(Role.DATA, dtype, None, size),)
        layouts.check(encoding, dtype, shape, group, where)
        layout = layouts.of(encoding)
        given = dict(components or {})
        for role, allowed in layout.components.items():
            if role not in layout.optional and not {role, role.name.lower()} & set(given):
                given[role] = allowed[0]
        found = self._roles(given, encoding, where)
        return tuple(self._component(encoding, role, found[role], shape, group, where) for role in sorted(found))

    def shard(
        self, value: Constant, degree: int, *, axis: Optional[int] = None, extent: int = 0, segments: Sequence[Segment] = ()
    ) -> None:
        """Says which part of a tensor a constant is; `degree` ranks share the tensor. Without an
        axis, each rank has the whole tensor. Otherwise the full tensor has `extent` elements along
        the axis, in `segments` (one, without replicas, by default) that are divided separately, and
        the constant has the shape of one rank's part."""
        where = f"shard of constant {value.name!r}"
        if self._constants.get(value.name) is not value or any(s.constant is value for s in self._shards):
            raise BundleError(f"{where}: it belongs to another bundle, or has a shard")
        if self._shards and self._shards[0].degree != degree or degree < 1:
            raise BundleError(f"{where}: degree {degree}; it is at least 1, and the same for all")
        pieces = tuple(segments) if segments or axis is None else (Segment(0, extent),)
        if axis is not None:
            self._check_segments(value, degree, axis, extent, pieces, where)
        elif extent or pieces:
            raise BundleError(f"{where}: without an axis there is no extent, and there are no segments")
        self._shards.append(Shard(value, axis, degree, extent, pieces))

    @staticmethod
    def _check_segments(value: Constant, degree: int, axis: int, extent: int, pieces: Tuple[Segment, ...], where: str) -> None:
        unit = layouts.unit_along(value.encoding, value.dtype, value.group_elements, len(value.shape), axis)
        end = local = 0
        if not 0 <= axis < len(value.shape):
            raise BundleError(f"{where}: axis {axis} of rank {len(value.shape)}")
        for piece in pieces:
            if piece.begin != end or piece.end <= end or piece.replicas < 1 or degree % piece.replicas:
                raise BundleError(f"{where}: segment {piece} after {end}, degree {degree}")
            if (piece.end - piece.begin) % (degree // piece.replicas):
                raise BundleError(f"{where}: segment {piece} does not cut into {degree // piece.replicas} equal parts")
            part = (piece.end - piece.begin) // (degree // piece.replicas)
            if part % unit and not (degree == piece.replicas and piece.end == extent):
                raise BundleError(f"{where}: segment {piece} gives parts of {part}, which cut what must stay whole: {unit}")
            local += part
            end = piece.end
        if end != extent or local != value.shape[axis]:
            raise BundleError(
                f"{where}: segments end at {end} of {extent} and give a rank {local} of axis {axis}, which has {value.shape[axis]}"
            )

    def adapter(self, slot: str, input: str, *, scaled: bool = False) -> None:
        """Says which optional input takes the tensor `slot` of an adapter file. `scaled`: alpha /
        rank is multiplied in."""
        self._new(self._adapters, slot, "adapter tensor")
        self._adapters[slot] = Adapter(slot, input, bool(scaled))

    def asset(self, name: str, data: Any, *, media_type: str = "") -> None:
        """Adds a file that the bundle carries, such as a tokenizer or a license. A reader may
        ignore it."""
        self._new(self._assets, name, "asset")
        self._assets[name] = Asset(name, bytes(data), media_type)

    def location(self, file: str, line: int = 0, column: int = 0, name: str = "") -> Location:
        """A place in a source, for `Command.at`. A reader may ignore it."""
        if not (0 <= line < 1 << 32 and 0 <= column < 1 << 32):
            raise BundleError(f"location {file!r}:{line}:{column}")
        return Location(file, line, column, name)

    def string(self, text: str) -> None:
        """Stores a string that only the bytes of raw sections and commands refer to."""
        self._texts.add(text)

    def section(
        self, type: int, name: str, data: bytes, *, record_bytes: int = 0, record_count: int = 0, required: bool = False
    ) -> None:
        """Adds a section by its bytes: a vendor's (from 0x10000 up), one that this writer does not
        know, or one about the finished file (tree, leaves, signatures, encryption, tags). With a
        section `encryption` you may add `data` too, of the size that the constants need: it
        replaces their bytes, and has the encrypted zeros between them."""
        known = {number: known_name for known_name, (number, _size) in SECTIONS.items()}
        if type in known and (known[type] not in _GIVEN or known[type] != name):
            raise BundleError(f"section {name!r}: type {type} is section {known[type]!r}, which the writer makes itself")
        printable = all("!" <= c <= "~" for c in name)
        if any(s.type == type for s in self._sections) or not printable or not 1 <= len(name) <= 16 or not len(data) or type < 1:
            raise BundleError(f"section {name!r} of type {type}: there is one, or it is empty, or the name is not 1 to 16 characters")
        if type in known:
            record_bytes = SECTIONS[name][1]
            record_count = len(data) // record_bytes if record_bytes else 0
        self._sections.append(RawSection(type, name, bytes(data), record_bytes, record_count, required))

    def optional_features(self, bits: int) -> None:
        """Sets the feature bits of the file that a reader may ignore."""
        self._optional_features = whole(bits, 0, (1 << 64) - 1, "the optional features")

    def state(self, name: str, dtype: str, shape: Sequence[Size], *, fill_pattern: int = 0) -> State:
        """Declares memory that lives in a session. Dimensions are sizes or expressions of SESSION
        symbols. `fill_pattern`: the bits of every element when the session is made or reset."""
        self._new(self._states, name, "state")
        dtype_id(dtype, f"state {name!r}")
        if len(shape) > MAX_RANK or not 0 <= fill_pattern < 1 << DTYPES[dtype][1]:
            raise BundleError(f"state {name!r}: rank {len(shape)}, fill pattern {fill_pattern:#x}")
        dims = tuple(nonnegative(size, f"state {name!r}: dimension {index}") for index, size in enumerate(shape))
        made = State(name, dtype, dims, Encoding.PLAIN, fill_pattern)
        self._states[name] = made
        return made

    def image(self, name: str, data: Any, kind: ImageKind = ImageKind.HOST_ELF) -> Image:
        """Adds code. The name is what perf, gdb and messages show."""
        if not name or any(image.name == name for image in self._images):
            raise BundleError(f"image {name!r}: the name is empty or used twice")
        if kind == ImageKind.PACK:
            raise BundleError(f"image {name!r}: a pack has no bytes here; name it with pack()")
        if data is None or isinstance(data, str):
            raise BundleError(f"image {name!r}: its bytes are needed, not {data!r:.40}")
        if not len(data):
            raise BundleError(f"image {name!r} is empty")
        if kind == ImageKind.PTX and bytes(data)[-1:] != b"\0":
            raise BundleError(f"image {name!r}: PTX ends with a NUL")
        made = Image(name, data, ImageKind(kind))
        self._images.append(made)
        return made

    def pack(self, name: str) -> Image:
        """A kernel pack outside the bundle, as the image of variants whose `entry` is a kernel or a
        host operator of it. The runtime looks for it by this name (letters, digits, '.', '_', '-')
        among the packs that the program has opened, then among those installed beside the library;
        where there is none, the variant is passed over."""
        for image in self._images:
            if image.name == name and image.kind == ImageKind.PACK:
                return image
        marks = set("._-")
        plain = name.isascii() and all(c.isalnum() or c in marks for c in name)
        if not plain or not name or name[0] in marks or len(name) > MAX_PACK_NAME_BYTES:
            raise BundleError(f"pack {name!r}: a name is letters, digits, '.', '_' and '-', and begins with none of the last three")
        if any(image.name == name for image in self._images):
            raise BundleError(f"pack {name!r}: an image has this name")
        made = Image(name, b"", ImageKind.PACK)
        self._images.append(made)
        return made

    def kernel(
        self,
        name: str,
        parameters: Sequence[Parameter],
        *,
        traits: int = TRAIT_DETERMINISTIC,
        local_memory_bytes: int = 0,
    ) -> Kernel:
        """Declares a kernel with its parameters, in the order of the packed block."""
        self._new(self._kernels, name, "kernel")
        made = Kernel(name, parameters, traits, local_memory_bytes)
        self._kernels[name] = made
        return made

    def function(
        self, name: str, *, prepare: bool = False, internal: bool = False, doc: str = "", target: str = "",
        required_features: int = 0,
    ) -> Function:  # fmt: skip
        """Adds a function. `prepare`: run at load, from `source` constants to `product` constants.
        `internal`: only callable by commands of this bundle. `target`: a driver's name, for a
        version that only its devices use; versions of one name have the same signature (constants
        of prepare functions included), each its own body, memory and doc. `required_features`: bits
        of the format at function scope, beyond those that follow from the content; a reader that
        does not know one refuses to call the function."""
        if not name or (name, target) in self._functions:
            raise BundleError(f"function {name!r} for {target or 'any driver'}: the name is empty, or there is one already")
        check_name(name, "function")
        if sum(other == name for other, _target in self._functions) == MAX_FUNCTION_TARGETS:
            raise BundleError(f"function {name!r}: more than {MAX_FUNCTION_TARGETS} targets")
        extra = features(required_features, f"function {name!r}")
        made = Function(self, name, prepare, internal, doc, target, extra)
        self._functions[name, target] = made
        return made

    def to_bytes(self, signer: Optional[Signer] = None) -> bytes:
        """The bundle as bytes."""
        with Emission(self) as emission:
            emission.sign_with(signer)
            content = emission.to_bytes()
            self.code_root = emission.code_root()
        return content

    def write(self, target: Union[str, "os.PathLike[str]", BinaryIO], signer: Optional[Signer] = None) -> None:
        """Writes the bundle to a path (through a temporary file beside it) or to a seekable binary
        file. Weights are streamed, never held twice.

        `signer`: signs the bundle's code and weights, for those who trust its key
        (`accrt.trust.signing_key()` is yours); a bundle for readers that know no signatures stays
        without. `code_root` is then what was signed, or could be.

        Raises:
            BundleError: what is wrong in the bundle, and where. TargetError: what its readers
                cannot do.
            OSError: the file could not be written; what was there before stays.
            ImportError: libaccrt_write.so is missing.
        """
        with Emission(self) as emission:
            emission.sign_with(signer)
            if hasattr(target, "write"):
                emission.write_file(target)  # type: ignore[arg-type]
            else:
                with named_files():
                    emission.write_path(os.fspath(target))  # type: ignore[arg-type]
            self.code_root = emission.code_root()
