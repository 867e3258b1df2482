"""accrt.from_torch of sizes that follow from others: relations of torch's Dims (2*n, n + 1), and
Dim.AUTO and Dim.DYNAMIC, whose relations torch finds itself."""

from __future__ import annotations

import math

import numpy as np
import pytest

import accrt
import kernel_harness as kh
from accrt.from_torch import convert, UnsupportedOperations

torch = pytest.importorskip("torch", reason="torch is not installed")
pytestmark = [pytest.mark.torch, pytest.mark.quick_kernels, pytest.mark.filterwarnings("ignore")]

from torch.export import Dim  # noqa: E402

SEED = kh.SEED


class Of(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x, y):
        return self.function(x, y)


class OfOne(Of):
    def forward(self, x):
        return self.function(x)


def session_of(function, sizes, shapes, instance):
    """Of a function of tensors of one dimension; torch's own example has these sizes."""
    from accrt.compiler import compile

    model = (Of if len(sizes) == 2 else OfOne)(function)
    module = convert(model, tensors(sizes), dynamic_shapes=shapes)
    return model, module, accrt.Program(accrt.Bundle(compile(module, targets=[kh.host_targets()[-1]]), instance)).session()


def tensors(sizes):
    generator = torch.Generator().manual_seed(SEED & 0x7FFFFFFF)
    return tuple(torch.randn(size, generator=generator) for size in sizes)


def same(model, session, sizes):
    given = tensors(sizes)
    ours = session.forward(*(x.numpy() for x in given))
    for a, b in zip(ours if isinstance(ours, (list, tuple)) else [ours], torch.utils._pytree.tree_leaves(model(*given))):
        np.testing.assert_allclose(np.asarray(a), b.numpy(), rtol=1e-5, atol=1e-5)


