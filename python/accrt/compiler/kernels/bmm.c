/* bmm.c - C = scale * A * B per batch entry, both operands dynamic and with any strides.
 *
 * Instantiated with A_TAG, B_TAG, C_TAG (f32, f16 or bf16) and ENTRY; computes in f32. A workgroup
 * makes up to GROUP_ROWS rows by one panel of columns: it gathers a slice of B into a panel and
 * multiplies all its rows by it. x of the grid walks panels, y rows, z the batch (up to three
 * axes). Writes nothing but C. */
#define AHEAD_LINES 0 /* panels are made on the spot */
#include "gemm_core.h"
#include "types.h"

typedef TYPE(A_TAG) a_t;
typedef TYPE(B_TAG) b_t;
typedef TYPE(C_TAG) c_t;

typedef struct {
  const a_t* a;
  const b_t* b;
  c_t* c;
  int64_t m, n, k;
  int64_t a_row, a_column, b_row, b_column, c_row;
  int64_t batch0, batch1, batch2;
  int64_t a0, a1, a2, b0, b1, b2, c0, c1, c2;
  float scale;
} bmm_params_t;

DEFINE_ROW_BLOCK(float, load_b_f32)
DEFINE_MULTIPLY_PANEL(float)
DEFINE_STAGE_ROWS(a_t, LOAD(A_TAG))

#define IS_F32_f32 1
#define IS_F32_f16 0
#define IS_F32_bf16 0
DEFINE_GATHER_COLUMNS(b_t, LOAD(B_TAG), CONCAT(IS_F32_, B_TAG))
#define A_IS_F32 CONCAT(IS_F32_, A_TAG)

/* `rows` of B as a panel. Contiguous columns (a transposed operand) go the fast way. */
static void gather_panel(const bmm_params_t* p, const b_t* b, float* panel, int64_t rows,
                         int64_t columns) {
  if (p->b_row == 1 && p->b_column != 1) {
    gather_columns(panel, b, p->b_column, columns, rows);
    return;
  }
  for (int64_t i = 0; i < rows; i++, b += p->b_row, panel += PANEL) {
    if (p->b_column == 1) {
      INDEPENDENT for (int64_t j = 0; j < columns; j++) panel[j] = LOAD(B_TAG)(b[j]);
    } else {
      for (int64_t j = 0; j < columns; j++)
        panel[j] = LOAD(B_TAG)(b[j * p->b_column]);
    }
    for (int64_t j = columns; j < PANEL; j++)
      panel[j] = 0.0f;
  }
}

static void multiply_rows(const bmm_params_t* p, const a_t* a, const float* panel, float* staged,
                          float* tile, int64_t rows, int64_t k, int onto) {
  if (A_IS_F32 && p->a_column == 1) {
    multiply_panel(rows, k, (const float*)(const void*)a, p->a_row, panel, tile, PANEL, onto,
                   panel);
    return;
  }
  stage_rows(staged, a, p->a_row, p->a_column, rows, k);
  multiply_panel(rows, k, staged, STAGED_STEP, panel, tile, PANEL, onto, panel);
}

KERNEL_ENTRY(ENTRY) {
  (void)environment;
  const bmm_params_t* p = (const bmm_params_t*)dispatch->params;
  float* tile = (float*)workgroup->local_memory;
  float* panel = tile + GROUP_ROWS * PANEL;
  float* staged = panel + SLICE_K * PANEL;
  int64_t column = (int64_t)workgroup->workgroup_id[0] * PANEL,
          columns = min_i64(PANEL, p->n - column);
  int64_t first = part_begin(p->m, workgroup->workgroup_id[1], dispatch->workgroup_count[1]);
  int64_t rows =
      part_begin(p->m, workgroup->workgroup_id[1] + 1, dispatch->workgroup_count[1]) - first;
  int64_t at = workgroup->workgroup_id[2];
  if (rows <= 0 || columns <= 0 || at >= p->batch0 * p->batch1 * p->batch2)
    return KERNEL_OK;

  int64_t i2 = at % p->batch2, i1 = at / p->batch2 % p->batch1, i0 = at / p->batch2 / p->batch1;
  const a_t* a = p->a + i0 * p->a0 + i1 * p->a1 + i2 * p->a2 + first * p->a_row;
  const b_t* b = p->b + i0 * p->b0 + i1 * p->b1 + i2 * p->b2 + column * p->b_column;
  c_t* c = p->c + i0 * p->c0 + i1 * p->c1 + i2 * p->c2 + first * p->c_row + column;
  int64_t begin = 0;
  do {
    int64_t k = min_i64(SLICE_K, p->k - begin);
    gather_panel(p, b + begin * p->b_row, panel, k, columns);
    multiply_rows(p, a + begin * p->a_column, panel, staged, tile, rows, k,
                  begin > 0 ? ADD_TO_TILE : WRITE_TILE);
    begin += SLICE_K;
  } while (begin < p->k);
  for (int64_t r = 0; r < rows; r++) {
    INDEPENDENT for (int64_t j = 0; j < columns; j++) c[r * p->c_row + j] =
        STORE(C_TAG)(tile[r * PANEL + j] * p->scale);
  }
  return KERNEL_OK;
}
