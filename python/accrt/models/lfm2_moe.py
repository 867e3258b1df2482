"""LFM2 with experts, which biases choose among the shares of a sigmoid, in all but the first
layers."""

from __future__ import annotations

from ..compiler.ir import Value
from ._mixtures import WithGroups
from .lfm2 import Lfm2


class Lfm2Moe(WithGroups, Lfm2):
    types = ("lfm2_moe",)
    architectures = ("lfm2moe",)
    gguf_names = {**Lfm2.gguf_names, "ffn_gate_inp": "feed_forward.gate", "ffn_gate_exps": "feed_forward.experts.w1", "ffn_up_exps": "feed_forward.experts.w3",
                  "ffn_down_exps": "feed_forward.experts.w2", "exp_probs_b.bias": "feed_forward.expert_bias"}  # fmt: skip
    gguf_keys = {**Lfm2.gguf_keys, "leading_dense_block_count": "num_dense_layers"}
    count_key = "num_experts"
    parts = ("w1", "w3", "w2")
    defaults = {**Lfm2.defaults, "intermediate_size": 7168, "moe_intermediate_size": 1792, "num_experts": 32, "num_experts_per_tok": 4, "num_dense_layers": 2,
                "norm_topk_prob": True, "use_expert_bias": True, "block_auto_adjust_ff_dim": False}  # fmt: skip
    beside_shares = 1e-6

    def setup(self) -> None:
        super().setup()
        config = self.config
        self.setup_experts("moe_intermediate_size")
        self.first = config.integer("num_dense_layers", minimum=0)
        self.shares_normed, self.of_shares = config.flag("norm_topk_prob", self.is_gguf), config.number("routed_scaling_factor", 1.0)
        self.by_bias = config.flag("use_expert_bias", self.is_gguf)

    def bias_of(self, name: str) -> str:
        return name.replace(f".{self.router_name}", ".expert_bias")

    def feed_forward(self, x: Value, name: str) -> Value:
        return super().feed_forward(x, name) if self.step.layer < self.first else self.expert_mlp(x, name)
