/* grouped.cuh - rows ends[e - 1] up to ends[e] of x by matrix e, as a mixture of experts takes
 * them, for 16-bit types on the tensor cores.
 *
 * ACCRT_CUDA_GROUPED(ENTRY, T, INDEX, SIZE, B_IS_NK): tiles of SIZE x SIZE (64 or 128) of gemm.cuh.
 *   x of the grid walks tiles of rows, each of one matrix: rows / SIZE + matrices + 1 of them are
 *   enough; y tiles of columns. Rows behind the last end are those of a matrix more, whose products
 *   are zeros. A matrix without rows is not read. */
#ifndef ACCRT_CUDA_GROUPED_CUH_
#define ACCRT_CUDA_GROUPED_CUH_

#include "gemm.cuh"
#include "groups.cuh"

#define ACCRT_CUDA_GROUPED(ENTRY, T, INDEX, SIZE, B_IS_NK)                                         \
  extern "C" __global__ void __launch_bounds__(accrt_cuda::GEMM_THREADS, 2)                        \
      ENTRY(const T* x, const T* w, const INDEX* ends, T* out, int64_t rows, int64_t n, int64_t k, \
            int64_t matrices, int64_t x_row, int64_t out_row, int64_t ends_step, int64_t w_matrix, \
            int64_t w_row) {                                                                       \
    extern __shared__ __align__(128) unsigned char accrt_shared[];                                 \
    accrt_cuda::wait_for_previous();                                                               \
    accrt_cuda::allow_next();                                                                      \
    const group_t g = find_group(ends, ends_step, matrices, rows, blockIdx.x, SIZE);               \
    if (g.begin >= g.end)                                                                          \
      return;                                                                                      \
    const bool is_behind = g.matrix == matrices;                                                   \
    const accrt_cuda::gemm_arguments<T, T, T> p = {x + g.begin * x_row,                            \
                                                   w + (is_behind ? 0 : g.matrix * w_matrix),      \
                                                   nullptr,                                        \
                                                   nullptr,                                        \
                                                   out + g.begin * out_row,                        \
                                                   g.end - g.begin,                                \
                                                   n,                                              \
                                                   is_behind ? 0 : k,                              \
                                                   x_row,                                          \
                                                   w_row,                                          \
                                                   out_row,                                        \
                                                   0,                                              \
                                                   1.0f};                                          \
    accrt_cuda::gemm_tile<T, T, T, accrt_cuda::NONE, SIZE, SIZE, B_IS_NK>(                         \
        p, accrt_shared, 0, (int64_t)blockIdx.y * (SIZE));                                         \
  }
#endif
