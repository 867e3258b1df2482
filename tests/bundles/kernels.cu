// tests/bundles/kernels.cu - the kernels of kernels.c for CUDA, as PTX in kernels.ptx. The CPU's twins of these are in
// tests/fakecuda/program_twins.c.
#include "accrt/kernel.h"

#include <cstdint>

extern "C" __global__ void empty() {}

extern "C" __global__ void __launch_bounds__(64) affine(const float* x, float* y, float alpha, float beta, int64_t n) {
  const int64_t i = (int64_t)blockIdx.x * 64 + threadIdx.x;
  if (i < n)
    y[i] = __fadd_rn(__fmul_rn(alpha, x[i]), beta);
}

extern "C" __global__ void add(const float* x, const float* y, float* z, int64_t n) {
  for (int64_t i = threadIdx.x; i < n; i += blockDim.x)
    z[i] = x[i] + (y != nullptr ? y[i] : 0.0f);
}

extern "C" __global__ void fail(int64_t code) {
  if (code != 0)
    asm volatile("trap;");
}

extern "C" __global__ void iota(int64_t* y, int64_t first, int64_t count) {
  for (int64_t i = threadIdx.x; i < count; i += blockDim.x)
    y[i] = first + i;
}

extern "C" __global__ void digit(int64_t* y, int64_t digit) {
  if (threadIdx.x == 0)
    *y = *y * 10 + digit;
}

extern "C" __global__ void total(accrt_kernel_tensor_t x, float* y) {
  const float* data = (const float*)x.data;
  float sum = 0;
  for (int64_t i = 0; i < x.shape[0]; ++i) {
    for (int64_t k = 0; k < x.shape[1]; ++k)
      sum += data[i * x.strides[0] + k * x.strides[1]];
  }
  *y = sum;
}

extern "C" __global__ void scratch(unsigned char* scratch, int64_t* y, int64_t size) {
  int64_t count = 0;
  for (int64_t i = 0; i < size; ++i)
    count += scratch[i] != 0;
  for (int64_t i = 0; i < size; ++i)
    scratch[i] = 0xAB;
  *y = count;
}

extern "C" __global__ void which(int64_t* y, const float*, int64_t, uint32_t) {
  *y = 1;
}

extern "C" __global__ void which_second(int64_t* y, const float*, int64_t, uint32_t) {
  *y = 2;
}

extern "C" __global__ void __launch_bounds__(16) reverse(const float* x, float* y, int64_t n) {
  extern __shared__ float local[];
  for (int64_t i = 0; i < n; i += 16) {
    if (i + threadIdx.x < n)
      local[threadIdx.x] = x[n - 1 - i - threadIdx.x];
    __syncthreads();
    if (i + threadIdx.x < n)
      y[i + threadIdx.x] = local[threadIdx.x];
    __syncthreads();
  }
}

// Parameters with gaps between them and behind them: one by one, and as one struct.
extern "C" __global__ void padded(int64_t* y, uint8_t a, int64_t n, uint16_t b) {
  *y = *y * 1000 + a + n + b;
}

struct padded_params {
  int64_t* y;
  uint8_t a;
  int64_t n;
  uint16_t b;
};

extern "C" __global__ void padded_block(padded_params p) {
  *p.y = *p.y * 1000 + p.a + p.n + p.b;
}
