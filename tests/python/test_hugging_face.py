"""Hugging Face's own logits for every family with random weights and sizes, beside the step
program's. A rotating part of the variants, from a seed that is printed; ACCRT_TEST_ALL=1: all. Runs
where torch and transformers are: `./dev check models`."""

from __future__ import annotations

import inspect
import json
import math
import os
import random
import sys
from unittest import mock

import numpy as np
import pytest

import family_models as families
import rotation
import tiny_models as tiny
from accrt.models import _parts, _registry, _rope
from accrt.models._checkpoint import Checkpoint
from accrt.models._config import MEANINGFUL
from test_step_programs import LENGTH, OPTIONS, ROWS, opened, run

torch = pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")
pytestmark = [pytest.mark.torch, pytest.mark.quick_kernels]

SEED = rotation.SEED
ALL = os.environ.get("ACCRT_TEST_ALL") == "1"


def sized(config, rng):
    """Other sizes of a variant."""
    c = dict(config)
    kv = rng.choice([1, 2, 3])
    heads, size = kv * rng.choice([1, 2, 4]), 16
    if c["model_type"] == "gpt2":
        return {**c, "n_layer": rng.choice([1, 2, 4]), "n_head": heads, "n_embd": heads * 8}
    if c["model_type"] == "phi3":
        kv = heads if "rope_scaling" in c else kv  # a head is hidden / heads
        c["hidden_size"] = heads * size
    else:
        c.update(hidden_size=heads * 8 * rng.choice([1, 2, 3]), head_dim=size)
    c.update(num_attention_heads=heads, num_key_value_heads=kv, num_hidden_layers=rng.choice([1, 2, 4]), intermediate_size=8 * rng.choice([4, 9, 15]))
    if c.get("sliding_window"):
        c["sliding_window"] = rng.choice([3, 8, 33])
    return c


def theirs(folder, ids):
    """(logits, hidden states after the last norm)."""
    transformers.logging.set_verbosity_error()
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32).eval()
    with torch.no_grad():
        out = model(torch.tensor(ids)[None], output_hidden_states=True)
    return out.logits[0].numpy(), out.hidden_states[-1][0].numpy()


def chosen():
    names = list(tiny.CONFIGS)
    random.Random(SEED).shuffle(names)
    return names if ALL else names[:5]


@pytest.mark.parametrize("name", chosen())
def test_logits(tmp_path, name):
    rotation.seed()
    rng = random.Random(f"{SEED} {name}")
    config = sized(tiny.CONFIGS[name], rng)
    print(config)
    folder = tiny.write_folder(tmp_path / "m", config, tiny.tensors(config, rng.randrange(1 << 30), gain=1.2))
    program, page_size = opened(folder, OPTIONS)
    numbers = np.random.default_rng(rng.randrange(1 << 30))
    ids = numbers.integers(0, config["vocab_size"], (ROWS, LENGTH))
    expected = [theirs(folder, row) for row in ids]
    for at, function in ((0, "step"), (1, "embed")):
        for row, position, result in run(program, page_size, ids, numbers, function):
            np.testing.assert_allclose(result, expected[row][at][position], rtol=0, atol=1e-4, err_msg=f"{function}, row {row}, position {position}")


def chosen_families():
    names = list(families.CONFIGS)
    random.Random(SEED).shuffle(names)
    return names if ALL else names[:5]


class Choices(torch.overrides.TorchFunctionMode):
    """`least`: of all that torch.topk chooses meanwhile, as routers choose experts, how far the
    last one is from the best of those that are left. Small values of a softmax are near one
    another, too: they are apart where their logits are, by 1e-3."""

    least = math.inf

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function in (torch.topk, torch.Tensor.topk):
            self.add(*args, **(kwargs or {}))
        return function(*args, **(kwargs or {}))

    def add(self, numbers, k, dim=-1, **_how):
        if k < numbers.shape[dim]:
            best = numbers.topk(k + 1, dim).values
            last, left = best.select(dim, k - 1), best.select(dim, k)
            is_softmax = bool((numbers >= 0).all()) and bool(((numbers.sum(dim) - 1).abs() < 1e-3).all())
            apart = torch.where(is_softmax & (last > 1.001 * left), math.inf, last - left)
            self.least = min(self.least, float(apart.min()))


