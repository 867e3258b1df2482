"""MiniCPM 3: keys and values of latents; embeddings, residual sums and logits are multiplied by
numbers of the configuration."""

from __future__ import annotations

import math
from typing import Tuple

from ..compiler.ir import Value
from ._latents import WithLatents
from ._ropes import FactorsInFiles
from .granite import Granite


class MiniCPM3(FactorsInFiles, WithLatents, Granite):
    types = architectures = ("minicpm3",)
    defaults = {"q_lora_rank": 768, "kv_lora_rank": 256, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "scale_emb": 12, "scale_depth": 1.4,
                "dim_model_base": 256, "rms_norm_eps": 1e-5, "max_position_embeddings": 32768}  # fmt: skip

    tied = True
    #: What files do not say: of the one size that there is.
    in_files = {"scale_emb": 12.0, "scale_depth": 1.4, "dim_model_base": 256}

    def setup(self) -> None:
        super().setup()
        config = self.config
        if self.is_gguf:
            config.values.update(self.in_files)
        self.of_embedding = config.number("scale_emb", 1.0)
        self.of_residual = config.number("scale_depth", math.sqrt(self.layers)) / math.sqrt(self.layers)
        self.divisor = self.hidden / config.number("dim_model_base", self.hidden, minimum=1e-6)

    def qkv(self, x: Value, name: str) -> Tuple[Value, Value, Value]:
        return WithLatents.qkv(self, x, name)
