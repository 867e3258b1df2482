"""Builds CUDA kernels with nvcc, or with NVRTC where there is no nvcc: cubins for sm_80 and sm_90,
and PTX for what comes after, each checked against its records.

`build_images(kernels, targets)` compiles every translation unit once for each target (cached per
user by compiler, flags and content, as host images are). Each unit is an image of its own: units
that are linked have to call what they share by a convention that costs registers. The same sources
and compiler give the same bytes. It uses nothing of a GPU.
"""

from __future__ import annotations

import functools
import glob
import os
import re
import shlex
import shutil
import struct
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, List, Optional, Sequence, Tuple, Union

from ..._files import temporary_folder
from ..._kernel_cache import cache_directory
from ..._paths import read_own_file, set_own_file
from ..._system import programs
from ..._nvrtc import Nvrtc
from .. import _children
from ..kernels.image import ImageError, _cached, _digest, _version
from ..kernels.kerneldef import CUDA_DIRECTORY, CudaSource, KernelDef, MachineCode
from . import rtc

#: Targets by name, and the architectures that the compiler is asked for.
TARGETS: Dict[str, str] = {"sm_80": "sm_80", "sm_90": "sm_90", "ptx": "compute_80"}

# -fmad=false: as on the host, an element-wise a*b+c gives the same bytes fused into one kernel or
# not. Code that wants a fused
#   multiply-add asks for it by name (fmaf), or for another setting in its source's flags.
_COMPILE_FLAGS = ("-std=c++17", "-O3", "-x", "cu", "-fmad=false", "-Wno-deprecated-gpu-targets", "--diag-suppress=177")
#: Of ACCRT_NVCC: no compiler, but what one has put into the cache, maybe on another machine.
_CACHE = "cache"
#: Of ACCRT_NVCC: NVRTC, also where there is nvcc.
_NVRTC = "nvrtc"
_INTERNAL = re.compile(rb"_INTERNAL_[0-9a-f]{8}_")


@dataclass(frozen=True)
class Compiler:
    """The compiler: what to call, and its version for the cache key. Neither a command nor a
    library: the cache alone."""

    command: Tuple[str, ...]
    version: str
    library: Optional[Nvrtc] = None


@dataclass(frozen=True)
class CudaImage:
    """One image and the kernels that it holds."""

    name: str
    kind: str  # cubin or ptx
    arch: str  # sm_80, sm_90, sm_90a; of PTX compute_80, or what a user's PTX says
    data: bytes
    kernels: Tuple[KernelDef, ...]
    special: bool = False  # holds the implementations that kernels have for this architecture alone


def _candidates() -> List[str]:
    """Places where nvcc may be, the preferred first: the environment's choice, PATH, toolkits,
    wheels."""
    chosen = os.environ.get("ACCRT_NVCC")
    if chosen is not None:
        return [chosen]
    found = [shutil.which("nvcc", path=programs()) or ""]
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        found.append(os.path.join(os.environ[variable], "bin", "nvcc") if os.environ.get(variable) else "")
    found.append("/usr/local/cuda/bin/nvcc")
    for directory in sys.path:
        found += sorted(glob.glob(os.path.join(glob.escape(directory), "nvidia", "*", "bin", "nvcc")), reverse=True)
    return [path for path in dict.fromkeys(found) if os.path.isabs(path)]


@functools.lru_cache(maxsize=None)
def find_compiler() -> Compiler:
    """nvcc, or else NVRTC. Raises ImageError, saying where each was looked for, when there is
    neither."""
    tried = _candidates()
    if tried == [_CACHE]:
        return Compiler((), _last_version())
    for path in tried if tried != [_NVRTC] else ():
        command = tuple(shlex.split(path))
        version = _version(command) if command else None
        if version is None:
            continue
        found = Compiler(command, version)
        _cached(_digest("cuda-probe-2", version), lambda: _probe(found))
        _note_version(version)
        return found
    looked = f"no CUDA compiler: tried {', '.join(tried) or 'nothing'}"
    if "ACCRT_NVCC" in os.environ and tried != [_NVRTC]:
        raise ImageError(looked)
    try:
        nvrtc = rtc.found()
    except ImageError as error:
        raise ImageError(f"{looked}, and NVRTC: {error}" if tried != [_NVRTC] else f"no CUDA compiler: {error}") from None
    _note_version(rtc.version(nvrtc))
    return Compiler((), rtc.version(nvrtc), nvrtc)


def _version_file() -> str:
    folder = cache_directory()
    return str(folder / "nvcc") if folder else ""


