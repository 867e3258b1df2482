"""Gemma 2: Gemma with soft caps, windows in every second layer, and norms behind attention and MLP
too."""

from __future__ import annotations

from typing import List, Optional

from ..compiler.ir import Value
from ._blocks import FULL, SLIDING
from .gemma import Gemma


class Gemma2(Gemma):
    types = architectures = ("gemma2",)
    defaults = {"sliding_window": 4096, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0, "query_pre_attn_scalar": 256, "head_dim": 256,
                "num_key_value_heads": 4, "max_position_embeddings": 8192}  # fmt: skip
    gguf_names = {"ffn_norm": "pre_feedforward_layernorm", "post_attention_norm": "post_attention_layernorm", "post_ffw_norm": "post_feedforward_layernorm"}
    #: Of the sizes that there are, the one with so many layers scales scores by something else than
    #: its heads' size. GGUF files do not say it.
    largest = 46

    def setup(self) -> None:
        super().setup()
        config = self.config
        scalar = self.hidden // self.heads if self.is_gguf and self.layers == self.largest else self.head_size
        self.scale = config.number("query_pre_attn_scalar", scalar, minimum=1e-6) ** -0.5
        self.soft_cap = config.number("attn_logit_softcapping", 0.0) or None
        self.final_cap = config.number("final_logit_softcapping", 0.0)
        self.windows = self.windows_of(self.layer_types())

    def layer_types(self) -> List[str]:
        """Where a configuration does not have them."""
        return [FULL if layer % 2 else SLIDING for layer in range(self.layers)]

    def window(self, layer: int) -> Optional[int]:
        return self.windows[layer]

    def layer(self, x: Value, name: str, index: int) -> Value:
        mixed = self.attention(self.norm(x, f"{name}.input_layernorm"), f"{name}.self_attn", index)
        x = self.norm(mixed, f"{name}.post_attention_layernorm") + x
        made = self.mlp(self.norm(x, f"{name}.pre_feedforward_layernorm"), f"{name}.mlp")
        return self.norm(made, f"{name}.post_feedforward_layernorm") + x

    def head(self, x: Value) -> Value:
        logits = super().head(x)
        return (logits / self.final_cap).tanh() * self.final_cap if self.final_cap else logits
