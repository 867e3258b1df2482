"""Records of the CUDA kernels that read quantized weights: rows of any layout as floats (dequantize.cu)."""

from __future__ import annotations

import functools
from typing import Any, Mapping, Optional, Tuple

from .. import select
from ..ir import Op
from ..kernels import expr as ex
from ..kernels import packed as host
from ..kernels.kerneldef import KernelDef, Launch, TensorSpec, launch
from ..packing import Form
from .tensor_ops import make_kernel

_ROW_BLOCKS = 1 << 16


def packed_bytes(form: Form) -> Optional[int]:
    """Size of the packed form that products of few rows read; None where there is none."""
    return None


@functools.lru_cache(maxsize=None)
def _dequantize_kernel(layout_name: str, layout_id: int, scales: str, out: str, index: str) -> KernelDef:
    def grid(v: Mapping[str, Any]) -> Tuple[Any, Any, Any]:
        return (ex.maximum(ex.minimum(ex.ceildiv(v["rows"] * v["k"], 1024), _ROW_BLOCKS), 1), 1, 1)

    name = f"dequantize_{layout_name}_{scales}_{out}_{index}"
    tags = {"LAYOUT": str(layout_id), "S_TAG": scales, "OUT_TAG": out, "INDEX_TAG": index}
    return make_kernel(name, "dequantize", "dequantize.cu", host.dequantize_params(), grid, **tags)


def lower_dequantize(form: Form, out: TensorSpec, index: Optional[TensorSpec] = None) -> Launch:
    """All rows as floats, or those that `index` picks. Operands: the components by role, index, out."""
    rows: Any = form.n
    if index is not None:
        rows = 1
        for size in index.shape:
            rows = rows * size
    kernel = _dequantize_kernel(form.layout, form.layout_id, host.scale_type(form), out.dtype, index.dtype if index is not None else "i32")
    buffers = {role: role for role in host.DEQUANTIZE_ROLES if form.has(role)}
    buffers.update({"index": "index"} if index is not None else {})
    return launch(kernel, {**buffers, "out": "out"}, host.dequantize_values(form, rows))


@select.rule("accrt.dequantize", "cuda")
def _dequantize(op: Op, operands: select.Specs, results: select.Specs) -> select.Lowering:
    select.require_plain(results[0])
    return select.named(lower_dequantize(op.attrs["form"], results[0]), **select.roles_of(op), out=select.OUT)


@select.rule("accrt.embedding_quantized", "cuda")
def _embedding(op: Op, operands: select.Specs, results: select.Specs) -> select.Lowering:
    index = operands[-1]
    if index.dtype not in host.INDICES:
        raise ValueError(f"embedding: indices of {index.dtype}")
    for spec in (index, results[0]):
        select.require_plain(spec)
    made = lower_dequantize(op.attrs["form"], results[0], index)
    return select.named(made, **select.roles_of(op), index=("in", len(operands) - 1), out=select.OUT)
