"""Kernels of GPUs in bundles: the records that the reference compiler takes, made of kernels from
`Kernel.from_cuda`, `from_triton`, `from_cubin` and `from_ptx`."""
from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Callable, Sequence

from .errors import NoVariantError

if TYPE_CHECKING:
    from ._kernel_gpu import GpuKernel

#: Architectures that bundles have code for: those of accrt.compiler, the last one as PTX.
_CUBINS, _PTX = ("sm_80", "sm_90"), "compute_80"
_TARGET = re.compile(r"^\s*\.target\s+sm_(\d+)([af]?)", re.MULTILINE)
_SECOND_BYTE_ABI = 8  # from here on a cubin has its architecture in the second byte of its flags


def _cubin_arch(image: bytes) -> str:
    """What a cubin is for, "" if it does not say."""
    if image[:4] != b"\x7fELF" or len(image) < 64:
        return ""
    (flags,) = struct.unpack_from("<I", image, 48)
    return f"sm_{flags >> 8 & 0xFF if image[8] >= _SECOND_BYTE_ABI else flags & 0xFF}"


def _ptx_arch(text: str, where: str) -> str:
    found = _TARGET.search(text)
    if not found:
        raise ValueError(f"{where} is PTX that names no .target")
    if found[2]:
        raise ValueError(f"{where} is PTX for sm_{found[1]}{found[2]} alone, which is not for bundles")
    return f"compute_{found[1]}"


def _codes(kernel: GpuKernel, where: str) -> dict[str, tuple[bytes, str, dict[str, Any]]]:
    """(image, entry, what else follows from the architecture) by architecture: "sm_90" of a cubin,
    "compute_80" of PTX."""
    found = {}
    for arch in kernel._forms or (*_CUBINS, _PTX):
        try:
            image, kind, entry, more = kernel._code(arch)
        except NoVariantError:
            continue
        if kind == "ptx":
            text = image if isinstance(image, str) else image.rstrip(b"\0").decode()
            found[_ptx_arch(text, where)] = (text.encode(), entry, more)
        elif kind == "cubin" and isinstance(image, bytes):
            own = arch if arch in kernel._images else _cubin_arch(image)
            found.update({own: (image, entry, more)} if own in _CUBINS else {})
    if not found:
        raise ValueError(f"{where} has no cubin for {' or '.join(_CUBINS)}, and no PTX")
    return found


def _record(kernel: GpuKernel, name: str, op: str, known: Sequence[tuple[str, str, str]], grid: Callable, where: str) -> Any:
    """The KernelDef. known: names, kinds and types of the parameters, as the compiler binds
    them."""
    from .compiler.kernels import kerneldef
    for (one, _kind, _dtype), align in zip(kernel._known, kernel._aligns):
        if align > 1:
            raise ValueError(f"{where} takes {one} at multiples of {align} bytes, and memory of a function begins anywhere: leave ':{align}' out")
    codes = _codes(kernel, where)
    _image, entry, more = next(iter(codes.values()))
    if any(one[1:] != (entry, more) for one in codes.values()):
        raise ValueError(f"{where} has other warps, shared memory or parameters on {' than on '.join(codes)}: compile it for one target")
    params = [kerneldef.symbol(one) if kind == "symbol" else kerneldef.scalar(one, dtype) if kind == "scalar"
              else kerneldef.Param(one, "buffer", kind, dtype=dtype) for one, kind, dtype in known]
    params += [kerneldef.scalar(one, kind) for one, kind in more.get("parameters", ())[len(known):]]
    described = kernel._described._replace(**more)
    traits = kerneldef.TRAIT_DETERMINISTIC | (kerneldef.TRAIT_COOPERATIVE if described.cooperative else 0) | (
        kerneldef.TRAIT_OVERLAPS_PREVIOUS if described.overlaps_previous else 0)
    images = tuple((arch, one[0]) for arch, one in codes.items())
    targets = tuple("ptx" if arch.startswith("compute_") else arch for arch in codes)
    exact = tuple(arch for arch in codes if arch in targets and kernel._exact)
    return kerneldef.KernelDef(name, op, kerneldef.MachineCode(images, exact), kerneldef.layout(params), grid, arch=targets, entry=entry, family="cuda",
                               local_memory_bytes=described.shared_bytes, block=(*described.block, 1, 1)[:3], traits=traits,
                               cluster=(*described.cluster, 1, 1)[:3] if described.cluster else (0, 0, 0))


def definition(kernel: GpuKernel) -> Any:
    """The record of a kernel that there is for GPUs alone."""
    where = f"kernel {kernel.name}"
    if kernel._grid is None:
        raise ValueError(f"{where} has no grid, and one in a bundle needs it: give grid=, as lambda v: ((v['n'] + 255) // 256, 1, 1)")
    return _record(kernel, kernel.name, kernel.name, kernel._known, _three(kernel._grid), where)


def counterpart(kernel: GpuKernel, name: str, host: Sequence[tuple[str, str, str]], grid: Callable) -> Any:
    """The record of a kernel as the CUDA version of a host kernel with these parameters."""
    where = f"kernel {name}: its cuda"
    if [one[0] for one in kernel._known] != [one[0] for one in host]:
        raise ValueError(f"{where} takes {', '.join(one[0] for one in kernel._known)}, and the host's {', '.join(one[0] for one in host)}")
    for own, theirs in zip(kernel._known, host):
        if own[1:] != theirs[1:] and (own[2], theirs[1]) != ("i64", "symbol"):
            raise ValueError(f"{where}: {own[0]} is {' '.join(own[1:])}, and the host's {' '.join(theirs[1:])}"
                             + (": a symbol is an i64" if theirs[1] == "symbol" else ""))
    return _record(kernel, f"{name}.cuda", name, host, kernel._grid and _three(kernel._grid) or grid, where)


def _three(grid: Callable) -> Callable:
    def sizes(values: Mapping[str, Any]) -> tuple[Any, ...]:
        found = grid(values)
        return (*(found if isinstance(found, (tuple, list)) else (found,)), 1, 1)[:3]
    return sizes
