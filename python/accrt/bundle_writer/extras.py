"""What stands beside the program: files with weights, shards, adapters, assets, debug locations,
sections as bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Optional, Tuple

from .common import FileKind

if TYPE_CHECKING:
    from .model import Constant


@dataclass(eq=False)
class File:
    """A file beside the bundle that EXTERNAL constants lie in."""

    name: str
    kind: FileKind
    size_bytes: int
    digest: Optional[bytes]


@dataclass(frozen=True)
class Segment:
    """A range of a split axis that is divided among the ranks separately; `replicas` ranks share a
    part."""

    begin: int
    end: int
    replicas: int = 1


@dataclass(eq=False)
class Shard:
    constant: "Constant"
    axis: Optional[int]  # None: each rank has all of it
    degree: int
    extent: int
    segments: Tuple[Segment, ...]


@dataclass(frozen=True)
class Adapter:
    slot: str
    input: str
    scaled: bool


@dataclass(frozen=True)
class Asset:
    name: str
    data: Any
    media_type: str


@dataclass(frozen=True, order=True)
class Location:
    """A place in a source. Equal places are one."""

    file: str
    line: int = 0
    column: int = 0
    name: str = ""


@dataclass(frozen=True)
class RawSection:
    type: int
    name: str
    data: bytes
    record_bytes: int
    record_count: int
    required: bool
