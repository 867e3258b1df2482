"""What families have in common beside their logits (test_families.py): models that cannot be served
are refused by what they lack; ALiBi far from the beginning and in types of 16 bits; layers and
names that checkpoints have and models do not."""

from __future__ import annotations

import json
import math
import re

import numpy as np
import pytest

import family_models as family
import kernel_harness as kh
import rotation
import tiny_models as tiny
import accrt
from accrt import models
from accrt.compiler import driver
from accrt.models import Refused, _alibi, _gguf, _registry, _rope
from accrt.models._checkpoint import Checkpoint, Tensor
from accrt.models._config import Config
from test_step_programs import OPTIONS, opened, run

pytestmark = pytest.mark.quick_kernels  # in a run of the whole folder


@pytest.mark.parametrize("kind", _registry.UNSERVED)
def test_a_known_model_that_is_not_served_is_told_what_it_lacks(tmp_path, kind):
    folder, _weights = family.write(tmp_path / "m", "helium")
    (folder / "config.json").write_text(json.dumps({**family.CONFIGS["helium"], "model_type": kind}))
    with pytest.raises(Refused) as refused:
        _registry.decoder(models.read(folder))
    (point,) = refused.value.points
    assert repr(kind) in point and _registry.UNSERVED[kind] in point and "there are" not in point
    assert kind not in {type_ for one in _registry.families() for type_ in one.types}


def test_code_of_the_folder_is_said(tmp_path):
    folder, _weights = family.write(tmp_path / "m", "helium")
    (folder / "config.json").write_text(json.dumps({**family.CONFIGS["helium"], "model_type": "own", "auto_map": {"AutoConfig": "own.Config"}}))
    with pytest.raises(Refused, match="'own' .it is computed by code that its folder brings, which is not run here., none of the"):
        _registry.decoder(models.read(folder))


def test_layers_of_other_kinds_are_refused(tmp_path):
    folder, _weights = family.write(tmp_path / "m", "granite4-dense")
    (folder / "config.json").write_text(json.dumps({**family.CONFIGS["granite4-dense"], "layer_types": ["hyena", "attention", "hyena"]}))
    with pytest.raises(Refused, match="hyena"):
        _registry.decoder(models.read(folder))


# ---- ALiBi ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["bloom", "mpt", "falcon-rw"])
def test_alibi_sees_distances_alone(tmp_path, name, monkeypatch):
    """Positions that all begin somewhere else give the same logits: by both digits of positions."""
    folder, _weights = family.write(tmp_path / "m", name)
    program, page_size = opened(folder, OPTIONS)
    ids, found = family.ids_of(family.CONFIGS[name]), []
    step = tiny.Batches.step
    for first in (0, 250, 40000):
        monkeypatch.setattr(tiny.Batches, "step", step)
        with monkeypatch.context() as patched:
            inner = tiny.Batches.__init__

            def begin(self, call, *more, first=first, inner=inner):
                inner(self, lambda token_ids, positions, *rest: call(token_ids, positions + np.asarray(first, positions.dtype), *rest), *more)

            patched.setattr(tiny.Batches, "__init__", begin)
            found.append(np.stack([result for _row, _position, result in run(program, page_size, ids, np.random.default_rng(0))]))
    np.testing.assert_allclose(found[1], found[0], rtol=0, atol=1e-3)
    np.testing.assert_allclose(found[2], found[0], rtol=0, atol=2e-2)  # scores of 10^4 in f32


@pytest.mark.rotating(1)
@pytest.mark.parametrize("name", ["bloom", "falcon-rw"])
def test_alibi_in_16_bits(tmp_path, name):
    """Keys in bf16 and in f16 hold positions as exactly as keys in f32 do. One of the two, by the
    seed."""
    folder, _weights = family.write(tmp_path / "m", name)
    ids, found = family.ids_of(family.CONFIGS[name]), []
    limits = dict(rotation.part([("f16", 0.01), ("bf16", 0.08)], 1, f"16 bits of {name}"))
    for kind in ("f32", *limits):
        options = models.Options(**{**OPTIONS.__dict__, "kv_type": kind})
        found.append(np.stack([result for _row, _position, result in run(*opened(folder, options), ids, np.random.default_rng(0))]))
    spread = found[0].std()
    for other, limit in zip(found[1:], limits.values()):
        assert np.abs(other - found[0]).mean() < limit * spread, (np.abs(other - found[0]).mean(), spread)


def test_alibi_refuses_what_does_not_hold_positions(tmp_path):
    folder, _weights = family.write(tmp_path / "m", "bloom")
    with pytest.raises(Refused, match="keys have their positions beside them"):
        _registry.decoder(models.read(folder), models.Options(kv_type="fp8"))


@pytest.mark.parametrize("heads", [8, 6, 12, 16, 40])
def test_slopes(heads):
    """As the paper has them: a power of two, then every second one of the next."""
    made = _alibi.slopes(heads)
    near = 1 << (heads.bit_length() - 1)
    assert len(made) == heads and (np.diff(made[:near]) < 0).all()
    np.testing.assert_allclose(made[:near], [2 ** (-8 * i / near) for i in range(1, near + 1)])
    np.testing.assert_allclose(made[near:], [2 ** (-8 * i / (2 * near)) for i in range(1, 2 * (heads - near) + 1, 2)])


