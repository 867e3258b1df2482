"""Special functions, divisors and neighbours of from_torch beside mpmath's values of 40 digits and
torch's own. torch's Bessel functions of f64 are off by 1e-6 and more, so they are no reference.
Runs where torch is installed: `./dev torch-test`."""
from __future__ import annotations

import math

import numpy as np
import pytest

import accrt
import rotation
from accrt.compiler import compile
from accrt.from_torch import convert

torch = pytest.importorskip("torch", reason="torch is not installed")
mpmath = pytest.importorskip("mpmath", reason="mpmath is not installed")
pytestmark = pytest.mark.torch

special = torch.special
INF, NAN = math.inf, math.nan


def above(function, at_0):
    """Of numbers above 0; NaN below."""
    return lambda x: NAN if x < 0 else at_0 if x == 0 else function(x)


def normal_tail(p):
    """The number below which p <= 0.5 lies."""
    x = mpmath.sqrt(-2 * mpmath.log(p)) * -1 if p < 0.1 else mpmath.mpf(0)
    return mpmath.findroot(lambda z: mpmath.log(mpmath.ncdf(z)) - mpmath.log(p), x)


def ndtri(p):
    if not 0 < p < 1:
        return -INF if p == 0 else INF if p == 1 else NAN
    return normal_tail(mpmath.mpf(p)) if p < 0.5 else -normal_tail(1 - mpmath.mpf(p)) if p > 0.5 else 0


def erfinv(x):
    return mpmath.erfinv(x) if abs(x) < 1 else math.copysign(INF, x) if abs(x) == 1 else NAN


def positive(rng):
    return np.concatenate([rng.uniform(0, 12, 40), 10 ** rng.uniform(-8, 6, 20), [0.0, -1.0, 2.0, 4.0, 1e-30, NAN]])


def any_sign(rng):
    x = positive(rng)
    return np.where(rng.random(len(x)) < 0.5, x, -x)


def numbers(rng):
    return np.concatenate([rng.uniform(-5, 30, 40), 10 ** rng.uniform(-9, 8, 20), [0.0, 0.5, -0.5, 6.2831853, -40.0, INF, NAN]])


def within(rng):
    return np.concatenate([rng.uniform(-1, 1, 40), 1 - 10 ** rng.uniform(-15.5, -1, 20), 10 ** rng.uniform(-12, -1, 10), [0.0, 0.5, -0.5, 1.0, -1.0, 1.5, NAN]])


def shares(rng):
    return np.concatenate([rng.uniform(0, 1, 30), 1 - 10 ** rng.uniform(-15.5, -1, 10), 10 ** rng.uniform(-306, -1, 25), [0.0, 0.25, 0.5, 0.75, 1.0, -0.5, 1.5, 1e-310, NAN]])


#: By name: torch's function, that of mpmath, numbers, and by how much a result of f64 may be off:
#: of itself and, where it goes through 0, of 1.
FUNCTIONS = {
    "j0": (special.bessel_j0, lambda x: mpmath.besselj(0, x), any_sign, 1e-15, 1e-15), "j1": (special.bessel_j1, lambda x: mpmath.besselj(1, x), any_sign, 1e-15, 1e-15),
    "y0": (special.bessel_y0, above(lambda x: mpmath.bessely(0, x), -INF), positive, 3e-15, 3e-15),
    "y1": (special.bessel_y1, above(lambda x: mpmath.bessely(1, x), -INF), positive, 3e-15, 3e-15),
    "k0": (special.modified_bessel_k0, above(lambda x: mpmath.besselk(0, x), INF), positive, 3e-15, 1e-307),
    "k1": (special.modified_bessel_k1, above(lambda x: mpmath.besselk(1, x), INF), positive, 3e-15, 1e-307),
    "scaled k0": (special.scaled_modified_bessel_k0, above(lambda x: mpmath.besselk(0, x) * mpmath.exp(x), INF), positive, 3e-15, 0),
    "scaled k1": (special.scaled_modified_bessel_k1, above(lambda x: mpmath.besselk(1, x) * mpmath.exp(x), INF), positive, 3e-15, 0),
    "erfcx": (special.erfcx, lambda x: 0 if x == INF else mpmath.exp(mpmath.mpf(x) ** 2) * mpmath.erfc(x), numbers, 2e-15, 0),
    "erfc": (torch.erfc, mpmath.erfc, numbers, 2e-15, 1e-307), "erfinv": (torch.erfinv, erfinv, within, 2e-15, 0), "ndtri": (special.ndtri, ndtri, shares, 3e-15, 0),
}  # fmt: skip


