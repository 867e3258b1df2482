"""Arcee's Trinity: attention with a gate for each element, windows in three layers of four, which
alone have rotary embeddings, norms before and after attention and MLP, and experts as DeepSeek V3
chooses them, in one group."""

from __future__ import annotations

import math
from typing import Optional, Tuple

from ..compiler.ir import Value
from ._blocks import FULL, SLIDING
from ._mixtures import WithGroups


class Afmoe(WithGroups):
    types: Tuple[str, ...] = ("afmoe",)
    defaults = {"rms_norm_eps": 1e-5, "head_dim": 128, "max_position_embeddings": 16384, "sliding_window": 1024, "num_experts": 64, "num_experts_per_tok": 6,
                "num_shared_experts": 2, "moe_intermediate_size": 1408, "norm_topk_prob": True, "num_dense_layers": 1}  # fmt: skip
    keys = {"n_shared_experts": ("num_shared_experts",), "routed_scaling_factor": ("route_scale",), "first_k_dense_replace": ("num_dense_layers",)}
    count_key, router_name = "num_experts", "router.gate"

    def setup(self) -> None:
        super().setup()
        self.setup_groups()
        config = self.config
        self.of_embedding = math.sqrt(self.hidden) if config.flag("mup_enabled") else 1.0
        config.choice("score_func", ("sigmoid",), "sigmoid")
        if not config.flag("route_norm", True):
            config.refuse("config: route_norm is false, which this family does not do")
        every = config.integer("global_attn_every_n_layers", 4)
        self.windows = self.windows_of([SLIDING if (layer + 1) % every else FULL for layer in range(self.layers)])
        self.is_local = [kind == SLIDING for kind in self.of_layers("layer_types", (FULL, SLIDING), [SLIDING if (layer + 1) % every else FULL for layer in range(self.layers)])]

    def window(self, layer: int) -> Optional[int]:
        return self.windows[layer]

    def embed(self, ids: Value) -> Value:
        return super().embed(ids) * self.of_embedding

    def turned(self, x: Value, name: str) -> Value:
        x = self.rms_norm(x, f"{name}_norm")
        return self.rope(x) if self.is_local[self.step.layer] else x

    def attention(self, x: Value, name: str, layer: int) -> Value:
        gate = self.linear(x, f"{name}.gate_proj", self.heads * self.head_size, False).sigmoid()
        return self.linear(self.attend(*self.qkv(x, name), layer) * gate, f"{name}.{self.output_name}", self.hidden)

    def bias_of(self, name: str) -> str:
        return f"{name.removesuffix(f'.{self.router_name}')}.expert_bias"

    def layer(self, x: Value, name: str, index: int) -> Value:
        mixed = self.attention(self.norm(x, f"{name}.input_layernorm"), f"{name}.{self.attention_name}", index)
        x = self.norm(mixed, f"{name}.post_attention_layernorm") + x
        made = self.mlp(self.norm(x, f"{name}.pre_mlp_layernorm"), f"{name}.mlp")
        return self.norm(made, f"{name}.post_mlp_layernorm") + x
