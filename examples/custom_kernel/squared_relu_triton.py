"""The same for NVIDIA GPUs as a Triton function, compiled ahead of time without a GPU, and the host
kernel with it in a bundle."""
import triton
import triton.language as tl
from kernel import HERE

import accrt


@triton.jit
def squared_relu_on_gpu(x, y, n, scale, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    positive = tl.maximum(tl.load(x + i, i < n), 0.0)
    tl.store(y + i, scale * positive * positive, i < n)


on_gpu = accrt.Kernel.from_triton(
    squared_relu_on_gpu, {"x": "*fp32", "y": "*fp32", "n": "i64", "scale": "fp32", "BLOCK": 1024},
    grid=lambda v: (v["n"] + 1023) // 1024, writes=["y"], target=("sm_80", "sm_90"))

squared_relu_by_triton = accrt.Kernel.from_c(
    HERE / "squared_relu.c", "squared_relu_by_triton",
    [("x", "read f32"), ("y", "write f32"), ("n", "symbol"), ("scale", "f32")],
    grid=lambda v: (v["n"] + 4095) // 4096, entry="squared_relu", cuda=on_gpu)
