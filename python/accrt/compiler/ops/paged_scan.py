"""Layers whose sequences have a state that every token changes (Mamba, gated delta nets, linear
attention): one recurrence for all of them, over ragged rows, with a state at the end of each page.
"""

from __future__ import annotations

from typing import Any

from .. import expr as ex
from ..declared import TensorType
from ..ir import IRError, Op
from .effects import check_state
from .schema import define, need_same, numpy, Types
from .serving import _index_of


def _page(table: Any, row: int, position: int, page_size: int, pages: int) -> int:
    if not 0 <= row < len(table) or position // page_size >= table.shape[1]:
        raise IndexError(f"row {row} and position {position} of a page table of {len(table)} rows with {table.shape[1]} pages")
    page = int(table[row, position // page_size])
    if not 0 <= page < pages:
        raise IndexError(f"page {page} is outside a state of {pages} pages")
    return page


def _paged_scan(
    q: Any, k: Any, v: Any, decay: Any, row_ids: Any, row_starts: Any, kv_lengths: Any, beta: Any = None, *, states: Any, page_table: Any, page_size: int
) -> Any:  # fmt: skip
    np = numpy()
    out = np.zeros(v.shape)
    if np.any(np.diff(row_starts) < 0) or row_starts[0] < 0 or row_starts[-1] > len(q):
        raise IndexError(f"row_starts must ascend, up to {len(q)} tokens")
    group = v.shape[1] // k.shape[1]
    for begin, end, row, length in zip(row_starts, row_starts[1:], row_ids, kv_lengths):
        if begin == end:
            continue
        first = int(length) - int(end - begin)
        if first < 0:
            raise IndexError(f"a row of {end - begin} tokens has {length}, its own among them")
        state = np.zeros(states.shape[1:]) if first == 0 else states[_page(page_table, row, first - 1, page_size, len(states))].astype(np.float64)
        for at in range(begin, end):
            key, query = (np.repeat(one[at], group, 0) for one in (k, q))
            state = state * decay[at][:, None, :]
            new = v[at] if beta is None else (v[at] - np.einsum("hpn,hn->hp", state, key)) * beta[at][:, None]
            state = state + new[:, :, None] * key[:, None, :]
            out[at] = np.einsum("hpn,hn->hp", state, query)
            position = first + at - begin
            if at + 1 == end or (position + 1) % page_size == 0:
                states[_page(page_table, row, position, page_size, len(states))] = state
    return out


@define(
    "accrt.paged_scan(Tensor query, Tensor key, Tensor value, Tensor decay, State! states, State page_table, Tensor row_ids, Tensor row_starts, "
    "Tensor kv_lengths, int page_size, Tensor? beta=None)",
    reference=_paged_scan, effect=True,
)  # fmt: skip
def _infer_paged_scan(op: Op) -> Types:
    """A recurrence over ragged rows: of each head, a state S [value size, key size] becomes
    decay * S + value key^T with each token, which gets S query. With beta it is the delta rule:
    S becomes D + beta (value - D key) key^T, where D = decay * S. query and key [tokens, key heads,
    key size], value [tokens, heads, value size], decay [tokens, heads, 1 or key size], beta
    [tokens, heads], all of f32; heads share keys in groups. Rows are those of paged_attention:
    tokens [row_starts[r], row_starts[r + 1]) are the last of kv_lengths[r]. states is a state of
    f32 [pages, heads, value size, key size]: that of a page is what S was after the last of the
    page's tokens that were written, so a row goes on where the page of the token before it says; a
    row from position 0 on begins with zeros. Tokens of no row give zeros. A page, row or length
    that does not fit fails the call."""
    q, k, v, decay, row_ids, row_starts, lengths, beta = op.operands
    states, table = op.attrs["states"], op.attrs["page_table"]
    for state in (states, table):
        check_state(op, state)
    for value, rank in ((q, 3), (k, 3), (v, 3), (decay, 3), (beta, 2)):
        if value is not None and (value.dtype != "f32" or value.rank != rank):
            raise IRError(f"a scan of {value.type}; f32 of rank {rank} is needed")
        if value is not None:
            need_same(value.shape[0], q.shape[0], "a scan, tokens")
    for a, b in zip(q.shape[1:], k.shape[1:]):
        need_same(a, b, "a scan, heads and size of queries and keys")
    heads, value_size, key_heads, key_size = *v.shape[1:], *k.shape[1:]
    if any(not isinstance(size, int) or size < 1 for size in (heads, value_size, key_heads, key_size)) or heads % key_heads:
        raise IRError(f"a scan of {heads} heads of {value_size} with {key_heads} key heads of {key_size}: they are known while compiling, and key heads divide heads")
    if decay.shape[1] != heads or decay.shape[2] not in (1, key_size) or (beta is not None and beta.shape[1] != heads):
        raise IRError(f"a scan of {heads} heads with decay of {decay.type}" + ("" if beta is None else f" and beta of {beta.type}"))
    if states.type.dtype != "f32" or list(states.type.shape[1:]) != [heads, value_size, key_size]:
        raise IRError(f"a scan with states of {states.type}; f32 [pages, {heads}, {value_size}, {key_size}] are needed")
    if table.type.dtype != "i32" or table.type.rank != 2:
        raise IRError(f"a scan with a page table of {table.type}; i32 [rows, pages of a row] is needed")
    if not isinstance(op.attrs["page_size"], int) or not 1 <= op.attrs["page_size"] < 1 << 31:
        raise IRError(f"a scan with pages of {op.attrs['page_size']} tokens; there are 1 or more")
    _index_of(op, row_ids, "row_ids", row_ids.shape[0] if row_ids.rank else 0)
    if any(value.dtype != "i32" for value in (row_ids, row_starts, lengths)):
        raise IRError("a scan: row_ids, row_starts and kv_lengths are of i32")
    _index_of(op, lengths, "kv_lengths", row_ids.shape[0])
    _index_of(op, row_starts, "row_starts", ex.simplify(ex.constant(row_ids.shape[0]) + 1))
    return [TensorType("f32", tuple(v.shape))]
