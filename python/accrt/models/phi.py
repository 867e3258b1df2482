"""Phi-1, 1.5 and 2: attention and MLP side by side after one layer norm, biases everywhere, a part
of each head is turned."""

from __future__ import annotations

from ..compiler.ir import Value
from ._blocks import Decoder


class Phi(Decoder):
    types, architectures = ("phi",), ("phi2",)
    turns_part = True
    defaults = {"layer_norm_eps": 1e-5, "partial_rotary_factor": 0.5}
    keys = {"rms_norm_eps": ("layer_norm_eps", "layer_norm_epsilon")}
    final_norm, output_name = "final_layernorm", "dense"
    act = "gelu_new"
    gguf_names = {"attn_output": "self_attn.dense", "ffn_up": "mlp.fc1", "ffn_down": "mlp.fc2"}

    def setup(self) -> None:
        super().setup()
        self.qk_normed = self.config.flag("qk_layernorm")

    def norm(self, x: Value, name: str) -> Value:
        return self.layer_norm(x, name)

    def turned(self, x: Value, name: str) -> Value:
        return self.rope(self.layer_norm(x, f"{name}_layernorm") if self.qk_normed else x)

    def mlp(self, x: Value, name: str) -> Value:
        return self.in_two(x, name, "fc1", "fc2")

    def layer(self, x: Value, name: str, index: int) -> Value:
        return self.beside(x, name, index)
