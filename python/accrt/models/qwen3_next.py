"""Qwen 3 Next: three layers of four have a gated delta net, the fourth attention with a gate behind
it; experts beside an MLP that takes every token."""

from __future__ import annotations

from typing import List, Optional, Sequence, Tuple

from ._delta_nets import WithDeltaNets
from .qwen2_moe import Qwen2Moe


class Qwen3Next(WithDeltaNets, Qwen2Moe):
    types: Tuple[str, ...] = ("qwen3_next",)
    architectures: Tuple[str, ...] = ("qwen3next",)
    turns_part = True
    gguf_names = {**Qwen2Moe.gguf_names, **WithDeltaNets.gguf_names}
    shares_normed = True
    defaults = {"num_key_value_heads": 2, "head_dim": 256, "partial_rotary_factor": 0.25, "max_position_embeddings": 32768, "intermediate_size": 5632, "num_experts": 512,
                "num_experts_per_tok": 10, "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512, "norm_topk_prob": True, "rms_norm_eps": 1e-6}  # fmt: skip

    def setup(self) -> None:
        super().setup()
        self.setup_delta_nets()

    def windows_of(self, default: Sequence[str]) -> List[Optional[int]]:
        return [None] * self.layers
