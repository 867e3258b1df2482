"""What accrt.models reads: configurations, folders, GGUF files, tokenizers. What it refuses is said
by name, all at once."""

from __future__ import annotations

import json
import re
import math
import pathlib
import random
import subprocess
import sys
import threading

import numpy as np
import pytest

import kernel_harness as kh
import tiny_models as tiny

import accrt
from accrt import models
from accrt.models import Options, Refused, _gguf, _registry, _rope, _tokens
from accrt.models._config import Config

pytestmark = pytest.mark.quick_kernels  # in a run of the whole folder

LLAMA = tiny.CONFIGS["llama"]


@pytest.fixture(scope="module")
def weights():
    return tiny.tensors(LLAMA, kh.SEED)


def points(folder, **options):
    with pytest.raises(Refused) as caught:
        models._registry.decoder(models.read(folder), Options(**options)).build()
    return caught.value.points


def changed(config, **changes):
    return {**config, **changes}


# ---- Families ------------------------------------------------------------------------------------


def test_families_are_found_by_their_files():
    found = {type_ for family in models.families() for type_ in family.types}
    assert {"llama", "mistral", "qwen2", "qwen3", "gemma2", "phi3", "gpt2", "bytelm"} <= found
    assert _registry.by_architecture("qwen2").types == ("qwen2",)


def test_a_family_is_added_by_a_file_alone(tmp_path, monkeypatch, weights):
    (tmp_path / "twice.py").write_text(
        "from accrt.models._blocks import Decoder\n"
        "class Twice(Decoder):\n"
        "    types = ('twice',)\n"
        "    def embed(self, ids):\n"
        "        return super().embed(ids) * 2.0\n")  # fmt: skip
    monkeypatch.setattr(models, "__path__", [*models.__path__, str(tmp_path)])
    folder = tiny.write_folder(tmp_path / "model", changed(LLAMA, model_type="twice"), weights)
    try:
        assert type(_registry.decoder(models.read(folder))).__name__ == "Twice"
    finally:
        sys.modules.pop("accrt.models.twice", None)


# ---- What is refused -----------------------------------------------------------------------------


def test_all_points_come_at_once(tmp_path, weights):
    config = changed(LLAMA, hidden_act="swishy", rope_scaling={"rope_type": "wavy", "factor": 2.0}, num_attention_heads=0, clip_qkv=8.0)
    found = points(tiny.write_folder(tmp_path, config, weights))
    assert [sum(word in point for point in found) for word in ("hidden_act", "rope_type is 'wavy'", "num_attention_heads", "clip_qkv is 8.0")] == [1, 1, 1, 1]


@pytest.mark.parametrize("name, value", [("num_local_experts", 8), ("attn_logit_softcapping", 30.0), ("sliding_window", 128), ("layer_types", ["linear_attention"]),
                                         ("kv_lora_rank", 64), ("is_encoder_decoder", True), ("embedding_multiplier", 12.0)])  # fmt: skip
def test_what_changes_results_and_is_not_done(tmp_path, weights, name, value):
    (point,) = points(tiny.write_folder(tmp_path, changed(LLAMA, **{name: value}), weights))
    assert point == f"config: {name} is {value!r}, which this family does not do"


@pytest.mark.parametrize("older, points_of", [({"type": "linear", "factor": 4.0}, ["rope_type is 'linear' in rope_scaling and 'default' in rope_parameters"]),
                                              ({"rope_type": "default", "rope_theta": 1e4}, []), ({"factor": 4.0}, [])])  # fmt: skip
def test_two_forms_of_rotary_settings_must_agree(tmp_path, weights, older, points_of):
    """A scaling that was added to a configuration of transformers 5 had no effect."""
    config = changed(LLAMA, rope_scaling=older, rope_parameters={"rope_type": "default", "rope_theta": 1e4})
    folder = tiny.write_folder(tmp_path, config, weights)
    if not points_of:
        assert _registry.decoder(models.read(folder))
        return
    (point,) = points(folder)
    assert point == f"config: {points_of[0]}: leave one of the two out"


def test_neutral_values_are_taken(tmp_path, weights):
    config = changed(LLAMA, num_local_experts=0, sliding_window=None, partial_rotary_factor=1.0, mlp_bias=False, rope_scaling=None, clip_qkv=None)
    assert _registry.decoder(models.read(tiny.write_folder(tmp_path, config, weights)))


def test_tensors_that_are_missing_differ_or_are_too_many(tmp_path, weights):
    broken = dict(weights)
    del broken["model.layers.1.mlp.up_proj.weight"]
    broken["model.norm.weight"] = np.ones(7, np.float32)
    broken["model.layers.0.self_attn.sinks"] = np.ones(6, np.float32)
    assert sorted(points(tiny.write_folder(tmp_path, LLAMA, broken))) == [
        "tensor model.layers.0.self_attn.sinks: this family has no use for it", "tensor model.layers.1.mlp.up_proj.weight: it is missing",
        "tensor model.norm.weight: its shape is [7], expected [48]"]  # fmt: skip


def test_a_head_that_is_neither_there_nor_tied(tmp_path, weights):
    without = {name: array for name, array in weights.items() if name != "lm_head.weight"}
    assert points(tiny.write_folder(tmp_path, LLAMA, without)) == ("tensor lm_head.weight: it is missing, and tie_word_embeddings is false",)


