"""Writes .accx bundles: the public module for compiler authors. docs/accx-format.md specifies the bytes.

    from accrt import bundle_writer as bw

    bundle = bw.BundleWriter()
    n = bundle.symbol("n", bw.SymbolClass.SPECIALIZE, maximum=1 << 20)
    kernel = bundle.kernel("double", [bw.Parameter("x", "buffer", "read"), bw.Parameter("y", "buffer", "write"),
                                      bw.Parameter("n", "symbol")])
    kernel.variant(bundle.image("double.x86-64-v3", elf_bytes), arch="x86-64-v3")
    main = bundle.function("main")
    x, y = main.input("x", "f32", [n]), main.result("y", "f32", [n])
    main.body.dispatch(kernel, {"x": x.read(0, n * 4), "y": y.write(0, n * 4), "n": n}, grid=(bw.ceildiv(n, 256), 1, 1))
    bundle.write("double.accx")

A bundle may be for several kinds of device at once. `bundle.function(name, target="cuda")` makes a version of a function for
the devices of one driver beside others of the same name and signature; a device uses its driver's, or else the one without a
target. Device code says how it is launched:

    kernel.variant(bundle.image("double.sm_90", cubin, bw.ImageKind.CUBIN), driver="cuda", arch="sm_90", block=256)
    kernel.variant(bundle.pack("accrt.cublaslt"), entry="matmul", driver="cuda", arch_kind="portable")  # an installed pack

Sizes are `int` or `Expr`: symbols and what `+ - * // %`, `ceildiv`, `minimum`, `maximum`, `select`, `equal`, `less` ... make
of them. Encoding is canonical: the same content gives the same bytes, in whatever order symbols, constants, states, kernels,
functions, images and metadata were declared (arguments, commands and variants are ordered by meaning). Mistakes raise
BundleError, which names the function, command, kernel, parameter or argument.

It needs the `xxhash` package and not numpy. It imports nothing else of accrt.
"""

from __future__ import annotations

import enum
import io
import os
import struct
from dataclasses import dataclass
from typing import Any, BinaryIO, Dict, Iterable, List, Mapping, Optional, Sequence, Set, Tuple, Union

try:
    import xxhash
except ImportError as problem:
    raise ImportError(
        "accrt.bundle_writer needs the package 'xxhash' (pip install xxhash, or Debian's python3-xxhash)", name="xxhash"
    ) from problem

__all__ = [
    "AliasKind", "Block", "BundleError", "BundleWriter", "Command", "Constant", "DTYPES", "Encoding", "Expr", "Function",
    "Image", "ImageKind", "Kernel", "Parameter", "Predicate", "Range", "Scalar", "Slot", "State", "SymbolClass", "TensorRange",
    "ceildiv", "constant", "dtype_size_bytes", "equal", "induction", "less", "less_equal", "logical_and", "logical_not",
    "logical_or", "maximum", "minimum", "not_equal", "present", "scalar", "select",
]  # fmt: skip

NONE = 0xFFFFFFFF
MAX_RANK = 8
MAX_PARAMETERS = 64
MAX_PARAMETER_BYTES = 4096
CHUNK_BYTES = 1 << 20
BIG_ALIGN = 4096
TENSOR_ALIGN = 256
# Written in large pieces from memory that is there already, a file gets large pages in the page cache; it is then mapped in a
# fraction of the time (digests are made first: they bring the memory in).
_WRITE_BYTES = 4 << 20
SYMBOL_LIMIT = 1 << 48
MAGIC = b"\x89ACCX\r\n\x1a"

#: Data types by name: (id, bits an element).
DTYPES: Dict[str, Tuple[int, int]] = {
    "bool": (1, 8), "i8": (2, 8), "i16": (3, 16), "i32": (4, 32), "i64": (5, 64), "u8": (6, 8), "u16": (7, 16),
    "u32": (8, 32), "u64": (9, 64), "f16": (10, 16), "bf16": (11, 16), "f32": (12, 32), "f64": (13, 64),
    "f8e4m3fn": (14, 8), "f8e5m2": (15, 8), "f8e8m0": (16, 8), "f4e2m1": (17, 4), "i4": (18, 4), "u4": (19, 4),
}  # fmt: skip
_FORMAT_DTYPES = {
    "?": "bool", "b": "i8", "h": "i16", "i": "i32", "B": "u8", "H": "u16", "I": "u32", "e": "f16", "f": "f32", "d": "f64",
    "q": "i64", "Q": "u64", "l": "i64" if struct.calcsize("l") == 8 else "i32",
    "L": "u64" if struct.calcsize("L") == 8 else "u32",
}  # fmt: skip


class BundleError(ValueError):
    """A mistake in what was asked of the writer; the message names what is wrong and where."""


class SymbolClass(enum.IntEnum):
    """Who fixes a symbol's value, and when."""

    SPECIALIZE = 0  #: each value gets its own plan
    BUCKET = 1  #: each bucket gets a plan; memory is sized at its bound, the live value is patched in at each call
    RUNTIME = 2  #: patched in at each call; memory is sized at the maximum
    SESSION = 3  #: given when a session is made


class Encoding(enum.IntEnum):
    PLAIN = 0  #: row-major elements
    OPAQUE = 1  #: bytes that only the bundle's own kernels understand


class ImageKind(enum.IntEnum):
    HOST_ELF = 1
    CUBIN = 2
    PTX = 3
    FATBIN = 4
    PACK = 5  #: no bytes: a kernel pack outside the bundle, found by name (`BundleWriter.pack`)


class AliasKind(enum.IntEnum):
    """How a result's storage relates to an input's."""

    NONE = 0
    MAY = 1
    MUST = 2


_ARCH_KINDS = {"portable": 0, "family": 1, "exact": 2}
_PARAMETER_KINDS = {"buffer": 1, "tensor": 2, "scalar": 3, "symbol": 4, "workspace": 5}
_ACCESSES = {"none": 0, "read": 1, "write": 2, "read_write": 3}
_PREDICATES = {"divisible": 1, "aligned": 2, "equal": 3, "at_most": 4, "at_least": 5}
_TENSOR_PARAMETER_BYTES = 144
#: Traits of kernels, as in accrt/kernel.h.
TRAIT_DETERMINISTIC, TRAIT_CAPTURABLE, TRAIT_ZEROED_WORKSPACE, TRAIT_READS_HOST_METADATA, TRAIT_SERIAL = 1, 2, 4, 8, 16
#: Traits of device code, as in accrt/kernel.h: `launch_traits` of a variant, not of its kernel.
TRAIT_COOPERATIVE, TRAIT_OVERLAPS_PREVIOUS = 32, 64
_FEATURE_FUNCTION_TARGET = 1
MAX_BLOCK_THREADS = 1024
MAX_CLUSTER_BLOCKS = 64
MAX_SHARED_BYTES = 256 << 20
MAX_PACK_NAME_BYTES = 127
MAX_FUNCTION_TARGETS = 16
#: CPU features, as in accrt/kernel.h.
CPU_FEATURES = {
    "x86_64_v2": 1 << 0, "x86_64_v3": 1 << 1, "x86_64_v4": 1 << 2, "avx512_vnni": 1 << 3, "avx512_bf16": 1 << 4,
    "avx512_fp16": 1 << 5, "avx_vnni": 1 << 6, "amx_bf16": 1 << 7, "amx_int8": 1 << 8, "avx512_vbmi": 1 << 9,
    "arm_neon": 1 << 32, "arm_fp16": 1 << 33, "arm_dotprod": 1 << 34, "arm_bf16": 1 << 35, "arm_i8mm": 1 << 36,
    "arm_sve": 1 << 37,
}  # fmt: skip


def _dtype(name: str, where: str) -> int:
    if name not in DTYPES:
        raise BundleError(f"{where}: no data type {name!r}; there are {', '.join(DTYPES)}")
    return DTYPES[name][0]


def dtype_size_bytes(dtype: str, elements: int = 1) -> int:
    """Bytes of so many packed elements."""
    return (DTYPES[dtype][1] * elements + 7) // 8


# ---- Expressions -----------------------------------------------------------------------------------------------------

_OPS = (
    "constant", "symbol", "induction", "add", "sub", "mul", "floordiv", "ceildiv", "mod", "min", "max", "eq", "ne", "lt",
    "le", "and", "or", "not", "select", "present",
)  # fmt: skip
_OP_IDS = {name: number for number, name in enumerate(_OPS)}
_LEAVES = ("constant", "symbol", "induction", "present")
_ARITY = {name: 0 if name in _LEAVES else 1 if name == "not" else 3 if name == "select" else 2 for name in _OPS}

Size = Union[int, "Expr"]


