"""Falcon (7B, 40B, 180B, RW, 2): one product for queries, keys and values, whose heads share keys
in one group or in several; attention and MLP side by side or one behind the other; rotary
embeddings or ALiBi."""

from __future__ import annotations

from typing import Tuple

import numpy as np

from ..compiler.ir import Value
from ..compiler import _bf16
from ._alibi import WithAlibi, slopes


class Falcon(WithAlibi):
    types = architectures = ("falcon",)
    defaults = {"layer_norm_epsilon": 1e-5, "multi_query": True, "parallel_attn": True}
    keys = {"rms_norm_eps": ("layer_norm_epsilon",), "intermediate_size": ("ffn_hidden_size",), "hidden_act": ("activation",),
            "num_hidden_layers": ("n_layer",), "num_attention_heads": ("n_head",)}  # fmt: skip
    prefix = "transformer."
    embedding_name, final_norm, layer_name, attention_name, output_name = "word_embeddings", "ln_f", "h.{}", "self_attention", "dense"
    tied = True
    act = "gelu"
    gguf_names = {"attn_norm_2": "ln_attn", "attn_qkv": "self_attention.query_key_value", "attn_output": "self_attention.dense", "ffn_up": "mlp.dense_h_to_4h",
                  "ffn_down": "mlp.dense_4h_to_h"}  # fmt: skip

    def setup(self) -> None:
        super().setup()
        config = self.config
        self.is_grouped, self.is_parallel = config.flag("new_decoder_architecture"), config.flag("parallel_attn", True)
        if not self.is_gguf:  # whose files say it
            many = config.integer("num_kv_heads", config.get("n_head_kv", self.heads))
            self.kv_heads = many if self.is_grouped or not config.flag("multi_query", True) else 1
        if self.heads % self.kv_heads:
            config.refuse(f"config: num_kv_heads is {self.kv_heads}, which does not divide num_attention_heads, {self.heads}")
            self.kv_heads = self.heads
        two = self.is_grouped or self.has("h.0.ln_attn.weight")
        self.norms = config.integer("num_ln_in_parallel_attn", 2 if two else 1, maximum=2)
        if self.is_grouped and not self.is_parallel:
            config.refuse("config: parallel_attn is false with new_decoder_architecture, which this family does not do")
        config.flag("bias")  # the tensors say it
        if config.flag("alibi"):  # which is multiplied with the scores, and rounded
            self.setup_alibi(_bf16.rounded(slopes(self.heads)).astype(np.float64) * self.head_size**-0.5)

    def norm(self, x: Value, name: str) -> Value:
        return self.layer_norm(x, name)

    def turned(self, x: Value, name: str) -> Value:
        return x if self.slopes else self.rope(x)

    def qkv(self, x: Value, name: str) -> Tuple[Value, Value, Value]:
        joined = self.linear(x, f"{name}.query_key_value", self.joined_size)
        q, k, v = self.split_in_three(joined) if self.is_gguf else self.split_groups(joined)
        return self.turned(q, f"{name}.q"), self.turned(k, f"{name}.k"), v

    def mlp(self, x: Value, name: str) -> Value:
        return self.in_two(x, name, "dense_h_to_4h", "dense_4h_to_h")

    def layer(self, x: Value, name: str, index: int) -> Value:
        if not self.is_parallel:
            return super().layer(x, name, index)
        if self.norms == 1:
            return self.beside(x, name, index)
        made = self.mlp(self.norm(x, f"{name}.{'input_layernorm' if self.is_gguf else 'ln_mlp'}"), f"{name}.mlp")
        return self.attention(self.norm(x, f"{name}.ln_attn"), f"{name}.self_attention", index) + made + x
