"""Mistral: Llama with one window for all layers."""

from __future__ import annotations

from typing import Optional

from ._blocks import Decoder


class Mistral(Decoder):
    types = ("mistral",)
    defaults = {"sliding_window": 4096, "num_key_value_heads": 8, "max_position_embeddings": 131072}

    def setup(self) -> None:
        super().setup()
        self.sliding = self.config.integer("sliding_window", 0, minimum=0)

    def window(self, layer: int) -> Optional[int]:
        return self.sliding or None
