/* paged_attention.cuh - attention of ragged rows of queries over keys and values that lie in pages.
 *
 * ACCRT_CUDA_PAGED_ATTENTION(ENTRY, Q, KV, CHUNKS, ROWS, FULL, PLAIN): Q is the type of queries
 * and result, KV that of the pages, CHUNKS the head in pieces of 64, ROWS how many query heads of a
 * key head a block goes through the keys with. ACCRT_CUDA_PAGED_JOIN(ENTRY, Q, PLAIN): joins what
 * shared units gave. PLAIN: there are neither sinks nor chunks, and nothing is spent on them.
 *
 * x of the grid is a token, y a key head and some of its query heads. Keys are gone through in
 * units of 256, from key 0 of the sequence on. What a unit gives (maximum, sum, weighted values)
 * depends on the query and on that unit's keys alone, and units are joined in ascending order. So a
 * query's result has the same bits alone, among others, and in chunks of any size. With `partial`,
 * z of the grid shares units out, each unit's part is stored, and the join goes over them: the same
 * numbers in the same order.
 *
 * Eight threads share a key, a warp four keys, a block of four warps sixteen; a thread has four
 * such keys under way. Scores, sums and values are f32, exponentials ex2.approx.
 *
 * Where there is one token, the kernel behind is allowed at once, so that weights of a product come
 * while attention works; with more, when what is ahead has ended.
 *
 * A device cannot fail one dispatch: a key of a page outside the state is not seen, and a token
 * whose row is outside the page table gives zeros, as tokens of no row do. */
#ifndef ACCRT_CUDA_PAGED_ATTENTION_CUH_
#define ACCRT_CUDA_PAGED_ATTENTION_CUH_

#include "e4m3.cuh"
#include "numbers.cuh"

