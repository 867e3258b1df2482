"""Records of the CUDA kernels that are neither element-wise nor fast products, attention, norms or
softmax: copies, reductions, gather, rotary embedding, and products of any types and strides."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from ... import bundle_writer as bw
from .. import expr as sizes
from .. import ops, select
from ..declared import TensorType
from ..ir import Op
from ..kernels import elementwise as host_elementwise
from ..kernels import expr as ex
from ..kernels.kerneldef import (
    DTYPE_SIZES, BufferArg, CudaSource, KernelDef, Launch, Param, TensorSpec, launch, layout, reads, scalar, symbol, writes
)  # fmt: skip
from ..kernels.matmul import ACTIVATIONS, check_product, collapse_rows, optional_buffers, require_contiguous_last
from ..kernels.tensor_ops import _copy_order, lower_gather as lower_host_gather
from . import elementwise

Grid = Tuple[Any, Any, Any]


def make_kernel(
    name: str,
    op: str,
    file: str,
    params: Sequence[Param],
    grid: Any,
    threads: Tuple[int, int, int] = (256, 1, 1),
    shared_bytes: int = 0,
    flags: Tuple[str, ...] = (),
    **tags: str,
) -> KernelDef:
    """A kernel of a file here, instantiated with tags; its entry follows from its name."""
    entry = "accrt_" + name
    source = CudaSource(file, defines=(*tags.items(), ("ENTRY", entry)), flags=flags)
    traits = elementwise.TRAITS
    return KernelDef(
        "cuda." + name, op, source, layout(params), grid, traits=traits, entry=entry, family="cuda", block=threads, local_memory_bytes=shared_bytes
    )  # fmt: skip


# ---- Copies --------------------------------------------------------------------------------------

_BITS = {1: "u8", 2: "f16", 4: "u32", 8: "i64"}


@functools.lru_cache(maxsize=None)
def transpose_kernel(item: int) -> KernelDef:
    names = [f"{letter}{axis}" for letter in "dxy" for axis in range(8)]

    def grid(v: Mapping[str, Any]) -> Grid:
        tiles = ex.ceildiv(v["d6"], 32) * ex.ceildiv(v["d7"], 32) * ex.product(v[f"d{axis}"] for axis in range(6))
        return (ex.maximum(tiles, 1), 1, 1)

    params = [reads("x"), writes("out")] + [symbol(n) for n in names]
    return make_kernel(f"transpose_{item * 8}", "copy", "copy.cu", params, grid, (32, 8, 1), BYTES=str(item))


def lower_copy(x: TensorSpec, out: TensorSpec) -> Launch:
    """Copies x, broadcast to out's shape, into out, both with any strides. Operands: x, out."""
    if x.dtype != out.dtype:
        raise ValueError(f"copy: types {x.dtype} and {out.dtype} differ")
    shape, (x_steps, out_steps) = host_elementwise.collapse(
        out.shape, [host_elementwise.broadcast_strides(x, out.shape), list(out.strides)]
    )
    order = _copy_order(shape, x_steps, out_steps)
    crossed = len(order) > 1 and ex.equal(x_steps[order[-2]], 1) and ex.equal(out_steps[order[-1]], 1)
    if crossed and not ex.equal(x_steps[order[-1]], 1) and len(shape) <= 8:
        values: Dict[str, Any] = {}
        pad = 8 - len(shape)
        for letter, items, neutral in (("d", shape, 1), ("x", x_steps, 0), ("y", out_steps, 0)):
            values.update({f"{letter}{i}": neutral for i in range(pad)})
            values.update({f"{letter}{pad + i}": items[axis] for i, axis in enumerate(order)})
        return launch(transpose_kernel(x.element_size), {"x": "x", "out": "out"}, values)
    return _moved(x, out, shape, x_steps, out_steps, order)


def _moved(x: TensorSpec, out: TensorSpec, shape: Any, x_steps: Any, out_steps: Any, order: Sequence[int]) -> Launch:
    """By the element-wise kernel of a program that does nothing, axes in an order that suits the
    output."""
    bits = _BITS[x.element_size]
    program = host_elementwise.Program((host_elementwise.Node("input", bits, (), 0),), (0,))
    from_spec = TensorSpec(bits, tuple(shape[a] for a in order), tuple(x_steps[a] for a in order))
    to_spec = TensorSpec(bits, tuple(shape[a] for a in order), tuple(out_steps[a] for a in order))
    made = elementwise.lower(program, [from_spec], [to_spec])
    return Launch(made.kernel, {"x0": BufferArg("x"), "y0": BufferArg("out")}, made.values, made.grid, made.workspace_bytes)


