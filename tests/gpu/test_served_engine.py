"""The engine over a device with memory of its own: what many requests get together, with two steps
in flight, is what each gets alone.

The step program of tests/bundles/served.py, whose attention is a hash, runs on a GPU and under the
stand-in for CUDA's driver (tests/python/test_standin.py); there the calls of the driver are
counted, and fail. Whole models run on a GPU alone.
"""

from __future__ import annotations

import ctypes
import os
import pathlib
import random
import re
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "bundles"), str(HERE.parent / "python")]

import accrt  # noqa: E402
from accrt import _ffi  # noqa: E402
from accrt._library import check, lib, struct  # noqa: E402

DEVICE = os.environ.get("ACCRT_DEVICE", "cuda:0")
SEED = int(os.environ.get("ACCRT_TEST_SEED", "20261123"))
MASK = 0xFFFFFFFF


def why_not():
    try:
        accrt.default_instance("all").device(DEVICE)
    except accrt.Error as error:
        return str(error)
    return ""


pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not() or "-")


class Engine:
    """The C engine, stepped by hand."""

    def __init__(self, program, options=None, prepare=False, **program_options):
        self.model, self.engine, self.outputs, self.program = _ffi.accrt_serve_model_p(), _ffi.accrt_serve_engine_p(), {}, program
        given = struct(_ffi.accrt_serve_program_options, **program_options)
        self.memory = struct(_ffi.accrt_serve_memory)
        device = program.device.handle
        check(lib.accrt_serve_program_memory(device, program.handle, ctypes.byref(given), ctypes.byref(self.memory)))
        check(lib.accrt_serve_model_open_program(device, program.handle, ctypes.byref(given), ctypes.byref(self.model)))
        self.info = struct(_ffi.accrt_serve_model_info)
        check(lib.accrt_serve_model_info(self.model, ctypes.byref(self.info)))
        self.kinds = self.prepare() if prepare else 0
        given = struct(_ffi.accrt_serve_options, **(options or {}))
        check(lib.accrt_serve_engine_create(self.model, ctypes.byref(given), ctypes.byref(self.engine)))

    def prepare(self):
        left, count = ctypes.c_uint32(1), 0
        while left.value:
            check(lib.accrt_serve_model_prepare(self.model, ctypes.byref(left)))
            count += 1
        return count

    def submit(self, prompt, new_tokens, **values):
        request = struct(_ffi.accrt_serve_request, max_new_tokens=new_tokens, **values)
        request.prompt, request.prompt_count = (ctypes.c_int32 * len(prompt))(*prompt), len(prompt)
        number = ctypes.c_uint64()
        check(lib.accrt_serve_engine_submit(self.engine, ctypes.byref(request), ctypes.byref(number)))
        self.outputs[number.value] = {}
        return number.value

    def take(self):
        events, count = (_ffi.accrt_serve_event * 16)(), ctypes.c_uint32()
        while lib.accrt_serve_engine_poll(self.engine, events, ctypes.sizeof(events[0]), 16, ctypes.byref(count)) == 0:
            for event in events[: count.value]:
                output = self.outputs[event.request].setdefault(event.sequence, {"tokens": [], "logprobs": [], "status": 0})
                if event.kind == _ffi.ACCRT_SERVE_EVENT_PROMPT:
                    output["scores"] = [(p.token, p.logprob) for p in event.logprobs[: event.token_count * (1 + event.top_count)]]
                    continue
                if event.embedding_size:
                    output["embedding"] = event.embedding[: event.embedding_size]
                output["tokens"] += event.tokens[: event.token_count]
                output["status"] = event.status or output["status"]
                if event.logprobs:
                    output["logprobs"] += [(p.token, p.logprob) for p in event.logprobs[: 1 + event.top_count]]

    def step(self):
        status = lib.accrt_serve_engine_step(self.engine)
        self.take()
        return status

    def run(self):
        while self.step() == 0:
            pass

    def stats(self):
        stats = struct(_ffi.accrt_serve_stats)
        check(lib.accrt_serve_engine_stats(self.engine, ctypes.byref(stats)))
        return stats

    def close(self):
        lib.accrt_serve_engine_release(self.engine)
        lib.accrt_serve_model_release(self.model)


