"""Reductions and running sums on hosts take the work by element before and behind them. Which
kernels are left, and that the values are those of the float64 reference."""

from __future__ import annotations

import numpy as np
import pytest

import compiler_harness as ch
import rotation
from accrt.compiler import Interpreter, Module, passes
from accrt.compiler.bufferize import bufferize

pytestmark = [pytest.mark.quick_kernels, pytest.mark.skipif(ch.ON_CUDA, reason="hosts alone stage reductions")]

VIEWS = ("view", "slice", "select", "expand", "permute")


def names(module):
    return [name for name in (op.name.partition(".")[2] for op in passes.run(module).functions["f"].body.walk()) if name not in VIEWS]


def built(function, *inputs):
    """A module of one function of inputs: shapes of f32, or (type, shape)."""
    m = Module("staged")
    n = m.symbol("n", minimum=1, maximum=5000)
    f = m.function("f")
    values = []
    for i, given in enumerate(inputs):
        dtype, shape = given if given and isinstance(given[0], str) and given[0] != "n" else ("f32", given)
        values.append(f.input(f"x{i}", dtype, [n if size == "n" else size for size in shape]))
    f.result("y", function(*values))
    return m


ONE = ["staged"]
#: By name: what is made of inputs, their shapes, and the operations that are left.
GRAPHS = {
    "mean": (lambda x: ((x * x + 1.0).mean(-1) + 1e-5).rsqrt(), [(5, "n")], ONE),
    "mean, kept": (lambda x: (x * x).mean(-1, True).sqrt(), [(5, "n")], ONE),
    "sum of columns": (lambda x: (x * 2.0 + 1.0).sum(0) * 0.5, [("n", 7)], ONE),
    "sum of many columns": (lambda x: (x * 2.0 + 1.0).sum(0), [("n", 150)], ONE),
    "sum in the middle": (lambda x, b: (x * b).sum(1) - 1.0, [(3, "n", 6), (6,)], ONE),
    "sum of two apart": (lambda x: (x.tanh()).sum([0, 2]), [(3, 4, "n")], ONE),
    "sum of all": (lambda x: x.abs().sum() * 2.0, [(3, "n")], ONE),
    "sum of a turned one": (lambda x: (x.t() * 2.0).sum(-1), [("n", 9)], ONE),
    "sum by what each row has": (lambda x, r, c: ((x - r) * c).sum(-1).relu(), [("n", 33), ("n", 1), (33,)], ONE),
    "sum and what is behind it": (lambda x, y: x.sum(-1) * y + y, [("n", 33), ("n",)], ONE),
    "sum and one for all": (lambda x, y: (x * 2.0).sum(0) - y, [("n", 12), ()], ONE),
    "of five axes": (lambda x, b: (x + b).sum([1, 3]), [(2, 3, 2, 5, 4), (3, 1, 5, 1)], ONE),
    "greatest": (lambda x: (x * -2.0).amax(-1) + 1.0, [(5, "n")], ONE),
    "least of columns": (lambda x: (x * -2.0).amin(0), [("n", 20)], ONE),
    "integers": (lambda x: (x * 3 - 1).sum(-1) % 7, [("i32", (5, "n"))], ONE),
    "bools": (lambda x: (x > 0.5).sum(-1) * 2, [(5, "n")], ONE),
    "bf16": (lambda x: (x * 0.5).mean(-1) * 2.0, [("bf16", (5, "n"))], ONE),
    "f16": (lambda x: (x * 0.5).amax(0).abs(), [("f16", ("n", 30))], ONE),
    "f64": (lambda x: (x * 0.5).sum(-1) - 1.0, [("f64", (5, "n"))], ONE),
    "a function of f64": (lambda x: x.exp().sum(-1), [("f64", (5, 30))], ["elementwise", "sum"]),
    "functions, few results": (lambda x: x.tanh().sum() * 2.0, [(300, 300)], ["elementwise", "staged"]),
    "functions of little, few results": (lambda x: x.tanh().sum() * 2.0, [(30, 300)], ONE),
    "functions, few columns": (lambda x: x.exp().amax(0), [("n", 96)], ["elementwise", "amax"]),
    "functions, many rows": (lambda x: x.exp().amax(-1), [(64, "n")], ONE),
    "functions, few lines": (lambda x: x.exp().cumsum(1), [(7, "n", 3)], ["elementwise", "cumsum"]),
    "functions, many lines": (lambda x: x.exp().cumsum(-1), [(16, "n")], ONE),
    "place": (lambda x, b: (x * 2.0 + b).argmax(-1) * 2 + 1, [(200, "n"), ("n",)], ONE),
    "place of columns": (lambda x: (x * 2.0).abs().argmax(0), [("n", 200)], ["elementwise", "argmax"]),
    "running sum": (lambda x: x.tanh().cumsum(-1) * 0.5 - 1.0, [(5, "n")], ONE),
    "running sum of columns": (lambda x, y: (x * 2.0).cumsum(0) + y, [("n", 100), ("n", 100)], ONE),
    "running sum in the middle": (lambda x: (x > 0.0).cumsum(1) - 1, [(3, "n", 5)], ONE),
    "used twice": (lambda x: (lambda y: y.sum(-1, True) + y)(x * 2.0 + 1.0), [(5, "n")], ["elementwise", "sum", "elementwise"]),
    "of another shape": (lambda x: x.sum(-1, True) + x, [(5, "n")], ["sum", "elementwise"]),
    "one behind the other": (lambda x: ((x * 2.0).sum(-1) + 1.0).sum(0) * 3.0, [(5, "n")], ONE * 2),
    "with work behind it, then used twice": (lambda x: (lambda y: y.relu() + y.cumsum(0))((x * 2.0).sum(-1) + 1.0), [(5, "n")], ["staged", "elementwise", "staged"]),
    "with nothing beside it": (lambda x: x.sum(-1), [(5, "n")], ["sum"]),
    "of numbers that know their place": (lambda x: (x.function.arange(x.shape[0]) * x).sum(-1), [(30,)], ["elementwise", "sum"]),
}  # fmt: skip


