/* gemm.cuh - matrix products of 16-bit types on the tensor cores (mma.sync), with bias, activation
 * and residual.
 *
 *   c = activation(scale * (a @ b) + bias) + residual
 *
 * ACCRT_CUDA_GEMM(ENTRY, T, C, BIAS, ACTIVATION, ROWS, COLUMNS, B_IS_NK): tiles of ROWS x COLUMNS
 *   (128 x 128 or 64 x 64) by four warps, three stages of 64 along k brought by cp.async; shared
 *   memory gemm_shared_bytes.
 * ACCRT_CUDA_GEMM_SKINNY(ENTRY, T, C, BIAS, ACTIVATION, ROW_TILES, COLUMN_TILES): for few rows. A
 *   block of 8 warps makes 16 * ROW_TILES x 8 * COLUMN_TILES results, each warp a part of k
 *   straight from memory, and their sums meet in shared memory. b is [n, k].
 *
 * a is [m, k] with contiguous k; b is [n, k] with contiguous k (B_IS_NK 1) or [k, n] with
 * contiguous n (0). The grid's z is the batch, entry (z / batch1, z % batch1) of it. Any sizes and
 * strides of rows: what is not aligned to 16 bytes takes a slower path. Products accumulate in
 * float, in an order that depends on the shape alone; the error is at most about k * 2^-24 of sum
 * |a||b|, and the rounding of C. */
#ifndef ACCRT_CUDA_GEMM_CUH_
#define ACCRT_CUDA_GEMM_CUH_

#include "tensorcore.cuh"

