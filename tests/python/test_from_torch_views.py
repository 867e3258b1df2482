"""accrt.from_torch: what is written through a view is written to the whole, and to nothing else.
Random chains of views and writes beside eager torch, each in an exported program and in one that
was saved and loaded, and by name what cannot be written."""

from __future__ import annotations

import io
import random

import numpy as np
import pytest

import accrt
import kernel_harness as kh
import rotation
from accrt.from_torch import convert, UnsupportedOperations

torch = pytest.importorskip("torch", reason="torch is not installed")
pytestmark = [pytest.mark.torch, pytest.mark.quick_kernels]

SEED = rotation.SEED


def axis(r, x):
    return r.randrange(-x.dim(), x.dim())


def shaped(r, x):
    """Another shape of as many elements."""
    left, shape = x.numel(), []
    while left > 1 and len(shape) < 4:
        size = r.choice([d for d in range(1, left + 1) if left % d == 0])
        shape.append(size)
        left //= size
    return [*shape, left] if left > 1 or not shape else shape


def bounds(r, size):
    start = r.randrange(size)
    return start, r.randrange(start + 1, size + 1)


def step_sliced(r, x):
    d = axis(r, x)
    start, end = bounds(r, x.shape[d])
    step = r.randrange(1, 4)
    return lambda x: torch.movedim(torch.movedim(x, d, 0)[start:end:step], 0, d)


def part_of(r, x, split):
    number = r.randrange(len(split(x)))
    return lambda x: split(x)[number]


def windows(r, x):
    d = axis(r, x)
    size = r.randrange(1, x.shape[d] + 1)
    # side by side: torch says nothing of the order where they overlap
    return lambda x: x.unfold(d, size, size)


def pair(r, x):
    return r.sample(range(x.dim()), 2)


