"""Both forms of DLPack: of 1.0, and the one before, which JAX gives and takes. What runs with JAX
itself is skipped where JAX is not installed; `./dev check interop` installs it."""

from __future__ import annotations

import ctypes
import gc
import subprocess
import sys
import weakref
from types import SimpleNamespace

import numpy as np
import pytest

import accrt

_api = ctypes.pythonapi
_api.PyCapsule_New.restype = ctypes.py_object
_api.PyCapsule_New.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
_api.PyCapsule_IsValid.argtypes = [ctypes.py_object, ctypes.c_char_p]
_api.PyCapsule_GetPointer.restype = ctypes.c_void_p
_api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
_api.PyCapsule_SetName.argtypes = [ctypes.py_object, ctypes.c_char_p]


class Tensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32), ("ndim", ctypes.c_int32),
                ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16), ("shape", ctypes.c_void_p),
                ("strides", ctypes.c_void_p), ("byte_offset", ctypes.c_uint64)]  # fmt: skip


_DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Old(ctypes.Structure):
    _fields_ = [("tensor", Tensor), ("context", ctypes.c_void_p), ("deleter", _DELETER)]


_alive = {}


@_DELETER
def _forget(address):
    del _alive[address]


class OldProducer:
    """An object whose __dlpack__ knows no versions."""

    def __init__(self, array):
        self.array = array

    def __dlpack_device__(self):
        return (1, 0)

    def __dlpack__(self, stream=None):
        shape = (ctypes.c_int64 * self.array.ndim)(*self.array.shape)
        old = Old(Tensor(self.array.ctypes.data, 1, 0, self.array.ndim, 2, 32, 1, ctypes.addressof(shape), None, 0), None, _forget)
        _alive[ctypes.addressof(old)] = (old, shape, self.array)
        self.capsule = _api.PyCapsule_New(ctypes.addressof(old), b"dltensor", None)
        return self.capsule


def test_a_producer_without_versions(program, device):
    array = np.arange(16, dtype=np.float32)
    producer = OldProducer(array)
    tensor = accrt.from_dlpack(producer, device)
    assert tensor.address == array.ctypes.data and tensor.read_only and tensor.tolist() == array.tolist()
    assert _api.PyCapsule_IsValid(producer.capsule, b"used_dltensor") and len(_alive) == 1
    with pytest.raises(ValueError, match="read-only"):
        program.session().scale_add(np.ones(16, np.float32), tensor)
    del tensor
    gc.collect()
    assert not _alive


@pytest.mark.parametrize("kind, index", [(1, 0), (3, 2), (11, 0)])
def test_memory_of_the_host_is_taken_without_a_device(kind, index):
    producer = OldProducer(np.arange(16, dtype=np.float32))
    producer.__class__ = type("Pinned", (OldProducer,), {"__dlpack_device__": lambda self: (kind, index)})
    assert accrt.from_dlpack(producer).buffer.device.name == "host:0"


@pytest.mark.parametrize("kind", [2, 13])
def test_memory_of_a_gpu_and_managed_memory_are_cudas(kind, monkeypatch):
    """Managed memory is every CUDA device's own, and no host's."""
    from accrt import _incoming

    asked = []
    monkeypatch.setattr(_incoming, "default_instance", lambda: SimpleNamespace(device=lambda name: asked.append(name)))
    _incoming._device_of(SimpleNamespace(__dlpack_device__=lambda: (kind, 3)))
    assert asked == ["cuda:3"]


@pytest.mark.parametrize("where", [(8, 0), (10, 1), (14, 0)])
def test_memory_of_a_foreign_device_is_refused_by_its_number(where):
    producer = OldProducer(np.arange(16, dtype=np.float32))
    producer.__class__ = type("Foreign", (OldProducer,), {"__dlpack_device__": lambda self: where})
    with pytest.raises(BufferError, match=rf"no device here has the memory of DLPack's device \({where[0]}, {where[1]}\)"):
        accrt.from_dlpack(producer)


def test_a_consumer_without_versions(program):
    result = program.session().weighted(np.ones(16, np.float32))
    wanted, buffer = result.tolist(), weakref.ref(result.buffer)
    capsule = result.__dlpack__()
    old = Old.from_address(_api.PyCapsule_GetPointer(capsule, b"dltensor"))
    assert old.tensor.data + old.tensor.byte_offset == result.address and old.tensor.ndim == 1
    _api.PyCapsule_SetName(capsule, b"used_dltensor")
    del result, capsule
    gc.collect()
    assert buffer() is None
    assert list((ctypes.c_float * 16).from_address(old.tensor.data + old.tensor.byte_offset)) == wanted
    old.deleter(ctypes.addressof(old))


def test_a_capsule_that_nobody_takes_is_freed(program):
    result = program.session().weighted(np.ones(16, np.float32))
    for _ in range(100):
        result.__dlpack__()
        result.__dlpack__(max_version=(1, 0))


