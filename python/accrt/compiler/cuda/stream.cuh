/* stream.cuh - products of few rows with a weight [n, k] of 16 bits, as decoding makes them, with
 * the norm before them and the gate after them in the same kernel.
 *
 *   c = activation(norm(a) @ b^T + bias) + residual
 *   c = activation(norm(a) @ gate^T) * (norm(a) @ up^T)   (GATED: b [2 n, k] is gate, then up)
 *
 * ACCRT_CUDA_STREAM(ENTRY, T, C, BIAS, ACTIVATION, TILES, WARPS, GATED, NORM): a block of WARPS
 * warps makes 16 columns (8 where GATED) of 8 * TILES rows, and then others, as many as the grid
 * leaves it. Warps share k: each takes 64 elements, skips those of the others, and so on; their
 * sums meet in shared memory. Elements of the weight go from memory to registers as the tensor core
 * wants them, always RING steps ahead: the first ones before the kernel ahead has ended, where bit
 * 34 of `form` says that b, bias and the norm's weights are constants, and those of the next
 * columns while sums meet.
 *
 * ACCRT_CUDA_GATE(ENTRY, T, ACTIVATION): the gate alone, for more rows than that.
 *
 * All shared memory is dynamic: sums of two tiles of columns, and with NORM stream_row elements for
 * each of 8 * TILES rows, whose RMS norm each block makes for itself. It is rounded to T, as a norm
 * of its own would be. Any sizes and strides of rows: what is not aligned to 16 bytes takes a
 * slower path. Sums are in float, in an order that depends on k alone, so a row's result does not
 * depend on the others. */
#ifndef ACCRT_CUDA_STREAM_CUH_
#define ACCRT_CUDA_STREAM_CUH_

#include "tensorcore.cuh"

namespace accrt_cuda {

template <class T, class C, class BIAS> struct stream_arguments {
  const T* a;
  const T* b;
  const BIAS* bias;
  const C* residual;
  const float* norm; /* of NORM: [k] */
  C* c;
  int64_t m, n, k, lda, ldb, ldc, ld_residual;
  float epsilon;
};

/** Rows of the norm in shared memory lie so far apart (elements) that reading them makes no
 * conflicts. */
static __host__ __device__ constexpr int stream_row(int k) {
  return (k + 63) / 64 * 64 + 8;
}

/** Eight elements of a row from `at` on; zeros outside. Weights are not kept in the first cache. */
template <class T, bool KEEP>
static __device__ __forceinline__ uint4 stream_load(const T* row, int at, int k, bool valid,
                                                    bool wide) {
  uint4 v = make_uint4(0, 0, 0, 0);
  if (!valid || at >= k)
    return v;
  if (wide && KEEP) {
    asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(row + at));
    return v;
  }
  if (wide) {
    asm volatile("ld.global.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(row + at));
    return v;
  }
  uint32_t word[4];
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const int first = at + 2 * i;
    const float low = first < k ? to_float(row[first]) : 0.0f;
    const float high = first + 1 < k ? to_float(row[first + 1]) : 0.0f;
    word[i] = pack_two<T>(low, high);
  }
  return make_uint4(word[0], word[1], word[2], word[3]);
}

/** Squares of chunks of eight of a row in shared memory: `own`, own + THREADS, and so on. */
template <int THREADS, class T>
static __device__ __forceinline__ float stream_squares(const T* normed, int own, int k) {
  float even = 0.0f, odd = 0.0f;
  for (int at = own * 8; at < k; at += THREADS * 8) {
    const uint4 v = *reinterpret_cast<const uint4*>(normed + at);
    const uint32_t word[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const float low = half_of_word<T>(word[i], 0), high = half_of_word<T>(word[i], 1);
      even = fmaf(low, low, even), odd = fmaf(high, high, odd);
    }
  }
  return even + odd;
}

/** A row of a, normed, to shared memory: by all threads (ALL), or by a warp, which makes the same
 * sums in the same order. What is behind k becomes zeros. `weight` are the norm's weights of the
 * thread's first eight elements, which may have come before the row did. */