#: Where results are as torch has them, with the signs of zeros.
ENDS = [0.0, -0.0, INF, -INF]
#: Numbers of f64 that have not all digits, the least one, and the next to those that do.
TINY = [5e-324, 1e-310, 3.6e-309, 5.6e-309, 2.2250738585072014e-308, 1e-305]


class Of(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args):
        return self.function(*args)


def found(folder, function, *args):
    return found_all(folder, lambda *given: (function(*given),), *args)[0]


def found_all(folder, function, *args):
    """Of a function of several results."""
    compile(convert(Of(function), args), folder / "m.accx")
    made = accrt.load(folder / "m.accx").forward(*args)
    return [torch.from_dlpack(one) for one in (made if isinstance(made, tuple) else [made])]


@pytest.mark.rotating(5)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_have_their_digits(tmp_path, name, dtype):
    function, exact, given, relative, absolute = FUNCTIONS[name]
    drawn = [given(np.random.default_rng(rotation.seed())), TINY if dtype == torch.float64 else []]
    x = torch.tensor(np.concatenate([*drawn, ENDS])).to(dtype)
    with mpmath.workdps(40):
        wanted = np.array([NAN if math.isnan(v) else float(exact(v)) for v in x[: -len(ENDS)].tolist()])
    at_ends = function(x[-len(ENDS) :])
    wanted = np.concatenate([wanted, at_ends.double().numpy()])
    least, most = (1e-307, INF) if dtype == torch.float64 else (1.2e-38, 3.4e38)
    if dtype == torch.float32:  # rounded once more
        relative, absolute = 2.0**-22 if name in ("erfc", "erfinv") else 2.0**-24 * 1.01, absolute if name in ("j0", "j1", "y0", "y1") else 0
    ours = found(tmp_path, function, x).double().numpy()
    assert np.array_equal(np.signbit(ours[-len(ENDS) :])[:2], at_ends.signbit().numpy()[:2])
    with np.errstate(invalid="ignore"):  # of infinities and NaN
        apart = np.abs(np.where(np.abs(wanted) < INF, ours - wanted, 0))
    allowed = relative * np.abs(np.where(np.abs(wanted) < INF, wanted, 0)) + absolute + (least if dtype == torch.float32 else 0)
    large = np.abs(wanted) > most
    wrong = ~np.where(large, np.abs(ours) >= most * 0.99, np.where(np.isnan(wanted), np.isnan(ours), np.where(np.isinf(wanted), ours == wanted, apart <= allowed)))
    assert not wrong.any(), [(float(a), float(b), float(c)) for a, b, c in zip(x.numpy()[wrong], ours[wrong], wanted[wrong])]


def integers(rng, dtype):
    info = torch.iinfo(dtype)
    small = rng.integers(max(info.min, -60), 60, 100)
    # any of the type, and neighbours in Fibonacci's sequence, which take the most steps
    sequence = [1, 1]
    while sequence[-1] + sequence[-2] <= info.max:
        sequence.append(sequence[-1] + sequence[-2])
    wide = rng.integers(info.min // 2, info.max // 2, 60, dtype=np.int64)
    return torch.tensor(np.concatenate([small, wide, [0, info.max, info.max, 1, *sequence]])).to(dtype)


@pytest.mark.rotating(2)
@pytest.mark.parametrize("name", ["gcd", "lcm"])
@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64])
def test_divisors_are_torchs(tmp_path, name, dtype):
    a = integers(np.random.default_rng(rotation.seed()), dtype)
    b = a.roll(1)
    torch.testing.assert_close(found(tmp_path, getattr(torch, name), a, b), getattr(torch, name)(a, b), rtol=0, atol=0)
    torch.testing.assert_close(found(tmp_path, getattr(torch, name), a, a[3:4]), getattr(torch, name)(a, a[3:4]), rtol=0, atol=0)


