"""Weights that compiled programs have outside: declared or left out, bound at load by digest or by
name from files of every kind, in parts of ranks; and quantized ones of more than two dimensions."""

import os
import shutil

import numpy as np
import pytest

import accrt
import compiler_harness as h
import kernel_harness as kh
from accrt import bundle_writer as bw
from accrt.compiler import External, Interpreter, IRError, Module, Segment, Shard, compile, dequantize, encodings, packing, passes, quantize, quantizers
from test_packed import operations
from test_packed_kernels import error_bound, random_weight
from safetensors_file import safetensors_bytes

pytestmark = pytest.mark.quick_kernels  # in a run of the whole folder

TARGETS = [h.target()]


def opened(module, path, instance, **options):
    compile(module, path, targets=TARGETS, **options)
    return accrt.Bundle(path, instance)


def linear(name="w", **how):
    """x W^T with a weight of its own, declared or given."""
    m = Module("outside")
    f = m.function("f")
    n = m.symbol("n", minimum=1, maximum=64)
    w = m.constant(name, how["data"]) if "data" in how else m.weight(name, how["q"]) if "q" in how else m.external(name, **how)
    f.result("y", f.input("x", "f32", [n, w.type.shape[-1]]).linear(w))
    return m


def pack(path, **tensors):
    """A pack of weights: arrays, and Quantized ones."""
    out = bw.BundleWriter()
    for name, q in tensors.items():
        if isinstance(q, np.ndarray):
            out.constant(name, q)
        else:
            parts = {role: (np.ascontiguousarray(a), q.component_type(role)) for role, a in q.components.items()}
            out.constant(name, parts, dtype=q.dtype, shape=q.shape, encoding=bw.Encoding(encodings.LAYOUTS[q.layout].id), group_elements=q.group)
    out.write(path)
    return path


def close(q, x, got):
    w = dequantize(q).astype(np.float64)
    exact = x.astype(np.float64) @ w.T
    assert (np.abs(got - exact) <= error_bound(packing.form_of(q), x, w, "f32", exact)).all()


def test_declared_by_name(tmp_path, instance):
    rng = np.random.default_rng([kh.SEED, 20])
    w, x = rng.standard_normal((24, 40)).astype(np.float32), rng.standard_normal((3, 40)).astype(np.float32)
    m = linear(dtype="f32", shape=(24, 40), tensor="model.w", by_name=True)
    assert "constant @w: f32[24, 40] external" in str(m)
    bundle = opened(m, tmp_path / "m.accx", instance)
    with pytest.raises(accrt.NotFoundError, match="'w'"):
        bundle.program()
    program = bundle.program(weights=accrt.Weights(safetensors_bytes({"model.w": w}), instance))
    np.testing.assert_allclose(program.session().f(x), x @ w.T, rtol=0, atol=1e-4)
    # what is made at load is made again
    program.load_weights(accrt.Weights(safetensors_bytes({"model.w": -w}), instance))
    np.testing.assert_allclose(program.session().f(x), -x @ w.T, rtol=0, atol=1e-4)


def test_left_out_by_digest_and_by_file(tmp_path, instance):
    """What was known when the program was compiled: those bytes and no others, from a file beside
    it."""
    rng = np.random.default_rng([kh.SEED, 21])
    w, x = (rng.standard_normal((32, 256)) * 0.1).astype(np.float32), rng.standard_normal((3, 256)).astype(np.float32)
    bundle = opened(linear(data=w), tmp_path / "a.accx", instance, external={"w": "side.safetensors"})
    (tmp_path / "side.safetensors").write_bytes(safetensors_bytes({"w": w}))
    np.testing.assert_allclose(bundle.program().session().f(x), x @ w.T, rtol=0, atol=1e-4)
    (tmp_path / "side.safetensors").unlink()
    (tmp_path / "side.safetensors").write_bytes(safetensors_bytes({"w": -w}))
    with pytest.raises(accrt.DataCorruptError):
        accrt.Bundle(tmp_path / "a.accx", instance).program()
    by_name = opened(linear(data=w), tmp_path / "b.accx", instance, external={"w": External("side.safetensors", by_name=True)})
    np.testing.assert_allclose(by_name.program().session().f(x), -x @ w.T, rtol=0, atol=1e-4)
    # Quantized on the way: a pack that `accx quantize` makes has the bytes that the digest is of.
    packed = opened(linear(data=w), tmp_path / "c.accx", instance, quantize={"w": "q4_k"}, external={"*": ""})
    q = quantize(w, "q4_k")
    pack(tmp_path / "pack.accx", w=q)
    close(q, x, np.asarray(packed.program(weights=accrt.Weights(tmp_path / "pack.accx", instance)).session().f(x)))
    m = linear(data=w)
    assert passes.leave_out(m, {"w": None}).constants["w"].external is None and m.constants["w"].external is None


