"""Makes a bundle of weights alone, for bench_transfer: `make_weights.py FILE GIB`. Its function
copies a byte of each constant."""
from __future__ import annotations

import pathlib
import sys

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "python"))
from accrt import bundle_writer as bw  # noqa: E402

PIECE_BYTES = 256 << 20


def main() -> None:
    path, gib = sys.argv[1], float(sys.argv[2])
    bundle = bw.BundleWriter()
    data = np.random.default_rng(1).integers(0, 256, PIECE_BYTES, dtype=np.uint8)
    function = bundle.function("touch", doc="a byte of each constant")
    count = max(1, int(gib * (1 << 30)) // PIECE_BYTES)
    result = function.result("y", "u8", [count])
    for i in range(count):
        weight = bundle.constant(f"w{i:03}", data, shape=(PIECE_BYTES,))
        function.body.copy(function.constant(weight).read(), result.write(i), 1)
    bundle.write(path)


if __name__ == "__main__":
    main()