class Expr:
    """An integer expression of shape symbols: immutable, equal and hashed by structure.

    It stands for checked 64-bit arithmetic: overflow, division by zero or a symbol without a value is an error where the
    expression is used. `//` floors and `%` has the divisor's sign, as in Python. Comparing two expressions with `==` tells
    whether they are the same expression; `equal(a, b)` makes an expression that is 1 or 0.
    """

    __slots__ = ("op", "args", "value", "_hash")
    op: str
    args: Tuple["Expr", ...]
    value: Any

    def __init__(self, op: str, args: Sequence["Expr"] = (), value: Any = None):
        if op not in _ARITY or len(args) != _ARITY[op]:
            raise BundleError(f"no expression {op!r} of {len(args)} operands")
        object.__setattr__(self, "op", op)
        object.__setattr__(self, "args", tuple(args))
        object.__setattr__(self, "value", value)
        object.__setattr__(self, "_hash", hash((op, self.args, value)))

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError("expressions are immutable")

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: Any) -> bool:
        if self is other:
            return True
        if not isinstance(other, Expr) or self._hash != other._hash:
            return False
        return (self.op, self.value, self.args) == (other.op, other.value, other.args)

    def __bool__(self) -> bool:
        raise BundleError(f"the truth of {self} is not known while compiling; use select() or a branch command")

    def __add__(self, other: Size) -> "Expr":
        return Expr("add", (self, constant(other)))

    def __radd__(self, other: Size) -> "Expr":
        return Expr("add", (constant(other), self))

    def __sub__(self, other: Size) -> "Expr":
        return Expr("sub", (self, constant(other)))

    def __rsub__(self, other: Size) -> "Expr":
        return Expr("sub", (constant(other), self))

    def __mul__(self, other: Size) -> "Expr":
        return Expr("mul", (self, constant(other)))

    def __rmul__(self, other: Size) -> "Expr":
        return Expr("mul", (constant(other), self))

    def __floordiv__(self, other: Size) -> "Expr":
        return Expr("floordiv", (self, constant(other)))

    def __rfloordiv__(self, other: Size) -> "Expr":
        return Expr("floordiv", (constant(other), self))

    def __mod__(self, other: Size) -> "Expr":
        return Expr("mod", (self, constant(other)))

    def __rmod__(self, other: Size) -> "Expr":
        return Expr("mod", (constant(other), self))

    def __neg__(self) -> "Expr":
        return Expr("sub", (constant(0), self))

    def __repr__(self) -> str:
        infix = {"add": "+", "sub": "-", "mul": "*", "floordiv": "//", "mod": "%", "eq": "==", "ne": "!=", "lt": "<", "le": "<="}
        if self.op in ("constant", "symbol"):
            return str(self.value)
        if self.op in infix:
            return f"({self.args[0]} {infix[self.op]} {self.args[1]})"
        inside = ", ".join(map(str, self.args)) if self.args else str(self.value)
        return f"{self.op}({inside})"

    def symbols(self) -> Set[str]:
        """Names of the symbols in it."""
        found: Set[str] = set()
        seen: Set[int] = set()
        pending = [self]
        while pending:
            node = pending.pop()
            if id(node) in seen:
                continue
            seen.add(id(node))
            if node.op == "symbol":
                found.add(node.value)
            pending.extend(node.args)
        return found


def constant(value: Size) -> Expr:
    """An integer as an expression; an expression as it is."""
    if isinstance(value, Expr):
        return value
    try:
        number = value.__index__()
    except AttributeError:
        raise BundleError(f"a size must be an integer or an expression, not {value!r}") from None
    if not -(1 << 63) <= number < 1 << 63:
        raise BundleError(f"{number} does not fit a signed 64-bit expression")
    return Expr("constant", (), number)


def _binary(op: str, a: Size, b: Size) -> Expr:
    return Expr(op, (constant(a), constant(b)))


def ceildiv(a: Size, b: Size) -> Expr:
    """a / b rounded up."""
    return _binary("ceildiv", a, b)


def minimum(a: Size, b: Size) -> Expr:
    return _binary("min", a, b)


def maximum(a: Size, b: Size) -> Expr:
    return _binary("max", a, b)


def equal(a: Size, b: Size) -> Expr:
    """1 where a equals b, else 0; likewise the other comparisons."""
    return _binary("eq", a, b)


def not_equal(a: Size, b: Size) -> Expr:
    return _binary("ne", a, b)


def less(a: Size, b: Size) -> Expr:
    return _binary("lt", a, b)


def less_equal(a: Size, b: Size) -> Expr:
    return _binary("le", a, b)


def logical_and(a: Size, b: Size) -> Expr:
    return _binary("and", a, b)


def logical_or(a: Size, b: Size) -> Expr:
    return _binary("or", a, b)


def logical_not(a: Size) -> Expr:
    return Expr("not", (constant(a),))


def select(condition: Size, then: Size, otherwise: Size) -> Expr:
    """`then` where the condition is not 0, else `otherwise`."""
    return Expr("select", (constant(condition), constant(then), constant(otherwise)))


def induction(depth: int = 0) -> Expr:
    """Number of the current iteration of the repeat command at nesting depth `depth`, 0 the outermost."""
    return Expr("induction", (), int(depth))


def present(input_index: int) -> Expr:
    """1 when the optional input was given, else 0. `Function.present` takes the input itself."""
    return Expr("present", (), int(input_index))


def _align(value: int, alignment: int) -> int:
    return (value + alignment - 1) // alignment * alignment


# ---- What commands refer to ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scalar:
    """The bits of a SCALAR argument, little-endian."""

    data: bytes


def scalar(value: Any, dtype: str) -> Scalar:
    """A number as a scalar argument of the given type."""
    codes = {"bool": "?", "i8": "b", "i16": "h", "i32": "i", "i64": "q", "u8": "B", "u16": "H", "u32": "I", "u64": "Q",
             "f16": "e", "f32": "f", "f64": "d"}  # fmt: skip
    if dtype not in codes:
        raise BundleError(f"no scalar of type {dtype!r}")
    try:
        return Scalar(struct.pack("<" + codes[dtype], value))
    except (struct.error, OverflowError) as error:
        raise BundleError(f"{value!r} as a scalar of type {dtype}: {error}") from error


@dataclass(frozen=True)
class Range:
    """Bytes of a slot, and what a command does to them. `size` None: to the slot's end."""

    slot: "Slot"
    access: str
    offset: Size = 0
    size: Optional[Size] = None

    def tensor(self, dtype: str, shape: Sequence[Size], strides: Optional[Sequence[Size]] = None) -> "TensorRange":
        """The range seen as a tensor, for TENSOR parameters; strides in elements, row-major if not given."""
        if strides is None:
            steps: List[Size] = []
            step: Size = 1
            for size in reversed(tuple(shape)):
                steps.append(step)
                step = step * size
            strides = tuple(reversed(steps))
        if len(shape) != len(strides) or len(shape) > MAX_RANK:
            raise BundleError(f"a tensor of shape {tuple(shape)} with strides {tuple(strides)}; ranks up to {MAX_RANK}")
        return TensorRange(self, dtype, tuple(shape), tuple(strides))


@dataclass(frozen=True)
class TensorRange:
    range: Range
    dtype: str
    shape: Tuple[Size, ...]
    strides: Tuple[Size, ...]


class Slot:
    """A storage of one function: an argument, a constant, a state, or the transient arena. Compared by identity."""

    def __init__(self, function: "Function", kind: int, target: Any, name: str, component: int = 0):
        self.function, self.kind, self.target, self.name, self.component = function, kind, target, name, component

    def __repr__(self) -> str:
        return f"<slot {self.name!r} of {self.function.name!r}>"

    def read(self, offset: Size = 0, size: Optional[Size] = None) -> Range:
        return Range(self, "read", offset, size)

    def write(self, offset: Size = 0, size: Optional[Size] = None) -> Range:
        return Range(self, "write", offset, size)

    def update(self, offset: Size = 0, size: Optional[Size] = None) -> Range:
        """Read and written."""
        return Range(self, "read_write", offset, size)


@dataclass(frozen=True)
class Parameter:
    """One declared parameter of a kernel.

    `kind`: buffer, tensor, scalar, symbol or workspace; `access`: none, read, write, read_write (of buffers, tensors and
    workspaces; a workspace is read_write). `size_bytes`: of a scalar (1, 2, 4, 8). `offset_bytes` None: where a C compiler
    would place the next member of the parameter struct.
    """

    name: str
    kind: str
    access: str = "none"
    size_bytes: int = 0
    offset_bytes: Optional[int] = None
    optional: bool = False


@dataclass(frozen=True)
class Predicate:
    """A condition of a variant on an argument: divisible, aligned, equal, at_most or at_least `value`."""

    kind: str
    parameter: str
    value: int


@dataclass(eq=False)
class Image:
    name: str
    data: Any
    kind: ImageKind
    index: int = -1

    @property
    def is_device_code(self) -> bool:
        return self.kind in (ImageKind.CUBIN, ImageKind.PTX, ImageKind.FATBIN)


@dataclass(eq=False)
class Constant:
    """A weight: bytes in the bundle, or (data None) made by a prepare function."""

    name: str
    dtype: str
    shape: Tuple[int, ...]
    encoding: Encoding
    data: Optional[memoryview]
    size_bytes: int
    index: int = -1
    offset_bytes: int = 0

    @property
    def prepared(self) -> bool:
        return self.data is None


@dataclass(eq=False)
class State:
    name: str
    dtype: str
    shape: Tuple[Expr, ...]
    encoding: Encoding
    fill_pattern: int
    index: int = -1


@dataclass(eq=False)
class _Symbol:
    name: str
    symbol_class: SymbolClass
    minimum: int
    maximum: int
    divisor: int
    buckets: Tuple[int, ...]


@dataclass(eq=False)
class _Launch:
    traits: int
    block: Tuple[int, int, int]
    cluster: Tuple[int, int, int]
    dynamic_shared_bytes: int


@dataclass(eq=False)
class _Variant:
    image: Image
    entry: str
    driver: str
    arch_kind: int
    arch: str
    priority: int
    cpu_features: int
    predicates: Tuple[Predicate, ...]
    launch: Optional[_Launch]


def _three(value: Union[int, Sequence[int], None], limit: int, where: str) -> Tuple[int, int, int]:
    """A size in up to three dimensions, the others 1; None is (0, 0, 0)."""
    if value is None:
        return (0, 0, 0)
    sizes = [value] if isinstance(value, int) else [int(size) for size in value]
    volume = 1
    for size in sizes:
        volume *= size
    if not 1 <= len(sizes) <= 3 or min(sizes, default=0) < 1 or volume > limit:
        raise BundleError(f"{where} {value!r}: one to three sizes of at least 1, together at most {limit}")
    return tuple(sizes + [1] * (3 - len(sizes)))  # type: ignore[return-value]


