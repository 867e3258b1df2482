"""The largest of rows and the sampling pass on a GPU, against the float64 reference as
tests/python/test_sampling.py has it; the same bytes in two runs, alone and together.
bench/gpu/gpu_sample.py measures the sampling pass."""

from __future__ import annotations

import os
import sys

import numpy as np
import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, os.pardir, "python")]

import kernel_harness as kh  # noqa: E402
import test_ops  # noqa: E402
import test_sampling as host  # noqa: E402
from accrt.compiler import Interpreter, Module  # noqa: E402

VOCABULARIES = (1, 31, 1000, 2048, 2049, 8191, 32000, 151_936)
TYPES = {"int32": "i32", "float32": "f32", "uint32": "u32", "uint16": "bf16"}
#: Sizes of rows, and how many of the largest.
LARGEST = ((1, 1), (40, 40), (2049, 7), (5000, 512), (128_256, 20))


def sizes_of(m):
    return [m.symbol(name, maximum=most) for name, most in (("samples", 512), ("edits", 1 << 18), ("masks", 512))]


def sampler(m, sizes, name, vocab, top=20):
    n, e, k = sizes
    f = m.function(name)
    shapes = [n, vocab], [n], [n], [n], [n], [n, 2], [n], [n + 1], [e], [e], [e], [n], [k, -(-vocab // 32)]
    types = {"top_k": "i32", "position": "i32", "edit_starts": "i32", "edit_tokens": "i32", "mask_rows": "i32", "seed": "u32", "mask_bits": "u32"}
    given = [f.input(what, types.get(what, "f32"), shape) for what, shape in zip(host.NAMES, shapes)]
    for what, value in zip(("token", "logprob", "top_ids", "top_logprobs", "rank"), f.sample(*given, top=top)):
        f.result(what, value)


def module():
    m = Module("next_token")
    sizes = sizes_of(m)
    for vocab in VOCABULARIES:
        sampler(m, sizes, f"pick{vocab}", vocab)
    sampler(m, sizes, "pick_alone", 32000, 0)
    rows = m.symbol("rows", maximum=512)
    for size, k in LARGEST:
        for dtype in ("f32", "bf16"):
            f = m.function(f"largest_{size}_{dtype}")
            x = f.input("x", dtype, [rows, size])
            for name, value in zip(("values", "places"), x.topk(k)):
                f.result(name, value)
            f.result("place", x.argmax(-1))
    return m


class Running:
    def __init__(self, m, data):
        import accrt

        self.accrt, instance = accrt, accrt.default_instance("all")
        self.m = m
        self.session = accrt.Bundle(data, instance).program(instance.device("cuda:0")).session()
        self.pool, self.oracle = accrt.Pool(self.session.program.device), Interpreter(m)

    def tensor(self, x):
        x = np.ascontiguousarray(x)
        buffer = self.pool.buffer(max(x.nbytes, 16))
        if x.nbytes:
            self.session.stream.copy(x, buffer, x.nbytes)
            self.session.stream.synchronize()
        return self.accrt.Tensor(buffer, TYPES[x.dtype.name], x.shape)

    def run(self, function, *inputs):
        made = self.session[function](*map(self.tensor, inputs))
        kinds = {"f32": np.float32, "bf16": np.float64, "i32": np.int32, "i64": np.int64}
        return [np.array(t.tolist(), kinds[t.dtype]).reshape(t.shape) for t in made]


@pytest.fixture(scope="module")
def running():
    why = test_ops.reason("next_token")
    if why:
        pytest.skip(why)
    m = module()
    return Running(m, test_ops.built("next_token", m))


def same(a, b):
    return all(x.tobytes() == y.tobytes() for x, y in zip(a, b))


def check(running, vocab, given, exact=False):
    """Against the reference, whose token may be another where rounding decides; how many were."""
    got = running.run(f"pick{vocab}", *given)
    assert same(got, running.run(f"pick{vocab}", *given)), "two runs differ"
    return host.compare(given, got, running.oracle.run(f"pick{vocab}", *given), exact)


@pytest.mark.parametrize("vocab", VOCABULARIES)
def test_random_rows(running, vocab):
    seen = other = 0
    for samples in (1, 40) if vocab < 100_000 else (1, 12):
        for turn in range(2):
            _got, near = check(running, vocab, host.random_rows(host.rng(vocab, samples, turn), samples, vocab))
            seen, other = seen + samples, other + near
    assert other <= 0.1 * seen, f"{other} of {seen} rows hang on rounding"


@pytest.mark.parametrize("changed", [dict(), dict(top_k=900), dict(top_p=0.95), dict(top_k=5000, top_p=0.9), dict(min_p=0.01), dict(temperature=8.0, top_p=0.99)])
def test_many_candidates(running, changed):
    """Where they do not fit into shared memory; also without a list of the largest."""
    logits = host.rng(5).standard_normal((6, 32000)).astype(np.float32)
    logits[3:] = np.round(logits[3:])
    given = host.plain(logits, **changed)
    got, _near = check(running, 32000, given)
    alone = running.run("pick_alone", *given)
    assert same([alone[i] for i in (0, 1, 4)], [got[i] for i in (0, 1, 4)])


def test_rows_of_one_value(running):
    logits = np.zeros((5, 32000), np.float32)
    logits[1] = -np.inf
    logits[2] = np.nan
    logits[2, [900, 70]] = 3
    logits[3, 5] = -0.0
    for changed in (dict(temperature=0), dict(top_k=7), dict(top_p=0.25), dict(top_k=3000, top_p=0.5)):
        check(running, 32000, host.plain(logits, **changed), exact="top_p" not in changed)


def test_edits_of_one_token_are_in_order(running):
    random = host.rng(9)
    logits = random.standard_normal((3, 8191)).astype(np.float32)
    tokens = random.integers(0, 8191, 3000)
    tokens[::7] = 11
    given = host.plain(
        logits, edit_starts=[0, 1000, 1000, 3000], edit_tokens=tokens, edit_multiply=random.choice([1.5, 0.7], 3000), edit_add=random.standard_normal(3000),
        temperature=[0, 1, 1], top_k=[0, 0, 5],
    )  # fmt: skip
    check(running, 8191, given)


def test_a_row_does_not_depend_on_the_others(running):
    given = dict(zip(host.NAMES, host.random_rows(host.rng(3), 20, 8191)))
    together = running.run("pick8191", *given.values())
    for i in range(20):
        cut = slice(given["edit_starts"][i], given["edit_starts"][i + 1])
        row = {n: a[i : i + 1] for n, a in given.items() if not n.startswith("edit") and n != "mask_bits"}
        row.update({n: given[n][cut] for n in ("edit_tokens", "edit_multiply", "edit_add")}, edit_starts=np.array([0, cut.stop - cut.start], np.int32))
        alone = running.run("pick8191", *(row.get(n, given["mask_bits"]) for n in host.NAMES))
        assert same(alone, [whole[i : i + 1] for whole in together]), i


def test_few_rows_give_what_many_do(running):
    """Few rows are shared out in pieces, and many are not; with rows that rise or fall, whose
    largest are all in one place, and with many equal ones."""
    random, samples, vocab = host.rng(17), 70, 32000
    logits = random.standard_normal((samples, vocab)).astype(np.float32) * 3
    logits[1], logits[2], logits[3] = np.sort(logits[1]), np.sort(logits[2])[::-1], np.round(logits[3])
    logits[4], logits[5, ::2], logits[6, 9:] = 1.0, np.nan, -np.inf
    logits[7, -3:], logits[8, [5, 31999]], logits[9] = 40.0, 50.0, -np.inf
    logits[10:30] = logits[:20]
    top_k = random.choice([0, 1, 20, 40, 511, 512, 700], samples).astype(np.int32)
    top_k[:10], top_k[10:20] = 40, 0
    given = dict(zip(host.NAMES, host.plain(
        logits, top_k=top_k, top_p=random.choice([1.0, 0.9, 0.3], samples), min_p=random.choice([0.0, 0.0, 0.05], samples),
        temperature=random.choice([0.0, 0.3, 1.0, 1.5], samples),
    )))  # fmt: skip
    for function in ("pick32000", "pick_alone"):
        together = running.run(function, *given.values())
        if function == "pick32000":
            host.compare(list(given.values()), together, running.oracle.run(function, *given.values()))
        for i in range(samples):
            row = {n: a[i : i + 1] for n, a in given.items() if not n.startswith("edit_") and n != "mask_bits"}
            row["edit_starts"] = np.zeros(2, np.int32)
            alone = running.run(function, *(row.get(n, given[n]) for n in host.NAMES))
            assert same(alone, [whole[i : i + 1] for whole in together]), (function, i, kh.SEED)


def test_what_is_not_there_changes_nothing(running):
    """A device cannot fail one dispatch."""
    logits = host.rng(2).standard_normal((2, 1000)).astype(np.float32)
    plain = running.run("pick1000", *host.plain(logits))
    for name, (changed, _match) in host.HOSTILE.items():
        changed = {k: [1000] if k == "edit_tokens" and v == [50] else v for k, v in changed.items()}
        if name != "edits that go back":
            assert same(running.run("pick1000", *host.plain(logits, **changed)), plain), name


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("size, k", LARGEST)
def test_the_largest(running, size, k, dtype):
    random = host.rng(size, k)
    for ties in (0, 1, 2):
        x = random.standard_normal((5, size)) * 3
        x = np.round(x) if ties == 1 else np.zeros_like(x) if ties == 2 else x
        if size > 10 and ties < 2:
            x[1, 7], x[2, [3, 9]], x[3, 4] = np.inf, np.nan, -np.inf
        given = kh.encode(x, dtype) if dtype == "bf16" else x.astype(np.float32)
        values, places, place = running.run(f"largest_{size}_{dtype}", given)
        want = running.oracle.run(f"largest_{size}_{dtype}", given)
        np.testing.assert_array_equal(places, want[1])
        np.testing.assert_array_equal(values, np.asarray(want[0], np.float64))
        np.testing.assert_array_equal(place, want[2])


#: Of what is measured: the vocabulary, and how many of the largest are said.
VOCABULARY, TOPS = 128_256, 20


def measured_module():
    m = Module("next_token_measured")
    sizes = sizes_of(m)
    sampler(m, sizes, "pick", VOCABULARY, TOPS)
    sampler(m, sizes, "pick_alone", VOCABULARY, 0)
    f = m.function("greedy")
    f.result("token", f.input("logits", "f32", [sizes[0], VOCABULARY]).sample_greedy())
    return m
