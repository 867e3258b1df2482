"""LoRA adapters: compiled optional inputs that a session's adapter fills, checked against numpy;
swapped, shared, refused."""
from __future__ import annotations

import json
import os
import re
import threading

import numpy as np
import pytest

import accrt
from accrt import bundle_writer as bw
from accrt.compiler import IRError, Module, SymbolClass, compile
from safetensors_file import safetensors_bytes

pytestmark = pytest.mark.quick_kernels  # in a run of the whole folder

N, K, MAX_RANK = 24, 40, 16
SLOTS = "layers.0.q_proj.lora_{}.weight"


def numbers(seed):
    return np.random.default_rng(seed)


@pytest.fixture(scope="module")
def weight():
    return numbers(1).standard_normal((N, K), np.float32)


@pytest.fixture(scope="module")
def loaded(tmp_path_factory, weight):
    """A linear layer y = x W^T, + x (B A)^T where A and B are given, B scaled by alpha / rank. No
    memory of the call depends on the rank, which has no value when neither is given."""
    m = Module("lora")
    t, r = m.symbol("t", minimum=1, maximum=32), m.symbol("r", minimum=1, maximum=MAX_RANK)
    f = m.function("linear")
    x = f.input("x", "f32", [t, K])
    a = f.input("a", "f32", [r, K], optional=True, adapter=SLOTS.format("A"))
    b = f.input("b", "f32", [N, r], optional=True, adapter=SLOTS.format("B"), scaled=True)
    base = x.matmul(f.constant(m.constant("w", weight)).transpose(1, 0))
    (y,) = f.cond(f.present(a) * f.present(b), lambda: base + x.matmul(b.matmul(a).transpose(1, 0)), lambda: base * 1.0)
    f.result("y", y)
    assert f"%b: f32[{N}, r] adapter '{SLOTS.format('B')}' scaled" in str(m)
    path = tmp_path_factory.mktemp("lora") / "lora.accx"
    compile(m, path, targets=["x86-64-v3"])
    instance = accrt.Instance("all", options={"host.threads": 2})
    bundle = accrt.Bundle(path, instance)
    assert bundle.adapters == {SLOTS.format("A"): "a", SLOTS.format("B"): "b"}
    return bundle.program()


def pair(rank, seed):
    rng = numbers(seed)
    return rng.standard_normal((rank, K), np.float32), rng.standard_normal((N, rank), np.float32)


def file_of(a, b, prefix="base_model.model.", **more):
    return safetensors_bytes({prefix + SLOTS.format("A"): a, prefix + SLOTS.format("B"): b, **more})


def weights(program, data):
    return accrt.Weights(data, program.bundle.instance)


def expected(weight, x, a=None, b=None, factor=1.0):
    y = x.astype(np.float64) @ weight.T.astype(np.float64)
    return y if a is None else y + x.astype(np.float64) @ a.T.astype(np.float64) @ (b.astype(np.float64) * np.float64(np.float32(factor))).T


def close(got, wanted):
    """Sums of at most K + rank products of numbers of about 1: f32 rounds each by 2^-24 of at most
    some 100."""
    np.testing.assert_allclose(np.asarray(got), wanted, rtol=0, atol=2e-3)


def test_base_rank_4_rank_16_and_back(loaded, weight):
    x = numbers(5).standard_normal((7, K), np.float32)
    session = loaded.session()
    call = session.linear.bind(x)
    close(call(), expected(weight, x))
    for rank, alpha in ((4, 8), (16, 16), (4, 2)):
        a, b = pair(rank, rank)
        session.adapter = loaded.load_adapter(weights(loaded, file_of(a, b)), alpha=alpha)
        assert session.adapter is not None
        close(call(), expected(weight, x, a, b, alpha / rank))
        close(session.linear(x), expected(weight, x, a, b, alpha / rank))
    session.adapter = None
    close(call(), expected(weight, x))


