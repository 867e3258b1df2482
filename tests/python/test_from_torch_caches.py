"""accrt.from_torch of decoders of transformers: as a newcomer calls it, and with a static cache
that lives from call to call."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import accrt
import kernel_harness as kh
from accrt.from_torch import convert, exported, Method

torch = pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")
pytestmark = [pytest.mark.torch, pytest.mark.quick_kernels]

SEED = kh.SEED


def decoder():
    torch.manual_seed(SEED & 0x7FFFFFFF)
    config = transformers.LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
                                      num_key_value_heads=2, max_position_embeddings=64)  # fmt: skip
    model = transformers.LlamaForCausalLM(config).eval()
    for parameter in model.parameters():  # so that tokens differ
        parameter.data.mul_(4)
    return model


def session_of(model, args, instance, **options):
    from accrt.compiler import compile

    module = convert(model, args, **options)
    return accrt.Program(accrt.Bundle(compile(module, targets=[kh.host_targets()[-1]]), instance)).session(), module


def test_a_decoder_as_it_is(instance):
    """Its cache is an object that torch does not know: it is left out, and one line says so."""
    model, tokens = decoder(), torch.arange(6)[None] + 3
    with pytest.warns(UserWarning, match="LlamaForCausalLM is exported with use_cache=False.*docs/from-torch.md") as said:
        session, module = session_of(model, dict(input_ids=tokens), instance)
    assert sum("use_cache" in str(w.message) for w in said) == 1
    assert [result.name for result in module.functions["forward"].results] == ["logits"]
    with torch.no_grad():
        wanted = model.double()(tokens).logits.numpy()
    np.testing.assert_allclose(np.asarray(session.forward(tokens.numpy())), wanted, rtol=1e-4, atol=1e-4 * np.sqrt((wanted**2).mean()))


@pytest.mark.parametrize("given", [dict(use_cache=False), dict(use_cache=None)])
def test_who_says_what_the_cache_is_hears_nothing(given):
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            convert(decoder(), dict(input_ids=torch.arange(6)[None], **given))
        except RuntimeError as error:  # torch's own, of what was asked for
            assert given["use_cache"] is None and "DynamicCache" in str(error)
    assert not [w for w in said if "use_cache" in str(w.message)]


@pytest.mark.parametrize("from_files", [False, True])
def test_a_static_cache_is_states_of_prefill_and_decode(from_files, instance, tmp_path):
    from transformers.integrations.executorch import TorchExportableModuleWithStaticCache

    model = decoder()
    model.generation_config.use_cache, model.generation_config.cache_implementation = True, "static"
    with torch.no_grad():
        cached = TorchExportableModuleWithStaticCache(model, batch_size=1, max_cache_len=24)
    prompt = torch.tensor([[3, 9, 17, 40, 8]])
    size = torch.export.Dim("tokens", max=24)
    functions = {
        "prefill": Method(cached, kwargs=dict(input_ids=prompt, cache_position=torch.arange(5)), dynamic_shapes=dict(input_ids={1: size}, cache_position={0: size})),
        "decode": Method(cached, kwargs=dict(input_ids=prompt[:, :1], cache_position=torch.tensor([5]))),
    }  # fmt: skip
    if from_files:
        for name, method in functions.items():
            torch.export.save(exported(method.model, (), method.kwargs, method.dynamic_shapes), tmp_path / f"{name}.pt2")
        functions = {name: tmp_path / f"{name}.pt2" for name in functions}
    session, module = session_of(functions, (), instance)
    assert from_files or {f"key_cache_{i}" for i in range(2)} | {f"value_cache_{i}" for i in range(2)} <= set(module.states)
    assert len(module.states) == 6, module.states  # keys, values and a length of each layer
    assert "model.model.layers.1.mlp.up_proj.weight" in module.constants and not [name for name in module.constants if name.endswith("_2")]
    for first in ([3, 9, 17, 40, 8], [60, 2, 2]):
        tokens = list(first)
        logits = np.asarray(session.prefill(np.array([tokens]), np.arange(len(tokens))))[:, -1]
        for _step in range(12):
            with torch.no_grad():
                wanted = model(torch.tensor([tokens]), use_cache=False).logits[:, -1].numpy()
            np.testing.assert_allclose(logits, wanted, rtol=1e-3, atol=1e-4 * np.abs(wanted).max())
            tokens.append(int(wanted.argmax()))
            logits = np.asarray(session.decode(np.array([tokens[-1:]]), np.array([len(tokens) - 1])))[:, -1]
        assert len(set(tokens[len(first) :])) > 2
        session.reset()
