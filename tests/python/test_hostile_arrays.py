"""Objects of others whose array interface does not say what is there, and machine code that is
none: each is refused by what is wrong with it."""
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


@pytest.mark.parametrize("image, words", [
    (".version 7.0\n.target sm_80\0 .entry evil", "has a NUL in it"), (b".version 7.0\n\0junk", "has a NUL in it"), (b"\xff\xfe", "is no text"),
    ({"sm_90": b"a\0b"}, "has a NUL in it"), ({5: b"x"}, "given for 5"), ({None: b"x"}, "given for None"),
])  # fmt: skip
def test_ptx_is_text_without_a_nul(image, words):
    """The driver would end it there."""
    with pytest.raises((TypeError, ValueError), match=words):
        accrt.Kernel.from_ptx(image, "scale", [("x", "read f32")])
    accrt.Kernel.from_ptx(b".version 7.0\n\0", "scale", [("x", "read f32")])  # as C has it


def test_cubins_are_given_by_names():
    with pytest.raises(TypeError, match="given for 5"):
        accrt.Kernel.from_cubin({5: b"x"}, "scale", [("x", "read f32")])
