"""Convolutions and pooling, channels last, against float64, with the error bound of a sum of k
products."""

import numpy as np
import pytest

import kernel_harness as harness
from accrt.compiler import ops
from accrt.compiler.kernels import conv, matmul
from accrt.compiler.kernels.kerneldef import TensorSpec
from accrt.compiler.ops.convolutions import window_of

pytestmark = pytest.mark.one_target  # of this machine's, in a run of the whole folder
TARGETS = harness.host_targets()
RNG = np.random.default_rng(harness.SEED)
HALF_ULP = {"f32": 2.0**-24, "f16": 2.0**-11, "bf16": 2.0**-9}

# batch, height, width, channels, outputs, groups, kernel, stride, padding, dilation
SHAPES = [
    (1, 1, 1, 1, 1, 1, 1, 1, 0, 1),
    (2, 9, 7, 3, 33, 1, (7, 7), 2, 3, 1),
    (1, 14, 14, 64, 64, 1, 3, 1, 1, 1),
    (1, 30, 31, 20, 8, 1, 3, 2, (1, 0, 0, 2), 1),
    (1, 12, 13, 16, 24, 4, 3, 1, 1, 1),
    (1, 12, 13, 8, 40, 1, (3, 2), 1, 2, (2, 3)),
    (1, 1, 40, 5, 9, 1, (1, 3), 1, (0, 1), 1),
    (1, 7, 7, 1200, 40, 1, 3, 1, 1, 1),
    (2, 6, 7, 24, 70, 1, 3, 1, 1, 1),  # rows of half a block go by two
    (1, 14, 14, 40, 33, 1, 3, 2, 1, 1),
    (1, 5, 11, 12, 40, 1, 3, 1, 0, 2),
    (2, 9, 3, 16, 34, 2, (3, 1), 1, (1, 0), 1),
    (1, 8, 8, 70, 40, 2, 1, 2, 0, 1),
    (0, 8, 8, 4, 4, 1, 1, 1, 0, 1),
]  # fmt: skip


def random(shape, dtype="f32"):
    return harness.encode(RNG.standard_normal(shape), dtype)


def packed_weight(weight, dtype, groups, target):
    """[outputs, channels, height, width] for each group as gemm_pack.c makes it."""
    parts = []
    for part in np.split(weight, groups):
        matrix = np.ascontiguousarray(part.transpose(2, 3, 1, 0).reshape(-1, part.shape[0]))
        spec = matmul.packed_spec(matrix.shape[1], matrix.shape[0], dtype)
        launch = matmul.lower_pack(harness.spec_of(matrix, dtype), spec)
        parts.append(harness.run(launch, {"b": matrix}, {"packed": np.empty(spec.shape, harness.NUMPY[dtype])}, target)["packed"])
    return np.concatenate(parts)


def convolved(x, weight, dtype, shape, target, bias=None, residual=None, **attrs):
    """x [batch, height, width, channels] with any strides."""
    groups, window = shape[5], window_of(weight.shape[2:], *shape[7:])
    packed = packed_weight(weight, dtype, groups, target)
    sizes = (x.shape[0], *window.sizes(x.shape[1], x.shape[2]), weight.shape[0])
    out = np.empty(sizes, harness.NUMPY[dtype])
    given = {name: a for name, a in (("bias", bias), ("residual", residual)) if a is not None}
    specs = {name: harness.spec_of(a, "f32" if name == "bias" else dtype) for name, a in given.items()}
    launch = conv.lower_conv(harness.spec_of(x, dtype), TensorSpec.contiguous(dtype, packed.shape), harness.spec_of(out, dtype), window, groups, **specs, **attrs)
    return harness.run(launch, {"x": x, "w": packed, **given}, {"out": out}, target, threads=2)["out"]


def reference(x, weight, shape):
    made = ops.OPS["aten.conv2d"].reference(x.transpose(0, 3, 1, 2), weight, None, *shape[7:], shape[5])
    return made.transpose(0, 2, 3, 1)


