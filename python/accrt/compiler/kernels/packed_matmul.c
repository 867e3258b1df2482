/* packed_matmul.c - c = activation(x @ w^T + bias) + residual, with w packed as packed.h has it.
 *
 * Instantiated with CODES, SCALES (f32, f16, bf16, power, e4m3, q4k, q2k, q6k), TOP_IS_NAN (of
 * powers), ZEROS and MINIMA (0 or 1), C_TAG and ENTRY; for floats of 8 bits also A_TAG. x is what
 * quantize_rows.c made, or for 8-bit floats x itself. A workgroup makes `panels_per_group`
 * panels of 16 columns for up to GROUP_ROWS rows; x of the grid walks panels, y rows.
 *
 * With `ends`, w has many matrices, as a mixture of experts has them: rows ends[e - 1] up to
 * ends[e] are multiplied with matrix e, and y of the grid walks matrices. One without rows is not
 * read. Rows behind the last end become zeros.
 *
 * Sums of products of codes are exact; everything else is f32, blocks in ascending order, so that a
 * row has the same bytes alone and in a batch. */
#include "activate.h"
#include "packed.h"
#include "types.h"

typedef TYPE(C_TAG) c_t;

#define IS_FLOAT CODES_ARE_FLOATS(CODES)
#if IS_FLOAT
typedef TYPE(A_TAG) x_t;
#else
typedef uint8_t x_t;
#endif

typedef struct {
  const x_t* x;
  const uint8_t* w;
  const float* bias;
  const c_t* residual;
  c_t* c;
  const int64_t* ends; /* or none: one matrix takes all rows */
  int64_t m, n, k, ldx, ldc, ld_residual;
  int64_t group; /* elements of k that share a scale: a multiple of 32, or at least k */
  int64_t panels_per_group;
  int64_t activation;
  int64_t packed_n; /* rows of what was packed as one */
  int64_t matrices, matrix_panels, matrix_bytes, ends_step;
} packed_matmul_params_t;

#define GROUP_ROWS 64
/* Rows that share the reading and unpacking of codes: at most as many as sums fit the registers. */
#define MAX_ROWS (VL == 16 ? 8 : 4)
#define SCALE_BYTES_f32 4
#define SCALE_BYTES_f16 2
#define SCALE_BYTES_bf16 2
#define SCALE_BYTES_power 1
#define SCALE_BYTES_e4m3 2 /* of the two halves of a block */
#define SCALE_BYTES_q4k 0
#define SCALE_BYTES_q2k 0
#define SCALE_BYTES_q6k 0
#define SCALE_BYTES CONCAT(SCALE_BYTES_, SCALES)
/* Of 256 k, where scales have scales. */
#define RECORD_BYTES_f32 0
#define RECORD_BYTES_f16 0
#define RECORD_BYTES_bf16 0
#define RECORD_BYTES_power 0
#define RECORD_BYTES_e4m3 0
#define RECORD_BYTES_q4k Q4K_RECORD_BYTES
#define RECORD_BYTES_q2k Q2K_RECORD_BYTES
#define RECORD_BYTES_q6k Q6K_RECORD_BYTES
#define RECORD_BYTES CONCAT(RECORD_BYTES_, SCALES)

#define SCALE_f32(p) v_load((const float*)(const void*)(p))
#define SCALE_f16(p) v_load_f16((const f16_t*)(const void*)(p))
#define SCALE_bf16(p) v_load_bf16((const bf16_t*)(const void*)(p))
#define SCALE_power(p) v_load_power(p, TOP_IS_NAN)
#define LOAD_SCALE CONCAT(SCALE_, SCALES)
/* Whether each 16 k have a scale of e4m3, and each row a factor: where others have zeros. */
#define IS_E4M3_f32 0
#define IS_E4M3_f16 0
#define IS_E4M3_bf16 0
#define IS_E4M3_power 0
#define IS_E4M3_e4m3 1
#define IS_E4M3_q4k 0
#define IS_E4M3_q2k 0
#define IS_E4M3_q6k 0
#define IS_E4M3 CONCAT(IS_E4M3_, SCALES)

