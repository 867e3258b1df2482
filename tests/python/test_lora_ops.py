"""Low-rank products with an adapter for each token: against the float64 reference, alone and in
place, and bit for bit in other batches."""

from __future__ import annotations

import functools

import numpy as np
import pytest

import compiler_harness as ch
import kernel_harness as kh
from accrt.compiler import Interpreter, IRError, Module, available_targets, bufferize, cat, compile, passes
from accrt.compiler.kernels import lora as lowering

pytestmark = pytest.mark.one_target  # of this machine's, in a run of the whole folder
ADAPTERS, TYPES = 5, ("f32", "f16", "bf16")
#: Roundings of f32 sums, relative to the largest that comes of them.
ROUNDINGS = 16


def rng(*more):
    return np.random.default_rng([kh.SEED, *more])


def module(x="f32", factors="f32", size=96, out=80, rank=8, wide=0):
    """y + (x A) B. `wide`: y is columns of something wider, and so not in place."""
    m = Module("lora")
    n = m.symbol("n", maximum=4096)
    a, b = m.state("a", factors, [ADAPTERS, rank, size]), m.state("b", factors, [ADAPTERS, rank, out])
    f = m.function("f")
    given, y, index = f.input("x", x, [n, size]), f.input("y", x, [n, out + wide]), f.input("index", "i32", [n])
    at = y.slice(-1, wide, out + wide) if wide else y
    shrunk = given.lora_shrink(a, index)
    f.result("shrunk", shrunk)
    f.result("y", at.lora_expand(shrunk, b, index))
    return m


class Running:
    def __init__(self, m, *more):
        self.m, self.random = m, rng(*more)
        self.program = ch.program(m)
        self.session, self.oracle = ch.session(self.program), Interpreter(m)
        for name, state in m.states.items():
            content = ch.values(self.random, state.type.dtype, self.oracle.states[name].shape, -1.0, 1.0)
            self.session.state(name)[...] = content.reshape(self.session.state(name).shape)
            self.oracle.states[name][...] = kh.decode(content, state.type.dtype)

    def given(self, tokens, index=None):
        inputs = {i.name: i.value for i in self.m.functions["f"].inputs}
        x, y = (ch.values(self.random, inputs[name].dtype, (tokens, inputs[name].shape[1]), -1.0, 1.0) for name in ("x", "y"))
        return x, y, self.random.integers(-1, ADAPTERS, tokens).astype(np.int32) if index is None else np.asarray(index, np.int32)

    def check(self, *given):
        got, want = self.session.run("f", *given), self.oracle.run("f", *given)
        x = {i.name: i.value for i in self.m.functions["f"].inputs}["x"].dtype
        for have, expected, dtype in ((got[0], want[0], "f32"), (got[1], want[1], x)):
            roundings = ROUNDINGS if dtype == "f32" else 1 + ROUNDINGS * 2.0**-23 / ch.EPSILON[x]
            ch.assert_close(have, expected, dtype, roundings, max(1.0, np.abs(expected).max(initial=0.0)))
        return got


@pytest.mark.rotating(12)
@pytest.mark.parametrize("size,out,rank", [(96, 80, 8), (1, 1, 1), (33, 1100, 5), (2048, 64, 16), (17, 130, 3)])
@pytest.mark.parametrize("x", TYPES)
@pytest.mark.parametrize("factors", TYPES)
def test_random_shapes(x, factors, size, out, rank):
    running = Running(module(x, factors, size, out, rank), size, rank)
    for tokens in (1, 7, 0, 40):
        running.check(*running.given(tokens))
    running.check(*running.given(9, [2, 2, 2, -1, -1, 0, 0, 4, 4]))


def test_tokens_without_an_adapter_keep_their_bits():
    running = Running(module("bf16", "bf16"))
    x, y, index = running.given(20, [-1] * 20)
    shrunk, kept = running.session.run("f", x, y, index)
    assert not shrunk.any()
    np.testing.assert_array_equal(kept, y)


