"""Lowerings of operations that show the same elements in another shape, and how what is written to
a view gets into the whole."""

from __future__ import annotations

from typing import Any, Callable, Dict, Sequence

from ..compiler import Value
from ..compiler import cat as join
from ..compiler import expr as ex
from ..compiler.ops.schema import common_dtype
from ..compiler.ops.windows import flipped, rolled_from
from ..compiler import affine
from .table import lowers
from .values import Unsupported

#: By operation: the whole with the part replaced. Its arguments are (lowering, whole, part, *the
#: view's own).
VIEWS: Dict[str, Callable[..., Any]] = {}


def _put(*targets: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        VIEWS.update({target: function for target in targets})
        return function

    return register


def _reshape_put(lo: Any, whole: Any, part: Any, *rest: Any, **named: Any) -> Any:
    return lo.value(part).view(list(lo.shape(whole)))


@lowers("aten.view.default", "aten.reshape.default", "aten._unsafe_view.default")
def view(lo: Any, x: Any, size: Sequence[Any]) -> Any:
    x = lo.value(x)
    return x if ex.same_shape(x.shape, tuple(size)) else x.view(list(size))


_put(
    "aten.view.default", "aten.reshape.default", "aten.flatten.using_ints", "aten.unflatten.int", "aten.ravel.default", "aten.view_as.default",
    "aten.reshape_as.default",
)(_reshape_put)  # fmt: skip


@lowers("aten.view_as.default", "aten.reshape_as.default")
def view_as(lo: Any, x: Any, other: Any) -> Any:
    return lo.value(x).view(list(lo.shape(other)))


@lowers("aten.flatten.using_ints", "aten.ravel.default")
def flatten(lo: Any, x: Any, start_dim: int = 0, end_dim: int = -1) -> Any:
    return lo.value(x).flatten(start_dim, end_dim)


for _least in (1, 2):
    lowers(f"aten.atleast_{_least}d.default")(lambda lo, x, least=_least: lo.value(x).view([*[1] * (least - lo.rank(x)), *lo.shape(x)]))


@lowers("aten.unflatten.int")
def unflatten(lo: Any, x: Any, dim: int, sizes: Sequence[Any]) -> Any:
    x, at = lo.value(x), lo.axis(x, dim)
    return x.view([*x.shape[:at], *_without_minus(x.shape[at], sizes), *x.shape[at + 1 :]])


def _without_minus(size: Any, sizes: Sequence[Any]) -> Sequence[Any]:
    known = ex.product(s for s in sizes if not (isinstance(s, int) and s == -1))
    return [ex.simplify(ex.constant(size) // known) if isinstance(s, int) and s == -1 else s for s in sizes]


def _permuted(lo: Any, x: Value, dims: Sequence[int]) -> Any:
    result, pattern = x.permute(list(dims)), lo.pattern(x)
    return lo.marked(result, pattern and affine.mapped(pattern, {d: dims.index(d) for d in range(x.rank)}, x.rank))


@lowers("aten.permute.default")
def permute(lo: Any, x: Any, dims: Sequence[int]) -> Any:
    x = lo.value(x)
    return _permuted(lo, x, [lo.axis(x, d) for d in dims])


@_put("aten.permute.default")
def _put_permute(lo: Any, whole: Any, part: Any, dims: Sequence[int]) -> Any:
    dims = [lo.axis(whole, d) for d in dims]
    return lo.value(part).permute([dims.index(d) for d in range(len(dims))])


@lowers("aten.transpose.int", "aten.swapaxes.default", "aten.swapdims.default")
def transpose(lo: Any, x: Any, dim0: int, dim1: int) -> Any:
    x = lo.value(x)
    dims = list(range(x.rank))
    if x.rank:
        a, b = lo.axis(x, dim0), lo.axis(x, dim1)
        dims[a], dims[b] = dims[b], dims[a]
    return _permuted(lo, x, dims)


@_put("aten.transpose.int", "aten.swapaxes.default", "aten.swapdims.default")
def _put_transpose(lo: Any, whole: Any, part: Any, dim0: int, dim1: int) -> Any:
    return transpose(lo, part, dim0, dim1)


@lowers("aten.t.default", "aten.mT.default", "aten.adjoint.default", "aten.mH.default")
def t(lo: Any, x: Any) -> Any:
    return transpose(lo, x, -1, -2) if lo.rank(x) > 1 else x


@lowers("aten.numpy_T.default")
def reversed_(lo: Any, x: Any) -> Any:
    return _permuted(lo, lo.value(x), list(range(lo.rank(x)))[::-1])


_put("aten.t.default", "aten.mT.default", "aten.adjoint.default", "aten.mH.default")(lambda lo, whole, part: t(lo, part))
_put("aten.numpy_T.default")(lambda lo, whole, part: reversed_(lo, part))


@lowers("aten.movedim.int", "aten.movedim.intlist", "aten.moveaxis.int", "aten.moveaxis.intlist")
def movedim(lo: Any, x: Any, source: Any, destination: Any) -> Any:
    x = lo.value(x)
    sources = [lo.axis(x, d) for d in ([source] if isinstance(source, int) else source)]
    targets = [lo.axis(x, d) for d in ([destination] if isinstance(destination, int) else destination)]
    rest = iter(d for d in range(x.rank) if d not in sources)
    return _permuted(lo, x, [sources[targets.index(d)] if d in targets else next(rest) for d in range(x.rank)])


_put("aten.movedim.int", "aten.movedim.intlist", "aten.moveaxis.int", "aten.moveaxis.intlist")(
    lambda lo, whole, part, source, destination: movedim(lo, part, destination, source))  # fmt: skip


@lowers("aten.unsqueeze.default")
def unsqueeze(lo: Any, x: Any, dim: int) -> Any:
    x, at = lo.value(x), lo.axis(x, dim, 1)
    pattern = lo.pattern(x)
    return lo.marked(x.unsqueeze(at), pattern and affine.mapped(pattern, {d: d + (d >= at) for d in range(x.rank)}, x.rank + 1))


_put("aten.unsqueeze.default", "aten.squeeze.dim", "aten.squeeze.default", "aten.squeeze.dims")(_reshape_put)


@lowers("aten.squeeze.dim", "aten.squeeze.default", "aten.squeeze.dims")
def squeeze(lo: Any, x: Any, dim: Any = None) -> Any:
    x = lo.value(x)
    dims = range(x.rank) if dim is None else [dim] if isinstance(dim, int) else dim
    gone = [lo.axis(x, d) for d in dims if ex.same(x.shape[lo.axis(x, d)], 1)]
    left = [d for d in range(x.rank) if d not in gone]
    pattern = lo.pattern(x)
    result = x.view([x.shape[d] for d in left]) if gone else x
    return lo.marked(result, pattern and affine.mapped(pattern, {d: left.index(d) if d in left else None for d in range(x.rank)}, len(left)))


@lowers("aten.expand.default", "aten.broadcast_to.default")
def expand(lo: Any, x: Any, size: Sequence[Any], implicit: bool = False) -> Any:
    x = lo.value(x)
    more = len(size) - x.rank
    shape = [x.shape[i - more] if isinstance(s, int) and s == -1 else s for i, s in enumerate(size)]
    pattern = lo.pattern(x)
    if ex.same_shape(tuple(shape), x.shape):
        return x
    return lo.marked(x.expand(shape), pattern and affine.mapped(pattern, {d: d + more for d in range(x.rank)}, len(size)))


@lowers("aten.expand_as.default")
def expand_as(lo: Any, x: Any, other: Any) -> Any:
    return expand(lo, x, lo.shape(other))


@_put("aten.expand.default", "aten.broadcast_to.default", "aten.expand_as.default")
def _put_expand(lo: Any, whole: Any, part: Any, *rest: Any, **named: Any) -> Any:
    if not ex.same(ex.product(lo.shape(part)), ex.product(lo.shape(whole))):
        raise Unsupported("elements that are several places are written")
    return _reshape_put(lo, whole, part)


def _bounds(lo: Any, x: Any, at: int, start: Any, end: Any) -> Any:
    """Start and end as the compiler takes them: torch counts from the end and cuts what is
    outside."""
    size = lo.shape(x)[at]
    start, end = 0 if start is None else start, size if end is None else end
    if isinstance(end, int) and end >= 1 << 31:
        end = size
    if isinstance(start, int) and start < 0:
        start = max(size + start, 0) if isinstance(size, int) else ex.simplify(ex.constant(size) + start)
    if isinstance(end, int) and end < 0:
        end = max(size + end, 0) if isinstance(size, int) else ex.simplify(ex.constant(size) + end)
    if isinstance(size, int) and isinstance(start, int) and isinstance(end, int):
        start = min(start, size)
        end = max(min(end, size), start)
    elif isinstance(size, int) and isinstance(end, int):
        end = min(end, size)
    return start, end


@lowers("aten.slice.Tensor")
def slice_(lo: Any, x: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Any:
    x = lo.value(x)
    at = lo.axis(x, dim)
    start, end = _bounds(lo, x, at, start, end)
    if isinstance(start, int) and start == 0 and ex.same(end, x.shape[at]) and step == 1:
        return x
    pattern = lo.pattern(x)
    return lo.marked(x.slice(at, start, end, step), affine.shifted(pattern, at, start) if pattern is not None and step == 1 else None)


@_put("aten.slice.Tensor")
def _put_slice(lo: Any, whole: Any, part: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Any:
    whole, part, at = lo.value(whole), lo.value(part), lo.axis(whole, dim)
    start, end = _bounds(lo, whole, at, start, end)
    if step != 1:
        return whole.scatter(lo.function.arange(start, end, step), part, at, False)
    size, parts = whole.shape[at], [part]
    if not ex.same(start, 0):
        parts.insert(0, whole.slice(at, 0, start))
    if not ex.same(end, size):
        parts.append(whole.slice(at, end, size))
    return join(parts, at) if len(parts) > 1 else part


@lowers("aten.select.int")
def select(lo: Any, x: Any, dim: int, index: Any) -> Any:
    x = lo.value(x)
    at = lo.axis(x, dim)
    place = ex.simplify(ex.constant(x.shape[at]) + index) if isinstance(index, int) and index < 0 else index
    pattern = lo.pattern(x)
    pattern = None if pattern is None else affine.shifted(pattern, at, place)
    if pattern is not None:
        pattern = affine.mapped(pattern, {d: None if d == at else d - (d > at) for d in range(x.rank)}, x.rank - 1)
    return lo.marked(x.select(at, place), pattern)


@_put("aten.select.int")
def _put_select(lo: Any, whole: Any, part: Any, dim: int, index: Any) -> Any:
    at = lo.axis(whole, dim)
    place = ex.simplify(ex.constant(lo.shape(whole)[at]) + index) if isinstance(index, int) and index < 0 else index
    return _put_slice(lo, whole, lo.value(part).unsqueeze(at), at, place, ex.simplify(ex.constant(place) + 1))


@lowers("aten.narrow.default")
def narrow(lo: Any, x: Any, dim: int, start: Any, length: Any) -> Any:
    return slice_(lo, x, dim, *_narrowed(lo, x, dim, start, length))


def _narrowed(lo: Any, x: Any, dim: int, start: Any, length: Any) -> Any:
    start = ex.simplify(ex.constant(lo.shape(x)[dim]) + start) if isinstance(start, int) and start < 0 else start
    return start, ex.simplify(ex.constant(start) + length)


@_put("aten.narrow.default")
def _put_narrow(lo: Any, whole: Any, part: Any, dim: int, start: Any, length: Any) -> Any:
    return _put_slice(lo, whole, part, dim, *_narrowed(lo, whole, dim, start, length))


@lowers("aten.split.Tensor", "aten.split_with_sizes.default", "aten.split.sizes", "aten.unsafe_split.Tensor")
def split(lo: Any, x: Any, size: Any, dim: int = 0) -> Any:
    return lo.value(x).split(size, dim)


@lowers("aten.chunk.default")
def chunk(lo: Any, x: Any, chunks: int, dim: int = 0) -> Any:
    return lo.value(x).chunk(chunks, dim)


@lowers("aten.unbind.int")
def unbind(lo: Any, x: Any, dim: int = 0) -> Any:
    x = lo.value(x)
    at = lo.axis(x, dim)
    if not isinstance(x.shape[at], int):
        raise Unsupported(f"unbind over a dimension of {x.shape[at]}")
    return [select(lo, x, at, i) for i in range(x.shape[at])]


@_put("aten.split.Tensor", "aten.split_with_sizes.default", "aten.split.sizes")
def _put_split(lo: Any, whole: Any, part: Any, number: int, size: Any, dim: int = 0) -> Any:
    return _put_part(lo, whole, part, split(lo, whole, size, dim)[:number], dim)


@_put("aten.chunk.default")
def _put_chunk(lo: Any, whole: Any, part: Any, number: int, chunks: int, dim: int = 0) -> Any:
    return _put_part(lo, whole, part, chunk(lo, whole, chunks, dim)[:number], dim)


def _put_part(lo: Any, whole: Any, part: Any, before: Sequence[Value], dim: int) -> Any:
    at = lo.axis(whole, dim)
    start = ex.simplify(sum((ex.constant(x.shape[at]) for x in before), ex.constant(0)))
    return _put_slice(lo, whole, part, at, start, ex.simplify(ex.constant(start) + lo.shape(part)[at]))


_put("aten.unbind.int")(lambda lo, whole, part, number, dim=0: _put_select(lo, whole, part, dim, number))


def _identity(lo: Any, x: Any, *rest: Any, **named: Any) -> Any:
    return x


lowers(
    "aten.alias.default", "aten.detach.default", "aten.contiguous.default", "aten.clone.default", "aten.lift_fresh_copy.default", "aten.lift_fresh.default",
    "aten.to.device", "aten.positive.default", "prims.copy_strided.default",
)(_identity)  # fmt: skip
_put(
    "aten.alias.default", "aten.detach.default", "aten.contiguous.default", "aten.lift_fresh.default", "aten.to.device", "aten.positive.default",
    "aten.to.dtype", "aten.to.dtype_layout", "aten.to.other", "aten.type_as.default", "aten.dropout.default", "aten.feature_dropout.default",
    "aten.alpha_dropout.default",
)(lambda lo, whole, part, *rest, **named: part)  # fmt: skip


@lowers("aten.dropout.default", "aten.feature_dropout.default", "aten.alpha_dropout.default")
def dropout(lo: Any, x: Any, p: float, train: bool) -> Any:
    if train and p > 0:
        raise Unsupported("dropout in training mode: call model.eval() first")
    return x


@lowers("aten.cat.default", "aten.concat.default")
def cat(lo: Any, tensors: Sequence[Any], dim: int = 0) -> Any:
    values = [lo.value(x) for x in tensors]
    dtype = common_dtype("cat", [x.dtype for x in values])
    values = [x for x in values if not (x.rank == 1 and ex.same(x.shape[0], 0))] or values[:1]
    values = [x if x.dtype == dtype else x.to_copy(dtype) for x in values]
    return join(values, lo.axis(values[0], dim)) if len(values) > 1 else values[0]


@lowers("aten.stack.default")
def stack(lo: Any, tensors: Sequence[Any], dim: int = 0) -> Any:
    values = [lo.value(x) for x in tensors]
    at = lo.axis(values[0], dim, 1)
    return cat(lo, [x.unsqueeze(at) for x in values], at)


@lowers("aten.repeat.default")
def repeat(lo: Any, x: Any, repeats: Sequence[Any]) -> Any:
    x = lo.value(x)
    if all(ex.same(count, 1) or ex.same(extent, 1) for count, extent in zip(repeats[len(repeats) - x.rank :], x.shape)):
        return expand(lo, x, [*repeats[: len(repeats) - x.rank], *(e if ex.same(c, 1) else c for c, e in zip(repeats[len(repeats) - x.rank :], x.shape))])
    x = x.view([1] * (len(repeats) - x.rank) + list(x.shape))
    wide, tall, size = [], [], []
    for count, extent in zip(repeats, x.shape):
        wide += [1, extent]
        tall += [count, extent]
        size.append(ex.simplify(ex.constant(count) * extent))
    return x.view(wide).expand(tall).view(size)


@lowers("aten.repeat_interleave.self_int")
def repeat_interleave(lo: Any, x: Any, repeats: int, dim: Any = None, output_size: Any = None) -> Any:
    x = lo.value(x)
    if dim is None:
        x, dim = x.flatten(), 0
    at = lo.axis(x, dim)
    wide = x.unsqueeze(at + 1).expand([*x.shape[: at + 1], repeats, *x.shape[at + 1 :]])
    return wide.view([*x.shape[:at], ex.simplify(ex.constant(x.shape[at]) * repeats), *x.shape[at + 1 :]])


@lowers("aten.roll.default")
def roll(lo: Any, x: Any, shifts: Sequence[int], dims: Sequence[int] = ()) -> Any:
    x = lo.value(x)
    if not dims:
        return roll(lo, x.flatten(), shifts, [0]).view(list(x.shape))
    for shift, dim in zip(shifts, dims):
        at = lo.axis(x, dim)
        cut = rolled_from(x, at, shift)
        if not ex.same(cut, 0):
            x = join([x.slice(at, cut, x.shape[at]), x.slice(at, 0, cut)], at)
    return x


@lowers("aten.flip.default")
def flip(lo: Any, x: Any, dims: Sequence[int]) -> Any:
    return flipped(lo.value(x), [lo.axis(x, d) for d in dims])


@lowers("aten.sym_size.int", "aten.size.int")
def sym_size(lo: Any, x: Any, dim: int) -> Any:
    return lo.shape(x)[lo.axis(x, dim)]


@lowers("aten.sym_numel.default")
def sym_numel(lo: Any, x: Any) -> Any:
    return ex.product(lo.shape(x))

