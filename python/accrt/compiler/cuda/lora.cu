// lora.cu - the halves of low-rank products, an adapter for each token, whose tokens stand in any
// order; -1 (and on a device any other index outside) is none.
//
// x of the grid is the adapter, the last one for tokens that have none; z is a piece of the tokens,
// or several that are gridDim.z pieces apart. A block finds the tokens of its adapter in a piece by
// itself, and takes several at once, so that factors are read once for them.
//
// SHRINK 1: out[t][r] = sum over k of x[t][k] * factors[index[t]][r][k], zeros where there is none.
// y of the grid walks rows by one for each warp of a block. With TILES warps share k among
// themselves, and blocks have 512 threads; else a warp makes one row for TOKENS tokens at a time,
// and they have 256.
// SHRINK 0: out[t][n] = y[t][n] + sum over r of shrunk[t][r] * factors[index[t]][r][n]; in place,
// tokens without an adapter are not touched. With TILES blocks have 256 threads, and a warp 64
// columns; else they have 128, and a thread COLUMNS. y of the grid walks columns by a block's.
// Of several parts the second has its rows, or its columns, behind those of the first.
//
// Instantiated with SHRINK, X_TAG (x, or y and out), F_TAG (factors), TILES (both have 16 bits; of
// SHRINK 1 both are the same type) and ENTRY. TILES is for what is aligned; the rest goes without.
// Adds up in f32, in an order that no other token changes.
#include "common.cuh"
#if TILES
#include "lora_tiles.cuh"
#endif

typedef TYPE(X_TAG) x_t;
typedef TYPE(F_TAG) factor_t;

#if SHRINK
#define TOKENS 4
#define THREADS (TILES ? 512 : 256)
#define ROWS (THREADS / 32)
#else
#define TOKENS 8
#define THREADS (TILES ? 256 : 128)
#endif
#define PIECE 64                           // tokens; as lora.py has it
#define LISTED (TILES ? 4 * PIECE : PIECE) // of a piece, at most

// Tokens of a piece: with TILES few tokens are one, whose adapters' factors are read once.
DEVICE index_t piece_of_tokens() {
  return TILES && gridDim.z == 1 ? LISTED : PIECE;
}

// Those of the tokens [first, last), at most LISTED, that have the block's adapter, in their order.
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

#if TILES
// The same for up to MS * 16 tokens by ROWS rows from `row` on: warps share k, and meet.
template <int MS>
DEVICE void shrink_tiled(const x_t* x, index_t x_row, const int* list, int listed,
                         const factor_t* const (&from)[2], index_t size, float* out, index_t all,
                         index_t row) {
  __shared__ float parts[THREADS / 32][16 * 16];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const x_t* own[2 * MS];
  float sums[MS][2][4] = {};
#pragma unroll
  for (int m = 0; m < 2 * MS; m++) {
    const int t = 8 * m + lane / 4;
    own[m] = x + list[t < listed ? t : listed - 1] * x_row;
  }
  shrink_tiles<MS>(own, from, size, warp, THREADS / 32, lane, sums);
#pragma unroll
  for (int m = 0; m < MS; m++) {
    __syncthreads(); // the sums before have been read
#pragma unroll
    for (int n = 0; n < 2; n++) {
#pragma unroll
      for (int i = 0; i < 4; i++)
        parts[warp][(lane / 4 + i / 2 * 8) * 16 + 8 * n + lane % 4 * 2 + i % 2] = sums[m][n][i];
    }
    __syncthreads();
    const int t = 16 * m + (int)threadIdx.x / 16;
    if (threadIdx.x >= 16 * 16 || t >= listed || row + threadIdx.x % 16 >= all)
      continue;
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < THREADS / 32; i++)
      sum += parts[i][threadIdx.x];
    out[list[t] * all + row + threadIdx.x % 16] = sum;
  }
}
#endif

// The row of factors of the block's adapter that makes a row of the result, NULL for none.
DEVICE const factor_t* factors_of(index_t row, index_t parts, index_t rank, index_t adapters,
                                  index_t size, const factor_t* factors, const factor_t* factors1,
                                  const factor_t* factors2) {
  const index_t part = row / rank;
  const factor_t* own = part == 0 ? factors : part == 1 ? factors1 : factors2;
  const bool is = part < parts && (index_t)blockIdx.x < adapters;
  return is ? own + ((index_t)blockIdx.x * rank + row % rank) * size : NULL;
}
#define FACTORS_OF(row) factors_of(row, parts, rank, adapters, size, factors, factors1, factors2)

