"""Types of a function's arguments as JAX has them, and the check of what is given."""
from __future__ import annotations

from typing import Sequence

import jax
import numpy as np
from jax import numpy as jnp

from .. import _dimensions
from .._dimensions import Type

#: JAX's types, by ours.
_DTYPES = {"bool": "bool", "i8": "int8", "i16": "int16", "i32": "int32", "i64": "int64", "u8": "uint8", "u16": "uint16", "u32": "uint32",
           "u64": "uint64", "f16": "float16", "bf16": "bfloat16", "f32": "float32", "f64": "float64", "f8e4m3fn": "float8_e4m3fn",
           "f8e5m2": "float8_e5m2", "f8e8m0": "float8_e8m0fnu"}


def parsed(where: str, text: str) -> Type:
    """The type of a text as Bundle.signature gives it. ValueError: JAX has no such type."""
    name, dims = _dimensions.read(where, text)
    dtype = getattr(jnp, _DTYPES.get(name, ""), None)
    if dtype is None:
        raise ValueError(f"{where} is {text}: this JAX has no such type, or XLA stores it in another way")
    return Type(np.dtype(dtype), dims, text)


def need_wide(where: str, types: Sequence[Type]) -> None:
    """ValueError: a type of 64 bits, while JAX makes 32 of them."""
    for one in types:
        if one.dtype.itemsize == 8 and not jax.config.jax_enable_x64:
            raise ValueError(f"{where} has {one.text}, and JAX has no 64-bit types until "
                             "jax.config.update('jax_enable_x64', True)")
