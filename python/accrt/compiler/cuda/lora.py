"""Records of low-rank products, an adapter for each token (lora.cu). An index outside counts as
none here."""

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


#: Tokens of a piece, as lora.cu has it; with tiles four pieces are one where there are no more.
_PIECE = 64


def _tiles(*dtypes: str) -> bool:
    """Whether tensor cores multiply the types."""
    return "f32" not in dtypes


def _pieces(tokens: Any, tiles: bool) -> Any:
    return ex.maximum(ex.minimum(ex.ceildiv(tokens - 3 * _PIECE if tiles else tokens, _PIECE), 512), 1)


@functools.lru_cache(maxsize=None)
def shrink_kernel(x: str, factors: str) -> KernelDef:
    tiles = _tiles(x, factors) and x == factors
    warps = 16 if tiles else 8

    def grid(v: Mapping[str, Any]) -> Grid:
        return (v["adapters"] + 1, ex.maximum(ex.ceildiv(lora.shrunk_rows(v), warps), 1), _pieces(v["tokens"], tiles))

    name = f"lora_shrink_{x}_{factors}"
    tags = {"SHRINK": "1", "TILES": str(int(tiles)), "X_TAG": x, "F_TAG": factors}
    return make_kernel(name, "lora_shrink", "lora.cu", lora.shrink_params(), grid, (32 * warps, 1, 1), **tags)


@functools.lru_cache(maxsize=None)
def expand_kernel(y: str, factors: str) -> KernelDef:
    tiles = _tiles(y, factors)
    threads = 256 if tiles else 128

    def grid(v: Mapping[str, Any]) -> Grid:
        return (v["adapters"] + 1, ex.maximum(ex.ceildiv(lora.columns(v), 2 * threads), 1), _pieces(v["tokens"], tiles))

    name = f"lora_expand_{y}_{factors}"
    tags = {"SHRINK": "0", "TILES": str(int(tiles)), "X_TAG": y, "F_TAG": factors}
    return make_kernel(name, "lora_expand", "lora.cu", lora.expand_params(), grid, (threads, 1, 1), **tags)


def _lora_shrink(op: Op, operands: select.Specs, results: select.Specs) -> select.Lowering:
    select.require_plain(results[0])
    x, index = operands
    factors, bound = select.lora_states(op)
    made = launch(shrink_kernel(x.dtype, factors[0].dtype), lora.buffers(len(factors), "x"), lora.shrink_values(x, factors, index))
    return select.named(made, x=("in", 0), index=("in", 1), out=select.OUT, **bound)


def _lora_expand(op: Op, operands: select.Specs, results: select.Specs) -> select.Lowering:
    y, shrunk, index = operands
    factors, bound = select.lora_states(op)
    values = lora.expand_values(y, shrunk, factors, index, results[0])
    made = launch(expand_kernel(y.dtype, factors[0].dtype), lora.buffers(len(factors), "y", "shrunk"), values)
    return select.named(made, y=("in", 0), shrunk=("in", 1), index=("in", 2), out=select.OUT, **bound)


for _parts in ("", "2", "3"):
    select.rule("accrt.lora_shrink" + _parts, "cuda")(_lora_shrink)
    select.rule("accrt.lora_expand" + _parts, "cuda")(_lora_expand)
