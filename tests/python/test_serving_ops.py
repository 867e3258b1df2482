"""Operations that a serving step needs: rotary embedding at given positions, rows of states by
index."""

from __future__ import annotations

import importlib

import numpy as np
import pytest

import compiler_harness as ch
import kernel_harness as kh
from accrt.compiler import Interpreter, IRError, Module, SymbolClass
from accrt.compiler.ops.serving import e4m3_values

pytestmark = pytest.mark.one_target  # of this machine's, in a run of the whole folder


def rng(*more):
    return np.random.default_rng([kh.SEED, *more])


def state_of(session, name, dtype, shape):
    return kh.decode(session.state(name).view(kh.encode(np.zeros(1), dtype).dtype if dtype in ch.EPSILON else kh.NUMPY[dtype]), dtype).reshape(shape)


# ---- rope_at ----


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16", "f64"])
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("heads,size,turned", [(3, 64, 64), (2, 80, 32), (1, 6, 2), (4, 128, 128)])
def test_rope_at(dtype, interleaved, heads, size, turned):
    m = Module("rope_at")
    n = m.symbol("n")
    f = m.function("f")
    x, positions = f.input("x", dtype, [n, heads, size]), f.input("positions", "i32", [n])
    frequencies = f.input("frequencies", "f32", [turned // 2])
    f.result("y", x.rope_at(positions, frequencies, scale=1.25, interleaved=interleaved))
    running = ch.program(m)
    for tokens in (1, 9, 0):
        random = rng(tokens, size)
        given = [
            ch.values(random, dtype, (tokens, heads, size)), random.integers(0, 130_000, tokens).astype(np.int32),
            (10000.0 ** -random.uniform(0, 1, turned // 2)).astype(np.float32),
        ]  # fmt: skip
        ch.compare(m, running, "f", given, roundings=8, scale=2.0)


def test_rope_at_is_rope_where_positions_count_up():
    m = Module("same")
    f = m.function("f")
    x, positions = f.input("x", "f32", [7, 2, 16]), f.input("positions", "i32", [7])
    frequencies = m.constant("frequencies", (10000.0 ** (-np.arange(8) / 8)).astype(np.float32))
    f.result("a", x.rope_at(positions, frequencies))
    f.result("b", x.transpose(0, 1).rope(5).transpose(0, 1))
    a, b = ch.session(ch.program(m)).run("f", ch.values(rng(), "f32", (7, 2, 16)), np.arange(5, 12, dtype=np.int32))
    np.testing.assert_allclose(a, b, rtol=0, atol=1e-5)


# ---- state_scatter and state_gather ----


def rows_module(dtype="f32", value="f32"):
    m = Module("rows")
    n, pages = m.symbol("n", maximum=4096), m.symbol("pages", SymbolClass.SESSION, maximum=64)
    state = m.state("kv", dtype, [pages, 4, 2, 3])
    f = m.function("put")
    f.input("x", value, [n, 2, 3]).state_scatter(state, f.input("slots", "i32", [n]))
    f.result("page", f.state_gather(state, f.input("index", "i32", [2])))
    g = m.function("get")
    g.result("rows", g.state_gather(state, g.input("index", "i32", [n]), dims=2))
    return m


@pytest.mark.parametrize("dtype,value", [("f32", "f32"), ("bf16", "f32"), ("f16", "bf16"), ("i32", "i32")])
def test_rows_go_to_their_slots_and_come_back(dtype, value):
    m = rows_module(dtype, value)
    session, oracle = ch.session(ch.program(m), pages=5), Interpreter(m, {"pages": 5})
    for tokens in (1, 7, 20, 0, 33):
        random = rng(tokens)
        slots = random.permutation(np.concatenate([np.arange(20), np.full(20, -1)]))[:tokens].astype(np.int32)
        x, index = ch.values(random, value, (tokens, 2, 3)), random.integers(0, 5, 2).astype(np.int32)
        for got, want in zip(session.run("put", x, slots, index), oracle.run("put", x, slots, index)):
            ch.assert_close(got, want, dtype, 1)
        index = random.integers(0, 20, 9).astype(np.int32)
        ch.assert_close(session.run("get", index)[0], oracle.run("get", index)[0], dtype, 1)


@pytest.mark.parametrize("on", kh.host_targets())
@pytest.mark.parametrize("value", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("scale", [1.0, 0.25])
def test_rows_become_e4m3(on, value, scale):
    """Every code and everything between two of them, ties, what is too large, and none."""
    m = Module("rows")
    n = m.symbol("n", maximum=4096)
    state, f = m.state("kv", "u8", [300, 16]), m.function("put")
    f.input("x", value, [n, 16]).state_scatter_e4m3(state, f.input("slots", "i32", [n]), scale)
    f.result("all", f.state_read(state).clone())
    known = e4m3_values()[:127]
    between = (known[1:] + known[:-1]) / 2
    numbers = np.concatenate([known, between, np.nextafter(between.astype(np.float32), 1e9), [449, 465, 1e30, np.inf, np.nan, 1e-30]])
    numbers = np.concatenate([numbers, -numbers, rng(9).standard_normal(4096)])[: 256 * 16] * scale
    numbers = np.concatenate([numbers, np.zeros(-len(numbers) % 16)]).reshape(-1, 16).astype(np.float32)
    x = kh.encode(numbers, value)
    slots = rng(10).permutation(300)[: len(numbers)].astype(np.int32)
    got = ch.session(ch.program(m, on)).run("put", x, slots)[0]
    want = Interpreter(m).run("put", x, slots)[0]
    np.testing.assert_array_equal(got, want)


def test_the_last_of_several_rows_for_one_slot_stays():
    m = rows_module()
    session = ch.session(ch.program(m), pages=2)
    x = np.arange(4000 * 6, dtype=np.float32).reshape(4000, 2, 3)
    slots = rng().integers(-1, 8, 4000).astype(np.int32)
    session.run("put", x, slots, np.zeros(2, np.int32))
    got = session.run("get", np.arange(8, dtype=np.int32))[0]
    for slot in range(8):
        np.testing.assert_array_equal(got[slot], x[np.flatnonzero(slots == slot)[-1]])


@pytest.mark.parametrize("slot", [-2, 8, 2**31 - 1, -(2**31)])
def test_a_slot_outside_fails_the_call_and_writes_nothing(slot):
    m = rows_module()
    session, oracle = ch.session(ch.program(m), pages=2), Interpreter(m, {"pages": 2})
    slots, x, index = np.array([0, slot, 1], np.int32), np.ones((3, 2, 3), np.float32), np.zeros(2, np.int32)
    with pytest.raises(RuntimeError, match=rf"state_scatter kv: 1: slot {slot} is outside a state of 8 rows"):
        session.run("put", x, slots, index)
    assert not session.state("kv").any()
    with pytest.raises(IRError, match=rf"slot {slot} is outside a state of 8 rows"):
        oracle.run("put", x, slots, index)
    loaded = ch.runtime_program(ch.program(m).bundle.data, ch.target())
    if loaded is not None:
        import accrt

        with pytest.raises(accrt.Error, match=rf"slot {slot} is outside a state of 8 rows"):
            loaded.session(symbols={"pages": 2}).put(x, slots, index)


@pytest.mark.parametrize("index", [-1, 8])
def test_an_index_outside_a_state_fails_the_call(index):
    m = rows_module()
    with pytest.raises(RuntimeError, match=rf"index {index} is outside an axis of size 8"):
        ch.session(ch.program(m), pages=2).run("get", np.array([index], np.int32))
    with pytest.raises(IRError, match=rf"index {index} is outside a state of 8 rows"):
        Interpreter(m, {"pages": 2}).run("get", np.array([index], np.int32))


def test_scalars_go_into_a_table():
    """Rows of no dimension: all of the state's are taken as one."""
    m = Module("table")
    n = m.symbol("n")
    table = m.state("table", "i32", [3, 5])
    f = m.function("put")
    f.input("pages", "i32", [n]).state_scatter(table, f.input("slots", "i32", [n]))
    f.result("all", f.state_read(table).clone())
    session, oracle = ch.session(ch.program(m)), Interpreter(m)
    given = np.array([7, 8, 9], np.int32), np.array([14, -1, 3], np.int32)
    np.testing.assert_array_equal(session.run("put", *given)[0], oracle.run("put", *given)[0])


def test_order_goes_through_the_state():
    """What was read before a scatter stays, what is read after it is new."""
    m = Module("order")
    s = m.state("s", "f32", [4, 2])
    f = m.function("f")
    x, slots, index = f.input("x", "f32", [2, 2]), f.input("slots", "i32", [2]), f.input("index", "i32", [3])
    before, gathered = f.state_read(s), f.state_gather(s, index)
    x.state_scatter(s, slots)
    again = f.state_gather(s, index)
    (x * 2.0).state_scatter(s, slots)
    for name, value in (("before", before), ("gathered", gathered), ("again", again), ("last", f.state_gather(s, index)), ("all", f.state_read(s))):
        f.result(name, value * 1.0)
    session, oracle = ch.session(ch.program(m)), Interpreter(m)
    for turn in range(4):
        random = rng(turn)
        given = (ch.values(random, "f32", (2, 2)), random.permutation(4)[:2].astype(np.int32), random.integers(0, 4, 3).astype(np.int32))
        for got, want in zip(session.run("f", *given), oracle.run("f", *given)):
            ch.assert_close(got, want, "f32", 1)


def test_calls_of_functions_that_scatter_are_ordered():
    m = Module("callee")
    s = m.state("s", "i32", [4])
    g = m.function("put", internal=True)
    g.input("x", "i32", [1]).state_scatter(s, g.input("slot", "i32", [1]))
    f = m.function("f")
    x, slot = f.input("x", "i32", [1]), f.input("slot", "i32", [1])
    old = f.state_read(s)
    f.call(g, x, slot)
    f.result("old", old + 0)
    f.result("new", f.state_read(s) + 0)
    session, oracle = ch.session(ch.program(m)), Interpreter(m)
    for turn in range(3):
        given = np.array([turn + 5], np.int32), np.array([turn], np.int32)
        for got, want in zip(session.run("f", *given), oracle.run("f", *given)):
            np.testing.assert_array_equal(got, want)


def wrong(build, match):
    m = Module("wrong")
    n = m.symbol("n")
    state = m.state("kv", "f32", [6, 4, 2, 3])
    f = m.function("f")
    with pytest.raises(IRError, match=match):
        build(f, state, n)


def test_what_does_not_fit_is_said():
    put = lambda f, s, shape, slots: f.input("x", "f32", shape).state_scatter(s, slots)  # noqa: E731
    wrong(lambda f, s, n: put(f, s, [n, 2, 4], f.input("i", "i32", [n])), "function 'f', operation accrt.state_scatter: rows of .*4 is not proved to equal 3")
    wrong(lambda f, s, n: put(f, s, [n, 2, 3], f.input("i", "i32", [n, 1])), r"slots of i32\[n, 1\]; i32 \[n\] are needed")
    wrong(lambda f, s, n: put(f, s, [n, 2, 3], f.input("i", "f32", [n])), "slots of f32")
    wrong(lambda f, s, n: put(f, s, [n, 2, 3], f.input("i", "i32", [7])), "slots: 7 is not proved to equal n")
    wrong(lambda f, s, n: put(f, s, [1, 6, 4, 2, 3], f.input("i", "i32", [1])), "it has a dimension of rows")
    wrong(lambda f, s, n: put(f, "kv", [n, 2, 3], f.input("i", "i32", [n])), "'kv' is no state")
    wrong(lambda f, s, n: f.state_gather(s, f.input("i", "i32", [n]), dims=5), "rows of 5 dimensions of state 'kv'")
    wrong(lambda f, s, n: f.state_gather(s, f.input("i", "i32", [n, n])), r"index of i32\[n, n\]")
    wrong(lambda f, s, n: f.input("x", "f32", [n, 8]).rope_at(f.input("p", "i32", [n]), f.input("w", "f32", [4])), r"floats \[tokens, heads, size\]")
    wrong(lambda f, s, n: f.input("x", "f32", [n, 1, 8]).rope_at(f.input("p", "i32", [n]), f.input("w", "f32", [5])), r"f32 \[r / 2\]")
    wrong(lambda f, s, n: f.input("x", "f32", [n, 1, 8]).rope_at(f.input("p", "i32", [3]), f.input("w", "f32", [4])), "positions: 3 is not proved")




# ---- argmax and topk ----


def special(random, shape):
    """Few values, so that many are equal; infinities, NaN and zeros of both signs among them."""
    x = random.choice(np.array([0.0, -0.0, 1.0, -1.5, 2.0, 2.0], np.float32), shape)
    x[random.random(shape) < 0.02] = np.inf
    x[random.random(shape) < 0.02] = -np.inf
    x[random.random(shape) < random.choice([0.0, 0.02])] = np.nan
    return x


def largest_module(dtype, k=3):
    m = Module("largest")
    n, w = m.symbol("n"), m.symbol("w", minimum=1)
    for name, dim in (("last", -1), ("first", 0)):
        f = m.function(name)
        x = f.input("x", dtype, [n, w])
        f.result("argmax", x.argmax(dim))
        f.result("kept", x.argmax(dim, keepdim=True))
        if dtype in ("f32", "f16", "bf16"):
            top, places = x.topk(k, dim)
            f.result("top", top)
            f.result("places", places)
    f = m.function("whole")
    f.result("all", f.input("x", dtype, [n, w]).argmax())
    return m


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16", "f64", "i32", "u8", "i64"])
def test_the_largest(dtype):
    m = largest_module(dtype)
    running, oracle = ch.program(m), Interpreter(m)
    session = ch.session(running)
    for shape in ((1, 5), (4, 33), (3, 1000), (7, 64), (130, 3), (3, 4099)):
        for turn in range(2):
            random = rng(*shape, turn)
            x = kh.encode(special(random, shape), dtype) if turn and dtype in ch.EPSILON else ch.values(random, dtype, shape, -90, 90)
            for name in ("last", "first", "whole"):
                if dtype in ("f32", "f16", "bf16") and shape[1 if name == "last" else 0] < 3:
                    continue
                for got, want in zip(session.run(name, x), oracle.run(name, x)):
                    ch.assert_close(got, want, dtype if got.dtype != np.int64 else "i64", 1)


@pytest.mark.parametrize("k", [1, 20, 64, 65, 1000, 4096])
def test_topk_of_long_rows(k):
    m = largest_module("f32", k)
    session, oracle = ch.session(ch.program(m)), Interpreter(m)
    random = rng(k)
    normal = random.standard_normal((2, 4096)).astype(np.float32)
    same, few = np.full((2, 4096), 7.0, np.float32), special(random, (2, 4096))
    late = np.sort(normal, -1)
    for x in (normal, same, few, late, -late):
        for got, want in zip(session.run("last", x), oracle.run("last", x)):
            np.testing.assert_array_equal(got, want.astype(got.dtype))


def test_the_largest_of_nothing_is_refused():
    wrong(lambda f, s, n: f.input("x", "f32", [n, 0]).argmax(-1), "nothing has no extreme")
    wrong(lambda f, s, n: f.input("x", "f32", [n, 5]).topk(6), "the 6 largest of dimension 1")
    wrong(lambda f, s, n: f.input("x", "i32", [n, 5]).topk(2), "topk of i32")
    wrong(lambda f, s, n: f.input("x", "bool", [n, 5]).argmax(), "argmax of bool")
    m = largest_module("f32", 9)
    with pytest.raises(RuntimeError, match="the 9 largest of 5 elements"):
        ch.session(ch.program(m)).run("last", np.zeros((2, 5), np.float32))


def test_argmax_without_a_kernel_is_the_same(monkeypatch):
    """As CUDA does it: out of comparisons and reductions."""
    rules = importlib.import_module("accrt.compiler.select")._RULES["host"]
    monkeypatch.setitem(rules, "aten.argmax", [])
    test_the_largest("f64")
