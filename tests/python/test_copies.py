"""`copy=True`: arrays that are strided, of the other byte order or misaligned, memoryviews, nested
lists, numbers; each is copied where the runtime cannot take it as it lies, and refused without."""
import array
import ctypes
import fractions
import math
import random
import struct

import numpy as np
import pytest
import rotation

import accrt
from accrt import _copies
from accrt.tensor import DTYPES

RNG = np.random.default_rng(5)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    from accrt.compiler import Module, compile
    path = str(tmp_path_factory.mktemp("copies") / "m.accx")
    m = Module("copies")
    n, k = m.symbol("n", minimum=0, maximum=64), m.symbol("k", minimum=0, maximum=64)
    for dtype in ("f32", "f64", "i32"):
        f = m.function(f"twice_{dtype}")
        x = f.input("x", dtype, [n, k])
        f.result("y", x + x)
    f = m.function("line_f32")
    x = f.input("x", "f32", [n])
    f.result("y", x + x)
    compile(m, path, targets=["host"])
    return accrt.load(path, host_code="all")


def cases(dtype):
    base = RNG.integers(0, 50, (8, 12)).astype(dtype)
    big = base.astype(np.dtype(dtype).newbyteorder(">"))
    raw = np.frombuffer(b"\0" * 4 + base.tobytes()[:-16] + b"\0" * 12, np.uint8)
    misaligned = np.frombuffer(raw.data[4:4 + 40 * base.itemsize], base.dtype).reshape(5, 8)
    return {"transposed": base.T, "every other": base[::2, 1::3], "backwards": base[::-1, ::-1], "fortran": np.asfortranarray(base),
            "big": big, "big, strided": big[::-1, ::2], "misaligned": misaligned, "broadcast": np.broadcast_to(base[:1], (4, 12)),
            "read-only": np.lib.stride_tricks.as_strided(base, writeable=False)[:, ::2], "empty": base[:0, ::2]}


@pytest.mark.parametrize("dtype", ["f32", "f64", "i32"])
def test_arrays(model, dtype):
    call = getattr(model, f"twice_{dtype}")
    for name, value in cases({"f32": "f4", "f64": "f8", "i32": "i4"}[dtype]).items():
        wanted = 2 * value.astype(value.dtype.newbyteorder("="))
        for given in (value, memoryview(value)):
            assert np.array_equal(call(given, copy=True).numpy(), wanted), name
        bound = call.bind(value, copy=True)
        assert np.array_equal(bound().numpy(), wanted) and np.array_equal(bound().numpy(), wanted), name
        if name not in ("misaligned", "empty"):
            with pytest.raises((ValueError, TypeError, accrt.Error)):
                call(value)


def test_a_strided_array_gets_one_advice(model):
    with pytest.raises(accrt.Error) as caught:
        model.twice_f32(np.zeros((4, 4), np.float32)[:, ::2])
    said = str(caught.value)
    assert said.endswith("it is not contiguous; give copy=True to have it copied") and caught.value.message in said


def test_strided_tensors(model):
    base = RNG.standard_normal((8, 12)).astype(np.float32)
    tensor = accrt.from_dlpack(base, model.program.device)
    for key in ((slice(None, None, 2), slice(None, None, -3)), (slice(1, 5), slice(2, 7)), (slice(0, 0), slice(None, None, 2))):
        assert np.array_equal(model.twice_f32(tensor[key], copy=True).numpy(), 2 * base[key])


def test_tensors_off_the_alignment(model):
    base = np.arange(41, dtype=np.float32)
    given = {"a Tensor": accrt.from_dlpack(base, model.program.device)[1:]}
    try:
        import torch
        given["torch's"] = torch.from_numpy(base)[1:]
    except ImportError:
        pass
    for name, value in given.items():
        assert np.array_equal(model.line_f32(value, copy=True).numpy(), 2 * base[1:]), name
        with pytest.raises(accrt.Error, match="is not a multiple of 16; give copy=True to have it copied"):
            model.line_f32(value)


def test_lists_and_numbers(model):
    assert model.twice_f32([[1, 2.5], [3, True]], copy=True).tolist() == [[2, 5], [6, 2]]
    assert model.twice_i32(((1, 2), (-3, 4)), copy=True).tolist() == [[2, 4], [-6, 8]]
    assert model.twice_f64([[]], copy=True).shape == (1, 0)
    for wrong, words in (([[1, 2], [3]], "has 1 elements"), ([[1, 2], 3], "is a number"), ([1, [2]], "is a list"), ([["a"]], "fit i32"),
                         ([[1.5]], "fit i32"), ([[1 << 31]], "fit i32")):
        with pytest.raises(ValueError, match=words):
            model.twice_i32(wrong, copy=True)
    with pytest.raises(accrt.Error):  # the rank is another
        model.twice_i32([1, 2], copy=True)
    with pytest.raises(TypeError):
        model.twice_f32([[1, 2]])
    with pytest.raises(TypeError):
        model.twice_f32({"a": 1}, copy=True)


def packed(numbers, dtype: str) -> bytes:
    """What a list becomes as an argument of this type."""
    view = _copies._from_numbers(numbers, DTYPES[dtype])
    return ctypes.string_at(view.c.data, len(numbers) * {"bf16": 2, "bool": 1}[dtype])


