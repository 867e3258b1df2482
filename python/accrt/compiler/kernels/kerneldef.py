"""KernelDef: what the compiler knows of one kernel, built-in or a user's, and Launch: one use of
it.

A KernelDef is data: the parameters in the order of the packed block, how grid, workspace and local
memory follow from sizes, when the kernel may be used, and what produces its code. It neither
compiles (image.py for hosts, cuda/nvcc.py for CUDA) nor chooses (the compiler's selection).
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Mapping, Optional, Sequence, Tuple, Union

SOURCE_DIRECTORY = Path(__file__).resolve().parent
CUDA_DIRECTORY = SOURCE_DIRECTORY.parent / "cuda"

# Names and sizes of the element types that host kernels know; the ids are those of accrt/kernel.h.
DTYPE_IDS = {
    "bool": 1, "i8": 2, "i16": 3, "i32": 4, "i64": 5, "u8": 6, "u16": 7, "u32": 8, "u64": 9,
    "f16": 10, "bf16": 11, "f32": 12, "f64": 13,
}  # fmt: skip
DTYPE_SIZES = {
    "bool": 1, "i8": 1, "i16": 2, "i32": 4, "i64": 8, "u8": 1, "u16": 2, "u32": 4, "u64": 8,
    "f16": 2, "bf16": 2, "f32": 4, "f64": 8,
}  # fmt: skip

PARAM_KINDS = {"buffer": 1, "tensor": 2, "scalar": 3, "symbol": 4, "workspace": 5}
ACCESS_IDS = {"none": 0, "read": 1, "write": 2, "read_write": 3}
TRAIT_DETERMINISTIC = 1 << 0
TRAIT_ZEROED_WORKSPACE = 1 << 2
TRAIT_SERIAL = 1 << 4
TRAIT_COOPERATIVE = 1 << 5
TRAIT_OVERLAPS_PREVIOUS = 1 << 6

#: Where kernels run. Each has its own selection rules, and functions of the bundle that are planned
#: for it.
FAMILIES = ("host", "cuda")

_TENSOR_SIZE_BYTES = 16 + 16 * 8
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"]+)"', re.MULTILINE)
_KERNEL_NAME = re.compile(r"[A-Za-z0-9_.\-]{1,255}\Z")


@dataclass(frozen=True)
class Param:
    """One parameter. `offset` and `size` are bytes in the packed block; `dtype` is the type of a
    scalar, or of a buffer's elements ("": not said)."""

    name: str
    kind: str
    access: str = "none"
    offset: int = 0
    size: int = 8
    dtype: str = ""
    optional: bool = False

    @property
    def align_log2(self) -> int:
        return min(self.size, 8).bit_length() - 1


def reads(name: str, optional: bool = False) -> Param:
    return Param(name, "buffer", "read", optional=optional)


def writes(name: str, optional: bool = False) -> Param:
    return Param(name, "buffer", "write", optional=optional)


def updates(name: str) -> Param:
    return Param(name, "buffer", "read_write")


def symbol(name: str) -> Param:
    """An int64 that may be any expression of sizes."""
    return Param(name, "symbol", dtype="i64")


def scalar(name: str, dtype: str) -> Param:
    """A value fixed while compiling, or given at run time, of the given type."""
    return Param(name, "scalar", size=DTYPE_SIZES[dtype], dtype=dtype)


def workspace(name: str) -> Param:
    return Param(name, "workspace", "read_write")


def layout(params: Sequence[Param]) -> Tuple[Param, ...]:
    """Places the parameters as a C compiler places the members of a struct."""
    placed = []
    end = 0
    for param in params:
        size = _TENSOR_SIZE_BYTES if param.kind == "tensor" else param.size
        align = min(size, 8)
        offset = (end + align - 1) // align * align
        placed.append(dataclasses.replace(param, offset=offset, size=size))
        end = offset + size
    return tuple(placed)


@dataclass(frozen=True)
class CSource:
    """The producer of a host kernel: one C translation unit that defines the entry function.

    Either `text`, or `file` (in this directory, or an absolute path) included after `defines`.
    `struct` names the parameter struct; the image builder then asserts in C that every offset and
    size is what the KernelDef says. The unit is compiled with accrt/kernel.h and this directory on
    the include path.
    """

    file: str = ""
    text: str = ""
    defines: Tuple[Tuple[str, str], ...] = ()
    struct: str = ""
    flags: Tuple[str, ...] = ()

    def unit(self) -> str:
        return _unit(self)

    def depends(self) -> str:
        """Digest of everything of ours that the unit may include, so that a cache notices a
        change."""
        digest = hashlib.sha256()
        own = [SOURCE_DIRECTORY / self.file] if self.file else []
        for path in sorted(SOURCE_DIRECTORY.glob("*.h")) + own:
            digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
        return digest.hexdigest()