def _note_version(version: str) -> None:
    """So that the cache says whose work is in it, where it is carried to."""
    try:
        if read_own_file(_version_file()) == version.encode():
            return
    except OSError:
        pass
    try:
        set_own_file(_version_file(), version.encode())
    except OSError:
        pass


def _last_version() -> str:
    try:
        return read_own_file(_version_file()).decode("utf-8", "replace")
    except OSError:
        raise ImageError(f"no CUDA compiler: ACCRT_NVCC is {_CACHE!r}, and {cache_directory()} has nothing of one") from None


def _probe(compiler: Compiler) -> bytes:
    """Tries the compiler once: one that does not get along with the host's C compiler is none."""
    with temporary_folder("accrt-cuda-") as directory:
        Path(directory, "unit.cu").write_text('extern "C" __global__ void probe() {}\n')
        command = [*compiler.command, *_COMPILE_FLAGS, "-cubin", "-arch=sm_90", "unit.cu", "-o", "unit.cubin"]
        _run(command, "trying the CUDA compiler", directory)
        if not Path(directory, "unit.cubin").is_file():
            raise ImageError(f"{' '.join(compiler.command)} gives no cubin")
        return b"it works"


def available_targets() -> Tuple[List[str], Dict[str, str]]:
    """Targets that can be built here, and for the others why not."""
    try:
        find_compiler()
    except ImageError as error:
        return [], {name: str(error) for name in TARGETS}
    return list(TARGETS), {}


# ---- Compiling -----------------------------------------------------------------------------------


def _run(command: Sequence[str], what: str, directory: str) -> None:
    done = _children.run(command, directory, cwd=directory)
    if done.returncode != 0:
        raise ImageError(f"{what} failed: {' '.join(command)}\n{(done.stderr + done.stdout).strip()[:4000]}")


def compile_unit(source: Union[CudaSource, MachineCode], arch: str) -> bytes:
    """One translation unit: for sm_* a cubin, for compute_* PTX."""
    if isinstance(source, MachineCode):
        return source.image(arch)
    compiler = find_compiler()
    ptx = arch.startswith("compute_")
    kind = ("-ptx",) if ptx else ("-cubin",)
    virtual = arch.replace("sm_", "compute_")
    where = ("-arch=" + arch,) if ptx else (f"-gencode=arch={virtual},code={arch}",)
    flags = (*_COMPILE_FLAGS, *kind, *where, *source.flags)
    text = source.unit()
    key = _digest("cuda-unit-1", compiler.version, " ".join(flags), source.depends(), text)

    def make() -> bytes:
        if compiler.library is not None:
            return rtc.compiled(compiler.library, text, arch, source.flags)
        if not compiler.command:
            raise ImageError(f"no CUDA compiler: ACCRT_NVCC is {_CACHE!r}, and {cache_directory()} has not the kernels that are wanted, for {arch}")
        with temporary_folder("accrt-cuda-") as directory:
            Path(directory, "unit.cu").write_text(text)
            command = [*compiler.command, *flags, f"-I{CUDA_DIRECTORY}", "unit.cu", "-o", "unit.out"]
            _run(command, f"compiling a kernel for {arch}", directory)
            return Path(directory, "unit.out").read_bytes()

    # Names of what is static and not inlined hold a number that nvcc draws by chance: the same unit
    # is to give the same bytes.
    return _INTERNAL.sub(b"_INTERNAL_" + key[:8].encode() + b"_", _cached(key, make))


def _units(kernels: Sequence[KernelDef]) -> Dict[CudaSource, List[KernelDef]]:
    units: Dict[CudaSource, List[KernelDef]] = {}
    for kernel in kernels:
        units.setdefault(kernel.producer, []).append(kernel)
    return units


def _wanted(kernels: Sequence[KernelDef], target: str) -> List[KernelDef]:
    return [k for k in kernels if isinstance(k.producer, (CudaSource, MachineCode)) and (not k.arch or target in k.arch)]


