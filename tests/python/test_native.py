"""accrt._native, the C part of the package: it does what the Python code does, which stays and is
tested beside it; tensors of others are released once and only when nothing uses them; the layouts
that it declares are those of the installed headers."""
from __future__ import annotations

import ctypes
import gc
import os
import importlib.util
import pathlib
import re
import subprocess
import sys
import sysconfig
import threading

import numpy as np
import pytest

import accrt
from accrt import _fast

ROOT = pathlib.Path(__file__).resolve().parents[2]
needs_native = pytest.mark.skipif(_fast.native is None, reason="accrt._native is not built here")
_api = ctypes.pythonapi


def said(script, *arguments, **environment):
    # Warnings of numpy are no matter here, and name addresses.
    ran = subprocess.run([sys.executable, "-W", "ignore", *map(str, (script, *arguments))], capture_output=True, text=True, check=False,
                         timeout=300, env={**os.environ, "PYTHONPATH": str(ROOT / "python"), **environment})
    assert ran.returncode == 0, ran.stderr[-4000:]
    return re.sub("0x[0-9a-f]+", "ADDRESS", ran.stdout).splitlines()


@needs_native
def test_both_ways_do_the_same(echo_bundle, golden_bundle):
    script = ROOT / "tests/python/both_ways.py"
    quick, slow = (said(script, echo_bundle, golden_bundle, ACCRT_NATIVE=way) for way in ("1", "0"))
    assert quick == slow and len(quick) > 400


@pytest.mark.parametrize("way", ["0", "1"])
def test_the_environment_chooses(way):
    line = "import accrt._fast; print(accrt._fast.native is None)"
    assert said("-c", line, ACCRT_NATIVE=way) == [str(way == "0" or _fast.native is None)]


# ---- a producer of tensors with the C exchange


class Tensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32), ("ndim", ctypes.c_int32),
                ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16), ("shape", ctypes.c_void_p),
                ("strides", ctypes.c_void_p), ("byte_offset", ctypes.c_uint64)]  # fmt: skip


DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Managed(ctypes.Structure):
    _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("context", ctypes.c_void_p), ("deleter", DELETER),
                ("flags", ctypes.c_uint64), ("tensor", Tensor)]  # fmt: skip


FROM_OBJECT = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(ctypes.c_void_p))


class Api(ctypes.Structure):
    _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("previous", ctypes.c_void_p), ("allocate", ctypes.c_void_p),
                ("from_object", FROM_OBJECT), ("to_object", ctypes.c_void_p), ("borrow", ctypes.c_void_p),
                ("current_stream", ctypes.c_void_p)]  # fmt: skip


_alive: dict = {}


@DELETER
def _delete(address):
    del _alive[address]


@FROM_OBJECT
def _from_object(value, out):
    managed = value.managed()
    _alive[ctypes.addressof(managed)] = managed
    out[0] = ctypes.addressof(managed)
    return 0


_api.PyCapsule_New.restype = ctypes.py_object
_api.PyCapsule_New.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


def capsule(table, name=b"dlpack_exchange_api"):
    return _api.PyCapsule_New(ctypes.addressof(table), name, None)


TABLE = Api(1, 3, None, None, _from_object, None, None, None)


