/* simd.h - the few vector operations that the hand-blocked kernels need, as one type `vf` of VL
 * floats on every target: AVX-512, AVX2 with FMA, NEON, and plain C elsewhere. Everything else is
 * left to the compilers' vectorizers. */
#ifndef ACCRT_KERNELS_SIMD_H_
#define ACCRT_KERNELS_SIMD_H_

#include "common.h"

/* Four floats, on every target. */
typedef float v4f __attribute__((vector_size(16)));
#if defined(__clang__)
#define V4_SHUFFLE(a, b, i, j, k, l) __builtin_shufflevector(a, b, i, j, k, l)
#else
typedef int v4i __attribute__((vector_size(16)));
#define V4_SHUFFLE(a, b, i, j, k, l) __builtin_shuffle(a, b, (v4i){i, j, k, l})
#endif
ALWAYS_INLINE v4f v4_load(const float* p) {
  v4f r;
  __builtin_memcpy(&r, p, sizeof r);
  return r;
}
ALWAYS_INLINE void v4_store(float* p, v4f x) {
  __builtin_memcpy(p, &x, sizeof x);
}

#if defined(__AVX512F__) && defined(__AVX512BW__)
#include <immintrin.h>
#define VL 16
typedef __m512 vf;
ALWAYS_INLINE vf v_zero(void) {
  return _mm512_setzero_ps();
}
ALWAYS_INLINE vf v_set(float x) {
  return _mm512_set1_ps(x);
}
ALWAYS_INLINE vf v_load(const float* p) {
  return _mm512_loadu_ps(p);
}
ALWAYS_INLINE void v_store(float* p, vf x) {
  _mm512_storeu_ps(p, x);
}
ALWAYS_INLINE vf v_fma(vf a, vf b, vf c) {
  return _mm512_fmadd_ps(a, b, c);
}
/* v_sum4: the four sums of the lanes of four vectors. */
ALWAYS_INLINE vf v_add(vf a, vf b) {
  return _mm512_add_ps(a, b);
}
ALWAYS_INLINE vf v_mul(vf a, vf b) {
  return _mm512_mul_ps(a, b);
}
/* a > b ? a : b, that is the second operand when either is NaN. */
ALWAYS_INLINE vf v_max_raw(vf a, vf b) {
  return _mm512_max_ps(a, b);
}
ALWAYS_INLINE float v_sum(vf x) {
  return _mm512_reduce_add_ps(x);
}
ALWAYS_INLINE float v_largest(vf x) {
  return _mm512_reduce_max_ps(x);
}
ALWAYS_INLINE __m256 half_sum(vf x) {
  return _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
}
ALWAYS_INLINE v4f v_sum4(vf a, vf b, vf c, vf d) {
  __m256 ab = _mm256_hadd_ps(half_sum(a), half_sum(b));
  __m256 cd = _mm256_hadd_ps(half_sum(c), half_sum(d));
  __m256 all = _mm256_hadd_ps(ab, cd);
  return (v4f)_mm_add_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps(all, 1));
}
ALWAYS_INLINE vf v_load_bf16(const bf16_t* p) {
  __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p));
  return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}
ALWAYS_INLINE vf v_load_f16(const f16_t* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p));
}

#elif defined(__AVX2__) && defined(__FMA__)
#include <immintrin.h>
#define VL 8
typedef __m256 vf;
ALWAYS_INLINE vf v_zero(void) {
  return _mm256_setzero_ps();
}
ALWAYS_INLINE vf v_set(float x) {
  return _mm256_set1_ps(x);
}
ALWAYS_INLINE vf v_load(const float* p) {
  return _mm256_loadu_ps(p);
}
ALWAYS_INLINE void v_store(float* p, vf x) {
  _mm256_storeu_ps(p, x);
}
ALWAYS_INLINE vf v_fma(vf a, vf b, vf c) {
  return _mm256_fmadd_ps(a, b, c);
}
ALWAYS_INLINE vf v_add(vf a, vf b) {
  return _mm256_add_ps(a, b);
}
ALWAYS_INLINE vf v_mul(vf a, vf b) {
  return _mm256_mul_ps(a, b);
}
ALWAYS_INLINE vf v_max_raw(vf a, vf b) {
  return _mm256_max_ps(a, b);
}
ALWAYS_INLINE float v_sum(vf x) {
  __m128 s = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  s = _mm_add_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}
ALWAYS_INLINE float v_largest(vf x) {
  __m128 s = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  s = _mm_max_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
}
ALWAYS_INLINE v4f v_sum4(vf a, vf b, vf c, vf d) {
  __m256 all = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
  return (v4f)_mm_add_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps(all, 1));
}
ALWAYS_INLINE vf v_load_bf16(const bf16_t* p) {
  __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}
ALWAYS_INLINE vf v_load_f16(const f16_t* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p));
}

