"""Tensors of other libraries on a GPU as arguments of bound calls, the quick way
(python/native/gpu.c): through DLPack's C exchange and the CUDA array interface. What is used, in
which order, until when, and what is refused in which words.

It runs on a GPU, with torch's and CuPy's tensors too where they are there, and under the stand-in
for CUDA's driver (tests/python/test_standin.py), whose streams run late.
"""

from __future__ import annotations

import ctypes
import gc
import pathlib
import subprocess
import sys
import time
import weakref

import numpy as np
import pytest

import accrt
from accrt import _fast, _window, Pool, Stream
from gpu_device import DATA, DEVICE, why_not
from test_cuda_arrays import Array, floats, SEED, values

ROOT = pathlib.Path(__file__).resolve().parents[2]
NO_DEVICE = why_not(DATA / "device.accx") or ("" if _fast.native is not None else "accrt._native was not built")
pytestmark = pytest.mark.skipif(bool(NO_DEVICE), reason=NO_DEVICE or "-")

_api = ctypes.pythonapi
_api.PyCapsule_New.restype, _api.PyCapsule_New.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


@pytest.fixture(scope="module")
def instance():
    return accrt.Instance(host_code="all", options={"packs.path": str(DATA), "host.threads": 1})


@pytest.fixture(scope="module")
def device(instance):
    return instance.device(DEVICE)


@pytest.fixture(scope="module")
def program(instance, device):
    return accrt.Program(accrt.Bundle(DATA / "device.accx", instance), device)


# ---- A library with the C exchange

class Shape(ctypes.Structure):
    """DLTensor, with its name from the header alone."""

    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32), ("ndim", ctypes.c_int32),
                ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16), ("shape", ctypes.c_void_p),
                ("strides", ctypes.c_void_p), ("byte_offset", ctypes.c_uint64)]  # fmt: skip


DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Managed(ctypes.Structure):
    _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("context", ctypes.c_void_p), ("deleter", DELETER), ("flags", ctypes.c_uint64),
                ("tensor", Shape)]  # fmt: skip


FROM_OBJECT = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(ctypes.c_void_p))
CURRENT_STREAM = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int32, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p))


class Api(ctypes.Structure):
    _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("previous", ctypes.c_void_p), ("allocate", ctypes.c_void_p),
                ("from_object", FROM_OBJECT), ("to_object", ctypes.c_void_p), ("borrow", ctypes.c_void_p), ("current_stream", CURRENT_STREAM)]  # fmt: skip


_alive: dict = {}
current = [0]  # the stream that the library says


@DELETER
def _delete(address):
    del _alive[address]


@FROM_OBJECT
def _from_object(value, out):
    managed = value.managed()
    _alive[ctypes.addressof(managed)] = managed
    out[0] = ctypes.addressof(managed)
    return 0


@CURRENT_STREAM
def _current_stream(device_type, device_id, out):
    out[0] = current[0]
    return 0


NAME = b"dlpack_exchange_api"  # the capsule has its address
TABLE = Api(1, 3, None, None, _from_object, None, None, _current_stream)


