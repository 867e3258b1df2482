/* conv_warpgroup.cuh - convolutions on Hopper's warpgroup instructions (sm_90a alone), with the
 * parameters and the grid of those of conv.cuh.
 *
 * ACCRT_CUDA_CONV_WARPGROUP(ENTRY, T, C, ACTIVATION, LAST): tiles of 128 x 128 results, as
 *   warpgroup.cuh makes them.
 * ACCRT_CUDA_CONV_WARPGROUP_WIDE(ENTRY, T, C, ACTIVATION, LAST): tiles of 128 x 160, CONV_STAGES
 *   stages of 64 along k. They suit widths of 320, 640 and 1280. */
#ifndef ACCRT_CUDA_CONV_WARPGROUP_CUH_
#define ACCRT_CUDA_CONV_WARPGROUP_CUH_

#include "conv.cuh"
#include "warpgroup.cuh"

namespace accrt_cuda {

constexpr int CONV_STAGES = 4, CONV_WIDE = 160;

#define ACCRT_CUDA_WGMMA_160(TYPE)                                                                 \
  asm volatile(                                                                                    \
      "wgmma.mma_async.sync.aligned.m64n160k16.f32." TYPE "." TYPE " {"                            \
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, "           \
      "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, "           \
      "%34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, "           \
      "%50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, %64, %65, "           \
      "%66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79 "                      \
      "}, %80, %81, 1, 1, 1, 0, 0;"                                                                \
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]), "+f"(c[4]), "+f"(c[5]), "+f"(c[6]),        \
        "+f"(c[7]), "+f"(c[8]), "+f"(c[9]), "+f"(c[10]), "+f"(c[11]), "+f"(c[12]), "+f"(c[13]),    \
        "+f"(c[14]), "+f"(c[15]), "+f"(c[16]), "+f"(c[17]), "+f"(c[18]), "+f"(c[19]), "+f"(c[20]), \
        "+f"(c[21]), "+f"(c[22]), "+f"(c[23]), "+f"(c[24]), "+f"(c[25]), "+f"(c[26]), "+f"(c[27]), \
        "+f"(c[28]), "+f"(c[29]), "+f"(c[30]), "+f"(c[31]), "+f"(c[32]), "+f"(c[33]), "+f"(c[34]), \
        "+f"(c[35]), "+f"(c[36]), "+f"(c[37]), "+f"(c[38]), "+f"(c[39]), "+f"(c[40]), "+f"(c[41]), \
        "+f"(c[42]), "+f"(c[43]), "+f"(c[44]), "+f"(c[45]), "+f"(c[46]), "+f"(c[47]), "+f"(c[48]), \
        "+f"(c[49]), "+f"(c[50]), "+f"(c[51]), "+f"(c[52]), "+f"(c[53]), "+f"(c[54]), "+f"(c[55]), \
        "+f"(c[56]), "+f"(c[57]), "+f"(c[58]), "+f"(c[59]), "+f"(c[60]), "+f"(c[61]), "+f"(c[62]), \
        "+f"(c[63]), "+f"(c[64]), "+f"(c[65]), "+f"(c[66]), "+f"(c[67]), "+f"(c[68]), "+f"(c[69]), \
        "+f"(c[70]), "+f"(c[71]), "+f"(c[72]), "+f"(c[73]), "+f"(c[74]), "+f"(c[75]), "+f"(c[76]), \
        "+f"(c[77]), "+f"(c[78]), "+f"(c[79])                                                      \
      : "l"(a), "l"(b)                                                                             \
      : "memory")

template <class T>
static __device__ __forceinline__ void warpgroup_multiply(float (&c)[80], uint64_t a, uint64_t b);
template <>
__device__ __forceinline__ void warpgroup_multiply<bf16>(float (&c)[80], uint64_t a, uint64_t b) {
  ACCRT_CUDA_WGMMA_160("bf16");
}
template <>
__device__ __forceinline__ void warpgroup_multiply<f16>(float (&c)[80], uint64_t a, uint64_t b) {
  ACCRT_CUDA_WGMMA_160("f16");
}

/** As gemm_steps, of 128 x 160 results, with b [n, k] that is aligned. */
template <int ACTIVATION, int LAST, class T, class C, class BIAS, class BRING>
static __device__ __forceinline__ void
conv_warpgroup(const gemm_arguments<T, C, BIAS>& p, unsigned char* shared, int64_t row0,
               int64_t column0, int first, int end, BRING& bring_a) {
  constexpr int ACROSS = CONV_WIDE;
  constexpr int A_ITEMS = 128 * GEMM_K, B_ITEMS = ACROSS * GEMM_K, STAGES = CONV_STAGES;
  T* const a_tiles = reinterpret_cast<T*>(shared);
  T* const b_tiles = a_tiles + STAGES * A_ITEMS;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = warp / 4;
  const int chunk = threadIdx.x % 8 * 8;
  typedef gemm_loader<T, WARPGROUP_THREADS> loader;
  loader from_b(p.b + column0 * p.ldb + (int64_t)first * GEMM_K, p.ldb);
  const uint32_t b_rows = loader::template rows_below<ACROSS>(p.n - column0);
  auto bring = [&](int step) {
    if (step < end) {
      bring_a(a_tiles + (step - first) % STAGES * A_ITEMS, step);
      from_b.template bring<ACROSS>(b_tiles + (step - first) % STAGES * B_ITEMS,
                                    chunk < p.k - (int64_t)step * GEMM_K ? b_rows : 0);
      from_b.from += GEMM_K;
    }
    copy_commit();
  };

  float acc[ACROSS / 2];
#pragma unroll
  for (int i = 0; i < ACROSS / 2; i++)
    acc[i] = 0.0f;
#pragma unroll
  for (int i = 0; i < STAGES - 2; i++)
    bring(first + i);
  for (int step = first; step < end; step++) {
    copy_wait<STAGES - 3>();
    publish_to_warpgroup();
    __syncthreads();
    /* The stage that is filled now was multiplied two steps ago: each warpgroup has waited for that
     * before the barrier. */
    bring(step + STAGES - 2);
    const int stage = (step - first) % STAGES;
    const uint64_t at_a = tile_descriptor(a_tiles + stage * A_ITEMS + group * 64 * GEMM_K);
    const uint64_t at_b = tile_descriptor(b_tiles + stage * B_ITEMS);
    warpgroup_begin();
#pragma unroll
    for (int k16 = 0; k16 < GEMM_K / 16; k16++)
      warpgroup_multiply<T>(acc, at_a + k16 * 2, at_b + k16 * 2); /* 32 bytes further on */
    warpgroup_commit();
    warpgroup_wait<1>();
  }
  warpgroup_wait<0>();
#pragma unroll
  for (int i = 0; i < ACROSS / 2; i++)
    asm volatile("" : "+f"(acc[i])::"memory");
  copy_wait<0>();
  __syncthreads();

  constexpr int STEP = ACROSS + 8, CHUNKS = ACROSS / 8;
  static_assert(8 * 16 * STEP * 4 <= STAGES * (A_ITEMS + B_ITEMS) * 2, "results fit");
  float* const staged = reinterpret_cast<float*>(shared) + warp * 16 * STEP;
#pragma unroll
  for (int j = 0; j < CHUNKS; j++) {
#pragma unroll
    for (int e = 0; e < 2; e++) {
      float* const to = staged + (e * 8 + lane / 4) * STEP + j * 8 + lane % 4 * 2;
      *reinterpret_cast<float2*>(to) = make_float2(acc[j * 4 + e * 2], acc[j * 4 + e * 2 + 1]);
    }
  }
  __syncwarp();
  const bool c_wide = results_are_wide(p);
#pragma unroll 2
  for (int at = lane; at < 16 * CHUNKS; at += 32) {
    const int row = at / CHUNKS, column = at % CHUNKS * 8;
    const int64_t m = row0 + warp * 16 + row, n = column0 + column;
    if (m < p.m && n < p.n)
      put_eight<ACTIVATION, LAST>(p, m, n, staged + row * STEP + column, c_wide);
  }
}

} // namespace accrt_cuda

