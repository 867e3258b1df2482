"""Lowerings of products, norms, attention, convolutions, pooling, and sizes of images."""

from __future__ import annotations

import math
from typing import Any, List, Optional, Sequence, Tuple

import numpy as np

from ..compiler import Value
from ..compiler import cat as join
from ..compiler import expr as ex
from ..compiler.declared import RANGES
from ..compiler.ops import windows
from ..compiler.ops.einsum import einsum as by_equation
from ..compiler import affine
from ..from_torch import ops_nn as aten
from ..from_torch.ops_math import cast, FLOATS
from ..from_torch.ops_views import flip
from .folding import check_room
from .table import lowers
from .values import dtype_named, Known, numpy_type, Unsupported

# ---- products


@lowers("MatMul")
def matmul(lo: Any, a: Any, b: Any) -> Any:
    return aten.matmul(lo, a, b)


@lowers("Gemm")
def gemm(lo: Any, a: Any, b: Any, c: Any = None, alpha: float = 1.0, beta: float = 1.0, transA: int = 0, transB: int = 0) -> Any:
    a, b = lo.value(a), lo.value(b)
    a = a.t() if transA else a
    bias = None if c is None or beta == 0 else lo.value(c)
    if transB and alpha == 1 and (bias is None or (beta == 1 and bias.rank == 1 and ex.same(bias.shape[0], b.shape[0]))):
        return a.linear(b, bias)
    product = a.matmul(b.t() if transB else b)
    product = product if alpha == 1 else product * _factor(product, alpha)
    return product if bias is None else product + (bias if beta == 1 else bias * _factor(bias, beta))


def _factor(x: Value, number: float) -> Any:
    return number if x.dtype in FLOATS else int(number)


@lowers("Einsum")
def einsum(lo: Any, *operands: Any, equation: str) -> Any:
    return by_equation(equation, [lo.value(x) for x in operands])


# ---- norms


@lowers("LayerNormalization")
def layer_norm(lo: Any, x: Any, scale: Any, bias: Any = None, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1) -> Any:
    x = lo.value(x)
    at = lo.axis(x, axis)
    shape = x.shape[at:]
    if len(lo.node.output) > 1:
        return _with_statistics(lo, x, lo.value(scale), lo.optional(bias), at, epsilon)
    own = [None if item is None else lo.value(item) for item in (scale, bias)]
    if all(v is None or ex.same_shape(v.shape, shape) for v in own):
        flat = [None if v is None else v if v.rank == 1 else v.flatten() for v in own]
        whole = x if len(shape) == 1 else x.flatten(at)
        made = whole.layer_norm(flat[0], flat[1], epsilon)
        return made if len(shape) == 1 else made.view(list(x.shape))
    return _with_statistics(lo, x, own[0], own[1], at, epsilon)[0]


def _with_statistics(lo: Any, x: Value, scale: Value, bias: Any, at: int, epsilon: float) -> List[Value]:
    dims = list(range(at, x.rank))
    wide = cast(lo, x, "f32") if x.dtype in ("f16", "bf16") else x
    mean = wide.mean(dims, True)
    apart = wide - mean
    inverse = ((apart * apart).mean(dims, True) + epsilon).rsqrt()
    made = cast(lo, apart * inverse, x.dtype) * scale
    return [made if bias is None else made + bias, mean, inverse]


@lowers("RMSNormalization")
def rms_norm(lo: Any, x: Any, scale: Any, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1) -> Any:
    x, scale = lo.value(x), lo.value(scale)
    at = lo.axis(x, axis)
    if at == x.rank - 1 and scale.rank == 1 and ex.same(scale.shape[0], x.shape[-1]):
        return x.rms_norm(scale, epsilon)
    wide = cast(lo, x, "f32") if x.dtype in ("f16", "bf16") else x
    made = wide * ((wide * wide).mean(list(range(at, x.rank)), True) + epsilon).rsqrt()
    return cast(lo, made, x.dtype) * scale


def by_channel(lo: Any, x: Value, item: Any) -> Value:
    return lo.value(item).view([1, -1, *[1] * (x.rank - 2)])


