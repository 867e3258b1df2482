"""Qwen 3 with experts, in all layers or in some."""

from __future__ import annotations

from typing import Tuple

from ..compiler.ir import Value
from ._experts import WithExperts
from .qwen3 import Qwen3


class Qwen3Moe(WithExperts, Qwen3):
    types = ("qwen3_moe",)
    architectures: Tuple[str, ...] = ("qwen3moe", "qwen3vlmoe")
    defaults = {"sliding_window": 4096, "num_key_value_heads": 4, "num_local_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768,
                "max_position_embeddings": 32768}  # fmt: skip
    qk_normed = True
    keys = {"num_experts": ("num_local_experts",)}  # as transformers 5 saves it

    def setup(self) -> None:
        super().setup()
        config = self.config
        self.setup_experts("moe_intermediate_size")
        self.shares_normed = config.flag("norm_topk_prob", self.is_gguf and self.shares_normed)
        if config.flag("use_qk_norm", self.qk_normed) != self.qk_normed:
            config.refuse(f"config: use_qk_norm is {not self.qk_normed}, which this family does not do")
        every, plain = config.integer("decoder_sparse_step", 1), config.get("mlp_only_layers", [])
        if not isinstance(plain, list) or not all(isinstance(layer, int) for layer in plain):
            config.refuse(f"config: mlp_only_layers is {plain!r}, expected a list of layers")
            plain = []
        self.plain = [layer in plain or (layer + 1) % every != 0 for layer in range(self.layers)]
        self.setup_windows()

    def setup_windows(self) -> None:
        """One for all layers."""
        if self.config.flag("use_sliding_window"):
            self.windows = [self.config.integer("sliding_window", 0, minimum=0) or None] * self.layers

    def mlp(self, x: Value, name: str) -> Value:
        return super().mlp(x, name) if self.plain[self.step.layer] else self.expert_mlp(x, name)
