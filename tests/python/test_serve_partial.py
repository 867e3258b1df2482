"""Pages of the prefix cache that fit in part: the tokens and bits of generation without a cache,
whatever else runs; who shares none; what is counted."""

import ctypes
import random

import kernel_harness as kh
import pytest
import rotation
import serve_http
import tiny_adapters
import tiny_models as tiny
from serve_http import Answer, get, post
from test_serve_adapters import load
from test_serve_program import Engine

from accrt import _ffi, models
from accrt._library import check
from accrt.models._blocks import Decoder

pytestmark = [pytest.mark.one_target, pytest.mark.quick_kernels]
LLAMA = tiny.CONFIGS["llama"]
FLAGS = _ffi.ACCRT_SERVE_SEED | _ffi.ACCRT_SERVE_LOGPROBS | _ffi.ACCRT_SERVE_IGNORE_EOS
INVARIANT = _ffi.ACCRT_SERVE_ENGINE_BATCH_INVARIANT
OPTIONS = dict(page_size=16, token_buckets=(1, 4, 16, 64), row_buckets=(1, 4, 8), sample_buckets=(1, 4, 8, 32), change_buckets=(4, 16), edit_buckets=(1, 40, 300))


def opened_with(folder, name, on, **options):
    folder = tiny.write_folder(folder / "Tiny-1", LLAMA, tiny.tensors(LLAMA, 7, gain=1.0))
    return models.open(folder, targets=[on], options=models.Options(**{**OPTIONS, **options}), output=folder.parent / f"{name}.accx")


@pytest.fixture(scope="module", params=[(on, kv) for on in kh.host_targets() for kv in ("", "bf16", "f16", "fp8")], ids="-".join)
def opened(request, tmp_path_factory):
    return opened_with(tmp_path_factory.mktemp("partial"), "tiny", request.param[0], kv_type=request.param[1])


def requests(rng, count):
    """Prompts that begin alike up to any token; greedy ones and drawn ones, scores, salts and n."""
    begins = [[rng.randrange(256) for _ in range(60)] for _ in range(2)]
    for i in range(count):
        prompt = rng.choice(begins)[: rng.randint(1, 60)] + [rng.randrange(256) for _ in range(rng.randint(1, 4))]
        values = dict(flags=FLAGS, seed=i, temperature=rng.choice([0.0, 0.8]), top_logprobs=3, n=rng.choice([1, 1, 2]))
        if i % 5 == 0:
            values["flags"] |= _ffi.ACCRT_SERVE_PROMPT_LOGPROBS
        if i % 4 == 0:
            values["cache_salt"] = b"salt"
        if i % 7 == 0:
            values["num_speculative_tokens"] = 4
        yield prompt, rng.randint(1, 20), values


def run(opened, given, options=None, **program_options):
    """Requests that come one after the other while those before them run: outputs and figures."""
    rng = random.Random(1)
    engine = Engine(opened, {"flags": INVARIANT, **(options or {})}, **program_options)
    numbers = []
    for prompt, count, values in given:
        numbers.append(engine.submit(prompt, count, **values))
        engine.run() if rng.random() < 0.5 else None
    engine.run()
    stats = engine.stats()
    engine.close()
    assert stats.pages_free + stats.pages_cached == stats.pages and stats.step_failures == 0
    return [engine.outputs[number] for number in numbers], stats


def test_every_bit_is_the_same(opened):
    seed = rotation.seed()
    given = list(requests(random.Random(seed), 24))
    plain, stats = run(opened, given, {"flags": INVARIANT | _ffi.ACCRT_SERVE_ENGINE_NO_CACHE})
    assert stats.cached_tokens == 0 or any(values["n"] > 1 for _, _, values in given)
    for options, program_options in (({}, {}), ({"max_chunk_tokens": 5}, {}), ({"num_speculative_tokens": 3}, {}), ({}, {"pages": 14}), ({"max_step_tokens": 9}, {"max_rows": 4})):
        found, stats = run(opened, given, options, **program_options)
        assert found == plain, (options, program_options)
        assert 0 < stats.partial_hits <= stats.copied_tokens < 16 * stats.partial_hits