# ---- Latents and experts -------------------------------------------------------------------------


def published(folder, changed=lambda stored: stored):
    """A small GPT-OSS whose experts are packed, and the weights that it stands for."""
    stored, plain = family.in_mxfp4(family.draw(family.recorded()["gpt-oss-file"]["tensors"]))
    tiny.write_folder(folder, {**family.CONFIGS["gpt-oss-file"], "quantization_config": family.MXFP4}, plain)
    tiny.write_safetensors(folder / "model.safetensors", changed(stored))
    return folder, plain


def test_experts_in_mxfp4_stay_packed(tmp_path):
    """They compute what the numbers do that they stand for, and are as large as in the file."""
    packed, plain = published(tmp_path / "packed")
    whole = tiny.write_folder(tmp_path / "plain", family.CONFIGS["gpt-oss-file"], plain)
    made = models.read(packed).tensors["model.layers.0.mlp.experts.gate_up_proj"]
    assert (made.layout, made.shape, made.source) == ("mxfp4", (4, 192, 64), "model.layers.0.mlp.experts.gate_up_proj")
    ids, results, sizes = family.ids_of(family.CONFIGS["gpt-oss-file"]), [], []
    for folder in (packed, whole):
        program, page_size = opened(folder, OPTIONS)
        results.append(np.stack([result for _row, _position, result in run(program, page_size, ids, np.random.default_rng(0))]))
        sizes.append(program.estimate("step")["weight_bytes"])
    errors = np.linalg.norm(results[0] - results[1], axis=1) / np.linalg.norm(results[1], axis=1)
    # Products round what they multiply to 8 bits; another expert may be chosen now and then.
    assert np.median(errors) < 0.05 and errors.mean() < 0.15, (np.median(errors), errors.mean())
    assert sizes[0] < 0.6 * sizes[1], sizes


@pytest.mark.parametrize("part, array, says", [
    ("scales", None, r"gate_up_proj_blocks: beside u8\[4, 192, 2, 16\] MXFP4 has bytes \[4, 192, 2\] in model.layers.0.mlp.experts.gate_up_proj_scales"),
    ("scales", np.zeros((4, 192, 3), np.uint8), r"MXFP4 has bytes \[4, 192, 2\]"), ("blocks", np.zeros((4, 192, 2, 8), np.uint8), r"MXFP4 has blocks u8\[experts, rows, blocks, 16\]"),
    ("blocks", np.zeros((4, 192, 32), np.uint8), r"MXFP4 has blocks u8\[experts, rows, blocks, 16\]"),
])  # fmt: skip
def test_blocks_of_mxfp4_that_do_not_fit_are_said(tmp_path, part, array, says):
    def changed(stored):
        name = f"model.layers.0.mlp.experts.gate_up_proj_{part}"
        return {key: ("U8", array) if key == name else value for key, value in stored.items() if key != name or array is not None}

    with pytest.raises((Refused, accrt.InvalidFormatError), match=says):
        _registry.decoder(models.read(published(tmp_path / "m", changed)[0])).build()


#: In the form that GPT-OSS is asked in: a date, a macro, a namespace, thoughts of earlier turns
#: that are left out, calls of tools and a channel for each message.
CHANNELS = """
{%- macro head(role, channel='') -%}<|start|>{{ role }}{{ '<|channel|>' + channel if channel }}<|message|>{%- endmacro -%}
{{ head('system') }}Reasoning: {{ reasoning_effort|default('medium') }}
Date: {{ strftime_now('%Y') }}<|end|>
{%- set last = namespace(user=-1) %}
{%- for message in messages if message.role == 'user' %}{% set last.user = loop.index0 %}{% endfor %}
{%- for message in messages %}
{%- if message.role == 'assistant' %}
{%- if message.thinking is defined and loop.index0 > last.user %}{{ head('assistant', 'analysis') + message.thinking }}<|end|>{% endif %}
{%- if message.tool_calls %}{% set call = message.tool_calls[0].function -%}
<|start|>assistant to=functions.{{ call.name }}<|channel|>commentary json<|message|>{{ call.arguments|tojson }}<|call|>
{%- else %}{{ head('assistant', 'final') + message.content }}<|end|>{% endif %}
{%- elif message.role in ('user', 'tool') %}{{ head(message.role) + message.content }}<|end|>
{%- else %}{{ raise_exception('no role ' + message.role) }}{% endif %}
{%- endfor %}{% if add_generation_prompt %}<|start|>assistant{% endif %}"""


def test_a_template_of_channels():
    import datetime

    from accrt import _template

    def told(messages, **names):
        asked = {"source": CHANNELS, "names": {"messages": messages, "add_generation_prompt": True, **names}}
        return json.loads(_template.answer(json.dumps(asked).encode()))

    call = {"role": "assistant", "thinking": "hm", "tool_calls": [{"function": {"name": "time", "arguments": {"zone": "Zürich"}}}]}
    first, year = {"role": "user", "content": "hi"}, datetime.datetime.now().year
    begin = f"<|start|>system<|message|>Reasoning: low\nDate: {year}<|end|>"
    said = told([first, call, {"role": "tool", "content": "9"}, {"role": "assistant", "content": "nine"}], reasoning_effort="low")
    assert said == {"text": begin + "<|start|>user<|message|>hi<|end|><|start|>assistant<|channel|>analysis<|message|>hm<|end|>"
                    '<|start|>assistant to=functions.time<|channel|>commentary json<|message|>{"zone": "Zürich"}<|call|>'
                    "<|start|>tool<|message|>9<|end|><|start|>assistant<|channel|>final<|message|>nine<|end|><|start|>assistant"}  # fmt: skip
    assert "hm" not in told([call, first])["text"] and told([{"role": "x"}]) == {"says": "no role x"}


