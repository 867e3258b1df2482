"""Products of a few f16 rows with quantized weights of 28672 x 8192 on a GPU, beside the time of
reading the weights' bytes, and tinygemm.

    gpu_packed.py [--rounds R] [--bundles FOLDER] [--layouts LAYOUT,...]

Bundles are those of make_packed.py. Each layout has three copies of its weight, of random bytes,
which outgrow the second-level cache; prepared calls of one product each take them in turn, 42 of
them between two events. Each ratio is to the time of the layout's bytes at the speed of a device
copy, measured in turn with them. Results of some columns are compared with float64. tinygemm is
torch's 4-bit kernel, bf16 in groups of 128, in a CUDA graph of as many launches. Text to the
terminal, JSON to gpu_packed.json in $ACCRT_BENCH_RESULTS.
"""
from __future__ import annotations

import json
import os
import statistics
import sys
import time

import accrt
import numpy as np
from accrt.compiler import encodings
from make_packed import CHOSEN, COPIES, K, N, ROWS, weight

DEVICE = os.environ.get("ACCRT_DEVICE", "cuda:0")
RESULTS = os.environ.get("ACCRT_BENCH_RESULTS", ".")
CALLS, COPIED = 14 * COPIES, 1 << 30
#: What the ratio is to be at most: 1 / 0.8 for 8-bit floats.
ASKED = {"i4_group": 1.3, "q4_k": 1.3, "mxfp4": 1.3, "nvfp4": 1.3, "f8_channel": 1.25}
SAFETENSORS = {"f8e4m3fn": "F8_E4M3", "f8e8m0": "F8_E8M0", "f16": "F16", "f32": "F32"}


def option(name: str, default):
    return type(default)(sys.argv[sys.argv.index(name) + 1]) if name in sys.argv else default


def safetensors(weights: dict[str, encodings.Quantized]) -> bytearray:
    """The weights as a file in memory: their components beside one another."""
    header, arrays, at = {}, [], 0
    for name, q in weights.items():
        for role, array in q.components.items():
            flat = np.ascontiguousarray(array).reshape(-1)
            header[name + ("" if role == "data" else "." + role)] = {
                "dtype": SAFETENSORS.get(q.component_type(role), "U8"), "shape": [flat.size], "data_offsets": [at, at + flat.nbytes]}
            arrays.append(flat.view(np.uint8))
            at += flat.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 16)
    made = bytearray(8 + len(text) + at)
    made[: 8 + len(text)] = len(text).to_bytes(8, "little") + text
    view, begin = np.frombuffer(made, np.uint8), 8 + len(text)
    for flat in arrays:
        view[begin : begin + flat.size] = flat
        begin += flat.size
    return made


def some_rows(q: encodings.Quantized, picked: np.ndarray) -> np.ndarray:
    """Values of some rows of a weight, in float64."""
    parts = {role: array if role == "global_scale" else array[picked] for role, array in q.components.items()}
    return encodings.dequantize(encodings.Quantized(q.layout, (len(picked), K), parts, q.group, q.dtype, q.types)).astype(np.float64)


def check(name: str, x: np.ndarray, w: np.ndarray, got: np.ndarray) -> None:
    """Exact products summed in f32, then rounded to f16 (docs/decisions/packed-kernels.md); minima
    count fourfold at most."""
    x = x.astype(np.float64)
    exact = x @ w.T
    limit = (4 if name.startswith(("q4_k", "q5_k")) else 1) * (K + 64) * 2.0**-24 * (np.abs(x) @ np.abs(w).T) + 2.0**-10 * np.abs(exact) + 2.0**-20
    error = np.abs(got.astype(np.float64) - exact)
    assert (np.abs(exact) < 60000).all() and (error <= limit).all(), f"{name}: error {error.max():.3g} where {limit.max():.3g} may be"


