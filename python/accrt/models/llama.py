"""Llama 1 to 3, and what has their architecture."""

from __future__ import annotations

from ._blocks import Decoder


class Llama(Decoder):
    types = architectures = ("llama",)

    def setup_rope(self) -> None:
        super().setup_rope()
        self.interleaved = self.is_gguf  # whose rows of queries and keys are in the order of pairs