class Lent:
    """A tensor of a library with DLPack's C exchange, and its `__dlpack__`, which says when it is
    asked."""

    __dlpack_c_exchange_api__ = _api.PyCapsule_New(ctypes.addressof(TABLE), NAME, None)
    slow = 0

    def __init__(self, device, array, stream=None, **other):
        self.buffer = Pool(device).buffer(max(array.nbytes, 64))
        filled = stream or Stream(device)
        if array.nbytes:
            filled.copy(np.ascontiguousarray(array), self.buffer)
        if stream is None:
            filled.synchronize()
        self.array, self.fields = array, other
        self.tensor = accrt.Tensor(self.buffer, {"f4": "f32", "f8": "f64", "i4": "i32"}[array.dtype.str[1:]], array.shape)

    def managed(self):
        array = self.array
        shape, strides = (ctypes.c_int64 * array.ndim)(*array.shape), (ctypes.c_int64 * array.ndim)(*(s // array.itemsize for s in array.strides))
        fields = {"data": self.buffer.address, "device_type": 2, "ndim": array.ndim, "code": 2 if array.dtype.kind == "f" else 0, "bits": 8 * array.itemsize,
                  "lanes": 1, "shape": ctypes.addressof(shape), "strides": ctypes.addressof(strides), **self.fields}  # fmt: skip
        flags = fields.pop("flags", 0)
        managed = Managed(1, 0, None, _delete, flags, Shape(**fields))
        managed.kept = shape, strides, self.buffer
        return managed

    def __dlpack__(self, **given):
        Lent.slow += 1
        return self.tensor.__dlpack__(**given)

    def __dlpack_device__(self):
        return self.tensor.__dlpack_device__()


@pytest.fixture(autouse=True)
def default_stream():
    """The library's current stream, also after a test that had another one."""
    current[0] = 0
    yield
    current[0] = 0


@pytest.fixture
def lent(device):
    gc.collect()
    return lambda array, **other: Lent(device, array, **other)


def learned(call, make):
    """A call whose quick way knows the class and reaches the memory."""
    kept = [make(floats(64, seed=i)) for i in range(4)]
    for value in sorted(kept, key=lambda one: one.buffer.address):
        for _ in range(3):
            call.set("x", value)
    return kept


def ways(device):
    """What makes an array of a library: through the exchange, through the array interface."""
    return {"exchange": lambda x, **more: Lent(device, x, **more), "interface": lambda x, **more: Array(device, x, **more)}


@pytest.fixture(params=["exchange", "interface"])
def make(request, device):
    return ways(device)[request.param]


@pytest.fixture
def is_quick(monkeypatch):
    """Nothing is done in many steps from here on."""
    def check():
        monkeypatch.setattr(accrt.call.Call, "_set_alone", lambda *given: pytest.fail("it was done in many steps"))
    return check


def on_host(x):
    return 2 * x + 1


# ---- In

@pytest.mark.parametrize("n", [0, 1, 64, 1000])
def test_the_quick_way_takes_it_where_it_lies(program, make, is_quick, n):
    call = program.session().affine.bind(floats(64))
    kept = learned(call, make)
    arrays = [make(floats(n, seed=i)) for i in range(10)]
    lowest = min(one.buffer.address for one in kept)
    is_quick()
    for i, one in enumerate(arrays):
        if n and one.buffer.address < lowest:
            continue  # it lies below all that was seen
        call.set("x", one)
        np.testing.assert_array_equal(values(call()), on_host(floats(n, seed=i)))


def test_memory_below_what_was_seen_is_learned(program, device, make, is_quick):
    call = program.session().affine.bind(floats(64))
    arrays = sorted((make(floats(64, seed=i)) for i in range(6)), key=lambda one: -one.buffer.address)
    for one in arrays:
        for _ in range(3):
            call.set("x", one)
        np.testing.assert_array_equal(values(call()), values(accrt.Tensor(one.buffer, "f32", [64])) * 2 + 1)
    is_quick()
    for one in arrays:
        call.set("x", one)
        np.testing.assert_array_equal(values(call()), values(accrt.Tensor(one.buffer, "f32", [64])) * 2 + 1)


def test_a_result_of_a_bound_call(program, device, make, is_quick):
    session, x = program.session(), floats(64)
    call = session.affine.bind(x, out=make(np.zeros(64, np.float32)))
    learned(call, make)
    outs = [make(np.full(64, 7, np.float32)) for _ in range(4)]
    for out in outs:
        for _ in range(3):
            call.set(1, out), call.set("x", x)
    is_quick()
    call.set("x", x)
    for out in outs:
        call.set(1, out)
        assert call() is out
        np.testing.assert_array_equal(values(accrt.Tensor(out.buffer, "f32", [64])), on_host(x))


def test_an_unbound_call(program, make, monkeypatch):
    f = program.session().affine
    arrays = [make(floats(64, seed=i)) for i in range(6)]
    for one in sorted(arrays, key=lambda one: one.buffer.address):
        for _ in range(3):
            f(one)
    monkeypatch.setattr(accrt.call.Function, "_bind", lambda *given: pytest.fail("it was done in many steps"))
    for i, one in enumerate(arrays):
        np.testing.assert_array_equal(values(f(one)), on_host(floats(64, seed=i)))
    assert not _alive


def test_a_submission_needs_no_new_plan(program, make, is_quick):
    call = program.session().affine.bind(floats(64))
    kept = learned(call, make)
    call()
    call.submit()
    for one in kept:
        call.set("x", one)
    assert call._planned
    for one in kept:
        call.set("x", one)
        call.submit()
        assert call._planned
        np.testing.assert_array_equal(values(call.results()), values(accrt.Tensor(one.buffer, "f32", [64])) * 2 + 1)
    call.set("x", floats(32))
    assert not call._planned
    call.submit()
    np.testing.assert_array_equal(values(call.results()), on_host(floats(32)))


# ---- Order

def fill_late(stream, array, x):
    for _ in range(50):
        stream.copy(array.buffer, array.other)
    stream.copy(x, array.buffer)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("way", ["exchange", "interface"])
def test_the_producers_stream_comes_first(program, device, is_quick, way, seed):
    producer, x = Stream(device), floats(4000, seed=seed)
    call = program.session().affine.bind(floats(64))
    learned(call, ways(device)[way])
    array = ways(device)[way](np.zeros(4000, np.float32), stream=producer)
    array.other = Pool(device).buffer(16000)
    current[0] = producer.native
    for _ in range(3):
        call.set("x", array)
    is_quick()
    for turn in range(10):
        x = x + 1
        fill_late(producer, array, x)
        call.set("x", array)
        if turn % 2:
            call.submit()
            np.testing.assert_array_equal(values(call.results()), on_host(x))
        else:
            np.testing.assert_array_equal(values(call()), on_host(x))


@pytest.fixture
def driver():
    from accrt._system import loaded_library
    return loaded_library("libcuda.so.1")


@pytest.mark.parametrize("way", ["exchange", "interface"])
def test_one_stream_that_is_captured(program, device, driver, is_quick, way):
    """Nothing is recorded for the argument: the graph has the function alone, and reads the array
    again at each launch."""
    context, raw, graph, ready = (ctypes.c_void_p() for _ in range(4))
    assert not driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device.info.dlpack_device[1])
    assert not driver.cuCtxPushCurrent_v2(context) and not driver.cuStreamCreate(ctypes.byref(raw), 1)
    stream = Stream.wrap(device, raw.value)
    make = ways(device)[way]
    array, out = make(floats(500), **({"stream": stream} if way == "interface" else {})), make(np.zeros(500, np.float32))
    stream.synchronize()
    session = program.session(stream=stream)
    call = session.affine.bind(floats(500), out=out)
    current[0] = raw.value
    learned(call, make)
    for _ in range(3):
        call.set("x", array)
        call.set(1, out)
    call()
    stream.synchronize()
    is_quick()
    assert not driver.cuStreamBeginCapture_v2(raw, 2)
    call.set("x", array)
    call.set(1, out)
    call.submit()
    assert not driver.cuStreamEndCapture(raw, ctypes.byref(graph))
    count = ctypes.c_size_t()
    assert not driver.cuGraphGetNodes(graph, None, ctypes.byref(count)) and count.value == 1
    assert not driver.cuGraphInstantiateWithFlags(ctypes.byref(ready), graph, ctypes.c_uint64(0))
    other = Stream(device)
    for seed in range(3):
        other.copy(floats(500, seed=seed), array.buffer)
        other.synchronize()
        assert not driver.cuGraphLaunch(ready, raw) and not driver.cuStreamSynchronize(raw)
        np.testing.assert_array_equal(values(accrt.Tensor(out.buffer, "f32", [500])), on_host(floats(500, seed=seed)))
    driver.cuGraphExecDestroy(ready), driver.cuGraphDestroy(graph)
    del call, session, stream
    gc.collect()
    driver.cuStreamDestroy_v2(raw), driver.cuCtxPopCurrent_v2(ctypes.byref(context))
    driver.cuDevicePrimaryCtxRelease_v2(device.info.dlpack_device[1])


# ---- A session with a stream of its own, and tensors of the default stream

@pytest.fixture
def records(driver):
    """The streams on which the quick way records events, and what it is told in place of whether a
    stream is captured."""
    noted, refused = [], []
    kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
    record, capturing = kind(("cuEventRecord", driver)), kind(("cuStreamIsCapturing", driver))
    instead = {"cuEventRecord": kind(lambda event, stream: (noted.append(stream or 0), record(event, stream))[1]),
               "cuStreamIsCapturing": kind(lambda stream, out: refused[0] if refused else capturing(stream, out))}  # fmt: skip
    assert _window.connect(_fast.native)
    own = {name: ctypes.cast(driver[name], ctypes.c_void_p).value for name in _window._FUNCTIONS}
    _fast.native.connect_cuda(tuple({**own, **{name: ctypes.cast(f, ctypes.c_void_p).value for name, f in instead.items()}}.values()))
    yield noted, refused
    _fast.native.connect_cuda(tuple(own.values()))


def of_default(device, way, x):
    """A tensor of the legacy default stream, which the array interface calls 1."""
    array = ways(device)[way](x, **({"stream": 1} if way == "interface" else {}))
    array.other = Pool(device).buffer(16000)
    return array


def bound_to_default(session, device, way, n=4000):
    """A call of a session, its argument and its result, which the quick way knows."""
    array, out = of_default(device, way, np.zeros(n, np.float32)), of_default(device, way, np.zeros(n, np.float32))
    call = session.affine.bind(array, out=out)
    for value in sorted((array, out), key=lambda one: one.buffer.address):
        for _ in range(3):
            call.set("x", value), call.set(1, value)
    call.set("x", array), call.set(1, out)
    call(), call.submit()  # nothing is due
    session.stream.synchronize()
    return call, array, out


@pytest.mark.parametrize("way", ["exchange", "interface"])
def test_one_event_for_each_submission(program, device, is_quick, records, way):
    """However many arguments are bound, and none where none is."""
    noted, _ = records
    session = program.session()
    call, array, out = bound_to_default(session, device, way)
    is_quick()
    del noted[:]
    for expected, bound in ((1, 1), (2, 3), (2, 0), (3, 2)):
        for _ in range(bound):
            call.set("x", array), call.set(1, out)
        assert len(noted) == expected - bool(bound)
        call.submit()
        assert len(noted) == expected and not set(noted) - {0, 1}
    call.set("x", array)
    assert call() is out and len(noted) == 4
    call.set("x", array)
    assert call.run() is out and len(noted) == 5
    # one call's argument, and a submission of another one
    other = session.affine.bind(array, out=out)
    call.set("x", array)
    other.submit()
    assert len(noted) == 6
    call.submit()
    assert len(noted) == 6
    for turn in range(3):
        session.affine(array, out=out)
    assert len(noted) <= 9
    session.stream.synchronize()


@pytest.mark.parametrize("way", ["exchange", "interface"])
def test_a_stream_that_was_given_is_ordered_at_once(program, device, is_quick, records, way):
    """It may be captured by the time of the submission."""
    noted, _ = records
    call, array, out = bound_to_default(program.session(stream=Stream(device)), device, way)
    is_quick()
    del noted[:]
    call.set("x", array), call.set(1, out)
    assert len(noted) == 2
    call.submit()
    assert len(noted) == 2
    call()


@pytest.mark.parametrize("run", ["submit", "with a semaphore", "call", "run", "unbound"])
@pytest.mark.parametrize("when", ["before", "between"])
@pytest.mark.parametrize("way", ["exchange", "interface"])
def test_the_default_stream_comes_first(program, device, is_quick, way, when, run):
    """What the default stream writes before the argument is bound, and before the submission."""
    session, default = program.session(), Stream.wrap(device, 0)
    call, array, out = bound_to_default(session, device, way)
    is_quick()
    for turn in range(5):
        x = floats(4000, seed=turn)
        if when == "before" or run == "unbound":
            fill_late(default, array, x)
        call.set("x", array)
        if when == "between" and run != "unbound":
            fill_late(default, array, x)
        if run == "submit":
            call.submit()
        elif run == "with a semaphore":
            call.submit(signals=[(accrt.Semaphore(device.instance), 1)])
        elif run == "call":
            call()
        elif run == "run":
            call.run(timeout=30)
        else:
            session.affine(array, out=out)
        session.stream.synchronize()
        np.testing.assert_array_equal(values(accrt.Tensor(out.buffer, "f32", [4000])), on_host(x))


@pytest.mark.parametrize("why", ["held back", "not told"])
@pytest.mark.parametrize("way", ["exchange", "interface"])
def test_the_default_stream_comes_first_in_many_steps(program, device, is_quick, records, way, why):
    """Where the stream holds work back since the argument was bound, or CUDA does not say whether
    one of the two is captured."""
    noted, refused = records
    session, default, gate = program.session(), Stream.wrap(device, 0), accrt.Semaphore(device.instance)
    call, array, out = bound_to_default(session, device, way)
    is_quick()
    del noted[:]
    for turn in range(1, 6):
        x = floats(4000, seed=turn)
        call.set("x", array)
        if why == "held back":
            session.stream.wait(gate, turn)
        else:
            refused[:] = [906]  # CUDA_ERROR_STREAM_CAPTURE_IMPLICIT
        fill_late(default, array, x)
        call.submit()
        del refused[:]
        gate.signal(turn)
        session.stream.synchronize()
        np.testing.assert_array_equal(values(accrt.Tensor(out.buffer, "f32", [4000])), on_host(x))
    assert not noted


# ---- Lifetime

def until_gone(session, is_gone):
    """Work is over: what it used goes, unless another thread is just looking after it."""
    for _ in range(200):
        session._in_flight.look()
        if is_gone():
            return
        time.sleep(0.02)
    pytest.fail("it is still kept")


@pytest.mark.parametrize("submitted", [True, False])
def test_a_tensor_is_kept_until_its_work_is_over(program, device, lent, is_quick, submitted):
    stream = Stream(device)
    session = program.session(stream=stream)
    out, busy = Lent(device, np.zeros(4000, np.float32)), (Pool(device).buffer(16000), Pool(device).buffer(16000))
    call = session.affine.bind(floats(4000), out=out)
    current[0] = stream.native
    kept = learned(call, lent)
    first, second = sorted((lent(floats(4000, seed=i)) for i in (1, 2)), key=lambda one: one.buffer.address)
    if first.buffer.address < min(one.buffer.address for one in kept):
        for one in (first, second):
            call.set("x", one), call.set("x", one)
    wanted = on_host(values(accrt.Tensor(first.buffer, "f32", [4000])))
    call.set("x", first)
    call()
    is_quick()
    mine = [address for address, one in _alive.items() if one.kept[2] is first.buffer]
    assert len(mine) == 1
    for _ in range(300):
        stream.copy(*busy)
    if submitted:
        call.submit()
    call.set("x", second)
    del first
    gc.collect()
    submitted_at, _issued, over = session._in_flight.queue.progress()
    if submitted and over < submitted_at:
        assert mine[0] in _alive
    stream.synchronize()
    until_gone(session, lambda: mine[0] not in _alive)
    if submitted:
        np.testing.assert_array_equal(values(accrt.Tensor(out.buffer, "f32", [4000])), wanted)
    call.close()
    del call
    gc.collect()
    until_gone(session, lambda: not [one for one in _alive.values() if one.kept[2] is second.buffer])


@pytest.mark.parametrize("way", ["exchange", "interface"])
def test_at_the_end_of_the_process(way):
    text = ("import sys; sys.path[:0] = sys.argv[1:3]; import test_bound_arrays as t, accrt\n"
            "i = accrt.Instance(host_code='all', options={'packs.path': str(t.DATA)}); d = i.device(t.DEVICE)\n"
            "s = accrt.Program(accrt.Bundle(t.DATA / 'device.accx', i), d).session()\n"
            "call = s.affine.bind(t.floats(64)); kept = t.learned(call, t.ways(d)[sys.argv[3]])\n"
            "for n in range(200): call.set('x', kept[n % 4]); call.submit()\n"
            "print('ends')")
    done = subprocess.run([sys.executable, "-c", text, str(ROOT / "python"), str(ROOT / "tests/gpu"), way], capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ends\n", ""), done


# ---- What is refused

@pytest.mark.parametrize("way", ["exchange", "interface"])
def test_what_does_not_fit_is_said_and_the_argument_stays(program, device, way):
    make, call = ways(device)[way], program.session().affine.bind(floats(64))
    kept = learned(call, make)
    call.set("x", kept[3])
    wanted = values(call()).copy()
    for wrong, text in ((make(floats(64).astype(np.float64)), "x.*f64|f64.*x"), (make(floats(8, 8)), "x.*rank|dimension"),):
        for _ in range(3):
            with pytest.raises((TypeError, ValueError, accrt.Error), match=text):
                call.set("x", wrong)
            np.testing.assert_array_equal(values(call()), wanted)
    written = program.session().inplace.bind(make(floats(8)))
    read_only = make(floats(8), **({"flags": 1} if way == "exchange" else {"read_only": True}))
    if way == "exchange":
        read_only.tensor._read_only = True
    for _ in range(3):
        with pytest.raises((ValueError, accrt.Error), match="read-only"):
            written.set("x", read_only)


def test_a_tensor_of_another_gpu(program, device):
    """The exchange says so itself; of an array's memory CUDA says it."""
    call = program.session().affine.bind(floats(64))
    kept = learned(call, ways(device)["exchange"])
    before, Lent.slow = Lent.slow, 0
    call.set("x", kept[3])
    assert Lent.slow == 0
    elsewhere = Lent(device, floats(64), device_id=5)
    call.set("x", elsewhere)
    assert Lent.slow == 1  # left to the other way, which sees where it lies
    Lent.slow = before


@pytest.mark.parametrize("changed", [{"mask": object()}, {"typestr": "<c8"}, {"version": 1}, {"shape": (-1,)}, {"data": (0, False)}, {"strides": (2,)},
                                     {"stream": 0}, {"data": None}])  # fmt: skip
def test_interfaces_that_are_wrong(program, device, changed):
    call = program.session().affine.bind(floats(64))
    kept = learned(call, ways(device)["interface"])
    call.set("x", kept[3])
    wanted = values(call()).copy()
    with pytest.raises((TypeError, ValueError)):
        call.set("x", Array(device, floats(64), **changed))
    np.testing.assert_array_equal(values(call()), wanted)


def test_memory_of_the_host_is_no_place_on_the_gpu(program, device):
    """An array interface may give any address."""
    call = program.session().affine.bind(floats(64))
    kept, x = learned(call, ways(device)["interface"]), floats(64, seed=9)
    array = Array(device, x, data=(x.ctypes.data, False))
    for _ in range(3):
        call.set("x", array)
        np.testing.assert_array_equal(values(call()), on_host(x))
    del kept


# ---- Many

def test_random_arguments(program, device):
    """Kinds, shapes, streams and ends of work in any order: the results are right, and nothing is
    left."""
    random = np.random.default_rng(SEED)
    streams = [Stream(device) for _ in range(3)]
    sessions = [program.session(), program.session(stream=streams[0])]
    calls = [s.affine.bind(floats(64)) for s in sessions]
    for call in calls:
        for make in ways(device).values():
            current[0] = 0
            learned(call, make)
    for step in range(300):
        which, n = int(random.integers(2)), int(random.integers(0, 300))
        x, stream = floats(n, seed=step), streams[int(random.integers(3))]
        current[0] = stream.native
        kind = random.integers(3)
        value = x if kind == 0 else Lent(device, x, stream=stream) if kind == 1 else Array(device, x, stream=stream)
        call = calls[which]
        call.set("x", value)
        del value
        if random.integers(2):
            call.submit()
            found = values(call.results())
        else:
            found = values(call())
        np.testing.assert_array_equal(found, on_host(x), f"seed {SEED}, step {step}")
    for call in calls:
        call.close()
    del calls, call
    gc.collect()
    for session in sessions:
        session.stream.synchronize()
        until_gone(session, lambda: True)
    until_gone(sessions[0], lambda: not _alive)


# ---- Streams of other libraries

class Queue:
    """A stream of another library, which destroys it when nobody has it."""

    def __init__(self, driver, device):
        self.driver, self.raw, self.context, self.index = driver, ctypes.c_void_p(), ctypes.c_void_p(), device.info.dlpack_device[1]
        assert not driver.cuDevicePrimaryCtxRetain(ctypes.byref(self.context), self.index)
        assert not driver.cuCtxPushCurrent_v2(self.context) and not driver.cuStreamCreate(ctypes.byref(self.raw), 1)
        driver.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))

    def __cuda_stream__(self):
        return 0, self.raw.value

    def __del__(self):
        self.driver.cuStreamDestroy_v2(self.raw)
        self.driver.cuDevicePrimaryCtxRelease_v2(self.index)


