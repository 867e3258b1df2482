"""Zamba 2: mixers of Mamba 2, and before some of them a transformer layer that several of these
share. A shared layer takes the embedding beside what the layer before made, and has factors of low
rank that are each place's own."""

from __future__ import annotations

import math
from typing import Any, List

from ..compiler.ir import Value
from ..compiler.ops import cat
from ._blocks import MOST_LAYERS
from ._scans import LINEAR, WithMamba2

_HYBRID = "hybrid"


class Zamba2(WithMamba2):
    types = ("zamba2",)
    final_norm, act = "final_layernorm", "gelu"
    tied = True
    mamba_keys = {"heads": "n_mamba_heads", "head_size": "mamba_headdim", "groups": "mamba_ngroups", "state_size": "mamba_d_state", "taps": "mamba_d_conv",
                  "expand": "mamba_expand", "conv_bias": "use_conv_bias", "bias": "add_bias_linear"}  # fmt: skip
    defaults = {"num_hidden_layers": 54, "num_attention_heads": 32, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "n_mamba_heads": 8, "mamba_d_state": 64,
                "time_step_min": 0.001}  # fmt: skip

    def setup(self) -> None:
        config = self.config
        size, heads = (config.integer(key, maximum=1 << 20) for key in ("hidden_size", "num_attention_heads"))
        # whatever a configuration says
        config.values["head_dim"] = max(2 * size // heads, 1)
        if 2 * size % heads:
            config.refuse(f"config: num_attention_heads is {heads}, which does not divide {2 * size}, twice hidden_size")
        if config.flag("use_long_context"):
            config.values["max_position_embeddings"] = 16384
        for key in ("attention_hidden_size", "attention_head_dim", "hybrid_layer_ids", "kv_channels", "num_query_groups"):
            config.get(key)  # these follow from others
        super().setup()
        self.scale = (self.head_size / 2) ** -0.5
        # what stands before each layer
        kinds = self._listed()
        self.hybrids = [layer for layer, kind in enumerate(kinds) if kind == _HYBRID]
        self.blocks = config.integer("num_mem_blocks", 1, maximum=MOST_LAYERS)
        self.turns, self.has_factors = config.flag("use_mem_rope"), config.flag("use_shared_attention_adapter")
        self.rank = config.integer("adapter_rank", 128, maximum=1 << 16)
        self.setup_mamba()
        self.conv_bias = True
        # files may have a shared layer more than once
        again = tuple(f"{self.prefix}{self.layer_name.format(layer)}.shared_transformer." for layer in self.hybrids[self.blocks :])
        self.checkpoint.unused += tuple(name for name in self.checkpoint.tensors if again and name.startswith(again))

    def _listed(self) -> List[str]:
        config = self.config
        key = "layers_block_type" if config.get("layers_block_type") is not None else "layer_types"
        default = [LINEAR, *([LINEAR] * 5 + [_HYBRID]) * 7, *[LINEAR] * 4, _HYBRID, *[LINEAR] * 3, _HYBRID, LINEAR, LINEAR]
        known = {LINEAR: LINEAR, "mamba": LINEAR, _HYBRID: _HYBRID}
        return [known[kind] for kind in self.of_layers(key, list(known), default)]

    def setup_step_limits(self) -> None:
        """Steps are not shorter than one of the configuration."""
        self.step_limits = [self.config.number("time_step_min"), math.inf]

    def attends(self, layer: int) -> bool:
        return layer in self.hybrids

    def embed(self, ids: Value) -> Value:
        self.step.shared["embedding"] = made = super().embed(ids)
        return made

    def activation(self, x: Value) -> Value:
        """Of mixers, always the same."""
        return x.silu()

    def turned(self, x: Value, name: str) -> Value:
        return self.rope(x) if self.turns else x

    def norm_of_groups(self, x: Value, groups: int, name: str) -> Value:
        """Within mixers epsilon is always the same."""
        own, self.eps = self.eps, 1e-5
        made = super().norm_of_groups(x, groups, name)
        self.eps = own
        return made

    def with_factors(self, x: Value, name: str, factors: str, size: int) -> Value:
        """A product, and that of the place's own factors, which are called otherwise."""
        place = f"{factors}_adapter_list.{self.hybrids.index(self.step.layer)}"
        return self.linear(x, name, size) + self.linear(self.linear(x, f"{place}.0", self.rank, False), f"{place}.1", size, False)

    def projected(self, x: Value, name: str, size: int) -> Value:
        if not self.has_factors:
            return super().projected(x, name, size)
        before, _dot, part = name.rpartition(".")
        return self.with_factors(x, f"{name}_proj", f"{before}.linear_{part}", size)

    def mlp(self, x: Value, name: str) -> Value:
        gate, up = self.with_factors(x, f"{name}.gate_up_proj", f"{name}.gate_up_proj", 2 * self.intermediate).split([self.intermediate] * 2, -1)
        return self.linear(super().activation(gate) * up, f"{name}.down_proj", self.hidden)

    def transformer(self, x: Value, index: int) -> Value:
        """The shared layer that stands before this one: of the first layers that have one each."""
        first = self.hybrids[self.hybrids.index(index) % self.blocks]
        name = f"{self.layer_name.format(first)}.shared_transformer"
        taken = self.norm(cat([x, self.step.shared["embedding"]], -1), f"{name}.input_layernorm")
        made = self.attention(taken, f"{name}.{self.attention_name}", index)
        return self.mlp(self.norm(made, f"{name}.pre_ff_layernorm"), f"{name}.feed_forward")

    def layer(self, x: Value, name: str, index: int) -> Value:
        taken: Any = x
        if index in self.hybrids:
            taken = x + self.linear(self.transformer(x, index), f"{name}.linear", self.hidden, False)
            name = f"{name}.mamba_decoder"
        return x + self.mamba(self.norm(taken, f"{name}.input_layernorm"), f"{name}.mamba", index)
