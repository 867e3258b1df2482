"""Records of f32 products: the operator of the pack accrt.cublaslt where it is there, the tiles of
product.cu where it is not, and few rows by reading the weight once. f32 is multiplied as f32."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, Optional

from .. import select
from ..ir import Op
from ..kernels import expr as ex
from ..kernels.kerneldef import KernelDef, Launch, TensorSpec, launch
from ..kernels.matmul import ACTIVATIONS, check_product, optional_buffers
from . import products, tensor_ops

#: Results up to which the tiles of product.cu do as well.
SMALL_RESULTS = 128 * 128


@functools.lru_cache(maxsize=None)
def kernel(form: products.Form) -> KernelDef:
    name = f"product_{form.text()}_lt"
    tags = {"A_TAG": "f32", "B_TAG": "f32", "C_TAG": "f32", "BIAS_TAG": form.bias or "f32", "ACTIVATION": str(ACTIVATIONS[form.activation])}
    grid = tensor_ops.product_grid(("batch0", "batch1"))
    made = tensor_ops.make_kernel(name, "matmul", "product.cu", products.parameters(), grid, LIKE_OPERATOR="1", **tags)
    return dataclasses.replace(made, operator=products.OPERATOR)


def lower_product(
    a: TensorSpec,
    b: TensorSpec,
    out: TensorSpec,
    bias: Optional[TensorSpec] = None,
    residual: Optional[TensorSpec] = None,
    activation: str = "none",
) -> Launch:
    """As products.lower_product, all of f32."""
    if any(spec is not None and spec.dtype != "f32" for spec in (a, b, out, bias, residual)):
        raise ValueError("product: f32 alone is done by this kernel")
    check_product(a=a, out=out, bias=bias, residual=residual)
    is_nk, ldb = products.layout_of_b(b)
    form = products.Form("f32", "f32", "f32" if bias is not None else "", activation, is_nk, residual is not None)
    if not form.is_for_operator() or (residual is not None and residual.rank != 2):
        raise ValueError(f"product: cuBLASLt has no {form}")
    m, n = out.shape[-2:]
    values = {
        "m": m, "n": n, "k": a.shape[-1], "lda": a.strides[-2], "ldb": ldb, "ldc": out.strides[-2],
        "ld_residual": residual.strides[-2] if residual is not None else 0, "form": form.number(), "scale": 1.0,
        **products.batch_of(a, b, out),
    }  # fmt: skip
    buffers = {"a": "a", "b": "b", "c": "out", **optional_buffers(bias, residual)}
    made = launch(kernel(form), buffers, values)
    own = tensor_ops.lower_product(a, b, out, bias, residual, activation)
    # cuBLASLt takes no empty sums: they count as small.
    small = products.at_most(m * n * ex.minimum(a.shape[-1], 1), SMALL_RESULTS)
    if own.kernel.name.startswith("cuda.few_rows") or (ex.is_static(small) and small):
        return own
    alternatives = own.alternatives if ex.is_static(small) else (*own.alternatives, (small, dataclasses.replace(own, alternatives=())))
    return dataclasses.replace(made, alternatives=alternatives)


def _refuse_invariant(op: Op) -> None:
    if select.is_batch_invariant(op):
        raise ValueError("product: which kernel is taken depends on the number of rows")


@select.rule("aten.matmul", "cuda", priority=9)
def _matmul(op: Op, operands: select.Specs, results: select.Specs) -> select.Lowering:
    _refuse_invariant(op)
    made = lower_product(operands[0], operands[1], results[0])
    return select.named(made, a=("in", 0), b=("in", 1), out=select.OUT)


@select.rule("accrt.product", "cuda", priority=9)
def _product(op: Op, operands: select.Specs, results: select.Specs) -> select.Lowering:
    _refuse_invariant(op)
    x, weight, bias, residual = operands
    flat: Any = [
        None if s is None else tensor_ops.rows_of(s, what) for s, what in ((x, "x"), (results[0], "result"), (residual, "residual"))
    ]  # fmt: skip
    made = lower_product(flat[0], weight, flat[1], bias, flat[2], op.attrs["activation"])
    present = {name: ("in", i) for name, i in (("bias", 2), ("residual", 3)) if operands[i] is not None}
    return select.named(made, a=("in", 0), b=("in", 1), out=select.OUT, **present)
