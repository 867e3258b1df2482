"""Lowerings of what writes elements at places that an index names, for accrt.from_torch."""

from __future__ import annotations

from typing import Any

from .compiler import Value
from .compiler.ops import ordering, scatters
from .from_torch.ops_math import cast, filling
from .from_torch.table import lowers
from .from_torch.values import Unsupported

#: How torch's scatter names what scatter_reduce does.
_REDUCTIONS = {"add": "sum", "multiply": "prod"}

lowers("aten.masked_scatter.default")(lambda lo, x, mask, source: ordering.masked(lo.value(x), lo.value(mask), cast(lo, source, lo.dtype(x))))


@lowers("aten.scatter.src", "aten.scatter.value", "aten.scatter_add.default", "aten.scatter.reduce", "aten.scatter.value_reduce")
def scatter(lo: Any, x: Any, dim: int, index: Any, source: Any, reduce: Any = None) -> Any:
    x, index = lo.value(x), lo.value(index)
    values = cast(lo, source, x.dtype) if not isinstance(source, (int, float)) else lo.function.full([], filling(source, x.dtype), x.dtype).expand(list(index.shape))
    if reduce == "multiply" or (reduce == "add" and x.dtype == "bool"):
        return scatters.reduced(x, lo.axis(x, dim), index, values, _REDUCTIONS[reduce], True)
    return ordering.placed(x, lo.axis(x, dim), index, values, reduce == "add" or "scatter_add" in str(lo.node.target))


@lowers("aten.scatter_reduce.two")
def scatter_reduce(lo: Any, x: Any, dim: int, index: Any, source: Any, reduce: str, include_self: bool = True) -> Any:
    return scatters.reduced(lo.value(x), lo.axis(x, dim), lo.value(index), lo.value(source), reduce, include_self)


@lowers("aten.index_reduce.default")
def index_reduce(lo: Any, x: Any, dim: int, index: Any, source: Any, reduce: str, include_self: bool = True) -> Any:
    """One place for each row."""
    x, source, index = lo.value(x), lo.value(source), lo.value(index)
    if not x.rank:
        raise Unsupported("index_reduce of a tensor without dimensions")
    at = lo.axis(x, dim)
    places: Value = index.view([-1 if d == at else 1 for d in range(x.rank)]).expand(list(source.shape))
    return scatters.reduced(x, at, places, source, reduce, include_self)
