/* paged_tiles.cuh - paged_attention.cuh for 16-bit queries and pages of the same type or of e4m3,
 * by tensor cores: heads of 64 or 128.
 *
 * ACCRT_CUDA_PAGED_TILES(ENTRY, T, KV, CHUNKS, PLAIN): T is the type of queries and result, KV
 * that of the pages, CHUNKS the head in pieces of 64. `which` says for which tokens.
 * ACCRT_CUDA_PAGED_PROMPTS(ENTRY, T, KV, CHUNKS, PLAIN): the same by fewer blocks, where tokens are
 * many. ACCRT_CUDA_PAGED_TILES_JOIN(ENTRY, T, PLAIN): joins what shared units gave. PLAIN is as
 * there.
 *
 * A tile has up to 16 rows: some tokens of one sequence, times the query heads of a key head. A
 * warp takes a tile through a unit of 128 keys, in steps of 32 (16 where heads have 128), and the
 * parts that units give are joined in ascending order from key 0 of the sequence on. What a row
 * gets depends on its own keys alone: keys that it does not see have the weight 0, and units
 * without any change nothing. So a query's result has the same bits alone, among others, and in
 * chunks of any size. (If a value is not a finite number, tokens of the same sequence and tile
 * that come before it do not give numbers either.)
 *
 * x of the grid is a token, y a key head and up to 16 of its query heads. The block of a tile's
 * first token works, the others end. Where the tokens of a sequence are one tile, as in decoding,
 * the block's four warps take four units; else each warp has a tile of its own. With `partial`, z
 * of the grid shares units out, each unit's part is stored, and the join goes over them, unless
 * four units are all that there is. Of up to 4 tokens, what a block seems to need is on its way
 * before the kernel ahead has ended.
 *
 * Keys and values go from memory to registers as the tensor cores want them: the order of the
 * elements of a head in the products, and of keys, is chosen so that each thread loads 16 bytes.
 * Weights are rounded to T before they meet the values, sums are of what they were before.
 *
 * Pages of e4m3 become f16 in registers, exactly, and all products are of f16 then. A row of bf16
 * queries is multiplied by a power of two that makes its largest element less than 2^15, and its
 * scale by the inverse: what is lost is below 2^-39 of that element. */
#ifndef ACCRT_CUDA_PAGED_TILES_CUH_
#define ACCRT_CUDA_PAGED_TILES_CUH_

#include "paged_attention.cuh"
#include "tensorcore.cuh"

namespace accrt_cuda {

constexpr int TILES_UNIT = 128, TILES_WARPS = 4, TILES_ROWS = 16, TILES_JOINED = 64;
/** Which tokens a launch is for: all, those that are the only one of their row, or all but
 * those. */
constexpr int TILES_ALL = 0, TILES_ALONE = 1, TILES_OTHERS = 2;
/** Tokens up to which blocks ask for keys before they know which. */
constexpr unsigned TILES_GUESSED = 4;

/** The batch row of a token: its row of the table (-1: none), first token, tokens and keys. */
struct tiles_place {
  int row_id, begin, count, length;