#elif defined(__aarch64__) && defined(__ARM_NEON)
#include <arm_neon.h>
#define VL 4
typedef float32x4_t vf;
ALWAYS_INLINE vf v_zero(void) {
  return vdupq_n_f32(0.0f);
}
ALWAYS_INLINE vf v_set(float x) {
  return vdupq_n_f32(x);
}
ALWAYS_INLINE vf v_load(const float* p) {
  return vld1q_f32(p);
}
ALWAYS_INLINE void v_store(float* p, vf x) {
  vst1q_f32(p, x);
}
ALWAYS_INLINE vf v_fma(vf a, vf b, vf c) {
  return vfmaq_f32(c, a, b);
}
ALWAYS_INLINE vf v_add(vf a, vf b) {
  return vaddq_f32(a, b);
}
ALWAYS_INLINE vf v_mul(vf a, vf b) {
  return vmulq_f32(a, b);
}
ALWAYS_INLINE vf v_max_raw(vf a, vf b) {
  return vbslq_f32(vcgtq_f32(a, b), a, b);
}
ALWAYS_INLINE float v_sum(vf x) {
  return vaddvq_f32(x);
}
ALWAYS_INLINE float v_largest(vf x) {
  return vmaxvq_f32(x);
}
ALWAYS_INLINE v4f v_sum4(vf a, vf b, vf c, vf d) {
  return (v4f)vpaddq_f32(vpaddq_f32(a, b), vpaddq_f32(c, d));
}
ALWAYS_INLINE vf v_load_bf16(const bf16_t* p) {
  return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16((const uint16_t*)p), 16));
}
ALWAYS_INLINE vf v_load_f16(const f16_t* p) {
  return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16((const uint16_t*)p)));
}

#else
#define VL 4
typedef struct {
  float lane[VL];
} vf;
#define LANES for (int i_ = 0; i_ < VL; i_++)
ALWAYS_INLINE vf v_set(float x) {
  vf r;
  LANES r.lane[i_] = x;
  return r;
}
ALWAYS_INLINE vf v_zero(void) {
  return v_set(0.0f);
}
ALWAYS_INLINE vf v_load(const float* p) {
  vf r;
  LANES r.lane[i_] = p[i_];
  return r;
}
ALWAYS_INLINE void v_store(float* p, vf x) {
  LANES p[i_] = x.lane[i_];
}
ALWAYS_INLINE vf v_fma(vf a, vf b, vf c) {
  LANES c.lane[i_] += a.lane[i_] * b.lane[i_];
  return c;
}
ALWAYS_INLINE vf v_add(vf a, vf b) {
  LANES a.lane[i_] += b.lane[i_];
  return a;
}
ALWAYS_INLINE vf v_mul(vf a, vf b) {
  LANES a.lane[i_] *= b.lane[i_];
  return a;
}
ALWAYS_INLINE vf v_max_raw(vf a, vf b) {
  LANES a.lane[i_] = a.lane[i_] > b.lane[i_] ? a.lane[i_] : b.lane[i_];
  return a;
}
ALWAYS_INLINE float v_sum(vf x) {
  return (x.lane[0] + x.lane[2]) + (x.lane[1] + x.lane[3]);
}
ALWAYS_INLINE float v_largest(vf x) {
  float top = x.lane[0];
  LANES top = x.lane[i_] > top ? x.lane[i_] : top;
  return top;
}
ALWAYS_INLINE v4f v_sum4(vf a, vf b, vf c, vf d) {
  return (v4f){v_sum(a), v_sum(b), v_sum(c), v_sum(d)};
}
ALWAYS_INLINE vf v_load_bf16(const bf16_t* p) {
  vf r;
  LANES r.lane[i_] = f32_from_bf16(p[i_]);
  return r;
}
ALWAYS_INLINE vf v_load_f16(const f16_t* p) {
  vf r;
  LANES r.lane[i_] = f32_from_f16(p[i_]);
  return r;
}
#endif

ALWAYS_INLINE void transpose_4x4(float* to, int64_t to_step, const float* from, int64_t from_step) {
  v4f a = v4_load(from), b = v4_load(from + from_step);
  v4f c = v4_load(from + 2 * from_step), d = v4_load(from + 3 * from_step);
  v4f ab_low = V4_SHUFFLE(a, b, 0, 4, 1, 5), ab_high = V4_SHUFFLE(a, b, 2, 6, 3, 7);
  v4f cd_low = V4_SHUFFLE(c, d, 0, 4, 1, 5), cd_high = V4_SHUFFLE(c, d, 2, 6, 3, 7);
  v4_store(to, V4_SHUFFLE(ab_low, cd_low, 0, 1, 4, 5));
  v4_store(to + to_step, V4_SHUFFLE(ab_low, cd_low, 2, 3, 6, 7));
  v4_store(to + 2 * to_step, V4_SHUFFLE(ab_high, cd_high, 0, 1, 4, 5));
  v4_store(to + 3 * to_step, V4_SHUFFLE(ab_high, cd_high, 2, 3, 6, 7));
}

/* out[j * out_step + i] = in[i * in_step + j] for `rows` x `columns` of the input. In blocks of 16
 * rows: each line of the output is written as a whole, and the lines of the input stay in the cache
 * until they are used up. */
static __attribute__((unused)) void transpose_f32(float* out, int64_t out_step, const float* in,
                                                  int64_t in_step, int64_t rows, int64_t columns) {
  int64_t whole_rows = rows & ~(int64_t)3, whole_columns = columns & ~(int64_t)3;
  for (int64_t first = 0; first < whole_rows; first += 16) {
    int64_t end = min_i64(first + 16, whole_rows);
    for (int64_t j = 0; j < whole_columns; j += 4) {
      for (int64_t i = first; i < end; i += 4)
        transpose_4x4(out + j * out_step + i, out_step, in + i * in_step + j, in_step);
    }
  }
  for (int64_t i = 0; i < rows; i++) {
    for (int64_t j = i < whole_rows ? whole_columns : 0; j < columns; j++)
      out[j * out_step + i] = in[i * in_step + j];
  }
}

#endif /* ACCRT_KERNELS_SIMD_H_ */
