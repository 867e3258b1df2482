"""OLMo 1: Llama whose layer norms have no weights; queries, keys and values may be clipped."""

from __future__ import annotations

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