def generate(program, requests, options=None, **program_options):
    """The outputs of requests (prompt, new tokens, values), and the engine's figures."""
    engine = Engine(program, options, **program_options)
    numbers = [engine.submit(prompt, count, **values) for prompt, count, values in requests]
    engine.run()
    stats = engine.stats()
    engine.close()
    outputs = [engine.outputs[number] for number in numbers]
    assert all(one["status"] == 0 for output in outputs for one in output.values())
    return outputs, stats


# ---- The program of served.h ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def instance():
    return accrt.Instance(host_code="all")


@pytest.fixture(scope="module")
def program(instance):
    import served

    return accrt.Bundle(served.bundle(), instance).program(device=instance.device(DEVICE))


def mix(x):
    x ^= x >> 15
    x = x * 0x85EBCA6B & MASK
    x ^= x >> 13
    x = x * 0xC2B2AE35 & MASK
    return x ^ x >> 16


def greedy(prompt, count):
    """What served.h's attention says comes next, the likeliest each time."""
    tokens, hashed = list(prompt), 17
    for token in prompt:
        hashed = (hashed * 31 + token + 1) & MASK
    while len(tokens) < len(prompt) + count:
        scores = [mix(mix(hashed) ^ v * 2654435761 & MASK) & 255 for v in range(64)]
        tokens.append(scores.index(max(scores)))
        hashed = (hashed * 31 + tokens[-1] + 1) & MASK
    return tokens[len(prompt) :]


def prompt_of(rng, longest=60):
    return [rng.randrange(64) for _ in range(rng.randint(1, longest))]


def random_requests(rng, count):
    common = [rng.randrange(64) for _ in range(70)]
    for i in range(count):
        prompt = common[: rng.choice([0, 17, 70])] + prompt_of(rng, 40)
        values = {"flags": _ffi.ACCRT_SERVE_SEED | _ffi.ACCRT_SERVE_IGNORE_EOS, "seed": i}
        if i % 2:
            values.update(temperature=0.5, top_k=rng.choice([0, 20]), top_p=rng.choice([0.0, 0.9]), min_p=rng.choice([0.0, 0.05]))
        if i % 3 == 0:
            values.update(repetition_penalty=1.5, frequency_penalty=0.25)
        if i % 4 == 0:
            values["flags"] |= _ffi.ACCRT_SERVE_LOGPROBS
            values["top_logprobs"] = rng.choice([0, 3, 20])
        if i % 5 == 0:
            values["n"] = 2
        yield prompt, rng.randint(1, 40), values


@pytest.mark.parametrize("prepare", [False, True])
def test_greedy_tokens_are_those_of_the_program(program, prepare):
    rng = random.Random(SEED)
    requests = [(prompt_of(rng), rng.randint(1, 60), {"flags": _ffi.ACCRT_SERVE_IGNORE_EOS}) for _ in range(40)]
    outputs, stats = generate(program, requests, {"max_chunk_tokens": 24}, prepare=prepare)
    assert stats.step_failures == 0
    for (prompt, count, _values), output in zip(requests, outputs):
        assert output[0]["tokens"] == greedy(prompt, count)


@pytest.mark.parametrize("pages", [40, 400])
def test_together_and_overlapped_is_alone(program, pages):
    """With 40 pages they are preempted, too; the alone ones have neither a cache nor a step
    ahead."""
    requests = list(random_requests(random.Random(SEED + pages), 40))
    together, stats = generate(program, requests, {"max_chunk_tokens": 24}, pages=pages)
    assert stats.step_failures == 0 and (stats.preemptions > 0) == (pages == 40) and stats.cached_tokens > 0
    assert stats.pages_free + stats.pages_cached == stats.pages == pages
    plain = {"flags": _ffi.ACCRT_SERVE_ENGINE_NO_CACHE | _ffi.ACCRT_SERVE_ENGINE_NO_OVERLAP}
    for request, output in zip(requests, together):
        (alone,), _ = generate(program, [request], plain)
        assert output == alone


