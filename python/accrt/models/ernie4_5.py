"""ERNIE 4.5, dense: Llama whose rotary embeddings turn neighbours."""

from __future__ import annotations

from ._blocks import Decoder


class Ernie45(Decoder):
    types = architectures = ("ernie4_5",)
    defaults = {"rms_norm_eps": 1e-5, "num_key_value_heads": 2, "head_dim": 128, "max_position_embeddings": 131072, "rope_theta": 5e5}
    tied = interleaved = True

    def setup(self) -> None:
        super().setup()
        self.config.flag("use_bias")  # the tensors say it
