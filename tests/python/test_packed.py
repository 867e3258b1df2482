"""Modules with quantized weights, compiled and run by the runtime: which kernels the compiler
picks, and results against the float64 reference."""

import os
import tempfile

import numpy as np
import pytest

import compiler_harness as h
import kernel_harness as kh
import rotation
from accrt.compiler import Interpreter, IRError, Module, compile, driver, encodings, packing, passes, quantizers
from test_packed_kernels import error_bound, random_weight

LAYOUTS = list(encodings.LAYOUTS)
WITHOUT_KERNELS = ()


def load(module, instance, **options):
    data = compile(module, targets=[h.target()], **options)
    handle, path = tempfile.mkstemp(suffix=".accx")
    with os.fdopen(handle, "wb") as out:
        out.write(data)
    import accrt

    try:
        return accrt.Program(accrt.Bundle(path, instance), instance.device("host"))
    finally:
        os.unlink(path)


def run(module, instance, name, *inputs, **options):
    shapes = [r.shape for r in Interpreter(module).run(name, *inputs)]
    results = [np.empty(s, kh.NUMPY[r.value.dtype]) for s, r in zip(shapes, module.functions[name].results)]
    return h.run_in_runtime(load(module, instance, **options).session(), module, name, inputs, {}, results)


def linear_module(q, dtype="f32", bias=None):
    m = Module("packed")
    f = m.function("f")
    x = f.input("x", dtype, [m.symbol("n", minimum=1, maximum=4096), q.shape[1]])
    w = m.weight("w", q)
    f.result("y", x.linear(w) if bias is None else x.linear(w, m.constant("b", bias)).gelu())
    return m


def operations(module, family="host"):
    work = passes.run(module, passes.PIPELINES[family])
    return [op.name for function in work.functions.values() for op in function.body.walk()]


@pytest.mark.rotating(8)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_is_usable(layout, instance):
    rng = np.random.default_rng([kh.SEED, 1])
    q = random_weight(layout, 40, 512, rng)
    m, x = linear_module(q), rng.standard_normal((5, 512)).astype(np.float32)
    assert ("accrt.dequantize" in operations(m)) == (layout in WITHOUT_KERNELS) != ("accrt.linear_quantized" in operations(m))
    (got,) = run(m, instance, "f", x)
    (exact,) = Interpreter(m).run("f", x)
    w = encodings.dequantize(q).astype(np.float64)
    if layout in WITHOUT_KERNELS:
        bound = (512 + 8) * 2.0**-24 * (np.abs(x) @ np.abs(w).T + 1)
    else:
        bound = error_bound(packing.form_of(q), x, w, "f32", exact)
    assert (np.abs(got - exact) <= bound).all()


def test_forms_of_checkpoints_are_bound_by_name():
    """Their tensors have no digest in common."""
    m = linear_module(random_weight("ct_nvfp4", 16, 64, np.random.default_rng(kh.SEED)))
    with pytest.raises(IRError, match="constant 'w': ct_nvfp4 is several tensors, which are bound by their names"):
        compile(m, targets=[h.target()], external={"w": ""})
    with pytest.raises(IRError, match="constant 'other': ct_nvfp4 is several tensors"):
        m.external("other", "f32", [16, 64], layout="ct_nvfp4", digest=bytes(15) + b"1")


@pytest.mark.parametrize("family", ["host", "cuda"])
@pytest.mark.parametrize("layout, group, k", [("i4_group", 16, 80), ("i4_group", 48, 96), ("i4_group_asym", 16, 48), ("i8_group", 40, 120), ("i8_group", 8, 64)])
def test_rows_that_no_kernel_cuts_are_plain_weights(layout, group, k, family, instance):
    """Groups that are not whole blocks of 32: the weight is dequantized at load, as
    docs/models.md says, and the product is that of its values."""
    rng = np.random.default_rng([kh.SEED, 3])
    weight = rng.standard_normal((33, k)).astype(np.float32)
    q = quantizers.quantize(weight, layout, group=group)
    m, x = linear_module(q, "f32" if family == "host" else "f16"), rng.standard_normal((3, k)).astype(np.float32)
    assert packing.packed_bytes(packing.form_of(q), family) is None
    assert "accrt.dequantize" in operations(m, family) and "accrt.linear_quantized" not in operations(m, family)
    if family == "cuda":
        return
    (got,), (exact,) = run(m, instance, "f", x), Interpreter(m).run("f", x)
    w = encodings.dequantize(q).astype(np.float64)
    assert (np.abs(got - x.astype(np.float64) @ w.T) <= (k + 8) * 2.0**-24 * (np.abs(x) @ np.abs(w).T + 1)).all()
    assert np.allclose(exact, x @ w.T, atol=1e-4)


