"""Records of products of few rows with a weight that is read as fast as it can be, with the norm
before them and the gate after them (stream.cuh). With more rows each of the three has a kernel of
its own."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, Dict, List, Mapping, Optional, Tuple

from .. import select
from ..declared import TensorType
from ..ir import Op
from ..kernels import expr as ex
from ..kernels.kerneldef import KernelDef, Launch, TensorSpec, launch, reads, scalar, symbol, writes
from . import norms
from .norms import TYPES, entry_kernel
from .products import OPERANDS, Form, _is_constant, _product, _product_in_two, at_most, layout_of_b, lower_product
from .tensor_ops import rows_of

#: Rows up to which these kernels are taken: one or two tiles of 8.
ROWS: Tuple[int, ...] = (8, 16)
#: Shared memory for normed rows, so that a multiprocessor holds two blocks.
_MOST_SHARED = 100_000
#: Multiprocessors of the largest machine that this is made for; others get a grid that does not
#: quite fit.
_MULTIPROCESSORS = 132
#: Rows of the weight from this length on have 16 warps, others 8.
_LONG = 4096


def _shared_bytes(k: int, tiles: int, warps: int = 8) -> int:
    """As stream.cuh has it; k: of normed rows, else 0."""
    sums = 2 * warps * 16 * (8 * tiles + 1) * 4
    return sums + (8 * tiles * (ex.ceildiv(k, 64) * 64 + 8) * 2 if k else 0)


@functools.lru_cache(maxsize=None)
def stream_kernel(form: Form, tiles: int, warps: int, gated: bool, normed: int) -> KernelDef:
    """`normed`: the length of normed rows; 0: rows come as they are."""
    name = f"stream_{form.text()}_{tiles}x{warps}" + ("_gated" if gated else "") + (f"_normed_{normed}" if normed else "")
    columns = 8 if gated else 16
    most = _MULTIPROCESSORS * (2 if warps == 8 else 1)

    def grid(v: Mapping[str, Any]) -> Tuple[Any, Any, Any]:
        return (ex.minimum(ex.maximum(ex.ceildiv(v["n"], columns), 1), most), ex.maximum(ex.ceildiv(v["m"], 8 * tiles), 1), 1)

    params = [reads("a"), reads("b"), reads("bias", optional=True), reads("residual", optional=True), reads("norm", optional=True), writes("c")]
    params += [symbol(n) for n in ("m", "n", "k", "lda", "ldb", "ldc", "ld_residual", "form")] + [scalar("epsilon", "f32")]
    arguments = (*form.arguments(), tiles, warps, str(gated).lower(), str(bool(normed)).lower())
    shared = _shared_bytes(normed, tiles, warps)
    return entry_kernel(name, "matmul", "stream.cuh", "ACCRT_CUDA_STREAM", arguments, params, grid, 32 * warps, local_memory_bytes=shared)


def stream_launches(
    a: TensorSpec,
    b: TensorSpec,
    out: TensorSpec,
    bias: Optional[TensorSpec] = None,
    residual: Optional[TensorSpec] = None,
    activation: str = "none",
    norm: bool = False,
    epsilon: float = 0.0,
    gated: bool = False,
    constant: bool = False,
) -> List[Tuple[Any, Launch]]:
    """Launches and the conditions for them; none where these kernels cannot take the product.
    Operands: a, b, bias, residual, norm, out."""
    k = a.shape[-1]
    if a.dtype not in OPERANDS or b.dtype != a.dtype or out.dtype not in (a.dtype, "f32") or not ex.is_static(k) or k < 1:
        return []
    if (bias is not None and bias.dtype not in TYPES) or not layout_of_b(b)[0] or any(not ex.equal(s.strides[-1], 1) for s in (a, out)):
        return []
    form = Form(a.dtype, out.dtype, bias.dtype if bias is not None else "", activation, True, residual is not None, constant)
    m, n = out.shape
    values = {
        "m": m, "n": n, "k": k, "lda": a.strides[0], "ldb": layout_of_b(b)[1], "ldc": out.strides[0],
        "ld_residual": residual.strides[0] if residual is not None else 0, "form": form.number(), "epsilon": epsilon,
    }  # fmt: skip
    present = {"a": "a", "b": "b", "c": "out", **{name: name for name, spec in (("bias", bias), ("residual", residual)) if spec is not None}}
    buffers: Dict[str, Any] = {**present, "norm": "norm"} if norm else present
    made = []
    for tiles, rows in enumerate(ROWS, 1):
        condition = at_most(m, rows)
        if (ex.is_static(condition) and not condition) or (norm and _shared_bytes(k, tiles) > _MOST_SHARED):
            continue
        made.append((condition, launch(stream_kernel(form, tiles, 16 if k >= _LONG and not norm else 8, gated, k if norm else 0), buffers, values)))
    return made


def _preferred(few: List[Tuple[Any, select.Lowering]], many: select.Lowering) -> select.Lowering:
    for condition, made in few:
        if ex.is_static(condition) and condition:
            return made
    return dataclasses.replace(many, alternatives=(*few, *many.alternatives))


@select.rule("accrt.product", "cuda", priority=12)
def _streamed(op: Op, operands: select.Specs, results: select.Specs) -> select.Lowering:
    if select.is_batch_invariant(op):
        raise ValueError("product: few rows have sums of another order")
    x, weight, bias, residual = operands
    a, out, added = (None if s is None else rows_of(s, what) for s, what in ((x, "x"), (results[0], "result"), (residual, "residual")))
    constant = all(_is_constant(v) for v in op.operands[1:3] if v is not None)
    launches = stream_launches(a, weight, out, bias, added, op.attrs["activation"], constant=constant)
    if not launches or (added is not None and not ex.equal(added.strides[-1], 1)):
        raise ValueError("product: no kernel for few rows")
    present = {name: ("in", i) for name, i in (("bias", 2), ("residual", 3)) if operands[i] is not None}
    few = [(condition, select.named(made, a=("in", 0), b=("in", 1), out=select.OUT, **present)) for condition, made in launches]
    try:
        many = _product_in_two(op, operands, results)
    except ValueError:
        many = _product(op, operands, results)
    return _preferred(few, many)


@select.rule("accrt.step_product", "cuda")
def _step_product(op: Op, operands: select.Specs, results: select.Specs) -> select.Lowering:
    x, weight, norm, bias = operands
    a, out, gated, eps = rows_of(x, "x"), rows_of(results[0], "result"), op.attrs["gated"], op.attrs["eps"]
    if norm is not None:
        select.require_plain(norm)
    constant = all(_is_constant(v) for v in op.operands[1:] if v is not None)
    launches = stream_launches(a, weight, out, bias, None, op.attrs["activation"], norm is not None, eps or 0.0, gated, constant)
    present = {name: ("in", i) for name, i in (("norm", 2), ("bias", 3)) if operands[i] is not None}
    few = [(condition, select.named(made, a=("in", 0), b=("in", 1), out=select.OUT, **present)) for condition, made in launches]
    return _preferred(few, _apart(op, a, weight, norm, bias, out, constant))


def _apart(op: Op, a: TensorSpec, weight: TensorSpec, norm: Optional[TensorSpec], bias: Optional[TensorSpec], out: TensorSpec, constant: bool) -> select.Lowering:
    """Norm, product and gate, one after the other."""
    before: List[select.Lowering] = []
    temporaries: List[TensorType] = []
    source: select.Binding = ("in", 0)
    if norm is not None:
        temporaries.append(TensorType(a.dtype, tuple(a.shape)))
        normed = select.contiguous(temporaries[-1])
        made = norms.lower_norm("rms_norm", a, normed, norm, None, op.attrs["eps"])
        source = ("temporary", 0)
        before.append(select.named(made, x=("in", 0), weight=("in", 2), out=source))
        a = normed
    taken = {"bias": ("in", 3)} if bias is not None else {}
    if not op.attrs["gated"]:
        product = lower_product(a, weight, out, bias, activation=op.attrs["activation"], constant=constant)
        return dataclasses.replace(select.named(product, a=source, b=("in", 1), out=select.OUT, **taken), before=tuple(before), temporaries=tuple(temporaries))
    m, n = out.shape
    temporaries.append(TensorType(out.dtype, (m, 2 * n)))
    both = select.contiguous(temporaries[-1])
    place: select.Binding = ("temporary", len(temporaries) - 1)
    before.append(select.named(lower_product(a, weight, both, constant=constant), a=source, b=("in", 1), out=place))
    return dataclasses.replace(_gated(op.attrs["activation"], both, out, place), before=tuple(before), temporaries=tuple(temporaries))


@functools.lru_cache(maxsize=None)
def gate_kernel(x: str, activation: str) -> KernelDef:
    def grid(v: Mapping[str, Any]) -> Tuple[Any, Any, Any]:
        return (ex.maximum(ex.ceildiv(v["m"] * ex.ceildiv(v["n"], 8), 256), 1), 1, 1)

    params = [reads("both"), writes("out")] + [symbol(n) for n in ("m", "n", "out_row")]
    return entry_kernel(f"gate_{x}_{activation}", "gate", "stream.cuh", "ACCRT_CUDA_GATE", (TYPES[x], activation.upper()), params, grid, 256)


def _gated(activation: str, both: TensorSpec, out: TensorSpec, place: select.Binding) -> select.Lowering:
    """activation(first half of columns) * (second half)."""
    m, n = out.shape
    made = launch(gate_kernel(out.dtype, activation), {"both": "both", "out": "out"}, {"m": m, "n": n, "out_row": out.strides[0]})
    return select.named(made, both=place, out=select.OUT)