def entry_source(file: str, struct: str, name: str, **tags: str) -> CSource:
    """A file of host kernels, of which one is built, for these tags."""
    return CSource(file, defines=(*tags.items(), ("ENTRY", "accrt_" + name)), struct=struct)


def _unit(source: "Union[CSource, CudaSource]") -> str:
    """What a compiler gets: the definitions, then the file or the text."""
    lines = [f"#define {name} {value}" for name, value in source.defines]
    if source.file:
        lines.append(f'#include "{source.file}"')
    return "\n".join(lines) + "\n" + source.text


@dataclass(frozen=True)
class CudaSource:
    """The producer of a CUDA kernel: one CUDA C++ translation unit that defines the entry as
    `extern "C" __global__`.

    Its parameters are those of the KernelDef, one by one and in order: a buffer or workspace is a
    pointer, a scalar has its type by value, a symbol is a long long. Either `text`, or `file` (in
    compiler/cuda/, or an absolute path) included after `defines`; compiler/cuda/ is on the include
    path. `flags` go to nvcc. `exact` names those targets that are built with instructions of that
    very architecture (("sm_90",): as sm_90a); the others see the same source.
    """

    file: str = ""
    text: str = ""
    defines: Tuple[Tuple[str, str], ...] = ()
    flags: Tuple[str, ...] = ()
    exact: Tuple[str, ...] = ()

    def unit(self) -> str:
        return _unit(self)

    def depends(self) -> str:
        """Digest of every file of ours that the unit includes, so that a cache notices a change."""
        digest = hashlib.sha256()
        pending, seen = _INCLUDE.findall(self.unit()), set()
        while pending:
            path = CUDA_DIRECTORY / pending.pop()
            if path in seen or not path.is_file():
                continue
            seen.add(path)
            pending += _INCLUDE.findall(path.read_text())
        for path in sorted(seen):
            digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
        return digest.hexdigest()



@dataclass(frozen=True)
class MachineCode:
    """The producer of a CUDA kernel that something else compiles (Triton, NVRTC): cubins by target
    ("sm_90"), and PTX by its least architecture ("compute_80"). `exact` as in CudaSource."""

    images: Tuple[Tuple[str, bytes], ...]
    exact: Tuple[str, ...] = ()

    def image(self, arch: str) -> bytes:
        return dict(self.images)[arch.rstrip("a")]

    @property
    def ptx(self) -> str:
        """The architecture of its PTX."""
        return next(arch for arch, _image in self.images if arch.startswith("compute_"))


@dataclass(frozen=True)
class OperatorSource:
    """The producer of a host operator: entry `name` of a pack that the runtime finds by its
    name."""

    pack: str
    name: str


@dataclass(frozen=True)
class CudaVariant:
    """Another implementation of a CUDA kernel, with the same parameters and the same grid, for one
    architecture: "sm_80", "sm_90", or "sm_90a" (an exact one). It is preferred there."""

    arch: str
    producer: CudaSource
    block: Tuple[int, int, int]
    cluster: Tuple[int, int, int] = (0, 0, 0)
    local_memory_bytes: int = 0
    entry: str = ""


@dataclass(frozen=True)
class Predicate:
    """A condition for using a kernel: `test` gets its values by parameter name, `text` says it for
    messages."""

    text: str
    test: Callable[[Mapping[str, Any]], bool]


