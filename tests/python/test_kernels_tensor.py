"""Norms, softmax, reductions, gather, rotary embedding and copies against float64 numpy."""

import numpy as np
import pytest

import kernel_harness as harness
from accrt.compiler.kernels import tensor_ops as ops
from accrt.compiler.kernels.kerneldef import TensorSpec

pytestmark = pytest.mark.one_target  # of this machine's, in a run of the whole folder
TARGETS = harness.host_targets()
RNG = np.random.default_rng(harness.SEED)
# A few roundings of the type that results are stored in; those of f32 sums over some hundred
# elements for f32.
RTOL = {"f32": 3e-6, "f64": 1e-13, "bf16": 2.0**-7, "f16": 2.0**-9}


def random(shape, dtype="f32", scale=1.0):
    return harness.encode(RNG.standard_normal(shape) * scale, dtype)


def assert_close(got, exact, dtype):
    np.testing.assert_allclose(harness.decode(got, dtype), exact, rtol=RTOL[dtype], atol=RTOL[dtype], err_msg=f"seed {harness.SEED}")


# ---- Norms ---------------------------------------------------------------------------------------


def norm_reference(kind, x, weight, bias, epsilon):
    if kind == "layer_norm":
        x = x - x.mean(-1, keepdims=True)
    y = x / np.sqrt((x * x).mean(-1, keepdims=True) + epsilon)
    return y * (1 if weight is None else weight) + (0 if bias is None else bias)


def run_norm(kind, x, dtype, target, weight=None, bias=None, weight_dtype="f32", epsilon=1e-5, out=None):
    out = np.empty(x.shape, x.dtype) if out is None else out
    specs = [None if array is None else harness.spec_of(array, weight_dtype) for array in (weight, bias)]
    launch = ops.lower_norm(kind, harness.spec_of(x, dtype), harness.spec_of(out, dtype), *specs, epsilon=epsilon)
    inputs = {"x": x}
    inputs.update({name: array for name, array in (("weight", weight), ("bias", bias)) if array is not None})
    return harness.run(launch, inputs, {"out": out}, target, threads=2)["out"]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16", "f64"])
@pytest.mark.parametrize("kind", ["layer_norm", "rms_norm"])
@pytest.mark.parametrize("shape", [(1, 1), (7, 384), (3, 5, 33), (100, 31), (2, 1000), (0, 8)])
def test_norms(shape, kind, dtype, target):
    x, weight_dtype = random(shape, dtype, 3.0), "f64" if dtype == "f64" else "f32"
    x = x + np.asarray(5, x.dtype) if dtype in ("f32", "f64") else x
    weight, bias = random(shape[-1:], weight_dtype), random(shape[-1:], weight_dtype)
    for w, b in ((weight, bias), (weight, None), (None, None), (None, bias)):
        got = run_norm(kind, x, dtype, target, w, b, weight_dtype)
        assert_close(got, norm_reference(kind, harness.decode(x, dtype), w, b, 1e-5), dtype)


@pytest.mark.parametrize("target", TARGETS)
def test_layer_norm_of_large_offsets_and_constant_rows(target):
    # One pass over squares would cancel: 1e4 + noise of 1.
    x = (1e4 + RNG.standard_normal((4, 384))).astype(np.float32)
    got = run_norm("layer_norm", x, "f32", target)
    # The mean of 384 values of 1e4 is off by some 1e-3 * 2^-3, which is the absolute error of the
    # result.
    np.testing.assert_allclose(got, norm_reference("layer_norm", x.astype(np.float64), None, None, 1e-5), atol=1e-3)
    constant = np.full((2, 100), 3.0, np.float32)
    assert (run_norm("layer_norm", constant, "f32", target) == 0).all()
    assert (run_norm("rms_norm", np.zeros((2, 100), np.float32), "f32", target) == 0).all()
    poisoned = random((3, 64))
    poisoned[1, 5] = np.nan
    assert np.isnan(run_norm("layer_norm", poisoned, "f32", target)).all(-1).tolist() == [False, True, False]


