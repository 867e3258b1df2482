"""Every operation of from_torch's table has kernels for CUDA: small models that have all of them
are lowered, and planned for a GPU. Nothing is compiled, and no GPU is needed: bench/gpu and
tests/gpu run such models on one. Runs where torch is installed: `./dev torch-test`."""

from __future__ import annotations

import pytest

from accrt.compiler import driver, Module
from accrt.from_torch import convert
from accrt.from_torch.table import TABLE

torch = pytest.importorskip("torch", reason="torch is not installed")
pytestmark = pytest.mark.torch

import test_from_torch as others  # noqa: E402  - which needs torch
import test_from_torch_core as core  # noqa: E402  - as the first
import test_from_torch_operations as operations  # noqa: E402  - as the first

F, A = torch.nn.functional, torch.ops.aten
#: Of sizes, of checks, of constants and of other packages' types, which have tests of their own:
#: they leave no operation on a device.
ELSEWHERE = {
    "aten.sym_size.int", "aten.sym_numel.default", "aten.sym_constrain_range.default", "aten.sym_constrain_range_for_size.default", "aten.size.int",
    "aten._assert_scalar.default", "aten._assert_async.default", "aten._assert_async.msg", "aten.item.default", "aten._local_scalar_dense.default",
    "aten.lift_fresh.default", "export.access_subclass_inner_tensor.default", "torchao.dequantize_affine.default", "aten._int_mm.default",
    "transformers.grouped_mm_fallback.default",
}  # fmt: skip
W1, W2, W3 = torch.ones(3, 3, 2), torch.ones(4, 4, 2, 2), torch.ones(4, 4, 2, 2, 2)
ONES = torch.ones(4)


def wide(tensor):
    return tensor.repeat_interleave(2, -1).repeat_interleave(2, -2).bfloat16() if tensor.dim() > 2 else tensor.repeat_interleave(2, -1).bfloat16()


