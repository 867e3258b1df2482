"""Step programs of whole models on a GPU: logits of ragged batches of prompts in pieces and of
single tokens beside float64 in numpy, and beside the same program on the host; tokens that are
sampled on the device and read there by the next step."""

from __future__ import annotations

import os
import pathlib
import sys
import tempfile

import numpy as np
import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, os.pardir, "python")]

import kernel_harness as kh  # noqa: E402
import test_ops  # noqa: E402
import test_sampling as sampling  # noqa: E402
import tiny_models as tiny  # noqa: E402

FAMILIES = ("llama", "qwen2")
LENGTH, ROWS, PAGES = 48, 5, 40
SIZES = {"tokens": 64, "rows": 8, "samples": 8, "changes": 32}
#: Weights, keys and values and everything between layers are bf16, whose rounding is 2^-9 of a
#: value; this is what some thirty of them, one after another, come to at most of the length of a
#: row of logits.
BOUND = 30 * 2.0**-9
TYPES = {"int32": "i32", "float32": "f32", "uint32": "u32"}


class Served:
    """A session of a program on a device, with a stream of its options."""

    def __init__(self, program, **options):
        import accrt

        self.accrt, self.program = accrt, program
        stream = accrt.Stream(program.device, **options) if options else None
        self.session = program.session({"pages": PAGES, "table_rows": ROWS, "table_pages": LENGTH // 16}, stream=stream)
        self.pool = accrt.Pool(program.device)

    def tensor(self, x):
        if isinstance(x, self.accrt.Tensor):
            return x
        x = np.ascontiguousarray(x)
        buffer = self.pool.buffer(max(x.nbytes, 16))
        if x.nbytes:
            self.session.stream.copy(x, buffer, x.nbytes)
            self.session.stream.synchronize()
        return self.accrt.Tensor(buffer, TYPES[x.dtype.name], x.shape)

    def call(self, name, *inputs):
        return self.session[name](*map(self.tensor, inputs))

    def batches(self, seed, function="step"):
        rng = np.random.default_rng(seed)
        return rng, tiny.Batches(lambda *arrays: np.array(self.call(function, *arrays).tolist()), 16, PAGES, ROWS, LENGTH // 16, rng)

    def whole(self, ids, function="step", padded=lambda work: SIZES):
        """[(row, position, result)] of every position that a step ended at. `padded`: the sizes of
        a step of that work."""
        rng, batches = self.batches(kh.SEED, function)
        found = []
        while min(batches.done) < LENGTH:
            chosen = [r for r in rng.permutation(ROWS)[: rng.integers(1, ROWS + 1)] if batches.done[r] < LENGTH]
            work = [(int(r), int(min(rng.choice([1, 1, 2, 7, 12]), LENGTH - batches.done[r]))) for r in chosen]
            if work:
                results = batches.step(work, ids, **padded(work))
                found += [(row, batches.done[row] - 1, result) for (row, _count), result in zip(work, results)]
        return found


@pytest.fixture(scope="module", params=FAMILIES)
def model(request, tmp_path_factory):
    why = test_ops.reason(f"served_{request.param}")
    if why:
        pytest.skip(why)
    import accrt
    from accrt import models
    from accrt.compiler import compile

    config, name = tiny.CONFIGS[request.param], f"served_{request.param}"
    folder, weights = written(request.param, tmp_path_factory.mktemp(name))
    instance, sources = accrt.default_instance("all"), list(models.read(folder).weights)
    data = {"cuda:0": test_ops.built(name, decoder(folder).build()), "host": compile(decoder(folder).build(), targets=kh.host_targets()[-1:])}
    programs = [accrt.Bundle(each, instance).program(instance.device(device), weights=sources) for device, each in data.items()]
    return config, weights, programs


def written(family, path):
    """A folder of a family, and its weights."""
    config = tiny.CONFIGS[family]
    weights = {name: tiny.to_bf16(array) for name, array in tiny.tensors(config, kh.SEED, gain=1.0).items()}
    return tiny.write_folder(path / "m", config, weights, "BF16"), weights


def decoder(folder):
    from accrt import models

    buckets = {f"{name[:-1]}_buckets": (size,) for name, size in SIZES.items()}
    return models.decoder(models.read(folder), models.Options(edit_buckets=(4,), **buckets))


def module(family):
    """For prebuild.py."""
    with tempfile.TemporaryDirectory() as path:
        return decoder(written(family, pathlib.Path(path))[0]).build()


def far(got, want):
    return np.linalg.norm(got - want) / np.linalg.norm(want)


@pytest.mark.parametrize("at, function", enumerate(["step", "embed"]))
def test_every_position(model, at, function):
    config, weights, (device, host) = model
    ids = np.random.default_rng(kh.SEED).integers(0, config["vocab_size"], (ROWS, LENGTH))
    expected = [tiny.reference(config, weights, row)[at] for row in ids]
    found, beside = Served(device).whole(ids, function), Served(host).whole(ids, function)
    errors = [far(result, expected[row][position]) for row, position, result in found]
    assert max(errors) <= BOUND, f"{max(errors)}, on average {np.mean(errors)}"
    for (row, position, result), (same_row, same_position, other) in zip(found, beside):
        assert (row, position) == (same_row, same_position)
        assert far(result, other) <= BOUND, (row, position)
    again = Served(device).whole(ids, function)
    assert all(np.array_equal(a[2], b[2]) for a, b in zip(found, again)), "two runs differ"


@pytest.mark.parametrize("commands", [1, 5])
def test_steps_in_pieces(model, commands):
    """Steps that a stream divides have the bits of whole ones; one that is cancelled says so, and
    what comes after a reset has them again."""
    config, _weights, (device, _host) = model
    ids = np.random.default_rng(kh.SEED).integers(0, config["vocab_size"], (ROWS, LENGTH))
    whole, pieces = Served(device).whole(ids), Served(device, ahead=2, commands_per_piece=commands)
    for _ in range(2):
        found = pieces.whole(ids)
        assert [one[:2] for one in found] == [one[:2] for one in whole]
        assert all(np.array_equal(a[2], b[2]) for a, b in zip(found, whole)), "pieces differ from the whole"
        session, accrt = pieces.session, pieces.accrt
        never = accrt.Semaphore(device.device.instance)
        session.stream.wait(never, 1)
        session.stream.cancel()
        with pytest.raises(accrt.CancelledError):
            session.stream.synchronize()
        session.stream.reset()
        session.reset()


def test_tokens_stay_on_the_device(model):
    """What is sampled is what logits say; the next step reads it as the same token that is given as
    an id."""
    config, _weights, (device, _host) = model
    served, random = Served(device), np.random.default_rng(kh.SEED)
    ids = random.integers(0, config["vocab_size"], (ROWS, LENGTH))
    for function in ("sample_greedy", "sample"):
        _rng, batches = served.batches(5)
        logits = batches.step([(r, 7 + r) for r in range(ROWS)], ids, **SIZES).astype(np.float32)
        rows = np.full(8, -1, np.int32)
        rows[:ROWS] = np.arange(ROWS)
        wide = np.zeros((8, config["vocab_size"]), np.float32)
        wide[:ROWS] = logits
        if function == "sample":
            none = {"edit_tokens": np.zeros(4), "edit_multiply": np.ones(4), "edit_add": np.zeros(4), "mask_bits": np.zeros((8, -(-config["vocab_size"] // 32)))}
            given = sampling.plain(wide, temperature=0.8, top_k=40, top_p=0.9, **none)
            tokens = np.array(served.call("sample", given[0], rows, *given[1:])[0].tolist())
        else:
            tokens = np.array(served.call("sample_greedy", wide, rows).tolist())
            assert np.array_equal(tokens[:ROWS], logits.argmax(-1))
        for r in range(ROWS):
            ids[r, 7 + r] = -1
        told = batches.step([(r, 1) for r in range(ROWS)], ids, **SIZES)
        for r in range(ROWS):
            ids[r, 7 + r], batches.done[r] = tokens[r], 7 + r
        assert np.array_equal(told, batches.step([(r, 1) for r in range(ROWS)], ids, **SIZES))