def test_many_rows_bias_activation_and_other_users(instance):
    rng = np.random.default_rng([kh.SEED, 2])
    q = random_weight("q4_k", 50, 256, rng)
    bias = rng.standard_normal(50).astype(np.float32)
    m = linear_module(q, bias=bias)
    assert operations(m).count("accrt.linear_quantized") == 1 and not any("elementwise" in name for name in operations(m))
    for rows in (1, 2, 33):
        x = rng.standard_normal((rows, 256)).astype(np.float32)
        (got,), (exact,) = run(m, instance, "f", x), Interpreter(m).run("f", x)
        assert (np.abs(got - exact) <= 1.2 * error_bound(packing.form_of(q), x, encodings.dequantize(q).astype(np.float64), "f32", exact)).all()


def test_lookups_products_with_transposed_weights_and_plain_uses(instance):
    rng = np.random.default_rng([kh.SEED, 3])
    q = random_weight("q8_0", 64, 96, rng)
    m = Module("shared")
    f = m.function("f")
    n = m.symbol("n", minimum=1, maximum=64)
    index = f.input("index", "i32", [n])
    w = m.weight("w", q)
    rows = f.as_value(w).embedding(index)
    f.result("rows", rows)
    f.result("scores", rows.matmul(f.as_value(w).t()))
    f.result("scaled", f.as_value(w) * 2.0)
    names = operations(m)
    assert "accrt.embedding_packed" in names and "accrt.linear_quantized" in names and "accrt.dequantize" in names
    index = np.array([5, 63, 0, 5], np.int32)
    rows, scores, scaled = run(m, instance, "f", index)
    exact = encodings.dequantize(q)
    np.testing.assert_array_equal(rows, exact[index])
    np.testing.assert_array_equal(scaled, exact * 2)
    wide = exact.astype(np.float64)
    assert (np.abs(scores - wide[index] @ wide.T) <= error_bound(packing.form_of(q), wide[index], wide, "f32", wide[index] @ wide.T)).all()


@pytest.mark.parametrize("layout", ("q8_0", "q4_k", "q6_k"))
def test_a_tied_weight_is_held_once(layout, instance):
    """Lookups in one function and products in another read one packed weight; alone, a lookup reads
    the weight as it is stored."""
    rng = np.random.default_rng([kh.SEED, 8])
    q = random_weight(layout, 64, 256, rng)
    m = Module("tied")
    index, x = np.array([5, 63, 0], np.int32), rng.standard_normal((3, 256)).astype(np.float32)
    w = m.weight("w", q)
    for name in ("embed", "both"):
        f = m.function(name)
        f.result("rows", f.as_value(w).embedding(f.input("index", "i32", [3])))
        if name == "both":
            f.result("scores", f.input("x", "f32", [3, 256]).linear(w))
    names = operations(m)
    assert names.count("accrt.embedding_packed") == 2 and "accrt.embedding_quantized" not in names
    (rows,) = run(m, instance, "embed", index)
    np.testing.assert_array_equal(rows, encodings.dequantize(q)[index])
    rows, scores = run(m, instance, "both", index, x)
    np.testing.assert_array_equal(rows, encodings.dequantize(q)[index])
    wide = encodings.dequantize(q).astype(np.float64)
    assert (np.abs(scores - x @ wide.T) <= error_bound(packing.form_of(q), x, wide, "f32", x @ wide.T)).all()
    alone = Module("alone")
    f = alone.function("f")
    f.result("rows", f.as_value(alone.weight("w", q)).embedding(f.input("index", "i32", [3])))
    assert operations(alone) == ["accrt.component", "accrt.embedding_quantized"]