def test_parts_of_pages(program):
    """A page's first tokens are another prompt's: from 8 on they are copied, between steps that
    overlap."""
    rng = random.Random(SEED)
    begins = [[rng.randrange(64) for _ in range(80)] for _ in range(3)]
    engine = Engine(program, {"max_chunk_tokens": 24}, pages=60)
    assert engine.info.min_copy_tokens == 8
    numbers = {}
    for i in range(90):
        prompt = rng.choice(begins)[: rng.randint(1, 80)] + prompt_of(rng, 6)
        count = rng.randint(1, 20)
        numbers[engine.submit(prompt, count, flags=_ffi.ACCRT_SERVE_IGNORE_EOS)] = greedy(prompt, count)
        for _ in range(rng.randint(0, 4)):
            engine.step()
    engine.run()
    stats = engine.stats()
    assert stats.partial_hits > 10 and 8 * stats.partial_hits <= stats.copied_tokens < 16 * stats.partial_hits and stats.step_failures == 0
    assert stats.pages_free + stats.pages_cached == stats.pages == 60
    assert {number: engine.outputs[number][0]["tokens"] for number in numbers} == numbers
    engine.close()


def test_more_copies_than_a_call_takes(program):
    """Eight prompts at once copy 15 tokens each, and a call takes 16."""
    rng = random.Random(SEED)
    begins = [[rng.randrange(64) for _ in range(16)] for _ in range(8)]
    engine = Engine(program)
    for i, begin in enumerate(begins):
        engine.submit(begin, 1, cache_salt=b"%d" % i)
    engine.run()
    numbers = [engine.submit([*begin[:15], 63 - begin[15], 5], 9, flags=_ffi.ACCRT_SERVE_IGNORE_EOS, cache_salt=b"%d" % i) for i, begin in enumerate(begins)]
    engine.run()
    stats = engine.stats()
    assert stats.partial_hits == 8 and stats.copied_tokens == 120
    assert [engine.outputs[n][0]["tokens"] for n in numbers] == [greedy([*begin[:15], 63 - begin[15], 5], 9) for begin in begins]
    engine.close()


def test_it_overlaps(program):
    engine = Engine(program)
    assert engine.info.flags & _ffi.ACCRT_SERVE_MODEL_OVERLAP
    engine.submit([1, 2, 3], 5)
    assert engine.step() == 0 and engine.stats().steps == 1 and not engine.outputs[1]
    assert engine.step() == 0 and engine.stats().steps == 2 and len(engine.outputs[1][0]["tokens"]) == 1
    engine.run()
    assert engine.outputs[1][0]["tokens"] == greedy([1, 2, 3], 5)
    engine.close()


def test_more_changes_and_edits_than_a_call_takes(program):
    """A prompt of 400 tokens has 25 pages, and a step takes 16; 8 requests have 12 edits each, and
    a call takes 80."""
    rng = random.Random(SEED)
    long = [[rng.randrange(64) for _ in range(400)] for _ in range(4)]
    outputs, _stats = generate(program, [(prompt, 20, {}) for prompt in long])
    assert [output[0]["tokens"] for output in outputs] == [greedy(prompt, 20) for prompt in long]
    requests = []
    for i in range(8):
        biases = (_ffi.accrt_serve_bias * 12)(*[_ffi.accrt_serve_bias(rng.randrange(64), rng.randint(-8, 8) / 2) for _ in range(12)])
        values = {"biases": biases, "bias_count": 12, "flags": _ffi.ACCRT_SERVE_SEED | _ffi.ACCRT_SERVE_LOGPROBS, "seed": i, "top_logprobs": 5}
        requests.append((prompt_of(rng), 20, {**values, "temperature": 0.5 * (i % 2)}))
    together, _stats = generate(program, requests)
    for request, output in zip(requests, together):
        (alone,), _stats = generate(program, [request])
        assert output == alone


def test_memory_is_said_before_it_is_taken(program):
    engine = Engine(program, max_rows=4, max_length=100)
    memory = engine.memory
    assert (memory.max_rows, memory.max_length, memory.row_pages, memory.pages) == (4, 100, 7, 28)
    assert memory.kv_bytes == 28 * 64 and memory.state_bytes >= memory.kv_bytes
    engine.close()
    with pytest.raises(accrt.OutOfDeviceMemoryError, match="hold no page"):
        Engine(program, kv_bytes=63)


