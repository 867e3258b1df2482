"""Builds freestanding ELF images of host kernels with the system's compilers, and checks what
accrt/kernel.h demands of one.

`build_image(kernels, target)` compiles each translation unit once (cached per user by compiler,
flags and content), adds the pack's table and links. The same sources and compiler give the same
bytes: no build ids, no paths, no dates.
"""

from __future__ import annotations

import concurrent.futures
import functools
import hashlib
import os
import platform
import re
import shlex
import shutil
import struct
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, List, Optional, Sequence, Tuple

from ..._files import temporary_folder
from ..._kernel_cache import cache_directory as cache_directory
from ..._kernel_cache import cached as _cached
from ..._kernel_cache import digest as _digest
from ..._system import environment, programs
from .. import _children, progress
from . import prebuilt
from .kerneldef import ACCESS_IDS, PARAM_KINDS, SOURCE_DIRECTORY, CSource, KernelDef


class ImageError(RuntimeError):
    """An image cannot be built or breaks a rule of the kernel ABI; the message says which and
    why."""


@dataclass(frozen=True)
class Target:
    """A machine that images are built for. `cpu_features` are the names of accrt/kernel.h that the
    image needs."""

    name: str
    arch: str
    triple: str
    elf_machine: int
    relative_relocation: int
    flags: Tuple[str, ...]
    cpu_features: Tuple[str, ...]


TARGETS: Dict[str, Target] = {
    target.name: target
    for target in (
        Target("x86-64-v3", "x86_64", "x86_64-linux-gnu", 62, 8, ("-march=x86-64-v3",), ("X86_64_V3",)),
        Target(
            "x86-64-v4",
            "x86_64",
            "x86_64-linux-gnu",
            62,
            8,
            ("-march=x86-64-v4", "-mprefer-vector-width=512"),
            ("X86_64_V3", "X86_64_V4"),
        ),
        Target("aarch64", "aarch64", "aarch64-linux-gnu", 183, 1027, ("-march=armv8-a",), ("ARM_NEON",)),
    )
}

# Bits of ACCRT_CPU_* in accrt/kernel.h.
CPU_FEATURE_BITS = {
    "X86_64_V2": 0, "X86_64_V3": 1, "X86_64_V4": 2, "AVX512_VNNI": 3, "AVX512_BF16": 4, "AVX512_FP16": 5,
    "AVX_VNNI": 6, "AMX_BF16": 7, "AMX_INT8": 8, "AVX512_VBMI": 9, "ARM_NEON": 32, "ARM_FP16": 33,
    "ARM_DOTPROD": 34, "ARM_BF16": 35, "ARM_I8MM": 36, "ARM_SVE": 37,
}  # fmt: skip

#: The kernel ABI that host images ask for: 0.1 has all that they use, so older runtimes load them
#: too.
PACK_ABI_VERSION = 1

# -ffp-contract=off: an element-wise a*b+c gives the same bytes fused into one kernel or not, and
# under every compiler.
#   Code that wants a fused multiply-add (matrix products, polynomials) asks for it by name.
# -fno-math-errno, -fno-trapping-math: there is no errno and no trap handler; without them loops do
# not vectorize. Unwind tables stay (a debugger can walk through a kernel), .symtab stays (perf and
# gdb show names).
_COMPILE_FLAGS = (
    "-std=gnu11", "-O3", "-ffreestanding", "-fPIC", "-fvisibility=hidden", "-fno-math-errno", "-fno-trapping-math",
    "-ffp-contract=off", "-fno-stack-protector", "-fomit-frame-pointer", "-fno-plt", "-fno-common", "-fno-ident",
    "-Wall", "-Wextra", "-Werror=implicit-function-declaration", "-Wno-unused-function",
    "-Wno-psabi", "-Wno-unknown-pragmas", "-Wno-unknown-warning-option", "-Wno-pass-failed",
)  # fmt: skip
_LINK_FLAGS = (
    "-shared", "-nostdlib", "-nostartfiles", "-Wl,--build-id=none", "-Wl,-z,defs", "-Wl,-z,noexecstack", "-Wl,-Bsymbolic",
    "-Wl,--hash-style=both", "-Wl,--no-undefined",
)  # fmt: skip


