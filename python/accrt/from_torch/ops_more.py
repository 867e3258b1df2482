"""Lowerings that are made of others: masks as places, distances, bags, transforms, einsum."""

from __future__ import annotations

from typing import Any, Sequence

from ..compiler import Value
from ..compiler import expr as ex
from ..compiler.ops import bags, factors, fourier, linear, ordering, special
from ..compiler.ops.einsum import cartesian, einsum as by_equation
from ..compiler.ops.recurrent import recurrent
from .ops_math import _pair, cast, method, to_layout, var
from .table import lowers
from .values import Known, Unsupported


def put_mask(lo: Any, x: Value, mask: Any, at: int, values: Value, add: bool) -> Value:
    """x[:, mask] = values, or +=, where the values do not depend on how many places the mask
    has."""
    mask = lo.value(mask)
    after = x.rank - at - mask.rank
    if values.rank > after:
        if not ex.same(values.shape[values.rank - after - 1], 1):
            raise Unsupported("a mask as places of several values: how many, is known to the call alone")
        lead = values.rank - after - 1
        values = values.view([*values.shape[:lead], *[1] * mask.rank, *values.shape[lead + 1 :]])
    places = mask.view([*[1] * at, *mask.shape, *[1] * after])
    values = cast(lo, values, x.dtype)
    return places.where(x + values if add else values, x)


@lowers("aten.var_mean.correction")
def var_mean(lo: Any, x: Any, dim: Any = None, correction: Any = None, keepdim: bool = False) -> Any:
    x = lo.value(x)
    dims = None if dim is None or not len(dim) else [lo.axis(x, d) for d in dim]
    return [var(lo, x, dims, correction, keepdim), x.mean(dims, keepdim)]


for _name, _targets in (("prod", "prod.default prod.dim_int"), ("cumprod", "cumprod.default")):
    lowers(*(f"aten.{t}" for t in _targets.split()))(
        lambda lo, x, *rest, dtype=None, name=_name: to_layout(lo, getattr(lo.value(to_layout(lo, x, dtype)), name)(*rest), dtype))
for _name in ("cummax", "cummin", "logcumsumexp", "lgamma", "digamma", "mode"):
    lowers(f"aten.{_name}.default")(method(_name))
lowers("aten.median.default", "aten.median.dim")(method("median"))
lowers("aten.nanmedian.default", "aten.nanmedian.dim")(lambda lo, x, dim=None, keepdim=False: lo.value(x).median(dim, keepdim, True))
for _name, _how in (("i0", (0,)), ("special_i0e", (0, True)), ("special_i1", (1,)), ("special_i1e", (1, True))):
    lowers(f"aten.{_name}.default")(lambda lo, x, how=_how: lo.value(x).bessel_i(*how))
lowers("aten.polygamma.default")(lambda lo, order, x: special.polygamma(lo.value(x), order))
lowers("aten.special_zeta.default", "aten.special_zeta.self_scalar")(lambda lo, s, q: special.zeta(*_pair(lo, s, q)))
lowers("aten.special_zeta.other_scalar")(lambda lo, s, q: special.zeta(*reversed(_pair(lo, q, s))))
lowers("aten.linalg_inv_ex.default")(lambda lo, x, check_errors=False: [linear.inverse(lo.value(x)), None])
lowers("aten._linalg_det.default")(lambda lo, x: [linear.determinant(lo.value(x)), None, None])
lowers("aten._linalg_slogdet.default")(lambda lo, x: [*linear.sign_and_logarithm(lo.value(x)), None, None])
lowers("aten.linalg_cholesky_ex.default")(lambda lo, x, upper=False, check_errors=False: [linear.cholesky(lo.value(x), upper), None])
lowers("aten.linalg_solve_triangular.default")(lambda lo, a, b, **how: linear.solve_triangular(lo.value(a), lo.value(b), **how))
lowers("aten.linalg_lu.default")(lambda lo, a, pivot=True: linear.lu(lo.value(a), pivot))
lowers("aten.linalg_lu_factor_ex.default")(lambda lo, a, pivot=True, check_errors=False: [*linear.lu_factor(lo.value(a), pivot), None])
lowers("aten.linalg_lu_solve.default")(lambda lo, a, pivots, b, **how: linear.lu_solve(lo.value(a), lo.value(pivots), lo.value(b), **how))
lowers("aten.lu_unpack.default")(lambda lo, a, pivots, data=True, places=True: linear.lu_parts(lo.value(a), lo.value(pivots), data and places))
lowers("aten.cholesky_solve.default")(lambda lo, b, a, upper=False: linear.cholesky_solve(lo.value(b), lo.value(a), upper))
lowers("aten.cholesky_inverse.default")(lambda lo, a, upper=False: linear.cholesky_inverse(lo.value(a), upper))
lowers("aten.fmax.default")(lambda lo, x, y: special.extreme(lo.value(x), lo.value(y), False))
lowers("aten.fmin.default")(lambda lo, x, y: special.extreme(lo.value(x), lo.value(y), True))
lowers("aten.copysign.Tensor", "aten.copysign.Scalar")(lambda lo, x, y: special.with_sign(lo.value(x), lo.value(y)))
lowers("aten.signbit.default")(lambda lo, x: special.has_sign(lo.value(x)))
lowers("aten.round.decimals")(lambda lo, x, *, decimals=0: special.rounded(lo.value(x), decimals))
lowers("aten._linalg_eigh.default")(lambda lo, x, half="L", vectors=True: [*factors.eigh(lo.value(x), half == "U", vectors), None])
lowers("aten._linalg_svd.default")(
    lambda lo, x, full=False, vectors=True, driver=None: factors.svd(lo.value(x), full) if vectors else [None, *factors.svd(lo.value(x), full, False), None])  # fmt: skip
