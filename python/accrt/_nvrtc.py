"""NVRTC, NVIDIA's compiler for CUDA C++ as a library, opened when it is first needed. It needs no
GPU."""
from __future__ import annotations

import ctypes
import functools
import glob
import json
import os
import re
import sys
from typing import Any, Sequence

from . import _limited
from ._kernel_cache import cached, digest
from ._system import open_library


class CompileError(RuntimeError):
    """A kernel does not compile. The message begins with the compiler's own lines."""


#: Kernels take seconds, and some hundred MiB. Some sources have no end, or need all memory.
COMPILE_SECONDS, COMPILE_BYTES, IMAGE_BYTES = 600.0, 8 << 30, 1 << 30
_NAMES = ("libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so")
_OPTIONS = ("--std=c++17", "-default-device")
_ARCH = re.compile(r"(?:sm_(\d+)[af]?|compute_(\d+))\Z")


def _places() -> list[str]:
    """Where it may be, the preferred first: the environment's choice alone; wheels; toolkits; where
    the system looks."""
    chosen = os.environ.get("ACCRT_NVRTC")
    if chosen is not None:
        return [chosen]
    folders = [found for path in sys.path if os.path.isabs(path)
               for found in sorted(glob.glob(os.path.join(glob.escape(path), "nvidia", "*", "lib")), reverse=True)]  # fmt: skip
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        folders += [os.path.join(os.environ[variable], "lib64")] if os.environ.get(variable) else []
    folders.append("/usr/local/cuda/lib64")
    near = [os.path.join(folder, name) for folder in folders for name in _NAMES]
    return [*dict.fromkeys(filter(os.path.exists, near)), *_NAMES]


class Nvrtc:
    """The library. version: (major, minor). include: folders of CUDA's headers beside it."""

    def __init__(self, library: Any, path: str) -> None:
        self.library, self.path = library, path
        major, minor = ctypes.c_int(), ctypes.c_int()
        self.check(library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)))
        self.version = major.value, minor.value
        above = os.path.dirname(os.path.dirname(os.path.realpath(path))) if "/" in path else ""
        around = [os.path.join(above, "include"), os.path.join(os.path.dirname(above), "cuda_runtime", "include"), "/usr/local/cuda/include"]
        self.include = [folder for folder in around if os.path.exists(os.path.join(folder, "cuda_fp16.h"))][:1]
        self.include += [folder for folder in (os.path.join(one, "cccl") for one in self.include) if os.path.isdir(folder)]

    def check(self, result: int) -> None:
        if result:
            self.library.nvrtcGetErrorString.restype = ctypes.c_char_p
            raise CompileError(f"NVRTC: {self.library.nvrtcGetErrorString(result).decode()}")

    def architectures(self) -> list[int]:
        """Compute capabilities times 10 that it compiles for."""
        count = ctypes.c_int()
        self.check(self.library.nvrtcGetNumSupportedArchs(ctypes.byref(count)))
        found = (ctypes.c_int * count.value)()
        self.check(self.library.nvrtcGetSupportedArchs(found))
        return list(found)

    def _text(self, program: ctypes.c_void_p, size_of: str, get: str) -> bytes:
        size = ctypes.c_size_t()
        self.check(self.library[size_of](program, ctypes.byref(size)))
        out = ctypes.create_string_buffer(size.value)
        self.check(self.library[get](program, out))
        return out.raw

    def compile(self, text: str, name: str, entry: str, options: Sequence[str], cubin: bool) -> bytes:
        """The image, a cubin or PTX. With an entry, its name in the image and a NUL come first. It
        is made in a process of its own, which has an end in time and memory, and which a crash of
        NVRTC, or Ctrl-C, ends alone."""
        if not _limited.possible():
            return self.compile_here(text, name, entry, options, cubin)
        question = json.dumps([self.path, text, name, entry, list(options), cubin]).encode()
        try:
            found = _helper().ask(question, IMAGE_BYTES, COMPILE_SECONDS)
        except _limited.NotStarted as error:
            raise CompileError(f"{name}: there is no process to run NVRTC in: {error}") from None
        except _limited.Overdue:
            raise CompileError(f"{name}: NVRTC takes longer than {COMPILE_SECONDS:g} seconds") from None
        except _limited.Oversized as error:
            raise CompileError(f"{name}: the image is larger than {IMAGE_BYTES >> 20} MiB: {error}") from None
        except _limited.Ended as error:
            raise CompileError(f"{name}: NVRTC ended its process: {error} (it may take {COMPILE_BYTES >> 20} MiB of memory)") from None
        if found[:1] != b"+":
            said = found[1:].decode()
            raise CompileError(f"{said}\n({name}: NVRTC may take {COMPILE_BYTES >> 20} MiB of memory)" if "out of memory" in said else said)
        return found[1:]

    def compile_here(self, text: str, name: str, entry: str, options: Sequence[str], cubin: bool) -> bytes:
        program, listed = ctypes.c_void_p(), [option.encode() for option in options]
        self.check(self.library.nvrtcCreateProgram(ctypes.byref(program), text.encode(), name.encode(), 0, None, None))
        try:
            if entry:
                self.check(self.library.nvrtcAddNameExpression(program, entry.encode()))
            failed = self.library.nvrtcCompileProgram(program, len(listed), (ctypes.c_char_p * max(len(listed), 1))(*listed))
            if failed:
                said = self._text(program, "nvrtcGetProgramLogSize", "nvrtcGetProgramLog").rstrip(b"\0").decode(errors="replace").strip()
                raise CompileError(said or f"NVRTC gave error {failed}")
            kind = "CUBIN" if cubin else "PTX"
            image = self._text(program, f"nvrtcGet{kind}Size", f"nvrtcGet{kind}")
            if not entry:
                return image
            lowered = ctypes.c_char_p()
            self.check(self.library.nvrtcGetLoweredName(program, entry.encode(), ctypes.byref(lowered)))
            return (lowered.value or b"") + b"\0" + image
        finally:
            self.library.nvrtcDestroyProgram(ctypes.byref(program))


