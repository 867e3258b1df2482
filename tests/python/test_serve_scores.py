"""Log probabilities of prompts (echo, prompt_logprobs): the bits of generation, whatever else runs;
the reference's numbers; the server's form of them."""

import random

import kernel_harness as kh
import numpy as np
import pytest
import rotation
import serve_http
import tiny_models as tiny
from serve_http import Answer, get, post
from test_serve_program import Engine, generate

import accrt
from accrt import _ffi, models, serve
from accrt.serve.engine import Engine as SimulatedEngine
from accrt.serve.engine import Model

pytestmark = [pytest.mark.one_target, pytest.mark.quick_kernels]
LLAMA = tiny.CONFIGS["llama"]
SCORED = _ffi.ACCRT_SERVE_PROMPT_LOGPROBS | _ffi.ACCRT_SERVE_IGNORE_EOS | _ffi.ACCRT_SERVE_SEED
ONLY = SCORED | _ffi.ACCRT_SERVE_SCORE_ONLY
OPTIONS = dict(page_size=8, token_buckets=(1, 4, 16, 64), row_buckets=(1, 4, 8), sample_buckets=(1, 4, 8, 16), change_buckets=(4, 16), edit_buckets=(1, 40))


@pytest.fixture(scope="module")
def weights():
    return tiny.tensors(LLAMA, 7, gain=1.0)


@pytest.fixture(scope="module", params=kh.host_targets())
def opened(request, tmp_path_factory, weights):
    folder = tiny.write_folder(tmp_path_factory.mktemp("scores") / "Tiny-1", LLAMA, weights)
    return models.open(folder, targets=[request.param], options=models.Options(**OPTIONS), output=folder.parent / "tiny.accx")


def run(opened, requests, options=None, **program_options):
    outputs, stats = generate(opened, requests, options, **program_options)
    assert stats.step_failures == 0
    return outputs, stats


def one_at_a_time(opened, prompt, top):
    """Each token of the prompt drawn from the tokens before it, by force."""
    found = [None]
    for i in range(1, len(prompt)):
        bias = (_ffi.accrt_serve_bias * 1)(_ffi.accrt_serve_bias(prompt[i], 1e30))
        flags = _ffi.ACCRT_SERVE_LOGPROBS | _ffi.ACCRT_SERVE_IGNORE_EOS
        (output,), _ = run(opened, [(prompt[:i], 1, dict(flags=flags, top_logprobs=top, biases=bias, bias_count=1))])
        found += output[0]["logprobs"]
    return found


def test_scores_are_those_of_one_token_at_a_time(opened, weights):
    prompt = [72, 101, 108, 108, 111, 3, 250, 17, 72, 101, 9, 9, 9, 200]
    expected = one_at_a_time(opened, prompt, 5)
    (output,), _ = run(opened, [(prompt, 0, dict(flags=ONLY, prompt_top_logprobs=5))])
    assert output["prompt"][1:] == expected[1:]
    assert output["prompt"][0] == [(72, 0.0)] + [(-1, 0.0)] * 5
    assert output[0]["tokens"] == [] and output[0]["reason"] == _ffi.ACCRT_SERVE_FINISH_LENGTH
    logits = tiny.reference(LLAMA, weights, prompt)[0].astype(np.float64)
    for row, token, entries in zip(logits, prompt[1:], output["prompt"][1:]):
        exact = row - row.max() - np.log(np.exp(row - row.max()).sum())
        assert abs(exact[token] - entries[0][1]) < 1e-3
        assert np.allclose([p for _, p in entries[1:]], np.sort(exact)[::-1][:5], atol=1e-3)


def test_what_is_generated_is_scored_the_same(opened):
    """As lm-eval-harness asks whether a continuation is the most probable one: the log probability
    is the largest alternative's, bit for bit."""
    flags = _ffi.ACCRT_SERVE_LOGPROBS | _ffi.ACCRT_SERVE_IGNORE_EOS
    prompt = [5, 6, 7, 8, 9]
    (drawn,), _ = run(opened, [(prompt, 40, dict(flags=flags, top_logprobs=1))])
    whole = prompt + drawn[0]["tokens"]
    (scored,), _ = run(opened, [(whole, 1, dict(flags=SCORED | flags, prompt_top_logprobs=1, top_logprobs=1))])
    assert scored["prompt"][len(prompt) :] == drawn[0]["logprobs"]
    assert all(own[1] == best[1] for own, best in scored["prompt"][len(prompt) :])
    other = list(whole)
    other[20] = (other[20] + 1) % 256
    (scored,), _ = run(opened, [(other, 1, dict(flags=SCORED, prompt_top_logprobs=1))])
    assert scored["prompt"][20][0][1] < scored["prompt"][20][1][1]


