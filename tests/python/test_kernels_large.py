"""Strides past 2^31 elements: 32-bit arithmetic on offsets would wrap silently. Sparse memory, a
few pages of which are used."""

import mmap

import numpy as np
import pytest

import kernel_harness as harness
from accrt.compiler.kernels import attention, elementwise, matmul, tensor_ops
from accrt.compiler.kernels.kerneldef import TensorSpec

STEP = 2**31 + 2**20  # elements between rows
MAP_NORESERVE = 0x4000
TARGETS = harness.host_targets()[-1:]
RNG = np.random.default_rng(harness.SEED)


class Sparse:
    """Arrays by name, where they lie: what kernel_harness.run_launch needs of its memory."""

    def __init__(self):
        self.arrays = {}

    def add(self, name, array):
        self.arrays[name] = array

    def address(self, name):
        return self.arrays[name].ctypes.data


@pytest.fixture(scope="module")
def far():
    """Makes [2, n] arrays whose rows are STEP elements apart, in address space that costs nothing
    until it is touched."""
    maps = []

    def make(n, dtype=np.float32, fill=True):
        item = np.dtype(dtype).itemsize
        try:
            maps.append(mmap.mmap(-1, STEP * item + n * item, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE))
        except OSError as error:
            pytest.skip(f"no address space for strides past 2^31 elements: {error}")
        array = np.ndarray((2, n), dtype, maps[-1], 0, (STEP * item, item))
        if fill:
            array[...] = RNG.standard_normal((2, n))
        return array

    return make


def run(launch, target, **arrays):
    memory = Sparse()
    for name, array in arrays.items():
        memory.add(name, array)
    harness.run_launch(launch, memory, target)


def spec(array):
    return harness.spec_of(array, "f32")


@pytest.mark.parametrize("target", TARGETS)
def test_rows_far_apart(far, target):
    x, out = far(64), far(64, fill=False)
    node = elementwise.Node
    program = elementwise.Program((node("input", "f32", (), 0), node("neg", "f32", (0,))), (1,))
    run(elementwise.lower(program, [spec(x)], [spec(out)]), target, x0=x, y0=out)
    np.testing.assert_array_equal(out, -x)
    run(tensor_ops.lower_copy(spec(x), spec(out)), target, x=x, out=out)
    np.testing.assert_array_equal(out, x)
    run(tensor_ops.lower_softmax(spec(x), spec(out)), target, x=x, out=out)
    np.testing.assert_allclose(out.sum(1), 1, rtol=1e-5)
    run(tensor_ops.lower_norm("rms_norm", spec(x), spec(out)), target, x=x, out=out)
    np.testing.assert_allclose((out.astype(np.float64) ** 2).mean(1), 1, rtol=1e-4)
    total = np.empty(2, np.float32)
    run(tensor_ops.lower_reduce("sum", spec(x), spec(total), (1,)), target, x=x, out=total)
    np.testing.assert_allclose(total, x.sum(1), rtol=1e-4, atol=1e-4)
    index, picked = np.array([1, 0, 1]), np.empty((3, 64), np.float32)
    run(tensor_ops.lower_gather(spec(x), harness.spec_of(index, "i64"), spec(picked)), target, x=x, index=index, out=picked)
    np.testing.assert_array_equal(picked, x[index])


@pytest.mark.parametrize("target", TARGETS)
def test_products_of_rows_far_apart(far, target):
    x, out, weight = far(64), far(32, fill=False), RNG.standard_normal((64, 32)).astype(np.float32)
    packed_spec = matmul.packed_spec(32, 64, "f32")
    packed = np.empty(packed_spec.shape, np.float32)
    run(matmul.lower_pack(spec(weight), packed_spec), target, b=weight, packed=packed)
    run(matmul.lower_matmul_packed(spec(x), packed_spec, spec(out)), target, a=x, b=packed, out=out)
    np.testing.assert_allclose(out, x @ weight, rtol=1e-4, atol=1e-4)
    out[...] = 0
    run(matmul.lower_matmul(spec(x), spec(weight), spec(out)), target, a=x, b=weight, out=out)
    np.testing.assert_allclose(out, x @ weight, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("target", TARGETS)
def test_attention_over_a_cache_with_rows_far_apart(far, target):
    k, v = far(64), far(64)
    for q_len in (1, 9):
        q, out = RNG.standard_normal((1, 1, q_len, 64)).astype(np.float32), np.empty((1, 1, q_len, 64), np.float32)
        cache = [TensorSpec("f32", (1, 1, 2, 64), (0, 0, STEP, 1)) for _ in range(2)]
        run(attention.lower_attention(spec(q), *cache, spec(out)), target, q=q, k=k, v=v, out=out)
        weights = np.exp(q[0, 0] @ k.T / 8)
        np.testing.assert_allclose(out[0, 0], weights / weights.sum(1, keepdims=True) @ v, rtol=1e-4, atol=1e-4)
