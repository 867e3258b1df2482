"""Records of the kernels of convolutions, pooling and norms of groups, channels last (conv.c,
window.c, group_norm.c)."""

from __future__ import annotations

import functools
from typing import Any, Dict, List, Mapping, Optional, Tuple

from . import expr as ex
from .kerneldef import CSource, KernelDef, Launch, TensorSpec, launch, layout, reads, scalar, symbol, writes
from .matmul import ACTIVATIONS, optional_buffers, PANEL, require_contiguous_last

TILE_FLOATS = 49152  # as in conv.c
SEEN_FLOATS = 65536
MAX_PANELS = 8
#: Products that a workgroup makes at most where it has a choice: about 100 microseconds.
_WORK = 8 << 20
#: Of a dimension that is not known while compiling.
_GUESS = 28
CHUNK = 64

_STEPS = ("x_n", "x_h", "x_w", "x_c", "out_n", "out_h", "out_w", "residual_n", "residual_h", "residual_w")
_WINDOW = ("kernel_h", "kernel_w", "stride_h", "stride_w", "dilation_h", "dilation_w", "above", "left")


@functools.lru_cache(maxsize=None)
def conv_kernel(x: str, w: str, c: str) -> KernelDef:
    params = layout(
        [reads("x"), reads("w"), reads("bias", optional=True), reads("residual", optional=True), writes("out")]
        + [symbol(n) for n in ("batch", "height", "width", "channels", "out_height", "out_width", "outputs", *_STEPS, *_WINDOW)]
        + [symbol(n) for n in ("block_h", "block_w", "slice", "panels_per_group", "activation", "last")]
    )
    name = f"conv_{x}_{w}_{c}"
    producer = CSource("conv.c", defines=(("X_TAG", x), ("W_TAG", w), ("C_TAG", c), ("ENTRY", "accrt_" + name)), struct="conv_params_t")
    return KernelDef(name, "conv2d", producer, params, _conv_grid, local_memory_bytes=4 * (TILE_FLOATS + SEEN_FLOATS))


def _conv_grid(v: Mapping[str, Any]) -> Tuple[Any, Any, Any]:
    places = ex.ceildiv(v["out_height"], v["block_h"]) * ex.ceildiv(v["out_width"], v["block_w"])
    return (v["groups"] * ex.ceildiv(ex.ceildiv(v["outputs"], PANEL), v["panels_per_group"]), ex.maximum(places, 1), ex.maximum(v["batch"], 1))


def _seen(block: int, stride: int, kernel: int, dilation: int) -> int:
    return (block - 1) * stride + (kernel - 1) * dilation + 1