@pytest.mark.parametrize("target", TARGETS)
def test_norm_of_strided_rows(target):
    x = random((6, 100))[::2, :40]
    out = np.ndarray((3, 40), np.float32, bytearray(4 * 3 * 50), 0, (200, 4))
    assert_close(run_norm("rms_norm", x, "f32", target, out=out), norm_reference("rms_norm", x.astype(np.float64), None, None, 1e-5), "f32")


# ---- Softmax -------------------------------------------------------------------------------------


def run_softmax(x, dtype, target, logarithm=False):
    launch = ops.lower_softmax(harness.spec_of(x, dtype), TensorSpec.contiguous(dtype, x.shape), logarithm)
    return harness.run(launch, {"x": x}, {"out": np.empty(x.shape, x.dtype)}, target, threads=2)["out"]


def softmax_reference(x, logarithm=False):
    with np.errstate(all="ignore"):
        shifted = x - x.max(-1, keepdims=True)
        total = np.exp(shifted).sum(-1, keepdims=True)
        return shifted - np.log(total) if logarithm else np.exp(shifted) / total


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16", "f64"])
@pytest.mark.parametrize("shape", [(1, 1), (5, 32), (3, 4, 77), (2, 1500), (0, 4), (33, 128)])
def test_softmax(shape, dtype, target):
    x = random(shape, dtype, 4.0)
    for logarithm in (False, True):
        got = run_softmax(x, dtype, target, logarithm)
        assert_close(got, softmax_reference(harness.decode(x, dtype), logarithm), dtype)


@pytest.mark.parametrize("target", TARGETS)
def test_softmax_of_extreme_rows(target):
    inf, nan = np.inf, np.nan
    x = np.array([[1e38, -1e38, 0], [-inf, 0, 1], [-inf, -inf, -inf], [inf, 0, 0], [nan, 0, 0], [3e38, 3e38, 3e38], [-200, 0, -90]], np.float32)
    got = run_softmax(x, "f32", target)
    np.testing.assert_allclose(got, softmax_reference(x.astype(np.float64)), rtol=1e-6, atol=1e-37)
    assert np.isnan(got[2:5]).all()


@pytest.mark.parametrize("target", TARGETS)
def test_softmax_sums_to_one_over_a_long_row(target):
    got = run_softmax(random((2, 40_000)), "f32", target)
    np.testing.assert_allclose(got.sum(-1, dtype=np.float64), 1, rtol=1e-6)


# ---- Reductions ----------------------------------------------------------------------------------

NUMPY_REDUCE = {"sum": np.sum, "mean": np.mean, "prod": np.prod, "max": np.max, "min": np.min}


def run_reduce(op, x, dtype, out_dtype, axes, target, keep=False):
    shape = tuple((1 if keep else None) if i in axes else n for i, n in enumerate(x.shape))
    shape = tuple(n for n in shape if n is not None)
    launch = ops.lower_reduce(op, harness.spec_of(x, dtype), TensorSpec.contiguous(out_dtype, shape), axes)
    return harness.run(launch, {"x": x}, {"out": np.empty(shape, harness.NUMPY[out_dtype])}, target, threads=2)["out"]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("op", ops.REDUCTIONS)
@pytest.mark.parametrize("axes", [(0,), (1,), (2,), (0, 2), (1, 2), (0, 1, 2), (3,), (1, 3)])
def test_float_reductions(axes, op, target):
    x = 1 + random((3, 5, 37, 130) if op != "prod" else (3, 5, 4, 3), "f32", 0.25)
    if op in ("max", "min"):
        x -= 1
    exact = NUMPY_REDUCE[op](x.astype(np.float64), axis=axes)
    np.testing.assert_allclose(run_reduce(op, x, "f32", "f32", axes, target), exact, rtol=3e-6)
    np.testing.assert_allclose(run_reduce(op, x, "f32", "f32", axes, target, keep=True).ravel(), np.ravel(exact), rtol=3e-6)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype,out", [("f64", "f64"), ("bf16", "bf16"), ("f16", "f16")])
