"""Scaled-dot-product attention against float64: masks, causal, grouped heads, caches, empty and
fully masked rows."""

import numpy as np
import pytest

import kernel_harness as harness
from accrt.compiler.kernels import attention as at
from accrt.compiler.kernels.kerneldef import TensorSpec

pytestmark = pytest.mark.one_target  # of this machine's, in a run of the whole folder
TARGETS = harness.host_targets()
RNG = np.random.default_rng(harness.SEED)


def reference(q, k, v, mask, scale, offset, first=None):
    """float64; a row that sees no key gives zeros."""
    group = q.shape[1] // k.shape[1]
    scores = q @ np.repeat(k, group, 1).swapaxes(-1, -2) * scale
    if mask is not None:
        scores = np.where(mask, scores, -np.inf) if mask.dtype == bool else scores + mask
    if offset is not None:
        seen = np.arange(k.shape[2])[None] <= np.arange(q.shape[2])[:, None] + offset
        scores = np.where(seen, scores, -np.inf)
    if first is not None:
        scores = np.where(np.arange(k.shape[2])[None] >= np.arange(q.shape[2])[:, None] + first, scores, -np.inf)
    top = scores.max(-1, keepdims=True, initial=-np.inf)
    weights = np.exp(scores - np.where(np.isinf(top), 0, top))
    total = weights.sum(-1, keepdims=True)
    return (weights / np.where(total == 0, 1, total)) @ np.repeat(v, group, 1)


def run(q, k, v, target, dtype="f32", kv_dtype=None, mask=None, mask_dtype=None, live=None, causal=False, offset=None, scale=None, first=None):
    kv_dtype = kv_dtype or dtype
    shape = (*q.shape[:3], v.shape[-1])
    out = np.empty((shape[0], shape[2], shape[1], shape[3]), harness.NUMPY[dtype]).swapaxes(1, 2)
    specs = [harness.spec_of(q, dtype), harness.spec_of(k, kv_dtype), harness.spec_of(v, kv_dtype), harness.spec_of(out, dtype)]
    mask_spec = None if mask is None else harness.spec_of(mask, mask_dtype)
    launch = at.lower_attention(*specs, mask_spec, causal=causal, kv_len=live, causal_offset=offset, scale=scale, first_offset=first)
    inputs = {"q": q, "k": k, "v": v}
    inputs.update({} if mask is None else {"mask": mask})
    got = harness.run(launch, inputs, {"out": out}, target, threads=2)["out"]
    live = k.shape[2] if live is None else live
    offset = (live - q.shape[2] if offset is None else offset) if causal else None
    wide_mask = mask if mask is None or mask_dtype == "bool" else harness.decode(mask, mask_dtype)
    with np.errstate(all="ignore"):
        exact = reference(
            harness.decode(q, dtype), harness.decode(k, kv_dtype)[:, :, :live], harness.decode(v, kv_dtype)[:, :, :live],
            wide_mask, q.shape[-1] ** -0.5 if scale is None else scale, offset, first,
        )  # fmt: skip
    return harness.decode(got, dtype), exact


# Scores up to ~10 are off by a few f32 roundings of 10, which is the relative error of their
# weights; results of a 16-bit type are rounded once more.
TOLERANCE = {"f32": 8e-6, "bf16": 2.0**-8, "f16": 2.0**-10}


def random(shape, dtype="f32"):
    return harness.encode(RNG.standard_normal(shape), dtype)