def blocking(window: Any, channels: int, outputs: int, height: Any, width: Any) -> Dict[str, int]:
    """How a result [height, width] is shared out: what a workgroup makes fits its local memory, is
    some work but not all, and makes the bytes few that pass from the caches: weights once for each
    block of places, the image once for each part of the panels."""
    (kernel_h, kernel_w), (stride_h, stride_w), (dilation_h, dilation_w) = window.kernel, window.stride, window.dilation
    high, wide = (max(size, 1) if isinstance(size, int) else _GUESS for size in (height, width))
    panels, depth = -(-outputs // PANEL), kernel_h * kernel_w * channels
    best: Tuple[Any, Dict[str, int]] = ((), {})
    for parts in range(1, panels + 1):
        group = -(-panels // parts)
        if group > MAX_PANELS or -(-panels // group) != parts:
            continue
        for block_h in range(1, min(high, 64) + 1):
            block_w, taken = _columns(window, channels, block_h, group, wide)
            if not block_w or -(-high // -(-high // block_h)) != block_h:
                continue
            blocks = -(-high // block_h) * -(-wide // block_w)
            weights = blocks * depth * panels * PANEL
            image = blocks * parts * _seen(block_h, stride_h, kernel_h, dilation_h) * _seen(block_w, stride_w, kernel_w, dilation_w) * channels
            large = max(block_h * block_w * depth * group * PANEL / _WORK, 1)
            few = max(16 / (blocks * parts), 1)
            # rows of products come in blocks of 14 with AVX-512
            uses = -(-block_w // 14) * 14 / block_w
            score = (weights + 2 * image) * min(large, 4) + 0.02 * few * uses * high * wide * depth * panels * PANEL
            score *= -(-channels // taken)
            if not best[0] or score < best[0][0]:
                best = ((score,), {"block_h": block_h, "block_w": block_w, "slice": taken, "panels_per_group": group})
    if not best[1]:
        raise ValueError(f"conv2d: a kernel of {list(window.kernel)} with dilation {list(window.dilation)} sees too much for a workgroup")
    return best[1]


def _columns(window: Any, channels: int, block_h: int, group: int, wide: int) -> Tuple[int, int]:
    """The widest block, and how many channels of what it sees are there at a time; (0, 0) where
    nothing fits."""
    rows = _seen(block_h, window.stride[0], window.kernel[0], window.dilation[0])
    for parts in range(1, -(-wide // min(14, wide)) + 1):
        block_w = -(-wide // parts)
        seen = rows * _seen(block_w, window.stride[1], window.kernel[1], window.dilation[1])
        if block_h * block_w * group * PANEL <= TILE_FLOATS and seen * min(channels, 16) <= SEEN_FLOATS:
            if seen * channels <= SEEN_FLOATS or parts == -(-wide // min(14, wide)):
                return block_w, min(channels, SEEN_FLOATS // seen // 16 * 16 or channels)
    return 0, 0


def _window_values(window: Any) -> Dict[str, Any]:
    pairs = (*window.kernel, *window.stride, *window.dilation, window.pads[0], window.pads[2])
    return dict(zip(_WINDOW, pairs))


def _image_values(x: TensorSpec, out: TensorSpec, residual: Optional[TensorSpec]) -> Dict[str, Any]:
    steps: List[Any] = [*x.strides, *out.strides[:3], *(residual.strides[:3] if residual is not None else (0, 0, 0))]
    sizes = {"height": x.shape[1], "width": x.shape[2], "out_height": out.shape[1], "out_width": out.shape[2], "batch": x.shape[0]}
    return {**sizes, **dict(zip(_STEPS, steps))}


def _check(out: TensorSpec, bias: Optional[TensorSpec], residual: Optional[TensorSpec]) -> None:
    require_contiguous_last(out, "out")
    if bias is not None and (bias.dtype != "f32" or bias.strides != (1,)):
        raise ValueError(f"bias: {bias.dtype} with strides {bias.strides}; contiguous f32 is needed")
    if residual is not None:
        require_contiguous_last(residual, "residual")
        if residual.dtype != out.dtype:
            raise ValueError(f"residual: the type is {residual.dtype}, {out.dtype} is needed")


def lower_conv(
    x: TensorSpec, w: TensorSpec, out: TensorSpec, window: Any, groups: int, bias: Optional[TensorSpec] = None,
    residual: Optional[TensorSpec] = None, activation: str = "none", last: str = "none",
) -> Launch:  # fmt: skip
    """out = last(activation(conv2d(x, w) + bias) + residual), x and out [batch, height, width,
    channels]; w is for each group what `packed_spec` says. x may have any strides, all else has a
    contiguous last axis. Operands: x, w, bias, residual, out."""
    _check(out, bias, residual)
    channels, outputs = x.shape[3] // groups, out.shape[3] // groups
    values = {
        **_image_values(x, out, residual), **_window_values(window), **blocking(window, channels, outputs, out.shape[1], out.shape[2]),
        "channels": channels, "outputs": outputs, "groups": groups, "activation": ACTIVATIONS[activation], "last": ACTIVATIONS[last],
    }  # fmt: skip
    buffers = {"x": "x", "w": "w", "out": "out", **optional_buffers(bias, residual)}
    return launch(conv_kernel(x.dtype, w.dtype, out.dtype), buffers, values)


# ---- Windows without a sum over channels ---------------------------------------------------------

KINDS = {"depthwise": 0, "max": 1, "mean": 2}


@functools.lru_cache(maxsize=None)
def window_kernel(kind: str, x: str, c: str) -> KernelDef:
    params = layout(
        [reads("x"), reads("w", optional=True), reads("bias", optional=True), reads("residual", optional=True), writes("out")]
        + [symbol(n) for n in ("batch", "height", "width", "channels", "out_height", "out_width", *(s for s in _STEPS if s != "x_c"), *_WINDOW)]
        + [symbol(n) for n in ("rows_per_group", "activation", "last")]
    )
    name = f"window_{kind}_{x}_{c}"
    defines = (("X_TAG", x), ("C_TAG", c), ("KIND", str(KINDS[kind])), ("ENTRY", "accrt_" + name))
    return KernelDef(name, "window", CSource("window.c", defines=defines, struct="window_params_t"), params, _window_grid)


def _window_grid(v: Mapping[str, Any]) -> Tuple[Any, Any, Any]:
    rows = ex.ceildiv(v["out_height"], v["rows_per_group"])
    return (ex.maximum(ex.ceildiv(v["channels"], CHUNK), 1), ex.maximum(rows, 1), ex.maximum(v["batch"], 1))


def lower_window(
    kind: str, x: TensorSpec, out: TensorSpec, window: Any, w: Optional[TensorSpec] = None, bias: Optional[TensorSpec] = None,
    residual: Optional[TensorSpec] = None, activation: str = "none", last: str = "none",
) -> Launch:  # fmt: skip
    """x and out are [batch, height, width, channels] with a contiguous last axis, w is f32 [kernel
    height * kernel width, channels]. Operands: x, w, bias, residual, out."""
    _check(out, bias, residual)
    require_contiguous_last(x, "x")
    if w is not None and (w.dtype != "f32" or w.strides != (w.shape[1], 1)):
        raise ValueError(f"weight: {w.dtype} with strides {w.strides}; contiguous f32 is needed")
    width = out.shape[2] if isinstance(out.shape[2], int) else _GUESS
    work = max(width, 1) * window.kernel[0] * window.kernel[1] * CHUNK
    values = {
        **_image_values(x, out, residual), **_window_values(window), "channels": x.shape[3], "rows_per_group": max(1, 65536 // work),
        "activation": ACTIVATIONS[activation], "last": ACTIVATIONS[last],
    }  # fmt: skip
    buffers = {"x": "x", "out": "out", **optional_buffers(bias, residual), **({} if w is None else {"w": "w"})}
    return launch(window_kernel(kind, x.dtype, out.dtype), buffers, values)


# ---- Norms of groups of channels -----------------------------------------------------------------

MOST_CHANNELS = 1024  # as in group_norm.c


@functools.lru_cache(maxsize=None)
def group_norm_kernel(x: str, c: str) -> KernelDef:
    params = layout(
        [reads("x"), reads("weight", optional=True), reads("bias", optional=True), reads("residual", optional=True), writes("out")]
        + [symbol(n) for n in ("batch", "height", "width", "channels", "groups", "groups_per_group", *(s for s in _STEPS if s != "x_c"))]
        + [symbol("activation"), symbol("last"), scalar("epsilon", "f64")]
    )

    def grid(v: Mapping[str, Any]) -> Tuple[Any, Any, Any]:
        return (ex.ceildiv(v["groups"], v["groups_per_group"]), ex.maximum(v["batch"], 1), 1)

    name = f"group_norm_{x}_{c}"
    producer = CSource("group_norm.c", defines=(("X_TAG", x), ("C_TAG", c), ("ENTRY", "accrt_" + name)), struct="group_norm_params_t")
    return KernelDef(name, "group_norm", producer, params, grid, local_memory_bytes=24 * MOST_CHANNELS)


def lower_group_norm(
    x: TensorSpec, out: TensorSpec, groups: int, epsilon: float, weight: Optional[TensorSpec] = None, bias: Optional[TensorSpec] = None,
    residual: Optional[TensorSpec] = None, activation: str = "none", last: str = "none",
) -> Launch:  # fmt: skip
    """x and out are [batch, height, width, channels] with a contiguous last axis, weight and bias
    f32. Operands: x, weight, bias, residual, out."""
    _check(out, bias, residual)
    _check(out, weight, None)
    require_contiguous_last(x, "x")
    channels = x.shape[3]
    if channels // groups > MOST_CHANNELS:
        raise ValueError(f"group_norm: groups of {channels // groups} channels; at most {MOST_CHANNELS} are possible")
    each = max(1, min(groups, 64 // max(channels // groups, 1)))
    values = {
        **_image_values(x, out, residual), "channels": channels, "groups": groups, "groups_per_group": each, "epsilon": epsilon,
        "activation": ACTIVATIONS[activation], "last": ACTIVATIONS[last],
    }  # fmt: skip
    buffers = {"x": "x", "out": "out", **optional_buffers(bias, residual), **({} if weight is None else {"weight": "weight"})}
    return launch(group_norm_kernel(x.dtype, out.dtype), buffers, values)
