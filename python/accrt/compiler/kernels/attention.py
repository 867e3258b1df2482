"""Records of scaled-dot-product attention (attention.c)."""

from __future__ import annotations

import functools
import math
from typing import Any, Dict, Mapping, Optional, Tuple

from . import expr as ex
from .kerneldef import CSource, KernelDef, Launch, TensorSpec, launch, layout, reads, scalar, symbol, writes
from .matmul import PANEL, require_contiguous_last

_BLOCK_ROWS = 14
MAX_HEAD = 256


def _block(head: int) -> Tuple[int, int]:
    """Rows and keys of a block: larger for small heads, so that staging the keys is shared by more
    rows."""
    return (128, 128) if head <= 64 else (64, 64)


@functools.lru_cache(maxsize=None)
def attention_kernel(q: str, kv: str, mask: str, head: int) -> KernelDef:
    """`head` is the head size rounded up to a panel."""
    rows, keys = _block(head)
    names = (
        "q_len kv_len group head_size value_size q_batch q_head q_row k_batch k_head k_row v_batch v_head v_row "
        "out_batch out_head out_row mask_batch mask_head mask_row mask_key causal causal_offset windowed first_offset batch"
    ).split()
    params = layout(
        [reads("q"), reads("k"), reads("v"), reads("mask", optional=True), writes("out")]
        + [symbol(name) for name in names]
        + [scalar("scale", "f32")]
    )
    floats = rows * (head + 16) + 2 * keys * head + rows * head + _BLOCK_ROWS * (keys + 16) + 8 * rows
    name = f"attention_{q}_{kv}_{mask}_h{head}"
    defines = (
        ("Q_TAG", q), ("KV_TAG", kv), ("MASK_TAG", mask), ("HEAD", str(head)), ("ROWS", str(rows)), ("KEYS", str(keys)),
        ("ENTRY", "accrt_" + name),
    )  # fmt: skip

    def grid(v: Mapping[str, Any]) -> Tuple[Any, Any, Any]:
        return (ex.maximum(ex.ceildiv(v["group"] * v["q_len"], rows), 1), v["kv_heads"], ex.maximum(v["batch"], 1))

    producer = CSource("attention.c", defines=defines, struct="attention_params_t")
    return KernelDef(name, "scaled_dot_product_attention", producer, params, grid, local_memory_bytes=4 * floats)


def lower_attention(
    q: TensorSpec,
    k: TensorSpec,
    v: TensorSpec,
    out: TensorSpec,
    mask: Optional[TensorSpec] = None,
    *,
    scale: Optional[float] = None,
    causal: bool = False,
    kv_len: Any = None,
    causal_offset: Any = None,
    first_offset: Any = None,
) -> Launch:
    """softmax(q k^T * scale + mask) v. Operands: q, k, v, mask, out.

    q [batch, heads, q_len, head], k and v [batch, kv_heads, capacity, head], out as q, with any
    strides but a contiguous last axis: [batch, length, heads, head] in memory is a spec with axes
    exchanged. `kv_len` is the live length (default: the capacity), a size or a symbol; causal lets
    query i see keys up to i + causal_offset (default kv_len - q_len), and first_offset those from
    i + first_offset on. mask broadcasts to [batch,
    heads, q_len, kv_len]: bool (true: seen) or float (added). Rows that see no key give zeros.
    """
    for spec, what in ((q, "q"), (k, "k"), (v, "v"), (out, "out")):
        require_contiguous_last(spec, what)
        if spec.rank != 4:
            raise ValueError(f"{what}: rank {spec.rank}, [batch, heads, length, size] is needed")
    batch, heads, q_len, head = q.shape
    kv_heads, live = k.shape[1], k.shape[2] if kv_len is None else kv_len
    sizes = (head, v.shape[-1], heads, kv_heads)
    if not all(ex.is_static(size) for size in sizes):
        raise ValueError(f"attention: head sizes and counts {sizes} must be known while compiling")
    padded = ex.ceildiv(max(head, v.shape[-1], 1), PANEL) * PANEL
    if padded > MAX_HEAD:
        raise ValueError(f"attention: head size {head}, at most {MAX_HEAD} is possible")
    if heads % kv_heads:
        raise ValueError(f"attention: {heads} heads are no multiple of {kv_heads} key heads")
    if v.dtype != k.dtype or out.dtype != q.dtype:
        raise ValueError(f"attention: types q {q.dtype}, k {k.dtype}, v {v.dtype}, out {out.dtype} do not fit")
    values: Dict[str, Any] = {
        "q_len": q_len, "kv_len": live, "group": heads // kv_heads, "head_size": head, "value_size": v.shape[-1],
        "causal": int(causal), "scale": 1.0 / math.sqrt(head) if scale is None else float(scale),
        "causal_offset": (live - q_len if causal_offset is None else causal_offset) if causal else 0,
        "windowed": int(first_offset is not None), "first_offset": 0 if first_offset is None else first_offset,
        "kv_heads": kv_heads, "batch": batch,
    }  # fmt: skip
    for name, spec in (("q", q), ("k", k), ("v", v), ("out", out)):
        values.update({f"{name}_batch": spec.strides[0], f"{name}_head": spec.strides[1], f"{name}_row": spec.strides[2]})
    values.update(_mask_values(mask, q, live))
    buffers: Dict[str, Any] = {name: name for name in ("q", "k", "v", "out")}
    if mask is not None:
        buffers["mask"] = "mask"
    return launch(attention_kernel(q.dtype, k.dtype, mask.dtype if mask is not None else "bool", padded), buffers, values)


def _mask_values(mask: Optional[TensorSpec], q: TensorSpec, live: Any) -> Dict[str, Any]:
    from .elementwise import broadcast_strides

    names = ("mask_batch", "mask_head", "mask_row", "mask_key")
    if mask is None:
        return dict.fromkeys(names, 0)
    return dict(zip(names, broadcast_strides(mask, (q.shape[0], q.shape[1], q.shape[2], live))))