def of(shape, dtype="f32"):
    batch, height, width, channels, outputs, groups, kernel = shape[:7]
    kernel = kernel if isinstance(kernel, tuple) else (kernel, kernel)
    return random((batch, height, width, channels), dtype), random((outputs, channels // groups, *kernel), dtype)


def assert_close(got, x, weight, shape, dtype="f32", slope=1.0, finish=lambda y: y):
    left, right = harness.decode(x, dtype), harness.decode(weight, dtype)
    exact, magnitude = finish(reference(left, right, shape)), reference(abs(left), abs(right), shape)
    k = weight[0].size
    bound = slope * (k + 8) * HALF_ULP["f32"] * (magnitude + 4) + 2 * HALF_ULP[dtype] * (np.abs(exact) + 2.0**-14)
    assert (np.abs(harness.decode(got, dtype) - exact) <= bound).all(), f"seed {harness.SEED}"


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("shape", SHAPES)
def test_convolution(shape, target):
    x, weight = of(shape)
    assert_close(convolved(x, weight, "f32", shape, target), x, weight, shape)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_convolution_of_16_bit_types(dtype, target):
    for shape in ((1, 9, 7, 40, 33, 1, 3, 2, 1, 1), (2, 5, 5, 8, 8, 2, 3, 1, 1, 1)):
        x, weight = of(shape, dtype)
        assert_close(convolved(x, weight, dtype, shape, target), x, weight, shape, dtype)


@pytest.mark.parametrize("target", TARGETS)
def test_channels_first_and_parts_of_wider_images(target):
    shape = (2, 9, 11, 8, 33, 1, 3, 1, 1, 1)
    _x, weight = of(shape)
    wide = random((2, 12, 9, 13))
    for x in (random((2, 8, 9, 11)).transpose(0, 2, 3, 1), wide[:, 2:10, :, 1:12].transpose(0, 2, 3, 1), random((2, 9, 22, 8))[:, :, ::2]):
        assert_close(convolved(x, weight, "f32", shape, target), x, weight, shape)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_colours_that_come_one_after_the_other(dtype, target):
    for shape in ((2, 9, 37, 3, 33, 1, 7, 2, 3, 1), (1, 5, 6, 3, 8, 1, 1, 1, 0, 1), (1, 12, 20, 3, 8, 1, 3, 1, 1, 1)):
        _x, weight = of(shape, dtype)
        x = random((shape[0], 3, *shape[1:3]), dtype).transpose(0, 2, 3, 1)
        assert_close(convolved(x, weight, dtype, shape, target), x, weight, shape, dtype)


@pytest.mark.parametrize("target", TARGETS)
def test_what_follows_a_convolution(target):
    shape = (1, 10, 9, 16, 40, 1, 3, 1, 0, 1)
    x, weight = of(shape)
    bias, residual = random((40,)), random((1, 8, 7, 40))
    got = convolved(x, weight, "f32", shape, target, bias, residual, activation="tanh", last="relu")
    assert_close(got, x, weight, shape, slope=2, finish=lambda y: np.maximum(np.tanh(y + bias) + residual, 0))


def windowed(kind, x, dtype, window, target, **given):
    out = np.empty((x.shape[0], *window.sizes(x.shape[1], x.shape[2]), x.shape[3]), harness.NUMPY[dtype])
    specs = {name: harness.spec_of(a, "f32") for name, a in given.items()}
    launch = conv.lower_window(kind, harness.spec_of(x, dtype), harness.spec_of(out, dtype), window, **specs)
    return harness.run(launch, {"x": x, **given}, {"out": out}, target, threads=2)["out"]


@pytest.mark.rotating(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
def test_windows(dtype, target):
    for sizes, kernel, stride, padding, dilation in (((2, 9, 7, 70), 3, 2, 1, 1), ((1, 5, 6, 3), (2, 3), 1, (0, 1, 2, 1), (2, 1)), ((0, 5, 5, 4), 2, 2, 0, 1)):
        x, window = random(sizes, dtype), window_of(kernel if isinstance(kernel, tuple) else (kernel, kernel), stride, padding, dilation)
        wide, first = harness.decode(x, dtype), harness.decode(x, dtype).transpose(0, 3, 1, 2)
        weight, bias = random((window.kernel[0] * window.kernel[1], sizes[3])), random((sizes[3],))
        got = harness.decode(windowed("depthwise", x, dtype, window, target, w=weight, bias=bias), dtype)
        shape = (*sizes, sizes[3], sizes[3], kernel, stride, padding, dilation)
        exact = reference(wide, weight.T.astype(np.float64).reshape(-1, 1, *window.kernel), shape) + bias
        assert (np.abs(got - exact) <= 32 * HALF_ULP["f32"] * (np.abs(exact) + 16) + 2 * HALF_ULP[dtype] * (np.abs(exact) + 2.0**-14)).all()
        got = windowed("max", x, dtype, window, target)
        exact = ops.OPS["aten.max_pool2d"].reference(first, window.kernel, stride, padding, dilation).transpose(0, 2, 3, 1)
        np.testing.assert_array_equal(harness.decode(got, dtype), exact)
        if dilation == 1:
            got = harness.decode(windowed("mean", x, dtype, window, target), dtype)
            exact = ops.OPS["aten.avg_pool2d"].reference(first, window.kernel, stride, padding).transpose(0, 2, 3, 1)
            assert (np.abs(got - exact) <= 32 * HALF_ULP["f32"] + 2 * HALF_ULP[dtype] * (np.abs(exact) + 2.0**-14)).all()


@pytest.mark.parametrize("target", TARGETS)
def test_the_largest_of_nan_is_nan(target):
    x = random((1, 6, 6, 40))
    x[0, 2, 3, 7] = np.nan
    got = windowed("max", x, "f32", window_of((3, 3), 1, 0, 1), target)
    expected = np.zeros_like(got, bool)
    expected[0, 0:3, 1:4, 7] = True
    np.testing.assert_array_equal(np.isnan(got), expected)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
def test_norms_of_groups(dtype, target):
    for sizes, groups in (((2, 9, 70, 12), 3), ((1, 3, 4, 200), 20), ((1, 1, 1, 5), 1), ((0, 3, 4, 8), 2)):
        x, residual = (harness.encode(RNG.standard_normal(sizes) * 3 + 100, dtype) for _ in range(2))
        weight, bias, out = random((sizes[3],)), random((sizes[3],)), np.empty(sizes, harness.NUMPY[dtype])
        given = {"weight": weight, "bias": bias, "residual": residual}
        specs = {name: harness.spec_of(a, dtype if name == "residual" else "f32") for name, a in given.items()}
        launch = conv.lower_group_norm(harness.spec_of(x, dtype), harness.spec_of(out, dtype), groups, 1e-5, activation="tanh", last="relu", **specs)
        got = harness.decode(harness.run(launch, {"x": x, **given}, {"out": out}, target, threads=2)["out"], dtype)
        made = ops.OPS["aten.group_norm"].reference(harness.decode(x, dtype).transpose(0, 3, 1, 2), weight, bias, groups, 1e-5)
        exact = np.maximum(np.tanh(made.transpose(0, 2, 3, 1)) + harness.decode(residual, dtype), 0)
        # The mean, about 100, is f32: of its distances that many roundings.
        assert (np.abs(got - exact) <= 1024 * HALF_ULP["f32"] * 4 + 2 * HALF_ULP[dtype] * np.abs(exact)).all(), f"seed {harness.SEED}"


def test_blocks_fit_local_memory():
    for channels, outputs, size, kernel, stride, dilation in ((3, 64, 224, 7, 2, 1), (512, 512, 7, 3, 1, 1), (4096, 4096, 64, 3, 1, 1), (64, 64, 999, 31, 1, 1), (2048, 10, "h", 3, 2, 2)):
        window = window_of((kernel, kernel), stride, 1, dilation)
        made = conv.blocking(window, channels, outputs, size, size)
        high, wide = made["block_h"], made["block_w"]
        seen = conv._seen(high, stride, kernel, dilation) * conv._seen(wide, stride, kernel, dilation)
        assert high * wide * made["panels_per_group"] * 32 <= conv.TILE_FLOATS and seen * made["slice"] <= conv.SEEN_FLOATS
    with pytest.raises(ValueError, match="sees too much"):
        conv.blocking(window_of((99, 99), 1, 0, 9), 64, 64, 64, 64)