  __device__ __forceinline__ int high(int token) const { return length - count + token + 1; }
  __device__ __forceinline__ int low(int token, index_t window) const {
    return (int)paged_low(high(token), window);
  }
  /** Whether all units of the row's one tile are those of four warps. */
  __device__ __forceinline__ bool is_short(index_t window) const {
    return low(0, window) / TILES_UNIT / TILES_WARPS == (length - 1) / TILES_UNIT / TILES_WARPS;
  }
};

static __device__ __forceinline__ int tiles_heads(const paged_sizes& s) {
  return (int)min(s.group, (index_t)TILES_ROWS);
}

/** Of batch row r; not valid where its numbers do not fit. */
static __device__ __forceinline__ tiles_place tiles_of_row(const int32_t* row_ids,
                                                           const int32_t* row_starts,
                                                           const int32_t* kv_lengths, index_t r,
                                                           index_t most_keys, index_t table_rows) {
  const int begin = row_starts[r], count = row_starts[r + 1] - begin, row = row_ids[r];
  const int length = kv_lengths[r];
  const bool fits = row >= 0 && row < table_rows && length >= count && length <= most_keys;
  return {fits ? row : -1, begin, count, length};
}

/** Looked for by the whole block, but where each row has one token, as in decoding. */
static __device__ __forceinline__ tiles_place tiles_find(const int32_t* row_ids,
                                                         const int32_t* row_starts,
                                                         const int32_t* kv_lengths,
                                                         const paged_sizes& s, index_t token,
                                                         index_t most_keys, index_t table_rows,
                                                         tiles_place* shared) {
  if (token < s.rows) {
    const tiles_place guess =
        tiles_of_row(row_ids, row_starts, kv_lengths, token, most_keys, table_rows);
    if (guess.begin == token && guess.count == 1)
      return guess;
  }
  if (threadIdx.x == 0)
    *shared = {-1, 0, 0, 0};
  __syncthreads();
  for (index_t r = threadIdx.x; r < s.rows; r += blockDim.x) {
    const int begin = row_starts[r], end = row_starts[r + 1];
    if (token >= begin && token < end)
      *shared = tiles_of_row(row_ids, row_starts, kv_lengths, r, most_keys, table_rows);
  }
  __syncthreads();
  return *shared;
}

template <int CHUNKS> struct tiles_block {
  float values[TILES_WARPS][32 * CHUNKS][32];
  float maximum[TILES_WARPS][TILES_ROWS], sum[TILES_WARPS][TILES_ROWS];
  int2 slots[TILES_WARPS][TILES_UNIT / 2]; // of a unit's keys; below 0: not there
  tiles_place place;
};

/** What a unit gave to the rows that a thread has: 8 elements times CHUNKS of rows lane / 4 (0 and
 * 1 of the last index) and that + 8 (2 and 3). */
template <int CHUNKS> struct tiles_part {
  float values[8 * CHUNKS][4];
  float maximum[2], sum[2];
};

/** Rows of this thread: keys [low, high) are seen; none where high is 0. Keys [all_low, all_high)
 * are seen by all rows of the tile. */
struct tiles_rows {
  int low[2], high[2], all_low, all_high;
};

/** How elements of the pages lie in registers: eight in WORDS words; and what products are of. */
template <class T, class KV> struct tiles_elements {
  typedef KV type;
  static constexpr int WORDS = 4, FACTOR = 1;
};
template <class T> struct tiles_elements<T, e4m3> {
  typedef f16 type;
  static constexpr int WORDS = 2, FACTOR = 2; // keys of a step, as they take half the registers
};

/** Eight elements, or zeros for a slot below 0. */
template <class T>
static __device__ __forceinline__ void tiles_load(uint32_t (&to)[4], const T* from, int slot,
                                                  index_t row, int at) {
  uint4 v = {0, 0, 0, 0};
  if (slot >= 0)
    v = *reinterpret_cast<const uint4*>(from + (index_t)slot * row + at);
  to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
}
static __device__ __forceinline__ void tiles_load(uint32_t (&to)[2], const e4m3* from, int slot,
                                                  index_t row, int at) {
  uint2 v = {0, 0};
  if (slot >= 0)
    v = *reinterpret_cast<const uint2*>(from + (index_t)slot * row + at);
  to[0] = v.x, to[1] = v.y;
}

/** The lower or upper two bytes of a word, e4m3, as f16. */
static __device__ __forceinline__ uint32_t tiles_two(uint32_t word, bool upper) {
  uint32_t two;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(two) : "h"((uint16_t)(upper ? word >> 16 : word)));
#else
  const uint32_t b = __byte_perm(word, 0, upper ? 0x3424u : 0x1404u);
  asm("mul.rn.f16x2 %0, %1, %2;"
      : "=r"(two)
      : "r"((b & 0x80008000u) | (b >> 1 & 0x3f803f80u)), "r"(0x5c005c00u));
  two |= (((b & 0x7f007f00u) + 0x01000100u) >> 15 & 0x00010001u) * 0x7fffu; // NaN
#endif
  return two;
}

/** Keys as the product takes them. */
static __device__ __forceinline__ void tiles_key(uint32_t (&to)[4], const uint32_t (&from)[4]) {
#pragma unroll
  for (int i = 0; i < 4; i++)
    to[i] = from[i];
}
static __device__ __forceinline__ void tiles_key(uint32_t (&to)[4], const uint32_t (&from)[2]) {
#pragma unroll
  for (int i = 0; i < 4; i++)
    to[i] = tiles_two(from[i / 2], i % 2);
}

/** Element j of two values, side by side. */
static __device__ __forceinline__ uint32_t tiles_pair(const uint32_t (&a)[4],
                                                      const uint32_t (&b)[4], int j) {
  return __byte_perm(a[j / 2], b[j / 2], j % 2 ? 0x7632u : 0x5410u);
}
static __device__ __forceinline__ uint32_t tiles_pair(const uint32_t (&a)[2],
                                                      const uint32_t (&b)[2], int j) {
  return tiles_two(__byte_perm(a[j / 4], b[j / 4], j % 4 / 2 ? 0x7362u : 0x5140u), j % 2);
}

/** Queries of one row, four elements times COUNT of a thread, as products take them; what their
 * scores are to be multiplied by. */
template <class T, int COUNT>
static __device__ __forceinline__ float tiles_query(words<T, 8> (&row)[COUNT], T) {
  return 1.0f;
}
template <int COUNT>
static __device__ __forceinline__ float tiles_query(words<bf16, 8> (&row)[COUNT], f16) {
  float most = 0.0f;
#pragma unroll
  for (int i = 0; i < 8 * COUNT; i++)
    most = fmaxf(most, fabsf(row[i / 8].get(i % 8)));
  most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
  most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
  const uint32_t exponent = __float_as_uint(most) >> 23; // 0 and 255: as it is
  const uint32_t up = exponent % 255 == 0 ? 127u : min(268u - exponent, 253u);
  const float factor = __uint_as_float(up << 23);
#pragma unroll
  for (int i = 0; i < COUNT; i++)
#pragma unroll
    for (int w = 0; w < 4; w++)
      row[i].word[w] = pack_two<f16>(row[i].get(2 * w) * factor, row[i].get(2 * w + 1) * factor);
  return __uint_as_float((254u - up) << 23);
}

