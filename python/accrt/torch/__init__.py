"""Functions of bundles inside of torch: as operators, as modules, and as a backend of
torch.compile.

    import accrt.torch

    rms_norm = accrt.torch.operator("norms.accx", "rms_norm", backward="rms_norm_backward")
    y, scale = rms_norm(x, weight)
    model = accrt.torch.Module("model.accx")       # a torch.nn.Module with the bundle's weights
    fast = torch.compile(net, backend="accrt")

docs/torch.md is the guide. torch is imported when a name below is first used. What stands where:
_shapes.py has types and their expressions, _operator.py the registration, _shim.py the kernels in
C, _module.py the module, _backend.py the backend.
"""
from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._backend import backend as backend
    from ._module import Module as Module
    from ._operator import operator as operator

_HOME = {"backend": "_backend", "Module": "_module", "operator": "_operator"}

__all__ = ["Module", "backend", "operator"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        import torch  # noqa: F401
    except ImportError as error:
        raise ImportError("accrt.torch needs torch: pip install torch") from error
    value = globals()[name] = getattr(importlib.import_module("." + _HOME[name], __name__), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
