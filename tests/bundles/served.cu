// tests/bundles/served.cu - the kernels of served.h for CUDA, as PTX in served.ptx: one thread each.
#define SERVED_FUNCTION static __device__
#include "served.h"

static __device__ void need(int32_t failed) {
  if (failed)
    asm volatile("trap;");
}

static __device__ float exponential(float x) {
  return expf(x);
}
static __device__ float logarithm(float x) {
  return logf(x);
}

extern "C" __global__ void served_update_kernel(served_update_t p) {
  need(served_update_pages(p));
}

extern "C" __global__ void served_copy_kernel(served_copy_t p) {
  need(served_copy_rows(p));
}

extern "C" __global__ void served_step_kernel(served_step_t p) {
  need(served_forward(p));
}

extern "C" __global__ void served_greedy_kernel(served_greedy_t p) {
  need(served_take_greedy(p));
}

extern "C" __global__ void served_sample_kernel(served_sample_t p) {
  need(served_take_sample(p, exponential, logarithm));
}
