"""What passes for CUDA join in a step: rotations with the writing of keys and values, products with
the norm before and the gate after them. Each keeps what a function means, and leaves alone what is
used elsewhere."""

from __future__ import annotations

import numpy as np
import pytest

import kernel_harness as kh
from accrt.compiler import Interpreter, IRError, Module, driver, passes

SEED = [kh.SEED, 72]
TOKENS, HEADS, KV_HEADS, SIZE = 5, 4, 2, 16


def names(module, function):
    return [op.name for op in module.functions[function].body.walk()]


def joined(m, **compute):
    m.compute.update(compute)
    return passes.run(m, [p for p in passes.CUDA_PIPELINE if p[0] not in ("hoist_constants", "fuse_elementwise")])


def rotation(change=""):
    m = Module("turn")
    tokens = m.symbol("tokens", maximum=64)
    f = m.function("turn")
    shapes = {"q": HEADS, "k": KV_HEADS, "v": KV_HEADS}
    q, k, v = (f.input(name, "f32", [tokens, heads, SIZE]) for name, heads in shapes.items())
    at, other, slots, others = (f.input(name, "i32", [tokens]) for name in ("at", "other", "slots", "others"))
    frequencies = m.constant("frequencies", (10000.0 ** (-np.arange(4) / 4)).astype(np.float32))
    keys = m.state("keys", "f32", [3, 4, KV_HEADS, SIZE])
    values = m.state("values", "f16" if change == "type" else "f32", [4, 3, KV_HEADS, SIZE] if change == "pages" else [3, 4, KV_HEADS, SIZE])
    q = q.rope_at(at, frequencies, 1.5)
    k = k.rope_at(other if change == "positions" else at, frequencies, 1.0 if change == "scale" else 1.5)
    if change == "early use":
        f.result("early", q + 1.0)
    k.state_scatter(keys, slots)
    if change == "state read":
        f.result("read", f.state_gather(values, slots.clamp(0, 11), 2))
    v.state_scatter(keys if change == "one state" else values, others if change == "slots" else slots)
    if change == "keys used":
        f.result("k", k)
    f.result("y", q)
    return m


CHANGES = ("positions", "scale", "state read", "one state", "slots", "keys used", "type", "pages")


@pytest.mark.parametrize("change", ("", *CHANGES))
def test_rotations(change):
    m = rotation(change)
    work = joined(m)
    found = names(work, "turn")
    assert ("accrt.rope_scatter" in found) == (not change), found
    if not change:
        assert "accrt.rope_at" not in found and "accrt.state_scatter" not in found
    random = np.random.default_rng(SEED)
    arrays = [random.standard_normal((TOKENS, heads, SIZE)).astype(np.float32) for heads in (HEADS, KV_HEADS, KV_HEADS)]
    arrays += [random.integers(0, 99, TOKENS).astype(np.int32) for _ in range(2)] + [np.array(s, np.int32) for s in ([3, -1, 0, 11, 7], [1, 2, -1, 4, 9])]
    plain, made = Interpreter(m), Interpreter(work)
    for a, b in zip(plain.run("turn", *arrays), made.run("turn", *arrays)):
        np.testing.assert_array_equal(a, b)
    for name in ("keys", "values"):
        np.testing.assert_array_equal(plain.states[name], made.states[name])


def products(change=""):
    m, random = Module("products"), np.random.default_rng(SEED)
    x_type = "f32" if change == "f32" else "bf16"
    f = m.function("mlp")
    x = f.input("x", "f32", [m.symbol("tokens", maximum=64), 24])
    norm = m.constant("norm", random.uniform(0.5, 1.5, 24).astype(np.float32))
    gate, up, down = (m.constant(name, random.standard_normal(shape).astype(np.float32)) for name, shape in (("gate", (40, 24)), ("up", (40, 24)), ("down", (24, 40))))
    y = x.rms_norm(norm, 1e-5)
    a, b = y.linear(gate), y.linear(up)
    if change == "gate used":
        f.result("gate", a)
    if change == "norm used":
        f.result("norm", y)
    if change == "other half":  # the activation of what comes second: the halves are not in order
        a, b = b, a
    mixed = a.silu() * (b + 1.0 if change == "up changed" else b)
    f.result("y", mixed.linear(down) + x)
    m.compute["cuda"] = "" if x_type == "f32" else x_type
    return m


