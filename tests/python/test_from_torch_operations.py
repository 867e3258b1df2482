"""accrt.from_torch: complex numbers and Fourier transforms, recurrent layers, running extremes,
samples of pictures, special functions and small matrices, beside torch's float64 results. Runs
where torch is installed: `./dev torch-test`."""

from __future__ import annotations

import math

import pytest

import accrt
from accrt.from_torch import convert, UnsupportedOperations

torch = pytest.importorskip("torch", reason="torch is not installed")
pytestmark = [pytest.mark.torch, pytest.mark.quick_kernels]

from test_from_torch import called, check, close, leaves, Of, SEED, session_of, some, whole  # noqa: E402  - which needs torch

F, fft = torch.nn.functional, torch.fft
X, M, PICTURE, VOLUME, LINE = (3, 4), (2, 4, 4), (2, 3, 6, 7), (1, 2, 4, 5, 6), (2, 130)
parts = torch.view_as_real


def complexes(x):
    """Numbers with both parts."""
    return torch.complex(x, x.flip(-1) * 0.5)


def regular(m):
    """Matrices that have inverses, with pivots out of order."""
    return (m + 4 * torch.eye(4, dtype=m.dtype)).flip(-1)


def definite(m):
    return m @ m.mT + torch.eye(4, dtype=m.dtype)


def grid(x, *size):
    """Places inside and outside of a picture."""
    count = 2 if x.dim() == 4 else 3
    return torch.linspace(-1.3, 1.2, x.shape[0] * torch.Size(size).numel() * count, dtype=x.dtype).view(x.shape[0], *size, count).sin() * 1.4


def turned(x):
    z = complexes(x).clone()
    z[:, 1:3] = z[:, :2] * 1j
    z += 1
    return z


def transposed_in_place(x):
    y = x.clone()
    y.transpose_(0, 1)
    y += 1
    y.unsqueeze_(0)
    y.squeeze_(0)
    return y


def written_by_parts(x):
    """Writes through views of the parts, and of numbers."""
    a, b, c, d, e, pairs = complexes(x).clone(), complexes(x).clone(), complexes(x).clone(), complexes(x).clone(), complexes(x).clone(), x.clone().view(3, 2, 2)
    a.real.add_(1)
    a.imag.mul_(3)
    parts(b)[..., 0] = 5
    torch.view_as_complex(pairs).mul_(1j)
    c[1] = 2.0
    c[..., 0] = 0
    d.masked_fill_(x > 0, 0)
    e.zero_()
    return [*map(parts, (a, b, c, d, e)), pairs]


def beside_real(x):
    """Real numbers and tensors, and integers, beside complex numbers."""
    z, whole = complexes(x), (x > 0).long()
    joined = torch.where(x > 0, z, 1.0), torch.where(x > 0, 1.0, z), torch.where(x > 0, z, 1j), F.pad(z, (1, 1), value=1.0), torch.cat([z, whole]), torch.stack([z, whole])
    infinite = torch.tensor([1.0, math.inf], dtype=x.dtype).to(z.dtype) * x.sum().sign() ** 2
    return [*map(parts, joined), infinite.real, parts(z.to(z.dtype)), torch.zeros_like(z, dtype=x.dtype), torch.ones_like(z)[0].real]


def solved(m):
    vectors = m[0, :, 0]
    return torch.linalg.solve(regular(m), vectors), torch.linalg.solve(regular(m), m[0, :, :2]), torch.linalg.solve(regular(m), m[:, :, 0]), torch.linalg.solve(regular(m)[:1], m[:1, :, 0])


def symmetric(m):
    return m + m.mT


def by_eigenvalues(m):
    """What does not depend on the signs of eigenvectors."""
    values, vectors = torch.linalg.eigh(symmetric(m))
    own, upper = symmetric(m).tril(), torch.linalg.eigh(symmetric(m).triu(), UPLO="U")[1]
    return values, vectors.abs(), vectors @ torch.diag_embed(values.exp()) @ vectors.mT, torch.linalg.eigvalsh(own), upper.abs(), torch.linalg.eigh(m[..., :1, :1])[0]


def by_singular_values(m):
    wide = m[..., :2, :]
    found = [torch.linalg.svd(x, full_matrices=full) for x in (m, wide, wide.mT) for full in (False, True)]
    whole = [u[..., : s.shape[-1]] * s.unsqueeze(-2) @ v[..., : s.shape[-1], :] for u, s, v in found]
    # of one column, the second half of which is 0: all columns are orthogonal ones
    low = torch.linalg.svd(torch.cat([m[..., :1], m[..., :1] * 2, m[..., :2] * 0], -1))
    ones = [x.mT @ x for u, _s, v in [*found, low] for x in (u, v.mT)]
    return [*whole, *(s for _u, s, _v in found), *ones, low[1], torch.linalg.svdvals(m), torch.linalg.pinv(regular(m)),
            torch.linalg.pinv(m[..., :1] @ m[..., :1].mT, atol=torch.zeros((), dtype=m.dtype)), torch.linalg.pinv(definite(m).tril(), hermitian=True), torch.linalg.matrix_norm(m, 2), torch.linalg.matrix_norm(m, "nuc")]


