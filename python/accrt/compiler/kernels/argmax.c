/* argmax.c - the place of the largest element of each row, the lowest where several are equal. NaN
 * is larger than all else, as in ATen.
 *
 * Instantiated with X_TAG, OUT_TAG (i32 or i64) and ENTRY. x of the grid walks groups of rows. */
#include "lanes.h"
#include "types.h"

typedef TYPE(X_TAG) x_t;
typedef WORK(X_TAG) work_t;
typedef TYPE(OUT_TAG) out_t;

typedef struct {
  const x_t* x;
  out_t* out;
  int64_t rows, n, x_row, out_row;
} argmax_params_t;

#define VALUE(x, c) LOAD(X_TAG)(x)
DEFINE_LANE_REDUCTION(row_maximum, x_t, work_t, c, JOIN_MAX, VALUE)

/* Whether an element of the block is the largest; blocks are tested whole. */
static int64_t find(const x_t* x, int64_t n, work_t top) {
  int64_t at = 0;
  for (; at + LANES <= n; at += LANES) {
    int there = 0;
    for (int j = 0; j < LANES; j++) {
      work_t value = LOAD(X_TAG)(x[at + j]);
      there |= (value == top) | (value != value);
    }
    if (there)
      break;
  }
  for (; at < n; at++) {
    work_t value = LOAD(X_TAG)(x[at]);
    if (top != top ? value != value : value == top)
      return at;
  }
  return 0;
}

KERNEL_ENTRY(ENTRY) {
  (void)environment;
  const argmax_params_t* p = (const argmax_params_t*)dispatch->params;
  int64_t first = part_begin(p->rows, workgroup->workgroup_id[0], dispatch->workgroup_count[0]);
  int64_t end = part_begin(p->rows, workgroup->workgroup_id[0] + 1, dispatch->workgroup_count[0]);
  for (int64_t row = first; row < end; row++) {
    const x_t* x = p->x + row * p->x_row;
    if (UNLIKELY(p->n < 1)) {
      fail_message(workgroup, "argmax over % elements", p->n, 0);
      return KERNEL_ERROR_INDEX;
    }
    work_t top = row_maximum(x, p->n, LOAD(X_TAG)(x[0]));
    p->out[row * p->out_row] = (out_t)find(x, p->n, top);
  }
  return KERNEL_OK;
}
