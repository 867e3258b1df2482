"""OLMo 2: norms behind attention and MLP and not before them, and a norm of all queries and of all
keys before they are split into heads."""

from __future__ import annotations

from ..compiler.ir import Value
from ._blocks import Decoder


class Olmo2(Decoder):
    types = architectures = ("olmo2",)
    defaults = {"rms_norm_eps": 1e-5}
    gguf_names = {"post_attention_norm": "post_attention_layernorm", "post_ffw_norm": "post_feedforward_layernorm"}
    all_heads_normed = True

    def layer(self, x: Value, name: str, index: int) -> Value:
        x = self.norm(self.attention(x, f"{name}.self_attn", index), f"{name}.post_attention_layernorm") + x
        return self.norm(self.mlp(x, f"{name}.mlp"), f"{name}.post_feedforward_layernorm") + x
