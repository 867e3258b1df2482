"""OLMoE: Llama with experts, and with a norm of all queries and of all keys, as OLMo 2 has it."""

from __future__ import annotations

from ..compiler.ir import Value
from ._experts import WithExperts


class Olmoe(WithExperts):
    types = architectures = ("olmoe",)
    defaults = {"rms_norm_eps": 1e-5, "max_position_embeddings": 4096, "num_experts": 64, "num_experts_per_tok": 8}
    all_heads_normed = True

    def setup(self) -> None:
        super().setup()
        self.setup_experts()
        self.shares_normed = self.config.flag("norm_topk_prob")
        self.most_of_qkv = self.config.number("clip_qkv", 0.0)

    def mlp(self, x: Value, name: str) -> Value:
        return self.expert_mlp(x, name)
