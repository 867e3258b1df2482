"""accrt.from_torch of sizes that follow from others: relations of torch's Dims (2*n, n + 1), and
Dim.AUTO and Dim.DYNAMIC, whose relations torch finds itself."""

from __future__ import annotations

import numpy as np
import pytest

import accrt
import kernel_harness as kh
from accrt.from_torch import convert, UnsupportedOperations

torch = pytest.importorskip("torch", reason="torch is not installed")
pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]

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


def test_a_size_that_does_not_follow_is_named():
    with pytest.raises(UnsupportedOperations, match=r"input 'x'.*dimension 0 is 2\*\w+ \+ 1: no input has a dimension of which \w+ follows"):
        convert(OfOne(lambda x: x * 2), tensors((9,)), dynamic_shapes=({0: 2 * n + 1},))


def test_the_name_of_a_dim_stays():
    _, module, _ = session_of(lambda x, y: x[1:] + y, (5, 4), ({0: n + 1}, {0: n}), None)
    assert list(module.symbols) == ["n"] and [str(i.value.shape[0]) for i in module.functions["forward"].inputs] == ["(n + 1)", "n"]