/* What lies below the codes' zero. */
#if CODES == CODES_U4
#define BASE 8.0f
#elif CODES == CODES_S8
#define BASE 128.0f
#elif CODES == CODES_E2M1
#define BASE 12.0f
#elif CODES == CODES_IQ4
#define BASE 128.0f
#elif CODES == CODES_U5
#define BASE 16.0f
#elif CODES == CODES_U6
#define BASE 32.0f
#elif CODES == CODES_U3
#define BASE 4.0f
#else
#define BASE 0.0f
#endif

/* A panel: its codes, scales and zeros (or minima), and how many blocks it and a group have. */
typedef struct {
  const uint8_t *codes, *scales, *zeros;
  int64_t blocks, group_blocks;
} panel_t;

ALWAYS_INLINE panel_t panel_at(const packed_matmul_params_t* p, const uint8_t* w, int64_t panel) {
  int64_t panels = ceildiv_i64(p->packed_n, PANEL_ROWS), blocks = ceildiv_i64(p->k, BLOCK_K);
  int64_t groups = IS_E4M3 ? blocks : ceildiv_i64(p->k, p->group);
  int64_t scale_bytes =
      RECORD_BYTES ? ceildiv_i64(blocks, 8) * RECORD_BYTES : groups * PANEL_ROWS * SCALE_BYTES;
  const uint8_t* scales = w + panels * blocks * CODES_BLOCK_BYTES(CODES);
  const uint8_t* zeros = scales + (panels * scale_bytes + 63) / 64 * 64;
  panel_t at = {w + panel * blocks * CODES_BLOCK_BYTES(CODES), scales + panel * scale_bytes,
                zeros + panel * PANEL_ROWS * (IS_E4M3 ? 4 : groups * (MINIMA ? 2 : 1)), blocks,
                min_i64(ceildiv_i64(p->group, BLOCK_K), max_i64(blocks, 1))};
  return at;
}

#define RECORDS_AHEAD 4
#define SCALES_AHEAD 8 /* groups */

typedef vf sums_t[MAX_ROWS][PARTS];

ALWAYS_INLINE void clear(sums_t sums, const int rows) {
  UNROLL_FULLY for (int r = 0; r < rows; r++) {
    UNROLL_FULLY for (int part = 0; part < PARTS; part++) sums[r][part] = v_zero();
  }
}

ALWAYS_INLINE void store_sums(sums_t sums, const int rows, float* tile, int64_t step) {
  UNROLL_FULLY for (int r = 0; r < rows; r++) {
    UNROLL_FULLY for (int part = 0; part < PARTS; part++)
        v_store(tile + r * step + part * VL, sums[r][part]);
  }
}

#if IS_FLOAT

/* Four sums a row, of k modulo four, as chains of one would be too long. */
ALWAYS_INLINE void add_floats(vf sums[4], const x_t* x, const uint8_t* codes, int part, int64_t k) {
  int64_t i = 0;
  for (; i + 4 <= k; i += 4) {
    UNROLL_FULLY for (int j = 0; j < 4; j++) {
      vf w = v_from_f8(codes + (i + j) * PANEL_ROWS + part * VL, CODES == CODES_E5M2);
      sums[j] = v_fma(v_set(LOAD(A_TAG)(x[i + j])), w, sums[j]);
    }
  }
  for (; i < k; i++) {
    vf w = v_from_f8(codes + i * PANEL_ROWS + part * VL, CODES == CODES_E5M2);
    sums[i % 4] = v_fma(v_set(LOAD(A_TAG)(x[i])), w, sums[i % 4]);
  }
}

/* e4m3 codes are read as f16 with the exponent of another bias; powers are halves. */
#define FACTOR ((CODES == CODES_E4M3 ? 256.0f : 1.0f) * (SCALE_BYTES == 1 ? 2.0f : 1.0f))

