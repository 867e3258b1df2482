"""A program whose weights lie in a safetensors file: tensors at addresses that are used in place,
beside tensors that must be copied.

    bench_weights.py [--tensors N] [--mib N] [--folder DIR]

The file is in the page cache. A row is the time from opening file and bundle to a program that can
be called; the floors are reading the file into memory that was written before, and memory that is
new. Text to the terminal, JSON to weights.json in $ACCRT_BENCH_RESULTS.
"""
from __future__ import annotations

import json
import os
import shutil
import statistics
import sys
import tempfile
import time

import numpy as np
import xxhash

import accrt
from accrt import bundle_writer as bw

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "gpu"))
from gpu_load import option, write_flat  # noqa: E402

ROUNDS = 7


def write_bundle(path: str, tensors: dict[str, np.ndarray], checked: bool) -> None:
    bundle = bw.BundleWriter()
    f = bundle.function("peek")
    out = f.result("out", "u8", [len(tensors), 16])
    for i, (name, data) in enumerate(tensors.items()):
        digest = xxhash.xxh3_128(data).digest() if checked else None
        f.body.copy(f.constant(bundle.external(name, "u8", data.shape, digest=digest)).read(), out.write(16 * i), 16)
    bundle.write(path)


def main() -> int:
    count, mib = option("--tensors", 2000), option("--mib", 1024)
    folder = option("--folder", tempfile.mkdtemp(prefix="bench_weights."))
    each = (mib << 20) // count // 64 * 64
    block = np.random.default_rng(7).integers(0, 255, each + count, dtype=np.uint8)
    tensors = {f"layers.{i}.weight": block[i:i + each] for i in range(count)}
    instance = accrt.Instance()
    device = instance.device("host:0")
    paths = {name: os.path.join(folder, name) for name in ("even", "odd", "named.accx", "checked.accx")}
    target = bytearray(count * each + (1 << 20))
    expected = np.stack([data[:16] for data in tensors.values()])

    def read(into: bytearray) -> None:
        with open(paths["even"], "rb", buffering=0) as file:
            at, view = 0, memoryview(into)
            while got := file.readinto(view[at:at + (8 << 20)]):
                at += got

    def make(bundle: str, side: str):
        weights = accrt.Weights(paths[side], instance)
        return accrt.Program(accrt.Bundle(paths[bundle], instance), device, weights=[weights])

    rows = {"read the file": lambda: read(target), "read it into new memory": lambda: read(bytearray(len(target))),
            "in place, by name": lambda: make("named.accx", "even"), "copied, by name": lambda: make("named.accx", "odd"),
            "in place, digests": lambda: make("checked.accx", "even"), "copied, digests": lambda: make("checked.accx", "odd")}
    samples: dict[str, list[float]] = {name: [] for name in rows}
    try:
        write_flat(paths["even"], tensors, False)
        write_flat(paths["odd"], tensors, True)
        write_bundle(paths["named.accx"], tensors, False)
        write_bundle(paths["checked.accx"], tensors, True)
        for turn in range(ROUNDS + 1):
            for name, run in rows.items():
                begin = time.perf_counter()
                made = run()
                seconds = time.perf_counter() - begin
                if made is not None and turn == 0:
                    assert (made.session().peek() == expected).all(), name
                del made
                if turn:
                    samples[name].append(seconds)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    table = []
    print(f"{count} tensors, {count * each >> 20} MiB, {os.cpu_count()} processors")
    for name, values in samples.items():
        median = statistics.median(values)
        print(f"  {name:28} {median * 1e3:8.1f} ms   least {min(values) * 1e3:8.1f}   {count * each / median / 1e9:7.2f} GB/s")
        table.append({"name": name, "median_s": median, "least_s": min(values)})
    with open(os.path.join(os.environ.get("ACCRT_BENCH_RESULTS", "."), "weights.json"), "w") as file:
        json.dump({"tensors": count, "bytes": count * each, "rows": table}, file, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
