"""MiniMax M2: experts as DeepSeek V3 chooses them, in one group; one norm for the queries of all
heads and one for their keys; rotary embeddings in a part of each head."""

from __future__ import annotations

from ..compiler.ir import Value
from ._config import part_of
from ._mixtures import WithGroups

_EXPERTS = "block_sparse_moe"


class MiniMaxM2(WithGroups):
    types, architectures = ("minimax_m2",), ("minimax-m2",)
    turns_part = True
    gguf_names = {"ffn_gate_inp": f"{_EXPERTS}.gate", "ffn_gate_exps": f"{_EXPERTS}.experts.w1", "ffn_up_exps": f"{_EXPERTS}.experts.w3",
                  "ffn_down_exps": f"{_EXPERTS}.experts.w2", "exp_probs_b": f"{_EXPERTS}.e_score_correction"}  # fmt: skip
    defaults = {"num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 196608, "rope_theta": 5e6, "num_local_experts": 256, "num_experts_per_tok": 8}
    count_key, parts = "num_local_experts", ("w1", "w3", "w2")
    all_heads_normed = True
    beside_shares = 0.0

    def setup(self) -> None:
        super().setup()
        config = self.config
        self.setup_experts()
        config.choice("scoring_func", ("sigmoid",), "sigmoid")
        config.choice("qk_norm_type", ("per_layer",), "per_layer")
        kinds = config.get("attn_type_list", [1])
        for key, value, is_known in (
            ("use_qk_norm", config.flag("use_qk_norm", True), True), ("use_routing_bias", config.flag("use_routing_bias", True), True),
            ("shared_intermediate_size", config.get("shared_intermediate_size", 0), 0), ("attn_type_list", kinds, [1] * (len(kinds) if isinstance(kinds, list) else 1)),
        ):  # fmt: skip
            if value != is_known:
                config.refuse(f"config: {key} is {value!r:.80}, which this family does not do")

    def setup_rope(self) -> None:
        """Published models say how many elements of a head are turned. A factor comes first."""
        config = self.config
        if config.get("rotary_dim") is not None:
            turned = config.integer("rotary_dim", maximum=self.head_size)
            self.config = config.changed(partial_rotary_factor=config.get("partial_rotary_factor", part_of(turned, self.head_size)))
        super().setup_rope()

    def mlp(self, x: Value, name: str) -> Value:
        return self.expert_mlp(x, name.replace(".mlp", f".{_EXPERTS}"))

    def bias_of(self, name: str) -> str:
        return super().bias_of(name.replace(f".{self.router_name}", ""))
