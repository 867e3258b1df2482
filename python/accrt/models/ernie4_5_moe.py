"""ERNIE 4.5 with experts, in the layers from one to another: a softmax of all experts, and biases
by which alone they are chosen."""

from __future__ import annotations

import numpy as np

from ..compiler.ir import Value
from ._mixtures import WithGroups
from .ernie4_5 import Ernie45


class Ernie45Moe(WithGroups, Ernie45):
    types, architectures = ("ernie4_5_moe",), ("ernie4_5-moe",)
    gguf_names = {**WithGroups.gguf_names, "exp_probs_b": "mlp.moe_statics.e_score_correction"}
    gguf_keys = {"interleave_moe_layer_step": "moe_layer_interval", "leading_dense_block_count": "moe_layer_start_index", "expert_shared_count": "moe_num_shared_experts",
                 "expert_shared_feed_forward_length": ""}  # fmt: skip
    defaults = {"rms_norm_eps": 1e-5, "num_key_value_heads": 4, "max_position_embeddings": 131072, "rope_theta": 5e5, "moe_intermediate_size": 1536, "moe_k": 6,
                "moe_num_experts": 64, "moe_num_shared_experts": 2, "moe_layer_start_index": 1}  # fmt: skip
    keys = {"num_experts_per_tok": ("moe_k",)}
    count_key = "moe_num_experts"

    def setup(self) -> None:
        super().setup()
        config = self.config
        self.setup_experts("moe_intermediate_size")
        self.shared = config.integer("moe_num_shared_experts", 0, minimum=0, maximum=1 << 12)
        every, first, last = config.integer("moe_layer_interval", 1), config.integer("moe_layer_start_index", 0, minimum=0), config.integer("moe_layer_end_index", -1, minimum=-1)
        last = self.layers - 1 if last < 0 else last
        self.with_experts = {layer for layer in range(self.layers) if first <= layer <= last and (layer + 1) % every == 0}
        self.least = config.number("moe_norm_min", 1e-12)
        self.leave_out_predictors()

    def leave_out_predictors(self) -> None:
        super().leave_out_predictors()
        self.checkpoint.unused += tuple(name for name in self.checkpoint.tensors if name.startswith(f"{self.prefix}mtp_"))

    def is_dense(self, layer: int) -> bool:
        return layer not in self.with_experts

    def scored(self, x: Value) -> Value:
        return x.softmax(-1)

    def normed_shares(self, shares: Value) -> Value:
        least = self.step.f.constant(self.constant("least_shares", np.array([self.least], np.float32)))
        return shares / shares.sum(-1, True).maximum(least)

    def bias_of(self, name: str) -> str:
        return super().bias_of(name.replace(f".{self.router_name}", ".moe_statics"))

    def biases(self, name: str) -> Value:
        """A row; files may have it as such, or not."""
        found = self.checkpoint.tensors.get(self._key(self.bias_of(name)))
        shape = [self.experts] if self.is_gguf and found is not None and len(found.shape) == 1 else [1, self.experts]
        return self.float(self.weight(self.bias_of(name), shape)).view([self.experts])
