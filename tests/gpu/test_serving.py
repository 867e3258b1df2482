"""What a step of a serving engine needs, on a GPU: attention over pages, rotary embedding at
positions, rows of states by slots; against the float64 reference, and attention bit for bit against
itself in other batches. Run as a program it measures attention of a decode step beside the rate of
a copy."""

from __future__ import annotations

import itertools
import os
import statistics
import sys
import time

import numpy as np
import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, os.pardir, "python")]

import compiler_harness as ch  # noqa: E402
import kernel_harness as kh  # noqa: E402
import test_ops  # noqa: E402
from accrt.compiler import Interpreter, Module  # noqa: E402
from accrt.compiler.ops.serving import e4m3_codes  # noqa: E402
from test_paged_attention import ROUNDINGS, Shape, sinks_of  # noqa: E402

SHAPES = (
    Shape(), Shape(heads=1, kv_heads=1, size=17), Shape(heads=14, kv_heads=2, size=64, q="bf16", kv="bf16"),
    Shape(heads=32, kv_heads=8, size=64, q="f16", kv="f16", page_size=64), Shape(heads=8, kv_heads=1, size=128, q="bf16", kv="bf16", window=100),
    Shape(heads=4, kv_heads=2, size=256, q="bf16", kv="bf16", soft_cap=30.0, window=300, scale=0.07), Shape(q="f32", kv="bf16", size=80, value_size=96),
    Shape(heads=6, kv_heads=2, page_size=1, table_pages=700, pages=900), Shape(heads=4, kv_heads=4, q="bf16", kv="f32", size=64),
    Shape(heads=14, kv_heads=2, size=64, q="bf16", kv="u8"), Shape(heads=32, kv_heads=4, size=128, q="f16", kv="u8", page_size=64, soft_cap=20.0),
    Shape(heads=20, kv_heads=1, size=128, q="bf16", kv="u8", window=100, scale=0.03), Shape(heads=6, kv_heads=2, size=64, q="f16", kv="u8", page_size=1, table_pages=700, pages=900),
    Shape(heads=4, kv_heads=2, size=80, q="bf16", kv="u8"), Shape(heads=32, kv_heads=8, size=128, q="bf16", kv="bf16", window=200),
    Shape(heads=32, kv_heads=8, size=64, q="bf16", kv="u8"), Shape(heads=4, kv_heads=4, size=64, q="bf16", kv="bf16", page_size=1, table_pages=700, pages=900),
    Shape(heads=64, kv_heads=8, size=64, q="bf16", kv="bf16", sinks=True), Shape(heads=64, kv_heads=8, size=64, q="bf16", kv="bf16", window=128, sinks=True),
    Shape(heads=40, kv_heads=8, size=128, q="bf16", kv="bf16", chunk=192), Shape(heads=6, kv_heads=2, size=20, value_size=12, chunk=256),
    Shape(heads=6, kv_heads=2, size=20, value_size=12, sinks=True), Shape(heads=32, kv_heads=8, size=128, q="f16", kv="u8", soft_cap=20.0, sinks=True),
    Shape(heads=32, kv_heads=8, size=64, q="bf16", kv="bf16", page_size=16, table_pages=190, pages=200), Shape(heads=16, kv_heads=2, size=128, q="f16", kv="u8", page_size=16, table_pages=256, pages=270, window=3900),
    Shape(heads=64, kv_heads=8, size=64, q="bf16", kv="bf16", table_pages=190, pages=200, chunk=1800, sinks=True),
)  # fmt: skip
#: Tokens of each row, and its keys.
BATCHES = (
    ((1,), (1,)), ((1,), (700,)), ((5, 0, 1, 300), (5, 0, 256, 301)), ((1,) * 6, (257, 1, 513, 16, 700, 255)), ((64,), (600,)), ((0, 0), (0, 0)),
    ((1, 1, 1, 1), (4096, 1025, 1024, 2100)),
)  # fmt: skip
#: Tokens of many rows: one each, in part, and among prompts.
MANY = {"decoding": (1,) * 290 + (0,) * 10, "some": (1,) * 70 + (0,) * 5, "mixed": (1,) * 45 + (37, 0, 5) + (1,) * 45}
ROPE = {"halves": (64, 32, 1.0, False), "part": (80, 20, 1.0, False), "pairs": (64, 32, 1.25, True)}


