/* image.cuh - operations on images [batch, height, width, channels] that make no product: windows,
 * and norms of groups of channels; each followed by activation, residual and a last activation.
 *
 * ACCRT_CUDA_WINDOW(ENTRY, X, C, KIND): the sum of a window with weights of each channel
 *   (DEPTHWISE; w is f32 [places of the kernel, channels]), the largest (LARGEST) or the mean
 *   (MEAN) of it. A thread makes 16 bytes of X side by side where channels are so aligned.
 * ACCRT_CUDA_GROUP_SUMS(ENTRY, X) and ACCRT_CUDA_GROUP_NORM(ENTRY, X, C): groups of channels to
 *   mean 0 and variance 1. The first makes mean and sum of squared deviations of each group over
 *   `rows_each` places (x of the grid; y the image), at most 64 such parts; the second joins them
 *   in a fixed order and walks the image once more, mostly from the cache. Deviations are taken
 *   from the part's own mean: nothing cancels. At most GROUP_MOST channels. */
#ifndef ACCRT_CUDA_IMAGE_CUH_
#define ACCRT_CUDA_IMAGE_CUH_

#include "conv.cuh"

namespace accrt_cuda {

enum window_kind { DEPTHWISE = 0, LARGEST = 1, MEAN = 2 };

constexpr int IMAGE_THREADS = 256;

template <int COUNT, class C>
static __device__ __forceinline__ bool image_is_wide(const conv_results<C>& out) {
  return (out.n | out.ldc | out.ld_residual) % COUNT == 0 &&
         is_aligned(out.out, COUNT * sizeof(C)) && is_aligned(out.residual, COUNT * sizeof(C));
}

/* ---- Windows --------------------------------------------------------------------------------- */

struct window_sizes {
  int64_t out_height, out_width, x_n;
  int stride_h, stride_w, above, left;
};

/** COUNT channels, from `channel` on, of PLACES places of the result side by side: each weight is
 * read once for all. */
template <int KIND, int COUNT, int PLACES, class X, class C>
static __device__ __forceinline__ void
window_places(const conv_window& q, const window_sizes& s, const X* x, const float* w,
              const conv_results<C>& out, uint64_t line, int64_t first, int64_t channel) {
  const int left = (int)first * s.stride_w - s.left;
  const int top = (int)(line % s.out_height) * s.stride_h - s.above;
  const X* const image = x + (int64_t)(line / s.out_height) * s.x_n + channel;
  float total[PLACES][COUNT];
#pragma unroll
  for (int p = 0; p < PLACES; p++) {
#pragma unroll
    for (int i = 0; i < COUNT; i++)
      total[p][i] = KIND == LARGEST ? -INFINITY : 0.0f;
  }
  for (int r = 0; r < q.kernel_h; r++) {
    const int y = top + r * q.dilation_h;
    if ((unsigned)y >= (unsigned)q.height)
      continue;
#pragma unroll 2
    for (int c = 0; c < q.kernel_w; c++) {
      float by[COUNT];
      if (KIND == DEPTHWISE)
        load_floats(by, w, (int64_t)(r * q.kernel_w + c) * out.n + channel, 0.0f);
      vector<X, COUNT> seen[PLACES];
      bool inside[PLACES];
#pragma unroll
      for (int p = 0; p < PLACES; p++) {
        const int at = left + p * s.stride_w + c * q.dilation_w;
        inside[p] = (unsigned)at < (unsigned)q.width;
        if (inside[p])
          seen[p] = load_vector<X, COUNT>(image + y * q.x_h + at * q.x_w);
      }
#pragma unroll
      for (int p = 0; p < PLACES; p++) {
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
          const float v = to_float(seen[p].item[i]);
          if (KIND == DEPTHWISE)
            total[p][i] = fmaf(inside[p] ? v : 0.0f, by[i], total[p][i]);
          else if (KIND == MEAN)
            total[p][i] += inside[p] ? v : 0.0f;
          else
            total[p][i] = inside[p] ? join_max::join(total[p][i], v) : total[p][i];
        }
      }
    }
  }
  const float share = 1.0f / (float)(q.kernel_h * q.kernel_w);
#pragma unroll
  for (int p = 0; p < PLACES; p++) {
#pragma unroll
    for (int i = 0; KIND == MEAN && i < COUNT; i++)
      total[p][i] *= share;
    if (first + p < s.out_width)
      out.template put_wide<COUNT>(total[p], (int64_t)line * s.out_width + first + p, channel);
  }
}

