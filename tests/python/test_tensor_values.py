"""Tensors show their values, are indexed, iterated and converted as numpy's arrays are."""
from __future__ import annotations

import itertools
import math
import random

import numpy as np
import pytest

import accrt
from accrt import _values

NUMPY = {"bool": np.bool_, "i8": np.int8, "u8": np.uint8, "i16": np.int16, "u16": np.uint16, "i32": np.int32, "u32": np.uint32,
         "i64": np.int64, "u64": np.uint64, "f16": np.float16, "f32": np.float32, "f64": np.float64}


def tensor_of(array: np.ndarray, device, dtype: str = "") -> accrt.Tensor:
    names = {np.dtype(kind): name for name, kind in NUMPY.items()}
    data = np.ascontiguousarray(array).tobytes()
    buffer = accrt.Pool(device).buffer(max(len(data), 1))
    buffer.memoryview()[:len(data)] = data
    return accrt.Tensor(buffer, dtype or names[array.dtype], array.shape)


@pytest.fixture
def far(monkeypatch):
    """The host does not reach the memory: every value comes by `Buffer.read`, as a device's does.
    Gives what was read, in bytes."""
    read, real = [], accrt.Buffer.read

    def copy(self, offset=0, size=None):
        with monkeypatch.context() as near:
            near.setattr(accrt.Buffer, "host_pointer", property(lambda b: b._info.host_pointer))
            out = memoryview(bytes(real(self, offset, size)))
        read.append(len(out))
        return out

    monkeypatch.setattr(accrt.Buffer, "read", copy)
    monkeypatch.setattr(accrt.Buffer, "host_pointer", property(lambda b: None))
    return read


def random_key(rng: random.Random, shape: tuple) -> tuple:
    def one(size):
        kind = rng.randrange(3)
        if kind == 0 and size:
            return rng.randrange(-size, size)
        ends = [rng.choice([None, rng.randrange(-size - 2, size + 3)]) for _ in range(2)]
        return slice(*ends, rng.choice([None, 1, 2, 3, -1, -2]))
    key = [one(size) for size in shape[:rng.randrange(len(shape) + 1)]]
    if rng.random() < 0.3:
        key.insert(rng.randrange(len(key) + 1), None)
    if rng.random() < 0.4:
        # What stands behind an ellipsis belongs to the last dimensions, whose sizes are others:
        # whole slices fit all.
        key += [Ellipsis, *[slice(None, None, -1)] * rng.randrange(len(shape) - sum(k is not None for k in key) + 1)]
    return tuple(key)


@pytest.mark.parametrize("shape", [(), (1,), (2, 3), (0, 3), (2, 1, 4)])
@pytest.mark.parametrize("dtype", NUMPY)
def test_every_type_gives_lists_numbers_and_bytes(dtype, shape, device):
    array = (np.arange(int(np.prod(shape))) % 2 + 1).astype(NUMPY[dtype]).reshape(shape)
    tensor = tensor_of(array, device)
    assert tensor.tolist() == array.tolist() and type(tensor.tolist()) is type(array.tolist())
    assert tensor.memoryview().tobytes() == array.tobytes()
    if shape and shape[0]:
        assert tensor[::-1].tolist() == array[::-1].tolist() and [row.tolist() for row in tensor] == [row.tolist() for row in array]
    if array.size == 1:
        assert tensor.item() == array.item() == float(tensor) and type(tensor.item()) is type(array.item())
    assert (tensor == array).all() and repr(tensor) and str(tensor) and np.asarray(tensor).tobytes() == array.tobytes()


@pytest.mark.parametrize("seed", range(8))
def test_indexing_is_numpys_and_shares_the_memory(seed, device):
    rng = random.Random(seed)
    for _ in range(60):
        shape = tuple(rng.randrange(0, 6) for _ in range(rng.randrange(1, 5)))
        array = np.arange(int(np.prod(shape)), dtype=np.int32).reshape(shape)
        tensor, key = tensor_of(array, device), random_key(rng, shape)
        view, expected = tensor[key], array[key]
        assert view.shape == expected.shape, (seed, shape, key)
        assert view.tolist() == expected.tolist(), (seed, shape, key)
        if expected.size:
            assert np.shares_memory(view.numpy(), tensor.numpy()), (seed, shape, key)
        # of a view once more: strides that are negative, and others
        if view.ndim:
            again = random_key(rng, view.shape)
            assert view[again].tolist() == expected[again].tolist(), (seed, shape, key, again)


def test_indices_that_do_not_fit_are_refused(device):
    t = tensor_of(np.zeros((2, 3), np.float32), device)
    for key in (2, -3, (0, 3), (0, 0, 0), (Ellipsis, Ellipsis), 1 << 70):
        with pytest.raises(IndexError):
            t[key]
    for key in ([0], 1.0, "a", True, np.ones((2, 3), bool)):
        with pytest.raises(TypeError, match="index"):
            t[key]
    with pytest.raises(IndexError, match=r"index 5 of dimension 1, which has 3.*\[2, 3\]"):
        t[0, 5]
    with pytest.raises(TypeError):
        t[0] = 1  # views are read by this; memory is written by copies and numpy()


