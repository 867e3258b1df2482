"""Products of groups of rows with matrices of their own, as mixtures of experts have them, on a
GPU: plain matrices and packed ones, 8 to 128 of them, for steps of one token and prompts, with
matrices that get no row, rows behind the last group, and ends that fall; against float64, and the
same bits for a row in any step where a module is batch-invariant. Run as a program it prints one
line for each case that fails.
"""

from __future__ import annotations

import os
import sys
import traceback

import numpy as np
import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, os.pardir, "python")]

import compiler_harness as ch  # noqa: E402
import kernel_harness as kh  # noqa: E402
import test_ops  # noqa: E402
import test_quantized  # noqa: E402
from accrt.compiler import Module, encodings, packing  # noqa: E402
from test_packed_kernels import random_weight  # noqa: E402

#: Tokens of a step, and how many experts each takes.
STEPS = ((1, 2), (1, 8), (16, 2), (16, 8), (300, 8))

#: name: (experts, outputs, inputs, type of x, layout; none: plain, whether they are one weight)
CASES = {}


def _cases():
    for dtype in ("f32", "bf16", "f16"):
        yield 8, 136, 264, dtype, "", True
        yield 64, 64, 128, dtype, "", True
        yield 128, 72, 64, dtype, "", False
    for layout in ("q4_k", "q6_k", "q8_0", "iq4_nl", "q2_k", "q4_1"):
        yield 8, 96, 512, "bf16", layout, True
        yield 8, 40, 256, "f16", layout, True
    for layout in ("i4_group", "mxfp4", "nvfp4", "f8_channel", "f8_block128", "i8_channel", "ct_i4_asym", "awq"):
        yield 8, 72, 384, "f16", layout, False
    yield 64, 64, 256, "bf16", "q4_k", True
    yield 64, 64, 256, "f32", "q4_k", True
    yield 128, 96, 256, "bf16", "q4_k", True
    yield 128, 40, 128, "f16", "mxfp4", False
    yield 17, 48, 128, "bf16", "ggml_nvfp4", True
    # blocks of 32 and 64 rows of x, whose last tiles are none of the matrix
    for layout in ("q4_k", "q6_k", "q2_k", "q4_1", "nvfp4", "q8_0", "ct_i4_asym"):
        yield 8, 296, 512, "f16" if layout in ("nvfp4", "ct_i4_asym") else "bf16", layout, False
    # several blocks of many tiles, and all slices of k
    yield 8, 1408, 2048, "bf16", "q4_0", True
    yield 8, 520, 1536, "f16", "mxfp4", False


for _index, _case in enumerate(_cases()):
    CASES["e" + "_".join(map(str, (_case[0], f"{_case[1]}x{_case[2]}", *_case[3:5], "one" if _case[5] else "apart", _index)))] = _case


#: Those whose bits are compared: large bundles are one too many.
SMALL = [name for name, (_experts, _n, _k, *_rest) in CASES.items() if _experts * _n * _k <= 1 << 22]


def matrices(name):
    """Quantized ones, or arrays of the type of x."""
    experts, n, k, dtype, layout, _as_one = CASES[name]
    rng = np.random.default_rng([kh.SEED, *name.encode()])
    if not layout:
        return [kh.encode(rng.standard_normal((n, k)) * 0.1, dtype) for _ in range(experts)]
    made = [random_weight(layout, n, k, rng) for _ in range(experts)]
    return [encodings.Quantized(q.layout, q.shape, q.components, q.group, dtype, q.types) for q in made]


def joined(parts):
    first = parts[0]
    components = {role: np.concatenate([q.components[role].reshape(-1) for q in parts]) for role in first.components}
    return encodings.Quantized(first.layout, (len(parts), *first.shape), components, first.group, first.dtype, first.types)