static void panel_rows(const packed_matmul_params_t* p, const panel_t* at, int64_t row,
                       int64_t rows, float* tile, int64_t step) {
  for (int64_t r = 0; r < rows; r++) {
    const x_t* x = p->x + (row + r) * p->ldx;
    UNROLL_FULLY for (int part = 0; part < PARTS; part++) {
      vf total = v_zero();
      for (int64_t g = 0, i = 0; i < p->k; g++, i += p->group) {
        vf s[4] = {v_zero(), v_zero(), v_zero(), v_zero()};
        add_floats(s, x + i, at->codes + i * PANEL_ROWS, part, min_i64(p->group, p->k - i));
        vf scale = LOAD_SCALE(at->scales + (g * PANEL_ROWS + part * VL) * SCALE_BYTES);
        vf sum = v_mul(v_add(v_add(s[0], s[2]), v_add(s[1], s[3])), v_set(FACTOR));
        total = v_fma(sum, scale, total);
      }
      v_store(tile + r * step + part * VL, total);
    }
  }
}
#define PANEL_ROWS_WITH(environment) panel_rows

#else

typedef struct {
  const int8_t* codes[MAX_ROWS];
  const float *scales[MAX_ROWS], *sums[MAX_ROWS];  /* of codes, in blocks */
  const float *first[MAX_ROWS], *second[MAX_ROWS]; /* and in their halves */
} rows_t;

ALWAYS_INLINE rows_t rows_at(const packed_matmul_params_t* p, int64_t row, const int rows) {
  int64_t blocks = ceildiv_i64(p->k, BLOCK_K), bytes = quantized_row_bytes(p->k);
  rows_t at;
  UNROLL_FULLY for (int r = 0; r < rows; r++) {
    const uint8_t* from = p->x + (row + r) * bytes;
    at.codes[r] = (const int8_t*)from;
    at.scales[r] = (const float*)(const void*)(from + blocks * BLOCK_K);
    at.sums[r] = at.scales[r] + blocks;
    at.first[r] = at.sums[r] + blocks;
    at.second[r] = at.first[r] + blocks;
  }
  return at;
}

#if RECORD_BYTES
/* Whether groups have 16 elements. */
#define HALVES CONCAT(HALVES_, SCALES)
#define HALVES_q4k 0
#define HALVES_q2k 1
#define HALVES_q6k 1
#define HAS_MINIMA_q4k 1
#define HAS_MINIMA_q2k 1
#define HAS_MINIMA_q6k 0
#define HAS_MINIMA CONCAT(HAS_MINIMA_, SCALES)

/* Scales and minima of a block, or of its halves. */
typedef struct {
  vf scales[2], minima[2];
} small_t;

ALWAYS_INLINE small_t small_scales_q4k(const uint8_t* record, int64_t j, int part) {
  vf scales = v_load_u8(record + 64 + j * 16 + part * VL);
  vf minima = v_load_u8(record + 192 + j * 16 + part * VL);
  return (small_t){{scales, scales}, {minima, minima}};
}
ALWAYS_INLINE small_t small_scales_q2k(const uint8_t* record, int64_t j, int part) {
  small_t small;
  UNROLL_FULLY for (int i = 0; i < 2; i++) {
    vi both = vi_load_u8(record + 64 + (2 * j + i) * 16 + part * VL);
    small.scales[i] = v_from_i(vi_low_nibble(both));
    small.minima[i] = v_from_i(vi_high_nibble(both));
  }
  return small;
}
ALWAYS_INLINE small_t small_scales_q6k(const uint8_t* record, int64_t j, int part) {
  small_t small;
  UNROLL_FULLY for (int i = 0; i < 2; i++) {
    small.scales[i] = v_load_i8(record + 32 + (2 * j + i) * 16 + part * VL);
    small.minima[i] = small.scales[i];
  }
  return small;
}
#define small_scales_of CONCAT(small_scales_, SCALES)