def module():
    m = Module("serving")
    tokens, rows = m.symbol("tokens", maximum=4096), m.symbol("rows", maximum=512)
    for i, s in enumerate(SHAPES):
        k = m.state(f"k{i}", s.kv, [s.pages, s.page_size, s.kv_heads, s.size])
        v = m.state(f"v{i}", s.kv, [s.pages, s.page_size, s.kv_heads, s.value_size or s.size])
        table = m.state(f"table{i}", "i32", [s.table_rows, s.table_pages])
        f = m.function(f"attend{i}")
        q = f.input("q", s.q, [tokens, s.heads, s.size])
        given = f.input("row_ids", "i32", [rows]), f.input("row_starts", "i32", [rows + 1]), f.input("kv_lengths", "i32", [rows])
        sinks = f.constant(m.constant(f"sinks{i}", sinks_of(s))) if s.sinks else None
        f.result("y", q.paged_attention(k, v, table, *given, scale=s.scale, window=s.window, soft_cap=s.soft_cap, sinks=sinks, chunk=s.chunk))
    pages = m.state("written", "bf16", [10, 16, 2, 24])
    f = m.function("scatter")
    f.input("x", "bf16", [tokens, 2, 24]).state_scatter(pages, f.input("slots", "i32", [tokens]))
    f.result("y", f.state_gather(pages, f.input("index", "i32", [rows]), 2))
    pages = m.state("codes", "u8", [10, 16, 2, 24])
    f = m.function("scatter_e4m3")
    f.input("x", "bf16", [tokens, 2, 24]).state_scatter_e4m3(pages, f.input("slots", "i32", [tokens]), 0.25)
    f.result("y", f.state_gather(pages, f.input("index", "i32", [rows]), 2).to_copy("i32"))
    for name, (size, half, scale, interleaved) in ROPE.items():
        f = m.function("rope_" + name)
        x = f.input("x", "f32", [tokens, 3, size])
        at, frequencies = f.input("positions", "i32", [tokens]), f.input("frequencies", "f32", [half])
        f.result("y", x.rope_at(at, frequencies, scale=scale, interleaved=interleaved))
    return m


def pages_of(random, dtype, shape):
    """Keys or values; of u8 the codes of floats e4m3, large and small ones."""
    if dtype != "u8":
        return ch.values(random, dtype, shape)
    return e4m3_codes(random.standard_normal(shape) * np.where(random.random(shape) < 0.1, 0.01, 1.0))


class Running:
    def __init__(self):
        import accrt

        instance = accrt.default_instance("all")
        self.m = module()
        self.program = accrt.Bundle(test_ops.built("serving", self.m), instance).program(instance.device("cuda:0"))
        self.session, self.oracle = self.program.session(), Interpreter(self.m)
        self.random = np.random.default_rng([kh.SEED, 33])
        for i, s in enumerate(SHAPES):
            for name in (f"k{i}", f"v{i}"):
                self.put(name, pages_of(self.random, s.kv, self.oracle.states[name].shape), s.kv)
            self.put(f"table{i}", self.random.integers(0, s.pages, (s.table_rows, s.table_pages)).astype(np.int32), "i32")

    def put(self, name, content, dtype):
        state = self.session.state(name)
        stream = self.session.stream
        content = np.ascontiguousarray(content)
        stream.copy(content, state.buffer, content.nbytes, target_offset=state.offset_bytes)
        stream.synchronize()
        self.oracle.states[name][...] = kh.decode(content, dtype).reshape(self.oracle.states[name].shape)

    def run(self, function, *inputs, dtypes=()):
        import accrt

        tensors = [self.tensor(accrt, x, dtypes[i] if i < len(dtypes) else "") for i, x in enumerate(inputs)]
        return np.asarray(self.session[function](*tensors).tolist(), np.float64)

    def tensor(self, accrt, x, dtype):
        pool = accrt.Pool(self.session.program.device)
        x = np.ascontiguousarray(x)
        buffer = pool.buffer(max(x.nbytes, 16))
        if x.nbytes:
            self.session.stream.copy(x, buffer, x.nbytes)
            self.session.stream.synchronize()
        return accrt.Tensor(buffer, dtype or {"int32": "i32", "float32": "f32"}[x.dtype.name], x.shape)