def bf16_value(bits: int) -> fractions.Fraction:
    """The value of a pattern without a sign; that of infinity is what would come next."""
    exponent, mantissa = bits >> 7, bits & 127
    return fractions.Fraction(mantissa + 128 * (exponent > 0)) * fractions.Fraction(2) ** (max(exponent, 1) - 134)


def nearest_bf16(value: float) -> int:
    """By exact arithmetic; ties to even."""
    exact, low, high = abs(fractions.Fraction(value)), 0, 0x7F80
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if bf16_value(middle) <= exact else (low, middle)
    below, above = exact - bf16_value(low), bf16_value(high) - exact
    up = above < below or (above == below and low % 2 == 1)
    return (low + up) | (0x8000 if math.copysign(1, value) < 0 else 0)


def test_numbers_become_the_nearest_bf16():
    draw = random.Random(rotation.seed())
    numbers = [0.0, -0.0, 1 + 2**-8, 1 + 2**-8 + 2**-40, 1 + 3 * 2**-8 - 2**-40, -(1 + 2**-8 + 2**-40), 2.0**-134, 2.0**-134 * (1 + 2**-30), 1e-60, 3.3895e38]
    for _ in range(300):
        tie = float((bf16_value(k := draw.randrange(0x7F00)) + bf16_value(k + 1)) / 2)
        numbers += [tie, math.nextafter(tie, math.inf), math.nextafter(tie, 0), draw.choice((-1, 1)) * math.ldexp(draw.uniform(1, 2), draw.randrange(-140, 127))]
    found = struct.unpack(f"<{len(numbers)}H", packed(numbers, "bf16"))
    for number, bits in zip(numbers, found):
        assert bits == nearest_bf16(number), (number, hex(bits), hex(nearest_bf16(number)))
    assert packed([math.inf, -math.inf, 3, True, np.float32(2)], "bf16") == struct.pack("<5H", 0x7F80, 0xFF80, 0x4040, 0x3F80, 0x4000)
    assert packed([math.nan], "bf16") == struct.pack("<H", 0x7FC0)


@pytest.mark.parametrize(("dtype", "wrong"), [("bf16", 1e40), ("bf16", -3.4e38), ("bf16", 1 << 128), ("bf16", "3"), ("bf16", None), ("bf16", 1j), ("bf16", b"3"),
                                              ("bool", "3"), ("bool", 2), ("bool", 0.5), ("bool", None), ("bool", math.nan), ("bool", [1])])
def test_what_does_not_fit_is_refused_and_not_changed(dtype, wrong):
    with pytest.raises(ValueError, match=f"^the list does not fit {dtype}: element .1. is |and others at its depth are numbers"):
        packed([1, wrong], dtype)


def test_lists_of_bool():
    assert packed([True, False, 1, 0, 1.0, np.bool_(True)], "bool") == b"\1\0\1\0\1\1"


def test_buffers_of_other_orders(model):
    raw = memoryview(struct.pack(">6f", *range(6)))
    swapped = np.ndarray((2, 3), ">f4", raw)
    assert model.twice_f32(memoryview(swapped), copy=True).tolist() == [[0, 2, 4], [6, 8, 10]]
    fitting = memoryview(array.array("f", range(6))).cast("B").cast("f", (2, 3))
    assert model.twice_f32(fitting, copy=True).tolist() == [[0, 2, 4], [6, 8, 10]]


def test_what_fits_is_used_in_place(model):
    x = np.ones((2, 2), np.float32)
    call = model.twice_f32.bind(x, copy=True)
    assert call().tolist() == [[2, 2], [2, 2]]
    x[:] = 5
    assert call().tolist() == [[10, 10], [10, 10]]


def test_what_is_written_is_never_a_copy(tmp_path):
    import pathlib
    import subprocess
    import sys
    root = pathlib.Path(__file__).resolve().parents[2]
    subprocess.run([sys.executable, root / "tests/golden/scale_add.py", "-o", tmp_path / "m.accx"], check=True)
    m = accrt.load(tmp_path / "m.accx", host_code="all")
    x, y = np.arange(8, dtype=np.float32)[::2], np.ones(4, np.float32)
    m.scale_add(x, y, copy=True)  # updates y in place
    assert y.tolist() == [1, 5, 9, 13]
    for wrong in (np.ones(8, np.float32)[::2], [1.0] * 4, np.ones(4, ">f4")):
        with pytest.raises(ValueError, match="is written"):
            m.scale_add(x, wrong, copy=True)


def test_other_ways_of_calling(model):
    import asyncio
    x = np.arange(12, dtype=np.float32).reshape(3, 4).T
    assert np.array_equal(asyncio.run(model.twice_f32.call_async(x, copy=True)).numpy(), 2 * x)
    call = model.twice_f32.bind(np.zeros((4, 3), np.float32))
    call.set("x", x, copy=True)
    assert np.array_equal(call().numpy(), 2 * x)
    out = np.empty((4, 3), np.float32)
    assert model.twice_f32(x, out=out, copy=True) is out and np.array_equal(out, 2 * x)
    with pytest.raises((ValueError, accrt.Error)):
        model.twice_f32(x, out=np.empty((3, 4), np.float32).T, copy=True)
