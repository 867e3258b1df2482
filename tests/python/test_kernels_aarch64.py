"""The aarch64 images under qemu-user: a part of what the other files check on this machine's own
targets."""

import numpy as np
import pytest

import kernel_harness as harness
import test_kernels_attention as attention
import test_kernels_elementwise as elementwise
import test_kernels_math as functions
import test_kernels_matmul as matmul
import test_kernels_tensor as tensor
import test_lora_ops as lora
import test_packed_kernels as packed
import test_paged_attention as pages
import test_sampling as sampling
from accrt.compiler.kernels import elementwise as ew

REASON = harness.foreign_reason()
pytestmark = pytest.mark.skipif(bool(REASON), reason=f"aarch64 images are not tried: {REASON}")
TARGET = "aarch64"


@pytest.mark.rotating(4)
@pytest.mark.parametrize("op", ["atan", "erfc", "exp", "expm1", "log", "log1p", "tanh", "erf", "gelu", "silu"])
def test_functions(op):
    functions.test_function_error_is_bounded(op, TARGET)


def test_sine_and_halves():
    functions.test_sine_near_multiples_of_pi(TARGET)
    functions.test_half_conversions_are_exact_over_all_values(TARGET)
    functions.test_rounding_to_half("f64", TARGET)
    functions.test_power_error_and_special_cases(TARGET)


@pytest.mark.parametrize("source", ["f32", "f16", "i64", "u8"])
def test_casts(source):
    elementwise.test_casts_between_all_types(source, TARGET)


def test_elementwise():
    elementwise.test_fused_chain_equals_its_parts_bit_for_bit(TARGET)
    elementwise.test_strides_of_inputs_and_outputs(TARGET)
    elementwise.test_broadcasting([(2, 1, 7, 33), (4, 1, 33)], TARGET)
    elementwise.test_integer_arithmetic_is_exact_and_wraps("i32", TARGET)


@pytest.mark.parametrize("shape", [(1, 384, 64), (13, 17, 32), (29, 100, 65), (0, 8, 8), (3, 0, 40)])
def test_packed_product(shape):
    matmul.test_packed_product_f32(shape, TARGET)


def test_other_products():
    matmul.test_epilogue("gelu", TARGET)
    matmul.test_packed_product_of_16_bit_types("bf16", "bf16", "bf16", TARGET)
    matmul.test_packed_product_of_16_bit_types("f16", "f16", "f16", TARGET)
    matmul.test_dynamic_product(False, True, "f32", TARGET)
    matmul.test_integer_product_wraps("i64", TARGET)


def test_attention():
    attention.test_shapes(1, 4, 2, 1, 64, 37, 64, 64, True, "f32", TARGET)
    attention.test_shapes(1, 8, 2, 7, 300, 259, 40, 40, True, "f32", TARGET)
    attention.test_shapes(2, 2, 1, 40, 40, 40, 96, 96, True, "bf16", TARGET)
    attention.test_masks_broadcast((2, 1, 1, 70), "bool", TARGET)
    attention.test_rows_that_see_nothing_give_zeros(3, TARGET)


def test_norms_softmax_and_reductions():
    tensor.test_norms((3, 5, 33), "layer_norm", "f32", TARGET)
    tensor.test_norms((7, 384), "rms_norm", "bf16", TARGET)
    tensor.test_softmax((3, 4, 77), "f32", TARGET)
    tensor.test_softmax_of_extreme_rows(TARGET)
    for op in ("sum", "max"):
        tensor.test_float_reductions((1,), op, TARGET)
        tensor.test_float_reductions((3,), op, TARGET)


def test_gather_rope_and_copies():
    tensor.test_gather("f32", "i64", TARGET)
    tensor.test_gather_refuses_an_index_out_of_range(10, TARGET)
    tensor.test_rope((2, 9, 3, 64), 64, 0, False, "f32", TARGET)
    tensor.test_rope((1, 1, 4, 128), 128, 100_000, True, "f16", TARGET)
    tensor.test_copies("f32", TARGET)


def test_arithmetic_gives_the_same_bytes_as_here():
    targets = harness.host_targets()
    if not targets:
        pytest.skip("this machine runs none of its own targets")
    rng = np.random.default_rng(harness.SEED)
    x = [rng.standard_normal((5, 70)).astype(np.float32) for _ in range(3)]
    N = ew.Node
    program = ew.Program((N("input", "f32", (), 0), N("input", "f32", (), 1), N("input", "f32", (), 2), N("mul", "f32", (0, 1)), N("add", "f32", (3, 2)), N("exp", "f32", (4,))), (5,))
    here, there = (elementwise.run(program, x, ["f32"] * 3, target)[0] for target in (targets[-1], TARGET))
    np.testing.assert_array_equal(here, there)


@pytest.mark.rotating(2)
@pytest.mark.parametrize("layout", ["q4_k", "q8_0", "i4_group_asym", "mxfp4", "f8_channel"])
def test_quantized_weights(layout):
    packed.test_values_of_every_layout_are_the_registry_s(layout, TARGET)
    packed.test_products_are_within_their_bound(layout, TARGET)


@pytest.mark.rotating(1)
@pytest.mark.parametrize("case", [("bf16", 48, 7, True), ("f32", 64, 4, False)])
def test_attention_over_pages(case):
    pages.test_units_that_are_shared_out_give_the_same_bits(*case[:3], TARGET, case[3])


def test_sampling():
    sampling.test_the_kernel_alone(TARGET)


def test_low_rank_products():
    lora.test_the_kernels_alone(TARGET)
