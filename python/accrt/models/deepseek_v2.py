"""DeepSeek V2, V2 Lite and V2.5, also for code: keys and values of latents, experts that a softmax
chooses, in groups or not."""

from __future__ import annotations

from typing import Tuple

from ..compiler.ir import Value
from ._latents import WithLatents
from ._mixtures import WithGroups


class DeepseekV2(WithLatents, WithGroups):
    types, architectures = ("deepseek_v2",), ("deepseek2",)
    gguf_names = {**WithGroups.gguf_names, **WithLatents.gguf_names}
    defaults = {"q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "n_routed_experts": 64,
                "n_shared_experts": 2, "moe_intermediate_size": 1407}  # fmt: skip
    interleaved = True

    def setup(self) -> None:
        super().setup()
        config = self.config
        in_groups = config.choice("topk_method", ("greedy", "group_limited_greedy"), "group_limited_greedy" if self.is_gguf else "greedy") != "greedy"
        config.choice("scoring_func", ("softmax",), "softmax")
        self.setup_groups()
        if not in_groups:
            self.groups = self.chosen_groups = 1
        if self.shares_normed:
            config.refuse("config: norm_topk_prob is true, which this family does not do")

    def best_groups(self, scores: Value) -> Value:
        return scores.amax(-1)

    def routed(self, x: Value, name: str) -> Tuple[Value, Value]:
        scores = self.in_groups(self.linear(x, name, self.experts, bias=False).softmax(-1), 0.0)
        shares, chosen = scores.topk(self.chosen, -1)
        return self.multiplied(shares), chosen
