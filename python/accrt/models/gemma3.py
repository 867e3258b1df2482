"""Gemma 3: Gemma 2 without soft caps, with norms of queries and keys; five layers of six have a
window, and other rotary embeddings than those that see all. Of models that see images, the part
that reads text."""

from __future__ import annotations

from typing import List

from ..compiler.ir import Value
from ._blocks import FULL, SLIDING
from ._checkpoint import Checkpoint
from ._options import Options
from ._parts import text_part
from ._ropes import TwoRopes
from .gemma2 import Gemma2


class Gemma3(TwoRopes, Gemma2):
    types = ("gemma3_text", "gemma3")
    architectures = ("gemma3",)
    defaults = {"sliding_window": 4096, "query_pre_attn_scalar": 256, "head_dim": 256, "vocab_size": 262208, "hidden_size": 2304, "intermediate_size": 9216,
                "num_hidden_layers": 26, "num_attention_heads": 8, "num_key_value_heads": 4, "max_position_embeddings": 131072}  # fmt: skip
    largest = 62
    theta = 1e6

    def __init__(self, checkpoint: Checkpoint, options: Options = Options()):
        super().__init__(text_part(checkpoint), options)

    def layer_types(self) -> List[str]:
        every = self.config.integer("sliding_window_pattern", 6)
        return [SLIDING if (layer + 1) % every else FULL for layer in range(self.layers)]

    def turned(self, x: Value, name: str) -> Value:
        return self.rope(self.rms_norm(x, f"{name}_norm"))
