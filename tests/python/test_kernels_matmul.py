"""Matrix products against float64, with the error bound of a sum of k products."""

import math

import numpy as np
import pytest

import kernel_harness as harness
from accrt.compiler.kernels import matmul as mm
from accrt.compiler.kernels.kerneldef import TensorSpec

pytestmark = pytest.mark.one_target  # of this machine's, in a run of the whole folder
TARGETS = harness.host_targets()
RNG = np.random.default_rng(harness.SEED)
HALF_ULP = {"f32": 2.0**-24, "f16": 2.0**-11, "bf16": 2.0**-9, "f64": 2.0**-53}


def random_matrix(shape, dtype):
    return harness.encode(RNG.standard_normal(shape), dtype)


def assert_product(got, exact, magnitude, k, dtype, slope=1.0):
    """|error| <= (k + 8) roundings of the sum of absolute products, times the slope of what
    follows, plus the rounding of the result's type. Zeros alone or a lost k would fail it."""
    accumulate = HALF_ULP["f64" if dtype == "f64" else "f32"]
    bound = slope * (k + 8) * accumulate * (magnitude + 1e-30) + 2 * HALF_ULP[dtype] * (np.abs(exact) + 2.0**-14)
    error = np.abs(harness.decode(got, dtype) - exact)
    assert (error <= bound).all(), f"error {error.max()} at {np.unravel_index(error.argmax(), error.shape)}, seed {harness.SEED}"


def pack(b, dtype, packed_dtype, target):
    packed = mm.packed_spec(b.shape[1], b.shape[0], packed_dtype)
    launch = mm.lower_pack(harness.spec_of(b, dtype), packed)
    return packed, harness.run(launch, {"b": b}, {"packed": np.empty(packed.shape, harness.NUMPY[packed_dtype])}, target, threads=2)["packed"]


def packed_product(a, da, b, db, dp, dc, target, bias=None, residual=None, activation="none", out=None):
    packed, weights = pack(b, db, dp, target)
    out = np.empty((*a.shape[:-1], b.shape[1]), harness.NUMPY[dc]) if out is None else out
    specs = {"bias": None if bias is None else harness.spec_of(bias, "f32"), "residual": None if residual is None else harness.spec_of(residual, dc)}
    launch = mm.lower_matmul_packed(harness.spec_of(a, da), packed, harness.spec_of(out, dc), activation=activation, **specs)
    inputs = {"a": a, "b": weights}
    inputs.update({} if bias is None else {"bias": bias})
    inputs.update({} if residual is None else {"residual": residual})
    return harness.run(launch, inputs, {"out": out}, target, threads=2)["out"]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", mm.PACKED_DTYPES)
