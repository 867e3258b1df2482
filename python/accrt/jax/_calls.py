"""What XLA calls (python/native/xla_call.c): its registration with JAX, and the functions that it
finds by their number."""
from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import re
import threading
from operator import index
from typing import Any, Optional, Sequence

import jax

from .. import _fast
from ..bundle import Bundle
from ..program import Program

TARGET = "accrt_call"
READ, SCALAR, WRITTEN = 0, 1, 2  # as python/native/xla_call.c has them
_MINOR = 3  # of XLA's ABI, where jaxlib does not say
#: Numbers of functions by what they are of, which is kept for as long as the process: compiled code
#: knows the numbers alone.
_made: dict[Any, int] = {}
_making = threading.Lock()


def _minor() -> int:
    """Of the ABI that this jaxlib has. What is used of it is the same in all of them."""
    try:
        with open(os.path.join(jax.ffi.include_dir(), "xla", "ffi", "api", "c_api.h"), encoding="utf-8") as header:
            found = re.search(r"#define XLA_FFI_API_MINOR (\d+)", header.read())
    except OSError:
        found = None
    return int(found[1]) if found else _MINOR


@functools.lru_cache(maxsize=None)
def register() -> Any:
    """Tells JAX what to call, once. The C part of the package."""
    native = _fast.native
    if native is None:
        raise ImportError("accrt.jax needs accrt._native, the C part of the package: this one was built without Python's headers, or ACCRT_NATIVE=0 is set")
    for platform, address in zip(("cpu", "CUDA"), native.xla_handlers(_minor())):
        jax.ffi.register_ffi_target(TARGET, jax.ffi.pycapsule(ctypes.c_void_p(address)), platform=platform)
    return native


def _first_number(bundle: Bundle, function: str) -> int:
    """Of a function: the same in each process, so that compiled code can be kept and exported. 62
    bits, whose last 8 tell functions apart that are made twice."""
    said = hashlib.sha256(f"{os.path.basename(str(bundle.info['name']))}\n{bundle.signature(function)}\n{bundle.info['size_bytes']}\n".encode())
    for constant in bundle.constants:
        said.update(constant.digest)
    return int.from_bytes(said.digest()[:8], "little") >> 2 & ~0xFF


def add(bundle: Bundle, program: Optional[Program], function: str, where: str, kinds: Sequence[int]) -> int:
    """Makes a function of a bundle one that XLA can call. Its number."""
    native = register()
    key = (bundle, program, function)
    with _making:
        if key not in _made:
            _made[key] = int(native.xla_function(_first_number(bundle, function), function, where, *_handles(bundle, program), bytes(kinds),
                                                 len(bundle.signature(function).results)))
        return _made[key]


def _handles(bundle: Bundle, program: Optional[Program]) -> tuple[Any, ...]:
    """Addresses: of the instance, the bundle, and the program with its device, and that one's
    name."""
    if program is None:
        return index(bundle.instance.handle), index(bundle.handle), 0, 0, ""
    return index(bundle.instance.handle), index(bundle.handle), index(program.handle), index(program.device.handle), program.device.name
