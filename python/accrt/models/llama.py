"""Llama 1 to 3, and what has their architecture; also with weights of three values."""

from __future__ import annotations

from ._three_values import WithThreeValues


class Llama(WithThreeValues):
    types = architectures = ("llama",)

    def setup_rope(self) -> None:
        super().setup_rope()
        self.interleaved = self.is_gguf  # whose rows of queries and keys are in the order of pairs
