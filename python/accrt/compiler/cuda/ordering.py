"""Records of running sums, sorting, elements written at places, and products of groups of rows
(cumsum.cu, sort.cu, sort_parts.cu, scatter_to.cu, scatter_lines.cu, grouped.cuh and product.cu)."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from ... import bundle_writer as bw
from .. import expr as sizes
from .. import ops, select
from ..declared import TensorType
from ..ir import Op
from ..kernels import expr as ex
from ..kernels import ordering as host
from ..kernels.kerneldef import DTYPE_SIZES, CudaSource, KernelDef, Launch, Param, TensorSpec, launch, layout, reads, symbol, updates, workspace, writes
from . import elementwise
from .norms import TYPES, entry_kernel
from .products import OPERANDS, at_most, resolved
from .tensor_ops import make_kernel

Grid = Tuple[Any, Any, Any]
_FLOATS = ("f16", "bf16", "f32", "f64")


# ---- Running sums --------------------------------------------------------------------------------

#: Elements of a line that one block adds up; the length of lines up to which a thread does each.
PIECE, SHORT = 4096, 64
_CUMSUM_NAMES = "outer n inner pieces x_outer x_n x_inner out_outer out_n out_inner".split()


@functools.lru_cache(maxsize=None)
def cumsum_kernel(step: str, x: str, out: str) -> KernelDef:
    """step: columns, totals or lines, as in cumsum.cu."""

    def grid(v: Mapping[str, Any]) -> Grid:
        if step == "columns":
            return (ex.maximum(ex.ceildiv(v["inner"], 32), 1), ex.minimum(ex.maximum(v["outer"], 1), 65535), 1)
        return (ex.maximum(v["pieces"], 1), ex.minimum(ex.maximum(v["outer"] * v["inner"], 1), 65535), 1)

    totals = writes("totals") if step == "totals" else reads("totals", optional=True)
    params = [reads("x"), totals, writes("out", optional=step == "totals")] + [symbol(n) for n in _CUMSUM_NAMES]
    tags = {"X_TAG": x, "OUT_TAG": out, "SUM": "double" if out in _FLOATS else "long long", "STEP": step.upper()}
    return make_kernel(f"cumsum_{step}_{x}", "cumsum", "cumsum.cu", params, grid, **tags)


@select.rule("aten.cumsum", "cuda")
def _cumsum(op: Op, operands: select.Specs, results: select.Specs) -> select.Lowering:
    """Floats are added in f64, as on hosts."""
    x, out = operands[0], results[0]
    if x.rank == 0:
        raise ValueError("cumsum: kernels take an axis")
    v = dict(host.lower_cumsum(x, out, ops.axis_of(op.attrs["dim"], x.rank)).values)
    n, is_line = v["n"], ex.equal(v["inner"], 1)
    if is_line and ex.is_static(n) and n <= SHORT:  # each line is a column
        v.update(inner=v["outer"], x_inner=v["x_outer"], out_inner=v["out_outer"], outer=1)
        is_line = False
    elif ex.equal(v["x_n"], 1):
        is_line = True
    v["pieces"] = ex.ceildiv(n, PIECE)

    def one(step: str, *more: str) -> select.Lowering:
        bound: Dict[str, select.Binding] = {"x": ("in", 0), "totals": ("temporary", 0), "out": select.OUT}
        names = ("x", *more)
        return select.Lowering(launch(cumsum_kernel(step, x.dtype, out.dtype), {m: m for m in names}, v), {m: bound[m] for m in names})

    if not is_line:
        return one("columns", "out")
    whole, short = one("lines", "out"), at_most(n, PIECE)
    if ex.is_static(short) and short:
        return whole
    last = one("lines", "totals", "out")
    totals = TensorType("f64" if out.dtype in _FLOATS else "i64", (sizes.simplify(sizes.constant(v["outer"]) * v["inner"] * v["pieces"]),))
    return select.Lowering(last.launch, last.bindings, (one("totals", "totals"),), (totals,), () if ex.is_static(short) else ((short, whole),))


# ---- Sorting -------------------------------------------------------------------------------------

_KEYS = {
    **dict.fromkeys(("f16", "bf16", "f32"), "FLOAT32"), "f64": "FLOAT64", **dict.fromkeys(("i8", "i16", "i32"), "SIGNED32"), "i64": "SIGNED64",
    "u64": "UNSIGNED64",
}  # fmt: skip
#: Lengths up to which lines are sorted in shared memory, and blocks that have a part of the
#: workspace where they are longer.
PADS, SORT_BLOCKS = (64, 512, 2048), 132
_SORT_NAMES = ["outer", "n", "inner", "descending"] + [f"{t}_{n}" for t in ("x", "values", "places") for n in ("outer", "n", "inner")]


@functools.lru_cache(maxsize=None)
def sort_kernel(x: str, pad: int) -> KernelDef:
    """pad: lines of up to so many; 0: of any length."""
    key = _KEYS.get(x, "UNSIGNED")
    wide = key.endswith("64")
    name = f"sort_{x}_{pad or 'any'}"
    tags = (("X_TAG", x), ("KEY", key), ("KEY_T", "uint64_t" if wide else "uint32_t"), ("PAD", str(pad)), ("ENTRY", "accrt_" + name))
    more: List[Param] = [] if pad else [workspace("work")]
    params = layout([reads("x"), writes("values"), writes("places"), *more] + [symbol(n) for n in _SORT_NAMES])
    teams = max(1, 256 // pad) if pad else 1

    def grid(v: Mapping[str, Any]) -> Grid:
        lines = ex.maximum(v["outer"] * v["inner"], 1)
        return (ex.ceildiv(lines, teams) if pad else ex.minimum(lines, SORT_BLOCKS), 1, 1)

    return KernelDef(
        "cuda." + name, "sort", CudaSource("sort.cu", defines=tags), params, grid, traits=elementwise.TRAITS, entry="accrt_" + name, family="cuda",
        block=(teams * pad // 2 if pad else 1024, 1, 1), workspace_bytes=None if pad else lambda v: grid(v)[0] * v["n"] * (24 if wide else 16),
    )  # fmt: skip


def lower_sort(x: TensorSpec, values: TensorSpec, places: TensorSpec, axis: int, descending: bool) -> Launch:
    """Operands: x, values, places."""
    made = host.lower_sort(x, values, places, axis, descending)
    n = made.values["n"]
    if ex.is_static(n) and n >= 1 << 32:
        raise ValueError(f"sort: lines of {n} elements, less than 2^32 are possible")
    pads = PADS if ex.is_static(n) else PADS[::2]
    options = [(at_most(n, pad), launch(sort_kernel(x.dtype, pad), made.buffers, made.values)) for pad in pads]
    return resolved([*options, (1, launch(sort_kernel(x.dtype, 0), made.buffers, made.values))])


#: Of long lines: how an element becomes a key, where it is not as above, and the bytes of keys;
#: elements that a block takes at once, and parts of a line at most.
_SHORT_KEYS = {"f16": "F16", "bf16": "BF16", "i8": "SIGNED8", "i16": "SIGNED16"}
_KEY_BYTES = {"f16": 2, "bf16": 2, "f64": 8, "i8": 1, "u8": 1, "bool": 1, "i16": 2, "u16": 2, "i64": 8, "u64": 8}
_CHUNK, _MOST_PARTS, _BINS = 2048, 256, 256
#: Elements of all lines up to which these are sorted in parts: a block for each line keeps the
#: machine busy where there are more, and needs less memory.
MOST_IN_PARTS = 1 << 26


@functools.lru_cache(maxsize=None)
def parts_kernel(x: str, step: str, first: bool, last: bool, places: int = 0) -> KernelDef:
    """step: count or pass, as in sort_parts.cu. places: bytes of those where elements are places of
    an axis."""

    def grid(v: Mapping[str, Any]) -> Grid:
        return (ex.maximum(v["parts"], 1), ex.minimum(ex.maximum(v["outer"] * v["inner"], 1), 65535), 1)

    params = [reads("x"), writes("values", optional=not last), writes("places", optional=not last)]
    params += [writes("work") if step == "count" else updates("work")]
    params += [symbol(n) for n in [*_SORT_NAMES, "each", "parts", "pass", "size"]]
    size = places or _KEY_BYTES.get(x, 4)
    tags = {"X_TAG": x, "KEY": _SHORT_KEYS.get(x, _KEYS.get(x, "UNSIGNED")), "KEY_T": "uint64_t" if size == 8 else "uint32_t", "PASSES": str(size)}
    name = f"sort_{step}_{x}{f'_place{places}' if places else ''}{'_first' * first}{'_last' * last}"
    tags.update(STEP=step.upper(), FIRST=str(int(first)), LAST=str(int(last)), OF_PLACES=str(int(places > 0)))
    return make_kernel(name, "sort", "sort_parts.cu", params, grid, (512, 1, 1), **tags)


def sort_steps(
    made: Launch, dtype: str, work: select.Binding, bound: Mapping[str, select.Binding], size: Any = None
) -> Tuple[List[select.Lowering], TensorType]:  # fmt: skip
    """What sorts lines in parts, in order, and their workspace; `made` is of lower_sort. `size`: of
    the axis that elements are places of, where they are."""
    v, passes, places = dict(made.values), _KEY_BYTES.get(dtype, 4), 0
    if dtype in ("i32", "u32", "i64") and ex.is_static(size) and size < 1 << 31:
        passes = places = (int(size).bit_length() + 7) // 8 or 1
    v["size"] = size if places else 0
    chunks = ex.ceildiv(v["n"], _CHUNK)
    v["each"] = ex.maximum(ex.ceildiv(chunks, _MOST_PARTS), 1) * _CHUNK
    v["parts"] = ex.ceildiv(v["n"], v["each"])
    steps = []
    for number in range(-1, passes):
        first, last = number == 0, number == passes - 1
        kernel = parts_kernel(dtype, "count" if number < 0 else "pass", first, last, places)
        names = ("x", "values", "places", "work") if last else ("x", "work")
        one = launch(kernel, {n: n for n in names}, {**v, "pass": max(number, 0)})
        steps.append(select.Lowering(one, {n: {**bound, "work": work}[n] for n in names}))
    lines = sizes.simplify(sizes.constant(v["outer"]) * v["inner"])
    kept = min(passes - 1, 2) * (3 if passes == 8 else 2)
    words = sizes.simplify(sizes.constant(lines) * v["n"] * kept + sizes.constant(lines) * v["parts"] * (passes * _BINS) + 1)
    return steps, TensorType("i32", (words,))


def at_once(v: Mapping[str, Any]) -> Optional[List[Any]]:
    """Conditions for sorting each line by one block: lines that are short, or many. None: they
    are."""
    total = sizes.simplify(sizes.constant(v["outer"]) * v["n"] * v["inner"])
    found = [at_most(v["n"], PADS[-1]), more_than(total, MOST_IN_PARTS)]
    return None if any(ex.is_static(c) and c for c in found) else [c for c in found if not ex.is_static(c)]


def more_than(a: Any, b: int) -> Any:
    """1, 0 or a condition."""
    return int(a > b) if ex.is_static(a) else sizes.simplify(bw.less_equal(b + 1, a))


@select.rule("aten.sort", "cuda")
def _sort(op: Op, operands: select.Specs, results: select.Specs) -> select.Lowering:
    x = operands[0]
    if x.rank == 0:
        raise ValueError("sort: kernels take an axis")
    made = lower_sort(x, results[0], results[1], ops.axis_of(op.attrs["dim"], x.rank), op.attrs["descending"])
    bound: Dict[str, select.Binding] = {"x": ("in", 0), "values": select.OUT, "places": ("out", 1)}
    whole, conditions = select.Lowering(made, bound), at_once(made.values)
    if conditions is None:
        return whole
    (*before, last), work = sort_steps(made, x.dtype, ("temporary", 0), bound)
    return select.Lowering(last.launch, last.bindings, tuple(before), (work,), tuple((c, whole) for c in conditions))


# ---- Elements at places --------------------------------------------------------------------------

#: Elements up to which each place looks at the whole index.
FEW_ELEMENTS = 64
_SIZED = {1: "u8", 2: "f16", 4: "u32", 8: "i64"}
_SCATTER_NAMES = (
    "outer size inner count x_outer x_size x_inner out_outer out_size out_inner index_outer index_count index_inner "
    "source_outer source_count source_inner last_outer last_size last_inner"
).split()


@functools.lru_cache(maxsize=None)
def scatter_kernel(step: str, x: str, index: str, add: bool, rows: bool = False) -> KernelDef:
    """step: whole, clear, mark, take or sorted, as in scatter_to.cu."""
    chunk = 256 if add else 2048 // DTYPE_SIZES[x]

    def grid(v: Mapping[str, Any]) -> Grid:
        if rows:
            pieces = v["outer"] * v["size"] * ex.ceildiv(v["inner"], chunk)
            return (ex.maximum(ex.minimum(ex.ceildiv(pieces, 8), 1 << 20), 1), 1, 1)
        elements = v["outer"] * v["count" if step == "mark" else "size"] * v["inner"]
        return (ex.maximum(ex.minimum(ex.ceildiv(elements, 256), 1 << 20), 1), 1, 1)

    last = {"clear": writes("last"), "mark": updates("last")}.get(step, reads("last", optional=True))
    out = writes("out", optional=step in ("clear", "mark"))
    buffers = [reads("x", optional=True), reads("index", optional=True), reads("source", optional=True), out, last, reads("order", optional=True)]
    tags = {"X_TAG": x, "INDEX_TAG": index, "ADD": str(int(add)), "STEP": step.upper(), "ROWS": str(int(rows))}
    name = f"scatter_{step}_{'add_' if add else ''}{'rows_' if rows else ''}{x}_{index}"
    return make_kernel(name, "scatter", "scatter_to.cu", [*buffers, *(symbol(n) for n in _SCATTER_NAMES)], grid, **tags)


#: Places and elements of a line up to which a block adds it up in shared memory.
LINE_PADS = (256, 1024, 2048)


@functools.lru_cache(maxsize=None)
def lines_kernel(x: str, index: str, pad: int) -> KernelDef:
    def grid(v: Mapping[str, Any]) -> Grid:
        return (ex.maximum(ex.minimum(v["outer"] * v["inner"], 1 << 20), 1), 1, 1)

    params = [reads("x"), reads("index"), reads("source"), writes("out"), *(symbol(n) for n in _SCATTER_NAMES[:-3])]
    return make_kernel(f"scatter_lines_{x}_{index}_{pad}", "scatter", "scatter_lines.cu", params, grid, X_TAG=x, INDEX_TAG=index, PAD=str(pad))


def _lines(x: str, index: str, v: Mapping[str, Any], bound: Mapping[str, select.Binding]) -> List[Tuple[Any, select.Lowering]]:
    """What adds short lines that each have an index of their own, and conditions for it."""
    longest, found = ex.maximum(v["size"], v["count"]), []
    for pad in LINE_PADS:
        if pad == LINE_PADS[-1] and DTYPE_SIZES[x] == 8:
            continue  # more shared memory than blocks have without asking
        condition = at_most(longest, pad)
        names = ("x", "index", "source", "out")
        made = launch(lines_kernel(x, index, pad), {n: n for n in names}, {n: v[n] for n in _SCATTER_NAMES[:-3]})
        found += [(condition, select.Lowering(made, {n: bound[n] for n in names}))]
        if ex.is_static(condition) and condition:
            break
    return [one for one in found if not ex.is_static(one[0]) or one[0]]


@select.rule("accrt.scatter", "cuda")
def _scatter(op: Op, operands: select.Specs, results: select.Specs) -> select.Lowering:
    """As on hosts, bit for bit: the last of several elements for one place stays, and they are
    added in order."""
    x, index, source = operands
    add = op.attrs["add"]
    v = dict(host.lower_scatter(x, index, source, results[0], ops.axis_of(op.attrs["dim"], x.rank), add).values)
    # Where the index is the same along an axis, so is what is made of it.
    outer, inner = (1 if ex.equal(v[f"index_{side}"], 0) else v[side] for side in ("outer", "inner"))
    kind = x.dtype if add else _SIZED[x.element_size]
    is_row = ex.equal(v["index_inner"], 0) and not (ex.is_static(v["inner"]) and v["inner"] < 32)
    v.update(last_outer=0, last_size=0, last_inner=0)
    bound: Dict[str, select.Binding] = {
        "x": ("in", 0), "index": ("in", 1), "source": ("in", 2), "out": select.OUT, "last": ("temporary", 0), "order": ("temporary", 1),
    }  # fmt: skip

    def one(step: str, names: Sequence[str], values: Mapping[str, Any], **more: select.Binding) -> select.Lowering:
        kernel = scatter_kernel(step, kind, index.dtype, add, is_row and step not in ("clear", "mark"))
        return select.Lowering(launch(kernel, {n: n for n in names}, values), {n: {**bound, **more}[n] for n in names})

    whole, few = one("whole", ("x", "index", "source", "out"), v), at_most(v["count"], FEW_ELEMENTS)
    if ex.is_static(few) and few:
        return whole
    choices: List[Tuple[Any, select.Lowering]] = [] if ex.is_static(few) else [(few, whole)]
    if add:
        choices += [] if is_row else _lines(kind, index.dtype, v, bound)
        if choices and ex.is_static(choices[-1][0]):
            return dataclasses.replace(choices[-1][1], alternatives=tuple(choices[:-1]))
        names = ("x", "index", "source", "out", "order")
        ways, temporaries, steps = _sorted_index(index.dtype, v, outer, inner)
        made = one("sorted", names, {**v, **steps}, index=("temporary", 0))
        ways = [(condition, dataclasses.replace(made, before=before)) for condition, before in ways]
        return dataclasses.replace(ways[-1][1], temporaries=temporaries, alternatives=(*choices, *ways[:-1]))
    if ex.is_static(v["count"]) and v["count"] >= 1 << 31:
        raise ValueError(f"scatter of {v['count']} elements, less than 2^31 are possible")
    v.update(last_outer=sizes.simplify(sizes.constant(v["size"]) * inner), last_size=inner, last_inner=1)
    for side, size in (("outer", outer), ("inner", inner)):
        if ex.is_static(size) and size == 1:
            v[f"last_{side}"] = 0
    alone = {**v, "outer": outer, "inner": inner}
    last = TensorType("i32", (sizes.simplify(sizes.constant(outer) * v["size"] * inner),))
    before = (one("clear", ("last",), alone), one("mark", ("index", "last"), alone))
    made = one("take", ("x", "source", "out", "last"), v)
    return select.Lowering(made.launch, made.bindings, before, (last,), () if ex.is_static(few) else ((few, whole),))


def _sorted_index(dtype: str, v: Mapping[str, Any], outer: Any, inner: Any) -> Tuple[Any, Any, Dict[str, Any]]:
    """Ways to sort each line of an index, stably, and conditions for them, the last without; the
    places and their order, lines side by side, and what else they hand on; and the steps of
    those."""
    count = v["count"]
    shape = (outer, count, inner)
    line = sizes.simplify(sizes.constant(count) * inner)
    index = TensorSpec(dtype, shape, (v["index_outer"], v["index_count"], v["index_inner"]))
    places, order = (TensorSpec(kind, shape, (line, 1, count)) for kind in (dtype, "i64"))
    made = lower_sort(index, places, order, 1, False)
    bound: Dict[str, select.Binding] = {"x": ("in", 1), "values": ("temporary", 0), "places": ("temporary", 1)}
    conditions = at_once(made.values)
    ways: List[Tuple[Any, Tuple[select.Lowering, ...]]] = [(c, (select.Lowering(made, bound),)) for c in ([1] if conditions is None else conditions)]
    work: Tuple[TensorType, ...] = ()
    if conditions is not None:
        parts, kept = sort_steps(made, dtype, ("temporary", 2), bound, v["size"])
        ways, work = [*ways, (1, tuple(parts))], (kept,)
    steps = {
        "index_outer": 0 if ex.equal(v["index_outer"], 0) else line, "index_count": 1, "index_inner": 0 if ex.equal(v["index_inner"], 0) else count,
    }  # fmt: skip
    total = sizes.simplify(sizes.constant(outer) * line)
    return ways, (TensorType(dtype, (total,)), TensorType("i64", (total,)), *work), steps


# ---- Groups of rows ------------------------------------------------------------------------------

_GROUPED_NAMES = "rows n k matrices x_row out_row ends_step w_matrix w_row".split()
_INDEX_TYPES = {"i32": "int32_t", "i64": "int64_t", "u8": "uint8_t", "u32": "uint32_t", "i8": "int8_t"}
#: Rows of a matrix, on average, up to which tiles are 64 x 64.
SMALL_GROUP = 96


def _grouped_grid(size: int) -> Any:
    def grid(v: Mapping[str, Any]) -> Grid:
        return (v["rows"] // size + v["matrices"] + 1, ex.maximum(ex.ceildiv(v["n"], size), 1), 1)

    return grid


_GROUPED_BUFFERS = [reads("x"), reads("w"), reads("ends"), writes("out")]


@functools.lru_cache(maxsize=None)
def grouped_tiles(dtype: str, index: str, size: int, w_is_nk: bool) -> KernelDef:
    name = f"grouped_{dtype}_{index}_{'nk' if w_is_nk else 'kn'}_{size}"
    arguments = (TYPES[dtype], _INDEX_TYPES[index], size, int(w_is_nk))
    params = [*_GROUPED_BUFFERS, *(symbol(n) for n in _GROUPED_NAMES)]
    return entry_kernel(
        name, "grouped_matmul", "grouped.cuh", "ACCRT_CUDA_GROUPED", arguments, params, _grouped_grid(size), 128, local_memory_bytes=3 * 64 * 2 * 2 * size
    )  # fmt: skip


@functools.lru_cache(maxsize=None)
def grouped_any(x: str, w: str, index: str) -> KernelDef:
    params = [*_GROUPED_BUFFERS, *(symbol(n) for n in (*_GROUPED_NAMES, "w_column"))]
    tags = {"A_TAG": x, "B_TAG": w, "C_TAG": x, "BIAS_TAG": x, "ACTIVATION": "0", "INDEX_TAG": index, "LIKE_OPERATOR": "2"}
    return make_kernel(f"grouped_any_{x}_{w}_{index}", "grouped_matmul", "product.cu", params, _grouped_grid(64), **tags)


@select.rule("accrt.grouped_matmul", "cuda")
def _grouped(op: Op, operands: select.Specs, results: select.Specs) -> select.Lowering:
    x, w, ends = operands
    out = results[0]
    if not (ex.equal(x.strides[1], 1) and ex.equal(out.strides[1], 1)):
        raise ValueError("grouped_matmul: rows are contiguous")
    w_is_nk = ex.equal(w.strides[1], 1)
    if not w_is_nk and not ex.equal(w.strides[2], 1):
        raise ValueError(f"grouped_matmul: matrices have strides {w.strides}, one of the last two must be 1")
    v = {"rows": x.shape[0], "n": w.shape[2], "k": w.shape[1], "matrices": w.shape[0], "x_row": x.strides[0], "out_row": out.strides[0]}
    v.update(ends_step=ends.strides[0], w_matrix=w.strides[0], w_row=w.strides[2] if w_is_nk else w.strides[1])
    buffers = {"x": "x", "w": "w", "ends": "ends", "out": "out"}
    if x.dtype == w.dtype and x.dtype in OPERANDS:
        # one kernel alone, where bits must not depend on how many rows there are
        small = 1 if select.is_batch_invariant(op) else at_most(v["rows"], sizes.simplify(sizes.constant(v["matrices"]) * SMALL_GROUP))
        options = [(condition, launch(grouped_tiles(x.dtype, ends.dtype, size, w_is_nk), buffers, v)) for condition, size in ((small, 64), (1, 128))]
        made = resolved(options)
    else:
        columns = {"w_row": w.strides[1], "w_column": w.strides[2]}
        made = launch(grouped_any(x.dtype, w.dtype, ends.dtype), buffers, {**v, **columns})
    return select.named(made, x=("in", 0), w=("in", 1), ends=("in", 2), out=select.OUT)
