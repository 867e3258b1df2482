"""The bundles of the example models as they are shipped: what they give on a GPU beside what they
give on the host. The folder of the bundles is in ACCRT_TEST_BUNDLES."""

from __future__ import annotations

import os
import pathlib

import numpy as np
import pytest

import accrt
from gpu_device import DEVICE, why_not

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUNDLES = pathlib.Path(os.environ.get("ACCRT_TEST_BUNDLES", ROOT / "build" / "models"))
#: MiniLM's GPU version computes in f16 (11 bits) where the host's has f32: single roundings of
#: 2^-11 in six layers, of which most average out over 384 elements. Measured: 0.9999998.
COSINE = 0.9999
#: Both of bytelm's versions compute in f32; sums are taken in other orders.
LOGITS = 1e-4

NO_DEVICE = why_not()
pytestmark = pytest.mark.skipif(bool(NO_DEVICE), reason=NO_DEVICE or "-")


def sessions(name):
    """On the host and on the GPU, whose functions must be versions for it."""
    path = BUNDLES / f"{name}.accx"
    if not path.exists():
        pytest.skip(f"no {path.name} in {BUNDLES}: its packages or weights were not there when bundles were made")
    instance = accrt.Instance(host_code="all")
    bundle = accrt.Bundle(path, instance)
    return [accrt.Program(bundle, instance.device(device)).session() for device in ("host", DEVICE)]


@pytest.mark.parametrize("batch, tokens", [(1, 1), (1, 32), (3, 17), (8, 128), (2, 256)])
def test_minilm(batch, tokens):
    host, gpu = sessions("minilm")
    random = np.random.default_rng(tokens)
    ids = random.integers(1000, 29000, (batch, tokens), dtype=np.int64)
    mask = np.ones((batch, tokens), np.int64)
    for row in range(1, batch):
        mask[row, tokens - (row * 5) % tokens :] = 0
    mask[:, 0] = 1
    a, b = (np.array(s.encode(ids, mask)).astype(np.float64) for s in (host, gpu))
    assert np.isfinite(b).all()
    cosine = (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
    print(f"least cosine {cosine.min():.9f}")
    assert cosine.min() >= COSINE


def test_bytelm():
    """Logits of prefill, and of prefill and decode in turns over the cache."""
    host, gpu = sessions("bytelm")
    text = np.frombuffer((ROOT / "examples/bytelm/heldout.txt").read_bytes(), np.uint8)
    worst = 0.0
    for length in (1, 2, 33, 200):
        a, b = (np.array(s.prefill(text[500 : 500 + length].copy(), 0)) for s in (host, gpu))
        assert np.isfinite(b).all()
        worst = max(worst, float(np.abs(a - b).max()))
    for session in (host, gpu):
        session.reset()
    a, b = (np.array(s.prefill(text[:50].copy(), 0)) for s in (host, gpu))
    worst = max(worst, float(np.abs(a - b).max()))
    for position in range(50, 90):
        a, b = (np.array(s.decode(text[position : position + 1].copy(), position)) for s in (host, gpu))
        worst = max(worst, float(np.abs(a - b).max()))
    print(f"largest difference of logits {worst:.2e}")
    assert worst <= LOGITS
