"""Elementary functions of the generated kernels: error in units in the last place against float64,
special values, tables."""

import math

import numpy as np
import pytest

import kernel_harness as harness
from accrt.compiler.kernels import elementwise as ew
from accrt.compiler.kernels.kerneldef import SOURCE_DIRECTORY

pytestmark = pytest.mark.one_target  # of this machine's, in a run of the whole folder
TARGETS = harness.host_targets()
SPECIAL = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 1.1754944e-38, 3.4028235e38, -3.4028235e38], np.float32)


def apply(op, x, target, dtype="f32", y=None):
    """One unary (or binary) operation on arrays."""
    nodes = [ew.Node("input", dtype, (), 0)]
    if y is not None:
        nodes.append(ew.Node("input", dtype, (), 1))
    nodes.append(ew.Node(op, dtype, tuple(range(len(nodes)))))
    inputs = {"x0": x} if y is None else {"x0": x, "x1": y}
    specs = [harness.spec_of(array, dtype) for array in inputs.values()]
    launch = ew.lower(ew.Program(tuple(nodes), (len(nodes) - 1,)), specs, specs[:1])
    return harness.run(launch, inputs, {"y0": np.empty_like(x)}, target)["y0"]


def ulp_error(got, exact):
    """Distance in units in the last place of the float32 nearest to `exact`; infinities and NaN
    must agree."""
    with np.errstate(over="ignore", invalid="ignore"):
        nearest = exact.astype(np.float32)
    assert (np.isnan(got) == np.isnan(exact)).all(), "NaN in the wrong places"
    finite = np.isfinite(nearest) & np.isfinite(got)
    assert (got[~finite & ~np.isnan(exact)] == nearest[~finite & ~np.isnan(exact)]).all(), "infinities in the wrong places"
    size = np.clip(np.abs(nearest[finite]), np.float32(2**-126), np.float32(2.0**127))
    unit = np.spacing(size).astype(np.float64)
    return np.abs(got[finite].astype(np.float64) - exact[finite]) / unit


def all_exponents(count=200_000):
    """Random floats of every sign and exponent, and the special ones."""
    rng = np.random.default_rng(harness.SEED)
    bits = rng.integers(0, 2**32, count, dtype=np.uint64).astype(np.uint32)
    ordinary = rng.uniform(-20, 20, count).astype(np.float32)
    return np.concatenate([bits.view(np.float32), ordinary, SPECIAL])


def _erf(x):
    return np.array([math.erf(v) for v in x])


def _erfc(x):
    return np.array([math.erfc(v) for v in x])


def _sigmoid(x):
    with np.errstate(over="ignore"):
        return np.where(x >= 0, 1 / (1 + np.exp(-x)), np.exp(x) / (1 + np.exp(x)))


def _gelu(x):
    with np.errstate(invalid="ignore"):
        return 0.5 * x * _erfc(-x / math.sqrt(2))  # NaN at -inf, as in ATen


def _gelu_tanh(x):
    u = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
    with np.errstate(over="ignore", invalid="ignore"):
        return x * _sigmoid(2 * u)


def _silu(x):
    with np.errstate(over="ignore", invalid="ignore"):
        return x * _sigmoid(x)


