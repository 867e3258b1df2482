"""Kernels that read quantized weights, straight from their images: values of every layout, and
products against float64 with a bound.

The bound of a product with 8-bit rows of x: each number of x is off by at most 0.501 of its block's
scale, largest / 127; sums of f32 add (k / 32 + 16) roundings of the sum of absolute products; the
result is rounded to its type.
"""

import numpy as np
import pytest

import kernel_harness as harness
from accrt.bundle_writer import Encoding
from accrt.bundle_writer import layouts as writer
from accrt.compiler import encodings, packing, quantizers
from accrt.compiler.kernels import packed
from accrt.compiler.kernels.kerneldef import TensorSpec

pytestmark = pytest.mark.one_target  # of this machine's, in a run of the whole folder
TARGETS = harness.host_targets()
HALF_ULP = {"f32": 2.0**-24, "f16": 2.0**-11, "bf16": 2.0**-9}
LAYOUTS = list(encodings.LAYOUTS)
PACKED = ("q8_0", "q4_k", "q4_0", "q4_1", "q5_0", "q5_1", "iq4_nl", "q2_k", "q3_k", "q5_k", "q6_k", "gptq_v1", "gptq_v2", "awq", "i8_channel", "i8_group", "i4_group", "i4_group_asym", "mxfp4", "ggml_mxfp4", "ggml_nvfp4", "nvfp4", *encodings.APART, "f8_tensor", "f8_channel", "f8_block128", "mxfp8")