n, many = Dim("n", max=64), Dim("many", min=4, max=64)
#: By name: what is calculated, torch's example, its shapes, right sizes, and wrong ones.
RELATIONS = {
    "one_more": (lambda x, y: x[1:] + y, (5, 4), ({0: n + 1}, {0: n}), [(2, 1), (9, 8)], [(5, 5), (4, 5), (66, 65)]),
    "one_more_first_known_later": (lambda x, y: y[1:] * x, (4, 5), ({0: n}, {0: n + 1}), [(1, 2), (7, 8)], [(5, 5)]),
    "twice": (lambda x, y: x.view(2, -1) + y, (8, 4), ({0: 2 * n}, {0: n}), [(2, 1), (10, 5)], [(9, 4), (8, 3)]),
    "both_derived": (lambda x, y: x[1:] * y, (9, 8), ({0: 2 * n + 1}, {0: 2 * n}), [(3, 2), (21, 20)], [(8, 8), (4, 3)]),
    "twice_and_four_times": (lambda x, y: x.view(2, -1).sum(0) + y, (16, 8), ({0: 4 * n}, {0: 2 * n}), [(4, 2), (24, 12)], [(16, 7), (12, 8)]),
    "less": (lambda x, y: torch.cat([x, y[:3]]), (6, 9), ({0: many - 3}, {0: many}), [(2, 5), (5, 8)], [(6, 8)]),
    "alone": (lambda x: x.view(2, -1) * 2, (8,), ({0: 2 * n},), [(2,), (128,)], [(7,), (130,)]),
    "alone_one_more": (lambda x: x[1:].cumsum(0), (8,), ({0: n + 1},), [(2,), (65,)], [(66,)]),
    "auto": (lambda x, y: x[1:] + y, (5, 4), ({0: Dim.AUTO}, {0: Dim.AUTO}), [(2, 1), (9, 8)], [(5, 5)]),
    "dynamic": (lambda x, y: x[1:] + y, (5, 4), ({0: Dim.DYNAMIC}, {0: Dim.DYNAMIC}), [(2, 1), (9, 8)], [(5, 5)]),
    "auto_shared": (lambda x, y: x * y, (5, 5), ({0: Dim.AUTO}, {0: Dim.AUTO}), [(1, 1), (9, 9)], [(5, 4)]),
    "auto_static": (lambda x, y: x * y + torch.ones(5), (5, 5), ({0: Dim.AUTO}, {0: Dim.AUTO}), [(5, 5)], [(4, 4)]),
    "auto_bounds": (lambda x, y: torch.cat([x, y]), (5, 4), ({0: Dim.AUTO(min=3, max=9)}, {0: Dim.AUTO}), [(3, 1), (9, 20)], [(2, 4), (10, 4)]),
    "auto_apart": (lambda x, y: torch.cat([x, y]), (5, 4), ({0: Dim.AUTO}, {0: Dim.DYNAMIC}), [(1, 1), (9, 2)], []),
    "auto_lengths": (lambda x, y: torch.softmax(x[:, None] * y, 1) @ torch.cumsum(y, 0), (5, 4), ({0: Dim.AUTO}, {0: Dim.AUTO}), [(1, 1), (7, 7), (9, 2)], []),
    "auto_other": (lambda x, y: x.sum() * 2 if x.shape[0] == y.shape[0] else torch.cat([x, y]), (5, 4), ({0: Dim.AUTO}, {0: Dim.AUTO}), [(1, 2), (9, 2)], [(4, 4), (1, 1)]),
    "auto_other_shape": (lambda x, y: torch.cat([x, y]) if x.shape != y.shape else x, (5, 4), ({0: Dim.AUTO}, {0: Dim.AUTO}), [(1, 2), (9, 2)], [(4, 4)]),
    "auto_other_quotient": (lambda x, y: x if x.shape[0] // 2 == y.shape[0] // 2 else torch.cat([x, y]), (8, 4), ({0: Dim.AUTO}, {0: Dim.AUTO}), [(6, 4)], [(5, 4), (4, 4)]),
    "auto_not_twice": (lambda x, y: x if 2 * x.shape[0] == y.shape[0] else torch.cat([x, y]), (5, 4), ({0: Dim.AUTO}, {0: Dim.AUTO}), [(4, 4), (9, 2)], [(4, 8), (1, 2)]),
}  # fmt: skip


@pytest.mark.parametrize("name", RELATIONS)
def test_relations(name, instance):
    function, example, shapes, right, wrong = RELATIONS[name]
    model, module, session = session_of(function, example, shapes, instance)
    for sizes in [example, *right]:
        same(model, session, sizes)
    for sizes in wrong:
        with pytest.raises((accrt.Error, ValueError)):
            session.forward(*(x.numpy() for x in tensors(sizes)))
    same(model, session, example)


#: By name: what is calculated, and of one dimension under Dim.DYNAMIC: torch's example, and the
#: sizes for which torch's trace holds and does not hold.
ASSUMED = {
    "a branch that was taken": (lambda x: x * 2 if x.shape[0] % 4 == 0 else x, 16, [4, 8, 64], [3, 6, 65]),
    "a branch by size": (lambda x: x * 2 if x.shape[0] > 9 else x, 16, [10, 60], [9, 1]),
    "a branch between": (lambda x: x * 2 if x.shape[0] // 8 == 2 else x, 16, [17, 23], [15, 24, 8]),
    "a number that is one value": (lambda x: torch.arange(int(x.shape[0] / 4)) * x.sum(), 16, [17, 19], [15, 20]),
    "rows of four": (lambda x: x.reshape(-1, 4).sum(1), 16, [8, 12, 96], [4, 10, 97]),
    "every size": (lambda x: x * 2, 16, [1, 2, 3], []),
    "a branch by a quotient": (lambda x: x * 2 if x.shape[0] // 16 > 1 else x, 40, [32, 99], [1, 2, 16, 31]),
    "a branch by the lesser": (lambda x: x * 2 if min(x.shape[0], 5) == 5 else x, 16, [5, 99], [1, 4]),
    "a branch by the greater": (lambda x: x * 2 if max(x.shape[0], 20) == 20 else x, 16, [1, 2, 20], [21, 99]),
    "a branch by a power": (lambda x: x * 2 if x.shape[0] ** 2 == 16 else x, 4, [4], [3, 5]),
    "a branch by an amount": (lambda x: x * 2 if abs(x.shape[0] - 20) < 5 else x, 16, [16, 24], [15, 25]),
    "a branch of small sizes": (lambda x: x * 2 if x.shape[0] // 8 <= 2 else x, 16, [1, 2, 23], [24]),
    "not one": (lambda x: x[: (x.shape[0] + 4) // 4] + 1, 16, [4, 5, 99], []),
    "not a number": (lambda x: x * 2 if x.shape[0] == 16 else x, 40, [1, 15, 17, 99], [16]),
    "no quotient of one": (lambda x: x * 2 if x.shape[0] // 16 == 1 else x, 40, [1, 15, 32, 99], [16, 31]),
    "no sum": (lambda x: x * 2 if 2 * x.shape[0] + 1 == 31 else x, 40, [1, 14, 16, 99], [15]),
    "another remainder": (lambda x: x * 2 if x.shape[0] % 4 == 1 else x, 16, [2, 3, 16, 99], [1, 5, 97]),
    "a remainder, and a number": (lambda x: x if x.shape[0] % 4 != 0 or x.shape[0] == 12 else x * 2, 16, [4, 8, 96], [12, 3]),
}  # fmt: skip


@pytest.mark.parametrize("name", ASSUMED)
def test_what_a_trace_assumes_of_sizes_is_checked(name, instance):
    function, example, right, wrong = ASSUMED[name]
    model, _, session = session_of(function, (example,), ({0: Dim.DYNAMIC(max=99)},), instance)
    for size in [example, *right]:
        same(model, session, (size,))
    for size in wrong:
        with pytest.raises((accrt.Error, ValueError)):
            session.forward(tensors((size,))[0].numpy())


def test_a_condition_is_told_once():
    with pytest.warns(UserWarning) as told:
        convert(OfOne(lambda x: x * 2 if x.shape[0] // 8 == 1 else x), tensors((40,)), dynamic_shapes=({0: Dim.AUTO},))
    assert ["refused at the call" in str(one.message) for one in told if "export holds" in str(one.message)] == [True]


def test_a_range_that_a_trace_narrows_is_told():
    with pytest.warns(UserWarning, match=r"holds only where x\.shape\[0\] // 8 == 2: other sizes are refused at the call"):
        convert(OfOne(lambda x: x * 2 if x.shape[0] // 8 == 2 else x), tensors((16,)), dynamic_shapes=({0: Dim.DYNAMIC},))


def read(*texts, **ranges):
    """What conditions limit of the sizes N and M of x, which are symbols with these ranges."""
    from accrt._torch_sizes import _narrowed

    sizes = []
    for name in ranges:
        symbol = type("Symbol", (), {"is_Symbol": True, "__str__": lambda self, name=name: name})()
        symbol.free_symbols = {symbol}
        sizes.append(type("Size", (), {"node": type("Node", (), {"expr": symbol})})())
    limits, refused, checked = _narrowed([text.replace("N", "L['x'].size()[0]").replace("M", "L['x'].size()[1]") for text in texts], {"x": sizes}, ranges)
    return limits, [*refused, *(("", guard.text) for guard in checked)]


@pytest.mark.parametrize("text", [
    "__import__('os').abort()", "N == " + "9" * 5000, "(" * 5000, "-" * 5000 + "N == 1", "L['x'].size()[9] == 1", "L['y'].size()[0] == 1",
    "L['x'].size(0)[0] == 1", "", "N >= 2", "1 < N", "N // 2 != 1", "1 + N // 4 != 1", "\0",
])
def test_the_text_of_a_condition_is_read_and_never_run(text):
    assert read(text, s0=(2, 100)) == ({}, [])


@pytest.mark.parametrize("text", [
    "N == 9**9**9", "N.real == 3", "(lambda: 1)() == N", "N % 0 == N // 0 - " + "9" * 400, "math.trunc(*N) == 3", "N ** 9 == 4", "2 ** N == 4", "min(N) == 4",
    "min(N, key=4) == 4", "pow(N, 2) == 4", "N" + " + 0" * 400 + " == 4", "abs(" * 120 + "N" + ")" * 120 + " == 4",
    "N == 4" + " or N == 4" * 1000,
])
def test_a_condition_of_sizes_that_is_no_limit_is_refused(text):
    limits, refused = read(text, s0=(2, 100))
    assert not limits and [name for name, _ in refused] == ["x"] and len(refused[0][1]) <= 200


@pytest.mark.parametrize("text, holds", [
    ("N != 16", lambda n: n != 16), ("16 != N", lambda n: n != 16), ("N // 4 != 16", lambda n: n // 4 != 16), ("16 != 1 + N // 4", lambda n: n // 4 != 15),
    ("N % 4 != 1", lambda n: n % 4 != 1), ("N % 4 != 0", lambda n: n % 4 != 0), ("3 != N % 4", lambda n: n % 4 != 3), ("N % 64 != 1", lambda n: n % 64 != 1),
    ("2 * (N % 4) + 1 != 3", lambda n: n % 4 != 1), ("-(N % 4) != -1", lambda n: n % 4 != 1), ("N < 9 or N > 20", lambda n: not 9 <= n <= 20),
    ("max(N % 7, 3) >= 5 and not N % 5 < 2", lambda n: n % 7 > 4 and n % 5 > 1),
])
def test_a_condition_that_is_no_limit_is_checked(text, holds):
    from accrt._torch_sizes import _check, _narrowed
    from accrt.compiler import expr as ex

    size = type("Symbol", (), {"is_Symbol": True, "is_Integer": False, "__str__": lambda self: "s0"})()
    size.free_symbols = {size}
    shapes = {"x": [type("Size", (), {"node": type("Node", (), {"expr": size})})()]}
    with pytest.warns(UserWarning, match="other sizes are refused at the call"):
        limits, refused, (guard,) = _narrowed([text.replace("N", "L['x'].size()[0]")], shapes, {"s0": (2, 100)})
    condition, said = _check(guard, shapes, {"s0": ex.symbol("n")})
    assert not limits and not refused and said.startswith("torch's export holds only where ")
    assert [n for n in range(1, 101) if ex.evaluate(condition, {"n": n})] == [n for n in range(1, 101) if holds(n)]


def test_the_conditions_of_a_program_have_a_limit_together():
    limits, refused = read(*(f"N + {i} != 0" + " + 0" * 60 for i in range(600)), "N < 50", s0=(2, 100))
    assert not limits and refused[-1] == ("x", "x.shape[0] < 50")


@pytest.mark.parametrize("text", ["N // 4 != 1", "(-4 + N) // 4 != 1", "N" + " + 0" * 9000 + " == 4", "L['y'].size()[0] == 1"])
def test_a_condition_that_is_not_checked_is_told(text):
    with pytest.warns(UserWarning, match="torch's export holds only where .*: this is not checked"):
        read(text, s0=(2, 100))


M = 1 << 20


@pytest.mark.parametrize("text, most, limit", [
    ("N <= 200000", M, (1, 200000, 1)), ("N >= 100000", M, (100000, M, 1)), ("N // 100000 == 3", M, None), ("N % 40000 == 0", M, (40000, 1040000, 40000)),
    ("N % 100000 == 0", M, None), ("N % 4 == 0", M, (4, M, 4)), ("N == 16", M, (16, 16, 1)), ("N >= 1000000", M, (1000000, M, 1)),
    ("N % 12 == 0 and N < 300000", M, (12, 299988, 12)), ("N <= 12", (1 << 63) - 1, (1, 12, 1)), ("N >= 12", (1 << 63) - 1, (12, (1 << 63) - 1, 1)),
    ("N <= 12", 100, (1, 12, 1)), ("N % 2 == 0 and N <= 12", 100, (2, 12, 2)), ("2 <= N // 1 <= 12", 100, (2, 12, 1)), ("N // 8 >= 2", 100, (16, 100, 1)),
    ("1 < N // 8", 100, (16, 100, 1)), ("2 <= N // 8", 100, (16, 100, 1)),
])
def test_limits_of_a_symbol(text, most, limit):
    limits, refused = read(text, s0=(2, most))
    assert limits == ({"s0": limit} if limit else {}) and bool(refused) == (limit is None)


@pytest.mark.parametrize("texts, limits", [
    (["N * M >= 2"], {}), (["(N // 16) * (M // 16) > 1"], {"a": (32, 512, 1)}), (["2 * (N // 2) == N", "N * M == 2 * M * (N // 2)"], {"a": (16, 512, 2)}),
    (["N < M"], None), (["(N * M) % 4 != 1"], None), (["(N // 4) % (N * M) != 0"], {}), (["N != M", "N // 4 != M"], {}),
])
def test_conditions_of_two_sizes(texts, limits):
    got, refused = read(*texts, a=(16, 512), b=(16, 512))
    assert got == (limits or {}) and bool(refused) == (limits is None)


@pytest.mark.parametrize("text", ["N <= " + " <= ".join(["N"] * 200), " and ".join(["N < 50"] * 200), " + ".join(["(1 + N)"] * 60) + " < 50"])
def test_reading_a_condition_takes_little_memory(text):
    import tracemalloc

    tracemalloc.start()
    try:
        read(text, s0=(2, 65536))
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()


def test_a_max_above_maximum_is_cut():
    module = convert(OfOne(lambda x: x * 2 if x.shape[0] <= 500 else x), tensors((16,)), dynamic_shapes=({0: Dim.DYNAMIC(max=1000)},), maximum=100)
    assert [(s.minimum, s.maximum, s.divisor) for s in module.symbols.values()] == [(1, 100, 1)]


class Blocks(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.down, self.up = torch.nn.Conv2d(3, 4, 3, padding=1), torch.nn.ConvTranspose2d(4, 4, 2, 2)

    def forward(self, x):
        wide = self.down(x).relu()
        return torch.cat([wide, self.up(torch.nn.functional.max_pool2d(wide, 2))], 1)


#: By name: a model, its example, the dimensions that vary, and the limits that those get.
ORDINARY = {
    "u-net": (Blocks, (2, 3, 32, 48), (0, 2, 3), [(1, 1), (2, 2), (2, 2)]),
    "transformer": (lambda: torch.nn.TransformerEncoderLayer(32, 4, batch_first=True).eval(), (2, 7, 32), (0, 1), [(1, 1), (1, 1)]),
    "pixels": (lambda: torch.nn.Sequential(torch.nn.PixelUnshuffle(2), torch.nn.Conv2d(4, 8, 3, 2, 1)), (2, 1, 32, 32), (0, 2, 3), [(1, 1), (4, 2), (4, 2)]),
    "convolutions": (lambda: torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3, 2, 1), torch.nn.MaxPool2d(3, 2, 1), torch.nn.AdaptiveAvgPool2d(1)), (2, 3, 32, 32),
                     (0, 2, 3), [(1, 1), (1, 1), (1, 1)]),
}  # fmt: skip


@pytest.mark.parametrize("name", ORDINARY)
def test_ordinary_models_under_auto(name):
    make, shape, dims, limits = ORDINARY[name]
    module = convert(make(), (torch.randn(shape),), dynamic_shapes=({dim: Dim.AUTO for dim in dims},))
    assert [(s.minimum, s.divisor) for s in module.symbols.values()] == limits


def halved():
    """A convolution that halves a picture of 3 channels."""
    return torch.nn.Conv2d(3, 3, 3, 2, 1)


class Pyramid(torch.nn.Module):
    """A U-Net and a pyramid of features: strided convolutions, and paths that meet again."""

    def __init__(self, stages, way):
        super().__init__()
        self.way, self.down = way, torch.nn.ModuleList(halved() for _ in range(stages))
        self.up = torch.nn.ModuleList(torch.nn.ConvTranspose2d(3, 3, 2, 2) for _ in range(stages))
        self.mix = torch.nn.ModuleList(torch.nn.Conv2d(6, 3, 1) for _ in range(stages))

    def forward(self, x):
        wide, found = [], []
        for down in self.down:
            wide.append(x)
            x = down(x).tanh()
        for before, up, mix in list(zip(wide, self.up, self.mix))[::-1]:
            if self.way == "interpolate":
                x = torch.nn.functional.interpolate(x, size=before.shape[2:], mode="bilinear")
            else:
                down, right = (a - b for a, b in zip(before.shape[2:], up(x).shape[2:]))
                x = torch.nn.functional.pad(up(x), (right // 2, right - right // 2, down // 2, down - down // 2))
            x = mix(torch.cat([before, x], 1)) + before
            found.append(x)
        return found


class Paths(torch.nn.Module):
    """Two strides of 2 beside one of 4."""

    def __init__(self):
        super().__init__()
        self.two, self.one, self.first = torch.nn.Sequential(halved(), halved()), torch.nn.Conv2d(3, 3, 7, 4, 3), halved()

    def forward(self, x):
        return torch.cat([self.two(x), self.one(x)], 1), torch.nn.functional.max_pool2d(self.first(x), 3, 2, 1) + self.one(x)


class Windows(torch.nn.Module):
    """Attention in windows of 4 x 4 of a padded picture, which is cut again, over one dimension of
    all windows."""

    def forward(self, x):
        batch, height, width, size = x.shape
        padded = torch.nn.functional.pad(x, (0, 0, 0, (4 - width % 4) % 4, 0, -height % 4))
        down, right = padded.shape[1] // 4, padded.shape[2] // 4
        parts = padded.view(batch, down, 4, right, 4, size).transpose(2, 3).reshape(-1, 16, size)
        parts = torch.nn.functional.scaled_dot_product_attention(parts, parts, parts)
        return parts.view(batch, down, right, 4, 4, size).transpose(2, 3).reshape(padded.shape)[:, :height, :width]


#: By name: a model, its example, and sizes that the export never saw.
MEETING = {
    "u-net of two": (lambda: Pyramid(2, "pad"), (2, 3, 21, 30), [(1, 3, 12, 17)]),
    "u-net of three": (lambda: Pyramid(3, "pad"), (2, 3, 43, 30), [(1, 3, 27, 18), (3, 3, 16, 19)]),
    "pyramid of three": (lambda: Pyramid(3, "interpolate"), (2, 3, 43, 30), [(1, 3, 27, 18), (3, 3, 16, 19)]),
    "two paths": (Paths, (2, 3, 21, 30), [(1, 3, 12, 17), (3, 3, 9, 40)]),
    "pooled to the end": (lambda: torch.nn.Sequential(torch.nn.MaxPool2d(3, 2, ceil_mode=True), torch.nn.AvgPool2d(3, 2, 1, ceil_mode=True)), (2, 3, 21, 30),
                          [(1, 3, 12, 17), (3, 3, 9, 40), (1, 3, 10, 11)]),
    "cut or padded": (lambda: OfOne(lambda x: torch.nn.functional.pad(x, (0, 3 - x.shape[3] % 5, 1 - x.shape[2] % 3, x.shape[2] % 2))), (2, 3, 21, 30),
                      [(1, 3, 20, 34), (3, 3, 10, 33)]),
    "windows": (Windows, (2, 13, 10, 8), [(1, 9, 16, 8), (3, 12, 7, 8)]),
}  # fmt: skip


@pytest.mark.parametrize("name", MEETING)
def test_paths_of_pictures_meet_under_auto(name, instance):
    from accrt.compiler import compile

    make, shape, others = MEETING[name]
    torch.manual_seed(SEED & 0x7FFFFFFF)
    model = make().eval().requires_grad_(False)
    module = convert(model, (torch.randn(shape),), dynamic_shapes=({dim: Dim.AUTO for dim in ((0, 1, 2) if name == "windows" else (0, 2, 3))},))
    session = accrt.Program(accrt.Bundle(compile(module, targets=[kh.host_targets()[-1]]), instance)).session()
    for sizes in [shape, *others]:
        same(model, session, (sizes,))


def test_an_order_of_two_sizes_is_checked(instance):
    model, _, session = session_of(lambda x, y: torch.cat([x, y]) if x.shape[0] < y.shape[0] else torch.cat([y, x]), (5, 9), ({0: Dim.DYNAMIC},) * 2, instance)
    for sizes in [(5, 9), (1, 3), (60, 61)]:
        same(model, session, sizes)
    for sizes in [(5, 5), (9, 4)]:
        with pytest.raises(accrt.Error, match=r"torch's export holds only where x\.shape\[0\] < y\.shape\[0\]"):
            session.forward(*(x.numpy() for x in tensors(sizes)))


@pytest.mark.parametrize("name, function, sizes, said", [
    ("of both", lambda x, y: (x[:, None] * y).reshape(-1, 4), (6, 10), r"x\.shape\[0\].*% 4 == 0: give these dimensions as torch\.export\.Dim"),
])
def test_what_a_trace_assumes_and_a_bundle_cannot_check_is_named(name, function, sizes, said):
    with pytest.raises(UnsupportedOperations, match=said):
        convert((Of if len(sizes) == 2 else OfOne)(function), tensors(sizes), dynamic_shapes=({0: Dim.DYNAMIC},) * len(sizes))


#: By name: the size that is calculated of n, and calls with sizes of n.
ROUNDED = {
    "truncated product": (lambda n: math.trunc(n * 0.5), [8, 9, 64]), "truncated quotient": (lambda n: math.trunc(n / 2), [9, 63]),
    "toward zero": (lambda n: math.trunc((n - 11) / 2) + 5, [8, 10, 11, 12, 13]), "product first": (lambda n: math.trunc(0.75 * n), [8, 9, 10, 11]),
    "floor": (lambda n: math.floor(n / 3), [8, 9, 10]), "ceil": (lambda n: math.ceil((n - 2) / 3) + 1, [8, 9, 10, 11]),
    "more": (lambda n: math.ceil(n * 1.5), [8, 9]),
}  # fmt: skip


@pytest.mark.parametrize("name", ROUNDED)
def test_sizes_that_are_rounded(name, instance):
    size, sizes = ROUNDED[name]

    def function(x):
        return torch.arange(size(x.shape[0])) + 1.0

    model, _, session = session_of(function, (16,), ({0: Dim.DYNAMIC(min=8, max=64)},), instance)
    for n in [16, *sizes]:
        same(model, session, (n,))


def test_a_size_of_a_fraction_that_is_not_exact_is_named():
    with pytest.raises(UnsupportedOperations, match=r"trunc x1: a size times 0\.3 is not exact: write it with whole numbers, as in n \* 3 // 10 \("):
        convert(OfOne(lambda x: torch.arange(math.trunc(x.shape[0] * 0.3)) * x.sum()), tensors((16,)), dynamic_shapes=({0: Dim.DYNAMIC(min=8)},))


def test_a_factor_near_0_has_no_example():
    with pytest.raises(UnsupportedOperations, match=r"a size times 0\.0001 is not exact: write it with whole numbers \("):
        convert(OfOne(lambda x: torch.arange(math.trunc(x.shape[0] * 0.0001)) * x.sum()), tensors((16,)), dynamic_shapes=({0: Dim.DYNAMIC(min=8)},))


def test_a_size_that_does_not_follow_is_named():
    with pytest.raises(UnsupportedOperations, match=r"input 'x'.*dimension 0 is 2\*\w+ \+ 1: no input has a dimension of which \w+ follows"):
        convert(OfOne(lambda x: x * 2), tensors((9,)), dynamic_shapes=({0: 2 * n + 1},))


def test_a_relation_has_the_name_of_its_dim():
    h = Dim("h", max=64)
    for dim, size, name in ((2 * h, 8, "h_times_2"), (h + 1, 9, "h_plus_1"), (h, 8, "h"), (Dim.AUTO, 8, "x_0")):
        module = convert(OfOne(lambda x: x * 2), tensors((size,)), dynamic_shapes=({0: dim},))
        assert list(module.symbols) == [name]


def test_the_name_of_a_dim_stays():
    _, module, _ = session_of(lambda x, y: x[1:] + y, (5, 4), ({0: n + 1}, {0: n}), None)
    assert list(module.symbols) == ["n"] and [str(i.value.shape[0]) for i in module.functions["forward"].inputs] == ["(n + 1)", "n"]
