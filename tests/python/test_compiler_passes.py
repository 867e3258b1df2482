"""Passes and the IR itself: each pass keeps the meaning (by the float64 reference), and does what
it is for."""

from __future__ import annotations

import contextlib
import gc
import random

import numpy as np
import pytest

import accrt
import kernel_harness as kh
from accrt.compiler import compile, Interpreter, IRError, Module, SymbolClass, TensorType, cat, passes, verify
from accrt.compiler import driver, ir
from accrt.compiler.passes import fuse


def f32(*shape):
    return np.random.default_rng(kh.SEED).uniform(-1, 1, shape).astype(np.float32)


def block_module():
    """A transformer block in small: everything that the passes look for."""
    m = Module("block")
    n = m.symbol("n", minimum=1, maximum=512)
    f = m.function("block")
    x = f.input("x", "f32", [2, n, 16])
    weights = {name: m.constant(name, f32(*shape)) for name, shape in (
        ("q", (16, 16)), ("k", (16, 16)), ("v", (16, 16)), ("qb", (16,)), ("kb", (16,)), ("vb", (16,)), ("o", (16, 16)),
        ("up", (48, 16)), ("upb", (48,)), ("down", (16, 48)), ("gamma", (16,)), ("beta", (16,)))}  # fmt: skip
    q, k, v = (x.linear(weights[p], weights[p + "b"]).view([2, n, 4, 4]).transpose(1, 2) for p in "qkv")
    y = q.scaled_dot_product_attention(k, v).transpose(1, 2).view([2, n, 16]).linear(weights["o"]) + x
    y = y.layer_norm(weights["gamma"], weights["beta"])
    z = y.linear(weights["up"], weights["upb"]).gelu().linear(weights["down"]) + y
    f.result("z", (z * 2.0 - 1.0).tanh() * z)
    f.result("again", (z * 2.0 - 1.0).tanh())
    return m


def names(module, function="block"):
    return [op.name for op in module.functions[function].body.walk()]


@pytest.mark.parametrize("count", range(len(passes.PIPELINE) + 1))
def test_passes_keep_the_meaning(count):
    m = block_module()
    work = passes.run(m, passes.PIPELINE[:count])
    x = f32(2, 7, 16)
    for got, want in zip(Interpreter(work).run("block", x), Interpreter(m).run("block", x)):
        np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-12)


def test_passes_leave_the_module_as_it_was():
    m = block_module()
    before = str(m)
    passes.run(m)
    assert str(m) == before


def test_linears_of_one_input_become_one():
    work = passes.run(block_module())
    assert names(work).count("accrt.matmul_packed") == 4  # q, k and v; o; up; down
    columns = [op.attrs["columns"] for op in work.functions["block"].body.walk() if op.name == "accrt.matmul_packed"]
    assert columns == [48, 16, 48, 16]


def test_epilogues_are_fused():
    work = passes.run(block_module())
    found = [op for op in work.functions["block"].body.walk() if op.name == "accrt.matmul_packed"]
    assert [op.operands[2] is not None for op in found] == [True, False, True, False]
    assert [op.operands[3] is not None for op in found] == [False, True, False, True]
    assert [op.attrs["activation"] for op in found] == ["none", "none", "gelu", "none"]


def test_an_epilogue_is_not_fused_when_the_product_is_used_twice():
    m = Module("m")
    f = m.function("f")
    y = f.input("x", "f32", [3, 4]).linear(m.constant("w", f32(5, 4)))
    f.result("a", y.relu())
    f.result("b", y)
    (product,) = [op for op in passes.run(m).functions["f"].body.walk() if op.name == "accrt.matmul_packed"]
    assert product.attrs["activation"] == "none"


def test_an_activation_after_a_residual_is_not_moved_before_it():
    m = Module("m")
    f = m.function("f")
    x = f.input("x", "f32", [3, 4])
    f.result("y", (x.linear(m.constant("w", f32(4, 4))) + x).relu())
    work = passes.run(m)
    assert names(work, "f") == ["accrt.matmul_packed", "accrt.elementwise"]
    a = f32(3, 4)
    np.testing.assert_allclose(Interpreter(work).run("f", a)[0], Interpreter(m).run("f", a)[0], rtol=1e-12)


