"""Kernels that come with the package: the families need no others, whatever their sizes and types;
they are found by all that they follow from; with them models are served without a compiler, and
what is missing is said in a line."""

import dataclasses
import json
import os
import random
import re
import subprocess
import sys
import zipfile

import numpy as np
import pytest

import family_models as more
import kernel_harness as kh
import rotation
import test_step_programs as steps
import tiny_models as tiny
from accrt import models
from accrt.compiler import driver
from accrt.compiler.kernels import image, prebuilt
from accrt.models import _prebuilt, _registry

BYTELM = os.path.join(os.path.dirname(__file__), "..", "..", "examples", "bytelm")
OWN = [name for name in driver.HOST_TARGETS if name in image.available_targets()[0] and image.TARGETS[name].arch == os.uname().machine]
pytestmark = pytest.mark.skipif(not OWN, reason="no C compiler for this machine")


def needed(path, options=models.Options()):
    return _prebuilt.kernels_of(_registry.decoder(models.read(path), options))


class Coming:
    """What comes with the package, looked for in the models nearest to one first: most need few of
    them, and what is missing needs all."""

    def __init__(self):
        self.rest, self.found = list(_prebuilt.every()), {}

    def missing(self, made):
        """Kernels that a model needs and that do not come."""
        self.rest.sort(key=lambda other: sum(a != b for a, b in zip(facts(other), facts(made))))
        kernels = _prebuilt.kernels_of(made)
        while True:
            left = [kernel.name for kernel in kernels if self.found.get(kernel.name) != kernel.producer]
            if not left or not self.rest:
                return left
            for kernel in _prebuilt.kernels_of(self.rest.pop(0)):
                assert self.found.setdefault(kernel.name, kernel.producer) == kernel.producer, f"two different kernels are named {kernel.name}"


def facts(made):
    """What most kernels of a model follow from."""
    tensors = made.checkpoint.tensors.values()
    layouts = sorted({(tensor.layout, tensor.group) for tensor in tensors if tensor.layout != "plain"})
    return [made.checkpoint.form, sorted({tensor.dtype for tensor in tensors if tensor.layout == "plain"}), layouts, made.kv_type,
            bool(made.options.adapters), made.is_tied, made.checkpoint.config.get("model_type"), made.head_size]  # fmt: skip


@pytest.fixture(scope="module")
def coming():
    return Coming()


def gguf(tmp_path, config, types):
    arrays = tiny.gguf_tensors(config, tiny.tensors(config, kh.SEED))
    tiny.write_gguf(tmp_path / "m.gguf", tiny.gguf_metadata(config), arrays, {key: types for key, array in arrays.items() if array.ndim == 2})
    return tmp_path / "m.gguf"


def some(rng, cases, count):
    return cases if rotation.ALL else rng.sample(cases, count)


def families(tmp_path, rng):
    """Some of every family, each in one type and with sizes of its own; others the next time."""
    for name, config in some(rng, sorted(tiny.CONFIGS.items(), key=str), 5):
        dtype = rng.choice(["F32", "BF16", "F16"])
        folder = tiny.write_folder(tmp_path / f"{name}-{dtype}", config, tiny.tensors(config, kh.SEED), dtype)
        yield folder, models.Options(adapters=rng.choice([0, 3]))
        if "rope_theta" in config or "n_embd" in config:
            yield gguf(tmp_path, config, dtype), models.Options()
    for name in some(rng, sorted(more.CONFIGS), 4):
        dtype = rng.choice(["F32", "BF16", "F16"])
        yield more.write(tmp_path / f"{name}-{dtype}", name, dtype=dtype)[0], models.Options(adapters=rng.choice([0, 3]))
    for name in some(rng, sorted(more.GGUF), 2):
        more.write_gguf(tmp_path / f"{name}.gguf", name)
        yield tmp_path / f"{name}.gguf", models.Options()


