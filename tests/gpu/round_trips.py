"""Random tensors of other libraries in and out again, on a GPU: `round_trips.py [--count N]
[--seed S] [--with torch,cupy,numpy,own] [--leaks]`.

Each trip makes a tensor (type, shape, strides, offset, stream), brings it in as a Tensor or as the
argument of a bound, submitted or plain call, brings what comes of it out to one of the libraries,
and compares. At the end all memory is given back. For compute-sanitizer:

    compute-sanitizer --tool memcheck --leak-check full python3 round_trips.py --with cupy,own --leaks

With --leaks all is closed at the end, what the libraries keep is given back, and CUDA's context is
taken down, which is when the tool says what is left. It needs no pytest. "own" are arrays of this
file's, which need no other library: they run under the stand-in for CUDA's driver, too.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import gc
import importlib
import os
import sys
import time

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE]

import accrt  # noqa: E402
from accrt import Pool, Stream  # noqa: E402
from gpu_device import DATA, DEVICE  # noqa: E402

TYPES = ("bool", "int8", "int16", "int32", "int64", "uint8", "float16", "float32", "float64")


def shape_of(random) -> tuple[int, ...]:
    return tuple(int(n) for n in random.integers(0, 7, int(random.integers(0, 5))))


def numbers(random, shape, dtype) -> np.ndarray:
    low, high = (0, 2) if dtype == "bool" else (0, 100)
    return random.integers(low, high, shape).astype(dtype)


def slices(random, shape) -> tuple:
    """Parts of an array: offsets, steps and transposed dimensions."""
    return tuple(slice(int(random.integers(0, max(n, 1))), None, int(random.integers(1, 3))) for n in shape)


class Own:
    """An array that has the CUDA array interface alone."""

    def __init__(self, trips, values):
        self.buffer = Pool(trips.device).buffer(max(values.nbytes, 64))
        self.stream = trips.streams[int(trips.random.integers(len(trips.streams)))]
        if values.nbytes:
            self.stream.copy(np.ascontiguousarray(values), self.buffer)
        self.interface = {"version": 3, "shape": values.shape, "typestr": values.dtype.str, "data": (self.buffer.address, False), "strides": None,
                          "stream": self.stream.native}  # fmt: skip

    @property
    def __cuda_array_interface__(self):
        return self.interface


class Trips:
    def __init__(self, seed: int, libraries: list[str]) -> None:
        self.seed, self.random, self.libraries = seed, np.random.default_rng(seed), libraries
        self.instance = accrt.Instance(host_code="all", options={"packs.path": str(DATA), "host.threads": 1})
        self.device = self.instance.device(DEVICE)
        self.program = accrt.Program(accrt.Bundle(DATA / "device.accx", self.instance), self.device)
        self.streams = [Stream(self.device) for _ in range(3)]
        self.sessions = [self.program.session(), self.program.session(stream=self.streams[0])]
        self.modules = {name: importlib.import_module(name) for name in libraries if name != "own"}
        if "torch" in self.modules:
            torch = self.modules["torch"]
            self.torch_streams = [torch.cuda.current_stream(), torch.cuda.Stream()]
            wrapped = Stream.wrap(self.device, self.torch_streams[0])
            self.sessions.append(self.program.session(stream=wrapped))
        self.calls = [session.affine.bind(np.zeros(4, np.float32)) for session in self.sessions]
        self.kept: list = []
        self.count = dict.fromkeys(("tensors", "bound", "submitted", "plain"), 0)

    def pick(self, values):
        return values[int(self.random.integers(len(values)))]

    # What a library makes of values: the tensor.

    def make(self, library: str, values: np.ndarray, part=None):
        if library == "torch":
            torch = self.modules["torch"]
            with torch.cuda.stream(self.pick(self.torch_streams)):
                made = torch.from_numpy(values.copy()).to("cuda", non_blocking=False)
                return made[part] if part is not None else made
        if library == "cupy":
            made = self.modules["cupy"].asarray(values)
            return made[part] if part is not None else made
        if library == "own":
            return Own(self, values if part is None else values[part])
        return values.copy() if part is None else values[part].copy()

    # What a library has of a Tensor: numbers on the host.

    def out(self, tensor) -> np.ndarray:
        library = self.pick(self.libraries)
        if library == "torch":
            return self.modules["torch"].from_dlpack(tensor).cpu().numpy().copy()
        if library == "cupy":
            cupy = self.modules["cupy"]
            # By the interface an empty array lies at 0, which CuPy 14.2 does not take.
            by_dlpack = 0 in tensor.shape or self.random.integers(2)
            return cupy.asnumpy(cupy.from_dlpack(tensor) if by_dlpack else cupy.asarray(tensor))
        return np.asarray(tensor).copy()

    def same(self, found, wanted, what: str, step: int) -> None:
        if found.shape != wanted.shape or found.dtype != wanted.dtype or not np.array_equal(found, wanted):
            raise AssertionError(f"{what}, seed {self.seed}, step {step}: {found.dtype}{found.shape} {found.ravel()[:5]}, and {wanted.dtype}{wanted.shape} "
                                 f"{wanted.ravel()[:5]} is right")

    def tensor_trip(self, step: int) -> None:
        """As a Tensor, of any type, with strides."""
        library = self.pick([one for one in self.libraries if one != "numpy"] or self.libraries)
        values = numbers(self.random, shape_of(self.random), self.pick(TYPES))
        part = slices(self.random, values.shape) if self.random.integers(2) and values.ndim else None
        given, wanted = self.make(library, values, part), values if part is None else values[part]
        if library == "own" or library == "cupy" and self.random.integers(2):
            tensor = accrt.from_cuda_array(given, self.device)
        elif library == "numpy":
            tensor = accrt.from_dlpack(given, self.instance.device("host"))
        else:
            tensor = accrt.from_dlpack(given, self.device)
        del given
        self.same(self.out(tensor), wanted, f"a Tensor of {library}", step)
        if self.random.integers(4) == 0:
            self.kept.append(tensor)

    def call_trip(self, step: int) -> None:
        library, n = self.pick(self.libraries), int(self.random.integers(0, 500))
        x = numbers(self.random, n, "float32")
        at, way = int(self.random.integers(len(self.calls))), self.pick(("bound", "submitted", "plain"))
        given = self.make(library, x)
        if way == "plain":
            found = self.sessions[at].affine(given)
        else:
            call = self.calls[at]
            call.set("x", given)
            del given
            if way == "bound":
                found = call()
            else:
                call.submit()
                found = call.results()
        self.count[way] += 1
        self.same(self.out(found) if way != "submitted" else np.asarray(found).copy(), 2 * x + 1, f"a {way} call with an array of {library}", step)

    def run(self, count: int) -> None:
        for step in range(count):
            if self.random.integers(2):
                self.tensor_trip(step)
                self.count["tensors"] += 1
            else:
                self.call_trip(step)
            if len(self.kept) > 50:
                del self.kept[:int(self.random.integers(50))]

    def end(self) -> None:
        self.kept.clear()
        for call in self.calls:
            call.close()
        for session in self.sessions:
            session.stream.synchronize()
            session._in_flight.look(), session._in_flight.look()

    def close(self) -> None:
        """All that there is of the library's."""
        for session in self.sessions:
            session.close()
        self.program.close()
        self.instance.close()