def test_a_view_keeps_the_memory_and_what_forbids_writing(device):
    view = tensor_of(np.arange(6, dtype=np.int64).reshape(2, 3), device)[1]
    assert view.tolist() == [3, 4, 5]
    locked = tensor_of(np.arange(4, dtype=np.float32), device)
    locked._read_only = True
    assert locked[1:].read_only and not view.read_only


def test_a_view_goes_into_functions(program, device):
    session = program.session()
    whole = tensor_of(np.arange(48, dtype=np.float32).reshape(3, 16), device)
    assert session.weighted(whole[1]).tolist() == session.weighted(whole.numpy()[1].copy()).tolist()


def test_iteration(device):
    array = np.arange(6, dtype=np.int16).reshape(2, 3)
    t = tensor_of(array, device)
    assert [row.tolist() for row in t] == array.tolist()
    assert [int(x) for row in t for x in row] == list(range(6))
    first, second = t
    assert list(map(int, second)) == [3, 4, 5] and first.shape == (3,)
    with pytest.raises(TypeError, match="without dimensions"):
        iter(t[0, 0])


@pytest.mark.parametrize("dtype", NUMPY)
@pytest.mark.parametrize("shape", ((), (1,), (1, 1)))
def test_one_element_converts_by_value(dtype, shape, device):
    for value in (0, 1):
        t = tensor_of(np.full(shape, value, NUMPY[dtype]), device)
        assert float(t) == value and int(t) == value and bool(t) is bool(value) and t.item() == value
        assert isinstance(float(t), float) and isinstance(int(t), int)


def test_an_array_of_false_is_false_and_nan_true(device):
    assert not tensor_of(np.array([0.0], np.float32), device)
    assert tensor_of(np.array([np.nan], np.float32), device)
    assert int(tensor_of(np.array([-2.75]), device)) == -2


@pytest.mark.parametrize("dtype", ("f32", "f64", "i64", "u8", "bool"))
def test_one_element_is_rounded_as_its_number_is(dtype, device):
    """Whole numbers stay exact: floor() of a number that no float holds is that number."""
    values = {"f32": (-2.5, 0.5, 1234.5), "f64": (-2.675, 3.5, 2.0 ** 60), "i64": (-15, 25, (1 << 62) + 1), "u8": (0, 145, 255)}
    for value in values.get(dtype, (False, True)):
        t = tensor_of(np.array([value], NUMPY[dtype]), device)
        for convert in (round, math.trunc, math.floor, math.ceil):
            made = convert(t)
            assert made == convert(value) and type(made) is int
        for digits in (0, 1, -1, None):
            made, expected = round(t, digits), round(t.item(), digits)
            assert made == expected and type(made) is type(expected)


@pytest.mark.parametrize("convert", (float, int, bool, round, math.floor, math.ceil, math.trunc))
@pytest.mark.parametrize("shape", ((2,), (0,), (2, 3), (1, 0)))
def test_more_or_fewer_elements_do_not_convert(convert, shape, device):
    with pytest.raises(ValueError) as caught:
        convert(tensor_of(np.zeros(shape, np.float32), device))
    assert str(list(shape)) in str(caught.value) and convert.__name__ in str(caught.value)


def test_a_small_tensor_prints_its_values(device):
    t = tensor_of(np.array([[1, 2.5, -3], [1e-9, np.inf, 7]], np.float32), device)
    assert str(t) == "[[  1.0,   2.5,  -3.0],\n [1e-09,   inf,   7.0]]"
    assert repr(t) == "accrt.Tensor([[  1.0,   2.5,  -3.0],\n              [1e-09,   inf,   7.0]], f32[2, 3])"
    assert repr(t[0, 1]) == "accrt.Tensor(2.5, f32[])"
    assert str(tensor_of(np.array([True, False]), device)) == "[ True, False]"
    assert str(tensor_of(np.zeros((2, 0), np.int8), device)) == "[[],\n []]"
    assert str(tensor_of(np.zeros(0, np.int8), device)) == "[]"


def test_large_tensors_are_elided_and_read_in_part(device, far):
    t = accrt.Tensor(accrt.Pool(device).buffer(64 << 20), "f32", (16, 1024, 1024))
    stream = accrt.Stream(device)
    stream.fill(t.buffer, 0)
    stream.synchronize()
    shown = str(t)
    assert "..." in shown and len(shown) < 4000
    assert sum(far) < 1000
    line = str(accrt.Tensor(t.buffer, "u8", (1001,)))
    assert line == "[0, 0, 0, ..., 0, 0, 0]"


