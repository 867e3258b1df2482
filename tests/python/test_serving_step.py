"""A small model of Llama's shape as a step of a serving engine: pages, prefill in chunks and
decoding mixed, the last token fed back on the device. It agrees with the same model over whole
sequences, and with itself bit for bit in other batches."""

from __future__ import annotations

import numpy as np
import pytest

import compiler_harness as ch
import kernel_harness as kh
from accrt.compiler import Module, SymbolClass

LAYERS, HEADS, KV_HEADS, SIZE, HIDDEN, WIDE, VOCAB, PAGE = 2, 4, 2, 16, 64, 96, 101, 4


def model() -> Module:
    m, random = Module("llama"), np.random.default_rng([kh.SEED, 7])

    def weight(name, *shape):
        return m.constant(name, (random.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32))

    def norm(name):
        return m.constant(name, (1 + 0.1 * random.standard_normal(HIDDEN)).astype(np.float32))

    embedding, last_norm = weight("embed", VOCAB, HIDDEN), norm("norm")
    frequencies = m.constant("frequencies", (10000.0 ** (-np.arange(SIZE // 2) / (SIZE // 2))).astype(np.float32))
    layers = [
        {
            "before": norm(f"{i}.before"), "after": norm(f"{i}.after"), "q": weight(f"{i}.q", HEADS * SIZE, HIDDEN),
            "k": weight(f"{i}.k", KV_HEADS * SIZE, HIDDEN), "v": weight(f"{i}.v", KV_HEADS * SIZE, HIDDEN), "o": weight(f"{i}.o", HIDDEN, HEADS * SIZE),
            "gate": weight(f"{i}.gate", WIDE, HIDDEN), "up": weight(f"{i}.up", WIDE, HIDDEN), "down": weight(f"{i}.down", HIDDEN, WIDE),
        }
        for i in range(LAYERS)
    ]  # fmt: skip

    def body(f, x, positions, attend):
        for i, w in enumerate(layers):
            y = x.rms_norm(w["before"], 1e-6)
            q, k, v = (y.linear(w[n]).view([-1, heads, SIZE]) for n, heads in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS)))
            q, k = q.rope_at(positions, frequencies), k.rope_at(positions, frequencies)
            x = x + attend(i, q, k, v).view([-1, HEADS * SIZE]).linear(w["o"])
            y = x.rms_norm(w["after"], 1e-6)
            x = x + (y.linear(w["gate"]).silu() * y.linear(w["up"])).linear(w["down"])
        return x.rms_norm(last_norm, 1e-6)

    tokens, rows, samples, changes = (m.symbol(n, minimum=low, maximum=512) for n, low in (("tokens", 1), ("rows", 1), ("samples", 1), ("changes", 0)))
    pages, table_rows, table_pages = (m.symbol(n, SymbolClass.SESSION, minimum=1, maximum=512) for n in ("pages", "table_rows", "table_pages"))
    cache = [tuple(m.state(f"kv.{i}.{n}", "f32", [pages, PAGE, KV_HEADS, SIZE]) for n in "kv") for i in range(LAYERS)]
    table = m.state("page_table", "i32", [table_rows, table_pages])
    last = m.state("last_token", "i32", [table_rows])

    f = m.function("step")
    names = {
        "token_ids": tokens, "positions": tokens, "slots": tokens, "token_rows": tokens, "row_starts": rows + 1, "row_ids": rows, "kv_lengths": rows,
        "change_slots": changes, "change_pages": changes, "sample_tokens": samples,
    }  # fmt: skip
    given = {name: f.input(name, "i32", [size]) for name, size in names.items()}
    given["change_pages"].state_scatter(table, given["change_slots"])
    fed_back = f.state_gather(last, given["row_ids"].index_select(0, given["token_rows"]))
    ids = (given["token_ids"] < 0).where(fed_back, given["token_ids"])

    def paged(i, q, k, v):
        k.state_scatter(cache[i][0], given["slots"])
        v.state_scatter(cache[i][1], given["slots"])
        return q.paged_attention(*cache[i], table, given["row_ids"], given["row_starts"], given["kv_lengths"])

    hidden = body(f, f.constant(embedding).embedding(ids), given["positions"], paged)
    f.result("logits", hidden.index_select(0, given["sample_tokens"]).linear(embedding))

    g = m.function("sample_greedy")
    token = g.input("logits", "f32", [samples, VOCAB]).sample_greedy()
    token.state_scatter(last, g.input("sample_rows", "i32", [samples]))
    g.result("token", token)

    h = m.function("whole")
    ids = h.input("ids", "i32", [tokens])

    def dense(_i, q, k, v):
        q, k, v = (x.transpose(0, 1).unsqueeze(0) for x in (q, k, v))
        return q.scaled_dot_product_attention(k, v, is_causal=True).squeeze(0).transpose(0, 1)

    h.result("logits", body(h, h.constant(embedding).embedding(ids), h.arange(tokens).to_copy("i32"), dense).linear(embedding))
    return m


class Engine:
    """Just enough of one: pages by sequence, a batch's metadata."""

    def __init__(self, call, random, table_rows=4, table_pages=120, pages=200):
        self.call, self.random, self.table_pages = call, random, table_pages
        self.free = list(random.permutation(pages))
        self.pages = [[] for _ in range(table_rows)]

    def step(self, rows, padding=(2, 1, 1)):
        """Logits of the last token of each row; rows: (table row, ids, position of the first)."""
        tokens = sum(len(ids) for _row, ids, _at in rows)
        more_tokens, more_rows, more_changes = padding
        changes, out = [], {n: [] for n in ("token_ids", "positions", "slots", "token_rows", "row_ids", "kv_lengths")}
        starts = [0]
        for r, (row, ids, at) in enumerate(rows):
            while len(self.pages[row]) * PAGE < at + len(ids):
                changes.append((row * self.table_pages + len(self.pages[row]), self.free.pop()))
                self.pages[row].append(changes[-1][1])
            positions = np.arange(at, at + len(ids))
            out["token_ids"] += list(ids)
            out["positions"] += list(positions)
            out["slots"] += [self.pages[row][p // PAGE] * PAGE + p % PAGE for p in positions]
            out["token_rows"] += [r] * len(ids)
            out["row_ids"].append(row)
            out["kv_lengths"].append(at + len(ids))
            starts.append(starts[-1] + len(ids))
        for name, value in (("token_ids", 0), ("positions", 0), ("slots", -1), ("token_rows", 0)):
            out[name] += [value] * more_tokens
        for name in ("row_ids", "kv_lengths"):
            out[name] += [0] * more_rows
        out["row_starts"] = starts + [tokens] * more_rows
        out["change_slots"] = [slot for slot, _page in changes] + [-1] * more_changes
        out["change_pages"] = [page for _slot, page in changes] + [0] * more_changes
        out["sample_tokens"] = [end - 1 for end in starts[1:]]
        names = ("token_ids", "positions", "slots", "token_rows", "row_starts", "row_ids", "kv_lengths", "change_slots", "change_pages", "sample_tokens")
        return self.call("step", *(np.asarray(out[n], np.int32) for n in names))


SIZES = {"pages": 200, "table_rows": 4, "table_pages": 120}


def executor(m, running):
    session = ch.session(running, **SIZES)
    return lambda name, *given: session.run(name, *given)[0]


def runtime(m, running):
    loaded = ch.runtime_program(running.bundle.data, ch.target())
    if loaded is None:
        pytest.skip("the library is not built")
    session = loaded.session(symbols=SIZES)

    def call(name, *given):
        like = np.zeros(len(given[-1]), np.int32) if name == "sample_greedy" else np.zeros((len(given[-1]), VOCAB), np.float32)
        return ch.run_in_runtime(session, m, name, given, {}, [like])[0]

    return call


@pytest.fixture(scope="module")
def compiled():
    m = model()
    running = ch.program(m)
    whole = ch.session(running, **SIZES)
    return m, running, lambda ids: whole.run("whole", np.asarray(ids, np.int32))[0]


@pytest.mark.parametrize("where", [executor, runtime])
def test_chunks_and_decoding_agree_with_whole_sequences(compiled, where):
    m, running, whole = compiled
    random = np.random.default_rng([kh.SEED, 8])
    engine = Engine(where(m, running), random)
    texts = [list(random.integers(0, VOCAB, n)) for n in (330, 41, 7, 120)]
    wanted = [whole(text) for text in texts]
    done, steps = [0] * 4, 0
    while any(at < len(text) for at, text in zip(done, texts)):
        rows = []
        for row in random.permutation(4):
            left = len(texts[row]) - done[row]
            count = min(left, int(random.choice([0, 1, 1, 2, 9, 64])))
            if count:
                rows.append((row, texts[row][done[row] : done[row] + count], done[row]))
        if not rows:
            continue
        logits = engine.step(rows, tuple(random.integers(0, 4, 3)))
        for (row, ids, at), got in zip(rows, logits):
            done[row] = at + len(ids)
            np.testing.assert_allclose(got, wanted[row][done[row] - 1], rtol=0, atol=1e-5)
        steps += 1
    assert steps > 10


@pytest.mark.parametrize("where", [executor, runtime])
def test_the_last_token_is_fed_back_on_the_device(compiled, where):
    m, running, whole = compiled
    random = np.random.default_rng([kh.SEED, 9])
    engine = Engine(where(m, running), random)
    texts = [list(random.integers(0, VOCAB, n)) for n in (5, 18)]
    logits = engine.step([(2, texts[0], 0), (1, texts[1], 0)])
    for _turn in range(12):
        for token, text in zip(engine.call("sample_greedy", logits, np.array([2, 1], np.int32)), texts):
            text.append(int(token))
        logits = engine.step([(2, [-1], len(texts[0]) - 1), (1, [-1], len(texts[1]) - 1)])
    for text, start, got in zip(texts, (5, 18), logits):
        want = whole(text)
        np.testing.assert_allclose(got, want[-1], rtol=0, atol=1e-5)
        assert text[start:] == [int(t) for t in np.argmax(want[start - 1 : -1], -1)]


def test_a_request_has_the_same_logits_bit_for_bit_in_every_batch(compiled):
    """On hosts, the whole step is so: products with weights, norms and attention alike."""
    m, running, _whole = compiled
    random = np.random.default_rng([kh.SEED, 10])
    text, others = list(random.integers(0, VOCAB, 290)), [list(random.integers(0, VOCAB, 100)) for _ in range(3)]
    alone, made = Engine(executor(m, running), random), {}
    for at in range(len(text)):
        made[at] = alone.step([(1, text[at : at + 1], at)], (0, 0, 0))[0]
    for turn in range(3):
        batched, at, rest = Engine(executor(m, running), random), 0, [0, 0, 0]
        while at < len(text):
            count = min(int(random.choice([1, 3, 17, 64])), len(text) - at)
            rows = [(1, text[at : at + count], at)]
            for i, row in enumerate((0, 2, 3)):
                more = min(int(random.choice([0, 1, 30])), len(others[i]) - rest[i])
                if more:
                    rows.insert(int(random.integers(0, 2)), (row, others[i][rest[i] : rest[i] + more], rest[i]))
                    rest[i] += more
            logits = batched.step(rows, tuple(random.integers(0, 9, 3)))
            at += count
            mine = next(i for i, (row, _ids, _at) in enumerate(rows) if row == 1)
            np.testing.assert_array_equal(logits[mine].view(np.uint32), made[at - 1].view(np.uint32), err_msg=f"turn {turn}, token {at}")
