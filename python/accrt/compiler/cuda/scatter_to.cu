// scatter_to.cu - out is x, with source[o][j][i] written, or added, at place index[o][j][i] of the
// middle axis. Of several elements for one place the last stays; they are added in order, so that
// each run gives the same bits.
//
// Instantiated with X_TAG, INDEX_TAG, ADD (0 or 1), STEP, ROWS (1: the index is the same along the
// inner axis, and a warp makes a piece of a row) and ENTRY. A device cannot fail one
// dispatch: what has a place outside the axis is not written. STEP: WHOLE - each place looks at all
// of the index, for few; CLEAR and MARK - `last` gets, for each place, the number of the last
// element for it, from 1; TAKE - each place takes that element; SORTED - each place adds the
// elements that a stable sort of the index (`sorted`, `order`) has side by side. Without ADD x_t is
// any type of that size. Blocks of 256 threads; x of the grid walks elements of out, of the index
// for MARK, of `last` for CLEAR.
#include "common.cuh"

typedef TYPE(X_TAG) x_t;
typedef TYPE(INDEX_TAG) place_t;

#define WHOLE 0
#define CLEAR 1
#define MARK 2
#define TAKE 3
#define SORTED 4

struct scatter_to_t {
  const x_t* x;
  const place_t* index;
  const x_t* source;
  x_t* out;
  int32_t* last;
  const int64_t* order;
  index_t outer, size, inner, count;
  index_t x_outer, x_size, x_inner, out_outer, out_size, out_inner;
  index_t index_outer, index_count, index_inner, source_outer, source_count, source_inner;
  index_t last_outer, last_size, last_inner;
};

struct place_of_t {
  index_t outer, middle, inner;
};

// at as places of [.., middle, inner]; by division of 32 bits where that is enough.
DEVICE place_of_t split(index_t at, index_t total, index_t middle, index_t inner) {
  if (total <= 0x7fffffff) {
    const uint32_t small = (uint32_t)at, line = small / (uint32_t)inner;
    const uint32_t outer = line / (uint32_t)middle;
    return {outer, line - outer * (uint32_t)middle, small - line * (uint32_t)inner};
  }
  const index_t line = at / inner, outer = line / middle;
  return {outer, line - outer * middle, at - line * inner};
}

#if ADD
DEVICE x_t joined(x_t sum, x_t source) {
  return STORE(X_TAG)(LOAD(X_TAG)(sum) + LOAD(X_TAG)(source));
}
#endif

DEVICE const x_t* source_of(const scatter_to_t& p, const place_of_t& at) {
  return p.source + at.outer * p.source_outer + at.inner * p.source_inner;
}

#if STEP == WHOLE
DEVICE x_t made(const scatter_to_t& p, const place_of_t& at, x_t value) {
  const place_t* const index = p.index + at.outer * p.index_outer + at.inner * p.index_inner;
  const x_t* const source = source_of(p, at);
#pragma unroll 4
  for (index_t j = 0; j < p.count; j++) {
    if ((index_t)index[j * p.index_count] == at.middle) {
#if ADD
      value = joined(value, source[j * p.source_count]);
#else
      value = source[j * p.source_count];
#endif
    }
  }
  return value;
}
#elif STEP == TAKE
DEVICE x_t made(const scatter_to_t& p, const place_of_t& at, x_t value) {
  const int32_t last =
      p.last[at.outer * p.last_outer + at.middle * p.last_size + at.inner * p.last_inner];
  return last > 0 ? source_of(p, at)[(last - 1) * p.source_count] : value;
}
#elif STEP == SORTED
// The first of the line's places that is at least `place`.
DEVICE index_t lower_bound(const place_t* sorted, index_t count, index_t place) {
  index_t first = 0;
  while (count > 0) {
    const index_t half = count / 2;
    const bool is_less = (index_t)sorted[first + half] < place;
    first += is_less ? half + 1 : 0;
    count = is_less ? count - half - 1 : half;
  }
  return first;
}

DEVICE x_t made(const scatter_to_t& p, const place_of_t& at, x_t value) {
  const index_t line = at.outer * p.index_outer + at.inner * p.index_inner;
  const place_t* const sorted = p.index + line;
  const int64_t* const order = p.order + line;
  const x_t* const source = source_of(p, at);
  index_t j = lower_bound(sorted, p.count, at.middle);
  const index_t end = j + lower_bound(sorted + j, p.count - j, at.middle + 1);
#pragma unroll 4
  for (; j < end; j++)
    value = joined(value, source[order[j] * p.source_count]);
  return value;
}
#endif

#if ROWS
// Where the index is the same along the inner axis, a warp has CHUNK places of it, and finds what
// goes there once.
#if ADD
#define ITEMS 8
#define CHUNK (32 * ITEMS)

struct sums_t {
  x_t at[ITEMS];
};

DEVICE void add_row(const scatter_to_t& p, sums_t& sums, const x_t* source, index_t first) {
#pragma unroll
  for (int e = 0; e < ITEMS; e++) {
    const index_t i = first + e * 32;
    if (i < p.inner)
      sums.at[e] = joined(sums.at[e], source[i * p.source_inner]);
  }
}