#: Views by name: (rank from, function of (random, tensor) giving the view). Some are copies, as the
#: strides are.
VIEWS = {
    "view": (0, lambda r, x: (lambda shape: lambda x: x.view(shape) if x.is_contiguous() else x.reshape(shape))(shaped(r, x))),
    "reshape": (0, lambda r, x: (lambda shape: lambda x: x.reshape(shape))(shaped(r, x))),
    "flatten": (0, lambda r, x: lambda x: x.flatten()), "ravel": (0, lambda r, x: lambda x: x.ravel()),
    "flatten_some": (2, lambda r, x: (lambda a: lambda x: x.flatten(a, a + 1))(r.randrange(x.dim() - 1))),
    "unflatten": (1, lambda r, x: (lambda d: lambda x: x.unflatten(d, (1, -1)))(axis(r, x))),
    "contiguous": (0, lambda r, x: lambda x: x.contiguous()), "to": (0, lambda r, x: lambda x: x.to(torch.float32)),
    "dropout": (0, lambda r, x: lambda x: torch.nn.functional.dropout(x, 0.5, False)), "type_as": (0, lambda r, x: lambda x: x.type_as(x)),
    "alias": (0, lambda r, x: lambda x: x.detach()), "positive": (0, lambda r, x: lambda x: +x), "clone": (0, lambda r, x: lambda x: x.clone()),
    "permute": (1, lambda r, x: (lambda dims: lambda x: x.permute(dims))(r.sample(range(x.dim()), x.dim()))),
    "transpose": (2, lambda r, x: (lambda p: lambda x: x.transpose(*p))(pair(r, x))), "swapdims": (2, lambda r, x: (lambda p: lambda x: x.swapdims(*p))(pair(r, x))),
    "T": (2, lambda r, x: lambda x: x.permute(*reversed(range(x.dim()))) if x.dim() > 2 else x.T), "mT": (2, lambda r, x: lambda x: x.mT),
    "adjoint": (2, lambda r, x: lambda x: x.adjoint()), "t": (0, lambda r, x: lambda x: x.t() if x.dim() <= 2 else x.mT),
    "movedim": (2, lambda r, x: (lambda p: lambda x: x.movedim(*p))(pair(r, x))), "moveaxis": (2, lambda r, x: (lambda p: lambda x: x.moveaxis(p, p[::-1]))(pair(r, x))),
    "unsqueeze": (0, lambda r, x: (lambda d: lambda x: x.unsqueeze(d))(r.randrange(-x.dim() - 1, x.dim() + 1))),
    "squeeze": (0, lambda r, x: lambda x: x.squeeze()), "squeeze_dim": (1, lambda r, x: (lambda d: lambda x: x.squeeze(d))(axis(r, x))),
    "slice": (1, lambda r, x: (lambda d, b: lambda x: x.narrow(d, b[0], b[1] - b[0]))(*(lambda d: (d, bounds(r, x.shape[d])))(axis(r, x)))),
    "step_slice": (1, step_sliced), "last": (1, lambda r, x: lambda x: x[..., -1:]), "every_second": (1, lambda r, x: lambda x: x[..., ::2]),
    "select": (1, lambda r, x: (lambda d, i: lambda x: x.select(d, i))(*(lambda d: (d, r.randrange(-x.shape[d], x.shape[d])))(axis(r, x)))),
    "narrow_from_end": (1, lambda r, x: (lambda d: lambda x: x.narrow(d, -1, 1))(axis(r, x))),
    "split": (1, lambda r, x: (lambda d, n: part_of(r, x, lambda x: x.split(n, d)))(axis(r, x), r.randrange(1, 4))),
    "split_sizes": (1, lambda r, x: (lambda d, n: part_of(r, x, lambda x: x.split([n, x.shape[d] - n], d)) if n < x.shape[d] else lambda x: x)(axis(r, x), 1)),
    "chunk": (1, lambda r, x: (lambda d, n: part_of(r, x, lambda x: x.chunk(n, d)))(axis(r, x), r.randrange(1, 4))),
    "unbind": (1, lambda r, x: (lambda d: part_of(r, x, lambda x: x.unbind(d)))(axis(r, x))),
    "diagonal": (2, lambda r, x: (lambda p: lambda x: x.diagonal(0, *p))(pair(r, x))), "unfold": (1, windows),
    "view_as": (0, lambda r, x: (lambda shape: lambda x: x.reshape_as(torch.empty(shape)))(shaped(r, x))),
    "expand": (0, lambda r, x: lambda x: x.expand(1, *x.shape)), "expand_as": (0, lambda r, x: lambda x: x.expand_as(torch.empty(1, *x.shape))),
    "broadcast_to": (0, lambda r, x: lambda x: torch.broadcast_to(x, (1, *x.shape))),
}  # fmt: skip
WRITES = {
    "add": lambda r, x: (lambda n: lambda x: x.add_(n))(r.randrange(1, 9)), "mul": lambda r, x: lambda x: x.mul_(2), "zero": lambda r, x: lambda x: x.zero_(),
    "fill": lambda r, x: (lambda n: lambda x: x.fill_(n))(r.randrange(99)), "negate": lambda r, x: lambda x: x.neg_(),
    "copy": lambda r, x: lambda x: x.copy_(torch.arange(x.numel(), dtype=torch.float64).view(x.shape)),
    "masked_fill": lambda r, x: lambda x: x.masked_fill_(x > 3, 1.0), "set": lambda r, x: lambda x: x.__setitem__(..., 5.0),
    "own": lambda r, x: lambda x: x.add_(x.flip(0) if x.dim() else x), "without_grad": lambda r, x: without_grad,
}  # fmt: skip


def without_grad(x):
    with torch.no_grad():
        x.sub_(3)


class Chains(torch.nn.Module):
    """A random program: each step is (variable, function, whether what it gives is a variable)."""

    def __init__(self, r, root, count):
        super().__init__()
        self.root, self.steps, self.names = root, [], []
        self.register_buffer("kept", torch.zeros(2, 3, 4))
        variables = [torch.zeros(2, 3, 4)]
        while len(self.steps) < count:
            at = r.randrange(len(variables))
            x = variables[at]
            name = r.choice(list(VIEWS) if r.random() < 0.6 else list(WRITES))
            if name in VIEWS and (x.dim() < VIEWS[name][0] or not x.numel()):
                continue
            function = VIEWS[name][1](r, x) if name in VIEWS else WRITES[name](r, x)
            result = function(x)
            self.steps.append((at, function, name in VIEWS))
            self.names.append(f"{at}.{name}")
            if name in VIEWS:
                variables.append(result)

    def forward(self, x):
        variables = [x if self.root == "input" else self.kept if self.root == "buffer" else x.clone()]
        if self.root == "buffer":
            self.kept.add_(x)
        for at, function, is_view in self.steps:
            result = function(variables[at])
            if is_view:
                variables.append(result)
        return [v.clone() for v in variables]