/** A row of keys or values to the L2 cache: all of a unit are asked for before one is used. */
template <int CHUNKS, class KV> static __device__ __forceinline__ void tiles_bring(const KV* row) {
#pragma unroll
  for (int at = 0; at < CHUNKS * 64 * (int)sizeof(KV); at += 128)
    asm volatile("prefetch.global.L2 [%0];" ::"l"(reinterpret_cast<const char*>(row) + at));
}

/** Of a step whose slots these are, as the second operand of queries times keys has them. */
template <class KV, int CHUNKS, int TILES, int WORDS>
static __device__ __forceinline__ void tiles_keys(uint32_t (&to)[TILES][2 * CHUNKS][WORDS],
                                                  const KV* k_head, const int2* slots,
                                                  index_t row) {
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
  for (int j = 0; j < TILES; j++) {
    const int from = reinterpret_cast<const int*>(slots)[8 * j + g];
#pragma unroll
    for (int i = 0; i < 2 * CHUNKS; i++)
      tiles_load(to[j][i], k_head, from, row, 32 * i + 8 * t);
  }
}

/** Four keys of 16 for each thread, in pairs that the product wants side by side. */
template <class KV, int CHUNKS, int PARTS, int WORDS>
static __device__ __forceinline__ void tiles_values(uint32_t (&to)[PARTS][4][CHUNKS][WORDS],
                                                    const KV* v_head, const int2* slots,
                                                    index_t row) {
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
  for (int m = 0; m < 2 * PARTS; m++) {
    const int2 from = slots[4 * m + t];
#pragma unroll
    for (int c = 0; c < CHUNKS; c++) {
      tiles_load(to[m / 2][m % 2 * 2][c], v_head, from.x, row, 64 * c + 8 * g);
      tiles_load(to[m / 2][m % 2 * 2 + 1][c], v_head, from.y, row, 64 * c + 8 * g);
    }
  }
}

/** A warp's tile with the keys [begin, end) of a unit; the tile sees none below `low`. `scale` is
 * that of each of the thread's rows. */