def reading(capsule):
    """A generator that has a capsule and fails."""
    yield capsule
    raise KeyError("the consumer's")


def refuse_in_c(capsules):
    int.from_bytes(capsules.pop(), "little")


def refuse_in_a_generator(capsules):
    sorted(reading(capsules.pop()))


def refuse_in_python(capsules):
    list(map(lambda capsule: capsule.absent, iter([capsules.pop()])))


@pytest.mark.parametrize("version", [None, (1, 0)])
@pytest.mark.parametrize("refuse", [refuse_in_c, refuse_in_a_generator, refuse_in_python])
def test_what_refuses_a_capsule_says_why(program, device, refuse, version, capfd, monkeypatch):
    """The consumer's exception is on the way when the capsule goes: it arrives, and the memory goes
    with the tensor."""
    lost = []
    monkeypatch.setattr(sys, "unraisablehook", lost.append)
    pool = accrt.Pool(device)
    tensor = accrt.Tensor(pool.buffer(4096), "f32", [1024])
    for _ in range(3):
        with pytest.raises((TypeError, KeyError, AttributeError), match="bytes|consumer|absent"):
            refuse([tensor.__dlpack__(max_version=version)])
    assert pool.statistics["used_bytes"] >= 4096
    del tensor
    assert pool.statistics["used_bytes"] == 0 and not lost and not capfd.readouterr().err


def test_a_type_that_numpy_lacks_is_refused_by_numpy(device):
    tensor = accrt.Tensor(accrt.Pool(device).buffer(4096), "bf16", [2048])
    if hasattr(np, "from_dlpack"):
        with pytest.raises((RuntimeError, BufferError, TypeError), match="(?i)dtype|type"):
            np.from_dlpack(tensor)


def test_a_capsule_may_outlive_its_tensor(device):
    pool = accrt.Pool(device)
    tensor = accrt.Tensor(pool.buffer(4096), "f32", [1024])
    first, second = tensor.__dlpack__(max_version=(1, 0)), tensor.__dlpack__()
    np.asarray(tensor)[:] = 3
    del tensor

    class Producer:
        def __dlpack__(self, max_version=None):
            return first

        def __dlpack_device__(self):
            return (1, 0)
    taken = accrt.from_dlpack(Producer(), device)
    assert taken.tolist() == [3] * 1024
    del second  # which nobody takes: it goes with the next that is given
    accrt.Tensor(accrt.Pool(device).buffer(64), "f32", [16]).__dlpack__()
    assert pool.statistics["used_bytes"] >= 4096
    del taken
    assert pool.statistics["used_bytes"] == 0


def test_read_only_tensors_are_exported_with_versions_alone(device):
    array = np.ones(4, np.float32)
    array.flags.writeable = False
    tensor = accrt.from_dlpack(OldProducer(array), device)
    with pytest.raises(BufferError, match="read-only"):
        tensor.__dlpack__()
    assert not np.from_dlpack(tensor).flags.writeable if hasattr(np, "from_dlpack") and np.lib.NumpyVersion(np.__version__) >= "2.1.0" else True


@pytest.mark.parametrize("version", [None, (1, 0)])
def test_a_copy_is_memory_of_its_own_that_may_be_written(device, version):
    array = np.arange(24, dtype=np.int16).reshape(4, 6)
    whole = accrt.Pool(device).buffer(array.nbytes)
    whole.memoryview()[:] = array.tobytes()
    tensor = accrt.Tensor(whole, "i16", (4, 6))
    for part in (tensor, tensor[1:3, ::-2], tensor[2, 3], tensor[:, 6:]):
        part._read_only = True
        capsule = part.__dlpack__(max_version=version, copy=True)
        given = accrt.tensor._taken(capsule, device.handle, device, "a copy")
        assert given.tolist() == part.tolist() and given.shape == part.shape and given.read_only == (version is None)
        if part.size:
            assert not whole.address <= given.address < whole.address + whole.size_bytes


def test_a_copy_says_that_it_is_one(device):
    tensor = accrt.Tensor(accrt.Pool(device).buffer(64), "f32", (16,))
    for copy, wanted in ((True, 2), (None, 0), (False, 0)):
        capsule = tensor.__dlpack__(max_version=(1, 0), copy=copy, dl_device=(1, 0))
        assert ctypes.c_uint64.from_address(_api.PyCapsule_GetPointer(capsule, b"dltensor_versioned") + 24).value == wanted


def test_copies_are_made_on_the_host(device, monkeypatch):
    tensor = accrt.Tensor(accrt.Pool(device).buffer(64), "f32", (16,))
    tensor.buffer.memoryview()[:] = np.arange(16, dtype=np.float32).tobytes()
    with pytest.raises(BufferError, match="copies are made there"):
        tensor.__dlpack__(dl_device=(2, 0))
    monkeypatch.setattr(accrt.Tensor, "__dlpack_device__", lambda self: (2, 0) if self is tensor else (1, 0))
    for copy in (None, True):
        capsule = tensor.__dlpack__(dl_device=(1, 0), copy=copy, max_version=(1, 0))
        assert accrt.tensor._taken(capsule, device.handle, device, "a copy").tolist() == list(range(16))
    with pytest.raises(BufferError, match="copy=False"):
        tensor.__dlpack__(dl_device=(1, 0), copy=False)


