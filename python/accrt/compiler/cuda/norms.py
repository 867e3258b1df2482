"""Records of norms and softmax (norm.cuh, softmax.cuh): each byte is read once and written once."""

from __future__ import annotations

import functools
from typing import Any, Dict, Mapping, Optional, Tuple

from .. import ops, select
from ..ir import Op
from ..kernels import expr as ex
from ..kernels.kerneldef import (
    DTYPE_SIZES, TRAIT_DETERMINISTIC, TRAIT_OVERLAPS_PREVIOUS, CudaSource, KernelDef, Launch, TensorSpec, launch, layout, reads,
    scalar, symbol, writes,
)  # fmt: skip
from ..kernels.matmul import collapse_rows, require_contiguous_last

#: C++ types of elements.
TYPES = {"f32": "float", "f16": "__half", "bf16": "__nv_bfloat16", "bool": "uint8_t"}
FLOATS = ("f32", "f16", "bf16")
# The sources ask for fused multiply-adds wherever the compiler sees them: their error bounds have
# room for either.
FLAGS = ("-fmad=true",)
_ROWS_OF_WARPS = 4
#: Of the GPUs that this is made for, the most; others get a grid that does not quite fit.
_MULTIPROCESSORS = 132
#: Threads that a multiprocessor holds of a norm: they keep weights and the next row in registers,
#: so they have 64 or 96.
_NORM_THREADS, _NORM_WARP_THREADS = 1024, 640
_NORM_CHUNKS, _SOFTMAX_CHUNKS = 2, 4
#: Of blocks for rows of any length.
_SOFTMAX_THREADS, _NORM_SHARED_THREADS = 256, 512
#: They wait for what is ahead of them before they touch memory, so they may be on the machine
#: before it has ended.
TRAITS = TRAIT_DETERMINISTIC | TRAIT_OVERLAPS_PREVIOUS


def entry_kernel(name: str, op: str, file: str, macro: str, arguments: Tuple[Any, ...], params: Any, grid: Any, threads: int, **more: Any) -> KernelDef:
    """A kernel whose entry one macro of a header makes: MACRO(entry, arguments...)."""
    entry = "accrt_" + name
    text = f"{macro}({', '.join(map(str, (entry, *arguments)))})\n"
    source = CudaSource(file, text=text, flags=FLAGS)
    return KernelDef(
        "cuda." + name, op, source, layout(params), grid, entry=entry, family="cuda", block=(threads, 1, 1), traits=TRAITS, **more
    )  # fmt: skip


def row_shape(n: Any, dtype: str, chunks: int) -> Tuple[int, int, int]:
    """Threads for a row (0: the kernel looks at its length), vectors of 16 bytes that each keeps
    (about `chunks` in rows of a block), and the length where it is known and one that fits."""
    if not ex.is_static(n):
        return 0, chunks, 0
    vectors = max(1, ex.ceildiv(n * DTYPE_SIZES[dtype], 16))
    if vectors <= 64:
        return 32, ex.ceildiv(vectors, 32), n
    threads = 64
    while threads < 1024 and threads * chunks < vectors:
        threads *= 2
    kept = ex.ceildiv(vectors, threads)
    return (threads, kept, n) if kept <= chunks else (threads, chunks, 0)


def row_warps(pieces: Any, most: int) -> Any:
    """Warps of a row of so many pieces, of which each warp has one: a power of two."""
    warps, power = 1, 1
    while power < most:
        warps = warps + power * ex.minimum(ex.maximum(pieces - power, 0), 1)
        power *= 2
    return warps


def shared_grid(x: str, threads: int, chunks: int, most: int) -> Any:
    """Blocks for rows of any length, which have as many of their warps as they are long."""
    warps = threads // 32

    def grid(v: Mapping[str, Any]) -> Tuple[Any, Any, Any]:
        pieces = ex.ceildiv(v["n"] * DTYPE_SIZES[x], 16 * 32 * chunks)
        blocks = ex.ceildiv(v["rows"] * row_warps(pieces, warps), warps)
        return (ex.maximum(ex.minimum(blocks, most), 1), 1, 1)

    return grid


def softmax_grid(x: str) -> Any:
    return shared_grid(x, _SOFTMAX_THREADS, _SOFTMAX_CHUNKS, 1 << 20)


