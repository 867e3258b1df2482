"""bf16 in numpy, which has no such type: arrays of f32 become it."""

from __future__ import annotations

import numpy as np


def bits(numbers: np.ndarray) -> np.ndarray:
    """As u16: to the nearest, ties to even. The numbers are finite."""
    wide = np.ascontiguousarray(numbers, np.float32).view(np.uint32).astype(np.uint64)
    return ((wide + 0x7FFF + ((wide >> 16) & 1)) >> 16).astype(np.uint16)


def rounded(numbers: np.ndarray) -> np.ndarray:
    """To what bf16 holds, kept in f32."""
    return (bits(numbers).astype(np.uint32) << 16).view(np.float32)
