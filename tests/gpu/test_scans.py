"""The recurrence over ragged rows with states in pages, on a GPU: beside float64, and bit for bit
beside itself in chunks of other sizes and with full pages of another row. Run as a program it
measures steps of decoding and prompts beside the bytes of their states."""

from __future__ import annotations

import os
import sys
import time

import numpy as np
import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, os.pardir, "python")]

import kernel_harness as kh  # noqa: E402
import test_ops  # noqa: E402
from accrt.compiler import Module  # noqa: E402
from test_paged_scan import CASES, LENGTH, ROWS, Shape, expected, inputs  # noqa: E402

NAMES = list(CASES)
#: Of Granite 4 H Tiny, and of Qwen 3 Next: a layer.
LAYERS = {"granite4": Shape(48, 1, 64, 128, 1024), "qwen3_next": Shape(32, 16, 128, 128, 1024, beta=True)}


def function(m, symbols, name, s, pages, rows, row_pages):
    tokens, batch = symbols
    states, table = m.state(f"states_{name}", "f32", [pages, s.heads, s.value_size, s.key_size]), m.state(f"table_{name}", "i32", [rows, row_pages])
    f = m.function(f"scan_{name}")
    q, k = (f.input(one, "f32", [tokens, s.key_heads, s.key_size]) for one in ("q", "k"))
    v, decay = f.input("v", "f32", [tokens, s.heads, s.value_size]), f.input("decay", "f32", [tokens, s.heads, s.key_size if s.of_each else 1])
    beta = f.input("beta", "f32", [tokens, s.heads]) if s.beta else None
    given = f.input("row_ids", "i32", [batch]), f.input("row_starts", "i32", [batch + 1]), f.input("kv_lengths", "i32", [batch])
    f.result("y", q.paged_scan(k, v, decay, states, table, *given, s.page_size, beta))


