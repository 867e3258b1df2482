"""What people give in place of a model is refused in one line that says what to do."""

from __future__ import annotations

import json
import os
import re
import shutil

import numpy as np
import pytest

import rotation
import tiny_models as tiny
import accrt
from accrt import models
from accrt.models import Refused, _gguf, _registry

LLAMA = tiny.CONFIGS["llama"]
INDEX = "model.safetensors.index.json"


@pytest.fixture(scope="module")
def weights():
    return tiny.tensors(LLAMA, rotation.seed() % 1000)


def said(path):
    """The one line, by either way of opening."""
    lines = []
    for way in (lambda: _registry.decoder(models.read(path)), lambda: models.open(path, targets=())):
        with pytest.raises((Refused, accrt.Error)) as caught:
            way()
        lines.append(str(caught.value))
    assert lines[0] == lines[1] and "\n" not in lines[0]
    return lines[0]


@pytest.mark.parametrize("lost", [1, 2])
def test_parts_that_are_missing(tmp_path, weights, lost):
    folder = tiny.write_folder(tmp_path / "m", LLAMA, weights, shards=3)
    gone = sorted(folder.glob("model-*.safetensors"))[3 - lost :]
    for part in gone:
        part.unlink()
    assert said(folder) == f"{gone[0]}: there is no such file. {INDEX} names it; of its 3 files {lost} {'is' if lost == 1 else 'are'} missing. Download the model again"
    with pytest.raises(FileNotFoundError) as caught:
        models.read(folder)
    assert caught.value.filename == str(gone[0])


@pytest.mark.parametrize("text", ['{"weight_map":', "{}", '{"weight_map": {"a": "../a.safetensors"}}', '{"weight_map": {"a": "model-00001-of-00002.safetensors"}}'])
def test_an_index_that_is_broken(tmp_path, weights, text):
    folder = tiny.write_folder(tmp_path / "m", LLAMA, weights, shards=2)
    (folder / INDEX).write_text(text)
    assert said(folder).endswith(f": this is what {INDEX} says. Download it again, and the files that it names")


def test_an_adapter_beside_a_configuration(tmp_path, weights):
    """As trainers save it, with the configuration of its model."""
    folder = tiny.write_folder(tmp_path / "m", LLAMA, weights)
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "base_model_name_or_path": "org/base"}))
    _registry.decoder(models.read(folder)).build()  # a model with an adapter beside it
    (folder / "model.safetensors").rename(folder / "adapter_model.safetensors")
    assert "it is an adapter and no model: give the folder of the model that it is for (org/base)" in said(folder)


@pytest.mark.parametrize("files, says", [
    (["model.gguf"], "there is model.gguf and no model.safetensors: give the file, "), (["pytorch_model.bin"], "weights are read from safetensors files, not from pytorch_model.bin"),
    (["model.onnx"], "not from model.onnx"), (["model.safetensors.incomplete"], "the download of model.safetensors.incomplete was broken off: download it again"),
    ([], "there are no weights: no model.safetensors, and no index of its parts"),
])  # fmt: skip
def test_a_folder_without_weights(tmp_path, files, says):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    for name in files:
        (tmp_path / name).write_bytes(b"PK")
    assert says in said(tmp_path)


@pytest.mark.parametrize("files, says", [
    (["model_index.json"], ": model_index.json says that it makes images, which is not done here"), (["params.json", "consolidated.safetensors"], ": params.json is another form than Hugging Face's"),
    (["llama/config.json"], "/llama has one, give that folder"), (["snapshots/a1/config.json", "refs/main"], "/snapshots/a1 has one, give that folder"),
    (["a/config.json", "b/config.json"], ": 2 folders in it have one, give one of them ("), (["notes.txt"], "there is no config.json"),
])  # fmt: skip
def test_a_folder_without_a_configuration(tmp_path, files, says):
    for name in files:
        os.makedirs(os.path.dirname(tmp_path / name), exist_ok=True)
        (tmp_path / name).write_text("{}")
    if "consolidated.safetensors" in files:
        tiny.write_safetensors(tmp_path / "consolidated.safetensors", {"a": ("F32", np.zeros(2, np.float32))})
    line = said(tmp_path)
    assert "there is no config.json" in line and line.endswith(says) or says in line