def drawn(folder, name):
    """(seed, model's folder, ids, theirs) of weights and ids with which no router's choice is
    within 2e-5: of two experts that are as good, f32's rounding takes either."""
    for attempt in range(60):
        seed = random.Random(f"{SEED} {name} {attempt}").randrange(1 << 30)
        path, _weights = families.write(folder / str(attempt), name, seed)
        ids = families.ids_of(families.CONFIGS[name], seed)
        with Choices() as choices:
            expected = families.theirs(path, ids, families.exact_type(name))
        if choices.least > 2e-5:
            return seed, path, ids, expected
    return pytest.fail(f"seed {SEED}: two experts of {name} are within {choices.least:.2g} of each other in each of 60 models")


@pytest.mark.parametrize("name", chosen_families())
def test_logits_of_families(tmp_path, name):
    """Of other weights and ids than those whose logits were recorded. Where rounding is made much
    of, theirs are of float64 (GAINS, EXACT)."""
    rotation.seed()
    seed, folder, ids, expected = drawn(tmp_path, name)
    program, page_size = opened(folder, OPTIONS)
    numbers = np.random.default_rng(seed)
    for at, function in ((0, "step"), (1, "embed")):
        for row, position, result in run(program, page_size, ids, numbers, function):
            np.testing.assert_allclose(result, expected[at][row][position], rtol=0, atol=2e-4, err_msg=f"{function}, row {row}, position {position}")


#: Families whose configurations say in another way which part of a head is turned, or that turn
#: nothing. Beside them are those of latents, whose heads have a part for that.
NO_FACTOR = {"bamba", "gptj", "codegen", "gpt_neox", "gpt_neox_japanese", "biogpt", "bloom", "falcon_mamba", "gpt2", "gpt_bigcode", "gpt_neo", "jamba", "mamba", "mamba2", "mpt",
             "nemotron_h", "opt", "xglm"}  # fmt: skip


def in_part(config, rng):
    """The configuration with a random partial_rotary_factor, in one of the places where it may
    stand. More than two elements are turned: transformers spreads one frequency over all."""
    made = json.loads(json.dumps(config))
    text = families.text_of(made)
    factor = rng.choice([0.5, 0.75])
    text.pop("partial_rotary_factor", None)
    rope = text.get("rope_parameters")
    if isinstance(rope, dict) and not any(isinstance(one, dict) for one in rope.values()) and rng.random() < 0.5:
        rope["partial_rotary_factor"] = factor
    else:
        if isinstance(rope, dict):
            rope.pop("partial_rotary_factor", None)
        text["partial_rotary_factor"] = factor
    return made


def chosen_parts():
    names = [name for name, config in families.CONFIGS.items() if config["model_type"] not in NO_FACTOR and "kv_lora_rank" not in families.text_of(config)]
    random.Random(f"{SEED} parts").shuffle(names)
    return names if ALL else names[:5]


@pytest.mark.parametrize("name", chosen_parts())
def test_a_part_of_a_head_is_turned_as_the_family_s_own_code_has_it(tmp_path, monkeypatch, name):
    """Some read partial_rotary_factor, some pass over it, and some fail, for plain frequencies or
    others: those models are refused."""
    rotation.seed()
    config = in_part(families.CONFIGS[name], random.Random(f"{SEED} {name}"))
    print(config)
    monkeypatch.setitem(families.CONFIGS, name, config)
    try:
        seed, folder, ids, expected = drawn(tmp_path, name)
    except RuntimeError as error:  # of sizes that do not fit
        assert "size" in str(error) or "broadcast" in str(error)
        with pytest.raises(ValueError, match="partial_rotary_factor is .* which this family does not do"):
            opened(families.write(tmp_path / "refused", name, 0)[0], OPTIONS)
        return
    program, page_size = opened(folder, OPTIONS)
    numbers = np.random.default_rng(seed)
    for row, position, result in run(program, page_size, ids, numbers, "step"):
        np.testing.assert_allclose(result, expected[0][row][position], rtol=0, atol=2e-4, err_msg=f"row {row}, position {position}")


