"""cumsum, sort, scatter and grouped_matmul beside numpy, on every axis, with and without their
kernels."""

from __future__ import annotations

import importlib

import numpy as np
import pytest

import compiler_harness as ch
import kernel_harness as kh
from accrt.compiler import driver, Interpreter, IRError, Module

TYPES = ["f32", "f16", "bf16", "f64", "i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64", "bool"]
SHAPES = [(1, 1, 1), (3, 5, 2), (2, 33, 7), (1, 300, 1), (4, 16, 130), (2, 0, 3), (0, 4, 2)]
KERNELS = ("aten.cumsum", "aten.sort", "accrt.scatter", "accrt.grouped_matmul")


def rng(*more):
    return np.random.default_rng([kh.SEED, *more])


@pytest.fixture(params=["kernels", "composed"])
def composed(request, monkeypatch):
    """As CUDA does it: out of comparisons and sums."""
    if request.param == "composed":
        rules = importlib.import_module("accrt.compiler.select")._RULES["host"]
        for name in KERNELS:
            monkeypatch.setitem(rules, name, [])
    return request.param == "composed"


def special(random, dtype, shape):
    """Few values, so that many are equal; infinities, NaN and zeros of both signs among floats."""
    if dtype not in ch.EPSILON:
        return ch.values(random, dtype, shape, -3, 3)
    x = random.choice(np.array([0.0, -0.0, 1.0, -1.5, 2.0, np.inf, -np.inf, np.nan]), shape)
    return kh.encode(x, dtype)


def per_axis(dtype, build, extra=()):
    m = Module("axes")
    sizes = [m.symbol(name) for name in "abc"]
    for axis in range(3):
        f = m.function(f"axis{axis}")
        for index, result in enumerate(build(f, f.input("x", dtype, sizes), axis)):
            f.result(f"y{index}", result)
    return m


def check(m, make, shapes=SHAPES, **limits):
    running = ch.program(m)
    for turn, shape in enumerate(shapes):
        for axis in range(3):
            ch.compare(m, running, f"axis{axis}", make(rng(turn, axis), shape, axis), **limits)


# ---- cumsum ----


@pytest.mark.parametrize("dtype", TYPES)
def test_cumsum(dtype, composed):
    m = per_axis(dtype, lambda f, x, axis: [x.cumsum(axis)])
    shapes = SHAPES[:4] if composed else SHAPES
    check(m, lambda random, shape, axis: [ch.values(random, dtype, shape, -9, 9)], shapes, roundings=64 if composed else 2, scale=64)


def test_long_running_sums_keep_their_digits():
    m = per_axis("f32", lambda f, x, axis: [x.cumsum(axis)])
    x = rng().uniform(0, 1, (2, 100_000, 1)).astype(np.float32)
    ch.compare(m, ch.program(m), "axis1", [x], roundings=1)


def test_cumsum_of_views_and_of_no_dimension():
    m = Module("views")
    n = m.symbol("n")
    f = m.function("views")
    x = f.input("x", "f32", [n, 4, 6])
    f.result("turned", x.transpose(0, 2).cumsum(1))
    f.result("cut", x[:, 1:3, 2:].cumsum(-1))
    g = m.function("number")
    g.result("y", g.input("x", "i32", []).cumsum(0))
    running = ch.program(m)
    ch.compare(m, running, "views", [ch.values(rng(), "f32", (3, 4, 6))], roundings=2, scale=8)
    ch.compare(m, running, "number", [np.array(5, np.int32)])


# ---- sort ----


@pytest.mark.rotating(8)
@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("dtype", TYPES)
def test_sort(dtype, descending):
    m = per_axis(dtype, lambda f, x, axis: x.sort(axis, descending))
    for make in (special, lambda random, dtype, shape: ch.values(random, dtype, shape, -99, 99)):
        check(m, lambda random, shape, axis: [make(random, dtype, shape)], roundings=0)


@pytest.mark.parametrize("dtype", ["f32", "bf16", "i32", "i64", "bool", "f64"])
def test_sort_without_a_kernel(dtype, monkeypatch):
    monkeypatch.setitem(importlib.import_module("accrt.compiler.select")._RULES["host"], "aten.sort", [])
    m = Module("axes")
    for axis in range(3):
        f = m.function(f"axis{axis}")
        x = f.input("x", dtype, [3, 5, 4])
        for index, result in enumerate([*x.sort(axis), *x.sort(axis, True)]):
            f.result(f"y{index}", result)
    check(m, lambda random, shape, axis: [ch.values(random, dtype, shape, -3, 3)], [(3, 5, 4)], roundings=0)