# Bounds in ULP; those of gelu and its kin grow where the result falls towards 0 on the negative
# side, so that there the error is bounded relative to the input instead (checked as `floor`: an
# absolute error that is always allowed).
FUNCTIONS = {
    "exp": (np.exp, 1.0, 0.0),
    "log": (np.log, 1.0, 0.0),
    "atan": (np.arctan, 0.6, 0.0),
    "erfc": (_erfc, 4.0, 0.0),
    "expm1": (np.expm1, 2.0, 0.0),
    "log1p": (np.log1p, 3.0, 0.0),
    "tanh": (np.tanh, 2.0, 0.0),
    "erf": (_erf, 1.2, 0.0),
    "sigmoid": (_sigmoid, 3.0, 1e-38),
    "gelu": (_gelu, 4.0, 1e-7),
    "gelu_tanh": (_gelu_tanh, 4.0, 4e-7),
    "silu": (_silu, 3.0, 1e-36),
    "sqrt": (np.sqrt, 0.5, 0.0),
    "rsqrt": (lambda x: 1 / np.sqrt(x), 1.5, 0.0),
}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("op", sorted(FUNCTIONS))
def test_function_error_is_bounded(op, target):
    exact_of, bound, floor = FUNCTIONS[op]
    x = all_exponents(60_000 if op in ("erf", "erfc", "gelu") else 200_000)
    if op in ("gelu_tanh",):
        # the cube in the float64 reference stays finite
        x = x[~(np.abs(x) > 1e12) | ~np.isfinite(x)]
    got = apply(op, x, target)
    with np.errstate(all="ignore"):
        exact = exact_of(x.astype(np.float64))
    errors = ulp_error(got, exact)
    with np.errstate(over="ignore", invalid="ignore"):
        finite = np.isfinite(exact.astype(np.float32)) & np.isfinite(got)
    off = np.abs(got[finite].astype(np.float64) - exact[finite])
    errors = np.where(off <= floor, 0.0, errors)
    worst = int(np.argmax(errors))
    assert errors[worst] <= bound, f"{op}({x[finite][worst]!r}): {errors[worst]:.2f} ULP, seed {harness.SEED}"


#: Of +infinity, -infinity: ATen's values. Those of gelu and silu at -infinity are products with 0.
AT_INFINITY = {"gelu": (np.inf, np.nan), "gelu_tanh": (np.inf, np.nan), "silu": (np.inf, np.nan), "relu": (np.inf, 0.0), "tanh": (1.0, -1.0),
               "sigmoid": (1.0, 0.0), "erf": (1.0, -1.0), "erfc": (0.0, 2.0), "expm1": (np.inf, -1.0), "log1p": (np.inf, np.nan)}  # fmt: skip


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("op", AT_INFINITY)
def test_activations_at_infinity(op, target, dtype):
    """In each lane of a vector and in the rest behind it."""
    values = np.tile([np.inf, -np.inf, np.nan, 1.0], 17)
    got = harness.decode(apply(op, harness.encode(values, dtype), target, dtype), dtype)
    expected = np.tile([*AT_INFINITY[op], np.nan], (17, 1))
    np.testing.assert_array_equal(got.reshape(17, 4)[:, :3], expected)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("op", ["sin", "cos"])
def test_sine_and_cosine_over_all_exponents(op, target):
    # glibc's double sin and cos are right to under 1 ULP of double for every argument.
    x = all_exponents(100_000)
    with np.errstate(invalid="ignore"):
        exact = getattr(np, op)(x.astype(np.float64))
    errors = ulp_error(apply(op, x, target), exact)
    assert errors.max() <= 1.6, f"seed {harness.SEED}"


@pytest.mark.parametrize("target", TARGETS)
def test_sine_near_multiples_of_pi(target):
    # Floats nearest to k * pi / 2: the hardest arguments for the reduction.
    k = np.concatenate([np.arange(1, 3000), 2 ** np.arange(12, 90)]).astype(np.float64)
    x = (k * (math.pi / 2)).astype(np.float32)
    for op in ("sin", "cos"):
        errors = ulp_error(apply(op, x, target), getattr(np, op)(x.astype(np.float64)))
        assert errors.max() <= 1.6


@pytest.mark.parametrize("target", TARGETS)
def test_power_error_and_special_cases(target):
    rng = np.random.default_rng(harness.SEED)
    x = np.exp(rng.uniform(-40, 40, 50_000)).astype(np.float32) * rng.choice([1, 1, 1, -1], 50_000).astype(np.float32)
    y = np.where(rng.random(50_000) < 0.3, rng.integers(-6, 7, 50_000), rng.uniform(-4, 4, 50_000)).astype(np.float32)
    corners = np.array([0, -0.0, 1, -1, 2, -2, 0.5, np.inf, -np.inf, np.nan, 3, -3, 1e-40, 16777216, 2147483648], np.float32)
    x = np.concatenate([x, np.repeat(corners, len(corners))])
    y = np.concatenate([y, np.tile(corners, len(corners))])
    with np.errstate(all="ignore"):
        exact = np.power(x.astype(np.float64), y.astype(np.float64))
    got = apply("pow", x, target, y=y)
    assert ulp_error(got, exact).max() <= 1.0, f"seed {harness.SEED}"
    zeros = (exact == 0) & (got == 0)
    assert (np.signbit(got[zeros]) == np.signbit(exact[zeros])).all()