@dataclass(frozen=True)
class KernelDef:
    """One kernel.

    name             unique in an image; the C entry function is `entry` op               what it
    computes, as the compiler names operations producer         CSource for host kernels, CudaSource
    or MachineCode for CUDA kernels; None where `operator` alone does it params           in the
    order of the packed block, placed by `layout` grid             values by parameter name -> (x,
    y, z), ints or symbolic, each at least 1 workspace_bytes  values by parameter name -> bytes;
    None: no workspace local_memory_bytes  per workgroup, fixed; of CUDA kernels, their dynamic
    shared memory predicates       when it may be used; `launch` refuses with the text of the first
    that fails arch             host: machine architectures it is written for; empty: any that has a
    C compiler. CUDA: the targets
                     ("sm_80", "sm_90", "ptx") that it is built for; empty: all that are asked for
    cpu_features     names as in accrt/kernel.h without ACCRT_CPU_, beyond those of the image's
    target family           "host" or "cuda" block, cluster   CUDA: threads of a block; blocks of a
    cluster (zeros: none) specials         CUDA: implementations for single architectures, preferred
    there operator         a host operator with the same parameters; it is preferred where its pack
    is there cuda             of a user's host kernel: its counterpart for CUDA, with the same
    buffers and values
    """

    name: str
    op: str
    producer: Any
    params: Tuple[Param, ...]
    grid: Callable[[Mapping[str, Any]], Tuple[Any, Any, Any]]
    workspace_bytes: Optional[Callable[[Mapping[str, Any]], Any]] = None
    local_memory_bytes: int = 0
    predicates: Tuple[Predicate, ...] = ()
    arch: Tuple[str, ...] = ()
    cpu_features: Tuple[str, ...] = ()
    traits: int = TRAIT_DETERMINISTIC
    entry: str = ""
    family: str = "host"
    block: Tuple[int, int, int] = (0, 0, 0)
    cluster: Tuple[int, int, int] = (0, 0, 0)
    specials: Tuple[CudaVariant, ...] = ()
    operator: Optional[OperatorSource] = None
    cuda: Optional["KernelDef"] = None

    def __post_init__(self) -> None:
        if not _KERNEL_NAME.match(self.name):
            raise ValueError(f"kernel name {self.name!r}: 1 to 255 letters, digits, '_', '.' or '-' are needed")
        if len(self.params) > 64 or self.params_size_bytes > 4096:
            raise ValueError(
                f"kernel {self.name}: {len(self.params)} parameters in {self.params_size_bytes} bytes; "
                "at most 64 in 4096 fit"
            )
        if self.family not in FAMILIES or (self.family == "cuda") != (self.block[0] > 0 or self.producer is None):
            raise ValueError(f"kernel {self.name}: family {self.family!r} with blocks of {self.block}")
        if not callable(self.grid):
            raise ValueError(f"kernel {self.name}: its grid is {self.grid!r}, expected a function from the values to (x, y, z), "
                             "as lambda v: (v['n'], 1, 1)")
        if not self.entry:
            object.__setattr__(self, "entry", "accrt_" + re.sub(r"[^A-Za-z0-9_]", "_", self.name))

    @property
    def params_size_bytes(self) -> int:
        end = max((p.offset + p.size for p in self.params), default=0)
        return (end + 7) // 8 * 8

    def param(self, name: str) -> Param:
        for param in self.params:
            if param.name == name:
                return param
        raise KeyError(f"kernel {self.name} has no parameter {name!r}")


@dataclass(frozen=True)
class TensorSpec:
    """What selection needs to know of an operand: type, shape and strides in elements, ints or
    symbolic."""

    dtype: str
    shape: Tuple[Any, ...]
    strides: Tuple[Any, ...]

    @staticmethod
    def contiguous(dtype: str, shape: Sequence[Any]) -> "TensorSpec":
        strides = []
        step: Any = 1
        for size in reversed(tuple(shape)):
            strides.append(step)
            step = size if isinstance(step, int) and step == 1 else step * size
        return TensorSpec(dtype, tuple(shape), tuple(reversed(strides)))

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def element_size(self) -> int:
        return DTYPE_SIZES[self.dtype]


@dataclass(frozen=True)
class BufferArg:
    """Binds a buffer parameter: the operand's name, and an offset from its first element in
    elements."""

    operand: str
    offset: Any = 0


@dataclass(frozen=True)
class Launch:
    """One dispatch: a kernel with all its arguments. Absent optional buffers are simply not in
    `buffers`.

    `alternatives` are (condition, launch) of the same operands: the first whose condition is not
    zero is taken when a plan is made, this one where none is. They need no workspace. A condition
    on what only a call knows counts as zero.
    """

    kernel: KernelDef
    buffers: Mapping[str, BufferArg]
    values: Mapping[str, Any] = field(default_factory=dict)
    grid: Tuple[Any, Any, Any] = (1, 1, 1)
    workspace_bytes: Any = 0
    alternatives: Tuple[Tuple[Any, "Launch"], ...] = ()

    def choices(self) -> "Tuple[Launch, ...]":
        """This launch and its alternatives."""
        return (*(other for _condition, other in self.alternatives), self)


def launch(kernel: KernelDef, buffers: Mapping[str, Any], values: Mapping[str, Any]) -> Launch:
    """Binds a kernel; ValueError where a parameter lacks its argument or a predicate fails."""
    bound = {name: arg if isinstance(arg, BufferArg) else BufferArg(arg) for name, arg in buffers.items() if arg}
    for param in kernel.params:
        if param.kind == "buffer" and param.name not in bound and not param.optional:
            raise ValueError(f"kernel {kernel.name}: buffer {param.name!r} is not bound")
        if param.kind in ("symbol", "scalar") and param.name not in values:
            raise ValueError(f"kernel {kernel.name}: value {param.name!r} is not bound")
    for predicate in kernel.predicates:
        if not predicate.test(values):
            raise ValueError(f"kernel {kernel.name}: {predicate.text} is needed")
    needed = kernel.workspace_bytes(values) if kernel.workspace_bytes else 0
    return Launch(kernel, bound, dict(values), kernel.grid(values), needed)
