"""HyperCLOVA X: Granite whose logits are multiplied where Granite divides; norms behind attention
and MLP, too."""

from __future__ import annotations

from typing import Tuple

from ..compiler.ir import Value
from .granite import Granite


class HyperClovaX(Granite):
    types = ("hyperclovax",)
    architectures: Tuple[str, ...] = ()

    def setup(self) -> None:
        super().setup()
        config = self.config
        self.scale = config.number("attention_multiplier", self.head_size**-0.5)
        self.behind = config.flag("use_post_norm", True)
        self.divisor = 1 / config.number("logits_scaling", 1.0, minimum=1e-6)

    def attention(self, x: Value, name: str, layer: int) -> Value:
        made = super().attention(x, name, layer)
        return self.norm(made, f"{self.layer_name.format(layer)}.post_norm1") if self.behind else made

    def mlp(self, x: Value, name: str) -> Value:
        made = super().mlp(x, name)
        return self.norm(made, f"{self.layer_name.format(self.step.layer)}.post_norm2") if self.behind else made
