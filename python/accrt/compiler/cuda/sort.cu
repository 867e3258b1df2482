// sort.cu - the elements of each line along one axis in order, and their places. Equal ones keep
// their order; NaN is larger than all else, and -0 equals 0, as in ATen.
//
// Instantiated with X_TAG, KEY (how an element becomes an unsigned key: FLOAT32, FLOAT64, SIGNED32,
// SIGNED64 or UNSIGNED), KEY_T (uint32_t or uint64_t), PAD and ENTRY. PAD is a power of two from
// 64: lines of up to PAD elements, by exchanges in shared memory, PAD / 2 threads a line; or 0:
// lines of any length below 2^32, a block of 1024 threads each, by counting keys 8 bits at a time.
// x of the grid walks (groups of) lines; with PAD 0 each block has a part of the workspace.
#include "sort.cuh"

#if PAD

#define TEAM (PAD / 2)
#define TEAMS (TEAM < 128 ? 128 / TEAM : 1)

struct items_t {
  sort_key_t key[PAD];
  uint32_t place[PAD];
};

// Whether the first comes after the second; places are all different.
DEVICE bool is_after(const items_t& items, int a, int b) {
  return items.key[a] > items.key[b] ||
         (items.key[a] == items.key[b] && items.place[a] > items.place[b]);
}

DEVICE void exchange(items_t& items, int a, int b) {
  const sort_key_t key = items.key[a];
  const uint32_t place = items.place[a];
  items.key[a] = items.key[b], items.place[a] = items.place[b];
  items.key[b] = key, items.place[b] = place;
}

extern "C" __global__ void __launch_bounds__(TEAM* TEAMS)
    ENTRY(const x_t* x, x_t* values, int64_t* places, index_t outer, index_t n, index_t inner,
          index_t descending, index_t x_outer, index_t x_n, index_t x_inner, index_t values_outer,
          index_t values_n, index_t values_inner, index_t places_outer, index_t places_n,
          index_t places_inner) {
  begin_kernel();
  __shared__ items_t all[TEAMS];
  const sort_t p = {
      x,        values,      places,  outer,        n,        inner,        descending,
      x_outer,  x_n,         x_inner, values_outer, values_n, values_inner, places_outer,
      places_n, places_inner};
  const int own = threadIdx.x % TEAM;
  const index_t at = (index_t)blockIdx.x * TEAMS + threadIdx.x / TEAM;
  const bool inside = at < outer * inner;
  items_t& items = all[threadIdx.x / TEAM];
  const line_t line = find_line(p, inside ? at : 0);
  for (int i = own; i < PAD; i += TEAM) {
    items.key[i] = inside && i < n ? key_of(p, line.x + i * x_n) : (sort_key_t) ~(sort_key_t)0;
    items.place[i] = (uint32_t)i;
  }
#pragma unroll 1
  for (int size = 2; size <= PAD; size *= 2) {
#pragma unroll 1
    for (int step = size / 2; step > 0; step /= 2) {
      __syncthreads();
      const int a = 2 * own - (own & (step - 1)), b = a + step;
      if (is_after(items, a, b) == ((a & size) == 0))
        exchange(items, a, b);
    }
  }
  __syncthreads();
  for (int i = own; inside && i < n; i += TEAM)
    put(p, line, i, items.place[i]);
}

#else

#define WARPS 32
#define BINS 256

// A place for each key, and another to bring them to.
struct pair_t {
  sort_key_t* key;
  uint32_t* place;
};

// counts: of each warp's part of the line. They become where its first element of each digit goes:
// digits in order, of one digit the warps in order. Whether all elements have one digit.
DEVICE bool find_starts(uint32_t (*counts)[BINS], uint32_t* sums, index_t n) {
  const int thread = threadIdx.x, lane = thread % 32, digit = thread / 4, first = thread % 4 * 8;
  uint32_t own = 0;
#pragma unroll
  for (int i = 0; i < 8; i++)
    own += counts[first + i][digit];
  uint32_t scan = own;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const uint32_t before = __shfl_up_sync(0xffffffffu, scan, step);
    scan += lane >= step ? before : 0;
  }
  if (lane == 31)
    sums[thread / 32] = scan;
  const uint32_t two = own + __shfl_xor_sync(0xffffffffu, own, 1);
  const uint32_t four = two + __shfl_xor_sync(0xffffffffu, two, 2);
  if (__syncthreads_or(four == (uint32_t)n))
    return true;
  uint32_t at = scan - own;
  for (int warp = 0; warp < thread / 32; warp++)
    at += sums[warp];
