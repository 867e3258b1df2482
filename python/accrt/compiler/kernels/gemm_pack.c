/* gemm_pack.c - the prepare kernel of gemm.c: a k x n matrix with any strides becomes panels of
 * PANEL columns, [ceil(n / PANEL)][k][PANEL], the last one padded with zeros. One layout for every
 * target.
 *
 * Instantiated with S_TAG (source), P_TAG (packed) and ENTRY. x of the grid walks panels, y slices
 * of k. */
#include "gemm_core.h"
#include "types.h"

typedef TYPE(S_TAG) s_t;
typedef TYPE(P_TAG) p_t;

typedef struct {
  const s_t* b;
  p_t* packed;
  int64_t n, k, b_row_step, b_column_step;
} gemm_pack_params_t;

#define SLICE 256
#define CONVERT(x) STORE(P_TAG)((WORK(P_TAG))LOAD(S_TAG)(x))

static void pack_columns(p_t* out, const s_t* b, int64_t columns, int64_t rows, int64_t row_step,
                         int64_t column_step) {
  for (int64_t i = 0; i < rows; i++) {
    const s_t* from = b + i * row_step;
    p_t* to = out + i * PANEL;
    for (int64_t j = 0; j < columns; j++)
      to[j] = CONVERT(from[j * column_step]);
    for (int64_t j = columns; j < PANEL; j++)
      to[j] = CONVERT((s_t){0});
  }
}

static void pack_contiguous(p_t* out, const s_t* b, int64_t rows, int64_t row_step) {
  for (int64_t i = 0; i < rows; i++) {
    const s_t* from = b + i * row_step;
    p_t* to = out + i * PANEL;
    for (int64_t j = 0; j < PANEL; j++)
      to[j] = CONVERT(from[j]);
  }
}

#define IS_F32_f32 1
#define IS_F32_f16 0
#define IS_F32_bf16 0
#define P_IS_F32 CONCAT(IS_F32_, P_TAG)
DEFINE_GATHER_COLUMNS(s_t, LOAD(S_TAG), CONCAT(IS_F32_, S_TAG))

/* Columns of B are contiguous (weights stored as [n][k]): blocks of 16 x PANEL, so that both sides
 * use whole lines. */
static void pack_transposed(p_t* out, const s_t* b, int64_t rows, int64_t column_step) {
  if (P_IS_F32) {
    gather_columns((float*)(void*)out, b, column_step, PANEL, rows);
    return;
  }
  int64_t i = 0;
  for (; i + 16 <= rows; i += 16) {
    for (int64_t j = 0; j < PANEL; j++) {
      const s_t* from = b + j * column_step + i;
      for (int64_t r = 0; r < 16; r++)
        out[(i + r) * PANEL + j] = CONVERT(from[r]);
    }
  }
  pack_columns(out + i * PANEL, b + i, PANEL, rows - i, 1, column_step);
}

KERNEL_ENTRY(ENTRY) {
  (void)environment;
  const gemm_pack_params_t* p = (const gemm_pack_params_t*)dispatch->params;
  int64_t column = (int64_t)workgroup->workgroup_id[0] * PANEL;
  int64_t row = (int64_t)workgroup->workgroup_id[1] * SLICE;
  int64_t columns = min_i64(PANEL, p->n - column), rows = min_i64(SLICE, p->k - row);
  if (columns <= 0 || rows <= 0)
    return KERNEL_OK;
  const s_t* b = p->b + row * p->b_row_step + column * p->b_column_step;
  p_t* out = p->packed + (workgroup->workgroup_id[0] * p->k + row) * PANEL;
  if (columns == PANEL && p->b_column_step == 1) {
    pack_contiguous(out, b, rows, p->b_row_step);
  } else if (columns == PANEL && p->b_row_step == 1) {
    pack_transposed(out, b, rows, p->b_column_step);
  } else {
    pack_columns(out, b, columns, rows, p->b_row_step, p->b_column_step);
  }
  return KERNEL_OK;
}
