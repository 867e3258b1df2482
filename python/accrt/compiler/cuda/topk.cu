// topk.cu - the k largest elements of each row and their places, in descending order, or (ONE) the
// place of the largest alone; of equal ones the lower place first. NaN is larger than all else.
//
// Instantiated with X_TAG, ONE and ENTRY. ONE is 1 for argmax, and where rows are few 2 for its
// first part and 3 for its second. With TOKENS places are of 32 bits, and are written to
// state[slots[row]] as well. A block of 512 threads has one row, or (2) a piece of one; k is
// at most 512. Where k is more than n, the rest is not written: a device cannot fail one dispatch.
#define NAN_BITS 0x7FC00000u
#include "largest.cuh"

static __device__ __forceinline__ row_key_t largest_of_thread(const row_t& r) {
  uint32_t best = 0;
  index_t place = 0;
  walk(r, [&](const float(&q)[4], index_t at, int count) {
#pragma unroll
    for (int j = 0; j < 4; j++) {
      const uint32_t order = j < count ? order_of_float(q[j]) : 0;
      place = order > best ? at + j : place;
      best = order > best ? order : best;
    }
  });
  return best ? key_of(best, place) : 0;
}

#if TOKENS
#define PLACES int32_t *out, const int32_t *slots, int32_t *state, index_t state_rows
#define PUT(KEY)                                                                                   \
  const int32_t token = (int32_t)id_of_key(KEY), slot = slots[row];                                \
  out[row * out_row] = token;                                                                      \
  if (slot >= 0 && slot < state_rows)                                                              \
  state[slot] = token
#else
#define PLACES long long* out
#define PUT(KEY) out[row * out_row] = id_of_key(KEY)
#endif

#if ONE == 2
extern "C" __global__ void __launch_bounds__(THREADS)
    ENTRY(const x_t* x, row_key_t* partial, index_t rows, index_t n, index_t x_row, index_t piece) {
  begin_kernel();
  __shared__ shared_t s;
  const index_t row = blockIdx.y, first = (index_t)blockIdx.x * piece;
  if (row >= rows || first >= n)
    return;
  const row_t r = {x + row * x_row + first, min_index(piece, n - first), nullptr, nullptr, nullptr,
                   0};
  const row_key_t key = largest_of_block(largest_of_thread(r), s);
  if (threadIdx.x == 0)
    partial[row * gridDim.x + blockIdx.x] =
        key ? key_of(order_of_key(key), first + id_of_key(key)) : 0;
}
#elif ONE == 3
extern "C" __global__ void __launch_bounds__(THREADS)
    ENTRY(const row_key_t* partial, PLACES, index_t rows, index_t pieces, index_t out_row) {
  begin_kernel();
  __shared__ shared_t s;
  const index_t row = blockIdx.x;
  if (row >= rows)
    return;
  row_key_t best = 0;
  for (index_t i = threadIdx.x; i < pieces; i += THREADS) {
    const row_key_t key = partial[row * pieces + i];
    best = key > best ? key : best;
  }
  best = largest_of_block(best, s);
  if (threadIdx.x == 0) {
    PUT(best);
  }
}
#elif ONE
extern "C" __global__ void __launch_bounds__(THREADS)
    ENTRY(const x_t* x, PLACES, index_t rows, index_t n, index_t x_row, index_t out_row) {
  begin_kernel();
  __shared__ shared_t s;
  const index_t row = blockIdx.x;
  if (row >= rows)
    return;
  const row_t r = {x + row * x_row, n, nullptr, nullptr, nullptr, 0};
  const row_key_t key = largest_of_block(largest_of_thread(r), s);
  if (threadIdx.x == 0) {
    PUT(key);
  }
}
#else
extern "C" __global__ void __launch_bounds__(THREADS)
    ENTRY(const x_t* x, x_t* values, long long* indices, index_t rows, index_t n, index_t k,
          index_t x_row, index_t values_row, index_t indices_row) {
  begin_kernel();
  __shared__ shared_t s;
  const index_t row = blockIdx.x;
  k = min_index(k, n);
  if (row >= rows || k <= 0)
    return;
  const row_t r = {x + row * x_row, n, nullptr, nullptr, nullptr, 0};
  largest_of_row(r, s, n > LIST ? largest_of_thread(r) : 0, (uint32_t)k);
  for (index_t i = threadIdx.x; i < k; i += THREADS) {
    const index_t id = id_of_key(s.keys[i]);
    values[row * values_row + i] = r.x[id];
    indices[row * indices_row + i] = id;
  }
}
#endif