class Kernel:
    """A kernel: its declared parameters and the variants that implement it."""

    def __init__(self, name: str, parameters: Sequence[Parameter], traits: int, local_memory_bytes: int):
        self.name, self.traits, self.local_memory_bytes = name, traits, local_memory_bytes
        self.parameters = self._place(parameters)
        self.variants: List[_Variant] = []
        self.index = -1
        end = max((p.offset_bytes + p.size_bytes for p in self.parameters), default=0)
        self.params_size_bytes = _align(end, 8)
        if len(self.parameters) > MAX_PARAMETERS or self.params_size_bytes > MAX_PARAMETER_BYTES:
            raise BundleError(
                f"kernel {name!r}: {len(self.parameters)} parameters in {self.params_size_bytes} bytes; "
                f"at most {MAX_PARAMETERS} in {MAX_PARAMETER_BYTES} are allowed"
            )

    def _place(self, parameters: Sequence[Parameter]) -> Tuple[Parameter, ...]:
        placed: List[Parameter] = []
        end = 0
        for given in parameters:
            where = f"kernel {self.name!r}, parameter {given.name!r}"
            if given.kind not in _PARAMETER_KINDS or given.access not in _ACCESSES:
                raise BundleError(f"{where}: kind {given.kind!r} with access {given.access!r}")
            if not given.name or any(p.name == given.name for p in placed):
                raise BundleError(f"{where}: the name is empty or used twice")
            access = "read_write" if given.kind == "workspace" else given.access
            if (given.kind in ("scalar", "symbol")) != (access == "none"):
                raise BundleError(f"{where}: a {given.kind} with access {access!r}")
            if given.optional and given.kind != "buffer":
                raise BundleError(f"{where}: only a buffer may be optional, this is a {given.kind}")
            size = self._size(given, where)
            offset = _align(end, min(size, 8)) if given.offset_bytes is None else given.offset_bytes
            if offset < end or offset % min(size, 8):
                raise BundleError(f"{where}: offset {offset} overlaps the parameter before it or is not aligned")
            placed.append(Parameter(given.name, given.kind, access, size, offset, given.optional))
            end = offset + size
        return tuple(placed)

    @staticmethod
    def _size(parameter: Parameter, where: str) -> int:
        if parameter.kind == "tensor":
            return _TENSOR_PARAMETER_BYTES
        if parameter.kind != "scalar":
            return 8
        if parameter.size_bytes not in (1, 2, 4, 8):
            raise BundleError(f"{where}: a scalar of {parameter.size_bytes} bytes; 1, 2, 4 and 8 are allowed")
        return parameter.size_bytes

    def variant(
        self,
        image: Image,
        *,
        entry: str = "",
        driver: str = "host",
        arch: str = "",
        arch_kind: str = "family",
        priority: int = 0,
        cpu_features: Union[int, Iterable[str]] = 0,
        predicates: Iterable[Predicate] = (),
        block: Union[int, Sequence[int], None] = None,
        cluster: Union[int, Sequence[int], None] = None,
        dynamic_shared_bytes: int = 0,
        launch_traits: int = 0,
    ) -> "Kernel":
        """Adds an implementation: `entry` (the kernel's name by default) in `image`, for devices of `driver` and `arch`
        (`arch_kind`: portable, family or exact), where all predicates hold. Among equals the earlier is preferred. For CUDA,
        `sm_90` as family runs on all devices of that major from that minor up, exact on that one (`sm_90a` is always exact);
        portable PTX may name the least architecture ("sm_80").

        Device code (CUBIN, PTX, FATBIN) needs `block`, the threads of a workgroup, and may have a `cluster` of workgroups,
        dynamic shared memory, and `launch_traits`: TRAIT_COOPERATIVE (all workgroups run at once), TRAIT_OVERLAPS_PREVIOUS (it
        may start before the kernel ahead of it has ended, and waits for that itself). Nothing else has them."""
        where = f"kernel {self.name!r}, variant for {driver} {arch!r}"
        if arch_kind not in _ARCH_KINDS:
            raise BundleError(f"{where}: no architecture kind {arch_kind!r}")
        if arch_kind != "portable" and not arch:
            raise BundleError(f"{where}: only a portable variant may name no architecture")
        if driver == "host" and image.kind not in (ImageKind.HOST_ELF, ImageKind.PACK):
            raise BundleError(f"{where}: image {image.name!r} is of kind {image.kind.name}; the host runs HOST_ELF and PACK")
        launch = self._launch(image, block, cluster, dynamic_shared_bytes, launch_traits, where)
        names = [p.name for p in self.parameters]
        for predicate in predicates:
            self._check_predicate(predicate, names, where)
        ordered = tuple(sorted(set(predicates), key=lambda p: (_PREDICATES[p.kind], names.index(p.parameter), p.value)))
        if not isinstance(cpu_features, int):
            unknown = [f for f in cpu_features if f not in CPU_FEATURES]
            if unknown:
                raise BundleError(f"{where}: no CPU feature {unknown[0]!r}; there are {', '.join(CPU_FEATURES)}")
            cpu_features = sum(CPU_FEATURES[f] for f in set(cpu_features))
        self.variants.append(
            _Variant(image, entry or self.name, driver, _ARCH_KINDS[arch_kind], arch, priority, cpu_features, ordered, launch)
        )
        return self

    @staticmethod
    def _launch(image: Image, block: Any, cluster: Any, shared: int, traits: int, where: str) -> Optional[_Launch]:
        if not image.is_device_code:
            if block is not None or cluster is not None or shared or traits:
                raise BundleError(f"{where}: image {image.name!r} is of kind {image.kind.name}, which is not launched in blocks")
            return None
        if block is None:
            raise BundleError(f"{where}: device code needs block=, the threads of a workgroup")
        if not 0 <= shared <= MAX_SHARED_BYTES:
            raise BundleError(f"{where}: {shared} bytes of dynamic shared memory; at most {MAX_SHARED_BYTES}")
        if traits & ~(TRAIT_COOPERATIVE | TRAIT_OVERLAPS_PREVIOUS):
            raise BundleError(f"{where}: launch traits {traits:#x}; TRAIT_COOPERATIVE and TRAIT_OVERLAPS_PREVIOUS are allowed")
        sizes = _three(block, MAX_BLOCK_THREADS, f"{where}: block"), _three(cluster, MAX_CLUSTER_BLOCKS, f"{where}: cluster")
        return _Launch(traits, *sizes, shared)

    def _check_predicate(self, predicate: Predicate, names: List[str], where: str) -> None:
        if predicate.kind not in _PREDICATES or predicate.parameter not in names:
            raise BundleError(f"{where}: no predicate {predicate.kind!r} on a parameter {predicate.parameter!r}")
        kind = self.parameters[names.index(predicate.parameter)].kind
        wanted = ("buffer", "tensor") if predicate.kind == "aligned" else ("symbol", "scalar")
        if kind not in wanted:
            raise BundleError(f"{where}: {predicate.kind} is not for {predicate.parameter!r}, a {kind}")
        if predicate.kind in ("divisible", "aligned") and predicate.value < 1:
            raise BundleError(f"{where}: {predicate.kind} by {predicate.value} on {predicate.parameter!r}")


# ---- Functions and commands ------------------------------------------------------------------------------------------

_DISPATCH, _COPY, _FILL, _BARRIER, _CALL, _REPEAT, _BRANCH, _MARKER = range(1, 9)
_BUFFER, _TENSOR, _SCALAR, _SYMBOL, _WORKSPACE, _ABSENT = range(1, 7)
_READ, _READ_WRITE, _DONATED, _RESULT, _SCALAR_ARGUMENT = range(5)
_ARGUMENT_ACCESS = {"read": _READ, "read_write": _READ_WRITE, "donated": _DONATED}


class Command:
    """One command of a block; given as `after` to commands that must follow it."""

    def __init__(self, block: "Block", opcode: int, name: str, after: Iterable["Command"]):
        self.block, self.opcode, self.name = block, opcode, name
        self.index = len(block.commands)
        self.fields: Dict[str, Any] = {}
        self.predecessors = sorted({self._predecessor(command) for command in after})

    def _predecessor(self, command: "Command") -> int:
        if not isinstance(command, Command) or command.block is not self.block:
            raise BundleError(f"{self}: a predecessor must be an earlier command of the same block, not {command!r}")
        return command.index

    def __repr__(self) -> str:
        kinds = ("", "dispatch", "copy", "fill", "barrier", "call", "repeat", "branch", "marker")
        label = f" {self.name!r}" if self.name else ""
        return f"function {self.block.function.name!r}, command {self.index} ({kinds[self.opcode]}{label})"

    @property
    def body(self) -> "Block":
        """Of a repeat: what is repeated."""
        return self.fields["block"]

    @property
    def then(self) -> "Block":
        return self.fields["then"]

    @property
    def otherwise(self) -> "Block":
        """Of a branch: the else block, made when first asked for."""
        if self.fields["else"] is None:
            self.fields["else"] = Block(self.block.function)
        return self.fields["else"]