def by_factors(m):
    zero = torch.cat([m[..., :1] * 0, m[..., 1:]], -1)
    factors = [part for x in (m, m[..., :3], m[..., :3, :], zero) for mode in ("reduced", "complete") for part in torch.linalg.qr(x, mode=mode)]
    lower = torch.linalg.cholesky(definite(m))
    return [*factors, torch.linalg.qr(m, mode="r")[1], torch.cholesky_solve(m[..., :2], lower), torch.cholesky_solve(m, lower.mT, upper=True), torch.cholesky_inverse(lower),
            torch.matrix_exp(m), torch.matrix_exp(-3 * definite(m)), torch.matrix_exp(m * 0)]  # fmt: skip


def of_gamma(x):
    more = torch.tensor([-2.5, -1.0, 0.0, 1e-5, 1.0, 2.0, 3.5, 60.0, 1e4, math.inf, math.nan]).to(x) + 0 * x.sum()
    # at poles, what is given must be the same number in both types: 8 x is, 6 x would be rounded
    return torch.lgamma(x * 8), torch.digamma(x * 8), torch.lgamma(more), torch.digamma(more), torch.distributions.Beta(x.abs() + 0.1, 2.0).log_prob(x.sigmoid())


def of_zeta(x):
    more = torch.tensor([-20.5, -2.5, -1.0, -0.5, 0.0, 1e-5, 0.5, 1.0, 3.5, 60.0, 1e4, math.nan]).to(x) + 0 * x.sum()
    # right of 0; torch's polygamma of order 1 is sine's rounding at poles, and less exact left of 0
    right = more[5:-1]
    return [torch.polygamma(0, x * 8), *[torch.polygamma(n, right) for n in (1, 2, 3)], torch.polygamma(7, right[1:]), torch.polygamma(1, more[-2:] / 0), torch.polygamma(2, x * 4), torch.polygamma(3, more[:2]), torch.special.zeta(x.abs() * 4 + 1.01, x.abs() + 0.1),
            *[torch.special.zeta(torch.full_like(more, s), more) for s in (1.0, 0.5, 2.0, 3.0, 7.0)], torch.special.zeta(2.5, right), torch.special.zeta(more.abs(), 1.5)]  # fmt: skip


def by_triangles(m):
    a, wide = regular(m), m[..., :3]
    p, lower, upper = torch.linalg.lu(a)
    both, pivots = torch.linalg.lu_factor(a)
    again = torch.lu_unpack(both, pivots)
    solved_by = [torch.linalg.lu_solve(both, pivots, b, left=left, adjoint=adjoint) for left, b in ((True, wide), (False, wide.mT)) for adjoint in (False, True)]
    zero = torch.linalg.lu_factor_ex(torch.cat([m[..., :1] * 0, a[..., 1:]], -1))[:2]
    return [p, lower, upper, both, pivots, *again, *solved_by, *zero, *torch.linalg.lu(m[..., :1, :1])]


def with_signs(x):
    holes = torch.where(x > 0.5, math.nan, x)
    return (torch.fmax(holes, x.flip(0)), torch.fmin(holes, x.flip(0)), torch.copysign(x, holes.flip(0)), torch.copysign(x, -1.0), torch.signbit(x), torch.signbit(x * 0 * x.sign()), torch.signbit((x * 9).long()),
            torch.copysign((x * 9).long(), x.flip(0)), torch.copysign(x.half(), x.flip(0)), x.round(decimals=1), (x * 300).round(decimals=-2), torch.fmax((x * 9).long(), (x * 9).long().flip(0)))  # fmt: skip


def of_modes(x):
    whole = (x * 2).round()
    # of longer rows torch names any of the places
    return (*whole.mode(1), *whole.long().mode(0, keepdim=True), whole.repeat(1, 3).mode()[0])


def beside_infinities(x):
    """Samples of pictures that are infinite at their edges."""
    x = torch.cat([x[:, :, :1] * 0 + math.inf, x[:, :, 1:-1], x[:, :, :1] * 0 - math.inf], 2)
    return [F.grid_sample(x, grid(x, 4, 5), mode=mode, padding_mode=padding) for mode in ("bilinear", "nearest", "bicubic") for padding in ("zeros", "border", "reflection")]


