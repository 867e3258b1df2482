"""What a step of a serving engine needs: positions, slots and pages that tensors give."""

from __future__ import annotations

import math
from typing import Any, List

from .. import expr as ex
from ..declared import FLOATS, State, TensorType
from ..ir import Function, IRError, Op, Value
from .effects import check_state
from .schema import build, define, need_same, numpy, Types
from .shapes import cat

INDICES = ("i32", "i64")


def _index_of(op: Op, value: Value, what: str, length: Any) -> None:
    """Indices [length]."""
    if value.dtype not in INDICES or value.rank != 1:
        raise IRError(f"{what} of {value.type}; i32 [{length}] are needed")
    need_same(value.shape[0], length, what)


# ---- Rotary embedding at given positions ---------------------------------------------------------


def _rope_at(x: Any, positions: Any, frequencies: Any, scale: float = 1.0, interleaved: bool = False) -> Any:
    np = numpy()
    angles = positions.astype(np.float64)[:, None, None] * frequencies
    cos, sin = np.cos(angles) * scale, np.sin(angles) * scale
    half, y = frequencies.shape[0], x.copy()
    first, second = (slice(0, 2 * half, 2), slice(1, 2 * half, 2)) if interleaved else (slice(0, half), slice(half, 2 * half))
    a, b = x[..., first], x[..., second]
    y[..., first], y[..., second] = a * cos - b * sin, b * cos + a * sin
    return y


def _decompose_rope_at(op: Op) -> Value:
    x, positions, frequencies = op.operands
    half, size, lead = frequencies.shape[0], x.shape[-1], list(x.shape[:-1])
    angles = positions.to_copy("f64").view([-1, 1, 1]) * frequencies.to_copy("f64")
    cos, sin = ((part * op.attrs["scale"]).to_copy(x.dtype) for part in (angles.cos(), angles.sin()))
    rest = [x.slice(-1, 2 * half, size)] if size != 2 * half else []
    if op.attrs["interleaved"]:
        pairs = x.slice(-1, 0, 2 * half).view([*lead, half, 2])
        a, b = pairs.select(-1, 0), pairs.select(-1, 1)
        turned = cat([(a * cos - b * sin).unsqueeze(-1), (b * cos + a * sin).unsqueeze(-1)], -1)
        return cat([turned.view([*lead, 2 * half]), *rest], -1)
    a, b = x.slice(-1, 0, half), x.slice(-1, half, 2 * half)
    return cat([a * cos - b * sin, b * cos + a * sin, *rest], -1)


@define(
    "accrt.rope_at(Tensor self, Tensor positions, Tensor frequencies, float scale=1.0, bool interleaved=False)",
    reference=_rope_at, decompose=_decompose_rope_at,
)  # fmt: skip
def _infer_rope_at(op: Op) -> Types:
    """Rotary embedding of [tokens, heads, size] at positions [tokens]. Frequencies [r / 2] of f32
    turn the first r of each head: pair i is (i, i + r / 2), or (2 i, 2 i + 1) where interleaved.
    Cosines and sines are multiplied by `scale`, as YaRN has it."""
    x, positions, frequencies = op.operands
    if x.rank != 3 or x.dtype not in FLOATS:
        raise IRError(f"rotary embedding of {x.type}; floats [tokens, heads, size] are needed")
    _index_of(op, positions, "positions", x.shape[0])
    half, size = frequencies.shape[0] if frequencies.rank == 1 else None, x.shape[2]
    if frequencies.dtype != "f32" or not isinstance(half, int) or not isinstance(size, int) or not 0 < 2 * half <= size:
        raise IRError(f"rotary embedding of {x.type} with frequencies of {frequencies.type}; f32 [r / 2] with r of 2 to the head's size are needed")
    return [x.type]


# ---- Rows of a state -----------------------------------------------------------------------------


def _leading(value: Value, state: State) -> int:
    """How many dimensions of the state are taken as one, of rows."""
    lead = state.type.rank - (value.rank - 1)
    if value.rank < 1 or lead < 1:
        raise IRError(f"{value.type} into state {state.name!r} of {state.type}: it has a dimension of rows, and then last ones of the state")
    return lead


