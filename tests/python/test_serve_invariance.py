"""The same tokens and the same log probabilities, bit for bit: alone, among others, in chunks,
after preemption, after a hit of the cache."""

import json
import random

import family_models as family
import kernel_harness as kh
import pytest
import rotation
import tiny_adapters
import tiny_models as tiny
from test_serve_adapters import load
from test_serve_program import Engine

import accrt
from accrt import _ffi, models
from accrt._library import check
from accrt.models._blocks import Decoder
from accrt.serve.engine import Engine as SimulatedEngine
from accrt.serve.engine import Model

pytestmark = pytest.mark.one_target  # of this machine's, in a run of the whole folder
FLAGS = _ffi.ACCRT_SERVE_SEED | _ffi.ACCRT_SERVE_LOGPROBS | _ffi.ACCRT_SERVE_IGNORE_EOS
OPTIONS = dict(page_size=8, token_buckets=(1, 4, 16, 64), row_buckets=(1, 4, 8), sample_buckets=(1, 4, 8), change_buckets=(4, 16), edit_buckets=(1, 40))


CASES = [(name, "", on) for name in ("llama", "gemma2", "qwen2") for on in kh.host_targets()] + [("llama", kv, kh.host_targets()[-1]) for kv in ("bf16", "fp8")]
#: Experts, as they are and packed.
CASES += [(name, "", kh.host_targets()[-1]) for name in ("mixtral", "qwen3-moe-blocks")]
#: Scans, whose states stand at the ends of pages.
CASES += [(name, "", kh.host_targets()[-1]) for name in ("granite4-mamba", "falcon-h1", "qwen3-next", "jamba", "minimax")]
#: Layers that see the keys and values of others.
CASES += [("gemma3n", "", kh.host_targets()[-1])]


@pytest.fixture(scope="module", params=CASES, ids="-".join)
def opened(request, tmp_path_factory):
    name, kv_type, on = request.param
    place = tmp_path_factory.mktemp("invariance")
    if name in family.GGUF:
        folder = place / "Tiny-1.gguf"
        family.write_gguf(folder, name, "Q8_0")
    elif name in family.CONFIGS:
        folder = family.write(place / "Tiny-1", name)[0]
    else:
        config = tiny.CONFIGS[name]
        folder = tiny.write_folder(place / "Tiny-1", config, tiny.tensors(config, 7, gain=1.0))
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
    seed = rotation.seed()
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


# ---- With adapters ----

PLACES = 3


@pytest.fixture(scope="module", params=[(name, on) for name in ("llama", "gemma2", "qwen2") for on in kh.host_targets()], ids="-".join)
def adapted(request, tmp_path_factory):
    """A model with places, and what adapters of different ranks have in them."""
    name, on = request.param
    config, place = tiny.CONFIGS[name], tmp_path_factory.mktemp("adapted")
    weights = tiny.tensors(config, 7, gain=1.0)
    folder = tiny.write_folder(place / "Tiny-1", config, weights)
    made = models.open(folder, targets=[on], options=models.Options(adapters=PLACES, max_rank=5, **OPTIONS), output=place / "tiny.accx")
    assert made.info["serve.batch_invariant"] == "host"
    layout = json.loads(bytes(accrt.Bundle(made.bundle).assets["serve.adapters"].data))
    read = {}
    for i, rank in enumerate((5, 1, 4)):
        adapter = tiny_adapters.random_adapter(weights, i, rank=rank)
        read["abc"[i]] = models.read_adapter(tiny_adapters.write_adapter(place / str(i), adapter, alpha=6.0), layout).tensors
    return made, read


def adapted_outputs(adapted, given, names="abc", options=None, **program_options):
    """`names`: of the adapters that are loaded, in the order of their places."""
    made, tensors = adapted
    engine = Engine(made, {"flags": _ffi.ACCRT_SERVE_ENGINE_BATCH_INVARIANT, **(options or {})}, **program_options)
    for name in names:
        check(load(engine, name, tensors[name]))
    numbers = [engine.submit(prompt, count, adapter=adapter, **values) for adapter, (prompt, count, values) in given]
    engine.run()
    engine.close()
    return [engine.outputs[number][0] for number in numbers]


def test_every_bit_is_the_same_with_adapters(adapted):
    """Alone, beside requests of other adapters and of none, in chunks, in other places; and where
    steps have no adapter at all, which another function computes."""
    seed = rotation.seed()
    rng = random.Random(seed)
    given = [(rng.choice([None, b"a", b"b", b"c"]) if i > 3 else (None, b"a", b"b", b"c")[i], one) for i, one in enumerate(requests(rng, 12))]
    alone = [adapted_outputs(adapted, [(adapter, one)], adapter.decode() if adapter else "")[0] for adapter, one in given]
    assert len({str(adapted_outputs(adapted, [(adapter, given[0][1])])) for adapter in (None, b"a", b"b", b"c")}) == 4
    for names, options, program_options in (("abc", {}, {}), ("cab", {"max_chunk_tokens": 3}, {}), ("bca", {"max_chunk_tokens": 7, "max_running": 5}, {"pages": 40})):
        assert adapted_outputs(adapted, given, names, options, **program_options) == alone, (names, options)


def test_steps_without_adapters_are_another_function_s(tmp_path, monkeypatch):
    """One that is made to say the opposite here: its steps are those in which no row has one."""
    config, forward = tiny.CONFIGS["llama"], Decoder._forward
    weights = tiny.tensors(config, 7, gain=1.0)

    def opposite(self, name, doc, result, last, adapters=True):
        forward(self, name, doc, result, last if adapters else lambda x: last(x) * -1.0, adapters)

    folder, found = tiny.write_folder(tmp_path / "Tiny-1", config, weights), {}
    for kind in ("as it is", "opposite"):
        if kind == "opposite":
            monkeypatch.setattr(Decoder, "_forward", opposite)
        options = models.Options(adapters=1, max_rank=2, **OPTIONS)
        made = models.open(folder, targets=[kh.host_targets()[-1]], options=options, output=tmp_path / f"{kind}.accx")
        layout = json.loads(bytes(accrt.Bundle(made.bundle).assets["serve.adapters"].data))
        adapter = tiny_adapters.write_adapter(tmp_path / "adapter", tiny_adapters.random_adapter(weights, 1, rank=2))
        one, none = (b"a", ([3, 4, 5], 1, dict(flags=FLAGS))), (None, ([3, 4, 5], 1, dict(flags=FLAGS)))
        adapted = made, {"a": models.read_adapter(adapter, layout).tensors}
        found[kind] = [adapted_outputs(adapted, given, "a") for given in ([one], [none], [one, none])]
    assert found["opposite"][0] == found["as it is"][0] and found["opposite"][2] == found["as it is"][2]
    assert found["opposite"][1] != found["as it is"][1]


def test_what_does_not_say_so_is_refused():
    """A model that computes nothing says nothing of it."""
    with pytest.raises(accrt.UnsupportedError, match="depend on what else is in a step"):
        SimulatedEngine(Model.simulated(), batch_invariant=True)
    SimulatedEngine(Model.simulated(flags=_ffi.ACCRT_SERVE_MODEL_BATCH_INVARIANT), batch_invariant=True).close()
