"""Records of convolutions, pooling and norms of groups, channels last (conv.cuh, image.cuh)."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, Dict, List, Mapping, Optional, Tuple

from .. import expr, select
from ..declared import TensorType
from ..ir import Op
from ..kernels import expr as ex
from ..kernels.kerneldef import CudaSource, CudaVariant, KernelDef, Launch, TensorSpec, launch, reads, scalar, symbol, writes
from ..kernels.matmul import ACTIVATIONS, optional_buffers, require_contiguous_last
from . import products
from .norms import FLAGS, FLOATS, TYPES, entry_kernel
from .tensor_ops import rows_of

#: Multiprocessors that the shares of work are made for.
_MULTIPROCESSORS = 132
#: Steps of 64 along k in stages, as in gemm.cuh; and of the kernel for any floats.
_STAGES, _WIDE_STAGES, STAGE_K, PLAIN_K = 3, 4, 64, 16
#: What a place of the result sees, in shared memory: conv_row.
_ROW_BYTES = 16
_NAMES = (
    "m n ldw steps steps_each groups height width channels out_height out_width x_n x_h x_w x_c kernel_h kernel_w stride_h stride_w "
    "dilation_h dilation_w above left ldc ld_residual activation last"
).split()
#: Channels from which the image is copied where they are not contiguous.
MANY_CHANNELS = 16
#: Parts of k at most, and steps of each at least.
MOST_PARTS, LEAST_STEPS = 32, 4


def _parameters() -> List[Any]:
    buffers = [reads("x"), reads("w"), reads("bias", optional=True), reads("residual", optional=True), writes("out")]
    return buffers + [symbol(name) for name in _NAMES]


@dataclasses.dataclass(frozen=True)
class Tile:
    """What a block makes: `down` places x `across` outputs. Cycles of a step along k, about, of a
    block alone, and times the blocks of a multiprocessor where all have some; how many are there at
    once."""

    down: int
    across: int
    alone: int
    full: int
    resident: int

    @property
    def bytes_of_stage(self) -> int:
        return STAGE_K * 2 * (self.down + self.across)


#: As measured on an H200.
SMALL, LARGE, WIDE = Tile(64, 64, 1100, 700, 4), Tile(128, 128, 1650, 1100, 2), Tile(128, 160, 1350, 1500, 1)
_PLAIN = Tile(64, 64, 900, 900, 4)


def _grid(tile: Tile) -> Any:
    def grid(v: Mapping[str, Any]) -> Tuple[Any, Any, Any]:
        tiles = ex.ceildiv(v["m"], tile.down) * ex.ceildiv(v["n"], tile.across)
        return (ex.maximum(tiles, 1), 1, v["groups"] * max(-(-v["steps"] // v["steps_each"]), 1))

    return grid


@functools.lru_cache(maxsize=None)
def tile_kernel(x: str, out: str, activation: str, last: str, tile: Tile) -> KernelDef:
    name = f"conv_{x}_{out}_{activation}_{last}_{tile.across}"
    kinds = (TYPES[x], TYPES[out], activation.upper(), last.upper())
    if tile is WIDE:
        macro, size, shared = "ACCRT_CUDA_CONV_WIDE", tile.across, _STAGES * SMALL.bytes_of_stage + _ROW_BYTES * tile.down
    else:
        macro, size, shared = "ACCRT_CUDA_CONV", tile.down, _STAGES * tile.bytes_of_stage + _ROW_BYTES * tile.down
    specials = () if tile is SMALL else (_warpgroup_variant(name, kinds, tile),)
    return entry_kernel(
        name, "conv2d", "conv.cuh", macro, (*kinds, size), _parameters(), _grid(tile), 128, local_memory_bytes=shared, specials=specials
    )


def _warpgroup_variant(name: str, kinds: Tuple[str, ...], tile: Tile) -> CudaVariant:
    entry = "accrt_" + name
    macro, stages = ("ACCRT_CUDA_CONV_WARPGROUP", _STAGES) if tile is LARGE else ("ACCRT_CUDA_CONV_WARPGROUP_WIDE", _WIDE_STAGES)
    text = f"{macro}({', '.join((entry, *kinds))})\n"
    shared = stages * tile.bytes_of_stage + _ROW_BYTES * tile.down
    return CudaVariant("sm_90a", CudaSource("conv_warpgroup.cuh", text=text, flags=FLAGS), (256, 1, 1), (0, 0, 0), shared, entry)


@functools.lru_cache(maxsize=None)
def plain_kernel(x: str, w: str, out: str) -> KernelDef:
    arguments = (TYPES[x], TYPES[w], TYPES[out])
    return entry_kernel(f"conv_plain_{x}_{w}_{out}", "conv2d", "conv.cuh", "ACCRT_CUDA_CONV_PLAIN", arguments, _parameters(), _grid(_PLAIN), 256)


@functools.lru_cache(maxsize=None)
def join_kernel(out: str) -> KernelDef:
    def grid(v: Mapping[str, Any]) -> Tuple[Any, Any, Any]:
        return (ex.maximum(ex.ceildiv(v["m"] * v["n"], 256 * (1 if v["n"] % 4 else 4)), 1), 1, 1)

    params = [reads("parts"), reads("bias", optional=True), reads("residual", optional=True), writes("out")]
    params += [symbol(n) for n in "m n ldc ld_residual count activation last".split()]
    return entry_kernel(f"conv_join_{out}", "conv2d", "conv.cuh", "ACCRT_CUDA_CONV_JOIN", (TYPES[out],), params, grid, 256)


# ---- Shares of work ------------------------------------------------------------------------------


def parts_of(tile: Tile, m: int, n: int, steps: int, groups: int = 1) -> Tuple[float, int]:
    """The time of a convolution in cycles of a multiprocessor, about, and into how many parts k is
    cut for it."""
    blocks = -(-m // tile.down) * -(-n // tile.across) * groups
    best = (0.0, 0)
    for parts in range(1, min(MOST_PARTS, max(steps // LEAST_STEPS, 1)) + 1):
        each = -(-steps // parts)
        if -(-steps // max(each, 1)) != parts:
            continue
        on_each = -(-blocks * parts // _MULTIPROCESSORS)
        cycles = each * max(tile.alone * -(-on_each // tile.resident), tile.full * on_each)
        # A launch more, and the parts written and read again.
        cycles += 3500 + 8 * parts * m * n * groups / (10 * _MULTIPROCESSORS) if parts > 1 else 0
        if not best[1] or cycles < best[0]:
            best = (cycles, parts)
    return best[0], max(best[1], 1)


def tiling(m: int, n: int, k: int) -> Tuple[Tile, int]:
    """Tiles and parts of k for 16-bit types."""
    steps = -(-k // STAGE_K)
    found = [(*parts_of(tile, m, n, steps), tile) for tile in (WIDE, LARGE, SMALL)]
    _cycles, parts, tile = min(found, key=lambda one: one[0])
    return tile, parts


# ---- Convolutions --------------------------------------------------------------------------------


def _image_values(x: TensorSpec, out: TensorSpec, window: Any) -> Dict[str, Any]:
    pairs = zip(("kernel", "stride", "dilation"), (window.kernel, window.stride, window.dilation))
    values = {f"{name}_{axis}": size for name, sizes in pairs for axis, size in zip("hw", sizes)}
    return {
        **values, "above": window.pads[0], "left": window.pads[2], "height": x.shape[1], "width": x.shape[2], "out_height": out.shape[1],
        "out_width": out.shape[2], "x_n": x.strides[0], "x_h": x.strides[1], "x_w": x.strides[2],
    }  # fmt: skip


def _results(out: TensorSpec, residual: Optional[TensorSpec], bias: Optional[TensorSpec]) -> Tuple[TensorSpec, Dict[str, Any]]:
    """The result as rows of places, and how it and the residual lie."""
    if bias is not None and (bias.dtype != "f32" or not ex.equal(bias.strides[0], 1)):
        raise ValueError(f"bias: {bias.dtype} with strides {bias.strides}; contiguous f32 is needed")
    flat = [None if spec is None else rows_of(spec, what) for spec, what in ((out, "result"), (residual, "residual"))]
    for spec, what in zip(flat, ("result", "residual")):
        if spec is not None:
            require_contiguous_last(spec, what)
            if spec.dtype != out.dtype:
                raise ValueError(f"{what}: the type is {spec.dtype}, {out.dtype} is needed")
    return flat[0], {"ldc": flat[0].strides[0], "ld_residual": flat[1].strides[0] if flat[1] is not None else 0}


def _check_image(x: TensorSpec, window: Any) -> None:
    if not isinstance(x.shape[3], int) or any(isinstance(size, int) and size >= 1 << 30 for size in x.shape):
        raise ValueError(f"convolution of {x.shape}: the channels are to be known, and all sizes below 2^30")
    if x.shape[3] >= MANY_CHANNELS and not ex.equal(x.strides[3], 1):
        raise ValueError(f"convolution: channels have stride {x.strides[3]}")


def lower_conv(
    x: TensorSpec, w: TensorSpec, out: TensorSpec, window: Any, groups: int = 1, bias: Optional[TensorSpec] = None,
    residual: Optional[TensorSpec] = None, activation: str = "none", last: str = "none",
) -> select.Lowering:  # fmt: skip
    """out = last(activation(conv2d(x, w) + bias) + residual), x and out [batch, height, width,
    channels]; w is [outputs, k] with k = kernel height * kernel width * channels of a group, and
    zeros behind it up to a multiple of 8. x may have any strides where it has few channels.
    Operands 0 to 3: x, w, bias, residual."""
    _check_image(x, window)
    if not {x.dtype, w.dtype, out.dtype} <= set(FLOATS) or not ex.equal(w.strides[1], 1):
        raise ValueError(f"convolution: types {x.dtype}, {w.dtype} and {out.dtype}, weight with strides {w.strides}")
    flat, lies = _results(out, residual, bias)
    (m, n), channels = flat.shape, x.shape[3] // groups
    k = window.kernel[0] * window.kernel[1] * channels
    short = x.dtype in products.OPERANDS and w.dtype == x.dtype and groups == 1
    deep = STAGE_K if short else PLAIN_K
    values = {
        **_image_values(x, out, window), "x_c": x.strides[3], "channels": channels, "groups": groups, "m": m, "n": n // groups, "ldw": w.strides[0],
        "steps": -(-k // deep), "steps_each": max(-(-k // deep), 1), "activation": ACTIVATIONS[activation], "last": ACTIVATIONS[last], **lies,
    }  # fmt: skip
    buffers = {"x": "x", "w": "w", "out": "out", **optional_buffers(bias, residual)}
    bindings = {"x": ("in", 0), "w": ("in", 1), "out": select.OUT}
    more = {name: ("in", i) for name, i, spec in (("bias", 2, bias), ("residual", 3, residual)) if spec is not None}
    if not ex.is_static(m):
        return select.named(_of_unknown_size(short, (x.dtype, w.dtype, out.dtype), (activation, last), buffers, values), **bindings, **more)
    tile, parts = _PLAIN, 1
    if not short:
        parts = parts_of(_PLAIN, m, n // groups, values["steps"], groups)[1]
    elif channels % 8 or not ex.equal(x.strides[3], 1):
        tile, parts = SMALL, parts_of(SMALL, m, n, values["steps"])[1]
    else:
        tile, parts = tiling(m, n, k)
    if parts < 2:
        kernel = tile_kernel(x.dtype, out.dtype, activation, last, tile) if short else plain_kernel(x.dtype, w.dtype, out.dtype)
        return select.named(launch(kernel, buffers, values), **bindings, **more)
    values.update(steps_each=-(-values["steps"] // parts), ldc=n, ld_residual=0, activation=0, last=0)
    first = launch(tile_kernel(x.dtype, "f32", "none", "none", tile) if short else plain_kernel(x.dtype, w.dtype, "f32"), {"x": "x", "w": "w", "out": "out"}, values)
    before = select.named(first, **{**bindings, "out": ("temporary", 0)})
    joined = {"m": m, "n": n, "count": parts, "activation": ACTIVATIONS[activation], "last": ACTIVATIONS[last], **lies}
    second = launch(join_kernel(out.dtype), {"parts": "parts", "out": "out", **optional_buffers(bias, residual)}, joined)
    return select.Lowering(second, {"parts": ("temporary", 0), "out": select.OUT, **more}, (before,), (TensorType("f32", (parts, m, n)),))


def _of_unknown_size(short: bool, dtypes: Tuple[str, str, str], kinds: Tuple[str, str], buffers: Mapping[str, Any], values: Mapping[str, Any]) -> Launch:
    if not short:
        return launch(plain_kernel(*dtypes), buffers, values)
    small = products.at_most(expr.simplify(expr.constant(values["m"]) * values["n"]), products.SMALL_TILE_RESULTS)
    options = [(condition, launch(tile_kernel(dtypes[0], dtypes[2], *kinds, tile), buffers, values)) for condition, tile in ((small, SMALL), (1, LARGE))]
    return products.resolved(options)


@select.rule("accrt.conv_packed", "cuda")
def _conv(op: Op, operands: select.Specs, results: select.Specs) -> select.Lowering:
    x, weight, bias, residual = operands
    at = op.attrs
    return lower_conv(x, weight, results[0], at["window"], at["groups"], bias, residual, at["activation"], at["last"])


# ---- Windows -------------------------------------------------------------------------------------

_KINDS = {"depthwise": "DEPTHWISE", "max": "LARGEST", "mean": "MEAN"}
_WINDOW_NAMES = (
    "m channels height width out_height out_width x_n x_h x_w kernel_h kernel_w stride_h stride_w dilation_h dilation_w above left ldc "
    "ld_residual activation last"
).split()


@functools.lru_cache(maxsize=None)
def window_kernel(kind: str, x: str, out: str) -> KernelDef:
    vector = 4 if x == "f32" else 8

    def grid(v: Mapping[str, Any]) -> Tuple[Any, Any, Any]:
        each = vector * (2 if kind == "depthwise" else 1)  # of a thread: channels, and places
        return (ex.maximum(ex.ceildiv(v["m"] * ex.ceildiv(v["channels"], each), 256), 1), 1, 1)

    params = [reads("x"), reads("w", optional=True), reads("bias", optional=True), reads("residual", optional=True), writes("out")]
    params += [symbol(n) for n in _WINDOW_NAMES]
    return entry_kernel(f"window_{kind}_{x}_{out}", "window", "image.cuh", "ACCRT_CUDA_WINDOW", (TYPES[x], TYPES[out], _KINDS[kind]), params, grid, 256)


def lower_window(
    kind: str, x: TensorSpec, out: TensorSpec, window: Any, w: Optional[TensorSpec] = None, bias: Optional[TensorSpec] = None,
    residual: Optional[TensorSpec] = None, activation: str = "none", last: str = "none",
) -> Launch:  # fmt: skip
    """x and out are [batch, height, width, channels] with a contiguous last axis, w is f32 [kernel
    height * kernel width, channels]. Operands: x, w, bias, residual, out."""
    _check_image(x, window)
    require_contiguous_last(x, "x")
    if not {x.dtype, out.dtype} <= set(FLOATS) or (w is not None and (w.dtype != "f32" or w.strides != (w.shape[1], 1))):
        raise ValueError(f"window: types {x.dtype} and {out.dtype}, and a contiguous weight of f32")
    flat, lies = _results(out, residual, bias)
    values = {
        **_image_values(x, out, window), "m": flat.shape[0], "channels": x.shape[3], "activation": ACTIVATIONS[activation], "last": ACTIVATIONS[last], **lies,
    }  # fmt: skip
    buffers = {"x": "x", "out": "out", **optional_buffers(bias, residual), **({} if w is None else {"w": "w"})}
    return launch(window_kernel(kind, x.dtype, out.dtype), buffers, values)


@select.rule("accrt.window", "cuda")
def _window(op: Op, operands: select.Specs, results: select.Specs) -> select.Lowering:
    x, weight, bias, residual = operands
    at = op.attrs
    made = lower_window(at["kind"], x, results[0], at["window"], weight, bias, residual, at["activation"], at["last"])
    return select.named(made, x=("in", 0), out=select.OUT, **{n: ("in", i) for i, n in enumerate(("x", "w", "bias", "residual")) if i and operands[i] is not None})


# ---- Norms of groups of channels -----------------------------------------------------------------

#: As in image.cuh.
MOST_CHANNELS, _MOST_PARTS = 3072, 64
#: Elements that a block sums up, and makes.
_ELEMENTS = 8192


def _places_grid(each: str) -> Any:
    def grid(v: Mapping[str, Any]) -> Tuple[Any, Any, Any]:
        return (ex.maximum(ex.ceildiv(v["rows"], v[each]), 1), ex.maximum(v["batch"], 1), 1)

    return grid


@functools.lru_cache(maxsize=None)
def group_sums_kernel(x: str) -> KernelDef:
    params = [reads("x"), writes("sums")] + [symbol(n) for n in "batch rows rows_each channels groups x_n x_w parts".split()]
    return entry_kernel(f"group_sums_{x}", "group_norm", "image.cuh", "ACCRT_CUDA_GROUP_SUMS", (TYPES[x],), params, _places_grid("rows_each"), 256)


@functools.lru_cache(maxsize=None)
def group_norm_kernel(x: str, out: str) -> KernelDef:
    params = [reads("x"), reads("sums"), reads("weight", optional=True), reads("bias", optional=True), reads("residual", optional=True), writes("out")]
    params += [symbol(n) for n in "batch rows rows_each rows_here channels groups x_n x_w ldc ld_residual parts activation last".split()]
    params += [scalar("epsilon", "f64")]
    arguments = (TYPES[x], TYPES[out])
    return entry_kernel(f"group_norm_{x}_{out}", "group_norm", "image.cuh", "ACCRT_CUDA_GROUP_NORM", arguments, params, _places_grid("rows_here"), 256)


def lower_group_norm(
    x: TensorSpec, out: TensorSpec, groups: int, epsilon: float, weight: Optional[TensorSpec] = None, bias: Optional[TensorSpec] = None,
    residual: Optional[TensorSpec] = None, activation: str = "none", last: str = "none",
) -> select.Lowering:  # fmt: skip
    """x and out are [batch, height, width, channels] with a contiguous last axis, weight and bias
    f32. Operands 0 to 3: x, weight, bias, residual."""
    require_contiguous_last(x, "x")
    _results(out, None, weight)
    flat, lies = _results(out, residual, bias)
    if not {x.dtype, out.dtype} <= set(FLOATS) or x.shape[3] > MOST_CHANNELS:
        raise ValueError(f"group_norm: {x.dtype} {x.shape} to {out.dtype}; at most {MOST_CHANNELS} channels are possible")
    batch, channels = x.shape[0], x.shape[3]
    rows, x_w = rows_and_step(x)
    least = max(_ELEMENTS // channels, 1)
    each = ex.maximum(ex.ceildiv(rows, _MOST_PARTS), least)
    parts = ex.maximum(ex.ceildiv(rows, each), 1)
    # At most 8 blocks on a multiprocessor, which walk what is left.
    here = ex.maximum(ex.ceildiv(rows, 8 * _MULTIPROCESSORS), least)
    values = {"batch": batch, "rows": rows, "rows_each": each, "channels": channels, "groups": groups, "x_n": x.strides[0], "x_w": x_w, "parts": parts}
    before = select.named(launch(group_sums_kernel(x.dtype), {"x": "x", "sums": "sums"}, values), x=("in", 0), sums=("temporary", 0))
    values.update(rows_here=here, activation=ACTIVATIONS[activation], last=ACTIVATIONS[last], epsilon=epsilon, **lies)
    more: List[Tuple[str, int]] = [(name, i) for name, i, spec in (("weight", 1, weight), ("bias", 2, bias), ("residual", 3, residual)) if spec is not None]
    buffers = {name: name for name in ("x", "sums", "out", *(name for name, _i in more))}
    made = launch(group_norm_kernel(x.dtype, out.dtype), buffers, values)
    bindings = {"x": ("in", 0), "sums": ("temporary", 0), "out": select.OUT, **{name: ("in", i) for name, i in more}}
    return select.Lowering(made, bindings, (before,), (TensorType("f32", (batch, groups, parts, 2)),))


def rows_and_step(x: TensorSpec) -> Tuple[Any, Any]:
    """The places of an image, walked as one axis, and the step between them."""
    one = TensorSpec(x.dtype, x.shape[1:], x.strides[1:])
    rows = rows_of(one, "x")
    return rows.shape[0], rows.strides[0]


@select.rule("accrt.group_norm_last", "cuda")
def _group_norm(op: Op, operands: select.Specs, results: select.Specs) -> select.Lowering:
    x, weight, bias, residual = operands
    at = op.attrs
    return lower_group_norm(x, results[0], at["groups"], at["eps"], weight, bias, residual, at["activation"], at["last"])