@dataclass(frozen=True)
class Compiler:
    """A C compiler for one target: the command to compile and link with, and its version for the
    cache key."""

    command: Tuple[str, ...]
    link_flags: Tuple[str, ...]
    version: str
    is_clang: bool


def include_directory() -> Path:
    """Where accrt/kernel.h is: the source tree's include/, or the copy that an installed package
    carries."""
    override = os.environ.get("ACCRT_INCLUDE_DIR")
    candidates = [Path(override)] if override else []
    package = SOURCE_DIRECTORY.parents[1]
    candidates += [package / "include", package.parents[1] / "include", Path("/usr/local/include"), Path("/usr/include")]
    for candidate in candidates:
        if (candidate / "accrt" / "kernel.h").is_file():
            return candidate
    raise ImageError("accrt/kernel.h is not found in " + ", ".join(map(str, candidates)) + "; set ACCRT_INCLUDE_DIR")


def _version(command: Sequence[str]) -> Optional[str]:
    try:
        done = subprocess.run([*command, "--version"], capture_output=True, text=True, timeout=30, env=environment())
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def _candidates(target: Target) -> List[Tuple[Tuple[str, ...], Tuple[str, ...]]]:
    """Compilers worth trying for a target, the preferred first, each with what its link step
    needs."""
    chosen = os.environ.get("ACCRT_KERNEL_CC_" + target.arch.upper())
    if chosen:
        return [(tuple(shlex.split(chosen)), ())]
    clang = ("clang", f"--target={target.triple}")
    if platform.machine() == target.arch:
        return [(("gcc",), ()), (("clang",), ()), (("cc",), ())]
    found: List[Tuple[Tuple[str, ...], Tuple[str, ...]]] = []
    if shutil.which("ld.lld", path=programs()):
        found.append((clang, ("-fuse-ld=lld",)))
    cross_linker = shutil.which(f"{target.triple}-ld", path=programs())
    if cross_linker:
        found.append((clang, (f"--ld-path={cross_linker}",)))
    found.append(((f"{target.triple}-gcc",), ()))
    return found


@functools.lru_cache(maxsize=None)
def find_compiler(target_name: str) -> Compiler:
    """The compiler that builds for a target. Raises ImageError, saying what was looked for, when
    there is none."""
    target = TARGETS[target_name]
    tried = []
    for command, link_flags in _candidates(target):
        version = _version(command)
        if version is not None:
            return Compiler(command, link_flags, version, "clang" in version)
        tried.append(" ".join(command))
    hint = "; install gcc or clang" if platform.machine() == target.arch else " (clang with lld, or a cross gcc, builds for another machine)"
    raise ImageError(f"no C compiler for {target.name}: tried {', '.join(tried) or 'none, as no linker is there'}{hint}")


def available_targets() -> Tuple[List[str], Dict[str, str]]:
    """Targets that can be built here, and for the others why not."""
    good, bad = [], {}
    for name in TARGETS:
        try:
            find_compiler(name)
            good.append(name)
        except ImageError as error:
            bad[name] = str(error)
    return good, bad


_NOISE = re.compile(r"^At top level:$|note: unrecognized command-line option .-Wno-")
_CRASH = re.compile("internal compiler error|PLEASE submit a bug report")


def _run(command: Sequence[str], what: str, directory: str) -> None:
    """Where the compiler itself crashes, it is asked for less: gcc 12 does so for AVX-512, at a
    maximum of int8 under a mask."""
    done = _children.run(command, directory)
    if done.returncode != 0 and _CRASH.search(done.stderr):
        command = [*command, "-O2"]
        done = _children.run(command, directory)
    if done.returncode != 0:
        raise _failed(what, command, done.stderr)


