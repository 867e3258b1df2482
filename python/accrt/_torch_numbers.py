"""Numbers beside tensors, as torch takes them, for accrt.from_torch."""

from __future__ import annotations

from typing import Any

from ._torch_sizes import beside
from .compiler import Value
from .compiler.declared import RANGES
from .compiler.ops.schema import kind_of
from .from_torch.values import Known


def wrapped(number: Any, dtype: str) -> Any:
    """A number as torch takes it beside a tensor of integers: whole numbers wrap around."""
    if dtype not in RANGES or not isinstance(number, int) or isinstance(number, bool):
        return number
    low, high = RANGES[dtype]
    return (number - low) % (high - low + 1) + low


def _number(lo: Any, item: Any, other: Any) -> Any:
    """As lo.operand(), beside another value: a known tensor without dimensions stays a value where
    its type decides the result's."""
    number = lo.operand(item)
    if isinstance(number, Value) or not isinstance(other, Value):
        return number
    if isinstance(item, Known):
        dtype = lo.dtype(item)
        is_higher = kind_of(dtype) > kind_of(other.dtype) and dtype not in ("i64", "f32")
        if is_higher or (not other.rank and dtype != other.dtype):
            return lo.value(item)
    return wrapped(number, other.dtype)


def operands(lo: Any, a: Any, b: Any) -> Any:
    """Both, of which either may be a number."""
    first, second = lo.operand(a), lo.operand(b)
    return beside(_number(lo, a, second), _number(lo, b, first))
