/* packed.h - weights that stay packed, as host kernels read them: where their parts lie, and
 * vectors of codes.
 *
 * A weight [n, k] is cut into panels of 16 rows and blocks of 32 k. The codes of a panel lie block
 * after block. Codes of 8 bits are one plane, others a low plane of 4 or 2 bits, behind which lies
 * one of the bits above these (5 and 3 bits: 1, 6 bits: 2). In a plane of b bits each lane of a
 * vector of dwords is one row; k = 4 v + i is in byte i of row r in vector v b / 8 (64 bytes each),
 * from bit v b % 8 up:
 *   8 bits, 512 bytes: byte i of row r in eighth v holds k = 4 v + i
 *   4 bits, 256 bytes: byte i of row r in quarter v holds k = 8 v + i (low nibble) and 8 v + 4 + i
 *   2 bits, 128 bytes, and 1 bit, 64 bytes, alike
 * 8-bit floats are otherwise, 512 bytes: byte r of sixteen bytes i holds k = i.
 *
 * Behind the codes of all panels lie the scales, panel by panel: for each group sixteen of them, of
 * type ST. Behind these lie zeros, sixteen bytes for each group, or minima, sixteen f16. K layouts
 * have a record for each 256 k instead:
 *   q4k: sixteen f16 factors of scales, sixteen of minima, then for each block sixteen bytes of
 *     scales, then for each block sixteen of minima
 *   q2k: the same factors, then for each 16 k sixteen bytes: scale (low nibble) and minimum
 *   q6k: sixteen factors of scales, then for each 16 k sixteen bytes of signed scales
 * With scales of e4m3 (480 where the code is NaN) each 16 k have sixteen bytes, and behind those of
 * all panels lie sixteen f32 of each panel, which scales of a row are multiplied by.
 * What is behind n and k adds nothing. */
#ifndef ACCRT_KERNELS_PACKED_H_
#define ACCRT_KERNELS_PACKED_H_

#include "simd.h"

#define PANEL_ROWS 16
#define BLOCK_K 32
#define PARTS (PANEL_ROWS / VL) /* vectors of floats in a panel's rows */
#define Q4K_RECORD_BYTES 320
#define Q2K_RECORD_BYTES 320
#define Q6K_RECORD_BYTES 288

/* What codes mean. U4, U5, U6 and U3: the number less 8 (or a zero), 16, 32 and 4.
 * Q4, Q5 and Q2: the number itself, beside minima. S8: the number less 128.
 * E2M1: twice an e2m1 value. IQ4: a value of IQ4_NL. Others are floats. */
#define CODES_U4 1
#define CODES_Q4 2
#define CODES_S8 3
#define CODES_E2M1 4
#define CODES_E4M3 5
#define CODES_E5M2 6
#define CODES_U5 7
#define CODES_Q5 8
#define CODES_U6 9
#define CODES_Q2 10
#define CODES_U3 11
#define CODES_IQ4 12
#define CODES_ARE_FLOATS(c) ((c) == CODES_E4M3 || (c) == CODES_E5M2)
#define CODES_LOW_BITS(c)                                                                          \
  ((c) == CODES_S8 || CODES_ARE_FLOATS(c) ? 8 : (c) == CODES_Q2 || (c) == CODES_U3 ? 2 : 4)
#define CODES_HIGH_BITS(c)                                                                         \
  ((c) == CODES_U5 || (c) == CODES_Q5 || (c) == CODES_U3 ? 1 : (c) == CODES_U6 ? 2 : 0)
#define CODES_BLOCK_BYTES(c) (64 * (CODES_LOW_BITS(c) + CODES_HIGH_BITS(c)))
/* Whether numbers that are multiplied need more than six bits. */
#define CODES_ARE_WIDE(c) ((c) == CODES_S8 || (c) == CODES_IQ4)

/* One row of x in 8 bits: codes, then four floats for each block, kind by kind.
 * They are its scale, the sum of its codes, that of the first sixteen, and that of the others.
 * Rows begin at multiples of 64. */
ALWAYS_INLINE int64_t quantized_row_bytes(int64_t k) {
  return (ceildiv_i64(k, BLOCK_K) * (BLOCK_K + 16) + 63) / 64 * 64;
}

/* ---- Vectors of 4 VL codes, which are VL dwords, and sums of VL integers --------------------- */

