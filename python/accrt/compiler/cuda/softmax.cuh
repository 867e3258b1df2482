/* softmax.cuh - softmax and log-softmax over the last axis: x is read once, kept in registers, and
 * written once.
 *
 * ACCRT_CUDA_SOFTMAX(ENTRY, X, MASK, THREADS, CHUNKS, N): X is the type of input and result;
 * threads, chunks and N as in norm.cuh; THREADS of 0 is a block of 256. Optional: `mask` of type
 * MASK (floats: added; bool as uint8_t: false takes out), of which row r takes row r /
 * mask_rows_each % mask_rows. ACCRT_CUDA_MASKED_SOFTMAX is the same of `scale` times x.
 * A row of -inf alone gives NaN, as does a row with +inf or NaN. Sums are float, exponentials
 * ex2.approx (2 ulp): the relative error stays under 2^-20 beside the rounding of X. */
#ifndef ACCRT_CUDA_SOFTMAX_CUH_
#define ACCRT_CUDA_SOFTMAX_CUH_

#include "numbers.cuh"

namespace accrt_cuda {

static __device__ __forceinline__ float masked(float x, float mask) {
  return x + mask;
}
static __device__ __forceinline__ float masked(float x, f16 mask) {
  return x + to_float(mask);
}
static __device__ __forceinline__ float masked(float x, bf16 mask) {
  return x + to_float(mask);
}
static __device__ __forceinline__ float masked(float x, uint8_t mask) {
  return mask ? x : -INFINITY;
}

template <class X, class MASK, int COUNT>
static __device__ __forceinline__ void softmax_read(const X* x, const MASK* mask, float scale,
                                                    int at, float (&value)[COUNT]) {
  const vector<X, COUNT> v = load_vector<X, COUNT>(x + at);
#pragma unroll
  for (int i = 0; i < COUNT; i++)
    value[i] = to_float(v.item[i]) * scale;
  if (mask) {
    const vector<MASK, COUNT> m = load_vector<MASK, COUNT>(mask + at);
#pragma unroll
    for (int i = 0; i < COUNT; i++)
      value[i] = masked(value[i], m.item[i]);
  }
}

constexpr float LOG2_E = 1.4426950408889634f;

/** The largest that is not NaN: NaN shows up in the sum anyway. */
struct join_largest {
  static __device__ __forceinline__ float neutral() { return -INFINITY; }
  static __device__ __forceinline__ float join(float a, float b) { return fmaxf(a, b); }
};

/** Threads of a block; of one that rows of any length share out among them. */
constexpr int SOFTMAX_THREADS = 256, SOFTMAX_WARPS = SOFTMAX_THREADS / 32;
template <int THREADS> struct softmax_block {
  static constexpr int threads = THREADS == 0 ? SOFTMAX_THREADS : THREADS == 32 ? 128 : THREADS;
};

template <class X, class MASK, int THREADS, int CHUNKS, int N>
static __device__ __forceinline__ void softmax_kept(const X* x, const MASK* mask, float scale,
                                                    X* out, int n, bool logarithm, int thread,
                                                    int lanes, float (*scratch)[32]) {
  constexpr int COUNT = 16 / sizeof(X);
  const int step = lanes * COUNT;
  const int size = N > 0 ? N : n, first = thread * COUNT;
  float value[CHUNKS][COUNT], part[CHUNKS];
#pragma unroll
  for (int c = 0; c < CHUNKS; c++) {
    if (first + c * step < size) {
      softmax_read<X, MASK, COUNT>(x, mask, scale, first + c * step, value[c]);
    } else {
#pragma unroll
      for (int i = 0; i < COUNT; i++)
        value[c][i] = -INFINITY;
    }
  }
#pragma unroll
  for (int c = 0; c < CHUNKS; c++)
    part[c] = join_tree<join_largest>(value[c]);
  const float top = row_join<join_largest, THREADS, SOFTMAX_WARPS>(join_tree<join_largest>(part),
                                                                   lanes, scratch[0]);
#pragma unroll
  for (int c = 0; c < CHUNKS; c++) {
    float e[COUNT];
    part[c] = 0.0f;
    if (c * step >= size)
      continue;
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
      e[i] = fast_exp2((value[c][i] - top) * LOG2_E);
      if (!logarithm)
        value[c][i] = e[i];
    }
    part[c] = join_tree<join_sum>(e);
  }
  const float total =
      row_join<join_sum, THREADS, SOFTMAX_WARPS>(join_tree<join_sum>(part), lanes, scratch[1]);
  const float factor = logarithm ? 1.0f : 1.0f / total;
  const float less = logarithm ? top + logf(total) : 0.0f;
#pragma unroll
  for (int c = 0; c < CHUNKS; c++) {
    if (first + c * step < size) {
      vector<X, COUNT> y;
#pragma unroll
      for (int i = 0; i < COUNT; i++)
        y.item[i] = from_float<X>(fmaf(value[c][i], factor, -less));
      store_vector(out + first + c * step, y);
    }
  }
}