#: What test_from_torch.py's functions do not use. x is float [3, 4], i integers, b booleans of the
#: same shape; m is [4, 4], s [1, 4, 6, 6], v [1, 4, 4, 6, 6].
MORE = {
    "core": lambda x, i, b, m, s, v: (A._adaptive_avg_pool2d(s, [3, 2]), A._adaptive_avg_pool3d(v, [2, 3, 2]), A.convolution(x[None], W1, None, [1], [0], [1], False, [0], 1),
                                      A.native_group_norm(s, ONES, ONES, 1, 4, 36, 2, 1e-5)[0], A.native_layer_norm(x, [4], ONES, ONES, 1e-5)[0]),
    "copies of views": lambda x, i, b, m, s, v: (A.alias_copy(x), A.detach_copy(x), A.narrow_copy(x, 1, 1, 2), A.split_with_sizes_copy(x, [1, 2])[1],
                                                 A.squeeze_copy.dim(x[None], 0), A.squeeze_copy.dims(x[None], [0]), A.t_copy(x), A.unfold_copy(x, 1, 2, 1),
                                                 A.as_strided_copy(x, [2, 2], [1, 2])),
    "bits": lambda x, i, b, m, s, v: (A.__lshift__.Tensor(i, i), A.__rshift__.Tensor(i, i), A.__xor__.Scalar(i, 3), A.bitwise_and.Tensor(i, i),
                                      A.bitwise_or.Scalar(i, 1), A.bitwise_or.Tensor(i, i), A.bitwise_xor.Scalar(i, 1), A.bitwise_xor.Tensor(i, i),
                                      A.bitwise_left_shift.Tensor_Scalar(i, 1), A.bitwise_right_shift.Tensor(i, i), A.bitwise_right_shift.Tensor_Scalar(i, 1),
                                      A.logical_or(b, b), A.logical_xor(b, b), A.view.dtype(i, torch.int32), A.view.dtype(i.int(), torch.int64)),
    "bags": lambda x, i, b, m, s, v: (torch.cdist(x, x + 1), torch.nn.functional.embedding_bag(i, torch.ones(99, 4)),
                                      A._embedding_bag(torch.ones(99, 4), i.flatten(), torch.tensor([0, 6]))[0]),
    "norms": lambda x, i, b, m, s, v: (A._log_softmax(x, 1, False), A._softmax(x, 1, False), A._weight_norm(m, m[:, :1]),
                                       A._native_batch_norm_legit_no_training(s, ONES, ONES, ONES, ONES, 0.1, 1e-5)[0],
                                       A.batch_norm(s, ONES, ONES, ONES, ONES, False, 0.1, 1e-5, True), A.norm.ScalarOpt_dim(x, 2, [1])),
    "pictures": lambda x, i, b, m, s, v: (A._upsample_nearest_exact1d.vec(s[0], None, [2.0]), A._upsample_nearest_exact3d.vec(v, None, [2.0] * 3),
                                          A.upsample_nearest3d.vec(v, None, [2.0] * 3), A.upsample_trilinear3d.vec(v, None, False, [2.0] * 3), A.pixel_shuffle(s, 2),
                                          A.constant_pad_nd(x, [1, 1]), A.grid_sampler_2d(s, s[:, 0, :2, :2].reshape(1, 1, 2, 2), 0, 0, True),
                                          A.grid_sampler_3d(v, v[:, 0, 0, :3, :1].reshape(1, 1, 1, 1, 3), 0, 0, True)),
    "pools": lambda x, i, b, m, s, v: (A.adaptive_avg_pool2d(s, [3, 2]), A.adaptive_avg_pool3d(v, [2, 3, 2]), A.adaptive_max_pool2d(s, [3, 2])[0],
                                       A.adaptive_max_pool3d(v, [2, 3, 2])[0], A.avg_pool1d(x, [2]), A.avg_pool2d(s, [2, 2]), A.avg_pool3d(v, [2, 2, 2]),
                                       A.max_pool1d(x, [2]), A.max_pool2d(s, [2, 2]), A.max_pool3d(v, [2, 2, 2])),
    "convolutions": lambda x, i, b, m, s, v: (A.conv1d(x[None], W1), A.conv1d.padding(x[None], W1, None, [1], "same"), A.conv2d(s, W2),
                                              A.conv2d.padding(s, W2, None, [1, 1], "same"), A.conv3d(v, W3), A.conv3d.padding(v, W3, None, [1, 1, 1], "same"),
                                              A.conv_transpose1d(x[None], W1), A.conv_transpose2d.input(s, W2), A.conv_transpose3d.input(v, W3)),
    "numbers": lambda x, i, b, m, s, v: (A.add.Scalar(x, 1), A.sub.Scalar(x, 1), A.subtract.Scalar(x, 1), A.subtract.Tensor(x, x), A.mul.Scalar(x, 2),
                                         A.multiply.Scalar(x, 2), A.multiply.Tensor(x, x), A.div.Scalar(x, 2), A.div.Scalar_mode(x, 2, rounding_mode="floor"),
                                         A.divide.Scalar(x, 2), A.divide.Scalar_mode(x, 2, rounding_mode="trunc"), A.divide.Tensor(x, x),
                                         A.divide.Tensor_mode(x, x, rounding_mode="floor"), A.true_divide.Tensor(x, x), A.floor_divide.Scalar(x, 2),
                                         A.remainder.Tensor(x, x), A.rsub.Tensor(x, x), A.pow.Tensor_Tensor(x, x), A.maximum(x, x), A.minimum(x, x),
                                         A.max.other(x, x), A.min.other(x, x), A.clip(x, 0, 1)),
    "comparisons": lambda x, i, b, m, s, v: (A.ge.Scalar(x, 0), A.le.Scalar(x, 0), A.ge.Tensor(x, x), A.gt.Tensor(x, x), A.logical_not(b), A.le.Tensor(x, x), A.lt.Tensor(x, x), A.all(b),
                                             A.all.dims(b, [0, 1]), A.any.dims(b, [0, 1]), A.where.Scalar(b, 1.0, 2.0), A.where.ScalarSelf(b, 1.0, x),
                                             A.masked_fill.Tensor(x, b, x[0, 0]), A.histc(x, 4, 0, 1)),
    "functions": lambda x, i, b, m, s, v: (A.arccos(x), A.arccosh(x), A.arcsin(x), A.arcsinh(x), A.arctan2(x, x), A.arctanh(x), A.ceil(x), A.floor(x), A.fix(x),
                                           A.cos(x), A.sin(x), A.exp(x), A.tan(x), A.tanh(x), A.erf(x), A.log(x), A.relu(x), A.rsqrt(x), A.sigmoid(x), A.silu(x)),
    "views": lambda x, i, b, m, s, v: (A.adjoint(m), A.mH(m), A.mT(m), A.numpy_T(m), A.alias(x), A.detach(x), A.contiguous(x), A.positive(x), A.ravel(x),
                                       A.view_as(x, x), A.reshape_as(x, x), A.broadcast_to(x, [2, 3, 4]), A.moveaxis.int(x, 0, 1), A.moveaxis.intlist(x, [0], [1]),
                                       A.movedim.intlist(x, [0], [1]), A.swapaxes(x, 0, 1), A.squeeze(x), A.squeeze.dims(x, [0]), A.concat([x, x]),
                                       *A.split.sizes(x, [1, 3], 1)),
    "copies": lambda x, i, b, m, s, v: (A.lift_fresh(x), A.lift_fresh_copy(x), A._unsafe_index(x, [torch.tensor([1, 0])]), A.copy(x, x + 1), A.fill.Scalar(x, 2), A.fill.Tensor(x, x[0, 0]), A.zero(x),
                                        A._to_copy(x, dtype=torch.float64), A.to.device(x, "cpu", torch.float64), A.to.dtype_layout(x, dtype=torch.float64),
                                        A.to.other(x, i), A.dropout(x, 0.5, False), A.alpha_dropout(x, 0.5, False), A.feature_dropout(x, 0.5, False)),
    "sums": lambda x, i, b, m, s, v: (A.mean(x), A.std(x, True), A.std.correction(x, [0], correction=1), A.mm(m, m), A.linear(x, m), A.vdot(x[0], x[1]),
                                      A.scaled_dot_product_attention(s, s, s)),
    "special functions": lambda x, i, b, m, s, v: (A.erfinv(x.double()), A.erfc(x.double()), A.special_erfinv(x), A.special_erfcx(x), A.special_ndtri(x)),
    "functions of Bessel": lambda x, i, b, m, s, v: [getattr(A, f"special_{name}{order}")(x) for order in (0, 1) for name in
                                                     ("bessel_j", "bessel_y", "modified_bessel_k", "scaled_modified_bessel_k")],
    "divisors": lambda x, i, b, m, s, v: (A.gcd(i, i + 1), A.lcm(i, i + 2), A.nextafter(x, x + 1), A.nextafter(x.double(), x.double() + 1),
                                           *A.frexp(x), *A.frexp(x.double())),
    "grouped": lambda x, i, b, m, s, v: A._grouped_mm(wide(m), wide(torch.ones(2, 4, 4)), torch.tensor([1, 4], dtype=torch.int32)),
}  # fmt: skip
#: Where a size that only a call knows comes in: x is float [rows, 4].
SIZES = {
    "made": lambda x: (x + A.new_zeros(x, x.shape), x + A.empty_like(x) * 0, x + A.new_empty(x, x.shape) * 0, A.full_like(x, 2) + x, A.ones_like(x) + x,
                       A.zeros(x.shape) + x, A.ones(x.shape) + x, A.full(x.shape, 2.0) + x, A.empty.memory_format(x.shape) * 0 + x, A.scalar_tensor(x.shape[0]) + x,
                       A.arange(x.shape[0]) + x[:, 0], A.arange.start(1, 1 + x.shape[0]) + x[:, 0], A.arange.start_step(0, 2 * x.shape[0], 2) + x[:, 0]),
    "empty": lambda x: (A.empty_strided([x.shape[0], 4], [4, 1]).zero_() + x, A.empty_permuted([x.shape[0], 4], [0, 1]).zero_() + x),
    "copies": lambda x: (A.lift_fresh(x), A.lift_fresh_copy(x), A.zero(x) + 1, A.fill.Scalar(x, 2), A.new_full(x, x.shape, 2) + x),
}  # fmt: skip
EXAMPLES = {**others.OPERATIONS, **operations.OPERATIONS, **{f"recurrent {name}": (layer, (12, 3, 4)) for name, layer in operations.LAYERS.items()},
            **{f"core {name}": (function, (3, 4)) for name, function in core.CALCULATED.items()},
            **{f"more {name}": (function, None) for name, function in MORE.items()},
            **{f"sizes {name}": (function, (3, 4)) for name, function in SIZES.items()}}  # fmt: skip


