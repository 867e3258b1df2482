"""Runs kernels of the reference compiler straight from their image, as the runtime would: no
runtime is needed.

Buffers are copied between guard bytes, outputs start as a poison pattern, workgroups run in a
shuffled order on one thread or on two, local memory is poisoned with NaN.
"""

from __future__ import annotations

import concurrent.futures
import ctypes
import ctypes.util
import functools
import os
import random
import shutil
import struct
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Dict, Mapping, Sequence

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python"))

from accrt.compiler.kernels import image  # noqa: E402
from accrt.compiler.kernels.kerneldef import KernelDef, Launch, TensorSpec  # noqa: E402

NUMPY = {
    "bool": np.bool_, "i8": np.int8, "u8": np.uint8, "i16": np.int16, "u16": np.uint16, "i32": np.int32, "u32": np.uint32,
    "i64": np.int64, "u64": np.uint64, "f16": np.float16, "bf16": np.uint16, "f32": np.float32, "f64": np.float64,
}  # fmt: skip
SCALAR_FORMATS = {
    "f32": "f", "f64": "d", "i8": "b", "u8": "B", "bool": "B", "i16": "h", "u16": "H", "i32": "i", "u32": "I", "i64": "q", "u64": "Q",
    "f16": "f", "bf16": "f",
}  # fmt: skip
SEED = int(os.environ.get("ACCRT_TEST_SEED", "20261120"))
GUARD_BYTES = 256
POISON = 0xFF  # a NaN in every float type


def bf16_from(values: Any) -> np.ndarray:
    """Round to nearest even, as bits in uint16."""
    bits = np.asarray(values, np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(np.asarray(values, np.float32)), (bits >> 16) | 0x40, rounded).astype(np.uint16)


def bf16_to(bits: np.ndarray) -> np.ndarray:
    return np.asarray(bits.astype(np.uint32) << 16, np.uint32).view(np.float32)


def encode(values: Any, dtype: str) -> np.ndarray:
    """Values as an array of a type; bf16 as its bits."""
    if dtype == "bf16":
        return bf16_from(values)
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(values).astype(NUMPY[dtype])


def decode(array: np.ndarray, dtype: str) -> np.ndarray:
    """An array as float64 (floats) or as itself (integers)."""
    if dtype == "bf16":
        return bf16_to(array).astype(np.float64)
    return array.astype(np.float64) if dtype in ("f16", "f32", "f64") else array


def spec_of(array: np.ndarray, dtype: str) -> TensorSpec:
    if array.size == 0:  # numpy's strides of empty arrays are arbitrary
        return TensorSpec.contiguous(dtype, array.shape)
    return TensorSpec(dtype, tuple(array.shape), tuple(s // array.itemsize for s in array.strides))


class _Imports(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_uint32), ("reserved", ctypes.c_uint32)] + [
        (name, ctypes.c_void_p)
        for name in (
            "memcpy memmove memset memcmp expf exp2f expm1f logf log2f log1pf powf sinf cosf tanhf erff fmodf "
            "exp expm1 log log1p pow sin cos tanh erf fmod"
        ).split()
    ]


class _Environment(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_uint32),
        ("abi_version", ctypes.c_uint32),
        ("cpu_features", ctypes.c_uint64),
        ("imports", ctypes.POINTER(_Imports)),
    ]


class _Dispatch(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_uint32),
        ("workgroup_count", ctypes.c_uint32 * 3),
        ("params", ctypes.c_void_p),
        ("params_size_bytes", ctypes.c_uint32),
        ("worker_count", ctypes.c_uint32),
        ("submission", ctypes.c_uint64),
    ]


class _Workgroup(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_uint32),
        ("workgroup_id", ctypes.c_uint32 * 3),
        ("worker_id", ctypes.c_uint32),
        ("local_memory_size_bytes", ctypes.c_uint32),
        ("local_memory", ctypes.c_void_p),
        ("message", ctypes.c_void_p),
        ("message_capacity_bytes", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
    ]