class Producer:
    """Memory of its own, and a tensor of it. It has no other protocol: what is not taken is
    refused."""

    __dlpack_c_exchange_api__ = capsule(TABLE)

    def __init__(self, array, **other):
        self.array, self.other = array, other

    def managed(self):
        array = self.array
        shape = (ctypes.c_int64 * array.ndim)(*array.shape)
        strides = (ctypes.c_int64 * array.ndim)(*(s // array.itemsize for s in array.strides))
        fields = {"data": array.ctypes.data, "device_type": 1, "ndim": array.ndim, "code": 2, "bits": 8 * array.itemsize, "lanes": 1,
                  "shape": ctypes.addressof(shape), "strides": ctypes.addressof(strides)}  # fmt: skip
        fields.update(self.other)
        major, flags = fields.pop("major", 1), fields.pop("flags", 0)
        managed = Managed(major, 0, None, _delete, flags, Tensor(**fields))
        managed.kept = shape, strides, array
        return managed


@pytest.fixture
def f(echo_bundle):
    return accrt.load(echo_bundle, host_code="all", options={"host.threads": 1})["f32"]


def taken(f, value):
    """The second call: the class is known then, whatever became of the first one."""
    try:
        f(value)
    except TypeError:
        pass
    return f(value).tolist()


@needs_native
def test_a_tensor_with_the_exchange_is_used_in_place_and_released_after_the_call(f):
    array = np.arange(5, dtype=np.float32)
    assert taken(f, Producer(array)) == [0, 1, 2, 3, 4]
    assert taken(f, Producer(array, byte_offset=4, data=array.ctypes.data - 4)) == [0, 1, 2, 3, 4]
    assert not _alive


@needs_native
def test_a_bound_tensor_is_kept_until_another_is_bound(f):
    taken(f, Producer(np.ones(1, np.float32)))
    call = f.bind(np.zeros(4, np.float32))
    call.set("x", Producer(np.full(4, 2, np.float32)))
    gc.collect()
    assert len(_alive) == 1 and call().tolist() == [2, 2, 2, 2]
    call.set(0, Producer(np.full(4, 3, np.float32)))
    assert len(_alive) == 1 and call().tolist() == [3, 3, 3, 3]
    call.set(0, np.full(4, 4, np.float32))
    assert not _alive and call().tolist() == [4, 4, 4, 4]


@needs_native
@pytest.mark.parametrize("other", [{"device_type": 2}, {"lanes": 2}, {"bits": 24}, {"code": 5}, {"ndim": 9}, {"ndim": -1}, {"major": 2}])
def test_what_does_not_fit_is_released_and_refused(f, other):
    with pytest.raises(TypeError):
        taken(f, Producer(np.ones((1,) * 9 + (4,), np.float32) if other.get("ndim") == 9 else np.ones(4, np.float32), **other))
    assert not _alive


@needs_native
def test_a_read_only_tensor_is_not_written(f):
    taken(f, Producer(np.ones(1, np.float32)))
    x = np.zeros(4, np.float32)
    with pytest.raises(TypeError):  # it has no other protocol, which would say more
        f(np.ones(4, np.float32), out=Producer(x, flags=1))
    assert not x.any() and not _alive
    assert f(Producer(x, flags=1)).tolist() == [0, 0, 0, 0]
    out = Producer(x)
    assert f(np.ones(4, np.float32), out=out) is out and x.all() and not _alive


@needs_native
def test_a_table_of_a_later_version_has_an_older_one_behind_it(f):
    later = Api(2, 0, ctypes.addressof(TABLE))
    kind = type("Later", (Producer,), {"__dlpack_c_exchange_api__": capsule(later)})
    assert taken(f, kind(np.ones(2, np.float32))) == [1, 1]
    alone = Api(2, 0, None)
    for table in (capsule(alone), capsule(TABLE, b"another"), 7, None):
        with pytest.raises(TypeError, match="is not a tensor"):
            taken(f, type("Other", (Producer,), {"__dlpack_c_exchange_api__": table})(np.ones(2, np.float32)))
    with pytest.raises(TypeError, match="is not a tensor"):
        # it may mean something else by its memory
        taken(f, type("Heir", (Producer,), {})(np.ones(2, np.float32)))


@needs_native
def test_a_result_gives_its_memory_back(f):
    x = np.ones(1 << 10, np.float32)
    device = f.session.program.device
    results = [f(x) for _ in range(100)]
    [result.shape for result in results[::2]]
    first = results[0].buffer
    del results
    gc.collect()
    again = {f(x).address for _ in range(100)}
    assert len(again) < 10 and first.size_bytes and device


@needs_native
def test_threads_ask_a_result_for_its_parts_at_once(f):
    x = np.ones(64, np.float32)
    for _ in range(50):
        result, found = f(x), []
        threads = [threading.Thread(target=lambda: found.append((result.shape, result.buffer.address, result[0].item()))) for _ in range(4)]
        [t.start() for t in threads]
        [t.join() for t in threads]
        assert len(found) == 4 and len(set(found)) == 1


# ---- layouts

DLPACK = """
#include <stddef.h>
#include <stdint.h>
#include {header}
#include "accrt/dlpack.h"
/* Before 1.0 there was nothing with a version, and fewer types. */
#ifndef DLPACK_MAJOR_VERSION
#define OLD
#define DLPACK_MAJOR_VERSION 0
#define DLPACK_MINOR_VERSION 0
#endif
/* Who includes both needs no cast. */
#ifndef OLD
accrt_status_t both(accrt_device_t* device, accrt_tensor_t* tensor, int64_t* n, uint32_t* read_only);
accrt_status_t both(accrt_device_t* device, accrt_tensor_t* tensor, int64_t* n, uint32_t* read_only) {
  DLManagedTensorVersioned* managed;
  DLManagedTensor* old;
  if (accrt_dlpack_export(tensor, 0, &managed) || accrt_dlpack_export_unversioned(tensor, &old))
    return 1;
  return accrt_dlpack_import(device, managed, tensor, n, n, read_only) || accrt_dlpack_import_unversioned(device, old, tensor, n, n);
}
#endif
accrt_status_t before(accrt_device_t* device, accrt_tensor_t* tensor, int64_t* n);
accrt_status_t before(accrt_device_t* device, accrt_tensor_t* tensor, int64_t* n) {
  DLManagedTensor* old;
  return accrt_dlpack_export_unversioned(tensor, &old) || accrt_dlpack_import_unversioned(device, old, tensor, n, n);
}
#include "python/native/exchange.h"
#define DLManagedTensorVersioned OwnManagedTensorVersioned
#define DLManagedTensor OwnManagedTensor
#include "runtime/core/dlpack.h"
#undef DLManagedTensorVersioned
#undef DLManagedTensor
#define SAME(theirs, their_field, ours, our_field) \\
  _Static_assert(sizeof(theirs) == sizeof(ours) && offsetof(theirs, their_field) == offsetof(ours, our_field), #their_field)
#define BOTH(field, own) SAME(DLTensor, field, exchange_tensor_t, own); SAME(DLTensor, field, accrt_dl_tensor_t, field)
SAME(DLTensor, data, exchange_tensor_t, data);
SAME(DLTensor, device, exchange_tensor_t, device_type);
SAME(DLTensor, device, accrt_dl_tensor_t, device_type);
SAME(DLTensor, ndim, exchange_tensor_t, ndim);
SAME(DLTensor, ndim, accrt_dl_tensor_t, ndim);
SAME(DLTensor, dtype, exchange_tensor_t, code);
BOTH(dtype.bits, bits);
BOTH(dtype.lanes, lanes);
BOTH(shape, shape);
BOTH(strides, strides);
BOTH(byte_offset, byte_offset);
#ifndef OLD
#define MANAGED(field, own) \\
  SAME(DLManagedTensorVersioned, field, exchange_managed_t, own); SAME(DLManagedTensorVersioned, field, accrt_dl_managed_t, own)
MANAGED(version.major, major);
MANAGED(version.minor, minor);
MANAGED(manager_ctx, manager_context);
MANAGED(deleter, deleter);
MANAGED(flags, flags);
MANAGED(dl_tensor, tensor);
#endif
SAME(DLManagedTensor, dl_tensor, accrt_dl_unversioned_t, tensor);
SAME(DLManagedTensor, manager_ctx, accrt_dl_unversioned_t, manager_context);
SAME(DLManagedTensor, deleter, accrt_dl_unversioned_t, deleter);
_Static_assert((int)kDLCPU == (int)ACCRT_DL_CPU && (int)kDLCUDA == (int)ACCRT_DL_CUDA && (int)kDLCUDAHost == (int)ACCRT_DL_CUDA_HOST &&
               (int)kDLCUDAManaged == (int)ACCRT_DL_CUDA_MANAGED && (int)kDLROCMHost == (int)ACCRT_DL_ROCM_HOST, "devices");
_Static_assert((int)kDLInt == (int)ACCRT_DL_INT && (int)kDLUInt == (int)ACCRT_DL_UINT && (int)kDLFloat == (int)ACCRT_DL_FLOAT &&
               (int)kDLBfloat == (int)ACCRT_DL_BFLOAT, "types");
#ifndef OLD
_Static_assert((int)kDLBool == (int)ACCRT_DL_BOOL, "bool");
_Static_assert(DLPACK_FLAG_BITMASK_READ_ONLY == ACCRT_DL_FLAG_READ_ONLY && EXCHANGE_READ_ONLY == ACCRT_DL_FLAG_READ_ONLY, "read-only");
#endif
#if DLPACK_MAJOR_VERSION > 1 || DLPACK_MINOR_VERSION >= 1
_Static_assert((int)kDLFloat8_e4m3fn == (int)ACCRT_DL_F8E4M3FN && (int)kDLFloat8_e5m2 == (int)ACCRT_DL_F8E5M2 &&
               (int)kDLFloat8_e8m0fnu == (int)ACCRT_DL_F8E8M0 && (int)kDLFloat4_e2m1fn == (int)ACCRT_DL_F4E2M1, "small types");
_Static_assert((int)EXCHANGE_F8E4M3FN == (int)ACCRT_DL_F8E4M3FN && (int)EXCHANGE_F8E5M2 == (int)ACCRT_DL_F8E5M2 &&
               (int)EXCHANGE_F8E8M0 == (int)ACCRT_DL_F8E8M0 && (int)EXCHANGE_F4E2M1 == (int)ACCRT_DL_F4E2M1, "small types");
_Static_assert(DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED == ACCRT_DL_FLAG_SUBBYTE_PADDED, "padded");
#endif
#if DLPACK_MAJOR_VERSION > 1 || DLPACK_MINOR_VERSION >= 3
#define API(field, own) SAME(DLPackExchangeAPI, field, exchange_api_t, own)
API(header.version.major, header.major);
API(header.prev_api, header.prev_api);
API(managed_tensor_allocator, allocate);
API(managed_tensor_from_py_object_no_sync, from_object);
API(managed_tensor_to_py_object_no_sync, to_object);
API(dltensor_from_py_object_no_sync, borrow);
API(current_work_stream, current_stream);
#endif
"""


def compiles(text, folders, tmp_path):
    source = tmp_path / "layout.c"
    source.write_text(text)
    ran = subprocess.run(["cc", "-std=c11", "-fsyntax-only", "-Wall", "-Werror", "-Wno-cpp", *(f"-I{f}" for f in (ROOT, ROOT / "include", *folders)), str(source)],
                         capture_output=True, text=True, check=False)  # fmt: skip
    assert ran.returncode == 0, ran.stderr


@pytest.mark.torch
def test_layouts_are_those_of_torchs_dlpack(tmp_path):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    header = pathlib.Path(torch.__file__).parent / "include/ATen/dlpack.h"
    text = header.read_text() if header.exists() else pytest.skip("torch came without headers")
    # torch's copy differs from dlpack.h in guards for C++ alone.
    (tmp_path / "theirs.h").write_text(text)
    compiles(DLPACK.replace("{header}", '"theirs.h"'), [tmp_path], tmp_path)


def test_layouts_are_those_of_dlpack(tmp_path):
    if not pathlib.Path("/usr/include/dlpack/dlpack.h").exists():
        pytest.skip("dlpack.h is not installed (Debian: libdlpack-dev)")
    compiles(DLPACK.replace("{header}", "<dlpack/dlpack.h>"), [], tmp_path)


def test_layouts_are_those_of_the_newest_dlpack(tmp_path):
    """The package apache-tvm-ffi has dlpack.h itself: Debian's is of before 1.0."""
    found = importlib.util.find_spec("tvm_ffi") or pytest.skip("apache-tvm-ffi is not installed")
    header = next(pathlib.Path(found.submodule_search_locations[0]).rglob("dlpack.h"))
    assert "DLPACK_MAJOR_VERSION 1" in header.read_text()
    compiles(DLPACK.replace("{header}", f'"{header}"'), [], tmp_path)


def test_the_layout_of_array_structs_is_numpys(tmp_path):
    include = sysconfig.get_path("include")
    if not pathlib.Path(include, "Python.h").exists():
        pytest.skip("Python.h is not installed (Debian: libpython3-dev)")
    ours = (ROOT / "python/native/take.c").read_text()
    struct = ours[ours.index("typedef struct array_struct"):ours.index("enum { ARRAY_C")]
    fields = "two nd typekind itemsize flags shape strides data descr".split()
    asserts = "".join(f'_Static_assert(offsetof(array_struct_t, {f}) == offsetof(PyArrayInterface, {f}), "{f}");\n' for f in fields)
    flags = ours[ours.index("enum { ARRAY_C"):ours.index("static accrt_dtype_t sized")]
    compiles("#include <stddef.h>\n#include <Python.h>\n#include <numpy/ndarraytypes.h>\n" + struct + flags + asserts
             + '_Static_assert(ARRAY_C_CONTIGUOUS == NPY_ARRAY_C_CONTIGUOUS && ARRAY_NOTSWAPPED == NPY_ARRAY_NOTSWAPPED &&'
               ' ARRAY_WRITEABLE == NPY_ARRAY_WRITEABLE && sizeof(array_struct_t) == sizeof(PyArrayInterface), "flags");\n',
             [include, np.get_include()], tmp_path)  # fmt: skip


# ---- what accrt.Tensor offers


class Offered(ctypes.Structure):
    """The table as a consumer sees it."""

    _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("previous", ctypes.c_void_p),
                ("allocate", ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.POINTER(Tensor), ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p, ctypes.c_void_p)),
                ("from_object", FROM_OBJECT),
                ("to_object", ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.py_object))),
                ("borrow", ctypes.c_void_p),
                ("current_stream", ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int32, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p)))]  # fmt: skip