template <int KIND, int COUNT, class X, class C>
static __device__ __forceinline__ void window(const conv_window& q, const window_sizes& s,
                                              const X* x, const float* w,
                                              const conv_results<C>& out) {
  constexpr int PLACES = KIND == DEPTHWISE && COUNT > 1 ? 2 : 1;
  const uint64_t across = out.n / COUNT, runs = (s.out_width + PLACES - 1) / PLACES;
  const uint64_t lines = s.out_width > 0 ? out.m / s.out_width : 0;
  const uint64_t step = (uint64_t)gridDim.x * IMAGE_THREADS;
  for (uint64_t at = (uint64_t)blockIdx.x * IMAGE_THREADS + threadIdx.x; at < lines * runs * across;
       at += step)
    window_places<KIND, COUNT, PLACES>(q, s, x, w, out, at / across / runs,
                                       (int64_t)(at / across % runs) * PLACES,
                                       (int64_t)(at % across * COUNT));
}

/* ---- Norms of groups of channels ------------------------------------------------------------- */

constexpr int GROUP_MOST = 3072, GROUP_PARTS = 64;

/** The sums of each channel over `rows` places, by threads that each walk 16 bytes of every
 * `lines`-th row; then of each group, times `share`, into `to`. With `means` those of squared
 * deviations from them. */
template <int COUNT, bool SQUARES, class X>
static __device__ __forceinline__ void group_sum(const X* x, int64_t rows, int64_t x_w,
                                                 int channels, int each, float share,
                                                 const float* means, float* parts, float* to) {
  const int across = channels / COUNT, lines = across < IMAGE_THREADS ? IMAGE_THREADS / across : 1;
  const int line = across < IMAGE_THREADS ? threadIdx.x / across : 0;
  for (int at = across < IMAGE_THREADS ? threadIdx.x % across : threadIdx.x;
       at < across && line < lines; at += IMAGE_THREADS) {
    float sums[COUNT] = {}, mean[COUNT] = {};
#pragma unroll
    for (int i = 0; SQUARES && i < COUNT; i++)
      mean[i] = means[(at * COUNT + i) / each];
#pragma unroll 4
    for (int64_t row = line; row < rows; row += lines) {
      const vector<X, COUNT> v = load_vector<X, COUNT>(x + row * x_w + at * COUNT);
#pragma unroll
      for (int i = 0; i < COUNT; i++) {
        const float d = to_float(v.item[i]) - mean[i];
        sums[i] = SQUARES ? fmaf(d, d, sums[i]) : sums[i] + d;
      }
    }
#pragma unroll
    for (int i = 0; i < COUNT; i++)
      parts[line * channels + at * COUNT + i] = sums[i];
  }
  __syncthreads();
  /* Eight lanes a group. */
  const int lane = threadIdx.x % 8, groups = channels / each;
  for (int first = 0; first < groups; first += IMAGE_THREADS / 8) {
    const int group = first + threadIdx.x / 8;
    float sum = 0.0f;
    for (int l = 0; group < groups && l < lines; l++) {
#pragma unroll 4
      for (int i = lane; i < each; i += 8)
        sum += parts[l * channels + group * each + i];
    }
    sum = warp_join<join_sum, 8>(sum);
    if (lane == 0 && group < groups)
      to[group] = sum * share;
  }
  __syncthreads();
}

/** Mean and squared deviations of the groups of one image over one part of its places, into
 * out[(image * groups + group) * parts + part]. */
template <int COUNT, class X>
static __device__ __forceinline__ void group_sums(const X* x, float2* out, int64_t rows,
                                                  int64_t x_w, int channels, int groups,
                                                  float* parts, float* means, float* squares) {
  const int each = channels / groups;
  const float share = 1.0f / ((float)rows * (float)each);
  group_sum<COUNT, false>(x, rows, x_w, channels, each, share, means, parts, means);
  group_sum<COUNT, true>(x, rows, x_w, channels, each, 1.0f, means, parts, squares);
  for (int group = threadIdx.x; group < groups; group += IMAGE_THREADS)
    out[((int64_t)blockIdx.y * groups + group) * gridDim.x + blockIdx.x] =
        make_float2(means[group], squares[group]);
}

