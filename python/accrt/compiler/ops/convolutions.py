"""Convolutions and pooling over windows of two dimensions, and what the host's kernels make of
them."""

from __future__ import annotations

import math
from typing import Any, List, NamedTuple, Optional, Sequence, Tuple

from .. import arguments
from .. import expr as ex
from ..expr import Size
from ..declared import FLOATS, TensorType
from ..ir import IRError, Op, Value
from .products import check_product_types
from .schema import define, need_same, numpy, resized, Types
from .shapes import cat


class Window(NamedTuple):
    """Which places of an image [height, width] each place of a result sees."""

    kernel: Tuple[int, int]
    stride: Tuple[int, int]
    dilation: Tuple[int, int]
    pads: Tuple[int, int, int, int]  # above, below, left, right

    def size(self, axis: int, extent: Size) -> Size:
        """Of the result along one dimension."""
        rest = ex.constant(extent) + self.pads[2 * axis] + self.pads[2 * axis + 1] - self.dilation[axis] * (self.kernel[axis] - 1) - 1
        return ex.simplify(rest // self.stride[axis] + 1)

    def sizes(self, height: Size, width: Size) -> Tuple[Size, Size]:
        return self.size(0, height), self.size(1, width)


def _pair(item: Any, what: str, least: int) -> Tuple[int, int]:
    found = arguments.dims(item, what)
    if len(found) not in (1, 2) or min(found) < least:
        raise IRError(f"{what} is {list(found)}; one number or two are needed, each {least} or more")
    return (found[0], found[-1])


def _pads(item: Any) -> Tuple[int, int, int, int]:
    found = arguments.dims(item, "padding")
    if len(found) not in (1, 2, 4) or min(found) < 0:
        raise IRError(f"padding is {list(found)}; one number, two (height, width) or four (above, below, left, right) are needed, none below 0")
    return found if len(found) == 4 else (found[0], found[0], found[-1], found[-1])


def window_of(kernel: Any, stride: Any, padding: Any, dilation: Any) -> Window:
    kernel = _pair(kernel, "kernel", 1)
    return Window(kernel, kernel if stride is None else _pair(stride, "stride", 1), _pair(dilation, "dilation", 1), _pads(padding))


def _sizes(x: Value, window: Window, what: str) -> Tuple[Size, Size]:
    if x.rank != 4:
        raise IRError(f"{what} of {x.type}; [batch, channels, height, width] is needed")
    made = window.sizes(x.shape[2], x.shape[3])
    if any(isinstance(size, int) and size < 1 for size in made):
        raise IRError(f"{what} of {x.type}: a kernel of {list(window.kernel)} reaches beyond the padded image")
    return made


# ---- References and decompositions, by taps: the input of each place of the kernel ---------------


def _reference_taps(x: Any, window: Window, number: float) -> List[Any]:
    above, below, left, right = window.pads
    x = numpy().pad(x, ((0, 0), (0, 0), (above, below), (left, right)), constant_values=number)
    (rows, columns), (down, across) = window.dilation, window.stride
    height, width = Window(window.kernel, window.stride, window.dilation, (0, 0, 0, 0)).sizes(x.shape[2], x.shape[3])
    return [
        x[:, :, i * rows : i * rows + (height - 1) * down + 1 : down, j * columns : j * columns + (width - 1) * across + 1 : across]
        for i in range(window.kernel[0])
        for j in range(window.kernel[1])
    ]


def _padded(x: Value, pads: Sequence[int], number: float) -> Value:
    for axis, (before, after) in ((2, pads[:2]), (3, pads[2:])):
        parts = [x]
        for size, first in ((before, True), (after, False)):
            if size:
                more = x.function.full([*x.shape[:axis], size, *x.shape[axis + 1 :]], number, x.dtype)
                parts.insert(0, more) if first else parts.append(more)
        x = cat(parts, axis) if len(parts) > 1 else x
    return x


def _taps(x: Value, window: Window, number: float) -> List[Value]:
    sizes = window.sizes(x.shape[2], x.shape[3])
    x = _padded(x, window.pads, number)
    return [
        _strided(_strided(x, 2, i * window.dilation[0], sizes[0], window.stride[0]), 3, j * window.dilation[1], sizes[1], window.stride[1])
        for i in range(window.kernel[0])
        for j in range(window.kernel[1])
    ]


def _strided(x: Value, axis: int, start: int, count: Size, step: int) -> Value:
    end = ex.simplify((ex.constant(count) - 1) * step + start + 1)
    return x if start == 0 and step == 1 and ex.same(end, x.shape[axis]) else x.slice(axis, start, end, step)


# ---- Convolutions --------------------------------------------------------------------------------


def conv_window(op: Op) -> Window:
    at = op.attrs
    return window_of([arguments.integer(s, "size of a kernel") for s in op.operands[1].shape[2:]], at["stride"], at["padding"], at["dilation"])


def _conv2d(x: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1) -> Any:
    np = numpy()
    window = window_of(weight.shape[2:], stride, padding, dilation)
    taps = np.stack(_reference_taps(x, window, 0.0))
    taps = taps.reshape(taps.shape[0], taps.shape[1], groups, weight.shape[1], *taps.shape[3:])
    split = weight.reshape(groups, weight.shape[0] // groups, weight.shape[1], -1)
    made = np.einsum("tngchw,goct->ngohw", taps, split, optimize=True)
    made = made.reshape(made.shape[0], weight.shape[0], *made.shape[3:])
    return made if bias is None else made + bias.reshape(-1, 1, 1)


def _decompose_conv2d(op: Op) -> Value:
    """Each place of the kernel gives columns of a product; where each group has one channel, one
    product by element."""
    x, weight, bias = op.operands
    groups, window = op.attrs["groups"], conv_window(op)
    outputs, inputs = weight.shape[:2]
    if groups == outputs and inputs == 1:
        flat = weight.view([outputs, -1])
        total = None
        for index, tap in enumerate(_taps(x, window, 0.0)):
            part = tap * flat.select(1, index).view([-1, 1, 1])
            total = part if total is None else total + part
    else:
        parts = zip(x.chunk(groups, 1) if groups > 1 else [x], weight.chunk(groups, 0) if groups > 1 else [weight])
        made = [_as_product(part, own, window) for part, own in parts]
        total = cat(made, 1) if groups > 1 else made[0]
    return total if bias is None else total + bias.view([-1, 1, 1])


def is_patches(x: Value, window: Window) -> bool:
    """Whether each place of the image is in one window, and in one alone."""
    whole = all(isinstance(size, int) and size % step == 0 for size, step in zip(x.shape[2:], window.kernel))
    return whole and window.kernel == window.stride and window.dilation == (1, 1) and not any(window.pads) and window.kernel != (1, 1)


def _patches(x: Value, window: Window) -> Value:
    """[batch, rows, columns, channels * kernel]: one copy of the image, as the weight lies."""
    (down, across), (batch, channels, height, width) = window.kernel, x.shape
    split = x.view([batch, channels, height // down, down, width // across, across])
    return split.permute([0, 2, 4, 1, 3, 5]).view([batch, height // down, width // across, -1])


def _as_product(x: Value, weight: Value, window: Window) -> Value:
    if is_patches(x, window):
        return _patches(x, window).linear(weight.view([weight.shape[0], -1])).permute([0, 3, 1, 2])
    columns = [tap.permute([0, 2, 3, 1]) for tap in _taps(x, window, 0.0)]
    matrix = weight.permute([0, 2, 3, 1]).clone().view([weight.shape[0], -1])
    return (cat(columns, 3) if len(columns) > 1 else columns[0]).linear(matrix).permute([0, 3, 1, 2])


@define(
    "aten.conv2d(Tensor self, Tensor weight, Tensor? bias=None, int[] stride=1, int[] padding=0, int[] dilation=1, int groups=1)",
    reference=_conv2d, decompose=_decompose_conv2d,
)  # fmt: skip
def _infer_conv2d(op: Op) -> Types:
    """[batch, channels, height, width] with a weight [outputs, channels / groups, height, width].
    stride and dilation are one number or (height, width), padding too, or (above, below, left,
    right)."""
    x, weight, bias = op.operands
    if x.rank != 4 or weight.rank != 4 or (bias is not None and bias.rank != 1) or x.dtype not in FLOATS:
        raise IRError(f"conv2d of {x.type} with weight {weight.type}" + ("" if bias is None else f" and bias {bias.type}"))
    check_product_types(x.dtype, weight.dtype, "conv2d")
    if bias is not None:
        check_product_types(x.dtype, bias.dtype, "conv2d and its bias")
        need_same(bias.shape[0], weight.shape[0], "bias of conv2d")
    groups = op.attrs["groups"]
    if groups < 1 or not all(isinstance(size, int) and size > 0 for size in weight.shape) or weight.shape[0] % groups:
        raise IRError(f"conv2d with weight {weight.type} in {groups} groups")
    need_same(x.shape[1], weight.shape[1] * groups, "channels of conv2d")
    return resized(op, (x.shape[0], weight.shape[0], *_sizes(x, conv_window(op), "conv2d")))


# ---- Pooling -------------------------------------------------------------------------------------


def pool_window(op: Op) -> Window:
    at = op.attrs
    return window_of(at["kernel"], at["stride"], at["padding"], at.get("dilation", 1))


def _max_pool2d(x: Any, kernel: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1) -> Any:
    return numpy().max(_reference_taps(x, window_of(kernel, stride, padding, dilation), -math.inf), 0)


def _decompose_max_pool2d(op: Op) -> Value:
    total: Optional[Value] = None
    for tap in _taps(op.operands[0], pool_window(op), -math.inf):
        total = tap if total is None else total.maximum(tap)
    return total


@define(
    "aten.max_pool2d(Tensor self, int[] kernel, int[]? stride=None, int[] padding=0, int[] dilation=1)",
    reference=_max_pool2d, decompose=_decompose_max_pool2d,
)  # fmt: skip
def _infer_max_pool2d(op: Op) -> Types:
    """The largest of each window of [batch, channels, height, width]; stride is the kernel's size
    if it is not given, padding counts as -infinity."""
    x = op.operands[0]
    if x.dtype not in FLOATS:
        raise IRError(f"max_pool2d of {x.type}; floats are needed")
    return resized(op, (*x.shape[:2], *_sizes(x, pool_window(op), "max_pool2d")))


def _avg_pool2d(x: Any, kernel: Any, stride: Any = None, padding: Any = 0) -> Any:
    return numpy().mean(_reference_taps(x, window_of(kernel, stride, padding, 1), 0.0), 0)


def _decompose_avg_pool2d(op: Op) -> Value:
    window = pool_window(op)
    total: Optional[Value] = None
    for tap in _taps(op.operands[0], window, 0.0):
        total = tap if total is None else total + tap
    return total * (1 / math.prod(window.kernel))


@define(
    "aten.avg_pool2d(Tensor self, int[] kernel, int[]? stride=None, int[] padding=0)", reference=_avg_pool2d, decompose=_decompose_avg_pool2d
)
def _infer_avg_pool2d(op: Op) -> Types:
    """The mean of each window of [batch, channels, height, width]; stride is the kernel's size if
    it is not given, padding counts as zeros."""
    x = op.operands[0]
    if x.dtype not in FLOATS:
        raise IRError(f"avg_pool2d of {x.type}; floats are needed")
    return resized(op, (*x.shape[:2], *_sizes(x, pool_window(op), "avg_pool2d")))


# ---- Norms of groups of channels -----------------------------------------------------------------


def _group_norm(x: Any, weight: Any = None, bias: Any = None, groups: int = 1, eps: float = 1e-5) -> Any:
    np = numpy()
    if not x.size:
        return x.copy()
    flat = x.reshape(x.shape[0], groups, -1)
    made = ((flat - flat.mean(-1, keepdims=True)) / np.sqrt(flat.var(-1, keepdims=True) + eps)).reshape(x.shape)
    shape = (-1, *[1] * (x.ndim - 2))
    made = made if weight is None else made * weight.reshape(shape)
    return made if bias is None else made + bias.reshape(shape)


def _decompose_group_norm(op: Op) -> Value:
    x, weight, bias = op.operands
    shape = [-1, *[1] * (x.rank - 2)]
    made = x.view([x.shape[0], op.attrs["groups"], -1]).layer_norm(None, None, op.attrs["eps"]).view(list(x.shape))
    made = made if weight is None else made * weight.view(shape)
    return made if bias is None else made + bias.view(shape)


@define(
    "aten.group_norm(Tensor self, int groups, Tensor? weight=None, Tensor? bias=None, float eps=1e-5)",
    reference=_group_norm, decompose=_decompose_group_norm,
)  # fmt: skip
def _infer_group_norm(op: Op) -> Types:
    """Each of `groups` equal parts of the channels of [batch, channels, ...] to mean 0 and variance
    1; weight and bias are those of the channels."""
    x, groups = op.operands[0], op.attrs["groups"]
    if x.rank < 2 or x.dtype not in FLOATS or not isinstance(x.shape[1], int) or groups < 1 or x.shape[1] % groups:
        raise IRError(f"group_norm of {x.type} in {groups} groups")
    for value in op.operands[1:]:
        if value is not None and (value.rank != 1 or value.dtype not in FLOATS or not ex.same(value.shape[0], x.shape[1])):
            raise IRError(f"group_norm of {x.type} with weight or bias {value.type}")
    return [x.type]


# ---- What the pass form_convolutions makes of them: channels last --------------------------------


@define("accrt.conv_packed(Tensor self, Tensor packed, Tensor? bias, Tensor? residual, window, groups, columns, activation, last, dtype)")
def _infer_conv_packed(op: Op) -> Types:
    """last(activation(conv2d + bias) + residual) of [batch, height, width, channels]; `packed`: on
    hosts for each group what accrt.pack makes of [kernel height * kernel width * channels,
    outputs], on CUDA [outputs, kernel height * kernel width * channels]."""
    x, at = op.operands[0], op.attrs
    return [TensorType(at["dtype"], (x.shape[0], *at["window"].sizes(x.shape[1], x.shape[2]), at["columns"]))]


@define("accrt.window(Tensor self, Tensor? weight, Tensor? bias, Tensor? residual, kind, window, columns, activation, last, dtype)")
def _infer_window(op: Op) -> Types:
    """The same without a sum over channels. `kind`: depthwise, a convolution with one channel in
    each group and a weight f32 [kernel height * kernel width, channels]; max; or mean."""
    return _infer_conv_packed(op)


@define("accrt.group_norm_last(Tensor self, Tensor? weight, Tensor? bias, Tensor? residual, groups, eps, columns, activation, last)")
def _infer_group_norm_last(op: Op) -> Types:
    """The same of [batch, height, width, channels], and what follows it; weight and bias are
    f32."""
    return [op.operands[0].type]
