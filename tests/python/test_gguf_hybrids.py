"""GGUF files of recurrences, short convolutions and other families whose files differ from folders
in more than names (gguf_hybrids.py): they compute what the folder of the same weights does, in f32,
f16 and K quants; what a file asks for and cannot be done is refused by name."""

from __future__ import annotations

import importlib.util
import re

import numpy as np
import pytest

import family_models as family
import gguf_hybrids as hybrid
import tiny_models as tiny
from accrt import models
from accrt.compiler import driver
from accrt.models import Refused, _prebuilt, _registry
from test_step_programs import OPTIONS, opened, run


def logits(path, config):
    program, page_size = opened(path, OPTIONS)
    return np.stack([result for _row, _position, result in run(program, page_size, family.ids_of(config), np.random.default_rng(0))])


@pytest.mark.rotating(4)
@pytest.mark.parametrize("name", hybrid.FILES)
def test_a_file_computes_what_the_folder_does(tmp_path, name):
    config = hybrid.config_of(name)
    weights = hybrid.weights_of(tmp_path / "shapes", name)
    folder = tiny.write_folder(tmp_path / "m", config, weights)
    hybrid.write_gguf(tmp_path / "m.gguf", name, weights)
    np.testing.assert_allclose(logits(tmp_path / "m.gguf", config), logits(folder, config), rtol=0, atol=2e-4)


@pytest.mark.rotating(1)
@pytest.mark.parametrize("name", sorted(hybrid.FILES))
def test_a_file_of_f16(tmp_path, name):
    """The same numbers in f16 and in f32; other families the next time."""
    weights, results = hybrid.weights_of(tmp_path / "shapes", name), []
    for types in ("F16", None):
        hybrid.write_gguf(tmp_path / f"{types}.gguf", name, weights, types, lambda _name, array: array.astype(np.float16).astype(np.float32))
        results.append(logits(tmp_path / f"{types}.gguf", hybrid.config_of(name)))
    np.testing.assert_allclose(*results, rtol=0, atol=1e-3)


@pytest.mark.rotating(1)
@pytest.mark.parametrize("name", hybrid.OF_K_QUANTS)
def test_a_file_of_k_quants(tmp_path, name):
    """It computes what the numbers do that it stands for, at sizes that K quants cut."""
    config = family.enlarged(hybrid.config_of(name), 16)
    weights, results = hybrid.weights_of(tmp_path / "shapes", name, config, hybrid.gain_of_k_quants(name)), []
    hybrid.write_gguf(tmp_path / "packed.gguf", name, weights, hybrid.k_quant, by=16)
    hybrid.write_gguf(tmp_path / "plain.gguf", name, weights, changed=hybrid.of_k_quant, by=16)
    packed = {tensor.layout for tensor in models.read(tmp_path / "packed.gguf").tensors.values()}
    assert {"q4_k", "q8_0"} & packed
    results = [logits(tmp_path / f"{form}.gguf", config) for form in ("packed", "plain")]
    errors = np.linalg.norm(results[0] - results[1], axis=1) / np.linalg.norm(results[1], axis=1)
    # Products round what they multiply to 8 bits; another expert may be chosen now and then.
    assert np.median(errors) < 0.05 and errors.mean() < 0.15, (np.median(errors), errors.mean())


@pytest.mark.rotating(2)
@pytest.mark.parametrize("name", sorted(hybrid.FILES))
def test_a_file_has_kernels_for_cuda(tmp_path, name):
    """Every operation of its functions. Other families the next time."""
    path = hybrid.write_gguf(tmp_path / "m.gguf", name, hybrid.weights_of(tmp_path / "shapes", name))
    kernels = driver.kernels_of(_registry.decoder(models.read(path), models.Options()).build(), "cuda")
    assert {kernel.family for kernel in kernels} == {"cuda"}


