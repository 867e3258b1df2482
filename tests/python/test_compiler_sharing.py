"""Results that lie where operands lie: only where the kernel has read what it overwrites."""

from __future__ import annotations

import numpy as np
import pytest

import compiler_harness as ch
import rotation
from accrt.compiler import Module, cat, passes
from accrt.compiler.bufferize import bufferize


def commands(build, family):
    m = Module("sharing")
    n = m.symbol("n", maximum=1 << 12)
    f = m.function("f")
    f.result("y", build(m, f, f.input("x", "f32", [n, 64])))
    work = passes.run(m, passes.PIPELINES[family])
    return bufferize(work.functions["f"], {}, family).commands


def weight(m, name="w"):
    return m.constant(name, np.eye(64, dtype=np.float32))


@pytest.mark.parametrize("family", ("host", "cuda"))
def test_a_product_does_not_overwrite_what_it_multiplies(family):
    """x @ w + x: the residual may be overwritten, but not while other results still need it as an
    operand."""

    def build(m, f, x):
        w = weight(m)
        for _layer in range(3):
            x = x.linear(w).relu() + x
            x = x.exp()
        return x

    products = [c for c in commands(build, family) if c.launch is not None and "residual" in c.accesses]
    assert len(products) == 3
    for command in products:
        a, out = command.accesses["a"], command.accesses["out"]
        assert a.storage is not out.storage


@pytest.mark.parametrize("family", ("host", "cuda"))
def test_a_residual_of_its_own_is_overwritten(family):
    def build(m, f, x):
        return (x.exp().linear(weight(m)) + x.sin()).cos()

    products = [c for c in commands(build, family) if c.launch is not None and "residual" in c.accesses]
    assert len(products) == 1
    assert products[0].accesses["residual"].storage is products[0].accesses["out"].storage


def test_element_wise_operations_may_read_an_operand_twice():
    def build(m, f, x):
        y = x.exp().linear(weight(m))
        return (y * y).linear(weight(m, "v"))

    (square,) = [c for c in commands(build, "host") if c.launch is not None and "x0" in c.accesses and "exp" not in c.launch.kernel.name]
    assert square.accesses["x0"].storage is square.accesses["y0"].storage


@pytest.mark.parametrize("family", ("host", "cuda"))
def test_parts_of_parts_are_calculated_where_they_end(family):
    """A concatenation of concatenations copies nothing."""

    def build(m, f, x):
        return cat([cat([x[:, :32].exp(), x[:, 32:].sin()], 1), cat([x[:, 32:].cos(), x[:, :32].sigmoid()], 1)], 0)

    assert len([c for c in commands(build, family) if c.launch is not None]) == 4


SIZE = 48
#: Functions of x [SIZE, SIZE] whose result is written where x lies, and the same in numpy.
WRITTEN_BACK = {
    "product": (lambda x: x.matmul(x), lambda x: x @ x),
    "product of itself turned": (lambda x: x.matmul(x.t()), lambda x: x @ x.T),
    "turned": (lambda x: x.t() * 1.0, lambda x: x.T),
    "rows in another order": (lambda x: cat([x[1:], x[:1]], 0) * 2.0, lambda x: 2 * np.roll(x, -1, 0)),
    "and its first row": (lambda x: x + x[:1], lambda x: x + x[:1]),
    "itself": (lambda x: x * 2.0 + 1.0, lambda x: 2 * x + 1),
    "norm": (lambda x: x.rms_norm(None, 0.0), lambda x: x / np.sqrt((x * x).mean(-1, keepdims=True))),
    "by an index": (lambda x: x.index_select(0, x.function.arange(SIZE) * -1 + (SIZE - 1)), lambda x: x[::-1]),
    "sums": (lambda x: x.cumsum(0), lambda x: x.cumsum(0)),
}


@pytest.mark.parametrize("name", WRITTEN_BACK)
@pytest.mark.parametrize("kind", ("input", "state"))
def test_what_is_written_back_is_made_of_the_old_content(kind, name):
    build, expected = WRITTEN_BACK[name]
    m = Module("written")
    state = m.state("s", "f32", [SIZE, SIZE])
    f = m.function("f")
    x = f.input("x", "f32", [SIZE, SIZE], access="read_write")
    if kind == "input":
        build(x).write_input("x")
    else:
        x.state_write(state, [0, 0])
        build(f.state_read(state)).state_write(state, [0, 0])
        f.state_read(state).clone().write_input("x")
    given = np.random.default_rng(rotation.seed()).uniform(-1, 1, (SIZE, SIZE)).astype(np.float32)
    mine = given.copy()
    ch.session(ch.program(m)).run("f", mine)
    np.testing.assert_allclose(mine, expected(given.astype(np.float64)), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shift", (-1, 1))
def test_rows_of_a_state_move_past_each_other(shift):
    m = Module("moved")
    state = m.state("s", "f32", [SIZE, SIZE])
    f = m.function("f")
    f.input("x", "f32", [SIZE, SIZE]).state_write(state, [0, 0])
    rows = f.state_read(state)[max(-shift, 0) : SIZE - max(shift, 0)]
    (rows + 1.0).state_write(state, [max(shift, 0), 0])
    f.result("y", f.state_read(state) * 1.0)
    given = np.random.default_rng(rotation.seed()).uniform(-1, 1, (SIZE, SIZE)).astype(np.float32)
    (got,) = ch.session(ch.program(m)).run("f", given)
    wanted = given.copy()
    wanted[max(shift, 0) : SIZE + min(shift, 0)] = given[max(-shift, 0) : SIZE - max(shift, 0)] + 1
    np.testing.assert_allclose(got, wanted, rtol=1e-6)


@pytest.mark.parametrize("family", ("host", "cuda"))
def test_what_reads_and_writes_one_place_needs_no_copy(family):
    """Of a state that is scaled, and of a row that is made of another one."""
    m = Module("in_place")
    state = m.state("s", "f32", [4, 64])
    f = m.function("f")
    (f.state_read(state) * 0.5).state_write(state, [0, 0])
    (f.state_read(state)[1:2] + 1.0).state_write(state, [2, 0])
    work = passes.run(m, passes.PIPELINES[family])
    assert len(bufferize(work.functions["f"], {}, family).commands) == 2
