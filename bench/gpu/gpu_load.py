"""Weights from a file to the GPU: a bundle with chunk checks on, and constants of a bundle that lie
in a safetensors file, beside the raw pinned bandwidth and safetensors' own load_file.

    gpu_load.py [--gib N] [--rounds R] [--folder DIR]

The files (N GiB of random bytes each, default 8; one of safetensors has its tensors at odd
addresses) are made in DIR and read once, so that they are in the page cache. The context and the
device's pool of memory are made before; a row is the time from opening to the last weight on the
device, and one byte range of each weight is compared afterwards. Text to the terminal, JSON to
gpu_load.json in $ACCRT_BENCH_RESULTS.
"""
from __future__ import annotations

import ctypes
import json
import os
import shutil
import statistics
import sys
import tempfile
import time

import numpy as np

import accrt
from accrt import bundle_writer as bw

DEVICE = os.environ.get("ACCRT_DEVICE", "cuda:0")
RESULTS = os.environ.get("ACCRT_BENCH_RESULTS", ".")
MIB = 1 << 20


def option(name: str, default):
    return type(default)(sys.argv[sys.argv.index(name) + 1]) if name in sys.argv else default


def weights(count: int, each: int) -> dict[str, np.ndarray]:
    """Different bytes in each, from one block of random ones."""
    block = np.random.default_rng(7).integers(0, 255, each + count, dtype=np.uint8)
    return {f"w{i:03d}": block[i:i + each].copy() for i in range(count)}


def write_bundle(path: str, tensors: dict[str, np.ndarray], digests: dict[str, bytes] | None = None) -> None:
    """With the weights, or with what is known of weights outside."""
    bundle = bw.BundleWriter()
    f = bundle.function("peek", doc="the first 64 bytes of each weight")
    out = f.result("out", "u8", [len(tensors), 64])
    for i, (name, data) in enumerate(tensors.items()):
        weight = bundle.constant(name, data) if digests is None else bundle.external(name, "u8", data.shape, digest=digests.get(name))
        f.body.copy(f.constant(weight).read(), out.write(i * 64), 64)
    bundle.write(path)


def write_flat(path: str, tensors: dict[str, np.ndarray], odd: bool) -> None:
    """A safetensors file; `odd`: a header that puts every tensor at an odd address."""
    header, at = {}, 0
    for name, data in tensors.items():
        header[name] = {"dtype": "U8", "shape": list(data.shape), "data_offsets": [at, at + data.nbytes]}
        at += data.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 16 + (1 if odd else 8))
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for data in tensors.values():
            file.write(data)


def load_bundle(path: str, device, tensors, side: str | None = None) -> float:
    begin = time.perf_counter()
    sources = [accrt.Weights(side, device.instance)] if side else None
    session = accrt.Program(accrt.Bundle(path, device.instance), device, weights=sources).session()
    seconds = time.perf_counter() - begin
    got = session.peek().numpy()
    for i, data in enumerate(tensors.values()):
        assert (got[i] == data[:64]).all(), f"weight {i} has other bytes"
    return seconds


class RawDriver:
    """cuMemcpyHtoDAsync of 1 GiB that cuMemHostAlloc gave, on the primary context."""

    def __init__(self) -> None:
        self.cuda = ctypes.CDLL("libcuda.so.1")
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self.host, self.target, self.stream = ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_void_p()
        self.call("cuInit", 0)
        self.call("cuDeviceGet", ctypes.byref(device), int(DEVICE.partition(":")[2] or 0))
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)
        self.call("cuMemHostAlloc", ctypes.byref(self.host), ctypes.c_size_t(1 << 30), 0)
        self.call("cuMemAlloc_v2", ctypes.byref(self.target), ctypes.c_size_t(1 << 30))
        self.call("cuStreamCreate", ctypes.byref(self.stream), 1)
        ctypes.memset(self.host, 7, 1 << 30)

    def call(self, name: str, *arguments) -> None:
        code = getattr(self.cuda, name)(*arguments)
        assert code == 0, f"{name}: error {code}"

    def copy(self) -> float:
        begin = time.perf_counter()
        self.call("cuMemcpyHtoDAsync_v2", self.target, self.host, ctypes.c_size_t(1 << 30), self.stream)
        self.call("cuStreamSynchronize", self.stream)
        return time.perf_counter() - begin


def main() -> int:
    gib, rounds = option("--gib", 8), option("--rounds", 5)
    folder = option("--folder", tempfile.mkdtemp(prefix="gpu_load."))
    device = accrt.default_instance().device(DEVICE)
    each = 64 * MIB
    size = gib * (1 << 30)
    tensors = weights(size // each, each)
    bundle, flat, odd, named, checked = (os.path.join(folder, name) for name in ("load.accx", "load.safetensors", "odd.safetensors",
                                                                                 "named.accx", "checked.accx"))
    table, samples = [], {}
    try:
        write_bundle(bundle, tensors)
        import torch
        from safetensors.torch import load_file
        import xxhash
        write_bundle(named, tensors, {})
        write_bundle(checked, tensors, {name: xxhash.xxh3_128(data).digest() for name, data in tensors.items()})
        write_flat(flat, tensors, False)
        write_flat(odd, tensors, True)
        for path in (bundle, flat, odd):
            with open(path, "rb") as file:
                while file.read(64 * MIB):
                    pass
        raw = RawDriver()

        def flat_load() -> float:
            begin = time.perf_counter()
            loaded = load_file(flat, device="cuda")
            torch.cuda.synchronize()
            seconds = time.perf_counter() - begin
            del loaded
            torch.cuda.empty_cache()
            return seconds

        rows = {"cuMemcpyHtoDAsync, pinned, 1 GiB": (raw.copy, 1 << 30),
                f"accrt: bundle of {gib} GiB, chunk checks on": (lambda: load_bundle(bundle, device, tensors), size),
                f"accrt: safetensors of {gib} GiB, digests": (lambda: load_bundle(checked, device, tensors, flat), size),
                f"accrt: safetensors of {gib} GiB, by name": (lambda: load_bundle(named, device, tensors, flat), size),
                "accrt: the same at odd addresses": (lambda: load_bundle(named, device, tensors, odd), size),
                f"safetensors load_file, {gib} GiB": (flat_load, size)}
        for turn in range(rounds + 1):
            for name, (run, count) in rows.items():
                if name.startswith("safetensors") and turn > 2:
                    continue  # it takes most of the time, and two samples say enough of a peer
                time.sleep(0.5)  # what the row before has to tidy up is not this one's
                seconds = run()
                if turn:
                    samples.setdefault(name, []).append(count / seconds / 1e9)
        base = statistics.median(samples[next(iter(rows))])
        for name, values in samples.items():
            median = statistics.median(values)
            print(f"  {name:44} {median:8.2f} GB/s   least {min(values):8.2f}  most {max(values):8.2f}   {median / base:5.2f} x pinned")
            table.append({"name": name, "median": median, "min": min(values), "max": max(values), "unit": "GB/s", "ratio": median / base})
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    with open(os.path.join(RESULTS, "gpu_load.json"), "w") as file:
        json.dump({"title": "Weights from a file to the GPU", "rows": table}, file, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