_api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
_api.PyCapsule_GetPointer.restype = ctypes.c_void_p


@pytest.fixture
def offered():
    if _fast.native is None:
        pytest.skip("accrt._native is not built here")
    return Offered.from_address(_api.PyCapsule_GetPointer(accrt.Tensor.__dlpack_c_exchange_api__, b"dlpack_exchange_api"))


def managed_of(offered, tensor):
    out = ctypes.c_void_p()
    assert offered.from_object(tensor, ctypes.byref(out)) == 0
    return Managed.from_address(out.value)


def test_a_tensor_goes_out_through_the_exchange(offered, f):
    for asked in (False, True):  # for its parts, before
        result = f(np.arange(6, dtype=np.float32))
        view = result[1:5:2] if asked else result
        wanted, address = (view.tolist(), view.address) if asked else (list(range(6)), None)
        managed = managed_of(offered, view)
        tensor = managed.tensor
        assert (managed.major, tensor.device_type, tensor.ndim, tensor.code, tensor.bits, tensor.lanes) == (1, 1, 1, 2, 32, 1)
        assert managed.flags == 0 and address in (None, tensor.data + tensor.byte_offset)
        del result, view
        gc.collect()
        stride = ctypes.c_int64.from_address(tensor.strides).value
        found = (ctypes.c_float * 6).from_address(tensor.data + tensor.byte_offset)
        # the memory is the consumer's now
        assert [found[i * stride] for i in range(len(wanted))] == wanted
        managed.deleter(ctypes.addressof(managed))


