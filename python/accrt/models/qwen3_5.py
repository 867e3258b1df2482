"""Qwen 3.5, dense or with experts, also of models that see images the part that reads text: Qwen 3
Next with a product of its own for each part of a delta net."""

from __future__ import annotations

from typing import Tuple

from ..compiler.ir import Value
from ._blocks import Decoder
from ._delta_nets import WithDeltaNets
from .qwen2_vl import OfText
from .qwen3_next import Qwen3Next


class OwnProducts(WithDeltaNets):
    """Delta nets whose products are not joined."""

    def of_net(self, x: Value, name: str) -> Tuple[Value, Value, Value, Value]:
        heads = self.net_heads
        gate = self.linear(x, f"{name}.in_proj_z", heads * self.net_value, False).view([x.shape[0], heads, self.net_value])
        mixed, beta, steps = (self.linear(x, f"{name}.in_proj_{part}", size, False) for part, size in (("qkv", self.channels), ("b", heads), ("a", heads)))
        return mixed, gate, beta, steps

    def leave_out_predictors(self) -> None:
        """What predicts more tokens than the next: nothing else reads it."""
        self.checkpoint.unused += tuple(name for name in self.checkpoint.tensors if name.startswith("mtp."))


class Qwen3_5Text(OwnProducts, Decoder):
    types: Tuple[str, ...] = ("qwen3_5_text",)
    defaults = {"num_key_value_heads": 4, "head_dim": 256, "partial_rotary_factor": 0.25, "max_position_embeddings": 32768, "intermediate_size": 12288}

    def setup(self) -> None:
        super().setup()
        self.setup_delta_nets()
        self.leave_out_predictors()


class Qwen3_5MoeText(OwnProducts, Qwen3Next):
    types: Tuple[str, ...] = ("qwen3_5_moe_text",)
    defaults = {**Qwen3Next.defaults, "num_experts": 256, "num_experts_per_tok": 8}

    def setup(self) -> None:
        super().setup()
        self.leave_out_predictors()


class Qwen3_5(OfText, Qwen3_5Text):
    types = ("qwen3_5",)


class Qwen3_5Moe(OfText, Qwen3_5MoeText):
    types = ("qwen3_5_moe",)
