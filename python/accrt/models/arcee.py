"""Arcee's AFM: Llama with an MLP without a gate, whose activation is the square of ReLU."""

from __future__ import annotations

from ..compiler.ir import Value
from .llama import Llama


class Arcee(Llama):
    types = architectures = ("arcee",)
    defaults = {"rms_norm_eps": 1e-5, "max_position_embeddings": 4096}
    act = "relu2"

    def mlp(self, x: Value, name: str) -> Value:
        return self.in_two(x, name, "up_proj", "down_proj")
