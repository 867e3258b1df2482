"""Low-rank products with an adapter for each token on a GPU, against the float64 reference; tokens
without one keep their bits, and a token's bits do not depend on the others.
tests/python/test_lora_ops.py does the same on hosts."""

from __future__ import annotations

import os
import sys

import numpy as np
import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, os.pardir, "python")]

import compiler_harness as ch  # noqa: E402
import kernel_harness as kh  # noqa: E402
import test_ops  # noqa: E402
from accrt.compiler import Interpreter, Module  # noqa: E402

ADAPTERS = 5
#: Type of x, y and the result, type of factors, sizes, rank.
SHAPES = (
    ("f32", "f32", 96, 80, 8), ("bf16", "bf16", 2048, 512, 16), ("f16", "f16", 64, 130, 3), ("f32", "bf16", 33, 1101, 5), ("bf16", "f32", 1, 1, 1),
    ("f16", "f16", 72, 136, 3), ("bf16", "bf16", 8192, 72, 9),
)  # fmt: skip
#: What passes make of products that are joined: types, size, rank, columns of each part.
JOINED = (
    ("bf16", "bf16", 2048, 16, (2048, 512, 512)), ("f32", "f32", 33, 5, (70, 33)), ("f16", "bf16", 64, 70, (5, 300, 7)),
    ("bf16", "bf16", 72, 24, (40, 88, 16)), ("f16", "bf16", 64, 70, (8, 304, 16)),
    ("bf16", "bf16", 96, 70, (64, 8, 120)),
)  # fmt: skip
#: What a gate of two parts becomes: type, size, rank, columns of each part, activation.
GATED = (("bf16", 96, 16, 1088, "silu"), ("f16", 40, 9, 72, "gelu"), ("bf16", 33, 20, 13, "silu"), ("bf16", 80, 70, 136, "silu"))


def gate(both, columns, activation):
    """activation(first half) * (second half), as models have it."""
    first, second = (both.slice(-1, at, at + columns) for at in (0, columns))
    return (getattr(first, activation)().to_copy("f32") * second.to_copy("f32")).to_copy(both.dtype)


def module():
    m = Module("token_adapters")
    n = m.symbol("n", maximum=4096)
    for i, (x, factors, size, out, rank) in enumerate(SHAPES):
        a, b = m.state(f"a{i}", factors, [ADAPTERS, rank, size]), m.state(f"b{i}", factors, [ADAPTERS, rank, out])
        f = m.function(f"f{i}")
        given, y, index = f.input("x", x, [n, size]), f.input("y", x, [n, out]), f.input("index", "i32", [n])
        f.result("y", y.lora_expand(given.lora_shrink(a, index), b, index))
    for i, (x, factors, size, rank, parts) in enumerate(JOINED):
        states = [[m.state(f"{name}{i}.{k}", factors, [ADAPTERS, rank, size if name == "c" else n]) for k, n in enumerate(parts)] for name in "cd"]
        f = m.function(f"joined{i}")
        given, y, index = f.input("x", x, [n, size]), f.input("y", x, [n, sum(parts)]), f.input("index", "i32", [n])
        shrink, expand = (f"lora_{half}{len(parts)}" for half in ("shrink", "expand"))
        f.result("y", getattr(y, expand)(getattr(given, shrink)(*states[0], index), *states[1], index))
    for i, (x, size, rank, out, activation) in enumerate(GATED):
        states = [[m.state(f"{name}{i}.{k}", x, [ADAPTERS, rank, n]) for k in range(2)] for name, n in (("e", size), ("g", out))]
        f = m.function(f"gated{i}")
        given, y, index = f.input("x", x, [n, size]), f.input("y", x, [n, 2 * out]), f.input("index", "i32", [n])
        f.result("y", gate(y.lora_expand2(given.lora_shrink2(*states[0], index), *states[1], index), out, activation))
        # The same without adapters, by the kernels that a model without places has.
        f = m.function(f"plain{i}")
        f.result("y", gate(f.input("y", x, [n, 2 * out]).linear(m.constant(f"one{i}", kh.encode(np.eye(2 * out), x), x)), out, activation))
    return m


CASES = {f"{kind}{i}": case for kind, cases in (("f", SHAPES), ("joined", JOINED), ("gated", GATED)) for i, case in enumerate(cases)}
NAMES = list(CASES)