def test_packed_experts_of_gpt_oss(tmp_path):
    """What transformers unpacks of a folder in MXFP4 are the numbers that were packed, and its
    logits those of the packed bundle but for the rounding of what is multiplied."""
    stored, plain = families.in_mxfp4(families.draw(families.recorded()["gpt-oss-file"]["tensors"], SEED % 1000))
    folder = tiny.write_folder(tmp_path / "m", {**families.CONFIGS["gpt-oss-file"], "quantization_config": families.MXFP4}, plain)
    tiny.write_safetensors(folder / "model.safetensors", stored)
    unpacked = transformers.Mxfp4Config(dequantize=True)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32, quantization_config=unpacked).eval()
    for name, array in model.state_dict().items():
        if name in plain:
            np.testing.assert_array_equal(array.numpy(), plain[name], err_msg=name)
    ids = families.ids_of(families.CONFIGS["gpt-oss-file"], 1)
    with torch.no_grad():
        expected = np.stack([model(torch.tensor(row)[None]).logits[0].numpy() for row in ids])
    program, page_size = opened(folder, OPTIONS)
    errors = [np.linalg.norm(result - expected[row][position]) / np.linalg.norm(expected[row][position])
              for row, position, result in run(program, page_size, ids, np.random.default_rng(SEED))]  # fmt: skip
    assert np.median(errors) < 0.05 and np.mean(errors) < 0.15, (SEED, np.median(errors), np.mean(errors))


@pytest.mark.parametrize("kind", ["bitnet", "llama"])
@pytest.mark.parametrize("form", families.BITNET)
def test_weights_of_three_values(tmp_path, form, kind):
    """Folders as they are published, whose products round what they multiply to 8 bits. A number
    between two steps may become either, so most logits are compared, and all roughly."""
    from transformers.quantizers.quantizer_bitnet import BitNetHfQuantizer

    rotation.seed()
    folder, config = families.write_in_three_values(tmp_path / "m", form, SEED % 1000, kind), families.CONFIGS["bitnet"]
    # it asks for a package that spreads models over devices; its functions are compiled by torch
    with mock.patch.object(BitNetHfQuantizer, "validate_environment", lambda *_given, **_more: None), mock.patch.object(torch._dynamo.config, "disable", True):
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32).eval()
        ids = families.ids_of(config, SEED % 1000)
        with torch.no_grad():
            expected = np.stack([model(torch.tensor(row)[None]).logits[0].numpy() for row in ids])
    program, page_size = opened(folder, OPTIONS)
    errors = [np.abs(result - expected[row][position]).max() for row, position, result in run(program, page_size, ids, np.random.default_rng(SEED))]
    assert np.median(errors) < 1e-4 and max(errors) < 0.5, (SEED, np.median(errors), max(errors))


@pytest.mark.parametrize("name", families.CONFIGS)
def test_recorded_shapes_are_those_of_transformers(name):
    assert families.shapes_of(families.CONFIGS[name]) == families.recorded()[name]["tensors"]


