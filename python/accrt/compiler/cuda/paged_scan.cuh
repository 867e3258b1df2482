// paged_scan.cuh - a recurrence over ragged rows, with states in pages: of each head, a state S
// [value size, key size] becomes decay * S + new key^T with each token, which gets S query. new is
// the token's value, or, with beta, beta * (value - decay * S key).
//
// A block of 128 threads has a row of the batch and VALUES values of a head: each warp VALUES / 4
// rows of the state in registers, a lane every 32nd of their CHUNKS * 32 elements. x of the grid
// walks heads and blocks of values, y rows. A token's sums do not depend on what else is in the
// step. A device cannot fail one dispatch: a row whose page, length or tokens do not fit is left
// out, and its results are zeros.
#ifndef ACCRT_CUDA_PAGED_SCAN_CUH_
#define ACCRT_CUDA_PAGED_SCAN_CUH_

#include "common.cuh"

namespace accrt_cuda {

struct scan_t {
  const float *query, *key, *value, *decay;
  const int32_t *row_ids, *row_starts, *kv_lengths;
  const float* beta;
  const int32_t* table;
  float *states, *out;
  index_t tokens, rows, heads, group, key_size, value_size, decay_size, pages, page_size,
      table_rows, table_pages;
  index_t query_token, query_head, key_token, key_head, value_token, value_head, decay_token,
      decay_head, beta_token, beta_head, out_token, out_head;
};

constexpr int SCAN_WARPS = 4;

// The page of a position, or -1.
DEVICE index_t scan_page(const scan_t& p, index_t row, index_t position) {
  const index_t place = position / p.page_size;
  if (row < 0 || row >= p.table_rows || place >= p.table_pages)
    return -1;
  const index_t page = p.table[row * p.table_pages + place];
  return page < p.pages ? page : -1;
}

DEVICE float scan_sum(float x) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2)
    x += __shfl_xor_sync(0xffffffffu, x, step);
  return x;
}

template <int CHUNKS>
DEVICE void scan_load(const float* from, index_t size, int lane, float other, float (&to)[CHUNKS]) {
#pragma unroll
  for (int c = 0; c < CHUNKS; c++)
    to[c] = c * 32 + lane < size ? from[c * 32 + lane] : other;
}

// Zeros for tokens of no row, and of a row that does not fit.
DEVICE void scan_clear(const scan_t& p, index_t head, index_t first_value, index_t values,
                       index_t first, index_t end) {
  for (index_t t = first + threadIdx.x / 32; t < end; t += SCAN_WARPS)
    for (index_t v = first_value + threadIdx.x % 32; v < first_value + values && v < p.value_size;
         v += 32)
      p.out[t * p.out_token + head * p.out_head + v] = 0.0f;
}