template <class T, class KV, int CHUNKS>
static __device__ __forceinline__ void
tiles_attend(tiles_part<CHUNKS>& part, int2* slots, const uint32_t (&query)[4 * CHUNKS][4],
             const tiles_rows& rows, const KV* k_head, const KV* v_head, index_t row,
             const int32_t* own_pages, index_t pages, uint32_t page_keys, int begin, int low,
             int end, const float (&scale)[2], float soft_cap) {
  typedef tiles_elements<T, KV> elements;
  typedef typename elements::type M;
  constexpr int STEP = 32 / CHUNKS * elements::FACTOR, TILES = STEP / 8;
  constexpr float LOG2 = 1.4426950408889634f;
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
  for (int h = 0; h < 2; h++)
    part.maximum[h] = -INFINITY, part.sum[h] = 0.0f;
#pragma unroll
  for (int n = 0; n < 8 * CHUNKS; n++)
#pragma unroll
    for (int c = 0; c < 4; c++)
      part.values[n][c] = 0.0f;
  bool is_there = true;
#pragma unroll
  for (int i = 0; i < TILES_UNIT / 32; i++) {
    const int key = begin + 32 * i + lane;
    int slot = -1;
    if (key >= low && key < end) {
      const int32_t page = own_pages[(uint32_t)key / page_keys];
      if (page >= 0 && page < pages)
        slot = (int)((uint32_t)page * page_keys + (uint32_t)key % page_keys);
      is_there = is_there && slot >= 0;
    }
    if (slot >= 0) {
      tiles_bring<CHUNKS>(k_head + (index_t)slot * row);
      tiles_bring<CHUNKS>(v_head + (index_t)slot * row);
    }
    reinterpret_cast<int*>(slots)[32 * i + lane] = slot;
  }
  const bool all_there = __all_sync(0xffffffffu, is_there);
  __syncwarp();
  // Keys and values of the next step are on their way as soon as their registers are free.
  int base = low > begin ? low / STEP * STEP : begin;
  uint32_t keys[TILES][2 * CHUNKS][elements::WORDS], values[STEP / 16][4][CHUNKS][elements::WORDS];
  if (base < end) {
    tiles_keys<KV, CHUNKS>(keys, k_head, slots + (base - begin) / 2, row);
    tiles_values<KV, CHUNKS>(values, v_head, slots + (base - begin) / 2, row);
  }
#pragma unroll 1
  for (; base < end; base += STEP) {
    const int2* own_slots = slots + (base - begin) / 2;
    const bool has_next = base + STEP < end;
    float score[TILES][4];
#pragma unroll
    for (int j = 0; j < TILES; j++) {
#pragma unroll
      for (int c = 0; c < 4; c++)
        score[j][c] = 0.0f;
#pragma unroll
      for (int i = 0; i < 2 * CHUNKS; i++) {
        uint32_t key[4];
        tiles_key(key, keys[j][i]);
        const uint32_t first[2] = {key[0], key[1]}, second[2] = {key[2], key[3]};
        multiply_add<M>(score[j], query[2 * i], first);
        multiply_add<M>(score[j], query[2 * i + 1], second);
      }
    }
    if (has_next)
      tiles_keys<KV, CHUNKS>(keys, k_head, own_slots + STEP / 2, row);
    if (soft_cap > 0.0f) {
#pragma unroll
      for (int j = 0; j < TILES; j++)
#pragma unroll
        for (int c = 0; c < 4; c++)
          score[j][c] = soft_cap * tanhf(__fmul_rn(score[j][c], scale[c / 2]) / soft_cap);
    }
    const float by[2] = {soft_cap > 0.0f ? LOG2 : scale[0] * LOG2,
                         soft_cap > 0.0f ? LOG2 : scale[1] * LOG2};
#pragma unroll
    for (int j = 0; j < TILES; j++)
#pragma unroll
      for (int c = 0; c < 4; c++)
        score[j][c] = __fmul_rn(score[j][c], by[c / 2]);
    if (!all_there || base < rows.all_low || base + STEP > rows.all_high) {
#pragma unroll
      for (int j = 0; j < TILES; j++) {
        const int2 from = own_slots[4 * j + t];
#pragma unroll
        for (int c = 0; c < 4; c++) {
          const int key = base + 8 * j + 2 * t + c % 2;
          const bool is_seen =
              key >= rows.low[c / 2] && key < rows.high[c / 2] && (c % 2 ? from.y : from.x) >= 0;
          score[j][c] = is_seen ? score[j][c] : -INFINITY;
        }
      }
    }
    float next[2] = {part.maximum[0], part.maximum[1]}, factor[2], safe[2];
#pragma unroll
    for (int j = 0; j < TILES; j++)
#pragma unroll
      for (int c = 0; c < 4; c++)
        next[c / 2] = fmaxf(next[c / 2], score[j][c]);
#pragma unroll
    for (int h = 0; h < 2; h++) {
      next[h] = fmaxf(next[h], __shfl_xor_sync(0xffffffffu, next[h], 1));
      next[h] = fmaxf(next[h], __shfl_xor_sync(0xffffffffu, next[h], 2));
      safe[h] = next[h] == -INFINITY ? 0.0f : next[h];
      factor[h] = fast_exp2(part.maximum[h] - safe[h]);
      part.maximum[h] = next[h];
      part.sum[h] = __fmul_rn(part.sum[h], factor[h]);
    }
#pragma unroll
    for (int j = 0; j < TILES; j++)
#pragma unroll
      for (int c = 0; c < 4; c++) {
        score[j][c] = fast_exp2(__fadd_rn(score[j][c], -safe[c / 2]));
        part.sum[c / 2] = __fadd_rn(part.sum[c / 2], score[j][c]);
      }
#pragma unroll
    for (int n = 0; n < 8 * CHUNKS; n++)
#pragma unroll
      for (int c = 0; c < 4; c++)
        part.values[n][c] = __fmul_rn(part.values[n][c], factor[c / 2]);
#pragma unroll
    for (int m = 0; m < STEP / 16; m++) {
      const uint32_t weights[4] = {pack_two<M>(score[2 * m][0], score[2 * m][1]),
                                   pack_two<M>(score[2 * m][2], score[2 * m][3]),
                                   pack_two<M>(score[2 * m + 1][0], score[2 * m + 1][1]),
                                   pack_two<M>(score[2 * m + 1][2], score[2 * m + 1][3])};
#pragma unroll
      for (int c = 0; c < CHUNKS; c++)
#pragma unroll
        for (int j = 0; j < 8; j++) {
          const uint32_t pairs[2] = {tiles_pair(values[m][0][c], values[m][1][c], j),
                                     tiles_pair(values[m][2][c], values[m][3][c], j)};
          multiply_add<M>(part.values[8 * c + j], weights, pairs);
        }
    }
    if (has_next)
      tiles_values<KV, CHUNKS>(values, v_head, own_slots + STEP / 2, row);
  }
  __syncwarp(); // before the slots of the next unit
#pragma unroll
  for (int h = 0; h < 2; h++) {
    part.sum[h] = __fadd_rn(part.sum[h], __shfl_xor_sync(0xffffffffu, part.sum[h], 1));
    part.sum[h] = __fadd_rn(part.sum[h], __shfl_xor_sync(0xffffffffu, part.sum[h], 2));
  }
}

/** Before what is ahead has ended: keys and values that a block will see, to the L2 cache. It looks
 * at numbers that may be written at this time, and takes them for a guess. */
template <class KV, int CHUNKS>
static __device__ __forceinline__ void
tiles_guess(const KV* k, const KV* v, const int32_t* table, const int32_t* row_ids,
            const int32_t* row_starts, const int32_t* kv_lengths, const paged_sizes& s,
            index_t pages, index_t page_size, index_t table_rows, index_t table_pages) {
  constexpr int HEAD = 64 * CHUNKS;
  if ((index_t)blockIdx.x >= s.rows || gridDim.x > TILES_GUESSED)
    return;
  const tiles_place place = tiles_of_row(row_ids, row_starts, kv_lengths, blockIdx.x,
                                         table_pages * page_size, table_rows);
  if (place.row_id < 0)
    return;
  const uint32_t pieces = ((uint32_t)s.group + TILES_ROWS - 1) / TILES_ROWS;
  const index_t head = (index_t)(blockIdx.y / pieces) * HEAD, row = s.kv_heads * HEAD;
  const int low = place.low(place.count - 1, s.window), warp = threadIdx.x / 32;
  const int unit = low / TILES_UNIT / TILES_WARPS * TILES_WARPS + blockIdx.z * TILES_WARPS + warp;
#pragma unroll
  for (int i = 0; i < TILES_UNIT / 32; i++) {
    const int key = unit * TILES_UNIT + 32 * i + (int)threadIdx.x % 32;
    if (key < low || key >= place.length)
      continue;
    const int32_t page = table[place.row_id * table_pages + (uint32_t)key / (uint32_t)page_size];
    if (page < 0 || page >= pages)
      continue;
    const index_t slot = (index_t)page * page_size + (uint32_t)key % (uint32_t)page_size;
    tiles_bring<CHUNKS>(k + head + slot * row);
    tiles_bring<CHUNKS>(v + head + slot * row);
  }
}