#if VL == 16
typedef __m512i vu;
typedef __m512i vi;
ALWAYS_INLINE vu u_load(const uint8_t* p) {
  return _mm512_loadu_si512(p);
}
/* Bits `mask` of bytes that are shifted left, or right by less than nothing. */
ALWAYS_INLINE vu u_bits(vu x, const int left, const int mask) {
  vu y = left > 0   ? _mm512_slli_epi16(x, (unsigned)left)
         : left < 0 ? _mm512_srli_epi16(x, (unsigned)-left)
                    : x;
  return _mm512_and_si512(y, _mm512_set1_epi8((char)mask));
}
ALWAYS_INLINE vu u_or(vu a, vu b) {
  return _mm512_or_si512(a, b);
}
ALWAYS_INLINE vu u_table(vu x, const uint8_t* table) {
  return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i*)table)), x);
}
ALWAYS_INLINE vf v_from_i(vi x) {
  return _mm512_cvtepi32_ps(x);
}
ALWAYS_INLINE vi vi_load_u8(const uint8_t* p) {
  return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)p));
}
ALWAYS_INLINE vf v_load_u8(const uint8_t* p) {
  return v_from_i(vi_load_u8(p));
}
ALWAYS_INLINE vf v_load_i8(const uint8_t* p) {
  return v_from_i(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p)));
}
ALWAYS_INLINE vi vi_low_nibble(vi x) {
  return _mm512_and_si512(x, _mm512_set1_epi32(15));
}
ALWAYS_INLINE vi vi_high_nibble(vi x) {
  return _mm512_srli_epi32(x, 4);
}
/* 2^(e - 128); e = 255 is NaN with `top_is_nan`. */
ALWAYS_INLINE vf v_load_power(const uint8_t* p, int top_is_nan) {
  vi e = vi_load_u8(p), one = _mm512_set1_epi32(1);
  vi bits = _mm512_slli_epi32(_mm512_sub_epi32(e, one), 23);
  vi small = _mm512_sllv_epi32(_mm512_set1_epi32(0x200000), e);
  bits = _mm512_mask_mov_epi32(bits, _mm512_cmple_epi32_mask(e, one), small);
  __mmask16 top = _mm512_cmpeq_epi32_mask(e, _mm512_set1_epi32(255));
  return _mm512_castsi512_ps(
      _mm512_mask_mov_epi32(bits, top_is_nan ? top : 0, _mm512_set1_epi32(0x7FC00000)));
}
/* VL bytes, four times over as the codes of floats in the high bits of f16. */
ALWAYS_INLINE vf v_from_f8(const uint8_t* p, int is_e5m2) {
  __m256i b = _mm256_slli_epi16(_mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i*)p)), 8);
  if (!is_e5m2) {
    __m256i magnitude = _mm256_and_si256(_mm256_srli_epi16(b, 1), _mm256_set1_epi16(0x3F80));
    b = _mm256_or_si256(_mm256_and_si256(b, _mm256_set1_epi16((short)0x8000)), magnitude);
  }
  return _mm512_cvtph_ps(b);
}

#elif VL == 8
typedef __m256i vu;
typedef __m256i vi;
ALWAYS_INLINE vu u_load(const uint8_t* p) {
  return _mm256_loadu_si256((const __m256i*)p);
}
ALWAYS_INLINE vu u_bits(vu x, const int left, const int mask) {
  vu y = left > 0 ? _mm256_slli_epi16(x, left) : left < 0 ? _mm256_srli_epi16(x, -left) : x;
  return _mm256_and_si256(y, _mm256_set1_epi8((char)mask));
}
ALWAYS_INLINE vu u_or(vu a, vu b) {
  return _mm256_or_si256(a, b);
}
ALWAYS_INLINE vu u_table(vu x, const uint8_t* table) {
  return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i*)table)),
                             x);
}
ALWAYS_INLINE vf v_from_i(vi x) {
  return _mm256_cvtepi32_ps(x);
}
ALWAYS_INLINE vi vi_load_u8(const uint8_t* p) {
  return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)p));
}
ALWAYS_INLINE vf v_load_u8(const uint8_t* p) {
  return v_from_i(vi_load_u8(p));
}
ALWAYS_INLINE vf v_load_i8(const uint8_t* p) {
  return v_from_i(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)p)));
}
ALWAYS_INLINE vi vi_low_nibble(vi x) {
  return _mm256_and_si256(x, _mm256_set1_epi32(15));
}
ALWAYS_INLINE vi vi_high_nibble(vi x) {
  return _mm256_srli_epi32(x, 4);
}
ALWAYS_INLINE vf v_load_power(const uint8_t* p, int top_is_nan) {
  vi e = vi_load_u8(p), one = _mm256_set1_epi32(1);
  vi bits = _mm256_slli_epi32(_mm256_sub_epi32(e, one), 23);
  vi small = _mm256_sllv_epi32(_mm256_set1_epi32(0x200000), e);
  bits = _mm256_blendv_epi8(small, bits, _mm256_cmpgt_epi32(e, one));
  if (top_is_nan) {
    vi top = _mm256_cmpeq_epi32(e, _mm256_set1_epi32(255));
    bits = _mm256_blendv_epi8(bits, _mm256_set1_epi32(0x7FC00000), top);
  }
  return _mm256_castsi256_ps(bits);
}
ALWAYS_INLINE vf v_from_f8(const uint8_t* p, int is_e5m2) {
  __m128i b = _mm_slli_epi16(_mm_cvtepu8_epi16(_mm_loadl_epi64((const __m128i*)p)), 8);
  if (!is_e5m2) {
    __m128i magnitude = _mm_and_si128(_mm_srli_epi16(b, 1), _mm_set1_epi16(0x3F80));
    b = _mm_or_si128(_mm_and_si128(b, _mm_set1_epi16((short)0x8000)), magnitude);
  }
  return _mm256_cvtph_ps(b);
}

