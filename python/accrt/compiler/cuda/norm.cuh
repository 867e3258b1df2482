/* norm.cuh - layer norm and RMS norm over the last axis: x is read once, kept in registers, and
 * written once.
 *
 * ACCRT_CUDA_NORM(ENTRY, X, W, RMS, THREADS, CHUNKS, N, BLOCKS): X is the type of input and
 * result, W that of weight and bias. A row has THREADS threads: 32 (a block is then four rows) or
 * a block of 64 to 1024, each with up to CHUNKS vectors of 16 bytes. THREADS of 0 is for rows of
 * any length: a row has as many warps of a block of 512 threads as it has pieces of 32 * CHUNKS
 * vectors, a power of two, and a block several rows at once where they are short. N is the length
 * of a row where it is known, else 0; BLOCKS is how many blocks a multiprocessor is to hold. A
 * block walks as many rows as the grid leaves it. Rows that do not fit so, or are not aligned to
 * 16 bytes, are read three times (the later times mostly from the cache). Statistics are float:
 * the mean, then the squares of the deviations around it, so that nothing cancels; the error of a
 * result is a few 2^-24 of the row's largest value beside the rounding of X. */
#ifndef ACCRT_CUDA_NORM_CUH_
#define ACCRT_CUDA_NORM_CUH_

#include "numbers.cuh"