namespace accrt_cuda {

template <class T, class C, class BIAS> struct gemm_arguments {
  const T* a;
  const T* b;
  const BIAS* bias;
  const C* residual;
  C* c;
  int64_t m, n, k, lda, ldb, ldc, ld_residual;
  float scale;
};

constexpr int GEMM_K = 64; /* elements of k in a stage: rows of 128 bytes */
constexpr int GEMM_STAGES = 3;

__host__ __device__ constexpr int gemm_shared_bytes(int rows, int columns) {
  return GEMM_STAGES * GEMM_K * 2 * (rows + columns);
}

constexpr int GEMM_THREADS = 128;

/** A thread's part of bringing tiles of rows x 64 elements that are contiguous along the 64: rows
 * thread / 8 + i * ROWS_EACH, the same 16 bytes of each. In shared memory chunks are swizzled
 * within their rows of 128 bytes, which makes every way of reading them free of conflicts. */
template <class T, int THREADS> struct gemm_loader {
  static constexpr int ROWS_EACH = THREADS / 8;
  const T* from;
  int64_t jump; /* elements between this thread's rows */

  __device__ __forceinline__ gemm_loader(const T* tile, int64_t step)
      : from(tile + (int)(threadIdx.x / 8) * step + threadIdx.x % 8 * 8), jump(step * ROWS_EACH) {}

  /** Bit i: whether this thread's i-th row lies below `rows`. */
  template <int ROWS> static __device__ __forceinline__ uint32_t rows_below(int64_t rows) {
    uint32_t bits = 0;
#pragma unroll
    for (int i = 0; i < ROWS / ROWS_EACH; i++)
      bits |= (uint32_t)((int)(threadIdx.x / 8) + i * ROWS_EACH < rows) << i;
    return bits;
  }

  /** Rows whose bit is not set become zeros. */
  template <int ROWS> __device__ __forceinline__ void bring(T* tile, uint32_t rows) const {
    const int row = threadIdx.x / 8, chunk = threadIdx.x % 8;
    T* const to = tile + row * 64 + (chunk ^ (row & 7)) * 8;
#pragma unroll
    for (int i = 0; i < ROWS / ROWS_EACH; i++)
      copy_async(to + i * ROWS_EACH * 64, from + i * jump, rows >> i & 1);
  }

  /** The same for memory that is not aligned, element by element. */
  template <int ROWS>
  static __device__ __forceinline__ void bring_narrow(T* to, const T* from, int64_t step,
                                                      int64_t rows, int64_t columns) {
#pragma unroll 1
    for (int at = threadIdx.x; at < ROWS * 64; at += THREADS) {
      const int row = at / 64, column = at % 64;
      const bool inside = row < rows && column < columns;
      to[row * 64 + ((column / 8) ^ (row & 7)) * 8 + column % 8] =
          inside ? from[row * step + column] : from_float<T>(0.0f);
    }
  }
};

/** Brings what ROWS rows of a matrix [count, k] have for steps of 64 along k, one after the
 * other. */
template <class T, int THREADS, int ROWS> struct gemm_rows {
  typedef gemm_loader<T, THREADS> loader;
  loader from;
  const T* rows;
  int64_t step, left, k; /* elements between rows, rows that there are, and their elements */
  uint32_t below;
  bool is_wide;

  __device__ __forceinline__ gemm_rows(const T* matrix, int64_t ld, int64_t row0, int64_t count,
                                       int64_t elements)
      : from(matrix + row0 * ld, ld), rows(matrix + row0 * ld), step(ld), left(count - row0),
        k(elements), below(loader::template rows_below<ROWS>(count - row0)),
        is_wide((ld | elements) % 8 == 0 && is_aligned(matrix, 16)) {}

  __device__ __forceinline__ void operator()(T* tile, int number) {
    const int64_t at = (int64_t)number * GEMM_K;
    if (is_wide)
      from.template bring<ROWS>(tile, (int)(threadIdx.x % 8 * 8) < k - at ? below : 0);
    else
      loader::template bring_narrow<ROWS>(tile, rows + at, step, left, k - at);
    from.from += GEMM_K;
  }
};

/** Whether results, bias and residual can be read and written eight at a time. */
template <class T, class C, class BIAS>
static __device__ __forceinline__ bool results_are_wide(const gemm_arguments<T, C, BIAS>& p) {
  return (p.ldc | p.ld_residual) % 8 == 0 && is_aligned(p.c, 8 * sizeof(C)) &&
         is_aligned(p.residual, 8 * sizeof(C)) && is_aligned(p.bias, 8 * sizeof(BIAS));
}

/** Eight results of a row, from sums to memory. LAST is one more activation, after the residual. */
template <int ACTIVATION, int LAST = NONE, class T, class C, class BIAS>
static __device__ __forceinline__ void put_eight(const gemm_arguments<T, C, BIAS>& p, int64_t m,
                                                 int64_t n, const float* sums, bool wide) {
  const C* const residual = p.residual ? p.residual + m * p.ld_residual + n : nullptr;
  C* const c = p.c + m * p.ldc + n;
  if (wide && n + 8 <= p.n) {
    vector<C, 8> out, r;
    vector<BIAS, 8> bias;
    if (p.bias)
      bias = load_vector<BIAS, 8>(p.bias + n);
    if (residual)
      r = load_vector<C, 8>(residual);
#pragma unroll
    for (int e = 0; e < 8; e++) {
      const float b = p.bias ? to_float(bias.item[e]) : 0.0f;
      const float x = activate_as<C>(fmaf(sums[e], p.scale, b), ACTIVATION);
      out.item[e] = from_float<C>(activate_as<C>(residual ? x + to_float(r.item[e]) : x, LAST));
    }
    store_vector(c, out);
    return;
  }
#pragma unroll 1
  for (int e = 0; e < 8 && n + e < p.n; e++) {
    const float b = p.bias ? to_float(p.bias[n + e]) : 0.0f;
    const float x = activate_as<C>(fmaf(sums[e], p.scale, b), ACTIVATION);
    c[e] = from_float<C>(activate_as<C>(residual ? x + to_float(residual[e]) : x, LAST));
  }
}

/** A tile of results from row0 and column0 on, of the steps [first, end) of 64 along k.
 * `bring_a(tile, step)` brings what a has for a step. */
template <int ACTIVATION, int LAST, int ROWS, int COLUMNS, bool B_IS_NK, class T, class C,
          class BIAS, class BRING>
static __device__ __forceinline__ void
gemm_steps(const gemm_arguments<T, C, BIAS>& p, unsigned char* shared, int64_t row0,
           int64_t column0, int first, int end, BRING& bring_a) {
  constexpr int WARPS = GEMM_THREADS / 32, WARP_ROWS = ROWS / 2, WARP_COLUMNS = COLUMNS / 2;
  constexpr int MT = WARP_ROWS / 16, NT = WARP_COLUMNS / 8;
  constexpr int A_ITEMS = ROWS * GEMM_K, B_ITEMS = COLUMNS * GEMM_K, PARTS = COLUMNS / 64;
  T* const a_tiles = reinterpret_cast<T*>(shared);
  T* const b_tiles = a_tiles + GEMM_STAGES * A_ITEMS;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int warp_row = warp % 2 * WARP_ROWS, warp_column = warp / 2 * WARP_COLUMNS;
  const bool b_wide = (p.ldb | (B_IS_NK ? p.k : p.n)) % 8 == 0 && is_aligned(p.b, 16);
  const T* const b = B_IS_NK ? p.b + column0 * p.ldb : p.b + column0;
  typedef gemm_loader<T, GEMM_THREADS> loader;
  loader from_b(B_IS_NK ? b + (int64_t)first * GEMM_K : b, p.ldb);
  const uint32_t b_rows = B_IS_NK ? loader::template rows_below<COLUMNS>(p.n - column0) : 0;
  const int chunk = threadIdx.x % 8 * 8;

  auto bring_b_nk = [&](T* tile, int64_t at) {
    if (b_wide)
      from_b.template bring<COLUMNS>(tile, chunk < p.k - at ? b_rows : 0);
    else
      loader::template bring_narrow<COLUMNS>(tile, b + at, p.ldb, p.n - column0, p.k - at);
    from_b.from += GEMM_K;
  };
  /* Tiles of 64 columns each, rows along k. */
  auto bring_b_kn = [&](T* tile, int64_t at) {
    const uint32_t rows = loader::template rows_below<GEMM_K>(p.k - at);
#pragma unroll 1
    for (int part = 0; part < PARTS; part++) {
      T* const to = tile + part * 64 * GEMM_K;
      const int64_t left = p.n - column0 - part * 64;
      if (b_wide)
        loader(b + at * p.ldb + part * 64, p.ldb)
            .template bring<GEMM_K>(to, chunk < left ? rows : 0);
      else
        loader::template bring_narrow<GEMM_K>(to, b + at * p.ldb + part * 64, p.ldb, p.k - at,
                                              left);
    }
  };
  auto bring = [&](int step) {
    const int stage = step % GEMM_STAGES;
    bring_a(a_tiles + stage * A_ITEMS, step);
    if (B_IS_NK)
      bring_b_nk(b_tiles + stage * B_ITEMS, (int64_t)step * GEMM_K);
    else
      bring_b_kn(b_tiles + stage * B_ITEMS, (int64_t)step * GEMM_K);
  };

  float acc[MT][NT][4];
#pragma unroll
  for (int i = 0; i < MT; i++) {
#pragma unroll
    for (int j = 0; j < NT; j++) {
#pragma unroll
      for (int e = 0; e < 4; e++)
        acc[i][j][e] = 0.0f;
    }
  }
#pragma unroll
  for (int stage = 0; stage < GEMM_STAGES - 1; stage++) {
    if (first + stage < end)
      bring(first + stage);
    copy_commit();
  }
  for (int step = first; step < end; step++) {
    copy_wait<GEMM_STAGES - 2>();
    __syncthreads();
    if (step + GEMM_STAGES - 1 < end)
      bring(step + GEMM_STAGES - 1);
    copy_commit();
    const T* const a_tile = a_tiles + step % GEMM_STAGES * A_ITEMS;
    const T* const b_tile = b_tiles + step % GEMM_STAGES * B_ITEMS;
#pragma unroll
    for (int k16 = 0; k16 < GEMM_K / 16; k16++) {
      uint32_t fa[MT][4], fb[NT][2];
#pragma unroll
      for (int i = 0; i < MT; i++) {
        const int row = warp_row + i * 16 + lane % 16, chunk = k16 * 2 + lane / 16;
        load_matrices(fa[i], a_tile + row * 64 + (chunk ^ (row & 7)) * 8);
      }
#pragma unroll
      for (int j = 0; j < NT; j += 2) {
        uint32_t four[4];
        if (B_IS_NK) {
          const int row = warp_column + j * 8 + lane % 8 + lane / 16 * 8;
          const int chunk = k16 * 2 + lane / 8 % 2;
          load_matrices(four, b_tile + row * 64 + (chunk ^ (row & 7)) * 8);
        } else {
          const int column = warp_column + j * 8 + lane / 16 * 8, row = k16 * 16 + lane % 16;
          load_matrices_transposed(four, b_tile + column / 64 * 64 * GEMM_K + row * 64 +
                                             ((column % 64 / 8) ^ (row & 7)) * 8);
        }
        fb[j][0] = four[0], fb[j][1] = four[1], fb[j + 1][0] = four[2], fb[j + 1][1] = four[3];
      }
#pragma unroll
      for (int i = 0; i < MT; i++) {
#pragma unroll
        for (int j = 0; j < NT; j++)
          multiply_add<T>(acc[i][j], fa[i], fb[j]);
      }
    }
  }
  copy_wait<0>();
  __syncthreads();

  /* A warp's results go through its own part of shared memory, so that rows are written 8 elements
   * at a time. */
  constexpr int STEP = WARP_COLUMNS + 8, HALF = WARP_ROWS / 2;
  static_assert(WARPS * HALF * STEP * 4 <= gemm_shared_bytes(ROWS, COLUMNS), "results fit");
  float* const staged = reinterpret_cast<float*>(shared) + warp * HALF * STEP;
  const bool c_wide = results_are_wide(p);
#pragma unroll
  for (int half = 0; half < 2; half++) {
    __syncwarp();
#pragma unroll
    for (int i = 0; i < MT / 2; i++) {
#pragma unroll
      for (int j = 0; j < NT; j++) {
#pragma unroll
        for (int e = 0; e < 2; e++) {
          const float* const from = acc[half * (MT / 2) + i][j] + e * 2;
          float* const to = staged + (i * 16 + e * 8 + lane / 4) * STEP + j * 8 + lane % 4 * 2;
          *reinterpret_cast<float2*>(to) = make_float2(from[0], from[1]);
        }
      }
    }
    __syncwarp();
    constexpr int ACROSS = WARP_COLUMNS / 8, PASS = 32 / ACROSS;
#pragma unroll 2
    for (int pass = 0; pass < HALF / PASS; pass++) {
      const int row = pass * PASS + lane / ACROSS, column = lane % ACROSS * 8;
      const int64_t m = row0 + warp_row + half * HALF + row, n = column0 + warp_column + column;
      if (m < p.m && n < p.n)
        put_eight<ACTIVATION, LAST>(p, m, n, staged + row * STEP + column, c_wide);
    }
  }
}

/** The tile of c that begins at row row0 and column column0. */
template <class T, class C, class BIAS, int ACTIVATION, int ROWS, int COLUMNS, bool B_IS_NK>
static __device__ __forceinline__ void gemm_tile(const gemm_arguments<T, C, BIAS>& p,
                                                 unsigned char* shared, int64_t row0,
                                                 int64_t column0) {
  gemm_rows<T, GEMM_THREADS, ROWS> bring_a(p.a, p.lda, row0, p.m, p.k);
  gemm_steps<ACTIVATION, NONE, ROWS, COLUMNS, B_IS_NK>(p, shared, row0, column0, 0,
                                                       (int)((p.k + GEMM_K - 1) / GEMM_K), bring_a);
}

template <class T, class C, class BIAS, int ACTIVATION, int ROWS, int COLUMNS, bool B_IS_NK>
static __device__ __forceinline__ void gemm(const gemm_arguments<T, C, BIAS>& p,
                                            unsigned char* shared) {
  gemm_tile<T, C, BIAS, ACTIVATION, ROWS, COLUMNS, B_IS_NK>(p, shared, (int64_t)blockIdx.y * ROWS,
                                                            (int64_t)blockIdx.x * COLUMNS);
}

/* ---- Few rows -------------------------------------------------------------------------------- */

constexpr int SKINNY_WARPS = 8;

/** 64 elements of k of one row, as a thread's parts of four mma steps: elements 8t .. 8t + 7 and 32
 * + 8t .. 32 + 8t + 7. The order of k within a step is the same for a and b, and else free. */
template <class T> struct skinny_part { uint32_t word[8]; };

template <class T>
static __device__ __forceinline__ void skinny_load(skinny_part<T>& part, const T* row, int64_t at,
                                                   int64_t k, bool valid, bool wide) {
#pragma unroll
  for (int half = 0; half < 2; half++) {
    const int64_t first = at + half * 32 + threadIdx.x % 4 * 8;
    uint32_t* const to = part.word + half * 4;
    if (wide) {
      uint4 v = make_uint4(0, 0, 0, 0);
      if (valid && first < k)
        v = *reinterpret_cast<const uint4*>(row + first);
      to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
    } else {
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const float low = valid && first + 2 * i < k ? to_float(row[first + 2 * i]) : 0.0f;
        const float high = valid && first + 2 * i + 1 < k ? to_float(row[first + 2 * i + 1]) : 0.0f;
        to[i] = pack_two<T>(low, high);
      }
    }
  }
}