#else
typedef uint8_t vu __attribute__((vector_size(16)));
typedef int32_t vi __attribute__((vector_size(16)));
ALWAYS_INLINE vu u_load(const uint8_t* p) {
  vu x;
  __builtin_memcpy(&x, p, sizeof x);
  return x;
}
ALWAYS_INLINE vu u_bits(vu x, const int left, const int mask) {
  vu y = left > 0 ? x << left : left < 0 ? x >> -left : x;
  return y & (uint8_t)mask;
}
ALWAYS_INLINE vu u_or(vu a, vu b) {
  return a | b;
}
ALWAYS_INLINE vu u_table(vu x, const uint8_t* table) {
#if defined(__aarch64__)
  return (vu)vqtbl1q_u8(vld1q_u8(table), (uint8x16_t)x);
#else
  for (int i = 0; i < 16; i++)
    x[i] = table[x[i]];
  return x;
#endif
}
ALWAYS_INLINE vf v_from_i(vi x) {
#if defined(__aarch64__)
  return vcvtq_f32_s32((int32x4_t)x);
#else
  vf r;
  LANES r.lane[i_] = (float)x[i_];
  return r;
#endif
}
ALWAYS_INLINE vi vi_load_u8(const uint8_t* p) {
  return (vi){p[0], p[1], p[2], p[3]};
}
ALWAYS_INLINE vf v_load_u8(const uint8_t* p) {
  return v_from_i(vi_load_u8(p));
}
ALWAYS_INLINE vf v_load_i8(const uint8_t* p) {
  return v_from_i((vi){(int8_t)p[0], (int8_t)p[1], (int8_t)p[2], (int8_t)p[3]});
}
ALWAYS_INLINE vi vi_low_nibble(vi x) {
  return x & 15;
}
ALWAYS_INLINE vi vi_high_nibble(vi x) {
  return x >> 4;
}
ALWAYS_INLINE vf v_load_power(const uint8_t* p, int top_is_nan) {
  float r[4];
  for (int i = 0; i < 4; i++) {
    uint32_t bits = p[i] > 1 ? (p[i] - 1u) << 23 : 0x200000u << p[i];
    r[i] = f32_bits(top_is_nan && p[i] == 255 ? 0x7FC00000u : bits);
  }
  return v_load(r);
}
ALWAYS_INLINE vf v_from_f8(const uint8_t* p, int is_e5m2) {
  f16_t r[4];
  for (int i = 0; i < 4; i++) {
    uint32_t b = (uint32_t)p[i] << 8;
    r[i].bits = (uint16_t)(is_e5m2 ? b : (b & 0x8000u) | (b >> 1 & 0x3F80u));
  }
  return v_load_f16(r);
}
#endif

/* The values of e2m1 codes, doubled, plus 12. */
static const uint8_t E2M1_TABLE[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};

/* The values of IQ4_NL's codes, plus 128. */
static const uint8_t IQ4_TABLE[16] = {1,   24,  45,  63,  79,  93,  106, 118,
                                      129, 141, 153, 166, 181, 197, 217, 241};

/* Of the eight vectors of a block's part the one with k = 4 v .. 4 v + 3. */
ALWAYS_INLINE vu load_code(const uint8_t* block, int part, int v, const int codes) {
  const int low = CODES_LOW_BITS(codes), high = CODES_HIGH_BITS(codes);
  const uint8_t* above = block + low * 64 + part * VL * 4;
  vu x = u_load(block + part * VL * 4 + v * low / 8 * 64);
  vu u = low == 8 ? x : u_bits(x, -(v * low % 8), (1 << low) - 1);
  if (high) {
    vu more = u_load(above + v * high / 8 * 64);
    u = u_or(u, u_bits(more, low - v * high % 8, ((1 << high) - 1) << low));
  }
  if (codes == CODES_E2M1 || codes == CODES_IQ4)
    u = u_table(u, codes == CODES_IQ4 ? IQ4_TABLE : E2M1_TABLE);
  return u;
}

