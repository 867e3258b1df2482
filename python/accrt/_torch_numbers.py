"""Numbers beside tensors, as torch takes them, for accrt.from_torch."""

from __future__ import annotations

import math
from typing import Any, Callable

from ._torch_sizes import beside
from .compiler import Value
from .compiler.declared import RANGES
from .compiler.ops.schema import kind_of
from .from_torch.values import Known

_SHORT = ("f16", "bf16")


def wrapped(number: Any, dtype: str) -> Any:
    """A number as torch takes it beside a tensor of integers: whole numbers wrap around."""
    if dtype not in RANGES or not isinstance(number, int) or isinstance(number, bool):
        return number
    low, high = RANGES[dtype]
    return (number - low) % (high - low + 1) + low


def filling(number: Any, dtype: str) -> Any:
    """What torch puts into a tensor of a type: of integers the whole part of a float, and what the
    type holds of it; of 16-bit floats the number rounded to them."""
    if dtype in _SHORT and isinstance(number, (int, float)):
        import torch

        return torch.tensor(number, dtype=torch.float16 if dtype == "f16" else torch.bfloat16).item()
    is_cut = dtype in RANGES and isinstance(number, float) and math.isfinite(number)
    return wrapped(int(number) if is_cut else number, dtype)


def held(a: Any, b: Any) -> Any:
    """Both operands of what chooses or compares elements: a number as the other one's type holds
    it."""
    return filling(a, b.dtype) if isinstance(b, Value) and b.dtype in _SHORT else a, filling(b, a.dtype) if isinstance(a, Value) and a.dtype in _SHORT else b


def widely(calculate: Callable[[Any, Any], Any], a: Any, b: Any) -> Any:
    """What torch calculates in f32: of 16-bit floats and a wider float without dimensions, which
    may be beyond their range."""
    for x, other in ((a, b), (b, a)):
        if isinstance(x, Value) and isinstance(other, Value) and x.rank and not other.rank and x.dtype in _SHORT and other.dtype in ("f32", "f64"):
            return calculate(*(v if v.dtype == "f32" else v.to_copy("f32") for v in (a, b))).to_copy(x.dtype)
    return calculate(a, b)


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
