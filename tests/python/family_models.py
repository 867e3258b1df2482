"""Small models of the families whose numbers come from Hugging Face's own code: configurations as
they are published, random weights that follow from the names of the tensors, and the logits that
transformers computed of them (family_models.json).

    python tests/python/family_models.py [NAME...]     # records them anew; needs torch, transformers and gguf
"""

from __future__ import annotations

import base64
import contextlib
import json
import math
import re
import sys
import tempfile
import zlib
from pathlib import Path
from unittest import mock

import numpy as np

import tiny_models as tiny
from accrt.compiler.encodings import dequantize
from accrt.compiler.quantizers import quantize
from accrt.models import _parts

RECORDED = Path(__file__).with_suffix(".json")
ROWS, LENGTH, COLUMNS = 5, 64, (3, 100, 257)
_SMALL = {key: value for key, value in tiny._SMALL.items() if key not in ("head_dim", "rope_theta")}


def _of(model_type, **changes):
    made = {**_SMALL, "model_type": model_type, **changes}
    return {key: value for key, value in made.items() if value != "absent"}


_GEMMA = {"hidden_act": "absent", "hidden_activation": "gelu_pytorch_tanh", "head_dim": 16, "tie_word_embeddings": "absent"}
_GEMMA4 = {**_GEMMA, "global_head_dim": 24, "sliding_window": 6, "tie_word_embeddings": True, "pad_token_id": 0}
_LAYER_NORMED = {"rms_norm_eps": "absent", "layer_norm_eps": 1e-5}
_FALCON = {"hidden_act": "absent", "rms_norm_eps": "absent", "intermediate_size": "absent", "num_key_value_heads": "absent", "layer_norm_epsilon": 1e-5, "tie_word_embeddings": "absent"}
_LATENTS = {"num_key_value_heads": 6, "kv_lora_rank": 20, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 12, "moe_intermediate_size": 24}
_KIMI_LINEAR = {**_LATENTS, "max_position_embeddings": "absent", "model_max_length": 256, "rms_norm_eps": 1e-2, "num_hidden_layers": 4, "num_experts": 6, "num_experts_per_token": 2,
                "num_expert_group": 2, "topk_group": 1, "num_shared_experts": 1, "moe_renormalize": True, "routed_scaling_factor": 2.4, "pad_token_id": 0}  # fmt: skip
_GRANITE = {"embedding_multiplier": 6.0, "residual_multiplier": 0.4, "attention_multiplier": 0.2, "logits_scaling": 4.0, "rope_theta": 10000.0}
_GRANITE4 = {**_GRANITE, "hidden_size": 96, "layer_types": ["attention"] * 3, "mamba_n_heads": 12, "mamba_d_head": 16}
_MAMBA = {"mamba_n_heads": 12, "mamba_d_state": 16, "mamba_n_groups": 1, "mamba_d_conv": 4, "mamba_expand": 2, "mamba_chunk_size": 16}
_GPT = {"vocab_size": 320, "layer_norm_epsilon": 1e-5, "bos_token_id": 257, "eos_token_id": 258}
_GPTJ = {**_GPT, "n_positions": 256, "n_embd": 96, "n_layer": 3, "n_head": 6, "rotary_dim": 8, "n_inner": None, "activation_function": "gelu_new"}
_OMNI = {"tie_word_embeddings": False, "audio_config": {"model_type": "qwen2_5_omni_audio_encoder", "num_mel_bins": 8, "encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 32,
                                                        "d_model": 32, "n_window": 4, "output_dim": 48}}  # fmt: skip
