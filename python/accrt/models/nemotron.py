"""Nemotron 3 and 4, Minitron: layer norms that multiply by 1 + their weight, an MLP without a gate
whose activation is the square of ReLU, a part of each head is turned."""

from __future__ import annotations

from ..compiler.ir import Value
from ._blocks import Decoder


class Nemotron(Decoder):
    types = architectures = ("nemotron",)
    turns_part = True
    defaults = {"norm_eps": 1e-5, "partial_rotary_factor": 0.5, "max_position_embeddings": 4096}
    keys = {"rms_norm_eps": ("norm_eps", "layer_norm_epsilon"), "partial_rotary_factor": ("rope_percent", "rope_percentage")}
    act = "relu2"

    def norm(self, x: Value, name: str) -> Value:
        size = [int(x.shape[-1])]
        bias = self.float(self.weight(f"{name}.bias", size)) if self.has(f"{name}.bias") else None
        weight = self.float(self.weight(f"{name}.weight", size))
        # files have the sum
        return x.layer_norm(weight if self.is_gguf else weight + 1.0, bias, self.eps)

    def mlp(self, x: Value, name: str) -> Value:
        return self.in_two(x, name, "up_proj", "down_proj")
