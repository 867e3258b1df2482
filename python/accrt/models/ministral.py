"""Ministral: Mistral with windows in some layers."""

from __future__ import annotations

from typing import Optional

from ._blocks import FULL, SLIDING, Decoder


class Ministral(Decoder):
    types = ("ministral",)
    defaults = {"sliding_window": 4096, "num_key_value_heads": 8, "max_position_embeddings": 131072}

    def setup(self) -> None:
        super().setup()
        self.windows = self.windows_of([SLIDING if self.config.get("sliding_window") else FULL] * self.layers)

    def window(self, layer: int) -> Optional[int]:
        return self.windows[layer]
