"""accrt._native: the C part that takes arguments apart and calls in one step. It is optional:
whatever it does not know, and all of it where it is not there, is done in Python, by the same
rules.

`ACCRT_NATIVE=0` in the environment does without. It is in the wheel, beside this file; in the tree
it is beside libaccrt.so.
"""
from __future__ import annotations

import contextlib
import ctypes
import importlib.machinery
import importlib.util
import os
import sys
import threading
import weakref
from typing import Any

from . import _ffi
from ._library import lib
from ._system import loaded_library
from ._waits import SLICE_NS

FILE = "_native.abi3.so"


def _places() -> list[str]:
    """Where it may be. One that is beside the library was built with it."""
    return [os.path.join(folder, FILE) for folder in (os.path.dirname(lib._name), os.path.dirname(os.path.realpath(__file__))) if folder]


def _load() -> Any:
    if os.environ.get("ACCRT_NATIVE") == "0" or sys.implementation.name != "cpython" or not getattr(sys, "_is_gil_enabled", lambda: True)():
        return None
    name = f"{__package__}._native"
    for path in filter(os.path.exists, _places()):
        try:
            spec = importlib.util.spec_from_file_location(name, path, loader=importlib.machinery.ExtensionFileLoader(name, path))
            module = importlib.util.module_from_spec(spec)  # type: ignore[arg-type]
        except ImportError:  # of another processor, or of a Python without the stable ABI
            continue
        get_api = ctypes.cast(lib["accrt_get_api"], ctypes.c_void_p).value
        if module.connect(get_api, _VERSION):
            return module
    return None


_VERSION = _ffi.ACCRT_VERSION_MAJOR << 24 | _ffi.ACCRT_VERSION_MINOR << 12 | _ffi.ACCRT_VERSION_PATCH
native = _load()

#: Classes that were looked at.
_seen: weakref.WeakSet[type] = weakref.WeakSet()
#: Whether tensors of torch's are asked in C++.
asks_in_cpp = False


def learn(value: object) -> None:
    """Looks at a value that the quick way did not take: the next one of its class it may."""
    learn_class(type(value))


def learn_class(kind: type) -> None:
    """The same of a class."""
    if native is None or kind in _seen:
        return
    _seen.add(kind)
    numpy = sys.modules.get("numpy")
    if numpy is not None and kind is getattr(numpy, "ndarray", None):
        native.learn_array(kind)
        return
    # DLPack comes first, but CuPy's has no exchange.
    if kind.__module__.partition(".")[0] == "cupy" or not hasattr(kind, "__dlpack__"):
        if hasattr(kind, "__cuda_array_interface__") and native.learn_cuda_array(kind):
            return
    # Of the class itself: a subclass may mean something else.
    table = vars(kind).get("__dlpack_c_exchange_api__")
    if type(table).__name__ == "PyCapsule":
        try:
            native.learn_exchange(kind, table, hasattr(kind, "requires_grad"))
        except ValueError:  # a capsule of another name
            pass
        else:
            _learn_questions(kind)


def _learn_questions(kind: type) -> None:
    """Whether a gradient of a tensor of torch's is wanted, and whether it is negated, is asked in
    C++ where torch has these functions, and its objects have the address of the tensor, as samples
    show. They are made in a new thread, where no mode and no default device is."""
    torch = sys.modules.get("torch")
    if torch is None or kind is not torch.Tensor:
        return

    def learn() -> None:
        global asks_in_cpp
        with contextlib.suppress(Exception):  # of any kind: then they are asked in Python
            core, cpu = loaded_library("libc10.so"), loaded_library("libtorch_cpu.so")
            functions = (core._ZNK3c1010TensorImpl13requires_gradEv, cpu._ZN2at6native6is_negERKNS_6TensorE)
            plain, leaf = torch.empty(2), torch.empty(2, requires_grad=True)
            samples = ((plain, False, False), (leaf, True, False), (leaf * 2, True, False), (torch._neg_view(plain), False, True),
                       (leaf.detach(), False, False), (torch._neg_view(leaf), True, True))
            asks_in_cpp = native.learn_questions(kind, kind.__basicsize__, *(ctypes.cast(f, ctypes.c_void_p).value for f in functions),
                                                 tuple((t, t._cdata, *answers) for t, *answers in samples))

    with contextlib.suppress(RuntimeError):  # the process ends: there are no new threads
        thread = threading.Thread(target=learn)
        thread.start()
        thread.join()


def capsule(source: object) -> Any:
    """A DLPack capsule of a host tensor through the C exchange, or None."""
    if native is None:
        return None
    learn(source)
    return native.capsule(source)


_READ, _WRITTEN, _SCALAR, _OPTIONAL, _BITS, _SHARED = 0, 1, 2, 4, 8, 16  # as caller.c has them


def kinds(prepared, shared: frozenset[int]) -> bytes:
    """What a Caller has to know of each argument. shared: inputs whose memory results may have."""
    known = bytearray()
    for index, argument in enumerate(prepared.arguments):
        kind = _SCALAR if argument.kind == "scalar" else _READ if argument.kind == "read" else _WRITTEN
        if argument.optional or index >= prepared.inputs:
            # results that are not given are allocated
            kind |= _OPTIONAL
        known.append(kind | (_BITS if index in prepared.bits else 0) | (_SHARED if index in shared else 0))
    return bytes(known)


def caller(call, device) -> Any:
    """What runs a Call in one step, or None."""
    from . import _window  # circular
    prepared = call._prepared
    if native is None or len(prepared.arguments) > 256:
        return None
    return native.Caller(call._pointer, call._pointer.__index__(), prepared.kinds, prepared.inputs, call._bound, device,
                         device.info.host_memory, SLICE_NS, _window.gpu_of(native, call._session), prepared._indices)