class Block:
    """Commands that start as soon as their predecessors (`after`) are complete; without any, when the block starts."""

    def __init__(self, function: "Function"):
        self.function = function
        self.commands: List[Command] = []

    def _add(self, opcode: int, name: str, after: Iterable[Command], **fields: Any) -> Command:
        command = Command(self, opcode, name, after)
        command.fields = fields
        self.commands.append(command)
        return command

    def _where(self, what: str, name: str) -> str:
        return f"function {self.function.name!r}, command {len(self.commands)} ({what} {name!r})"

    def dispatch(
        self,
        kernel: Kernel,
        arguments: Mapping[str, Any],
        grid: Sequence[Size] = (1, 1, 1),
        *,
        after: Iterable[Command] = (),
        name: str = "",
    ) -> Command:
        """Launches a kernel. `arguments` by parameter name: Range for buffers and workspaces, TensorRange for tensors,
        `scalar(...)` (or a plain int or float) for scalars, int or Expr for symbols; an optional buffer may be left out."""
        where = self._where("dispatch of kernel", kernel.name)
        unknown = set(arguments) - {p.name for p in kernel.parameters}
        if unknown:
            raise BundleError(f"{where}: the kernel has no parameter {sorted(unknown)[0]!r}")
        if len(grid) != 3:
            raise BundleError(f"{where}: the grid needs three sizes, not {tuple(grid)}")
        operands = []
        for parameter in kernel.parameters:
            operands.append(self._operand(parameter, arguments.get(parameter.name), f"{where}, parameter {parameter.name!r}"))
        sizes = tuple(constant(size) for size in grid)
        return self._add(_DISPATCH, name or kernel.name, after, kernel=kernel, operands=operands, grid=sizes)

    def _operand(self, parameter: Parameter, value: Any, where: str) -> Tuple[int, Any]:
        if value is None:
            if parameter.kind == "buffer" and parameter.optional:
                return _ABSENT, None
            raise BundleError(f"{where}: no argument is given")
        if parameter.kind == "scalar":
            return _SCALAR, self._scalar_bits(parameter, value, where)
        if parameter.kind == "symbol":
            return _SYMBOL, constant(value)
        kinds = {"buffer": (Range, _BUFFER), "workspace": (Range, _WORKSPACE), "tensor": (TensorRange, _TENSOR)}
        wanted, operand = kinds[parameter.kind]
        if not isinstance(value, wanted):
            raise BundleError(f"{where}: a {parameter.kind} needs a {wanted.__name__}, not {type(value).__name__}")
        span = value.range if operand == _TENSOR else value
        if span.access != parameter.access:
            raise BundleError(f"{where}: the kernel declares {parameter.access}, the range is for {span.access}")
        self._check_range(span, where)
        if operand == _WORKSPACE and span.slot.kind != 3:
            raise BundleError(f"{where}: a workspace lies in the transient arena, not in {span.slot}")
        return operand, value

    @staticmethod
    def _scalar_bits(parameter: Parameter, value: Any, where: str) -> int:
        size = parameter.size_bytes
        if isinstance(value, bool) or not isinstance(value, (Scalar, int, float)):
            raise BundleError(f"{where}: a scalar needs scalar(...), an int or a float, not {value!r}")
        if isinstance(value, int):
            if not -(1 << (8 * size - 1)) <= value < 1 << (8 * size):
                raise BundleError(f"{where}: {value} does not fit {size} bytes")
            return value & ((1 << (8 * size)) - 1)
        if isinstance(value, float):
            if size not in (4, 8):
                raise BundleError(f"{where}: a float for a scalar of {size} bytes; use scalar(value, dtype)")
            value = scalar(value, "f32" if size == 4 else "f64")
        if len(value.data) != size:
            raise BundleError(f"{where}: {len(value.data)} bytes for a scalar of {size}")
        return int.from_bytes(value.data, "little")

    def _check_range(self, span: Range, where: str) -> None:
        if not isinstance(span, Range) or span.access not in _ACCESSES:
            raise BundleError(f"{where}: {span!r} is no range of a slot")
        slot = span.slot
        if slot.function is not self.function:
            raise BundleError(f"{where}: {slot} belongs to another function")
        writes = span.access in ("write", "read_write")
        if slot.kind == 1 and writes:
            raise BundleError(f"{where}: constant {slot.name!r} is read only")
        if slot.kind == 0 and writes and slot.target.kind == _READ:
            raise BundleError(f"{where}: input {slot.name!r} is read only; declare it read_write or donated to write it")
        if slot.kind == 0 and slot.target.kind == _SCALAR_ARGUMENT:
            raise BundleError(f"{where}: {slot.name!r} is a scalar and has no storage")

    def copy(
        self,
        source: Range,
        target: Range,
        extent: Union[Size, Sequence[Size]],
        source_strides: Sequence[Size] = (0, 0),
        target_strides: Sequence[Size] = (0, 0),
        *,
        after: Iterable[Command] = (),
        name: str = "",
    ) -> Command:
        """Copies bytes; or rows of bytes, `extent` = (bytes, rows) or (bytes, rows, planes), with byte strides between rows
        and between planes. The ranges' sizes follow from the extents and are not given. Rows of the target may not overlap;
        those of the source may (a stride of 0 repeats a row)."""
        where = self._where("copy", name)
        extents = [extent] if isinstance(extent, (int, Expr)) else list(extent)
        if not 1 <= len(extents) <= 3:
            raise BundleError(f"{where}: one to three extents, not {len(extents)}")
        for span, access in ((source, "read"), (target, "write")):
            self._check_range(span, where)
            if span.access != access or span.size is not None:
                raise BundleError(f"{where}: {span} must be for {access} and without a size")
        full = [constant(e) for e in extents] + [constant(1)] * (3 - len(extents))
        steps = []
        for strides in (source_strides, target_strides):
            padded = list(strides) + [0] * (2 - len(strides))
            live = [s if i + 1 < len(extents) else 0 for i, s in enumerate(padded[:2])]
            steps.append(tuple(constant(s) for s in live))
        return self._add(_COPY, name, after, source=source, target=target, extent=full, steps=steps)

    def fill(
        self, target: Range, pattern: int = 0, pattern_bytes: int = 1, *, after: Iterable[Command] = (), name: str = ""
    ) -> Command:
        """Fills with a repeated pattern of 1, 2, 4 or 8 bytes."""
        where = self._where("fill", name)
        self._check_range(target, where)
        if target.access != "write" or pattern_bytes not in (1, 2, 4, 8) or not 0 <= pattern < 1 << (8 * pattern_bytes):
            raise BundleError(f"{where}: pattern {pattern} of {pattern_bytes} bytes into a range for {target.access}")
        return self._add(_FILL, name, after, target=target, pattern=pattern, pattern_bytes=pattern_bytes)

    def barrier(self, *, name: str = "") -> Command:
        """All commands after it follow all before it."""
        return self._add(_BARRIER, name, ())

    def call(
        self, function: "Function", arguments: Mapping[str, Any], *, after: Iterable[Command] = (), name: str = ""
    ) -> Command:
        """Runs another function in place. `arguments` by name, inputs and results: Range for tensors, int or Expr for
        scalars; an optional input may be left out."""
        where = self._where("call of", function.name)
        known = {a.name for a in function.arguments}
        if len(known) != len(function.arguments):
            raise BundleError(f"{where}: an input and a result have the same name, so it cannot be called by name")
        if set(arguments) - known:
            raise BundleError(f"{where}: it has no argument {sorted(set(arguments) - known)[0]!r}")
        operands = [self._call_operand(a, arguments.get(a.name), f"{where}, argument {a.name!r}") for a in function.arguments]
        return self._add(_CALL, name or function.name, after, function=function, operands=operands)

    def _call_operand(self, argument: "_Argument", value: Any, where: str) -> Tuple[int, Any]:
        if value is None:
            if argument.optional:
                return _ABSENT, None
            raise BundleError(f"{where}: nothing is given")
        if argument.kind == _SCALAR_ARGUMENT:
            return _SYMBOL, constant(value)
        if not isinstance(value, Range):
            raise BundleError(f"{where}: a Range is needed, not {type(value).__name__}")
        access = {_READ: "read", _RESULT: "write"}.get(argument.kind, "read_write")
        if value.access != access:
            raise BundleError(f"{where}: the callee needs {access}, the range is for {value.access}")
        self._check_range(value, where)
        return _BUFFER, value

    def repeat(self, count: Size, *, after: Iterable[Command] = (), name: str = "") -> Command:
        """Runs the block `.body` of the returned command `count` times, in order; `induction(depth)` is the iteration."""
        return self._add(_REPEAT, name, after, count=constant(count), block=Block(self.function))

    def branch(self, condition: Size, *, after: Iterable[Command] = (), name: str = "") -> Command:
        """Runs the block `.then` where the condition is not 0, else `.otherwise`; decided when the plan is made."""
        fields = {"condition": constant(condition), "then": Block(self.function), "else": None}
        return self._add(_BRANCH, name, after, **fields)

    def marker(self, text: str, *, after: Iterable[Command] = ()) -> Command:
        """Text for traces."""
        return self._add(_MARKER, "", after, text=text)


@dataclass(eq=False)
class _Argument:
    name: str
    kind: int
    dtype: str
    shape: Tuple[Expr, ...]
    encoding: Encoding = Encoding.PLAIN
    optional: bool = False
    symbol: Optional[str] = None
    alias_kind: AliasKind = AliasKind.NONE
    alias_input: Optional["_Argument"] = None
    constant: Optional[Constant] = None
    doc: str = ""