@pytest.mark.parametrize("last", ["stream", "session", "call", "work"])
def test_a_stream_of_others_lives_as_long_as_anything_of_it(program, device, driver, last):
    def use():
        queue = Queue(driver, device)
        alive, stream = weakref.ref(queue), Stream.wrap(device, queue)
        if last == "stream":
            return alive, stream
        session = program.session(stream=stream)
        if last == "session":
            return alive, session
        call = session.affine.bind(floats(4000), out=np.zeros(4000, np.float32))
        call.submit()
        return alive, call if last == "call" else None

    alive, kept = use()
    gc.collect()
    assert last == "work" or alive() is not None
    if last == "call":
        np.testing.assert_array_equal(kept(), on_host(floats(4000)))
    del kept
    for _ in range(100):
        gc.collect()
        if alive() is None:
            break
        time.sleep(0.05)  # the thread that looks after work in flight lets it go
    assert alive() is None


# ---- By where it lies

class Given:
    """A tensor of any place, which gives capsules alone, or has the exchange too."""

    def __init__(self, place, address, array):
        self.place, self.array = place, array
        self.fields = {"data": address, "device_type": place[0], "device_id": place[1]}

    def managed(self):
        array = self.array
        shape = (ctypes.c_int64 * array.ndim)(*array.shape)
        fields = {"ndim": array.ndim, "code": 2, "bits": 32, "lanes": 1, "shape": ctypes.addressof(shape), "strides": None, **self.fields}
        managed = Managed(1, 0, None, _delete, 0, Shape(**fields))
        managed.kept = shape, array
        return managed

    def __dlpack__(self, **given):
        managed = self.managed()
        _alive[ctypes.addressof(managed)] = managed
        return _api.PyCapsule_New(ctypes.addressof(managed), b"dltensor_versioned", None)

    def __dlpack_device__(self):
        return self.place


