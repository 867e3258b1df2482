// gather.cu - rows picked by index along one axis: out[o][i][...] = x[o][index[i]][...]. Embeddings
// and index_select.
//
// Instantiated with INDEX_TAG and ENTRY; moves bytes, so that one kernel serves all types, 16 at a
// time where everything is aligned. A device cannot fail one dispatch: an index outside [0, size)
// reads nothing and gives zeros. Blocks of 256 threads; x of the grid covers the output in pieces
// of 64 bytes.
#include "common.cuh"

typedef TYPE(INDEX_TAG) position_t;

// A thread has N pieces of type T under way at once: an index and then its row are a long way. I:
// of places in the output.
template <class T, class I, int N>
static __device__ __forceinline__ void
gather(const uint8_t* x, const position_t* index, uint8_t* out, index_t outer, index_t size,
       index_t count, index_t row_bytes, index_t x_outer_bytes, index_t x_row_bytes,
       index_t out_outer_bytes, index_t out_row_bytes, index_t index_step) {
  const I units = (I)(row_bytes / (index_t)sizeof(T)), lines = (I)count;
  const index_t total = outer * count * (index_t)units, step = (index_t)gridDim.x * 256;
#pragma unroll 1
  for (index_t first = (index_t)blockIdx.x * 256 + threadIdx.x; first < total; first += step * N) {
    index_t place[N], from[N];
    bool inside[N];
    T value[N];
#pragma unroll
    for (int i = 0; i < N; i++) {
      const I at = (I)min_index(first + i * step, total - 1);
      const I row = at / units, unit = at - row * units, o = outer == 1 ? 0 : row / lines,
              line = row - o * lines;
      const index_t picked = (index_t)index[(index_t)line * index_step];
      inside[i] = picked >= 0 && picked < size;
      from[i] =
          (index_t)o * x_outer_bytes + picked * x_row_bytes + (index_t)unit * (index_t)sizeof(T);
      place[i] = (index_t)o * out_outer_bytes + (index_t)line * out_row_bytes +
                 (index_t)unit * (index_t)sizeof(T);
    }
#pragma unroll
    for (int i = 0; i < N; i++) {
      value[i] = T{};
      if (inside[i])
        value[i] = *(const T*)(x + from[i]);
    }
#pragma unroll
    for (int i = 0; i < N; i++)
      if (first + i * step < total)
        *(T*)(out + place[i]) = value[i];
  }
}

extern "C" __global__ void __launch_bounds__(256)
    ENTRY(const uint8_t* x, const position_t* index, uint8_t* out, index_t outer, index_t size,
          index_t count, index_t row_bytes, index_t x_outer_bytes, index_t x_row_bytes,
          index_t out_outer_bytes, index_t out_row_bytes, index_t index_step) {
  begin_kernel();
  // Steps of axes that have one place alone say nothing of alignment.
  const uint64_t outer_steps = outer > 1 ? (uint64_t)x_outer_bytes | (uint64_t)out_outer_bytes : 0;
  const uint64_t all = (uint64_t)x | (uint64_t)out | (uint64_t)row_bytes | outer_steps |
                       (size > 1 ? (uint64_t)x_row_bytes : 0) |
                       (count > 1 ? (uint64_t)out_row_bytes : 0);
#define ARGUMENTS                                                                                  \
  x, index, out, outer, size, count, row_bytes, x_outer_bytes, x_row_bytes, out_outer_bytes,       \
      out_row_bytes, index_step
  const bool narrow = outer * count * row_bytes <= 0x7fffffff;
  if (all % 16 == 0 && outer * count * (row_bytes / 16) <= 0x7fffffff)
    gather<uint4, uint32_t, 4>(ARGUMENTS);
  else if (all % 4 == 0 && narrow)
    gather<uint32_t, uint32_t, 1>(ARGUMENTS);
  else if (all % 2 == 0)
    gather<uint16_t, index_t, 1>(ARGUMENTS);
  else
    gather<uint8_t, index_t, 1>(ARGUMENTS);
}
