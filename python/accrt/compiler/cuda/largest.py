"""Records of what finds the largest of rows: argmax, topk and the sampling pass (topk.cu, sample.cu)."""

from __future__ import annotations

import functools
from typing import Any, Mapping, Tuple

from .. import ops, select
from ..ir import Op
from ..kernels import expr as ex
from ..kernels import sampling, tensor_ops
from ..kernels.kerneldef import CudaSource, KernelDef, launch, layout, reads, symbol, workspace, writes
from . import elementwise
from .norms import FLOATS
from .tensor_ops import make_kernel

#: Of a block, which has one row.
THREADS = 512


def _last(op: Op) -> None:
    x = op.operands[0]
    if x.dtype not in FLOATS or x.rank == 0 or op.attrs["dim"] is None or ops.axis_of(op.attrs["dim"], x.rank) != x.rank - 1:
        raise ValueError(f"{op.name}: kernels take the last dimension of floats of up to 32 bits")


def _row_grid(v: Mapping[str, Any]) -> Tuple[Any, Any, Any]:
    return (ex.maximum(v["rows"], 1), 1, 1)


@functools.lru_cache(maxsize=None)
def argmax_kernel(x: str) -> KernelDef:
    params = [reads("x"), writes("out")] + [symbol(n) for n in ("rows", "n", "x_row", "out_row")]
    return make_kernel(f"argmax_{x}", "argmax", "topk.cu", params, _row_grid, (THREADS, 1, 1), X_TAG=x, ONE="1")


@select.rule("aten.argmax", "cuda")
def _argmax(op: Op, operands: select.Specs, results: select.Specs) -> select.Lowering:
    _last(op)
    if op.attrs["keepdim"]:
        raise ValueError("argmax: kernels do not keep the dimension")
    made = tensor_ops.lower_argmax(operands[0], results[0])
    chosen = launch(argmax_kernel(operands[0].dtype), {"x": "x", "out": "out"}, made.values)
    return select.named(chosen, x=("in", 0), out=select.OUT)


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


@functools.lru_cache(maxsize=None)
def sample_kernel() -> KernelDef:
    params = layout(
        [reads(name) for name in sampling.READ] + [writes(name) for name in sampling.WRITTEN] + [workspace("work")]
        + [symbol(name) for name in ("samples", "vocab", "row_step", "edits", "masks", "top")]
    )  # fmt: skip

    def grid(v: Mapping[str, Any]) -> Tuple[Any, Any, Any]:
        return (ex.maximum(v["samples"], 1), 1, 1)

    def work(v: Mapping[str, Any]) -> Any:
        """A bitmap of each row, and the values of edited tokens."""
        return 4 * (v["samples"] * ex.ceildiv(v["vocab"], 32) + v["edits"])

    source = CudaSource("sample.cu", defines=(("X_TAG", "f32"), ("ENTRY", "accrt_sample")))
    return KernelDef(
        "cuda.sample", "sample", source, params, grid, traits=elementwise.TRAITS, entry="accrt_sample", family="cuda",
        block=(THREADS, 1, 1), workspace_bytes=work,
    )  # fmt: skip


@select.rule("accrt.sample", "cuda")
def _sample(op: Op, operands: select.Specs, results: select.Specs) -> select.Lowering:
    """As on hosts, but that edits and masks that are not there change nothing."""
    if op.attrs["top"] > THREADS:
        raise ValueError(f"sample: the {op.attrs['top']} largest, at most {THREADS} are possible")
    for spec in (*operands[1:], *results):
        select.require_plain(spec)
    made = sampling.lower_sample(operands, op.attrs["top"])
    tensors = (*sampling.READ, *sampling.WRITTEN)
    chosen = launch(sample_kernel(), {name: name for name in tensors}, made.values)
    bindings = {name: ("in", i) for i, name in enumerate(sampling.READ)}
    bindings.update({name: ("out", i) for i, name in enumerate(sampling.WRITTEN)})
    return select.Lowering(chosen, bindings)
