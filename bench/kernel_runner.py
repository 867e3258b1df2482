"""Kernels of the reference compiler run in benchmarks: launches bound to arrays, one after the
other, by threads (kernel_runner.c). Import it after the environment has the number of threads that
numpy may use."""

import ctypes
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "python"))
import kernel_harness as harness  # noqa: E402
from accrt.compiler.kernels import image  # noqa: E402


class RunnerLaunch(ctypes.Structure):
    _fields_ = [
        ("entry", ctypes.c_void_p),
        ("params", ctypes.c_void_p),
        ("params_size_bytes", ctypes.c_uint32),
        ("local_memory_size_bytes", ctypes.c_uint32),
        ("grid", ctypes.c_uint32 * 3),
    ]


def load_runner():
    output = os.path.join(tempfile.mkdtemp(), "runner.so")
    command = ["gcc", "-O3", "-march=native", "-shared", "-fPIC", f"-I{image.include_directory()}", str(ROOT / "bench" / "kernel_runner.c")]
    subprocess.run([*command, "-o", output, "-lpthread"], check=True)
    runner = ctypes.CDLL(output)
    runner.runner_run.restype = ctypes.c_int64
    runner.runner_run.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint32]
    runner.runner_read.restype = ctypes.c_int64
    runner.runner_read.argtypes = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint32]
    return runner


def aligned(size):
    """Zeroed bytes at a multiple of 64."""
    raw = np.zeros(size + 64, np.uint8)
    start = (-raw.ctypes.data) % 64
    return raw[start : start + size]


def bound(launch, arrays, target):
    """The launch for the runner, and its parameter block, which is kept as long as it runs."""
    record = harness.load([launch.kernel], target)[launch.kernel.name]
    addresses = {param: arrays[argument.operand].ctypes.data for param, argument in launch.buffers.items()}
    block = aligned(launch.kernel.params_size_bytes)
    block[:] = np.frombuffer(harness.pack_params(launch, addresses), np.uint8)
    return RunnerLaunch(record.entry, block.ctypes.data, len(block), record.local_memory_size_bytes, tuple(launch.grid)), block
