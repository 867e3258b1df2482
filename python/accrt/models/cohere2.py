"""Cohere's Command R7B and Command A: layers with a window, which alone have rotary embeddings, and
every fourth one without."""

from __future__ import annotations

from typing import Optional

from ..compiler.ir import Value
from ._blocks import FULL, SLIDING
from .cohere import Cohere


class Cohere2(Cohere):
    types = architectures = ("cohere2",)
    defaults = {**Cohere.defaults, "sliding_window": 4096, "rope_theta": 1e4}

    def setup(self) -> None:
        super().setup()
        every = self.config.integer("sliding_window_pattern", 4)
        self.windows = self.windows_of([SLIDING if (layer + 1) % every else FULL for layer in range(self.layers)])

    def window(self, layer: int) -> Optional[int]:
        return self.windows[layer]

    def turned(self, x: Value, name: str) -> Value:
        return x if self.windows[self.step.layer] is None else super().turned(x, name)
