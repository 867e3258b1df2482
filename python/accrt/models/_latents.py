"""Attention whose keys and values are made of few numbers (MLA, multi-head latent attention): each
token has a latent, of which a product makes the keys and values of all heads, and a part of a key
that is turned and that all heads share.

What is kept on the pages are whole keys and values, as of other models: they take more memory than
latents would, and every kernel of attention runs on them.
"""

from __future__ import annotations

import math
from typing import Any, Tuple

from ..compiler.ir import Value
from ..compiler.ops.shapes import cat
from . import _rope
from ._blocks import Decoder

#: Of the norms of latents, whatever the configuration says of the others.
_EPS = 1e-6


class WithLatents(Decoder):
    """Queries, too, may be made of latents."""

    value_part = 0
    gguf_names = {"attn_q_a": "self_attn.q_a_proj", "attn_q_b": "self_attn.q_b_proj", "attn_q_a_norm": "self_attn.q_a_layernorm",
                  "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa", "attn_kv_a_norm": "self_attn.kv_a_layernorm", "attn_kv_b": "self_attn.kv_b_proj",
                  "attn_k_b": "self_attn.k_b_proj", "attn_v_b": "self_attn.v_b_proj"}  # fmt: skip

    def setup(self) -> None:
        config = self.config
        # heads need not divide hidden_size
        config.values["head_dim"] = config.get("qk_rope_head_dim")
        super().setup()
        self.q_rank, self.kv_rank = config.integer("q_lora_rank", 0, minimum=0), config.integer("kv_lora_rank")
        self.unturned, self.value_part = config.integer("qk_nope_head_dim", maximum=1 << 15), config.integer("v_head_dim", max(self.hidden // self.heads, 1), maximum=1 << 15)
        self.head_size = self.unturned + self.turned_size
        if config.integer("qk_head_dim", self.head_size) != self.head_size:
            config.refuse(f"config: qk_head_dim is {config.get('qk_head_dim')}; it is qk_nope_head_dim + qk_rope_head_dim, {self.head_size}")
        self.kv_heads = self.heads
        self.scale = self.head_size**-0.5 * self._of_stretching() ** 2

    def setup_rope(self) -> None:
        config = self.config
        self.turned_size = config.integer("qk_rope_head_dim", maximum=1 << 15)
        self.rotation = self.rope_of(config.changed(partial_rotary_factor=None), self.turned_size)
        self.most = self.trained = max(self.trained, self.rotation.stretched)
        self.trained = min(self.trained, self.rotation.longest or self.trained)

    def _of_stretching(self) -> float:
        """YaRN makes scores larger, too."""
        given: Any = _rope.settings(self.config)[1]
        by, factor = given.get("mscale_all_dim"), given.get("factor")
        if given["rope_type"] == "default" or not isinstance(by, (int, float)) or not isinstance(factor, (int, float)) or not by or factor <= 1:
            return 1.0
        try:
            made = 0.1 * float(by) * math.log(float(factor)) + 1.0
        except OverflowError:
            made = math.inf
        if not math.isfinite(made * made):
            self.config.refuse("config: rope_scaling: mscale_all_dim and factor make scores that are not finite")
            return 1.0
        return made

    @property
    def value_size(self) -> int:
        return self.value_part

    def latent(self, x: Value, name: str) -> Value:
        return x.rms_norm(self.float(self.weight(f"{name}.weight", [int(x.shape[-1])])), _EPS)

    def qkv(self, x: Value, name: str) -> Tuple[Value, Value, Value]:
        tokens, heads, turned = x.shape[0], self.heads, self.turned_size
        if self.q_rank:
            made = self.latent(self.linear(x, f"{name}.q_a_proj", self.q_rank), f"{name}.q_a_layernorm")
            q = self.linear(made, f"{name}.q_b_proj", heads * self.head_size)
        else:
            q = self.linear(x, f"{name}.q_proj", heads * self.head_size)
        q, q_turned = self.split_heads(q, heads).split([self.unturned, turned], -1)
        made, k_turned = self.linear(x, f"{name}.kv_a_proj_with_mqa", self.kv_rank + turned).split([self.kv_rank, turned], -1)
        k, v = self.keys_and_values(self.latent(made, f"{name}.kv_a_layernorm"), name)
        k_turned = self.rope(k_turned.view([tokens, 1, turned])).expand([tokens, heads, turned])
        return cat([q, self.rope(q_turned)], -1), cat([k, k_turned], -1), v

    def keys_and_values(self, latent: Value, name: str) -> Tuple[Value, Value]:
        """Of all heads, [tokens, heads, size]: of keys the part that is not turned."""
        tokens, heads, sizes = latent.shape[0], self.heads, [self.unturned, self.value_part]
        if self.has(f"{name}.kv_b_proj.weight") or not self.is_gguf:
            k, v = self.linear(latent, f"{name}.kv_b_proj", heads * sum(sizes)).view([tokens, heads, sum(sizes)]).split(sizes, -1)
            return k, v
        # newer files have a matrix for each head, and that of keys the other way round
        f, rows = self.step.f, latent.unsqueeze(0)
        by_key = f.constant(self.weight(f"{name}.k_b_proj.weight", [heads, self.kv_rank, sizes[0]]))
        by_value = f.constant(self.weight(f"{name}.v_b_proj.weight", [heads, sizes[1], self.kv_rank]))
        k, v = (rows.expand([heads, tokens, self.kv_rank]).matmul(by).permute([1, 0, 2]) for by in (by_key, by_value.permute([0, 2, 1])))
        return k, v
