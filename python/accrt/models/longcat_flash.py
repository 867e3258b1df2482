"""LongCat Flash: a layer has attention, of latents, and an MLP twice, and experts beside the second
half, which take what the first MLP takes. Some experts give what they take."""

from __future__ import annotations

from typing import Tuple

import numpy as np

from ..compiler.ir import Value
from ._blocks import MOST_LAYERS
from ._latents import WithLatents
from ._mixtures import WithGroups


class LongcatFlash(WithLatents, WithGroups):
    types = ("longcat_flash",)
    defaults = {"rms_norm_eps": 1e-5, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "n_routed_experts": 512,
                "zero_expert_num": 256, "moe_topk": 12, "expert_ffn_hidden_size": 2048, "ffn_hidden_size": 12288, "routed_scaling_factor": 6.0,
                "max_position_embeddings": 131072, "rope_theta": 1e7}  # fmt: skip
    keys = {"intermediate_size": ("ffn_hidden_size",), "moe_intermediate_size": ("expert_ffn_hidden_size",), "num_experts_per_tok": ("moe_topk",)}
    router_name = "router.classifier"
    interleaved, shares_normed = True, False

    def setup(self) -> None:
        config = self.config
        layers = config.get("num_layers")
        if layers is not None:
            config.values["num_hidden_layers"] = layers
        super().setup()
        self.layers = min(2 * self.layers, MOST_LAYERS)  # halves
        self.setup_experts("moe_intermediate_size")
        self.of_shares, self.without_weights = config.number("routed_scaling_factor"), config.integer("zero_expert_num", 0, minimum=0, maximum=1 << 12)
        for key, known in (("zero_expert_type", "identity"), ("attention_method", "MLA"), ("router_bias", False), ("mla_scale_q_lora", True), ("mla_scale_kv_lora", True)):
            if config.get(key, known) != known:
                config.refuse(f"config: {key} is {config.get(key)!r}, which this family does not do")
        self.scale = self.head_size**-0.5 * (self.hidden / max(self.q_rank, 1)) ** 0.5
        # transformers saves matrices of experts without weights, too, that it does not read
        no_experts = tuple(f".mlp.{self.experts_name}.{expert}." for expert in range(self.experts, self.experts + self.without_weights))
        self.checkpoint.unused += tuple(name for name in self.checkpoint.tensors if name.startswith("model.mtp.") or any(part in name for part in no_experts))

    def latent(self, x: Value, name: str) -> Value:
        made = super().latent(x, name)
        if not name.endswith(".kv_a_layernorm"):
            return made
        return made * self.step.f.constant(self.constant("of_latents", np.array([(self.hidden / self.kv_rank) ** 0.5], np.float32)))

    def layer(self, x: Value, name: str, index: int) -> Value:
        """Half of a layer."""
        name, half = self.layer_name.format(index // 2), index % 2
        x = self.attention(self.norm(x, f"{name}.input_layernorm.{half}"), f"{name}.{self.attention_name}.{half}", index) + x
        taken = self.norm(x, f"{name}.post_attention_layernorm.{half}")
        if not half:
            self.step.shared[name] = self.expert_mlp(taken, f"{name}.mlp")
        x = self.gated(taken, f"{name}.mlps.{half}", self.intermediate) + x
        return x + self.step.shared[name] if half else x

    def expert_mlp(self, x: Value, name: str) -> Value:
        shares, chosen = self.routed(x, f"{name}.{self.router_name}")
        has_weights = chosen < self.experts
        f = self.step.f
        many = f.constant(self.constant("experts", np.array([self.experts], np.int64)))
        # a row of an expert without weights goes through another one, and is multiplied by 0
        others = chosen.to_copy("i64").remainder(many)
        made = self._in_groups(x, f"{name}.{self.experts_name}", has_weights.where(shares, 0.0), others)
        return made + x * has_weights.where(f.full([1, 1], 0.0, "f32"), shares).sum(-1, True)

    def routed(self, x: Value, name: str) -> Tuple[Value, Value]:
        all_of_them = self.experts + self.without_weights
        scores = self.linear(x, name, all_of_them, bias=False).softmax(-1)
        by = scores + self.float(self.weight(f"{name.rpartition('.')[0]}.e_score_correction_bias", [all_of_them]))
        chosen = by.topk(self.chosen, -1)[1]
        return self.multiplied(self.shares_at(scores, chosen)), chosen
