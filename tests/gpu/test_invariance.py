"""Bundles that are made batch-invariant, on a GPU: the same tokens and the same log probabilities,
bit for bit, alone, among others, in chunks, after preemption and after a hit of the cache; with
adapters and without; models of experts too, plain and packed."""

from __future__ import annotations

import json
import os
import pathlib
import random
import sys
import tempfile

import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, os.pardir, "python")]

import family_models as family  # noqa: E402
import test_ops  # noqa: E402
import tiny_adapters  # noqa: E402
import tiny_models as tiny  # noqa: E402

#: Heads of 64 for the tensor cores' attention; products that several tiles make, with sums long
#: enough that an algorithm would share them out.
WIDE = {**tiny.CONFIGS["llama"], "hidden_size": 512, "intermediate_size": 2048, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64}
CONFIGS = {"wide": WIDE, "qwen2": tiny.CONFIGS["qwen2"], "gemma2": tiny.CONFIGS["gemma2"], "adapted": WIDE}
#: Of the families' tests: a folder, and a GGUF file whose matrices stay packed.
EXPERTS = {"experts": ("mixtral", ""), "packed_experts": ("qwen3-moe-blocks", "Q8_0")}
NAMES = (*CONFIGS, *EXPERTS)
PLACES, RANK = 3, 5
SEED = int(os.environ.get("ACCRT_TEST_SEED", "20261128"))


def written(name, path):
    if name in EXPERTS:
        config, packed = EXPERTS[name]
        if packed:
            family.write_gguf(path / "m.gguf", config, packed)
            return path / "m.gguf", {}
        return family.write(path / "m", config, dtype="BF16")
    config = CONFIGS[name]
    weights = {key: tiny.to_bf16(array) for key, array in tiny.tensors(config, SEED, gain=1.0).items()}
    return tiny.write_folder(path / "m", config, weights, "BF16"), weights


def decoder(name, folder, batch_invariant=True):
    from accrt import models

    places = {"adapters": PLACES, "max_rank": RANK} if name == "adapted" else {}
    options = models.Options(page_size=16, token_buckets=(1, 4, 16, 64, 256), row_buckets=(1, 4, 8, 32), sample_buckets=(1, 4, 8, 32), change_buckets=(4, 64),
                             edit_buckets=(1, 64), batch_invariant=batch_invariant, **places)  # fmt: skip
    return models.decoder(models.read(folder), options)


def module(name):
    """For prebuild.py."""
    with tempfile.TemporaryDirectory() as path:
        return decoder(name, written(name, pathlib.Path(path))[0]).build()


@pytest.fixture(scope="module", params=NAMES)
def opened(request, tmp_path_factory):
    """(name, program, {adapter: tensors})"""
    name = request.param
    why = test_ops.reason(f"invariant_{name}")
    if why:
        pytest.skip(why)
    import accrt
    from accrt import models

    place = tmp_path_factory.mktemp(name)
    folder, weights = written(name, place)
    instance, made = accrt.default_instance("all"), decoder(name, folder)
    bundle = accrt.Bundle(test_ops.built(f"invariant_{name}", made.build()), instance)
    assert bundle.metadata["serve.batch_invariant"] == "all"
    program, read = bundle.program(device=instance.device("cuda:0"), weights=list(models.read(folder).weights)), {}
    if name == "adapted":
        from accrt.models import _peft

        layout = _peft.layout_of(made)
        for i, rank in enumerate((RANK, 1, 4)):
            adapter = tiny_adapters.random_adapter(weights, i, rank=rank)
            read["abc"[i]] = models.read_adapter(tiny_adapters.write_adapter(place / str(i), adapter, alpha=6.0), json.loads(json.dumps(layout))).tensors
    return name, program, read


def values_of(seed, temperature):
    from accrt import _ffi

    return {"flags": _ffi.ACCRT_SERVE_SEED | _ffi.ACCRT_SERVE_LOGPROBS | _ffi.ACCRT_SERVE_IGNORE_EOS, "seed": seed, "temperature": temperature, "top_logprobs": 5}


