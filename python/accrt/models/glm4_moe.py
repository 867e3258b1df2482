"""GLM-4.5, 4.5 Air, 4.6 and 4.7: the experts of DeepSeek V3, of which a part of each head is
turned; in some, queries and keys have norms of their own."""

from __future__ import annotations

from ..compiler.ir import Value
from ._mixtures import WithGroups


class Glm4Moe(WithGroups):
    types, architectures = ("glm4_moe",), ("glm4moe",)
    turns_part = True
    gguf_names = {**WithGroups.gguf_names, "post_attention_norm": "post_attention_layernorm"}
    defaults = {"rms_norm_eps": 1e-5, "num_key_value_heads": 8, "partial_rotary_factor": 0.5, "max_position_embeddings": 131072, "moe_intermediate_size": 1408,
                "num_experts_per_tok": 8, "n_shared_experts": 1, "n_routed_experts": 128, "first_k_dense_replace": 1, "norm_topk_prob": True}  # fmt: skip

    def setup(self) -> None:
        super().setup()
        self.qk_normed = self.config.flag("use_qk_norm", self.is_gguf and self.has(f"{self.layer_name.format(0)}.{self.attention_name}.q_norm.weight"))
        self.setup_groups()

    def turned(self, x: Value, name: str) -> Value:
        return self.rope(self.rms_norm(x, f"{name}_norm") if self.qk_normed else x)
