"""Gemma 3: Gemma 2 without soft caps, with norms of queries and keys; five layers of six have a
window, and other rotary embeddings than those that see all. Of models that see images, the part
that reads text."""

from __future__ import annotations

from typing import List

from ..compiler.ir import Value
from . import _rope
from ._checkpoint import Checkpoint
from ._options import Options
from ._parts import text_part
from .gemma2 import Gemma2

_FULL, _SLIDING = "full_attention", "sliding_attention"


class Gemma3(Gemma2):
    types = ("gemma3_text", "gemma3")
    architectures = ("gemma3",)
    defaults = {"sliding_window": 4096, "query_pre_attn_scalar": 256, "head_dim": 256, "vocab_size": 262208, "hidden_size": 2304, "intermediate_size": 9216,
                "num_hidden_layers": 26, "num_attention_heads": 8, "num_key_value_heads": 4, "max_position_embeddings": 131072}  # fmt: skip
    largest = 62

    def __init__(self, checkpoint: Checkpoint, options: Options = Options()):
        super().__init__(text_part(checkpoint), options)

    def layer_types(self) -> List[str]:
        every = self.config.integer("sliding_window_pattern", 6)
        return [_SLIDING if (layer + 1) % every else _FULL for layer in range(self.layers)]

    def setup_rope(self) -> None:
        config, longest = self.config, self.options.max_position or 1
        given = config.get("rope_parameters") or {}
        both = {kind: given.get(kind) or {} for kind in (_FULL, _SLIDING)} if isinstance(given, dict) and (_FULL in given or _SLIDING in given) else {}
        base = config.number("rope_local_base_freq", 10000.0, minimum=1e-6)
        full, local = config.changed(rope_parameters=both.get(_FULL, given)), config.changed(rope_parameters=both.get(_SLIDING), rope_scaling=None, rope_theta=base)
        full.values.setdefault("rope_theta", 1e6)
        self.rotation = _rope.make(full, self.head_size, longest)
        self.local = _rope.make(local, self.head_size, longest)

    def rope(self, x: Value) -> Value:
        if self.windows[self.step.layer] is None:
            return super().rope(x)
        return x.rope_at(self.step.positions, self.constant("rope.local_frequencies", self.local.frequencies.astype("f4")), self.local.scale, self.interleaved)

    def turned(self, x: Value, name: str) -> Value:
        return self.rope(self.rms_norm(x, f"{name}_norm"))
