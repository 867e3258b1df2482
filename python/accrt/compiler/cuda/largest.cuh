// largest.cuh - the largest of a row of many floats, found by one block: keys that order value and
// place at once, the largest of each thread, what is at least a bound, and the exact key at which a
// count or a mass is reached.
//
// A unit that includes it defines X_TAG (the type of elements) and NAN_BITS: the float whose place
// NaN takes (NaN itself: before all; -inf: behind all). Minus zero counts as zero. Each element has
// one thread, whatever the alignment; sums are made in one order or of integers: the same row gives
// the same bytes.
#ifndef ACCRT_CUDA_LARGEST_CUH_
#define ACCRT_CUDA_LARGEST_CUH_

#include "common.cuh"

#define THREADS 512
#define WARPS (THREADS / 32)
#define LIST 2048 // keys that a block keeps
#define DIGITS 2048
#define EACH (LIST / THREADS)
#define MINUS_INFINITY_ORDER 0x007FFFFFu
#define NEGATIVE_INFINITY __int_as_float(0xFF800000)

typedef TYPE(X_TAG) x_t;
typedef unsigned long long row_key_t;

struct shared_t {
  row_key_t keys[LIST];
  uint32_t counts[DIGITS];
  row_key_t mass[DIGITS];
  row_key_t scratch[WARPS];
  uint32_t count;
};

// A row. Where it was changed, elements whose bit is set in `gone` are none, and those of `edited`
// come instead (NaN: none).
struct row_t {
  const x_t* x;
  index_t n;
  const uint32_t* gone;
  const float* edited;
  const int32_t* edited_ids;
  index_t edits;
};

// A number that is larger where the float is.
DEVICE uint32_t order_of_float(float x) {
  const uint32_t u = x != x ? NAN_BITS : __float_as_uint(x + 0.0f);
  return u ^ ((uint32_t)((int32_t)u >> 31) | 0x80000000u);
}
DEVICE float float_of_order(uint32_t order) {
  return __uint_as_float(order ^ ((order >> 31) ? 0x80000000u : 0xFFFFFFFFu));
}

// Larger for a larger value, then for a lower place. No element has 0.
DEVICE row_key_t key_of(uint32_t order, index_t id) {
  return (row_key_t)order << 32 | (0xFFFFFFFFu - (uint32_t)id);
}
DEVICE uint32_t order_of_key(row_key_t key) {
  return (uint32_t)(key >> 32);
}
DEVICE index_t id_of_key(row_key_t key) {
  return (index_t)(0xFFFFFFFFu - (uint32_t)key);
}

// ---- The block ----

template <class T, class JOIN>
static __device__ __forceinline__ T join_block(T x, T* scratch, JOIN join) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2)
    x = join(x, __shfl_xor_sync(0xFFFFFFFFu, x, step));
  __syncthreads();
  if (threadIdx.x % 32 == 0)
    scratch[threadIdx.x / 32] = x;
  __syncthreads();
  x = scratch[0];
  for (int warp = 1; warp < WARPS; warp++)
    x = join(x, scratch[warp]);
  return x;
}
DEVICE row_key_t largest_of_block(row_key_t key, shared_t& s) {
  return join_block(key, s.scratch, [](row_key_t a, row_key_t b) { return a > b ? a : b; });
}

// The sum of what threads before this one have; `all`: of all.
template <class T> static __device__ T sum_before(T own, T* scratch, T* all) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  T sum = own;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const T other = __shfl_up_sync(0xFFFFFFFFu, sum, step);
    sum += lane >= step ? other : (T)0;
  }
  __syncthreads();
  if (lane == 31)
    scratch[warp] = sum;
  __syncthreads();
  T before = 0, whole = 0;
  for (int w = 0; w < WARPS; w++) {
    before += w < warp ? scratch[w] : (T)0;
    whole += scratch[w];
  }
  *all = whole;
  const T left = __shfl_up_sync(0xFFFFFFFFu, sum, 1);
  return before + (lane > 0 ? left : (T)0);
}

// keys[0..count) descending, by a bitonic network; count is at most LIST.
static __device__ __noinline__ void sort_keys(shared_t& s, uint32_t count) {
  uint32_t size = 2;
  while (size < count)
    size *= 2;
  __syncthreads();
  for (uint32_t i = count + threadIdx.x; i < size; i += THREADS)
    s.keys[i] = 0;
  for (uint32_t width = 2; width <= size; width *= 2) {
    for (uint32_t step = width / 2; step > 0; step /= 2) {
      __syncthreads();
      for (uint32_t pair = threadIdx.x; pair < size / 2; pair += THREADS) {
        const uint32_t a = 2 * pair - (pair & (step - 1)), b = a + step;
        const row_key_t x = s.keys[a], y = s.keys[b];
        if ((x < y) == ((a & width) == 0))
          s.keys[a] = y, s.keys[b] = x;
      }
    }
  }
  __syncthreads();
}

