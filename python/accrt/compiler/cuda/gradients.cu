// gradients.cu - gradients of layer norm, RMS norm and softmax over the last axis.
//
// Instantiated with KIND (LAYER, RMS or SOFTMAX), X_TAG (grad, x or the result, out), W_TAG
// (weight), EACH (columns of a thread) and ENTRY. 16-bit types are computed in f32. Blocks of 256
// threads, which have a row each. SOFTMAX: x of the grid walks rows. LAYER and RMS: rows of up to
// 256 * EACH; each block goes through rows blockIdx.x, blockIdx.x + gridDim.x, ... and writes one
// row of `weight_sums` (and `bias_sums`), which another kernel adds up. As in norm.cuh, deviations
// are taken around the mean. `out` may be the memory of grad.
#include "common.cuh"

typedef TYPE(X_TAG) x_t;
typedef TYPE(W_TAG) w_t;
typedef WORK(X_TAG) work_t;

#define LAYER 0
#define RMS 1
#define SOFTMAX 2

#define THREADS 256

// COUNT sums over the block, in all threads; `scratch` may be used again after the next barrier.
template <int COUNT> DEVICE void add_up(work_t (&sums)[COUNT], work_t (*scratch)[THREADS / 32]) {
#pragma unroll
  for (int i = 0; i < COUNT; i++) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2)
      sums[i] += __shfl_xor_sync(0xffffffffu, sums[i], step);
  }
  __syncthreads();
  if (threadIdx.x % 32 == 0) {
#pragma unroll
    for (int i = 0; i < COUNT; i++)
      scratch[i][threadIdx.x / 32] = sums[i];
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < COUNT; i++) {
    sums[i] = 0;
#pragma unroll
    for (int warp = 0; warp < THREADS / 32; warp++)
      sums[i] += scratch[i][warp];
  }
}

#if KIND == SOFTMAX
#define SIDE (16 / (int)sizeof(x_t))

template <int N>
DEVICE void softmax_row(const x_t* grad, const x_t* result, x_t* out, index_t n,
                        work_t (*scratch)[THREADS / 32]) {
  typedef vector_t<x_t, N> some_t;
  work_t sums[1] = {0};
#pragma unroll 2
  for (index_t i = threadIdx.x * N; i < n; i += THREADS * N) {
    const some_t g = *(const some_t*)(grad + i), r = *(const some_t*)(result + i);
#pragma unroll
    for (int e = 0; e < N; e++)
      sums[0] += LOAD(X_TAG)(g.at[e]) * LOAD(X_TAG)(r.at[e]);
  }
  add_up(sums, scratch);
#pragma unroll 2
  for (index_t i = threadIdx.x * N; i < n; i += THREADS * N) {
    const some_t g = *(const some_t*)(grad + i), r = *(const some_t*)(result + i);
    some_t made;
#pragma unroll
    for (int e = 0; e < N; e++)
      made.at[e] = STORE(X_TAG)(LOAD(X_TAG)(r.at[e]) * (LOAD(X_TAG)(g.at[e]) - sums[0]));
    *(some_t*)(out + i) = made;
  }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    ENTRY(const x_t* grad, const x_t* result, x_t* out, index_t rows, index_t n, index_t grad_row,
          index_t result_row, index_t out_row) {
  begin_kernel();
  __shared__ work_t scratch[1][THREADS / 32];
  const uint64_t all = (uint64_t)grad | (uint64_t)result | (uint64_t)out;
  const bool wide = all % 16 == 0 && (n | grad_row | result_row | out_row) % SIDE == 0;
  for (index_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const x_t* const g = grad + row * grad_row;
    const x_t* const r = result + row * result_row;
    if (wide)
      softmax_row<SIDE>(g, r, out + row * out_row, n, scratch);
    else
      softmax_row<1>(g, r, out + row * out_row, n, scratch);
  }
}
#else
struct norm_t {
  const x_t* grad;
  const x_t* x;
  x_t* out;
  index_t n;
  work_t epsilon;
};

// One row; what it adds to the gradients of weight and bias goes to the thread's sums.
DEVICE void norm_row(const norm_t& p, const work_t (&weight)[EACH], work_t (&weights)[EACH],
                     work_t (&biases)[EACH], work_t (*scratch)[THREADS / 32]) {
  work_t x[EACH], grad[EACH], mean = 0;
  work_t sums[3] = {0, 0, 0}, first[1] = {0};
  const work_t count = (work_t)p.n;
#pragma unroll
  for (int c = 0; c < EACH; c++) {
    const index_t i = c * THREADS + threadIdx.x;
    x[c] = i < p.n ? (work_t)LOAD(X_TAG)(p.x[i]) : (work_t)0;
    grad[c] = i < p.n ? (work_t)LOAD(X_TAG)(p.grad[i]) : (work_t)0;
    first[0] += x[c];
  }
#if KIND == LAYER
  add_up(first, scratch);
  mean = first[0] / count;
#endif
#pragma unroll
  for (int c = 0; c < EACH; c++) {
    x[c] = c * THREADS + (index_t)threadIdx.x < p.n ? x[c] - mean : (work_t)0;
    const work_t inner = grad[c] * weight[c];
    sums[0] += x[c] * x[c], sums[1] += inner * x[c], sums[2] += inner;
  }
  add_up(sums, scratch);
  const work_t factor = (work_t)1 / sqrt(sums[0] / count + p.epsilon);
  const work_t along = sums[1] * factor / count, shift = KIND == LAYER ? sums[2] / count : 0;
#pragma unroll
  for (int c = 0; c < EACH; c++) {
    const index_t i = c * THREADS + threadIdx.x;
    const work_t unit = x[c] * factor;
    weights[c] += grad[c] * unit, biases[c] += grad[c];
    if (i < p.n)
      p.out[i] = STORE(X_TAG)((grad[c] * weight[c] - unit * along - shift) * factor);
  }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    ENTRY(const x_t* grad, const x_t* x, const w_t* weight, x_t* out, work_t* weight_sums,
          work_t* bias_sums, index_t rows, index_t n, index_t grad_row, index_t x_row,
          index_t out_row, double epsilon) {
  begin_kernel();
  __shared__ work_t scratch[3][THREADS / 32];
  work_t own[EACH], weights[EACH], biases[EACH];
#pragma unroll
  for (int c = 0; c < EACH; c++) {
    const index_t i = c * THREADS + threadIdx.x;
    own[c] = i < n ? (work_t)LOAD(W_TAG)(weight[i]) : (work_t)0;
    weights[c] = biases[c] = 0;
  }
#pragma unroll 1
  for (index_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const norm_t p = {grad + row * grad_row, x + row * x_row, out + row * out_row, n,
                      (work_t)epsilon};
    norm_row(p, own, weights, biases, scratch);
  }
#pragma unroll
  for (int c = 0; c < EACH; c++) {
    const index_t i = c * THREADS + threadIdx.x;
    if (i < n) {
      weight_sums[blockIdx.x * n + i] = weights[c];
#if KIND == LAYER
      bias_sums[blockIdx.x * n + i] = biases[c];
#endif
    }
  }
}
#endif
