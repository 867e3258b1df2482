"""Records of the kernels that read quantized weights: products with packed ones (packed_matmul.c,
after quantize_rows.c), what packs them (packed_prepare.c), rows of packed ones (packed_rows.c) and
of any layout (dequantize.c) as floats."""

from __future__ import annotations

import functools
import math
from typing import Any, Callable, Dict, Mapping, Optional, Tuple

from ..encodings import ROLES
from ..packing import Form
from . import expr as ex
from .kerneldef import CSource, KernelDef, Launch, Param, TensorSpec, launch, layout, reads, symbol, writes
from .matmul import ACTIVATIONS, check_host_product, collapse_rows, optional_buffers

PANEL_ROWS, BLOCK_K = 16, 32
GROUP_ROWS = 64
_PIECE_BLOCKS, _PREPARE_BLOCKS = 256, 64
#: Bytes of codes that a workgroup reads: where it begins nothing has been asked for ahead, so it is
#: to be long; but threads are to end together, so there are 16 workgroups where that leaves each
#: enough to be worth a dispatch.
_MOST_BYTES, _LEAST_BYTES, _WORKGROUPS = 2 << 20, 192 << 10, 16
_FLOATS = ("e4m3", "e5m2")
_SCALE_BYTES = {"f32": 4, "f16": 2, "bf16": 2, "power": 1}
#: Bits of codes, where there are not four.
_BITS = {"s8": 8, "e4m3": 8, "e5m2": 8, "u5": 5, "q5": 5, "u6": 6, "u3": 3, "q2": 2}
#: Bytes of a panel's scales of 256 k, where these have scales themselves.
_RECORD_BYTES = {"q4k": 320, "q2k": 320, "q6k": 288}