def copy(source: TensorSpec, target: TensorSpec) -> select.Lowering:
    return select.named(lower_copy(source, target), x=("in", 0), out=select.OUT)


@select.rule("aten.clone", "cuda")
def _clone(op: Op, operands: select.Specs, results: select.Specs) -> select.Lowering:
    return copy(operands[0], results[0])


# ---- Reductions ----------------------------------------------------------------------------------

_REDUCE_NAMES = (
    "k0 k1 k2 r0 r1 x_k0 x_k1 x_k2 x_r0 x_r1 out_k0 out_k1 out_k2 divisor piece out_piece".split()
)  # fmt: skip
#: Few results of many elements are made in so many pieces first, each on a multiprocessor of its
#: own.
PIECES = 1024
FEW_RESULTS, MANY_ELEMENTS = 512, 32768


@functools.lru_cache(maxsize=None)
def reduce_kernel(op: str, x: str, out: str, lanes: int, across: bool, pieces: int) -> KernelDef:
    def grid(v: Mapping[str, Any]) -> Grid:
        each = 32 if across else 256 // lanes
        return (ex.maximum(ex.ceildiv(v["k0"] * v["k1"] * v["k2"], each), 1), pieces, 1)

    params = [reads("x"), writes("out")] + [symbol(n) for n in _REDUCE_NAMES]
    name = f"reduce_{op}_{x}_{out}_{'columns' if across else lanes}{'_pieces' if pieces > 1 else ''}"
    tags = {"X_TAG": x, "OUT_TAG": out, "OP": op.upper(), "LANES": str(lanes), "ACROSS": str(int(across))}
    return make_kernel(name, op, "reduce.cu", params, grid, **tags)


def lower_reduce(op: str, x: TensorSpec, out: TensorSpec, axes: Sequence[int], at_once: bool = False) -> select.Lowering:
    """sum, mean, max or min of x over `axes`; out lacks them. Operands: x, out. The kept axes join
    into three and the reduced ones into two. A long axis of few results is cut into pieces, by a
    kernel of its own before; `at_once`: by one kernel, for axes that are never long."""
    kept = [axis for axis in range(x.rank) if axis not in axes]
    collapse = host_elementwise.collapse
    k_shape, (k_x, k_out) = collapse([x.shape[a] for a in kept], [[x.strides[a] for a in kept], list(out.strides)])
    r_shape, (r_x,) = collapse([x.shape[a] for a in axes], [[x.strides[a] for a in axes]])
    if len(k_shape) > 3 or len(r_shape) > 2:
        raise ValueError(f"{op}: axes {list(axes)} of shape {x.shape} do not join into two reduced and three kept ones")
    results, elements = ex.product(k_shape), r_shape[-1]
    few = ex.is_static(results) and results <= FEW_RESULTS and len(r_shape) == 1
    if at_once or not few or (ex.is_static(elements) and elements < MANY_ELEMENTS):
        made = _reduce_launch(op, (x.dtype, out.dtype), k_shape, r_shape, (k_x, k_out, r_x), ex.product(r_shape))
        return select.named(made, x=("in", 0), out=select.OUT)
    partial = "f32" if out.dtype in ("f16", "bf16") else out.dtype
    steps = [ex.product(k_shape[i + 1 :]) for i in range(len(k_shape))]
    first = _reduce_launch(
        "sum" if op == "mean" else op, (x.dtype, partial), k_shape, r_shape, (k_x, steps, r_x), 1, PIECES, results
    )  # fmt: skip
    second = _reduce_launch(op, (partial, out.dtype), k_shape, [PIECES], (steps, k_out, [results]), elements)
    before = select.named(first, x=("in", 0), out=("temporary", 0))
    temporary = TensorType(partial, (PIECES, results))
    return select.Lowering(second, {"x": ("temporary", 0), "out": select.OUT}, (before,), (temporary,))