def random_scored(rng, count):
    begin = [rng.randrange(256) for _ in range(24)]
    for i in range(count):
        prompt = begin[: rng.choice([0, 9, 16, 24])] + [rng.randrange(256) for _ in range(rng.randint(1, 40))]
        flags = rng.choice([SCORED, ONLY, SCORED | _ffi.ACCRT_SERVE_LOGPROBS, _ffi.ACCRT_SERVE_SEED | _ffi.ACCRT_SERVE_IGNORE_EOS])
        new = 0 if flags == ONLY else rng.randint(1, 20)
        yield prompt, new, dict(flags=flags, seed=i, temperature=rng.choice([0.0, 0.9]), prompt_top_logprobs=rng.choice([0, 3]), top_logprobs=2, n=rng.choice([1, 1, 3]))


def test_the_same_bits_among_others(opened):
    """In chunks, with few samples a step, after preemption, with pages of the cache, in several
    sequences."""
    seed = rotation.seed()
    given = list(random_scored(random.Random(seed), 12))
    invariant = {"flags": _ffi.ACCRT_SERVE_ENGINE_BATCH_INVARIANT}
    alone = [run(opened, [one], invariant)[0][0] for one in given]
    for options, program_options in (({}, {}), ({"max_chunk_tokens": 3}, {}), ({}, {"max_rows": 1}), ({}, {"pages": 14})):
        found, stats = run(opened, given + given, {**invariant, **options}, **program_options)
        assert found == alone + alone, (options, program_options)
        assert stats.pages_free + stats.pages_cached == stats.pages
    long = [([(7 * i + k) % 250 + 2 for k in range(30)], 40, dict(flags=SCORED, seed=i, prompt_top_logprobs=2)) for i in range(4)]
    found, stats = run(opened, long, invariant, pages=14)
    assert stats.preemptions > 0 and found == [run(opened, [one], invariant)[0][0] for one in long]


def test_a_token_that_cannot_come():
    """What the model draws, although the given token has all the weight, says that it cannot give
    that one."""
    engine = Engine(None)
    number = engine.submit([1], 0, flags=ONLY)
    other = engine.submit([1, 2, 3], 2, flags=SCORED, prompt_top_logprobs=20)
    engine.run()
    assert engine.outputs[number]["prompt"] == [[(1, 0.0)]] and engine.outputs[number][0]["tokens"] == []
    assert len(engine.outputs[other]["prompt"]) == 3 and len(engine.outputs[other][0]["tokens"]) == 2
    engine.close()


def test_what_is_refused():
    with SimulatedEngine(Model.simulated()) as engine:
        for values in (dict(flags=_ffi.ACCRT_SERVE_SCORE_ONLY), dict(flags=ONLY, max_tokens=3), dict(flags=SCORED, top=21)):
            given = serve.parameters.checked({})
            request = serve.parameters.Request([1, 2], given)
            request.struct.flags, request.struct.max_new_tokens = values["flags"], values.get("max_tokens", 0)
            request.struct.prompt_top_logprobs = values.get("top", 0)
            with pytest.raises(accrt.Error):
                engine.submit(request)


# ---- accrt.LLM ----


