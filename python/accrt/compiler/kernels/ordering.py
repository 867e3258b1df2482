"""Records of running sums, sorting, elements written at places, and products of groups of rows."""

from __future__ import annotations

import functools
from typing import Any, Dict, List, Mapping, Tuple

from . import elementwise as ew
from . import expr as ex
from .kerneldef import entry_source, KernelDef, Launch, TensorSpec, launch, layout, reads, symbol, workspace, writes

_FLOATS = ("f16", "bf16", "f32")


def three_sides(what: str, shape: Tuple[Any, ...], axis: int, *strides: Tuple[Any, ...]) -> Tuple[List[Any], List[List[Any]]]:
    """Sizes of what is before an axis, of the axis, and of what is behind it; strides likewise.
    ValueError: they are not one axis each."""
    sides, steps = [], []
    for first, end in ((0, axis), (axis + 1, len(shape))):
        sizes, found = ew.collapse(list(shape[first:end]), [list(s[first:end]) for s in strides])
        if len(sizes) > 1:
            raise ValueError(f"{what}: axes {first} to {end} of {shape} are not one axis")
        sides.append(sizes[0] if sizes else 1)
        steps.append([f[0] if f else 0 for f in found])
    return [sides[0], shape[axis], sides[1]], [[steps[0][i], s[axis], steps[1][i]] for i, s in enumerate(strides)]


def lines_grid(v: Mapping[str, Any]) -> Tuple[Any, Any, Any]:
    return (ex.maximum(ex.minimum(v["outer"] * ex.ceildiv(v["inner"], 64), 64), 1), 1, 1)


@functools.lru_cache(maxsize=None)
def cumsum_kernel(x: str, out: str) -> KernelDef:
    names = "outer n inner x_outer x_n x_inner out_outer out_n out_inner".split()
    name = f"cumsum_{x}"
    producer = entry_source("cumsum.c", "cumsum_params_t", name, X_TAG=x, OUT_TAG=out, SUM="double" if out.startswith(("f", "bf")) else "uint64_t" if x == "u64" else "int64_t")
    return KernelDef(name, "cumsum", producer, layout([reads("x"), writes("out")] + [symbol(n) for n in names]), lines_grid)


def lower_cumsum(x: TensorSpec, out: TensorSpec, axis: int) -> Launch:
    """Operands: x, out."""
    (outer, n, inner), (xs, outs) = three_sides("cumsum", x.shape, axis, x.strides, out.strides)
    values = {"outer": outer, "n": n, "inner": inner, **_named("x", "outer n inner", xs), **_named("out", "outer n inner", outs)}
    return launch(cumsum_kernel(x.dtype, out.dtype), {"x": "x", "out": "out"}, values)


def _named(prefix: str, names: str, items: List[Any]) -> Dict[str, Any]:
    return {f"{prefix}_{name}": item for name, item in zip(names.split(), items)}


_KEYS = {"f16": "FLOAT32", "bf16": "FLOAT32", "f32": "FLOAT32", "f64": "FLOAT64", **dict.fromkeys(ew.SIGNED, "SIGNED")}
#: Groups of lines that have a part of the workspace.
SORT_GROUPS = 16


@functools.lru_cache(maxsize=None)
def sort_kernel(x: str) -> KernelDef:
    names = ["outer", "n", "inner", "descending"] + [f"{t}_{n}" for t in ("x", "values", "places") for n in ("outer", "n", "inner")]
    params = layout([reads("x"), writes("values"), writes("places"), workspace("work")] + [symbol(n) for n in names])
    name = f"sort_{x}"

    def grid(v: Mapping[str, Any]) -> Tuple[Any, Any, Any]:
        return (ex.maximum(ex.minimum(v["outer"] * v["inner"], SORT_GROUPS), 1), 1, 1)

    producer = entry_source("sort.c", "sort_params_t", name, X_TAG=x, KEY=_KEYS.get(x, "UNSIGNED"))
    return KernelDef(name, "sort", producer, params, grid, workspace_bytes=lambda v: grid(v)[0] * v["n"] * 32)


