"""accrt.from_torch: operations beside torch's float64 results, writing in place, written buffers,
dynamic sizes, masks, and what is said of what cannot be done. Runs where torch is installed: `./dev
torch-test`. Whole models: test_from_torch_models.py."""

from __future__ import annotations

import collections
import math
import os
import pathlib
import subprocess
import sys
import warnings

import numpy as np
import pytest

import accrt
import kernel_harness as kh
import rotation
from accrt.from_torch import convert, Method, UnsupportedOperations

torch = pytest.importorskip("torch", reason="torch is not installed")
pytestmark = [pytest.mark.torch, pytest.mark.quick_kernels]

F = torch.nn.functional
SEED = rotation.SEED
TARGETS = [kh.host_targets()[-1]]  # one is enough


class Of(torch.nn.Module):
    """A module of a function."""

    def __init__(self, function, **tensors):
        super().__init__()
        self.function = function
        for name, tensor in tensors.items():
            self.register_buffer(name, tensor)

    def forward(self, *args):
        return self.function(self, *args) if self._buffers else self.function(*args)


def session_of(model, args, instance, **options):
    from accrt.compiler import compile

    module = convert(model, args, **options)
    return accrt.Program(accrt.Bundle(compile(module, targets=TARGETS), instance)).session(), module


def called(session, args, name="forward"):
    given = [a.numpy() if isinstance(a, torch.Tensor) else a for a in args]
    out = session[name](*given)
    return [np.asarray(o) for o in (out if isinstance(out, (tuple, list)) else [out])]


def close(ours, reference):
    """Each element, by the size of the reference and of the whole."""
    assert ours.shape == tuple(reference.shape), (ours.shape, tuple(reference.shape))
    if ours.dtype == bool or not reference.is_floating_point():
        assert (ours == reference.numpy()).all(), (ours, reference)
        return
    wanted = reference.double().numpy()
    rms = math.sqrt(float((wanted[np.isfinite(wanted)] ** 2).mean())) if np.isfinite(wanted).any() else 1.0
    same = (ours == wanted) | (np.isnan(ours) & np.isnan(wanted)) | (np.abs(ours - wanted) <= 1e-5 * (np.abs(wanted) + rms))
    assert same.all(), (ours[~same], wanted[~same])


def doubled(args):
    return [a.double() if isinstance(a, torch.Tensor) and a.is_floating_point() else a for a in args]


def leaves(out):
    return [leaf for leaf in torch.utils._pytree.tree_leaves(out) if isinstance(leaf, torch.Tensor)]


def check(model, args, instance, others=(), **options):
    """The bundle's results beside the model's in float64, for the example and for other
    arguments."""
    session, module = session_of(model, args, instance, **options)
    import copy

    reference = copy.deepcopy(model).double()
    for given in [args, *others]:
        ours = called(session, given)
        with torch.no_grad():
            theirs = leaves(reference(*doubled([a.clone() if isinstance(a, torch.Tensor) else a for a in given])))
        assert len(ours) == len(theirs)
        for a, b in zip(ours, theirs):
            close(a, b)
    return module


def some(*shape):
    """Numbers whose sum does not nearly cancel: results are compared by their own size."""
    generator = torch.Generator().manual_seed(SEED & 0x7FFFFFFF)
    while True:
        made = torch.randn(*shape, generator=generator)
        if abs(made.sum()) >= 0.3 * made.numel() ** 0.5:
            return made


def whole(*shape, most=9):
    return torch.randint(0, most, shape, generator=torch.Generator().manual_seed(SEED & 0x7FFFFFFF))


X, Y, IDS = (3, 4), (4,), (2, 5)
def put(x, places, values):
    y = x.clone()
    y[places] = values
    return y