DEVICE void add_rows(const scatter_to_t& p, sums_t& sums, const place_of_t& at, index_t first) {
  const x_t* const source = p.source + at.outer * p.source_outer;
#if STEP == WHOLE
  const place_t* const index = p.index + at.outer * p.index_outer;
  for (index_t j = 0; j < p.count; j += 32) {
    const index_t own = j + threadIdx.x % 32;
    uint32_t found = __ballot_sync(
        0xffffffffu, own < p.count && (index_t)index[own * p.index_count] == at.middle);
    for (; found; found &= found - 1)
      add_row(p, sums, source + (j + __ffs(found) - 1) * p.source_count, first);
  }
#else
  const place_t* const sorted = p.index + at.outer * p.index_outer;
  const int64_t* const order = p.order + at.outer * p.index_outer;
  index_t j = lower_bound(sorted, p.count, at.middle);
#pragma unroll 2
  for (; j < p.count && (index_t)sorted[j] == at.middle; j++)
    add_row(p, sums, source + order[j] * p.source_count, first);
#endif
}

DEVICE void make_row(const scatter_to_t& p, const place_of_t& at, index_t chunk) {
  const x_t* const x = p.x + at.outer * p.x_outer + at.middle * p.x_size;
  x_t* const out = p.out + at.outer * p.out_outer + at.middle * p.out_size;
  const index_t first = chunk * CHUNK + threadIdx.x % 32;
  sums_t sums;
#pragma unroll
  for (int e = 0; e < ITEMS; e++) {
    if (first + e * 32 < p.inner)
      sums.at[e] = x[(first + e * 32) * p.x_inner];
  }
  add_rows(p, sums, at, first);
#pragma unroll
  for (int e = 0; e < ITEMS; e++) {
    if (first + e * 32 < p.inner)
      out[(first + e * 32) * p.out_inner] = sums.at[e];
  }
}
#else
#define CHUNK (2048 / (int)sizeof(x_t))

// The number of the last element for a place, or -1.
DEVICE index_t find_last(const scatter_to_t& p, const place_of_t& at) {
#if STEP == WHOLE
  const place_t* const index = p.index + at.outer * p.index_outer;
  int last = -1;
  for (int j = threadIdx.x % 32; j < (int)p.count; j += 32)
    last = (index_t)index[j * p.index_count] == at.middle ? j : last;
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    const int other = __shfl_xor_sync(0xffffffffu, last, step);
    last = other > last ? other : last;
  }
  return last;
#else
  return (index_t)p.last[at.outer * p.last_outer + at.middle * p.last_size] - 1;
#endif
}

DEVICE void make_row(const scatter_to_t& p, const place_of_t& at, index_t chunk) {
  const index_t last = find_last(p, at), first = chunk * CHUNK;
  const index_t step = last < 0 ? p.x_inner : p.source_inner;
  const x_t* const row = last < 0 ? p.x + at.outer * p.x_outer + at.middle * p.x_size
                                  : p.source + at.outer * p.source_outer + last * p.source_count;
  const x_t* const from = row + first * step;
  x_t* const out = p.out + at.outer * p.out_outer + at.middle * p.out_size + first * p.out_inner;
  const int count = (int)min_index(CHUNK, p.inner - first), lane = threadIdx.x % 32;
  const int bytes = count * (int)sizeof(x_t);
  if (step == 1 && p.out_inner == 1 && (((uintptr_t)from | (uintptr_t)out | bytes) & 15) == 0) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
      if ((i * 32 + lane) * 16 < bytes)
        ((uint4*)out)[i * 32 + lane] = ((const uint4*)from)[i * 32 + lane];
    }
    return;
  }
  for (int i = lane; i < count; i += 32)
    out[i * p.out_inner] = from[i * step];
}
#endif
#endif

extern "C" __global__ void __launch_bounds__(256)
    ENTRY(const x_t* x, const place_t* index, const x_t* source, x_t* out, int32_t* last,
          const int64_t* order, index_t outer, index_t size, index_t inner, index_t count,
          index_t x_outer, index_t x_size, index_t x_inner, index_t out_outer, index_t out_size,
          index_t out_inner, index_t index_outer, index_t index_count, index_t index_inner,
          index_t source_outer, index_t source_count, index_t source_inner, index_t last_outer,
          index_t last_size, index_t last_inner) {
  begin_kernel();
  const scatter_to_t p = {
      x,           index,        source,       out,          last,        order,
      outer,       size,         inner,        count,        x_outer,     x_size,
      x_inner,     out_outer,    out_size,     out_inner,    index_outer, index_count,
      index_inner, source_outer, source_count, source_inner, last_outer,  last_size,
      last_inner};
#if ROWS
  const index_t chunks = (inner + CHUNK - 1) / CHUNK, units = outer * size * chunks;
  for (index_t i = (index_t)blockIdx.x * 8 + threadIdx.x / 32; i < units;
       i += (index_t)gridDim.x * 8) {
    const place_of_t at = split(i, units, size, chunks);
    make_row(p, at, at.inner);
  }
#else
  const index_t middle = STEP == MARK ? count : size, total = outer * middle * inner;
  const index_t step = (index_t)gridDim.x * 256;
  for (index_t i = (index_t)blockIdx.x * 256 + threadIdx.x; i < total; i += step) {
    const place_of_t at = split(i, total, middle, inner);
#if STEP == CLEAR
    p.last[at.outer * last_outer + at.middle * last_size + at.inner * last_inner] = 0;
#elif STEP == MARK
    const index_t place =
        (index_t)index[at.outer * index_outer + at.middle * index_count + at.inner * index_inner];
    if (place >= 0 && place < size)
      atomicMax(p.last + at.outer * last_outer + place * last_size + at.inner * last_inner,
                (int32_t)at.middle + 1);
#else
    const x_t before = x[at.outer * x_outer + at.middle * x_size + at.inner * x_inner];
    p.out[at.outer * out_outer + at.middle * out_size + at.inner * out_inner] = made(p, at, before);
#endif
  }
#endif
}
