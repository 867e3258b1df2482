"""EXAONE 4: norms behind attention and MLP alone, and of each query and key; where layers have
windows, those alone have rotary embeddings."""

from __future__ import annotations

from typing import Optional

from ..compiler.ir import Value
from ._blocks import FULL, SLIDING
from .olmo2 import Olmo2


class Exaone4(Olmo2):
    types = architectures = ("exaone4",)
    defaults = {"rms_norm_eps": 1e-5, "sliding_window": 4096}
    all_heads_normed = False

    def setup(self) -> None:
        super().setup()
        config = self.config
        every = config.get("sliding_window_pattern", 4)
        every = len(every) if isinstance(every, str) else config.integer("sliding_window_pattern", 4)
        width = config.integer("sliding_window", 0, minimum=0)
        self.windows = self.windows_of([SLIDING if width and (layer + 1) % max(every, 1) else FULL for layer in range(self.layers)])
        self.turns_all = not width

    def window(self, layer: int) -> Optional[int]:
        return self.windows[layer]

    def turned(self, x: Value, name: str) -> Value:
        x = self.rms_norm(x, f"{name}_norm")
        return self.rope(x) if self.turns_all or self.windows[self.step.layer] else x
