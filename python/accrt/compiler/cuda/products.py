"""Records of matrix products of 16-bit types (gemm.cuh): tiles on the tensor cores, a kernel of its
own for few rows, and the operator of the pack accrt.cublaslt for large ones where it is there.
Which one is decided when a plan is made, by the number of rows."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, Dict, List, Mapping, Optional, Tuple

from ... import bundle_writer as bw
from .. import expr, ops, select
from ..ir import Op, Value
from ..kernels import elementwise as host_elementwise
from ..kernels import expr as ex
from ..kernels.kerneldef import (
    DTYPE_IDS, CudaSource, CudaVariant, KernelDef, Launch, OperatorSource, TensorSpec, launch, reads, scalar, symbol, writes
)  # fmt: skip
from ..kernels.matmul import ACTIVATIONS, check_product, optional_buffers
from . import elementwise
from .norms import FLAGS, TYPES, entry_kernel
from .tensor_ops import rows_of

OPERANDS = ("f16", "bf16")
OPERATOR = OperatorSource("accrt.cublaslt", "matmul")
_NAMES = "m n k lda ldb ldc ld_residual batch0 batch1 a0 a1 b0 b1 c0 c1 form".split()
_STAGES, _STAGE_K = 3, 64
#: Rows up to which the kernel for few rows is taken: it needs no library, and is as fast while the
#: weights come from the cache.
FEW_ROWS, FEW_WEIGHTS = 64, 1 << 23
#: Columns up to which its blocks make 8 of them: with more, 16, so that all blocks are on the
#: machine at once.
FEW_COLUMNS = 768
#: Results up to which tiles are 64 x 64: with larger ones most of the machine would have nothing to
#: do.
SMALL_TILE_RESULTS = 128 * 128 * 66


@dataclasses.dataclass(frozen=True)
class Form:
    """What a product's kernel is made for; the operator reads it from one number."""

    a: str
    c: str
    bias: str  # "": none
    activation: str
    b_is_nk: bool
    residual: bool
    constant: bool = False  # b and bias are not written while a program runs
    invariant: bool = False  # a row's bits are the same for any number of rows

    def number(self) -> int:
        """As packs/cublaslt/matmul.h has it."""
        bias = DTYPE_IDS[self.bias] if self.bias else 0
        kinds = DTYPE_IDS[self.a] | DTYPE_IDS[self.c] << 8 | bias << 16 | ACTIVATIONS[self.activation] << 24
        return kinds | int(self.b_is_nk) << 32 | int(self.residual) << 33 | int(self.constant) << 34 | int(self.invariant) << 35

    def is_for_operator(self) -> bool:
        """cuBLASLt's GELU is the one by tanh, its bias has the type of c, and it adds a residual
        before the activation."""
        fits = self.activation in ("none", "relu", "gelu_tanh") and self.bias in ("", self.c)
        return fits and not (self.residual and self.activation != "none")

    def text(self) -> str:
        return f"{self.a}_{self.c}_{self.bias or self.c}_{self.activation}"

    def arguments(self) -> Tuple[str, ...]:
        return (TYPES[self.a], TYPES[self.c], TYPES[self.bias or self.c], self.activation.upper())


def parameters() -> List[Any]:
    buffers = [reads("a"), reads("b"), reads("bias", optional=True), reads("residual", optional=True), writes("c")]
    return buffers + [symbol(n) for n in _NAMES] + [scalar("scale", "f32")]


def _grid(rows: int, columns: int) -> Any:
    def grid(v: Mapping[str, Any]) -> Tuple[Any, Any, Any]:
        across, down = ex.ceildiv(v["n"], columns), ex.ceildiv(v["m"], rows)
        return (ex.maximum(across, 1), ex.maximum(down, 1), ex.maximum(v["batch0"] * v["batch1"], 1))

    return grid


@functools.lru_cache(maxsize=None)
def tile_kernel(form: Form, size: int, operator: bool = False) -> KernelDef:
    """Tiles of size x size; with `operator`, cuBLASLt's product stands before it."""
    name = f"gemm_{form.text()}_{'nk' if form.b_is_nk else 'kn'}_{size}{'_lt' if operator else ''}"
    arguments = (*form.arguments(), size, size, int(form.b_is_nk))
    shared = _STAGES * _STAGE_K * 2 * 2 * size
    specials = (_warpgroup_variant(form, name, shared),) if size == 128 and form.b_is_nk else ()
    return entry_kernel(
        name, "matmul", "gemm.cuh", "ACCRT_CUDA_GEMM", arguments, parameters(), _grid(size, size), 128,
        local_memory_bytes=shared, specials=specials, operator=OPERATOR if operator else None,
    )  # fmt: skip


