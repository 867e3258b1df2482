// gather.cu - rows picked by index along one axis: out[o][i][...] = x[o][index[i]][...]. Embeddings and index_select.
//
// Instantiated with INDEX_TAG and ENTRY; moves bytes, so that one kernel serves all types, 16 at a time where everything is
// aligned. A device cannot fail one dispatch: an index outside [0, size) reads nothing and gives zeros. Blocks of 256 threads; x of
// the grid covers the output in pieces of 16 bytes.
#include "common.cuh"

typedef TYPE(INDEX_TAG) position_t;

template <class T>
static __device__ void gather(const uint8_t* x, const position_t* index, uint8_t* out, index_t outer, index_t size,
                              index_t count, index_t row_bytes, index_t x_outer_bytes, index_t x_row_bytes,
                              index_t out_outer_bytes, index_t out_row_bytes, index_t index_step) {
  const index_t units = row_bytes / (index_t)sizeof(T), total = outer * count * units;
  for (index_t at = (index_t)blockIdx.x * 256 + threadIdx.x; at < total; at += (index_t)gridDim.x * 256) {
    index_t unit, row;
    if (total <= 0x7fffffff) {
      row = (uint32_t)at / (uint32_t)units;
      unit = (uint32_t)at % (uint32_t)units;
    } else {
      row = at / units;
      unit = at % units;
    }
    const index_t o = outer == 1 ? 0 : row / count, i = outer == 1 ? row : row % count;
    const index_t picked = (index_t)index[i * index_step];
    T value = {};
    if (picked >= 0 && picked < size)
      value = ((const T*)(x + o * x_outer_bytes + picked * x_row_bytes))[unit];
    ((T*)(out + o * out_outer_bytes + i * out_row_bytes))[unit] = value;
  }
}

extern "C" __global__ void __launch_bounds__(256)
    ENTRY(const uint8_t* x, const position_t* index, uint8_t* out, index_t outer, index_t size, index_t count,
          index_t row_bytes, index_t x_outer_bytes, index_t x_row_bytes, index_t out_outer_bytes, index_t out_row_bytes,
          index_t index_step) {
  begin_kernel();
  const uint64_t all = (uint64_t)x | (uint64_t)out | (uint64_t)row_bytes | (uint64_t)x_outer_bytes |
                       (uint64_t)x_row_bytes | (uint64_t)out_outer_bytes | (uint64_t)out_row_bytes;
#define ARGUMENTS                                                                                  \
  x, index, out, outer, size, count, row_bytes, x_outer_bytes, x_row_bytes, out_outer_bytes, out_row_bytes, index_step
  if (all % 16 == 0)
    gather<uint4>(ARGUMENTS);
  else if (all % 4 == 0)
    gather<uint32_t>(ARGUMENTS);
  else if (all % 2 == 0)
    gather<uint16_t>(ARGUMENTS);
  else
    gather<uint8_t>(ARGUMENTS);
}
