"""Granite 3 with experts, also with a part that takes every token: Granite whose MLPs are experts,
with one tensor for all experts of a layer."""

from __future__ import annotations

from typing import List, Sequence, Tuple

from ..compiler.ir import Value
from ._experts import WithExperts
from .granite import Granite


class GraniteMoe(WithExperts, Granite):
    types = ("granitemoe", "granitemoeshared")
    architectures: Tuple[str, ...] = ("granitemoe",)
    gguf_names = {"ffn_gate_inp": "block_sparse_moe.router.layer", "ffn_gate_exps": "block_sparse_moe.experts.gate", "ffn_up_exps": "block_sparse_moe.experts.up",
                  "ffn_down_exps": "block_sparse_moe.experts.output_linear", "ffn_gate_shexp": "shared_mlp.gate", "ffn_up_shexp": "shared_mlp.up",
                  "ffn_down_shexp": "shared_mlp.output_linear"}  # fmt: skip
    defaults = {"num_local_experts": 8, "num_experts_per_tok": 2}
    count_key, router_name, experts_name = "num_local_experts", "router.layer", ""
    parts = ("gate", "up", "output_linear")

    def setup(self) -> None:
        super().setup()
        self.shared_size = self.config.integer("shared_expert_intermediate_size" if self.is_gguf else "shared_intermediate_size", 0, minimum=0)
        self.setup_mixture()

    def setup_mixture(self) -> None:
        self.setup_experts()

    def routed(self, x: Value, name: str) -> Tuple[Value, Value]:
        best, chosen = self.linear(x, name, self.experts, bias=False).topk(self.chosen, -1)
        return best.softmax(-1), chosen

    def layer(self, x: Value, name: str, index: int) -> Value:
        of_residual = self.factor("of_residual", self.of_residual)
        x = self.attention(self.norm(x, f"{name}.input_layernorm"), f"{name}.self_attn", index) * of_residual + x
        return self.mixed(self.norm(x, f"{name}.post_attention_layernorm"), name) * of_residual + x

    def mixed(self, x: Value, name: str) -> Value:
        made = self.expert_mlp(x, f"{name}.block_sparse_moe")
        return made + self.shared(x, f"{name}.shared_mlp") if self.shared_size else made

    def shared(self, x: Value, name: str) -> Value:
        if self.is_gguf:  # whose files have both parts
            gate, up = (self.linear(x, f"{name}.{part}", self.shared_size) for part in ("gate", "up"))
        else:
            gate, up = self.linear(x, f"{name}.input_linear", 2 * self.shared_size).split([self.shared_size] * 2, -1)
        return self.linear(self.activation(gate) * up, f"{name}.output_linear", self.hidden)

    # -- their matrices

    def _shape(self, part: str) -> Sequence[int]:
        if self.is_gguf:
            return super()._shape(part)
        return [self.experts, self.hidden, self.expert_size] if part == self.parts[2] else [self.experts, 2 * self.expert_size, self.hidden]

    def _all(self, name: str, part: str) -> List[Value]:
        if self.is_gguf:
            return super()._all(f"{name}experts", part)
        tensor = part if part == self.parts[2] else "input_linear"
        found = self.step.f.constant(self.weight(f"{name}{tensor}.weight", self._shape(part)))
        if tensor != part:
            first = 0 if part == "gate" else self.expert_size
            found = found.slice(1, first, first + self.expert_size)
        return [found]
