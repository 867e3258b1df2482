"""Functions that are made of others: small results keep all their digits, beside numpy in float64,
and nothing overflows on the way."""

from __future__ import annotations

import numpy as np
import pytest

import compiler_harness as ch
import kernel_harness as kh
from accrt.compiler import Interpreter, Module

SEED = kh.SEED


def softplus(x):
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


FUNCTIONS = {
    "log1p": np.log1p, "expm1": np.expm1, "sinh": np.sinh, "cosh": np.cosh, "softplus": softplus, "log_sigmoid": lambda x: -softplus(-x),
    "elu": lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))), "mish": lambda x: x * np.tanh(softplus(x)), "tan": np.tan, "atan": np.arctan,
    "asin": np.arcsin, "atanh": np.arctanh, "asinh": np.arcsinh,
}  # fmt: skip
#: Relative: a few roundings of the type, and of the functions below.
BOUNDS = {"f32": 1e-6, "f64": 1e-14, "bf16": 2e-2}


def arguments(name):
    """From tiny to middling, of both signs; those of log1p are above -1."""
    rng = np.random.default_rng(SEED)
    small = 10.0 ** rng.uniform(-30, 0, 500)
    x = np.concatenate([small, -small * 0.99, rng.uniform(-0.9, 10, 500)])
    return x if name == "log1p" else np.concatenate([x, rng.uniform(-80, 20, 500)])


@pytest.mark.rotating(15)
@pytest.mark.parametrize("dtype", ["f32", "f64", "bf16"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_small_results_are_right(name, dtype):
    print("seed", SEED)
    x = arguments(name)
    if name in ("sinh", "cosh"):
        x = x[np.abs(x) < 80]
    if name in ("asin", "atanh"):
        x = x[np.abs(x) < 0.99]
    if name == "tan":
        x = x[np.abs(np.cos(x)) > 0.1]
    m = Module("function")
    f = m.function("f")
    f.result("y", getattr(f.input("x", dtype, [len(x)]), name)())
    given = kh.encode(x, dtype)
    exact = kh.decode(given, dtype).astype(np.float64)
    wanted = FUNCTIONS[name](exact)
    (out,) = ch.session(ch.program(m)).run("f", given)
    for got in (kh.decode(out, dtype).astype(np.float64), Interpreter(m).run("f", exact)[0]):
        off = np.abs(got - wanted) / np.maximum(np.abs(wanted), 1e-36)
        assert off.max() <= BOUNDS[dtype], (exact[off.argmax()], got[off.argmax()], wanted[off.argmax()])


#: Of large numbers, whose results are finite, and of zeros, whose sign stays.
AT_THE_ENDS = {"asinh": np.arcsinh, "acosh": np.arccosh, "sinh": np.sinh, "cosh": np.cosh, "tanh": np.tanh}


@pytest.mark.rotating(2)
@pytest.mark.parametrize("dtype", ["f32", "f64", "bf16", "f16"])
def test_large_numbers_and_zeros_of_both_signs(dtype):
    print("seed", SEED)
    rng = np.random.default_rng(SEED)
    most = float({"f64": np.finfo(np.float64).max, "f16": 65000.0}.get(dtype, np.finfo(np.float32).max * 0.99))
    for name, reference in AT_THE_ENDS.items():
        largest = np.log(most) if name in ("sinh", "cosh") else most
        x = np.concatenate([largest * rng.uniform(0.9, 1, 40), np.exp(rng.uniform(0, np.log(largest), 400))])
        x = x if name == "acosh" else np.concatenate([x, -x, np.resize([0.0, -0.0], 40)])
        m = Module("ends")
        f = m.function("f")
        f.result("y", getattr(f.input("x", dtype, [len(x)]), name)())
        given = kh.encode(x, dtype)
        exact = kh.decode(given, dtype).astype(np.float64)
        with np.errstate(over="ignore"):
            wanted = kh.decode(kh.encode(reference(exact), dtype), dtype)
        (out,) = ch.session(ch.program(m)).run("f", given)
        got = kh.decode(out, dtype).astype(np.float64)
        # the next number may be infinite
        near = np.isfinite(wanted) & (np.abs(wanted) < most * 0.97)
        off = np.abs(got - wanted)[near] / np.maximum(np.abs(wanted[near]), 1e-36)
        assert off.max() <= {**BOUNDS, "f16": 4e-3}[dtype], (name, exact[near][off.argmax()], got[near][off.argmax()], wanted[near][off.argmax()])
        np.testing.assert_array_equal(np.signbit(got), np.signbit(exact) if name != "cosh" else False, err_msg=name)