OPERATIONS = {
    "add": (lambda x, y: x + y, X, Y), "alpha": (lambda x, y: torch.add(x, y, alpha=3), X, Y), "rsub": (lambda x: 2 - x, X),
    "div": (lambda x, y: x / (y.abs() + 1), X, Y), "floor": (lambda x: torch.div(x, 0.5, rounding_mode="floor"), X), "remainder": (lambda x, y: (x % 0.3, x.fmod(0.3), x // 0.25, torch.fmod(x, y)), X, Y), "pow": (lambda x: (x.abs() + 1) ** 1.5, X),
    "power": (lambda x: 2.0**x, X), "square": (lambda x: x.square() + torch.square(x), X), "round": (lambda x: torch.round(x * 2) + (x * 2).trunc(), X),
    "sign": (lambda x: torch.sign(x) + x.sgn(), X), "logs": (lambda x: torch.log1p(x.abs()) + torch.log2(x.abs() + 1) + torch.expm1(x), X),
    "softplus": (lambda x: F.softplus(x * 30) + F.softplus(x, beta=2, threshold=1), X), "elu": (lambda x: F.elu(x) + F.leaky_relu(x) + F.mish(x), X),
    "hard": (lambda x: F.hardswish(x) + F.relu6(x) + F.hardtanh(x) + F.hardsigmoid(x), X), "glu": (lambda x: F.glu(x), X),
    "logsigmoid": (lambda x: F.logsigmoid(x), X), "clamp": (lambda x: x.clamp(-0.5, 0.5) + x.clamp_min(0.1) + x.clamp_max(0.1), X),
    "limits": (lambda x: (x.clamp(x.flip(0) - 0.1, x.flip(1) + 0.1), x.clamp(max=x.flip(0)), torch.ops.aten._unsafe_view(x, [x.numel()])), X),
    "gelu": (lambda x: F.gelu(x) + F.gelu(x, approximate="tanh"), X), "where": (lambda x: torch.where(x > 0, x, -2.0), X),
    "masked_fill": (lambda x: x.masked_fill(x > 0, float("-inf")), X), "bools": (lambda x: ((x > 0) & ~(x < 1)) | (x == 0) ^ (x != x), X),
    "isnan": (lambda x: (x / x.clamp_min(0)).isnan() | (1 / x.clamp_min(0)).isinf(), X),
    "sum": (lambda x: (x.sum(), x.sum(0), x.mean([0, 1], keepdim=True), x.amax(1), x.max(), x.min()), X),
    "max_dim": (lambda x: (x.max(1), x.min(0)), X), "arg": (lambda x: (x.argmax(1), x.argmin(), x.argmax()), X), "topk": (lambda x: x.topk(2), X),
    "topk_least": (lambda x: x.topk(2, largest=False), X), "any": (lambda x: ((x > 1).any(), (x > -1).all(1), (x > 1).any(0, keepdim=True)), X),
    "var": (lambda x: (x.var(1), x.std(0, unbiased=False), x.var(), x.var(unbiased=False), x.std(-1, keepdim=True), x.var((0, 1), False, True)), X), "norm": (lambda x: (torch.linalg.vector_norm(x, dim=1), F.normalize(x, dim=0)), X),
    "logsumexp": (lambda x: x.logsumexp(1), X), "softmax": (lambda x: (F.softmax(x, 0), F.softmax(x, -1), F.log_softmax(x, 1)), X),
    "fourier": (lambda x: (torch.fft.fftn(x).real, torch.fft.fftn(x, dim=0).imag, torch.fft.fftn(x[None], dim=(1, 2)).real), X),
    "cumsum": (lambda x: (x.cumsum(1), x.cumsum(0)), X), "cumsum_whole": (lambda i: ((i > 4).cumsum(1), i.cumsum(0)), "i"),
    "views": (lambda x: (x.reshape(2, 6), x.flatten(), x.t(), x.unsqueeze(1).transpose(0, 2), x.unflatten(1, (2, 2)), x[None].squeeze(0)), X),
    "slices": (lambda x: (x[1:], x[:, ::2], x[-1], x[..., -2:], x[0, 1:9], x.select(1, -1), x.narrow(0, 1, 2)), X),
    "splits": (lambda x: (*x.split(2, 1), *x.chunk(2, 1), *x.unbind(0), *x.split([1, 3], 1)), X),
    "joins": (lambda x: (torch.cat([x, x[:1]]), torch.stack([x, x + 1], 1), x.repeat(2, 3), x.repeat_interleave(2, 1), torch.cat([x, x > 0])), X),
    "roll": (lambda x: (x.roll(1, 0), x.roll((-1, 1), (0, 1)), x.flip(1), x.roll(2)), X), "movedim": (lambda x: x[None].movedim(0, 2), X),
    "expand": (lambda x: (x[:, None].expand(3, 2, 4), x[:1].expand(5, -1)), X), "diff": (lambda x: (x.diff(), x.diff(dim=0, prepend=x[:1])), X),
    "triangles": (lambda x: (x.tril(), x.triu(1), x.tril(-1)), X), "new": (lambda x: (torch.zeros_like(x) + x.new_ones(4), torch.full((2,), 3.0) + x[0, 0]), X),
    "arange": (lambda x: (torch.arange(4) + x, torch.arange(1, 9, 2, dtype=torch.float32) * x), X),
    "casts": (lambda x: (x.to(torch.int32), (x > 0).float(), x.double().float(), x.long().type_as(x)), X), "whole": (lambda i: (i // 2, i % 3, i * 2 - 1, -i, i.float() / 2), "i"),
    "matmul": (lambda x: (x @ x.t(), x @ x[0], x[0] @ x.t(), x[None] @ x.t()), X), "bmm": (lambda x: torch.bmm(x[None], x.t()[None]), X),
    "addmm": (lambda x: torch.addmm(x[:, :3], x, x.t(), beta=0.5, alpha=2), X), "einsum": (lambda x: (torch.einsum("ij,kj->ik", x, x), torch.einsum("bi,bj->bij", x, x)), X),
    "einsums": (lambda x: [torch.einsum(e, *[x] * (1 + e.count(","))) for e in ("ij->", "ij->ji", "...j->...", "ij,ij->ij", "bi,bj,bk->bij", "bi,bj,ck->ck", "ji,jk,...k->...i", "ab,cb")]
                + [torch.einsum(e, x @ x.t()) for e in ("ii->i", "ii", "ii->")], X),
    "baddbmm": (lambda x: torch.baddbmm(x[None, :, :3], x[None], x.t()[None]), X), "outer": (lambda x: torch.outer(x[0], x[:, 0]), X),
    "layer_norm": (lambda x: (F.layer_norm(x, (4,)), F.layer_norm(x, (3, 4))), X), "rms_norm": (lambda x: F.rms_norm(x, (4,), eps=1e-6), X),
    "group_norm": (lambda x: F.group_norm(x[None].expand(2, 3, 4).transpose(1, 2), 2), X), "instance_norm": (lambda x: F.instance_norm(x[None]), X),
    "pads": (lambda x: (F.pad(x, (1, 2)), F.pad(x, (1, 0, 0, 2), value=3.0), F.pad(x[None], (2, 1), "reflect"), F.pad(x[None], (2, 1), "replicate"), F.pad(x, (-1, 1))), X),
    "index": (lambda x: (x[torch.tensor([2, 0, -1])], x[torch.tensor([[0, 1]]), torch.tensor([[3], [-2]])], x[:, torch.tensor([1, 1])]), X),
    "gather": (lambda x: (x.gather(1, torch.tensor([[0, 3], [1, 1], [2, 0]])), x.index_select(0, torch.tensor([1, 1])), torch.take_along_dim(x, x.argmax(1, keepdim=True), 1)), X),
    "one_hot": (lambda i: F.one_hot(i, 9), "i"), "ids": (lambda i: F.embedding(i, torch.arange(18.0).view(9, 2)), "i"),
    "sort": (lambda x: (*x.sort(1), *x.sort(0, descending=True), x.argsort(1), *torch.sort(x.round(), stable=True)), X), "sort_whole": (lambda i: (*torch.sort(i, 1, descending=True), *torch.sort(i, dim=0, stable=True)), "i"),
    "bucketize": (lambda x: (torch.bucketize(x, torch.tensor([-1.0, 0.0, 1.0])), torch.searchsorted(torch.tensor([0.0, 1.0]), x, right=True)), X),
    "scatter": (lambda x: (x.scatter(1, torch.tensor([[3, 1], [0, 0], [2, 3]]), x * 2), x.scatter(0, torch.tensor([[1, 2, 0, 0]]), 7.0), x.scatter_add(1, torch.tensor([[3, 3], [0, 1], [2, 2]]), x)), X),
    "scatter_parts": (lambda x: (x.scatter(1, torch.tensor([[3, 1]]), x), x.scatter(0, torch.tensor([[2, 0], [1, 1]]), 5.0), x.scatter_add(0, torch.tensor([[2], [2]]), x)), X),
    "scatter of views": (lambda x: (x.select_scatter(x[0, :3], 1, -1), x.select_scatter(x[:1, 0].expand(4), 0, 2), x.slice_scatter(x[:, :2] * 2, 1, 0, 4, 2)), X),
    "index_put": (lambda x: (x.index_put((torch.tensor([2, 0, 2]),), x[:, :1] * 3), x.index_put((torch.tensor([2, 0, 2]), torch.tensor([-1, 1, 3])), x[0, :3], accumulate=True),
                             x.index_put((torch.tensor([[2, 0], [1, 2]]), torch.tensor([1, -2])), x[0, 0]), x.index_add(1, torch.tensor([3, 3]), x[:, :2], alpha=2),
                             x.index_copy(0, torch.tensor([2, 0]), x[:2]), torch.ops.aten.index_put(x[None], [None, torch.tensor([1]), torch.tensor([2, 0])], x[0, :2], True)), X),
    "masks": (lambda x: (put(x, x > 0, 0), put(x, x[:, 0] > 0, x[0]), put(x, (slice(None), x[0] > 0), 2.0), x.index_put((x > 0,), x[0, :1], accumulate=True),
                         x.masked_scatter(x > 0, x.t().flatten()), x.masked_scatter(x[0] > 0, torch.arange(12.0).view(3, 4).to(x.dtype))), X),
    "reduced": (lambda x: (x.scatter_reduce(1, torch.tensor([[3, 1], [0, 0], [2, 3]]), x, "sum"), x.scatter_reduce(0, torch.tensor([[1, 1, 0, 2]]), x, "sum", include_self=False),
                           x.prod(), x.prod(1), (x > 0).prod(0, keepdim=True), *torch.var_mean(x, 1), *torch.std_mean(x), x.kthvalue(2, 1)[0]), X),
    "reduced types": (lambda x: (*(x.scatter_reduce(1, torch.tensor([[3, 1, 3], [0, 0, 0]]), x, "mean", include_self=own) for own in (True, False)),
                                *(x[0, 0].scatter_reduce(0, torch.tensor(0), x[0, 1], how, include_self=own) for how in ("amin", "amax", "sum", "mean") for own in (True, False)),
                                *((x > 0).scatter_reduce(1, torch.tensor([[3, 1, 3], [0, 0, 0]]), x > 0.5, how) for how in ("amin", "amax", "sum", "prod")),
                                *((x.abs() * 40).to(kind).scatter_reduce(1, torch.tensor([[3, 1, 3], [0, 0, 0]]), (x.abs() * 40 + 9).flip(0).to(kind), how)
                                  for kind in (torch.uint8, torch.int8, torch.int32, torch.int64) for how in ("amin", "amax", "mean"))), X),
    "extremes": (lambda x: (x.scatter_reduce(1, torch.tensor([[3, 1, 3], [0, 0, 0], [2, 3, 2]]), x, "amax"), x.scatter_reduce(0, torch.tensor([[1, 1, 0, 2], [1, 1, 2, 2]]), x * 2, "amin", include_self=False),
                            (x * 9).long().scatter_reduce(1, torch.tensor([[3, 3], [1, 1], [0, 2]]), (x * 20).long(), "amin"), (x / x.clamp_min(0)).scatter_reduce(1, torch.tensor([[0, 1, 1, 1]]), x / x.clamp_max(0), "amin"),
                            x.new_full((3, 4), float("-inf")).scatter_reduce(1, torch.tensor([[0, 1, 1, 1]]), x.log(), "amax")), X),
    "parts": (lambda x: (x.diagonal(), x.diagonal(1), x.diagonal(-1), x[None].diagonal(0, 2, 1), x[:, :3].trace(), x.unfold(1, 2, 1), x.unfold(0, 2, 1), x.unfold(1, 3, 2),
                         x[None].expand(2, 3, 4)[torch.tensor([0, 1]), :, torch.tensor([3, -2])]), X),
    "functions": (lambda x: (x.abs().log10(), x.exp2(), x.sinh(), x.cosh(), torch.hypot(x, x.flip(0)), torch.hypot(x * 0, x * 0), x.isfinite(), torch.logaddexp(x, x + 1), (x > 0) * (x < 1)), X),
    "angles": (lambda x: (x.atan(), (x / 4).asin(), (x / 4).acos(), torch.atan2(x, x.flip(0)), torch.atan2(x * 0, x), x.asinh(), (x.abs() + 1).acosh(), (x / 4).atanh(),
                          x.arctan(), torch.special.erfc(x * 2)), X),
    "units": (lambda x: (F.celu(x, 0.7), F.selu(x), F.elu(x * 1e-3), F.softplus(x - 18), F.logsigmoid(x + 18)), X),
    "products": (lambda x: (x.cumprod(1), (x > 0).cumprod(0), torch.mv(x, x[0]), torch.dot(x[0], x[1]), torch.addmv(x[:, 0], x, x[0], beta=0.5, alpha=2), x.swapdims(0, 1)), X),
    "both_extremes": (lambda x: (*torch.aminmax(x), *torch.aminmax(x, dim=1), *torch.aminmax(x, dim=0, keepdim=True)), X),
    "bool_extremes": (lambda x: ((x > 0).amax(1), (x > 0).amin(0), (x > 0).max(), (x > -9).min()), X),
    "searched_rows": (lambda x: (torch.searchsorted(x.sort(1)[0], x), torch.searchsorted(x.sort(1)[0], x[:, :2], right=True)), X),
    "argsort": (lambda x: (torch.argsort(x, dim=0, descending=True), torch.argsort(x.round(), stable=True), x.msort()), X),
    "integers": (lambda i: (i.argmin(1), i.to(torch.uint8).argmin(1), i.topk(2, 1)[0], i.topk(2, 0, largest=False)[0], i.to(torch.int32).sort(1)[0], i.cumsum(1, dtype=torch.float32)), "i"),
    "bits": (lambda i: (i & 6, i | 9, i ^ (i + 3), ~i, i << 2, (i - 5) >> 1, i & (i > 3), 3 & i, torch.logical_and(i, i > 2), torch.bitwise_left_shift(i, i)), "i"),
    "linear": (lambda x: (F.interpolate(x[None, None], size=(7, 3), mode="bilinear"), F.interpolate(x[None], scale_factor=2.0, mode="linear", align_corners=True), F.interpolate(x[None, None], scale_factor=1.5, mode="bilinear")), X),
    "adaptive": (lambda x: (F.adaptive_max_pool1d(x, 3), F.adaptive_avg_pool1d(x, 3), F.adaptive_max_pool1d(x, 1)), X),
    "decomposed": (lambda x: (F.selu(x), x.clone().addcmul_(x, x, value=2), (x + 1)[1:].lerp_(x[1:], 0.3), x.lerp(x.mT.contiguous().mT, 0.3), x.clamp_max(x.flip(0)), F.cosine_similarity(x, x + 1), F.prelu(x, x.new_full((1,), 0.25)), F.pixel_unshuffle(x[None, :2].reshape(1, 2, 2, 2), 2), F.unfold(x[None, None], 2), *torch.unsafe_split(x, 2, 1), F.interpolate(x[None, None], size=(5, 6), mode="bicubic")), X),
    "interpolate": (lambda x: (F.interpolate(x[None], scale_factor=2.0), F.interpolate(x[None], scale_factor=1.7), F.interpolate(x[None, None], size=(7, 5)),
                              F.interpolate(x[None, None], size=(2, 9), mode="nearest-exact"), F.interpolate(x[None, None], scale_factor=0.5)), X), "empty": (lambda x: (x[:0].sum(1), torch.cat([x[:0], x])), X),
}  # fmt: skip


@pytest.mark.parametrize("name", OPERATIONS)
def test_operation(name, instance):
    rotation.seed()
    function, *shapes = OPERATIONS[name]
    check(Of(function), tuple(whole(*IDS) if s == "i" else some(*s) for s in shapes), instance)


@pytest.mark.parametrize("name", ["add", "sum", "softmax", "views_of_rows", "cumsum", "sort", "joins", "rms_norm", "roll", "any", "var", "index"])
def test_operation_of_any_size(name, instance):
    """The example has 3 rows; calls have 1, 2 and 7."""
    function = (lambda x: (x.flatten(), x.t().reshape(2, -1), x[:, None].expand(-1, 2, 4))) if name == "views_of_rows" else OPERATIONS[name][0]
    shapes = OPERATIONS[name][1:] if name != "views_of_rows" else (X,)
    args = tuple(some(*s) for s in shapes)
    if name in ("index", "joins"):
        function = {"index": lambda x: x[torch.arange(x.shape[0]) - 1], "joins": lambda x: (torch.cat([x, x]), x.repeat(2, 1), torch.stack([x, x]))}[name]
    dims = ({0: torch.export.Dim("rows", max=64)}, *[None] * (len(args) - 1))
    others = [(some(rows, 4), *args[1:]) for rows in (1, 2, 7)]
    module = check(Of(lambda *a: function(*a)), args, instance, others, dynamic_shapes=(dims,))
    assert [(s.minimum, s.maximum) for s in module.symbols.values()] == [(1, 64)]


class Convolutions(torch.nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.layers = torch.nn.ModuleList(layers)

    def forward(self, x):
        return [layer(x) for layer in self.layers]


@pytest.mark.parametrize("dims", [1, 2])
def test_convolutions(dims, instance):
    torch.manual_seed(SEED & 0x7FFFFFFF)
    one = torch.nn.Conv1d if dims == 1 else torch.nn.Conv2d
    back = torch.nn.ConvTranspose1d if dims == 1 else torch.nn.ConvTranspose2d
    pools = [torch.nn.MaxPool1d(2), torch.nn.AvgPool1d(3, 1), torch.nn.AvgPool1d(3, 2, 1, count_include_pad=False), torch.nn.MaxPool1d(3, 2, 1, ceil_mode=True)] if dims == 1 else [
        torch.nn.AvgPool2d(3, 2, 1, count_include_pad=False), torch.nn.AvgPool2d((3, 2), (2, 3), 1, ceil_mode=True), torch.nn.MaxPool2d(2, 3, 1, ceil_mode=True),
        torch.nn.AvgPool2d(3, 2, 1, ceil_mode=True, count_include_pad=False), torch.nn.AvgPool2d(3, 2, 1, ceil_mode=True, divisor_override=4), torch.nn.MaxPool2d(3, 2, 1), torch.nn.AvgPool2d(2), torch.nn.AdaptiveAvgPool2d((3, 2))]
    layers = [one(4, 6, 3), one(4, 6, 2, stride=2), one(4, 6, 3, padding=1, stride=2, bias=False), one(4, 6, 3, dilation=2, padding="same"),
              one(4, 4, 3, groups=4), one(4, 8, 3, groups=2, padding=2), one(4, 6, 1), back(4, 6, 3), back(4, 6, 2, stride=2, bias=False),
              back(4, 6, 3, stride=2, padding=1, output_padding=1, groups=2), back(4, 6, 4, stride=2, padding=1), back(4, 6, 5, stride=3, padding=2),
              back(4, 6, 2, stride=3), back(4, 6, 3, stride=2, dilation=2), *pools]  # fmt: skip
    check(Convolutions(layers).eval(), (some(2, 4, 8) if dims == 1 else some(2, 4, 8, 6),), instance)


@pytest.mark.parametrize("layer", [lambda: torch.nn.LSTM(4, 6, 2, batch_first=True), lambda: torch.nn.GRU(4, 6, bidirectional=True),
                                   lambda: torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), 2),
                                   lambda: torch.nn.MultiheadAttention(4, 2)])  # fmt: skip
def test_layers_of_torch(layer, instance):
    """torch takes some apart; what has no lowering is what it takes apart first."""
    torch.manual_seed(SEED & 0x7FFFFFFF)
    made = layer().eval()
    forward = (lambda m, x: m(x, x, x)) if isinstance(made, torch.nn.MultiheadAttention) else (lambda m, x: m(x))

    class Whole(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = made

        def forward(self, x):
            return forward(self.inner, x)

    check(Whole().eval(), (some(3, 5, 4),), instance)


class Named(torch.nn.Module):
    """Weights that convolutions and norms turn around before they use them."""

    def __init__(self):
        super().__init__()
        self.back, self.plain = torch.nn.ConvTranspose1d(4, 6, 3, stride=2, groups=2), torch.nn.ConvTranspose2d(4, 2, 3, dilation=2)
        self.deep, self.each = torch.nn.Conv3d(2, 4, 3), torch.nn.Conv3d(4, 4, 2, groups=4)
        self.up = torch.nn.ConvTranspose3d(4, 2, 2, stride=2)
        self.normed = torch.nn.utils.parametrizations.weight_norm(torch.nn.Conv1d(4, 4, 3))
        self.whole = torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(4, 4), dim=None)
        self.scale, self.factor = torch.nn.Parameter(torch.randn(4)), torch.nn.Parameter(torch.tensor(0.3))
        self.area = torch.nn.Parameter(torch.randn(4, 5))

    def forward(self, x, y, z):
        rows = torch.nn.functional.rms_norm(x.mT, (4,), 1 + self.scale, 1e-6) * self.factor.exp()
        return self.back(x), self.plain(y), self.deep(z), self.up(self.each(self.deep(z))), self.normed(x), self.whole(x.mT), rows, torch.nn.functional.layer_norm(x[..., :5], (4, 5), 1 + self.area)


def test_weights_keep_their_names(instance):
    """Whatever is made of them, so that each can be swapped."""
    torch.manual_seed(SEED & 0x7FFFFFFF)
    model, args = Named().eval(), (some(2, 4, 7), some(2, 4, 5, 5), some(2, 2, 5, 6, 7))
    module = check(model, args, instance)
    assert set(module.constants) == {name for name, _ in model.named_parameters()}
    from accrt.compiler import compile

    with accrt.Bundle(compile(module, targets=TARGETS), instance) as bundle:
        program = bundle.program()
        for parameter in model.parameters():
            parameter.data.copy_(torch.randn(parameter.shape))
        program.swap_weights({name: parameter.detach() for name, parameter in model.named_parameters()})
        for ours, wanted in zip(called(program.session(), args), model(*args)):
            close(ours, wanted.detach())


def test_batch_norm_is_folded(instance):
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU())
    model(some(4, 3, 8, 8))
    module = check(model.eval(), (some(2, 3, 8, 8),), instance)
    from accrt.compiler import compile

    with accrt.Bundle(compile(module, targets=["host"]), instance) as bundle:
        own = {c.name for c in bundle.constants if not c.prepared}
        # they keep their names
        assert own == {name for name in model.state_dict() if not name.endswith("num_batches_tracked")}
        program = bundle.program()
        x, weight = some(2, 3, 8, 8), some(4)
        program.swap_weights({"1.weight": weight})
        model[1].weight.data.copy_(weight)
        close(np.asarray(program.session().forward(x)), model(x).detach())


def test_numbers_made_of_sizes(instance):
    """x.shape[0] ** 0.5 is no expression of sizes: each call calculates it."""
    def scaled(x):
        rows = x.shape[0]
        return x / rows**0.5, x * (rows / 3), x * torch.sym_sqrt(rows), x + (rows**0.5 - 1) * 2, x.sum() / (x.shape[0] * x.shape[1]) ** 0.5

    rows = torch.export.Dim("rows", max=64)
    check(Of(scaled), (some(3, 4),), instance, [(some(n, 4),) for n in (1, 2, 7)], dynamic_shapes=(({0: rows},),))


def test_dims_keep_their_names():
    rows, columns = torch.export.Dim("rows", max=64), torch.export.Dim("columns", max=64)

    class Several(torch.nn.Module):
        def forward(self, x, pair):
            return x + pair[0] + pair[1]["y"]

    x = (some(3, 4), (some(3, 4), {"y": some(3, 4)}))
    dims = {0: rows, 1: columns}
    for shapes in ((dims, (dims, {"y": dims})), ((rows, columns), (dims, {"y": (rows, columns)}))):
        assert set(convert(Several(), x, dynamic_shapes=shapes).symbols) == {"rows", "columns"}


def test_a_buffer_that_cannot_begin_so_is_named():
    class Counter(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("counts", torch.arange(4.0))

        def forward(self, x):
            self.counts.mul_(2)
            return x + self.counts

    with pytest.raises(UnsupportedOperations) as caught:
        convert(Counter(), (some(4),))
    assert "counts" in str(caught.value) and "aten" not in str(caught.value)


def test_writing_in_place(instance):
    def writes(x, y):
        z = x.clone()
        z[:, 1] = 7
        z[1:].mul_(2)
        row = z[0]
        row += y
        t = z.t()
        t[2].zero_()
        part = z.view(-1)[3:5]
        z.add_(1)
        return z, row, part, t

    check(Of(writes), (some(*X), some(*Y)), instance)


def test_written_inputs_are_read_write(instance):
    session, module = session_of(Of(lambda x, y: x.add_(y)), (some(*X), some(*Y)), instance)
    (function,) = module.functions.values()
    assert [i.access for i in function.inputs] == ["read_write", "read"]
    x, y = some(*X), some(*Y)
    mine = x.clone().numpy()
    session.forward(mine, y.numpy())
    np.testing.assert_allclose(mine, (x + y).numpy())


class Cache(torch.nn.Module):
    """Keys that stay from call to call, as Hugging Face's static cache keeps them."""

    def __init__(self):
        super().__init__()
        self.register_buffer("keys", torch.zeros(2, 8, 4))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.project = torch.nn.Linear(4, 4)

    def forward(self, x, places):
        self.keys.index_copy_(1, places, self.project(x))
        self.calls += 1
        return self.keys.sum(1), self.calls.clone()


def test_written_buffers_are_states(instance):
    torch.manual_seed(1)
    model = Cache().eval()
    args = (some(2, 3, 4), torch.tensor([0, 1, 2]))
    session, module = session_of(model, args, instance)
    assert set(module.states) == {"keys", "calls"}
    for places in ([0, 1, 2], [3, 4, 5], [0, 7, 1]):
        given = (some(2, 3, 4) + places[0], torch.tensor(places))
        with torch.no_grad():
            wanted = leaves(model(*given))
        for a, b in zip(called(session, given), wanted):
            close(a, b)


def test_functions_share_weights_and_states(instance):
    """Two programs of one model, of 3 tokens and of 1: one state, one weight."""
    torch.manual_seed(1)
    model = Cache().eval()
    more, one = (some(2, 3, 4), torch.tensor([0, 1, 2])), (some(2, 1, 4), torch.tensor([3]))
    session, module = session_of({"prefill": Method(model, more), "decode": Method(model, one)}, (), instance)
    assert sorted(module.constants) == ["project.bias", "project.weight"] and len(module.states) == 2
    for name, given in (("prefill", more), ("decode", one)):
        with torch.no_grad():
            wanted = leaves(model(*given))
        for a, b in zip(called(session, given, name), wanted):
            close(a, b)


class Heard(torch.nn.Module):
    """One method writes what another reads, as the decoder of a speech model reads keys that the
    encoder's method has made."""

    def __init__(self, method):
        super().__init__()
        self.method = method
        self.register_buffer("heard", torch.zeros(2, 4))

    def forward(self, x):
        return getattr(self, self.method)(x)

    def write(self, x):
        self.heard.copy_(x)
        return x * 2

    def read(self, x):
        return x + self.heard


@pytest.mark.parametrize("order", [("write", "read"), ("read", "write")])
def test_what_one_function_writes_another_reads(order, instance):
    session, module = session_of({name: Method(Heard(name).eval(), (some(2, 4),)) for name in order}, (), instance)
    assert not module.constants and set(module.states) == {"heard"}
    x, y = some(2, 4), some(2, 4) + 1
    close(called(session, (x,), "write")[0], x * 2)
    for _ in range(2):  # reading leaves it as it is
        close(called(session, (y,), "read")[0], y + x)


def test_tied_weights_are_one(instance):
    first, second = torch.nn.Linear(4, 4, bias=False), torch.nn.Linear(4, 4, bias=False)
    second.weight = first.weight
    module = check(torch.nn.Sequential(first, second).eval(), (some(*X),), instance)
    assert list(module.constants) == ["0.weight"]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_types(dtype, instance):
    torch.manual_seed(1)
    kind = getattr(torch, dtype)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU(), torch.nn.LayerNorm(8)).to(kind).eval()
    x = some(3, 8).to(kind)
    session, _module = session_of(model, (x,), instance)
    ours = torch.from_dlpack(session.forward(x)).double()
    with torch.no_grad():
        wanted = model.double()(x.double())
    assert (ours - wanted).abs().max() < {"float16": 0.02, "bfloat16": 0.15, "float64": 1e-12}[dtype]


def masks(module):
    return [op for f in module.functions.values() for op in f.body.walk() if op.name.endswith("scaled_dot_product_attention")]


def attend(mask):
    def forward(x):
        q = x.view(x.shape[0], x.shape[1], 2, 4).transpose(1, 2)
        return F.scaled_dot_product_attention(q, q, q, attn_mask=mask(x))

    return Of(forward)


def places(x):
    n = torch.arange(x.shape[1])
    return n[None, None, :, None], n[None, None, None, :]


MASKS = {  # a mask, and of attention: causal, windowed, the tensor's shape
    "causal": (lambda x, pad: places(x)[1] <= places(x)[0], (True, False, None)),
    "strict": (lambda x, pad: places(x)[1] < places(x)[0] + 1, (True, False, None)),
    "tril": (lambda x, pad: torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril(), (True, False, None)),
    "all": (lambda x, pad: places(x)[1] >= 0, (False, False, None)),
    "window": (lambda x, pad: (places(x)[1] <= places(x)[0]) & (places(x)[1] > places(x)[0] - 2), (True, True, None)),
    "two_windows": (lambda x, pad: window(x, 2) & window(x, 3), (True, True, None)),
    "both_sides": (lambda x, pad: (places(x)[1] <= places(x)[0] + 1) & (places(x)[1] >= places(x)[0] - 2), (True, True, None)),
    "distance": (lambda x, pad: (places(x)[0] - places(x)[1]).abs() <= 2, (True, True, None)),
    "distance_of": (lambda x, pad: 3 > (places(x)[1] - places(x)[0]).abs(), (True, True, None)),
    "repeated": (lambda x, pad: torch.arange(x.shape[1]).repeat(x.shape[0], 1)[:1, None, None, :] <= places(x)[0], (True, False, None)),
    "backwards": (lambda x, pad: places(x)[1] >= places(x)[0], (False, True, None)),
    "numbers": (lambda x, pad: torch.where(places(x)[1] <= places(x)[0], 0.0, -1e4), (False, False, (1, 1, "n", "n"))),
    "padding": (lambda x, pad: pad[:, None, None, :], (False, False, ("b", 1, 1, "n"))),
    "padding_expanded": (lambda x, pad: pad[:, None, None, :].expand(x.shape[0], 1, x.shape[1], x.shape[1]), (False, False, ("b", 1, 1, "n"))),
    "padding_causal": (lambda x, pad: (pad[:, None, None, :] & (places(x)[1] <= places(x)[0])).expand(-1, 2, -1, -1), (True, False, ("b", 1, 1, "n"))),
    "padding_window": (lambda x, pad: window(x, 3) & pad[:, None, None, :], (True, True, ("b", 1, 1, "n"))),
    "padding_permuted": (lambda x, pad: (window(x, 3) & pad[:, None, None, :]).permute(1, 0, 3, 2).permute(1, 0, 3, 2), (True, True, ("b", 1, 1, "n"))),
    "padding_twice": (lambda x, pad: (pad[:, None, :] & pad[:, :, None])[:, None] & (places(x)[1] <= places(x)[0]), (True, False, ("b", 1, "n", "n"))),
}


def window(x, size):
    """The last `size` keys, as transformers has it."""
    queries, keys = places(x)
    return (keys > queries - size) & (keys <= queries)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", MASKS)
def test_masks(name, dynamic, instance):
    """Limits need no tensor, and what is padding has one of its own size: nothing of queries times
    keys is made of them. All give torch's results."""
    mask, (causal, windowed, shape) = MASKS[name]

    def inputs(batch, length):
        pad = torch.arange(length) < torch.randint(1, length + 1, (batch, 1))
        return some(batch, length, 8), pad

    def forward(x, pad):
        q = x.view(x.shape[0], x.shape[1], 2, 4).transpose(1, 2)
        made = F.scaled_dot_product_attention(q, q, q, attn_mask=mask(x, pad))
        return torch.where(pad[:, None, :, None], made, 0.0)  # what padding sees means nothing

    dims = {0: torch.export.Dim("batch", max=8), 1: torch.export.Dim("tokens", max=64)}
    others = [inputs(1, 9), inputs(3, 1)] if dynamic else []
    module = check(Of(forward), inputs(2, 5), instance, others, dynamic_shapes=((dims, dims),) if dynamic else None)
    (op,) = masks(module)
    assert (bool(op.attrs["is_causal"]), op.attrs["first_offset"] is not None) == (causal, windowed)
    q, tensor = op.operands[0], op.operands[3]
    sizes = {"b": q.shape[0], "n": q.shape[2]}
    found = None if tensor is None else [str(s) for s in tensor.shape]
    assert found == (None if shape is None else [str(sizes.get(s, s)) for s in shape])


def test_grouped_heads_are_not_repeated(instance):
    def forward(x):
        q, k = x.view(2, 5, 4, 2).transpose(1, 2), x[..., :4].reshape(2, 5, 2, 2).transpose(1, 2)
        k = k[:, :, None].expand(2, 2, 2, 5, 2).reshape(2, 4, 5, 2)
        return F.scaled_dot_product_attention(q, k, k, is_causal=True)

    module = check(Of(forward), (some(2, 5, 8),), instance)
    assert masks(module)[0].operands[1].shape[1] == 2


# ---- what cannot be done


def test_what_is_missing_is_one_list(instance):
    def forward(x):
        return torch.special.airy_ai(x) + torch.special.airy_ai(x + 1) + torch.igamma(x.abs(), x.abs())

    with pytest.raises(UnsupportedOperations) as caught:
        convert(Of(forward), (some(*X),))
    names = {name: count for name, count, _where, _why in caught.value.operations}
    assert names["aten.special_airy_ai.default"] == 2 and len(names) == 2
    assert "(python/test_from_torch.py:" in str(caught.value) and "x2" in str(caught.value)


def test_complex_results_are_refused():
    with pytest.raises(UnsupportedOperations, match="result 'output' x1: tensors of complex64, which bundles do not have: return view_as_real"):
        convert(Of(lambda x: torch.fft.fftn(x)), (some(*X),))


def test_data_that_decides_is_refused(instance):
    with pytest.raises(UnsupportedOperations, match="known to the call alone"):
        convert(Of(lambda x, i: x[:, i > 3]), (some(2, 5), torch.tensor([1, 4, 5, 6, 0])), dynamic_shapes=None)


@pytest.mark.parametrize("layer", [torch.nn.Dropout(), torch.nn.BatchNorm1d(4)])
def test_training_mode_is_refused(layer):
    with pytest.raises(UnsupportedOperations, match="in training mode: call model.eval"):
        convert(layer.train(), (some(*X),))
    convert(layer.eval(), (some(*X),))


def test_wrong_arguments():
    with pytest.raises(TypeError, match="model is of type int, expected a torch.nn.Module"):
        convert(5)
    with pytest.raises(ValueError, match="without functions"):
        convert({})


@pytest.mark.parametrize("model, args, words", [
    (torch.nn.Linear(4, 4), "model.accx", r"args is 'model\.accx', expected example inputs: a path comes behind them, or as path="),
    ("model.pt2", "model.accx", "a path comes behind them, or as path="),
    (torch.nn.Linear(4, 4), (), r"do not fit Linear\.forward\(input: torch.Tensor\).*: missing a required argument: 'input'"),
    (torch.nn.Linear(4, 4), {"inptu": torch.ones(2, 4)}, r"do not fit Linear\.forward.*'input'"),
    (torch.nn.Linear(4, 4), 3, "args is a value of type int, expected example inputs: a tuple of tensors, one tensor, or a dict of tensors by name"),
    (torch.nn.Linear(4, 4), (np.ones((2, 4), np.float32),), "an example input is a value of type ndarray, expected a torch.Tensor: torch.as_tensor makes one"),
    (torch.nn.Linear(4, 4), np.ones((2, 4), np.float32), "args is a value of type ndarray, expected example inputs"),
    (torch.nn.Linear, (torch.ones(2, 4),), r"model is of type type, .*: give an object of the class, as Linear\(\.\.\.\)"),
    (torch.nn.Linear(4, 4).state_dict(), (torch.ones(2, 4),), "a state_dict has weights alone, which load_state_dict puts into a module"),
    ({"one": (torch.nn.Linear(4, 4), (torch.ones(2, 4),))}, (), r"Method\(model, args\) has example inputs"),
    (torch.jit.trace(torch.nn.Linear(4, 4), torch.ones(2, 4)), (torch.ones(2, 4),), "of torch.jit, which torch.export does not take: give the module that it was made of"),
])  # fmt: skip
def test_what_a_model_and_its_inputs_are_not(model, args, words):
    with pytest.raises(TypeError, match=words):
        convert(model, args)


def test_recurrent_layers_are_exported_without_a_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        convert(torch.nn.LSTM(4, 3, batch_first=True).eval(), (some(2, 5, 4),))


def test_a_path_and_the_bundle_that_is_written(tmp_path):
    """The whole way: a .pt2 file, a bundle on disk, and a process that has no torch."""
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Softmax(-1)).eval()
    x = some(2, 4)
    torch.export.save(torch.export.export(model, (x,)), tmp_path / "model.pt2")
    bundle = accrt.from_torch(tmp_path / "model.pt2", path=tmp_path / "model.accx", targets=TARGETS)
    assert bundle.function_names() == ["forward"]
    np.save(tmp_path / "x.npy", x.numpy())
    code = ("import sys; sys.modules['torch'] = None\nimport accrt, numpy as np\n"
            f"print(np.asarray(accrt.load({str(tmp_path / 'model.accx')!r}).forward(np.load({str(tmp_path / 'x.npy')!r}))).tolist())")
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    np.testing.assert_allclose(np.array(eval(out)), model(x).detach().numpy(), rtol=1e-5)


def test_results_have_the_names_of_the_model(instance):
    class Named(torch.nn.Module):
        def forward(self, x):
            return {"logits": x + 1, "hidden": (x * 2, x * 3)}

    _session, module = session_of(Named().eval(), (some(*X),), instance)
    assert [r.name for r in module.functions["forward"].results] == ["logits", "hidden_0", "hidden_1"]


def test_the_document_has_the_table_of_what_is_covered():
    from accrt.from_torch.__main__ import operations

    document = (pathlib.Path(__file__).resolve().parents[2] / "docs/from-torch.md").read_text()
    assert operations() in document, "python -m accrt.from_torch --operations"


def test_the_command_line(tmp_path):
    torch.export.save(torch.export.export(Of(lambda x: x * 2), (some(*X),)), tmp_path / "twice.pt2")
    run = [sys.executable, "-m", "accrt.from_torch"]
    done = subprocess.run([*run, "twice.pt2", "-o", "twice.accx", "--target", TARGETS[0]], cwd=tmp_path, capture_output=True, text=True, env=environment())
    assert done.returncode == 0 and "compiled in" in done.stderr, done.stderr
    assert np.asarray(accrt.load(tmp_path / "twice.accx").forward(np.ones(X, np.float32))).tolist() == [[2.0] * 4] * 3
    torch.export.save(torch.export.export(Of(lambda x: torch.special.airy_ai(x)), (some(*X),)), tmp_path / "airy.pt2")
    (tmp_path / "text.pt2").write_text("no archive")
    for name, wanted in (("missing.pt2", "missing.pt2"), ("text.pt2", "text.pt2 is not what torch.export.save writes"), ("airy.pt2", "no lowering for 1 operation")):
        done = subprocess.run([*run, name, "-o", "x.accx"], cwd=tmp_path, capture_output=True, text=True, env=environment())
        assert done.returncode == 1 and wanted in done.stderr and "Traceback" not in done.stderr, done.stderr


def test_files_of_one_model_share_weights_and_states(tmp_path, instance):
    """Each is exported and saved apart, and no memory is shared; a weight of the same name and of
    other content has a name of its own."""
    torch.manual_seed(1)
    model = Cache().eval()
    more, one = (some(2, 3, 4), torch.tensor([0, 1, 2])), (some(2, 1, 4), torch.tensor([3]))
    for name, args in (("prefill", more), ("decode", one)):
        torch.export.save(torch.export.export(model, args, strict=False), tmp_path / f"{name}.pt2")
    run = [sys.executable, "-m", "accrt.compiler", "-o", "both.accx", "--target", TARGETS[0]]
    done = subprocess.run([*run, "prefill.pt2", "decode.pt2"], cwd=tmp_path, capture_output=True, text=True, env=environment())
    assert done.returncode == 0, done.stderr
    with accrt.Bundle(tmp_path / "both.accx", instance) as bundle:
        assert sorted(c.name for c in bundle.constants if not c.prepared) == ["project.bias", "project.weight"]
        session = bundle.program().session()
        for name, given in (("prefill", more), ("decode", one)):
            with torch.no_grad():
                wanted = leaves(model(*given))
            for a, b in zip(called(session, given, name), wanted):
                close(a, b)
    model, other = Cache().eval(), Cache().eval()
    files = {name: torch.export.export(m, args, strict=False) for name, m, args in (("prefill", model, more), ("decode", other, one))}
    assert sorted(convert(files).constants) == ["project.bias", "project.bias_2", "project.weight", "project.weight_2"]
    (tmp_path / "a.py").write_text("")
    for given, wanted in ((["prefill.pt2", "a.py"], "several files are all .pt2"), (["prefill.pt2", "x/prefill.pt2"], "one name"), (["a.pt2", "b.pt2"], "no such file")):
        done = subprocess.run([*run, *given], cwd=tmp_path, capture_output=True, text=True, env=environment())
        assert done.returncode == 1 and wanted in done.stderr and "Traceback" not in done.stderr, done.stderr


def test_a_file_with_outputs_of_transformers_needs_no_transformers(tmp_path):
    """torch refuses types that it does not know. transformers makes its own known when it makes the
    first of them."""
    class Output(collections.OrderedDict):
        pass

    class Named(torch.nn.Module):
        def forward(self, x):
            return Output(logits=x + 1, hidden=(x * 2, {"a": x * 3}))

    torch.utils._pytree.register_pytree_node(
        Output, lambda o: (list(o.values()), list(o)), lambda values, keys: Output(zip(keys, values)), serialized_type_name="somewhere.else_.Output",
        flatten_with_keys_fn=lambda o: ([(torch.utils._pytree.MappingKey(k), v) for k, v in o.items()], list(o)),
    )  # fmt: skip
    torch.export.save(torch.export.export(Named().eval(), (some(*X),)), tmp_path / "named.pt2")
    code = ("import sys; from accrt.from_torch import convert; m = convert('named.pt2'); print([r.name for r in m.functions['forward'].results], "
            "'transformers' in sys.modules)")  # fmt: skip
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, env=environment())
    assert done.stdout.strip() == "['logits', 'hidden_0', 'hidden_1_a'] False", done.stderr


