"""DeepSeek V3 and R1, and what has their architecture (Moonlight, Kimi K2): keys and values of
latents, experts in groups."""

from __future__ import annotations

from ._latents import WithLatents
from ._mixtures import WithGroups


class DeepseekV3(WithLatents, WithGroups):
    types, architectures = ("deepseek_v3", "kimi_k2"), ("deepseek2 with sigmoids",)
    gguf_names = {**WithGroups.gguf_names, **WithLatents.gguf_names}
    defaults = {"q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "n_routed_experts": 256,
                "n_shared_experts": 1, "num_experts_per_tok": 8, "moe_intermediate_size": 2048, "n_group": 8, "topk_group": 4, "norm_topk_prob": True,
                "routed_scaling_factor": 2.5, "first_k_dense_replace": 3, "max_position_embeddings": 4096}  # fmt: skip
    #: What makes shares of a router's results.
    scoring = "sigmoid"

    def setup(self) -> None:
        super().setup()
        config = self.config
        self.interleaved = config.flag("rope_interleave", True)
        config.choice("scoring_func", (self.scoring,), self.scoring)
        config.choice("topk_method", ("noaux_tc",), "noaux_tc")
        self.setup_groups()
