"""OLMo 3: OLMo 2 with windows in three layers of four, whose rotary embeddings are not scaled."""

from __future__ import annotations

from ._blocks import FULL, SLIDING
from ._ropes import TwoRopes
from .olmo2 import Olmo2


class Olmo3(TwoRopes, Olmo2):
    types = ("olmo3",)
    architectures = ("olmo2 with windows",)
    defaults = {"rms_norm_eps": 1e-5, "sliding_window": 4096}
    theta = local_theta = 5e5

    def setup_rope(self) -> None:
        if self.is_gguf:  # which has one base for both
            self.config.values.setdefault("rope_local_base_freq", self.config.get("rope_theta", self.theta))
        super().setup_rope()

    def setup(self) -> None:
        super().setup()
        self.windows = self.windows_of([SLIDING if (layer + 1) % 4 else FULL for layer in range(self.layers)])
