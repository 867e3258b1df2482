"""LoRA adapters of requests through the C engine over a step program: a batch of several gives what
each gives alone, and what the merged model gives in numpy; loads while others run; failed steps;
what is refused."""

from __future__ import annotations

import ctypes
import json

import numpy as np
import pytest

import kernel_harness as kh
import tiny_adapters
import tiny_models as tiny
from test_serve_program import Engine

import accrt
from accrt import _ffi, models
from accrt._library import check, lib

pytestmark = pytest.mark.quick_kernels  # in a run of the whole folder

LLAMA = tiny.CONFIGS["llama"]
SIZES = {"page_size": 8, "token_buckets": (1, 4, 16, 64), "row_buckets": (1, 8), "sample_buckets": (1, 8), "change_buckets": (4, 16), "edit_buckets": (1, 40)}
OPTIONS = models.Options(**SIZES, adapters=3, max_rank=6)
NAMES = ("poet", "clerk", "judge")
FLAGS = _ffi.ACCRT_SERVE_IGNORE_EOS | _ffi.ACCRT_SERVE_LOGPROBS


@pytest.fixture(scope="module")
def weights():
    return tiny.tensors(LLAMA, 7, gain=1.0)


@pytest.fixture(scope="module")
def opened(tmp_path_factory, weights):
    folder = tiny.write_folder(tmp_path_factory.mktemp("adapters") / "Tiny-1", LLAMA, weights)
    return models.open(folder, targets=kh.host_targets()[-1:], options=OPTIONS, output=folder.parent / "tiny.accx")


@pytest.fixture(scope="module")
def layout(opened):
    return json.loads(bytes(accrt.Bundle(opened.bundle).assets["serve.adapters"].data))


@pytest.fixture(scope="module")
def adapters(tmp_path_factory, weights, layout):
    """By name: what the engine takes, and the merged weights."""
    folder, found = tmp_path_factory.mktemp("peft"), {None: (None, weights)}
    for i, name in enumerate(NAMES):
        made = tiny_adapters.random_adapter(weights, i, rank=2 * i + 2, chosen=None if i else ("q_proj", "v_proj"))
        read = models.read_adapter(tiny_adapters.write_adapter(folder / name, made, alpha=3.0), layout)
        found[name] = read.tensors, tiny_adapters.merged(weights, made, 3.0 / (2 * i + 2))
    return found


def load(engine, name, tensors):
    given = (_ffi.accrt_serve_adapter_tensor * len(tensors))()
    for place, (state, array) in zip(given, tensors.items()):
        place.name, place.data, place.size_bytes = state.encode(), array.ctypes.data, array.nbytes
    return lib.accrt_serve_engine_load_adapter(engine.engine, name.encode(), given, len(given), ctypes.sizeof(_ffi.accrt_serve_adapter_tensor))


def engine_with(opened, adapters, **options):
    engine = Engine(opened, **options)
    for name in NAMES:
        check(load(engine, name, adapters[name][0]))
    return engine


def random_requests(count):
    rng = np.random.default_rng(kh.SEED)
    common = rng.integers(0, 256, 40).tolist()
    for i in range(count):
        prompt = common[: int(rng.choice([0, 17, 40]))] + rng.integers(0, 256, rng.integers(1, 20)).tolist()
        yield (None, *NAMES)[i % 4], prompt, int(rng.integers(5, 25))


def submit(engine, adapter, prompt, count):
    return engine.submit(prompt, count, flags=FLAGS, adapter=adapter.encode() if adapter else None)