_MINISTRAL = {"type": "yarn", "rope_type": "yarn", "rope_theta": 1e6, "factor": 16.0, "original_max_position_embeddings": 16, "beta_fast": 32.0, "beta_slow": 1.0,
              "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.4}  # fmt: skip
_NEMOTRON_H = {"rms_norm_eps": "absent", "hidden_act": "absent", "layer_norm_epsilon": 1e-5, "head_dim": 16, "mlp_hidden_act": "relu2", "mamba_hidden_act": "silu", "mamba_num_heads": 6,
               "mamba_head_dim": 16, "n_groups": 2, "ssm_state_size": 16, "conv_kernel": 4, "chunk_size": 16, "num_hidden_layers": "absent", "pad_token_id": 0}  # fmt: skip
_ZAMBA = {**_of("zamba2", hidden_act="absent", tie_word_embeddings=True, num_hidden_layers=5, num_key_value_heads=6, pad_token_id=0,
                layers_block_type=["mamba", "hybrid", "hybrid", "mamba", "hybrid"]),
          "mamba_d_state": 16, "mamba_d_conv": 4, "mamba_expand": 2, "mamba_ngroups": 1, "n_mamba_heads": 6, "chunk_size": 16}  # fmt: skip
_MAMBA1 = {"vocab_size": 320, "hidden_size": 48, "num_hidden_layers": 3, "state_size": 16, "conv_kernel": 4, "bos_token_id": 257, "eos_token_id": 258, "pad_token_id": 1,
           "tie_word_embeddings": True}  # fmt: skip
CONFIGS = {
    "gemma": _of("gemma", **{**_GEMMA, "hidden_act": "gelu", "hidden_activation": None}, rope_theta=10000.0),
    "gemma-new-form": _of("gemma", **_GEMMA, rope_parameters={"rope_type": "default", "rope_theta": 5000.0}, num_key_value_heads=1),
    "gemma3": _of("gemma3_text", **_GEMMA, num_hidden_layers=4, sliding_window=6, sliding_window_pattern=3, query_pre_attn_scalar=24, rope_theta=100000.0,
                  rope_local_base_freq=500.0, rope_scaling={"rope_type": "linear", "factor": 8.0}),
    "gemma3-new-form": _of("gemma3_text", **_GEMMA, sliding_window=6, layer_types=["sliding_attention", "full_attention", "sliding_attention"],
                           final_logit_softcapping=30.0, rope_parameters={"full_attention": {"rope_type": "default", "rope_theta": 80000.0},
                                                                         "sliding_attention": {"rope_type": "default", "rope_theta": 700.0}}),
    "gemma3-images": {"model_type": "gemma3", "eos_token_id": [258, 256], "mm_tokens_per_image": 4, "image_token_index": 319, "boi_token_index": 318, "eoi_token_index": 317,
                      "text_config": _of("gemma3_text", **_GEMMA, num_hidden_layers=7, sliding_window=6, query_pre_attn_scalar="absent", rms_norm_eps="absent"),
                      "vision_config": {"model_type": "siglip_vision_model", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1,
                                        "num_attention_heads": 2, "image_size": 16, "patch_size": 4}},
    "gemma3-file": _of("gemma3_text", **_GEMMA, num_hidden_layers=7, sliding_window=6, query_pre_attn_scalar=16),
    "gemma3n": _of("gemma3n_text", **_GEMMA, num_hidden_layers=6, sliding_window=6, num_kv_shared_layers=2, intermediate_size=[80, 64, 80, 80, 80, 80],
                   layer_types=["sliding_attention", "full_attention", "sliding_attention", "full_attention", "sliding_attention", "full_attention"],
                   activation_sparsity_pattern=[0.9, 0.0, 0.6, 0.0, 0.0, 0.0], vocab_size_per_layer_input=300, hidden_size_per_layer_input=12, laurel_rank=10,
                   altup_num_inputs=4, rope_theta=100000.0, rope_local_base_freq=500.0, final_logit_softcapping=30.0, rope_scaling=None),
    "gemma3n-sparse": _of("gemma3n_text", **_GEMMA, rms_norm_eps=1e-2, num_hidden_layers=12, hidden_size=24, intermediate_size=240, sliding_window=9, num_kv_shared_layers=6, vocab_size_per_layer_input=320,
                         hidden_size_per_layer_input=8, laurel_rank=4, altup_num_inputs=4, altup_active_idx=1, altup_correct_scale=False),
    "mixtral-file": _of("mixtral", num_local_experts=5, num_experts_per_tok=3, rope_theta=10000.0, sliding_window=None),
    "qwen3-moe": _of("qwen3_moe", head_dim=16, num_experts=6, num_experts_per_tok=3, moe_intermediate_size=24, norm_topk_prob=True, rope_theta=10000.0,
                     decoder_sparse_step=1, mlp_only_layers=[], use_sliding_window=False, max_window_layers=3),
    "qwen3-moe-blocks": _of("qwen3_moe", head_dim=32, num_experts=5, num_experts_per_tok=2, moe_intermediate_size=32, norm_topk_prob=True, hidden_size=64, intermediate_size=96),
    "qwen3-moe-some": _of("qwen3_moe", num_experts=3, num_experts_per_tok=1, moe_intermediate_size=40, decoder_sparse_step=2, num_hidden_layers=5,
                          mlp_only_layers=[3], use_sliding_window=True, sliding_window=5),
    "qwen2-moe": _of("qwen2_moe", num_experts=5, num_experts_per_tok=2, moe_intermediate_size=24, shared_expert_intermediate_size=40, norm_topk_prob=False),
    "qwen2-moe-windows": _of("qwen2_moe", num_experts=4, num_experts_per_tok=2, moe_intermediate_size=24, shared_expert_intermediate_size=40, norm_topk_prob=True,
                             use_sliding_window=True, sliding_window=5, max_window_layers=2, qkv_bias=False),
    "olmoe": _of("olmoe", num_experts=6, num_experts_per_tok=3, num_key_value_heads=6),
    "olmoe-clipped": _of("olmoe", num_experts=6, num_experts_per_tok=3, norm_topk_prob=True, clip_qkv=0.7, attention_bias=True),
    "mixtral": _of("mixtral", num_local_experts=4, num_experts_per_tok=2, rope_theta=20000.0, sliding_window=7),
    "phi4-mini": _of("phi3", pad_token_id=0, partial_rotary_factor=0.75, hidden_size=96, num_attention_heads=6, sliding_window=200, tie_word_embeddings=True,
                     original_max_position_embeddings=64, rope_scaling={"type": "longrope", "short_factor": [1.0 + i / 8 for i in range(6)],
                                                                        "long_factor": [2.0 + i for i in range(6)]}),
    "phi4": _of("phi3", pad_token_id=0, sliding_window=None, rope_theta=250000, rope_scaling=None, original_max_position_embeddings=256),
    "phi": _of("phi", **_LAYER_NORMED, num_key_value_heads=None, hidden_act="gelu_new", partial_rotary_factor=0.5, rope_theta=10000.0),
    "phi-normed": _of("phi", **_LAYER_NORMED, hidden_size=96, hidden_act="gelu_new", qk_layernorm=True, partial_rotary_factor="absent"),
    "pythia": _of("gpt_neox", **_LAYER_NORMED, num_key_value_heads="absent", hidden_act="gelu", rotary_pct=0.25, rotary_emb_base=10000, hidden_size=96,
                  use_parallel_residual=True),
    "gpt-neox-behind": _of("gpt_neox", **_LAYER_NORMED, num_key_value_heads="absent", hidden_act="gelu_new", use_parallel_residual=False, attention_bias=False,
                           rope_parameters={"rope_type": "default", "rope_theta": 5000.0, "partial_rotary_factor": 0.5}),
    "cohere": _of("cohere", **_LAYER_NORMED, tie_word_embeddings="absent", logit_scale=0.5, rope_theta=10000.0),
    "cohere-normed": _of("cohere", **_LAYER_NORMED, tie_word_embeddings="absent", use_qk_norm=True, attention_bias=True, rope_theta=70000.0),
    "cohere2": _of("cohere2", **_LAYER_NORMED, tie_word_embeddings="absent", num_hidden_layers=5, sliding_window=6, logit_scale=0.3, rope_theta=10000.0),
    "starcoder2": _of("starcoder2", **_LAYER_NORMED, norm_epsilon=1e-5, hidden_act="gelu_pytorch_tanh", tie_word_embeddings="absent", use_bias=True, sliding_window=7),
    "starcoder2-plain": _of("starcoder2", **_LAYER_NORMED, tie_word_embeddings=False, use_bias=False, hidden_act="gelu_pytorch_tanh"),
    "stablelm": _of("stablelm", **_LAYER_NORMED, hidden_size=96, use_qkv_bias=True, partial_rotary_factor=0.25, rope_theta=10000),
    "stablelm2-12b": _of("stablelm", **_LAYER_NORMED, hidden_size=96, qk_layernorm=True, use_parallel_residual=True),
    "glm": _of("glm", pad_token_id=0, head_dim=16, attention_bias=True, rope_theta=10000.0),
    "glm4": _of("glm4", pad_token_id=0, head_dim=16, attention_bias=False, rope_theta=10000.0, partial_rotary_factor=0.5),
    "glm4-biases": _of("glm4", pad_token_id=0, head_dim=32, attention_bias=True, rope_theta=10000.0, tie_word_embeddings=True),
    "opt": {"model_type": "opt", "vocab_size": 320, "hidden_size": 48, "ffn_dim": 80, "num_hidden_layers": 3, "num_attention_heads": 6, "word_embed_proj_dim": 48,
            "max_position_embeddings": 100, "activation_function": "relu", "do_layer_norm_before": True, "bos_token_id": 257, "eos_token_id": 258, "pad_token_id": 1},
    "olmo3": _of("olmo3", num_hidden_layers=5, sliding_window=6, rope_theta=500000.0, pad_token_id=0,
                 rope_scaling={"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "attention_factor": 1.2, "beta_fast": 32.0, "beta_slow": 1.0}),
    "exaone4": _of("exaone4", head_dim=16, num_hidden_layers=5, sliding_window=6, rope_theta=10000.0, sliding_window_pattern="LLLG",
                   layer_types=["sliding_attention", "sliding_attention", "sliding_attention", "full_attention", "sliding_attention"]),
    "exaone4-full": _of("exaone4", sliding_window=None, rope_theta=10000.0, tie_word_embeddings=True, layer_types=["full_attention"] * 3),
    "ernie4_5": _of("ernie4_5", head_dim=16, rope_theta=500000.0, use_bias=False, tie_word_embeddings=True, pad_token_id=0),
    "ernie4_5-biases": _of("ernie4_5", head_dim=8, rope_theta=500000.0, use_bias=True, pad_token_id=0),
    "ernie4_5-moe": _of("ernie4_5_moe", rope_theta=500000.0, use_bias=False, tie_word_embeddings=True, pad_token_id=0, num_hidden_layers=4, moe_intermediate_size=24,
                        moe_num_experts=6, moe_k=3, moe_num_shared_experts=2, moe_layer_start_index=1, moe_layer_end_index=-1, moe_layer_interval=1),
    "ernie4_5-moe-some": _of("ernie4_5_moe", head_dim="absent", rope_theta=20000.0, use_bias=False, pad_token_id=0, moe_intermediate_size=24, moe_num_experts=5, moe_k=2,
                               moe_num_shared_experts=0, num_hidden_layers=6, moe_layer_start_index=0, moe_layer_end_index=3, moe_layer_interval=2, moe_norm_min=0.7),
    "minimax-m2": _of("minimax_m2", head_dim=16, rotary_dim=8, num_local_experts=6, num_experts_per_tok=3, rope_theta=5000000, intermediate_size=24, use_qk_norm=True,
                      qk_norm_type="per_layer", scoring_func="sigmoid", use_routing_bias=True, attn_type_list=[1, 1, 1], shared_intermediate_size=0),
    "minimax": _of("minimax", head_dim=16, num_hidden_layers=4, num_local_experts=5, num_experts_per_tok=2, rope_theta=10000.0, block_size=16, sliding_window=None,
                   layer_types=["linear_attention", "linear_attention", "full_attention", "linear_attention"], full_attn_alpha_factor=3.5, full_attn_beta_factor=1.0,
                   linear_attn_alpha_factor=2.5, linear_attn_beta_factor=0.5, mlp_alpha_factor=1.5, mlp_beta_factor=0.75),
    "minimax-plain": _of("minimax", num_attention_heads=8, hidden_size=64, num_local_experts=3, num_experts_per_tok=2, tie_word_embeddings=True),
    "hunyuan-moe": _of("hunyuan_v1_moe", head_dim=16, intermediate_size=24, rope_theta=10000.0, pad_token_id=0, num_experts=5, moe_topk=[2, 2, 2], num_shared_expert=[1, 1, 1],
                       moe_intermediate_size=[24, 24, 24], use_mixed_mlp_moe=True, use_qk_norm=True, attention_bias=False, tie_word_embeddings=True,
                       rope_scaling={"type": "dynamic", "alpha": 100.0, "factor": 1.0, "beta_fast": 32, "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0}),
    "seed-oss": _of("seed_oss", head_dim=16, rope_theta=10000.0, attention_bias=True, attention_out_bias=False, rope_scaling={"rope_type": "default"}),
    "mistral3": {"model_type": "mistral3", "image_token_index": 10, "spatial_merge_size": 2, "multimodal_projector_bias": False, "projector_hidden_act": "gelu", "vision_feature_layer": -1,
                 "text_config": _of("mistral", head_dim=16, rope_theta=10000.0, sliding_window=None),
                 "vision_config": {"model_type": "pixtral", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2, "head_dim": 16,
                                   "image_size": 16, "patch_size": 4, "rope_theta": 10000.0}},
    "bloom": {"model_type": "bloom", "vocab_size": 320, "n_embed": 48, "n_layer": 3, "n_head": 6, "seq_length": 96, "layer_norm_epsilon": 1e-5, "bos_token_id": 257, "eos_token_id": 258,
              "apply_residual_connection_post_layernorm": False, "slow_but_exact": False, "pretraining_tp": 1},
    "bloom-heads": {"model_type": "bloom", "vocab_size": 320, "hidden_size": 64, "n_layer": 2, "num_attention_heads": 8, "seq_length": 96, "bos_token_id": 257, "eos_token_id": 258},
    "mpt": {"model_type": "mpt", "vocab_size": 320, "d_model": 48, "n_layers": 3, "n_heads": 6, "max_seq_len": 96, "expansion_ratio": 4, "no_bias": True,
            "attn_config": {"alibi": True, "alibi_bias_max": 8, "attn_impl": "torch", "clip_qkv": None, "qk_ln": False, "softmax_scale": None, "prefix_lm": False}},
    "mpt-clipped": {"model_type": "mpt", "vocab_size": 320, "d_model": 64, "n_layers": 2, "n_heads": 4, "max_seq_len": 96,
                    "attn_config": {"alibi": True, "clip_qkv": 0.6, "softmax_scale": 0.2}},
    "falcon-7b": _of("falcon", **_FALCON, num_attention_heads=3, multi_query=True, parallel_attn=True),
    "falcon-40b": _of("falcon", **_FALCON, new_decoder_architecture=True, num_kv_heads=2, rope_theta=5000.0),
    "falcon2-11b": _of("falcon", **{**_FALCON, "tie_word_embeddings": False}, new_decoder_architecture=True, num_kv_heads=3, num_ln_in_parallel_attn=1, ffn_hidden_size=80),
    "falcon-rw": _of("falcon", **_FALCON, num_attention_heads=8, hidden_size=64, multi_query=False, parallel_attn=False, alibi=True, bias=True),
    "deepseek-v2-lite": _of("deepseek_v2", **_LATENTS, q_lora_rank=None, n_routed_experts=6, n_shared_experts=2, num_experts_per_tok=3, first_k_dense_replace=1,
                            topk_method="greedy", n_group=1, topk_group=1, norm_topk_prob=False, routed_scaling_factor=1.0,
                            rope_scaling={"type": "yarn", "factor": 4, "original_max_position_embeddings": 64, "beta_fast": 32, "beta_slow": 1, "mscale": 0.707, "mscale_all_dim": 0.707}),
    "deepseek-v2": _of("deepseek_v2", **_LATENTS, q_lora_rank=24, n_routed_experts=8, n_shared_experts=1, num_experts_per_tok=2, first_k_dense_replace=1,
                       topk_method="group_limited_greedy", n_group=4, topk_group=2, norm_topk_prob=False, routed_scaling_factor=16.0),
    "deepseek-v3": _of("deepseek_v3", **_LATENTS, q_lora_rank=24, n_routed_experts=8, n_shared_experts=1, num_experts_per_tok=3, first_k_dense_replace=1, n_group=4, topk_group=2,
                       norm_topk_prob=True, routed_scaling_factor=2.5, num_nextn_predict_layers=0,
                       rope_scaling={"type": "yarn", "factor": 40, "original_max_position_embeddings": 64, "beta_fast": 32, "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0}),
    "deepseek-v3-halves": _of("deepseek_v3", **_LATENTS, q_lora_rank=None, n_routed_experts=4, n_shared_experts=2, num_experts_per_tok=2, first_k_dense_replace=0, n_group=1,
                              topk_group=1, norm_topk_prob=False, routed_scaling_factor=1.0, rope_interleave=False, num_nextn_predict_layers=0),
    "dots1": _of("dots1", head_dim=16, n_routed_experts=5, n_shared_experts=1, num_experts_per_tok=2, moe_intermediate_size=24, first_k_dense_replace=1, norm_topk_prob=True,
                 routed_scaling_factor=2.0, n_group=1, topk_group=1),
    "glm4-moe": _of("glm4_moe", head_dim=16, n_routed_experts=6, n_shared_experts=1, num_experts_per_tok=2, moe_intermediate_size=24, first_k_dense_replace=1, norm_topk_prob=True,
                    attention_bias=True, use_qk_norm=True, partial_rotary_factor=0.5, rope_theta=10000.0, num_nextn_predict_layers=0),
    "granitemoe": _of("granitemoe", **_GRANITE, num_local_experts=5, num_experts_per_tok=2),
    "granitemoeshared": _of("granitemoeshared", **_GRANITE, num_local_experts=4, num_experts_per_tok=2, shared_intermediate_size=40),
    "granite4-dense": _of("granitemoehybrid", **_GRANITE4, num_local_experts=0, num_experts_per_tok=0, shared_intermediate_size=40, position_embedding_type="rope"),
    "granite4-experts": _of("granitemoehybrid", **_GRANITE4, num_local_experts=4, num_experts_per_tok=2, shared_intermediate_size=40, position_embedding_type="nope"),
    "gptj": {"model_type": "gptj", **_GPTJ},
    "codegen": {"model_type": "codegen", **_GPTJ, "n_head": 8, "n_embd": 64, "n_ctx": 256},
    "gpt-neo": {"model_type": "gpt_neo", **_GPT, "hidden_size": 48, "num_layers": 4, "num_heads": 6, "max_position_embeddings": 100, "window_size": 7, "intermediate_size": None,
                "activation_function": "gelu_new", "attention_types": [[["global", "local"], 2]]},
    "starcoder": {"model_type": "gpt_bigcode", **_GPT, "n_positions": 100, "n_embd": 48, "n_layer": 3, "n_head": 6, "n_inner": 80, "activation_function": "gelu_pytorch_tanh",
                  "multi_query": True, "attention_softmax_in_fp32": True, "scale_attention_softmax_in_fp32": True},
    "gpt-bigcode-heads": {"model_type": "gpt_bigcode", **_GPT, "n_positions": 100, "n_embd": 48, "n_layer": 2, "n_head": 3, "multi_query": False, "scale_attn_weights": False},
    "xglm": {"model_type": "xglm", "vocab_size": 320, "d_model": 48, "ffn_dim": 80, "num_layers": 3, "attention_heads": 6, "max_position_embeddings": 100, "activation_function": "gelu",
             "scale_embedding": True, "bos_token_id": 257, "eos_token_id": 258, "pad_token_id": 1},
    "nemotron": _of("nemotron", rms_norm_eps="absent", norm_eps=1e-5, head_dim=16, hidden_act="relu2", partial_rotary_factor=0.5, rope_theta=10000.0),
    "arcee": _of("arcee", hidden_act="relu2", head_dim=16, rope_scaling={"rope_type": "yarn", "factor": 5.0, "original_max_position_embeddings": 64, "beta_fast": 32.0, "beta_slow": 1.0}),
    "apertus": _of("apertus", hidden_act="xielu", rope_theta=12000.0,
                   rope_scaling={"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 64, "low_freq_factor": 1.0, "high_freq_factor": 4.0}),
    "helium": _of("helium", head_dim=8, rope_theta=100000.0),
    "olmo": _of("olmo", rms_norm_eps="absent", clip_qkv=0.8, rope_theta=10000.0),
    "persimmon": _of("persimmon", **_LAYER_NORMED, hidden_size=96, num_key_value_heads="absent", hidden_act="relu2", qk_layernorm=True, partial_rotary_factor=0.5, rope_theta=25000.0),
    "llama4": _of("llama4_text", head_dim=16, num_hidden_layers=4, num_local_experts=5, num_experts_per_tok=2, intermediate_size_mlp=56, interleave_moe_layer_step=2,
                  attention_chunk_size=10, floor_scale=16, attn_scale=0.3, rope_theta=10000.0),
    "llama4-plain": _of("llama4_text", head_dim=16, num_local_experts=3, num_experts_per_tok=1, intermediate_size_mlp=56, no_rope_layers=[1, 0, 1], use_qk_norm=False,
                        attn_temperature_tuning=False, attention_chunk_size=33, rope_scaling=tiny._LLAMA3, rope_theta=10000.0),
    "lfm2": {**{key: value for key, value in _of("lfm2", norm_eps=1e-5, num_hidden_layers=5, block_ff_dim=120, block_multiple_of=16, full_attn_idxs=[2, 4], tie_word_embeddings=True,
                                                 rope_theta=10000.0).items() if key not in ("rms_norm_eps", "intermediate_size", "hidden_act")}},
    "lfm2-biases": {**{key: value for key, value in _of("lfm2", norm_eps=1e-5, num_hidden_layers=3, block_auto_adjust_ff_dim=False, conv_bias=True, conv_L_cache=5,
                                                        layer_types=["conv", "full_attention", "conv"], tie_word_embeddings=True).items() if key not in ("rms_norm_eps", "hidden_act", "rope_theta")},
                    "rope_parameters": {"rope_type": "default", "rope_theta": 20000.0}},
    "gpt-oss": _of("gpt_oss", head_dim=16, num_hidden_layers=4, num_local_experts=5, num_experts_per_tok=3, sliding_window=6, attention_bias=True, swiglu_limit=1.5,
                   swiglu_alpha=1.3, rope_theta=10000.0, rope_scaling={"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "truncate": False,
                                                                       "beta_fast": 32.0, "beta_slow": 1.0}),
    "gpt-oss-file": _of("gpt_oss", head_dim=16, num_local_experts=4, num_experts_per_tok=2, sliding_window=8, attention_bias=True, hidden_size=64, intermediate_size=96,
                        rope_theta=10000.0, rope_scaling={"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "truncate": False}),
    "lfm2-moe": _of("lfm2_moe", rms_norm_eps="absent", hidden_act="absent", norm_eps=1e-5, num_hidden_layers=5, moe_intermediate_size=24, num_experts=5, num_experts_per_tok=2,
                    num_dense_layers=1, layer_types=["conv", "conv", "full_attention", "conv", "full_attention"], tie_word_embeddings=True, routed_scaling_factor=1.5,
                    rope_parameters={"rope_type": "default", "rope_theta": 20000.0}),
    "granite4-mamba": _of("granitemoehybrid", **{**_GRANITE4, "layer_types": ["mamba", "attention", "mamba"], **_MAMBA}, num_local_experts=0, num_experts_per_tok=0,
                          shared_intermediate_size=40, position_embedding_type="nope"),
    "granite4-mamba-experts": _of("granitemoehybrid", **{**_GRANITE4, "layer_types": ["mamba", "mamba", "attention"], **_MAMBA, "mamba_n_groups": 3}, num_local_experts=4,
                                  num_experts_per_tok=2, shared_intermediate_size=40, position_embedding_type="nope"),
    "bamba": _of("bamba", **{**_MAMBA, "mamba_d_head": 16, "mamba_n_heads": 6}, attn_layer_indices=[1], rope_theta=10000.0),
    "falcon-h1": _of("falcon_h1", **{**_MAMBA, "mamba_n_heads": 8}, head_dim=16, mamba_d_head=8, mamba_d_ssm=64, mamba_rms_norm=False, projectors_bias=False, key_multiplier=0.4,
                     lm_head_multiplier=0.3, embedding_multiplier=5.6, mlp_multipliers=[0.9, 0.3], attention_out_multiplier=0.9, attention_in_multiplier=1.1,
                     ssm_multipliers=[0.7, 0.5, 0.35, 0.9, 1.2], ssm_in_multiplier=1.25, ssm_out_multiplier=0.5, rope_theta=100000.0),
    "falcon-h1-normed": _of("falcon_h1", **{**_MAMBA, "mamba_n_heads": 8}, head_dim=16, mamba_d_head=8, mamba_d_ssm=64, mamba_rms_norm=True, mamba_norm_before_gate=False,
                            projectors_bias=True, mamba_conv_bias=False),
    "mamba2": {"model_type": "mamba2", "vocab_size": 320, "hidden_size": 48, "num_hidden_layers": 3, "num_heads": 6, "head_dim": 16, "state_size": 16, "n_groups": 2, "expand": 2,
               "conv_kernel": 4, "layer_norm_epsilon": 1e-5, "bos_token_id": 257, "eos_token_id": 258, "pad_token_id": 1, "tie_word_embeddings": True, "chunk_size": 16},
    # epsilon is large because of what GAINS says
    "qwen3-next": _of("qwen3_next", rms_norm_eps=1e-2, head_dim=16, num_hidden_layers=4, partial_rotary_factor=0.5, linear_num_value_heads=4, linear_num_key_heads=2, linear_key_head_dim=8,
                      linear_value_head_dim=16, num_experts=5, num_experts_per_tok=2, moe_intermediate_size=24, shared_expert_intermediate_size=40, rope_theta=10000.0),
    "qwen3.5": _of("qwen3_5_text", rms_norm_eps=1e-2, head_dim=16, num_hidden_layers=4, linear_num_value_heads=6, linear_num_key_heads=2, linear_key_head_dim=12, linear_value_head_dim=8,
                   rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5, "mrope_section": [2, 1, 1], "mrope_interleaved": True}),
    "qwen3.5-moe": _of("qwen3_5_moe_text", rms_norm_eps=1e-2, head_dim=16, num_hidden_layers=4, partial_rotary_factor=0.25, linear_num_value_heads=4, linear_num_key_heads=2, linear_key_head_dim=8,
                       linear_value_head_dim=16, num_experts=5, num_experts_per_tok=2, moe_intermediate_size=24, shared_expert_intermediate_size=40, intermediate_size="absent",
                       full_attention_interval=2),
    "nemotron-h": _of("nemotron_h", **_NEMOTRON_H, hybrid_override_pattern="M-*M-", intermediate_size=72),
    "nemotron3": _of("nemotron_h", **_NEMOTRON_H, layers_block_type=["mamba", "moe", "attention", "moe"], n_routed_experts=8, n_shared_experts=1, num_experts_per_tok=3,
                     moe_intermediate_size=24, moe_shared_expert_intermediate_size=40, routed_scaling_factor=2.5, n_group=4, topk_group=2, norm_topk_prob=True),
    "nemotron3-latent": _of("nemotron_h", **_NEMOTRON_H, layers_block_type=["moe", "mamba", "attention"], n_routed_experts=5, num_experts_per_tok=2, moe_latent_size=32,
                            moe_intermediate_size=24, moe_shared_expert_intermediate_size=40, mlp_bias=False, time_step_min=0.5),
    "olmo-hybrid": _of("olmo_hybrid", num_hidden_layers=4, pad_token_id=0, linear_num_key_heads=3, linear_num_value_heads=6, linear_key_head_dim=16,
                       linear_value_head_dim=8, rope_parameters={"rope_type": "default", "rope_theta": None}),
    "olmo-hybrid-turned": _of("olmo_hybrid", pad_token_id=0, rope_parameters={"rope_type": "default", "rope_theta": 10000.0}, linear_allow_neg_eigval=False,
                              linear_key_head_dim=8, linear_value_head_dim=8, layer_types=["linear_attention", "full_attention", "full_attention"]),
    "zamba2": {**_ZAMBA, "num_mem_blocks": 2, "use_mem_rope": True, "use_shared_attention_adapter": True, "adapter_rank": 12, "rope_theta": 10000.0, "mamba_ngroups": 2},
    "zamba2-plain": {**_ZAMBA, "num_mem_blocks": 1, "use_mem_rope": False, "use_shared_attention_adapter": False, "adapter_rank": 8, "add_bias_linear": True, "time_step_min": 0.5},
    "mamba": {**_MAMBA1, "model_type": "mamba", "layer_norm_epsilon": 1e-5},
    "mamba-biases": {**_MAMBA1, "model_type": "mamba", "use_bias": True, "use_conv_bias": False, "time_step_rank": 5, "expand": 3, "conv_kernel": 3, "tie_word_embeddings": False},
    "falcon-mamba": {**_MAMBA1, "model_type": "falcon_mamba", "mixer_rms_eps": 1e-5, "tie_word_embeddings": False, "expand": 16, "intermediate_size": 96},
    "jamba": _of("jamba", num_hidden_layers=4, num_experts=4, num_experts_per_tok=2, expert_layer_period=2, expert_layer_offset=1, attn_layer_period=3, attn_layer_offset=1,
                 mamba_d_state=8, mamba_d_conv=4, mamba_expand=2, mamba_dt_rank=6),
    "jamba-dense": _of("jamba", num_experts=1, num_experts_per_tok=1, attn_layer_period=2, attn_layer_offset=1, mamba_d_state=12, mamba_proj_bias=True, mamba_conv_bias=False,
                       tie_word_embeddings=True),
    "hunyuan": _of("hunyuan_v1_dense", head_dim=16, rope_theta=10000.0, pad_token_id=0,
                   rope_scaling={"type": "dynamic", "alpha": 100.0, "factor": 1.0, "beta_fast": 32, "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0}),
    "ministral": _of("ministral", head_dim=16, rope_theta=10000.0, sliding_window=6, layer_types=["sliding_attention", "full_attention", "sliding_attention"]),
    "ministral3": _of("ministral3", head_dim=16, sliding_window=None, pad_token_id=0,
                      rope_parameters=_MINISTRAL),
    "minicpm3": _of("minicpm3", num_key_value_heads=6, q_lora_rank=24, kv_lora_rank=20, qk_nope_head_dim=16, qk_rope_head_dim=8, scale_emb=3, dim_model_base=16, tie_word_embeddings=True),
    "minicpm3-file": _of("minicpm3", num_key_value_heads=6, q_lora_rank=24, kv_lora_rank=20, qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=8, dim_model_base=256,
                         tie_word_embeddings=True, rope_theta=10000.0, original_max_position_embeddings=256),
    "internlm3": _of("internlm3", head_dim=16, qkv_bias=True, bias=True, rope_theta=50000.0, rope_scaling={"rope_type": "dynamic", "factor": 6.0}),
    "exaone3": _of("exaone", head_dim=8, rms_norm_eps="absent", hidden_act="absent", num_hidden_layers="absent", num_layers=3, layer_norm_epsilon=1e-5, activation_function="silu",
                   rope_theta=500000.0),
    "phimoe": _of("phimoe", num_local_experts=5, num_experts_per_tok=2, router_jitter_noise=0.4, attention_bias=True, lm_head_bias=True, sliding_window=200,
                  original_max_position_embeddings=64, rope_scaling={"type": "longrope", "short_factor": [1.0 + i / 8 for i in range(4)], "long_factor": [2.0 + i for i in range(4)],
                                                                     "short_mscale": 1.2, "long_mscale": 1.3, "original_max_position_embeddings": 64}),
    "glm4-moe-lite": _of("glm4_moe_lite", **_LATENTS, q_lora_rank=24, n_routed_experts=5, n_shared_experts=1, num_experts_per_tok=2, norm_topk_prob=True, routed_scaling_factor=1.8,
                         n_group=1, topk_group=1, mlp_layer_types=["dense", "sparse", "sparse"], rope_theta=10000.0),
    "cwm": _of("cwm", head_dim=16, num_hidden_layers=5, sliding_window=6, rope_parameters="absent", rope_theta=500000.0,
               rope_scaling={"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}),
    "cwm-plain": _of("cwm", head_dim=16, sliding_window=9, layer_types=["sliding_attention", "full_attention", "sliding_attention"], tie_word_embeddings=True),
    "vaultgemma": _of("vaultgemma", **_GEMMA, num_hidden_layers=4, sliding_window=6, query_pre_attn_scalar=24, rope_theta=10000.0),
    "nanochat": _of("nanochat", hidden_act="relu2", rope_theta=10000.0),
    "nanochat-biases": _of("nanochat", hidden_act="relu2", hidden_size=96, num_key_value_heads=6, attention_bias=True, final_logit_softcapping=5.0),
    "solar-open": _of("solar_open", head_dim=16, moe_intermediate_size=24, n_routed_experts=6, n_shared_experts=1, num_experts_per_tok=2, n_group=1, topk_group=1, norm_topk_prob=True,
                      routed_scaling_factor=1.5, intermediate_size="absent", rope_theta=10000.0),
    "exaone-moe": _of("exaone_moe", head_dim=16, num_hidden_layers=5, sliding_window=6, sliding_window_pattern="LLLG", moe_intermediate_size=24, num_experts=6, num_experts_per_tok=2,
                      layer_types=["sliding_attention", "sliding_attention", "sliding_attention", "full_attention", "sliding_attention"], num_shared_experts=1, n_group=1, topk_group=1, norm_topk_prob=True, routed_scaling_factor=2.5, first_k_dense_replace=1, rope_theta=10000.0),
    "exaone-moe-groups": _of("exaone_moe", head_dim=16, sliding_window=6, layer_types=["full_attention", "sliding_attention", "full_attention"],
                             mlp_layer_types=["sparse", "dense", "sparse"], moe_intermediate_size=24, num_experts=8, num_experts_per_tok=3, num_shared_experts=2, n_group=4, topk_group=2),
    "hyperclovax": _of("hyperclovax", head_dim=8, embedding_multiplier=6.0, residual_multiplier=0.4, attention_multiplier=0.2, logits_scaling=0.25, rope_theta=10000.0),
    "hyperclovax-plain": _of("hyperclovax", use_post_norm=False, attention_bias=True, mlp_bias=True, tie_word_embeddings=True),
    "flex-olmo": _of("flex_olmo", num_experts=5, num_experts_per_tok=3, norm_topk_prob=False, pad_token_id=0),
    "jais2": _of("jais2", **_LAYER_NORMED, hidden_act="relu2", rope_theta=10000.0, head_dim=16),
    "youtu": _of("youtu", **{key: value for key, value in _LATENTS.items() if key[0] != "m"}, q_lora_rank=24, rope_theta=10000.0),
    "youtu-plain": _of("youtu", **{key: value for key, value in _LATENTS.items() if key[0] != "m"}, q_lora_rank=None, rope_interleave=False, tie_word_embeddings=True),
    "mellum": _of("mellum", head_dim=16, num_experts=5, num_experts_per_tok=2, moe_intermediate_size=24, norm_topk_prob=True, num_hidden_layers=4, sliding_window=6,
                  layer_types=["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"], mlp_layer_types=["dense", "sparse", "sparse", "sparse"],
                  rope_parameters={"full_attention": {"rope_type": "yarn", "rope_theta": 80000.0, "factor": 4.0, "original_max_position_embeddings": 64},
                                   "sliding_attention": {"rope_type": "default", "rope_theta": 700.0}}),
    "phi4-multimodal": {**_of("phi4_multimodal", pad_token_id=0, partial_rotary_factor=0.75, hidden_size=96, sliding_window=None, original_max_position_embeddings=64,
                              rope_scaling={"type": "longrope", "short_factor": [1.0 + i / 8 for i in range(6)], "long_factor": [2.0 + i for i in range(6)]}),
                        "vision_config": {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 16, "crop_size": 16, "patch_size": 8},
                        "audio_config": {"hidden_size": 16, "intermediate_size": 24, "num_blocks": 1, "num_attention_heads": 2, "ext_pw_out_channel": 16, "input_size": 16,
                                         "nemo_conv_channels": 16, "depthwise_separable_out_channel": 16}},
    "ministral3-images": {"model_type": "mistral3", "image_token_index": 10, "spatial_merge_size": 2, "multimodal_projector_bias": False, "projector_hidden_act": "gelu",
                          "vision_feature_layer": -1, "text_config": _of("ministral3", head_dim=16, sliding_window=None, pad_token_id=0, tie_word_embeddings=True, rope_parameters=_MINISTRAL),
                          "vision_config": {"model_type": "pixtral", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2, "head_dim": 16,
                                            "image_size": 16, "patch_size": 4, "rope_theta": 10000.0}, "tie_word_embeddings": True},
    "internvl": {"model_type": "internvl", "image_token_id": 10, "downsample_ratio": 0.5, "tie_word_embeddings": False,
                 "text_config": _of("qwen2", rope_theta=10000.0, use_sliding_window=False),
                 "vision_config": {"model_type": "internvl_vision", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": [28, 28], "patch_size": [14, 14]}},
    "idefics3": {"model_type": "idefics3", "image_token_id": 10, "scale_factor": 2, "tie_word_embeddings": True, "text_config": _of("llama", head_dim=16, rope_theta=10000.0, pad_token_id=0),
                 "vision_config": {"model_type": "idefics3_vision", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28, "patch_size": 14}},
    "qwen3-vl-moe": {"model_type": "qwen3_vl_moe", "tie_word_embeddings": False,
                     "text_config": _of("qwen3_vl_moe_text", head_dim=16, num_experts=5, num_experts_per_tok=2, moe_intermediate_size=20, mlp_only_layers=[1],
                                        rope_parameters={"rope_type": "default", "rope_theta": 20000.0, "mrope_section": [4, 2, 2]}),
                     "vision_config": {"depth": 1, "hidden_size": 32, "out_hidden_size": 48, "num_heads": 2, "intermediate_size": 48, "patch_size": 4, "num_position_embeddings": 16,
                                       "deepstack_visual_indexes": [0]}},
    "qwen2.5-omni": {"model_type": "qwen2_5_omni_thinker", **_OMNI, "text_config": _of("qwen2_5_omni_text", rope_parameters={"rope_type": "default", "rope_theta": 20000.0, "mrope_section": [1, 1, 2]}),
                     "vision_config": {"model_type": "qwen2_5_omni_vision_encoder", "depth": 1, "hidden_size": 32, "out_hidden_size": 48, "num_heads": 2, "intermediate_size": 48, "patch_size": 4,
                                       "fullatt_block_indexes": [0]}},
    "mllama": {"model_type": "mllama", "image_token_index": 10, "text_config": _of("mllama_text_model", num_hidden_layers=5, cross_attention_layers=[1, 3], rope_scaling=tiny._LLAMA3, rope_theta=10000.0, pad_token_id=0),
               "vision_config": {"model_type": "mllama_vision_model", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_global_layers": 1, "attention_heads": 2, "image_size": 28,
                                 "patch_size": 14, "intermediate_layers_indices": [0], "vision_output_dim": 64}},
    "lfm3": _of("lfm3", rms_norm_eps="absent", hidden_act="absent", norm_eps=1e-5, head_dim=16, num_hidden_layers=5, conv_L_cache=5, sliding_window=6, tie_word_embeddings=True,
                layer_types=["sliding_attention", "conv", "full_attention", "sliding_attention", "conv"], rope_theta="absent", pad_token_id=0,
                rope_parameters={"full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.5, "rope_theta": 80000.0},
                                 "sliding_attention": {"rope_type": "default", "rope_theta": 700.0}}),
    "lfm3-plain": _of("lfm3", rms_norm_eps="absent", hidden_act="absent", norm_eps=1e-5, head_dim=8, num_hidden_layers=5, conv_bias=True, use_sandwich_norm=False, use_attention_gate=False,
                      tie_word_embeddings=True, rope_theta="absent", pad_token_id=0),
    "mistral4": _of("mistral4", **_LATENTS, q_lora_rank=24, n_routed_experts=8, n_shared_experts=1, num_experts_per_tok=3, first_k_dense_replace=1, n_group=4, topk_group=2, norm_topk_prob=True,
                    routed_scaling_factor=2.5, pad_token_id=0, rope_parameters={**_MINISTRAL, "rope_theta": 10000.0, "partial_rotary_factor": 1 / 3}),
    "mistral4-halves": _of("mistral4", **_LATENTS, q_lora_rank=None, n_routed_experts=5, n_shared_experts=2, num_experts_per_tok=2, norm_topk_prob=False, rope_interleave=False, pad_token_id=0,
                           rope_parameters={**_MINISTRAL, "llama_4_scaling_beta": 0.0}),
    "longcat-flash": _of("longcat_flash", **{key: value for key, value in _LATENTS.items() if key != "moe_intermediate_size"}, num_hidden_layers="absent", intermediate_size="absent", num_layers=2,
                         ffn_hidden_size=80, head_dim=8, q_lora_rank=24, n_routed_experts=6, zero_expert_num=3, moe_topk=3, expert_ffn_hidden_size=24, routed_scaling_factor=2.0,
                         rope_theta=10000.0),
    "openai-gpt": {"model_type": "openai-gpt", **{key: value for key, value in _GPT.items() if "token" not in key}, "n_positions": 100, "n_embd": 48, "n_layer": 3, "n_head": 6},
    "qwen2-vl": {**_of("qwen2_vl", rope_theta=1e6, rope_scaling={"type": "mrope", "mrope_section": [1, 1, 2]}, use_sliding_window=False, sliding_window=64, max_window_layers=3),
                 "tie_word_embeddings": True, "vision_config": {"depth": 1, "embed_dim": 32, "hidden_size": 48, "num_heads": 2, "patch_size": 4, "spatial_merge_size": 2}},
    "qwen2.5-vl": {"model_type": "qwen2_5_vl", "tie_word_embeddings": False,
                   "text_config": _of("qwen2_5_vl_text", rope_theta=1e6, rope_scaling={"rope_type": "default", "mrope_section": [1, 1, 2]}, use_sliding_window=False),
                   "vision_config": {"depth": 1, "hidden_size": 32, "out_hidden_size": 48, "num_heads": 2, "intermediate_size": 48, "patch_size": 4, "fullatt_block_indexes": [0]}},
    "qwen3-vl": {"model_type": "qwen3_vl", "tie_word_embeddings": True,
                 "text_config": _of("qwen3_vl_text", head_dim=16, rope_theta=5e5, rope_scaling={"rope_type": "default", "mrope_interleaved": True, "mrope_section": [3, 3, 2]},
                                    tie_word_embeddings=True),
                 "vision_config": {"depth": 1, "hidden_size": 32, "out_hidden_size": 48, "num_heads": 2, "intermediate_size": 48, "patch_size": 4, "num_position_embeddings": 16,
                                   "deepstack_visual_indexes": [0]}},
    "hy-v3": _of("hy_v3", head_dim=16, num_hidden_layers=3, num_experts=6, num_experts_per_tok=2, num_shared_experts=2, moe_intermediate_size=24, router_scaling_factor=1.7,
                 mlp_layer_types=["dense", "sparse", "sparse"], enable_moe_fp32_combine=True, rope_theta=50000.0),
    "sarvam-moe": _of("sarvam_moe", head_dim=16, n_routed_experts="absent", num_experts=6, num_experts_per_tok=3, n_shared_experts="absent", num_shared_experts=1,
                      moe_intermediate_size=24, first_k_dense_replace=1, norm_topk_prob=True, routed_scaling_factor=2.5, use_qk_norm=True, rope_theta=8000.0),
    "sarvam-moe-biases": _of("sarvam_moe", head_dim=8, num_experts=5, num_experts_per_tok=2, num_shared_experts=2, moe_intermediate_size=24, first_k_dense_replace=0,
                             use_qkv_bias=True, use_qk_norm=False, n_group=1, topk_group=1),
    "sarvam-mla": _of("sarvam_mla", **_LATENTS, num_experts=6, num_experts_per_tok=3, num_shared_experts=1, first_k_dense_replace=1, routed_scaling_factor=2.5,
                      rope_theta=10000.0, rope_scaling={"type": "deepseek_yarn", "factor": 40.0, "beta_fast": 32, "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0,
                                                        "original_max_position_embeddings": 64}),
    "iquestcoder": _of("iquestcoder", head_dim=16, rope_theta=500000.0),
    "afmoe": _of("afmoe", head_dim=16, num_hidden_layers=5, num_experts=6, num_experts_per_tok=2, num_shared_experts=1, moe_intermediate_size=24, num_dense_layers=2,
                 route_scale=1.8, sliding_window=6, mup_enabled=True, rope_theta=10000.0),
    "afmoe-plain": _of("afmoe", head_dim=8, num_experts=4, num_experts_per_tok=2, num_shared_experts=2, moe_intermediate_size=16, num_dense_layers=1,
                       layer_types=["full_attention", "sliding_attention", "full_attention"], sliding_window=9),
    "granite-swa": _of("granite_swa", **_GRANITE, num_hidden_layers=5, sliding_window=6, layer_rope_theta=[10000.0, 500.0, 0, 500.0, 0], tie_word_embeddings=True),
    "granite-swa-plain": _of("granite_swa", **{**_GRANITE, "rope_theta": 3000.0}, sliding_window=9, layer_types=["sliding_attention", "full_attention", "sliding_attention"]),
    "granitemoe-swa": _of("granitemoe_swa", **_GRANITE, num_hidden_layers=5, num_local_experts=5, num_experts_per_tok=2, sliding_window=6, layer_rope_theta=[0, 500.0, 500.0, 500.0, 0],
                          shared_intermediate_size=40),
    "granitemoe-swa-plain": _of("granitemoe_swa", **_GRANITE, num_local_experts=4, num_experts_per_tok=3, sliding_window=7),
    "cohere2-moe": _of("cohere2_moe", **_LAYER_NORMED, head_dim=16, num_hidden_layers=5, num_experts=6, num_experts_per_tok=2, num_shared_experts=1, first_k_dense_replace=1,
                       prefix_dense_intermediate_size=56, sliding_window=6, logit_scale=0.3, rope_theta=10000.0),
    "cohere2-moe-sigmoid": _of("cohere2_moe", head_dim=8, num_hidden_layers=4, num_experts=4, num_experts_per_tok=2, num_shared_experts=2, expert_selection_fn="sigmoid",
                               shared_expert_combination_strategy="sum", norm_topk_prob=False, prefix_dense_sliding_window_pattern=2, first_k_dense_replace=2,
                               sliding_window=6, sliding_window_pattern=2, tie_word_embeddings=False),
    "dbrx": {"model_type": "dbrx", "vocab_size": 320, "d_model": 48, "n_heads": 6, "n_layers": 3, "max_seq_len": 256, "bos_token_id": 257, "eos_token_id": 258,
             "attn_config": {"clip_qkv": 1.5, "kv_n_heads": 2, "rope_theta": 500.0}, "rope_theta": 500.0,
             "ffn_config": {"hidden_size": 48, "ffn_hidden_size": 40, "moe_num_experts": 5, "moe_top_k": 2, "ffn_act_fn": {"name": "silu"}}},
    "dbrx-plain": {"model_type": "dbrx", "vocab_size": 320, "d_model": 48, "n_heads": 6, "n_layers": 2, "max_seq_len": 256, "bos_token_id": 257, "eos_token_id": 258,
                   "attn_config": {"kv_n_heads": 6, "clip_qkv": 4.0, "rope_theta": 10000.0}, "ffn_config": {"hidden_size": 48, "ffn_hidden_size": 32, "moe_num_experts": 4, "moe_top_k": 3, "moe_normalize_expert_weights": None}},
    "deepseek-v32": _of("deepseek_v32", **_LATENTS, q_lora_rank=24, n_routed_experts=8, n_shared_experts=1, num_experts_per_tok=3, n_group=4, topk_group=2, norm_topk_prob=True,
                        routed_scaling_factor=2.5, first_k_dense_replace=1, rope_theta=10000.0, index_topk=100, index_head_dim=16, index_n_heads=4),
    "glm-moe-dsa": _of("glm_moe_dsa", **_LATENTS, q_lora_rank=24, n_routed_experts=6, n_shared_experts=2, num_experts_per_tok=2, n_group=1, topk_group=1, norm_topk_prob=True,
                       routed_scaling_factor=1.5, mlp_layer_types=["dense", "dense", "sparse"], rope_theta=1000.0, index_topk=64, index_head_dim=16, index_n_heads=2,
                       indexer_types=["full", "full", "shared"]),
    "bitnet": _of("bitnet", hidden_act="relu2", rope_theta=500000.0),
    "gemma4": _of("gemma4_text", **{**_GEMMA4, "head_dim": 8, "global_head_dim": 16}, rms_norm_eps=1e-2, num_hidden_layers=6, num_kv_shared_layers=2, use_double_wide_mlp=True,
                  hidden_size_per_layer_input=32, vocab_size_per_layer_input=320,
                  layer_types=["sliding_attention", "full_attention", "sliding_attention", "full_attention", "sliding_attention", "full_attention"],
                  rope_parameters={"full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 80000.0},
                                   "sliding_attention": {"rope_type": "default", "rope_theta": 700.0}}),
    "gemma4-experts": _of("gemma4_text", **{**_GEMMA4, "tie_word_embeddings": False}, num_hidden_layers=4, num_global_key_value_heads=1, attention_k_eq_v=True, hidden_size_per_layer_input=0,
                          layer_types=["sliding_attention", "sliding_attention", "full_attention", "full_attention"], use_bidirectional_attention="vision",
                          enable_moe_block=True, num_experts=5, top_k_experts=2, moe_intermediate_size=24, attention_bias=True, final_logit_softcapping=30.0),
    "gemma4-unified": _of("gemma4_unified_text", **{**_GEMMA4, "head_dim": 8, "global_head_dim": 16}, rms_norm_eps=1e-2, num_hidden_layers=7),
    "axk1": _of("axk1", **_LATENTS, q_lora_rank=24, n_routed_experts=8, n_shared_experts=1, num_experts_per_tok=3, n_group=4, topk_group=2, norm_topk_prob=True,
                routed_scaling_factor=2.5, mlp_layer_types=["sparse", "dense", "sparse"], rope_theta=10000.0),
    "axk1-frequency": _of("axk1", **_LATENTS, q_lora_rank=24, n_routed_experts=8, n_shared_experts=1, num_experts_per_tok=3, n_group=4, topk_group=2, norm_topk_prob=True,
                          routed_scaling_factor=2.5, num_hidden_layers=5, first_k_dense_replace=1, moe_layer_freq=2, rope_theta=10000.0),
    "kimi-linear": _of("kimi_linear", **_KIMI_LINEAR, first_k_dense_replace=1, linear_attn_config={"full_attn_layers": [3], "kda_layers": [1, 2, 4], "head_dim": 16, "num_heads": 4,
                                                                                                  "short_conv_kernel_size": 4}),
    "kimi-linear-types": _of("kimi_linear", **_KIMI_LINEAR, layer_types=["linear_attention", "full_attention", "full_attention", "linear_attention"], linear_head_dim=8,
                             linear_num_heads=3, linear_conv_kernel_dim=3, mlp_layer_types=["sparse", "dense", "sparse", "dense"], q_lora_rank=24, tie_word_embeddings=True),
    "kolibri1": _of("kolibri1", intermediate_size="absent", head_dim=16, num_hidden_layers=5, sliding_window=6, num_experts=6, num_experts_per_tok=3, moe_intermediate_size=24,
                    shared_expert_intermediate_size=40, norm_topk_prob=True, rope_theta=10000.0),
    "kolibri1-plain": _of("kolibri1", intermediate_size="absent", head_dim=8, sliding_window=9, layer_types=["full_attention", "sliding_attention", "full_attention"], num_experts=4, num_experts_per_tok=2,
                         moe_intermediate_size=16, shared_expert_intermediate_size=24, tie_word_embeddings=True),
    "flint": _of("flint", head_dim=16, num_hidden_layers=5, sliding_window=6, num_experts=6, num_experts_per_tok=2, moe_intermediate_size=24, shared_expert_intermediate_size=40,
                 mlp_only_layers=[0], rope_theta=10000.0),
    "flint-biases": _of("flint", head_dim=8, sliding_window=9, layer_types=["sliding_attention", "full_attention", "sliding_attention"], num_experts=5, num_experts_per_tok=3,
                        moe_intermediate_size=16, shared_expert_intermediate_size=24, decoder_sparse_step=2, norm_topk_prob=False, attention_bias=True),
    "gpt-neox-japanese": _of("gpt_neox_japanese", **_LAYER_NORMED, intermediate_size="absent", num_key_value_heads="absent", tie_word_embeddings="absent", hidden_act="gelu",
                             intermediate_multiple_size=2, rotary_pct=0.5, rotary_emb_base=5000),
    "biogpt": {"model_type": "biogpt", "vocab_size": 320, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 3, "num_attention_heads": 6, "max_position_embeddings": 100,
               "hidden_act": "gelu", "layer_norm_eps": 1e-12, "scale_embedding": True, "bos_token_id": 257, "eos_token_id": 258, "pad_token_id": 1},
    "biogpt-plain": {"model_type": "biogpt", "vocab_size": 320, "hidden_size": 60, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 5, "max_position_embeddings": 64,
                     "hidden_act": "relu", "scale_embedding": False, "bos_token_id": 257, "eos_token_id": 258, "pad_token_id": 1, "tie_word_embeddings": False},
}  # fmt: skip

_LATENTS_FILE = {"attention.kv_lora_rank": 20, "attention.key_length": 24, "attention.value_length": 12, "rope.dimension_count": 8, "expert_feed_forward_length": 24,
                 "leading_dense_block_count": 1}  # fmt: skip
_YARN_FILE = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 64}
#: The architecture that GGUF files name, and what they say beside what all say.
GGUF = {
    "gemma": ("gemma", {}),
    "gemma3-file": ("gemma3", {"attention.sliding_window": 6, "rope.freq_base": 1e6}),
    "mixtral-file": ("llama", {"expert_count": 5, "expert_used_count": 3, "rope.dimension_count": 8}),
    "qwen3-moe": ("qwen3moe", {"expert_count": 6, "expert_used_count": 3, "expert_feed_forward_length": 24}),
    "qwen3-moe-blocks": ("qwen3moe", {"expert_count": 5, "expert_used_count": 2, "expert_feed_forward_length": 32}),
    "qwen2-moe": ("qwen2moe", {"expert_count": 5, "expert_used_count": 2, "expert_feed_forward_length": 24, "expert_shared_feed_forward_length": 40}),
    "phi4": ("phi3", {"rope.dimension_count": 8}),
    "phi": ("phi2", {"rope.dimension_count": 4, "attention.head_count_kv": 6}),
    "pythia": ("gptneox", {"rope.dimension_count": 4, "use_parallel_residual": True}),
    "cohere": ("command-r", {"logit_scale": 0.5}),
    "cohere-normed": ("command-r", {"logit_scale": 0.0625}),
    "cohere2": ("cohere2", {"logit_scale": 0.3, "attention.sliding_window": 6}),
    "starcoder2": ("starcoder2", {"attention.sliding_window": 7}),
    "stablelm": ("stablelm", {"rope.dimension_count": 4, "use_parallel_residual": False}),
    "stablelm2-12b": ("stablelm", {"rope.dimension_count": 4, "use_parallel_residual": True}),
    "glm4": ("glm4", {"rope.dimension_count": 8}),
    "exaone4-full": ("exaone4", {}),
    "exaone4": ("exaone4", {"attention.sliding_window": 6, "attention.sliding_window_pattern": [True, True, True, False, True]}),
    "ernie4_5": ("ernie4_5", {"rope.dimension_count": 16}),
    "ernie4_5-biases": ("ernie4_5", {"rope.dimension_count": 8}),
    "seed-oss": ("seed_oss", {}),
    "glm": ("chatglm", {"rope.dimension_count": 8}),
    "olmo3": ("olmo2", {"attention.sliding_window": 6, "attention.sliding_window_pattern": [True, True, True, False, True], "rope.scaling.type": "yarn",
                        "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 64, "rope.scaling.yarn_attn_factor": 1.2}),
    "olmoe": ("olmoe", {"expert_count": 6, "expert_used_count": 3}),
    "gpt-oss-file": ("gpt-oss", {"expert_count": 4, "expert_used_count": 2, "attention.sliding_window": 8, "rope.scaling.type": "yarn", "rope.scaling.factor": 4.0,
                                 "rope.scaling.original_context_length": 64}),
    "qwen2-vl": ("qwen2vl", {"rope.dimension_sections": [1, 1, 2, 0]}),
    "qwen3-vl": ("qwen3vl", {"rope.dimension_sections": [3, 3, 2, 0], "n_deepstack_layers": 1}),
    "arcee": ("arcee", {"rope.dimension_count": 16, "rope.scaling.type": "yarn", "rope.scaling.factor": 5.0, "rope.scaling.original_context_length": 64}),
    "nemotron": ("nemotron", {"rope.dimension_count": 8}),
    "exaone3": ("exaone", {}),
    "olmo": ("olmo", {"attention.clamp_kqv": 0.8}),
    "dots1": ("dots1", {"expert_count": 5, "expert_used_count": 2, "expert_shared_count": 1, "expert_feed_forward_length": 24, "leading_dense_block_count": 1,
                        "expert_weights_norm": True, "expert_weights_scale": 2.0, "expert_gating_func": 2}),
    "glm4-moe": ("glm4moe", {"expert_count": 6, "expert_used_count": 2, "expert_shared_count": 1, "expert_feed_forward_length": 24, "leading_dense_block_count": 1,
                             "expert_weights_norm": True, "expert_weights_scale": 1.0, "expert_gating_func": 2, "rope.dimension_count": 8}),
    "granitemoe": ("granitemoe", {"expert_count": 5, "expert_used_count": 2, "embedding_scale": 6.0, "residual_scale": 0.4, "attention.scale": 0.2, "logit_scale": 4.0}),
    "granitemoeshared": ("granitemoe", {"expert_count": 4, "expert_used_count": 2, "embedding_scale": 6.0, "residual_scale": 0.4, "attention.scale": 0.2, "logit_scale": 4.0,
                                        "expert_shared_feed_forward_length": 40}),
    "deepseek-v2-lite": ("deepseek2", {**_LATENTS_FILE, "expert_count": 6, "expert_used_count": 3, "expert_shared_count": 2, "expert_weights_scale": 1.0, **_YARN_FILE,
                                       "rope.scaling.yarn_log_multiplier": 0.0707}),
    "deepseek-v2": ("deepseek2", {**_LATENTS_FILE, "attention.q_lora_rank": 24, "expert_count": 8, "expert_used_count": 2, "expert_shared_count": 1, "expert_weights_scale": 16.0,
                                  "expert_gating_func": 1, "expert_group_count": 4, "expert_group_used_count": 2}),
    "deepseek-v3": ("deepseek2", {**_LATENTS_FILE, "attention.q_lora_rank": 24, "expert_count": 8, "expert_used_count": 3, "expert_shared_count": 1, "expert_weights_scale": 2.5,
                                  "expert_weights_norm": True, "expert_gating_func": 2, "expert_group_count": 4, "expert_group_used_count": 2, **_YARN_FILE, "rope.scaling.factor": 40.0,
                                  "attention.head_count_kv": 1, "attention.key_length": 28, "attention.value_length": 20, "attention.key_length_mla": 24,
                                  "attention.value_length_mla": 12, "rope.scaling.yarn_log_multiplier": 0.1}),
    "minicpm3-file": ("minicpm3", {"attention.q_lora_rank": 24, "attention.kv_lora_rank": 20, "attention.key_length": 24, "rope.dimension_count": 8}),
    "hunyuan": ("hunyuan-dense", {"rope.freq_base": 10000.0 * 100.0 ** (16 / 14)}),
    "hunyuan-moe": ("hunyuan-moe", {"rope.freq_base": 10000.0 * 100.0 ** (16 / 14), "expert_count": 5, "expert_used_count": 2, "expert_feed_forward_length": 24,
                                    "expert_shared_feed_forward_length": 24}),
    "minimax-m2": ("minimax-m2", {"expert_count": 6, "expert_used_count": 3, "expert_feed_forward_length": 24, "expert_gating_func": 2, "rope.dimension_count": 8}),
    "ernie4_5-moe": ("ernie4_5-moe", {"expert_count": 6, "expert_used_count": 3, "expert_feed_forward_length": 24, "expert_shared_count": 2, "leading_dense_block_count": 1,
                                      "expert_shared_feed_forward_length": 48, "interleave_moe_layer_step": 1}),
    "dbrx": ("dbrx", {"attention.head_count_kv": 2, "rope.freq_base": 500.0, "attention.clamp_kqv": 1.5, "expert_count": 5, "expert_used_count": 2}),
    "starcoder": ("starcoder", {"attention.head_count_kv": 1}),
    "mpt": ("mpt", {"attention.max_alibi_bias": 8.0}),
    "bloom": ("bloom", {}),
    "falcon-7b": ("falcon", {"attention.head_count_kv": 1}),
    "falcon-40b": ("falcon", {"attention.head_count_kv": 2}),
    "falcon2-11b": ("falcon", {"attention.head_count_kv": 3}),
}  # fmt: skip


#: Of those, what can be enlarged to rows that K quants cut: heads of latents, and of more than 16
#: elements, become too large.
OF_K_QUANTS = sorted(name for name in GGUF if not name.startswith(("deepseek", "minicpm3")) and (CONFIGS[name].get("head_dim") or 0) in range(17))
#: Smaller weights, for those of which what products round to 8 bits is above the bound with 1.5: in
#: the middle 0.059 for "gemma" and 0.071 for "ernie4_5-moe", which has four layers.
GAINS_OF_K_QUANTS = {"gemma": 1.0, "ernie4_5-moe": 1.0}
#: Those whose norms of queries and keys are made about 1 in files, and not 2: with 2 for both,
#: scores are four times as large as in other models, a softmax makes much of what products round,
#: and the error is 0.074 in the middle. With 1 it is 0.022.
WITH_MILD_HEADS = ("gemma3-file",)


def text_of(config):
    """The configuration of the part that reads text."""
    return config.get("text_config", config)


#: Smaller weights, for models that make much of a rounding: a net's norm divides what it reads of a
#: state, which is almost nothing where a query stands across all keys; what shared layers give goes
#: through a norm without anything beside it; a scan of Mamba 1 takes its steps, what it adds and
#: what it reads from the same numbers. With weights as large as the others' they make 1e-4 to 5e-2
#: of f32's rounding, and transformers' f32 is further from its float64 than ours is (of VaultGemma,
#: whose norms are about 2 with none behind attention and MLP, as far). They are compared with
#: float64.
GAINS = {"qwen3-next": 0.5, "qwen3.5": 0.5, "qwen3.5-moe": 0.5, "olmo-hybrid": 0.5, "olmo-hybrid-turned": 1.0, "zamba2": 0.6, "zamba2-plain": 0.6,
         "mamba": 0.8, "mamba-biases": 0.8, "falcon-mamba": 0.8, "jamba": 0.8, "jamba-dense": 0.8, "gemma3n": 1.0, "gemma3n-sparse": 0.5, "vaultgemma": 1.0,
         "gemma4": 0.5, "gemma4-experts": 0.7, "gemma4-unified": 0.5, "kimi-linear": 0.5, "kimi-linear-types": 0.5}  # fmt: skip
#: Others with which transformers' f32 is as far from its float64 as a third of what tests allow.
EXACT = {*GAINS, "nemotron-h"}


def exact_type(name):
    """The type that transformers' logits of a model are taken in."""
    return "float64" if name in EXACT else "float32"


def draw(shapes, seed=0, gain=1.5):
    """Weights by name. Each follows from its name and the seed alone: uniform numbers of a stream
    that no version of numpy changes."""
    made = {}
    for name, shape in shapes.items():
        numbers = np.random.RandomState([zlib.crc32(name.encode()), seed]).uniform(-1, 1, shape)
        if len(shape) > 1:
            # Gemma 4 divides what its router gives by that root: else all experts are as good.
            root = math.sqrt(shape[-1]) if name.endswith(".router.proj.weight") else 1
            made[name] = numbers * (gain * math.sqrt(3 / shape[-1]) * root)
        else:
            # of norms that multiply by 1 + w, about 2
            made[name] = numbers * 0.5 + (1 if "norm" in name and name.endswith("weight") or name.endswith(".router.scale") else 0)
    return {name: np.asarray(array, np.float32) for name, array in made.items()}


def ids_of(config, seed=0):
    return np.random.RandomState([7, seed]).randint(0, text_of(config).get("vocab_size", 320), (ROWS, LENGTH))


def recorded():
    return json.loads(RECORDED.read_text()) if RECORDED.exists() else {}


def write(folder, name, seed=0, gain=None, **files):
    """A model's folder, and its weights."""
    weights = draw(recorded()[name]["tensors"], seed, gain or GAINS.get(name, 1.5))
    return tiny.write_folder(folder, CONFIGS[name], weights, **files), weights


def expected(name):
    """[row, position, column] of what was recorded."""
    return np.frombuffer(base64.b64decode(recorded()[name]["logits"]), "<f4").reshape(ROWS, LENGTH, len(COLUMNS))


def in_mxfp4(weights):
    """GPT-OSS as it is published: {name: (type, array)} of a file whose experts are MXFP4, and the
    numbers that they stand for, as they are in a folder without."""
    from accrt.compiler.encodings import dequantize
    from accrt.compiler.quantizers import quantize

    stored, plain = {}, {}
    for name, array in weights.items():
        if not name.endswith(("gate_up_proj", "down_proj")):
            stored[name], plain[name] = ("F32", array), array
            continue
        turned = np.ascontiguousarray(array.swapaxes(1, 2))
        packed = quantize(turned.reshape(-1, turned.shape[2]), "mxfp4")
        codes, scales = (np.asarray(packed.components[part]).view(np.uint8) for part in ("data", "scales"))
        blocks = (*turned.shape[:2], turned.shape[2] // 32)
        stored[f"{name}_blocks"], stored[f"{name}_scales"] = ("U8", codes.reshape(*blocks, 16)), ("U8", scales.reshape(blocks))
        plain[name] = np.ascontiguousarray(dequantize(packed).reshape(turned.shape).swapaxes(1, 2), np.float32)
    return stored, plain


def in_three_values(weights, divides=False):
    """BitNet as it is published: {name: (type, array)} of a file whose products have weights of
    three values, four in a byte: a row of each quarter. `divides`: what is made is divided by the
    scale."""
    stored = {}
    for name, array in weights.items():
        stored[name] = ("F32", array)
        if name.endswith("_proj.weight"):
            mean = np.abs(array).mean()
            quarters = np.split((np.clip(np.round(array / mean), -1, 1) + 1).astype(np.uint8), 4)
            stored[name] = ("U8", quarters[0] | quarters[1] << 2 | quarters[2] << 4 | quarters[3] << 6)
            stored[f"{name}_scale"] = ("F32", np.array([1 / mean if divides else mean], np.float32))
    return stored


#: As BitNet's configurations have it, by whether weights are packed and what is done with scales.
BITNET = {
    "packed": {"quant_method": "bitnet", "linear_class": "autobitlinear", "quantization_mode": "offline"},
    "plain": {"quant_method": "bitnet", "linear_class": "autobitlinear", "quantization_mode": "online"},
    "divided": {"quant_method": "bitnet", "modules_to_not_convert": ["lm_head"]},
}


def write_in_three_values(folder, form, seed=0, kind="bitnet"):
    """A folder of BitNet, or of a Llama in its form."""
    weights = draw(recorded()["bitnet"]["tensors"], seed, gain=1.0)
    weights = {name: array for name, array in weights.items() if kind == "bitnet" or "_sub_norm" not in name}
    made = tiny.write_folder(folder, {**CONFIGS["bitnet"], "hidden_act": "relu2" if kind == "bitnet" else "silu", "model_type": kind, "quantization_config": BITNET[form]}, weights)
    if form != "plain":
        tiny.write_safetensors(made / "model.safetensors", in_three_values(weights, form == "divided"))
    return made


#: As GPT-OSS has it.
MXFP4 = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]}


# ---- Other sizes ---------------------------------------------------------------------------------

#: Keys of configurations, and of GGUF files, that are sizes: no numbers of layers, heads, experts
#: or tokens.
_SIZES = ("hidden_size", "block_ff_dim", "intermediate_size", "intermediate_size_mlp", "moe_intermediate_size", "shared_expert_intermediate_size", "shared_intermediate_size", "head_dim", "d_model", "n_embd",
          "n_embed", "n_inner", "ffn_dim", "ffn_hidden_size", "word_embed_proj_dim", "rotary_dim", "kv_lora_rank", "q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim",
          "hidden_size_per_layer_input", "embedding_length_per_layer_input", "v_head_dim", "mamba_d_head", "mamba_d_ssm", "linear_key_head_dim", "linear_value_head_dim", "linear_head_dim", "global_head_dim", "index_head_dim", "expert_ffn_hidden_size", "rope.dimension_count", "expert_feed_forward_length", "expert_shared_feed_forward_length",
          *(f"attention.{key}" for key in ("kv_lora_rank", "q_lora_rank", "key_length", "value_length", "key_length_mla", "value_length_mla")))  # fmt: skip


def enlarged(config, by):
    """The configuration with sizes `by` times as large: all but those of the vocabulary and of what
    sees images."""
    made = {}
    for key, value in config.items():
        if key == "mrope_section" or key in _SIZES and value:
            value = [one * by for one in value] if isinstance(value, list) else value * by
        elif key in ("short_factor", "long_factor"):
            value = [one for one in value for _ in range(by)]
        elif key in ("attention_multiplier", "attention.scale", "softmax_scale") and value:
            value = value / math.sqrt(by)  # scores stay as they are
        elif isinstance(value, dict) and key != "vision_config":
            value = enlarged(value, by)
        made[key] = value
    return made


@contextlib.contextmanager
def larger(name, by):
    """Meanwhile the model is one of larger sizes. The shapes of one without a GGUF file are those
    of transformers."""
    config, known = enlarged(CONFIGS[name], by), recorded()

    def shape_of(key, shape):
        if "e_score" in key:
            return shape  # one for each expert, in ERNIE as a row
        # tokens, positions, heads and experts are no sizes
        kept = re.search(r"lm_head|sinks|router\.bias", key) or len(shape) > 1 and (len(shape) == 3 or re.search(r"mlp\.experts\.[a-z]|embed|head|wte|wpe|[qk]_norm|router|(mlp|moe)\.gate\.|shared_expert_gate", key))
        return [shape[0] if kept else shape[0] * by, *(size * by for size in shape[1:])]

    if name in GGUF:
        architecture, keys = GGUF[name]
        shapes, files = {key: shape_of(key, shape) for key, shape in known[name]["tensors"].items()}, {name: (architecture, enlarged(keys, by))}
    else:
        shapes, files = shapes_of(config), {}
    made = {**known, name: {**known[name], "tensors": shapes}}
    with mock.patch.dict(CONFIGS, {name: config}), mock.patch.dict(GGUF, files), mock.patch.object(sys.modules[__name__], "recorded", lambda: made):
        yield


# ---- GGUF files ----------------------------------------------------------------------------------


def k_quant(name, array):
    """Q4_K where its blocks fit, else Q8_0, as llama.cpp has it; routers and biases are plain."""
    if "ffn_gate_inp" in name or "exp_probs_b" in name or "position" in name:
        return "F32"
    if array.shape[-1] % 256:
        return "Q8_0"
    return 12, quantize(array.reshape(-1, array.shape[-1]), "q4_k").components["data"].tobytes()


def of_k_quant(name, array):
    """The numbers that it stands for."""
    stored = k_quant(name, array)
    if stored == "F32":
        return array
    if stored == "Q8_0":
        return tiny.q8_0_values(array)
    return dequantize(quantize(array.reshape(-1, array.shape[-1]), "q4_k")).reshape(array.shape).astype(np.float32)


def write_gguf(path, name, types=None, changed=lambda _name, array: array, gain=1.5, mild_heads=False):
    """As llama.cpp's converter writes it: the names of tensors are those of the package gguf.
    `types`: as tiny.write_gguf has them, for matrices, or a function of name and array.
    `mild_heads`: norms of queries and keys are 1 less."""
    architecture, more = GGUF[name]
    c, weights = text_of(CONFIGS[name]), draw(recorded()[name]["tensors"], gain=gain)
    epsilon = "attention.layer_norm_rms_epsilon" if "rms_norm_eps" in c or architecture == "exaone" else "attention.layer_norm_epsilon"
    keys = {
        "context_length": _of_any(c, "max_position_embeddings", "max_seq_len", "n_positions", "seq_length"), "embedding_length": _of_any(c, "hidden_size", "d_model", "n_embd", "n_embed"),
        "block_count": _of_any(c, "num_hidden_layers", "num_layers", "n_layers", "n_layer"), "attention.head_count": _of_any(c, "num_attention_heads", "n_heads", "n_head"),
        "rope.freq_base": c.get("rope_theta", 10000.0), epsilon: c.get("rms_norm_eps", 1e-5),
    }  # fmt: skip
    keys["feed_forward_length"] = _of_any({**c.get("ffn_config", {}), **c}, "intermediate_size", "ffn_hidden_size", "n_inner", default=4 * keys["embedding_length"])
    keys["attention.head_count_kv"] = c.get("num_key_value_heads", keys["attention.head_count"])
    keys.update({"attention.key_length": c["head_dim"], "attention.value_length": c["head_dim"]} if "head_dim" in c else {})
    keys.update(more)
    metadata = {**tiny.gguf_metadata(tiny.CONFIGS["gpt2"]), **{f"{architecture}.{key}": value for key, value in keys.items()}, "general.architecture": architecture}
    arrays, sizes = {}, (keys["attention.head_count"], keys["attention.head_count_kv"])
    for theirs, array in _stacked(weights).items():
        if re.search(r"visual\.|vision", theirs):
            continue
        for part, converted in _converted(architecture, theirs, array, *sizes, c.get("v_head_dim")):
            called = recorded()[name]["gguf"].get(theirs, theirs) if part is None else part
            if mild_heads and called.endswith(("attn_q_norm.weight", "attn_k_norm.weight")):
                converted = converted - np.float32(1)
            arrays[called] = np.ascontiguousarray(changed(called, converted) if converted.ndim > 1 else converted)
    tiny.write_gguf(path, {key: value for key, value in metadata.items() if not key.startswith("gpt2.")}, arrays,
                    {key: types(key, array) if callable(types) else types for key, array in arrays.items() if types and array.ndim > 1})  # fmt: skip


def _of_any(config, *names, default=None):
    return next((config[name] for name in names if config.get(name) is not None), default)


def _stacked(weights):
    """Matrices of experts and norms of heads, one tensor for all of a layer."""
    found = {}
    for name, array in weights.items():
        found.setdefault(re.sub(r"\.experts\.\d+\.", ".experts.", re.sub(r"\.norms\.\d+\.", ".", name)), []).append(array)
    return {name: np.stack(arrays) if re.search(r"\.experts\..*\.|[qk]_layernorm\.weight", name) else arrays[0] for name, arrays in found.items()}


def _converted(architecture, name, array, heads, kv_heads, value_size):
    """What becomes of a tensor: [(its name in the file, or None for that of the list, array)]."""
    if (architecture.startswith("gemma") or architecture == "nemotron") and name.endswith("norm.weight"):
        return [(None, array + np.float32(1))]
    if architecture in ("llama", "arcee", "olmo", "granitemoe") and re.search(r"\.[qk]_proj\.", name):
        return [(None, tiny._permuted(array, heads if ".q_proj." in name else kv_heads))]
    if architecture == "dbrx" and ".ffn.experts." in name:
        # The rows of all experts stand behind one another.
        each = array.reshape(CONFIGS["dbrx"]["ffn_config"]["moe_num_experts"], -1, array.shape[-1])
        part = {"w1": "gate", "v1": "up", "w2": "down"}[name[-2:]]
        return [(f"blk.{name.split('.')[2]}.ffn_{part}_exps.weight", each.swapaxes(1, 2) if part == "down" else each)]
    if architecture in ("gptneox", "bloom", "falcon") and ".query_key_value." in name:
        # for each key its queries, it and its value, become all queries, all keys, all values
        parts = array.reshape(kv_heads, heads // kv_heads + 2, -1, *array.shape[1:])
        return [(None, np.concatenate([part.reshape(-1, *array.shape[1:]) for part in np.split(parts, [heads // kv_heads, heads // kv_heads + 1], 1)]))]
    if "kv_b_proj" in name and kv_heads == 1:  # as newer files have it
        number, parts = re.search(r"layers\.(\d+)", name)[1], array.reshape(heads, -1, array.shape[1])
        return [(f"blk.{number}.attn_k_b.weight", parts[:, :-value_size].swapaxes(1, 2)), (f"blk.{number}.attn_v_b.weight", parts[:, -value_size:])]
    found = re.search(r"layers\.(\d+)\.(block_sparse_moe|shared_mlp)\.(input|output)_linear\.weight", name)
    if found:
        number, kind, end = found[1], "exps" if found[2] == "block_sparse_moe" else "shexp", ".weight"
        names = ("gate", "up") if found[3] == "input" else ("down",)
        return [(f"blk.{number}.ffn_{part}_{kind}{end}", half) for part, half in zip(names, np.split(array, len(names), -2))]
    if "shared_expert_gate" in name:
        return [(None, array.reshape(-1))]
    if architecture == "gpt-oss":
        return _converted_gpt_oss(name, array)
    return [(None, array)]


def _converted_gpt_oss(name, array):
    """Biases of experts have names of their own, matrices are turned, and those of gate and up,
    whose rows stand in turn, are two."""
    if not name.endswith(".sinks") and ".experts." not in name:
        return [(None, array)]
    layer = "blk." + name.split(".")[2]
    if name.endswith(".sinks"):
        return [(f"{layer}.attn_sinks.weight", array)]
    array, end = (array, "bias") if name.endswith("_bias") else (array.swapaxes(1, 2), "weight")
    if ".gate_up_proj" not in name:
        return [(f"{layer}.ffn_down_exps.{end}", array)]
    return [(f"{layer}.ffn_gate_exps.{end}", array[:, ::2]), (f"{layer}.ffn_up_exps.{end}", array[:, 1::2])]


# ---- With transformers -----------------------------------------------------------------------


def _auto(folder):
    """The class of transformers that makes a folder's model."""
    import transformers

    kind = json.loads((Path(folder) / "config.json").read_text())["model_type"]
    sees = kind in ("mistral3", "qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "qwen2_5_omni_thinker", "mllama", "mistral4", *_parts.OF_PARTS)
    return transformers.AutoModelForImageTextToText if sees else transformers.AutoModelForCausalLM


@contextlib.contextmanager
def _in_float64():
    """Meanwhile code of transformers that computes in f32, whatever its model's type, does so in
    float64: scans, norms, decays. Angles of rotary embeddings are numbers of f32 to all."""
    import torch

    kept = torch.Tensor.float
    with mock.patch.object(torch, "float32", torch.float64), mock.patch.object(torch.Tensor, "float", lambda x: x.double() if x.is_floating_point() else kept(x)):
        yield


def theirs(folder, ids, dtype="float32"):
    """Logits of whole sequences, and the hidden states after the last norm. In float64 nothing is
    rounded to f32 between."""
    import torch
    import transformers

    if dtype == "float64":
        model, said = _auto(folder).from_pretrained(folder, attn_implementation="eager", experts_implementation="eager", dtype=torch.float32, output_loading_info=True)
        _check_loaded(said)
        with _in_float64(), torch.no_grad():
            found = [_logits_and_hidden(model.double().eval(), row) for row in ids]
        assert all(logits.dtype == torch.float64 for logits, _hidden in found)
        return tuple(np.stack([one.numpy() for one in ones]) for ones in zip(*found))

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    # the eager attention of Falcon adds ALiBi twice, to the mask and to the scores
    eager = json.loads((Path(folder) / "config.json").read_text())["model_type"] != "falcon"
    model, said = _auto(folder).from_pretrained(folder, attn_implementation="eager" if eager else "sdpa", dtype=getattr(torch, dtype), output_loading_info=True)
    _check_loaded(said)
    model.eval()
    with torch.no_grad():
        found = [_logits_and_hidden(model, row) for row in ids]
    return tuple(np.stack([one.float().numpy() for one in ones]) for ones in zip(*found))


def _logits_and_hidden(model, row):
    import torch

    read = []
    hook = model.get_output_embeddings().register_forward_pre_hook(lambda _module, given: read.append(given[0]))
    found = model(torch.tensor(row)[None], output_hidden_states=True)
    hook.remove()
    hidden = found.hidden_states[-1]
    if hidden.dim() == 4:  # of Gemma 3n: streams before they become one, and before the norm
        hidden = read[0]
    return found.logits[0], hidden[0]


def _check_loaded(said):
    missing = [name for name in said["missing_keys"] if not name.endswith(_DERIVED)]
    assert not missing and not said["unexpected_keys"] and not said["mismatched_keys"], said


#: Tensors that transformers saves, and that follow from the configuration.
_DERIVED = (".slope_rate", ".query_decay", ".key_decay", ".diagonal_decay")


def shapes_of(config):
    """Of the tensors that transformers saves, but for those that are no weights."""
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(config))
        with torch.device("cpu"):
            model = _auto(folder).from_config(transformers.AutoConfig.from_pretrained(folder))
        model.save_pretrained(folder)
        content = (Path(folder) / "model.safetensors").read_bytes()
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    return {name: item["shape"] for name, item in sorted(header.items()) if name != "__metadata__" and not name.endswith(_DERIVED)}


def names_in_gguf(name, shapes):
    """By the names of transformers, where the package gguf has one."""
    if name not in GGUF:
        return {}
    import gguf

    architecture = next(key for key, value in gguf.constants.MODEL_ARCH_NAMES.items() if value == GGUF[name][0])
    known = gguf.get_tensor_name_map(architecture, _of_any(text_of(CONFIGS[name]), "num_hidden_layers", "num_layers", "n_layers", "n_layer"))
    found = {}
    for theirs in _stacked({theirs: np.zeros(0) for theirs in shapes}):
        plain = theirs.replace("language_model.", "").replace("e_score_correction_bias", "e_score_correction.bias")
        names = (known.get_name(one, (".weight", ".bias")) for one in (plain, plain.replace("transformer.", "")))
        found[theirs] = next((ours for ours in names if ours), None)
    return {"gguf": {theirs: ours for theirs, ours in found.items() if ours}}


def record(names):
    found = recorded()
    found = {name: item for name, item in found.items() if name in CONFIGS}
    for name in names or CONFIGS:
        config = CONFIGS[name]
        shapes = shapes_of(config)
        with tempfile.TemporaryDirectory() as folder:
            tiny.write_folder(folder, config, draw(shapes, gain=GAINS.get(name, 1.5)))
            logits, _hidden = theirs(folder, ids_of(config), exact_type(name))
        assert np.isfinite(logits).all()
        content = np.ascontiguousarray(logits[:, :, COLUMNS], "<f4").tobytes()
        found[name] = {"tensors": shapes, "logits": base64.b64encode(content).decode(), **names_in_gguf(name, shapes)}
        print(f"{name}: {len(shapes)} tensors, logits up to {np.abs(logits).max():.1f}, {logits.std():.2f} on average")
        write_down(found)


def write_down(found):
    lines = (f"{json.dumps(name)}: {json.dumps(found[name], separators=(',', ':'))}" for name in sorted(found))
    RECORDED.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    record(sys.argv[1:])
