"""accrt.from_torch of a size that varies and is 1 at a call: where the model does something else
then than torch's export of it does, the call is refused; elsewhere its results are the model's."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import accrt
import rotation
from accrt import _torch_ones
from accrt.from_torch import convert, Method

torch = pytest.importorskip("torch", reason="torch is not installed")
pytestmark = [pytest.mark.torch, pytest.mark.quick_kernels]

from test_from_torch import Of, session_of  # noqa: E402  - which needs torch
from torch.export import Dim  # noqa: E402

F = torch.nn.functional
n, m = Dim("n", max=64), Dim("m", max=64)


def looped(x):
    made = x
    while made.shape[0] > 1 and made.dim() == 2:
        made = made.sum(0)
    return made * 2


def without_mask(x):
    """As transformers do: one row needs no mask."""
    scores = x @ x.T
    if x.shape[0] > 1:
        scores = scores.masked_fill(torch.ones(x.shape[0], x.shape[0]).triu(1) > 0, -1e9)
    return scores.softmax(-1) @ x


#: Of [n, 4]: what is calculated, and whether it is something else for n of 1.
ROWS = {
    "a branch": (lambda x: x * 2 if x.shape[0] == 1 else x, True),
    "a branch to the same": (lambda x: x * 2 if x.shape[0] == 1 else x + x, False),
    "a branch that only rounds apart": (lambda x: x.mean(0) if x.shape[0] > 1 else x[0], False),
    "a number as a condition": (lambda x: x * 3 if x.shape[0] - 1 else x * 2, True),
    "one of several": (lambda x: x if x.shape[0] in (1,) else x * 2, True),
    "the number of elements": (lambda x: x if x.numel() < 5 else x * 2, True),
    "the number of elements, to the same": (lambda x: x * 2 if x.numel() < 5 else x + x, False),
    "twice as many": (lambda x: x if torch.cat([x, x]).shape[0] == 2 else x * 2, True),
    "a condition of others": (lambda x: x * 2 if x.shape[0] + 7 < 5 else x, False),
    "the greater": (lambda x: x * max(x.shape[0], 2), False),
    "squeeze": (lambda x: x.squeeze(0) + 1, True),
    "squeeze, then a shape": (lambda x: x.squeeze(0).reshape(-1, 4) + 1, False),
    "squeeze of all": (lambda x: x.unsqueeze(1).squeeze(), True),
    "squeeze of two": (lambda x: x.unsqueeze(1).squeeze((0, 1)), True),
    "squeeze of all, then a sum": (lambda x: x.unsqueeze(1).squeeze().sum(), False),
    "squeeze to a copy": (lambda x: torch.squeeze_copy(x, 0) * 2, True),
    "squeeze to a copy, of all": (lambda x: torch.squeeze_copy(x.unsqueeze(1)), True),
    "squeeze of another": (lambda x: x.unsqueeze(1).squeeze(1) * 2, False),
    "a loop": (looped, True),
    "a mask": (without_mask, False),
    "torch refuses it": (lambda x: F.group_norm(x, 4), True),
    "ordinary": (lambda x: torch.cat([x.softmax(0), x.cumsum(0), x.expand(2, *x.shape).sum(0)], 1), False),
}  # fmt: skip


def rows(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(rotation.seed() & 0x7FFFFFFF))


@pytest.mark.rotating(8)
@pytest.mark.parametrize("name", ROWS)
def test_one_row(name, instance):
    function, is_other = ROWS[name]
    model = Of(function)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        session, _ = session_of(model, (rows(5, 4),), instance, dynamic_shapes=(({0: n},),))
    assert any("because the model does something else for 1" in str(one.message) for one in told) == is_other
    for count in (3, 17) if is_other else (3, 17, 1):
        x = rows(count, 4)
        made, wanted = np.asarray(session.forward(x.numpy())), model(x)
        assert made.shape == tuple(wanted.shape)
        np.testing.assert_allclose(made, wanted.numpy(), rtol=1e-5, atol=1e-5)
    if is_other:
        with pytest.raises((accrt.Error, ValueError), match=r"shape\[0\] > 1, because the model does something else for 1 in"):
            session.forward(rows(1, 4).numpy())


#: Of [n, m]: what is calculated, and the sizes for which it is something else.
BOTH = {
    "one element": (lambda x: x * 2 if x.numel() == 1 else x, {(1, 1)}),
    "each alone": (lambda x: x.squeeze(0) if x.shape[0] == 1 and x.shape[1] > 1 else x, {(1, 5), (1, 1)}),
    "both": (lambda x: (x * 2 if x.shape[0] == 1 else x + x) * (3 if x.shape[1] == 1 else 1), {(5, 1), (1, 1)}),
}  # fmt: skip


@pytest.mark.parametrize("name", BOTH)
@pytest.mark.filterwarnings("ignore")
def test_two_sizes_of_one(name, instance):
    function, refused = BOTH[name]
    session, _ = session_of(Of(function), (rows(5, 4),), instance, dynamic_shapes=(({0: n, 1: m},),))
    for sizes in [(1, 1), (1, 5), (5, 1), (2, 2)]:
        x = rows(*sizes)
        if sizes in refused:
            with pytest.raises((accrt.Error, ValueError), match="because the model does something else for 1 in"):
                session.forward(x.numpy())
        else:
            np.testing.assert_allclose(np.asarray(session.forward(x.numpy())), function(x).numpy(), rtol=1e-5, atol=1e-5)


class Counting(torch.nn.Module):
    """Writes a buffer and a tensor of its own, and asks for one row."""

    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(4))
        self.calls = [torch.zeros(1)]

    def forward(self, x):
        self.seen += x.sum(0) if x.shape[0] > 1 else x[0]
        self.calls[0] += 1
        return self.seen * self.calls[0]


class Decaying(torch.nn.Module):
    """Writes a parameter."""

    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.full((4,), 8.0))
        self.other = torch.nn.Parameter(torch.ones(4))

    @torch.no_grad()
    def forward(self, x):
        self.scale.mul_(0.5)
        return as_one(x) * self.scale * self.other


def as_one(x):
    """What is the same for one row, which it asks for."""
    return x.sum(0) if x.shape[0] > 1 else x[0]


class Joined(torch.nn.Module):
    """As a cache of keys: it has what all calls gave."""

    kv = None

    def forward(self, x):
        self.kv = x if self.kv is None else torch.cat([self.kv, x])
        return self.kv.sum(0) + as_one(x)


class Listed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.seen, self.by_name, self.names, self.held = [], {"all": []}, set(), Held()

    def forward(self, x):
        self.seen.append(x)
        self.by_name["all"].append(x)
        self.names.add(len(self.seen))
        self.held.rows = self.held.rows + [x]
        return as_one(x) * len(self.seen) + len(self.by_name["all"]) + len(self.names) + len(self.held.rows)


class Held:
    """An object of a module that is no module."""

    def __init__(self):
        self.rows = []


class Numbered(torch.nn.Module):
    """In a module in it, a number and a buffer that is another tensor after each call."""

    def __init__(self):
        super().__init__()
        self.within = torch.nn.Module()
        self.within.n = 0
        self.within.register_buffer("last", torch.zeros(4))

    def forward(self, x):
        self.within.n += 1
        self.within.last = self.within.last + as_one(x)
        return self.within.last * self.within.n


@pytest.mark.parametrize("kind", [Counting, Decaying, Joined, Listed, Numbered])
@pytest.mark.filterwarnings("ignore:The tensor attribute")
def test_a_model_is_as_before_where_one_row_was_tried(kind, instance):
    model, fresh, generator = kind(), kind(), torch.get_rng_state()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        session, _ = session_of(model, (rows(5, 4),), instance, dynamic_shapes=({0: n},))
    assert not [one for one in told if "because" in str(one.message)]
    assert torch.equal(torch.get_rng_state(), generator)
    for at, count in enumerate((1, 3)):
        x = rows(count, 4)
        wanted = fresh(x)
        assert torch.equal(model(x), wanted)
        if kind in (Counting, Decaying) or not at:  # the others have a state that no bundle keeps
            np.testing.assert_allclose(np.asarray(session.forward(x.numpy())), wanted.numpy(), rtol=1e-5, atol=1e-5)


def test_a_random_model_does_not_move_torchs_state():
    class Shaken(torch.nn.Module):
        def forward(self, x):
            return as_one(x) + torch.rand(4) * 0 if x.shape[0] == 1 else as_one(x)

    before = torch.get_rng_state()
    convert(Shaken(), (rows(5, 4),), dynamic_shapes=({0: n},))
    assert torch.equal(torch.get_rng_state(), before)


class Looked(torch.nn.Module):
    """Takes floats as places of a table, which other floats have not."""

    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(3, 4).requires_grad_(False)

    def forward(self, x):
        found = self.table(x.long())
        return found * self.factor if x.shape[0] == 1 else found + found


@pytest.mark.parametrize("factor, is_other", [(2, False), (3, True)])
@pytest.mark.parametrize("example", [[0.0, 1.0, 2.0], [2.0, 1.0, 0.0], [1.0, 2.0, 2.0]])
def test_other_floats_need_not_be_a_models(factor, is_other, example, instance):
    model = Looked()
    model.factor = factor
    with torch.no_grad():
        model.table.weight[int(example[0])] = 0  # of the example's beginning both are the same
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        session_of(model, (torch.tensor(example),), instance, dynamic_shapes=({0: n},))
    assert any("does something else for 1" in str(one.message) for one in told) == is_other


def test_what_was_not_tried_is_told_as_that(monkeypatch):
    monkeypatch.setattr(_torch_ones, "_SETS", 1)
    model = Of(lambda x: (x * 2 if x.shape[0] == 1 else x + x) * (1 if x.shape[1] == 1 else 1.0))
    with pytest.warns(UserWarning, match=r"shape\[\d\] > 1, because 1 was not tried of so many sizes that are asked for in .*: other sizes"):
        convert(model, (rows(5, 4),), dynamic_shapes=(({0: n, 1: m},),))


def test_a_least_size_of_three_needs_no_condition():
    module = convert(Of(ROWS["a branch"][0]), (rows(5, 4),), dynamic_shapes=(({0: Dim("n", min=3, max=64)},),))
    assert not module.functions["forward"].required


@pytest.mark.parametrize("name, count", [("squeeze", 1), ("ordinary", 0), ("squeeze of another", 0)])
@pytest.mark.parametrize("how", ["program", "file"])
def test_squeeze_of_a_program_that_was_exported_before(name, count, how, tmp_path):
    program = torch.export.export(Of(ROWS[name][0]), (rows(5, 4),), dynamic_shapes=(({0: n},),))
    torch.export.save(program, tmp_path / "it.pt2")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = convert(program if how == "program" else tmp_path / "it.pt2")
    assert len(module.functions["forward"].required) == count


def test_each_function_has_its_own_condition():
    model = Of(ROWS["a branch"][0])
    with pytest.warns(UserWarning, match=r"shape\[0\] > 1, because .*: other sizes are refused at the call"):
        module = convert({"many": Method(model, (rows(5, 4),), dynamic_shapes=(({0: n},),)), "one": Method(model, (rows(1, 4),))})
    assert [len(module.functions[name].required) for name in ("many", "one")] == [1, 0]


@pytest.mark.parametrize("how", ["module", "program", "file"])
def test_what_a_program_does_not_say_is_told(how, tmp_path):
    """Of a file, conditions that torch notes for itself and those of the model are the same."""
    model, shapes = Of(lambda x, y: torch.cat([x, y]) if x.shape[0] != y.shape[0] else x), (({0: Dim.DYNAMIC}, {0: Dim.DYNAMIC}),)
    program = torch.export.export(model, (rows(5), rows(4)), dynamic_shapes=shapes)
    torch.export.save(program, tmp_path / "it.pt2")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        convert(model, (rows(5), rows(4)), dynamic_shapes=shapes) if how == "module" else convert(program if how == "program" else tmp_path / "it.pt2")
    said = [str(one.message) for one in told if "does not say" in str(one.message)]
    ones, unequal = "where args_0.shape[0] is 1 or args_1.shape[0] is 1", " or args_0.shape[0] == args_1.shape[0]"
    assert len(said) == (how != "module")
    assert [part in text for text in said for part in (ones, unequal)] == {"module": [], "program": [True, False], "file": [True, True]}[how]
