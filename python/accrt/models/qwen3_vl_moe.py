"""Qwen 3 VL with experts, which sees images: the part that reads text, which is a Qwen 3 with
experts."""

from __future__ import annotations

from typing import Tuple

from .qwen2_vl import OfText
from .qwen3_moe import Qwen3Moe


class Qwen3VLMoe(OfText, Qwen3Moe):
    types = ("qwen3_vl_moe",)
    architectures: Tuple[str, ...] = ()
    tied = True
    defaults = {"num_key_value_heads": 16, "num_experts": 60, "num_experts_per_tok": 4, "moe_intermediate_size": 1408, "max_position_embeddings": 128000, "rope_theta": 5e5,
                "norm_topk_prob": True}  # fmt: skip

    def setup(self) -> None:
        super().setup()
        self.shares_normed = True  # whatever a configuration says