def _state_scatter(value: Any, slots: Any, state: Any) -> None:
    rows = state.reshape(-1, *value.shape[1:])
    for row, slot in zip(value, slots):
        if not -1 <= slot < len(rows):
            raise IndexError(f"slot {slot} is outside a state of {len(rows)} rows")
    for row, slot in zip(value, slots):
        if slot >= 0:
            rows[slot] = row


@define("accrt.state_scatter(Tensor value, State! state, Tensor slots)", reference=_state_scatter, effect=True)
def _infer_state_scatter(op: Op) -> Types:
    """Writes row i of [n, ...] into a state at slots[i]. The state's last dimensions are those of a
    row; the ones before are taken as one, of slots. -1 writes nothing; any other slot outside fails
    the call. Where a slot stands twice, the last row stays. Values are cast to the state's type."""
    (value, slots), state = op.operands, op.attrs["state"]
    check_state(op, state)
    lead = _leading(value, state)
    if value.dtype != state.type.dtype:
        raise IRError(f"{value.type} into state {state.name!r} of {state.type}; cast it with to_copy()")
    for a, b in zip(value.shape[1:], state.type.shape[lead:]):
        need_same(a, b, f"rows of {value.type} for state {state.name!r} of {state.type}")
    _index_of(op, slots, "slots", value.shape[0])
    return []


_scatter_rows = Value.state_scatter


def _cast_and_scatter(self: Value, state: State, slots: Value) -> List[Value]:
    cast = isinstance(state, State) and state.type.dtype != self.dtype
    return _scatter_rows(self.to_copy(state.type.dtype) if cast else self, state, slots)


_cast_and_scatter.__doc__ = _scatter_rows.__doc__
Value.state_scatter = _cast_and_scatter


# ---- Rows of 8-bit floats ------------------------------------------------------------------------


def e4m3_values() -> Any:
    """The numbers that the 256 codes of e4m3 stand for, in float64."""
    np = numpy()
    codes = np.arange(128)
    exponent, mantissa = codes >> 3, codes & 7
    magnitudes = np.where(exponent == 0, mantissa * 2.0**-9, (8 + mantissa) * 2.0 ** (exponent - 10.0))
    magnitudes[127] = np.nan
    return np.concatenate([magnitudes, -magnitudes])


def e4m3_codes(x: Any) -> Any:
    """Numbers as e4m3: to nearest, ties to even; what is beyond 448 becomes 448."""
    np = numpy()
    known, magnitude = e4m3_values()[:127], np.minimum(np.abs(x), 448.0)
    above = np.clip(np.searchsorted(known, magnitude), 1, 126)
    up, down = known[above] - magnitude, magnitude - known[above - 1]
    code = np.where((up < down) | ((up == down) & (above % 2 == 0)), above, above - 1)
    return (np.where(np.isnan(x), 127, code) | np.where(np.signbit(x), 128, 0)).astype(np.uint8)


def _state_scatter_e4m3(value: Any, slots: Any, state: Any, scale: float = 1.0) -> None:
    _state_scatter(e4m3_codes(value / scale), slots, state)


@define("accrt.state_scatter_e4m3(Tensor value, State! state, Tensor slots, float scale=1.0)", reference=_state_scatter_e4m3, effect=True)
def _infer_state_scatter_e4m3(op: Op) -> Types:
    """As state_scatter, of f32, f16 or bf16 into a state of u8, as 8-bit floats e4m3 of value /
    scale: rounded to nearest, ties to even; what is beyond 448 becomes 448, NaN stays."""
    (value, slots), state = op.operands, op.attrs["state"]
    check_state(op, state)
    lead = _leading(value, state)
    if state.type.dtype != "u8" or value.dtype not in ("f32", "f16", "bf16"):
        raise IRError(f"{value.type} as e4m3 into state {state.name!r} of {state.type}; f32, f16 or bf16 into u8 is possible")
    if not 0 < op.attrs["scale"] < math.inf:
        raise IRError(f"e4m3 with a scale of {op.attrs['scale']}; it is more than 0")
    for a, b in zip(value.shape[1:], state.type.shape[lead:]):
        need_same(a, b, f"rows of {value.type} for state {state.name!r} of {state.type}")
    _index_of(op, slots, "slots", value.shape[0])
    return []


# ---- Rows by index -------------------------------------------------------------------------------


def _state_gather(index: Any, state: Any, dims: int = 1) -> Any:
    rows = state.reshape(-1, *state.shape[dims:])
    wrong = index[(index < 0) | (index >= len(rows))]
    if wrong.size:
        raise IndexError(f"index {wrong[0]} is outside a state of {len(rows)} rows")
    return rows[index]


