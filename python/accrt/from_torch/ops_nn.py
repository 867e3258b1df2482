"""Lowerings of products, norms, attention, convolutions, pooling, and lookups by index."""

from __future__ import annotations

from typing import Any, List, Optional, Sequence, Tuple

from .._torch_attention import together
from ..compiler import affine, Value
from ..compiler import expr as ex
from ..compiler.ops import windows
from ..compiler.ops.einsum import bilinear
from . import packed
from .ops_math import cast, filling, FLOATS, method
from .ops_more import permuted, put_mask
from .ops_views import expand, VIEWS
from .table import lowers
from .values import Unsupported

# ---- products


def alike(lo: Any, *operands: Any) -> List[Any]:
    made = [lo.optional(x) for x in operands]
    if len({x.dtype for x in made if x is not None and x.dtype in FLOATS}) > 1:
        raise Unsupported("a product of different types, which torch refuses when it runs: cast one")
    return made


@lowers("aten.linear.default")
def linear(lo: Any, x: Any, weight: Any, bias: Any = None) -> Any:
    x, weight, bias = alike(lo, x, weight, bias)
    return x.linear(weight, bias)


@lowers("aten.mm.default", "aten.matmul.default", "aten.mv.default", "aten.dot.default", "aten.vdot.default", "aten.bmm.default")
def matmul(lo: Any, a: Any, b: Any) -> Any:
    made = packed.product(lo, a)
    if made is not None:
        return made
    a, b = alike(lo, a, b)
    made = (a.unsqueeze(0) if a.rank == 1 else a).matmul(b.unsqueeze(1) if b.rank == 1 else b)
    made = made.select(-1, 0) if b.rank == 1 else made
    return made.select(-1 if b.rank == 1 else -2, 0) if a.rank == 1 else made


@lowers("aten.addmv.default", "aten.addmm.default", "aten.baddbmm.default")
def addmm(lo: Any, bias: Any, a: Any, b: Any, beta: Any = 1, alpha: Any = 1) -> Any:
    bias, *both = alike(lo, bias, a, b)
    if alpha == 1 and beta == 1 and "addmm" in str(lo.node.target):
        return bias.addmm(*both)
    made = matmul(lo, a, b) if alpha == 1 else matmul(lo, a, b) * alpha
    return made if beta == 0 else made + (bias if beta == 1 else bias * beta)


@lowers("transformers.grouped_mm_fallback.default", "aten._grouped_mm.default")
def grouped_mm(lo: Any, x: Any, weight: Any, offs: Any = None, bias: Any = None, out_dtype: Any = None) -> Any:
    """Rows [offs[e - 1], offs[e]) of x by matrix e."""
    x, weight, ends = lo.value(x), lo.value(weight), lo.value(offs)
    if x.rank != 2 or weight.rank != 3 or bias is not None:
        raise Unsupported(f"groups of {x.type} by {weight.type}")
    return x.grouped_matmul(weight, ends)


lowers("aten.outer.default")(lambda lo, a, b: lo.value(a).unsqueeze(1) * lo.value(b).unsqueeze(0))
lowers("aten.bilinear.default")(lambda lo, x, y, weight, bias=None: bilinear(lo.value(x), lo.value(y), lo.value(weight), lo.optional(bias)))


# ---- norms and attention


def _normed(lo: Any, name: str, x: Any, shape: Sequence[Any], weights: Sequence[Any], eps: Any) -> Any:
    """Over the last dimensions, as one."""
    x, many = lo.value(x), len(shape) > 1
    flat = x.flatten(x.rank - len(shape)) if many else x
    made = getattr(flat, name)(*(None if item is None else lo.value(item).flatten() if many else lo.value(item) for item in weights), eps)
    return made.view(list(x.shape)) if many else made


lowers("aten.layer_norm.default")(lambda lo, x, shape, weight=None, bias=None, eps=1e-5, cudnn_enable=True: _normed(lo, "layer_norm", x, shape, [weight, bias], eps))
lowers("aten.rms_norm.default")(lambda lo, x, shape, weight=None, eps=None: _normed(lo, "rms_norm", x, shape, [weight], eps))


