/* paged_one.cuh - paged_tiles.cuh for one token, as decoding for one request makes it: what counts
 * is the time from the queries to the result, and all of it is one kernel.
 *
 * ACCRT_CUDA_PAGED_ONE(ENTRY, T, KV, CHUNKS, PLAIN): T is the type of queries and result, KV that
 * of the pages, CHUNKS the head in pieces of 64; for groups of up to 8 query heads. Needs clusters
 * (sm_90). PLAIN is as in paged_attention.cuh.
 * ACCRT_CUDA_PAGED_ONE_TILES(ENTRY, T, KV, CHUNKS, PLAIN): the same by paged_tiles.cuh, where there
 * are no clusters: a block for each key head does all of it.
 *
 * The grid is (1, key heads, ONE_BLOCKS), and the blocks of a key head are a cluster. A block takes
 * one unit of 128 keys at a time: each of its four warps makes the scores of 32 keys, and then a
 * quarter of the elements of the result from the weights of all. What units gave stays in shared
 * memory, of as many as there is room for (ONE_PARTS rows); then the cluster meets, and joins what
 * all its blocks have, so that no other kernel is needed for that.
 *
 * Keys of a block's next unit are asked for when the scores of this one are made, its values when
 * this one's have been used; those of the unit behind it are on their way to the L2 cache.
 *
 * Before the kernel ahead has ended, each thread looks where its first key lies, and asks the L2
 * cache for it. These numbers may be written at this time, so they are a guess: they are read again
 * together with the keys, and where they were wrong the keys are read once more.
 *
 * What is calculated is what paged_tiles.cuh calculates, bit for bit: sums of a unit go on from
 * step to step, and parts of units are joined in ascending order. */
#ifndef ACCRT_CUDA_PAGED_ONE_CUH_
#define ACCRT_CUDA_PAGED_ONE_CUH_

#include "cluster.cuh"
#include "paged_tiles.cuh"

namespace accrt_cuda {

/** Blocks of a key head, warps of a block, the most query heads, and rows of parts that it keeps:
 * with o and gate and up of a Llama 3.2 1B ahead of and behind it, there is room for no more. */
constexpr int ONE_BLOCKS = 8, ONE_WARPS = 4, ONE_ROWS = 8, ONE_PARTS = 24;

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
template <class M, int CHUNKS> struct one_block {
  static constexpr int HEAD = 64 * CHUNKS, PITCH = HEAD + 8;
  M values[TILES_UNIT][PITCH];
  uint2 weights[TILES_UNIT / 16][32]; // as products take them
  float2 scores[TILES_UNIT / 8][32];  // the same before they were rounded
  float tops[TILES_UNIT / 16][ONE_ROWS];
  float part[ONE_PARTS][HEAD]; // what units gave, row by row
  float maximum[ONE_PARTS], sum[ONE_PARTS];
  tiles_place place;
};

/** Elements of one row of values to shared memory: those of e4m3 as f16. */
template <class M, class KV>
static __device__ __forceinline__ void one_copy(M* to, const KV* from, bool is_there) {
  copy_async(to, from, is_there);
}
template <>
__device__ __forceinline__ void one_copy<f16, e4m3>(f16* to, const e4m3* from, bool is_there) {
  uint2 v = {0, 0};
  if (is_there)
    v = *reinterpret_cast<const uint2*>(from);
  *reinterpret_cast<uint4*>(to) = {tiles_two(v.x, false), tiles_two(v.x, true),
                                   tiles_two(v.y, false), tiles_two(v.y, true)};
}

/** A warp's 32 keys of a unit. */
template <class T, class KV, int CHUNKS> struct one_keys {
  typedef tiles_elements<T, KV> elements;
  typedef typename elements::type M;
  uint32_t key[4][2 * CHUNKS][elements::WORDS];

  /** `slot`: of this lane's key, below 0 where it is not there. */
  __device__ __forceinline__ void load(const KV* k_head, index_t row, int slot) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int j = 0; j < 4; j++) {
      const int from = __shfl_sync(0xffffffffu, slot, 8 * j + g);
#pragma unroll
      for (int i = 0; i < 2 * CHUNKS; i++)
        tiles_load(key[j][i], k_head, from, row, 32 * i + 8 * t);
    }
  }
};