def test_two_sessions_two_adapters(loaded, weight):
    x = numbers(6).standard_normal((3, K), np.float32)
    sessions = [loaded.session(), loaded.session(), loaded.session()]
    pairs = [pair(4, 10), pair(16, 11), (None, None)]
    for session, (a, b) in zip(sessions, pairs):
        if a is not None:
            session.adapter = loaded.load_adapter(weights(loaded, file_of(a, b)), alpha=4)
    for _ in range(3):
        for session, (a, b) in zip(sessions, pairs):
            close(session.linear(x), expected(weight, x, a, b, 4 / len(a) if a is not None else 1))
    clone = sessions[0].clone()
    assert clone.adapter is sessions[0].adapter
    close(clone.linear(x), expected(weight, x, *pairs[0], 1))


#: How the rank's symbol is planned, or where the two products are.
KINDS = ("specialize", "bucket", "runtime", "called", "looped")


def module(weight):
    """y = x W^T + (x A^T) B^T as it is written in papers: what lies between the two products is
    sized by the rank, which has no value without an adapter. A function for each class of symbols;
    one that calls another; one with a loop that runs once."""
    m = Module("lora")
    classes = {"bucket": {"symbol_class": SymbolClass.BUCKET, "buckets": (8, MAX_RANK)}, "runtime": {"symbol_class": SymbolClass.RUNTIME}}
    t, w = m.symbol("t", minimum=1, maximum=32), m.constant("w", weight)
    for kind in KINDS:
        r = m.symbol(f"r.{kind}", minimum=1, maximum=MAX_RANK, **classes.get(kind, {}))
        if kind == "called":
            inner = m.function("low", internal=True)
            low_x, low_a, low_b = inner.input("u", "f32", [t, K]), inner.input("v", "f32", [r, K]), inner.input("w", "f32", [N, r])
            inner.result("y", low_x.matmul(low_a.transpose(1, 0)).matmul(low_b.transpose(1, 0)))
        f = m.function(kind)
        x = f.input("x", "f32", [t, K])
        a = f.input("a", "f32", [r, K], optional=True, adapter=SLOTS.format("A"))
        b = f.input("b", "f32", [N, r], optional=True, adapter=SLOTS.format("B"), scaled=True)
        base = x.linear(w)

        def adapted(f=f, x=x, a=a, b=b, base=base, kind=kind):
            low = lambda: x.linear(a).linear(b)  # noqa: E731
            if kind == "called":
                return base + f.call(inner, x, a, b)[0]
            if kind == "looped":
                return f.repeat(1, [base], lambda _i, y: [y + low()])
            return base + low()

        (y,) = f.cond(f.present(a) * f.present(b), adapted, lambda base=base: base)
        f.result("y", y)
    return m


@pytest.fixture(scope="module")
def natural(weight):
    return accrt.Bundle(compile(module(weight), targets=["x86-64-v3"]), accrt.Instance("all", options={"host.threads": 2})).program()


@pytest.mark.parametrize("kind", KINDS)
def test_memory_sized_by_the_rank(natural, weight, kind):
    check_ranks(natural, weight, kind)


def check_ranks(program, weight, kind):
    """No adapter, rank 4, rank 16, and no adapter again; two sessions; arguments of the caller's
    own; one of the pair alone."""
    x = numbers(15).standard_normal((7, K), np.float32)
    functions = [getattr(session, kind) for session in (program.session(), program.session())]
    calls = [function.bind(x) for function in functions]
    pairs = {rank: pair(rank, 80 + rank) for rank in (4, 16)}
    adapters = {rank: program.load_adapter(weights(program, file_of(*ab)), alpha=8) for rank, ab in pairs.items()}
    for ranks in ((None, None), (4, None), (16, 4), (4, 16), (None, 16), (None, None)):
        for function, call, rank in zip(functions, calls, ranks):
            function.session.adapter = adapters.get(rank)
            wanted = expected(weight, x, *pairs[rank], 8 / rank) if rank else expected(weight, x)
            close(call(), wanted)
            close(function(x), wanted)
    a, b = pairs[4]
    close(functions[0](x, a=a, b=b), expected(weight, x, a, b))
    close(functions[0](x, a=a), expected(weight, x))
    close(functions[0](x, b=b), expected(weight, x))