def loaded(program):
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    return torch.export.load(file)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("root", ["clone", "input", "buffer"])
@pytest.mark.parametrize("number", range(12))
def test_random_chains(number, root):
    from accrt.compiler import Interpreter

    seed = SEED + number
    r = random.Random(f"{seed} {root}")
    model = Chains(r, root, 14)
    print("seed", seed, root, model.names)
    x = torch.randint(-9, 9, (2, 3, 4), generator=torch.Generator().manual_seed(seed & 0x7FFFFFFF)).float()
    with torch.no_grad() if number % 2 else torch.enable_grad():
        # with gradients, `no_grad` in the model is a graph in the graph
        program = torch.export.export(model.requires_grad_(False), (x.clone(),), strict=False)
    for given in (program, loaded(program)):
        machine = Interpreter(convert(given))
        mine, theirs = x.numpy().copy(), x.clone()
        model.kept.zero_()
        for _call in range(2):  # a state is there at the next call
            ours = machine.run("forward", mine)
            wanted = model(theirs)
            for name, a, b in zip(["root", *(n for n, s in zip(model.names, model.steps) if s[2])], ours, wanted):
                np.testing.assert_array_equal(a, b.numpy(), err_msg=f"seed {seed}: {name}")
            mine = ours[0] if root == "input" else mine  # the interpreter leaves the caller's array


def before_and_after(m, x):
    before = x.clone()
    x.mul_(2)
    after = x.clone()
    x.T.add_(1)
    return before, x, after, before.T, x.T


def test_a_copy_of_an_input_that_is_written_later(instance):
    x = torch.arange(1.0, 13).view(3, 4)
    session, _ = session_of(Of(before_and_after), (x.clone(),), instance)
    for _call in range(2):
        mine, theirs = x.numpy().copy(), x.clone()
        for ours, wanted in zip(session.forward(mine), before_and_after(None, theirs)):
            np.testing.assert_array_equal(np.asarray(ours), wanted.numpy())
        np.testing.assert_array_equal(mine, theirs.numpy())


class Of(torch.nn.Module):
    def __init__(self, function, **buffers):
        super().__init__()
        self.function = function
        for name, tensor in buffers.items():
            self.register_buffer(name, tensor)

    def forward(self, *args):
        return self.function(self, *args)


def session_of(model, args, instance):
    from accrt.compiler import compile

    module = convert(model, args)
    return accrt.Program(accrt.Bundle(compile(module, targets=[kh.host_targets()[-1]]), instance)).session(), module


def halves(m, x):
    a, _b = x.chunk(2, 1)
    a.zero_()
    x[..., ::3] = 7
    return x.diagonal().add_(1)


def test_inputs_written_through_parts_are_read_write(instance):
    session, module = session_of(Of(halves), (torch.ones(3, 8),), instance)
    assert [i.access for i in module.functions["forward"].inputs] == ["read_write"]
    x = torch.arange(24.0).view(3, 8)
    mine = x.numpy().copy()
    np.testing.assert_array_equal(np.asarray(session.forward(mine)), halves(None, x).numpy())
    np.testing.assert_array_equal(mine, x.numpy())


def test_a_cache_of_keys_and_values_together_is_a_state(instance):
    def forward(m, x, place):
        keys, values = m.kv.unbind(0)
        keys.index_copy_(1, place, x)
        values.index_copy_(1, place, x * 2)
        return m.kv * 1

    model = Of(forward, kv=torch.zeros(2, 3, 4, 5))
    session, module = session_of(model, (torch.ones(3, 1, 5), torch.tensor([2])), instance)
    assert set(module.states) == {"kv"}
    for place in (2, 0, 3):
        x = torch.randn(3, 1, 5) + place
        np.testing.assert_array_equal(np.asarray(session.forward(x.numpy(), np.array([place]))), model(x, torch.tensor([place])).numpy())


