"""Reductions, softmax and norms."""

from __future__ import annotations

import math
from typing import Any, Callable, Tuple

from .. import expr as ex
from ..expr import Size
from ..declared import FLOATS
from ..ir import IRError, Op, Value
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
    # rows of -inf alone, and with +inf, are NaN, as in ATen
    e = np.exp(x - np.max(x, dim, keepdims=True))
    return e / np.sum(e, dim, keepdims=True)


def _decompose_softmax(op: Op) -> Value:
    x, dim = op.operands[0], op.attrs["dim"]
    e = (x - x.amax(dim, True)).exp()
    return e / e.sum(dim, True)


@define("aten.softmax(Tensor self, int dim=-1)", reference=_softmax, decompose=_decompose_softmax)
def _infer_softmax(op: Op) -> Types:
    axis_of(op.attrs["dim"], op.operands[0].rank)
    return unary_inference(True)(op)


def _masked_softmax(x: Any, mask: Any = None, scale: float = 1.0) -> Any:
    np = numpy()
    x = x * scale
    if mask is not None:
        x = np.where(mask, x, -np.inf) if mask.dtype == bool else x + mask
    return _softmax(x)


def _decompose_masked_softmax(op: Op) -> Value:
    """Rounded once, at the end."""
    x, mask = op.operands
    wide = x if x.dtype == "f64" else x.to_copy("f32")
    scaled = wide if op.attrs["scale"] == 1.0 else wide * op.attrs["scale"]
    if mask is not None:
        scaled = mask.where(scaled, -math.inf) if mask.dtype == "bool" else scaled + mask.to_copy(wide.dtype)
    return scaled.softmax(-1).to_copy(x.dtype)


@define(
    "accrt.masked_softmax(Tensor self, Tensor? mask=None, float scale=1.0)",
    reference=_masked_softmax, decompose=_decompose_masked_softmax,
)  # fmt: skip
def _infer_masked_softmax(op: Op) -> Types:
    """The softmax over the last dimension of scale * x + mask. mask: numbers of the type of x, or
    bool, which takes out where it is false; its dimensions are the last ones of x."""
    x, mask = op.operands
    if x.rank == 0 or x.dtype not in FLOATS:
        raise IRError(f"{op.name} of {x.type}: floats with a dimension are needed")
    if mask is not None:
        if mask.dtype not in (x.dtype, "bool") or not 0 < mask.rank <= x.rank:
            raise IRError(f"{op.name} of {x.type} with a mask of {mask.type}: {x.dtype} or bool of its last dimensions is needed")
        for size, wanted in zip(mask.shape, x.shape[x.rank - mask.rank:]):
            need_same(size, wanted, "the mask of a softmax")
    return [x.type]


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


# ---- The largest ---------------------------------------------------------------------------------


def _argmax(x: Any, dim: Any = None, keepdim: bool = False) -> Any:
    """numpy's takes the first of equal ones, and the first NaN before all else; so does ATen's."""
    np = numpy()
    if dim is None:
        flat = np.argmax(x.reshape(-1))
        return flat.reshape([1] * x.ndim) if keepdim else flat
    return np.argmax(x, dim, keepdims=keepdim) if x.ndim else np.int64(0)


def _decompose_argmax(op: Op) -> Value:
    """Over the last dimension, which kernels take; where none does, the lowest place of what equals
    the largest."""
    x, dim, shape = op.operands[0], op.attrs["dim"], list(op.result.shape)
    axis = axis_of(dim, x.rank) if dim is not None else 0
    if dim is None or op.attrs["keepdim"] or x.rank == 0 or axis != x.rank - 1:
        last = x.flatten() if dim is None or x.rank == 0 else x.permute([*(a for a in range(x.rank) if a != axis), axis])
        return (last if last.rank else last.view([1])).argmax(-1).view(shape)
    n, function = x.shape[-1], op.block.function
    there = x.eq(x.amax(-1, True)).logical_or(x.ne(x))
    return there.where(function.arange(n), function.full((), n, "i64")).amin(-1)


@define("aten.argmax(Tensor self, int? dim=None, bool keepdim=False)", reference=_argmax, decompose=_decompose_argmax)
def _infer_argmax(op: Op) -> Types:
    """The place of the largest element of a dimension, or of all elements in a row; of equal ones
    the lowest. NaN is the largest. i64."""
    x, dim = op.operands[0], op.attrs["dim"]
    axes = axes_of(dim, x.rank)
    if x.dtype == "bool":
        raise IRError(f"{op.name} of bool")
    gone = [axis for axis in axes if x.rank and ex.same(x.shape[axis], 0)]
    if gone:
        raise IRError(f"{op.name} over dimension {gone[0]} of {x.type}: nothing has no extreme")
    return resized(op, _reduced(op), "i64")


def _topk(x: Any, k: int, dim: int = -1) -> Any:
    """Descending, of equal ones the lower place first, NaN before all else."""
    np = numpy()
    if not x.ndim:
        return x.reshape(()), np.int64(0)
    key = np.where(np.isnan(x), np.inf, x) if x.dtype.kind == "f" else x.astype(object)
    places = np.argsort(-key, dim, kind="stable")
    if x.dtype.kind == "f":  # NaN before infinity
        first = np.take_along_axis(~np.isnan(x), places, dim)
        places = np.take_along_axis(places, np.argsort(first, dim, kind="stable"), dim)
    if k > x.shape[dim]:
        raise IndexError(f"the {k} largest of {x.shape[dim]} elements")
    places = np.take(places, np.arange(k), dim)
    return np.take_along_axis(x, places, dim), places


def _decompose_topk(op: Op) -> Any:
    x, k = op.operands[0], op.attrs["k"]
    axis = axis_of(op.attrs["dim"], x.rank)
    if x.rank == 0:
        return [x.view([1]).topk(k)[0].view([]), x.view([1]).topk(k)[1].view([])]
    order = [*(a for a in range(x.rank) if a != axis), axis]
    if axis == x.rank - 1:
        return None  # a kernel does it, or nothing
    back = [order.index(a) for a in range(x.rank)]
    return [part.permute(back) for part in x.permute(order).topk(k)]


@define("aten.topk(Tensor self, int k, int dim=-1)", reference=_topk, decompose=_decompose_topk)
def _infer_topk(op: Op) -> Types:
    """The k largest elements of a dimension, in descending order, and their places (i64); of equal
    ones the lower place first. NaN is the largest."""
    x, k = op.operands[0], op.attrs["k"]
    axis = axis_of(op.attrs["dim"], x.rank)
    if x.dtype not in ("f32", "f16", "bf16"):
        raise IRError(f"{op.name} of {x.dtype}: f32, f16 and bf16 have one")
    size = x.shape[axis] if x.rank else 1
    if k < 0 or isinstance(size, int) and k > size:
        raise IRError(f"the {k} largest of dimension {axis} of {x.type}")
    shape = [k if a == axis else s for a, s in enumerate(x.shape)]
    return [*resized(op, shape), *resized(op, shape, "i64")]
