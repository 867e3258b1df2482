"""Qwen 2 and 2.5: Llama with biases of queries, keys and values, and with windows in the later
layers where they are switched on."""

from __future__ import annotations

from typing import Optional

from ._blocks import FULL, SLIDING, Decoder


class Qwen2(Decoder):
    # of files of models that see images, the part for text
    types, architectures = ("qwen2",), ("qwen2", "qwen2vl")
    defaults = {"max_window_layers": 28, "sliding_window": 4096, "max_position_embeddings": 32768}
    qkv_bias = True

    def setup(self) -> None:
        super().setup()
        first = self.config.integer("max_window_layers", self.layers, minimum=0)
        windows = self.windows_of([SLIDING if layer >= first else FULL for layer in range(self.layers)])
        self.windows = windows if self.config.flag("use_sliding_window") else [None] * self.layers

    def window(self, layer: int) -> Optional[int]:
        return self.windows[layer]
