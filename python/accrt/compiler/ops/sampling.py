"""The next token of each row of logits."""

from __future__ import annotations

from typing import Any, Optional, Tuple

from .. import expr as ex
from ..declared import TensorType
from ..ir import Function, IRError, Op, Value
from .schema import build, define, need_same, numpy, Types

#: Types and dimensions of what sample takes, by the names of sizes.
_OPERANDS = (
    ("logits", "f32", ("samples", "vocab")), ("temperature", "f32", ("samples",)), ("top_k", "i32", ("samples",)), ("top_p", "f32", ("samples",)),
    ("min_p", "f32", ("samples",)), ("seed", "u32", ("samples", 2)), ("position", "i32", ("samples",)), ("edit_starts", "i32", ("starts",)),
    ("edit_tokens", "i32", ("edits",)), ("edit_multiply", "f32", ("edits",)), ("edit_add", "f32", ("edits",)), ("mask_rows", "i32", ("samples",)),
    ("mask_bits", "u32", ("masks", "words")),
)  # fmt: skip


def philox(key: Any, counter: Any) -> Any:
    """Philox4x32-10 (Salmon et al., SC 2011): four words of counters [n, 4], with a key of two."""
    np = numpy()
    a, b, c, d = (np.asarray(counter, np.uint64)[:, i] for i in range(4))
    k0, k1, low = int(key[0]), int(key[1]), np.uint64(0xFFFFFFFF)
    for _round in range(10):
        x, y = np.uint64(0xD2511F53) * a, np.uint64(0xCD9E8D57) * c
        a, b, c, d = (y >> np.uint64(32)) ^ b ^ np.uint64(k0), y & low, (x >> np.uint64(32)) ^ d ^ np.uint64(k1), x & low
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return np.stack([a, b, c, d], -1).astype(np.uint32)


