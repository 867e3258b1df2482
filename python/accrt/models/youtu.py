"""Youtu-LLM: keys and values of latents as DeepSeek V3 has them, and no experts."""

from __future__ import annotations

from ._latents import WithLatents


class Youtu(WithLatents):
    types = ("youtu",)
    defaults = {"q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "max_position_embeddings": 131072}
    tied = True

    def setup(self) -> None:
        super().setup()
        self.interleaved = self.config.flag("rope_interleave", True)
