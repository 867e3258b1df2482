"""Records of scaled-dot-product attention (attention.cuh): on the tensor cores for 16-bit types,
with a kernel of its own for few rows (decoding), and a plain one for all else."""

from __future__ import annotations

import functools
from typing import Any, List, Mapping, Tuple

from .. import ops, select
from ..ir import Op
from ..kernels import attention as host_attention
from ..kernels import expr as ex
from ..kernels.kerneldef import CudaSource, CudaVariant, KernelDef, TensorSpec, launch, layout, reads, scalar, symbol, writes
from .norms import FLAGS, FLOATS, TRAITS, TYPES, entry_kernel
from .products import at_most, resolved

_NAMES = (
    "q_len kv_len group head_size value_size q_batch q_head q_row k_batch k_head k_row v_batch v_head v_row "
    "out_batch out_head out_row mask_batch mask_head mask_row mask_key causal causal_offset first_offset"
).split()
_FEW_ROWS, _FEW_STAGES = 16, 2
_CLUSTER = 8
#: Key heads (times batch) up to which a cluster shares the keys of one: with more, a block each
#: keeps the machine busy.
_FEW_HEADS = 64
#: Row tiles and warps by head size, which is rounded up to one of these.
_TILES = {
    32: (1, 4), 48: (2, 4), 64: (2, 4), 80: (1, 4), 96: (1, 4), 128: (1, 4), 160: (1, 4), 192: (1, 4), 256: (1, 4),
}  # fmt: skip
_ANY_WARPS = 4
MASKS = ("bool", "f32", "f16", "bf16")
#: What names of kernels end with that begin with the first key of a window.
_WINDOW = "_window"


def _params() -> Any:
    buffers = [reads("q"), reads("k"), reads("v"), reads("mask", optional=True), writes("out")]
    return buffers + [symbol(name) for name in _NAMES] + [scalar("scale", "f32")]


def _pitch_bytes(head: int) -> int:
    return 2 * (128 if head == 96 else head if head == 32 or head % 64 == 0 else head + 8)


def _keys(head: int) -> int:
    return 32 if head > 128 else 64


def _few_warps(head: int) -> int:
    return 2 if head > 128 else 4


def _row_grid(rows: int) -> Any:
    def grid(v: Mapping[str, Any]) -> Tuple[Any, Any, Any]:
        return (ex.maximum(ex.ceildiv(v["group"] * v["q_len"], rows), 1), v["kv_heads"], ex.maximum(v["batch"], 1))

    return grid


@functools.lru_cache(maxsize=None)
def attention_kernel(dtype: str, mask: str, head: int, row_tiles: int, warps: int, window: bool) -> KernelDef:
    """`head` is one of _TILES."""
    rows = 16 * row_tiles * warps
    shared = (4 * _keys(head) + rows) * _pitch_bytes(head) + 2 * _keys(head) * 4
    name = f"attention_{dtype}_{mask}_h{head}_{rows}{_WINDOW * window}"
    arguments = (TYPES[dtype], TYPES[mask], head, row_tiles, warps, int(window))
    return entry_kernel(
        name, "scaled_dot_product_attention", "attention.cuh", "ACCRT_CUDA_ATTENTION", arguments, _params(), _row_grid(rows),
        warps * 32, local_memory_bytes=shared,
    )  # fmt: skip


