/* tests/fakecuda/cts_twins.c - the conformance suite's device kernels (tests/cts/kernels.cu) on the CPU. */
#include "fakecuda.h"

#include "accrt/kernel.h"

#define PARAM(type, index) (*(type const*)params[index])

FAKECUDA_KERNEL(everything) {
  (void)block;
  float* buffer = PARAM(float*, 0);
  const accrt_kernel_tensor_t tensor = PARAM(accrt_kernel_tensor_t, 1);
  uint64_t* workspace = PARAM(uint64_t*, 6);
  const float* optional = PARAM(const float*, 7);
  const float* data = tensor.data;
  float sum = 0;
  for (int64_t i = 0; i < tensor.shape[0]; ++i) {
    for (int64_t k = 0; k < tensor.shape[1]; ++k)
      sum += data[i * tensor.strides[0] + k * tensor.strides[1]];
  }
  workspace[0] = 11;
  buffer[0] = sum;
  buffer[1] = (float)PARAM(uint8_t, 2);
  buffer[2] = (float)PARAM(uint16_t, 3);
  buffer[3] = (float)PARAM(uint32_t, 4);
  buffer[4] = (float)PARAM(int64_t, 5);
  buffer[5] = (float)workspace[0];
  buffer[6] = optional == NULL ? -1.0f : optional[0];
  buffer[7] = (float)PARAM(double, 8);
  buffer[8] = 1.0f;
  return 0;
}

FAKECUDA_KERNEL(append) {
  (void)block;
  uint32_t* log = PARAM(uint32_t*, 0);
  log[1 + log[0]] = PARAM(uint32_t, 1);
  ++log[0];
  return 0;
}

FAKECUDA_KERNEL(cover) {
  uint32_t* cells = PARAM(uint32_t*, 0);
  uint32_t* local = block->shared;
  const uint32_t index =
      block->index[0] + block->grid[0] * (block->index[1] + block->grid[1] * block->index[2]);
  if (block->shared_bytes != 1024)
    return 1;
  for (uint32_t i = 0; i < 256; ++i)
    local[i] = index + i;
  ++cells[index];
  return 0;
}

FAKECUDA_KERNEL(mix) {
  (void)block;
  uint32_t* target = PARAM(uint32_t*, 0);
  target[0] = target[0] * 31u + PARAM(const uint32_t*, 1)[0] + PARAM(uint32_t, 2);
  return 0;
}

FAKECUDA_KERNEL(nothing) {
  (void)params;
  (void)block;
  return 0;
}

/* traits.cu. What depends on other workgroups is what those would have written. */
FAKECUDA_KERNEL(in_cluster) {
  const uint32_t cluster = 4;
  uint32_t* out = PARAM(uint32_t*, 0);
  if (block->index[0] % cluster != 0)
    return 0;
  out[2 * (block->index[0] / cluster)] =
      cluster * (block->index[0] + 1) + cluster * (cluster - 1) / 2;
  out[2 * (block->index[0] / cluster) + 1] = cluster;
  return 0;
}

FAKECUDA_KERNEL(over_grid) {
  PARAM(uint32_t*, 0)[block->index[0]] = block->index[0] + 1;
  PARAM(uint32_t*, 1)[block->index[0]] = block->grid[0] * (block->grid[0] + 1) / 2;
  return 0;
}

FAKECUDA_KERNEL(overlapping) {
  (void)block;
  uint32_t* log = PARAM(uint32_t*, 0);
  log[1 + log[0]] = PARAM(uint32_t, 1);
  ++log[0];
  return 0;
}

FAKECUDA_KERNEL(much_shared) {
  uint32_t* words = block->shared;
  uint32_t wrong = 0;
  for (uint32_t i = 0; i < block->shared_bytes / 4; ++i)
    words[i] = i + block->index[0];
  for (uint32_t i = 0; i < block->shared_bytes / 4; ++i)
    wrong += words[i] != i + block->index[0];
  PARAM(uint32_t*, 0)[2 * block->index[0]] = block->shared_bytes;
  PARAM(uint32_t*, 0)[2 * block->index[0] + 1] = wrong;
  return 0;
}
