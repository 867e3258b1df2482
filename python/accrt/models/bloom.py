"""BLOOM and BLOOMZ: ALiBi, layer norms, one of them behind the embedding, one product for queries,
keys and values."""

from __future__ import annotations

from typing import Tuple

from ..compiler.ir import Value
from ._alibi import WithAlibi, slopes


class Bloom(WithAlibi):
    types = architectures = ("bloom",)
    defaults = {"layer_norm_epsilon": 1e-5}
    keys = {"rms_norm_eps": ("layer_norm_epsilon",), "hidden_size": ("n_embed", "n_embd"), "num_hidden_layers": ("n_layer",),
            "num_attention_heads": ("n_head",), "max_position_embeddings": ("seq_length",)}  # fmt: skip
    prefix = "transformer."
    embedding_name, final_norm, layer_name, attention_name, output_name = "word_embeddings", "ln_f", "h.{}", "self_attention", "dense"
    tied = True
    act = "gelu_pytorch_tanh"
    gguf_names = {"token_embd_norm": "word_embeddings_layernorm", "attn_qkv": "self_attention.query_key_value", "attn_output": "self_attention.dense",
                  "ffn_up": "mlp.dense_h_to_4h", "ffn_down": "mlp.dense_4h_to_h"}  # fmt: skip

    def setup(self) -> None:
        super().setup()
        if self.config.flag("apply_residual_connection_post_layernorm"):
            self.config.refuse("config: apply_residual_connection_post_layernorm is true, which this family does not do")
        self.config.flag("slow_but_exact")  # how it is summed
        self.setup_alibi(slopes(self.heads))

    def setup_rope(self) -> None:
        """Nothing is turned."""

    def norm(self, x: Value, name: str) -> Value:
        return self.layer_norm(x, name)

    def embed(self, ids: Value) -> Value:
        return self.norm(super().embed(ids), "word_embeddings_layernorm")

    def qkv(self, x: Value, name: str) -> Tuple[Value, Value, Value]:
        joined = self.linear(x, f"{name}.query_key_value", self.joined_size)
        return self.split_in_three(joined) if self.is_gguf else self.split_groups(joined)

    def mlp(self, x: Value, name: str) -> Value:
        return self.in_two(x, name, "dense_h_to_4h", "dense_4h_to_h")
