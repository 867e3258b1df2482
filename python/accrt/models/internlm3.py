"""InternLM 3: Llama, with biases where the checkpoint has them."""

from __future__ import annotations

from .llama import Llama


class InternLM3(Llama):
    types = ("internlm3",)
    architectures = ()
    defaults = {"rms_norm_eps": 1e-5, "num_key_value_heads": 2, "head_dim": 128, "max_position_embeddings": 32768}

    def setup(self) -> None:
        super().setup()
        for name in ("bias", "qkv_bias"):  # the tensors say it
            self.config.flag(name)
