"""What XLA calls for a function of a bundle (python/native/xla_call.c), in frames made here, so
that it needs no JAX: on the host, and on a CUDA device with its streams. tests/python/test_jax.py
has the rest with JAX itself, on the host, and test_jax_functions.py on a GPU.

It runs on a GPU, and under the stand-in for CUDA's driver (tests/python/test_standin.py).
"""

from __future__ import annotations

import ctypes
import gc
import operator
import re
import threading

import numpy as np
import pytest

import accrt
from accrt import _fast, Pool, Stream
from gpu_device import DATA, DEVICE, why_not

READ, SCALAR, WRITTEN = 0, 1, 2
F32, S64 = 11, 5
TYPES = {np.dtype(np.float32): F32, np.dtype(np.int64): S64}

NO_DEVICE = why_not(DATA / "device.accx") or ("" if _fast.native is not None else "accrt._native was not built")
pytestmark = pytest.mark.skipif(bool(NO_DEVICE), reason=NO_DEVICE or "-")


class Head(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("extensions", ctypes.c_void_p)]


class ErrorArgs(ctypes.Structure):
    _fields_ = [("head", Head), ("message", ctypes.c_char_p), ("code", ctypes.c_int32)]


class StreamArgs(ctypes.Structure):
    _fields_ = [("head", Head), ("context", ctypes.c_void_p), ("stream", ctypes.c_void_p)]


class OrdinalArgs(ctypes.Structure):
    _fields_ = [("head", Head), ("context", ctypes.c_void_p), ("ordinal", ctypes.c_int32)]


class Api(ctypes.Structure):
    _fields_ = [("head", Head), ("version_head", Head), ("major", ctypes.c_int), ("minor", ctypes.c_int), ("internal", ctypes.c_void_p),
                ("error_create", ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.POINTER(ErrorArgs))), ("error_get_message", ctypes.c_void_p),
                ("error_destroy", ctypes.CFUNCTYPE(None, ctypes.c_void_p)), ("handler_register", ctypes.c_void_p),
                ("stream_get", ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.POINTER(StreamArgs))), ("others", ctypes.c_void_p * 12),
                ("ordinal_get", ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.POINTER(OrdinalArgs)))]  # fmt: skip


class Buffer(ctypes.Structure):
    _fields_ = [("head", Head), ("type", ctypes.c_int32), ("data", ctypes.c_void_p), ("rank", ctypes.c_int64), ("dims", ctypes.POINTER(ctypes.c_int64))]


class Array(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int32), ("count", ctypes.c_size_t), ("data", ctypes.c_void_p)]


class Values(ctypes.Structure):
    _fields_ = [("head", Head), ("count", ctypes.c_int64), ("kinds", ctypes.POINTER(ctypes.c_int32)), ("values", ctypes.POINTER(ctypes.c_void_p))]


class Attributes(ctypes.Structure):
    _fields_ = [("head", Head), ("count", ctypes.c_int64), ("kinds", ctypes.POINTER(ctypes.c_int32)), ("names", ctypes.c_void_p),
                ("values", ctypes.POINTER(ctypes.c_void_p))]  # fmt: skip


class Frame(ctypes.Structure):
    _fields_ = [("head", Head), ("api", ctypes.POINTER(Api)), ("context", ctypes.c_void_p), ("stage", ctypes.c_int32), ("arguments", Values),
                ("results", Values), ("attributes", Attributes)]  # fmt: skip


class Metadata(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("version_head", Head), ("major", ctypes.c_int), ("minor", ctypes.c_int), ("traits", ctypes.c_uint32)]


class Extension(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("type", ctypes.c_int32), ("next", ctypes.c_void_p), ("metadata", ctypes.POINTER(Metadata))]