def test_chains_become_one_kernel():
    m = Module("m")
    n = m.symbol("n")
    f = m.function("f")
    x, y = f.input("x", "f32", [n, 8]), f.input("y", "f32", [8])
    f.result("z", ((x + y).exp() * 2.0 - x / (y.abs() + 1.0)).sigmoid())
    work = passes.run(m)
    assert names(work, "f") == ["accrt.elementwise"]
    assert "sigmoid(sub(mul(exp(add(" in str(work)


def test_work_of_a_smaller_shape_is_not_repeated_when_it_is_dear():
    m = Module("m")
    f = m.function("f")
    x, y = f.input("x", "f32", [64, 8]), f.input("y", "f32", [8])
    f.result("a", x * y.exp())
    f.result("b", x * (y + 1.0))
    work = passes.run(m)
    assert names(work, "f") == ["accrt.elementwise"] * 2
    assert [str(op.result.type) for op in work.functions["f"].body.walk()] == ["f32[8]", "f32[64, 8]"]


@pytest.mark.parametrize("pipeline", ["PIPELINE", "CUDA_PIPELINE"])
def test_what_weights_make_is_told_apart_by_how_it_is_made(pipeline):
    """The same operations of the same types, with other operands: two constants."""
    m = Module("m")
    f = m.function("f")
    first = f.constant(m.constant("w1", f32(4, 4))).softmax(-1)
    second = f.constant(m.constant("w2", f32(4, 4))).cumsum(-1)
    product, x = first.matmul(second), f.input("x", "f32", [4])
    f.result("p", x + product.matmul(first).sum([0]))
    f.result("q", x + product.matmul(second).sum([0]))
    work, a = passes.run(m, getattr(passes, pipeline)), f32(4)
    for got, want in zip(Interpreter(work).run("f", a), Interpreter(m).run("f", a)):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


# ---- Chains that read the same -------------------------------------------------------------------


def joined(build, *inputs, **symbols):
    """The names of what is left of a function, after the reference has found the same."""
    m = Module("m")
    n = m.symbol("n", maximum=1 << 20)
    build(m, m.function("f"), n)
    work = passes.run(m)
    for got, want in zip(Interpreter(work).run("f", *inputs), Interpreter(m).run("f", *inputs)):
        np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-12)
    return [op.name.partition(".")[2] for op in work.functions["f"].body.walk()]


def test_what_reads_the_same_is_one_kernel():
    """As the backward of a gated unit: two results of three tensors, by way of a third value that
    both use."""
    def gated(m, f, n):
        dy, gate, up = (f.input(name, "f32", [n, 8]) for name in ("dy", "gate", "up"))
        s = gate.sigmoid()
        f.result("a", dy * up * s * (gate * (1.0 - s) + 1.0))
        f.result("b", dy * gate * s)

    assert joined(gated, f32(3, 8), f32(3, 8), f32(3, 8)) == ["elementwise"]

    def kept(m, f, n):  # what both are made of is a result, too
        x = f.input("x", "f32", [n, 8]).exp()
        f.result("x", x)
        f.result("a", x + 1.0)
        f.result("b", x.sigmoid() * f.input("y", "f32", [8]))

    assert joined(kept, f32(3, 8), f32(8)) == ["elementwise"]


def test_halves_that_turn_are_one_kernel():
    def rope(m, f, n):
        x, c, s = f.input("x", "bf16", [2, n, 8]), f.input("c", "f32", [n, 4]), f.input("s", "f32", [n, 4])
        a, b = (x[..., :4].to_copy("f32"), x[..., 4:].to_copy("f32"))
        f.result("y", cat([(a * c - b * s).to_copy("bf16"), (b * c + a * s).to_copy("bf16")], -1))

    assert sorted(joined(rope, f32(2, 3, 8), f32(3, 4), f32(3, 4))) == ["cat", "elementwise", "slice", "slice"]


