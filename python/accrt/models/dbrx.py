"""DBRX: layer norms without biases, one product for queries, keys and values, which are bounded,
and experts, whose matrices are one tensor for all of a layer."""

from __future__ import annotations

from typing import Any, Dict, Tuple

from ..compiler.ir import Value
from ._experts import WithExperts


class Dbrx(WithExperts):
    types, router_name = ("dbrx",), "router.layer"
    architectures: Tuple[str, ...] = ("dbrx",)
    gguf_names = {"attn_norm": "norm_attn_norm.norm_1", "attn_output_norm": "norm_attn_norm.norm_2", "attn_qkv": "norm_attn_norm.attn.Wqkv",
                  "attn_output": "norm_attn_norm.attn.out_proj", "ffn_gate_inp": "ffn.router.layer",
                  **{f"ffn_{part}_exps": f"ffn.experts.{part}_proj" for part in ("gate", "up", "down")}}  # fmt: skip
    prefix, embedding_name, final_norm, layer_name, attention_name, output_name = "transformer.", "wte", "norm_f", "blocks.{}", "norm_attn_norm.attn", "out_proj"
    defaults = {"n_layers": 24, "n_heads": 16, "d_model": 2048, "max_seq_len": 2048}
    keys = {"hidden_size": ("d_model",), "num_hidden_layers": ("n_layers",), "num_attention_heads": ("n_heads",), "max_position_embeddings": ("max_seq_len",)}
    #: Of what both parts of the configuration say, what it is called elsewhere.
    _IN_PARTS = {"attn_config": {"clip_qkv": "clip_qkv", "kv_n_heads": "num_key_value_heads", "rope_theta": "rope_theta"},
                 "ffn_config": {"ffn_hidden_size": "intermediate_size", "moe_num_experts": "num_experts", "moe_top_k": "num_experts_per_tok"}}  # fmt: skip
    _DEFAULTS = {"num_key_value_heads": 1, "intermediate_size": 3584, "num_experts": 4, "num_experts_per_tok": 1}

    def setup(self) -> None:
        config, ffn = self.config, self._part("ffn_config")
        for part, names in self._IN_PARTS.items():
            given = self._part(part)
            for theirs, ours in names.items():
                if given.get(theirs) is not None:
                    config.values[ours] = given[theirs]
        for name, value in self._DEFAULTS.items():
            config.values.setdefault(name, value)
        act = ffn.get("ffn_act_fn") or {}
        config.values["hidden_act"] = act.get("name", "silu") if isinstance(act, dict) else act
        super().setup()
        self.eps = 1e-5
        self.most_of_qkv = config.number("clip_qkv", 0.0)
        self.setup_experts()
        self.order = ffn.get("moe_normalize_expert_weights", 1.0)
        if self.order not in (None, 1, 2):
            config.refuse(f"config: ffn_config.moe_normalize_expert_weights is {self.order!r}; there are null, 1 and 2")

    def _part(self, name: str) -> Dict[str, Any]:
        found = self.config.get(name) or {}
        if isinstance(found, dict):
            return found
        self.config.refuse(f"config: {name} is {found!r:.80}, expected an object")
        return {}

    def norm(self, x: Value, name: str) -> Value:
        return self.layer_norm(x, name)

    def qkv(self, x: Value, name: str) -> Tuple[Value, Value, Value]:
        q, k, v = self.split_in_three(self.bounded(self.linear(x, f"{name}.Wqkv", self.joined_size, False)))
        return self.rope(q), self.rope(k), v

    def layer(self, x: Value, name: str, index: int) -> Value:
        x = self.attention(self.norm(x, f"{name}.norm_attn_norm.norm_1"), f"{name}.{self.attention_name}", index) + x
        return self.expert_mlp(self.norm(x, f"{name}.norm_attn_norm.norm_2"), f"{name}.ffn") + x

    def routed(self, x: Value, name: str) -> Tuple[Value, Value]:
        shares, chosen = self.linear(x, name, self.experts, bias=False).softmax(-1).topk(self.chosen, -1)
        if self.order is None:
            return shares, chosen
        return shares / (shares.sum(-1, True) if self.order == 1 else shares.square().sum(-1, True).sqrt()), chosen

    def through(self, rows: Value, name: str, ids: Value, ends: Value) -> Value:
        if self.is_gguf:
            return super().through(rows, name, ids, ends)
        gate, up, down = (self._whole(f"{name}.mlp.{part}") for part in ("w1", "v1", "w2"))
        return (self.activation(rows.grouped_linear([gate], ends)) * rows.grouped_linear([up], ends)).grouped_matmul(down, ends)

    def _whole(self, name: str) -> Value:
        """The rows of all experts, [experts, expert's size, hidden]."""
        rows = self.step.f.constant(self.weight(name, [self.experts * self.expert_size, self.hidden]))
        return rows.view([self.experts, self.expert_size, self.hidden])