def test_what_may_not_be_written_says_so_and_others_are_refused(offered, f, device):
    fixed = np.ones(4, np.float32)
    fixed.setflags(write=False)
    if np.lib.NumpyVersion(np.__version__) >= "2.1.0":
        managed = managed_of(offered, accrt.from_dlpack(fixed, device))
        assert managed.flags == 1
        managed.deleter(ctypes.addressof(managed))
    out = ctypes.c_void_p()
    for other in (fixed, None, 3):
        with pytest.raises((TypeError, AttributeError)):
            offered.from_object(other, ctypes.byref(out))


def test_a_managed_tensor_comes_in_through_the_exchange(offered):
    array = np.arange(5, dtype=np.float32)
    managed = Producer(array).managed()
    _alive[ctypes.addressof(managed)] = managed
    out = ctypes.py_object()
    assert offered.to_object(ctypes.addressof(managed), ctypes.byref(out)) == 0
    tensor = out.value
    # py_object(out) has one of its own, and to_object gave one
    ctypes.pythonapi.Py_DecRef(ctypes.py_object(tensor))
    assert type(tensor) is accrt.Tensor and tensor.tolist() == [0, 1, 2, 3, 4] and tensor.address == array.ctypes.data
    assert len(_alive) == 1
    del tensor, out
    gc.collect()
    assert not _alive
    lost = Producer(array, device_type=2).managed()
    _alive[ctypes.addressof(lost)] = lost
    with pytest.raises(BufferError, match="device"):
        offered.to_object(ctypes.addressof(lost), ctypes.byref(ctypes.py_object()))
    assert not _alive  # it was given away