def test_a_gpu_is_chosen_where_kernels_are_for_it(tmp_path):
    import served

    path, said = tmp_path / "served.accx", []
    path.write_bytes(served.bundle())
    with accrt.LLM(path, progress=lambda what, seconds: said.append(what)) as llm:
        outputs = llm.generate([[1, 2, 3], [4] * 50], max_tokens=9, temperature=0)
        assert [output.token_ids for output in outputs] == [greedy([1, 2, 3], 9), greedy([4] * 50, 9)]
    assert "bound the weights on cuda:0" in said and any(what.startswith("prepared ") for what in said)
    said.clear()
    with accrt.LLM(path, device=DEVICE, prepare=0, progress=lambda what, seconds: said.append(what)) as llm:
        assert llm.generate([1, 2, 3], max_tokens=9, temperature=0).token_ids == greedy([1, 2, 3], 9)
    assert not any(what.startswith("prepared ") for what in said)
    with pytest.raises(accrt.NoVariantError):
        accrt.LLM(path, device="host")


# ---- What is asked of the driver: under the stand-in ---------------------------------------------


@pytest.fixture(scope="module")
def stand_in():
    library = ctypes.CDLL("libcuda.so.1")
    if not hasattr(library, "fakecuda_count"):
        pytest.skip("a real driver does not count its calls, nor fail on demand")
    library.fakecuda_count.restype = library.fakecuda_complaints.restype = ctypes.c_uint64
    return library


def counted(stand_in):
    names = [line.split("(")[1].split(",")[0] for line in (HERE.parents[1] / "runtime/drivers/cuda/symbols.def").read_text().splitlines() if line.startswith("CUDA_SYMBOL(")]
    return {name: stand_in.fakecuda_count(name.encode()) for name in names}


#: Calls that ask how far the device is, whose number depends on how fast it is; and what a thread
#: says of itself.
ASKING = {"cuEventQuery", "cuStreamQuery", "cuEventSynchronize", "cuCtxGetCurrent", "cuCtxSetCurrent", "cuCtxPushCurrent", "cuCtxPopCurrent",
          "cuThreadExchangeStreamCaptureMode", "cuPointerGetAttributes"}  # fmt: skip


def changes(stand_in, before):
    """How often each call was made since. Not counted: calls that ask, and those that give back, as
    a thread of the driver may give back late what an engine before this one had."""
    gives_back = re.compile("Destroy|Free|Release|Unload|Unmap|Unregister")
    return {name: count - before[name] for name, count in counted(stand_in).items() if count != before[name] and name not in ASKING and not gives_back.search(name)}


@pytest.mark.parametrize("values", [{}, {"temperature": 0.5}, {"temperature": 0.5, "flags": _ffi.ACCRT_SERVE_LOGPROBS, "top_logprobs": 4}],
                         ids=["greedy", "sampled", "logprobs"])  # fmt: skip
def test_calls_of_a_steady_step(program, stand_in, values):
    """Two copies, two graphs and an event a step; none is made or patched."""
    engine = Engine(program, prepare=True)
    for i in range(7):
        engine.submit([i] * (1 + 2 * i), 200, **{**values, "flags": values.get("flags", 0) | _ffi.ACCRT_SERVE_IGNORE_EOS})
    for _ in range(20):
        assert engine.step() == 0
    before = counted(stand_in)
    for _ in range(100):
        assert engine.step() == 0
    calls = {name: count / 100 for name, count in changes(stand_in, before).items()}
    assert calls == {"cuMemcpyAsync": 2, "cuGraphLaunch": 2, "cuEventRecord": 1}
    engine.run()
    engine.close()


def test_prepared_steps_make_nothing(program, stand_in):
    engine = Engine(program, prepare=True)
    assert engine.kinds > 10
    before = counted(stand_in)
    rng = random.Random(SEED)
    requests = [(prompt_of(rng), rng.randint(1, 30)) for _ in range(30)]
    numbers = [engine.submit(prompt, count, flags=_ffi.ACCRT_SERVE_IGNORE_EOS) for prompt, count in requests]
    engine.run()
    made = changes(stand_in, before)
    assert not {name for name in made if name.startswith(("cuGraphAdd", "cuGraphExec", "cuGraphInst", "cuMemCreate", "cuMemAlloc"))}, made
    for (prompt, count), number in zip(requests, numbers):
        assert engine.outputs[number][0]["tokens"] == greedy(prompt, count)
    with pytest.raises(accrt.InvalidStateError, match="has an engine"):
        engine.prepare()
    engine.close()


