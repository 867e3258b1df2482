"""Sarvam 30B: GLM-4.5 that turns whole heads, with one product for queries, keys and values, and
with names of its own."""

from __future__ import annotations

from typing import Tuple

from ..compiler.ir import Value
from .glm4_moe import Glm4Moe


class SarvamMoe(Glm4Moe):
    types, architectures = ("sarvam_moe",), ()
    defaults = {**Glm4Moe.defaults, "rms_norm_eps": 1e-6, "num_key_value_heads": 4, "head_dim": 64, "partial_rotary_factor": 1.0, "moe_intermediate_size": 1024,
                "num_experts_per_tok": 6, "routed_scaling_factor": 2.5, "use_qk_norm": True, "rope_theta": 8e6}  # fmt: skip
    keys = {"n_routed_experts": ("num_experts", "num_local_experts"), "n_shared_experts": ("num_shared_experts",), "num_nextn_predict_layers": ("num_mtp_layers",)}
    embedding_name, attention_name, output_name = "word_embeddings", "attention", "dense"

    def setup(self) -> None:
        super().setup()
        self.config.flag("use_qkv_bias")  # the tensors say it

    def qkv(self, x: Value, name: str) -> Tuple[Value, Value, Value]:
        q, k, v = self.split_in_three(self.linear(x, f"{name}.query_key_value", self.joined_size))
        return self.turned(q, f"{name}.query"), self.turned(k, f"{name}.key"), v

    def turned(self, x: Value, name: str) -> Value:
        return self.rope(self.rms_norm(x, f"{name}_layernorm") if self.qk_normed else x)

    def bias_of(self, name: str) -> str:
        return f"{name}.expert_bias"