#pragma unroll
  for (int i = 0; i < 8; i++) {
    const uint32_t count = counts[first + i][digit];
    counts[first + i][digit] = at;
    at += count;
  }
  __syncthreads();
  return false;
}

// In order of one digit of 8 bits, from one place to the other; false: they are so already.
DEVICE bool bring(pair_t from, pair_t to, index_t n, int shift, uint32_t (*counts)[BINS],
                  uint32_t* sums) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const index_t each = (n + WARPS * 32 - 1) / (WARPS * 32) * 32;
  const index_t first = min_index(warp * each, n), end = min_index(first + each, n);
  for (int i = threadIdx.x; i < WARPS * BINS; i += 1024)
    (&counts[0][0])[i] = 0;
  __syncthreads();
#pragma unroll 4
  for (index_t i = first + lane; i < end; i += 32)
    atomicAdd(&counts[warp][from.key[i] >> shift & 255], 1u);
  __syncthreads();
  if (find_starts(counts, sums, n))
    return false;
#pragma unroll 2
  for (index_t i = first; i < end; i += 32) {
    const bool inside = i + lane < end;
    const sort_key_t key = inside ? from.key[i + lane] : 0;
    const uint32_t place = inside ? from.place[i + lane] : 0;
    const uint32_t digit = inside ? (uint32_t)(key >> shift & 255) : BINS;
    const uint32_t same = __match_any_sync(0xffffffffu, digit);
    const int before = __popc(same & ((1u << lane) - 1));
    uint32_t at = 0;
    if (inside && before == 0) {
      at = counts[warp][digit];
      counts[warp][digit] = at + __popc(same);
    }
    at = __shfl_sync(0xffffffffu, at, __ffs(same) - 1) + before;
    if (inside)
      to.key[at] = key, to.place[at] = place;
    __syncwarp();
  }
  __syncthreads();
  return true;
}

extern "C" __global__ void __launch_bounds__(1024)
    ENTRY(const x_t* x, x_t* values, int64_t* places, uint8_t* work, index_t outer, index_t n,
          index_t inner, index_t descending, index_t x_outer, index_t x_n, index_t x_inner,
          index_t values_outer, index_t values_n, index_t values_inner, index_t places_outer,
          index_t places_n, index_t places_inner) {
  begin_kernel();
  __shared__ uint32_t counts[WARPS][BINS], sums[WARPS];
  const sort_t p = {
      x,        values,      places,  outer,        n,        inner,        descending,
      x_outer,  x_n,         x_inner, values_outer, values_n, values_inner, places_outer,
      places_n, places_inner};
  uint8_t* const own = work + blockIdx.x * n * 2 * (index_t)(sizeof(sort_key_t) + 4);
  sort_key_t* const keys = (sort_key_t*)own;
  uint32_t* const numbers = (uint32_t*)(keys + 2 * n);
  for (index_t at = blockIdx.x; at < outer * inner; at += gridDim.x) {
    const line_t line = find_line(p, at);
    pair_t from = {keys, numbers}, to = {keys + n, numbers + n};
    for (index_t i = threadIdx.x; i < n; i += 1024)
      from.key[i] = key_of(p, line.x + i * x_n), from.place[i] = (uint32_t)i;
    __syncthreads();
#pragma unroll 1
    for (int shift = 0; shift < (int)sizeof(sort_key_t) * 8; shift += 8) {
      if (!bring(from, to, n, shift, counts, sums))
        continue;
      const pair_t kept = from;
      from = to, to = kept;
    }
    for (index_t i = threadIdx.x; i < n; i += 1024)
      put(p, line, i, from.place[i]);
    __syncthreads();
  }
}

#endif
