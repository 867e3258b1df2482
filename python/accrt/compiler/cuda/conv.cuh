/* conv.cuh - convolutions, channels last, as products whose left matrix is never made: row m is a
 * place of the result, its elements are what each place of the kernel sees, channels side by side.
 *
 *   out = last(activation(conv(x, w) + bias) + residual)
 *
 * ACCRT_CUDA_CONV(ENTRY, T, C, ACTIVATION, LAST, SIZE): 16-bit types on the tensor cores, tiles of
 *   SIZE x SIZE results as gemm.cuh makes them.
 * ACCRT_CUDA_CONV_PLAIN(ENTRY, X, W, C): any floats, calculated in f32, and groups of channels.
 * ACCRT_CUDA_CONV_JOIN(ENTRY, C): the sum of parts [parts, m, n] that either made of parts of k,
 *   and what follows the sum.
 *
 * w is [n, ldw] with k contiguous and zeros behind it. x of the grid walks tiles, the columns of
 * one row of tiles first; z parts of k, of steps_each steps (and groups, which lie side by side). x
 * may have any strides: where channels are not contiguous, or not aligned to 16 bytes, elements are
 * read one by one. What lies outside of the image counts as zero. The error is a product's. */
#ifndef ACCRT_CUDA_CONV_CUH_
#define ACCRT_CUDA_CONV_CUH_

#include "gemm.cuh"

namespace accrt_cuda {

/** Which places of the image each place of the result sees. */
struct conv_window {
  int height, width, channels, kernel_h, kernel_w, dilation_h, dilation_w;
  int64_t x_h, x_w, x_c;
};

/** What a row of the product sees: the first place of its window, which may lie outside, and how
 * far that is from x. */
struct conv_row {
  int top, left;
  int64_t from;
};

/** A place of the kernel and a channel: element `k` of a row. */
struct conv_place {
  int row, column, channel;

  __device__ __forceinline__ conv_place(const conv_window& q, int k)
      : row(k / q.channels / q.kernel_w), column(k / q.channels % q.kernel_w),
        channel(k % q.channels) {}

  /** Returns whether it is another place of the kernel. */
  __device__ __forceinline__ bool advance(const conv_window& q, int by) {
    channel += by;
    if (channel < q.channels)
      return false;
    do {
      channel -= q.channels;
      if (++column == q.kernel_w)
        column = 0, row++;
    } while (channel >= q.channels);
    return true;
  }
  __device__ __forceinline__ int64_t distance(const conv_window& q) const {
    return (int64_t)(row * q.dilation_h) * q.x_h + (int64_t)(column * q.dilation_w) * q.x_w +
           channel * q.x_c;
  }
  __device__ __forceinline__ bool sees(const conv_window& q, int top, int left) const {
    return row < q.kernel_h && (unsigned)(top + row * q.dilation_h) < (unsigned)q.height &&
           (unsigned)(left + column * q.dilation_w) < (unsigned)q.width;
  }
};

constexpr int CONV_OUTSIDE = -(1 << 30);

/** Fills what `count` rows from row0 on see. */
static __device__ __forceinline__ void conv_rows(conv_row* rows, int count, int64_t row0, int64_t m,
                                                 const conv_window& q, int64_t out_height,
                                                 int64_t out_width, int64_t x_n, int stride_h,
                                                 int stride_w, int above, int left) {
  for (int i = threadIdx.x; i < count; i += blockDim.x) {
    const uint64_t at = row0 + i, line = at / out_width;
    conv_row& r = rows[i];
    r.left = (int)(at % out_width) * stride_w - left;
    r.top = row0 + i < m ? (int)(line % out_height) * stride_h - above : CONV_OUTSIDE;
    r.from = (int64_t)(line / out_height) * x_n + r.top * q.x_h + r.left * q.x_w;
  }
  __syncthreads();
}

/** As gemm_loader, of rows that see a window: a thread has the same 16 bytes of each of its
 * rows. */
template <class T, int THREADS, int ROWS> struct conv_loader {
  static constexpr int ROWS_EACH = THREADS / 8, COUNT = ROWS / ROWS_EACH;
  const T* x;
  conv_place place;
  uint32_t seen;                            /* bit i: row i sees the place of the kernel */
  int top[COUNT], left[COUNT], from[COUNT]; /* from: in units of 8 elements */

  __device__ __forceinline__ conv_loader(const conv_window& q, const T* image, const conv_row* rows,
                                         int first)
      : x(image), place(q, first * GEMM_K + threadIdx.x % 8 * 8) {
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
      const conv_row& r = rows[threadIdx.x / 8 + i * ROWS_EACH];
      top[i] = r.top, left[i] = r.left, from[i] = (int)(r.from / 8);
    }
    look(q);
  }
  __device__ __forceinline__ void look(const conv_window& q) {
    seen = 0;
#pragma unroll
    for (int i = 0; i < COUNT; i++)
      seen |= (uint32_t)place.sees(q, top[i], left[i]) << i;
  }
  __device__ __forceinline__ void bring(const conv_window& q, T* tile) {
    const int row = threadIdx.x / 8, chunk = threadIdx.x % 8;
    T* const to = tile + row * 64 + (chunk ^ (row & 7)) * 8;
    const T* const at = x + place.distance(q);
#pragma unroll
    for (int i = 0; i < COUNT; i++)
      copy_async(to + i * ROWS_EACH * 64, at + (int64_t)from[i] * 8, seen >> i & 1);
    if (place.advance(q, GEMM_K))
      look(q);
  }

