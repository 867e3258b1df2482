"""Makes a bundle of weights alone, for bench_transfer: `make_weights.py FILE GIB`. Its function copies a byte of each constant."""
from __future__ import annotations

import importlib.util
import pathlib
import sys

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[1]
PIECE_BYTES = 256 << 20


def writer():
    """accrt.bundle_writer alone: the package would load the shared library."""
    spec = importlib.util.spec_from_file_location("bundle_writer", ROOT / "python" / "accrt" / "bundle_writer" / "__init__.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def main() -> None:
    path, gib = sys.argv[1], float(sys.argv[2])
    bw = writer()
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