@pytest.mark.parametrize("name, content, says", [
    ("a.gguf", b"", ": it is empty. Download it again"), ("a.gguf", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", ": it is a pointer of git-lfs and no weights: git lfs pull fetches them"),
    ("a.gguf", b"<!DOCTYPE html><html>", ": it is a web page. Download the file itself: hf download fetches it"), ("a.bin", b"PK\x03\x04abcd", ": weights are read from safetensors and GGUF files."),
    ("a.onnx", b"\x08\x07abcd", ": weights are read from safetensors and GGUF files."),
])  # fmt: skip
def test_a_file_that_is_no_model(tmp_path, name, content, says):
    (tmp_path / name).write_bytes(content)
    assert says in said(tmp_path / name)


def gguf(path, weights, architecture="llama", **more):
    metadata = {key.replace("llama.", f"{architecture}.", 1): value for key, value in tiny.gguf_metadata(LLAMA).items()}
    tiny.write_gguf(path, {**metadata, "general.architecture": architecture, **more}, tiny.gguf_tensors(LLAMA, weights))
    return path


def test_a_gguf_file_that_is_cut(tmp_path, weights):
    path = gguf(tmp_path / "m.gguf", weights)
    path.write_bytes(path.read_bytes()[:-100])
    assert said(path).endswith(": it is cut short. Download it again")


@pytest.mark.parametrize("architecture", [name for names, _what in _gguf._UNSERVED for name in names])
def test_a_gguf_file_of_what_is_not_served(tmp_path, weights, architecture):
    line = said(gguf(tmp_path / "m.gguf", weights, architecture))
    assert f"general.architecture is {architecture!r}: " in line and "there are" not in line
    assert architecture not in {name for family in _registry.families() for name in family.architectures}


def test_a_gguf_file_of_an_unknown_kind(tmp_path, weights):
    line = said(gguf(tmp_path / "m.gguf", weights, "lama"))
    assert "general.architecture is 'lama' (is it 'llama'?); there are " in line and " with " not in line


@pytest.mark.parametrize("kind, says", [("adapter", "it is an adapter and no model"), ("mmproj", "it is the part of a model that sees or hears: give the file of the part that reads text, which lies beside it")])
def test_a_gguf_file_beside_a_model(tmp_path, weights, kind, says):
    assert f"general.type is {kind!r}: {says}" in said(gguf(tmp_path / "m.gguf", weights, **{"general.type": kind}))


@pytest.mark.parametrize("method", ["bitsandbytes", "eetq", "hqq", "quanto", "fbgemm_fp8", "aqlm", "torchao"])
def test_weights_in_a_form_that_is_not_read(tmp_path, weights, method):
    folder = tiny.write_folder(tmp_path / "m", {**LLAMA, "quantization_config": {"quant_method": method}}, weights)
    assert re.search(f"quant_method is '{method}'; there are .*: take the model's folder with plain weights, or one of these, or a GGUF file$", said(folder))


@pytest.mark.parametrize("kind, says", [
    ("Llama", "(is it 'llama'?)"), ("LlamaForCausalLM", "(is it 'llama'?)"), ("mixtrall", "(is it 'mixtral'?)"), ("vit", "it reads images and writes no text"), ("wav2vec2", "it is of sound"),
])  # fmt: skip
def test_names_that_are_near(tmp_path, weights, kind, says):
    assert f"model_type is {kind!r}" in (line := said(tiny.write_folder(tmp_path / "m", {**LLAMA, "model_type": kind}, weights))) and says in line


def test_a_folder_of_two_files(tmp_path, weights):
    path = gguf(tmp_path / "a.gguf", weights)
    shutil.copy(path, tmp_path / "b.gguf")
    assert said(tmp_path).endswith("more than one file of weights: name one of a.gguf, b.gguf")