def test_reductions_of_other_floats(dtype, out, target):
    x = random((20, 300), dtype)
    for op in ("sum", "max"):
        for axes in ((0,), (1,)):
            exact = NUMPY_REDUCE[op](harness.decode(x, dtype), axis=axes)
            got = harness.decode(run_reduce(op, x, dtype, out, axes, target), out)
            # Relative to the sum of magnitudes (about 250): f32 accumulation, then the result's
            # rounding.
            np.testing.assert_allclose(got, exact, rtol=RTOL[out], atol=300 * (1e-15 if dtype == "f64" else 2e-7))


@pytest.mark.rotating(3)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype,out", [("i32", "i64"), ("u8", "i64"), ("i8", "i64"), ("bool", "i64"), ("i32", "i32"), ("i64", "i64")])
def test_integer_reductions_are_exact(dtype, out, target):
    low, high = (0, 1) if dtype == "bool" else (np.iinfo(harness.NUMPY[dtype]).min, np.iinfo(harness.NUMPY[dtype]).max)
    x = RNG.integers(low, high, (9, 77), np.int64, endpoint=True).astype(harness.NUMPY[dtype])
    for axes in ((0,), (1,), (0, 1)):
        for op in ("sum", "max", "min", "prod"):
            with np.errstate(over="ignore"):
                exact = NUMPY_REDUCE[op](x, axis=axes, **({"dtype": harness.NUMPY[out]} if op in ("sum", "prod") else {}))
            np.testing.assert_array_equal(run_reduce(op, x, dtype, out, axes, target), exact)


@pytest.mark.parametrize("target", TARGETS)
def test_reductions_of_nothing_and_of_nan(target):
    empty = np.empty((3, 0), np.float32)
    for op, value in (("sum", 0), ("mean", np.nan), ("prod", 1), ("max", -np.inf), ("min", np.inf)):
        np.testing.assert_array_equal(run_reduce(op, empty, "f32", "f32", (1,), target), np.full(3, value, np.float32))
        assert run_reduce(op, empty, "f32", "f32", (0,), target).shape == (0,)
        x = random((4, 100))
        x[2, 57] = np.nan
        assert np.isnan(run_reduce(op, x, "f32", "f32", (1,), target)).tolist() == [False, False, True, False]
        assert np.isnan(run_reduce(op, x, "f32", "f32", (0,), target)).sum() == 1


@pytest.mark.parametrize("target", TARGETS)
def test_reductions_of_strided_and_long_tensors(target):
    x = random((40, 60, 6)).transpose(2, 0, 1)[:, ::3, 5:41]
    for axes in ((0,), (1,), (2,), (0, 1)):
        np.testing.assert_allclose(run_reduce("sum", x, "f32", "f32", axes, target), x.astype(np.float64).sum(axes), atol=2e-5)
    ones = np.full((1_000_000,), 0.1, np.float32)
    np.testing.assert_allclose(run_reduce("sum", ones, "f32", "f32", (0,), target), ones.astype(np.float64).sum(), rtol=1e-6)


# ---- Gather --------------------------------------------------------------------------------------


def run_gather(x, dtype, index, index_dtype, axis, target):
    shape = (*x.shape[:axis], *index.shape, *x.shape[axis + 1 :])
    specs = harness.spec_of(x, dtype), harness.spec_of(index, index_dtype), TensorSpec.contiguous(dtype, shape)
    launch = ops.lower_gather(*specs, axis)
    return harness.run(launch, {"x": x, "index": index}, {"out": np.empty(shape, x.dtype)}, target, threads=2)["out"]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("index_dtype", ["i32", "i64"])
