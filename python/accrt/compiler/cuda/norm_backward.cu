// norm_backward.cu - gradients of layer norm and RMS norm over the last axis, rows of any length.
//
// Instantiated with KIND (LAYER or RMS), X_TAG (grad, x, out), W_TAG (weight), THREADS (of a
// block), EACH (columns of a thread), ROWS_AHEAD and ENTRY. 16-bit types are computed in f32. A
// row has as many warps of a block, a power of two, as it has pieces of 32 * EACH elements, so a
// block goes through several short rows at once, and then through the next ones. grad and x are
// read once: the next ROWS_AHEAD rows are on their way to shared memory while one is calculated,
// and each thread reads there what it has asked for itself. Each thread adds up what its columns
// give for the weights, and each block writes one row of `weight_sums` (and `bias_sums`), in an
// order that depends on shapes alone; another kernel adds these up. Rows of more than THREADS *
// EACH elements have a block each, which reads them three times and adds to its sums in memory. As
// in norm.cuh, deviations are taken around the mean. `out` may be the memory of grad.
#include "common.cuh"

typedef TYPE(X_TAG) x_t;
typedef TYPE(W_TAG) w_t;
typedef WORK(X_TAG) work_t;

#define LAYER 0
#define RMS 1

#define WARPS (THREADS / 32)
// Elements of 16 bytes, and how many of these a thread has of a row.
#define SIDE (16 / (int)sizeof(x_t))
#define PARTS (EACH / SIDE)
#define WORDS (EACH * (int)sizeof(x_t) / 4)

struct norm_t {
  const x_t* grad;
  const x_t* x;
  const w_t* weight;
  x_t* out;
  work_t* weight_sums;
  work_t* bias_sums;
  index_t rows, n, grad_row, x_row, out_row;
  work_t epsilon;
};

// What a thread has of a row, as words of registers: compilers give each 16-bit element of a vector
// a register of its own.
struct piece_t {
  uint32_t word[WORDS];
};

DEVICE float element(const piece_t& p, int i, float) {
#define AS_f32(i) __uint_as_float(p.word[i])
#define AS_f64(i) 0.0f
#define AS_f16(i) f32_from_f16(f16_t{(uint16_t)(p.word[(i) / 2] >> (i) % 2 * 16)})
#define AS_bf16(i) __uint_as_float((i) % 2 ? p.word[(i) / 2] & 0xffff0000u : p.word[(i) / 2] << 16)
  return CONCAT(AS_, X_TAG)(i);
}
DEVICE double element(const piece_t& p, int i, double) {
  return __hiloint2double((int)p.word[2 * i + 1], (int)p.word[2 * i]);
}

// COUNT sums over the warps of a row, in all their threads. `scratch` may be used again after the
// next barrier.
template <int COUNT>
DEVICE void add_up(work_t (&sums)[COUNT], int row_warps, work_t (*scratch)[WARPS]) {
#pragma unroll
  for (int i = 0; i < COUNT; i++) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2)
      sums[i] += __shfl_xor_sync(0xffffffffu, sums[i], step);
  }
  if (row_warps == 1)
    return;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % WARPS;
  if (threadIdx.x % 32 == 0) {
#pragma unroll
    for (int i = 0; i < COUNT; i++)
      scratch[i][warp] = sums[i];
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < COUNT; i++) {
    sums[i] = lane < row_warps ? scratch[i][warp / row_warps * row_warps + lane] : (work_t)0;
#pragma unroll
    for (int step = WARPS / 2; step > 0; step /= 2)
      sums[i] += __shfl_xor_sync(0xffffffffu, sums[i], step);
  }
}

DEVICE void ask(uint4* to, const void* from) {
  asm volatile(
      "cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((uint32_t)__cvta_generic_to_shared(to)),
      "l"(from)
      : "memory");
}

// Where a thread is: its row's number in the block, its place among the row's threads, how many
// threads a row has and how many rows the block.
struct place_t {
  int group, at, lanes, groups;
};

DEVICE int column(const place_t& me, int part) {
  return (part * me.lanes + me.at) * SIDE;
}

