"""`copy=True`: arrays that are strided, of the other byte order or misaligned, memoryviews, nested
lists, numbers; each is copied where the runtime cannot take it as it lies, and refused without."""
import array
import struct

import numpy as np
import pytest

import accrt

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
