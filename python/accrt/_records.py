"""Records that describe things: devices, buffers of a pool, arguments, symbols, constants.

Without `from __future__ import annotations`, which would make typing compile every annotation:
importing takes a fifth of the time.
"""
from typing import NamedTuple


class DeviceInfo(NamedTuple):
    """Facts about a device. Sizes in bytes."""

    name: str
    driver: str
    description: str
    arch: str
    memory_total_bytes: int
    concurrency: int
    min_alignment_bytes: int
    host_memory: bool
    timestamps: bool
    caller_runs: bool
    dlpack_device: tuple[int, int] = (1, 0)
    priorities: tuple[int, int] = (0, 0)  # of streams: least and greatest


class PoolEntry(NamedTuple):
    """One live or retiring buffer of a pool."""

    buffer_id: int
    address: int
    size_bytes: int
    retiring: bool
    label: str


class Counter(NamedTuple):
    """One counter of an instance's registry, with its value. `kind` is "total" (which only grows),
    "gauge" or "histogram". `buckets` of a histogram are pairs: an upper bound, and how many of the
    observations are at most that; the last bound is infinity. `value` is then their sum."""

    group: str
    name: str
    help: str
    kind: str
    labels: dict[str, str]
    value: float
    buckets: tuple[tuple[float, int], ...] = ()


class Argument(NamedTuple):
    """One argument of a function."""

    name: str
    kind: str
    type: str
    optional: bool
    doc: str
    index: int


class Signature(NamedTuple):
    """A function's signature."""

    name: str
    doc: str
    inputs: tuple[Argument, ...]
    results: tuple[Argument, ...]
    internal: bool
    prepare: bool

    def __str__(self) -> str:
        def show(a: Argument) -> str:
            return f"{a.name}{'?' if a.optional else ''}: {a.type}" + ("" if a.kind in ("read", "result") else f" ({a.kind})")
        return f"{self.name}({', '.join(map(show, self.inputs))}) -> ({', '.join(map(show, self.results))})"


class Symbol(NamedTuple):
    """A shape symbol: its class says who fixes its value."""

    name: str
    symbol_class: str
    minimum: int
    maximum: int
    divisor: int
    buckets: tuple[int, ...]


class Constant(NamedTuple):
    """A weight."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    size_bytes: int
    encoding: int  # a layout's id (docs/layouts.md): 0 plain, 1 opaque
    prepared: bool
    external: bool = False
    group_elements: int = 0
    file: str = ""  # external: the file that it is in; "": given at load
    tensor: str = ""  # external: its name there
    digest: bytes = b""  # external: of its bytes; b"": bound by name alone


class Asset(NamedTuple):
    """A file that came along with a bundle."""

    name: str
    media_type: str
    data: bytes
