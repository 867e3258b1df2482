"""StarCoder 2: layer norms, biases, an MLP without a gate, one window."""

from __future__ import annotations

from typing import Optional

from ..compiler.ir import Value
from ._blocks import Decoder


class Starcoder2(Decoder):
    types = architectures = ("starcoder2",)
    defaults = {"norm_epsilon": 1e-5, "num_key_value_heads": 2, "max_position_embeddings": 4096}
    keys = {"rms_norm_eps": ("norm_epsilon", "layer_norm_epsilon")}
    tied = True
    act = "gelu_pytorch_tanh"
    gguf_names = {"ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj"}

    def setup(self) -> None:
        super().setup()
        self.sliding = self.config.integer("sliding_window", 0, minimum=0)
        self.config.flag("use_bias", True)  # the tensors say it

    def window(self, layer: int) -> Optional[int]:
        return self.sliding or None

    def norm(self, x: Value, name: str) -> Value:
        return self.layer_norm(x, name)

    def mlp(self, x: Value, name: str) -> Value:
        return self.in_two(x, name, "c_fc", "c_proj")
