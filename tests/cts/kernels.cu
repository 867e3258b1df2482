// tests/cts/kernels.cu - the suite's kernels as device code: what kernels.c has for hosts, with the same parameter blocks. Made
// into kernels.ptx, which is committed, so that the suite needs no nvcc.
#include <cstdint>

#include "accrt/kernel.h"

extern "C" __global__ void everything(float* buffer, accrt_kernel_tensor_t tensor, uint8_t tiny, uint16_t narrow, uint32_t wide,
                                      int64_t symbol, uint64_t* workspace, const float* optional, double real) {
  const float* data = static_cast<const float*>(tensor.data);
  float sum = 0;
  for (int64_t i = 0; i < tensor.shape[0]; ++i)
    for (int64_t k = 0; k < tensor.shape[1]; ++k)
      sum += data[i * tensor.strides[0] + k * tensor.strides[1]];
  workspace[0] = 11;
  buffer[0] = sum;
  buffer[1] = (float)tiny;
  buffer[2] = (float)narrow;
  buffer[3] = (float)wide;
  buffer[4] = (float)symbol;
  buffer[5] = (float)workspace[0];
  buffer[6] = optional == nullptr ? -1.0f : optional[0];
  buffer[7] = (float)real;
  buffer[8] = expf(0.0f);
}

// Appends its number to a log. Only order keeps it right: nothing is atomic.
extern "C" __global__ void append(uint32_t* log, uint32_t number) {
  log[1 + log[0]] = number;
  ++log[0];
}

// Counts each workgroup in a cell of its own; its threads share memory that is nobody else's.
extern "C" __global__ void cover(uint32_t* cells) {
  extern __shared__ uint32_t local[];
  const uint32_t index = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  for (uint32_t i = threadIdx.x; i < 256; i += blockDim.x)
    local[i] = index + i;
  __syncthreads();
  if (threadIdx.x != 0)
    return;
  for (uint32_t i = 0; i < 256; ++i)
    if (local[i] != index + i)
      cells[index] += 1000000; // somebody else wrote here
  ++cells[index];
}

// Order shows in the result: neither commutative nor associative.
extern "C" __global__ void mix(uint32_t* target, const uint32_t* source, uint32_t number) {
  target[0] = target[0] * 31u + source[0] + number;
}

extern "C" __global__ void nothing() {}
