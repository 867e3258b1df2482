/* warpgroup.cuh - products on Hopper's warpgroup instructions (wgmma, sm_90a alone): the tiles of
 * gemm.cuh, twice as fast.
 *
 * ACCRT_CUDA_GEMM_WARPGROUP(ENTRY, T, C, BIAS, ACTIVATION): 128 x 128 results by two warpgroups, b
 * [n, k]; parameters, grid and shared memory are those of ACCRT_CUDA_GEMM with tiles of 128. Stages
 * of 64 along k have rows of 128 bytes, swizzled as the instruction's 128-byte mode wants them,
 * brought by cp.async. */
#ifndef ACCRT_CUDA_WARPGROUP_CUH_
#define ACCRT_CUDA_WARPGROUP_CUH_

#include "gemm.cuh"

namespace accrt_cuda {

constexpr int WARPGROUP_THREADS = 256;

/** Where a tile of 8-row groups of 1024 bytes begins: address, stride of the groups, 128-byte
 * swizzle. */
static __device__ __forceinline__ uint64_t tile_descriptor(const void* tile) {
  return (uint64_t)(shared_address(tile) >> 4 & 0x3fff) | (uint64_t)1 << 16 |
         (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 62;
}

static __device__ __forceinline__ void warpgroup_begin() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
static __device__ __forceinline__ void warpgroup_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int PENDING> static __device__ __forceinline__ void warpgroup_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}
/** What was written to shared memory by ordinary stores and cp.async is seen by wgmma after the
 * next barrier. */
static __device__ __forceinline__ void publish_to_warpgroup() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

#define ACCRT_CUDA_WGMMA(TYPE)                                                                     \
  asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32." TYPE "." TYPE " {"                   \
               "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "            \
               "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "  \
               "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "  \
               "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"    \
               "}, %64, %65, 1, 1, 1, 0, 0;"                                                       \
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]), "+f"(c[4]), "+f"(c[5]),           \
                 "+f"(c[6]), "+f"(c[7]), "+f"(c[8]), "+f"(c[9]), "+f"(c[10]), "+f"(c[11]),         \
                 "+f"(c[12]), "+f"(c[13]), "+f"(c[14]), "+f"(c[15]), "+f"(c[16]), "+f"(c[17]),     \
                 "+f"(c[18]), "+f"(c[19]), "+f"(c[20]), "+f"(c[21]), "+f"(c[22]), "+f"(c[23]),     \
                 "+f"(c[24]), "+f"(c[25]), "+f"(c[26]), "+f"(c[27]), "+f"(c[28]), "+f"(c[29]),     \
                 "+f"(c[30]), "+f"(c[31]), "+f"(c[32]), "+f"(c[33]), "+f"(c[34]), "+f"(c[35]),     \
                 "+f"(c[36]), "+f"(c[37]), "+f"(c[38]), "+f"(c[39]), "+f"(c[40]), "+f"(c[41]),     \
                 "+f"(c[42]), "+f"(c[43]), "+f"(c[44]), "+f"(c[45]), "+f"(c[46]), "+f"(c[47]),     \
                 "+f"(c[48]), "+f"(c[49]), "+f"(c[50]), "+f"(c[51]), "+f"(c[52]), "+f"(c[53]),     \
                 "+f"(c[54]), "+f"(c[55]), "+f"(c[56]), "+f"(c[57]), "+f"(c[58]), "+f"(c[59]),     \
                 "+f"(c[60]), "+f"(c[61]), "+f"(c[62]), "+f"(c[63])                                \
               : "l"(a), "l"(b)                                                                    \
               : "memory")

/** c[64 x 128] += a[64 x 16] b[16 x 128]; rows of c are dealt to threads as those of mma.sync's
 * tiles. */
template <class T>
static __device__ __forceinline__ void warpgroup_multiply(float (&c)[64], uint64_t a, uint64_t b);
template <>
__device__ __forceinline__ void warpgroup_multiply<bf16>(float (&c)[64], uint64_t a, uint64_t b) {
  ACCRT_CUDA_WGMMA("bf16");
}
template <>
__device__ __forceinline__ void warpgroup_multiply<f16>(float (&c)[64], uint64_t a, uint64_t b) {
  ACCRT_CUDA_WGMMA("f16");
}

/** As gemm_steps, of 128 x 128 results. */
template <int ACTIVATION, int LAST, class T, class C, class BIAS, class BRING>
static __device__ __forceinline__ void
warpgroup_tile(const gemm_arguments<T, C, BIAS>& p, unsigned char* shared, int64_t row0,
               int64_t column0, int first, int end, BRING& bring_a) {
  constexpr int TILE = 128, ITEMS = TILE * GEMM_K;
  T* const a_tiles = reinterpret_cast<T*>(shared);
  T* const b_tiles = a_tiles + GEMM_STAGES * ITEMS;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = warp / 4;
  const bool b_wide = (p.ldb | p.k) % 8 == 0 && is_aligned(p.b, 16);
  const T* const b = p.b + column0 * p.ldb;
  const int chunk = threadIdx.x % 8 * 8;
  typedef gemm_loader<T, WARPGROUP_THREADS> loader;
  loader from_b(b + (int64_t)first * GEMM_K, p.ldb);
  const uint32_t b_rows = loader::template rows_below<TILE>(p.n - column0);

  auto bring = [&](int step) {
    const int64_t at = (int64_t)step * GEMM_K;
    T* const b_tile = b_tiles + step % GEMM_STAGES * ITEMS;
    bring_a(a_tiles + step % GEMM_STAGES * ITEMS, step);
    if (b_wide)
      from_b.template bring<TILE>(b_tile, chunk < p.k - at ? b_rows : 0);
    else
      loader::template bring_narrow<TILE>(b_tile, b + at, p.ldb, p.n - column0, p.k - at);
    from_b.from += GEMM_K;
    copy_commit();
  };

  float acc[64];
#pragma unroll
  for (int i = 0; i < 64; i++)
    acc[i] = 0.0f;
  if (first < end)
    bring(first);
  for (int step = first; step < end; step++) {
    copy_wait<0>();
    publish_to_warpgroup();
    __syncthreads();
    /* The stage that is filled now was multiplied two steps ago: each warpgroup has waited for that
     * before the barrier. */
    if (step + 1 < end)
      bring(step + 1);
    const uint64_t at_a =
        tile_descriptor(a_tiles + step % GEMM_STAGES * ITEMS + group * 64 * GEMM_K);
    const uint64_t at_b = tile_descriptor(b_tiles + step % GEMM_STAGES * ITEMS);
    warpgroup_begin();
#pragma unroll
    for (int k16 = 0; k16 < GEMM_K / 16; k16++)
      warpgroup_multiply<T>(acc, at_a + k16 * 2, at_b + k16 * 2); /* 32 bytes further on */
    warpgroup_commit();
    warpgroup_wait<1>();
  }
  warpgroup_wait<0>();
#pragma unroll
  for (int i = 0; i < 64; i++)
    asm volatile("" : "+f"(acc[i])::"memory");
  __syncthreads();

  constexpr int STEP = TILE + 8;
  static_assert(8 * 16 * STEP * 4 <= gemm_shared_bytes(TILE, TILE), "results fit");
  float* const staged = reinterpret_cast<float*>(shared) + warp * 16 * STEP;
#pragma unroll
  for (int j = 0; j < 16; j++) {
#pragma unroll
    for (int e = 0; e < 2; e++) {
      float* const to = staged + (e * 8 + lane / 4) * STEP + j * 8 + lane % 4 * 2;
      *reinterpret_cast<float2*>(to) = make_float2(acc[j * 4 + e * 2], acc[j * 4 + e * 2 + 1]);
    }
  }
  __syncwarp();
  const bool c_wide = results_are_wide(p);
#pragma unroll 2
  for (int pass = 0; pass < 8; pass++) {
    const int row = pass * 2 + lane / 16, column = lane % 16 * 8;
    const int64_t m = row0 + warp * 16 + row, n = column0 + column;
    if (m < p.m && n < p.n)
      put_eight<ACTIVATION, LAST>(p, m, n, staged + row * STEP + column, c_wide);
  }
}

template <class T, class C, class BIAS, int ACTIVATION>
static __device__ __forceinline__ void warpgroup_gemm(const gemm_arguments<T, C, BIAS>& p,
                                                      unsigned char* shared) {
  constexpr int TILE = 128;
  const int64_t row0 = (int64_t)blockIdx.y * TILE, column0 = (int64_t)blockIdx.x * TILE;
  gemm_rows<T, WARPGROUP_THREADS, TILE> bring_a(p.a, p.lda, row0, p.m, p.k);
  warpgroup_tile<ACTIVATION, NONE>(p, shared, row0, column0, 0, (int)((p.k + GEMM_K - 1) / GEMM_K),
                                   bring_a);
}

} // namespace accrt_cuda

#define ACCRT_CUDA_GEMM_WARPGROUP(ENTRY, T, C, BIAS, ACTIVATION)                                   \
  extern "C" __global__ void __launch_bounds__(accrt_cuda::WARPGROUP_THREADS, 2)                   \
      ENTRY(ACCRT_CUDA_GEMM_PARAMETERS(T, C, BIAS)) {                                              \
    extern __shared__ __align__(1024) unsigned char accrt_shared_tiles[];                          \
    (void)batch0, (void)form;                                                                      \
    const accrt_cuda::gemm_arguments<T, C, BIAS> p = ACCRT_CUDA_GEMM_ARGUMENTS;                    \
    accrt_cuda::wait_for_previous();                                                               \
    accrt_cuda::allow_next();                                                                      \
    accrt_cuda::warpgroup_gemm<T, C, BIAS, accrt_cuda::ACTIVATION>(p, accrt_shared_tiles);         \
  }
#endif