@pytest.mark.parametrize("entry", ["cuGraphLaunch", "cuMemcpyAsync", "cuEventRecord"])
@pytest.mark.parametrize("after", [1, 4, 11])
def test_a_failed_call_costs_time_alone(program, stand_in, entry, after):
    engine = Engine(program, prepare=True)
    rng = random.Random(SEED)
    requests = [(prompt_of(rng), 30) for _ in range(6)]
    numbers = [engine.submit(prompt, count, flags=_ffi.ACCRT_SERVE_IGNORE_EOS) for prompt, count in requests]
    engine.step()
    assert stand_in.fakecuda_control(f"fail={entry}:{after}=400".encode()) == 0
    engine.run()
    stand_in.fakecuda_control(b"reset")
    assert engine.stats().step_failures == 1
    for (prompt, count), number in zip(requests, numbers):
        assert engine.outputs[number][0]["tokens"] == greedy(prompt, count)
    engine.close()


# ---- A whole model: on a GPU ---------------------------------------------------------------------

BUCKETS = {"token": (1, 4, 16, 64), "row": (1, 8), "sample": (1, 8), "change": (4, 32), "edit": (4, 64)}


def module():
    """For prebuild.py."""
    import tempfile

    import test_served_models

    from accrt import models

    with tempfile.TemporaryDirectory() as path:
        options = models.Options(**{f"{name}_buckets": sizes for name, sizes in BUCKETS.items()})
        return models.decoder(models.read(test_served_models.written("llama", pathlib.Path(path))[0]), options).build()


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    import kernel_harness as kh
    import test_ops
    import test_served_models

    from accrt import models
    from accrt.compiler import compile

    on_host = not DEVICE.startswith("cuda")
    why = "" if on_host else test_ops.reason("served_engine")
    if why:
        pytest.skip(why)
    folder, weights = test_served_models.written("llama", tmp_path_factory.mktemp("served_engine"))
    instance = accrt.default_instance("all")
    data = compile(module(), targets=kh.host_targets()[-1:]) if on_host else test_ops.built("served_engine", module())
    program = accrt.Bundle(data, instance).program(device=instance.device(DEVICE), weights=list(models.read(folder).weights))
    return weights, program


def compare_logprobs(row, said, bound):
    """What is said of a token and of the likeliest ones is right, as far as bf16 goes. Returns how
    far that is."""
    import numpy as np

    near = 6 * bound * np.sqrt(np.mean(row * row))
    expected = row - np.log(np.exp(row - row.max()).sum()) - row.max()
    assert all(abs(value - expected[which]) <= near for which, value in said), said
    return near


def compare_on_a_gpu(weights, prompt, output, bound):
    """Each token is one of the likeliest of float64's, and what is said of it is right."""
    import tiny_models as tiny

    tokens = output["tokens"]
    logits = tiny.reference(tiny.CONFIGS["llama"], weights, prompt + tokens)[0][len(prompt) - 1 : -1]
    assert len(output["logprobs"]) == 4 * len(tokens)
    for i, (token, row) in enumerate(zip(tokens, logits)):
        said = output["logprobs"][4 * i : 4 * i + 4]
        near = compare_logprobs(row, said, bound)
        assert row[token] >= row.max() - 2 * near and said[0][0] == token


@pytest.mark.parametrize("pages", [14, 100])
def test_a_model_on_a_gpu(model, pages):
    """Overlap, chunks, hits of the cache, n > 1 and, with 14 pages, preemption."""
    import test_served_models

    weights, program = model
    rng = random.Random(SEED)
    common = [rng.randrange(300) for _ in range(40)]
    requests = []
    for i in range(16):
        prompt = common[: rng.choice([0, 17, 40])] + [rng.randrange(300) for _ in range(rng.randint(1, 20))]
        values = {"flags": _ffi.ACCRT_SERVE_IGNORE_EOS | _ffi.ACCRT_SERVE_LOGPROBS, "top_logprobs": 3, "n": 1 + (i % 5 == 0)}
        requests.append((prompt, rng.randint(3, 60 - len(prompt) if len(prompt) < 57 else 3), values))
    outputs, stats = generate(program, requests, {"max_chunk_tokens": 12}, prepare=True, pages=pages, max_rows=8, max_length=64)
    assert stats.step_failures == 0 and stats.cached_tokens > 0 and (stats.preemptions > 0) == (pages == 14)
    for (prompt, count, values), output in zip(requests, outputs):
        assert len(output) == values["n"]
        for one in output.values():
            assert len(one["tokens"]) == count
            compare_on_a_gpu(weights, prompt, one, test_served_models.BOUND)


