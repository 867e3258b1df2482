"""Arrays with the CUDA array interface (version 3), in and out: what is refused, whose memory it is
and until when, and that the producer's stream comes first.

It runs on a GPU, and under the stand-in for CUDA's driver (tests/python/test_standin.py), whose
streams run late.
"""

from __future__ import annotations

import ctypes
import gc
import os
import pathlib
import subprocess
import sys
import threading
import weakref

import numpy as np
import pytest

import accrt
from accrt import _cuda_arrays, Pool, Stream
from accrt._views import _pyapi
from gpu_device import DATA, DEVICE, why_not

ROOT = pathlib.Path(__file__).resolve().parents[2]
SEED = int(os.environ.get("ACCRT_TEST_SEED", "20261128"))

NO_DEVICE = why_not(DATA / "device.accx")
pytestmark = pytest.mark.skipif(bool(NO_DEVICE), reason=NO_DEVICE or "-")


@pytest.fixture(scope="module")
def instance():
    return accrt.Instance(host_code="all", options={"packs.path": str(DATA), "host.threads": 1})


@pytest.fixture(scope="module")
def device(instance):
    return instance.device(DEVICE)


@pytest.fixture(scope="module")
def program(instance, device):
    return accrt.Program(accrt.Bundle(DATA / "device.accx", instance), device)


@pytest.fixture(scope="module")
def affine(instance):
    """What the function gives for x, on the host."""
    session = accrt.Program(accrt.Bundle(DATA / "device.accx", instance), instance.device("host")).session()
    return lambda x: np.asarray(session.affine(np.ascontiguousarray(x))).copy()


_streams = {}


class Array:
    """An array of a GPU that has the interface alone."""

    def __init__(self, device, values, stream=None, read_only=False, **changed):
        self.buffer = Pool(device).buffer(max(values.nbytes, 64))
        self.filled = stream if isinstance(stream, Stream) else _streams.setdefault(id(device), Stream(device))
        if values.nbytes:
            self.filled.copy(np.ascontiguousarray(values), self.buffer)
        if not isinstance(stream, Stream):
            self.filled.synchronize()
        named = stream.native if isinstance(stream, Stream) else stream
        self.interface = {"version": 3, "shape": values.shape, "typestr": values.dtype.str, "data": (self.buffer.address, read_only),
                          "strides": None, "stream": named, **changed}  # fmt: skip

    @property
    def __cuda_array_interface__(self):
        return self.interface


def floats(*shape, seed=0):
    return np.random.default_rng(SEED + seed).integers(-1000, 1000, shape).astype(np.float32) / 8


def values(tensor):
    return np.asarray(tensor).copy()


# ---- In

@pytest.mark.parametrize("n", [1, 64, 1000, 0])
def test_an_argument(program, device, affine, n):
    x = floats(n)
    np.testing.assert_array_equal(values(program.session().affine(Array(device, x))), affine(x))


@pytest.mark.parametrize("version", [2, 3])
def test_a_tensor_of_its_memory(device, version):
    x = floats(6, 5)
    array = Array(device, x, version=version)
    tensor = accrt.from_cuda_array(array, device)
    assert tensor.address == array.buffer.address and (tensor.shape, tensor.dtype, tensor.read_only) == ((6, 5), "f32", False)
    np.testing.assert_array_equal(values(tensor), x)


@pytest.mark.parametrize("dtype, ours", [("|b1", "bool"), ("|i1", "i8"), ("|u1", "u8"), ("<i2", "i16"), ("<u2", "u16"), ("<i4", "i32"), ("<u4", "u32"),
                                         ("<i8", "i64"), ("<u8", "u64"), ("<f2", "f16"), ("<f4", "f32"), ("<f8", "f64")])  # fmt: skip
def test_types(device, dtype, ours):
    x = np.random.default_rng(SEED).integers(0, 2, 40).astype(dtype)
    tensor = accrt.from_cuda_array(Array(device, x), device)
    assert tensor.dtype == ours
    np.testing.assert_array_equal(values(tensor), x)