namespace accrt_cuda {

typedef long long index_t;

constexpr int PAGED_UNIT = 256, PAGED_PART = 16, PAGED_WARPS = 4, PAGED_AHEAD = 4;
constexpr int PAGED_THREADS = 32 * PAGED_WARPS, PAGED_KEYS = 4 * PAGED_WARPS;

/** What both kernels take, by value. */
struct paged_sizes {
  index_t tokens, rows, group, kv_heads, value_size, window, units;
};
/** `sizes`, of an entry's parameters. PLAIN: there are no chunks. */
#define ACCRT_CUDA_PAGED_SIZES(PLAIN)                                                              \
  if (PLAIN)                                                                                       \
    __builtin_assume(window >= 0);                                                                 \
  const accrt_cuda::paged_sizes sizes = {tokens, rows, group, kv_heads, value_size, window, units};

/** The first key that the token before key `high` sees. A window below 0 is a chunk: keys from its
 * last multiple on. */
static __device__ __forceinline__ index_t paged_low(index_t high, index_t window) {
  if (window < 0)
    return high > 0 ? (uint32_t)(high - 1) / (uint32_t)-window * (uint32_t)-window : 0;
  return window > 0 && high > window ? high - window : 0;
}

/** Which keys a token sees: [low, high) of the sequence in row `row_id` of the table. */
struct paged_place {
  int row_id, low, high;
};

/** The batch row of a token, looked for by the whole block. A token of none sees nothing. */
template <int THREADS>
static __device__ __forceinline__ paged_place paged_find(const int32_t* row_ids,
                                                         const int32_t* row_starts,
                                                         const int32_t* kv_lengths,
                                                         const paged_sizes& s, index_t token,
                                                         index_t most_keys, index_t table_rows,
                                                         paged_place* shared) {
  if (threadIdx.x == 0)
    *shared = {0, 0, 0};
  __syncthreads();
  for (index_t r = threadIdx.x; r < s.rows; r += THREADS) {
    const int begin = row_starts[r], end = row_starts[r + 1];
    if (token < begin || token >= end)
      continue;
    const index_t high = (index_t)kv_lengths[r] - (end - begin) + (token - begin) + 1;
    const index_t low = paged_low(high, s.window);
    const int row = row_ids[r];
    if (row >= 0 && row < table_rows && kv_lengths[r] >= end - begin && kv_lengths[r] <= most_keys)
      *shared = {row, (int)low, (int)high};
  }
  __syncthreads();
  return *shared;
}

/** Eight elements at p; `left` of them are there, all of them where it is FULL (and aligned). */
template <class T, bool FULL>
static __device__ __forceinline__ void paged_load(words<T, 8>& to, const T* p, int left) {
  if (FULL) {
    to.load(p);
    return;
  }
  T* part = reinterpret_cast<T*>(to.word);
#pragma unroll
  for (int i = 0; i < 8; i++)
    part[i] = i < left ? p[i] : from_float<T>(0.0f);
}

/** What thread `sub` of eight has of some rows, `row` elements apart; zeros for a slot below 0. */
template <class T, int CHUNKS, bool FULL>
static __device__ __forceinline__ void paged_fetch(words<T, 8> (&to)[PAGED_AHEAD][CHUNKS],
                                                   const index_t (&slot)[PAGED_AHEAD],
                                                   const T* from, index_t row, int size, int sub) {
#pragma unroll
  for (int a = 0; a < PAGED_AHEAD; a++)
#pragma unroll
    for (int c = 0; c < CHUNKS; c++) {
      const int at = c * 64 + sub * 8;
      to[a][c].fill(0);
      if (slot[a] >= 0)
        paged_load<T, FULL>(to[a][c], from + slot[a] * row + at, size - at);
    }
}

/** Joins a part to what the parts before it gave; values by `value`, which is one of the row's. */
static __device__ __forceinline__ void paged_join(float maximum, float sum, float part_maximum,
                                                  float part_sum, float& before, float& now,
                                                  float& next) {
  next = fmaxf(maximum, part_maximum);
  before = maximum == -INFINITY ? 0.0f : fast_exp2(maximum - next);
  now = part_sum == 0.0f ? 0.0f : fast_exp2(part_maximum - next);
}

/** One term of such a join, in the same way wherever it is done. */
static __device__ __forceinline__ float paged_mix(float kept, float before, float x, float now) {
  return __fmaf_rn(x, now, __fmul_rn(kept, before));
}

/** What the values of a row are multiplied by at the end: one by its sum. Of the sinks, one for
 * each query head, null where there are none, the row's is a score of no value. */
static __device__ __forceinline__ float paged_factor(float top, float total, const float* sinks,
                                                     index_t head) {
  if (sinks == nullptr || total == 0.0f)
    return total == 0.0f ? 0.0f : 1.0f / total;
  float before, now, next;
  paged_join(top, total, sinks[head] * 1.4426950408889634f, 1.0f, before, now, next);
  return __fdiv_rn(before, paged_mix(total, before, 1.0f, now));
}

/** Where a part lies, in floats. */
static __device__ __forceinline__ index_t paged_part(const paged_sizes& s, index_t token,
                                                     index_t head, index_t unit) {
  const index_t step = PAGED_PART + (s.value_size + 15) / 16 * 16;
  return ((token * s.group * s.kv_heads + head) * s.units + unit) * step;
}

template <int CHUNKS, int ROWS> struct paged_block {
  static constexpr int HEAD = 64 * CHUNKS;
  float values[PAGED_WARPS][ROWS][HEAD];
  float maximum[PAGED_WARPS][ROWS], sum[PAGED_WARPS][ROWS];
  paged_place place;
};

/** FULL: heads fill their chunks. */
template <class Q, class KV, int CHUNKS, int ROWS, bool FULL>
static __device__ __forceinline__ void
paged_attend(paged_block<CHUNKS, ROWS>& shared, const Q* q, const KV* k, const KV* v,
             const int32_t* table, const int32_t* row_ids, const int32_t* row_starts,
             const int32_t* kv_lengths, const float* sinks, Q* out, float* partial,
             const paged_sizes& s, index_t head_size, index_t pages, index_t page_size,
             index_t table_rows, index_t table_pages, index_t q_token, index_t q_head,
             index_t out_token, index_t out_head, float scale, float soft_cap) {
  constexpr int HEAD = 64 * CHUNKS;
  constexpr float LOG2 = 1.4426950408889634f;
  const index_t token = blockIdx.x, pieces = (s.group + ROWS - 1) / ROWS;
  const index_t kv_head = blockIdx.y / pieces, first_row = blockIdx.y % pieces * ROWS;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, sub = lane % 8,
            own = warp * 4 + lane / 8;
  const uint32_t page_keys = (uint32_t)page_size;
  const index_t k_row = s.kv_heads * head_size, v_row = s.kv_heads * s.value_size;
  const KV *k_head = k + kv_head * head_size, *v_head = v + kv_head * s.value_size;
  const paged_place place =
      paged_find<PAGED_THREADS>(row_ids, row_starts, kv_lengths, s, token, table_pages * page_size,
                                table_rows, &shared.place);
  const int32_t* own_pages = table + (index_t)place.row_id * table_pages;

  float query[ROWS][CHUNKS][8];
#pragma unroll
  for (int r = 0; r < ROWS; r++) {
    const index_t row = min(first_row + r, s.group - 1);
    const Q* from = q + token * q_token + (kv_head * s.group + row) * q_head;
#pragma unroll
    for (int c = 0; c < CHUNKS; c++) {
      const int at = c * 64 + sub * 8;
#pragma unroll
      for (int i = 0; i < 8; i++)
        query[r][c][i] = at + i < head_size ? to_float(from[at + i]) * scale : 0.0f;
    }
  }

  // Each thread keeps values of the result: index threadIdx.x + i * THREADS of [ROWS][HEAD].
  constexpr int KEPT = (ROWS * HEAD + PAGED_THREADS - 1) / PAGED_THREADS;
  float kept[KEPT], top[ROWS], total[ROWS];
#pragma unroll
  for (int i = 0; i < KEPT; i++)
    kept[i] = 0.0f;
#pragma unroll
  for (int r = 0; r < ROWS; r++)
    top[r] = -INFINITY, total[r] = 0.0f;

  for (int unit = place.low / PAGED_UNIT; unit * PAGED_UNIT < place.high; unit++) {
    if (unit % gridDim.z != blockIdx.z)
      continue;
    const int end = min(place.high, (unit + 1) * PAGED_UNIT);
    float maximum[ROWS], sum[ROWS], acc[ROWS][CHUNKS][8];
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
      maximum[r] = -INFINITY, sum[r] = 0.0f;
#pragma unroll
      for (int c = 0; c < CHUNKS; c++)
#pragma unroll
        for (int i = 0; i < 8; i++)
          acc[r][c][i] = 0.0f;
    }
#pragma unroll 1
    for (int base = unit * PAGED_UNIT; base < end; base += PAGED_KEYS * PAGED_AHEAD) {
      if (base + PAGED_KEYS * PAGED_AHEAD <= place.low)
        continue; // the same for all threads of the block
      index_t slot[PAGED_AHEAD];
      float score[PAGED_AHEAD][ROWS];
      words<KV, 8> loaded[PAGED_AHEAD][CHUNKS];
#pragma unroll
      for (int a = 0; a < PAGED_AHEAD; a++) {
        const uint32_t key = base + a * PAGED_KEYS + own;
        slot[a] = -1;
        if (key >= (uint32_t)place.low && key < (uint32_t)end) {
          const int32_t page = own_pages[key / page_keys];
          if (page >= 0 && page < pages)
            slot[a] = (index_t)page * page_keys + key % page_keys;
        }
      }
      paged_fetch<KV, CHUNKS, FULL>(loaded, slot, k_head, k_row, (int)head_size, sub);
#pragma unroll
      for (int a = 0; a < PAGED_AHEAD; a++) {
#pragma unroll
        for (int r = 0; r < ROWS; r++)
          score[a][r] = 0.0f;
#pragma unroll
        for (int c = 0; c < CHUNKS; c++)
#pragma unroll
          for (int r = 0; r < ROWS; r++)
#pragma unroll
            for (int i = 0; i < 8; i++)
              score[a][r] = fmaf(query[r][c][i], loaded[a][c].get(i), score[a][r]);
      }
      // Values come while scores are made of the keys.
      paged_fetch<KV, CHUNKS, FULL>(loaded, slot, v_head, v_row, (int)s.value_size, sub);
#pragma unroll
      for (int a = 0; a < PAGED_AHEAD; a++) {
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
          float x = score[a][r];
#pragma unroll
          for (int step = 4; step > 0; step /= 2)
            x += __shfl_xor_sync(0xffffffffu, x, step);
          if (soft_cap > 0.0f)
            x = soft_cap * tanhf(x / soft_cap);
          score[a][r] = slot[a] < 0 ? -INFINITY : x * LOG2;
        }
      }
#pragma unroll
      for (int r = 0; r < ROWS; r++) {
        float next = maximum[r];
#pragma unroll
        for (int a = 0; a < PAGED_AHEAD; a++)
          next = fmaxf(next, score[a][r]);
        const float safe = next == -INFINITY ? 0.0f : next;
        const float factor = fast_exp2(maximum[r] - safe);
        maximum[r] = next;
        sum[r] *= factor;
#pragma unroll
        for (int a = 0; a < PAGED_AHEAD; a++) {
          score[a][r] = fast_exp2(score[a][r] - safe);
          sum[r] += score[a][r];
        }
#pragma unroll
        for (int c = 0; c < CHUNKS; c++)
#pragma unroll
          for (int i = 0; i < 8; i++)
            acc[r][c][i] *= factor;
      }
#pragma unroll
      for (int a = 0; a < PAGED_AHEAD; a++)
#pragma unroll
        for (int c = 0; c < CHUNKS; c++)
#pragma unroll
          for (int r = 0; r < ROWS; r++)
#pragma unroll
            for (int i = 0; i < 8; i++)
              acc[r][c][i] = fmaf(score[a][r], loaded[a][c].get(i), acc[r][c][i]);
    }
    // The four keys of a warp, then the warps, join: the same tree for every unit.
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
#pragma unroll
      for (int step = 8; step < 32; step *= 2) {
        const float other = __shfl_xor_sync(0xffffffffu, maximum[r], step);
        const float next = fmaxf(maximum[r], other), safe = next == -INFINITY ? 0.0f : next;
        const float factor = fast_exp2(maximum[r] - safe), theirs = fast_exp2(other - safe);
        maximum[r] = next;
        const float their_sum = __shfl_xor_sync(0xffffffffu, sum[r], step) * theirs;
        // Both sides form the same sum: addition commutes.
        sum[r] = sum[r] * factor + their_sum;
#pragma unroll
        for (int c = 0; c < CHUNKS; c++)
#pragma unroll
          for (int i = 0; i < 8; i++) {
            const float x = __shfl_xor_sync(0xffffffffu, acc[r][c][i], step) * theirs;
            acc[r][c][i] = acc[r][c][i] * factor + x;
          }
      }
      if (lane < 8) {
#pragma unroll
        for (int c = 0; c < CHUNKS; c++)
#pragma unroll
          for (int i = 0; i < 8; i++)
            shared.values[warp][r][c * 64 + sub * 8 + i] = acc[r][c][i];
      }
      if (lane == 0)
        shared.maximum[warp][r] = maximum[r], shared.sum[warp][r] = sum[r];
    }
    __syncthreads();
    float unit_top[ROWS], unit_sum[ROWS], factor[ROWS][PAGED_WARPS], before[ROWS], now[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
      unit_top[r] = -INFINITY, unit_sum[r] = 0.0f;
#pragma unroll
      for (int w = 0; w < PAGED_WARPS; w++)
        unit_top[r] = fmaxf(unit_top[r], shared.maximum[w][r]);
#pragma unroll
      for (int w = 0; w < PAGED_WARPS; w++) {
        const float theirs = shared.maximum[w][r];
        factor[r][w] = theirs == -INFINITY ? 0.0f : fast_exp2(theirs - unit_top[r]);
        unit_sum[r] = fmaf(shared.sum[w][r], factor[r][w], unit_sum[r]);
      }
      float next;
      paged_join(top[r], total[r], unit_top[r], unit_sum[r], before[r], now[r], next);
      if (!partial)
        top[r] = next, total[r] = paged_mix(total[r], before[r], unit_sum[r], now[r]);
    }
