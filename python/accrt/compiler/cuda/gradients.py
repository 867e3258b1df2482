"""Records of the gradients of norms (norm_backward.cu) and softmax (softmax_backward.cu)."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, Dict

from .. import ops, select
from ..declared import TensorType
from ..ir import Op
from ..kernels import expr as ex
from ..kernels import gradients as host
from ..kernels.kerneldef import DTYPE_SIZES, KernelDef, launch, reads, scalar, symbol, writes
from . import tensor_ops
from .norms import FLAGS, row_warps, softmax_grid
from .products import at_most
from .tensor_ops import make_kernel

#: Blocks that go through the rows of a norm: two for each multiprocessor of the largest GPUs.
BLOCKS = 264
#: norm_backward.cu: threads of a block and columns that each may have, for rows up to 4096 elements
#: and for longer ones; and bytes of shared memory for rows that are on their way.
_SHORT, _LONG, _LONG_F64, _AHEAD_BYTES = (256, 16), (512, 16), (512, 8), 65536


@functools.lru_cache(maxsize=None)
def norm_backward_kernel(kind: str, x: str, weight: str, threads: int, each: int) -> KernelDef:
    """kind: layer_norm or rms_norm."""
    sums = [writes("weight_sums"), writes("bias_sums", optional=True)]
    numbers = [symbol(n) for n in ("rows", "n", "grad_row", "x_row", "out_row")]
    params = [reads("grad"), reads("x"), reads("weight"), writes("out"), *sums, *numbers, scalar("epsilon", "f64")]
    row_bytes = threads * each * 2 * DTYPE_SIZES[x]
    ahead = min(_AHEAD_BYTES // row_bytes, 2)
    tags = {"KIND": "RMS" if kind == "rms_norm" else "LAYER", "X_TAG": x, "W_TAG": weight, "THREADS": str(threads), "EACH": str(each)}
    return make_kernel(
        f"{kind}_backward_{x}_{weight}_{threads}", kind + "_backward", "norm_backward.cu", params, lambda v: (norm_blocks(v["rows"], v["n"]), 1, 1),
        (threads, 1, 1), row_bytes * ahead, FLAGS, ROWS_AHEAD=str(ahead), **tags,
    )  # fmt: skip


def norm_blocks(rows: Any, n: Any) -> Any:
    """As many as rows keep busy, which a block has side by side where they are short."""
    threads, each = _SHORT
    warps = threads // 32
    return ex.maximum(ex.minimum(ex.ceildiv(rows * row_warps(ex.ceildiv(n, 32 * each), warps), warps), BLOCKS), 1)


def _norm_backward(op: Op, operands: select.Specs, results: select.Specs) -> select.Lowering:
    """As on hosts: blocks of rows first, each with its sums for the weights; then those are added
    up."""
    grad, x, weight = operands
    kind = "rms_norm" if op.name == "accrt.rms_norm_backward" else "layer_norm"
    made, _sums = host.lower_norm_backward(kind, grad, x, weight, results[0], op.attrs["eps"])
    n, values = x.shape[-1], {k: v for k, v in made.values.items() if k != "group"}
    sums = TensorType("f64" if x.dtype == "f64" else "f32", (norm_blocks(values["rows"], n), n))
    ways = (_LONG_F64, _LONG_F64) if x.dtype == "f64" else (_SHORT, _LONG)
    short, long = (launch(norm_backward_kernel(kind, x.dtype, weight.dtype, *way), made.buffers, values) for way in ways)
    fits = at_most(n, _SHORT[0] * _SHORT[1])
    first = (short if fits else long) if ex.is_static(fits) else long if short == long else dataclasses.replace(long, alternatives=((fits, short),))
    bindings: Dict[str, select.Binding] = {"grad": ("in", 0), "x": ("in", 1), "weight": ("in", 2), "out": select.OUT, "weight_sums": ("temporary", 0)}
    if len(results) == 3:
        bindings["bias_sums"] = ("temporary", 1)
    last = []
    for at, spec in enumerate(results[1:]):
        added = tensor_ops.lower_reduce("sum", select.contiguous(sums), spec, [0], at_once=True)
        last.append(select.Lowering(added.launch, {"x": ("temporary", at), "out": ("out", at + 1)}))
    return select.Lowering(last[-1].launch, last[-1].bindings, (select.Lowering(first, bindings), *last[:-1]), (sums,) * len(last))


select.rule("accrt.rms_norm_backward", "cuda")(_norm_backward)
select.rule("accrt.layer_norm_backward", "cuda")(_norm_backward)


@functools.lru_cache(maxsize=None)
def softmax_backward_kernel(x: str) -> KernelDef:
    params = [reads("grad"), reads("result"), writes("out")] + [symbol(n) for n in ("rows", "n", "grad_row", "result_row", "out_row")] + [scalar("scale", "f64")]
    return make_kernel(f"softmax_backward_{x}", "softmax_backward", "softmax_backward.cu", params, softmax_grid(x), flags=FLAGS, X_TAG=x)


@select.rule("accrt.softmax_backward", "cuda")
def _softmax_backward(op: Op, operands: select.Specs, results: select.Specs) -> select.Lowering:
    if ops.axis_of(op.attrs["dim"], operands[0].rank) != operands[0].rank - 1:
        raise ValueError("softmax_backward: kernels take the last dimension")
    made = host.lower_softmax_backward(operands[0], operands[1], results[0], op.attrs["scale"])
    return select.named(launch(softmax_backward_kernel(operands[0].dtype), made.buffers, made.values), grad=("in", 0), result=("in", 1), out=select.OUT)