// Asks for a row's vectors; past the last row and past the row's end for nothing.
DEVICE void ask_row(const norm_t& p, const place_t& me, index_t row, uint4* stage) {
#pragma unroll
  for (int c = 0; c < PARTS; c++) {
    if (row < p.rows && column(me, c) < p.n) {
      ask(stage + c * THREADS, p.grad + row * p.grad_row + column(me, c));
      ask(stage + (PARTS + c) * THREADS, p.x + row * p.x_row + column(me, c));
    }
  }
  asm volatile("cp.async.commit_group;" ::: "memory");
}

DEVICE void take_part(piece_t& piece, int part, uint4 v) {
  piece.word[part * 4] = v.x, piece.word[part * 4 + 1] = v.y;
  piece.word[part * 4 + 2] = v.z, piece.word[part * 4 + 3] = v.w;
}

// One part of a row that is not aligned, element by element.
DEVICE uint4 loose_part(const x_t* row, index_t at, index_t n) {
  union {
    uint4 words;
    x_t item[SIDE];
  } v = {};
#pragma unroll
  for (int e = 0; e < SIDE; e++) {
    if (at + e < n)
      v.item[e] = row[at + e];
  }
  return v.words;
}

template <bool WIDE>
DEVICE void store_part(x_t* row, index_t at, index_t n, const vector_t<x_t, SIDE>& made) {
  if (WIDE && at < n)
    *(vector_t<x_t, SIDE>*)(row + at) = made;
#pragma unroll
  for (int e = 0; e < SIDE && !WIDE; e++) {
    if (at + e < n)
      row[at + e] = made.at[e];
  }
}

// A row's factors, from its sums.
struct factors_t {
  work_t factor, along, shift;
};
DEVICE factors_t factors_of(const norm_t& p, work_t squares, work_t across, work_t inner) {
  const work_t count = (work_t)p.n, factor = (work_t)1 / sqrt(squares / count + p.epsilon);
  return {factor, across * factor / count, KIND == LAYER ? inner / count : (work_t)0};
}

// The row that the thread has pieces of; past the last row there is none, and its warps only meet
// the others at the barriers.
template <bool WIDE>
DEVICE void norm_row(const norm_t& p, const place_t& me, index_t row, const piece_t& grad,
                     const piece_t& x, const work_t (&weight)[EACH], work_t (&weights)[EACH],
                     work_t (&biases)[EACH], work_t (*scratch)[WARPS]) {
  const int warps = me.lanes / 32;
  work_t mean = 0, inner = 0, sums[2] = {0, 0};
#if KIND == LAYER
#pragma unroll
  for (int i = 0; i < EACH; i++) {
    sums[0] += element(x, i, work_t());
    sums[1] += element(grad, i, work_t()) * weight[i];
  }
  add_up(sums, warps, scratch);
  mean = sums[0] / (work_t)p.n, inner = sums[1];
  sums[0] = sums[1] = 0;
#endif
#pragma unroll
  for (int i = 0; i < EACH; i++) {
    const bool inside = column(me, i / SIDE) + (WIDE ? 0 : i % SIDE) < p.n;
    const work_t off = KIND == RMS || inside ? element(x, i, work_t()) - mean : (work_t)0;
    sums[0] += off * off, sums[1] += element(grad, i, work_t()) * weight[i] * off;
  }
  add_up(sums, warps, scratch + 2);
  const factors_t f = factors_of(p, sums[0], sums[1], inner);
  if (row >= p.rows)
    return;
#pragma unroll
  for (int c = 0; c < PARTS; c++) {
    vector_t<x_t, SIDE> made;
#pragma unroll
    for (int e = 0; e < SIDE; e++) {
      const int i = c * SIDE + e;
      const work_t g = element(grad, i, work_t());
      const work_t unit = (element(x, i, work_t()) - mean) * f.factor;
      weights[i] += g * unit, biases[i] += g;
      made.at[e] = STORE(X_TAG)((g * weight[i] - unit * f.along - f.shift) * f.factor);
    }
    store_part<WIDE>(p.out + row * p.out_row, column(me, c), p.n, made);
  }
}

