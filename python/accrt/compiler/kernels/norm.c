/* norm.c - layer norm and RMS norm over the last axis, one row after the other.
 *
 * Instantiated with X_TAG (input and result), W_TAG (weight and bias), RMS (0 or 1) and ENTRY.
 * 16-bit types are computed in f32. x of the grid walks groups of rows. The variance is taken
 * around the mean in a second pass: nothing cancels. */
#include "lanes.h"
#include "types.h"

typedef TYPE(X_TAG) x_t;
typedef TYPE(W_TAG) w_t;
typedef WORK(X_TAG) work_t;

typedef struct {
  const x_t* x;
  const w_t* weight;
  const w_t* bias;
  x_t* out;
  int64_t rows, n, x_row, out_row;
  double epsilon;
} norm_params_t;

#define VALUE(x, c) LOAD(X_TAG)(x)
#define SQUARE(x, c) (LOAD(X_TAG)(x) * LOAD(X_TAG)(x))
#define DEVIATION(x, c) ((LOAD(X_TAG)(x) - c) * (LOAD(X_TAG)(x) - c))
DEFINE_LANE_REDUCTION(run_values, x_t, work_t, 0, JOIN_ADD, VALUE)
DEFINE_LANE_REDUCTION(run_squares, x_t, work_t, 0, JOIN_ADD, SQUARE)
DEFINE_LANE_REDUCTION(run_deviations, x_t, work_t, 0, JOIN_ADD, DEVIATION)
DEFINE_LONG_SUM(sum_values, run_values, x_t, work_t)
DEFINE_LONG_SUM(sum_squares, run_squares, x_t, work_t)
DEFINE_LONG_SUM(sum_deviations, run_deviations, x_t, work_t)

#define W(array, i) ((work_t)LOAD(W_TAG)((array)[i]))

static void write_row(const norm_params_t* p, const x_t* x, x_t* out, work_t mean, work_t factor) {
  int64_t n = p->n;
  if (p->weight && p->bias) {
    INDEPENDENT for (int64_t i = 0; i < n; i++) {
      out[i] = STORE(X_TAG)((LOAD(X_TAG)(x[i]) - mean) * factor * W(p->weight, i) + W(p->bias, i));
    }
  } else if (p->weight) {
    INDEPENDENT for (int64_t i = 0; i < n; i++) {
      out[i] = STORE(X_TAG)((LOAD(X_TAG)(x[i]) - mean) * factor * W(p->weight, i));
    }
  } else {
    INDEPENDENT for (int64_t i = 0; i < n; i++) {
      work_t add = p->bias ? W(p->bias, i) : 0;
      out[i] = STORE(X_TAG)((LOAD(X_TAG)(x[i]) - mean) * factor + add);
    }
  }
}

KERNEL_ENTRY(ENTRY) {
  (void)environment;
  const norm_params_t* p = (const norm_params_t*)dispatch->params;
  int64_t first = part_begin(p->rows, workgroup->workgroup_id[0], dispatch->workgroup_count[0]);
  int64_t end = part_begin(p->rows, workgroup->workgroup_id[0] + 1, dispatch->workgroup_count[0]);
  for (int64_t row = first; row < end; row++) {
    const x_t* x = p->x + row * p->x_row;
    work_t mean = RMS ? 0 : sum_values(x, p->n, 0) / (work_t)p->n;
    work_t squares = RMS ? sum_squares(x, p->n, 0) : sum_deviations(x, p->n, mean);
    work_t variance = squares / (work_t)p->n + (work_t)p->epsilon;
    work_t root = sizeof(work_t) == 8 ? (work_t)__builtin_sqrt((double)variance)
                                      : (work_t)__builtin_sqrtf((float)variance);
    write_row(p, x, p->out + row * p->out_row, mean, (work_t)1 / root);
  }
  return KERNEL_OK;
}
