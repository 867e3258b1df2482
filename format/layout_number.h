/* format/layout_number.h - the small number formats, each exactly as a f32. Little-endian; nothing
 * here allocates or fails. */
#ifndef ACCRT_FORMAT_LAYOUT_NUMBER_H_
#define ACCRT_FORMAT_LAYOUT_NUMBER_H_

#include <stdint.h>
#include <string.h>

#include "accrt/kernel.h"

static inline float accx_float_of_bits(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}
static inline uint32_t accx_bits_of_float(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

/* A sign bit put on a magnitude. */
static inline float accx_signed(float magnitude, uint32_t sign) {
  return accx_float_of_bits(accx_bits_of_float(magnitude) | sign << 31);
}

static inline float accx_f16(uint32_t half) {
  const uint32_t magnitude = half & 0x7FFF;
  if (magnitude < 0x0400)
    return accx_signed((float)magnitude * 0x1p-24f, half >> 15);
  const uint32_t rebias = magnitude >= 0x7C00 ? 0x70000000u : 0x38000000u;
  return accx_float_of_bits((half & 0x8000) << 16 | ((magnitude << 13) + rebias));
}

static inline float accx_f8e4m3fn(uint32_t byte) {
  const uint32_t magnitude = byte & 0x7F;
  if (magnitude < 8)
    return accx_signed((float)magnitude * 0x1p-9f, byte >> 7);
  if (magnitude == 0x7F)
    return accx_float_of_bits(0x7FC00000u);
  return accx_float_of_bits((byte & 0x80) << 24 | ((magnitude << 20) + 0x3C000000u));
}

/* 2^(byte - 127); 0xFF is NaN. */
static inline float accx_f8e8m0(uint32_t byte) {
  if (byte == 0xFF)
    return accx_float_of_bits(0x7FC00000u);
  return accx_float_of_bits(byte == 0 ? 0x00400000u : byte << 23);
}

/* Half of it, as GGML has it: its elements are doubled. 0xFF is 2^127 there. */
static inline float accx_f8e8m0_half(uint32_t byte) {
  return accx_float_of_bits(byte < 2 ? 0x00200000u << byte : (byte - 1) << 23);
}

/* GGML's unsigned e4m3, halved: bit 7 is not looked at, and 0x7F is 0. */
static inline float accx_ue4m3_half(uint32_t byte) {
  if (byte == 0x7F)
    return 0.0f;
  const uint32_t magnitude = byte & 0x7F;
  if (magnitude < 8)
    return (float)magnitude * 0x1p-10f;
  return accx_float_of_bits((magnitude << 20) + 0x3B800000u);
}

/* Twice the magnitudes of e2m1. */
static inline int32_t accx_f4_doubled(uint32_t nibble) {
  static const int8_t doubled[8] = {0, 1, 2, 3, 4, 6, 8, 12};
  return doubled[nibble & 7];
}
static inline float accx_f4e2m1(uint32_t nibble) {
  return accx_signed((float)accx_f4_doubled(nibble) * 0.5f, nibble >> 3 & 1);
}

/* A type of at most 8 bits. */
static inline float accx_small(accrt_dtype_t dtype, uint32_t bits) {
  switch (dtype) {
  case ACCRT_DTYPE_F8E4M3FN:
    return accx_f8e4m3fn(bits);
  case ACCRT_DTYPE_F8E5M2:
    return accx_f16(bits << 8);
  case ACCRT_DTYPE_F8E8M0:
    return accx_f8e8m0(bits);
  case ACCRT_DTYPE_F4E2M1:
    return accx_f4e2m1(bits);
  case ACCRT_DTYPE_I8:
    return (float)(int8_t)bits;
  case ACCRT_DTYPE_I4:
    return (float)((int32_t)(bits ^ 8) - 8);
  default: /* U8, U4, BOOL */
    return (float)bits;
  }
}

/* Element `index` of f32, f16, bf16, or a type of 8 bits, at any alignment. */
static inline float accx_load(const void* base, accrt_dtype_t dtype, uint64_t index) {
  const unsigned char* bytes = base;
  uint16_t half;
  float value;
  switch (dtype) {
  case ACCRT_DTYPE_F32:
    memcpy(&value, bytes + 4 * index, sizeof value);
    return value;
  case ACCRT_DTYPE_F16:
    memcpy(&half, bytes + 2 * index, sizeof half);
    return accx_f16(half);
  case ACCRT_DTYPE_BF16:
    memcpy(&half, bytes + 2 * index, sizeof half);
    return accx_float_of_bits((uint32_t)half << 16);
  default:
    return accx_small(dtype, bytes[index]);
  }
}

static inline float accx_load_f16(const unsigned char* bytes) {
  uint16_t half;
  memcpy(&half, bytes, sizeof half);
  return accx_f16(half);
}

/* ---- From f32: to the nearest, ties to even. Values are finite. ---- */

/* The nearest integer, for magnitudes below 2^22. */
static inline float accx_round(float value) {
  return (value + 12582912.0f) - 12582912.0f;
}

/* A small float format: the nearest value, at most `max`. */
typedef struct accx_float_kind {
  int32_t mantissa_bits;
  int32_t min_exponent; /* of normal numbers */
  float max;
} accx_float_kind_t;

static inline float accx_round_float(const accx_float_kind_t* kind, float value) {
  const uint32_t sign = accx_bits_of_float(value) >> 31;
  const float magnitude = accx_signed(sign != 0 ? -value : value, 0);
  if (magnitude >= kind->max)
    return accx_signed(kind->max, sign);
  int32_t exponent = (int32_t)(accx_bits_of_float(magnitude) >> 23) - 127;
  if (exponent < kind->min_exponent)
    exponent = kind->min_exponent;
  /* Adding 1.5 * 2^23 units of the last place rounds to that place. */
  const float unit =
      accx_float_of_bits((uint32_t)(exponent - kind->mantissa_bits + 23 + 127) << 23);
  const float shifter = unit * 1.5f;
  return accx_signed((magnitude + shifter) - shifter, sign);
}

/* The code of a value that the kind can represent; `width` is the number of its bits. */
static inline uint32_t accx_float_code(const accx_float_kind_t* kind, uint32_t width, float value) {
  const uint32_t bits = accx_bits_of_float(value), sign = bits >> 31;
  const uint32_t magnitude = bits & 0x7FFFFFFF;
  const int32_t exponent = (int32_t)(magnitude >> 23) - 127;
  uint32_t code;
  if (exponent < kind->min_exponent) {
    const float unit =
        accx_float_of_bits((uint32_t)(kind->min_exponent - kind->mantissa_bits + 127) << 23);
    code = (uint32_t)(accx_float_of_bits(magnitude) / unit);
  } else {
    code = (magnitude >> (23 - kind->mantissa_bits)) -
           ((uint32_t)(kind->min_exponent - 1 + 127) << kind->mantissa_bits);
  }
  return sign << (width - 1) | code;
}

static const accx_float_kind_t accx_kind_f16 = {10, -14, 65504.0f};
static const accx_float_kind_t accx_kind_e4m3 = {3, -6, 448.0f};
static const accx_float_kind_t accx_kind_e5m2 = {2, -14, 57344.0f};
static const accx_float_kind_t accx_kind_e2m1 = {1, 0, 6.0f};

static inline uint32_t accx_code_f16(float value) {
  return accx_float_code(&accx_kind_f16, 16, accx_round_float(&accx_kind_f16, value));
}
static inline uint32_t accx_code_bf16(float value) {
  /* The subnormals of bf16 are those of f32 cut short: its unit would not be a normal number. */
  const uint32_t bits = accx_bits_of_float(value);
  const uint32_t code = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
  return (code & 0x7FFF) == 0x7F80 ? code - 1 : code;
}

static inline void accx_store_u16(unsigned char* bytes, uint32_t value) {
  bytes[0] = (unsigned char)value;
  bytes[1] = (unsigned char)(value >> 8);
}

#endif /* ACCRT_FORMAT_LAYOUT_NUMBER_H_ */