def drawn(random, module, n):
    made = []
    for i in module.functions["f"].inputs:
        shape = [size if isinstance(size, int) else n for size in i.value.shape]
        made.append(ch.values(random, i.value.dtype, shape))
    return made


@pytest.mark.parametrize("name", GRAPHS)
def test_reductions(name):
    function, inputs, wanted = GRAPHS[name]
    module, random = built(function, *inputs), np.random.default_rng(rotation.seed())
    assert names(module) == wanted
    running = ch.program(module)
    adds = any(op.name in ("aten.sum", "aten.cumsum") for op in module.functions["f"].body.walk())
    for n in (1, 37, 1023, 2500):
        given = drawn(random, module, n)
        total = float(sum(np.abs(x.astype(np.float64)).sum() for x in given if x.dtype.kind == "f")) if module.functions["f"].results[0].value.dtype[0] == "f" else 1.0
        ch.compare(module, running, "f", given, roundings=16, scale=max(total, 8.0) if adds else 8.0)
        after = Interpreter(passes.run(module)).run("f", *given)
        np.testing.assert_allclose(after[0], Interpreter(module).run("f", *given)[0], rtol=1e-12, atol=1e-9)


@pytest.mark.parametrize("core", ["sum", "mean", "amax", "amin", "argmax", "cumsum"])
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16", "i8", "u16", "i64"])
def test_fused_gives_the_bits_of_each_alone(core, dtype):
    """A value that is a result, too, is a tensor: then nothing is fused."""
    if core == "mean" and dtype[0] in "iu":
        pytest.skip("a mean is of floats")

    def made(apart):
        m = Module("bits")
        f = m.function("f")
        x = f.input("x", dtype, [6, 2000])
        before = x * 3 - x.abs()
        between = getattr(before, core)(-1)
        f.result("y", between + between * 2)
        if apart:
            f.result("before", before)
            f.result("between", between)
        return m

    given = [ch.values(np.random.default_rng(rotation.seed()), dtype, [6, 2000])]
    assert "staged" in names(made(False)) and "staged" not in names(made(True))
    (one,) = ch.session(ch.program(made(False))).run("f", *given)
    two = ch.session(ch.program(made(True))).run("f", *given)[0]
    assert one.tobytes() == two.tobytes()


def test_the_place_of_the_largest():
    """The first of equal ones; NaN is the largest, and -infinity everywhere has a place."""
    module = built(lambda x: (x * 1.0).argmax(-1), (6, 3000))
    x = np.zeros((6, 3000), np.float32)
    x[0, [1500, 2900]] = 5
    x[1, [1024, 2047]] = np.nan
    x[1, 3] = np.inf
    x[2] = -np.inf
    x[3, 2999] = 1
    x[4] = np.nan
    (got,) = ch.session(ch.program(module)).run("f", x)
    assert names(module) == ONE
    assert got.tolist() == [1500, 1024, 0, 2999, 0, 0]


def test_a_reduction_does_not_cross_a_write_to_what_is_read():
    m = Module("written")
    f = m.function("f")
    x = f.input("x", "f32", [5, 40], access="read_write")
    before = (x * 2.0).sum(-1)
    (x * 3.0).write_input("x")
    f.result("y", before + 1.0)
    given = np.random.default_rng(rotation.seed()).uniform(-1, 1, (5, 40)).astype(np.float32)
    (got,) = ch.session(ch.program(m)).run("f", given.copy())
    np.testing.assert_allclose(got, (given * 2.0).sum(-1, dtype=np.float64) + 1, rtol=1e-5, atol=1e-5)


def test_what_is_reduced_is_no_tensor():
    work = passes.run(built(lambda x: ((x * x + 1.0).mean(-1) + 1e-5).rsqrt(), (64, 64)))
    buffers = bufferize(work.functions["f"], {})
    assert [s.kind for s in buffers.storages] == ["input", "result"] and len(buffers.commands) == 1


@pytest.mark.parametrize("rows, groups", [(8, 1), (9, 2), (64, 8), (4096, 64)])
def test_rows_are_shared_out(rows, groups):
    """A few rows are work for several threads, if each row is long."""
    work = passes.run(built(lambda x: (x * 2.0).sum(-1), (rows, 64)))
    (command,) = bufferize(work.functions["f"], {}).commands
    assert command.launch.grid == (groups, 1, 1)


def test_gpus_keep_their_kernels():
    work = passes.run(built(lambda x: (x * x).mean(-1) + 1.0, (8, 16)), passes.CUDA_PIPELINE)
    assert [op.name for op in work.functions["f"].body.walk()] == ["accrt.elementwise", "aten.mean", "accrt.elementwise"]
