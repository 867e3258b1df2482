"""EXAONE 3 and 3.5: Llama by other names."""

from __future__ import annotations

from ..compiler.ir import Value
from ._blocks import Decoder
from .llama import Llama


class Exaone(Llama):
    types = architectures = ("exaone",)
    defaults = {"layer_norm_epsilon": 1e-5, "rope_theta": 5e5, "max_position_embeddings": 4096}
    keys = {"rms_norm_eps": ("layer_norm_epsilon",), "num_hidden_layers": ("num_layers",), "hidden_act": ("activation_function",)}
    prefix = "transformer."
    embedding_name, final_norm, layer_name, attention_name, output_name = "wte", "ln_f", "h.{}", "attn.attention", "out_proj"
    gguf_names = {"attn_norm": "ln_1", "attn_q": "attn.attention.q_proj", "attn_k": "attn.attention.k_proj", "attn_v": "attn.attention.v_proj",
                  "attn_output": "attn.attention.out_proj", "ffn_norm": "ln_2", "ffn_gate": "mlp.c_fc_0", "ffn_up": "mlp.c_fc_1", "ffn_down": "mlp.c_proj"}  # fmt: skip

    def setup_rope(self) -> None:
        Decoder.setup_rope(self)  # files keep the order of rows

    def layer(self, x: Value, name: str, index: int) -> Value:
        x = self.attention(self.norm(x, f"{name}.ln_1"), f"{name}.{self.attention_name}", index) + x
        normed, size = self.norm(x, f"{name}.ln_2"), self.intermediate
        gate, up = (self.linear(normed, f"{name}.mlp.{part}", size) for part in ("c_fc_0", "c_fc_1"))
        return self.linear(self.activation(gate) * up, f"{name}.mlp.c_proj", self.hidden) + x
