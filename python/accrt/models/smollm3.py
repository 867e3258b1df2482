"""SmolLM 3: Llama with layers, every fourth one, that turn neither queries nor keys."""

from __future__ import annotations

from typing import Optional

from ..compiler.ir import Value
from ._blocks import FULL, SLIDING
from .llama import Llama


class SmolLM3(Llama):
    types = architectures = ("smollm3",)
    defaults = {"num_key_value_heads": 4, "max_position_embeddings": 32768, "rope_theta": 2e6}
    tied = True

    def setup(self) -> None:
        super().setup()
        config = self.config
        every = config.integer("no_rope_layer_interval", 4)
        # 1: the layer turns queries and keys
        turns = self.of_layers("no_rope_layers", (0, 1), [int((layer + 1) % every != 0) for layer in range(self.layers)], may_be_longer=True)
        self.unturned = {f"{self.layer_name.format(i)}.{self.attention_name}.{part}" for i in range(self.layers) for part in "qk" if not turns[i]}
        sliding = config.flag("use_sliding_window")
        windows = self.windows_of([FULL if turn or not sliding else SLIDING for turn in turns])
        self.windows = windows if sliding else [None] * self.layers

    def window(self, layer: int) -> Optional[int]:
        return self.windows[layer]

    def turned(self, x: Value, name: str) -> Value:
        return x if name in self.unturned else super().turned(x, name)