@pytest.mark.rotating(2)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_neighbours_are_torchs(tmp_path, dtype):
    info, rng = torch.finfo(dtype), np.random.default_rng(rotation.seed())
    tiny = info.tiny
    least = 2.0**-1074 if dtype == torch.float64 else info.tiny * info.eps
    edges = torch.tensor([0.0, -0.0, 1.0, 2.0, 0.5, tiny, tiny * 2, tiny * 4, info.max, -info.max, INF, -INF, NAN, least, least * 3, least * 2.0**9], dtype=torch.float64).to(dtype)
    low, high = math.log2(tiny) - 8, math.log2(info.max)
    some = torch.tensor(2 ** rng.uniform(low, high, 400) * np.where(rng.random(400) < 0.5, 1, -1)).to(dtype)
    powers = torch.tensor(2.0 ** rng.integers(int(low), int(high), 100)).to(dtype)
    x = torch.cat([edges, edges, some, powers, powers])
    x = torch.cat([x, x.nextafter(torch.zeros_like(x)), x])
    y = torch.cat([torch.zeros_like(x[: len(x) // 3]), torch.full_like(x[: len(x) // 3], INF), x[: len(x) // 3].roll(7)])
    ours, theirs = found(tmp_path, torch.nextafter, x, y), torch.nextafter(x, y)
    same = (ours == theirs) & (ours.signbit() == theirs.signbit()) | ours.isnan() & theirs.isnan()
    assert same.all(), (x[~same][:5], y[~same][:5], ours[~same][:5], theirs[~same][:5])


@pytest.mark.rotating(2)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_parts_of_numbers_are_torchs(tmp_path, dtype):
    """frexp, also of the least numbers, whose digits are fewer."""
    info, rng = torch.finfo(dtype), np.random.default_rng(rotation.seed())
    least = 2.0**-1074 if dtype == torch.float64 else info.tiny * info.eps
    low, high = math.log2(least), math.log2(info.max)
    some = torch.tensor(2 ** rng.uniform(low, high, 400) * np.where(rng.random(400) < 0.5, 1, -1)).to(dtype)
    powers = torch.tensor(2.0 ** rng.integers(int(low), int(high), 100)).to(dtype)
    x = torch.cat([some, powers, torch.tensor([0.0, -0.0, 1.0, -1.0, 0.5, least, least * 3, info.tiny, info.max, -info.max, INF, -INF, NAN], dtype=torch.float64).to(dtype)])
    mantissas, exponents = found_all(tmp_path, torch.frexp, x)
    wanted, powers_of_2 = torch.frexp(x)
    assert mantissas.dtype == dtype and exponents.dtype == torch.int32
    finite = x.isfinite()  # of others the exponent is any
    assert torch.equal(exponents[finite], powers_of_2[finite]) and torch.equal(mantissas[finite], wanted[finite])
    assert torch.equal(mantissas.signbit()[:-1], x.signbit()[:-1]) and torch.equal(mantissas[-3:-1], x[-3:-1]) and mantissas[-1].isnan()


def test_tensors_without_dimensions_stand_beside_others(tmp_path):
    """Torch's export knows their content."""
    x, whole = torch.tensor([0.1, 3.0, -2.0], dtype=torch.float64), torch.tensor([4, 6, -9])
    functions = [lambda x, _: torch.hypot(x, torch.tensor(2.0)), lambda x, _: torch.atan2(x, torch.tensor(-2.0)), lambda x, _: torch.atan2(torch.tensor(2.0), x),
                 lambda x, _: torch.nextafter(x, torch.tensor(0.1, dtype=torch.float64)), lambda _, whole: torch.gcd(whole, torch.tensor(6))]  # fmt: skip
    made = found_all(tmp_path, lambda *given: tuple(function(*given) for function in functions), x, whole)
    for ours, theirs in zip(made, (function(x, whole) for function in functions), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0 if ours.dtype == torch.int64 else 1e-15, atol=0)
    assert torch.equal(made[3], torch.nextafter(x, torch.tensor(0.1, dtype=torch.float64)))
