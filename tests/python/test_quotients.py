"""Remainders and quotients of floats: beside C's fmod of f64, which is exact, and fractions."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest

import accrt
import kernel_harness as kh
import rotation
from accrt.compiler import Interpreter, Module, compile

DTYPES = {"f32": np.float32, "f64": np.float64, "f16": np.float16}
SPECIAL = [0.0, -0.0, 1.0, -1.0, 5.0, -5.0, 0.1, -0.1, np.inf, -np.inf, np.nan, 1e8, 0.7, 3.0, 7.5, 1e-7, 6e4]
EXTREME = {"f32": [3e38, 1e-45, 1e30, 1e10], "f64": [1e308, 5e-324, 1e280, 1e290], "f16": [6e-8, 65504.0]}


def module(dtype):
    m = Module("quotients")
    n = m.symbol("n", maximum=1 << 20)
    f = m.function("f")
    x, y = f.input("x", dtype, [n]), f.input("y", dtype, [n])
    for name in ("fmod", "remainder", "floor_divide"):
        f.result(name, getattr(x, name)(y))
    f.result("of_a_number", x % 0.7)
    f.result("down", x // 0.7)
    return m


def draws(dtype):
    """Pairs of special numbers, and of others whose quotient is up to 2^100."""
    random = np.random.default_rng(rotation.seed())
    most, far = {"f32": (30, 90), "f64": (300, 90), "f16": (4, 30)}[dtype]
    with np.errstate(over="ignore", under="ignore"):
        y = random.standard_normal(20000) * 10.0 ** random.uniform(-most, most, 20000)
        x = np.concatenate([y[:10000] * random.standard_normal(10000) * 2.0 ** random.uniform(-3, far, 10000), y[10000:] * random.integers(-20, 20, 10000)])
        pairs = np.array([*itertools.product(SPECIAL, SPECIAL), *((a, a) for a in EXTREME[dtype]), *((a, 3 * a) for a in EXTREME[dtype])])
        x, y = (np.concatenate([a, b]).astype(DTYPES[dtype]) for a, b in ((pairs[:, 0], x), (pairs[:, 1], y)))
        # Nothing further is promised.
        far = np.abs(x.astype(np.float64)) / 2.0**100 < np.abs(y.astype(np.float64))
        kept = far | ~np.isfinite(x) | ~np.isfinite(y) | (y == 0)
        # products of subnormal parts are not exact
        kept &= (np.abs(y.astype(np.float64)) > 1e-290) | (y == 0) | np.isnan(y)
    return x[kept], y[kept]


def same(found, wanted):
    return (found == wanted) & (np.signbit(found) == np.signbit(wanted)) | np.isnan(found) & np.isnan(wanted)


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_left_is_exact(dtype, instance):
    m, (x, y) = module(dtype), draws(dtype)
    session = accrt.Program(accrt.Bundle(compile(m, targets=[kh.host_targets()[-1]]), instance)).session()
    found = dict(zip((result.name for result in m.functions["f"].results), map(np.asarray, session.f(x, y))))
    read = dict(zip(found, Interpreter(m).run("f", x, y)))
    wide = x.astype(np.float64), y.astype(np.float64)
    number = np.float64(DTYPES[dtype](0.7))
    with np.errstate(all="ignore"):
        wanted = {"fmod": np.fmod(*wide), "remainder": _down(*wide), "of_a_number": _down(wide[0], number)}
        for name, values in wanted.items():
            values = values.astype(DTYPES[dtype])
            for who, results in (("the kernel", found), ("the interpreter", read)):
                good = same(np.asarray(results[name], DTYPES[dtype]), values)
                if name == "of_a_number":
                    good |= np.abs(wide[0]) > 2.0**100
                assert good.all(), (name, who, x[~good][:4], y[~good][:4], results[name][~good][:4], values[~good][:4])
        assert same(found["floor_divide"][y == 0], (x / y)[y == 0]).all()
    finite = np.flatnonzero(np.isfinite(x) & np.isfinite(y) & (y != 0))
    for name, divisors in (("floor_divide", y), ("down", np.full_like(y, number))):
        for i in np.random.default_rng(rotation.seed()).choice(finite, 400):
            exact = Fraction(float(x[i])) / Fraction(float(divisors[i]))
            if abs(exact) < 2**100 and abs(exact) < np.finfo(DTYPES[dtype]).max:
                whole, got = exact.numerator // exact.denominator, float(found[name][i])
                assert abs(Fraction(got) - whole) <= abs(Fraction(float(np.spacing(DTYPES[dtype](whole))))), (name, x[i], divisors[i], got, whole)
                assert abs(whole) > 2**10 or got == whole


def _down(x, y):
    """As Python and torch have it: of C's fmod."""
    left = np.fmod(x, y)
    return np.where((left != 0) & ((left < 0) != (y < 0)), left + y, left)