// ---- The row ----

DEVICE void load_group(const row_t& r, index_t group, bool aligned, float (&q)[4]) {
  const index_t at = 4 * group;
#pragma unroll
  for (int j = 0; j < 4; j++)
    q[j] = __uint_as_float(0x7FC00000u);
  if (aligned && at + 4 <= r.n) {
    const vector_t<x_t, 4> v = *(const vector_t<x_t, 4>*)(r.x + at);
#pragma unroll
    for (int j = 0; j < 4; j++)
      q[j] = LOAD(X_TAG)(v.at[j]);
  } else {
#pragma unroll
    for (int j = 0; j < 4; j++) {
      if (at + j < r.n)
        q[j] = LOAD(X_TAG)(r.x[at + j]);
    }
  }
  if (r.gone != nullptr && at < r.n) {
    const uint32_t bits = r.gone[at / 32] >> (at % 32);
#pragma unroll
    for (int j = 0; j < 4; j++)
      q[j] = (bits >> j & 1u) ? __uint_as_float(0x7FC00000u) : q[j];
  }
}

// f(16 elements as four times four, the group of the first four; the others are THREADS groups on)
// for all of the row but its edits. What is beyond its end is NaN.
template <class F> static __device__ __forceinline__ void walk_pieces(const row_t& r, F f) {
  const index_t groups = (r.n + 3) / 4;
  const bool aligned = is_aligned<x_t, 4>(r.x);
  for (index_t group = threadIdx.x; group < groups; group += 4 * THREADS) {
    float q[4][4];
#pragma unroll
    for (int i = 0; i < 4; i++)
      load_group(r, group + i * THREADS, aligned, q[i]);
    f(q, group);
  }
}

// f(four elements, the place of the first, how many) for all of the row. Elements that are gone are
// NaN, which has to count as nothing in a changed row.
template <class F> static __device__ __forceinline__ void walk(const row_t& r, F f) {
  walk_pieces(r, [&](const float(&q)[4][4], index_t group) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const index_t at = 4 * (group + i * THREADS);
      if (at < r.n)
        f(q[i], at, (int)min_index(4, r.n - at));
    }
  });
  for (index_t e = threadIdx.x; e < r.edits; e += THREADS) {
    float q[4] = {r.edited[e], 0.0f, 0.0f, 0.0f};
    if (q[0] == q[0])
      f(q, r.edited_ids[e], 1);
  }
}

// The keys from `least` to `end`, both included, to s.keys in descending order, if they are not too
// many; how many they are.
static __device__ __noinline__ uint32_t collect(const row_t& r, shared_t& s, row_key_t least,
                                                row_key_t end) {
  __syncthreads();
  if (threadIdx.x == 0)
    s.count = 0;
  __syncthreads();
  const uint32_t low = order_of_key(least);
  walk(r, [&](const float(&q)[4], index_t at, int count) {
#pragma unroll
    for (int j = 0; j < 4; j++) {
      const uint32_t order = order_of_float(q[j]);
      if (order < low || j >= count)
        continue;
      const row_key_t key = key_of(order, at + j);
      if (key < least || key > end)
        continue;
      const uint32_t place = atomicAdd(&s.count, 1u);
      if (place < LIST)
        s.keys[place] = key;
    }
  });
  __syncthreads();
  const uint32_t count = s.count;
  if (count <= LIST)
    sort_keys(s, count);
  return count;
}

// The largest of each thread, sorted: as many elements as there are keys before one are at least as
// large as it.
static __device__ __forceinline__ void sort_largest(row_key_t own, shared_t& s) {
  __syncthreads();
  s.keys[threadIdx.x] = own;
  sort_keys(s, THREADS);
}

// exp of what is 0 and less as an integer: such sums have no order.
DEVICE row_key_t fixed_exp(float y) {
  return (row_key_t)(exp2f(fmaxf(y, -64.0f) * 1.44269504f) * 1099511627776.0f);
}

// Adds to a digit's count and mass; threads of a warp with one digit do it as one.
DEVICE void add_to_digit(shared_t& s, uint32_t digit, row_key_t mass) {
  const uint32_t active = __activemask();
  int same;
  __match_all_sync(active, digit, &same);
  if (same && active == 0xFFFFFFFFu) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2)
      mass += __shfl_xor_sync(active, mass, step);
    if (threadIdx.x % 32 == 0) {
      atomicAdd(&s.counts[digit], 32u);
      atomicAdd(&s.mass[digit], mass);
    }
    return;
  }
  atomicAdd(&s.counts[digit], 1u);
  atomicAdd(&s.mass[digit], mass);
}