@pytest.fixture(scope="module")
def running():
    why = test_ops.reason("serving")
    if why:
        pytest.skip(why)
    return Running()


def rows_of(batch, s):
    counts, lengths = batch
    most = min(s.table_pages * s.page_size, 10**9)
    starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    return starts, np.minimum(np.asarray(lengths), most).astype(np.int32)


@pytest.mark.parametrize("batch", range(len(BATCHES)))
@pytest.mark.parametrize("shape", range(len(SHAPES)))
def test_attention(running, shape, batch):
    s = SHAPES[shape]
    starts, lengths = rows_of(BATCHES[batch], s)
    counts = np.diff(starts)
    row_ids = running.random.permutation(s.table_rows)[: len(counts)].astype(np.int32)
    q = ch.values(running.random, s.q, (int(starts[-1]) + 3, s.heads, s.size))  # three of padding
    got = running.run(f"attend{shape}", q, row_ids, starts, lengths, dtypes=(s.q,))
    want = running.oracle.run(f"attend{shape}", q, row_ids, starts, lengths)[0]
    bound = ROUNDINGS[s.q] * {"f32": 2.0**-20, "f16": 2.0**-10, "bf16": 2.0**-7}[s.q]
    assert np.abs(got - want).max(initial=0.0) <= bound * max(1.0, np.abs(want).max(initial=0.0)), (s, batch)
    assert not got[starts[-1]:].any()
    for r, count in enumerate(counts):  # the same bits alone, and token by token
        if not count:
            continue
        begin, end = starts[r], starts[r + 1]
        alone = running.run(
            f"attend{shape}", q[begin:end], row_ids[r : r + 1], np.array([0, count], np.int32), lengths[r : r + 1], dtypes=(s.q,)
        )
        assert np.array_equal(alone, got[begin:end]), (s, batch, r)
        last = running.run(f"attend{shape}", q[end - 1 : end], row_ids[r : r + 1], np.array([0, 1], np.int32), lengths[r : r + 1], dtypes=(s.q,))
        assert np.array_equal(last[0], got[end - 1]), (s, batch, r)


@pytest.mark.parametrize("many", MANY)
@pytest.mark.parametrize("shape", [i for i, s in enumerate(SHAPES) if s.kv_heads % 4 == 0])
def test_attention_of_many_rows(running, shape, many):
    """Of any length, some with pages that are not there, and some rows that are none."""
    s, counts, random = SHAPES[shape], np.array(MANY[many]), running.random
    starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    most = s.table_pages * s.page_size
    lengths = np.maximum(np.minimum(random.choice([1, 31, 32, 33, 127, 128, 129, 300, most], len(counts)), most), counts).astype(np.int32)
    lengths[::3] = np.maximum(random.integers(1, most + 1, len(lengths[::3])), counts[::3])
    row_ids = random.integers(0, s.table_rows, len(counts)).astype(np.int32)
    kept, table = running.oracle.states[f"table{shape}"].copy(), running.oracle.states[f"table{shape}"].astype(np.int32)
    table[0, ::5] = random.choice([-1, s.pages, 1 << 30], len(table[0, ::5]))
    running.put(f"table{shape}", table, "i32")
    try:
        q = ch.values(random, s.q, (int(starts[-1]) + 3, s.heads, s.size))
        got = running.run(f"attend{shape}", q, row_ids, starts, lengths, dtypes=(s.q,))
        seen = running.run(f"attend{shape}", q, np.where(np.arange(len(counts)) % 7 == 3, s.table_rows, row_ids).astype(np.int32), starts, lengths, dtypes=(s.q,))
        holes = np.repeat(row_ids == 0, counts)
        full = np.concatenate([~holes, np.zeros(3, bool)])
        if s.kv != "u8" or many == "mixed":  # the reference takes long
            want = running.oracle.run(f"attend{shape}", q, np.where(row_ids == 0, 1, row_ids).astype(np.int32), starts, lengths)[0]
            bound = ROUNDINGS[s.q] * {"f32": 2.0**-20, "f16": 2.0**-10, "bf16": 2.0**-7}[s.q]
            assert np.abs(got - want)[full].max() <= bound * max(1.0, np.abs(want).max()), (s, many, kh.SEED)
        assert not got[starts[-1] :].any() and np.isfinite(got).all()
        for r in random.permutation(len(counts))[:25]:
            begin, end = starts[r], starts[r + 1]
            if begin == end:
                continue
            alone = running.run(f"attend{shape}", q[begin:end], row_ids[r : r + 1], np.array([0, end - begin], np.int32), lengths[r : r + 1], dtypes=(s.q,))
            assert np.array_equal(alone, got[begin:end]), (s, many, r, lengths[r], kh.SEED)
            assert np.array_equal(seen[begin:end], alone if r % 7 != 3 else np.zeros_like(alone)), (s, many, r, kh.SEED)
    finally:
        running.put(f"table{shape}", kept, "i32")


