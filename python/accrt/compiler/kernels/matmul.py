"""Records of the matrix products: packed weights (gemm.c, gemm_pack.c), two dynamic operands
(bmm.c, matmul_simple.c).

Operands are TensorSpecs; a transposed operand is simply a spec with its last two axes and strides
exchanged.
"""

from __future__ import annotations

import functools
from typing import Any, Dict, Mapping, Optional, Tuple

from . import expr as ex
from .elementwise import INTEGERS
from .kerneldef import CSource, KernelDef, Launch, TensorSpec, launch, layout, reads, scalar, symbol, writes

PANEL = 32
GROUP_ROWS = 112
MAX_PANELS = 8
SLICE_K = 192
_STAGED_FLOATS = GROUP_ROWS * (SLICE_K + 16)
_GEMM_LOCAL_BYTES = 4 * (GROUP_ROWS * MAX_PANELS * PANEL + _STAGED_FLOATS)

ACTIVATIONS = {"none": 0, "relu": 1, "gelu": 2, "gelu_tanh": 3, "silu": 4, "tanh": 5, "sigmoid": 6}
PACKED_DTYPES = ("f32", "f16", "bf16")


def _tags(**tags: str) -> Tuple[Tuple[str, str], ...]:
    return tuple(tags.items())


def collapse_rows(spec: TensorSpec, what: str) -> Tuple[Any, Any]:
    """(rows, row stride) of [..., rows, columns] when all leading axes are walked as one;
    ValueError when they are not."""
    rows: Any = 1
    stride: Any = None
    for size, step in zip(reversed(spec.shape[:-1]), reversed(spec.strides[:-1])):
        if ex.is_static(size) and size == 1:
            continue
        if stride is None:
            rows, stride = size, step
        elif ex.equal(step, stride * rows):
            rows = rows * size
        else:
            raise ValueError(f"{what}: leading axes of shape {spec.shape} with strides {spec.strides} are not one axis")
    return rows, (spec.shape[-1] if stride is None else stride)


def require_contiguous_last(spec: TensorSpec, what: str) -> None:
    last = spec.strides[-1]
    if ex.equal(last, 1) or (ex.is_static(spec.shape[-1]) and spec.shape[-1] <= 1):
        return
    raise ValueError(f"{what}: the last axis has stride {last}, 1 is needed")


# ---- Packed weights ------------------------------------------------------------------------------


@functools.lru_cache(maxsize=None)
def gemm_kernel(a: str, b: str, c: str) -> KernelDef:
    params = layout(
        [reads("a"), reads("b"), reads("bias", optional=True), reads("residual", optional=True), writes("c")]
        + [symbol(n) for n in ("m", "n", "k", "lda", "ldc", "ld_residual", "panels_per_group", "activation")]
    )

    def grid(v: Mapping[str, Any]) -> Tuple[Any, Any, Any]:
        panels = ex.ceildiv(v["n"], PANEL)
        return (ex.maximum(ex.ceildiv(panels, v["panels_per_group"]), 1), ex.maximum(ex.ceildiv(v["m"], GROUP_ROWS), 1), 1)

    name = f"gemm_{a}_{b}_{c}"
    producer = CSource("gemm.c", defines=_tags(A_TAG=a, B_TAG=b, C_TAG=c, ENTRY="accrt_" + name), struct="gemm_params_t")
    return KernelDef(name, "matmul_packed", producer, params, grid, local_memory_bytes=_GEMM_LOCAL_BYTES)


@functools.lru_cache(maxsize=None)
def pack_kernel(source: str, packed: str) -> KernelDef:
    params = layout([reads("b"), writes("packed")] + [symbol(n) for n in ("n", "k", "b_row_step", "b_column_step")])

    def grid(v: Mapping[str, Any]) -> Tuple[Any, Any, Any]:
        return (ex.maximum(ex.ceildiv(v["n"], PANEL), 1), ex.maximum(ex.ceildiv(v["k"], 256), 1), 1)

    name = f"gemm_pack_{source}_{packed}"
    producer = CSource("gemm_pack.c", defines=_tags(S_TAG=source, P_TAG=packed, ENTRY="accrt_" + name), struct="gemm_pack_params_t")
    return KernelDef(name, "matmul_pack", producer, params, grid)