def test_of_a_llama_4_that_takes_images_the_part_for_text(tmp_path):
    """As it is published: tensors of the text are below language_model."""
    config, weights = family.CONFIGS["llama4"], family.draw(family.recorded()["llama4"]["tensors"])
    outer = {"model_type": "llama4", "text_config": config, "vision_config": {"model_type": "llama4_vision_model"}, "image_token_index": 319}
    named = {f"language_model.{name}": array for name, array in weights.items()}
    more = {"vision_model.class_embedding": np.zeros(8, np.float32), "multi_modal_projector.linear_1.weight": np.zeros((48, 8), np.float32)}
    whole, alone = (_registry.decoder(models.read(tiny.write_folder(tmp_path / name, *given))) for name, given in
                    {"whole": (outer, {**named, **more}), "alone": (config, weights)}.items())  # fmt: skip
    kernels = [[kernel.name for kernel in driver.kernels_of(made.build(), "host")] for made in (whole, alone)]
    assert kernels[0] == kernels[1] and len(whole.m.constants) == len(alone.m.constants)
    assert [whole.chunk(layer) for layer in range(4)] == [10, 10, 10, None] and whole.with_experts == {1, 3}


def test_of_a_gemma_4_that_sees_and_hears_the_part_for_text(tmp_path):
    """As it is published: tensors of the text are below model.language_model."""
    config, weights = family.CONFIGS["gemma4"], family.draw(family.recorded()["gemma4"]["tensors"])
    outer = {"model_type": "gemma4", "text_config": config, "vision_config": {"model_type": "gemma4_vision"}, "audio_config": {"model_type": "gemma4_audio"}, "image_token_id": 319}
    named = {name.replace("model.", "model.language_model.", 1): array for name, array in weights.items()}
    others = ("vision_tower.patch_embedder.input_proj.weight", "audio_tower.layers.0.norm_out.weight", "embed_vision.embedding_projection.weight", "embed_audio.embedding_projection.weight")
    more = {f"model.{name}": np.zeros((48, 8), np.float32) for name in others}
    whole, alone = (_registry.decoder(models.read(tiny.write_folder(tmp_path / name, *given))) for name, given in
                    {"whole": (outer, {**named, **more}), "alone": (config, weights)}.items())  # fmt: skip
    kernels = [[kernel.name for kernel in driver.kernels_of(made.build(), "host")] for made in (whole, alone)]
    assert kernels[0] == kernels[1] and len(whole.m.constants) == len(alone.m.constants)
    assert [whole.kept_by(layer) for layer in range(6)] == [0, 1, 2, 3, 2, 3]


def test_heads_of_512_elements_are_of_hosts_alone(tmp_path):
    """As Gemma 4 has them where a layer sees all. GPUs say what they lack."""
    config = {**family.CONFIGS["gemma4"], "global_head_dim": 512}
    shapes = {name: list(shape) for name, shape in family.recorded()["gemma4"]["tensors"].items()}
    for name, shape in shapes.items():
        if ".self_attn." in name and int(name.split(".")[2]) % 2:
            of_heads = 1 if name.endswith("o_proj.weight") else 0
            shape[of_heads] = shape[of_heads] // config["head_dim"] // 2 * 512
    made = _registry.decoder(models.read(tiny.write_folder(tmp_path / "m", config, family.draw(shapes))))
    assert any("_h512_" in kernel.name for kernel in driver.kernels_of(made.build(), "host"))
    made = _registry.decoder(models.read(tmp_path / "m"))
    with pytest.raises(ValueError, match="paged attention: head size 512, at most 256 is possible"):
        driver.kernels_of(made.build(), "cuda")


@pytest.mark.parametrize("changes, says", [
    ({"per_layer_config": {"1": {"head_dim": 24}}}, "per_layer_config is .*the same for all layers of a kind"), ({"per_layer_config": [1]}, r"per_layer_config is \[1\]"),
    ({"per_layer_config": {str(layer): {"sliding_window": 9} for layer in (1, 3, 5)}}, "per_layer_config is "), ({"sliding_window": 0}, "sliding_window is 0"),
    ({"use_bidirectional_attention": "all"}, "use_bidirectional_attention is 'all'"), ({"num_kv_shared_layers": 5}, "num_kv_shared_layers is 5"),
    ({"num_global_key_value_heads": 4, "attention_k_eq_v": True}, "num_global_key_value_heads is 4, which does not divide num_attention_heads, 6"),
])  # fmt: skip
def test_what_gemma_4_does_not_do(changes, says):
    with pytest.raises(Refused, match=says):
        made_of(without("gemma4", **changes))