@pytest.mark.rotating(2)
@pytest.mark.parametrize("layout", ["q4_k", "i4_group", "mxfp4", "f8_channel"])
def test_what_the_tool_quantizes_is_what_was_left_out(layout, tmp_path, instance):
    """`accx quantize` of the same weights gives the bytes that the compiler's digest is of, with
    the defaults of both."""
    import subprocess

    from accx_tool import ACCX

    if not ACCX.exists():
        pytest.skip(f"{ACCX} is not built")
    rng = np.random.default_rng([kh.SEED, 26])
    w, x = (rng.standard_normal((48, 256)) * 0.1).astype(np.float32), rng.standard_normal((2, 256)).astype(np.float32)
    (tmp_path / "model.safetensors").write_bytes(safetensors_bytes({"w": w}))
    subprocess.run([ACCX, "quantize", tmp_path / "model.safetensors", tmp_path / "model.accx", "--layout", layout], check=True, capture_output=True)
    bundle = opened(linear(data=w), tmp_path / "m.accx", instance, quantize={"w": layout}, external={"w": "model.accx"})
    close(quantize(w, layout), x, np.asarray(bundle.program().session().f(x)))


@pytest.mark.rotating(4)
@pytest.mark.parametrize("layout", ["q8_0", "q4_k", "i4_group", "i4_group_asym", "mxfp4", "f8_channel", "i8_channel", "gptq_v1", "awq", "nvfp4"])
def test_quantized_from_a_pack(layout, tmp_path, instance):
    rng = np.random.default_rng([kh.SEED, 22])
    q = random_weight(layout, 40, 256, rng)
    types = {role: q.component_type(role) for role in q.components}
    m = linear(dtype="f32", shape=(40, 256), layout=layout, group=q.group, components=types, by_name=True)
    assert [operations(m), packing.form_of(m.constants["w"].data)] == [operations(linear(q=q)), packing.form_of(q)]
    bundle = opened(m, tmp_path / "m.accx", instance)
    x = rng.standard_normal((5, 256)).astype(np.float32)
    got = np.asarray(bundle.program(weights=accrt.Weights(pack(tmp_path / "w.accx", w=q), instance)).session().f(x))
    if packing.form_of(q).codes:
        close(q, x, got)
    else:
        np.testing.assert_allclose(got, x @ dequantize(q).T, rtol=1e-4, atol=1e-3)
    (exact,) = Interpreter(m, weights={"w": dequantize(q)}).run("f", x)
    np.testing.assert_allclose(got, exact, rtol=0.02, atol=0.05 * np.abs(exact).max())


def test_ranks(tmp_path, instance):
    """Each rank multiplies with its part: rows that are shared out with replicas, columns of a
    quantized weight, and one that all have."""
    rng = np.random.default_rng([kh.SEED, 23])
    q = random_weight("i8_group", 48, 256, rng)
    bias = rng.standard_normal(24).astype(np.float32)
    up = rng.standard_normal((36, 64)).astype(np.float32)
    m = Module("rank")
    f = m.function("f")
    n = m.symbol("n", minimum=1, maximum=8)
    pieces = (Segment(0, 24), Segment(24, 36, replicas=2))
    w = m.external("down", "f32", q.shape, layout="i8_group", group=q.group, components={"scales": "f16"}, by_name=True, shard=Shard(2, 1))
    u = m.external("up", "f32", up.shape, by_name=True, shard=Shard(2, 0, pieces))
    b = m.external("bias", "f32", [24], by_name=True)
    assert (w.type.shape, u.type.shape) == ((48, 128), (24, 64))
    f.result("part", f.input("x", "f32", [n, 128]).linear(w))
    f.result("wide", f.input("v", "f32", [n, 64]).linear(u, b))
    bundle = opened(m, tmp_path / "m.accx", instance)
    source = accrt.Weights(pack(tmp_path / "w.accx", down=q, up=up, bias=bias), instance)
    x, v = rng.standard_normal((3, 256)).astype(np.float32), rng.standard_normal((3, 64)).astype(np.float32)
    total, full = 0, dequantize(q).astype(np.float64)
    for rank in range(2):
        own = slice(128 * rank, 128 * rank + 128)
        part, wide = bundle.program(weights=source, rank=rank, degree=2).session().f(x[:, own].copy(), v)
        rows = np.r_[12 * rank : 12 * rank + 12, 24:36]
        np.testing.assert_allclose(wide, v @ up[rows].T + bias, rtol=0, atol=1e-4)
        total = total + np.asarray(part).astype(np.float64)
    error = np.abs(total - x @ full.T)
    assert (error <= 2 * error_bound(packing.form_of(q), x, full, "f32", x @ full.T)).all()
    with pytest.raises(accrt.InvalidArgumentError):
        bundle.program(weights=source, rank=0, degree=3)


