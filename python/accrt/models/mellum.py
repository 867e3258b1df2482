"""Mellum 2: Qwen 3 with experts in all layers or in some; layers with windows have rotary
embeddings of their own."""

from __future__ import annotations

from typing import Tuple

from ..compiler.ir import Value
from ._blocks import FULL, Decoder
from ._experts import WithExperts
from ._ropes import TwoRopes


class Mellum(TwoRopes, WithExperts):
    types = ("mellum",)
    architectures: Tuple[str, ...] = ()
    turns_part = None
    defaults = {"sliding_window": 1024, "num_key_value_heads": 4, "head_dim": 128, "num_experts": 64, "num_experts_per_tok": 8, "moe_intermediate_size": 896,
                "norm_topk_prob": True, "max_position_embeddings": 131072}  # fmt: skip
    theta = 5e5
    keys = {"num_experts": ("num_local_experts",)}

    def setup(self) -> None:
        super().setup()
        self.windows = self.windows_of([FULL] * self.layers)
        self.setup_experts("moe_intermediate_size")
        self.shares_normed = self.config.flag("norm_topk_prob")
        self.leave_out_predictors()
        self.kinds = self.of_layers("mlp_layer_types", ("dense", "sparse"), ["sparse"] * self.layers)

    def turned(self, x: Value, name: str) -> Value:
        return self.rope(self.rms_norm(x, f"{name}_norm"))

    def mlp(self, x: Value, name: str) -> Value:
        return self.expert_mlp(x, name) if self.kinds[self.step.layer] == "sparse" else Decoder.mlp(self, x, name)