/* Each 256 k: d (sum of s_j dx_j dot_j) - dmin (sum of m_j dx_j sum_j). The products within are
 * exact before they are added: |s_j dot_j| is at most 2^24. */
#define DEFINE_BLOCK_ROWS(NAME, ATTRIBUTE, DOTS)                                                   \
  static inline __attribute__((always_inline))                                                     \
  ATTRIBUTE void NAME##_rows(const packed_matmul_params_t* p, const panel_t* at, int64_t row,      \
                             const int rows, int ahead, float* tile, int64_t step) {               \
    rows_t x = rows_at(p, row, rows);                                                              \
    const uint8_t *codes = at->codes, *record = at->scales;                                        \
    sums_t sums;                                                                                   \
    clear(sums, rows);                                                                             \
    for (int64_t first = 0; first < at->blocks; first += 8, record += RECORD_BYTES) {              \
      sums_t scaled, least;                                                                        \
      clear(scaled, rows);                                                                         \
      clear(least, rows);                                                                          \
      for (int64_t j = 0; j < 8; j++, codes += CODES_BLOCK_BYTES(CODES)) {                         \
        if (ahead)                                                                                 \
          __builtin_prefetch(record + RECORDS_AHEAD * RECORD_BYTES + j * 64, 0, 2);                \
        UNROLL_FULLY for (int part = 0; part < PARTS; part++) {                                    \
          vi exact[MAX_ROWS], more[MAX_ROWS];                                                      \
          int64_t k = (first + j) * BLOCK_K;                                                       \
          DOTS(exact, rows, codes, part, 0, HALVES ? 4 : 8, x.codes, k, CODES, ahead);             \
          if (HALVES)                                                                              \
            DOTS(more, rows, codes, part, 4, 4, x.codes, k, CODES, ahead);                         \
          small_t small = small_scales_of(record, j, part);                                        \
          UNROLL_FULLY for (int r = 0; r < rows; r++) {                                            \
            float dx = x.scales[r][first + j];                                                     \
            if (HALVES) {                                                                          \
              float x0 = x.first[r][first + j], x1 = x.second[r][first + j];                       \
              vf a = v_from_i(exact[r]), b = v_from_i(more[r]);                                    \
              a = BASE != 0 ? v_fma(v_set(-BASE), v_set(x0), a) : a;                               \
              b = BASE != 0 ? v_fma(v_set(-BASE), v_set(x1), b) : b;                               \
              a = v_fma(small.scales[1], b, v_mul(small.scales[0], a));                            \
              scaled[r][part] = v_fma(a, v_set(dx), scaled[r][part]);                              \
              if (HAS_MINIMA) {                                                                    \
                vf m = v_fma(small.minima[1], v_set(x1), v_mul(small.minima[0], v_set(x0)));       \
                least[r][part] = v_fma(m, v_set(dx), least[r][part]);                              \
              }                                                                                    \
            } else {                                                                               \
              vf a = v_mul(v_from_i(exact[r]), small.scales[0]);                                   \
              scaled[r][part] = v_fma(a, v_set(dx), scaled[r][part]);                              \
              float all = dx * x.sums[r][first + j];                                               \
              least[r][part] = v_fma(small.minima[0], v_set(all), least[r][part]);                 \
            }                                                                                      \
          }                                                                                        \
        }                                                                                          \
      }                                                                                            \
      UNROLL_FULLY for (int part = 0; part < PARTS; part++) {                                      \
        vf d = SCALE_f16(record + part * VL * 2);                                                  \
        vf dmin = HAS_MINIMA ? v_mul(SCALE_f16(record + 32 + part * VL * 2), v_set(-1.0f)) : d;    \
        UNROLL_FULLY for (int r = 0; r < rows; r++) {                                              \
          sums[r][part] = v_fma(d, scaled[r][part], sums[r][part]);                                \
          if (HAS_MINIMA)                                                                          \
            sums[r][part] = v_fma(dmin, least[r][part], sums[r][part]);                            \
        }                                                                                          \
      }                                                                                            \
    }                                                                                              \
    store_sums(sums, rows, tile, step);                                                            \
  }
