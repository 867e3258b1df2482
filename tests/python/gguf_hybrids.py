"""GGUF files of families whose files differ from folders in more than names: recurrences, short
convolutions, experts, numbers that are metadata. They are written as llama.cpp's converter writes
them, from the same random weights as a folder; test_gguf_hybrids.py compares the two."""

from __future__ import annotations

import math
import re
from unittest import mock

import numpy as np

import family_models as family
import tiny_models as tiny
from accrt import models
from accrt.models import _registry
from accrt.models._blocks import Decoder

#: Names in files by the ends of names in folders.
_NORMS = {"input_layernorm": "attn_norm", "operator_norm": "attn_norm", "attention_layernorm": "attn_norm", "norm": "attn_norm", "post_attention_layernorm": "ffn_norm",
          "feedforward_layernorm": "ffn_norm", "ffn_norm": "ffn_norm"}  # fmt: skip
_ATTENTION = {**{f"self_attn.{part}_proj": f"attn_{part}" for part in "qkv"}, "self_attn.o_proj": "attn_output", "self_attn.out_proj": "attn_output",
              **{f"self_attn.{part}_{norm}": f"attn_{part}_norm" for part in "qk" for norm in ("norm", "layernorm")}}  # fmt: skip
_CONVOLUTIONS = {f"conv.{part}": f"shortconv.{part}" for part in ("conv", "in_proj", "out_proj")}
_MIXER = {"in_proj": "ssm_in", "conv1d": "ssm_conv1d", "dt_bias": "ssm_dt.bias", "A_log": "ssm_a", "D": "ssm_d", "norm": "ssm_norm", "out_proj": "ssm_out"}
_NET = {"in_proj_qkvz": "ssm_in", "in_proj_qkv": "attn_qkv", "in_proj_z": "attn_gate", "in_proj_ba": "ssm_ba", "in_proj_b": "ssm_beta", "in_proj_a": "ssm_alpha"}
_PARTS = {"gate_proj": "gate", "up_proj": "up", "down_proj": "down", "w1": "gate", "w3": "up", "w2": "down"}
_MLP = {f"{mlp}.{theirs}": f"ffn_{ours}{kind}" for theirs, ours in _PARTS.items() for mlp, kind in (
    ("mlp", ""), ("feed_forward", ""), ("mlp.shared_expert", "_shexp"), ("feed_forward.shared_expert", "_shexp"), ("mlp.experts", "_exps"), ("feed_forward.experts", "_exps"),
    ("block_sparse_moe.experts", "_exps"))}  # fmt: skip
_ROUTERS = {**{name: "ffn_gate_inp" for name in ("mlp.gate", "feed_forward.gate", "feed_forward.router", "block_sparse_moe.router.layer")},
            "mlp.shared_expert_gate": "ffn_gate_inp_shexp", "feed_forward.expert_bias": "exp_probs_b.bias", "block_sparse_moe.gate": "ffn_gate_inp"}  # fmt: skip
_NAMES = {**_NORMS, **_ATTENTION, **_CONVOLUTIONS, **_MLP, **_ROUTERS,
          **{f"{scan}.{theirs}": ours for scan in ("mamba", "mixer", "linear_attn") for theirs, ours in {**_MIXER, **_NET}.items()}}  # fmt: skip
_ALTUP = {"correction_coefs": "correct_coef", "prediction_coefs": "predict_coef", "modality_router": "router", "router_norm": "router_norm"}
_GEMMA3N = {"post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm", "post_feedforward_layernorm": "post_ffw_norm", "per_layer_input_gate": "inp_gate",
            "per_layer_projection": "proj", "post_per_layer_input_norm": "post_norm", "laurel.linear_left": "laurel_l", "laurel.linear_right": "laurel_r",
            "laurel.post_laurel_norm": "laurel_post_norm", **{f"altup.{theirs}": f"altup_{ours}" for theirs, ours in _ALTUP.items()},
            "altup.correct_output_scale": "altup_correct_scale.weight"}  # fmt: skip