def add_case(m, rows, name):
    experts, n, k, dtype, layout, as_one = CASES[name]
    f, parts = m.function(name), matrices(name)
    x, ends = f.input("x", dtype, [rows, k]), f.input("ends", "i64", [experts])
    if as_one and layout:
        weights = [m.weight("w." + name, joined(parts))]
    elif as_one:
        weights = [m.constant("w." + name, np.stack(parts), dtype)]
    elif layout:
        weights = [m.weight(f"w{e}.{name}", q) for e, q in enumerate(parts)]
    else:
        weights = [m.constant(f"w{e}.{name}", array, dtype) for e, array in enumerate(parts)]
    f.result("y", x.grouped_linear(weights, ends))


def module(batch_invariant=False):
    m = Module("experts")
    m.batch_invariant = batch_invariant
    m.compute["cuda"] = "bf16"  # of what meets packed weights alone
    rows = m.symbol("rows", minimum=0, maximum=1 << 16)
    for name in SMALL if batch_invariant else CASES:
        # f32 alone would be bf16 products
        if not (CASES[name][3] == "f32" and not CASES[name][4]):
            add_case(m, rows, name)
    return m


def plain_module():
    m = Module("experts_f32")
    rows = m.symbol("rows", minimum=0, maximum=1 << 16)
    for name in CASES:
        if CASES[name][3] == "f32" and not CASES[name][4]:
            add_case(m, rows, name)
    return m