def test_long_lines_are_sorted():
    m = per_axis("f32", lambda f, x, axis: x.sort(axis))
    random = rng()
    for x in (random.standard_normal(50_000), np.arange(50_000), -np.arange(50_000), np.zeros(50_000)):
        ch.compare(m, ch.program(m), "axis1", [x.astype(np.float32).reshape(1, -1, 1)], roundings=0)


# ---- scatter ----


@pytest.mark.rotating(20)
@pytest.mark.parametrize("add", [False, True])
@pytest.mark.parametrize("index", ["i32", "i64", "u8"])
@pytest.mark.parametrize("dtype", ["f32", "f16", "i64", "u8", "bool"])
def test_scatter(dtype, index, add, composed):
    if dtype == "bool" and add or composed and index == "u8":
        pytest.skip("bools are not added" if add else "i32 and i64 are enough")
    m = Module("axes")
    sizes, count = [m.symbol(name, minimum=1) for name in "abc"], m.symbol("count", minimum=1)
    for axis in range(3):
        f = m.function(f"axis{axis}")
        places = [count if d == axis else s for d, s in enumerate(sizes)]
        f.result("y", f.input("x", dtype, sizes).scatter(f.input("index", index, places), f.input("source", dtype, places), axis, add))
    running = ch.program(m)
    for turn, shape in enumerate(((1, 1, 1), (3, 5, 2), (2, 33, 7), (4, 6, 130))):
        for axis in range(3):
            for number in (1, 4, 40):
                random = rng(turn, axis, number)
                places = [number if d == axis else s for d, s in enumerate(shape)]
                given = [ch.values(random, dtype, shape, 0, 5), random.integers(0, shape[axis], places).astype(kh.NUMPY[index]), ch.values(random, dtype, places, 0, 5)]
                ch.compare(m, running, f"axis{axis}", given, roundings=40, scale=200 if add else 1)


@pytest.mark.parametrize("add", [False, True])
@pytest.mark.parametrize("dtype", ["f32", "bf16", "i64"])
def test_scattered_rows(dtype, add, composed):
    m = Module("axes")
    sizes, count = [m.symbol(name, minimum=1) for name in "abc"], m.symbol("count", minimum=1)
    for axis in range(3):
        f = m.function(f"axis{axis}")
        x, index = f.input("x", dtype, sizes), f.input("index", "i64", [count])
        f.result("y", x.scatter(index, f.input("source", dtype, [count if d == axis else s for d, s in enumerate(sizes)]), axis, add))
    running = ch.program(m)
    for turn, shape in enumerate(((1, 1, 1), (3, 5, 2), (4, 6, 130))):
        for axis in range(3):
            for number in (1, 4, 40):
                random = rng(turn, axis, number)
                given = [ch.values(random, dtype, shape, 0, 5), random.integers(0, shape[axis], number), ch.values(random, dtype, [number if d == axis else s for d, s in enumerate(shape)], 0, 5)]
                ch.compare(m, running, f"axis{axis}", given, roundings=40, scale=200 if add else 1)


def test_of_several_elements_for_one_place_the_last_stays():
    m = Module("last")
    f = m.function("last")
    f.result("y", f.input("x", "f32", [4]).scatter(f.input("i", "i64", [3]), f.input("s", "f32", [3]), 0))
    got = ch.session(ch.program(m)).run("last", np.zeros(4, np.float32), np.array([2, 0, 2]), np.array([1, 2, 3], np.float32))
    assert got[0].tolist() == [2, 0, 3, 0]


@pytest.mark.parametrize("place", [-1, 4, 1 << 40])
def test_a_place_outside_fails_the_call(place):
    m = Module("outside")
    f = m.function("outside")
    f.result("y", f.input("x", "f32", [4]).scatter(f.input("i", "i64", [1]), f.input("s", "f32", [1]), 0))
    with pytest.raises(RuntimeError, match=f"index {place} is outside an axis of size 4"):
        ch.session(ch.program(m)).run("outside", np.zeros(4, np.float32), np.array([place]), np.ones(1, np.float32))