/** The values of the same keys to shared memory: they are there after copy_wait. */
template <class M, class KV, int CHUNKS>
static __device__ __forceinline__ void one_values(one_block<M, CHUNKS>& shared, const KV* v_head,
                                                  index_t row, int slot) {
  constexpr int PIECES = 8 * CHUNKS; // of eight elements in a row
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < PIECES; i++) {
    const int own = i * 32 + lane, at = own % PIECES * 8;
    const int from = __shfl_sync(0xffffffffu, slot, own / PIECES);
    one_copy<M, KV>(&shared.values[warp * 32 + own / PIECES][at],
                    v_head + (index_t)max(from, 0) * row + at, from >= 0);
  }
  copy_commit();
}

/** Where key `key` lies: below 0 where it is none that is seen. */
static __device__ __forceinline__ int one_slot(int32_t page, int key, int low, int high,
                                               index_t pages, uint32_t page_keys) {
  if (key < low || key >= high || page < 0 || page >= pages)
    return -1;
  return (int)((uint32_t)page * page_keys + (uint32_t)key % page_keys);
}

/** The part of one unit, of which the token sees [low, high), to rows of shared memory from `to`
 * on; by all threads. With `has_next`, `keys` are those of the slot `next` behind it. */
template <class T, class KV, int CHUNKS>
static __device__ __forceinline__ void
one_unit(one_block<typename tiles_elements<T, KV>::type, CHUNKS>& shared,
         one_keys<T, KV, CHUNKS>& keys, const uint32_t (&query)[2 * CHUNKS][4], const KV* k_head,
         index_t row, float scale, float soft_cap, int slot, int next, bool has_next, int begin,
         int low, int high, int rows, int to) {
  typedef tiles_elements<T, KV> elements;
  typedef typename elements::type M;
  constexpr int STEP = 32 / CHUNKS * elements::FACTOR, STEPS = TILES_UNIT / STEP;
  constexpr float LOG2 = 1.4426950408889634f;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  float score[4][4];
#pragma unroll
  for (int j = 0; j < 4; j++) {
    score[j][0] = score[j][1] = score[j][2] = score[j][3] = 0.0f;
#pragma unroll
    for (int i = 0; i < 2 * CHUNKS; i++) {
      uint32_t key[4];
      tiles_key(key, keys.key[j][i]);
      const uint32_t first[2] = {key[0], key[1]}, second[2] = {key[2], key[3]};
      const uint32_t one[4] = {query[i][0], 0, query[i][1], 0};
      const uint32_t two[4] = {query[i][2], 0, query[i][3], 0};
      multiply_add<M>(score[j], one, first);
      multiply_add<M>(score[j], two, second);
    }
  }
  if (has_next)
    keys.load(k_head, row, next);
  const float by = soft_cap > 0.0f ? LOG2 : scale * LOG2;
#pragma unroll
  for (int j = 0; j < 4; j++) {
    const int first = __shfl_sync(0xffffffffu, slot, 8 * j + 2 * t);
    const int second = __shfl_sync(0xffffffffu, slot, 8 * j + 2 * t + 1);
#pragma unroll
    for (int c = 0; c < 2; c++) {
      if (soft_cap > 0.0f)
        score[j][c] = soft_cap * tanhf(__fmul_rn(score[j][c], scale) / soft_cap);
      score[j][c] = __fmul_rn(score[j][c], by);
      score[j][c] = (c ? second : first) >= 0 ? score[j][c] : -INFINITY;
    }
  }
#pragma unroll
  for (int h = 0; h < 2; h++) {
    float top = fmaxf(fmaxf(score[2 * h][0], score[2 * h][1]),
                      fmaxf(score[2 * h + 1][0], score[2 * h + 1][1]));
    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
    if (t == 0)
      shared.tops[2 * warp + h][g] = top;
  }
  __syncthreads();
  /* The maximum up to each step, and what sums before that step are multiplied by. */
  float top[STEPS], factor[STEPS], safe[2] = {0.0f, 0.0f}; // the last: of this warp's keys
#pragma unroll
  for (int s = 0; s < STEPS; s++) {
    const float before = s ? top[s - 1] : -INFINITY;
    float now = before;
#pragma unroll
    for (int i = 0; i < STEP / 16; i++)
      now = fmaxf(now, shared.tops[s * (STEP / 16) + i][g]);
    top[s] = now;
    const float finite = now == -INFINITY ? 0.0f : now;
    factor[s] = fast_exp2(before - finite);
#pragma unroll
    for (int h = 0; h < 2; h++)
      safe[h] = s <= (2 * warp + h) * 16 / STEP ? finite : safe[h];
  }
#pragma unroll
  for (int h = 0; h < 2; h++) {
#pragma unroll
    for (int j = 2 * h; j < 2 * h + 2; j++) {
#pragma unroll
      for (int c = 0; c < 2; c++)
        score[j][c] = fast_exp2(__fadd_rn(score[j][c], -safe[h]));
      shared.scores[4 * warp + j][lane] = make_float2(score[j][0], score[j][1]);
    }
    shared.weights[2 * warp + h][lane] =
        make_uint2(pack_two<M>(score[2 * h][0], score[2 * h][1]),
                   pack_two<M>(score[2 * h + 1][0], score[2 * h + 1][1]));
  }
  copy_wait<0>();
  __syncthreads();
  const int first_step = low > begin ? (low - begin) / STEP : 0;
  const int last_step = (min(high - begin, TILES_UNIT) + STEP - 1) / STEP;
  float made[2 * CHUNKS][4];
#pragma unroll
  for (int n = 0; n < 2 * CHUNKS; n++)
    made[n][0] = made[n][1] = made[n][2] = made[n][3] = 0.0f;
#pragma unroll
  for (int s = 0; s < STEPS; s++) {
    if (s < first_step || s >= last_step)
      continue;
#pragma unroll
    for (int n = 0; n < 2 * CHUNKS; n++)
      made[n][0] = __fmul_rn(made[n][0], factor[s]), made[n][1] = __fmul_rn(made[n][1], factor[s]);
#pragma unroll
    for (int m = s * (STEP / 16); m < (s + 1) * (STEP / 16); m++) {
      const uint2 own = shared.weights[m][lane];
      const uint32_t weight[4] = {own.x, 0, own.y, 0};
#pragma unroll
      for (int c = 0; c < CHUNKS; c++) {
        uint32_t value[4];
        load_matrices_transposed(
            value, &shared.values[16 * m + lane % 16][64 * c + 16 * warp + lane / 16 * 8]);
        const uint32_t one[2] = {value[0], value[1]}, two[2] = {value[2], value[3]};
        multiply_add<M>(made[2 * c], weight, one);
        multiply_add<M>(made[2 * c + 1], weight, two);
      }
    }
  }
#pragma unroll
  for (int n = 0; n < 2 * CHUNKS; n++) {
    if (g < rows)
      *reinterpret_cast<float2*>(
          &shared.part[to + g][64 * (n / 2) + 16 * warp + 8 * (n % 2) + 2 * t]) =
          make_float2(made[n][0], made[n][1]);
  }
  if (warp != 0)
    return;
  float sum = 0.0f;
#pragma unroll
  for (int s = 0; s < STEPS; s++) {
    if (s < first_step || s >= last_step)
      continue;
    sum = __fmul_rn(sum, factor[s]);
#pragma unroll
    for (int j = s * (STEP / 8); j < (s + 1) * (STEP / 8); j++) {
      const float2 own = shared.scores[j][lane];
      sum = __fadd_rn(__fadd_rn(sum, own.x), own.y);
    }
  }
  sum = __fadd_rn(sum, __shfl_xor_sync(0xffffffffu, sum, 1));
  sum = __fadd_rn(sum, __shfl_xor_sync(0xffffffffu, sum, 2));
  if (t == 0 && g < rows)
    shared.maximum[to + g] = top[STEPS - 1], shared.sum[to + g] = sum;
}

