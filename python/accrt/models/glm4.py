"""GLM-4 of 2025: GLM with norms behind attention and MLP too."""

from __future__ import annotations

from ..compiler.ir import Value
from .glm import Glm


class Glm4(Glm):
    types = architectures = ("glm4",)
    gguf_names = {"post_attention_norm": "post_self_attn_layernorm", "post_ffw_norm": "post_mlp_layernorm", "ffn_up": "mlp.gate_up_proj"}

    def layer(self, x: Value, name: str, index: int) -> Value:
        mixed = self.attention(self.norm(x, f"{name}.input_layernorm"), f"{name}.self_attn", index)
        x = self.norm(mixed, f"{name}.post_self_attn_layernorm") + x
        made = self.mlp(self.norm(x, f"{name}.post_attention_layernorm"), f"{name}.mlp")
        return self.norm(made, f"{name}.post_mlp_layernorm") + x
