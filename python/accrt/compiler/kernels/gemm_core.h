/* gemm_core.h - the register-blocked heart of all matrix products of f32: a few rows of A times one
 * panel of B.
 *
 * A panel is PANEL columns of B, row k at b + k * ldb; packed weights have ldb == PANEL. A stays
 * where it is, row-major. Products accumulate in registers in ascending order of k, up to BLOCK_K
 * of them; the sums of such blocks, or of shorter slices, are added in their order. So a result
 * does not depend on how rows and panels were shared among workgroups, and rounding errors grow
 * little where k is large. */
#ifndef ACCRT_KERNELS_GEMM_CORE_H_
#define ACCRT_KERNELS_GEMM_CORE_H_

#include "simd.h"

#define PANEL 32

/* Vectors in a row of the register block, and its rows: as many accumulators as leave room for a
 * row of B. */
#if VL == 16
#define BLOCK_VECTORS 2
#define BLOCK_ROWS 14
#elif VL == 8
#define BLOCK_VECTORS 2
#define BLOCK_ROWS 6
#else
#define BLOCK_VECTORS 4
#define BLOCK_ROWS 6
#endif
#define BLOCK_COLUMNS (BLOCK_VECTORS * VL)
/* So many products are one sum at most. */
#define BLOCK_K 4096
/* What becomes of a tile: it is written, each sum goes on from it, or the sums are added to it. */
#define WRITE_TILE 0
#define CONTINUE_TILE 1
#define ADD_TO_TILE 2
/* Rows of each half of a block: the second half may lie elsewhere. */
#define HALF_ROWS (BLOCK_ROWS / 2)
#define HALF_BASES ((HALF_ROWS + 3) / 4)

/* Cache lines of `ahead`, the panel after this one, that are asked for with every four k: weights
 * which pass only once come from memory while others are used. It takes a tenth of the time away
 * with AVX2, and a sixth with AVX-512, where 14 rows use a panel up sooner. */
#ifndef AHEAD_LINES
#if VL == 16
#define AHEAD_LINES 2
#else
#define AHEAD_LINES 1
#endif
#endif

ALWAYS_INLINE vf load_b_f32(const float* p) {
  return v_load(p);
}
ALWAYS_INLINE vf load_b_bf16(const bf16_t* p) {
  return v_load_bf16(p);
}
ALWAYS_INLINE vf load_b_f16(const f16_t* p) {
  return v_load_f16(p);
}

/* Hides that a value is loop-invariant, so that row addresses are formed by addressing modes and
 * not kept in (too many) registers of their own. */
#define OPAQUE(x) __asm__("" : "+r"(x))

/* One k: the row of B, then each row of A broadcast against it. Rows are reached from every fourth
 * one of their half. */
#define MICRO_STEP(LOAD_B, K)                                                                      \
  do {                                                                                             \
    vf row_[BLOCK_VECTORS];                                                                        \
    UNROLL_FULLY for (int j = 0; j < BLOCK_VECTORS; j++) row_[j] = LOAD_B(b + (K)*ldb + j * VL);   \
    UNROLL_FULLY for (int r = 0; r < rows; r++) {                                                  \
      const int h_ = r % HALF_ROWS % 4;                                                            \
      const char* at_ = base[r / HALF_ROWS * HALF_BASES + r % HALF_ROWS / 4];                      \
      at_ += h_ == 0 ? 0 : h_ == 1 ? step1 : h_ == 2 ? step1 * 2 : step3;                          \
      vf a_ = v_set(((const float*)at_)[K]);                                                       \
      UNROLL_FULLY for (int j = 0; j < BLOCK_VECTORS; j++) acc[r][j] =                             \
          v_fma(a_, row_[j], acc[r][j]);                                                           \
    }                                                                                              \
  } while (0)

