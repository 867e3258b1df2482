"""Lookups on hosts: what is looked up is read through the index by the loop that uses it. Which
kernels are left, and that the values are those of the float64 reference."""

from __future__ import annotations

import os
import subprocess

import numpy as np
import pytest

import compiler_harness as ch
import rotation
from accrt.compiler import Interpreter, Module, passes
from accrt.compiler.bufferize import bufferize
from accrt.compiler.kernels import image

pytestmark = [pytest.mark.quick_kernels, pytest.mark.skipif(ch.ON_CUDA, reason="hosts alone read through an index")]

VIEWS = ("view", "slice", "select", "expand", "permute")
N = 37  # no multiple of a vector, nor of the block in which places are collected


def names(module):
    return [name for name in (op.name.partition(".")[2] for op in passes.run(module).functions["f"].body.walk()) if name not in VIEWS]


def built(function, *inputs):
    """A module of one function of inputs (type, shape)."""
    m = Module("lookups")
    n = m.symbol("n", minimum=0, maximum=1024)
    f = m.function("f")
    f.result("y", function(*(f.input(f"x{i}", dtype, [n if size == "n" else size for size in shape]) for i, (dtype, shape) in enumerate(inputs))))
    return m


ROWS, PLACES, EACH = ("f32", (9, 5)), ("i64", ("n",)), ("i32", ("n", 5))
#: By name: what is made of inputs, and the operations that are left of it.
GRAPHS = {
    "alone": (lambda x, i: x.index_select(0, i), (ROWS, PLACES), ["index_select"]),
    "before work": (lambda x, i: x.index_select(0, i).tanh() * 2.0, (ROWS, PLACES), ["elementwise"]),
    "behind cheap work": (lambda x, i: (x * 2.0 + 1.0).index_select(0, i), (ROWS, PLACES), ["elementwise"]),
    "behind dear work": (lambda x, i: x.exp().index_select(0, i), (ROWS, PLACES), ["elementwise", "index_select"]),
    "of fewer places, behind dear work": (lambda x, i: x.exp().index_select(0, i), (ROWS, ("u8", (4,))), ["elementwise"]),
    "behind work of two shapes": (lambda x, b, i: (x * b + 1.0).index_select(0, i), (ROWS, ("f32", (5,)), PLACES), ["elementwise"]),
    "behind work that has each row": (lambda x, b, i: (x * 0.0 + b).index_select(0, i), (("f32", (1, 5)), ("f32", (9, 5)), PLACES), ["elementwise"]),
    "along the last dimension": (lambda x, i: x.index_select(1, i) * 2.0, (("f32", ("n", 9)), ("u32", (300,))), ["elementwise"]),
    "in the middle": (lambda x, i: x.index_select(1, i).relu(), (("bf16", (3, 9, 5)), PLACES), ["elementwise"]),
    "twice": (lambda x, i, k: x.index_select(0, i).index_select(1, k), (ROWS, PLACES, ("i64", (7,))), ["elementwise"]),
    "of one value by two": (lambda x, i, k: x.index_select(0, i) + x.index_select(0, k), (ROWS, PLACES, PLACES), ["elementwise"]),
    "of one value by two, behind work": (lambda x, i, k: (lambda y: y.index_select(0, i) * 2.0 + y.index_select(0, k))(x * 3.0), (ROWS, PLACES, PLACES), ["elementwise"] * 2),
    "by an index of an index": (lambda x, k, i: x.index_select(0, k.index_select(0, i)).relu(), (ROWS, ("i64", (12,)), PLACES), ["index_select", "elementwise"]),
    "used twice": (lambda x, i: (lambda y: y.sum(0) + y.index_select(0, i))(x.index_select(0, i)), (("f32", (9, 5)), ("i64", (5,))), ["index_select", "sum", "elementwise"]),
    "embedding": (lambda x, i: x.embedding(i) * 2.0 + 1.0, (ROWS, ("i32", (2, "n"))), ["elementwise"]),
    "gather": (lambda x, i: x.gather(0, i), (ROWS, EACH), ["elementwise"]),
    "gather and work": (lambda x, i, y: (x.gather(0, i) - y).abs(), (ROWS, EACH, ("f32", ("n", 5))), ["elementwise"]),
    "gather by work": (lambda x, i: x.gather(0, i * 2).relu(), (("f32", (40, 5)), EACH), ["elementwise"]),
    "gather of fewer": (lambda x, i: x.gather(1, i), (("f64", (9, 6, 8)), ("i64", (4, 7, 3))), ["elementwise"]),
    "gather of a gather": (lambda x, k, i: x.gather(0, k.gather(0, i)), (ROWS, ("i64", (9, 5)), EACH), ["elementwise"]),
    "and rows": (lambda x, i, y: x.index_select(0, i) * y.sum(-1, True), (ROWS, PLACES, ("f32", ("n", 8))), ["sum", "elementwise"]),
}  # fmt: skip


def drawn(random, module, n):
    """Inputs; integers are places from 0 to 4."""
    made = []
    for i in module.functions["f"].inputs:
        shape = [size if isinstance(size, int) else n for size in i.value.shape]
        made.append(ch.values(random, i.value.dtype, shape, *((0, 3) if i.value.dtype[0] in "iu" else (-2, 2))))
    return made