def _decompose_state_gather(op: Op) -> Value:
    state, dims = op.attrs["state"], op.attrs["dims"]
    rows = op.block.function.state_read(state).view([ex.product(state.type.shape[:dims]), *state.type.shape[dims:]])
    return rows.index_select(0, op.operands[0])


@define("accrt.state_gather(State state, Tensor index, int dims=1)", reference=_state_gather, decompose=_decompose_state_gather)
def _infer_state_gather(op: Op) -> Types:
    """Rows of a state by index [n], without a copy of the state: its first `dims` dimensions are
    taken as one, of rows. An index outside fails the call."""
    (index,), state, dims = op.operands, op.attrs["state"], op.attrs["dims"]
    check_state(op, state)
    _index_of(op, index, "index", index.shape[0] if index.rank else 0)
    if not 1 <= dims <= state.type.rank:
        raise IRError(f"rows of {dims} dimensions of state {state.name!r} of {state.type}")
    return [TensorType(state.type.dtype, (index.shape[0], *state.type.shape[dims:]))]


def _function_state_gather(self: Function, state: State, index: Value, dims: int = 1) -> Value:
    return build(self, "accrt.state_gather", state, index, dims)


_function_state_gather.__doc__ = f"state_gather(state, index, dims=1): accrt.state_gather. {_infer_state_gather.__doc__}"
Function.state_gather = _function_state_gather


# ---- Attention over pages ------------------------------------------------------------------------


