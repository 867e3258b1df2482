// scatter_lines.cu - out is x, with source[o][j][i] added at place index[o][j][i] of the middle
// axis, where each line has an index of its own and is short. As scatter_to.cu: they are added in
// order, and what has a place outside the axis is not.
//
// Instantiated with X_TAG, INDEX_TAG, PAD (256, 1024 or 2048: a line has at most so many places and
// elements) and ENTRY. A block of 256 threads brings a line's elements into the order of their
// places, each warp its part of the line; then each place adds its own. x of the grid walks lines.
#include "common.cuh"

typedef TYPE(X_TAG) x_t;
typedef TYPE(INDEX_TAG) place_t;

#define WARPS 8
#define ITEMS (PAD / 256)

struct shared_t {
  alignas(
      16) uint16_t counts[WARPS][PAD]; // of a warp's elements for each place; then where they go
  uint16_t starts[PAD + 2];
  uint32_t sums[WARPS];
  x_t staged[PAD];
};

// Where the elements of each place begin, and those of each warp among them.
DEVICE void find_starts(shared_t& s, int size) {
  const int thread = threadIdx.x, lane = thread % 32, first = thread * ITEMS;
  uint32_t own = 0;
#pragma unroll
  for (int i = 0; i < ITEMS; i++) {
#pragma unroll
    for (int warp = 0; warp < WARPS; warp++)
      own += first + i < size ? s.counts[warp][first + i] : 0;
  }
  uint32_t scan = own;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const uint32_t other = __shfl_up_sync(0xffffffffu, scan, step);
    scan += lane >= step ? other : 0;
  }
  if (lane == 31)
    s.sums[thread / 32] = scan;
  __syncthreads();
  uint32_t at = scan - own;
  for (int warp = 0; warp < thread / 32; warp++)
    at += s.sums[warp];
#pragma unroll
  for (int i = 0; i < ITEMS; i++) {
    if (first + i > size)
      continue;
    s.starts[first + i] = (uint16_t)at;
    if (first + i == size)
      continue;
#pragma unroll
    for (int warp = 0; warp < WARPS; warp++) {
      const uint32_t count = s.counts[warp][first + i];
      s.counts[warp][first + i] = (uint16_t)at;
      at += count;
    }
  }
  if (size == PAD && thread == 255)
    s.starts[PAD] = (uint16_t)at;
}

extern "C" __global__ void __launch_bounds__(256)
    ENTRY(const x_t* x, const place_t* index, const x_t* source, x_t* out, index_t outer,
          index_t size, index_t inner, index_t count, index_t x_outer, index_t x_size,
          index_t x_inner, index_t out_outer, index_t out_size, index_t out_inner,
          index_t index_outer, index_t index_count, index_t index_inner, index_t source_outer,
          index_t source_count, index_t source_inner) {
  begin_kernel();
  __shared__ shared_t s;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int each = (int)((count + WARPS * 32 - 1) / (WARPS * 32) * 32);
  for (index_t at = blockIdx.x; at < outer * inner; at += gridDim.x) {
    const index_t o = at / inner, l = at % inner;
    const place_t* const places = index + o * index_outer + l * index_inner;
    const x_t* const from = source + o * source_outer + l * source_inner;
    int place[ITEMS];
    uint32_t rank[ITEMS];
    x_t item[ITEMS];
#pragma unroll
    for (int i = 0; i < ITEMS; i++) {
      const int j = warp * each + i * 32 + lane;
      const bool inside = i * 32 < each && j < count;
      const index_t found = inside ? (index_t)places[j * index_count] : -1;
      place[i] = found >= 0 && found < size ? (int)found : -1;
      if (place[i] >= 0)
        item[i] = from[j * source_count];
    }
    for (int i = threadIdx.x; i < WARPS * PAD / 8; i += 256)
      ((uint4*)&s.counts[0][0])[i] = make_uint4(0, 0, 0, 0);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < ITEMS; i++) {
      const uint32_t same = __match_any_sync(0xffffffffu, place[i]);
      const int before = __popc(same & ((1u << lane) - 1));
      const uint32_t start = place[i] >= 0 ? s.counts[warp][place[i]] : 0;
      rank[i] = start + before;
      __syncwarp();
      if (place[i] >= 0 && before == 0)
        s.counts[warp][place[i]] = (uint16_t)(start + __popc(same));
      __syncwarp();
    }
    __syncthreads();
    find_starts(s, (int)size);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < ITEMS; i++) {
      if (place[i] >= 0)
        s.staged[s.counts[warp][place[i]] + rank[i]] = item[i];
    }
    __syncthreads();
    for (int i = threadIdx.x; i < size; i += 256) {
      x_t sum = x[o * x_outer + i * x_size + l * x_inner];
      const int end = s.starts[i + 1];
      for (int j = s.starts[i]; j < end; j++)
        sum = STORE(X_TAG)(LOAD(X_TAG)(sum) + LOAD(X_TAG)(s.staged[j]));
      out[o * out_outer + i * out_size + l * out_inner] = sum;
    }
    __syncthreads();
  }
}