def _warpgroup_variant(form: Form, name: str, shared: int) -> CudaVariant:
    """The same tiles with Hopper's own instructions."""
    entry = "accrt_" + name
    text = f"ACCRT_CUDA_GEMM_WARPGROUP({', '.join((entry, *form.arguments()))})\n"
    return CudaVariant("sm_90a", CudaSource("warpgroup.cuh", text=text, flags=FLAGS), (256, 1, 1), (0, 0, 0), shared, entry)


@functools.lru_cache(maxsize=None)
def few_kernel(form: Form, row_tiles: int, column_tiles: int, operator: bool = False) -> KernelDef:
    name = f"gemm_few_{form.text()}_{row_tiles}x{column_tiles}{'_lt' if operator else ''}"
    arguments = (*form.arguments(), row_tiles, column_tiles)
    grid = _grid(16 * row_tiles, 8 * column_tiles)
    return entry_kernel(name, "matmul", "gemm.cuh", "ACCRT_CUDA_GEMM_SKINNY", arguments, parameters(), grid, 256, operator=OPERATOR if operator else None)


def layout_of_b(b: TensorSpec) -> Tuple[bool, Any]:
    """Whether b [..., k, n] lies as [n, k], and the step of its rows."""
    k, n = b.shape[-2:]
    if ex.equal(b.strides[-2], 1) or (ex.is_static(k) and k == 1 and not ex.equal(b.strides[-1], 1)):
        return True, b.strides[-1]
    if ex.equal(b.strides[-1], 1) or (ex.is_static(n) and n == 1):
        return False, b.strides[-2]
    raise ValueError(f"product: b has strides {b.strides}, one of its last two must be 1")


def batch_of(a: TensorSpec, b: TensorSpec, out: TensorSpec) -> Dict[str, Any]:
    """At most two batch axes, after joining those that all operands walk as one."""
    lead = out.shape[:-2]
    walked = [host_elementwise.broadcast_strides(TensorSpec(s.dtype, s.shape[:-2], s.strides[:-2]), lead) for s in (a, b, out)]
    shape, strides = host_elementwise.collapse(lead, walked)
    if len(shape) > 2:
        raise ValueError(f"product: batch axes {lead} do not join into two")
    pad = 2 - len(shape)
    values: Dict[str, Any] = {f"batch{i}": size for i, size in enumerate([1] * pad + list(shape))}
    for name, steps in zip("abc", strides):
        values.update({f"{name}{i}": step for i, step in enumerate([0] * pad + list(steps))})
    return values


def lower_product(
    a: TensorSpec,
    b: TensorSpec,
    out: TensorSpec,
    bias: Optional[TensorSpec] = None,
    residual: Optional[TensorSpec] = None,
    activation: str = "none",
    scale: float = 1.0,
    constant: bool = False,
    invariant: bool = False,
) -> Launch:
    """out = activation(scale * (a @ b) + bias) + residual: [..., m, k] @ [..., k, n]. Operands: a,
    b, bias, residual, out.

    a and out have a contiguous last axis, b one of its last two; leading axes broadcast and join
    into two. Residuals are for products without leading axes."""
    if a.dtype not in OPERANDS or b.dtype != a.dtype or out.dtype not in (a.dtype, "f32"):
        raise ValueError(f"product: types {a.dtype}, {b.dtype} and {out.dtype}: f16 or bf16 are needed")
    if bias is not None and bias.dtype not in TYPES:
        raise ValueError(f"product: the bias has type {bias.dtype}")
    check_product(a=a, out=out, bias=bias, residual=residual)
    b_is_nk, ldb = layout_of_b(b)
    form = Form(a.dtype, out.dtype, bias.dtype if bias is not None else "", activation, b_is_nk, residual is not None, constant, invariant)
    batch = batch_of(a, b, out)
    if residual is not None and residual.rank != 2:
        raise ValueError(f"product: a residual of rank {residual.rank}")
    m, n = out.shape[-2:]
    values = {
        "m": m, "n": n, "k": a.shape[-1], "lda": a.strides[-2], "ldb": ldb, "ldc": out.strides[-2],
        "ld_residual": residual.strides[-2] if residual is not None else 0, "form": form.number(), "scale": scale, **batch,
    }  # fmt: skip
    buffers = {"a": "a", "b": "b", "c": "out", **optional_buffers(bias, residual)}
    alone = ex.is_static(batch["batch0"] * batch["batch1"]) and batch["batch0"] * batch["batch1"] == 1
    options = [(condition, launch(kernel, buffers, values)) for condition, kernel in _options(form, m, n, a.shape[-1], alone)]
    return resolved(options)


def at_most(a: Any, b: int) -> Any:
    """1, 0 or a condition."""
    return int(a <= b) if ex.is_static(a) else expr.simplify(bw.less_equal(a, b))


