// softmax_backward.cu - the gradient of softmax over the last axis, rows of any length.
//
// Instantiated with X_TAG (grad, the result, out) and ENTRY. 16-bit types are computed in f32.
// Blocks of 256 threads, which walk rows. A row has as many of a block's warps, a power of two, as
// it has pieces of CHUNKS vectors of 16 bytes for each lane, so a block has several short rows at
// once. Rows that the threads can keep are read once; longer ones, and those that are not aligned
// to 16 bytes, twice. `scale` is what x was multiplied by before. `out` may be the memory of grad.
#include "common.cuh"

typedef TYPE(X_TAG) x_t;
typedef WORK(X_TAG) work_t;

#define THREADS 256
#define WARPS (THREADS / 32)
#define CHUNKS 4
#define SIDE (16 / (int)sizeof(x_t))
typedef vector_t<x_t, SIDE> some_t;

// A sum over the threads of a row, in all of them; `scratch` may be used again after the next
// barrier.
DEVICE work_t add_up(work_t sum, int row_warps, work_t* scratch) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2)
    sum += __shfl_xor_sync(0xffffffffu, sum, step);
  if (row_warps == 1)
    return sum;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % WARPS;
  if (threadIdx.x % 32 == 0)
    scratch[warp] = sum;
  __syncthreads();
  sum = lane < row_warps ? scratch[warp / row_warps * row_warps + lane] : (work_t)0;
#pragma unroll
  for (int step = WARPS / 2; step > 0; step /= 2)
    sum += __shfl_xor_sync(0xffffffffu, sum, step);
  return sum;
}

// Elements that lie in words of registers: compilers give each 16-bit element of a vector a
// register of its own.
DEVICE void unpack(const uint4& v, work_t (&at)[SIDE]) {
  const some_t& items = reinterpret_cast<const some_t&>(v);
#pragma unroll
  for (int e = 0; e < SIDE; e++)
    at[e] = LOAD(X_TAG)(items.at[e]);
}

DEVICE void kept_row(const x_t* grad, const x_t* result, x_t* out, index_t n, int at, int lanes,
                     work_t scale, work_t* scratch) {
  uint4 g[CHUNKS], r[CHUNKS];
  work_t sum = 0;
#pragma unroll
  for (int c = 0; c < CHUNKS; c++) {
    const index_t i = (index_t)(c * lanes + at) * SIDE;
    const uint4 none = {0, 0, 0, 0};
    g[c] = i < n ? *(const uint4*)(grad + i) : none;
    r[c] = i < n ? *(const uint4*)(result + i) : none;
  }
#pragma unroll
  for (int c = 0; c < CHUNKS; c++) {
    work_t one[SIDE], other[SIDE];
    unpack(g[c], one);
    unpack(r[c], other);
#pragma unroll
    for (int e = 0; e < SIDE; e++)
      sum += one[e] * other[e];
  }
  sum = add_up(sum, lanes / 32, scratch);
#pragma unroll
  for (int c = 0; c < CHUNKS; c++) {
    const index_t i = (index_t)(c * lanes + at) * SIDE;
    work_t one[SIDE], other[SIDE];
    unpack(g[c], one);
    unpack(r[c], other);
    some_t made;
#pragma unroll
    for (int e = 0; e < SIDE; e++)
      made.at[e] = STORE(X_TAG)(other[e] * (one[e] - sum) * scale);
    if (i < n)
      *(some_t*)(out + i) = made;
  }
}

template <int N>
DEVICE void long_row(const x_t* grad, const x_t* result, x_t* out, index_t n, int at, int lanes,
                     work_t scale, work_t* scratch) {
  typedef vector_t<x_t, N> few_t;
  work_t sum = 0;
#pragma unroll 2
  for (index_t i = at * N; i < n; i += lanes * N) {
    const few_t g = *(const few_t*)(grad + i), r = *(const few_t*)(result + i);
#pragma unroll
    for (int e = 0; e < N; e++)
      sum += LOAD(X_TAG)(g.at[e]) * LOAD(X_TAG)(r.at[e]);
  }
  sum = add_up(sum, lanes / 32, scratch);
#pragma unroll 2
  for (index_t i = at * N; i < n; i += lanes * N) {
    const few_t g = *(const few_t*)(grad + i), r = *(const few_t*)(result + i);
    few_t made;
#pragma unroll
    for (int e = 0; e < N; e++)
      made.at[e] = STORE(X_TAG)(LOAD(X_TAG)(r.at[e]) * (LOAD(X_TAG)(g.at[e]) - sum) * scale);
    *(few_t*)(out + i) = made;
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, 4)
    ENTRY(const x_t* grad, const x_t* result, x_t* out, index_t rows, index_t n, index_t grad_row,
          index_t result_row, index_t out_row, double scale) {
  __shared__ work_t scratch[2][WARPS];
  int lanes = 32, parity = 0;
  while (lanes < THREADS && lanes * CHUNKS * SIDE < n)
    lanes *= 2;
  begin_kernel();
  const uint64_t all = (uint64_t)grad | (uint64_t)result | (uint64_t)out;
  const bool wide = all % 16 == 0 && (n | grad_row | result_row | out_row) % SIDE == 0;
  const int at = threadIdx.x % lanes, groups = THREADS / lanes;
  for (index_t first = (index_t)blockIdx.x * groups; first < rows;
       first += (index_t)gridDim.x * groups) {
    const index_t row = first + threadIdx.x / lanes;
    // A row that is not there has no elements, and meets the others at the barriers.
    const index_t size = row < rows ? n : 0;
    const x_t* const g = grad + row * grad_row;
    const x_t* const r = result + row * result_row;
    x_t* const to = out + row * out_row;
    // With one barrier a row, a fast warp may be a row ahead of a slow one: scratch alternates.
    if (wide && n <= lanes * CHUNKS * SIDE)
      kept_row(g, r, to, size, at, lanes, (work_t)scale, scratch[parity]);
    else if (wide)
      long_row<SIDE>(g, r, to, size, at, lanes, (work_t)scale, scratch[parity]);
    else
      long_row<1>(g, r, to, size, at, lanes, (work_t)scale, scratch[parity]);
    parity ^= 1;
  }
}
