"""Cohere's Command R: attention and MLP side by side after one layer norm without a bias, rotary
embeddings of neighbours, logits that are multiplied by a number."""

from __future__ import annotations

import numpy as np

from ..compiler.ir import Value
from ._blocks import Decoder


class Cohere(Decoder):
    types, architectures = ("cohere",), ("command-r",)
    defaults = {"layer_norm_eps": 1e-5, "logit_scale": 0.0625, "max_position_embeddings": 8192, "rope_theta": 5e5}
    keys = {"rms_norm_eps": ("layer_norm_eps", "layer_norm_epsilon")}
    tied = interleaved = True

    def setup(self) -> None:
        super().setup()
        self.of_logits = self.config.number("logit_scale", 1.0)
        self.qk_normed = self.config.flag("use_qk_norm") or self.has(f"{self.layer_name.format(0)}.self_attn.q_norm.weight")

    def norm(self, x: Value, name: str) -> Value:
        return self.layer_norm(x, name)

    def turned(self, x: Value, name: str) -> Value:
        if self.qk_normed:  # with weights for each head
            weight = self.float(self.weight(f"{name}_norm.weight", [int(size) for size in x.shape[1:]]))
            x = x.layer_norm(None, None, self.eps) * weight
        return self.rope(x)

    def layer(self, x: Value, name: str, index: int) -> Value:
        return self.beside(x, name, index)

    def head(self, x: Value) -> Value:
        # a tensor, so that kernels are the same for all numbers
        return super().head(x) * self.step.f.constant(self.constant("of_logits", np.array([self.of_logits], np.float32)))
