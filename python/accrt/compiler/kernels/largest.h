/* largest.h - the largest of many floats without sorting them: keys that order value and place at
 * once, the largest of each block, and the key at which a count or a mass is reached.
 *
 * A unit that includes it defines NAN_BITS: the float whose place NaN takes (NaN itself: before
 * all; -inf: behind all). Minus zero counts as zero. */
#ifndef ACCRT_KERNELS_LARGEST_H_
#define ACCRT_KERNELS_LARGEST_H_

#include "common.h"
#include "vmath.h"

#define BLOCK 64
#define DIGIT_COUNT 2048
#define NEGATIVE_INFINITY (-__builtin_inff())

/* A number that is larger where the float is. */
ALWAYS_INLINE uint32_t order_f32(float x) {
  uint32_t u = x != x ? NAN_BITS : bits_f32(x + 0.0f);
  return u ^ ((uint32_t)((int32_t)u >> 31) | 0x80000000u);
}
ALWAYS_INLINE float unorder_f32(uint32_t order) {
  return f32_bits(order ^ ((order >> 31) ? 0x80000000u : 0xFFFFFFFFu));
}

/* Larger for a larger value, then for a lower place. */
ALWAYS_INLINE uint64_t key_of(uint32_t order, int64_t id) {
  return (uint64_t)order << 32 | (0xFFFFFFFFu - (uint32_t)id);
}
ALWAYS_INLINE int64_t id_of(uint64_t key) {
  return (int64_t)(0xFFFFFFFFu - (uint32_t)key);
}
ALWAYS_INLINE uint32_t order_of(uint64_t key) {
  return (uint32_t)(key >> 32);
}

/* The largest of each BLOCK of x; the largest of all. */
static __attribute__((unused)) uint32_t block_maxima(const float* x, int64_t n, uint32_t* maxima) {
  uint32_t all = 0;
  for (int64_t b = 0; b * BLOCK < n; b++) {
    const float* at = x + b * BLOCK;
    int64_t count = min_i64(BLOCK, n - b * BLOCK);
    uint32_t top = 0;
    if (count == BLOCK) {
      uint32_t lanes[16] = {0};
      for (int i = 0; i < BLOCK; i += 16) {
        for (int j = 0; j < 16; j++) {
          uint32_t order = order_f32(at[i + j]);
          lanes[j] = order > lanes[j] ? order : lanes[j];
        }
      }
      for (int j = 0; j < 16; j++)
        top = lanes[j] > top ? lanes[j] : top;
    } else {
      for (int64_t i = 0; i < count; i++) {
        uint32_t order = order_f32(at[i]);
        top = order > top ? order : top;
      }
    }
    maxima[b] = top;
    all = top > all ? top : all;
  }
  return all;
}

/* Keys of what is at least `least`, in ascending order of places. */
static __attribute__((unused)) int64_t collect(const float* x, int64_t n, const uint32_t* maxima,
                                               uint32_t least, uint64_t* keys) {
  int64_t count = 0;
  for (int64_t b = 0; b * BLOCK < n; b++) {
    if (maxima[b] < least)
      continue;
    int64_t end = min_i64(n, (b + 1) * BLOCK);
    for (int64_t i = b * BLOCK; i < end; i++) {
      uint32_t order = order_f32(x[i]);
      keys[count] = key_of(order, i);
      count += order >= least;
    }
  }
  return count;
}

/* The first key, from the largest down, with which `target` is reached: of a count, or (weighted)
 * of exp of the values, which are 0 and less. The last that counts, if it never is. The keys are
 * used up. */
static __attribute__((unused)) uint64_t cut(uint64_t* keys, int64_t n, double target, int weighted,
                                            double* mass) {
  double before = 0.0;
  int shift = 64;
  for (int level = 0; level < 6 && n > 1; level++) {
    int bits = level % 3 == 2 ? 10 : 11, count = 1 << bits, chosen = -1;
    shift -= bits;
    for (int d = 0; d < count; d++)
      mass[d] = 0.0;
    for (int64_t i = 0; i < n; i++) {
      double weight = weighted ? (double)m_exp_nonpositive(unorder_f32(order_of(keys[i]))) : 1.0;
      mass[keys[i] >> shift & (uint64_t)(count - 1)] += weight;
    }
    for (int d = count - 1; d >= 0; d--) {
      if (mass[d] <= 0.0)
        continue;
      before += chosen >= 0 ? mass[chosen] : 0.0;
      chosen = d;
      if (before + mass[d] >= target)
        break;
    }
    int64_t kept = 0;
    for (int64_t i = 0; i < n; i++) {
      keys[kept] = keys[i];
      kept += (int)(keys[i] >> shift & (uint64_t)(count - 1)) == chosen;
    }
    n = kept;
  }
  return keys[0];
}

/* The key of the k-th largest of x (1 <= k <= n). `keys` has room for n. */
static __attribute__((unused)) uint64_t kth_largest(const float* x, int64_t n, int64_t k,
                                                    const uint32_t* maxima, uint64_t* keys,
                                                    double* mass) {
  int64_t blocks = ceildiv_i64(n, BLOCK);
  uint32_t least = 0;
  if (k <= blocks) { /* k blocks have one each that is as large as the k-th largest maximum */
    for (int64_t b = 0; b < blocks; b++)
      keys[b] = key_of(maxima[b], b);
    least = order_of(cut(keys, blocks, (double)k, 0, mass));
  }
  return cut(keys, collect(x, n, maxima, least, keys), (double)k, 0, mass);
}

static __attribute__((unused)) void sift(uint64_t* keys, int64_t root, int64_t n) {
  uint64_t key = keys[root];
  for (int64_t child; (child = 2 * root + 1) < n; root = child) {
    child += child + 1 < n && keys[child + 1] < keys[child];
    if (keys[child] >= key)
      break;
    keys[root] = keys[child];
  }
  keys[root] = key;
}

/* Descending, in place. */
static __attribute__((unused)) void sort_keys(uint64_t* keys, int64_t n) {
  for (int64_t i = n / 2; i-- > 0;)
    sift(keys, i, n);
  for (int64_t end = n - 1; end > 0; end--) {
    uint64_t least = keys[0];
    keys[0] = keys[end];
    keys[end] = least;
    sift(keys, 0, end);
  }
}

/* The k largest of x in descending order, at `keys`. */
static __attribute__((unused)) void top_keys(const float* x, int64_t n, int64_t k,
                                             const uint32_t* maxima, uint64_t* keys, double* mass) {
  uint64_t least = kth_largest(x, n, k, maxima, keys, mass);
  int64_t count = collect(x, n, maxima, order_of(least), keys), kept = 0;
  for (int64_t i = 0; i < count; i++) {
    keys[kept] = keys[i];
    kept += keys[i] >= least;
  }
  sort_keys(keys, kept);
}

#endif /* ACCRT_KERNELS_LARGEST_H_ */