def test_what_is_copied_is_not_computed(opened):
    begin = list(range(100, 150))
    given = [(begin, 2, dict(flags=FLAGS)), ([*begin[:45], 1, 2], 2, dict(flags=FLAGS)), (begin[:45], 2, dict(flags=FLAGS)), (begin[:9], 2, dict(flags=FLAGS))]
    engine = Engine(opened)
    for prompt, count, values in given:
        engine.submit(prompt, count, **values)
        engine.run()
    stats = engine.stats()
    # 45 - 32 of the third page, and of prompts without other tokens all but the last
    assert (stats.partial_hits, stats.copied_tokens) == (3, 13 + 12 + 8) and stats.cached_tokens == 45 + 44 + 8
    assert stats.computed_tokens == sum(len(prompt) + 1 for prompt, _, _ in given) - stats.cached_tokens
    engine.close()


def test_salts_share_nothing(opened):
    begin = list(range(100, 140))
    engine = Engine(opened)
    for salt in (None, b"a", b"b"):
        engine.submit(begin, 2, cache_salt=salt)
        engine.run()
        assert engine.stats().cached_tokens == 0
    for hits, salt in enumerate((None, b"a", b"b"), 1):
        engine.submit([*begin[:11], 1], 2, cache_salt=salt)
        engine.run()
        assert (engine.stats().partial_hits, engine.stats().cached_tokens) == (hits, 11 * hits)
    engine.submit([*begin[:11], 2], 2, flags=_ffi.ACCRT_SERVE_NO_CACHE)
    engine.run()
    assert engine.stats().partial_hits == 3
    engine.close()


def test_adapters_share_nothing(tmp_path):
    weights = tiny.tensors(LLAMA, 7, gain=1.0)
    opened = opened_with(tmp_path, "adapted", kh.host_targets()[-1], adapters=2, max_rank=2)
    layout = __import__("json").loads(bytes(__import__("accrt").Bundle(opened.bundle).assets["serve.adapters"].data))
    read = [models.read_adapter(tiny_adapters.write_adapter(tmp_path / str(i), tiny_adapters.random_adapter(weights, i, rank=2), alpha=3.0), layout) for i in range(2)]
    begin, outputs = list(range(100, 140)), []
    for cached in (False, True):
        engine = Engine(opened)
        for name, adapter in zip("ab", read):
            check(load(engine, name, adapter.tensors))
        for adapter in (None, b"a", b"b"):
            if cached:
                engine.submit(begin, 2, adapter=adapter)
                engine.run()
                assert engine.stats().cached_tokens == 0
        outputs.append([])
        for adapter in (None, b"a", b"b"):
            number = engine.submit([*begin[:27], 1], 6, adapter=adapter)
            engine.run()
            outputs[-1].append(engine.outputs[number][0]["tokens"])
        assert engine.stats().partial_hits == (3 if cached else 0) and engine.stats().copied_tokens == (33 if cached else 0)
        engine.close()
    assert outputs[0] == outputs[1]


def test_a_bundle_without_the_function_copies_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(Decoder, "_copy_rows", lambda self: None)
    opened = opened_with(tmp_path, "old", kh.host_targets()[-1])
    engine = Engine(opened)
    info = _ffi.accrt_serve_model_info(ctypes.sizeof(_ffi.accrt_serve_model_info))
    check(__import__("accrt")._library.lib.accrt_serve_model_info(engine.model, ctypes.byref(info)))
    assert info.min_copy_tokens == 0
    for prompt in (list(range(40)), [*range(20), 99]):
        engine.submit(prompt, 3)
        engine.run()
    assert engine.stats().cached_tokens == 16 and engine.stats().partial_hits == 0
    engine.close()


def test_the_server_counts_them():
    serve_http.need_server()
    with serve_http.served(model={"min_copy_tokens": 1}) as server:
        for prompt in ("a prompt of more than a page", "a prompt of more than many pages"):
            body = {"prompt": prompt, "max_tokens": 8, "temperature": 0, "ignore_eos": True}
            found = Answer(server.raw(post("/v1/completions", body))).json
        assert found["usage"]["prompt_tokens_details"]["cached_tokens"] == 22
        text = Answer(server.raw(get("/metrics"))).body.decode()
        values = {line.split("{")[0].split()[0]: float(line.split()[-1]) for line in text.splitlines() if line and line[0] != "#"}
        assert values["accrt:prefix_cache_partial_hits_total"] == 1 and values["accrt:prefix_cache_copied_tokens_total"] == 6
        assert values["vllm:prefix_cache_hits_total"] == 22
