"""Compiles CUDA units with NVRTC, for machines without nvcc: the same sources and options, by a
library that comes from the Python registry. It needs no GPU and no C compiler."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Sequence

from ..._nvrtc import CompileError, Nvrtc, find
from ..kernels.image import ImageError
from ..kernels.kerneldef import CUDA_DIRECTORY

# As nvcc.py's, in NVRTC's words. Code outside of functions with __device__ is the device's too.
_OPTIONS = ("--std=c++17", "-default-device", "--fmad=false", "--diag-suppress=177", "--pre-include=math.h")
#: What NVRTC does not have of the C library.
_HEADERS = CUDA_DIRECTORY / "nvrtc"


def found() -> Nvrtc:
    """NVRTC with CUDA's headers. Raises ImageError, on one line."""
    try:
        nvrtc = find()
    except CompileError as error:
        raise ImageError(str(error)) from None
    if not nvrtc.include:
        raise ImageError("NVRTC is here, but there is no cuda_fp16.h near it (pip install nvidia-cuda-runtime)")
    return nvrtc


def version(nvrtc: Nvrtc) -> str:
    """For keys of caches: the compiler, and the headers that it reads beside the unit's own."""
    ours = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(_HEADERS.iterdir()))).hexdigest()[:16]
    api = Path(nvrtc.include[0], "cuda.h")
    lines = [line for line in api.read_text(errors="replace").splitlines() if line.startswith("#define CUDA_VERSION")] if api.is_file() else []
    return f"NVRTC {nvrtc.version[0]}.{nvrtc.version[1]} {ours} {' '.join(lines)}"


def compiled(nvrtc: Nvrtc, text: str, arch: str, flags: Sequence[str]) -> bytes:
    """One unit: for sm_* a cubin, for compute_* PTX. Raises ImageError with what NVRTC says."""
    folders = (os.fspath(CUDA_DIRECTORY), os.fspath(_HEADERS), *nvrtc.include)
    # An option that stands twice has its last value, and a warning.
    options = [one for one in _OPTIONS if not (one.startswith("--fmad") and any("-fmad=" in flag for flag in flags))]
    options += [f"--gpu-architecture={arch}", *(f"--include-path={folder}" for folder in folders), *flags]
    try:
        return nvrtc.compile(text, "unit.cu", "", options, not arch.startswith("compute_"))
    except CompileError as error:
        raise ImageError(f"compiling a kernel for {arch} failed: NVRTC {nvrtc.version[0]}.{nvrtc.version[1]} {' '.join(options)}\n{str(error)[:4000]}") from None
