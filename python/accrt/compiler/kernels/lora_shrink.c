/* lora_shrink.c - the first half of low-rank products, an adapter for each token:
 * out[t][r] = sum over k of x[t][k] * factors[index[t]][r][k], and zeros where index[t] is -1. With
 * several parts, those of the second have their rows behind the ones of the first.
 *
 * Instantiated with X_TAG, F_TAG (factors) and ENTRY. Adds up in f32. x of the grid walks blocks of
 * tokens, y blocks of ROWS rows of factors. Tokens of one adapter that stand side by side go
 * through its rows in pairs. A number is VL sums over k, joined at the end: the same in every
 * batch. */
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
ALWAYS_INLINE void shrink(const lora_shrink_params_t* p, int64_t token, const factor_t* factors,
                          int64_t row, int tokens, int rows) {
  const x_t* x = p->x + token * p->x_row;
  float* out = p->out + token * p->parts * p->rank + row;
  int64_t size = p->size, k = 0;
  vf sums[2][ROWS];
  for (int i = 0; i < tokens; i++)
    for (int r = 0; r < rows; r++)
      sums[i][r] = v_zero();
  for (; k + VL <= size; k += VL) {
    vf own[2];
    for (int i = 0; i < tokens; i++)
      own[i] = VECTOR(X_TAG)(x + i * p->x_row + k);
    for (int r = 0; r < rows; r++) {
      vf f = VECTOR(F_TAG)(factors + r * size + k);
      for (int i = 0; i < tokens; i++)
        sums[i][r] = v_fma(own[i], f, sums[i][r]);
    }
  }
  for (int i = 0; i < tokens; i++) {
    for (int r = 0; r < rows; r++) {
      float rest = 0.0f;
      for (int64_t j = k; j < size; j++)
        rest = __builtin_fmaf(LOAD(X_TAG)(x[i * p->x_row + j]), LOAD(F_TAG)(factors[r * size + j]),
                              rest);
      out[i * p->parts * p->rank + r] = v_sum(sums[i][r]) + rest;
    }
  }
}

/* Rows of one part lie one behind the other. */
static const factor_t* row_of(const lora_shrink_params_t* p, int64_t adapter, int64_t row) {
  return LORA_FACTORS(p, row / p->rank) + (adapter * p->rank + row % p->rank) * p->size;
}

static void shrink_run(const lora_shrink_params_t* p, int64_t token, int64_t count, int64_t adapter,
                       int64_t row, int64_t rows) {
  const factor_t* factors = row_of(p, adapter, row);
  int64_t i = 0;
  if (rows == ROWS && row / p->rank == (row + ROWS - 1) / p->rank) {
    for (; i + 2 <= count; i += 2)
      shrink(p, token + i, factors, row, 2, ROWS);
    if (i < count)
      shrink(p, token + i, factors, row, 1, ROWS);
    return;
  }
  for (; i < count; i++)
    for (int64_t r = 0; r < rows; r++)
      shrink(p, token + i, row_of(p, adapter, row + r), row + r, 1, 1);
}

KERNEL_ENTRY(ENTRY) {
  (void)environment;
  const lora_shrink_params_t* p = (const lora_shrink_params_t*)dispatch->params;
  int64_t row = (int64_t)workgroup->workgroup_id[1] * ROWS, all = p->parts * p->rank;
  int64_t rows = min_i64(ROWS, all - row);
  int64_t block = workgroup->workgroup_id[0], blocks = dispatch->workgroup_count[0];
  lora_tokens_t t = {p->index, p->index_step, p->adapters, part_begin(p->tokens, block, blocks),
                     part_begin(p->tokens, block + 1, blocks)};
  int32_t status = lora_check(&t, workgroup);
  if (status != KERNEL_OK)
    return status;
  for (int64_t token = t.first, count; token < t.end; token += count) {
    count = lora_run(&t, token);
    int64_t adapter = lora_adapter(&t, token);
    if (adapter >= 0) {
      shrink_run(p, token, count, adapter, row, rows);
      continue;
    }
    for (int64_t i = 0; i < count; i++)
      for (int64_t r = 0; r < rows; r++)
        p->out[(token + i) * all + row + r] = 0.0f;
  }
  return KERNEL_OK;
}
