"""Falcon-H1: each layer has attention and a mixer of Mamba 2 side by side; many parts are
multiplied by numbers of the configuration."""

from __future__ import annotations

from typing import Any, List, Optional

import numpy as np

from ..compiler.ir import Value
from ._scans import WithMamba2, keys_in_files, names_in_files


class FalconH1(WithMamba2):
    types, architectures = ("falcon_h1",), ("falcon-h1",)
    # files have the numbers that multiply parts in their matrices
    gguf_names = {**names_in_files("mamba"), "ffn_norm": "pre_ff_layernorm", "ffn_norm.": "pre_ff_layernorm.weight", "ffn_gate": "feed_forward.gate_proj",
                  "ffn_up": "feed_forward.up_proj", "ffn_down": "feed_forward.down_proj"}  # fmt: skip
    gguf_keys = keys_in_files("mamba_d_conv", "mamba_n_heads", "mamba_n_groups", "mamba_d_state")
    final_norm = "final_layernorm"
    defaults = {"num_key_value_heads": 8, "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "intermediate_size": 14336, "mamba_d_ssm": 1024}

    def setup(self) -> None:
        super().setup()
        config = self.config
        self.setup_mamba(config.integer("mamba_d_ssm", 0, minimum=0))
        config.get("layer_types")
        self.mamba_normed, self.norm_first = config.flag("mamba_rms_norm"), config.flag("mamba_norm_before_gate", True)
        self.out_has_bias = config.flag("projectors_bias")
        self.of_parts = self._numbers("ssm_multipliers", 5)
        self.of_gate, self.of_down = self._numbers("mlp_multipliers", 2)
        for name in ("lm_head_multiplier", "embedding_multiplier", "key_multiplier", "attention_out_multiplier", "attention_in_multiplier", "ssm_in_multiplier", "ssm_out_multiplier"):
            setattr(self, "of_" + name.replace("_multiplier", ""), config.number(name, 1.0, minimum=-1e30))

    def _numbers(self, key: str, count: int) -> List[float]:
        given: Any = self.config.get(key) or [1.0] * count
        if not isinstance(given, list) or len(given) != count or any(isinstance(one, bool) or not isinstance(one, (int, float)) or not abs(one) < 1e30 for one in given):
            self.config.refuse(f"config: {key} is {given!r}, expected {count} numbers")
            return [1.0] * count
        return [float(one) for one in given]

    def attends(self, layer: int) -> bool:
        return True

    @property
    def out_bias(self) -> Optional[bool]:
        return None if self.is_gguf else self.out_has_bias

    def times(self, x: Value, name: str) -> Value:
        """A tensor, so that kernels are the same for all numbers."""
        number = getattr(self, f"of_{name}")
        return x if number == 1 else x * self.step.f.constant(self.constant(f"of_{name}", np.array([number], np.float32)))

    def embed(self, ids: Value) -> Value:
        return self.times(super().embed(ids), "embedding")

    def head(self, x: Value) -> Value:
        return self.times(super().head(x), "lm_head")

    def turned(self, x: Value, name: str) -> Value:
        return self.rope(self.times(x, "key") if name.endswith(".k") else x)

    def taken(self, x: Value) -> Value:
        if self.is_gguf:
            return x
        own = self.mamba_groups * self.state_size
        sizes = (self.inner, self.inner, own, own, self.mamba_heads)
        by = np.concatenate([np.full(size, number, np.float32) for size, number in zip(sizes, self.of_parts)])
        return x * self.step.f.constant(self.constant("of_parts", by))

    def layer(self, x: Value, name: str, index: int) -> Value:
        normed = self.norm(x, f"{name}.input_layernorm")
        mixed = self.times(self.mamba(self.times(normed, "ssm_in"), f"{name}.mamba", index), "ssm_out")
        x = x + mixed + self.times(self.attention(self.times(normed, "attention_in"), f"{name}.{self.attention_name}", index), "attention_out")
        return x + self.mlp(self.norm(x, f"{name}.pre_ff_layernorm"), f"{name}.feed_forward")

    def gated(self, x: Value, name: str, size: int) -> Value:
        gate, up = (self.linear(x, f"{name}.{part}_proj", size) for part in ("gate", "up"))
        return self.times(self.linear(up * self.activation(self.times(gate, "gate")), f"{name}.down_proj", self.hidden), "down")
