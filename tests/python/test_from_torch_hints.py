"""What accrt.from_torch adds where torch.export refuses a model or its sizes."""

from __future__ import annotations

import pytest

import accrt
from accrt.from_torch import convert, UnsupportedOperations

torch = pytest.importorskip("torch", reason="torch is not installed")
pytestmark = [pytest.mark.torch, pytest.mark.quick_kernels, pytest.mark.filterwarnings("ignore")]

from torch.export import Dim  # noqa: E402  - which needs torch

rnn = torch.nn.utils.rnn


class Layers(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.LSTM(4, 6, batch_first=True)

    def forward(self, x, lengths=None):
        if lengths is None:
            return self.layers(x)[0]
        return rnn.pad_packed_sequence(self.layers(rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False))[0], batch_first=True)[0]


class Halves(torch.nn.Module):
    def forward(self, x):
        return torch.nn.functional.interpolate(torch.nn.functional.max_pool2d(x, 2), scale_factor=2) + x


class Even(torch.nn.Module):
    def forward(self, x):
        return x + torch.linspace(-1, 1, x.shape[1])


class EvenByArange(torch.nn.Module):
    def forward(self, x):
        n = x.shape[1]
        return x + (torch.arange(n) * (2 / max(n - 1, 1)) - 1)


@pytest.mark.parametrize("model, shape, dim, said", [
    (Even, (2, 5), 1, r"(?s)Constraints violated.*torch.linspace does it too: write torch.arange\(n\) \* step"),
    (Layers, (2, 5, 4), 1, r"(?s)Constraints violated.*An LSTM, GRU or RNN layer .* leave it fixed"),
    (Halves, (1, 1, 8, 8), 2, r"(?s)Constraints violated.*Dim.AUTO in the place of the Dim"),
])  # fmt: skip
def test_sizes_that_torch_refuses(model, shape, dim, said):
    with pytest.raises(Exception, match=said):
        convert(model().eval(), (torch.zeros(shape),), dynamic_shapes=({dim: Dim("n", max=64)},))


def test_what_stands_in_the_place_of_linspace(tmp_path):
    accrt.from_torch(EvenByArange().eval(), (torch.zeros(2, 5),), tmp_path / "m.accx", dynamic_shapes=({1: Dim("n", max=64)},))
    for n in (1, 2, 9):
        made = accrt.load(tmp_path / "m.accx").forward(torch.ones(2, n))
        torch.testing.assert_close(torch.from_dlpack(made), torch.linspace(-1, 1, n).expand(2, n) + 1)


def mixed(x):
    """Tensors of integers and of floats, and such without dimensions, beside a number."""
    number, whole = x.shape[0] / 3, torch.arange(x.shape[0])
    return (x.mean() * number, x.half().max() + number, x.double().sum() / number, whole.sum() * number, number - x.mean(), torch.where(whole > 1, whole, number),
            whole.clamp(max=number), whole.clamp(number, number + 1), number**whole, whole * number, x * number, x.mean() > number)  # fmt: skip


class Mixed(torch.nn.Module):
    def forward(self, x):
        return mixed(x)


def test_numbers_of_sizes_do_not_decide_the_type(tmp_path):
    accrt.from_torch(Mixed(), (torch.rand(5),), tmp_path / "m.accx", dynamic_shapes=({0: Dim("n", max=64)},))
    for n in (5, 9):
        x = torch.rand(n)
        for made, wanted in zip(accrt.load(tmp_path / "m.accx").forward(x), mixed(x)):
            torch.testing.assert_close(torch.from_dlpack(made), wanted)


def test_what_the_hint_says_helps():
    module = convert(Halves().eval(), (torch.zeros(1, 1, 8, 8),), dynamic_shapes=({2: Dim.AUTO},))
    assert [(s.minimum, s.divisor) for s in module.symbols.values()] == [(2, 2)]


def test_packed_sequences_are_refused_by_their_line():
    with pytest.raises(UnsupportedOperations, match=r"packed sequences x1: their sizes are the content of a tensor: give the layer the padded .*test_from_torch_hints"):
        convert(Layers().eval(), (torch.zeros(2, 5, 4), torch.tensor([5, 3])))