class _Def(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_uint32),
        ("traits", ctypes.c_uint32),
        ("name", ctypes.c_char_p),
        ("entry", ctypes.c_void_p),
        ("params", ctypes.c_void_p),
        ("param_count", ctypes.c_uint32),
        ("params_size_bytes", ctypes.c_uint32),
        ("local_memory_size_bytes", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
        ("required_cpu_features", ctypes.c_uint64),
        ("source_file", ctypes.c_char_p),
        ("source_line", ctypes.c_uint32),
        ("reserved2", ctypes.c_uint32),
        ("block", ctypes.c_uint32 * 3),
        ("cluster", ctypes.c_uint32 * 3),
    ]


class _Table(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_uint32),
        ("abi_version", ctypes.c_uint32),
        ("name", ctypes.c_char_p),
        ("kernels", ctypes.POINTER(_Def)),
        ("kernel_count", ctypes.c_uint32),
        ("kernel_size_bytes", ctypes.c_uint32),
        ("host_operators", ctypes.c_void_p),
        ("host_operator_count", ctypes.c_uint32),
        ("host_operator_size_bytes", ctypes.c_uint32),
    ]


_ENTRY = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.POINTER(_Environment), ctypes.POINTER(_Dispatch), ctypes.POINTER(_Workgroup))


def _cpu_features() -> int:
    """Features that kernels look for while they run."""
    flags = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    return sum(1 << bit for name, bit in (("avx512_vnni", 3),) if f" {name}" in flags)


def _make_environment() -> _Environment:
    libc, libm = ctypes.CDLL(None), ctypes.CDLL(ctypes.util.find_library("m"))
    imports = _Imports(struct_size=ctypes.sizeof(_Imports))
    for name, _kind in _Imports._fields_[2:]:
        library = libc if name.startswith("mem") else libm
        setattr(imports, name, ctypes.cast(getattr(library, name), ctypes.c_void_p).value)
    made = _Environment(ctypes.sizeof(_Environment), 1, _cpu_features(), ctypes.pointer(imports))
    made.keep = imports
    return made


ENVIRONMENT = _make_environment()


class KernelFailure(Exception):
    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code, self.message = code, message


def host_targets() -> Sequence[str]:
    """Targets whose images this machine can build and run directly."""
    flags = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    able = {"x86-64-v3": " avx2 " in flags, "x86-64-v4": " avx512vl " in flags, "aarch64": os.uname().machine == "aarch64"}
    return [name for name in image.available_targets()[0] if able[name]]


def other_cache(folder: Path) -> str:
    """A cache of a test's own, as XDG_CACHE_HOME names it, but for kernels, which take long to
    compile."""
    kernels, own = image.cache_directory(), folder / "accrt"
    own.mkdir(parents=True)
    if kernels is not None:
        kernels.mkdir(parents=True, exist_ok=True)
        (own / "kernels").symlink_to(kernels)
    return str(folder)


_LOADED: Dict[Any, Any] = {}


def load(kernels: Sequence[KernelDef], target: str) -> Mapping[str, _Def]:
    """Builds and opens an image; its kernel records by name. Images live until the process ends, as
    backends do."""
    content = image.build_image(kernels, target)
    if content not in _LOADED:
        handle, path = tempfile.mkstemp(suffix=".so")
        with os.fdopen(handle, "wb") as out:
            out.write(content)
        library = ctypes.CDLL(path)
        os.unlink(path)
        library.accrt_kernel_pack_query.restype = ctypes.POINTER(_Table)
        table = library.accrt_kernel_pack_query(ctypes.c_uint32(1), ctypes.byref(ENVIRONMENT)).contents
        _LOADED[content] = {table.kernels[i].name.decode(): table.kernels[i] for i in range(table.kernel_count)}
    return _LOADED[content]