def _reduce_launch(
    op: str, dtypes: Tuple[str, str], k_shape: Any, r_shape: Any, strides: Tuple[Any, Any, Any], divisor: Any, pieces: int = 1,
    out_piece: Any = 0,
) -> Launch:  # fmt: skip
    """`strides`: of x along kept axes, of out, of x along reduced axes."""
    k_x, k_out, r_x = strides
    elements = r_shape[-1]
    # Pieces begin at multiples of 8, so that vectors stay aligned.
    piece = ex.maximum(ex.ceildiv(elements, 8 * pieces) * 8, 1) if pieces > 1 else ex.maximum(elements, 1)
    values: Dict[str, Any] = {"divisor": divisor, "piece": piece, "out_piece": out_piece}
    for prefix, count, items in (("k", 3, k_shape), ("r", 2, r_shape)):
        values.update({f"{prefix}{i}": size for i, size in enumerate([1] * (count - len(items)) + list(items))})
    for prefix, count, items in (("x_k", 3, k_x), ("out_k", 3, k_out), ("x_r", 2, r_x)):
        values.update({f"{prefix}{i}": step for i, step in enumerate([0] * (count - len(items)) + list(items))})
    across = not ex.equal(r_x[-1], 1) and ex.equal(k_x[-1], 1) and not (ex.is_static(k_shape[-1]) and k_shape[-1] == 1)
    lanes = 256 if pieces > 1 and not across else _lanes(elements, DTYPE_SIZES[dtypes[0]], across)
    return launch(reduce_kernel(op, *dtypes, lanes, across, pieces), {"x": "x", "out": "out"}, values)


def _lanes(size: Any, item: int, across: bool) -> int:
    """Threads that share one result: as many as its vectors of 16 bytes keep busy."""
    if across or not ex.is_static(size):
        return 32
    vectors = size * item // 16
    return 8 if vectors <= 16 else 32 if vectors <= 256 else 256


def _reduce(kind: str) -> select.Rule:
    def lower(op: Op, operands: select.Specs, results: select.Specs) -> select.Lowering:
        x, out = operands[0], results[0]
        axes = ops.axes_of(op.attrs["dim"], x.rank)
        if op.attrs["keepdim"]:
            kept = [a for a in range(x.rank) if a not in axes]
            out = TensorSpec(out.dtype, tuple(out.shape[a] for a in kept), tuple(out.strides[a] for a in kept))
        if x.rank == 0:
            x, axes = TensorSpec(x.dtype, (1,), (1,)), [0]
        return lower_reduce(kind, x, out, axes)

    return lower


for _name, _kind in (("sum", "sum"), ("mean", "mean"), ("amax", "max"), ("amin", "min")):
    select.rule("aten." + _name, "cuda")(_reduce(_kind))


# ---- Gather --------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=None)
def gather_kernel(index: str) -> KernelDef:
    names = "outer size count row_bytes x_outer_bytes x_row_bytes out_outer_bytes out_row_bytes index_step".split()

    def grid(v: Mapping[str, Any]) -> Grid:
        return (ex.maximum(ex.ceildiv(v["outer"] * v["count"] * v["row_bytes"], 64 * 256), 1), 1, 1)

    params = [reads("x"), reads("index"), writes("out")] + [symbol(n) for n in names]
    return make_kernel(f"gather_{index}", "index_select", "gather.cu", params, grid, INDEX_TAG=index)


def lower_gather(x: TensorSpec, index: TensorSpec, out: TensorSpec, axis: int) -> Launch:
    """out[..., i..., ...] = x[..., index[i...], ...] along one axis. Operands: x, index, out; as on
    hosts, but that an index out of range gives zeros."""
    made = lower_host_gather(x, index, out, axis)
    return launch(gather_kernel(index.dtype), {"x": "x", "index": "index", "out": "out"}, made.values)


@select.rule("aten.embedding", "cuda")
def _embedding(op: Op, operands: select.Specs, results: select.Specs) -> select.Lowering:
    made = lower_gather(operands[0], operands[1], results[0], 0)
    return select.named(made, x=("in", 0), index=("in", 1), out=select.OUT)


@select.rule("aten.index_select", "cuda")
def _index_select(op: Op, operands: select.Specs, results: select.Specs) -> select.Lowering:
    made = lower_gather(operands[0], operands[1], results[0], ops.axis_of(op.attrs["dim"], op.operands[0].rank))
    return select.named(made, x=("in", 0), index=("in", 1), out=select.OUT)