def test_a_call_that_is_over_keeps_no_tensor_of_others(program, device):
    """Neither what came through DLPack nor a tensor: their memory is free once their owners are
    done with it."""
    class Producer:
        def __init__(self, array):
            self.array = array

        def __dlpack_device__(self):
            return (1, 0)

        def __dlpack__(self, **named):
            return self.array.__dlpack__(**named)

    session, x = program.session(), np.arange(16, dtype=np.float32)
    before, wanted = sys.getrefcount(x), session.weighted(x).tolist()
    for _ in range(3):
        found = session.weighted(Producer(x))
        assert found.tolist() == wanted
        del found
        assert sys.getrefcount(x) == before
    tensor = accrt.from_dlpack(x, device)
    held = sys.getrefcount(x)
    found = session.weighted(tensor)
    del tensor, found
    assert sys.getrefcount(x) == before < held
    bound = session.function("weighted").bind(Producer(x))
    assert bound().tolist() == wanted and sys.getrefcount(x) > before  # what is bound stays


def test_what_is_no_capsule_is_refused(device):
    class Wrong:
        def __dlpack_device__(self):
            return (1, 0)

        def __dlpack__(self, **named):
            return _api.PyCapsule_New(1, b"something", None)

    with pytest.raises(BufferError, match="Wrong.* gave no unused DLPack capsule"):
        accrt.from_dlpack(Wrong(), device)


# ---- JAX -----------------------------------------------------------------------------------------


@pytest.fixture
def jnp():
    pytest.importorskip("jax", reason="JAX is not installed")
    import jax.numpy

    return jax.numpy


@pytest.mark.torch
def test_jax_arrays_in_and_out(jnp, program, device):
    array = jnp.arange(16, dtype=jnp.float32)
    session = program.session()
    result = session.weighted(array)
    joined = jnp.from_dlpack(result)
    wanted = result.tolist()
    assert joined.unsafe_buffer_pointer() == result.address
    del result
    for _ in range(20):
        session.weighted(jnp.full(16, 7.0))
    assert joined.tolist() == wanted == np.asarray(session.weighted(np.arange(16, dtype=np.float32))).tolist()
    for kind in (jnp.bfloat16, jnp.bool_, jnp.int8, jnp.float16):
        tensor = accrt.from_dlpack(jnp.ones(8, kind), device)
        assert tensor.shape == (8,) and tensor.read_only
    with pytest.raises(ValueError, match="read-only"):
        session.scale_add(array, array)


@pytest.mark.torch
@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3), (2, 1, 4)])
def test_every_type_and_shape_goes_to_jax_and_back(jnp, device, shape):
    import jax

    with jax.enable_x64(True):
        for kind in ("bool_", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "bfloat16", "float32", "float64",
                     "float8_e4m3fn", "float8_e5m2"):
            count = int(np.prod(shape))
            array = jnp.arange(count).reshape(shape).astype(getattr(jnp, kind))
            try:
                tensor = accrt.from_dlpack(array, device)
            except BufferError as error:
                # JAX gives small floats to those who know DLPack 1.1 alone
                assert kind.startswith("float8") and "float8" in str(error).lower(), error
                continue
            assert tensor.shape == shape and tensor.read_only and tensor.nbytes == array.nbytes
            with pytest.raises(BufferError, match="read-only"):
                jnp.from_dlpack(tensor)  # whose form cannot say so
            own = accrt.Tensor(accrt.Pool(device).buffer(max(tensor.nbytes, 1)), tensor.dtype, shape)
            own.buffer.memoryview()[:tensor.nbytes] = np.asarray(array).tobytes()
            again = jnp.from_dlpack(own)
            del tensor, own
            gc.collect()
            assert again.dtype == array.dtype and again.shape == shape and (np.asarray(again) == np.asarray(array)).all(), kind


FIRST = """
import os, sys, accrt
for module, names in sorted(accrt._MODULES.items()):
    child = os.fork()
    if child == 0:
        for name in names:
            getattr(accrt, name)
        part = sys.modules.get("accrt._incoming")
        os._exit(part is not None and part.Tensor is None)
    assert os.waitpid(child, 0)[1] == 0, module
accrt.from_dlpack
import numpy as np
assert accrt.from_dlpack(np.ones(4, "f"), accrt.default_instance().device("host")).tolist() == [1] * 4
"""


def test_what_takes_arrays_may_be_the_first_that_is_used():
    """Modules are loaded when they are first named, and one has its Tensor from another."""
    done = subprocess.run([sys.executable, "-c", FIRST], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