namespace accrt_cuda {

template <class X, class W> struct norm_arguments {
  const X* x;
  const W* weight;
  const W* bias;
  X* out;
  int64_t rows, x_row, out_row;
  int n;
  float epsilon;
};

/** Threads of a block; of one that rows of any length share out among them. */
constexpr int NORM_THREADS = 512, NORM_WARPS = NORM_THREADS / 32;
template <int THREADS> struct norm_block {
  static constexpr int threads = THREADS == 0 ? NORM_THREADS : THREADS == 32 ? 128 : THREADS;
};

/** Rows from `first_row` on, `step_rows` apart: weights stay in registers, and the next row is on
 * its way while one is calculated. */
template <class X, class W, bool RMS, int THREADS, int CHUNKS, int N>
static __device__ __forceinline__ void norm_kept(const norm_arguments<X, W>& p, int64_t first_row,
                                                 int64_t step_rows, int lanes,
                                                 float (*scratch)[32]) {
  constexpr int COUNT = 16 / sizeof(X);
  const int n = N > 0 ? N : p.n, step = lanes * COUNT, first = threadIdx.x % lanes * COUNT;
  /* Of several rows with barriers all go on until none is left. */
  const int behind = THREADS == 0 ? threadIdx.x / lanes : 0;
  const float share = 1.0f / (float)n;
  words<X, COUNT> next[CHUNKS];
  words<W, COUNT> weight[CHUNKS], bias[CHUNKS];
  const X* from = p.x + first_row * p.x_row + first;
#pragma unroll
  for (int c = 0; c < CHUNKS; c++) {
    next[c].fill(0);
    if (first + c * step < n && first_row < p.rows)
      next[c].load(from + c * step);
  }
#pragma unroll
  for (int c = 0; c < CHUNKS; c++) {
    weight[c].fill(0);
    bias[c].fill(0);
    if (p.weight && first + c * step < n)
      weight[c].load(p.weight + first + c * step);
    if (p.bias && first + c * step < n)
      bias[c].load(p.bias + first + c * step);
  }
  const float unweighted = p.weight ? 0.0f : 1.0f;
  int parity = 0;
#pragma unroll 1
  for (int64_t r = first_row; r - behind < p.rows; r += step_rows, parity ^= 1) {
    float value[CHUNKS][COUNT], part[CHUNKS];
#pragma unroll
    for (int c = 0; c < CHUNKS; c++) {
#pragma unroll
      for (int i = 0; i < COUNT; i++)
        value[c][i] = next[c].get(i);
    }
    from += step_rows * p.x_row;
    if (r + step_rows < p.rows) {
#pragma unroll
      for (int c = 0; c < CHUNKS; c++) {
        if (first + c * step < n)
          next[c].load(from + c * step);
      }
    }
    if (!RMS) {
#pragma unroll
      for (int c = 0; c < CHUNKS; c++)
        part[c] = join_tree<join_sum>(value[c]);
      const float mean =
          row_join<join_sum, THREADS, NORM_WARPS>(join_tree<join_sum>(part), lanes, scratch[0]) *
          share;
#pragma unroll
      for (int c = 0; c < CHUNKS; c++) {
        const float taken = first + c * step < n ? mean : 0.0f;
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
    /* With one barrier a row, a fast warp may be a row ahead of a slow one: scratch alternates. */
    const float squares = row_join<join_sum, THREADS, NORM_WARPS>(join_tree<join_sum>(part), lanes,
                                                                  scratch[RMS ? parity : 1]);
    const float factor = 1.0f / sqrtf(fmaf(squares, share, p.epsilon));
    X* const out = p.out + r * p.out_row + first;
#pragma unroll
    for (int c = 0; c < CHUNKS; c++) {
      weight[c].keep();
      bias[c].keep();
      vector<X, COUNT> y;
#pragma unroll
      for (int i = 0; i < COUNT; i++)
        y.item[i] = from_float<X>(
            fmaf(value[c][i] * factor, weight[c].get(i) + unweighted, bias[c].get(i)));
      if (first + c * step < n && r < p.rows)
        store_vector(out + c * step, y);
    }
  }
}

/** Any alignment and length. Later rounds read what may be overwritten: each thread its own
 * elements alone. */
template <class X, class W, bool RMS, int THREADS>
static __device__ __forceinline__ void norm_again(const norm_arguments<X, W>& p, int64_t r,
                                                  int lanes, float (*scratch)[32]) {
  const X* const x = p.x + r * p.x_row;
  X* const out = p.out + r * p.out_row;
  const int thread = threadIdx.x % lanes, n = r < p.rows ? p.n : 0;
  float total = 0.0f, squares = 0.0f;
#pragma unroll 4
  for (int at = thread; at < n; at += lanes)
    total += to_float(x[at]);
  const float mean =
      RMS ? 0.0f : row_join<join_sum, THREADS, NORM_WARPS>(total, lanes, scratch[0]) / (float)p.n;
#pragma unroll 4
  for (int at = thread; at < n; at += lanes)
    squares = fmaf(to_float(x[at]) - mean, to_float(x[at]) - mean, squares);
  squares = row_join<join_sum, THREADS, NORM_WARPS>(squares, lanes, scratch[1]);
  const float factor = 1.0f / sqrtf(squares / (float)p.n + p.epsilon);
#pragma unroll 4
  for (int at = thread; at < n; at += lanes) {
    const float weight = p.weight ? to_float(p.weight[at]) : 1.0f;
    const float bias = p.bias ? to_float(p.bias[at]) : 0.0f;
    out[at] = from_float<X>(fmaf((to_float(x[at]) - mean) * factor, weight, bias));
  }
}

template <class X, class W, bool RMS, int THREADS, int CHUNKS, int N>
static __device__ __forceinline__ void norm(const norm_arguments<X, W>& p, float (*scratch)[32]) {
  constexpr int COUNT = 16 / sizeof(X);
  const int lanes = THREADS > 0 ? THREADS : row_lanes<CHUNKS * COUNT, NORM_THREADS>(p.n);
  const int side_by_side = norm_block<THREADS>::threads / lanes;
  const int64_t first = (int64_t)blockIdx.x * side_by_side + threadIdx.x / lanes;
  const int64_t step = (int64_t)gridDim.x * side_by_side;
  wait_for_previous();
  allow_next();
  const int behind = THREADS == 0 ? threadIdx.x / lanes : 0;
  if (first - behind >= p.rows)
    return;
  const bool wide = (uint32_t)(p.n | p.x_row | p.out_row) % COUNT == 0 &&
                    p.n <= lanes * CHUNKS * COUNT && (N == 0 || p.n == N) && is_aligned(p.x, 16) &&
                    is_aligned(p.out, 16) && is_aligned(p.weight, 16) && is_aligned(p.bias, 16);
  if (wide) {
    norm_kept<X, W, RMS, THREADS, CHUNKS, N>(p, first, step, lanes, scratch);
    return;
  }
#pragma unroll 1
  for (int64_t r = first; r - behind < p.rows; r += step) {
    norm_again<X, W, RMS, THREADS>(p, r, lanes, scratch);
    if (THREADS != 32)
      __syncthreads();
  }
}

} // namespace accrt_cuda

#define ACCRT_CUDA_NORM(ENTRY, X, W, RMS, THREADS, CHUNKS, N, BLOCKS)                              \
  extern "C" __global__ void __launch_bounds__(accrt_cuda::norm_block<THREADS>::threads, BLOCKS)   \
      ENTRY(const X* x, const W* weight, const W* bias, X* out, int64_t rows, int64_t n,           \
            int64_t x_row, int64_t out_row, double epsilon) {                                      \
    __shared__ float scratch[2][32];                                                               \
    accrt_cuda::norm<X, W, RMS, THREADS, CHUNKS, N>(                                               \
        {x, weight, bias, out, rows, x_row, out_row, (int)n, (float)epsilon}, scratch);            \
  }
#endif
