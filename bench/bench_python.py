"""What calls from Python cost, beside a foreign call of a trivial function and numpy's own: interleaved in one run.

    ./dev bench python

The bundle is the one that the C tests run, made here with the public writer: `empty` has one kernel that does nothing, `affine` is
y = 2 x + 1. The runtime runs both on the calling thread.
"""
from __future__ import annotations

import itertools
import pathlib
import subprocess
import sys
import tempfile
from typing import Callable

import numpy as np

import common

sys.path.insert(0, str(common.ROOT / "python"))
import accrt  # noqa: E402 - from the tree
from accrt._library import lib  # noqa: E402

CALLS = 50  # in each sample: few, so that a busy machine interrupts few samples
ELEMENTS = 64


def many(call: Callable[[], object]) -> Callable[[], None]:
    def run() -> None:
        for _ in itertools.repeat(None, CALLS):
            call()
    return run


def open_session(folder: str, threads: int):
    return accrt.load(pathlib.Path(folder, "program.accx"), host_code="all", options={"host.threads": threads})


def candidates(folder: str) -> dict[str, Callable[[], object]]:
    one, two = open_session(folder, 1), open_session(folder, 2)
    x = np.linspace(0, 1, ELEMENTS, dtype=np.float32)
    y, numpy_y = np.empty_like(x), np.empty_like(x)
    bound = one.affine.bind(x, out=y)
    bound()
    if not np.array_equal(y, 2 * x + 1):
        sys.exit("bench_python: affine gave a wrong result")
    return {
        "floor: ctypes, accrt_version()": lib.accrt_version,
        "bound call, empty kernel": one.empty.bind(),
        "bound call, empty kernel, 2 threads": two.empty.bind(),
        f"bound call, {ELEMENTS} f32": bound,
        "bound call, result allocated": one.affine.bind(x),
        "unbound call, empty kernel": one.empty,
        f"unbound call, {ELEMENTS} f32, out=": lambda: one.affine(x, out=y),
        "unbound call, result allocated": lambda: one.affine(x),
        f"numpy.add, {ELEMENTS} f32, out=": lambda: np.add(x, x, out=numpy_y),
    }


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        made = subprocess.run([sys.executable, str(common.ROOT / "tests/bundles/make.py"), folder, "cc"])
        if made.returncode != 0:
            sys.exit("bench_python: the bundle could not be made; it needs xxhash and a C compiler")
        runs = {name: many(call) for name, call in candidates(folder).items()}
        times = {name: [t / CALLS for t in samples] for name, samples in common.interleaved(runs).items()}
    rows = {name: common.summary(samples) for name, samples in times.items()}
    common.show("one call from Python (asked for: a bound call in at most 2 us)", rows, "us")
    common.save("python", rows)


if __name__ == "__main__":
    main()
