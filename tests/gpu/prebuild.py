"""Compiles the modules of these tests where nvcc is, for machines that have none: `prebuild.py FOLDER [sm_90 ptx ...]`."""

from __future__ import annotations

import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, os.pardir, "python")]

import test_fast  # noqa: E402
import test_models  # noqa: E402
import test_ops  # noqa: E402
import test_quantized  # noqa: E402
from accrt.compiler import available_targets, compile  # noqa: E402

MODULES = {
    "ops": test_ops.module,
    "fast": test_fast.module,
    "quantized": test_quantized.module,
    "bytelm_test": test_models.bytelm_module,
    **{f"minilm_{dtype}_test": lambda dtype=dtype: test_models.minilm_module(dtype) for dtype in test_models.COSINE},
}


def main():
    folder, targets = sys.argv[1], sys.argv[2:] or ["cuda"]
    if not available_targets(["cuda"]):
        print("no nvcc: the tests of kernels are not compiled beforehand")
        return
    os.makedirs(folder, exist_ok=True)
    for name, module in MODULES.items():
        data = compile(module(), targets=targets)
        with open(os.path.join(folder, f"{name}.accx"), "wb") as file:
            file.write(data)
        print(f"{name}: {len(data) >> 10} KiB", flush=True)


if __name__ == "__main__":
    main()