template <int WARPS, bool ALL, class T, class C, class BIAS>
static __device__ __forceinline__ void
stream_norm_row(const stream_arguments<T, C, BIAS>& p, const T* row, T* normed,
                const float (&weight)[8], float* scratch, bool wide) {
  constexpr int THREADS = WARPS * 32, STEP = (ALL ? THREADS : 32) * 8;
  const int k = (int)p.k, padded = (k + 63) / 64 * 64, lane = threadIdx.x % 32;
  const int first = (ALL ? (int)threadIdx.x : lane) * 8;
#pragma unroll 8
  for (int at = first; at < k; at += STEP)
    *reinterpret_cast<uint4*>(normed + at) = stream_load<T, true>(row, at, k, true, wide);
  float squares = 0.0f;
  if (ALL) {
    squares =
        block_join<join_sum, THREADS>(stream_squares<THREADS>(normed, threadIdx.x, k), scratch);
  } else {
#pragma unroll 1
    for (int warp = 0; warp < WARPS; warp++) {
      const float sum = warp_join<join_sum>(stream_squares<THREADS>(normed, warp * 32 + lane, k));
      squares = lane == warp ? sum : squares;
    }
    squares = warp_join<join_sum>(squares);
  }
  const float factor = 1.0f / sqrtf(squares / (float)k + p.epsilon);
#pragma unroll 4
  for (int at = first; at < padded; at += STEP) {
    uint4* const place = reinterpret_cast<uint4*>(normed + at);
    uint32_t made[4] = {0, 0, 0, 0};
    if (at < k) {
      const uint32_t word[4] = {place->x, place->y, place->z, place->w};
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const int n = at + 2 * i;
        const float w0 = at == first ? weight[2 * i] : n < k ? p.norm[n] : 0.0f;
        const float w1 = at == first ? weight[2 * i + 1] : n + 1 < k ? p.norm[n + 1] : 0.0f;
        made[i] = pack_two<T>(half_of_word<T>(word[i], 0) * factor * w0,
                              half_of_word<T>(word[i], 1) * factor * w1);
      }
    }
    *place = make_uint4(made[0], made[1], made[2], made[3]);
  }
}

/** All rows of a block: one is made by all threads, of more each by a warp. Rows that are not there
 * become zeros. */
template <int ROWS, int WARPS, class T, class C, class BIAS>
static __device__ __forceinline__ void stream_norm(const stream_arguments<T, C, BIAS>& p, T* normed,
                                                   int64_t row0, const float (&weight)[8],
                                                   float* scratch, bool wide) {
  const int step = stream_row((int)p.k);
  const int rows = (int)(p.m - row0 < ROWS ? p.m - row0 : ROWS);
  for (int at = threadIdx.x * 8; at < (ROWS - rows) * step; at += WARPS * 32 * 8)
    *reinterpret_cast<uint4*>(normed + rows * step + at) = make_uint4(0, 0, 0, 0);
  if (rows == 1) {
    stream_norm_row<WARPS, true>(p, p.a + row0 * p.lda, normed, weight, scratch, wide);
    return;
  }
  float own[8];
#pragma unroll
  for (int i = 0; i < 8; i++) {
    const int at = threadIdx.x % 32 * 8 + i;
    own[i] = at < p.k ? p.norm[at] : 0.0f;
  }
#pragma unroll 1
  for (int r = threadIdx.x / 32; r < rows; r += WARPS)
    stream_norm_row<WARPS, false>(p, p.a + (row0 + r) * p.lda, normed + r * step, own, scratch,
                                  wide);
}