def test_the_exchange_allocates(offered):
    shape = (ctypes.c_int64 * 3)(2, 0, 4)
    for sizes, kind in (((2, 3, 4), (2, 32, 1)), ((2, 0, 4), (2, 32, 1)), ((5,), (0, 4, 1)), ((), (4, 16, 1)), ((2, 2), (2, 32, 4))):
        shape = (ctypes.c_int64 * max(len(sizes), 1))(*sizes)
        prototype = Tensor(None, 1, 0, len(sizes), *kind, ctypes.addressof(shape), None, 0)
        out = ctypes.c_void_p()
        assert offered.allocate(ctypes.byref(prototype), ctypes.byref(out), None, None) == 0
        managed = Managed.from_address(out.value)
        assert managed.tensor.data % 64 == 0 and managed.tensor.shape != ctypes.addressof(shape)
        strides = (ctypes.c_int64 * max(len(sizes), 1)).from_address(managed.tensor.strides)
        if sizes == (2, 3, 4):
            assert list(strides) == [12, 4, 1]
            ctypes.memset(managed.tensor.data, 1, 4 * 24)
        managed.deleter(ctypes.addressof(managed))
    told = []
    tell = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p)(lambda _, kind, text: told.append(kind))
    for wrong in ({"device_type": 2}, {"ndim": 9}, {"ndim": -1}):
        prototype = Tensor(None, 1, 0, 1, 2, 32, 1, ctypes.addressof(shape), None, 0)
        for name, value in wrong.items():
            setattr(prototype, name, value)
        assert offered.allocate(ctypes.byref(prototype), ctypes.byref(out), None, ctypes.cast(tell, ctypes.c_void_p)) == -1
    huge = (ctypes.c_int64 * 2)(1 << 40, 1 << 40)
    prototype = Tensor(None, 1, 0, 2, 2, 32, 1, ctypes.addressof(huge), None, 0)
    assert offered.allocate(ctypes.byref(prototype), ctypes.byref(out), None, ctypes.cast(tell, ctypes.c_void_p)) == -1
    assert told == [b"BufferError"] * 4
    stream = ctypes.c_void_p(1)
    assert offered.current_stream(1, 0, ctypes.byref(stream)) == 0 and not stream.value