@pytest.mark.parametrize("dtype", ["f32", "bf16", "i8", "f64", "bool"])
def test_gather(dtype, index_dtype, target):
    for shape, axis, index_shape in (((50, 384), 0, (2, 7)), ((3, 9, 5), 1, (11,)), ((4, 6), 1, (3, 2)), ((5, 4), 0, (0,)), ((7,), 0, (3,)), ((0, 5, 4), 1, (2,))):
        x = harness.encode(RNG.integers(0, 2 if dtype == "bool" else 100, shape), dtype)
        index = RNG.integers(0, shape[axis], index_shape).astype(harness.NUMPY[index_dtype])
        np.testing.assert_array_equal(run_gather(x, dtype, index, index_dtype, axis, target), np.take(x, index, axis))
    wide = random((20, 30), dtype)[:, :7]
    index = np.array([3, 19, 0], harness.NUMPY[index_dtype])
    np.testing.assert_array_equal(run_gather(wide, dtype, index, index_dtype, 0, target), wide[index])


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("bad", [-1, 10, 2**31 - 1, -(2**31)])
def test_gather_refuses_an_index_out_of_range(bad, target):
    index = np.array([0, 9, bad], np.int32)
    with pytest.raises(harness.KernelFailure, match=rf"index {bad} is outside an axis of size 10") as failure:
        run_gather(random((10, 4)), "f32", index, "i32", 0, target)
    assert failure.value.code == 1


# ---- Rotary embedding ----------------------------------------------------------------------------


