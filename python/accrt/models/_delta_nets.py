"""Layers with gated delta nets, as Qwen 3 Next and 3.5 have them, among others whose attention has
a gate behind it; norms that multiply by 1 + their weight."""

from __future__ import annotations

from typing import Tuple

import numpy as np

from ..compiler.ir import Value
from ..compiler.ops import cat
from ._blocks import FULL
from ._scans import LINEAR, WithScans, keys_in_files, names_in_files


class WithDeltaNets(WithScans):
    """Layers with gated delta nets, and attention whose product for queries has a gate, too."""

    scans_name = "linear_attn"
    gguf_names = {**names_in_files(scans_name), "ssm_in": f"{scans_name}.in_proj_qkvz", "attn_qkv": f"{scans_name}.in_proj_qkv", "attn_gate": f"{scans_name}.in_proj_z",
                  "ssm_ba": f"{scans_name}.in_proj_ba", "ssm_beta": f"{scans_name}.in_proj_b", "ssm_alpha": f"{scans_name}.in_proj_a",
                  "post_attention_norm": "post_attention_layernorm"}  # fmt: skip
    gguf_keys = {**keys_in_files("linear_conv_kernel_dim", "linear_num_value_heads", "linear_num_key_heads", "linear_key_head_dim"),
                 "full_attention_interval": "full_attention_interval", "attention.recurrent_layers": "recurrent_layers"}  # fmt: skip
    #: A net's norm and its last product; the epsilon of the norm, where the model's is not taken.
    net_norm, net_product, net_eps = "norm", "out_proj", 0.0
    of_beta = 1.0

    def setup_delta_nets(self) -> None:
        config = self.config
        if self.is_gguf:
            self._setup_file()
        self.leave_out_predictors()
        every = config.integer("full_attention_interval", 4)
        self.kinds = self.kinds_of("layer_types", {}, [FULL if (layer + 1) % every == 0 else LINEAR for layer in range(self.layers)])
        self.net_heads, self.net_keys = config.integer("linear_num_value_heads", 32, maximum=1 << 16), config.integer("linear_num_key_heads", 16, maximum=1 << 16)
        self.net_key, self.net_value = config.integer("linear_key_head_dim", 128, maximum=1 << 12), config.integer("linear_value_head_dim", 128, maximum=1 << 12)
        if self.net_heads % self.net_keys:
            config.refuse(f"config: linear_num_key_heads is {self.net_keys}, which does not divide linear_num_value_heads, {self.net_heads}")
            self.net_keys = self.net_heads
        channels = 2 * self.net_keys * self.net_key + self.net_heads * self.net_value
        self.setup_scans(self.net_heads, self.net_value, self.net_key, channels, config.integer("linear_conv_kernel_dim", 4, maximum=64))

    def _setup_file(self) -> None:
        """What files say of heads, and of layers."""
        config = self.config
        heads, scans = config.integer("linear_num_value_heads"), config.get("recurrent_layers")
        inner = config.integer("ssm_inner_size", heads * config.integer("linear_value_head_dim", 128))
        config.values["linear_value_head_dim"] = inner // heads
        if inner % heads:
            config.refuse(f"metadata: ssm.inner_size is {inner}, which ssm.time_step_rank, {heads}, does not divide")
        if isinstance(scans, list):
            config.values["layer_types"] = [LINEAR if scan else FULL for scan in scans[: self.layers]]

    def norm(self, x: Value, name: str) -> Value:
        if self.is_gguf:  # whose weights have the 1
            return self.rms_norm(x, name)
        return x.rms_norm(self.float(self.weight(f"{name}.weight", [int(x.shape[-1])])) + 1.0, self.eps)

    def turned(self, x: Value, name: str) -> Value:
        return self.rope(self.norm(x, f"{name}_norm"))

    def attention(self, x: Value, name: str, layer: int) -> Value:
        if self.scans(layer):
            return self.delta_net(x, f"{self.layer_name.format(layer)}.{self.scans_name}", layer)
        size, tokens = self.head_size, x.shape[0]
        q, gate = self.linear(x, f"{name}.q_proj", 2 * self.heads * size).view([tokens, self.heads, 2 * size]).split([size, size], -1)
        k, v = (self.split_heads(self.linear(x, f"{name}.{part}", self.kv_heads * size), self.kv_heads) for part in ("k_proj", "v_proj"))
        made = self.attend(self.turned(q, f"{name}.q"), self.turned(k, f"{name}.k"), v, layer)
        return self.linear(made * gate.sigmoid().view([tokens, self.heads * size]), f"{name}.{self.output_name}", self.hidden)

    def of_net(self, x: Value, name: str) -> Tuple[Value, Value, Value, Value]:
        """Channels of the convolution, the gate [tokens, heads, size], and what makes beta and the
        decay, [tokens, heads]."""
        tokens, keys, heads = x.shape[0], self.net_keys, self.net_heads
        each = heads // keys * self.net_value
        if self.is_gguf and not self.has(f"{name}.in_proj_qkvz.weight"):  # older files have it
            return self._of_two(x, name)
        made = self.linear(x, f"{name}.in_proj_qkvz", 2 * keys * self.net_key + 2 * heads * self.net_value, False)
        q, k, v, gate = made.view([tokens, keys, -1]).split([self.net_key, self.net_key, each, each], -1)
        mixed = cat([q.view([tokens, keys * self.net_key]), k.view([tokens, keys * self.net_key]), v.view([tokens, heads * self.net_value])], -1)
        return (mixed, gate.view([tokens, heads, self.net_value]), *self._of_heads(x, name))

    def _of_two(self, x: Value, name: str) -> Tuple[Value, Value, Value, Value]:
        """The same where queries, keys and values of all heads are one product, and the gate is
        another."""
        mixed, gate = self.channels_and_gate(x, name)
        return (mixed, gate, *self._of_heads(x, name))

    def channels_and_gate(self, x: Value, name: str) -> Tuple[Value, Value]:
        gate = self.linear(x, f"{name}.in_proj_z", self.net_heads * self.net_value, False).view([x.shape[0], self.net_heads, self.net_value])
        return self.linear(x, f"{name}.in_proj_qkv", self.channels, False), gate

    def _of_heads(self, x: Value, name: str) -> Tuple[Value, Value]:
        tokens, keys, heads = x.shape[0], self.net_keys, self.net_heads
        beta, steps = self.linear(x, f"{name}.in_proj_ba", 2 * heads, False).view([tokens, keys, -1]).split([heads // keys] * 2, -1)
        return beta.view([tokens, heads]), steps.view([tokens, heads])

    def of_values(self, x: Value) -> Value:
        """Queries or keys [tokens, heads, size], as the heads of values take them."""
        return x

    def of_length_1(self, x: Value) -> Value:
        return x / (x.square().sum(-1, True) + 1e-6).sqrt()

    def delta_net(self, x: Value, name: str, layer: int) -> Value:
        tokens, heads, own = x.shape[0], self.net_heads, self.net_keys * self.net_key
        mixed, gate, beta, steps = self.of_net(x, name)
        mixed = self.activation(self.convolved(mixed, f"{name}.conv1d", layer, False))
        q, k, v = mixed.split([own, own, heads * self.net_value], -1)
        q, k = (self.of_values(self.of_length_1(one.view([tokens, self.net_keys, self.net_key]))) for one in (q, k))
        decay = self.decay(self.steps(steps, name, heads), name, heads)
        scale = self.number("of_queries", self.net_key**-0.5, np.float32)
        made = self.scan(q * scale, k, v.view([tokens, heads, self.net_value]), decay, layer, beta.sigmoid() * self.of_beta if self.of_beta != 1 else beta.sigmoid())
        weight = self.float(self.weight(f"{name}.{self.net_norm}.weight", [self.net_value]))
        made = made.rms_norm(weight, self.net_eps or self.eps) * gate.silu()
        return self.linear(made.view([tokens, heads * self.net_value]), f"{name}.{self.net_product}", self.hidden, False)
