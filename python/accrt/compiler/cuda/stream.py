"""Records of products of few rows with a weight that is read as fast as it can be, with the norm
before them and the gate or the turn after them (stream.cuh, stream_row.cuh). With more rows each
has a kernel of its own."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, Dict, List, Mapping, Optional, Tuple

from .. import select
from ..declared import TensorType
from ..ir import Op
from ..kernels import expr as ex
from ..kernels.kerneldef import CudaSource, CudaVariant, KernelDef, Launch, TensorSpec, launch, reads, scalar, symbol, updates, writes
from . import norms
from .norms import FLAGS, TYPES, entry_kernel
from .products import OPERANDS, Form, _is_constant, _product, _product_in_two, at_most, layout_of_b, lower_product
from .serving import rope_scatter_launch
from .tensor_ops import rows_of

#: Rows up to which these kernels are taken: one or two tiles of 8.
ROWS: Tuple[int, ...] = (8, 16)
#: Shared memory for normed rows, so that a multiprocessor holds two blocks.
_MOST_SHARED = 100_000
#: Multiprocessors of the largest machine that this is made for; others get a grid that does not
#: quite fit.
_MULTIPROCESSORS = 132
#: Shared memory of a kernel for one row: what every machine gives to a block; and what of it
#: weights need at least.
_MOST_ROW_SHARED, _LEAST_RING = 101_376, 48 << 10
#: On sm_90a a multiprocessor has one block of a kernel with a norm (whose shared memory is there
#: once) beside one of a kernel without (whose registers are there once), so that a kernel and the
#: one behind it are spread evenly: shared memory of the first, at least and at most, and threads of
#: the second.
_LARGE_SHARED, _LARGE_THREADS = (118_784, 130_048), 704
#: Bytes of weights that a block asks for before its row where it has few in all.
_FIRST = 96 << 10
#: Rows of the weight from this length on have 16 warps, others 8.
_LONG = 4096


def _shared_bytes(k: int, tiles: int, warps: int = 8) -> int:
    """As stream.cuh has it; k: of normed rows, else 0."""
    sums = 2 * warps * 16 * (8 * tiles + 1) * 4
    return sums + (8 * tiles * (ex.ceildiv(k, 64) * 64 + 8) * 2 if k else 0)


def _row_kernel_of(
    name: str, macro: str, arguments: Tuple[Any, ...], params: List[Any], n: int, k: int, warps: int, columns: int, gated: bool, normed: bool
) -> Optional[KernelDef]:
    """`arguments`: of the macro, those before the ring's. None where there is too little room."""

    def grid(v: Mapping[str, Any]) -> Tuple[Any, Any, Any]:
        return (ex.minimum(ex.maximum(ex.ceildiv(v["n"], columns), 1), _MULTIPROCESSORS), 1, 1)

    def shared(ring: int) -> int:
        return _row_shared_bytes(k, warps, columns == 16 or gated, ring)

    def first(ring: int) -> int:
        """All where the kernel has more than the ring: then memory is what it waits for."""
        steps = _most_tiles(n, columns) * (-(-k // (64 * warps)) * 2)
        return ring if not normed or steps > ring else min(ring, max(2, _FIRST // (shared(1) - shared(0))))

    ring = _ring(n, k, warps, columns, gated, _MOST_ROW_SHARED)
    if not ring:
        return None
    large = _ring(n, k, warps, columns, gated, _LARGE_SHARED[1]) if normed else ring
    name = f"{name}_{k}_{ring}_{large}"
    threads = 32 * warps if normed else _LARGE_THREADS
    text = f"{macro}({', '.join(map(str, ('accrt_' + name, *arguments, large, first(large), threads)))})\n"
    bytes_ = max(shared(large), _LARGE_SHARED[0]) if normed else shared(ring)
    special = CudaVariant("sm_90a", CudaSource("stream_row.cuh", text=text, flags=FLAGS), (threads, 1, 1), (0, 0, 0), bytes_, "accrt_" + name)
    return entry_kernel(
        name, "matmul", "stream_row.cuh", macro, (*arguments, ring, first(ring), 32 * warps), params, grid, 32 * warps, local_memory_bytes=shared(ring), specials=(special,)
    )  # fmt: skip


@functools.lru_cache(maxsize=None)
def row_kernel(form: Form, n: int, k: int, gated: bool, normed: bool) -> Optional[KernelDef]:
    """Of one row (stream_row.cuh), with as many columns as share the work most evenly."""
    warps = _warps(k, normed)
    columns = 8 if gated or _most_tiles(n, 8) * 8 < _most_tiles(n, 16) * 16 else 16
    name = f"stream_row_{form.text()}_{warps}x{columns}" + ("_gated" if gated else "") + ("_normed" if normed else "")
    arguments = (*form.arguments(), warps, columns, str(gated).lower(), str(normed).lower(), k)
    return _row_kernel_of(name, "ACCRT_CUDA_STREAM_ROW", arguments, _parameters(), n, k, warps, columns, gated, normed)


def _row_shared_bytes(k: int, warps: int, is_wide: bool, ring: int) -> int:
    """As stream_row.cuh has it."""
    pieces = 2 if is_wide else 1
    return ring * pieces * warps * 32 * 16 + ((k + 63) // 64 * 64 + 8) * 2 + 2 * warps * 8 * pieces * 4


def _warps(k: int, normed: bool) -> int:
    return 16 if k >= _LONG and not normed else 8


def _most_tiles(n: int, columns: int) -> int:
    """Of the block that has most."""
    return -(-(-(-n // columns)) // _MULTIPROCESSORS)


def _ring(n: int, k: int, warps: int, columns: int, gated: bool, most: int) -> int:
    """Steps of a ring as long as there is room for; 0 where there is too little."""
    is_wide = columns == 16 or gated
    room = most - _row_shared_bytes(k, warps, is_wide, 0)
    step = _row_shared_bytes(k, warps, is_wide, 1) - _row_shared_bytes(k, warps, is_wide, 0)
    steps = _most_tiles(n, columns) * (-(-k // (64 * warps)) * 2)
    ring = min(room // step, steps)
    return ring if ring >= min(steps, _LEAST_RING // step) else 0


def _parameters() -> List[Any]:
    params = [reads("a"), reads("b"), reads("bias", optional=True), reads("residual", optional=True), reads("norm", optional=True), writes("c")]
    return params + [symbol(n) for n in ("m", "n", "k", "lda", "ldb", "ldc", "ld_residual", "form")] + [scalar("epsilon", "f32")]


@functools.lru_cache(maxsize=None)
def stream_kernel(form: Form, tiles: int, warps: int, gated: bool, normed: int) -> KernelDef:
    """`normed`: the length of normed rows; 0: rows come as they are."""
    name = f"stream_{form.text()}_{tiles}x{warps}" + ("_gated" if gated else "") + (f"_normed_{normed}" if normed else "")
    columns = 8 if gated else 16
    most = _MULTIPROCESSORS * (2 if warps == 8 else 1)

    def grid(v: Mapping[str, Any]) -> Tuple[Any, Any, Any]:
        return (ex.minimum(ex.maximum(ex.ceildiv(v["n"], columns), 1), most), ex.maximum(ex.ceildiv(v["m"], 8 * tiles), 1), 1)

    arguments = (*form.arguments(), tiles, warps, str(gated).lower(), str(bool(normed)).lower())
    shared = _shared_bytes(normed, tiles, warps)
    return entry_kernel(name, "matmul", "stream.cuh", "ACCRT_CUDA_STREAM", arguments, _parameters(), grid, 32 * warps, local_memory_bytes=shared)


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
    alone: bool = True,
) -> List[Tuple[Any, Launch]]:
    """Launches and the conditions for them; none where these kernels cannot take the product.
    `alone`: one row has its own kernel. Operands: a, b, bias, residual, norm, out."""
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
    one, kernel = at_most(m, 1), row_kernel(form, n, k, gated, norm) if alone and ex.is_static(n) and n > 0 else None
    if kernel is not None and not (ex.is_static(one) and not one):
        made.append((one, launch(kernel, buffers, values)))
    for tiles, rows in enumerate(ROWS, 1):
        condition = at_most(m, rows)
        if (ex.is_static(condition) and not condition) or (norm and _shared_bytes(k, tiles) > _MOST_SHARED):
            continue
        made.append((condition, launch(stream_kernel(form, tiles, _warps(k, norm), gated, k if norm else 0), buffers, values)))
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
    constant = all(_is_constant(v) for v in op.operands[1:4] if v is not None)
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
    if not op.attrs.get("gated"):
        product = lower_product(a, weight, out, bias, activation=op.attrs.get("activation", "none"), constant=constant)
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


# ---- Queries and keys that are turned, keys and values that are written --------------------------


@functools.lru_cache(maxsize=None)
def turned_kernel(form: Form, n: int, k: int, normed: bool) -> Optional[KernelDef]:
    """A product of one row, and what rope_scatter.cu does with it."""
    warps = _warps(k, normed)
    name = f"stream_row_turned_{form.text()}_{warps}" + ("_normed" if normed else "")
    params = [reads("a"), reads("b"), reads("bias", optional=True), reads("norm", optional=True), reads("positions"), reads("frequencies"), reads("slots")]
    params += [updates("keys"), updates("values"), writes("out")]
    params += [symbol(name) for name in "m n lda ldb heads kv_heads size value_size rows out_head interleaved form".split()]
    params += [scalar("epsilon", "f32"), scalar("scale", "f32")]
    arguments = (TYPES[form.a], TYPES[form.bias or form.c], warps, str(normed).lower(), k)
    return _row_kernel_of(name, "ACCRT_CUDA_STREAM_ROW_TURNED", arguments, params, n, k, warps, 8, False, normed)


def _turned_launch(op: Op, a: TensorSpec, operands: select.Specs, out: TensorSpec, constant: bool) -> Optional[Launch]:
    """Of one row; None where the kernel cannot take it."""
    _x, weight, norm, bias, positions, frequencies, slots = operands
    k, n, (_tokens, heads, size), value_size = a.shape[1], weight.shape[1], out.shape, op.attrs["values"].type.shape[-1]
    keys = op.attrs["keys"].type
    kinds = a.dtype in OPERANDS and weight.dtype == a.dtype == out.dtype and (bias is None or bias.dtype in TYPES)
    if not kinds or not layout_of_b(weight)[0] or not ex.is_static(k) or positions.dtype != "i32" or slots.dtype != "i32":
        return None
    if not ex.is_static(frequencies.shape[0]) or 2 * frequencies.shape[0] != size or size % 8 or value_size % 8 or not ex.equal(out.strides[-1], 1):
        return None
    form = Form(a.dtype, out.dtype, bias.dtype if bias is not None else "", "none", True, False, constant)
    kernel = turned_kernel(form, n, k, norm is not None)
    if kernel is None:
        return None
    values = {
        "m": a.shape[0], "n": n, "lda": a.strides[0], "ldb": layout_of_b(weight)[1], "heads": heads, "kv_heads": keys.shape[-2], "size": size, "value_size": value_size,
        "rows": ex.product(select.contiguous(keys).shape[:-2]), "out_head": out.strides[1], "interleaved": int(op.attrs["interleaved"]), "form": form.number() | _is_constant(op.operands[5]) << 36,
        "epsilon": op.attrs["eps"] or 0.0, "scale": float(op.attrs["scale"]),
    }  # fmt: skip
    names = ["a", "b", "positions", "frequencies", "slots", "keys", "values", "out"] + ["bias"] * (bias is not None) + ["norm"] * (norm is not None)
    return launch(kernel, {name: name for name in names}, values)


@select.rule("accrt.turned_product", "cuda")
def _turned_product(op: Op, operands: select.Specs, results: select.Specs) -> select.Lowering:
    """One kernel where there is one row; else the product, and rope_scatter of it."""
    x, weight, norm, bias, *given = operands
    a, out = rows_of(x, "x"), results[0]
    if norm is not None:
        select.require_plain(norm)
    constant = all(_is_constant(v) for v in op.operands[1:4] if v is not None)
    states: Dict[str, select.Binding] = {"keys": ("state", 0), "values": ("state", 1), "out": select.OUT}
    turned: Dict[str, select.Binding] = {**states, **{name: ("in", 4 + i) for i, name in enumerate(("positions", "frequencies", "slots"))}}
    present: Dict[str, select.Binding] = {name: ("in", i) for name, i in (("norm", 2), ("bias", 3)) if operands[i] is not None}
    m, n = a.shape[0], weight.shape[1]
    made = select.contiguous(TensorType(out.dtype, (m, n)))
    apart = _apart(op, a, weight, norm, bias, made, constant)
    place: select.Binding = ("temporary", len(apart.temporaries))
    heads, size, kv_heads, value_size = *out.shape[1:], *op.attrs["values"].type.shape[-2:]
    q, k, v = (TensorSpec(out.dtype, (m, count, width), (n, width, 1)) for count, width in ((heads, size), (kv_heads, size), (kv_heads, value_size)))
    last = rope_scatter_launch(op, q, k, v, given, out, heads * size, (heads + kv_heads) * size)
    turn = select.Lowering(last, {**turned, "q": place, "k": place, "v": place})

    def after(product: select.Lowering) -> select.Lowering:
        """The product, whose result is `out`, and then its turn."""
        bindings = {name: place if binding == select.OUT else binding for name, binding in product.bindings.items()}
        return dataclasses.replace(turn, before=(*product.before, select.Lowering(product.launch, bindings)))

    few: List[Tuple[Any, select.Lowering]] = []
    alone, one = _turned_launch(op, a, operands, out, constant), at_most(m, 1)
    if alone is not None and not (ex.is_static(one) and not one):
        few.append((one, select.Lowering(alone, {**turned, **present, "a": ("in", 0), "b": ("in", 1)})))
    for condition, some in stream_launches(a, weight, made, bias, None, "none", norm is not None, op.attrs["eps"] or 0.0, False, constant, alone is None):
        few.append((condition, after(select.named(some, a=("in", 0), b=("in", 1), out=select.OUT, **present))))
    many = dataclasses.replace(after(apart), temporaries=(*apart.temporaries, TensorType(out.dtype, (m, n))))
    # The first that is known to hold needs its temporary too.
    for condition, chosen in few:
        if ex.is_static(condition) and condition:
            return chosen if not chosen.before else dataclasses.replace(chosen, temporaries=many.temporaries)
    return dataclasses.replace(many, alternatives=tuple(few))