/* One code, as the layout has it. */
static __attribute__((unused)) uint32_t packed_code(const uint8_t* block, int64_t row, int64_t k,
                                                    const int codes) {
  const int low = CODES_LOW_BITS(codes), high = CODES_HIGH_BITS(codes);
  int64_t v = k / 4, at = row * 4 + k % 4;
  uint32_t code = (uint32_t)block[v * low / 8 * 64 + at] >> v * low % 8 & ((1u << low) - 1);
  if (high)
    code |=
        ((uint32_t)block[low * 64 + v * high / 8 * 64 + at] >> v * high % 8 & ((1u << high) - 1))
        << low;
  return code;
}

/* ---- Sums of products: of a row's `count` vectors of unsigned codes and 8-bit numbers of x; count
 * is 8, for a block, or 4, for half of it ---- */

ALWAYS_INLINE int32_t four_codes(const int8_t* x) {
  int32_t four;
  __builtin_memcpy(&four, x, 4);
  return four;
}

#if VL >= 8
/* Products in 16 bits: codes are at most 31, so four sums of two fit, or at most 63, where two do.
 */
ALWAYS_INLINE __m256i dot_small(const __m256i* u, const int8_t* x, const int count,
                                const int codes) {
  const __m256i one = _mm256_set1_epi16(1);
  __m256i sum = _mm256_setzero_si256();
  UNROLL_FULLY for (int i = 0; i < count; i += 4) {
    __m256i p[4];
    UNROLL_FULLY for (int j = 0; j < 4; j++) p[j] =
        _mm256_maddubs_epi16(u[i + j], _mm256_set1_epi32(four_codes(x + 4 * (i + j))));
    __m256i a = _mm256_add_epi16(p[0], p[1]), b = _mm256_add_epi16(p[2], p[3]);
    if (codes == CODES_U6) {
      sum = _mm256_add_epi32(sum, _mm256_madd_epi16(a, one));
      sum = _mm256_add_epi32(sum, _mm256_madd_epi16(b, one));
    } else {
      sum = _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_add_epi16(a, b), one));
    }
  }
  return sum;
}
ALWAYS_INLINE __m256i dot_bytes(const __m256i* u, const int8_t* x, const int count) {
  __m256i low = _mm256_setzero_si256(), high = low;
  UNROLL_FULLY for (int i = 0; i < count; i++) {
    __m256i xs = _mm256_cvtepi8_epi16(_mm_set1_epi32(four_codes(x + 4 * i)));
    __m256i a = _mm256_cvtepu8_epi16(_mm256_castsi256_si128(u[i]));
    __m256i b = _mm256_cvtepu8_epi16(_mm256_extracti128_si256(u[i], 1));
    low = _mm256_add_epi32(low, _mm256_madd_epi16(a, xs));
    high = _mm256_add_epi32(high, _mm256_madd_epi16(b, xs));
  }
  return _mm256_permute4x64_epi64(_mm256_hadd_epi32(low, high), 0xD8);
}
#endif

