/* packed_prepare.c - brings a weight into the order of packed.h, once, when it is loaded.
 *
 * Instantiated with LAYOUT, CODES and SCALES (as packed_matmul.c has them), S_TAG (type of scales
 * in their component), ZEROS, MINIMA and ENTRY. x of the grid walks panels of 16 rows.
 * y cuts k into pieces, the first of which makes the scales too. A NaN in e4m3 codes becomes NaN in
 * its scale: every product with it is NaN either way. */
#include "packed.h"
#include "types.h"

#define INLINE ALWAYS_INLINE
#define SCALE_AT(p, i) LOAD(S_TAG)(((const TYPE(S_TAG)*)(const void*)(p))[i])
#include "layouts.h"

typedef TYPE(S_TAG) s_t;

typedef struct {
  const uint8_t *data, *scales, *zeros, *global_scale;
  uint8_t* out;
  int64_t n, k, group, groups, is_e5m2;
} packed_prepare_params_t;

#define PIECE_BLOCKS 64
#define SCALES_ARE_f32 1
#define SCALES_ARE_f16 1
#define SCALES_ARE_bf16 1
#define SCALES_ARE_power 2
#define SCALES_ARE_e4m3 6
#define SCALES_ARE_q4k 3
#define SCALES_ARE_q2k 4
#define SCALES_ARE_q6k 5
#define SCALES_ARE CONCAT(SCALES_ARE_, SCALES)
#define IS_BLOCK_FORMAT                                                                            \
  ((LAYOUT >= Q8_0 && LAYOUT <= GGML_NVFP4) || (LAYOUT >= Q5_0 && LAYOUT <= IQ4_NL))
/* Of a block that begins with its scale, and of one with scales of scales. */
#define SCALED_BLOCK_BYTES                                                                         \
  (LAYOUT == Q8_0 ? 34 : LAYOUT == Q4_1 ? 20 : LAYOUT == Q5_0 ? 22 : LAYOUT == Q5_1 ? 24 : 18)
#define SUPERBLOCK_BYTES                                                                           \
  (LAYOUT == Q4_K ? 144 : LAYOUT == Q5_K ? 176 : LAYOUT == Q6_K ? 210 : LAYOUT == Q2_K ? 84 : 110)
#define RECORD_BYTES (SCALES_ARE == 5 ? Q6K_RECORD_BYTES : Q4K_RECORD_BYTES)

/* Codes that add nothing. */
#define NOTHING                                                                                    \
  (CODES == CODES_U4   ? 8                                                                         \
   : CODES == CODES_S8 ? 128                                                                       \
   : CODES == CODES_U5 ? 16                                                                        \
   : CODES == CODES_U6 ? 32                                                                        \
   : CODES == CODES_U3 ? 4                                                                         \
                       : 0)

ALWAYS_INLINE uint8_t code_at(const weight_t* w, int64_t row, int64_t k) {
  if (CODES == CODES_S8 && LAYOUT == Q8_0)
    return w->data[(row * w->k + k) / 32 * 34 + 2 + k % 32] ^ 0x80u;
  if (CODES == CODES_S8)
    return (uint8_t)biased_byte_at(w, row, k);
  if (CODES == CODES_E4M3)
    return (w->data[row * w->k + k] & 0x7Fu) == 0x7Fu ? 0 : w->data[row * w->k + k];
  if (CODES == CODES_E5M2)
    return w->data[row * w->k + k];
  return (uint8_t)code_bits_at(w, row, k);
}

/* One plane of a block: `bits` bits of its codes from bit `first` up. */
static void place_plane(uint8_t* out, uint8_t codes[PANEL_ROWS][BLOCK_K], int first, int bits) {
  __builtin_memset(out, 0, 64 * (size_t)bits);
  for (int r = 0; r < PANEL_ROWS; r++) {
    for (int i = 0; i < BLOCK_K; i++) {
      uint32_t code = (uint32_t)codes[r][i] >> first & ((1u << bits) - 1);
      out[i / 4 * bits / 8 * 64 + r * 4 + i % 4] |= (uint8_t)(code << i / 4 * bits % 8);
    }
  }
}

