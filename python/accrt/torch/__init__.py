"""Functions of bundles inside of torch: as operators.

    import accrt.torch

    rms_norm = accrt.torch.operator("norms.accx", "rms_norm", backward="rms_norm_backward")
    y = rms_norm(x, weight)

docs/torch.md is the guide. What stands where: _shapes.py has types and their expressions, _operator.py the registration.
"""
from __future__ import annotations

try:
    import torch as _torch  # noqa: F401
except ImportError as error:
    raise ImportError("accrt.torch needs torch: pip install torch") from error

from ._operator import operator

__all__ = ["operator"]