template <class T, class KV, int CHUNKS>
static __device__ __forceinline__ void
one_run(one_block<typename tiles_elements<T, KV>::type, CHUNKS>& shared, const T* q, const KV* k,
        const KV* v, const int32_t* table, const int32_t* row_ids, const int32_t* row_starts,
        const int32_t* kv_lengths, const float* sinks, T* out, const paged_sizes& s, index_t pages,
        index_t page_size, index_t table_rows, index_t table_pages, index_t q_head,
        index_t out_head, float scale, float soft_cap) {
  typedef typename tiles_elements<T, KV>::type M;
  constexpr int HEAD = 64 * CHUNKS, THREADS = 32 * ONE_WARPS;
  static_assert(ONE_ROWS * HEAD <= ONE_BLOCKS * THREADS, "a thread joins one element");
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int rows = s.tokens > 0 ? (int)s.group : 0, rank = (int)blockIdx.z;
  const index_t kv_head = blockIdx.y, most_keys = table_pages * page_size, row = s.kv_heads * HEAD;
  const uint32_t page_keys = (uint32_t)page_size;
  const KV *k_head = k + kv_head * HEAD, *v_head = v + kv_head * HEAD;
  const int own = warp * 32 + lane;
  const auto first_key = [&](const tiles_place& place) {
    return (place.low(-place.begin, s.window) / TILES_UNIT + rank) * TILES_UNIT;
  };
  const auto page_of = [&](const tiles_place& place, int key) {
    return table[(index_t)place.row_id * table_pages + (uint32_t)key / page_keys];
  };
  const auto is_seen = [&](const tiles_place& place, int key) {
    return place.row_id >= 0 && key >= place.low(-place.begin, s.window) &&
           key < place.high(-place.begin) && key < place.length;
  };

  const auto first_row = [&]() -> tiles_place {
    if (s.rows < 1)
      return {-1, 0, 0, 0};
    return tiles_of_row(row_ids, row_starts, kv_lengths, 0, most_keys, table_rows);
  };

  const tiles_place guess = first_row();
  const int guess_key = guess.row_id >= 0 ? first_key(guess) + own : 0;
  const bool has_guess = is_seen(guess, guess_key);
  const int32_t guess_page = has_guess ? page_of(guess, guess_key) : -1;
  const int guess_slot =
      has_guess ? one_slot(guess_page, guess_key, 0, guess_key + 1, pages, page_keys) : -1;
  if (guess_slot >= 0) {
    tiles_bring<CHUNKS>(k_head + (index_t)guess_slot * row);
    tiles_bring<CHUNKS>(v_head + (index_t)guess_slot * row);
  }
  wait_for_previous();

  const int32_t page = has_guess ? page_of(guess, guess_key) : -1;
  one_keys<T, KV, CHUNKS> keys;
  keys.load(k_head, row, guess_slot);
  one_values<M, KV, CHUNKS>(shared, v_head, row, guess_slot);
  words<T, 8> loaded[2 * CHUNKS];
  const bool wide_in = is_aligned(q, 16) && q_head % 8 == 0;
#pragma unroll
  for (int i = 0; i < 2 * CHUNKS; i++) {
    loaded[i].fill(0);
    const T* from = q + (kv_head * rows + g) * q_head + 32 * i + 8 * t;
    if (g < rows && wide_in) {
      loaded[i].load(from);
    } else if (g < rows) {
#pragma unroll
      for (int w = 0; w < 4; w++)
        loaded[i].word[w] = pack_two<T>(to_float(from[2 * w]), to_float(from[2 * w + 1]));
    }
  }
  tiles_place place = first_row();
  /* All four numbers are asked for at once. */
  asm volatile("" ::"r"(place.row_id), "r"(place.begin), "r"(place.count), "r"(place.length));
  if (place.begin != 0 || place.count != 1)
    place = tiles_find(row_ids, row_starts, kv_lengths, s, 0, most_keys, table_rows, &shared.place);
  const bool is_none = place.row_id < 0;
  const int low = is_none ? 0 : place.low(-place.begin, s.window);
  const int high = is_none ? 0 : place.high(-place.begin);
  const int32_t* own_pages = table + (index_t)max(place.row_id, 0) * table_pages;
  const auto own_page = [&](int key) {
    return key >= low && key < high ? own_pages[(uint32_t)key / page_keys] : -1;
  };
  const int begin = low / TILES_UNIT;
  int slot = guess_slot;
  const bool is_right = guess.row_id == place.row_id && guess.begin == place.begin &&
                        guess.count == place.count && guess.length == place.length &&
                        page == guess_page;
  if (!__all_sync(0xffffffffu, is_right)) {
    copy_wait<0>();
    __syncwarp();
    const int key = (begin + rank) * TILES_UNIT + own;
    slot = one_slot(own_page(key), key, low, high, pages, page_keys);
    keys.load(k_head, row, slot);
    one_values<M, KV, CHUNKS>(shared, v_head, row, slot);
  }
  const float scales = scale * tiles_query(loaded, M());
  uint32_t query[2 * CHUNKS][4];
#pragma unroll
  for (int i = 0; i < 2 * CHUNKS; i++)
#pragma unroll
    for (int w = 0; w < 4; w++)
      query[i][w] = loaded[i].word[w];

  /* The element of the result that this thread joins. */
  const int each = rows * HEAD / ONE_BLOCKS, at = rank * each + own;
  const bool joins = own < each;
  float best = -INFINITY, total = 0.0f, kept = 0.0f;
  const int units = (high + TILES_UNIT - 1) / TILES_UNIT;
  /* Rounds of units whose parts lie in shared memory together. */
  const int most = ONE_PARTS / max(rows, 1);
  const auto bring = [&](int key, int32_t its_page) {
    const int found = one_slot(its_page, key, low, high, pages, page_keys);
    if (found >= 0) {
      tiles_bring<CHUNKS>(k_head + (index_t)found * row);
      tiles_bring<CHUNKS>(v_head + (index_t)found * row);
    }
    return found;
  };
  constexpr int ROUND = ONE_BLOCKS * TILES_UNIT;
  const int second = (begin + rank + ONE_BLOCKS) * TILES_UNIT + own;
  int next = bring(second, own_page(second));
#pragma unroll 1
  for (int first = begin; first < units; first += most * ONE_BLOCKS) {
    const int rounds = min(most, (units - first + ONE_BLOCKS - 1) / ONE_BLOCKS);
    if (first != begin)
      cluster_wait(); /* others have read the parts that were here */
#pragma unroll 1
    for (int r = 0; r < rounds; r++) {
      const int unit = first + r * ONE_BLOCKS + rank;
      if (unit >= units)
        break;
      const bool has_next = unit + ONE_BLOCKS < units;
      const int ahead = unit * TILES_UNIT + own + 2 * ROUND;
      const int32_t ahead_page = own_page(ahead);
      one_unit<T, KV, CHUNKS>(shared, keys, query, k_head, row, scales, soft_cap, slot, next,
                              has_next, unit * TILES_UNIT, low, high, rows, r * rows);
      if (!has_next)
        break;
      __syncthreads(); /* the values have been used */
      slot = next;
      one_values<M, KV, CHUNKS>(shared, v_head, row, slot);
      next = bring(ahead, ahead_page);
    }
    cluster_arrive();
    cluster_wait();
#pragma unroll 1
    for (int r = 0; joins && r < rounds; r++) {
      const int from = r * rows + at / HEAD;
      float maximum[ONE_BLOCKS], sum[ONE_BLOCKS], value[ONE_BLOCKS];
#pragma unroll
      for (int u = 0; u < ONE_BLOCKS; u++) {
        if (first + r * ONE_BLOCKS + u >= units)
          continue;
        maximum[u] = cluster_read(&shared.maximum[from], u);
        sum[u] = cluster_read(&shared.sum[from], u);
        value[u] = cluster_read(&shared.part[from][at % HEAD], u);
      }
#pragma unroll
      for (int u = 0; u < ONE_BLOCKS; u++) {
        if (first + r * ONE_BLOCKS + u >= units)
          continue;
        float before, now, top;
        paged_join(best, total, maximum[u], sum[u], before, now, top);
        best = top, total = paged_mix(total, before, sum[u], now);
        kept = paged_mix(kept, before, value[u], now);
      }
    }
    __syncwarp();
    cluster_arrive();
  }
  if (joins) {
    const index_t head = kv_head * rows + at / HEAD;
    const float by = paged_factor(best, total, sinks, head);
    out[head * out_head + at % HEAD] = from_float<T>(by == 0.0f ? 0.0f : __fmul_rn(kept, by));
  }
  copy_wait<0>();
  if (begin < units)
    cluster_wait(); /* others have read what this block has made */
}
#endif

} // namespace accrt_cuda