def by_zero(x):
    z, none = complexes(x), complexes(torch.where(x > 0, x, 0.0))
    return [parts(q) for q in (z / none, x / none, z * 0 / none)]


OPERATIONS = {
    "eigenvalues": (by_eigenvalues, M),
    "singular values": (by_singular_values, M),
    "factors": (by_factors, M),
    "of gamma": (of_gamma, X),
    "with signs": (with_signs, X),
    "modes": (of_modes, (5, 6)),
    "beside infinities": (beside_infinities, PICTURE),
    "complex by zero": (by_zero, X),
    "fewer places around": (lambda x: [F.pad(x, pads, mode=mode) for mode in ("circular", "reflect", "replicate") for pads in ((1, -2, 0, 0), (-1, 2, 1, -1), (-2, -1, 3, 2))], PICTURE),
    "diagonals written": (lambda m: (torch.diagonal_scatter(m[0], m[1, 0]), torch.diagonal_scatter(m, m[0, :2, :3], 1, 1, 2)), M),
    "added at places": (lambda x: (x.scatter(1, (x > 0).long(), 1.5, reduce="add"), x.scatter(1, (x > 0).long(), x * 2, reduce="add")), X),
    "distances": (lambda x: (torch.cdist(x, x + 1, p=3.0), torch.cdist(x, x.flip(0), p=0.0), torch.cdist(x, x + 1, p=math.inf), F.pdist(x), F.pdist(x, 1.0), F.pdist(x[:1])), X),
    "bilinear": (lambda x: (F.bilinear(x, x[:, :3], x.repeat(2, 1)[:5, :4, None] * x[0, :3]), F.bilinear(x[0], x[1], torch.ones(2, 4, 4).to(x), torch.ones(2).to(x)), F.rrelu(x), torch.atleast_2d(x[0]),
                            torch.atleast_1d(x[0, 0]), F.multi_margin_loss(x, torch.tensor([0, 1, 3]))), X),
    "written by parts": (written_by_parts, X),
    "beside real numbers": (beside_real, X),
    "vectors transformed": (lambda x: (parts(fft.rfft(x[0])), parts(fft.fft(complexes(x)[0])), fft.irfft(complexes(x)[0]), parts(fft.ifft(complexes(x)[1]))), X),
    "solutions of vectors": (solved, (3, 4, 4)),
    "upper factors": (lambda m: (torch.linalg.cholesky(definite(m).triu(), upper=True), torch.linalg.cholesky(definite(m).tril())), (2, 4, 4)),
    "to one place": (lambda x: [F.interpolate(x, size=size, mode=mode, align_corners=True, antialias=True) for mode in ("bilinear", "bicubic") for size in ((1, 1), (1, 9))], (2, 1, 6, 7)),
    "complex arithmetic": (lambda x: [parts(z) for z in (complexes(x) * complexes(x + 1), complexes(x) / complexes(x + 2), complexes(x) / 3, 2 / complexes(x + 1), x * complexes(x),
                                                         complexes(x) - x, 1 - complexes(x), complexes(x) + 2j, complexes(x) ** 3, complexes(x).square(), complexes(x).reciprocal(), -complexes(x))], X),
    "complex parts": (lambda x: (complexes(x).abs(), complexes(x).angle(), complexes(x).real, complexes(x).imag, *[parts(z) for z in (
        complexes(x).conj() * 1j, complexes(x).exp(), complexes(x + 3).log(), torch.polar(x.abs(), x), torch.conj_physical(complexes(x)), x.to(torch.complex128 if x.dtype == torch.float64 else torch.complex64))],
        x.angle(), torch.imag(complexes(x)).sum(), parts(complexes(x).conj().resolve_conj()), complexes(x)[0].dot(complexes(x)[1]).abs(), torch.outer(complexes(x)[0], complexes(x)[1]).real), X),
    "complex views": (lambda x: [parts(z) for z in (complexes(x).t(), complexes(x)[1:, ::2], torch.cat([complexes(x), complexes(x)]), torch.stack([complexes(x), complexes(x) * 2], 1), complexes(x).sum(0),
                                                    complexes(x).mean(), *complexes(x).chunk(2, 1), F.pad(complexes(x), (1, 2)), complexes(x).roll(1, 0), complexes(x).flip(1), complexes(x)[torch.tensor([2, 0])],
                                                    torch.where(x > 0, complexes(x), complexes(x) * 2), torch.view_as_complex(x.view(3, 2, 2)), complexes(x).expand(2, 3, 4), turned(x))], X),
    "complex products": (lambda x: [parts(z) for z in (complexes(x) @ complexes(x).t(), complexes(x[0]) @ complexes(x).t(), torch.einsum("ij,kj->ik", complexes(x), complexes(x + 1)),
                                                       torch.einsum("ij->ji", complexes(x)), torch.zeros(2, 2, dtype=torch.complex64) + complexes(x)[:2, :2])], X),
    "rotary": (lambda x: parts(torch.view_as_complex(x.view(3, 2, 2)) * torch.polar(torch.ones(3, 2), torch.arange(6.0).view(3, 2) / 3)).flatten(1), X),
    "fourier real": (lambda x: (parts(fft.rfft(x)), parts(fft.rfft(x, norm="ortho")), parts(fft.fft(x)), fft.irfft(fft.rfft(x), n=4), fft.irfft(fft.rfft(x), n=5), fft.irfft(fft.rfft(x)[:, :2], n=7),
                                parts(fft.rfft2(x)), fft.irfft2(fft.rfft2(x, norm="ortho"), s=(3, 4), norm="ortho"), parts(fft.rfft(x, dim=0)), parts(fft.rfft(x, n=6)), fft.rfft(x).abs(), fft.ifftn(fft.fftn(x)).real), X),
    "fourier complex": (lambda x: [parts(z) for z in (fft.fft(complexes(x)), fft.ifft(complexes(x)), fft.fft2(complexes(x), norm="forward"), fft.fftshift(fft.fft(complexes(x))), fft.fft(complexes(x), dim=0),)], X),
    "fourier long": (lambda x: (parts(fft.rfft(x)), parts(fft.fft(complexes(x))), fft.irfft(complexes(x)[:, :66]), fft.irfft(complexes(x)[:, :50], n=99), fft.irfft(fft.rfft(x[:, :127]), n=127), parts(fft.ifft(complexes(x[:, :127])))), LINE),
    "short time": (lambda x: (torch.stft(x, 16, 4, window=torch.hann_window(16), return_complex=True).abs(),
                              torch.istft(torch.stft(x, 16, 4, window=torch.hann_window(16), return_complex=True), 16, 4, window=torch.hann_window(16))), LINE),
    "running": (lambda x: (*x.cummax(1), *x.cummin(0), x.logcumsumexp(1), x.cumprod(0), *(x.round() * 1).cummax(0), *x.long().cummin(1), (x.repeat(1, 30).tanh() * 0.01 + 1).prod(1),
                           torch.cat([x, x.log(), x], 1).cummax(1)[0], torch.cat([x[:, :1].new_full((3, 2), float("-inf")), x], 1).logcumsumexp(1)), X),
    "medians": (lambda x: (x.median(), *x.median(1), *x.median(0, keepdim=True), torch.nanmedian(x.log()), torch.nanmedian(x.log(), 1)[0], *torch.nanmedian(x, 0), x.log().median(1)[0], (x * 9).long().median(1)[0]), X),
    "special": (lambda x: (torch.erfinv(x.tanh()), torch.erfinv(x * 1e-4), torch.special.erfinv(torch.tensor([1 - 2.0**-20, -0.999755859375, 0.5, -0.75]).to(x) + x * 0), torch.special.i0(x * 4), torch.special.i0e(x * 9), torch.special.i1(x * 4), torch.special.i1e(x * 9),
                           torch.erfinv(torch.tensor([-1.0, 0.0, 1.0, 1.5]).to(x) + x * 0)), X),
    "zeta": (of_zeta, X), "triangles": (by_triangles, M),
    "norms of several": (lambda x: (F.rms_norm(x, (3, 4), eps=1e-6), F.rms_norm(x, (3, 4), x.abs(), eps=1e-6), torch.linalg.vector_norm(x, 3, 1), torch.linalg.vector_norm(x, 0, 1),
                                    torch.linalg.vector_norm(x, float("-inf"), 0)), X),
    "cartesian": (lambda x: (torch.cartesian_prod(x[0], x[1]), torch.cartesian_prod(x[0], x[1], x[2, :2]), torch.cartesian_prod(x[0])), X),
    "transposed in place": (transposed_in_place, X),
    "sizes of pictures": (lambda x: (F.interpolate(x, (9, 5), mode="bicubic"), F.interpolate(x, scale_factor=1.7, mode="bicubic", align_corners=True), F.interpolate(x, (4, 3), mode="bilinear", antialias=True),
                                     F.interpolate(x, (9, 4), mode="bicubic", antialias=True), F.interpolate(x, (4, 10), mode="bilinear", antialias=True, align_corners=True)), PICTURE),
    "samples": (lambda x: [F.grid_sample(x, grid(x, 4, 5), mode=mode, padding_mode=padding, align_corners=corners)
                           for mode in ("bilinear", "nearest", "bicubic") for padding in ("zeros", "border", "reflection") for corners in (False, True)], PICTURE),
    "samples of volumes": (lambda x: [F.grid_sample(x, grid(x, 2, 3, 4), mode=mode, padding_mode=padding, align_corners=False) for mode in ("bilinear", "nearest") for padding in ("zeros", "border", "reflection")]
                           + [F.interpolate(x, scale_factor=2, mode="trilinear")], VOLUME),
    "grid": (lambda x: (F.grid_sample(x, F.affine_grid(x[:, 0, :2, :3] / 3, [2, 3, 4, 5], align_corners=False), align_corners=False), torch.ops.aten.grid_sampler(x, grid(x, 4, 5), 0, 0, False)), PICTURE),
    "matrices": (lambda m: (torch.inverse(regular(m)), torch.linalg.det(regular(m)), *torch.linalg.slogdet(regular(m)), torch.linalg.solve(regular(m), m[..., :3]), torch.linalg.solve(regular(m), m[..., 0]),
                            torch.linalg.solve(regular(m), m, left=False), torch.linalg.cholesky(definite(m)), torch.linalg.cholesky(definite(m), upper=True), torch.linalg.det(m * 0),
                            *[torch.linalg.solve_triangular(regular(m).flip(-1), m, upper=upper, left=left) for upper in (False, True) for left in (False, True)],
                            torch.linalg.solve_triangular(m / 4, m, upper=False, unitriangular=True)), M),
}  # fmt: skip


