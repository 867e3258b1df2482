"""bf16 and 8-bit floats and numpy, which has no such types: how they come, how they go back, and
what is refused as a mistake."""
from __future__ import annotations

import sys
import types

import numpy as np
import pytest

import accrt
from accrt import _values

BITS = {"bf16": np.uint16, "f8e4m3fn": np.uint8, "f8e5m2": np.uint8, "f8e8m0": np.uint8}


@pytest.fixture(autouse=True)
def without_ml_dtypes(monkeypatch):
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)


@pytest.fixture
def echo(echo_bundle):
    with accrt.load(echo_bundle) as session:
        yield session


def given(echo, dtype: str, bits) -> accrt.Tensor:
    call = echo[dtype].bind(None)
    call.set("x", np.asarray(bits, BITS[dtype]), dtype=dtype)
    return call()


@pytest.mark.parametrize("dtype", BITS)
def test_results_come_as_bits_and_go_back(dtype, echo):
    bits = np.arange(256, dtype=BITS[dtype])
    t = given(echo, dtype, bits)
    array = t.numpy()
    assert array.dtype == BITS[dtype] and (array == bits).all() and np.shares_memory(array, t.numpy())
    for again in (array, np.asarray(t), array[:], array[16:32], array.reshape(256), t):
        result = echo[dtype](again)
        assert result.dtype == dtype and (result.numpy() == (bits[16:32] if len(again) == 16 else bits)).all()
    assert (echo[dtype](array[::-2], copy=True).numpy() == bits[::-2]).all()
    assert echo[dtype](array[:0]).shape == (0,)


@pytest.mark.parametrize("dtype", BITS)
def test_into_an_array_of_bits_of_its_own(dtype, echo):
    t = given(echo, dtype, np.arange(64))
    out = given(echo, dtype, np.zeros(64))
    echo[dtype](t, out=out.numpy())
    assert (out.numpy() == np.arange(64)).all()


@pytest.mark.parametrize("dtype", BITS)
def test_numbers_that_may_be_numbers_are_refused_with_what_to_do(dtype, echo):
    bits = given(echo, dtype, np.arange(64)).numpy()
    for array in (np.arange(64, dtype=BITS[dtype]), bits.copy(), bits + 0, echo["u16" if dtype == "bf16" else "u8"](bits).numpy()):
        with pytest.raises(accrt.TypeMismatchError) as caught:
            echo[dtype](array)
        text = str(caught.value)
        assert "bits of " + dtype in text and "ml_dtypes." in text and f"call.set('x', array, dtype='{dtype}')" in text and "copy=True" in text
        assert caught.value.message == text
    with pytest.raises(accrt.TypeMismatchError, match="copy=True"):
        echo[dtype](np.zeros(64, np.float32))
    other = "f8e5m2" if dtype != "f8e5m2" else "f8e4m3fn"
    with pytest.raises(accrt.TypeMismatchError):
        echo[other](bits)  # the bits of another type
    # of an integer parameter they are integers
    whole = echo["u16" if dtype == "bf16" else "u8"](bits)
    assert whole.tolist() == list(range(64))


@pytest.mark.parametrize("dtype", BITS)
def test_numpy_makes_floats_of_the_values(dtype, echo):
    t = given(echo, dtype, np.arange(256))
    expected = np.array(t.tolist(), np.float32)
    for wanted in (np.float32, np.float64, "f4", float):
        array = np.asarray(t, wanted)
        assert array.dtype == wanted and np.array_equal(array, expected.astype(wanted), equal_nan=True)
    assert np.asarray(t, BITS[dtype]).tolist() == list(range(256))
    assert np.array_equal(np.exp2(t[:8]), np.exp2(expected[:8])) and np.array_equal(np.float32(2) * t[3:8], 2 * expected[3:8])
    copy = np.array(t)
    copy[:] = 0
    assert t.numpy()[-1] == 255


def test_with_ml_dtypes_they_are_its_types(echo, monkeypatch):
    ml_dtypes = types.ModuleType("ml_dtypes")
    ml_dtypes.bfloat16 = np.dtype("u2")  # numpy sees no difference, and nor do we here
    monkeypatch.setitem(sys.modules, "ml_dtypes", ml_dtypes)
    assert given(echo, "bf16", np.arange(4)).numpy().tolist() == [0, 1, 2, 3]


def test_bits_of_weights(tmp_path, echo):
    import safetensors_file
    path = tmp_path / "w.safetensors"
    path.write_bytes(safetensors_file.safetensors_bytes({"w": ("BF16", np.arange(4, dtype=np.uint16))}))
    weight = accrt.Weights(path)["w"]
    assert (echo.bf16(weight.numpy()[:], copy=True).numpy() == np.arange(4)).all()
    assert (echo.bf16(weight, copy=True).numpy() == np.arange(4)).all()


def test_decoding_is_that_of_tolist(echo):
    for dtype in BITS:
        t = given(echo, dtype, np.arange(256))
        assert np.array_equal(_values.array(t), np.array(t.tolist(), np.float32), equal_nan=True)


# ---- masks

@pytest.mark.parametrize("mask", (np.ma.nomask, [False] * 4, [True, False, False, True]))
def test_masked_arrays_are_refused_wherever_arrays_are_taken(mask, echo, program, device):
    masked = np.ma.masked_array(np.arange(4, dtype=np.float32), mask)
    stream, buffer = accrt.Stream(device), accrt.Pool(device).buffer(16)
    for take in (lambda: echo.f32(masked), lambda: echo.f32(masked, copy=True), lambda: echo.f32.bind(masked), lambda: echo.f32(np.zeros(4, np.float32), out=masked),
                 lambda: program.swap_weights({"w": masked}), lambda: stream.copy(masked, buffer), lambda: accrt.from_dlpack(masked, device),
                 lambda: accrt.layouts.quantize(masked.reshape(1, 4), "q8_0")):
        with pytest.raises(TypeError, match=r"mask.*filled\(value\)") as caught:
            take()
        assert "copy=True" not in str(caught.value)
    assert echo.f32(masked.filled(7)).tolist() == masked.filled(7).tolist()


def test_masked_arrays_and_a_sandbox(echo_bundle):
    try:
        session = accrt.load(echo_bundle, sandbox=True)
    except accrt.UnsupportedError as error:
        pytest.skip(str(error))
    with session, pytest.raises(TypeError, match="mask"):
        session.f32(np.ma.masked_array(np.zeros(4, np.float32), [True] * 4))


class Frame:
    """As a data frame: numpy makes an array of it, and it has no memory of that form."""

    def __array__(self, dtype=None, copy=None):
        return np.arange(4, dtype=np.float32)


def test_data_frames_are_told_how(echo):
    with pytest.raises(TypeError, match="numpy.asarray makes an array of it"):
        echo.f32(Frame())
    assert echo.f32(np.asarray(Frame())).tolist() == [0, 1, 2, 3]
    row = np.matrix([[1, 2]], np.float32)  # nothing is lost of it: it has two dimensions
    with pytest.raises(accrt.ShapeMismatchError):
        echo.f32(row)


def test_one_number_of_bf16_has_a_value():
    """numpy 1 widens a scalar that is shifted, and cannot view it then."""
    from accrt import _bits
    from accrt.compiler.reference import decode

    for bits in (np.array(0x3FC0, np.uint16), np.array([0x3FC0], np.uint16), np.zeros((0, 2), np.uint16)):
        for values in (_bits.decoded(bits, "bf16"), decode(bits, "bf16")):
            assert values.shape == bits.shape and (values == 1.5).all()
