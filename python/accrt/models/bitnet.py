"""BitNet b1.58: Llama with one more norm before the products behind attention and of the MLP, and
with the square of ReLU; weights of three values."""

from __future__ import annotations

from ..compiler.ir import Value
from ._three_values import WithThreeValues


class Bitnet(WithThreeValues):
    types = ("bitnet",)
    defaults = {"rms_norm_eps": 1e-5, "num_key_value_heads": 5, "rope_theta": 5e5}
    act = "relu2"

    def attention(self, x: Value, name: str, layer: int) -> Value:
        mixed = self.norm(self.attend(*self.qkv(x, name), layer), f"{name}.attn_sub_norm")
        return self.linear(mixed, f"{name}.{self.output_name}", self.hidden)

    def mlp(self, x: Value, name: str) -> Value:
        gate, up = (self.linear(x, f"{name}.{part}_proj", self.intermediate) for part in ("gate", "up"))
        return self.linear(self.norm(self.activation(gate) * up, f"{name}.ffn_sub_norm"), f"{name}.down_proj", self.hidden)
