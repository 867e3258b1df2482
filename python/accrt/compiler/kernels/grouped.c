/* grouped.c - rows ends[e - 1] up to ends[e] of x by matrix e, as a mixture of experts takes them.
 * Rows behind the last end become zeros.
 *
 * Instantiated with X_TAG, W_TAG, INDEX_TAG and ENTRY; sums are f32, of BLOCK_K products at most,
 * and these are added. x of the grid walks blocks of COLUMNS columns, y matrices; a matrix without
 * rows is not read. */
#include "types.h"

typedef TYPE(X_TAG) x_t;
typedef TYPE(W_TAG) w_t;
typedef TYPE(INDEX_TAG) index_t;

typedef struct {
  const x_t* x;
  const w_t* w;
  const index_t* ends;
  x_t* out;
  int64_t rows, n, k, matrices;
  int64_t x_row, out_row, ends_step;
} grouped_params_t;

#define COLUMNS 64
#define ROWS 4
#define BLOCK_K 4096

/* Adds the products of [begin, end) of k. `rows` is a constant where it is called, so the sums stay
 * in registers. */
ALWAYS_INLINE void block(const grouped_params_t* p, const w_t* w, int64_t row, int64_t column,
                         int rows, int64_t begin, int64_t end, float total[][COLUMNS]) {
  float sum[ROWS][COLUMNS] = {{0}};
  for (int64_t i = begin; i < end; i++) {
    const w_t* from = w + i * p->n + column;
    float wide[COLUMNS];
    for (int j = 0; j < COLUMNS; j++)
      wide[j] = LOAD(W_TAG)(from[j]);
    for (int r = 0; r < rows; r++) {
      float x = LOAD(X_TAG)(p->x[(row + r) * p->x_row + i]);
      for (int j = 0; j < COLUMNS; j++)
        sum[r][j] = __builtin_fmaf(x, wide[j], sum[r][j]);
    }
  }
  for (int r = 0; r < rows; r++) {
    for (int j = 0; j < COLUMNS; j++)
      total[r][j] += sum[r][j];
  }
}

ALWAYS_INLINE void product(const grouped_params_t* p, const w_t* w, int64_t row, int64_t column,
                           int rows) {
  float total[ROWS][COLUMNS] = {{0}};
  for (int64_t i = 0; i < p->k; i += BLOCK_K)
    block(p, w, row, column, rows, i, min_i64(i + BLOCK_K, p->k), total);
  for (int r = 0; r < rows; r++) {
    for (int j = 0; j < COLUMNS; j++)
      p->out[(row + r) * p->out_row + column + j] = STORE(X_TAG)(total[r][j]);
  }
}

static void narrow(const grouped_params_t* p, const w_t* w, int64_t row, int64_t column,
                   int64_t columns) {
  float total[COLUMNS] = {0};
  for (int64_t begin = 0; begin < p->k; begin += BLOCK_K) {
    float sum[COLUMNS] = {0};
    for (int64_t i = begin; i < min_i64(begin + BLOCK_K, p->k); i++) {
      float x = LOAD(X_TAG)(p->x[row * p->x_row + i]);
      for (int64_t j = 0; j < columns; j++)
        sum[j] = __builtin_fmaf(x, LOAD(W_TAG)(w[i * p->n + column + j]), sum[j]);
    }
    for (int64_t j = 0; j < columns; j++)
      total[j] += sum[j];
  }
  for (int64_t j = 0; j < columns; j++)
    p->out[row * p->out_row + column + j] = STORE(X_TAG)(total[j]);
}

static void multiply(const grouped_params_t* p, const w_t* w, int64_t row, int64_t end,
                     int64_t column, int64_t columns) {
  if (columns < COLUMNS) {
    for (; row < end; row++)
      narrow(p, w, row, column, columns);
    return;
  }
  for (; row + ROWS <= end; row += ROWS)
    product(p, w, row, column, ROWS);
  for (; row < end; row++)
    product(p, w, row, column, 1);
}

static void clear(const grouped_params_t* p, int64_t row, int64_t column, int64_t columns) {
  for (; row < p->rows; row++) {
    for (int64_t j = 0; j < columns; j++)
      p->out[row * p->out_row + column + j] = STORE(X_TAG)(0.0f);
  }
}

KERNEL_ENTRY(ENTRY) {
  (void)environment;
  const grouped_params_t* p = (const grouped_params_t*)dispatch->params;
  int64_t column = (int64_t)workgroup->workgroup_id[0] * COLUMNS, own = workgroup->workgroup_id[1];
  int64_t columns = min_i64(COLUMNS, p->n - column), begin = 0, end = 0;
  if (columns <= 0)
    return KERNEL_OK;
  for (int64_t e = 0; e <= own; e++) { /* ends that fall leave no rows */
    begin = max_i64(begin, end);
    end = min_i64((int64_t)p->ends[e * p->ends_step], p->rows);
  }
  multiply(p, p->w + own * p->k * p->n, begin, end, column, columns);
  if (own == p->matrices - 1)
    clear(p, max_i64(begin, end), column, columns);
  return KERNEL_OK;
}