@pytest.mark.rotating(5)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    "batch,heads,kv_heads,q_len,capacity,live,size,value_size,causal,dtype",
    [
        (2, 12, 12, 32, 32, 32, 32, 32, False, "f32"),
        (1, 4, 2, 1, 64, 37, 64, 64, True, "f32"),
        (1, 8, 2, 7, 300, 259, 40, 40, True, "f32"),
        (2, 2, 1, 150, 150, 150, 96, 96, True, "f32"),
        (1, 2, 2, 130, 200, 200, 32, 48, False, "f32"),
        (1, 6, 3, 2, 9, 5, 7, 3, True, "f32"),
        (3, 1, 1, 1, 1, 1, 1, 1, False, "f32"),
        (1, 8, 2, 7, 300, 259, 40, 40, True, "bf16"),
        (1, 4, 2, 1, 64, 37, 64, 64, True, "bf16"),
        (1, 2, 2, 130, 200, 200, 40, 48, False, "f16"),
        (1, 6, 3, 2, 9, 5, 47, 33, True, "f16"),
    ],
)
def test_shapes(batch, heads, kv_heads, q_len, capacity, live, size, value_size, causal, dtype, target):
    q = random((batch, q_len, heads, size), dtype).swapaxes(1, 2)
    k, v = random((batch, kv_heads, capacity, size), dtype), random((batch, kv_heads, capacity, value_size), dtype)
    # What lies past the live length must not matter, not even NaN.
    k[:, :, live:], v[:, :, live:] = harness.encode(np.nan, dtype), harness.encode(np.nan, dtype)
    got, exact = run(q, k, v, target, dtype, live=live, causal=causal)
    np.testing.assert_allclose(got, exact, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@pytest.mark.rotating(6)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("mask_dtype", ["bool", "f32", "f16"])
@pytest.mark.parametrize("mask_shape", [(2, 1, 1, 70), (2, 4, 33, 70), (1, 4, 1, 1), (70,), (33, 1)])
def test_masks_broadcast(mask_shape, mask_dtype, target):
    q, k, v = random((2, 4, 33, 32)), random((2, 4, 70, 32)), random((2, 4, 70, 32))
    mask = RNG.random(mask_shape) < 0.7 if mask_dtype == "bool" else harness.encode(RNG.standard_normal(mask_shape) * 3, mask_dtype)
    got, exact = run(q, k, v, target, mask=mask, mask_dtype=mask_dtype)
    np.testing.assert_allclose(got, exact, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("heads,q_len,keys,causal,offset,first,masked", [
    (2, 300, 300, True, 0, -36, False), (4, 300, 300, True, 0, 0, False), (2, 1, 400, True, 399, 300, False), (4, 2, 400, True, 398, 270, True),
    (2, 200, 200, True, 64, -64, False), (2, 70, 300, False, None, 200, True), (2, 5, 9, True, 4, 7, False), (2, 40, 300, True, 260, 129, True),
    (1, 3, 10, False, None, 9, False),
])  # fmt: skip
def test_windows(heads, q_len, keys, causal, offset, first, masked, target):
    """Keys before a window are not read at all where no row of a block sees them: they are NaN.
    A row past all keys sees nothing."""
    q, k, v = random((2, heads, q_len, 32)), random((2, 2 if heads > 1 else 1, keys, 32)), random((2, 2 if heads > 1 else 1, keys, 48))
    mask = RNG.random((2, 1, 1, keys)) < 0.8 if masked else None
    k[:, :, : max(first, 0)], v[:, :, : max(first, 0)] = np.nan, np.nan
    got, _ = run(q, k, v, target, mask=mask, mask_dtype="bool", causal=causal, offset=offset, first=first)
    k, v = np.nan_to_num(k), np.nan_to_num(v)
    exact = reference(*(x.astype(np.float64) for x in (q, k, v)), mask, 32**-0.5, offset, first)
    np.testing.assert_allclose(got, exact, rtol=1e-5, atol=1e-5)
    seen = np.arange(q_len) + first < keys
    assert (got[:, :, ~seen] == 0).all() and (first > (offset or first) or (got[:, :, seen] != 0).any())


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("q_len", [3, 40])
def test_rows_that_see_nothing_give_zeros(q_len, target):
    q, k, v = random((1, 2, q_len, 32)), random((1, 2, 50, 32)), random((1, 2, 50, 32))
    mask = np.ones((1, 1, q_len, 50), bool)
    mask[:, :, 1] = False
    got, exact = run(q, k, v, target, mask=mask, mask_dtype="bool")
    assert (got[:, :, 1] == 0).all()
    np.testing.assert_allclose(got, exact, rtol=1e-5, atol=1e-5)
    got, exact = run(q, k, v, target, causal=True, offset=-2)
    assert (got[:, :, :2] == 0).all() and (got[:, :, 2] != 0).any()
    np.testing.assert_allclose(got, exact, rtol=1e-5, atol=1e-5)
    got, _ = run(q, k, v, target, live=0)
    assert (got == 0).all()


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("q_len", [2, 40])
def test_extreme_scores_and_nan(q_len, target):
    q, k, v = random((1, 1, q_len, 32)), random((1, 1, 200, 32)), random((1, 1, 200, 32))
    got, exact = run(q * 1e3, k, v, target, scale=30.0)
    # One key takes all the weight; ties within the rounding of scores of 1e6 would show as larger
    # errors.
    assert np.median(np.abs(got - exact)) < 1e-5
    k[0, 0, 150, 3] = np.nan
    got, _ = run(q, k, v, target)
    assert np.isnan(got).all()
    got, exact = run(q, k, v, target, causal=True, offset=0)
    np.testing.assert_allclose(got, exact[:, :, :q_len], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("target", TARGETS)
def test_zero_lengths(target):
    for shape_q, shape_k in (((0, 2, 3, 8), (0, 2, 4, 8)), ((2, 2, 0, 8), (2, 2, 4, 8)), ((2, 2, 3, 8), (2, 2, 0, 8))):
        got, exact = run(random(shape_q), random(shape_k), random(shape_k), target)
        np.testing.assert_array_equal(got, exact)


@pytest.mark.parametrize("target", TARGETS)
def test_decoding_equals_prefill(target):
    # Row by row against a growing cache, the results are those of all rows at once up to rounding.
    q, k, v = random((1, 4, 20, 64)), random((1, 2, 32, 64)), random((1, 2, 32, 64))
    whole, _ = run(q, k, v, target, live=20, causal=True)
    for i in range(20):
        one, _ = run(q[:, :, i : i + 1], k, v, target, live=i + 1, causal=True)
        np.testing.assert_allclose(one[:, :, 0], whole[:, :, i], rtol=2e-6, atol=2e-6)


def test_unusable_operands_are_named():
    spec = TensorSpec.contiguous
    good = spec("f32", (1, 4, 3, 8))
    for q, k, text in (
        (spec("f32", (4, 3, 8)), good, "rank 3"),
        (spec("f32", (1, 3, 3, 8)), spec("f32", (1, 2, 3, 8)), "no multiple"),
        (spec("f32", (1, 1, 3, 300)), spec("f32", (1, 1, 3, 300)), "at most 256"),
        (TensorSpec("f32", (1, 4, 3, 8), (96, 24, 1, 3)), good, "the last axis has stride 3"),
    ):
        with pytest.raises(ValueError, match=text):
            at.lower_attention(q, k, k, q)
