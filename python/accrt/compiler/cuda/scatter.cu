// scatter.cu - rows of a state written at slots that a tensor gives: state[slots[i]] = x[i].
//
// Instantiated with INDEX_TAG and ENTRY; moves bytes, so that one kernel serves all types, 16 at a
// time where everything is aligned. A device cannot fail one dispatch: a slot outside [0, rows)
// writes nothing. Where a slot stands twice, any of its rows stays. Blocks of 256 threads; x of the
// grid covers the rows in pieces of 16 bytes.
#include "common.cuh"

typedef TYPE(INDEX_TAG) slot_t;

template <class T>
static __device__ __forceinline__ void
scatter(const uint8_t* x, const slot_t* slots, uint8_t* state, index_t count, index_t rows,
        index_t row_bytes, index_t x_row_bytes, index_t slot_step) {
  const index_t units = row_bytes / (index_t)sizeof(T), step = (index_t)gridDim.x * 256;
  for (index_t at = (index_t)blockIdx.x * 256 + threadIdx.x; at < count * units; at += step) {
    const index_t row = at / units, unit = at % units, slot = (index_t)slots[row * slot_step];
    if (slot < 0 || slot >= rows)
      continue;
    const T* from = (const T*)(x + row * x_row_bytes);
    T* to = (T*)(state + slot * row_bytes);
    to[unit] = from[unit];
  }
}

extern "C" __global__ void __launch_bounds__(256)
    ENTRY(const uint8_t* x, const slot_t* slots, uint8_t* state, index_t count, index_t rows,
          index_t row_bytes, index_t x_row_bytes, index_t slot_step) {
  begin_kernel();
  const uint64_t all =
      (uint64_t)x | (uint64_t)state | (uint64_t)row_bytes | (count > 1 ? (uint64_t)x_row_bytes : 0);
#define ARGUMENTS x, slots, state, count, rows, row_bytes, x_row_bytes, slot_step
  if (all % 16 == 0)
    scatter<uint4>(ARGUMENTS);
  else if (all % 4 == 0)
    scatter<uint32_t>(ARGUMENTS);
  else if (all % 2 == 0)
    scatter<uint16_t>(ARGUMENTS);
  else
    scatter<uint8_t>(ARGUMENTS);
}