/** The parts of b that a warp needs for its steps from `base` on. */
template <class T, int NT, int UNROLL, class P>
static __device__ __forceinline__ void skinny_load_b(skinny_part<T> (&b)[UNROLL][NT], const P& p,
                                                     int64_t column0, int64_t base, bool wide) {
#pragma unroll
  for (int u = 0; u < UNROLL; u++) {
    const int64_t at = base + u * SKINNY_WARPS * 64;
    if (at >= p.k)
      continue;
#pragma unroll
    for (int j = 0; j < NT; j++) {
      const int64_t n = column0 + j * 8 + threadIdx.x % 32 / 4;
      skinny_load(b[u][j], p.b + n * p.ldb, at, p.k, n < p.n, wide);
    }
  }
}

/** With `constant`, b and bias are not written by any kernel ahead: they are asked for before
 * waiting. */
template <class T, class C, class BIAS, int ACTIVATION, int MT, int NT>
static __device__ __forceinline__ void skinny(const gemm_arguments<T, C, BIAS>& p, bool constant,
                                              float (*sums)[MT * 16][NT * 8 + 1]) {
  constexpr int ROWS = MT * 16, COLUMNS = NT * 8, THREADS = SKINNY_WARPS * 32;
  constexpr int UNROLL = MT * NT == 1 ? 3 : MT * NT == 2 ? 2 : 1;
  constexpr int RESULTS = (ROWS * COLUMNS + THREADS - 1) / THREADS;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = lane / 4;
  const int64_t row0 = (int64_t)blockIdx.y * ROWS, column0 = (int64_t)blockIdx.x * COLUMNS;
  const bool a_wide = (p.lda | p.k) % 8 == 0 && is_aligned(p.a, 16);
  const bool b_wide = (p.ldb | p.k) % 8 == 0 && is_aligned(p.b, 16);
  float acc[MT][NT][4] = {}, bias[RESULTS] = {}, residual[RESULTS] = {};
  skinny_part<T> b[UNROLL][NT] = {};
  int64_t base = warp * 64;
  if (!constant)
    wait_for_previous();
  skinny_load_b<T, NT, UNROLL>(b, p, column0, base, b_wide);
#pragma unroll
  for (int i = 0; i < RESULTS; i++) {
    const int64_t n = column0 + (i * THREADS + threadIdx.x) % COLUMNS;
    if (p.bias && n < p.n)
      bias[i] = to_float(p.bias[n]);
  }
  if (constant)
    wait_for_previous();
  allow_next();
#pragma unroll
  for (int i = 0; i < RESULTS; i++) {
    const int at = i * THREADS + threadIdx.x;
    const int64_t m = row0 + at / COLUMNS, n = column0 + at % COLUMNS;
    if (p.residual && at < ROWS * COLUMNS && m < p.m && n < p.n)
      residual[i] = to_float(p.residual[m * p.ld_residual + n]);
  }
  while (base < p.k) {
    skinny_part<T> a[UNROLL][MT][2] = {};
#pragma unroll
    for (int u = 0; u < UNROLL; u++) {
      const int64_t at = base + u * SKINNY_WARPS * 64;
      if (at >= p.k)
        continue;
#pragma unroll
      for (int i = 0; i < MT; i++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
          const int64_t m = row0 + i * 16 + half * 8 + group;
          skinny_load(a[u][i][half], p.a + m * p.lda, at, p.k, m < p.m, a_wide);
        }
      }
    }
#pragma unroll
    for (int u = 0; u < UNROLL; u++) {
      if (base + u * SKINNY_WARPS * 64 >= p.k)
        continue;
#pragma unroll
      for (int s = 0; s < 4; s++) {
#pragma unroll
        for (int i = 0; i < MT; i++) {
          const uint32_t fa[4] = {a[u][i][0].word[2 * s], a[u][i][1].word[2 * s],
                                  a[u][i][0].word[2 * s + 1], a[u][i][1].word[2 * s + 1]};
#pragma unroll
          for (int j = 0; j < NT; j++) {
            const uint32_t fb[2] = {b[u][j].word[2 * s], b[u][j].word[2 * s + 1]};
            multiply_add<T>(acc[i][j], fa, fb);
          }
        }
      }
    }
    base += UNROLL * SKINNY_WARPS * 64;
    skinny_load_b<T, NT, UNROLL>(b, p, column0, base, b_wide);
  }