def random_weight(layout, n, k, rng, group=0, **more):
    """A weight of random bytes, whatever its layout, with scales of ordinary size."""
    facts = encodings.LAYOUTS[layout]
    group = group or (64 if facts.free_group else 0)
    groups = -(-k // (group or facts.group or max(k, 1)))
    random_bytes = lambda count: rng.integers(0, 256, count, dtype=np.uint8)  # noqa: E731
    floats = lambda *shape: (rng.standard_normal(shape) * 0.05).astype(more.get("scales", np.float16))  # noqa: E731
    types = {}
    if facts.block[1]:
        blocks = random_bytes(n * k // facts.block[0] * facts.block[1]).reshape(-1, facts.block[1])
        for at in {"q4_1": (0, 2), "q4_k": (0, 2), "q5_k": (0, 2), "q6_k": (208,), "q8_0": (0,), "q4_0": (0,), "q5_0": (0,), "q5_1": (0, 2), "iq4_nl": (0,), "q2_k": (80, 82), "q3_k": (108,)}.get(layout, ()):
            blocks[:, at : at + 2] = floats(len(blocks), 1).astype(np.float16).view(np.uint8)
        if layout == "ggml_mxfp4":
            blocks[:, 0] = rng.integers(110, 135, len(blocks))
        parts = {"data": blocks}
    elif layout.startswith("ct_i") or layout == "i8_asym":
        apart = encodings.declared(layout, (n, k), group=group)
        kinds = {"i32": np.int32, "i8": np.int8}
        parts = {role: random_bytes(apart.size_bytes(role)).view(kinds[apart.component_type(role)]) for role in apart.components if role != "scales"}
        parts["scales"] = floats(n, groups)
    elif layout.startswith("gptq"):
        words = lambda *shape: rng.integers(0, 1 << 32, shape, dtype=np.uint32).view(np.int32)  # noqa: E731
        parts = {"data": words(k // 8, n), "scales": floats(groups, n), "zeros": words(groups, n // 8)}
    elif layout == "awq":
        words = lambda *shape: rng.integers(0, 1 << 32, shape, dtype=np.uint32).view(np.int32)  # noqa: E731
        parts = {"data": words(k, n // 8), "scales": floats(groups, n), "zeros": words(groups, n // 8)}
    elif layout.startswith("i4"):
        parts = {"data": random_bytes(n * k // 2), "scales": floats(n, groups)}
        if layout == "i4_group_asym":
            parts["zeros"] = random_bytes(n * ((groups + 1) // 2))
    elif layout == "mxfp4":
        parts = {"data": random_bytes(n * k // 2), "scales": rng.integers(110, 135, (n, groups), dtype=np.uint8)}
    elif layout.endswith("nvfp4"):
        # both signs, and the largest there is: no NaN
        scales = random_bytes(n * groups)
        whole = 0.01 if layout == "nvfp4" else 123.4
        parts = {"data": random_bytes(n * k // 2), "scales": np.where(scales & 127 == 127, scales & 0xFE, scales), "global_scale": np.array([whole], np.float32)}
    elif layout == "mxfp8":
        parts = {"data": random_bytes(n * k) & 0xF7, "scales": rng.integers(110, 135, (n, groups), dtype=np.uint8)}
    else:
        data = random_bytes(n * k)
        parts = {"data": data & 0xF7 if layout.startswith("f8") else data.view(np.int8)}
        shape = {"f8_tensor": (1,), "f8_channel": (n,), "i8_channel": (n,), "f8_block128": (-(-n // 128), groups)}.get(layout, (n, groups))
        parts["scales"] = floats(*shape)
    if more.get("e5m2"):
        types["data"], parts["data"] = "f8e5m2", parts["data"] & 0xEF
    if more.get("bf16"):
        types["scales"], parts["scales"] = "bf16", harness.bf16_from(parts["scales"])
    return encodings.Quantized(layout, (n, k), parts, group, types=types)


def raw(q):
    return {role: np.ascontiguousarray(array).reshape(-1).view(np.uint8) for role, array in q.components.items()}


def run_dequantize(q, target, index=None, dtype="f32"):
    form = packing.form_of(q)
    out = TensorSpec.contiguous(dtype, (form.n if index is None else len(index), form.k))
    launch = packed.lower_dequantize(form, out, None if index is None else harness.spec_of(index, "i32"))
    inputs = {**raw(q), **({} if index is None else {"index": index})}
    return harness.run(launch, inputs, {"out": np.empty(out.shape, harness.NUMPY[dtype])}, target, threads=2)["out"]


@pytest.mark.rotating(16)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_values_of_every_layout_are_the_registry_s(layout, target):
    rng = np.random.default_rng([harness.SEED, 1])
    for n, k in ((16, 256), (136, 512)):
        q = random_weight(layout, n, k, rng)
        expected = encodings.dequantize(q)
        assert np.array_equal(run_dequantize(q, target), expected, equal_nan=True)
        index = np.array([3, 0, n - 1, 3], np.int32)
        assert np.array_equal(run_dequantize(q, target, index), expected[index], equal_nan=True)


def test_group_index_and_other_types():
    rng = np.random.default_rng([harness.SEED, 2])
    for layout in ("i4_group", "i4_group_asym", "gptq_v1", "gptq_v2"):
        q = random_weight(layout, 24, 128, rng)
        order = rng.permutation(128).astype(np.int32) // 64
        q = encodings.Quantized(layout, q.shape, {**q.components, "group_index": order}, q.group)
        assert np.array_equal(run_dequantize(q, TARGETS[0]), encodings.dequantize(q))
        assert packing.packed_bytes(packing.form_of(q), "host") is None
    for layout in ("f8_tensor", "f8_channel", "f8_block128", "mxfp8"):
        q = random_weight(layout, 130, 160, rng, e5m2=True, scales=np.float32)
        assert np.array_equal(run_dequantize(q, TARGETS[0]), encodings.dequantize(q))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("layout", ["i4_group", "i4_group_asym", "gptq_v1", "gptq_v2"])
def test_a_group_that_is_not_there_fails(layout, target):
    """Of whole weights and of rows that an index picks; nothing is read outside."""
    rng = np.random.default_rng([harness.SEED, 4])
    q = random_weight(layout, 24, 128, rng)
    for bad in (-1, 2, 2**31 - 1, -(2**31)):
        order = np.arange(128, dtype=np.int32) // 64
        q = encodings.Quantized(layout, q.shape, {**q.components, "group_index": order}, q.group)
        order[77] = bad
        for index in (None, np.array([5], np.int32)):
            with pytest.raises(harness.KernelFailure, match=f"column 77 is in group {bad}, which is not there") as failure:
                run_dequantize(q, target, index)
            assert failure.value.code == 1
        with pytest.raises(ValueError, match="group_index names groups outside the 2 that there are"):
            encodings.Quantized(layout, q.shape, q.components, q.group)


def pack(q, target):
    form = packing.form_of(q)
    size = packed.packed_bytes(form)
    inputs = {role: array for role, array in raw(q).items() if role != "group_index"}
    return harness.run(packed.lower_prepare(form), inputs, {"out": np.empty(size, np.uint8)}, target, threads=2)["out"]


def product(q, weights, x, dx, dc, target, bias=None, residual=None, activation="none"):
    form = packing.form_of(q)
    inputs, x_spec = {"x": x}, harness.spec_of(x, dx)
    if packed.needs_codes(form):
        codes = np.empty(max(len(x) * packed.quantized_row_bytes(form.k), 1), np.uint8)
        inputs["x"] = harness.run(packed.lower_quantize(x_spec, len(x)), {"x": x}, {"out": codes}, target, threads=2)["out"]
    out = np.empty((len(x), form.n), harness.NUMPY[dc])
    specs = [None if bias is None else harness.spec_of(bias, "f32"), None if residual is None else harness.spec_of(residual, dc)]
    launch = packed.lower_product(form, x_spec, harness.spec_of(out, dc), *specs, activation)
    inputs.update({"w": weights}, **({} if bias is None else {"bias": bias}), **({} if residual is None else {"residual": residual}))
    return harness.run(launch, inputs, {"out": out}, target, threads=2)["out"]


def error_bound(form, x, w, dtype, exact):
    m, k = x.shape
    blocks = -(-k // 32)
    padded = np.zeros((m, blocks * 32))
    padded[:, :k] = np.abs(x)
    steps = padded.reshape(m, blocks, 32).max(axis=2) / 127
    weights = np.zeros((w.shape[0], blocks * 32))
    weights[:, :k] = np.abs(w)
    by_block = weights.reshape(-1, blocks, 32).sum(axis=2)
    rounding = 0.501 * steps @ by_block.T if packed.needs_codes(form) else 0.0
    magnitude = np.abs(x) @ np.abs(w).T
    if form.codes in ("q2", "q4", "q5") or form.has("zeros"):
        magnitude = magnitude * 4  # what is subtracted is larger than the difference
    terms = blocks + 16 if packed.needs_codes(form) else k / 4 + 16
    return rounding + terms * HALF_ULP["f32"] * (magnitude + 1e-30) + 2 * HALF_ULP[dtype] * (np.abs(exact) + 2.0**-14)


def check(q, target, m, rng, dx="f32", dc="f32"):
    form = packing.form_of(q)
    x = harness.encode(rng.standard_normal((m, form.k)), dx)
    got = harness.decode(product(q, pack(q, target), x, dx, dc, target), dc)
    values, w = harness.decode(x, dx).astype(np.float64), encodings.dequantize(q).astype(np.float64)
    exact = values @ w.T
    error, bound = np.abs(got - exact), error_bound(form, values, w, dc, exact)
    assert (error <= bound).all(), f"{form.name}: error {error.max()}, bound {bound.min()}, seed {harness.SEED}"
    return got


@pytest.mark.rotating(12)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("layout", PACKED)
def test_products_are_within_their_bound(layout, target):
    rng = np.random.default_rng([harness.SEED, 3])
    facts = encodings.LAYOUTS[layout]
    cut = 1 if layout in encodings.APART else writer.of(Encoding(facts.id)).rows
    for m, n, k in ((1, 16, 256), (1, 33, 512), (2, 5, 768), (3, 100, 256), (4, 16, 1024), (33, 48, 512)):
        check(random_weight(layout, -(-n // cut) * cut, k, rng), target, m, rng)
    for m, n, k in ((1, 17, 96), (5, 40, 160)):
        if k % facts.block[0] == 0:
            check(random_weight(layout, -(-n // cut) * cut, k, rng, group=32 if facts.free_group else 0), target, m, rng)


@pytest.mark.parametrize("layout", ("i8_channel", "i8_group", "i4_group", "f8_channel", "f8_tensor", "f8_block128"))
def test_ragged_rows_and_scales_of_other_types(layout):
    rng = np.random.default_rng([harness.SEED, 4])
    for target in TARGETS:
        for m, n, k in ((1, 1, 2), (2, 7, 46), (7, 19, 130), (1, 130, 390)):
            for more in ({}, {"scales": np.float32}, {"bf16": True}):
                check(random_weight(layout, n, k, rng, **more), target, m, rng)
    if layout.startswith("f8"):
        check(random_weight(layout, 21, 200, rng, e5m2=True), TARGETS[0], 3, rng)


@pytest.mark.rotating(10)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("layout", [name for name in PACKED if not name.startswith("f8") and name != "mxfp8" and not name.endswith("nvfp4")])
def test_rows_of_packed_weights_are_the_layout_s(layout, target):
    """To the bit: an embedding may read what a product reads."""
    rng = np.random.default_rng([harness.SEED, 10])
    for n, k in ((16, 256), (40, 768)):
        q = random_weight(layout, n, k, rng)
        form, index = packing.form_of(q), np.array([3, 0, n - 1, 3, n // 2], np.int32)
        out = np.empty((len(index), k), np.float32)
        launch = packed.lower_rows(form, harness.spec_of(index, "i32"), harness.spec_of(out, "f32"))
        got = harness.run(launch, {"w": pack(q, target), "index": index}, {"out": out}, target, threads=2)["out"]
        np.testing.assert_array_equal(got.view(np.uint32), encodings.dequantize(q)[index].view(np.uint32))
    with pytest.raises(harness.KernelFailure, match=f"index {n} is outside an axis of size {n}"):
        index = np.array([0, n], np.int32)
        harness.run(packed.lower_rows(form, harness.spec_of(index, "i32"), harness.spec_of(out[:2], "f32")), {"w": pack(q, target), "index": index}, {"out": out[:2]}, target)


@pytest.mark.parametrize("dx,dc", [("f16", "f16"), ("bf16", "bf16"), ("bf16", "f32"), ("f32", "f16")])
def test_other_types_of_x_and_results(dx, dc):
    rng = np.random.default_rng([harness.SEED, 5])
    for layout in ("q4_k", "q8_0", "f8_channel"):
        check(random_weight(layout, 40, 512, rng), TARGETS[0], 3, rng, dx, dc)


@pytest.mark.parametrize("target", TARGETS)
def test_bias_activation_and_residual(target):
    rng = np.random.default_rng([harness.SEED, 6])
    q = random_weight("q8_0", 50, 256, rng)
    x = rng.standard_normal((6, 256)).astype(np.float32)
    bias, residual = rng.standard_normal(50).astype(np.float32), rng.standard_normal((6, 50)).astype(np.float32)
    weights = pack(q, target)
    plain = product(q, weights, x, "f32", "f32", target)
    both = product(q, weights, x, "f32", "f32", target, bias, residual, "relu")
    np.testing.assert_allclose(both, np.maximum(plain + bias, 0) + residual, rtol=0, atol=1e-5)


@pytest.mark.rotating(6)
@pytest.mark.parametrize("layout", PACKED)
def test_a_row_has_the_same_bytes_alone_and_in_a_batch_and_on_every_target(layout):
    rng = np.random.default_rng([harness.SEED, 7])
    q = random_weight(layout, 40 if layout in ("gptq_v1", "gptq_v2", "awq") else 37, 512, rng)
    # 8, 8, 4 and 3 rows, as kernels take them at once
    x = rng.standard_normal((23, 512)).astype(np.float32)
    every = [product(q, pack(q, target), x, "f32", "f32", target) for target in TARGETS]
    features = harness.ENVIRONMENT.cpu_features
    try:
        harness.ENVIRONMENT.cpu_features = 0  # as on a processor without VNNI
        every.append(product(q, pack(q, TARGETS[-1]), x, "f32", "f32", TARGETS[-1]))
    finally:
        harness.ENVIRONMENT.cpu_features = features
    for got in every[1:]:
        np.testing.assert_array_equal(every[0], got)
    for row in (0, 5, 8, 15, 19, 22):
        np.testing.assert_array_equal(product(q, pack(q, TARGETS[0]), x[row : row + 1], "f32", "f32", TARGETS[0])[0], every[0][row])


@pytest.mark.parametrize("target", TARGETS)
def test_numbers_that_are_none(target):
    rng = np.random.default_rng([harness.SEED, 8])
    for layout in ("q8_0", "q4_k", "i4_group"):
        q = random_weight(layout, 20, 256, rng)
        x = rng.standard_normal((4, 256)).astype(np.float32)
        x[1, 77], x[2, 3], x[3, :] = np.nan, np.inf, 0
        got = product(q, pack(q, target), x, "f32", "f32", target)
        assert np.isfinite(got[0]).all() and np.isnan(got[1:3]).all() and (got[3] == 0).all()
    q = random_weight("f8_channel", 20, 256, rng)
    q.components["data"].reshape(20, 256)[7, 100] = 0x7F
    got = product(q, pack(q, target), x[:1], "f32", "f32", target)
    assert np.isnan(got[0, 7]) and np.isfinite(np.delete(got[0], 7)).all()
    for layout in ("mxfp4", "nvfp4", "ct_nvfp4"):
        q = random_weight(layout, 20, 256, rng)
        q.components["scales"].reshape(20, -1)[3, 2] = 255
        got = product(q, pack(q, target), x[:1], "f32", "f32", target)
        assert np.isnan(got[0, 3]) and np.isfinite(np.delete(got[0], 3)).all()


@pytest.mark.parametrize("layout", quantizers.makes())
def test_quantizers_are_as_near_as_their_bits_allow(layout):
    rng = np.random.default_rng([harness.SEED, 9])
    array = rng.standard_normal((130, 512)).astype(np.float32)
    error = encodings.dequantize(quantizers.quantize(array, layout)) - array
    bits = 8 if "8" in layout else 6 if "6" in layout else 5 if "5" in layout else 4
    limit = {8: 0.03, 6: 0.03, 5: 0.06, 4: 0.13}[bits]
    assert np.sqrt((error**2).mean()) < limit, f"{layout}: {np.sqrt((error**2).mean())}"
