/* reduce.h - sum, mean, product, maximum and minimum over up to two (collapsed) axes, keeping up to
 * three, and the place of the largest over one.
 *
 * Instantiated with X_TAG, OUT_TAG, OP (SUM, MEAN, PROD, MAX, MIN or ARGMAX) and ENTRY. Accumulates
 * in the result's type, 16-bit floats in f32; integers wrap. Nothing reduced gives 0, NaN, 1, the
 * lowest and the highest value. NaN propagates. x of the grid walks pieces of the kept index space,
 * whose last axis is walked by vectors when nothing reduced is contiguous. The order of additions
 * depends on the shape alone.
 *
 * With STAGED, elements are calculated where they are read, and results go on from where they are
 * made: generated code (fused.py) then defines reduce_params_t with the sizes, and before this file
 *
 *   read_run(p, tile, k0, k1, k2, r0, r1, n): n elements from there, along r1 (BY_COLUMNS: k2);
 *   write_run(p, results, k0, k1, k2, n): what n results along k2 become. */
#ifndef ACCRT_KERNELS_REDUCE_H_
#define ACCRT_KERNELS_REDUCE_H_

#include "lanes.h"
#include "types.h"

#define SUM 0
#define MEAN 1
#define PROD 2
#define MAX 3
#define MIN 4
#define ARGMAX 5

typedef TYPE(X_TAG) x_t;
typedef TYPE(OUT_TAG) out_t;
#if OP == ARGMAX
#define ACC_TAG X_TAG
#else
#define ACC_TAG OUT_TAG
#endif
typedef WORK(ACC_TAG) acc_t;

#ifndef STAGED
typedef struct {
  const x_t* x;
  out_t* out;
  int64_t k0, k1, k2, r0, r1;           /* sizes of kept and of reduced axes */
  int64_t x_k0, x_k1, x_k2, x_r0, x_r1; /* strides */
  int64_t out_k0, out_k1, out_k2;
} reduce_params_t;
#endif

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
#if CONCAT(FLOAT_, ACC_TAG)
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
#elif OP == MAX || OP == ARGMAX
#define START ((acc_t)CONCAT(LOWEST_, ACC_TAG))
#define COMBINE(a, b) ((a) > (b) || (a) != (a) ? (a) : (b))
#else
#define START ((acc_t)CONCAT(HIGHEST_, ACC_TAG))
#define COMBINE(a, b) ((a) < (b) || (a) != (a) ? (a) : (b))
#endif

#define VALUE(x, c) ((acc_t)LOAD(X_TAG)(x))
DEFINE_LANE_REDUCTION(reduce_run, x_t, acc_t, START, COMBINE, VALUE)

/* Runs of BLOCK elements are reduced on their own, in the result's type; what they give is joined
 * in double (floats), so that rounding errors grow with BLOCK / LANES and not with the number of
 * elements. */
#define BLOCK 1024
#if CONCAT(FLOAT_, ACC_TAG) && OP != ARGMAX
typedef double joined_t;
#else
typedef acc_t joined_t;
#endif

static acc_t reduce_strided(const x_t* x, int64_t n, int64_t step) {
  acc_t value = START;
  for (int64_t i = 0; i < n; i++)
    value = COMBINE(value, VALUE(x[i * step], 0));
  return value;
}

/* Results of one piece: side by side they are made by vectors, row by row they are shared out. */
#if defined(STAGED) && !BY_COLUMNS
#define COLUMNS 8
#else
#define COLUMNS 128
#endif

#ifdef STAGED
#define STEP(p) 1
#define BY_ROWS(p) (!BY_COLUMNS)
#else
#define STEP(p) ((p)->x_r1)
#define BY_ROWS(p) (!((p)->x_k2 == 1 && (p)->x_r1 != 1))
ALWAYS_INLINE const x_t* read_run(const reduce_params_t* p, x_t* tile, int64_t k0, int64_t k1,
                                  int64_t k2, int64_t r0, int64_t r1, int64_t n) {
  (void)tile;
  (void)n;
  return p->x + k0 * p->x_k0 + k1 * p->x_k1 + k2 * p->x_k2 + r0 * p->x_r0 + r1 * p->x_r1;
}

ALWAYS_INLINE void write_run(const reduce_params_t* p, const out_t* results, int64_t k0, int64_t k1,
                             int64_t k2, int64_t n) {
  out_t* out = p->out + k0 * p->out_k0 + k1 * p->out_k1 + k2 * p->out_k2;
  for (int64_t i = 0; i < n; i++)
    out[i * p->out_k2] = results[i];
}
#endif