def test_columns_of_something_wider():
    running = Running(module(wide=24))
    for tokens in (1, 6):
        running.check(*running.given(tokens))


@pytest.mark.parametrize("factors", TYPES)
def test_a_token_does_not_depend_on_the_others(factors):
    running = Running(module("f32", factors, size=300, out=1500, rank=6))
    x, y, index = running.given(70)
    index[10:30] = 3
    together = running.session.run("f", x, y, index)
    for i in range(0, 70, 3):
        for whole, alone in zip(together, running.session.run("f", x[i : i + 1], y[i : i + 1], index[i : i + 1])):
            np.testing.assert_array_equal(whole[i : i + 1], alone)
    for whole, part in zip(together, running.session.run("f", x[11:34], y[11:34], index[11:34])):
        np.testing.assert_array_equal(whole[11:34], part)


def test_the_result_takes_the_memory_of_what_it_is_added_to():
    """So tokens without an adapter cost nothing."""
    m = Module("in_place")
    n = m.symbol("n", maximum=64)
    a, b = m.state("a", "f32", [2, 4, 16]), m.state("b", "f32", [2, 4, 16])
    f = m.function("f")
    x, index = f.input("x", "f32", [n, 16]), f.input("index", "i32", [n])
    y = x.linear(m.constant("w", np.eye(16, dtype=np.float32)))
    f.result("y", y.lora_expand(x.lora_shrink(a, index), b, index).softmax(-1))
    made = bufferize.bufferize(passes.run(m).functions["f"], {})
    places = [c.accesses for c in made.commands if "lora_expand" in c.name]
    assert len(places) == 1 and places[0]["y"].storage is places[0]["out"].storage


# ---- several at once ----


def joined_module(parts=3, sizes=(70, 33, 1200), rank=5, size=40, dtype="f32", residual=True, biased=True):
    """Products of one input with an adapter each, one behind them, and a residual."""
    m, random = Module("joined"), rng(parts, rank)
    n = m.symbol("n", maximum=512)
    f = m.function("f")
    x, index, last = f.input("x", "f32", [n, size]), f.input("index", "i32", [n]), f.input("z", "f32", [n, sum(sizes[:parts])])

    def adapted(x, name, taken, given):
        w = m.constant(f"w{name}", (random.standard_normal((given, taken)) / taken**0.5).astype(np.float32))
        b = m.constant(f"b{name}", random.standard_normal(given).astype(np.float32)) if biased else None
        states = [m.state(f"{part}{name}", dtype, [ADAPTERS, rank, columns]) for part, columns in (("a", taken), ("b", given))]
        return x.linear(w, b).lora_expand(x.lora_shrink(states[0], index), states[1], index)

    made = cat([adapted(x, str(i), size, columns) for i, columns in enumerate(sizes[:parts])], -1)
    f.result("y", adapted(made, "last", sum(sizes[:parts]), sum(sizes[:parts])) + last if residual else made)
    return m


def names_of(m, family="host"):
    made = bufferize.bufferize(passes.run(m, passes.PIPELINES[family]).functions["f"], {}, family)
    return [c.name.rpartition("/")[2].split()[0] for c in made.commands], made


@pytest.mark.parametrize("family", ["host", "cuda"])
@pytest.mark.parametrize("parts", [2, 3])
def test_products_of_one_input_have_their_adapters_at_once(parts, family):
    """In place, and the residual goes to the product."""
    names, made = names_of(joined_module(parts), family)
    for name in (f"lora_shrink{parts}", f"lora_expand{parts}", "lora_shrink", "lora_expand"):
        assert names.count(name) == 1, names
    assert sum("product" in name or "matmul" in name for name in names) == 2 and "add" not in names
    for command in made.commands:
        if "lora_expand" in command.name and command.accesses["out"].storage.kind != "result":
            assert command.accesses["y"].storage is command.accesses["out"].storage


