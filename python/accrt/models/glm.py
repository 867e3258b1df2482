"""GLM-4 of 2024: half of each head is turned, by neighbours; the halves of the MLP are one
product."""

from __future__ import annotations

from typing import Tuple

from ..compiler.ir import Value
from ._blocks import Decoder


class Glm(Decoder):
    types, architectures = ("glm",), ("chatglm",)
    turns_part = True
    gguf_names = {"ffn_up": "mlp.gate_up_proj"}
    defaults = {"rms_norm_eps": 1.5625e-7, "partial_rotary_factor": 0.5, "head_dim": 128, "num_key_value_heads": 2, "max_position_embeddings": 131072}
    interleaved = True

    def qkv(self, x: Value, name: str) -> Tuple[Value, Value, Value]:
        if not self.has(f"{name}.qkv_proj.weight"):
            return super().qkv(x, name)
        # GGUF files may have one product for the three
        q, k, v = self.split_in_three(self.linear(x, f"{name}.qkv_proj", self.joined_size))
        return self.rope(q), self.rope(k), v

    def mlp(self, x: Value, name: str) -> Value:
        gate, up = self.linear(x, f"{name}.gate_up_proj", 2 * self.intermediate).split([self.intermediate] * 2, -1)
        return self.linear(self.activation(gate) * up, f"{name}.down_proj", self.hidden)