class Xla:
    """XLA's side: what it gives, and what it is told."""

    def __init__(self):
        self.stream, self.ordinal, self.refuses = None, int(DEVICE.partition(":")[2] or 0), ""
        self.local, self.destroyed = threading.local(), []
        handlers = _fast.native.xla_handlers(3)
        self.handlers = [ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.POINTER(Frame))(address) for address in handlers]
        kinds = dict(Api._fields_)

        def create(args):
            assert args.contents.head.size == ctypes.sizeof(ErrorArgs)
            self.local.error = args.contents.code, args.contents.message.decode()
            return 1

        def give_stream(args):
            args.contents.stream = self.stream
            return 7 if self.refuses == "stream" else None

        def give_ordinal(args):
            args.contents.ordinal = self.ordinal
            return 7 if self.refuses == "ordinal" else None

        self.api = Api(error_create=kinds["error_create"](create), error_destroy=kinds["error_destroy"](self.destroyed.append),
                       stream_get=kinds["stream_get"](give_stream), ordinal_get=kinds["ordinal_get"](give_ordinal))
        self.api.head.size = ctypes.sizeof(Api)

    def call(self, on_gpu, numbers, arguments, results):
        """arguments, results: (address, shape, type) of each. None, or the error's code and
        text."""
        kept = []

        def values(kind, given):
            out = kind()
            out.head.size, out.count = ctypes.sizeof(kind), len(given)
            buffers = []
            for address, shape, dtype in given:
                one = Buffer(type=TYPES.get(np.dtype(dtype), 15), data=address, rank=len(shape), dims=(ctypes.c_int64 * max(len(shape), 1))(*shape))
                one.head.size = ctypes.sizeof(Buffer)
                buffers.append(one)
            kept.extend(buffers)
            out.kinds = (ctypes.c_int32 * max(len(given), 1))(*[1] * len(given))
            out.values = (ctypes.c_void_p * max(len(given), 1))(*map(ctypes.addressof, buffers))
            return out

        numbers = (ctypes.c_int64 * len(numbers))(*numbers)
        array = Array(S64, len(numbers), ctypes.addressof(numbers))
        frame = Frame(api=ctypes.pointer(self.api), stage=3, arguments=values(Values, arguments), results=values(Values, results))
        frame.attributes.count = 1
        frame.attributes.kinds = (ctypes.c_int32 * 1)(1)
        frame.attributes.values = (ctypes.c_void_p * 1)(ctypes.addressof(array))
        return self.local.error if self.handlers[on_gpu](ctypes.byref(frame)) else None


@pytest.fixture(scope="module")
def xla():
    return Xla()


@pytest.fixture(scope="module")
def instance():
    return accrt.Instance(host_code="all", options={"packs.path": str(DATA), "host.threads": 2})


@pytest.fixture(scope="module")
def bundle(instance):
    return accrt.Bundle(DATA / "device.accx", instance)


def wait(stream):
    """For all work of the native stream. A record on `stream` itself is behind its own work alone,
    of which it has none; on a stream that wraps the native one, it is behind everybody's."""
    event, wrapped = accrt.Event(stream.device), Stream.wrap(stream.device, stream.native)
    wrapped.record(event)
    event.synchronize()


#: Those that a function was called on live as long as the process, as JAX's do.
streams: list[Stream] = []


@pytest.fixture
def stream(xla, instance):
    made = Stream(instance.device(DEVICE))
    streams.append(made)
    xla.stream = made.native
    yield made
    wait(made)


def function(bundle, name, program=None):
    signature, handles = bundle.signature(name), (bundle.instance.handle, bundle.handle)
    kinds = bytes(SCALAR if a.kind == "scalar" else READ if a.kind == "read" else WRITTEN for a in signature.inputs)
    only = (operator.index(program.handle), operator.index(program.device.handle), program.device.name) if program is not None else (0, 0, "")
    return _fast.native.xla_function(1 << 40, name, f"{name!r} of the test", *map(operator.index, handles), *only, kinds, len(signature.results))


class Memory:
    """Arrays in the memory of a GPU, or of the host."""

    def __init__(self, instance, on_gpu):
        device = instance.device(DEVICE if on_gpu else "host")
        self.pool, self.stream, self.kept = Pool(device), Stream(device), {}

    def put(self, array):
        buffer = self.pool.buffer(max(array.nbytes, 64))
        if array.nbytes:
            self.stream.copy(array, buffer)
            self.stream.synchronize()
        self.kept[buffer.address] = buffer
        return buffer.address, array.shape, array.dtype

    def get(self, place):
        address, shape, dtype = place
        size = int(np.prod(shape)) * dtype.itemsize
        return np.frombuffer(self.kept[address].read(0, size), dtype).reshape(shape).copy()


def floats(*shape, seed=1):
    return np.random.default_rng(seed).integers(-1000, 1000, shape).astype(np.float32) / 8


both = pytest.mark.parametrize("on_gpu", [False, True], ids=["host", "gpu"])