#: Names of types that folders have, and transformers has no class for.
OTHERS = ("kimi_k2", "minimax_m1", "minimax_text_01", "phi4mm")
#: Names of models of several parts, whose keys are about the other parts, too.
OF_SEVERAL = ("mllama", "qwen3_vl_moe", "qwen2_5_omni", "qwen2_5_omni_thinker", "qwen3_omni_moe", "qwen3_omni_moe_thinker")
#: Of those, what has the part for text deeper in its configuration, or sizes by default that are of
#: no model.
DEEPER = ("qwen2_5_omni", "qwen3_omni_moe", "qwen3_omni_moe_thinker")
#: Keys that say nothing about what a model computes when it is asked for tokens.
HARMLESS = {
    "attention_dropout", "attention_probs_dropout_prob", "attn_pdrop", "bos_token_id", "classifier_dropout", "dropout", "embd_pdrop", "embedding_dropout", "embedding_initializer_range", "eos_token_id", "hidden_dropout", "hidden_dropout_prob", "init_std",
    "initializer_range", "is_decoder", "layerdrop", "output_router_logits", "pad_token_id", "pretraining_tp", "reorder_and_upcast_attn", "resid_pdrop", "residual_dropout",
    "router_aux_loss_coef", "router_jitter_noise", "summary_activation", "summary_first_dropout", "summary_proj_to_labels", "summary_type", "summary_use_proj", "use_cache",
    "_sliding_window_pattern", "activation_dropout", "decoder_start_token_id", "emb_pdrop", "embed_dropout", "eod_token_id", "init_device", "resid_dropout",
    "chunk_size", "num_logits_to_keep", "rescale_prenorm_residual", "residual_in_fp32", "time_step_floor", "time_step_rank", "z_loss_coefficient",
    "linear_a_log_max", "linear_a_log_min", "linear_dt_init_floor", "linear_dt_max", "linear_dt_min", "mamba_ssm_cache_dtype", "moe_shared_expert_overlap", "mtp_layer_types", "mtp_layers_block_type", "mtp_mlp_layer_types",
    "time_step_init_scheme", "time_step_scale", "use_associative_scan", "use_mamba_kernels", "use_mambapy", "use_mem_eff_path",
    # of parts that are left out
    "audio_config",
    # of layers that some families refuse
    "altup_coef_clip", "block_size", "sep_token_id",
    # MiniMax's, which its family names in parts
    "full_attn_alpha_factor", "full_attn_beta_factor", "linear_attn_alpha_factor", "linear_attn_beta_factor", "mlp_alpha_factor", "mlp_beta_factor",
    "mamba_chunk_size", "mamba_conv_bias", "mamba_d_conv", "mamba_d_head", "mamba_d_state", "mamba_expand", "mamba_n_groups", "mamba_n_heads", "mamba_proj_bias", "time_step_limit",
    "time_step_max", "time_step_min",
}  # fmt: skip


@pytest.mark.parametrize("kind", [kind for family in _registry.families() for kind in family.types if kind not in ("bytelm", "gemma3", "gemma3n", "gemma4", "gemma4_unified", "llama4", "mistral3", "qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_5", "qwen3_5_moe", *OF_SEVERAL, *OTHERS)])
def test_no_key_of_a_configuration_is_passed_over(kind):
    """Each that transformers knows for a family is named by the family, or refused, or harmless."""
    family = _registry.by_type(kind)
    source = "".join(inspect.getsource(sys.modules[cls.__module__]) for cls in family.__mro__[:-1]) + inspect.getsource(_rope)
    keys = set(transformers.AutoConfig.for_model(kind).to_dict()) - set(transformers.PretrainedConfig().to_dict())
    assert {key for key in keys - HARMLESS - set(MEANINGFUL) if f'"{key}"' not in source} == set()


@pytest.mark.parametrize("kind", [kind for kind in _parts.OF_PARTS if kind != "internvl_chat"])
def test_the_part_for_text_is_of_a_family(kind):
    """As transformers has it by default. What a configuration leaves out of it means the same."""
    theirs = transformers.AutoConfig.for_model(kind).to_dict()["text_config"]
    assert theirs["model_type"] in {type_ for family in _registry.families() for type_ in family.types}
    own = transformers.AutoConfig.for_model(theirs["model_type"]).to_dict()
    for name, value in _parts.SIZES.get(theirs["model_type"], {}).items():
        assert own[name] == value, name


#: Sizes that no configuration leaves out, or whose tensors would be of another shape.
SIZES = {"vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "num_key_value_heads", "n_layer", "n_head", "n_embd", "num_layers",
         "num_heads", "num_experts_per_tok", "n_routed_experts", "text_config"}