#elif IS_E4M3
/* Each block: dx times the sum of both halves, each with its scale; the row's factor at the end.
 * e4m3 is read as f16 with the exponent of another bias, and codes are twice their values: 2^-7. */
#define DEFINE_BLOCK_ROWS(NAME, ATTRIBUTE, DOTS)                                                   \
  static inline __attribute__((always_inline))                                                     \
  ATTRIBUTE void NAME##_rows(const packed_matmul_params_t* p, const panel_t* at, int64_t row,      \
                             const int rows, int ahead, float* tile, int64_t step) {               \
    rows_t x = rows_at(p, row, rows);                                                              \
    const uint8_t *codes = at->codes, *scales = at->scales;                                        \
    sums_t sums;                                                                                   \
    clear(sums, rows);                                                                             \
    for (int64_t j = 0; j < at->blocks; j++, codes += CODES_BLOCK_BYTES(CODES)) {                  \
      if (ahead)                                                                                   \
        __builtin_prefetch(scales + SCALES_AHEAD * 2 * PANEL_ROWS, 0, 2);                          \
      UNROLL_FULLY for (int part = 0; part < PARTS; part++) {                                      \
        vi exact[MAX_ROWS], more[MAX_ROWS];                                                        \
        DOTS(exact, rows, codes, part, 0, 4, x.codes, j* BLOCK_K, CODES, ahead);                   \
        DOTS(more, rows, codes, part, 4, 4, x.codes, j* BLOCK_K, CODES, ahead);                    \
        vf first = v_from_f8(scales + part * VL, 0);                                               \
        vf second = v_from_f8(scales + PANEL_ROWS + part * VL, 0);                                 \
        UNROLL_FULLY for (int r = 0; r < rows; r++) {                                              \
          vf a = v_fma(v_set(-BASE), v_set(x.first[r][j]), v_from_i(exact[r]));                    \
          vf b = v_fma(v_set(-BASE), v_set(x.second[r][j]), v_from_i(more[r]));                    \
          a = v_fma(second, b, v_mul(first, a));                                                   \
          sums[r][part] = v_fma(a, v_set(x.scales[r][j]), sums[r][part]);                          \
        }                                                                                          \
      }                                                                                            \
      scales += 2 * PANEL_ROWS;                                                                    \
    }                                                                                              \
    UNROLL_FULLY for (int part = 0; part < PARTS; part++) {                                        \
      vf factor = v_mul(SCALE_f32(at->zeros + part * VL * 4), v_set(128.0f));                      \
      UNROLL_FULLY for (int r = 0; r < rows; r++) sums[r][part] = v_mul(sums[r][part], factor);    \
    }                                                                                              \
    store_sums(sums, rows, tile, step);                                                            \
  }
#else
/* Each group: s (sum of dx_j (dot_j - z sum_j)), and minima: m (sum of dx_j sum_j). What is in the
 * inner brackets is exact. */
