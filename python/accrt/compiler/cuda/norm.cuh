/* norm.cuh - layer norm and RMS norm over the last axis: x is read once, kept in registers, and written once.
 *
 * ACCRT_CUDA_NORM(ENTRY, X, W, RMS, THREADS, CHUNKS, N): X is the type of input and result, W that of weight and bias. A row
 * has THREADS threads: 32 (a block is then four rows) or a block of 64 to 1024, each with up to CHUNKS vectors of 16 bytes. N is
 * the length of a row where it is known, else 0. Rows that do not fit so, or are not aligned to 16 bytes, are read three times
 * (the later times mostly from the cache). Optional: `residual` is added to x first, and `sum` gets that. Statistics are
 * float: the mean, then the squares of the deviations around it, so that nothing cancels; the error of a result is a few 2^-24
 * of the row's largest value beside the rounding of X. */
#ifndef ACCRT_CUDA_NORM_CUH_
#define ACCRT_CUDA_NORM_CUH_

#include "numbers.cuh"

namespace accrt_cuda {

template <class X, class W> struct norm_row {
  const X* x;
  const X* residual;
  const W* weight;
  const W* bias;
  X* out;
  X* sum;
  int n;
};

template <class X, int COUNT>
static __device__ __forceinline__ void norm_read(float (&value)[COUNT], const X* x,
                                                 const X* residual, X* sum, int at) {
  vector<X, COUNT> v = load_vector<X, COUNT>(x + at);
  if (residual) {
    const vector<X, COUNT> r = load_vector<X, COUNT>(residual + at);
#pragma unroll
    for (int i = 0; i < COUNT; i++)
      v.item[i] = from_float<X>(to_float(v.item[i]) + to_float(r.item[i]));
    if (sum)
      store_vector(sum + at, v);
  }
#pragma unroll
  for (int i = 0; i < COUNT; i++)
    value[i] = to_float(v.item[i]);
}

/** `value` holds deviations from the mean. */
template <class X, class W, int COUNT>
static __device__ __forceinline__ void norm_write(const norm_row<X, W>& row, int at,
                                                  const float (&value)[COUNT], float factor) {
  vector<X, COUNT> y;
  vector<W, COUNT> w, b;
  if (row.weight)
    w = load_vector<W, COUNT>(row.weight + at);
  if (row.bias)
    b = load_vector<W, COUNT>(row.bias + at);
#pragma unroll
  for (int i = 0; i < COUNT; i++) {
    const float scaled = value[i] * factor;
    const float weighted = row.weight ? to_float(w.item[i]) : 1.0f;
    y.item[i] = from_float<X>(fmaf(scaled, weighted, row.bias ? to_float(b.item[i]) : 0.0f));
  }
  store_vector(row.out + at, y);
}

template <class X, class W, bool RMS, int THREADS, int CHUNKS, int N>
static __device__ __forceinline__ void norm_kept(const norm_row<X, W>& row, int thread,
                                                 float epsilon, float (*scratch)[32]) {
  constexpr int COUNT = 16 / sizeof(X), STEP = THREADS * COUNT;
  const int n = N > 0 ? N : row.n, first = thread * COUNT;
  float value[CHUNKS][COUNT], part[CHUNKS];
#pragma unroll
  for (int c = 0; c < CHUNKS; c++) {
    if (first + c * STEP < n) {
      norm_read<X, COUNT>(value[c], row.x, row.residual, row.sum, first + c * STEP);
    } else {
#pragma unroll
      for (int i = 0; i < COUNT; i++)
        value[c][i] = 0.0f;
    }
  }
  const float share = 1.0f / (float)n;
  if (!RMS) {
#pragma unroll
    for (int c = 0; c < CHUNKS; c++)
      part[c] = join_tree<join_sum>(value[c]);
    const float mean = block_join<join_sum, THREADS>(join_tree<join_sum>(part), scratch[0]) * share;
#pragma unroll
    for (int c = 0; c < CHUNKS; c++) {
      const float taken = first + c * STEP < n ? mean : 0.0f;
#pragma unroll
      for (int i = 0; i < COUNT; i++)
        value[c][i] -= taken;
    }
  }
#pragma unroll
  for (int c = 0; c < CHUNKS; c++) {
    float even = 0.0f, odd = 0.0f;
#pragma unroll
    for (int i = 0; i < COUNT; i += 2) {
      even = fmaf(value[c][i], value[c][i], even);
      odd = fmaf(value[c][i + 1], value[c][i + 1], odd);
    }
    part[c] = even + odd;
  }
  const float squares = block_join<join_sum, THREADS>(join_tree<join_sum>(part), scratch[1]);
  const float factor = 1.0f / sqrtf(fmaf(squares, share, epsilon));
#pragma unroll
  for (int c = 0; c < CHUNKS; c++) {
    if (first + c * STEP < n)
      norm_write<X, W, COUNT>(row, first + c * STEP, value[c], factor);
  }
}

template <class X, class W, bool RMS, int THREADS>
static __device__ __forceinline__ void norm_again(const norm_row<X, W>& row, int thread,
                                                  float epsilon, float (*scratch)[32]) {
  float value[1], total = 0.0f, squares = 0.0f;
#pragma unroll 4
  for (int at = thread; at < row.n; at += THREADS) {
    norm_read<X, 1>(value, row.x, row.residual, row.sum, at);
    total += value[0];
  }
  /* Later rounds read what may be overwritten: each thread only its own elements. */
  const float mean =
      RMS ? 0.0f : block_join<join_sum, THREADS>(total, scratch[0]) / (float)row.n;
#pragma unroll 4
  for (int at = thread; at < row.n; at += THREADS) {
    norm_read<X, 1>(value, row.x, row.residual, (X*)nullptr, at);
    squares = fmaf(value[0] - mean, value[0] - mean, squares);
  }
  squares = block_join<join_sum, THREADS>(squares, scratch[1]);
  const float factor = 1.0f / sqrtf(squares / (float)row.n + epsilon);
#pragma unroll 4
  for (int at = thread; at < row.n; at += THREADS) {
    norm_read<X, 1>(value, row.x, row.residual, (X*)nullptr, at);
    value[0] -= mean;
    norm_write<X, W, 1>(row, at, value, factor);
  }
}

template <class X, class W, bool RMS, int THREADS, int CHUNKS, int N>
static __device__ __forceinline__ void norm(const X* x, const X* residual, const W* weight,
                                            const W* bias, X* out, X* sum, int64_t rows, int64_t n,
                                            int64_t x_row, int64_t residual_row, int64_t out_row,
                                            double epsilon) {
  __shared__ float scratch[2][32];
  constexpr int COUNT = 16 / sizeof(X);
  constexpr int ROWS = THREADS == 32 ? 4 : 1;
  const int thread = threadIdx.x % THREADS;
  const int64_t r = (int64_t)blockIdx.x * ROWS + threadIdx.x / THREADS;
  wait_for_previous();
  allow_next();
  if (r >= rows)
    return;
  const norm_row<X, W> row = {x + r * x_row,
                              residual ? residual + r * residual_row : nullptr,
                              weight,
                              bias,
                              out + r * out_row,
                              sum ? sum + r * out_row : nullptr,
                              (int)n};
  const uint32_t steps = (uint32_t)(n | x_row | out_row | (residual ? residual_row : 0));
  const bool wide = steps % COUNT == 0 && n <= THREADS * CHUNKS * COUNT && (N == 0 || n == N) &&
                    is_aligned(x, 16) && is_aligned(out, 16) && is_aligned(residual, 16) &&
                    is_aligned(sum, 16) && is_aligned(weight, 16) && is_aligned(bias, 16);
  if (wide)
    norm_kept<X, W, RMS, THREADS, CHUNKS, N>(row, thread, (float)epsilon, scratch);
  else
    norm_again<X, W, RMS, THREADS>(row, thread, (float)epsilon, scratch);
}

} // namespace accrt_cuda

#define ACCRT_CUDA_NORM(ENTRY, X, W, RMS, THREADS, CHUNKS, N)                                      \
  extern "C" __global__ void __launch_bounds__(THREADS == 32 ? 128 : THREADS) ENTRY(               \
      const X* x, const X* residual, const W* weight, const W* bias, X* out, X* sum, int64_t rows, \
      int64_t n, int64_t x_row, int64_t residual_row, int64_t out_row, double epsilon) {           \
    accrt_cuda::norm<X, W, RMS, THREADS, CHUNKS, N>(x, residual, weight, bias, out, sum, rows, n,  \
                                                    x_row, residual_row, out_row, epsilon);        \
  }
#endif