def environment():
    return dict(os.environ, PYTHONPATH=str(pathlib.Path(accrt.__file__).parents[1]))


def test_lowerings_take_arguments_where_torch_has_them():
    """An exported graph gives them by position: `keepdim` of std.dim was taken for `correction`."""
    import importlib
    import inspect
    import pkgutil

    import accrt.from_torch as package
    from accrt.from_torch.table import TABLE

    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"accrt.from_torch.{module.name}")
    wrong, seen = [], 0
    for target, function in TABLE.items():
        space, name, *overload = target.split(".")
        packet = getattr(getattr(torch.ops, space), name, None) if space == "aten" else None
        operation = getattr(packet, overload[0], None) if overload else None
        parameters = list(inspect.signature(function).parameters.values())[1:]
        if operation is None or any(p.kind == p.VAR_POSITIONAL for p in parameters):
            continue
        seen += 1
        names = [p.name for p in parameters]
        wrong += [f"{target}: {argument.name} is argument {at}, here {names.index(argument.name)}" for at, argument in enumerate(operation._schema.arguments)
                  if not argument.kwarg_only and argument.name in names and names.index(argument.name) != at]  # fmt: skip
    assert seen > 250
    # `pad` knows constant_pad_nd by its third argument, a number.
    assert [text for text in wrong if not text.startswith("aten.constant_pad_nd.default: value")] == []