def placed(x, n=0):
    """Places in a dimension of n, several elements at some."""
    return (x.abs() * 100).long() % (n or x.shape[0])


OPERATIONS |= {
    "products at places": (lambda x: (x.scatter_reduce(0, placed(x), x, "prod"), x.scatter_reduce(1, placed(x, 4), x * 2, "prod", include_self=False), x.scatter(0, placed(x), x, reduce="multiply"), x.scatter(1, placed(x, 4)[:2, :3], 2.5, reduce="multiply"),
                                      x.scatter_reduce(1, placed(x, 4)[:2, :3], x, "prod"), (x > 0).scatter_reduce(0, placed(x), x > 0.5, "prod"), x[0, 0].scatter_reduce(0, torch.tensor(0), x[1, 1], "prod"), (x * 0).scatter_reduce(0, placed(x), x, "prod")), X),
    "reduced rows": (lambda x: [x.index_reduce(d, placed(x[0, :3], x.shape[d]) % 2, x.narrow(d, 0, 3), how, include_self=own) for d in (0, 1) for how in ("prod", "mean", "amin") for own in (False, True)], X),
    "filled diagonals": (lambda x: ((x + 0).fill_diagonal_(2.5), x.T.repeat(3, 1).fill_diagonal_(1, wrap=True), x.T.repeat(3, 1).fill_diagonal_(1), x.expand(3, 3, 4)[:, :, :3].clone().fill_diagonal_(-1)), X),
    "rolled further than it is long": (lambda x: (x.roll(7, 0), x.roll(-6, 1), x.roll((9, -3), (0, 1)), x.roll(26), x.roll(12)), X),
    "numbers made of sizes": (lambda x: (F.softplus(x, beta=x.shape[0]), F.softplus(x, 2, x.shape[1]), torch.xlogy(x.abs(), x.shape[0]), torch.xlogy(x.shape[1], x.abs())), X),
}  # fmt: skip


