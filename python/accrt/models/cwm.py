"""CWM (Code World Model): Llama with attention windows in three layers of four."""

from __future__ import annotations

from typing import Optional

from ._blocks import FULL, SLIDING, Decoder


class Cwm(Decoder):
    types = ("cwm",)
    defaults = {"rms_norm_eps": 1e-5, "sliding_window": 8192, "max_position_embeddings": 131072, "num_key_value_heads": 8, "head_dim": 128, "rope_theta": 1e6,
                "rope_parameters": {"rope_type": "llama3", "rope_theta": 1e6, "factor": 16.0, "original_max_position_embeddings": 8192, "low_freq_factor": 1.0,
                                    "high_freq_factor": 4.0}}  # fmt: skip

    def setup(self) -> None:
        super().setup()
        self.windows = self.windows_of([SLIDING if layer % 4 else FULL for layer in range(self.layers)])

    def window(self, layer: int) -> Optional[int]:
        return self.windows[layer]