# ---- grouped_matmul ----


@pytest.mark.parametrize("types", [("f32", "f32"), ("bf16", "bf16"), ("f32", "bf16"), ("f16", "f16"), ("f64", "f64")])
def test_grouped_matmul(types, composed):
    m = Module("grouped")
    rows, k, n = m.symbol("rows"), m.symbol("k", minimum=1), m.symbol("n", minimum=1)
    f = m.function("grouped")
    x, w, ends = f.input("x", types[0], [rows, k]), f.input("w", types[1], [5, k, n]), f.input("ends", "i32", [5])
    f.result("y", x.grouped_matmul(w, ends))
    g = m.function("turned")
    x, w, ends = g.input("x", types[0], [rows, k]), g.input("w", types[1], [5, n, k]), g.input("ends", "i64", [5])
    g.result("y", x.grouped_matmul(w.transpose(1, 2), ends))
    running = ch.program(m)
    for turn, (sizes, at) in enumerate((((20, 8, 64), [3, 3, 9, 20, 20]), ((1, 33, 70), [0, 0, 1, 1, 1]), ((64, 16, 130), [40, 41, 44, 50, 60]), ((9, 5, 3), [0, 0, 0, 0, 0]))):
        random = rng(turn)
        x, w = ch.values(random, types[0], sizes[:2]), ch.values(random, types[1], (5, *sizes[1:]))
        ch.compare(m, running, "grouped", [x, w, np.array(at, np.int32)], roundings=40, scale=8)
        ch.compare(m, running, "turned", [x, ch.values(random, types[1], (5, sizes[2], sizes[1])), np.array(at)], roundings=40, scale=8)


# ---- what all have in common ----


WRONG = [
    (lambda f: f.input("x", "f32", [4]).cumsum(1), "dimension 1"),
    (lambda f: f.input("x", "f32", [4]).sort(-2), "dimension -2"),
    (lambda f: f.input("x", "f32", [4, 3]).scatter(f.input("i", "i64", [2, 2]), f.input("s", "f32", [2, 2]), 0), "dimension 1 of the index"),
    (lambda f: f.input("x", "f32", [4, 3]).scatter(f.input("i", "i64", [2, 3]), f.input("s", "f32", [1, 3]), 0), "dimension 0 of the source"),
    (lambda f: f.input("x", "f32", [4]).scatter(f.input("i", "f32", [2]), f.input("s", "f32", [2]), 0), "indices of f32"),
    (lambda f: f.input("x", "bool", [4]).scatter(f.input("i", "i64", [2]), f.input("s", "bool", [2]), 0, True), "adds no bools"),
    (lambda f: f.input("x", "f32", [4, 3]).grouped_matmul(f.input("w", "f32", [2, 4, 3]), f.input("e", "i32", [2])), "inner dimension"),
    (lambda f: f.input("x", "f32", [4, 3]).grouped_matmul(f.input("w", "f32", [2, 3, 3]), f.input("e", "i32", [3])), "ends of grouped_matmul"),
]  # fmt: skip


@pytest.mark.parametrize("at", range(len(WRONG)))
def test_what_is_refused(at):
    build, words = WRONG[at]
    m = Module("wrong")
    with pytest.raises(IRError, match=words):
        build(m.function("f"))


def cuda_launches(m):
    """Names of the kernels, with those of branches, in order."""

    def walk(commands):
        for command in commands:
            if command.launch is not None:
                yield command.launch
            for block in command.blocks:
                yield from walk(block)

    _work, planned = driver._planned(m, "cuda", True)
    return [made for b, _p in planned for made in walk(b.commands)]