def test_what_is_declared_wrongly():
    m, given = Module("wrong"), {"by_name": True}
    for how, words in (
        ({}, "digest of 16 bytes, or by_name"), ({"digest": b"x" * 16, **given}, "digest of 16 bytes, or by_name"),
        ({"digest": bytes(16)}, "digest of 16"), ({"layout": "q9", **given}, "no layout 'q9'"), ({"layout": "q4_k", **given}, "no multiple of the layout's block, 256"),
        ({"layout": "i8_group", **given}, "group 0: a free group"), ({"file": "w.bin", **given}, "its kind is safetensors, gguf or accx"),
        ({"layout": "q8_0", "components": {"scales": "f32"}, **given}, "no component 'scales'"),
        ({"layout": "i8_channel", "components": {"scales": "f64"}, **given}, "scales is f32 or f16 or bf16"),
        ({"shard": Shard(2, 2), **given}, "axis 2 of rank 2"), ({"shard": Shard(0, 0), **given}, "a shard of degree 0; it is 1 or more"),
        ({"shard": Shard(2, 0, ((0, 32),)), **given}, r"segments are Segment\(begin, end"), ({"digest": "x" * 16}, "a digest of 16 bytes"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=words):
            m.external("w", "f32", (32, 64), **how)
    with pytest.raises(IRError, match=r"'w': a ndarray is no Quantized; plain arrays are added by constant\(\)"):
        m.weight("w", np.ones((4, 32), np.float32))
    for data, more in ((quantize(np.ones((4, 32), np.float32), "q8_0"), r"quantized weights are added by weight\(\)"), ([1.0], "numpy.asarray")):
        with pytest.raises(IRError, match=rf"'w': a {type(data).__name__} is no numpy array; {more}"):
            m.constant("w", data)
    assert not m.constants
    m = linear(dtype="f32", shape=(3, 4), by_name=True)
    with pytest.raises(IRError, match="'w' is outside the module: give its values"):
        Interpreter(m).run("f", np.zeros((1, 4)))
    with pytest.raises(IRError, match="two|twice"):
        m.external("w", "f32", (3, 4), by_name=True)
    m = linear(dtype="f32", shape=(3, 4), by_name=True, shard=Shard(2, 0))
    with pytest.raises(bw.BundleError, match="does not cut into 2 equal parts"):
        compile(m, targets=TARGETS)
    with pytest.raises(IRError, match="a part of them has a digest of its own"):
        compile(linear(data=np.zeros((4, 4), np.float32)), targets=TARGETS, external={"w": External(shard=Shard(2, 0))})


@pytest.mark.rotating(5)
@pytest.mark.parametrize("layout", quantizers.makes())
def test_experts(layout, instance, tmp_path):
    """Weights of three dimensions: a batch of products takes them dequantized; a product with one
    matrix of them reads it packed."""
    rng = np.random.default_rng([kh.SEED, 24])
    arrays = (rng.standard_normal((3, 130, 256)) * 0.1).astype(np.float32)
    q = quantize(arrays, layout, group=64 if encodings.LAYOUTS[layout].free_group else 0)
    m = Module("experts")
    f = m.function("f")
    n = m.symbol("n", minimum=1, maximum=16)
    w = m.external("w", "f32", q.shape, layout=layout, group=q.group, components={r: q.component_type(r) for r in q.components}, by_name=True)
    x, v = f.input("x", "f32", [3, n, 256]), f.input("v", "f32", [n, 256])
    f.result("all", x.matmul(f.as_value(w).transpose(1, 2)))
    f.result("plain", f.as_value(w) * 1.0)
    f.result("one", v.linear(f.as_value(w).select(0, 2)))
    f.result("last", v.matmul(f.as_value(w)[-2].t()))
    names = operations(m)
    one = encodings.Quantized(layout, q.shape[-2:], dict.fromkeys(q.components), q.group, "f32", {r: q.component_type(r) for r in q.components})
    packed = packing.packed_bytes(packing.form_of(one), "host") is not None
    assert names.count("accrt.linear_quantized") == 2 * packed
    bundle = opened(m, tmp_path / "m.accx", instance)
    x, v = rng.standard_normal((3, 5, 256)).astype(np.float32), rng.standard_normal((5, 256)).astype(np.float32)
    every, plain, one_y, last = (np.asarray(y) for y in bundle.program(weights=accrt.Weights(pack(tmp_path / "w.accx", w=q), instance)).session().f(x, v))
    exact = dequantize(q)
    np.testing.assert_array_equal(plain, exact)
    wide = exact.astype(np.float64)
    np.testing.assert_allclose(every, x @ wide.transpose(0, 2, 1), rtol=0, atol=1e-3)
    for got, matrix in ((one_y, wide[2]), (last, wide[1])):
        bound = error_bound(packing.form_of(one), v, matrix, "f32", v @ matrix.T) if packed else 1e-3
        assert (np.abs(got - v @ matrix.T) <= bound).all()


def astray(layout, bad):
    """A weight with a group index, and one of whose columns one is in a group that is not there:
    bytes that others change, not the compiler."""
    q = random_weight(layout, 24, 128, np.random.default_rng([kh.SEED, 25]))
    good, wrong = (encodings.Quantized(layout, q.shape, {**q.components, "group_index": np.arange(128, dtype=np.int32) // 64}, q.group) for _ in range(2))
    wrong.components["group_index"][77] = bad
    return good, wrong


@pytest.mark.parametrize("bad", [-1, 2, 2**31 - 1])
@pytest.mark.parametrize("layout", ["i4_group", "i4_group_asym", "gptq_v1", "gptq_v2"])
def test_groups_that_are_not_there(layout, bad, tmp_path, instance):
    """Nothing outside the scales is read: sources are refused, and kernels fail where bytes come
    another way."""
    good, wrong = astray(layout, bad)
    x, rows = np.eye(3, 128, dtype=np.float32), np.array([5, 0], np.int32)
    evil = accrt.Weights(pack(tmp_path / "evil.accx", w=wrong), instance)
    puts, reads = f"constant 'w': 'w' in .*evil.accx puts column 77 into group {bad} of 2", f"column 77 is in group {bad}, which is not there"
    declared = dict(dtype=good.dtype, shape=good.shape, layout=layout, group=good.group, components={r: good.component_type(r) for r in good.components})
    outside = opened(linear(by_name=True, **declared), tmp_path / "outside.accx", instance)
    with pytest.raises(accrt.DataCorruptError, match=puts):
        outside.program(weights=evil)
    for program in (outside.program(weights=accrt.Weights(pack(tmp_path / "good.accx", w=good), instance)),
                    opened(linear(q=good), tmp_path / "inside.accx", instance).program()):  # fmt: skip
        session = program.session()
        before = session.f(x)
        with pytest.raises(accrt.DataCorruptError, match=puts):
            program.load_weights(evil, names=["w"], by_name=True)
        with pytest.raises(accrt.UnsupportedError, match="components"):
            program.swap_weights({"w": good.components["data"]})
        np.testing.assert_array_equal(session.f(x), before)
    with pytest.raises(accrt.KernelError, match=reads) as failure:
        opened(linear(q=wrong), tmp_path / "stored.accx", instance).program().session().f(x)
    assert failure.value.driver_code == 1
    m = Module("rows")
    f = m.function("f")
    f.result("y", f.as_value(m.external("w", by_name=True, **declared)).embedding(f.input("rows", "i32", [2])))
    session = opened(m, tmp_path / "rows.accx", instance).program(weights=accrt.Weights(tmp_path / "good.accx", instance)).session()
    np.testing.assert_array_equal(session.f(rows), dequantize(good)[rows])
    whole = bytearray((tmp_path / "good.accx").read_bytes())
    index = whole.index(good.components["group_index"].tobytes())
    with open(tmp_path / "good.accx", "r+b") as file:  # behind the program's back
        file.seek(index)
        file.write(wrong.components["group_index"].tobytes())
    with pytest.raises(accrt.Error, match=reads):
        session.f(rows)


def test_files_are_said_once(tmp_path, instance):
    """Facts about a file: its kind where the name does not tell, size and digest; several weights
    in one."""
    import xxhash

    a, b = np.arange(12, dtype=np.float32).reshape(3, 4), np.ones((3, 4), np.float32)
    side = safetensors_bytes({"a": a, "b": b})
    m = Module("files")
    m.file("weights.bin", "safetensors", size_bytes=len(side), digest=xxhash.xxh3_128(side).digest())
    f = m.function("f")
    x = f.input("x", "f32", [2, 4])
    f.result("y", x.linear(m.external("a", "f32", (3, 4), file="weights.bin", by_name=True)))
    f.result("z", x.linear(m.external("other", "f32", (3, 4), file="weights.bin", tensor="b", by_name=True)))
    bundle = opened(m, tmp_path / "m.accx", instance)
    (tmp_path / "weights.bin").write_bytes(side)
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    y, z = bundle.program().session().f(x)
    np.testing.assert_array_equal(y, x @ a.T)
    np.testing.assert_array_equal(z, x @ b.T)
    os.truncate(shutil.copy(tmp_path / "weights.bin", tmp_path / "short"), len(side) - 1)
    os.replace(tmp_path / "short", tmp_path / "weights.bin")
    with pytest.raises(accrt.DataCorruptError):
        accrt.Bundle(tmp_path / "m.accx", instance).program()