def _failed(what: str, command: Sequence[str], messages: str) -> ImageError:
    """What the compiler says comes first, its errors before its warnings, without its notes on
    options of other compilers: its command is long."""
    lines = [line for line in messages.splitlines() if not _NOISE.search(line)]
    first = next((at for at, line in enumerate(lines) if " error: " in line), 0)
    messages = "\n".join(lines[first:] + lines[:first])
    more = "\na kernel has no C library: docs/kernel-abi.md lists what it may call" if "undefined reference" in messages or "undefined symbol" in messages else ""
    return ImageError(f"{what} failed:\n{messages.strip()[:4000]}{more}\nthe command was: {' '.join(command)}")


@functools.lru_cache(maxsize=None)
def _kernel_header_text() -> str:
    return (include_directory() / "accrt" / "kernel.h").read_text()


def _flags(target: Target, extra: Sequence[str]) -> Tuple[str, ...]:
    return (*_COMPILE_FLAGS, *target.flags, *extra, *(("-fcf-protection=none",) if target.arch == "x86_64" else ()))


def _compile_unit(text: str, depends: str, extra: Sequence[str], target: Target, compiler: Compiler) -> bytes:
    flags = _flags(target, extra)
    key = _digest("unit-1", " ".join(compiler.command), compiler.version, " ".join(flags), _kernel_header_text(), depends, text)

    def make() -> bytes:
        with temporary_folder("accrt-kernel-") as directory:
            source, output = Path(directory, "unit.c"), Path(directory, "unit.o")
            source.write_text(text)
            places = (f"-ffile-prefix-map={directory}=kernel", f"-ffile-prefix-map={SOURCE_DIRECTORY}=kernels")
            _run(
                [*compiler.command, *flags, *places, f"-I{include_directory()}", f"-I{SOURCE_DIRECTORY}",
                 "-c", str(source), "-o", str(output)],
                f"compiling a kernel for {target.name}", directory,
            )  # fmt: skip
            return output.read_bytes()

    return _cached(key, make)


def _unit_text(kernels: Sequence[KernelDef]) -> str:
    """A translation unit: the producer's text, then assertions that its structs are what the
    records say."""
    producer = kernels[0].producer
    lines = [producer.unit()]
    for kernel in kernels:
        if not kernel.producer.struct:
            continue
        name = kernel.producer.struct
        for param in kernel.params:
            lines.append(
                f"_Static_assert(offsetof({name}, {param.name}) == {param.offset} && "
                f'sizeof((({name}*)0)->{param.name}) == {param.size}, "{kernel.name}: {param.name} is elsewhere");'
            )
    return "\n".join(lines) + "\n"