class Function:
    """A function of the bundle: its signature, its slots and its commands (`body`)."""

    def __init__(self, bundle: "BundleWriter", name: str, prepare: bool, internal: bool, doc: str, target: str):
        self.bundle, self.name, self.prepare, self.internal, self.doc = bundle, name, prepare, internal, doc
        self.target = target
        self.inputs: List[_Argument] = []
        self.results: List[_Argument] = []
        self.slots: Dict[Tuple[int, int, int], Slot] = {}
        self.transient_size: Expr = constant(0)
        self.transient_align = 1
        self.body = Block(self)
        self.index = -1

    def __repr__(self) -> str:
        return f"<function {self.name!r}" + (f" for {self.target}>" if self.target else ">")

    @property
    def arguments(self) -> List[_Argument]:
        return self.inputs + self.results

    def _argument(self, among: List[_Argument], argument: _Argument, what: str) -> Slot:
        where = f"function {self.name!r}, {what} {argument.name!r}"
        if not argument.name or any(a.name == argument.name for a in among):
            raise BundleError(f"{where}: the name is empty or used twice")
        _dtype(argument.dtype, where)
        if len(argument.shape) > MAX_RANK:
            raise BundleError(f"{where}: rank {len(argument.shape)}; at most {MAX_RANK}")
        among.append(argument)
        slot = Slot(self, 0, argument, argument.name)
        self.slots[(0, id(argument), 0)] = slot
        return slot

    def input(
        self,
        name: str,
        dtype: str,
        shape: Sequence[Size],
        *,
        access: str = "read",
        optional: bool = False,
        encoding: Encoding = Encoding.PLAIN,
        doc: str = "",
    ) -> Slot:
        """Adds a tensor input. `access`: read, read_write (updated in place) or donated (may be overwritten). A dimension
        that is a bare symbol binds it; any other is checked at each call."""
        if access not in _ARGUMENT_ACCESS:
            raise BundleError(f"function {self.name!r}, input {name!r}: no access {access!r}")
        dims = tuple(constant(size) for size in shape)
        made = _Argument(name, _ARGUMENT_ACCESS[access], dtype, dims, encoding, optional, doc=doc)
        return self._argument(self.inputs, made, "input")

    def scalar(self, name: str, symbol: Expr, *, optional: bool = False, doc: str = "") -> None:
        """Adds an integer input that gives a symbol its value."""
        if not isinstance(symbol, Expr) or symbol.op != "symbol":
            raise BundleError(f"function {self.name!r}, scalar {name!r}: {symbol!r} is no symbol")
        made = _Argument(name, _SCALAR_ARGUMENT, "i64", (), Encoding.PLAIN, optional, symbol=symbol.value, doc=doc)
        self._argument(self.inputs, made, "scalar")

    def result(
        self,
        name: str,
        dtype: str,
        shape: Sequence[Size],
        *,
        alias: Optional[Slot] = None,
        alias_kind: AliasKind = AliasKind.MAY,
        encoding: Encoding = Encoding.PLAIN,
        doc: str = "",
    ) -> Slot:
        """Adds a tensor result. `alias`: an input whose storage it may or must share."""
        dims = tuple(constant(size) for size in shape)
        made = _Argument(name, _RESULT, dtype, dims, encoding, doc=doc)
        if alias is not None:
            if not isinstance(alias, Slot):
                raise BundleError(
                    f"function {self.name!r}, result {name!r}: alias is {alias!r}; it must be what input() returned"
                )
            if alias.function is not self or alias.target not in self.inputs or alias_kind == AliasKind.NONE:
                raise BundleError(f"function {self.name!r}, result {name!r}: {alias} is no input to share storage with")
            if alias.target.kind not in (_READ_WRITE, _DONATED):
                raise BundleError(f"function {self.name!r}, result {name!r}: input {alias.name!r} is read only")
            made.alias_kind, made.alias_input = AliasKind(alias_kind), alias.target
        return self._argument(self.results, made, "result")

    def source(self, name: str, value: Constant) -> Slot:
        """Of a prepare function: adds the stored constant that it reads."""
        if not self.prepare or value.prepared:
            raise BundleError(f"function {self.name!r}, source {name!r}: prepare functions read constants stored in the bundle")
        dims = tuple(constant(size) for size in value.shape)
        made = _Argument(name, _READ, value.dtype, dims, value.encoding, constant=value)
        return self._argument(self.inputs, made, "source")

    def product(self, name: str, value: Constant) -> Slot:
        """Of a prepare function: adds the prepared constant that it makes."""
        if not self.prepare or not value.prepared:
            raise BundleError(f"function {self.name!r}, product {name!r}: prepare functions make prepared constants")
        dims = tuple(constant(size) for size in value.shape)
        made = _Argument(name, _RESULT, value.dtype, dims, value.encoding, constant=value)
        return self._argument(self.results, made, "product")

    def present(self, slot: Slot) -> Expr:
        """1 when the optional input was given, else 0."""
        if slot.function is not self or slot.target not in self.inputs or not slot.target.optional:
            raise BundleError(f"function {self.name!r}: {slot} is no optional input")
        return present(self.inputs.index(slot.target))

    def _slot(self, kind: int, target: Any, name: str, component: int = 0) -> Slot:
        key = (kind, id(target), component)
        if key not in self.slots:
            self.slots[key] = Slot(self, kind, target, name, component)
        return self.slots[key]

    def constant(self, value: Constant, component: int = 0) -> Slot:
        """The slot of a constant."""
        return self._slot(1, value, value.name, component)

    def state(self, value: State) -> Slot:
        """The slot of a state."""
        return self._slot(2, value, value.name)

    def transient(self, size_bytes: Optional[Size] = None, align: int = 256) -> Slot:
        """The slot of the transient arena: memory for the time of one call. The size may be given later."""
        if size_bytes is not None:
            self.transient_size = constant(size_bytes)
            if align < 1 or align & (align - 1) or align > BIG_ALIGN:
                raise BundleError(f"function {self.name!r}: transient memory aligned to {align}")
            self.transient_align = align
        return self._slot(3, self, "transient memory")

    def bound_symbols(self) -> Set[str]:
        """Names of the symbols that its inputs give a value."""
        bound = {a.symbol for a in self.inputs if a.symbol}
        return bound | {d.value for a in self.inputs for d in a.shape if d.op == "symbol"}


# ---- Encoding --------------------------------------------------------------------------------------------------------


class _Scope:
    """Expressions of one scope, in order of first use."""

    def __init__(self, symbol_indices: Mapping[str, int], where: str):
        self.symbol_indices, self.where = symbol_indices, where
        self.indices: Dict[Expr, int] = {}
        self.records: List[bytes] = []
        self.symbols: Set[str] = set()

    def add(self, expression: Optional[Size]) -> int:
        """Index of the expression's node."""
        if expression is None:
            return NONE
        pending = [constant(expression)]
        while pending:
            node = pending[-1]
            if node in self.indices:
                pending.pop()
                continue
            missing = [a for a in reversed(node.args) if a not in self.indices]
            if missing:
                pending.extend(missing)
                continue
            pending.pop()
            self.indices[node] = len(self.records)
            self.records.append(self._record(node))
        return self.indices[constant(expression)]

    def _record(self, node: Expr) -> bytes:
        operands = [self.indices[a] for a in node.args] + [NONE] * (3 - len(node.args))
        immediate = node.value if node.op in _LEAVES else 0
        if node.op == "symbol":
            if node.value not in self.symbol_indices:
                raise BundleError(f"{self.where}: symbol {node.value!r} is not declared in this bundle")
            self.symbols.add(node.value)
            immediate = self.symbol_indices[node.value]
        return struct.pack("<4Iq", _OP_IDS[node.op], *operands, immediate)


class _Strings:
    def __init__(self) -> None:
        self.texts: Set[str] = {""}
        self.offsets: Dict[str, int] = {}

    def collect(self, *texts: str) -> None:
        self.texts.update(texts)

    def finish(self) -> bytes:
        data = bytearray()
        for encoded in sorted(text.encode("utf-8") for text in self.texts):
            if b"\0" in encoded:
                raise BundleError(f"a string may not hold NUL: {encoded!r}")
            self.offsets[encoded.decode("utf-8")] = len(data)
            data += encoded + b"\0"
        return bytes(data)

    def __getitem__(self, text: str) -> int:
        return self.offsets[text]


_SECTIONS = {
    "strings": (1, 0), "metadata": (2, 8), "symbols": (3, 40), "buckets": (4, 8), "expressions": (5, 24),
    "constants": (6, 96), "components": (7, 24), "states": (8, 64), "functions": (9, 64), "arguments": (10, 80),
    "slots": (11, 16), "views": (12, 72), "blocks": (13, 16), "commands": (14, 0), "kernels": (15, 32),
    "parameters": (16, 16), "variants": (17, 48), "predicates": (18, 16), "images": (19, 24), "chunk_digests": (20, 16),
    "launches": (21, 40), "code": (62, 0), "data": (63, 0),
}  # fmt: skip
_IGNORABLE = ("metadata",)