_WITHOUT_LAYER = {"model.embed_tokens_per_layer": "per_layer_token_embd", "model.per_layer_model_projection": "per_layer_model_proj", "model.per_layer_projection_norm": "per_layer_proj_norm",
                  "model.altup_projections": "altup_proj", "model.altup_unembed_projections": "altup_unembd_proj",
                  "model.embed_tokens": "token_embd", "backbone.embeddings": "token_embd", "lm_head": "output", "model.norm": "output_norm", "model.final_layernorm": "output_norm",
                  "backbone.norm_f": "output_norm", "model.embedding_norm": "token_embd_norm"}  # fmt: skip
#: Of layers that are no matrices of a product: files do not pack them.
_PLAIN = re.compile(r"ssm_(conv1d|a|d|norm)|shortconv\.conv|ffn_gate_inp|altup|laurel|per_layer_model_proj")

_SCALED = {"embedding_scale": 6.0, "residual_scale": 0.4, "attention.scale": 0.2, "logit_scale": 4.0}
_YARN = {"rope.scaling.type": "yarn", "rope.scaling.factor": 16.0, "rope.scaling.original_context_length": 16, "rope.scaling.yarn_beta_fast": 32.0,
         "rope.scaling.yarn_beta_slow": 1.0, "rope.scaling.yarn_log_multiplier": 1.0, "attention.temperature_scale": 0.4}  # fmt: skip
#: The architecture that a file names, what it says beside what all say, and what is changed of the
#: configuration of family_models.py.
FILES = {
    "lfm2": ("lfm2", {}, {}),
    "lfm2-moe": ("lfm2moe", {"expert_count": 5, "expert_used_count": 2, "leading_dense_block_count": 1, "expert_gating_func": 2, "expert_weights_scale": 1.5,
                             "rope.freq_base": 20000.0}, {"norm_topk_prob": True}),
    "granite4-mamba": ("granitehybrid", {**_SCALED, "rope.scaling.finetuned": False}, {}),
    "granite4-mamba-experts": ("granitehybrid", {**_SCALED, "rope.scaling.finetuned": False, "expert_count": 4, "expert_used_count": 2}, {}),
    "granite4-turned": ("granitehybrid", {**_SCALED, "rope.scaling.finetuned": True}, {"position_embedding_type": "rope"}),
    "falcon-h1": ("falcon-h1", {}, {}),
    "falcon-h1-normed": ("falcon-h1", {}, {}),
    "mamba2": ("mamba2", {"attention.head_count": 0, "feed_forward_length": 0}, {}),
    "mamba2-one-group": ("mamba2", {"attention.head_count": 0, "feed_forward_length": 0}, {"n_groups": 1}),
    "qwen3-next": ("qwen3next", {"expert_count": 5, "expert_used_count": 2, "rope.dimension_count": 8}, {"norm_topk_prob": True}),
    "qwen3-next-older": ("qwen3next", {"expert_count": 5, "expert_used_count": 2, "rope.dimension_count": 8}, {"norm_topk_prob": True}),
    "qwen3.5": ("qwen35", {"rope.dimension_count": 8, "rope.freq_base": 10000.0, "rope.dimension_sections": [2, 1, 1, 0]}, {}),
    "qwen3.5-moe": ("qwen35moe", {"expert_count": 5, "expert_used_count": 2, "rope.dimension_count": 4, "rope.dimension_sections": [1, 1, 0, 0],
                                  "attention.recurrent_layers": [True, False, True, False]}, {}),
    "llama4": ("llama4", {"expert_count": 5, "expert_used_count": 2, "interleave_moe_layer_step": 2}, {"attention_chunk_size": 8192, "floor_scale": 8192, "attn_scale": 0.1}),
    "ministral3": ("mistral3", _YARN, {}),
    "apertus": ("apertus", {}, {}),
    "internlm3": ("llama", {}, {}),
    "gemma3n": ("gemma3n", {"attention.sliding_window": 6, "attention.sliding_window_pattern": [True, False] * 3, "attention.shared_kv_layers": 2, "altup.active_idx": 0,
                            "altup.num_inputs": 4, "embedding_length_per_layer_input": 12, "final_logit_softcapping": 30.0, "rope.freq_base_swa": 500.0,
                            "activation_sparsity_scale": [1.2815515995025635, -math.inf, 0.2533471584320068, *[-math.inf] * 3]}, {}),
    "gemma3n-older": ("gemma3n", {"attention.sliding_window": 6, "attention.shared_kv_layers": 1, "altup.active_idx": 2, "altup.num_inputs": 4,
                                  "embedding_length_per_layer_input": 12, "activation_sparsity_scale": [-math.inf] * 6},
                      {"activation_sparsity_pattern": [0.0] * 6, "layer_types": ["sliding_attention"] * 4 + ["full_attention", "sliding_attention"],
                       "num_kv_shared_layers": 1, "altup_active_idx": 2, "rope_local_base_freq": 10000.0, "intermediate_size": 80}),
    "phimoe": ("phimoe", {"rope.freq_base": 1e6, "expert_count": 5, "expert_used_count": 2, "rope.dimension_count": 8, "attention.sliding_window": 200, "rope.scaling.original_context_length": 64,
                          "rope.scaling.attn_factor": 1.2}, {"router_jitter_noise": 0.01}),
}  # fmt: skip
#: Those whose configuration has another name.
_OF = {"granite4-turned": "granite4-mamba", "mamba2-one-group": "mamba2", "qwen3-next-older": "qwen3-next", "gemma3n-older": "gemma3n"}
#: Those whose sizes can be enlarged to rows that K quants cut.
OF_K_QUANTS = sorted(name for name in FILES if name not in ("apertus", "qwen3-next-older"))