  /** The same element by element. */
  static __device__ __forceinline__ void bring_narrow(const conv_window& q, const T* image,
                                                      const conv_row* rows, int step, T* tile) {
    const int column = threadIdx.x % 64;
    const conv_place place(q, step * GEMM_K + column);
    const T* const at = image + place.distance(q);
#pragma unroll 4
    for (int row = threadIdx.x / 64; row < ROWS; row += THREADS / 64) {
      const conv_row r = rows[row];
      tile[row * 64 + ((column / 8) ^ (row & 7)) * 8 + column % 8] =
          place.sees(q, r.top, r.left) ? at[r.from] : from_float<T>(0.0f);
    }
  }
};

/** The last operation of a result of type C. */
template <class C> static __device__ __forceinline__ float finish_as(float x, int64_t kind) {
  if (is_f32<C>::value && kind == SILU)
    return x / (1.0f + expf(-x));
  if (is_f32<C>::value && kind == SIGMOID)
    return 1.0f / (1.0f + expf(-x));
  return activate_as<C>(x, (int)kind);
}

/* ---- Any floats ------------------------------------------------------------------------------ */

constexpr int CONV_PLAIN_TILE = 64, CONV_PLAIN_DEEP = 16, CONV_PLAIN_THREADS = 256;

struct alignas(16) conv_plain_tiles {
  float a[CONV_PLAIN_DEEP][CONV_PLAIN_TILE + 4], b[CONV_PLAIN_DEEP][CONV_PLAIN_TILE + 4];
  conv_row rows[CONV_PLAIN_TILE];
};

/** COUNT floats of channels from one on; `otherwise` where there are none. */
template <int COUNT>
static __device__ __forceinline__ void load_floats(float (&to)[COUNT], const float* from,
                                                   int64_t channel, float otherwise) {
  constexpr int STEP = COUNT % 4 == 0 ? 4 : 1;
#pragma unroll
  for (int i = 0; i < COUNT; i += STEP) {
    vector<float, STEP> v;
#pragma unroll
    for (int j = 0; j < STEP; j++)
      v.item[j] = otherwise;
    if (from && is_aligned(from + channel, 4 * STEP)) {
      v = load_vector<float, STEP>(from + channel + i);
    } else if (from) {
#pragma unroll
      for (int j = 0; j < STEP; j++)
        v.item[j] = from[channel + i + j];
    }
#pragma unroll
    for (int j = 0; j < STEP; j++)
      to[i + j] = v.item[j];
  }
}