def rope_reference(x, positions, theta, rotary, interleaved, frequencies=None):
    """x [batch, length, heads, size], positions [batch, length]."""
    if frequencies is None:
        frequencies = theta ** (-2.0 * np.arange(rotary // 2) / rotary)
    angle = positions[..., None, None] * frequencies
    cosine, sine = np.cos(angle), np.sin(angle)
    out = x.copy()
    first, second = (slice(0, rotary, 2), slice(1, rotary, 2)) if interleaved else (slice(0, rotary // 2), slice(rotary // 2, rotary))
    out[..., first] = x[..., first] * cosine - x[..., second] * sine
    out[..., second] = x[..., second] * cosine + x[..., first] * sine
    return out


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("shape,rotary,start", [((2, 9, 3, 64), 64, 0), ((1, 1, 4, 128), 128, 100_000), ((1, 20, 2, 80), 32, 7), ((2, 0, 1, 8), 8, 0), ((1, 3, 2, 6), 2, 1)])
def test_rope(shape, rotary, start, interleaved, dtype, target):
    x = random(shape, dtype)
    out = TensorSpec.contiguous(dtype, shape)
    launch = ops.lower_rope(harness.spec_of(x, dtype), out, theta=10000.0, rotary=rotary, interleaved=interleaved, start=start)
    got = harness.run(launch, {"x": x}, {"out": np.empty(shape, x.dtype)}, target, threads=2)["out"]
    positions = np.broadcast_to(start + np.arange(shape[1]), shape[:2])
    exact = rope_reference(harness.decode(x, dtype), positions.astype(np.float64), 10000.0, rotary, interleaved)
    # Angles are formed in double: what is left is the rounding of f32 sines and of the result.
    np.testing.assert_allclose(harness.decode(got, dtype), exact, rtol=RTOL[dtype], atol=RTOL[dtype])


@pytest.mark.parametrize("target", TARGETS)
def test_rope_with_positions_frequencies_and_strides(target):
    x = random((2, 3, 5, 32)).swapaxes(1, 2)  # [batch, length, heads, size] of head-major memory
    frequencies = RNG.random(16).astype(np.float32)
    for kind in ("i32", "i64"):
        positions = RNG.integers(0, 4000, (2, 5)).astype(harness.NUMPY[kind])
        specs = {"positions": harness.spec_of(positions, kind), "frequencies": harness.spec_of(frequencies, "f32")}
        launch = ops.lower_rope(harness.spec_of(x, "f32"), TensorSpec.contiguous("f32", x.shape), start=3, **specs)
        inputs = {"x": x, "positions": positions, "frequencies": frequencies}
        got = harness.run(launch, inputs, {"out": np.empty(x.shape, np.float32)}, target)["out"]
        exact = rope_reference(x.astype(np.float64), 3.0 + positions, 0, 32, False, frequencies.astype(np.float64))
        np.testing.assert_allclose(got, exact, rtol=3e-6, atol=3e-6)


# ---- Copies --------------------------------------------------------------------------------------


def run_copy(x, dtype, out, target):
    launch = ops.lower_copy(harness.spec_of(x, dtype), harness.spec_of(out, dtype))
    return harness.run(launch, {"x": x}, {"out": out}, target, threads=2)["out"]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["u8", "f16", "f32", "f64"])
def test_copies(dtype, target):
    base = harness.encode(RNG.integers(0, 200, (6, 50, 40)), dtype)
    views = [
        base, base.transpose(2, 1, 0), base.transpose(0, 2, 1), base.transpose(1, 0, 2), base[::2, 3:47:5, 1:39],
        base[:, :, ::3].transpose(2, 0, 1), base[0, 0], base[:0], base[2:3, 4:5, 6:7], base.reshape(2, 3, 5, 10, 2, 2, 5, 2).transpose(7, 2, 5, 0, 3, 6, 1, 4),
    ]  # fmt: skip
    for view in views:
        np.testing.assert_array_equal(run_copy(view, dtype, np.empty(view.shape, view.dtype), target), view)
    np.testing.assert_array_equal(run_copy(base[0, 0], dtype, np.empty((3, 40), base.dtype), target), np.broadcast_to(base[0, 0], (3, 40)))
    out = np.ndarray((6, 50, 40), base.dtype, bytearray(base.nbytes * 2), 0, (base.itemsize, base.itemsize * 6, base.itemsize * 300))
    np.testing.assert_array_equal(run_copy(base, dtype, out, target), base)


@pytest.mark.parametrize("target", TARGETS)
def test_concatenation_is_copies_with_offsets(target):
    a, b = random((4, 3)), random((4, 5))
    memory = harness.Memory()
    memory.add("a", a, poison=False)
    memory.add("b", b, poison=False)
    memory.add("out", np.empty((4, 8), np.float32), poison=True)
    for name, array, at in (("a", a, 0), ("b", b, 3)):
        launch = ops.lower_copy(harness.spec_of(array, "f32"), TensorSpec("f32", array.shape, (8, 1)), out_offset=at)
        memory.arrays["x"], memory._blocks["x"] = memory.arrays[name], memory._blocks[name]
        harness.run_launch(launch, memory, target)
        del memory.arrays["x"], memory._blocks["x"]
    memory.check()
    np.testing.assert_array_equal(memory.arrays["out"], np.concatenate([a, b], 1))


def test_unusable_operands_are_named():
    spec = TensorSpec.contiguous
    with pytest.raises(ValueError, match="types f32 and bf16 differ"):
        ops.lower_copy(spec("f32", (3,)), spec("bf16", (3,)))
    with pytest.raises(ValueError, match="must be contiguous"):
        ops.lower_gather(TensorSpec("f32", (4, 5), (5, 2)), spec("i32", (2,)), spec("f32", (2, 5)))
    with pytest.raises(ValueError, match="an even number"):
        ops.lower_rope(spec("f32", (1, 1, 1, 8)), spec("f32", (1, 1, 1, 8)), rotary=3)
    with pytest.raises(ValueError, match="one float type is needed"):
        ops.lower_softmax(spec("i32", (4,)), spec("i32", (4,)))
    with pytest.raises(ValueError, match="do not join"):
        ops.lower_reduce("sum", spec("f32", (2, 3, 4, 5, 6)), spec("f32", (3, 5)), (0, 2, 4))
