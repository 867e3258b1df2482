/* packed_rows.c - rows of a packed weight (packed.h) as floats: those that an index picks. So an
 * embedding and a product share one weight. The values are those of the layout, to the bit.
 *
 * Instantiated with CODES, SCALES, TOP_IS_NAN, ZEROS and MINIMA (as packed_matmul.c has them),
 * OUT_TAG, INDEX_TAG and ENTRY; not for floats of 8 bits, whose NaN are lost. x of the grid walks
 * rows of the result. An index outside [0, n) fails the dispatch with KERNEL_ERROR_INDEX. */
#include "packed.h"
#include "types.h"

#define LAYOUT 0
#define INLINE ALWAYS_INLINE
#define SCALE_AT(p, i) 0.0f
#include "layouts.h"

typedef TYPE(INDEX_TAG) index_t;
typedef TYPE(OUT_TAG) out_t;

typedef struct {
  const uint8_t* w;
  const index_t* index;
  out_t* out;
  int64_t n, k, group, groups, rows;
} packed_rows_params_t;

#define KIND_f32 0
#define KIND_f16 0
#define KIND_bf16 0
#define KIND_power 1
#define KIND_q4k 2
#define KIND_q2k 3
#define KIND_q6k 4
#define KIND CONCAT(KIND_, SCALES)
#define RECORD_BYTES (KIND == 4 ? Q6K_RECORD_BYTES : Q4K_RECORD_BYTES)

#if CODES == CODES_S8
#define BASE 128
#elif CODES == CODES_U6
#define BASE 32
#elif CODES == CODES_U5
#define BASE 16
#elif CODES == CODES_U4
#define BASE 8
#elif CODES == CODES_U3
#define BASE 4
#else
#define BASE 0
#endif

#if KIND == 0
typedef TYPE(SCALES) scale_t;
#define LOAD_SCALE(p) LOAD(SCALES)(*(p))
#else
typedef uint8_t scale_t;
#define LOAD_SCALE(p) ((float)*(p))
#endif

/* Of the panel that the row is in; `lane` is the row's. */
typedef struct {
  const uint8_t *codes, *scales, *zeros;
  int64_t lane;
} place_t;

static place_t place_of(const packed_rows_params_t* p, int64_t row) {
  int64_t panels = ceildiv_i64(p->n, PANEL_ROWS), blocks = ceildiv_i64(p->k, BLOCK_K);
  int64_t panel = row / PANEL_ROWS;
  int64_t bytes =
      KIND >= 2 ? blocks / 8 * RECORD_BYTES : p->groups * PANEL_ROWS * (int64_t)sizeof(scale_t);
  const uint8_t* scales = p->w + panels * blocks * CODES_BLOCK_BYTES(CODES);
  const uint8_t* zeros = scales + (panels * bytes + 63) / 64 * 64;
  place_t at = {p->w + panel * blocks * CODES_BLOCK_BYTES(CODES), scales + panel * bytes,
                zeros + panel * p->groups * PANEL_ROWS * (MINIMA ? 2 : 1), row % PANEL_ROWS};
  return at;
}

ALWAYS_INLINE float f16_of(const uint8_t* p, int64_t at) {
  return f32_from_f16(((const f16_t*)(const void*)p)[at]);
}

/* With small scales of 32 or 16 elements, and their factors. */
static float value_in_record(const place_t* at, uint32_t code, int64_t block, int64_t half) {
  const uint8_t* record = at->scales + block / 8 * RECORD_BYTES;
  int64_t j = block % 8, g = 2 * j + half, r = at->lane;
  float number = (float)((int32_t)code - BASE), d = f16_of(record, r);
  if (KIND == 4)
    return d * (float)(int8_t)record[32 + g * 16 + r] * number;
  uint32_t scale = KIND == 3 ? record[64 + g * 16 + r] & 15u : record[64 + j * 16 + r];
  uint32_t least = KIND == 3 ? record[64 + g * 16 + r] >> 4 : record[192 + j * 16 + r];
  return d * (float)scale * number - f16_of(record + 32, r) * (float)least;
}

static float value_in_group(const place_t* at, uint32_t code, int64_t group) {
  int64_t i = group * PANEL_ROWS + at->lane;
  const scale_t* scale = (const scale_t*)(const void*)at->scales + i;
  if (KIND == 1)
    return TOP_IS_NAN ? e8m0_value(at->scales[i]) * e2m1_value(code)
                      : e8m0_half(at->scales[i]) * (e2m1_value(code) * 2.0f);
  if (CODES == CODES_IQ4)
    return LOAD_SCALE(scale) * (float)iq4_value(code);
  if (MINIMA)
    return LOAD_SCALE(scale) * (float)code + f16_of(at->zeros, i);
  return (float)((int32_t)code - (ZEROS ? (int32_t)at->zeros[i] : BASE)) * LOAD_SCALE(scale);
}

KERNEL_ENTRY(ENTRY) {
  (void)environment;
  const packed_rows_params_t* p = (const packed_rows_params_t*)dispatch->params;
  int64_t first = part_begin(p->rows, workgroup->workgroup_id[0], dispatch->workgroup_count[0]);
  int64_t end = part_begin(p->rows, workgroup->workgroup_id[0] + 1, dispatch->workgroup_count[0]);
  for (int64_t i = first; i < end; i++) {
    int64_t row = (int64_t)p->index[i];
    if (UNLIKELY(row < 0 || row >= p->n)) {
      fail_message(workgroup, "index % is outside an axis of size %", row, p->n);
      return KERNEL_ERROR_INDEX;
    }
    place_t at = place_of(p, row);
    for (int64_t k = 0; k < p->k; k++) {
      const uint8_t* block = at.codes + k / BLOCK_K * CODES_BLOCK_BYTES(CODES);
      uint32_t code = packed_code(block, at.lane, k % BLOCK_K, CODES);
      float value = KIND >= 2 ? value_in_record(&at, code, k / BLOCK_K, k % BLOCK_K / 16)
                              : value_in_group(&at, code, k / p->group);
      p->out[i * p->k + k] = STORE(OUT_TAG)(value);
    }
  }
  return KERNEL_OK;
}
