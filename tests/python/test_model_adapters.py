"""LoRA adapters in the step program: logits are those of the merged model, for each token its own
adapter; PEFT folders and what is refused of them."""

from __future__ import annotations

import functools
import json
import math
import re
import time

import numpy as np
import pytest

import family_models as family
import kernel_harness as kh
import test_step_programs as steps
import tiny_adapters
import tiny_models as tiny

import accrt
from accrt import models
from accrt.models import Options, Refused, _parts

pytestmark = pytest.mark.quick_kernels  # in a run of the whole folder

OPTIONS = Options(**{**steps.OPTIONS.__dict__, "adapters": 3, "max_rank": 6})
FAMILIES = ("llama", "llama-linear-biases", "qwen2", "qwen3", "gemma2", "phi3", "granite", "olmo2", "smollm3", "gpt2")


def opened(folder, options=OPTIONS):
    made = models.open(folder, options=options, targets=steps.TARGETS, output=f"{folder}.accx")
    bundle = accrt.Bundle(made.bundle)
    return bundle.program(weights=made.sources()), json.loads(bytes(bundle.assets["serve.adapters"].data))


def put(session, slot, adapter):
    for name, array in adapter.tensors.items():
        state = session.state(name)
        session.stream.copy(array, state.buffer, array.nbytes, target_offset=state.offset_bytes + slot * array.nbytes)
        session.stream.synchronize()