@pytest.mark.parametrize("name", hybrid.FILES)
def test_names_are_those_of_the_package(name):
    """Where the package gguf is installed."""
    if importlib.util.find_spec("gguf") is None:
        pytest.skip("the package gguf is not installed")
    import gguf

    config, architecture = hybrid.config_of(name), hybrid.FILES[name][0]
    kind = next(key for key, value in gguf.constants.MODEL_ARCH_NAMES.items() if value == architecture)
    known = gguf.get_tensor_name_map(kind, config["num_hidden_layers"])
    names = [theirs for theirs in hybrid.stacked({key: np.zeros(0) for key in family.recorded()[hybrid._OF.get(name, name)]["tensors"]})]
    checked = 0
    for theirs in names:
        end = ".weight" if theirs.endswith(("A_log", ".D")) else ""
        asked = theirs.replace(".dt_bias", ".dt_proj.bias").replace(".expert_bias", ".expert_bias.bias")
        found = known.get_name(asked + end, (".weight", ".bias"))
        if found is not None and not re.search("put_linear|shared_mlp|mtp", theirs):
            assert hybrid.called(config, theirs) == (found.removesuffix(".weight") if end and not theirs.endswith("_scale") else found), theirs
            checked += 1
    assert checked > len(names) / 2, (checked, len(names))


#: What files may say, and what is said of it.
REFUSED = {
    "lfm2": [({"attention.causal": False}, "attention.causal is false"), ({"attention.head_count_kv": [0, 0, 3, 0, 1]}, "layers of different sizes"),
             ({"attention.head_count_kv": [0, 0, 2]}, "layer_types"), ({"attention.sliding_window": 7}, "sliding_window is 7")],
    "granite4-turned": [({"rope.dimension_count": 4}, "rope.dimension_count is a part of a head")],
    "mamba2": [({"ssm.inner_size": 97}, "the 97 channels"), ({"ssm.time_step_rank": 0}, "num_heads is 0")],
    "qwen3-next": [({"ssm.inner_size": 63}, "ssm.inner_size is 63")],
    "llama4": [({"attention.sliding_window": 64}, "attention.sliding_window is 64")],
    "apertus": [({"xielu.beta": [0.5, 0.5]}, "xielu.beta"), ({"xielu.eps": None}, "xielu.eps")],
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_done_is_refused_by_name(tmp_path, name):
    weights = hybrid.weights_of(tmp_path / "shapes", name)
    for at, (more, message) in enumerate(REFUSED[name]):
        path = hybrid.write_gguf(tmp_path / f"{at}.gguf", name, weights, **more)
        with pytest.raises(Refused, match=message):
            _registry.decoder(models.read(path)).build()


def test_kernels_of_the_package_are_made_for_these_files():
    """The configurations that kernels come with the package for are models in this form, too."""
    kinds, seen = {hybrid.config_of(name)["model_type"] for name in hybrid.FILES}, set()
    for name, given in {**_prebuilt.CONFIGS, **_prebuilt.MORE}.items():
        kind = given.get("model_type", name)
        if kind in kinds and _registry.by_type(kind).architectures:
            _prebuilt._decoder(name, _prebuilt._SIZES, "f32", form="gguf").build()
            seen.add(kind)
    assert seen >= kinds - {"internlm3"}


def test_layers_that_predict_more_tokens_are_left_out(tmp_path):
    """Of a folder and of a file of Qwen 3 Next."""
    config, weights = hybrid.config_of("qwen3-next"), hybrid.weights_of(tmp_path / "shapes", "qwen3-next")
    folder = tiny.write_folder(tmp_path / "m", config, {**weights, "mtp.fc.weight": np.zeros((4, 4), np.float32)})
    _registry.decoder(models.read(folder)).build()
    behind = {f"model.layers.{config['num_hidden_layers']}.input_layernorm.weight": np.zeros(config["hidden_size"], np.float32)}
    path = hybrid.write_gguf(tmp_path / "m.gguf", "qwen3-next", {**weights, **behind}, nextn_predict_layers=1, block_count=config["num_hidden_layers"] + 1)
    made = _registry.decoder(models.read(path))
    made.build()
    assert made.layers == config["num_hidden_layers"]