@functools.lru_cache(maxsize=1)
def _helper() -> _limited.Helper:
    return _limited.Helper("accrt._nvrtc", COMPILE_BYTES, COMPILE_SECONDS)


def answer(question: bytes) -> bytes:
    """What the process of `Nvrtc.compile` does: "+" and the image, or "-" and what is wrong."""
    path, *asked = json.loads(question)
    try:
        return b"+" + _found((path,)).compile_here(*asked)
    except CompileError as error:
        return b"-" + str(error).encode()
    except MemoryError:
        return f"-{asked[1]}: out of memory".encode()


def _open_builtins(path: str) -> None:
    """NVRTC opens this library by its soname. Wheels before CUDA 13.1 do not say where it is: that
    it stands beside NVRTC is found here."""
    if "/" in path:
        for one in sorted(glob.glob(os.path.join(glob.escape(os.path.dirname(path)), "libnvrtc-builtins.so.*"))):
            open_library(one)


@functools.lru_cache(maxsize=None)
def _found(places: tuple[str, ...]) -> Nvrtc:
    tried = []
    for path in places:
        try:
            _open_builtins(path)
            return Nvrtc(open_library(path, "libnvrtc-builtins*"), path)
        except (OSError, AttributeError, CompileError) as error:
            tried.append(str(error))
    raise CompileError(f"CUDA C++ needs NVRTC (pip install nvidia-cuda-nvrtc, or set ACCRT_NVRTC to its path), which was not found: {'; '.join(tried)}")


def find() -> Nvrtc:
    """Raises CompileError, on one line, where it is not there."""
    return _found(tuple(_places()))


def compiled(text: str, depends: str, file: str, entry: str, arch: str, options: Sequence[str], folder: str, what: str) -> tuple[bytes, str, str]:
    """(image, kind, the entry's name in it) for an architecture as "sm_90"; from the cache, where
    it was compiled before. An architecture that is newer than NVRTC gets PTX, which the driver
    compiles, and so does "compute_80"."""
    known = _ARCH.match(arch)
    if not known:
        raise ValueError(f"{what}: arch is {arch!r}, expected one as 'sm_90'")
    nvrtc = find()
    there = nvrtc.architectures()
    wanted = int(known[1] or known[2])
    cubin = wanted in there and known[2] is None
    below = [one for one in there if one <= wanted]
    if not cubin and not below:
        raise CompileError(f"{what}: NVRTC {nvrtc.version[0]}.{nvrtc.version[1]} does not compile for {arch}, the oldest is sm_{min(there)}")
    target = arch if cubin else f"compute_{max(below)}"
    folders = [*([folder] if folder else []), *nvrtc.include]
    flags = (f"--gpu-architecture={target}", *_OPTIONS, *(f"--include-path={one}" for one in folders), *options)
    key = digest("nvrtc-1", repr(nvrtc.version), " ".join(flags), file, entry, depends, text)

    def make() -> bytes:
        try:
            return nvrtc.compile(text, file, entry, flags, cubin)
        except CompileError as error:
            raise CompileError(f"{error}\n({what}: NVRTC {nvrtc.version[0]}.{nvrtc.version[1]} for {target})") from None

    name, _, image = cached(key, make).partition(b"\0")
    return image, "cubin" if cubin else "ptx", name.decode()