#pragma unroll
  for (int i = 0; i < MT; i++) {
#pragma unroll
    for (int j = 0; j < NT; j++) {
#pragma unroll
      for (int e = 0; e < 4; e++)
        sums[warp][i * 16 + e / 2 * 8 + group][j * 8 + lane % 4 * 2 + e % 2] = acc[i][j][e];
    }
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < RESULTS; i++) {
    const int at = i * THREADS + threadIdx.x, row = at / COLUMNS, column = at % COLUMNS;
    const int64_t m = row0 + row, n = column0 + column;
    if (at >= ROWS * COLUMNS || m >= p.m || n >= p.n)
      continue;
    float value = 0.0f;
#pragma unroll
    for (int w = 0; w < SKINNY_WARPS; w++)
      value += sums[w][row][column];
    value = activate_as<C>(fmaf(value, p.scale, bias[i]), ACTIVATION);
    p.c[m * p.ldc + n] = from_float<C>(p.residual ? value + residual[i] : value);
  }
}

} // namespace accrt_cuda

/* Both take the same parameters, those of the pack accrt.cublaslt's matmul, which takes their place
 * where it is; `batch0` and `form` (types, activation and layout, known here already) are for it.
 * Bit 34 of `form`: b and bias are constants. */
#define ACCRT_CUDA_GEMM_PARAMETERS(T, C, BIAS)                                                     \
  const T *a, const T *b, const BIAS *bias, const C *residual, C *c, int64_t m, int64_t n,         \
      int64_t k, int64_t lda, int64_t ldb, int64_t ldc, int64_t ld_residual, int64_t batch0,       \
      int64_t batch1, int64_t a0, int64_t a1, int64_t b0, int64_t b1, int64_t c0, int64_t c1,      \
      int64_t form, float scale
