"""Matrix products."""

from __future__ import annotations

from typing import Any

from ..declared import INTEGERS, TensorType
from ..ir import IRError, Op, Value
from .schema import broadcast, define, need_same, resized, Types

#: Float types that a product may mix: it calculates in f32, and gives the type of the left side.
MIXED = ("f16", "bf16", "f32")
#: Other types of products, each with its own alone.
_UNMIXED = ("f64", *INTEGERS)


def check_product_types(left: str, right: str, what: str = "product") -> None:
    """ATen refuses two types; here those of MIXED go together, as weights in 16 bits have it."""
    if (left in MIXED and right in MIXED) or (left == right and left in _UNMIXED):
        return
    if left == right:
        raise IRError(f"{what} of {left}: there are products of {', '.join((*MIXED, *_UNMIXED))}; cast with to_copy()")
    raise IRError(f"{what} of {left} and {right}: both are of one type, or both of {', '.join(MIXED)}; cast one with to_copy()")


@define("aten.matmul(Tensor self, Tensor other)", reference=lambda a, b: a @ b)
def _infer_matmul(op: Op) -> Types:
    """[..., m, k] @ [..., k, n]; leading dimensions broadcast."""
    a, b = op.operands
    if a.rank < 2 or b.rank < 2:
        raise IRError(f"product of {a.type} and {b.type}; both need two dimensions at least")
    check_product_types(a.dtype, b.dtype)
    need_same(a.shape[-1], b.shape[-2], f"inner dimension of {a.type} @ {b.type}")
    return resized(op, broadcast([a.shape[:-2], b.shape[:-2]]) + (a.shape[-2], b.shape[-1]) if a.rank + b.rank > 4 else (a.shape[0], b.shape[1]))


def _decompose_product(op: Op) -> Value:
    return op.operands[0].matmul(op.operands[1])


for _name, _rank in (("mm", 2), ("bmm", 3)):

    @define(f"aten.{_name}(Tensor self, Tensor mat2)", reference=lambda a, b: a @ b, decompose=_decompose_product)
    def _infer_mm(op: Op, rank: int = _rank) -> Types:
        if any(v.rank != rank for v in op.operands):
            raise IRError(f"{op.name} of {op.operands[0].type} and {op.operands[1].type}")
        if rank == 3:
            need_same(op.operands[0].shape[0], op.operands[1].shape[0], "batch of bmm")
        return _infer_matmul(op)


@define(
    "aten.addmm(Tensor self, Tensor mat1, Tensor mat2)", reference=lambda c, a, b: a @ b + c,
    decompose=lambda op: op.operands[1].matmul(op.operands[2]) + op.operands[0],
)  # fmt: skip
def _infer_addmm(op: Op) -> Types:
    """mat1 @ mat2 + self, which broadcasts to the product's shape."""
    c, a, b = op.operands
    if a.rank != 2 or b.rank != 2 or c.rank > 2:
        raise IRError(f"addmm of {c.type}, {a.type} and {b.type}: matrices, and what broadcasts to their product, are needed")
    check_product_types(a.dtype, b.dtype, "addmm")
    check_product_types(a.dtype, c.dtype, "addmm and what is added")
    need_same(a.shape[-1], b.shape[-2], "inner dimension")
    shape = (a.shape[0], b.shape[1])
    for size, wanted in zip(broadcast([c.shape, shape]), shape):
        need_same(size, wanted, f"addmm, what is added, {c.type},")
    return [TensorType(a.dtype, shape)]


def _decompose_linear(op: Op) -> Value:
    x, weight, bias = op.operands
    flat = x if x.rank > 1 else x.unsqueeze(0)
    y = flat.matmul(weight.t())
    if bias is not None:
        y = y + bias
    return y if x.rank > 1 else y.squeeze(0)


def _linear(x: Any, weight: Any, bias: Any = None) -> Any:
    y = x @ weight.T
    return y if bias is None else y + bias


@define("aten.linear(Tensor self, Tensor weight, Tensor? bias=None)", reference=_linear, decompose=_decompose_linear)
def _infer_linear(op: Op) -> Types:
    x, weight, bias = op.operands
    if weight.rank != 2 or x.rank < 1 or (bias is not None and bias.rank != 1):
        raise IRError(f"linear of {x.type} with weight {weight.type}" + (f" and bias {bias.type}" if bias is not None else ""))
    check_product_types(x.dtype, weight.dtype, "linear")
    if bias is not None:
        check_product_types(x.dtype, bias.dtype, "linear and its bias")
    need_same(x.shape[-1], weight.shape[1], "inner dimension of a linear layer")
    if bias is not None:
        need_same(bias.shape[0], weight.shape[0], "bias of a linear layer")
    return resized(op, x.shape[:-1] + (weight.shape[0],))
