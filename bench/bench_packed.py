"""Matrix-vector products from packed weights beside the speed at which the machine reads memory, in
the same run.

    python bench/bench_packed.py [--layouts q4_k,q8_0] [--rows 1] [--repeats 21]

A weight of 16384 x 8192, which outgrows the caches, is packed and multiplied with --rows rows by 1
and 2 threads. Reading is a sum over as many bytes by the same threads. The bytes of a layout are
those of its components, whatever the packed form has more. Where pywhispercpp is installed,
llama.cpp's kernels run beside them: its wheel carries the ggml library that has them.
"""

import argparse
import ctypes
import importlib.util
import os
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
import numpy as np  # noqa: E402 - after the number of threads is set

import common  # noqa: E402
from kernel_runner import RunnerLaunch, aligned, bound, harness, load_runner  # noqa: E402
from accrt.compiler import encodings, packing, quantizers  # noqa: E402
from accrt.compiler.kernels import packed  # noqa: E402

N, K = 16384, 8192


class Launches:
    """Launches bound to arrays, for the runner: one after the other, by the given number of
    threads."""

    def __init__(self, runner, steps, target):
        self.runner, self.keep = runner, []
        made = []
        for launch, arrays in steps:
            one, block = bound(launch, arrays, target)
            made.append(one)
            self.keep.append((block, arrays))
        self.launches = (RunnerLaunch * len(made))(*made)

    def __call__(self, threads):
        return self.runner.runner_run(ctypes.addressof(harness.ENVIRONMENT), self.launches, len(self.launches), threads) / 1e9


def random_weight(layout, rng):
    """Bytes at random, with scales of ordinary size: what is read is the same as of any weight."""
    small = quantizers.quantize(rng.standard_normal((16, K)).astype(np.float32), layout, scales="f16" if layout.startswith("i4") else "")
    parts = {role: np.concatenate([np.ascontiguousarray(a)] * (N // 16)) for role, a in small.components.items()}
    return encodings.Quantized(layout, (N, K), parts, small.group, types=small.types)


def product(runner, q, rows, target, rng):
    form = packing.form_of(q)
    parts = {role: np.ascontiguousarray(a).reshape(-1).view(np.uint8) for role, a in q.components.items()}
    weights = aligned(packed.packed_bytes(form))
    Launches(runner, [(packed.lower_prepare(form), {**parts, "out": weights})], target)(2)
    x, out = rng.standard_normal((rows, K)).astype(np.float32), np.empty((rows, N), np.float32)
    steps, taken = [], x
    if packed.needs_codes(form):
        taken = aligned(rows * packed.quantized_row_bytes(K))
        steps.append((packed.lower_quantize(harness.spec_of(x, "f32"), rows), {"x": x, "out": taken}))
    launch = packed.lower_product(form, harness.spec_of(x, "f32"), harness.spec_of(out, "f32"), None, None, "none")
    steps.append((launch, {"x": taken, "w": weights, "out": out}))
    return Launches(runner, steps, target), sum(part.nbytes for part in parts.values())


# ---- llama.cpp's kernel, where a package has it --------------------------------------------------


class GgmlProduct:
    """ggml's vec_dot of a row of the weight with a quantized row of x, row after row, by one
    thread."""

    TYPES = {"q4_k": (12, 15), "q8_0": (8, 8), "q4_0": (2, 8)}  # the weight's type, and that of x

    def __init__(self, folder, q, rng):
        self.cpu = ctypes.CDLL(str(folder / "libggml-cpu.so"))
        self.cpu.ggml_cpu_init()
        weight_type, x_type = self.TYPES[q.layout]
        traits = self.cpu.ggml_get_type_traits_cpu

        class Traits(ctypes.Structure):
            _fields_ = [("from_float", ctypes.c_void_p), ("vec_dot", ctypes.c_void_p), ("vec_dot_type", ctypes.c_int), ("nrows", ctypes.c_int64)]

        traits.restype, traits.argtypes = ctypes.POINTER(Traits), [ctypes.c_int]
        if traits(weight_type).contents.vec_dot_type != x_type:
            raise OSError("ggml multiplies this type with another one than is known here")
        quantize = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)(traits(x_type).contents.from_float)
        self.x = rng.standard_normal(K).astype(np.float32)
        self.row = np.zeros(K * 2, np.uint8)
        quantize(self.x.ctypes.data, self.row.ctypes.data, K)
        self.weight, self.out = np.ascontiguousarray(q.components["data"]).reshape(-1), np.zeros(N, np.float32)
        self.vec_dot = traits(weight_type).contents.vec_dot

    def features(self):
        names = ("avx2", "avx512", "avx512_vnni")
        return ", ".join(name for name in names if getattr(self.cpu, "ggml_cpu_has_" + name)()) or "no vectors"


def ggml_folder():
    found = importlib.util.find_spec("pywhispercpp")
    folder = Path(found.origin).parents[1] if found and found.origin else None
    return folder if folder and (folder / "libggml-cpu.so").exists() else None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layouts", default="q4_k,q8_0,i4_group,i8_channel,mxfp4,f8_channel")
    parser.add_argument("--rows", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=21)
    parser.add_argument("--target", default=harness.host_targets()[-1])
    options = parser.parse_args()
    rng, runner = np.random.default_rng(1), load_runner()
    results, folder = {}, ggml_folder()
    if folder is None:
        print("  pywhispercpp is not installed: without llama.cpp's kernels")
    for layout in options.layouts.split(","):
        q = random_weight(layout, rng)
        run, size = product(runner, q, options.rows, options.target, rng)
        memory = aligned(size)
        memory[:] = 1
        candidates = {}
        for threads in (1, 2):
            candidates[f"read, {threads}"] = lambda t=threads: runner.runner_read(memory.ctypes.data, size, t) / 1e9
            candidates[f"{layout}, {threads}"] = lambda t=threads: run(t)
        if folder is not None and layout in GgmlProduct.TYPES:
            peer = GgmlProduct(folder, q, rng)
            print(f"  llama.cpp's kernel: built for {peer.features()}")
            runner.runner_dots.restype = ctypes.c_int64
            runner.runner_dots.argtypes = [ctypes.c_void_p] * 4 + [ctypes.c_uint64] * 3 + [ctypes.c_uint32]
            row_bytes = peer.weight.nbytes // N
            for threads in (1, 2):
                candidates[f"ggml, {threads}"] = lambda t=threads: runner.runner_dots(
                    peer.vec_dot, peer.out.ctypes.data, peer.weight.ctypes.data, peer.row.ctypes.data, N, K, row_bytes, t) / 1e9  # fmt: skip
        samples = {name: [] for name in candidates}
        for repeat in range(options.repeats + 2):
            for name in sorted(candidates, reverse=bool(repeat % 2)):
                taken = candidates[name]()
                if repeat >= 2:
                    samples[name].append(taken)
        table = {name: common.summary(times) for name, times in samples.items()}
        print(f"\n{layout}, {N} x {K}, {options.rows} rows of x, {size / 1e6:.0f} MB, {options.target}")
        for name, row in sorted(table.items()):
            rate, best = size / row["median_s"] / 1e9, table[f"read, {name[-1]}"]["median_s"]
            print(f"  {name + ' threads':22} {row['median_s'] * 1e3:7.2f} ms ({row['p25_s'] * 1e3:.2f} to {row['p75_s'] * 1e3:.2f})  {rate:6.1f} GB/s  {best / row['median_s']:5.2f} of reading")
        results[layout] = table
    common.save("packed", results)


if __name__ == "__main__":
    main()
