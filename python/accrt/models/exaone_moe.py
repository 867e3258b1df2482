"""K-EXAONE: EXAONE 4 with norms before attention and MLP, and with the experts of DeepSeek V3 in
all but some layers."""

from __future__ import annotations

from typing import Tuple

from ..compiler.ir import Value
from ._blocks import Decoder
from ._mixtures import WithGroups
from .exaone4 import Exaone4


class ExaoneMoe(WithGroups, Exaone4):
    types = ("exaone_moe",)
    architectures: Tuple[str, ...] = ()
    defaults = {**Exaone4.defaults, "max_position_embeddings": 2048, "moe_intermediate_size": 1024, "num_experts": 64, "num_experts_per_tok": 8, "num_shared_experts": 1,
                "norm_topk_prob": True, "routed_scaling_factor": 2.5, "first_k_dense_replace": 1, "num_key_value_heads": 32}  # fmt: skip
    keys = {"n_shared_experts": ("num_shared_experts",)}
    count_key = "num_experts"

    def setup(self) -> None:
        super().setup()
        self.setup_groups()
        self.kinds = self.of_layers("mlp_layer_types", ("dense", "sparse"), ["dense" if layer < self.first else "sparse" for layer in range(self.layers)])

    def layer(self, x: Value, name: str, index: int) -> Value:
        return Decoder.layer(self, x, name, index)

    def bias_of(self, name: str) -> str:
        return f"{name.rpartition('.')[0]}.e_score_correction_bias"

    def is_dense(self, layer: int) -> bool:
        return self.kinds[layer] == "dense"
