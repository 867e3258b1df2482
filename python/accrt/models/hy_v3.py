"""Hunyuan 3 (HY 3): Qwen 3 with the experts of DeepSeek V3 in all but the first layers, in one
group."""

from __future__ import annotations

from ..compiler.ir import Value
from ._mixtures import WithGroups


class HyV3(WithGroups):
    types = ("hy_v3",)
    defaults = {"rms_norm_eps": 1e-5, "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 131072, "rope_theta": 11158840.0, "num_experts": 192,
                "num_experts_per_tok": 8, "num_shared_experts": 1, "moe_intermediate_size": 1536, "norm_topk_prob": True, "router_scaling_factor": 2.826}  # fmt: skip
    keys = {"n_shared_experts": ("num_shared_experts",), "routed_scaling_factor": ("router_scaling_factor",)}
    count_key, router_name, shared_name = "num_experts", "router.gate", "shared_mlp"

    def setup(self) -> None:
        super().setup()
        self.setup_groups()
        self.kinds = self.of_layers("mlp_layer_types", ("dense", "sparse"), ["sparse" if layer else "dense" for layer in range(self.layers)])
        self.config.flag("enable_moe_fp32_combine")  # sums are of f32 here

    def turned(self, x: Value, name: str) -> Value:
        return self.rope(self.rms_norm(x, f"{name}_norm"))

    def bias_of(self, name: str) -> str:
        return f"{name.removesuffix(f'.{self.router_name}')}.expert_bias"

    def is_dense(self, layer: int) -> bool:
        return self.kinds[layer] == "dense"
