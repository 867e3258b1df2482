"""What passes join for a step of few rows, on a GPU: rotations with the writing of keys and values,
products with the norm before them and the gate after them, and both ends of a step; against the
float64 reference, and a row bit for bit against itself among others."""

from __future__ import annotations

import os
import sys

import numpy as np
import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, os.pardir, "python")]

import compiler_harness as ch  # noqa: E402
import kernel_harness as kh  # noqa: E402
import test_ops  # noqa: E402
from accrt.compiler import Interpreter, Module  # noqa: E402
from accrt.compiler.ops import OPS  # noqa: E402

PAGES, PAGE = 10, 16
#: Type, heads, key heads, size, value size, pairs, interleaved.
TURNS = {
    "bf16": ("bf16", 32, 8, 64, 64, 32, False), "part": ("f16", 6, 2, 80, 48, 20, False), "pairs": ("f32", 3, 3, 64, 64, 32, True), "odd": ("bf16", 5, 1, 17, 9, 3, False),
    "wide": ("f16", 48, 4, 256, 256, 128, False), "neighbours": ("bf16", 9, 3, 64, 48, 32, True), "large": ("bf16", 32, 8, 128, 128, 64, False),
    "values": ("bf16", 4, 4, 32, 65, 16, False),
}  # fmt: skip
#: Type, columns, inner size, norm, activation of the gate, bias, residual.
PRODUCTS = {
    "normed": ("bf16", 1040, 2048, True, "", False, False), "gated": ("bf16", 300, 2048, True, "silu", False, False), "long": ("bf16", 264, 8192, False, "", False, True),
    "bias": ("f16", 520, 1024, True, "", True, False), "gelu": ("f16", 136, 96, False, "gelu", False, False), "odd": ("bf16", 37, 77, True, "silu", False, False),
    "odd_residual": ("bf16", 333, 333, False, "", True, True), "many": ("bf16", 5003, 64, True, "", False, False),
    "many_gated": ("bf16", 2205, 64, True, "silu", False, False), "wide": ("f16", 96, 4096, True, "silu", False, False),
}  # fmt: skip
#: Type, heads, key heads, size, value size, inner size, norm, bias, interleaved.
TURNED = {
    "llama": ("bf16", 32, 8, 64, 64, 2048, True, False, False), "qwen": ("bf16", 14, 2, 64, 64, 896, True, True, False),
    "plain": ("f16", 6, 3, 128, 128, 4096, False, False, False), "pairs": ("f16", 5, 1, 40, 24, 333, True, True, True), "small": ("bf16", 2, 1, 8, 8, 77, False, True, False),
    "many": ("bf16", 128, 8, 64, 64, 136, True, False, False),
}  # fmt: skip
ROWS = (1, 2, 7, 8, 9, 16, 17, 70)
#: Type and size of a row of the embedding.
EMBEDDINGS = {"wide": ("bf16", 24), "odd": ("f16", 7), "raised": ("f32", 9)}
VOCABULARY, LOGITS, TABLE = 100, 20011, (40, 6)
SEED = [kh.SEED, 71]


