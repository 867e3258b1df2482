"""OLMo Hybrid: gated delta nets in three layers of four, whose beta goes up to 2; the fourth is one
of OLMo 2, with or without rotary embeddings."""

from __future__ import annotations

from typing import Tuple

from ..compiler.ir import Value
from ..compiler.ops import cat
from ._blocks import FULL
from ._delta_nets import WithDeltaNets
from ._scans import LINEAR
from .olmo2 import Olmo2

_OLDER = {"input_layernorm": "attention_layer_norm", "post_attention_layernorm": "feedforward_layer_norm"}


class OlmoHybrid(WithDeltaNets, Olmo2):
    types = ("olmo_hybrid",)
    architectures = ()
    defaults = {"rms_norm_eps": 1e-6, "max_position_embeddings": 65536, "intermediate_size": 11008}
    net_norm, net_product, net_eps = "o_norm", "o_proj", 1e-5

    def setup(self) -> None:
        config = self.config
        rope = config.get("rope_parameters")
        # published models have a base that is null, and no rotary embeddings
        self.turns = not isinstance(rope, dict) or rope.get("rope_theta", 0) is not None
        if not self.turns:
            config.values["rope_parameters"] = None
        heads, size = config.integer("num_attention_heads"), config.integer("hidden_size")
        for key in ("linear_num_key_heads", "linear_num_value_heads"):
            config.values[key] = config.integer(key, heads)
        config.values["linear_key_head_dim"] = config.integer("linear_key_head_dim", int(0.75 * size / config.values["linear_num_key_heads"]))
        config.values["linear_value_head_dim"] = config.integer("linear_value_head_dim", 2 * config.values["linear_key_head_dim"])
        Olmo2.setup(self)
        config.values["layer_types"] = config.get("layer_types") or [FULL if layer % 4 == 3 else LINEAR for layer in range(self.layers)]
        self.setup_delta_nets()
        self.of_beta = 2.0 if config.flag("linear_allow_neg_eigval", True) else 1.0

    def turned(self, x: Value, name: str) -> Value:
        return self.rope(x) if self.turns else x

    def of_net(self, x: Value, name: str) -> Tuple[Value, Value, Value, Value]:
        tokens, keys, heads = x.shape[0], self.net_keys * self.net_key, self.net_heads
        values = heads * self.net_value
        q, k, v, gate, beta, steps = (self.linear(x, f"{name}.{part}_proj", size, False)
                                      for part, size in zip("qkvgba", (keys, keys, values, values, heads, heads)))  # fmt: skip
        return cat([q, k, v], -1), gate.view([tokens, heads, self.net_value]), beta, steps

    def filters(self, name: str) -> Value:
        """As they are published, one weight for queries, for keys and for values each."""
        sizes = (("q", self.net_keys * self.net_key), ("k", self.net_keys * self.net_key), ("v", self.net_heads * self.net_value))
        before, _dot, last = name.rpartition(".")
        if self.has(f"{name}.weight"):
            return super().filters(name)
        return cat([self.float(self.weight(f"{before}.{part}_{last}.weight", [size, 1, self.taps])) for part, size in sizes], 0)

    def layer(self, x: Value, name: str, index: int) -> Value:
        if not self.scans(index):
            return Olmo2.layer(self, x, name, index)
        x = x + self.delta_net(self.norm(x, f"{name}.input_layernorm"), f"{name}.{self.scans_name}", index)
        return x + self.mlp(self.norm(x, f"{name}.post_attention_layernorm"), f"{name}.mlp")

    def norm(self, x: Value, name: str) -> Value:
        """Also by the names that norms before have in published files."""
        before, _dot, last = name.rpartition(".")
        older = f"{before}.{_OLDER.get(last, last)}"
        return Olmo2.norm(self, x, older if self.has(f"{older}.weight") else name)

    def attention(self, x: Value, name: str, layer: int) -> Value:
        return Olmo2.attention(self, x, name, layer)