@lowers("BatchNormalization")
def batch_norm(
    lo: Any, x: Any, scale: Any, bias: Any, mean: Any, variance: Any, epsilon: float = 1e-5, momentum: float = 0.9, training_mode: int = 0
) -> Any:
    """One factor and one summand of each channel, made while lowering where the statistics are
    known."""
    if training_mode:
        raise Unsupported("in training mode")
    x = lo.value(x)
    items = (scale, bias, mean, variance)
    if all(isinstance(i, Known) and not i.is_symbolic for i in items):
        gain, shift, center, spread = (np.asarray(i.array, np.float64) for i in items)
        factor = gain / np.sqrt(spread + epsilon)
        kind = numpy_type(x.dtype)
        return x * by_channel(lo, x, Known(factor.astype(kind))) + by_channel(lo, x, Known((shift - center * factor).astype(kind)))
    gain, shift, center, spread = (by_channel(lo, x, i) for i in items)
    return (x - center) * ((spread + epsilon).rsqrt() * gain) + shift


@lowers("InstanceNormalization")
def instance_norm(lo: Any, x: Any, scale: Any, bias: Any, epsilon: float = 1e-5) -> Any:
    x = lo.value(x)
    made = x.flatten(2).layer_norm(None, None, epsilon).view(list(x.shape))
    return made * by_channel(lo, x, scale) + by_channel(lo, x, bias)


@lowers("GroupNormalization")
def group_norm(lo: Any, x: Any, scale: Any, bias: Any, num_groups: int, epsilon: float = 1e-5, stash_type: int = 1) -> Any:
    """A scale and a bias of each channel; of each group before opset 21."""
    x = lo.value(x)
    made = x.view([x.shape[0], num_groups, -1]).layer_norm(None, None, epsilon)
    if lo.opsets.get("", 0) < 21:
        made = made * lo.value(scale).view([1, -1, 1]) + lo.value(bias).view([1, -1, 1])
        return made.view(list(x.shape))
    made = made.view(list(x.shape))
    return made * by_channel(lo, x, scale) + by_channel(lo, x, bias)


@lowers("LpNormalization")
def lp_norm(lo: Any, x: Any, axis: int = -1, p: int = 2) -> Any:
    x = lo.value(x)
    size = x.abs().sum([lo.axis(x, axis)], True) if p == 1 else (x * x).sum([lo.axis(x, axis)], True).sqrt()
    return size.eq(0.0).where(0.0, x / size)


@lowers("LRN")
def lrn(lo: Any, x: Any, size: int, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0) -> Any:
    x = lo.value(x)
    before = (size - 1) // 2
    squares = windows.padded(x * x, [(before, size - 1 - before), *[(0, 0)] * (x.rank - 2)])
    total: Any = None
    for i in range(size):
        part = squares.slice(1, i, ex.simplify(ex.constant(x.shape[1]) + i))
        total = part if total is None else total + part
    return x / (total * (alpha / size) + bias) ** beta


# ---- attention


@lowers("Attention")
def attention(
    lo: Any, q: Any, k: Any, v: Any, mask: Any = None, past_key: Any = None, past_value: Any = None, lengths: Any = None, *, is_causal: int = 0,
    kv_num_heads: int = 0, q_num_heads: int = 0, qk_matmul_output_mode: int = 0, scale: Optional[float] = None, softcap: float = 0.0,
    softmax_precision: int = 0,
) -> Any:  # fmt: skip
    """As one operation of the compiler. What it has not (a soft cap, the scores as a result,
    lengths of each row) is lowered by ONNX's definition."""
    outputs = [bool(o) for o in lo.node.output]
    q, k, v = lo.value(q), lo.value(k), lo.value(v)
    flat = q.rank == 3
    if softcap or lengths is not None or (len(outputs) > 3 and outputs[3]):
        return NotImplemented
    if flat:
        q, k, v = (_heads(x, count) for x, count in ((q, q_num_heads), (k, kv_num_heads), (v, kv_num_heads)))
    if past_key is not None:
        k, v = join([lo.value(past_key), k], 2), join([lo.value(past_value), v], 2)
    made = _attended(lo, q, k, v, mask, bool(is_causal), scale, None if past_key is None else lo.value(past_key).shape[2])
    if flat:
        made = made.permute([0, 2, 1, 3]).view([made.shape[0], made.shape[2], ex.product([made.shape[1], made.shape[3]])])
    return [made, k, v]


