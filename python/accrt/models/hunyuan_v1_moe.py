"""Hunyuan with experts: the dense one with experts in all layers, beside one more MLP that takes
every token."""

from __future__ import annotations

from ..compiler.ir import Value
from ._experts import WithExperts
from .hunyuan_v1_dense import HunyuanDense


class HunyuanMoe(WithExperts, HunyuanDense):
    types, architectures = ("hunyuan_v1_moe",), ("hunyuan-moe",)
    gguf_names = {**HunyuanDense.gguf_names, **WithExperts.gguf_names, "ffn_gate_inp": "mlp.gate.wg", "ffn_gate_shexp": "mlp.shared_mlp.gate_proj",
                  "ffn_up_shexp": "mlp.shared_mlp.up_proj", "ffn_down_shexp": "mlp.shared_mlp.down_proj"}  # fmt: skip
    gguf_keys = {"expert_shared_feed_forward_length": ""}
    router_name = "gate.wg"
    #: What may be one number, or a list of one for each layer.
    _LISTS = ("num_experts", "moe_topk", "num_shared_expert", "moe_intermediate_size")

    def setup(self) -> None:
        config = self.config
        for key in self._LISTS:
            self._one_for_all(key)
        if config.get("num_experts_per_tok") is None and config.get("moe_topk") is not None:
            config.values["num_experts_per_tok"] = config.get("moe_topk")
        super().setup()
        self.setup_experts()
        size = config.integer("moe_intermediate_size", self.expert_size)
        for key, value, wanted in (("moe_intermediate_size", size, self.expert_size), ("num_shared_expert", config.integer("num_shared_expert", 1), 1),
                                   ("use_mixed_mlp_moe", config.flag("use_mixed_mlp_moe", True), True), ("moe_layer_num_skipped", config.integer("moe_layer_num_skipped", 0, minimum=0), 0)):  # fmt: skip
            if value != wanted:
                config.refuse(f"config: {key} is {value!r}, and {wanted!r} is what this family does")

    def _one_for_all(self, key: str) -> None:
        given = self.config.get(key)
        if not isinstance(given, list):
            return
        self.config.values[key] = given[0] if given else None
        if any(one != given[0] for one in given):
            self.config.refuse(f"config: {key} is {given!r:.80}: layers of different sizes")

    def mlp(self, x: Value, name: str) -> Value:
        return self.expert_mlp(x, name) + self.gated(x, f"{name}.shared_mlp", self.intermediate)
