"""Types of a function's arguments as JAX has them, and the check of what is given."""
from __future__ import annotations

import ast
from typing import Any, NamedTuple, Sequence

import jax
import numpy as np
from jax import numpy as jnp

from .. import _dimensions

#: JAX's types, by ours.
_DTYPES = {"bool": "bool", "i8": "int8", "i16": "int16", "i32": "int32", "i64": "int64", "u8": "uint8", "u16": "uint16", "u32": "uint32",
           "u64": "uint64", "f16": "float16", "bf16": "bfloat16", "f32": "float32", "f64": "float64", "f8e4m3fn": "float8_e4m3fn",
           "f8e5m2": "float8_e5m2", "f8e8m0": "float8_e8m0fnu"}


class Type(NamedTuple):
    """An argument's type. dims: an int, or the tree of an expression."""

    dtype: Any
    dims: tuple[Any, ...]
    text: str


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


def bind(where: str, types: Sequence[tuple[str, Type]], tensors: Sequence[Any], symbols: dict[str, Any], present: Sequence[bool]) -> None:
    """Checks what is given against the types, and adds the symbols that it binds. TypeError,
    ValueError: one line."""
    for (name, wanted), tensor in zip(types, tensors):
        if tensor.dtype != wanted.dtype:
            raise TypeError(f"{where}: {name} is of {tensor.dtype}, and {wanted.text} is needed")
        if tensor.ndim != len(wanted.dims):
            raise ValueError(f"{where}: {name} has {tensor.ndim} dimensions, and {wanted.text} is needed")
        for node, size in zip(wanted.dims, tensor.shape):
            if isinstance(node, ast.Name):
                symbols.setdefault(node.id, size)
    for (name, wanted), tensor in zip(types, tensors):
        for at, (node, size) in enumerate(zip(wanted.dims, tensor.shape)):
            if size != _dimensions.size_of(node, symbols, present):
                raise ValueError(f"{where}: dimension {at} of {name} is {size}, and {wanted.text} is needed")
