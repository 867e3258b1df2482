"""Jais 2: Llama with layer norms, biases, and an MLP without a gate whose activation is the square
of ReLU."""

from __future__ import annotations

from ..compiler.ir import Value
from ._blocks import Decoder


class Jais2(Decoder):
    types = ("jais2",)
    defaults = {"layer_norm_eps": 1e-5, "max_position_embeddings": 8192}
    keys = {"rms_norm_eps": ("layer_norm_eps",)}
    act = "relu2"

    def norm(self, x: Value, name: str) -> Value:
        return self.layer_norm(x, name)

    def mlp(self, x: Value, name: str) -> Value:
        return self.in_two(x, name, "up_proj", "down_proj")
