"""Jamba: layers with attention, without rotary embeddings, among others with mixers of Mamba 1; in
some of both the MLP is a mixture of experts."""

from __future__ import annotations

from typing import Tuple

from ..compiler.ir import Value
from ._blocks import FULL
from ._experts import WithExperts
from ._scans import LINEAR, WithMamba1


class Jamba(WithMamba1, WithExperts):
    types = ("jamba",)
    final_norm, router_name = "final_layernorm", "router"
    shares_normed = False
    mamba1_keys = {"state_size": "mamba_d_state", "taps": "mamba_d_conv", "expand": "mamba_expand", "rank": "mamba_dt_rank", "conv_bias": "mamba_conv_bias",
                   "bias": "mamba_proj_bias"}  # fmt: skip
    defaults = {"num_key_value_heads": 8, "max_position_embeddings": 262144, "rms_norm_eps": 1e-6, "intermediate_size": 14336, "num_experts": 16, "num_experts_per_tok": 2}

    def setup(self) -> None:
        super().setup()
        config = self.config
        every, first = self._period("attn_layer_period", 8, "attn_layer_offset", 4)
        self.kinds = [FULL if layer % every == first else LINEAR for layer in range(self.layers)]
        for key in ("layer_types", "layers_block_type"):  # what the periods say again
            config.get(key)
        if config.get("num_experts") != 1:
            self.setup_experts()
        every, first = self._period("expert_layer_period", 2, "expert_layer_offset", 1)
        self.with_experts = {layer for layer in range(self.layers) if layer % every == first and config.get("num_experts") != 1}
        self.setup_mamba1()

    def _period(self, period: str, every: int, offset: str, first: int) -> Tuple[int, int]:
        """Each how many layers one is of a kind, and the first that is."""
        return self.config.integer(period, every), self.config.integer(offset, first, minimum=0)

    def setup_rope(self) -> None:
        """There are none."""

    def turned(self, x: Value, name: str) -> Value:
        return x

    def normed_part(self, x: Value, name: str) -> Value:
        return self.norm(x, name)

    def layer(self, x: Value, name: str, index: int) -> Value:
        taken = self.norm(x, f"{name}.input_layernorm")
        x = x + (self.mamba1(taken, f"{name}.mamba", index) if self.scans(index) else self.attention(taken, f"{name}.{self.attention_name}", index))
        taken, name = self.norm(x, f"{name}.pre_ff_layernorm"), f"{name}.feed_forward"
        return x + (self.expert_mlp(taken, name) if index in self.with_experts else self.mlp(taken, name))