#pragma unroll
    for (int i = 0; i < KEPT; i++) {
      const int at = threadIdx.x + i * PAGED_THREADS, d = at % HEAD;
#pragma unroll
      for (int r = 0; r < ROWS; r++) { // a row of constant index stays in registers
        if (at / HEAD != r || d >= s.value_size || first_row + r >= s.group)
          continue;
        float x = 0.0f;
#pragma unroll
        for (int w = 0; w < PAGED_WARPS; w++)
          x = fmaf(shared.values[w][r][d], factor[r][w], x);
        if (!partial) {
          kept[i] = paged_mix(kept[i], before[r], x, now[r]);
          continue;
        }
        float* to = partial + paged_part(s, token, kv_head * s.group + first_row + r, unit);
        to[PAGED_PART + d] = x;
        if (d == 0)
          to[0] = unit_top[r], to[1] = unit_sum[r];
      }
    }
    __syncthreads();
  }
  if (partial)
    return;
  float by[ROWS];
#pragma unroll
  for (int r = 0; r < ROWS; r++)
    by[r] =
        paged_factor(top[r], total[r], sinks, kv_head * s.group + min(first_row + r, s.group - 1));
#pragma unroll
  for (int i = 0; i < KEPT; i++) {
    const int at = threadIdx.x + i * PAGED_THREADS, d = at % HEAD;
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
      if (at / HEAD != r || d >= s.value_size || first_row + r >= s.group)
        continue;
      out[token * out_token + (kv_head * s.group + first_row + r) * out_head + d] =
          from_float<Q>(by[r] == 0.0f ? 0.0f : kept[i] * by[r]);
    }
  }
}