def lower_sort(x: TensorSpec, values: TensorSpec, places: TensorSpec, axis: int, descending: bool) -> Launch:
    """Operands: x, values, places."""
    sizes, steps = three_sides("sort", x.shape, axis, x.strides, values.strides, places.strides)
    given: Dict[str, Any] = {"outer": sizes[0], "n": sizes[1], "inner": sizes[2], "descending": int(descending)}
    for name, step in zip(("x", "values", "places"), steps):
        given.update(_named(name, "outer n inner", step))
    return launch(sort_kernel(x.dtype), {name: name for name in ("x", "values", "places")}, given)


@functools.lru_cache(maxsize=None)
def scatter_kernel(x: str, index: str, add: bool) -> KernelDef:
    names = "outer size inner count x_outer x_size x_inner out_outer out_size out_inner".split()
    names += "index_outer index_count index_inner source_outer source_count source_inner".split()
    params = layout([reads("x"), reads("index"), reads("source"), writes("out")] + [symbol(n) for n in names])
    name = f"scatter_{'add_' if add else ''}{x}_{index}"
    producer = entry_source("scatter_to.c", "scatter_to_params_t", name, X_TAG=x, INDEX_TAG=index, ADD=str(int(add)))
    return KernelDef(name, "scatter", producer, params, lines_grid)


def lower_scatter(x: TensorSpec, index: TensorSpec, source: TensorSpec, out: TensorSpec, axis: int, add: bool) -> Launch:
    """Operands: x, index, source, out. The index is as large as x beside the axis, or has no other
    axis."""
    count = index.shape[-1] if index.rank < x.rank else index.shape[axis]
    if index.rank < x.rank:
        index = TensorSpec(index.dtype, source.shape, tuple(index.strides[0] if d == axis else 0 for d in range(x.rank)))
    sizes, steps = three_sides("scatter", x.shape, axis, x.strides, out.strides, index.strides, source.strides)
    values: Dict[str, Any] = {"outer": sizes[0], "size": sizes[1], "inner": sizes[2], "count": count}
    for name, middle, step in zip(("x", "out", "index", "source"), ("size", "size", "count", "count"), steps):
        values.update(_named(name, f"outer {middle} inner", step))
    return launch(scatter_kernel(x.dtype, index.dtype, add), {name: name for name in ("x", "index", "source", "out")}, values)


@functools.lru_cache(maxsize=None)
def grouped_kernel(x: str, w: str, index: str) -> KernelDef:
    names = "rows n k matrices x_row out_row ends_step".split()
    params = layout([reads("x"), reads("w"), reads("ends"), writes("out")] + [symbol(n) for n in names])
    name = f"grouped_{x}_{w}_{index}"

    def grid(v: Mapping[str, Any]) -> Tuple[Any, Any, Any]:
        return (ex.maximum(ex.ceildiv(v["n"], 64), 1), ex.maximum(v["matrices"], 1), 1)

    producer = entry_source("grouped.c", "grouped_params_t", name, X_TAG=x, W_TAG=w, INDEX_TAG=index)
    return KernelDef(name, "grouped_matmul", producer, params, grid)


def lower_grouped(x: TensorSpec, w: TensorSpec, ends: TensorSpec, out: TensorSpec) -> Launch:
    """Operands: x, w, ends, out. The matrices are contiguous."""
    if x.dtype not in _FLOATS or w.dtype not in _FLOATS:
        raise ValueError(f"grouped_matmul: kernels know f32, f16 and bf16, not {x.dtype} and {w.dtype}")
    if not (ex.equal(x.strides[1], 1) and ex.equal(out.strides[1], 1)):
        raise ValueError("grouped_matmul: rows are contiguous")
    values = {"rows": x.shape[0], "n": w.shape[2], "k": w.shape[1], "matrices": w.shape[0]}
    values.update(x_row=x.strides[0], out_row=out.strides[0], ends_step=ends.strides[0])
    return launch(grouped_kernel(x.dtype, w.dtype, ends.dtype), {name: name for name in ("x", "w", "ends", "out")}, values)
