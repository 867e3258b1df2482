"""Record of the sampling pass (sample.c)."""

from __future__ import annotations

import functools
from typing import Any, Mapping, Sequence, Tuple

from . import expr as ex
from .kerneldef import CSource, KernelDef, Launch, TensorSpec, launch, layout, reads, symbol, workspace, writes
from .matmul import require_contiguous_last

READ = (
    "logits", "temperature", "top_k", "top_p", "min_p", "seed", "position", "edit_starts", "edit_tokens", "edit_multiply", "edit_add",
    "mask_rows", "mask_bits",
)  # fmt: skip
WRITTEN = ("token", "logprob", "top_ids", "top_logprobs", "rank")
#: Groups of rows that have a part of the workspace.
_GROUPS = 32


@functools.lru_cache(maxsize=None)
def sample_kernel() -> KernelDef:
    params = layout(
        [reads(name) for name in READ]
        + [writes(name) for name in WRITTEN]
        + [workspace("work")]
        + [symbol(name) for name in ("samples", "vocab", "row_step", "edits", "masks", "top")]
    )

    def grid(v: Mapping[str, Any]) -> Tuple[Any, Any, Any]:
        return (ex.maximum(ex.minimum(v["samples"], _GROUPS), 1), 1, 1)

    def work(v: Mapping[str, Any]) -> Any:
        """For each group: keys, the row, and twice the largest of each block of 64."""
        return grid(v)[0] * (ex.ceildiv(v["vocab"], 64) * 64) * 16

    producer = CSource("sample.c", defines=(("ENTRY", "accrt_sample"),), struct="sample_params_t")
    return KernelDef("sample", "sample", producer, params, grid, workspace_bytes=work)


def lower_sample(operands: Sequence[TensorSpec], top: int) -> Launch:
    """Operands: READ and WRITTEN."""
    logits = operands[0]
    require_contiguous_last(logits, "logits")
    values = {
        "samples": logits.shape[0], "vocab": logits.shape[1], "row_step": logits.strides[0], "edits": operands[8].shape[0],
        "masks": operands[12].shape[0], "top": top,
    }  # fmt: skip
    return launch(sample_kernel(), {name: name for name in (*READ, *WRITTEN)}, values)
