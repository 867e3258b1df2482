"""Records of the CUDA kernels that read quantized weights: products of few rows with packed ones
(packed.cuh), what packs them (packed_prepare.cu), and rows of any layout as floats (dequantize.cu).
For many rows a packed weight becomes a plain one first."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any, Callable, List, Mapping, Optional, Tuple

from .. import select
from ..declared import TensorType
from ..ir import Op
from ..kernels import expr as ex
from ..kernels import packed as host
from ..kernels.kerneldef import CudaSource, CudaVariant, KernelDef, Launch, TensorSpec, launch, layout, reads, symbol, writes
from ..kernels.matmul import check_product, optional_buffers
from ..packing import Form
from . import products
from .norms import FLAGS, TRAITS, TYPES, entry_kernel
from .tensor_ops import make_kernel, rows_of

_ROW_BLOCKS = 1 << 16
_STEP_K = 128
_BYTES = ("s8", "e4m3", "e5m2")
#: Bits that codes take in a tile of 32 rows; of bytes, a tile has half the rows.
_CODES = {"u4": 4, "q4": 4, "u3": 3, "q2": 2, "iq4": 4, "e2m1": 4, "u5": 5, "q5": 5, "u6": 6, **dict.fromkeys(_BYTES, 4)}
_SCALE_BYTES = {"f32": 4, "f16": 2, "bf16": 2}
#: Rows of x up to which the weight is read packed, 16 at a time; more take a plain one.
FEW_ROWS = 64
_MULTIPROCESSORS = 132
#: Warps of a block, and its shared memory: as much as sm_90 has, and what every other architecture
#: has at least.
_WARPS, _BARRIER_BYTES = 16, 1024
_SHARED_BYTES = {"sm_90": 227 << 10, "": 99 << 10}
#: Bytes of a weight that a block has on their way, or somewhat more: with many more x comes late.
_AHEAD_BYTES = 96 << 10
#: Of products of groups: matrices that a step of one token reads; what a block costs beside
#: reading, in elements of k of a tile.
_READ_TOGETHER, _BLOCK_COST = 8, 4096
#: Rows of a matrix, on average, up to which 8 rows are made at a time, and up to which 32 are
#: instead of 64. Tiles of a block that makes so many.
_FEW_OF_EACH, _SOME_OF_EACH, _WIDE_GROUPS = 4, 30, 8


def _kind(form: Form) -> Optional[str]:
    """How scales lie: as packed.cuh has it; None where there are no kernels for them."""
    if form.codes not in _CODES:
        return None
    if form.scales in ("q4k", "q6k", "q2k", "e4m3"):
        return form.scales.upper()
    if form.has_minima:
        return "MINIMA"
    if form.scales == "power":
        return "E8M0"
    if form.group % _STEP_K == 0 or form.group >= form.k:
        return "STEP"
    return {32: "UNIT", 64: "PAIR"}.get(form.group)


def _rows(form: Form) -> int:
    """Of a tile."""
    return 16 if form.codes in _BYTES else 32


def _counts(form: Form) -> Tuple[int, ...]:
    """How many tiles a block may have."""
    return (1, 2, 4, 7, 8, 14, 16) if form.codes in _BYTES else (1, 2, 4, 7, 8)


def _block_tiles(form: Form) -> int:
    """Tiles of a block: so that blocks fill the machine evenly."""
    if form.tiles:
        return form.tiles
    tiles = ex.ceildiv(form.n, _rows(form))

    def waste(count: int) -> Tuple[float, int]:
        waves = ex.ceildiv(ex.ceildiv(tiles, count), _MULTIPROCESSORS)
        return (round(waves * count * _MULTIPROCESSORS / tiles, 2), -count)

    return min(_counts(form), key=waste)


def grouped_form(form: Form, matrices: int) -> Form:
    """The form of each of many matrices of which a product reads some: of a step of one token eight
    are read, if there are as many. Blocks end with a matrix where that is possible."""
    tiles, read = ex.ceildiv(form.n, _rows(form)), min(matrices, _READ_TOGETHER)

    def time(count: int) -> Tuple[int, int]:
        waves = ex.ceildiv(ex.ceildiv(tiles, count) * read, _MULTIPROCESSORS)
        return (waves * (count * form.k + _BLOCK_COST), -count)

    counts = [count for count in _counts(form) if tiles % count == 0] if form.n % _rows(form) == 0 else _counts(form)
    return dataclasses.replace(form, tiles=min(counts, key=time))


def packs_as_one(form: Form) -> bool:
    """Whether the matrices of a weight of rank 3, each of which is as `form` says, are packed as
    one: their rows one after the other. Factors of rows would lie behind all of them."""
    return len(form.roles) == 1 and form.scales != "e4m3" and form.n % (_rows(form) * _block_tiles(form)) == 0


def _record_bytes(form: Form) -> int:
    """Of a tile and 128 k: codes, scales, zeros."""
    kind, rows = _kind(form), _rows(form)
    each = {"UNIT": 4, "PAIR": 2}.get(kind or "", 1)
    scales = {"Q4K": 384, "Q6K": 320, "Q2K": 384, "MINIMA": 512, "E8M0": 4 * rows, "E4M3": 8 * rows}.get(kind or "") or each * rows * _SCALE_BYTES[form.scales]
    zeros = 8 * ex.ceildiv(each * rows // 8, 4) * 4 if form.has("zeros") else 0
    return 512 * _CODES[form.codes] + scales + zeros


def packed_bytes(form: Form) -> Optional[int]:
    """Size of the packed form that products of few rows read; None where there is none."""
    if _kind(form) is None or form.n == 0:
        return None
    tiles = _block_tiles(form)
    tiles = ex.ceildiv(form.n, _rows(form) * tiles) * tiles
    factors = 4 * tiles * _rows(form) if form.scales == "e4m3" else 0
    return tiles * ex.ceildiv(form.k, _STEP_K) * _record_bytes(form) + factors


def has_rows(form: Form) -> bool:
    """Whether rows can be read from the packed form as the layout has them."""
    return form.codes not in ("e4m3", "e5m2") and form.scales not in ("power", "e4m3")


def _arguments(form: Form) -> Tuple[str, ...]:
    """CODES, SCALES, ST and ZEROS."""
    return (f"PACKED_{form.codes.upper()}", f"SCALES_{_kind(form)}", TYPES[form.scales] if form.scales in TYPES else "float", "true" if form.has("zeros") else "false")


def _text(form: Form) -> str:
    return f"{form.codes}_{_kind(form)}_{form.scales}{'_zeros' if form.has('zeros') else ''}".lower()


# ---- Products ------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Block:
    """How a block works: 8 * columns rows of x, tiles, slices of k, groups of tiles; and its shared
    memory."""

    columns: int
    tiles: int
    slices: int
    groups: int
    shared_bytes: int

    @property
    def warps(self) -> int:
        return self.slices * self.groups


def _sums_of_x(form: Form) -> int:
    """Bytes of sums for minima, of 8 rows of x."""
    return 512 * {"Q4K": 1, "MINIMA": 1, "Q2K": 2}.get(_kind(form) or "", 0)


def _block(form: Form, columns: int, most_bytes: int) -> _Block:
    """As many slices as warps, steps of k and shared memory allow."""
    tiles = _block_tiles(form)
    groups = 4 if tiles >= 4 else tiles
    x_bytes = columns * (8192 + _sums_of_x(form))
    sum_bytes, record = columns * 32 * (tiles * _rows(form) + 4), _record_bytes(form)
    slices = _WARPS // groups
    while slices > 1 and (
        slices > ex.ceildiv(form.k, _STEP_K)
        or _BARRIER_BYTES + slices * max(x_bytes + 2 * groups * record, sum_bytes) > most_bytes
    ):
        slices //= 2
    each = slices * groups * record
    depth = max(1, min((most_bytes - _BARRIER_BYTES - slices * x_bytes) // each, ex.ceildiv(_AHEAD_BYTES, each)))
    return _Block(columns, tiles, slices, groups, _BARRIER_BYTES + max(slices * x_bytes + depth * each, slices * sum_bytes))


def _wide_block(form: Form, columns: int, most_bytes: int) -> Optional[_Block]:
    """One for many rows of x, a tile for each group; None where records lie otherwise, or there are
    too few of them."""
    tiles, groups = ex.ceildiv(form.n, _rows(form)), _WIDE_GROUPS
    if _block_tiles(form) > 4 or tiles < groups or form.k < 2 * _STEP_K:
        return None
    x_bytes, each = columns * (8192 + _sums_of_x(form)), groups * _record_bytes(form)
    slices, sum_bytes = 2 if columns == 4 else 1, columns * 32 * (groups * _rows(form) + 4)
    while slices > 1 and _BARRIER_BYTES + slices * (x_bytes + each) > most_bytes:
        slices //= 2
    depth = min((most_bytes - _BARRIER_BYTES - slices * x_bytes) // (slices * each), ex.ceildiv(_AHEAD_BYTES, slices * each))
    if depth < 1:
        return None
    return _Block(columns, groups, slices, groups, _BARRIER_BYTES + slices * max(x_bytes + depth * each, sum_bytes))


_SYMBOLS = "m n k ldx ldc ld_residual".split()


@functools.lru_cache(maxsize=None)
def _product_kernel(form: Form, x: str, c: str, bias: str, activation: str, here: _Block, there: _Block) -> KernelDef:
    def unit(block: _Block) -> Tuple[str, CudaSource]:
        shape = f"{block.columns}x{block.tiles}x{block.slices}x{block.groups}"
        entry = f"accrt_packed_{_text(form)}_{x}_{c}_{bias or c}_{activation}_{shape}"
        arguments = (entry, TYPES[x], TYPES[c], TYPES[bias or c], activation.upper(), *_arguments(form), *shape.split("x"))
        return entry, CudaSource("packed.cuh", text=f"ACCRT_CUDA_PACKED({', '.join(arguments)})\n", flags=FLAGS)

    def grid(v: Mapping[str, Any]) -> Tuple[Any, Any, Any]:
        return (ex.maximum(ex.ceildiv(v["n"], _rows(form) * here.tiles), 1), ex.maximum(ex.ceildiv(v["m"], 8 * here.columns), 1), 1)

    params = [reads("x"), reads("w"), reads("bias", optional=True), reads("residual", optional=True), writes("c"), *(symbol(n) for n in _SYMBOLS)]
    return _either(unit, "matmul_quantized", params, grid, here, there)


def _either(unit: Callable[[_Block], Tuple[str, CudaSource]], what: str, params: Any, grid: Any, here: _Block, there: _Block) -> KernelDef:
    """`here` on sm_90, `there` elsewhere."""
    entry, source = unit(there)
    own_entry, own_source = unit(here)
    own = CudaVariant("sm_90", own_source, (32 * here.warps, 1, 1), (0, 0, 0), here.shared_bytes, own_entry)
    return KernelDef(
        f"cuda.{own_entry[6:]}", what, source, layout(params), grid, entry=entry, family="cuda", block=(32 * there.warps, 1, 1),
        local_memory_bytes=there.shared_bytes, arch=("sm_80", "ptx"), specials=(own,), traits=TRAITS,
    )  # fmt: skip


def _same(form: Form) -> Form:
    """The form without what its kernels take at run time, so that weights share them."""
    return Form(form.layout, 0, 1 << 40, 32 if _kind(form) in ("UNIT", "E8M0", "E4M3", "Q4K", "Q6K", "Q2K", "MINIMA") else 64 if _kind(form) == "PAIR" else _STEP_K, "f32", form.roles)


def lower_few(
    form: Form, x: TensorSpec, out: TensorSpec, bias: Optional[TensorSpec], residual: Optional[TensorSpec], activation: str, columns: int
) -> Launch:  # fmt: skip
    """out = activation(x @ w^T + bias) + residual, 8 * columns rows at a time. Operands: x, w,
    bias, residual, out."""
    if x.dtype not in products.OPERANDS or out.dtype not in (x.dtype, "f32"):
        raise ValueError(f"product: types {x.dtype} and {out.dtype}: f16 or bf16 are needed")
    if bias is not None and bias.dtype not in TYPES:
        raise ValueError(f"product: the bias has type {bias.dtype}")
    check_product(x=x, out=out, bias=bias, residual=residual)
    blocks = (_block(form, columns, _SHARED_BYTES[arch]) for arch in ("sm_90", ""))
    kernel = _product_kernel(_same(form), x.dtype, out.dtype, bias.dtype if bias is not None else "", activation, *blocks)
    values = {
        "m": x.shape[0], "n": form.n, "k": form.k, "ldx": x.strides[0], "ldc": out.strides[0],
        "ld_residual": residual.strides[0] if residual is not None else 0,
    }  # fmt: skip
    buffers = {"x": "x", "w": "w", "c": "out", **optional_buffers(bias, residual)}
    return launch(kernel, buffers, values)


_GROUPED_SYMBOLS = "rows n k matrices x_row out_row ends_step matrix_bytes".split()


@functools.lru_cache(maxsize=None)
def _grouped_kernel(form: Form, x: str, c: str, index: str, here: _Block, there: _Block) -> KernelDef:
    def unit(block: _Block) -> Tuple[str, CudaSource]:
        shape = f"{block.columns}x{block.tiles}x{block.slices}x{block.groups}"
        entry = f"accrt_packed_groups_{_text(form)}_{x}_{c}_{index}_{shape}"
        arguments = (entry, TYPES[x], TYPES[c], f"int{index[1:]}_t", *_arguments(form), *shape.split("x"))
        return entry, CudaSource("packed.cuh", text=f"ACCRT_CUDA_PACKED_GROUPED({', '.join(arguments)})\n", flags=FLAGS)

    def grid(v: Mapping[str, Any]) -> Tuple[Any, Any, Any]:
        return (v["rows"] // (8 * here.columns) + v["matrices"] + 1, ex.maximum(ex.ceildiv(v["n"], _rows(form) * here.tiles), 1), 1)

    params = [reads("x"), reads("w"), reads("ends"), writes("out"), *(symbol(n) for n in _GROUPED_SYMBOLS)]
    return _either(unit, "grouped_quantized", params, grid, here, there)


def lower_groups(form: Form, matrices: int, x: TensorSpec, ends: TensorSpec, out: TensorSpec, columns: int) -> Optional[Launch]:
    """Rows ends[e - 1] up to ends[e] of x by matrix e of many, each as `form` says, 8 * columns
    rows at a time; None where there is no kernel for so many. Packed as one and one after the other
    is the same. Operands: x, w, ends, out."""
    if x.dtype not in products.OPERANDS or out.dtype not in (x.dtype, "f32"):
        raise ValueError(f"product: types {x.dtype} and {out.dtype}: f16 or bf16 are needed")
    if not (ex.equal(x.strides[1], 1) and ex.equal(out.strides[1], 1)):
        raise ValueError("grouped product: rows are contiguous")
    here, there = ((_wide_block if columns > 2 else _block)(form, columns, _SHARED_BYTES[arch]) for arch in ("sm_90", ""))
    if here is None or there is None:
        return None
    values = {
        "rows": x.shape[0], "n": form.n, "k": form.k, "matrices": matrices, "x_row": x.strides[0], "out_row": out.strides[0],
        "ends_step": ends.strides[0], "matrix_bytes": packed_bytes(form),
    }  # fmt: skip
    return launch(_grouped_kernel(_same(form), x.dtype, out.dtype, ends.dtype, here, there), {name: name for name in ("x", "w", "ends", "out")}, values)


@select.rule("accrt.grouped_quantized", "cuda")
def _grouped(op: Op, operands: select.Specs, results: select.Specs) -> select.Lowering:
    x, _weights, ends = operands
    form, matrices = op.attrs["form"], op.attrs["matrices"]

    def upto(rows: Optional[int], columns: int) -> List[Tuple[Any, Launch]]:
        """The kernel for so many rows of a matrix on average; None: for any number."""
        made = lower_groups(form, matrices, x, ends, results[0], columns)
        return [] if made is None else [(1 if rows is None else products.at_most(x.shape[0], rows * matrices), made)]

    # one kernel alone, where bits must not depend on how many rows there are
    options = upto(None, 2)
    if not select.is_batch_invariant(op):
        options = [*upto(_FEW_OF_EACH, 1), *upto(_SOME_OF_EACH, 4), *(upto(None, 8) or options)]
    return select.named(products.resolved(options), x=("in", 0), w=("in", 1), ends=("in", 2), out=select.OUT)


@functools.lru_cache(maxsize=None)
def _plain_kernel(form: Form, dtype: str) -> KernelDef:
    def grid(v: Mapping[str, Any]) -> Tuple[Any, Any, Any]:
        return (ex.maximum(ex.minimum(ex.ceildiv(v["n"] * v["k"], 8 * 4096), 4 * _MULTIPROCESSORS), 1), 1, 1)

    params = [reads("w"), writes("out")] + [symbol(n) for n in ("n", "k", "tiles")]
    arguments = (TYPES[dtype], *_arguments(form))
    return entry_kernel(f"packed_plain_{_text(form)}_{dtype}", "dequantize", "packed.cuh", "ACCRT_CUDA_PACKED_DEQUANTIZE", arguments, params, grid, 256)


def lower_plain(form: Form, dtype: str) -> Launch:
    """The whole weight as a matrix of a 16-bit type. Operands: w, out."""
    return launch(_plain_kernel(_same(form), dtype), {"w": "w", "out": "out"}, {"n": form.n, "k": form.k, "tiles": _block_tiles(form)})


@select.rule("accrt.linear_quantized", "cuda")
def _linear(op: Op, operands: select.Specs, results: select.Specs) -> select.Lowering:
    x, _weight, bias, residual = operands
    form, activation = op.attrs["form"], op.attrs["activation"]
    flat = [None if s is None else rows_of(s, what) for s, what in ((x, "x"), (results[0], "result"), (residual, "residual"))]
    bound = {name: ("in", i) for name, i in (("bias", 2), ("residual", 3)) if operands[i] is not None}

    def few(columns: int) -> select.Lowering:
        made = lower_few(form, flat[0], flat[1], bias, flat[2], activation, columns)
        return select.named(made, x=("in", 0), w=("in", 1), out=select.OUT, **bound)

    rows, invariant = flat[0].shape[0], select.is_batch_invariant(op)
    options = [] if invariant else [(products.at_most(rows, 8), few(1)), (products.at_most(rows, FEW_ROWS), few(2))]
    kept = []
    for condition, made in options:
        if ex.is_static(condition) and condition:
            return dataclasses.replace(made, alternatives=tuple(kept))
        if not ex.is_static(condition):
            kept.append((condition, made))
    weight = TensorSpec(x.dtype, (form.k, form.n), (1, form.k))
    made = products.lower_product(flat[0], weight, flat[1], bias, flat[2], activation, invariant=invariant)
    last = select.named(made, a=("in", 0), b=("temporary", 0), out=select.OUT, **bound)
    first = select.named(lower_plain(form, x.dtype), w=("in", 1), out=("temporary", 0))
    temporaries = (TensorType(x.dtype, (form.n, form.k)),)
    return select.Lowering(last.launch, last.bindings, (first,), temporaries, tuple(kept))


# ---- Making them ---------------------------------------------------------------------------------


@functools.lru_cache(maxsize=None)
def _prepare_kernel(form: Form) -> KernelDef:
    def grid(v: Mapping[str, Any]) -> Tuple[Any, Any, Any]:
        return (ex.maximum(ex.minimum(ex.ceildiv(v["n"] * v["k"], 8192), _ROW_BLOCKS), 1), 1, 1)

    codes, scales, kind, zeros = _arguments(form)
    params = [reads("data"), *(reads(role, optional=True) for role in ("scales", "zeros", "global_scale")), writes("out")]
    params += [symbol(n) for n in ("n", "k", "group", "groups", "is_e5m2", "tiles")]
    tags = {"LAYOUT": str(form.layout_id), "W_CODES": codes, "W_SCALES": scales, "W_TYPE": kind, "W_ZEROS": zeros, "W_BYTES": str(_record_bytes(form)), "S_TAG": host.scale_type(form)}
    return make_kernel(f"prepare_{form.layout}_{_text(form)}", "pack_quantized", "packed_prepare.cu", params, grid, **tags)


@select.rule("accrt.pack_quantized", "cuda")
def _pack(op: Op, operands: select.Specs, results: select.Specs) -> select.Lowering:
    form = op.attrs["form"]
    roles = select.roles_of(op)
    made = launch(_prepare_kernel(_same(form)), {**{role: role for role in roles}, "out": "out"}, {**host.weight_values(form), "tiles": _block_tiles(form)})
    return select.named(made, **roles, out=select.OUT)


# ---- Rows as floats ------------------------------------------------------------------------------


@functools.lru_cache(maxsize=None)
def _dequantize_kernel(layout_name: str, layout_id: int, scales: str, out: str, index: str) -> KernelDef:
    def grid(v: Mapping[str, Any]) -> Tuple[Any, Any, Any]:
        return (ex.maximum(ex.minimum(ex.ceildiv(v["rows"] * v["k"], 1024), _ROW_BLOCKS), 1), 1, 1)

    name = f"dequantize_{layout_name}_{scales}_{out}_{index}"
    tags = {"LAYOUT": str(layout_id), "S_TAG": scales, "OUT_TAG": out, "INDEX_TAG": index}
    return make_kernel(name, "dequantize", "dequantize.cu", host.dequantize_params(), grid, **tags)


def lower_dequantize(form: Form, out: TensorSpec, index: Optional[TensorSpec] = None) -> Launch:
    return host.lower_dequantize(form, out, index, _dequantize_kernel)


@functools.lru_cache(maxsize=None)
def _rows_kernel(form: Form, out: str, index: str) -> KernelDef:
    def grid(v: Mapping[str, Any]) -> Tuple[Any, Any, Any]:
        return (ex.maximum(ex.minimum(ex.ceildiv(v["rows"] * v["k"], 256), _ROW_BLOCKS), 1), 1, 1)

    params = [reads("w"), reads("index"), writes("out")] + [symbol(n) for n in ("n", "k", "rows", "tiles")]
    arguments = (TYPES[out], f"int{index[1:]}_t", *_arguments(form))
    return entry_kernel(f"packed_rows_{_text(form)}_{out}_{index}", "packed_rows", "packed.cuh", "ACCRT_CUDA_PACKED_ROWS", arguments, params, grid, 256)


def lower_rows(form: Form, index: TensorSpec, out: TensorSpec) -> Launch:
    """The rows of a packed weight that `index` picks. Operands: w, index, out."""
    values = {"n": form.n, "k": form.k, "rows": math.prod(index.shape), "tiles": _block_tiles(form)}
    return launch(_rows_kernel(_same(form), out.dtype, index.dtype), {"w": "w", "index": "index", "out": "out"}, values)


select.dequantize_rules("cuda", lower_dequantize)
select.rows_rule("cuda", lower_rows)
