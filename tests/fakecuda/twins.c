/* tests/fakecuda/twins.c - the kernels of transcript_kernels.cu on the CPU. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "fakecuda.h"

#include <string.h>
#include <time.h>

#define PARAM(type, index) (*(type const*)params[index])

typedef struct tx_block {
  uint64_t a;
  uint32_t b;
  uint16_t c;
  uint8_t d[5];
} tx_block_t;

FAKECUDA_KERNEL(tx_add) {
  uint32_t* target = PARAM(uint32_t*, 0);
  for (uint32_t t = 0; t < block->block[0]; ++t) {
    const uint32_t i = block->index[0] * block->block[0] + t;
    if (i < PARAM(uint32_t, 2))
      target[i] += PARAM(uint32_t, 1);
  }
  return 0;
}

FAKECUDA_KERNEL(tx_scale_add) {
  float* out = PARAM(float*, 0);
  for (uint32_t t = 0; t < block->block[0]; ++t) {
    const uint32_t i = block->index[0] * block->block[0] + t;
    if ((int)i < PARAM(int, 4))
      out[i] = PARAM(const float*, 1)[i] * PARAM(float, 3) + PARAM(const float*, 2)[i];
  }
  return 0;
}

FAKECUDA_KERNEL(tx_mix) {
  (void)block;
  uint32_t* cell = PARAM(uint32_t*, 0);
  *cell = *cell * 31u + *PARAM(const uint32_t*, 1) + PARAM(uint32_t, 2);
  return 0;
}

FAKECUDA_KERNEL(tx_params) {
  (void)block;
  const tx_block_t given = PARAM(tx_block_t, 1);
  PARAM(uint64_t*, 3)
  [0] = PARAM(uint8_t, 0) + PARAM(uint16_t, 2) + given.a + given.b + given.c + given.d[4];
  return 0;
}

FAKECUDA_KERNEL(tx_late) {
  (void)block;
  const uint64_t wait_ns = PARAM(uint64_t, 0);
  struct timespec left = {(time_t)(wait_ns / 1000000000u), (long)(wait_ns % 1000000000u)};
  nanosleep(&left, NULL);
  return 0;
}

FAKECUDA_KERNEL(tx_bounded) {
  for (uint32_t t = 0; t < block->block[0]; ++t)
    PARAM(uint32_t*, 0)[t] = t;
  return 0;
}

FAKECUDA_KERNEL(tx_shared) {
  uint32_t* words = block->shared;
  for (uint32_t i = 0; i < PARAM(uint32_t, 1); ++i)
    words[i] = i;
  PARAM(uint32_t*, 0)[block->index[0]] = words[PARAM(uint32_t, 1) - 1];
  return 0;
}

FAKECUDA_KERNEL(tx_nothing) {
  (void)params;
  (void)block;
  return 0;
}

FAKECUDA_KERNEL(tx_store) {
  (void)block;
  *PARAM(uint32_t* volatile, 0) = 1;
  return 0;
}

FAKECUDA_KERNEL(tx_trap) {
  (void)params;
  (void)block;
  return 1;
}