def test_parts_of_pages_on_a_gpu(model):
    """Keys and values of all layers are copied: what comes is as right as where all is computed."""
    import test_served_models

    weights, program = model
    rng = random.Random(SEED)
    common = [rng.randrange(300) for _ in range(40)]
    values = {"flags": _ffi.ACCRT_SERVE_IGNORE_EOS | _ffi.ACCRT_SERVE_LOGPROBS, "top_logprobs": 3}
    engine = Engine(program, max_rows=8, max_length=64)
    requests = {}
    for _turn in range(4):
        for _ in range(5):
            prompt = common[: rng.randint(9, 40)] + [rng.randrange(300) for _ in range(rng.randint(1, 5))]
            requests[engine.submit(prompt, 12, **values)] = prompt
        engine.run()
    stats = engine.stats()
    assert stats.partial_hits > 5 and stats.copied_tokens >= 8 * stats.partial_hits and stats.step_failures == 0
    for number, prompt in requests.items():
        compare_on_a_gpu(weights, prompt, engine.outputs[number][0], test_served_models.BOUND)
    engine.close()


def test_scores_drafts_and_embeddings_on_a_gpu(model):
    """In the same steps as each other."""
    import numpy as np
    import test_served_models
    import tiny_models as tiny

    weights, program = model
    rng = random.Random(SEED)
    words = [rng.randrange(300) for _ in range(6)]
    drafted = {"flags": _ffi.ACCRT_SERVE_IGNORE_EOS | _ffi.ACCRT_SERVE_LOGPROBS, "top_logprobs": 3, "num_speculative_tokens": 4}
    scored = {"flags": _ffi.ACCRT_SERVE_IGNORE_EOS | _ffi.ACCRT_SERVE_PROMPT_LOGPROBS, "prompt_top_logprobs": 3}
    requests = []
    for i in range(12):
        prompt = words * (1 + i % 3) + [rng.randrange(300) for _ in range(i)]
        values = (drafted, scored, {"embed": _ffi.ACCRT_SERVE_EMBED_LAST}, {"embed": _ffi.ACCRT_SERVE_EMBED_MEAN})[i % 4]
        requests.append((prompt, 30 if i % 4 == 0 else 2, values))
    outputs, stats = generate(program, requests, {"max_chunk_tokens": 7}, prepare=True, pages=60, max_rows=8, max_length=64)
    assert stats.step_failures == 0 and stats.draft_tokens > 0
    for (prompt, _count, values), output in zip(requests, outputs):
        one = output[0]
        logits, hidden = tiny.reference(tiny.CONFIGS["llama"], weights, np.array(prompt))
        if values is drafted:
            compare_on_a_gpu(weights, prompt, one, test_served_models.BOUND)
        elif values is scored:
            assert len(one["scores"]) == 4 * len(prompt)
            for i in range(1, len(prompt)):
                said = one["scores"][4 * i : 4 * i + 4]
                assert said[0][0] == prompt[i]
                compare_logprobs(logits[i - 1], said, test_served_models.BOUND)
        else:
            row = hidden.mean(0) if values["embed"] == _ffi.ACCRT_SERVE_EMBED_MEAN else hidden[-1]
            np.testing.assert_allclose(one["embedding"], row / np.linalg.norm(row), rtol=0, atol=6 * test_served_models.BOUND)


def test_seeds_repeat_on_a_gpu(model):
    _weights, program = model
    values = {"flags": _ffi.ACCRT_SERVE_IGNORE_EOS | _ffi.ACCRT_SERVE_SEED, "seed": 3, "temperature": 1.0, "top_k": 30, "top_p": 0.9}
    found = [generate(program, [([1, 2, 3], 30, values)], {"flags": flags}, max_length=64)[0][0][0]["tokens"]
             for flags in (0, 0, _ffi.ACCRT_SERVE_ENGINE_NO_OVERLAP)]  # fmt: skip
    assert found[0] == found[1] == found[2] and len(set(found[0])) > 3