def _pack_text(kernels: Sequence[KernelDef], pack_name: str) -> str:
    """The pack's table and query, and the memory functions that compilers call on their own."""
    lines = ['#include "accrt/kernel.h"', "ACCRT_KERNEL_DEFINE_MEMORY_FUNCTIONS()"]
    for kernel in kernels:
        lines.append(
            f"int32_t {kernel.entry}(const accrt_kernel_environment_t*, const accrt_kernel_dispatch_t*, "
            "const accrt_kernel_workgroup_t*);"
        )
    for index, kernel in enumerate(kernels):
        rows = "".join(
            f'{{"{p.name}", {PARAM_KINDS[p.kind]}, {ACCESS_IDS[p.access]}, {int(p.optional)}, {p.align_log2}, '
            f"{p.offset}, {p.size}, 0}}, "
            for p in kernel.params
        )
        if rows:
            lines.append(f"static const accrt_kernel_param_t params_{index}[] = {{{rows}}};")
    lines.append("static const accrt_kernel_def_t kernels[] = {")
    for index, kernel in enumerate(kernels):
        features = 0
        for feature in kernel.cpu_features:
            features |= 1 << CPU_FEATURE_BITS[feature]
        params = f"params_{index}" if kernel.params else "0"
        source = kernel.producer.file or "generated"
        lines.append(
            f'  {{sizeof(accrt_kernel_def_t), {kernel.traits}u, "{kernel.name}", {kernel.entry}, {params}, '
            f"{len(kernel.params)}, {kernel.params_size_bytes}, {kernel.local_memory_bytes}, 0, "
            f'UINT64_C({features}), "{Path(source).name}", 1, 0}},'
        )
    lines.append("};")
    lines.append(
        f"static const accrt_kernel_pack_table_t table = {{sizeof(accrt_kernel_pack_table_t), {PACK_ABI_VERSION}, "
        f'"{pack_name}", kernels, {len(kernels)}, sizeof(accrt_kernel_def_t), 0, 0, 0}};'
    )
    lines.append(
        "ACCRT_KERNEL_EXPORT const accrt_kernel_pack_table_t* accrt_kernel_pack_query("
        "uint32_t max_abi, const accrt_kernel_environment_t* environment);\n"
        "const accrt_kernel_pack_table_t* accrt_kernel_pack_query("
        "uint32_t max_abi, const accrt_kernel_environment_t* environment) {\n"
        f"  if (max_abi < {PACK_ABI_VERSION}) return 0;\n"
        "  accrt_kernel_bind(environment);\n"
        "  return &table;\n"
        "}"
    )
    return "\n".join(lines) + "\n"


def usable_kernels(kernels: Sequence[KernelDef], target_name: str) -> List[KernelDef]:
    """Those of `kernels` that have code for the target's architecture."""
    arch = TARGETS[target_name].arch
    return [kernel for kernel in kernels if not kernel.arch or arch in kernel.arch]


def _ordered(kernels: Sequence[KernelDef], target: str) -> List[KernelDef]:
    unique: Dict[str, KernelDef] = {}
    for kernel in usable_kernels(kernels, target):
        known = unique.setdefault(kernel.name, kernel)
        if (known.producer, known.params) != (kernel.producer, kernel.params):
            raise ImageError(f"two different kernels are named {kernel.name!r}")
    return [unique[name] for name in sorted(unique)]


def _units(kernels: Sequence[KernelDef]) -> Dict[CSource, List[KernelDef]]:
    units: Dict[CSource, List[KernelDef]] = {}
    for kernel in kernels:
        units.setdefault(kernel.producer, []).append(kernel)
    return units


@dataclass(frozen=True)
class HostImage:
    """One image and the kernels that it holds."""

    name: str
    data: bytes
    kernels: Tuple[KernelDef, ...]


def build_images(kernels: Sequence[KernelDef], target: str, name: str = "accrt_reference") -> List[HostImage]:
    """Images that hold `kernels`, each checked: what comes with the package as it is, one image for
    a translation unit, and all others in one that is compiled. Raises ImageError."""
    found: List[HostImage] = []
    rest: List[KernelDef] = []
    for producer, members in _units(_ordered(kernels, target)).items():
        data = prebuilt.find(target, _prebuilt_key(producer, members, TARGETS[target]))
        if data is None:
            rest += members
            continue
        check_image(data, TARGETS[target])
        found.append(HostImage(f"{name}.{target}.{len(found):03}", data, tuple(members)))
    if rest:
        need_compiler(target, rest)
        found.append(HostImage(f"{name}.{target}", build_image(rest, target, name), tuple(rest)))
    return found


def need_compiler(target: str, kernels: Sequence[KernelDef] = ()) -> None:
    """For kernels that did not come with the package. Raises ImageError."""
    try:
        find_compiler(target)
    except ImageError as error:
        others = f" and {len(kernels) - 1} others are" if len(kernels) > 1 else " is"
        why = prebuilt.why_missing(target) or f"kernel {kernels[0].name}{others} not among those that came with accrt"
        raise ImageError(f"{why}, and there is {error}") from None


