/* lora_shrink.c - the first half of low-rank products, an adapter for each token:
 * out[t][r] = sum over k of x[t][k] * factors[index[t]][r][k], and zeros where index[t] is -1.
 * With several parts, those of the second have their rows behind the ones of the first.
 *
 * Instantiated with X_TAG, F_TAG (factors) and ENTRY. Adds up in f32. x of the grid walks blocks
 * of tokens, y blocks of ROWS rows of factors. Tokens of one adapter go through its rows in pairs.
 * A number is VL sums over k, joined at the end: the same in every batch. */
#include "lora.h"

typedef TYPE(X_TAG) x_t;
typedef TYPE(F_TAG) factor_t;

typedef struct {
  const x_t* x;
  const factor_t* factors;
  const factor_t* factors1;
  const factor_t* factors2;
  const int32_t* index;
  float* out;
  int64_t tokens, adapters, rank, parts, size, x_row, index_step;
} lora_shrink_params_t;

#define ROWS 4 /* of factors, at once */

/* `tokens` 1 or 2, and `rows` 1 to ROWS: constants where this is inlined. */
ALWAYS_INLINE void shrink(const lora_shrink_params_t* p, const int64_t* list,
                          const factor_t* factors, int64_t row, int tokens, int rows) {
  const x_t* x[2];
  int64_t size = p->size, k = 0;
  vf sums[2][ROWS];
  for (int i = 0; i < tokens; i++) {
    x[i] = p->x + list[i] * p->x_row;
    for (int r = 0; r < rows; r++)
      sums[i][r] = v_zero();
  }
  for (; k + VL <= size; k += VL) {
    vf own[2];
    for (int i = 0; i < tokens; i++)
      own[i] = VECTOR(X_TAG)(x[i] + k);
    for (int r = 0; r < rows; r++) {
      vf f = VECTOR(F_TAG)(factors + r * size + k);
      for (int i = 0; i < tokens; i++)
        sums[i][r] = v_fma(own[i], f, sums[i][r]);
    }
  }
  for (int i = 0; i < tokens; i++) {
    float* out = p->out + list[i] * p->parts * p->rank + row;
    for (int r = 0; r < rows; r++) {
      float rest = 0.0f;
      for (int64_t j = k; j < size; j++)
        rest = __builtin_fmaf(LOAD(X_TAG)(x[i][j]), LOAD(F_TAG)(factors[r * size + j]), rest);
      out[r] = v_sum(sums[i][r]) + rest;
    }
  }
}

/* Rows of one part lie one behind the other. */
static const factor_t* row_of(const lora_shrink_params_t* p, int64_t adapter, int64_t row) {
  return LORA_FACTORS(p, row / p->rank) + (adapter * p->rank + row % p->rank) * p->size;
}

static void shrink_all(const lora_shrink_params_t* p, const lora_tokens_t* t, int64_t row,
                       int64_t rows) {
  const factor_t* factors = row_of(p, t->adapter, row);
  int64_t i = 0;
  if (rows == ROWS && row / p->rank == (row + ROWS - 1) / p->rank) {
    for (; i + 2 <= t->count; i += 2)
      shrink(p, t->list + i, factors, row, 2, ROWS);
    if (i < t->count)
      shrink(p, t->list + i, factors, row, 1, ROWS);
    return;
  }
  for (; i < t->count; i++)
    for (int64_t r = 0; r < rows; r++)
      shrink(p, t->list + i, row_of(p, t->adapter, row + r), row + r, 1, 1);
}

KERNEL_ENTRY(ENTRY) {
  (void)environment;
  const lora_shrink_params_t* p = (const lora_shrink_params_t*)dispatch->params;
  int64_t row = (int64_t)workgroup->workgroup_id[1] * ROWS, all = p->parts * p->rank;
  int64_t rows = min_i64(ROWS, all - row);
  lora_tokens_t t;
  int32_t status =
      lora_begin(&t, p->index, p->index_step, p->tokens, p->adapters, dispatch, workgroup);
  while (status == KERNEL_OK && lora_next(&t)) {
    if (t.adapter >= 0) {
      shrink_all(p, &t, row, rows);
      continue;
    }
    for (int64_t i = 0; i < t.count; i++)
      for (int64_t r = 0; r < rows; r++)
        p->out[t.list[i] * all + row + r] = 0.0f;
  }
  return status;
}
