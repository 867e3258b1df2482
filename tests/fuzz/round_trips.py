#!/usr/bin/env python3
"""Random arrays go into functions and come back, through every protocol, and nothing is left
behind: `./dev soak python` runs this under ASan.

    round_trips.py [--seed N] [--operations N]

Each round trip makes an array of a random type, shape and layout, gives it in as one of numpy's
arrays, DLPack (1.0, the form before, the C exchange) or a Tensor, and takes the result out in one
of those ways; the bytes must be the same. At the end every producer's tensor has been released
once, the memory of results is free again, and there are no more Python objects than half-way. Then
some are done again until the heap no longer grows, and LeakSanitizer may find nothing of accrt's
(left_over.py).
"""
from __future__ import annotations

import argparse
import ctypes
import gc
import os
import pathlib
import random
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests/python"), str(ROOT / "tests/fuzz")]

import numpy as np  # noqa: E402

import accrt  # noqa: E402
import left_over  # noqa: E402
from accrt import _fast, bundle_writer as bw  # noqa: E402

SIZES = {"bool": 1, "i8": 1, "u8": 1, "i16": 2, "u16": 2, "i32": 4, "u32": 4, "i64": 8, "u64": 8, "f16": 2, "f32": 4, "f64": 8}
CODES = {"b": 6, "i": 0, "u": 1, "f": 2}
DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
FROM_OBJECT = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(ctypes.c_void_p))
_api = ctypes.pythonapi
_api.PyCapsule_New.restype = ctypes.py_object
_api.PyCapsule_New.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


class DLTensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32), ("ndim", ctypes.c_int32),
                ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16), ("shape", ctypes.c_void_p),
                ("strides", ctypes.c_void_p), ("byte_offset", ctypes.c_uint64)]  # fmt: skip


class Managed(ctypes.Structure):
    _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("context", ctypes.c_void_p), ("deleter", DELETER),
                ("flags", ctypes.c_uint64), ("tensor", DLTensor)]  # fmt: skip


class Old(ctypes.Structure):
    _fields_ = [("tensor", DLTensor), ("context", ctypes.c_void_p), ("deleter", DELETER)]


class Api(ctypes.Structure):
    _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("previous", ctypes.c_void_p), ("allocate", ctypes.c_void_p),
                ("from_object", FROM_OBJECT), ("others", ctypes.c_void_p * 3)]  # fmt: skip


alive: dict = {}
counts = {"given": 0, "released": 0, "twice": 0}


@DELETER
def _release(address):
    counts["released"] += 1
    counts["twice"] += alive.pop(address, None) is None


