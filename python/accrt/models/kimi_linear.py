"""Kimi Linear: three layers of four have Kimi's delta attention, a gated delta net each of whose
key elements has a decay of its own; the fourth has the latents of DeepSeek V3, without rotary
embeddings. Experts as DeepSeek V3 has them."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..compiler.ir import Value
from ..compiler.ops import cat
from ._blocks import FULL
from ._scans import LINEAR, WithScans
from .deepseek_v3 import DeepseekV3

#: The experts and their router, as models are published, and the matrices of one: gate, up, down.
_PUBLISHED, _PARTS = "block_sparse_moe", ("w1", "w3", "w2")


class KimiLinear(WithScans, DeepseekV3):
    types, architectures = ("kimi_linear",), ()
    defaults = {"rms_norm_eps": 1e-5, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "num_experts": 256, "num_shared_experts": 1,
                "num_experts_per_token": 8, "moe_intermediate_size": 1024, "moe_renormalize": True, "routed_scaling_factor": 2.446, "first_k_dense_replace": 1,
                "model_max_length": 1048576, "linear_head_dim": 128, "linear_num_heads": 32, "linear_conv_kernel_dim": 4}  # fmt: skip
    keys = {"max_position_embeddings": ("model_max_length",), "n_group": ("num_expert_group",), "norm_topk_prob": ("moe_renormalize",),
            "n_routed_experts": ("num_local_experts", "num_experts"), "num_experts_per_tok": ("num_experts_per_token",), "n_shared_experts": ("num_shared_experts",)}  # fmt: skip

    def setup(self) -> None:
        super().setup()
        config = self.config
        self._setup_nets()
        for key, known in (("moe_router_activation_func", "sigmoid"), ("mla_use_nope", True), ("use_grouped_topk", True)):
            if config.get(key, known) != known:
                config.refuse(f"config: {key} is {config.get(key)!r}, which this family does not do")
        self.mlp_kinds = self.of_layers("mlp_layer_types", ("dense", "sparse"), ["dense" if layer < self.first else "sparse" for layer in range(self.layers)])
        if any(f".{_PUBLISHED}.experts." in name for name in self.checkpoint.tensors):
            self.parts = _PARTS
        self.scale = self.head_size**-0.5
        # transformers has a head of its own here, whatever tie_word_embeddings says
        self.is_tied = self.is_tied and not self.has(f"{self.head_name}.weight")

    def _setup_nets(self) -> None:
        """Which layers have delta nets, and of what sizes, as models are published or as
        transformers saves them."""
        config, nets = self.config, self.config.get("linear_attn_config") or {}
        if not isinstance(nets, dict):
            config.refuse(f"config: linear_attn_config is {nets!r:.80}, expected an object")
            nets = {}
        for theirs, ours in (("head_dim", "linear_head_dim"), ("num_heads", "linear_num_heads"), ("short_conv_kernel_size", "linear_conv_kernel_dim")):
            config.values[ours] = nets.get(theirs, config.get(ours))
        kinds = [FULL if layer and layer % 4 == 0 else LINEAR for layer in range(self.layers)]
        if "full_attn_layers" in nets and "kda_layers" in nets and config.get("layer_types") is None:
            kinds = self._kinds(nets["full_attn_layers"], nets["kda_layers"])
        self.kinds = self.kinds_of("layer_types", {}, kinds)
        heads, size = config.integer("linear_num_heads", maximum=1 << 16), config.integer("linear_head_dim", maximum=1 << 12)
        self.net_heads, self.net_size = heads, size
        self.setup_scans(heads, size, size, 3 * heads * size, config.integer("linear_conv_kernel_dim", maximum=64))

    def _kinds(self, full: Any, linear: Any) -> "list[str]":
        """Of lists of layers, which are counted from 1."""
        both = [*full, *linear] if isinstance(full, list) and isinstance(linear, list) else []
        if any(isinstance(one, bool) or not isinstance(one, int) for one in both) or sorted(both) != list(range(1, self.layers + 1)):
            self.config.refuse(f"config: linear_attn_config has full_attn_layers {full!r:.80} and kda_layers {linear!r:.80}, expected each of {self.layers} layers in one of them")
            return [LINEAR] * self.layers
        return [FULL if layer + 1 in full else LINEAR for layer in range(self.layers)]

    def rope(self, x: Value) -> Value:
        """Nothing is turned."""
        return x

    def attention(self, x: Value, name: str, layer: int) -> Value:
        return self.delta_attention(x, name, layer) if self.scans(layer) else super().attention(x, name, layer)

    def filters(self, name: str) -> Value:
        """One weight for queries, for keys and for values each."""
        before, _dot, last = name.rpartition(".")
        size = self.net_heads * self.net_size
        return cat([self.float(self.weight(f"{before}.{part}_{last}.weight", [size, 1, self.taps])) for part in "qkv"], 0)

    def of_length_1(self, x: Value) -> Value:
        return x / (x.square().sum(-1, True) + 1e-6).sqrt()

    def delta_attention(self, x: Value, name: str, layer: int) -> Value:
        tokens, heads, size = x.shape[0], self.net_heads, self.net_size
        shape, whole = [tokens, heads, size], heads * size
        mixed = cat([self.linear(x, f"{name}.{part}_proj", whole, False) for part in "qkv"], -1)
        q, k, v = (one.view(shape) for one in self.activation(self.convolved(mixed, f"{name}.conv1d", layer, False)).split([whole] * 3, -1))
        beta = self.linear(x, f"{name}.b_proj", heads, False).sigmoid()
        scale = self.number("of_queries", size**-0.5, np.float32)
        made = self.scan(self.of_length_1(q) * scale, self.of_length_1(k), v, self.decays(x, name), layer, beta)
        gate = self.linear(self.linear(x, f"{name}.g_a_proj", size, False), f"{name}.g_b_proj", whole, False).view(shape)
        made = self.rms_norm(made, f"{name}.o_norm") * gate.sigmoid()
        return self.linear(made.view([tokens, whole]), f"{name}.{self.output_name}", self.hidden, False)

    def decays(self, x: Value, name: str) -> Value:
        """What of each row of a state is left, [tokens, heads, size]."""
        tokens, heads, size = x.shape[0], self.net_heads, self.net_size
        steps = self.linear(self.linear(x, f"{name}.f_a_proj", size, False), f"{name}.f_b_proj", heads * size, False)
        steps = self.steps(steps, name, heads * size).view([tokens, heads, size])
        return (steps * self.rates(name, [1, 1, heads, 1]).view([1, heads, 1])).exp()

    def is_dense(self, layer: int) -> bool:
        return self.mlp_kinds[layer] == "dense"

    def mlp(self, x: Value, name: str) -> Value:
        published = f"{name.rpartition('.')[0]}.{_PUBLISHED}"
        # transformers saves MLPs of layers without experts by this name, too
        return super().mlp(x, published if self.has(f"{published}.gate{'_proj' if self.is_dense(self.step.layer) else ''}.weight") else name)
