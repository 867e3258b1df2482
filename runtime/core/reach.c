/* runtime/core/reach.c - computes the bytes that a strided tensor covers, with checks for overflow.
 * It does not know the tensor's address. */
#include "runtime/core/reach.h"

/* Computes the lowest and the highest element, relative to element 0. */
static bool span(uint32_t rank, const int64_t* shape, const int64_t* strides, int64_t* out_low,
                 int64_t* out_high) {
  for (uint32_t i = 0; i < rank; ++i) {
    int64_t steps;
    if (__builtin_mul_overflow(shape[i] - 1, strides[i], &steps))
      return false;
    int64_t* const end = steps < 0 ? out_low : out_high;
    if (__builtin_add_overflow(*end, steps, end))
      return false;
  }
  return true;
}

bool accrt_reach_measure(uint32_t rank, const int64_t* shape, const int64_t* strides, uint32_t bits,
                         accrt_reach_bytes_t* out_reach) {
  *out_reach = (accrt_reach_bytes_t){0, 0};
  for (uint32_t i = 0; i < rank; ++i) {
    if (shape[i] == 0)
      return true;
  }
  int64_t low = 0, high = 0;
  if (!span(rank, shape, strides, &low, &high))
    return false;
  if (low < 0 && bits % 8 != 0)
    return false;
  int64_t low_bytes, high_bits;
  if (__builtin_mul_overflow(low, (int64_t)(bits / 8), &low_bytes) ||
      __builtin_mul_overflow(high, (int64_t)bits, &high_bits))
    return false;
  if (high_bits > INT64_MAX - 64 || low_bytes < -INT64_MAX / 2)
    return false;
  out_reach->first_bytes = low_bytes;
  out_reach->size_bytes = (uint64_t)(-low_bytes) + ((uint64_t)high_bits + bits + 7) / 8;
  return true;
}
