// lora.cu - the halves of low-rank products, an adapter for each token, whose tokens stand in any
// order; -1 (and on a device any other index outside) is none.
//
// SHRINK 1: out[t][r] = sum over k of x[t][k] * factors[index[t]][r][k], zeros where there is none.
// A warp makes one number; blocks of 256 threads; x of the grid walks tokens, y rows of factors by
// eight.
// SHRINK 0: out[t][n] = y[t][n] + sum over r of shrunk[t][r] * factors[index[t]][r][n]; in place,
// tokens without an adapter are not touched. Blocks of 128 threads; x of the grid walks tokens, y
// columns by 256.
//
// Instantiated with SHRINK, X_TAG (x, or y and out), F_TAG (factors) and ENTRY. Adds up in f32, in
// an order that no other token changes.
#include "common.cuh"

typedef TYPE(X_TAG) x_t;
typedef TYPE(F_TAG) factor_t;

#if SHRINK

template <int N> DEVICE float dot(const x_t* x, const factor_t* row, index_t size, int lane) {
  float sum = 0.0f;
#pragma unroll 2
  for (index_t at = (index_t)lane * N; at < size; at += 32 * N) {
    const vector_t<x_t, N> own = *(const vector_t<x_t, N>*)(x + at);
    const vector_t<factor_t, N> f = *(const vector_t<factor_t, N>*)(row + at);
#pragma unroll
    for (int i = 0; i < N; i++)
      sum = fmaf(LOAD(X_TAG)(own.at[i]), LOAD(F_TAG)(f.at[i]), sum);
  }
  return sum;
}

extern "C" __global__ void __launch_bounds__(256)
    ENTRY(const x_t* x, const factor_t* factors, const int32_t* index, float* out, index_t tokens,
          index_t adapters, index_t rank, index_t size, index_t x_row, index_t index_step) {
  begin_kernel();
  const index_t token = blockIdx.x, row = (index_t)blockIdx.y * 8 + threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  if (token >= tokens || row >= rank)
    return;
  const index_t adapter = (index_t)index[token * index_step];
  if (adapter < 0 || adapter >= adapters) {
    if (lane == 0)
      out[token * rank + row] = 0.0f;
    return;
  }
  const x_t* own = x + token * x_row;
  const factor_t* from = factors + (adapter * rank + row) * size;
  const bool wide = is_aligned<x_t, 8>(own) && is_aligned<factor_t, 8>(from) && size % 8 == 0;
  float sum = wide ? dot<8>(own, from, size, lane) : dot<1>(own, from, size, lane);
#pragma unroll
  for (int half = 16; half > 0; half /= 2)
    sum += __shfl_xor_sync(0xffffffffu, sum, half);
  if (lane == 0)
    out[token * rank + row] = sum;
}

#else

#define COLUMNS 2 // of a thread

template <int N>
DEVICE void expand(const x_t* y, const float* shrunk, const factor_t* factors, x_t* out,
                   index_t rank, index_t size) {
  const vector_t<x_t, N> from = *(const vector_t<x_t, N>*)y;
  vector_t<x_t, N> to;
  float sums[N];
#pragma unroll
  for (int i = 0; i < N; i++)
    sums[i] = LOAD(X_TAG)(from.at[i]);
#pragma unroll 4
  for (index_t r = 0; r < rank; r++) {
    const vector_t<factor_t, N> f = *(const vector_t<factor_t, N>*)(factors + r * size);
    const float own = shrunk[r];
#pragma unroll
    for (int i = 0; i < N; i++)
      sums[i] = fmaf(own, LOAD(F_TAG)(f.at[i]), sums[i]);
  }
#pragma unroll
  for (int i = 0; i < N; i++)
    to.at[i] = STORE(X_TAG)(sums[i]);
  *(vector_t<x_t, N>*)out = to;
}

extern "C" __global__ void __launch_bounds__(128)
    ENTRY(const x_t* y, const float* shrunk, const factor_t* factors, const int32_t* index,
          x_t* out, index_t tokens, index_t adapters, index_t rank, index_t size, index_t y_row,
          index_t out_row, index_t shrunk_row, index_t index_step) {
  begin_kernel();
  const index_t token = blockIdx.x;
  const index_t first = ((index_t)blockIdx.y * 128 + threadIdx.x) * COLUMNS;
  if (token >= tokens || first >= size)
    return;
  const index_t end = min_index(first + COLUMNS, size);
  const index_t adapter = (index_t)index[token * index_step];
  const x_t* from = y + token * y_row;
  x_t* to = out + token * out_row;
  if (adapter < 0 || adapter >= adapters) {
    if (from != to) {
      for (index_t n = first; n < end; n++)
        to[n] = from[n];
    }
    return;
  }
  const factor_t* own = factors + adapter * rank * size;
  const float* numbers = shrunk + token * shrunk_row;
  const bool wide = is_aligned<x_t, COLUMNS>(from) && is_aligned<x_t, COLUMNS>(to) &&
                    is_aligned<factor_t, COLUMNS>(own) && size % COLUMNS == 0;
  if (wide) {
    expand<COLUMNS>(from + first, numbers, own + first, to + first, rank, size);
    return;
  }
  for (index_t n = first; n < end; n++)
    expand<1>(from + n, numbers, own + n, to + n, rank, size);
}

#endif
