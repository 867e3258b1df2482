"""Exceptions: one class for each status of the C API, all under Error, each with the whole record."""
from __future__ import annotations

from . import _ffi


class Error(RuntimeError):
    """A failed call.

    Attributes:
        status (int): the C status. name (str): its name, "ACCRT_ERROR_...".
        message (str): one line with the offending values.
        operation (str): the C function that failed. source (str): file:line inside the library.
        driver_code (int), driver_name (str): the driver's, the kernel's or the system's own code and its name.
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
        # RuntimeError and NotImplementedError share a layout; OSError first, its __init__ takes what is given.
        _bases = (Error,) if _base is None or issubclass(_base, RuntimeError) else (Error, _base)
        _class = type(_class_name(_name), _bases, {"__doc__": f"{_name}.", "status": _status})
        _CLASSES[_status] = globals()[_class.__name__] = _class
        __all__.append(_class.__name__)


def make(status: int, name: str, record) -> Error:
    """The exception of `status` from a C record (accrt_error)."""
    return _CLASSES.get(status, Error)(
        record.message.decode("utf-8", "replace") or name, name=name, operation=record.operation.decode(),
        source=f"{record.source_file.decode('utf-8', 'replace')}:{record.source_line}", driver_code=record.driver_code,
        driver_name=record.driver_name.decode(), submission=record.submission)


def _rebuild(status: int, message: str, record: dict) -> Error:
    return _CLASSES.get(status, Error)(message, **record)