#if OP == ARGMAX
/* The place of an element that is there; blocks are tested whole. */
static int64_t find(const x_t* x, int64_t n, acc_t top, int64_t step) {
  int64_t i = 0;
  for (; step == 1 && i + LANES <= n; i += LANES) {
    int there = 0;
    for (int j = 0; j < LANES; j++) {
      acc_t value = LOAD(X_TAG)(x[i + j]);
      there |= (value == top) | (value != value);
    }
    if (there)
      break;
  }
  for (; i < n; i++) {
    acc_t value = LOAD(X_TAG)(x[i * step]);
    if (top != top ? value != value : value == top)
      return i;
  }
  return 0;
}

/* The first of the largest: of each block first, whose place is looked for where it is larger than
 * all before. */
static out_t reduce_row(const reduce_params_t* p, int64_t k0, int64_t k1, int64_t k2) {
  x_t tile[BLOCK];
  acc_t top = START;
  int64_t place = -1;
  for (int64_t b = 0; b < p->r1; b += BLOCK) {
    int64_t n = min_i64(BLOCK, p->r1 - b);
    const x_t* from = read_run(p, tile, k0, k1, k2, 0, b, n);
    acc_t part = STEP(p) == 1 ? reduce_run(from, n, START) : reduce_strided(from, n, STEP(p));
    if (place < 0 || part > top || (part != part && top == top)) {
      top = part;
      place = b + find(from, n, part, STEP(p));
    }
  }
  return (out_t)place;
}
#else
static out_t finish(const reduce_params_t* p, joined_t value) {
  if (OP == MEAN)
    value = (joined_t)(value / (joined_t)(p->r0 * p->r1));
  return STORE(OUT_TAG)((acc_t)value);
}

static out_t reduce_row(const reduce_params_t* p, int64_t k0, int64_t k1, int64_t k2) {
  x_t tile[BLOCK];
  joined_t value = START;
  for (int64_t a = 0; a < p->r0; a++) {
    for (int64_t b = 0; b < p->r1; b += BLOCK) {
      int64_t n = min_i64(BLOCK, p->r1 - b);
      const x_t* from = read_run(p, tile, k0, k1, k2, a, b, n);
      acc_t part = STEP(p) == 1 ? reduce_run(from, n, START) : reduce_strided(from, n, STEP(p));
      value = COMBINE(value, (joined_t)part);
    }
  }
  return finish(p, value);
}

/* The kept axis is contiguous: results side by side, row upon row. */
static void reduce_columns(const reduce_params_t* p, int64_t k0, int64_t k1, int64_t k2,
                           out_t* results, int64_t count) {
  x_t tile[COLUMNS];
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
        const x_t* row = read_run(p, tile, k0, k1, k2, a, b + i, count);
        INDEPENDENT for (int64_t j = 0; j < count; j++) part[j] =
            COMBINE(part[j], VALUE(row[j], 0));
      }
      for (int64_t j = 0; j < count; j++)
        total[j] = COMBINE(total[j], (joined_t)part[j]);
    }
  }
  for (int64_t j = 0; j < count; j++)
    results[j] = finish(p, total[j]);
}
#endif

KERNEL_ENTRY(ENTRY) {
  (void)environment;
  const reduce_params_t* p = (const reduce_params_t*)dispatch->params;
  int64_t pieces = ceildiv_i64(p->k2, COLUMNS), total = p->k0 * p->k1 * pieces;
  int64_t first = part_begin(total, workgroup->workgroup_id[0], dispatch->workgroup_count[0]);
  int64_t end = part_begin(total, workgroup->workgroup_id[0] + 1, dispatch->workgroup_count[0]);
  for (int64_t at = first; at < end; at++) {
    int64_t column = at % pieces * COLUMNS, k1 = at / pieces % p->k1, k0 = at / pieces / p->k1;
    int64_t count = min_i64(COLUMNS, p->k2 - column);
    out_t results[COLUMNS];
#if OP == ARGMAX
    if (UNLIKELY(p->r1 < 1)) {
      fail_message(workgroup, "argmax over % elements", p->r1, 0);
      return KERNEL_ERROR_INDEX;
    }
#else
    if (!BY_ROWS(p)) {
      reduce_columns(p, k0, k1, column, results, count);
      write_run(p, results, k0, k1, column, count);
      continue;
    }
#endif
    for (int64_t i = 0; i < count; i++)
      results[i] = reduce_row(p, k0, k1, column + i);
    write_run(p, results, k0, k1, column, count);
  }
  return KERNEL_OK;
}

#endif /* ACCRT_KERNELS_REDUCE_H_ */