def _row_of_keys(state: Any, pages: Any, length: int) -> Any:
    """Keys or values [length, heads, size] of one sequence."""
    np = numpy()
    size = state.shape[1]
    wanted = pages[: -(-length // size)]
    wrong = wanted[(wanted < 0) | (wanted >= len(state))]
    if len(wrong) or length > size * len(pages):
        raise IndexError(f"page {wrong[0]} is outside a state of {len(state)} pages" if len(wrong) else f"{length} keys in {len(pages)} pages of {size}")
    rows = np.ascontiguousarray(state[wanted]).reshape(-1, *state.shape[2:])[:length]
    return e4m3_values()[rows] if rows.dtype == np.uint8 else rows


def _paged_attention(
    q: Any, row_ids: Any, row_starts: Any, kv_lengths: Any, sinks: Any = None, *, keys: Any, values: Any, page_table: Any, scale: Any = None,
    window: Any = None, soft_cap: Any = None, chunk: Any = None,
) -> Any:  # fmt: skip
    np = numpy()
    out = np.zeros((*q.shape[:2], values.shape[3]))
    if np.any(np.diff(row_starts) < 0) or row_starts[0] < 0 or row_starts[-1] > len(q):
        raise IndexError(f"row_starts must ascend, up to {len(q)} tokens")
    factor, group = 1 / math.sqrt(q.shape[-1]) if scale is None else scale, q.shape[1] // keys.shape[2]
    for begin, end, row, length in zip(row_starts, row_starts[1:], row_ids, kv_lengths):
        if begin == end:
            continue
        if not 0 <= row < len(page_table) or length < end - begin:
            raise IndexError(f"row {row} of a page table of {len(page_table)}, with {length} keys and {end - begin} tokens")
        k, v = (np.repeat(_row_of_keys(state, page_table[row], length), group, 1) for state in (keys, values))
        scores = np.einsum("qhd,khd->hqk", q[begin:end], k) * factor
        scores = scores if soft_cap is None else soft_cap * np.tanh(scores / soft_cap)
        last, at = np.arange(length - (end - begin), length)[:, None], np.arange(length)[None, :]
        seen = (at <= last) & (at > last - (length + 1 if window is None else window)) & (at >= (0 if chunk is None else last // chunk * chunk))
        scores = np.where(seen, scores, -np.inf)
        beside = np.full((q.shape[1], 1, 1), -np.inf) if sinks is None else sinks[:, None, None]
        most = np.maximum(np.max(scores, -1, keepdims=True), beside)
        e = np.exp(scores - most)
        out[begin:end] = np.einsum("hqk,khd->qhd", e / (np.sum(e, -1, keepdims=True) + np.exp(beside - most)), v)
    return out


@define(
    "accrt.paged_attention(Tensor query, State keys, State values, State page_table, Tensor row_ids, Tensor row_starts, Tensor kv_lengths, "
    "float? scale=None, int? window=None, float? soft_cap=None, Tensor? sinks=None, int? chunk=None)",
    reference=_paged_attention,
)
def _infer_paged_attention(op: Op) -> Types:
    """Attention of ragged rows over keys and values in pages. query [tokens, heads, size]; tokens
    [row_starts[r], row_starts[r + 1]) are the last ones of a sequence of kv_lengths[r] keys, whose
    pages stand in row row_ids[r] of the table. keys and values are states [pages, page_size, key
    heads, size] of f32, f16, bf16, or u8, whose bytes are floats e4m3 (state_scatter_e4m3: keys'
    scale belongs into `scale`, values' to the result). page_table is one of i32 [rows, pages of a
    row]. Causal: a token sees the keys up to
    its own; with a window the last `window` of these, with a chunk those from the last multiple of
    `chunk` on. Scores are multiplied by `scale` (1 /
    sqrt(size)); a soft_cap c makes c * tanh(score / c) of them. sinks [heads] of f32 are scores of
    a key whose value is 0, one for each query head, beside those of the keys. Tokens of no row give
    zeros. A page, row or length that does not fit fails the call."""
    q, row_ids, row_starts, lengths, sinks = op.operands
    k, v, table = (op.attrs[name] for name in ("keys", "values", "page_table"))
    for state in (k, v, table):
        check_state(op, state)
    types = ("f32", "f16", "bf16")
    if q.rank != 3 or q.dtype not in types:
        raise IRError(f"paged attention of {q.type}; f32, f16 or bf16 [tokens, heads, size] are needed")
    for state in (k, v):
        if state.type.rank != 4 or state.type.dtype not in (*types, "u8") or state.type.dtype != k.type.dtype:
            raise IRError(f"paged attention over states of {k.type} and {v.type}; both are of f32, f16, bf16 or u8 (e4m3) [pages, page_size, heads, size]")
    if table.type.dtype != "i32" or table.type.rank != 2:
        raise IRError(f"paged attention with a page table of {table.type}; i32 [rows, pages of a row] is needed")
    for a, b, what in zip(k.type.shape, v.type.shape, ("pages", "page_size", "heads")):
        need_same(a, b, f"paged attention, {what} of keys and values")
    need_same(q.shape[2], k.type.shape[3], "paged attention, head size")
    fixed = {"heads": q.shape[1], "key heads": k.type.shape[2], "head size": q.shape[2], "value size": v.type.shape[3]}
    for what, size in fixed.items():
        if not isinstance(size, int) or size < 1:
            raise IRError(f"paged attention: {what} {size}; it must be known while compiling, and 1 or more")
    if q.shape[1] % k.type.shape[2]:
        raise IRError(f"paged attention with {q.shape[1]} heads and {k.type.shape[2]} key heads")
    _index_of(op, row_ids, "row_ids", row_ids.shape[0] if row_ids.rank else 0)
    _index_of(op, row_starts, "row_starts", ex.simplify(ex.constant(row_ids.shape[0]) + 1))
    _index_of(op, lengths, "kv_lengths", row_ids.shape[0])
    if sinks is not None and (sinks.dtype != "f32" or list(sinks.shape) != [q.shape[1]]):
        raise IRError(f"paged attention with sinks of {sinks.type}; f32 [{q.shape[1]}] are needed, one for each head")
    if any(value.dtype != "i32" for value in (row_ids, row_starts, lengths)):
        raise IRError("paged attention: row_ids, row_starts and kv_lengths are of i32")
    if op.attrs["window"] is not None and op.attrs["window"] < 1 or op.attrs["soft_cap"] is not None and op.attrs["soft_cap"] <= 0:
        raise IRError(f"paged attention with a window of {op.attrs['window']} and a soft_cap of {op.attrs['soft_cap']}; both are more than 0")
    window, chunk = op.attrs["window"], op.attrs["chunk"]
    if chunk is not None and (window is not None or not 0 < chunk < 1 << 31):
        raise IRError(f"paged attention with a chunk of {chunk} and a window of {window}; a chunk is from 1 to 2^31 - 1, and there is one of the two")
    return [TensorType(q.dtype, (q.shape[0], q.shape[1], v.type.shape[3]))]