class BundleWriter:
    """A bundle being made. Declare its parts in any order, then `write` or `to_bytes`, as often as you like."""

    def __init__(self) -> None:
        self._metadata: Dict[str, str] = {}
        self._symbols: Dict[str, _Symbol] = {}
        self._constants: Dict[str, Constant] = {}
        self._states: Dict[str, State] = {}
        self._functions: Dict[Tuple[str, str], Function] = {}
        self._kernels: Dict[str, Kernel] = {}
        self._images: List[Image] = []

    @staticmethod
    def _new(table: Dict[str, Any], name: str, what: str) -> None:
        if not name:
            raise BundleError(f"a {what} needs a name")
        if name in table:
            raise BundleError(f"there are two {what}s named {name!r}")

    def metadata(self, key: str, value: str) -> None:
        """Adds a line of provenance, license and the like; a reader may ignore it."""
        self._new(self._metadata, key, "metadata key")
        self._metadata[key] = value

    def symbol(
        self,
        name: str,
        symbol_class: SymbolClass = SymbolClass.SPECIALIZE,
        *,
        minimum: int = 0,
        maximum: int = SYMBOL_LIMIT,
        divisor: int = 1,
        buckets: Sequence[int] = (),
    ) -> Expr:
        """Declares a shape symbol with its range and divisor; a BUCKET symbol has ascending bounds, the last >= maximum."""
        self._new(self._symbols, name, "symbol")
        where = f"symbol {name!r}"
        if not 0 <= minimum <= maximum <= SYMBOL_LIMIT or divisor < 1:
            raise BundleError(f"{where}: range [{minimum}, {maximum}], divisor {divisor}; 0 <= minimum <= maximum <= 2^48")
        bounds = tuple(buckets)
        if (symbol_class == SymbolClass.BUCKET) != bool(bounds):
            raise BundleError(f"{where}: BUCKET symbols have buckets, others have none")
        if list(bounds) != sorted(set(bounds)) or (bounds and (bounds[0] < 1 or bounds[-1] < maximum)):
            raise BundleError(f"{where}: buckets {list(bounds)} must ascend and reach the maximum {maximum}")
        self._symbols[name] = _Symbol(name, SymbolClass(symbol_class), minimum, maximum, divisor, bounds)
        return Expr("symbol", (), name)

    def constant(
        self,
        name: str,
        data: Any,
        *,
        dtype: str = "",
        shape: Optional[Sequence[int]] = None,
        encoding: Encoding = Encoding.PLAIN,
    ) -> Constant:
        """Adds a weight. `data` is a numpy array or anything with the buffer protocol; it is neither copied nor read before
        the bundle is written, so keep it unchanged. Type and shape come from the buffer unless they are given."""
        self._new(self._constants, name, "constant")
        where = f"constant {name!r}"
        view = memoryview(data)
        if not view.c_contiguous:
            raise BundleError(f"{where}: the data is not contiguous")
        code = view.format.lstrip("@=<")
        if not dtype:
            if code not in _FORMAT_DTYPES:
                raise BundleError(f"{where}: no data type for buffer format {view.format!r}; give dtype")
            dtype = _FORMAT_DTYPES[code]
        _dtype(dtype, where)
        dims = tuple(int(size) for size in (view.shape if shape is None else shape))
        self._check_shape(dims, dtype, encoding, view.nbytes, where)
        flat = view.cast("B") if view.nbytes else memoryview(b"")
        made = Constant(name, dtype, dims, Encoding(encoding), flat, view.nbytes)
        self._constants[name] = made
        return made

    @staticmethod
    def _check_shape(shape: Tuple[int, ...], dtype: str, encoding: Encoding, size_bytes: int, where: str) -> None:
        elements = 1
        for size in shape:
            if size < 0:
                raise BundleError(f"{where}: shape {shape}")
            elements *= size
        if len(shape) > MAX_RANK:
            raise BundleError(f"{where}: rank {len(shape)}; at most {MAX_RANK}")
        if encoding == Encoding.PLAIN and size_bytes != dtype_size_bytes(dtype, elements):
            raise BundleError(
                f"{where}: {size_bytes} bytes for {dtype} {list(shape)}, which has {dtype_size_bytes(dtype, elements)}"
            )

    def prepared(
        self, name: str, size_bytes: int, *, dtype: str = "u8", shape: Optional[Sequence[int]] = None,
        encoding: Encoding = Encoding.OPAQUE,
    ) -> Constant:  # fmt: skip
        """Declares a constant that a prepare function makes at load; by default `size_bytes` opaque bytes."""
        self._new(self._constants, name, "constant")
        dims = (int(size_bytes),) if shape is None else tuple(int(size) for size in shape)
        _dtype(dtype, f"constant {name!r}")
        self._check_shape(dims, dtype, encoding, size_bytes, f"constant {name!r}")
        made = Constant(name, dtype, dims, Encoding(encoding), None, int(size_bytes))
        self._constants[name] = made
        return made

    def state(self, name: str, dtype: str, shape: Sequence[Size], *, fill_pattern: int = 0) -> State:
        """Declares memory that lives in a session. Dimensions are sizes or expressions of SESSION symbols. `fill_pattern`:
        the bits of every element when the session is made or reset."""
        self._new(self._states, name, "state")
        _dtype(dtype, f"state {name!r}")
        if len(shape) > MAX_RANK or not 0 <= fill_pattern < 1 << DTYPES[dtype][1]:
            raise BundleError(f"state {name!r}: rank {len(shape)}, fill pattern {fill_pattern:#x}")
        made = State(name, dtype, tuple(constant(size) for size in shape), Encoding.PLAIN, fill_pattern)
        self._states[name] = made
        return made

    def image(self, name: str, data: Any, kind: ImageKind = ImageKind.HOST_ELF) -> Image:
        """Adds code. The name is what perf, gdb and messages show."""
        if not name or any(image.name == name for image in self._images):
            raise BundleError(f"image {name!r}: the name is empty or used twice")
        if kind == ImageKind.PACK:
            raise BundleError(f"image {name!r}: a pack has no bytes here; name it with pack()")
        if not len(data):
            raise BundleError(f"image {name!r} is empty")
        if kind == ImageKind.PTX and bytes(data)[-1:] != b"\0":
            raise BundleError(f"image {name!r}: PTX ends with a NUL")
        made = Image(name, data, ImageKind(kind))
        self._images.append(made)
        return made

    def pack(self, name: str) -> Image:
        """A kernel pack outside the bundle, as the image of variants whose `entry` is a kernel or a host operator of it. The
        runtime looks for it by this name (letters, digits, '.', '_', '-') among the packs that the program has opened, then
        among those installed beside the library; where there is none, the variant is passed over."""
        for image in self._images:
            if image.name == name and image.kind == ImageKind.PACK:
                return image
        marks = set("._-")
        plain = name.isascii() and all(c.isalnum() or c in marks for c in name)
        if not plain or not name or name[0] in marks or len(name) > MAX_PACK_NAME_BYTES:
            raise BundleError(f"pack {name!r}: a name is letters, digits, '.', '_' and '-', and begins with none of the last three")
        if any(image.name == name for image in self._images):
            raise BundleError(f"pack {name!r}: an image has this name")
        made = Image(name, b"", ImageKind.PACK)
        self._images.append(made)
        return made

    def kernel(
        self,
        name: str,
        parameters: Sequence[Parameter],
        *,
        traits: int = TRAIT_DETERMINISTIC,
        local_memory_bytes: int = 0,
    ) -> Kernel:
        """Declares a kernel with its parameters, in the order of the packed block."""
        self._new(self._kernels, name, "kernel")
        made = Kernel(name, parameters, traits, local_memory_bytes)
        self._kernels[name] = made
        return made

    def function(
        self, name: str, *, prepare: bool = False, internal: bool = False, doc: str = "", target: str = ""
    ) -> Function:
        """Adds a function. `prepare`: run at load, from `source` constants to `product` constants. `internal`: only
        callable by commands of this bundle. `target`: a driver's name, for a version that only its devices use; versions of
        one name have the same signature (constants of prepare functions included), each its own body, memory and doc."""
        if not name or (name, target) in self._functions:
            raise BundleError(f"function {name!r} for {target or 'any driver'}: the name is empty, or there is one already")
        if sum(other == name for other, _target in self._functions) == MAX_FUNCTION_TARGETS:
            raise BundleError(f"function {name!r}: more than {MAX_FUNCTION_TARGETS} targets")
        made = Function(self, name, prepare, internal, doc, target)
        self._functions[name, target] = made
        return made

    def to_bytes(self) -> bytes:
        """The bundle as bytes."""
        stream = io.BytesIO()
        self.write(stream)
        return stream.getvalue()

    def write(self, target: Union[str, "os.PathLike[str]", BinaryIO]) -> None:
        """Writes the bundle to a path (through a temporary file beside it) or to a seekable binary file. Weights are
        streamed, never held twice."""
        encoder = _Encoder(self)
        if hasattr(target, "write"):
            encoder.emit(target)  # type: ignore[arg-type]
            return
        path = os.fspath(target)
        temporary = f"{path}.{os.getpid()}.part"
        try:
            with open(temporary, "wb", buffering=_WRITE_BYTES) as file:
                encoder.emit(file)
            os.replace(temporary, path)
        except BaseException:
            if os.path.exists(temporary):
                os.unlink(temporary)
            raise