template <class T, class C, class BIAS, int ACTIVATION, int TILES, int WARPS, bool GATED, bool NORM>
static __device__ __forceinline__ void stream(const stream_arguments<T, C, BIAS>& p, bool constant,
                                              T* normed,
                                              float (*all_sums)[WARPS][16][8 * TILES + 1]) {
  constexpr int ROWS = 8 * TILES, COLUMNS = GATED ? 8 : 16, THREADS = WARPS * 32;
  constexpr int RING = TILES == 1 || NORM ? 8 : 4, HALF = NORM ? 1 : RING / 2;
  constexpr int RESULTS = (ROWS * COLUMNS + THREADS - 1) / THREADS;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int64_t row0 = (int64_t)blockIdx.y * ROWS;
  const bool a_wide = (p.lda | p.k) % 8 == 0 && is_aligned(p.a, 16);
  const bool b_wide = (p.ldb | p.k) % 8 == 0 && is_aligned(p.b, 16);
  /* Step i of this warp: 32 elements, of which a thread has eight; two steps are neighbours. */
  const auto place = [&](int i) { return i / 2 * WARPS * 64 + i % 2 * 32; };
  const int k = (int)p.k, own = warp * 64 + t * 8;
  const int steps = ((k + 64 * WARPS - 1) / (64 * WARPS) * 2 + RING - 1) / RING * RING;
  /* Where the weights that are asked for next stand. */
  int64_t column = (int64_t)blockIdx.x * COLUMNS + g;
  int at_step = 0;
  const T *low = nullptr, *high = nullptr;
  bool has_low = false, has_high = false;
  const auto find = [&]() {
    const int64_t second = GATED ? p.n + column : column + 8;
    has_low = column < p.n, has_high = GATED ? has_low : second < p.n;
    low = p.b + column * p.ldb + own, high = p.b + second * p.ldb + own;
  };
  uint4 weight[RING][2];
  const auto ask = [&](int u) {
    const int at = place(at_step + u), left = k - own;
    weight[u][0] = stream_load<T, false>(low, at, left, has_low, b_wide);
    weight[u][1] = stream_load<T, false>(high, at, left, has_high, b_wide);
  };
  const auto asked = [&]() {
    at_step += RING;
    if (at_step < steps)
      return;
    at_step = 0;
    column += (int64_t)gridDim.x * COLUMNS;
    find();
  };
  find();
  float own_norm[8] = {};
  const auto ask_norm = [&]() {
#pragma unroll
    for (int i = 0; NORM && i < 8; i++) {
      const int at = (int)threadIdx.x * 8 + i;
      if (at < p.k)
        own_norm[i] = p.norm[at];
    }
  };
  if (!constant)
    wait_for_previous();
#pragma unroll
  for (int u = 0; u < RING; u++)
    ask(u);
  asked();
  ask_norm();
  if (constant)
    wait_for_previous();
  allow_next();
  if (NORM) {
    stream_norm<ROWS, WARPS>(p, normed, row0, own_norm, &all_sums[1][0][0][0], a_wide);
    __syncthreads();
  }
  const T* const row_of_a = p.a + (row0 + g) * p.lda + own;
  int parity = 0;
#pragma unroll 1
  for (int64_t column0 = (int64_t)blockIdx.x * COLUMNS; column0 < p.n;
       column0 += (int64_t)gridDim.x * COLUMNS, parity ^= 1) {
    float bias[RESULTS] = {}, residual[RESULTS] = {};
#pragma unroll
    for (int i = 0; i < RESULTS; i++) {
      const int at = i * THREADS + threadIdx.x;
      const int64_t m = row0 + at / COLUMNS, n = column0 + at % COLUMNS;
      if (at >= ROWS * COLUMNS || m >= p.m || n >= p.n)
        continue;
      if (p.bias)
        bias[i] = to_float(p.bias[n]);
      if (p.residual)
        residual[i] = to_float(p.residual[m * p.ld_residual + n]);
    }
    float sum[TILES][4] = {};
#pragma unroll 1
    for (int base = 0; base < steps; base += RING) {
      uint4 value[HALF][TILES];
      const auto ask_rows = [&](int u) {
#pragma unroll
        for (int j = 0; j < TILES; j++)
          value[u % HALF][j] = stream_load<T, true>(row_of_a + j * 8 * p.lda, place(base + u),
                                                    k - own, row0 + 8 * j + g < p.m, a_wide);
      };
#pragma unroll
      for (int u = 0; !NORM && u < HALF; u++)
        ask_rows(u);
#pragma unroll
      for (int u = 0; u < RING; u++) {
        if (NORM) {
          const int at = place(base + u) + own;
#pragma unroll
          for (int j = 0; j < TILES; j++) {
            value[u % HALF][j] = make_uint4(0, 0, 0, 0);
            if (at < k)
              value[u % HALF][j] =
                  *reinterpret_cast<const uint4*>(normed + (8 * j + g) * stream_row(k) + at);
          }
        }
        const uint32_t first[4] = {weight[u][0].x, weight[u][1].x, weight[u][0].y, weight[u][1].y};
        const uint32_t second[4] = {weight[u][0].z, weight[u][1].z, weight[u][0].w, weight[u][1].w};
#pragma unroll
        for (int j = 0; j < TILES; j++) {
          const uint32_t one[2] = {value[u % HALF][j].x, value[u % HALF][j].y};
          const uint32_t two[2] = {value[u % HALF][j].z, value[u % HALF][j].w};
          multiply_add<T>(sum[j], first, one);
          multiply_add<T>(sum[j], second, two);
        }
        if (!NORM && u + HALF < RING)
          ask_rows(u + HALF);
        ask(u);
      }
      asked();
    }
    float(*const sums)[16][8 * TILES + 1] = all_sums[parity];
#pragma unroll
    for (int j = 0; j < TILES; j++) {
#pragma unroll
      for (int e = 0; e < 4; e++)
        sums[warp][g + e / 2 * 8][j * 8 + t * 2 + e % 2] = sum[j][e];
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < RESULTS; i++) {
      const int at = i * THREADS + threadIdx.x, row = at / COLUMNS, across = at % COLUMNS;
      const int64_t m = row0 + row, n = column0 + across;
      if (at >= ROWS * COLUMNS || m >= p.m || n >= p.n)
        continue;
      float made = 0.0f, up = 0.0f;
#pragma unroll
      for (int w = 0; w < WARPS; w++) {
        made += sums[w][across][row];
        if (GATED)
          up += sums[w][across % 8 + 8][row];
      }
      made = activate_as<C>(made + bias[i], ACTIVATION);
      made = GATED ? made * up : made;
      p.c[m * p.ldc + n] = from_float<C>(p.residual ? made + residual[i] : made);
    }
  }
}