#define DEFINE_BLOCK_ROWS(NAME, ATTRIBUTE, DOTS)                                                   \
  static inline __attribute__((always_inline))                                                     \
  ATTRIBUTE void NAME##_rows(const packed_matmul_params_t* p, const panel_t* at, int64_t row,      \
                             const int rows, int ahead, float* tile, int64_t step) {               \
    rows_t x = rows_at(p, row, rows);                                                              \
    const uint8_t *codes = at->codes, *scales = at->scales, *zeros = at->zeros;                    \
    sums_t sums;                                                                                   \
    clear(sums, rows);                                                                             \
    for (int64_t first = 0; first < at->blocks; first += at->group_blocks) {                       \
      sums_t inner, least;                                                                         \
      clear(inner, rows);                                                                          \
      clear(least, rows);                                                                          \
      int64_t end = min_i64(first + at->group_blocks, at->blocks);                                 \
      if (ahead)                                                                                   \
        __builtin_prefetch(scales + SCALES_AHEAD * PANEL_ROWS * SCALE_BYTES, 0, 2);                \
      if (MINIMA && ahead)                                                                         \
        __builtin_prefetch(zeros + SCALES_AHEAD * PANEL_ROWS * 2, 0, 2);                           \
      for (int64_t j = first; j < end; j++, codes += CODES_BLOCK_BYTES(CODES)) {                   \
        UNROLL_FULLY for (int part = 0; part < PARTS; part++) {                                    \
          vi exact[MAX_ROWS];                                                                      \
          DOTS(exact, rows, codes, part, 0, 8, x.codes, j* BLOCK_K, CODES, ahead);                 \
          vf base = ZEROS ? v_mul(v_load_u8(zeros + part * VL), v_set(-1.0f)) : v_set(-BASE);      \
          UNROLL_FULLY for (int r = 0; r < rows; r++) {                                            \
            vf sum = v_from_i(exact[r]);                                                           \
            if (ZEROS || BASE != 0)                                                                \
              sum = v_fma(base, v_set(x.sums[r][j]), sum);                                         \
            inner[r][part] = v_fma(sum, v_set(x.scales[r][j]), inner[r][part]);                    \
            if (MINIMA)                                                                            \
              least[r][part] = v_fma(v_set(x.sums[r][j]), v_set(x.scales[r][j]), least[r][part]);  \
          }                                                                                        \
        }                                                                                          \
      }                                                                                            \
      UNROLL_FULLY for (int part = 0; part < PARTS; part++) {                                      \
        vf scale = LOAD_SCALE(scales + part * VL * SCALE_BYTES);                                   \
        vf minimum = MINIMA ? SCALE_f16(zeros + part * VL * 2) : scale;                            \
        UNROLL_FULLY for (int r = 0; r < rows; r++) {                                              \
          sums[r][part] = v_fma(inner[r][part], scale, sums[r][part]);                             \
          if (MINIMA)                                                                              \
            sums[r][part] = v_fma(least[r][part], minimum, sums[r][part]);                         \
        }                                                                                          \
      }                                                                                            \
      scales += PANEL_ROWS * SCALE_BYTES;                                                          \
      zeros += PANEL_ROWS * (MINIMA ? 2 : 1);                                                      \
    }                                                                                              \
    store_sums(sums, rows, tile, step);                                                            \
  }
#endif

/* What is ahead is asked for once, by the first rows. */
#define DEFINE_PANEL_ROWS(NAME, ATTRIBUTE, DOTS)                                                   \
  DEFINE_BLOCK_ROWS(NAME, ATTRIBUTE, DOTS)                                                         \
  static ATTRIBUTE void NAME(const packed_matmul_params_t* p, const panel_t* at, int64_t row,      \
                             int64_t rows, float* tile, int64_t step) {                            \
    int64_t r = 0;                                                                                 \
    if (MAX_ROWS <= rows) {                                                                        \
      NAME##_rows(p, at, row, MAX_ROWS, 1, tile, step);                                            \
      r = MAX_ROWS;                                                                                \
    }                                                                                              \
    for (; r + MAX_ROWS <= rows; r += MAX_ROWS)                                                    \
      NAME##_rows(p, at, row + r, MAX_ROWS, 0, tile + r * step, step);                             \
    if (MAX_ROWS > 4 && r + 4 <= rows) {                                                           \
      NAME##_rows(p, at, row + r, 4, r == 0, tile + r * step, step);                               \
      r += 4;                                                                                      \
    }                                                                                              \
    switch (rows - r) {                                                                            \
    case 1:                                                                                        \
      NAME##_rows(p, at, row + r, 1, r == 0, tile + r * step, step);                               \
      break;                                                                                       \
    case 2:                                                                                        \
      NAME##_rows(p, at, row + r, 2, r == 0, tile + r * step, step);                               \
      break;                                                                                       \
    case 3:                                                                                        \
      NAME##_rows(p, at, row + r, 3, r == 0, tile + r * step, step);                               \
      break;                                                                                       \
    default:                                                                                       \
      break;                                                                                       \
    }                                                                                              \
  }

