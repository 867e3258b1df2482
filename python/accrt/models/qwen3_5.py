"""Qwen 3.5, dense or with experts, also of models that see images the part that reads text: Qwen 3
Next with a product of its own for each part of a delta net."""

from __future__ import annotations

from typing import Tuple

from ..compiler.ir import Value
from ..compiler.ops import cat
from ._blocks import Decoder
from ._delta_nets import WithDeltaNets
from .qwen2_vl import OfText
from .qwen3_next import Qwen3Next


class OwnProducts(WithDeltaNets):
    """Delta nets whose products are not joined."""

    def of_net(self, x: Value, name: str) -> Tuple[Value, Value, Value, Value]:
        mixed, gate = self.channels_and_gate(x, name)
        beta, steps = (self.linear(x, f"{name}.in_proj_{part}", self.net_heads, False) for part in "ba")
        return mixed, gate, beta, steps

    def of_values(self, x: Value) -> Value:
        """GGUF files have one head of values for each key, then the next one for each key."""
        return cat([x] * (self.net_heads // self.net_keys), 1) if self.is_gguf and self.net_heads > self.net_keys else x


class Qwen3_5Text(OwnProducts, Decoder):
    types: Tuple[str, ...] = ("qwen3_5_text",)
    architectures: Tuple[str, ...] = ("qwen35",)
    turns_part = True
    defaults = {"num_key_value_heads": 4, "head_dim": 256, "partial_rotary_factor": 0.25, "max_position_embeddings": 32768, "intermediate_size": 12288}

    def setup(self) -> None:
        super().setup()
        self.setup_delta_nets()


class Qwen3_5MoeText(OwnProducts, Qwen3Next):
    types: Tuple[str, ...] = ("qwen3_5_moe_text",)
    architectures: Tuple[str, ...] = ("qwen35moe",)
    defaults = {**Qwen3Next.defaults, "num_experts": 256, "num_experts_per_tok": 8}


class Qwen3_5(OfText, Qwen3_5Text):
    types, architectures = ("qwen3_5",), ()


class Qwen3_5Moe(OfText, Qwen3_5MoeText):
    types, architectures = ("qwen3_5_moe",), ()