def test_what_does_not_fit_reads_nothing(running):
    """Rows outside the table and lengths beyond it give zeros; keys of pages that are not there are
    not seen."""
    s = SHAPES[0]
    q = ch.values(running.random, s.q, (4, s.heads, s.size))
    one = np.array([0, 4], np.int32)
    for row, length in ((-1, 8), (s.table_rows, 8), (1 << 30, 8), (0, 3), (0, s.table_pages * s.page_size + 1), (0, -5)):
        got = running.run("attend0", q, np.array([row], np.int32), one, np.array([length], np.int32))
        assert not got.any(), (row, length)


@pytest.mark.parametrize("shape", [i for i, s in enumerate(SHAPES) if s.kv == "u8" and s.window is None])
def test_a_key_that_is_none_in_e4m3_is_seen_as_nan(running, shape):
    """By queries that see it, and by none of other rows and key heads."""
    s = SHAPES[shape]
    names, table = [f"k{shape}", f"v{shape}"], np.arange(s.table_rows * s.table_pages, dtype=np.int32).reshape(s.table_rows, -1) % s.pages
    before = {name: running.oracle.states[name].copy() for name in names}
    kept = running.oracle.states[f"table{shape}"].copy()
    running.put(f"table{shape}", table, "i32")
    q = ch.values(running.random, s.q, (2, s.heads, s.size))
    given = np.array([0, 1], np.int32), np.arange(3, dtype=np.int32), np.array([41, 41], np.int32)
    try:
        for name in names:
            changed = before[name].copy()
            changed[table[0, 40 // s.page_size], 40 % s.page_size, 0, 5] = 0xFF
            running.put(name, changed, "u8")
            got = running.run(f"attend{shape}", q, *given, dtypes=(s.q,))
            group = s.heads // s.kv_heads
            wrong = got[0, :group] if name[0] == "k" else got[0, :group, 5]
            assert np.isnan(wrong).all() and np.isfinite(got[1]).all() and np.isfinite(got[0, group:]).all()
            running.put(name, before[name], "u8")
    finally:
        running.put(f"table{shape}", kept, "i32")


def test_rows_of_states(running):
    x = ch.values(running.random, "bf16", (7, 2, 24))
    slots = np.array([3, -1, 159, 40, 1000, -7, 41], np.int32)
    inside = (slots >= 0) & (slots < 160)
    got = running.run("scatter", x, slots, np.array([3, 159, 40, 41, 0], np.int32), dtypes=("bf16",))
    values = kh.decode(x, "bf16").reshape(x.shape)[inside]
    assert np.array_equal(got[:4], values) and not got[4].any()


def test_rows_of_codes_have_a_scale(running):
    x, slots = ch.values(running.random, "bf16", (5, 2, 24)), np.array([3, -1, 159, 40, 1000], np.int32)
    got = running.run("scatter_e4m3", x, slots, np.array([3, 159, 40], np.int32), dtypes=("bf16",))
    np.testing.assert_array_equal(got, e4m3_codes(kh.decode(x, "bf16").reshape(x.shape) / 0.25)[[0, 2, 3]])


@pytest.mark.parametrize("name", ROPE)
def test_rope_at(running, name):
    size, half, _scale, _interleaved = ROPE[name]
    x = ch.values(running.random, "f32", (9, 3, size))
    at = np.array([0, 1, 2, 100, 5000, 131071, 7, 8, 1 << 20], np.int32)
    frequencies = (10000.0 ** (-np.arange(half) / half)).astype(np.float32)
    got, want = running.run("rope_" + name, x, at, frequencies), running.oracle.run("rope_" + name, x, at, frequencies)[0]
    assert np.abs(got - want).max() < 2e-6 * np.abs(want).max()


def measured(rows, length, size=64, kv="bf16"):
    """Microseconds of attention of a decode step, and of a copy of as many bytes: medians of runs
    of 50 in a stream."""
    import accrt

    heads, kv_heads, page, width = 32, 8, 16, 1 if kv == "u8" else 2
    m = Module("decode")
    tokens, count = m.symbol("tokens", maximum=512), m.symbol("rows", maximum=512)
    row_pages = -(-length // page)
    states = [m.state(n, kv, [rows * row_pages, page, kv_heads, size]) for n in "kv"]
    table = m.state("table", "i32", [rows, row_pages])
    f = m.function("attend")
    q = f.input("q", "bf16", [tokens, heads, size])
    given = f.input("row_ids", "i32", [count]), f.input("row_starts", "i32", [count + 1]), f.input("kv_lengths", "i32", [count])
    f.result("y", q.paged_attention(*states, table, *given))
    from accrt.compiler import compile as build

    instance = accrt.default_instance("all")
    session = accrt.Program(accrt.Bundle(build(m, targets=["sm_90"]), instance), instance.device("cuda:0")).session()
    stream, pool = session.stream, accrt.Pool(session.program.device)

    def put(x, dtype, shape):
        buffer = pool.buffer(x.nbytes)
        stream.copy(x, buffer, x.nbytes)
        return accrt.Tensor(buffer, dtype, shape)

    state = session.state("table")
    pages = np.random.default_rng(1).permutation(rows * row_pages).astype(np.int32)
    stream.copy(pages, state.buffer, pages.nbytes, target_offset=state.offset_bytes)
    out = accrt.Tensor(pool.buffer(rows * heads * size * 2), "bf16", (rows, heads, size))
    call = session.attend.bind(
        put(np.zeros((rows, heads, size), np.uint16), "bf16", (rows, heads, size)), put(np.arange(rows, dtype=np.int32), "i32", (rows,)),
        put(np.arange(rows + 1, dtype=np.int32), "i32", (rows + 1,)), put(np.full(rows, length, np.int32), "i32", (rows,)), out=out,
    )  # fmt: skip
    size_bytes = 2 * rows * length * kv_heads * size * width
    source, target = pool.buffer(size_bytes), pool.buffer(size_bytes)

    def timed(run):
        samples = []
        for _ in range(9):
            stream.synchronize()
            begin = time.perf_counter()
            for _ in range(50):
                run()
            stream.synchronize()
            samples.append((time.perf_counter() - begin) / 50)
        return statistics.median(samples) * 1e6

    return timed(call.submit), timed(lambda: stream.copy(source, target, size_bytes)), size_bytes


def main():
    print("attention of a decode step: 32 heads, 8 key heads, pages of 16 in random order, queries of bf16")
    batches = ((1, 1024), (1, 8192), (8, 1024), (64, 1024), (256, 300), (256, 1024))
    for size, kv, (rows, length) in itertools.product((64, 128), ("bf16", "u8"), batches):
        took, copied, size_bytes = measured(rows, length, size, kv)
        print(f"heads of {size:3d}, {'e4m3' if kv == 'u8' else kv}  {rows:4d} x {length:5d} keys  {took:8.1f} us  {size_bytes / took / 1e6:6.2f} TB/s read; a copy of as much {copied:8.1f} us")


if __name__ == "__main__":
    main()
