"""Records of scaled-dot-product attention (attention.cuh): on the tensor cores for 16-bit types, with a kernel of its own for few
rows (decoding), and a plain one for all else."""

from __future__ import annotations

import functools
from typing import Any, Mapping, Tuple

from .. import select
from ..ir import Op
from ..kernels import attention as host_attention
from ..kernels import expr as ex
from ..kernels.kerneldef import CudaSource, CudaVariant, KernelDef, TensorSpec, launch, layout, reads, scalar, symbol, writes
from .norms import FLAGS, FLOATS, TRAITS, TYPES, entry_kernel

_NAMES = (
    "q_len kv_len group head_size value_size q_batch q_head q_row k_batch k_head k_row v_batch v_head v_row "
    "out_batch out_head out_row mask_batch mask_head mask_row mask_key causal causal_offset"
).split()
_KEYS = 64
_FEW_ROWS, _FEW_KEYS, _FEW_WARPS = 16, 32, 4
_CLUSTER = 8
_ANY_WARPS = 4
MASKS = ("bool", "f32", "f16", "bf16")


def _params() -> Any:
    buffers = [reads("q"), reads("k"), reads("v"), reads("mask", optional=True), writes("out")]
    return buffers + [symbol(name) for name in _NAMES] + [scalar("scale", "f32")]


def _pitch_bytes(head: int) -> int:
    return 2 * (128 if head == 96 else head)


def _row_grid(rows: int) -> Any:
    def grid(v: Mapping[str, Any]) -> Tuple[Any, Any, Any]:
        return (ex.maximum(ex.ceildiv(v["group"] * v["q_len"], rows), 1), v["kv_heads"], ex.maximum(v["batch"], 1))

    return grid


@functools.lru_cache(maxsize=None)
def attention_kernel(dtype: str, mask: str, head: int, row_tiles: int, warps: int) -> KernelDef:
    """`head` is the head size rounded up to 32, 64, 96 or 128."""
    rows = 16 * row_tiles * warps
    shared = max(4 * _KEYS, rows) * _pitch_bytes(head) + 2 * _KEYS * 4
    name = f"attention_{dtype}_{mask}_h{head}_{rows}"
    arguments = (TYPES[dtype], TYPES[mask], head, row_tiles, warps)
    return entry_kernel(
        name, "scaled_dot_product_attention", "attention.cuh", "ACCRT_CUDA_ATTENTION", arguments, _params(), _row_grid(rows),
        warps * 32, local_memory_bytes=shared,
    )  # fmt: skip


@functools.lru_cache(maxsize=None)
def few_kernel(dtype: str, mask: str, head: int) -> KernelDef:
    """At most 16 rows for each key head. Where there are clusters, the eight blocks of one share the keys; else the first does
    all of it and the others leave at once."""
    shared = _FEW_WARPS * (2 if head > 64 else 3) * 2 * _FEW_KEYS * _pitch_bytes(head)
    name = f"attention_few_{dtype}_{mask}_h{head}"
    entry = "accrt_" + name
    text = f"ACCRT_CUDA_ATTENTION_FEW({entry}, {TYPES[dtype]}, {TYPES[mask]}, {head})\n"
    source = CudaSource("attention.cuh", text=text, flags=FLAGS)
    threads = (_FEW_WARPS * 32, 1, 1)
    clustered = CudaVariant("sm_90", source, threads, cluster=(_CLUSTER, 1, 1), local_memory_bytes=shared, entry=entry)

    def grid(v: Mapping[str, Any]) -> Tuple[Any, Any, Any]:
        return (_CLUSTER, v["kv_heads"], ex.maximum(v["batch"], 1))

    return KernelDef(
        "cuda." + name, "scaled_dot_product_attention", source, layout(_params()), grid, entry=entry, family="cuda",
        block=threads, local_memory_bytes=shared, specials=(clustered,), traits=TRAITS,
    )  # fmt: skip


@functools.lru_cache(maxsize=None)
def any_kernel(q: str, kv: str, mask: str) -> KernelDef:
    name = f"attention_any_{q}_{kv}_{mask}"
    arguments = (TYPES[q], TYPES[kv], TYPES[mask])
    return entry_kernel(
        name, "scaled_dot_product_attention", "attention.cuh", "ACCRT_CUDA_ATTENTION_ANY", arguments, _params(),
        _row_grid(_ANY_WARPS), _ANY_WARPS * 32,
    )  # fmt: skip


def _choose(q: TensorSpec, k: TensorSpec, v: TensorSpec, mask: str) -> KernelDef:
    head, (rows, group) = max(q.shape[-1], v.shape[-1]), (q.shape[2], q.shape[1] // k.shape[1])
    if q.dtype != k.dtype or q.dtype not in ("f16", "bf16") or head > 128:
        return any_kernel(q.dtype, k.dtype, mask)
    padded = max(32, ex.ceildiv(head, 32) * 32)
    if ex.is_static(rows) and rows * group <= _FEW_ROWS:
        return few_kernel(q.dtype, mask, padded)
    return attention_kernel(q.dtype, mask, padded, 2 if padded <= 64 else 1, 4)


@select.rule("aten.scaled_dot_product_attention", "cuda", priority=10)
def _attention(op: Op, operands: select.Specs, results: select.Specs) -> select.Lowering:
    """The arguments are the host kernel's; another kernel takes them."""
    q, k, v, mask = operands
    at = op.attrs
    kinds = {s.dtype for s in (q, k, v, results[0])}
    if not kinds <= set(FLOATS) or (mask is not None and mask.dtype not in MASKS):
        raise ValueError(f"attention: kernels know f32, f16 and bf16, not {sorted(kinds)} with a mask of {mask and mask.dtype}")
    made = host_attention.lower_attention(
        q, k, v, results[0], mask, scale=at["scale"], causal=at["is_causal"], causal_offset=at["causal_offset"]
    )
    kernel = _choose(q, k, v, mask.dtype if mask is not None else "bool")
    present = {} if mask is None else {"mask": ("in", 3)}
    return select.named(
        launch(kernel, made.buffers, made.values), q=("in", 0), k=("in", 1), v=("in", 2), out=select.OUT, **present
    )
