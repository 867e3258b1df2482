"""Families beside the logits that Hugging Face's own code computed of them (family_models.py):
ragged batches of prompts in pieces and of single tokens, from folders and from GGUF files; what a
configuration asks for and a family does not do is refused by name. A part of the families in each
run, and all of them in `./dev soak rotating` (rotation.py)."""

from __future__ import annotations

import inspect
import json
import random
import re
import sys

import numpy as np
import pytest

import family_models as family
import kernel_harness as kh
import tiny_models as tiny
from accrt import models
from accrt.compiler import driver
from accrt.models import Refused, _registry
from accrt.models._config import MEANINGFUL
from test_model_folders import JUNK
from test_step_programs import OPTIONS, opened, run

pytestmark = pytest.mark.quick_kernels  # in a run of the whole folder

RECORDED = family.recorded()


def compare(program, page_size, name, atol):
    rng, ids, logits = np.random.default_rng(0), family.ids_of(family.CONFIGS[name]), family.expected(name)
    for row, position, result in run(program, page_size, ids, rng):
        np.testing.assert_allclose(result[list(family.COLUMNS)], logits[row][position], rtol=0, atol=atol, err_msg=f"row {row}, position {position}")


@pytest.mark.rotating(8)
@pytest.mark.parametrize("name", family.CONFIGS)
def test_a_folder(tmp_path, name):
    folder, _weights = family.write(tmp_path / "m", name)
    compare(*opened(folder, OPTIONS), name, 2e-4)


@pytest.mark.rotating(4)
@pytest.mark.parametrize("name", family.GGUF)
def test_a_gguf_file(tmp_path, name):
    family.write_gguf(tmp_path / "m.gguf", name)
    compare(*opened(tmp_path / "m.gguf", OPTIONS), name, 2e-4)


@pytest.mark.rotating(1)
@pytest.mark.parametrize("name", family.OF_K_QUANTS)
def test_a_gguf_file_of_k_quants(tmp_path, name):
    """It computes what the numbers do that it stands for, at sizes that K quants cut; other
    families the next time."""
    drawn = {"gain": family.GAINS_OF_K_QUANTS.get(name, 1.5), "mild_heads": name in family.WITH_MILD_HEADS}
    with family.larger(name, 16):
        family.write_gguf(tmp_path / "packed.gguf", name, family.k_quant, **drawn)
        family.write_gguf(tmp_path / "plain.gguf", name, changed=family.of_k_quant, **drawn)
    ids, results = family.ids_of(family.CONFIGS[name]), []
    for form in ("packed", "plain"):
        program, page_size = opened(tmp_path / f"{form}.gguf", OPTIONS)
        results.append(np.stack([result for _row, _position, result in run(program, page_size, ids, np.random.default_rng(0))]))
        sizes = program.estimate("step")["weight_bytes"], (tmp_path / f"{form}.gguf").stat().st_size
        assert sizes[0] < 1.1 * sizes[1], sizes
    errors = np.linalg.norm(results[0] - results[1], axis=1) / np.linalg.norm(results[1], axis=1)
    # Products round what they multiply to 8 bits; another expert may be chosen now and then.
    assert np.median(errors) < 0.05 and errors.mean() < 0.15, (np.median(errors), errors.mean())


@pytest.mark.rotating(2)
@pytest.mark.parametrize("name", sorted(family.GGUF))
def test_a_gguf_file_of_f16(tmp_path, name):
    """The same numbers in f16 and in f32; other families the next time."""
    ids, results = family.ids_of(family.CONFIGS[name]), []
    for types in ("F16", None):
        family.write_gguf(tmp_path / f"{types}.gguf", name, types, changed=lambda _name, array: array.astype(np.float16).astype(np.float32))
        results.append(np.stack([result for _row, _position, result in run(*opened(tmp_path / f"{types}.gguf", OPTIONS), ids, np.random.default_rng(0))]))
    np.testing.assert_allclose(*results, rtol=0, atol=1e-3)


