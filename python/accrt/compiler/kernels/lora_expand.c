/* lora_expand.c - the second half of low-rank products, an adapter for each token:
 * out[t][n] = y[t][n] + sum over r of shrunk[t][r] * factors[index[t]][r][n], and y[t][n] where
 * index[t] is -1. It may run in place: then tokens without an adapter are not touched. With several
 * parts, columns of the second lie behind those of the first, and so do its rows of `shrunk`.
 *
 * Instantiated with Y_TAG (y and out), F_TAG (factors) and ENTRY. Adds up in f32, over ascending r:
 * the same in every batch. x of the grid walks blocks of tokens, y blocks of COLUMNS. Tokens of one
 * adapter go through its factors in pairs. */
#include "lora.h"

typedef TYPE(Y_TAG) y_t;
typedef TYPE(F_TAG) factor_t;

typedef struct {
  const y_t* y;
  const float* shrunk;
  const factor_t* factors;
  const factor_t* factors1;
  const factor_t* factors2;
  const int32_t* index;
  y_t* out;
  int64_t tokens, adapters, rank, size, size1, size2, y_row, out_row, shrunk_row, index_step;
} lora_expand_params_t;

#define COLUMNS 1024
#define VECTORS 4

/* A part of the columns, for one adapter. */
typedef struct {
  const factor_t* factors;
  int64_t size, column, row; /* where its columns and its rows of `shrunk` begin */
} part_t;

ALWAYS_INLINE void expand_vectors(const lora_expand_params_t* p, const part_t* part,
                                  const float* const* shrunk, const factor_t* factors, int tokens,
                                  vf sums[2][VECTORS]) {
  for (int64_t r = 0; r < p->rank; r++) {
    vf own[2];
    for (int i = 0; i < tokens; i++)
      own[i] = v_set(shrunk[i][r]);
    for (int v = 0; v < VECTORS; v++) {
      vf f = VECTOR(F_TAG)(factors + r * part->size + v * VL);
      for (int i = 0; i < tokens; i++)
        sums[i][v] = v_fma(own[i], f, sums[i][v]);
    }
  }
}

/* Columns [first, end) of `tokens` (1 or 2) tokens; all of the part. */
ALWAYS_INLINE void expand_columns(const lora_expand_params_t* p, const part_t* part,
                                  const int64_t* list, int64_t first, int64_t end, int tokens) {
  const float* shrunk[2];
  const y_t* y[2];
  y_t* out[2];
  const factor_t* factors = part->factors - part->column;
  int64_t n = first;
  for (int i = 0; i < tokens; i++) {
    shrunk[i] = p->shrunk + list[i] * p->shrunk_row + part->row;
    y[i] = p->y + list[i] * p->y_row;
    out[i] = p->out + list[i] * p->out_row;
  }
  for (; n + VECTORS * VL <= end; n += VECTORS * VL) {
    vf sums[2][VECTORS];
    float made[VECTORS * VL];
    for (int i = 0; i < tokens; i++)
      for (int v = 0; v < VECTORS; v++)
        sums[i][v] = VECTOR(Y_TAG)(y[i] + n + v * VL);
    expand_vectors(p, part, shrunk, factors + n, tokens, sums);
    for (int i = 0; i < tokens; i++) {
      for (int v = 0; v < VECTORS; v++)
        v_store(made + v * VL, sums[i][v]);
      for (int j = 0; j < VECTORS * VL; j++)
        out[i][n + j] = STORE(Y_TAG)(made[j]);
    }
  }
  for (int i = 0; i < tokens; i++) {
    for (int64_t j = n; j < end; j++) {
      float sum = LOAD(Y_TAG)(y[i][j]);
      for (int64_t r = 0; r < p->rank; r++)
        sum = __builtin_fmaf(shrunk[i][r], LOAD(F_TAG)(factors[r * part->size + j]), sum);
      out[i][j] = STORE(Y_TAG)(sum);
    }
  }
}

static void keep(const lora_expand_params_t* p, const lora_tokens_t* t, int64_t first,
                 int64_t end) {
  if (p->out == p->y && p->out_row == p->y_row)
    return;
  for (int64_t i = 0; i < t->count; i++)
    __builtin_memcpy(p->out + t->list[i] * p->out_row + first, p->y + t->list[i] * p->y_row + first,
                     (size_t)(end - first) * sizeof(y_t));
}

/* Columns [first, end) of the tokens of one adapter, part after part. */
static void expand_all(const lora_expand_params_t* p, const lora_tokens_t* t, int64_t first,
                       int64_t end) {
  part_t part = {0};
  for (int64_t k = 0; k < LORA_PARTS && part.column < end; k++) {
    part.size = LORA_SIZE(p, k);
    int64_t from = max_i64(first, part.column), to = min_i64(end, part.column + part.size), i = 0;
    part.factors = from < to ? LORA_FACTORS(p, k) + t->adapter * p->rank * part.size : 0;
    for (; from < to && i + 2 <= t->count; i += 2)
      expand_columns(p, &part, t->list + i, from, to, 2);
    if (from < to && i < t->count)
      expand_columns(p, &part, t->list + i, from, to, 1);
    part.column += part.size;
    part.row += p->rank;
  }
}

KERNEL_ENTRY(ENTRY) {
  (void)environment;
  const lora_expand_params_t* p = (const lora_expand_params_t*)dispatch->params;
  int64_t first = (int64_t)workgroup->workgroup_id[1] * COLUMNS;
  int64_t end = min_i64(first + COLUMNS, p->size + p->size1 + p->size2);
  lora_tokens_t t;
  int32_t status =
      lora_begin(&t, p->index, p->index_step, p->tokens, p->adapters, dispatch, workgroup);
  while (status == KERNEL_OK && lora_next(&t)) {
    if (t.adapter < 0)
      keep(p, &t, first, end);
    else
      expand_all(p, &t, first, end);
  }
  return status;
}