def threads() -> list[str]:
    """Names of the library's own."""
    names = []
    for one in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError), open(f"/proc/self/task/{one}/comm", encoding="utf-8") as file:
            names.append(file.read().strip())
    return [name for name in names if name.startswith("accrt-")]


def take_down(libraries: list[str]) -> None:
    """Gives back what the libraries keep, and CUDA's context itself. The instance ends with its
    last use, which may be on a thread of its own."""
    gc.collect()
    end = time.monotonic() + 20
    while threads():
        if time.monotonic() > end:
            raise AssertionError(f"an instance is still there: {threads()}")
        time.sleep(0.01)
    if "cupy" in libraries:
        cupy = importlib.import_module("cupy")
        cupy.get_default_memory_pool().free_all_blocks()
        cupy.get_default_pinned_memory_pool().free_all_blocks()
    if "torch" in libraries:
        importlib.import_module("torch").cuda.empty_cache()
    driver, device = ctypes.CDLL("libcuda.so.1"), ctypes.c_int()
    index = int(DEVICE.partition(":")[2] or 0)
    for done in (driver.cuDeviceGet(ctypes.byref(device), index), driver.cuDevicePrimaryCtxReset_v2(device)):
        if done:
            raise RuntimeError(f"CUDA's driver gave {done}")


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=int(os.environ.get("ACCRT_TEST_SEED", time.time_ns() % 1_000_000_007)))
    parser.add_argument("--with", dest="libraries", default="own,numpy")
    parser.add_argument("--leaks", action="store_true")
    arguments = parser.parse_args()
    libraries = arguments.libraries.split(",")
    print(f"seed {arguments.seed}, {arguments.libraries}", flush=True)
    trips = Trips(arguments.seed, libraries)
    trips.run(min(200, arguments.count))  # pools and workspaces have what they need then
    trips.end()
    trips.close()
    gc.collect()
    trips = Trips(arguments.seed + 1, libraries)
    before = trips.modules["torch"].cuda.memory_allocated() if "torch" in libraries else 0
    begin = time.monotonic()
    trips.run(arguments.count)
    trips.end()
    counted = trips.count
    gc.collect()
    if "torch" in libraries:
        trips.modules["torch"].cuda.synchronize()
    trips.close()
    del trips
    gc.collect()
    if "torch" in libraries:
        torch = importlib.import_module("torch")
        left = torch.cuda.memory_allocated() - before
        if left:
            print(f"{left} bytes of torch's are not given back")
            return 1
    print(f"{arguments.count} trips right in {time.monotonic() - begin:.1f} s: {', '.join(f'{n} {what}' for what, n in counted.items())}", flush=True)
    if arguments.leaks:
        take_down(libraries)
        os._exit(0)  # the libraries would look for their context
    return 0


if __name__ == "__main__":
    sys.exit(main())