extern "C" __global__ void __launch_bounds__(THREADS)
    ENTRY(const x_t* x, const factor_t* factors, const factor_t* factors1, const factor_t* factors2,
          const int32_t* index, float* out, index_t tokens, index_t adapters, index_t rank,
          index_t parts, index_t size, index_t x_row, index_t index_step) {
  begin_kernel();
  __shared__ int list[LISTED];
  const index_t all = parts * rank, first_row = (index_t)blockIdx.y * ROWS;
#if TILES
  const bool tiled = size % 8 == 0 && x_row % 8 == 0 && is_aligned<x_t, 8>(x) &&
                     is_aligned<factor_t, 8>(factors) && is_aligned<factor_t, 8>(factors1) &&
                     is_aligned<factor_t, 8>(factors2) && (index_t)blockIdx.x < adapters;
  const int g = threadIdx.x % 32 / 4;
  const factor_t* const pair[2] = {FACTORS_OF(first_row + g), FACTORS_OF(first_row + g + 8)};
#endif
  const index_t row = first_row + threadIdx.x / 32, piece = piece_of_tokens();
  const factor_t* const from = FACTORS_OF(row);
  for (index_t first = blockIdx.z * piece; first < tokens; first += gridDim.z * piece) {
    const int count =
        collect(index, index_step, adapters, first, min_index(first + piece, tokens), list);
#if TILES
    for (int at = 0; tiled && at < count; at += PIECE) {
      if (count - at <= 16)
        shrink_tiled<1>(x, x_row, list + at, count - at, pair, size, out, all, first_row);
      else
        shrink_tiled<PIECE / 16>(x, x_row, list + at, min(count - at, PIECE), pair, size, out, all,
                                 first_row);
    }
    if (tiled)
      continue;
#endif
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

#if TILES
typedef vector_t<x_t, 8> piece_t;

// 64 columns of the warp from `column` on, for up to 16 tokens.
DEVICE void expand_tiled(const expand_t& given, const int* list, int count, index_t column) {
  const int lane = threadIdx.x % 32, g = lane / 4;
  const int own[2] = {list[g < count ? g : count - 1], list[g + 8 < count ? g + 8 : count - 1]};
  const index_t columns = column + 16 * (lane % 4); // of y and out
  // Row g or g + 8, the first or the second eight columns: asked for first, and used last.
  piece_t y[4] = {};
#pragma unroll
  for (int i = 0; i < 4; i++) {
    if (columns + i % 2 * 8 < given.all)
      y[i] = *(const piece_t*)(given.y + own[i / 2] * given.y_row + columns + i % 2 * 8);
  }
  float sums[8][4] = {};
  const int last = given.part_of(min_index(column + 64, given.all) - 1);
  for (int part = given.part_of(column); part <= last; part++) {
    const bool is = column + 8 * g < given.all && given.part_of(column + 8 * g) == part;
    const float* shrunk = given.shrunk + part * given.rank;
    const float* const rows[2] = {shrunk + own[0] * given.shrunk_row,
                                  shrunk + own[1] * given.shrunk_row};
    expand_tiles<factor_t>(rows, is ? given.at(part, 0, column + 8 * g) : NULL, given.rank,
                           given.size(part), lane, sums);
  }
#pragma unroll
  for (int i = 0; i < 4; i++) {
#pragma unroll
    for (int j = 0; j < 8; j++)
      y[i].at[j] = STORE(X_TAG)(LOAD(X_TAG)(y[i].at[j]) + sums[j][i]);
    if (g + i / 2 * 8 < count && columns + i % 2 * 8 < given.all)
      *(piece_t*)(given.out + own[i / 2] * given.out_row + columns + i % 2 * 8) = y[i];
  }
}

// Whether rows and parts are whole pieces of eight numbers.
DEVICE bool in_pieces(const expand_t& given) {
  bool is = given.y_row % 8 == 0 && given.out_row % 8 == 0 && is_aligned<x_t, 8>(given.y) &&
            is_aligned<x_t, 8>(given.out);
#pragma unroll
  for (int k = 0; k < 3; k++)
    is = is && given.sizes[k] % 8 == 0 && is_aligned<factor_t, 8>(given.factors[k]);
  return is;
}
#endif

extern "C" __global__ void __launch_bounds__(THREADS, TILES ? 2 : 1)
    ENTRY(const x_t* y, const float* shrunk, const factor_t* factors, const factor_t* factors1,
          const factor_t* factors2, const int32_t* index, x_t* out, index_t tokens,
          index_t adapters, index_t rank, index_t size, index_t size1, index_t size2, index_t y_row,
          index_t out_row, index_t shrunk_row, index_t index_step) {
  begin_kernel();
  __shared__ int list[LISTED];
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
  const index_t first_column = (index_t)blockIdx.y * THREADS * COLUMNS; // 64 of each warp
  const bool is_none = (index_t)blockIdx.x == adapters;
  if (is_none && y == out && y_row == out_row)
    return;
#if TILES
  const bool tiled = in_pieces(given) && !is_none;
#endif
  const index_t piece = piece_of_tokens();
  for (index_t first = blockIdx.z * piece; first < tokens; first += gridDim.z * piece) {
    const int count =
        collect(index, index_step, adapters, first, min_index(first + piece, tokens), list);
#if TILES
    const index_t column = first_column + threadIdx.x / 32 * 64;
    for (int at = 0; tiled && column < given.all && at < count; at += 16)
      expand_tiled(given, list + at, min(count - at, 16), column);
    if (tiled)
      continue;
#endif
    for (int at = 0; at < count; at += TOKENS)
      expand_columns(given, list + at, min(count - at, TOKENS), first_column, is_none);
  }
}

#endif
