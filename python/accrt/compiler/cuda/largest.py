"""Records of what finds the largest of rows: argmax, topk and the sampling pass (topk.cu,
sample.cu)."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, Dict, List, Mapping, Tuple

from .. import expr as sizes
from .. import ops, select
from ...bundle_writer.expressions import less_equal, logical_or
from ..declared import TensorType
from ..ir import Op
from ..kernels import expr as ex
from ..kernels import sampling, tensor_ops
from ..kernels.kerneldef import CudaSource, KernelDef, TensorSpec, launch, layout, reads, symbol, updates, workspace, writes
from . import elementwise
from .norms import FLOATS
from .tensor_ops import make_kernel

#: Of a block, which has one row.
THREADS = 512
#: Of few rows each is shared out: rows up to this, pieces of this many elements.
_FEW, _PIECE = 64, 8192
#: Definitions of topk.cu.
_TOKENS: Tuple[Dict[str, str], Dict[str, str]] = ({}, {"TOKENS": "1"})


def _last(op: Op) -> None:
    x = op.operands[0]
    if x.dtype not in FLOATS or x.rank == 0 or op.attrs["dim"] is None or ops.axis_of(op.attrs["dim"], x.rank) != x.rank - 1:
        raise ValueError(f"{op.name}: kernels take the last dimension of floats of up to 32 bits")


def _row_grid(v: Mapping[str, Any]) -> Tuple[Any, Any, Any]:
    return (ex.maximum(v["rows"], 1), 1, 1)


def _places(tokens: bool) -> List[Any]:
    """What places are written to: tokens to a state as well."""
    return [writes("out")] + ([reads("slots"), updates("state"), symbol("state_rows")] if tokens else [])


@functools.lru_cache(maxsize=None)
def argmax_kernel(x: str, tokens: bool = False) -> KernelDef:
    params = [reads("x"), *_places(tokens)] + [symbol(n) for n in ("rows", "n", "x_row", "out_row")]
    name = f"argmax_{'token_' if tokens else ''}{x}"
    return make_kernel(name, "argmax", "topk.cu", params, _row_grid, (THREADS, 1, 1), X_TAG=x, ONE="1", **_TOKENS[tokens])


@functools.lru_cache(maxsize=None)
def argmax_part(x: str) -> KernelDef:
    """The largest of each piece of a row."""
    params = [reads("x"), writes("partial")] + [symbol(n) for n in ("rows", "n", "x_row", "piece")]

    def grid(v: Mapping[str, Any]) -> Tuple[Any, Any, Any]:
        return (ex.maximum(ex.ceildiv(v["n"], v["piece"]), 1), ex.maximum(v["rows"], 1), 1)

    return make_kernel(f"argmax_part_{x}", "argmax", "topk.cu", params, grid, (THREADS, 1, 1), X_TAG=x, ONE="2")


@functools.lru_cache(maxsize=None)
def argmax_join(tokens: bool = False) -> KernelDef:
    params = [reads("partial"), *_places(tokens)] + [symbol(n) for n in ("rows", "pieces", "out_row")]
    name = f"argmax_join{'_token' if tokens else ''}"
    return make_kernel(name, "argmax", "topk.cu", params, _row_grid, (THREADS, 1, 1), X_TAG="f32", ONE="3", **_TOKENS[tokens])


@select.rule("aten.argmax", "cuda")
def _argmax(op: Op, operands: select.Specs, results: select.Specs) -> select.Lowering:
    _last(op)
    if op.attrs["keepdim"]:
        raise ValueError("argmax: kernels do not keep the dimension")
    return _largest(op, operands[0], tensor_ops.lower_argmax(operands[0], results[0]).values)


@select.rule("accrt.greedy", "cuda")
def _greedy(op: Op, operands: select.Specs, results: select.Specs) -> select.Lowering:
    """As on hosts, but that a slot outside writes nothing."""
    x, slots = operands
    select.require_plain(slots)
    size = sizes.product(op.attrs["last"].type.shape)
    values = {"rows": x.shape[0], "n": x.shape[1], "x_row": x.strides[0], "out_row": 1, "state_rows": size}
    return _largest(op, x, values, slots=("in", 1), state=("state", 0))


def _largest(op: Op, spec: TensorSpec, v: Mapping[str, Any], **given: select.Binding) -> select.Lowering:
    """The places of the largest of rows. `given`: where tokens go."""
    x, tokens = spec.dtype, bool(given)
    names = {name: name for name in ("out", *given)}
    more = {name: v[name] for name in ("state_rows", "rows", "out_row") if name in v}
    to: Dict[str, select.Binding] = {"out": select.OUT, **given}
    whole = select.Lowering(launch(argmax_kernel(x, tokens), {"x": "x", **names}, v), {"x": ("in", 0), **to})
    pieces = sizes.ceildiv(sizes.constant(v["n"]), _PIECE)
    alone = sizes.simplify(logical_or(less_equal(pieces, 1), less_equal(_FEW + 1, v["rows"])))
    late = select.late_symbols(op.block.function)
    if any(name in late for name in sizes.symbols_of(alone)) or (isinstance(alone, int) and alone):
        return whole
    first = launch(argmax_part(x), {"x": "x", "partial": "partial"}, {"rows": v["rows"], "n": v["n"], "x_row": v["x_row"], "piece": _PIECE})
    last = launch(argmax_join(tokens), {"partial": "partial", **names}, {**more, "pieces": pieces})
    parts = select.Lowering(first, {"x": ("in", 0), "partial": ("temporary", 0)})
    size = sizes.simplify(pieces * v["rows"])
    made = select.Lowering(
        last, {"partial": ("temporary", 0), **to}, (parts,), (TensorType("i64", (size if isinstance(alone, int) else sizes.select(alone, 0, size),)),)
    )
    return made if isinstance(alone, int) else dataclasses.replace(made, alternatives=((alone, whole),))


@functools.lru_cache(maxsize=None)
def topk_kernel(x: str) -> KernelDef:
    params = [reads("x"), writes("values"), writes("indices")] + [symbol(n) for n in ("rows", "n", "k", "x_row", "values_row", "indices_row")]
    return make_kernel(f"topk_{x}", "topk", "topk.cu", params, _row_grid, (THREADS, 1, 1), X_TAG=x, ONE="0")


@select.rule("aten.topk", "cuda")
def _topk(op: Op, operands: select.Specs, results: select.Specs) -> select.Lowering:
    _last(op)
    if op.attrs["k"] > THREADS:
        raise ValueError(f"topk: the {op.attrs['k']} largest, at most {THREADS} are possible")
    made = tensor_ops.lower_topk(*operands, *results)
    chosen = launch(topk_kernel(operands[0].dtype), {name: name for name in ("x", "values", "indices")}, made.values)
    return select.named(chosen, x=("in", 0), values=select.OUT, indices=("out", 1))


#: As sample.cu has them: elements of a piece of a row, and words that a piece hands on.
_SAMPLE_PIECE, _SAMPLE_WORDS = 16 * THREADS, 4 * THREADS + 4 + 2 * 512
#: What of the operands the pieces of rows take.
_PART_READ = ("logits", "temperature", "top_k", "top_p", "edit_starts", "mask_rows")
_SAMPLE_SIZES = ("samples", "vocab", "row_step", "edits", "masks", "top")


def _sample_source(part: int, entry: str) -> CudaSource:
    return CudaSource("sample.cu", defines=(("X_TAG", "f32"), ("PART", str(part)), ("ENTRY", entry)))


@functools.lru_cache(maxsize=None)
def sample_kernel() -> KernelDef:
    params = layout(
        [reads(name) for name in sampling.READ] + [writes(name) for name in sampling.WRITTEN] + [reads("partial", optional=True), workspace("work")]
        + [symbol(name) for name in _SAMPLE_SIZES]
    )  # fmt: skip

    def grid(v: Mapping[str, Any]) -> Tuple[Any, Any, Any]:
        return (ex.maximum(v["samples"], 1), 1, 1)

    def work(v: Mapping[str, Any]) -> Any:
        """A bitmap of each row, and the values of edited tokens."""
        return 4 * (v["samples"] * ex.ceildiv(v["vocab"], 32) + v["edits"])

    return KernelDef(
        "cuda.sample", "sample", _sample_source(0, "accrt_sample"), params, grid, traits=elementwise.TRAITS, entry="accrt_sample", family="cuda",
        block=(THREADS, 1, 1), workspace_bytes=work,
    )  # fmt: skip


@functools.lru_cache(maxsize=None)
def sample_part() -> KernelDef:
    """What the pieces of rows hand on to the rows' blocks."""
    params = layout([reads(name) for name in _PART_READ] + [writes("partial")] + [symbol(name) for name in _SAMPLE_SIZES])

    def grid(v: Mapping[str, Any]) -> Tuple[Any, Any, Any]:
        return (ex.maximum(ex.ceildiv(v["vocab"], _SAMPLE_PIECE), 1), ex.maximum(v["samples"], 1), 1)

    return KernelDef(
        "cuda.sample_part", "sample", _sample_source(1, "accrt_sample_part"), params, grid, traits=elementwise.TRAITS, entry="accrt_sample_part",
        family="cuda", block=(THREADS, 1, 1),
    )  # fmt: skip


