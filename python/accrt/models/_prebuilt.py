"""Makes the kernels that come with the package: all that the families need on hosts, of every type
and layout of weights.

    python -m accrt.models._prebuilt FOLDER [--targets x86-64-v3,x86-64-v4] [--some 30 --seed 7]

Sizes are arguments of kernels, so small models of each family stand for large ones. A new family,
or a new way to compute in one, gets a line in CONFIGS or MORE.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import itertools
import multiprocessing
import os
import random
from pathlib import Path
from typing import Any, Container, Dict, FrozenSet, Iterator, List, Mapping, Sequence, Tuple, Union

from ..compiler import driver
from ..compiler.encodings import LAYOUTS, declared
from ..compiler.kernels import image, prebuilt
from ..compiler.kernels.kerneldef import KernelDef
from ._blocks import Decoder
from ._checkpoint import Checkpoint, Tensor
from ._options import Options
from ._registry import by_type

#: One for each way that a family computes.
CONFIGS: Dict[str, Dict[str, Any]] = {
    "llama": {"tie_word_embeddings": False},
    "llama-tied": {"model_type": "llama", "tie_word_embeddings": True},
    "llama-biases": {"model_type": "llama", "attention_bias": True, "mlp_bias": True},
    "mistral": {"sliding_window": 64},
    "qwen2": {"tie_word_embeddings": True},
    "qwen3": {},
    "gemma2": {"hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 64, "sliding_window": 64, "attn_logit_softcapping": 50.0,
               "final_logit_softcapping": 30.0},
    "phi3": {"pad_token_id": 0},
    "granite": {"embedding_multiplier": 12.0, "residual_multiplier": 0.25, "attention_multiplier": 0.02, "logits_scaling": 8.0},
    "olmo2": {},
    "smollm3": {"no_rope_layers": [0]},
    "gpt2": {},
    "bytelm": {"vocab_size": 256},
}  # fmt: skip
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 96}
_LATENTS = {"q_lora_rank": 256, "kv_lora_rank": 128, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "v_head_dim": 64}
# What layers have in common is computed once: there is more than one of each kind.
_GROUPS = {"n_routed_experts": 8, "n_shared_experts": 1, "num_experts_per_tok": 2, "moe_intermediate_size": 96, "first_k_dense_replace": 1, "n_group": 4, "topk_group": 2,
           "num_hidden_layers": 3}  # fmt: skip
_GRANITE = {"embedding_multiplier": 12.0, "residual_multiplier": 0.25, "attention_multiplier": 0.02, "logits_scaling": 8.0}
_TWO_KINDS = {"num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"], "sliding_window": 64}
_GEMMA4 = {"num_hidden_layers": 4, "layer_types": ["sliding_attention", "full_attention"] * 2, "sliding_window": 64, "global_head_dim": 128}
_KIMI_LINEAR = {"num_hidden_layers": 3, "layer_types": ["linear_attention", "full_attention", "linear_attention"], "linear_num_heads": 4, "linear_head_dim": 32,
                "num_shared_experts": 1}  # fmt: skip
_GPT_OSS = {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 64, "num_hidden_layers": 2, "attention_bias": True}
#: Every head has keys of its own.
_OWN_KEYS = {"num_key_value_heads": None}
#: Families with biases, without a word about it in their configuration.
_BIASED = ("GPT2", "OpenAIGPT", "Jais2", "GPTNeoX", "Phi", "Starcoder2", "Opt", "Bloom", "GPTJ", "CodeGen", "GPTNeo", "GPTBigCode", "Xglm", "Nemotron", "Persimmon", "Phimoe", "BioGpt")
#: Families whose experts have their matrices in two tensors.
_JOINED = ("Llama4", "Mistral4", "Qwen3VLMoe")
#: Families whose products are those of the ones above, in all sizes and with adapters.
MORE: Dict[str, Dict[str, Any]] = {
    "gemma": {},
    "gemma3": {"query_pre_attn_scalar": 64, "sliding_window": 64, "sliding_window_pattern": 2, "num_hidden_layers": 2},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen3_moe": {**_EXPERTS, "norm_topk_prob": True},
    "qwen2_moe": {**_EXPERTS, "shared_expert_intermediate_size": 96},
    "olmoe": {**_EXPERTS, "clip_qkv": 8.0},
    "olmo3": {"sliding_window": 64, "num_hidden_layers": 4},
    "exaone4": {"sliding_window": 64, "num_hidden_layers": 4},
    "ernie4_5": {},
    "seed_oss": {},
    "gpt_neox": {"head_dim": None, "num_key_value_heads": None},
    "phi": {"head_dim": None},
    "cohere": {"logit_scale": 0.5},
    "cohere2": {"sliding_window": 64, "sliding_window_pattern": 2, "num_hidden_layers": 2},
    "starcoder2": {},
    "stablelm": {},
    "stablelm-parallel": {"model_type": "stablelm", "use_parallel_residual": True, "qk_layernorm": True},
    "glm": {},
    "glm4": {},
    "opt": {},
    "bloom": {**_OWN_KEYS, "layer_norm_epsilon": 1e-5},
    "mpt": {**_OWN_KEYS, "attn_config": {"clip_qkv": 8.0}},
    "falcon": {"num_kv_heads": 2, "new_decoder_architecture": True},
    "falcon-7b": {"model_type": "falcon", "multi_query": True},
    "falcon2": {"model_type": "falcon", "num_kv_heads": 2, "new_decoder_architecture": True, "num_ln_in_parallel_attn": 1},
    "falcon-rw": {"model_type": "falcon", "multi_query": False, "parallel_attn": False, "alibi": True, "attention_bias": True},
    "deepseek_v2": {**_LATENTS, **_GROUPS, "topk_method": "group_limited_greedy", "routed_scaling_factor": 16.0},
    "deepseek_v2-lite": {**_LATENTS, **_GROUPS, "model_type": "deepseek_v2", "q_lora_rank": None},
    "deepseek_v3": {**_LATENTS, **_GROUPS, "norm_topk_prob": True},
    "deepseek_v3-plain": {**_LATENTS, **_GROUPS, "model_type": "deepseek_v3", "q_lora_rank": None, "norm_topk_prob": False, "routed_scaling_factor": 1.0},
    "dots1": {**_GROUPS, "n_group": 1, "topk_group": 1, "norm_topk_prob": True, "routed_scaling_factor": 2.0},
    "glm4_moe": {**_GROUPS, "n_group": 1, "topk_group": 1, "norm_topk_prob": True, "use_qk_norm": True, "attention_bias": True},
    "gpt_oss": _GPT_OSS,
    "gpt_oss-packed": {"model_type": "gpt_oss", **_GPT_OSS, "quantization_config": {"quant_method": "mxfp4"}},
    "llama4_text": {"num_local_experts": 4, "num_experts_per_tok": 1, "num_hidden_layers": 4, "interleave_moe_layer_step": 2, "intermediate_size_mlp": 96},
    "lfm2": {"num_hidden_layers": 4, "full_attn_idxs": [1, 3], "block_auto_adjust_ff_dim": False},
    "lfm2-biases": {"model_type": "lfm2", "num_hidden_layers": 4, "full_attn_idxs": [1, 3], "block_auto_adjust_ff_dim": False, "conv_bias": True, "conv_L_cache": 5},
    "granitemoe": {**_GRANITE, "num_local_experts": 4, "num_experts_per_tok": 2},
    "granitemoeshared": {**_GRANITE, "num_local_experts": 4, "num_experts_per_tok": 2, "shared_intermediate_size": 96},
    "granitemoehybrid": {**_GRANITE, "num_local_experts": 0, "shared_intermediate_size": 96, "position_embedding_type": "rope", "layer_types": ["attention"]},
    "granitemoehybrid-mamba": {**_GRANITE, "model_type": "granitemoehybrid", "num_local_experts": 0, "shared_intermediate_size": 96, "position_embedding_type": "nope",
                               "num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"], "mamba_n_heads": 16},
    "granitemoehybrid-experts": {**_GRANITE, "model_type": "granitemoehybrid", "num_local_experts": 4, "num_experts_per_tok": 2, "shared_intermediate_size": 96,
                                 "num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"], "mamba_n_heads": 16},
    "bamba": {"num_hidden_layers": 2, "attn_layer_indices": [1], "mamba_n_heads": 16},
    "falcon_h1": {"mamba_d_ssm": None, "mamba_n_heads": 16, "key_multiplier": 0.5, "ssm_in_multiplier": 0.5, "ssm_out_multiplier": 0.5, "attention_in_multiplier": 0.5,
                  "attention_out_multiplier": 0.5, "embedding_multiplier": 2.0, "lm_head_multiplier": 0.5, "mlp_multipliers": [0.5, 0.5]},
    "falcon_h1-normed": {"model_type": "falcon_h1", "mamba_d_ssm": None, "mamba_n_heads": 16, "mamba_rms_norm": True, "mamba_norm_before_gate": False},
    "falcon_h1-norm-first": {"model_type": "falcon_h1", "mamba_d_ssm": None, "mamba_n_heads": 16, "mamba_rms_norm": True},
    "mamba2": {"hidden_size": 512, "num_heads": 16, "n_groups": 2, "head_dim": 64},
    "nemotron_h": {**_GROUPS, "layers_block_type": ["mamba", "moe", "attention", "mlp"], "mamba_num_heads": 16, "n_groups": 2, "moe_shared_expert_intermediate_size": 96},
    "nemotron_h-latent": {"model_type": "nemotron_h", **_GROUPS, "n_group": 1, "topk_group": 1, "layers_block_type": ["mamba", "moe"], "mamba_num_heads": 16, "n_groups": 1,
                          "moe_shared_expert_intermediate_size": 96, "moe_latent_size": 128, "routed_scaling_factor": 2.0},
    "olmo_hybrid": {"num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"], "num_key_value_heads": None,
                    "rope_parameters": {"rope_type": "default", "rope_theta": None}},
    "olmo_hybrid-turned": {"model_type": "olmo_hybrid", "num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"], "num_key_value_heads": None,
                           "linear_allow_neg_eigval": False},
    "zamba2": {"num_hidden_layers": 3, "layers_block_type": ["mamba", "hybrid", "hybrid"], "n_mamba_heads": 16, "num_key_value_heads": None, "use_mem_rope": True,
               "use_shared_attention_adapter": True},
    "zamba2-plain": {"model_type": "zamba2", "num_hidden_layers": 2, "layers_block_type": ["mamba", "hybrid"], "n_mamba_heads": 16, "num_key_value_heads": None},
    "zamba2-biases": {"model_type": "zamba2", "num_hidden_layers": 2, "layers_block_type": ["mamba", "hybrid"], "n_mamba_heads": 16, "num_key_value_heads": None, "add_bias_linear": True},
    "mamba": {},
    "mamba-biases": {"model_type": "mamba", "use_bias": True, "use_conv_bias": False},
    "mamba-taps": {"model_type": "mamba", "use_bias": True, "use_conv_bias": False, "conv_kernel": 3},
    "falcon_mamba": {},
    "jamba": {"num_hidden_layers": 2, "attn_layer_period": 2, "attn_layer_offset": 1, "num_experts": 4},
    "qwen3_next": {"num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"], "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 96,
                   "shared_expert_intermediate_size": 96, "linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 32, "linear_value_head_dim": 32},
    "qwen3_5_text": {"num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"], "linear_num_value_heads": 4, "linear_num_key_heads": 2,
                     "linear_key_head_dim": 32, "linear_value_head_dim": 32},
    "qwen3_5_moe_text": {"num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"], "num_experts": 4, "num_experts_per_tok": 2,
                         "moe_intermediate_size": 96, "shared_expert_intermediate_size": 96, "linear_num_value_heads": 4, "linear_num_key_heads": 2,
                         "linear_key_head_dim": 32, "linear_value_head_dim": 32},
    "lfm2_moe": {"num_hidden_layers": 4, "layer_types": ["conv", "full_attention"] * 2, "num_experts": 4, "num_experts_per_tok": 2, "num_dense_layers": 2},
    "gptj": {**_OWN_KEYS, "rotary_dim": 32},
    "codegen": {**_OWN_KEYS, "rotary_dim": 32},
    "gpt_neo": {**_OWN_KEYS, "num_hidden_layers": 2, "window_size": 64, "attention_types": [[["global", "local"], 1]]},
    "gpt_bigcode": {},
    "gpt_bigcode-heads": {"model_type": "gpt_bigcode", "multi_query": False},
    "xglm": {**_OWN_KEYS},
    "nemotron": {"norm_eps": 1e-5},
    "arcee": {},
    "apertus": {"hidden_act": "xielu"},
    "helium": {},
    "olmo": {"clip_qkv": 8.0},
    "persimmon": {},
    "hunyuan_v1_dense": {},
    "ministral": {"sliding_window": 64},
    "ministral3": {"num_hidden_layers": 2},
    "minicpm3": {**_LATENTS, "q_lora_rank": 256},
    "internlm3": {},
    "exaone": {},
    "qwen2_vl": {},
    "qwen3_vl": {},
    "phimoe": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "ernie4_5_moe": {"moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 96, "moe_num_shared_experts": 1, "num_hidden_layers": 3},
    "minimax_m2": {"num_local_experts": 4, "num_experts_per_tok": 2, "rotary_dim": 32, "num_hidden_layers": 2},
    "minimax": {"num_local_experts": 4, "num_experts_per_tok": 2, "num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"]},
    "hunyuan_v1_moe": {"num_experts": 4, "moe_topk": 2},
    "gemma3n_text": {"num_hidden_layers": 5, "sliding_window": 64, "num_kv_shared_layers": 2, "layer_types": ["sliding_attention", "full_attention"] * 2 + ["full_attention"],
                     "activation_sparsity_pattern": [0.95, 0.0, 0.95, 0.0, 0.0], "vocab_size_per_layer_input": 512, "hidden_size_per_layer_input": 64},
    "cwm": {"sliding_window": 64, "num_hidden_layers": 2},
    "vaultgemma": {"query_pre_attn_scalar": 64, "sliding_window": 64, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
    "nanochat": {"num_hidden_layers": 2},
    "solar_open": {**_GROUPS, "n_group": 1, "topk_group": 1, "norm_topk_prob": True, "routed_scaling_factor": 2.0},
    "exaone_moe": {**_EXPERTS, "num_hidden_layers": 3, "sliding_window": 64},
    "hyperclovax": _GRANITE,
    "flex_olmo": {**_EXPERTS},
    "jais2": {"attention_bias": True, "mlp_bias": True},
    "youtu": _LATENTS,
    "mellum": {**_EXPERTS, "sliding_window": 64, "num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"]},
    "phi4_multimodal": {"pad_token_id": 0},
    "hy_v3": {**_EXPERTS, "num_hidden_layers": 3, "num_shared_experts": 1, "router_scaling_factor": 2.0},
    "sarvam_moe": {**_GROUPS, "n_group": 1, "topk_group": 1, "norm_topk_prob": True, "use_qk_norm": True, "routed_scaling_factor": 2.0},
    "sarvam_mla": {**_LATENTS, **_GROUPS, "n_group": 1, "topk_group": 1, "q_lora_rank": None, "norm_topk_prob": True},
    "iquestcoder": {},
    "afmoe": {**_EXPERTS, "num_hidden_layers": 4, "num_shared_experts": 1, "sliding_window": 64, "mup_enabled": True, "route_scale": 2.0},
    "afmoe-plain": {**_EXPERTS, "model_type": "afmoe", "num_hidden_layers": 4, "num_shared_experts": 1, "sliding_window": 64},
    "granite_swa": {**_GRANITE, "num_hidden_layers": 2, "sliding_window": 64, "layer_rope_theta": [0, 500.0]},
    "granitemoe_swa": {**_GRANITE, "num_hidden_layers": 2, "sliding_window": 64, "num_local_experts": 4, "num_experts_per_tok": 2, "shared_intermediate_size": 96},
    "cohere2_moe": {"num_experts": 4, "num_experts_per_tok": 2, "num_shared_experts": 1, "first_k_dense_replace": 1, "num_hidden_layers": 4, "sliding_window": 64},
    "cohere2_moe-sigmoid": {"model_type": "cohere2_moe", "num_experts": 4, "num_experts_per_tok": 2, "expert_selection_fn": "sigmoid", "rms_norm_eps": 1e-5,
                            "num_hidden_layers": 2, "sliding_window": 64},
    "dbrx": {"attn_config": {"clip_qkv": 8.0, "kv_n_heads": 2}, "ffn_config": {"ffn_hidden_size": 96, "moe_top_k": 2}},
    "deepseek_v32": {**_LATENTS, **_GROUPS, "norm_topk_prob": True},
    "bitnet": {"hidden_act": "relu2"},
    "gemma4_text": {**_GEMMA4, "num_kv_shared_layers": 1, "vocab_size_per_layer_input": 512, "hidden_size_per_layer_input": 64},
    "gemma4-experts": {**_GEMMA4, "model_type": "gemma4_text", **_EXPERTS, "enable_moe_block": True, "attention_k_eq_v": True, "hidden_size_per_layer_input": 0,
                       "final_logit_softcapping": 30.0},
    "kimi_linear": {**_LATENTS, **_EXPERTS, **_KIMI_LINEAR, "q_lora_rank": None, "num_expert_group": 2, "topk_group": 1, "moe_renormalize": True},
    "kimi_linear-plain": {"model_type": "kimi_linear", **_LATENTS, **_EXPERTS, **_KIMI_LINEAR, "moe_renormalize": False, "routed_scaling_factor": 1.0},
    "axk1": {**_LATENTS, **_GROUPS, "norm_topk_prob": True},
    "mistral4": {**_LATENTS, **_GROUPS, "norm_topk_prob": True},
    "longcat_flash": {**{key: value for key, value in _LATENTS.items() if key != "num_key_value_heads"}, "num_layers": 1, "ffn_hidden_size": 768, "n_routed_experts": 8,
                      "zero_expert_num": 4, "moe_topk": 2, "expert_ffn_hidden_size": 96},
    "lfm3": {"norm_eps": 1e-5, "num_hidden_layers": 3, "layer_types": ["conv", "full_attention", "sliding_attention"], "sliding_window": 64, "conv_L_cache": 5},
    "lfm3-plain": {"model_type": "lfm3", "norm_eps": 1e-5, "num_hidden_layers": 3, "layer_types": ["conv", "full_attention", "sliding_attention"], "sliding_window": 64, "conv_bias": True,
                   "use_sandwich_norm": False, "use_attention_gate": False},
    "mllama": {"num_hidden_layers": 2, "cross_attention_layers": [1]},
    "qwen3_vl_moe": {**_EXPERTS},
    "openai-gpt": {},
    "kolibri1": {**_EXPERTS, **_TWO_KINDS, "shared_expert_intermediate_size": 96, "norm_topk_prob": True},
    "kolibri1-plain": {"model_type": "kolibri1", **_EXPERTS, **_TWO_KINDS, "shared_expert_intermediate_size": 96},
    "flint": {**_EXPERTS, **_TWO_KINDS, "num_hidden_layers": 3, "layer_types": ["full_attention", "sliding_attention", "full_attention"], "shared_expert_intermediate_size": 96,
              "mlp_only_layers": [0]},
    "gpt_neox_japanese": {"head_dim": None, "num_key_value_heads": None, "num_hidden_layers": 2},
    "biogpt": {**_OWN_KEYS, "scale_embedding": True},
    "glm4_moe_lite": {**_LATENTS, **_GROUPS, "n_group": 1, "topk_group": 1, "norm_topk_prob": True},
}  # fmt: skip
_SIZES = {"vocab_size": 512, "hidden_size": 512, "intermediate_size": 768, "num_hidden_layers": 1, "num_attention_heads": 8, "num_key_value_heads": 2,
          "head_dim": 64, "max_position_embeddings": 4096}  # fmt: skip
#: Rows of an embedding behind those of the vocabulary.
_MORE_ROWS = {"mllama": 8}
#: Such that no product's rows fill its panels: matrices that are read together are copied together
#: first.
_ODD_SIZES = {**_SIZES, "vocab_size": 333, "hidden_size": 48, "intermediate_size": 80, "num_attention_heads": 6, "head_dim": 8}
_GPT2_NAMES = {"hidden_size": "n_embd", "num_hidden_layers": "n_layer", "num_attention_heads": "n_head", "max_position_embeddings": "n_positions",
               "vocab_size": "vocab_size"}  # fmt: skip
#: As configurations of GGUF files have them.
_GGUF_NAMES = {"num_local_experts": "num_experts", "moe_num_experts": "num_experts", "n_routed_experts": "num_experts", "shared_intermediate_size": "shared_expert_intermediate_size"}
#: What they alone say.
_OF_FILES: Dict[str, Dict[str, Any]] = {"gemma3n_text": {"altup_num_inputs": 4, "laurel_rank": 64}, "apertus": {f"xielu_{part}": 0.5 for part in ("alpha_p", "alpha_n", "beta", "eps")}}
#: Heads of other sizes.
_HEADS = (32, 64, 80, 96, 128, 160, 192, 256, 512)
_FLOATS = ("f32", "bf16", "f16")
# layout, group, types of components; none: plain
_Packing = Union[Tuple[()], Tuple[str, int, Mapping[str, str]]]


class _Tensors(Dict[str, Tensor]):
    """Every tensor that a family asks for is there."""

    def __init__(self, float_type: str, packing: "_Packing", is_gguf: bool) -> None:
        super().__init__()
        self.float_type, self.packing, self.is_gguf = float_type, packing, is_gguf

    def make(self, key: str, shape: Sequence[int]) -> None:
        is_matrix = len(shape) > 1 and "wpe" not in key
        dtype = "f32" if self.is_gguf and not is_matrix else self.float_type
        # only GGUF files have packed embeddings
        packing = self.packing if is_matrix and (self.is_gguf or "embed" not in key) else ()
        self[key] = Tensor(key, dtype, tuple(shape), *packing)


def _decoder(
    name: str, sizes: Mapping[str, Any], float_type: str, packing: "_Packing" = (), form: str = "folder", **options: Any,
) -> Decoder:  # fmt: skip
    if name in ("gpt2", "openai-gpt"):
        sizes = {_GPT2_NAMES[key]: value for key, value in sizes.items() if key in _GPT2_NAMES}
    config = {"model_type": name, **sizes, **{**CONFIGS, **MORE}[name]}
    if form == "gguf":
        config = {**{_GGUF_NAMES.get(key, key): value for key, value in config.items()}, **_OF_FILES.get(name, {})}
    if config["model_type"] == "phi3":
        del config["head_dim"]
    family = by_type(config["model_type"])
    tensors = _Tensors(float_type, packing, form == "gguf")
    rows = config["vocab_size"] + _MORE_ROWS.get(config["model_type"], 0)
    tensors.make(f"{family.prefix}{family.embedding_name}.weight", (rows, config.get("hidden_size", config.get("n_embd"))))
    if form == "gguf" and config["model_type"] == "llama":
        tensors.make("rope_freqs.weight", (config["head_dim"] // 2,))

    class Asking(family):  # type: ignore[misc, valid-type]
        def has(self, name: str) -> bool:
            has_biases = bool(config.get("attention_bias")) or family.__name__ in _BIASED
            is_norm = name.endswith("norm.weight") and "q_norm" not in name and not config.get("use_parallel_residual")
            has_biases |= name.endswith("conv1d.bias")
            joined = family.__name__ in _JOINED and name.endswith("experts.gate_up_proj")
            return joined or name == f"{family.head_name}.weight" and not self.is_tied or is_norm or (name.endswith(".bias") and "gate.bias" not in name and has_biases)

        def weight(self, name: str, shape: Sequence[int]) -> Any:
            if self._key(name) not in tensors:
                tensors.make(self._key(name), shape)
            return super().weight(name, shape)

        def _forward(self, name: str, *more: Any) -> None:
            # `embed` and `step_plain` do a part of it, with its kernels
            if name == "step":
                super()._forward(name, *more)

    return Asking(Checkpoint("prebuilt", form, config, tensors, [], {}), Options(**options))


def _packed(layout: str) -> Iterator[Tuple[int, Dict[str, str]]]:
    """The groups that checkpoints of a layout have, such as stay packed and such as do not, and the
    types of its components: where the layout leaves a choice."""
    scales, known = [{"scales": dtype} for dtype in ("f16", "bf16", "f32")], []
    for group in (128, 16) if LAYOUTS[layout].free_group else (0,):
        for given in ({}, *scales, *({**one, "data": "f8e5m2"} for one in ({}, *scales))):
            try:
                types = (group, declared(layout, (256, 256), group=group, components=given).types)
            except ValueError:
                continue
            if types not in known:
                yield group, given
            known.append(types)


#: Families and layouts that a part of all need not have.
CHOICES = (*MORE, *(name for name in LAYOUTS if name not in ("q8_0", "q4_k", "q6_k")))


def some(count: int, seed: int) -> FrozenSet[str]:
    """All choices but so many, by a seed: what `every` leaves out of a part of all."""
    return frozenset(CHOICES) - frozenset(random.Random(seed).sample(CHOICES, min(count, len(CHOICES))))


def every(without: Container[str] = ()) -> Iterator[Decoder]:
    """Models that between them need every kernel; none of the families and layouts without."""
    for name in CONFIGS:
        for sizes in (_SIZES, _ODD_SIZES):
            for float_type in _FLOATS:
                yield _decoder(name, sizes, float_type)
                yield _decoder(name, sizes, float_type, adapters=4)
                if by_type(CONFIGS[name].get("model_type", name)).architectures:
                    yield _decoder(name, sizes, float_type, form="gguf")
    for name in (name for name in MORE if name not in without):
        for float_type in _FLOATS:
            yield _decoder(name, _SIZES, float_type)
            # an activation stands alone behind an adapter
            yield _decoder(name, _SIZES, float_type, adapters=4)
        if by_type(MORE[name].get("model_type", name)).architectures:
            yield _decoder(name, _SIZES, "f32", form="gguf")
    yield _decoder("mixtral", _SIZES, "f32", ("q8_0", 0, {}), "gguf")
    for float_type in _FLOATS:  # packed experts of a folder are joined
        yield _decoder("mixtral", _SIZES, float_type, ("i8_channel", 0, {}))
    for float_type in _FLOATS:
        yield _decoder("gpt_oss-packed", _SIZES, float_type, ("mxfp4", 32, {}))
    yield _decoder("gpt_oss", _SIZES, "f32", ("ggml_mxfp4", 0, {}), "gguf")
    for head_dim in _HEADS:
        for kv_type in _FLOATS:
            yield _decoder("llama", {**_SIZES, "head_dim": head_dim}, "f32", kv_type=kv_type)
            yield _decoder("llama", {**_SIZES, "head_dim": head_dim}, kv_type, kv_type="fp8")
    for layout, facts in ((name, facts) for name, facts in LAYOUTS.items() if name not in without):
        for group, components in _packed(layout):
            if facts.block[1]:
                yield _decoder("llama", _SIZES, "f32", (layout, group, components), "gguf")
                yield _decoder("llama-tied", _SIZES, "f32", (layout, group, components), "gguf")
            else:
                for float_type in _FLOATS:
                    yield _decoder("llama", _SIZES, float_type, (layout, group, components))


def kernels_of(made: Decoder) -> List[KernelDef]:
    """Those of a model that come with the package."""
    return [kernel for kernel in driver.kernels_of(made.build(), "host") if kernel.producer is not None]


def _no_grid(values: Mapping[str, Any]) -> Tuple[Any, Any, Any]:
    raise NotImplementedError("a kernel that is compiled, and not launched")


def _share(first: int, step: int, without: FrozenSet[str]) -> List[KernelDef]:
    """Kernels of every step-th model. They go to another process, so functions are left out: images
    do not have them."""
    found: Dict[str, KernelDef] = {}
    for made in itertools.islice(every(without), first, None, step):
        for kernel in kernels_of(made):
            if kernel.name not in found:
                found[kernel.name] = dataclasses.replace(kernel, grid=_no_grid, workspace_bytes=None, predicates=())
    return list(found.values())


def kernels(every_nth: int = 1, without: FrozenSet[str] = frozenset()) -> List[KernelDef]:
    """Those that come with the package, or that some of the models need, without what launches
    them. As many processes as there are processors look for them: other ones, as a fork of one that
    has used the library may not use it."""
    count = os.cpu_count() or 1
    with concurrent.futures.ProcessPoolExecutor(count, multiprocessing.get_context("spawn")) as pool:
        shares = list(pool.map(_share, [first * every_nth for first in range(count)], [count * every_nth] * count, [without] * count))
    found: Dict[str, KernelDef] = {}
    for kernel in itertools.chain.from_iterable(shares):
        known = found.setdefault(kernel.name, kernel)
        if known.producer != kernel.producer:
            raise image.ImageError(f"two different kernels are named {kernel.name!r}")
    return [found[name] for name in sorted(found)]


def main() -> None:
    parser = argparse.ArgumentParser(description="Makes the kernels that come with the package.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--targets", default=",".join(driver.HOST_TARGETS))
    parser.add_argument("--some", type=int, metavar="N", help="N families and layouts, beside those that many models have, not all")
    parser.add_argument("--seed", type=int, default=0, help="which ones")
    given = parser.parse_args()
    found = kernels(without=frozenset() if given.some is None else some(given.some, given.seed))
    for target in given.targets.split(","):
        members, path = image.prebuild(found, target), given.folder / f"{target}.zip"
        prebuilt.write(path, members)
        print(f"{path}: {len(members)} kernels, {sum(map(len, members.values())) / 1e6:.1f} MB in {path.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
