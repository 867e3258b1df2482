"""Qwen 3: as Qwen 2, without biases, but with a norm of each query and key before it is turned."""

from __future__ import annotations

from ..compiler.ir import Value
from .qwen2 import Qwen2


class Qwen3(Qwen2):
    types, architectures = ("qwen3",), ("qwen3", "qwen3vl")
    defaults = {**Qwen2.defaults, "head_dim": 128}
    qkv_bias = None

    def turned(self, x: Value, name: str) -> Value:
        return self.rope(self.rms_norm(x, f"{name}_norm"))
