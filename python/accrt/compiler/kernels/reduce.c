/* reduce.c - sum, mean, product, maximum and minimum over up to two (collapsed) axes, keeping up to
 * three.
 *
 * Instantiated with X_TAG, OUT_TAG, OP (SUM, MEAN, PROD, MAX or MIN) and ENTRY. Accumulates in the
 * result's type, 16-bit floats in f32; integers wrap. Nothing reduced gives 0, NaN, 1, the lowest
 * and the highest value. NaN propagates. x of the grid walks pieces of the kept index space, whose
 * last axis is walked by vectors when nothing reduced is contiguous. The order of additions depends
 * on the shape alone. */
#include "lanes.h"
#include "types.h"

typedef TYPE(X_TAG) x_t;
typedef TYPE(OUT_TAG) out_t;
typedef WORK(OUT_TAG) acc_t;

typedef struct {
  const x_t* x;
  out_t* out;
  int64_t k0, k1, k2, r0, r1;           /* sizes of kept and of reduced axes */
  int64_t x_k0, x_k1, x_k2, x_r0, x_r1; /* strides */
  int64_t out_k0, out_k1, out_k2;
} reduce_params_t;

#define SUM 0
#define MEAN 1
#define PROD 2
#define MAX 3
#define MIN 4

#define LOWEST_f32 (-__builtin_inff())
#define LOWEST_f16 LOWEST_f32
#define LOWEST_bf16 LOWEST_f32
#define LOWEST_f64 (-__builtin_inf())
#define LOWEST_i8 INT8_MIN
#define LOWEST_u8 0
#define LOWEST_i16 INT16_MIN
#define LOWEST_u16 0
#define LOWEST_i32 INT32_MIN
#define LOWEST_u32 0
#define LOWEST_i64 INT64_MIN
#define LOWEST_u64 0
#define LOWEST_bool 0
#define HIGHEST_f32 __builtin_inff()
#define HIGHEST_f16 HIGHEST_f32
#define HIGHEST_bf16 HIGHEST_f32
#define HIGHEST_f64 __builtin_inf()
#define HIGHEST_i8 INT8_MAX
#define HIGHEST_u8 UINT8_MAX
#define HIGHEST_i16 INT16_MAX
#define HIGHEST_u16 UINT16_MAX
#define HIGHEST_i32 INT32_MAX
#define HIGHEST_u32 UINT32_MAX
#define HIGHEST_i64 INT64_MAX
#define HIGHEST_u64 UINT64_MAX
#define HIGHEST_bool 1

#define FLOAT_f32 1
#define FLOAT_f16 1
#define FLOAT_bf16 1
#define FLOAT_f64 1
#define FLOAT_i8 0
#define FLOAT_u8 0
#define FLOAT_i16 0
#define FLOAT_u16 0
#define FLOAT_i32 0
#define FLOAT_u32 0
#define FLOAT_i64 0
#define FLOAT_u64 0
#define FLOAT_bool 0

/* Integer sums and products go through unsigned, where wrapping is defined. */
#if CONCAT(FLOAT_, OUT_TAG)
#define PLUS(a, b) ((a) + (b))
#define TIMES(a, b) ((a) * (b))
#else
#define PLUS(a, b) ((acc_t)((uint64_t)(a) + (uint64_t)(b)))
#define TIMES(a, b) ((acc_t)((uint64_t)(a) * (uint64_t)(b)))
#endif

#if OP == SUM || OP == MEAN
#define START ((acc_t)0)
#define COMBINE(a, b) PLUS(a, b)
#elif OP == PROD
#define START ((acc_t)1)
#define COMBINE(a, b) TIMES(a, b)
#elif OP == MAX
#define START ((acc_t)CONCAT(LOWEST_, OUT_TAG))
#define COMBINE(a, b) ((a) > (b) || (a) != (a) ? (a) : (b))
#else
#define START ((acc_t)CONCAT(HIGHEST_, OUT_TAG))
#define COMBINE(a, b) ((a) < (b) || (a) != (a) ? (a) : (b))
#endif

