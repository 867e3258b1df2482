"""What a serving step does beside its products: attention over pages and the sampling pass, beside
the speed of the machine's memory in one run.

    python bench/bench_serve_ops.py [--keys 8192] [--repeats 15] [--target x86-64-v4]

Attention of decoding rows reads keys and values of bf16 once: their bytes over the time, beside a
memcpy of as many bytes (its reads alone count) and a sum over them, by the same threads. Prefill is
a chunk of one row beside as many keys before it, in products of the two multiplications. Sampling
is of 151,936 tokens, of logits that are normal with a deviation of 3.
"""

import argparse
import ctypes
import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
import numpy as np  # noqa: E402 - after the number of threads is set

import common  # noqa: E402
from kernel_runner import RunnerLaunch, aligned, harness, load_runner  # noqa: E402
from accrt.compiler.kernels import paged, sampling  # noqa: E402
from accrt.compiler.kernels.kerneldef import TensorSpec  # noqa: E402

PAGE, VOCAB = 16, 151_936
SHAPES = {"Llama-3-8B": (32, 8, 128), "Llama-3.2-1B": (32, 8, 64), "Qwen2.5-0.5B": (14, 2, 64)}


class Launches:
    """Launches bound to arrays, with their workspaces, one after the other, by the given number of
    threads."""

    def __init__(self, runner, launches, arrays, target):
        self.runner, self.keep = runner, [arrays]
        made = []
        for launch in launches:
            record = harness.load([launch.kernel], target)[launch.kernel.name]
            work, block = aligned(int(launch.workspace_bytes) + 64), aligned(launch.kernel.params_size_bytes)
            addresses = {param: arrays[argument.operand].ctypes.data for param, argument in launch.buffers.items()}
            block[:] = np.frombuffer(harness.pack_params(launch, addresses, work.ctypes.data), np.uint8)
            made.append(RunnerLaunch(record.entry, block.ctypes.data, len(block), record.local_memory_size_bytes, tuple(launch.grid)))
            self.keep.append((work, block))
        self.launches = (RunnerLaunch * len(made))(*made)

    def __call__(self, threads):
        return self.runner.runner_run(ctypes.addressof(harness.ENVIRONMENT), self.launches, len(self.launches), threads) / 1e9


