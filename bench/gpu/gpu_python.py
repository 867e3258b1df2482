"""What launches and calls cost from Python, beside cuLaunchKernel from C and beside what a user
would call instead.

    gpu_python.py [--rounds R]

Rows: a trivial foreign call; a prepared launch with new arguments each time; a call of a function
of a bundle; cuda.core, torch, CuPy and Triton where they are found. Every row launches the same
kernel of 5 arguments on 32 elements, or replays a graph of it. The C figure comes from gpu_launch,
run by this script. Results are checked. Text to the terminal, JSON to gpu_python.json in
$ACCRT_BENCH_RESULTS.
"""
from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys

import accrt
import interleaved
from interleaved import Rows

BATCH, ELEMENTS = 300, 32
DEVICE = os.environ.get("ACCRT_DEVICE", "cuda:0")
RESULTS = os.environ.get("ACCRT_BENCH_RESULTS", ".")
PACK = os.environ.get("ACCRT_GPU_PACK", "")
SOURCE = """extern "C" __global__ void step(float* out, const float* x, const float* y, float scale, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = x[i] * scale + y[i];
}"""


def ptx() -> str:
    """The PTX that the C benchmarks carry: from their generated header."""
    for folder in (os.path.dirname(os.path.abspath(__file__)), os.path.join(PACK, "bench", "gpu")):
        path = os.path.join(folder, "kernels.h")
        if os.path.exists(path):
            lines = [line.strip() for line in open(path) if line.strip().startswith('"')]
            return "".join(json.loads(line) for line in lines)
    raise SystemExit("kernels.h is missing beside this script")


def own_rows(rows: Rows, device: accrt.Device):
    pack = accrt.KernelPack.of_module(device, ptx(), [accrt.DeviceKernel(
        "step0", [("out", "write"), ("x", "read"), ("y", "read"), ("scale", "f32"), ("n", "i32")], (ELEMENTS,))])
    pool = accrt.Pool(device)
    size = ELEMENTS * 4
    out, x, y = pool.buffer(size * BATCH), pool.buffer(size), pool.buffer(size)
    stream = accrt.Stream(device)
    ones = (ctypes.c_float * ELEMENTS)(*([1.0] * ELEMENTS))
    stream.copy(ones, x)
    stream.copy(ones, y)
    launch = accrt.Launch(device, pack.kernel("step0"))
    fire = launch.on(stream, (1,))
    o, xa, ya = out.address, x.address, y.address
    rows.add("accrt: prepared launch, 5 new arguments", lambda i: fire(o + i * size, xa, ya, i * 0.5, ELEMENTS), stream.synchronize)
    kernel = pack.kernel("step0")
    rows.add("accrt: accrt.launch, unprepared", lambda i: accrt.launch(stream, kernel, (1,), out, x, y, float(i), ELEMENTS),
             stream.synchronize)
    commands = accrt.Commands(device)
    commands.dispatch(kernel, (1,), out, x, y, 2.0, ELEMENTS)
    commands.finalize()
    rows.add("accrt: recorded commands, submitted", lambda i: commands.submit(stream), stream.synchronize)

    def verify() -> None:
        for i in range(BATCH):
            fire(o + i * size, xa, ya, i * 0.5, ELEMENTS)
        stream.synchronize()
        got = out.read().cast("f")
        assert all(got[i * ELEMENTS + 7] == 1.0 + i * 0.5 for i in range(BATCH)), "a launch had other arguments"
    verify()
    return pack, pool, launch


def call_row(rows: Rows, device: accrt.Device):
    path = os.path.join(PACK, "bundles", "step.accx")
    if not os.path.exists(path):
        print(f"{path} is missing: no row for a call of a function")
        return None
    session = accrt.Program(accrt.Bundle(path, device.instance), device).session()
    pool = accrt.Pool(device)
    x, out = pool.buffer(ELEMENTS * 4), pool.buffer(ELEMENTS * 4)
    bound = session.step.bind(accrt.Tensor(x, "f32", (ELEMENTS,)), out=accrt.Tensor(out, "f32", (ELEMENTS,)))
    submit = bound.submit
    rows.add("accrt: call of a prepared function", lambda i: submit(), session.stream.synchronize)
    return session, bound


