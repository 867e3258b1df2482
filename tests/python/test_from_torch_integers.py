"""Integers of every width through accrt.from_torch, beside torch's own results, bit for bit: whole
numbers of the full range, so that sums and products wrap around. What torch does not do of a type
is left out. Runs where torch is installed: `./dev torch-test`."""

from __future__ import annotations

import numpy as np
import pytest

import rotation
from accrt.compiler import driver
from accrt.from_torch import convert, Method

torch = pytest.importorskip("torch", reason="torch is not installed")
pytestmark = [pytest.mark.torch, pytest.mark.quick_kernels]

from test_from_torch import leaves, Of, session_of  # noqa: E402  - which needs torch

F = torch.nn.functional
TYPES = ["bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]
FLOATS = ["float16", "bfloat16", "float32", "float64"]
PLACES = torch.tensor([[2, 0, 1, 1], [0, 2, 2, 1]])
EACH = torch.tensor([[0, 1, 2, 0], [2, 2, 1, 0]])

#: x and y are of the type and of any numbers, n is of it and small, b is bool.
OPERATIONS = {
    "sums": lambda x, y, n, b: (x + y, x + 1), "differences": lambda x, y, n, b: (x - y, 3 - x, torch.rsub(x, y, alpha=2)), "products": lambda x, y, n, b: x * y,
    "a number": lambda x, y, n, b: x * 3, "quotients": lambda x, y, n, b: x / n, "whole quotients": lambda x, y, n, b: (x // n, torch.div(x, n, rounding_mode="trunc")),
    "remainders": lambda x, y, n, b: (x % n, x % 7, torch.fmod(x, n)), "powers": lambda x, y, n, b: (x**n, x**2, x**5),
    "negated": lambda x, y, n, b: -x, "sizes": lambda x, y, n, b: (x.abs(), x.sign(), x.square(), torch.relu(x)), "whole": lambda x, y, n, b: (x.floor(), x.ceil(), x.round(), x.trunc()),
    "equal": lambda x, y, n, b: (x == y, x != n, x == 3), "less": lambda x, y, n, b: (x < y, x >= y, x > 1, x <= n), "truth": lambda x, y, n, b: (torch.logical_and(x, n), torch.logical_not(x)),
    "bits": lambda x, y, n, b: (x & y, x | y, x ^ y), "other bits": lambda x, y, n, b: ~x, "shifts": lambda x, y, n, b: (x << n, x >> n, x << 2, x >> 1),
    "extremes of two": lambda x, y, n, b: (torch.maximum(x, y), torch.minimum(x, y)), "clamped": lambda x, y, n, b: (x.clamp(2, 90), x.clamp_min(n)),
    "divisors": lambda x, y, n, b: (torch.gcd(x, y), torch.lcm(n, n + 1)), "total": lambda x, y, n, b: (x.sum(), x.sum(0), x.cumsum(1), x.cumsum(0)),
    "product of all": lambda x, y, n, b: (x.prod(), x.prod(1), x.cumprod(1)), "extremes": lambda x, y, n, b: (x.amax(0), x.amin(1), x.max(), x.min()),
    "extremes and places": lambda x, y, n, b: (*x.max(1), *x.min(0), x.argmax(1), x.argmin(1)), "running extremes": lambda x, y, n, b: (x.cummax(1)[0], x.cummin(0)[0]),
    "sorted": lambda x, y, n, b: (*x.sort(1, stable=True), *x.sort(0, descending=True, stable=True)), "largest": lambda x, y, n, b: (x.topk(2)[0], x.topk(2, largest=False)[0]),
    "median": lambda x, y, n, b: (x.median(), x.kthvalue(2)[0]), "any": lambda x, y, n, b: (x.any(), n.all(1)), "chosen": lambda x, y, n, b: (torch.where(b, x, y), torch.where(b, n, n)),
    "filled": lambda x, y, n, b: x.masked_fill(b, 3), "rows": lambda x, y, n, b: (x[PLACES[0, :3]], x[1], x[1:, ::2]), "selected": lambda x, y, n, b: x.index_select(1, PLACES[0]),
    "gathered": lambda x, y, n, b: (x.gather(1, EACH.repeat(2, 1)[:3]), x.take_along_dim(EACH, 0)), "scattered": lambda x, y, n, b: (x.scatter(0, EACH, y), x.scatter_add(0, EACH, y), x.index_add(0, EACH[0, :3], y)),
    "scattered extremes": lambda x, y, n, b: (x.scatter_reduce(0, EACH, y, "amax"), x.scatter_reduce(0, EACH, y, "amin", include_self=False)),
    "put": lambda x, y, n, b: x.index_put((EACH[0, :2],), y[:2]), "joined": lambda x, y, n, b: (torch.cat([x, y]), torch.stack([x, n])), "rolled": lambda x, y, n, b: (x.roll(1), x.roll(2, 1)),
    "flipped": lambda x, y, n, b: x.flip(1), "padded": lambda x, y, n, b: (F.pad(x, (1, 2), value=5), F.pad(x, (1, 0, 0, 1), value=2.7)), "repeated": lambda x, y, n, b: (x.repeat(2, 3), x.repeat_interleave(2, 1), x.mT.contiguous()),
    "triangles": lambda x, y, n, b: (x.tril(), x.triu(1)), "matrices": lambda x, y, n, b: (x @ y.mT, x[0] @ y[0], torch.mv(x, y[0])), "differences of neighbours": lambda x, y, n, b: x.diff(),
    "made": lambda x, y, n, b: (torch.full_like(x, 3), torch.zeros_like(x), torch.ones_like(x), x.new_full((2,), 9)), "counted": lambda x, y, n, b: torch.arange(5, dtype=x.dtype),
    "floats": lambda x, y, n, b: (x.float(), x.double(), x.half(), n.bfloat16(), x.sqrt() if not x.dtype.is_signed else n.exp()), "of floats": lambda x, y, n, b: [(n.to(f) * 1.5).to(x.dtype) for f in (torch.float32, torch.float64, torch.float16)],
    "scattered products": lambda x, y, n, b: (x.scatter_reduce(0, EACH, y, "prod"), x.scatter_reduce(1, EACH, y, "prod", include_self=False), x.scatter(0, EACH, y, reduce="multiply"), x.scatter(1, EACH, 3, reduce="multiply")),
    "reduced rows": lambda x, y, n, b: (x.index_reduce(0, EACH[0, :3], y, "prod"), x.index_reduce(1, PLACES[0], y, "amax", include_self=False)), "filled diagonals": lambda x, y, n, b: ((x + 0).fill_diagonal_(7), x.T.repeat(2, 1).fill_diagonal_(9, wrap=True)),
    "pooled": lambda x, y, n, b: (F.max_pool2d(x[None], 2, 1, 1), F.max_pool2d(x[None, None], 3, 2, 1, ceil_mode=True)), "means of windows": lambda x, y, n, b: (F.avg_pool2d(x[None], 2, 1, 1), F.avg_pool2d(x[None], 2, 2, 1, ceil_mode=True, count_include_pad=False)),
    "convolved": lambda x, y, n, b: (F.conv2d(x[None, None], y[None, None, :2, :2], padding=1), F.conv1d(x[None], y[:, :, None].repeat(1, 3, 1)[:, :3], stride=2), F.conv_transpose2d(x[None, None], y[None, None, :2, :2], stride=2)),
    "other bits of the same": lambda x, y, n, b: [x.view(kind) for kind in (torch.int8, torch.uint8, torch.int16, torch.int32, torch.uint32, torch.int64)], "bits written": lambda x, y, n, b: written_bits(x),
    "joined with nothing": lambda x, y, n, b: torch.cat([x, torch.zeros(0)]), "quotients in place": lambda x, y, n, b: ((x + 0).floor_divide_(n), (x + 0).floor_divide_(3), (x + 0).remainder_(n)),
    "constant": lambda x, y, n, b: (x * torch.tensor([1, 2, 3, 4]).to(x.dtype), torch.tensor([5, 6]).to(x.dtype)), "buckets": lambda x, y, n, b: torch.bucketize(x, torch.tensor([1, 5, 9]).to(x.dtype)),
}  # fmt: skip


def written_bits(x):
    x = x + 0
    bits = x.view(torch.uint8)
    bits[:, ::2] = 7
    x[0, 1] = 5
    return x, bits


def drawn(random, name, shape, low=None, high=None):
    """Numbers of the whole range, where no limits are given."""
    if name == "bool":
        return torch.from_numpy(random.integers(0, 2, shape).astype(bool))
    info = np.iinfo(name)
    return torch.from_numpy(random.integers(info.min if low is None else low, info.max if high is None else high, shape, np.dtype(name), endpoint=True))


def does(function, args):
    """What torch gives; None where it has no such operation of the type."""
    try:
        return leaves(function(*args))
    except (RuntimeError, NotImplementedError, TypeError, IndexError):
        return None


def compare(methods, wanted, args, instance):
    """All functions of one bundle, each beside torch."""
    session, _module = session_of({name: Method(Of(function), args) for name, function in methods.items()}, None, instance)
    for name in methods:
        out = session[name](*args)
        ours = [torch.from_dlpack(o) for o in (out if isinstance(out, (tuple, list)) else [out])]
        assert len(ours) == len(wanted[name]), name
        for index, (mine, theirs) in enumerate(zip(ours, wanted[name])):
            what = (name, index, args, mine, theirs)
            assert mine.dtype == theirs.dtype and mine.shape == theirs.shape, what
            assert torch.allclose(mine.double(), theirs.double(), 1e-6, 0, equal_nan=True) if mine.is_floating_point() else mine.tolist() == theirs.tolist(), what


def arguments(kind):
    random = np.random.default_rng([rotation.seed(), TYPES.index(kind)])
    x, y = drawn(random, kind, (3, 4)), drawn(random, kind, (3, 4))
    x[0] = x[0, 1]  # equal ones
    return x, y, drawn(random, kind, (3, 4), 1, 6), drawn(random, "bool", (3, 4))


@pytest.mark.rotating(3)
@pytest.mark.parametrize("kind", TYPES[1:])
def test_operations_of_integers(kind, instance):
    args = arguments(kind)
    wanted = {name: does(function, args) for name, function in OPERATIONS.items()}
    there = {name: function for name, function in OPERATIONS.items() if wanted[name] is not None}
    assert len(there) >= (18 if kind in ("uint16", "uint32", "uint64") else len(OPERATIONS) - 4)
    compare(there, wanted, args, instance)


@pytest.mark.rotating(1)
@pytest.mark.parametrize("kind", ["int16", "uint16", "uint64"])
def test_cuda_has_kernels_for_them(kind):
    """They are planned, not compiled: tests/gpu has the same operations of the compiler on one."""
    args = arguments(kind)
    module = convert({name: Method(Of(function), args) for name, function in OPERATIONS.items() if does(function, args) is not None})
    assert len(module.functions) > 15 and driver.kernels_of(module, "cuda")


PAIRS = {
    "product": lambda x, y: x * y, "sum": lambda x, y: x + y, "equal": lambda x, y: x == y, "quotient": lambda x, y: x / y, "chosen": lambda x, y: torch.where(y != 0, x, y),
    "joined": lambda x, y: torch.cat([x, y]), "without dimensions": lambda x, y: x * y[0], "larger": lambda x, y: torch.maximum(x, y), "cast": lambda x, y: x.to(y.dtype),
    "a number": lambda x, y: (x * 2, y * 2.5, x / 2),
}  # fmt: skip


@pytest.mark.rotating(2)
@pytest.mark.parametrize("kind", TYPES)
def test_pairs_of_types_are_promoted_as_torch_promotes_them(kind, instance):
    random = np.random.default_rng([rotation.seed(), 100 + TYPES.index(kind)])
    for other in TYPES + FLOATS:
        y = drawn(random, other, (4,), 1, 5) if other in TYPES else torch.arange(1.0, 5.0).to(getattr(torch, other))
        args = (drawn(random, kind, (4,), 1, 5), y)
        wanted = {name: does(function, args) for name, function in PAIRS.items()}
        there = {name: function for name, function in PAIRS.items() if wanted[name] is not None}
        compare(there, wanted, args, instance)


def in_place(x, y):
    x = x + 0
    x += y
    x &= 0x3F
    x |= y
    x ^= 5
    x[0] += 5
    return x


#: Numbers that the type does not have, known tensors without dimensions, the least of the type, and
#: results of a type that is asked for.
BESIDE = {
    "a large number": lambda x, y, n, b: (x + 300, x * 70000, 300 - x, x - 2**40), "below zero": lambda x, y, n, b: (x + -1, x * -3, -5 - x),
    "comparisons": lambda x, y, n, b: (x < 300, x == -1, x > 2**40), "with floats": lambda x, y, n, b: (n > 2.5, n == 2.0, n != 1.5), "bits": lambda x, y, n, b: (x & -2, x ^ -1, x | 300),
    "shifts by no bits": lambda x, y, n, b: (x << -1, x >> -1, x << 100, x >> 100, x >> 7), "by a number below zero": lambda x, y, n, b: (x % -3, torch.fmod(x, -3), x // -3),
    "times": lambda x, y, n, b: (torch.add(x, y, alpha=-1), torch.sub(x, 3, alpha=2)), "wider": lambda x, y, n, b: torch.add(x.long(), n, alpha=100), "of floats": lambda x, y, n, b: torch.add(x.double(), n, alpha=0.3),
    "known": lambda x, y, n, b: (x + torch.tensor(300), x & torch.tensor(300), x < torch.tensor(-1)), "known floats": lambda x, y, n, b: (n * torch.tensor(2.5, dtype=torch.float64), n * torch.tensor(2.5, dtype=torch.float16)),
    "known beside bools": lambda x, y, n, b: (b + torch.tensor(3, dtype=torch.int8), b * torch.tensor(1.5, dtype=torch.bfloat16)), "known beside one": lambda x, y, n, b: (torch.tensor(3, dtype=torch.int8) + x[0, 0], torch.tensor(2.5, dtype=torch.float64) * n[0, 0]),
    "chosen": lambda x, y, n, b: (torch.where(b, x, torch.tensor(300)), torch.where(b, n, torch.tensor(2.5, dtype=torch.float64))), "bounds": lambda x, y, n, b: (x.clamp(max=torch.tensor(300)), n.clamp(min=torch.tensor(2.5))),
    "filled": lambda x, y, n, b: (x.masked_fill(b, 3.7), x.masked_fill(b, 3.0), x.masked_fill(b, torch.tensor(2.5))), "filled below zero": lambda x, y, n, b: x.masked_fill(b, -1), "made": lambda x, y, n, b: (torch.full_like(x, 3.7), (x + 0).fill_(5.9)), "made of numbers that it does not have": lambda x, y, n, b: (torch.full_like(x, -1), x.new_full((2,), -3), (x + 0).fill_(-1)),
    "sums": lambda x, y, n, b: [x.sum(1, dtype=kind) for kind in (torch.int32, x.dtype, torch.uint8, torch.float64)], "running": lambda x, y, n, b: (x.cumsum(1, dtype=torch.int32), x.cumsum(0, dtype=x.dtype), x.cumprod(1, dtype=x.dtype)),
    "products": lambda x, y, n, b: (x.prod(dtype=x.dtype), x.prod(1, dtype=torch.int16)), "bounded": lambda x, y, n, b: F.relu6(x), "bounded by two": lambda x, y, n, b: F.hardtanh(x, -1, 3),
    "powers": lambda x, y, n, b: (x ** 2.0, n ** 3.0, n ** -1.0), "of a number": lambda x, y, n, b: (-2) ** n, "angles": lambda x, y, n, b: (torch.atan2(x, n), torch.atan2(x, x)), "in place": lambda x, y, n, b: in_place(x, y),
}  # fmt: skip


@pytest.mark.rotating(3)
@pytest.mark.parametrize("kind", TYPES[1:])
def test_numbers_and_types_beside_integers(kind, instance):
    x, y, n, b = arguments(kind)
    x.numpy()[1, 0], x.numpy()[2, 1] = np.iinfo(kind).min, np.iinfo(kind).max
    args = x, y, n, b
    wanted = {name: does(function, args) for name, function in BESIDE.items()}
    there = {name: function for name, function in BESIDE.items() if wanted[name] is not None}
    assert len(there) >= (8 if kind in ("uint16", "uint32", "uint64") else len(BESIDE) - 3)
    compare(there, wanted, args, instance)


class Counted(torch.nn.Module):
    """A buffer of the type that each call adds to, a weight of it, and an input that is written."""

    def __init__(self, dtype, start):
        super().__init__()
        self.register_buffer("total", torch.zeros(3, dtype=dtype))
        self.register_buffer("kept", start)

    def forward(self, x, y):
        self.total.copy_(self.total * 2 | x)
        y.copy_(self.total ^ self.kept)
        return self.total * self.kept


@pytest.mark.parametrize("kind", ["int16", "uint16", "uint64"])
def test_states_weights_and_written_inputs(kind, instance):
    random = np.random.default_rng([rotation.seed(), 200])
    model = Counted(getattr(torch, kind), drawn(random, kind, (3,)))
    args = drawn(random, kind, (3,)), drawn(random, kind, (3,))
    session, _module = session_of(model, args, instance)
    for _call in range(3):
        args = drawn(random, kind, (3,)), drawn(random, kind, (3,))
        written = args[1].numpy().copy()
        (ours,) = [np.asarray(o) for o in [session.forward(args[0].numpy(), written)]]
        assert ours.tolist() == model(*args).tolist() and written.tolist() == args[1].tolist()