def groups(rng, layout, n, as_one, experts=6, k=256, dtype="f32"):
    """Products of rows with matrices of their own: by grouped_linear, and each by linear. `as_one`:
    the matrices are one weight."""
    m = Module("groups")
    rows = m.symbol("rows", minimum=0, maximum=4096)
    parts = [random_weight(layout, n, k, rng) for _ in range(experts)]
    for name in ("grouped", "each"):
        f = m.function(name)
        x, ends = f.input("x", dtype, [rows, k]), f.input("ends", "i32", [experts])
        if name == "each":
            for e, q in enumerate(parts):
                f.result(f"y{e}", x.linear(m.weight(f"w{e}", q)))
        elif as_one:
            joined = {role: np.concatenate([q.components[role].reshape(-1) for q in parts]) for role in parts[0].components}
            one = encodings.Quantized(layout, (experts, n, k), joined, parts[0].group, parts[0].dtype, parts[0].types)
            f.result("y", x.grouped_linear([m.weight("w", one)], ends))
        else:
            f.result("y", x.grouped_linear([m.weight(f"one{e}", q) for e, q in enumerate(parts)], ends))
    return m, parts


ENDS = ([3, 3, 9, 20, 150, 200], [0, 0, 1, 1, 1, 1], [40, 41, 44, 50, 60, 60], [0] * 6, [7, 2, 9, 300, 300, 300])


@pytest.mark.parametrize("layout, n, as_one", [
    *((name, 48, bool(encodings.LAYOUTS[name].block[1])) for name in LAYOUTS if name not in WITHOUT_KERNELS),
    ("q4_k", 40, True), ("q8_0", 40, False),
])  # fmt: skip
def test_groups_of_rows_have_the_bits_of_each_product(layout, n, as_one, instance):
    """Of matrices that are packed as one or apart, of sizes that fill panels or do not. None is
    unpacked."""
    rng = np.random.default_rng([kh.SEED, 31, *layout.encode()])
    m, parts = groups(rng, layout, n, as_one)
    named = operations(m)
    assert "accrt.dequantize" not in named and named.count("accrt.grouped_quantized") == 1
    assert named.count("accrt.pack_quantized") == (1 if as_one and n == 48 else len(parts)) + len(parts)
    session, rows = load(m, instance).session(), 200
    x = rng.standard_normal((rows, 256)).astype(np.float32)
    for ends in ENDS:
        got = np.array(session["grouped"](x, np.array(ends, np.int32)))
        each = [np.array(y) for y in session["each"](x, np.array(ends, np.int32))]
        expected, begin = np.zeros_like(got), 0
        for e, end in enumerate(np.minimum(ends, rows)):
            expected[begin:end] = each[e][begin:end]
            begin = max(begin, end)
        assert got.tobytes() == expected.tobytes(), ends


@pytest.mark.parametrize("experts", [3, 17, 128])
@pytest.mark.parametrize("layout, n, one", [("q8_0", 64, True), ("q4_k", 96, True), ("q4_k", 40, False), ("ggml_nvfp4", 64, False)])
def test_matrices_of_groups_stay_packed_on_cuda(layout, n, one, experts):
    """However many; as one where blocks end with each."""
    rng = np.random.default_rng([kh.SEED, 32])
    for as_one in (True, False):
        m, parts = groups(rng, layout, n, as_one, experts, dtype="bf16")
        del m.functions["each"]
        named = operations(m, "cuda")
        assert "accrt.dequantize" not in named and "accrt.grouped_matmul" not in named
        assert named.count("accrt.grouped_quantized") == 1 and named.count("accrt.pack_quantized") == (1 if as_one and one else experts)
        form = packing.grouped_form(packing.form_of(parts[0]), experts, "cuda")
        assert packing.packs_as_one(form, "cuda") == (one and len(form.roles) == 1)
        kernels = {kernel.name for kernel in driver.kernels_of(m, "cuda") if kernel.op == "grouped_quantized"}
        assert len(kernels) == 2 and all(name.startswith("cuda.packed_groups_") for name in kernels)


