"""The first GPT: GPT-2 whose norms stand behind attention and MLP, and behind no other part."""

from __future__ import annotations

from ..compiler.ir import Value
from .gpt2 import GPT2

#: What it calls an activation that has another name elsewhere.
_ACTIVATIONS = {"gelu": "gelu_new", "swish": "silu"}


class OpenAIGPT(GPT2):
    types, architectures = ("openai-gpt",), ()
    ignored = (*GPT2.ignored, "position_ids")
    embedding_name, positions_name, final_norm = "tokens_embed", "positions_embed", ""
    defaults = {"vocab_size": 40478, "n_positions": 512}

    def setup(self) -> None:
        given = self.config.get("afn", "gelu")
        self.config.values["activation_function"] = _ACTIVATIONS.get(given, given) if isinstance(given, str) else given
        super().setup()
        self.scale = None

    def norm(self, x: Value, name: str) -> Value:
        return super().norm(x, name) if name else x

    def layer(self, x: Value, name: str, index: int) -> Value:
        mixed = self.attend(*self.qkv(x, f"{name}.attn"), index)
        x = self.norm(self.linear(mixed, f"{name}.attn.c_proj", self.hidden) + x, f"{name}.ln_1")
        made = self.activation(self.linear(x, f"{name}.mlp.c_fc", self.intermediate))
        return self.norm(self.linear(made, f"{name}.mlp.c_proj", self.hidden) + x, f"{name}.ln_2")