def module():
    m = Module("scans")
    symbols = m.symbol("tokens", maximum=4096), m.symbol("rows", maximum=512)
    for name, s in CASES.items():
        row_pages = -(-LENGTH // s.page_size)
        function(m, symbols, name, s, ROWS * row_pages + 1, ROWS, row_pages)
    for name, s in LAYERS.items():
        function(m, symbols, name, s, 64, 64, 1)
    return m


class Device:
    def __init__(self):
        import accrt

        self.accrt, instance = accrt, accrt.default_instance("all")
        self.program = accrt.Bundle(test_ops.built("scans", module()), instance).program(instance.device("cuda:0"))
        self.session = self.program.session()
        self.pool = accrt.Pool(self.program.device)

    def put(self, name, content):
        state, content = self.session.state(name), np.ascontiguousarray(content)
        self.session.stream.copy(content, state.buffer, content.nbytes, target_offset=state.offset_bytes)
        self.session.stream.synchronize()

    def tensor(self, x):
        x = np.ascontiguousarray(x)
        buffer = self.pool.buffer(max(x.nbytes, 16))
        if x.nbytes:
            self.session.stream.copy(x, buffer, x.nbytes)
            self.session.stream.synchronize()
        return self.accrt.Tensor(buffer, {"int32": "i32", "float32": "f32"}[x.dtype.name], x.shape)

    def run(self, name, *given):
        return np.asarray(self.session[f"scan_{name}"](*map(self.tensor, given)).tolist(), np.float32)


@pytest.fixture(scope="module")
def device():
    why = test_ops.reason("scans")
    if why:
        pytest.skip(why)
    return Device()


class Running:
    def __init__(self, device, name, seed=0):
        self.device, self.name, self.s = device, name, CASES[name]
        self.random = np.random.default_rng([kh.SEED, seed])
        row_pages = -(-LENGTH // self.s.page_size)
        shape = (ROWS * row_pages + 1, self.s.heads, self.s.value_size, self.s.key_size)
        device.put(f"states_{name}", np.full(shape, np.nan, np.float32))
        self.table = self.random.permutation(ROWS * row_pages).astype(np.int32).reshape(ROWS, -1)
        device.put(f"table_{name}", self.table)
        self.given = inputs(self.s, self.random, ROWS, LENGTH)

    def step(self, work):
        """[(row, first, end)] -> what each of these gives; tokens before and behind them, and a row
        without tokens."""
        parts = [[one[row, first:end] for one in self.given] for row, first, end in work]
        batch = [np.concatenate([np.full((1, *one.shape[2:]), np.nan, np.float32), *(part[i] for part in parts), np.full((2, *one.shape[2:]), np.nan, np.float32)])
                 for i, one in enumerate(self.given)]  # fmt: skip
        counts = [end - first for _row, first, end in work]
        starts = np.concatenate([[1], 1 + np.cumsum(counts), [1 + sum(counts)]])
        rows = ([row for row, *_ in work] + [0], starts, [end for *_, end in work] + [0])
        y = self.device.run(self.name, *batch, *(np.asarray(x, np.int32) for x in rows))
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


@pytest.mark.parametrize("name", NAMES)
def test_ragged_batches(device, name):
    at = Running(device, name, NAMES.index(name))
    want = np.stack([expected(at.s, [one[row] for one in at.given]) for row in range(ROWS)])
    np.testing.assert_allclose(at.walk([1, 1, 2, 7, 12, 33]), want, rtol=0, atol=2e-6 * np.abs(want).max())


@pytest.mark.parametrize("name", NAMES)
def test_a_row_has_the_same_bits_in_chunks_of_any_size(device, name):
    first, *others = [Running(device, name, 5).walk(chunks) for chunks in ([LENGTH], [1], [3, 8, 16])]
    for other in others:
        np.testing.assert_array_equal(first.view(np.uint32), other.view(np.uint32))


@pytest.mark.parametrize("name", ["plain", "delta_of_each", "wide", "one"])
def test_full_pages_that_rows_share(device, name):
    at = Running(device, name)
    size, shared = at.s.page_size, max(1, 33 // at.s.page_size)
    whole = at.step([(0, 0, LENGTH)])[0]
    at.table[1, :shared] = at.table[0, :shared]
    device.put(f"table_{name}", at.table)
    for one in at.given:
        one[1, : shared * size] = one[0, : shared * size]
    rest, want = at.step([(1, shared * size, LENGTH)])[0], expected(at.s, [one[1] for one in at.given])
    np.testing.assert_allclose(rest, want[shared * size :], rtol=0, atol=2e-6 * np.abs(want).max())
    again = at.step([(0, shared * size, LENGTH)])[0]
    np.testing.assert_array_equal(again.view(np.uint32), whole[shared * size :].view(np.uint32))


@pytest.mark.parametrize("ids, starts, lengths", [([9], [0, 1], [1]), ([0], [0, 1], [4000]), ([0], [0, 3], [2]), ([2], [0, 1], [1])])
def test_a_row_that_does_not_fit_gives_zeros(device, ids, starts, lengths):
    at = Running(device, "plain")
    at.table[2] = 77
    device.put("table_plain", at.table)
    y = device.run("plain", *(one[0, :3] for one in at.given), *(np.asarray(x, np.int32) for x in (ids, starts, lengths)))
    assert not y.any()


def main():
    """us a call: decoding of so many rows, and a prompt of 1,024 tokens."""
    device, random = Device(), np.random.default_rng(1)
    for name, s in LAYERS.items():
        device.put(f"table_{name}", np.arange(64, dtype=np.int32).reshape(64, 1))
        for rows, count in ((1, 1), (16, 1), (64, 1), (1, 1000), (4, 250)):
            given = inputs(s, random, rows * count)
            more = np.arange(rows), np.arange(rows + 1) * count, np.full(rows, count)
            tensors = [device.tensor(one) for one in (*given, *(np.asarray(x, np.int32) for x in more))]
            call = device.session[f"scan_{name}"]
            for _ in range(5):
                call(*tensors)
            device.session.stream.synchronize()
            begin = time.perf_counter()
            for _ in range(50):
                call(*tensors)
            device.session.stream.synchronize()
            took = (time.perf_counter() - begin) / 50
            moved = 2 * rows * s.heads * s.value_size * s.key_size * 4
            print(f"{name:12} {rows:3} rows of {count:4} tokens: {took * 1e6:8.1f} us a call, states {moved / 1e6:.1f} MB, {moved / took / 1e12:.2f} TB/s", flush=True)


if __name__ == "__main__":
    main()