def test_what_stays_apart():
    def other_shapes(m, f, n):
        x = f.input("x", "f32", [n, 8])
        f.result("a", x.exp())
        f.result("b", x[:, :4].exp())

    assert joined(other_shapes, f32(3, 8)).count("elementwise") == 2

    def used_between(m, f, n):  # the second needs what is made of the first
        x = f.input("x", "f32", [n, 8])
        a = x.exp()
        f.result("a", a)
        f.result("b", x * a.sum(-1, True))

    assert joined(used_between, f32(3, 8)) == ["elementwise", "sum", "elementwise"]

    def of_weights(m, f, n):  # is calculated when the program is made
        w = f.constant(m.constant("w", f32(8)))
        f.result("a", w.exp() * f.input("x", "f32", [n, 8]))
        f.result("b", w.exp() * 2.0)

    assert joined(of_weights, f32(3, 8)).count("elementwise") == 1

    def written(m, f, n):
        x, y = f.input("x", "f32", [8, 8], access="read_write"), f.input("y", "f32", [8, 8])
        f.result("a", x.t() + y)
        (y + 1.0).write_input("x")

    assert joined(written, f32(8, 8), f32(8, 8)).count("elementwise") == 2

    def states(m, f, n):
        state, y = m.state("s", "f32", [4, 8]), f.input("y", "f32", [3, 8])
        f.result("a", f.state_read(state)[1:] + y)
        (y + 1.0).state_write(state, [0, 0])
        f.result("b", y * 2.0)

    assert joined(states, f32(3, 8)).count("elementwise") == 3


def joined_from_scratch(function):
    """What the pass does, looked at from the beginning after each join."""
    again = True
    while again:
        again = False
        used, derived = fuse.uses(function), fuse.constant_derived(function)
        for block in function.body.blocks():
            order = {id(op): at for at, op in enumerate(block.ops)}
            for second in list(block.ops):
                near = (op for op in fuse._neighbours(second, used) if fuse._may_join(op, second, order, used, derived))
                first = next(near, None)
                if first is not None and fuse._join(first, second, used):
                    again = True
                    break
            if again:
                break


def random_chains(seed):
    chance = random.Random(seed)
    m = Module("chains")
    f = m.function("f")
    values = [f.input(f"x{i}", "f32", chance.choice(([8], [4, 8]))) for i in range(chance.randint(1, 4))]
    for _ in range(chance.randint(1, 100)):
        a, b = chance.choice(values[-chance.choice((1, 2, 5, 100)):]), chance.choice(values)
        makes = (lambda: a + b, lambda: a * b, lambda: a - b, lambda: a.exp(), lambda: (a + 1.5).tanh(), lambda: a.softmax(-1), lambda: a.sum(-1, keepdim=True))
        values.append(chance.choices(makes, (7, 5, 2, 2, 2, 1, 1))[0]())
    for i, value in enumerate(chance.sample(values, min(len(values), chance.randint(1, 6)))):
        f.result(f"r{i}", value)
    for function in m.functions.values():
        fuse._as_programs(function)
        fuse._merge(function)
    return m


def test_joins_are_those_that_a_look_from_the_beginning_finds():
    count = 0
    for seed in range(kh.SEED, kh.SEED + 20):
        by_parts, from_scratch = random_chains(seed), random_chains(seed)
        for function in by_parts.functions.values():
            count += len(function.body.ops)
            fuse._join_all(function)
            count -= len(function.body.ops)
        for function in from_scratch.functions.values():
            joined_from_scratch(function)
        assert str(by_parts) == str(from_scratch), f"seed {seed}"
    assert count > 100


def test_positions_are_not_fused_into_another_shape():
    m = Module("m")
    n = m.symbol("n")
    f = m.function("f")
    x = f.input("x", "f32", [n, 8])
    f.result("y", x + f.arange(8, dtype="f32"))
    work = passes.run(m)
    assert names(work, "f") == ["accrt.elementwise"] * 2
    a = f32(3, 8)
    np.testing.assert_array_equal(Interpreter(work).run("f", a)[0], a.astype(np.float64) + np.arange(8))