def test_packed_experts(tmp_path):
    """They compute what the numbers do that they stand for, and are as large as in the file."""
    name = "qwen3-moe-blocks"
    family.write_gguf(tmp_path / "packed.gguf", name, "Q8_0")
    family.write_gguf(tmp_path / "plain.gguf", name, changed=lambda _name, array: tiny.q8_0_values(array))
    made = models.read(tmp_path / "packed.gguf")
    assert made.tensors["model.layers.0.mlp.experts.gate_proj.weight"].layout == "q8_0"
    ids, results, sizes = family.ids_of(family.CONFIGS[name]), [], []
    for form in ("packed", "plain"):
        program, page_size = opened(tmp_path / f"{form}.gguf", OPTIONS)
        results.append(np.stack([result for _row, _position, result in run(program, page_size, ids, np.random.default_rng(0))]))
        sizes.append(program.estimate("step")["weight_bytes"])
    errors = np.linalg.norm(results[0] - results[1], axis=1) / np.linalg.norm(results[1], axis=1)
    # Products round what they multiply to 8 bits; another expert may be chosen now and then.
    assert np.median(errors) < 0.05 and errors.mean() < 0.15, (np.median(errors), errors.mean())
    assert sizes[0] < 0.4 * sizes[1], sizes


@pytest.mark.parametrize("name", ["qwen3-moe", "mixtral"])
def test_experts_of_16_bits(tmp_path, name):
    """Weights of bf16, and the same numbers in f32."""
    ids, results = family.ids_of(family.CONFIGS[name]), []
    weights = {key: tiny.to_bf16(array) for key, array in family.draw(RECORDED[name]["tensors"]).items()}
    for dtype in ("BF16", "F32"):
        folder = tiny.write_folder(tmp_path / dtype, family.CONFIGS[name], weights, dtype)
        results.append(np.stack([result for _row, _position, result in run(*opened(folder, OPTIONS), ids, np.random.default_rng(0))]))
    np.testing.assert_allclose(*results, rtol=0, atol=1e-3)


@pytest.mark.parametrize("name", ["qwen3-moe", "qwen2-moe", "mixtral"])
def test_experts_give_a_request_the_same_bits_in_any_batch(tmp_path, name):
    folder, _weights = family.write(tmp_path / "m", name)
    program, page_size = opened(folder, OPTIONS)
    ids, found = family.ids_of(family.CONFIGS[name]), {}
    for seed in range(3):
        for row, position, result in run(program, page_size, ids, np.random.default_rng([kh.SEED, seed])):
            assert np.array_equal(found.setdefault((row, position), result), result), (row, position)


def test_experts_for_cuda_are_grouped_products(tmp_path):
    folder, _weights = family.write(tmp_path / "m", "mixtral", dtype="BF16")
    kernels = driver.kernels_of(_registry.decoder(models.read(folder)).build(), "cuda")
    assert {kernel.name for kernel in kernels if kernel.op == "grouped_matmul"} == {"cuda.grouped_bf16_i64_nk_64", "cuda.grouped_bf16_i64_nk_128"}


def test_batch_invariant_experts_have_one_kernel_for_cuda(tmp_path):
    """Plain ones and packed ones."""
    folder, _weights = family.write(tmp_path / "m", "mixtral", dtype="BF16")
    path = tmp_path / "m.gguf"
    family.write_gguf(path, "qwen3-moe-blocks", "Q8_0")
    for given, wanted in ((folder, r"cuda\.grouped_bf16_i64_nk_64"), (path, r"cuda\.packed_groups_s8_\w+_bf16_bf16_i64_2x\w+")):
        made = _registry.decoder(models.read(given), models.Options(batch_invariant=True)).build()
        names = {kernel.name for kernel in driver.kernels_of(made, "cuda") if kernel.op in ("grouped_matmul", "grouped_quantized")}
        assert names and all(re.fullmatch(wanted, name) for name in names), names


