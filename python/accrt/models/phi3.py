"""Phi-3 and 3.5: queries, keys and values are one product, and so are the halves of the MLP; one
window; LongRoPE."""

from __future__ import annotations

from typing import Optional, Tuple

from ..compiler.ir import Value
from ._ropes import FactorsInFiles


class Phi3(FactorsInFiles):
    types = architectures = ("phi3",)
    turns_part = True
    defaults = {"rms_norm_eps": 1e-5, "original_max_position_embeddings": 4096, "max_position_embeddings": 4096}
    gguf_names = {"ffn_up": "mlp.gate_up_proj"}

    def setup(self) -> None:
        super().setup()
        self.sliding = self.config.integer("sliding_window", 0, minimum=0)

    def window(self, layer: int) -> Optional[int]:
        return self.sliding or None

    def qkv(self, x: Value, name: str) -> Tuple[Value, Value, Value]:
        q, k, v = self.split_in_three(self.linear(x, f"{name}.qkv_proj", self.joined_size))
        return self.rope(q), self.rope(k), v

    def mlp(self, x: Value, name: str) -> Value:
        gate, up = self.linear(x, f"{name}.gate_up_proj", 2 * self.intermediate).split([self.intermediate] * 2, -1)
        return self.linear(self.activation(gate) * up, f"{name}.down_proj", self.hidden)
