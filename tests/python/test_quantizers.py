"""The compiler's quantizers and the library's: the bytes of the reference in numpy, for every
layout that can be written."""

import numpy as np
import pytest

from accrt import layouts
from accrt.compiler import dequantize, quantize, quantizers
from quantizers_reference import by_numpy

SEED = 20261120
WRITABLE = [i for i in layouts.all_layouts() if i.writable and i.id > 1]


def choices(info):
    """Groups, and types of data and scales, where the layout leaves them free."""
    groups = (0, 8, 64) if info.free_group else (0,)
    data = info.dtypes["data"] if len(info.dtypes["data"]) > 1 else ("",)
    scales = info.dtypes["scales"] if len(info.dtypes.get("scales", ())) > 1 else ("",)
    return [(g, d, s) for g in groups for d in data for s in scales]


def weights(info):
    """Ordinary ones, one of rank 3, and what has no range, a small or a large one, and ties."""
    rng = np.random.default_rng([SEED, info.id])
    k = 256 if info.block_elements > 64 else 192
    plain = rng.standard_normal((37, k)).astype(np.float32)
    yield plain * np.float32(0.02)
    yield rng.standard_normal((3, 130, 256)).astype(np.float32)
    yield np.abs(plain)
    yield -np.abs(plain)
    odd = plain * np.exp2(rng.uniform(-120, 57, (37, 1))).astype(np.float32)
    odd[3], odd[4], odd[5, 8:] = 0, 1.5, 0
    odd[6] = -0.0
    yield odd
    yield rng.integers(-8, 9, (37, k)).astype(np.float32) / 4
    if info.row_multiple == 1 and info.block_elements == 1:
        yield plain[:, :101].copy()
    yield np.zeros((0, k), np.float32)


@pytest.mark.parametrize("info", WRITABLE, ids=lambda i: i.name)
def test_bytes_are_the_library_s(info):
    for group, data, scales in choices(info):
        for weight in weights(info):
            packed = layouts.quantize(weight, info.id, group_elements=group, data=data or None, scales=scales or None, search=False)
            for made in (
                quantize(weight, info.name, group=group, data=data, scales=scales),
                by_numpy(weight, info.name, packed.group_elements, "f32", data, scales),
            ):
                where = (group, data, scales, weight.shape)
                assert made.group == packed.group_elements and set(made.components) == set(packed.components), where
                for role, component in packed.components.items():
                    assert made.component_type(role) == component.dtype, (role, where)
                    ours = np.ascontiguousarray(made.components[role]).reshape(-1).view(np.uint8)
                    assert np.array_equal(ours, component.data), (role, where, np.flatnonzero(ours != component.data)[:4])
                if weight.size:
                    assert np.array_equal(dequantize(made), layouts.dequantize(packed), equal_nan=True)


def test_the_compiler_quantizes_to_all_that_is_written():
    assert quantizers.makes() == [info.name for info in WRITABLE]


def test_what_is_not_quantized():
    for array, layout, words in (
        (np.zeros((2, 64), np.float32), "q4_k", "multiple of 256"), (np.zeros(64, np.float32), "q8_0", "shape"),
        (np.zeros((8, 64), np.float32), "awq", "no quantizer"), (np.where(np.eye(2, 32, 5), np.nan, 0), "q8_0", r"the value at \[0, 5\] is nan: not finite"),
        (np.full((2, 32), 2.0**61), "i8_channel", r"at \[0, 0\] .* above 2\^60"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=words):
            quantize(array, layout)
    with pytest.raises(ValueError, match="scales of f64"):
        quantize(np.zeros((2, 64), np.float32), "i8_channel", scales="f64")
