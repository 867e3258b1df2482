"""Convolutions that are made of others (of three dimensions, transposed), and what they and pooling
have in common: places around a tensor, and the input of each place of a kernel.

Weights are values, and what is made of them alone is made when a bundle is loaded: they keep their
names.
"""

from __future__ import annotations

import math
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from ...bundle_writer import less
from .. import expr as ex
from ..declared import FLOATS, RANGES
from ..expr import Size
from ..ir import IRError, Value
from . import convolutions, elementwise, indexing, products  # noqa: F401  - the methods that are used here
from .shapes import cat

Pads = Sequence[Tuple[Any, Any]]


def padded(x: Value, pads: Pads, number: Any = 0.0) -> Value:
    """More places before and after each of the last dimensions; fewer where the sizes are
    negative, which a call may decide. `number`: one, or a value of one."""
    for at, (before, after) in zip(range(x.rank - len(pads), x.rank), pads):
        more = [ex.maximum(size, 0) for size in (before, after)]
        if not ex.same_shape(more, [ex.simplify(size) for size in (before, after)]):
            x = x.slice(at, ex.simplify(ex.constant(more[0]) - before), ex.simplify(ex.constant(x.shape[at]) + after - more[1]))
        before, after = more
        around = [[_filled(x, [*x.shape[:at], size, *x.shape[at + 1 :]], number)] if not ex.same(size, 0) else [] for size in (before, after)]
        x = cat([*around[0], x, *around[1]], at) if around[0] or around[1] else x
    return x


#: By mode, which place of a dimension of `size` stands at a place outside.
PLACES: Dict[str, Callable[[Value, Size], Value]] = {
    "circular": lambda places, size: places.lt(0).where(places + size, places.ge(size).where(places + ex.simplify(ex.constant(size) * -1), places)),
    "reflect": lambda places, size: places.abs().ge(size).where(places.abs() * -1 + ex.simplify((ex.constant(size) - 1) * 2), places.abs()),
    "replicate": lambda places, size: places.maximum(0).minimum(ex.simplify(ex.constant(size) - 1)),
}


def continued(x: Value, pads: Pads, mode: str) -> Value:
    """More places before and after each of the last dimensions, which repeat others. Circular ones
    repeat what fewer places leave, the others what was there before."""
    for at, (before, after) in enumerate(pads, x.rank - len(pads)):
        if mode == "circular" and any(isinstance(pad, int) and pad < 0 for pad in (before, after)):
            x = x.slice(at, max(-before, 0), ex.simplify(ex.constant(x.shape[at]) - max(-after, 0)))
            before, after = max(before, 0), max(after, 0)
        places = x.function.arange(ex.simplify(ex.constant(x.shape[at]) + before + after)) - before
        x = x.index_select(at, PLACES[mode](places, x.shape[at]))
    return x


def _filled(x: Value, shape: Sequence[Size], number: Any) -> Value:
    if not isinstance(number, Value):
        return x.function.full(shape, number, x.dtype)
    return (number if number.dtype == x.dtype else number.to_copy(x.dtype)).expand(list(shape))


#: Elements of a window whose input is copied for each.
MOST_TAPS = 4096


def taps(x: Value, kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]) -> List[Tuple[Tuple[int, ...], Value]]:
    """The input of each place of the kernel: the place, and [n, c, *out]."""
    if math.prod(kernel) > MOST_TAPS:
        raise IRError(f"a window of {list(kernel)}: at most {MOST_TAPS} elements are taken one by one")
    first = x.rank - len(kernel)
    out = [ex.simplify((ex.constant(x.shape[first + d]) - dilations[d] * (kernel[d] - 1) - 1) // strides[d] + 1) for d in range(len(kernel))]
    parts: List[Any] = [((), x)]
    for d in range(len(kernel)):
        parts = [((*place, k), strided(part, first + d, k * dilations[d], out[d], strides[d])) for place, part in parts for k in range(kernel[d])]
    return parts


def reduced(x: Value, kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int], both: Callable[[Value, Value], Value]) -> Value:
    """What windows give together, one place of the kernel after the other."""
    (_place, total), *rest = taps(x, kernel, strides, dilations)
    for _place, part in rest:
        total = both(total, part)
    return total


def added(sizes: Sequence[Size], kernel: Sequence[int], strides: Sequence[int], pads: Sequence[int], dilations: Sequence[int]) -> List[Size]:
    """Places behind each dimension that ceil_mode adds: for a last window that begins in the tensor
    or its padding before."""
    made = []
    for size, k, step, pad, apart in zip(sizes, kernel, strides, pads, dilations):
        reach, whole = apart * (k - 1) + 1, ex.constant(size) + 2 * pad
        last = ex.constant(ex.ceildiv(whole - reach, step)) * step
        last = last - less(ex.constant(size) + (pad - 1), last) * step
        made.append(ex.maximum(ex.simplify(last + reach - whole), 0))
    return made


def counts(x: Value, kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int], pads: Pads, with_pads: bool) -> Value:
    """How many elements each window has; `with_pads`: and places of the padding, as wide behind as
    before."""
    first = x.rank - len(kernel)
    ones = x.function.full([1] * first + list(x.shape[first:]), 1.0, x.dtype)
    ones = padded(ones, [(before, before) for before, _after in pads], 1.0 if with_pads else 0.0)
    return reduced(padded(ones, [(0, after - before) for before, after in pads]), kernel, strides, dilations, lambda a, b: a + b)