def types_of(name):
    return CASES[name][0]


class Running:
    def __init__(self):
        import accrt

        instance = accrt.default_instance("all")
        self.m = module()
        self.program = accrt.Bundle(test_ops.built("token_adapters", self.m), instance).program(instance.device("cuda:0"))
        self.session, self.oracle = self.program.session(), Interpreter(self.m)
        self.random = np.random.default_rng([kh.SEED, 77])
        for name, state in self.m.states.items():
            content = ch.values(self.random, state.type.dtype, self.oracle.states[name].shape, -1.0, 1.0)
            there = self.session.state(name)
            self.session.stream.copy(content, there.buffer, content.nbytes, target_offset=there.offset_bytes)
            self.session.stream.synchronize()
            self.oracle.states[name][...] = kh.decode(content, state.type.dtype)

    def tensor(self, x, dtype):
        import accrt

        x = np.ascontiguousarray(x)
        buffer = accrt.Pool(self.program.device).buffer(max(x.nbytes, 16))
        if x.nbytes:
            self.session.stream.copy(x, buffer, x.nbytes)
            self.session.stream.synchronize()
        return accrt.Tensor(buffer, dtype, x.shape)

    def run(self, name, x, y, index):
        dtype = types_of(name)
        return np.asarray(self.session[name](self.tensor(x, dtype), self.tensor(y, dtype), self.tensor(index, "i32")).tolist(), np.float64)

    def kept(self, name, y):
        """What tokens without an adapter have."""
        dtype = types_of(name)
        if not name.startswith("gated"):
            return kh.decode(y, dtype)
        return np.asarray(self.session["plain" + name[5:]](self.tensor(y, dtype)).tolist(), np.float64)

    def given(self, name, tokens):
        dtype, (size, out) = types_of(name), (i.value.shape[1] for i in self.m.functions[name].inputs[:2])
        x, y = (ch.values(self.random, dtype, (tokens, n), -1.0, 1.0) for n in (size, out))
        return x, y, self.random.integers(-1, ADAPTERS, tokens).astype(np.int32)


@pytest.fixture(scope="module")
def running():
    why = test_ops.reason("token_adapters")
    if why:
        pytest.skip(why)
    return Running()


def near(got, want, dtype):
    bound = max(1.0, np.abs(want).max()) * (32 * 2.0**-23 + {"f32": 0.0, "f16": 2.0**-10, "bf16": 2.0**-7}[dtype])
    return np.abs(got - want).max() <= bound


@pytest.mark.parametrize("tokens", [1, 7, 256, 300])
@pytest.mark.parametrize("name", NAMES)
def test_random_shapes(running, name, tokens):
    x, y, index = running.given(name, tokens)
    got, want = running.run(name, x, y, index), running.oracle.run(name, x, y, index)[0]
    assert near(got, want, types_of(name))
    assert np.array_equal(got[index < 0], running.kept(name, y)[index < 0])
    for i in range(0, tokens, 17):
        assert np.array_equal(running.run(name, x[i : i + 1], y[i : i + 1], index[i : i + 1])[0], got[i])


@pytest.mark.parametrize("name", NAMES)
def test_one_adapter_of_all_tokens(running, name):
    x, y, index = running.given(name, 200)
    index[:] = 2
    got, want = running.run(name, x, y, index), running.oracle.run(name, x, y, index)[0]
    assert near(got, want, types_of(name))


@pytest.mark.parametrize("tokens", [700, 2500])
@pytest.mark.parametrize("name", NAMES)
def test_prompts_beside_rows(running, name, tokens):
    """Pieces of one adapter, of many, and of none."""
    x, y, index = running.given(name, tokens)
    index[300:500], index[500:620], index[620:1900] = 3, -1, 1
    got, want = running.run(name, x, y, index), running.oracle.run(name, x, y, index)[0]
    assert near(got, want, types_of(name))
    assert np.array_equal(got[index < 0], running.kept(name, y)[index < 0])
    assert np.array_equal(running.run(name, x[400:410], y[400:410], index[400:410]), got[400:410])


def test_an_adapter_outside_is_none(running):
    x, y, _index = running.given("f0", 4)
    got = running.run("f0", x, y, np.array([-2, ADAPTERS, 2**31 - 1, -(2**31)], np.int32))
    assert np.array_equal(got, kh.decode(y, "f32"))
