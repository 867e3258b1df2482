"""Work of this library in a graph that another one captures, under the stand-in for CUDA's driver,
which runs what is not ordered in any order: capture_orders.py in processes of its own."""
from __future__ import annotations

import subprocess
import sys

import pytest

import kernel_harness as kh
import rotation
from test_standin import environment, needs_stand_in, ROOT, STAND_IN

SEED = rotation.SEED
PTX = """
.version 7.0
.target sm_80
.address_size 64
.visible .entry mix(.param .u64 x, .param .u64 y, .param .u32 factor, .param .u32 n) { ret; }
.visible .entry affine_of(.param .u64 x, .param .u64 y, .param .u64 n) { ret; }
"""
TWINS = """
#include "fakecuda.h"
#include <math.h>
FAKECUDA_KERNEL(mix) {
  const float* x = *(const float* const*)params[0];
  float* y = *(float* const*)params[1];
  const uint32_t factor = *(const uint32_t*)params[2], n = *(const uint32_t*)params[3];
  for (uint32_t i = block->index[0] * 256; i < n && i < (block->index[0] + 1) * 256; ++i)
    y[i] = fmodf(y[i] * (float)factor + x[i], 65521);
  return 0;
}
FAKECUDA_KERNEL(affine_of) {
  const float* x = *(const float* const*)params[0];
  float* y = *(float* const*)params[1];
  const int64_t n = *(const int64_t*)params[2];
  for (int64_t i = (int64_t)block->index[0] * 256; i < n && i < ((int64_t)block->index[0] + 1) * 256; ++i)
    y[i] = fmodf(x[i] * 2 + 1, 65521);
  return 0;
}
"""


@needs_stand_in
@pytest.mark.parametrize("settings", [{}, {"delay_us": 300}, {"devices": 1, "arch": 80}], ids=["plain", "late", "sm_80"])
def test_random_graphs_keep_the_order_of_their_streams(tmp_path, settings):
    import accrt
    from accrt.compiler import compile, Module, TensorType

    (tmp_path / "orders.ptx").write_text(PTX)
    (tmp_path / "twins.c").write_text(TWINS)
    subprocess.run(["cc", "-std=gnu11", "-O1", f"-I{ROOT / 'tests/fakecuda'}", "-shared", "-fPIC", "-o", tmp_path / "twins.so", tmp_path / "twins.c", "-lm"],
                   check=True)
    kernel = accrt.Kernel.from_ptx(tmp_path / "orders.ptx", "affine_of", [("x", "read f32"), ("y", "write f32"), ("n", "symbol")],
                                   lambda v: (v["n"] + 255) // 256, block=256)
    m = Module("orders")
    n = m.symbol("n", maximum=1 << 16)
    f = m.function("affine")
    f.result("y", f.kernel(kernel, [f.input("x", "f32", [n])], [TensorType("f32", (n,))], n=n)[0])
    compile(m, tmp_path / "orders.accx", targets=["ptx"])
    seed = SEED + 1000 * len(settings)
    rotation.seed()
    env = dict(environment(seed=seed % 100000, **settings), FAKECUDA_KERNELS=f"{tmp_path / 'twins.so'}:{STAND_IN / 'twins.so'}",
               ORDER_BUNDLE=str(tmp_path / "orders.accx"))
    done = subprocess.run([sys.executable, kh.ROOT / "tests/python/capture_orders.py", tmp_path / "orders.ptx", str(seed), "30"], env=env, cwd=ROOT,
                          capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and "30 graphs" in done.stdout, done.stdout + done.stderr
