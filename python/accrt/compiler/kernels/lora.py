"""Records of low-rank products, an adapter for each token (lora_shrink.c, lora_expand.c)."""

from __future__ import annotations

import functools
from typing import Any, Callable, Mapping, Sequence, Tuple

from . import expr as ex
from .kerneldef import CSource, KernelDef, Launch, TensorSpec, launch, layout, reads, symbol, writes
from .matmul import require_contiguous_last

FLOATS = ("f32", "f16", "bf16")
_ROWS, _COLUMNS, _TOKENS = 4, 1024, 64
#: Buffers of the states of factors: one for each part, of three at most.
FACTORS = ("factors", "factors1", "factors2")
SHRINK = ("tokens", "adapters", "rank", "parts", "size", "x_row", "index_step")
EXPAND = ("tokens", "adapters", "rank", "size", "size1", "size2", "y_row", "out_row", "shrunk_row", "index_step")


def _factor_params() -> list:
    return [reads(name, optional=name != FACTORS[0]) for name in FACTORS]


def shrink_params() -> list:
    return [reads("x"), *_factor_params(), reads("index"), writes("out")] + [symbol(name) for name in SHRINK]


def expand_params() -> list:
    return [reads("y"), reads("shrunk"), *_factor_params(), reads("index"), writes("out")] + [symbol(name) for name in EXPAND]


def buffers(count: int, *others: str) -> Mapping[str, str]:
    """Operands of a launch with so many states of factors."""
    return {name: name for name in (*FACTORS[:count], "index", "out", *others)}


def shrink_values(x: TensorSpec, factors: Sequence[TensorSpec], index: TensorSpec) -> Mapping[str, Any]:
    require_contiguous_last(x, "x")
    adapters, rank, size = factors[0].shape
    return {
        "tokens": x.shape[0], "adapters": adapters, "rank": rank, "parts": len(factors), "size": size, "x_row": x.strides[0],
        "index_step": index.strides[0],
    }  # fmt: skip


def expand_values(y: TensorSpec, shrunk: TensorSpec, factors: Sequence[TensorSpec], index: TensorSpec, out: TensorSpec) -> Mapping[str, Any]:
    for spec, what in ((y, "y"), (shrunk, "shrunk"), (out, "out")):
        require_contiguous_last(spec, what)
    adapters, rank, _size = factors[0].shape
    sizes = [spec.shape[2] for spec in factors] + [0, 0]
    return {
        "tokens": y.shape[0], "adapters": adapters, "rank": rank, "size": sizes[0], "size1": sizes[1], "size2": sizes[2], "y_row": y.strides[0],
        "out_row": out.strides[0], "shrunk_row": shrunk.strides[0], "index_step": index.strides[0],
    }  # fmt: skip


def shrunk_rows(v: Mapping[str, Any]) -> Any:
    return v["parts"] * v["rank"]


def columns(v: Mapping[str, Any]) -> Any:
    return v["size"] + v["size1"] + v["size2"]


def _grid(pieces: Callable[[Mapping[str, Any]], Any], width: int) -> Any:
    def grid(v: Mapping[str, Any]) -> Tuple[Any, Any, Any]:
        return (ex.maximum(ex.ceildiv(v["tokens"], _TOKENS), 1), ex.maximum(ex.ceildiv(pieces(v), width), 1), 1)

    return grid


@functools.lru_cache(maxsize=None)
def shrink_kernel(x: str, factors: str) -> KernelDef:
    name = f"lora_shrink_{x}_{factors}"
    producer = CSource("lora_shrink.c", defines=(("X_TAG", x), ("F_TAG", factors), ("ENTRY", "accrt_" + name)), struct="lora_shrink_params_t")
    return KernelDef(name, "lora_shrink", producer, layout(shrink_params()), _grid(shrunk_rows, _ROWS))


@functools.lru_cache(maxsize=None)
def expand_kernel(y: str, factors: str) -> KernelDef:
    name = f"lora_expand_{y}_{factors}"
    producer = CSource("lora_expand.c", defines=(("Y_TAG", y), ("F_TAG", factors), ("ENTRY", "accrt_" + name)), struct="lora_expand_params_t")
    return KernelDef(name, "lora_expand", producer, layout(expand_params()), _grid(columns, _COLUMNS))


def lower_shrink(x: TensorSpec, factors: Sequence[TensorSpec], index: TensorSpec) -> Launch:
    """Operands: x, factors (and factors1, factors2), index, out, which is contiguous."""
    return launch(shrink_kernel(x.dtype, factors[0].dtype), buffers(len(factors), "x"), shrink_values(x, factors, index))


def lower_expand(y: TensorSpec, shrunk: TensorSpec, factors: Sequence[TensorSpec], index: TensorSpec, out: TensorSpec) -> Launch:
    """Operands: y, shrunk, factors (and factors1, factors2), index, out, which may be the memory of
    y."""
    return launch(expand_kernel(y.dtype, factors[0].dtype), buffers(len(factors), "y", "shrunk"), expand_values(y, shrunk, factors, index, out))
