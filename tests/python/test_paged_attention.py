"""Attention over keys and values in pages: against the float64 reference, and bit for bit against
itself in other batches."""

from __future__ import annotations

import dataclasses
from typing import Optional

import numpy as np
import pytest

import compiler_harness as ch
import kernel_harness as kh
from accrt.compiler import Interpreter, IRError, Module, SymbolClass, ops
from accrt.compiler.kernels import paged
from accrt.compiler.ops.serving import e4m3_codes, e4m3_values

pytestmark = pytest.mark.one_target  # of this machine's, in a run of the whole folder
ROUNDINGS = {"f32": 24, "f16": 4, "bf16": 4}


def rng(*more):
    return np.random.default_rng([kh.SEED, *more])


@dataclasses.dataclass(frozen=True)
class Shape:
    heads: int = 4
    kv_heads: int = 2
    size: int = 32
    value_size: int = 0
    page_size: int = 16
    q: str = "f32"
    kv: str = "f32"
    window: Optional[int] = None
    soft_cap: Optional[float] = None
    scale: Optional[float] = None
    sinks: bool = False
    chunk: Optional[int] = None
    table_rows: int = 6
    table_pages: int = 60
    pages: int = 150


def module(s: Shape) -> Module:
    m = Module("paged")
    tokens, rows = m.symbol("tokens", maximum=4096), m.symbol("rows", maximum=512)
    pages, table_rows, table_pages = (m.symbol(name, SymbolClass.SESSION, maximum=8192) for name in ("pages", "table_rows", "table_pages"))
    k = m.state("k", s.kv, [pages, s.page_size, s.kv_heads, s.size])
    v = m.state("v", s.kv, [pages, s.page_size, s.kv_heads, s.value_size or s.size])
    table = m.state("table", "i32", [table_rows, table_pages])
    f = m.function("attend")
    q = f.input("q", s.q, [tokens, s.heads, s.size])
    row_ids, starts, lengths = f.input("row_ids", "i32", [rows]), f.input("row_starts", "i32", [rows + 1]), f.input("kv_lengths", "i32", [rows])
    sinks = f.constant(m.constant("sinks", sinks_of(s))) if s.sinks else None
    f.result("y", q.paged_attention(k, v, table, row_ids, starts, lengths, scale=s.scale, window=s.window, soft_cap=s.soft_cap, sinks=sinks, chunk=s.chunk))
    return m


def sinks_of(s: Shape) -> np.ndarray:
    """One for each head: far below the scores, among them, and far above."""
    return np.resize(np.array([0.5, -200.0, 2.0, 9.0, -1.0, 90.0, 4.0, -np.inf], np.float32), s.heads)


class Running:
    """The same pages in the executor and in the reference."""

    def __init__(self, s: Shape, seed: int = 0, on: str = ""):
        self.s, self.m, self.random = s, module(s), rng(seed)
        sizes = {"pages": s.pages, "table_rows": s.table_rows, "table_pages": s.table_pages}
        self.running = ch.program(self.m, on)
        self.session, self.oracle = ch.session(self.running, **sizes), Interpreter(self.m, sizes)
        for name in ("k", "v"):
            shape = self.oracle.states[name].shape
            # of u8 the codes of floats e4m3, large and small ones
            numbers = self.random.standard_normal(shape) * np.where(self.random.random(shape) < 0.1, 0.01, 1.0)
            self.put(name, e4m3_codes(numbers) if s.kv == "u8" else ch.values(self.random, s.kv, shape))
        self.put("table", self.random.integers(0, s.pages, (s.table_rows, s.table_pages)).astype(np.int32))

    def put(self, name, content):
        memory = self.session.state(name)
        memory.view(content.dtype)[...] = content.reshape(-1)
        self.oracle.states[name][...] = kh.decode(content, self.s.kv if name != "table" else "i32").reshape(self.oracle.states[name].shape)

    def queries(self, tokens):
        return ch.values(self.random, self.s.q, (tokens, self.s.heads, self.s.size))

    def run(self, q, row_ids, starts, lengths):
        given = (q, *(np.asarray(x, np.int32) for x in (row_ids, starts, lengths)))
        return self.session.run("attend", *given)[0]

    def check(self, q, row_ids, starts, lengths):
        given = (q, *(np.asarray(x, np.int32) for x in (row_ids, starts, lengths)))
        got, want = self.session.run("attend", *given)[0], self.oracle.run("attend", *given)[0]
        ch.assert_close(got, want, self.s.q, ROUNDINGS[self.s.q], 2.0)
        return got

    def batch(self, rows, padding_rows=1, padding_tokens=3, most=40):
        """Random rows: of one token (decoding), of several, of none; then padding."""
        longest = self.s.table_pages * self.s.page_size
        counts = [int(self.random.choice([0, 1, 1, 1, self.random.integers(2, most)])) for _ in range(rows)]
        counts = [min(c, longest) for c in counts]
        lengths = [int(self.random.integers(c, longest + 1)) for c in counts] + [0] * padding_rows
        starts = np.concatenate([[0], np.cumsum(counts), np.full(padding_rows, sum(counts))])
        row_ids = np.concatenate([self.random.integers(0, self.s.table_rows, rows), np.zeros(padding_rows)])
        return self.queries(sum(counts) + padding_tokens), row_ids, starts, lengths


