"""The kernel of this example: what it takes, and what it has to give."""
import pathlib

import numpy as np

import accrt

HERE = pathlib.Path(__file__).resolve().parent

squared_relu = accrt.Kernel.from_c(
    HERE / "squared_relu.c", "squared_relu",
    [("x", "read f32"), ("y", "write f32"), ("n", "symbol"), ("scale", "f32")],
    grid=lambda v: (v["n"] + 4095) // 4096, cuda=HERE / "squared_relu.cu", block=(256,))


def reference(x, n, scale):
    return scale * np.maximum(x, 0) ** 2


if __name__ == "__main__":
    for n in (0, 1, 4095, 4096, 4097, 100_000):
        x = np.random.default_rng(n).standard_normal(n).astype(np.float32)
        y = np.full(n, np.nan, np.float32)
        squared_relu(x, y, n, 0.5)
        np.testing.assert_allclose(y, reference(x, n, 0.5), rtol=1e-6)
    print("the kernel gives what numpy gives")
