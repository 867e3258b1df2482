/* loader/layout_number.h - the small number formats, each exactly as a f32. Little-endian; nothing here allocates or fails. */
#ifndef ACCRT_LOADER_LAYOUT_NUMBER_H_
#define ACCRT_LOADER_LAYOUT_NUMBER_H_

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

#endif /* ACCRT_LOADER_LAYOUT_NUMBER_H_ */