class Old(ctypes.Structure):
    """From before DLPack 1."""

    _fields_ = [("tensor", Tensor), ("context", ctypes.c_void_p), ("deleter", DELETER)]


def facts(tensor):
    sizes = [list((ctypes.c_int64 * tensor.ndim).from_address(at)) if tensor.ndim else [] for at in (tensor.shape, tensor.strides)]
    return (tensor.code, tensor.bits, tensor.lanes, *sizes, tensor.byte_offset)


def described(kind, given):
    """What a consumer reads in a capsule."""
    return facts(kind.from_address(_api.PyCapsule_GetPointer(given, b"dltensor" if kind is Old else b"dltensor_versioned")).tensor)


#: A tensor of f4e2m1, and how it goes out: by pairs where the last dimension has whole ones.
PAIRS = [
    ((3, 10), (10, 1), 2, [3, 5], [5, 1]), ((3, 10), (12, 1), 2, [3, 5], [6, 1]), ((10,), (1,), 2, [5], [1]), ((0,), (1,), 2, [0], [1]),
    ((3, 0), (1, 1), 2, [3, 0], [0, 1]), ((3, 0), (8, 7), 2, [3, 0], [4, 7]), ((0, 6), (7, 1), 2, [0, 3], [3, 1]), ((1, 6), (7, 1), 2, [1, 3], [3, 1]),
    ((2, 2, 4), (0, 4, 1), 2, [2, 2, 2], [0, 2, 1]), ((3, 9), (10, 1), 1, [3, 9], [10, 1]), ((3, 4), (5, 1), 1, [3, 4], [5, 1]),
    ((3, 4), (8, 2), 1, [3, 4], [8, 2]), ((4, 3), (1, 4), 1, [4, 3], [1, 4]), ((), (), 1, [], []), ((1,), (1,), 1, [1], [1]),
]  # fmt: skip


