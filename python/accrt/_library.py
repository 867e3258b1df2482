"""Finds and loads libaccrt.so, and turns statuses into exceptions. The one place that knows where the library lies."""
from __future__ import annotations

import ctypes
import os

from . import _ffi, errors


def _candidates() -> list[str]:
    """Where to look, in order: $ACCRT_LIBRARY (alone, when set), inside the package, the tree's build folder, the system."""
    chosen = os.environ.get("ACCRT_LIBRARY")
    if chosen:
        return [chosen]
    here = os.path.dirname(os.path.realpath(__file__))
    near = [os.path.join(here, *place) for place in (("libaccrt.so.0",), ("libaccrt.so",),
                                                     ("..", "..", "build", "lib", "libaccrt.so.0"))]
    return [p for p in near if os.path.exists(p)] + ["libaccrt.so.0"]


def _load() -> _ffi.Library:
    tried = []
    for path in _candidates():
        try:
            library = _ffi.Library(path)
        except OSError as error:
            tried.append(str(error))
            continue
        _check_version(path, library.accrt_version())
        return library
    raise ImportError("libaccrt.so was not found; set ACCRT_LIBRARY to its path, or build it. Tried: " + "; ".join(tried))


def _check_version(path: str, version: int) -> None:
    """The same major version, and every function that this package knows: those of its own minor version."""
    major, minor = version >> 24, (version >> 12) & 0xFFF
    if major != _ffi.ACCRT_VERSION_MAJOR:
        raise ImportError(f"{path} has major version {major}, this package needs {_ffi.ACCRT_VERSION_MAJOR}")
    if minor < _ffi.ACCRT_VERSION_MINOR:
        raise ImportError(f"{path} is too old for this package: its minor version is {minor}, not {_ffi.ACCRT_VERSION_MINOR} or later")


lib = _load()


def check(status: int) -> None:
    """Raises the exception of a failed call, with the thread's whole record."""
    if status != 0:
        raise last_error(status)


def last_error(status: int) -> errors.Error:
    """The exception for `status` made from this thread's record."""
    record = struct(_ffi.accrt_error)
    lib.accrt_last_error(ctypes.byref(record))
    return from_record(record, status)


def from_record(record: _ffi.accrt_error, status: int) -> errors.Error:
    """The exception for a record; `status` decides its class."""
    return errors.make(status, lib.accrt_status_name(status).decode(), record)


def struct(kind, /, **values):
    """A new extensible struct with its size set."""
    out = kind(**values)
    out.struct_size = ctypes.sizeof(kind)
    return out


def filled(kind, function, *arguments):
    """Calls `function(*arguments, &struct)` on a new output struct and returns it."""
    out = struct(kind)
    check(function(*arguments, ctypes.byref(out)))
    return out


def text(value: bytes | None) -> str:
    return value.decode("utf-8", "replace") if value else ""


class Handle:
    """Owner of one reference to a handle of the library. Subclasses name the release function in `_release_name`."""

    __slots__ = ("_handle", "_release", "__weakref__")
    _release_name = ""

    def __init__(self, handle: int) -> None:
        self._handle = handle
        # Kept on the object: at interpreter shutdown module globals may be gone before it is.
        self._release = getattr(lib, self._release_name)

    @property
    def handle(self) -> int:
        """The C handle, for use with other ctypes code. Borrowed: valid while this object lives."""
        if not self._handle:
            raise ValueError(f"this {type(self).__name__} is closed")
        return self._handle

    def close(self) -> None:
        """Gives the reference back now instead of when the object is collected. Closing twice is fine."""
        handle, self._handle = getattr(self, "_handle", None), None
        if handle:
            self._release(handle)

    def __del__(self) -> None:
        self.close()

    def __reduce_ex__(self, protocol):
        # A copy would share the one reference, and end it. This also answers copy.copy and copy.deepcopy.
        raise TypeError(f"a {type(self).__name__} is a handle of this process: it can be neither copied nor pickled")

    def __enter__(self):
        return self

    def __exit__(self, *exception) -> None:
        self.close()


def created(function, *arguments) -> int:
    """Calls `function(*arguments, &out)` and returns the new handle."""
    out = ctypes.c_void_p()
    check(function(*arguments, ctypes.byref(out)))
    return out.value or 0
