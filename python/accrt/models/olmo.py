"""OLMo 1: Llama whose layer norms have no weights; queries, keys and values may be clipped."""

from __future__ import annotations

from typing import Tuple

from ..compiler.ir import Value
from ._blocks import Decoder


class Olmo(Decoder):
    types = architectures = ("olmo",)

    def setup(self) -> None:
        super().setup()
        self.most_of_qkv = self.config.number("clip_qkv", 0.0)
        self.interleaved = self.is_gguf  # whose rows of queries and keys are in the order of pairs

    def norm(self, x: Value, name: str) -> Value:
        return x.layer_norm(None, None, 1e-5)

    def qkv(self, x: Value, name: str) -> Tuple[Value, Value, Value]:
        sizes = (("q_proj", self.heads), ("k_proj", self.kv_heads), ("v_proj", self.kv_heads))
        made = [self.linear(x, f"{name}.{part}", heads * self.head_size) for part, heads in sizes]
        if self.most_of_qkv:
            made = [y.clamp(-self.most_of_qkv, self.most_of_qkv) for y in made]
        q, k, v = (self.split_heads(y, heads) for y, (_part, heads) in zip(made, sizes))
        return self.rope(q), self.rope(k), v