@pytest.mark.parametrize("layout", ["q4_k", "q6_k", "ggml_nvfp4", "q8_0"])
def test_groups_of_many_rows_have_large_blocks_on_cuda(layout):
    """8 rows for few of each matrix, 32 and 64 for more, where matrices have eight tiles."""
    rng = np.random.default_rng([kh.SEED, 36])
    m, _parts = groups(rng, layout, 296, False, 8, dtype="bf16")
    del m.functions["each"]
    kernels = [kernel for kernel in driver.kernels_of(m, "cuda") if kernel.op == "grouped_quantized"]
    assert sorted(kernel.name.rsplit("_", 1)[1].split("x")[0] for kernel in kernels) == ["1", "4", "8"]


def test_matrices_that_meet_f32_stay_packed_on_cuda_where_it_computes_in_16_bits():
    rng = np.random.default_rng([kh.SEED, 34])
    for compute in ("", "bf16"):
        m, _parts = groups(rng, "q4_0", 64, True, 20)
        del m.functions["each"]
        m.compute["cuda"] = compute
        named = operations(m, "cuda")
        assert ("accrt.grouped_quantized" in named) == bool(compute) and ("accrt.dequantize" in named) == (not compute)


@pytest.mark.parametrize("invariant", [False, True])
def test_a_batch_invariant_product_of_groups_has_one_kernel(invariant):
    """Whatever the number of rows."""
    rng = np.random.default_rng([kh.SEED, 35])
    m, _parts = groups(rng, "q4_0", 64, True, 8, dtype="bf16")
    del m.functions["each"]
    m.batch_invariant = invariant
    kernels = [kernel for kernel in driver.kernels_of(m, "cuda") if kernel.op == "grouped_quantized"]
    assert len(kernels) == (1 if invariant else 2)


def test_groups_of_plain_matrices_and_of_matrices_that_differ(instance):
    rng, m = np.random.default_rng([kh.SEED, 33]), Module("mixed")
    f = m.function("f")
    x, ends = f.input("x", "f32", [m.symbol("n", minimum=1), 256]), f.input("ends", "i64", [3])
    plain = [m.constant(f"p{e}", rng.standard_normal((32, 256)).astype(np.float32)) for e in range(3)]
    quantized = [m.weight(f"q{e}", random_weight(layout, 32, 256, rng)) for e, layout in enumerate(("q8_0", "q4_k", "q8_0"))]
    f.result("plain", x.grouped_linear(plain, ends))
    f.result("mixed", x.grouped_linear(quantized, ends))
    f.result("both", x.grouped_linear([plain[0], *quantized[:2]], ends))
    given = rng.standard_normal((9, 256)).astype(np.float32), np.array([2, 5, 8])
    largest = max(np.abs(encodings.dequantize(q.data) if hasattr(q.data, "layout") else q.data).max() for q in [*plain, *quantized])
    for got, exact in zip(run(m, instance, "f", *given), Interpreter(m).run("f", *given)):
        # 256 roundings of the sum of absolute products, and some more
        np.testing.assert_allclose(got, exact, rtol=0, atol=272 * 2.0**-24 * largest * np.abs(given[0]).sum(1).max())


def test_groups_share_some_of_their_matrices(instance):
    """Lists of matrices that begin alike, in another order, and with one of them twice."""
    rng, m = np.random.default_rng([kh.SEED, 34]), Module("shared")
    f = m.function("f")
    x, ends = f.input("x", "f32", [m.symbol("n", minimum=1), 256]), f.input("ends", "i64", [2])
    parts = [random_weight("q8_0", 32, 256, rng) for _ in range(3)]
    weights = [m.weight(f"w{e}", q) for e, q in enumerate(parts)]
    for a in range(3):
        for b in range(3):
            f.result(f"y{a}{b}", x.grouped_linear([weights[a], weights[b]], ends))
            f.result(f"first{a}{b}", x.grouped_linear([weights[a]], ends.slice(0, 0, 1)))
        f.result(f"each{a}", x.linear(weights[a]))
    x, ends = rng.standard_normal((9, 256)).astype(np.float32), np.array([4, 7])
    made = {r.name: np.array(y) for r, y in zip(f.results, run(m, instance, "f", x, ends))}
    for a in range(3):
        for b in range(3):
            expected = np.zeros((9, 32), np.float32)
            expected[:4] = made[f"each{a}"][:4]
            assert made[f"first{a}{b}"].tobytes() == expected.tobytes(), (a, b)
            expected[4:7] = made[f"each{b}"][4:7]
            assert made[f"y{a}{b}"].tobytes() == expected.tobytes(), (a, b)


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_a_call_copies_no_matrices(dtype, apart):
    """They are turned when a program is made."""
    m = Module("plain")
    f = m.function("f")
    x, ends = f.input("x", "f32", [m.symbol("n", minimum=1), 64]), f.input("ends", "i64", [4])
    arrays = [kh.encode(np.ones((32, 64)), dtype)] * 4 if apart else [kh.encode(np.ones((4, 32, 64)), dtype)]
    f.result("y", x.grouped_linear([m.constant(f"w{i}", array, dtype) for i, array in enumerate(arrays)], ends))
    _work, planned = driver._planned(m, "host", True)
    (commands,) = [buffers.commands for buffers, _plan in planned if not buffers.function.prepare]
    assert [command.launch.kernel.name for command in commands if command.launch is not None] == [f"grouped_f32_{dtype}_i64"]


