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
    "not one": (lambda x: x[: (x.shape[0] + 4) // 4] + 1, 16, [4, 5, 99], []),
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


def test_a_range_that_a_trace_narrows_is_told():
    with pytest.warns(UserWarning, match=r"holds only where x\.shape\[0\] // 8 == 2: other sizes are refused at the call"):
        convert(OfOne(lambda x: x * 2 if x.shape[0] // 8 == 2 else x), tensors((16,)), dynamic_shapes=({0: Dim.DYNAMIC},))


@pytest.mark.parametrize("text", [
    "__import__('os').abort()", "L['x'].size()[0] == 9**9**9", "L['x'].size()[0] == " + "9" * 5000, "(" * 5000, "-" * 5000 + "L['x'].size()[0] == 1",
    "L['x'].size()[9] == 1", "L['y'].size()[0] == 1", "L['x'].size(0)[0] == 1", "L['x'].size()[0].real == 3", "(lambda: 1)() == L['x'].size()[0]", "",
    "L['x'].size()[0] // 4 != 16", "16 != 1 + L['x'].size()[0] // 4", "L['x'].size()[0] // 8 >= 2",
    "L['x'].size()[0] % 0 == L['x'].size()[0] // 0 - " + "9" * 400, "math.trunc(*L['x'].size()[0]) == 3", "\0",
])
def test_the_text_of_a_condition_is_read_and_never_run(text):
    from accrt._torch_sizes import _narrowed

    symbol = type("Symbol", (), {"is_Symbol": True, "__str__": lambda self: "s0"})()
    symbol.free_symbols = {symbol}
    size = type("Size", (), {"node": type("Node", (), {"expr": symbol})})()
    limits, refused = _narrowed([text], {"x": [size]}, {"s0": (2, 100)})
    assert not limits and not refused or "% 0" in text


@pytest.mark.parametrize("name, function, sizes, said", [
    ("padded", lambda x: torch.nn.functional.pad(x, (0, 4 - x.shape[0] % 4)) if x.shape[0] % 4 != 0 else x, (15,),
     r"input 'x'.*holds only where x\.shape\[0\] % 4 != 0"),
    ("of two", lambda x, y: torch.cat([x, y]) if x.shape[0] < y.shape[0] else torch.cat([y, x]), (5, 9), r"holds only where x\.shape\[0\] < y\.shape\[0\]"),
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


def test_a_size_that_does_not_follow_is_named():
    with pytest.raises(UnsupportedOperations, match=r"input 'x'.*dimension 0 is 2\*\w+ \+ 1: no input has a dimension of which \w+ follows"):
        convert(OfOne(lambda x: x * 2), tensors((9,)), dynamic_shapes=({0: 2 * n + 1},))


def test_the_name_of_a_dim_stays():
    _, module, _ = session_of(lambda x, y: x[1:] + y, (5, 4), ({0: n + 1}, {0: n}), None)
    assert list(module.symbols) == ["n"] and [str(i.value.shape[0]) for i in module.functions["forward"].inputs] == ["(n + 1)", "n"]
