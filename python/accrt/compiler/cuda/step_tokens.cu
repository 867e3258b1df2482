// step_tokens.cu - what a step begins with: changes of the page table, the row of the embedding for
// each token, and the order in which attention takes tokens.
//
// Instantiated with ENTRY; moves bytes, so that one kernel serves all types, 16 at a time where
// everything is aligned. A device cannot fail one dispatch: as where each part has a kernel of its
// own, an index outside gives 0, and a slot outside writes nothing. Blocks of 256 threads; x of the
// grid covers the rows in pieces of 16 bytes; its last block makes the order. Up to MOST tokens are
// in descending order of the keys of their rows where each is its row's only one, as in decoding;
// others stand behind these, and more tokens have no order.
#include "common.cuh"

constexpr int MOST = 1024;

// By a whole block: each token's place is the number of those that come before it.
static __device__ __forceinline__ void put_order(const int32_t* starts, const int32_t* lengths,
                                                 int32_t* order, index_t tokens,
                                                 index_t batch_rows) {
  __shared__ int32_t keys[MOST];
  for (int i = threadIdx.x; i < tokens; i += 256)
    keys[i] = i < batch_rows && starts[i] == i && starts[i + 1] == i + 1 ? lengths[i] : 0;
  __syncthreads();
  for (int i = threadIdx.x; i < tokens; i += 256) {
    const int32_t own = keys[i];
    int before = 0;
#pragma unroll 8
    for (int j = 0; j < tokens; j++)
      before += keys[j] > own || (keys[j] == own && j < i);
    order[before] = i;
  }
}

struct tokens_t {
  const int32_t *given, *rows, *row_ids, *last;
  index_t batch_rows, table_rows, vocabulary;

  __device__ __forceinline__ index_t of(index_t at) const {
    int32_t id = given[at];
    if (id < 0) {
      const int32_t row = rows[at];
      const int32_t own = row >= 0 && row < batch_rows ? row_ids[row] : 0;
      id = own >= 0 && own < table_rows ? last[own] : 0;
    }
    return min_index(id < 0 ? 0 : id, vocabulary - 1);
  }
};

template <class T>
static __device__ __forceinline__ void look_up(const tokens_t& ids, const uint8_t* weight,
                                               uint8_t* out, index_t tokens, index_t row_bytes) {
  const index_t units = row_bytes / (index_t)sizeof(T), step = (index_t)gridDim.x * 256;
  for (index_t at = (index_t)blockIdx.x * 256 + threadIdx.x; at < tokens * units; at += step) {
    const index_t token = at / units;
    ((T*)out)[at] = ((const T*)(weight + ids.of(token) * row_bytes))[at % units];
  }
}

extern "C" __global__ void __launch_bounds__(256)
    ENTRY(const int32_t* given, const uint8_t* weight, const int32_t* rows, const int32_t* row_ids,
          const int32_t* pages, const int32_t* slots, const int32_t* starts,
          const int32_t* lengths, const int32_t* last, int32_t* table, uint8_t* out, int32_t* order,
          index_t tokens, index_t vocabulary, index_t row_bytes, index_t batch_rows,
          index_t changes, index_t table_rows, index_t table_size) {
  begin_kernel();
  if (blockIdx.x == gridDim.x - 1 && tokens <= MOST)
    put_order(starts, lengths, order, tokens, batch_rows);
  const index_t first = (index_t)blockIdx.x * 256 + threadIdx.x, step = (index_t)gridDim.x * 256;
  for (index_t i = first; i < changes; i += step) {
    const int32_t slot = slots[i];
    if (slot >= 0 && slot < table_size)
      table[slot] = pages[i];
  }
  const tokens_t ids = {given, rows, row_ids, last, batch_rows, table_rows, vocabulary};
  const uint64_t all = (uint64_t)weight | (uint64_t)out | (uint64_t)row_bytes;
  if (all % 16 == 0)
    look_up<uint4>(ids, weight, out, tokens, row_bytes);
  else if (all % 4 == 0)
    look_up<uint32_t>(ids, weight, out, tokens, row_bytes);
  else if (all % 2 == 0)
    look_up<uint16_t>(ids, weight, out, tokens, row_bytes);
  else
    look_up<uint8_t>(ids, weight, out, tokens, row_bytes);
}
