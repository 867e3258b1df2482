"""Attention and rotary embedding."""

from __future__ import annotations

import math
from typing import Any

from .. import expr as ex
from ..expr import Size
from ..declared import FLOATS
from ..ir import IRError, Op, Value
from .products import check_product_types, MIXED
from .schema import broadcast, define, need_same, numpy, resized, Types
from .shapes import cat


def _sdpa(
    q: Any, k: Any, v: Any, attn_mask: Any = None, is_causal: bool = False, scale: Any = None, causal_offset: Any = None, first_offset: Any = None
) -> Any:
    """Rows that see no key at all give zeros."""
    np = numpy()
    group = q.shape[-3] // k.shape[-3] if q.ndim > 2 and k.shape[-3] else 1
    if group > 1:
        k, v = np.repeat(k, group, -3), np.repeat(v, group, -3)
    scores = (q @ np.swapaxes(k, -1, -2)) * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    seen = np.ones(scores.shape, bool)
    if is_causal:
        offset = causal_offset or 0
        seen &= np.arange(k.shape[-2])[None, :] <= np.arange(q.shape[-2])[:, None] + offset
    if first_offset is not None:
        seen &= np.arange(k.shape[-2])[None, :] >= np.arange(q.shape[-2])[:, None] + first_offset
    if attn_mask is not None and attn_mask.dtype == bool:
        seen &= attn_mask
    elif attn_mask is not None:
        scores = scores + attn_mask
    scores = np.where(seen, scores, -np.inf)
    top = np.max(scores, -1, keepdims=True, initial=-np.inf)
    e = np.exp(scores - np.where(np.isneginf(top), 0, top))
    total = np.sum(e, -1, keepdims=True)
    return (e / np.where(total == 0, 1, total)) @ v


def causal_offset(op: Op) -> Size:
    """Of causal attention: what is added to a query's number."""
    return 0 if op.attrs["causal_offset"] is None else op.attrs["causal_offset"]


def window_mask(op: Op) -> Value:
    """Of attention with a first_offset: which keys are not before a query's window."""
    function = op.block.function
    rows = function.arange(op.operands[0].shape[2]).unsqueeze(1) + op.attrs["first_offset"]
    return function.arange(op.operands[1].shape[2]).unsqueeze(0) >= rows


def _decompose_sdpa(op: Op) -> Value:
    q, k, v, mask = op.operands
    scale = 1 / math.sqrt(q.shape[-1]) if op.attrs["scale"] is None else op.attrs["scale"]
    batch, heads, length, head = q.shape
    kv_heads, keys = k.shape[1], k.shape[2]
    group = heads // kv_heads
    grouped = q.view([batch, kv_heads, group, length, head])
    scores = grouped.matmul(k.transpose(-1, -2).unsqueeze(2)) * scale
    function = op.block.function
    seen = None
    if op.attrs["is_causal"]:
        rows = function.arange(length).unsqueeze(1) + causal_offset(op)
        seen = function.arange(keys).unsqueeze(0) <= rows
    if op.attrs["first_offset"] is not None:
        after = window_mask(op)
        seen = after if seen is None else seen.logical_and(after)
    if mask is not None:
        lead = [1] * (4 - mask.rank) + list(mask.shape)
        heads_of = [kv_heads, group] if not ex.same(lead[1], 1) else [1, 1]
        shaped = mask.view([lead[0], *heads_of, *lead[2:]])
        if mask.dtype == "bool":
            seen = shaped if seen is None else seen.logical_and(shaped)
        else:
            scores = scores + shaped.to_copy(scores.dtype)
    if seen is not None:
        scores = seen.where(scores, -math.inf)
    # A row that sees no key has a maximum of -inf; a finite one in its place makes every weight
    # exp(-inf) = 0.
    e = (scores - scores.amax(-1, True).maximum(-1e30)).exp()
    total = e.sum(-1, True)
    weights = e / total.eq(0.0).where(1.0, total)
    return weights.matmul(v.unsqueeze(2)).view([batch, heads, length, v.shape[-1]])


