"""Records of the gradients of norms and softmax."""

from __future__ import annotations

import functools
from typing import Any, Dict, Tuple

from . import expr as ex
from .kerneldef import CSource, KernelDef, Launch, TensorSpec, launch, layout, reads, scalar, symbol, writes
from .matmul import collapse_rows, require_contiguous_last
from .tensor_ops import row_grid

_FLOATS = ("f16", "bf16", "f32", "f64")
#: Elements that one workgroup goes through, and the least rows, so that its sums are few beside
#: them.
_GROUP, _LEAST_ROWS = 65536, 8


def group_rows(n: Any) -> Any:
    """Rows of `n` elements that one workgroup of a norm's gradient adds up."""
    if ex.is_static(n):
        return max(_LEAST_ROWS, _GROUP // max(n, 1))
    return ex.maximum(ex.ceildiv(_GROUP, ex.maximum(n, 1)), _LEAST_ROWS)


@functools.lru_cache(maxsize=None)
def norm_backward_kernel(kind: str, x: str, weight: str) -> KernelDef:
    """kind: layer_norm or rms_norm."""
    sums = [writes("weight_sums"), writes("bias_sums", optional=True)]
    params = layout(
        [reads("grad"), reads("x"), reads("weight"), writes("out"), *sums]
        + [symbol(n) for n in ("rows", "n", "grad_row", "x_row", "out_row", "group")]
        + [scalar("epsilon", "f64")]
    )
    name = f"{kind}_backward_{x}_{weight}"
    defines = (("X_TAG", x), ("W_TAG", weight), ("RMS", str(int(kind == "rms_norm"))), ("ENTRY", "accrt_" + name))
    producer = CSource("norm_backward.c", defines=defines, struct="norm_backward_params_t")
    return KernelDef(name, kind + "_backward", producer, params, lambda v: (ex.maximum(ex.ceildiv(v["rows"], v["group"]), 1), 1, 1))


def lower_norm_backward(kind: str, grad: TensorSpec, x: TensorSpec, weight: TensorSpec, out: TensorSpec, epsilon: float) -> Tuple[Launch, Tuple[Any, Any]]:
    """Gradients of layer_norm or rms_norm over the last axis, and the shape of the sums that are to
    be added up over their first axis. Operands: grad, x, weight, out, weight_sums and (layer_norm)
    bias_sums; out may be the memory of grad."""
    rows, strides = 1, {}
    for name, spec in (("grad", grad), ("x", x), ("out", out)):
        require_contiguous_last(spec, name)
        rows, strides[name + "_row"] = collapse_rows(spec, name)
    require_contiguous_last(weight, "weight")
    n, group = x.shape[-1], group_rows(x.shape[-1])
    values: Dict[str, Any] = {"rows": rows, "n": n, "group": group, "epsilon": epsilon, **strides}
    names = ("grad", "x", "weight", "out", "weight_sums", *(("bias_sums",) if kind == "layer_norm" else ()))
    made = launch(norm_backward_kernel(kind, x.dtype, weight.dtype), {name: name for name in names}, values)
    return made, (ex.ceildiv(rows, group), n)


@functools.lru_cache(maxsize=None)
def softmax_backward_kernel(x: str) -> KernelDef:
    params = layout([reads("grad"), reads("result"), writes("out")] + [symbol(n) for n in ("rows", "n", "grad_row", "result_row", "out_row")] + [scalar("scale", "f64")])
    name = f"softmax_backward_{x}"
    producer = CSource("softmax_backward.c", defines=(("X_TAG", x), ("ENTRY", "accrt_" + name)), struct="softmax_backward_params_t")
    return KernelDef(name, "softmax_backward", producer, params, row_grid("n", 8192))


def lower_softmax_backward(grad: TensorSpec, result: TensorSpec, out: TensorSpec, scale: float = 1.0) -> Launch:
    """The gradient of softmax over the last axis of scale times what it is of. Operands: grad,
    result, out; out may be the memory of grad."""
    if grad.dtype not in _FLOATS:
        raise ValueError(f"softmax_backward: type {grad.dtype}; a float type is needed")
    values: Dict[str, Any] = {"n": grad.shape[-1], "scale": scale}
    for name, spec in (("grad", grad), ("result", result), ("out", out)):
        require_contiguous_last(spec, name)
        values["rows"], values[name + "_row"] = collapse_rows(spec, name)
    return launch(softmax_backward_kernel(grad.dtype), {name: name for name in ("grad", "result", "out")}, values)