/** The gate alone, for many rows: out = activation(first half of both's columns) * (second half). A
 * thread makes eight. */
template <class T, int ACTIVATION>
static __device__ __forceinline__ void gate(const T* both, T* out, int64_t m, int64_t n,
                                            int64_t out_row) {
  const int64_t pieces = (n + 7) / 8, index = (int64_t)blockIdx.x * 256 + threadIdx.x;
  const int64_t row = index / pieces, at = index % pieces * 8;
  if (row >= m)
    return;
  const T *const first = both + row * 2 * n + at, *const second = first + n;
  T* const to = out + row * out_row + at;
  if ((n | out_row) % 8 == 0 && is_aligned(both, 16) && is_aligned(out, 16)) {
    words<T, 8> a, b;
    a.load(first), b.load(second);
    vector<T, 8> made;
#pragma unroll
    for (int i = 0; i < 8; i++)
      made.item[i] = from_float<T>(activate_as<T>(a.get(i), ACTIVATION) * b.get(i));
    store_vector(to, made);
    return;
  }
#pragma unroll 1
  for (int i = 0; i < 8 && at + i < n; i++)
    to[i] = from_float<T>(activate_as<T>(to_float(first[i]), ACTIVATION) * to_float(second[i]));
}

} // namespace accrt_cuda

#define ACCRT_CUDA_GATE(ENTRY, T, ACTIVATION)                                                      \
  extern "C" __global__ void __launch_bounds__(256)                                                \
      ENTRY(const T* both, T* out, int64_t m, int64_t n, int64_t out_row) {                        \
    accrt_cuda::wait_for_previous();                                                               \
    accrt_cuda::allow_next();                                                                      \
    accrt_cuda::gate<T, accrt_cuda::ACTIVATION>(both, out, m, n, out_row);                         \
  }

#define ACCRT_CUDA_STREAM(ENTRY, T, C, BIAS, ACTIVATION, TILES, WARPS, GATED, NORM)                \
  extern "C" __global__ void __launch_bounds__((WARPS)*32, (WARPS) > 8 ? 1 : 2)                    \
      ENTRY(const T* a, const T* b, const BIAS* bias, const C* residual, const float* norm, C* c,  \
            int64_t m, int64_t n, int64_t k, int64_t lda, int64_t ldb, int64_t ldc,                \
            int64_t ld_residual, int64_t form, float epsilon) {                                    \
    extern __shared__ __align__(16) unsigned char accrt_shared[];                                  \
    typedef float sums_t[WARPS][16][8 * (TILES) + 1];                                              \
    accrt_cuda::stream<T, C, BIAS, accrt_cuda::ACTIVATION, TILES, WARPS, GATED, NORM>(             \
        {a, b, bias, residual, norm, c, m, n, k, lda, ldb, ldc, ld_residual, epsilon},             \
        form >> 34 & 1, reinterpret_cast<T*>(accrt_shared + 2 * sizeof(sums_t)),                   \
        reinterpret_cast<sums_t*>(accrt_shared));                                                  \
  }
#endif
