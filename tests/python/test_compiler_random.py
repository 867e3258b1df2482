"""Random programs: whatever the builder accepts, the compiled bundle calculates what the float64
reference says.

Graphs of element-wise work, views, concatenations, reductions, products, state, loops and branches,
with shapes of symbols. Fusion, memory sharing, in-place work and predecessors all meet here.
ACCRT_TEST_SEED picks others; the seed is in the name.
"""

from __future__ import annotations

import os
import random

import numpy as np
import pytest

import compiler_harness as ch
import kernel_harness as kh
from accrt.compiler import Interpreter, IRError, Module, cat, compile
from accrt.compiler import expr as ex

FUNCTIONS = int(os.environ.get("ACCRT_RANDOM_FUNCTIONS", "12"))
STEPS = 14


class Grower:
    """Grows one function from a seed. Values stay within a few units, so that errors do not
    grow."""

    def __init__(self, m, name, seed, n, states):
        self.random = random.Random(seed)
        self.m, self.n, self.states = m, n, states
        self.f = m.function(name)
        self.name = name
        self.values = [self.f.input("x", "f32", [n, 4]), self.f.input("y", "f32", [4, 3])]
        self.updated = self.f.input("u", "f32", [n, 4], access="read_write")
        self.values.append(self.updated)
        self.constants = 0

    def pick(self, rank=None):
        fitting = [v for v in self.values if rank is None or v.rank == rank]
        return self.random.choice(fitting[-6:] + fitting[:1]) if fitting else self.values[0]

    def grow(self):
        for _ in range(STEPS):
            step = self.random.choice(STEPS_OF)
            try:
                made = step(self)
            except IRError:
                continue
            if made is not None and made.rank <= 4:
                self.values.append(made)
        chosen = self.random.sample(self.values[3:], min(3, len(self.values) - 3)) or [self.values[0]]
        for index, value in enumerate(chosen):
            self.f.result(f"r{index}", value)

    def constant(self, shape):
        self.constants += 1
        data = np.random.default_rng(self.random.randrange(1 << 30)).uniform(-0.5, 0.5, shape).astype(np.float32)
        return self.f.constant(self.m.constant(f"{self.name}.c{self.constants}", data))


def unary(g):
    return getattr(g.pick(), g.random.choice(["tanh", "sigmoid", "relu", "abs", "neg"]))()


def binary(g):
    a = g.pick()
    b = g.random.choice([g.pick(a.rank), g.random.uniform(-1, 1), g.constant(a.shape[-1:]) if a.rank and isinstance(a.shape[-1], int) else 0.5])
    return getattr(a, g.random.choice(["add", "sub", "mul", "maximum", "minimum"]))(b).clamp(-4, 4)


def permute(g):
    a = g.pick()
    dims = list(range(a.rank))
    g.random.shuffle(dims)
    return a.permute(dims)


def reshape(g):
    a = g.pick()
    return g.random.choice([lambda: a.flatten(), lambda: a.unsqueeze(g.random.randrange(a.rank + 1)), lambda: a.view([-1, a.shape[-1]]) if a.rank else a])()


def cut(g):
    a = g.pick()
    if a.rank == 0:
        return None
    axis = g.random.randrange(a.rank)
    if not isinstance(a.shape[axis], int) or a.shape[axis] < 2:
        return None
    start = g.random.randrange(a.shape[axis] - 1)
    end = g.random.randrange(start + 1, a.shape[axis] + 1)
    return g.random.choice([lambda: a.slice(axis, start, end), lambda: a.select(axis, start), lambda: a.slice(axis, start, None, 2)])()


def join(g):
    a = g.pick()
    b = g.random.choice([g.pick(a.rank), a, a * 0.5])
    return cat([a, b], g.random.randrange(max(a.rank, 1)))


def reduce(g):
    a = g.pick()
    axis = g.random.randrange(max(a.rank, 1))
    return getattr(a, g.random.choice(["mean", "amax", "amin"]))(axis, g.random.random() < 0.5)


def normal(g):
    a = g.pick()
    return g.random.choice([lambda: a.softmax(-1), lambda: a.softmax(0), lambda: a.rms_norm()])()


def product(g):
    a = g.pick()
    if a.rank < 2 or not isinstance(a.shape[-1], int):
        return None
    if g.random.random() < 0.6:
        width = g.random.randint(1, 5)
        y = a.linear(g.constant((width, a.shape[-1])), g.constant((width,)) if g.random.random() < 0.5 else None)
        return g.random.choice([lambda: y.tanh(), lambda: y, lambda: y.gelu()])()
    return a.matmul(g.constant((a.shape[-1], 3)) if g.random.random() < 0.5 else a.transpose(-1, -2)).tanh()