def routed(rng, experts, tokens, chosen):
    """Ends of the groups of a step: each token takes different experts, some more often."""
    liked = rng.permutation(experts)[: max(chosen, experts * 3 // 4)]
    taken = np.concatenate([rng.choice(liked, min(chosen, len(liked)), replace=False) for _ in range(tokens)])
    return np.bincount(taken, minlength=experts).cumsum()


def steps(name):
    """Rows and ends of groups: of steps, and what no router makes."""
    experts = CASES[name][0]
    rng = np.random.default_rng([kh.SEED, 7, *name.encode()])
    for tokens, chosen in STEPS:
        ends = routed(rng, experts, tokens, chosen)
        yield int(ends[-1]), ends
    one = np.zeros(experts, np.int64)
    one[experts // 2 :] = 70
    yield 70, one  # one matrix takes all
    yield 0, np.zeros(experts, np.int64)
    yield 37, np.zeros(experts, np.int64)  # all rows behind the last end
    falling = np.minimum(np.sort(rng.integers(0, 60, experts)), 50)
    falling[rng.integers(0, experts)] = rng.integers(0, 70)
    yield 45, falling


def expected(x, dense, ends):
    """float64 products, and the matrix of each row: -1 behind the last end."""
    exact, owner, begin = np.zeros((len(x), dense.shape[1])), np.full(len(x), -1), 0
    for e, end in enumerate(np.minimum(ends, len(x))):
        exact[begin:end], owner[begin:end] = x[begin:end] @ dense[e].T, e
        begin = max(begin, int(end))
    return exact, owner


def limits(name, parts, x, dense, exact, owner):
    _experts, _n, k, dtype, layout, _as_one = CASES[name]
    limit = np.zeros_like(exact)
    for e in set(owner) - {-1}:
        picked = owner == e
        if layout:
            low = "bf16" if dtype == "f32" else dtype
            for at in np.split(np.flatnonzero(picked), range(64, picked.sum(), 64)):
                limit[at] = test_quantized.limit(packing.form_of(parts[e]), low, x[at], dense[e], exact[at])
                if dtype == "f32":  # x is rounded, too
                    limit[at] += 1.01 * 2.0**-9 * (np.abs(x[at]) @ np.abs(dense[e]).T)
        else:
            magnitude = np.abs(x[picked]) @ np.abs(dense[e]).T
            limit[picked] = (k + 64) * 2.0**-24 * magnitude + 2 * test_quantized.HALF_ULP[dtype] * (np.abs(exact[picked]) + 2.0**-14)
    return limit


def run_case(m, session, name):
    _experts, n, k, dtype, layout, _as_one = CASES[name]
    parts = matrices(name)
    dense = np.stack([encodings.dequantize(q) if layout else kh.decode(q, dtype) for q in parts]).astype(np.float64)
    for rows, ends in steps(name):
        x = kh.encode(np.random.default_rng([kh.SEED, rows]).standard_normal((rows, k)), dtype)
        got = ch.run_in_runtime(session, m, name, [x, ends.astype(np.int64)], {}, [np.full((rows, n), 7, kh.NUMPY[dtype])])[0]
        values, found = kh.decode(x, dtype).astype(np.float64), kh.decode(got, dtype)
        exact, owner = expected(values, dense, ends)
        limit, error = limits(name, parts, values, dense, exact, owner), np.abs(found - exact)
        wrong = ~(error <= limit)
        assert not wrong.any(), f"{rows} rows: error {error[wrong].max():.3g} at {np.argwhere(wrong)[0]}, limit {limit[wrong].min():.3g}, {wrong.sum()} too large"


def check_bits(m, session, name):
    """A row has the same bits alone and among 1 to 600 rows of its matrix and others."""
    experts, n, k, dtype, _layout, _as_one = CASES[name]
    rng = np.random.default_rng([kh.SEED, 9])
    x = kh.encode(rng.standard_normal((600, k)), dtype)

    def run(rows, ends):
        return ch.run_in_runtime(session, m, name, [rows, ends.astype(np.int64)], {}, [np.empty((len(rows), n), kh.NUMPY[dtype])])[0]

    for e in (0, experts - 1):
        alone = np.zeros(experts, np.int64)
        alone[e:] = 1
        one = run(x[:1], alone).tobytes()
        for before, own in ((0, 2), (3, 5), (0, 8), (0, 17), (1, 100), (200, 300), (299, 1)):
            if e == 0:
                before = 0
            ends = np.zeros(experts, np.int64)
            ends[: max(e, 0)] = before
            ends[e:] = before + own
            at = before + own - 1
            rows = np.roll(x, at, 0)[: max(before + own, 1)]
            assert run(rows, ends)[at].tobytes() == one, f"matrix {e}, {own} rows behind {before}"


def load(name, m):
    loaded = ch.runtime_program(test_ops.built(name, m), "", "cuda:0")
    assert loaded is not None, "the library has no device cuda:0"
    return m, loaded.session()


SUITES = {"experts_groups": module, "experts_f32": plain_module, "experts_invariant": lambda: module(True)}


@pytest.fixture(scope="module")
def suites():
    opened = {}

    def of(name):
        why = test_ops.reason(name)
        if why:
            pytest.skip(why)
        if name not in opened:
            opened[name] = load(name, SUITES[name]())
        return opened[name]

    return of


def _suite_of(name):
    return "experts_f32" if CASES[name][3] == "f32" and not CASES[name][4] else "experts_groups"


@pytest.mark.parametrize("name", CASES)
def test_against_float64(suites, name):
    run_case(*suites(_suite_of(name)), name)


@pytest.mark.parametrize("name", SMALL)
def test_bits_do_not_depend_on_the_step(suites, name):
    own = _suite_of(name)
    check_bits(*suites(own if own == "experts_f32" else "experts_invariant"), name)


def main():
    failed = count = 0
    for suite, build in SUITES.items():
        why = test_ops.reason(suite)
        if why:
            print(why)
            continue
        m, session = load(suite, build())
        for name in m.functions:
            for check in (run_case, *((check_bits,) if suite != "experts_groups" else ())):
                count += 1
                try:
                    check(m, session, name)
                except Exception:  # noqa: BLE001 - each case is told of
                    failed += 1
                    print(f"FAIL {suite} {check.__name__} {name}: {traceback.format_exc().strip().splitlines()[-1][:300]}", flush=True)
    print(f"{count} checks, {failed} failed", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