template <class X, class MASK, int THREADS>
static __device__ __forceinline__ void softmax_again(const X* x, const MASK* mask, float scale,
                                                     X* out, int n, bool logarithm, int thread,
                                                     int lanes, float (*scratch)[32]) {
  float value[1], top = -INFINITY, total = 0.0f;
#pragma unroll 4
  for (int at = thread; at < n; at += lanes) {
    softmax_read<X, MASK, 1>(x, mask, scale, at, value);
    top = fmaxf(top, value[0]);
  }
  top = row_join<join_largest, THREADS, SOFTMAX_WARPS>(top, lanes, scratch[0]);
#pragma unroll 4
  for (int at = thread; at < n; at += lanes) {
    softmax_read<X, MASK, 1>(x, mask, scale, at, value);
    total += fast_exp2((value[0] - top) * LOG2_E);
  }
  total = row_join<join_sum, THREADS, SOFTMAX_WARPS>(total, lanes, scratch[1]);
  const float factor = 1.0f / total, less = logf(total);
#pragma unroll 4
  for (int at = thread; at < n; at += lanes) {
    softmax_read<X, MASK, 1>(x, mask, scale, at, value);
    const float d = value[0] - top;
    out[at] = from_float<X>(logarithm ? d - less : fast_exp2(d * LOG2_E) * factor);
  }
}

template <class X, class MASK, int THREADS, int CHUNKS, int N>
static __device__ __forceinline__ void
softmax(const X* x, const MASK* mask, float scale, X* out, int64_t rows, int64_t n, int64_t x_row,
        int64_t out_row, int64_t mask_row, int64_t mask_rows, int64_t mask_rows_each,
        int64_t logarithm, float (*scratch)[32]) {
  constexpr int COUNT = 16 / sizeof(X);
  wait_for_previous();
  allow_next();
  const int lanes = THREADS > 0 ? THREADS : row_lanes<CHUNKS * COUNT, SOFTMAX_THREADS>(n);
  const int thread = threadIdx.x % lanes, side_by_side = softmax_block<THREADS>::threads / lanes;
  const bool mask_fits =
      mask == nullptr || (mask_row % COUNT == 0 && is_aligned(mask, COUNT * sizeof(MASK)));
  const bool wide = (uint32_t)(n | x_row | out_row) % COUNT == 0 && n <= lanes * CHUNKS * COUNT &&
                    (N == 0 || n == N) && is_aligned(x, 16) && is_aligned(out, 16) && mask_fits;
  int64_t r = (int64_t)blockIdx.x * side_by_side + threadIdx.x / lanes;
  do {
    /* A row that is not there has no elements, and meets the others at the barriers. */
    const int size = r < rows ? (int)n : 0;
    const X* from = x + r * x_row;
    const MASK* by = mask ? mask + r / mask_rows_each % mask_rows * mask_row : nullptr;
    X* to = out + r * out_row;
    if (THREADS > 0 && r >= rows)
      return;
    if (wide)
      softmax_kept<X, MASK, THREADS, CHUNKS, N>(from, by, scale, to, size, logarithm != 0, thread,
                                                lanes, scratch);
    else
      softmax_again<X, MASK, THREADS>(from, by, scale, to, size, logarithm != 0, thread, lanes,
                                      scratch);
    r += (int64_t)gridDim.x * side_by_side;
  } while (THREADS == 0 && r - threadIdx.x / lanes < rows);
}

} // namespace accrt_cuda

#define ACCRT_CUDA_SOFTMAX(ENTRY, X, MASK, THREADS, CHUNKS, N)                                     \
  extern "C" __global__ void __launch_bounds__(accrt_cuda::softmax_block<THREADS>::threads)        \
      ENTRY(const X* x, const MASK* mask, X* out, int64_t rows, int64_t n, int64_t x_row,          \
            int64_t out_row, int64_t mask_row, int64_t mask_rows, int64_t mask_rows_each,          \
            int64_t logarithm) {                                                                   \
    __shared__ float scratch[2][32];                                                               \
    accrt_cuda::softmax<X, MASK, THREADS, CHUNKS, N>(x, mask, 1.0f, out, rows, n, x_row, out_row,  \
                                                     mask_row, mask_rows, mask_rows_each,          \
                                                     logarithm, scratch);                          \
  }

#define ACCRT_CUDA_MASKED_SOFTMAX(ENTRY, X, MASK, THREADS, CHUNKS, N)                              \
  extern "C" __global__ void __launch_bounds__(accrt_cuda::softmax_block<THREADS>::threads)        \
      ENTRY(const X* x, const MASK* mask, X* out, int64_t rows, int64_t n, int64_t x_row,          \
            int64_t out_row, int64_t mask_row, int64_t mask_rows, double scale) {                  \
    __shared__ float scratch[2][32];                                                               \
    accrt_cuda::softmax<X, MASK, THREADS, CHUNKS, N>(x, mask, (float)scale, out, rows, n, x_row,   \
                                                     out_row, mask_row, mask_rows, 1, 0, scratch); \
  }
#endif
