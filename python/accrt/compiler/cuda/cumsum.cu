// cumsum.cu - running sums along one axis: out[o][j][i] is the sum of x[o][0 .. j][i].
//
// Instantiated with X_TAG, OUT_TAG, SUM (the type that it adds in), STEP and ENTRY. The order of
// additions depends on shapes alone. Blocks of 256 threads. STEP: COLUMNS - a warp's lanes are
// places of the inner axis, its warps share the middle one (x of the grid: 32 places, y: outer
// axis); TOTALS - the sum of each piece of PIECE elements of a line; LINES - running sums of each
// piece, behind the totals of those before it (x: pieces, y: lines).
#include "common.cuh"

typedef TYPE(X_TAG) x_t;
typedef TYPE(OUT_TAG) out_t;
typedef SUM sum_t;

#define COLUMNS 0
#define TOTALS 1
#define LINES 2

#define WARPS 8
#define ITEMS 16
#define PIECE (WARPS * 32 * ITEMS)

struct cumsum_t {
  const x_t* x;
  sum_t* totals;
  out_t* out;
  index_t outer, n, inner, pieces;
  index_t x_outer, x_n, x_inner, out_outer, out_n, out_inner;
};

DEVICE sum_t load_x(const x_t* x) {
  return (sum_t)LOAD(X_TAG)(*x);
}

DEVICE out_t to_out(sum_t sum) {
  return STORE(OUT_TAG)((WORK(OUT_TAG))sum);
}

DEVICE sum_t warp_sum(sum_t x) {
  for (int step = 16; step > 0; step /= 2)
    x += __shfl_xor_sync(0xffffffffu, x, step);
  return x;
}

// The sum of this lane's value and those of the lanes before it.
DEVICE sum_t warp_scan(sum_t x) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const sum_t before = __shfl_up_sync(0xffffffffu, x, step);
    x = lane >= step ? before + x : x;
  }
  return x;
}

#if STEP == COLUMNS
DEVICE void columns(const cumsum_t& p, index_t outer, sum_t (*parts)[32]) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const index_t inner = (index_t)blockIdx.x * 32 + lane, each = (p.n + WARPS - 1) / WARPS;
  const index_t first = min_index(warp * each, p.n), end = min_index(first + each, p.n);
  const bool inside = inner < p.inner;
  const x_t* const x = p.x + outer * p.x_outer + inner * p.x_inner;
  out_t* const out = p.out + outer * p.out_outer + inner * p.out_inner;
  sum_t sum = 0;
  for (index_t j = first; inside && j < end; j++)
    sum += load_x(x + j * p.x_n);
  parts[warp][lane] = sum;
  __syncthreads();
  sum = 0;
  for (int before = 0; before < warp; before++)
    sum += parts[before][lane];
  __syncthreads();
  for (index_t j = first; inside && j < end; j++) {
    sum += load_x(x + j * p.x_n);
    out[j * p.out_n] = to_out(sum);
  }
}
#else
// This thread's elements of a piece: those of its warp lie side by side, 32 at a time.
DEVICE index_t place_of(int item) {
  return (index_t)blockIdx.x * PIECE + threadIdx.x / 32 * (32 * ITEMS) + item * 32 +
         threadIdx.x % 32;
}

DEVICE void line(const cumsum_t& p, index_t at, sum_t* parts) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const index_t outer = at / p.inner, inner = at % p.inner;
  const x_t* const x = p.x + outer * p.x_outer + inner * p.x_inner;
  sum_t sums[ITEMS];
#pragma unroll
  for (int i = 0; i < ITEMS; i++) {
    const index_t place = place_of(i);
    sums[i] = place < p.n ? load_x(x + place * p.x_n) : (sum_t)0;
  }
  // Before this warp: the totals of the pieces before, and the warps before.
  sum_t own = 0;
#pragma unroll
  for (int i = 0; i < ITEMS; i++)
    own += sums[i];
  own = warp_sum(own);
  sum_t before = 0;
#if STEP == LINES
  for (index_t piece = threadIdx.x; piece < (index_t)blockIdx.x; piece += WARPS * 32)
    before += p.totals[at * p.pieces + piece];
  before = warp_sum(before);
#endif
  if (lane == 0)
    parts[warp] = own, parts[WARPS + warp] = before;
  __syncthreads();
  sum_t sum = 0;
  for (int w = 0; w < WARPS; w++)
    sum += parts[WARPS + w];
#if STEP == TOTALS
  for (int w = 0; w < WARPS; w++)
    sum += parts[w];
  if (threadIdx.x == 0)
    p.totals[at * p.pieces + blockIdx.x] = sum;
#else
  for (int w = 0; w < warp; w++)
    sum += parts[w];
  out_t* const out = p.out + outer * p.out_outer + inner * p.out_inner;
#pragma unroll
  for (int i = 0; i < ITEMS; i++) {
    const sum_t here = sum + warp_scan(sums[i]);
    if (place_of(i) < p.n)
      out[place_of(i) * p.out_n] = to_out(here);
    sum = __shfl_sync(0xffffffffu, here, 31);
  }
#endif
  __syncthreads();
}
#endif

extern "C" __global__ void __launch_bounds__(256)
    ENTRY(const x_t* x, sum_t* totals, out_t* out, index_t outer, index_t n, index_t inner,
          index_t pieces, index_t x_outer, index_t x_n, index_t x_inner, index_t out_outer,
          index_t out_n, index_t out_inner) {
  begin_kernel();
  const cumsum_t p = {x,       totals, out,     outer,     n,     inner,    pieces,
                      x_outer, x_n,    x_inner, out_outer, out_n, out_inner};
#if STEP == COLUMNS
  __shared__ sum_t parts[WARPS][32];
  for (index_t o = blockIdx.y; o < outer; o += gridDim.y)
    columns(p, o, parts);
#else
  __shared__ sum_t parts[2 * WARPS];
  for (index_t at = blockIdx.y; at < outer * inner; at += gridDim.y)
    line(p, at, parts);
#endif
}
