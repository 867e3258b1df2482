"""Functions of bundles inside of JAX.

    import accrt.jax

    rms_norm = accrt.jax.function("norms.accx", "rms_norm", backward="rms_norm_backward")
    y, scale = jax.jit(rms_norm)(x, weight)

docs/jax.md is the guide. JAX is imported when a name below is first used. What stands where:
_types.py has types and their checks, _function.py what JAX traces, _calls.py what XLA calls.
"""
from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._function import Function as Function
    from ._function import function as function

__all__ = ["Function", "function"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        import jax
    except ImportError as error:
        raise ImportError("accrt.jax needs JAX: pip install jax") from error
    if not hasattr(getattr(jax, "ffi", None), "register_ffi_target"):
        raise ImportError(f"accrt.jax needs JAX 0.5 or newer, and this is {jax.__version__}")
    from . import _function
    value = globals()[name] = getattr(_function, name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