def packed(tmp_path, rng):
    """Mixes of packed types, tied and not, and quantized folders with places for adapters."""
    for mix, types in some(rng, sorted(steps.MIXES.items()), 2):
        size = 96 if "96" in mix else 256
        config = {**tiny.CONFIGS["qwen2"], "hidden_size": size, "head_dim": size // 2, "num_attention_heads": 2, "num_key_value_heads": 1,
                  "intermediate_size": 2 * size, "tie_word_embeddings": rng.choice([True, False])}  # fmt: skip
        arrays, types, _values = steps.mixed(config, types)
        tiny.write_gguf(tmp_path / "m.gguf", tiny.gguf_metadata(config), arrays, types)
        yield tmp_path / "m.gguf", models.Options()
    for name in some(rng, sorted(steps.QUANTIZED), 3):
        folder, _config, _weights = steps.quantized_folder(tmp_path / name, name, np.random.default_rng(kh.SEED))
        yield folder, models.Options(adapters=rng.choice([0, 3]))


@pytest.mark.rotating(1)
@pytest.mark.parametrize("several", [families, packed])
def test_models_need_no_others(tmp_path, coming, several):
    missing = {}
    for path, options in several(tmp_path, random.Random(rotation.SEED)):
        for name in coming.missing(_registry.decoder(models.read(path), options)):
            missing.setdefault(name, str(path))
    assert not missing, f"ACCRT_TEST_SEED={rotation.SEED}"


def test_processes_find_what_one_does():
    """Each looks through some of the models."""
    def of(kernels):
        return {kernel.name: (kernel.producer, kernel.params, kernel.entry) for kernel in kernels}

    nth = 200 + rotation.SEED % 30
    assert of(_prebuilt.kernels(nth)) == of(kernel for made in list(_prebuilt.every())[::nth] for kernel in _prebuilt.kernels_of(made))


