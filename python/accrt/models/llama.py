"""Llama 1 to 3, and what has their architecture."""

from __future__ import annotations

from typing import Any

from ._blocks import Decoder


class Llama(Decoder):
    types = architectures = ("llama",)

    def setup_rope(self) -> None:
        super().setup_rope()
        self.interleaved = self.is_gguf  # whose rows of queries and keys are in the order of pairs

    def frequencies(self) -> Any:
        """GGUF files have the scaling of Llama 3 as a tensor of what each frequency is divided
        by."""
        if "rope_freqs.weight" not in self.checkpoint.tensors:
            return super().frequencies()
        plain = self.constant("rope.frequencies", self.rotation.frequencies.astype("f4"))
        return self.step.f.constant(plain) / self.float(self.weight("rope_freqs.weight", [len(self.rotation.frequencies)]))

    def _key(self, name: str) -> str:
        return name if name == "rope_freqs.weight" else super()._key(name)