@pytest.mark.parametrize("pages", [20, 200])
def test_a_batch_of_several_gives_what_each_gives_alone(opened, adapters, pages):
    """With 20 pages they are preempted, too; the second turn finds pages in the cache."""
    requests = list(random_requests(16))
    engine = engine_with(opened, adapters, pages=pages)
    for _turn in range(2):
        numbers = [submit(engine, *request) for request in requests]
        engine.run()
    stats = engine.stats()
    assert stats.cached_tokens > 0 and stats.step_failures == 0 and (stats.preemptions > 0) == (pages == 20) and stats.adapters == 3
    for (adapter, prompt, count), number in zip(requests, numbers):
        output = engine.outputs[number][0]
        alone = engine_with(opened, adapters, pages=200)
        other = submit(alone, adapter, prompt, count)
        alone.run()
        assert output["tokens"] == alone.outputs[other][0]["tokens"]
        alone.close()
        tokens = output["tokens"]
        logits = tiny.reference(LLAMA, adapters[adapter][1], prompt + tokens)[0][len(prompt) - 1 : -1]
        for token, row, logprobs in zip(tokens, logits, output["logprobs"]):
            expected = row - np.log(np.exp(row - row.max()).sum()) - row.max()
            assert row[token] >= row.max() - 1e-3 and abs(logprobs[0][1] - expected[token]) < 1e-3
    engine.close()


def test_what_does_not_fit_is_refused(opened, adapters):
    engine = Engine(opened)
    tensors = adapters["judge"][0]
    assert load(engine, "x", {"lora.nothing.a": next(iter(tensors.values()))}) == _ffi.ACCRT_ERROR_NOT_FOUND
    assert load(engine, "x", {name: array[:-1] for name, array in tensors.items()}) == _ffi.ACCRT_ERROR_SHAPE_MISMATCH
    with pytest.raises(accrt.NotFoundError, match="no adapter 'x' is loaded"):
        submit(engine, "x", [1, 2], 4)
    for name in NAMES:
        check(load(engine, name, adapters[name][0]))
    assert load(engine, "x", tensors) == _ffi.ACCRT_ERROR_NOT_READY
    engine.close()


def test_a_place_has_nothing_of_the_one_before(opened, adapters):
    """An adapter of few products after one of all of them: the rest is zeros."""
    outputs = []
    for first in ("judge", None):
        engine = Engine(opened)
        if first:
            check(load(engine, "x", adapters[first][0]))
            check(lib.accrt_serve_engine_unload_adapter(engine.engine, b"x", 0))
        check(load(engine, "x", adapters["poet"][0]))
        number = submit(engine, "x", [5, 6, 7], 20)
        engine.run()
        outputs.append(engine.outputs[number][0]["tokens"])
        engine.close()
    assert outputs[0] == outputs[1]


def test_adapters_outlast_a_failed_step(tmp_path, weights, adapters, opened):
    """One token fails the step that has it: its request ends, and the session is reset. Others go
    on with their adapters."""
    from accrt.compiler import driver
    from accrt.models import assets
    from accrt.models._registry import decoder

    folder = tiny.write_folder(tmp_path / "m", LLAMA, weights)
    made = decoder(models.read(str(folder)), OPTIONS)
    embed, table = made.embed, made.m.constant("table", np.zeros((319, 1), np.float32))
    # the last id has none
    made.embed = lambda ids: embed(ids) + ids.function.constant(table).embedding(ids)
    driver.compile(made.build(), tmp_path / "fails.accx", targets=kh.host_targets()[-1:], assets=assets(made))
    engine = engine_with(opened._replace(bundle=str(tmp_path / "fails.accx")), adapters)
    for name in NAMES:
        submit(engine, name, [5, 6, 7], 30)
    bad = engine.submit([8, 319], 4)
    events, count, failed, going = (_ffi.accrt_serve_event * 16)(), ctypes.c_uint32(), [], True
    while going:
        going = lib.accrt_serve_engine_step(engine.engine) == 0
        while lib.accrt_serve_engine_poll(engine.engine, events, ctypes.sizeof(events[0]), 16, ctypes.byref(count)) == 0:
            failed += [event.request for event in events[: count.value] if event.status]
    assert engine.stats().step_failures > 0 and bad in failed
    later = [submit(engine, name, [5, 6, 7], 30) for name in NAMES]
    engine.run()
    right = engine_with(opened, adapters)
    for name, number in zip(NAMES, later):
        wanted = submit(right, name, [5, 6, 7], 30)
        right.run()
        assert engine.outputs[number][0]["tokens"] == right.outputs[wanted][0]["tokens"]
    right.close()
    engine.close()
