/* norm.cuh - layer norm and RMS norm over the last axis: x is read once, kept in registers, and written once.
 *
 * ACCRT_CUDA_NORM(ENTRY, X, W, RMS, THREADS, CHUNKS, BLOCKS): X is the type of input and result, W that of weight and bias. A row
 * has THREADS threads: 32 (a block is then four rows) or a block of 64 to 1024. A thread keeps CHUNKS vectors of 16 bytes;
 * what a row has beyond THREADS * CHUNKS of them is read again. Optional: `residual` is added to x first, and `sum` gets
 * that. Statistics are float: the mean, then the squares of the deviations around it, so that nothing cancels; the error of
 * a result is a few 2^-24 of the row's largest value beside the rounding of X. */
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
  int64_t n;
};

template <class X, int COUNT>
static __device__ __forceinline__ vector<X, COUNT> norm_read(const X* x, const X* residual, X* sum,
                                                             int64_t at) {
  vector<X, COUNT> v = load_vector<X, COUNT>(x + at);
  if (residual) {
    const vector<X, COUNT> r = load_vector<X, COUNT>(residual + at);
#pragma unroll
    for (int i = 0; i < COUNT; i++)
      v.item[i] = from_float<X>(to_float(v.item[i]) + to_float(r.item[i]));
    if (sum)
      store_vector(sum + at, v);
  }
  return v;
}

template <class X, class W, int COUNT>
static __device__ __forceinline__ void norm_write(const norm_row<X, W>& row, int64_t at,
                                                  const vector<X, COUNT>& v, float mean,
                                                  float factor) {
  vector<X, COUNT> y;
  vector<W, COUNT> w, b;
  if (row.weight)
    w = load_vector<W, COUNT>(row.weight + at);
  if (row.bias)
    b = load_vector<W, COUNT>(row.bias + at);
#pragma unroll
  for (int i = 0; i < COUNT; i++) {
    float value = (to_float(v.item[i]) - mean) * factor;
    if (row.weight)
      value *= to_float(w.item[i]);
    if (row.bias)
      value += to_float(b.item[i]);
    y.item[i] = from_float<X>(value);
  }
  store_vector(row.out + at, y);
}

template <class X, class W, bool RMS, int THREADS, int CHUNKS, int COUNT>
static __device__ __forceinline__ void norm_one(const norm_row<X, W>& row, int thread,
                                                float epsilon, float (*scratch)[32]) {
  const int64_t step = (int64_t)THREADS * COUNT, first = (int64_t)thread * COUNT;
  const int64_t kept = step * CHUNKS;
  vector<X, COUNT> have[CHUNKS];
#pragma unroll
  for (int c = 0; c < CHUNKS; c++) {
    if (first + c * step < row.n)
      have[c] = norm_read<X, COUNT>(row.x, row.residual, row.sum, first + c * step);
  }
  float mean = 0.0f;
  if (!RMS) {
    float total = 0.0f;
#pragma unroll
    for (int c = 0; c < CHUNKS; c++) {
      if (first + c * step < row.n) {
#pragma unroll
        for (int i = 0; i < COUNT; i++)
          total += to_float(have[c].item[i]);
      }
    }
    for (int64_t at = kept + first; at < row.n; at += step) {
      const vector<X, COUNT> v = norm_read<X, COUNT>(row.x, row.residual, nullptr, at);
      for (int i = 0; i < COUNT; i++)
        total += to_float(v.item[i]);
    }
    mean = block_join<join_sum, THREADS>(total, scratch[0]) / (float)row.n;
  }
  float squares = 0.0f;
#pragma unroll
  for (int c = 0; c < CHUNKS; c++) {
    if (first + c * step < row.n) {
#pragma unroll
      for (int i = 0; i < COUNT; i++) {
        const float d = to_float(have[c].item[i]) - mean;
        squares += d * d;
      }
    }
  }
  for (int64_t at = kept + first; at < row.n; at += step) {
    const vector<X, COUNT> v = norm_read<X, COUNT>(row.x, row.residual, nullptr, at);
    for (int i = 0; i < COUNT; i++) {
      const float d = to_float(v.item[i]) - mean;
      squares += d * d;
    }
  }
  const float variance = block_join<join_sum, THREADS>(squares, scratch[1]) / (float)row.n;
  const float factor = 1.0f / sqrtf(variance + epsilon);
#pragma unroll
  for (int c = 0; c < CHUNKS; c++) {
    if (first + c * step < row.n)
      norm_write<X, W, COUNT>(row, first + c * step, have[c], mean, factor);
  }
  for (int64_t at = kept + first; at < row.n; at += step) {
    const vector<X, COUNT> v = norm_read<X, COUNT>(row.x, row.residual, row.sum, at);
    norm_write<X, W, COUNT>(row, at, v, mean, factor);
  }
}

template <class X, class W, bool RMS, int THREADS, int CHUNKS>
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
  if (r < rows) {
    const norm_row<X, W> row = {x + r * x_row,
                                residual ? residual + r * residual_row : nullptr,
                                weight,
                                bias,
                                out + r * out_row,
                                sum ? sum + r * out_row : nullptr,
                                n};
    const int64_t steps = n | x_row | out_row | (residual ? residual_row : 0);
    const bool wide = steps % COUNT == 0 && is_aligned(x, 16) && is_aligned(out, 16) &&
                      is_aligned(residual, 16) && is_aligned(sum, 16) &&
                      is_aligned(weight, sizeof(W) * COUNT) && is_aligned(bias, sizeof(W) * COUNT);
    if (wide)
      norm_one<X, W, RMS, THREADS, CHUNKS, COUNT>(row, thread, (float)epsilon, scratch);
    else
      norm_one<X, W, RMS, THREADS, CHUNKS, 1>(row, thread, (float)epsilon, scratch);
  }
}

} // namespace accrt_cuda

#define ACCRT_CUDA_NORM(ENTRY, X, W, RMS, THREADS, CHUNKS, BLOCKS)                                 \
  extern "C" __global__ void __launch_bounds__(THREADS == 32 ? 128 : THREADS, BLOCKS) ENTRY(       \
      const X* x, const X* residual, const W* weight, const W* bias, X* out, X* sum, int64_t rows, \
      int64_t n, int64_t x_row, int64_t residual_row, int64_t out_row, double epsilon) {           \
    accrt_cuda::norm<X, W, RMS, THREADS, CHUNKS>(x, residual, weight, bias, out, sum, rows, n,     \
                                                 x_row, residual_row, out_row, epsilon);           \
  }
#endif