/* One block of a panel from the codes of its rows. */
static void place_codes(uint8_t* out, uint8_t codes[PANEL_ROWS][BLOCK_K]) {
  const int low = CODES_LOW_BITS(CODES), high = CODES_HIGH_BITS(CODES);
  if (!CODES_ARE_FLOATS(CODES)) {
    place_plane(out, codes, 0, low);
    if (high)
      place_plane(out + 64 * low, codes, low, high);
    return;
  }
  for (int r = 0; r < PANEL_ROWS; r++) {
    for (int i = 0; i < BLOCK_K; i++)
      out[i * PANEL_ROWS + r] = codes[r][i];
  }
}

static void prepare_block(const weight_t* w, uint8_t* out, int64_t panel, int64_t block) {
  uint8_t codes[PANEL_ROWS][BLOCK_K];
  int64_t columns = min_i64(BLOCK_K, w->k - block * BLOCK_K);
  for (int r = 0; r < PANEL_ROWS; r++) {
    int64_t row = panel * PANEL_ROWS + r;
    for (int i = 0; i < BLOCK_K; i++)
      codes[r][i] = NOTHING;
    for (int64_t i = 0; i < columns && row < w->n; i++)
      codes[r][i] = code_at(w, row, block * BLOCK_K + i);
  }
  place_codes(out, codes);
}

static int has_nan(const weight_t* w, int64_t row, int64_t group) {
  int found = 0;
  for (int64_t i = group * w->group; i < min_i64((group + 1) * w->group, w->k); i++)
    found |= (w->data[row * w->k + i] & 0x7Fu) == 0x7Fu;
  return found;
}

/* The scale of a row in a group, as it is stored: f16 in block formats. */
static s_t scale_at(const weight_t* w, int64_t row, int64_t group) {
  s_t scale;
  if (IS_BLOCK_FORMAT)
    __builtin_memcpy(&scale, w->data + (row * w->k / 32 + group) * SCALED_BLOCK_BYTES,
                     sizeof scale);
  else
    scale = ((const s_t*)(const void*)w->scales)[scale_index(w, row, group)];
  if (CODES == CODES_E4M3 && has_nan(w, row, group))
    scale = STORE(S_TAG)(f32_bits(0x7FC00000u));
  return scale;
}

static void prepare_scales(const weight_t* w, uint8_t* scales, uint8_t* zeros, int64_t panel) {
  int64_t first = panel * PANEL_ROWS, rows = min_i64(PANEL_ROWS, w->n - first);
  for (int64_t g = 0; g < w->groups; g++) {
    for (int64_t r = 0; r < PANEL_ROWS; r++) {
      int64_t at = (panel * w->groups + g) * PANEL_ROWS + r;
      if (SCALES_ARE == 1)
        ((s_t*)(void*)scales)[at] = r < rows ? scale_at(w, first + r, g) : STORE(S_TAG)(0.0f);
      else if (LAYOUT == GGML_MXFP4)
        scales[at] = r < rows ? w->data[((first + r) * w->groups + g) * 17] : 0;
      else
        scales[at] = r < rows ? w->scales[(first + r) * w->groups + g] : 0;
      if (SCALES_ARE == 2 && CODES == CODES_E4M3 && r < rows && has_nan(w, first + r, g))
        scales[at] = 255;
      if (MINIMA) {
        __builtin_memset(zeros + 2 * at, 0, 2);
        if (r < rows)
          __builtin_memcpy(zeros + 2 * at,
                           w->data + ((first + r) * w->groups + g) * SCALED_BLOCK_BYTES + 2, 2);
      }
      if (ZEROS)
        zeros[at] = (uint8_t)(r < rows ? zero_at(w, first + r, g) : 0);
    }
  }
}

