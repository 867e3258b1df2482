/* lanes.h - reductions over contiguous elements in a fixed order: LANES partial results, joined
 * pairwise at the end. The order depends on the length alone, so that results are the same on every
 * target; compilers make vectors of it. */
#ifndef ACCRT_KERNELS_LANES_H_
#define ACCRT_KERNELS_LANES_H_

#include "common.h"

#define LANES 32

/* Defines NAME(x, n, argument...): joins F(x[i]) with JOIN over [0, n), from START. */
#define DEFINE_LANE_REDUCTION(NAME, T, ACC, START, JOIN, F)                                        \
  static ACC NAME(const T* x, int64_t n, ACC c) {                                                  \
    ACC lanes[LANES];                                                                              \
    (void)c;                                                                                       \
    for (int j = 0; j < LANES; j++)                                                                \
      lanes[j] = (START);                                                                          \
    int64_t i = 0;                                                                                 \
    for (; i + LANES <= n; i += LANES) {                                                           \
      for (int j = 0; j < LANES; j++)                                                              \
        lanes[j] = JOIN(lanes[j], F(x[i + j], c));                                                 \
    }                                                                                              \
    for (int j = 0; i + j < n; j++)                                                                \
      lanes[j] = JOIN(lanes[j], F(x[i + j], c));                                                   \
    for (int width = LANES / 2; width > 0; width /= 2) {                                           \
      for (int j = 0; j < width; j++)                                                              \
        lanes[j] = JOIN(lanes[j], lanes[j + width]);                                               \
    }                                                                                              \
    return lanes[0];                                                                               \
  }

/* Sums of runs of so many elements are joined in double, so that rounding errors do not grow with
 * the length of a long row. */
#define RUN 4096

/* Defines NAME(x, n, argument): the sum that a lane reduction gives, of rows of any length. */
#define DEFINE_LONG_SUM(NAME, REDUCTION, T, ACC)                                                   \
  static ACC NAME(const T* x, int64_t n, ACC c) {                                                  \
    double total = 0;                                                                              \
    for (int64_t i = 0; i < n; i += RUN)                                                           \
      total += (double)REDUCTION(x + i, min_i64(RUN, n - i), c);                                   \
    return (ACC)total;                                                                             \
  }

#define JOIN_ADD(a, b) ((a) + (b))
#define JOIN_MAX(a, b) ((a) > (b) || (a) != (a) ? (a) : (b)) /* NaN propagates */

#endif /* ACCRT_KERNELS_LANES_H_ */