def build_images(kernels: Sequence[KernelDef], targets: Sequence[str], name: str = "accrt") -> List[CudaImage]:
    """Images that hold `kernels` for the targets, each checked. Raises ImageError."""
    unique: Dict[str, KernelDef] = {}
    for kernel in kernels:
        known = unique.setdefault(kernel.name, kernel)
        if (known.producer, known.params) != (kernel.producer, kernel.params):
            raise ImageError(f"two different kernels are named {kernel.name!r}")
    ordered = [unique[key] for key in sorted(unique)]
    # image name, architecture, special, units
    groups: List[Tuple[str, str, bool, Dict[CudaSource, List[KernelDef]]]] = []
    for target in targets:
        plain: Dict[str, List[KernelDef]] = {}
        for kernel in _wanted(ordered, target):
            own = isinstance(kernel.producer, MachineCode) and target == "ptx"
            arch = kernel.producer.ptx if own else TARGETS[target] + ("a" if target in kernel.producer.exact else "")
            plain.setdefault(arch, []).append(kernel)
        for arch in sorted(plain):
            groups.append((f"{name}.{arch}", arch, False, _units(plain[arch])))
        special: Dict[str, Dict[CudaSource, List[KernelDef]]] = {}
        for kernel in ordered:
            for variant in kernel.specials:
                if variant.arch.rstrip("a") == target:
                    special.setdefault(variant.arch, {}).setdefault(variant.producer, []).append(kernel)
        for arch in sorted(special):
            groups.append((f"{name}.{arch}.special", arch, True, special[arch]))
    jobs = [(source, arch) for _name, arch, _special, units in groups for source in units]
    made = dict(zip(jobs, _children.each(lambda job: compile_unit(*job), jobs)))
    images: List[CudaImage] = []
    for image_name, arch, is_special, units in groups:
        for index, (source, members) in enumerate(units.items()):
            data, kind = made[(source, arch)], "cubin"
            if arch.startswith("compute_"):
                data, kind = data.rstrip(b"\0") + b"\0", "ptx"
            images.append(CudaImage(f"{image_name}.{index:03}", kind, arch, data, tuple(members), is_special))
    for image in images:
        check_image(image)
    return images


# ---- Checks --------------------------------------------------------------------------------------


def entry_of(kernel: KernelDef, image: CudaImage) -> str:
    """The name of a kernel's function in an image."""
    if image.special:
        return next(v.entry for v in kernel.specials if v.arch == image.arch) or kernel.entry
    return kernel.entry


@dataclass(frozen=True)
class Entry:
    """What a cubin says of one kernel: (offset, size) of each parameter in order, and the most
    threads of a block (0: any)."""

    parameters: Tuple[Tuple[int, int], ...]
    max_threads: int


def cubin_entries(data: bytes) -> Dict[str, Entry]:
    (section_offset,) = struct.unpack_from("<Q", data, 40)
    section_size, section_count, names_index = struct.unpack_from("<HHH", data, 58)
    sections = [struct.unpack_from("<IIQQQQIIQQ", data, section_offset + i * section_size) for i in range(section_count)]
    names = sections[names_index]
    found: Dict[str, Entry] = {}
    for section in sections:
        start = names[4] + section[0]
        name = data[start : data.index(b"\0", start)].decode()
        if name.startswith(".nv.info."):
            found[name[9:]] = _entry(data[section[4] : section[4] + section[5]])
    return found


def _entry(info: bytes) -> Entry:
    """Attributes of a kernel: 0x17 describes a parameter (index, ordinal, offset, size << 18), 0x05
    has the launch bounds."""
    found: Dict[int, Tuple[int, int]] = {}
    at, threads = 0, 0
    while at + 4 <= len(info):
        form, attribute, size = struct.unpack_from("<BBH", info, at)
        at += 4
        if form != 4:
            continue
        if attribute == 0x17:
            _index, ordinal, offset, packed = struct.unpack_from("<IHHI", info, at)
            found[ordinal] = (offset, packed >> 18)
        elif attribute == 0x05:
            x, y, z = struct.unpack_from("<3I", info, at)
            threads = x * y * z
        at += size
    return Entry(tuple(found[ordinal] for ordinal in sorted(found)), threads)


def check_image(image: CudaImage) -> None:
    """Raises ImageError unless each kernel of a cubin takes exactly the parameters of its record,
    and blocks of its size."""
    if image.kind != "cubin":
        return
    have = cubin_entries(image.data)
    for kernel in image.kernels:
        entry = entry_of(kernel, image)
        if entry not in have:
            raise ImageError(f"the image for {image.arch} has no kernel {entry!r}; it has {', '.join(sorted(have))}")
        wanted = tuple((p.offset, p.size) for p in kernel.params)
        if have[entry].parameters != wanted:
            raise ImageError(
                f"kernel {kernel.name}: in the image for {image.arch} its parameters (offset, size) are {have[entry].parameters}, "
                f"its record says {wanted}"
            )
        block = next(v.block for v in kernel.specials if v.arch == image.arch) if image.special else kernel.block
        if 0 < have[entry].max_threads < block[0] * block[1] * block[2]:
            raise ImageError(
                f"kernel {kernel.name}: blocks of {block} threads, but the image for {image.arch} is for at most "
                f"{have[entry].max_threads}"
            )