class _Encoder:
    """One encoding of a bundle: orders its parts, checks what spans parts, and makes the sections."""

    def __init__(self, bundle: BundleWriter):
        self.symbols = [bundle._symbols[name] for name in sorted(bundle._symbols)]
        self.constants = [bundle._constants[name] for name in sorted(bundle._constants)]
        self.states = [bundle._states[name] for name in sorted(bundle._states)]
        self.kernels = [bundle._kernels[name] for name in sorted(bundle._kernels)]
        self.images = sorted(bundle._images, key=lambda image: image.name)
        self.metadata = sorted(bundle._metadata.items())
        self.functions = self._ordered(bundle._functions)
        self.by_name = {symbol.name: symbol for symbol in self.symbols}
        for table in (self.constants, self.states, self.kernels, self.images, self.functions):
            for index, item in enumerate(table):
                item.index = index
        self.strings = _Strings()
        self.symbol_indices = {symbol.name: index for index, symbol in enumerate(self.symbols)}
        self._check()
        self._collect_strings()
        self.sections: Dict[str, bytes] = {"strings": self.strings.finish()}
        self.data_size = self._place_data()
        self._encode()

    # -- order and checks

    @staticmethod
    def _callees(block: Block) -> Iterable[Function]:
        for command in block.commands:
            if command.opcode == _CALL:
                yield command.fields["function"]
            for nested in _nested(command):
                yield from _Encoder._callees(nested)

    def _ordered(self, functions: Dict[Tuple[str, str], Function]) -> List[Function]:
        """Callees before callers; by name and target where that leaves a choice."""
        depths: Dict[Function, int] = {}

        def depth(function: Function, path: Tuple[Function, ...]) -> int:
            if function in path:
                raise BundleError(f"function {function.name!r} calls itself, through {' -> '.join(f.name for f in path)}")
            if functions.get((function.name, function.target)) is not function:
                raise BundleError(f"function {function.name!r} is called but belongs to another bundle")
            if function not in depths:
                below = [depth(f, path + (function,)) for f in self._callees(function.body)]
                depths[function] = 1 + max(below, default=-1)
            return depths[function]

        return sorted(functions.values(), key=lambda function: (depth(function, ()), function.name, function.target))

    def _check_targets(self) -> None:
        firsts: Dict[str, Function] = {}
        for function in self.functions:
            for callee in self._callees(function.body):
                if callee.target not in ("", function.target):
                    raise BundleError(f"{function} calls {callee}: only functions without a target, or with the caller's")
            first = firsts.setdefault(function.name, function)
            if self._signature(first) != self._signature(function):
                raise BundleError(f"{first} and {function} have different signatures")

    @staticmethod
    def _signature(function: Function) -> Tuple[Any, ...]:
        def line(a: _Argument) -> Tuple[Any, ...]:
            alias = None if a.alias_input is None else function.inputs.index(a.alias_input)
            constant_name = None if a.constant is None else a.constant.name
            return (a.name, a.kind, a.dtype, a.shape, a.encoding, a.optional, a.symbol, a.alias_kind, alias, constant_name)

        lines = (tuple(line(a) for a in function.inputs), tuple(line(a) for a in function.results))
        return (function.prepare, function.internal, *lines)

    def _check(self) -> None:
        self._check_targets()
        made: Dict[str, str] = {}
        for function in self.functions:
            if function.prepare:
                self._check_prepare(function, made)
        for constant_ in self.constants:
            if constant_.prepared and constant_.name not in made:
                raise BundleError(f"constant {constant_.name!r} is made by no prepare function")
        for kernel in self.kernels:
            if not kernel.variants:
                raise BundleError(f"kernel {kernel.name!r} has no variant")
            for variant in kernel.variants:
                if variant.image not in self.images:
                    raise BundleError(f"kernel {kernel.name!r}: image {variant.image.name!r} belongs to another bundle")
        for state in self.states:
            for symbol in sorted(set().union(*[d.symbols() for d in state.shape], set())):
                if symbol not in self.by_name or self.by_name[symbol].symbol_class != SymbolClass.SESSION:
                    raise BundleError(f"state {state.name!r}: symbol {symbol!r} is not a SESSION symbol of this bundle")

    @staticmethod
    def _check_prepare(function: Function, made: Dict[str, str]) -> None:
        if not function.results:
            raise BundleError(f"prepare function {function.name!r} makes nothing")
        for argument in function.arguments:
            if argument.constant is None:
                raise BundleError(f"prepare function {function.name!r}: argument {argument.name!r} is no constant")
        for argument in function.results:
            name = argument.constant.name
            if made.get(name, function.name) != function.name:
                raise BundleError(f"constant {name!r} is made by both {made[name]!r} and {function.name!r}")
            made[name] = function.name

    def _check_symbols(self, function: Function, used: Set[str]) -> None:
        bound = function.bound_symbols()
        for name in sorted(used - bound):
            if self.by_name[name].symbol_class != SymbolClass.SESSION and not function.internal:
                raise BundleError(
                    f"function {function.name!r}: symbol {name!r} is used, but no input has it as a dimension and no scalar "
                    "gives it"
                )
        for argument in function.inputs:
            if argument.symbol and argument.symbol not in self.by_name:
                raise BundleError(f"function {function.name!r}, scalar {argument.name!r}: no symbol {argument.symbol!r}")

    # -- strings

    def _collect_strings(self) -> None:
        collect = self.strings.collect
        for pair in self.metadata:
            collect(*pair)
        for table in (self.symbols, self.constants, self.states, self.images):
            collect(*(item.name for item in table))  # type: ignore[attr-defined]
        for kernel in self.kernels:
            collect(kernel.name, *(p.name for p in kernel.parameters))
            for variant in kernel.variants:
                collect(variant.driver, variant.arch, variant.entry)
        for function in self.functions:
            collect(function.name, function.doc, function.target)
            for argument in function.arguments:
                collect(argument.name, argument.doc)
            self._collect_block_strings(function.body)

    def _collect_block_strings(self, block: Block) -> None:
        for command in block.commands:
            self.strings.collect(command.name)
            if command.opcode == _MARKER:
                self.strings.collect(command.fields["text"])
            for nested in _nested(command):
                self._collect_block_strings(nested)

    # -- sections

    def _place_data(self) -> int:
        end = 0
        for item in self.constants:
            if item.prepared:
                continue
            item.offset_bytes = _align(end, TENSOR_ALIGN)
            end = item.offset_bytes + item.size_bytes
        return end

    def _encode(self) -> None:
        strings = self.strings
        self.sections["metadata"] = b"".join(struct.pack("<2I", strings[k], strings[v]) for k, v in self.metadata)
        self._encode_symbols()
        module = _Scope(self.symbol_indices, "a state")
        self._encode_constants()
        self._encode_states(module)
        self.scopes = [module]
        self._tables: Dict[str, bytearray] = {
            key: bytearray() for key in ("functions", "arguments", "slots", "views", "blocks", "commands")
        }
        self._command_count = 0
        for function in self.functions:
            self._encode_function(function)
        self.sections.update({key: bytes(table) for key, table in self._tables.items()})
        self.sections["expressions"] = b"".join(record for scope in self.scopes for record in scope.records)
        self._encode_kernels()
        self._encode_images()

    def _encode_symbols(self) -> None:
        records, buckets = [], []
        for symbol in self.symbols:
            first = len(buckets) if symbol.buckets else 0
            records.append(
                struct.pack(
                    "<2I3q2I", self.strings[symbol.name], symbol.symbol_class, symbol.minimum, symbol.maximum, symbol.divisor,
                    first, len(symbol.buckets),
                )  # fmt: skip
            )
            buckets += symbol.buckets
        self.sections["symbols"] = b"".join(records)
        self.sections["buckets"] = struct.pack(f"<{len(buckets)}q", *buckets)

    def _encode_constants(self) -> None:
        records, components = [], []
        for item in self.constants:
            dtype = _dtype(item.dtype, item.name)
            shape = item.shape + (0,) * (MAX_RANK - len(item.shape))
            head = (self.strings[item.name], int(item.prepared), dtype, item.encoding, len(item.shape), len(components), 1, 0)
            records.append(struct.pack("<8I8q", *head, *shape))
            offset = 0 if item.prepared else item.offset_bytes
            components.append(struct.pack("<2I2Q", 0, dtype, offset, item.size_bytes))
        self.sections["constants"] = b"".join(records)
        self.sections["components"] = b"".join(components)

    def _type(self, dtype: str, encoding: Encoding, shape: Sequence[Expr], scope: _Scope) -> bytes:
        dims = [scope.add(size) for size in shape] + [NONE] * (MAX_RANK - len(shape))
        return struct.pack("<12I", DTYPES[dtype][0], encoding, len(shape), 0, *dims)

    def _encode_states(self, scope: _Scope) -> None:
        records = []
        for state in self.states:
            type_ = self._type(state.dtype, state.encoding, state.shape, scope)
            records.append(struct.pack("<2I", self.strings[state.name], 0) + type_ + struct.pack("<Q", state.fill_pattern))
        self.sections["states"] = b"".join(records)

    def _encode_function(self, function: Function) -> None:
        scope = _Scope(self.symbol_indices, f"function {function.name!r}")
        tables = self._tables
        argument_first = len(tables["arguments"]) // 80
        for argument in function.arguments:
            tables["arguments"] += self._argument(function, argument, scope)
        transient_size = scope.add(function.transient_size)
        slot_first = len(tables["slots"]) // 16
        slots = self._slots(function)
        for slot in slots:
            tables["slots"] += self._slot(function, slot)
        self._slot_indices = {id(slot): index for index, slot in enumerate(slots)}
        self._view_indices: Dict[bytes, int] = {}
        blocks = self._blocks(function.body)
        body = len(tables["blocks"]) // 16
        self._block_indices = {id(block): body + index for index, block in enumerate(blocks)}
        for block in blocks:
            first = len(tables["commands"])
            for command in block.commands:
                tables["commands"] += self._command(command, scope)
            tables["blocks"] += struct.pack("<Q2I", first, len(tables["commands"]) - first, len(block.commands))
            self._command_count += len(block.commands)
        self._check_symbols(function, scope.symbols)
        expression_first = sum(len(s.records) for s in self.scopes)
        self.scopes.append(scope)
        flags = int(function.prepare) | int(function.internal) << 1
        features = _FEATURE_FUNCTION_TARGET if function.target else 0
        tables["functions"] += struct.pack(
            "<2IQ12I", self.strings[function.name], flags, features, argument_first, len(function.inputs), len(function.results),
            slot_first, len(slots), expression_first, len(scope.records), body, transient_size, function.transient_align,
            self.strings[function.doc], self.strings[function.target],
        )  # fmt: skip

    def _argument(self, function: Function, argument: _Argument, scope: _Scope) -> bytes:
        symbol = NONE if argument.symbol is None else self.symbol_indices.get(argument.symbol, NONE)
        alias = NONE if argument.alias_input is None else function.inputs.index(argument.alias_input)
        constant_index = NONE if argument.constant is None else argument.constant.index
        head = struct.pack(
            "<8I", self.strings[argument.name], argument.kind, int(argument.optional), symbol, argument.alias_kind, alias,
            constant_index, self.strings[argument.doc],
        )  # fmt: skip
        return head + self._type(argument.dtype, argument.encoding, argument.shape, scope)

    @staticmethod
    def _slots(function: Function) -> List[Slot]:
        """Arguments in order; then constants, states and transient memory that a command touches."""
        used = {id(slot) for slot in _used_slots(function.body)}
        arguments = [function.slots[(0, id(argument), 0)] for argument in function.arguments]
        others = [slot for slot in function.slots.values() if slot.kind != 0 and (id(slot) in used or slot.kind == 3)]
        if function.transient_size == constant(0) and not any(s.kind == 3 and id(s) in used for s in others):
            others = [slot for slot in others if slot.kind != 3]
        return arguments + sorted(others, key=lambda s: (s.kind, 0 if s.kind == 3 else s.target.index, s.component))

    @staticmethod
    def _slot(function: Function, slot: Slot) -> bytes:
        index = function.arguments.index(slot.target) if slot.kind == 0 else 0 if slot.kind == 3 else slot.target.index
        return struct.pack("<4I", slot.kind, index, slot.component, 0)

    def _blocks(self, block: Block) -> List[Block]:
        """A block and those nested in it, outer before inner."""
        found = [block]
        for command in block.commands:
            for nested in _nested(command):
                found += self._blocks(nested)
        return found

    def _range(self, span: Optional[Range], scope: _Scope) -> bytes:
        if span is None:
            return struct.pack("<4I", NONE, 0, NONE, NONE)
        offset = scope.add(span.offset)
        return struct.pack("<4I", self._slot_indices[id(span.slot)], _ACCESSES[span.access], offset, scope.add(span.size))

    def _view(self, value: TensorRange, scope: _Scope) -> int:
        shape = [scope.add(size) for size in value.shape] + [NONE] * (MAX_RANK - len(value.shape))
        strides = [scope.add(size) for size in value.strides] + [NONE] * (MAX_RANK - len(value.strides))
        record = struct.pack("<18I", _dtype(value.dtype, scope.where), len(value.shape), *shape, *strides)
        if record not in self._view_indices:
            self._view_indices[record] = len(self._tables["views"]) // 72
            self._tables["views"] += record
        return self._view_indices[record]

    def _operand(self, kind: int, value: Any, scope: _Scope) -> bytes:
        expression, view, span, immediate = NONE, NONE, None, 0
        if kind == _SYMBOL:
            expression = scope.add(value)
        elif kind == _SCALAR:
            immediate = value
        elif kind == _TENSOR:
            view, span = self._view(value, scope), value.range
        elif kind != _ABSENT:
            span = value
        return struct.pack("<4I", kind, expression, view, 0) + self._range(span, scope) + struct.pack("<Q", immediate)

    def _command(self, command: Command, scope: _Scope) -> bytes:
        body = self._command_body(command, scope)
        predecessors = command.predecessors
        data = body + struct.pack(f"<{len(predecessors)}I", *predecessors)
        data += bytes(-len(data) % 8)
        flags = int(command.opcode != _MARKER)
        name = self.strings[command.name]
        return struct.pack("<2H5I", command.opcode, flags, 24 + len(data), name, NONE, len(predecessors), 0) + data

    def _command_body(self, command: Command, scope: _Scope) -> bytes:
        fields = command.fields
        if command.opcode == _DISPATCH:
            kernel = fields["kernel"]
            if kernel not in self.kernels:
                raise BundleError(f"{command}: kernel {kernel.name!r} belongs to another bundle")
            grid = [scope.add(size) for size in fields["grid"]]
            head = struct.pack("<6I", kernel.index, len(fields["operands"]), *grid, 0)
            return head + b"".join(self._operand(kind, value, scope) for kind, value in fields["operands"])
        if command.opcode == _COPY:
            spans = self._range(fields["source"], scope) + self._range(fields["target"], scope)
            sizes = [scope.add(size) for size in (*fields["extent"], *fields["steps"][0], *fields["steps"][1])]
            return spans + struct.pack("<8I", *sizes, 0)
        if command.opcode == _FILL:
            tail = struct.pack("<Q2I", fields["pattern"], fields["pattern_bytes"], 0)
            return self._range(fields["target"], scope) + tail
        if command.opcode == _CALL:
            head = struct.pack("<2I", fields["function"].index, len(fields["operands"]))
            return head + b"".join(self._operand(kind, value, scope) for kind, value in fields["operands"])
        if command.opcode == _REPEAT:
            return struct.pack("<2I", scope.add(fields["count"]), self._block_indices[id(fields["block"])])
        if command.opcode == _BRANCH:
            blocks = [NONE if b is None or not b.commands else self._block_indices[id(b)] for b in (fields["then"], fields["else"])]
            return struct.pack("<4I", scope.add(fields["condition"]), *blocks, 0)
        if command.opcode == _MARKER:
            return struct.pack("<2I", self.strings[fields["text"]], 0)
        return b""

    def _encode_kernels(self) -> None:
        kernels, parameters, variants, predicates, launches = [], [], [], [], []
        for kernel in self.kernels:
            head = (self.strings[kernel.name], kernel.traits, len(parameters), len(kernel.parameters), kernel.params_size_bytes)
            kernels.append(struct.pack("<8I", *head, kernel.local_memory_bytes, len(variants), len(kernel.variants)))
            names = [p.name for p in kernel.parameters]
            for p in kernel.parameters:
                align_log2 = min(p.size_bytes, 8).bit_length() - 1
                kind, access = _PARAMETER_KINDS[p.kind], _ACCESSES[p.access]
                packed = (self.strings[p.name], kind, access, int(p.optional), align_log2, p.offset_bytes, p.size_bytes)
                parameters.append(struct.pack("<I4B2I", *packed))
            for v in kernel.variants:
                head = (self.strings[v.driver], v.arch_kind, self.strings[v.arch], v.priority, v.cpu_features, 0)
                tail = (v.image.index, self.strings[v.entry], len(predicates), len(v.predicates))
                if v.launch is not None:
                    sizes = (*v.launch.block, *v.launch.cluster, v.launch.dynamic_shared_bytes, 0)
                    launches.append(struct.pack("<10I", len(variants), v.launch.traits, *sizes))
                variants.append(struct.pack("<3Ii2Q4I", *head, *tail))
                for q in v.predicates:
                    predicates.append(struct.pack("<2Iq", _PREDICATES[q.kind], names.index(q.parameter), q.value))
        tables = {"kernels": kernels, "parameters": parameters, "variants": variants, "predicates": predicates, "launches": launches}
        self.sections.update({key: b"".join(records) for key, records in tables.items()})

    def _encode_images(self) -> None:
        records, code = [], bytearray()
        for image in self.images:
            if image.kind == ImageKind.PACK:
                records.append(struct.pack("<2I2Q", image.kind, self.strings[image.name], 0, 0))
                continue
            code += bytes(_align(len(code), BIG_ALIGN) - len(code))
            records.append(struct.pack("<2I2Q", image.kind, self.strings[image.name], len(code), len(image.data)))
            code += image.data
        self.sections["images"] = b"".join(records)
        self.sections["code"] = bytes(code)

    # -- the file

    def _layout(self) -> List[Tuple[str, int, int]]:
        """(name, offset, size) of each section that the file has; those without content are left out."""
        chunks = _align(self.data_size, CHUNK_BYTES) // CHUNK_BYTES
        sizes = {name: len(data) for name, data in self.sections.items()}
        sizes.update(chunk_digests=16 * chunks, data=self.data_size)
        names = [name for name in _SECTIONS if sizes.get(name)]
        offset = 128 + 64 * len(names)
        layout = []
        for name in names:
            offset = _align(offset, BIG_ALIGN if name in ("code", "data") else 8)
            layout.append((name, offset, sizes[name]))
            offset += sizes[name]
        return layout

    def _record_count(self, name: str, size: int) -> int:
        if name == "commands":
            return self._command_count
        if name == "strings":
            return len(self.strings.texts)
        record_bytes = _SECTIONS[name][1]
        return size // record_bytes if record_bytes else 0

    def emit(self, file: BinaryIO) -> None:
        """Streams the weights to their place first, then writes what depends on their digests."""
        start = file.tell()
        layout = self._layout()
        end = layout[-1][1] + layout[-1][2]
        for name, offset, _size in layout:
            if name == "data":
                self.sections["chunk_digests"] = self._stream_data(file, start, offset)
        table = bytearray()
        previous_end = 128 + 64 * len(layout)
        for name, offset, size in layout:
            kind, record_bytes = _SECTIONS[name]
            content = self.sections["chunk_digests"] if name == "data" else self.sections[name]
            flags = int(name not in _IGNORABLE)
            table += struct.pack("<2I2Q2I16s", kind, flags, offset, size, record_bytes, self._record_count(name, size), name.encode())
            table += xxhash.xxh3_128_digest(content)
            file.seek(start + previous_end)
            file.write(bytes(offset - previous_end))
            if name != "data":
                file.write(content)
            previous_end = offset + size
        file.seek(start)
        file.write(self._header(self._versions(), end, len(layout), bytes(table)) + table)
        file.seek(start + end)

    def _versions(self) -> Tuple[int, ...]:
        """The least of container, commands, kernel ABI and layouts that a reader must speak."""
        variants = [v for kernel in self.kernels for v in kernel.variants]
        packs = any(image.kind == ImageKind.PACK for image in self.images)
        launches = any(v.launch is not None for v in variants)
        targets = any(function.target for function in self.functions)
        floors = any(v.arch_kind == _ARCH_KINDS["portable"] and v.arch for v in variants)
        return (0, 2 if packs or launches or targets or floors else 1, 0, 1, 0, 2 if packs or launches else 1, 0, 1)

    @staticmethod
    def _header(versions: Tuple[int, ...], file_size: int, section_count: int, table: bytes) -> bytes:
        fixed = (file_size, 0, 0, section_count, 64, 128, 0)
        head = struct.pack("<8s8H3Q2I2Q40x", MAGIC, *versions, *fixed)
        return head + xxhash.xxh3_128_digest(head + bytes(16) + table)

    def _stream_data(self, file: BinaryIO, start: int, offset: int) -> bytes:
        digests = _ChunkDigests()
        file.seek(start + offset)
        at = 0
        for item in self.constants:
            if item.prepared:
                continue
            padding = bytes(item.offset_bytes - at)
            for piece in (padding, item.data):
                digests.update(memoryview(piece))
                file.write(piece)
            at = item.offset_bytes + item.size_bytes
        return digests.finish()


