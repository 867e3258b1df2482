"""The step program of every family, run by the library, beside float64 in numpy (tiny_models.py):
ragged batches of prompts in pieces and of single tokens, pages in any order, padding in every
input."""

from __future__ import annotations

import functools
import pathlib
import sys

import numpy as np
import pytest

import kernel_harness as kh
import tiny_models as tiny

import accrt
from accrt import models
from accrt.compiler.encodings import Quantized, dequantize
from accrt.compiler.ops.serving import e4m3_codes, e4m3_values
from accrt.models import Options
from test_packed_kernels import random_weight

pytestmark = pytest.mark.quick_kernels  # in a run of the whole folder

ROOT = pathlib.Path(__file__).resolve().parents[2]
TARGETS = kh.host_targets()[-1:]
LENGTH, ROWS, PAGES = 64, 5, 40
INPUTS = ("token_ids", "positions", "slots", "token_rows", "row_starts", "row_ids", "kv_lengths", "change_slots", "change_pages", "sample_tokens")
PADDED = {"tokens": 64, "rows": 8, "samples": 8, "changes": 32}
OPTIONS = Options(kv_type="f32", token_buckets=(64,), row_buckets=(8,), sample_buckets=(8,), change_buckets=(32,), edit_buckets=(4,))


@functools.lru_cache(maxsize=None)
def weights_of(name):
    return tiny.tensors(tiny.CONFIGS[name], kh.SEED)


def opened(path, options=OPTIONS):
    made = models.open(path, options=options, targets=TARGETS, output=f"{path}.accx")
    return accrt.Bundle(made.bundle).program(weights=made.sources()), int(made.info["serve.page_size"])