@pytest.mark.parametrize("given", [{"mlp_only_layers": None}, {}])
def test_the_first_two_layers_of_a_flint_have_no_experts_where_nothing_is_said(tmp_path, given):
    """A key that is null says nothing."""
    config = {key: value for key, value in family.CONFIGS["flint"].items() if key != "mlp_only_layers"}
    shapes = dict(family.recorded()["flint"]["tensors"])
    for name in [name for name in shapes if name.startswith("model.layers.1.mlp.")]:
        del shapes[name]
    shapes.update({name.replace(".0.", ".1."): shape for name, shape in shapes.items() if name.startswith("model.layers.0.mlp.")})
    made = _registry.decoder(models.read(tiny.write_folder(tmp_path / "m", {**config, **given}, family.draw(shapes))))
    assert made.plain == [True, True, False, False, False]
    made.build()


def test_sizes_of_layers_as_transformers_saves_them():
    sizes = {str(layer): {"head_dim": 16, "num_key_value_heads": 2} for layer in (1, 3, 5)}
    assert made_of(without("gemma4", "global_head_dim", per_layer_config=sizes)).key_sizes == made_of(family.CONFIGS["gemma4"]).key_sizes == [(2, 8), (2, 16)] * 3
    long = {layer.zfill(2): size for layer, size in sizes.items()}  # as where there are ten layers
    assert made_of(without("gemma4", "global_head_dim", per_layer_config=long)).key_sizes == [(2, 8), (2, 16)] * 3


@pytest.mark.parametrize("changes, says", [
    ({"moe_layers": [4]}, r"moe_layers is \[4\]"), ({"layer_types": ["chunked_attention", "sliding_attention", "full_attention", "full_attention"]}, "layer_types is .*there are chunked_attention and full_attention"),
    ({"no_rope_layers": [1, 0]}, r"no_rope_layers is \[1, 0\]"), ({"floor_scale": 0}, "floor_scale is 0"), ({"attention_chunk_size": -1}, "attention_chunk_size is -1"),
])  # fmt: skip
def test_what_llama_4_does_not_do(changes, says):
    with pytest.raises(Refused, match=says):
        made_of(without("llama4", **changes))


def test_layers_that_predict_more_are_left_out(tmp_path):
    name = "deepseek-v3"
    config, weights = family.CONFIGS[name], family.draw(family.recorded()[name]["tensors"])
    more = {"model.layers.3.eh_proj.weight": np.zeros((48, 96), np.float32), "model.layers.3.shared_head.norm.weight": np.ones(48, np.float32)}
    folder = tiny.write_folder(tmp_path / "m", {**config, "num_nextn_predict_layers": 1}, {**weights, **more})
    _registry.decoder(models.read(folder)).build()
    folder = tiny.write_folder(tmp_path / "none", config, {**weights, **more})
    with pytest.raises(Refused, match="tensor model.layers.3.eh_proj.weight: this family has no use for it"):
        _registry.decoder(models.read(folder)).build()


def test_what_a_token_takes_is_said_of_keys_and_of_values(tmp_path):
    for name, sizes in (("deepseek-v3", 3 * 6 * (24 + 12)), ("bloom", 3 * 6 * (8 + 16 + 8)), ("helium", 3 * 2 * (8 + 8))):
        folder, _weights = family.write(tmp_path / name, name)
        made = _registry.decoder(models.read(folder), models.Options(kv_type="f16"))
        assert made.metadata()["serve.kv_bytes_per_token"] == str(2 * sizes)


@pytest.mark.parametrize("name, product", [
    ("falcon-40b", "transformer.h.0.self_attention.query_key_value"), ("bloom", "transformer.h.0.mlp.dense_h_to_4h"), ("mpt", "transformer.blocks.1.attn.Wqkv"),
    ("gptj", "transformer.h.2.attn.q_proj"), ("starcoder", "transformer.h.0.attn.c_attn"), ("deepseek-v2-lite", "model.layers.0.self_attn.kv_a_proj_with_mqa"),
    ("granite4-dense", "model.layers.0.shared_mlp.input_linear"), ("minicpm3", "model.layers.0.self_attn.q_b_proj"), ("nemotron", "model.layers.0.mlp.up_proj"),
])  # fmt: skip
def test_adapters_have_the_names_of_peft(tmp_path, name, product):
    folder, _weights = family.write(tmp_path / "m", name)
    made = _registry.decoder(models.read(folder), models.Options(adapters=2, max_rank=4))
    made.build()
    assert product in made.adapted


def test_names_without_a_prefix(tmp_path):
    """As BLOOM's checkpoints are published."""
    weights = {key.replace("transformer.", ""): array for key, array in family.draw(family.recorded()["bloom"]["tensors"]).items()}
    _registry.decoder(models.read(tiny.write_folder(tmp_path / "m", family.CONFIGS["bloom"], weights))).build()


