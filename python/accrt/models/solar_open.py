"""Solar Open: Llama with the experts of DeepSeek V3 in all layers."""

from __future__ import annotations

from ._mixtures import WithGroups


class SolarOpen(WithGroups):
    types = ("solar_open",)
    turns_part = None
    defaults = {"rms_norm_eps": 1e-5, "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 131072, "moe_intermediate_size": 1280, "num_experts_per_tok": 8,
                "n_shared_experts": 1, "n_routed_experts": 128, "norm_topk_prob": True, "rope_theta": 1e6}  # fmt: skip

    def setup(self) -> None:
        super().setup()
        self.setup_groups()
