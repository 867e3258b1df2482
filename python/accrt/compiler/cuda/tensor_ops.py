"""Records of the CUDA kernels that are neither element-wise nor products, attention, norms or softmax."""

from __future__ import annotations

from .. import select
from ..kernels.kerneldef import TensorSpec


def copy(source: TensorSpec, target: TensorSpec) -> select.Lowering:
    """A strided copy; the source broadcasts to the target's shape."""
    raise ValueError("copy: not for these tensors")
