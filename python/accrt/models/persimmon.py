"""Persimmon: one product for queries, keys and values, norms of queries and keys, a part of each
head is turned, an MLP without a gate."""

from __future__ import annotations

from typing import Tuple

from ..compiler.ir import Value
from ._blocks import Decoder


class Persimmon(Decoder):
    types = ("persimmon",)
    turns_part = True
    defaults = {"layer_norm_eps": 1e-5, "partial_rotary_factor": 0.5, "max_position_embeddings": 16384, "qk_layernorm": True}
    keys = {"rms_norm_eps": ("layer_norm_eps",)}
    final_norm, output_name = "final_layernorm", "dense"
    act = "relu2"

    def setup(self) -> None:
        self.config.values.pop("num_key_value_heads", None)  # each head has its own
        super().setup()
        self.qk_normed = self.config.flag("qk_layernorm", True)

    def norm(self, x: Value, name: str) -> Value:
        return self.layer_norm(x, name)

    def turned(self, x: Value, name: str) -> Value:
        return self.rope(self.layer_norm(x, f"{name}_layernorm") if self.qk_normed else x)

    def qkv(self, x: Value, name: str) -> Tuple[Value, Value, Value]:
        q, k, v = self.split_groups(self.linear(x, f"{name}.query_key_value", self.joined_size))
        return self.turned(q, f"{name}.q"), self.turned(k, f"{name}.k"), v

    def mlp(self, x: Value, name: str) -> Value:
        return self.in_two(x, name, "dense_h_to_4h", "dense_4h_to_h")
