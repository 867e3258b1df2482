"""XGLM: positions as sines and cosines, which begin at the second one, layer norms, biases
everywhere."""

from __future__ import annotations

import math

import numpy as np

from ..compiler.ir import Value
from ..compiler.ops.shapes import cat
from ._blocks import Decoder

_OFFSET = 2


class Xglm(Decoder):
    types = ("xglm",)
    defaults = {"vocab_size": 256008, "d_model": 1024, "ffn_dim": 4096, "num_layers": 24, "attention_heads": 16, "scale_embedding": True}
    keys = {"hidden_size": ("d_model",), "intermediate_size": ("ffn_dim",), "num_hidden_layers": ("num_layers",), "num_attention_heads": ("attention_heads",),
            "hidden_act": ("activation_function",)}  # fmt: skip
    final_norm, output_name = "layer_norm", "out_proj"
    ignored = (*Decoder.ignored, "embed_positions.weights")
    tied = True
    act = "gelu"

    def setup(self) -> None:
        config = self.config
        config.values["rms_norm_eps"] = 1e-5  # no configuration has it
        super().setup()
        self.of_embedding = math.sqrt(self.hidden) if config.flag("scale_embedding", True) else 1.0
        if self.hidden % 2 or self.hidden < 4:
            config.refuse(f"config: d_model is {self.hidden}, expected an even number")

    def setup_rope(self) -> None:
        """Positions are added."""

    def norm(self, x: Value, name: str) -> Value:
        return self.layer_norm(x, name)

    def turned(self, x: Value, name: str) -> Value:
        return x

    def embed(self, ids: Value) -> Value:
        f, tokens, half = self.step.f, ids.shape[0], self.hidden // 2
        frequencies = np.exp(np.arange(half) * (-math.log(10000) / max(half - 1, 1)))
        # (1, 0) turned by the angle is (cos, sin)
        ones = f.constant(self.constant("ones", np.repeat(np.array([1, 0], np.float32), half)[None, None])).expand([tokens, 1, self.hidden])
        turned = ones.clone().rope_at(self.step.positions + _OFFSET, self.constant("positions", frequencies.astype(np.float32)), 1.0, False)
        cos, sin = turned.view([tokens, self.hidden]).split([half] * 2, -1)
        return super().embed(ids) * self.of_embedding + cat([sin, cos], -1)

    def layer(self, x: Value, name: str, index: int) -> Value:
        x = self.attention(self.norm(x, f"{name}.self_attn_layer_norm"), f"{name}.self_attn", index) + x
        return self.in_two(self.norm(x, f"{name}.final_layer_norm"), name, "fc1", "fc2") + x