def config_of(name):
    return {**family.CONFIGS[_OF.get(name, name)], **FILES[name][2]}


def shapes_of(folder, config):
    """Of the tensors that the folder of a configuration has, by what its family asks for."""
    found = {}
    prefix = "backbone." if config["model_type"] == "mamba2" else "model."
    there = [f"{prefix}none", *([] if config.get("tie_word_embeddings") else ["lm_head.weight"])]
    tiny.write_folder(folder, config, {name: np.zeros(1, np.float32) for name in there})
    exact = Decoder.weight

    def asked(decoder, name, shape):
        made = exact(decoder, name, shape)
        found[decoder._key(name)] = tuple(shape)
        decoder.config.points.clear()
        return made

    with mock.patch.object(Decoder, "weight", asked), mock.patch.object(Decoder, "_stop_if_refused", lambda decoder: None):
        _registry.decoder(models.read(folder)).build()
    return found


def weights_of(folder, name, config=None, gain=1.5):
    """Such weights, by name: of norms that multiply by 1 + w they are those of family_models.py."""
    config = config or config_of(name)
    made = family.draw(shapes_of(folder, config), gain=gain)
    if config["model_type"] == "gemma3n_text":  # which does not scale scores: norms do
        for key in made:
            made[key] = made[key] * np.float32(config["head_dim"] ** -0.25) if key.endswith(("q_norm.weight", "k_norm.weight")) else made[key]
    return made


def gain_of_k_quants(name):
    """As large as family_models.GAINS has them, so that little is made of what products round. In
    Qwen 3.5 with experts, with half of it no part alone gives most of the error (attention 0.047 in
    the middle, experts 0.037, the shared one 0.025): routers take other experts. In Phi-3.5 MoE a
    share of an expert jumps where another one is within 2% of it: with 1.5 the error is 0.128."""
    return {"qwen3.5-moe": 0.25, "phimoe": 0.5}.get(name) or family.GAINS.get(_OF.get(name, name), 1.5)