/** x of the grid is a token, y a query head; blocks of 128 threads. */
template <class Q>
static __device__ __forceinline__ void
paged_joined(const float* partial, const int32_t* row_ids, const int32_t* row_starts,
             const int32_t* kv_lengths, const float* sinks, Q* out, const paged_sizes& s,
             index_t out_token, index_t out_head, index_t most_keys, index_t table_rows) {
  __shared__ paged_place shared;
  const index_t token = blockIdx.x, head = blockIdx.y;
  const paged_place place =
      paged_find<128>(row_ids, row_starts, kv_lengths, s, token, most_keys, table_rows, &shared);
  for (int d = threadIdx.x; d < s.value_size; d += 128) {
    float top = -INFINITY, total = 0.0f, x = 0.0f;
    for (int unit = place.low / PAGED_UNIT; unit * PAGED_UNIT < place.high; unit++) {
      const float* part = partial + paged_part(s, token, head, unit);
      float before, now, next;
      paged_join(top, total, part[0], part[1], before, now, next);
      top = next, total = paged_mix(total, before, part[1], now);
      x = paged_mix(x, before, part[PAGED_PART + d], now);
    }
    const float by = paged_factor(top, total, sinks, head);
    out[token * out_token + head * out_head + d] = from_float<Q>(by == 0.0f ? 0.0f : x * by);
  }
}

} // namespace accrt_cuda