def packed_spec(n: int, k: int, dtype: str) -> TensorSpec:
    """The packed form of a k x n matrix: the same on every target."""
    return TensorSpec.contiguous(dtype, (ex.ceildiv(n, PANEL), k, PANEL))


def lower_pack(b: TensorSpec, packed: TensorSpec) -> Launch:
    """Packs b: [k, n] with any strides. Operands: b, packed."""
    values = {"n": b.shape[1], "k": b.shape[0], "b_row_step": b.strides[0], "b_column_step": b.strides[1]}
    return launch(pack_kernel(b.dtype, packed.dtype), {"b": "b", "packed": "packed"}, values)


def _panels_per_group(m: Any, n: Any, k: Any) -> int:
    """Enough panels that a group is worth a dispatch (some microseconds); few groups are an even
    number, for two threads.

    A panel of k rows times m takes about m * k * 2 cycles; an unknown m counts as 32.
    """
    if not (ex.is_static(n) and ex.is_static(k)):
        return 1
    rows = min(m, GROUP_ROWS) if ex.is_static(m) else 32
    panels = max(ex.ceildiv(n, PANEL), 1)
    groups = ex.ceildiv(panels, min(MAX_PANELS, ex.ceildiv(5000, max(rows * k, 1))))
    if groups < 8:
        groups += groups % 2
    return ex.ceildiv(panels, groups)


def check_product(**specs: Optional[TensorSpec]) -> None:
    """That all that are there have a contiguous last axis."""
    for what, spec in specs.items():
        if spec is not None:
            require_contiguous_last(spec, what)


def check_host_product(what: str, x: TensorSpec, out: TensorSpec, bias: Optional[TensorSpec], residual: Optional[TensorSpec]) -> None:
    check_product(**{what: x}, out=out, bias=bias, residual=residual)
    if bias is not None and bias.dtype != "f32":
        raise ValueError(f"bias: the type is {bias.dtype}, f32 is needed")
    if residual is not None and residual.dtype != out.dtype:
        raise ValueError(f"residual: the type is {residual.dtype}, {out.dtype} is needed")


def optional_buffers(bias: Optional[TensorSpec], residual: Optional[TensorSpec]) -> Dict[str, str]:
    """Buffers of a product that are bound where there is an operand."""
    return {name: name for name, spec in (("bias", bias), ("residual", residual)) if spec is not None}


def lower_matmul_packed(
    a: TensorSpec,
    b: TensorSpec,
    out: TensorSpec,
    bias: Optional[TensorSpec] = None,
    residual: Optional[TensorSpec] = None,
    activation: str = "none",
) -> Launch:
    """out = activation(a @ b + bias) + residual, b as `packed_spec` says. Operands: a, b, bias,
    residual, out.

    a [..., k] and out [..., n] have a contiguous last axis and leading axes that are walked as one;
    bias is [n] of f32; residual has the type and shape of out.
    """
    check_host_product("a", a, out, bias, residual)
    rows, lda = collapse_rows(a, "a")
    _, ldc = collapse_rows(out, "out")
    ld_residual = collapse_rows(residual, "residual")[1] if residual is not None else 0
    n, k = out.shape[-1], a.shape[-1]
    values = {
        "m": rows, "n": n, "k": k, "lda": lda, "ldc": ldc, "ld_residual": ld_residual,
        "panels_per_group": _panels_per_group(rows, n, k), "activation": ACTIVATIONS[activation],
    }  # fmt: skip
    buffers = {"a": "a", "b": "b", "c": "out", **optional_buffers(bias, residual)}
    return launch(gemm_kernel(a.dtype, b.dtype, out.dtype), buffers, values)


# ---- Two dynamic operands ------------------------------------------------------------------------

_BATCH_NAMES = ("batch0", "batch1", "batch2", "a0", "a1", "a2", "b0", "b1", "b2", "c0", "c1", "c2")
_STEP_NAMES = ("m", "n", "k", "a_row", "a_column", "b_row", "b_column", "c_row")