def session_sizes(page_size):
    return {"pages": PAGES, "table_rows": ROWS, "table_pages": -(-LENGTH // page_size)}


def run(program, page_size, ids, rng, function="step", kept=None):
    """What the function says of every position that a step ended at: [(row, position, result)].
    `kept`: a dict that gets what the states of such names have of each row in the end."""
    session = program.session(session_sizes(page_size))
    batches = tiny.Batches(lambda *arrays: np.array(session[function](*arrays)), page_size, PAGES, ROWS, -(-LENGTH // page_size), rng)
    found = []
    while min(batches.done) < LENGTH:
        chosen = [r for r in rng.permutation(ROWS)[: rng.integers(1, ROWS + 1)] if batches.done[r] < LENGTH]
        work = [(int(r), int(min(rng.choice([1, 1, 2, 7, 12]), LENGTH - batches.done[r]))) for r in chosen]
        if work:
            results = batches.step(work, ids, **PADDED)
            found += [(row, batches.done[row] - 1, result) for (row, _count), result in zip(work, results)]
    for name in kept or ():
        pages = np.array(session.state(name))
        kept[name] = [np.concatenate([pages[page] for page in table])[:LENGTH] for table in batches.tables]
    return found


def compare(program, page_size, config, weights, atol, max_position=0):
    rng = np.random.default_rng(kh.SEED)
    ids = rng.integers(0, config["vocab_size"], (ROWS, LENGTH))
    expected = [tiny.reference(config, weights, row, max_position) for row in ids]
    for at, function in ((0, "step"), (1, "embed")):
        for row, position, result in run(program, page_size, ids, rng, function):
            np.testing.assert_allclose(result, expected[row][at][position], rtol=0, atol=atol, err_msg=f"{function}, row {row}, position {position}")


def differences(program, page_size, config, weights):
    """What results are off by, all of them."""
    rng = np.random.default_rng(kh.SEED)
    ids = rng.integers(0, config["vocab_size"], (ROWS, LENGTH))
    expected = [tiny.reference(config, weights, row)[0] for row in ids]
    return np.stack([np.abs(result - expected[row][position]) for row, position, result in run(program, page_size, ids, rng)])


@pytest.mark.rotating(6)
@pytest.mark.parametrize("name", tiny.CONFIGS)
def test_a_folder(tmp_path, name):
    config, weights = tiny.CONFIGS[name], weights_of(name)
    compare(*opened(tiny.write_folder(tmp_path / "m", config, weights, shards=2 if name == "qwen3" else 1)), config, weights, 2e-4)


def test_other_pages_and_the_long_factors(tmp_path):
    config, weights = tiny.CONFIGS["phi3-long"], weights_of("phi3-long")
    options = Options(**{**OPTIONS.__dict__, "page_size": 8, "max_position": 256})
    folder = tiny.write_folder(tmp_path / "m", config, weights)
    compare(*opened(folder, options), config, weights, 2e-4, max_position=256)
    assert models.open(folder, targets=TARGETS, output=tmp_path / "short.accx").info["serve.max_position"] == "64"


@pytest.mark.parametrize("dtype, atol", [("BF16", 1e-3), ("F16", 1e-3)])
def test_weights_of_16_bits(tmp_path, dtype, atol):
    config = tiny.CONFIGS["qwen2"]
    stored = {name: tiny._stored(array, dtype) for name, array in weights_of("qwen2").items()}
    rounded = {name: tiny.to_bf16(weights_of("qwen2")[name]) if dtype == "BF16" else array.astype(np.float32) for name, array in stored.items()}
    compare(*opened(tiny.write_folder(tmp_path / "m", config, rounded, dtype)), config, rounded, atol)


#: What a key or value of these models is off by in f32, at most. Each is a sum of 48 products of a
#: norm's output and a weight, whose magnitudes add up to 16, and up to 2^0.5 times as much where it
#: is turned: about 50 roundings of 2^-24 each are at most 50 * 2^-24 * 23 = 7e-5, if none cancels
#: another one. The rest is for what the sums take of the layer before. (Found: 4e-6.)
OFF = 1e-4


@pytest.mark.parametrize("function", ["step", "embed"])
@pytest.mark.parametrize("name", ["llama", "qwen2"])
def test_keys_and_values_in_8_bits(tmp_path, name, function, monkeypatch):
    """As a model in float64 whose keys and values are the codes that the program kept.

    A code is right if no other one is nearer to what f32 had, x' = x + d with |d| <= OFF. Let c be
    the code's number and n that of the code that is nearest to x. Then |c - x'| <= |n - x'|, and so
    |c - x| <= |n - x| + 2 OFF: where x is nearly in the middle of two codes, f32 may take either,
    and nowhere else. Such a number is off by up to 1/16 of itself in both directions, which no
    bound of the logits can tell from an error. With the codes given, all that is left is f32, so
    logits have the bound that they have everywhere."""
    config, weights, exact = tiny.CONFIGS[name], weights_of(name), tiny._attention
    program, page_size = opened(tiny.write_folder(tmp_path / "m", config, weights), Options(**{**OPTIONS.__dict__, "kv_type": "fp8"}))
    rng = np.random.default_rng(kh.SEED)
    ids = rng.integers(0, config["vocab_size"], (ROWS, LENGTH))
    layers = range(config["num_hidden_layers"])
    kept = {f"kv.{layer}.{part}": [] for layer in layers for part in "kv"}
    results, at = run(program, page_size, ids, rng, function, kept), 0 if function == "step" else 1
    plain = [tiny.reference(config, weights, row)[at] for row in ids]
    # so much does the rounding change
    assert max(np.abs(result - plain[row][position]).max() for row, position, result in results) > 3e-2
    of_row, others = [], 0

    def coded(q, k, v, *more):
        nonlocal others
        row, layer = divmod(len(of_row), len(layers))
        of_row.append(None)
        taken = []
        for x, part in ((k, "k"), (v, "v")):
            number, nearest = e4m3_values()[kept[f"kv.{layer}.{part}"][row]], e4m3_values()[e4m3_codes(x)]
            beyond = np.abs(number - x) - np.abs(nearest - x)
            assert beyond.max() <= 2 * OFF, (row, layer, part, beyond.max())
            others += int((number != nearest).sum())
            taken.append(number)
        return exact(q, *taken, *more)

    monkeypatch.setattr(tiny, "_attention", coded)
    expected = [tiny.reference(config, weights, row)[at] for row in ids]
    assert len(of_row) == ROWS * len(layers)
    for row, position, result in results:
        np.testing.assert_allclose(result, expected[row][position], rtol=0, atol=2e-4, err_msg=f"row {row}, position {position}, {others} codes beside the nearest")


#: What scales of a layer's keys and values are called, in checkpoints that have them.
SCALE_NAMES = {
    "vllm": ("{}.k_scale", "{}.v_scale"), "modelopt": ("{}.k_proj.k_scale", "{}.v_proj.v_scale"), "inner": ("{}.attn.k_scale", "{}.attn.v_scale"),
    "compressed": ("{}.k_proj.output_scale", "{}.v_proj.output_scale"), "one": ("{}.kv_scale", ""), "keys": ("{}.k_scale", ""),
}  # fmt: skip


@pytest.mark.rotating(4)
@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
@pytest.mark.parametrize("names", SCALE_NAMES)
def test_scales_of_keys_and_values(tmp_path, names, dtype, monkeypatch):
    """Each layer has its own, which the model of the test uses, too: keys and values are rounded to
    codes after they were divided by their scale."""
    config, weights, exact = tiny.CONFIGS["qwen2"], weights_of("qwen2"), tiny._attention
    rng = np.random.default_rng([kh.SEED, *names.encode(), *dtype.encode()])
    layers = config["num_hidden_layers"]
    scales = np.float32(tiny.to_bf16(rng.uniform(0.05, 0.3, (layers, 2)).astype(np.float32)))
    scales[:, 1] = {"one": scales[:, 0], "keys": np.ones(layers)}.get(names, scales[:, 1])
    # of bf16, and of f16 that are no multiples of its smallest number
    assert (scales.astype(np.float16) == scales).all()
    stored = {name: ("F32", array) for name, array in weights.items()}
    for layer in range(layers):
        for name, scale in zip(SCALE_NAMES[names], scales[layer]):
            if name:
                stored[name.format(f"model.layers.{layer}.self_attn")] = (dtype, tiny._stored(scale.reshape([1] if layer else []), dtype))
    scheme = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False, "symmetric": True}
    given = {"quantization_config": {"quant_method": "compressed-tensors", "config_groups": {}, "kv_cache_scheme": scheme}} if dtype == "BF16" else {}
    folder = tiny.write_folder(tmp_path / "m", {**config, **given}, weights)
    tiny.write_safetensors(folder / "model.safetensors", stored)
    compare(*opened(folder), config, weights, 2e-4)  # of keys and values in f32, scales say nothing
    calls = []

    def rounded(q, k, v, *more):
        by = scales[len(calls) % layers].astype(np.float64)
        calls.append(None)
        return exact(q, *(e4m3_values()[e4m3_codes(x / s)] * s for x, s in zip((k, v), by)), *more)

    program = opened(folder, Options(**{**OPTIONS.__dict__, "kv_type": "fp8"}))
    unrounded = differences(*program, config, weights)
    monkeypatch.setattr(tiny, "_attention", rounded)
    found = differences(*program, config, weights)
    assert calls and len(calls) % layers == 0
    # A number between two codes may become either: few do.
    assert found.mean() < min(0.01, unrounded.mean() / 3), (found.mean(), unrounded.mean())


def test_scales_that_are_none_are_refused_by_name(tmp_path):
    config, weights = tiny.CONFIGS["llama"], weights_of("llama")
    fp8 = Options(**{**OPTIONS.__dict__, "kv_type": "fp8"})
    wrong = {"zero": ("F32", np.zeros([], np.float32)), "heads": ("F32", np.ones(2, np.float32)), "nan": ("F32", np.full(1, np.nan, np.float32)),
             "whole": ("I32", np.ones(1, np.int32)), "less": ("F32", np.full(1, -1, np.float32))}  # fmt: skip
    for what, tensor in wrong.items():
        folder = tiny.write_folder(tmp_path / what, config, weights)
        tiny.write_safetensors(folder / "model.safetensors", {**{name: ("F32", array) for name, array in weights.items()}, "model.layers.1.self_attn.v_scale": tensor})
        with pytest.raises(models.Refused, match=r"tensor model\.layers\.1\.self_attn\.v_scale: a scale of keys and values"):
            opened(folder, fp8)
        opened(folder)
    scheme = {"quantization_config": {"quant_method": "compressed-tensors", "kv_cache_scheme": {"num_bits": 8, "type": "int"}}}
    with pytest.raises(models.Refused, match="kv_cache_scheme is of 8 bits and type 'int'"):
        opened(tiny.write_folder(tmp_path / "int", {**config, **scheme}, weights), fp8)


def test_another_scale_is_another_bundle(tmp_path, monkeypatch):
    """Though names, types and shapes are the same."""
    monkeypatch.setenv("XDG_CACHE_HOME", kh.other_cache(tmp_path / "cache"))
    config, weights, made = tiny.CONFIGS["llama"], weights_of("llama"), []
    for scale in (0.5, 0.25, 0.5):
        folder = tiny.write_folder(tmp_path / "m", config, weights)
        tensors = {name: ("F32", array) for name, array in weights.items()}
        tiny.write_safetensors(folder / "model.safetensors", {**tensors, "model.layers.0.self_attn.k_scale": ("F32", np.float32(scale).reshape([]))})
        made.append(models.open(folder, options=Options(**{**OPTIONS.__dict__, "kv_type": "fp8"}), targets=TARGETS).bundle)
    assert made[0] == made[2] != made[1]


def test_gemma_in_the_type_that_it_was_trained_in(tmp_path):
    """The root that embeddings are multiplied by is rounded to that type, and here it is a whole
    number."""
    config = {**tiny.CONFIGS["gemma2"], "hidden_size": 64}
    rounded = {name: tiny.to_bf16(array) for name, array in tiny.tensors(config, kh.SEED).items()}
    compare(*opened(tiny.write_folder(tmp_path / "m", config, rounded, "BF16")), config, rounded, 1e-3)


@pytest.mark.rotating(4)
@pytest.mark.parametrize("name", ["llama", "llama-tied-rope3", "llama-yarn", "mistral-all", "qwen2", "qwen3", "gemma2", "phi3", "phi3-long", "granite", "olmo2", "smollm3", "gpt2"])
def test_a_gguf_file(tmp_path, name):
    config, weights = dict(tiny.CONFIGS[name]), weights_of(name)
    if name == "gemma2":
        config["query_pre_attn_scalar"] = config["head_dim"]  # which files of this size stand for
    tiny.write_gguf(tmp_path / "m.gguf", tiny.gguf_metadata(config), tiny.gguf_tensors(config, weights))
    compare(*opened(tmp_path / "m.gguf"), config, weights, 2e-4)


@pytest.mark.parametrize("tied", [False, True])
def test_packed_weights_of_a_gguf_file(tmp_path, tied):
    """Q8_0 as it is: the embedding too, whose rows are looked up."""
    config = {**tiny.CONFIGS["llama"], "hidden_size": 64, "head_dim": 32, "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 96,
              "tie_word_embeddings": tied}  # fmt: skip
    weights = tiny.tensors(config, kh.SEED, gain=1.0)
    arrays = tiny.gguf_tensors(config, weights)
    types = {name: "Q8_0" for name, array in arrays.items() if array.ndim == 2}
    tiny.write_gguf(tmp_path / "m.gguf", tiny.gguf_metadata(config), arrays, types)
    made = models.read(tmp_path / "m.gguf")
    assert {tensor.layout for tensor in made.tensors.values() if len(tensor.shape) == 2} == {"q8_0"}
    rounded = {name: tiny.q8_0_values(array) if array.ndim == 2 else array for name, array in weights.items()}
    for part, heads in (("q", 2), ("k", 1)):
        # rounded in the order that they are stored in, which is the same set of rows
        for name in [name for name in rounded if f".{part}_proj" in name]:
            stored = tiny.q8_0_values(tiny._permuted(weights[name], heads))
            rounded[name] = stored.reshape(heads, 16, 2, -1).swapaxes(1, 2).reshape(weights[name].shape)
    program, page_size = opened(tmp_path / "m.gguf")
    rng = np.random.default_rng(kh.SEED)
    ids = rng.integers(0, 320, (ROWS, LENGTH))
    expected = [tiny.reference(config, rounded, row)[0] for row in ids]
    # Products round what they multiply to 8 bits, half a percent each.
    errors = [np.linalg.norm(result - expected[row][position]) / np.linalg.norm(expected[row][position]) for row, position, result in run(program, page_size, ids, rng)]
    assert np.mean(errors) < 0.05 and np.max(errors) < 0.15


#: What llama.cpp's quantizer makes of a model's matrices, whose rows are multiples of 256 or not:
#: GGML's numbers of types.
_Q5_0, _Q8_0, _Q4_K, _Q5_K, _Q6_K, _Q3_K, _Q2_K = 6, 8, 12, 13, 14, 11, 10
MIXES = {
    "Q4_K_M": {"": _Q4_K, "ffn_down": _Q6_K, "attn_v": _Q6_K, "token_embd": _Q6_K, "output": _Q6_K},
    "Q5_K_M": {"": _Q5_K, "ffn_down": _Q6_K, "attn_v": _Q6_K, "token_embd": _Q6_K, "output": _Q6_K},
    "Q3_K_M": {"": _Q3_K, "ffn_down": _Q4_K, "attn_v": _Q5_K, "token_embd": _Q6_K, "output": _Q6_K},
    "Q2_K": {"": _Q2_K, "ffn_down": _Q3_K, "attn_v": _Q4_K, "token_embd": _Q6_K, "output": _Q6_K},
    "Q4_K_M of rows of 96": {"": _Q5_0, "token_embd": _Q8_0, "output": _Q8_0},
}


def mixed(config, mix):
    """A GGUF model of random blocks: the arrays by its names, what each is stored as, and the
    weights by Hugging Face's names."""
    weights, rng = tiny.tensors(config, kh.SEED, gain=1.0), np.random.default_rng(kh.SEED)
    arrays, types, values = tiny.gguf_tensors(config, weights), {}, dict(weights)
    hugging = {tiny.gguf_name(name, "qwen2"): name for name in weights}
    for name, array in arrays.items():
        if array.ndim != 2:
            continue
        number = next((mix[part] for part in mix if part and f"{part}." in name), mix[""])
        layout = {_Q5_0: "q5_0", _Q8_0: "q8_0", _Q4_K: "q4_k", _Q5_K: "q5_k", _Q6_K: "q6_k", _Q3_K: "q3_k", _Q2_K: "q2_k"}[number]
        q = random_weight(layout, *array.shape, rng)
        blocks = q.components["data"]
        # As large as the formula's own numbers, and around zero: factors of minima are half of what
        # codes reach.
        for at, ratio in {"q4_k": ((0, 0), (2, 7.5)), "q5_k": ((0, 0), (2, 15.5)), "q2_k": ((80, 0), (82, 1.5))}.get(layout, ()):
            factors = np.full((len(blocks), 1), 0.01 * (ratio or 1), np.float16)
            blocks[:, at : at + 2] = factors.view(np.uint8)
        plain = dequantize(q)
        scale = np.float16(np.float32(1.0 / np.sqrt(array.shape[1])) / plain.std())
        for at in {"q4_k": (0, 2), "q5_k": (0, 2), "q6_k": (208,), "q3_k": (108,), "q2_k": (80, 82)}.get(layout, (0,)):
            factors = np.ascontiguousarray(blocks[:, at : at + 2]).view(np.float16) * scale
            blocks[:, at : at + 2] = factors.astype(np.float16).view(np.uint8)
        types[name], values[hugging[name]] = (number, blocks.tobytes()), dequantize(q)
    return arrays, types, values


@pytest.mark.rotating(4)
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("mix", MIXES)
def test_a_mix_of_packed_weights_is_as_large_as_its_file(tmp_path, mix, tied):
    """In memory, 1.1 times at most: matrices stay packed, and a tied embedding is held once. And it
    computes what the file says."""
    size = 96 if "96" in mix else 256
    config = {**tiny.CONFIGS["qwen2"], "hidden_size": size, "head_dim": size // 2, "num_attention_heads": 2, "num_key_value_heads": 1,
              "intermediate_size": 2 * size, "tie_word_embeddings": tied}  # fmt: skip
    arrays, types, values = mixed(config, MIXES[mix])
    path = tmp_path / "m.gguf"
    tiny.write_gguf(path, tiny.gguf_metadata(config), arrays, types)
    program, page_size = opened(path)
    stored = sum(len(content) for _number, content in types.values())
    stored += sum(array.nbytes for name, array in arrays.items() if name not in types)
    estimate = program.estimate("step")
    assert estimate["weight_bytes"] <= 1.1 * stored, f"{estimate['weight_bytes'] / stored:.3f} of the file"
    rng = np.random.default_rng(kh.SEED)
    ids = rng.integers(0, 320, (ROWS, LENGTH))
    expected = [tiny.reference(config, values, row)[0] for row in ids]
    errors = [np.linalg.norm(result - expected[row][position]) / np.linalg.norm(expected[row][position]) for row, position, result in run(program, page_size, ids, rng)]
    assert np.mean(errors) < 0.05 and np.max(errors) < 0.15


# ---- Quantized checkpoints of Hugging Face -------------------------------------------------------


def packed_matrix(layout, n, k, rng, **settings):
    """Components of a matrix in a layout, as the checkpoints have them: {suffix: (type in the file,
    array)}, and its values."""
    scale = 2.0 / np.sqrt(k)
    if layout in ("gptq_v1", "gptq_v2", "awq"):
        group, words = settings["group"], rng.integers(0, 1 << 32, (k // 8, n) if layout != "awq" else (k, n // 8), np.uint32).view(np.int32)
        zeros = np.full((k // group, n // 8), 0x77777777 if layout == "gptq_v1" else 0x88888888, np.uint32).view(np.int32)
        scales = (rng.uniform(0.5, 1.0, (k // group, n)) * scale / 5).astype(np.float16)
        parts = {"data": words, "scales": scales, "zeros": zeros}
        if settings.get("shuffled"):
            parts["group_index"] = rng.permutation(np.arange(k, dtype=np.int32) // group)
        values = dequantize(Quantized(layout, (n, k), parts, group, "f32"))
        files = {".qweight": ("I32", words), ".scales": ("F16", scales), ".qzeros": ("I32", zeros)}
        if layout != "awq":
            files[".g_idx"] = ("I32", parts.get("group_index", np.arange(k, dtype=np.int32) // group))
        return files, values
    if layout == "i4_group":
        group, codes = settings["group"], rng.integers(0, 16, (n, k)).astype(np.uint32)
        words = sum(codes[:, at::8] << np.uint32(4 * at) for at in range(8)).astype(np.uint32).view(np.int32)
        scales = (rng.uniform(0.5, 1.0, (n, k // group)) * scale / 5).astype(np.float32)
        files = {".weight_packed": ("I32", words), ".weight_scale": ("F32", scales), ".weight_shape": ("I64", np.array([n, k]))}
        return files, (codes.astype(np.float32) - 8) * np.repeat(scales, group, 1)
    if layout.startswith("packed"):
        return packed_words(int(layout[-1]), n, k, rng, scale, **settings)
    if layout == "nvfp4":
        return packed_floats(n, k, rng, scale, **settings)
    if layout in ("i8_channel", "i8_group", "i8_asym"):
        codes = rng.integers(-127, 128, (n, k)).astype(np.int8)
        scales = (rng.uniform(0.5, 1.0, (n, 1 if layout == "i8_channel" else k // settings["group"])) * scale / (240 if layout == "i8_asym" else 120)).astype(np.float32)
        files = {".weight": ("I8", codes), ".weight_scale": ("F32", scales)}
        zeros = rng.integers(-128, 128, scales.shape).astype(np.int8) if layout == "i8_asym" else np.zeros(scales.shape, np.int8)
        if settings.get("zeros") or layout == "i8_asym":
            files[".weight_zero_point"] = ("I8", zeros)
        return files, (codes.astype(np.float64) - np.repeat(zeros, k // scales.shape[1], 1)) * np.repeat(scales, k // scales.shape[1], 1)
    # f8e4m3fn up to 16
    codes = (rng.integers(0, 0x58, (n, k)) | rng.integers(0, 2, (n, k)) << 7).astype(np.uint8)
    shape = {"f8_block128": (-(-n // 128), -(-k // 128)), "f8_channel": (n, 1), "f8_tensor": (1,)}[layout]
    scales = (rng.uniform(0.5, 1.0, shape) * scale / 5).astype(np.float32)
    values = dequantize(Quantized(layout, (n, k), {"data": codes, "scales": scales}, dtype="f32"))
    return {".weight": ("F8_E4M3", codes), ".weight_scale_inv" if layout == "f8_block128" and not settings.get("compressed") else ".weight_scale": ("F32", scales)}, values


def packed_words(bits, n, k, rng, scale, group, zeros=True, shuffled=False):
    """Whole numbers less 2^(bits - 1), and zero points as far off, in words: codes of a row, zero
    points of a column, the first in the low bits (compressed-tensors' pack-quantized)."""
    each, middle, group = 32 // bits, 1 << (bits - 1), group or k
    codes, zero = rng.integers(0, 1 << bits, (n, k)), rng.integers(0, 1 << bits, (n, k // group)) if zeros else np.full((n, k // group), middle)
    scales = (rng.uniform(0.5, 1.0, zero.shape) * scale / middle).astype(np.float32)
    order = rng.permutation(np.arange(k, dtype=np.int32) // group) if shuffled else np.arange(k, dtype=np.int32) // group

    def words(array):
        filled = np.pad(array, [(0, 0), (0, -array.shape[1] % each)]).astype(np.uint32)
        return sum(filled[:, at::each] << np.uint32(bits * at) for at in range(each)).astype(np.uint32).view(np.int32)

    files = {".weight_packed": ("I32", words(codes)), ".weight_scale": ("F32", scales), ".weight_shape": ("I64", np.array([n, k]))}
    if zeros:
        files[".weight_zero_point"] = ("I32", np.ascontiguousarray(words(zero.T).T))
    if shuffled:
        files[".weight_g_idx"] = ("I32", order)
    return files, (codes - zero[:, order]).astype(np.float64) * scales[:, order]


E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])


def packed_floats(n, k, rng, scale, multiplies=False, group=16):
    """Two e2m1 codes to a byte, the even one low, scales of f8e4m3fn for sixteen of a row, and a
    number that divides (compressed-tensors) or multiplies (ModelOpt); or (`group` 32) exponents of
    two, plus 127."""
    if group == 32:
        codes, exponents = rng.integers(0, 16, (n, k)), rng.integers(-2, 1, (n, k // 32)) + round(np.log2(scale / 4))
        files = {".weight_packed": ("U8", (codes[:, ::2] | codes[:, 1::2] << 4).astype(np.uint8)), ".weight_scale": ("U8", (exponents + 127).astype(np.uint8))}
        return files, E2M1[codes] * np.repeat(2.0**exponents, 32, 1)
    codes, scales = rng.integers(0, 16, (n, k)), rng.integers(0x40, 0x7F, (n, k // 16)).astype(np.uint8)
    sixteenth = (1 + scales % 8 / 8) * 2.0 ** (scales // 8 - 7.0)  # all normal
    whole = np.array([np.float32(2688 / scale)], np.float32)
    files = {".weight_packed": ("U8", (codes[:, ::2] | codes[:, 1::2] << 4).astype(np.uint8)), ".weight_scale": ("F8_E4M3", scales), ".weight_global_scale": ("F32", whole),
             ".input_global_scale": ("F32", np.ones(1, np.float32))}  # fmt: skip
    values = E2M1[codes] * np.repeat(sixteenth, 16, 1) / float(whole[0])
    if multiplies:
        files = {".weight": files[".weight_packed"], ".weight_scale": files[".weight_scale"], ".weight_scale_2": ("F32", np.array(1 / whole[0], np.float32))}
    return files, values


def _scheme(form, **weights):
    """A configuration as compressed-tensors writes it, for weights alone."""
    group = {"targets": ["Linear"], "weights": {"symmetric": True, "dynamic": False, "actorder": None, **weights}, "input_activations": None, "output_activations": None}
    return {
        "quant_method": "compressed-tensors", "format": form, "config_groups": {"group_0": group}, "ignore": ["lm_head"], "kv_cache_scheme": None,
        "quantization_status": "compressed", "sparsity_config": {}, "global_compression_ratio": None,
    }  # fmt: skip


QUANTIZED = {
    "gptq": ("gptq_v1", {"quant_method": "gptq", "bits": 4, "group_size": 16, "desc_act": False}, {"group": 16}),
    "gptq-shuffled": ("gptq_v2", {"quant_method": "gptq", "bits": 4, "group_size": 16, "desc_act": True, "checkpoint_format": "gptq_v2"}, {"group": 16, "shuffled": True}),
    "awq": ("awq", {"quant_method": "awq", "bits": 4, "group_size": 16, "version": "gemm"}, {"group": 16}),
    "fp8-blocks": ("f8_block128", {"quant_method": "fp8", "weight_block_size": [128, 128]}, {}),
    "fp8": ("f8_tensor", {"quant_method": "fp8"}, {}),
    "int4": ("i4_group", {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": {"num_bits": 4}}}}, {"group": 16}),
    "int8": ("i8_channel", {"quant_method": "compressed-tensors"}, {}),
    "fp8-rows": ("f8_channel", {"quant_method": "compressed-tensors"}, {}),
    "int8-groups": ("i8_group", _scheme("int-quantized", num_bits=8, type="int", strategy="group", group_size=16), {"group": 16}),
    "int8-zeros": ("i8_channel", _scheme("naive-quantized", num_bits=8, type="int", strategy="channel"), {"zeros": True}),
    "fp8-tiles": ("f8_block128", _scheme("float-quantized", num_bits=8, type="float", strategy="block", block_structure=[128, 128]), {"compressed": True}),
    "int4-zeros": ("packed4", _scheme("pack-quantized", num_bits=4, type="int", strategy="group", group_size=32, symmetric=False), {"group": 32}),
    "int4-zeros-16": ("packed4", _scheme("pack-quantized", num_bits=4, type="int", strategy="group", group_size=16, symmetric=False), {"group": 16}),
    "int4-zeros-shuffled": ("packed4", _scheme("pack-quantized", num_bits=4, type="int", strategy="group", group_size=16, symmetric=False, actorder="group"), {"group": 16, "shuffled": True}),
    "int4-zeros-rows": ("packed4", _scheme("pack-quantized", num_bits=4, type="int", strategy="channel", symmetric=False), {"group": 0}),
    "int8-words": ("packed8", _scheme("pack-quantized", num_bits=8, type="int", strategy="group", group_size=32), {"group": 32, "zeros": False}),
    "int8-words-zeros": ("packed8", _scheme("pack-quantized", num_bits=8, type="int", strategy="group", group_size=32, symmetric=False), {"group": 32}),
    "int8-words-rows": ("packed8", _scheme("pack-quantized", num_bits=8, type="int", strategy="channel", symmetric=False), {"group": 0}),
    "int8-own-zeros": ("i8_asym", _scheme("int-quantized", num_bits=8, type="int", strategy="group", group_size=32, symmetric=False), {"group": 32}),
    "nvfp4": ("nvfp4", _scheme("nvfp4-pack-quantized", num_bits=4, type="float", strategy="tensor_group", group_size=16), {}),
    "mxfp4": ("nvfp4", _scheme("mxfp4-pack-quantized", num_bits=4, type="float", strategy="group", group_size=32), {"group": 32}),
    "fp8-modelopt": ("f8_tensor", {"quant_method": "modelopt", "quant_algo": "FP8"}, {}),
    "nvfp4-modelopt": ("nvfp4", {"quant_method": "modelopt", "quant_algo": "NVFP4"}, {"multiplies": True}),
    "int4-groups": ("i4_group", _scheme("pack-quantized", num_bits=4, type="int", strategy="group", group_size=16), {"group": 16}),
}  # fmt: skip


def quantized_folder(path, name, rng):
    """The folder, its configuration, and the values that its weights stand for."""
    layout, settings, more = QUANTIZED[name]
    config = {**tiny.CONFIGS["llama"], "torch_dtype": "float32", "quantization_config": settings}
    if more.get("group", 16) % 32 == 0 and more.get("group", 16) > 0:
        config = {**config, "hidden_size": 64, "intermediate_size": 96}  # whole groups
    weights, stored = tiny.tensors(config, kh.SEED, gain=1.0), {}
    for key, array in list(weights.items()):
        if "_proj" not in key:
            stored[key] = ("F32", array)
            continue
        files, weights[key] = packed_matrix(layout, *array.shape, rng, **more)
        stored.update({key[: -len(".weight")] + end: part for end, part in files.items()})
    stored["model.layers.0.self_attn.q_proj.input_scale"] = ("F32", np.ones(1, np.float32))
    folder = tiny.write_folder(path, config, {})
    tiny.write_safetensors(folder / "model.safetensors", stored)
    return folder, config, weights


@pytest.mark.rotating(6)
@pytest.mark.parametrize("name", QUANTIZED)
def test_a_quantized_folder(tmp_path, name):
    rng = np.random.default_rng(kh.SEED)
    folder, config, weights = quantized_folder(tmp_path / "m", name, rng)
    program, page_size = opened(folder)
    ids = rng.integers(0, 320, (ROWS, LENGTH))
    expected = [tiny.reference(config, weights, row)[0] for row in ids]
    errors = [np.linalg.norm(result - expected[row][position]) / np.linalg.norm(expected[row][position]) for row, position, result in run(program, page_size, ids, rng)]
    # groups of 16 are plain in memory
    exact = QUANTIZED[name][0] in ("gptq_v1", "gptq_v2", "awq") or "zeros-16" in name or "shuffled" in name
    assert np.max(errors) < 1e-4 if exact else np.mean(errors) < 0.05 and np.max(errors) < 0.15


def test_the_last_token_is_taken_where_the_id_is_missing(tmp_path):
    """Overlap: the next step is laid out before this one's token is known; -1 stands for it."""
    config, weights = tiny.CONFIGS["llama"], weights_of("llama")
    program, page_size = opened(tiny.write_folder(tmp_path / "m", config, weights))
    session = program.session(session_sizes(page_size))
    batches = tiny.Batches(lambda *arrays: np.array(session.step(*arrays)), page_size, PAGES, ROWS, -(-LENGTH // page_size), np.random.default_rng(kh.SEED))
    ids = np.random.default_rng(kh.SEED).integers(0, 320, (ROWS, LENGTH))
    text = {row: list(ids[row][:5]) for row in (1, 3)}
    logits = batches.step([(1, 5), (3, 5)], ids, **PADDED)
    ids[:, 5:] = -1
    for _ in range(6):
        padded = np.zeros((8, 320), np.float32)
        padded[:2] = logits
        tokens = np.array(session.sample_greedy(padded, np.array([1, 3, -1, -1, -1, -1, -1, -1], np.int32)))
        for at, row in enumerate((1, 3)):
            assert tokens[at] == logits[at].argmax()
            text[row].append(int(tokens[at]))
        logits = batches.step([(1, 1), (3, 1)], ids, **PADDED)
        for at, row in enumerate((1, 3)):
            np.testing.assert_allclose(logits[at], tiny.reference(config, weights, np.array(text[row]))[0][-1], rtol=0, atol=2e-4)


def test_sampling_edits_masks_and_what_is_said_of_a_token(tmp_path):
    """The whole pass is tested with its operation: here that the program's inputs are in the order
    that is documented."""
    config = tiny.CONFIGS["llama"]
    program, page_size = opened(tiny.write_folder(tmp_path / "m", config, weights_of("llama")))
    session = program.session(session_sizes(page_size))
    rng = np.random.default_rng(kh.SEED)
    logits = rng.standard_normal((8, 320)).astype(np.float32)
    order = np.argsort(-logits, 1, kind="stable")
    mask = np.zeros((8, 10), np.uint32)
    mask[2, order[2, 5] // 32] = 1 << (order[2, 5] % 32)  # row 2 may say its sixth alone
    starts = np.array([0, 0, 1, 1, 1, 1, 1, 1, 1], np.int32)  # row 1 has its likeliest banned
    edits = np.array([order[1, 0], 0, 0, 0], np.int32)
    i32, f32 = np.int32, np.float32
    call = {
        "logits": logits, "sample_rows": np.array([4, 0, 1, -1, -1, -1, -1, -1], i32), "temperature": np.array([0, 0, 0, 1, 1, 1, 1, 1], f32),
        "top_k": np.array([0, 0, 0, 1, 0, 0, 0, 0], i32), "top_p": np.array([1, 1, 1, 1, 1e-6, 1, 1, 1], f32),
        "min_p": np.array([0, 0, 0, 0, 0, 0.999999, 0, 0], f32), "seed": np.arange(16, dtype=np.uint32).reshape(8, 2),
        "position": np.arange(8, dtype=i32), "edit_starts": starts, "edit_tokens": edits, "edit_multiply": np.ones(4, f32),
        "edit_add": np.full(4, -np.inf, f32), "mask_rows": np.array([-1, -1, 2, -1, -1, -1, -1, -1], i32), "mask_bits": mask,
    }  # fmt: skip
    token, logprob, top_ids, top_logprobs, rank = map(np.array, session.sample(*call.values()))
    assert token[:6].tolist() == [order[0, 0], order[1, 1], order[2, 5], order[3, 0], order[4, 0], order[5, 0]]
    expected = logits - np.log(np.exp(logits.astype(np.float64)).sum(1, keepdims=True))
    np.testing.assert_allclose(logprob, expected[np.arange(8), token], atol=1e-5)
    assert (top_ids == order[:, :20]).all() and rank[:3].tolist() == [1, 2, 6]
    np.testing.assert_allclose(top_logprobs, np.take_along_axis(expected, order[:, :20], 1), atol=1e-5)
    assert np.array(session.state("last_token")).tolist() == [token[1], token[2], 0, 0, token[0]]


def test_ids_that_are_none_do_not_take_the_step_with_them(tmp_path):
    config, weights = tiny.CONFIGS["llama"], weights_of("llama")
    program, page_size = opened(tiny.write_folder(tmp_path / "m", config, weights))
    session = program.session(session_sizes(page_size))
    batches = tiny.Batches(lambda *arrays: np.array(session.step(*arrays)), page_size, PAGES, ROWS, -(-LENGTH // page_size), np.random.default_rng(kh.SEED))
    ids = np.random.default_rng(kh.SEED).integers(0, 320, (ROWS, LENGTH))
    ids[2, 3] = 1 << 30
    logits = batches.step([(1, 8), (2, 8)], ids, **PADDED)
    np.testing.assert_allclose(logits[0], tiny.reference(config, weights, ids[1, :8])[0][-1], rtol=0, atol=2e-4)


def test_changes_of_pages_without_a_step(tmp_path):
    config, weights = tiny.CONFIGS["llama"], weights_of("llama")
    program, _page_size = opened(tiny.write_folder(tmp_path / "m", config, weights))
    session = program.session({"pages": PAGES, "table_rows": ROWS, "table_pages": 4})
    slots, pages = np.full(32, -1, np.int32), np.zeros(32, np.int32)
    slots[:3], pages[:3] = (0, 7, 19), (5, 6, 7)
    session.update_pages(slots, pages)
    table = np.array(session.state("page_table")).reshape(-1)
    assert [table[at] for at in (0, 7, 19)] == [5, 6, 7]


def test_copies_of_rows(tmp_path):
    config = tiny.CONFIGS["llama"]
    program, page_size = opened(tiny.write_folder(tmp_path / "m", config, weights_of("llama")))
    session = program.session({"pages": PAGES, "table_rows": ROWS, "table_pages": 4})
    rng = np.random.default_rng(kh.SEED)
    names = [f"kv.{layer}.{part}" for layer in range(config["num_hidden_layers"]) for part in "kv"]
    before = {}
    for name in names:
        state = session.state(name)
        before[name] = rng.standard_normal(state.shape).astype(np.float32)
        np.array(state, copy=False)[...] = before[name]
    source, to = np.zeros(32, np.int32), np.full(32, -1, np.int32)
    source[:5], to[:5] = np.arange(page_size, page_size + 5), np.arange(3 * page_size, 3 * page_size + 5)
    session.copy_rows(source, to)
    for name in names:
        expected = before[name].reshape(-1, *before[name].shape[2:])
        expected[to[:5]] = expected[source[:5]]
        np.testing.assert_array_equal(np.array(session.state(name)).reshape(expected.shape), expected)


def test_bytelm(tmp_path):
    """The project's own model, without a tokenizer, beside its reference in numpy."""
    sys.path.insert(0, str(ROOT / "examples/bytelm"))
    try:
        import build as bytelm
    finally:
        sys.path.pop(0)
    made = models.open(ROOT / "examples/bytelm/weights.safetensors", options=OPTIONS, targets=TARGETS, output=tmp_path / "bytelm.accx")
    assert made.info["serve.family"] == "bytelm" and made.info["serve.eos"] == ""
    tensors, config = bytelm.load()
    weights = {name: (bits.astype(np.uint32) << 16).view(np.float32) for name, (_dtype, bits) in tensors.items()}
    config = {**config, "model_type": "llama"}
    program = accrt.Bundle(made.bundle).program(weights=made.sources())
    text = np.frombuffer((ROOT / "examples/bytelm/heldout.txt").read_bytes()[: ROWS * LENGTH], np.uint8).reshape(ROWS, LENGTH).astype(np.int64)
    expected = [tiny.reference(config, weights, row)[0] for row in text]
    for row, position, result in run(program, 16, text, np.random.default_rng(kh.SEED)):
        np.testing.assert_allclose(result, expected[row][position], rtol=0, atol=2e-3)
