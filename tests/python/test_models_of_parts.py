"""Models that see images or hear: of a model whose part for text is of another type, that part is
served, by whatever names its tensors have in published folders."""

from __future__ import annotations

import numpy as np
import pytest

import family_models as family
import rotation
import tiny_models as tiny
from accrt import models
from accrt.models import Refused, _parts, _registry, _tokens
from test_step_programs import OPTIONS, opened, run

pytestmark = pytest.mark.quick_kernels  # in a run of the whole folder

LLAMA = tiny.CONFIGS["llama"]
#: What names of the text's tensors begin with, in folders as they are published and as transformers
#: saves them: of the layers, and of the head.
BEGINS = {"published": ("language_model.model.", "language_model.lm_head."), "saved": ("model.language_model.", "lm_head."), "idefics": ("model.text_model.", "lm_head.")}
#: Tensors of other parts.
OTHERS = ("vision_tower.layers.0.weight", "model.vision_model.embeddings.weight", "multi_modal_projector.linear_1.weight", "audio_tower.conv.weight", "image_newline",
          "model.connector.perceiver.weight", "mlp1.0.weight", "model.aligner.fc1.weight", "encoder.layers.0.weight")  # fmt: skip


def renamed(weights, begins):
    of_layers, of_head = BEGINS[begins]
    return {name.replace("lm_head.", of_head, 1) if name.startswith("lm_head.") else name.replace("model.", of_layers, 1): array for name, array in weights.items()}


def whole(tmp_path, kind, begins="published", weights=None, key="text_config", text=LLAMA, **more):
    given = tiny.tensors(LLAMA, 0) if weights is None else weights
    tensors = {**renamed(given, begins), **dict.fromkeys(OTHERS, np.zeros((4, 4), np.float32))}
    return tiny.write_folder(tmp_path / kind, {"model_type": kind, key: text, "vision_config": {"model_type": "x", "hidden_size": 8}, **more}, tensors)


@pytest.mark.parametrize("begins", BEGINS)
def test_its_logits_are_those_of_the_part_alone(tmp_path, begins):
    weights = tiny.tensors(LLAMA, rotation.seed() % 1000)
    kind = _parts.OF_PARTS[rotation.seed() % len(_parts.OF_PARTS)]
    folders = whole(tmp_path, kind, begins, weights), tiny.write_folder(tmp_path / "alone", LLAMA, weights)
    ids = np.random.default_rng(rotation.seed()).integers(0, LLAMA["vocab_size"], (family.ROWS, family.LENGTH))
    found = [np.stack([result for _row, _position, result in run(*opened(folder, OPTIONS), ids, np.random.default_rng(0))]) for folder in folders]
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize("kind", _parts.OF_PARTS)
def test_each_kind_is_read(tmp_path, kind):
    made = _registry.decoder(models.read(whole(tmp_path, kind, key="llm_config" if kind == "internvl_chat" else "text_config")))
    assert made.types == ("llama",) and not made.is_tied
    made.build()


@pytest.mark.parametrize("outer, inner, has_head, tied", [
    (None, None, True, False), (None, None, False, True), (True, False, False, True), (False, True, False, True), (True, True, True, False), (False, False, True, False),
])  # fmt: skip
def test_a_head_is_the_embedding_where_there_is_none(tmp_path, outer, inner, has_head, tied):
    weights = {name: array for name, array in tiny.tensors(LLAMA, 0).items() if has_head or not name.startswith("lm_head.")}
    text = {key: value for key, value in {**LLAMA, "tie_word_embeddings": inner}.items() if value is not None}
    made = _registry.decoder(models.read(whole(tmp_path, "internvl", weights=weights, text=text, **({} if outer is None else {"tie_word_embeddings": outer}))))
    made.build()
    assert made.is_tied == tied


def test_a_head_that_is_missing_is_said(tmp_path):
    weights = {name: array for name, array in tiny.tensors(LLAMA, 0).items() if not name.startswith("lm_head.")}
    folder = whole(tmp_path, "llava", weights=weights, text={**LLAMA, "tie_word_embeddings": False}, tie_word_embeddings=False)
    with pytest.raises(Refused, match="tensor lm_head.weight: it is missing, and tie_word_embeddings is false"):
        _registry.decoder(models.read(folder)).build()