@pytest.mark.parametrize("name", GRAPHS)
def test_lookups(name):
    function, inputs, wanted = GRAPHS[name]
    module, random = built(function, *inputs), np.random.default_rng(rotation.seed())
    assert names(module) == wanted
    running = ch.program(module)
    for n in (N, 600, 1, 0):
        given = drawn(random, module, n)
        ch.compare(module, running, "f", given)
        after = Interpreter(passes.run(module)).run("f", *given)
        np.testing.assert_array_equal(after[0], Interpreter(module).run("f", *given)[0])


def test_kernels_name_no_value_that_they_do_not_use(tmp_path):
    """What finds a place is in the loop that looks up, not also in the loop behind it."""
    compiler = image.find_compiler(ch.target())
    for name, (function, inputs, _wanted) in GRAPHS.items():
        work = passes.run(built(function, *inputs)).functions["f"]
        for command in bufferize(work, {}).commands:
            if command.launch.kernel.op != "elementwise":
                continue
            unit, source = tmp_path / "unit.c", command.launch.kernel.producer
            unit.write_text(source.text)
            folders = [f"-I{image.include_directory()}", f"-I{os.path.dirname(image.__file__)}"]
            values = [f"-D{key}={value}" for key, value in source.defines]
            only = [*image.TARGETS[ch.target()].flags, "-std=gnu11", "-fsyntax-only", "-Wno-psabi", "-Wunused-variable", "-Werror=unused-variable"]
            done = subprocess.run([*compiler.command, *only, *folders, *values, str(unit)], capture_output=True, text=True)
            assert done.returncode == 0, f"{name}: {done.stderr}"


OUTSIDE = {
    "rows": (lambda x, i: x.index_select(0, i) * 2.0, (ROWS, PLACES), 9),
    "columns": (lambda x, i: x.index_select(1, i) * 2.0, (ROWS, PLACES), 5),
    "each": (lambda x, i: x.gather(0, i) * 2.0, (ROWS, EACH), 9),
    "work": (lambda x, i: (x * 2.0 + 1.0).index_select(0, i), (ROWS, PLACES), 9),
    "no rows": (lambda x, i: x.index_select(0, i) * 2.0, (("f32", (0, 5)), PLACES), 0),
    "no columns": (lambda x, i: x.gather(1, i) * 2.0, (("f32", (9, 0)), ("i64", (9, "n"))), 0),
}  # fmt: skip


@pytest.mark.parametrize("name", OUTSIDE)
def test_a_place_outside_fails_the_call(name):
    function, inputs, size = OUTSIDE[name]
    module, random = built(function, *inputs), np.random.default_rng(rotation.seed())
    running = ch.program(module)
    assert names(module) == ["elementwise"]
    for bad in (-1, size, 2**31 - 1):
        given = drawn(random, module, 300)
        given[1] *= int(size > 0)
        given[1].reshape(-1)[random.integers(given[1].size) if size else 0] = bad
        with pytest.raises(RuntimeError, match=f"index {bad} is outside an axis of size {size}" + r"\b"):
            ch.session(running).run("f", *given)


def test_a_result_does_not_overwrite_what_is_looked_up():
    """Neither the memory of a value that dies here, nor an input that is written."""
    m = Module("places")
    f = m.function("f")
    x = f.input("x", "f32", [40, 3], access="read_write")
    i = f.input("i", "i64", [40])
    y = x.softmax(-1)
    f.result("y", y.index_select(0, i) * 2.0)
    (x.index_select(0, i) + 1.0).write_input("x")
    random = np.random.default_rng(rotation.seed())
    given = [random.uniform(-1, 1, (40, 3)).astype(np.float32), random.permutation(40)]
    running = ch.session(ch.program(m))
    mine = given[0].copy()
    (got,) = running.run("f", mine, given[1])
    soft = np.exp(given[0]) / np.exp(given[0]).sum(-1, keepdims=True)
    np.testing.assert_allclose(got, 2 * soft[given[1]], rtol=1e-5)
    np.testing.assert_array_equal(mine, given[0][given[1]] + 1)


def test_lookups_do_not_cross_a_write_to_what_is_read():
    m = Module("written")
    f = m.function("f")
    x, i = f.input("x", "f32", [9, 3], access="read_write"), f.input("i", "i64", [9])
    before = x.index_select(0, i)
    (x * 2.0).write_input("x")
    f.result("y", before + 1.0)
    random = np.random.default_rng(rotation.seed())
    given = [random.uniform(-1, 1, (9, 3)).astype(np.float32), random.integers(0, 9, 9)]
    (got,) = ch.session(ch.program(m)).run("f", given[0].copy(), given[1])
    np.testing.assert_array_equal(got, given[0][given[1]] + 1)


def test_gpus_keep_their_kernels():
    module = built(lambda x, i: (x * 2.0).index_select(0, i) + 1.0, ROWS, PLACES)
    work = passes.run(module, passes.CUDA_PIPELINE)
    assert [op.name for op in work.functions["f"].body.walk()].count("aten.index_select") == 1
