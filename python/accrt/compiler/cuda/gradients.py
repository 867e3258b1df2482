"""Records of the gradients of norms and softmax (gradients.cu)."""

from __future__ import annotations

import functools
from typing import Any, Dict, Mapping, Tuple

from .. import ops, select
from ..declared import TensorType
from ..ir import Op
from ..kernels import expr as ex
from ..kernels import gradients as host
from ..kernels.kerneldef import KernelDef, launch, reads, scalar, symbol, writes
from . import tensor_ops
from .tensor_ops import make_kernel

#: Blocks that go through the rows of a norm: two for each multiprocessor of the largest GPUs.
BLOCKS = 264
#: Columns of a thread.
_EACH = (1, 4, 16, 32)
_THREADS = 256


@functools.lru_cache(maxsize=None)
def norm_backward_kernel(kind: str, x: str, weight: str, each: int, blocks: int) -> KernelDef:
    """kind: layer_norm or rms_norm."""
    sums = [writes("weight_sums"), writes("bias_sums", optional=True)]
    numbers = [symbol(n) for n in ("rows", "n", "grad_row", "x_row", "out_row")]
    params = [reads("grad"), reads("x"), reads("weight"), writes("out"), *sums, *numbers, scalar("epsilon", "f64")]
    tags = {"KIND": "RMS" if kind == "rms_norm" else "LAYER", "X_TAG": x, "W_TAG": weight, "EACH": str(each)}
    name = f"{kind}_backward_{x}_{weight}_{each}{'' if blocks == BLOCKS else f'_{blocks}'}"
    return make_kernel(name, kind + "_backward", "gradients.cu", params, lambda v: (blocks, 1, 1), **tags)


def _norm_backward(op: Op, operands: select.Specs, results: select.Specs) -> select.Lowering:
    """As on hosts: blocks of rows first, each with its sums for the weights; then those are added
    up."""
    grad, x, weight = operands
    kind = "rms_norm" if op.name == "accrt.rms_norm_backward" else "layer_norm"
    made, _sums = host.lower_norm_backward(kind, grad, x, weight, results[0], op.attrs["eps"])
    n, rows = x.shape[-1], made.values["rows"]
    if not ex.is_static(n) or not 0 < n <= _THREADS * _EACH[-1]:
        raise ValueError(f"{op.name}: rows of {n} elements; 1 to {_THREADS * _EACH[-1]} are possible")
    each = next(e for e in _EACH if n <= _THREADS * e)
    blocks = min(max(rows, 1), BLOCKS) if ex.is_static(rows) else BLOCKS
    sums = TensorType("f64" if x.dtype == "f64" else "f32", (blocks, n))
    first = launch(norm_backward_kernel(kind, x.dtype, weight.dtype, each, blocks), made.buffers, {k: v for k, v in made.values.items() if k != "group"})
    bindings: Dict[str, select.Binding] = {"grad": ("in", 0), "x": ("in", 1), "weight": ("in", 2), "out": select.OUT, "weight_sums": ("temporary", 0)}
    if len(results) == 3:
        bindings["bias_sums"] = ("temporary", 1)
    last = []
    for at, spec in enumerate(results[1:]):
        added = tensor_ops.lower_reduce("sum", select.contiguous(sums), spec, [0])
        last.append(select.Lowering(added.launch, {"x": ("temporary", at), "out": ("out", at + 1)}))
    return select.Lowering(last[-1].launch, last[-1].bindings, (select.Lowering(first, bindings), *last[:-1]), (sums,) * len(last))


select.rule("accrt.rms_norm_backward", "cuda")(_norm_backward)
select.rule("accrt.layer_norm_backward", "cuda")(_norm_backward)


@functools.lru_cache(maxsize=None)
def softmax_backward_kernel(x: str) -> KernelDef:
    def grid(v: Mapping[str, Any]) -> Tuple[Any, Any, Any]:
        return (ex.maximum(ex.minimum(v["rows"], 1 << 20), 1), 1, 1)

    params = [reads("grad"), reads("result"), writes("out")] + [symbol(n) for n in ("rows", "n", "grad_row", "result_row", "out_row")]
    return make_kernel(f"softmax_backward_{x}", "softmax_backward", "gradients.cu", params, grid, KIND="SOFTMAX", X_TAG=x, W_TAG=x, EACH="1")


@select.rule("accrt.softmax_backward", "cuda")
def _softmax_backward(op: Op, operands: select.Specs, results: select.Specs) -> select.Lowering:
    if ops.axis_of(op.attrs["dim"], operands[0].rank) != operands[0].rank - 1:
        raise ValueError("softmax_backward: kernels take the last dimension")
    made = host.lower_softmax_backward(operands[0], operands[1], results[0])
    return select.named(launch(softmax_backward_kernel(operands[0].dtype), made.buffers, made.values), grad=("in", 0), result=("in", 1), out=select.OUT)
