"""GLM-4.7 Flash: keys and values of latents, and the experts of DeepSeek V3."""

from __future__ import annotations

from .deepseek_v3 import DeepseekV3


class Glm4MoeLite(DeepseekV3):
    types, architectures = ("glm4_moe_lite",), ()  # files are of DeepSeek's
    defaults = {"rms_norm_eps": 1e-5, "q_lora_rank": 768, "kv_lora_rank": 512, "qk_nope_head_dim": 192, "qk_rope_head_dim": 64, "v_head_dim": 256, "n_routed_experts": 64,
                "n_shared_experts": 1, "num_experts_per_tok": 4, "moe_intermediate_size": 1536, "norm_topk_prob": True, "routed_scaling_factor": 1.8,
                "max_position_embeddings": 202752}  # fmt: skip

    def setup(self) -> None:
        super().setup()
        config = self.config
        first = config.integer("first_k_dense_replace", 1, minimum=0, maximum=4096)
        self.mlp_kinds = self.of_layers("mlp_layer_types", ("dense", "sparse"), ["dense" if layer < first or layer % self.frequency else "sparse" for layer in range(self.layers)])

    def is_dense(self, layer: int) -> bool:
        return self.mlp_kinds[layer] == "dense"