def test_what_a_write_gives_has_the_type_of_what_is_written(instance):
    session, _module = session_of(Of(lambda m, x, y: x.add_(y)), (torch.ones(3, dtype=torch.float16), torch.ones(3)), instance)
    x = torch.arange(3.0).half()
    mine = x.numpy().copy()
    session.forward(mine, np.full(3, 2.5, np.float32))
    np.testing.assert_array_equal(mine, (x + 2.5).numpy())


def twice(m, x):
    y = x.clone()
    y[:1].expand(4, 3).add_(1)
    return y


def turned(m, x):
    y = x.clone()
    flat = y.view(-1)
    y.t_()
    y[0] += 1
    return y, flat, y * 2


def test_a_shape_that_changes_in_place_is_a_view(instance):
    x = torch.arange(12.0).view(3, 4)
    session, *_rest = session_of(Of(turned), (x,), instance)
    for ours, wanted in zip(session.forward(x.numpy()), turned(None, x), strict=True):
        np.testing.assert_array_equal(np.asarray(ours), wanted.numpy())


def test_what_cannot_be_written_is_named():
    with pytest.raises(UnsupportedOperations, match="expand|add_"):
        convert(Of(twice), (torch.ones(3, 3),))


def test_written_buffers_that_share_memory_are_named():
    shared = torch.zeros(4)
    model = Of(lambda m, x: (m.one.add_(x), m.other * 1), one=shared, other=shared[:3])
    with pytest.raises(UnsupportedOperations, match="'one'.*shares memory with 'other'"):
        convert(model, (torch.ones(4),))


def written(m, x):
    y = x.clone()
    a, _b = y.chunk(2, 1)
    a.zero_()
    y[:, ::3] = 7
    y.t()[1].add_(2)
    y.unbind(1)[3].mul_(3)
    y.movedim(0, 1)[2:4] = 1
    y[:2].add_(1)
    y.diagonal().add_(5)
    return y, y.unfold(1, 2, 2), y.mT, y.expand(2, -1, -1)


def test_views_of_any_size_are_written(instance):
    from accrt.compiler import compile

    rows = torch.export.Dim("rows", min=2, max=64)
    module = convert(Of(written), (torch.ones(3, 8),), dynamic_shapes=(None, ({0: rows},))[1:])
    session = accrt.Program(accrt.Bundle(compile(module, targets=[kh.host_targets()[-1]]), instance)).session()
    for count in (2, 3, 9):
        x = torch.arange(count * 8.0).view(count, 8)
        for ours, wanted in zip(session.forward(x.numpy()), written(None, x)):
            np.testing.assert_array_equal(np.asarray(ours), wanted.numpy())


def behind_dropout(m, x):
    y = torch.nn.functional.dropout(x.clone().mT, 0.5, False)[..., 1:]
    y.reshape(y.shape[0], -1).add_(1)  # a copy, as y is
    y.view(y.shape[0], 4, -1).mul_(2)
    return y


def test_views_behind_dropout_lie_as_in_torch(instance):
    from accrt.compiler import Interpreter

    rows = torch.export.Dim("rows", min=2, max=64)
    module = convert(Of(behind_dropout), (torch.ones(3, 5, 4),), dynamic_shapes=(({0: rows},),))
    for count in (2, 3, 9):
        x = torch.arange(count * 20.0).view(count, 5, 4)
        np.testing.assert_array_equal(Interpreter(module).run("forward", x.numpy())[0], behind_dropout(None, x).numpy())


def types(m, x):
    mask, positive = torch.zeros(4, 4, dtype=torch.bool), x > 0
    positive.diagonal().fill_(True)
    mask.diagonal(1).fill_(True)
    mask[:, ::2] = positive[:, ::2]
    half, whole, small = x.half(), x.long(), x.to(torch.uint8)
    half.diagonal().add_(1)
    whole[:, ::3] += 2
    whole.diagonal().mul_(3)
    small[::3] = 1
    return positive, mask, half, whole, small


def test_views_of_all_types_are_written(instance):
    session, _module = session_of(Of(types), (torch.ones(4, 4),), instance)
    x = torch.arange(16.0).view(4, 4) / 3
    for ours, wanted in zip(session.forward(x.numpy()), types(None, x)):
        np.testing.assert_array_equal(np.asarray(ours), wanted.numpy())