def arguments(shapes):
    if shapes != [None]:
        return tuple(others.whole(*others.IDS) if shape == "i" else others.some(*shape) for shape in shapes)
    x = others.some(3, 4)
    return x, others.whole(3, 4), x > 0, others.some(4, 4), others.some(1, 4, 6, 6), others.some(1, 4, 4, 6, 6)


def without_kernels(module: Module) -> str:
    """Why a module cannot be planned for CUDA; "": it can."""
    try:
        driver.kernels_of(module, "cuda")
    except ValueError as problem:
        return str(problem)
    return ""


def is_torchs(target: str) -> bool:
    """Whether this torch has the operation: the table has those of several."""
    name, _, overload = target.removeprefix("aten.").rpartition(".")
    return hasattr(A, name) and overload in getattr(A, name).overloads()


@pytest.fixture(scope="module")
def used():
    """Which entries of the table the examples use."""
    found = set()
    plain = dict(TABLE)

    def noted(target, function):
        def lower(*args, **named):
            found.add(target)
            return function(*args, **named)

        return lower

    TABLE.update({target: noted(target, function) for target, function in plain.items()})
    yield found
    TABLE.update(plain)


@pytest.mark.parametrize("name", EXAMPLES)
def test_operation_has_kernels_for_cuda(name, used):
    function, *shapes = EXAMPLES[name]
    sizes = {"dynamic_shapes": (({0: torch.export.Dim("rows", max=64)},),)} if name.startswith("sizes") else {}
    made = function().eval() if name.startswith("recurrent") else function
    assert not without_kernels(convert(others.Of(made), arguments(shapes), **sizes))


def test_the_examples_have_every_operation_of_the_table(used, request):
    if sum(item.name.startswith("test_operation_has") for item in request.session.items) < len(EXAMPLES):
        pytest.skip("only some of the examples ran")
    missing = sorted(target for target in set(TABLE) - used - ELSEWHERE if is_torchs(target))
    assert not missing, " ".join(missing)


def test_what_has_no_kernel_is_found():
    m = Module("host")
    x = m.function("f").input("x", "f32", [4])
    op = x.relu()
    op.op.name = "aten.no_such_operation"
    m.functions["f"].result("y", op)
    assert without_kernels(m)