_PREBUILT_PACK = "accrt"


def _prebuilt_key(producer: CSource, members: Sequence[KernelDef], target: Target) -> str:
    flags = " ".join(_flags(target, producer.flags))
    return _digest("prebuilt-1", target.name, flags, _kernel_header_text(), producer.depends(), _unit_text(members), _pack_text(members, _PREBUILT_PACK))


def prebuild(kernels: Sequence[KernelDef], target: str) -> Dict[str, bytes]:
    """Images as they come with the package, by key: each unit's is compiled, whatever came with
    this one. As many are made at a time as there are processors."""
    units = _units(_ordered(kernels, target))
    keys = [_prebuilt_key(producer, members, TARGETS[target]) for producer, members in units.items()]
    with concurrent.futures.ThreadPoolExecutor(progress.jobs() or os.cpu_count() or 1) as pool:
        return dict(zip(keys, pool.map(lambda members: build_image(members, target, _PREBUILT_PACK), units.values())))


def build_image(kernels: Sequence[KernelDef], target: str, pack_name: str = "accrt_reference") -> bytes:
    """One image that holds `kernels`, compiled and checked. Raises ImageError. Kernels with one
    producer share a translation unit."""
    wanted = TARGETS[target]
    compiler = find_compiler(target)
    ordered = _ordered(kernels, target)
    if not ordered:
        raise ImageError(f"no kernel has code for {target}")
    units = _units(ordered)
    jobs = [(_unit_text(members), producer.depends(), producer.flags) for producer, members in units.items()]
    jobs.append((_pack_text(ordered, pack_name), "", ()))
    objects = _children.each(lambda job: _compile_unit(job[0], job[1], job[2], wanted, compiler), jobs)
    image = _link(objects, wanted, compiler)
    check_image(image, wanted)
    return image


def _link(objects: Sequence[bytes], target: Target, compiler: Compiler) -> bytes:
    key = hashlib.sha256(b"image-1\0" + repr((compiler.command, compiler.version, compiler.link_flags)).encode())
    for content in objects:
        key.update(hashlib.sha256(content).digest())

    def make() -> bytes:
        with temporary_folder("accrt-kernel-") as directory:
            names = []
            for index, content in enumerate(objects):
                names.append(f"u{index}.o")
                Path(directory, names[-1]).write_bytes(content)
            command = [*compiler.command, *_LINK_FLAGS, *compiler.link_flags, *names, "-o", "image.so"]
            done = _children.run(command, directory, cwd=directory)
            if done.returncode != 0:
                raise _failed(f"linking for {target.name}", command, done.stderr)
            return Path(directory, "image.so").read_bytes()

    return _cached(key.hexdigest(), make)


# ---- Checks --------------------------------------------------------------------------------------

_FORBIDDEN_DYNAMIC = {
    1: "needs another library (DT_NEEDED)", 12: "has an initialiser (DT_INIT)", 13: "has a finaliser (DT_FINI)",
    25: "has constructors (DT_INIT_ARRAY)", 26: "has destructors (DT_FINI_ARRAY)", 32: "has constructors (DT_PREINIT_ARRAY)",
    22: "has relocations in its text (DT_TEXTREL)", 15: "has a library path (DT_RPATH)", 29: "has a library path (DT_RUNPATH)",
}  # fmt: skip


