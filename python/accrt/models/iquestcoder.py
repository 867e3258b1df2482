"""IQuest-Coder: Llama."""

from __future__ import annotations

from ._blocks import Decoder


class IQuestCoder(Decoder):
    types = ("iquestcoder",)
    defaults = {"rms_norm_eps": 1e-5, "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 131072}
