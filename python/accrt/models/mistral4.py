"""Mistral 4: DeepSeek V3 whose experts a softmax chooses, and whose queries grow with the positions
behind those of its training."""

from __future__ import annotations

from typing import Tuple

from ..compiler.ir import Value
from ._ropes import Growing
from .deepseek_v3 import DeepseekV3


class Mistral4(Growing, DeepseekV3):
    types, architectures = ("mistral4",), ()
    defaults = {"q_lora_rank": 1024, "kv_lora_rank": 256, "qk_nope_head_dim": 64, "qk_rope_head_dim": 64, "v_head_dim": 128, "n_routed_experts": 128, "n_shared_experts": 1,
                "num_experts_per_tok": 4, "moe_intermediate_size": 2048, "norm_topk_prob": True, "first_k_dense_replace": 0, "max_position_embeddings": 1048576,
                "rope_parameters": {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 128.0, "original_max_position_embeddings": 8192, "beta_fast": 32.0, "beta_slow": 1.0,
                                    "mscale_all_dim": 1.0, "mscale": 1.0, "llama_4_scaling_beta": 0.1}}  # fmt: skip
    by_bias, scoring = False, "softmax"

    def setup(self) -> None:
        super().setup()
        self.setup_growing()

    def setup_rope(self) -> None:
        """Configurations may say what part of a head is turned, which is qk_rope_head_dim."""
        config = self.config
        given, turned = config.get("rope_parameters"), config.integer("qk_rope_head_dim")
        if isinstance(given, dict) and given.get("partial_rotary_factor") is not None:
            size, part = turned + config.integer("qk_nope_head_dim"), given["partial_rotary_factor"]
            if part not in (turned / size, 1, 1.0):
                config.refuse(f"config: partial_rotary_factor is {part!r}; it is qk_rope_head_dim of all of a head, {turned / size:g}")
            config.values["rope_parameters"] = {key: value for key, value in given.items() if key != "partial_rotary_factor"}
        super().setup_rope()

    def scored(self, x: Value) -> Value:
        return x.softmax(-1)

    def qkv(self, x: Value, name: str) -> Tuple[Value, Value, Value]:
        q, k, v = super().qkv(x, name)
        return (q * self.growing(self.step.positions, self.original, self.beta) if self.beta else q), k, v
