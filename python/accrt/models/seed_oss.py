"""Seed-OSS: Llama with biases of queries, keys and values."""

from __future__ import annotations

from ._blocks import Decoder


class SeedOss(Decoder):
    types = architectures = ("seed_oss",)
    gguf_names = {"post_attention_norm": "post_attention_layernorm"}  # which stands before the MLP
    defaults = {"num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 524288}

    def setup(self) -> None:
        super().setup()
        self.config.flag("attention_out_bias")  # the tensors say it