def _row_grid(threads: int, resident: int = 0) -> Any:
    """Blocks for all rows; with `resident` not more than the machine holds at once, each of which
    then walks its rows."""
    rows_each = _ROWS_OF_WARPS if threads == 32 else 1

    def grid(v: Mapping[str, Any]) -> Tuple[Any, Any, Any]:
        blocks = ex.maximum(ex.ceildiv(v["rows"], rows_each), 1)
        return (ex.minimum(blocks, resident * _MULTIPROCESSORS) if resident else blocks, 1, 1)

    return grid


def _block(threads: int) -> int:
    return _ROWS_OF_WARPS * 32 if threads == 32 else threads


@functools.lru_cache(maxsize=None)
def norm_kernel(kind: str, x: str, weight: str, threads: int, chunks: int, n: int) -> KernelDef:
    params = [reads("x"), reads("weight", optional=True), reads("bias", optional=True), writes("out")]
    params += [symbol(n) for n in ("rows", "n", "x_row", "out_row")] + [scalar("epsilon", "f64")]
    block = _block(threads) if threads else _NORM_SHARED_THREADS
    blocks = max(1, (_NORM_WARP_THREADS if threads == 32 else _NORM_THREADS) // block)
    grid = _row_grid(threads, blocks) if threads else shared_grid(x, block, chunks, blocks * _MULTIPROCESSORS)
    arguments = (TYPES[x], TYPES[weight], int(kind == "rms_norm"), threads, chunks, n, blocks)
    name = f"{kind}_{x}_{weight}_{threads}x{chunks}_{n}"
    return entry_kernel(name, kind, "norm.cuh", "ACCRT_CUDA_NORM", arguments, params, grid, block)


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
    parameter = weight or bias
    kinds = {x.dtype, out.dtype, parameter.dtype if parameter else x.dtype}
    if x.dtype != out.dtype or not kinds <= set(FLOATS) or (weight and bias and weight.dtype != bias.dtype):
        raise ValueError(f"{kind}: types {sorted(kinds)}; those of x and out, and of weight and bias, must be the same floats")
    for spec, what in ((x, "x"), (out, "out"), (weight, "weight"), (bias, "bias")):
        if spec is not None:
            require_contiguous_last(spec, what)
    rows, x_row = collapse_rows(x, "x")
    _, out_row = collapse_rows(out, "out")
    n = x.shape[-1]
    values = {"rows": rows, "n": n, "x_row": x_row, "out_row": out_row, "epsilon": epsilon}
    buffers: Dict[str, Any] = {"x": "x", "out": "out"}
    buffers.update({"weight": "weight"} if weight is not None else {})
    buffers.update({"bias": "bias"} if bias is not None else {})
    return launch(norm_kernel(kind, x.dtype, parameter.dtype if parameter else x.dtype, *row_shape(n, x.dtype, _NORM_CHUNKS)), buffers, values)


@functools.lru_cache(maxsize=None)
def softmax_kernel(x: str, threads: int, chunks: int, n: int) -> KernelDef:
    names = ("rows", "n", "x_row", "out_row", "mask_row", "mask_rows", "mask_rows_each", "logarithm")
    params = [reads("x"), reads("mask", optional=True), writes("out")] + [symbol(n) for n in names]
    arguments = (TYPES[x], "uint8_t", threads, chunks, n)
    grid, block = (_row_grid(threads), _block(threads)) if threads else (softmax_grid(x), _SOFTMAX_THREADS)
    return entry_kernel(f"softmax_{x}_{threads}x{chunks}_{n}", "softmax", "softmax.cuh", "ACCRT_CUDA_SOFTMAX", arguments, params, grid, block)


def lower_softmax(x: TensorSpec, out: TensorSpec, logarithm: bool = False) -> Launch:
    """softmax, or log-softmax, over the last axis. Operands: x, out; out may be the memory of x."""
    if x.dtype != out.dtype or x.dtype not in FLOATS:
        raise ValueError(f"softmax: types {x.dtype} and {out.dtype}; one of {', '.join(FLOATS)} is needed")
    require_contiguous_last(x, "x")
    require_contiguous_last(out, "out")
    rows, x_row = collapse_rows(x, "x")
    _, out_row = collapse_rows(out, "out")
    values = {
        "rows": rows, "n": x.shape[-1], "x_row": x_row, "out_row": out_row, "mask_row": 0, "mask_rows": 1,
        "mask_rows_each": 1, "logarithm": int(logarithm),
    }  # fmt: skip
    return launch(softmax_kernel(x.dtype, *row_shape(x.shape[-1], x.dtype, _SOFTMAX_CHUNKS)), {"x": "x", "out": "out"}, values)


@functools.lru_cache(maxsize=None)
def masked_softmax_kernel(x: str, mask: str, threads: int, chunks: int, n: int) -> KernelDef:
    names = ("rows", "n", "x_row", "out_row", "mask_row", "mask_rows")
    params = [reads("x"), reads("mask", optional=True), writes("out")] + [symbol(n) for n in names] + [scalar("scale", "f64")]
    grid, block = (_row_grid(threads), _block(threads)) if threads else (softmax_grid(x), _SOFTMAX_THREADS)
    name = f"masked_softmax_{x}_{mask}_{threads}x{chunks}_{n}"
    arguments = (TYPES[x], TYPES[mask], threads, chunks, n)
    return entry_kernel(name, "masked_softmax", "softmax.cuh", "ACCRT_CUDA_MASKED_SOFTMAX", arguments, params, grid, block)


def lower_masked_softmax(x: TensorSpec, mask: Optional[TensorSpec], out: TensorSpec, scale: float) -> Launch:
    """softmax of scale * x + mask over the last axis, in one kernel. Operands: x, mask, out; out
    may be the memory of x. The rows of mask, which may be fewer, begin anew behind its last one."""
    if x.dtype != out.dtype or x.dtype not in FLOATS or (mask is not None and mask.dtype not in (x.dtype, "bool")):
        raise ValueError(f"masked_softmax: types {x.dtype} and {out.dtype}; one of {', '.join(FLOATS)} is needed")
    for spec, what in ((x, "x"), (out, "out"), (mask, "mask")):
        if spec is not None:
            require_contiguous_last(spec, what)
    rows, x_row = collapse_rows(x, "x")
    _, out_row = collapse_rows(out, "out")
    mask_rows, mask_row = collapse_rows(mask, "mask") if mask is not None else (1, 0)
    values = {
        "rows": rows, "n": x.shape[-1], "x_row": x_row, "out_row": out_row, "mask_row": mask_row, "mask_rows": ex.maximum(mask_rows, 1),
        "scale": scale,
    }  # fmt: skip
    kernel = masked_softmax_kernel(x.dtype, mask.dtype if mask is not None else "bool", *row_shape(x.shape[-1], x.dtype, _SOFTMAX_CHUNKS))
    return launch(kernel, {"x": "x", "out": "out", **({"mask": "mask"} if mask is not None else {})}, values)


# ---- Rules ---------------------------------------------------------------------------------------


def _present(op: Op, **places: int) -> Dict[str, select.Binding]:
    return {name: ("in", i) for name, i in places.items() if i < len(op.operands) and op.operands[i] is not None}


@select.rule("aten.layer_norm", "cuda", priority=10)
def _layer_norm(op: Op, operands: select.Specs, results: select.Specs) -> select.Lowering:
    x, weight, bias = operands
    made = lower_norm("layer_norm", x, results[0], weight, bias, op.attrs["eps"])
    return select.named(made, x=("in", 0), out=select.OUT, **_present(op, weight=1, bias=2))


@select.rule("aten.rms_norm", "cuda", priority=10)
def _rms_norm(op: Op, operands: select.Specs, results: select.Specs) -> select.Lowering:
    made = lower_norm("rms_norm", operands[0], results[0], operands[1], None, op.attrs["eps"])
    return select.named(made, x=("in", 0), out=select.OUT, **_present(op, weight=1))


@select.rule("aten.softmax", "cuda", priority=10)
def _softmax(op: Op, operands: select.Specs, results: select.Specs) -> select.Lowering:
    if operands[0].rank == 0 or ops.axis_of(op.attrs["dim"], operands[0].rank) != operands[0].rank - 1:
        raise ValueError("softmax: kernels take the last dimension")
    return select.named(lower_softmax(operands[0], results[0]), x=("in", 0), out=select.OUT)


@select.rule("accrt.masked_softmax", "cuda", priority=10)
def _masked_softmax(op: Op, operands: select.Specs, results: select.Specs) -> select.Lowering:
    made = lower_masked_softmax(operands[0], operands[1], results[0], op.attrs["scale"])
    return select.named(made, x=("in", 0), out=select.OUT, **_present(op, mask=1))