def logits_of(program, adapters, rows, rng, config):
    """What `step` says after each token of `rows`: [(ids, slot)], all in one batch, a few tokens in
    each step."""
    session = program.session(steps.session_sizes(16))
    for slot, adapter in adapters.items():
        put(session, slot, adapter)
    chosen = np.array([slot for _ids, slot in rows], np.int32)

    def step(*arrays):
        token_rows, row_ids = arrays[3], arrays[5]
        used = np.where(arrays[2] >= 0, chosen[np.minimum(row_ids[token_rows], len(chosen) - 1)], -1).astype(np.int32)
        return np.array(session.step(*arrays, used))

    batches = tiny.Batches(step, 16, steps.PAGES, steps.ROWS, -(-steps.LENGTH // 16), rng)
    found, ids = [dict() for _ in rows], [ids for ids, _slot in rows]
    while min(batches.done[: len(rows)]) < len(ids[0]):
        work = [(r, int(min(rng.integers(1, 7), len(ids[r]) - batches.done[r]))) for r in rng.permutation(len(rows)) if batches.done[r] < len(ids[r])]
        for (row, _count), result in zip(work, batches.step(work, ids, **steps.PADDED)):
            found[row][batches.done[row] - 1] = result
    return found


@functools.lru_cache(maxsize=None)
def weights_of(name):
    return tiny.tensors(tiny.CONFIGS[name], kh.SEED, gain=1.0)


@pytest.mark.parametrize("name", FAMILIES)
def test_logits_are_those_of_the_merged_model(tmp_path, name):
    """Sequences with no adapter, with all products adapted, and with some, side by side."""
    config, weights = tiny.CONFIGS[name], weights_of(name)
    program, layout = opened(tiny.write_folder(tmp_path / "m", config, weights))
    assert set(layout["products"]) == set(tiny_adapters.products(weights))
    whole = tiny_adapters.random_adapter(weights, 1, rank=4)
    some = tiny_adapters.random_adapter(weights, 2, rank=6, chosen=("q_proj", "v_proj", "qkv_proj", "c_attn", "down_proj"))
    one = models.read_adapter(tiny_adapters.write_adapter(tmp_path / "a", whole, alpha=2.0), layout)
    two = models.read_adapter(tiny_adapters.write_adapter(tmp_path / "b", some, alpha=3.0, use_rslora=True), layout)
    assert (one.rank, two.rank) == (4, 6)
    rng = np.random.default_rng(kh.SEED)
    rows = [(rng.integers(0, config["vocab_size"], 24), slot) for slot in (-1, 0, 2, 0)]
    changed = {-1: weights, 0: tiny_adapters.merged(weights, whole, 0.5), 2: tiny_adapters.merged(weights, some, 3 / np.sqrt(6))}
    for (ids, slot), got in zip(rows, logits_of(program, {0: one, 2: two}, rows, rng, config)):
        expected = tiny.reference(config, changed[slot], ids)[0]
        plain = tiny.reference(config, weights, ids)[0]
        assert slot < 0 or np.abs(expected - plain).max() > 0.5, "the adapter is too weak to be seen"
        for position, logits in got.items():
            np.testing.assert_allclose(logits, expected[position], rtol=0, atol=1e-3, err_msg=f"{name}, slot {slot}, position {position}")


#: Where adapters of a family have their own name in a checkpoint of several parts.
PARTS = {"gemma3-images": "model.language_model.", "mistral3": "language_model.model.",
         "nemotron-h": "backbone.", "nemotron3": "backbone.", "nemotron3-latent": "backbone."}  # fmt: skip


def module_name(name, key):
    """What the bundle of a family calls a tensor of its checkpoint. None: it is no part of text."""
    found = _parts.text_name(key)
    return found.replace("backbone.", "model.", 1) if found is not None and PARTS.get(name) == "backbone." else found


#: Families whose matrices are the other way round.
TURNED = ("openai-gpt",)
#: Layers that do nothing without an image.
OF_IMAGES = {"mllama": ("model.layers.1.", "model.layers.3.")}
#: Products that stand beside the layers, and matrices in layers that are no products of the text,
#: or of an index that is not computed.
BESIDE = re.compile(r"model\.(altup_(unembed_)?projections\.\d+|per_layer_model_projection)\.weight")
NO_PRODUCTS = re.compile(r"\.experts\.|shared_expert_gate|_norm\.weight$|embed_tokens_extend\.|self_attn\.indexer\.")


def products_of(name, shapes):
    """{what PEFT calls a product: (what it takes, what it gives)}: the matrices of layers, but for
    those of experts and what is beside a shared one."""
    found = {}
    for key, shape in shapes.items():
        key = module_name(name, key)
        if key is None or key.startswith(OF_IMAGES.get(name, "none")) or not key.endswith(".weight") or len(shape) != 2:
            continue
        if BESIDE.fullmatch(key) or (re.search(r"\.(layers|h|blocks)\.\d+\.", key) and not NO_PRODUCTS.search(key)):
            found[key[: -len(".weight")]] = tuple(shape) if name in TURNED else (shape[1], shape[0])
    return found


@pytest.mark.rotating(4)
@pytest.mark.parametrize("name", sorted(family.CONFIGS))
def test_logits_of_a_family_are_those_of_the_merged_model(tmp_path, name):
    """Of every product that PEFT finds in it."""
    config, rng = family.CONFIGS[name], np.random.default_rng([kh.SEED, 3])
    folder, weights = family.write(tmp_path / "m", name)
    program, layout = opened(folder)
    products = products_of(name, {key: array.shape for key, array in weights.items()})
    assert {key: tuple(sizes) for key, sizes in layout["products"].items()} == products
    factors = {key: ((rng.standard_normal((4, taken)) / math.sqrt(taken)).astype(np.float32), (0.3 * rng.standard_normal((given, 4))).astype(np.float32))
               for key, (taken, given) in products.items()}  # fmt: skip
    in_file = {key.replace("model.", PARTS.get(name, "model."), 1): pair for key, pair in factors.items()}
    adapter = models.read_adapter(tiny_adapters.write_adapter(tmp_path / "a", in_file, alpha=2.0), layout)
    changed = dict(weights)
    for key in weights:
        product = (module_name(name, key) or "")[: -len(".weight")]
        if product in factors and key.endswith(".weight"):
            delta = np.float32(0.5) * (factors[product][1] @ factors[product][0])
            changed[key] = weights[key] + (delta.T if name in TURNED else delta)
    merged, _layout = opened(tiny.write_folder(tmp_path / "merged", config, changed))
    rows = [(rng.integers(0, 320, 24), slot) for slot in (-1, 1, 1)]
    got = logits_of(program, {1: adapter}, rows, rng, config)
    expected = logits_of(merged, {}, [(ids, -1) for ids, _slot in rows], rng, config)
    plain = logits_of(program, {}, [(ids, -1) for ids, _slot in rows], rng, config)
    most = 0.0
    for (_ids, slot), ours, theirs, before in zip(rows, got, expected, plain):
        for position, logits in ours.items():
            wanted = (before if slot < 0 else theirs).get(position)
            if wanted is not None:
                most = max(most, np.abs(logits - before[position]).max() if position in before else 0.0)
                np.testing.assert_allclose(logits, wanted, rtol=0, atol=2e-3, err_msg=f"{name}, slot {slot}, position {position}")
    assert most > 0.1, "the adapter is too weak to be seen"


def test_factors_of_experts_and_of_other_parts_are_refused_by_name(tmp_path):
    layout = {"adapters": 2, "max_rank": 8, "dtype": "f32", "products": {"model.layers.0.self_attn.q_proj": [12, 20]}}
    pair = (np.zeros((4, 12), np.float32), np.zeros((20, 4), np.float32))
    for name, words in (("model.layers.0.mlp.experts.3.gate_proj", "adapters do not change experts here"),
                        ("model.vision_tower.encoder.layers.0.self_attn.q_proj", "it is of a part that does not read text")):  # fmt: skip
        with pytest.raises(Refused, match=f"{name}.*{words}"):
            models.read_adapter(tiny_adapters.write_adapter(tmp_path / name, {name: pair}), layout)
    for name in ("model.language_model.layers.0.self_attn.q_proj", "language_model.model.layers.0.self_attn.q_proj"):
        read = models.read_adapter(tiny_adapters.write_adapter(tmp_path / name, {name: pair}), layout)
        assert set(read.tensors) == {f"lora.model.layers.0.self_attn.q_proj.{part}" for part in "ab"}


@pytest.mark.parametrize("name", ["gptq", "int4", "int8", "fp8-rows"])
def test_adapters_of_a_quantized_model(tmp_path, name):
    """Packed weights stay packed; what an adapter adds does not round with them."""
    rng = np.random.default_rng(kh.SEED)
    folder, config, weights = steps.quantized_folder(tmp_path / "m", name, rng)
    program, layout = opened(folder)
    whole = tiny_adapters.random_adapter(weights, 1, rank=4)
    one = models.read_adapter(tiny_adapters.write_adapter(tmp_path / "a", whole, alpha=2.0), layout)
    rows = [(rng.integers(0, 320, 24), slot) for slot in (-1, 1, 1)]
    changed = {-1: weights, 1: tiny_adapters.merged(weights, whole, 0.5)}
    errors = []
    for (ids, slot), got in zip(rows, logits_of(program, {1: one}, rows, rng, config)):
        expected = tiny.reference(config, changed[slot], ids)[0]
        errors += [np.linalg.norm(logits - expected[position]) / np.linalg.norm(expected[position]) for position, logits in got.items()]
    assert np.mean(errors) < 0.05 and np.max(errors) < 0.15


def test_a_bundle_without_places_is_as_before(tmp_path):
    folder = tiny.write_folder(tmp_path / "m", tiny.CONFIGS["llama"], weights_of("llama"))
    made = models.open(folder, options=steps.OPTIONS, targets=steps.TARGETS, output=tmp_path / "m.accx")
    bundle = accrt.Bundle(made.bundle)
    assert "serve.adapters" not in bundle.assets and "serve.adapters" not in bundle.metadata
    assert [a.name for a in bundle.signature("step").inputs] == list(steps.INPUTS)


def test_targets(tmp_path):
    folder = tiny.write_folder(tmp_path / "m", tiny.CONFIGS["llama"], weights_of("llama"))
    _program, layout = opened(folder, Options(**{**OPTIONS.__dict__, "adapter_targets": ("q_proj", "v_proj")}))
    assert {name.rpartition(".")[2] for name in layout["products"]} == {"q_proj", "v_proj"}
    with pytest.raises(Refused, match="adapter_targets are nothing: no product of this model ends so"):
        opened(folder, Options(**{**OPTIONS.__dict__, "adapter_targets": ("nothing",)}))
    with pytest.raises(Refused, match="3 adapters of rank 513"):
        opened(folder, Options(**{**OPTIONS.__dict__, "max_rank": 513}))


def test_adapters_do_not_go_with_gguf_files(tmp_path):
    config = tiny.CONFIGS["llama"]
    tiny.write_gguf(tmp_path / "m.gguf", tiny.gguf_metadata(config), tiny.gguf_tensors(config, weights_of("llama")))
    with pytest.raises(Refused, match="not with a GGUF file"):
        models.open(tmp_path / "m.gguf", options=OPTIONS, targets=steps.TARGETS, output=tmp_path / "m.accx")


# ---- folders ----

LAYOUT = {"adapters": 2, "max_rank": 8, "dtype": "f32",
          "products": {f"model.layers.{i}.self_attn.{part}_proj": [12, 20] for i in range(2) for part in "qv"}}  # fmt: skip


def small(rank=4, seed=0):
    rng = np.random.default_rng(seed)
    return {name: (rng.standard_normal((rank, 12)).astype(np.float32), rng.standard_normal((20, rank)).astype(np.float32)) for name in LAYOUT["products"]}


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
@pytest.mark.parametrize("stored", ["f32", "f16", "bf16"])
def test_factors_are_padded_turned_and_scaled(tmp_path, dtype, stored):
    adapter = small()
    made = models.read_adapter(tiny_adapters.write_adapter(tmp_path / "a", adapter, 6.0, dtype), {**LAYOUT, "dtype": stored})
    assert made.rank == 4 and set(made.tensors) == {f"lora.{name}.{part}" for name in adapter for part in "ab"}
    for name, (a, b) in adapter.items():
        for part, wanted in (("a", a), ("b", 1.5 * b.T)):
            got = made.tensors[f"lora.{name}.{part}"]
            assert got.shape == (8, wanted.shape[1]) and got.flags.c_contiguous and not got[4:].any()
            np.testing.assert_allclose(kh.decode(got[:4], stored), wanted, rtol=2.0**-7 if "BF16" == dtype or stored == "bf16" else 2.0**-9, atol=1e-6)


def test_ranks_and_scales_by_name(tmp_path):
    adapter = small()
    narrow = "model.layers.1.self_attn.q_proj"
    adapter[narrow] = tuple(x[:2] if i == 0 else x[:, :2] for i, x in enumerate(adapter[narrow]))
    folder = tiny_adapters.write_adapter(
        tmp_path / "a", adapter, 4.0, r=4, rank_pattern={"layers.1.self_attn.q_proj": 2}, alpha_pattern={"v_proj": 16.0, "^" + narrow: 1.0}
    )
    made = models.read_adapter(folder, LAYOUT)
    for name, (_a, b) in adapter.items():
        scale = 16 / 4 if "v_proj" in name else 1 / 2 if name == narrow else 1.0
        np.testing.assert_allclose(made.tensors[f"lora.{name}.b"][: b.shape[1]], scale * b.T, rtol=1e-6)


@pytest.mark.parametrize("begins", ["model.", "backbone.", "model.language_model.", "language_model.model."])
def test_patterns_have_the_adapters_own_names(tmp_path, begins):
    """An alpha by the whole name of a product went unnoticed where a bundle has another name."""
    names = {name: begins + name[len("model.") :] for name in LAYOUT["products"]}
    first, second = [name for name in names if name.endswith("q_proj")]
    adapter = {names[name]: pair for name, pair in small().items()}
    folder = tiny_adapters.write_adapter(tmp_path / "a", adapter, 4.0, r=4, alpha_pattern={names[first]: 8.0, "^" + names[second]: 12.0, "model.layers.9.q_proj": 1.0})
    made = models.read_adapter(folder, LAYOUT)
    for name, (_a, b) in small().items():
        np.testing.assert_allclose(made.tensors[f"lora.{name}.b"][:4], (2 if name == first else 3 if name == second else 1) * b.T, rtol=1e-6)
    if begins != "model.":  # one factor by each name: which one do the patterns mean?
        arrays = {key.replace(first, names[first]) if "lora_B" in key else key: value for key, value in arrays_of(small()).items()}
        tiny.write_safetensors(folder / "adapter_model.safetensors", arrays)
        with pytest.raises(Refused, match="the product has a tensor by the name"):
            models.read_adapter(folder, LAYOUT)


CHANGES = {
    "dora": ({"use_dora": True}, r"use_dora is true, which is not done here"),
    "modules": ({"modules_to_save": ["lm_head"]}, r"modules_to_save is \[\"lm_head\"\]"),
    "bias": ({"bias": "all"}, r"bias is \"all\""),
    "kind": ({"peft_type": "IA3"}, r"peft_type is 'IA3'; there is LORA"),
    "no rank": ({"r": None}, r"r is None, expected an integer"),
    "huge rank": ({"r": 10**30}, r"its rank is 1000000"),
    "rank text": ({"r": "4"}, r"r is '4', expected an integer"),
    "rank": ({"r": 5}, r"its shape is \[4, 12\], expected \[5, 12\]"),
    "alpha": ({"lora_alpha": "much"}, r"lora_alpha is 'much', expected a number"),
    "infinite": ({"lora_alpha": float("inf")}, r"lora_alpha is inf, expected a number"),
    "stabilized": ({"use_rslora": "yes"}, r"use_rslora is 'yes', expected true or false"),
    "pattern": ({"rank_pattern": {"(a+)+$": 4}}, r"rank_pattern has the regular expression"),
    "pattern kind": ({"alpha_pattern": [1]}, r"alpha_pattern is \[1\], expected an object"),
    "pissa": ({"init_lora_weights": "pissa_niter_4"}, r"the model's own weights were changed, too"),
    "parameters": ({"target_parameters": ["experts.weight"]}, r"target_parameters"),
    "copies": ({"layer_replication": [[0, 4], [2, 5]]}, r"layer_replication"),
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
def test_what_a_config_asks_for_is_refused_by_name(tmp_path, name):
    changes, words = CHANGES[name]
    with pytest.raises(Refused, match=words):
        models.read_adapter(tiny_adapters.write_adapter(tmp_path / "a", small(), **changes), LAYOUT)


def arrays_of(adapter):
    return {f"base_model.model.{name}.lora_{part}.weight": ("F32", array) for name, pair in adapter.items() for part, array in zip("AB", pair)}


def test_what_tensors_are_refused_by_name(tmp_path):
    folder = tiny_adapters.write_adapter(tmp_path / "a", small())
    first = "base_model.model.model.layers.0.self_attn.q_proj"
    for change, words in (
        ({f"{first}.lora_magnitude_vector": ("F32", np.ones(20, np.float32))}, "lora_magnitude_vector: it is no factor"),
        ({"base_model.model.model.embed_tokens.lora_embedding_A": ("F32", np.ones((4, 9), np.float32))}, "embed_tokens.lora_embedding_A: it is no factor"),
        ({"base_model.model.lm_head.lora_A.weight": ("F32", np.ones((4, 12), np.float32))}, "no place for an adapter of lm_head"),
        ({f"{first}.lora_A.weight": None}, "lora_A.weight: it is missing"),
        ({f"{first}.lora_A.weight": ("F32", np.full((4, 12), np.nan, np.float32))}, "numbers that are not finite"),
        ({f"{first}.lora_A.weight": ("I32", np.ones((4, 12), np.int32))}, "its type is I32; there are f32, f16, bf16"),
        ({f"{first}.lora_B.weight": ("F32", np.ones((4, 20), np.float32))}, r"its shape is \[4, 20\], expected \[20, 4\]"),
        ({f"{first}.lora_B.weight": ("F32", np.ones(80, np.float32))}, r"its shape is \[80\]"),
        ({f"{first}.lora_A.default.weight": ("F32", np.ones((4, 12), np.float32))}, "it is there twice"),
    ):
        arrays = {**arrays_of(small()), **change}
        tiny.write_safetensors(folder / "adapter_model.safetensors", {k: v for k, v in arrays.items() if v is not None})
        with pytest.raises(Refused, match=words):
            models.read_adapter(folder, LAYOUT)
    tiny.write_safetensors(folder / "adapter_model.safetensors", {})
    with pytest.raises((Refused, accrt.Error)):
        models.read_adapter(folder, LAYOUT)
    tiny_adapters.write_adapter(folder, {k: (a * 60000, b * 60000) for k, (a, b) in small().items()})
    with pytest.raises(Refused, match="too large for f16"):
        models.read_adapter(folder, {**LAYOUT, "dtype": "f16"})


@pytest.mark.parametrize("stored", ["f32", "f16", "bf16"])
@pytest.mark.filterwarnings("error")
def test_numbers_that_become_too_large_are_refused(tmp_path, stored):
    """By the scale, or as they are rounded: an infinity would make every text of the adapter
    nonsense."""
    large = {k: (a, np.full_like(b, 1e20)) for k, (a, b) in small().items()}
    with pytest.raises(Refused, match=f"too large for {stored}"):
        models.read_adapter(tiny_adapters.write_adapter(tmp_path / "a", large, alpha=1e25), {**LAYOUT, "dtype": stored})
    largest = {k: (np.full_like(a, np.finfo(np.float32).max), b) for k, (a, b) in small().items()}
    folder = tiny_adapters.write_adapter(tmp_path / "b", largest)
    if stored == "f32":
        assert models.read_adapter(folder, LAYOUT).rank == 4
    else:
        with pytest.raises(Refused, match=f"too large for {stored}"):
            models.read_adapter(folder, {**LAYOUT, "dtype": stored})


def test_a_config_of_many_names_takes_linear_time(tmp_path):
    """A name was compared with every key of the file, for each product."""
    many = {f"model.layers.{i}.self_attn.q_proj": [4, 4] for i in range(400)}
    adapter = {name: (np.ones((1, 4), np.float32), np.ones((4, 1), np.float32)) for name in many}
    patterns = {f"k{i}": 1 for i in range(200_000)}
    folder = tiny_adapters.write_adapter(tmp_path / "a", adapter, rank_pattern={**patterns, "q_proj": 1}, alpha_pattern={**patterns, "7.self_attn.q_proj": 3})
    before = time.process_time()
    made = models.read_adapter(folder, {**LAYOUT, "products": many})
    assert len(made.tensors) == 800 and time.process_time() - before < 10  # 30 s when it was not


def test_a_file_that_is_cut_is_no_mapping(tmp_path, monkeypatch):
    """An adapter's folder may be another's, who can cut the file at any time: a mapping of it would
    end the process."""
    folder = tiny_adapters.write_adapter(tmp_path / "a", small())
    monkeypatch.setattr(accrt.weights.Weight, "component", lambda *_: pytest.fail("it was mapped"))
    assert models.read_adapter(folder, LAYOUT).rank == 4
    source = accrt.Weights(folder / "adapter_model.safetensors")
    with open(folder / "adapter_model.safetensors", "r+b") as file:
        file.truncate(source.info.size_bytes - 8)
    with pytest.raises(accrt.Error):
        for name in source:
            source[name].read(0, source[name].nbytes)


def test_folders_that_are_none(tmp_path):
    with pytest.raises(accrt.NotFoundError, match="no adapter_config.json"):
        models.read_adapter(tmp_path, LAYOUT)
    folder = tiny_adapters.write_adapter(tmp_path / "a", small())
    (folder / "adapter_model.safetensors").unlink()
    with pytest.raises(Refused, match="there is no adapter_model.safetensors"):
        models.read_adapter(folder, LAYOUT)
    (folder / "adapter_model.bin").write_bytes(b"pickled")
    with pytest.raises(Refused, match="adapter_model.bin is not read"):
        models.read_adapter(folder, LAYOUT)
    for text in ("", "[]", "7", "{", "[" * 100000):
        (folder / "adapter_config.json").write_text(text)
        with pytest.raises(Refused):
            models.read_adapter(folder, LAYOUT)


def test_flipped_bytes_are_refused_or_read(tmp_path):
    """Nothing but Refused and the library's own errors comes of a damaged file."""
    folder = tiny_adapters.write_adapter(tmp_path / "a", small())
    rng = np.random.default_rng(kh.SEED)
    for file in ("adapter_model.safetensors", "adapter_config.json"):
        good = (folder / file).read_bytes()
        for _turn in range(150):
            data = bytearray(good)
            for at in rng.integers(0, min(len(data), 900), rng.integers(1, 4)):
                data[at] = rng.integers(0, 256)
            (folder / file).write_bytes(bytes(data[: rng.integers(0, len(data) + 1)] if rng.random() < 0.2 else data))
            try:
                models.read_adapter(folder, LAYOUT)
            except (Refused, accrt.Error, OSError):
                pass
        (folder / file).write_bytes(good)
    assert models.read_adapter(folder, LAYOUT).rank == 4
