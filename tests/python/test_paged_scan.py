"""The recurrence over ragged rows with states in pages: beside float64 and the operation's own
reference, and bit for bit beside itself in other batches."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import compiler_harness as ch
import kernel_harness as kh
from accrt.compiler import Interpreter, IRError, Module, SymbolClass

LENGTH, ROWS = 50, 4


@dataclasses.dataclass(frozen=True)
class Shape:
    heads: int = 4
    key_heads: int = 2
    value_size: int = 8
    key_size: int = 16
    page_size: int = 8
    of_each: bool = False  # a decay for each element of a key
    beta: bool = False


CASES = {
    "mamba2": Shape(heads=6, key_heads=1, value_size=16, key_size=32), "plain": Shape(), "delta": Shape(beta=True),
    "delta_of_each": Shape(beta=True, of_each=True, key_size=24, value_size=5), "mamba": Shape(heads=12, key_heads=1, value_size=1, key_size=16, of_each=True),
    "odd": Shape(heads=3, key_heads=3, value_size=7, key_size=13, page_size=16), "one": Shape(heads=2, key_heads=1, value_size=1, key_size=1, page_size=1),
    "wide": Shape(heads=2, key_heads=2, value_size=64, key_size=256, page_size=32), "delta_wide": Shape(heads=4, key_heads=2, value_size=128, key_size=128, beta=True, page_size=64),
}  # fmt: skip


def module(s: Shape) -> Module:
    m = Module("scan")
    tokens, rows = m.symbol("tokens", maximum=4096), m.symbol("rows", maximum=512)
    pages, table_rows, table_pages = (m.symbol(name, SymbolClass.SESSION, maximum=8192) for name in ("pages", "table_rows", "table_pages"))
    states, table = m.state("states", "f32", [pages, s.heads, s.value_size, s.key_size]), m.state("table", "i32", [table_rows, table_pages])
    f = m.function("scan")
    q, k = (f.input(name, "f32", [tokens, s.key_heads, s.key_size]) for name in ("q", "k"))
    v, decay = f.input("v", "f32", [tokens, s.heads, s.value_size]), f.input("decay", "f32", [tokens, s.heads, s.key_size if s.of_each else 1])
    beta = f.input("beta", "f32", [tokens, s.heads]) if s.beta else None
    given = f.input("row_ids", "i32", [rows]), f.input("row_starts", "i32", [rows + 1]), f.input("kv_lengths", "i32", [rows])
    f.result("y", q.paged_scan(k, v, decay, states, table, *given, s.page_size, beta))
    return m


def inputs(s: Shape, random, *lead):
    """Of each token: query, key, value, decay and beta; keys of unit length, so that the delta rule
    does not grow."""
    def draw(*shape):
        return random.standard_normal((*lead, *shape)).astype(np.float32)

    k = draw(s.key_heads, s.key_size)
    decay = random.uniform(0.4, 1.0, (*lead, s.heads, s.key_size if s.of_each else 1)).astype(np.float32)
    beta = [random.uniform(0, 1, (*lead, s.heads)).astype(np.float32)] if s.beta else []
    return [draw(s.key_heads, s.key_size), k / np.linalg.norm(k, axis=-1, keepdims=True), draw(s.heads, s.value_size), decay, *beta]


def expected(s: Shape, given):
    """Of one sequence, in float64, without pages."""
    q, k, v, decay, *beta = (one.astype(np.float64) for one in given)
    state, out = np.zeros((s.heads, s.value_size, s.key_size)), []
    of = np.arange(s.heads) // (s.heads // s.key_heads)
    for t in range(len(q)):
        state = state * decay[t][:, None, :]
        new = (v[t] - (state @ k[t][of][:, :, None])[:, :, 0]) * beta[0][t][:, None] if beta else v[t]
        state = state + new[:, :, None] * k[t][of][:, None, :]
        out.append((state @ q[t][of][:, :, None])[:, :, 0])
    return np.stack(out)


class Running:
    def __init__(self, s: Shape, on: str = "", seed: int = 0):
        self.s, self.m, self.random = s, module(s), np.random.default_rng([kh.SEED, seed])
        self.row_pages = -(-LENGTH // s.page_size)
        self.sizes = {"pages": ROWS * self.row_pages + 1, "table_rows": ROWS, "table_pages": self.row_pages}
        self.session = ch.session(ch.program(self.m, on), **self.sizes)
        # what a page holds before it is written is never read
        self.session.state("states").view(np.float32)[...] = np.nan
        self.table = self.random.permutation(ROWS * self.row_pages).astype(np.int32).reshape(ROWS, -1)
        self.set_table()
        self.given = inputs(s, self.random, ROWS, LENGTH)

    def set_table(self):
        self.session.state("table").view(np.int32)[...] = self.table.reshape(-1)

    def step(self, work, padding_rows=1, padding_tokens=2):
        """[(row, first, end)] -> what each of these gives."""
        parts = [[one[row, first:end] for one in self.given] for row, first, end in work]
        batch = [np.concatenate([np.full((1, *one.shape[2:]), np.nan, np.float32), *(part[i] for part in parts),
                                 np.full((padding_tokens, *one.shape[2:]), np.nan, np.float32)]) for i, one in enumerate(self.given)]  # fmt: skip
        counts = [end - first for _row, first, end in work]
        starts = np.concatenate([[1], 1 + np.cumsum(counts), np.full(padding_rows, 1 + sum(counts))])
        ids, lengths = [row for row, *_ in work] + [0] * padding_rows, [end for *_, end in work] + [0] * padding_rows
        y = self.session.run("scan", *batch, *(np.asarray(x, np.int32) for x in (ids, starts, lengths)))[0]
        assert not y[0].any() and not y[starts[-1] :].any()
        return [y[first:end] for first, end in zip(starts, starts[1 : len(work) + 1])]

    def walk(self, chunks):
        done, found = [0] * ROWS, np.zeros_like(self.given[2])
        while min(done) < LENGTH:
            rows = [int(r) for r in self.random.permutation(ROWS)[: self.random.integers(1, ROWS + 1)] if done[r] < LENGTH]
            work = [(r, done[r], min(LENGTH, done[r] + int(self.random.choice(chunks)))) for r in rows]
            for (row, first, end), y in zip(work, self.step(work) if work else []):
                found[row, first:end], done[row] = y, end
        return found


@pytest.mark.parametrize("on", kh.host_targets())
@pytest.mark.parametrize("name", CASES)
def test_ragged_batches(name, on):
    at = Running(CASES[name], on, list(CASES).index(name))
    want = np.stack([expected(at.s, [one[row] for one in at.given]) for row in range(ROWS)])
    found = at.walk([1, 1, 2, 7, 12, 33])
    np.testing.assert_allclose(found, want, rtol=0, atol=2e-6 * np.abs(want).max())


@pytest.mark.parametrize("on", kh.host_targets())
@pytest.mark.parametrize("name", CASES)
def test_a_row_has_the_same_bits_in_chunks_of_any_size(name, on):
    found = [Running(CASES[name], on, 5).walk(chunks) for chunks in ([LENGTH], [1], [3, 8, 16])]
    for other in found[1:]:
        np.testing.assert_array_equal(found[0].view(np.uint32), other.view(np.uint32))


@pytest.mark.parametrize("name", ["plain", "delta_of_each", "wide", "one"])
def test_full_pages_that_rows_share(name):
    """A row that has another one's full pages goes on from there, and leaves them as they are."""
    at = Running(CASES[name])
    size, shared = at.s.page_size, max(1, 33 // at.s.page_size)
    whole = at.step([(0, 0, LENGTH)])[0]
    at.table[1, :shared] = at.table[0, :shared]
    at.set_table()
    for one in at.given:
        one[1, : shared * size] = one[0, : shared * size]
    rest = at.step([(1, shared * size, LENGTH)])[0]
    want = expected(at.s, [one[1] for one in at.given])
    np.testing.assert_allclose(rest, want[shared * size :], rtol=0, atol=2e-6 * np.abs(want).max())
    again = at.step([(0, shared * size, LENGTH)])[0]
    np.testing.assert_array_equal(again.view(np.uint32), whole[shared * size :].view(np.uint32))


@pytest.mark.parametrize("name", CASES)
def test_the_reference(name):
    at = Running(CASES[name])
    oracle, states = Interpreter(at.m, at.sizes), []
    oracle.states["table"][...] = at.table
    for first, end in ((0, 9), (9, 10), (10, 31)):
        given = [np.concatenate([one[1, first:end], one[3, first:end]]) for one in at.given]
        rows = [np.asarray(x, np.int32) for x in ([1, 3], [0, end - first, 2 * (end - first)], [end, end])]
        got, want = at.session.run("scan", *given, *rows)[0], oracle.run("scan", *given, *rows)[0]
        np.testing.assert_allclose(got, want, rtol=0, atol=2e-6 * np.abs(want).max())
        used = np.unique(at.table[[1, 3], : -(-end // at.s.page_size)])
        states = [one.reshape(-1, *oracle.states["states"].shape[1:])[used] for one in (at.session.state("states").view(np.float32), oracle.states["states"])]
        np.testing.assert_allclose(*states, rtol=0, atol=2e-6 * np.abs(states[1]).max())


@pytest.mark.parametrize("ids, starts, lengths, says", [
    ([9], [0, 1], [1], "row 9 and page 0"), ([0], [0, 1], [4000], "row 0 and page 499"), ([0], [0, 3], [2], "a row of 3 tokens has 2"), ([0], [0, 99], [99], "a row of 99 tokens"),
    ([0], [2, 1], [5], "a row of -1 tokens"), ([2], [0, 1], [1], "page 77 is outside a state of 29 pages"),
])  # fmt: skip
def test_what_does_not_fit_fails_the_call(ids, starts, lengths, says):
    at = Running(Shape())
    at.table[2] = 77
    at.set_table()
    given = [one[0, :3] for one in at.given]
    with pytest.raises(RuntimeError, match=says):
        at.session.run("scan", *given, *(np.asarray(x, np.int32) for x in (ids, starts, lengths)))


@pytest.mark.parametrize("changes, says", [
    ({"states": ["f32", [9, 4, 16, 8]]}, r"states of f32\[9, 4, 16, 8\]; f32 \[pages, 4, 8, 16\] are needed"), ({"states": ["bf16", [9, 4, 8, 16]]}, "states of bf16"),
    ({"decay": [5, 4, 3]}, "decay of"), ({"beta": [5, 3]}, "beta of"), ({"v": [5, 3, 8]}, "3 heads of 8 with 2 key heads"), ({"k": [5, 2, 15]}, "heads and size of queries and keys"),
    ({"q": [4, 2, 16]}, "tokens"), ({"table": ["i64", [2, 3]]}, "page table of i64"), ({"page_size": 0}, "pages of 0 tokens"),
])  # fmt: skip
def test_what_is_refused(changes, says):
    m = Module("scan")
    f = m.function("scan")
    shapes = {"q": [5, 2, 16], "k": [5, 2, 16], "v": [5, 4, 8], "decay": [5, 4, 1], "beta": [5, 4], **changes}
    states, table = (m.state(name, *changes.get(name, given)) for name, given in (("states", ["f32", [9, 4, 8, 16]]), ("table", ["i32", [2, 3]])))
    q, k, v, decay, beta = (f.input(name, "f32", shapes[name]) for name in ("q", "k", "v", "decay", "beta"))
    rows = f.input("ids", "i32", [2]), f.input("starts", "i32", [3]), f.input("lengths", "i32", [2])
    with pytest.raises(IRError, match=says):
        q.paged_scan(k, v, decay, states, table, *rows, changes.get("page_size", 8), beta)