def test_llm():
    with accrt.LLM(serve.simulated()) as llm:
        whole = llm.generate("hello", max_tokens=3, temperature=0)
        output = llm.generate("hello", max_tokens=3, temperature=0, prompt_logprobs=2)
        assert output.token_ids == whole.token_ids and whole.prompt_logprobs is None
        assert output.prompt_logprobs[0] is None and [len(one) for one in output.prompt_logprobs[1:]] == [3] * 4
        assert [one[0][0] for one in output.prompt_logprobs[1:]] == list(b"ello")
        only = llm.generate(["hello", "x"], max_tokens=0, prompt_logprobs=0)
        assert [o.token_ids for o in only] == [[], []] and only[0].finish_reason == "length"
        assert [one[0][0] for one in only[0].prompt_logprobs[1:]] == list(b"ello") and only[1].prompt_logprobs == [None]
        pieces = list(llm.stream("hello", max_tokens=3, temperature=0, prompt_logprobs=0))
        assert pieces[0].prompt_logprobs == only[0].prompt_logprobs and not pieces[0].token_ids
        assert [t for p in pieces for t in p.token_ids] == whole.token_ids
        with pytest.raises(accrt.BadParameter, match="max_tokens is 0"):
            llm.generate("hello", max_tokens=0)


# ---- the server ----

serve_http.need_server()
COMPLETIONS = "/v1/completions"


@pytest.fixture(scope="module")
def server():
    with serve_http.served() as one:
        yield one


def ask(server, body, path=COMPLETIONS):
    return Answer(server.raw(post(path, body)))


def loglikelihoods(choices, lengths):
    """As lm-eval-harness reads an answer (LocalCompletionsAPI.parse_logprobs): sums behind the
    contexts, and whether each token is the most probable one."""
    out = []
    for choice, length in zip(sorted(choices, key=lambda one: one["index"]), lengths):
        tokens, tops = (choice["logprobs"][name][length:-1] for name in ("token_logprobs", "top_logprobs"))
        out.append((sum(tokens), all(own == max(top.values()) for own, top in zip(tokens, tops))))
    return out


def test_the_request_of_lm_eval_harness(opened, tmp_path):
    """Token ids, echo, one alternative, one token more than is wanted."""
    with accrt.LLM(opened.bundle, weights=opened.weights[0]) as llm:
        prompt = [5, 6, 7, 8, 9]
        drawn = llm.generate(prompt, max_tokens=12, temperature=0, ignore_eos=True, logprobs=0)
        greedy, other = prompt + drawn.token_ids, prompt + [200, 3, 9]
        loaded = llm._loaded
        with serve.Server(llm.engine, loaded.text, name="tiny", port=0) as one:
            served = serve_http.Served(one, llm.engine)
            body = {"model": "tiny", "prompt": [greedy, other], "max_tokens": 1, "logprobs": 1, "echo": True, "temperature": 0, "seed": 1234}
            answer = ask(served, body)
            assert answer.status == 200, answer.body
            (first, is_greedy), (second, is_not) = loglikelihoods(answer.json["choices"], [5, 5])
            only = ask(served, {**body, "max_tokens": 0}).json["choices"]
            special = ask(served, {**body, "max_tokens": 0, "prompt": [257, 33, 258, 34]}).json["choices"][0]
    assert len(special["text"]) == 2 and special["logprobs"]["text_offset"] == [0, 0, 1, 1]
    assert is_greedy and not is_not and second < 0
    assert abs(first - sum(entries[0][1] for entries in drawn.completions[0].logprobs)) < 1e-4
    scored = [choice["logprobs"]["token_logprobs"] for choice in only]
    assert [len(one) for one in scored] == [17, 8] and scored[0][5:] == pytest.approx([e[0][1] for e in drawn.completions[0].logprobs], abs=1e-6)


