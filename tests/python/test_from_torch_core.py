"""accrt.from_torch of programs after torch's run_decompositions, which have core operations alone;
and of operations that have a view's or another operation's form, beside torch in float64."""

from __future__ import annotations

import numpy as np
import pytest

import rotation
from accrt.from_torch import convert, UnsupportedOperations

torch = pytest.importorskip("torch", reason="torch is not installed")
pytestmark = [pytest.mark.torch, pytest.mark.quick_kernels]

from test_from_torch import called, check, close, leaves, Of, session_of, some  # noqa: E402  - which needs torch

F, aten, special = torch.nn.functional, torch.ops.aten, torch.special


class Pictures(torch.nn.Module):
    """Layers that have other names among the core operations."""

    def __init__(self):
        super().__init__()
        nn = torch.nn
        self.conv, self.wide, self.up, self.line = nn.Conv2d(3, 8, 3, padding=1, groups=1), nn.Conv3d(1, 2, 3), nn.ConvTranspose2d(8, 4, 2, 2), nn.Conv1d(8, 8, 3, 2)
        self.group, self.layer, self.batch = nn.GroupNorm(2, 8), nn.LayerNorm(8), nn.BatchNorm2d(8)

    def forward(self, x):
        h = self.batch(self.group(self.conv(x)))
        h = self.layer(h.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        pooled = F.max_pool2d(h, 2), F.adaptive_avg_pool2d(h, 3), F.adaptive_avg_pool3d(h[:, None], 2), F.avg_pool2d(h, 2)
        return self.up(h), self.wide(h[:, None]), self.line(h.mean(2)), F.interpolate(h, scale_factor=2, mode="bilinear"), F.pad(h, (1, 1, 1, 1), "reflect"), *pooled


def blocks():
    return torch.nn.TransformerEncoderLayer(16, 2, 24, batch_first=True)


#: By name: a model and its example.
DECOMPOSED = {"pictures": (Pictures, (2, 3, 8, 8)), "a transformer": (blocks, (2, 5, 16)), "a recurrent layer": (lambda: torch.nn.GRU(4, 6), (3, 2, 4))}


@pytest.mark.parametrize("sizes", ["fixed", "vary"])
@pytest.mark.parametrize("name", DECOMPOSED)
def test_a_program_of_core_operations(name, sizes, instance):
    make, shape = DECOMPOSED[name]
    torch.manual_seed(rotation.seed() & 0x7FFFFFFF)
    model = make().eval().requires_grad_(False)
    at = 1 if "recurrent" in name else 0
    shapes = ({at: torch.export.Dim("batch", max=32)},) if sizes == "vary" else None
    program = torch.export.export(model, (some(*shape),), dynamic_shapes=shapes, strict=False).run_decompositions()
    session, _ = session_of(program, (), instance)
    wide = model.double()
    for batch in (2,) if sizes == "fixed" else (2, 1, 5):
        given = some(*shape[:at], batch, *shape[at + 1 :])
        ours, theirs = called(session, (given,)), leaves(wide(given.double()))
        assert len(ours) == len(theirs)
        for a, b in zip(ours, theirs):
            close(a, b)


def polynomial(name, n):
    return lambda x: getattr(special, name)(x, n)


def edges(x, *numbers):
    return torch.tensor(numbers) + (x.abs() > 1e9).sum()


#: By name: what is calculated of a tensor of [3, 4].
CALCULATED = {
    "addbmm": lambda x: torch.addbmm(x[:, :3], x.expand(2, 3, 4), x.T.expand(2, 4, 3), beta=0.5, alpha=2),
    "addbmm without its first": lambda x: torch.addbmm(x[:, :3], x.expand(2, 3, 4), x.T.expand(2, 4, 3), beta=0),
    "windows by strides": lambda x: (x * 2).as_strided((5, 4), (2, 1)), "one place": lambda x: (x + 1).as_strided((), (), 5),
    "overlapping, of another shape": lambda x: (x * 2).view(2, 6).as_strided((2, 3, 2), (1, 3, 2), 1), "of the input": lambda x: x.as_strided((3, 3), (4, 1), 1),
    "copies of views": lambda x: (aten.view_copy(x, [4, 3]) + aten.permute_copy(x, [1, 0]), aten.unbind_copy(x, 1)[2], aten.slice_copy(x, 1, 1, 3), aten.select_copy(x, 0, 2)),
    "more copies of views": lambda x: (aten.expand_copy(x, [2, 3, 4]), aten.squeeze_copy(x[None]), aten.unsqueeze_copy(x, 1), aten.transpose_copy(x, 0, 1), aten.split_copy(x, 2, 1)[1]),
    "empty": lambda x: (x.new_empty_strided((2, 3), (3, 1)).fill_(2) + torch.empty_strided((2, 3), (1, 2)).zero_(), torch.empty_permuted((3, 4), (1, 0)).copy_(x)),
    "a number before": lambda x: torch.remainder(7.5, x.abs() + 1), "bits of a number": lambda x: torch.bitwise_and(6, x.long().abs()) + torch.bitwise_or(1, x.long().abs()) * torch.bitwise_xor(3, x.long().abs()),
    "shifts of a number": lambda x: torch.bitwise_left_shift(3, x.long().abs() % 5) + torch.bitwise_right_shift(300, x.long().abs() % 5),
    "a number's place": lambda x: (torch.bucketize(0.25, x[0].sort()[0]), torch.searchsorted(x[0].sort()[0], 0.25, right=True)),
    "a fraction's place among whole numbers": lambda x: (
        *(torch.bucketize(a, edges(x, 1, 2, 3, 4), right=right) for a in (2.5, 2.0, -0.5, float("inf")) for right in (False, True)),
        torch.searchsorted(edges(x, 1, 2, 5).int(), 1.5), torch.bucketize(3, edges(x, 1, 3, 5)), torch.bucketize(16777217.0, edges(x, 16777215, 16777216, 16777217, 16777219))),
    **{f"{name} {n}": polynomial(name, n) for name, n in (
        ("chebyshev_polynomial_t", 0), ("chebyshev_polynomial_t", 9), ("chebyshev_polynomial_u", 1), ("chebyshev_polynomial_u", 6), ("chebyshev_polynomial_v", 5),
        ("chebyshev_polynomial_w", 5), ("hermite_polynomial_h", 5), ("hermite_polynomial_he", 6), ("laguerre_polynomial_l", 7), ("legendre_polynomial_p", 8),
        ("shifted_chebyshev_polynomial_t", 4), ("shifted_chebyshev_polynomial_u", 4), ("shifted_chebyshev_polynomial_v", 3), ("shifted_chebyshev_polynomial_w", 3),
        ("legendre_polynomial_p", -1))},
    "modified Bessel functions": lambda x: special.modified_bessel_i0(x) + special.modified_bessel_i1(x),
    "a spherical Bessel function": lambda x: special.spherical_bessel_j0(torch.cat([x, x * 0])),
}  # fmt: skip


@pytest.mark.rotating(8)
@pytest.mark.parametrize("name", CALCULATED)
def test_calculated(name, instance):
    check(Of(CALCULATED[name]), (some(3, 4),), instance)


def test_strides_of_a_size_that_varies(instance):
    n = torch.export.Dim("n", max=64)
    check(Of(lambda x: (x * 2).as_strided((x.shape[0], 2), (1, 0))), (some(12),), instance, [(some(1),), (some(40),)], dynamic_shapes=(({0: n},),))


def test_strides_from_a_place_that_varies(instance):
    n = torch.export.Dim("n", min=2, max=64)
    check(Of(lambda x: (x * 2).as_strided((2,), (1,), x.shape[0] - 2)), (some(12),), instance, [(some(2),), (some(40),)], dynamic_shapes=(({0: n},),))


def written_through_a_part(x):
    y = x + 1
    part = y[1:]
    part.as_strided((2, 2), (4, 1)).mul_(3)
    return y, part * 2, part.as_strided((2, 3), (1, 2))


def read_after_the_whole_was_written(x):
    y = x + 1
    seen = y[1:].as_strided((2, 2), (4, 1))
    y[2] = 7
    return seen * 2, y


#: By name: strides through the memory that a tensor of [3, 4] is, or is a part of.
THROUGH_MEMORY = {
    "a part": lambda x: (x[1:].as_strided((2, 2), (4, 1)), x[1:].as_strided((2, 2), (4, 1), 5), (x * 2)[:, 1:].as_strided((3, 2), (4, 2))), "transposed": lambda x: (x.T.as_strided((2, 3), (1, 4)), (x * 2).T.as_strided((3, 2), (4, 1))),
    "every second": lambda x: ((x * 2)[:, ::2].as_strided((2, 4), (4, 1)), (x * 2)[2].as_strided((2,), (2,))), "a copy": lambda x: aten.as_strided_copy((x + 1)[1:], [2, 2], [1, 2]),
    "another order": lambda x: ((x.T.contiguous().T * 2).as_strided((4, 3), (3, 1)), (x.T.contiguous().T * 2)[1:].as_strided((3, 2), (3, 1))), "a part of a part": lambda x: (x * 2)[1:][:, 1:].T[1].as_strided((2, 2), (1, 1)),
    "written": written_through_a_part, "the whole was written": read_after_the_whole_was_written, "a constant's part": lambda x: x[:, 0] + torch.arange(12.0).view(3, 4)[1:].as_strided((3,), (2,)),
}  # fmt: skip


@pytest.mark.parametrize("name", THROUGH_MEMORY)
def test_strides_through_the_memory_of_a_part(name, instance):
    check(Of(THROUGH_MEMORY[name]), (some(3, 4),), instance)


def test_strides_through_a_part_of_any_width(instance):
    n = torch.export.Dim("n", min=2, max=64)

    def function(x):
        y = x * 2
        part = y[1:].as_strided((2, x.shape[1]), (x.shape[1], 1), x.shape[1])
        part *= 3
        return y, part, y.T.as_strided((x.shape[1], 2), (1, x.shape[1]))

    check(Of(lambda x: function(x)), (some(3, 5),), instance, [(some(3, 2),), (some(3, 17),)], dynamic_shapes=(({1: n},),))


#: By name: what is calculated of numbers that are not all finite.
NOT_FINITE = {name: CALCULATED[name] for name in CALCULATED if "polynomial" in name} | {
    **{f"{name} {n}": polynomial(name, n) for name in ("chebyshev_polynomial_t", "shifted_chebyshev_polynomial_w", "hermite_polynomial_h", "laguerre_polynomial_l") for n in (-1, 0, 1, 2, 3)},
    "a spherical Bessel function": special.spherical_bessel_j0,
}  # fmt: skip


@pytest.mark.rotating(8)
@pytest.mark.parametrize("name", NOT_FINITE)
def test_of_numbers_that_are_not_finite(name, instance):
    x = torch.tensor([float("inf"), float("-inf"), float("nan"), 0.0, -0.75, 2.5])
    session, _ = session_of(Of(NOT_FINITE[name]), (x,), instance)
    wanted = NOT_FINITE[name](x)
    if not name.endswith((" -1", " 0")):
        wanted[x.isnan()] = float("nan")  # from a number of 2 on torch gives what lay in its memory
    torch.testing.assert_close(torch.from_numpy(np.array(called(session, (x,))[0])), wanted, equal_nan=True)


def test_strides_of_memory_with_other_elements_between_are_refused():
    for function in (lambda x: x.as_strided((2, 2), (1, 2)), lambda x: x[1:].as_strided((2,), (4,)), lambda x: x.T.as_strided((2,), (1,))):
        with pytest.raises(UnsupportedOperations, match="as_strided.*call contiguous"):
            convert(Of(function), (some(3, 4)[:, :3],))


def test_a_polynomial_whose_number_is_too_large_is_refused():
    with pytest.raises(UnsupportedOperations, match="a whole number of up to 64"):
        convert(Of(polynomial("legendre_polynomial_p", 65)), (some(3, 4),))