class GivenByExchange(Given):
    __dlpack_c_exchange_api__ = Lent.__dlpack_c_exchange_api__


WAYS = pytest.mark.parametrize("kind", [Given, GivenByExchange], ids=["capsule", "exchange"])


@WAYS
def test_pinned_memory_is_the_hosts(instance, program, device, kind):
    """DLPack's kDLCUDAHost, as torch has pinned tensors: for every device, without a copy."""
    gc.collect()
    before, x = len(_alive), floats(96, seed=1)
    pinned = Pool(device, "pinned").buffer(x.nbytes)
    pinned.memoryview()[:] = x.tobytes()
    given = kind((3, 0), pinned.host_pointer, x)
    on = {device: program, instance.device("host"): accrt.Program(program.bundle, instance.device("host"))}
    for place, loaded in on.items():
        tensor = accrt.from_dlpack(given, place)
        assert tensor.buffer.host_pointer == pinned.host_pointer and not tensor.read_only
        np.testing.assert_array_equal(values(tensor), x)
        session = loaded.session()
        call = session.affine.bind(floats(96))
        for value in (tensor, given, given, given):
            np.testing.assert_array_equal(values(session.affine(value)), on_host(x))
            call.set("x", value)
            np.testing.assert_array_equal(values(call()), on_host(x))
        call.set("x", floats(96))
        call()
        del tensor, call, session, value
    gc.collect()
    for _ in range(200):
        if len(_alive) == before:
            break
        time.sleep(0.01)
    assert len(_alive) == before  # each was released