def timed(torch, stream, before, run) -> float:
    """Microseconds on the device from before to after what `run` enqueues to a stream, behind work
    that lasts until all is enqueued."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    stream.synchronize()
    before()
    begin.record(stream)
    run()
    end.record(stream)
    end.synchronize()
    return begin.elapsed_time(end) * 1e3


def device_copy(torch, stream):
    """Enqueues four copies of COPIED bytes to a stream."""
    source, target = (torch.ones(COPIED, dtype=torch.uint8, device="cuda") for _ in range(2))

    def copy() -> None:
        with torch.cuda.stream(stream):
            for _ in range(4):
                target.copy_(source)

    return copy


def sampled(torch, stream, before, entries: dict, rounds: int) -> dict[str, list[float]]:
    """Microseconds of one call, as often as there are rounds; all in turn. entries: by name, what
    enqueues calls, and how many."""
    samples: dict[str, list[float]] = {name: [] for name in entries}
    for turn in range(rounds + 2):
        for name, (run, count) in entries.items():
            taken = timed(torch, stream, before, run) / count
            if turn >= 2:
                samples[name].append(taken)
    return samples


class Layout:
    """The calls of a layout, checked. `run(rows)` enqueues CALLS of them."""

    def __init__(self, name: str, path: str, device: accrt.Device, stream: accrt.Stream, random: np.random.Generator) -> None:
        import torch
        weights = {f"w{i}": weight(name, random) for i in range(COPIES)}
        self.bytes = sum(a.nbytes for a in weights["w0"].components.values())
        source = accrt.Weights(safetensors(weights), device.instance)
        self.program = accrt.Program(accrt.Bundle(path, device.instance), device, weights=[source], by_name=True)
        self.session, self.calls, self.keep = self.program.session(stream=stream), {}, []
        picked = np.unique(np.r_[random.integers(0, N, 60), 0, N - 1])
        values = [some_rows(q, picked) for q in weights.values()]
        for rows in ROWS:
            x = random.standard_normal((rows, K)).astype(np.float16)
            given = torch.from_numpy(x).cuda()
            for i in range(COPIES):
                y = torch.full((rows, N), float("nan"), device="cuda", dtype=torch.float16)
                torch.cuda.synchronize()
                call = self.session.function(f"product{i}").bind(given, out=y)
                call()
                got = y.cpu().numpy()
                assert np.isfinite(got).all(), f"{name}, {rows} rows: not finite"
                check(f"{name}, {rows} rows, copy {i}", x, values[i], got[:, picked])
                self.calls.setdefault(rows, []).append(call)
                self.keep.append((given, y))

    def run(self, rows: int) -> None:
        submits = [call.submit for call in self.calls[rows]]
        for i in range(CALLS):
            submits[i % COPIES]()


def tinygemm(torch) -> dict:
    """A graph for each number of rows; none where torch has no such kernel."""
    group, graphs = 128, {}
    weights = [torch.ops.aten._convert_weight_to_int4pack(torch.randint(0, 256, (N, K // 2), dtype=torch.uint8, device="cuda"), 8)
               for _ in range(COPIES)]
    scales = (torch.rand(K // group, N, 2, device="cuda") * 0.01).bfloat16()
    for rows in ROWS:
        x = torch.randn(rows, K, device="cuda").bfloat16()
        torch.ops.aten._weight_int4pack_mm(x, weights[0], group, scales)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for i in range(CALLS):
                torch.ops.aten._weight_int4pack_mm(x, weights[i % COPIES], group, scales)
        graphs[rows] = (graph, x, weights, scales)
    return graphs


def main() -> int:
    import torch
    rounds = option("--rounds", 21)
    folder = option("--bundles", os.path.join(os.environ.get("ACCRT_GPU_PACK", "."), "bundles"))
    wanted = option("--layouts", ",".join(CHOSEN)).split(",")
    paths = {name: os.path.join(folder, f"packed_{name}.accx") for name in wanted}
    missing = [path for path in paths.values() if not os.path.exists(path)]
    if missing:
        print(f"skipped: no {missing[0]} (make_packed.py makes it where nvcc is)")
        return 0
    device, seed = accrt.default_instance().device(DEVICE), int(time.time())
    print(f"seed {seed}; {CALLS} calls between two events, {COPIES} copies of each weight")
    random = np.random.default_rng(seed)
    torch.manual_seed(seed)
    theirs = torch.cuda.Stream()
    stream = accrt.Stream.wrap(device, theirs)
    copy = device_copy(torch, theirs)

    def replay(graph) -> None:
        with torch.cuda.stream(theirs):
            graph.replay()

    entries, sizes = {"copy": (copy, 4)}, {}
    for name, path in paths.items():
        layout = Layout(name, path, device, stream, random)
        for rows in ROWS:
            key = f"{name}, {rows} rows"
            entries[key] = (lambda layout=layout, rows=rows: layout.run(rows), CALLS)
            sizes[key] = (layout.bytes, ASKED.get(name))
    print("results checked", flush=True)
    try:
        for rows, kept in tinygemm(torch).items():
            key = f"tinygemm (torch), {rows} rows"
            entries[key] = (lambda kept=kept: replay(kept[0]), CALLS)
            sizes[key] = (N * K // 2 + K // 128 * N * 4, None)
    except Exception as error:  # noqa: BLE001 - a peer that is not there is no failure
        print(f"tinygemm: left out: {type(error).__name__}: {str(error)[:150]}")
    samples = sampled(torch, theirs, copy, entries, rounds)
    speed = 2 * COPIED / statistics.median(samples.pop("copy"))  # bytes in a microsecond
    print(f"  a device copy reads and writes {speed / 1e6:.2f} TB/s")
    table = [{"name": "device copy (torch), read and written", "median": speed / 1e6, "unit": "TB/s"}]
    for name, values in samples.items():
        size, asked = sizes[name]
        median, (low, _, high) = statistics.median(values), statistics.quantiles(values, n=4)
        ratio = median / (size / speed)
        row = {"name": name, "median": median, "p25": low, "p75": high, "unit": "us", "ratio": ratio, "against": "its bytes at that speed"}
        print(f"  {name:28} {median:7.1f} us   p25 {low:7.1f}  p75 {high:7.1f}   {ratio:5.2f} x {size / 1e6:.0f} MB at that speed"
              + (f"   asked <= {asked}" if asked else ""))
        table.append({**row, "asked": asked} if asked else row)
    with open(os.path.join(RESULTS, "gpu_packed.json"), "w") as file:
        json.dump({"title": f"Products with quantized weights, {N} x {K}, f16", "rows": table}, file, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
