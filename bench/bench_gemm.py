"""Matrix products of the reference compiler beside numpy's BLAS and, if installed, onnxruntime, on
MiniLM's shapes.

    python bench/bench_gemm.py [--threads 1] [--target x86-64-v4] [--repeats 15]

One process, the contenders interleaved, median and quartiles of GFLOP/s. Weights are packed
beforehand, as a program does when it is loaded. numpy and onnxruntime get the same number of
threads.
"""

import argparse
import ctypes
import os
import time

arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
arguments.add_argument("--threads", type=int, default=1, choices=(1, 2))
arguments.add_argument("--target", default="")
arguments.add_argument("--repeats", type=int, default=15)
options = arguments.parse_args()
for variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = str(options.threads)

import numpy as np  # noqa: E402 - after the number of threads is set

from kernel_runner import RunnerLaunch, aligned, bound, harness, load_runner  # noqa: E402
from accrt.compiler.kernels import matmul as mm  # noqa: E402
from accrt.compiler.kernels.kerneldef import TensorSpec  # noqa: E402

SHAPES = [(m, k, n) for m in (1, 8, 32, 2048) for k, n in ((384, 384), (384, 1152), (384, 1536), (1536, 384))]


def array(shape, dtype=np.float32):
    return aligned(int(np.prod(shape)) * np.dtype(dtype).itemsize).view(dtype).reshape(shape)


class Prepared:
    """A launch bound to arrays, ready for the runner; repeated `copies` times, so that starting
    threads is amortised."""

    def __init__(self, runner, launch, arrays, target, copies):
        one, self.block = bound(launch, arrays, target)
        self.launches, self.copies = (RunnerLaunch * copies)(*[one] * copies), copies
        self.runner, self.arrays = runner, arrays

    def __call__(self):
        taken = self.runner.runner_run(ctypes.addressof(harness.ENVIRONMENT), self.launches, self.copies, options.threads)
        return taken / 1e9 / self.copies


def timed(function, inner):
    begin = time.perf_counter()
    for _ in range(inner):
        function()
    return (time.perf_counter() - begin) / inner


def onnx_session(k, n, weight):
    try:
        import onnxruntime
        from onnx import TensorProto, helper
    except ImportError:
        return None
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["a", "b"], ["c"])], "g",
        [helper.make_tensor_value_info("a", TensorProto.FLOAT, ["m", k])],
        [helper.make_tensor_value_info("c", TensorProto.FLOAT, ["m", n])],
        [helper.make_tensor("b", TensorProto.FLOAT, [k, n], weight.tobytes(), raw=True)],
    )  # fmt: skip
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = options.threads
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return onnxruntime.InferenceSession(model.SerializeToString(), settings, providers=["CPUExecutionProvider"])


def bench(runner, target, m, k, n):
    rng = np.random.default_rng(7)
    arrays = {"a": array((m, k)), "b": None, "out": array((m, n))}
    arrays["a"][:] = rng.standard_normal((m, k))
    weight = rng.standard_normal((k, n)).astype(np.float32)
    packed = mm.packed_spec(n, k, "f32")
    source = {"b": weight, "packed": array(packed.shape)}
    Prepared(runner, mm.lower_pack(harness.spec_of(weight, "f32"), packed), source, target, 1)()
    arrays["b"] = source["packed"]
    launch = mm.lower_matmul_packed(harness.spec_of(arrays["a"], "f32"), packed, TensorSpec.contiguous("f32", (m, n)))
    flops = 2.0 * m * k * n
    inner = max(1, min(400, int(4e8 / flops)))
    ours = Prepared(runner, launch, arrays, target, inner)
    product = np.empty((m, n), np.float32)
    contenders = {"accrt": ours, "numpy": lambda: timed(lambda: np.dot(arrays["a"], weight, out=product), inner)}
    session = onnx_session(k, n, weight)
    if session:
        feed = {"a": arrays["a"]}
        contenders["onnxruntime"] = lambda: timed(lambda: session.run(None, feed), inner)
    taken = {name: [] for name in contenders}
    for _ in range(options.repeats):
        for name, contender in contenders.items():
            taken[name].append(contender())
    error = np.abs(arrays["out"] - arrays["a"].astype(np.float64) @ weight).max()
    assert error < 1e-3, f"wrong product: {error}"
    line = f"{m:5d} {k:5d} {n:5d}"
    for name, times in taken.items():
        low, middle, high = np.percentile(np.array(times), [25, 50, 75])
        line += f"   {name} {flops / middle / 1e9:6.1f} [{flops / high / 1e9:6.1f} {flops / low / 1e9:6.1f}]"
    print(line, flush=True)


def main():
    targets = harness.host_targets()
    target = options.target or targets[-1]
    runner = load_runner()
    print(f"GFLOP/s, median [quartiles]; threads {options.threads}, target {target}\n    m     k     n")
    for m, k, n in SHAPES:
        bench(runner, target, m, k, n)


if __name__ == "__main__":
    main()