#define DEFINE_MICRO(B_T, LOAD_B, NAME)                                                            \
  ALWAYS_INLINE void NAME(const int rows, int64_t k, const float* a, int64_t lda, int64_t half,    \
                          const B_T* b, int64_t ldb, float* tile, int64_t tile_step, int onto,     \
                          const char* ahead) {                                                     \
    vf acc[BLOCK_ROWS][BLOCK_VECTORS];                                                             \
    UNROLL_FULLY for (int r = 0; r < rows; r++) {                                                  \
      UNROLL_FULLY for (int j = 0; j < BLOCK_VECTORS; j++) acc[r][j] =                             \
          onto == CONTINUE_TILE ? v_load(tile + r * tile_step + j * VL) : v_zero();                \
    }                                                                                              \
    int64_t step1 = lda * (int64_t)sizeof(float), step3 = step1 * 3;                               \
    const char* base[2 * HALF_BASES];                                                              \
    UNROLL_FULLY for (int g = 0; g < 2 * HALF_BASES; g++) base[g] =                                \
        (const char*)(a + g / HALF_BASES * half) + g % HALF_BASES * 4 * step1;                     \
    int64_t i = 0;                                                                                 \
    for (; i + 4 <= k; i += 4) {                                                                   \
      OPAQUE(step1);                                                                               \
      OPAQUE(step3);                                                                               \
      UNROLL_FULLY for (int l = 0; l < AHEAD_LINES; l++) __builtin_prefetch(ahead + l * 64, 0, 2); \
      ahead += AHEAD_LINES * 64;                                                                   \
      MICRO_STEP(LOAD_B, 0);                                                                       \
      MICRO_STEP(LOAD_B, 1);                                                                       \
      MICRO_STEP(LOAD_B, 2);                                                                       \
      MICRO_STEP(LOAD_B, 3);                                                                       \
      b += 4 * ldb;                                                                                \
      UNROLL_FULLY for (int g = 0; g < 2 * HALF_BASES; g++) base[g] += 4 * sizeof(float);          \
    }                                                                                              \
    for (; i < k; i++) {                                                                           \
      MICRO_STEP(LOAD_B, 0);                                                                       \
      b += ldb;                                                                                    \
      UNROLL_FULLY for (int g = 0; g < 2 * HALF_BASES; g++) base[g] += sizeof(float);              \
    }                                                                                              \
    UNROLL_FULLY for (int r = 0; r < rows; r++) {                                                  \
      UNROLL_FULLY for (int j = 0; j < BLOCK_VECTORS; j++) {                                       \
        float* to = tile + r * tile_step + j * VL;                                                 \
        v_store(to, onto == ADD_TO_TILE ? v_add(v_load(to), acc[r][j]) : acc[r][j]);               \
      }                                                                                            \
    }                                                                                              \
  }

/* One function per number of rows; `row_block` picks. A call covers BLOCK_COLUMNS columns. */
#if BLOCK_ROWS == 14
#define FOR_EACH_ROWS(F) F(1) F(2) F(3) F(4) F(5) F(6) F(7) F(8) F(9) F(10) F(11) F(12) F(13) F(14)
#else
#define FOR_EACH_ROWS(F) F(1) F(2) F(3) F(4) F(5) F(6)
#endif

#define MICRO_CASE(R)                                                                              \
  case R:                                                                                          \
    micro(R, k, a, lda, half, b, ldb, tile, tile_step, onto, ahead);                               \
    break;

/* Defines `row_block`: rows (1 to BLOCK_ROWS) x PANEL columns of A * B into or onto `tile`; and
 * `row_block_halves`, where row HALF_ROWS lies `half` elements behind the first. */
#define DEFINE_ROW_BLOCK(B_T, LOAD_B)                                                              \
  DEFINE_MICRO(B_T, LOAD_B, micro)                                                                 \
  static __attribute__((noinline)) void row_block_columns(                                         \
      int64_t rows, int64_t k, const float* a, int64_t lda, int64_t half, const B_T* b,            \
      int64_t ldb, float* tile, int64_t tile_step, int onto, const char* ahead) {                  \
    switch (rows) { FOR_EACH_ROWS(MICRO_CASE) default : break; }                                   \
  }                                                                                                \
  static void row_block_halves(int64_t rows, int64_t k, const float* a, int64_t lda, int64_t half, \
                               const B_T* b, int64_t ldb, float* tile, int64_t tile_step,          \
                               int onto, const char* ahead) {                                      \
    for (int64_t j = 0; j < PANEL; j += BLOCK_COLUMNS) {                                           \
      int64_t at = 0;                                                                              \
      do {                                                                                         \
        int64_t count = min_i64(BLOCK_K, k - at);                                                  \
        row_block_columns(rows, count, a + at, lda, half, b + at * ldb + j, ldb, tile + j,         \
                          tile_step, at > 0 ? ADD_TO_TILE : onto, ahead);                          \
        ahead += count / 4 * (AHEAD_LINES * 64);                                                   \
        at += BLOCK_K;                                                                             \
      } while (at < k);                                                                            \
    }                                                                                              \
  }                                                                                                \
  static inline void row_block(int64_t rows, int64_t k, const float* a, int64_t lda, const B_T* b, \
                               int64_t ldb, float* tile, int64_t tile_step, int onto,              \
                               const char* ahead) {                                                \
    row_block_halves(rows, k, a, lda, HALF_ROWS* lda, b, ldb, tile, tile_step, onto, ahead);       \
  }

