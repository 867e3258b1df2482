"""Records of low-rank products, an adapter for each token: both halves of 16-bit types on tensor
cores (lora_tiles.cuh), others by lora.cu. An index outside counts as none here."""

from __future__ import annotations

import functools
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from .. import ops, select
from ..declared import TensorType
from ..ir import Op
from ..kernels import expr as ex
from ..kernels import lora
from ..kernels.kerneldef import KernelDef, Launch, launch, reads, symbol, writes
from ..kernels.matmul import require_contiguous_last
from ..ops.lora import RECORD_TOKENS
from .norms import TYPES, entry_kernel
from .tensor_ops import make_kernel

Grid = Tuple[Any, Any, Any]


#: Tokens of a piece, as lora.cu has it.
_PIECE = 64
#: As lora_tiles.cuh has them: threads of token_groups and of both halves, blocks that share k, and
#: columns of a block.
_SORT_THREADS, _SHRINK_THREADS, _EXPAND_THREADS, _SPLITS, _COLUMNS = 1024, 256, 128, 8, 256


def _pieces(tokens: Any) -> Any:
    return ex.maximum(ex.minimum(ex.ceildiv(tokens, _PIECE), 512), 1)


@functools.lru_cache(maxsize=None)
def shrink_kernel(x: str, factors: str) -> KernelDef:
    def grid(v: Mapping[str, Any]) -> Grid:
        return (v["adapters"] + 1, ex.maximum(ex.ceildiv(lora.shrunk_rows(v), 8), 1), _pieces(v["tokens"]))

    tags = {"SHRINK": "1", "X_TAG": x, "F_TAG": factors}
    return make_kernel(f"lora_shrink_{x}_{factors}", "lora_shrink", "lora.cu", lora.shrink_params(), grid, (256, 1, 1), **tags)


@functools.lru_cache(maxsize=None)
def expand_kernel(y: str, factors: str) -> KernelDef:
    def grid(v: Mapping[str, Any]) -> Grid:
        return (v["adapters"] + 1, ex.maximum(ex.ceildiv(lora.columns(v), 256), 1), _pieces(v["tokens"]))

    tags = {"SHRINK": "0", "X_TAG": y, "F_TAG": factors}
    return make_kernel(f"lora_expand_{y}_{factors}", "lora_expand", "lora.cu", lora.expand_params(), grid, (128, 1, 1), **tags)


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


# ---- Tokens sorted by adapter, and both halves ---------------------------------------------------


@functools.lru_cache(maxsize=None)
def groups_kernel() -> KernelDef:
    params = [reads("index"), writes("out")] + [symbol(name) for name in ("tokens", "adapters", "records", "index_step")]
    return entry_kernel(
        "token_groups", "token_groups", "lora_tiles.cuh", "ACCRT_CUDA_TOKEN_GROUPS", (), params, lambda v: (v["adapters"] + 1, 1, 1), _SORT_THREADS
    )  # fmt: skip


@select.rule("accrt.token_groups", "cuda")
def _token_groups(op: Op, operands: select.Specs, results: select.Specs) -> select.Lowering:
    select.require_plain(results[0])
    index, out = operands[0], results[0]
    values = {"tokens": index.shape[0], "adapters": op.attrs["adapters"], "records": out.shape[0], "index_step": index.strides[0]}
    return select.named(launch(groups_kernel(), {"index": "index", "out": "out"}, values), index=("in", 0), out=select.OUT)


def _factors() -> List[Any]:
    return [reads(name, optional=name != lora.FACTORS[0]) for name in lora.FACTORS]


@functools.lru_cache(maxsize=None)
def first_kernel(dtype: str, parts: int) -> KernelDef:
    def grid(v: Mapping[str, Any]) -> Grid:
        return (v["records"], _SPLITS, ex.maximum(ex.ceildiv(v["rank"], 16), 1))

    params = [reads("y"), reads("x"), *_factors(), reads("groups"), writes("out")] + [symbol(name) for name in ("records", "rank", "size", "x_row")]
    name, arguments = f"lora_first{parts}_{dtype}", (TYPES[dtype], parts)
    return entry_kernel(name, "lora_pair", "lora_tiles.cuh", "ACCRT_CUDA_LORA_SHRINK", arguments, params, grid, _SHRINK_THREADS)


@functools.lru_cache(maxsize=None)
def second_kernel(dtype: str, parts: int, gate: Optional[str]) -> KernelDef:
    def grid(v: Mapping[str, Any]) -> Grid:
        sizes = (v["size"],) if gate else (v["size"], v["size1"], v["size2"])
        return (v["records"], ex.maximum(sum(ex.ceildiv(size, _COLUMNS) for size in sizes), 1), 1)

    names = ("records", "rank", "size", "size1", "size2", "y_row", "out_row")
    params = [reads("y"), reads("shrunk"), *_factors(), reads("groups"), writes("out")] + [symbol(name) for name in names]
    name = f"lora_second{parts}_{dtype}" + (f"_{gate}" if gate else "")
    arguments = (TYPES[dtype], parts, str(bool(gate)).lower(), (gate or "none").upper())
    return entry_kernel(name, "lora_pair", "lora_tiles.cuh", "ACCRT_CUDA_LORA_EXPAND", arguments, params, grid, _EXPAND_THREADS)


def _half(kernel: KernelDef, names: Sequence[str], parts: int, values: Mapping[str, Any]) -> Launch:
    return launch(kernel, {name: name for name in (*names, *lora.FACTORS[:parts])}, values)


def _states(first: int, parts: int) -> Dict[str, select.Binding]:
    return {name: ("state", first + at) for at, name in enumerate(lora.FACTORS[:parts])}


def _lora_pair(op: Op, operands: select.Specs, results: select.Specs) -> select.Lowering:
    y, x, _index, groups = operands
    out = results[0]
    for spec, what in ((y, "y"), (x, "x"), (out, "out")):
        require_contiguous_last(spec, what)
    states = [select.contiguous(state.type) for state, _written in ops.states_of(op)]
    parts, records = len(states) // 2, groups.shape[0]
    _adapters, rank, size = states[0].shape
    shrunk = TensorType("f32", (records, _SPLITS, RECORD_TOKENS, parts * -(-rank // 16) * 16))
    first = _half(first_kernel(x.dtype, parts), ("y", "x", "groups", "out"), parts, {"records": records, "rank": rank, "size": size, "x_row": x.strides[0]})
    sizes: List[Any] = [spec.shape[2] for spec in states[parts:]] + [0, 0]
    values = {"records": records, "rank": rank, "size": sizes[0], "size1": sizes[1], "size2": sizes[2], "y_row": y.strides[0], "out_row": out.strides[0]}
    second = _half(second_kernel(y.dtype, parts, op.attrs["gate"]), ("y", "shrunk", "groups", "out"), parts, values)
    made = select.named(first, y=("in", 0), x=("in", 1), groups=("in", 3), out=("temporary", 0), **_states(0, parts))
    last = select.named(second, y=("in", 0), shrunk=("temporary", 0), groups=("in", 3), out=select.OUT, **_states(parts, parts))
    return select.Lowering(last.launch, last.bindings, (made,), (shrunk,))


for _parts in ("", "2", "3"):
    select.rule("accrt.lora_pair" + _parts, "cuda")(_lora_pair)
    select.rule("accrt.lora_shrink" + _parts, "cuda")(_lora_shrink)
    select.rule("accrt.lora_expand" + _parts, "cuda")(_lora_expand)