@WAYS
def test_a_tensor_of_the_second_gpu_is_refused(instance, program, device, kind):
    """The bundle runs on the first: one line names the place, and what was bound stays."""
    if len([one for one in instance.devices() if one.info.driver == "cuda"]) < 2:
        pytest.skip("there is one GPU")
    second = next(one for one in instance.devices() if one.info.driver == "cuda" and one.name != device.name)
    own = Pool(second).buffer(4 * 64)
    given = kind(second.info.dlpack_device, own.address, floats(64))
    session = program.session()
    call = session.affine.bind(floats(64))
    wanted = values(call()).copy()
    for act in (lambda: accrt.from_dlpack(given, device), lambda: session.affine(given), lambda: call.set("x", given)):
        for _ in range(2):
            with pytest.raises(accrt.UnsupportedError, match=r"\(2, \d\)") as refused:
                act()
            assert "\n" not in str(refused.value)
            np.testing.assert_array_equal(values(call()), wanted)
    there = accrt.from_dlpack(given, second)  # the second GPU itself takes it
    for act in (lambda: session.affine(there), lambda: (call.set("x", there), call())):
        with pytest.raises(accrt.Error, match="cuda:1") as refused:
            act()
        assert "\n" not in str(refused.value)
    call.set("x", floats(64))
    np.testing.assert_array_equal(values(call()), wanted)
    host = accrt.Program(program.bundle, instance.device("host")).session()
    with pytest.raises((accrt.Error, BufferError, TypeError), match=r"\(2, 1\).*host:0 cannot take"):
        host.affine(given)
