"""Lowerings of special functions, of divisors and of neighbours, for accrt.from_torch."""

from __future__ import annotations

from .compiler.ops import bessel, neighbours, normal
from .from_torch.ops_math import values_of
from .from_torch.table import lowers

lowers("aten.erfinv.default", "aten.special_erfinv.default")(lambda lo, x: lo.value(x).erfinv())
for _name in ("erfcx", "ndtri"):
    lowers(f"aten.special_{_name}.default")(lambda lo, x, function=getattr(normal, _name): function(lo.value(x)))
for _order in (0, 1):
    for _name, _function, _how in (
        ("bessel_j", bessel.bessel_j, {}), ("bessel_y", bessel.bessel_y, {}), ("modified_bessel_k", bessel.bessel_k, {}),
        ("scaled_modified_bessel_k", bessel.bessel_k, {"scaled": True}),
    ):  # fmt: skip
        lowers(f"aten.special_{_name}{_order}.default")(lambda lo, x, function=_function, order=_order, how=_how: function(lo.value(x), order, **how))
for _name in ("gcd", "lcm", "nextafter"):
    lowers(f"aten.{_name}.default")(lambda lo, a, b, function=getattr(neighbours, _name): function(*values_of(lo, a, b)))