def torch_rows(rows: Rows):
    import torch
    x = torch.ones(ELEMENTS, device="cuda")
    graph = torch.cuda.CUDAGraph()
    x.add_(1)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        x.add_(1)
    rows.add("torch: CUDAGraph.replay of one kernel", lambda i: graph.replay(), torch.cuda.synchronize)
    rows.add("torch: add_ of 32 elements", lambda i: x.add_(1), torch.cuda.synchronize)
    return graph, x


def cupy_row(rows: Rows):
    import cupy
    kernel = cupy.RawKernel(SOURCE, "step")
    out, x, y = (cupy.ones(ELEMENTS, cupy.float32) for _ in range(3))
    n = cupy.int32(ELEMENTS)
    rows.add("CuPy: RawKernel, 5 arguments", lambda i: kernel((1,), (ELEMENTS,), (out, x, y, cupy.float32(i), n)),
             cupy.cuda.Device().synchronize)


def triton_row(rows: Rows):
    import tempfile
    import importlib.util
    import torch
    text = ("import triton\nimport triton.language as tl\n@triton.jit\ndef step(out, x, y, scale, n, B: tl.constexpr):\n"
            "    i = tl.arange(0, B)\n    m = i < n\n"
            "    tl.store(out + i, tl.load(x + i, m) * scale + tl.load(y + i, m), m)\n")
    with tempfile.NamedTemporaryFile("w", suffix=".py", delete=False) as file:
        file.write(text)
    spec = importlib.util.spec_from_file_location("bench_triton_step", file.name)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    out, x, y = (torch.ones(ELEMENTS, device="cuda") for _ in range(3))
    module.step[(1,)](out, x, y, 2.5, ELEMENTS, B=32)
    rows.add("Triton: launch, 5 arguments", lambda i: module.step[(1,)](out, x, y, i * 0.5 + 0.1, ELEMENTS, B=32), torch.cuda.synchronize)


def cuda_core_row(rows: Rows):
    import torch
    from cuda.core import Device, LaunchConfig, Program, ProgramOptions, launch
    device = Device(0)
    device.set_current()
    stream = device.create_stream()
    arch = "sm_" + "".join(map(str, device.compute_capability))
    kernel = Program(SOURCE, code_type="c++", options=ProgramOptions(arch=arch)).compile("cubin").get_kernel("step")
    out, x, y = (torch.ones(ELEMENTS, device="cuda") for _ in range(3))
    config = LaunchConfig(grid=1, block=ELEMENTS)
    a, b, c = out.data_ptr(), x.data_ptr(), y.data_ptr()
    rows.add("cuda.core: launch, 5 arguments", lambda i: launch(stream, config, kernel, a, b, c, ctypes.c_float(i), ctypes.c_int(ELEMENTS)),
             stream.sync)


def c_figure() -> float | None:
    """cuLaunchKernel from C, in ns, from gpu_launch run now."""
    binary = os.path.join(PACK, "bin", "gpu_launch")
    if not os.path.exists(binary):
        return None
    subprocess.run([binary, "--rounds", "9"], check=True, stdout=subprocess.DEVNULL)
    rows = json.load(open(os.path.join(RESULTS, "gpu_launch.json")))["rows"]
    return next(r["median"] for r in rows if r["name"].startswith("cuLaunchKernel, one kernel: submit"))


def main() -> int:
    rounds = int(sys.argv[sys.argv.index("--rounds") + 1]) if "--rounds" in sys.argv else 21
    device = accrt.default_instance().device(DEVICE)
    rows, keep = Rows(BATCH), []
    trivial = ctypes.CDLL(None).getpid
    rows.add("ctypes call of a trivial C function", lambda i: trivial(), lambda: None)
    keep.append(own_rows(rows, device))
    for add in (call_row,):
        keep.append(add(rows, device))
    for add in (torch_rows, cupy_row, triton_row, cuda_core_row):
        try:
            keep.append(add(rows))
        except Exception as error:  # a peer that is not there, or of another version
            print(f"{add.__name__}: left out: {type(error).__name__}: {str(error)[:120]}")
    rows.run(rounds)
    c = c_figure()
    if c:
        print(f"  {'cuLaunchKernel from C (gpu_launch, same run)':52} {c:9.0f} ns")
    table = rows.table()
    for row in table:
        print(f"  {row['name']:52} {row['median']:9.0f} ns   p25 {row['p25']:9.0f}  p75 {row['p75']:9.0f}" + (f"   {row['median'] / c:5.2f} x C" if c else ""))
    interleaved.save("gpu_python.json", "From Python", ([{"name": "cuLaunchKernel from C", "median": c, "unit": "ns"}] if c else []) + table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
