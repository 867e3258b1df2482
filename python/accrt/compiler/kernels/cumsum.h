/* cumsum.h - running sums along one axis: out[o][j][i] is the sum of x[o][0 .. j][i].
 *
 * Instantiated with X_TAG, OUT_TAG, SUM (the type that it adds in) and ENTRY. x of the grid walks
 * pieces of BLOCK places of the inner axis.
 *
 * With STAGED, elements are calculated where they are read, and results go on from where they are
 * made: generated code (fused.py) then defines cumsum_params_t with the sizes, and before this file
 *
 *   read_run(p, tile, outer, n, inner, count): `count` elements along the inner axis from there
 *   (BY_COLUMNS 0, where there is one: along the axis that is summed);
 *   write_run(p, results, outer, n, inner, count): what `count` results along it become. */
#ifndef ACCRT_KERNELS_CUMSUM_H_
#define ACCRT_KERNELS_CUMSUM_H_

#include "types.h"

typedef TYPE(X_TAG) x_t;
typedef TYPE(OUT_TAG) out_t;

#define BLOCK 64
#define LINE 512

#ifndef STAGED
#define BY_COLUMNS 1
typedef struct {
  const x_t* x;
  out_t* out;
  int64_t outer, n, inner;
  int64_t x_outer, x_n, x_inner, out_outer, out_n, out_inner;
} cumsum_params_t;

static void sum_columns(const cumsum_params_t* p, int64_t outer, int64_t from, int64_t count) {
  const x_t* x = p->x + outer * p->x_outer + from * p->x_inner;
  out_t* out = p->out + outer * p->out_outer + from * p->out_inner;
  if (p->inner == 1) {
    SUM total = 0;
    for (int64_t j = 0; j < p->n; j++) {
      total += (SUM)LOAD(X_TAG)(x[j * p->x_n]);
      out[j * p->out_n] = STORE(OUT_TAG)((WORK(OUT_TAG))total);
    }
    return;
  }
  SUM sum[BLOCK] = {0};
  for (int64_t j = 0; j < p->n; j++) {
    for (int64_t i = 0; i < count; i++) {
      sum[i] += (SUM)LOAD(X_TAG)(x[j * p->x_n + i * p->x_inner]);
      out[j * p->out_n + i * p->out_inner] = STORE(OUT_TAG)((WORK(OUT_TAG))sum[i]);
    }
  }
}
#elif BY_COLUMNS
static void sum_columns(const cumsum_params_t* p, int64_t outer, int64_t from, int64_t count) {
  x_t tile[BLOCK];
  out_t results[BLOCK];
  SUM sum[BLOCK] = {0};
  for (int64_t j = 0; j < p->n; j++) {
    const x_t* x = read_run(p, tile, outer, j, from, count);
    for (int64_t i = 0; i < count; i++) {
      sum[i] += (SUM)LOAD(X_TAG)(x[i]);
      results[i] = STORE(OUT_TAG)((WORK(OUT_TAG))sum[i]);
    }
    write_run(p, results, outer, j, from, count);
  }
}
#else
static void sum_columns(const cumsum_params_t* p, int64_t outer, int64_t from, int64_t count) {
  x_t tile[LINE];
  out_t results[LINE];
  for (int64_t i = from; i < from + count; i++) {
    SUM sum = 0;
    for (int64_t j = 0; j < p->n; j += LINE) {
      int64_t n = min_i64(LINE, p->n - j);
      const x_t* x = read_run(p, tile, outer, j, i, n);
      for (int64_t k = 0; k < n; k++) {
        sum += (SUM)LOAD(X_TAG)(x[k]);
        results[k] = STORE(OUT_TAG)((WORK(OUT_TAG))sum);
      }
      write_run(p, results, outer, j, i, n);
    }
  }
}
#endif

KERNEL_ENTRY(ENTRY) {
  (void)environment;
  const cumsum_params_t* p = (const cumsum_params_t*)dispatch->params;
  int64_t blocks = ceildiv_i64(p->inner, BLOCK), total = p->outer * blocks;
  int64_t first = part_begin(total, workgroup->workgroup_id[0], dispatch->workgroup_count[0]);
  int64_t end = part_begin(total, workgroup->workgroup_id[0] + 1, dispatch->workgroup_count[0]);
  for (int64_t at = first; at < end; at++) {
    int64_t from = at % blocks * BLOCK;
    sum_columns(p, at / blocks, from, min_i64(BLOCK, p->inner - from));
  }
  return KERNEL_OK;
}

#endif /* ACCRT_KERNELS_CUMSUM_H_ */
