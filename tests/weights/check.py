#!/usr/bin/env python3
"""Compares what accrt reads in weight files with what the packages of their formats read there.
`./dev check weights` runs it.

    python3 tests/weights/check.py [SEED]      # else ACCRT_TEST_SEED, or another one each time

Random weights of every type that the packages write: bytes and shapes must be equal, and for types
of the layout registry the values, bit for bit but for NaNs, which are one class.
"""
from __future__ import annotations

import os
import pathlib
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "python"))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "python"))

import make  # noqa: E402
from weights_compare import compare  # noqa: E402


def main() -> None:
    drawn = os.environ.get("ACCRT_TEST_SEED") or time.time_ns() % (1 << 32)
    seed = int(sys.argv[1] if len(sys.argv) > 1 else drawn)
    print(f"seed {seed}")
    with tempfile.TemporaryDirectory() as folder:
        for i in range(20):
            expected = make.make(pathlib.Path(folder, str(i)), seed + i)
            for name, tensors in expected["files"].items():
                counts = compare(pathlib.Path(folder, str(i), name), tensors)
                if i == 0:
                    print(f"{name}: {counts.tensors} tensors equal by bytes, {counts.values} of them also by value")
    print("20 sets of files: all equal")


if __name__ == "__main__":
    main()
