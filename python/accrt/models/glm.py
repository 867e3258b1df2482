"""GLM-4 of 2024: half of each head is turned, by neighbours; the halves of the MLP are one
product."""

from __future__ import annotations

from ..compiler.ir import Value
from ._blocks import Decoder


class Glm(Decoder):
    types = ("glm",)
    defaults = {"rms_norm_eps": 1.5625e-7, "partial_rotary_factor": 0.5, "head_dim": 128, "num_key_value_heads": 2, "max_position_embeddings": 131072}
    interleaved = True

    def mlp(self, x: Value, name: str) -> Value:
        gate, up = self.linear(x, f"{name}.gate_up_proj", 2 * self.intermediate).split([self.intermediate] * 2, -1)
        return self.linear(self.activation(gate) * up, f"{name}.down_proj", self.hidden)