def check_joined(m, tokens, *more):
    random, oracle = rng(tokens, *more), Interpreter(m)
    session = ch.session(ch.program(m))
    for name, state in m.states.items():
        content = ch.values(random, state.type.dtype, oracle.states[name].shape, -0.2, 0.2)
        session.state(name)[...] = content.reshape(session.state(name).shape)
        oracle.states[name][...] = kh.decode(content, state.type.dtype)
    inputs = {i.name: i.value for i in m.functions["f"].inputs}
    x, z = (random.uniform(-1, 1, (tokens, inputs[name].shape[1])).astype(np.float32) for name in ("x", "z"))
    index = random.integers(-1, ADAPTERS, tokens).astype(np.int32)
    got, want = session.run("f", x, index, z)[0], oracle.run("f", x, index, z)[0]
    ch.assert_close(got, want, "f32", 64, max(1.0, np.abs(want).max(initial=0.0)))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("parts,sizes,rank", [(2, (64, 64), 4), (3, (70, 33, 1200), 5), (3, (1, 1, 1), 1), (2, (1023, 5), 9)])
def test_several_at_once(parts, sizes, rank, dtype):
    m = joined_module(parts, sizes, rank, dtype=dtype)
    for tokens in (1, 6, 0, 33):
        check_joined(m, tokens, parts)


def test_what_is_not_the_whole_is_left_alone():
    """Columns that have no adapter, another rank, or other tokens."""
    m = Module("apart")
    n = m.symbol("n", maximum=64)
    f = m.function("f")
    x, index, other = f.input("x", "f32", [n, 8]), f.input("index", "i32", [n]), f.input("other", "i32", [n])
    states = [m.state(f"s{rank}{i}", "f32", [ADAPTERS, rank, 8]) for i in range(4) for rank in (2, 3)]
    products = [x.linear(m.constant(f"w{i}", rng(i).standard_normal((8, 8)).astype(np.float32))) for i in range(3)]
    f.result("p", products[0])  # without
    f.result("q", products[1].lora_expand(x.lora_shrink(states[0], index), states[2], index))
    f.result("r", products[2].lora_expand(x.lora_shrink(states[4], other), states[6], other))
    names, _made = names_of(m)
    assert names.count("lora_expand") == 2 and names.count("lora_shrink") == 2


@pytest.mark.parametrize("adapter", [-2, ADAPTERS, 2**31 - 1, -(2**31)])
def test_an_adapter_outside_fails_the_call(adapter):
    running = Running(module())
    x, y, index = running.given(3, [0, adapter, 1])
    with pytest.raises(RuntimeError, match=rf"lora_shrink a: 1: adapter {adapter} of {ADAPTERS}"):
        running.session.run("f", x, y, index)
    with pytest.raises(IRError, match=rf"adapter {adapter} of {ADAPTERS}"):
        running.oracle.run("f", x, y, index)


def test_what_does_not_fit_is_said():
    m = Module("wrong")
    n = m.symbol("n")
    a, short = m.state("a", "f32", [2, 4, 16]), m.state("short", "i32", [2, 4, 16])
    f = m.function("f")
    x, index = f.input("x", "f32", [n, 16]), f.input("index", "i32", [n])
    for build, words in (
        (lambda: x.lora_shrink(short, index), "factors of i32"),
        (lambda: f.input("wide", "f32", [n, 17]).lora_shrink(a, index), "17 is not proved to equal 16"),
        (lambda: f.input("whole", "i32", [n, 16]).lora_shrink(a, index), "lora_shrink of i32"),
        (lambda: x.lora_shrink(a, f.input("long", "i64", [n])), "index of i64"),
        (lambda: x.lora_shrink(a, f.input("fixed", "i32", [3])), "3 is not proved to equal n"),
        (lambda: x.lora_expand(x, a, index), "rank of state 'a'"),
        (lambda: x.lora_expand(x.to_copy("f16"), a, index), "lora_expand of f16"),
    ):
        with pytest.raises(IRError, match=words):
            build()


