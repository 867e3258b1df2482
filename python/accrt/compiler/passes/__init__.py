"""Passes over the IR, each apart: every one keeps what a function means, and the verifier runs
after each.

`PIPELINES` has their order for each family of targets. What follows them (select, bufferize, plan,
emit) works on one finished function.
"""

from __future__ import annotations

import functools
from typing import Callable, Dict, List, Optional, Sequence, Tuple

from ..ir import Module
from ..verifier import verify, verify_adapters, verify_optional
from .convolutions import fold_channels, form_convolutions
from .cuda import form_products, join_adapter_halves, join_products, join_rotations, join_turned_products, lower_precision
from .decompose import decompose
from .external import digest_of, leave_out
from .fuse import fuse_elementwise, fuse_epilogues
from .hoist import hoist_constants
from .lookups import form_lookups
from .lora import join_adapters
from .matmul import merge_linears, pack_weights
from .quantized import lower_quantized, quantize_weights
from .snapshot import snapshot_views
from .stage import stage_reductions
from .states import scatter_states
from .steps import join_step_ends
from .tidy import clone, tidy

Pass = Callable[[Module], None]

PIPELINE: Tuple[Tuple[str, Pass], ...] = (
    ("snapshot_views", snapshot_views),
    ("lower_quantized", lower_quantized),
    ("tidy", tidy),
    ("scatter_states", scatter_states),
    ("merge_linears", merge_linears),
    ("join_adapters", join_adapters),
    ("form_convolutions", form_convolutions),
    ("form_lookups", form_lookups),
    ("decompose", decompose),
    ("pack_weights", pack_weights),
    ("tidy", tidy),
    ("fuse_epilogues", fuse_epilogues),
    ("fuse_elementwise", fuse_elementwise),
    ("stage_reductions", stage_reductions),
    ("hoist_constants", hoist_constants),
    ("tidy", tidy),
)
CUDA_PIPELINE: Tuple[Tuple[str, Pass], ...] = (
    ("snapshot_views", snapshot_views),
    ("lower_quantized", functools.partial(lower_quantized, family="cuda")),
    ("lower_quantized", lower_quantized),
    ("tidy", tidy),
    ("scatter_states", functools.partial(scatter_states, family="cuda")),
    ("merge_linears", merge_linears),
    ("join_adapters", join_adapters),
    ("fold_channels", fold_channels),
    ("lower_precision", lower_precision),
    ("tidy", tidy),
    ("form_convolutions", functools.partial(form_convolutions, family="cuda")),
    ("tidy", tidy),
    ("decompose", functools.partial(decompose, family="cuda")),
    ("form_products", form_products),
    ("tidy", tidy),
    ("join_rotations", join_rotations),
    ("fuse_epilogues", fuse_epilogues),
    ("join_adapter_halves", join_adapter_halves),
    ("join_products", join_products),
    ("join_turned_products", join_turned_products),
    ("join_step_ends", join_step_ends),
    ("fuse_elementwise", functools.partial(fuse_elementwise, family="cuda")),
    ("hoist_constants", hoist_constants),
    ("tidy", tidy),
)
PIPELINES: Dict[str, Tuple[Tuple[str, Pass], ...]] = {"host": PIPELINE, "cuda": CUDA_PIPELINE}


def run(
    module: Module,
    passes: Sequence[Tuple[str, Pass]] = PIPELINE,
    observe: Optional[Callable[[str, Module], None]] = None,
) -> Module:
    """A copy of the module after the passes. `observe(name, module)` is called after each."""
    verify(module)
    for function in module.functions.values():
        verify_optional(function)
    verify_adapters(module)
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
    "CUDA_PIPELINE", "PIPELINE", "PIPELINES", "clone", "decompose", "digest_of", "fold_channels", "form_convolutions", "form_lookups", "fuse_elementwise", "form_products", "fuse_epilogues", "hoist_constants", "join_adapter_halves", "join_adapters", "join_products", "join_rotations", "join_step_ends", "join_turned_products", "lower_precision",
    "leave_out", "lower_quantized", "merge_linears", "pack_weights", "quantize_weights", "run", "scatter_states", "snapshot_views", "stage_reductions", "tidy",
]  # fmt: skip
