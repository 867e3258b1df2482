"""Results that lie where operands lie: only where the kernel has read what it overwrites."""

from __future__ import annotations

import numpy as np
import pytest

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
