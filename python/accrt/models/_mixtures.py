"""Experts as DeepSeek has them: chosen in groups, multiplied by a factor, beside experts that take
every token, and not in the first layers."""

from __future__ import annotations

from typing import Tuple

import numpy as np

from ..compiler.ir import Value
from ._experts import WithExperts


class WithGroups(WithExperts):
    """`setup_groups` reads the configuration. As it is, a router does what that of DeepSeek V3
    does: a sigmoid for each expert, and biases by which alone experts are chosen."""

    count_key = "n_routed_experts"
    shared_name = "shared_experts"
    #: Whether biases choose among the shares of a sigmoid.
    by_bias = True
    #: Whether moe_layer_freq says which layers have experts. Else it must be 1.
    by_frequency = False
    groups = chosen_groups = 1
    gguf_names = {**WithExperts.gguf_names, "exp_probs_b": "mlp.gate.e_score_correction", "ffn_gate_shexp": "mlp.shared_experts.gate_proj",
                  "ffn_up_shexp": "mlp.shared_experts.up_proj", "ffn_down_shexp": "mlp.shared_experts.down_proj"}  # fmt: skip
    of_shares = 1.0
    #: What is added to the sum of the shares of a token.
    beside_shares = 1e-20

    def setup_groups(self) -> None:
        config = self.config
        self.setup_experts("moe_intermediate_size")
        self.groups, self.chosen_groups = config.integer("n_group", 1), config.integer("topk_group", 1)
        self.shares_normed, self.of_shares = config.flag("norm_topk_prob"), config.number("routed_scaling_factor", 1.0)
        self.shared = config.integer("n_shared_experts", 0, minimum=0, maximum=1 << 12)
        self.first = config.integer("first_k_dense_replace", 0, minimum=0)
        if self.experts % self.groups or self.chosen_groups > self.groups or self.chosen * self.groups > self.experts * self.chosen_groups:
            config.refuse(f"config: n_group is {self.groups}, topk_group {self.chosen_groups}: {self.chosen} of {self.experts} experts cannot be chosen in such groups")
            self.groups = self.chosen_groups = 1
        self.frequency = config.integer("moe_layer_freq", 1)
        if self.frequency != 1 and not self.by_frequency:
            config.refuse(f"config: moe_layer_freq is {self.frequency}, which this family does not do")
        self.leave_out_predictors()

    def best_groups(self, scores: Value) -> Value:
        """How good each group is, [tokens, groups], of [tokens, groups, experts of a group]."""
        return scores.topk(min(2, int(scores.shape[2])), -1)[0].sum(-1)

    def in_groups(self, scores: Value, outside: float) -> Value:
        """Scores [tokens, experts], with `outside` in those groups that are not among the best."""
        if self.groups == 1:
            return scores
        tokens, f = scores.shape[0], self.step.f
        shape = [tokens, self.groups, self.experts // self.groups]
        split = scores.view(shape)
        chosen = self.best_groups(split).topk(self.chosen_groups, -1)[1]
        ones = f.full([tokens, self.chosen_groups], 1.0, scores.dtype)
        inside = f.full([tokens, self.groups], 0.0, scores.dtype).scatter(chosen, ones, 1) > 0
        kept = inside.unsqueeze(-1).expand(shape).where(split, f.full([1, 1, 1], outside, scores.dtype))
        return kept.view([tokens, self.experts])

    def scored(self, x: Value) -> Value:
        """The shares of all experts, of what a router makes."""
        return x.sigmoid()

    def routed(self, x: Value, name: str) -> Tuple[Value, Value]:
        scores = self.scored(self.linear(x, name, self.experts, bias=False))
        by = scores + self.biases(name) if self.by_bias else scores
        chosen = self.in_groups(by, -1e30).topk(self.chosen, -1)[1]
        shares = self.shares_at(scores, chosen)
        if self.shares_normed:
            shares = self.normed_shares(shares)
        return self.multiplied(shares), chosen

    def shares_at(self, scores: Value, chosen: Value) -> Value:
        """Of all experts' shares those of the chosen ones, [tokens, chosen]."""
        f, tokens = self.step.f, scores.shape[0]
        # a tensor, so that kernels are the same for all numbers
        many = f.constant(self.constant("routed", np.array([int(scores.shape[1])], np.int64)))
        places = f.arange(tokens).unsqueeze(1) * many + chosen.to_copy("i64")
        return scores.view([-1]).index_select(0, places.view([-1])).view([tokens, self.chosen])

    def normed_shares(self, shares: Value) -> Value:
        return shares / (shares.sum(-1, True) + self.beside_shares)

    def biases(self, name: str) -> Value:
        return self.float(self.weight(self.bias_of(name), [self.experts]))

    def bias_of(self, name: str) -> str:
        """What the biases of a router are called."""
        return f"{name}.e_score_correction{'.' if self.is_gguf else '_'}bias"

    def multiplied(self, shares: Value) -> Value:
        if self.of_shares == 1:
            return shares
        return shares * self.step.f.constant(self.constant("of_shares", np.array([self.of_shares], np.float32)))

    def is_dense(self, layer: int) -> bool:
        """Whether a layer has one MLP and no experts."""
        return layer < self.first

    def mlp(self, x: Value, name: str) -> Value:
        if self.is_dense(self.step.layer):
            return super().mlp(x, name)
        made = self.expert_mlp(x, name)
        return made + self.gated(x, f"{name}.{self.shared_name}", self.shared * self.expert_size) if self.shared else made
