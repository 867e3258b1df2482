// lora.cu - the halves of low-rank products, an adapter for each token, whose tokens stand in any
// order; -1 (and on a device any other index outside) is none.
//
// x of the grid is the adapter, the last one for tokens that have none; a block finds the tokens of
// its adapter by itself and takes some of them at once, so that factors are read once for several
// tokens. z shares them: a block goes on with tokens that are gridDim.z shares further.
//
// SHRINK 1: out[t][r] = sum over k of x[t][k] * factors[index[t]][r][k], zeros where there is none.
// A warp makes one row for TOKENS tokens; blocks of 256 threads; y of the grid walks rows by eight.
// SHRINK 0: out[t][n] = y[t][n] + sum over r of shrunk[t][r] * factors[index[t]][r][n]; in place,
// tokens without an adapter are not touched. Blocks of 128 threads; y of the grid walks columns by
// 256.
// Of several parts the second has its rows, or its columns, behind those of the first.
//
// Instantiated with SHRINK, X_TAG (x, or y and out), F_TAG (factors) and ENTRY. Adds up in f32, in
// an order that no other token changes.
#include "common.cuh"

typedef TYPE(X_TAG) x_t;
typedef TYPE(F_TAG) factor_t;

#if SHRINK
#define TOKENS 4
#define THREADS 256
#else
#define TOKENS 8
#define THREADS 128
#endif

