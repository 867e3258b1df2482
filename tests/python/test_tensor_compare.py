"""Tensors are compared by element, as numpy's and torch's are: ==, !=, <, <=, >, >=, in, and from
numpy's side too."""
from __future__ import annotations

import operator

import numpy as np
import pytest

import accrt
from accrt import _values
from test_tensor_values import NUMPY, far, tensor_of  # noqa: F401 - a fixture

OPERATORS = (operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge)


def some(dtype: str) -> np.ndarray:
    return np.array([[0, 1, 2], [3, 1, 0]]).astype(NUMPY[dtype])


@pytest.mark.parametrize("dtype", NUMPY)
@pytest.mark.parametrize("compare", OPERATORS)
def test_by_element_as_numpy_does(dtype, compare, device):
    array, other = some(dtype), some(dtype)[::-1].copy()
    t = tensor_of(array, device)
    for right in (1, 1.5, True, np.float32(1), other, other[0], tensor_of(other, device), tensor_of(other, device)[0], other.tolist(),
                  np.float64(2) * other):
        expected = compare(array, np.asarray(right))
        got = compare(t, right)
        assert isinstance(got, np.ndarray) and got.dtype == bool and (got == expected).all() and got.shape == expected.shape, right
        if not isinstance(right, (list, accrt.Tensor)):
            assert (compare(right, t) == compare(np.asarray(right), array)).all()
    assert compare(t[0, 1], 1) == compare(array[0, 1], 1)
    assert (compare(t[:, ::-2], 1) == compare(array[:, ::-2], 1)).all()


@pytest.mark.parametrize("dtype", _values._DECODERS)
@pytest.mark.parametrize("from_far", (False, True))
def test_types_that_numpy_lacks_are_compared_by_value(dtype, from_far, device, request):
    t = tensor_of(np.arange(256 if _values._DECODERS[dtype][0] == 8 else 512).astype(np.uint8), device)
    if from_far:
        request.getfixturevalue("far")
    t = accrt.Tensor(t.buffer, dtype, (t.nbytes * 8 // _values._DECODERS[dtype][0],))
    values = np.array(t.tolist(), np.float64)
    with np.errstate(invalid="ignore"):
        for compare in OPERATORS:
            assert (compare(t, 1) == compare(values, 1)).all() and (compare(t, t) == compare(values, values)).all()
            assert (compare(values, t) == compare(values, values)).all()
            assert (compare(np.float32(2), t) == compare(2, values)).all()
        assert np.array_equal(np.isfinite(t), np.isfinite(values))


def test_of_memory_that_the_host_does_not_reach(device, request):
    array = np.arange(24, dtype=np.int32).reshape(4, 6)
    t = tensor_of(array, device)
    request.getfixturevalue("far")
    assert (t == array).all() and (t[1:, ::-2] == array[1:, ::-2]).all() and 23 in t and 24 not in t
    assert np.array_equal(t[::-1, 1:3].numpy(), array[::-1, 1:3])


def test_contains_looks_for_a_value(device):
    t = tensor_of(np.array([[1, 2], [3, 4]], np.int32), device)
    assert 3 in t and 5 not in t and 3.0 in t and 3.5 not in t and np.int64(4) in t and [1, 2] in t
    assert None not in t and "3" not in t
    assert 3 in t[1, 0] and 1 not in t[:0]


def test_what_is_no_number_is_not_equal_and_has_no_order(device):
    t = tensor_of(np.arange(3, dtype=np.float32), device)
    for other in (None, "x", object(), {}):
        assert (t == other) is False and (t != other) is True
        with pytest.raises(TypeError, match="not supported"):
            t < other  # noqa: B015
    for other in (np.ones(2), [1, 2], tensor_of(np.ones(2, np.float32), device)):
        with pytest.raises(ValueError, match="broadcast"):
            t == other  # noqa: B015
    with pytest.raises(ValueError, match="ambiguous|truth"):
        bool(t == t)


def test_a_mask_is_not_lost_on_the_way(device):
    t = tensor_of(np.arange(3, dtype=np.float32), device)
    with pytest.raises(TypeError, match="mask"):
        t == np.ma.masked_array([0, 1, 2], [True, False, False])  # noqa: B015


@pytest.mark.parametrize("calculate", (
    lambda t: t + 1, lambda t: 1 + t, lambda t: t - t, lambda t: 2.5 * t, lambda t: t @ t, lambda t: t / 2, lambda t: 1 // t, lambda t: t % 2,
    lambda t: t ** 2, lambda t: 2 ** t, lambda t: -t, lambda t: abs(t), lambda t: sum(t), lambda t: +t))
def test_arithmetic_says_what_calculates(calculate, device):
    with pytest.raises(TypeError, match=r"^an accrt.Tensor holds values and does not calculate: t.numpy\(\) .* torch.from_dlpack\(t\)"):
        calculate(tensor_of(some("f32"), device))


def test_arithmetic_with_arrays_is_theirs(device):
    array = some("f32")
    t = tensor_of(array, device)
    assert ((t - array) == 0).all() and ((array - t) == 0).all() and (np.exp(t) == np.exp(array)).all()
    with pytest.raises(TypeError, match="unsupported operand"):
        t + "1"


def test_the_hash_is_of_the_object(device):
    a, b = tensor_of(np.zeros(2, np.float32), device), tensor_of(np.zeros(2, np.float32), device)
    assert {a: 1, b: 2}[a] == 1 and hash(a) != hash(b) and len({a, b, a}) == 2


def test_without_numpy_it_says_what_to_do(device, monkeypatch):
    import builtins
    real = builtins.__import__
    t = tensor_of(np.zeros(2, np.float32), device)

    def without(name, *rest, **named):
        if name.partition(".")[0] == "numpy":
            raise ImportError(name)
        return real(name, *rest, **named)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match="numpy.*tolist"):
        t == 0  # noqa: B015


def test_torch_tensors(device):
    torch = pytest.importorskip("torch")
    t = tensor_of(np.arange(3, dtype=np.float32), device)
    assert (t == torch.arange(3)).all() and (t == torch.arange(3).to(torch.bfloat16)).all()