class _ChunkDigests:
    """Digests of consecutive chunks of a stream."""

    def __init__(self) -> None:
        self.digests: List[bytes] = []
        self.hasher = xxhash.xxh3_128()
        self.filled = 0

    def update(self, data: memoryview) -> None:
        while len(data):
            piece = data[: CHUNK_BYTES - self.filled]
            self.hasher.update(piece)
            self.filled += len(piece)
            data = data[len(piece) :]
            if self.filled == CHUNK_BYTES:
                self._next()

    def _next(self) -> None:
        self.digests.append(self.hasher.digest())
        self.hasher = xxhash.xxh3_128()
        self.filled = 0

    def finish(self) -> bytes:
        if self.filled:
            self._next()
        return b"".join(self.digests)


def _nested(command: Command) -> List[Block]:
    """Blocks that a command holds, those without commands left out (but for a repeat's body, which is always there)."""
    if command.opcode == _REPEAT:
        return [command.fields["block"]]
    if command.opcode == _BRANCH:
        return [b for b in (command.fields["then"], command.fields["else"]) if b is not None and b.commands]
    return []


def _used_slots(block: Block) -> Iterable[Slot]:
    for command in block.commands:
        for key in ("source", "target"):
            if key in command.fields:
                yield command.fields[key].slot
        for kind, value in command.fields.get("operands", ()):
            if kind in (_BUFFER, _WORKSPACE):
                yield value.slot
            elif kind == _TENSOR:
                yield value.range.slot
        for nested in _nested(command):
            yield from _used_slots(nested)