def frequencies_of(size):
    return (10000.0 ** (-np.arange(size // 2) / (size // 2))).astype(np.float32)


def module():
    m = Module("steps")
    tokens = m.symbol("tokens", maximum=4096)
    for name, (dtype, heads, kv_heads, size, value_size, half, interleaved) in TURNS.items():
        keys, values = (m.state(f"{part}.{name}", dtype, [PAGES, PAGE, kv_heads, width]) for part, width in (("k", size), ("v", value_size)))
        f = m.function("turn_" + name)
        joined = f.input("x", dtype, [tokens, (heads + kv_heads) * size + kv_heads * value_size])
        at, frequencies = f.input("positions", "i32", [tokens]), f.input("frequencies", "f32", [half])
        slots = f.input("slots", "i32", [tokens])
        end = heads * size
        q, k = joined[:, :end].view([tokens, heads, size]), joined[:, end : end + kv_heads * size].view([tokens, kv_heads, size])
        v = joined[:, end + kv_heads * size :].view([tokens, kv_heads, value_size])
        q, k = (x.rope_at(at, frequencies, 1.25, interleaved) for x in (q, k))
        k.state_scatter(keys, slots)
        v.state_scatter(values, slots)
        f.result("y", q)
    random = np.random.default_rng(SEED)
    for name, (dtype, heads, kv_heads, size, value_size, inner, norm, bias, interleaved) in TURNED.items():
        keys, values = (m.state(f"{part}.turned_{name}", dtype, [PAGES, PAGE, kv_heads, width]) for part, width in (("k", size), ("v", value_size)))
        f = m.function("turned_" + name)
        x, at = f.input("x", dtype, [tokens, inner]), f.input("positions", "i32", [tokens])
        slots, frequencies = f.input("slots", "i32", [tokens]), f.constant(m.constant(f"turned_{name}.frequencies", frequencies_of(size)))
        if name == "qwen":
            frequencies = f.input("frequencies", "f32", [size // 2])
        width = (heads + kv_heads) * size + kv_heads * value_size
        weight = m.constant(f"turned_{name}.w", kh.encode(np.resize(random.standard_normal(10007) / np.sqrt(inner), (width, inner)), dtype), dtype)
        b = m.constant(f"turned_{name}.b", kh.encode(random.standard_normal(width), dtype), dtype) if bias else None
        y = (x.rms_norm(m.constant(f"turned_{name}.norm", random.uniform(0.5, 1.5, inner).astype(np.float32)), 1e-5) if norm else x).linear(weight, b)
        first, second = heads * size, (heads + kv_heads) * size
        q, k, v = y[:, :first].view([tokens, heads, size]), y[:, first:second].view([tokens, kv_heads, size]), y[:, second:].view([tokens, kv_heads, value_size])
        q, k = (part.rope_at(at, frequencies, 1.25, interleaved) for part in (q, k))
        k.state_scatter(keys, slots)
        v.state_scatter(values, slots)
        f.result("y", q)
    for name, (dtype, n, k, norm, gate, bias, residual) in PRODUCTS.items():
        f = m.function("product_" + name)
        x = f.input("x", dtype, [tokens, k])
        # repeated, so that the bundle can be compressed
        some = random.standard_normal((2, 10007)) / np.sqrt(k)
        weights = [m.constant(f"{name}.w{i}", kh.encode(np.resize(some[i], (n, k)), dtype), dtype) for i in range(1 + bool(gate))]
        if norm:
            x = x.rms_norm(m.constant(f"{name}.norm", random.uniform(0.5, 1.5, k).astype(np.float32)), 1e-5)
        b = m.constant(f"{name}.bias", kh.encode(random.standard_normal(n), dtype), dtype) if bias else None
        y = getattr(x.linear(weights[0]), gate)() * x.linear(weights[1]) if gate else x.linear(weights[0], b)
        f.result("y", y + f.input("residual", dtype, [tokens, n]) if residual else y)
    rows, changes = m.symbol("rows", maximum=512), m.symbol("changes", maximum=512)
    last, table = m.state("last", "i32", [TABLE[0]]), m.state("table", "i32", TABLE)
    keys, values = (m.state(f"first.{part}", "bf16", [PAGES, PAGE, 4, 64]) for part in "kv")
    for name, (dtype, size) in EMBEDDINGS.items():
        f = m.function("first_" + name)
        given, token_rows, row_ids = f.input("given", "i32", [tokens]), f.input("token_rows", "i32", [tokens]), f.input("row_ids", "i32", [rows])
        slots, pages = (f.input(name, "i32", [changes]) for name in ("slots", "pages"))
        pages.state_scatter(table, slots)
        ids = (given < 0).where(f.state_gather(last, row_ids.index_select(0, token_rows)), given).clamp(0, VOCABULARY - 1)
        f.result("y", f.constant(m.constant(f"embedding.{name}", kh.encode(random.standard_normal((VOCABULARY, size)), dtype), dtype)).embedding(ids))
        starts, lengths = f.input("row_starts", "i32", [rows + 1]), f.input("kv_lengths", "i32", [rows])
        f.result("attended", f.input("q", "bf16", [tokens, 8, 64]).paged_attention(keys, values, table, row_ids, starts, lengths))
    f = m.function("greedy")
    logits, slots = f.input("logits", "f32", [rows, LOGITS]), f.input("slots", "i32", [rows])
    token = logits.sample_greedy()
    token.state_scatter(last, slots)
    f.result("token", token)
    return m


class Running:
    def __init__(self):
        import accrt

        instance = accrt.default_instance("all")
        self.m = module()
        self.program = accrt.Bundle(test_ops.built("steps", self.m), instance).program(instance.device("cuda:0"))
        self.session, self.oracle = self.program.session(), Interpreter(self.m)
        self.random = np.random.default_rng(SEED)
        self.pool = accrt.Pool(self.program.device)

    def tensor(self, x, dtype):
        import accrt

        x = np.ascontiguousarray(x)
        buffer = self.pool.buffer(max(x.nbytes, 16))
        if x.nbytes:
            self.session.stream.copy(x, buffer, x.nbytes)
            self.session.stream.synchronize()
        return accrt.Tensor(buffer, dtype, x.shape)

    def run(self, function, *given):
        """`given`: arrays with their types."""
        return np.asarray(self.session[function](*(self.tensor(x, dtype) for x, dtype in given)).tolist(), np.float64)

    def run_all(self, function, *given):
        found = self.session[function](*(self.tensor(x, dtype) for x, dtype in given))
        return [np.asarray(x.tolist(), np.float64) for x in found]

    def put(self, name, content):
        state = self.session.state(name)
        content = np.ascontiguousarray(content)
        self.session.stream.copy(content, state.buffer, content.nbytes, target_offset=state.offset_bytes)
        self.session.stream.synchronize()

    def state(self, name, dtype, shape):
        state = self.session.state(name)
        found = np.zeros(shape, kh.encode(np.zeros(1), dtype).dtype)
        self.session.stream.copy(state.buffer, found, found.nbytes, source_offset=state.offset_bytes)
        self.session.stream.synchronize()
        return kh.decode(found, dtype)


@pytest.fixture(scope="module")
def running():
    why = test_ops.reason("steps")
    if why:
        pytest.skip(why)
    return Running()


@pytest.mark.parametrize("tokens", (1, 3, 40, 150))
@pytest.mark.parametrize("name", TURNS)
def test_turned_and_written(running, name, tokens):
    dtype, heads, kv_heads, size, value_size, half, _interleaved = TURNS[name]
    random, epsilon = running.random, {"f32": 2.0**-19, "f16": 2.0**-10, "bf16": 2.0**-7}[dtype]
    x = ch.values(random, dtype, (tokens, (heads + kv_heads) * size + kv_heads * value_size))
    at = random.integers(0, 1 << 17, tokens).astype(np.int32)
    frequencies = (10000.0 ** (-np.arange(half) / half)).astype(np.float32)
    slots = random.permutation(PAGES * PAGE)[:tokens].astype(np.int32)
    outside = random.random(tokens) < 0.2
    for part, width in (("k", size), ("v", value_size)):
        before = ch.values(random, dtype, (PAGES, PAGE, kv_heads, width))
        running.put(f"{part}.{name}", before)
        running.oracle.states[f"{part}.{name}"][...] = kh.decode(before, dtype)
    given = np.where(outside, random.choice([-1, -7, PAGES * PAGE, 1 << 30], tokens), slots).astype(np.int32)
    got = running.run("turn_" + name, (x, dtype), (at, "i32"), (frequencies, "f32"), (given, "i32"))
    want = running.oracle.run("turn_" + name, x, at, frequencies, np.where(outside, -1, slots).astype(np.int32))[0]
    assert np.abs(got - want).max() <= epsilon * np.abs(want).max(), (name, tokens, SEED)
    for part, width, exact in (("k", size, False), ("v", value_size, True)):
        found, wanted = running.state(f"{part}.{name}", dtype, (PAGES, PAGE, kv_heads, width)), running.oracle.states[f"{part}.{name}"]
        assert np.abs(found - wanted).max() <= (0.0 if exact else epsilon * np.abs(wanted).max()), (name, part, tokens, SEED)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("name", PRODUCTS)
def test_products(running, name, rows):
    dtype, n, k, norm, _gate, _bias, residual = PRODUCTS[name]
    x = ch.values(running.random, dtype, (rows, k))
    given = [(x, dtype)] + ([(ch.values(running.random, dtype, (rows, n)), dtype)] if residual else [])
    got = running.run("product_" + name, *given)
    want = running.oracle.run("product_" + name, *(item for item, _dtype in given))[0]
    # Of a norm's results each is rounded, and so is what the gate takes.
    bound = {"f16": 2.0**-10, "bf16": 2.0**-7}[dtype] * (3 if norm or _gate else 1)
    assert np.abs(got - want).max() <= bound * max(1.0, np.abs(want).max()), (name, rows, SEED)
    # The same bits alone; more normed rows of 4096 do not fit.
    if rows <= (8 if name == "wide" else 16):
        for r in {0, rows // 2, rows - 1}:
            alone = running.run("product_" + name, *((item[r : r + 1], dtype) for item, _dtype in given))
            assert np.array_equal(alone[0], got[r]), (name, rows, r, SEED)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("name", TURNED)
def test_products_turned_and_written(running, name, rows):
    """What there was in a row of a state that no slot names stays."""
    dtype, heads, kv_heads, size, value_size, inner, _norm, _bias, _interleaved = TURNED[name]
    random, parts = running.random, (("k", size), ("v", value_size))
    x, at = ch.values(random, dtype, (rows, inner)), random.integers(0, 1 << 17, rows).astype(np.int32)
    frequencies = [(frequencies_of(size), "f32")] * (name == "qwen")
    slots = random.permutation(PAGES * PAGE)[:rows].astype(np.int32)
    outside = random.random(rows) < (0.5 if rows == 1 else 0.2)
    given = np.where(outside, random.choice([-1, -7, PAGES * PAGE, 1 << 30], rows), slots).astype(np.int32)

    def put():
        for part, width in parts:
            before = np.full((PAGES, PAGE, kv_heads, width), 7.0)
            running.put(f"{part}.turned_{name}", kh.encode(before, dtype))
            running.oracle.states[f"{part}.turned_{name}"][...] = before

    def ran(r):
        got = running.run("turned_" + name, (x[r], dtype), (at[r], "i32"), (given[r], "i32"), *frequencies)
        return got, [running.state(f"{part}.turned_{name}", dtype, (PAGES * PAGE, kv_heads, width)) for part, width in parts]

    put()
    got, states = ran(slice(0, rows))
    want = running.oracle.run("turned_" + name, x, at, np.where(outside, -1, slots).astype(np.int32), *(item for item, _dtype in frequencies))[0]
    # As products with a norm, and a turn of what they have rounded.
    epsilon = {"f16": 2.0**-10, "bf16": 2.0**-7}[dtype] * 4
    assert np.abs(got - want).max() <= epsilon * np.abs(want).max(), (name, rows, SEED)
    for (part, width), found in zip(parts, states):
        wanted = running.oracle.states[f"{part}.turned_{name}"].reshape(found.shape)
        assert np.abs(found - wanted).max() <= epsilon * np.abs(wanted).max(), (name, part, rows, SEED)
        written = np.isin(np.arange(PAGES * PAGE), given)
        assert (found[~written] == 7.0).all(), (name, part, rows, SEED)
    for r in {0, rows // 2, rows - 1} if rows <= 16 else ():
        put()
        alone, kept = ran(slice(r, r + 1))
        assert np.array_equal(alone[0], got[r]), (name, rows, r, SEED)
        for own, among in zip(kept, states):
            assert outside[r] or np.array_equal(own[given[r]], among[given[r]]), (name, rows, r, SEED)


@pytest.mark.parametrize("tokens", (1, 2, 300))
@pytest.mark.parametrize("name", EMBEDDINGS)
def test_the_first_rows_of_a_step(running, name, tokens):
    """What is outside is row 0 of the batch, token 0, or not written."""
    dtype, size = EMBEDDINGS[name]
    random, rows = running.random, 5
    last, table = random.integers(-3, VOCABULARY + 9, TABLE[0]).astype(np.int32), random.integers(0, 99, TABLE).astype(np.int32)
    running.put("last", last)
    running.put("table", table)
    given = np.where(random.random(tokens) < 0.5, -1, random.integers(0, VOCABULARY + 50, tokens)).astype(np.int32)
    token_rows, row_ids = random.integers(-1, rows + 1, tokens).astype(np.int32), random.integers(-1, TABLE[0] + 1, rows).astype(np.int32)
    row_ids[0] = 3
    slots = random.permutation(np.arange(-4, TABLE[0] * TABLE[1] + 4))[:70].astype(np.int32)
    pages = random.integers(0, 1 << 20, 70).astype(np.int32)
    nothing = [(np.zeros(rows + 1, np.int32), "i32"), (np.zeros(rows, np.int32), "i32"), (np.zeros((tokens, 8, 64), np.uint16), "bf16")]
    got, attended = running.run_all("first_" + name, *((x, "i32") for x in (given, token_rows, row_ids, slots, pages)), *nothing)
    assert not attended.any()
    own = np.where((token_rows >= 0) & (token_rows < rows), row_ids[np.clip(token_rows, 0, rows - 1)], 0)
    before = np.where((own >= 0) & (own < TABLE[0]), last[np.clip(own, 0, TABLE[0] - 1)], 0)
    ids = np.clip(np.where(given < 0, before, given), 0, VOCABULARY - 1)
    weight = kh.decode(running.m.constants[f"embedding.{name}"].data, dtype).reshape(VOCABULARY, size)
    np.testing.assert_array_equal(got, weight[ids], err_msg=str((name, tokens, SEED)))
    inside = (slots >= 0) & (slots < table.size)
    table.reshape(-1)[slots[inside]] = pages[inside]
    np.testing.assert_array_equal(running.state("table", "i32", TABLE), table, err_msg=str((name, tokens, SEED)))


@pytest.mark.parametrize("rows", (1, 3, 64, 65))
def test_the_last_tokens_of_a_step(running, rows):
    """Of few rows by pieces, of more each by a block; of equal ones the first."""
    random = running.random
    logits = random.standard_normal((rows, LOGITS)).astype(np.float32)
    most = random.integers(0, LOGITS - 8200, rows)
    logits[np.arange(rows), most] = logits[np.arange(rows), most + 8192] = 9.0
    before = random.integers(0, 99, TABLE[0]).astype(np.int32)
    running.put("last", before)
    slots = np.resize(np.array([7, -1, TABLE[0], 0, TABLE[0] - 1, -9, 1 << 30], np.int32), rows)
    slots[7:] = -1
    got = running.run("greedy", (logits, "f32"), (slots, "i32"))
    np.testing.assert_array_equal(got, most, err_msg=str((rows, SEED)))
    inside = (slots >= 0) & (slots < TABLE[0])
    before[slots[inside]] = most[inside]
    np.testing.assert_array_equal(running.state("last", "i32", TABLE[:1]), before, err_msg=str((rows, SEED)))


@pytest.mark.parametrize("counts", ([1] * 300, [1] * 3, [1], [1] * 200 + [0] * 9, [1] * 70 + [40, 0, 5] + [1] * 30), ids=len)
def test_tokens_in_the_order_of_their_keys(running, counts):
    """Of any lengths, and with rows that have more tokens or none; the same bits alone."""
    random, rows = running.random, len(counts)
    starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    tokens, most = int(starts[-1]), TABLE[1] * PAGE
    table = random.integers(0, PAGES, TABLE).astype(np.int32)
    running.put("table", table)
    parts = [ch.values(random, "bf16", (PAGES, PAGE, 4, 64)) for _ in "kv"]
    for part, content in zip("kv", parts):
        running.put(f"first.{part}", content)
    row_ids, lengths = random.integers(0, TABLE[0], rows).astype(np.int32), np.maximum(random.integers(1, most + 1, rows), counts).astype(np.int32)
    q, none = ch.values(random, "bf16", (tokens, 8, 64)), np.full(1, -1, np.int32)

    def attended(q, row_ids, starts, lengths):
        given = [(np.zeros(len(q), np.int32), "i32")] * 2 + [(x, "i32") for x in (row_ids, none, none, starts, lengths)]
        return running.run_all("first_wide", *given, (q, "bf16"))[1]

    got = attended(q, row_ids, starts, lengths)
    reference = OPS["accrt.paged_attention"].reference
    keys, values = (kh.decode(x, "bf16").reshape(PAGES, PAGE, 4, 64) for x in parts)
    want = reference(kh.decode(q, "bf16").reshape(q.shape), row_ids, starts, lengths, keys=keys, values=values, page_table=table)
    assert np.abs(got - want).max() <= 4 * 2.0**-7 * max(1.0, np.abs(want).max()), (counts, SEED)
    for r in {0, rows // 2, max(r for r in range(rows) if counts[r])}:
        begin, end = starts[r], starts[r + 1]
        if begin < end:
            alone = attended(q[begin:end], row_ids[r : r + 1], np.array([0, end - begin], np.int32), lengths[r : r + 1])
            assert np.array_equal(alone, got[begin:end]), (counts, r, SEED)