@pytest.mark.parametrize("build, words", [
    (lambda m, f, x: x.grouped_linear([], f.input("e", "i32", [1])), "no matrix"),
    (lambda m, f, x: x.grouped_linear([m.constant("w", np.ones((2, 8, 4), np.float32))], f.input("e", "i32", [3])), "ends of grouped_linear"),
    (lambda m, f, x: x.grouped_linear([m.constant("w", np.ones((8, 5), np.float32))], f.input("e", "i32", [1])), "inner dimension"),
    (lambda m, f, x: x.grouped_linear([m.constant("w", np.ones((8, 4), np.float32)), m.constant("v", np.ones((7, 4), np.float32))], f.input("e", "i32", [2])), "matrices of"),
])  # fmt: skip
def test_groups_that_are_refused(build, words):
    m = Module("wrong")
    f = m.function("f")
    with pytest.raises(IRError, match=words):
        build(m, f, f.input("x", "f32", [3, 4]))


def test_one_dimension_and_no_rows_of_x(instance):
    rng = np.random.default_rng([kh.SEED, 4])
    q = random_weight("i4_group", 24, 128, rng)
    m = Module("vector")
    f = m.function("f")
    f.result("y", f.input("x", "f32", [128]).linear(m.weight("w", q)))
    x = rng.standard_normal(128).astype(np.float32)
    (got,), (exact,) = run(m, instance, "f", x), Interpreter(m).run("f", x)
    assert (np.abs(got - exact) <= error_bound(packing.form_of(q), x[None], encodings.dequantize(q).astype(np.float64), "f32", exact[None])[0]).all()


def test_quantize_on_the_way_through_the_compiler(instance):
    rng = np.random.default_rng([kh.SEED, 5])
    m = Module("chosen")
    f = m.function("f")
    x = f.input("x", "f32", [m.symbol("n", minimum=1, maximum=64), 256])
    weights = {name: (rng.standard_normal((64, 256)) * 0.1).astype(np.float32) for name in ("a.weight", "b.weight", "head")}
    for name, array in weights.items():
        f.result("y." + name, x.linear(m.constant(name, array)))
    work, changed = passes.quantize_weights(m, {"a.*": "q8_0", "b.weight": lambda w: quantizers.quantize(w, "i4_group_asym", group=32)})
    assert changed == ["a.weight", "b.weight"] and [c.type.encoding for c in work.constants.values()].count("plain") == 1
    assert m.constants["a.weight"].type.encoding == "plain"
    x = rng.standard_normal((3, 256)).astype(np.float32)
    got = run(m, instance, "f", x, quantize={"a.*": "q8_0"})
    for have, want in zip(got, Interpreter(m).run("f", x)):
        assert np.abs(have - want).max() < 0.1


def test_what_does_not_fit_is_told():
    with pytest.raises(ValueError, match="no layout 'q9'"):
        encodings.Quantized("q9", (4, 4), {"data": np.zeros(16, np.uint8)})
    with pytest.raises(ValueError, match="shape"):
        encodings.Quantized("q8_0", (4, 40), {"data": np.zeros(16, np.uint8)})
    with pytest.raises(ValueError, match="multiple of 256"):
        quantizers.quantize(np.zeros((2, 64), np.float32), "q4_k")


