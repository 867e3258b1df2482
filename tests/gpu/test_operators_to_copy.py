"""The operators of examples/torch_operators on a GPU: the tests of tests/python/test_torch_example_operators.py, with tensors there."""

import os
import sys

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
if not torch.cuda.is_available():
    pytest.skip("torch finds no GPU", allow_module_level=True)

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, "python"))

from test_torch_example_operators import *  # noqa: E402, F403


@pytest.fixture(scope="module")
def device():
    return "cuda"