@pytest.mark.parametrize("change", ("", "f32", "gate used", "norm used", "other half", "up changed"))
def test_products(change):
    m = products(change)
    work = joined(m)
    made = [op for op in work.functions["mlp"].body.walk() if op.name == "accrt.step_product"]
    gated, normed = any(op.attrs["gated"] for op in made), any(op.attrs["eps"] is not None for op in made)
    assert (gated, normed) == (change in ("", "norm used"), change not in ("f32", "norm used")), (change, names(work, "mlp"))
    x = np.random.default_rng(SEED).standard_normal((TOKENS, 24)).astype(np.float32)
    for a, b in zip(Interpreter(m).run("mlp", x), Interpreter(work).run("mlp", x)):
        np.testing.assert_allclose(b, a, rtol=1e-9, atol=1e-9)


def adapted(change=""):
    """Gate and up with an adapter for each token, as a decoder's layer has them."""
    m, random = Module("adapted"), np.random.default_rng(SEED)
    f = m.function("mlp")
    tokens = m.symbol("tokens", maximum=64)
    x, index = f.input("x", "f32", [tokens, 24]), f.input("index", "i32", [tokens])
    gate, up = (m.constant(name, random.standard_normal((40, 24)).astype(np.float32)) for name in ("gate", "up"))
    kind = "f32" if change == "f32 factors" else "bf16"
    states = {name: m.state(name, kind, [3, 4, 24 if name[0] == "a" else 40]) for name in ("a.gate", "b.gate", "a.up", "b.up")}
    a, b = (x.linear(w).lora_expand(x.lora_shrink(states[f"a.{w.name}"], index), states[f"b.{w.name}"], index) for w in (gate, up))
    if change == "gate used":
        f.result("gate", a)
    if change == "other half":
        a, b = b, a
    mixed = a.silu() * (b + 1.0 if change == "up changed" else b)
    f.result("y", mixed.linear(m.constant("down", random.standard_normal((24, 40)).astype(np.float32))))
    m.compute["cuda"], m.batch_invariant = "bf16", change == "invariant"
    return m


@pytest.mark.parametrize("change", ("", "invariant", "f32 factors", "gate used", "other half", "up changed"))
def test_adapted_gates(change):
    m = adapted(change)
    work = joined(m)
    found = names(work, "mlp")
    gates = [op.attrs["gate"] for op in work.functions["mlp"].body.walk() if op.name == "accrt.lora_pair2"]
    assert gates == {"": ["silu"], "invariant": ["silu"], "f32 factors": []}.get(change, [None]), (change, found)
    groups = [op for op in work.functions["mlp"].body.walk() if op.name == "accrt.token_groups"]
    assert len(groups) == (change != "f32 factors") and work.functions["mlp"].body.ops[: len(groups)] == groups
    random, both = np.random.default_rng(SEED), [Interpreter(m), Interpreter(work)]
    for name, state in m.states.items():
        content = random.standard_normal(both[0].states[name].shape)
        for one in both:
            one.states[name][...] = kh.decode(kh.encode(content, state.type.dtype), state.type.dtype)
    given = random.standard_normal((TOKENS, 24)).astype(np.float32), np.array([2, -1, 0, 2, 1], np.int32)[:TOKENS]
    for one, other in zip(*(interpreter.run("mlp", *given) for interpreter in both)):
        np.testing.assert_allclose(other, one, rtol=1e-9, atol=1e-9)