CASES = {
    "plain": Shape(),
    "one_head": Shape(heads=1, kv_heads=1, size=64),
    "grouped_14": Shape(heads=14, kv_heads=2, size=64, kv="bf16"),
    "grouped_8": Shape(heads=32, kv_heads=4, size=128, kv="f16", q="f16", pages=80),
    "one_key_head": Shape(heads=20, kv_heads=1, size=16, kv="bf16", q="bf16"),
    "many_groups": Shape(heads=70, kv_heads=1, size=16, pages=40, table_pages=20),
    "odd_size": Shape(heads=6, kv_heads=3, size=20, value_size=12, kv="f16"),
    "odd_alone": Shape(heads=2, kv_heads=2, size=9),
    "size_80": Shape(heads=4, kv_heads=4, size=80),
    "size_256": Shape(heads=4, kv_heads=2, size=256, kv="bf16", soft_cap=50.0, scale=0.1, pages=60),
    "value_size": Shape(size=96, value_size=48, kv="bf16"),
    "page_1": Shape(page_size=1, table_pages=700, pages=900),
    "page_64": Shape(page_size=64, table_pages=14, pages=30, kv="bf16"),
    "page_3": Shape(page_size=3, table_pages=200, pages=300, window=100),
    "window_1": Shape(window=1),
    "window": Shape(window=37, kv="f16"),
    "window_units": Shape(window=300, heads=8, soft_cap=5.0),
    "chunk": Shape(heads=10, chunk=37, kv="f16"),
    "chunk_1": Shape(chunk=1),
    "chunk_units": Shape(heads=8, chunk=512, sinks=True, kv="bf16", q="bf16", size=64),
    "soft_cap": Shape(soft_cap=1.5, scale=1.0),
    "short_table": Shape(table_pages=3),
    "sinks": Shape(heads=14, kv_heads=2, size=64, kv="bf16", q="bf16", sinks=True),
    "sinks_window": Shape(heads=8, kv_heads=4, size=20, value_size=12, window=128, sinks=True),
    "sinks_capped": Shape(heads=70, kv_heads=1, size=16, kv="f16", pages=40, table_pages=20, soft_cap=5.0, scale=0.4, sinks=True),
    "e4m3": Shape(heads=14, kv_heads=2, size=64, kv="u8", window=50),
    "e4m3_16": Shape(heads=8, kv_heads=4, size=128, kv="u8", q="bf16", soft_cap=20.0),
    "e4m3_sinks": Shape(heads=8, kv_heads=4, size=64, kv="u8", sinks=True),
    "size_512": Shape(heads=8, kv_heads=2, size=512, kv="bf16", scale=0.03, pages=60, window=300),
}


@pytest.fixture(params=[paged.PARTS, 0], ids=["shared", "whole"])
def parts(request, monkeypatch):
    """Units shared out among workgroups, or gone through by one."""
    monkeypatch.setattr(paged, "PARTS", request.param)
    return request.param


@pytest.mark.rotating(6)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("on", kh.host_targets())
def test_ragged_batches(name, on, parts):
    at = Running(CASES[name], list(CASES).index(name), on)
    for rows in (0, 1, 2, 5, 9):
        at.check(*at.batch(rows))
    at.check(*at.batch(3, padding_rows=0, padding_tokens=0))
    at.check(at.queries(1), [0], [0, 1], [at.s.table_pages * at.s.page_size])
    at.check(at.queries(5), [0], [2, 4], [7])  # tokens before the first row are padding too
    at.check(at.queries(0), [0, 0], [0, 0, 0], [0, 0])


