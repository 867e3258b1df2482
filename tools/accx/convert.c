/* tools/accx/convert.c - converts plain floats from one type to another. */
#include "convert.h"

#include <math.h>
#include <string.h>

bool accx_converts(accrt_dtype_t dtype) {
  return dtype == ACCRT_DTYPE_F64 || dtype == ACCRT_DTYPE_F32 || dtype == ACCRT_DTYPE_F16 ||
         dtype == ACCRT_DTYPE_BF16;
}

/* f64 has all values of the four types. */
static double load(accrt_dtype_t from, const unsigned char* at) {
  uint16_t half;
  uint32_t bits;
  float single;
  double value;
  if (from == ACCRT_DTYPE_F64) {
    memcpy(&value, at, sizeof value);
    return value;
  }
  if (from == ACCRT_DTYPE_F32) {
    memcpy(&single, at, sizeof single);
    return (double)single;
  }
  memcpy(&half, at, sizeof half);
  if (from == ACCRT_DTYPE_BF16) {
    bits = (uint32_t)half << 16;
    memcpy(&single, &bits, sizeof single);
    return (double)single;
  }
  const int exponent = half >> 10 & 31;
  const double fraction = half & 1023;
  if (exponent == 31)
    value = fraction != 0 ? (double)NAN : (double)INFINITY;
  else
    value = exponent == 0 ? ldexp(fraction, -24) : ldexp(1024 + fraction, exponent - 25);
  return half >> 15 ? -value : value;
}

/* The bits of a value in a 16-bit format, rounded once from the exact value. */
static uint16_t narrow(double value, int exponent_bits, int fraction_bits) {
  const uint16_t sign = signbit(value) ? 0x8000 : 0;
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int top = (1 << exponent_bits) - 1;
  const uint16_t infinite = (uint16_t)(sign | top << fraction_bits);
  if (isnan(value))
    return (uint16_t)(infinite | 1 << (fraction_bits - 1));
  if (isinf(value))
    return infinite;
  int exponent;
  if (value == 0.0)
    return sign;
  (void)frexp(value, &exponent); /* value = 0.5..1 * 2^exponent */
  const int least = 1 - bias;    /* exponent of the smallest normal number, 1.f * 2^least */
  const int unit = (exponent - 1 < least ? least : exponent - 1) - fraction_bits;
  /* Exact up to here. nearbyint rounds to nearest, ties to even. A carry correctly raises the
   * exponent. */
  const double steps = nearbyint(ldexp(fabs(value), -unit));
  const int64_t bits = (int64_t)steps + ((int64_t)(unit + fraction_bits - least) << fraction_bits);
  return bits >= (int64_t)top << fraction_bits ? infinite : (uint16_t)(sign | bits);
}

static bool store(accrt_dtype_t to, unsigned char* at, double value) {
  if (to == ACCRT_DTYPE_F64) {
    memcpy(at, &value, sizeof value);
    return false;
  }
  if (to == ACCRT_DTYPE_F32) {
    const float single = (float)value;
    memcpy(at, &single, sizeof single);
    return isinf(single) && !isinf(value);
  }
  const uint16_t half = to == ACCRT_DTYPE_BF16 ? narrow(value, 8, 7) : narrow(value, 5, 10);
  memcpy(at, &half, sizeof half);
  return (half & 0x7FFF) == (to == ACCRT_DTYPE_BF16 ? 0x7F80 : 0x7C00) && !isinf(value);
}

uint64_t accx_convert(accrt_dtype_t to, void* target, accrt_dtype_t from, const void* source,
                      uint64_t count) {
  const size_t to_bytes = accrt_dtype_bits(to) / 8, from_bytes = accrt_dtype_bits(from) / 8;
  uint64_t lost = 0;
  for (uint64_t i = 0; i < count; ++i)
    lost += store(to, (unsigned char*)target + i * to_bytes,
                  load(from, (const unsigned char*)source + i * from_bytes));
  return lost;
}