def test_patterns_and_their_mistakes():
    """They name the pattern, and the constant that it fits."""
    m = Module("patterns")
    f = m.function("f")
    f.result("y", f.input("x", "f32", [2, 64]).linear(m.constant("a.weight", np.zeros((8, 64), np.float32))))
    for wanted, words in (
        ({"*.attn.*": "q8_0"}, r"no constant's name fits '\*\.attn\.\*'"), ({"a.*": "q9_9"}, r"constant 'a.weight', which fits 'a\.\*': no quantizer makes 'q9_9'"),
        ({"*": "q4_k"}, r"constant 'a.weight', which fits '\*': layout q4_k: rows of 64"),
    ):  # fmt: skip
        with pytest.raises(IRError, match=words):
            compile(m, targets=[h.target()], quantize=wanted)
    with pytest.raises(IRError, match="external: no constant's name fits 'b'"):
        compile(m, targets=[h.target()], external={"b": ""})


@pytest.mark.rotating(2)
@pytest.mark.parametrize("dtype", ("f32", "f16"))
def test_modules_with_every_layout_compile_for_cuda(dtype):
    """What runs them is tests/gpu. A run takes some of the layouts."""
    from accrt.compiler.cuda import nvcc

    if not nvcc.available_targets()[0]:
        pytest.skip("no CUDA compiler")
    rng = np.random.default_rng([kh.SEED, 6])
    m = Module("cuda")
    f = m.function("f")
    x = f.input("x", dtype, [m.symbol("n", minimum=1, maximum=64), 512])
    index = f.input("index", "i32", [4])
    for layout in rotation.part(LAYOUTS, 6, "layouts for CUDA") if dtype == "f16" else ("q4_k", "gptq_v1"):
        q = random_weight(layout, 40, 512, rng)
        w = m.weight(layout, encodings.Quantized(q.layout, q.shape, q.components, q.group, dtype, q.types))
        f.result("y." + layout, x.linear(w))
    f.result("rows", f.as_value(w).embedding(index))
    assert len(compile(m, targets=["sm_90"])) > 0


def test_blocks_of_cuda_kernels_fit_the_machines():
    """Shared memory, threads, and that what a prepare function writes is what blocks read, whatever
    the sizes."""
    from accrt.compiler.cuda import packed

    rng = np.random.default_rng([kh.SEED, 7])
    for layout, roles, group in (
        ("i4_group", (("data", "u4"), ("scales", "f32")), 32), ("i4_group_asym", (("data", "u4"), ("scales", "f32"), ("zeros", "u4")), 32),
        ("i4_group", (("data", "u4"), ("scales", "f16")), 128), ("q4_k", (("data", "u8"),), 32), ("mxfp4", (("data", "f4e2m1"), ("scales", "f8e8m0")), 32),
        ("i8_channel", (("data", "i8"), ("scales", "f32")), 1 << 20), ("mxfp8", (("data", "f8e4m3fn"), ("scales", "f8e8m0")), 32),
        *((layout, (("data", "u8"),), 16) for layout in ("q2_k", "q3_k", "q6_k")), ("q5_k", (("data", "u8"),), 32),
        *((layout, (("data", "u8"),), 32) for layout in ("q4_1", "q5_0", "q5_1", "iq4_nl", "ggml_mxfp4")),
    ):  # fmt: skip
        for _ in range(200):
            n, k = int(2 ** rng.uniform(0, 18)), int(2 ** rng.uniform(0, 7)) * 256
            form = packing.Form(layout, n, k, min(group, k), "f32", roles)
            tiles, record = packed._block_tiles(form), packed._record_bytes(form)
            assert packing.packed_bytes(form, "cuda") % (tiles * record) == 0 and record % 16 == 0
            for columns in (1, 2):
                for most in packed._SHARED_BYTES.values():
                    block = packed._block(form, columns, most)
                    assert block.shared_bytes <= most and block.warps <= 16 and block.groups * block.slices == block.warps, (form, block)
                    assert block.shared_bytes >= packed._BARRIER_BYTES + block.slices * 8192 * columns + block.warps * record