#define ACCRT_CUDA_PAGED_ONE(ENTRY, T, KV, CHUNKS, PLAIN)                                          \
  extern "C" __global__ void __launch_bounds__(32 * accrt_cuda::ONE_WARPS)                         \
      ENTRY(ACCRT_CUDA_PAGED_TILES_PARAMETERS(T, KV)) {                                            \
    extern __shared__ __align__(16) unsigned char memory[];                                        \
    accrt_cuda::allow_next();                                                                      \
    ACCRT_CUDA_PAGED_SIZES(PLAIN)                                                                  \
    (void)head_size, (void)partial, (void)which, (void)q_token, (void)out_token;                   \
    typedef accrt_cuda::one_block<accrt_cuda::tiles_elements<T, KV>::type, CHUNKS> block;          \
    accrt_cuda::one_run<T, KV, CHUNKS>(*reinterpret_cast<block*>(memory), q, k, v, table, row_ids, \
                                       row_starts, kv_lengths, PLAIN ? nullptr : sinks, out,       \
                                       sizes, pages, page_size, table_rows, table_pages, q_head,   \
                                       out_head, scale, soft_cap);                                 \
  }

#define ACCRT_CUDA_PAGED_ONE_TILES(ENTRY, T, KV, CHUNKS, PLAIN)                                    \
  extern "C" __global__ void __launch_bounds__(128, 2)                                             \
      ENTRY(ACCRT_CUDA_PAGED_TILES_PARAMETERS(T, KV)) {                                            \
    accrt_cuda::wait_for_previous();                                                               \
    accrt_cuda::allow_next();                                                                      \
    __shared__ accrt_cuda::tiles_block<CHUNKS> shared;                                             \
    ACCRT_CUDA_PAGED_SIZES(PLAIN)                                                                  \
    (void)head_size, (void)partial;                                                                \
    if (blockIdx.z == 0)                                                                           \
      accrt_cuda::tiles_run<T, KV, CHUNKS>(                                                        \
          shared, q, k, v, table, row_ids, row_starts, kv_lengths, PLAIN ? nullptr : sinks, out,   \
          nullptr, sizes, pages, page_size, table_rows, table_pages, q_token, q_head, out_token,   \
          out_head, scale, soft_cap, which, 0, blockIdx.y);                                        \
  }

#endif /* ACCRT_CUDA_PAGED_ONE_CUH_ */