def test_a_part_has_what_many_models_need_and_some_choices():
    without = _prebuilt.some(5, rotation.seed())
    assert without == _prebuilt.some(5, rotation.SEED) and len(_prebuilt.CHOICES) - len(without) == 5
    assert _prebuilt.some(10**6, 1) == frozenset()
    named, layouts = set(), set()
    for made in _prebuilt.every(without):
        named.add(made.checkpoint.config["model_type"])
        layouts |= {tensor.layout for tensor in made.checkpoint.tensors.values()}
    of_choices = {_prebuilt.MORE[name].get("model_type", name) for name in _prebuilt.MORE if name not in without}
    always = {config.get("model_type", name) for name, config in _prebuilt.CONFIGS.items()} | {"mixtral", "gpt_oss"}
    assert named == always | of_choices
    assert {"q8_0", "q4_k", "q6_k"} <= layouts and not layouts & without - {"i8_channel", "mxfp4", "ggml_mxfp4"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """What bytelm needs, as the package has it."""
    made = tmp_path_factory.mktemp("prebuilt")
    for target in OWN:
        prebuilt.write(made / f"{target}.zip", image.prebuild(needed(BYTELM), target))
    return made


def test_they_are_taken_as_they_are(folder, monkeypatch):
    monkeypatch.setenv("ACCRT_PREBUILT_KERNELS", str(folder))
    kernels = needed(BYTELM)
    monkeypatch.setattr(image, "find_compiler", lambda target: pytest.fail("a compiler was looked for"))
    images = image.build_images(kernels, OWN[0])
    assert sorted(kernel.name for one in images for kernel in one.kernels) == sorted(kernel.name for kernel in kernels)
    with zipfile.ZipFile(folder / f"{OWN[0]}.zip") as archive:
        assert {one.data for one in images} == {archive.read(name) for name in archive.namelist()}


def test_one_that_has_changed_is_compiled(folder, monkeypatch):
    monkeypatch.setenv("ACCRT_PREBUILT_KERNELS", str(folder))
    kernels = needed(BYTELM)
    changed = [kernel if kernel.name != "sample" else _with(kernel, "CHANGED") for kernel in kernels]
    images = image.build_images(changed, OWN[0])
    assert [[kernel.name for kernel in one.kernels] for one in images][-1] == ["sample"]
    assert len(images) == len(image.build_images(kernels, OWN[0]))


def _with(kernel, name):
    return dataclasses.replace(kernel, producer=dataclasses.replace(kernel.producer, defines=(*kernel.producer.defines, (name, "1"))))


@pytest.mark.parametrize("form", ["cut", "text", "flipped"])
def test_an_archive_that_is_broken_is_none(folder, tmp_path, monkeypatch, form):
    content = bytearray((folder / f"{OWN[0]}.zip").read_bytes())
    with zipfile.ZipFile(folder / f"{OWN[0]}.zip") as archive:
        for info in archive.infolist():
            content[info.header_offset + 30 + len(info.filename) + info.compress_size // 2] ^= 1
    (tmp_path / f"{OWN[0]}.zip").write_bytes({"cut": content[:1000], "text": b"no archive", "flipped": content}[form])
    monkeypatch.setenv("ACCRT_PREBUILT_KERNELS", str(tmp_path))
    assert (prebuilt.available_targets(OWN[:1]) == []) == (form != "flipped")
    assert len(image.build_images(needed(BYTELM), OWN[0])) == 1, "one that was compiled"


def test_the_same_members_give_the_same_archive(tmp_path):
    prebuilt.write(tmp_path / "a.zip", {"b": b"2", "a": b"1"})
    prebuilt.write(tmp_path / "b.zip", {"a": b"1", "b": b"2"})
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()


def bare(tmp_path, kernels):
    """An environment without compilers, and with nothing in the cache."""
    return {**os.environ, "PATH": "/nonexistent", "XDG_CACHE_HOME": str(tmp_path / "cache"), "ACCRT_PREBUILT_KERNELS": str(kernels)}


GENERATE = ("import sys, json, accrt\nwith accrt.LLM(sys.argv[1], kv_bytes=1 << 22) as llm:\n"
            "    print(json.dumps(llm.generate('Once upon', max_tokens=8, temperature=0).token_ids))")  # fmt: skip


def test_a_model_is_served_without_a_compiler(folder, tmp_path):
    done = subprocess.run([sys.executable, "-c", GENERATE, BYTELM], env=bare(tmp_path, folder), capture_output=True, text=True)
    assert done.returncode == 0 and len(json.loads(done.stdout)) == 8, done.stderr
    compiled = subprocess.run([sys.executable, "-c", GENERATE, BYTELM], capture_output=True, text=True,
                              env={**os.environ, "XDG_CACHE_HOME": kh.other_cache(tmp_path / "other"), "ACCRT_PREBUILT_KERNELS": ""})  # fmt: skip
    assert done.stdout == compiled.stdout


def last_line(tmp_path, kernels):
    """What accrt-serve says."""
    done = subprocess.run([sys.executable, "-m", "accrt.serve", BYTELM, "--port", "0"], env=bare(tmp_path, kernels), capture_output=True, text=True)
    lines = done.stderr.splitlines()
    assert done.returncode == 1 and lines[-1].startswith("accrt-serve: ") and "Traceback" not in done.stderr, done.stderr
    return lines[-1]


def test_what_is_missing_is_said(folder, tmp_path):
    with_compiler = "and there is no C compiler for"
    assert f"no kernels for {driver.own_target()} came with accrt, {with_compiler}" in last_line(tmp_path, tmp_path / "none")
    few = tmp_path / "few"
    for target in OWN:
        with zipfile.ZipFile(folder / f"{target}.zip") as archive:
            prebuilt.write(few / f"{target}.zip", {name: archive.read(name) for name in archive.namelist()[1:]})
    said = last_line(tmp_path, few)
    assert re.search(f"kernel [a-z0-9_]+ is not among those that came with accrt, {with_compiler}", said) and "install gcc" in said, said
    broken = tmp_path / "broken"
    broken.mkdir()
    for target in OWN:
        (broken / f"{target}.zip").write_bytes(b"no archive")
    assert f"cannot be read ({broken / driver.own_target()}.zip: File is not a zip file), {with_compiler}" in last_line(tmp_path, broken)