def adapted(x: Value, sizes: Sequence[int], reduce: Callable[[Value, List[int]], Value]) -> Value:
    """Each place of the result is made of its share of the input's places, in the last
    dimensions."""
    first = x.rank - len(sizes)
    if all(s == 1 for s in sizes):
        return reduce(x, list(range(first, x.rank)))
    for at, wanted in enumerate(sizes, first):
        extent = ex.constant(x.shape[at])
        if ex.same(extent, wanted):
            continue
        if not isinstance(wanted, int):
            raise IRError(f"function {x.function.name!r}: adaptive pooling of a dimension of {extent} to {wanted}")
        ends = [(ex.simplify(extent * i // wanted), ex.simplify((extent * (i + 1) + (wanted - 1)) // wanted)) for i in range(wanted)]
        x = cat([reduce(x.slice(at, start, end), [at]) for start, end in ends], at)
    return x


def each(item: Any, count: int) -> List[int]:
    """A number for each of `count` dimensions."""
    return list(item) * (count if len(item) == 1 else 1) if isinstance(item, (list, tuple)) else [item] * count


def _pools(x: Value, dims: int, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool) -> Tuple[List[int], List[int], List[int], Any, bool]:
    """Kernel, strides, dilations, and (before, after) of each dimension; after what ceil_mode
    adds, and whether that is anything."""
    kernel, dilations, pads = each(kernel, dims), each(dilation, dims), each(padding, dims)
    strides = each(stride or kernel, dims)
    more = [0] * dims if not ceil_mode else added(x.shape[x.rank - dims :], kernel, strides, pads, dilations)
    return kernel, strides, dilations, [(p, p + m) for p, m in zip(pads, more)], not all(ex.same(m, 0) for m in more)


def max_pool(x: Value, dims: int, kernel: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False) -> Value:
    """aten.max_pool of one to three dimensions."""
    kernel, strides, dilations, pads, _more = _pools(x, dims, kernel, stride, padding, dilation, ceil_mode)
    if dims < 3 and _is_fixed(pads) and x.dtype in FLOATS:
        return _pooled(x, "max_pool2d", kernel, strides, pads, dilations)
    return reduced(padded(x, pads, -math.inf if x.dtype in FLOATS else RANGES[x.dtype][0]), kernel, strides, dilations, lambda a, b: a.maximum(b))


def _is_fixed(pads: Pads) -> bool:
    """Whether no call decides what ceil_mode adds."""
    return all(isinstance(size, int) for both in pads for size in both)


def _pooled(x: Value, method: str, kernel: List[int], strides: List[int], pads: Any, *dilations: List[int]) -> Value:
    """Of one dimension: of two, of height 1. Without a batch: a batch of one."""
    one, unbatched = len(kernel) == 1, x.rank == len(kernel) + 1
    x = x.unsqueeze(0) if unbatched else x
    if one:
        x, kernel, strides, pads, dilations = x.unsqueeze(2), [1, *kernel], [1, *strides], [(0, 0), *pads], tuple([1, *own] for own in dilations)
    made = getattr(x, method)(kernel, strides, [size for both in pads for size in both], *dilations)
    made = made.select(2, 0) if one else made
    return made.select(0, 0) if unbatched else made


def avg_pool(
    x: Value, dims: int, kernel: Any, stride: Any = (), padding: Any = 0, ceil_mode: bool = False, count_include_pad: bool = True, divisor_override: Any = None
) -> Value:
    """aten.avg_pool: by the size of the window, or by how many elements are in it, never those that
    ceil_mode adds. Of integers it is cut to one."""
    kernel, strides, dilations, pads, more = _pools(x, dims, kernel, stride, padding, 1, ceil_mode)
    by_count = not divisor_override and (more or (any(map(any, pads)) and not count_include_pad))
    is_float = x.dtype in FLOATS
    if dims < 3 and not by_count and _is_fixed(pads) and is_float:
        made = _pooled(x, "avg_pool2d", kernel, strides, pads)
        return made if not divisor_override else made * (math.prod(kernel) / divisor_override)
    total = reduced(padded(x, pads), kernel, strides, dilations, lambda a, b: a + b)
    if not by_count:
        divisor = divisor_override or math.prod(kernel)
        return total * (1 / divisor) if is_float else total.div(divisor, rounding_mode="trunc")
    count = counts(x, kernel, strides, dilations, pads, count_include_pad)
    return total / count if is_float else total.div(count, rounding_mode="trunc")


def strided(x: Value, at: int, start: int, count: Size, step: int) -> Value:
    end = ex.simplify((ex.constant(count) - 1) * step + start + 1)
    if start == 0 and step == 1 and ex.same(end, x.shape[at]):
        return x
    return x.slice(at, start, end, step)


def spread(x: Value, at: int, step: int) -> Value:
    """step - 1 zeros behind each place but the last."""
    if step == 1:
        return x
    wide = x.unsqueeze(at + 1)
    zeros = x.function.full([*x.shape[: at + 1], step - 1, *x.shape[at + 1 :]], 0.0, x.dtype)
    size = ex.simplify(ex.constant(x.shape[at]) * step)
    return cat([wide, zeros], at + 1).view([*x.shape[:at], size, *x.shape[at + 1 :]]).slice(at, 0, ex.simplify(ex.constant(size) - (step - 1)))


def flipped(x: Value, dims: Sequence[int]) -> Value:
    """aten.flip."""
    for at in dims:
        last = ex.simplify(ex.constant(x.shape[at]) - 1)
        x = x.index_select(at, x.function.arange(x.shape[at]) * -1 + last)
    return x


def rolled_from(x: Value, at: int, shift: Size) -> Size:
    """The place that a roll of a dimension by `shift`, which may be larger than it, brings to its
    begin."""
    size = x.shape[at]
    least, _most = ex.bounds(size, x.function.module.ranges())
    if isinstance(size, int) and isinstance(shift, int):
        return -shift % max(size, 1)
    if isinstance(shift, int) and abs(shift) <= least:
        return ex.simplify(ex.constant(size) - shift) if shift > 0 else -shift
    return ex.simplify(ex.constant(shift) * -1 % size)


def channels_last(x: Value) -> Value:
    return x.permute([0, *range(2, x.rank), 1])


def channels_first(x: Value) -> Value:
    return x.permute([0, x.rank - 1, *range(1, x.rank - 1)])


def by_channel(x: Value, item: Value) -> Value:
    return item.view([1, -1, *[1] * (x.rank - 2)])


def convolved(x: Value, weight: Value, strides: Sequence[int], dilations: Sequence[int], groups: Size) -> Value:
    """A convolution of any number of dimensions as a product: each place of the kernel gives
    columns. A kernel that does not overlap itself takes a view of the input."""
    kernel = [int(size) for size in weight.shape[2:]]
    if not isinstance(groups, int):
        return _in_groups(x, weight, kernel, strides, dilations, groups)
    channels, outputs, dims = int(weight.shape[1]) * groups, int(weight.shape[0]), len(kernel)
    if groups == channels == outputs:
        return _depthwise(x, weight, kernel, strides, dilations)
    if groups > 1:
        return cat([convolved(part, own, strides, dilations, 1) for part, own in zip(x.chunk(groups, 1), weight.chunk(groups, 0))], 1)
    sizes = x.shape[2:]
    if kernel == list(strides) and all(d == 1 for d in dilations) and all(isinstance(s, int) and s % k == 0 for s, k in zip(sizes, kernel)):
        split = [part for s, k in zip(sizes, kernel) for part in (s // k, k)]
        places = x.view([x.shape[0], channels, *split]).permute([0, *range(2, 2 + 2 * dims, 2), 1, *range(3, 3 + 2 * dims, 2)])
        columns = places.view([x.shape[0], *[s // k for s, k in zip(sizes, kernel)], -1])
        return channels_first(columns.linear(weight.view([outputs, -1])))
    parts = [channels_last(part) for _place, part in taps(x, kernel, strides, dilations)]
    matrix = weight.permute([0, *range(2, 2 + dims), 1]).view([outputs, -1])
    return channels_first((cat(parts, dims + 1) if len(parts) > 1 else parts[0]).linear(matrix))


def _in_groups(x: Value, weight: Value, kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int], groups: Size) -> Value:
    """In as many groups as the call says, such as one for each sample: products of matrices, one
    for each group."""
    batch, own, outputs = x.shape[0], weight.shape[1], ex.simplify(ex.constant(weight.shape[0]) // groups)
    parts = [part for _place, part in taps(x, kernel, strides, dilations)]
    sizes = parts[0].shape[2:]
    columns = cat([part.view([batch, groups, own, 1, ex.product(sizes)]) for part in parts], 3)
    columns = columns.view([batch, groups, ex.simplify(ex.constant(own) * len(parts)), ex.product(sizes)])
    made = weight.view([1, groups, outputs, columns.shape[2]]).expand([batch, groups, outputs, columns.shape[2]]).matmul(columns)
    return made.view([batch, weight.shape[0], *sizes])


def _depthwise(x: Value, weight: Value, kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]) -> Value:
    total: Optional[Value] = None
    for place, part in taps(x, kernel, strides, dilations):
        own = weight
        for at in (0, *place):
            own = own.select(1, at)
        tap = part * by_channel(part, own)
        total = tap if total is None else total + tap
    assert total is not None
    return total


def conv_transpose(
    x: Value, weight: Value, bias: Optional[Value], strides: Sequence[int], paddings: Sequence[int], more: Sequence[int], groups: int, dilations: Sequence[int],
) -> Value:  # fmt: skip
    """aten.conv_transpose: a convolution of the input with the kernel turned around; with zeros
    between its places where they are needed."""
    kernel = [int(size) for size in weight.shape[2:]]
    dims = len(kernel)
    if dims < 3 and x.dtype in FLOATS and all(d == 1 for d in dilations) and all(s <= k and p < k + m for s, k, p, m in zip(strides, kernel, paddings, more)):
        return _transposed(x, weight, bias, list(strides), list(paddings), list(more), groups)
    for d in range(dims):
        x = spread(x, 2 + d, strides[d])
    reach = [dilations[d] * (kernel[d] - 1) - paddings[d] for d in range(dims)]
    x = padded(x, [(reach[d], reach[d] + more[d]) for d in range(dims)])
    per, outputs = int(weight.shape[0]) // groups, int(weight.shape[1])
    turned = flipped(weight, range(2, 2 + dims)).view([groups, per, outputs, *kernel]).transpose(1, 2).view([groups * outputs, per, *kernel])
    made = convolved(x, turned, [1] * dims, dilations, groups)
    return made if bias is None else made + by_channel(made, bias)


def _transposed(x: Value, weight: Value, bias: Optional[Value], strides: List[int], paddings: List[int], more: List[int], groups: int) -> Value:
    """Places of the result at each distance from a multiple of the stride see places of the kernel
    of their own: each distance is a convolution that has no zeros between places, and all are one
    with as many times the outputs."""
    dims, (inputs, outputs, *kernel) = len(strides), (int(size) for size in weight.shape)
    if dims == 1:
        x, strides, paddings, more, kernel = x.unsqueeze(2), [1, *strides], [0, *paddings], [0, *more], [1, *kernel]
    (down, across), counts = strides, [-(-k // s) for k, s in zip(kernel, strides)]
    # Place q * stride + r of the result, padding included, sees place q - j of x with place r +
    # stride * j of the kernel.
    wide = padded(weight.view([inputs, outputs, *kernel]), [(0, counts[0] * down - kernel[0]), (0, counts[1] * across - kernel[1])])
    wide = flipped(wide.view([groups, inputs // groups, outputs, counts[0], down, counts[1], across]), [3, 5]).permute([0, 4, 6, 2, 1, 3, 5])
    wide = wide.view([groups * down * across * outputs, inputs // groups, *counts])
    after = [-(-(k - p + m) // s) - 1 for k, p, m, s in zip(kernel, paddings, more, strides)]
    spoken = None if bias is None else bias.view([groups, 1, outputs]).expand([groups, down * across, outputs]).view([-1])
    made = x.conv2d(wide, spoken, 1, [counts[0] - 1, after[0], counts[1] - 1, after[1]], 1, groups)
    batch, _channels, height, width = made.shape
    made = made.permute([0, 2, 3, 1]).view([batch, height, width, groups, down, across, outputs]).permute([0, 1, 4, 2, 5, 3, 6])
    made = made.view([batch, ex.simplify(ex.constant(height) * down), ex.simplify(ex.constant(width) * across), groups * outputs]).permute([0, 3, 1, 2])
    for at, (p, s, k, m) in enumerate(zip(paddings, strides, kernel, more), 2):
        made = made.slice(at, p, ex.simplify((ex.constant(x.shape[at]) - 1) * s + k - p + m))
    return made.select(2, 0) if dims == 1 else made