@pytest.mark.parametrize("target", TARGETS[:1])
@pytest.mark.parametrize("op", ["exp", "log", "tanh", "erf", "sin", "cos", "sigmoid", "silu", "gelu", "gelu_tanh"])
def test_double_functions(op, target):
    x = np.random.default_rng(harness.SEED).uniform(0.01, 8, 999)
    exact = {"erf": _erf, "sigmoid": _sigmoid, "silu": _silu, "gelu": _gelu, "gelu_tanh": _gelu_tanh}.get(op) or getattr(np, op)
    # The system's libm and numpy differ by an ULP or two of double.
    np.testing.assert_allclose(apply(op, x, target, "f64"), exact(x), rtol=4e-15)


def _digits_of_two_over_pi(bits):
    """floor(2 / pi * 2^bits) from Machin's formula in integers."""

    def arctan_inverse(n):
        total = term = (1 << (bits + 32)) // n
        divisor, sign = 1, -1
        while term:
            term //= n * n
            divisor += 2
            total += sign * (term // divisor)
            sign = -sign
        return total

    pi = 4 * (4 * arctan_inverse(5) - arctan_inverse(239))
    return (2 << (2 * bits + 32)) // pi


def test_trig_table_is_two_over_pi():
    text = (SOURCE_DIRECTORY / "trig_table.h").read_text()
    parts = [part.split("}")[0] for part in text.split("= {")[1:]]
    high, low = ([float.fromhex(item) for item in part.replace("\n", " ").split(",") if item.strip()] for part in parts)
    assert len(high) == len(low) == 105
    bits = 400
    value = _digits_of_two_over_pi(bits)
    for exponent, (h, l) in enumerate(zip(high, low)):
        shifted = (value << exponent) % (4 << bits)
        expected = shifted / (1 << bits)
        assert h == expected
        scaled = shifted - int(math.ldexp(h, 200)) * (1 << (bits - 200))
        assert abs(l - scaled / (1 << bits)) <= abs(l) * 2**-50


@pytest.mark.parametrize("target", TARGETS)
def test_half_conversions_are_exact_over_all_values(target):
    every = np.arange(65536, dtype=np.uint16)
    for dtype, array, wide in (("f16", every.view(np.float16), every.view(np.float16).astype(np.float32)), ("bf16", every, harness.bf16_to(every))):
        program = ew.Program((ew.Node("input", dtype, (), 0), ew.Node("cast", "f32", (0,))), (1,))
        specs = [harness.spec_of(array, dtype)], [harness.spec_of(wide, "f32")]
        got = harness.run(ew.lower(program, *specs), {"x0": array}, {"y0": np.empty_like(wide)}, target)["y0"]
        np.testing.assert_array_equal(got, wide)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("source", ["f32", "f64"])
def test_rounding_to_half(source, target):
    rng = np.random.default_rng(harness.SEED)
    with np.errstate(invalid="ignore"):  # signalling NaN among the random bits
        x = all_exponents(100_000).astype(np.float64)
    x = np.concatenate([x, rng.uniform(-7e4, 7e4, 50_000), rng.uniform(-1e-4, 1e-4, 50_000), np.arange(-4, 4, 2.0**-13)])
    # Halfway points of f16, and doubles a hair beside them: rounding twice would go wrong there.
    half = (np.arange(1, 31743, dtype=np.uint16).view(np.float16).astype(np.float64))
    middle = (half[:-1] + half[1:]) / 2
    x = np.concatenate([x, middle, np.nextafter(middle, 0), np.nextafter(middle, np.inf), -middle])
    with np.errstate(over="ignore", invalid="ignore"):
        x = x.astype(harness.NUMPY[source])
        expected = x.astype(np.float16)
    program = ew.Program((ew.Node("input", source, (), 0), ew.Node("cast", "f16", (0,))), (1,))
    launch = ew.lower(program, [harness.spec_of(x, source)], [harness.spec_of(expected, "f16")])
    got = harness.run(launch, {"x0": x}, {"y0": np.empty_like(expected)}, target)["y0"]
    np.testing.assert_array_equal(got, expected)
    assert (np.signbit(got) == np.signbit(expected))[~np.isnan(expected)].all()