#define ACCRT_CUDA_CONV_WARPGROUP(ENTRY, T, C, ACTIVATION, LAST)                                   \
  extern "C" __global__ void __launch_bounds__(accrt_cuda::WARPGROUP_THREADS, 2)                   \
      ENTRY(ACCRT_CUDA_CONV_PARAMETERS(T, T, C)) {                                                 \
    extern __shared__ __align__(1024) unsigned char accrt_shared_tiles[];                          \
    ACCRT_CUDA_CONV_BEGIN(T, C, 128, 128,                                                          \
                          accrt_shared_tiles + accrt_cuda::gemm_shared_bytes(128, 128));           \
    ACCRT_CUDA_CONV_BRING(T, 128, accrt_cuda::WARPGROUP_THREADS, p, accrt_shared_tiles, rows,      \
                          row0, column0,                                                           \
                          (accrt_cuda::warpgroup_tile<accrt_cuda::ACTIVATION, accrt_cuda::LAST>))  \
  }

#define ACCRT_CUDA_CONV_WARPGROUP_WIDE(ENTRY, T, C, ACTIVATION, LAST)                              \
  extern "C" __global__ void __launch_bounds__(accrt_cuda::WARPGROUP_THREADS, 1)                   \
      ENTRY(ACCRT_CUDA_CONV_PARAMETERS(T, T, C)) {                                                 \
    extern __shared__ __align__(1024) unsigned char accrt_shared_tiles[];                          \
    ACCRT_CUDA_CONV_BEGIN(T, C, 128, accrt_cuda::CONV_WIDE,                                        \
                          accrt_shared_tiles + accrt_cuda::CONV_STAGES * accrt_cuda::GEMM_K * 2 *  \
                                                   (128 + accrt_cuda::CONV_WIDE));                 \
    ACCRT_CUDA_CONV_BRING(T, 128, accrt_cuda::WARPGROUP_THREADS, p, accrt_shared_tiles, rows,      \
                          row0, column0,                                                           \
                          (accrt_cuda::conv_warpgroup<accrt_cuda::ACTIVATION, accrt_cuda::LAST>))  \
  }
#endif
