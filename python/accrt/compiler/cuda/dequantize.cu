// dequantize.cu - rows of a weight in any layout of the registry as floats: all of them, or those
// that an index picks (embeddings).
//
// Instantiated with LAYOUT (an id), S_TAG (type of scales), OUT_TAG, INDEX_TAG and ENTRY. A device
// cannot fail one dispatch: an index outside [0, n) gives zeros, a column of a group that is not
// there NaN. Blocks of 256 threads; x of the grid walks elements of the result. Built with
// -fmad=false, as the registry says the order of roundings.
#include "common.cuh"

#define INLINE DEVICE
#define SCALE_AT(p, i) LOAD(S_TAG)(((const TYPE(S_TAG)*)(p))[i])
#include "../kernels/layouts.h"

typedef TYPE(INDEX_TAG) position_t;
typedef TYPE(OUT_TAG) out_t;

extern "C" __global__ void __launch_bounds__(256)
    ENTRY(const uint8_t* data, const uint8_t* scales, const uint8_t* zeros,
          const uint8_t* group_index, const uint8_t* global_scale, const position_t* index,
          out_t* out, index_t n, index_t k, index_t group, index_t groups, index_t is_e5m2,
          index_t rows) {
  begin_kernel();
  const weight_t w = {data, scales, zeros, group_index, global_scale, n, k, group, groups, is_e5m2};
  const index_t step = (index_t)gridDim.x * 256, total = rows * k;
#pragma unroll 1
  for (index_t at = (index_t)blockIdx.x * 256 + threadIdx.x; at < total; at += step) {
    const index_t line = at / k, row = index ? (index_t)index[line] : line;
    const bool inside = index == nullptr || (row >= 0 && row < n);
    out[at] = STORE(OUT_TAG)(inside ? value_at(&w, row, at - line * k) : 0.0f);
  }
}
