"""Lowerings of special functions and of functions of two operands, for accrt.from_torch."""

from __future__ import annotations

from typing import Any, Tuple

from ._torch_numbers import filling
from .compiler import Value
from .compiler.declared import FLOATS
from .compiler.ops import bessel, neighbours, normal
from .from_torch.ops_math import _pair, _same_kind
from .from_torch.table import lowers


def values_of(lo: Any, a: Any, b: Any) -> Tuple[Value, Value]:
    """Both operands as values. A number has the other one's type where that holds it."""
    x, y = _pair(lo, a, b)
    return x, y if isinstance(y, Value) else lo.value(y, x.dtype if _same_kind(y, x.dtype) else "")


lowers("aten.erfinv.default", "aten.special_erfinv.default")(lambda lo, x: lo.value(x).erfinv())
for _name in ("erfcx", "ndtri"):
    lowers(f"aten.special_{_name}.default")(lambda lo, x, function=getattr(normal, _name): function(lo.value(x)))
for _order in (0, 1):
    for _name, _function, _how in (
        ("bessel_j", bessel.bessel_j, {}), ("bessel_y", bessel.bessel_y, {}), ("modified_bessel_k", bessel.bessel_k, {}),
        ("scaled_modified_bessel_k", bessel.bessel_k, {"scaled": True}),
    ):  # fmt: skip
        lowers(f"aten.special_{_name}{_order}.default")(lambda lo, x, function=_function, order=_order, how=_how: function(lo.value(x), order, **how))
lowers("aten.hardtanh.default")(lambda lo, x, low=-1.0, high=1.0: lo.value(x).hardtanh(*(filling(item, lo.dtype(x)) if lo.dtype(x) in FLOATS else item for item in (low, high))))
for _name in ("gcd", "lcm", "nextafter"):
    lowers(f"aten.{_name}.default")(lambda lo, a, b, function=getattr(neighbours, _name): function(*values_of(lo, a, b)))
lowers("aten.frexp.Tensor")(lambda lo, x: neighbours.frexp(lo.value(x)))
for _name in ("hypot", "atan2", "arctan2"):
    lowers(f"aten.{_name}.default")(lambda lo, a, b, name=_name.replace("arc", "a"): getattr(Value, name)(*values_of(lo, a, b)))