/* A row's part of a record, from a superblock. */
static void prepare_record(const uint8_t* b, uint8_t* record, int64_t r) {
  const int factors = LAYOUT == Q2_K ? 80 : LAYOUT == Q3_K ? 108 : LAYOUT == Q6_K ? 208 : 0;
  __builtin_memcpy(record + 2 * r, b + factors, 2);
  if (SCALES_ARE != 5)
    __builtin_memcpy(record + 32 + 2 * r, b + factors + 2, 2);
  for (int64_t j = 0; j < 8 && SCALES_ARE == 3; j++) {
    uint32_t two = small_scales(b + 4, j);
    record[64 + j * 16 + r] = (uint8_t)two;
    record[192 + j * 16 + r] = (uint8_t)(two >> 8);
  }
  for (int64_t g = 0; g < 16 && SCALES_ARE == 4; g++)
    record[64 + g * 16 + r] = b[g];
  for (int64_t g = 0; g < 16 && SCALES_ARE == 5; g++)
    record[32 + g * 16 + r] = LAYOUT == Q3_K ? (uint8_t)q3_scale(b + 96, g) : b[192 + g];
}

static void prepare_records(const weight_t* w, uint8_t* records, int64_t panel) {
  static const uint8_t none[SUPERBLOCK_BYTES];
  int64_t count = w->k / 256;
  for (int64_t i = 0; i < count; i++) {
    for (int64_t r = 0; r < PANEL_ROWS; r++) {
      int64_t row = panel * PANEL_ROWS + r;
      const uint8_t* b = row < w->n ? w->data + (row * count + i) * SUPERBLOCK_BYTES : none;
      prepare_record(b, records + (panel * count + i) * RECORD_BYTES, r);
    }
  }
}

/* Scales of each 16 k, and what all of a row are multiplied by. */
static void prepare_e4m3(const weight_t* w, uint8_t* scales, uint8_t* factors, int64_t panel) {
  int64_t first = panel * PANEL_ROWS, groups = ceildiv_i64(w->k, BLOCK_K) * 2;
  for (int64_t r = 0; r < PANEL_ROWS; r++) {
    int there = first + r < w->n;
    float factor = there ? row_factor(w, first + r) : 0.0f;
    __builtin_memcpy(factors + (first + r) * 4, &factor, 4);
    for (int64_t g = 0; g < groups; g++)
      scales[(panel * groups + g) * PANEL_ROWS + r] =
          (uint8_t)(there && g < w->groups ? e4m3_scale_at(w, first + r, g) : 0);
  }
}

#define SCALE_SIZE (SCALES_ARE == 1 ? (int64_t)sizeof(s_t) : 1)

KERNEL_ENTRY(ENTRY) {
  (void)environment;
  const packed_prepare_params_t* p = (const packed_prepare_params_t*)dispatch->params;
  const weight_t w = {p->data, p->scales, p->zeros, 0,         p->global_scale,
                      p->n,    p->k,      p->group, p->groups, p->is_e5m2};
  int64_t panel = workgroup->workgroup_id[0], first = workgroup->workgroup_id[1] * PIECE_BLOCKS;
  int64_t panels = ceildiv_i64(p->n, PANEL_ROWS), blocks = ceildiv_i64(p->k, BLOCK_K);
  if (panel >= panels)
    return KERNEL_OK;
  for (int64_t i = first; i < min_i64(first + PIECE_BLOCKS, blocks); i++)
    prepare_block(&w, p->out + (panel * blocks + i) * CODES_BLOCK_BYTES(CODES), panel, i);
  if (first != 0)
    return KERNEL_OK;
  uint8_t* scales = p->out + panels * blocks * CODES_BLOCK_BYTES(CODES);
  int64_t scale_bytes = SCALES_ARE == 6   ? blocks * 2 * PANEL_ROWS
                        : SCALES_ARE >= 3 ? p->k / 256 * RECORD_BYTES
                                          : p->groups * PANEL_ROWS * SCALE_SIZE;
  uint8_t* zeros = scales + (panels * scale_bytes + 63) / 64 * 64;
  if (SCALES_ARE == 6)
    prepare_e4m3(&w, scales, zeros, panel);
  else if (SCALES_ARE >= 3)
    prepare_records(&w, scales, panel);
  else
    prepare_scales(&w, scales, zeros, panel);
  return KERNEL_OK;
}
