"""Cohere's Command A+: Command R7B with experts in all but the first layers, beside experts that
take every token; also with RMS norms."""

from __future__ import annotations

from typing import Tuple

from ..compiler.ir import Value
from ._blocks import FULL, SLIDING
from ._experts import WithExperts
from .cohere2 import Cohere2


class Cohere2Moe(WithExperts, Cohere2):
    types = ("cohere2_moe",)
    architectures: Tuple[str, ...] = ()
    defaults = {**Cohere2.defaults, "head_dim": 128, "num_experts": 8, "num_experts_per_tok": 2}
    keys: "dict[str, tuple[str, ...]]" = {}

    def setup(self) -> None:
        config = self.config
        self.has_rms = config.get("rms_norm_eps") is not None
        if not self.has_rms:
            config.values["rms_norm_eps"] = config.get("layer_norm_eps", 1e-5)
        first, every = config.integer("first_k_dense_replace", 0, minimum=0), config.integer("prefix_dense_sliding_window_pattern", 1)
        layers = config.integer("num_hidden_layers", maximum=1 << 12)
        period = config.integer("sliding_window_pattern", 4)
        if not config.get("layer_types"):
            before = [SLIDING if (layer + 1) % every else FULL for layer in range(min(first, layers))]
            config.values["layer_types"] = before + [SLIDING if (layer + 1) % period else FULL for layer in range(layers - len(before))]
        super().setup()
        self.setup_experts()
        self.by_softmax = config.choice("expert_selection_fn", ("softmax", "sigmoid"), "softmax") == "softmax"
        self.shares_normed = config.flag("norm_topk_prob", True)
        self.shared = config.integer("num_shared_experts", 0, minimum=0, maximum=1 << 12)
        self.of_sum = 0.5 if config.choice("shared_expert_combination_strategy", ("average", "sum"), "average") == "average" else 1.0
        self.kinds = self.of_layers("mlp_layer_types", ("dense", "sparse"), ["dense" if layer < first else "sparse" for layer in range(self.layers)])
        self.dense_size = config.integer("prefix_dense_intermediate_size", self.intermediate)
        self.turns_dense = every == 1

    def norm(self, x: Value, name: str) -> Value:
        return self.rms_norm(x, name) if self.has_rms else self.layer_norm(x, name)

    def turned(self, x: Value, name: str) -> Value:
        layer = self.step.layer
        is_turned = self.windows[layer] is not None or (self.turns_dense and self.kinds[layer] == "dense")
        return self.rope(x) if is_turned else x

    def routed(self, x: Value, name: str) -> Tuple[Value, Value]:
        best, chosen = self.linear(x, name, self.experts, bias=False).topk(self.chosen, -1)
        shares = best.softmax(-1) if self.by_softmax else best.sigmoid()
        return (shares / shares.sum(-1, True) if self.shares_normed and not self.by_softmax else shares), chosen

    def mlp(self, x: Value, name: str) -> Value:
        if self.kinds[self.step.layer] == "dense":
            return self.gated(x, name, self.dense_size)
        made = self.expert_mlp(x, name)
        return (made + self.gated(x, f"{name}.shared_experts", self.intermediate * self.shared)) * self.of_sum if self.shared else made