def test_cuda_has_kernels_for_them():
    """Whatever sizes a call brings: the plain ones are chosen when a plan is made."""
    m = Module("cuda")
    n = m.symbol("n")
    f = m.function("all")
    x = f.input("x", "f32", [n, 16])
    f.result("sums", x.cumsum(0))
    f.result("sorted", x.sort(0)[1])
    f.result("put", x.scatter(f.input("i", "i64", [n, 16]), f.input("s", "f32", [n, 16]), 0))
    f.result("added", x.scatter(f.input("j", "i64", [n]), f.input("t", "f32", [n, 16]), 0, True))
    f.result("grouped", x.grouped_matmul(m.constant("w", np.ones((3, 16, 8), np.float32)), f.input("ends", "i32", [3])))
    names = {choice.kernel.name.removeprefix("cuda.") for made in cuda_launches(m) for choice in made.choices()}
    assert names == {
        "cumsum_columns_f32", "sort_f32_64", "sort_f32_2048", "sort_f32_any", "sort_i64_64", "sort_i64_2048", "sort_i64_any",
        "scatter_whole_u32_i64", "scatter_clear_u32_i64", "scatter_mark_u32_i64", "scatter_take_u32_i64",
        "scatter_whole_add_f32_i64", "scatter_sorted_add_f32_i64", "grouped_any_f32_f32_i32",
        *(f"sort_{step}" for kind in ("f32", "i64") for step in (f"count_{kind}", f"pass_{kind}_first", f"pass_{kind}", f"pass_{kind}_last")),
        *(f"scatter_lines_f32_i64_{pad}" for pad in (256, 1024, 2048)),
    }  # fmt: skip


@pytest.mark.parametrize("index, add, wanted", [
    ([9], False, ["scatter_whole_rows"]), ([9], True, ["scatter_whole_add_rows"]), ([9, 64], False, ["scatter_whole"]),
    ([100], False, ["scatter_clear", "scatter_mark", "scatter_take_rows"]), ([100], True, ["sort_i64_512", "scatter_sorted_add_rows"]),
])  # fmt: skip
def test_whole_rows_are_copied(index, add, wanted):
    m = Module("cuda")
    f = m.function("f")
    f.result("y", f.input("x", "f32", [8, 64]).scatter(f.input("i", "i64", index), f.input("s", "f32", [index[0], 64]), 0, add))
    assert [made.kernel.name.removeprefix("cuda.").partition("_f32")[0].partition("_u32")[0] for made in cuda_launches(m)] == wanted


@pytest.mark.parametrize("count, add, wanted", [
    (64, False, ["scatter_whole"]), (65, False, ["scatter_clear", "scatter_mark", "scatter_take"]),
    (64, True, ["scatter_whole_add"]), (65, True, ["scatter_lines"]),
    (5000, True, ["sort_count_i64_place1", "sort_pass_i64_place1_first_last", "scatter_sorted_add"]),
])  # fmt: skip
def test_few_elements_take_one_launch(count, add, wanted):
    m = Module("cuda")
    f = m.function("f")
    f.result("y", f.input("x", "f32", [8, 16]).scatter(f.input("i", "i64", [count]), f.input("s", "f32", [count, 16]), 0, add))
    assert [made.kernel.name.removeprefix("cuda.").partition("_f32")[0].partition("_u32")[0] for made in cuda_launches(m)] == wanted


@pytest.mark.parametrize("n, wanted", [(1, "64"), (64, "64"), (65, "512"), (513, "2048"), (2048, "2048")])
def test_a_line_is_sorted_where_it_fits(n, wanted):
    m = Module("cuda")
    m.function("f").result("y", m.functions["f"].input("x", "f64", [3, n]).sort(1)[0])
    assert [made.kernel.name for made in cuda_launches(m)] == ["cuda.sort_f64_" + wanted]


@pytest.mark.parametrize("n, wanted", [(64, ["columns"]), (4096, ["lines"]), (4097, ["totals", "lines"])])
def test_long_lines_are_added_in_pieces(n, wanted):
    m = Module("cuda")
    m.function("f").result("y", m.functions["f"].input("x", "i32", [3, n]).cumsum(1))
    assert [made.kernel.name for made in cuda_launches(m)] == [f"cuda.cumsum_{step}_i32" for step in wanted]


def test_a_mixture_reads_no_matrix_without_rows():
    """Each row has the result of its own matrix alone: NaN in the others is not seen."""
    m = Module("own")
    f = m.function("f")
    f.result("y", f.input("x", "f32", [2, 8]).grouped_matmul(f.input("w", "f32", [3, 8, 64]), f.input("e", "i32", [3])))
    w = np.full((3, 8, 64), np.nan, np.float32)
    w[1] = 1
    got = ch.session(ch.program(m)).run("f", np.ones((2, 8), np.float32), w, np.array([0, 2, 2], np.int32))
    assert (got[0] == 8).all() and Interpreter(m).run("f", np.ones((2, 8)), w, np.array([0, 2, 2]))[0].shape == (2, 64)