def test_a_type_of_ml_dtypes(device):
    """It is a void type to the interface, and the array says which."""
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")
    for name, ours in (("bfloat16", "bf16"), ("float8_e4m3fn", "f8e4m3fn"), ("float8_e5m2", "f8e5m2"), ("float8_e8m0fnu", "f8e8m0")):
        x = np.arange(1, 9, dtype=np.float32).astype(getattr(ml_dtypes, name))
        array = Array(device, x.view(f"u{x.itemsize}"), typestr=f"<V{x.itemsize}")
        array.dtype = x.dtype
        tensor = accrt.from_cuda_array(array, device)
        assert tensor.dtype == ours and tensor.numpy().tobytes() == x.tobytes()


def test_strides(device):
    x = floats(6, 8)
    for part in (x[::2], x[:, 1::3], x[::-1, ::-2], x.T, x[2:3, ::-1], np.broadcast_to(x[0], (4, 8))):
        whole = Array(device, x)
        first = part.__array_interface__["data"][0] - x.__array_interface__["data"][0]
        whole.interface.update(shape=part.shape, strides=part.strides, data=(whole.buffer.address + first, False))
        tensor = accrt.from_cuda_array(whole, device)
        assert tensor.address == whole.buffer.address + first
        np.testing.assert_array_equal(values(tensor), part)


def test_strided_arrays_are_copied_where_that_is_asked_for(program, device, affine):
    x = floats(40)
    array = Array(device, x, shape=(20,), strides=(8,))
    with pytest.raises((ValueError, accrt.Error), match="stride|contiguous"):
        program.session().affine(array)
    np.testing.assert_array_equal(values(program.session().affine(array, copy=True)), affine(x[::2]))


def test_random_round_trips(device):
    """In, out, in again: shape, strides, address and values stay."""
    random = np.random.default_rng(SEED)
    for step in range(100):
        shape = tuple(random.integers(0, 5, random.integers(0, 5)))
        x = random.integers(-99, 99, shape).astype(random.choice(["<f4", "<i8", "|u1", "<f2"]))
        array = Array(device, x, stream=random.choice([None, 1, 2]), read_only=bool(random.integers(2)))
        tensor = accrt.from_cuda_array(array, device)
        again = accrt.from_cuda_array(tensor, device)
        assert (again.shape, again.dtype, again.strides, again.read_only) == (tensor.shape, tensor.dtype, tensor.strides, array.interface["data"][1]), SEED
        assert x.size == 0 or again.address == array.buffer.address
        np.testing.assert_array_equal(values(again), x, f"seed {SEED}, step {step}")


def test_read_only_memory_is_not_written(program, device):
    session = program.session()
    with pytest.raises(ValueError, match="x is written, and the array is read-only"):
        session.inplace(Array(device, floats(8), read_only=True))
    tensor = accrt.from_cuda_array(Array(device, floats(8), read_only=True), device)
    assert tensor.read_only and tensor.__cuda_array_interface__["data"][1]


def test_a_result_in_memory_of_the_caller(program, device, affine):
    x, out = floats(100), Array(device, np.zeros(100, np.float32))
    program.session().affine(x, out=out)
    np.testing.assert_array_equal(values(accrt.from_cuda_array(out, device)), affine(x))


def test_dlpack_comes_first(device):
    """Of an array that has both."""
    tensor = accrt.from_cuda_array(Array(device, floats(8)), device)

    class Both:
        def __dlpack__(self, **given):
            return tensor.__dlpack__(**given)

        def __dlpack_device__(self):
            return tensor.__dlpack_device__()

        @property
        def __cuda_array_interface__(self):
            raise AssertionError("not asked for")

    from accrt.tensor import as_view
    assert as_view(Both(), device).c.dtype


# ---- What is refused