@lowers("aten.batch_norm.default", "aten._native_batch_norm_legit_no_training.default")
def batch_norm(lo: Any, x: Any, weight: Any, bias: Any, mean: Any, variance: Any, *rest: Any) -> Any:
    """In evaluation: one factor and one summand of each channel. Where all is weights, they are
    made when the bundle is loaded."""
    training, eps = (rest[0], rest[2]) if len(rest) > 2 else (False, rest[1])
    if training:
        raise Unsupported("batch_norm in training mode: call model.eval() first")
    made = lo.value(x).batch_norm(lo.optional(weight), lo.optional(bias), lo.value(mean), lo.value(variance), eps)
    return made if "legit" not in str(lo.node.target) else [made, None, None]


@lowers("aten.group_norm.default")
def group_norm(lo: Any, x: Any, groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5, cudnn_enabled: bool = True) -> Any:
    return lo.value(x).group_norm(groups, lo.optional(weight), lo.optional(bias), eps)


@lowers("aten.instance_norm.default")
def instance_norm(lo: Any, x: Any, weight: Any, bias: Any, mean: Any, var: Any, use_input_stats: bool, momentum: float, eps: float, cudnn: bool) -> Any:
    if not use_input_stats:
        raise Unsupported("instance_norm with running statistics")
    return group_norm(lo, x, lo.shape(x)[1], weight, bias, eps)


@lowers("aten.scaled_dot_product_attention.default")
def attention(
    lo: Any, query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False, scale: Optional[float] = None,
    enable_gqa: bool = False,
) -> Any:  # fmt: skip
    """Heads that were expanded to those of the query are read where they are; limits of a mask
    (causal, a window) need no tensor, and what is left of it is as small as it is made."""
    query, key, value = q, k, v = together([lo.value(x) for x in (query, key, value)], enable_gqa)
    known = affine.Mask(True, 0) if is_causal else None if attn_mask is None else affine.attention_mask(lo.truth(attn_mask), q.shape[-2], k.shape[-2])
    mask = known.tensor if known is not None else None if attn_mask is None else lo.value(attn_mask)
    if mask is not None and mask.rank > 2 and q.rank != 4:
        mask = _four(expand(lo, mask, [*q.shape[:-3], *mask.shape[-3:]]) if mask.rank > 3 else mask, enable_gqa or q.rank > 4)
    q, k, v = (_four(x, enable_gqa) for x in (q, k, v))
    mask = None if mask is None else _mask_of(lo, mask, q, k)
    k, v = (expand(lo, x, [q.shape[0], *x.shape[1:]]) if ex.same(x.shape[0], 1) else x for x in (_ungrouped(k), _ungrouped(v)))
    if not ex.same(k.shape[1], v.shape[1]):
        k, v = (_four(x, enable_gqa) for x in (key, value))
    causal, first = known is not None and known.causal, None if known is None else known.first
    made = q.scaled_dot_product_attention(k, v, mask, causal, scale, known.offset if causal and not ex.same(known.offset, 0) else None, first)
    return made if query.rank == 4 else made.view([*query.shape[:-1], made.shape[-1]])


def _four(x: Value, has_heads: bool) -> Value:
    """With four dimensions: all before the heads as one; of three, the first may be the batch."""
    if x.rank == 3 and not has_heads:
        return x.unsqueeze(1)
    return x if x.rank == 4 else x.view([ex.product(x.shape[:-3]), *[1] * (3 - x.rank), *x.shape[-3:]])


def _mask_of(lo: Any, mask: Value, q: Value, k: Value) -> Value:
    """With four dimensions; of floats in the type of the query."""
    mask = mask.view([1] * (4 - mask.rank) + list(mask.shape)) if mask.rank < 4 else mask
    if not all(ex.same(size, 1) or ex.same(size, wanted) for size, wanted in zip(mask.shape[2:], (q.shape[2], k.shape[2]))):
        mask = mask.expand([mask.shape[0], mask.shape[1], q.shape[2], k.shape[2]])
    return mask if mask.dtype in ("bool", q.dtype) else cast(lo, mask, q.dtype)


def _ungrouped(x: Value) -> Value:
    """Undoes [b, g, t, d] -> [b, g, n, t, d] -> [b, g * n, t, d]: the compiler's attention has
    grouped heads itself."""
    view = x.op
    if view is None or view.name != "aten.view" or x.rank != 4:
        return x
    wide, op = view.operands[0], view.operands[0].op
    if op is None or op.name != "aten.expand" or wide.rank != 5:
        return x
    source, one = op.operands[0], op.operands[0].op
    if not ex.same(source.shape[2], 1) or one is None or not ex.same_shape((*source.shape[:2], *source.shape[3:]), (*wide.shape[:2], *wide.shape[3:])):
        return x
    grouped = one.operands[0] if one.name == "aten.view" and one.operands[0].rank == 4 else source.view([*source.shape[:2], *source.shape[3:]])
    return grouped if ex.same_shape(grouped.shape, (*wide.shape[:2], *wide.shape[3:])) else x


