"""Reductions, softmax and norms."""

from __future__ import annotations

import math
from typing import Any, Callable, Tuple

from .. import expr as ex
from ..expr import Size
from ..ir import FLOATS, IRError, Op, Value
from .elementwise import unary_inference
from .products import MIXED
from .schema import axes_of, axis_of, define, need_same, numpy, resized, Types


def _reduced(op: Op) -> Tuple[Size, ...]:
    source = op.operands[0]
    axes = axes_of(op.attrs["dim"], source.rank)
    if op.attrs["keepdim"]:
        return tuple(1 if i in axes else s for i, s in enumerate(source.shape))
    return tuple(s for i, s in enumerate(source.shape) if i not in axes)


def _reduce(kind: str) -> Callable[..., Any]:
    def reference(x: Any, dim: Any = None, keepdim: bool = False) -> Any:
        np = numpy()
        if x.ndim == 0:
            x, dim, keepdim = x[None], None, False
        axes = tuple(axes_of(dim, x.ndim))
        count = math.prod(x.shape[a] for a in axes)
        if kind == "sum":
            return np.sum(x, axes, keepdims=keepdim, dtype=x.dtype if x.dtype.kind == "f" else np.int64)
        if kind == "mean":
            with np.errstate(all="ignore"):
                return np.sum(x, axes, keepdims=keepdim) / np.float64(count)
        if count == 0:
            shape = np.sum(x, axes, keepdims=keepdim).shape
            low = -np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min
            high = np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).max
            return np.full(shape, low if kind == "amax" else high, x.dtype)
        return (np.max if kind == "amax" else np.min)(x, axes, keepdims=keepdim)

    return reference


for _name in ("sum", "mean", "amax", "amin"):

    @define(f"aten.{_name}(Tensor self, int[]? dim=None, bool keepdim=False)", reference=_reduce(_name))
    def _infer_reduce(op: Op) -> Types:
        """Over some dimensions, or all. Sums of integers and bools are i64."""
        dtype = op.operands[0].dtype
        if op.name in ("aten.amax", "aten.amin"):
            gone = [axis for axis in axes_of(op.attrs["dim"], op.operands[0].rank) if op.operands[0].rank and ex.same(op.operands[0].shape[axis], 0)]
            if gone:
                raise IRError(f"{op.name} over dimension {gone[0]} of {op.operands[0].type}: nothing has no extreme")
        if op.name == "aten.sum" and dtype not in FLOATS:
            return resized(op, _reduced(op), "i64")
        if dtype == "bool" or (op.name == "aten.mean" and dtype not in FLOATS):
            raise IRError(f"{op.name} of {dtype}")
        return resized(op, _reduced(op))


def _softmax(x: Any, dim: int = -1) -> Any:
    np = numpy()
    if not x.size or not x.ndim:
        return x * 0 + 1
    top = np.max(x, dim, keepdims=True)
    e = np.exp(x - np.where(np.isfinite(top), top, 0))
    return e / np.sum(e, dim, keepdims=True)


def _decompose_softmax(op: Op) -> Value:
    x, dim = op.operands[0], op.attrs["dim"]
    e = (x - x.amax(dim, True)).exp()
    return e / e.sum(dim, True)


@define("aten.softmax(Tensor self, int dim=-1)", reference=_softmax, decompose=_decompose_softmax)
def _infer_softmax(op: Op) -> Types:
    axis_of(op.attrs["dim"], op.operands[0].rank)
    return unary_inference(True)(op)


def _layer_norm(x: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    np = numpy()
    mean = np.mean(x, -1, keepdims=True) if x.size else x
    variance = np.mean((x - mean) ** 2, -1, keepdims=True) if x.size else x
    y = (x - mean) / np.sqrt(variance + eps)
    y = y if weight is None else y * weight
    return y if bias is None else y + bias


def _decompose_layer_norm(op: Op) -> Value:
    x, weight, bias = op.operands
    centered = x - x.mean(-1, True)
    y = centered * ((centered * centered).mean(-1, True) + op.attrs["eps"]).rsqrt()
    y = y if weight is None else y * weight
    return y if bias is None else y + bias


def _infer_norm(op: Op) -> Types:
    x = op.operands[0]
    if x.rank == 0:
        raise IRError(f"{op.name} of {x.type}")
    for parameter in op.operands[1:]:
        if parameter is not None:
            if parameter.rank != 1 or (parameter.dtype != x.dtype and not (parameter.dtype in MIXED and x.dtype in MIXED)):
                raise IRError(f"{op.name} with weights of {parameter.type} for {x.type}; cast them with to_copy()")
            need_same(parameter.shape[0], x.shape[-1], "weights of a norm")
    return unary_inference(True)(op)


define(
    "aten.layer_norm(Tensor self, Tensor? weight=None, Tensor? bias=None, float eps=1e-5)",
    reference=_layer_norm, decompose=_decompose_layer_norm,
)(_infer_norm)  # fmt: skip


def _rms_norm(x: Any, weight: Any = None, eps: float = 0.0) -> Any:
    np = numpy()
    y = x / np.sqrt(np.mean(x * x, -1, keepdims=True) + eps) if x.size else x
    return y if weight is None else y * weight


def _decompose_rms_norm(op: Op) -> Value:
    x, weight = op.operands
    y = x * ((x * x).mean(-1, True) + op.attrs["eps"]).rsqrt()
    return y if weight is None else y * weight


@define("aten.rms_norm(Tensor self, Tensor? weight=None, float? eps=None)", reference=_rms_norm, decompose=_decompose_rms_norm)
def _infer_rms_norm(op: Op) -> Types:
    """Without an eps it is the machine epsilon of the type that the norm is calculated in."""
    if op.attrs["eps"] is None:
        op.attrs["eps"] = 2.0**-52 if op.operands[0].dtype == "f64" else 2.0**-23
    return _infer_norm(op)