@pytest.mark.parametrize("changed, kind, text", [
    ({"mask": object()}, TypeError, "Array has a mask, which would be lost"),
    ({"typestr": "<c8"}, TypeError, "arrays of type <c8 are not supported"),
    ({"typestr": ">f4"}, TypeError, "arrays of type >f4 are not supported"),
    ({"typestr": "|V2"}, TypeError, "are not supported"),
    ({"typestr": None}, TypeError, "are not supported"),
    ({"version": 1}, TypeError, "of version 1: versions 2 and 3 are read"),
    ({"version": 4}, TypeError, "of version 4: versions 2 and 3 are read"),
    ({"shape": (-1,)}, ValueError, "a negative dimension"),
    ({"shape": (2.5,)}, TypeError, "without shape, typestr, data or version"),
    ({"shape": (1,) * 40}, ValueError, "40 dimensions|at most"),
    ({"data": None}, TypeError, "without shape, typestr, data or version"),
    ({"data": (0, False)}, ValueError, "has its data at 0x0, and 8 elements there"),
    ({"data": ((1 << 64) - 4, False)}, ValueError, "has its data at 0xfffffffffffffffc"),
    ({"data": (1 << 70, False)}, ValueError, "has its data at"),
    ({"shape": (1 << 62,)}, (ValueError, accrt.Error), "elements there|memory"),
    ({"strides": (2,)}, ValueError, "no multiples of the element's 4 bytes"),
    ({"strides": (4, 4)}, ValueError, "no multiples of the element's 4 bytes for each of 1 dim"),
    ({"stream": 0}, ValueError, "names stream 0, which may be either of CUDA's default streams"),
])
def test_interfaces_that_are_wrong(program, device, changed, kind, text):
    array = Array(device, floats(8), **changed)
    with pytest.raises(kind, match=text):
        accrt.from_cuda_array(array, device)
    with pytest.raises(kind, match=text):
        program.session().affine(array)
    gc.collect()
    alive = weakref.ref(array)
    del array
    accrt.from_cuda_array(Array(device, floats(1)), device)  # drops what was let go
    gc.collect()
    assert alive() is None


def test_things_without_it(device, instance):
    for thing in (3, "x", np.zeros(3), object()):
        with pytest.raises(TypeError, match="has no __cuda_array_interface__"):
            accrt.from_cuda_array(thing, device)
    with pytest.raises(ValueError, match="lies on a GPU, and host:0 is none"):
        accrt.from_cuda_array(Array(device, floats(3)), instance.device("host"))
    with pytest.raises(ValueError, match="lies on a GPU, and host:0 is none"):
        accrt.Program(accrt.Bundle(DATA / "device.accx", instance), instance.device("host")).session().affine(Array(device, floats(3)))
    with pytest.raises((accrt.Error, ValueError)):
        accrt.from_cuda_array(Array(device, floats(3), data=(np.zeros(4).ctypes.data, False), shape=(1 << 50,)), device)


# ---- Streams

def fill_late(stream, array, x):
    """The stream gets there only after a lot of other work."""
    for _ in range(50):
        stream.copy(array.buffer, array.other)
    stream.copy(x, array.buffer)


@pytest.mark.parametrize("seed", range(5))
def test_the_producers_stream_comes_first(program, device, affine, seed):
    """The call is enqueued on a stream of its own, while the producer's still fills the array."""
    producer, x = Stream(device), floats(4000, seed=seed)
    array = Array(device, np.zeros(4000, np.float32), stream=producer)
    array.other = Pool(device).buffer(16000)
    session = program.session()
    call = session.affine.bind(array)
    for _ in range(10):
        x = x + 1
        fill_late(producer, array, x)
        call.set("x", array)
        np.testing.assert_array_equal(values(call()), affine(x))