ALWAYS_INLINE vi dot(const vu* u, const int8_t* x, const int count, const int codes) {
#if VL == 16
  __m256i half[2][8];
  UNROLL_FULLY for (int i = 0; i < count; i++) {
    half[0][i] = _mm512_castsi512_si256(u[i]);
    half[1][i] = _mm512_extracti64x4_epi64(u[i], 1);
  }
  __m256i sums[2];
  UNROLL_FULLY for (int i = 0; i < 2; i++) sums[i] =
      CODES_ARE_WIDE(codes) ? dot_bytes(half[i], x, count) : dot_small(half[i], x, count, codes);
  return _mm512_inserti64x4(_mm512_castsi256_si512(sums[0]), sums[1], 1);
#elif VL == 8
  return CODES_ARE_WIDE(codes) ? dot_bytes(u, x, count) : dot_small(u, x, count, codes);
#elif defined(__aarch64__)
  int32x4_t low = vdupq_n_s32(0), high = low;
  UNROLL_FULLY for (int i = 0; i < count; i++) {
    int8x8_t four = vreinterpret_s8_s32(vdup_n_s32(four_codes(x + 4 * i)));
    if (CODES_ARE_WIDE(codes)) {
      int16x8_t xs = vmovl_s8(four);
      int16x8_t a = vreinterpretq_s16_u16(vmovl_u8(vget_low_u8((uint8x16_t)u[i])));
      int16x8_t b = vreinterpretq_s16_u16(vmovl_u8(vget_high_u8((uint8x16_t)u[i])));
      int32x4_t a0 = vmull_s16(vget_low_s16(a), vget_low_s16(xs));
      int32x4_t a1 = vmull_s16(vget_high_s16(a), vget_high_s16(xs));
      int32x4_t b0 = vmull_s16(vget_low_s16(b), vget_low_s16(xs));
      int32x4_t b1 = vmull_s16(vget_high_s16(b), vget_high_s16(xs));
      low = vaddq_s32(low, vpaddq_s32(a0, a1));
      high = vaddq_s32(high, vpaddq_s32(b0, b1));
    } else {
      int8x16_t w = (int8x16_t)u[i];
      low = vpadalq_s16(low, vmull_s8(vget_low_s8(w), four));
      high = vpadalq_s16(high, vmull_s8(vget_high_s8(w), four));
    }
  }
  return (vi)vpaddq_s32(low, high);
#else
  (void)codes;
  vi sum = {0, 0, 0, 0};
  for (int i = 0; i < count; i++) {
    for (int r = 0; r < 4; r++) {
      for (int b = 0; b < 4; b++)
        sum[r] += (int32_t)u[i][4 * r + b] * x[4 * i + b];
    }
  }
  return sum;
#endif
}

/* Lines of codes that are asked for ahead of use: the processor's own prefetching stops at the ends
 * of pages. */
#define AHEAD_BYTES 4096
#define NEAR_BYTES 1024
ALWAYS_INLINE void ask_ahead(const uint8_t* block, const int codes) {
  UNROLL_FULLY for (int i = 0; i < CODES_BLOCK_BYTES(codes); i += 64)
      __builtin_prefetch(block + AHEAD_BYTES + i, 0, 3);
}
/* The same where several rows are multiplied: far ahead into the second-level cache, near ahead
 * from there, and spread over the block's vectors, as all at once they wait for one another. */
ALWAYS_INLINE void ask_with(const uint8_t* block, const int v, const int codes) {
  const int lines = CODES_BLOCK_BYTES(codes) / 64;
  UNROLL_FULLY for (int i = v * lines / 8; i < (v + 1) * lines / 8; i++) {
    __builtin_prefetch(block + AHEAD_BYTES + i * 64, 0, 2);
    __builtin_prefetch(block + NEAR_BYTES + i * 64, 0, 3);
  }
}
#define ROWS_THAT_SPREAD 4

/* Sums of products of a block's part with the rows of x, whose numbers begin at x[r] + at: of
 * `count` vectors from the given one on. With `ahead` the codes behind are asked for. */
ALWAYS_INLINE void dots(vi* out, const int rows, const uint8_t* block, int part, const int from,
                        const int count, const int8_t* const* x, int64_t at, const int codes,
                        int ahead) {
  if (ahead && part == 0 && from == 0)
    ask_ahead(block, codes);
  vu u[8];
  UNROLL_FULLY for (int v = 0; v < count; v++) u[v] = load_code(block, part, from + v, codes);
  UNROLL_FULLY for (int r = 0; r < rows; r++) out[r] = dot(u, x[r] + at + 4 * from, count, codes);
}

#if VL == 16
#define VNNI __attribute__((target("avx512vnni")))
/* Rows within vectors: a row's sums are a chain, each link of which takes five cycles. */
static inline __attribute__((always_inline)) VNNI void
dots_vnni(vi* out, const int rows, const uint8_t* block, int part, const int from, const int count,
          const int8_t* const* x, int64_t at, const int codes, int ahead) {
  if (ahead && rows < ROWS_THAT_SPREAD && from == 0)
    ask_ahead(block, codes);
  UNROLL_FULLY for (int r = 0; r < rows; r++) out[r] = _mm512_setzero_si512();
  UNROLL_FULLY for (int v = from; v < from + count; v++) {
    if (ahead && rows >= ROWS_THAT_SPREAD)
      ask_with(block, v, codes);
    vu u = load_code(block, part, v, codes);
    UNROLL_FULLY for (int r = 0; r < rows; r++) out[r] =
        _mm512_dpbusd_epi32(out[r], u, _mm512_set1_epi32(four_codes(x[r] + at + 4 * v)));
  }
}
#endif

#endif /* ACCRT_KERNELS_PACKED_H_ */
