"""Records of low-rank products, an adapter for each token (lora.cu). An index outside counts as none here."""

from __future__ import annotations

import functools
from typing import Any, Mapping, Tuple

from .. import select
from ..ir import Op
from ..kernels import expr as ex
from ..kernels import lora
from ..kernels.kerneldef import KernelDef, launch
from .tensor_ops import make_kernel

Grid = Tuple[Any, Any, Any]


@functools.lru_cache(maxsize=None)
def shrink_kernel(x: str, factors: str) -> KernelDef:
    def grid(v: Mapping[str, Any]) -> Grid:
        return (ex.maximum(v["tokens"], 1), ex.maximum(ex.ceildiv(v["rank"], 8), 1), 1)

    name = f"lora_shrink_{x}_{factors}"
    return make_kernel(name, "lora_shrink", "lora.cu", lora.shrink_params(), grid, SHRINK="1", X_TAG=x, F_TAG=factors)


@functools.lru_cache(maxsize=None)
def expand_kernel(y: str, factors: str) -> KernelDef:
    def grid(v: Mapping[str, Any]) -> Grid:
        return (ex.maximum(v["tokens"], 1), ex.maximum(ex.ceildiv(v["size"], 256), 1), 1)

    name = f"lora_expand_{y}_{factors}"
    return make_kernel(name, "lora_expand", "lora.cu", lora.expand_params(), grid, (128, 1, 1), SHRINK="0", X_TAG=y, F_TAG=factors)


@select.rule("accrt.lora_shrink", "cuda")
def _lora_shrink(op: Op, operands: select.Specs, results: select.Specs) -> select.Lowering:
    select.require_plain(results[0])
    x, index = operands
    factors = select.contiguous(op.attrs["factors"].type)
    values = lora.shrink_values(x, factors, index)
    made = launch(shrink_kernel(x.dtype, factors.dtype), {name: name for name in ("x", "factors", "index", "out")}, values)
    return select.named(made, x=("in", 0), index=("in", 1), factors=("state", 0), out=select.OUT)


@select.rule("accrt.lora_expand", "cuda")
def _lora_expand(op: Op, operands: select.Specs, results: select.Specs) -> select.Lowering:
    y, shrunk, index = operands
    factors = select.contiguous(op.attrs["factors"].type)
    values = lora.expand_values(y, shrunk, factors, index, results[0])
    buffers = {name: name for name in ("y", "shrunk", "factors", "index", "out")}
    made = launch(expand_kernel(y.dtype, factors.dtype), buffers, values)
    return select.named(made, y=("in", 0), shrunk=("in", 1), index=("in", 2), factors=("state", 0), out=select.OUT)