template <class C> struct conv_results {
  const float* bias;
  const C* residual;
  C* out;
  int64_t m, n, ldc, ld_residual, activation, last;

  __device__ __forceinline__ void put(float sum, int64_t row, int64_t column) const {
    if (row >= m || column >= n)
      return;
    float x = finish_as<C>(bias ? sum + bias[column] : sum, activation);
    if (residual)
      x += to_float(residual[row * ld_residual + column]);
    out[row * ldc + column] = from_float<C>(finish_as<C>(x, last));
  }

  /** COUNT results side by side, all inside and aligned. */
  template <int COUNT>
  __device__ __forceinline__ void put_wide(const float* sums, int64_t row, int64_t column) const {
    vector<C, COUNT> made, add;
    float own[COUNT];
    load_floats(own, bias, column, 0.0f);
    if (residual)
      add = load_vector<C, COUNT>(residual + row * ld_residual + column);
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
      float x = finish_as<C>(sums[i] + own[i], activation);
      x = residual ? x + to_float(add.item[i]) : x;
      made.item[i] = from_float<C>(finish_as<C>(x, last));
    }
    store_vector<C, COUNT>(out + row * ldc + column, made);
  }
};

/** Steps [first, end) of 16 along k, of 64 x 64 results: 4 x 4 a thread. */
template <class X, class W, class C>
static __device__ __forceinline__ void
conv_plain(const conv_window& q, const X* x, const W* w, int64_t ldw, const conv_results<C>& out,
           conv_plain_tiles& tiles, int64_t row0, int64_t column0, int first, int end) {
  const int deep = threadIdx.x % 16, line = threadIdx.x / 16;
  const int across = deep * 4, down = line * 4;
  conv_place place(q, first * CONV_PLAIN_DEEP + deep);
  float sums[4][4] = {}, next_a[4], next_b[4];
  auto ask = [&](int step) {
    const int k = step * CONV_PLAIN_DEEP + deep;
    const X* const at = x + place.distance(q);
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const conv_row& r = tiles.rows[line + 16 * i];
      next_a[i] = place.sees(q, r.top, r.left) ? to_float(at[r.from]) : 0.0f;
      const int64_t column = column0 + line + 16 * i;
      next_b[i] = place.row < q.kernel_h && column < out.n ? to_float(w[column * ldw + k]) : 0.0f;
    }
    place.advance(q, CONV_PLAIN_DEEP);
  };
  if (first < end)
    ask(first);
#pragma unroll 1
  for (int step = first; step < end; step++) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
      tiles.a[deep][line + 16 * i] = next_a[i];
      tiles.b[deep][line + 16 * i] = next_b[i];
    }
    __syncthreads();
    if (step + 1 < end)
      ask(step + 1);
#pragma unroll
    for (int d = 0; d < CONV_PLAIN_DEEP; d++) {
      const vector<float, 4> a = load_vector<float, 4>(&tiles.a[d][down]),
                             b = load_vector<float, 4>(&tiles.b[d][across]);
#pragma unroll
      for (int i = 0; i < 4; i++) {
#pragma unroll
        for (int j = 0; j < 4; j++)
          sums[i][j] = fmaf(a.item[i], b.item[j], sums[i][j]);
      }
    }
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < 4; i++) {
#pragma unroll
    for (int j = 0; j < 4; j++)
      out.put(sums[i][j], row0 + down + i, column0 + across + j);
  }
}

/* ---- Parts of k ------------------------------------------------------------------------------ */

/** COUNT results side by side: their parts are added in order. */
template <int COUNT, class C>
static __device__ __forceinline__ void conv_join(const conv_results<C>& out, const float* parts,
                                                 int64_t count) {
  const int64_t at = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * COUNT;
  if (at >= out.m * out.n)
    return;
  vector<float, COUNT> sum = load_vector<float, COUNT>(parts + at);
#pragma unroll 4
  for (int64_t part = 1; part < count; part++) {
    const vector<float, COUNT> more = load_vector<float, COUNT>(parts + part * out.m * out.n + at);
#pragma unroll
    for (int i = 0; i < COUNT; i++)
      sum.item[i] += more.item[i];
  }
  const int64_t row = at / out.n, column = at - row * out.n;
  if (COUNT == 1 || (out.ldc | out.ld_residual) % COUNT ||
      !is_aligned(out.out, COUNT * sizeof(C)) || !is_aligned(out.residual, COUNT * sizeof(C))) {
#pragma unroll
    for (int i = 0; i < COUNT; i++)
      out.put(sum.item[i], row, column + i);
    return;
  }
  out.template put_wide<COUNT>(sum.item, row, column);
}

} // namespace accrt_cuda