def test_elision_shows_the_edges(device):
    array = np.arange(40 * 50, dtype=np.int32).reshape(40, 50)
    words = str(tensor_of(array, device)).replace("[", " ").replace("]", " ").replace(",", " ").split()
    edge = [0, 1, 2, -3, -2, -1]
    assert [int(w) for w in words if w != "..."] == [int(array[i, j]) for i, j in itertools.product(edge, edge)]


def test_long_rows_are_broken(device):
    lines = str(tensor_of(np.arange(500), device)).splitlines()
    assert len(lines) > 10 and max(map(len, lines)) <= 102
    assert len({len(line) for line in lines[1:-1]}) == 1


def test_a_notebook_shows_values_and_shape(device):
    text = tensor_of(np.array([1, 2], np.int32), device)._repr_html_()
    assert "[1, 2]" in text and "i32" in text and "<table>" in text


def test_memory_that_the_host_does_not_reach_is_read_back(device, far):
    array = np.arange(24, dtype=np.float32).reshape(4, 6)
    pool_tensor = accrt.Tensor(accrt.Pool(device).buffer(96), "f32", (4, 6))
    stream = accrt.Stream(device)
    stream.copy(array, pool_tensor.buffer, 96)
    stream.synchronize()
    assert pool_tensor[1:, ::-2].tolist() == array[1:, ::-2].tolist()
    assert float(pool_tensor[2, 3]) == 15 and far
    assert "23.0" in repr(pool_tensor) and "23.0" in pool_tensor._repr_html_()


def test_a_closed_buffer_shows_why_there_are_no_values(device):
    t = tensor_of(np.zeros(3, np.float32), device)
    t.buffer.close()
    assert "f32[3]" in repr(t) and "closed" in repr(t) and "closed" in str(t)


ML_TYPES = {"bf16": "bfloat16", "f8e4m3fn": "float8_e4m3fn", "f8e5m2": "float8_e5m2", "f8e8m0": "float8_e8m0fnu"}


@pytest.mark.parametrize("dtype", ML_TYPES)
def test_every_bit_pattern_of_small_floats(dtype, device):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    bits = np.arange(1 << 16, dtype=np.uint16) if dtype == "bf16" else np.arange(256, dtype=np.uint8)
    expected = bits.view(getattr(ml_dtypes, ML_TYPES[dtype])).astype(np.float64)
    found = np.array(tensor_of(bits, device, dtype).tolist())
    assert np.array_equal(found, expected, equal_nan=True)


def test_values_of_small_floats_that_are_known():
    values = {"bf16": {0x3F80: 1.0, 0xC040: -3.0}, "f8e4m3fn": {0x38: 1.0, 0x7E: 448.0, 0x01: 2.0 ** -9, 0xB8: -1.0},
              "f8e5m2": {0x3C: 1.0, 0x7B: 57344.0, 0x7C: float("inf")}, "f8e8m0": {127: 1.0, 0: 2.0 ** -127, 254: 2.0 ** 127}}
    for dtype, known in values.items():
        for bits, value in known.items():
            assert _values.element(dtype, memoryview(bits.to_bytes(2, "little")), 0) == value, (dtype, bits)


def test_four_bits(device):
    buffer = accrt.Pool(device).buffer(4)
    buffer.memoryview()[:] = bytes([0x10, 0x32, 0x54, 0xF8])
    assert accrt.Tensor(buffer, "u4", (2, 4)).tolist() == [[0, 1, 2, 3], [4, 5, 8, 15]]
    assert accrt.Tensor(buffer, "i4", (8,)).tolist() == [0, 1, 2, 3, 4, 5, -8, -1]
    assert accrt.Tensor(buffer, "f4e2m1", (8,)).tolist() == [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, -0.0, -6.0]
    assert accrt.Tensor(buffer, "u4", (8,))[2:].tolist() == [2, 3, 4, 5, 8, 15]
    with pytest.raises(NotImplementedError, match="within a byte"):
        accrt.Tensor(buffer, "u4", (8,))[1]
    assert accrt.Tensor(buffer, "u4", (2, 3), (4, 1)).tolist() == [[0, 1, 2], [4, 5, 8]]
    large = accrt.Tensor(accrt.Pool(device).buffer(1024), "u4", (2048,))
    assert str(large).count("...") == 1


def test_a_format_for_numbers_asks_for_one_element(device):
    many, one = tensor_of(np.ones((2, 3), np.float32), device), tensor_of(np.full((1, 1), 2.5, np.float32), device)
    assert f"{one:.2f}" == "2.50" and f"{many}" == str(many) and f"{many:>200}".endswith(str(many))
    with pytest.raises(ValueError, match=r"^format '.2f' of a tensor of shape \[2, 3\]: it takes one element, and this one has 6$"):
        format(many, ".2f")