@both
def test_values(xla, instance, bundle, stream, on_gpu):
    """Many shapes on one lane, and lower addresses than before."""
    memory, number = Memory(instance, on_gpu), function(bundle, "affine")
    session = accrt.Program(bundle, instance.device("host")).session()
    places = [memory.put(floats(n)) for n in (4096, 1, 65, 64, 1000)]
    for n in (1, 64, 65, 1000, 4096, 1, 64):
        x = next(p for p in reversed(places) if p[1] == (n,))
        y = memory.put(np.full(n, 77, np.float32))
        assert xla.call(on_gpu, [number, 1], [x], [y]) is None
        wait(stream)
        np.testing.assert_array_equal(memory.get(y), np.asarray(session.affine(floats(n))))


@both
def test_arrays_without_elements(xla, instance, bundle, stream, on_gpu):
    memory, number = Memory(instance, on_gpu), function(bundle, "affine")
    nothing = (None, (0,), np.dtype(np.float32))
    assert xla.call(on_gpu, [number, 1], [nothing], [nothing]) is None
    x, y = memory.put(floats(3)), memory.put(np.zeros(3, np.float32))
    assert xla.call(on_gpu, [number, 1], [x], [y]) is None


@both
def test_optional_inputs_and_scalars(xla, instance, bundle, stream, on_gpu):
    memory, add, divide = Memory(instance, on_gpu), function(bundle, "add"), function(bundle, "divide")
    session = accrt.Program(bundle, instance.device("host")).session()
    x, y = (memory.put(floats(100, seed=s)) for s in (1, 2))
    out, chosen = memory.put(np.zeros(100, np.float32)), memory.put(np.zeros(1, np.int64))
    for given, mask in (([x, y], 3), ([x], 1), ([x, y], 3)):
        assert xla.call(on_gpu, [add, mask], given, [out, chosen]) is None
        wait(stream)
        for found, wanted in zip((out, chosen), session.add(*[memory.get(g) for g in given])):
            np.testing.assert_array_equal(memory.get(found), np.asarray(wanted))
    for by in (2, 7):
        wanted = np.asarray(session.divide(floats(200), by))
        x, out = memory.put(floats(200)), memory.put(np.zeros(wanted.shape, wanted.dtype))
        assert xla.call(on_gpu, [divide, 3, by], [x], [out]) is None
        wait(stream)
        np.testing.assert_array_equal(memory.get(out), wanted)


@both
def test_what_is_written_is_a_result(xla, instance, bundle, stream, on_gpu):
    """It lies where the argument does, or on hosts elsewhere: then the argument stays as it is."""
    memory = Memory(instance, on_gpu)
    x, y, elsewhere = memory.put(floats(50)), memory.put(np.zeros(50, np.float32)), memory.put(np.zeros(50, np.float32))
    number = function(bundle, "donate")
    wanted = np.asarray(accrt.Program(bundle, instance.device("host")).session().donate(floats(50))).copy()
    for target in (elsewhere, x):
        found = xla.call(on_gpu, [number, 1], [x], [y, target])
        if on_gpu and target is elsewhere:
            assert found is not None and found[0] == 13 and "did not put a written input" in found[1]
            continue
        assert found is None, found
        wait(stream)
        np.testing.assert_array_equal(memory.get(y), wanted)
        if target is elsewhere:
            np.testing.assert_array_equal(memory.get(x), floats(50))


def test_work_of_the_stream_comes_first(xla, instance, bundle, stream):
    """The call is enqueued behind what the stream has, and does not wait for it."""
    memory, number = Memory(instance, True), function(bundle, "affine")
    x, y = memory.put(floats(1000)), memory.put(np.zeros(1000, np.float32))
    assert xla.call(True, [number, 1], [x], [y]) is None  # makes the program and the session
    held = floats(1000, seed=9)
    wanted = np.asarray(accrt.Program(bundle, instance.device("host")).session().affine(held))
    stream.copy(held, memory.kept[x[0]])
    assert xla.call(True, [number, 1], [x], [y]) is None
    wait(stream)
    np.testing.assert_array_equal(memory.get(y), wanted)


@both
def test_threads(xla, instance, bundle, stream, on_gpu):
    number, wrong = function(bundle, "affine"), []
    session = accrt.Program(bundle, instance.device("host")).session()
    wanted = {n: np.asarray(session.affine(floats(n))).copy() for n in (16, 700, 4000)}

    def work(seed):
        try:
            memory = Memory(instance, on_gpu)
            for n in (16, 700, 4000) * 10:
                x, y = memory.put(floats(n)), memory.put(np.zeros(n, np.float32))
                assert xla.call(on_gpu, [number, 1], [x], [y]) is None
                if on_gpu:
                    wait(stream)
                np.testing.assert_array_equal(memory.get(y), wanted[n])
        except BaseException as error:  # noqa: BLE001 - it is shown below
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert not wrong, wrong[0]