@pytest.mark.parametrize("shape, strides, lanes, sizes, steps", PAIRS)
def test_four_bits_go_out_by_pairs(device, shape, strides, lanes, sizes, steps):
    """Through capsules of DLPack 1 and the exchange alike, as torch has them; before DLPack 1 as
    JAX has them."""
    buffer = accrt.Pool(device).buffer(64)
    for dtype, code in (("f4e2m1", 17), ("i4", 0), ("u4", 1)):
        tensor = accrt.Tensor(buffer, dtype, shape, strides, 16)
        at = 0 if 0 in shape else 16  # from NULL where there are no elements
        wanted = (code, 4, lanes, sizes, steps, at) if code == 17 else (code, 4, 1, list(shape), list(strides), at)
        assert described(Managed, tensor.__dlpack__(max_version=(1, 0))) == wanted
        assert described(Old, tensor.__dlpack__()) == (code, 4, 1, list(shape), list(strides), at)
        if _fast.native is not None:
            table = Offered.from_address(_api.PyCapsule_GetPointer(accrt.Tensor.__dlpack_c_exchange_api__, b"dlpack_exchange_api"))
            managed = managed_of(table, tensor)
            assert facts(managed.tensor) == wanted
            managed.deleter(ctypes.addressof(managed))


@needs_native
def test_from_dlpack_uses_the_exchange(device):
    array = np.arange(5, dtype=np.float32)
    tensor = accrt.from_dlpack(Both(array), device)
    assert tensor.tolist() == [0, 1, 2, 3, 4] and tensor.address == array.ctypes.data and len(_alive) == 1
    del tensor
    gc.collect()
    assert not _alive
    with pytest.raises(accrt.Error):
        accrt.from_dlpack(Both(array, bits=24), device)
    gc.collect()
    assert not _alive


class Both(Producer):
    __dlpack_c_exchange_api__ = Producer.__dlpack_c_exchange_api__

    def __dlpack__(self, **_):
        raise AssertionError("the exchange was not used")

    def __dlpack_device__(self):
        return (1, 0)


@pytest.mark.parametrize("way", ["0", "1"])
def test_round_trips_leave_nothing(way):
    (line,) = said(ROOT / "tests/fuzz/round_trips.py", "--operations", "500", "--seed", "11", ACCRT_NATIVE=way)
    assert line.startswith("500 round trips") and ("without accrt._native" in line) == (way == "0" or _fast.native is None)


LOST = """
import ctypes, sys
sys.path[:0] = sys.argv[2:]
import accrt, left_over
from accrt._library import check, lib

tensor = accrt.Tensor(accrt.Pool(accrt.Instance(host_code="none").device("host")).buffer(64), "f32", [16])


def again():
    for _ in range(10):
        if sys.argv[1] == "exports":  # nobody deletes them
            check(lib.accrt_dlpack_export(ctypes.byref(tensor.view().c), 0, ctypes.byref(ctypes.c_void_p())))


print(left_over.settles(again, 10, "lost"))
"""


@pytest.mark.parametrize("what", ["nothing", "exports"])
def test_what_is_left_over_is_found(what):
    """What the soaks of round trips ask a process with AddressSanitizer."""
    sanitizer = subprocess.run(["gcc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=False).stdout.strip()
    if not pathlib.Path(sanitizer).is_file():
        pytest.skip("gcc's AddressSanitizer is not here")
    environment = dict(os.environ, LD_PRELOAD=sanitizer, PYTHONMALLOC="malloc", ASAN_OPTIONS="detect_leaks=1:leak_check_at_exit=0")
    ran = subprocess.run([sys.executable, "-c", LOST, what, str(ROOT / "python"), str(ROOT / "tests/fuzz")], env=environment, capture_output=True, text=True,
                         check=False)  # fmt: skip
    if what == "nothing":
        assert ran.returncode == 0 and "none of them of accrt's" in ran.stdout, ran.stdout + ran.stderr
    else:
        # LeakSanitizer says leaks of one stack together. A word that still looks like a pointer may
        # hide them from it; the heap grows.
        lost = sum(int(count) for count in re.findall(r"leak of \d+ byte\(s\) in (\d+) object", ran.stderr))
        assert ran.returncode == 1 and (lost == 10 or "leave more of the heap" in ran.stderr), ran.stdout + ran.stderr