/** Eight elements of a result, multiplied by `by`. */
template <class T>
static __device__ __forceinline__ void tiles_store(T* to, bool wide, const float (&x)[8],
                                                   float by) {
  float y[8];
#pragma unroll
  for (int j = 0; j < 8; j++)
    y[j] = by == 0.0f ? 0.0f : __fmul_rn(x[j], by);
  if (wide) {
    *reinterpret_cast<uint4*>(to) = {pack_two<T>(y[0], y[1]), pack_two<T>(y[2], y[3]),
                                     pack_two<T>(y[4], y[5]), pack_two<T>(y[6], y[7])};
    return;
  }
#pragma unroll
  for (int j = 0; j < 8; j++)
    to[j] = from_float<T>(y[j]);
}

template <class T, class KV, int CHUNKS>
static __device__ __forceinline__ void
tiles_run(tiles_block<CHUNKS>& shared, const T* q, const KV* k, const KV* v, const int32_t* table,
          const int32_t* row_ids, const int32_t* row_starts, const int32_t* kv_lengths,
          const float* sinks, T* out, float* partial, const paged_sizes& s, index_t pages,
          index_t page_size, index_t table_rows, index_t table_pages, index_t q_token,
          index_t q_head, index_t out_token, index_t out_head, float scale, float soft_cap,
          index_t which, index_t token, uint32_t piece) {
  constexpr int HEAD = 64 * CHUNKS, TILES = 8 * CHUNKS;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int heads = tiles_heads(s), most = TILES_ROWS / heads;
  const uint32_t pieces = ((uint32_t)s.group + TILES_ROWS - 1) / TILES_ROWS;
  const index_t kv_head = piece / pieces, first_head = piece % pieces * TILES_ROWS;
  const bool wide_out = is_aligned(out, 16) && out_token % 8 == 0 && out_head % 8 == 0;
  const tiles_place place = tiles_find(row_ids, row_starts, kv_lengths, s, token,
                                       table_pages * page_size, table_rows, &shared.place);
  if (which == (place.count == 1 ? TILES_OTHERS : TILES_ALONE))
    return;
  if (place.row_id < 0) {
    for (int at = threadIdx.x; !partial && at < heads * HEAD; at += 32 * TILES_WARPS) {
      if (first_head + at / HEAD < s.group)
        out[token * out_token + (kv_head * s.group + first_head + at / HEAD) * out_head +
            at % HEAD] = from_float<T>(0.0f);
    }
    return;
  }
  const int index = (int)token - place.begin;
  const bool is_own = place.count > most; // each warp has a tile
  const bool is_direct = !partial || (!is_own && place.is_short(s.window));
  if (index % (is_own ? TILES_WARPS * most : most) != 0 ||
      (partial && is_direct && blockIdx.z != 0))
    return;
  const int share = partial ? (int)blockIdx.z : 0, shares = partial ? (int)gridDim.z : 1;
  const int first = is_own ? index + warp * most : 0, last = min(first + most, place.count);
  if (first >= last)
    return; // such warps wait for no others

  // Rows g and g + 8 of the tile.
  tiles_rows rows;
  rows.all_low = place.low(last - 1, s.window), rows.all_high = place.high(first);
  int row_token[2], row_head[2];
#pragma unroll
  for (int h = 0; h < 2; h++) {
    const int row = g + 8 * h, own = first + row / heads;
    row_token[h] = place.begin + own;
    row_head[h] = (int)first_head + row % heads;
    const bool is_there = own < last && row_head[h] < s.group;
    rows.low[h] = is_there ? place.low(own, s.window) : 0;
    rows.high[h] = is_there ? place.high(own) : 0;
    row_head[h] += (int)(kv_head * s.group);
  }
  const bool wide_in = is_aligned(q, 16) && q_token % 8 == 0 && q_head % 8 == 0;
  uint32_t query[4 * CHUNKS][4];
  float scales[2];
#pragma unroll
  for (int h = 0; h < 2; h++) {
    words<T, 8> loaded[2 * CHUNKS];
#pragma unroll
    for (int i = 0; i < 2 * CHUNKS; i++) {
      loaded[i].fill(0);
      const T* from = q + row_token[h] * q_token + row_head[h] * q_head + 32 * i + 8 * t;
      if (rows.high[h] > 0 && wide_in) {
        loaded[i].load(from);
      } else if (rows.high[h] > 0) {
#pragma unroll
        for (int w = 0; w < 4; w++)
          loaded[i].word[w] = pack_two<T>(to_float(from[2 * w]), to_float(from[2 * w + 1]));
      }
    }
    scales[h] = scale * tiles_query(loaded, typename tiles_elements<T, KV>::type());
#pragma unroll
    for (int i = 0; i < 2 * CHUNKS; i++) {
      query[2 * i][h] = loaded[i].word[0], query[2 * i][2 + h] = loaded[i].word[1];
      query[2 * i + 1][h] = loaded[i].word[2], query[2 * i + 1][2 + h] = loaded[i].word[3];
    }
  }

  const int low = place.low(first, s.window), high = place.high(last - 1);
  const int32_t* own_pages = table + (index_t)place.row_id * table_pages;
  const int across = is_own ? 0 : warp, each = is_own ? 1 : TILES_WARPS;
  float top[2] = {-INFINITY, -INFINITY}, total[2] = {0.0f, 0.0f}, kept[TILES];
#pragma unroll
  for (int n = 0; n < TILES; n++)
    kept[n] = 0.0f;
  bool has_begun = false;
  for (int unit = low / TILES_UNIT / each * each + share * each + across;
       (unit - across) * TILES_UNIT < high; unit += shares * each) {
    tiles_part<CHUNKS> part;
    tiles_attend<T, KV, CHUNKS>(part, shared.slots[warp], query, rows, k + kv_head * HEAD,
                                v + kv_head * HEAD, s.kv_heads * HEAD, own_pages, pages,
                                (uint32_t)page_size, unit * TILES_UNIT, low,
                                min(high, (unit + 1) * TILES_UNIT), scales, soft_cap);
    if (!is_direct) {
#pragma unroll
      for (int h = 0; h < 2; h++) {
        if (rows.high[h] == 0 || unit * TILES_UNIT >= high)
          continue;
        float* to = partial + paged_part(s, row_token[h], row_head[h], unit);
        if (t == 0)
          to[0] = part.maximum[h], to[1] = part.sum[h];
#pragma unroll
        for (int n = 0; n < TILES; n += 4)
#pragma unroll
          for (int c = 0; c < 2; c++)
            *reinterpret_cast<float4*>(to + PAGED_PART + n / 8 * 64 + 8 * (2 * t + c) + n % 8) = {
                part.values[n][2 * h + c], part.values[n + 1][2 * h + c],
                part.values[n + 2][2 * h + c], part.values[n + 3][2 * h + c]};
      }
    } else if (is_own) {
      float before[2], now[2];
#pragma unroll
      for (int h = 0; h < 2; h++) {
        float next;
        paged_join(top[h], total[h], part.maximum[h], part.sum[h], before[h], now[h], next);
        top[h] = next, total[h] = paged_mix(total[h], before[h], part.sum[h], now[h]);
      }
#pragma unroll
      for (int n = 0; n < TILES; n++)
#pragma unroll
        for (int c = 0; c < 4; c++) {
          float* mine = &shared.values[warp][4 * n + c][lane];
          *mine = paged_mix(has_begun ? *mine : 0.0f, before[c / 2], part.values[n][c], now[c / 2]);
        }
      has_begun = true;
    } else {
#pragma unroll
      for (int n = 0; n < TILES; n++)
#pragma unroll
        for (int c = 0; c < 4; c++)
          shared.values[warp][4 * n + c][lane] = part.values[n][c];
#pragma unroll
      for (int h = 0; h < 2; h++) {
        if (t == 0)
          shared.maximum[warp][g + 8 * h] = part.maximum[h],
                                       shared.sum[warp][g + 8 * h] = part.sum[h];
      }
      __syncthreads();
      // Warp c joins the elements of index c.
      const int row = g + 8 * (warp / 2);
#pragma unroll
      for (int w = 0; w < TILES_WARPS; w++) {
        float before, now, next;
        paged_join(top[0], total[0], shared.maximum[w][row], shared.sum[w][row], before, now, next);
        top[0] = next, total[0] = paged_mix(total[0], before, shared.sum[w][row], now);
#pragma unroll
        for (int n = 0; n < TILES; n++)
          kept[n] = paged_mix(kept[n], before, shared.values[w][4 * n + warp][lane], now);
      }
      __syncthreads();
    }
  }
  if (!is_direct)
    return;
#pragma unroll
  for (int c = 0; c < 4; c++) {
    const int h = c / 2;
    if (rows.high[h] == 0 || (!is_own && c != warp))
      continue;
    const float by =
        paged_factor(is_own ? top[h] : top[0], is_own ? total[h] : total[0], sinks, row_head[h]);
#pragma unroll
    for (int chunk = 0; chunk < CHUNKS; chunk++) {
      float x[8];
#pragma unroll
      for (int j = 0; j < 8; j++)
        x[j] = is_own ? shared.values[warp][4 * (8 * chunk + j) + c][lane] : kept[8 * chunk + j];
      tiles_store(out + row_token[h] * out_token + row_head[h] * out_head + 64 * chunk +
                      8 * (2 * t + c % 2),
                  wide_out, x, by);
    }
  }
}