def test_what_the_caller_gives_wins(loaded, weight):
    x = numbers(7).standard_normal((3, K), np.float32)
    session = loaded.session()
    a, b = pair(4, 20)
    session.adapter = loaded.load_adapter(weights(loaded, file_of(a, b)), alpha=4)
    own_a, own_b = pair(4, 21)
    call = session.linear.bind(x)
    close(call(), expected(weight, x, a, b))
    call.set("a", own_a)
    close(call(), expected(weight, x, own_a, b))
    call.set("b", own_b)
    close(call(), expected(weight, x, own_a, own_b))
    call.set("a", None)
    call.set("b", None)
    close(call(), expected(weight, x, a, b))
    session.adapter = None
    close(call(), expected(weight, x))
    call.set("a", own_a)
    call.set("b", own_b)
    session.adapter = loaded.load_adapter(weights(loaded, file_of(*pair(16, 22))), alpha=4)
    close(call(), expected(weight, x, own_a, own_b))


def test_swaps_while_calls_are_in_flight(loaded, weight):
    """Each of many enqueued runs has the adapter that was set when it was enqueued, though the
    adapter is gone by then."""
    x = numbers(8).standard_normal((5, K), np.float32)
    session = loaded.session()
    sources = [pair(r, 30 + r) for r in (1, 4, 16)]
    waiting = []
    for i in range(60):
        a, b = sources[i % 3]
        session.adapter = loaded.load_adapter(weights(loaded, file_of(a, b)), alpha=len(a))
        call = session.linear.bind(x)
        call.submit()
        waiting.append((call, a, b))
    session.adapter = None
    session.stream.synchronize()
    for call, a, b in waiting:
        close(call.results(), expected(weight, x, a, b))


def test_threads(loaded, weight):
    x = numbers(9).standard_normal((2, K), np.float32)
    adapters = [loaded.load_adapter(weights(loaded, file_of(*pair(4, 40 + i))), alpha=4) for i in range(2)]
    failures = []

    def work(index):
        try:
            session = loaded.session()
            for i in range(40):
                which = (i + index) % 3
                session.adapter = adapters[which] if which < 2 else None
                close(session.linear(x), expected(weight, x, *(pair(4, 40 + which) if which < 2 else ())))
        except BaseException as error:  # noqa: BLE001 - told by the main thread
            failures.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_names_and_factors(loaded, weight, tmp_path):
    """PEFT's prefix or none; alpha from the caller, PEFT's config, the file's metadata; rslora."""
    x = numbers(12).standard_normal((3, K), np.float32)
    a, b = pair(4, 50)
    session = loaded.session()

    def run(adapter, factor):
        session.adapter = adapter
        close(session.linear(x), expected(weight, x, a, b, factor))

    run(loaded.load_adapter(weights(loaded, file_of(a, b, prefix="")), alpha=6), 6 / 4)
    run(loaded.load_adapter(weights(loaded, file_of(a, b)), scale=0.3), 0.3)
    run(loaded.load_adapter(weights(loaded, safetensors_bytes({SLOTS.format("A"): a, SLOTS.format("B"): b}, {"lora_alpha": "12"}))), 3)
    (tmp_path / "adapter_model.safetensors").write_bytes(file_of(a, b))
    for config, factor in (({"lora_alpha": 8, "r": 4}, 2), ({"lora_alpha": 8, "r": 4, "use_rslora": True}, 4)):
        (tmp_path / "adapter_config.json").write_text(json.dumps(config))
        run(loaded.load_adapter(tmp_path), factor)
        run(loaded.load_adapter(tmp_path / "adapter_model.safetensors"), factor)
        run(loaded.load_adapter(tmp_path, scale=1.0), 1)
    (tmp_path / "adapter_config.json").write_text(json.dumps({"lora_alpha": 8, "r": 4, "rank_pattern": {"q": 8}}))
    with pytest.raises(ValueError, match="rank_pattern"):
        loaded.load_adapter(tmp_path)
    run(loaded.load_adapter(weights(loaded, file_of(a, b, other=a)), alpha=4, partial=True), 1)


