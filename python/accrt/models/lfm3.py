"""LFM3: LFM2 with layers of three kinds, of which those with a window have rotary embeddings of
their own; with norms behind attention, convolution and MLP, and a gate for each head."""

from __future__ import annotations

from typing import List, Optional, Tuple

from ..compiler.ir import Value
from ._blocks import FULL, SLIDING
from ._ropes import TwoRopes
from .lfm2 import CONV, Lfm2


class Lfm3(TwoRopes, Lfm2):
    types: Tuple[str, ...] = ("lfm3",)
    architectures: Tuple[str, ...] = ()
    output_name = "o_proj"
    known_kinds = (FULL, CONV, SLIDING)
    defaults = {"norm_eps": 1e-5, "num_key_value_heads": 4, "head_dim": 128, "max_position_embeddings": 128000, "conv_L_cache": 7, "sliding_window": 256, "block_auto_adjust_ff_dim": False,
                "rope_parameters": {SLIDING: {"rope_type": "default", "rope_theta": 10000.0},
                                    FULL: {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.5}}}  # fmt: skip
    theta = 1e6

    def setup(self) -> None:
        super().setup()
        config = self.config
        width = config.integer("sliding_window", 0, minimum=0) or None
        self.windows: List[Optional[int]] = [width if kind == SLIDING else None for kind in self.kinds]
        self.has_norms_behind, self.has_gates = config.flag("use_sandwich_norm", True), config.flag("use_attention_gate", True)

    def default_kinds(self) -> List[str]:
        return [FULL if layer % 4 == 2 else SLIDING if layer and layer % 4 == 0 else CONV for layer in range(self.layers)]

    def has_own_rope(self, layer: int) -> bool:
        return self.kinds[layer] == SLIDING

    def turned(self, x: Value, name: str) -> Value:
        return self.rope(self.rms_norm(x, f"{name}_norm"))

    def attention(self, x: Value, name: str, layer: int) -> Value:
        mixed = self.attend(*self.qkv(x, name), layer)
        if self.has_gates:
            gates = self.linear(x, f"{name}.gate_proj", self.heads, False).sigmoid().unsqueeze(-1)
            mixed = (self.split_heads(mixed, self.heads) * gates).view([x.shape[0], self.heads * self.head_size])
        return self.linear(mixed, f"{name}.{self.output_name}", self.hidden)

    def layer(self, x: Value, name: str, index: int) -> Value:
        x = self.behind(self.mixed(self.norm(x, f"{name}.operator_norm"), name, index), f"{name}.post_operator_norm") + x
        return self.behind(self.feed_forward(self.norm(x, f"{name}.ffn_norm"), f"{name}.feed_forward"), f"{name}.post_ffn_norm") + x

    def behind(self, x: Value, name: str) -> Value:
        return self.norm(x, name) if self.has_norms_behind else x