def given(kind, array):
    """A struct that owns the array until its deleter runs."""
    offset = 8 * random.randrange(3)
    shape = (ctypes.c_int64 * max(array.ndim, 1))(*array.shape)
    strides = (ctypes.c_int64 * max(array.ndim, 1))(*(s // array.itemsize for s in array.strides))
    tensor = DLTensor(array.ctypes.data - offset, 1, 0, array.ndim, CODES[array.dtype.kind], 8 * array.itemsize, 1, ctypes.addressof(shape),
                      None if array.flags.c_contiguous and random.random() < 0.3 else ctypes.addressof(strides), offset)
    flags = 0 if array.flags.writeable else 1
    made = Old(tensor, None, _release) if kind is Old else Managed(1, random.randrange(4), None, _release, flags, tensor)
    address = ctypes.addressof(made)
    alive[address] = made, shape, strides, array
    counts["given"] += 1
    return address


class Producer:
    """DLPack 1.0, or the form before."""

    def __init__(self, array, old):
        self.array, self.old = array, old

    def __dlpack_device__(self):
        return (1, 0)

    def __dlpack__(self, max_version=None, **_):
        name = b"dltensor" if self.old else b"dltensor_versioned"
        return _api.PyCapsule_New(given(Old if self.old else Managed, self.array), name, None)


@FROM_OBJECT
def _from_object(value, out):
    out[0] = given(Managed, value.array)
    return 0


TABLE = Api(1, 3, None, None, _from_object)


class Exchanger(Producer):
    __dlpack_c_exchange_api__ = _api.PyCapsule_New(ctypes.addressof(TABLE), b"dlpack_exchange_api", None)


def write_bundle(path):
    bundle = bw.BundleWriter()
    symbols = [bundle.symbol(name, maximum=1 << 8) for name in "abc"]
    for name, size in SIZES.items():
        for rank in range(4):
            f = bundle.function(f"{name}_{rank}")
            x, y = f.input("x", name, symbols[:rank]), f.result("y", name, symbols[:rank])
            count = 1
            for symbol in symbols[:rank]:
                count = symbol * count
            f.body.copy(x.read(), y.write(), count * size)
    bundle.write(path)


def random_array(numbers, name, rank, contiguous):
    kind = {"bool": "bool", "f16": "f2", "f32": "f4", "f64": "f8"}.get(name) or name[0] + str(SIZES[name])
    shape = tuple(numbers.choice((0, 1, 1, 2, 3, 5, 17)) for _ in range(rank))
    whole = np.frombuffer(numbers.randbytes(int(np.prod(shape)) * SIZES[name] or 1)[:int(np.prod(shape)) * SIZES[name]], np.uint8)
    array = np.empty(shape, kind)
    array.reshape(-1).view(np.uint8)[:] = whole % 2 if name == "bool" else whole
    if not contiguous and rank:
        wide = np.empty(tuple(2 * d for d in shape), kind)
        part = wide[tuple(slice(None, None, 2) for _ in shape)]
        part[...] = array
        array = numbers.choice((part, array[::-1], array.T, np.broadcast_to(array, shape)))
    if numbers.random() < 0.2:
        array = array.view()
        array.setflags(write=False)
    return array


def way_in(numbers, array, function, device):
    way = numbers.randrange(6)
    if way == 0:
        return array
    if way == 1:
        return Producer(array, False)
    if way == 2:
        return Producer(array, True)
    if way == 3:
        return Exchanger(array, False)
    if way == 4:
        return accrt.from_dlpack(Exchanger(array, False) if numbers.random() < 0.5 else Producer(array, numbers.random() < 0.5), device)
    return function(array) if array.flags.c_contiguous else array


def way_out(numbers, result, device):
    way = numbers.randrange(6)
    if way == 0:
        return np.asarray(result)
    if way == 1:
        return np.from_dlpack(result) if hasattr(np, "from_dlpack") and result.dtype != "bool" else result.numpy()
    if way == 2:
        return np.asarray(accrt.from_dlpack(result, device))
    if way == 3:
        result.__dlpack__(max_version=numbers.choice((None, (1, 0))))  # nobody takes it
        return result.numpy()
    if way == 4 and result.dtype != "f16" and result.size:
        return np.array(result.memoryview()).reshape(result.shape)
    return np.array(result.tolist(), result.numpy().dtype).reshape(result.shape)


def same(array, wanted):
    return array.dtype == wanted.dtype and array.shape == wanted.shape and np.ascontiguousarray(array).tobytes() == np.ascontiguousarray(wanted).tobytes()


def round_trip(numbers, session, device):
    name, rank, contiguous = numbers.choice(list(SIZES)), numbers.randrange(4), numbers.random() < 0.8
    array = random_array(numbers, name, rank, contiguous)
    wanted, function = array.copy(), session[f"{name}_{rank}"]
    value = way_in(numbers, array, function, device)
    del array
    try:
        call = function.bind(value) if numbers.random() < 0.3 else function
        result = call() if call is not function else function(value)
    except (accrt.Error, ValueError, TypeError):
        if contiguous and not (type(value) is Exchanger and _fast.native is None):
            raise
        result = function(wanted)
    del value
    found = way_out(numbers, result, device)
    if not same(found, wanted) and not (found.dtype.kind == "f" and np.isnan(found).any()):
        # tolist keeps no bits of NaN
        sys.exit(f"round_trips: {name}{list(wanted.shape)} came back as {found!r}, and was {wanted!r}")


def passed(operations, seed, program, device):
    """So many round trips in a session of their own."""
    numbers = random.Random(seed)
    random.seed(seed)
    pool = accrt.Pool(device)
    session = program.session(pool=pool)
    half = 0
    for i in range(operations):
        round_trip(numbers, session, device)
        if i == operations // 2:
            gc.collect()
            half = len(gc.get_objects())
    session.close()
    del session
    gc.collect()
    more, used = len(gc.get_objects()) - half, pool.statistics["used_bytes"]
    if alive or counts["given"] != counts["released"] or counts["twice"] or used or more > 200:
        sys.exit(f"round_trips: {len(alive)} of {counts} not released, {used} bytes used, {more} more objects")


def main():
    options = argparse.ArgumentParser()
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--operations", type=int, default=10000)
    options = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "round.accx")
        write_bundle(path)
        instance = accrt.Instance(host_code="all", options={"host.threads": 1})
        device = instance.device("host")
        program = accrt.Program(accrt.Bundle(path, instance), device)
    passed(options.operations, options.seed, program, device)
    given_first, again = counts["given"], max(options.operations // 10, 300)
    heap = left_over.settles(lambda: passed(again, options.seed, program, device), again, "round_trips")
    print(f"{options.operations} round trips, {given_first} tensors of others given and released, nothing left, "
          f"{'with' if _fast.native else 'without'} accrt._native; {heap}")


if __name__ == "__main__":
    main()
