"""GPT-NeoX and Pythia: layer norms, attention and MLP side by side, a part of each head is turned,
one product for queries, keys and values."""

from __future__ import annotations

from typing import Tuple

from ..compiler.ir import Value
from ._blocks import Decoder


class GPTNeoX(Decoder):
    types, architectures = ("gpt_neox",), ("gptneox",)
    turns_part = True
    defaults = {"layer_norm_eps": 1e-5, "rotary_pct": 0.25, "use_parallel_residual": True}
    keys = {"rms_norm_eps": ("layer_norm_eps", "layer_norm_epsilon"), "rope_theta": ("rotary_emb_base",), "partial_rotary_factor": ("rotary_pct",)}
    prefix, head_name = "gpt_neox.", "embed_out"
    embedding_name, final_norm, attention_name, output_name = "embed_in", "final_layer_norm", "attention", "dense"
    ignored = (*Decoder.ignored, ".attention.bias", ".attention.masked_bias")
    act = "gelu"
    gguf_names = {"attn_qkv": "attention.query_key_value", "attn_output": "attention.dense", "ffn_up": "mlp.dense_h_to_4h", "ffn_down": "mlp.dense_4h_to_h"}

    def setup(self) -> None:
        super().setup()
        self.is_parallel = self.config.flag("use_parallel_residual", True)

    def norm(self, x: Value, name: str) -> Value:
        return self.layer_norm(x, name)

    def qkv(self, x: Value, name: str) -> Tuple[Value, Value, Value]:
        joined = self.linear(x, f"{name}.query_key_value", self.joined_size)
        q, k, v = self.split_in_three(joined) if self.is_gguf else self.split_groups(joined)
        return self.rope(q), self.rope(k), v

    def mlp(self, x: Value, name: str) -> Value:
        return self.in_two(x, name, "dense_h_to_4h", "dense_4h_to_h")

    def layer(self, x: Value, name: str, index: int) -> Value:
        return self.beside(x, name, index, "post_attention_layernorm") if self.is_parallel else super().layer(x, name, index)
