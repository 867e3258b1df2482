"""Gemma 2: soft caps, every second layer with a window, norms behind attention and MLP too, norms
that multiply by 1 + w, embeddings that are scaled by the root of their size."""

from __future__ import annotations

import math
from typing import Optional

import numpy as np

from ..compiler.ir import Value
from ._blocks import ACTIVATIONS, Decoder


class Gemma2(Decoder):
    types = architectures = ("gemma2",)
    defaults = {"sliding_window": 4096, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0, "query_pre_attn_scalar": 256, "head_dim": 256}
    tied = True
    act = "gelu_pytorch_tanh"
    gguf_names = {"ffn_norm": "pre_feedforward_layernorm", "post_attention_norm": "post_attention_layernorm", "post_ffw_norm": "post_feedforward_layernorm"}

    def setup(self) -> None:
        super().setup()
        config = self.config
        self.act = config.choice("hidden_activation", ACTIVATIONS, self.act)
        # GGUF files do not have it; of the three sizes that there are, the one of 46 layers scales
        # by something else than its heads' size.
        scalar = self.hidden // self.heads if self.is_gguf and self.layers == 46 else self.head_size
        self.scale = config.number("query_pre_attn_scalar", scalar, minimum=1e-6) ** -0.5
        self.soft_cap = config.number("attn_logit_softcapping", 0.0) or None
        self.final_cap = config.number("final_logit_softcapping", 0.0)
        self.windows = self.windows_of(["full_attention" if layer % 2 else "sliding_attention" for layer in range(self.layers)])

    def window(self, layer: int) -> Optional[int]:
        return self.windows[layer]

    def embed(self, ids: Value) -> Value:
        root = math.sqrt(self.hidden)
        if self.float_type == "bf16":  # the type that the model was trained in
            root = float(np.uint32(int(np.float32(root).view(np.uint32)) + 0x8000 & 0xFFFF0000).view(np.float32))
        return super().embed(ids) * root

    def rms_norm(self, x: Value, name: str) -> Value:
        weight = self.float(self.weight(f"{name}.weight", [int(x.shape[-1])]))
        # GGUF files have the 1 in them
        return x.rms_norm(weight if self.is_gguf else weight + 1.0, self.eps)

    def layer(self, x: Value, name: str, index: int) -> Value:
        mixed = self.attention(self.norm(x, f"{name}.input_layernorm"), f"{name}.self_attn", index)
        x = self.norm(mixed, f"{name}.post_attention_layernorm") + x
        made = self.mlp(self.norm(x, f"{name}.pre_feedforward_layernorm"), f"{name}.mlp")
        return self.norm(made, f"{name}.post_feedforward_layernorm") + x

    def head(self, x: Value) -> Value:
        logits = super().head(x)
        return (logits / self.final_cap).tanh() * self.final_cap if self.final_cap else logits
