// lora.cu - the halves of low-rank products, an adapter for each token, whose tokens stand in any
// order; -1 (and on a device any other index outside) is none.
//
// x of the grid is the adapter, the last one for tokens that have none; z is a piece of the tokens,
// or several that are gridDim.z pieces apart. A block finds the tokens of its adapter in a piece by
// itself, and takes several at once, so that factors are read once for them.
//
// SHRINK 1: out[t][r] = sum over k of x[t][k] * factors[index[t]][r][k], zeros where there is none.
// y of the grid walks rows by one for each warp of a block, which makes it for TOKENS tokens at a
// time; blocks have 256 threads.
// SHRINK 0: out[t][n] = y[t][n] + sum over r of shrunk[t][r] * factors[index[t]][r][n]; in place,
// tokens without an adapter are not touched. Blocks have 128 threads, a thread COLUMNS; y of the
// grid walks columns by a block's.
// Of several parts the second has its rows, or its columns, behind those of the first.
//
// Instantiated with SHRINK, X_TAG (x, or y and out), F_TAG (factors) and ENTRY; types of 16 bits
// have lora_tiles.cuh. Adds up in f32, in an order that no other token changes.
#include "common.cuh"

typedef TYPE(X_TAG) x_t;
typedef TYPE(F_TAG) factor_t;

#if SHRINK
#define TOKENS 4
#define THREADS 256
#define ROWS (THREADS / 32)
#else
#define TOKENS 8
#define THREADS 128
#endif
#define PIECE 64 // tokens; as lora.py has it

