/* tools/accx/generate.c - fills arrays with zeros, ones, counting or seeded random numbers. */
#include <math.h>
#include <string.h>

#include "array.h"

/* splitmix64: a seed gives the same numbers on every machine. */
static uint64_t next_random(uint64_t* state) {
  uint64_t z = *state += UINT64_C(0x9E3779B97F4A7C15);
  z = (z ^ z >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
  z = (z ^ z >> 27) * UINT64_C(0x94D049BB133111EB);
  return z ^ z >> 31;
}

static bool is_real(accrt_dtype_t dtype) {
  return dtype == ACCRT_DTYPE_F64 || dtype == ACCRT_DTYPE_F32 || dtype == ACCRT_DTYPE_F16 ||
         dtype == ACCRT_DTYPE_BF16;
}

static uint16_t to_bf16(double value) {
  const float f32 = (float)value;
  uint32_t bits;
  memcpy(&bits, &f32, sizeof bits);
  return (uint16_t)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

/* Ties go to even. A value that is too large becomes infinity. */
static uint16_t to_f16(double value) {
  const uint16_t sign = signbit(value) ? 0x8000 : 0;
  const double magnitude = fabs(value);
  if (magnitude == 0)
    return sign;
  if (magnitude >= 65520)
    return (uint16_t)(sign | 0x7C00);
  int exponent = 0;
  frexp(magnitude, &exponent); /* magnitude = m * 2^exponent, m in [0.5, 1) */
  const int shift = exponent < -13 ? -24 : exponent - 11;
  const double units =
      nearbyint(ldexp(magnitude, -shift)); /* at most 2048, which carries into the exponent */
  const int biased = exponent < -13 ? 0 : exponent + 13;
  return (uint16_t)(sign | (uint16_t)((biased << 10) + (int)units));
}

static void store_real(accx_array_t* array, uint64_t index, double value) {
  char* to = (char*)array->data + index * (accrt_dtype_bits(array->dtype) / 8);
  const float f32 = (float)value;
  const uint16_t half = array->dtype == ACCRT_DTYPE_F16 ? to_f16(value) : to_bf16(value);
  if (array->dtype == ACCRT_DTYPE_F64)
    memcpy(to, &value, 8);
  else if (array->dtype == ACCRT_DTYPE_F32)
    memcpy(to, &f32, 4);
  else
    memcpy(to, &half, 2);
}

/* Little-endian: the low bytes are the number in a narrower type. */
static void store_whole(accx_array_t* array, uint64_t index, uint64_t value) {
  const uint32_t size_bytes = accrt_dtype_bits(array->dtype) / 8;
  if (array->dtype == ACCRT_DTYPE_BOOL)
    value = value != 0;
  memcpy((char*)array->data + index * size_bytes, &value, size_bytes);
}

static void store(accx_array_t* array, uint64_t index, uint64_t value) {
  if (is_real(array->dtype))
    store_real(array, index, (double)value);
  else
    store_whole(array, index, value);
}

static void store_random(accx_array_t* array, uint64_t index, uint64_t bits) {
  if (is_real(array->dtype))
    store_real(array, index, (double)(bits >> 11) * 0x1p-52 - 1.0);
  else
    store_whole(array, index, array->dtype == ACCRT_DTYPE_BOOL ? bits >> 63 : (bits >> 32) % 100);
}

int accx_array_generate(accx_array_t* array, const char* pattern, uint64_t seed, const char* what) {
  if (strcmp(pattern, "zeros") == 0) {
    memset(array->data, 0, (size_t)array->size_bytes);
    return ACCX_OK;
  }
  const bool known = is_real(array->dtype) ||
                     (array->dtype >= ACCRT_DTYPE_BOOL && array->dtype <= ACCRT_DTYPE_U64);
  if (!known)
    return accx_fail(ACCX_USAGE, "%s is %s, which can be generated as zeros only", what,
                     accrt_dtype_name(array->dtype));
  const bool random = strcmp(pattern, "random") == 0, counting = strcmp(pattern, "arange") == 0;
  for (uint64_t i = 0; i < array->element_count; ++i) {
    if (random)
      store_random(array, i, next_random(&seed));
    else
      store(array, i, counting ? i : 1);
  }
  return ACCX_OK;
}