def _options(form: Form, m: Any, n: Any, k: Any, alone: bool) -> List[Tuple[Any, KernelDef]]:
    """Kernels and the conditions for them; the last has none."""
    library = form.is_for_operator()
    if form.invariant:
        return [(at_most(k, 0), tile_kernel(form, 128)), (1, tile_kernel(form, 128, library and alone))]
    # cuBLASLt takes no empty sums.
    options: List[Tuple[Any, KernelDef]] = [(at_most(k, 0), tile_kernel(form, 64))] if library else []
    if alone and form.b_is_nk:
        small = ex.is_static(n * k) and n * k <= FEW_WEIGHTS
        options.append((at_most(m, FEW_ROWS if small else 16), few_kernel(form, 1, 1 if small and n <= FEW_COLUMNS else 2, library and not small)))
    if alone:
        options.append((at_most(m * n, SMALL_TILE_RESULTS), tile_kernel(form, 64, library)))
        options.append((1, tile_kernel(form, 128, library)))
    else:
        options.append((at_most(m * n, 128 * 128), tile_kernel(form, 64)))
        options.append((1, tile_kernel(form, 128)))
    return options


def resolved(options: List[Tuple[Any, Launch]]) -> Launch:
    """One launch: what conditions that are known say is done here."""
    kept: List[Tuple[Any, Launch]] = []
    for condition, made in options:
        if ex.is_static(condition) and not condition:
            continue
        if ex.is_static(condition):
            return dataclasses.replace(made, alternatives=tuple(kept))
        kept.append((condition, made))
    raise ValueError("product: no kernel is left")


def _is_constant(value: Value) -> bool:
    """Whether it is a view of a constant as it lies in memory."""
    while value.op is not None and ops.OPS[value.op.name].view:
        value = value.op.operands[0]
    return value.constant is not None


@select.rule("aten.matmul", "cuda", priority=10)
def _matmul(op: Op, operands: select.Specs, results: select.Specs) -> select.Lowering:
    if operands[0].rank < 2 or operands[1].rank < 2:
        raise ValueError("product: vectors take another kernel")
    made = lower_product(operands[0], operands[1], results[0], invariant=select.is_batch_invariant(op))
    return select.named(made, a=("in", 0), b=("in", 1), out=select.OUT)


def _activated(activation: str, out: TensorSpec) -> select.Lowering:
    """activation(out), over out itself."""
    nodes = (host_elementwise.Node("input", out.dtype, (), 0), host_elementwise.Node(activation, out.dtype, (0,)))
    made = elementwise.lower(host_elementwise.Program(nodes, (1,)), [out], [out])
    return select.Lowering(made, {"x0": select.OUT, "y0": select.OUT})


@select.rule("accrt.product", "cuda", priority=11)
def _product_in_two(op: Op, operands: select.Specs, results: select.Specs) -> select.Lowering:
    """A large product whose activation cuBLASLt has not is made by it all the same, and the
    activation after it: that reads and writes the result once more, which costs less than a slower
    product. Small ones are one launch."""
    x, weight, bias, residual = operands
    activation = op.attrs["activation"]
    form = Form(x.dtype, results[0].dtype, bias.dtype if bias is not None else "", "none", True, False, True)
    if activation in ("none", "relu", "gelu_tanh") or residual is not None or not form.is_for_operator():
        raise ValueError("product: one launch does it")  # a residual may lie where the result does
    flat_x, flat_out = rows_of(x, "x"), rows_of(results[0], "result")
    small, invariant = _product(op, operands, results), select.is_batch_invariant(op)
    plain = lower_product(flat_x, weight, flat_out, bias, invariant=invariant)
    m, n = flat_out.shape
    is_small = 0 if invariant else at_most(m * n, SMALL_TILE_RESULTS)
    if ex.is_static(is_small) and is_small:
        return small
    made = select.named(plain, a=("in", 0), b=("in", 1), out=select.OUT, **({"bias": ("in", 2)} if bias is not None else {}))
    last = _activated(activation, flat_out)
    alternatives = () if ex.is_static(is_small) else ((is_small, small),)
    return dataclasses.replace(last, before=(made,), alternatives=alternatives)


@select.rule("accrt.product", "cuda", priority=10)
def _product(op: Op, operands: select.Specs, results: select.Specs) -> select.Lowering:
    x, weight, bias, residual = operands
    flat = [None if s is None else rows_of(s, what) for s, what in ((x, "x"), (results[0], "result"), (residual, "residual"))]
    constant = all(_is_constant(v) for v in op.operands[1:3] if v is not None)
    made = lower_product(flat[0], weight, flat[1], bias, flat[2], op.attrs["activation"], constant=constant, invariant=select.is_batch_invariant(op))
    present = {name: ("in", i) for name, i in (("bias", 2), ("residual", 3)) if operands[i] is not None}
    return select.named(made, a=("in", 0), b=("in", 1), out=select.OUT, **present)
