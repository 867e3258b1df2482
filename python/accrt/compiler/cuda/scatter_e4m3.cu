// scatter_e4m3.cu - rows of numbers written as e4m3 into a state of bytes, at slots that a tensor
// gives: state[slots[i]] = e4m3(x[i] * factor).
//
// Instantiated with X_TAG, INDEX_TAG and ENTRY. As in scatter.cu a slot outside [0, rows) writes
// nothing. Blocks of 256 threads; x of the grid covers all numbers, one a thread.
#include "common.cuh"
#include "e4m3.cuh"

typedef TYPE(X_TAG) x_t;
typedef TYPE(INDEX_TAG) slot_t;

extern "C" __global__ void __launch_bounds__(256)
    ENTRY(const x_t* x, const slot_t* slots, uint8_t* state, index_t count, index_t rows,
          index_t row_size, index_t x_row, index_t slot_step, float factor) {
  begin_kernel();
  const index_t step = (index_t)gridDim.x * 256;
  for (index_t at = (index_t)blockIdx.x * 256 + threadIdx.x; at < count * row_size; at += step) {
    const index_t row = at / row_size, i = at % row_size, slot = (index_t)slots[row * slot_step];
    if (slot < 0 || slot >= rows)
      continue;
    state[slot * row_size + i] =
        accrt_cuda::e4m3_from_float(LOAD(X_TAG)(x[row * x_row + i]) * factor).bits;
  }
}
