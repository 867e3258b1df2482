"""Passes over the IR, each apart: every one keeps what a function means, and the verifier runs after each.

`PIPELINE` is their order. What follows them (select, bufferize, plan, emit) works on one finished function.
"""

from __future__ import annotations

from typing import Callable, List, Optional, Sequence, Tuple

from ..ir import Module, verify
from .decompose import decompose
from .fuse import fuse_elementwise, fuse_epilogues
from .hoist import hoist_constants
from .matmul import merge_linears, pack_weights
from .snapshot import snapshot_views
from .tidy import clone, tidy

Pass = Callable[[Module], None]

PIPELINE: Tuple[Tuple[str, Pass], ...] = (
    ("snapshot_views", snapshot_views),
    ("tidy", tidy),
    ("merge_linears", merge_linears),
    ("decompose", decompose),
    ("pack_weights", pack_weights),
    ("tidy", tidy),
    ("fuse_epilogues", fuse_epilogues),
    ("fuse_elementwise", fuse_elementwise),
    ("hoist_constants", hoist_constants),
    ("tidy", tidy),
)


def run(
    module: Module,
    passes: Sequence[Tuple[str, Pass]] = PIPELINE,
    observe: Optional[Callable[[str, Module], None]] = None,
) -> Module:
    """A copy of the module after the passes. `observe(name, module)` is called after each."""
    verify(module)
    work = clone(module)
    verify(work)
    for name, apply in passes:
        apply(work)
        try:
            verify(work)
        except ValueError as error:
            raise AssertionError(f"pass {name} broke the module: {error}") from error
        if observe is not None:
            observe(name, work)
    return work


__all__: List[str] = [
    "PIPELINE", "clone", "decompose", "fuse_elementwise", "fuse_epilogues", "hoist_constants", "merge_linears",
    "pack_weights", "run", "snapshot_views", "tidy",
]  # fmt: skip
