"""Records of what a step of a serving engine needs: rotary embedding at given positions, rows of
states written by slots, attention over pages (rope_at.cu, scatter.cu, paged_attention.cuh,
paged_tiles.cuh)."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any, Callable, Dict, List, Mapping, Tuple

from .. import expr as sizes
from .. import select
from ...bundle_writer.expressions import less_equal, logical_and
from ..ir import Op
from ..kernels import expr as ex
from ..kernels import paged
from ..kernels.kerneldef import CudaSource, CudaVariant, KernelDef, Launch, TensorSpec, launch, layout, reads, scalar, symbol, updates, writes
from ..kernels.matmul import require_contiguous_last
from ..kernels.tensor_ops import lower_scatter, lower_scatter_e4m3
from .norms import FLAGS, FLOATS, TRAITS, TYPES, entry_kernel
from .products import OPERANDS
from .tensor_ops import make_kernel

Grid = Tuple[Any, Any, Any]

# ---- Rotary embedding ----------------------------------------------------------------------------


@functools.lru_cache(maxsize=None)
def rope_at_kernel(x: str, position: str) -> KernelDef:
    names = "tokens heads size pairs interleaved position_step x_token x_head out_token out_head".split()

    def grid(v: Mapping[str, Any]) -> Grid:
        return (ex.maximum(ex.ceildiv(v["tokens"] * (v["size"] - v["pairs"]), 128), 1), 1, 1)

    params = [reads("x"), reads("positions"), reads("frequencies"), writes("out")] + [symbol(n) for n in names] + [scalar("scale", "f32")]
    return make_kernel(f"rope_at_{x}_{position}", "rotary_embedding", "rope_at.cu", params, grid, (128, 1, 1), X_TAG=x, POSITION_TAG=position)


@select.rule("accrt.rope_at", "cuda")
def _rope_at(op: Op, operands: select.Specs, results: select.Specs) -> select.Lowering:
    (x, positions, frequencies), out = operands, results[0]
    if x.dtype not in FLOATS:
        raise ValueError(f"rotary embedding of {x.dtype}: the kernel's sines are f32")
    select.require_plain(frequencies)
    require_contiguous_last(x, "x")
    require_contiguous_last(out, "out")
    tokens, heads, size = x.shape
    values = {
        "tokens": tokens, "heads": heads, "size": size, "pairs": frequencies.shape[0], "interleaved": int(op.attrs["interleaved"]),
        "position_step": positions.strides[0], "x_token": x.strides[0], "x_head": x.strides[1], "out_token": out.strides[0],
        "out_head": out.strides[1], "scale": float(op.attrs["scale"]),
    }  # fmt: skip
    buffers = {name: name for name in ("x", "positions", "frequencies", "out")}
    made = launch(rope_at_kernel(x.dtype, positions.dtype), buffers, values)
    return select.named(made, x=("in", 0), positions=("in", 1), frequencies=("in", 2), out=select.OUT)


@functools.lru_cache(maxsize=None)
def rope_scatter_kernel(x: str, position: str, slot: str) -> KernelDef:
    names = (
        "tokens heads kv_heads size value_size pairs interleaved rows position_step slot_step "
        "q_token q_head k_token k_head v_token v_head out_token out_head k_first v_first"
    ).split()

    def grid(v: Mapping[str, Any]) -> Grid:
        return (ex.maximum(v["tokens"], 1), 1, 1)

    params = [reads(name) for name in ("q", "k", "v", "positions", "frequencies", "slots")] + [updates("keys"), updates("values"), writes("out")]
    params += [symbol(n) for n in names] + [scalar("scale", "f32")]
    return make_kernel(f"rope_scatter_{x}_{position}_{slot}", "rotary_embedding", "rope_scatter.cu", params, grid, X_TAG=x, POSITION_TAG=position, SLOT_TAG=slot)


def rope_scatter_launch(op: Op, q: TensorSpec, k: TensorSpec, v: TensorSpec, given: select.Specs, out: TensorSpec, k_first: int = 0, v_first: int = 0) -> Launch:
    """`given`: positions, frequencies and slots; scale, interleaving and states are attributes of
    the operation. Operands: q, k, v, positions, frequencies, slots, keys, values, out."""
    positions, frequencies, slots = given
    select.require_plain(frequencies)
    for spec, what in ((q, "q"), (k, "k"), (v, "v"), (out, "out")):
        require_contiguous_last(spec, what)
    tokens, heads, size = q.shape
    keys = select.contiguous(op.attrs["keys"].type)
    values = {
        "tokens": tokens, "heads": heads, "kv_heads": k.shape[1], "size": size, "value_size": v.shape[2], "pairs": frequencies.shape[0],
        "interleaved": int(op.attrs["interleaved"]), "rows": ex.product(keys.shape[:-2]), "position_step": positions.strides[0],
        "slot_step": slots.strides[0], "q_token": q.strides[0], "q_head": q.strides[1], "k_token": k.strides[0], "k_head": k.strides[1],
        "v_token": v.strides[0], "v_head": v.strides[1], "out_token": out.strides[0], "out_head": out.strides[1], "k_first": k_first, "v_first": v_first,
        "scale": float(op.attrs["scale"]),
    }  # fmt: skip
    names = ("q", "k", "v", "positions", "frequencies", "slots", "keys", "values", "out")
    return launch(rope_scatter_kernel(q.dtype, positions.dtype, slots.dtype), {name: name for name in names}, values)


@select.rule("accrt.rope_scatter", "cuda")
def _rope_scatter(op: Op, operands: select.Specs, results: select.Specs) -> select.Lowering:
    q, k, v, *given = operands
    made = rope_scatter_launch(op, q, k, v, given, results[0])
    bindings = {name: ("in", i) for i, name in enumerate(("q", "k", "v", "positions", "frequencies", "slots"))}
    return select.Lowering(made, {**bindings, "keys": ("state", 0), "values": ("state", 1), "out": select.OUT})


# ---- Rows of a state -----------------------------------------------------------------------------


@functools.lru_cache(maxsize=None)
def scatter_kernel(index: str) -> KernelDef:
    names = "count rows row_bytes x_row_bytes slot_step".split()

    def grid(v: Mapping[str, Any]) -> Grid:
        return (ex.maximum(ex.ceildiv(v["count"] * v["row_bytes"], 16 * 256), 1), 1, 1)

    params = [reads("x"), reads("slots"), updates("state")] + [symbol(n) for n in names]
    return make_kernel(f"state_scatter_{index}", "state_scatter", "scatter.cu", params, grid, INDEX_TAG=index)


@select.rule("accrt.state_scatter", "cuda")
def _state_scatter(op: Op, operands: select.Specs, results: select.Specs) -> select.Lowering:
    """As on hosts, but that a slot outside writes nothing."""
    x, slots = operands
    made = lower_scatter(x, slots, select.contiguous(op.attrs["state"].type))
    chosen = launch(scatter_kernel(slots.dtype), {"x": "x", "slots": "slots", "state": "state"}, made.values)
    return select.named(chosen, x=("in", 0), slots=("in", 1), state=("state", 0))


@functools.lru_cache(maxsize=None)
def scatter_e4m3_kernel(x: str, index: str) -> KernelDef:
    names = "count rows row_size x_row slot_step".split()

    def grid(v: Mapping[str, Any]) -> Grid:
        return (ex.maximum(ex.ceildiv(v["count"] * v["row_size"], 256), 1), 1, 1)

    params = [reads("x"), reads("slots"), updates("state")] + [symbol(n) for n in names] + [scalar("factor", "f32")]
    return make_kernel(f"state_scatter_e4m3_{x}_{index}", "state_scatter", "scatter_e4m3.cu", params, grid, X_TAG=x, INDEX_TAG=index)


@select.rule("accrt.state_scatter_e4m3", "cuda")
def _state_scatter_e4m3(op: Op, operands: select.Specs, results: select.Specs) -> select.Lowering:
    """As on hosts, but that a slot outside writes nothing."""
    x, slots = operands
    made = lower_scatter_e4m3(x, slots, select.contiguous(op.attrs["state"].type), op.attrs["scale"], scatter_e4m3_kernel)
    return select.named(made, x=("in", 0), slots=("in", 1), state=("state", 0))


# ---- What a step begins with ---------------------------------------------------------------------

_STEP_READ = ("given", "weight", "rows", "row_ids", "pages", "slots", "starts", "lengths")
#: As step_tokens.cu has it: tokens that it makes an order of.
_MOST_ORDERED = 1024


@functools.lru_cache(maxsize=None)
def step_tokens_kernel() -> KernelDef:
    names = "tokens vocabulary row_bytes batch_rows changes table_rows table_size".split()

    def grid(v: Mapping[str, Any]) -> Grid:
        return (ex.maximum(ex.ceildiv(v["tokens"] * v["row_bytes"], 16 * 256), 1), 1, 1)

    params = [reads(name) for name in (*_STEP_READ, "last")] + [updates("table"), writes("out"), writes("order")] + [symbol(n) for n in names]
    return make_kernel("step_tokens", "step_tokens", "step_tokens.cu", params, grid)


@select.rule("accrt.step_tokens", "cuda")
def _step_tokens(op: Op, operands: select.Specs, results: select.Specs) -> select.Lowering:
    """As on hosts, but that what is outside gives 0, and a slot outside writes nothing."""
    for spec in (*operands, *results):
        select.require_plain(spec)
    given, weight, _rows, row_ids, pages = operands[:5]
    sizes_of = {name: ex.product(op.attrs[name].type.shape) for name in ("last", "page_table")}
    values = {
        "tokens": given.shape[0], "vocabulary": weight.shape[0], "row_bytes": weight.shape[1] * weight.element_size, "batch_rows": row_ids.shape[0],
        "changes": pages.shape[0], "table_rows": sizes_of["last"], "table_size": sizes_of["page_table"],
    }  # fmt: skip
    names = (*_STEP_READ, "last", "table", "out", "order")
    bindings: Dict[str, select.Binding] = {name: ("in", i) for i, name in enumerate(_STEP_READ)}
    bindings.update(last=("state", 0), table=("state", 1), out=("out", 0), order=("out", 1))
    return select.Lowering(launch(step_tokens_kernel(), {name: name for name in names}, values), bindings)


# ---- Attention over pages ------------------------------------------------------------------------

_SIZES = ("tokens", "rows", "group", "kv_heads", "value_size", "window", "units")
#: Blocks that keep the machine busy: two for each multiprocessor of the largest that this is made
#: for.
_BLOCKS = 264
#: Of one token: one for each, so that weights of the next products have room beside them.
_BLOCKS_OF_ONE = 128
_MOST_CHUNKS = 4
_KV_TYPES = {**TYPES, "u8": "accrt_cuda::e4m3"}
#: As paged_tiles.cuh has them: rows of a tile, keys of a unit, and units that a block takes at
#: once.
TILE_ROWS, _TILE_UNIT, _TILE_UNITS, _TILE_WARPS = 16, 128, 4, 4
#: As paged_walk.cuh has them: key heads of a block, stages; and the most query heads of a key head.
_WALK_HEADS, _WALK_STAGES, _WALK_GROUP = 4, 3, 8
#: Its blocks that a multiprocessor holds, and multiprocessors.
_WALK_BLOCKS = 8 // _WALK_HEADS * 132
#: As paged_one.cuh has them: blocks of a key head, query heads of one, and rows of parts.
_ONE_BLOCKS, _ONE_GROUP, _ONE_PARTS = 8, 8, 24
#: Where all devices have clusters it is taken with so many key heads, and with fewer where a row of
#: the page table has room for so many keys at most.
_ONE_HEADS, _ONE_KEYS = 8, 4096
#: Which tokens a launch is for: all, those that are the only one of their row, all but those.
_ALL, _ALONE, _OTHERS = range(3)
#: Rows from which, in steps with prompts, tokens of rows that decode have a launch of their own.
_MANY_ROWS = 64


def _parameters(which: bool = False) -> List[Any]:
    names = "head_size pages page_size table_rows table_pages q_token q_head out_token out_head".split()
    return (
        [reads(name) for name in ("q", "k", "v", "table", "row_ids", "row_starts", "kv_lengths")]
        + [reads("sinks", optional=True), writes("out", optional=True), writes("partial", optional=True)]
        + [symbol(name) for name in (*_SIZES, *names)]
        + [scalar("scale", "f32"), scalar("soft_cap", "f32")]
        + ([symbol("which")] if which else [])
    )


def _flag(value: bool) -> str:
    return str(value).lower()


def _more(plain: bool) -> str:
    """Of the names of kernels that take sinks and chunks; the others spend nothing on them."""
    return "" if plain else "_more"


def _attention_grid(rows: int) -> Callable[[Mapping[str, Any]], Grid]:
    """A block for each token and `rows` query heads of a key head."""

    def grid(v: Mapping[str, Any]) -> Grid:
        return (ex.maximum(v["tokens"], 1), v["kv_heads"] * ex.ceildiv(v["group"], rows), ex.maximum(v["shares"], 1))

    return grid


@functools.lru_cache(maxsize=None)
def attention_kernel(q: str, kv: str, chunks: int, rows: int, full: bool, plain: bool) -> KernelDef:
    """`chunks`: of 64 of the head; `rows`: query heads that go through the keys together; `full`:
    heads fill their chunks, so that keys are loaded 16 bytes at a time."""
    name = f"paged_attention_{q}_{kv}_{chunks}_{rows}" + ("" if full else "_part") + _more(plain)
    return entry_kernel(
        name, "paged_attention", "paged_attention.cuh", "ACCRT_CUDA_PAGED_ATTENTION", (TYPES[q], _KV_TYPES[kv], chunks, rows, _flag(full), _flag(plain)),
        _parameters(), _attention_grid(rows), 128
    )  # fmt: skip


@functools.lru_cache(maxsize=None)
def tiles_kernel(q: str, kv: str, chunks: int, plain: bool) -> KernelDef:
    name = f"paged_tiles_{q}{'' if q == kv else '_' + kv}_{chunks}{_more(plain)}"
    return entry_kernel(
        name, "paged_attention", "paged_tiles.cuh", "ACCRT_CUDA_PAGED_TILES", (TYPES[q], _KV_TYPES[kv], chunks, _flag(plain)), _parameters(True),
        _attention_grid(TILE_ROWS), 128
    )  # fmt: skip


@functools.lru_cache(maxsize=None)
def prompts_kernel(q: str, kv: str, chunks: int, plain: bool) -> KernelDef:
    """tiles_kernel for many tokens: a block has a tile for each warp."""
    name = f"paged_prompts_{q}{'' if q == kv else '_' + kv}_{chunks}{_more(plain)}"

    def grid(v: Mapping[str, Any]) -> Grid:
        tokens_each = TILE_ROWS // min(v["group"], TILE_ROWS) * _TILE_WARPS
        return (ex.ceildiv(v["tokens"], tokens_each) + v["rows"] + 1, v["kv_heads"] * ex.ceildiv(v["group"], TILE_ROWS), 1)

    return entry_kernel(
        name, "paged_attention", "paged_tiles.cuh", "ACCRT_CUDA_PAGED_PROMPTS", (TYPES[q], _KV_TYPES[kv], chunks, _flag(plain)), _parameters(True), grid, 32 * _TILE_WARPS
    )


def _walk_shared(kv: str, chunks: int) -> int:
    """As walk_layout has it."""
    size = 1 if kv == "u8" else 2
    row, step = _WALK_HEADS * 64 * chunks * size, 64 // chunks // size
    return _WALK_STAGES * (step * (2 * row + 32 * size + 16) + 24)


@functools.lru_cache(maxsize=None)
def walk_kernel(q: str, kv: str, chunks: int, plain: bool) -> KernelDef:
    """For rows of one token: blocks that stay, and walk all tokens."""
    name = f"paged_walk_{q}{'' if q == kv else '_' + kv}_{chunks}{_more(plain)}"
    entry, types = "accrt_" + name, f"{TYPES[q]}, {_KV_TYPES[kv]}, {chunks}"
    tiles = CudaSource("paged_walk.cuh", text=f"ACCRT_CUDA_PAGED_WALK_TILES({entry}, {types}, {_flag(plain)})\n", flags=FLAGS)
    own = CudaSource("paged_walk.cuh", text=f"ACCRT_CUDA_PAGED_WALK({entry}, {types}, {_WALK_HEADS}, {_flag(plain)})\n", flags=FLAGS)
    threads = (32 * (_WALK_HEADS + (4 if chunks == 1 else 2)), 1, 1)

    def grid(v: Mapping[str, Any]) -> Grid:
        return (ex.maximum(ex.minimum(v["tokens"] * (v["kv_heads"] // _WALK_HEADS), _WALK_BLOCKS), 1), 1, 1)

    return KernelDef(
        "cuda." + name, "paged_attention", tiles, layout([*_parameters(True), reads("order", optional=True)]), grid, entry=entry, family="cuda",
        block=(128, 1, 1),
        specials=(CudaVariant("sm_90", own, threads, (0, 0, 0), _walk_shared(kv, chunks), entry),), traits=TRAITS,
    )  # fmt: skip


def _one_shared(chunks: int) -> int:
    """As one_block has it."""
    head = 64 * chunks
    return _TILE_UNIT * ((head + 8) * 2 + 16 + 32 + 2) + _ONE_PARTS * (head + 2) * 4 + 16


@functools.lru_cache(maxsize=None)
def one_kernel(q: str, kv: str, chunks: int, plain: bool) -> KernelDef:
    """For one token: the blocks of a key head are a cluster, and join what they have made."""
    name = f"paged_one_{q}{'' if q == kv else '_' + kv}_{chunks}{_more(plain)}"
    entry, types = "accrt_" + name, f"{TYPES[q]}, {_KV_TYPES[kv]}, {chunks}, {_flag(plain)}"
    tiles, own = (CudaSource("paged_one.cuh", text=f"ACCRT_CUDA_PAGED_{macro}({entry}, {types})\n", flags=FLAGS) for macro in ("ONE_TILES", "ONE"))

    def grid(v: Mapping[str, Any]) -> Grid:
        return (1, v["kv_heads"], _ONE_BLOCKS)

    return KernelDef(
        "cuda." + name, "paged_attention", tiles, layout(_parameters(True)), grid, entry=entry, family="cuda", block=(128, 1, 1),
        specials=(CudaVariant("sm_90", own, (128, 1, 1), (1, 1, _ONE_BLOCKS), _one_shared(chunks), entry),), traits=TRAITS,
    )  # fmt: skip


@functools.lru_cache(maxsize=None)
def join_kernel(q: str, tiles: bool, plain: bool) -> KernelDef:
    params = (
        [reads(name) for name in ("partial", "row_ids", "row_starts", "kv_lengths")] + [reads("sinks", optional=True), writes("out")]
        + [symbol(name) for name in (*_SIZES, "out_token", "out_head", "most_keys", "table_rows")]
    )  # fmt: skip

    def grid(v: Mapping[str, Any]) -> Grid:
        return (ex.maximum(v["tokens"], 1), v["group"] * v["kv_heads"], 1)

    name, file, macro = (
        ("paged_tiles_join", "paged_tiles.cuh", "ACCRT_CUDA_PAGED_TILES_JOIN") if tiles else ("paged_join", "paged_attention.cuh", "ACCRT_CUDA_PAGED_JOIN")
    )
    return entry_kernel(f"{name}_{q}{_more(plain)}", "paged_attention", file, macro, (TYPES[q], _flag(plain)), params, grid, 64 if tiles else 128)


@select.rule("accrt.walked_attention", "cuda")
@select.rule("accrt.paged_attention", "cuda")
def _paged_attention(op: Op, operands: select.Specs, results: select.Specs) -> select.Lowering:
    at, q, out = op.attrs, operands[0], results[0]
    k, v, table = (select.contiguous(at[name].type) for name in ("keys", "values", "page_table"))
    require_contiguous_last(q, "q")
    require_contiguous_last(out, "out")
    (tokens, heads, size), value_size, kv_heads = q.shape, v.shape[3], k.shape[2]
    group, chunks = heads // kv_heads, ex.ceildiv(max(size, value_size), 64)
    if chunks > _MOST_CHUNKS:
        raise ValueError(f"paged attention: head size {max(size, value_size)}, at most {64 * _MOST_CHUNKS} is possible")
    full = size == value_size == 64 * chunks
    tiles = full and chunks <= 2 and k.dtype in (q.dtype, "u8") and q.dtype in OPERANDS
    rows = TILE_ROWS if tiles else next(n for n in (1, 2, 4) if n >= group or n == (4 if chunks <= 2 else 2))
    unit, together = (_TILE_UNIT, _TILE_UNITS) if tiles else (paged.UNIT, 1)
    units = ex.ceildiv(table.shape[1] * k.shape[1], unit)
    blocks = ex.maximum(tokens, 1) * (kv_heads * ex.ceildiv(group, rows))
    values = {
        "tokens": tokens, "rows": operands[1].shape[0], "group": group, "kv_heads": kv_heads, "value_size": value_size,
        "window": paged.window_of(at["window"], at["chunk"]), "units": units, "head_size": size, "pages": k.shape[0], "page_size": k.shape[1],
        "table_rows": table.shape[0], "table_pages": table.shape[1], "q_token": q.strides[0], "q_head": q.strides[1],
        "out_token": out.strides[0], "out_head": out.strides[1], "soft_cap": float(at["soft_cap"] or 0.0),
        "scale": 1.0 / math.sqrt(size) if at["scale"] is None else float(at["scale"]), "most_keys": table.shape[1] * k.shape[1], "which": _ALL,
    }  # fmt: skip

    tensors = {name: name for name in ("q", "k", "v", "table", "row_ids", "row_starts", "kv_lengths")}
    plain = operands[4] is None and at["chunk"] is None
    last = {"out": "out", **({} if operands[4] is None else {"sinks": "sinks"})}

    def lower(shared: bool) -> Tuple[Launch, ...]:
        kernel = tiles_kernel(q.dtype, k.dtype, chunks, plain) if tiles else attention_kernel(q.dtype, k.dtype, chunks, rows, full, plain)
        if not shared:
            return (launch(kernel, {**tensors, **last}, {**values, "shares": 1}),)
        busy = ex.minimum(_BLOCKS_OF_ONE * ex.maximum(tokens, 1), _BLOCKS)
        shares = ex.minimum(ex.ceildiv(units, together), sizes.ceildiv(sizes.constant(busy), sizes.constant(blocks)))
        joined = {**{name: name for name in ("partial", "row_ids", "row_starts", "kv_lengths")}, **last}
        parts = {"partial": "partial", **(last if tiles else {})}
        return launch(kernel, {**tensors, **parts}, {**values, "shares": shares}), launch(join_kernel(q.dtype, tiles, plain), joined, values)

    most_tokens = ex.ceildiv(_BLOCKS, kv_heads * ex.ceildiv(group, rows)) - 1
    made = select.paged_attention(op, operands, lower, most_tokens, unit, together)
    if not tiles:
        return made

    def one(kernel: KernelDef, which: int) -> Launch:
        return launch(kernel, {**tensors, **last}, {**values, "which": which})

    kinds, count = (q.dtype, k.dtype, chunks, plain), operands[1].shape[0]
    prompts, walks = prompts_kernel(*kinds), walk_kernel(*kinds)
    options: List[Tuple[Any, Tuple[Launch, ...]]] = [(1, (one(prompts, _ALL),))]
    if group <= _WALK_GROUP and kv_heads % _WALK_HEADS == 0:
        options.insert(0, (less_equal(tokens, count), (one(walks, _ALL),)))
        if len(operands) > 5:
            ordered = launch(walks, {**tensors, **last, "order": "order"}, values)
            options.insert(0, (logical_and(less_equal(tokens, _MOST_ORDERED), less_equal(tokens, count)), (ordered,)))
        options.insert(-1, (less_equal(_MANY_ROWS, count), (one(walks, _ALONE), one(prompts, _OTHERS))))
    chosen = [(logical_and(less_equal(most_tokens + 1, tokens), condition), launches) for condition, launches in options]
    if group <= _ONE_GROUP and select.has_clusters(op):
        is_one: Any = less_equal(tokens, 1)
        if kv_heads < _ONE_HEADS:
            is_one = logical_and(is_one, less_equal(table.shape[1] * k.shape[1], _ONE_KEYS))
        chosen.insert(0, (is_one, (one(one_kernel(*kinds), _ALL),)))
    return _of_many(made, op, operands, chosen)


def _of_many(made: select.Lowering, op: Op, operands: select.Specs, options: List[Tuple[Any, Tuple[Launch, ...]]]) -> select.Lowering:
    """Steps of many tokens: where rows have one each, they are walked; where there are more and
    rows are many, those that have one are walked, and the others have tiles; else all have
    tiles."""
    bound: Mapping[str, select.Binding] = {**select.paged_operands(operands), "order": ("in", 5), "out": select.OUT}
    late, kept = select.late_symbols(op.block.function), []
    for condition, launches in options:
        condition = sizes.simplify(condition)
        if any(name in late for name in sizes.symbols_of(condition)) or (isinstance(condition, int) and not condition):
            continue
        *before, last = (select.Lowering(made, {name: bound[name] for name in made.buffers}) for made in launches)
        chosen = dataclasses.replace(last, before=tuple(before))
        if isinstance(condition, int):
            return dataclasses.replace(chosen, alternatives=tuple(kept))
        kept.append((condition, chosen))
    return dataclasses.replace(made, alternatives=(*kept, *made.alternatives))
