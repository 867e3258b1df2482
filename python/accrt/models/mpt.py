"""MPT: ALiBi, layer norms without biases, one product for queries, keys and values."""

from __future__ import annotations

import math
from typing import Any, Dict, Tuple

import numpy as np

from ..compiler.ir import Value
from ._alibi import WithAlibi

#: Keys of attn_config, and what is done of them.
_DONE = {"alibi": (True,), "attn_type": ("multihead_attention",), "prefix_lm": (False,), "qk_ln": (False,), "attn_uses_sequence_id": (False,),
         "qk_gn": (False,), "rope": (False,), "sliding_window_size": (-1,), "attn_logit_softcapping": (None,)}  # fmt: skip


class Mpt(WithAlibi):
    types = architectures = ("mpt",)
    defaults = {"layer_norm_epsilon": 1e-5, "d_model": 2048, "n_heads": 16, "n_layers": 24, "max_seq_len": 2048, "vocab_size": 50368}
    keys = {"rms_norm_eps": ("layer_norm_epsilon",), "hidden_size": ("d_model",), "num_hidden_layers": ("n_layers",), "num_attention_heads": ("n_heads",),
            "max_position_embeddings": ("max_seq_len",)}  # fmt: skip
    prefix = "transformer."
    embedding_name, final_norm, layer_name, attention_name, output_name = "wte", "norm_f", "blocks.{}", "attn", "out_proj"
    tied = True
    act = "gelu"
    gguf_names = {"attn_norm": "norm_1", "attn_qkv": "attn.Wqkv", "attn_output": "attn.out_proj", "ffn_norm": "norm_2", "ffn_up": "ffn.up_proj", "ffn_down": "ffn.down_proj"}

    def setup(self) -> None:
        super().setup()
        config = self.config
        given: Any = config.get("attn_config", {})
        if not isinstance(given, dict):
            config.refuse(f"config: attn_config is {given!r}, expected an object")
            given = {}
        if self.is_gguf:
            given = {"alibi_bias_max": config.get("alibi"), "clip_qkv": config.get("clip_qkv")}
        attention: Dict[str, Any] = {key: value for key, value in given.items() if value is not None}
        for key, done in _DONE.items():
            if attention.get(key, done[0]) not in done:
                config.refuse(f"config: attn_config.{key} is {attention[key]!r}, which this family does not do")
        for key, default in (("softmax_scale", self.head_size**-0.5), ("clip_qkv", 0.0), ("alibi_bias_max", 8)):
            value = attention.setdefault(key, default)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e30:
                config.refuse(f"config: attn_config.{key} is {value!r}, expected a number")
                attention[key] = 1.0
        if config.get("logit_scale") is not None or config.integer("expansion_ratio", 4) != 4 or not config.flag("no_bias", True):
            config.refuse("config: logit_scale, an expansion_ratio other than 4, or biases, which this family does not do")
        config.flag("learned_pos_emb")  # ALiBi is in its place
        config.get("embedding_fraction")  # of gradients
        config.get("norm_type")
        self.scale, self.most_of_qkv = float(attention["softmax_scale"]), float(attention["clip_qkv"])
        # transformers takes 8, whatever the configuration says; models with 16 (MPT-7B StoryWriter)
        # were trained with 16
        self.setup_alibi(_slopes(self.heads, float(attention["alibi_bias_max"])))

    def setup_rope(self) -> None:
        """Nothing is turned."""

    def norm(self, x: Value, name: str) -> Value:
        return self.layer_norm(x, name)

    def qkv(self, x: Value, name: str) -> Tuple[Value, Value, Value]:
        return self.split_in_three(self.bounded(self.linear(x, f"{name}.Wqkv", self.joined_size)))

    def layer(self, x: Value, name: str, index: int) -> Value:
        x = self.attention(self.norm(x, f"{name}.norm_1"), f"{name}.attn", index) + x
        return self.in_two(self.norm(x, f"{name}.norm_2"), f"{name}.ffn", "up_proj", "down_proj") + x


def _slopes(heads: int, most: float) -> np.ndarray:
    """Those of the next larger power of two: every second one first, then the others."""
    near = 1 << math.ceil(math.log2(heads))
    found = 2.0 ** (-most / near * np.arange(1, near + 1))
    return found if near == heads else np.concatenate([found[1::2], found[::2]])[:heads]
