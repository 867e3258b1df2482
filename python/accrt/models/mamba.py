"""Mamba 1: mixers alone, without attention and without MLPs."""

from __future__ import annotations

from typing import Any, Mapping, Tuple

from ..compiler.ir import Value
from ._scans import WithMamba1


class Mamba(WithMamba1):
    types: Tuple[str, ...] = ("mamba",)
    prefix, embedding_name, final_norm = "backbone.", "embeddings", "norm_f"
    keys = {"rms_norm_eps": ("layer_norm_epsilon",)}
    defaults: Mapping[str, Any] = {"num_attention_heads": 1, "layer_norm_epsilon": 1e-5, "max_position_embeddings": 1 << 20}
    tied = True

    def setup(self) -> None:
        super().setup()
        self.setup_mamba1()

    def setup_rope(self) -> None:
        """There are none."""

    def layer(self, x: Value, name: str, index: int) -> Value:
        return x + self.mamba1(self.norm(x, f"{name}.norm"), f"{name}.mixer", index)