#define ACCRT_CUDA_GEMM_ARGUMENTS                                                                  \
  {                                                                                                \
    a + (blockIdx.z / batch1) * a0 + (blockIdx.z % batch1) * a1,                                   \
        b + (blockIdx.z / batch1) * b0 + (blockIdx.z % batch1) * b1, bias, residual,               \
        c + (blockIdx.z / batch1) * c0 + (blockIdx.z % batch1) * c1, m, n, k, lda, ldb, ldc,       \
        ld_residual, scale                                                                         \
  }

#define ACCRT_CUDA_GEMM(ENTRY, T, C, BIAS, ACTIVATION, ROWS, COLUMNS, B_IS_NK)                     \
  extern "C" __global__ void __launch_bounds__(accrt_cuda::GEMM_THREADS, 2)                        \
      ENTRY(ACCRT_CUDA_GEMM_PARAMETERS(T, C, BIAS)) {                                              \
    extern __shared__ __align__(128) unsigned char accrt_shared[];                                 \
    (void)batch0, (void)form;                                                                      \
    const accrt_cuda::gemm_arguments<T, C, BIAS> p = ACCRT_CUDA_GEMM_ARGUMENTS;                    \
    accrt_cuda::wait_for_previous();                                                               \
    accrt_cuda::allow_next();                                                                      \
    accrt_cuda::gemm<T, C, BIAS, accrt_cuda::ACTIVATION, ROWS, COLUMNS, B_IS_NK>(p, accrt_shared); \
  }

#define ACCRT_CUDA_GEMM_SKINNY(ENTRY, T, C, BIAS, ACTIVATION, ROW_TILES, COLUMN_TILES)             \
  extern "C" __global__ void __launch_bounds__(256, (ROW_TILES) * (COLUMN_TILES) <= 2 ? 2 : 1)     \
      ENTRY(ACCRT_CUDA_GEMM_PARAMETERS(T, C, BIAS)) {                                              \
    __shared__ float sums[accrt_cuda::SKINNY_WARPS][(ROW_TILES)*16][(COLUMN_TILES)*8 + 1];         \
    (void)batch0;                                                                                  \
    const accrt_cuda::gemm_arguments<T, C, BIAS> p = ACCRT_CUDA_GEMM_ARGUMENTS;                    \
    accrt_cuda::skinny<T, C, BIAS, accrt_cuda::ACTIVATION, ROW_TILES, COLUMN_TILES>(               \
        p, form >> 34 & 1, sums);                                                                  \
  }
#endif