// What the block's groups of warps have added up, added up and written as one row.
DEVICE void write_sums(const norm_t& p, const place_t& me, const work_t (&sums)[EACH], work_t* to,
                       work_t* shared) {
  const int width = me.lanes * EACH;
  __syncthreads();
#pragma unroll
  for (int i = 0; i < EACH; i++)
    shared[me.group * width + column(me, i / SIDE) + i % SIDE] = sums[i];
  __syncthreads();
  for (int at = threadIdx.x; at < p.n; at += THREADS) {
    work_t sum = 0;
    for (int group = 0; group < me.groups; group++)
      sum += shared[group * width + at];
    to[blockIdx.x * p.n + at] = sum;
  }
}

template <bool WIDE>
DEVICE void norm_rows(const norm_t& p, uint4* shared, work_t (*scratch)[WARPS]) {
  int lanes = 32;
  while (lanes < THREADS && lanes * EACH < p.n)
    lanes *= 2;
  const place_t me = {(int)threadIdx.x / lanes, (int)threadIdx.x % lanes, lanes, THREADS / lanes};
  const index_t step = (index_t)gridDim.x * me.groups;
  work_t weight[EACH], weights[EACH], biases[EACH];
  uint4* const mine = shared + threadIdx.x;
  index_t row = (index_t)blockIdx.x * me.groups + me.group;
  if (WIDE) {
#pragma unroll
    for (int ahead = 0; ahead < ROWS_AHEAD; ahead++)
      ask_row(p, me, row + ahead * step, mine + ahead * 2 * PARTS * THREADS);
  }
#pragma unroll
  for (int i = 0; i < EACH; i++) {
    const int at = column(me, i / SIDE) + i % SIDE;
    weight[i] = at < p.n ? (work_t)LOAD(W_TAG)(p.weight[at]) : (work_t)0;
    weights[i] = biases[i] = 0;
  }
  int stage = 0, parity = 0;
#pragma unroll 1
  for (index_t first = (index_t)blockIdx.x * me.groups; first < p.rows; first += step) {
    piece_t grad, x;
    if (WIDE)
      asm volatile("cp.async.wait_group %0;" ::"n"(ROWS_AHEAD - 1) : "memory");
    uint4* const from = mine + stage * 2 * PARTS * THREADS;
#pragma unroll
    for (int c = 0; c < PARTS; c++) {
      const uint4 none = {0, 0, 0, 0};
      const bool inside = row < p.rows && column(me, c) < p.n;
      if (WIDE) {
        take_part(grad, c, inside ? from[c * THREADS] : none);
        take_part(x, c, inside ? from[(PARTS + c) * THREADS] : none);
      } else {
        take_part(grad, c,
                  inside ? loose_part(p.grad + row * p.grad_row, column(me, c), p.n) : none);
        take_part(x, c, inside ? loose_part(p.x + row * p.x_row, column(me, c), p.n) : none);
      }
    }
    if (WIDE) {
      // what was read is in registers before its place is asked for again
#pragma unroll
      for (int i = 0; i < WORDS; i++)
        asm volatile("" : "+r"(grad.word[i]), "+r"(x.word[i]));
      ask_row(p, me, row + ROWS_AHEAD * step, from);
      stage = stage + 1 < ROWS_AHEAD ? stage + 1 : 0;
    }
    // With one barrier a row, a fast warp may be a row ahead of a slow one: scratch alternates.
    norm_row<WIDE>(p, me, row, grad, x, weight, weights, biases, scratch + parity);
    parity = 4 - parity;
    row += step;
  }
  asm volatile("cp.async.wait_all;" ::: "memory");
  write_sums(p, me, weights, p.weight_sums, (work_t*)shared);
#if KIND == LAYER
  write_sums(p, me, biases, p.bias_sums, (work_t*)shared);
#endif
}

