"""Helium: Llama whose rotary embeddings turn neighbours."""

from __future__ import annotations

from ._blocks import Decoder


class Helium(Decoder):
    types = ("helium",)
    defaults = {"rms_norm_eps": 1e-8, "rope_theta": 1e5, "max_position_embeddings": 4096, "head_dim": 128, "num_key_value_heads": 20}
    interleaved = True