/** Mean and factor of the groups of an image, from their parts. */
static __device__ __forceinline__ void group_join(const float2* from, float2* to, int groups,
                                                  int parts, int64_t rows, int64_t rows_each,
                                                  int each, float epsilon) {
  constexpr int EACH = GROUP_PARTS / 8; /* eight lanes a group */
  const int lane = threadIdx.x % 8;
  const float all = (float)rows * (float)each;
  for (int first = 0; first < groups; first += IMAGE_THREADS / 8) {
    const int group = first + threadIdx.x / 8;
    float2 part[EACH];
    float count[EACH], sum = 0.0f, squares = 0.0f;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
      const int at = lane + i * 8;
      const bool inside = group < groups && at < parts;
      const int64_t left = rows - at * rows_each;
      count[i] = inside ? (float)(left < rows_each ? left : rows_each) * (float)each : 0.0f;
      part[i] = inside ? from[(int64_t)group * parts + at] : make_float2(0.0f, 0.0f);
    }
#pragma unroll
    for (int i = 0; i < EACH; i++)
      sum = fmaf(count[i], part[i].x, sum);
    const float mean = warp_join<join_sum, 8>(sum) / all;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
      const float d = part[i].x - mean;
      squares += fmaf(count[i] * d, d, part[i].y);
    }
    squares = warp_join<join_sum, 8>(squares);
    if (lane == 0 && group < groups)
      to[group] = make_float2(mean, 1.0f / sqrtf(squares / all + epsilon));
  }
  __syncthreads();
}

template <int COUNT, class X, class C>
static __device__ __forceinline__ void
group_apply(const X* x, const float2* groups, int each, const float* weight, const float* bias,
            int64_t x_w, int64_t row0, int64_t rows, const conv_results<C>& out) {
  const unsigned across = (unsigned)(out.n / COUNT);
  for (unsigned at = threadIdx.x; at < rows * across; at += IMAGE_THREADS) {
    const unsigned row = at / across;
    const int channel = (int)(at % across) * COUNT;
    const vector<X, COUNT> v = load_vector<X, COUNT>(x + row * x_w + channel);
    float made[COUNT], factor[COUNT], add[COUNT];
    load_floats(factor, weight, channel, 1.0f);
    load_floats(add, bias, channel, 0.0f);
    int group = channel / each, left = each - channel % each;
#pragma unroll
    for (int i = 0; i < COUNT; i++, left--) {
      if (left == 0)
        group++, left = each;
      const float2 own = groups[group];
      made[i] = fmaf(to_float(v.item[i]) - own.x, own.y * factor[i], add[i]);
    }
    out.template put_wide<COUNT>(made, row0 + row, channel);
  }
}

} // namespace accrt_cuda

#define ACCRT_CUDA_WINDOW(ENTRY, X, C, KIND)                                                       \
  extern "C" __global__ void __launch_bounds__(accrt_cuda::IMAGE_THREADS) ENTRY(                   \
      const X* x, const float* w, const float* bias, const C* residual, C* out, int64_t m,         \
      int64_t channels, int64_t height, int64_t width, int64_t out_height, int64_t out_width,      \
      int64_t x_n, int64_t x_h, int64_t x_w, int64_t kernel_h, int64_t kernel_w, int64_t stride_h, \
      int64_t stride_w, int64_t dilation_h, int64_t dilation_w, int64_t above, int64_t left,       \
      int64_t ldc, int64_t ld_residual, int64_t activation, int64_t last) {                        \
    constexpr int COUNT = 16 / sizeof(X);                                                          \
    accrt_cuda::wait_for_previous();                                                               \
    accrt_cuda::allow_next();                                                                      \
    const int64_t x_c = 1;                                                                         \
    const accrt_cuda::conv_window q = ACCRT_CUDA_CONV_WINDOW;                                      \
    const accrt_cuda::window_sizes s = {out_height,    out_width,  x_n,      (int)stride_h,        \
                                        (int)stride_w, (int)above, (int)left};                     \
    const accrt_cuda::conv_results<C> results = {bias, residual,    out,        m,   channels,     \
                                                 ldc,  ld_residual, activation, last};             \
    if ((x_n | x_h | x_w) % COUNT == 0 && accrt_cuda::is_aligned(x, 16) &&                         \
        accrt_cuda::image_is_wide<COUNT>(results))                                                 \
      accrt_cuda::window<accrt_cuda::KIND, COUNT>(q, s, x, w, results);                            \
    else                                                                                           \
      accrt_cuda::window<accrt_cuda::KIND, 1>(q, s, x, w, results);                                \
  }

