"""Whole models of 49 families (torch_models.py) through accrt.from_torch: every element of every
output beside torch's float64 result, with fixed sizes, with sizes that vary, and with two sizes
that the export never saw. A part of them, from a seed that is printed; ACCRT_TEST_ALL=1: all. Runs
where torch and transformers are: `./dev check models`."""

from __future__ import annotations

import copy
import os
import random

import numpy as np
import pytest

import accrt
import kernel_harness as kh
from accrt.compiler import compile
from accrt.from_torch import convert

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")
pytestmark = [pytest.mark.torch, pytest.mark.quick_kernels]

import rotation  # noqa: E402
import torch_models as models  # noqa: E402

SEED = rotation.SEED


def chosen(names=tuple(models.MODELS), count=6):
    if os.environ.get("ACCRT_TEST_ALL") == "1":
        return names
    return random.Random(SEED).sample(names, count)


@pytest.mark.parametrize("sizes", ["fixed", "vary"])
@pytest.mark.parametrize("name", chosen((*models.MODELS, *models.OTHERS)))
def test_model(name, sizes, instance):
    rotation.seed()
    model, inputs = {**models.MODELS, **models.OTHERS}[name]()
    shapes = models.dynamic_shapes(inputs, name) if sizes == "vary" else None
    module = convert(model, inputs, dynamic_shapes=shapes)
    session = accrt.Program(accrt.Bundle(compile(module, targets=[kh.host_targets()[-1]]), instance)).session()
    torch.manual_seed(SEED & 0x7FFFFFFF)
    if name == "mixtral":
        model.set_experts_implementation("eager")  # the other has no float64
    models.compare(session, model, inputs)
    if sizes == "vary":
        for batch, length in ((1, 5), (3, 17)):
            models.compare(session, model, models.resized(inputs, batch, length, name))


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16], ids=["f16", "bf16"])
@pytest.mark.parametrize("name", chosen(models.SIXTEEN_BITS, 3))
def test_model_of_16_bits(name, kind, instance):
    """Weights, inputs and results of 16 bits, beside the same weights in float64: the bound is so
    many roundings of the type."""
    rotation.seed()
    model, inputs = models.in_type(*models.MODELS[name](), kind)
    shapes = models.dynamic_shapes(inputs, name)
    session = accrt.Program(accrt.Bundle(compile(convert(model, inputs, dynamic_shapes=shapes), targets=[kh.host_targets()[-1]]), instance)).session()
    torch.manual_seed(SEED & 0x7FFFFFFF)
    if name == "mixtral":
        model.set_experts_implementation("eager")  # the other has no float64
    within = models.ROUNDINGS * models.PRECISION[kind]
    models.compare(session, model, inputs, within)
    if shapes is not None:
        models.compare(session, model, models.in_type(model, models.resized(inputs, 1, 5, name), kind)[1], within)


def test_the_document_says_what_varies():
    assert models.table() in (kh.ROOT / "docs/from-torch.md").read_text(), "python tests/python/torch_models.py"


#: What attention of a family has: (causal, windowed, a tensor that is no larger than the padding).
ATTENTION = {
    "bert": (False, False, True), "distilbert": (False, False, True), "modernbert": (True, True, True), "mistral": (True, True, False),
    "llama": (True, False, False), "whisper": (True, False, False), "vit": (False, False, False), "clip": (True, False, True),
}  # fmt: skip


def attentions(module):
    return [op for f in module.functions.values() for op in f.body.walk() if op.name == "aten.scaled_dot_product_attention"]


@pytest.mark.parametrize("sizes", ["fixed", "vary"])
@pytest.mark.parametrize("name", ATTENTION)
def test_masks_of_transformers_are_limits_and_padding(name, sizes):
    """No family's mask is a tensor of queries times keys, with the window smaller than the
    sequence, and with padding."""
    model, inputs = models.MODELS[name]()
    found = attentions(convert(model, inputs, dynamic_shapes=models.dynamic_shapes(inputs, name) if sizes == "vary" else None))
    kinds = [(bool(op.attrs["is_causal"]), op.attrs["first_offset"] is not None, op.operands[3] is not None) for op in found]
    if name == "modernbert" and sizes == "fixed":  # 12 tokens are less than its window
        assert set(kinds) == {(False, False, True)}
    else:
        assert ATTENTION[name] in kinds
    assert all(op.operands[3] is None or [str(s) for s in op.operands[3].shape][1:3] == ["1", "1"] for op in found)


