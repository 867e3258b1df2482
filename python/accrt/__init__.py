"""accrt: Python bindings of libaccrt, a runtime for accelerator programs in .accx bundles.

    import accrt, numpy as np
    model = accrt.load("minilm.accx", host_code="all")   # a bundle that you trust: it carries machine code
    vectors = model.encode(ids, mask).numpy()

Pure Python over ctypes; numpy is optional. Objects keep alive what they need; `close()` or `with` gives handles back early.
Errors are exceptions under accrt.Error with the whole record of the C library. See docs/python-guide.md.
"""
from __future__ import annotations

from . import errors
from ._library import lib as _lib
from .bundle import Argument, Bundle, Constant, Signature, Symbol
from .errors import *  # noqa: F403 - one class for each status, listed in errors.__all__
from .instance import Device, DeviceInfo, Instance, caps, default_instance
from .kernels import Commands, Kernel, KernelPack, launch
from .memory import Buffer, Pool, PoolEntry
from .program import Call, Function, Program, Session, load
from .stream import Event, Semaphore, Stream
from .tensor import Tensor, from_dlpack

_version = _lib.accrt_version()
__version__ = f"{_version >> 24}.{(_version >> 12) & 0xFFF}.{_version & 0xFFF}"

__all__ = [
    "Argument", "Buffer", "Bundle", "Call", "Commands", "Constant", "Device", "DeviceInfo", "Event", "Function", "Instance",
    "Kernel", "KernelPack", "Pool", "PoolEntry", "Program", "Semaphore", "Session", "Signature", "Stream", "Symbol", "Tensor",
    "caps", "default_instance", "from_dlpack", "launch", "load", "__version__", *errors.__all__,
]
