"""What it costs to launch one's own kernel from Python on torch's tensors, nothing prepared by the
caller, beside what a user would call instead.

    kernel_launch.py [--rounds R]

Every row launches a kernel of three tensors and two numbers (out = x * scale + y, 32 elements) with
the same torch tensors, the number changing each time: accrt.Kernel.from_cuda, Triton, CuPy's
RawKernel (which takes CuPy arrays: torch's come by cupy.from_dlpack or by the array interface),
cuda.core (addresses). Times are those of the caller's thread, on streams that are not full. Results
are checked. Text to the terminal, JSON to gpu_kernel_launch.json in $ACCRT_BENCH_RESULTS.
"""
from __future__ import annotations

import ctypes
import importlib.util
import sys
import tempfile

import accrt
import interleaved

BATCH, ELEMENTS = 200, 32
SOURCE = """extern "C" __global__ void step(float* out, const float* x, const float* y, float scale, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = x[i] * scale + y[i];
}"""
PARAMETERS = [("out", "write f32"), ("x", "read f32"), ("y", "read f32"), ("scale", "f32"), ("n", "i32")]
TRITON = """import triton
import triton.language as tl
@triton.jit
def step(out, x, y, scale, n, B: tl.constexpr):
    i = tl.arange(0, B)
    m = i < n
    tl.store(out + i, tl.load(x + i, m) * scale + tl.load(y + i, m), m)
"""


class Rows(interleaved.Rows):
    """Of operations that write a tensor with their number, or none."""

    def add(self, name: str, operation, out=None) -> None:
        """out: the tensor that the operation writes, for the check."""
        if out is not None:
            out.zero_()
            torch.cuda.synchronize()
            operation(3)
            torch.cuda.synchronize()
            assert (out == 3 * 0.5 + 1).all(), f"{name} gives {out[:4].tolist()}"
        super().add(name, operation, torch.cuda.synchronize)


def accrt_rows(rows: Rows, out, x, y) -> None:
    kernel = accrt.Kernel.from_cuda(SOURCE, "step", PARAMETERS, block=ELEMENTS)
    own = accrt.Kernel.from_cuda(SOURCE, "step", PARAMETERS, lambda v: (v["n"] + 31) // 32, block=ELEMENTS)
    kernel(out, x, y, 1.0, ELEMENTS, grid=1)
    own(out, x, y, 1.0, ELEMENTS)
    rows.add("accrt: Kernel.from_cuda, grid given", lambda i: kernel(out, x, y, i * 0.5, ELEMENTS, grid=1), out)
    rows.add("accrt: Kernel.from_cuda, the kernel's own grid", lambda i: own(out, x, y, i * 0.5, ELEMENTS), out)


def accrt_triton_row(rows: Rows, out, x, y) -> None:
    kernel = accrt.Kernel.from_triton(triton_step(), {"out": "*fp32", "x": "*fp32", "y": "*fp32", "scale": "fp32", "n": "i32", "B": 32}, num_warps=1)
    kernel(out, x, y, 1.0, ELEMENTS, grid=1)
    rows.add("accrt: Kernel.from_triton, grid given", lambda i: kernel(out, x, y, i * 0.5, ELEMENTS, grid=1), out)


def triton_step():
    with tempfile.NamedTemporaryFile("w", suffix=".py", delete=False) as file:
        file.write(TRITON)
    spec = importlib.util.spec_from_file_location("bench_triton_step", file.name)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.step


def triton_row(rows: Rows, out, x, y) -> None:
    step = triton_step()
    rows.add("Triton: step[(1,)](...)", lambda i: step[(1,)](out, x, y, i * 0.5 + 0.0, ELEMENTS, B=32, num_warps=1), out)


def cupy_rows(rows: Rows, out, x, y) -> None:
    import cupy
    kernel, n = cupy.RawKernel(SOURCE, "step"), cupy.int32(ELEMENTS)

    def from_torch(i) -> None:
        with cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream):
            kernel((1,), (ELEMENTS,), (cupy.from_dlpack(out), cupy.from_dlpack(x), cupy.from_dlpack(y), cupy.float32(i * 0.5), cupy.int32(ELEMENTS)))

    arrays = [cupy.from_dlpack(tensor) for tensor in (out, x, y)]
    rows.add("CuPy: RawKernel, torch's tensors, torch's stream", from_torch, out)
    rows.add("CuPy: RawKernel, arrays made before, its own stream", lambda i: kernel((1,), (ELEMENTS,), (*arrays, cupy.float32(i * 0.5), n)), out)
    own = accrt.Kernel.from_cuda(SOURCE, "step", PARAMETERS, block=ELEMENTS)
    own(*arrays, 1.0, ELEMENTS, grid=1)
    rows.add("accrt: Kernel.from_cuda, CuPy's arrays", lambda i: own(*arrays, i * 0.5, ELEMENTS, grid=1), out)


def cuda_core_row(rows: Rows, out, x, y) -> None:
    from cuda.core import Device, LaunchConfig, Program, ProgramOptions, launch
    device = Device(0)
    device.set_current()
    arch = "sm_" + "".join(map(str, device.compute_capability))
    kernel = Program(SOURCE, code_type="c++", options=ProgramOptions(arch=arch)).compile("cubin").get_kernel("step")
    config, stream = LaunchConfig(grid=1, block=ELEMENTS), device.create_stream()
    rows.add("cuda.core: launch, data_ptr() of each", lambda i: launch(stream, config, kernel, out.data_ptr(), x.data_ptr(), y.data_ptr(),
                                                                       ctypes.c_float(i * 0.5), ctypes.c_int(ELEMENTS)), out)


def torch_rows(rows: Rows, out, x, y) -> None:
    rows.add("torch: torch.from_dlpack of a tensor", lambda i: torch.from_dlpack(x))
    rows.add("torch: add_ of 32 elements", lambda i: out.add_(1))


def main() -> int:
    if interleaved.says_help(__doc__):
        return 0
    global torch
    import torch

    rounds = int(sys.argv[sys.argv.index("--rounds") + 1]) if "--rounds" in sys.argv else 21
    rows = Rows(BATCH)
    out, x, y = (torch.ones(ELEMENTS, device="cuda") for _ in range(3))
    for add in (accrt_rows, accrt_triton_row, triton_row, cupy_rows, cuda_core_row, torch_rows):
        try:
            add(rows, out, x, y)
        except Exception as error:  # a peer that is not there, or of another version
            print(f"{add.__name__}: left out: {type(error).__name__}: {str(error)[:300]}")
    rows.run(rounds)
    table = rows.table()
    for row in table:
        samples = rows.samples[row["name"]]
        print(f"  {row['name']:52} {row['median']:9.0f} ns   p25 {row['p25']:9.0f}  p75 {row['p75']:9.0f}   lowest {min(samples):9.0f}  highest {max(samples):9.0f}")
    interleaved.save("gpu_kernel_launch.json", "A kernel of one's own from Python", table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