def _batch_grid(columns: int, rows: int):
    def grid(v: Mapping[str, Any]) -> Tuple[Any, Any, Any]:
        batch = v["batch0"] * v["batch1"] * v["batch2"]
        return (
            ex.maximum(ex.ceildiv(v["n"], columns), 1),
            ex.maximum(ex.ceildiv(v["m"], rows), 1),
            ex.maximum(batch, 1),
        )

    return grid


@functools.lru_cache(maxsize=None)
def bmm_kernel(a: str, b: str, c: str) -> KernelDef:
    params = layout(
        [reads("a"), reads("b"), writes("c")] + [symbol(n) for n in (*_STEP_NAMES, *_BATCH_NAMES)] + [scalar("scale", "f32")]
    )
    name = f"bmm_{a}_{b}_{c}"
    producer = CSource("bmm.c", defines=_tags(A_TAG=a, B_TAG=b, C_TAG=c, ENTRY="accrt_" + name), struct="bmm_params_t")
    local = 4 * (GROUP_ROWS * PANEL + SLICE_K * PANEL + _STAGED_FLOATS)
    return KernelDef(name, "matmul", producer, params, _batch_grid(PANEL, GROUP_ROWS), local_memory_bytes=local)


@functools.lru_cache(maxsize=None)
def simple_kernel(dtype: str) -> KernelDef:
    params = layout([reads("a"), reads("b"), writes("c")] + [symbol(n) for n in (*_STEP_NAMES, *_BATCH_NAMES)])
    name = f"matmul_{dtype}"
    producer = CSource("matmul_simple.c", defines=_tags(TAG=dtype, ENTRY="accrt_" + name), struct="matmul_simple_params_t")
    return KernelDef(name, "matmul", producer, params, _batch_grid(64, 16))


SIMPLE_DTYPES = ("f64", *INTEGERS)


def lower_matmul(a: TensorSpec, b: TensorSpec, out: TensorSpec, scale: float = 1.0) -> Launch:
    """out = scale * (a @ b), neither packed: [..., m, k] @ [..., k, n]. Operands: a, b, out.

    a and b may have any strides (transposed ones have their last two exchanged), leading axes
    broadcast; up to three remain after joining those that all operands walk as one. out has a
    contiguous last axis.
    """
    from .elementwise import broadcast_strides, collapse

    require_contiguous_last(out, "out")
    lead = out.shape[:-2]
    batch_strides = []
    for spec in (a, b, out):
        batch_strides.append(broadcast_strides(TensorSpec(spec.dtype, spec.shape[:-2], spec.strides[:-2]), lead))
    shape, strides = collapse(lead, batch_strides)
    if len(shape) > 3:
        raise ValueError(f"matmul: batch axes {lead} do not join into three")
    pad = 3 - len(shape)
    values: Dict[str, Any] = {
        "m": out.shape[-2], "n": out.shape[-1], "k": a.shape[-1], "a_row": a.strides[-2], "a_column": a.strides[-1],
        "b_row": b.strides[-2], "b_column": b.strides[-1], "c_row": out.strides[-2],
    }  # fmt: skip
    values.update({f"batch{i}": size for i, size in enumerate([1] * pad + shape)})
    for name, steps in zip("abc", strides):
        values.update({f"{name}{i}": step for i, step in enumerate([0] * pad + steps)})
    buffers = {"a": "a", "b": "b", "c": "out"}
    if out.dtype in SIMPLE_DTYPES:
        if (a.dtype, b.dtype) != (out.dtype, out.dtype):
            raise ValueError(f"matmul: types {a.dtype}, {b.dtype} and {out.dtype} must be the same")
        if scale != 1.0:
            raise ValueError(f"matmul: scale {scale} is for f32, f16 and bf16")
        return launch(simple_kernel(out.dtype), buffers, values)
    return launch(bmm_kernel(a.dtype, b.dtype, out.dtype), buffers, dict(values, scale=scale))