/** Zeros for tokens [begin, end), of the query heads that are a block's. */
template <class T>
static __device__ __forceinline__ void
tiles_zero(T* out, int begin, int end, index_t size, index_t kv_head, index_t first_head,
           const paged_sizes& s, index_t out_token, index_t out_head) {
  const int heads = (int)min((index_t)TILES_ROWS, s.group - first_head);
  const index_t each = heads * size;
  for (index_t at = threadIdx.x; at < (end - begin) * each; at += 32 * TILES_WARPS)
    out[(begin + at / each) * out_token +
        (kv_head * s.group + first_head + at % each / size) * out_head + at % size] =
        from_float<T>(0.0f);
}

/** What block x of those that tiles_prompts has does: `index` tokens after the first of batch row
 * `row`; `row` -1: it is the `index`th of those that have no tile. */
struct tiles_share {
  int row, index, spare;
};

/** Blocks are given to rows in order, as many as the row's tiles need. */
static __device__ __forceinline__ tiles_share tiles_share_of(const int32_t* row_starts,
                                                             const paged_sizes& s, index_t which,
                                                             int block, int most,
                                                             tiles_share* shared, int* sums) {
  constexpr int THREADS = 32 * TILES_WARPS;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int each = ((int)s.rows + THREADS - 1) / THREADS, first = (int)threadIdx.x * each;
  const auto blocks_of = [&](int r) {
    const int begin = row_starts[r], count = min(row_starts[r + 1], (int)s.tokens) - begin;
    if (begin < 0 || count <= (which == TILES_OTHERS ? 1 : 0))
      return 0;
    return count <= most ? 1 : (count + TILES_WARPS * most - 1) / (TILES_WARPS * most);
  };
  int own = 0;
  for (int r = first; r < min(first + each, (int)s.rows); r++)
    own += blocks_of(r);
  int before = own; // of this warp's threads up to this one
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const int other = __shfl_up_sync(0xffffffffu, before, step);
    before += lane >= step ? other : 0;
  }
  if (lane == 31)
    sums[warp] = before;
  __syncthreads();
  int all = 0;
  before -= own;
  for (int w = 0; w < TILES_WARPS; w++) {
    before += w < warp ? sums[w] : 0;
    all += sums[w];
  }
  if (block >= all)
    return {-1, block - all, (int)gridDim.x - all};
  for (int r = first; r < min(first + each, (int)s.rows); r++) {
    const int blocks = blocks_of(r);
    if (block >= before && block < before + blocks)
      *shared = {r, (block - before) * TILES_WARPS * most, 0};
    before += blocks;
  }
  __syncthreads();
  return *shared;
}

