"""dots.llm1: Qwen 3 with the experts of DeepSeek V3, and with windows in the later layers."""

from __future__ import annotations

from ._blocks import FULL, SLIDING
from ._mixtures import WithGroups
from .qwen3 import Qwen3


class Dots1(WithGroups, Qwen3):
    types = ("dots1",)
    architectures = ("dots1",)
    defaults = {"sliding_window": 4096, "max_window_layers": 62, "max_position_embeddings": 2048, "moe_intermediate_size": 1408}

    def setup(self) -> None:
        super().setup()
        config = self.config
        config.choice("scoring_func", ("noaux_tc", "sigmoid"), "sigmoid")
        config.choice("topk_method", ("noaux_tc",), "noaux_tc")
        # no switch turns them off, as in Qwen
        first = config.integer("max_window_layers", self.layers, minimum=0)
        self.windows = self.windows_of([SLIDING if layer >= first else FULL for layer in range(self.layers)])
        self.setup_groups()
