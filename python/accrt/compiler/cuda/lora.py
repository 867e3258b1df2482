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


#: Tokens that a block takes at once, as lora.cu has them.
_SHRINK_TOKENS, _EXPAND_TOKENS = 4, 8


def _shares(tokens: Any, each: int) -> Any:
    """Blocks that share the tokens of one adapter: a block goes on with others when it has done its
    own."""
    return ex.maximum(ex.minimum(ex.ceildiv(tokens, 8 * each), 8), 1)


@functools.lru_cache(maxsize=None)
def shrink_kernel(x: str, factors: str) -> KernelDef:
    def grid(v: Mapping[str, Any]) -> Grid:
        return (v["adapters"] + 1, ex.maximum(ex.ceildiv(lora.shrunk_rows(v), 8), 1), _shares(v["tokens"], _SHRINK_TOKENS))

    name = f"lora_shrink_{x}_{factors}"
    return make_kernel(name, "lora_shrink", "lora.cu", lora.shrink_params(), grid, SHRINK="1", X_TAG=x, F_TAG=factors)


@functools.lru_cache(maxsize=None)
def expand_kernel(y: str, factors: str) -> KernelDef:
    def grid(v: Mapping[str, Any]) -> Grid:
        return (v["adapters"] + 1, ex.maximum(ex.ceildiv(lora.columns(v), 256), 1), _shares(v["tokens"], _EXPAND_TOKENS))

    name = f"lora_expand_{y}_{factors}"
    return make_kernel(name, "lora_expand", "lora.cu", lora.expand_params(), grid, (128, 1, 1), SHRINK="0", X_TAG=y, F_TAG=factors)


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