def requests(rng, count, adapters):
    begin = [rng.randrange(2, 250) for _ in range(48)]
    for i in range(count):
        prompt = begin[: rng.choice([0, 9, 16, 48])] + [rng.randrange(2, 250) for _ in range(rng.randint(1, 90))]
        yield (None, *adapters)[i % (1 + len(adapters))], (prompt, rng.randint(2, 24), values_of(i, rng.choice([0.0, 0.8, 1.3])))


def outputs(opened, given, options=None, **program_options):
    import test_served_engine
    from test_serve_adapters import load

    from accrt import _ffi
    from accrt._library import check

    _name, program, adapters = opened
    engine = test_served_engine.Engine(program, {"flags": _ffi.ACCRT_SERVE_ENGINE_BATCH_INVARIANT, **(options or {})}, max_length=256, **program_options)
    for adapter, tensors in adapters.items():
        check(load(engine, adapter, tensors))
    numbers = [engine.submit(prompt, count, adapter=adapter.encode() if adapter else None, **values) for adapter, (prompt, count, values) in given]
    engine.run()
    stats = engine.stats()
    engine.close()
    found = [engine.outputs[number][0] for number in numbers]
    assert stats.step_failures == 0 and all(one["status"] == 0 and one["tokens"] and one["logprobs"] for one in found)
    return found, stats


def test_every_bit_is_the_same(opened):
    print(f"seed {SEED}")
    given = list(requests(random.Random(SEED), 24, list(opened[2])))
    alone = [outputs(opened, [one])[0][0] for one in given]
    for options, program_options in (({}, {}), ({"max_chunk_tokens": 3}, {}), ({"max_chunk_tokens": 50, "max_running": 9}, {})):
        assert outputs(opened, given, options, **program_options)[0] == alone, options
    twice, stats = outputs(opened, given + given)
    assert stats.cached_tokens > 0 and twice == alone + alone


def test_with_drafts_and_without_overlap(opened):
    """Texts of four tokens have drafts, right ones and wrong ones."""
    from accrt import _ffi

    rng = random.Random(SEED)
    given = []
    for i in range(12):
        biases = (_ffi.accrt_serve_bias * 4)(*[_ffi.accrt_serve_bias(token, 80.0) for token in rng.sample(range(2, 250), 4)])
        prompt = [rng.choice(biases).token for _ in range(rng.randint(1, 40))]
        given.append((None, (prompt, 40, {**values_of(i, rng.choice([0.0, 0.8, 1.3])), "biases": biases, "bias_count": 4})))
    alone = [outputs(opened, [one])[0][0] for one in given]
    found, stats = outputs(opened, given, {"num_speculative_tokens": 5})
    assert 0 < stats.accepted_tokens < stats.draft_tokens and found == alone
    flags = _ffi.ACCRT_SERVE_ENGINE_BATCH_INVARIANT | _ffi.ACCRT_SERVE_ENGINE_NO_OVERLAP
    assert outputs(opened, given, {"flags": flags})[0] == alone


def test_after_preemption(opened):
    given = [(None, ([(7 * i + k) % 238 + 2 for k in range(60)], 60, values_of(i, 0.8))) for i in range(4)]
    found, stats = outputs(opened, given, pages=18)
    assert stats.preemptions > 0 and found == [outputs(opened, [one])[0][0] for one in given]


def test_other_bundles_are_refused(tmp_path):
    """Whose metadata does not promise it."""
    why = test_ops.reason("served_engine")
    if why:
        pytest.skip(why)
    import test_served_engine
    import test_served_models

    import accrt
    from accrt import _ffi, models

    folder, instance = test_served_models.written("llama", tmp_path)[0], accrt.default_instance("all")
    bundle = accrt.Bundle(test_ops.built("served_engine", test_served_engine.module()), instance)
    program = bundle.program(device=instance.device("cuda:0"), weights=list(models.read(folder).weights))
    with pytest.raises(accrt.UnsupportedError, match="depend on what else is in a step"):
        test_served_engine.Engine(program, {"flags": _ffi.ACCRT_SERVE_ENGINE_BATCH_INVARIANT})