#define ACCRT_CUDA_GROUP_SUMS(ENTRY, X)                                                            \
  extern "C" __global__ void __launch_bounds__(accrt_cuda::IMAGE_THREADS)                          \
      ENTRY(const X* x, float* out, int64_t batch, int64_t rows, int64_t rows_each,                \
            int64_t channels, int64_t groups, int64_t x_n, int64_t x_w, int64_t parts_count) {     \
    constexpr int COUNT = 16 / sizeof(X);                                                          \
    __shared__ float parts[accrt_cuda::GROUP_MOST], means[accrt_cuda::GROUP_MOST],                 \
        squares[accrt_cuda::GROUP_MOST];                                                           \
    accrt_cuda::wait_for_previous();                                                               \
    accrt_cuda::allow_next();                                                                      \
    (void)parts_count;                                                                             \
    if (blockIdx.y >= batch)                                                                       \
      return;                                                                                      \
    const int64_t row0 = blockIdx.x * rows_each, left = rows - row0;                               \
    const int64_t own = left < rows_each ? left : rows_each;                                       \
    const X* const from = x + blockIdx.y * x_n + row0 * x_w;                                       \
    float2* const to = reinterpret_cast<float2*>(out);                                             \
    if ((channels | x_n | x_w) % COUNT == 0 && accrt_cuda::is_aligned(x, 16))                      \
      accrt_cuda::group_sums<COUNT>(from, to, own, x_w, (int)channels, (int)groups, parts, means,  \
                                    squares);                                                      \
    else                                                                                           \
      accrt_cuda::group_sums<1>(from, to, own, x_w, (int)channels, (int)groups, parts, means,      \
                                squares);                                                          \
  }

#define ACCRT_CUDA_GROUP_NORM(ENTRY, X, C)                                                         \
  extern "C" __global__ void __launch_bounds__(accrt_cuda::IMAGE_THREADS) ENTRY(                   \
      const X* x, const float* sums, const float* weight, const float* bias, const C* residual,    \
      C* out, int64_t batch, int64_t rows, int64_t rows_each, int64_t rows_here, int64_t channels, \
      int64_t groups, int64_t x_n, int64_t x_w, int64_t ldc, int64_t ld_residual,                  \
      int64_t parts_count, int64_t activation, int64_t last, double epsilon) {                     \
    constexpr int COUNT = 16 / sizeof(X);                                                          \
    __shared__ float2 joined[accrt_cuda::GROUP_MOST];                                              \
    accrt_cuda::wait_for_previous();                                                               \
    accrt_cuda::allow_next();                                                                      \
    if (blockIdx.y >= batch)                                                                       \
      return;                                                                                      \
    const int each = (int)(channels / groups);                                                     \
    const int64_t row0 = blockIdx.x * rows_here, left = rows - row0;                               \
    const int64_t own = left < rows_here ? left : rows_here;                                       \
    accrt_cuda::group_join(                                                                        \
        reinterpret_cast<const float2*>(sums) + blockIdx.y * groups * parts_count, joined,         \
        (int)groups, (int)parts_count, rows, rows_each, each, (float)epsilon);                     \
    const accrt_cuda::conv_results<C> results = {                                                  \
        nullptr, residual, out, batch * rows, channels, ldc, ld_residual, activation, last};       \
    const X* const from = x + blockIdx.y * x_n + row0 * x_w;                                       \
    if ((x_n | x_w) % COUNT == 0 && accrt_cuda::is_aligned(x, 16) &&                               \
        accrt_cuda::image_is_wide<COUNT>(results))                                                 \
      accrt_cuda::group_apply<COUNT>(from, joined, each, weight, bias, x_w,                        \
                                     blockIdx.y * rows + row0, own, results);                      \
    else                                                                                           \
      accrt_cuda::group_apply<1>(from, joined, each, weight, bias, x_w, blockIdx.y * rows + row0,  \
                                 own, results);                                                    \
  }
#endif
