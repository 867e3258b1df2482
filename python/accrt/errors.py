"""Exceptions: one class for each status of the C API, all under Error, each with the whole
record."""
from __future__ import annotations

import contextlib
import errno
import os
import re
from typing import Callable, Iterable, Iterator

from . import _ffi


class Error(RuntimeError):
    """A failed call.

    Attributes:
        status (int): the C status. name (str): its name, "ACCRT_ERROR_...".
        message (str): one line with the offending values.
        operation (str): the C function that failed. source (str): file:line inside the library.
        driver_code (int), driver_name (str): the driver's, the kernel's or the system's own code
        and its name.
        submission (int): number of the submission that failed, 0 when none did.
    """

    status = 0

    def __init__(self, message: str, **record) -> None:
        super().__init__(message)
        self.message = message
        self.name = record.get("name", "")
        self.operation = record.get("operation", "")
        self.source = record.get("source", "")
        self.driver_code = record.get("driver_code", 0)
        self.driver_name = record.get("driver_name", "")
        self.submission = record.get("submission", 0)

    def __reduce__(self):
        return (_rebuild, (self.status, self.message, {k: v for k, v in self.__dict__.items() if k != "message"}))


_CLASSES: dict[int, type] = {}


def _class_name(status_name: str) -> str:
    words = status_name[len("ACCRT_ERROR_"):].split("_")
    name = "".join(w.capitalize() for w in words)
    return name if name.endswith("Error") else name + "Error"


# Standard classes that a Python user would catch for the same thing.
_BASES = {
    _ffi.ACCRT_ERROR_INVALID_ARGUMENT: ValueError, _ffi.ACCRT_ERROR_OUT_OF_RANGE: IndexError,
    _ffi.ACCRT_ERROR_NOT_FOUND: LookupError, _ffi.ACCRT_ERROR_OUT_OF_MEMORY: MemoryError,
    _ffi.ACCRT_ERROR_OUT_OF_DEVICE_MEMORY: MemoryError, _ffi.ACCRT_ERROR_TIMEOUT: TimeoutError,
    _ffi.ACCRT_ERROR_PERMISSION_DENIED: PermissionError, _ffi.ACCRT_ERROR_IO: OSError,
    _ffi.ACCRT_ERROR_SHAPE_MISMATCH: ValueError, _ffi.ACCRT_ERROR_TYPE_MISMATCH: TypeError,
    _ffi.ACCRT_ERROR_UNSUPPORTED: NotImplementedError, _ffi.ACCRT_ERROR_OVERFLOW: OverflowError,
    _ffi.ACCRT_ERROR_ALIASED: ValueError, _ffi.ACCRT_ERROR_UNTRUSTED: PermissionError,
}
__all__ = ["Error"]
for _name, _status in list(vars(_ffi).items()):
    if _name.startswith("ACCRT_ERROR_"):
        _base = _BASES.get(_status)
        # RuntimeError and NotImplementedError share a layout; OSError first, its __init__ takes
        # what is given.
        _bases = (Error,) if _base is None or issubclass(_base, RuntimeError) else (Error, _base)
        _class = type(_class_name(_name), _bases, {"__doc__": f"{_name}.", "status": _status})
        _CLASSES[_status] = globals()[_class.__name__] = _class
        __all__.append(_class.__name__)


class MissingFileError(_CLASSES[_ffi.ACCRT_ERROR_NOT_FOUND], FileNotFoundError):
    """ACCRT_ERROR_NOT_FOUND for a missing file. It is a NotFoundError and a FileNotFoundError.

    Attributes:
        filename (str): the path that does not exist. errno (int), strerror (str): the system's.
    """

    def __init__(self, message: str, **record) -> None:
        super().__init__(message, **record)
        self.errno, self.strerror = self.driver_code, os.strerror(self.driver_code)
        self.filename = _missing_path(message)

    def __str__(self) -> str:
        return self.message


class CancelledWorkError(_CLASSES[_ffi.ACCRT_ERROR_POISONED], _CLASSES[_ffi.ACCRT_ERROR_CANCELLED]):
    """ACCRT_ERROR_POISONED, because the work that you wait for was cancelled. It is a PoisonedError
    and a CancelledError."""

    status = _ffi.ACCRT_ERROR_POISONED


