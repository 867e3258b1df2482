"""Kolibri 1: norms before and behind attention and MLP, and of queries and keys; layers with
windows alone have rotary embeddings; experts in all layers, which biases choose among a router's
results, beside one that takes every token."""

from __future__ import annotations

from typing import Optional, Tuple

import numpy as np

from ..compiler.ir import Value
from ._blocks import FULL, SLIDING
from ._experts import WithExperts
from ._ropes import TurnedInWindows


class Kolibri1(TurnedInWindows, WithExperts):
    types = ("kolibri1",)
    defaults = {"num_key_value_heads": 4, "head_dim": 128, "max_position_embeddings": 262144, "sliding_window": 513, "num_experts": 384, "num_experts_per_tok": 6,
                "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512}  # fmt: skip
    keys = {"num_experts": ("num_local_experts",)}
    #: What norms behind attention and MLP are called where models are published.
    _PUBLISHED = {"post_self_attn_layernorm": "post_attn_norm", "post_mlp_layernorm": "post_ffn_norm"}

    def setup(self) -> None:
        super().setup()
        config = self.config
        self.setup_experts("moe_intermediate_size")
        self.shares_normed = config.flag("norm_topk_prob")
        self.shared_size = config.integer("shared_expert_intermediate_size")
        config.integer("sliding_window")
        self.windows = self.windows_of([SLIDING if (layer + 1) % 5 else FULL for layer in range(self.layers)])

    def window(self, layer: int) -> Optional[int]:
        return self.windows[layer]

    def norm(self, x: Value, name: str) -> Value:
        before, _dot, last = name.rpartition(".")
        published = f"{before}.{self._PUBLISHED.get(last, last)}"
        return self.rms_norm(x, published if self.has(f"{published}.weight") else name)

    def layer(self, x: Value, name: str, index: int) -> Value:
        mixed = self.attention(self.norm(x, f"{name}.input_layernorm"), f"{name}.{self.attention_name}", index)
        x = self.norm(mixed, f"{name}.post_self_attn_layernorm") + x
        made = self.mlp(self.norm(x, f"{name}.post_attention_layernorm"), f"{name}.mlp")
        return self.norm(made, f"{name}.post_mlp_layernorm") + x

    def mlp(self, x: Value, name: str) -> Value:
        return self.expert_mlp(x, name) + self.gated(x, f"{name}.shared_experts", self.shared_size)

    def routed(self, x: Value, name: str) -> Tuple[Value, Value]:
        scores, f = self.linear(x, name, self.experts, bias=False), self.step.f
        chosen = (scores + self.float(self.weight(self._bias(name), [self.experts]))).topk(self.chosen, -1)[1]
        # a tensor, so that kernels are the same for all numbers
        many = f.constant(self.constant("experts", np.array([self.experts], np.int64)))
        places = f.arange(x.shape[0]).unsqueeze(1) * many + chosen.to_copy("i64")
        shares = scores.view([-1]).index_select(0, places.view([-1])).view([x.shape[0], self.chosen]).sigmoid()
        return (shares / shares.sum(-1, True) if self.shares_normed else shares), chosen

    def _bias(self, name: str) -> str:
        published = f"{name.rpartition('.mlp.')[0]}.moe.router.expert_bias"
        return published if self.has(published) else f"{name}.e_score_correction_bias"