@pytest.mark.parametrize("seed", range(5))
def test_without_a_consumer_the_host_waits(device, seed):
    producer, x = Stream(device), floats(4000, seed=seed)
    array = Array(device, np.zeros(4000, np.float32), stream=producer)
    array.other = Pool(device).buffer(16000)
    fill_late(producer, array, x)
    np.testing.assert_array_equal(values(accrt.from_cuda_array(array, device)), x)


@pytest.mark.parametrize("seed", range(4))
def test_dlpack_without_a_consumer_waits(device, seed):
    """By the standard, a producer that is told no stream orders its work before the legacy default
    stream; which is no stream of ours."""
    producer, x = Stream(device), floats(4000, seed=seed)
    array = Array(device, np.zeros(4000, np.float32), stream=producer)
    array.other = Pool(device).buffer(16000)

    class Filled:
        def __dlpack_device__(self):
            return device.info.dlpack_device

        def __dlpack__(self, *, max_version=None, stream=None):
            assert stream is None
            _cuda_arrays._order("Filled", producer.native, device, Stream.wrap(device, _cuda_arrays._LEGACY))
            return accrt.Tensor(array.buffer, "f32", x.shape).__dlpack__(max_version=max_version, stream=-1)

    fill_late(producer, array, x)
    np.testing.assert_array_equal(values(accrt.from_dlpack(Filled(), device)), x)


def test_one_stream_needs_no_order(program, device, affine):
    """Nothing is recorded: the same would be refused in a capture."""
    mine = Stream(device)
    session, x = program.session(stream=mine), floats(500)
    array = Array(device, np.zeros(500, np.float32), stream=mine)
    mine.copy(x, array.buffer)
    with pytest.MonkeyPatch.context() as patched:
        from accrt import _cuda_arrays
        patched.setattr(_cuda_arrays, "_check", lambda *given: pytest.fail("the driver was asked"))
        np.testing.assert_array_equal(values(session.affine(array)), affine(x))


def test_the_context_of_the_thread_stays(device):
    def work():
        accrt.from_cuda_array(Array(device, floats(8), stream=Stream(device)), device)
        done.append(True)

    done = []
    threads = [threading.Thread(target=work) for _ in range(4)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert len(done) == 4


# ---- Lifetime

def test_the_array_lives_until_the_device_is_done(program, device, affine):
    """The program forgets it, while the work is still to come."""
    mine, x = Stream(device), floats(4000)
    session = program.session(stream=mine)
    array = Array(device, x)
    array.other = Pool(device).buffer(16000)
    alive, out = weakref.ref(array), np.zeros(4000, np.float32)
    call = session.affine.bind(array, out=out)
    for _ in range(200):
        mine.copy(array.buffer, array.other)
    call.submit()
    del array
    call.set("x", None)
    gc.collect()
    mine.synchronize()
    np.testing.assert_array_equal(out, affine(x))
    del call, session
    gc.collect()
    for _ in range(100):
        accrt.from_cuda_array(Array(device, floats(1)), device)
        if alive() is None:
            break
    assert alive() is None


def test_a_tensor_keeps_the_array_and_so_does_what_takes_it(device):
    array = Array(device, floats(100))
    alive, x = weakref.ref(array), floats(100)
    tensor = accrt.from_cuda_array(array, device)
    del array
    gc.collect()
    assert alive() is not None
    again = accrt.from_dlpack(tensor, device)
    del tensor
    gc.collect()
    assert alive() is not None
    np.testing.assert_array_equal(values(again), x)
    again._external = None
    del again
    gc.collect()
    accrt.from_cuda_array(Array(device, floats(1)), device)
    gc.collect()
    assert alive() is None


@pytest.mark.parametrize("native", ["1", "0"])
def test_at_the_end_of_the_process(native):
    text = ("import sys; sys.path[:0] = sys.argv[1:]; import test_cuda_arrays as t, accrt\n"
            "i = accrt.Instance(host_code='all', options={'packs.path': str(t.DATA)}); d = i.device(t.DEVICE)\n"
            "p = accrt.Program(accrt.Bundle(t.DATA / 'device.accx', i), d); s = p.session()\n"
            "kept = [accrt.from_cuda_array(t.Array(d, t.floats(50)), d) for _ in range(20)]\n"
            "for _ in range(20): s.affine.bind(t.Array(d, t.floats(4000))).submit()\n"
            "del kept[::2]\nprint('ends')")
    done = subprocess.run([sys.executable, "-c", text, str(ROOT / "python"), str(ROOT / "tests/gpu")], env={**os.environ, "ACCRT_NATIVE": native},
                          capture_output=True, text=True, timeout=100, check=False)  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "ends\n", ""), done