# ---- convolutions


@lowers("aten.conv1d.default", "aten.conv2d.default", "aten.conv1d.padding", "aten.conv2d.padding")
def conv(lo: Any, x: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1) -> Any:
    """One of one dimension is one of two, of height 1; of integers, or in as many
    groups as the call says, it is products."""
    x, weight = lo.value(x), lo.value(weight)
    dims = weight.rank - 2
    if x.dtype not in FLOATS or not isinstance(groups, int):
        return conv3d(lo, x, weight, bias, stride, padding, dilation, groups)
    strides, dilations, pads = windows.each(stride, dims), windows.each(dilation, dims), _conv_pads(weight.shape[2:], padding, dilation)
    unbatched = x.rank == dims + 1
    x = x.unsqueeze(0) if unbatched else x
    if dims == 1:
        x, weight = x.unsqueeze(2), weight.unsqueeze(2)
        strides, dilations, pads = [1, *strides], [1, *dilations], [(0, 0), *pads]
    made = x.conv2d(weight, lo.optional(bias), strides, [p for pair in pads for p in pair], dilations, groups)
    made = made.select(2, 0) if dims == 1 else made
    return made.select(0, 0) if unbatched else made


def _conv_pads(kernel: Sequence[int], padding: Any, dilation: Any) -> List[Tuple[int, int]]:
    dims = len(kernel)
    if not isinstance(padding, str):
        return [(p, p) for p in windows.each(padding, dims)]
    total = [d * (k - 1) if padding == "same" else 0 for k, d in zip(kernel, windows.each(dilation, dims))]
    return [(t // 2, t - t // 2) for t in total]


@lowers("aten.conv3d.default", "aten.conv3d.padding")
def conv3d(lo: Any, x: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1) -> Any:
    x, weight = lo.value(x), lo.value(weight)
    dims, unbatched = weight.rank - 2, x.rank == weight.rank - 1
    x = windows.padded(x.unsqueeze(0) if unbatched else x, _conv_pads(weight.shape[2:], padding, dilation))
    made = windows.convolved(x, weight, windows.each(stride, dims), windows.each(dilation, dims), groups)
    made = made if bias is None else made + windows.by_channel(made, lo.value(bias))
    return made.select(0, 0) if unbatched else made


@lowers("aten.conv_transpose1d.default", "aten.conv_transpose2d.input", "aten.conv_transpose3d.input")
def conv_transpose(
    lo: Any, x: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, output_padding: Any = 0, groups: int = 1, dilation: Any = 1
) -> Any:
    x, weight, bias = lo.value(x), lo.value(weight), lo.optional(bias)
    unbatched = x.rank == weight.rank - 1
    numbers = [windows.each(item, weight.rank - 2) for item in (stride, padding, output_padding, dilation)]
    made = windows.conv_transpose(x.unsqueeze(0) if unbatched else x, weight, bias, *numbers[:3], groups, numbers[3])
    return made.select(0, 0) if unbatched else made


@lowers("aten._weight_norm.default")
def weight_norm(lo: Any, v: Any, g: Any, dim: int = 0) -> Any:
    """v with the norm g: over all but one dimension, or over all (-1)."""
    v = lo.value(v)
    dims = [d for d in range(v.rank) if d != dim]
    return v * (lo.value(g) / (v * v).sum(dims, True).sqrt())


# ---- pooling, padding, sizes


for _d in (1, 2, 3):
    lowers(f"aten.max_pool{_d}d.default")(lambda lo, x, *how, dims=_d, **named: windows.max_pool(lo.value(x), dims, *how, **named))
    lowers(f"aten.avg_pool{_d}d.default")(lambda lo, x, *how, dims=_d, **named: windows.avg_pool(lo.value(x), dims, *how, **named))
    lowers(f"aten.adaptive_avg_pool{_d}d.default")(
        lambda lo, x, size, dims=_d: windows.adapted(lo.value(x), windows.each(size, dims), lambda part, along: part.mean(along, True)))  # fmt: skip
    lowers(f"aten.adaptive_max_pool{_d}d.default")(
        lambda lo, x, size, dims=_d: [windows.adapted(lo.value(x), windows.each(size, dims), lambda part, along: part.amax(along, True)), None])  # fmt: skip


@lowers("aten.pad.default", "aten.constant_pad_nd.default")
def pad(lo: Any, x: Any, pads: Sequence[Any], mode: Any = "constant", value: Any = None) -> Any:
    x = lo.value(x)
    number = value if isinstance(mode, str) else mode  # constant_pad_nd has the number there
    pairs = [(pads[i], pads[i + 1]) for i in range(0, len(pads), 2)][::-1]
    if not isinstance(mode, str) or mode == "constant":
        return windows.padded(x, pairs, filling(lo.operand(0 if number is None else number), x.dtype))
    if mode not in windows.PLACES:
        raise Unsupported(f"padding of mode {mode!r}")
    return windows.continued(x, pairs, mode)


lowers("aten.upsample_nearest1d.vec", "aten.upsample_nearest2d.vec", "aten.upsample_nearest3d.vec")(method("upsample_nearest"))
lowers("aten.upsample_linear1d.vec", "aten.upsample_bilinear2d.vec", "aten.upsample_trilinear3d.vec")(method("upsample_linear"))
lowers("aten.upsample_bicubic2d.vec")(method("upsample_cubic"))
lowers("aten._upsample_bilinear2d_aa.vec")(method("upsample_filtered"))
lowers("aten._upsample_bicubic2d_aa.vec")(lambda lo, x, size, align_corners, factors=None: lo.value(x).upsample_filtered(size, align_corners, factors, True))
lowers("aten.grid_sampler_2d.default", "aten.grid_sampler_3d.default", "aten.grid_sampler.default")(lambda lo, x, grid, *how: lo.value(x).grid_sample(lo.value(grid), *how))


lowers("aten._upsample_nearest_exact1d.vec", "aten._upsample_nearest_exact2d.vec", "aten._upsample_nearest_exact3d.vec")(
    lambda lo, x, size, factors=None: lo.value(x).upsample_nearest(size, factors, True))  # fmt: skip


# ---- lookups


@lowers("aten.embedding.default")
def embedding(lo: Any, weight: Any, indices: Any, padding_idx: int = -1, scale_grad: bool = False, sparse: bool = False) -> Any:
    return lo.value(weight).embedding(lo.value(indices))


lowers("aten.index_select.default")(lambda lo, x, dim, index: lo.value(x).index_select(lo.axis(x, dim), lo.value(index)))


@lowers("aten.gather.default")
def gather(lo: Any, x: Any, dim: int, index: Any, sparse_grad: bool = False) -> Any:
    return lo.value(x).gather(lo.axis(lo.value(x), dim), lo.value(index))


lowers("aten.take_along_dim.default")(lambda lo, x, index, dim: gather(lo, x, dim, index))


@lowers("aten.index.Tensor", "aten._unsafe_index.Tensor")
def index(lo: Any, x: Any, indices: Sequence[Any]) -> Any:
    """Advanced indexing: the indices are one shape after broadcasting. They become one place in the
    dimensions that they index."""
    x = lo.value(x)
    axes = [d for d, i in enumerate(indices) if i is not None]
    if any(lo.dtype(indices[d]) == "bool" for d in axes):
        raise Unsupported("a mask as an index: how many elements it takes is known to the call alone")
    if axes != list(range(axes[0], axes[-1] + 1)):
        return index(lo, *permuted(x, indices, axes))
    pattern = _looked_up(lo, x, indices, axes)
    if pattern is not None and isinstance(pattern, affine.Affine) and pattern.is_constant and x.dtype in ("i32", "i64"):
        shape = _broadcast([lo.shape(indices[d]) for d in axes])
        return lo.marked(lo.function.full(list(shape), pattern.offset, x.dtype), pattern)
    total, flat = _place(lo, x, indices, axes)
    shape = total.shape
    made = flat.index_select(axes[0], total.flatten() if total.rank != 1 else total)
    made = made.view([*x.shape[: axes[0]], *shape, *x.shape[axes[-1] + 1 :]]) if total.rank != 1 else made
    return lo.marked(made, pattern)


def _place(lo: Any, x: Value, indices: Sequence[Any], axes: Sequence[int]) -> Tuple[Value, Value]:
    """The indices of several dimensions as the place in one, and x with these dimensions as one."""
    total: Any = None
    for d in axes:
        place = lo.value(indices[d])
        place = place if place.dtype == "i64" else cast(lo, place, "i64")
        known = lo.pattern(indices[d])
        if not (isinstance(known, affine.Affine) and affine.is_natural(known)):
            # torch counts negative ones from the end
            place = place.lt(0).where(place + x.shape[d], place)
        total = place if total is None else total * x.shape[d] + place
    extent = ex.product(x.shape[d] for d in axes)
    return total, x.view([*x.shape[: axes[0]], extent, *x.shape[axes[-1] + 1 :]]) if len(axes) > 1 else x


def _looked_up(lo: Any, x: Value, indices: Sequence[Any], axes: Sequence[int]) -> Any:
    source = lo.pattern(x)
    places = [lo.pattern(indices[d]) for d in axes]
    if source is None or len(axes) != x.rank or not all(isinstance(p, affine.Affine) for p in places):
        return None
    return affine.looked_up(source, places)


def _broadcast(shapes: Sequence[Sequence[Any]]) -> List[Any]:
    from ..compiler.ops.schema import broadcast

    return list(broadcast(shapes))


@lowers("aten.index_put.default", "aten.index_copy.default", "aten.index_add.default")
def index_put(lo: Any, x: Any, *rest: Any, **named: Any) -> Any:
    """Each place takes the last of the values that go there, or the sum of all."""
    x, target = lo.value(x), str(lo.node.target)
    if "index_put" in target:
        indices, values, add = rest[0], rest[1], rest[2] if len(rest) > 2 else named.get("accumulate", False)
    else:
        indices, values, add = [None] * lo.axis(x, rest[0]) + [rest[1]], rest[2], "index_add" in target
    axes = [d for d, i in enumerate(indices) if i is not None]
    if len(axes) == 1 and lo.dtype(indices[axes[0]]) == "bool" and "index_put" in target:
        return put_mask(lo, x, indices[axes[0]], axes[0], lo.value(values), bool(add))
    if axes != list(range(axes[0], axes[-1] + 1)) or any(lo.dtype(indices[d]) == "bool" for d in axes):
        raise Unsupported("several masks as places, or whole dimensions between them")
    alpha = named.get("alpha", 1)
    values = cast(lo, lo.value(values), x.dtype)
    values = values if alpha == 1 else values * alpha
    place, flat = _place(lo, x, indices, axes)
    at, size = axes[0], ex.product(place.shape)
    values = values.expand([*flat.shape[:at], *place.shape, *flat.shape[at + 1 :]])
    values = values if place.rank == 1 else values.view([*flat.shape[:at], size, *flat.shape[at + 1 :]])
    return flat.scatter(place if place.rank == 1 else place.view([size]), values, at, bool(add)).view(list(x.shape))


@lowers("aten.slice_scatter.default")
def slice_scatter(lo: Any, x: Any, source: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Any:
    return VIEWS["aten.slice.Tensor"](lo, x, source, dim, start, end, step)


@lowers("aten.select_scatter.default")
def select_scatter(lo: Any, x: Any, source: Any, dim: int, index: Any) -> Any:
    return VIEWS["aten.select.int"](lo, x, source, dim, index)


@lowers("aten.tril.default", "aten.triu.default")
def triangle(lo: Any, x: Any, diagonal: Any = 0) -> Any:
    x = lo.value(x)
    rows, columns = lo.function.arange(x.shape[-2]).unsqueeze(1), lo.function.arange(x.shape[-1])
    lower = "tril" in str(lo.node.target)
    kept = columns.le(rows + diagonal) if lower else columns.ge(rows + diagonal)
    if x.dtype == "bool":
        made, pattern = x.logical_and(kept), lo.pattern(x)
        if isinstance(pattern, affine.Truth) and lower and isinstance(diagonal, int):
            axes = [0] * x.rank
            axes[-2:] = [1, -1]
            pattern = affine.both(pattern, affine.Truth(x.rank, (affine.Affine(tuple(axes), diagonal),)))
            return lo.marked(made, pattern)
        return made
    return kept.where(x, 0)


@lowers("aten.one_hot.default")
def one_hot(lo: Any, x: Any, classes: int = -1) -> Any:
    if classes < 0:
        raise Unsupported("one_hot without num_classes")
    return lo.value(x).unsqueeze(lo.rank(x)).eq(lo.function.arange(classes)).to_copy("i64")