/** tiles_run by blocks that all have a tile, for steps with more tokens than rows; x of the grid is
 * at least all tokens by those of a block's tiles, the rows, and one more. */
template <class T, class KV, int CHUNKS>
static __device__ __forceinline__ void
tiles_prompts(tiles_block<CHUNKS>& shared, const T* q, const KV* k, const KV* v,
              const int32_t* table, const int32_t* row_ids, const int32_t* row_starts,
              const int32_t* kv_lengths, const float* sinks, T* out, const paged_sizes& s,
              index_t pages, index_t page_size, index_t table_rows, index_t table_pages,
              index_t q_token, index_t q_head, index_t out_token, index_t out_head, float scale,
              float soft_cap, index_t which) {
  __shared__ tiles_share own;
  __shared__ int sums[TILES_WARPS];
  const uint32_t pieces = ((uint32_t)s.group + TILES_ROWS - 1) / TILES_ROWS;
  const index_t kv_head = blockIdx.y / pieces, first_head = blockIdx.y % pieces * TILES_ROWS;
  const int most = TILES_ROWS / tiles_heads(s);
  const tiles_share share = tiles_share_of(row_starts, s, which, (int)blockIdx.x, most, &own, sums);
  const int tokens = (int)s.tokens;
  if (share.row < 0) { // tokens of no row
    const int end = max(min(row_starts[s.rows], tokens), 0);
    const int each = (tokens - end + share.spare - 1) / share.spare;
    const int begin = min(end + share.index * each, tokens);
    tiles_zero(out, begin, min(begin + each, tokens), s.value_size, kv_head, first_head, s,
               out_token, out_head);
    if (share.index == 0)
      tiles_zero(out, 0, max(min(row_starts[0], tokens), 0), s.value_size, kv_head, first_head, s,
                 out_token, out_head);
    return;
  }
  const tiles_place place =
      tiles_of_row(row_ids, row_starts, kv_lengths, share.row, table_pages * page_size, table_rows);
  if (place.row_id < 0) {
    const int begin = place.begin + share.index, end = min(place.begin + place.count, tokens);
    tiles_zero(out, begin, min(begin + TILES_WARPS * most, end), s.value_size, kv_head, first_head,
               s, out_token, out_head);
    return;
  }
  tiles_run<T, KV, CHUNKS>(shared, q, k, v, table, row_ids, row_starts, kv_lengths, sinks, out,
                           nullptr, s, pages, page_size, table_rows, table_pages, q_token, q_head,
                           out_token, out_head, scale, soft_cap, which, place.begin + share.index,
                           blockIdx.y);
}

