// sort_parts.cu - sort.cu for long lines: several blocks of 512 threads a line, which count keys 8
// bits at a time, the lowest first; the same bits as one block makes.
//
// Instantiated with X_TAG, KEY and KEY_T as in sort.cu (and SIGNED8, F16 and BF16, of 8 and 16
// bits), OF_PLACES (1: elements are places of an axis of `size`, and what is outside counts as
// `size`, also in the results), PASSES (8 bits of a key each), STEP, FIRST, LAST and ENTRY. STEP:
// COUNT - counts the lowest digits and clears the other counts; PASS - brings each element to its
// place by digit number `pass`; FIRST: from x; LAST: to the results. x of the grid walks parts of a
// line, of `each` elements, y lines. A part's counts of a pass are made by the pass before: there
// is one count for each part and digit, at most 256 parts.
#include "sort.cuh"

#define COUNT 0
#define PASS 1
#define THREADS 512
#define WARPS 16
#define ITEMS 4
#define CHUNK (THREADS * ITEMS)
#define BINS 256
#define KEPT (PASSES > 2 ? 2 : PASSES - 1)

// The workspace: places for keys, for numbers of elements, and counts [pass][line][part][digit].
struct work_t {
  sort_key_t* keys;
  uint32_t* numbers;
  uint32_t* counts;
};

DEVICE work_t work_of(uint32_t* work, index_t total) {
  sort_key_t* const keys = (sort_key_t*)work;
  uint32_t* const numbers = (uint32_t*)(keys + KEPT * total);
  return {keys, numbers, numbers + KEPT * total};
}

#if STEP == COUNT || FIRST
DEVICE sort_key_t own_key(const sort_t& p, const x_t* x, index_t size) {
  (void)size;
#if OF_PLACES
  return (sort_key_t)((uint64_t)*x < (uint64_t)size ? (uint64_t)*x : (uint64_t)size);
#else
  return key_of(p, x);
#endif
}
#endif

struct shared_t {
  uint32_t counts[WARPS][BINS], starts[BINS], sums[BINS / 32];
};

#if STEP == COUNT

DEVICE void count(const sort_t& p, const line_t& line, index_t size, uint32_t* to,
                  index_t pass_step, index_t first, index_t end, shared_t& s) {
  uint32_t* const bins = s.starts;
  if (threadIdx.x < BINS)
    bins[threadIdx.x] = 0;
  __syncthreads();
  for (index_t i = first + threadIdx.x; i < end; i += THREADS)
    atomicAdd(&bins[own_key(p, line.x + i * p.x_n, size) & 255], 1u);
  __syncthreads();
  if (threadIdx.x < BINS) {
    to[threadIdx.x] = bins[threadIdx.x];
#pragma unroll
    for (int pass = 1; pass < PASSES; pass++)
      to[pass * pass_step + threadIdx.x] = 0;
  }
  __syncthreads();
}

#else

// Where this part's first element of each digit goes: digits in order, of one digit the parts.
DEVICE void find_starts(const uint32_t* counts, int part, int parts, shared_t& s) {
  const int digit = threadIdx.x % BINS, half = threadIdx.x / BINS, lane = threadIdx.x % 32;
  uint32_t all = 0, before = 0;
#pragma unroll 8
  for (int i = half; i < parts; i += THREADS / BINS) {
    const uint32_t own = counts[i * BINS + digit];
    all += own;
    before += i < part ? own : 0;
  }
  s.counts[half][digit] = all;
  s.counts[2 + half][digit] = before;
  __syncthreads();
  all = s.counts[0][digit] + s.counts[1][digit];
  before = s.counts[2][digit] + s.counts[3][digit];
  uint32_t scan = all;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const uint32_t other = __shfl_up_sync(0xffffffffu, scan, step);
    scan += lane >= step ? other : 0;
  }
  if (lane == 31)
    s.sums[digit / 32] = scan;
  __syncthreads();
  uint32_t at = scan - all + before;
  for (int warp = 0; warp < digit / 32; warp++)
    at += s.sums[warp];
  if (half == 0)
    s.starts[digit] = at;
  __syncthreads();
}

struct items_t {
  sort_key_t key[ITEMS];
  uint32_t number[ITEMS], rank[ITEMS];
  uint32_t digit[ITEMS]; // BINS: none
};