# ---- Out

def test_what_is_offered(program, device):
    result = program.session().affine(floats(12))
    interface = result.__cuda_array_interface__
    assert set(interface) == {"version", "typestr", "shape", "data", "strides", "stream"} and interface["version"] == 3
    assert (interface["typestr"], interface["shape"], interface["data"], interface["strides"]) == ("<f4", (12,), (result.address, False), (4,))
    assert interface["stream"] != 0
    wrapped = Stream.wrap(device, 0)
    tensor = accrt.Tensor(Pool(device).buffer(64), "f32", [4])
    assert tensor.__cuda_array_interface__["stream"] is None
    tensor.buffer.stream = wrapped
    assert tensor.__cuda_array_interface__["stream"] == 1
    assert accrt.Tensor(Pool(device).buffer(64), "f32", [0]).__cuda_array_interface__["data"] == (0, False)
    for dtype in ("bf16", "f8e4m3fn", "f4e2m1", "i4", "u4"):
        assert not hasattr(accrt.Tensor(Pool(device).buffer(64), dtype, [4]), "__cuda_array_interface__")


def test_work_that_fills_a_result_is_named(program, device, affine):
    session, x = program.session(), floats(4000)
    call = session.affine.bind(x)
    call.submit()
    assert call.results().__cuda_array_interface__["stream"] == session.stream.native
    call.wait()
    assert call.results().__cuda_array_interface__["stream"] is None
    np.testing.assert_array_equal(values(call()), affine(x))


def test_a_copy_lies_on_the_device(program, device, affine):
    """`__dlpack__(copy=True)`: by the standard it always copies, also on a GPU."""
    x = floats(4000)
    call = program.session().affine.bind(x)
    call.submit()
    whole = call.results()
    part = accrt.Tensor(whole.buffer, "f32", [13, 150], [300, 2], whole.offset_bytes + 4 * 7)
    part._read_only = True
    own = device.info.dlpack_device
    for tensor, named in ((whole, {}), (part, {"dl_device": own}), (whole[:0], {}), (part, {"stream": 1})):
        capsule = tensor.__dlpack__(max_version=(1, 0), copy=True, **named)
        flags = ctypes.c_uint64.from_address(_pyapi.PyCapsule_GetPointer(capsule, b"dltensor_versioned") + 24)
        assert flags.value == 2  # a copy, which may be written
        given = accrt.tensor._taken(capsule, device.handle, device, "a copy")
        assert given.__dlpack_device__() == own and given.shape == tensor.shape and given.strides == tensor.strides and not given.read_only
        np.testing.assert_array_equal(values(given), values(tensor))
        if given.size:
            assert not whole.address <= given.address < whole.address + 4 * 4000
            filled = Stream(device)
            filled.fill(given.buffer, 0)
            filled.synchronize()
    np.testing.assert_array_equal(values(whole), affine(x))
    with pytest.raises(BufferError, match="negative strides"):
        whole[::-1].__dlpack__(copy=True)
    with pytest.raises(BufferError, match=r"not on \(2, 7\)"):
        whole.__dlpack__(copy=True, dl_device=(2, 7))


def test_memory_of_the_host_is_not_offered(instance):
    assert not hasattr(accrt.Tensor(Pool(instance.device("host")).buffer(64), "f32", [4]), "__cuda_array_interface__")
