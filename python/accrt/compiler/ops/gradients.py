"""Gradients of norms and of softmax, for functions that are backwards of others."""

from __future__ import annotations

from typing import Any, List, Tuple

from ..declared import FLOATS
from ..ir import IRError, Op, Value
from .products import MIXED
from .schema import axis_of, define, need_same, numpy, Types


def _check_gradient(op: Op) -> None:
    grad, value = op.operands[:2]
    if value.rank == 0 or value.dtype not in FLOATS or not grad.type.same(value.type):
        raise IRError(f"{op.name} of {grad.type} and {value.type}: floats of one type and shape are needed")


def _wide(value: Value) -> Value:
    """In the type that kernels calculate in."""
    return value if value.dtype == "f64" else value.to_copy("f32")


# ---- Norms ---------------------------------------------------------------------------------------


def _norm_backward(grad: Any, x: Any, weight: Any, eps: float, centered: bool) -> Tuple[Any, ...]:
    np = numpy()
    lead = tuple(range(x.ndim - 1))
    if not x.size:
        return (x, *[np.zeros_like(weight)] * (1 + centered))
    x = x - np.mean(x, -1, keepdims=True) if centered else x
    factor = 1 / np.sqrt(np.mean(x * x, -1, keepdims=True) + eps)
    unit, inner = x * factor, grad * weight
    made = inner - unit * np.mean(inner * unit, -1, keepdims=True)
    made = made - np.mean(inner, -1, keepdims=True) if centered else made
    return (made * factor, np.sum(grad * unit, lead), *([np.sum(grad, lead)] if centered else []))


def _decompose_norm_backward(op: Op) -> List[Value]:
    centered = len(op.results) == 3
    grad, x, weight = (_wide(v) for v in op.operands)
    lead, dtype = list(range(x.rank - 1)), op.operands[2].dtype
    x = x - x.mean(-1, True) if centered else x
    factor = ((x * x).mean(-1, True) + op.attrs["eps"]).rsqrt()
    unit, inner = x * factor, grad * weight
    made = inner - unit * (inner * unit).mean(-1, True)
    made = made - inner.mean(-1, True) if centered else made
    summed = [grad * unit, *([grad] if centered else [])]
    return [(made * factor).to_copy(op.operands[0].dtype), *((v.sum(lead) if lead else v).to_copy(dtype) for v in summed)]


def _infer_norm_backward(op: Op, results: int) -> Types:
    _check_gradient(op)
    x, weight = op.operands[1:]
    if weight.rank != 1 or (weight.dtype != x.dtype and not (weight.dtype in MIXED and x.dtype in MIXED)):
        raise IRError(f"{op.name} with weights of {weight.type} for {x.type}; cast them with to_copy()")
    need_same(weight.shape[0], x.shape[-1], "weights of a norm")
    return [x.type, *[weight.type] * (results - 1)]


@define(
    "accrt.rms_norm_backward(Tensor grad, Tensor self, Tensor weight, float? eps=None)",
    reference=lambda grad, x, weight, eps: _norm_backward(grad, x, weight, eps, False), decompose=_decompose_norm_backward,
)  # fmt: skip
def _infer_rms_norm_backward(op: Op) -> Types:
    """The gradients of x and of the weight of x.rms_norm(weight, eps), of that of its result."""
    if op.attrs["eps"] is None:
        op.attrs["eps"] = 2.0**-52 if op.operands[0].dtype == "f64" else 2.0**-23
    return _infer_norm_backward(op, 2)


@define(
    "accrt.layer_norm_backward(Tensor grad, Tensor self, Tensor weight, float eps=1e-5)",
    reference=lambda grad, x, weight, eps: _norm_backward(grad, x, weight, eps, True), decompose=_decompose_norm_backward,
)  # fmt: skip
def _infer_layer_norm_backward(op: Op) -> Types:
    """The gradients of x, of the weight and of the bias of x.layer_norm(weight, bias, eps), of that
    of its result."""
    return _infer_norm_backward(op, 3)


# ---- Softmax -------------------------------------------------------------------------------------


def _softmax_backward(grad: Any, result: Any, dim: int = -1, scale: float = 1.0) -> Any:
    return result * (grad - numpy().sum(grad * result, dim, keepdims=True)) * scale


def _decompose_softmax_backward(op: Op) -> Value:
    grad, result = (_wide(v) for v in op.operands)
    made = result * (grad - (grad * result).sum(op.attrs["dim"], True))
    return (made if op.attrs["scale"] == 1.0 else made * op.attrs["scale"]).to_copy(op.operands[0].dtype)


@define(
    "accrt.softmax_backward(Tensor grad, Tensor result, int dim=-1, float scale=1.0)",
    reference=_softmax_backward, decompose=_decompose_softmax_backward,
)  # fmt: skip
def _infer_softmax_backward(op: Op) -> Types:
    """The gradient of x of x.softmax(dim), or of x.masked_softmax(mask, scale) with that scale, of
    its result and of that result's gradient."""
    _check_gradient(op)
    axis_of(op.attrs["dim"], op.operands[0].rank)
    return [op.operands[0].type]