def test_fusion_does_not_cross_a_write_to_what_is_read():
    m = Module("m")
    state = m.state("s", "f32", [4])
    f = m.function("f")
    x = f.input("x", "f32", [4])
    old = f.state_read(state) + 1.0
    x.state_write(state, [0])
    f.result("y", old * 2.0)
    work, oracle = Interpreter(passes.run(m)), Interpreter(m)
    for _ in range(2):
        a = f32(4)
        np.testing.assert_array_equal(work.run("f", a)[0], oracle.run("f", a)[0])


def test_constants_are_prepared_at_load():
    work = passes.run(block_module())
    prepared = [f for f in work.functions.values() if f.prepare]
    assert len(prepared) == 5  # four packed weights and the joined bias
    for function in prepared:
        assert all(v.constant.data is not None for v in function.constants.values())


def test_constants_made_from_constants_made_at_load():
    m = Module("m")
    f = m.function("f")
    x = f.input("x", "f32", [2, 4])
    doubled = f.constant(m.constant("w", f32(3, 4))) * 2.0
    f.result("y", x.linear(doubled))
    f.result("z", x.sum(1, True) + doubled.sum(1))
    work = passes.run(m)
    a = f32(2, 4)
    for got, want in zip(Interpreter(work).run("f", a), Interpreter(m).run("f", a)):
        np.testing.assert_allclose(got, want, rtol=1e-12)
    for function in [f for f in work.functions.values() if f.prepare]:
        assert all(v.constant.data is not None for v in function.constants.values())


def test_equal_work_is_done_once_and_unused_work_never():
    m = Module("m")
    f = m.function("f")
    x = f.input("x", "f32", [2, 4])
    x.exp().sum(1)
    f.result("a", x.softmax(-1))
    f.result("b", x.softmax(-1))
    assert names(passes.run(m), "f") == ["aten.softmax"]


def test_reads_around_a_write_are_not_shared():
    m = Module("m")
    f = m.function("f")
    y = f.input("y", "f32", [4], access="read_write")
    before = y.sum(0)
    (y * 3.0).write_input("y")
    f.result("before", before)
    f.result("after", y.sum(0))
    work = passes.run(m)
    a = f32(4)
    for got, want in zip(Interpreter(work).run("f", a), Interpreter(m).run("f", a)):
        np.testing.assert_allclose(got, want, rtol=1e-12)


def test_views_are_joined():
    m = Module("m")
    f = m.function("f")
    x = f.input("x", "f32", [2, 3, 4])
    f.result("y", x.permute([1, 2, 0]).permute([2, 0, 1]).exp().view([6, 4]).view([24]))
    work = passes.run(m)
    assert names(work, "f") == ["accrt.elementwise", "aten.view"]


# ---- The verifier ----


def one():
    m = Module("m")
    f = m.function("f")
    x = f.input("x", "f32", [2, 4])
    f.result("y", x.exp().relu())
    return m, f


def test_verifier_finds_use_before_definition():
    m, f = one()
    f.body.ops.reverse()
    with pytest.raises(IRError, match="aten.relu.*not defined before it"):
        verify(m)


def test_verifier_finds_a_wrong_type():
    m, f = one()
    f.body.ops[0].result.type = TensorType("f32", (2, 5))
    with pytest.raises(IRError, match="aten.exp.*follow"):
        verify(m)


@pytest.mark.parametrize("change, said", [
    (lambda m, f, ops: ops["aten.permute"].attrs.update(dims=(0, 1)), "permute.*follow"),
    (lambda m, f, ops: ops["aten.permute"].operands.__setitem__(0, f.inputs[1].value), "permute.*follow"),
    (lambda m, f, ops: setattr(ops["aten.permute"].result, "type", TensorType("f32", (4, 3))), "permute.*follow"),
    (lambda m, f, ops: setattr(f.inputs[0].value, "type", TensorType("f32", (2, 5))), "permute.*follow"),
    (lambda m, f, ops: setattr(ops["aten.permute"], "name", "aten.exp"), "exp.*follow"),
    (lambda m, f, ops: m.states.clear(), "state_read.*of another module"),
])  # fmt: skip
def test_verifier_finds_what_changed_since_it_last_looked(change, said):
    """It infers types again, unless what they follow from are the same objects."""
    m = Module("m")
    f = m.function("f")
    x, _other = f.input("x", "f32", [2, 4]), f.input("other", "f32", [3, 4])
    f.result("y", x.permute((1, 0)))
    f.result("s", f.state_read(m.state("s", "f32", [2, 4])))
    for _ in range(2):
        verify(m)
    change(m, f, {op.name: op for op in f.body.ops})
    with pytest.raises(IRError, match=said):
        verify(m)