def test_sizes_that_a_configuration_leaves_out_are_those_of_transformers(tmp_path):
    """As LLaVA 1.5 is published. The tensors say that they are not those of this small model."""
    folder = whole(tmp_path, "llava", text={"model_type": "llama", "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "vocab_size": LLAMA["vocab_size"]})
    with pytest.raises(Refused) as refused:
        _registry.decoder(models.read(folder)).build()
    assert all("its shape is" in point or "it is missing" in point for point in refused.value.points)
    assert "expected [11008, 4096]" in str(refused.value)


@pytest.mark.parametrize("text, says", [
    ({}, "config: text_config has no model_type, which says what the part of this 'llava' is that reads text"),
    ({"model_type": "rwkv"}, "config: model_type is 'rwkv': its layers have a recurrence"), ({"model_type": "own"}, "config: model_type is 'own'"),
])  # fmt: skip
def test_a_part_that_is_not_served_is_said(tmp_path, text, says):
    with pytest.raises(Refused, match=says):
        _registry.decoder(models.read(whole(tmp_path, "llava", text=text)))


def test_quantization_may_be_said_of_the_part(tmp_path):
    """As Kimi K2.5 has it."""
    folder = whole(tmp_path, "kimi_k25", text={**LLAMA, "quantization_config": {"quant_method": "strange"}})
    with pytest.raises(Refused, match="quantization_config.quant_method is 'strange'"):
        _registry.decoder(models.read(folder))


def logits_of(folder, config):
    ids = np.random.default_rng(rotation.seed()).integers(0, config["vocab_size"], (family.ROWS, family.LENGTH))
    return np.stack([result for _row, _position, result in run(*opened(folder, OPTIONS), ids, np.random.default_rng(0))])


@pytest.mark.rotating(1)
@pytest.mark.parametrize("name", ["qwen3-vl-moe", "mistral4"])
def test_joined_matrices_of_experts_may_be_the_other_way_round(tmp_path, name):
    """As Qwen 3 VL with experts is published. The recorded folders are as transformers saves
    them."""
    config, weights = family.CONFIGS[name], family.draw(family.recorded()[name]["tensors"], rotation.seed() % 1000)
    joined = {key for key in weights if key.endswith(("experts.gate_up_proj", "experts.down_proj"))}
    turned = {key: np.ascontiguousarray(array.swapaxes(1, 2)) if key in joined else array for key, array in weights.items()}
    one, other = (logits_of(tiny.write_folder(tmp_path / called, config, given), family.text_of(config)) for called, given in (("saved", weights), ("published", turned)))
    assert joined
    np.testing.assert_allclose(one, other, rtol=0, atol=1e-4)


def test_of_a_qwen_that_speaks_the_part_that_thinks(tmp_path):
    config, weights = family.CONFIGS["qwen2.5-omni"], family.draw(family.recorded()["qwen2.5-omni"]["tensors"], rotation.seed() % 1000)
    outer = {"model_type": "qwen2_5_omni", "thinker_config": config, "talker_config": {"hidden_size": 8}, "token2wav_config": {}, "enable_audio_output": True}
    more = {"talker.model.layers.0.self_attn.q_proj.weight": np.zeros((4, 4), np.float32), "token2wav.x.weight": np.zeros(4, np.float32)}
    whole = tiny.write_folder(tmp_path / "whole", outer, {**{f"thinker.{name}": array for name, array in weights.items()}, **more})
    np.testing.assert_array_equal(*(logits_of(folder, config["text_config"]) for folder in (whole, tiny.write_folder(tmp_path / "thinker", config, weights))))


def test_mistral_4_is_published_as_a_part_of_mistral_3(tmp_path):
    config, weights = family.CONFIGS["mistral4"], family.draw(family.recorded()["mistral4"]["tensors"], rotation.seed() % 1000)
    folder = tiny.write_folder(tmp_path / "m", {"model_type": "mistral3", "text_config": config, "vision_config": {"model_type": "pixtral"}},
                               {**renamed(weights, "published"), "vision_tower.x.weight": np.zeros(4, np.float32)})  # fmt: skip
    np.testing.assert_array_equal(*(logits_of(one, config) for one in (folder, tiny.write_folder(tmp_path / "alone", config, weights))))


@pytest.mark.parametrize("name, changes, says", [
    ("mistral4", {"rope_parameters": {**family.CONFIGS["mistral4"]["rope_parameters"], "partial_rotary_factor": 0.5}}, "partial_rotary_factor is 0.5; it is qk_rope_head_dim of all of a head"),
    ("longcat-flash", {"zero_expert_type": "copy"}, "zero_expert_type is 'copy'"), ("longcat-flash", {"mla_scale_q_lora": False}, "mla_scale_q_lora is False"),
    ("mllama", {"cross_attention_layers": 3}, "cross_attention_layers is 3"), ("lfm3", {"layer_types": ["conv", "mamba"]}, "layer_types is "),
])  # fmt: skip
def test_what_these_families_do_not_do(tmp_path, name, changes, says):
    config = family.CONFIGS[name]
    config = {**config, "text_config": {**config["text_config"], **changes}} if "text_config" in config else {**config, **changes}
    folder = tiny.write_folder(tmp_path / "m", config, family.draw(family.recorded()[name]["tensors"]))
    with pytest.raises(Refused, match=says):
        _registry.decoder(models.read(folder))


def test_tokens_that_end_a_word_in_a_suffix():
    """As the first GPT has them."""
    made = {"model": {"type": "BPE", "vocab": {"he": 0, "llo</w>": 1, ".</w>": 2}}, "decoder": {"type": "BPEDecoder", "suffix": "</w>"}}
    assert _tokens.of_tokenizer(made, 3)[0] == [b"he", b"llo ", b". "]
