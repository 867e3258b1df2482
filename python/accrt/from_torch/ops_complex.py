"""Lowerings of complex numbers, each two tensors: their own arithmetic, Fourier transforms, and
what is done to each part alone."""

from __future__ import annotations

import math
from typing import Any, Callable, Sequence

from ..compiler import Value
from ..compiler.ops import complexes, fourier
from ..compiler.ops.complexes import Complex
from .ops_math import cast, FLOATS
from .table import lowers, TABLE
from .values import Known, Unsupported

#: What is done to each part alone: views, copies and sums.
EACH = frozenset(
    "view reshape _unsafe_view flatten unflatten view_as reshape_as ravel permute transpose t mT swapaxes swapdims movedim moveaxis unsqueeze squeeze expand "
    "expand_as broadcast_to slice select narrow split split_with_sizes chunk unbind cat concat stack repeat roll flip sum mean neg index index_select gather "
    "clone contiguous alias detach pad constant_pad_nd diagonal where cumsum tril triu copy lift_fresh lift_fresh_copy unfold index_put slice_scatter "
    "select_scatter zero fill masked_fill".split())  # fmt: skip
#: Of these, from which argument on a number stands for elements, and not for a place.
FILLS = {"where": 1, "pad": 3, "constant_pad_nd": 2, "fill": 1, "masked_fill": 2}
CASTS = ("to", "_to_copy", "type_as")
#: What makes tensors of a type, which may be a complex one.
MADE = (*CASTS, "zeros", "ones", "full", "empty", "zeros_like", "ones_like", "empty_like", "full_like", "new_zeros", "new_ones", "new_empty")
PRODUCTS = ("matmul", "mm", "bmm", "mv", "dot", "outer")
COMPLEX = ("_fft_c2c", "_fft_c2r")


def is_complex(item: Any) -> bool:
    """Whether an argument is, has, or asks for complex numbers."""
    if isinstance(item, (list, tuple)) and not isinstance(item, Complex):
        return any(map(is_complex, item))
    return isinstance(item, (Complex, complex)) or (item.tensor.is_complex() if isinstance(item, Known) else _wants(item))


def _wants(item: Any) -> bool:
    return getattr(item, "is_complex", None) is True  # a data type of torch


def _whole(lo: Any, item: Any) -> Any:
    if isinstance(item, Known) and item.tensor.is_complex():
        tensor = item.tensor.detach().resolve_conj()
        return Complex(*(lo.value(Known(part.contiguous(), item.name and f"{item.name}.{of}")) for of, part in (("real", tensor.real), ("imag", tensor.imag))))
    return [_whole(lo, part) for part in item] if isinstance(item, (list, tuple)) and not isinstance(item, Complex) else item


def _part(item: Any, at: int) -> Any:
    """The real or the imaginary part of what is complex, and the rest as it is."""
    if isinstance(item, Complex):
        return item[at]
    return [_part(part, at) for part in item] if isinstance(item, (list, tuple)) else item.to_real() if _wants(item) else item


def by_parts(lo: Any, function: Callable[..., Any], *args: Any, **named: Any) -> Any:
    """What a lowering gives of the real and of the imaginary parts."""
    given, named = [_zeroed(lo, item) for item in _whole(lo, args)], {key: complexes.of_number(item) if key == "value" else item for key, item in named.items()}
    real, imag = (function(lo, *_part(given, at), **{key: _part(item, at) for key, item in named.items()}) for at in (0, 1))
    return [Complex(*both) for both in zip(real, imag)] if isinstance(real, list) else Complex(real, imag)


def _zeroed(lo: Any, item: Any) -> Any:
    """Real numbers beside complex ones as complex ones."""
    if isinstance(item, list) and is_complex(item):
        dtype = next(part.real.dtype for part in item if isinstance(part, Complex))
        return [complexes.of(cast(lo, part, dtype)) if isinstance(part, (Known, Value)) else _zeroed(lo, part) for part in item]
    is_real = isinstance(item, (Known, Value)) and lo.dtype(item) in FLOATS
    return complexes.of(lo.value(item)) if is_real else item


def _values(lo: Any, item: Any) -> Any:
    return lo.value(item) if isinstance(item, Known) else [_values(lo, part) for part in item] if isinstance(item, list) else item


def lower(lo: Any, name: str, args: Sequence[Any], kwargs: Any) -> Any:
    """An operation that has complex numbers among its arguments."""
    word = name.split(".")[1]
    given = _whole(lo, list(args))
    if name in ("aten._assert_tensor_metadata.default", "aten.sym_size.int"):
        return given[0].shape[args[1]] if name == "aten.sym_size.int" else None
    if word in complexes.ARITHMETIC:
        return complexes.ARITHMETIC[word](*_values(lo, given), **kwargs)
    if word in PRODUCTS:
        return complexes.product(lambda a, b: TABLE[name](lo, a, b), *_values(lo, given))
    if word in COMPLEX:
        return TABLE[name](lo, *given, **kwargs)
    if word in MADE and name in TABLE:
        asks = any(map(_wants, [*args, *kwargs.values()]))
        made = TABLE[name](lo, *_part(given, 0), **{key: _part(item, 0) for key, item in kwargs.items()})
        if not asks and any(str(item).startswith("torch.") for item in [*args, kwargs.get("dtype")]):
            return made  # a real type
        made = lo.value(made)
        return Complex(made, cast(lo, given[0].imag, made.dtype)) if word in CASTS and isinstance(given[0], Complex) else complexes.of(made)
    if word not in EACH or name not in TABLE:
        raise Unsupported("of complex numbers" if name in TABLE else "")
    if word in FILLS:
        args = [*args[: FILLS[word]], *(complexes.of(lo.value(item)) if isinstance(item, (Known, Value)) and not is_complex(item) else complexes.of_number(item) for item in args[FILLS[word] :])]
    return by_parts(lo, TABLE[name], *args, **kwargs)


for _word in ("complex", "polar", "view_as_complex"):
    lowers(f"aten.{_word}.default")(lambda lo, *args, word=_word: complexes.ARITHMETIC[word](*map(lo.value, args)))
lowers("aten.real.default")(lambda lo, x: x)
lowers("aten.angle.default")(lambda lo, x: x.ne(x).where(x, x.lt(0).to_copy(x.dtype) * math.pi))
lowers("aten._fft_r2c.default")(lambda lo, x, dim, norm, onesided: fourier.of_real(lo.value(x), dim, norm, onesided))
lowers("aten._fft_c2c.default")(lambda lo, x, dim, norm, forward: fourier.transformed(complexes.of(x), dim, norm, not forward))
lowers("aten._fft_c2r.default")(lambda lo, x, dim, norm, size: fourier.to_real(complexes.of(x), dim, norm, size))