def test_inputs_keep_the_names_that_the_model_has():
    module = convert(torch.nn.Sequential(torch.nn.Linear(8, 4)).eval(), (torch.zeros(2, 8),))
    assert [i.name for i in module.functions["forward"].inputs] == ["input"]

    class Builtins(torch.nn.Module):
        def forward(self, input, sum, x):
            return input + sum * x

    module = convert(Builtins().eval(), (torch.zeros(3), torch.ones(3), torch.ones(3)))
    assert [i.name for i in module.functions["forward"].inputs] == ["input", "sum", "x"]


def test_the_front_end_stays_small():
    lines = sum(len(path.read_text().splitlines()) for path in (kh.ROOT / "python/accrt/from_torch").glob("*.py"))
    assert lines <= 3000


@pytest.mark.parametrize("name, near", [("dynamic_shape", "dynamic_shapes"), ("target", "targets"), ("quantise", "quantize"), ("zzz", None)])
def test_misspelt_options_are_refused_before_anything_is_done(name, near):
    for make, what in ((accrt.from_torch, "from_torch"), (accrt.from_onnx, "from_onnx")):
        with pytest.raises(TypeError) as caught:
            make("none.pt2", **{name: 1})
        wanted = f"{what}() got an unexpected keyword argument {name!r}"
        assert str(caught.value) == wanted + (f"; did you mean {near!r}?" if near and (what, near) != ("from_onnx", "dynamic_shapes") else "")


def test_a_missing_file_is_the_packages_error(tmp_path):
    with pytest.raises(accrt.MissingFileError, match="none.pt2: no such file") as said:
        accrt.from_torch(str(tmp_path / "none.pt2"))
    assert said.value.filename == str(tmp_path / "none.pt2")
