"""Records of all kernels that are neither matrix products, attention nor element-wise: norms,
softmax, reductions, gather, rotary embedding, strided copies, fill and iota."""

from __future__ import annotations

import functools
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from . import elementwise as ew
from . import expr as ex
from .kerneldef import BufferArg, entry_source, KernelDef, Launch, TensorSpec, launch, layout, reads, scalar, symbol, updates, workspace, writes
from .matmul import collapse_rows, require_contiguous_last

_FLOATS = ("f16", "bf16", "f32", "f64")


def row_grid(n: str, elements: int):
    """Rows of `n` elements in groups of about `elements`."""

    def grid(v: Mapping[str, Any]) -> Tuple[Any, Any, Any]:
        rows, size = v["rows"], v[n]
        per_group = max(1, elements // max(size, 1)) if ex.is_static(size) else 8
        return (ex.maximum(ex.ceildiv(rows, per_group), 1), 1, 1)

    return grid


# ---- Norms and softmax ---------------------------------------------------------------------------


@functools.lru_cache(maxsize=None)
def norm_kernel(kind: str, x: str, weight: str) -> KernelDef:
    """kind: layer_norm or rms_norm."""
    params = layout(
        [reads("x"), reads("weight", optional=True), reads("bias", optional=True), writes("out")]
        + [symbol(n) for n in ("rows", "n", "x_row", "out_row")]
        + [scalar("epsilon", "f64")]
    )
    name = f"{kind}_{x}_{weight}"
    producer = entry_source("norm.c", "norm_params_t", name, X_TAG=x, W_TAG=weight, RMS=str(int(kind == "rms_norm")))
    return KernelDef(name, kind, producer, params, row_grid("n", 8192))


def lower_norm(
    kind: str,
    x: TensorSpec,
    out: TensorSpec,
    weight: Optional[TensorSpec] = None,
    bias: Optional[TensorSpec] = None,
    epsilon: float = 1e-5,
) -> Launch:
    """layer_norm or rms_norm over the last axis. Operands: x, weight, bias, out; out may be the
    memory of x."""
    for spec, what in ((x, "x"), (out, "out"), (weight, "weight"), (bias, "bias")):
        if spec is not None:
            require_contiguous_last(spec, what)
    if x.dtype != out.dtype or (weight is not None and bias is not None and weight.dtype != bias.dtype):
        raise ValueError(f"{kind}: types of x and out ({x.dtype}, {out.dtype}) and of weight and bias must be the same")
    rows, x_row = collapse_rows(x, "x")
    _, out_row = collapse_rows(out, "out")
    parameter = weight or bias
    values = {"rows": rows, "n": x.shape[-1], "x_row": x_row, "out_row": out_row, "epsilon": epsilon}
    buffers: Dict[str, Any] = {"x": "x", "out": "out"}
    buffers.update({"weight": "weight"} if weight is not None else {})
    buffers.update({"bias": "bias"} if bias is not None else {})
    kernel = norm_kernel(kind, x.dtype, parameter.dtype if parameter is not None else x.dtype)
    return launch(kernel, buffers, values)


@functools.lru_cache(maxsize=None)
def softmax_kernel(x: str) -> KernelDef:
    params = layout([reads("x"), writes("out")] + [symbol(n) for n in ("rows", "n", "x_row", "out_row", "logarithm")])
    name = f"softmax_{x}"
    return KernelDef(name, "softmax", entry_source("softmax.c", "softmax_params_t", name, X_TAG=x), params, row_grid("n", 4096))


def lower_softmax(x: TensorSpec, out: TensorSpec, logarithm: bool = False) -> Launch:
    """softmax, or log-softmax, over the last axis. Operands: x, out; out may be the memory of x."""
    require_contiguous_last(x, "x")
    require_contiguous_last(out, "out")
    if x.dtype != out.dtype or x.dtype not in _FLOATS:
        raise ValueError(f"softmax: types {x.dtype} and {out.dtype}; one float type is needed")
    rows, x_row = collapse_rows(x, "x")
    _, out_row = collapse_rows(out, "out")
    values = {"rows": rows, "n": x.shape[-1], "x_row": x_row, "out_row": out_row, "logarithm": int(logarithm)}
    return launch(softmax_kernel(x.dtype), {"x": "x", "out": "out"}, values)


# ---- Reductions ----------------------------------------------------------------------------------

REDUCTIONS = ("sum", "mean", "prod", "max", "min")
_REDUCE_NAMES = ("k0", "k1", "k2", "r0", "r1", "x_k0", "x_k1", "x_k2", "x_r0", "x_r1", "out_k0", "out_k1", "out_k2")


@functools.lru_cache(maxsize=None)
def reduce_kernel(op: str, x: str, out: str) -> KernelDef:
    params = layout([reads("x"), writes("out")] + [symbol(n) for n in _REDUCE_NAMES])
    name = f"reduce_{op}_{x}_{out}"
    producer = entry_source("reduce.c", "reduce_params_t", name, X_TAG=x, OUT_TAG=out, OP=op.upper())
    return KernelDef(name, op, producer, params, reduce_grid)


def reduce_grid(v: Mapping[str, Any], columns: int = 128) -> Tuple[Any, Any, Any]:
    """`columns`: COLUMNS of reduce.h."""
    pieces = v["k0"] * v["k1"] * ex.ceildiv(v["k2"], columns)
    return (ex.maximum(ex.minimum(pieces, 64), 1), 1, 1)


def lower_reduce(op: str, x: TensorSpec, out: TensorSpec, axes: Sequence[int]) -> Launch:
    """sum, mean, prod, max or min of x over `axes`; out has x's rank with size 1 there, or lacks
    them. Operands: x, out.

    Reductions accumulate in the type of out (integers of any kind into i64, floats into their own).
    Axes may have any strides as long as the kept ones join into three and the reduced ones into
    two.
    """
    reduced = sorted({axis % x.rank for axis in axes})
    kept = [axis for axis in range(x.rank) if axis not in reduced]
    out_strides = list(out.strides) if out.rank == len(kept) else [out.strides[axis] for axis in kept]
    k_shape, (k_x, k_out) = ew.collapse([x.shape[a] for a in kept], [[x.strides[a] for a in kept], out_strides])
    r_shape, (r_x,) = ew.collapse([x.shape[a] for a in reduced], [[x.strides[a] for a in reduced]])
    if len(k_shape) > 3 or len(r_shape) > 2:
        raise ValueError(f"{op}: axes {reduced} of shape {x.shape} do not join into two reduced and three kept ones")
    values: Dict[str, Any] = {}
    pad = 3 - len(k_shape)
    for i in range(3):
        values[f"k{i}"] = k_shape[i - pad] if i >= pad else 1
        values[f"x_k{i}"] = k_x[i - pad] if i >= pad else 0
        values[f"out_k{i}"] = k_out[i - pad] if i >= pad else 0
    pad = 2 - len(r_shape)
    for i in range(2):
        values[f"r{i}"] = r_shape[i - pad] if i >= pad else 1
        values[f"x_r{i}"] = r_x[i - pad] if i >= pad else 0
    return launch(reduce_kernel(op, x.dtype, out.dtype), {"x": "x", "out": "out"}, values)


# ---- The largest ---------------------------------------------------------------------------------


@functools.lru_cache(maxsize=None)
def argmax_kernel(x: str) -> KernelDef:
    params = layout([reads("x"), writes("out")] + [symbol(n) for n in ("rows", "n", "x_row", "out_row")])
    name = f"argmax_{x}"
    producer = entry_source("argmax.c", "argmax_params_t", name, X_TAG=x, OUT_TAG="i64")
    return KernelDef(name, "argmax", producer, params, row_grid("n", 8192))


def lower_argmax(x: TensorSpec, out: TensorSpec) -> Launch:
    """The place of the largest element of the last axis. Operands: x, out."""
    require_contiguous_last(x, "x")
    rows, x_row = collapse_rows(x, "x")
    _, out_row = _joined(out.shape, out.strides, "result")
    values = {"rows": rows, "n": x.shape[-1], "x_row": x_row, "out_row": out_row}
    return launch(argmax_kernel(x.dtype), {"x": "x", "out": "out"}, values)


#: Groups of rows that have a part of the workspace.
LARGEST_GROUPS = 32


def _rounded(n: Any) -> Any:
    return ex.ceildiv(n, 64) * 64


@functools.lru_cache(maxsize=None)
def topk_kernel(x: str) -> KernelDef:
    params = layout(
        [reads("x"), writes("values"), writes("indices"), workspace("work")]
        + [symbol(n) for n in ("rows", "n", "k", "x_row", "values_row", "indices_row")]
    )
    name = f"topk_{x}"

    def grid(v: Mapping[str, Any]) -> Tuple[Any, Any, Any]:
        return (ex.maximum(ex.minimum(v["rows"], LARGEST_GROUPS), 1), 1, 1)

    def work(v: Mapping[str, Any]) -> Any:
        return grid(v)[0] * _rounded(v["n"]) * 16

    producer = entry_source("topk.c", "topk_params_t", name, X_TAG=x, OUT_TAG="i64")
    return KernelDef(name, "topk", producer, params, grid, workspace_bytes=work)


def lower_topk(x: TensorSpec, values: TensorSpec, indices: TensorSpec) -> Launch:
    """The largest elements of the last axis, and their places. Operands: x, values, indices."""
    for spec, what in ((x, "x"), (values, "values"), (indices, "indices")):
        require_contiguous_last(spec, what)
    rows, x_row = collapse_rows(x, "x")
    sizes = {"rows": rows, "n": x.shape[-1], "k": values.shape[-1], "x_row": x_row}
    sizes.update({"values_row": collapse_rows(values, "values")[1], "indices_row": collapse_rows(indices, "indices")[1]})
    return launch(topk_kernel(x.dtype), {name: name for name in ("x", "values", "indices")}, sizes)


# ---- Gather --------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=None)
def gather_kernel(index: str) -> KernelDef:
    names = "outer size count row_bytes x_outer_bytes x_row_bytes out_outer_bytes out_row_bytes index_step".split()
    params = layout([reads("x"), reads("index"), writes("out")] + [symbol(n) for n in names])
    name = f"gather_{index}"

    def grid(v: Mapping[str, Any]) -> Tuple[Any, Any, Any]:
        per_group = max(1, 65536 // max(v["row_bytes"], 1)) if ex.is_static(v["row_bytes"]) else 16
        return (ex.maximum(ex.ceildiv(v["outer"] * v["count"], min(per_group, 1024)), 1), 1, 1)

    return KernelDef(name, "index_select", entry_source("gather.c", "gather_params_t", name, INDEX_TAG=index), params, grid)


def _joined(shape: Sequence[Any], strides: Sequence[Any], what: str) -> Tuple[Any, Any]:
    """Size and stride of axes that are walked as one."""
    joined_shape, (joined,) = ew.collapse(list(shape), [list(strides)])
    if len(joined_shape) > 1:
        raise ValueError(f"gather: {what} axes {tuple(shape)} with strides {tuple(strides)} are not one axis")
    return joined_shape[0], joined[0]


def lower_gather(x: TensorSpec, index: TensorSpec, out: TensorSpec, axis: int = 0) -> Launch:
    """out[..., i..., ...] = x[..., index[i...], ...] along one axis. Operands: x, index, out.

    The rows after `axis` are contiguous in x and out. Embedding is axis 0. An index out of range
    fails the dispatch.
    """
    axis %= x.rank
    item = x.element_size
    row_shape = x.shape[axis + 1 :]
    row, row_step = _joined(row_shape, x.strides[axis + 1 :], "row")
    out_row, out_row_step = _joined(row_shape, out.strides[axis + index.rank :], "row")
    one = ex.is_static(row) and row == 1
    if not one and not (ex.equal(row_step, 1) and ex.equal(out_row_step, 1)):
        raise ValueError("gather: the rows after the axis must be contiguous")
    outer, x_outer = _joined(x.shape[:axis], x.strides[:axis], "leading")
    _, out_outer = _joined(x.shape[:axis], out.strides[:axis], "leading")
    count, index_step = _joined(index.shape, index.strides, "index")
    _, out_step = _joined(index.shape, out.strides[axis : axis + index.rank], "index")
    values = {
        "outer": outer, "size": x.shape[axis], "count": count, "row_bytes": row * item, "x_outer_bytes": x_outer * item,
        "x_row_bytes": x.strides[axis] * item, "out_outer_bytes": out_outer * item, "out_row_bytes": out_step * item,
        "index_step": index_step,
    }  # fmt: skip
    return launch(gather_kernel(index.dtype), {"x": "x", "index": "index", "out": "out"}, values)


# ---- Rotary embedding ----------------------------------------------------------------------------


@functools.lru_cache(maxsize=None)
def rope_kernel(x: str, positions: str) -> KernelDef:
    names = (
        "batch length heads size rotary interleaved start x_batch x_row x_head out_batch out_row out_head "
        "positions_batch positions_row"
    ).split()
    params = layout(
        [reads("x"), reads("positions", optional=True), reads("frequencies", optional=True), writes("out")]
        + [symbol(n) for n in names]
        + [scalar("ratio", "f64"), scalar("scale", "f32")]
    )
    name = f"rope_{x}_{positions}"

    def grid(v: Mapping[str, Any]) -> Tuple[Any, Any, Any]:
        return (ex.maximum(ex.ceildiv(v["batch"] * v["length"], 8), 1), 1, 1)

    producer = entry_source("rope.c", "rope_params_t", name, X_TAG=x, POSITION_TAG=positions)
    return KernelDef(name, "rotary_embedding", producer, params, grid)


def lower_rope(
    x: TensorSpec,
    out: TensorSpec,
    *,
    positions: Optional[TensorSpec] = None,
    frequencies: Optional[TensorSpec] = None,
    theta: float = 10000.0,
    rotary: Optional[int] = None,
    interleaved: bool = False,
    start: Any = 0,
    scale: float = 1.0,
) -> Launch:
    """Rotary embedding of [batch, length, heads, size], any strides but a contiguous last axis.
    Operands: x, positions, frequencies, out; out may be the memory of x.

    The position is `start` (a size or symbol) plus the index, or plus positions[batch, length] (i32
    or i64; leading axes broadcast). `rotary` is how much of the head turns (default all).
    Frequencies [rotary / 2] of f32 replace theta's. Cosines and sines are multiplied by `scale`.
    """
    require_contiguous_last(x, "x")
    require_contiguous_last(out, "out")
    batch, length, heads, size = x.shape
    turned = size if rotary is None else rotary
    if turned % 2 or turned > min(size, 512):
        raise ValueError(f"rotary embedding: {turned} of {size} turn; an even number of at most 512 is needed")
    places = ew.broadcast_strides(positions, (batch, length)) if positions is not None else [0, 0]
    values = {
        "batch": batch, "length": length, "heads": heads, "size": size, "rotary": turned, "interleaved": int(interleaved),
        "start": start, "positions_batch": places[0], "positions_row": places[1],
        "ratio": float(theta) ** (-2.0 / turned) if turned else 1.0, "scale": float(scale),
    }  # fmt: skip
    for name, spec in (("x", x), ("out", out)):
        values.update({f"{name}_batch": spec.strides[0], f"{name}_row": spec.strides[1], f"{name}_head": spec.strides[2]})
    buffers: Dict[str, Any] = {"x": "x", "out": "out"}
    buffers.update({"positions": "positions"} if positions is not None else {})
    buffers.update({"frequencies": "frequencies"} if frequencies is not None else {})
    return launch(rope_kernel(x.dtype, positions.dtype if positions is not None else "i64"), buffers, values)


# ---- Rows of a state -----------------------------------------------------------------------------


@functools.lru_cache(maxsize=None)
def scatter_kernel(index: str) -> KernelDef:
    names = "count rows row_bytes x_row_bytes slot_step".split()
    params = layout([reads("x"), reads("slots"), updates("state")] + [symbol(n) for n in names])
    name = f"state_scatter_{index}"

    def grid(v: Mapping[str, Any]) -> Tuple[Any, Any, Any]:
        return (ex.maximum(ex.minimum(ex.ceildiv(v["count"] * v["row_bytes"], 32768), 16), 1), 1, 1)

    return KernelDef(name, "state_scatter", entry_source("scatter.c", "scatter_params_t", name, INDEX_TAG=index), params, grid)


def lower_scatter(x: TensorSpec, slots: TensorSpec, state: TensorSpec) -> Launch:
    """state[slots[i]] = x[i] for rows of a state whose leading axes are taken as one. Operands: x,
    slots, state. -1 skips; another slot outside fails the dispatch."""
    lead = state.rank - (x.rank - 1)
    row, row_step = _joined(x.shape[1:], x.strides[1:], "row")
    if x.dtype != state.dtype or not ((ex.is_static(row) and row == 1) or ex.equal(row_step, 1)):
        raise ValueError(f"state_scatter: rows of {x.dtype} into {state.dtype}; contiguous ones of the state's type are needed")
    item = x.element_size
    values = {
        "count": x.shape[0], "rows": ex.product(state.shape[:lead]), "row_bytes": row * item, "x_row_bytes": x.strides[0] * item,
        "slot_step": slots.strides[0],
    }  # fmt: skip
    return launch(scatter_kernel(slots.dtype), {"x": "x", "slots": "slots", "state": "state"}, values)


@functools.lru_cache(maxsize=None)
def scatter_e4m3_kernel(x: str, index: str) -> KernelDef:
    names = "count rows row_size x_row slot_step".split()
    params = layout([reads("x"), reads("slots"), updates("state")] + [symbol(n) for n in names] + [scalar("factor", "f32")])
    name = f"state_scatter_e4m3_{x}_{index}"

    def grid(v: Mapping[str, Any]) -> Tuple[Any, Any, Any]:
        return (ex.maximum(ex.minimum(ex.ceildiv(v["count"] * v["row_size"], 8192), 16), 1), 1, 1)

    return KernelDef(name, "state_scatter", entry_source("scatter_e4m3.c", "scatter_e4m3_params_t", name, X_TAG=x, INDEX_TAG=index), params, grid)


def lower_scatter_e4m3(
    x: TensorSpec, slots: TensorSpec, state: TensorSpec, scale: float, make_kernel: Callable[..., KernelDef] = scatter_e4m3_kernel
) -> Launch:  # fmt: skip
    """state[slots[i]] = e4m3(x[i] / scale), as lower_scatter. Operands: x, slots, state."""
    lead = state.rank - (x.rank - 1)
    row, row_step = _joined(x.shape[1:], x.strides[1:], "row")
    if x.dtype not in ("f32", "f16", "bf16") or not ((ex.is_static(row) and row == 1) or ex.equal(row_step, 1)):
        raise ValueError(f"state_scatter_e4m3: rows of {x.dtype}; contiguous ones of f32, f16 or bf16 are needed")
    values = {
        "count": x.shape[0], "rows": ex.product(state.shape[:lead]), "row_size": row, "x_row": x.strides[0], "slot_step": slots.strides[0],
        "factor": 1.0 / scale,
    }  # fmt: skip
    return launch(make_kernel(x.dtype, slots.dtype), {"x": "x", "slots": "slots", "state": "state"}, values)


# ---- Copies, fill, iota --------------------------------------------------------------------------


@functools.lru_cache(maxsize=None)
def copy_kernel(item: int) -> KernelDef:
    names = [f"{letter}{axis}" for letter in "dxy" for axis in range(8)]
    params = layout([reads("x"), writes("out")] + [symbol(n) for n in names])
    name = f"copy_{item * 8}"

    def grid(v: Mapping[str, Any]) -> Tuple[Any, Any, Any]:
        total = ex.product(v[f"d{axis}"] for axis in range(8))
        return (ex.maximum(ex.minimum(ex.ceildiv(total * item, 65536), 256), 1), 1, 1)

    return KernelDef(name, "copy", entry_source("copy.c", "copy_params_t", name, BYTES=str(item)), params, grid)


def lower_copy(x: TensorSpec, out: TensorSpec, out_offset: Any = 0, x_offset: Any = 0) -> Launch:
    """Copies x, broadcast to out's shape, into out, both with any strides. Operands: x, out.

    Transposing is a spec with axes exchanged; a slice or a part of a concatenation is a spec with
    offset (elements).
    """
    if x.dtype != out.dtype:
        raise ValueError(f"copy: types {x.dtype} and {out.dtype} differ")
    shape, (x_steps, out_steps) = ew.collapse(out.shape, [ew.broadcast_strides(x, out.shape), list(out.strides)])
    order = _copy_order(shape, x_steps, out_steps)
    pad = 8 - len(shape)
    if pad < 0:
        raise ValueError(f"copy: {len(shape)} axes remain of shape {out.shape}, at most 8 are possible")
    values: Dict[str, Any] = {}
    for letter, items, neutral in (("d", shape, 1), ("x", x_steps, 0), ("y", out_steps, 0)):
        values.update({f"{letter}{i}": neutral for i in range(pad)})
        values.update({f"{letter}{pad + i}": items[axis] for i, axis in enumerate(order)})
    return launch(copy_kernel(x.element_size), {"x": BufferArg("x", x_offset), "out": BufferArg("out", out_offset)}, values)


def _copy_order(shape: Sequence[Any], x_steps: Sequence[Any], out_steps: Sequence[Any]) -> List[int]:
    """Order of axes: the output's contiguous one last, before it the input's when that is
    another."""

    def unit(steps: Sequence[Any]) -> Optional[int]:
        return next((axis for axis in reversed(range(len(shape))) if ex.equal(steps[axis], 1)), None)

    last, before = unit(out_steps), unit(x_steps)
    tail = [axis for axis in (before, last) if axis is not None]
    tail = tail[-1:] if before == last else tail
    return [axis for axis in range(len(shape)) if axis not in tail] + tail


def lower_fill(out: TensorSpec, value: Any) -> Launch:
    """Every element becomes `value`. Operand: y0."""
    return ew.lower(ew.Program((ew.Node("const", out.dtype, (), value),), (0,)), [], [out])


def lower_iota(out: TensorSpec, start: Any = 0, step: Any = 1) -> Launch:
    """out[i] = start + step * i for a contiguous rank-1 tensor; start and step are sizes or
    symbols. Operand: y0."""
    nodes = [ew.Node("index", "i64"), ew.Node("symbol", "i64", (), 0), ew.Node("symbol", "i64", (), 1)]
    nodes += [ew.Node("mul", "i64", (0, 2)), ew.Node("add", "i64", (3, 1)), ew.Node("cast", out.dtype, (4,))]
    return ew.lower(ew.Program(tuple(nodes), (5,)), [], [out], symbols=(start, step))
