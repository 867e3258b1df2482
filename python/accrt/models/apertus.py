"""Apertus: norms of queries and keys, an MLP without a gate whose activation (xIELU) has numbers of
its own in every layer."""

from __future__ import annotations

from typing import Any, List

import numpy as np

from ..compiler.ir import Value
from ._blocks import Decoder


_PARTS = ("alpha_p", "alpha_n", "beta", "eps")


class Apertus(Decoder):
    types = architectures = ("apertus",)
    gguf_names = {"attn_norm": "attention_layernorm", "ffn_norm": "feedforward_layernorm"}
    gguf_keys = {f"xielu.{part}": f"xielu_{part}" for part in _PARTS}
    defaults = {"rms_norm_eps": 1e-5, "max_position_embeddings": 65536, "hidden_act": "xielu", "rope_theta": 12e6,
                "rope_parameters": {"rope_type": "llama3", "rope_theta": 12e6, "factor": 8.0, "original_max_position_embeddings": 8192, "low_freq_factor": 1.0,
                                    "high_freq_factor": 4.0}}  # fmt: skip

    def setup(self) -> None:
        config = self.config
        given = self.checkpoint.config
        # either form, not both
        if given.get("rope_scaling") is not None or given.get("rope_theta") is not None:
            config.values["rope_parameters"] = given.get("rope_parameters")
        if config.choice("hidden_act", ("xielu",), "xielu") == "xielu":
            config.values["hidden_act"] = "silu"  # nothing uses it
        super().setup()
        if config.flag("post_norm") or not config.flag("qk_norm", True):
            config.refuse("config: post_norm, or no qk_norm, which this family does not do")
        if self.is_gguf:
            self.of_layer = {part: self._of_layers(f"xielu_{part}") for part in _PARTS}

    def _of_layers(self, key: str) -> List[float]:
        """A number for each layer, which files have as metadata, or one for all."""
        given: Any = self.config.get(key)
        found = given if isinstance(given, list) else [given] * self.layers
        if len(found) != self.layers or not all(isinstance(number, float) and abs(number) < 1e30 for number in found):
            self.config.refuse(f"metadata: {key.replace('_', '.', 1)} is {given!r}, expected a number for each layer")
            return [0.0] * self.layers
        return found

    def _number(self, name: str, part: str) -> Value:
        if not self.is_gguf:
            return self.float(self.weight(f"{name}.{part}", [1] if part in _PARTS[:2] else []))
        by = np.array([self.of_layer[part][self.step.layer]], np.float32)
        return self.step.f.constant(self.constant(f"xielu.{self.step.layer}.{part}", by))

    def turned(self, x: Value, name: str) -> Value:
        return self.rope(self.rms_norm(x, f"{name}_norm"))

    def mlp(self, x: Value, name: str) -> Value:
        return self.linear(self._xielu(self.linear(x, f"{name}.up_proj", self.intermediate), f"{name}.act_fn"), f"{name}.down_proj", self.hidden)

    def _xielu(self, x: Value, name: str) -> Value:
        """a x^2 + b x above 0, and (e^x - 1 - x) c + b x below."""
        above, below, beta, most = (self._number(name, part) for part in _PARTS)
        above, below = above.softplus(), below.softplus()
        small = x.minimum(most)
        return (x > 0).where(above * x * x, (small.expm1() - x) * (beta + below)) + beta * x

    def layer(self, x: Value, name: str, index: int) -> Value:
        x = self.attention(self.norm(x, f"{name}.attention_layernorm"), f"{name}.self_attn", index) + x
        return self.mlp(self.norm(x, f"{name}.feedforward_layernorm"), f"{name}.mlp") + x