def residual(g):
    a = g.pick()
    if a.rank < 2 or not isinstance(a.shape[-1], int):
        return None
    return (a.linear(g.constant((a.shape[-1], a.shape[-1]))) + a).tanh()


def remember(g):
    state = g.random.choice(g.states)
    if g.random.random() < 0.5:
        return g.f.state_read(state)
    row = g.random.randrange(4)
    value = g.random.choice([g.f.state_read(state)[row : row + 1], g.pick(2)])
    if not ex.same(value.shape[0], 1):
        value = value.mean(0, True)
    if not ex.same_shape(value.shape, (1, 3)):
        return None
    (value * 0.9 + 0.01).state_write(state, [g.random.randrange(4), 0])
    return None


def update(g):
    fitting = [v for v in g.values if ex.same_shape(v.shape, g.updated.shape)]
    (g.random.choice(fitting) * 0.5 + 0.25).write_input("u")
    return None


def loop(g):
    a = g.pick()
    b = g.random.choice([a * 0.5, a])
    c = g.constant((3, *a.shape)) if all(isinstance(s, int) for s in a.shape) and a.rank < 4 else None

    def body(i, x, y):
        step = x.tanh() * 0.5 + y * 0.25
        step = step if c is None else step + c[i]
        return g.random.choice([(step, x), (y, step), (step, step * 0.5), (x, step)])

    return g.random.choice(g.f.repeat(3, [a, b], body))


def stateful_loop(g):
    """State and an input change while a loop runs; what was read before it stays."""
    state, row = g.random.choice(g.states), g.random.randrange(2)
    before = g.f.state_read(state)
    outside = g.updated[:, 1:]

    def body(i, x):
        seen = g.f.state_read(state)
        y = (x + seen[i : i + 1]).tanh() + before[row : row + 1] * 0.5
        (y * 0.5).state_write(state, [i + row, 0])
        if g.random.random() < 0.5:
            (g.updated * 0.5 + y.mean()).write_input("u")
        if g.random.random() < 0.5:
            y = y + outside.mean(0, True)
        return y + g.f.state_read(state)[row : row + 1] * 0.25

    (made,) = g.f.repeat(3, [g.constant((1, 3))], body)
    return g.random.choice([made, before * 1.0, outside])


def branch(g):
    a = g.pick()
    (made,) = g.f.cond(g.n % 2, lambda: a.tanh(), lambda: g.random.choice([a * 0.5, a]))
    return made


STEPS_OF = [unary, unary, binary, binary, binary, permute, permute, reshape, cut, cut, join, reduce, normal, product, residual,
            remember, remember, update, loop, stateful_loop, branch]  # fmt: skip


def grown(seed):
    m = Module("random")
    n = m.symbol("n", minimum=0, maximum=64)
    states = [m.state(f"s{i}", "f32", [4, 3], fill_pattern=0x3F000000) for i in range(2)]
    for index in range(FUNCTIONS):
        Grower(m, f"f{index}", seed * 1000 + index, n, states).grow()
    return m


@pytest.mark.parametrize("seed", [kh.SEED])
def test_random_programs(seed):
    m = grown(seed)
    data = compile(m, targets=[ch.target()])
    running = ch.load(data, ch.target(), seed)
    loaded = ch.runtime_program(data, ch.target())
    values = np.random.default_rng(seed)
    for name, function in m.functions.items():
        session, oracle = ch.session(running), Interpreter(m)
        other = loaded.session() if loaded is not None else None
        for n in (5, 1, 2, 0):
            shapes = {"x": (n, 4), "y": (4, 3), "u": (n, 4)}
            inputs = [values.uniform(-1, 1, shapes[i.name]).astype(np.float32) for i in function.inputs]
            expected = oracle.run(name, *inputs)
            ours, theirs = [x.copy() for x in inputs], [x.copy() for x in inputs]
            got = session.run(name, *ours)
            for result, have, want in zip(function.results, got, expected):
                ch.assert_close(have, want, "f32", 512, 1.0, f"{name}, n = {n}, {result.name}: ")
            if other is not None:
                made = ch.run_in_runtime(other, m, name, theirs, {}, got)
                assert [a.tobytes() for a in (*made, *theirs)] == [a.tobytes() for a in (*got, *ours)], f"{name}, n = {n}"