// Those of the tokens [first, last), at most PIECE, that have the block's adapter, in their order.
// Returns how many there are; the same for all threads.
DEVICE int collect(const int32_t* index, index_t step, index_t adapters, index_t first,
                   index_t last, int* list) {
  __shared__ int counts[THREADS / 32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int found = 0;
  for (index_t base = first; base < last; base += THREADS) {
    const index_t token = base + threadIdx.x;
    bool mine = false;
    if (token < last) {
      const index_t adapter = (index_t)index[token * step];
      const bool none = adapter < 0 || adapter >= adapters;
      mine = (none ? adapters : adapter) == (index_t)blockIdx.x;
    }
    const uint32_t votes = __ballot_sync(0xffffffffu, mine);
    __syncthreads(); // the counts of the round before, and the list, have been read
    if (lane == 0)
      counts[warp] = __popc(votes);
    __syncthreads();
    int before = found + __popc(votes & ((1u << lane) - 1));
    for (int i = 0; i < THREADS / 32; i++) {
      before += i < warp ? counts[i] : 0;
      found += counts[i];
    }
    if (mine)
      list[before] = (int)token;
  }
  __syncthreads();
  return found;
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

// Row `row` for the tokens of the list, TOKENS at a time, by a warp. from: the row of factors, NULL
// for none.
DEVICE void shrink_row(const x_t* x, index_t x_row, const int* list, int listed,
                       const factor_t* from, index_t size, float* out, index_t all, index_t row) {
  const int lane = threadIdx.x % 32;
  const bool wide =
      is_aligned<factor_t, 8>(from) && is_aligned<x_t, 8>(x) && size % 8 == 0 && x_row % 8 == 0;
  for (int first = 0; first < listed; first += TOKENS) {
    const int count = listed - first < TOKENS ? listed - first : TOKENS;
    float sums[TOKENS] = {};
    if (from != NULL && wide)
      dot<8>(x, x_row, list + first, count, from, size, lane, sums);
    else if (from != NULL)
      dot<1>(x, x_row, list + first, count, from, size, lane, sums);
#pragma unroll
    for (int t = 0; t < TOKENS; t++) {
#pragma unroll
      for (int half = 16; half > 0; half /= 2)
        sums[t] += __shfl_xor_sync(0xffffffffu, sums[t], half);
      if (lane == 0 && row < all && t < count)
        out[list[first + t] * all + row] = sums[t];
    }
  }
}

// The row of factors of the block's adapter that makes a row of the result, NULL for none.
DEVICE const factor_t* factors_of(index_t row, index_t parts, index_t rank, index_t adapters,
                                  index_t size, const factor_t* factors, const factor_t* factors1,
                                  const factor_t* factors2) {
  const index_t part = row / rank;
  const factor_t* own = part == 0 ? factors : part == 1 ? factors1 : factors2;
  const bool is = part < parts && (index_t)blockIdx.x < adapters;
  return is ? own + ((index_t)blockIdx.x * rank + row % rank) * size : NULL;
}

extern "C" __global__ void __launch_bounds__(THREADS)
    ENTRY(const x_t* x, const factor_t* factors, const factor_t* factors1, const factor_t* factors2,
          const int32_t* index, float* out, index_t tokens, index_t adapters, index_t rank,
          index_t parts, index_t size, index_t x_row, index_t index_step) {
  begin_kernel();
  __shared__ int list[PIECE];
  const index_t all = parts * rank, first_row = (index_t)blockIdx.y * ROWS;
  const index_t row = first_row + threadIdx.x / 32;
  const factor_t* const from =
      factors_of(row, parts, rank, adapters, size, factors, factors1, factors2);
  for (index_t first = blockIdx.z * PIECE; first < tokens; first += gridDim.z * PIECE) {
    const int count =
        collect(index, index_step, adapters, first, min_index(first + PIECE, tokens), list);
    shrink_row(x, x_row, list, count, from, size, out, all, row);
  }
}

#else

#define COLUMNS 2 // of a thread
#define RANKS 64  // of `shrunk`, at once

// Everything that a launch was given, and where parts begin.
struct expand_t {
  const x_t* y;
  const float* shrunk;
  const factor_t* factors[3];
  x_t* out;
  index_t rank, sizes[3], begins[3], all, y_row, out_row, shrunk_row, adapter;

  __device__ __forceinline__ int part_of(index_t column) const {
    return column < begins[1] ? 0 : column < begins[2] ? 1 : 2;
  }
  // The adapter's row `r` of a part at a column of all parts.
  __device__ __forceinline__ const factor_t* at(int part, index_t r, index_t column) const {
    const factor_t* own = part == 0 ? factors[0] : part == 1 ? factors[1] : factors[2];
    return own + (adapter * rank + r) * size(part) + (column - begin(part));
  }
  __device__ __forceinline__ index_t size(int part) const {
    return part == 0 ? sizes[0] : part == 1 ? sizes[1] : sizes[2];
  }
  __device__ __forceinline__ index_t begin(int part) const {
    return part == 0 ? 0 : part == 1 ? begins[1] : begins[2];
  }
};

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

// A thread's columns, for `count` tokens, at most TOKENS.
DEVICE void expand_columns(const expand_t& given, const int* list, int count, index_t first_column,
                           bool is_none) {
  __shared__ float numbers[3][TOKENS * RANKS];
  const index_t last_column = min_index(first_column + THREADS * COLUMNS, given.all) - 1;
  const index_t column = first_column + (index_t)threadIdx.x * COLUMNS;
  const int mine = column >= given.all ? 0 : (int)min_index(COLUMNS, given.all - column);
  float sums[TOKENS * COLUMNS] = {};
#pragma unroll
  for (int t = 0; t < TOKENS; t++) {
#pragma unroll
    for (int i = 0; i < COLUMNS; i++)
      if (t < count && i < mine)
        sums[t * COLUMNS + i] = LOAD(X_TAG)(given.y[list[t] * given.y_row + column + i]);
  }
  for (index_t base = 0; base < given.rank && !is_none; base += RANKS) {
    const int ranks = (int)min_index(RANKS, given.rank - base);
    __syncthreads(); // the numbers before have been used
    for (int k = given.part_of(first_column); k <= given.part_of(last_column); k++) {
      for (int at = threadIdx.x; at < TOKENS * RANKS; at += THREADS) {
        const int t = at / RANKS, r = at % RANKS;
        const float* row = given.shrunk + k * given.rank + base + r;
        numbers[k][at] = t < count && r < ranks ? row[list[t] * given.shrunk_row] : 0.0f;
      }
    }
    __syncthreads();
    if (mine == 0)
      continue;
    const int part = given.part_of(column);
    const factor_t* own = given.at(part, base, column);
    const index_t size = given.size(part);
    if (mine == COLUMNS && part == given.part_of(column + mine - 1) && size % COLUMNS == 0 &&
        is_aligned<factor_t, COLUMNS>(own)) {
      add_part<COLUMNS>(own, size, ranks, numbers[part], sums);
      continue;
    }
#pragma unroll
    for (int i = 0; i < COLUMNS; i++) {
      if (i >= mine)
        break;
      const int k = given.part_of(column + i);
      add_part<1>(given.at(k, base, column + i), given.size(k), ranks, numbers[k], sums + i);
    }
  }
#pragma unroll
  for (int t = 0; t < TOKENS; t++) {
#pragma unroll
    for (int i = 0; i < COLUMNS; i++)
      if (t < count && i < mine)
        given.out[list[t] * given.out_row + column + i] = STORE(X_TAG)(sums[t * COLUMNS + i]);
  }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    ENTRY(const x_t* y, const float* shrunk, const factor_t* factors, const factor_t* factors1,
          const factor_t* factors2, const int32_t* index, x_t* out, index_t tokens,
          index_t adapters, index_t rank, index_t size, index_t size1, index_t size2, index_t y_row,
          index_t out_row, index_t shrunk_row, index_t index_step) {
  begin_kernel();
  __shared__ int list[PIECE];
  const expand_t given = {y,
                          shrunk,
                          {factors, factors1, factors2},
                          out,
                          rank,
                          {size, size1, size2},
                          {0, size, size + size1},
                          size + size1 + size2,
                          y_row,
                          out_row,
                          shrunk_row,
                          (index_t)blockIdx.x};
  const index_t first_column = (index_t)blockIdx.y * THREADS * COLUMNS;
  const bool is_none = (index_t)blockIdx.x == adapters;
  if (is_none && y == out && y_row == out_row)
    return;
  for (index_t first = blockIdx.z * PIECE; first < tokens; first += gridDim.z * PIECE) {
    const int count =
        collect(index, index_step, adapters, first, min_index(first + PIECE, tokens), list);
    for (int at = 0; at < count; at += TOKENS)
      expand_columns(given, list + at, min(count - at, TOKENS), first_column, is_none);
  }
}

#endif
