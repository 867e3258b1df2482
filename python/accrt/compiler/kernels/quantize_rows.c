/* quantize_rows.c - rows of x in 8 bits for products with packed weights (packed.h): in each block
 * of 32 the largest magnitude is 127.
 *
 * Instantiated with A_TAG (f32, f16 or bf16) and ENTRY. A number is off by at most 0.501 of its
 * block's scale, largest / 127. A block that has NaN or an infinity gets the scale NaN; one whose
 * largest magnitude is below 2^-100 becomes zero. x of the grid walks pieces of rows, y rows. */
#include "packed.h"
#include "types.h"

typedef TYPE(A_TAG) a_t;

typedef struct {
  const a_t* x;
  uint8_t* out;
  int64_t m, k, ldx;
} quantize_rows_params_t;

#define PIECE_BLOCKS 256

/* One block; what is behind `count` is zero. */
static void quantize_block(const a_t* from, int64_t count, int8_t* codes, float* out_scale,
                           int32_t out_sums[2]) {
  float x[BLOCK_K];
  for (int i = 0; i < BLOCK_K; i++)
    x[i] = 0.0f;
  if (count == BLOCK_K) {
    INDEPENDENT for (int i = 0; i < BLOCK_K; i++) x[i] = LOAD(A_TAG)(from[i]);
  } else {
    for (int64_t i = 0; i < count; i++)
      x[i] = LOAD(A_TAG)(from[i]);
  }
  uint32_t top = 0; /* of the bits of magnitudes, which order as the numbers do, NaN above all */
  for (int i = 0; i < BLOCK_K; i++) {
    uint32_t magnitude = bits_f32(x[i]) & 0x7FFFFFFFu;
    top = magnitude > top ? magnitude : top;
  }
  float largest = f32_bits(top);
  int usable = top < 0x7F800000u && largest >= 0x1p-100f;
  float inverse = usable ? 127.0f / largest : 0.0f;
  int32_t sums[2] = {0, 0}; /* of sixteen codes each */
  for (int i = 0; i < BLOCK_K; i++) {
    /* Rounds to nearest, ties to even: what is added leaves the integer in the low bits. */
    float product = usable ? x[i] * inverse : 0.0f;
    int32_t code = (int32_t)(bits_f32(product + 0x1.8p23f) - 0x4B400000u);
    codes[i] = (int8_t)code;
    sums[i / 16] += code;
  }
  *out_scale = usable ? largest / 127.0f : top < 0x7F800000u ? 0.0f : f32_bits(0x7FC00000u);
  out_sums[0] = sums[0];
  out_sums[1] = sums[1];
}

#if VL == 16
#define VECTOR_f32(p) v_load(p)
#define VECTOR_f16(p) v_load_f16(p)
#define VECTOR_bf16(p) v_load_bf16(p)
#define VECTOR CONCAT(VECTOR_, A_TAG)

/* A whole block, to the same bits. */
static void quantize_whole(const a_t* from, int8_t* codes, float* out_scale, int32_t out_sums[2]) {
  const __m512i magnitude = _mm512_set1_epi32(0x7FFFFFFF), magic = _mm512_set1_epi32(0x4B400000);
  vf x[2] = {VECTOR(from), VECTOR(from + 16)};
  __m512i a = _mm512_and_si512(_mm512_castps_si512(x[0]), magnitude);
  __m512i b = _mm512_and_si512(_mm512_castps_si512(x[1]), magnitude);
  uint32_t top = _mm512_reduce_max_epu32(_mm512_max_epu32(a, b));
  float largest = f32_bits(top);
  if (top >= 0x7F800000u || largest < 0x1p-100f) {
    quantize_block(from, BLOCK_K, codes, out_scale, out_sums);
    return;
  }
  vf inverse = v_set(127.0f / largest);
  UNROLL_FULLY for (int i = 0; i < 2; i++) {
    vf product = v_add(v_mul(x[i], inverse), v_set(0x1.8p23f));
    __m512i code = _mm512_sub_epi32(_mm512_castps_si512(product), magic);
    _mm_storeu_si128((__m128i*)(void*)(codes + 16 * i), _mm512_cvtepi32_epi8(code));
    out_sums[i] = _mm512_reduce_add_epi32(code);
  }
  *out_scale = largest / 127.0f;
}
#endif

ALWAYS_INLINE void quantize(const a_t* from, int64_t count, int8_t* codes, float* out_scale,
                            int32_t out_sums[2]) {
#if VL == 16
  if (count == BLOCK_K) {
    quantize_whole(from, codes, out_scale, out_sums);
    return;
  }
#endif
  quantize_block(from, count, codes, out_scale, out_sums);
}

KERNEL_ENTRY(ENTRY) {
  (void)environment;
  const quantize_rows_params_t* p = (const quantize_rows_params_t*)dispatch->params;
  int64_t row = workgroup->workgroup_id[1], blocks = ceildiv_i64(p->k, BLOCK_K);
  if (row >= p->m)
    return KERNEL_OK;
  uint8_t* out = p->out + row * quantized_row_bytes(p->k);
  float* scales = (float*)(void*)(out + blocks * BLOCK_K);
  int64_t first = (int64_t)workgroup->workgroup_id[0] * PIECE_BLOCKS;
  for (int64_t i = first; i < min_i64(first + PIECE_BLOCKS, blocks); i++) {
    int32_t sums[2];
    quantize(p->x + row * p->ldx + i * BLOCK_K, min_i64(BLOCK_K, p->k - i * BLOCK_K),
             (int8_t*)out + i * BLOCK_K, &scales[i], sums);
    scales[blocks + i] = (float)(sums[0] + sums[1]);
    scales[2 * blocks + i] = (float)sums[0];
    scales[3 * blocks + i] = (float)sums[1];
  }
  return KERNEL_OK;
}