def attention(runner, shape, counts, keys, target, rng):
    """Rows of `counts` tokens with `keys` keys each; pages lie anywhere."""
    heads, kv_heads, size = shape
    tokens, rows, row_pages = sum(counts), len(counts), -(-keys // PAGE)
    cache = {name: aligned(rows * row_pages * PAGE * kv_heads * size * 2).view(np.uint16) for name in "kv"}
    for memory in cache.values():
        memory[:] = harness.encode(rng.standard_normal(1 << 16), "bf16").repeat(-(-memory.size // (1 << 16)))[: memory.size]
    arrays = {
        "q": rng.standard_normal((tokens, heads, size)).astype(np.float32), "out": np.zeros((tokens, heads, size), np.float32), **cache,
        "table": rng.permutation(rows * row_pages).astype(np.int32), "row_ids": np.arange(rows, dtype=np.int32),
        "row_starts": np.concatenate([[0], np.cumsum(counts)]).astype(np.int32), "kv_lengths": np.full(rows, keys, np.int32),
        "partial": aligned(4 * tokens * heads * -(-keys // paged.UNIT) * paged.part_floats(size)),
    }  # fmt: skip
    pages = TensorSpec.contiguous("bf16", (rows * row_pages, PAGE, kv_heads, size))
    table = TensorSpec.contiguous("i32", (rows, row_pages))
    q = TensorSpec.contiguous("f32", (tokens, heads, size))
    shared = tokens <= paged.TOKENS and tokens * heads * -(-keys // paged.UNIT) * paged.part_floats(size) <= paged.PARTS
    made = paged.lower_paged_attention(q, pages, pages, table, rows, q, scale=None, window=None, soft_cap=None, shared=shared)
    return Launches(runner, made, arrays, target), 2 * rows * keys * kv_heads * size * 2


def sample(runner, rows, target, rng, **settings):
    arrays = {
        "logits": (rng.standard_normal((rows, VOCAB)) * 3).astype(np.float32), "temperature": np.ones(rows), "top_k": np.zeros(rows), "top_p": np.ones(rows),
        "min_p": np.zeros(rows), "seed": np.zeros((rows, 2)), "position": np.arange(rows), "edit_starts": np.zeros(rows + 1), "edit_tokens": np.zeros(1),
        "edit_multiply": np.zeros(1), "edit_add": np.zeros(1), "mask_rows": np.full(rows, -1), "mask_bits": np.zeros((1, VOCAB // 32 + 1)),
    }  # fmt: skip
    types = {**dict.fromkeys(("seed", "mask_bits"), "u32"), **dict.fromkeys(("top_k", "position", "edit_starts", "edit_tokens", "mask_rows"), "i32")}
    arrays = {n: np.ascontiguousarray((a + settings.get(n, 0)).astype(harness.NUMPY[types.get(n, "f32")])) for n, a in arrays.items()}
    specs = [TensorSpec.contiguous(types.get(n, "f32"), arrays[n].shape) for n in sampling.READ]
    arrays.update({n: np.zeros((rows, 20), np.int32) for n in sampling.WRITTEN})
    return Launches(runner, [sampling.lower_sample(specs, 20)], arrays, target)


def measured(candidates, repeats):
    return {name: common.summary(times) for name, times in common.interleaved(candidates, 0, repeats).items()}


def decode(runner, options, rng):
    results = {}
    for name, shape in SHAPES.items():
        for rows in (1, 8):
            run, size = attention(runner, shape, [1] * rows, options.keys, options.target, rng)
            memory, copy = aligned(size), aligned(size)
            memory[:] = 1
            candidates = {"memcpy, 1 thread": lambda m=memory, c=copy: ctypes.memmove(c.ctypes.data, m.ctypes.data, m.size)}
            for threads in (1, 2):
                candidates[f"attention, {threads} threads"] = lambda r=run, t=threads: r(t)
                candidates[f"reading, {threads} threads"] = lambda m=memory, t=threads: runner.runner_read(m.ctypes.data, m.size, t)
            rows_of = measured(candidates, options.repeats)
            print(f"\nDecoding, {name}: {rows} rows of {options.keys} keys, {size / 1e6:.1f} MB of keys and values")
            for label, row in rows_of.items():
                row["gb_per_s"] = size / row["median_s"] / 1e9
                print(f"  {label:24} {row['median_s'] * 1e3:8.3f} ms  {row['gb_per_s']:6.2f} GB/s (best {size / row['min_s'] / 1e9:.2f})")
            results[f"{name}, {rows} rows"] = rows_of
    return results


def prefill(runner, options, rng):
    results, chunk = {}, 512
    for name, shape in SHAPES.items():
        run, _size = attention(runner, shape, [chunk], 2 * chunk, options.target, rng)
        work = 4 * shape[0] * shape[2] * sum(range(chunk + 1, 2 * chunk + 1))
        rows_of = measured({f"{t} threads": lambda r=run, t=t: r(t) for t in (1, 2)}, options.repeats)
        print(f"\nPrefill, {name}: {chunk} tokens after {chunk}")
        for label, row in rows_of.items():
            row["gflops"] = work / row["median_s"] / 1e9
            print(f"  {label:24} {row['median_s'] * 1e3:8.3f} ms  {row['gflops']:6.1f} GFLOP/s (best {work / row['min_s'] / 1e9:.1f})")
        results[name] = rows_of
    return results


SETTINGS = {
    "greedy": {"temperature": -1}, "temperature": {}, "top_k 40": {"top_k": 40}, "top_p 0.95": {"top_p": -0.05},
    "top_k 40, top_p 0.95": {"top_k": 40, "top_p": -0.05}, "min_p 0.05": {"min_p": 0.05},
}  # fmt: skip


def samples(runner, options, rng):
    results = {}
    for rows in (1, 8):
        runs = {label: sample(runner, rows, options.target, rng, **settings) for label, settings in SETTINGS.items()}
        memory = aligned(rows * VOCAB * 4)
        candidates = {label: lambda r=run: r(2) for label, run in runs.items()}
        candidates["reading the logits once"] = lambda: runner.runner_read(memory.ctypes.data, memory.size, 2)
        results[f"{rows} rows"] = measured(candidates, options.repeats)
        common.show(f"Sampling, {rows} rows of {VOCAB}, 2 threads", results[f"{rows} rows"], "us")
    return results


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=8192)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--target", default=harness.host_targets()[-1])
    options = parser.parse_args()
    rng, runner = np.random.default_rng(1), load_runner()
    results = {"decode": decode(runner, options, rng), "prefill": prefill(runner, options, rng), "sample": samples(runner, options, rng)}
    common.save("serve_ops", results)


if __name__ == "__main__":
    main()
