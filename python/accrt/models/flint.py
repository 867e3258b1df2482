"""Flint: Qwen 3 with experts that a sigmoid chooses, beside an MLP that takes every token; layers
with windows alone have rotary embeddings, and all have sinks."""

from __future__ import annotations

from typing import Optional, Tuple

from ..compiler.ir import Value
from ._blocks import FULL, SLIDING
from ._ropes import TurnedInWindows
from .qwen3_moe import Qwen3Moe


class Flint(TurnedInWindows, Qwen3Moe):
    types, architectures = ("flint",), ()
    defaults = {"num_key_value_heads": 4, "head_dim": 128, "max_position_embeddings": 262144, "sliding_window": 513, "num_experts": 256, "num_experts_per_tok": 6,
                "moe_intermediate_size": 512, "shared_expert_intermediate_size": 1024, "norm_topk_prob": True}  # fmt: skip

    def setup(self) -> None:
        if self.config.get("mlp_only_layers") is None:  # also where it is null
            self.config.values["mlp_only_layers"] = [0, 1]
        super().setup()
        self.shared_size = self.config.integer("shared_expert_intermediate_size")

    def setup_windows(self) -> None:
        """The first two layers see all, then every fourth one, and the last."""
        last = self.layers - 1
        self.windows = self.windows_of([FULL if layer < 2 or layer % 4 == 1 or layer == last else SLIDING for layer in range(self.layers)])

    def sinks(self, layer: int) -> Optional[Value]:
        name = f"{self.layer_name.format(layer)}.{self.attention_name}"
        published = f"{name}.softmax_offset"
        return self.float(self.weight(published if self.has(published) else f"{name}.sinks", [self.heads]))

    def routed(self, x: Value, name: str) -> Tuple[Value, Value]:
        shares, chosen = self.linear(x, name, self.experts, bias=False).sigmoid().topk(self.chosen, -1)
        return (shares / shares.sum(-1, True) if self.shares_normed else shares), chosen

    def expert_mlp(self, x: Value, name: str) -> Value:
        return super().expert_mlp(x, name) + self.gated(x, f"{name}.shared_expert", self.shared_size)