#define ACCRT_CUDA_PAGED_ATTENTION(ENTRY, Q, KV, CHUNKS, ROWS, FULL, PLAIN)                        \
  extern "C" __global__ void __launch_bounds__(128)                                                \
      ENTRY(const Q* q, const KV* k, const KV* v, const int32_t* table, const int32_t* row_ids,    \
            const int32_t* row_starts, const int32_t* kv_lengths, const float* sinks, Q* out,      \
            float* partial, long long tokens, long long rows, long long group, long long kv_heads, \
            long long value_size, long long window, long long units, long long head_size,          \
            long long pages, long long page_size, long long table_rows, long long table_pages,     \
            long long q_token, long long q_head, long long out_token, long long out_head,          \
            float scale, float soft_cap) {                                                         \
    const bool alone = gridDim.x == 1;                                                             \
    if (alone)                                                                                     \
      accrt_cuda::allow_next();                                                                    \
    accrt_cuda::wait_for_previous();                                                               \
    if (!alone)                                                                                    \
      accrt_cuda::allow_next();                                                                    \
    __shared__ accrt_cuda::paged_block<CHUNKS, ROWS> shared;                                       \
    ACCRT_CUDA_PAGED_SIZES(PLAIN)                                                                  \
    accrt_cuda::paged_attend<Q, KV, CHUNKS, ROWS, FULL>(                                           \
        shared, q, k, v, table, row_ids, row_starts, kv_lengths, PLAIN ? nullptr : sinks, out,     \
        partial, sizes, head_size, pages, page_size, table_rows, table_pages, q_token, q_head,     \
        out_token, out_head, scale, soft_cap);                                                     \
  }

#define ACCRT_CUDA_PAGED_JOIN(ENTRY, Q, PLAIN)                                                     \
  extern "C" __global__ void __launch_bounds__(128)                                                \
      ENTRY(const float* partial, const int32_t* row_ids, const int32_t* row_starts,               \
            const int32_t* kv_lengths, const float* sinks, Q* out, long long tokens,               \
            long long rows, long long group, long long kv_heads, long long value_size,             \
            long long window, long long units, long long out_token, long long out_head,            \
            long long most_keys, long long table_rows) {                                           \
    const bool alone = gridDim.x == 1;                                                             \
    if (alone)                                                                                     \
      accrt_cuda::allow_next();                                                                    \
    accrt_cuda::wait_for_previous();                                                               \
    if (!alone)                                                                                    \
      accrt_cuda::allow_next();                                                                    \
    ACCRT_CUDA_PAGED_SIZES(PLAIN)                                                                  \
    accrt_cuda::paged_joined<Q>(partial, row_ids, row_starts, kv_lengths, PLAIN ? nullptr : sinks, \
                                out, sizes, out_token, out_head, most_keys, table_rows);           \
  }

#endif /* ACCRT_CUDA_PAGED_ATTENTION_CUH_ */