__all__ += ["MissingFileError", "CancelledWorkError"]
_CANCELLED_WORK = re.compile(r"(semaphore \d+|stream \d+|the event) failed: ACCRT_ERROR_CANCELLED in ")
_NO_SUCH_FILE = ": no such file"
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextlib.contextmanager
def named_files() -> Iterator[None]:
    """Makes what Python raises of paths that it opens inside what the library raises of its own:
    MissingFileError, IoError."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError) as error:
        if isinstance(error, Error):
            raise
        raise MissingFileError(f"{_path(error)}{_NO_SUCH_FILE}", name="ACCRT_ERROR_NOT_FOUND", driver_code=error.errno,
                               driver_name=errno.errorcode[error.errno]) from None
    except OSError as error:
        if isinstance(error, Error) or error.filename is None:
            raise
        status, done = _ffi.ACCRT_ERROR_IO, "written" if error.errno in _NO_ROOM else "opened"
        raise _CLASSES[status](f"{_path(error)}: could not be {done}: {error.strerror}", name="ACCRT_ERROR_IO", driver_code=error.errno,
                               driver_name=errno.errorcode.get(error.errno or 0, "")) from None


def missing(path: str, message: str) -> MissingFileError:
    """The error of a path that does not exist, with words of its own."""
    error = MissingFileError(message, name="ACCRT_ERROR_NOT_FOUND", driver_code=errno.ENOENT, driver_name="ENOENT")
    error.filename = path
    return error


def need_folder(path: str | os.PathLike | bytes) -> None:
    """MissingFileError, where a file is to be written into a folder that does not exist."""
    folder = os.path.dirname(os.path.abspath(os.fsdecode(path)))
    if not os.path.isdir(folder):
        raise MissingFileError(f"{os.fsdecode(path)}{_NO_SUCH_FILE}: there is no folder {folder}", name="ACCRT_ERROR_NOT_FOUND", driver_code=errno.ENOENT,
                               driver_name="ENOENT")


@contextlib.contextmanager
def listing(names: Callable[[], Iterable[str]], wanted: object) -> Iterator[None]:
    """Adds to a NotFoundError that names nothing near what there is: names that end alike, or all
    where they are few."""
    try:
        yield
    except _CLASSES[_ffi.ACCRT_ERROR_NOT_FOUND] as error:
        if "did you mean" in str(error) or "; there " in str(error) or not isinstance(wanted, str):
            raise
        known = sorted(names())
        alike = [name for name in known if wanted and (name.endswith("." + wanted) or wanted.endswith("." + name))][:4]
        if alike:
            error.message += "; did you mean " + " or ".join(map(repr, alike)) + "?"
        elif len(known) <= _FEW:
            error.message += f"; there {'is' if len(known) == 1 else 'are'} {', '.join(known) or 'none'}"
        error.args = (error.message,)
        raise


#: So many names are listed.
_FEW = 20


def _path(error: OSError) -> str:
    return os.fsdecode(error.filename) or "''" if isinstance(error.filename, (str, bytes)) else str(error.filename)


def _missing_path(message: str) -> str:
    """The path in a message of the library: what stands before "no such file", without the option,
    the variable or the constant that names it."""
    path = message.partition(_NO_SUCH_FILE)[0]
    if path.startswith("constant '"):
        return path.rpartition("': ")[2]
    for names_it in ("trust.keys: ", "ACCRT_TRUST_KEYS: "):
        path = path[len(names_it):] if path.startswith(names_it) else path
    return path


def class_of(status: int) -> type:
    """What a status of the library is raised as."""
    return _CLASSES.get(status, Error)


def _class_of(status: int, driver_name: str, message: str) -> type:
    if status == _ffi.ACCRT_ERROR_POISONED and _CANCELLED_WORK.match(message):
        return CancelledWorkError
    if status == _ffi.ACCRT_ERROR_NOT_FOUND and driver_name in ("ENOENT", "ENOTDIR"):
        return MissingFileError
    return class_of(status)


def make(status: int, name: str, record) -> Error:
    """The exception of `status` from a C record (accrt_error)."""
    message = record.message.decode("utf-8", "replace") or name
    return _class_of(status, record.driver_name.decode(), message)(
        message, name=name, operation=record.operation.decode(),
        source=f"{record.source_file.decode('utf-8', 'replace')}:{record.source_line}", driver_code=record.driver_code,
        driver_name=record.driver_name.decode(), submission=record.submission)


def _rebuild(status: int, message: str, record: dict) -> Error:
    return _class_of(status, record.get("driver_name", ""), message)(message, **record)