@select.rule("accrt.sample", "cuda")
def _sample(op: Op, operands: select.Specs, results: select.Specs) -> select.Lowering:
    """As on hosts, but that edits and masks that are not there change nothing."""
    if op.attrs["top"] > THREADS:
        raise ValueError(f"sample: the {op.attrs['top']} largest, at most {THREADS} are possible")
    for spec in (*operands[1:], *results):
        select.require_plain(spec)
    values = sampling.lower_sample(operands, op.attrs["top"]).values
    given: Dict[str, select.Binding] = {name: ("in", i) for i, name in enumerate(sampling.READ)}
    bindings = {**given, **{name: ("out", i) for i, name in enumerate(sampling.WRITTEN)}}
    whole = select.Lowering(launch(sample_kernel(), {name: name for name in bindings}, values), bindings)
    pieces = sizes.ceildiv(sizes.constant(values["vocab"]), _SAMPLE_PIECE)
    alone = sizes.simplify(logical_or(less_equal(pieces, 1), less_equal(_FEW + 1, values["samples"])))
    late = select.late_symbols(op.block.function)
    if any(name in late for name in sizes.symbols_of(alone)) or (isinstance(alone, int) and alone):
        return whole
    first = launch(sample_part(), {name: name for name in (*_PART_READ, "partial")}, values)
    parts = select.Lowering(first, {**{name: given[name] for name in _PART_READ}, "partial": ("temporary", 0)})
    size = sizes.simplify(pieces * values["samples"] * _SAMPLE_WORDS)
    handed = TensorType("u32", (size if isinstance(alone, int) else sizes.select(alone, 0, size),))
    last = launch(sample_kernel(), {name: name for name in (*bindings, "partial")}, values)
    made = select.Lowering(last, {**bindings, "partial": ("temporary", 0)}, (parts,), (handed,))
    return made if isinstance(alone, int) else dataclasses.replace(made, alternatives=((alone, whole),))