def test_folders_that_are_no_models(tmp_path, weights):
    with pytest.raises(accrt.NotFoundError):
        models.read(tmp_path / "nothing")
    with pytest.raises(Refused, match="no config.json"):
        models.read(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    with pytest.raises(Refused, match="no model.safetensors"):
        models.read(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"PK")
    with pytest.raises(Refused, match="not from pytorch_model.bin"):
        models.read(tmp_path)
    (tmp_path / "model-00001-of-00002.safetensors").touch()
    with pytest.raises(Refused, match="there is model-00001-of-00002.safetensors, and neither model.safetensors nor model.safetensors.index.json"):
        models.read(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(Refused, match="not JSON"):
        models.read(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(Refused, match=r"it is \[\], expected an object"):
        models.read(tmp_path)
    with pytest.raises(Refused, match=r"model_type is 'quince', none of the \d{3} types that are served: docs/models.md lists them"):
        _registry.decoder(models.read(tiny.write_folder(tmp_path / "quince", changed(LLAMA, model_type="quince"), weights)))


def test_what_newcomers_name(tmp_path, weights, monkeypatch):
    """A name on the hub, a file of the folder, a typo, nothing, a clone without git-lfs, a
    tokenizer of SentencePiece's."""
    monkeypatch.chdir(tmp_path)
    folder = tiny.write_folder(tmp_path / "qwen", LLAMA, weights)
    for given, message in (("Qwen/Qwen2.5-0.5B", "no such folder or file. Models are read from this machine: hf download Qwen/Qwen2.5-0.5B --local-dir Qwen2.5-0.5B"),
                           ("qwem", "qwem: there is no such folder or file; is it qwen?"), ("", "the model's path is empty")):  # fmt: skip
        with pytest.raises(accrt.NotFoundError, match=re.escape(message)) as said:
            models.read(given)
        assert not given or isinstance(said.value, FileNotFoundError) and said.value.filename == str(tmp_path / given)
    with pytest.raises(Refused, match=re.escape(f"config.json: it is no model: give the folder that it lies in, {folder}")):
        models.read(folder / "config.json")
    (folder / "tokenizer.json").unlink()
    with pytest.raises(Refused, match="there is no tokenizer.json: AutoTokenizer"):
        models.open(folder, targets=TARGETS, output=tmp_path / "out.accx")
    (folder / "tiktoken.model").write_text("YQ== 0\n")
    with pytest.raises(Refused, match="there is no tokenizer.json, and tiktoken.model is not read: TikTokenConverter of transformers makes one, with the pattern and the special tokens"):
        models.open(folder, targets=TARGETS, output=tmp_path / "out.accx")
    (folder / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 12345\n")
    with pytest.raises(Refused, match="model.safetensors is a pointer of git-lfs and no weights"):
        models.read(folder)


def test_mistakes_with_folders_are_said_in_one_line(tmp_path, weights):
    """What people do with folders, and what they are to do then."""
    def said(path):
        with pytest.raises(Refused) as caught:
            _registry.decoder(models.read(path)).build()
        assert len(caught.value.points) == 1
        return caught.value.points[0]

    folder = tiny.write_folder(tmp_path / "cut", LLAMA, weights, shards=2)
    part = folder / "model-00002-of-00002.safetensors"
    whole = part.read_bytes()
    part.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(accrt.Error, match=re.escape(f"{part} has {len(whole) // 2} bytes and says that it has {len(whole)}: it is cut short. Download it again")):
        models.read(folder)
    folder = tiny.write_folder(tmp_path / "bare", LLAMA, weights)
    (folder / "config.json").unlink()
    assert said(folder) == "there is no config.json beside model.safetensors: the model's own folder has one"
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "base_model_name_or_path": "org/base"}))
    (folder / "model.safetensors").rename(folder / "adapter_model.safetensors")
    assert said(folder).startswith("it is an adapter and no model: give the folder of the model that it is for (org/base), and the adapter beside it (--adapter NAME=")
    assert "config: model_type is 'lama' (is it 'llama'?), none of the " in said(tiny.write_folder(tmp_path / "near", changed(LLAMA, model_type="lama"), weights))
    assert said(tiny.write_folder(tmp_path / "none", changed(LLAMA, model_type=None), weights)).startswith("config: there is no model_type")


def test_the_tokenizer_of_another_model_is_refused(tmp_path, weights):
    tokenizer = tiny.byte_tokenizer()
    tokenizer["model"]["vocab"].update({f"x{at}": at for at in range(400, 500)})
    folder = tiny.write_folder(tmp_path / "m", LLAMA, weights)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(Refused, match="tokenizer.json: it has tokens up to the id 499, and the model 320 tokens: it is another model's"):
        models.assets(_registry.decoder(models.read(folder)))


def test_a_vocabulary_beyond_the_embedding_takes_no_memory(tmp_path, weights):
    found = points(tiny.write_folder(tmp_path, changed(LLAMA, vocab_size=2_000_000_000), weights))
    assert any("vocab_size is 2000000000, and tensor model.embed_tokens.weight has" in point for point in found)


def test_a_part_that_is_missing_is_named(tmp_path, weights):
    folder = tiny.write_folder(tmp_path, LLAMA, weights)
    (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
    parts = {name: f"model-0000{1 + (i == 3)}-of-00002.safetensors" for i, name in enumerate(sorted(weights))}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": parts}))
    with pytest.raises(accrt.NotFoundError, match="model-00002-of-00002.safetensors"):
        models.read(folder)


def test_the_message_is_that_of_the_guide():
    assert str(Refused("/models/strange", ["a", "b"])) == "/models/strange is refused:\n  - a\n  - b"
    assert str(Refused("/models/strange", ["a"])) == "/models/strange: a"


def test_weights_that_are_broken_are_named_with_their_file(tmp_path, weights):
    """A folder has many files."""
    folder = tiny.write_folder(tmp_path, LLAMA, weights)
    file = folder / "model.safetensors"
    whole = file.read_bytes()
    for size in (0, 5, 8, 200, len(whole) - 100):
        file.write_bytes(whole[:size])
        with pytest.raises(accrt.Error, match=f"{re.escape(str(file))}\\b"):
            models.read(folder)
    file.unlink()
    file.mkdir()
    with pytest.raises(Refused, match="model.safetensors is a folder, expected a file"):
        models.read(folder)


def test_ends_that_are_no_tokens(tmp_path, weights):
    # such a model would never end
    for wrong in (1.5, "x", True, [258, "x"], [None, 2.0], {"a": 1}):
        item = next(one for one in (wrong if isinstance(wrong, list) else [wrong]) if one is not None and type(one) is not int)
        said = f"eos_token_id is {item!r}, expected a token id or a list of them"
        assert f"config: {said}" in points(tiny.write_folder(tmp_path, changed(LLAMA, eos_token_id=wrong), weights))
        folder = tiny.write_folder(tmp_path, LLAMA, weights)
        (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": wrong}))
        assert f"generation_config.json: {said}" in points(folder)
        (folder / "generation_config.json").unlink()
    assert points(tiny.write_folder(tmp_path, changed(LLAMA, eos_token_id=[258, 99999]), weights)) == ("config: eos_token_id is 99999, and vocab_size 320",)


def test_options_are_checked(tmp_path, weights):
    folder = tiny.write_folder(tmp_path, LLAMA, weights)
    found = points(folder, page_size=12, kv_type="f8", max_position=1000)
    assert [word in " ".join(found) for word in ("page_size is 12", "kv_type is 'f8'", "max_position is 1000")] == [True] * 3


def test_quantization_that_is_not_known(tmp_path, weights):
    config = changed(LLAMA, quantization_config={"quant_method": "bitsandbytes"})
    assert "quant_method is 'bitsandbytes'" in points(tiny.write_folder(tmp_path, config, weights))[0]


@pytest.mark.parametrize("given, name", [
    ({"format": "marlin-24"}, "marlin-24"), ({"format": "mxfp8-quantized"}, "mxfp8-quantized"),
    ({"format": "dense", "sparsity_config": {"format": "sparse-24-bitmask"}}, "sparse-24-bitmask"),
    ({"format": "mixed-precision", "config_groups": {"g": {"format": "sparse-bitmask", "weights": {"num_bits": 4}}}}, "sparse-bitmask"),
])  # fmt: skip
def test_formats_of_compressed_tensors_that_are_not_read(tmp_path, weights, given, name):
    """One line for each, whatever the number of weights."""
    config = changed(LLAMA, quantization_config={"quant_method": "compressed-tensors", **given})
    found = [point for point in points(tiny.write_folder(tmp_path, config, weights)) if "format" in point]
    assert len(found) == 1 and f"has the format '{name}'; there are pack-quantized, int-quantized" in found[0]


NAME = "model.layers.0.mlp.up_proj.weight"
N, K = LLAMA["intermediate_size"], LLAMA["hidden_size"]
_FP4 = {"_packed": ("U8", (N, K // 2)), "_scale": ("F8_E4M3", (N, K // 16)), "_global_scale": ("F32", (1,))}
_INT4 = {"_packed": ("I32", (N, K // 8)), "_scale": ("F32", (N, 3)), "_zero_point": ("I32", (N // 8, 3)), "_shape": ("I64", (2,))}
_INT8 = {"": ("I8", (N, K)), "_scale": ("F32", (N, 1)), "_zero_point": ("I8", (N, 1))}


@pytest.mark.parametrize("stored, changed_to, point", [
    (_FP4, {"_global_scale": None}, "_global_scale: it is missing: NVFP4 has one number, f32[1]"),
    (_FP4, {"_global_scale": ("F32", (2,))}, "_global_scale: f32[2]; NVFP4 has one number, f32[1]"),
    (_FP4, {"_scale": None}, "_packed: it is U8 and has no "),
    (_FP4, {"_scale": ("F8_E4M3", (N, 2))}, f"_scale: f8e4m3fn[{N}, 2]; beside u8[{N}, {K // 2}] NVFP4 has scales f8e4m3fn[{N}, {K // 16}]"),
    (_FP4, {"_packed": ("U8", (N * K // 2,))}, "_packed: u8["),
    (_FP4, {"_packed": ("I8", (N, K // 2))}, "codes are in words (i32), or two of four bits in a byte (u8)"),
    (_FP4, {"_packed": ("U8", (N, 0)), "_scale": ("F8_E4M3", (N, 0))}, "quantized weights are matrices"),
    (_INT4, {"_zero_point": ("I32", (N, 3))}, f"_zero_point: i32[{N}, 3]; zero points of 8 rows are in a word, i32[{N // 8}, 3]"),
    (_INT4, {"_zero_point": ("U8", (N // 8, 3))}, "_zero_point: u8["),
    (_INT4, {"_scale": ("F32", (N, 5))}, f"or for each group of a row of {K}"),
    (_INT4, {"_scale": ("F32", (3,))}, "_scale: f32[3]"),
    (_INT4, {"_scale": None}, "_packed: it is I32 and has no "),
    (_INT4, {"_packed": ("I32", (N, K // 10))}, "INT4 and INT8 in whole words are read"),
    (_INT4, {"_g_idx": ("I32", (K - 1,))}, "_g_idx: i32["),
    (_INT8, {"_zero_point": ("I8", (N, 2))}, f"_zero_point: i8[{N}, 2]; beside scales of [{N}, 1] there are zero points i8[{N}, 1]"),
    (_INT8, {"": ("I8", (N * K,))}, "quantized weights are matrices"),
    (_INT8, {"_scale": None}, "and has no "),
])  # fmt: skip
def test_quantized_weights_that_are_not_whole(tmp_path, weights, stored, changed_to, point):
    """One clear line, before anything is compiled."""
    given = {"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": {"symmetric": False}}}}
    parts = {end: part for end, part in {**stored, **changed_to}.items() if part is not None}
    kinds = {"U8": np.uint8, "I8": np.int8, "I32": np.int32, "F32": np.float32, "F8_E4M3": np.uint8, "I64": np.int64}
    files = {name: ("F32", array) for name, array in weights.items() if name != NAME}
    files.update({NAME + end: (kind, np.array([N, K]) if end == "_shape" else np.ones(shape, kinds[kind])) for end, (kind, shape) in parts.items()})
    folder = tiny.write_folder(tmp_path, changed(LLAMA, quantization_config=given), {})
    tiny.write_safetensors(folder / "model.safetensors", files)
    found = [line for line in points(folder) if point in line and "\n" not in line]
    assert len(found) == 1, points(folder)


@pytest.mark.parametrize("method, end, stored, point", [
    ("gptq", ".qweight", ("I32", (K // 8, N)), ".qweight: it is I32 and has no "), ("gptq", ".qweight", ("I32", (N,)), ".qweight: i32["),
    ("awq", ".qweight", ("I32", (K, N // 8)), ".qweight: it is I32 and has no "), ("fp8", ".weight", ("F8_E4M3", ()), ".weight: f8e4m3fn[]; quantized weights are matrices"),
    ("modelopt", ".weight", ("U8", (N, K // 2)), ".weight: it is U8 and has no "),
])  # fmt: skip
def test_quantized_weights_of_other_methods_that_are_not_whole(tmp_path, weights, method, end, stored, point):
    kinds = {"U8": np.uint8, "I32": np.int32, "F8_E4M3": np.uint8}
    files = {name: ("F32", array) for name, array in weights.items() if name != NAME}
    files[NAME.removesuffix(".weight") + end] = (stored[0], np.ones(stored[1], kinds[stored[0]]))
    folder = tiny.write_folder(tmp_path, changed(LLAMA, quantization_config={"quant_method": method}), {})
    tiny.write_safetensors(folder / "model.safetensors", files)
    assert len([line for line in points(folder) if point in line]) == 1, points(folder)


def test_keys_that_are_left_out_mean_what_they_mean_to_hugging_face(tmp_path):
    config = {key: value for key, value in tiny.CONFIGS["gemma2"].items()
              if key not in ("attn_logit_softcapping", "final_logit_softcapping", "sliding_window", "query_pre_attn_scalar")}  # fmt: skip
    weights = tiny.tensors(tiny.CONFIGS["gemma2"], kh.SEED)
    made = _registry.decoder(models.read(tiny.write_folder(tmp_path / "a", config, weights)))
    assert (made.soft_cap, made.final_cap, made.scale, made.window(0), made.window(1)) == (50.0, 30.0, 1 / 16, 4096, None)
    config.update(attn_logit_softcapping=None, final_logit_softcapping=None, sliding_window=None)
    made = _registry.decoder(models.read(tiny.write_folder(tmp_path / "b", config, weights)))
    assert (made.soft_cap, made.final_cap, made.window(0)) == (None, 0.0, None)


@pytest.mark.parametrize("scaling, expected", [(None, 256), ({"type": "linear", "factor": 2.0}, 512), (tiny._LLAMA3, 256), ({**tiny._YARN, "factor": 8.0}, 512)])
def test_how_long_a_sequence_may_be(tmp_path, weights, scaling, expected):
    made = _registry.decoder(models.read(tiny.write_folder(tmp_path, changed(LLAMA, rope_scaling=scaling), weights)))
    assert made.max_position == expected


# ---- Rotary frequencies --------------------------------------------------------------------------


@pytest.mark.parametrize("scaling", [{}, {"type": "linear", "factor": 4.0}, tiny._LLAMA3, tiny._YARN, {**tiny._YARN, "attention_factor": 1.5},
                                     tiny._LONG, {**tiny._LONG, "type": "su"}])  # fmt: skip
@pytest.mark.parametrize("longest", [0, 256])
def test_frequencies(scaling, longest):
    config = {"rope_theta": 10000.0, "max_position_embeddings": 256, "original_max_position_embeddings": 64, "rope_scaling": scaling}
    expected, scale = tiny._frequencies(config if scaling.get("type") != "su" else {**config, "rope_scaling": tiny._LONG}, 16, longest)
    asked = Config(config)
    found = _rope.make(asked, 16, longest)
    assert not asked.points
    np.testing.assert_allclose(found.frequencies, expected, rtol=1e-12)
    assert math.isclose(found.scale, scaling.get("attention_factor", scale), rel_tol=1e-12)


@pytest.mark.parametrize("turns, scaling, turned", [
    (True, {}, 8), (False, {}, 16), (None, {}, None), (True, tiny._YARN, 8), (False, tiny._YARN, None), (False, {**tiny._YARN, "partial_rotary_factor": 1.0}, 16),
])  # fmt: skip
def test_a_part_of_a_head_is_turned_where_a_family_does_so(turns, scaling, turned):
    """Transformers passes over the factor, or fails, where a family's code does not read it."""
    asked = Config({"partial_rotary_factor": 0.5, "max_position_embeddings": 256, "rope_scaling": scaling})
    found = _rope.make(asked, 16, 0, turns)
    if turned is None:
        (point,) = asked.points
        assert point == f"config: partial_rotary_factor is 0.5 with rope_type '{scaling.get('rope_type', scaling.get('type', 'default'))}', which this family does not do"
    else:
        assert not asked.points and found.frequencies.shape == (turned // 2,)


def test_scaling_that_lacks_something():
    asked = Config({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}})
    _rope.make(asked, 16, 0)
    assert "low_freq_factor" in asked.points[0] and len(asked.points) == 1


# ---- Tokens --------------------------------------------------------------------------------------


def test_bytes_of_byte_level_tokens():
    tokens, flags = _tokens.parse(_tokens.table(*_tokens.of_tokenizer(tiny.byte_tokenizer(), 264)))
    assert tokens[:256] == [bytes([byte]) for byte in range(256)] and tokens[256] == b"th"
    assert tokens[257:] == [b"<s>", b"</s>", b"<tool>", b"", b"", b"", b""] and flags[255:] == [0, 0, 1, 1, 0, 1, 1, 1, 1]


def pieces_metadata():
    """SentencePiece's vocabulary as GGUF files have it: control tokens, bytes, letters, and what
    they merge to."""
    texts = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581", "t", "h", "e", "n", "th", "the", "\u2581the", "\u2581t", "en", "\u2581then"]
    kinds = [2, 3, 3, *[6] * 256, *[1] * (len(texts) - 259)]
    scores = [0.0] * 259 + [-float(i) for i in range(len(texts) - 259)]
    return {"tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": texts, "tokenizer.ggml.scores": scores, "tokenizer.ggml.token_type": kinds,
            "tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2, "tokenizer.ggml.unknown_token_id": 0}  # fmt: skip


def test_bytes_of_pieces():
    files = _gguf.tokenizer_files(pieces_metadata(), [])
    tokens, flags = _tokens.of_tokenizer(json.loads(files["tokenizer.json"]), 270)
    assert tokens[3 + 0xE2] == b"\xe2" and tokens[259:261] == [b" ", b"t"] and tokens[266] == b" the"
    assert flags[:4] == [0, 1, 1, 0]


def test_a_unigram_vocabulary_and_word_pieces():
    tokenizer = {"model": {"type": "Unigram", "vocab": [["\u2581a", -1.0], ["<0x0A>", -2.0]]}, "decoder": {"type": "Metaspace"}, "added_tokens": []}
    assert _tokens.of_tokenizer(tokenizer, 2) == ([b" a", b"\n"], [0, 0])
    words = {"model": {"type": "WordPiece", "vocab": {"un": 0, "##able": 1}}, "decoder": {"type": "WordPiece", "prefix": "##"}, "added_tokens": []}
    assert _tokens.of_tokenizer(words, 2)[0] == [b" un", b"able"]
    with pytest.raises(ValueError, match="without a vocabulary"):
        _tokens.of_tokenizer({"model": {"type": "Strange"}}, 2)


def test_tokens_are_what_the_tokenizers_library_decodes():
    tokenizers = pytest.importorskip("tokenizers")
    for made in (json.dumps(tiny.byte_tokenizer()), _gguf.tokenizer_files(pieces_metadata(), [])["tokenizer.json"].decode()):
        tokenizer = tokenizers.Tokenizer.from_str(made)
        tokens, _flags = _tokens.of_tokenizer(json.loads(made), tokenizer.get_vocab_size())
        for text in ("then the hen", " a\u00e9\u6f22\U0001f389 th", "the\n\nthen"):
            ids = tokenizer.encode(text, add_special_tokens=False).ids
            assert b"".join(tokens[at] for at in ids).decode().strip(" ") == tokenizer.decode(ids).strip(" ") == text.strip(" ")


def test_a_tokenizer_of_gguf_merges_as_the_original_does():
    tokenizers = pytest.importorskip("tokenizers")
    original = tokenizers.Tokenizer.from_str(json.dumps(tiny.byte_tokenizer()))
    made = tokenizers.Tokenizer.from_str(_gguf.tokenizer_files(tiny.gguf_metadata(LLAMA), [])["tokenizer.json"].decode())
    rng = random.Random(kh.SEED)
    for _ in range(50):
        text = "".join(rng.choice(["the", " then", "<tool>", "\u00e9", "</s>", "\n", "123", "'s"]) for _ in range(10))
        assert made.encode(text).ids == original.encode(text).ids


#: What becomes of a text, by tokenizer.ggml.pre, as the original tokenizers cut it.
CUT = "Don't STOPWords 2024 x_y/\n  (a)  end"
CUTS = {
    "llama-bpe": ["Don", "'t", " STOPWords", " ", "202", "4", " x", "_y", "/\n", " ", " (", "a", ")", " ", " end"],
    "smaug-bpe": ["Don", "'t", " STOPWords", " ", "202", "4", " x", "_y", "/\n", " ", " (", "a", ")", " ", " end"],
    "qwen2": ["Don", "'t", " STOPWords", " ", "2", "0", "2", "4", " x", "_y", "/\n", " ", " (", "a", ")", " ", " end"],
    "qwen35": ["Don", "'t", " STOPWords", " ", "2", "0", "2", "4", " x", "_y", "/\n", " ", " (", "a", ")", " ", " end"],
    "tekken": ["Don", "'t", " STOPWords", " ", "2", "0", "2", "4", " x", "_y", "/\n", " ", " (", "a", ")", " ", " end"],
    "seed-coder": ["Don", "'t", " STOPWords", " ", "2", "0", "2", "4", " x", "_y", "/", "\n", " ", " (", "a", ")", " ", " end"],
    "gpt-4o": ["Don't", " STOPWords", " ", "202", "4", " x", "_y", "/\n", " ", " (", "a", ")", " ", " end"],
    "minimax-m2": ["Don't", " STOPWords", " ", "202", "4", " x", "_y", "/\n", " ", " (", "a", ")", " ", " end"],
    "kimi-k2": ["Don't", " STOPWords", " ", "202", "4", " x", "_y", "/\n", " ", " (", "a", ")", " ", " end"],
    "hunyuan": ["Don", "'t", " STOPWords", " ", "2", "0", "2", "4", " x", "_y", "/\n", " ", " (", "a", ")", " ", " end"],
    "deepseek-v3": ["Don", "'t", " STOPWords", " ", "202", "4", " x", "_y", "/\n", " ", " (", "a", ")", " ", " end"],
    "smollm": ["Don", "'t", " STOPWords", " ", "2", "0", "2", "4", " x", "_", "y", "/", "\n ", " (", "a", ")", " ", " end"],
    "gpt-2": ["Don", "'t", " STOPWords", " 2024", " x", "_", "y", "/", "\n ", " (", "a", ")", " ", " end"],
    "falcon": ["Don", "'", "t", " STOPWords", " ", "202", "4", " x", "_", "y", "/", "\n  ", "(", "a", ")", " ", " end"],
    "deepseek-coder": ["Don", "'", "t", " STOPWords", " ", "2", "0", "2", "4", " x", "_", "y", "/", "\n", " ", " (", "a", ")", " ", " end"],
    "deepseek-llm": ["Don", "'", "t", " STOPWords", " ", "2024", " x", "_", "y", "/", "\n", " ", " (", "a", ")", " ", " end"],
    "bloom": ["Don't", " STOPWords", " 2024", " x_y/", "\n  (", "a", ") ", " end"],
}


@pytest.mark.parametrize("pre", CUTS)
def test_gguf_tokenizers_cut_texts_as_the_originals(pre):
    tokenizers = pytest.importorskip("tokenizers")
    made = json.loads(_gguf.tokenizer_files(tiny.gguf_metadata(LLAMA, {"tokenizer.ggml.pre": pre}), [])["tokenizer.json"])
    cutter = tokenizers.Tokenizer.from_str(json.dumps(made)).pre_tokenizer
    assert [CUT[begin:end] for _, (begin, end) in cutter.pre_tokenize_str(CUT)] == CUTS[pre]
    assert made["model"]["ignore_merges"] == (pre in ("llama-bpe", "tekken", "kimi-k2"))


def test_han_signs_are_words_of_their_own_for_kimi_k2():
    """With what its own code says; GPT-4o has them in a word with letters."""
    tokenizers = pytest.importorskip("tokenizers")
    text = "Kimi\u4f60\u597dWorld'S \u4e16\u754c1234 \u3053\u4e16\u0301/\n"
    for pre, expected in (("kimi-k2", ["Kimi", "\u4f60\u597d", "World'S", " ", "\u4e16\u754c", "123", "4", " \u3053", "\u4e16", "\u0301", "/\n"]),
                          ("gpt-4o", ["Kimi\u4f60\u597d", "World'S", " \u4e16\u754c", "123", "4", " \u3053\u4e16\u0301", "/\n"])):  # fmt: skip
        made = _gguf.tokenizer_files(tiny.gguf_metadata(LLAMA, {"tokenizer.ggml.pre": pre}), [])["tokenizer.json"].decode()
        cutter = tokenizers.Tokenizer.from_str(made).pre_tokenizer
        assert [text[begin:end] for _, (begin, end) in cutter.pre_tokenize_str(text)] == expected, pre


def test_marks_are_parts_of_words_in_qwen_3_5():
    """The vowels of Devanagari are marks; Qwen 2 cuts before them."""
    tokenizers = pytest.importorskip("tokenizers")
    text = "\u0915\u0940\u0924\u0947"
    for pre, expected in (("qwen35", [text]), ("qwen2", ["\u0915", "\u0940\u0924", "\u0947"])):
        made = _gguf.tokenizer_files(tiny.gguf_metadata(LLAMA, {"tokenizer.ggml.pre": pre}), [])["tokenizer.json"].decode()
        cutter = tokenizers.Tokenizer.from_str(made)
        assert [text[begin:end] for _, (begin, end) in cutter.pre_tokenizer.pre_tokenize_str(text)] == expected
        assert cutter.normalizer.normalize_str("e\u0301") == "\u00e9"


def test_every_cut_of_gguf_is_a_pattern():
    tokenizers = pytest.importorskip("tokenizers")
    for pre in _gguf._CUTS:
        made = _gguf.tokenizer_files(tiny.gguf_metadata(LLAMA, {"tokenizer.ggml.pre": pre}), [])["tokenizer.json"].decode()
        pieces = tokenizers.Tokenizer.from_str(made).pre_tokenizer.pre_tokenize_str(CUT)
        # nothing is lost
        assert [end for _, (_, end) in pieces][:-1] == [begin for _, (begin, _) in pieces][1:], pre


def test_tokenizers_of_gguf_that_are_not_known():
    problems = []
    _gguf.tokenizer_files(tiny.gguf_metadata(LLAMA, {"tokenizer.ggml.pre": "strange"}), problems)
    _gguf.tokenizer_files(tiny.gguf_metadata(LLAMA, {"tokenizer.ggml.model": "t5"}), problems)
    _gguf.tokenizer_files({}, problems)
    assert [word in problem for word, problem in zip(("tokenizer.ggml.pre is 'strange'", "tokenizer.ggml.model is 't5'", "no tokenizer"), problems)] == [True] * 3


# ---- GGUF files ----------------------------------------------------------------------------------


def test_gguf_files_that_are_refused(tmp_path, weights):
    arrays = tiny.gguf_tensors(LLAMA, weights)
    path = tmp_path / "tiny.gguf"
    tiny.write_gguf(path, {**tiny.gguf_metadata(LLAMA), "general.architecture": "mamba"}, arrays)
    known = sorted({name for family in _registry.families() for name in family.architectures if " " not in name})
    assert {"gemma2", "llama", "qwen3"} < {*known}
    with pytest.raises(Refused, match=f"general.architecture is 'mamba' .is it 'mamba2'..; there are {', '.join(known)}"):
        models.read(path)
    name = "blk.0.ffn_gate.weight"
    arrays[name] = np.zeros((80, 256), np.float32)  # IQ2_XXS: 66 bytes a block
    tiny.write_gguf(path, {**tiny.gguf_metadata(LLAMA), "llama.rope.scaling.type": "strange"}, arrays, {name: (16, bytes(80 * 66))})
    found = points(path)
    assert "tensor blk.0.ffn_gate.weight: its type is IQ2_XXS, which no operation reads" in found
    assert any("rope.scaling.type is 'strange'" in point for point in found)


def test_what_a_gguf_file_says(tmp_path, weights):
    tiny.write_gguf(tmp_path / "tiny.gguf", {**tiny.gguf_metadata(LLAMA), "tokenizer.ggml.eot_token_id": 259}, tiny.gguf_tensors(LLAMA, weights))
    made = models.read(tmp_path / "tiny.gguf")
    assert made.name == "tiny" and made.config["eos_token_id"] == [258, 259] and made.files["chat_template.jinja"] == b"{{ messages }}"
    assert made.tensors["model.layers.0.self_attn.q_proj.weight"].source == "blk.0.attn_q.weight"
    # the one file of a folder, which the user named
    assert models.read(tmp_path).name == tmp_path.name


# ---- The bundle and the cache --------------------------------------------------------------------


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A cache of this test's own, but for kernels, which take long to compile."""
    monkeypatch.setenv("XDG_CACHE_HOME", kh.other_cache(tmp_path / "cache"))
    return tmp_path / "cache" / "accrt" / "models"


TARGETS = kh.host_targets()[-1:]


def test_a_bundle_has_all_that_serves_it(tmp_path, cache, weights):
    settings = {"chat_template": [{"name": "tool", "template": "t"}, {"name": "default", "template": "hello {{ messages }}"}]}
    folder = tiny.write_folder(tmp_path / "Tiny-1", LLAMA, weights, tokenizer_config__json=settings, generation_config__json={"eos_token_id": [259, 258]})
    opened = models.open(folder, targets=TARGETS)
    bundle = accrt.Bundle(opened.bundle)
    assert opened.weights == [str(folder)] and opened.tokenizer == str(folder) and not opened.info["cached"]
    assert sorted(bundle.function_names()) == ["copy_rows", "embed", "sample", "sample_greedy", "step", "update_pages"]
    assert sorted(bundle.assets) == ["chat_template.jinja", "generation_config.json", "serve.token_bytes", "tokenizer.json", "tokenizer_config.json"]
    assert bundle.assets["chat_template.jinja"].data == b"hello {{ messages }}"
    assert _tokens.parse(bundle.assets["serve.token_bytes"].data)[0][256] == b"th"
    expected = {"version": "1", "family": "llama", "name": "Tiny-1", "vocab_size": "320", "hidden_size": "48", "layers": "3", "page_size": "16",
                "max_position": "256", "kv_type": "f32", "kv_bytes_per_token": str(2 * 3 * 2 * 16 * 4), "bos": "257", "eos": "259,258"}  # fmt: skip
    found = {key[6:]: value for key, value in bundle.metadata.items() if key.startswith("serve.")}
    assert {key: found[key] for key in expected} == expected
    assert all(found[f"{name}_buckets"] for name in ("token", "row", "sample", "change", "edit"))
    assert all(constant.external or constant.prepared or constant.name.startswith("accrt.") for constant in bundle.constants)


def test_the_cache_knows_what_a_bundle_follows_from(tmp_path, cache, weights):
    folder = tiny.write_folder(tmp_path / "m", LLAMA, weights)
    first = models.open(folder, targets=TARGETS)
    said = []
    again = models.open(folder, targets=TARGETS, progress=lambda what, seconds: said.append(what))
    assert again.bundle == first.bundle and again.info["cached"] and said[-1] == "found it in the cache"
    other = {name: array + 1 for name, array in weights.items()}  # other numbers, the same bundle
    assert models.open(tiny.write_folder(folder, LLAMA, other), targets=TARGETS).bundle == first.bundle
    (folder / "tokenizer_config.json").write_text('{"chat_template": "x"}')
    assert models.open(folder, targets=TARGETS).bundle != first.bundle
    assert models.open(folder, targets=TARGETS, options=Options(page_size=32)).bundle != first.bundle
    assert len(list(cache.iterdir())) == 3 and not [path for path in cache.rglob("*.part")]


@pytest.mark.parametrize("form", ["folder", "gguf", "folder of a gguf"])
def test_what_is_in_the_cache_needs_no_compiler(tmp_path, cache, weights, form):
    """Nor its modules, nor numpy: they take longer to import than all that a later start of a
    server does."""
    folder = tmp_path / "tiny"
    if form == "folder":
        tiny.write_folder(folder, LLAMA, weights)
    else:
        folder.mkdir()
        tiny.write_gguf(folder / "tiny.gguf", tiny.gguf_metadata(LLAMA), tiny.gguf_tensors(LLAMA, weights))
        folder = folder / "tiny.gguf" if form == "gguf" else folder
    code = f"""import json, sys, accrt; from accrt.serve import loading
loading.load({str(folder)!r}, device="host", kv_bytes=1 << 22)
info = accrt.models.open({str(folder)!r}, targets=["host"]).info
print(json.dumps([sorted(set(sys.modules) & {{"numpy", "accrt.compiler"}}), info["serve.family"], info["cached"]]))"""
    said = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout for _ in range(2)]
    assert [json.loads(one) for one in said] == [[["accrt.compiler", "numpy"], "llama", True], [[], "llama", True]]


def test_an_option_that_is_not_there_is_said_in_one_line(capsys):
    from accrt.serve.command import main

    for given, said in ((["--max-runing", "3"], "unrecognized arguments: --max-runing 3; is it --max-running?"),
                        (["--port", "99999"], "argument --port: '99999' is not a port: a number from 0 to 65535; --help lists all options")):  # fmt: skip
        with pytest.raises(SystemExit) as ended:
            main(["simulated:", *given])
        assert ended.value.code == 2 and capsys.readouterr().err == f"accrt-serve: {said}\n"
    from accrt.models.__main__ import main as make

    with pytest.raises(SystemExit) as ended:
        make(["folder", "--max-positon", "64"])
    assert ended.value.code == 2 and capsys.readouterr().err == "python -m accrt.models: unrecognized arguments: --max-positon 64; is it --max-position?\n"


@pytest.mark.parametrize("said, number", [
    ("0", 0), ("4294967296", 1 << 32), ("4096M", 1 << 32), ("4G", 1 << 32), ("4GiB", 1 << 32), ("3K", 3072), ("2T", 1 << 41), (str((1 << 64) - 1), (1 << 64) - 1),
    *((wrong, None) for wrong in ("", "G", "4GB", "4 G", "-4G", "1.5G", "4g", "16777216T", str(1 << 64), "lots", "٤G")),
])  # fmt: skip
def test_numbers_of_bytes_may_have_units(capsys, said, number):
    from accrt.serve.command import _parser

    if number is not None:
        assert _parser().parse_args(["simulated:", f"--kv-bytes={said}"]).kv_bytes == number
        return
    with pytest.raises(SystemExit):
        _parser().parse_args(["simulated:", f"--kv-bytes={said}"])
    assert f"--kv-bytes: {said!r} is not a number of bytes, such as 4294967296, 4096M or 4G" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["numpy", "xxhash"])
def test_a_package_that_is_missing_is_named(tmp_path, cache, weights, name):
    folder = tiny.write_folder(tmp_path / "tiny", LLAMA, weights)
    code = f"import sys; sys.modules[{name!r}] = None; from accrt.serve.command import main; sys.exit(main([{str(folder)!r}, '--port', '0', '--device', 'host']))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    said = f"accrt-serve: a model's first start needs the package `{name}`: pip install 'accrt[serve]'"
    assert done.returncode == 1 and done.stderr.splitlines()[-1] == said


def test_two_who_come_at_once_make_it_once(tmp_path, cache, weights):
    folder = tiny.write_folder(tmp_path / "m", LLAMA, weights)
    code = f"from accrt import models; print(models.open({str(folder)!r}, targets={TARGETS!r}).info['cached'])"
    runs = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(3)]
    assert sorted(run.communicate()[0].strip() for run in runs) == ["False", "True", "True"]
    made = []
    threads = [threading.Thread(target=lambda: made.append(models.open(folder, targets=TARGETS).info["cached"])) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made == [True] * 3


def test_who_waits_for_another_process_says_so(tmp_path, cache, weights):
    """It said nothing for as long as the other one compiled."""
    import fcntl

    class Said:
        def __init__(self):
            self.parts, self.waits = [], threading.Event()

        def __call__(self, what, seconds):
            self.parts.append(what)

        def begins(self, what):
            self.parts.append(what)
            self.waits.set()

    folder, said, made = tiny.write_folder(tmp_path / "m", LLAMA, weights), Said(), []
    bundle = pathlib.Path(models.open(folder, targets=TARGETS).bundle)
    content = bundle.read_bytes()
    bundle.unlink()
    with open(bundle.parent / "lock", "r+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        waiting = threading.Thread(target=lambda: made.append(models.open(folder, targets=TARGETS, progress=said).info["cached"]))
        waiting.start()
        found = said.waits.wait(60)
        bundle.write_bytes(content)
        bundle.chmod(0o600)
    waiting.join()
    assert found and made == [True] and said.parts[1:] == ["waiting for another process that makes this bundle", "found it in the cache"]


def test_a_tokenizer_of_a_gguf_file_lies_beside_its_bundle(tmp_path, cache, weights):
    tiny.write_gguf(tmp_path / "tiny.gguf", tiny.gguf_metadata(LLAMA), tiny.gguf_tensors(LLAMA, weights))
    opened = models.open(tmp_path / "tiny.gguf", targets=TARGETS)
    with open(f"{opened.tokenizer}/tokenizer.json", encoding="utf-8") as file:
        assert json.load(file)["model"]["vocab"]["th"] == 256
    assert accrt.Bundle(opened.bundle).program(weights=opened.sources())


def test_a_folder_without_a_tokenizer_is_refused(tmp_path, cache, weights):
    with pytest.raises(Refused, match="no tokenizer.json"):
        models.open(tiny.write_folder(tmp_path / "m", LLAMA, weights, tokenizer=False), targets=TARGETS)


def test_the_command(tmp_path, cache, weights):
    folder = tiny.write_folder(tmp_path / "m", LLAMA, weights)
    command = [sys.executable, "-m", "accrt.models", str(folder), "-o", str(tmp_path / "m.accx"), "--target", TARGETS[0]]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(tmp_path / "m.accx") and "built 3 layers of llama" in done.stderr
    assert accrt.Bundle(tmp_path / "m.accx").metadata["serve.family"] == "llama"
    (folder / "config.json").write_text(json.dumps(changed(LLAMA, clip_qkv=8.0, num_local_experts=2)))
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1 and done.stderr.count("\n  - config: ") == 2 and "Traceback" not in done.stderr


@pytest.mark.parametrize("wrong, said", {
    "--target hots": "no target 'hots'; did you mean 'host'", "--kv-type f31": "kv_type is 'f31'", "--page-size 3": "page_size is 3",
    "--max-position -3": "max_position is -3", "--adapters -1": "-1 adapters", "-o none/m.accx": "none/m.accx: no such file",
}.items())  # fmt: skip
def test_the_command_with_a_mistake(tmp_path, cache, weights, wrong, said):
    """A mistake is a message and no traceback, and it names the model once."""
    folder = tiny.write_folder(tmp_path / "m", LLAMA, weights)
    output = [] if wrong.startswith("-o") else ["-o", "m.accx"]
    done = subprocess.run([sys.executable, "-m", "accrt.models", str(folder), "--target", TARGETS[0], *output, *wrong.split()],
                          cwd=tmp_path, capture_output=True, text=True)  # fmt: skip
    assert done.returncode == 1 and said in done.stderr and "Traceback" not in done.stderr, done.stderr
    assert done.stderr.splitlines()[-1].count(str(folder)) <= 1
    nothing = subprocess.run([sys.executable, "-m", "accrt.models", "gone"], cwd=tmp_path, capture_output=True, text=True)
    assert nothing.returncode == 1 and nothing.stderr.splitlines()[-1].count("gone") == 1


# ---- Strange values ------------------------------------------------------------------------------

JUNK = (None, True, False, 0, -1, 1, 3, 1 << 40, 1 << 70, 0.0, -2.5, 1e308, "", "x", "4096", [], [1], ["sliding_attention"], {}, {"a": 1}, [None], {"rope_type": []},
        {"rope_type": "yarn"}, {"rope_type": "llama3", "factor": 0, "low_freq_factor": 0, "high_freq_factor": 0, "original_max_position_embeddings": 0},
        {"rope_type": "yarn", "factor": -1.0, "original_max_position_embeddings": -64}, {"rope_type": "linear", "factor": 0.0}, float("nan"), float("inf"))  # fmt: skip


@pytest.mark.rotating(4)
@pytest.mark.parametrize("name", ["llama", "qwen2-windows", "gemma2", "phi3-long", "granite", "smollm3-windows", "gpt2"])
def test_junk_in_a_configuration_is_refused_or_taken(tmp_path, name):
    config, weights, rng = tiny.CONFIGS[name], tiny.tensors(tiny.CONFIGS[name], kh.SEED), random.Random(kh.SEED)
    folder = tiny.write_folder(tmp_path, config, weights)
    keys = sorted({*config, "rope_scaling", "rope_parameters", "torch_dtype", "tie_word_embeddings", "sliding_window", "quantization_config", "layer_types", "partial_rotary_factor"})
    for key in keys:
        for value in JUNK:
            (folder / "config.json").write_text(json.dumps({**config, key: value, **({rng.choice(keys): rng.choice(JUNK)} if rng.random() < 0.3 else {})}))
            try:
                made = models.read(folder)
                _registry.decoder(made).build()
            except Refused as refused:
                assert refused.points and all(point for point in refused.points)


def test_junk_in_a_gguf_file_is_refused_or_taken(tmp_path, weights):
    arrays, metadata, rng = tiny.gguf_tensors(LLAMA, weights), tiny.gguf_metadata(LLAMA), random.Random(kh.SEED)
    values = [True, 0, 1, (1 << 32) - 1, 0.0, -2.5, "", "x", [1], ["a"], [0.5]]
    for key in [*metadata, "llama.rope.scaling.type", "llama.rope.scaling.factor", "tokenizer.ggml.scores", "tokenizer.ggml.unknown_token_id", "tokenizer.ggml.add_bos_token"]:
        for value in values:
            changed_too = {"tokenizer.ggml.model": "llama"} if rng.random() < 0.3 and key != "tokenizer.ggml.model" else {}
            tiny.write_gguf(tmp_path / "m.gguf", {**metadata, **changed_too, key: value}, arrays)
            try:
                made = _registry.decoder(models.read(tmp_path / "m.gguf"))
                made.build()
                models.assets(made)
            except Refused as refused:
                assert refused.points


def test_junk_in_a_tokenizer_is_refused_or_taken(tmp_path, weights):
    folder, rng, original = tiny.write_folder(tmp_path, LLAMA, weights), random.Random(kh.SEED), tiny.byte_tokenizer()
    for _ in range(300):
        text = json.loads(json.dumps(original))
        place = rng.choice([text, text["model"], text["added_tokens"][0], text["model"]["vocab"], text["decoder"]])
        place[rng.choice(sorted(place))] = rng.choice(JUNK)
        (folder / "tokenizer.json").write_text(json.dumps(text))
        (folder / "tokenizer_config.json").write_text(json.dumps(rng.choice(JUNK)))
        (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": rng.choice(JUNK)}))
        try:
            made = _registry.decoder(models.read(folder))
            models.assets(made)
            made.metadata()
        except Refused:
            pass


def test_a_place_in_memory_is_described_by_its_tenants_once(tmp_path, monkeypatch):
    """Of a model of 120 layers it was a maximum within a maximum for each of them, deeper than
    Python calls."""
    from accrt.compiler import driver

    sizes, plan = {}, driver.plan

    def recorded(buffers):
        made = plan(buffers)
        sizes.setdefault(layers, {})[buffers.function.name] = str(made.size)
        return made

    monkeypatch.setattr(driver, "plan", recorded)
    for layers in (2, 12):
        c = {**tiny.CONFIGS["llama"], "num_hidden_layers": layers}
        models.open(tiny.write_folder(tmp_path / str(layers), c, tiny.tensors(c, 1)), targets=("x86-64-v3",), output=tmp_path / f"{layers}.accx")
    assert [len(sizes[12][name]) for name in ("step", "embed")] == [len(sizes[2][name]) for name in ("step", "embed")]
