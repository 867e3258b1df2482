"""What a module declares beside functions: types of tensors, symbols, constants and where their
bytes are, states. The IR (ir.py) is made of these."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Optional, Sequence, Tuple

from ..bundle_writer import FileKind, Segment, SymbolClass
from . import arguments
from . import expr as ex
from .arguments import IRError
from .expr import Size

#: What accrt's sessions have themselves: tests/python/test_function_names.py compares them.
RESERVED_NAMES = frozenset((
    "adapter", "bind_state", "bundle", "cancel", "clone", "close", "confinement", "error", "function", "functions", "handle", "program", "reset", "state",
    "stream", "warmup",
))  # fmt: skip
FLOATS = ("f16", "bf16", "f32", "f64")
UNSIGNED = ("u8", "u16", "u32", "u64")
INTEGERS = ("i8", "i16", "i32", "i64", *UNSIGNED)
#: Least and greatest integers of each type.
RANGES = {
    **{f"i{bits}": (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) for bits in (8, 16, 32, 64)}, **{f"u{bits}": (0, (1 << bits) - 1) for bits in (8, 16, 32, 64)},
}  # fmt: skip
DTYPE_BYTES = {
    "bool": 1, "i8": 1, "u8": 1, "i16": 2, "u16": 2, "i32": 4, "u32": 4, "i64": 8, "u64": 8, "f16": 2, "bf16": 2, "f32": 4, "f64": 8,
}  # fmt: skip


@dataclass(frozen=True)
class TensorType:
    """Data type, dimensions and encoding: plain, a layout of quantized weights, or `opaque` bytes
    that kernels alone understand."""

    dtype: str
    shape: Tuple[Size, ...]
    encoding: str = "plain"

    def __post_init__(self) -> None:
        arguments.dtype(self.dtype, "a tensor's type")
        object.__setattr__(self, "shape", arguments.sizes(self.shape, "shape"))
        if any(isinstance(size, int) and size < 0 for size in self.shape) or len(self.shape) > 8:
            raise IRError(f"no tensor has the shape [{', '.join(map(str, self.shape))}]")

    @property
    def rank(self) -> int:
        return len(self.shape)

    def same(self, other: TensorType) -> bool:
        """Whether both are one type, sizes by their structure; `==` refuses sizes that only a call
        can compare."""
        return (self.dtype, self.encoding) == (other.dtype, other.encoding) and ex.same_shape(self.shape, other.shape)

    @property
    def elements(self) -> Size:
        return ex.product(self.shape)

    @property
    def size_bytes(self) -> Size:
        return ex.simplify(self.elements * DTYPE_BYTES[self.dtype])

    def __str__(self) -> str:
        dims = ", ".join(ex.size_text(size) for size in self.shape)
        return f"{self.dtype}[{dims}]" + ("" if self.encoding == "plain" else f" {self.encoding}")


def same_types(first: Sequence[TensorType], second: Sequence[TensorType]) -> bool:
    return len(first) == len(second) and all(a.same(b) for a, b in zip(first, second))


@dataclass(eq=False)
class Symbol:
    """A shape symbol: its class says who fixes the value, and when."""

    name: str
    symbol_class: SymbolClass
    minimum: int
    maximum: int
    divisor: int = 1
    buckets: Tuple[int, ...] = ()


@dataclass(frozen=True)
class Shard:
    """The part of a tensor that each of `degree` ranks has: all of it, or (with an axis) a part of
    each of `segments`, which are divided separately; by default there is one, the whole axis."""

    degree: int
    axis: Optional[int] = None
    segments: Tuple[Segment, ...] = ()

    def part_of(self, shape: Sequence[int]) -> Tuple[int, ...]:
        """The shape of a rank's part."""
        if self.axis is None:
            return tuple(shape)
        pieces = self.segments or (Segment(0, shape[self.axis]),)
        part = sum((piece.end - piece.begin) * piece.replicas // self.degree for piece in pieces)
        return (*shape[: self.axis], part, *shape[self.axis + 1 :])


@dataclass(frozen=True)
class External:
    """Where the bytes of a weight outside the bundle are. `file`: the bare name of a file beside
    the bundle (Module.file); none: any source that is given at load. `tensor`: the weight's name
    there, if it differs. `digest`: only bytes with this XXH3-128 are accepted (with `sha256`,
    forged bytes are refused, too); with `by_name`, the name and the type are enough."""

    file: str = ""
    tensor: str = ""
    digest: Optional[bytes] = None
    by_name: bool = False
    shard: Optional[Shard] = None
    extent: int = 0  # of the full tensor along the shard's axis
    sha256: Optional[bytes] = None


@dataclass(frozen=True)
class WeightFile:
    """A file beside the bundle, by its bare name. `size_bytes` 0: any; `digest`, `sha256`: XXH3-128
    and SHA-256 of the whole file."""

    name: str
    kind: FileKind
    size_bytes: int = 0
    digest: Optional[bytes] = None
    sha256: Optional[bytes] = None


@dataclass(eq=False)
class Constant:
    """A weight. `data`: a numpy array (bf16 as uint16 bits), or a Quantized where the type's
    encoding is a layout; None where its bytes are not known here: made by a prepare function, or
    (`external`) outside the bundle."""

    name: str
    type: TensorType
    data: Any = None
    external: Optional[External] = None

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("_"):
            raise AttributeError(f"constant {self.__dict__.get('name')!r} has no {name!r}: f.constant(...) makes it a value of function f, which has operations")
        raise AttributeError(name)


@dataclass(eq=False)
class State:
    """Memory of a session."""

    name: str
    type: TensorType
    fill_pattern: int = 0