def _heads(x: Value, count: int) -> Value:
    return x.view([x.shape[0], x.shape[1], count, ex.simplify(ex.constant(x.shape[2]) // count)]).permute([0, 2, 1, 3])


def _attended(lo: Any, q: Value, k: Value, v: Value, mask: Any, is_causal: bool, scale: Any, past: Any) -> Value:
    known = None if mask is None else affine.attention_mask(lo.pattern(mask), q.shape[2], k.shape[2])
    own = known.tensor if known is not None else None if mask is None else lo.value(mask)
    if own is not None:
        own = own.view([1] * (4 - own.rank) + list(own.shape)) if own.rank < 4 else own
        if not ex.same(own.shape[2], q.shape[2]) or not ex.same(own.shape[3], k.shape[2]):
            if isinstance(own.shape[3], int) and isinstance(k.shape[2], int) and 1 < own.shape[3] < k.shape[2]:
                number: Any = False if own.dtype == "bool" else -math.inf
                own = windows.padded(own, [(0, k.shape[2] - own.shape[3])], number)
            own = own.expand([own.shape[0], own.shape[1], q.shape[2], k.shape[2]])
        own = own if own.dtype in ("bool", q.dtype) else cast(lo, own, q.dtype)
    causal = is_causal or (known is not None and known.causal)
    offset = past if is_causal and past is not None else known.offset if known is not None and known.causal and not is_causal else None
    first = None if known is None else known.first
    return q.scaled_dot_product_attention(k, v, own, causal, scale, offset if offset is not None and not ex.same(offset, 0) else None, first)


# ---- convolutions


def each(item: Any, count: int, default: int = 1) -> List[int]:
    return [default] * count if item is None else list(item)


def pads_of(lo: Any, x: Value, dims: int, kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int], auto_pad: str, pads: Any) -> List[Any]:
    """(before, after) of each dimension."""
    if auto_pad in ("NOTSET", ""):
        both = each(pads, 2 * dims, 0)
        return list(zip(both[:dims], both[dims:]))
    if auto_pad == "VALID":
        return [(0, 0)] * dims
    found = []
    for d in range(dims):
        size = x.shape[x.rank - dims + d]
        if not isinstance(size, int):
            raise Unsupported(f"auto_pad {auto_pad} of a dimension of {size}")
        total = max((-(-size // strides[d]) - 1) * strides[d] + dilations[d] * (kernel[d] - 1) + 1 - size, 0)
        small, large = total // 2, total - total // 2
        found.append((small, large) if auto_pad == "SAME_UPPER" else (large, small))
    return found


@lowers("Conv")
def conv(
    lo: Any, x: Any, weight: Any, bias: Any = None, *, auto_pad: str = "NOTSET", dilations: Any = None, group: int = 1, kernel_shape: Any = None,
    pads: Any = None, strides: Any = None,
) -> Any:  # fmt: skip
    x = lo.value(x)
    dims = x.rank - 2
    kernel, steps, apart = list(lo.shape(weight)[2:]), each(strides, dims), each(dilations, dims)
    around = pads_of(lo, x, dims, kernel, steps, apart, auto_pad, pads)
    return convolved(lo, x, weight, bias, kernel, steps, apart, group, around)


def convolved(
    lo: Any, x: Value, weight: Any, bias: Any, kernel: List[int], strides: List[int], dilations: List[int], groups: int, pads: Sequence[Any]
) -> Value:  # fmt: skip
    """One of one dimension is one of two, of height 1."""
    dims = len(kernel)
    if dims > 2 or any(size < 0 for both in pads for size in both):
        made = _as_product(lo, windows.padded(x, pads), weight, kernel, strides, dilations, groups)
        return made if bias is None else made + by_channel(lo, made, bias)
    own = lo.value(weight)
    if dims == 1:
        x, own, strides, dilations, pads = x.unsqueeze(2), own.unsqueeze(2), [1, *strides], [1, *dilations], [(0, 0), *pads]
    made = x.conv2d(own, lo.optional(bias), strides, [size for both in pads for size in both], dilations, groups)
    return made.select(2, 0) if dims == 1 else made


def _as_product(lo: Any, x: Value, weight: Any, kernel: List[int], strides: List[int], dilations: List[int], groups: int) -> Value:
    """Each place of the kernel gives columns."""
    outputs, dims = lo.shape(weight)[0], len(kernel)
    parts = windows.taps(x, kernel, strides, dilations)
    if groups > 1 and groups == lo.shape(x)[1] == outputs:
        total: Any = None
        for place, part in parts:
            tap = part * by_channel(lo, part, _taken(lo, weight, place))
            total = tap if total is None else total + tap
        return total
    per, own = outputs // groups, lo.shape(weight)[1]
    made = []
    for g in range(groups):
        matrix = _matrix(lo, weight, g * per, (g + 1) * per, dims)
        columns = [windows.channels_last(part if groups == 1 else part.slice(1, g * own, (g + 1) * own)) for _place, part in parts]
        made.append(windows.channels_first((join(columns, dims + 1) if len(columns) > 1 else columns[0]).linear(matrix)))
    return join(made, 1) if groups > 1 else made[0]


def _taken(lo: Any, weight: Any, place: Sequence[int]) -> Any:
    """One place of a kernel of one channel each."""
    if isinstance(weight, Known):
        return Known(np.ascontiguousarray(weight.array[(slice(None), 0, *place)]))
    for at in (0, *place):
        weight = weight.select(1, at)
    return weight


def _matrix(lo: Any, weight: Any, first: int, last: int, dims: int) -> Value:
    """Rows of outputs; columns of places of the kernel, and of channels in each."""
    order = (0, *range(2, 2 + dims), 1)
    if isinstance(weight, Known):
        return lo.value(Known(np.ascontiguousarray(weight.array[first:last].transpose(order).reshape(last - first, -1))))
    part = weight if (first, last) == (0, weight.shape[0]) else weight.slice(0, first, last)
    return part.permute(list(order)).view([last - first, -1])


@lowers("ConvTranspose")
def conv_transpose(
    lo: Any, x: Any, weight: Any, bias: Any = None, *, auto_pad: str = "NOTSET", dilations: Any = None, group: int = 1, kernel_shape: Any = None,
    output_padding: Any = None, output_shape: Any = None, pads: Any = None, strides: Any = None,
) -> Any:  # fmt: skip
    """A convolution of the input with zeros between its places, with the kernel turned around."""
    x = lo.value(x)
    dims = x.rank - 2
    kernel, steps, apart = list(lo.shape(weight)[2:]), each(strides, dims), each(dilations, dims)
    more, cut = each(output_padding, dims, 0), _cut(lo, x, dims, kernel, steps, apart, auto_pad, pads, output_padding, output_shape)
    for d in range(dims):
        x = windows.spread(x, 2 + d, steps[d])
    reach = [apart[d] * (kernel[d] - 1) for d in range(dims)]
    around = [(reach[d] - cut[d][0], reach[d] - cut[d][1] + more[d]) for d in range(dims)]
    return convolved(lo, x, _turned(lo, weight, group, kernel), bias, kernel, [1] * dims, apart, group, around)


def _cut(
    lo: Any, x: Value, dims: int, kernel: Any, strides: Any, dilations: Any, auto_pad: str, pads: Any, more: Any, output_shape: Any
) -> List[Any]:  # fmt: skip
    """What is taken away before and after each dimension."""
    if output_shape is None and auto_pad in ("NOTSET", ""):
        both = each(pads, 2 * dims, 0)
        return list(zip(both[:dims], both[dims:]))
    if output_shape is None and auto_pad == "VALID":
        return [(0, 0)] * dims
    found = []
    for d in range(dims):
        size = x.shape[2 + d]
        if not isinstance(size, int):
            raise Unsupported(f"a given output shape of a dimension of {size}")
        wanted = output_shape[d - dims] if output_shape is not None else size * strides[d]
        total = strides[d] * (size - 1) + each(more, dims, 0)[d] + (kernel[d] - 1) * dilations[d] + 1 - wanted
        found.append((total // 2, total - total // 2) if auto_pad == "SAME_UPPER" else (total - total // 2, total // 2))
    return found


def _turned(lo: Any, weight: Any, groups: int, kernel: Sequence[int]) -> Any:
    dims = len(kernel)
    shape = lo.shape(weight)
    inputs, outputs = shape[0] // groups, shape[1]
    if isinstance(weight, Known):
        array = np.flip(weight.array, tuple(range(2, 2 + dims))).reshape(groups, inputs, outputs, *kernel).swapaxes(1, 2)
        return Known(np.ascontiguousarray(array.reshape(groups * outputs, inputs, *kernel)))
    turned = flip(lo, weight, list(range(2, 2 + dims))).view([groups, inputs, outputs, *kernel])
    return turned.transpose(1, 2).view([groups * outputs, inputs, *kernel])


# ---- pooling


def _windows(lo: Any, x: Value, kernel: Sequence[int], strides: Any, dilations: Any, auto_pad: str, pads: Any, ceil_mode: int) -> Tuple[Any, ...]:
    """Steps, distances, and pads; with ceil_mode as much more behind as the last window takes."""
    dims = len(kernel)
    steps, apart = each(strides, dims), each(dilations, dims)
    pairs = pads_of(lo, x, dims, kernel, steps, apart, auto_pad, pads)
    more = [0] * dims
    for d in range(dims if ceil_mode else 0):
        size = x.shape[2 + d]
        if not isinstance(size, int):
            raise Unsupported(f"ceil_mode of a dimension of {size}")
        reach, whole = apart[d] * (kernel[d] - 1) + 1, size + sum(pairs[d])
        count = -(-(whole - reach) // steps[d]) + 1
        if (count - 1) * steps[d] >= size + pairs[d][0]:
            # a window that begins behind all elements is none
            count -= 1
        more[d] = max((count - 1) * steps[d] + reach - whole, 0)
    return steps, apart, pairs, more


@lowers("MaxPool")
def max_pool(
    lo: Any, x: Any, *, kernel_shape: Any, auto_pad: str = "NOTSET", ceil_mode: int = 0, dilations: Any = None, pads: Any = None,
    storage_order: int = 0, strides: Any = None,
) -> Any:  # fmt: skip
    x = lo.value(x)
    steps, apart, pairs, more = _windows(lo, x, kernel_shape, strides, dilations, auto_pad, pads, ceil_mode)
    pairs = [(before, after + m) for (before, after), m in zip(pairs, more)]
    dims = len(kernel_shape)
    if dims < 3 and x.dtype in FLOATS and len(lo.node.output) == 1:
        around = [size for both in [(0, 0)] * (2 - dims) + pairs for size in both]
        wide = [[1] * (2 - dims) + list(item) for item in (kernel_shape, steps, apart)]
        made = (x.unsqueeze(2) if dims == 1 else x).max_pool2d(wide[0], wide[1], around, wide[2])
        return made.select(2, 0) if dims == 1 else made
    least: Any = -math.inf if x.dtype in FLOATS else RANGES[x.dtype][0]
    parts = windows.taps(windows.padded(x, pairs, least), kernel_shape, steps, apart)
    if len(lo.node.output) > 1:
        return _with_places(lo, x, parts, steps, apart, pairs, storage_order)
    total = parts[0][1]
    for _place, part in parts[1:]:
        total = total.maximum(part)
    return total


def _with_places(lo: Any, x: Value, parts: Any, steps: Any, apart: Any, pairs: Any, storage_order: int) -> Any:
    """Where each of the largest is in the whole input, counted by rows; with storage_order by
    columns."""
    dims = x.rank - 2
    best, found = None, None
    for place, part in parts:
        own: Any = None
        sizes = list(x.shape[2:])
        for d in range(dims):
            shape = [1] * x.rank
            shape[2 + d] = part.shape[2 + d]
            at = (lo.function.arange(part.shape[2 + d]) * steps[d] + (place[d] * apart[d] - pairs[d][0])).view(shape)
            step = ex.product(sizes[:d] if storage_order else sizes[d + 1 :])
            own = at * step if own is None else own + at * step
        own = own.expand(list(part.shape))
        if best is None:
            best, found = part, own
        else:
            more = part.gt(best)
            best, found = more.where(part, best), more.where(own, found)
    images = lo.function.arange(ex.product(x.shape[:2])).view([*x.shape[:2], *[1] * dims]) * ex.product(x.shape[2:])
    return [best, found + images]


@lowers("AveragePool", "LpPool")
def average_pool(
    lo: Any, x: Any, *, kernel_shape: Any, auto_pad: str = "NOTSET", ceil_mode: int = 0, count_include_pad: int = 0, dilations: Any = None,
    pads: Any = None, strides: Any = None, p: int = 2,
) -> Any:  # fmt: skip
    """Sums of windows. An average is divided by the number of elements in each: without the
    padding, or with it, but never with what ceil_mode adds."""
    x = lo.value(x)
    steps, apart, pairs, more = _windows(lo, x, kernel_shape, strides, dilations, auto_pad, pads, ceil_mode)
    wide = [(before, after + m) for (before, after), m in zip(pairs, more)]
    is_norm = lo.node.op_type == "LpPool"
    whole = x if not is_norm else x.abs() if p == 1 else x * x if p == 2 else x.abs() ** float(p)
    total: Any = None
    for _place, part in windows.taps(windows.padded(whole, wide), kernel_shape, steps, apart):
        total = part if total is None else total + part
    if is_norm:
        return total if p == 1 else total.sqrt() if p == 2 else total ** (1 / p)
    if not any(more) and (count_include_pad or not any(map(any, pairs))):
        return total * (1 / math.prod(kernel_shape))
    return total / _counts(lo, x, kernel_shape, steps, apart, pairs, more, bool(count_include_pad))


def _counts(lo: Any, x: Value, kernel: Any, steps: Any, apart: Any, pairs: Any, more: Any, with_pads: bool) -> Value:
    """How many elements are in each window: a product over the dimensions."""
    made: Any = None
    for d in range(len(kernel)):
        size = x.shape[2 + d]
        shape = [1] * x.rank
        if isinstance(size, int):
            check_room(lo, (size + sum(pairs[d]) + more[d]) * (1 + kernel[d] / steps[d]))
            inside = np.zeros(size + sum(pairs[d]) + more[d], np.float32)
            inside[0 if with_pads else pairs[d][0] : size + (sum(pairs[d]) if with_pads else pairs[d][0])] = 1
            count = (len(inside) - apart[d] * (kernel[d] - 1) - 1) // steps[d] + 1
            taps = [inside[k * apart[d] : k * apart[d] + (count - 1) * steps[d] + 1 : steps[d]] for k in range(kernel[d])]
            row = lo.value(Known(np.sum(taps, 0).astype(numpy_type(x.dtype))))
        else:
            ones = windows.padded(lo.function.full([1, 1, size], 1, x.dtype), [pairs[d]], 1.0 if with_pads else 0.0)
            row = None
            for _place, part in windows.taps(ones, [kernel[d]], [steps[d]], [apart[d]]):
                row = part if row is None else row + part
        shape[2 + d] = -1
        made = row.view(shape) if made is None else made * row.view(shape)
    return made


@lowers("GlobalAveragePool")
def global_average_pool(lo: Any, x: Any) -> Any:
    x = lo.value(x)
    return x.mean(list(range(2, x.rank)), True)


@lowers("GlobalMaxPool")
def global_max_pool(lo: Any, x: Any) -> Any:
    x = lo.value(x)
    return x.amax(list(range(2, x.rank)), True)


# ---- quantized tensors


@lowers("DequantizeLinear")
def dequantize(lo: Any, x: Any, scale: Any, zero: Any = None, *, axis: int = 1, block_size: int = 0, output_dtype: int = 0) -> Any:
    x, scale = lo.value(x), lo.value(scale)
    if output_dtype:
        scale = cast(lo, scale, dtype_named(output_dtype))
    factor, apart = (_along(lo, x, item, axis, block_size) for item in (scale, zero))
    wide = cast(lo, x, "i32")
    wide = wide if apart is None else wide - cast(lo, apart, "i32")
    return cast(lo, wide, scale.dtype) * factor


def _along(lo: Any, x: Value, item: Any, axis: int, block: int) -> Optional[Value]:
    """A number for all, one for each place of a dimension, or one for each block of it."""
    if item is None:
        return None
    value = lo.value(item)
    at = lo.axis(x, axis) if x.rank else 0
    if value.rank == 0 or (value.rank == 1 and ex.same(value.shape[0], 1)):
        return value.view([])
    if block:
        wide = value.unsqueeze(at + 1).expand([*value.shape[: at + 1], block, *value.shape[at + 1 :]])
        made = wide.view([*value.shape[:at], ex.simplify(ex.constant(value.shape[at]) * block), *value.shape[at + 1 :]])
        return made if ex.same(made.shape[at], x.shape[at]) else made.slice(at, 0, x.shape[at])
    shape = [1] * x.rank
    shape[at] = value.shape[0]
    return value.view(shape)


@lowers("QuantizeLinear")
def quantize(
    lo: Any, x: Any, scale: Any, zero: Any = None, *, axis: int = 1, block_size: int = 0, output_dtype: int = 0, saturate: int = 1, precision: int = 0
) -> Any:  # fmt: skip
    x = lo.value(x)
    dtype = lo.dtype(zero) if zero is not None else dtype_named(output_dtype) if output_dtype else "u8"
    if dtype not in ("u8", "i8", "u16", "i16"):
        raise Unsupported(f"to {dtype}")
    factor, apart = (_along(lo, x, item, axis, block_size) for item in (scale, zero))
    made = (x / cast(lo, factor, x.dtype)).round()
    made = made if apart is None else made + cast(lo, apart, made.dtype)
    low, high = RANGES[dtype]
    return cast(lo, made.clamp(float(low), float(high)), dtype)
