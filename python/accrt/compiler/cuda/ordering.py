"""Records of running sums, sorting, elements written at places, and products of groups of rows
(cumsum.cu, sort.cu, scatter_to.cu, grouped.cuh and product.cu)."""

from __future__ import annotations

import functools
from typing import Any, Dict, List, Mapping, Sequence, Tuple

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

_KEYS = {**dict.fromkeys(("f16", "bf16", "f32"), "FLOAT32"), "f64": "FLOAT64", "i8": "SIGNED32", "i32": "SIGNED32", "i64": "SIGNED64"}
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


@select.rule("aten.sort", "cuda")
def _sort(op: Op, operands: select.Specs, results: select.Specs) -> select.Lowering:
    x = operands[0]
    if x.rank == 0:
        raise ValueError("sort: kernels take an axis")
    made = lower_sort(x, results[0], results[1], ops.axis_of(op.attrs["dim"], x.rank), op.attrs["descending"])
    return select.named(made, x=("in", 0), values=select.OUT, places=("out", 1))


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
    if add:
        before, temporaries, steps = _sorted_index(index.dtype, v, outer, inner)
        made = one("sorted", ("x", "index", "source", "out", "order"), {**v, **steps}, index=("temporary", 0))
        return select.Lowering(made.launch, made.bindings, before, temporaries, () if ex.is_static(few) else ((few, whole),))
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
    """What sorts each line of an index, stably; the places and their order, lines side by side; and
    the steps of those."""
    count = v["count"]
    shape = (outer, count, inner)
    line = sizes.simplify(sizes.constant(count) * inner)
    index = TensorSpec(dtype, shape, (v["index_outer"], v["index_count"], v["index_inner"]))
    places, order = (TensorSpec(kind, shape, (line, 1, count)) for kind in (dtype, "i64"))
    made = lower_sort(index, places, order, 1, False)
    before = select.Lowering(made, {"x": ("in", 1), "values": ("temporary", 0), "places": ("temporary", 1)})
    steps = {
        "index_outer": 0 if ex.equal(v["index_outer"], 0) else line, "index_count": 1, "index_inner": 0 if ex.equal(v["index_inner"], 0) else count,
    }  # fmt: skip
    total = sizes.simplify(sizes.constant(outer) * line)
    return (before,), (TensorType(dtype, (total,)), TensorType("i64", (total,))), steps


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
        small = at_most(v["rows"], sizes.simplify(sizes.constant(v["matrices"]) * SMALL_GROUP))
        options = [(condition, launch(grouped_tiles(x.dtype, ends.dtype, size, w_is_nk), buffers, v)) for condition, size in ((small, 64), (1, 128))]
        made = resolved(options)
    else:
        columns = {"w_row": w.strides[1], "w_column": w.strides[2]}
        made = launch(grouped_any(x.dtype, w.dtype, ends.dtype), buffers, {**v, **columns})
    return select.named(made, x=("in", 0), w=("in", 1), ends=("in", 2), out=select.OUT)