@pytest.mark.rotating(4)
@pytest.mark.parametrize("name", sorted(family.CONFIGS))
def test_a_family_has_kernels_for_cuda(tmp_path, name):
    """Its folder in f32 and in bf16, with and without places for adapters, and its GGUF file: every
    operation of its functions. Other families the next time."""
    paths = [(family.write(tmp_path / dtype, name, dtype=dtype)[0], models.Options(adapters=adapters)) for dtype, adapters in (("F32", 0), ("BF16", 3))]
    if name in family.GGUF:
        family.write_gguf(tmp_path / "m.gguf", name)
        paths.append((tmp_path / "m.gguf", models.Options()))
    for path, options in paths:
        kernels = driver.kernels_of(_registry.decoder(models.read(path), options).build(), "cuda")
        assert {kernel.family for kernel in kernels} == {"cuda"}, path


@pytest.mark.rotating(6)
@pytest.mark.parametrize("name", family.CONFIGS)
def test_junk_in_a_configuration_is_refused_or_taken(tmp_path, name):
    config, rng = family.CONFIGS[name], random.Random(f"{kh.SEED} {name}")
    folder, _weights = family.write(tmp_path / "m", name)
    inner = "text_config" if "text_config" in config else None
    keys = sorted({*family.text_of(config), *MEANINGFUL})
    for _ in range(25):
        changed = {rng.choice(keys): rng.choice(JUNK) for _ in range(rng.choice([1, 1, 2]))}
        text = {**family.text_of(config), **changed}
        (folder / "config.json").write_text(json.dumps({**config, inner: text} if inner else text))
        try:
            _registry.decoder(models.read(folder)).build()
        except Refused as refused:
            assert refused.points and all(refused.points)


#: What changes the results of a model, with a value that does so in every family that has it.
CHANGES = {
    "alibi": True, "attn_logit_softcapping": 3.0, "clip_qkv": 0.5, "embedding_multiplier": 3.0, "final_logit_softcapping": 3.0, "kv_lora_rank": 16, "logit_scale": 7.0,
    "no_rope_layers": [0], "num_kv_shared_layers": 1, "q_lora_rank": 8, "residual_multiplier": 0.3, "rotary_dim": 4, "scale_emb": 12, "use_qk_norm": True,
    "routed_scaling_factor": 2.5, "use_bidirectional_attention": True,
}  # fmt: skip


@pytest.mark.rotating(6)
@pytest.mark.parametrize("name", family.CONFIGS)
def test_what_a_family_does_not_do_is_refused_by_name(tmp_path, name):
    """Each key is read by the family, or refused."""
    folder, _weights = family.write(tmp_path / "m", name)
    config, refused = family.CONFIGS[name], 0
    for key, value in CHANGES.items():
        text = {**family.text_of(config), key: value}
        (folder / "config.json").write_text(json.dumps({**config, "text_config": text} if "text_config" in config else text))
        try:
            made = _registry.decoder(models.read(folder))
            assert f'"{key}"' in inspect.getsource(sys.modules[type(made).__module__]) + "".join(inspect.getsource(cls) for cls in type(made).__mro__[:-1]), key
        except Refused as error:
            refused += any(f"config: {key} is" in point for point in error.points)
    assert refused >= 10


@pytest.mark.parametrize("changes", [
    {"num_local_experts": 6, "num_experts": None}, {"num_local_experts": 6, "num_experts": "absent"},
    {"qkv_bias": False, "shared_expert_intermediate_size": 0, "use_qk_norm": True},
], ids=["transformers 5", "transformers 5, absent", "coder"])  # fmt: skip
def test_other_ways_to_say_the_same_of_qwen3_moe(tmp_path, changes):
    """As transformers 5 saves it, and as Qwen3-Coder has it."""
    folder, _weights = family.write(tmp_path / "m", "qwen3-moe")
    config = {**family.CONFIGS["qwen3-moe"], **changes}
    (folder / "config.json").write_text(json.dumps({key: value for key, value in config.items() if value != "absent"}))
    made = _registry.decoder(models.read(folder))
    assert (made.experts, made.chosen) == (6, 3)
    (folder / "config.json").write_text(json.dumps({**family.CONFIGS["qwen3-moe"], "use_qk_norm": False}))
    with pytest.raises(Refused, match="use_qk_norm is False"):
        _registry.decoder(models.read(folder))


def test_every_configuration_was_recorded():
    assert sorted(RECORDED) == sorted(family.CONFIGS)
