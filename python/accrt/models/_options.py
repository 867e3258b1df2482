"""How a bundle is made. Nothing of the compiler is imported for it: a bundle that is in the cache
needs none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Tuple

#: Sizes that the engine calls with. Between two of them, tokens cost what the larger one does.
TOKENS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048)
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
CHANGES = (16, 256)
EDITS = (1, 64, 1024, 16384, 262144)
#: Types of keys and values, and bytes of a number. fp8: floats e4m3.
KV_BYTES = {"f32": 4, "f16": 2, "bf16": 2, "fp8": 1}


@dataclass(frozen=True)
class Options:
    """How a bundle is made. `page_size` 0: 16, or more where a model keeps something of each page.
    `kv_type` "": of 16 bits where the weights are; `max_position` 0: what the model was made for.
    `adapters`: places for LoRA adapters of rank `max_rank` at most, in products whose names end so,
    or all. `batch_invariant`: on GPUs too, a request's results have the same bits whatever else is
    in a step (on hosts they always have)."""

    page_size: int = 0
    kv_type: str = ""
    max_position: int = 0
    token_buckets: Tuple[int, ...] = TOKENS
    row_buckets: Tuple[int, ...] = ROWS
    sample_buckets: Tuple[int, ...] = ROWS
    change_buckets: Tuple[int, ...] = CHANGES
    edit_buckets: Tuple[int, ...] = EDITS
    adapters: int = 0
    max_rank: int = 16
    adapter_targets: Tuple[str, ...] = ()
    batch_invariant: bool = False
