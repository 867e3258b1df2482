"""GPT-BigCode (StarCoder 1, SantaCoder): learned positions, layer norms, one product for queries,
keys and values; all heads share one key."""

from __future__ import annotations

from typing import Tuple

from ..compiler.ir import Value
from ._blocks import Decoder


class GPTBigCode(Decoder):
    types, architectures = ("gpt_bigcode",), ("starcoder",)
    defaults = {"layer_norm_epsilon": 1e-5, "multi_query": True, "scale_attn_weights": True, "n_positions": 1024, "n_embd": 768, "n_layer": 12, "n_head": 12}
    keys = {"rms_norm_eps": ("layer_norm_epsilon",), "hidden_size": ("n_embd",), "num_hidden_layers": ("n_layer",), "num_attention_heads": ("n_head",),
            "max_position_embeddings": ("n_positions",), "intermediate_size": ("n_inner",), "hidden_act": ("activation_function",)}  # fmt: skip
    prefix = "transformer."
    embedding_name, final_norm, layer_name, attention_name, output_name = "wte", "ln_f", "h.{}", "attn", "c_proj"
    ignored = (".attn.bias", ".attn.masked_bias")  # the causal mask
    tied = True
    act = "gelu_pytorch_tanh"
    gguf_names = {"attn_norm": "ln_1", "attn_qkv": "attn.c_attn", "attn_output": "attn.c_proj", "ffn_norm": "ln_2", "ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj"}

    def setup(self) -> None:
        config = self.config
        config.values.pop("num_key_value_heads", None)  # multi_query says it
        super().setup()
        self.kv_heads = 1 if config.flag("multi_query", True) else self.heads
        self.scale = None if config.flag("scale_attn_weights", True) else 1.0
        # as it is here
        for name in ("attention_softmax_in_fp32", "scale_attention_softmax_in_fp32"):
            config.flag(name, True)

    def setup_rope(self) -> None:
        """Positions are embedded."""

    def norm(self, x: Value, name: str) -> Value:
        return self.layer_norm(x, name)

    def embed(self, ids: Value) -> Value:
        return super().embed(ids) + self.embedding(self.step.positions, "wpe", self.trained)

    def qkv(self, x: Value, name: str) -> Tuple[Value, Value, Value]:
        return self.split_groups(self.linear(x, f"{name}.c_attn", self.joined_size))

    def layer(self, x: Value, name: str, index: int) -> Value:
        x = self.attention(self.norm(x, f"{name}.ln_1"), f"{name}.attn", index) + x
        return self.in_two(self.norm(x, f"{name}.ln_2"), f"{name}.mlp", "c_fc", "c_proj") + x