def test_verifier_finds_a_result_without_definition():
    m, f = one()
    f.body.ops.pop()
    with pytest.raises(IRError, match="result 'y' is not defined"):
        verify(m)


def test_a_pass_that_breaks_the_module_is_named():
    m, _f = one()

    def vandal(module):
        module.functions["f"].body.ops.pop()

    with pytest.raises(AssertionError, match="pass vandal broke the module"):
        passes.run(m, (("vandal", vandal),))


def test_copies_are_independent():
    m = block_module()
    copy = passes.clone(m)
    copy.functions["block"].body.ops.clear()
    verify(m)


# ---- Mistakes of module builders ----

MISTAKES = [
    (lambda f, x, n: x.add(f.input("y", "f32", [n, 3])), "do not broadcast"),
    (lambda f, x, n: x.matmul(f.input("y", "f32", [5, 2])), "inner dimension"),
    (lambda f, x, n: x.view([n, 5]), "not proved to equal"),
    (lambda f, x, n: x.softmax(2), "dimension 2 of a tensor of rank 2"),
    (lambda f, x, n: x.permute([0, 0]), "permutation"),
    (lambda f, x, n: x.slice(1, 6, 2), "slice"),
    (lambda f, x, n: x.select(1, 9), "index 9"),
    (lambda f, x, n: x.squeeze(0), "squeeze of dimension 0 .* may be 1 and may be more"),
    (lambda f, x, n: x.to_copy("f33"), "no data type 'f33'"),
    (lambda f, x, n: x.mean(1.5), "dim is 1.5"),
    (lambda f, x, n: x.embedding(x), "indices of f32"),
    (lambda f, x, n: x.rope(), None),
    (lambda f, x, n: x.softmax(-1, 5), "arguments"),
    (lambda f, x, n: x.gelu(approximate="odd"), "approximated"),
    (lambda f, x, n: cat([x, f.input("y", "f64", [n, 8])]), "cat of"),
    (lambda f, x, n: f.input("x", "f32", [2]), "used twice"),
    (lambda f, x, n: f.repeat(3, [x], lambda i, y: y.sum(1)), "bodies yield"),
    (lambda f, x, n: f.cond(n, lambda: x, lambda: x.sum(1)), "bodies yield"),
    (lambda f, x, n: x.write_input("x"), "no read_write input"),
    (lambda f, x, n: f.scalar("s", n + 1), "no symbol"),
]


@pytest.mark.parametrize("index", range(len(MISTAKES)))
def test_mistake(index):
    mistake, message = MISTAKES[index]
    m = Module("m")
    n = m.symbol("n")
    f = m.function("f")
    x = f.input("x", "f32", [n, 8 if message else 7])
    with pytest.raises(IRError, match=message):
        mistake(f, x, n)


def test_text_shows_everything():
    m = block_module()
    m.symbol("position", SymbolClass.RUNTIME, maximum=9)
    m.symbol("b", SymbolClass.BUCKET, maximum=8, buckets=[4, 8])
    m.state("cache", "bf16", [4, 4])
    f = m.function("loop", internal=True)
    x = f.input("x", "f32", [4], access="donated")
    with f.label("body"):
        (y,) = f.repeat(3, [x], lambda i, v: v + f.full((), i, "f32"))
        (z,) = f.cond(ir.ex.symbol("n"), lambda: y, lambda: x)
    f.result("z", z)
    text = str(m)
    for part in (
        "symbol position: runtime [0, 9]", "symbol b: bucket [0, 8], buckets [4, 8]", "state @cache: bf16[4, 4]",
        "internal function loop(%x: donated f32[4])", "accrt.repeat(%x, count=3", "carries", "yield", "} else {", "# body",
        "aten.layer_norm(", "constant @gamma: f32[16]",
    ):  # fmt: skip
        assert part in text, f"{part!r} is missing in\n{text}"


