"""OLMoE: Llama with experts, and with a norm of all queries and of all keys, as OLMo 2 has it."""

from __future__ import annotations

from typing import Tuple

from ..compiler.ir import Value
from ._experts import WithExperts


class Olmoe(WithExperts):
    types = architectures = ("olmoe",)
    defaults = {"rms_norm_eps": 1e-5, "max_position_embeddings": 4096, "num_experts": 64, "num_experts_per_tok": 8}

    def setup(self) -> None:
        super().setup()
        self.setup_experts()
        self.shares_normed = self.config.flag("norm_topk_prob")
        self.most_of_qkv = self.config.number("clip_qkv", 0.0)

    def qkv(self, x: Value, name: str) -> Tuple[Value, Value, Value]:
        sizes = (("q_proj", self.heads), ("k_proj", self.kv_heads), ("v_proj", self.kv_heads))
        q, k, v = (self.linear(x, f"{name}.{part}", heads * self.head_size) for part, heads in sizes)
        made = [self.rms_norm(q, f"{name}.q_norm"), self.rms_norm(k, f"{name}.k_norm"), v]
        if self.most_of_qkv:
            made = [y.clamp(-self.most_of_qkv, self.most_of_qkv) for y in made]
        q, k, v = (self.split_heads(y, heads) for y, (_part, heads) in zip(made, sizes))
        return self.rope(q), self.rope(k), v

    def mlp(self, x: Value, name: str) -> Value:
        return self.expert_mlp(x, name)