def pack_params(launch: Launch, addresses: Mapping[str, int], workspace: int = 0) -> bytes:
    """The packed block of a launch: addresses of its buffers, values of its symbols and scalars."""
    kernel = launch.kernel
    block = bytearray(kernel.params_size_bytes)
    for param in kernel.params:
        if param.kind == "buffer":
            struct.pack_into("<Q", block, param.offset, addresses.get(param.name, 0))
        elif param.kind == "workspace":
            struct.pack_into("<Q", block, param.offset, workspace)
        else:
            struct.pack_into("<" + SCALAR_FORMATS[param.dtype], block, param.offset, launch.values[param.name])
    return bytes(block)


class Memory:
    """Operands with guard bytes on both sides; `check` finds writes outside and writes to
    inputs."""

    def __init__(self) -> None:
        self.arrays: Dict[str, np.ndarray] = {}
        self._blocks: Dict[str, Any] = {}
        self._before: Dict[str, bytes] = {}

    def add(self, name: str, array: np.ndarray, poison: bool, shift: int = 0) -> None:
        """Places an array with its strides; its gaps, and all of it when `poison`, hold the poison
        pattern."""
        span = array.itemsize * (1 + sum((n - 1) * (s // array.itemsize) for n, s in zip(array.shape, array.strides))) if array.size else 0
        block = np.full(span + 2 * GUARD_BYTES + 64 + shift, POISON, np.uint8)
        start = (-block.ctypes.data) % 64 + GUARD_BYTES + shift
        placed = np.ndarray(array.shape, array.dtype, block.data, start, array.strides) if array.size else array
        if array.size and not poison:
            placed[...] = array
        self.arrays[name], self._blocks[name] = placed, (block, start, span, poison)
        if not poison:
            self._before[name] = block.tobytes()

    def address(self, name: str) -> int:
        block, start, _span, _poison = self._blocks[name]
        return block.ctypes.data + start

    def check(self) -> None:
        for name, (block, start, span, poison) in self._blocks.items():
            if not poison:
                assert block.tobytes() == self._before[name], f"input {name} was written to"
                continue
            assert (block[:start] == POISON).all() and (block[start + span :] == POISON).all(), f"{name}: written outside"
            placed = self.arrays[name]
            if placed.size and placed.size * placed.itemsize != span:
                inside = np.ones(span, bool)
                shape, item = placed.shape, placed.itemsize
                mask = np.ndarray((*shape, item), bool, inside.data, 0, (*placed.strides, 1))
                mask[...] = False
                assert (block[start : start + span][inside] == POISON).all(), f"{name}: written between its rows"


def _addresses(launch: Launch, memory: Memory) -> Dict[str, int]:
    found = {}
    for param, argument in launch.buffers.items():
        item = memory.arrays[argument.operand].itemsize
        found[param] = memory.address(argument.operand) + argument.offset * item
    return found


def run_launch(launch: Launch, memory: Memory, target: str, threads: int = 1) -> None:
    """Runs every workgroup of a launch in a shuffled order. Raises KernelFailure when one fails."""
    assert all(size >= 1 for size in launch.grid), f"grid {launch.grid}"
    if image.TARGETS[target].arch != os.uname().machine:
        _run_foreign(launch, memory, target)
        return
    kernel = launch.kernel
    record = load([kernel], target)[kernel.name]
    entry = _ENTRY(record.entry)
    scratch = np.full(int(launch.workspace_bytes) + 64, POISON, np.uint8)
    packed = pack_params(launch, _addresses(launch, memory), (scratch.ctypes.data + 63) // 64 * 64)
    block = np.zeros(len(packed) + 16, np.uint8)
    start = (-block.ctypes.data) % 16
    block[start : start + len(packed)] = np.frombuffer(packed, np.uint8)
    x, y, z = launch.grid
    dispatch = _Dispatch(ctypes.sizeof(_Dispatch), (x, y, z), block.ctypes.data + start, len(packed), threads, 1)
    groups = [(i, j, k) for k in range(z) for j in range(y) for i in range(x)]
    random.Random(SEED).shuffle(groups)

    def work(worker: int) -> None:
        size = record.local_memory_size_bytes
        local = np.full(size + 128 + 64, POISON, np.uint8)
        at = (-local.ctypes.data) % 64
        message = ctypes.create_string_buffer(200)
        for i, j, k in groups[worker::threads]:
            group = _Workgroup(
                ctypes.sizeof(_Workgroup), (i, j, k), worker, size, local.ctypes.data + at if size else None,
                ctypes.addressof(message), 200, 0,
            )  # fmt: skip
            code = entry(ctypes.byref(ENVIRONMENT), ctypes.byref(dispatch), ctypes.byref(group))
            if code:
                raise KernelFailure(code, message.value.decode())
        assert (local[at + size :] == POISON).all(), "local memory: written outside"

    if threads == 1:
        work(0)
        return
    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, range(threads)))


# ---- Images for another machine, under qemu ------------------------------------------------------

_SYSROOT = "/usr/aarch64-linux-gnu"


def foreign_reason() -> str:
    """Why aarch64 images cannot be tried here; empty when they can."""
    if os.uname().machine == "aarch64":
        return "this machine is aarch64: its images run directly"
    reason = image.available_targets()[1].get("aarch64", "")
    for tool in ("qemu-aarch64", "aarch64-linux-gnu-gcc"):
        if not reason and shutil.which(tool) is None:
            reason = f"{tool} is not installed"
    return reason


@functools.lru_cache(maxsize=None)
def _foreign_runner() -> str:
    output = os.path.join(tempfile.mkdtemp(prefix="accrt-runner-"), "runner")
    source = Path(__file__).with_name("kernel_runner_foreign.c")
    command = ["aarch64-linux-gnu-gcc", "-O1", f"-I{image.include_directory()}", str(source), "-o", output, "-ldl", "-lm"]
    subprocess.run(command, check=True)
    return output


def _run_foreign(launch: Launch, memory: Memory, target: str) -> None:
    def number(*values: int) -> bytes:
        return struct.pack(f"<{len(values)}Q", *values)

    def sized(content: bytes) -> bytes:
        return number(len(content)) + content

    names = sorted(memory._blocks)
    job = sized(launch.kernel.name.encode()) + sized(pack_params(launch, {})) + number(*launch.grid, len(names) + 1)
    for name in names:
        job += sized(memory._blocks[name][0].tobytes())
    job += sized(bytes([POISON]) * int(launch.workspace_bytes))
    scratch = [param.offset for param in launch.kernel.params if param.kind == "workspace"]
    job += number(len(launch.buffers) + len(scratch))
    for offset in scratch:
        job += number(offset, len(names), 0)
    for param, address in _addresses(launch, memory).items():
        name = launch.buffers[param].operand
        offset = address - memory._blocks[name][0].ctypes.data
        job += number(launch.kernel.param(param).offset, names.index(name), offset)
    with tempfile.TemporaryDirectory() as directory:
        paths = [os.path.join(directory, name) for name in ("image.so", "job", "result")]
        Path(paths[0]).write_bytes(image.build_image([launch.kernel], target))
        Path(paths[1]).write_bytes(job)
        subprocess.run(["qemu-aarch64", "-L", _SYSROOT, _foreign_runner(), *paths], check=True)
        result = Path(paths[2]).read_bytes()
    code = struct.unpack_from("<q", result)[0]
    if code:
        raise KernelFailure(code, result[8:208].split(b"\0")[0].decode())
    at = 208
    for name in names:
        block = memory._blocks[name][0]
        block[:] = np.frombuffer(result, np.uint8, len(block), at)
        at += len(block)


def run(
    launch: Launch,
    inputs: Mapping[str, np.ndarray],
    outputs: Mapping[str, np.ndarray],
    target: str,
    threads: int = 1,
) -> Dict[str, np.ndarray]:
    """Runs a launch on copies of the inputs; returns the outputs. `outputs` give shapes, types and
    strides alone."""
    memory = Memory()
    for name, array in inputs.items():
        memory.add(name, array, poison=False)
    for name, array in outputs.items():
        memory.add(name, array, poison=True)
    run_launch(launch, memory, target, threads)
    memory.check()
    return {name: memory.arrays[name].copy() for name in outputs}
