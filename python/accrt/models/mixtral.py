"""Mixtral: Mistral whose MLPs are experts."""

from __future__ import annotations

from typing import Optional

from ..compiler.ir import Value
from ._experts import WithExperts


class Mixtral(WithExperts):
    types = ("mixtral",)
    architectures = ("llama with experts",)
    defaults = {"num_key_value_heads": 8, "rms_norm_eps": 1e-5, "rope_theta": 1e6, "max_position_embeddings": 131072, "num_local_experts": 8, "num_experts_per_tok": 2}
    count_key, parts = "num_local_experts", ("w1", "w3", "w2")
    gguf_names = {"ffn_gate_inp": "block_sparse_moe.gate", "ffn_gate_exps": "block_sparse_moe.experts.w1", "ffn_up_exps": "block_sparse_moe.experts.w3",
                  "ffn_down_exps": "block_sparse_moe.experts.w2"}  # fmt: skip

    def setup(self) -> None:
        super().setup()
        self.setup_experts()
        self.sliding = self.config.integer("sliding_window", 0, minimum=0)
        self.interleaved = self.is_gguf  # whose rows of queries and keys are in the order of pairs

    def window(self, layer: int) -> Optional[int]:
        return self.sliding or None

    def mlp(self, x: Value, name: str) -> Value:
        return self.expert_mlp(x, name.replace(".mlp", ".block_sparse_moe"))