#define ACCRT_CUDA_CONV_PARAMETERS(X, W, C)                                                        \
  const X *x, const W *w, const float *bias, const C *residual, C *out, int64_t m, int64_t n,      \
      int64_t ldw, int64_t steps, int64_t steps_each, int64_t groups, int64_t height,              \
      int64_t width, int64_t channels, int64_t out_height, int64_t out_width, int64_t x_n,         \
      int64_t x_h, int64_t x_w, int64_t x_c, int64_t kernel_h, int64_t kernel_w, int64_t stride_h, \
      int64_t stride_w, int64_t dilation_h, int64_t dilation_w, int64_t above, int64_t left,       \
      int64_t ldc, int64_t ld_residual, int64_t activation, int64_t last
#define ACCRT_CUDA_CONV_WINDOW                                                                     \
  {                                                                                                \
    (int)height, (int)width, (int)channels, (int)kernel_h, (int)kernel_w, (int)dilation_h,         \
        (int)dilation_w, x_h, x_w, x_c                                                             \
  }

/* What all have in common: the tile of this block, DOWN x ACROSS results, and what its rows see. */
#define ACCRT_CUDA_CONV_TILE(DOWN, ACROSS, ROWS)                                                   \
  const int64_t tiles_across = (n + (ACROSS)-1) / (ACROSS);                                        \
  const int64_t row0 = blockIdx.x / tiles_across * (DOWN),                                         \
                column0 = blockIdx.x % tiles_across * (ACROSS);                                    \
  const int64_t part = blockIdx.z / groups;                                                        \
  const int first = (int)(part * steps_each);                                                      \
  const int end = (int)(first + steps_each < steps ? first + steps_each : steps);                  \
  const accrt_cuda::conv_window q = ACCRT_CUDA_CONV_WINDOW;                                        \
  accrt_cuda::conv_rows(ROWS, DOWN, row0, m, q, out_height, out_width, x_n, (int)stride_h,         \
                        (int)stride_w, (int)above, (int)left)

/* What kernels of 16-bit types begin with; what the rows see lies in SHARED, behind the tiles. */
#define ACCRT_CUDA_CONV_BEGIN(T, C, DOWN, ACROSS, SHARED)                                          \
  accrt_cuda::conv_row* const rows = reinterpret_cast<accrt_cuda::conv_row*>(SHARED);              \
  accrt_cuda::wait_for_previous();                                                                 \
  accrt_cuda::allow_next();                                                                        \
  (void)activation, (void)last;                                                                    \
  ACCRT_CUDA_CONV_TILE(DOWN, ACROSS, rows);                                                        \
  const accrt_cuda::gemm_arguments<T, C, float> p = {                                              \
      x, w, bias, residual, out + part * m * ldc, m, n, ldw, 0, ldw, ldc, ld_residual, 1.0f};      \
  const bool x_is_wide =                                                                           \
      ((channels | x_n | x_h | x_w) % 8 | (x_c - 1)) == 0 && accrt_cuda::is_aligned(x, 16)

/* TILE makes DOWN rows of results with THREADS threads, from ROW and COLUMN on. */
#define ACCRT_CUDA_CONV_BRING(T, DOWN, THREADS, P, SHARED, ROWS, ROW, COLUMN, TILE)                \
  typedef accrt_cuda::conv_loader<T, THREADS, DOWN> loader;                                        \
  if (x_is_wide) {                                                                                 \
    loader from_x(q, x, ROWS, first);                                                              \
    auto bring = [&](T* tile, int) { from_x.bring(q, tile); };                                     \
    TILE(P, SHARED, ROW, COLUMN, first, end, bring);                                               \
  } else {                                                                                         \
    auto bring = [&](T* tile, int step) { loader::bring_narrow(q, x, ROWS, step, tile); };         \
    TILE(P, SHARED, ROW, COLUMN, first, end, bring);                                               \
  }

#define ACCRT_CUDA_CONV(ENTRY, T, C, ACTIVATION, LAST, SIZE)                                       \
  extern "C" __global__ void __launch_bounds__(accrt_cuda::GEMM_THREADS, 2)                        \
      ENTRY(ACCRT_CUDA_CONV_PARAMETERS(T, T, C)) {                                                 \
    extern __shared__ __align__(128) unsigned char accrt_shared[];                                 \
    ACCRT_CUDA_CONV_BEGIN(T, C, SIZE, SIZE,                                                        \
                          accrt_shared + accrt_cuda::gemm_shared_bytes(SIZE, SIZE));               \
    ACCRT_CUDA_CONV_BRING(                                                                         \
        T, SIZE, accrt_cuda::GEMM_THREADS, p, accrt_shared, rows, row0, column0,                   \
        (accrt_cuda::gemm_steps<accrt_cuda::ACTIVATION, accrt_cuda::LAST, SIZE, SIZE, true>))      \
  }

