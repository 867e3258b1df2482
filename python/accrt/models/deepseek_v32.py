"""DeepSeek V3.2 and GLM-5: DeepSeek V3 whose attention chooses among the keys by an index. Up to as
many keys as it chooses, it takes all: sequences end there, and nothing of the index is computed."""

from __future__ import annotations

from .glm4_moe_lite import Glm4MoeLite

_INDEXED = "indexed_attention"


class DeepseekV32(Glm4MoeLite):
    types = ("deepseek_v32",)
    defaults = {"q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "n_routed_experts": 256,
                "n_shared_experts": 1, "num_experts_per_tok": 8, "moe_intermediate_size": 2048, "n_group": 8, "topk_group": 4, "norm_topk_prob": True,
                "routed_scaling_factor": 2.5, "first_k_dense_replace": 3, "max_position_embeddings": 163840, "index_topk": 2048}  # fmt: skip

    def setup(self) -> None:
        super().setup()
        config = self.config
        self.of_layers("layer_types", (_INDEXED,), [_INDEXED] * self.layers)
        self.most = self.trained = min(self.most, config.integer("index_topk"))
        for name in ("index_head_dim", "index_n_heads", "indexer_types", "index_topk_pattern", "index_topk_freq", "index_skip_topk_offset", "indexer_rope_interleave"):
            config.get(name)  # of the index
        self.checkpoint.unused += tuple(name for name in self.checkpoint.tensors if f".{self.attention_name}.indexer." in name)


class GlmMoeDsa(DeepseekV32):
    types = ("glm_moe_dsa",)
    defaults = {**DeepseekV32.defaults, "rms_norm_eps": 1e-5, "q_lora_rank": 2048, "qk_nope_head_dim": 192, "v_head_dim": 256, "n_group": 1, "topk_group": 1,
                "max_position_embeddings": 202752}  # fmt: skip
