"""accrt.from_torch with models as people write them (own_models.py), with fixed sizes and with
sizes that vary: every element beside torch in float64, for two sets of sizes that the export never
saw.
Runs where torch is installed: `./dev torch-test`."""

from __future__ import annotations

import copy
import math
import zlib

import numpy as np
import pytest

import accrt

torch = pytest.importorskip("torch", reason="torch is not installed")
pytestmark = [pytest.mark.torch, pytest.mark.quick_kernels, pytest.mark.filterwarnings("ignore")]

from own_models import MODELS  # noqa: E402  - which needs torch
from test_from_torch import called, leaves, session_of  # noqa: E402

#: Models whose code allows some sizes only, which torch finds under AUTO.
SOME_SIZES = ("ConvNeXt", "Conformer", "ComplexRope", "Dgcnn")
LIMIT = 1e-4


@pytest.fixture(scope="module")
def instance():
    return accrt.Instance()


def shapes(name):
    own = MODELS[name]
    dims = {size: torch.export.Dim(size, max=64) for size in own.sizes}
    return tuple({at: torch.export.Dim.AUTO if name in SOME_SIZES else eval(size, {}, dims) for at, size in of.items()} for of in own.dims)


def inputs(name, at):
    """The numbers are the same in each run: that two of them are nearly equal would decide what
    sorts and comparisons give."""
    own = MODELS[name]
    torch.manual_seed(zlib.crc32(f"{name} {at}".encode()))
    return own.inputs(**{size: numbers[at] for size, numbers in own.sizes.items()})


def near(ours, wanted, what):
    assert ours.shape == wanted.shape, what
    if wanted.dtype.kind != "f":
        assert (ours == wanted).all(), what
        return
    finite = wanted[np.isfinite(wanted)]
    rms = math.sqrt(float((finite**2).mean())) if finite.size else 1.0
    with np.errstate(invalid="ignore"):
        same = (ours == wanted) | (np.isnan(ours) & np.isnan(wanted)) | (np.abs(ours - wanted) <= LIMIT * (np.abs(wanted) + rms))
    assert same.all(), (what, ours[~same], wanted[~same])


@pytest.mark.rotating(3)
@pytest.mark.parametrize("name", MODELS)
def test_own_model(name, instance):
    torch.manual_seed(zlib.crc32(name.encode()))
    model = MODELS[name].model().eval()
    reference = copy.deepcopy(model).double()
    for dynamic in (None, shapes(name)):
        session, _ = session_of(model, inputs(name, 0), instance, **({} if dynamic is None else {"dynamic_shapes": dynamic}))
        for at in range(1 if dynamic is None else 3):
            given = inputs(name, at)
            with torch.no_grad():
                theirs = leaves(reference(*[x.double() if x.is_floating_point() else x.clone() for x in given]))
            ours = called(session, given)
            assert len(ours) == len(theirs)
            for number, (mine, wanted) in enumerate(zip(ours, theirs)):
                near(mine, wanted.numpy(), f"{name}, sizes {at}, result {number}")
