/* cumsum.c - running sums along one axis: out[o][j][i] is the sum of x[o][0 .. j][i].
 *
 * Instantiated with X_TAG, OUT_TAG, SUM (the type that it adds in) and ENTRY. x of the grid walks
 * pieces of BLOCK places of the inner axis. */
#include "types.h"

typedef TYPE(X_TAG) x_t;
typedef TYPE(OUT_TAG) out_t;

typedef struct {
  const x_t* x;
  out_t* out;
  int64_t outer, n, inner;
  int64_t x_outer, x_n, x_inner, out_outer, out_n, out_inner;
} cumsum_params_t;

#define BLOCK 64

KERNEL_ENTRY(ENTRY) {
  (void)environment;
  const cumsum_params_t* p = (const cumsum_params_t*)dispatch->params;
  int64_t blocks = ceildiv_i64(p->inner, BLOCK), total = p->outer * blocks;
  int64_t first = part_begin(total, workgroup->workgroup_id[0], dispatch->workgroup_count[0]);
  int64_t end = part_begin(total, workgroup->workgroup_id[0] + 1, dispatch->workgroup_count[0]);
  for (int64_t at = first; at < end; at++) {
    int64_t from = at % blocks * BLOCK, count = min_i64(BLOCK, p->inner - from);
    const x_t* x = p->x + at / blocks * p->x_outer + from * p->x_inner;
    out_t* out = p->out + at / blocks * p->out_outer + from * p->out_inner;
    SUM sum[BLOCK] = {0};
    for (int64_t j = 0; j < p->n; j++) {
      for (int64_t i = 0; i < count; i++) {
        sum[i] += (SUM)LOAD(X_TAG)(x[j * p->x_n + i * p->x_inner]);
        out[j * p->out_n + i * p->out_inner] = STORE(OUT_TAG)((WORK(OUT_TAG))sum[i]);
      }
    }
  }
  return KERNEL_OK;
}