lowers("aten.linalg_pinv.atol_rtol_tensor")(
    lambda lo, x, *, atol=None, rtol=None, hermitian=False: factors.pseudo_inverse(lo.value(x), lo.optional(atol), lo.optional(rtol), hermitian))  # fmt: skip
lowers("aten.linalg_matrix_exp.default")(lambda lo, x: factors.exponential(lo.value(x)))
lowers("aten.linalg_qr.default")(lambda lo, x, mode="reduced": factors.qr(lo.value(x), mode == "complete"))
lowers("aten.diagonal_scatter.default")(lambda lo, x, part, *how, **named: lo._scattered(lambda whole: lo.value(whole).diagonal(*how, **named), x, part))
lowers("aten._linalg_solve_ex.default")(lambda lo, a, b, left=True, check_errors=False: [linear.solve(lo.value(a), lo.value(b), left), None, None, None])
lowers("aten.cartesian_prod.default")(lambda lo, tensors: cartesian([lo.value(x) for x in tensors]))


@lowers("aten.lstm.input", "aten.gru.input", "aten.rnn_tanh.input", "aten.rnn_relu.input")
def recurrent_(lo: Any, x: Any, states: Any, weights: Any, biases: bool, layers: int, dropout: float, train: bool, both_ways: bool, batch_first: bool) -> Any:
    if train and dropout > 0:
        raise Unsupported("dropout in training mode: call model.eval() first")
    first = [lo.value(s) for s in (states if isinstance(states, (list, tuple)) else [states])]
    return recurrent(str(lo.node.target).split(".")[1], lo.value(x), first, [lo.value(w) for w in weights], biases, layers, both_ways, batch_first)


lowers("aten._cdist_forward.default")(lambda lo, x, y, p, mode=None: fourier.distances(lo.value(x), lo.value(y), p))
lowers("aten._pdist_forward.default")(lambda lo, x, p=2.0: fourier.distances_between(lo.value(x), p))
lowers("aten.histc.default")(lambda lo, x, bins=100, min=0, max=0: ordering.histogram(lo.value(x), bins, min, max))
lowers("aten.kthvalue.default")(lambda lo, x, k, dim=-1, keepdim=False: ordering.kth(lo.value(x), k, dim, keepdim))


def permuted(x: Value, indices: Sequence[Any], axes: Sequence[int]) -> Any:
    """Indices with whole dimensions between them: torch puts what they give first."""
    return x.permute([*axes, *(d for d in range(x.rank) if d not in axes)]), [indices[d] for d in axes]


lowers("aten.einsum.default")(lambda lo, equation, operands, path=None: by_equation(equation, [lo.value(x) for x in operands]))


@lowers("aten._embedding_bag.default", "aten._embedding_bag_forward_only.default")
def embedding_bag(lo: Any, weight: Any, indices: Any, offsets: Any, scale: bool = False, mode: int = 0, sparse: bool = False, weights: Any = None, last: bool = False, padding: int = -1) -> Any:
    begins, count = offsets.tensor[: len(offsets.tensor) - last].tolist() if isinstance(offsets, Known) else [], lo.shape(indices)[0]
    size = count // max(len(begins), 1) if begins and isinstance(count, int) else 0
    even = size > 0 and begins == list(range(0, count, size))
    at = None if even else lo.value(offsets).slice(0, 0, lo.shape(offsets)[0] - int(last))
    weights = None if weights is None else lo.value(weights)
    return [bags.embedding_bag(lo.value(weight), lo.value(indices), at, bags.MODES[mode], weights, padding, size), None, None, None]