@pytest.mark.parametrize("name", ["bloom", "deepseek-v2-lite"])
def test_a_second_start_is_from_the_cache(tmp_path, name, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", kh.other_cache(tmp_path / "cache"))
    folder, _weights = family.write(tmp_path / "m", name)
    first, second = (models.open(folder, options=OPTIONS, targets=kh.host_targets()[-1:]) for _ in range(2))
    assert not first.info["cached"] and second.info["cached"] and first.bundle == second.bundle


# ---- Checkpoints as they are published -----------------------------------------------------------


@pytest.mark.parametrize("name, buffer", [
    ("gpt-neo", "transformer.h.1.attn.attention.bias"), ("pythia", "gpt_neox.layers.0.attention.bias"), ("gptj", "transformer.h.0.attn.bias"),
    ("codegen", "transformer.h.0.attn.causal_mask"), ("starcoder", "transformer.h.0.attn.bias"),
])  # fmt: skip
@pytest.mark.parametrize("kind", ["BOOL", "U8", "I64"])
def test_masks_among_the_weights_may_be_of_any_type(tmp_path, name, buffer, kind):
    """Causal masks were saved with GPT-Neo and Pythia, as bools: nothing reads them."""
    folder, weights = family.write(tmp_path / "m", name)
    stored = {key: ("F32", array) for key, array in weights.items()}
    mask = np.tril(np.ones((1, 1, 4, 4), {"BOOL": np.bool_, "U8": np.uint8, "I64": np.int64}[kind]))
    tiny.write_safetensors(folder / "model.safetensors", {**stored, buffer: (kind, mask)})
    _registry.decoder(models.read(folder)).build()
    tiny.write_safetensors(folder / "model.safetensors", {**stored, buffer + "es": (kind, mask)})
    with pytest.raises(Refused, match=f"tensor {buffer}es: its type is .*, which no operation reads"):
        _registry.decoder(models.read(folder)).build()


@pytest.mark.parametrize("name", ["gptj", "codegen"])
@pytest.mark.parametrize("head, turned", [(104, 30), (46, 26), (92, 52), (8, 8), (96, 64), (64, 32)])
def test_as_many_elements_are_turned_as_are_asked_for(tmp_path, name, head, turned):
    """Also of sizes whose quotient, as a float, is rounded down."""
    config = {**family.CONFIGS[name], "n_embd": 4 * head, "n_head": 4, "rotary_dim": turned}
    made = _registry.by_type(config["model_type"])(Checkpoint("m", "folder", config, {}, [], {}))
    np.testing.assert_allclose(made.rotation.frequencies, 10000.0 ** (-np.arange(0, turned, 2) / turned))


@pytest.mark.parametrize("head, turned", [(104, 30), (46, 26), (92, 52), (96, 64), (64, 64)])
def test_a_gguf_file_says_how_many_elements_are_turned(head, turned):
    made = Checkpoint("m", "gguf", {"hidden_size": 4 * head, "num_attention_heads": 4}, {}, [], {})
    _gguf._rope(made, {"dimension_count": turned})
    assert _rope.make(Config(made.config), head, 1, True).frequencies.shape == (turned // 2,)


def made_of(config, tensors=()):
    """A decoder of a configuration. `tensors`: names that are there."""
    return _registry.by_type(config["model_type"])(Checkpoint("m", "folder", config, {name: Tensor(name, "f32", (320, 48)) for name in tensors}, [], {}))


def without(name, *keys, **changes):
    return {**{key: value for key, value in family.CONFIGS[name].items() if key not in keys}, **changes}


def test_dots_has_windows_without_a_switch():
    """Its configuration has sliding_window and max_window_layers, and no use_sliding_window."""
    made = made_of(without("dots1", sliding_window=6, max_window_layers=1))
    assert [made.window(layer) for layer in range(3)] == [None, 6, 6]
    assert [made_of(without("dots1", sliding_window=None, max_window_layers=1)).window(layer) for layer in range(3)] == [None] * 3
    assert [made_of(without("dots1")).window(layer) for layer in range(3)] == [None] * 3


def test_a_scaling_that_is_given_is_not_the_default():
    """As configurations had it before rope_parameters."""
    given = {key: value for key, value in family._MINISTRAL.items() if key != "rope_theta"}
    new, old = made_of(without("ministral3")), made_of(without("ministral3", "rope_parameters", rope_scaling=given, rope_theta=1e6))
    np.testing.assert_array_equal(old.rotation.frequencies, new.rotation.frequencies)
    assert (old.beta, old.original, old.rotation.scale) == (new.beta, new.original, new.rotation.scale)


def test_a_base_of_rotations_that_is_left_out_is_that_of_the_family():
    """Beside a scaling, in either form."""
    scaling = family.CONFIGS["apertus"]["rope_scaling"]
    whole = made_of(without("apertus", rope_theta=12e6)).rotation.frequencies
    for config in (without("apertus", "rope_theta"), without("apertus", "rope_theta", "rope_scaling", rope_parameters=scaling)):
        np.testing.assert_array_equal(made_of(config).rotation.frequencies, whole)


@pytest.mark.parametrize("form", ["rope_scaling", "rope_parameters"])
def test_gpt_oss_has_a_base_of_its_own(form):
    """Where it is left out beside a scaling; and one that is given alone is taken."""
    scaling = {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False, "original_max_position_embeddings": 4096}
    whole, left_out, given = (made_of(without("gpt-oss", "rope_theta", "rope_scaling", **keys)).rotation.frequencies for keys in (
        {"rope_theta": 150000.0, form: scaling}, {form: scaling}, {"rope_theta": 1000.0}))  # fmt: skip
    np.testing.assert_array_equal(left_out, whole)
    expected = made_of(without("gpt-oss", "rope_theta", "rope_scaling", rope_theta=1000.0, rope_scaling=scaling)).rotation.frequencies
    np.testing.assert_array_equal(given, expected)


@pytest.mark.parametrize("name, outer, text, own, tied", [
    ("qwen2-vl", True, None, False, True), ("qwen2.5-vl", True, False, False, True), ("qwen2.5-vl", None, True, False, True),
    ("qwen2.5-vl", None, True, True, False), ("qwen3-vl", False, True, True, False), ("qwen3-vl", True, False, False, True), ("qwen2.5-vl", False, False, True, False),
])  # fmt: skip
def test_a_model_of_several_parts_is_tied_where_it_has_no_head(name, outer, text, own, tied):
    """Both the model and its part for text say it, and not always the same."""
    config = {key: value for key, value in family.CONFIGS[name].items() if key != "tie_word_embeddings"}
    config.update({} if outer is None else {"tie_word_embeddings": outer})
    if "text_config" in config:
        config["text_config"] = {**config["text_config"], "tie_word_embeddings": text}
    assert made_of(config, ["lm_head.weight"] if own else []).is_tied == tied


@pytest.mark.parametrize("key, value", [("rope", True), ("sliding_window_size", 128), ("qk_gn", True), ("attn_logit_softcapping", 30.0)])
def test_attention_of_mpt_that_is_another(key, value):
    given = family.CONFIGS["mpt"]["attn_config"]
    with pytest.raises(Refused, match=f"attn_config.{key} is {value!r}, which this family does not do"):
        made_of(without("mpt", attn_config={**given, key: value}))
    made_of(without("mpt", attn_config={**given, "attn_pdrop": 0.1, "model_type": "", "rope": False, "sliding_window_size": -1, "attn_logit_softcapping": None}))


def test_activation_of_santacoder():
    """Another name for an approximation of GELU."""
    made_of(without("starcoder", activation_function="gelu_fast"))


@pytest.mark.parametrize("heads, most", [(4, 8), (4, 16), (6, 8), (6, 16), (32, 16)])
def test_slopes_of_mpt(heads, most):
    """As the code that the models came with has them, which transformers' has not: StoryWriter has
    an alibi_bias_max of 16."""
    config = without("mpt", d_model=8 * heads, n_heads=heads, attn_config={**family.CONFIGS["mpt"]["attn_config"], "alibi_bias_max": most})
    near = {4: 4, 6: 8, 32: 32}[heads]
    whole = [2.0 ** (-at * most / near) for at in range(1, near + 1)]
    np.testing.assert_allclose(made_of(config).slopes, (whole if near == heads else whole[1::2] + whole[::2])[:heads])


def test_heads_of_latents_need_not_divide_the_hidden_size():
    """GLM-4.7 Flash has 20 heads and a hidden size of 2048."""
    made = made_of(without("glm4-moe-lite", num_attention_heads=5, num_key_value_heads=5))
    assert made.hidden % made.heads and (made.head_size, made.value_size) == (24, 12)


# ---- One model by several names ------------------------------------------------------------------


def logits_of(folder, ids):
    return np.stack([result for _row, _position, result in run(*opened(folder, OPTIONS), ids, np.random.default_rng(0))])


def test_gemma_3n_that_sees_and_hears_is_its_part_for_text(tmp_path):
    """Names as such models have them, other parts beside, and what their configuration says of
    attention and their own code does not read."""
    config, weights = family.CONFIGS["gemma3n"], family.draw(family.recorded()["gemma3n"]["tensors"])
    renamed = {name.replace("model.", "model.language_model.", 1): array for name, array in weights.items()}
    renamed.update({f"model.{part}.weight": np.zeros((2, 2), np.float32) for part in ("audio_tower.x", "vision_tower.y", "embed_audio.z", "embed_vision.z")})
    whole = {"model_type": "gemma3n", "text_config": {**config, "query_pre_attn_scalar": 256}, "audio_config": {"model_type": "gemma3n_audio"}, "vision_config": {"hidden_size": 8}}
    ids = family.ids_of(config)
    plain = logits_of(tiny.write_folder(tmp_path / "text", config, weights), ids)
    assert np.array_equal(logits_of(tiny.write_folder(tmp_path / "whole", whole, renamed), ids), plain)


def test_gemma_3n_shares_keys_of_earlier_layers(tmp_path):
    folder, _weights = family.write(tmp_path / "m", "gemma3n")
    made = _registry.decoder(models.read(folder))
    assert [made.kept_by(layer) for layer in range(6)] == [0, 1, 2, 3, 2, 3] and not made.kept(4) and made.kept(3)
    (folder / "config.json").write_text(json.dumps({**family.CONFIGS["gemma3n"], "num_kv_shared_layers": 5}))
    with pytest.raises(Refused, match="num_kv_shared_layers is 5: no layer of a kind is before all that share its keys and values"):
        _registry.decoder(models.read(folder))


def test_gemma_3n_as_published_has_keys_that_no_layer_reads(tmp_path):
    """Of layers that share keys and values: what would make them. Other layers' must be there."""
    config, weights = family.CONFIGS["gemma3n"], family.draw(family.recorded()["gemma3n"]["tensors"])
    published, ids = dict(weights), family.ids_of(config)
    for layer in (4, 5):
        for part in ("k_proj", "v_proj", "k_norm", "v_norm"):
            name = f"model.layers.{layer}.self_attn.{part}.weight"
            published[name] = np.full_like(weights.get(f"model.layers.2.self_attn.{part}.weight", np.zeros(16, np.float32)), 7)
    assert len(published) == len(weights) + 8
    plain = logits_of(tiny.write_folder(tmp_path / "plain", config, weights), ids)
    assert np.array_equal(logits_of(tiny.write_folder(tmp_path / "published", config, published), ids), plain)
    folder = tiny.write_folder(tmp_path / "other", config, {**published, "model.layers.3.self_attn.v_norm.weight": np.ones(16, np.float32)})
    with pytest.raises(Refused, match="tensor model.layers.3.self_attn.v_norm.weight: this family has no use for it"):
        _registry.decoder(models.read(folder)).build()


@pytest.mark.parametrize("key, value, neutral", [
    *(("activation_sparsity_pattern", one, 0.0) for one in (0.99999999, 1e-50, 1, -0.5, True, "0.5", math.nan)),
    *(("intermediate_size", one, 80) for one in (80.5, 80.0, math.inf, 1e30, 1 << 31, 0, True, "80", None)),
])  # fmt: skip
def test_numbers_of_gemma_3n_that_are_none_are_refused_by_name(tmp_path, key, value, neutral):
    folder, _weights = family.write(tmp_path / "m", "gemma3n")
    given = [*family.CONFIGS["gemma3n"][key][:5], value]
    (folder / "config.json").write_text(json.dumps({**family.CONFIGS["gemma3n"], key: given}))
    with pytest.raises(Refused, match=f"config: {key} is .*, expected an? .* for each of 6 layers"):
        _registry.decoder(models.read(folder)).build()
    (folder / "config.json").write_text(json.dumps({**family.CONFIGS["gemma3n"], key: [*given[:5], neutral]}))
    assert _registry.decoder(models.read(folder)).build()


def test_phi_4_multimodal_as_published_is_its_part_for_text(tmp_path):
    """Each product has adapters of the other parts beside it, and those parts have names of their
    own."""
    config = {key: value for key, value in family.CONFIGS["phi4-multimodal"].items() if key not in ("vision_config", "audio_config")}
    weights = {name: array for name, array in family.draw(family.recorded()["phi4-multimodal"]["tensors"]).items() if "embed_tokens_extend" not in name}
    published = {re.sub(r"_proj\.weight$", "_proj.base_layer.weight", name): array for name, array in weights.items()}
    published.update({"model.layers.0.self_attn.qkv_proj.lora_A.speech.weight": np.ones((2, 96), np.float32), "model.embed_tokens_extend.image_embed.x": np.ones(3, np.float32),
                      "model.layers.0.mlp.down_proj.lora_B.vision.weight": np.ones((96, 2), np.float32)})  # fmt: skip
    ids = family.ids_of(config)
    plain = logits_of(tiny.write_folder(tmp_path / "plain", config, weights), ids)
    folder = tiny.write_folder(tmp_path / "published", {**config, "model_type": "phi4mm", "embd_layer": {}, "speech_lora": {"r": 2}}, published)
    assert np.array_equal(logits_of(folder, ids), plain)
    tiny.write_folder(tmp_path / "twice", config, {**published, "model.layers.0.mlp.down_proj.weight": np.ones((96, 80), np.float32)})
    with pytest.raises(Refused, match="model.layers.0.mlp.down_proj.weight"):
        _registry.decoder(models.read(tmp_path / "twice"))


def test_minimax_m1_is_minimax_by_other_names(tmp_path):
    """Its own names of factors and of kinds of layers, and tensors that follow from them."""
    config, weights = family.CONFIGS["minimax"], family.draw(family.recorded()["minimax"]["tensors"])
    own = {key: value for key, value in config.items() if not key.endswith("_factor") and key not in ("layer_types", "sliding_window")}
    factors = {f"layernorm_{_layer}_{part}": config[f"{kind}_{part}_factor"] for kind, _layer in (("full_attn", "full_attention"), ("linear_attn", "linear_attention"), ("mlp", "mlp"))
               for part in ("alpha", "beta")}  # fmt: skip
    own.update(model_type="minimax_m1", attn_type_list=[0, 0, 1, 0], postnorm=True, shared_intermediate_size=0, rotary_dim=16, **factors)
    beside = {**weights, "model.layers.0.self_attn.slope_rate": np.ones((6, 1, 1), np.float32)}
    ids = family.ids_of(config)
    plain = logits_of(tiny.write_folder(tmp_path / "plain", config, weights), ids)
    assert np.array_equal(logits_of(tiny.write_folder(tmp_path / "own", own, beside), ids), plain)
    for key, value in (("postnorm", False), ("shared_intermediate_size", 24)):
        (tmp_path / "own" / "config.json").write_text(json.dumps({**own, key: value}))
        with pytest.raises(Refused, match=f"{key} is {value}, which this family does not do"):
            _registry.decoder(models.read(tmp_path / "own"))


@pytest.mark.parametrize("kind", ["minimax_m1", "minimax_text_01"])
def test_what_minimax_says_in_its_own_keys_is_refused_by_name(tmp_path, kind):
    """Lists of other forms, and no `postnorm`: the models' own code takes false then. The form of
    transformers has none."""
    config = {key: value for key, value in family.CONFIGS["minimax"].items() if key != "layer_types"}
    own = {**config, "model_type": kind, "postnorm": True, "attn_type_list": [0, 0, 1, 0]}
    folder, _weights = family.write(tmp_path / "m", "minimax")

    def read(changes):
        (folder / "config.json").write_text(json.dumps({key: value for key, value in {**own, **changes}.items() if value != "absent"}))
        return _registry.decoder(models.read(folder))

    assert [read({}).scans(layer) for layer in range(4)] == [True, True, False, True]
    assert read({"model_type": "minimax", "postnorm": "absent"}).scans(0)
    for key in ("attn_type_list", "decoder_attention_types"):
        for value in ([0, 0, 2, 0], [0, 0, 1], [0, 0, 1, 0, 1], [0, 0, True, 0], [0, 0, 1.0, 0], ["0", 0, 1, 0], [[], 0, 1, 0], "0010", 1, {}, []):
            with pytest.raises(Refused, match=f"config: {key} is {re.escape(repr(value))}, expected 0 .lightning attention. or 1 for each of 4 layers"):
                read({"attn_type_list": "absent", key: value})
    for value in ("absent", None, False, 1):
        with pytest.raises(Refused, match=f"config: postnorm is {None if value == 'absent' else value}, which this family does not do; it does true"):
            read({"postnorm": value})


def test_kimi_k2_is_deepseek_v3(tmp_path):
    config, weights = family.CONFIGS["deepseek-v3"], family.draw(family.recorded()["deepseek-v3"]["tensors"])
    given = {"auto_map": {"AutoConfig": "own.Config"}, **config, "model_type": "kimi_k2"}
    made = _registry.decoder(models.read(tiny.write_folder(tmp_path / "k2", given, weights)))
    assert type(made).__name__ == "DeepseekV3" and made.build()


def bitnet(folder, form, seed=0, kind="bitnet"):
    return family.write_in_three_values(folder, form, seed, kind)


@pytest.mark.parametrize("kind", ["bitnet", "llama"])
def test_packed_weights_of_three_values_are_those_that_plain_ones_become(tmp_path, kind):
    """In each form that folders have, in f32's rounding."""
    rotation.seed()
    ids, results = family.ids_of(family.CONFIGS["bitnet"]), []
    for form in family.BITNET:
        program, page_size = opened(bitnet(tmp_path / form, form, rotation.SEED % 1000, kind), OPTIONS)
        results.append(np.stack([result for _row, _position, result in run(program, page_size, ids, np.random.default_rng(0))]))
    for one in results[1:]:
        # a number between two steps of 8 bits may become either
        assert np.median(np.abs(one - results[0])) < 1e-5 and np.abs(one - results[0]).max() < 0.5


@pytest.mark.parametrize("changes, message", [
    ({"linear_class": "other"}, "quantization_config.linear_class is 'other'"),
    ({"quantization_mode": "later"}, "quantization_config.quantization_mode is 'later'"),
    ({"use_rms_norm": True}, "quantization_config.use_rms_norm is True"),
    ({"modules_to_not_convert": ["lm_head", "q_proj"]}, "quantization_config.modules_to_not_convert is"),
    ({"modules_to_not_convert": 7}, "quantization_config.modules_to_not_convert is 7"),
    ({"linear_class": ["autobitlinear"]}, "quantization_config.linear_class is"),
])  # fmt: skip
def test_forms_of_bitnet_that_are_not_done_are_refused_by_name(tmp_path, changes, message):
    folder = bitnet(tmp_path / "m", "packed")
    config = {**family.CONFIGS["bitnet"], "quantization_config": {**family.BITNET["packed"], **changes}}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(Refused, match=re.escape(message)):
        _registry.decoder(models.read(folder)).build()


def test_three_values_are_for_some_families_alone(tmp_path):
    """Weights that are packed so in another family are refused, and so is a packed weight without
    its scale."""
    folder = bitnet(tmp_path / "m", "packed")
    (folder / "config.json").write_text(json.dumps({**family.CONFIGS["bitnet"], "model_type": "qwen3", "quantization_config": family.BITNET["plain"]}))
    with pytest.raises(Refused, match="weights of three values are read of bitnet and llama alone"):
        _registry.decoder(models.read(folder)).build()
    stored = family.in_three_values(family.draw(family.recorded()["bitnet"]["tensors"]))
    folder = bitnet(tmp_path / "n", "packed")
    tiny.write_safetensors(folder / "model.safetensors", {name: pair for name, pair in stored.items() if not name.endswith("layers.1.mlp.up_proj.weight_scale")})
    with pytest.raises(Refused, match="layers.1.mlp.up_proj.weight_scale: it is missing"):
        _registry.decoder(models.read(folder)).build()


@pytest.mark.parametrize("name", ["deepseek-v32", "glm-moe-dsa"])
def test_sequences_end_where_an_index_would_choose_among_keys(tmp_path, name):
    folder, most = family.write(tmp_path / "m", name)[0], family.CONFIGS[name]["index_topk"]
    assert _registry.decoder(models.read(folder)).max_position == most
    assert _registry.decoder(models.read(folder), models.Options(max_position=most)).max_position == most
    with pytest.raises(Refused, match=f"max_position is {most + 1}; the model was made for {most}"):
        _registry.decoder(models.read(folder), models.Options(max_position=most + 1))
