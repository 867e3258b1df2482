"""Records of low-rank products, an adapter for each token (lora_shrink.c, lora_expand.c)."""

from __future__ import annotations

import functools
from typing import Any, Mapping, Tuple

from . import expr as ex
from .kerneldef import CSource, KernelDef, Launch, TensorSpec, launch, layout, reads, symbol, writes
from .matmul import require_contiguous_last

FLOATS = ("f32", "f16", "bf16")
_ROWS, _COLUMNS, _TOKENS = 4, 1024, 16
SHRINK = ("tokens", "adapters", "rank", "size", "x_row", "index_step")
EXPAND = ("tokens", "adapters", "rank", "size", "y_row", "out_row", "shrunk_row", "index_step")


def shrink_params() -> list:
    return [reads("x"), reads("factors"), reads("index"), writes("out")] + [symbol(name) for name in SHRINK]


def expand_params() -> list:
    return [reads("y"), reads("shrunk"), reads("factors"), reads("index"), writes("out")] + [symbol(name) for name in EXPAND]


def shrink_values(x: TensorSpec, factors: TensorSpec, index: TensorSpec) -> Mapping[str, Any]:
    require_contiguous_last(x, "x")
    adapters, rank, size = factors.shape
    return {"tokens": x.shape[0], "adapters": adapters, "rank": rank, "size": size, "x_row": x.strides[0], "index_step": index.strides[0]}


def expand_values(y: TensorSpec, shrunk: TensorSpec, factors: TensorSpec, index: TensorSpec, out: TensorSpec) -> Mapping[str, Any]:
    for spec, what in ((y, "y"), (shrunk, "shrunk"), (out, "out")):
        require_contiguous_last(spec, what)
    adapters, rank, size = factors.shape
    return {
        "tokens": y.shape[0], "adapters": adapters, "rank": rank, "size": size, "y_row": y.strides[0], "out_row": out.strides[0],
        "shrunk_row": shrunk.strides[0], "index_step": index.strides[0],
    }  # fmt: skip


def _grid(pieces: str, width: int) -> Any:
    def grid(v: Mapping[str, Any]) -> Tuple[Any, Any, Any]:
        return (ex.maximum(ex.ceildiv(v["tokens"], _TOKENS), 1), ex.maximum(ex.ceildiv(v[pieces], width), 1), 1)

    return grid


@functools.lru_cache(maxsize=None)
def shrink_kernel(x: str, factors: str) -> KernelDef:
    name = f"lora_shrink_{x}_{factors}"
    producer = CSource("lora_shrink.c", defines=(("X_TAG", x), ("F_TAG", factors), ("ENTRY", "accrt_" + name)), struct="lora_shrink_params_t")
    return KernelDef(name, "lora_shrink", producer, layout(shrink_params()), _grid("rank", _ROWS))


@functools.lru_cache(maxsize=None)
def expand_kernel(y: str, factors: str) -> KernelDef:
    name = f"lora_expand_{y}_{factors}"
    producer = CSource("lora_expand.c", defines=(("Y_TAG", y), ("F_TAG", factors), ("ENTRY", "accrt_" + name)), struct="lora_expand_params_t")
    return KernelDef(name, "lora_expand", producer, layout(expand_params()), _grid("size", _COLUMNS))


def lower_shrink(x: TensorSpec, factors: TensorSpec, index: TensorSpec) -> Launch:
    """Operands: x, factors, index, out, which is contiguous."""
    buffers = {name: name for name in ("x", "factors", "index", "out")}
    return launch(shrink_kernel(x.dtype, factors.dtype), buffers, shrink_values(x, factors, index))


def lower_expand(y: TensorSpec, shrunk: TensorSpec, factors: TensorSpec, index: TensorSpec, out: TensorSpec) -> Launch:
    """Operands: y, shrunk, factors, index, out, which may be the memory of y."""
    buffers = {name: name for name in ("y", "shrunk", "factors", "index", "out")}
    return launch(expand_kernel(y.dtype, factors.dtype), buffers, expand_values(y, shrunk, factors, index, out))
