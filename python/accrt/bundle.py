"""Bundles: opening .accx files and looking inside."""
from __future__ import annotations

import ctypes
import os
from typing import Callable

from . import _ffi, _format, budget as _budgets
from ._library import Handle, allowed, c_path, c_text, check, created, describe, filled, lib, never_raises, number, shown, struct, text
from ._waits import apart
from .errors import Error, listing
from ._records import Argument, Asset, Constant, Signature, Symbol
from .instance import Instance, default_instance

_VERIFY = {"default": _ffi.ACCRT_VERIFY_DEFAULT, "full": _ffi.ACCRT_VERIFY_FULL, "no-data": _ffi.ACCRT_VERIFY_NO_DATA}
_ARGUMENT_KINDS, _SYMBOL_CLASSES = dict(enumerate(_format.ARGUMENT_KINDS)), dict(enumerate(_format.SYMBOL_CLASSES))


class Bundle(Handle):
    """An .accx bundle. Immutable, usable from any thread.

    Args:
        source: a path, an open file descriptor (int), or bytes-like memory (kept alive).
        instance: default: the process's own. verify: "default", "full" (all digests now) or
            "no-data".
        key: a function, for encrypted weights. It is called once with the key's id (16 bytes), and
            returns the key's 32 bytes, or None.
        budget: what opening it may cost (accrt.Budget); default: limits in proportion to the file.
    Raises:
        BudgetError, TimeoutError, CancelledError: opening it passed a limit of the budget.
        InvalidFormatError, VersionMismatchError, DataCorruptError, NotFoundError, IoError;
        UntrustedError (option trust.weights), PermissionDeniedError (not the key of its encrypted
        weights), UnsupportedError (a key or signatures, and no libcrypto).
    """

    __slots__ = ("instance", "_signatures")
    _kind = "accrt_bundle"

    def __init__(self, source, instance: Instance | None = None, verify: str = "default",
                 key: Callable[[bytes], bytes | None] | None = None, budget: _budgets.Budget | None = None,
                 _begin: float | None = None) -> None:
        allowed(instance, Instance)
        self.instance = instance if instance is not None else default_instance()
        if verify not in _VERIFY:
            raise ValueError(f"verify is {verify!r}, expected one of {', '.join(map(repr, _VERIFY))}")
        options = struct(_ffi.accrt_bundle_options, verify=_VERIFY[verify])
        _budgets.put(options, budget, _begin)
        problems: list[BaseException] = []
        if key is not None:
            options.secret_key = _key_callback(key, problems)
        self._signatures = {}
        reference = ctypes.byref(options)
        try:
            handle = apart(lambda: self._open(source, reference))
        except Error as error:
            if isinstance(source, (str, bytes, os.PathLike)):
                from ._advice import file_advice, with_advice
                with_advice(error, file_advice(source))
            raise error from (problems.pop() if problems else None)
        super().__init__(handle)

    def _open(self, source, reference) -> int:
        if isinstance(source, (str, os.PathLike)):
            return created(lib.accrt_bundle_open_path, self.instance.handle, c_path(source), reference)
        if isinstance(source, int):
            return created(lib.accrt_bundle_open_fd, self.instance.handle, number(source, "source", 32, signed=True), reference)
        from .tensor import created_over
        try:
            memoryview(source)
        except TypeError:
            more = ": file.fileno() is its descriptor" if hasattr(source, "fileno") else ""
            raise TypeError(f"a bundle is opened from a path, a file descriptor or bytes, not from {describe(source)}{more}") from None
        return created_over(source, lib.accrt_bundle_open_memory, self.instance.handle, reference)

    @property
    def info(self) -> dict[str, object]:
        raw = filled(_ffi.accrt_bundle_info, lib.accrt_bundle_info, self.handle)
        out = {n: getattr(raw, n) for n, _ in raw._fields_ if n not in ("struct_size", "reserved", "next")}
        out["name"] = text(raw.name)
        return out

    def program(self, device=None, variant: str = "", weights=(), by_name: bool = False, rank: int = 0,
                degree: int = 0):
        """Makes a Program of the bundle; the arguments are those of Program."""
        from .program import Program
        return Program(self, device, variant, weights, by_name, rank, degree)

    def verify(self, budget: _budgets.Budget | None = None) -> None:
        """Checks every digest, weights included. Raises DataCorruptError; BudgetError,
        TimeoutError, CancelledError: it passed a limit of the budget."""
        handle, limits = self.handle, ctypes.byref(budget._c()) if budget is not None else None
        apart(lambda: check(lib.accrt_bundle_verify_within(handle, limits)))

    @property
    def metadata(self) -> dict[str, str]:
        out = {}
        for i in range(self.info["metadata_count"]):
            key, value = ctypes.c_char_p(), ctypes.c_char_p()
            check(lib.accrt_bundle_metadata(self.handle, i, ctypes.byref(key), ctypes.byref(value)))
            out[text(key.value)] = text(value.value)
        return out

    @property
    def symbols(self) -> list[Symbol]:
        out = []
        for i in range(self.info["symbol_count"]):
            raw = filled(_ffi.accrt_symbol_info, lib.accrt_bundle_symbol, self.handle, i)
            out.append(Symbol(text(raw.name), _SYMBOL_CLASSES.get(raw.symbol_class, str(raw.symbol_class)), raw.minimum,
                              raw.maximum, raw.divisor, tuple(raw.buckets[:raw.bucket_count] if raw.bucket_count else ())))
        return out

    @property
    def constants(self) -> list[Constant]:
        return [self._constant(i) for i in range(self.info["constant_count"])]

    def _reads_weights(self) -> bool:
        """Whether a constant is not in the bundle. It looks no further than at the first: a model
        has thousands of them."""
        raw = (filled(_ffi.accrt_constant_info, lib.accrt_bundle_constant, self.handle, i) for i in range(self.info["constant_count"]))
        return any(constant.source == _ffi.ACCRT_CONSTANT_EXTERNAL for constant in raw)

    def _constant(self, index: int) -> Constant:
        raw = filled(_ffi.accrt_constant_info, lib.accrt_bundle_constant, self.handle, index)
        shape = tuple(raw.shape[:raw.rank]) if raw.rank else ()
        external, known = raw.source == _ffi.ACCRT_CONSTANT_EXTERNAL, any(raw.digest)
        file = self.files[raw.file] if external and raw.file != 0xFFFFFFFF else ""
        return Constant(text(raw.name), lib.accrt_dtype_name(raw.dtype).decode(), shape, raw.size_bytes, raw.encoding,
                        raw.source == 1, external, raw.group_elements, file, text(raw.tensor), bytes(raw.digest) if known else b"")

    @property
    def files(self) -> list[str]:
        """Names of the files beside the bundle that hold its external weights."""
        count = self.info["file_count"]
        return [text(filled(_ffi.accrt_file_info, lib.accrt_bundle_file, self.handle, i).name) for i in range(count)]

    @property
    def assets(self) -> dict[str, Asset]:
        """Files that the bundle carries, such as a tokenizer or a license."""
        out = {}
        for i in range(self.info["asset_count"]):
            raw = filled(_ffi.accrt_asset_info, lib.accrt_bundle_asset, self.handle, i)
            out[text(raw.name)] = Asset(text(raw.name), text(raw.media_type), ctypes.string_at(raw.data, raw.size_bytes))
        return out

    @property
    def adapters(self) -> dict[str, str]:
        """The optional input that each tensor of an adapter file fills."""
        out = {}
        for i in range(self.info["adapter_count"]):
            raw = filled(_ffi.accrt_adapter_info, lib.accrt_bundle_adapter, self.handle, i)
            out[text(raw.slot)] = text(raw.input)
        return out

    def constant_bytes(self, name: str) -> memoryview:
        """The bytes of a stored weight, read-only, without a copy. They are valid as long as the
        view."""
        index, data, size = ctypes.c_uint32(), ctypes.c_void_p(), ctypes.c_uint64()
        with listing(lambda: [constant.name for constant in self.constants], name):
            check(lib.accrt_bundle_find_constant(self.handle, c_text(name), ctypes.byref(index)))
        place = (self.handle, index.value, ctypes.byref(data), ctypes.byref(size))
        apart(lambda: check(lib.accrt_bundle_constant_data(*place)))  # digests are checked
        if not size.value:
            return memoryview(b"")
        raw = (ctypes.c_char * size.value).from_address(data.value)
        raw._owner = self.handle
        return memoryview(raw).cast("B").toreadonly()

    def function_names(self, internal: bool = False) -> list[str]:
        """Names of the functions that can be called (with internal=True: of all)."""
        names = []
        for i in range(self.info["function_count"]):
            raw = filled(_ffi.accrt_function_info, lib.accrt_bundle_function, self.handle, i)
            if internal or not raw.flags:
                names.append(text(raw.name))
        return names

    def function_targets(self, function: str) -> list[str | None]:
        """The drivers that versions of a function are for; None is the version for any."""
        index, target = ctypes.c_uint32(), ctypes.c_char_p()
        check(lib.accrt_bundle_find_function(self.handle, c_text(function), ctypes.byref(index)))
        raw = filled(_ffi.accrt_function_info, lib.accrt_bundle_function, self.handle, index.value)
        out: list[str | None] = []
        for version in range(raw.version_count):
            check(lib.accrt_bundle_function_target(self.handle, index.value, version, ctypes.byref(target)))
            out.append(text(target.value) or None)
        return out

    def signature(self, function: str) -> Signature:
        """Signature of a function. Raises NotFoundError with near names."""
        if not isinstance(function, str):
            raise TypeError(f"a function's name is {shown(function)}, expected a str; there are {', '.join(self.function_names())}")
        if function not in self._signatures:
            index = ctypes.c_uint32()
            with listing(self.function_names, function):
                check(lib.accrt_bundle_find_function(self.handle, c_text(function), ctypes.byref(index)))
            self._signatures[function] = self._read_signature(index.value)
        return self._signatures[function]

    def _read_signature(self, index: int) -> Signature:
        raw = filled(_ffi.accrt_function_info, lib.accrt_bundle_function, self.handle, index)
        arguments = [self._argument(index, i) for i in range(raw.input_count + raw.result_count)]
        return Signature(text(raw.name), text(raw.doc), tuple(arguments[:raw.input_count]),
                         tuple(arguments[raw.input_count:]), bool(raw.flags & 2), bool(raw.flags & 1))

    def _shared_inputs(self, function: str) -> frozenset[int]:
        """The inputs of a function whose memory its results may have."""
        index = ctypes.c_uint32()
        check(lib.accrt_bundle_find_function(self.handle, c_text(function), ctypes.byref(index)))
        raw = filled(_ffi.accrt_function_info, lib.accrt_bundle_function, self.handle, index)
        results = (filled(_ffi.accrt_argument_info, lib.accrt_bundle_argument, self.handle, index, raw.input_count + i)
                   for i in range(raw.result_count))
        return frozenset(result.alias_input for result in results if result.alias_kind != _ffi.ACCRT_ALIAS_NONE)

    def _argument(self, function: int, index: int) -> Argument:
        raw = filled(_ffi.accrt_argument_info, lib.accrt_bundle_argument, self.handle, function, index)
        size = ctypes.c_uint64()
        buffer = ctypes.create_string_buffer(1024)
        status = lib.accrt_bundle_argument_type_text(self.handle, function, index, buffer, len(buffer), ctypes.byref(size))
        if size.value > len(buffer):
            buffer = ctypes.create_string_buffer(size.value)
            status = lib.accrt_bundle_argument_type_text(self.handle, function, index, buffer, len(buffer), ctypes.byref(size))
        check(status)
        return Argument(text(raw.name), _ARGUMENT_KINDS.get(raw.kind, str(raw.kind)), text(buffer.value), bool(raw.optional),
                        text(raw.doc), index)

    @never_raises
    def __repr__(self) -> str:
        return f"<accrt.Bundle {self.info['name']!r}: {', '.join(self.function_names())}>"

    @never_raises
    def _repr_html_(self) -> str:
        rows = "".join(f"<tr><td><code>{_escape(str(self.signature(n)))}</code></td></tr>" for n in self.function_names())
        return f"<table><tr><th>{_escape(str(self.info['name']))}</th></tr>{rows}</table>"


def _key_callback(key: Callable[[bytes], bytes | None], problems: list[BaseException]):
    """The C callback; what `key` raises goes to `problems`, since nothing can be raised through
    C."""
    def give(_user, key_id, out_key):
        try:
            found = key(ctypes.string_at(key_id, 16))
            if found is None:
                return 1
            found = bytes(memoryview(found))
            if len(found) != 32:
                raise ValueError(f"a key has 32 bytes, not {len(found)}")
            ctypes.memmove(out_key, found, 32)
            return 0
        except BaseException as problem:  # noqa: BLE001 - it is raised again, by who called
            problems.append(problem)
            return 1

    return dict(_ffi.accrt_bundle_options._fields_)["secret_key"](give)


def _escape(value: str) -> str:
    return value.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