@functools.lru_cache(maxsize=None)
def few_kernel(dtype: str, mask: str, head: int, shared_keys: bool, window: bool) -> KernelDef:
    """At most 16 rows for each key head. With `shared_keys` the eight blocks of a cluster share the
    keys where there are clusters; else the first does all of it and the others leave at once."""
    shared = _few_warps(head) * _FEW_STAGES * 2 * (16 if head > 64 else 32) * _pitch_bytes(head)
    name = f"attention_few_{dtype}_{mask}_h{head}{'' if shared_keys else '_alone'}{_WINDOW * window}"
    entry = "accrt_" + name
    text = f"ACCRT_CUDA_ATTENTION_FEW({entry}, {TYPES[dtype]}, {TYPES[mask]}, {head}, {int(window)})\n"
    source = CudaSource("attention.cuh", text=text, flags=FLAGS)
    threads = (_few_warps(head) * 32, 1, 1)
    clustered = CudaVariant("sm_90", source, threads, cluster=(_CLUSTER, 1, 1), local_memory_bytes=shared, entry=entry)

    def grid(v: Mapping[str, Any]) -> Tuple[Any, Any, Any]:
        return (_CLUSTER if shared_keys else 1, v["kv_heads"], ex.maximum(v["batch"], 1))

    return KernelDef(
        "cuda." + name, "scaled_dot_product_attention", source, layout(_params()), grid, entry=entry, family="cuda",
        block=threads, local_memory_bytes=shared, specials=(clustered,) if shared_keys else (), traits=TRAITS,
    )  # fmt: skip


@functools.lru_cache(maxsize=None)
def any_kernel(q: str, kv: str, mask: str, window: bool) -> KernelDef:
    name = f"attention_any_{q}_{kv}_{mask}{_WINDOW * window}"
    arguments = (TYPES[q], TYPES[kv], TYPES[mask], int(window))
    return entry_kernel(
        name, "scaled_dot_product_attention", "attention.cuh", "ACCRT_CUDA_ATTENTION_ANY", arguments, _params(),
        _row_grid(_ANY_WARPS), _ANY_WARPS * 32,
    )  # fmt: skip


def _options(q: TensorSpec, k: TensorSpec, v: TensorSpec, mask: str, window: bool) -> List[Tuple[Any, KernelDef]]:
    """Kernels and the conditions for them; the last has none."""
    head, rows = max(q.shape[-1], v.shape[-1]), q.shape[2] * (q.shape[1] // k.shape[1])
    if q.dtype != k.dtype or q.dtype not in ("f16", "bf16") or head > max(_TILES):
        return [(1, any_kernel(q.dtype, k.dtype, mask, window))]
    padded = min(size for size in _TILES if size >= head)
    if ex.is_static(rows) and rows <= _FEW_ROWS:
        padded = min(size for size in _TILES if size >= head and size % 32 == 0)
        few = at_most(q.shape[0] * k.shape[1], _FEW_HEADS)
        return [(few, few_kernel(q.dtype, mask, padded, True, window)), (1, few_kernel(q.dtype, mask, padded, False, window))]
    options = [(1, attention_kernel(q.dtype, mask, padded, *_TILES[padded], window))]
    if _TILES[padded] != (1, 4):
        options.insert(0, (at_most(rows, 64), attention_kernel(q.dtype, mask, padded, 1, 4, window)))
    return options


@select.rule("aten.scaled_dot_product_attention", "cuda", priority=10)
def _attention(op: Op, operands: select.Specs, results: select.Specs) -> select.Lowering:
    """The arguments are the host kernel's; another kernel takes them."""
    q, k, v, mask = operands
    at = op.attrs
    kinds = {s.dtype for s in (q, k, v, results[0])}
    if not kinds <= set(FLOATS) or (mask is not None and mask.dtype not in MASKS):
        raise ValueError(f"attention: kernels know f32, f16 and bf16, not {sorted(kinds)} with a mask of {mask and mask.dtype}")
    made = host_attention.lower_attention(
        q, k, v, results[0], mask, scale=at["scale"], causal=at["is_causal"], causal_offset=ops.causal_offset(op),
        first_offset=at["first_offset"],
    )  # fmt: skip
    options = _options(q, k, v, mask.dtype if mask is not None else "bool", at["first_offset"] is not None)
    chosen = resolved([(condition, launch(kernel, made.buffers, made.values)) for condition, kernel in options])
    present = {} if mask is None else {"mask": ("in", 3)}
    return select.named(chosen, q=("in", 0), k=("in", 1), v=("in", 2), out=select.OUT, **present)