@pytest.mark.parametrize("name", OPERATIONS)
def test_operation(name, instance):
    print("seed", SEED)
    function, shape = OPERATIONS[name]
    check(Of(function), (some(*shape),), instance)


@pytest.mark.parametrize("name", ["running", "medians", "cartesian", "products", "rolled"])
def test_operation_of_any_size(name, instance):
    """The example has 3 rows; calls have 1, 2 and 7."""
    function = {
        "running": lambda x: (*x.cummax(0), x.logcumsumexp(0), x.cumprod(0), x.prod(0)), "medians": lambda x: (*x.median(0), torch.nanmedian(x.log(), 0)[0]),
        "cartesian": lambda x: torch.cartesian_prod(x[:, 0], x[0]),
        "products": lambda x: (x.scatter_reduce(0, placed(x), x, "prod"), x.scatter_reduce(0, placed(x), x, "prod", include_self=False)),
        "rolled": lambda x: (x.roll(3, 0), x.roll(-2, 0), x.roll(x.shape[0] // 2, 0), x.roll(9), torch.fft.fftshift(x, 0)),
    }[name]  # fmt: skip
    rows = torch.export.Dim("rows", max=64)
    check(Of(lambda x: function(x)), (some(3, 4),), instance, [(some(n, 4),) for n in (1, 2, 7)], dynamic_shapes=(({0: rows},),))


def held(x):
    made = [torch.full_like(x, 0.1), (x + 0).fill_(0.1), x.new_full((3,), 0.1), torch.where(x > 0, x, 0.1), x.masked_fill(x > 0, 0.1), x.clamp(0.1, 0.7), x.clamp(max=-0.1), torch.maximum(x, torch.tensor(0.1)),
            F.hardtanh(x, -0.1, 0.7), F.pad(x, (1, 1), value=0.1), x.scatter(0, torch.tensor([[0, 2, 1, 1]]), 0.1), F.threshold(x, 0.1, 0.3)]  # fmt: skip
    return [item.float() for item in made] + [x.new_full((2,), 0.1) == 0.1, x.new_full((2,), 0.7) > 0.7]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_numbers_that_become_elements_of_16_bits_are_rounded_to_them(dtype, instance):
    x = some(3, 4).to(dtype)
    session, _ = session_of(Of(held), (x,), instance)
    for ours, theirs in zip(session.forward(x), held(x)):
        ours = torch.from_dlpack(ours)
        assert ours.dtype == theirs.dtype and ours.equal(theirs), (ours, theirs)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_wider_number_without_dimensions_is_not_cut_to_16_bits(dtype, instance):
    """Beside float64: torch itself cuts one that stands first on a CPU."""

    def function(x, y):
        large, small = (y * y).sum() * 1e4 + 1e5, (y * y).sum() * 1e-9
        return x / large * 1000, large * (x * 0.01), x - small * x, x * 0.01 * large.double(), small + x

    x, y = some(3, 4).to(dtype), some(4)
    session, _ = session_of(Of(function), (x, y), instance)
    for ours, theirs in zip(session.forward(x, y), function(x.double(), y.double())):
        ours, error = torch.from_dlpack(ours), 4 * torch.finfo(dtype).eps
        assert ours.dtype == dtype
        torch.testing.assert_close(ours.double(), theirs, rtol=error, atol=error * float(theirs.abs().max()))


def test_numbers_beside_tensors_of_f64_are_f64(instance):
    x = torch.linspace(0.3, 9, 13, dtype=torch.float64)
    function = Of(lambda x: (torch.special.zeta(2.1, x), torch.special.zeta(x + 1.1, 1.3)))
    session, _module = session_of(function, (x,), instance)
    for ours, theirs in zip(called(session, (x,)), function(x)):
        torch.testing.assert_close(torch.from_numpy(ours), theirs, rtol=1e-12, atol=0.0)


def test_pictures_of_any_size(instance):
    """Pooled to a fixed size, transformed, and doubled, whatever the height."""
    height = torch.export.Dim("height", min=4, max=64)

    def function(x):
        return F.adaptive_avg_pool2d(x, (3, 2)), F.adaptive_max_pool2d(x, (4, 7)), parts(torch.fft.rfft(x, dim=2, norm="ortho")), F.interpolate(x, scale_factor=2, mode="bicubic")

    check(Of(function), (some(2, 3, 8, 7),), instance, [(some(2, 3, n, 7),) for n in (4, 5, 11)], dynamic_shapes=(({2: height},),))


def test_sixteen_bits_do_not_overflow_between(instance, tmp_path):
    """Squares and running products beyond f16's range, whose results are not."""
    x = torch.tensor([[200.0] * 4, [300.0, 300.0, 0.001, 0.001]]).half()
    model = Of(lambda x: (F.normalize(x, dim=-1), torch.linalg.vector_norm(x, 3, dim=-1), x.cumprod(-1)))
    accrt.from_torch(model, (x,), tmp_path / "m.accx")
    found = accrt.load(tmp_path / "m.accx").forward(x)
    for one, reference in zip(found, model(x)):
        one, reference = torch.from_dlpack(one).double(), reference.double()
        finite = reference.isfinite()
        assert torch.equal(one[~finite], reference[~finite]) and torch.allclose(one[finite], reference[finite], rtol=2e-3)


def test_the_median_of_nothing(instance, tmp_path):
    x = torch.empty(0, 3)
    accrt.from_torch(Of(lambda x: (x.median(), x.nanmedian())), (x,), tmp_path / "m.accx")
    assert all(math.isnan(float(one)) for one in accrt.load(tmp_path / "m.accx").forward(x))


def test_pictures_of_bytes_are_refused(tmp_path):
    """Shares of places are no bytes."""
    with pytest.raises(Exception, match="pictures of u8 by shares of places; cast them to f32 first"):
        accrt.from_torch(Of(lambda x: F.interpolate(x, size=(5, 5), mode="bicubic")), (torch.zeros(1, 1, 3, 3, dtype=torch.uint8),), tmp_path / "m.accx")


LAYERS = {
    "lstm": lambda: torch.nn.LSTM(4, 6, 2, batch_first=True), "lstm both ways": lambda: torch.nn.LSTM(4, 6, 2, bidirectional=True, bias=False),
    "lstm projected": lambda: torch.nn.LSTM(4, 6, proj_size=3, bidirectional=True), "gru": lambda: torch.nn.GRU(4, 6, 2, bidirectional=True), "gru plain": lambda: torch.nn.GRU(4, 6, bias=False, batch_first=True),
    "rnn": lambda: torch.nn.RNN(4, 6, 2), "rnn relu": lambda: torch.nn.RNN(4, 6, nonlinearity="relu", bidirectional=True),
}  # fmt: skip


@pytest.mark.parametrize("steps", [1, 5, 40])
@pytest.mark.parametrize("name", LAYERS)
def test_recurrent_layers(name, steps, instance):
    torch.manual_seed(SEED & 0x7FFFFFFF)
    check(Of(LAYERS[name]().eval()), (some(steps, 3, 4),), instance)


@pytest.mark.parametrize("name", ["lstm", "gru", "rnn relu"])
def test_recurrent_layers_of_any_batch(name, instance):
    """torch's export fixes the length. The loop's weights keep their names."""
    torch.manual_seed(SEED & 0x7FFFFFFF)
    layer, batch = LAYERS[name]().eval(), torch.export.Dim("batch", max=64)
    at = 0 if name == "lstm" else 1
    inputs = [(some(n, 12, 4) if at == 0 else some(12, n, 4),) for n in (3, 1, 7)]
    module = check(Of(layer), inputs[0], instance, inputs[1:], dynamic_shapes=(({at: batch},),))
    assert {f"function.{n}" for n, _ in layer.named_parameters()} <= set(module.constants)


def test_first_states_are_inputs(instance):
    torch.manual_seed(SEED & 0x7FFFFFFF)
    check(_With(torch.nn.LSTM(4, 6).eval()), (some(9, 2, 4), some(1, 2, 6), some(1, 2, 6)), instance)


class _With(torch.nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x, h, c):
        return self.layer(x, (h, c))


class Spectral(torch.nn.Module):
    """A layer of a Fourier neural operator: complex weights, and a tensor of zeros that is
    written."""

    def __init__(self):
        super().__init__()
        self.weights = torch.nn.Parameter(torch.randn(3, 4, 3, 3, dtype=torch.cfloat))

    def forward(self, x):
        spectrum = torch.fft.rfft2(x)
        out = torch.zeros(x.shape[0], 4, x.size(-2), x.size(-1) // 2 + 1, dtype=torch.cfloat)
        out[:, :, :3, :3] = torch.einsum("bixy,ioxy->boxy", spectrum[:, :, :3, :3], self.weights)
        return torch.fft.irfft2(out, s=(x.size(-2), x.size(-1)))


def test_complex_weights(instance):
    """Both of their parts have names."""
    torch.manual_seed(SEED & 0x7FFFFFFF)
    model, x = Spectral().eval(), some(2, 3, 8, 10)
    session, module = session_of(model, (x,), instance)
    assert {"weights.real", "weights.imag"} <= set(module.constants)
    with torch.no_grad():
        (wanted,) = leaves(model(x))
    (ours,) = called(session, (x,))
    close(ours, wanted)


@pytest.mark.parametrize(("function", "said"), [
    (lambda x: torch.linalg.inv(x.expand(40, 40)), "32 rows"), (lambda x: torch.linalg.eigvalsh(x.expand(40, 40)), "1 to 32 rows"), (lambda x: torch.linalg.eigvals(x[:2, :2]).abs(), "not symmetric"),
    (lambda x: x @ x.T.half(), "product of different types"), (lambda x: F.linear(x, x.half()), "product of different types"), (lambda x: torch.addmm(x[:, 0].half(), x, x.T), "product of different types"),
    (lambda x: torch.linalg.lu(x)[0], "1 to 32 rows"), (lambda x: torch.polygamma(171, x), "beyond f64 above 170"), (lambda x: torch.bincount(x[0].long()), "scatter_add"), (lambda x: x.repeat_interleave(x[:, 0].long().abs(), 0, output_size=7), "searchsorted"), (lambda x: x + torch.randn_like(x), "pass them in"), (lambda x: F.adaptive_max_pool2d(x[None], 2, return_indices=True), "beside its first result"), (lambda x: torch.linalg.svdvals(x.expand(40, 40)), "1 to 32, known"), (lambda x: torch.complex(x, x).cumsum(0).sin().real, "complex numbers"),
    (lambda x: torch.igamma(x.abs(), x.abs()), "aten.igamma.default x1: no kernel has it: .* and pass it in"), (lambda x: torch.sparse.mm(x.to_sparse(), x.T), "keep it dense, .* index_add"),
    (lambda x: torch.histogram(x, 4)[0], "torch.histc is there"), (lambda x: x.view(torch.int32), "the bits of f32 as i32: only integers"),
    (lambda x: x.put(torch.tensor([1]), torch.ones(1)), "scatter.* is there"), (lambda x: torch.nested.as_nested_tensor([x, x]).to_padded_tensor(0), "_nested_tensor_from_tensor_list.* bundles have no nested tensors: .*pad"),
    (lambda x: torch.from_numpy(x.numpy() * 2), r"Tensor.numpy x1: .*torch's functions in the place of numpy's: .*x.numpy\(\) \* 2.* \(python/test_from_torch_operations.py:\d+, in "),
    (lambda x: (torch.complex(x, x) ** 0.5).real, "whole powers"), (lambda x: torch.complex(x, x), "tensors of complex64, which bundles do not have: return view_as_real"),
])  # fmt: skip
def test_what_is_not_there_is_named(function, said):
    with pytest.raises(UnsupportedOperations, match=said):
        convert(Of(function), (whole(40, 1).float() if "32" in said else some(3, 4),))


@pytest.mark.parametrize("shapes, grouped", [
    ([(5, 8)] * 3, False), ([(3, 5, 8), (3, 7, 8), (3, 7, 6), (3, 5, 7)], False), ([(3, 5, 8), (3, 7, 8), (3, 7, 6), (1, 5, 7)], False),
    ([(3, 5, 8), (3, 7, 8), (3, 7, 6), (5, 7)], False), ([(4, 5, 8), (2, 7, 8), (2, 7, 8), (4, 5, 7)], True), ([(2, 3, 4, 5, 8)] * 3, False),
    ([(2, 3, 4, 5, 8)] * 3 + [(3, 4, 5, 5)], False), ([(2, 3, 4, 5, 8)] * 3 + [(2, 1, 1, 5, 5)], False), ([(2, 3, 4, 5, 8)] * 3 + [(4, 5, 5)], False),
    ([(2, 1, 3, 4, 5, 8)] * 3, False),
])  # fmt: skip
def test_attention_of_other_than_four_dimensions(shapes, grouped, instance):
    check(Of(lambda *x: F.scaled_dot_product_attention(*x, enable_gqa=grouped)), tuple(some(*shape) for shape in shapes), instance)


@pytest.mark.parametrize("query, key, value, mask", [
    ((2, 4, 5, 8), (1, 1, 6, 8), (1, 1, 6, 8), None), ((2, 4, 5, 8), (4, 6, 8), (4, 6, 8), (5, 6)), ((2, 4, 5, 8), (6, 8), (6, 8), (2, 1, 1, 6)),
    ((1, 4, 5, 8), (2, 4, 6, 8), (2, 4, 6, 8), (2, 4, 5, 6)), ((2, 1, 5, 8), (2, 4, 6, 8), (2, 4, 6, 8), None), ((2, 4, 5, 8), (2, 4, 6, 8), (2, 1, 6, 3), (5, 6)),
    ((5, 8), (3, 6, 8), (3, 6, 8), (5, 6)), ((3, 2, 4, 5, 8), (2, 4, 6, 8), (3, 1, 1, 6, 8), None), ((4, 5, 8), (2, 4, 6, 8), (1, 4, 6, 3), (4, 5, 6)),
    ((1, 1, 5, 8), (2, 1, 6, 8), (2, 4, 6, 8), None),
])  # fmt: skip
def test_attention_expands_as_torch_does(query, key, value, mask, instance):
    check(Of(F.scaled_dot_product_attention), tuple(some(*shape) for shape in (query, key, value, mask) if shape), instance)


def test_attention_expands_to_a_batch_that_varies(instance):
    sizes = {0: torch.export.Dim("batch", max=64)}
    for shapes, dims in (([(2, 4, 5, 8), (4, 6, 8)], (sizes, None)), ([(4, 5, 8), (2, 4, 6, 8)], (None, sizes)), ([(2, 1, 5, 8), (1, 4, 6, 8)], (sizes, None))):
        other = [(3, *shape[1:]) if dim else shape for shape, dim in zip(shapes, dims)]
        one = [(1, *shape[1:]) if dim else shape for shape, dim in zip(shapes, dims)]
        given = [tuple(some(*shape) for shape in sizes) for sizes in (shapes, other, one)]
        check(Of(lambda q, k: F.scaled_dot_product_attention(q, k, k)), given[0], instance, given[1:], dynamic_shapes=(dims,))


def test_attention_of_three_dimensions_has_any_batch(instance):
    dims = {0: torch.export.Dim("batch", max=64), 1: torch.export.Dim("tokens", max=64)}
    check(Of(lambda x: F.scaled_dot_product_attention(x, x, x)), (some(5, 4, 8),), instance, [(some(1, 7, 8),), (some(9, 1, 8),)], dynamic_shapes=((dims,),))