#define VALUE(x, c) ((acc_t)LOAD(X_TAG)(x))
DEFINE_LANE_REDUCTION(reduce_run, x_t, acc_t, START, COMBINE, VALUE)

/* Runs of BLOCK elements are reduced on their own, in the result's type; what they give is joined
 * in double (floats), so that rounding errors grow with BLOCK / LANES and not with the number of
 * elements. */
#define BLOCK 1024
#if CONCAT(FLOAT_, OUT_TAG)
typedef double joined_t;
#else
typedef acc_t joined_t;
#endif

static out_t finish(const reduce_params_t* p, joined_t value) {
  if (OP == MEAN)
    value = (joined_t)(value / (joined_t)(p->r0 * p->r1));
  return STORE(OUT_TAG)((acc_t)value);
}

static acc_t reduce_strided(const x_t* x, int64_t n, int64_t step) {
  acc_t value = START;
  for (int64_t i = 0; i < n; i++)
    value = COMBINE(value, VALUE(x[i * step], 0));
  return value;
}

static void reduce_rows(const reduce_params_t* p, const x_t* x, out_t* out, int64_t count) {
  for (int64_t i = 0; i < count; i++, x += p->x_k2, out += p->out_k2) {
    joined_t value = START;
    for (int64_t a = 0; a < p->r0; a++) {
      for (int64_t b = 0; b < p->r1; b += BLOCK) {
        const x_t* from = x + a * p->x_r0 + b * p->x_r1;
        int64_t n = min_i64(BLOCK, p->r1 - b);
        acc_t part = p->x_r1 == 1 ? reduce_run(from, n, START) : reduce_strided(from, n, p->x_r1);
        value = COMBINE(value, (joined_t)part);
      }
    }
    *out = finish(p, value);
  }
}

/* The kept axis is contiguous: COLUMNS results side by side, row upon row. */
#define COLUMNS 128

static void reduce_columns(const reduce_params_t* p, const x_t* x, out_t* out, int64_t count) {
  acc_t part[COLUMNS];
  joined_t total[COLUMNS];
  for (int64_t j = 0; j < count; j++)
    total[j] = START;
  for (int64_t a = 0; a < p->r0; a++) {
    for (int64_t b = 0; b < p->r1; b += BLOCK) {
      int64_t n = min_i64(BLOCK, p->r1 - b);
      for (int64_t j = 0; j < count; j++)
        part[j] = START;
      for (int64_t i = 0; i < n; i++) {
        const x_t* row = x + a * p->x_r0 + (b + i) * p->x_r1;
        INDEPENDENT for (int64_t j = 0; j < count; j++) part[j] =
            COMBINE(part[j], VALUE(row[j], 0));
      }
      for (int64_t j = 0; j < count; j++)
        total[j] = COMBINE(total[j], (joined_t)part[j]);
    }
  }
  for (int64_t j = 0; j < count; j++)
    out[j * p->out_k2] = finish(p, total[j]);
}

KERNEL_ENTRY(ENTRY) {
  (void)environment;
  const reduce_params_t* p = (const reduce_params_t*)dispatch->params;
  int64_t pieces = ceildiv_i64(p->k2, COLUMNS), total = p->k0 * p->k1 * pieces;
  int64_t first = part_begin(total, workgroup->workgroup_id[0], dispatch->workgroup_count[0]);
  int64_t end = part_begin(total, workgroup->workgroup_id[0] + 1, dispatch->workgroup_count[0]);
  for (int64_t at = first; at < end; at++) {
    int64_t column = at % pieces * COLUMNS, i1 = at / pieces % p->k1, i0 = at / pieces / p->k1;
    const x_t* x = p->x + i0 * p->x_k0 + i1 * p->x_k1 + column * p->x_k2;
    out_t* out = p->out + i0 * p->out_k0 + i1 * p->out_k1 + column * p->out_k2;
    int64_t count = min_i64(COLUMNS, p->k2 - column);
    if (p->x_k2 == 1 && p->x_r1 != 1) {
      reduce_columns(p, x, out, count);
    } else {
      reduce_rows(p, x, out, count);
    }
  }
  return KERNEL_OK;
}