@pytest.mark.parametrize("target", kh.host_targets())
def test_the_kernels_alone(target):
    """On several threads, with guards around all memory."""
    random = rng(7)
    for tokens, size, out, rank in ((1, 40, 70, 3), (37, 100, 1030, 9)):
        x, y = (random.uniform(-1, 1, (tokens, n)).astype(np.float32) for n in (size, out))
        a, b = (kh.encode(random.uniform(-1, 1, (ADAPTERS, rank, n)), "bf16") for n in (size, out))
        index = random.integers(-1, ADAPTERS, tokens).astype(np.int32)
        spec = {name: kh.spec_of(array, dtype) for name, array, dtype in (("x", x, "f32"), ("y", y, "f32"), ("a", a, "bf16"), ("b", b, "bf16"))}
        spec["index"] = kh.spec_of(index, "i32")
        shrunk = np.zeros((tokens, rank), np.float32)
        made = lowering.lower_shrink(spec["x"], [spec["a"]], spec["index"])
        shrunk = kh.run(made, {"x": x, "factors": a, "index": index}, {"out": shrunk}, target, threads=3)["out"]
        on = index >= 0
        wide = kh.decode(a, "bf16")[index]
        want = np.where(on[:, None], np.einsum("tk,trk->tr", x.astype(np.float64), wide), 0.0)
        np.testing.assert_allclose(shrunk, want, rtol=0, atol=1e-6 * size)
        made = lowering.lower_expand(spec["y"], kh.spec_of(shrunk, "f32"), [spec["b"]], spec["index"], spec["y"])
        got = kh.run(made, {"y": y, "shrunk": shrunk, "factors": b, "index": index}, {"out": np.zeros_like(y)}, target, threads=3)["out"]
        want = y + np.where(on[:, None], np.einsum("tr,trn->tn", shrunk.astype(np.float64), kh.decode(b, "bf16")[index]), 0.0)
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-5 * rank)


@pytest.mark.rotating(2)
@pytest.mark.parametrize("made", [*(functools.partial(module, *types) for types in (("f32", "bf16"), ("bf16", "bf16"), ("f16", "f16"))), joined_module],
                         ids=range(4))  # fmt: skip
def test_there_is_a_version_for_cuda(made):
    if "sm_90" not in available_targets():
        pytest.skip("no nvcc here")
    assert compile(made(), targets=["sm_90"])


@pytest.mark.parametrize("count", [2, 3])
def test_the_reference_of_several_at_once(count):
    """The interpreter runs joined operations too: they give what the single ones give, side by
    side."""
    m, sizes = Module("several"), (7, 4, 9)[:count]
    inner = [m.state(f"a{i}", "f32", [3, 5, 6]) for i in range(count)]
    outer = [m.state(f"b{i}", "f32", [3, 5, size]) for i, size in enumerate(sizes)]
    f = m.function("f")
    x, y, index = f.input("x", "f32", [8, 6]), f.input("y", "f32", [8, sum(sizes)]), f.input("index", "i32", [8])
    f.result("joined", getattr(y, f"lora_expand{count}")(getattr(x, f"lora_shrink{count}")(*inner, index), *outer, index))
    parts = [column.lora_expand(x.lora_shrink(a, index), b, index) for column, a, b in zip(y.split(list(sizes), 1), inner, outer)]
    f.result("single", cat(parts, 1))
    oracle, random = Interpreter(m), rng(count)
    for state in oracle.states.values():
        state[...] = random.standard_normal(state.shape)
    joined, single = oracle.run("f", random.standard_normal((8, 6)), random.standard_normal((8, sum(sizes))), random.integers(-1, 3, 8).astype(np.int32))
    np.testing.assert_allclose(joined, single)