@pytest.mark.parametrize("shape", [(5, 3), (32, 64), (33, 65), (300, 1), (1, 40), (7, 0)])
def test_packed_layout(shape, dtype, target):
    b = random_matrix(shape, dtype)
    for source in (b, np.asfortranarray(b), random_matrix((shape[0] * 2, shape[1] * 3), dtype)[::2, ::3]):
        _, packed = pack(source, dtype, dtype, target)
        expected = np.zeros((-(-shape[1] // 32) * 32, shape[0]), b.dtype)
        expected[: shape[1]] = source.T
        np.testing.assert_array_equal(packed, expected.reshape(-1, 32, shape[0]).transpose(0, 2, 1))


SHAPES = [(1, 1, 1), (1, 384, 384), (2, 7, 31), (5, 100, 33), (8, 64, 96), (13, 17, 32), (14, 384, 40), (29, 1536, 65), (113, 50, 64), (250, 96, 96), (3, 0, 40), (0, 8, 8), (4, 8, 0)]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("shape", SHAPES)
def test_packed_product_f32(shape, target):
    m, k, n = shape
    a, b = random_matrix((m, k), "f32"), random_matrix((k, n), "f32")
    got = packed_product(a, "f32", b, "f32", "f32", "f32", target)
    exact, magnitude = a.astype(np.float64) @ b, np.abs(a).astype(np.float64) @ np.abs(b)
    assert_product(got, exact, magnitude, k, "f32")


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("da,dp,dc", [("bf16", "bf16", "bf16"), ("f16", "f16", "f16"), ("f32", "bf16", "f32"), ("f32", "f16", "f32"), ("bf16", "f32", "f32")])
def test_packed_product_of_16_bit_types(da, dp, dc, target):
    for m, k, n in ((1, 64, 32), (17, 2100, 70), (40, 33, 96)):
        a, b = random_matrix((m, k), da), random_matrix((k, n), dp)
        got = packed_product(a, da, b, dp, dp, dc, target)
        left, right = harness.decode(a, da), harness.decode(b, dp)
        assert_product(got, left @ right, np.abs(left) @ np.abs(right), k, dc)


ACTIVATIONS = {
    "none": lambda x: x,
    "relu": lambda x: np.maximum(x, 0),
    "gelu": lambda x: 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))),
    "gelu_tanh": lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "tanh": np.tanh,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("activation", sorted(ACTIVATIONS))
def test_epilogue(activation, target):
    for m, k, n in ((19, 40, 50), (1, 24, 288)):
        a, b = random_matrix((m, k), "f32"), random_matrix((k, n), "f32")
        bias, residual = random_matrix((n,), "f32"), random_matrix((m, n), "f32")
        got = packed_product(a, "f32", b, "f32", "f32", "f32", target, bias, residual, activation)
        exact = ACTIVATIONS[activation](a.astype(np.float64) @ b + bias) + residual
        # Every activation has a slope of at most 1.13; its own error is a few ULP of values up to
        # ~30.
        assert_product(got, exact, np.abs(a).astype(np.float64) @ np.abs(b) + 30, k, "f32", slope=1.2)


@pytest.mark.parametrize("target", TARGETS)
def test_packed_product_with_strided_rows_and_leading_axes(target):
    wide = random_matrix((2, 9, 100), "f32")
    a, b = wide[:, :, 10:70], random_matrix((60, 45), "f32")
    out = np.ndarray((2, 9, 45), np.float32, bytearray(4 * 2 * 9 * 50), 0, (4 * 9 * 50, 4 * 50, 4))
    got = packed_product(a, "f32", b, "f32", "f32", "f32", target, out=out)
    assert_product(got, a.astype(np.float64) @ b, np.abs(a).astype(np.float64) @ np.abs(b), 60, "f32")
    with pytest.raises(ValueError, match="are not one axis"):
        mm.collapse_rows(harness.spec_of(wide[:, :5], "f32"), "a")
    with pytest.raises(ValueError, match="1 is needed"):
        mm.require_contiguous_last(harness.spec_of(wide.transpose(0, 2, 1), "f32"), "a")


@pytest.mark.parametrize("target", TARGETS)
def test_infinities_and_nan_stay_in_their_rows_and_columns(target):
    a, b = random_matrix((20, 30), "f32"), random_matrix((30, 40), "f32")
    a[3, 4], a[5, 6], b[7, 39] = np.nan, np.inf, np.nan
    got = packed_product(a, "f32", b, "f32", "f32", "f32", target)
    bad = ~np.isfinite(got)
    assert bad[3].all() and bad[5].all() and bad[:, 39].all()
    bad[3], bad[5], bad[:, 39] = False, False, False
    assert not bad.any()


@pytest.mark.parametrize("target", TARGETS)
def test_results_do_not_depend_on_the_number_of_rows(target):
    # A row has the same bytes alone and among others: batching does not change a model's answers.
    a, b = random_matrix((150, 200), "f32"), random_matrix((200, 70), "f32")
    whole = packed_product(a, "f32", b, "f32", "f32", "f32", target)
    for rows in (1, 6, 14, 37):
        np.testing.assert_array_equal(packed_product(a[:rows], "f32", b, "f32", "f32", "f32", target), whole[:rows])


def dynamic_product(a, b, dtype, target, scale=1.0, c_dtype=None):
    c_dtype = c_dtype or dtype
    lead = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    out = np.empty((*lead, a.shape[-2], b.shape[-1]), harness.NUMPY[c_dtype])
    launch = mm.lower_matmul(harness.spec_of(a, dtype), harness.spec_of(b, dtype), harness.spec_of(out, c_dtype), scale)
    return harness.run(launch, {"a": a, "b": b}, {"out": out}, target, threads=2)["out"]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16", "f64"])
@pytest.mark.parametrize("flip_a,flip_b", [(False, False), (True, False), (False, True), (True, True)])
def test_dynamic_product(flip_a, flip_b, dtype, target):
    for lead_a, lead_b, m, k, n in (((), (), 1, 5, 3), ((2, 3), (2, 3), 17, 40, 33), ((4, 1), (5,), 3, 600, 10), ((0,), (0,), 4, 4, 4), ((2,), (), 120, 8, 70), ((), (3,), 5, 0, 6)):
        a = random_matrix((*lead_a, k, m), dtype).swapaxes(-1, -2) if flip_a else random_matrix((*lead_a, m, k), dtype)
        b = random_matrix((*lead_b, n, k), dtype).swapaxes(-1, -2) if flip_b else random_matrix((*lead_b, k, n), dtype)
        scale = 1.0 if dtype == "f64" else 0.125
        left, right = harness.decode(a, dtype) * scale, harness.decode(b, dtype)
        got = dynamic_product(a, b, dtype, target, scale)
        assert_product(got, left @ right, np.abs(left) @ np.abs(right), k, dtype)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["i32", "u32", "i64"])
def test_integer_product_wraps(dtype, target):
    info = np.iinfo(harness.NUMPY[dtype])
    a, b = RNG.integers(info.min, info.max, (2, 19, 23), harness.NUMPY[dtype]), RNG.integers(info.min, info.max, (23, 70), harness.NUMPY[dtype])
    np.testing.assert_array_equal(dynamic_product(a, b, dtype, target), a @ b)


def test_unusable_operands_are_named():
    spec = TensorSpec.contiguous
    packed = mm.packed_spec(8, 4, "f32")
    with pytest.raises(ValueError, match="bias: the type is bf16"):
        mm.lower_matmul_packed(spec("f32", (2, 4)), packed, spec("f32", (2, 8)), bias=spec("bf16", (8,)))
    with pytest.raises(ValueError, match="residual: the type is f64"):
        mm.lower_matmul_packed(spec("f32", (2, 4)), packed, spec("f32", (2, 8)), residual=spec("f64", (2, 8)))
    with pytest.raises(ValueError, match="do not join into three"):
        shape = (2, 3, 4, 5, 6, 7)
        mm.lower_matmul(TensorSpec("f32", shape, (1, 9, 99, 999, 9999, 1)), spec("f32", (7, 8)), spec("f32", (2, 3, 4, 5, 6, 8)))