def test_echo_with_log_probabilities(server):
    lists = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
    plain = ask(server, {"prompt": "hello", "max_tokens": 3, "temperature": 0, "ignore_eos": True}).json["choices"][0]["text"]
    for prompt in ("hello", list(b"hello")):
        body = {"prompt": prompt, "max_tokens": 3, "temperature": 0, "ignore_eos": True, "echo": True, "logprobs": 2}
        answer = ask(server, body).json
        choice = answer["choices"][0]
        assert choice["text"] == "hello" + plain and answer["usage"]["completion_tokens"] == 3
        logprobs = choice["logprobs"]
        assert [len(logprobs[name]) for name in lists] == [8] * 4
        assert logprobs["token_logprobs"][0] is None and logprobs["top_logprobs"][0] is None
        assert logprobs["tokens"][:5] == list("hello") and max(logprobs["token_logprobs"][1:]) <= -0.25
        assert logprobs["text_offset"][:6] == [0, 1, 2, 3, 4, 5] and all(len(top) in (2, 3) for top in logprobs["top_logprobs"][1:])
        only = ask(server, {**body, "max_tokens": 0}).json
        choice = only["choices"][0]
        assert choice["text"] == "hello" and choice["finish_reason"] == "length" and only["usage"] == {**answer["usage"], "completion_tokens": 0, "total_tokens": 5}
        assert {name: logprobs[name][:5] for name in lists} == choice["logprobs"]
        assert ask(server, {**body, "max_tokens": 0, "logprobs": None}).json["choices"][0]["text"] == "hello"
    several = ask(server, {**body, "prompt": ["ab", "cde"], "n": 2, "seed": 1}).json["choices"]
    assert [choice["text"][: 2 + i // 2] for i, choice in enumerate(several)] == ["ab", "ab", "cde", "cde"]
    assert [len(choice["logprobs"]["tokens"]) for choice in several] == [5, 5, 6, 6]


def joined(events):
    """The choice that a stream is of, by the rules of OpenAI's clients."""
    out = {"text": "", "logprobs": {}}
    for event in events:
        (choice,) = event["choices"]
        out["text"] += choice["text"]
        for name, values in (choice["logprobs"] or {}).items():
            out["logprobs"].setdefault(name, []).extend(values)
    return out


@pytest.mark.parametrize("prompt", ["h\u00e9llo " * 200, [250, 251] * 40], ids=["text", "halves of characters"])
def test_streams_of_scores(server, prompt):
    import json

    body = {"prompt": prompt, "max_tokens": 3, "temperature": 0, "ignore_eos": True, "echo": True, "logprobs": 5}
    whole = ask(server, body).json["choices"][0]
    events = [json.loads(event) for event in ask(server, {**body, "stream": True}).events[:-1]]
    assert joined(events) == {"text": whole["text"], "logprobs": whole["logprobs"]}
    assert whole["logprobs"]["text_offset"] == sorted(whole["logprobs"]["text_offset"])
    if isinstance(prompt, str):
        assert whole["text"].startswith(prompt) and len(events) > 3


def test_prompt_logprobs_as_vllm_has_them(server):
    found = ask(server, {"prompt": "hi!", "max_tokens": 2, "prompt_logprobs": 1}).json["choices"][0]
    expected = found["prompt_logprobs"]
    assert len(expected) == 3 and expected[0] is None and found["logprobs"] is None
    assert list(expected[1])[0] == "105" and expected[1]["105"]["decoded_token"] == "i" and expected[1]["105"]["rank"] is None
    assert [one["rank"] for one in expected[2].values()] == [None, 1]
    assert ask(server, {"prompt": "hi!", "max_tokens": 2, "prompt_logprobs": 0, "n": 2}).json["choices"][1]["prompt_logprobs"] is not None
    both = ask(server, {"prompt": "hi!", "max_tokens": 2, "prompt_logprobs": 1, "echo": True, "logprobs": 3}).json["choices"][0]
    assert both["prompt_logprobs"] == expected
    sizes = [len(top or {}) for top in both["logprobs"]["top_logprobs"]]
    # a drawn token may be one of the best
    assert sizes[:3] == [0, 4, 4] and len(sizes) == 5 and set(sizes[3:]) <= {3, 4}
    chat = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 2, "prompt_logprobs": 2}
    answer = ask(server, chat, "/v1/chat/completions").json
    assert len(answer["prompt_logprobs"]) == answer["usage"]["prompt_tokens"] and "prompt_logprobs" not in answer["choices"][0]
    for body, said in (({"prompt": "x", "prompt_logprobs": 1, "stream": True}, "not for streams"), ({"prompt": "x", "max_tokens": 0}, "max_tokens is 0"),
                       ({"prompt": "x", "prompt_logprobs": 21}, "prompt_logprobs is 21")):  # fmt: skip
        answer = ask(server, body)
        assert answer.status == 400 and said in answer.error["message"]


def test_nothing_of_it_is_in_the_way(server):
    assert Answer(server.raw(get("/health"))).status == 200