@pytest.mark.parametrize("kind", ["f16", "bf16", "f32"])
def test_scaling_is_one_rounded_product(tmp_path, kind):
    """Every value times the factor in f32, then to the nearest of its type: all 65,536 bits of the
    narrow types."""
    bundle = bw.BundleWriter()
    g = bundle.function("look")
    rank = bundle.symbol("r", minimum=1, maximum=1 << 17)
    slot = g.input("b", kind, [rank], optional=True)
    width = 4 if kind == "f32" else 2
    count = 65536
    y = g.result("y", "u8", [width * count])
    g.body.branch(g.present(slot)).then.copy(slot.read(), y.write(), width * count)
    bundle.adapter("b", "b", scaled=True)
    bundle.write(tmp_path / "m.accx")
    bits = np.arange(count, dtype=np.uint32)
    if kind == "f32":
        values = (bits * np.uint32(65537)).view(np.float32)
        raw = values
    elif kind == "f16":
        raw = bits.astype(np.uint16).view(np.float16)
        values = raw.astype(np.float32)
    else:
        raw = bits.astype(np.uint16)
        values = (bits << 16).view(np.float32)
    bundle = accrt.Bundle(tmp_path / "m.accx", accrt.Instance("all"))
    program = bundle.program(bundle.instance.device(os.environ.get("ACCRT_DEVICE", "host")))
    source = accrt.Weights(safetensors_bytes({"b": (kind.upper(), raw)}), program.bundle.instance)
    session = program.session()
    factor = np.float32(0.3)
    session.adapter = program.load_adapter(source, scale=0.3)
    got = session.look().numpy()
    with np.errstate(all="ignore"):
        product = values * factor
    if kind == "f32":
        wanted, got = product, got.view(np.float32)
    elif kind == "f16":
        with np.errstate(all="ignore"):
            wanted, got = product.astype(np.float16).astype(np.float32), got.view(np.float16).astype(np.float32)
    else:
        b = product.view(np.uint32).astype(np.uint64)
        wanted = (((b + 0x7FFF + (b >> 16 & 1)) >> 16 << 16).astype(np.uint32)).view(np.float32)
        got = (got.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    good = np.isfinite(product)
    assert np.array_equal(got[good], wanted[good])


def test_refusals(loaded, instance, tmp_path):
    a, b = pair(4, 60)
    name_a, name_b = SLOTS.format("A"), SLOTS.format("B")

    def refused(kind, text, data, **options):
        with pytest.raises(kind, match=text):
            loaded.load_adapter(weights(loaded, data) if isinstance(data, bytes) else data, **options)

    refused(accrt.NotFoundError, f"has '{re.escape(name_a)}' and not the other of the pair, '{re.escape(name_b)}'", safetensors_bytes({name_a: a}))
    refused(accrt.NotFoundError, "has no adapter tensor of", safetensors_bytes({"x": a}))
    refused(accrt.NotFoundError, "'other' is no adapter tensor of", file_of(a, b, other=a))
    refused(accrt.NotFoundError, "has no adapter tensor of", safetensors_bytes({"x": a}), partial=True)
    refused(accrt.InvalidArgumentError, "is to be scaled by alpha / rank, and alpha is 0", file_of(a, b))
    refused(accrt.TypeMismatchError, r"'.*lora_A.weight' is F16 of rank 2, but input 'a' of function 'linear' is f32 of rank 2",
            file_of(a.astype(np.float16), b), alpha=1)
    refused(accrt.TypeMismatchError, "of rank 1", file_of(a.ravel(), b), alpha=1)
    refused(accrt.ShapeMismatchError, f"lora_A.weight', dimension 1: got {K - 1}, the input has {K}", file_of(a[:, 1:], b), alpha=1)
    refused(accrt.ShapeMismatchError, "lora_B.weight', dimension 1: got 3, another adapter tensor says 4", file_of(a, b[:, 1:]), alpha=1)
    refused(accrt.ShapeMismatchError, "symbol 'r': got 17, allowed: 1 to 16", file_of(*pair(17, 1)), alpha=1)
    refused(accrt.InvalidArgumentError, "another instance", accrt.Weights(file_of(a, b), instance), alpha=1)
    other = loaded.bundle.program()
    with pytest.raises(accrt.InvalidArgumentError, match="another program"):
        loaded.session().adapter = other.load_adapter(weights(loaded, file_of(a, b)), alpha=1)
    plain = bw.BundleWriter()
    f = plain.function("f")
    f.body.fill(f.result("y", "f32", [4]).write())
    plain.write(tmp_path / "plain.accx")
    without = accrt.Bundle(tmp_path / "plain.accx", instance).program()
    with pytest.raises(accrt.NotFoundError, match="has no adapter tensor of"):
        without.load_adapter(accrt.Weights(file_of(a, b), instance), alpha=1)


def test_adapter_outlives_what_made_it(loaded, weight):
    """Closed by the user while a session has it; a session closed with calls in flight."""
    x = numbers(14).standard_normal((3, K), np.float32)
    a, b = pair(4, 70)
    session = loaded.session()
    adapter = loaded.load_adapter(weights(loaded, file_of(a, b)), alpha=4)
    session.adapter = adapter
    adapter.close()
    close(session.linear(x), expected(weight, x, a, b))
    session.close()


def test_slots_that_the_compiler_refuses():
    m = Module("slots")
    r = m.symbol("r", minimum=1, maximum=8)
    f = m.function("f")
    for words, *type_, how in (
        ("adapters fill optional inputs", "f32", [4], {"adapter": "a"}),
        ("scale those that they fill", "f32", [4], {"optional": True, "scaled": True}),
        (r"f32\[4, 8\] is not scaled by alpha / rank: .* whose first symbol is the rank", "f32", [4, 8], {"optional": True, "adapter": "a", "scaled": True}),
        (r"f64\[4, r\] is not scaled", "f64", [4, r], {"optional": True, "adapter": "a", "scaled": True}),
    ):  # fmt: skip
        with pytest.raises(IRError, match="function 'f', input 'a': .*" + words):
            f.input("a", *type_, **how)


@pytest.mark.parametrize(
    "slots, words",
    [
        ([("f", "a", "one"), ("g", "a", "two")], "function 'g', input 'a': another function's input of this name has another adapter tensor"),
        ([("f", "a", "one"), ("g", "a", "")], "function 'g', input 'a': another function's input of this name has another adapter tensor, or none"),
        ([("f", "a", "one"), ("g", "b", "one")], "function 'g', input 'b': the adapter tensor 'one' is that of input 'a'"),
        ([("f", "a", "q.lora_A.weight")], "adapter tensor 'q.lora_A.weight' is of a pair, and 'q.lora_B.weight' is no input's"),
        ([("f", "a", "lora_x.lora_b")], "adapter tensor 'lora_x.lora_b' is of a pair, and 'lora_x.lora_a' is no input's"),
        ([("f", "a", "one"), ("g", "a", "one"), ("g", "b", "lora_x"), ("f", "c", "l.lora_A.w"), ("g", "d", "l.lora_B.w")], ""),
    ],
)
def test_slots_that_do_not_fit_together(slots, words):
    m = Module("slots")
    values = {name: m.function(name).input("x", "f32", [4]) for name in "fg"}
    for name, what, slot in slots:
        f = m.functions[name]
        a = f.input(what, "f32", [4], optional=bool(slot), adapter=slot)
        values[name] = f.cond(f.present(a), lambda x=values[name], a=a: x + a, lambda x=values[name]: x)[0] if slot else values[name] + a
    for name in "fg":
        m.functions[name].result("y", values[name])
    if words:
        with pytest.raises(IRError, match=words):
            compile(m, targets=["x86-64-v3"])
    else:
        bundle = accrt.Bundle(compile(m, targets=["x86-64-v3"]))
        assert bundle.adapters == {slot: what for _name, what, slot in slots}


@pytest.mark.parametrize("kind", ["a FIFO", "a device", "a folder", "large"])
def test_a_config_that_is_no_small_file_is_an_error(tmp_path, kind):
    """It comes along with somebody's adapter: nothing waits for it, and nothing reads it without an
    end."""
    from accrt.adapter import _peft_config
    path = tmp_path / "adapter_config.json"
    if kind == "a FIFO":
        os.mkfifo(path)
    elif kind == "a device":
        path.symlink_to("/dev/zero")
    elif kind == "a folder":
        path.mkdir()
    else:
        path.write_text('{"lora_alpha": 8}' + " " * (1 << 20))
    with pytest.raises((ValueError, IsADirectoryError)):
        _peft_config(str(path))
