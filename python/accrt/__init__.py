"""accrt: Python bindings of libaccrt, a runtime for accelerator programs in .accx bundles.

    import accrt, numpy as np
    model = accrt.load("minilm.accx")   # machine code of your own compiling runs; see docs/trust.md for other people's
    vectors = model.encode(ids, mask).numpy()

Pure Python over ctypes; numpy is optional. Objects keep alive what they need; `close()` or `with`
gives handles back early. Errors are exceptions under accrt.Error with the whole record of the C
library. See docs/python-guide.md.

The shared library is loaded at the first use of a name below; accrt.bundle_writer and
accrt.compiler load it, and libaccrt_write.so, when they write.
"""
from __future__ import annotations

import importlib

# Which module has which name; __init__.pyi says it to type checkers. The exception classes are in
# errors.
_MODULES = {
    "_cuda_arrays": ("from_cuda_array",),
    "_kernel_gpu": ("GpuKernel",),
    "_nvrtc": ("CompileError",),
    "_records": ("Argument", "Asset", "Constant", "Counter", "DeviceInfo", "PoolEntry", "Signature", "Symbol"),
    "adapter": ("Adapter",),
    "budget": ("Budget",),
    "bundle": ("Bundle",),
    "call": ("Call", "Function"),
    "instance": ("Device", "Instance", "caps", "default_instance"),
    "kernels": ("Commands", "DeviceKernel", "Kernel", "KernelPack", "Launch", "launch"),
    "llm": ("BadParameter", "LLM"),
    "memory": ("Buffer", "Pool"),
    "program": ("Program", "load"),
    "session": ("Session",),
    "stream": ("Event", "Semaphore", "Stream"),
    "tensor": ("Tensor", "from_dlpack"),
    "weights": ("Weight", "Weights"),
}
# Modules that are loaded when they are first named.
_LAZY = ("bundle_reader", "bundle_writer", "compiler", "errors", "from_onnx", "from_torch", "jax", "layouts", "models", "serve", "torch", "trust", "weights")
_HOME = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [*_HOME, "__version__", "Error"]  # noqa: F405 - __getattr__ makes them


def _library_version() -> str:
    from ._library import lib
    number = lib.accrt_version()
    return f"{number >> 24}.{(number >> 12) & 0xFFF}.{number & 0xFFF}"


def __getattr__(name: str):
    if name.startswith("__") and name != "__version__":
        raise AttributeError(name)
    if name == "__version__":
        value = _library_version()
    elif name in _LAZY:
        value = importlib.import_module("." + name, __name__)
    elif name in _HOME:
        value = getattr(importlib.import_module("." + _HOME[name], __name__), name)
    else:
        value = getattr(importlib.import_module(".errors", __name__), name, None)
        if value is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__():
    from . import errors
    return sorted({*globals(), *__all__, *errors.__all__})
