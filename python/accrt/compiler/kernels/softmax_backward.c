/* softmax_backward.c - the gradient of softmax over the last axis, of its result and of that
 * result's gradient.
 *
 * Instantiated with X_TAG (all) and ENTRY. 16-bit types are computed in f32. x of the grid walks
 * groups of rows. `scale` is what x was multiplied by before. `out` may be the memory of grad. */
#include "lanes.h"
#include "types.h"

typedef TYPE(X_TAG) x_t;
typedef WORK(X_TAG) work_t;

typedef struct {
  const x_t* grad;
  const x_t* result;
  x_t* out;
  int64_t rows, n, grad_row, result_row, out_row;
  double scale;
} softmax_backward_params_t;

static work_t inner_run(const x_t* grad, const x_t* result, int64_t n) {
  work_t lanes[LANES];
  int64_t i = 0;
  for (int j = 0; j < LANES; j++)
    lanes[j] = 0;
  for (; i + LANES <= n; i += LANES) {
    for (int j = 0; j < LANES; j++)
      lanes[j] += LOAD(X_TAG)(grad[i + j]) * LOAD(X_TAG)(result[i + j]);
  }
  for (int j = 0; i + j < n; j++)
    lanes[j] += LOAD(X_TAG)(grad[i + j]) * LOAD(X_TAG)(result[i + j]);
  for (int width = LANES / 2; width > 0; width /= 2) {
    for (int j = 0; j < width; j++)
      lanes[j] += lanes[j + width];
  }
  return lanes[0];
}

static work_t inner_product(const x_t* grad, const x_t* result, int64_t n) {
  double total = 0;
  for (int64_t i = 0; i < n; i += RUN)
    total += (double)inner_run(grad + i, result + i, min_i64(RUN, n - i));
  return (work_t)total;
}

KERNEL_ENTRY(ENTRY) {
  (void)environment;
  const softmax_backward_params_t* p = (const softmax_backward_params_t*)dispatch->params;
  int64_t first = part_begin(p->rows, workgroup->workgroup_id[0], dispatch->workgroup_count[0]);
  int64_t end = part_begin(p->rows, workgroup->workgroup_id[0] + 1, dispatch->workgroup_count[0]);
  work_t scale = (work_t)p->scale;
  for (int64_t row = first; row < end; row++) {
    const x_t* grad = p->grad + row * p->grad_row;
    const x_t* result = p->result + row * p->result_row;
    x_t* out = p->out + row * p->out_row;
    work_t inner = inner_product(grad, result, p->n);
    INDEPENDENT for (int64_t i = 0; i < p->n; i++) out[i] =
        STORE(X_TAG)(LOAD(X_TAG)(result[i]) * (LOAD(X_TAG)(grad[i]) - inner) * scale);
  }
  return KERNEL_OK;
}
