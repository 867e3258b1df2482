/* softmax.c - softmax and log-softmax over the last axis.
 *
 * Instantiated with X_TAG (input and result) and ENTRY. 16-bit types are computed in f32. x of the
 * grid walks groups of rows. A row of -inf alone gives NaN, as does a row with +inf or NaN. */
#include "lanes.h"
#include "types.h"
#include "vmath.h"

typedef TYPE(X_TAG) x_t;
typedef WORK(X_TAG) work_t;

typedef struct {
  const x_t* x;
  x_t* out;
  int64_t rows, n, x_row, out_row, logarithm;
} softmax_params_t;

#define IS_F64_f64 1
#define IS_F64_f32 0
#define IS_F64_f16 0
#define IS_F64_bf16 0
#if CONCAT(IS_F64_, X_TAG)
#define EXP(x) imports->exp(x)
#define LOG(x) imports->log(x)
#else
#define EXP(x) m_exp_nonpositive(x)
#define LOG(x) m_log(x)
#endif

#define VALUE(x, c) LOAD(X_TAG)(x)
#define SAME(x, c) (x)
DEFINE_LANE_REDUCTION(row_maximum, x_t, work_t, (work_t)-__builtin_inff(), JOIN_MAX, VALUE)
DEFINE_LANE_REDUCTION(chunk_sum, work_t, work_t, 0, JOIN_ADD, SAME)

#define CHUNK 512

/* exp(x - maximum) of part of a row into `weights`. */
static void weigh(const accrt_kernel_imports_t* imports, const x_t* x, int64_t n, work_t maximum,
                  work_t* weights) {
  (void)imports;
  INDEPENDENT for (int64_t i = 0; i < n; i++) weights[i] = EXP(LOAD(X_TAG)(x[i]) - maximum);
}

/* Longer rows compute their exponentials twice: in the result's type they would have lost
 * precision. */
static void softmax_row(const softmax_params_t* p, const accrt_kernel_imports_t* imports,
                        const x_t* x, x_t* out) {
  work_t weights[CHUNK], maximum = row_maximum(x, p->n, 0);
  double total = 0; /* of chunks, so that long rows lose nothing */
  for (int64_t at = 0; at < p->n; at += CHUNK) {
    int64_t count = min_i64(CHUNK, p->n - at);
    weigh(imports, x + at, count, maximum, weights);
    total += (double)chunk_sum(weights, count, 0);
  }
  work_t sum = (work_t)total;
  if (p->logarithm) {
    work_t shift = LOG(sum);
    INDEPENDENT for (int64_t i = 0; i < p->n; i++) out[i] =
        STORE(X_TAG)(LOAD(X_TAG)(x[i]) - maximum - shift);
    return;
  }
  work_t factor = (work_t)1 / sum;
  for (int64_t at = 0; at < p->n; at += CHUNK) {
    int64_t count = min_i64(CHUNK, p->n - at);
    if (p->n > CHUNK)
      weigh(imports, x + at, count, maximum, weights);
    INDEPENDENT for (int64_t i = 0; i < count; i++) out[at + i] = STORE(X_TAG)(weights[i] * factor);
  }
}

KERNEL_ENTRY(ENTRY) {
  const softmax_params_t* p = (const softmax_params_t*)dispatch->params;
  int64_t first = part_begin(p->rows, workgroup->workgroup_id[0], dispatch->workgroup_count[0]);
  int64_t end = part_begin(p->rows, workgroup->workgroup_id[0] + 1, dispatch->workgroup_count[0]);
  for (int64_t row = first; row < end; row++) {
    softmax_row(p, environment->imports, p->x + row * p->x_row, p->out + row * p->out_row);
  }
  return KERNEL_OK;
}