@pytest.mark.parametrize("padded", [False, True])
def test_a_window_with_padding(padded, instance):
    """Mistral's window of 8 over 30 tokens, alone and with padding on either side."""
    model, _ = models.MODELS["mistral"]()
    inputs = dict(input_ids=models.ids(2, 30), use_cache=False)
    if padded:
        mask = torch.ones(2, 30, dtype=torch.long)
        mask[0, 25:] = 0
        inputs = dict(input_ids=inputs["input_ids"], attention_mask=mask, use_cache=False)
    module = convert(model, inputs, dynamic_shapes=models.dynamic_shapes(inputs))
    assert {(bool(op.attrs["is_causal"]), op.attrs["first_offset"], op.operands[3] is not None) for op in attentions(module)} == {(True, -7, padded)}
    session = accrt.Program(accrt.Bundle(compile(module, targets=[kh.host_targets()[-1]]), instance)).session()
    models.compare(session, model, inputs)
    for batch, length in ((1, 40), (3, 5)):
        models.compare(session, model, models.resized(inputs, batch, length))


@pytest.mark.parametrize("name", chosen(models.DECODERS, 3))
def test_greedy_tokens(name, instance):
    """32 tokens, each from all before it, are those of torch in float64. Weights and prompts are
    such that at least 8 different tokens come, and that torch's best two are never within 1e-3."""
    rotation.seed()
    model, inputs = models.MODELS[name]()
    grows = "decoder_input_ids" if "decoder_input_ids" in inputs else "input_ids"
    rng = torch.Generator().manual_seed(SEED & 0x7FFFFFFF)
    for attempt in range(60):
        if attempt % 6 == 0:
            # all matrices twice as large, after those of the configuration times 4
            models.scaled(model, 2.0 if attempt else 4.0)
            wide = copy.deepcopy(model).double()
            if name == "mixtral":
                wide.set_experts_implementation("eager")  # the other has no float64
        prompt = {n: torch.randint(3, models.VOCABULARY, (1, 6), generator=rng) if models.is_sequence(v) else v[:1] if isinstance(v, torch.Tensor) else v
                  for n, v in inputs.items()}  # fmt: skip
        wanted, apart = models.greedy(wide, {n: v.double() if isinstance(v, torch.Tensor) and v.is_floating_point() else v for n, v in prompt.items()}, grows, 32)
        if len(set(wanted)) >= 8 and apart > 1e-3:
            break
    else:
        pytest.fail(f"no prompt gives 8 different tokens: the last gives {len(set(wanted))}, {apart:.2g} apart")
    if name == "mamba":  # its length is fixed: 38 tokens, of which those to come are anything
        inputs = dict(inputs, input_ids=models.ids(2, 38))
    module = convert(model, inputs, dynamic_shapes=models.dynamic_shapes(inputs, name))
    session = accrt.Program(accrt.Bundle(compile(module, targets=[kh.host_targets()[-1]]), instance)).session()
    given = {n: v.numpy() for n, v in prompt.items() if isinstance(v, torch.Tensor)}
    tokens = []
    for _ in range(32):
        last = given[grows].shape[1] - 1
        rest = [[3] * (37 - last)] if name == "mamba" else [[]]
        out = session.forward(**dict(given, **{grows: np.concatenate([given[grows], np.array(rest, np.int64)], 1)}))
        logits = np.asarray(out[0] if isinstance(out, (tuple, list)) else out)
        tokens.append(int(logits[0, last].argmax()))
        given[grows] = np.concatenate([given[grows], [[tokens[-1]]]], 1)
    assert tokens == wanted