DEFINE_PANEL_ROWS(panel_rows, , dots)
#if VL == 16
DEFINE_PANEL_ROWS(panel_rows_vnni, VNNI, dots_vnni)
#define PANEL_ROWS_WITH(environment)                                                               \
  ((environment)->cpu_features & ACCRT_CPU_AVX512_VNNI ? panel_rows_vnni : panel_rows)
#else
#define PANEL_ROWS_WITH(environment) panel_rows
#endif

#endif

static void finish(const packed_matmul_params_t* p, float* tile, int64_t row, int64_t rows,
                   int64_t column) {
  int64_t columns = min_i64(PANEL_ROWS, p->n - column);
  for (int64_t r = 0; r < rows && p->bias; r++) {
    for (int64_t j = 0; j < columns; j++)
      tile[r * PANEL_ROWS + j] += p->bias[column + j];
  }
  activate(tile, rows * PANEL_ROWS, p->activation);
  for (int64_t r = 0; r < rows; r++) {
    const float* from = tile + r * PANEL_ROWS;
    c_t* to = p->c + (row + r) * p->ldc + column;
    const c_t* add = p->residual ? p->residual + (row + r) * p->ld_residual + column : 0;
    for (int64_t j = 0; j < columns; j++)
      to[j] = STORE(C_TAG)(add ? from[j] + LOAD(C_TAG)(add[j]) : from[j]);
  }
}

typedef struct {
  int64_t begin, end;
} range_t;

/* Rows of matrix `own`. Ends that fall leave none. */
static range_t rows_of(const packed_matmul_params_t* p, int64_t own) {
  range_t rows = {0, 0};
  for (int64_t e = 0; e <= own; e++) {
    rows.begin = max_i64(rows.begin, rows.end);
    rows.end = min_i64(p->ends[e * p->ends_step], p->m);
  }
  return rows;
}

static void clear_rows(const packed_matmul_params_t* p, int64_t row, int64_t column, int64_t end) {
  for (; row < p->m; row++) {
    for (int64_t j = column; j < end; j++)
      p->c[row * p->ldc + j] = STORE(C_TAG)(0.0f);
  }
}

KERNEL_ENTRY(ENTRY) {
  (void)environment;
  const packed_matmul_params_t* p = (const packed_matmul_params_t*)dispatch->params;
  float* tile = (float*)workgroup->local_memory;
  int64_t first = workgroup->workgroup_id[0] * p->panels_per_group,
          own = workgroup->workgroup_id[1];
  int64_t end = min_i64(first + p->panels_per_group, ceildiv_i64(p->n, PANEL_ROWS));
  range_t rows = {part_begin(p->m, own, dispatch->workgroup_count[1]),
                  part_begin(p->m, own + 1, dispatch->workgroup_count[1])};
  if (p->ends)
    rows = rows_of(p, own);
  else
    own = 0;
  for (int64_t row = rows.begin; row < rows.end; row += GROUP_ROWS) {
    int64_t count = min_i64(GROUP_ROWS, rows.end - row);
    for (int64_t panel = first; panel < end; panel++) {
      panel_t at = panel_at(p, p->w + own * p->matrix_bytes, own * p->matrix_panels + panel);
      PANEL_ROWS_WITH(environment)(p, &at, row, count, tile, PANEL_ROWS);
      finish(p, tile, row, count, panel * PANEL_ROWS);
    }
  }
  if (p->ends && own == p->matrices - 1)
    clear_rows(p, max_i64(rows.begin, rows.end), first * PANEL_ROWS,
               min_i64(end * PANEL_ROWS, p->n));
  return KERNEL_OK;
}
