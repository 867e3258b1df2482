/* tests/fakecuda/program_twins.c - the device kernels of tests/bundles/kernels.cu on the CPU: one call is one block. */
#include "fakecuda.h"

#include "accrt/kernel.h"

#include <stddef.h>

#define PARAM(type, index) (*(type const*)params[index])
#define UNUSED_ARGUMENTS ((void)params, (void)block)

FAKECUDA_KERNEL(empty) {
  UNUSED_ARGUMENTS;
  return 0;
}

FAKECUDA_KERNEL(affine) {
  const int64_t begin = (int64_t)block->index[0] * 64;
  const int64_t n = PARAM(int64_t, 4);
  for (int64_t i = begin; i < begin + 64 && i < n; ++i) {
    const float product = PARAM(float, 2) * PARAM(const float*, 0)[i];
    PARAM(float*, 1)[i] = product + PARAM(float, 3);
  }
  return 0;
}

FAKECUDA_KERNEL(add) {
  (void)block;
  const float* y = PARAM(const float*, 1);
  for (int64_t i = 0; i < PARAM(int64_t, 3); ++i)
    PARAM(float*, 2)[i] = PARAM(const float*, 0)[i] + (y != NULL ? y[i] : 0.0f);
  return 0;
}

FAKECUDA_KERNEL(fail) {
  (void)block;
  return PARAM(int64_t, 0) != 0;
}

FAKECUDA_KERNEL(iota) {
  (void)block;
  for (int64_t i = 0; i < PARAM(int64_t, 2); ++i)
    PARAM(int64_t*, 0)[i] = PARAM(int64_t, 1) + i;
  return 0;
}

FAKECUDA_KERNEL(digit) {
  (void)block;
  int64_t* y = PARAM(int64_t*, 0);
  *y = *y * 10 + PARAM(int64_t, 1);
  return 0;
}

FAKECUDA_KERNEL(total) {
  (void)block;
  const accrt_kernel_tensor_t x = PARAM(accrt_kernel_tensor_t, 0);
  const float* data = x.data;
  float sum = 0;
  for (int64_t i = 0; i < x.shape[0]; ++i) {
    for (int64_t k = 0; k < x.shape[1]; ++k)
      sum += data[i * x.strides[0] + k * x.strides[1]];
  }
  *PARAM(float*, 1) = sum;
  return 0;
}

FAKECUDA_KERNEL(scratch) {
  (void)block;
  unsigned char* scratch = PARAM(unsigned char*, 0);
  int64_t count = 0;
  for (int64_t i = 0; i < PARAM(int64_t, 2); ++i) {
    count += scratch[i] != 0;
    scratch[i] = 0xAB;
  }
  *PARAM(int64_t*, 1) = count;
  return 0;
}

FAKECUDA_KERNEL(which) {
  (void)block;
  *PARAM(int64_t*, 0) = 1;
  return 0;
}

FAKECUDA_KERNEL(which_second) {
  (void)block;
  *PARAM(int64_t*, 0) = 2;
  return 0;
}

FAKECUDA_KERNEL(reverse) {
  const int64_t n = PARAM(int64_t, 2);
  float* local = block->shared;
  if (block->shared_bytes < 16 * sizeof(float))
    return 1;
  for (int64_t i = 0; i < n; i += 16) {
    const int64_t count = n - i < 16 ? n - i : 16;
    for (int64_t k = 0; k < count; ++k)
      local[k] = PARAM(const float*, 0)[n - 1 - i - k];
    for (int64_t k = 0; k < count; ++k)
      PARAM(float*, 1)[i + k] = local[k];
  }
  return 0;
}

FAKECUDA_KERNEL(padded) {
  (void)block;
  int64_t* y = PARAM(int64_t*, 0);
  *y = *y * 1000 + PARAM(uint8_t, 1) + PARAM(int64_t, 2) + PARAM(uint16_t, 3);
  return 0;
}

typedef struct padded_params {
  int64_t* y;
  uint8_t a;
  int64_t n;
  uint16_t b;
} padded_params_t;
FAKECUDA_KERNEL(padded_block) {
  (void)block;
  const padded_params_t p = PARAM(padded_params_t, 0);
  *p.y = *p.y * 1000 + p.a + p.n + p.b;
  return 0;
}

FAKECUDA_KERNEL(set_word) {
  (void)block;
  *PARAM(uint32_t*, 0) = PARAM(uint32_t, 1);
  return 0;
}