def noise(seed: Any, position: int, count: int) -> Any:
    """What is added to each token's logit: -log(-log(u)) with u of the word of (seed, position,
    token)."""
    np = numpy()
    quarters = np.arange(-(-count // 4), dtype=np.uint64)
    counter = np.stack([quarters, np.full_like(quarters, int(position) & 0xFFFFFFFF), 0 * quarters, 0 * quarters], -1)
    words = philox(seed, counter).reshape(-1)[:count]
    v = words.astype(np.float32) * np.float32(2.0**-32) + np.float32(2.0**-33)
    return -np.log(-np.log1p(-np.minimum(v, np.float32(1 - 2.0**-24)).astype(np.float64)))


def edited(logits: Any, tokens: Any, multiply: Any, add: Any, bits: Optional[Any]) -> Any:
    """A row after edits and mask; NaN is -inf."""
    np = numpy()
    x = np.where(np.isnan(logits), -np.inf, logits)
    for token, by, more in zip(tokens, multiply, add):
        if not 0 <= token < len(x):
            raise IndexError(f"an edit of token {token}, which is outside a vocabulary of {len(x)}")
        x[token] = (x[token] / by if x[token] > 0 else x[token] * by) + more
    if bits is not None:
        x = np.where(np.unpackbits(bits.astype("<u4").view(np.uint8), bitorder="little")[: len(x)] != 0, x, -np.inf)
    return np.where(np.isnan(x), -np.inf, x)


def kept(x: Any, top_k: int, top_p: float, min_p: float) -> Any:
    """Tokens that may be chosen, in order: larger first, then lower ids. x is 0 at the largest."""
    np = numpy()
    order = np.argsort(-x, kind="stable")
    order = order[x[order] > -np.inf]
    order = order[:top_k] if 0 < top_k < len(x) else order
    weights = np.exp(x[order])
    if top_p < 1:
        before = np.cumsum(weights) - weights
        count = np.count_nonzero(before < top_p * np.sum(weights))
        order, weights = order[: max(count, 1)], weights[: max(count, 1)]
    return order[weights >= min(min_p, 1.0)] if min_p > 0 else order


def _choose(x: Any, temperature: float, top_k: int, top_p: float, min_p: float, seed: Any, position: int) -> int:
    np = numpy()
    if not np.any(x > -np.inf):
        return -1
    if not temperature > 0:
        return int(np.argmax(x))
    y = np.where(x == np.max(x), 0.0, (x - np.max(x)) / temperature)
    allowed = np.sort(kept(y, top_k, top_p, min_p))
    return int(allowed[np.argmax((y + noise(seed, position, len(y)))[allowed])])


def _sample(
    logits: Any, temperature: Any, top_k: Any, top_p: Any, min_p: Any, seed: Any, position: Any, edit_starts: Any, edit_tokens: Any,
    edit_multiply: Any, edit_add: Any, mask_rows: Any, mask_bits: Any, top: int = 20,
) -> Tuple[Any, ...]:  # fmt: skip
    np = numpy()
    samples, vocab = logits.shape
    tokens, logprobs, ranks = np.zeros(samples, np.int64), np.zeros(samples), np.zeros(samples, np.int64)
    top_ids, top_logprobs = np.full((samples, top), -1), np.full((samples, top), -np.inf)
    for i in range(samples):
        first, end = int(edit_starts[i]), int(edit_starts[i + 1])
        if not 0 <= first <= end <= len(edit_tokens) or not -1 <= mask_rows[i] < len(mask_bits):
            raise IndexError(f"edits [{first}, {end}) of {len(edit_tokens)}, mask {mask_rows[i]} of {len(mask_bits)}")
        cut = slice(first, end)
        x = edited(logits[i], edit_tokens[cut], edit_multiply[cut], edit_add[cut], mask_bits[mask_rows[i]] if mask_rows[i] >= 0 else None)
        tokens[i] = token = _choose(x, temperature[i], top_k[i], top_p[i], min_p[i], seed[i], position[i])
        raw = np.where(np.isnan(logits[i]), -np.inf, logits[i])
        largest = np.max(raw)
        said = raw - largest - np.log(np.sum(np.exp(raw - largest))) if largest > -np.inf else raw
        logprobs[i], ranks[i] = (said[token], np.count_nonzero(raw >= raw[token])) if token >= 0 else (-np.inf, -1)
        best = np.argsort(-raw, kind="stable")[:top]
        top_ids[i, : len(best)], top_logprobs[i, : len(best)] = best, said[best]
    return tokens, logprobs, top_ids, top_logprobs, ranks


@define(
    "accrt.sample(Tensor logits, Tensor temperature, Tensor top_k, Tensor top_p, Tensor min_p, Tensor seed, Tensor position, Tensor edit_starts, "
    "Tensor edit_tokens, Tensor edit_multiply, Tensor edit_add, Tensor mask_rows, Tensor mask_bits, int top=20)",
    reference=_sample,
)
def _infer_sample(op: Op) -> Types:
    """The next token of each row of logits [samples, vocab], and what is said of it: token i32
    [samples], logprob f32 [samples], top_ids i32 and top_logprobs f32 [samples, top], rank i32
    [samples]. In this order: edits (logit > 0 ? logit / multiply : logit * multiply, then + add;
    those of row i are [edit_starts[i], edit_starts[i + 1])), mask (row mask_rows[i] of mask_bits,
    bit 1: allowed; -1: none), then where temperature is 0 the largest; else division by it, top_k
    (0: off), top_p (1: off), min_p (0: off), and the largest after noise of (seed, position,
    token). Ties: the lowest id. A row without an allowed token gives -1. Logprobs and ranks are of
    the logits as they came; a rank counts the tokens that are at least as large."""
    logits, top = op.operands[0], op.attrs["top"]
    sizes: dict = {}
    if logits.rank == 2:
        sizes = {"samples": logits.shape[0], "vocab": logits.shape[1], "starts": ex.simplify(ex.constant(logits.shape[0]) + 1)}
        sizes["words"] = ex.simplify(ex.ceildiv(ex.constant(logits.shape[1]), 32))
    for value, (name, dtype, shape) in zip(op.operands, _OPERANDS):
        if value.dtype != dtype or value.rank != len(shape):
            raise IRError(f"{name} of {value.type}; {dtype} [{', '.join(map(str, shape))}] is needed")
        for axis, (have, size) in enumerate(zip(value.shape, shape)):
            need_same(have, size if isinstance(size, int) else sizes.setdefault(size, have), f"{name}, dimension {axis}")
    if isinstance(logits.shape[1], int) and logits.shape[1] < 1 or top < 0:
        raise IRError(f"sample of {logits.type} with the {top} largest")
    samples = logits.shape[0]
    one, several = (samples,), (samples, top)
    return [TensorType("i32", one), TensorType("f32", one), TensorType("i32", several), TensorType("f32", several), TensorType("i32", one)]


def _function_sample(self: Function, *operands: Any, **named: Any) -> Any:
    return build(self, "accrt.sample", *operands, **named)


_function_sample.__doc__ = Value.sample.__doc__
Function.sample = _function_sample


def _sample_greedy(self: Value) -> Value:
    """The token of each row of logits where all rows are greedy: the place of the largest, i32; of
    equal ones the lowest."""
    return self.argmax(-1).to_copy("i32")


Value.sample_greedy = _sample_greedy
