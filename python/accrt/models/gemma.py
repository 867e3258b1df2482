"""Gemma: norms that multiply by 1 + w, embeddings that are scaled by the root of their size, a tied
head, an MLP with GELU."""

from __future__ import annotations

import math

import numpy as np

from ..compiler.ir import Value
from ._blocks import Decoder


class Gemma(Decoder):
    types = architectures = ("gemma",)
    defaults = {"head_dim": 256, "max_position_embeddings": 8192}
    tied = True
    act = "gelu_pytorch_tanh"

    def setup(self) -> None:
        config = self.config
        # files of the first days say gelu, and mean the other one
        if config.values.get("hidden_act") == "gelu":
            config.values["hidden_act"] = self.act
        named = config.get("hidden_activation")
        if named is not None:
            config.values["hidden_act"] = named
        super().setup()

    def embed(self, ids: Value) -> Value:
        root = math.sqrt(self.hidden)
        if self.float_type == "bf16":  # the type that the model was trained in
            root = float(np.uint32(int(np.float32(root).view(np.uint32)) + 0x8000 & 0xFFFF0000).view(np.float32))
        return super().embed(ids) * root

    def rms_norm(self, x: Value, name: str) -> Value:
        weight = self.float(self.weight(f"{name}.weight", [int(x.shape[-1])]))
        # GGUF files have the 1 in them
        return x.rms_norm(weight if self.is_gguf else weight + 1.0, self.eps)
