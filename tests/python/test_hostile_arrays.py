"""Objects of others whose array interface does not say what is there: each is refused by what is
wrong with it."""
from __future__ import annotations

import numpy as np
import pytest

import accrt
from accrt.compiler import compile as compile_bundle, Module

VALUES = np.arange(12, dtype=np.float32).reshape(3, 4)
ADDRESS = VALUES.ctypes.data


class Array:
    def __init__(self, **changed):
        self.__array_interface__ = {"shape": (3, 4), "typestr": "<f4", "data": (ADDRESS, False), "version": 3, "strides": None, **changed}


@pytest.fixture(scope="module")
def doubled():
    module = Module("doubled")
    function = module.function("f")
    x = function.input("x", "f32", [module.symbol("n", minimum=1, maximum=64), 4])
    function.result("y", x + x)
    bundle = accrt.Bundle(compile_bundle(module, targets=["host"]))
    return accrt.Program(bundle, bundle.instance.device("host")).session().function("f")


def test_an_honest_one_is_taken(doubled):
    for changed in ({}, {"mask": None}, {"shape": (np.int64(3), 4)}, {"strides": (16, 4)}, {"data": (ADDRESS, True)}):
        np.testing.assert_array_equal(np.asarray(doubled(Array(**changed))), 2 * VALUES)


@pytest.mark.parametrize("changed, words", [
    ({"data": (0, False)}, "data at 0x0"), ({"data": (1 << 70, False)}, "data at 0x400000000000000000"), ({"data": ((1 << 64) + ADDRESS, False)}, "data at 0x1"),
    ({"data": (-8, False)}, "data at -0x8"), ({"data": ("x", False)}, "address 'x'"), ({"data": 5}, "without type, shape or address"), ({"data": (1.5, False)}, "address 1.5"),
    ({"shape": 7}, "shape 7"), ({"shape": (1.5, 4)}, "shape (1.5, 4)"), ({"shape": (-3, 4)}, "negative dimension"), ({"shape": (1 << 62, 4)}, "does not fit"),
    ({"shape": (1 << 32, 1 << 32)}, "does not fit"), ({"shape": (1,) * 100}, "100 dimensions"), ({"shape": (64, 1 << 40)}, "dimension 1"),
    ({"strides": "ab"}, "strides 'ab'"), ({"strides": (16,)}, "strides"), ({"strides": (1 << 40, 4)}, "not contiguous"), ({"strides": (-16, 4)}, "not contiguous"),
    ({"typestr": 5}, "type 5"), ({"typestr": "<f9"}, "<f9"), ({"typestr": ">f4"}, ">f4"), ({"typestr": "|O8"}, "O8"), ({"mask": VALUES}, "has a mask"),
])  # fmt: skip
def test_what_does_not_fit_is_named(doubled, changed, words):
    with pytest.raises((TypeError, ValueError, accrt.Error)) as caught:
        doubled(Array(**changed))
    assert words in str(caught.value)
