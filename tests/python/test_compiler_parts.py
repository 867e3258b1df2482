"""Work by element on hosts moves past concatenations and slices. Which kernels are left, and that
the values are those of the float64 reference."""

from __future__ import annotations

import numpy as np
import pytest

import compiler_harness as ch
import rotation
from accrt.compiler import cat, Interpreter, Module, passes
from accrt.compiler.bufferize import bufferize
from accrt.compiler.ops import windows

pytestmark = [pytest.mark.quick_kernels, pytest.mark.skipif(ch.ON_CUDA, reason="hosts alone move work past concatenations")]


def built(function, *shapes):
    m = Module("parts")
    n = m.symbol("n", minimum=8, maximum=1024)
    f = m.function("f")
    f.result("y", function(*(f.input(f"x{i}", "f32", [n if size == "n" else size for size in shape]) for i, shape in enumerate(shapes))))
    return m


def roll(x, shift, dim):
    size = x.shape[dim]
    return cat([x[size - shift :], x[: size - shift]], dim)


def halves(x):
    return x[:, :8], x[:, 8:]


def turned(x, c, s):
    """Both halves of a rotation, as models write it."""
    low, high = halves(x)
    return x * c + cat([high * -1.0, low], 1) * s


#: By name: what is made of inputs, their shapes, and how many commands a call has.
GRAPHS = {
    "roll": (lambda x: (roll(x.tanh(), 3, 0) * 2.0).relu(), [("n", 5)], 2),
    "padding": (lambda x: windows.padded(x.tanh(), [(2, 1)], 3.0).relu() * 2.0, [("n", 5)], 3),
    "padding of two": (lambda x: windows.padded(x.tanh(), [(1, 1), (2, 0)], 0.5).relu(), [(4, "n", 5)], 4),
    "a rotation": (turned, [("n", 16), ("n", 16), ("n", 16)], 2),
    "a gate": (lambda x: (lambda a, b: a * b.sigmoid())(*halves(x * 2.0 + 1.0)), [("n", 16)], 1),
    "joined, and more of each shape": (lambda x, y, r, c: (cat([x, y], 0) + r) * c, [("n", 6), (3, 6), (6,), (1, 6)], 2),
    "joined, and a column": (lambda x, y, c: cat([x, y], 1) * c, [("n", 6), ("n", 3), ("n", 1)], 2),
    "joined twice": (lambda x, y: cat([cat([x, y], 0).exp(), y], 0) * 0.5, [("n", 6), (3, 6)], 3),
    "of products, which write their parts": (lambda x, y: cat([x.matmul(x.t()), y.matmul(x.t())], 0).relu(), [(8, 8), (5, 8)], 3),
    "of a part of a product": (lambda x, y: cat([x.matmul(x.t())[:, :4], y], 0).relu(), [(8, 8), (5, 4)], 3),
    "joined and used twice": (lambda x, y: (lambda z: z.relu() + z.sum(0))(cat([x, y], 0)), [("n", 6), (3, 6)], 4),
    "slices that overlap": (lambda x: (lambda y: y[:9] * y[1:10])(x.exp()), [(10, 4)], 2),
    "a slice of work": (lambda x: x.exp()[2:5] + 1.0, [(10, 4)], 1),
    "places": (lambda x: cat([x, x], 0) + x.function.arange(6), [("n", 6)], 3),
}  # fmt: skip


def commands(module):
    return len(bufferize(passes.run(module).functions["f"], {}).commands)


@pytest.mark.parametrize("name", GRAPHS)
def test_parts(name):
    function, shapes, wanted = GRAPHS[name]
    module, random = built(function, *shapes), np.random.default_rng(rotation.seed())
    running = ch.program(module)
    for n in (8, 37, 300):
        given = [random.uniform(-1, 1, [n if size == "n" else size for size in shape]).astype(np.float32) for shape in shapes]
        ch.compare(module, running, "f", given, scale=max(4.0, n))
        after = Interpreter(passes.run(module)).run("f", *given)
        np.testing.assert_allclose(after[0], Interpreter(module).run("f", *given)[0], rtol=1e-12, atol=1e-12)
    assert commands(module) == wanted


def test_work_does_not_move_past_a_write_to_what_it_reads():
    m = Module("written")
    f = m.function("f")
    x = f.input("x", "f32", [8, 3], access="read_write")
    joined, cut = cat([x[4:], x[:4]], 0), (x * 3.0)[1:4]
    (x * 2.0).write_input("x")
    f.result("y", joined + 1.0)
    f.result("z", cut + 1.0)
    given = np.random.default_rng(rotation.seed()).uniform(-1, 1, (8, 3)).astype(np.float32)
    y, z = ch.session(ch.program(m)).run("f", given.copy())
    np.testing.assert_array_equal(y, np.roll(given, 4, 0) + 1)
    np.testing.assert_array_equal(z, given[1:4] * np.float32(3) + 1)


def test_gpus_keep_their_kernels():
    def names(pipeline):
        work = passes.run(built(lambda x: roll(x.tanh(), 3, 0).relu(), (16, 5)), pipeline)
        return [op.name.rpartition(".")[2] for op in work.functions["f"].body.walk()]

    assert names(passes.CUDA_PIPELINE) == ["elementwise", "slice", "slice", "cat", "elementwise"]
    assert sorted(names(passes.PIPELINE)) == ["cat", "elementwise", "elementwise", "slice", "slice"]