@define(
    "aten.scaled_dot_product_attention(Tensor query, Tensor key, Tensor value, Tensor? attn_mask=None, "
    "bool is_causal=False, float? scale=None, Size? causal_offset=None, Size? first_offset=None)",
    reference=_sdpa, decompose=_decompose_sdpa,
)  # fmt: skip
def _infer_sdpa(op: Op) -> Types:
    """[batch, heads, length, size]; key heads divide query heads. Causal: query i sees keys up to
    i, as torch aligns it, or up to i + causal_offset: number of keys - number of queries where the
    queries are the last of the sequence. With first_offset query i sees no key before i +
    first_offset: a window of w keys of causal attention is first_offset = causal_offset - w + 1. A
    bool mask is true where seen, a float one is added."""
    q, k, v, mask = op.operands
    if any(t.rank != 4 for t in (q, k, v)) or q.dtype not in FLOATS:
        raise IRError(f"attention of {q.type}, {k.type}, {v.type}; floats [batch, heads, length, size] are needed")
    for other in (k, v):
        check_product_types(q.dtype, other.dtype, "attention")
    if mask is not None and mask.dtype != "bool" and mask.dtype != q.dtype and not (mask.dtype in MIXED and q.dtype in MIXED):
        raise IRError(f"attention of {q.dtype} with a mask of {mask.dtype}: bool, or the type of the query, is needed")
    for a, b, what in ((q.shape[0], k.shape[0], "batch"), (k.shape[0], v.shape[0], "batch"), (k.shape[1], v.shape[1], "key heads"),
                       (k.shape[2], v.shape[2], "keys"), (q.shape[3], k.shape[3], "head size")):  # fmt: skip
        need_same(a, b, f"attention, {what}")
    if not isinstance(q.shape[1], int) or not isinstance(k.shape[1], int) or q.shape[1] % k.shape[1]:
        raise IRError(f"attention with {q.shape[1]} heads and {k.shape[1]} key heads")
    if mask is not None:
        if mask.rank > 4:
            raise IRError(f"attention with a mask of {mask.type}")
        wanted = (q.shape[0], q.shape[1], q.shape[2], k.shape[2])
        for a, b in zip(broadcast([mask.shape, wanted]), wanted):
            need_same(a, b, "attention mask")
    return resized(op, (*q.shape[:3], v.shape[3]))


def _rope(x: Any, position: int = 0, theta: float = 10000.0) -> Any:
    np = numpy()
    half = x.shape[-1] // 2
    angles = (position + np.arange(x.shape[-2], dtype=np.float64))[:, None] * theta ** (-np.arange(half, dtype=np.float64) / max(half, 1))
    cos, sin = np.cos(angles), np.sin(angles)
    a, b = x[..., :half], x[..., half:]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


def _decompose_rope(op: Op) -> Value:
    x, function = op.operands[0], op.block.function
    half = x.shape[-1] // 2
    with_position = function.arange(x.shape[-2], dtype="f64") + function.full((), op.attrs["position"], "f64")
    rates = (function.arange(half, dtype="f64") * (-math.log(op.attrs["theta"]) / max(half, 1))).exp()
    angles = with_position.unsqueeze(1) * rates.unsqueeze(0)
    cos, sin = angles.cos().to_copy(x.dtype), angles.sin().to_copy(x.dtype)
    a, b = x.slice(-1, 0, half), x.slice(-1, half, 2 * half)
    return cat([a * cos - b * sin, b * cos + a * sin], -1)


@define("accrt.rope(Tensor self, Size position=0, float theta=10000.0)", reference=_rope, decompose=_decompose_rope)
def _infer_rope(op: Op) -> Types:
    """Rotary embedding, halves split: row t of [..., length, size] is at position + t."""
    x = op.operands[0]
    if x.rank < 2 or x.dtype not in FLOATS or not isinstance(x.shape[-1], int) or x.shape[-1] % 2:
        raise IRError(f"rotary embedding of {x.type}")
    return [x.type]
