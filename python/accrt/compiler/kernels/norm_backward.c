/* norm_backward.c - gradients of layer norm and RMS norm over the last axis.
 *
 * Instantiated with X_TAG (grad, x and out), W_TAG (weight), RMS (0 or 1) and ENTRY. 16-bit types
 * are computed in f32. x of the grid walks groups of rows: each writes its rows of `out` and one
 * row of `weight_sums` (and `bias_sums`), which another kernel adds up. As in norm.c, deviations
 * are taken around the mean. `out` may be the memory of grad. */
#include "lanes.h"
#include "types.h"

typedef TYPE(X_TAG) x_t;
typedef TYPE(W_TAG) w_t;
typedef WORK(X_TAG) work_t;

typedef struct {
  const x_t* grad;
  const x_t* x;
  const w_t* weight;
  x_t* out;
  work_t* weight_sums;
  work_t* bias_sums;
  int64_t rows, n, grad_row, x_row, out_row, group;
  double epsilon;
} norm_backward_params_t;

#define VALUE(x, c) LOAD(X_TAG)(x)
DEFINE_LANE_REDUCTION(run_values, x_t, work_t, 0, JOIN_ADD, VALUE)
DEFINE_LONG_SUM(sum_values, run_values, x_t, work_t)

typedef struct {
  work_t mean, factor, inner, shift;
} row_t;

/* Element i + j of a row into lane j. */
#define ADD(j)                                                                                     \
  do {                                                                                             \
    work_t v = LOAD(X_TAG)(x[i + (j)]) - mean;                                                     \
    work_t g = LOAD(X_TAG)(grad[i + (j)]) * (work_t)LOAD(W_TAG)(p->weight[i + (j)]);               \
    squares[j] += v * v;                                                                           \
    products[j] += g * v;                                                                          \
    grads[j] += RMS ? 0 : g;                                                                       \
  } while (0)

/* Of elements [i, n) of a row, in one pass: squares of deviations, weighted gradients times them,
 * and (layer norm) weighted gradients; added to the three totals. */
static void measure_run(const norm_backward_params_t* p, const x_t* grad, const x_t* x, int64_t i,
                        int64_t n, work_t mean, double totals[3]) {
  work_t squares[LANES], products[LANES], grads[LANES];
  for (int j = 0; j < LANES; j++)
    squares[j] = products[j] = grads[j] = 0;
  for (; i + LANES <= n; i += LANES) {
    for (int j = 0; j < LANES; j++)
      ADD(j);
  }
  for (int j = 0; i + j < n; j++)
    ADD(j);
  for (int width = LANES / 2; width > 0; width /= 2) {
    for (int j = 0; j < width; j++) {
      squares[j] += squares[j + width];
      products[j] += products[j + width];
      grads[j] += grads[j + width];
    }
  }
  totals[0] += (double)squares[0];
  totals[1] += (double)products[0];
  totals[2] += (double)grads[0];
}

static row_t measure(const norm_backward_params_t* p, const x_t* grad, const x_t* x) {
  int64_t n = p->n;
  double totals[3] = {0, 0, 0};
  work_t mean = RMS ? 0 : sum_values(x, n, 0) / (work_t)n;
  for (int64_t i = 0; i < n; i += RUN)
    measure_run(p, grad, x, i, min_i64(i + RUN, n), mean, totals);
  work_t variance = (work_t)totals[0] / (work_t)n + (work_t)p->epsilon;
  work_t root = sizeof(work_t) == 8 ? (work_t)__builtin_sqrt((double)variance)
                                    : (work_t)__builtin_sqrtf((float)variance);
  row_t row = {mean, (work_t)1 / root, (work_t)totals[1] / root / (work_t)n,
               (work_t)totals[2] / (work_t)n};
  return row;
}

static void write_row(const norm_backward_params_t* p, const row_t row, const x_t* grad,
                      const x_t* x, x_t* out, work_t* weights, work_t* biases) {
  INDEPENDENT for (int64_t i = 0; i < p->n; i++) {
    work_t g = LOAD(X_TAG)(grad[i]);
    work_t unit = (LOAD(X_TAG)(x[i]) - row.mean) * row.factor;
    work_t inner = g * (work_t)LOAD(W_TAG)(p->weight[i]) - unit * row.inner;
    weights[i] += g * unit;
#if !RMS
    biases[i] += g;
#endif
    out[i] = STORE(X_TAG)((inner - row.shift) * row.factor);
  }
}

KERNEL_ENTRY(ENTRY) {
  (void)environment;
  const norm_backward_params_t* p = (const norm_backward_params_t*)dispatch->params;
  int64_t at = workgroup->workgroup_id[0], first = at * p->group;
  int64_t end = min_i64(first + p->group, p->rows);
  if (first >= end)
    return KERNEL_OK;
  work_t* weights = p->weight_sums + at * p->n;
  work_t* biases = RMS ? weights : p->bias_sums + at * p->n;
  for (int64_t i = 0; i < p->n; i++)
    weights[i] = biases[i] = 0;
  for (int64_t row = first; row < end; row++) {
    const x_t* grad = p->grad + row * p->grad_row;
    const x_t* x = p->x + row * p->x_row;
    row_t measured = measure(p, grad, x);
    write_row(p, measured, grad, x, p->out + row * p->out_row, weights, biases);
  }
  return KERNEL_OK;
}
