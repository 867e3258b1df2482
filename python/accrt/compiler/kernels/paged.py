"""Records of attention over keys and values in pages (paged_attention.c, paged_join.c)."""

from __future__ import annotations

import functools
import math
from typing import Any, Mapping, Optional, Tuple

from . import expr as ex
from .kerneldef import CSource, KernelDef, Launch, TensorSpec, launch, layout, reads, scalar, symbol, writes
from .matmul import PANEL, require_contiguous_last

UNIT = 256
#: A workgroup with heads of so many elements needs half a megabyte of scratch memory.
MAX_HEAD = 512
_PART_HEAD = 16
_ROWS = 64
_SLICE = 32
#: Workgroups that units of a block are shared out to: so many that the keys and values of all heads
#: of a unit stay in the cache.
SHARES = 256
#: With more tokens, or more floats of parts, a workgroup goes through all units of its block: parts
#: cost a twentieth of the time.
TOKENS = 128
PARTS = 8 << 20
_SIZES = ("tokens", "rows", "group", "kv_heads", "value_size", "window", "units")


def part_floats(value_size: int) -> int:
    """Floats of one unit's part of a query."""
    return _PART_HEAD + ex.ceildiv(value_size, 16) * 16


def window_of(window: Optional[int], chunk: Optional[int]) -> int:
    """What kernels take: 0 for neither, a chunk as a number below 0."""
    return window or -(chunk or 0)


@functools.lru_cache(maxsize=None)
def attention_kernel(q: str, kv: str, head: int, group: int, shared: bool) -> KernelDef:
    """`head`: head size rounded up to a panel; `group`: rows of one token at least, else any.
    `shared`: units are shared out, and their parts stored."""
    rows = max(_ROWS, group)
    names = "head_size block_tokens pages page_size table_rows table_pages q_token q_head out_token out_head".split()
    params = layout(
        [reads("q"), reads("k"), reads("v"), reads("table"), reads("row_ids"), reads("row_starts"), reads("kv_lengths")]
        + [reads("sinks", optional=True), writes("out", optional=True), writes("partial", optional=True)]
        + [symbol(name) for name in (*_SIZES, *names)]
        + [scalar("scale", "f32"), scalar("soft_cap", "f32")]
    )
    floats = rows * (head + 16) + _SLICE * head + rows * (UNIT + 16) + 2 * rows * head + 8 * rows
    name = f"paged_attention_{q}_{kv}_h{head}_r{rows}" + ("_shared" if shared else "")
    defines = (("Q_TAG", q), ("KV_TAG", kv), ("HEAD", str(head)), ("ROWS", str(rows)), ("ENTRY", "accrt_" + name))

    def grid(v: Mapping[str, Any]) -> Tuple[Any, Any, Any]:
        blocks = ex.minimum(v["tokens"], v["tokens"] // v["block_tokens"] + v["rows"])
        shares = ex.minimum(v["units"], ex.ceildiv(SHARES, v["kv_heads"])) if shared else 1
        return (v["kv_heads"], ex.maximum(blocks, 1), ex.maximum(shares, 1))

    producer = CSource("paged_attention.c", defines=defines, struct="paged_attention_params_t")
    return KernelDef(name, "paged_attention", producer, params, grid, local_memory_bytes=4 * floats)


@functools.lru_cache(maxsize=None)
def join_kernel(q: str, head: int) -> KernelDef:
    params = layout(
        [reads("partial"), reads("row_starts"), reads("kv_lengths"), reads("sinks", optional=True), writes("out")]
        + [symbol(name) for name in (*_SIZES, "out_token", "out_head")]
    )
    name = f"paged_join_{q}_h{head}"
    producer = CSource("paged_join.c", defines=(("Q_TAG", q), ("HEAD", str(head)), ("ENTRY", "accrt_" + name)), struct="paged_join_params_t")
    return KernelDef(name, "paged_attention", producer, params, lambda v: (ex.maximum(v["tokens"], 1), 1, 1))


def lower_paged_attention(
    q: TensorSpec, k: TensorSpec, v: TensorSpec, table: TensorSpec, rows: Any, out: TensorSpec, *, scale: Optional[float],
    window: Optional[int], soft_cap: Optional[float], shared: bool, sinks: bool = False, chunk: Optional[int] = None,
) -> Tuple[Launch, ...]:  # fmt: skip
    """Attention of [tokens, heads, size] over states k and v [pages, page_size, kv_heads, size].
    One launch, or (`shared`) one that stores parts and one that joins them. Operands: q, k, v,
    table, row_ids, row_starts, kv_lengths, sinks where there are any, out, partial."""
    require_contiguous_last(q, "q")
    require_contiguous_last(out, "out")
    (tokens, heads, size), value_size = q.shape, v.shape[3]
    pages, page_size, kv_heads = k.shape[:3]
    if max(size, value_size) > MAX_HEAD:
        raise ValueError(f"paged attention: head size {max(size, value_size)}, at most {MAX_HEAD} is possible")
    head, group = ex.ceildiv(max(size, value_size), PANEL) * PANEL, heads // kv_heads
    sizes = {
        "tokens": tokens, "rows": rows, "group": group, "kv_heads": kv_heads, "value_size": value_size, "window": window_of(window, chunk),
        "units": ex.ceildiv(table.shape[1] * page_size, UNIT),
    }  # fmt: skip
    placed = {"out_token": out.strides[0], "out_head": out.strides[1]}
    values = {
        **sizes, **placed, "head_size": size, "block_tokens": max(1, _ROWS // group), "pages": pages, "page_size": page_size,
        "table_rows": table.shape[0], "table_pages": table.shape[1], "q_token": q.strides[0], "q_head": q.strides[1],
        "scale": 1.0 / math.sqrt(size) if scale is None else float(scale), "soft_cap": float(soft_cap or 0.0),
    }  # fmt: skip
    tensors = {name: name for name in ("q", "k", "v", "table", "row_ids", "row_starts", "kv_lengths")}
    kernel = attention_kernel(q.dtype, "e4m3" if k.dtype == "u8" else k.dtype, head, group, shared)
    last = {"out": "out", **({"sinks": "sinks"} if sinks else {})}
    if not shared:
        return (launch(kernel, {**tensors, **last}, values),)
    joined = {**{name: name for name in ("partial", "row_starts", "kv_lengths")}, **last}
    return launch(kernel, {**tensors, "partial": "partial"}, values), launch(join_kernel(q.dtype, head), joined, {**sizes, **placed})
