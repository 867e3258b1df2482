"""GPT-2: learned positions, layer norms, biases everywhere, one product for queries, keys and
values, matrices the other way round."""

from __future__ import annotations

from typing import Optional, Tuple

from ..compiler.ir import Value
from ._blocks import Decoder


class GPT2(Decoder):
    types = architectures = ("gpt2",)
    prefix = "transformer."
    ignored = (".attn.bias", ".attn.masked_bias")  # the causal mask
    embedding_name, final_norm, layer_name, attention_name = "wte", "ln_f", "h.{}", "attn"
    positions_name = "wpe"
    tied = True
    gguf_names = {
        "attn_norm": "ln_1", "attn_qkv": "attn.c_attn", "attn_output": "attn.c_proj", "ffn_norm": "ln_2", "ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj",
    }  # fmt: skip

    def setup(self) -> None:
        config = self.config
        for ours, theirs in (("hidden_size", "n_embd"), ("num_hidden_layers", "n_layer"), ("num_attention_heads", "n_head"),
                             ("max_position_embeddings", "n_positions"), ("intermediate_size", "n_inner"), ("hidden_act", "activation_function"),
                             ("rms_norm_eps", "layer_norm_epsilon")):  # fmt: skip
            value = config.get(theirs)
            if value is not None:
                config.values[ours] = value
        config.values.setdefault("hidden_act", "gelu_new")
        config.values.setdefault("rms_norm_eps", 1e-5)
        super().setup()
        self.weights_scaled = config.flag("scale_attn_weights", True)
        self.scale = None if self.weights_scaled else 1.0

    def setup_rope(self) -> None:
        """Positions are embedded."""

    def norm(self, x: Value, name: str) -> Value:
        return self.layer_norm(x, name)

    def linear(self, x: Value, name: str, size: int, bias: Optional[bool] = True) -> Value:
        if self.is_gguf:
            return super().linear(x, name, size, bias)
        weight = self.step.f.constant(self.weight(f"{name}.weight", [int(x.shape[-1]), size]))
        return self.adapt(x.matmul(weight) + self.float(self.weight(f"{name}.bias", [size])), x, name)

    def embed(self, ids: Value) -> Value:
        return super().embed(ids) + self.embedding(self.step.positions, self.positions_name, self.trained)

    def qkv(self, x: Value, name: str) -> Tuple[Value, Value, Value]:
        return self.split_in_three(self.linear(x, f"{name}.c_attn", self.joined_size))

    def layer(self, x: Value, name: str, index: int) -> Value:
        mixed = self.attend(*self.qkv(self.norm(x, f"{name}.ln_1"), f"{name}.attn"), index)
        x = self.linear(mixed, f"{name}.attn.c_proj", self.hidden) + x
        made = self.activation(self.linear(self.norm(x, f"{name}.ln_2"), f"{name}.mlp.c_fc", self.intermediate))
        return self.linear(made, f"{name}.mlp.c_proj", self.hidden) + x
