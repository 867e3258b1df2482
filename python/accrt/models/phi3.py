"""Phi-3 and 3.5: queries, keys and values are one product, and so are the halves of the MLP; one
window; LongRoPE."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Optional, Tuple

from ..compiler.ir import Value
from ._blocks import Decoder


class Phi3(Decoder):
    types = architectures = ("phi3",)
    defaults = {"rms_norm_eps": 1e-5, "original_max_position_embeddings": 4096, "max_position_embeddings": 4096}
    gguf_names = {"ffn_up": "mlp.gate_up_proj"}
    ignored = (*Decoder.ignored, "rope_factors_long.weight", "rope_factors_short.weight")
    factors = ""

    def setup(self) -> None:
        super().setup()
        self.sliding = self.config.integer("sliding_window", 0, minimum=0)

    def setup_rope(self) -> None:
        """GGUF files have the factors of LongRoPE as tensors, and what cos and sin are multiplied
        by."""
        super().setup_rope()
        if "rope_factors_short.weight" in self.checkpoint.tensors:
            original = self.config.integer("original_max_position_embeddings", self.trained)
            is_long = self.options.max_position > original
            self.factors = f"rope_factors_{'long' if is_long else 'short'}.weight"
            self.trained = self.trained if is_long else min(self.trained, original)
            self.rotation = replace(self.rotation, scale=self.config.number("rope_attention_factor", 1.0))

    def frequencies(self) -> Any:
        if not self.factors:
            return super().frequencies()
        plain = self.constant("rope.frequencies", self.rotation.frequencies.astype("f4"))
        return self.step.f.constant(plain) / self.float(self.weight(self.factors, [len(self.rotation.frequencies)]))

    def _key(self, name: str) -> str:
        return name if name == self.factors else super()._key(name)

    def window(self, layer: int) -> Optional[int]:
        return self.sliding or None

    def qkv(self, x: Value, name: str) -> Tuple[Value, Value, Value]:
        q, k, v = self.split_in_three(self.linear(x, f"{name}.qkv_proj", self.joined_size))
        return self.rope(q), self.rope(k), v

    def mlp(self, x: Value, name: str) -> Value:
        gate, up = self.linear(x, f"{name}.gate_up_proj", 2 * self.intermediate).split([self.intermediate] * 2, -1)
        return self.linear(self.activation(gate) * up, f"{name}.down_proj", self.hidden)