def test_token_groups():
    """Each token stands once, with its adapter, in order; records are full but for the last one of
    an adapter, and as many as may be needed."""
    m = Module("groups")
    f = m.function("f")
    f.result("groups", f.input("index", "i32", [m.symbol("n", maximum=4096)]).token_groups(adapters=5))
    random = np.random.default_rng(SEED)
    for tokens in (0, 1, 31, 33, 300, 1500):
        index = random.integers(-2, 7, tokens).astype(np.int32)
        group = np.where((index < 0) | (index >= 5), -1, index)
        (got,) = Interpreter(m).run("f", index)
        assert got.shape == (-(-tokens // 32) + 6, 36)
        own = [(int(record[0]), record[4 : 4 + int(record[1])].astype(int).tolist()) for record in got if record[1]]
        assert [adapter for adapter, _tokens in own] == [a for a in (0, 1, 2, 3, 4, -1) for _ in range(-(-np.count_nonzero(group == a) // 32))]
        for a in range(-1, 5):
            mine = [tokens for adapter, tokens in own if adapter == a]
            assert [t for tokens in mine for t in tokens] == np.flatnonzero(group == a).tolist() and all(len(tokens) == 32 for tokens in mine[:-1])
    with pytest.raises(IRError, match="1025"):
        f.input("more", "i32", [3]).token_groups(adapters=1025)


def turned(change=""):
    """Queries, keys and values of one product, as a decoder's layer makes them."""
    m, random = Module("turned"), np.random.default_rng(SEED)
    tokens = m.symbol("tokens", maximum=64)
    f = m.function("turn")
    x, at, slots = f.input("x", "bf16", [tokens, 24]), f.input("at", "i32", [tokens]), f.input("slots", "i32", [tokens])
    value_size = 8 if change == "value size" else SIZE
    width = (HEADS + KV_HEADS) * SIZE + KV_HEADS * value_size
    weight = m.constant("w", kh.encode(random.standard_normal((width, 24)), "bf16"), "bf16")
    bias = m.constant("b", kh.encode(random.standard_normal(width), "bf16"), "bf16") if change == "bias" else None
    y = x if change == "bias" else x.rms_norm(m.constant("norm", random.uniform(0.5, 1.5, 24).astype(np.float32)), 1e-5)
    y = y.linear(weight, bias)
    if change == "product used":
        f.result("product", y)
    first, second = HEADS * SIZE, (HEADS + KV_HEADS) * SIZE
    q, k, v = y[:, :first].view([tokens, HEADS, SIZE]), y[:, first:second].view([tokens, KV_HEADS, SIZE]), y[:, second:].view([tokens, KV_HEADS, value_size])
    if change == "keys first":
        k, q = y[:, : KV_HEADS * SIZE].view([tokens, KV_HEADS, SIZE]), y[:, KV_HEADS * SIZE : second].view([tokens, HEADS, SIZE])
    if change == "part":
        v = y[:, second : second + KV_HEADS * SIZE // 2].view([tokens, KV_HEADS, SIZE // 2])
    if change == "values used":
        f.result("v", v)
    frequencies = m.constant("frequencies", (10000.0 ** (-np.arange(SIZE // 2) / (SIZE // 2))).astype(np.float32))
    keys, values = (m.state(name, "bf16", [3, 4, KV_HEADS, size]) for name, size in (("keys", SIZE), ("values", v.shape[2])))
    q, k = (part.rope_at(at, frequencies, 1.5, change == "interleaved") for part in (q, k))
    k.state_scatter(keys, slots)
    v.state_scatter(values, slots)
    f.result("y", q)
    m.batch_invariant = change == "invariant"
    return m


TURNED = ("", "bias", "interleaved", "value size")


@pytest.mark.parametrize("change", (*TURNED, "product used", "keys first", "part", "values used", "invariant"))
def test_turned_products(change):
    m = turned(change)
    work = joined(m)
    found = names(work, "turn")
    assert ("accrt.turned_product" in found) == (change in TURNED), (change, found)
    if change in TURNED:
        assert not {"accrt.rope_scatter", "accrt.step_product", "accrt.product"} & set(found), found
    random = np.random.default_rng(SEED)
    x = kh.encode(random.standard_normal((TOKENS, 24)), "bf16")
    at, slots = random.integers(0, 99, TOKENS).astype(np.int32), np.array([3, -1, 0, 11, 7], np.int32)
    plain, made = Interpreter(m), Interpreter(work)
    for a, b in zip(plain.run("turn", x, at, slots), made.run("turn", x, at, slots)):
        np.testing.assert_allclose(b, a, rtol=1e-9, atol=1e-9)
    for name in ("keys", "values"):
        np.testing.assert_allclose(made.states[name], plain.states[name], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_turned_products_of_every_type_have_kernels(dtype):
    """A model of f32 weights is built for CUDA, too: what is joined is of 16 bits."""
    m = Module("types")
    tokens, width = m.symbol("tokens", maximum=64), (HEADS + 2 * KV_HEADS) * SIZE
    f = m.function("turn")
    x, at, slots = f.input("x", dtype, [tokens, 24]), f.input("at", "i32", [tokens]), f.input("slots", "i32", [tokens])
    y = x.linear(m.constant("w", kh.encode(np.ones((width, 24)), dtype), dtype))
    parts = [part.view([tokens, -1, SIZE]) for part in y.split([HEADS * SIZE, KV_HEADS * SIZE, KV_HEADS * SIZE], -1)]
    frequencies = m.constant("frequencies", np.ones(SIZE // 2, np.float32))
    q, k = (part.rope_at(at, frequencies) for part in parts[:2])
    for name, value in (("keys", k), ("values", parts[2])):
        value.state_scatter(m.state(name, dtype, [3, 4, KV_HEADS, SIZE]), slots)
    f.result("y", q)
    assert ("accrt.turned_product" in names(joined(m), "turn")) == (dtype != "f32")
    assert driver.kernels_of(m, "cuda")


def test_turned_products_have_a_kernel_of_one_row():
    """And for more rows the product's kernels, with the turn behind them."""
    _work, planned = driver._planned(turned(), "cuda", True)
    (buffers,) = [b for b, _plan in planned if not b.function.prepare]
    (command,) = [c for c in buffers.commands if c.kind == "branch"]
    found = []

    def walk(commands, depth):
        for c in commands:
            found.extend([(depth, c.launch.kernel.name)] if c.launch is not None else [])
            for i, block in enumerate(c.blocks):
                walk(block, depth + i)

    walk([command], 0)
    by_rows = [[name for at, name in found if at == depth] for depth in range(4)]
    assert len(by_rows[0]) == 1 and by_rows[0][0].startswith("cuda.stream_row_turned_"), found
    for few in by_rows[1:3]:
        assert len(few) == 2 and few[0].startswith("cuda.stream_bf16_") and few[1].startswith("cuda.rope_scatter_"), found
    assert by_rows[3][0].startswith("cuda.rms_norm") and by_rows[3][-1].startswith("cuda.rope_scatter_"), found


def test_results_come_from_the_sums():
    """Logits are in f32: no kernel raises them from what a product has rounded."""
    m, random = Module("head"), np.random.default_rng(SEED)
    f = m.function("head")
    tokens = m.symbol("tokens", maximum=64)
    x = f.input("x", "bf16", [tokens, 24]).to_copy("f32")
    f.result("logits", x.linear(m.constant("w", random.standard_normal((50, 24)).astype(np.float32))))
    work = joined(m, cuda="bf16")
    assert names(work, "head").count("aten._to_copy") <= 1  # of the weight
    (product,) = [op for op in work.functions["head"].body.walk() if op.name == "accrt.product"]
    assert product.result.dtype == "f32" and product.operands[0].dtype == "bf16"


def test_few_rows_have_kernels_of_their_own():
    """A branch for one row, for up to 8 and for up to 16, and more is made one after the other."""
    m = products()
    _work, planned = driver._planned(m, "cuda", True)
    (buffers,) = [b for b, _plan in planned if not b.function.prepare]

    def launches(commands):
        return [[c.launch.kernel.name] if c.launch is not None else [launches(block) for block in c.blocks] for c in commands]

    gate, down = launches([c for c in buffers.commands if c.kind == "branch"])
    for made, last in ((gate, "cuda.gate_bf16_silu"), (down, None)):
        alone, (one, (two, many)) = made[0], (made[1][0][0], made[1][0][1][0])
        assert alone[0][0].startswith("cuda.stream_row_"), made
        assert all(few[0][0].startswith("cuda.stream_bf16_") for few in (one, two)), made
        assert last is None or many[-1] == [last], many


def ends(change=""):
    """Both ends of a step, as models/_blocks.py has them."""
    m, random = Module("ends"), np.random.default_rng(SEED)
    tokens, rows, changes = (m.symbol(name, maximum=64) for name in ("tokens", "rows", "changes"))
    last, table = m.state("last", "i32", [8]), m.state("table", "i32", [8, 3])
    f = m.function("first")
    given, token_rows, row_ids = f.input("given", "i32", [tokens]), f.input("token_rows", "i32", [tokens]), f.input("row_ids", "i32", [rows])
    slots, pages = (f.input(name, "i32", [changes]) for name in ("slots", "pages"))
    if change != "no write":
        pages.state_scatter(last if change == "one state" else table, slots)
    if change == "state read":
        f.result("read", f.state_gather(table, row_ids))
    ids = (given < (1 if change == "not zero" else 0)).where(f.state_gather(last, row_ids.index_select(0, token_rows)), given)
    ids = ids.clamp(0, 8 if change == "most" else 9)
    if change == "ids used":
        f.result("ids", ids)
    weight = f.constant(m.constant("weight", random.standard_normal((10, 4)).astype(np.float32)))
    f.result("x", (weight * 2.0 if change == "made weight" else weight).embedding(ids))
    if change != "no attention":
        keys, values = (m.state(name, "f32", [3, 4, 1, 16]) for name in ("keys", "values"))
        starts, lengths = f.input("row_starts", "i32", [rows + 1]), f.input("kv_lengths", "i32", [rows])
        own = f.input("other_rows", "i32", [rows]) if change == "other rows" else row_ids
        f.result("y", f.input("q", "f32", [tokens, 2, 16]).paged_attention(keys, values, table, own, starts, lengths, window=3))
    f = m.function("greedy")
    logits, slots = f.input("logits", "f32", [rows, 50]), f.input("slots", "i32", [rows])
    held = f.state_read(last) if change == "read between" else None
    token = logits.sample_greedy()
    if change == "loop":
        f.result("turned", f.repeat(3, [logits], lambda _i, x: [x * 2])[0])
    if held is not None:  # what was there before the token
        f.result("before", held + 1)
    token.state_scatter(last, slots)
    if change == "token used":
        f.result("next", token + 1)
    f.result("token", token)
    return m


ENDS = ("", "no write", "one state", "state read", "not zero", "most", "ids used", "made weight", "token used", "no attention", "other rows", "read between", "loop")


@pytest.mark.parametrize("change", ENDS)
def test_both_ends_of_a_step(change):
    m = ends(change)
    work = joined(m)
    first, greedy = names(work, "first"), names(work, "greedy")
    assert (first == ["accrt.step_tokens", "accrt.walked_attention"]) == (change in ("", "token used", "read between", "loop")), first
    assert ("accrt.paged_attention" in first) == (change not in ("", "token used", "no attention", "read between", "loop")), first
    assert ("accrt.greedy" in greedy) == (change not in ("token used", "read between", "loop")), greedy
    random = np.random.default_rng(SEED)
    plain, made = Interpreter(m), Interpreter(work)
    state = random.integers(-2, 12, 8).astype(np.int32)
    arrays = [np.array(x, np.int32) for x in ([-1, 4, -1, 99], [0, 1, 2, 1], [5, 0, 7], [3, -1, 4], [2, 1, 0])]
    if change != "no attention":
        arrays += [np.array([0, 1, 2, 4], np.int32), np.array([5, 1, 9], np.int32)] + [np.array([1, 2, 3], np.int32)] * (change == "other rows")
        arrays.append(random.standard_normal((4, 2, 16)).astype(np.float32))
    logits, slots = random.standard_normal((3, 50)).astype(np.float32), np.array([6, -1, 0], np.int32)
    for running in (plain, made):
        running.states["last"][...] = state
        for name in ("keys", "values") if change != "no attention" else ():
            running.states[name][...] = np.random.default_rng(SEED).standard_normal(running.states[name].shape)
    for function, given in (("first", arrays), ("greedy", [logits, slots])):
        for a, b in zip(plain.run(function, *given), made.run(function, *given)):
            np.testing.assert_array_equal(a, b)
        for name in ("last", "table"):
            np.testing.assert_array_equal(plain.states[name], made.states[name])


def test_each_end_of_a_step_has_few_kernels():
    found = {k.name for k in driver.kernels_of(ends(), "cuda") if "paged" not in k.name}
    assert found <= {"cuda.step_tokens", "cuda.argmax_token_f32", "cuda.argmax_part_f32", "cuda.argmax_join_token"}