def write_gguf(path, name, weights, types=None, changed=lambda _name, array: array, by=1, **more):
    """As llama.cpp's converter writes it. `by`: how much larger sizes are than those of the
    configuration; `more`: metadata."""
    config = family.enlarged(config_of(name), by)
    architecture, keys = FILES[name][0], {**_keys(config), **family.enlarged(FILES[name][1], by)}
    arrays = {}
    if architecture == "phimoe":
        arrays.update({f"rope_factors_{part}.weight": np.asarray(config["rope_scaling"][f"{part}_factor"], np.float32) for part in ("short", "long")})
    if architecture == "apertus":
        keys.update({f"xielu.{part}": [float(weights[f"model.layers.{layer}.mlp.act_fn.{part}"].reshape(())) for layer in range(config["num_hidden_layers"])]
                     for part in ("alpha_p", "alpha_n", "beta", "eps")})  # fmt: skip
        arrays["rope_freqs.weight"] = divisors(config)
        weights = {key: array for key, array in weights.items() if ".act_fn." not in key}
    keys.update(more)
    for theirs, array in stacked(weights).items():
        for ours, made in _converted(name, config, theirs, array):
            arrays[ours] = np.ascontiguousarray(changed(ours, made) if made.ndim > 1 else made)
    metadata = {**tiny.gguf_metadata(tiny.CONFIGS["gpt2"]), **{f"{architecture}.{key}": value for key, value in keys.items() if value is not None}}
    metadata = {key: value for key, value in metadata.items() if not key.startswith("gpt2.")}
    stored = {key: types(key, array) if callable(types) else types for key, array in arrays.items() if types and array.ndim > 1}
    tiny.write_gguf(path, {**metadata, "general.architecture": architecture}, arrays, stored)
    return path


def stacked(weights):
    """Matrices of experts, and those of streams: one tensor for all."""
    found = {}
    for name, array in weights.items():
        found.setdefault(re.sub(r"\.(experts|altup_projections|altup_unembed_projections)\.\d+\.", r".\1.", name), []).append(array)
    return {name: np.stack(arrays) if len(arrays) > 1 else arrays[0] for name, arrays in found.items()}


def k_quant(name, array):
    return "F32" if _PLAIN.search(name) else family.k_quant(name, array)


def of_k_quant(name, array):
    return array if _PLAIN.search(name) else family.of_k_quant(name, array)


def divisors(config):
    """The scaling of Llama 3 as files have it."""
    size = config["hidden_size"] // config["num_attention_heads"]
    theta, given = config["rope_theta"], config["rope_scaling"]
    plain = theta ** -(np.arange(0, size, 2) / size)
    waves = 2 * math.pi / plain
    part = (given["original_max_position_embeddings"] / waves - given["low_freq_factor"]) / (given["high_freq_factor"] - given["low_freq_factor"])
    part = np.clip(part, 0, 1)
    return (1 / (part + (1 - part) / given["factor"])).astype(np.float32)