// The first key, from the largest down, with which a mass is reached: `part` times the sum of
// weigh(order) of all keys that are at least `floor`, or `part` itself where it is a number of
// elements (`counted`). The last there is, if it never is; 0 of none. It goes by digits of keys,
// highest first, until what shares them fits into the list.
template <class WEIGH>
static __device__ row_key_t cut(const row_t& r, shared_t& s, row_key_t floor, bool counted,
                                double part, WEIGH weigh) {
  row_key_t prefix = 0, before = 0, target = counted ? (row_key_t)part : 0;
  int shift = 64;
  for (int level = 0; level < 6; level++) {
    const int bits = level % 3 == 2 ? 10 : 11, above = shift;
    shift -= bits;
    __syncthreads();
    for (int d = threadIdx.x; d < DIGITS; d += THREADS)
      s.counts[d] = 0, s.mass[d] = 0;
    __syncthreads();
    const row_key_t mask = ((row_key_t)1 << bits) - 1;
    walk(r, [&](const float(&q)[4], index_t at, int count) {
#pragma unroll
      for (int j = 0; j < 4; j++) {
        const uint32_t order = order_of_float(q[j]);
        const row_key_t key = key_of(order, at + j);
        if (j < count && key >= floor && (level == 0 || key >> above == prefix))
          add_to_digit(s, (uint32_t)(key >> shift & mask), counted ? 1 : weigh(order));
      }
    });
    __syncthreads();
    // Digits in descending order, EACH to a thread.
    row_key_t own = 0, all;
    for (int i = 0; i < EACH; i++)
      own += s.mass[DIGITS - 1 - (EACH * threadIdx.x + i)];
    row_key_t sum = before + sum_before(own, s.scratch, &all);
    if (level == 0 && !counted) {
      const double wanted = part * (double)all;
      target = wanted >= 1.0 ? (row_key_t)wanted : 1;
    }
    // Of those that reach it the first; else the last that has something: as keys that compare so.
    row_key_t found = 0, found_before = 0;
    for (int i = 0; i < EACH; i++) {
      const uint32_t d = DIGITS - 1 - (EACH * threadIdx.x + i);
      const row_key_t with = sum + s.mass[d];
      if (s.counts[d] > 0) {
        const row_key_t rank = with >= target ? (row_key_t)1 << 32 | d : (row_key_t)(DIGITS - d);
        if (rank > found)
          found = rank, found_before = sum;
      }
      sum = with;
    }
    const row_key_t best = largest_of_block(found, s);
    if (best == 0)
      return 0;
    const uint32_t digit = best >> 32 ? (uint32_t)best : DIGITS - (uint32_t)best;
    before = join_block(best == found ? found_before : 0, s.scratch,
                        [](row_key_t a, row_key_t b) { return a > b ? a : b; });
    prefix = prefix << bits | digit;
    if (s.counts[digit] > LIST)
      continue;
    const row_key_t first = prefix << shift, last = first + (((row_key_t)1 << shift) - 1);
    const uint32_t count = collect(r, s, first > floor ? first : floor, last);
    row_key_t each[EACH];
    own = 0;
    for (uint32_t i = 0; i < EACH; i++) {
      const uint32_t at = EACH * threadIdx.x + i;
      each[i] = at >= count ? 0 : counted ? 1 : weigh(order_of_key(s.keys[at]));
      own += each[i];
    }
    sum = before + sum_before(own, s.scratch, &all);
    uint32_t missing = 0;
    for (uint32_t i = 0; i < EACH; i++) {
      sum += each[i];
      missing += EACH * threadIdx.x + i < count && sum < target;
    }
    uint32_t place;
    sum_before(missing, (uint32_t*)s.scratch, &place);
    return s.keys[place < count ? place : count - 1];
  }
  return 0;
}

// The k largest to s.keys, in descending order; `own`: the key of the largest of each thread. Uses
// a bound that k threads reach, and where too many do so, the exact one.
static __device__ __forceinline__ void largest_of_row(const row_t& r, shared_t& s, row_key_t own,
                                                      uint32_t k) {
  row_key_t bound = 0;
  if (r.n > LIST) {
    sort_largest(own, s);
    bound = k <= THREADS ? s.keys[k - 1] & ~(row_key_t)0xFFFFFFFFu : 0;
    __syncthreads();
  }
  if (collect(r, s, bound, ~(row_key_t)0) > LIST)
    collect(r, s, cut(r, s, 0, true, k, [](uint32_t) { return (row_key_t)1; }), ~(row_key_t)0);
}

#endif // ACCRT_CUDA_LARGEST_CUH_
