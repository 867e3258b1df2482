"""Granite 3 and 4 (the dense ones): Llama whose embeddings, residual sums, scores and logits are
multiplied by numbers of the configuration."""

from __future__ import annotations

import numpy as np

from ..compiler.ir import Value
from .llama import Llama


class Granite(Llama):
    types = architectures = ("granite",)

    def setup(self) -> None:
        super().setup()
        number = self.config.number
        self.of_embedding, self.of_residual = number("embedding_multiplier", 1.0), number("residual_multiplier", 1.0)
        self.scale = number("attention_multiplier", self.head_size**-0.5 if self.is_gguf else 1.0)
        named = number("logit_scale", 1.0, minimum=1e-6) if self.is_gguf else 1.0
        self.divisor = number("logits_scaling", named, minimum=1e-6)

    def factor(self, name: str, number: float) -> Value:
        """A number as a tensor, so that kernels are the same for all numbers."""
        return self.step.f.constant(self.constant(name, np.array([number], np.float32)))

    def embed(self, ids: Value) -> Value:
        return super().embed(ids) * self.factor("of_embedding", self.of_embedding)

    def layer(self, x: Value, name: str, index: int) -> Value:
        of_residual = self.factor("of_residual", self.of_residual)
        x = self.attention(self.norm(x, f"{name}.input_layernorm"), f"{name}.self_attn", index) * of_residual + x
        return self.mlp(self.norm(x, f"{name}.post_attention_layernorm"), f"{name}.mlp") * of_residual + x

    def head(self, x: Value) -> Value:
        return super().head(x) * self.factor("of_logits", 1 / self.divisor)