/** x of the grid is a token, y a query head; blocks of 64 threads: there is room beside others. */
template <class Q>
static __device__ __forceinline__ void
tiles_joined(const float* partial, const int32_t* row_ids, const int32_t* row_starts,
             const int32_t* kv_lengths, const float* sinks, Q* out, const paged_sizes& s,
             index_t out_token, index_t out_head, index_t most_keys, index_t table_rows) {
  __shared__ tiles_place shared;
  const index_t token = blockIdx.x, head = blockIdx.y;
  const tiles_place place =
      tiles_find(row_ids, row_starts, kv_lengths, s, token, most_keys, table_rows, &shared);
  const bool is_own = place.count > TILES_ROWS / tiles_heads(s);
  if (place.row_id >= 0 && !is_own && place.is_short(s.window))
    return; // it was written
  const int index = (int)token - place.begin;
  const int high = place.row_id < 0 ? 0 : place.high(index);
  const int low = place.row_id < 0 ? 0 : place.low(index, s.window);
  for (int d = threadIdx.x; d < s.value_size; d += TILES_JOINED) {
    float top = -INFINITY, total = 0.0f, x = 0.0f;
    for (int unit = low / TILES_UNIT; unit * TILES_UNIT < high; unit++) {
      const float* part = partial + paged_part(s, token, head, unit);
      float before, now, next;
      paged_join(top, total, part[0], part[1], before, now, next);
      top = next, total = paged_mix(total, before, part[1], now);
      x = paged_mix(x, before, part[PAGED_PART + d], now);
    }
    const float by = paged_factor(top, total, sinks, head);
    out[token * out_token + head * out_head + d] =
        from_float<Q>(by == 0.0f ? 0.0f : __fmul_rn(x, by));
  }
}

} // namespace accrt_cuda

#define ACCRT_CUDA_PAGED_TILES_PARAMETERS(T, KV)                                                   \
  const T *q, const KV *k, const KV *v, const int32_t *table, const int32_t *row_ids,              \
      const int32_t *row_starts, const int32_t *kv_lengths, const float *sinks, T *out,            \
      float *partial, long long tokens, long long rows, long long group, long long kv_heads,       \
      long long value_size, long long window, long long units, long long head_size,                \
      long long pages, long long page_size, long long table_rows, long long table_pages,           \
      long long q_token, long long q_head, long long out_token, long long out_head, float scale,   \
      float soft_cap, long long which

#define ACCRT_CUDA_PAGED_TILES(ENTRY, T, KV, CHUNKS, PLAIN)                                        \
  extern "C" __global__ void __launch_bounds__(128, 2)                                             \
      ENTRY(ACCRT_CUDA_PAGED_TILES_PARAMETERS(T, KV)) {                                            \
    const bool alone = gridDim.x == 1;                                                             \
    if (alone)                                                                                     \
      accrt_cuda::allow_next();                                                                    \
    ACCRT_CUDA_PAGED_SIZES(PLAIN)                                                                  \
    accrt_cuda::tiles_guess<KV, CHUNKS>(k, v, table, row_ids, row_starts, kv_lengths, sizes,       \
                                        pages, page_size, table_rows, table_pages);                \
    accrt_cuda::wait_for_previous();                                                               \
    if (!alone)                                                                                    \
      accrt_cuda::allow_next();                                                                    \
    __shared__ accrt_cuda::tiles_block<CHUNKS> shared;                                             \
    (void)head_size;                                                                               \
    accrt_cuda::tiles_run<T, KV, CHUNKS>(                                                          \
        shared, q, k, v, table, row_ids, row_starts, kv_lengths, PLAIN ? nullptr : sinks, out,     \
        partial, sizes, pages, page_size, table_rows, table_pages, q_token, q_head, out_token,     \
        out_head, scale, soft_cap, which, blockIdx.x, blockIdx.y);                                 \
  }

#define ACCRT_CUDA_PAGED_PROMPTS(ENTRY, T, KV, CHUNKS, PLAIN)                                      \
  extern "C" __global__ void __launch_bounds__(128, 2)                                             \
      ENTRY(ACCRT_CUDA_PAGED_TILES_PARAMETERS(T, KV)) {                                            \
    accrt_cuda::wait_for_previous();                                                               \
    accrt_cuda::allow_next();                                                                      \
    __shared__ accrt_cuda::tiles_block<CHUNKS> shared;                                             \
    ACCRT_CUDA_PAGED_SIZES(PLAIN)                                                                  \
    (void)head_size, (void)partial;                                                                \
    accrt_cuda::tiles_prompts<T, KV, CHUNKS>(shared, q, k, v, table, row_ids, row_starts,          \
                                             kv_lengths, PLAIN ? nullptr : sinks, out, sizes,      \
                                             pages, page_size, table_rows, table_pages, q_token,   \
                                             q_head, out_token, out_head, scale, soft_cap, which); \
  }

#define ACCRT_CUDA_PAGED_TILES_JOIN(ENTRY, T, PLAIN)                                               \
  extern "C" __global__ void __launch_bounds__(accrt_cuda::TILES_JOINED)                           \
      ENTRY(const float* partial, const int32_t* row_ids, const int32_t* row_starts,               \
            const int32_t* kv_lengths, const float* sinks, T* out, long long tokens,               \
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
    accrt_cuda::tiles_joined<T>(partial, row_ids, row_starts, kv_lengths, PLAIN ? nullptr : sinks, \
                                out, sizes, out_token, out_head, most_keys, table_rows);           \
  }

#endif /* ACCRT_CUDA_PAGED_TILES_CUH_ */
