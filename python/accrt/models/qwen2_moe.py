"""Qwen 1.5 and 2 with experts, of which one takes every token."""

from __future__ import annotations

from ..compiler.ir import Value
from ._blocks import FULL, SLIDING
from .qwen3_moe import Qwen3Moe


class Qwen2Moe(Qwen3Moe):
    types = ("qwen2_moe",)
    architectures = ("qwen2moe",)
    defaults = {"max_window_layers": 28, "sliding_window": 4096, "num_experts": 60, "num_experts_per_tok": 4, "moe_intermediate_size": 1408,
                "shared_expert_intermediate_size": 5632, "max_position_embeddings": 32768}  # fmt: skip
    shares_normed = qk_normed = False
    gguf_names = {**Qwen3Moe.gguf_names, "ffn_gate_inp_shexp": "mlp.shared_expert_gate", "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
                  "ffn_up_shexp": "mlp.shared_expert.up_proj", "ffn_down_shexp": "mlp.shared_expert.down_proj"}  # fmt: skip

    def setup(self) -> None:
        super().setup()
        self.shared_size = self.config.integer("shared_expert_intermediate_size", self.intermediate if self.is_gguf else None)
        self.qkv_bias = True if self.config.flag("qkv_bias", True) else None

    def setup_windows(self) -> None:
        first = self.config.integer("max_window_layers", self.layers, minimum=0)
        if self.config.flag("use_sliding_window"):
            self.windows = self.windows_of([SLIDING if layer % 2 == 0 and layer < first else FULL for layer in range(self.layers)])

    def turned(self, x: Value, name: str) -> Value:
        return self.rope(x)

    def expert_mlp(self, x: Value, name: str) -> Value:
        weight = self.float(self.weight(f"{name}.shared_expert_gate.weight", [self.hidden] if self.is_gguf else [1, self.hidden]))
        gate = (x * weight).sum(-1, True).sigmoid()
        return super().expert_mlp(x, name) + gate * self.gated(x, f"{name}.shared_expert", self.shared_size)
