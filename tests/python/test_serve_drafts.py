"""Drafts from the text itself (n-gram speculation): the tokens and bits of generation without them,
whatever else runs, and what is counted."""

import ctypes
import random

import kernel_harness as kh
import pytest
import rotation
import serve_http
import tiny_models as tiny
from serve_http import Answer, get, post
from test_serve_program import generate

import accrt
from accrt import _ffi, models, serve

pytestmark = [pytest.mark.one_target, pytest.mark.quick_kernels]
LLAMA = tiny.CONFIGS["llama"]
FLAGS = _ffi.ACCRT_SERVE_SEED | _ffi.ACCRT_SERVE_IGNORE_EOS
INVARIANT = {"flags": _ffi.ACCRT_SERVE_ENGINE_BATCH_INVARIANT}
OPTIONS = dict(page_size=8, token_buckets=(1, 4, 16, 64), row_buckets=(1, 4, 8), sample_buckets=(1, 4, 8, 32), change_buckets=(4, 16), edit_buckets=(1, 40, 300))


@pytest.fixture(scope="module", params=kh.host_targets())
def opened(request, tmp_path_factory):
    folder = tiny.write_folder(tmp_path_factory.mktemp("drafts") / "Tiny-1", LLAMA, tiny.tensors(LLAMA, 7, gain=1.0))
    return models.open(folder, targets=[request.param], options=models.Options(**OPTIONS), output=folder.parent / "tiny.accx")


def requests(rng, count):
    """Texts that repeat themselves, greedy ones and drawn ones, with what drafts must not change:
    scores, ends, biases, penalties."""
    stops = (ctypes.c_int32 * 1)(rng.randrange(256))
    begin = [rng.randrange(256) for _ in range(6)]
    for i in range(count):
        prompt = begin * rng.choice([1, 3, 5]) + [rng.randrange(256) for _ in range(rng.randint(0, 9))]
        values = dict(flags=FLAGS | rng.choice([0, _ffi.ACCRT_SERVE_LOGPROBS]), seed=i, temperature=rng.choice([0.0, 0.0, 0.1, 1.0]), top_logprobs=3, n=rng.choice([1, 1, 2]))
        if i % 4 == 0:
            values.update(repetition_penalty=1.1)
        if i % 5 == 0:
            bias = (_ffi.accrt_serve_bias * 1)(_ffi.accrt_serve_bias(prompt[-1], 5.0))
            values.update(biases=bias, bias_count=1)
        if i % 3 == 0:
            values["flags"] |= _ffi.ACCRT_SERVE_PROMPT_LOGPROBS
        if i % 2 == 0:
            values.update(stop_tokens=stops, stop_token_count=1)
        yield prompt, rng.randint(1, 60), values


def test_every_bit_is_the_same(opened):
    seed = rotation.seed()
    given = list(requests(random.Random(seed), 12))
    plain = [generate(opened, [one], INVARIANT)[0][0] for one in given]
    drafts = {**INVARIANT, "num_speculative_tokens": 5}
    accepted = 0
    for options, program_options in (({}, {}), ({"max_chunk_tokens": 3}, {}), ({"prompt_lookup_min": 1, "prompt_lookup_max": 1}, {"max_rows": 2}),
                                     ({"num_speculative_tokens": 32}, {"pages": 26}), ({"max_step_tokens": 9}, {})):  # fmt: skip
        found, stats = generate(opened, given + given, {**drafts, **options}, **program_options)
        assert found == plain + plain, (options, program_options)
        assert stats.pages_free + stats.pages_cached == stats.pages and stats.step_failures == 0
        assert stats.accepted_tokens <= stats.draft_tokens <= stats.drafts * 32
        accepted += stats.accepted_tokens
    assert accepted > 0