def packed_bytes(form: Form) -> Optional[int]:
    """Size of the packed form; None where groups are no whole blocks."""
    if form.group % BLOCK_K and form.group < form.k and form.scales not in (*_RECORD_BYTES, "e4m3"):
        return None
    if form.codes in _FLOATS and form.scales == "power" and form.group % BLOCK_K:
        return None
    panels, codes = ex.ceildiv(form.n, PANEL_ROWS), _codes_bytes(form)
    if form.scales == "e4m3":
        # a byte for each 16 k, filled up to whole blocks, and a factor for each row
        return codes + ex.ceildiv(panels * ex.ceildiv(form.k, BLOCK_K) * 2 * PANEL_ROWS, 64) * 64 + panels * PANEL_ROWS * 4
    if form.scales in _RECORD_BYTES:
        return codes + panels * (form.k // 256) * _RECORD_BYTES[form.scales]
    scales = ex.ceildiv(panels * form.groups * PANEL_ROWS * _SCALE_BYTES[form.scales], 64) * 64
    return codes + scales + panels * form.groups * PANEL_ROWS * (2 if form.has_minima else form.has("zeros"))


def _codes_bytes(form: Form) -> int:
    return ex.ceildiv(form.n, PANEL_ROWS) * ex.ceildiv(form.k, BLOCK_K) * 64 * _BITS.get(form.codes, 4)


def _tags(**tags: Any) -> Tuple[Tuple[str, str], ...]:
    return tuple((name, str(value)) for name, value in tags.items())


def quantized_row_bytes(k: Any) -> Any:
    return ex.ceildiv(ex.ceildiv(k, BLOCK_K) * (BLOCK_K + 16), 64) * 64


@functools.lru_cache(maxsize=None)
def quantize_kernel(dtype: str) -> KernelDef:
    params = layout([reads("x"), writes("out")] + [symbol(n) for n in ("m", "k", "ldx")])

    def grid(v: Mapping[str, Any]) -> Tuple[Any, Any, Any]:
        return (ex.maximum(ex.ceildiv(v["k"], _PIECE_BLOCKS * BLOCK_K), 1), ex.maximum(v["m"], 1), 1)

    name = f"quantize_rows_{dtype}"
    producer = CSource("quantize_rows.c", defines=_tags(A_TAG=dtype, ENTRY="accrt_" + name), struct="quantize_rows_params_t")
    return KernelDef(name, "quantize_rows", producer, params, grid)


def _kind(form: Form) -> str:
    parts = [form.codes, form.scales] + ["zeros"] * form.has("zeros") + ["minima"] * form.has_minima + ["ggml"] * (form.layout == "ggml_mxfp4")
    return "_".join(parts)


def _defines(form: Form) -> Dict[str, Any]:
    return {
        "CODES": "CODES_" + form.codes.upper(), "SCALES": form.scales, "TOP_IS_NAN": int(form.layout != "ggml_mxfp4"),
        "ZEROS": int(form.has("zeros")), "MINIMA": int(form.has_minima),
    }  # fmt: skip


_PRODUCT_SYMBOLS = "m n k ldx ldc ld_residual group panels_per_group activation packed_n matrices matrix_panels matrix_bytes ends_step".split()


@functools.lru_cache(maxsize=None)
def _product_kernel(kind: str, defines: Tuple[Tuple[str, str], ...], x: str, c: str) -> KernelDef:
    params = layout(
        [reads("x"), reads("w"), reads("bias", optional=True), reads("residual", optional=True), writes("c"), reads("ends", optional=True)]
        + [symbol(n) for n in _PRODUCT_SYMBOLS]
    )

    def grid(v: Mapping[str, Any]) -> Tuple[Any, Any, Any]:
        panels = ex.ceildiv(v["n"], PANEL_ROWS)
        parts = v["matrices"] or ex.maximum(ex.ceildiv(v["m"], GROUP_ROWS), 1)
        return (ex.maximum(ex.ceildiv(panels, v["panels_per_group"]), 1), parts, 1)

    name = f"matmul_{kind}_{x}_{c}"
    producer = CSource("packed_matmul.c", defines=(*defines, *_tags(A_TAG=x, C_TAG=c, ENTRY="accrt_" + name)), struct="packed_matmul_params_t")
    return KernelDef(name, "matmul_quantized", producer, params, grid, local_memory_bytes=4 * GROUP_ROWS * PANEL_ROWS)


def product_kernel(form: Form, x: str, c: str) -> KernelDef:
    return _product_kernel(_kind(form), _tags(**_defines(form)), x if form.codes in _FLOATS else "f32", c)


def _panels_per_group(form: Form) -> int:
    panels, total = ex.ceildiv(form.n, PANEL_ROWS), _codes_bytes(form)
    groups = max(ex.ceildiv(total, _MOST_BYTES), min(_WORKGROUPS, ex.ceildiv(total, _LEAST_BYTES)))
    if groups < 8:
        groups += groups % 2
    return ex.ceildiv(panels, max(groups, 1))


def needs_codes(form: Form) -> bool:
    """Whether the product takes x in 8 bits, as lower_quantize makes it."""
    return form.codes not in _FLOATS


def lower_quantize(x: TensorSpec, rows: Any) -> Launch:
    """Rows of x in 8 bits. Operands: x, out."""
    _, ldx = collapse_rows(x, "x")
    return launch(quantize_kernel(x.dtype), {"x": "x", "out": "out"}, {"m": rows, "k": x.shape[-1], "ldx": ldx})


def lower_product(
    form: Form, x: TensorSpec, out: TensorSpec, bias: Optional[TensorSpec], residual: Optional[TensorSpec], activation: str
) -> Launch:  # fmt: skip
    """out = activation(x @ w^T + bias) + residual. Operands: x (or what lower_quantize made of it),
    w, bias, residual, out."""
    check_host_product("x", x, out, bias, residual)
    rows, ldx = collapse_rows(x, "x")
    values = {
        "m": rows, "n": form.n, "k": form.k, "ldx": ldx, "ldc": collapse_rows(out, "out")[1],
        "ld_residual": collapse_rows(residual, "residual")[1] if residual is not None else 0, "group": form.group,
        "panels_per_group": _panels_per_group(form), "activation": ACTIVATIONS[activation],
        "packed_n": form.n, "matrices": 0, "matrix_panels": 0, "matrix_bytes": 0, "ends_step": 0,
    }  # fmt: skip
    buffers = {"x": "x", "w": "w", "c": "out", **optional_buffers(bias, residual)}
    return launch(product_kernel(form, x.dtype, out.dtype), buffers, values)


def packs_as_one(form: Form) -> bool:
    """Whether the matrices of a weight of rank 3, each of which is as `form` says, are packed as
    one: their rows one after the other."""
    return len(form.roles) == 1 and form.n % PANEL_ROWS == 0


def lower_grouped(form: Form, matrices: int, as_one: bool, x: TensorSpec, out: TensorSpec, ends: TensorSpec) -> Launch:
    """Rows ends[e - 1] up to ends[e] of x by matrix e of many, each as `form` says: packed as one,
    or one after the other. Operands: x (or what lower_quantize made of it), w, ends, out."""
    check_host_product("x", x, out, None, None)
    rows, ldx = collapse_rows(x, "x")
    values = {
        "m": rows, "n": form.n, "k": form.k, "ldx": ldx, "ldc": collapse_rows(out, "out")[1], "ld_residual": 0, "group": form.group,
        "panels_per_group": _panels_per_group(form), "activation": ACTIVATIONS["none"], "matrices": matrices,
        "packed_n": form.n * matrices if as_one else form.n, "matrix_panels": form.n // PANEL_ROWS if as_one else 0,
        "matrix_bytes": 0 if as_one else packed_bytes(form), "ends_step": ends.strides[0],
    }  # fmt: skip
    return launch(product_kernel(form, x.dtype, out.dtype), {"x": "x", "w": "w", "c": "out", "ends": "ends"}, values)


# ---- Making them, and taking them apart ----------------------------------------------------------


@functools.lru_cache(maxsize=None)
def _prepare_kernel(layout_name: str, layout_id: int, scales: str, defines: Tuple[Tuple[str, str], ...], kind: str) -> KernelDef:
    params = layout(
        [reads("data"), *(reads(role, optional=True) for role in ("scales", "zeros", "global_scale")), writes("out")]
        + [symbol(n) for n in ("n", "k", "group", "groups", "is_e5m2")]
    )

    def grid(v: Mapping[str, Any]) -> Tuple[Any, Any, Any]:
        return (ex.maximum(ex.ceildiv(v["n"], PANEL_ROWS), 1), ex.maximum(ex.ceildiv(v["k"], BLOCK_K * _PREPARE_BLOCKS), 1), 1)

    name = f"prepare_{layout_name}_{kind}"
    tags = (*_tags(LAYOUT=layout_id, S_TAG=scales), *defines, *_tags(ENTRY="accrt_" + name))
    return KernelDef(name, "pack_quantized", CSource("packed_prepare.c", defines=tags, struct="packed_prepare_params_t"), params, grid)


def weight_values(form: Form) -> Dict[str, Any]:
    return {"n": form.n, "k": form.k, "group": form.group, "groups": form.groups, "is_e5m2": int(form.is_e5m2)}


def scale_type(form: Form) -> str:
    """Of a component of scales that is not bytes."""
    return form.type_of("scales") if form.type_of("scales") in ("f32", "f16", "bf16") else "f16"


def lower_prepare(form: Form) -> Launch:
    """Operands: data, scales, zeros, global_scale (where the layout has them), out."""
    kernel = _prepare_kernel(form.layout, form.layout_id, scale_type(form), _tags(**_defines(form)), _kind(form))
    buffers = {role: role for role in ("data", "scales", "zeros", "global_scale") if form.has(role)}
    return launch(kernel, {**buffers, "out": "out"}, weight_values(form))


#: Types of indices of lookups.
INDICES = ("u8", "i32", "u32", "i64")


def dequantize_params() -> Tuple[Param, ...]:
    buffers = [reads("data")] + [reads(role, optional=True) for role in ROLES[1:]]
    symbols = [symbol(n) for n in ("n", "k", "group", "groups", "is_e5m2", "rows")]
    return layout(buffers + [reads("index", optional=True), writes("out"), *symbols])


@functools.lru_cache(maxsize=None)
def _dequantize_kernel(layout_name: str, layout_id: int, scales: str, out: str, index: str) -> KernelDef:
    def grid(v: Mapping[str, Any]) -> Tuple[Any, Any, Any]:
        return (ex.maximum(ex.minimum(v["rows"], 256), 1), 1, 1)

    name = f"dequantize_{layout_name}_{scales}_{out}_{index}"
    tags = _tags(LAYOUT=layout_id, S_TAG=scales, OUT_TAG=out, INDEX_TAG=index, ENTRY="accrt_" + name)
    return KernelDef(name, "dequantize", CSource("dequantize.c", defines=tags, struct="dequantize_params_t"), dequantize_params(), grid)


def lower_dequantize(
    form: Form, out: TensorSpec, index: Optional[TensorSpec] = None, make_kernel: Callable[..., KernelDef] = _dequantize_kernel
) -> Launch:  # fmt: skip
    """All rows as floats, or those that `index` picks. Operands: the components by role, index,
    out."""
    rows: Any = form.rows if index is None else math.prod(index.shape)
    kernel = make_kernel(form.layout, form.layout_id, scale_type(form), out.dtype, index.dtype if index is not None else "i32")
    buffers = {role: role for role in ROLES if form.has(role)}
    buffers.update({"index": "index"} if index is not None else {})
    return launch(kernel, {**buffers, "out": "out"}, {**weight_values(form), "rows": rows})


def has_rows(form: Form) -> bool:
    """Whether rows can be read from the packed form as the layout has them."""
    return form.codes not in _FLOATS and form.scales != "e4m3"


@functools.lru_cache(maxsize=None)
def _rows_kernel(kind: str, defines: Tuple[Tuple[str, str], ...], out: str, index: str) -> KernelDef:
    params = layout([reads("w"), reads("index"), writes("out")] + [symbol(n) for n in ("n", "k", "group", "groups", "rows")])

    def grid(v: Mapping[str, Any]) -> Tuple[Any, Any, Any]:
        return (ex.maximum(ex.minimum(v["rows"], 256), 1), 1, 1)

    name = f"packed_rows_{kind}_{out}_{index}"
    tags = (*defines, *_tags(OUT_TAG=out, INDEX_TAG=index, ENTRY="accrt_" + name))
    return KernelDef(name, "packed_rows", CSource("packed_rows.c", defines=tags, struct="packed_rows_params_t"), params, grid)


def lower_rows(form: Form, index: TensorSpec, out: TensorSpec) -> Launch:
    """The rows of a packed weight that `index` picks. Operands: w, index, out."""
    kernel = _rows_kernel(_kind(form), _tags(**_defines(form)), out.dtype, index.dtype)
    values = {"n": form.n, "k": form.k, "group": form.group, "groups": form.groups, "rows": math.prod(index.shape)}
    return launch(kernel, {"w": "w", "index": "index", "out": "out"}, values)