#: What no class has a default for that can be served.
GIVEN = {"deepseek_v2": {"num_experts_per_tok": 6}, "dots1": {"num_experts_per_tok": 6, "n_routed_experts": 128}, "granitemoehybrid": {"layer_types": ["attention"] * 32},
         "glm4_moe": {"head_dim": 128}, "hunyuan_v1_moe": {"num_experts": 8, "num_experts_per_tok": 2}}  # fmt: skip


@pytest.mark.parametrize("kind", [kind for family in _registry.families() for kind in family.types if kind not in ("bytelm", "gpt2", "gemma3", "gemma3n", "mistral3", *DEEPER, *OTHERS)])
def test_a_key_that_is_left_out_means_what_it_does_to_transformers(kind):
    theirs = transformers.AutoConfig.for_model(kind).to_dict()
    given = GIVEN.get(kind, {})
    whole = {**{key: value for key, value in theirs.items() if key not in ("layer_types", "bos_token_id", "eos_token_id")}, **given}
    left = {**{key: value for key, value in whole.items() if key in SIZES and value is not None}, **given}
    if "text_config" in left:
        left["text_config"] = {key: value for key, value in left["text_config"].items() if key in SIZES and value is not None}
    ours, made = (_registry.by_type(kind)(Checkpoint("m", "folder", {"model_type": kind, **config}, {}, [], {})) for config in (left, whole))
    for name in ("eps", "act", "is_tied", "head_size", "trained", "scale", "soft_cap", "windows", "sliding", "kv_heads", "interleaved", "value_size", "slopes", "shares_normed",
                 "of_shares", "first", "groups", "chosen_groups", "experts", "chosen", "of_embedding", "of_residual", "divisor", "beta", "original", "near", "qk_normed"):  # fmt: skip
        assert getattr(ours, name, None) == getattr(made, name, None), name
    for name in ("rotation", "local"):
        if hasattr(made, name):
            np.testing.assert_array_equal(getattr(ours, name).frequencies, getattr(made, name).frequencies)
            assert getattr(ours, name).scale == getattr(made, name).scale
    rope = (theirs.get("text_config") or theirs).get("rope_parameters")
    for part, name in (("full_attention", "rotation"), ("sliding_attention", "local")):
        one = rope.get(part, rope if name == "rotation" else None) if rope else None
        if one and one.get("rope_type", "default") == "default":
            size = int(getattr(ours, "turned_size", ours.head_size) * one.get("partial_rotary_factor", 1.0)) // 2 * 2
            np.testing.assert_allclose(getattr(ours, name).frequencies, _rope._plain(one["rope_theta"], size))


def test_a_file_that_the_gguf_package_writes(tmp_path):
    gguf = pytest.importorskip("gguf")
    config = tiny.CONFIGS["llama-tied-rope3"]
    config = {**config, "hidden_size": 64, "intermediate_size": 96}
    weights = tiny.tensors(config, SEED, gain=1.0)
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    for key, value in tiny.gguf_metadata(config).items():
        add = {str: writer.add_string, float: writer.add_float32, int: writer.add_uint32, list: writer.add_array}[type(value)]
        if key != "general.architecture":
            add(key, value)
    for name, array in tiny.gguf_tensors(config, weights).items():
        packed = array.ndim == 2 and "token_embd" not in name and array.shape[1] % 32 == 0
        kind = gguf.GGMLQuantizationType.Q8_0
        writer.add_tensor(name, gguf.quants.quantize(array, kind) if packed else array, raw_dtype=kind if packed else None)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    program, page_size = opened(tmp_path / "m.gguf", OPTIONS)
    ids = np.random.default_rng(SEED).integers(0, 320, (ROWS, LENGTH))
    expected = [tiny.reference(config, weights, row)[0] for row in ids]
    errors = [np.linalg.norm(result - expected[row][position]) / np.linalg.norm(expected[row][position])
              for row, position, result in run(program, page_size, ids, np.random.default_rng(SEED))]  # fmt: skip
    assert np.mean(errors) < 0.05 and np.max(errors) < 0.15