def test_many_tokens_at_once(parts):
    """Long prefill beside decoding."""
    at = Running(Shape(heads=8, kv_heads=4, size=64, kv="bf16"))
    at.check(at.queries(340), [3, 1, 2, 0, 5], [0, 1, 300, 301, 331, 335], [900, 299, 700, 555, 4])


@pytest.mark.parametrize("kind", ["BUCKET", "RUNTIME"])
def test_sizes_that_come_with_a_call(kind):
    """Where a plan serves several sizes, a workgroup goes through all units of its block: how many
    parts there are is not known."""
    m = Module("late")
    more = {"buckets": (8, 64)} if kind == "BUCKET" else {}
    tokens, rows = (m.symbol(name, SymbolClass[kind], minimum=1, maximum=64, **more) for name in ("tokens", "rows"))
    k, v = (m.state(name, "f32", [40, 16, 2, 32]) for name in "kv")
    table = m.state("table", "i32", [2, 30])
    f = m.function("attend")
    q, slots = f.input("q", "f32", [tokens, 4, 32]), f.input("slots", "i32", [tokens])
    rest = [f.input(name, "i32", [size]) for name, size in (("ids", rows), ("starts", rows + 1), ("lengths", rows))]
    q.narrow(1, 0, 2).state_scatter(k, slots)
    q.narrow(1, 2, 2).state_scatter(v, slots)
    f.input("pages", "i32", [60]).state_scatter(table, f.arange(60).to_copy("i32"))
    f.result("y", q.paged_attention(k, v, table, *rest))
    session, oracle, random, at = ch.session(ch.program(m)), Interpreter(m), rng(11), 0
    pages = random.permutation(np.arange(60) % 40).astype(np.int32)
    for count in (1, 7, 64, 8, 1, 60, 64, 64, 64):
        positions = np.arange(at, at + count)
        slots, at = (pages[30 + positions // 16] * 16 + positions % 16).astype(np.int32), at + count
        given = [ch.values(random, "f32", (count, 4, 32)), slots, *(np.array(x, np.int32) for x in ([1], [0, count], [at])), pages]
        for got, want in zip(session.run("attend", *given), oracle.run("attend", *given)):
            ch.assert_close(got, want, "f32", ROUNDINGS["f32"], 2.0)


# ---- The same bits, whatever else is in the batch ----


def bits(x):
    return x.view(np.uint16 if x.itemsize == 2 else np.uint32)


@pytest.mark.rotating(4)
@pytest.mark.parametrize("name", ["plain", "grouped_14", "grouped_8", "one_key_head", "odd_size", "size_256", "size_512", "page_1", "page_3", "window", "window_units", "soft_cap", "value_size", "e4m3", "sinks", "sinks_window", "chunk", "chunk_units"])
@pytest.mark.parametrize("on", kh.host_targets())
def test_a_row_has_the_same_bits_alone_batched_and_in_chunks(name, on, monkeypatch):
    at, with_few_parts = Running(CASES[name], 100, on), paged.PARTS
    monkeypatch.setattr(paged, "PARTS", 0)
    other = Running(CASES[name], 100, on)
    monkeypatch.setattr(paged, "PARTS", with_few_parts)
    longest = at.s.table_pages * at.s.page_size
    length = min(longest, 777)
    q = at.queries(length)
    whole = at.run(q, [2], [0, length], [length])
    np.testing.assert_array_equal(bits(other.run(q, [2], [0, length], [length])), bits(whole))
    random = at.random
    for chunk in (1, 2, 3, 7, 16, 64, 129, 300):
        first = 0 if chunk > 16 else int(random.integers(0, length - 4 * chunk))
        for begin in range(first, min(length, first + 4 * chunk), chunk):
            end = min(length, begin + chunk)
            alone = at.run(q[begin:end], [2], [0, end - begin], [end])
            np.testing.assert_array_equal(bits(alone), bits(whole[begin:end]))
    for begin, end in ((0, 1), (5, 9), (length - 1, length), (length - 20, length), (100, 101)):
        others, ids, starts, lengths = at.batch(8)
        place = int(random.integers(0, 9))
        cut = starts[place]
        mixed = np.concatenate([others[:cut], q[begin:end], others[cut:]])
        ids = np.insert(ids, place, 2)
        starts = np.concatenate([starts[: place + 1], starts[place:] + (end - begin)])
        lengths = np.insert(lengths, place, end)
        got = at.run(mixed, ids, starts, lengths)
        np.testing.assert_array_equal(bits(got[cut : cut + end - begin]), bits(whole[begin:end]))


def test_the_table_may_be_larger_and_pages_may_lie_elsewhere():
    small, large = Running(Shape(table_pages=20), 3), Running(Shape(table_pages=300, pages=500), 4)
    place = rng(5).permutation(500)[:150]
    for name in ("k", "v"):
        content = np.zeros(large.oracle.states[name].shape, np.float32)
        content[place] = small.session.state(name).reshape(150, 16, 2, 32)
        large.put(name, content)
    table = np.zeros((6, 300), np.int32)
    table[:, :20] = place[small.session.state("table").reshape(6, 20)]
    large.put("table", table)
    q = small.queries(7)
    given = [0, 4, 2], [0, 3, 4, 7], [320, 1, 300]
    np.testing.assert_array_equal(small.run(q, *given), large.run(q, *given))


def test_a_query_sees_no_key_after_its_own():
    """Not even NaN in it."""
    for more in ({}, {"window": 20}, {"chunk": 290}):
        at = Running(Shape(**more, table_pages=20), 8)
        q = at.queries(300)
        table = np.arange(6 * 20).reshape(6, 20).astype(np.int32)
        at.put("table", table)
        want = at.run(q[:280], [1], [0, 280], [280])
        for name in ("k", "v"):
            content = at.session.state(name).reshape(-1, 2, 32).copy()
            content[20 * 16 + 280 : 20 * 16 + 320] = np.nan
            at.put(name, content)
        got = at.run(q, [1], [0, 300], [300])
        np.testing.assert_array_equal(got[:280], want)
        assert np.isnan(got[280:]).all()


@pytest.mark.parametrize("target", kh.host_targets())
@pytest.mark.parametrize("kv,size,group", [("f32", 64, 4), ("bf16", 48, 7), ("f16", 20, 1)])
@pytest.mark.parametrize("sinks", [False, True])
def test_units_that_are_shared_out_give_the_same_bits(kv, size, group, target, sinks):
    """The kernels alone, with threads: parts that others join are what one workgroup makes of
    them."""
    random, pages, page_size, kv_heads, tokens = rng(size), 40, 16, 2, 9
    cache = {name: ch.values(random, kv, (pages, page_size, kv_heads, size)) for name in "kv"}
    given = {
        "q": ch.values(random, "f32", (tokens, kv_heads * group, size)), **cache, "table": random.permutation(40).reshape(1, 40).astype(np.int32),
        "row_ids": np.zeros(2, np.int32), "row_starts": np.array([0, 1, 8], np.int32), "kv_lengths": np.array([640, 300], np.int32),
    }  # fmt: skip
    given.update({"sinks": np.linspace(-3, 5, kv_heads * group).astype(np.float32)} if sinks else {})
    specs = {name: kh.spec_of(array, kv if name in "kv" else "f32") for name, array in given.items()}

    def launches(shared):
        more = {"scale": None, "window": None, "soft_cap": None, "shared": shared, "sinks": sinks}
        return paged.lower_paged_attention(specs["q"], specs["k"], specs["v"], specs["table"], 2, specs["q"], **more)

    out = {"out": np.empty_like(given["q"])}
    alone = kh.run(launches(False)[0], given, out, target, threads=3)["out"]
    first, last = launches(True)
    parts = {"partial": np.empty(tokens * kv_heads * group * 3 * paged.part_floats(size), np.float32)}
    parts = kh.run(first, given, parts, target, threads=3)
    joined = kh.run(last, {**parts, **{name: given[name] for name in ("row_starts", "kv_lengths", "sinks") if name in given}}, out, target, threads=3)["out"]
    np.testing.assert_array_equal(bits(joined), bits(alone))
    decoded = {name: kh.decode(cache[name], kv) for name in "kv"}
    rows = (given[name].astype(np.int64) for name in ("row_ids", "row_starts", "kv_lengths"))
    states = {"keys": decoded["k"], "values": decoded["v"], "page_table": given["table"]}
    want = ops.OPS["accrt.paged_attention"].reference(given["q"].astype(np.float64), *rows, given.get("sinks"), **states)
    ch.assert_close(alone, want, "f32", ROUNDINGS["f32"], 2.0)


def test_a_sink_takes_its_share_of_each_row():
    """A sink of -inf is none, bit for bit; one that is far above all scores leaves nothing; and the
    keys' shares are those beside a key of that score whose value is 0."""
    at = {name: Running(s, 12) for name, s in {"none": Shape(heads=8), "sinks": Shape(heads=8, sinks=True)}.items()}
    q, sinks = at["none"].queries(9), sinks_of(Shape(heads=8))
    got = {name: one.run(q, [2, 1], [0, 1, 9], [700, 300]) for name, one in at.items()}
    np.testing.assert_array_equal(bits(got["sinks"][:, np.isinf(sinks)]), bits(got["none"][:, np.isinf(sinks)]))
    assert np.abs(got["sinks"][:, sinks == 90]).max() < 1e-30 < np.abs(got["none"][:, sinks == 90]).min()
    for head in np.flatnonzero(np.abs(sinks) < 10):
        share = got["sinks"][:, head] / got["none"][:, head]
        assert (share < 1).all() and np.allclose(share, share[:, :1], rtol=1e-5)


# ---- What tensors say is checked ----

HOSTILE = {
    "a page after the last": (dict(table=150), "page 150 is outside a state of 150 pages"),
    "a page before the first": (dict(table=-1), "page -1 is outside a state of 150 pages"),
    "a far page": (dict(table=2**31 - 1), "page 2147483647 is outside"),
    "a row after the last": (dict(ids=[6, 0]), "row 6 is outside a page table of 6 rows"),
    "a row before the first": (dict(ids=[-1, 0]), "row -1 is outside a page table of 6 rows"),
    "more keys than the table has": (dict(lengths=[961, 5]), "961 keys are more than the 960 of a row"),
    "many more": (dict(lengths=[2**31 - 1, 5]), "2147483647 keys are more than the 960"),
    "fewer keys than tokens": (dict(lengths=[2, 5]), "a row of 3 tokens has 2 keys"),
    "keys below zero": (dict(lengths=[-5, 5]), "a row of 3 tokens has -5 keys"),
    "rows that go back": (dict(starts=[0, 3, 2]), "a row begins at token 3 and ends at 2"),
    "rows that begin before the first token": (dict(starts=[-1, 3, 4]), "a row begins at token -1"),
    "rows that end after the last": (dict(starts=[0, 3, 6]), "a row begins at token 3 and ends at 6"),
    "a far end": (dict(starts=[0, 3, 2**31 - 1]), "ends at 2147483647"),
}


@pytest.mark.parametrize("tokens", [5, 200])
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_tables_fail_by_name(name, tokens, parts):
    changed, match = HOSTILE[name]
    at = Running(Shape(), 9)
    if "table" in changed:
        table = at.session.state("table").copy()
        table[3] = changed["table"]
        at.put("table", table)
    if name in ("rows that end after the last",):
        changed = {"starts": [0, 3, tokens + 1]}
        match = f"a row begins at token 3 and ends at {tokens + 1}"
    given = [changed.get("ids", [0, 1]), changed.get("starts", [0, 3, 5]), changed.get("lengths", [70, 5])]
    with pytest.raises(RuntimeError, match="paged_attention k v table: 1: .*" + match):
        at.run(at.queries(tokens), *given)
    with pytest.raises(IRError):
        at.oracle.run("attend", at.queries(tokens), *(np.asarray(x, np.int32) for x in given))


def test_a_bad_row_that_no_block_reaches_is_found(parts):
    at = Running(Shape(), 9)
    with pytest.raises(RuntimeError, match="a row begins at token 2 and ends at 0"):
        at.run(at.queries(2), [0, 0, 0], [0, 1, 2, 0], [1, 1, 0])


def test_what_is_in_padding_does_not_matter(parts):
    """Rows without tokens may say anything of pages and keys."""
    at = Running(Shape(), 9)
    q = at.queries(4)
    want = at.run(q, [1, 0], [0, 4, 4], [30, 0])
    np.testing.assert_array_equal(at.run(q, [1, -7], [0, 4, 4], [30, 2**31 - 1]), want)


def wrong(match, **changed):
    m = Module("wrong")
    n, r = m.symbol("n"), m.symbol("r")
    k = m.state("k", *changed.get("k", ("f32", [9, 16, 2, 32])))
    v = m.state("v", *changed.get("v", ("f32", [9, 16, 2, 32])))
    table = m.state("t", *changed.get("table", ("i32", [3, 4])))
    f = m.function("f")
    tensors = {"q": ("f32", [n, 4, 32]), "ids": ("i32", [r]), "starts": ("i32", [r + 1]), "lengths": ("i32", [r])}
    q, *rest = (f.input(name, *changed.get(name, given)) for name, given in tensors.items())
    with pytest.raises(IRError, match="function 'f', operation accrt.paged_attention: .*" + match):
        more = changed.get("more", {})
        q.paged_attention(k, v, table, *rest, **{**more, **({"sinks": f.input("sinks", *more["sinks"])} if "sinks" in more else {})})


def test_what_does_not_fit_is_said():
    wrong(r"floats|f32, f16 or bf16 \[tokens", q=("f64", [3, 4, 32]))
    wrong("4 heads and 3 key heads", k=("f32", [9, 16, 3, 32]), v=("f32", [9, 16, 3, 32]))
    wrong("head size: 32 is not proved to equal 16", k=("f32", [9, 16, 2, 16]))
    wrong("page_size of keys and values", v=("f32", [9, 8, 2, 32]))
    wrong("over states of f32.* and f16", v=("f16", [9, 16, 2, 32]))
    wrong("over states of i32", k=("i32", [9, 16, 2, 32]))
    wrong(r"a page table of i64", table=("i64", [3, 4]))
    wrong(r"row_starts: 7 is not proved", starts=("i32", [7]))
    wrong("row_ids of f32", ids=("f32", [3]))
    wrong("of i32", lengths=("i64", [3]), ids=("i32", [3]), starts=("i32", [4]))
    wrong("a window of 0", more={"window": 0})
    wrong("soft_cap of -1", more={"soft_cap": -1.0})
    wrong("a chunk of 0", more={"chunk": 0})
    wrong("a chunk of 2147483648", more={"chunk": 1 << 31})
    wrong("a chunk of 8 and a window of 3", more={"chunk": 8, "window": 3})
    for dtype, shape in (("f32", [3]), ("f16", [4]), ("f32", [4, 1])):
        wrong(r"with sinks of .*; f32 \[4\] are needed", more={"sinks": (dtype, shape)})


def test_there_is_a_version_for_cuda():
    """What it gives is tested on a GPU (tests/gpu/test_serving.py)."""
    from accrt.compiler import available_targets, compile

    if "sm_90" not in available_targets():
        pytest.skip("no nvcc")
    assert compile(module(Shape()), targets=["sm_90"])
    for size in (64, 40):
        assert compile(module(Shape(kv="u8", q="bf16", size=size)), targets=["sm_90"])


@pytest.mark.parametrize("on", kh.host_targets())
def test_a_key_that_is_none_in_e4m3_is_seen_as_nan(on):
    """By queries that see it, few and many of them, and by no other."""
    at = Running(Shape(kv="u8", size=64, pages=70, table_rows=1), 5, on)
    pages = np.random.default_rng(7).permutation(70)[:60].astype(np.int32).reshape(1, 60)
    at.put("table", pages)
    keys = e4m3_codes(np.random.default_rng(8).standard_normal((70, 16, 2, 64)))
    keys[pages[0, 40 // 16], 40 % 16, 1, 5] = 0xFF  # key 40 of the second key head
    at.put("k", keys)
    for tokens in (2, 30):
        got = at.run(at.queries(tokens), [0], [0, tokens], [41])
        assert np.isnan(got[-1, 2:]).all() and np.isfinite(got[-1, :2]).all() and np.isfinite(got[:-1]).all()


def test_the_reference_s_e4m3_are_those_of_the_format():
    values = e4m3_values()
    assert values[0x08] == 2.0**-6 and values[0x07] == 7 * 2.0**-9 and values[0x7E] == 448 and values[0xC8] == -4 and np.isnan(values[0x7F])
    finite = np.flatnonzero(~np.isnan(values))
    np.testing.assert_array_equal(e4m3_codes(values[finite]), finite)
