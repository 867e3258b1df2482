"""GPT-J: attention and MLP side by side after one layer norm, rotary embeddings of neighbours in a
part of each head, a head with biases."""

from __future__ import annotations

from ..compiler.ir import Value
from ._blocks import Decoder
from ._config import part_of


class GPTJ(Decoder):
    types = ("gptj",)
    turns_part = True
    defaults = {"layer_norm_epsilon": 1e-5, "rotary_dim": 64, "n_positions": 2048}
    keys = {"rms_norm_eps": ("layer_norm_epsilon",), "hidden_size": ("n_embd",), "num_hidden_layers": ("n_layer",), "num_attention_heads": ("n_head",),
            "max_position_embeddings": ("n_positions",), "intermediate_size": ("n_inner",), "hidden_act": ("activation_function",)}  # fmt: skip
    prefix = "transformer."
    embedding_name, final_norm, layer_name, attention_name, output_name = "wte", "ln_f", "h.{}", "attn", "out_proj"
    ignored = (*Decoder.ignored, ".attn.bias", ".attn.masked_bias", ".attn.causal_mask")
    interleaved = True
    act = "gelu_new"

    def setup_rope(self) -> None:
        turned = self.config.integer("rotary_dim", self.head_size, maximum=self.head_size)
        self.config.values["partial_rotary_factor"] = part_of(turned, self.head_size)
        super().setup_rope()

    def norm(self, x: Value, name: str) -> Value:
        return self.layer_norm(x, name)

    def layer(self, x: Value, name: str, index: int) -> Value:
        normed = self.norm(x, f"{name}.ln_1")
        made = self.in_two(normed, f"{name}.mlp", "fc_in", "fc_out")
        return self.attention(normed, f"{name}.attn", index) + made + x
