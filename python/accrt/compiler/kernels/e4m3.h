/* e4m3.h - 8-bit floats e4m3 as types that kernels store numbers in: four bits of exponent, three
 * of mantissa, no infinity; bits 0x7F are NaN. Rounded to nearest, ties to even; what is beyond 448
 * becomes 448. */
#ifndef ACCRT_KERNELS_E4M3_H_
#define ACCRT_KERNELS_E4M3_H_

#include "packed.h"

typedef struct {
  uint8_t bits;
} type_e4m3;
typedef float work_e4m3;

ALWAYS_INLINE float load_e4m3(type_e4m3 x) {
  uint32_t sign = (uint32_t)(x.bits & 0x80u) << 24, magnitude = x.bits & 0x7Fu;
  /* as a float whose exponent is too small by 120; subnormal ones as well */
  float value = f32_bits(magnitude << 20) * 0x1p120f;
  return f32_bits(sign | (magnitude == 0x7Fu ? 0x7FC00000u : bits_f32(value)));
}

ALWAYS_INLINE type_e4m3 store_e4m3(float x) {
  uint32_t bits = bits_f32(x), magnitude = bits & 0x7FFFFFFFu, code;
  if (magnitude > 0x7F800000u) {
    code = 0x7F;
  } else if (magnitude >= 0x43E00000u) { /* 448 */
    code = 0x7E;
  } else if (magnitude < 0x3C800000u) { /* 2^-6: multiples of 2^-9, which what is added rounds to */
    code = bits_f32(f32_bits(magnitude) + 0x1p14f) - 0x46800000u;
  } else {
    uint32_t moved = magnitude - (120u << 23);
    code = (moved + 0x7FFFFu + (moved >> 20 & 1u)) >> 20;
  }
  return (type_e4m3){(uint8_t)(code | (bits >> 24 & 0x80u))};
}

/* VL of them. */
ALWAYS_INLINE vf load_b_e4m3(const type_e4m3* p) {
  vf x = v_mul(v_from_f8((const uint8_t*)p, 0), v_set(256.0f));
#if VL == 16
  __m128i b = _mm_loadu_si128((const __m128i*)(const void*)p);
  __mmask16 none = _mm_cmpeq_epi8_mask(_mm_and_si128(b, _mm_set1_epi8(0x7F)), _mm_set1_epi8(0x7F));
  return _mm512_mask_mov_ps(x, none, v_set(f32_bits(0x7FC00000u)));
#elif VL == 8
  __m128i b = _mm_loadl_epi64((const __m128i*)(const void*)p);
  __m128i none = _mm_cmpeq_epi8(_mm_and_si128(b, _mm_set1_epi8(0x7F)), _mm_set1_epi8(0x7F));
  __m256 mask = _mm256_castsi256_ps(_mm256_cvtepi8_epi32(none));
  return _mm256_blendv_ps(x, v_set(f32_bits(0x7FC00000u)), mask);
#else
  float r[VL];
  v_store(r, x);
  for (int i = 0; i < VL; i++)
    r[i] = (p[i].bits & 0x7Fu) == 0x7Fu ? f32_bits(0x7FC00000u) : r[i];
  return v_load(r);
#endif
}

#endif /* ACCRT_KERNELS_E4M3_H_ */
