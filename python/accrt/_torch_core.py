"""Lowerings of what torch's core operations have in the place of others, for accrt.from_torch:
programs after `run_decompositions()`, and forms that copy a view. And polynomials by their number.
"""

from __future__ import annotations

import math
from typing import Any, Callable

from . import _torch_memory, _torch_scatters, _torch_special  # noqa: F401  - they fill the table
from .from_torch import ops_math, ops_more, ops_nn, ops_views  # noqa: F401  - they fill the table
from .from_torch.table import lowers, TABLE
from .from_torch.values import dtype_of, Unsupported


@lowers("aten.convolution.default")
def convolution(
    lo: Any, x: Any, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any, transposed: bool, output_padding: Any, groups: int
) -> Any:  # fmt: skip
    if transposed:
        return ops_nn.conv_transpose(lo, x, weight, bias, stride, padding, output_padding, groups, dilation)
    return (ops_nn.conv3d if lo.rank(weight) == 5 else ops_nn.conv)(lo, x, weight, bias, stride, padding, dilation, groups)


@lowers("aten.native_layer_norm.default")
def native_layer_norm(lo: Any, x: Any, normalized_shape: Any, weight: Any, bias: Any, eps: float) -> Any:
    return [TABLE["aten.layer_norm.default"](lo, x, normalized_shape, weight, bias, eps), None, None]


@lowers("aten.native_group_norm.default")
def native_group_norm(lo: Any, x: Any, weight: Any, bias: Any, N: Any, C: Any, HxW: Any, group: int, eps: float) -> Any:
    return [ops_nn.group_norm(lo, x, group, weight, bias, eps), None, None]


lowers("aten._adaptive_avg_pool2d.default")(lambda lo, x, size: TABLE["aten.adaptive_avg_pool2d.default"](lo, x, size))
lowers("aten._adaptive_avg_pool3d.default")(lambda lo, x, size: TABLE["aten.adaptive_avg_pool3d.default"](lo, x, size))


@lowers("aten.addbmm.default")
def addbmm(lo: Any, bias: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    """The sum of all products is one product of matrices that lie side by side."""
    a, b = lo.value(a), lo.value(b)
    wide = a.permute([1, 0, 2]).contiguous().view([a.shape[1], a.shape[0] * a.shape[2]])
    made = ops_nn.matmul(lo, wide, b.view([b.shape[0] * b.shape[1], b.shape[2]]))
    made = made if alpha == 1 else made * alpha
    return made if beta == 0 else made + (lo.value(bias) if beta == 1 else lo.value(bias) * beta)


# ---- forms that copy


for _name in ("view", "permute", "transpose.int", "unbind.int", "split.Tensor", "select.int", "slice.Tensor", "squeeze", "squeeze.dim", "squeeze.dims", "unsqueeze",
              "expand", "t", "alias", "diagonal", "detach", "narrow", "split_with_sizes", "unfold"):  # fmt: skip
    _packet, _, _overload = _name.partition(".")
    _target, _plain = f"aten.{_packet}_copy.{_overload or 'default'}", f"aten.{_packet}.{_overload or 'default'}"
    if _plain in TABLE and _target not in TABLE:
        lowers(_target)(TABLE[_plain])


@lowers("aten.empty_strided.default", "aten.new_empty_strided.default", "aten.empty_permuted.default")
def empty(lo: Any, *given: Any, dtype: Any = None, **other: Any) -> Any:
    """Elements of any value, here 0."""
    sizes = given[1] if "new_" in str(lo.node.target) else given[0]
    return lo.function.full(list(sizes), 0, _type(lo))


# ---- operations of a number and a tensor

for _name in ("bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_left_shift", "bitwise_right_shift", "remainder"):
    lowers(f"aten.{_name}.Scalar_Tensor")(lambda lo, a, b, name=_name: TABLE[f"aten.{name}.Tensor"](lo, lo.function.full([], a, _type(lo)), b))


def _type(lo: Any) -> str:
    """That of the node's result."""
    return dtype_of(lo.node.meta["val"].dtype)


@lowers("aten.bucketize.Scalar", "aten.searchsorted.Scalar")
def place_of_number(lo: Any, a: Any, b: Any, **how: Any) -> Any:
    import torch

    name, number = ("bucketize", a) if "bucketize" in str(lo.node.target) else ("searchsorted", b)
    edges = lo.value(b if name == "bucketize" else a)
    if isinstance(number, float) and edges.dtype in ops_math.INTEGERS:  # as torch compares them
        edges = edges.to_copy(dtype_of(torch.get_default_dtype()))
    one = lo.function.full([1], number, edges.dtype)
    return TABLE[f"aten.{name}.Tensor"](lo, *((one, edges) if name == "bucketize" else (edges, one)), **how).view([])


# ---- polynomials

#: The next one by the last one's number, x, and the last two; by name, that and the first of x.
Next = Callable[[int, Any, Any, Any], Any]
_POLYNOMIALS: dict[str, tuple[Callable[[Any], Any], Next]] = {
    "chebyshev_polynomial_t": (lambda x: x, lambda k, x, a, b: x * b * 2 - a),
    "chebyshev_polynomial_u": (lambda x: x * 2, lambda k, x, a, b: x * b * 2 - a),
    "chebyshev_polynomial_v": (lambda x: x * 2 - 1, lambda k, x, a, b: x * b * 2 - a),
    "chebyshev_polynomial_w": (lambda x: x * 2 + 1, lambda k, x, a, b: x * b * 2 - a),
    "hermite_polynomial_h": (lambda x: x * 2, lambda k, x, a, b: x * b * 2 - a * (2 * k)),
    "hermite_polynomial_he": (lambda x: x, lambda k, x, a, b: x * b - a * k),
    "laguerre_polynomial_l": (lambda x: 1 - x, lambda k, x, a, b: ((2 * k + 1 - x) * b - a * k) / (k + 1)),
    "legendre_polynomial_p": (lambda x: x, lambda k, x, a, b: (x * b * (2 * k + 1) - a * k) / (k + 1)),
}
_MOST = 64


def _polynomial(name: str) -> Callable[..., Any]:
    first, following = _POLYNOMIALS[name.removeprefix("shifted_")]

    def lower(lo: Any, x: Any, n: Any) -> Any:
        if not isinstance(n, int) or n > _MOST:
            raise Unsupported(f"the number of the polynomial must be a whole number of up to {_MOST}, known when the bundle is made")
        x = lo.value(x).to_copy("f64")
        x = x * 2 - 1 if name.startswith("shifted_") else x
        last, made = lo.function.full(x.shape, 1, "f64"), first(x)
        for k in range(1, n):
            last, made = made, following(k, x, last, made)
        made = lo.function.full(x.shape, 0, "f64") if n < 0 else last if n == 0 else made
        return made.to_copy(_type(lo))

    return lower


for _name in [*_POLYNOMIALS, *(f"shifted_{name}" for name in _POLYNOMIALS if "chebyshev" in name)]:
    lowers(f"aten.special_{_name}.n_scalar")(_polynomial(_name))


for _name in ("i0", "i1"):
    lowers(f"aten.special_modified_bessel_{_name}.default")(lambda lo, x, order=int(_name[1]): lo.value(x).bessel_i(order))


@lowers("aten.special_spherical_bessel_j0.default")
def spherical_bessel_j0(lo: Any, x: Any) -> Any:
    x = lo.value(x)
    waves = x.eq(0).where(1.0, x.sin() / x.eq(0).where(1.0, x))
    return x.abs().eq(math.inf).where(0.0, waves)