DEVICE void load_items(const sort_t& p, const line_t& line, index_t size, const sort_key_t* keys,
                       const uint32_t* numbers, int shift, index_t first, index_t end,
                       items_t& items) {
  (void)size, (void)keys, (void)numbers;
#pragma unroll
  for (int i = 0; i < ITEMS; i++) {
    const index_t at = first + threadIdx.x / 32 * (32 * ITEMS) + i * 32 + threadIdx.x % 32;
    const bool inside = at < end;
#if FIRST
    items.key[i] = inside ? own_key(p, line.x + at * p.x_n, size) : 0;
    items.number[i] = (uint32_t)at;
#else
    items.key[i] = inside ? keys[at] : 0;
    items.number[i] = inside ? numbers[at] : 0;
#endif
    items.digit[i] = inside ? (uint32_t)(items.key[i] >> shift & 255) : BINS;
  }
}

// The rank of each item among those of its warp with its digit; counts of the warp.
DEVICE void rank_items(items_t& items, uint32_t* counts) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < ITEMS; i++) {
    const uint32_t digit = items.digit[i];
    const uint32_t same = __match_any_sync(0xffffffffu, digit);
    const int before = __popc(same & ((1u << lane) - 1));
    const uint32_t start = digit < BINS ? counts[digit] : 0;
    items.rank[i] = start + before;
    __syncwarp();
    if (digit < BINS && before == 0)
      counts[digit] = start + __popc(same);
    __syncwarp();
  }
}

// Counts of warps become where their first elements go.
DEVICE void place_warps(shared_t& s) {
  if (threadIdx.x < BINS) {
    uint32_t at = s.starts[threadIdx.x];
#pragma unroll
    for (int warp = 0; warp < WARPS; warp++) {
      const uint32_t own = s.counts[warp][threadIdx.x];
      s.counts[warp][threadIdx.x] = at;
      at += own;
    }
    s.starts[threadIdx.x] = at;
  }
}

#endif

extern "C" __global__ void __launch_bounds__(THREADS)
    ENTRY(const x_t* x, x_t* values, int64_t* places, uint32_t* work, index_t outer, index_t n,
          index_t inner, index_t descending, index_t x_outer, index_t x_n, index_t x_inner,
          index_t values_outer, index_t values_n, index_t values_inner, index_t places_outer,
          index_t places_n, index_t places_inner, index_t each, index_t parts, index_t pass,
          index_t size) {
  begin_kernel();
  __shared__ shared_t s;
  const sort_t p = {
      x,        values,      places,  outer,        n,        inner,        descending,
      x_outer,  x_n,         x_inner, values_outer, values_n, values_inner, places_outer,
      places_n, places_inner};
  const index_t lines = outer * inner, pass_step = lines * parts * BINS;
  const work_t own = work_of(work, lines * n);
  const index_t begin = blockIdx.x * each, end = min_index(begin + each, n);
  for (index_t at = blockIdx.y; at < lines && begin < n; at += gridDim.y) {
    const line_t line = find_line(p, at);
    uint32_t* const counts = own.counts + pass * pass_step + at * parts * BINS;
#if STEP == COUNT
    count(p, line, size, counts + blockIdx.x * BINS, pass_step, begin, end, s);
#else
    const index_t from = ((pass + 1) % 2 * lines + at) * n, to = (pass % 2 * lines + at) * n;
    (void)from, (void)to;
    find_starts(counts, (int)blockIdx.x, (int)parts, s);
#pragma unroll 1
    for (index_t first = begin; first < end; first += CHUNK) {
      items_t items;
      load_items(p, line, size, own.keys + from, own.numbers + from, (int)pass * 8, first, end,
                 items);
      for (int i = threadIdx.x; i < WARPS * BINS; i += THREADS)
        (&s.counts[0][0])[i] = 0;
      __syncthreads();
      rank_items(items, s.counts[threadIdx.x / 32]);
      __syncthreads();
      place_warps(s);
      __syncthreads();
#pragma unroll
      for (int i = 0; i < ITEMS; i++) {
        if (items.digit[i] >= BINS)
          continue;
        const uint32_t place = s.counts[threadIdx.x / 32][items.digit[i]] + items.rank[i];
#if LAST && OF_PLACES
        line.values[place * p.values_n] = (x_t)items.key[i];
        line.places[place * p.places_n] = (int64_t)items.number[i];
#elif LAST
        put(p, line, place, items.number[i]);
#else
        own.keys[to + place] = items.key[i];
        own.numbers[to + place] = items.number[i];
        const uint32_t digit = (uint32_t)(items.key[i] >> ((int)pass * 8 + 8) & 255);
        atomicAdd(counts + pass_step + place / (uint32_t)each * BINS + digit, 1u);
#endif
      }
      __syncthreads();
    }
#endif
  }
}
