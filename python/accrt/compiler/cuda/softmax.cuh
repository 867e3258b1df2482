/* softmax.cuh - softmax and log-softmax over the last axis: x is read once, kept in registers, and written once.
 *
 * ACCRT_CUDA_SOFTMAX(ENTRY, X, MASK, THREADS, CHUNKS, BLOCKS): X is the type of input and result. Threads and chunks as in norm.cuh.
 * Optional: `mask` of type MASK (floats: added; bool as uint8_t: false takes out), its row is r / mask_rows_each % mask_rows
 * of mask_row elements. A row of -inf alone gives NaN, as does a row with +inf or NaN. Sums are float, exponentials
 * ex2.approx (2 ulp): the relative error stays under 2^-20 beside the rounding of X. */
#ifndef ACCRT_CUDA_SOFTMAX_CUH_
#define ACCRT_CUDA_SOFTMAX_CUH_

#include "numbers.cuh"

namespace accrt_cuda {

static __device__ __forceinline__ float masked(float x, float mask) { return x + mask; }
static __device__ __forceinline__ float masked(float x, f16 mask) { return x + to_float(mask); }
static __device__ __forceinline__ float masked(float x, bf16 mask) { return x + to_float(mask); }
static __device__ __forceinline__ float masked(float x, uint8_t mask) {
  return mask ? x : -INFINITY;
}

template <class X, class MASK, int COUNT>
static __device__ __forceinline__ void softmax_read(const X* x, const MASK* mask, int64_t at,
                                                    float* value) {
  const vector<X, COUNT> v = load_vector<X, COUNT>(x + at);
#pragma unroll
  for (int i = 0; i < COUNT; i++)
    value[i] = to_float(v.item[i]);
  if (mask) {
#pragma unroll
    for (int i = 0; i < COUNT; i++)
      value[i] = masked(value[i], mask[at + i]);
  }
}

constexpr float LOG2_E = 1.4426950408889634f, LN_2 = 0.69314718055994531f;

template <class X, class MASK, int THREADS, int CHUNKS, int COUNT>
static __device__ __forceinline__ void softmax_one(const X* x, const MASK* mask, X* out, int64_t n,
                                                   bool logarithm, int thread,
                                                   float (*scratch)[32]) {
  const int64_t step = (int64_t)THREADS * COUNT, first = (int64_t)thread * COUNT;
  const int64_t kept = step * CHUNKS;
  float have[CHUNKS][COUNT], again[COUNT];
  float top = -INFINITY;
#pragma unroll
  for (int c = 0; c < CHUNKS; c++) {
    if (first + c * step < n)
      softmax_read<X, MASK, COUNT>(x, mask, first + c * step, have[c]);
    else {
#pragma unroll
      for (int i = 0; i < COUNT; i++)
        have[c][i] = -INFINITY;
    }
  }
#pragma unroll
  for (int c = 0; c < CHUNKS; c++) {
#pragma unroll
    for (int i = 0; i < COUNT; i++)
      top = join_max::join(have[c][i], top);
  }
  for (int64_t at = kept + first; at < n; at += step) {
    softmax_read<X, MASK, COUNT>(x, mask, at, again);
    for (int i = 0; i < COUNT; i++)
      top = join_max::join(again[i], top);
  }
  top = block_join<join_max, THREADS>(top, scratch[0]);
  float total = 0.0f;
#pragma unroll
  for (int c = 0; c < CHUNKS; c++) {
    if (first + c * step < n) {
#pragma unroll
      for (int i = 0; i < COUNT; i++) {
        have[c][i] = (have[c][i] - top) * LOG2_E;
        const float e = fast_exp2(have[c][i]);
        total += e;
        if (!logarithm)
          have[c][i] = e;
      }
    }
  }
  for (int64_t at = kept + first; at < n; at += step) {
    softmax_read<X, MASK, COUNT>(x, mask, at, again);
    for (int i = 0; i < COUNT; i++)
      total += fast_exp2((again[i] - top) * LOG2_E);
  }
  total = block_join<join_sum, THREADS>(total, scratch[1]);
  const float factor = 1.0f / total, shift = logf(total);
  vector<X, COUNT> y;
#pragma unroll
  for (int c = 0; c < CHUNKS; c++) {
    if (first + c * step < n) {
#pragma unroll
      for (int i = 0; i < COUNT; i++)
        y.item[i] = from_float<X>(logarithm ? have[c][i] * LN_2 - shift : have[c][i] * factor);
      store_vector(out + first + c * step, y);
    }
  }
  for (int64_t at = kept + first; at < n; at += step) {
    softmax_read<X, MASK, COUNT>(x, mask, at, again);
    for (int i = 0; i < COUNT; i++) {
      const float d = again[i] - top;
      y.item[i] = from_float<X>(logarithm ? d - shift : fast_exp2(d * LOG2_E) * factor);
    }
    store_vector(out + at, y);
  }
}

template <class X, class MASK, int THREADS, int CHUNKS>
static __device__ __forceinline__ void softmax(const X* x, const MASK* mask, X* out, int64_t rows,
                                               int64_t n, int64_t x_row, int64_t out_row,
                                               int64_t mask_row, int64_t mask_rows,
                                               int64_t mask_rows_each, int64_t logarithm) {
  __shared__ float scratch[2][32];
  constexpr int COUNT = 16 / sizeof(X);
  constexpr int ROWS = THREADS == 32 ? 4 : 1;
  const int thread = threadIdx.x % THREADS;
  const int64_t r = (int64_t)blockIdx.x * ROWS + threadIdx.x / THREADS;
  wait_for_previous();
  allow_next();
  if (r < rows) {
    const X* from = x + r * x_row;
    const MASK* by = mask ? mask + r / mask_rows_each % mask_rows * mask_row : nullptr;
    X* to = out + r * out_row;
    const bool wide =
        (n | x_row | out_row) % COUNT == 0 && is_aligned(x, 16) && is_aligned(out, 16);
    if (wide)
      softmax_one<X, MASK, THREADS, CHUNKS, COUNT>(from, by, to, n, logarithm != 0, thread,
                                                   scratch);
    else
      softmax_one<X, MASK, THREADS, CHUNKS, 1>(from, by, to, n, logarithm != 0, thread, scratch);
  }
}

} // namespace accrt_cuda

#define ACCRT_CUDA_SOFTMAX(ENTRY, X, MASK, THREADS, CHUNKS, BLOCKS)                                \
  extern "C" __global__ void __launch_bounds__(THREADS == 32 ? 128 : THREADS, BLOCKS) ENTRY(       \
      const X* x, const MASK* mask, X* out, int64_t rows, int64_t n, int64_t x_row,                \
      int64_t out_row, int64_t mask_row, int64_t mask_rows, int64_t mask_rows_each,                \
      int64_t logarithm) {                                                                         \
    accrt_cuda::softmax<X, MASK, THREADS, CHUNKS>(x, mask, out, rows, n, x_row, out_row, mask_row, \
                                                  mask_rows, mask_rows_each, logarithm);           \
  }
#endif