/* The same with tiles of 128 x ACROSS, one after the other in tiles of 64 x 64: where
 * conv_warpgroup.cuh does not run. */
#define ACCRT_CUDA_CONV_WIDE(ENTRY, T, C, ACTIVATION, LAST, ACROSS)                                \
  extern "C" __global__ void __launch_bounds__(accrt_cuda::GEMM_THREADS, 2)                        \
      ENTRY(ACCRT_CUDA_CONV_PARAMETERS(T, T, C)) {                                                 \
    extern __shared__ __align__(128) unsigned char accrt_shared[];                                 \
    ACCRT_CUDA_CONV_BEGIN(T, C, 128, ACROSS,                                                       \
                          accrt_shared + accrt_cuda::gemm_shared_bytes(64, 64));                   \
    accrt_cuda::gemm_arguments<T, C, float> own = p;                                               \
    own.n = n < column0 + (ACROSS) ? n : column0 + (ACROSS);                                       \
    _Pragma("unroll 1") for (int at = 0; at < 2 * (((ACROSS) + 63) / 64); at++) {                  \
      const int down = at % 2 * 64, across = at / 2 * 64;                                          \
      __syncthreads();                                                                             \
      if (row0 + down < m && column0 + across < own.n) {                                           \
        ACCRT_CUDA_CONV_BRING(                                                                     \
            T, 64, accrt_cuda::GEMM_THREADS, own, accrt_shared, rows + down, row0 + down,          \
            column0 + across,                                                                      \
            (accrt_cuda::gemm_steps<accrt_cuda::ACTIVATION, accrt_cuda::LAST, 64, 64, true>))      \
      }                                                                                            \
    }                                                                                              \
  }

#define ACCRT_CUDA_CONV_PLAIN(ENTRY, X, W, C)                                                      \
  extern "C" __global__ void __launch_bounds__(accrt_cuda::CONV_PLAIN_THREADS)                     \
      ENTRY(ACCRT_CUDA_CONV_PARAMETERS(X, W, C)) {                                                 \
    __shared__ accrt_cuda::conv_plain_tiles tiles;                                                 \
    accrt_cuda::wait_for_previous();                                                               \
    accrt_cuda::allow_next();                                                                      \
    ACCRT_CUDA_CONV_TILE(accrt_cuda::CONV_PLAIN_TILE, accrt_cuda::CONV_PLAIN_TILE, tiles.rows);    \
    const int64_t group = blockIdx.z % groups, side = group * n;                                   \
    const accrt_cuda::conv_results<C> results = {bias ? bias + side : bias,                        \
                                                 residual ? residual + side : residual,            \
                                                 out + part * m * ldc + side,                      \
                                                 m,                                                \
                                                 n,                                                \
                                                 ldc,                                              \
                                                 ld_residual,                                      \
                                                 activation,                                       \
                                                 last};                                            \
    accrt_cuda::conv_plain(q, x + group * channels * x_c, w + side * ldw, ldw, results, tiles,     \
                           row0, column0, first, end);                                             \
  }

#define ACCRT_CUDA_CONV_JOIN(ENTRY, C)                                                             \
  extern "C" __global__ void __launch_bounds__(256) ENTRY(                                         \
      const float* parts, const float* bias, const C* residual, C* out, int64_t m, int64_t n,      \
      int64_t ldc, int64_t ld_residual, int64_t count, int64_t activation, int64_t last) {         \
    accrt_cuda::wait_for_previous();                                                               \
    accrt_cuda::allow_next();                                                                      \
    const accrt_cuda::conv_results<C> results = {bias, residual,    out,        m,   n,            \
                                                 ldc,  ld_residual, activation, last};             \
    if (n % 4 == 0)                                                                                \
      accrt_cuda::conv_join<4>(results, parts, count);                                             \
    else                                                                                           \
      accrt_cuda::conv_join<1>(results, parts, count);                                             \
  }
#endif