@both
def test_errors(xla, instance, bundle, stream, on_gpu):
    memory, number, refuse = Memory(instance, on_gpu), function(bundle, "affine"), function(bundle, "refuse")
    x, y, wide = memory.put(floats(64)), memory.put(np.zeros(64, np.float32)), memory.put(np.zeros(64, np.int64))
    for numbers, arguments, results, code, text in (
        ([number + 12345, 1], [x], [y], 9, "the function is not there in this process"),
        ([number], [x], [y], 3, "not made by accrt.jax of this version"),
        ([number, 1], [], [y], 3, "fewer arguments than the function"),
        ([number, 1], [x], [], 3, "fewer results than the function"),
        ([number, 1], [wide], [y], 3, "'affine' of the test: .*i64"),
        ([number, 1], [(x[0], (8, 8), x[2])], [y], 3, "'affine' of the test: "),
        ([number, 1], [x], [(y[0], (63,), y[2])], 3, "'affine' of the test: "),
        ([number, 1], [(x[0], (64,), np.complex64)], [y], 3, "type or number of dimensions"),
        ([number, 1], [(x[0], (1,) * 40, x[2])], [y], 3, "type or number of dimensions"),
    ):  # fmt: skip
        found = xla.call(on_gpu, numbers, arguments, results)
        assert found is not None and found[0] == code, (found, text)
        assert re.search(text, found[1]), (found, text)
    found = xla.call(on_gpu, [refuse, 1, 5], [], [])
    assert on_gpu or (found is not None and "'refuse' of the test" in found[1])
    assert xla.call(on_gpu, [number, 1], [x], [y]) is None  # as good as before
    wait(stream)


def test_xlas_own_errors(xla, instance, bundle, stream):
    memory, number = Memory(instance, True), function(bundle, "affine")
    x, y = memory.put(floats(64)), memory.put(np.zeros(64, np.float32))
    for refused, text in (("stream", "XLA gives no stream"), ("ordinal", "does not say which GPU")):
        xla.refuses = refused
        try:
            assert text in xla.call(True, [number, 1], [x], [y])[1] and xla.destroyed
        finally:
            xla.refuses = ""
    xla.api.head.size = Api.ordinal_get.offset
    try:
        assert "does not say which GPU" in xla.call(True, [number, 1], [x], [y])[1]
    finally:
        xla.api.head.size = ctypes.sizeof(Api)
    xla.ordinal = 99
    try:
        assert "cuda:99" in xla.call(True, [number, 1], [x], [y])[1]
    finally:
        xla.ordinal = 0


def test_a_program_for_its_device_alone(xla, instance, bundle, stream):
    number = function(bundle, "affine", accrt.Program(bundle, instance.device("host")))
    gc.collect()
    near, far = Memory(instance, False), Memory(instance, True)
    x, y = near.put(floats(64)), near.put(np.zeros(64, np.float32))
    assert xla.call(False, [number, 1], [x], [y]) is None
    x, y = far.put(floats(64)), far.put(np.zeros(64, np.float32))
    code, text = xla.call(True, [number, 1], [x], [y])
    assert code == 3 and f"the program is on host:0, and was called on {DEVICE}: give the bundle" in text


def test_registration(xla):
    """XLA asks which version a handler is for, and calls it at other stages."""
    metadata = Metadata(size=ctypes.sizeof(Metadata))
    extension = Extension(size=ctypes.sizeof(Extension), type=1, metadata=ctypes.pointer(metadata))
    for handler in xla.handlers:
        metadata.major = metadata.minor = -1
        frame = Frame()
        frame.head.extensions = ctypes.addressof(extension)
        assert handler(ctypes.byref(frame)) is None and (metadata.major, metadata.minor) == (0, 3) and metadata.traits == 0
        assert handler(ctypes.byref(Frame(stage=0))) is None


def test_the_structs_are_as_in_c():
    """What test_jax.py compares with XLA's header, these have to be, too."""
    assert ctypes.sizeof(Frame) == 168 and Frame.attributes.offset == 120 and Api.ordinal_get.offset == 184
