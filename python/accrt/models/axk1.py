"""A.X K1: DeepSeek V3 with a norm behind the experts, and without biases where a checkpoint has
none."""

from __future__ import annotations

from ..compiler.ir import Value
from .deepseek_v3 import DeepseekV3
from .glm4_moe_lite import Glm4MoeLite


class AXK1(Glm4MoeLite):
    types = ("axk1",)
    by_frequency = True
    defaults = {**DeepseekV3.defaults, "n_routed_experts": 192, "first_k_dense_replace": 1, "max_position_embeddings": 32768}

    def setup(self) -> None:
        super().setup()
        self.by_bias = any(name.endswith(".e_score_correction_bias") for name in self.checkpoint.tensors)
        self.checkpoint.unused += tuple(self._behind(layer) for layer in range(self.layers) if self.is_dense(layer))

    def _behind(self, layer: int) -> str:
        """The norm, which published checkpoints have in layers without experts, too."""
        return f"{self.prefix}{self.layer_name.format(layer)}.post_mlp_layernorm.weight"

    def mlp(self, x: Value, name: str) -> Value:
        made = super().mlp(x, name)
        return made if self.is_dense(self.step.layer) else self.norm(made, f"{name.rpartition('.')[0]}.post_mlp_layernorm")
