"""The operators of examples/torch_operators on a GPU: the tests of
tests/python/test_torch_example_operators.py, with tensors there."""

import os
import sys

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
if not torch.cuda.is_available():
    pytest.skip("torch finds no GPU", allow_module_level=True)

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, os.pardir, "python"))

from test_torch_example_operators import *  # noqa: E402, F403

BUNDLE = os.path.join(os.environ.get("ACCRT_GPU_TEST_BUNDLES", os.path.join(HERE, "bundles")), "torch_operators.accx")


@pytest.fixture(scope="module")
def device():
    return "cuda"


@pytest.fixture(scope="module")
def ops(made, device):
    return made.load(device, space="accrt_example_cuda", bundle=BUNDLE if os.path.exists(BUNDLE) else None)
