"""Compiles the modules of these tests where nvcc is, for machines that have none: `prebuild.py
FOLDER [sm_90 ptx ...]`."""

from __future__ import annotations

import concurrent.futures
import functools
import multiprocessing
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, os.pardir, "python")]

import test_bits  # noqa: E402
import test_convolutions  # noqa: E402
import test_experts  # noqa: E402
import test_external  # noqa: E402
import test_fast  # noqa: E402
import test_invariance  # noqa: E402
import test_jax_functions  # noqa: E402
import test_lora  # noqa: E402
import test_models  # noqa: E402
import test_next_token  # noqa: E402
import test_ops  # noqa: E402
import test_places  # noqa: E402
import test_quantized  # noqa: E402
import test_safe  # noqa: E402
import test_scans  # noqa: E402
import test_served_engine  # noqa: E402
import test_served_models  # noqa: E402
import test_serving  # noqa: E402
import test_steps  # noqa: E402
import test_token_adapters  # noqa: E402
import test_torch_operator  # noqa: E402
from accrt.compiler import available_targets, compile  # noqa: E402

MODULES = {
    "ops": test_ops.module,
    "fast": test_fast.module,
    "quantized": test_quantized.module,
    "bits_exact": test_bits.module_exact,
    "bits_packed": test_bits.module_packed,
    **{f"external_{dtype}": functools.partial(test_external.module, dtype) for dtype in test_external.DTYPES},
    "convolutions": test_convolutions.module,
    **test_experts.SUITES,
    "external_ranks": test_external.ranks_module,
    "experts": test_external.experts_module,
    **{f"invariant_{name}": functools.partial(test_invariance.module, name) for name in test_invariance.NAMES},
    "jaxed": test_jax_functions.module,
    "lora": test_lora.module,
    "next_token": test_next_token.module,
    "next_token_measured": test_next_token.measured_module,
    "places": test_places.module,
    "safe": test_safe.module,
    "scans": test_scans.module,
    "serving": test_serving.module,
    "steps": test_steps.module,
    "token_adapters": test_token_adapters.module,
    "torch_operator": test_torch_operator.module,
    "torch_trained": test_torch_operator.trained_module,
    **{f"served_{family}": functools.partial(test_served_models.module, family) for family in test_served_models.FAMILIES},
    "served_engine": test_served_engine.module,
    "bytelm_test": test_models.bytelm_module,
    **{f"minilm_{dtype}_test": functools.partial(test_models.minilm_module, dtype) for dtype in test_models.COSINE},
}


def build(name, folder, targets):
    data = compile(MODULES[name](), targets=targets)
    with open(os.path.join(folder, f"{name}.accx"), "wb") as file:
        file.write(data)
    return f"{name}: {len(data) >> 10} KiB"


def main():
    folder, targets = sys.argv[1], sys.argv[2:] or ["cuda"]
    if not available_targets(["cuda"]):
        print("no nvcc: the tests of kernels are not compiled beforehand")
        return
    os.makedirs(folder, exist_ok=True)
    # New processes, not forked ones: the library's handles belong to who made them.
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(max(1, (os.cpu_count() or 1) // 2), context) as workers:
        for line in workers.map(build, MODULES, [folder] * len(MODULES), [targets] * len(MODULES)):
            print(line, flush=True)


if __name__ == "__main__":
    main()