def _keys(config):
    """What files of all these families say."""
    kinds, kv = config.get("layer_types"), config.get("num_key_value_heads")
    if config["model_type"] in ("lfm2", "lfm2_moe", "granitemoehybrid"):
        attends = config["full_attn_idxs"] if "full_attn_idxs" in config else [layer for layer, kind in enumerate(kinds) if kind in ("attention", "full_attention")]
        kv = [kv if layer in attends else 0 for layer in range(config["num_hidden_layers"])]
    made = {
        "context_length": config.get("max_position_embeddings", 1 << 20), "embedding_length": config["hidden_size"], "block_count": config["num_hidden_layers"],
        "attention.head_count": config.get("num_attention_heads"), "attention.head_count_kv": kv, "feed_forward_length": config.get("intermediate_size"),
        "rope.freq_base": config.get("rope_theta"), "attention.layer_norm_rms_epsilon": next(config[key] for key in ("rms_norm_eps", "norm_eps", "layer_norm_epsilon") if key in config),
        "attention.key_length": config.get("head_dim") if config["model_type"] != "mamba2" else None, "vocab_size": config["vocab_size"], "shortconv.l_cache": config.get("conv_L_cache"),
        "expert_feed_forward_length": config.get("moe_intermediate_size"), "expert_shared_feed_forward_length": config.get("shared_intermediate_size", config.get("shared_expert_intermediate_size")),
    }  # fmt: skip
    if config["model_type"] == "lfm2":
        made.update({"feed_forward_length": -(-int(2 * config["block_ff_dim"] / 3) // config["block_multiple_of"]) * config["block_multiple_of"], "shortconv.l_cache": 3})
    elif config["model_type"] == "lfm2_moe":
        made["shortconv.l_cache"] = 3
    elif config["model_type"] == "llama4_text":
        made.update({"feed_forward_length": config["intermediate_size_mlp"], "expert_feed_forward_length": config["intermediate_size"]})
    elif config["model_type"] == "ministral3":
        made["rope.freq_base"] = config["rope_parameters"]["rope_theta"]
    if "linear_num_value_heads" in config:
        made.update({"ssm.conv_kernel": 4, "ssm.state_size": config["linear_key_head_dim"], "ssm.group_count": config["linear_num_key_heads"],
                     "ssm.time_step_rank": config["linear_num_value_heads"], "ssm.inner_size": config["linear_num_value_heads"] * config["linear_value_head_dim"]})  # fmt: skip
        made["full_attention_interval"] = config.get("full_attention_interval", 4)
    elif config["model_type"] == "mamba2" or "mamba_n_heads" in config and "mamba_d_state" in config:
        m = scan_of(config)
        made.update({"ssm.conv_kernel": 4, "ssm.state_size": m["state"], "ssm.group_count": m["groups"], "ssm.time_step_rank": m["heads"], "ssm.inner_size": m["inner"]})
    return made


def scan_of(config):
    own = config["model_type"] == "mamba2"
    inner = config.get("mamba_d_ssm") or (config["expand" if own else "mamba_expand"] * config["hidden_size"])
    return {"inner": inner, "heads": config["num_heads" if own else "mamba_n_heads"], "groups": config["n_groups" if own else "mamba_n_groups"],
            "state": config["state_size" if own else "mamba_d_state"]}  # fmt: skip


def called(config, name):
    """A tensor's name in the file."""
    base, _dot, end = name.rpartition(".")
    if base in _WITHOUT_LAYER:
        return f"{_WITHOUT_LAYER[base]}.{end}"
    number, part = re.fullmatch(r"(?:model|backbone)\.layers\.(\d+)\.(.*)", name).groups()
    if part == "pre_ff_layernorm.weight":
        return f"blk.{number}.ffn_norm"
    base, _dot, end = part.rpartition(".")
    if config["model_type"] == "gemma3n_text" and (part in _GEMMA3N or base in _GEMMA3N):
        return f"blk.{number}.{_GEMMA3N.get(part) or f'{_GEMMA3N[base]}.{end}'}"
    qwen = config["model_type"].startswith("qwen3")
    found = _NAMES[part] if part in _NAMES else f"{'post_attention_norm' if qwen and base == 'post_attention_layernorm' else _NAMES[base]}.{end}"
    return f"blk.{number}.{found}"


def _converted(name, config, theirs, array):
    """What becomes of a tensor: [(its name in the file, array)]."""
    kind, part = config["model_type"], theirs.rpartition(".layers.")[2].partition(".")[2] if ".layers." in theirs else theirs
    if kind == "falcon_h1":
        array = _multiplied(config, part, array)
    if re.search(r"(block_sparse_moe|shared_mlp)\.(in|out)put_linear\.weight|experts\.(gate_up|down)_proj$|in_proj_qkvz", part):
        return _in_parts(name, config, theirs, array)
    if kind in ("granitemoehybrid", "internlm3", "ministral3") and re.search(r"\.[qk]_proj\.", theirs):
        array = tiny._permuted(array, config["num_attention_heads" if ".q_proj." in theirs else "num_key_value_heads"])
    if kind in ("qwen3_5_text", "qwen3_5_moe_text") and ".linear_attn." in theirs:
        array = _in_turn(config, part, array)
    if part.endswith("A_log"):
        array = -np.exp(array)
    if kind.startswith("qwen3") and part.endswith("norm.weight") and not part.endswith("linear_attn.norm.weight"):
        array = array + np.float32(1)
    if part.endswith(("conv1d.weight", "conv.conv.weight")):
        array = array[:, 0]
    elif not kind.startswith("qwen3") and part.endswith((".A_log", ".D")):
        array = array.reshape(-1, 1)
    elif part.endswith((".mamba.norm.weight", "mixer.norm.weight")) or part == "mamba.norm.weight":
        groups = scan_of(config)["groups"]
        array = array.reshape(groups, -1) if groups > 1 else array
    elif "shared_expert_gate" in part:
        array = array.reshape(-1)
    return [(called(config, theirs), array)]


def _multiplied(config, part, array):
    """Files of Falcon-H1 have the numbers that multiply parts in their matrices."""
    gate, down = config.get("mlp_multipliers", [1.0, 1.0])
    into = config.get("attention_in_multiplier", 1.0)
    found = {"down_proj": down, "gate_proj": gate, "k_proj": into * config.get("key_multiplier", 1.0), "q_proj": into, "v_proj": into,
             "o_proj": config.get("attention_out_multiplier", 1.0), "out_proj": config.get("ssm_out_multiplier", 1.0), "lm_head": config.get("lm_head_multiplier", 1.0),
             "embed_tokens": config.get("embedding_multiplier", 1.0)}  # fmt: skip
    by = found.get(part.split(".")[-2] if "." in part else part, 1.0)
    if part.endswith("mamba.in_proj.weight"):
        m = scan_of(config)
        sizes = (m["inner"], m["inner"], *[m["groups"] * m["state"]] * 2, m["heads"])
        each = np.concatenate([np.full(size, number) for size, number in zip(sizes, config.get("ssm_multipliers", [1.0] * 5))])
        return (array * (each * config.get("ssm_in_multiplier", 1.0))[:, None]).astype(np.float32)
    return (array * by).astype(np.float32)


def _in_turn(config, part, array):
    """Files of Qwen 3.5 have heads of values in turn: the first one of each key, then the
    second."""
    keys, heads, size = config["linear_num_key_heads"], config["linear_num_value_heads"], config["linear_value_head_dim"]
    own = 2 * keys * config["linear_key_head_dim"]

    def turned(rows, of_each):
        split = rows.reshape(keys, heads // keys, of_each, *rows.shape[1:])
        return split.swapaxes(0, 1).reshape(rows.shape)

    if re.search(r"in_proj_qkv|conv1d", part):
        return np.concatenate([array[:own], turned(array[own:], size)])
    if "in_proj_z" in part:
        return turned(array, size)
    if re.search(r"in_proj_[ab]|A_log|dt_bias", part):
        return turned(array, 1)
    return turned(array.T, size).T if "out_proj" in part else array


def _in_parts(name, config, theirs, array):
    """Tensors that are several in the file."""
    number, part = re.search(r"layers\.(\d+)\.(.*)", theirs).groups()
    found = re.match(r"(block_sparse_moe|shared_mlp)\.(in|out)put_linear", part)
    if found:
        kind = "_exps" if found[1] == "block_sparse_moe" else "_shexp" if config["num_local_experts"] else ""
        names = ("gate", "up") if found[2] == "in" else ("down",)
        return [(f"blk.{number}.ffn_{one}{kind}.weight", half) for one, half in zip(names, np.split(array, len(names), -2))]
    if "in_proj_qkvz" in part:
        if name == "qwen3-next-older":
            return [(f"blk.{number}.ssm_in.weight", array)]
        keys, each = config["linear_num_key_heads"], config["linear_num_value_heads"] // config["linear_num_key_heads"] * config["linear_value_head_dim"]
        size = config["linear_key_head_dim"]
        split = np.split(array.reshape(keys, -1, array.shape[1]), [size, 2 * size, 2 * size + each], 1)
        q, k, v, z = (rows.reshape(-1, array.shape[1]) for rows in split)
        return [(f"blk.{number}.attn_qkv.weight", np.concatenate([q, k, v])), (f"blk.{number}.attn_gate.weight", z)]
    turned = array.swapaxes(1, 2) if config["model_type"] == "llama4_text" else array
    names = ("gate", "up") if "gate_up" in part else ("down",)
    return [(f"blk.{number}.ffn_{one}_exps.weight", half) for one, half in zip(names, np.split(turned, len(names), 1))]
