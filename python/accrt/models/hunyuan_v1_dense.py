"""Hunyuan, dense: Llama with norms of queries and keys after they are turned; where rotary
embeddings are scaled by alpha, their base is larger."""

from __future__ import annotations

from typing import Any

from ..compiler.ir import Value
from . import _rope
from ._blocks import Decoder


class HunyuanDense(Decoder):
    types, architectures = ("hunyuan_v1_dense",), ("hunyuan-dense",)
    gguf_names = {"attn_q_norm": "self_attn.query_layernorm", "attn_k_norm": "self_attn.key_layernorm"}
    defaults = {"rms_norm_eps": 1e-5}

    def setup(self) -> None:
        super().setup()
        if not self.config.flag("use_qk_norm", True):
            self.config.refuse("config: use_qk_norm is false, which this family does not do")
        self.config.flag("use_cla")

    def setup_rope(self) -> None:
        config = self.config
        theta, given = _rope.settings(config)
        alpha: Any = given.get("alpha")
        if given["rope_type"] == "dynamic" and isinstance(alpha, (int, float)) and not isinstance(alpha, bool) and 0 < alpha < 1e9:
            larger = theta * float(alpha) ** (self.head_size / max(self.head_size - 2, 1))
            self.config = config.changed(rope_parameters=None, rope_scaling=None, rope_theta=larger)
        super().setup_rope()

    def turned(self, x: Value, name: str) -> Value:
        part = "query" if name.endswith(".q") else "key"
        return self.rms_norm(self.rope(x), f"{name[:-1]}{part}_layernorm")