// A long row: three times through it, N elements at once; sums are in memory, each thread has
// elements of its own there.
template <int N>
DEVICE void long_row(const norm_t& p, index_t row, bool first, work_t (*scratch)[WARPS]) {
  typedef vector_t<x_t, N> some_t;
  const x_t* const grad = p.grad + row * p.grad_row;
  const x_t* const x = p.x + row * p.x_row;
  work_t mean = 0, sums[3] = {0, 0, 0};
#if KIND == LAYER
  work_t total[1] = {0};
#pragma unroll 2
  for (index_t i = threadIdx.x * N; i < p.n; i += THREADS * N) {
    const some_t v = *(const some_t*)(x + i);
#pragma unroll
    for (int e = 0; e < N; e++)
      total[0] += LOAD(X_TAG)(v.at[e]);
  }
  add_up(total, WARPS, scratch);
  mean = total[0] / (work_t)p.n;
#endif
#pragma unroll 2
  for (index_t i = threadIdx.x * N; i < p.n; i += THREADS * N) {
    const some_t v = *(const some_t*)(x + i), g = *(const some_t*)(grad + i);
#pragma unroll
    for (int e = 0; e < N; e++) {
      const work_t off = LOAD(X_TAG)(v.at[e]) - mean;
      const work_t inner = LOAD(X_TAG)(g.at[e]) * (work_t)LOAD(W_TAG)(p.weight[i + e]);
      sums[0] += off * off, sums[1] += inner * off, sums[2] += inner;
    }
  }
  add_up(sums, WARPS, scratch + 1);
  const factors_t f = factors_of(p, sums[0], sums[1], sums[2]);
  work_t* const weights = p.weight_sums + blockIdx.x * p.n;
#if KIND == LAYER
  work_t* const biases = p.bias_sums + blockIdx.x * p.n;
#endif
  for (index_t i = threadIdx.x * N; i < p.n; i += THREADS * N) {
    const some_t v = *(const some_t*)(x + i), g = *(const some_t*)(grad + i);
    some_t made;
#pragma unroll
    for (int e = 0; e < N; e++) {
      const work_t unit = (LOAD(X_TAG)(v.at[e]) - mean) * f.factor, one = LOAD(X_TAG)(g.at[e]);
      const work_t inner = one * (work_t)LOAD(W_TAG)(p.weight[i + e]);
      weights[i + e] = (first ? (work_t)0 : weights[i + e]) + one * unit;
#if KIND == LAYER
      biases[i + e] = (first ? (work_t)0 : biases[i + e]) + one;
#endif
      made.at[e] = STORE(X_TAG)((inner - unit * f.along - f.shift) * f.factor);
    }
    *(some_t*)(p.out + row * p.out_row + i) = made;
  }
}

DEVICE void long_rows(const norm_t& p, bool wide, work_t (*scratch)[WARPS]) {
  int parity = 0;
  for (index_t row = blockIdx.x; row < p.rows; row += gridDim.x, parity = 4 - parity) {
    const bool first = row == blockIdx.x;
    if (wide)
      long_row<SIDE>(p, row, first, scratch + parity);
    else
      long_row<1>(p, row, first, scratch + parity);
  }
  if (blockIdx.x < p.rows)
    return;
  for (index_t i = threadIdx.x; i < p.n; i += THREADS) {
    p.weight_sums[blockIdx.x * p.n + i] = 0;
#if KIND == LAYER
    p.bias_sums[blockIdx.x * p.n + i] = 0;
#endif
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, 512 / THREADS)
    ENTRY(const x_t* grad, const x_t* x, const w_t* weight, x_t* out, work_t* weight_sums,
          work_t* bias_sums, index_t rows, index_t n, index_t grad_row, index_t x_row,
          index_t out_row, double epsilon) {
  extern __shared__ uint4 accrt_shared[];
  __shared__ work_t scratch[8][WARPS];
  begin_kernel();
  const norm_t p = {grad, x, weight,   out,   weight_sums, bias_sums,
                    rows, n, grad_row, x_row, out_row,     (work_t)epsilon};
  const uint64_t all = (uint64_t)grad | (uint64_t)x | (uint64_t)out;
  const bool wide = all % 16 == 0 && (n | grad_row | x_row | out_row) % SIDE == 0;
  if (n > THREADS * EACH)
    long_rows(p, wide, scratch);
  else if (wide)
    norm_rows<true>(p, accrt_shared, scratch);
  else
    norm_rows<false>(p, accrt_shared, scratch);
}
