"""Lookups by index."""

from __future__ import annotations

from typing import Optional

from .. import expr as ex
from ..expr import Size
from ..declared import TensorType
from ..ir import IRError, Op, Value
from .schema import axis_of, define, numpy, resized, Types


def check_index(value: Value) -> None:
    if value.dtype not in ("u8", "i32", "u32", "i64"):
        raise IRError(f"indices of {value.dtype}")


@define("aten.embedding(Tensor weight, Tensor indices)", reference=lambda w, i: w[i.astype(numpy().int64)])
def _infer_embedding(op: Op) -> Types:
    weight, indices = op.operands
    check_index(indices)
    if weight.rank != 2:
        raise IRError(f"embedding in {weight.type}")
    return [TensorType(weight.dtype, indices.shape + (weight.shape[1],))]


@define("aten.index_select(Tensor self, int dim, Tensor index)")
def _infer_index_select(op: Op) -> Types:
    source, index = op.operands
    check_index(index)
    axis = axis_of(op.attrs["dim"], source.rank)
    if index.rank != 1:
        raise IRError(f"index of {index.type}")
    return resized(op, source.shape[:axis] + index.shape + source.shape[axis + 1 :])


def _decompose_gather(op: Op) -> Value:
    """The linear place of every element, then one lookup in the flat source."""
    source, index = op.operands
    axis, function = axis_of(op.attrs["dim"], source.rank), op.block.function
    for i in range(source.rank):
        # a call whose index is larger beside the dimension is refused by this slice
        if i != axis and not ex.proved_less_equal(index.shape[i], source.shape[i]):
            source = source.slice(i, 0, index.shape[i])
    # An index that leaves its dimension would stay inside the flat source. So each is looked up in
    # its dimension first, which gives the index itself, or fails with it and the dimension's size.
    # CUDA cannot fail: there the lookup below gets -1, and gives 0.
    given = index.to_copy("i64")
    inside = given.ge(0).logical_and(given.lt(source.shape[axis]))
    places = function.arange(source.shape[axis])
    place = places.index_select(0, given.flatten()).view(list(index.shape))
    step: Size = 1
    total: Optional[Value] = None
    for i in reversed(range(source.rank)):
        shape = [1] * source.rank
        shape[i] = index.shape[i]
        part = (place if i == axis else function.arange(index.shape[i]).view(shape)) * step
        total = part if total is None else total + part
        step = ex.simplify(ex.constant(step) * source.shape[i])
    total = inside.where(total, -1)
    return source.flatten().index_select(0, total.flatten()).view(list(op.result.shape))


@define("aten.gather(Tensor self, int dim, Tensor index)", decompose=_decompose_gather)
def _infer_gather(op: Op) -> Types:
    source, index = op.operands
    check_index(index)
    if index.rank != source.rank:
        raise IRError(f"gather from {source.type} with {index.type}")
    axis = axis_of(op.attrs["dim"], source.rank)
    for i in range(source.rank):
        least, _most = ex.bounds(ex.constant(index.shape[i]) - source.shape[i], source.function.module.ranges())
        if i != axis and least is not None and least > 0:
            raise IRError(f"gather from {source.type} with {index.type}: dimension {i} of the index is larger")
    return resized(op, index.shape)