def test_what_repeats_takes_fewer_steps(opened):
    prompt, flags = [5, 6, 7, 8] * 3, _ffi.ACCRT_SERVE_IGNORE_EOS
    bias = (_ffi.accrt_serve_bias * 1)(_ffi.accrt_serve_bias(9, 1000.0))
    one = (prompt, 60, dict(flags=flags, biases=bias, bias_count=1))
    (plain,), without = generate(opened, [one])
    (found,), stats = generate(opened, [one], {"num_speculative_tokens": 7})
    assert found == plain and without.drafts == 0 and without.steps == 60
    assert stats.steps < 15 and stats.accepted_tokens >= 49 and stats.computed_tokens >= without.computed_tokens
    (found,), stats = generate(opened, [(prompt, 60, {**one[2], "num_speculative_tokens": 3})])
    assert found == plain and stats.draft_tokens == 3 * stats.drafts > 0
    for values in ({"flags": flags | _ffi.ACCRT_SERVE_NO_SPECULATION}, {"repetition_penalty": 1.1}):
        _, stats = generate(opened, [(prompt, 60, {**one[2], **values})], {"num_speculative_tokens": 7})
        assert stats.drafts == 0 and stats.steps == 60
    found, stats = generate(opened, [(prompt, new, one[2]) for new in (1, 2, 3, 5, 8)], {"num_speculative_tokens": 32})
    assert [o[0]["tokens"] for o in found] == [plain[0]["tokens"][:new] for new in (1, 2, 3, 5, 8)]


def test_options_of_python():
    with accrt.LLM(serve.simulated(repeat=9), num_speculative_tokens=4, prompt_lookup_max=3, prompt_lookup_min=1) as llm:
        parameters = {"max_tokens": 300, "temperature": 0, "ignore_eos": True}
        plain = llm.generate("x", num_speculative_tokens=0, **parameters)
        assert llm.engine.stats()["drafts"] == 0
        assert llm.generate("x", **parameters).token_ids == plain.token_ids
        stats = llm.engine.stats()
        assert 0 < stats["accepted_tokens"] < stats["draft_tokens"] <= 4 * stats["drafts"]
        stop = plain.text[40:43]
        whole, cut = (llm.generate("x", stop=stop, num_speculative_tokens=one, **parameters) for one in (0, 9))
        assert (whole.text, whole.token_ids, whole.finish_reason) == (cut.text, cut.token_ids, cut.finish_reason)
        with pytest.raises(accrt.BadParameter, match="num_speculative_tokens is 33"):
            llm.generate("x", num_speculative_tokens=33)
    for options in ({"num_speculative_tokens": 33}, {"prompt_lookup_max": 33}, {"prompt_lookup_min": 33}, {"prompt_lookup_min": 5, "prompt_lookup_max": 4}):
        with pytest.raises(accrt.Error):
            accrt.LLM(serve.simulated(), **options).close()


def test_who_leaves_in_the_middle():
    with accrt.LLM(serve.simulated(repeat=20, step_ns=100_000), num_speculative_tokens=8) as llm:
        for i in range(6):
            for k, _piece in enumerate(llm.stream(f"prompt {i}", max_tokens=500, ignore_eos=True, temperature=0)):
                if k == 5 * i:
                    break
        assert serve_http.until(lambda: serve_http.holds_no_page(llm.engine)) and llm.engine.stats()["accepted_tokens"] > 0


def test_the_server_counts_them():
    serve_http.need_server()
    body = {"prompt": "abc", "max_tokens": 200, "temperature": 0, "ignore_eos": True}
    with serve_http.served(model={"repeat": 9}, engine={"num_speculative_tokens": 4}) as server:
        found = Answer(server.raw(post("/v1/completions", body))).json
        plain = Answer(server.raw(post("/v1/completions", {**body, "num_speculative_tokens": 0}))).json
        assert found["choices"] == plain["choices"] and found["usage"]["completion_tokens"] == 200
        lines = dict(line.split(b" ") for line in Answer(server.raw(get("/metrics"))).body.splitlines() if line.startswith(b"vllm:spec_decode"))
        names = [b"vllm:spec_decode_num_drafts_total", b"vllm:spec_decode_num_draft_tokens_total", b"vllm:spec_decode_num_accepted_tokens_total"]
        drafts, tokens, accepted = (float(next(value for key, value in lines.items() if key.startswith(name))) for name in names)
        assert 0 < accepted < tokens <= 4 * drafts
