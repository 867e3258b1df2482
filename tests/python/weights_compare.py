"""Compares a source of weights with what another reader found in the file: types, shapes, digests
of bytes and of values."""
from __future__ import annotations

import hashlib
from typing import NamedTuple

import numpy as np

import accrt


class Counts(NamedTuple):
    tensors: int
    values: int


def digest(data) -> str:
    return hashlib.sha256(np.ascontiguousarray(data).tobytes()).hexdigest()


def values(weight: accrt.Weight):
    """As f32, with one NaN; None for what no layout describes."""
    if weight.encoding == 1:
        return None
    array = weight.dequantize() if weight.encoding else weight.numpy()
    if weight.dtype == "bf16" and array.dtype == np.uint16:
        array = (array.astype(np.uint32) << 16).view(np.float32)
    array = np.asarray(array).astype(np.float32)
    return np.where(np.isnan(array), np.float32(np.nan), array)


def compare(path, expected: dict) -> Counts:
    """Every tensor of `expected`, and no other."""
    source = accrt.Weights(path)
    assert sorted(source) == sorted(expected), path
    valued = 0
    for name, facts in expected.items():
        weight = source[name]
        assert (weight.type_name, list(weight.shape)) == (facts["type"], facts["shape"]), name
        assert digest(np.frombuffer(weight.memoryview(), np.uint8)) == facts["sha256"], name
        assert digest(np.frombuffer(weight.read(0, weight.nbytes), np.uint8)) == facts["sha256"], name
        found = values(weight) if "values" in facts else None
        if found is not None:
            assert digest(found) == facts["values"], name
            valued += 1
    return Counts(len(expected), valued)
