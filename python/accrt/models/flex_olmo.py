"""FlexOlmo: OLMo 2 with experts in all layers."""

from __future__ import annotations

from typing import Tuple

from ..compiler.ir import Value
from ._experts import WithExperts
from .olmo2 import Olmo2


class FlexOlmo(WithExperts, Olmo2):
    types = ("flex_olmo",)
    architectures: Tuple[str, ...] = ()
    defaults = {"rms_norm_eps": 1e-6, "max_position_embeddings": 4096, "num_experts": 7, "num_experts_per_tok": 5, "rope_theta": 5e5}
    keys = {"num_experts": ("num_local_experts",)}

    def setup(self) -> None:
        super().setup()
        self.setup_experts()
        self.shares_normed = self.config.flag("norm_topk_prob")

    def mlp(self, x: Value, name: str) -> Value:
        return self.expert_mlp(x, name)
