"""Runs the CUDA functions of bundles without the runtime: the Python executor of tests/python with
device code in place of host code, launched one by one through the driver's library. All memory is
pinned and mapped, so the executor's guards hold for it.

With ACCRT_TEST_EXACT=1 each buffer is an allocation of its own, of exactly its size: for
compute-sanitizer, which then finds reads outside too.
"""

from __future__ import annotations

import ctypes
import os
import random
import sys
from typing import Any, Dict, List, Set, Tuple

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, "python"))

import accx_exec  # noqa: E402
from accx_exec import GUARD, Bundle, Expressions, _Run, check  # noqa: E402
from kernel_harness import SEED  # noqa: E402

_EXACT = os.environ.get("ACCRT_TEST_EXACT") == "1"
_SLAB_BYTES = 64 << 20
_UNIT = 4096


class Driver:
    """The few calls that are needed; an error is an exception that names the call."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL("libcuda.so.1")
        self("cuInit", 0)
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self("cuDeviceGet", ctypes.byref(device), 0)
        self("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self("cuCtxSetCurrent", context)
        self.arch = "sm_%d%d" % tuple(self._attribute(device, which) for which in (75, 76))
        self.free: Dict[int, List[int]] = {}
        self.slab, self.end = 0, 0

    def __call__(self, name: str, *arguments: Any) -> None:
        status = getattr(self.library, name)(*arguments)
        if status:
            text = ctypes.c_char_p()
            self.library.cuGetErrorName(status, ctypes.byref(text))
            raise RuntimeError(f"{name}: {(text.value or b'?').decode()}")

    def _attribute(self, device: Any, which: int) -> int:
        value = ctypes.c_int()
        self("cuDeviceGetAttribute", ctypes.byref(value), which, device)
        return value.value

    def allocate(self, size: int) -> int:
        """Memory with the same address on both sides."""
        if _EXACT:
            place = ctypes.c_void_p()
            self("cuMemAllocManaged", ctypes.byref(place), ctypes.c_size_t(max(size, 1)), 1)
            return place.value
        size = -(-size // _UNIT) * _UNIT
        if self.free.get(size):
            return self.free[size].pop()
        if self.slab + size > self.end:
            place, slab = ctypes.c_void_p(), max(size, _SLAB_BYTES)
            self("cuMemHostAlloc", ctypes.byref(place), ctypes.c_size_t(slab), 3)
            self.slab, self.end = place.value, place.value + slab
        at, self.slab = self.slab, self.slab + size
        return at

    def release(self, address: int, size: int) -> None:
        if _EXACT:
            self("cuMemFree_v2", ctypes.c_uint64(address))
            return
        self.free.setdefault(-(-size // _UNIT) * _UNIT, []).append(address)


_driver: List[Driver] = []


def driver() -> Driver:
    if not _driver:
        _driver.append(Driver())
    return _driver[0]


class Memory:
    """As accx_exec.Memory, where the device sees it."""

    def __init__(self, size: int, fill: int = 0xFF, content: Any = None):
        guard = 0 if _EXACT else GUARD
        self.size, self.whole = size, size + 2 * guard
        self.base = driver().allocate(self.whole)
        self.block = np.ctypeslib.as_array((ctypes.c_uint8 * self.whole).from_address(self.base))
        self.start = guard
        self.block[:] = 0xA5
        self.array = self.block[self.start : self.start + size]
        self.array[:] = fill if content is None else np.frombuffer(content, np.uint8)

    @property
    def address(self) -> int:
        return self.base + self.start

    def check(self, name: str) -> None:
        ok = (self.block[: self.start] == 0xA5).all() and (self.block[self.start + self.size :] == 0xA5).all()
        check(bool(ok), f"{name}: written outside")

    def __del__(self) -> None:
        if _driver:
            driver().release(self.base, self.whole)


class CudaBundle(Bundle):
    """A function is its version for CUDA."""

    def function(self, name: str) -> Any:
        found = [f for f in self.functions if f.name == name and f.target == "cuda"]
        check(bool(found), f"no function {name!r} for CUDA")
        return found[0]


class Kernel:
    """A function of a loaded image, and how it is launched."""

    def __init__(self, name: str, handle: Any, block: Tuple[int, ...], cluster: Tuple[int, ...], shared: int, sizes: List[Tuple[int, int]]):
        self.name, self.handle, self.block, self.cluster, self.shared, self.sizes = name, handle, block, cluster, shared, sizes


class Program(accx_exec.Program):
    def __init__(self, data: bytes, arch: str = "", seed: int = SEED):
        accx_exec.Memory = Memory
        self.bundle, self.target, self.random = CudaBundle(data), arch or driver().arch, random.Random(seed)
        self.modules: Dict[int, Any] = {}
        self.kernels: Dict[int, Kernel] = {}
        self.dispatches = 0
        self.constants = [None if c["prepared"] else Memory(c["size"], content=c["bytes"]) for c in self.bundle.constants]
        for function in self.bundle.functions:
            if function.flags & 1 and function.target == "cuda":
                self._prepare(function)

    def module(self, index: int) -> Any:
        if index not in self.modules:
            _kind, _name, offset, size = self.bundle.images[index]
            base = self.bundle.sections[62][0]
            handle = ctypes.c_void_p()
            driver()("cuModuleLoadData", ctypes.byref(handle), self.bundle.data[base + offset : base + offset + size])
            self.modules[index] = handle
        return self.modules[index]

    def entry(self, kernel: int) -> Kernel:
        if kernel not in self.kernels:
            self.kernels[kernel] = self._load(kernel)
        return self.kernels[kernel]

    def _load(self, kernel: int) -> Kernel:
        name, _traits, first_param, params, _size, _local, first, count = self.bundle.kernels[kernel]
        launches = {record[0]: record for record in self.bundle.launches}
        best = []
        for at, variant in enumerate(self.bundle.variants[first : first + count]):
            driver_name, kind, arch, priority, _features, _required, image, entry, _qf, _qc = variant
            text = self.bundle.string(arch)
            fits = text in (self.target, self.target + "a") or (kind == 0 and first + at in launches)
            if self.bundle.string(driver_name) == "cuda" and fits and first + at in launches:
                best.append((priority, kind, -at, image, self.bundle.string(entry), launches[first + at]))
        check(bool(best), f"kernel {self.bundle.string(name)} has no variant for {self.target}")
        *_order, image, entry, launch = max(best)
        handle = ctypes.c_void_p()
        driver()("cuModuleGetFunction", ctypes.byref(handle), self.module(image), entry.encode())
        shared = launch[8]
        if shared > 48 << 10:
            driver()("cuFuncSetAttribute", handle, 8, shared)
        records = self.bundle.parameters[first_param : first_param + params]
        return Kernel(self.bundle.string(name), handle, launch[2:5], launch[5:8], shared, [(r[5], r[6]) for r in records])


#: Names of the kernels that the last call launched.
launched: Set[str] = set()


class Session(accx_exec.Session):
    def run(self, name: str, *tensors: Any, **scalars: int) -> List[np.ndarray]:
        launched.clear()
        # their memory is used again
        return [made.copy() for made in super().run(name, *tensors, **scalars)]


def _launch(self: _Run, name: str, kernel: Kernel, params: bytes, grid: Tuple[int, int, int], _local: int) -> None:
    if 0 in grid:
        return
    launched.add(kernel.name)
    block = ctypes.create_string_buffer(params, max(len(params), 1))
    pointers = (ctypes.c_void_p * max(len(kernel.sizes), 1))(*(ctypes.addressof(block) + at for at, _size in kernel.sizes))
    if any(kernel.cluster):
        driver()("cuFuncSetAttribute", kernel.handle, 14, 1)
        _launch_cluster(kernel, grid, pointers)
    else:
        driver()("cuLaunchKernel", kernel.handle, *grid, *kernel.block, kernel.shared, None, pointers, None)
    try:
        driver()("cuCtxSynchronize")
    except RuntimeError as error:
        raise RuntimeError(f"{name}: {error}") from None


class _Attribute(ctypes.Structure):
    _fields_ = [("id", ctypes.c_int), ("pad", ctypes.c_int), ("value", ctypes.c_uint32 * 16)]


class _Config(ctypes.Structure):
    _fields_ = [("sizes", ctypes.c_uint32 * 7), ("stream", ctypes.c_void_p), ("attributes", ctypes.POINTER(_Attribute)),
                ("count", ctypes.c_uint32)]  # fmt: skip


def _launch_cluster(kernel: Kernel, grid: Tuple[int, int, int], pointers: Any) -> None:
    attribute = _Attribute(4, 0, (ctypes.c_uint32 * 16)(*kernel.cluster))
    config = _Config((ctypes.c_uint32 * 7)(*grid, *kernel.block, kernel.shared), None, ctypes.pointer(attribute), 1)
    driver()("cuLaunchKernelEx", ctypes.byref(config), kernel.handle, pointers, None)


_host_launch = _Run.launch


def _either(self: _Run, name: str, record: Any, *rest: Any) -> None:
    (_launch if isinstance(record, Kernel) else _host_launch)(self, name, record, *rest)


_Run.launch = _either
__all__ = ["Expressions", "Program", "Session", "driver", "launched"]