# ---- Rotary embedding ----------------------------------------------------------------------------


@functools.lru_cache(maxsize=None)
def rope_kernel(x: str) -> KernelDef:
    names = "batch length heads size start x_batch x_row x_head out_batch out_row out_head".split()

    def grid(v: Mapping[str, Any]) -> Grid:
        return (ex.maximum(ex.ceildiv(v["batch"] * v["length"] * (v["size"] // 2), 128), 1), 1, 1)

    params = [reads("x"), writes("out")] + [symbol(n) for n in names] + [scalar("log2_ratio", "f64")]
    return make_kernel(f"rope_{x}", "rotary_embedding", "rope.cu", params, grid, (128, 1, 1), X_TAG=x)


@select.rule("accrt.rope", "cuda")
def _rope(op: Op, operands: select.Specs, results: select.Specs) -> select.Lowering:
    if operands[0].dtype == "f64":
        raise ValueError("rotary embedding: the kernel's sines are f32")
    x, out = select.four_axes(operands[0]), select.four_axes(results[0])
    require_contiguous_last(x, "x")
    require_contiguous_last(out, "out")
    batch, length, heads, size = x.shape
    ratio = -2.0 / size * math.log2(op.attrs["theta"]) if size else 0.0
    values = {"batch": batch, "length": length, "heads": heads, "size": size, "start": op.attrs["position"], "log2_ratio": ratio}
    for name, spec in (("x", x), ("out", out)):
        values.update({f"{name}_batch": spec.strides[0], f"{name}_row": spec.strides[1], f"{name}_head": spec.strides[2]})
    return select.named(launch(rope_kernel(x.dtype), {"x": "x", "out": "out"}, values), x=("in", 0), out=select.OUT)


# ---- Products ------------------------------------------------------------------------------------

_PRODUCT_NAMES = (
    "m n k a_row a_column b_row b_column c_row residual_row batch0 batch1 batch2 a0 a1 a2 b0 b1 b2 c0 c1 c2".split()
)  # fmt: skip
_FEW_NAMES = "m n k lda ldb ldc ld_residual".split()
#: Rows up to which a product is bound by reading its weight.
FEW_ROWS = 16
_BUFFERS = [reads("a"), reads("b"), reads("bias", optional=True), reads("residual", optional=True), writes("c")]


def product_grid(batches: Sequence[str]) -> Any:
    def grid(v: Mapping[str, Any]) -> Grid:
        columns, rows, batch = ex.ceildiv(v["n"], 64), ex.ceildiv(v["m"], 64), ex.product(v[name] for name in batches)
        # y and z of a grid end at 65535: the kernel walks what is beyond.
        return (ex.maximum(columns, 1), ex.minimum(ex.maximum(rows, 1), 65535), ex.minimum(ex.maximum(batch, 1), 65535))

    return grid


def _product_tags(a: str, b: str, c: str, bias: str, activation: str) -> Dict[str, str]:
    return {"A_TAG": a, "B_TAG": b, "C_TAG": c, "BIAS_TAG": bias, "ACTIVATION": str(ACTIVATIONS[activation])}


@functools.lru_cache(maxsize=None)
def product_kernel(a: str, b: str, c: str, bias: str, activation: str) -> KernelDef:
    params = _BUFFERS + [symbol(n) for n in _PRODUCT_NAMES] + [scalar("scale", "f64")]
    grid, tags = product_grid(("batch0", "batch1", "batch2")), _product_tags(a, b, c, bias, activation)
    return make_kernel(f"product_{a}_{b}_{c}_{bias}_{activation}", "matmul", "product.cu", params, grid, LIKE_OPERATOR="0", **tags)


@functools.lru_cache(maxsize=None)
def few_rows_kernel(a: str, b: str, c: str, bias: str, activation: str) -> KernelDef:
    def grid(v: Mapping[str, Any]) -> Grid:
        return (ex.maximum(ex.ceildiv(v["n"], 8), 1), ex.minimum(ex.maximum(ex.ceildiv(v["m"], 4), 1), 65535), 1)

    params = _BUFFERS + [symbol(n) for n in _FEW_NAMES]
    tags = _product_tags(a, b, c, bias, activation)
    return make_kernel(f"few_rows_{a}_{b}_{c}_{bias}_{activation}", "matmul", "few_rows.cu", params, grid, **tags)


def lower_product(
    a: TensorSpec,
    b: TensorSpec,
    out: TensorSpec,
    bias: Optional[TensorSpec] = None,
    residual: Optional[TensorSpec] = None,
    activation: str = "none",
    scale: float = 1.0,
    invariant: bool = False,
) -> Launch:
    """out = activation(scale * (a @ b) + bias) + residual: [..., m, k] @ [..., k, n] of any
    strides; leading axes broadcast, and up to three remain after joining. out has a contiguous last
    axis; residuals are for products without leading axes. `invariant`: the same kernel for any
    number of rows. Operands: a, b, bias, residual, out."""
    check_product(out=out, bias=bias, residual=residual)
    lead = out.shape[:-2]
    walked = [
        host_elementwise.broadcast_strides(TensorSpec(s.dtype, s.shape[:-2], s.strides[:-2]), lead) for s in (a, b, out)
    ]  # fmt: skip
    shape, strides = host_elementwise.collapse(lead, walked)
    if len(shape) > 3 or (residual is not None and lead):
        raise ValueError(f"product: batch axes {lead} do not join into three, or there is a residual beside them")
    pad = 3 - len(shape)
    values: Dict[str, Any] = {
        "m": out.shape[-2], "n": out.shape[-1], "k": a.shape[-1], "a_row": a.strides[-2], "a_column": a.strides[-1],
        "b_row": b.strides[-2], "b_column": b.strides[-1], "c_row": out.strides[-2],
        "residual_row": residual.strides[-2] if residual is not None else 0, "scale": scale,
    }  # fmt: skip
    values.update({f"batch{i}": size for i, size in enumerate([1] * pad + shape)})
    for name, steps in zip("abc", strides):
        values.update({f"{name}{i}": step for i, step in enumerate([0] * pad + steps)})
    buffers = {"a": "a", "b": "b", "c": "out", **optional_buffers(bias, residual)}
    dtypes = (a.dtype, b.dtype, out.dtype, bias.dtype if bias is not None else out.dtype)
    made = launch(product_kernel(*dtypes, activation), buffers, values)
    if invariant or lead or scale != 1.0 or not set(dtypes) <= {"f32", "f16", "bf16"} or not ex.equal(a.strides[-1], 1) or not ex.equal(b.strides[-2], 1):
        return made
    values = dict(values, lda=a.strides[-2], ldb=b.strides[-1], ldc=out.strides[-2], ld_residual=values["residual_row"])
    few = launch(few_rows_kernel(*dtypes, activation), buffers, values)
    rows = out.shape[-2]
    if ex.is_static(rows):
        return few if rows <= FEW_ROWS else made
    return dataclasses.replace(made, alternatives=((sizes.simplify(bw.less_equal(rows, FEW_ROWS)), few),))


@select.rule("aten.matmul", "cuda")
def _matmul(op: Op, operands: select.Specs, results: select.Specs) -> select.Lowering:
    made = lower_product(operands[0], operands[1], results[0], invariant=select.is_batch_invariant(op))
    return select.named(made, a=("in", 0), b=("in", 1), out=select.OUT)


def rows_of(spec: TensorSpec, what: str) -> TensorSpec:
    """[..., n] as [rows, n]; ValueError where the leading axes are not walked as one."""
    rows, step = collapse_rows(spec, what)
    return TensorSpec(spec.dtype, (rows, spec.shape[-1]), (step, spec.strides[-1]))


@select.rule("accrt.product", "cuda")
def _product(op: Op, operands: select.Specs, results: select.Specs) -> select.Lowering:
    x, weight, bias, residual = operands
    flat = [None if s is None else rows_of(s, what) for s, what in ((x, "x"), (results[0], "result"), (residual, "residual"))]
    made = lower_product(flat[0], weight, flat[1], bias, flat[2], op.attrs["activation"], invariant=select.is_batch_invariant(op))
    present: List[Tuple[str, int]] = [(name, i) for name, i in (("bias", 2), ("residual", 3)) if operands[i] is not None]
    return select.named(made, a=("in", 0), b=("in", 1), out=select.OUT, **{name: ("in", i) for name, i in present})
