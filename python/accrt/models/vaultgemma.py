"""VaultGemma: Gemma 2 without norms behind attention and MLP."""

from __future__ import annotations

from typing import Tuple

from ..compiler.ir import Value
from .gemma2 import Gemma2


class VaultGemma(Gemma2):
    types = ("vaultgemma",)
    architectures: Tuple[str, ...] = ()

    def layer(self, x: Value, name: str, index: int) -> Value:
        x = self.attention(self.norm(x, f"{name}.input_layernorm"), f"{name}.self_attn", index) + x
        return self.mlp(self.norm(x, f"{name}.pre_feedforward_layernorm"), f"{name}.mlp") + x
