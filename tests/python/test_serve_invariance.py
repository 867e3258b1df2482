"""The same tokens and the same log probabilities, bit for bit: alone, among others, in chunks,
after preemption, after a hit of the cache."""

import os
import random

import kernel_harness as kh
import pytest
import tiny_models as tiny
from test_serve_program import Engine

import accrt
from accrt import _ffi, models
from accrt.serve.engine import Engine as SimulatedEngine
from accrt.serve.engine import Model

FLAGS = _ffi.ACCRT_SERVE_SEED | _ffi.ACCRT_SERVE_LOGPROBS | _ffi.ACCRT_SERVE_IGNORE_EOS
OPTIONS = dict(page_size=8, token_buckets=(1, 4, 16, 64), row_buckets=(1, 4, 8), sample_buckets=(1, 4, 8), change_buckets=(4, 16), edit_buckets=(1, 40))


CASES = [(name, "", on) for name in ("llama", "gemma2", "qwen2") for on in kh.host_targets()] + [("llama", kv, kh.host_targets()[-1]) for kv in ("bf16", "fp8")]


@pytest.fixture(scope="module", params=CASES, ids="-".join)
def opened(request, tmp_path_factory):
    name, kv_type, on = request.param
    config = tiny.CONFIGS[name]
    folder = tiny.write_folder(tmp_path_factory.mktemp("invariance") / "Tiny-1", config, tiny.tensors(config, 7, gain=1.0))
    options = models.Options(kv_type=kv_type, **OPTIONS)
    made = models.open(folder, targets=[on], options=options, output=folder.parent / "tiny.accx")
    assert made.info["serve.batch_invariant"] == "host"
    return made


def requests(rng, count):
    begin = [rng.randrange(2, 40) for _ in range(24)]
    for i in range(count):
        prompt = begin[: rng.choice([0, 9, 16, 24])] + [rng.randrange(2, 40) for _ in range(rng.randint(1, 40))]
        yield prompt, rng.randint(2, 24), dict(flags=FLAGS, seed=i, temperature=rng.choice([0.0, 0.8, 1.3]), top_logprobs=5)


def outputs(opened, given, options=None, **program_options):
    with_engine = Engine(opened, {"flags": _ffi.ACCRT_SERVE_ENGINE_BATCH_INVARIANT, **(options or {})}, **program_options)
    numbers = [with_engine.submit(prompt, count, **values) for prompt, count, values in given]
    with_engine.run()
    stats = with_engine.stats()
    with_engine.close()
    return [with_engine.outputs[number][0] for number in numbers], stats


def test_every_bit_is_the_same(opened):
    seed = int(os.environ.get("ACCRT_TEST_SEED") or random.randrange(1 << 32))
    print(f"seed {seed}")
    given = list(requests(random.Random(seed), 12))
    alone = [outputs(opened, [one])[0][0] for one in given]
    for options, program_options in (({}, {}), ({"max_chunk_tokens": 3}, {}), ({"max_chunk_tokens": 7, "max_running": 5}, {})):
        found, stats = outputs(opened, given, options, **program_options)
        assert found == alone, (options, program_options)
    # Four of 70 tokens, which begin in 4 pages each and need 9: one gives way, whatever the seed.
    long = [([(7 * i + k) % 38 + 2 for k in range(30)], 40, dict(flags=FLAGS, seed=i, temperature=0.8, top_logprobs=5)) for i in range(4)]
    found, stats = outputs(opened, long, {}, pages=14)
    assert stats.preemptions > 0 and found == [outputs(opened, [one])[0][0] for one in long]
    twice, stats = outputs(opened, given + given)
    assert stats.cached_tokens > 0 and twice == alone + alone


def test_what_does_not_say_so_is_refused():
    """A model with places for adapters, or one that computes nothing, says nothing of it."""
    with pytest.raises(accrt.UnsupportedError, match="depend on what else is in a step"):
        SimulatedEngine(Model.simulated(), batch_invariant=True)
    SimulatedEngine(Model.simulated(flags=_ffi.ACCRT_SERVE_MODEL_BATCH_INVARIANT), batch_invariant=True).close()