// Tokens [first, first + TOKENS) of those that have the block's adapter, in the order that they
// stand in. Returns how many there are; the same for all threads.
DEVICE int collect(const int32_t* index, index_t step, index_t tokens, index_t adapters,
                   index_t first, int* list) {
  __shared__ int counts[THREADS / 32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  index_t found = 0;
  for (index_t base = 0; base < tokens && found < first + TOKENS; base += THREADS) {
    const index_t token = base + threadIdx.x;
    bool mine = false;
    if (token < tokens) {
      const index_t adapter = (index_t)index[token * step];
      const bool none = adapter < 0 || adapter >= adapters;
      mine = (none ? adapters : adapter) == (index_t)blockIdx.x;
    }
    const uint32_t votes = __ballot_sync(0xffffffffu, mine);
    __syncthreads(); // the counts of the round before have been read
    if (lane == 0)
      counts[warp] = __popc(votes);
    __syncthreads();
    index_t before = found + __popc(votes & ((1u << lane) - 1));
    for (int i = 0; i < THREADS / 32; i++) {
      before += i < warp ? counts[i] : 0;
      found += counts[i];
    }
    if (mine && before >= first && before < first + TOKENS)
      list[before - first] = (int)token;
  }
  __syncthreads();
  return found <= first ? 0 : (int)min_index(found - first, TOKENS);
}

#if SHRINK

template <int N>
DEVICE void dot(const x_t* x, index_t x_row, const int* list, int count, const factor_t* row,
                index_t size, int lane, float (&sums)[TOKENS]) {
  for (index_t at = (index_t)lane * N; at < size; at += 32 * N) {
    const vector_t<factor_t, N> f = *(const vector_t<factor_t, N>*)(row + at);
#pragma unroll
    for (int t = 0; t < TOKENS; t++) {
      if (t < count) {
        const vector_t<x_t, N> own = *(const vector_t<x_t, N>*)(x + list[t] * x_row + at);
#pragma unroll
        for (int i = 0; i < N; i++)
          sums[t] = fmaf(LOAD(X_TAG)(own.at[i]), LOAD(F_TAG)(f.at[i]), sums[t]);
      }
    }
  }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    ENTRY(const x_t* x, const factor_t* factors, const factor_t* factors1, const factor_t* factors2,
          const int32_t* index, float* out, index_t tokens, index_t adapters, index_t rank,
          index_t parts, index_t size, index_t x_row, index_t index_step) {
  begin_kernel();
  __shared__ int list[TOKENS];
  const index_t all = parts * rank, row = (index_t)blockIdx.y * 8 + threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  const index_t part = row / rank;
  const factor_t* own = part == 0 ? factors : part == 1 ? factors1 : factors2;
  const factor_t* from = own + ((index_t)blockIdx.x * rank + row % rank) * size;
  const bool is_none = (index_t)blockIdx.x == adapters;
  for (index_t first = (index_t)blockIdx.z * TOKENS;; first += (index_t)gridDim.z * TOKENS) {
    const int count = collect(index, index_step, tokens, adapters, first, list);
    if (count == 0)
      return;
    float sums[TOKENS] = {};
    if (row < all && !is_none) {
      bool wide =
          is_aligned<factor_t, 8>(from) && is_aligned<x_t, 8>(x) && size % 8 == 0 && x_row % 8 == 0;
      if (wide)
        dot<8>(x, x_row, list, count, from, size, lane, sums);
      else
        dot<1>(x, x_row, list, count, from, size, lane, sums);
    }
#pragma unroll
    for (int t = 0; t < TOKENS; t++) {
#pragma unroll
      for (int half = 16; half > 0; half /= 2)
        sums[t] += __shfl_xor_sync(0xffffffffu, sums[t], half);
      if (lane == 0 && row < all && t < count)
        out[list[t] * all + row] = sums[t];
    }
  }
}

#else

#define COLUMNS 2 // of a thread
#define RANKS 64  // of `shrunk`, at once

// Columns of a thread that one part has, or a single column of it.
template <int N>
DEVICE void add_part(const factor_t* factors, index_t size, int ranks, const float* numbers,
                     float* sums) {
  for (int r = 0; r < ranks; r++) {
    const vector_t<factor_t, N> f = *(const vector_t<factor_t, N>*)(factors + r * size);
#pragma unroll
    for (int t = 0; t < TOKENS; t++) {
#pragma unroll
      for (int i = 0; i < N; i++)
        sums[t * COLUMNS + i] =
            fmaf(numbers[t * RANKS + r], LOAD(F_TAG)(f.at[i]), sums[t * COLUMNS + i]);
    }
  }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    ENTRY(const x_t* y, const float* shrunk, const factor_t* factors, const factor_t* factors1,
          const factor_t* factors2, const int32_t* index, x_t* out, index_t tokens,
          index_t adapters, index_t rank, index_t size, index_t size1, index_t size2, index_t y_row,
          index_t out_row, index_t shrunk_row, index_t index_step) {
  begin_kernel();
  __shared__ int list[TOKENS];
  __shared__ float numbers[3][TOKENS * RANKS];
  const index_t all = size + size1 + size2, adapter = blockIdx.x;
  const index_t first_column = (index_t)blockIdx.y * THREADS * COLUMNS;
  const index_t last_column = min_index(first_column + THREADS * COLUMNS, all) - 1;
  const index_t column = first_column + (index_t)threadIdx.x * COLUMNS;
  const int mine = column >= all ? 0 : (int)min_index(COLUMNS, all - column);
  const bool is_none = adapter == adapters;
  if (is_none && y == out && y_row == out_row)
    return;
    // Which parts the block's columns and the thread's own are of.
#define PART_OF(n) ((n) < size ? 0 : (n) < size + size1 ? 1 : 2)
#define FACTORS(k) ((k) == 0 ? factors : (k) == 1 ? factors1 : factors2)
#define SIZE(k) ((k) == 0 ? size : (k) == 1 ? size1 : size2)
#define BEGIN(k) ((k) == 0 ? 0 : (k) == 1 ? size : size + size1)
  const int first_part = PART_OF(first_column), last_part = PART_OF(last_column);
  for (index_t first = (index_t)blockIdx.z * TOKENS;; first += (index_t)gridDim.z * TOKENS) {
    const int count = collect(index, index_step, tokens, adapters, first, list);
    if (count == 0)
      return;
    float sums[TOKENS * COLUMNS] = {};
#pragma unroll
    for (int t = 0; t < TOKENS; t++) {
#pragma unroll
      for (int i = 0; i < COLUMNS; i++)
        if (t < count && i < mine)
          sums[t * COLUMNS + i] = LOAD(X_TAG)(y[list[t] * y_row + column + i]);
    }
    for (index_t base = 0; base < rank && !is_none; base += RANKS) {
      const int ranks = (int)min_index(RANKS, rank - base);
      __syncthreads(); // the numbers before have been used
      for (int k = first_part; k <= last_part; k++) {
        for (int at = threadIdx.x; at < TOKENS * RANKS; at += THREADS) {
          const int t = at / RANKS, r = at % RANKS;
          const bool is = t < count && r < ranks;
          numbers[k][at] = is ? shrunk[list[t] * shrunk_row + k * rank + base + r] : 0.0f;
        }
      }
      __syncthreads();
      if (mine == 0)
        continue;
      const int part = PART_OF(column), other = PART_OF(column + mine - 1);
      const factor_t* own = FACTORS(part) + (adapter * rank + base) * SIZE(part) - BEGIN(part);
      const bool wide = mine == COLUMNS && part == other && SIZE(part) % COLUMNS == 0 &&
                        is_aligned<factor_t, COLUMNS>(own + column);
      if (wide) {
        add_part<COLUMNS>(own + column, SIZE(part), ranks, numbers[part], sums);
        continue;
      }
#pragma unroll
      for (int i = 0; i < COLUMNS; i++) {
        if (i >= mine)
          break;
        const int k = PART_OF(column + i);
        const factor_t* at =
            FACTORS(k) + (adapter * rank + base) * SIZE(k) + (column + i - BEGIN(k));
        add_part<1>(at, SIZE(k), ranks, numbers[k], sums + i);
      }
    }
#pragma unroll
    for (int t = 0; t < TOKENS; t++) {
#pragma unroll
      for (int i = 0; i < COLUMNS; i++)
        if (t < count && i < mine)
          out[list[t] * out_row + column + i] = STORE(X_TAG)(sums[t * COLUMNS + i]);
    }
  }
}

#endif
