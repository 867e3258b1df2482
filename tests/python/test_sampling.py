"""The sampling pass: its token, logprobs and ranks against the float64 reference.

A token is right if it is the reference's, or if rounding decides: it may be chosen by a cut that is
a little later, and with its noise it is as large, but for 1e-4, as whatever a cut that is a little
earlier leaves.
"""

from __future__ import annotations

import numpy as np
import pytest

import compiler_harness as ch
import kernel_harness as kh
from accrt.compiler import Interpreter, IRError, Module
from accrt.compiler.kernels import sampling as lowering
from accrt.compiler.kernels.kerneldef import TensorSpec
from accrt.compiler.ops import sampling

pytestmark = pytest.mark.one_target  # of this machine's, in a run of the whole folder
NAMES = ("logits", "temperature", "top_k", "top_p", "min_p", "seed", "position", "edit_starts", "edit_tokens", "edit_multiply", "edit_add", "mask_rows", "mask_bits")
NEAR = 1e-4


def rng(*more):
    return np.random.default_rng([kh.SEED, *more])


def module(vocab: int, top: int = 20) -> Module:
    m = Module("sampling")
    n, e, k = m.symbol("samples"), m.symbol("edits"), m.symbol("masks")
    f = m.function("pick")
    shapes = dict(zip(NAMES, ([n, vocab], [n], [n], [n], [n], [n, 2], [n], [n + 1], [e], [e], [e], [n], [k, -(-vocab // 32)])))
    types = {"top_k": "i32", "position": "i32", "edit_starts": "i32", "edit_tokens": "i32", "mask_rows": "i32", "seed": "u32", "mask_bits": "u32"}
    given = [f.input(name, types.get(name, "f32"), shapes[name]) for name in NAMES]
    for name, value in zip(("token", "logprob", "top_ids", "top_logprobs", "rank"), f.sample(*given, top=top)):
        f.result(name, value)
    return m


def plain(logits, **changed):
    """Arguments that change nothing, but for those that are given."""
    samples, vocab = logits.shape
    given = {
        "logits": logits, "temperature": np.ones(samples), "top_k": np.zeros(samples), "top_p": np.ones(samples), "min_p": np.zeros(samples),
        "seed": np.arange(2 * samples).reshape(samples, 2) + 7, "position": np.arange(samples) + 3, "edit_starts": np.zeros(samples + 1),
        "edit_tokens": np.zeros(0), "edit_multiply": np.zeros(0), "edit_add": np.zeros(0), "mask_rows": np.full(samples, -1),
        "mask_bits": np.zeros((0, -(-vocab // 32))),
    }  # fmt: skip
    given.update({name: np.broadcast_to(np.asarray(value), given[name].shape) if name in given and np.ndim(value) == 0 else np.asarray(value) for name, value in changed.items()})
    kinds = {"seed": np.uint32, "mask_bits": np.uint32, **dict.fromkeys(("top_k", "position", "edit_starts", "edit_tokens", "mask_rows"), np.int32)}
    return [np.ascontiguousarray(given[name].astype(kinds.get(name, np.float32))) for name in NAMES]


def chosen_well(row, token):
    """Whether rounding alone tells the token from the reference's. `row`: the arguments of one row,
    by name."""
    x = sampling.edited(row["logits"].astype(np.float64), *(row[n] for n in ("edit_tokens", "edit_multiply", "edit_add")), row["mask_bits"])
    if not x[token] > -np.inf:
        return False
    if not row["temperature"] > 0:
        return x[token] >= np.max(x) - NEAR
    y = (x - np.max(x)) / row["temperature"]
    k = row["top_k"] if 0 < row["top_k"] < len(y) else len(y)
    score, p, min_p = y + sampling.noise(row["seed"], row["position"], len(y)), row["top_p"], row["min_p"]
    weights = np.exp(y)
    total = np.sum(np.sort(weights)[::-1][:k])
    more, reached = y > y[token] + NEAR, []
    late = np.count_nonzero(more) < k and (p >= 1 or np.sum(weights[more]) < (p + NEAR) * total) and weights[token] >= min_p * (1 - NEAR)
    order = np.argsort(-y, kind="stable")
    before = np.cumsum(weights[order]) - weights[order]
    for place, at in enumerate(order):
        if place >= k or y[at] <= y[order[min(k, len(y) - 1)]] + NEAR and k < len(y) or p < 1 and before[place] >= (p - NEAR) * total:
            break
        if weights[at] >= min_p * (1 + NEAR):
            reached.append(score[at])
    return late and all(score[token] >= other - NEAR * max(1, abs(other)) for other in reached)


def check(m, session, given, exact=False):
    return compare(given, session.run("pick", *given), Interpreter(m).run("pick", *given), exact)


def compare(given, got, want, exact=False):
    by_name = dict(zip(NAMES, given))
    rows = {name: by_name[name] for name in ("logits", "temperature", "top_k", "top_p", "min_p", "seed", "position")}
    other = 0
    for i, (token, expected) in enumerate(zip(got[0], want[0])):
        if token == expected:
            continue
        row = {name: array[i] for name, array in rows.items()}
        cut = slice(by_name["edit_starts"][i], by_name["edit_starts"][i + 1])
        row.update({name: by_name[name][cut] for name in ("edit_tokens", "edit_multiply", "edit_add")})
        row["mask_bits"] = by_name["mask_bits"][by_name["mask_rows"][i]] if by_name["mask_rows"][i] >= 0 else None
        assert not exact and expected >= 0 and token >= 0 and chosen_well(row, token), f"row {i}: token {token}, the reference has {expected}: {row}"
        other += 1
    same = got[0] == want[0]
    np.testing.assert_allclose(got[1][same], want[1][same], rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(got[4][same], want[4][same])
    np.testing.assert_array_equal(got[2], want[2])
    np.testing.assert_allclose(got[3], want[3], rtol=1e-5, atol=1e-5)
    return got, other


def random_rows(random, samples, vocab):
    logits = random.standard_normal((samples, vocab)) * random.choice([0.1, 1, 3, 10], (samples, 1))
    pick = lambda *choices: random.choice(np.array(choices, np.float64), samples)  # noqa: E731
    counts = random.integers(0, 5, samples) * random.integers(0, 2, samples)
    edits, masks = int(counts.sum()), 3
    tokens = random.integers(0, vocab, edits)
    if samples > 1 and edits:
        logits[0, tokens[0]] = np.max(logits) + 1
    bits = random.integers(0, 2**32, (masks, -(-vocab // 32)), dtype=np.uint64)
    bits[0] = 0xFFFFFFFF
    bits[2, :] = 0
    bits[2, random.integers(0, -(-vocab // 32))] = 1
    return plain(
        logits.astype(np.float32), temperature=pick(0, 0.3, 0.7, 1, 1, 2.5), top_k=pick(0, 0, 1, 2, 40, vocab, vocab + 5, -1), top_p=pick(1, 1, 0.1, 0.5, 0.9, 0.99, 0),
        min_p=pick(0, 0, 0, 0.05, 0.5, 1), seed=random.integers(0, 2**32, (samples, 2), dtype=np.uint64), position=random.integers(0, 2**31 - 1, samples),
        edit_starts=np.concatenate([[0], np.cumsum(counts)]), edit_tokens=tokens, edit_multiply=random.choice([1.0, 1.3, 0.5], edits),
        edit_add=random.choice(np.array([0.0, -2.0, 5.0, -np.inf]), edits), mask_rows=random.choice([-1, -1, 0, 1, 2], samples), mask_bits=bits,
    )  # fmt: skip


@pytest.mark.parametrize("vocab", [1, 2, 31, 64, 100, 1000, 8191])
@pytest.mark.parametrize("on", kh.host_targets())
def test_random_rows(vocab, on):
    m = module(vocab)
    session, seen, other = ch.session(ch.program(m, on)), 0, 0
    for samples in (1, 3, 40):
        for turn in range(3):
            _got, near = check(m, session, random_rows(rng(vocab, samples, turn), samples, vocab))
            seen, other = seen + samples, other + near
    assert other <= 0.1 * seen, f"{other} of {seen} rows hang on rounding"


@pytest.mark.parametrize("target", kh.host_targets())
def test_the_kernel_alone(target):
    """With guarded memory around each tensor and the workspace, on three threads."""
    given = random_rows(rng(77), 40, 1000)
    named, specs = dict(zip(NAMES, given)), [TensorSpec.contiguous(str(x.dtype).replace("float", "f").replace("uint", "u").replace("int", "i"), x.shape) for x in given]
    shapes = {"token": (40,), "logprob": (40,), "top_ids": (40, 20), "top_logprobs": (40, 20), "rank": (40,)}
    results = {n: np.empty(shape, np.float32 if "log" in n else np.int32) for n, shape in shapes.items()}
    got = kh.run(lowering.lower_sample(specs, 20), named, results, target, threads=3)
    want = Interpreter(module(1000)).run("pick", *given)
    compare(given, [got[n] for n in shapes], want)


def test_a_large_vocabulary():
    m = module(151_936)
    session = ch.session(ch.program(m))
    for turn in range(2):
        check(m, session, random_rows(rng(turn), 6, 151_936))


def test_no_rows():
    m = module(50)
    got = ch.session(ch.program(m)).run("pick", *plain(np.zeros((0, 50))))
    assert [x.shape for x in got] == [(0,), (0,), (0, 20), (0, 20), (0,)]


def test_philox_is_the_published_one():
    """The known answers of Random123."""
    ones = 0xFFFFFFFF
    for counter, key, words in (
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((ones,) * 4, (ones,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        ((0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xA4093822, 0x299F31D0), (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)),
    ):
        assert tuple(int(w) for w in sampling.philox(key, [counter])[0]) == words


def test_tokens_come_as_often_as_they_should():
    """A chi-square test over positions: what the kernel draws has the distribution of a softmax."""
    logits, n = np.array([0.0, 1.0, 2.0, -1.0, 0.5, -3.0]), 20000
    m = module(6)
    got = ch.session(ch.program(m)).run("pick", *plain(np.tile(logits, (n, 1)), seed=np.tile([11, 12], (n, 1)), position=np.arange(n)))[0]
    expected = n * np.exp(logits) / np.exp(logits).sum()
    # 5 degrees of freedom: 1 in 10^4
    assert np.sum((np.bincount(got, minlength=6) - expected) ** 2 / expected) < 25.7


def test_ties_go_to_the_lowest_id():
    logits = np.zeros((4, 300), np.float32)
    logits[0, [250, 70, 299]] = 5
    logits[1, 5] = -0.0
    logits[2] = -np.inf
    logits[2, [8, 9]] = np.inf
    logits[3] = np.nan
    logits[3, [44, 33]] = -1
    m = module(300)
    session = ch.session(ch.program(m))
    (got, _near) = check(m, session, plain(logits[[0, 1, 3]], temperature=0), exact=True)
    np.testing.assert_array_equal(got[0], [70, 0, 33])
    np.testing.assert_array_equal(got[2][0][:5], [70, 250, 299, 0, 1])
    np.testing.assert_array_equal(got[4], [3, 300, 2])
    assert session.run("pick", *plain(logits[2:3], temperature=0))[0][0] == 8
    for top_k, allowed in ((1, {70}), (2, {70, 250}), (4, {70, 250, 299, 0})):
        given = plain(np.tile(logits[:1], (200, 1)), temperature=9.0, top_k=top_k, position=np.arange(200))
        assert set(check(m, session, given, exact=True)[0][0]) == allowed
    given = plain(np.tile(logits[1:2], (300, 1)), top_p=4.5 / 300, position=np.arange(300))
    assert set(check(m, session, given)[0][0]) == {0, 1, 2, 3, 4}
    given = plain(np.tile(logits[2:3], (50, 1)), position=np.arange(50))
    assert set(session.run("pick", *given)[0]) == {8, 9}


def test_a_row_without_an_allowed_token():
    logits = rng().standard_normal((3, 40))
    logits[1] = -np.inf
    m = module(40)
    got, _near = check(m, ch.session(ch.program(m)), plain(logits, temperature=[1, 1, 0], mask_rows=[0, -1, 0], mask_bits=np.zeros((1, 2))), exact=True)
    np.testing.assert_array_equal(got[0], -1)
    np.testing.assert_array_equal(got[4], -1)
    assert (got[1] == -np.inf).all()


def test_extremes_of_the_temperature():
    logits = rng(1).standard_normal((6, 500)) * 20
    m = module(500)
    session = ch.session(ch.program(m))
    got, _near = check(m, session, plain(logits, temperature=[1e-30, 1e-38, 0, -1, np.nan, 1e-8]))
    np.testing.assert_array_equal(got[0], np.argmax(logits, -1))
    check(m, session, plain(logits, temperature=[1e30, 3e38, np.inf, 1e5, 100, 1]))


def test_few_tokens_and_few_of_the_largest():
    m = module(3, top=5)
    got, _near = check(m, ch.session(ch.program(m)), plain(rng(2).standard_normal((2, 3))), exact=True)
    np.testing.assert_array_equal(got[2][:, 3:], -1)
    m = module(40, top=0)
    assert ch.session(ch.program(m)).run("pick", *plain(rng(2).standard_normal((2, 40))))[2].shape == (2, 0)


def test_a_row_does_not_depend_on_the_others():
    m = module(777)
    session = ch.session(ch.program(m))
    given = dict(zip(NAMES, random_rows(rng(3), 50, 777)))
    together = session.run("pick", *given.values())
    for i in range(50):
        cut = slice(given["edit_starts"][i], given["edit_starts"][i + 1])
        row = {n: a[i : i + 1] for n, a in given.items() if not n.startswith("edit") and n != "mask_bits"}
        row.update({n: given[n][cut] for n in ("edit_tokens", "edit_multiply", "edit_add")}, edit_starts=np.array([0, cut.stop - cut.start], np.int32))
        alone = session.run("pick", *(row.get(n, given["mask_bits"]) for n in NAMES))
        for have, want in zip(alone, together):
            assert have.tobytes() == want[i : i + 1].tobytes()


HOSTILE = {
    "an edit after the vocabulary": (dict(edit_starts=[0, 0, 1], edit_tokens=[50], edit_multiply=[1], edit_add=[0]), "an edit of token 50, which is outside a vocabulary of 50"),
    "an edit before it": (dict(edit_starts=[0, 1, 1], edit_tokens=[-1], edit_multiply=[1], edit_add=[0]), "an edit of token -1"),
    "edits that go back": (dict(edit_starts=[1, 0, 0], edit_tokens=[0], edit_multiply=[1], edit_add=[0]), "begin at 1 and end at 0"),
    "edits before the first": (dict(edit_starts=[-1, 0, 0]), "begin at -1 and end at 0"),
    "edits after the last": (dict(edit_starts=[0, 0, 2**31 - 1]), "begin at 0 and end at 2147483647"),
    "a mask after the last": (dict(mask_rows=[0, -1]), "mask 0 is outside of 0 masks"),
    "a mask before the first": (dict(mask_rows=[-1, -2]), "mask -2 is outside of 0 masks"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_arguments_fail_by_name(name):
    changed, match = HOSTILE[name]
    m = module(50)
    given = plain(np.zeros((2, 50)), **changed)
    with pytest.raises(RuntimeError, match="sample: 1: .*" + match):
        ch.session(ch.program(m)).run("pick", *given)
    with pytest.raises(IRError):
        Interpreter(m).run("pick", *given)


def test_what_does_not_fit_is_said():
    m = Module("wrong")
    f = m.function("f")
    given = [f.input(name, "f32", [2, 40] if name == "logits" else [2]) for name in NAMES]
    with pytest.raises(IRError, match=r"operation accrt.sample: top_k of f32\[2\]; i32 \[samples\] is needed"):
        f.sample(*given)
    with pytest.raises(IRError, match=r"logits of f32\[2\]; f32 \[samples, vocab\] is needed"):
        f.sample(given[1], *given[1:])


def test_greedy_rows_alone():
    m = Module("greedy")
    f = m.function("f")
    f.result("token", f.input("logits", "f32", [m.symbol("n"), 1000]).sample_greedy())
    x = np.round(rng(4).standard_normal((9, 1000)) * 2).astype(np.float32)
    got = ch.session(ch.program(m)).run("f", x)[0]
    assert got.dtype == np.int32
    np.testing.assert_array_equal(got, np.argmax(x, -1))


def test_there_is_a_version_for_cuda():
    """What it gives is tested on a GPU (tests/gpu/test_next_token.py)."""
    from accrt.compiler import available_targets, compile

    if "sm_90" not in available_targets():
        pytest.skip("no nvcc")
    assert compile(module(1000), targets=["sm_90"])
