"""Dimensions that only a call knows: what the compiler refuses by name, what the runtime checks at
each call.

Every case of a slice, a select or a state write that leaves its dimension, by one or by much, is
refused with the tensor's name, the dimension and the values, whether or not it stays inside the
storage; what fits gives what numpy gives.
"""

import compiler_harness as ch
import numpy as np
import pytest
from accrt.compiler import IRError, Module, SymbolClass, compile
from accrt.compiler import expr as ex



def runtime(module, **symbols):
    """A session of the library on the compiled module."""
    program = ch.runtime_program(compile(module, targets=[ch.target()]), ch.target())
    if program is None:
        pytest.skip("the library is not built")
    return program.session(symbols)


LATE = (SymbolClass.RUNTIME, SymbolClass.BUCKET)


def late_module(symbol_class):
    m = Module("late")
    buckets = {"buckets": (4, 8)} if symbol_class == SymbolClass.BUCKET else {}
    return m, m.symbol("late", symbol_class, minimum=1, maximum=8, **buckets)


# ---- What a plan decides -------------------------------------------------------------------------


@pytest.mark.parametrize("symbol_class", LATE)
def test_decisions_on_late_symbols_are_refused(symbol_class):
    m, late = late_module(symbol_class)
    n = m.symbol("n", maximum=8)
    f = m.function("f")
    x = f.input("x", "f32", [4])
    f.scalar("late", late)
    f.scalar("n", n)
    refused = rf"function 'f'.*accrt.{{}}.*condition is .*symbol 'late' is {symbol_class.name}"
    with pytest.raises(IRError, match=refused.format("cond")):
        f.cond(ex.equal(late, 3), lambda: x, lambda: x + x)
    with pytest.raises(IRError, match=refused.format("cond")):
        f.cond(n * 2 + ex.select(late, 1, 0), lambda: x, lambda: x + x)
    with pytest.raises(IRError, match=rf"function 'f'.*accrt.repeat.*count is late, and symbol 'late' is {symbol_class.name}"):
        f.repeat(late, [x], lambda i, y: y + y)
    with pytest.raises(IRError, match="accrt.repeat.*symbol 'late'"):
        f.repeat(2, [x], lambda i, y: f.repeat(late // 2, [y], lambda j, z: z + z)[0])


@pytest.mark.parametrize("symbol_class", LATE)
@pytest.mark.parametrize("kind", ["cond", "repeat"])
@pytest.mark.parametrize("depth", [1, 2])
def test_decisions_on_what_callers_give_are_refused(symbol_class, kind, depth):
    """A scalar of a function has the class of its symbol, and of what callers give it."""
    m, late = late_module(symbol_class)
    k = m.symbol("k", maximum=9)
    inner = m.function("inner", internal=True)
    a = inner.input("a", "f32", [4])
    inner.scalar("k", k)
    if kind == "cond":
        (y,) = inner.cond(k, lambda: a + a, lambda: a * a)
    else:
        (y,) = inner.repeat(k, [a], lambda i, v: v + v)
    inner.result("y", y)
    callee = inner
    if depth == 2:
        callee = m.function("middle", internal=True)
        b = callee.input("a", "f32", [4])
        callee.scalar("k", k)
        callee.result("y", callee.call(inner, b, k=k + 1)[0])
    f = m.function("outer")
    x = f.input("x", "f32", [4])
    f.scalar("late", late)
    f.result("y", f.call(callee, x, k=late - 1)[0])
    with pytest.raises(IRError, match=rf"function 'inner', operation accrt.{kind}.*'late' is {symbol_class.name}"):
        compile(m, targets=[ch.target()])


def test_decisions_on_early_symbols_work():
    m = Module("early")
    n, s = m.symbol("n", maximum=8), m.symbol("s", SymbolClass.SESSION, maximum=3)
    f = m.function("f")
    x = f.input("x", "f32", [4])
    f.scalar("n", n)
    (y,) = f.cond(ex.equal(n, 3), lambda: x, lambda: x + x)
    (z,) = f.repeat(s + n - n, [y], lambda i, v: v + v)
    f.result("z", z)
    session = runtime(m)
    assert session.f(np.ones(4, np.float32), 3).tolist() == [8.0] * 4
    assert session.f(np.ones(4, np.float32), 4).tolist() == [16.0] * 4


def test_callees_have_the_dimensions_that_callers_give():
    """A dimension that is a scalar's symbol is what the call gives for it, in both functions."""
    m = Module("given")
    n, k = m.symbol("n", maximum=9), m.symbol("k", maximum=9)
    g = m.function("inner", internal=True)
    a = g.input("a", "f32", [k, 2])
    g.scalar("k", k)
    g.result("y", a.sum(0))
    f = m.function("f")
    x = f.input("x", "f32", [n, 2])
    f.result("y", f.call(g, x, k=n)[0])
    with pytest.raises(IRError, match=r"'inner' takes \['f32\[n - 1, 2\]'\], not \['f32\[n, 2\]'\]"):
        f.call(g, x, k=n - 1)
    assert runtime(m).f(np.ones((5, 2), np.float32)).tolist() == [5.0, 5.0]


# ---- Sizes that shrink as a symbol grows ---------------------------------------------------------


SHRINKING = {
    "the slice": (lambda x, k: x[:, k:], lambda x, k: x[:, k:]),
    "by element": (lambda x, k: x[:, k:] * 2.0, lambda x, k: x[:, k:] * 2),
    "transients": (lambda x, k: (x[:, k:].exp() * 0.5).softmax(-1).sum(1), lambda x, k: np.ones(3) if k < 8 else np.zeros(3)),
    "a product": (lambda x, k: (x[:, k:].t() @ x).relu(), lambda x, k: np.maximum(x[:, k:].T @ x, 0)),
    "both sides": (lambda x, k: x[:, :k].sum(1) - x[:, k:].sum(1), lambda x, k: x[:, :k].sum(1) - x[:, k:].sum(1)),
}


@pytest.mark.parametrize("symbol_class", [*LATE, SymbolClass.SPECIALIZE])
@pytest.mark.parametrize("maximum", [8, 9, 100])
@pytest.mark.parametrize("name", SHRINKING)
def test_what_is_left_of_a_dimension_is_there_for_every_start_in_it(name, maximum, symbol_class):
    """Memory is sized for all values of the symbol, and a start beyond the dimension is refused by
    name and value."""
    made, expected = SHRINKING[name]
    m = Module("shrinking")
    k = m.symbol("k", symbol_class, maximum=maximum, **({"buckets": (4, maximum)} if symbol_class == SymbolClass.BUCKET else {}))
    f = m.function("f")
    x = f.input("x", "f32", [3, 8])
    f.scalar("k", k)
    f.result("y", made(x, k))
    session, data = runtime(m), np.arange(24, dtype=np.float32).reshape(3, 8) / 8
    for start in (8, 0, 3, 7, 4, 5, 8):
        np.testing.assert_allclose(np.asarray(session.f(data, start)), expected(data, start), rtol=1e-5)
    for start in {min(9, maximum), maximum} - {8}:
        with pytest.raises(Exception, match=rf"dimension [01] would be {8 - start}$|of 'x', dimension 1 of f32\[3, 8\]: .*{start}.* do not fit in 8") as caught:
            session.f(data, start)
        assert type(caught.value).__name__ == "OutOfRangeError", caught.value
        np.testing.assert_allclose(np.asarray(session.f(data, 0)), expected(data, 0), rtol=1e-5)


@pytest.mark.parametrize("symbol_class", LATE)
def test_a_function_that_is_given_a_size_that_shrinks_has_memory_for_it(symbol_class):
    m = Module("given")
    k = m.symbol("k", symbol_class, maximum=8, **({"buckets": (4, 8)} if symbol_class == SymbolClass.BUCKET else {}))
    n = m.symbol("n", maximum=400)
    inner = m.function("inner", internal=True)
    y = inner.input("y", "f32", [3, n])
    inner.scalar("n", n)
    inner.result("z", (y.exp() * 0.5).softmax(-1).sum(1))
    f = m.function("f")
    x = f.input("x", "f32", [3, 8])
    f.scalar("k", k)
    f.result("y", f.call(inner, x[:, k:] * 1.0, n=8 - k)[0])
    session = runtime(m)
    for start in (7, 0, 3, 5):
        np.testing.assert_allclose(np.asarray(session.f(np.zeros((3, 8), np.float32), start)), np.ones(3), rtol=1e-5)


def test_the_estimate_has_room_for_sizes_that_shrink():
    m = Module("estimate")
    k = m.symbol("k", SymbolClass.RUNTIME, minimum=2, maximum=100)
    f = m.function("f")
    x = f.input("x", "f32", [3, 1000])
    f.scalar("k", k)
    f.result("y", (x[:, k:].exp() * 0.5).softmax(-1))
    session = runtime(m)
    estimate = session.program.estimate("f")
    assert estimate["result_bytes"] == 3 * 998 * 4 and estimate["transient_bytes"] >= 3 * 998 * 4
    assert np.asarray(session.f(np.zeros((3, 1000), np.float32), 100)).shape == (3, 900)


# ---- What each call checks -----------------------------------------------------------------------


def refused(function, *arguments):
    """The message of a call that is refused before it runs."""
    import accrt

    with pytest.raises(accrt.Error) as caught:
        function(*arguments)
    assert type(caught.value).__name__ == "OutOfRangeError", caught.value
    return str(caught.value)


CLASSES = (SymbolClass.RUNTIME, SymbolClass.BUCKET, SymbolClass.SPECIALIZE)


def sized(m, name, symbol_class, maximum):
    buckets = {"buckets": tuple(range(2, maximum + 2, 2))} if symbol_class == SymbolClass.BUCKET else {}
    return m.symbol(name, symbol_class, minimum=0, maximum=maximum, **buckets)


@pytest.mark.parametrize("symbol_class", CLASSES)
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_slices_stay_in_their_dimension(symbol_class, axis):
    """x[..., k:k+2, ...] of [4, 5, 6], every k from 0 to past the end of the storage."""
    m = Module("slices")
    k = sized(m, "k", symbol_class, 200)
    f = m.function("f")
    x = f.input("x", "f32", [4, 5, 6])
    f.scalar("k", k)
    f.result("y", x.slice(axis, k, k + 2) * 1.0)
    session = runtime(m)
    x = np.arange(120, dtype=np.float32).reshape(4, 5, 6)
    for k in range(0, 40):
        if k + 2 <= x.shape[axis]:
            wanted = np.take(x, range(k, k + 2), axis)
            assert np.array_equal(np.asarray(session.f(x, k)), wanted)
        else:
            text = refused(session.f, x, k)
            assert f"slice of 'x', dimension {axis} of f32[4, 5, 6]: 2 elements from {k} on do not fit in {x.shape[axis]}" in text
            assert "function 'f'" in text
    assert np.array_equal(np.asarray(session.f(x, 0)), np.take(x, range(2), axis))


def test_the_slice_of_the_issue():
    """x[:2, k:k+2] of [4, 4] with k = 3 read the first element of the next row."""
    m = Module("issue")
    k = m.symbol("k", SymbolClass.RUNTIME, maximum=8)
    f = m.function("f")
    x = f.input("x", "f32", [4, 4])
    f.scalar("k", k)
    f.result("y", x[:2, k : k + 2] * 1.0)
    session = runtime(m)
    x = np.arange(16, dtype=np.float32).reshape(4, 4)
    assert session.f(x, 2).tolist() == [[2.0, 3.0], [6.0, 7.0]]
    assert "slice of 'x', dimension 1 of f32[2, 4]: 2 elements from 3 on do not fit in 4" in refused(session.f, x, 3)


@pytest.mark.parametrize("symbol_class", CLASSES)
def test_slices_end_where_their_dimension_does(symbol_class):
    """Ends, lengths and dimensions that calls bring, also an end before the start."""
    m = Module("ends")
    n, a, b = (sized(m, name, symbol_class, 30) for name in "nab")
    f = m.function("f")
    x = f.input("x", "f32", [3, n])
    f.scalar("a", a)
    f.scalar("b", b)
    f.result("y", x.slice(1, a, b).sum(1))
    session = runtime(m)
    for n in (0, 1, 4, 7):
        x = np.ones((3, n), np.float32)
        for a in range(0, 9):
            for b in range(0, 9):
                if a <= b <= n:
                    assert np.array_equal(np.asarray(session.f(x, a, b)), np.full(3, b - a, np.float32))
                else:
                    assert f"{b - a} elements from {a} on do not fit in {n}" in refused(session.f, x, a, b)


@pytest.mark.parametrize("symbol_class", CLASSES)
def test_selects_stay_in_their_dimension(symbol_class):
    m = Module("selects")
    k = sized(m, "k", symbol_class, 30)
    f = m.function("f")
    x = f.input("x", "f32", [3, 4, 2])
    f.scalar("k", k)
    f.result("y", x.select(1, k) * 1.0)
    f.result("z", x.select(0, 2 - k) * 1.0)
    session = runtime(m)
    x = np.arange(24, dtype=np.float32).reshape(3, 4, 2)
    for k in range(0, 9):
        if k <= 2:
            y, z = session.f(x, k)
            assert np.array_equal(np.asarray(y), x[:, k]) and np.array_equal(np.asarray(z), x[2 - k])
        else:
            wanted = f"select of 'x', dimension {1 if k > 3 else 0} of f32[3, 4, 2]: 1 elements from {k if k > 3 else 2 - k} on"
            assert wanted in refused(session.f, x, k)


@pytest.mark.parametrize("symbol_class", CLASSES)
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_state_writes_stay_in_their_dimension(symbol_class, axis):
    """Slot 0 of a state [2, capacity, 2] at position = capacity wrote slot 1; nothing of a refused
    call is written."""
    m = Module("states")
    capacity = m.symbol("capacity", SymbolClass.SESSION, minimum=2, maximum=8)
    position = sized(m, "position", symbol_class, 30)
    shape = [2, capacity, 3]
    state = m.state("cache", "f32", shape)
    f = m.function("f")
    part = [1, 1, 1]
    v = f.input("v", "f32", part)
    f.scalar("position", position)
    offsets = [0, 0, 0]
    offsets[axis] = position
    (v * 2.0).state_write(state, offsets)
    f.result("all", f.state_read(state) * 1.0)
    session = runtime(m, capacity=5)
    limits, content = (2, 5, 3), np.zeros((2, 5, 3), np.float32)
    for position in range(0, 12):
        v = np.full(part, position + 1, np.float32)
        if position < limits[axis]:
            content[tuple(position if d == axis else 0 for d in range(3))] = 2 * (position + 1)
            assert np.array_equal(np.asarray(session.f(v, position)), content)
        else:
            text = refused(session.f, v, position)
            assert f"write of state 'cache', dimension {axis} of f32[2, capacity, 3]: 1 elements from {position} on do not fit in {limits[axis]}" in text
    assert np.array_equal(np.asarray(session.state("cache")), content)


def test_checks_stand_where_their_operations_do():
    """In a branch that is not taken, in loops, in functions that are called, in optional parts."""
    m = Module("places")
    k, way = m.symbol("k", SymbolClass.RUNTIME, maximum=30), m.symbol("way", maximum=3)
    g = m.function("inner", internal=True)
    a = g.input("a", "f32", [4, 4])
    g.scalar("k", k)
    g.result("y", a.slice(1, k, k + 1) * 1.0)
    f = m.function("f")
    x = f.input("x", "f32", [4, 4])
    f.scalar("k", k)
    f.scalar("way", way)
    (y,) = f.cond(ex.equal(way, 0), lambda: x.slice(0, k, k + 2).sum(), lambda: x.sum())
    (z,) = f.repeat(way, [x], lambda i, v: v + x.select(1, k + i).unsqueeze(1))
    f.result("y", y)
    f.result("z", z)
    h = m.function("h")
    x = h.input("x", "f32", [4, 4])
    h.scalar("k", k)
    h.result("y", h.call(g, x, k=k * 2)[0])
    session = runtime(m)
    x = np.ones((4, 4), np.float32)
    assert float(np.asarray(session.f(x, 2, 0)[0])) == 8.0
    assert "slice of 'x', dimension 0 of f32[4, 4]: 2 elements from 3 on do not fit in 4" in refused(session.f, x, 3, 0)
    assert float(np.asarray(session.f(x, 3, 1)[0])) == 16.0
    assert "select of 'x', dimension 1 of f32[4, 4]: 1 elements from 4 on do not fit in 4" in refused(session.f, x, 3, 2)
    assert "in 4" in refused(session.f, x, 4, 1)
    assert session.h(x, 1).tolist() == [[1.0]] * 4
    assert "slice of 'a', dimension 1 of f32[4, 4]: 1 elements from 4 on do not fit in 4" in refused(session.h, x, 2)


def test_what_is_proved_costs_nothing():
    """Where the ranges of symbols prove it, no check is written."""
    m = Module("proved")
    k = m.symbol("k", SymbolClass.RUNTIME, maximum=2)
    n = m.symbol("n", minimum=2)
    f = m.function("f")
    x, z = f.input("x", "f32", [4, 4]), f.input("z", "f32", [n])
    f.scalar("k", k)
    f.result("y", x.slice(1, k, k + 2).sum() + x.select(0, k).sum() + z.slice(0, 1, n).sum() + x.slice(1, 1, 3).sum())
    assert checks_of(m, "f") == []
    g = m.function("g")
    w = g.input("w", "f32", [4, 4])
    g.scalar("k", k)
    g.result("y", w.slice(1, k, k + 3) * 1.0)
    assert checks_of(m, "g") == ["slice of 'w', dimension 1 of f32[4, 4]"]


def checks_of(module, name):
    """Names of the copies of nothing that a function is written with."""
    from accrt.compiler.driver import compile_writer

    function = compile_writer(module, [ch.target()])._functions[name, ""]
    return [c.name for c in function.body.commands if c.opcode == 2 and c.fields["extent"][0].value == 0]


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_gathered_indices_stay_in_their_dimension(axis):
    """gather looks up in the flat source: an index that left its dimension read a neighbour
    there."""
    import accrt

    m = Module("gathers")
    f = m.function("f")
    x, i = f.input("x", "f32", [3, 4, 2]), f.input("i", "i64", [1, 2, 2])
    f.result("y", x.gather(axis, i))
    x = np.arange(24, dtype=np.float32).reshape(3, 4, 2)
    for value in range(-5, 8):
        i = np.zeros((1, 2, 2), np.int64)
        i[0, 1, 0] = value
        session = runtime(m)
        if 0 <= value < x.shape[axis]:
            cut = tuple(slice(None) if a == axis else slice(0, n) for a, n in enumerate(i.shape))
            assert np.array_equal(np.asarray(session.f(x, i)), np.take_along_axis(x[cut], i, axis))
        else:
            with pytest.raises(accrt.Error, match=rf"index {value} is outside an axis of size {x.shape[axis]}\b"):
                session.f(x, i)