/* Rows of A that one workgroup takes at most: they stay in the second-level cache while panels
 * pass. */
#define GROUP_ROWS 112

/* Depth of the slices that are gone through one by one where operands have to be copied first. */
#define SLICE_K 192

/* Defines `multiply_panel`: up to GROUP_ROWS rows, in nearly equal blocks, times one panel. */
#define DEFINE_MULTIPLY_PANEL(B_T)                                                                 \
  static void multiply_panel(int64_t rows, int64_t k, const float* a, int64_t lda, const B_T* b,   \
                             float* tile, int64_t tile_step, int onto, const B_T* ahead) {         \
    const char* next = (const char*)ahead;                                                         \
    int64_t blocks = ceildiv_i64(rows, BLOCK_ROWS);                                                \
    for (int64_t i = 0; i < blocks; i++) {                                                         \
      int64_t row = part_begin(rows, i, blocks), count = part_begin(rows, i + 1, blocks) - row;    \
      row_block(count, k, a + row * lda, lda, b, PANEL, tile + row * tile_step, tile_step, onto,   \
                next);                                                                             \
      next += k / 4 * (AHEAD_LINES * 64) * (PANEL / BLOCK_COLUMNS);                                \
    }                                                                                              \
  }

/* Copies `rows` x `k` elements to f32 rows that are STAGED_STEP apart: for A of another type or
 * with strided columns. Plain f32 rows are read in place, even at distances that share cache sets:
 * measured, copying them costs more than it saves. */
#define STAGED_STEP (SLICE_K + 16)
#define STAGED_FLOATS (GROUP_ROWS * STAGED_STEP)

#define DEFINE_STAGE_ROWS(A_T, TO_F32)                                                             \
  static void stage_rows(float* out, const A_T* a, int64_t row_step, int64_t column_step,          \
                         int64_t rows, int64_t k) {                                                \
    for (int64_t r = 0; r < rows; r++) {                                                           \
      const A_T* from = a + r * row_step;                                                          \
      float* to = out + r * STAGED_STEP;                                                           \
      if (column_step == 1) {                                                                      \
        INDEPENDENT for (int64_t i = 0; i < k; i++) to[i] = TO_F32(from[i]);                       \
      } else {                                                                                     \
        INDEPENDENT for (int64_t i = 0; i < k; i++) to[i] = TO_F32(from[i * column_step]);         \
      }                                                                                            \
    }                                                                                              \
  }

/* Defines `gather_columns`: `columns` (up to PANEL) rows of `k` contiguous elements, `column_step`
 * apart, become the columns of a panel: panel[i * PANEL + j] = b[j * column_step + i]. What is
 * beyond `columns` becomes zero. */
#define GATHER_DEPTH 16
#define DEFINE_GATHER_COLUMNS(B_T, TO_F32, B_IS_F32)                                               \
  static void gather_columns(float* panel, const B_T* b, int64_t column_step, int64_t columns,     \
                             int64_t k) {                                                          \
    if (B_IS_F32) {                                                                                \
      transpose_f32(panel, PANEL, (const float*)(const void*)b, column_step, columns, k);          \
    } else {                                                                                       \
      float wide[PANEL * GATHER_DEPTH];                                                            \
      for (int64_t i = 0; i < k; i += GATHER_DEPTH) {                                              \
        int64_t deep = min_i64(GATHER_DEPTH, k - i);                                               \
        for (int64_t j = 0; j < columns; j++) {                                                    \
          const B_T* from = b + j * column_step + i;                                               \
          INDEPENDENT for (int64_t e = 0; e < deep; e++) wide[j * GATHER_DEPTH + e] =              \
              TO_F32(from[e]);                                                                     \
        }                                                                                          \
        transpose_f32(panel + i * PANEL, PANEL, wide, GATHER_DEPTH, columns, deep);                \
      }                                                                                            \
    }                                                                                              \
    for (int64_t i = 0; i < k && columns < PANEL; i++) {                                           \
      for (int64_t j = columns; j < PANEL; j++)                                                    \
        panel[i * PANEL + j] = 0.0f;                                                               \
    }                                                                                              \
  }

#endif /* ACCRT_KERNELS_GEMM_CORE_H_ */