class _Elf:
    """The parts of an ELF64 little-endian file that the checks need; every offset is bounds-checked
    by struct."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        if len(data) < 64 or data[:4] != b"\x7fELF" or data[4] != 2 or data[5] != 1:
            raise ImageError("not a 64-bit little-endian ELF file")
        header = struct.unpack_from("<HHIQQQIHHHHHH", data, 16)
        self.type, self.machine = header[0], header[1]
        program_offset, section_offset = header[4], header[5]
        program_size, program_count, section_size, section_count = header[8], header[9], header[10], header[11]
        self.segments = [
            struct.unpack_from("<IIQQQQQQ", data, program_offset + i * program_size) for i in range(program_count)
        ]
        self.sections = [
            struct.unpack_from("<IIQQQQIIQQ", data, section_offset + i * section_size) for i in range(section_count)
        ]

    def symbols(self, section_type: int) -> List[Tuple[str, int, int, int]]:
        """(name, info, other, section index) of each symbol in the tables of a type (2 .symtab, 11
        .dynsym)."""
        found = []
        for section in self.sections:
            if section[1] != section_type:
                continue
            strings = self.sections[section[6]]
            for at in range(section[4] + 24, section[4] + section[5], 24):
                name, info, other, index = struct.unpack_from("<IBBH", self.data, at)
                start = strings[4] + name
                found.append((self.data[start : self.data.index(b"\0", start)].decode(), info, other, index))
        return found

    def dynamic_tags(self) -> List[int]:
        tags = []
        for kind, _flags, offset, _va, _pa, size, _msize, _align in self.segments:
            if kind == 2:
                tags += [struct.unpack_from("<q", self.data, at)[0] for at in range(offset, offset + size, 16)]
        return tags

    def relocation_types(self) -> List[int]:
        types = []
        for section in self.sections:
            if section[1] == 4:
                for at in range(section[4], section[4] + section[5], 24):
                    types.append(struct.unpack_from("<Q", self.data, at + 8)[0] & 0xFFFFFFFF)
        return types


def _problems(elf: _Elf, target: Target) -> List[str]:
    problems = []
    if elf.type != 3:
        problems.append(f"its type is {elf.type}, not ET_DYN")
    if elf.machine != target.elf_machine:
        problems.append(f"its machine is {elf.machine}, not {target.elf_machine}")
    for kind, flags, *_ in elf.segments:
        if kind == 7:
            problems.append("it has thread-local storage")
        if kind == 3:
            problems.append("it names an interpreter")
        if kind == 1 and flags & 3 == 3:
            problems.append("a segment is both writable and executable")
        if kind == 0x6474E551 and flags & 1:
            problems.append("it wants an executable stack")
    problems += [f"it {_FORBIDDEN_DYNAMIC[tag]}" for tag in elf.dynamic_tags() if tag in _FORBIDDEN_DYNAMIC]
    exported = []
    for name, info, _other, index in elf.symbols(11):
        if index == 0:
            problems.append(f"symbol {name!r} is undefined")
        elif info >> 4 != 0:
            exported.append(name)
        if info & 15 in (6, 10):
            problems.append(f"symbol {name!r} is thread-local or an indirect function")
    if exported != ["accrt_kernel_pack_query"]:
        problems.append(f"it exports {exported}, not accrt_kernel_pack_query alone")
    if any(info & 15 in (6, 10) for _n, info, _o, _i in elf.symbols(2)):
        problems.append("it holds a thread-local symbol or an indirect function")
    odd = sorted({kind for kind in elf.relocation_types() if kind != target.relative_relocation})
    if odd:
        problems.append(f"it has relocations other than relative ones: types {odd}")
    if not elf.symbols(2):
        problems.append("it has no .symtab, so that perf and gdb would show no names")
    return problems


def check_image(image: bytes, target: Target) -> None:
    """Raises ImageError, naming every broken rule, unless `image` is what accrt/kernel.h asks of an
    image in a bundle."""
    try:
        problems = _problems(_Elf(image), target)
    except (struct.error, IndexError, ValueError, UnicodeDecodeError) as error:
        raise ImageError(f"the image for {target.name} is not a well-formed ELF file: {error}") from error
    if problems:
        raise ImageError(f"the image for {target.name} breaks the kernel ABI: " + "; ".join(problems))
