"""Lowerings that are made of others: masks as places, distances, bags, transforms, einsum."""

from __future__ import annotations

from typing import Any, Sequence

from ..compiler import Value
from ..compiler import expr as ex
from ..compiler.ops import bags, fourier
from ..compiler.ops.einsum import einsum as by_equation
from ..compiler.ops.ordering import largest_last
from .ops_math import cast, FLOATS, to_layout, var
from .table import lowers
from .values import Known, Unsupported


@lowers("aten.masked_scatter.default")
def masked_scatter(lo: Any, x: Any, mask: Any, source: Any) -> Any:
    """The n-th place of the mask takes the n-th element."""
    x, source = lo.value(x), cast(lo, source, lo.dtype(x)).flatten()
    mask = lo.value(mask).expand(list(x.shape))
    number = mask.to_copy("i64").flatten().cumsum(0) - 1
    last = ex.simplify(ex.constant(source.shape[0]) - 1)
    return mask.where(source.index_select(0, number.maximum(0).minimum(last)).view(list(x.shape)), x)


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


@lowers("aten.scatter_reduce.two")
def scatter_reduce(lo: Any, x: Any, dim: int, index: Any, source: Any, reduce: str, include_self: bool = True) -> Any:
    from .ops_nn import scattered

    x, index, source = lo.value(x), lo.value(index), lo.value(source)
    if x.rank == 0:
        index, source = (item if item.rank else item.unsqueeze(0) for item in (index, source))
        return scatter_reduce(lo, x.unsqueeze(0), 0, index, source, reduce, include_self).select(0, 0)
    if x.dtype == "bool" or (x.dtype, reduce) == ("u8", "amin"):
        of_truth = {"sum": "amax", "prod": "amin"}.get(reduce, reduce) if x.dtype == "bool" else reduce
        return cast(lo, scatter_reduce(lo, cast(lo, x, "i32"), dim, index, cast(lo, source, "i32"), of_truth, include_self), x.dtype)
    if reduce == "mean":
        total = scatter_reduce(lo, x, dim, index, source, "sum", include_self)
        count = scattered(lo, lo.function.full([], int(include_self), x.dtype).expand(list(x.shape)), dim, index, 1, True).maximum(1)
        return total / count if x.dtype in FLOATS else total.div(count, rounding_mode="floor")
    if reduce == "sum":
        return scattered(lo, x if include_self else scattered(lo, x, dim, index, 0, False), dim, index, source, True)
    if reduce not in ("amax", "amin"):
        raise Unsupported(f"scatter_reduce by {reduce!r}")
    made = scattered(lo, x, dim, *largest_last(source, index, lo.axis(x, dim), reduce == "amin"), False)
    return made if not include_self else x.maximum(made) if reduce == "amax" else x.minimum(made)


@lowers("aten.var_mean.correction")
def var_mean(lo: Any, x: Any, dim: Any = None, correction: Any = None, keepdim: bool = False) -> Any:
    x = lo.value(x)
    dims = None if dim is None or not len(dim) else [lo.axis(x, d) for d in dim]
    return [var(lo, x, dims, correction, keepdim), x.mean(dims, keepdim)]


lowers("aten.prod.default", "aten.prod.dim_int")(lambda lo, x, dim=None, keepdim=False, dtype=None: lo.value(to_layout(lo, x, dtype)).prod(dim, keepdim))
lowers("aten.cumprod.default")(lambda lo, x, dim, dtype=None: lo.value(to_layout(lo, x, dtype)).cumprod(dim))


@lowers("aten._cdist_forward.default")
def cdist(lo: Any, x: Any, y: Any, p: float, mode: Any = None) -> Any:
    if p not in fourier.NORMS:
        raise Unsupported(f"cdist of norm {p}")
    return fourier.distances(lo.value(x), lo.value(y), p)


@lowers("aten.kthvalue.default")
def kthvalue(lo: Any, x: Any, k: int, dim: int = -1, keepdim: bool = False) -> Any:
    at = lo.axis(x, dim)
    return [part.slice(at, k - 1, k) if keepdim else part.select(at, k - 1) for part in lo.value(x).sort(at)]


_PARTS = ("aten.real.default", "aten.imag.default")


@lowers("aten.fft_fftn.default")
def fftn(lo: Any, x: Any, size: Any = None, dim: Any = None, norm: Any = None) -> Any:
    if size is not None or norm not in (None, "backward") or any(str(user.target) not in _PARTS for user in lo.node.users):
        raise Unsupported("a Fourier transform of another size or norm, or with a use of more than its real or imag")
    return fourier.transformed(lo.value(x), range(lo.rank(x)) if dim is None else [lo.axis(x, d) for d in dim])


lowers(*_PARTS)(lambda lo, x: getattr(x, str(lo.node.target).split(".")[1]) if isinstance(x, fourier.Complex) else x)


def permuted(x: Value, indices: Sequence[Any], axes: Sequence[int]) -> Any:
    """Indices with whole dimensions between them: torch puts what they give first."""
    return x.permute([*axes, *(d for d in range(x.rank) if d not in axes)]), [indices[d] for d in axes]


lowers("aten.einsum.default")(lambda lo, equation, operands, path=None: by_equation(equation, [lo.value(x) for x in operands]))


@lowers("aten._embedding_bag.default", "aten._embedding_bag_forward_only.default")
def embedding_bag(lo: Any, weight: Any, indices: Any, offsets: Any, scale: bool = False, mode: int = 0, sparse: bool = False, weights: Any = None, last: bool = False, padding: int = -1) -> Any:
    begins, count = offsets.tensor[: len(offsets.tensor) - last].tolist() if isinstance(offsets, Known) else [], lo.shape(indices)[0]
    size = count // max(len(begins), 1) if begins and isinstance(count, int) else 0
    even = size > 0 and begins == list(range(0, count, size))
    at = None if even else lo.value(offsets).slice(0, 0, lo.shape(offsets)[0] - last)
    weights = None if weights is None else lo.value(weights)
    return [bags.embedding_bag(lo.value(weight), lo.value(indices), at, bags.MODES[mode], weights, padding, size), None, None, None]