def cache_module(count):
    """Keys of two rows of heads, some places of which are written, and all read."""
    m = Module("cache")
    keys = m.state("keys", "f32", [2, 3, 5, 4])
    f = m.function("append")
    n = m.symbol("n", minimum=1, maximum=8) if count is None else count
    rows, places = f.input("rows", "f32", [2, 3, n, 4]), f.input("places", "i64", [n])
    old = f.state_read(keys)
    f.result("before", old.sum())
    new = old.scatter(places, rows, 2)
    f.result("all", new * 1.0)
    f.result("new", new.sum(-1) + old.sum(-1))
    new.view([2, 3, 5, 4]).state_write(keys, [0, 0, 0, 0])
    return m


@pytest.mark.parametrize("count, family, there", [(None, "host", True), (1, "host", True), (1, "cuda", True), (None, "cuda", False)])
def test_places_of_a_state_are_written_where_they_lie(count, family, there):
    """On CUDA one place alone: of several rows for one place the last is to stay, which is what
    accrt.scatter does."""
    made = names(passes.run(cache_module(count), passes.PIPELINES[family]), "append")
    assert made.count("accrt.state_scatter") == int(there) and made.count("accrt.state_write") == int(not there)
    assert ("accrt.scatter" in made) == (not there)


def test_places_of_a_state_mean_the_same():
    """What was read before has its old content; of two rows for one place the last stays; a place
    outside fails the call."""
    m = cache_module(None)
    session = accrt.Program(accrt.Bundle(compile(m, targets=kh.host_targets()[-1:]), accrt.Instance("all"))).session()
    oracle = Interpreter(m)
    for places in ([4], [0, 2, 0], [3, 3]):
        given = f32(2, 3, len(places), 4) + places[0], np.array(places, np.int64)
        for got, want in zip(session.append(*given), oracle.run("append", *given)):
            np.testing.assert_allclose(np.asarray(got), want, rtol=1e-5, atol=1e-5)
    for place in (-1, 5):
        with pytest.raises(accrt.errors.KernelError, match="slot 30 is outside a state of 30 rows"):
            session.append(f32(2, 3, 1, 4), np.array([place], np.int64))
        session.reset()


def test_a_state_that_is_written_twice_is_written_as_a_whole():
    m = Module("twice")
    state = m.state("s", "f32", [4, 2])
    f = m.function("f")
    x, places = f.input("x", "f32", [1, 2]), f.input("places", "i64", [1])
    f.state_read(state).scatter(places, x, 0).state_write(state, [0, 0])
    f.state_read(state).scatter(places, x * 2.0, 0).state_write(state, [0, 0])
    f.result("y", x)
    assert "accrt.state_scatter" not in names(passes.run(m), "f")


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_pauses_while_functions_are_planned(monkeypatch, enabled, fails):
    """And is as it was afterwards, also when a pass fails."""
    seen = []
    run = passes.run

    def watched(*arguments):
        seen.append(gc.isenabled())
        if fails:
            raise IRError("a pass that fails")
        return run(*arguments)

    monkeypatch.setattr(passes, "run", watched)
    was = gc.isenabled()
    (gc.enable if enabled else gc.disable)()
    try:
        with contextlib.suppress(IRError):
            driver._planned(block_module(), "host", True)
        assert seen == [False] and gc.isenabled() == enabled
    finally:
        (gc.enable if was else gc.disable)()


def test_weights_that_meet_again_are_gone_through_once():
    """40 steps, each of which has what is before it twice: not 2^40 ways."""
    m = Module("m")
    f = m.function("forward")
    x, w = f.input("x", "f32", [4]), f.constant(m.constant("w", np.ones(4, dtype=np.float32)))
    for _ in range(1200):  # nor as deep as Python goes
        w = w * w + w * 0.5 - w
    f.result("y", x + w)
    passes.run(m, passes.PIPELINE)