template <int CHUNKS, int ROWS> DEVICE void scan(const scan_t& p) {
  constexpr int VALUES = ROWS * SCAN_WARPS;
  const index_t blocks = (p.value_size + VALUES - 1) / VALUES;
  const index_t head = blockIdx.x / blocks, first_value = blockIdx.x % blocks * VALUES;
  const index_t r = blockIdx.y;
  if (r >= p.rows) {
    scan_clear(p, head, first_value, VALUES, 0, p.tokens);
    return;
  }
  const int lane = threadIdx.x % 32;
  const index_t first = p.row_starts[r], end = p.row_starts[r + 1];
  if (r == 0)
    scan_clear(p, head, first_value, VALUES, 0, first < p.tokens ? first : p.tokens);
  if (r == p.rows - 1)
    scan_clear(p, head, first_value, VALUES, p.row_starts[p.rows] < 0 ? 0 : p.row_starts[p.rows],
               p.tokens);
  if (first < 0 || end <= first || end > p.tokens)
    return;
  const index_t start = p.kv_lengths[r] - (end - first), row = p.row_ids[r];
  const index_t mine = first_value + threadIdx.x / 32 * ROWS; // the warp's first value
  const index_t size = p.key_size, of_key = head / p.group;
  const index_t before = start > 0 ? scan_page(p, row, start - 1) : 0;
  bool fits = start >= 0 && before >= 0;
  for (index_t position = start; fits && position < start + end - first;
       position = (position / p.page_size + 1) * p.page_size)
    fits = scan_page(p, row, position) >= 0;
  if (!fits) {
    scan_clear(p, head, first_value, VALUES, first, end);
    return;
  }
  float state[ROWS][CHUNKS];
#pragma unroll
  for (int i = 0; i < ROWS; i++) {
    const bool is_there = start > 0 && mine + i < p.value_size;
    const float* const from =
        p.states + ((before * p.heads + head) * p.value_size + mine + i) * size;
    scan_load<CHUNKS>(from, is_there ? size : 0, lane, 0.0f, state[i]);
  }
  const bool of_each = p.decay_size > 1;
  for (index_t t = first; t < end; t++) {
    float key[CHUNKS], query[CHUNKS], decay[CHUNKS];
    scan_load<CHUNKS>(p.key + t * p.key_token + of_key * p.key_head, size, lane, 0.0f, key);
    scan_load<CHUNKS>(p.query + t * p.query_token + of_key * p.query_head, size, lane, 0.0f, query);
    const float* const by = p.decay + t * p.decay_token + head * p.decay_head;
    if (of_each) {
      scan_load<CHUNKS>(by, size, lane, 0.0f, decay);
    } else {
#pragma unroll
      for (int c = 0; c < CHUNKS; c++)
        decay[c] = by[0];
    }
    const float beta = p.beta == nullptr ? 0.0f : p.beta[t * p.beta_token + head * p.beta_head];
    float result[ROWS];
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
      float is_new = mine + i < p.value_size
                         ? p.value[t * p.value_token + head * p.value_head + mine + i]
                         : 0.0f;
#pragma unroll
      for (int c = 0; c < CHUNKS; c++)
        state[i][c] *= decay[c];
      if (p.beta != nullptr) {
        float known = 0.0f;
#pragma unroll
        for (int c = 0; c < CHUNKS; c++)
          known = fmaf(state[i][c], key[c], known);
        is_new = beta * (is_new - scan_sum(known));
      }
      result[i] = 0.0f;
#pragma unroll
      for (int c = 0; c < CHUNKS; c++) {
        state[i][c] = fmaf(is_new, key[c], state[i][c]);
        result[i] = fmaf(state[i][c], query[c], result[i]);
      }
    }
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
      result[i] = scan_sum(result[i]);
      if (lane == 0 && mine + i < p.value_size)
        p.out[t * p.out_token + head * p.out_head + mine + i] = result[i];
    }
    const index_t position = start + t - first;
    if (t + 1 < end && (position + 1) % p.page_size != 0)
      continue;
    const index_t page = scan_page(p, row, position);
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
      float* const to = p.states + ((page * p.heads + head) * p.value_size + mine + i) * size;
#pragma unroll
      for (int c = 0; c < CHUNKS; c++)
        if (mine + i < p.value_size && c * 32 + lane < size)
          to[c * 32 + lane] = state[i][c];
    }
  }
}

} // namespace accrt_cuda

#define ACCRT_CUDA_PAGED_SCAN(NAME, CHUNKS, ROWS)                                                  \
  extern "C" __global__ void __launch_bounds__(128)                                                \
      NAME(const float* query, const float* key, const float* value, const float* decay,           \
           const int32_t* row_ids, const int32_t* row_starts, const int32_t* kv_lengths,           \
           const float* beta, const int32_t* table, float* states, float* out, index_t tokens,     \
           index_t rows, index_t heads, index_t group, index_t key_size, index_t value_size,       \
           index_t decay_size, index_t pages, index_t page_size, index_t table_rows,               \
           index_t table_pages, index_t query_token, index_t query_head, index_t key_token,        \
           index_t key_head, index_t value_token, index_t value_head, index_t decay_token,         \
           index_t decay_head, index_t beta_token, index_t beta_head, index_t out_token,           \
           index_t out_head) {                                                                     \
    begin_kernel();                                                                                \
    accrt_cuda::scan<CHUNKS, ROWS>(                                                                \
        {query,       key,         value,      decay,      row_ids,   row_starts,  kv_lengths,     \
         beta,        table,       states,     out,        tokens,    rows,        heads,          \
         group,       key_size,    value_size, decay_size, pages,     page_size,   table_rows,     \
         table_pages, query_token, query_head, key_token,  key_head,  value_token, value_head,     \
         decay_token, decay_head,  beta_token, beta_head,  out_token, out_head});                  \
  }

#endif // ACCRT_CUDA_PAGED_SCAN_CUH_
