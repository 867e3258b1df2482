/* attention.cuh - scaled dot-product attention with online softmax over blocks of keys, on the
 * tensor cores (mma.sync).
 *
 *   out = softmax(q k^T * scale + mask) v
 *
 * ACCRT_CUDA_ATTENTION(ENTRY, T, MASK, HEAD, ROW_TILES, WARPS, WINDOW): T is f16 or bf16; HEAD is
 *   the head size rounded up to a multiple of 16, at most 256; a block has WARPS warps of 16 *
 *   ROW_TILES rows. The grid is (row blocks, key heads, batch).
 * ACCRT_CUDA_ATTENTION_FEW(ENTRY, T, MASK, HEAD, WINDOW): decoding: at most 16 rows of a group;
 *   HEAD is a multiple of 32. Warps, and with clusters the blocks of a cluster, share the keys
 *   among them, and their sums meet at the end. The grid is (blocks of a cluster, key heads,
 *   batch).
 * ACCRT_CUDA_ATTENTION_ANY(ENTRY, Q, KV, MASK, WINDOW): any float types and head sizes up to 256, a
 *   warp for each row, in float.
 *
 * The query heads that share a key head are rows of one product: row r of a group is head r /
 * q_len, position r % q_len. MASK: floats are added, uint8_t is bool (false: not seen). causal:
 * position i sees keys up to i + causal_offset. WINDOW (0 or 1): it sees none before i +
 * first_offset, and tiles of keys that no row of a block sees are not read. A row that sees no key
 * gives zeros; NaN propagates from any key that a row sees. Scores and sums are float; weights are
 * rounded to T before they meet the values, each relative to the largest so far: the error is a few
 * roundings of T. */
#ifndef ACCRT_CUDA_ATTENTION_CUH_
#define ACCRT_CUDA_ATTENTION_CUH_

#include "cluster.cuh"

namespace accrt_cuda {

template <class Q, class KV, class MASK, bool WINDOW> struct attention_arguments {
  static constexpr bool HAS_WINDOW = WINDOW;
  const Q* q;
  const KV* k;
  const KV* v;
  const MASK* mask;
  Q* out;
  int64_t q_len, kv_len, group, head_size, value_size;
  int64_t q_batch, q_head, q_row;
  int64_t k_batch, k_head, k_row;
  int64_t v_batch, v_head, v_row;
  int64_t out_batch, out_head, out_row;
  int64_t mask_batch, mask_head, mask_row, mask_key;
  int64_t causal, causal_offset, first_offset;
  float scale;
};

constexpr float ATTENTION_LOG2_E = 1.4426950408889634f;

/** A mask's entry as what is added to a score in units of log2. */
static __device__ __forceinline__ float mask_bias(float m) { return m * ATTENTION_LOG2_E; }
static __device__ __forceinline__ float mask_bias(f16 m) { return to_float(m) * ATTENTION_LOG2_E; }
static __device__ __forceinline__ float mask_bias(bf16 m) { return to_float(m) * ATTENTION_LOG2_E; }
static __device__ __forceinline__ float mask_bias(uint8_t m) { return m ? 0.0f : -INFINITY; }

/** Where a row of a group lies, and which keys it sees: from `begin` up to `limit`. */
struct attention_row {
  int64_t head, position, begin, limit;
};

/** The first key that position i sees. */
template <class P>
static __device__ __forceinline__ int64_t window_begin(const P& p, int64_t position) {
  const int64_t begin = P::HAS_WINDOW ? position + p.first_offset : 0;
  return begin < 0 ? 0 : begin < p.kv_len ? begin : p.kv_len;
}

template <class P>
static __device__ __forceinline__ attention_row find_row(const P& p, int64_t row) {
  attention_row r = {0, 0, 0, 0};
  if (row >= p.group * p.q_len)
    return r;
  if (p.group > 1) /* division of 32 bits: it is done for each row */
    r.head = (uint32_t)row / (uint32_t)p.q_len;
  r.position = row - r.head * p.q_len;
  r.head += blockIdx.y * p.group;
  const int64_t limit = p.causal ? r.position + p.causal_offset + 1 : p.kv_len;
  r.limit = limit < 0 ? 0 : limit < p.kv_len ? limit : p.kv_len;
  r.begin = window_begin(p, r.position);
  return r;
}

/** Elements from one row to the next in shared memory. */
__host__ __device__ constexpr int attention_pitch(int head) {
  return head == 96 ? 128 : head == 32 || head % 64 == 0 ? head : head + 8;
}

/** Rows of HEAD elements in shared memory, in chunks of 16 bytes: both ways of reading are free of
 * conflicts. Chunks are swizzled, or rows begin an odd number of chunks apart. */
template <int HEAD> struct head_tile {
  static constexpr int PITCH = attention_pitch(HEAD);
  static __device__ __forceinline__ int at(int row, int chunk) {
    const int swizzled = HEAD == 32 ? chunk ^ (row >> 1 & 3) : chunk ^ (row & 7);
    return row * PITCH + (PITCH == HEAD + 8 ? chunk : swizzled) * 8;
  }
};

/** COUNT rows by THREADS threads into shared memory; rows from `rows` on and columns from `columns`
 * on are zeros. */
template <class T, int HEAD, int COUNT, int THREADS>
static __device__ __forceinline__ void bring_rows(T* to, const T* from, int64_t step, int64_t rows,
                                                  int64_t columns, bool wide, int thread) {
  constexpr int CHUNKS = HEAD / 8;
  if (wide) {
#pragma unroll
    for (int i = 0; i < COUNT * CHUNKS / THREADS; i++) {
      const int at = i * THREADS + thread, row = at / CHUNKS, chunk = at % CHUNKS;
      const bool inside = row < rows && chunk * 8 < columns;
      copy_async(to + head_tile<HEAD>::at(row, chunk), inside ? from + row * step + chunk * 8 : from,
                 inside);
    }
    return;
  }
  for (int at = thread; at < COUNT * HEAD; at += THREADS) {
    const int row = at / HEAD, column = at % HEAD;
    const bool inside = row < rows && column < columns;
    to[head_tile<HEAD>::at(row, column / 8) + column % 8] =
        inside ? from[row * step + column] : from_float<T>(0.0f);
  }
}

/** Running softmax of 16 * MT rows: a thread has rows g and g + 8 of each tile (g = lane / 4). */
template <int HEAD, int MT> struct attention_state {
  float out[MT][HEAD / 8][4];
  float top[MT][2], sum[MT][2]; /* sum: of this thread's columns alone */
};

template <int HEAD, int MT>
static __device__ __forceinline__ void clear_state(attention_state<HEAD, MT>& s) {
#pragma unroll
  for (int i = 0; i < MT; i++) {
#pragma unroll
    for (int j = 0; j < HEAD / 8; j++) {
#pragma unroll
      for (int e = 0; e < 4; e++)
        s.out[i][j][e] = 0.0f;
    }
#pragma unroll
    for (int e = 0; e < 2; e++)
      s.top[i][e] = -INFINITY, s.sum[i][e] = 0.0f;
  }
}

/** Scores of KEYS keys, times `factor` (positive), become weights relative to the new maximum; what
 * was summed before is scaled to it. */
template <int HEAD, int MT, int KEYS>
static __device__ __forceinline__ void soften(attention_state<HEAD, MT>& s,
                                              float (&score)[MT][KEYS / 8][4], float factor) {
#pragma unroll
  for (int i = 0; i < MT; i++) {
#pragma unroll
    for (int e = 0; e < 2; e++) {
      float top = fmaxf(score[i][0][2 * e], score[i][0][2 * e + 1]);
#pragma unroll
      for (int j = 1; j < KEYS / 8; j++)
        top = fmaxf(top, fmaxf(score[i][j][2 * e], score[i][j][2 * e + 1]));
      top = fmaxf(s.top[i][e], top * factor);
      top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
      top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
      const float base = top == -INFINITY ? 0.0f : top;
      const float correction = fast_exp2(s.top[i][e] - base);
      s.top[i][e] = top;
      float sum = 0.0f;
#pragma unroll
      for (int j = 0; j < KEYS / 8; j++) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
          score[i][j][2 * e + h] = fast_exp2(fmaf(score[i][j][2 * e + h], factor, -base));
          sum += score[i][j][2 * e + h];
        }
      }
      s.sum[i][e] = fmaf(s.sum[i][e], correction, sum);
#pragma unroll
      for (int j = 0; j < HEAD / 8; j++) {
        s.out[i][j][2 * e] *= correction;
        s.out[i][j][2 * e + 1] *= correction;
      }
    }
  }
}

/** Queries of a warp, 16 * MT rows: held in registers, or left in shared memory. */
template <class T, int HEAD, int MT, bool IS_HELD> struct attention_queries {
  const T* own;
  uint32_t held[MT][IS_HELD ? HEAD / 16 : 1][4];

  __device__ __forceinline__ void load(const T* rows) {
    own = rows;
#pragma unroll
    for (int i = 0; i < MT; i++) {
#pragma unroll
      for (int d = 0; IS_HELD && d < HEAD / 16; d++)
        read(held[i][d], i, d);
    }
  }
  __device__ __forceinline__ void read(uint32_t (&to)[4], int i, int d) const {
    const int lane = threadIdx.x % 32;
    load_matrices(to, own + head_tile<HEAD>::at(i * 16 + lane % 16, d * 2 + lane / 16));
  }
  /** Elements [16 d, 16 d + 16) of all rows. */
  __device__ __forceinline__ void get(uint32_t (&to)[MT][4], int d) const {
#pragma unroll
    for (int i = 0; i < MT; i++) {
      if (!IS_HELD)
        read(to[i], i, d);
#pragma unroll
      for (int e = 0; IS_HELD && e < 4; e++)
        to[i][e] = held[i][IS_HELD ? d : 0][e];
    }
  }
};

/** scores = queries x keys. */
template <class T, int HEAD, int MT, int KEYS, bool IS_HELD>
static __device__ __forceinline__ void
score_keys(float (&score)[MT][KEYS / 8][4], const attention_queries<T, HEAD, MT, IS_HELD>& queries,
           const T* keys) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < MT; i++) {
#pragma unroll
    for (int j = 0; j < KEYS / 8; j++) {
#pragma unroll
      for (int e = 0; e < 4; e++)
        score[i][j][e] = 0.0f;
    }
  }
#pragma unroll
  for (int d = 0; d < HEAD / 16; d++) {
    uint32_t fq[MT][4];
    queries.get(fq, d);
#pragma unroll
    for (int j = 0; j < KEYS / 8; j += 2) {
      uint32_t four[4];
      const int row = j * 8 + lane % 8 + lane / 16 * 8;
      load_matrices(four, keys + head_tile<HEAD>::at(row, d * 2 + lane / 8 % 2));
      const uint32_t b0[2] = {four[0], four[1]}, b1[2] = {four[2], four[3]};
#pragma unroll
      for (int i = 0; i < MT; i++) {
        multiply_add<T>(score[i][j], fq[i], b0);
        multiply_add<T>(score[i][j + 1], fq[i], b1);
      }
    }
  }
}

/** out += weights x values. */
template <class T, int HEAD, int MT, int KEYS>
static __device__ __forceinline__ void add_values(attention_state<HEAD, MT>& s,
                                                  const float (&weight)[MT][KEYS / 8][4],
                                                  const T* values) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int k = 0; k < KEYS / 16; k++) {
    uint32_t fp[MT][4];
#pragma unroll
    for (int i = 0; i < MT; i++) {
      fp[i][0] = pack_two<T>(weight[i][2 * k][0], weight[i][2 * k][1]);
      fp[i][1] = pack_two<T>(weight[i][2 * k][2], weight[i][2 * k][3]);
      fp[i][2] = pack_two<T>(weight[i][2 * k + 1][0], weight[i][2 * k + 1][1]);
      fp[i][3] = pack_two<T>(weight[i][2 * k + 1][2], weight[i][2 * k + 1][3]);
    }
#pragma unroll
    for (int d = 0; d < HEAD / 8; d += 2) {
      uint32_t four[4];
      load_matrices_transposed(four,
                               values + head_tile<HEAD>::at(k * 16 + lane % 16, d + lane / 16));
      const uint32_t b0[2] = {four[0], four[1]}, b1[2] = {four[2], four[3]};
#pragma unroll
      for (int i = 0; i < MT; i++) {
        multiply_add<T>(s.out[i][d], fp[i], b0);
        multiply_add<T>(s.out[i][d + 1], fp[i], b1);
      }
    }
  }
}

/** What a thread needs of its rows: which keys each sees, the least end and the last begin of them,
 * and its row of the mask where rows have their own. */
template <class MASK, int MT> struct attention_rows {
  int begin[MT][2], limit[MT][2], least, last;
  const MASK* mask[MT][2];
};

template <class P, class MASK, int MT>
static __device__ __forceinline__ void find_rows(const P& p, attention_rows<MASK, MT>& rows,
                                                 int64_t first_row, bool own_masks) {
  rows.least = (int)p.kv_len, rows.last = 0;
#pragma unroll
  for (int i = 0; i < MT; i++) {
#pragma unroll
    for (int e = 0; e < 2; e++) {
      const attention_row r = find_row(p, first_row + i * 16 + e * 8 + threadIdx.x % 32 / 4);
      rows.limit[i][e] = (int)r.limit;
      rows.least = min(rows.least, rows.limit[i][e]);
      rows.begin[i][e] = (int)r.begin;
      rows.last = max(rows.last, rows.begin[i][e]);
      if (own_masks)
        rows.mask[i][e] = p.mask + blockIdx.z * p.mask_batch + r.head * p.mask_head +
                          r.position * p.mask_row;
    }
  }
}

/** Mask and limits on scores of keys [first, first + KEYS). Returns the factor that is left to be
 * applied to them. `bias` has a value for each key when the mask is the same for all rows, else
 * NULL. */
template <class P, class MASK, int MT, int KEYS>
static __device__ __forceinline__ float
mask_scores(const P& p, float (&score)[MT][KEYS / 8][4], const attention_rows<MASK, MT>& rows,
            int first, const float* bias) {
  const int column = threadIdx.x % 4 * 2;
  const float scale = p.scale * ATTENTION_LOG2_E;
  const bool plain = !p.mask && scale > 0.0f;
  if (bias) {
#pragma unroll
    for (int j = 0; j < KEYS / 8; j++) {
      const float2 add = *reinterpret_cast<const float2*>(bias + j * 8 + column);
#pragma unroll
      for (int i = 0; i < MT; i++) {
#pragma unroll
        for (int e = 0; e < 4; e++)
          score[i][j][e] = fmaf(score[i][j][e], scale, e % 2 ? add.y : add.x);
      }
    }
  } else if (!plain) {
#pragma unroll
    for (int i = 0; i < MT; i++) {
#pragma unroll
      for (int e = 0; e < 4; e++) {
#pragma unroll
        for (int j = 0; j < KEYS / 8; j++) {
          const int key = first + j * 8 + column + e % 2;
          const bool seen = p.mask && key < rows.limit[i][e / 2];
          const float add = seen ? mask_bias(rows.mask[i][e / 2][key * p.mask_key]) : 0.0f;
          score[i][j][e] = fmaf(score[i][j][e], scale, add);
        }
      }
    }
  }
  if (rows.least < first + KEYS) {
#pragma unroll
    for (int i = 0; i < MT; i++) {
#pragma unroll
      for (int e = 0; e < 4; e++) {
        const int left = rows.limit[i][e / 2] - first - column - e % 2;
#pragma unroll
        for (int j = 0; j < KEYS / 8; j++)
          score[i][j][e] = j * 8 < left ? score[i][j][e] : -INFINITY;
      }
    }
  }
  if (P::HAS_WINDOW && rows.last > first) {
#pragma unroll
    for (int i = 0; i < MT; i++) {
#pragma unroll
      for (int e = 0; e < 4; e++) {
        const int before = rows.begin[i][e / 2] - first - column - e % 2;
#pragma unroll
        for (int j = 0; j < KEYS / 8; j++)
          score[i][j][e] = j * 8 < before ? -INFINITY : score[i][j][e];
      }
    }
  }
  return plain ? scale : 1.0f;
}

template <class T, int HEAD, int MT, class P>
static __device__ __forceinline__ void
store_rows(const P& p, const attention_state<HEAD, MT>& s, int64_t first_row) {
  const bool pairs = (p.out_batch | p.out_head | p.out_row | p.value_size) % 2 == 0 &&
                     is_aligned(p.out, 4);
#pragma unroll
  for (int i = 0; i < MT; i++) {
#pragma unroll
    for (int e = 0; e < 2; e++) {
      float sum = s.sum[i][e];
      sum += __shfl_xor_sync(0xffffffffu, sum, 1);
      sum += __shfl_xor_sync(0xffffffffu, sum, 2);
      const float factor = sum == 0.0f ? 0.0f : 1.0f / sum;
      const int64_t row = first_row + i * 16 + e * 8 + threadIdx.x % 32 / 4;
      if (row >= p.group * p.q_len)
        continue;
      const attention_row r = find_row(p, row);
      T* const out =
          p.out + blockIdx.z * p.out_batch + r.head * p.out_head + r.position * p.out_row;
#pragma unroll
      for (int j = 0; j < HEAD / 8; j++) {
        const int d = j * 8 + threadIdx.x % 4 * 2;
        const float a = s.out[i][j][2 * e] * factor, b = s.out[i][j][2 * e + 1] * factor;
        if (pairs && d < p.value_size) {
          *reinterpret_cast<uint32_t*>(out + d) = pack_two<T>(a, b);
        } else {
          if (d < p.value_size)
            out[d] = from_float<T>(a);
          if (d + 1 < p.value_size)
            out[d + 1] = from_float<T>(b);
        }
      }
    }
  }
}

/** Queries of this warp into shared memory, 16 * MT rows of its own; they are there after a wait
 * for copies. */
template <class T, int HEAD, int MT, class P>
static __device__ __forceinline__ void bring_queries(const P& p, T* own, int64_t first_row) {
  const int lane = threadIdx.x % 32;
  const bool wide = (p.q_batch | p.q_head | p.q_row | p.head_size) % 8 == 0 && is_aligned(p.q, 16);
#pragma unroll
  for (int at = lane; at < MT * 16 * (HEAD / 8); at += 32) {
    const int row = at / (HEAD / 8), chunk = at % (HEAD / 8);
    const attention_row r = find_row(p, first_row + row);
    const bool inside = first_row + row < p.group * p.q_len;
    const T* const from =
        p.q + blockIdx.z * p.q_batch + r.head * p.q_head + r.position * p.q_row + chunk * 8;
    T* const to = own + head_tile<HEAD>::at(row, chunk);
    if (wide) {
      const bool there = inside && chunk * 8 < p.head_size;
      copy_async(to, there ? from : p.q, there);
    } else {
#pragma unroll 1
      for (int e = 0; e < 8; e++)
        to[e] = inside && chunk * 8 + e < p.head_size ? from[e] : from_float<T>(0.0f);
    }
  }
}

template <class P> static __device__ __forceinline__ bool keys_are_wide(const P& p) {
  return (p.k_batch | p.k_head | p.k_row | p.v_batch | p.v_head | p.v_row | p.head_size |
          p.value_size) %
                 8 ==
             0 &&
         is_aligned(p.k, 16) && is_aligned(p.v, 16);
}

/** How many keys any of these rows sees. Rows of several heads: the last position of a head counts.
 */
template <class P>
static __device__ __forceinline__ int64_t seen_keys(const P& p, int64_t first_row, int64_t count) {
  if (!p.causal)
    return p.kv_len;
  const int64_t rows = p.group * p.q_len;
  const int64_t last = (first_row + count < rows ? first_row + count : rows) - 1;
  if (last < first_row)
    return 0;
  const bool whole = last - first_row + 1 >= p.q_len || last % p.q_len < first_row % p.q_len;
  const int64_t position = whole ? p.q_len - 1 : last % p.q_len;
  const int64_t limit = position + p.causal_offset + 1;
  return limit < 0 ? 0 : limit < p.kv_len ? limit : p.kv_len;
}

/** The first key that any of these rows sees, down to a multiple of KEYS. Rows of several heads:
 * the first position of a head counts. */
template <int KEYS, class P>
static __device__ __forceinline__ int first_seen(const P& p, int64_t first_row, int64_t count) {
  const int64_t rows = p.group * p.q_len;
  const int64_t last = (first_row + count < rows ? first_row + count : rows) - 1;
  if (!P::HAS_WINDOW || last < first_row)
    return 0;
  const int64_t position = first_row % p.q_len;
  const bool is_one = last - first_row == last % p.q_len - position;
  return (int)(window_begin(p, is_one ? position : 0) / KEYS * KEYS);
}

/** Keys that a block takes at once. */
__host__ __device__ constexpr int attention_keys(int head) { return head > 128 ? 32 : 64; }

__host__ __device__ constexpr int attention_shared_bytes(int head, int row_tiles, int warps) {
  const int keys = attention_keys(head);
  return (4 * keys + row_tiles * 16 * warps) * 2 * attention_pitch(head) + 2 * keys * 4;
}

template <class T, class MASK, int HEAD, int MT, int WARPS, class P>
static __device__ __forceinline__ void attention(const P& p, unsigned char* shared) {
  constexpr int KEYS = attention_keys(HEAD), THREADS = WARPS * 32, ROWS = MT * 16 * WARPS;
  constexpr int PITCH = head_tile<HEAD>::PITCH, TILE = KEYS * PITCH;
  T* const tiles = reinterpret_cast<T*>(shared);
  T* const queries = tiles + 4 * TILE;
  float* const biases = reinterpret_cast<float*>(queries + ROWS * PITCH);
  const int warp = threadIdx.x / 32;
  const int64_t block_row = (int64_t)blockIdx.x * ROWS, first_row = block_row + warp * MT * 16;
  T* const own = queries + warp * MT * 16 * PITCH;

  const bool wide = keys_are_wide(p), same_mask = p.mask && p.mask_row == 0 && p.mask_head == 0;
  const int limit = (int)seen_keys(p, block_row, ROWS);
  const int start = first_seen<KEYS>(p, block_row, ROWS);
  const T* const k = p.k + blockIdx.z * p.k_batch + blockIdx.y * p.k_head;
  const T* const v = p.v + blockIdx.z * p.v_batch + blockIdx.y * p.v_head;
  auto bring = [&](int first) {
    const int stage = first / KEYS % 2;
    bring_rows<T, HEAD, KEYS, THREADS>(tiles + stage * 2 * TILE, k + (int64_t)first * p.k_row,
                                       p.k_row, p.kv_len - first, p.head_size, wide, threadIdx.x);
    bring_rows<T, HEAD, KEYS, THREADS>(tiles + (stage * 2 + 1) * TILE, v + (int64_t)first * p.v_row,
                                       p.v_row, p.kv_len - first, p.value_size, wide, threadIdx.x);
    copy_commit();
  };
  /* A mask that is the same for all rows: one thread asks for each key's value, and puts it down
   * when it has arrived. */
  auto bias_of = [&](int first) {
    const int key = first + (int)threadIdx.x;
    if (!same_mask || threadIdx.x >= KEYS || key >= p.kv_len)
      return -INFINITY;
    return mask_bias(p.mask[blockIdx.z * p.mask_batch + key * p.mask_key]);
  };
  auto put_bias = [&](int first, float bias) {
    if (threadIdx.x < KEYS)
      biases[first / KEYS % 2 * KEYS + threadIdx.x] = bias;
  };

  bring_queries<T, HEAD, MT>(p, own, first_row);
  if (start < limit)
    bring(start);
  put_bias(start, bias_of(start));
  attention_rows<MASK, MT> rows;
  find_rows(p, rows, first_row, p.mask && !same_mask);
  attention_state<HEAD, MT> s;
  clear_state(s);
  copy_wait<0>();
  __syncthreads();
  attention_queries<T, HEAD, MT, (HEAD <= 192)> fq;
  fq.load(own);
  for (int first = start; first < limit; first += KEYS) {
    const int stage = first / KEYS % 2, next = first + KEYS;
    if (first > start) {
      copy_wait<0>();
      __syncthreads();
    }
    if (next < limit)
      bring(next);
    const float bias = bias_of(next);
    float score[MT][KEYS / 8][4];
    score_keys<T, HEAD, MT, KEYS>(score, fq, tiles + stage * 2 * TILE);
    const float factor = mask_scores<P, MASK, MT, KEYS>(
        p, score, rows, first, same_mask ? biases + stage * KEYS : nullptr);
    soften<HEAD, MT, KEYS>(s, score, factor);
    add_values<T, HEAD, MT, KEYS>(s, score, tiles + (stage * 2 + 1) * TILE);
    put_bias(next, bias);
  }
  store_rows<T, HEAD, MT>(p, s, first_row);
}

/* ---- Decoding -------------------------------------------------------------------------------- */

constexpr int FEW_ROWS = 16, FEW_STAGES = 2;

/** Warps of a block, and keys that a warp takes at once: so many that three blocks share a
 * multiprocessor. */
__host__ __device__ constexpr int attention_few_warps(int head) { return head > 128 ? 2 : 4; }
__host__ __device__ constexpr int attention_few_keys(int head) { return head > 64 ? 16 : 32; }
__host__ __device__ constexpr int attention_few_shared_bytes(int head) {
  return attention_few_warps(head) * FEW_STAGES * 2 * attention_few_keys(head) * 2 *
         attention_pitch(head);
}

/** Shares of a row that a warp has made: [FEW_ROWS][HEAD] of values, then maxima, then sums. */
template <int HEAD>
static __device__ __forceinline__ void put_shares(float* to, const attention_state<HEAD, 1>& s) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int e = 0; e < 2; e++) {
    const int row = e * 8 + lane / 4;
    float sum = s.sum[0][e];
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    if (lane % 4 == 0)
      to[FEW_ROWS * HEAD + row] = s.top[0][e], to[FEW_ROWS * HEAD + FEW_ROWS + row] = sum;
#pragma unroll
    for (int j = 0; j < HEAD / 8; j++) {
      const float2 two = make_float2(s.out[0][j][2 * e], s.out[0][j][2 * e + 1]);
      *reinterpret_cast<float2*>(to + row * HEAD + j * 8 + lane % 4 * 2) = two;
    }
  }
}

/** Rows of the group are dealt to warps of the cluster; a warp joins all shares of its row, always
 * in the same order. */
template <class T, int HEAD, class P>
static __device__ __forceinline__ void join_shares(const P& p, const float* shares, int step,
                                                   uint2 place) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int units = (int)place.y * attention_few_warps(HEAD);
  for (int row = warp * (int)place.y + (int)place.x; row < p.group * p.q_len; row += units) {
    const attention_row r = find_row(p, row);
    T* const out = p.out + blockIdx.z * p.out_batch + r.head * p.out_head + r.position * p.out_row;
    /* Lane u looks at unit u: at most 32 of them. */
    float top = -INFINITY, weight = 0.0f, sum = 0.0f;
    if (lane < units) {
      const float* const from = shares + lane / place.y * step + FEW_ROWS * HEAD + row;
      top = cluster_read(from, lane % place.y);
      sum = cluster_read(from + FEW_ROWS, lane % place.y);
    }
    float most = top;
    for (int shift = 16; shift > 0; shift /= 2)
      most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, shift));
    weight = top == -INFINITY ? 0.0f : fast_exp2(top - most);
    sum = warp_join<join_sum>(sum == 0.0f ? 0.0f : sum * weight);
    weight *= sum == 0.0f ? 0.0f : 1.0f / sum;
    float acc[HEAD / 32] = {};
    for (int u = 0; u < units; u++) {
      const float w = __shfl_sync(0xffffffffu, weight, u);
      if (w == 0.0f)
        continue;
#pragma unroll
      for (int d = 0; d < HEAD / 32; d++) {
        acc[d] = fmaf(
            w, cluster_read(shares + u / place.y * step + row * HEAD + d * 32 + lane, u % place.y),
            acc[d]);
      }
    }
#pragma unroll
    for (int d = 0; d < HEAD / 32; d++) {
      if (d * 32 + lane < p.value_size)
        out[d * 32 + lane] = from_float<T>(acc[d]);
    }
  }
}

template <class T, class MASK, int HEAD, class P>
static __device__ __forceinline__ void attention_few(const P& p, unsigned char* shared) {
  constexpr int STAGES = FEW_STAGES, KEYS = attention_few_keys(HEAD);
  constexpr int TILE = KEYS * head_tile<HEAD>::PITCH;
  const uint2 place = cluster_place();
  if (place.y == 1 && blockIdx.x > 0)
    return;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  T* const own = reinterpret_cast<T*>(shared) + warp * STAGES * 2 * TILE;
  const bool wide = keys_are_wide(p);
  const T* const k = p.k + blockIdx.z * p.k_batch + blockIdx.y * p.k_head;
  const T* const v = p.v + blockIdx.z * p.v_batch + blockIdx.y * p.v_head;
  const int step = (int)place.y * attention_few_warps(HEAD) * KEYS;
  const int limit = (int)seen_keys(p, 0, p.group * p.q_len);
  const int start =
      first_seen<KEYS>(p, 0, p.group * p.q_len) + (warp * (int)place.y + (int)place.x) * KEYS;

  bring_queries<T, HEAD, 1>(p, own, 0);
  copy_commit();
  copy_wait<0>();
  __syncwarp();
  attention_queries<T, HEAD, 1, true> fq;
  fq.load(own);
  __syncwarp();
  attention_rows<MASK, 1> rows;
  find_rows(p, rows, 0, p.mask != nullptr);
  auto bring = [&](int first, int stage) {
    if (first < limit) {
      bring_rows<T, HEAD, KEYS, 32>(own + stage * 2 * TILE, k + (int64_t)first * p.k_row,
                                        p.k_row, p.kv_len - first, p.head_size, wide, lane);
      bring_rows<T, HEAD, KEYS, 32>(own + (stage * 2 + 1) * TILE, v + (int64_t)first * p.v_row,
                                        p.v_row, p.kv_len - first, p.value_size, wide, lane);
    }
    copy_commit();
  };
  attention_state<HEAD, 1> s;
  clear_state(s);
#pragma unroll
  for (int stage = 0; stage < STAGES - 1; stage++)
    bring(start + stage * step, stage);
  int stage = 0;
  for (int first = start; first < limit; first += step) {
    __syncwarp();
    bring(first + (STAGES - 1) * step, (stage + STAGES - 1) % STAGES);
    copy_wait<STAGES - 1>();
    __syncwarp();
    float score[1][KEYS / 8][4];
    score_keys<T, HEAD, 1, KEYS>(score, fq, own + stage * 2 * TILE);
    const float factor = mask_scores<P, MASK, 1, KEYS>(
        p, score, rows, first, nullptr);
    soften<HEAD, 1, KEYS>(s, score, factor);
    add_values<T, HEAD, 1, KEYS>(s, score, own + (stage * 2 + 1) * TILE);
    stage = (stage + 1) % STAGES;
  }
  copy_wait<0>();
  __syncwarp();
  put_shares<HEAD>(reinterpret_cast<float*>(own), s);
  cluster_barrier();
  join_shares<T, HEAD>(p, reinterpret_cast<const float*>(shared), STAGES * TILE, place);
  cluster_barrier();
}

/* ---- Any types ------------------------------------------------------------------------------- */

constexpr int ANY_WARPS = 4, ANY_HEAD = 256;

/** A warp for each row: lanes are keys while scoring and columns while adding values. */
template <class Q, class KV, class MASK, class P>
static __device__ __forceinline__ void attention_any(const P& p, float (*queries)[ANY_HEAD]) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int64_t row = (int64_t)blockIdx.x * ANY_WARPS + warp;
  if (row >= p.group * p.q_len)
    return;
  const attention_row r = find_row(p, row);
  const Q* const q = p.q + blockIdx.z * p.q_batch + r.head * p.q_head + r.position * p.q_row;
  const KV* const k = p.k + blockIdx.z * p.k_batch + blockIdx.y * p.k_head;
  const KV* const v = p.v + blockIdx.z * p.v_batch + blockIdx.y * p.v_head;
  const MASK* const mask =
      p.mask ? p.mask + blockIdx.z * p.mask_batch + r.head * p.mask_head + r.position * p.mask_row
             : nullptr;
  for (int64_t d = lane; d < p.head_size; d += 32)
    queries[warp][d] = to_float(q[d]) * p.scale * ATTENTION_LOG2_E;
  __syncwarp();
  float acc[ANY_HEAD / 32] = {}, top = -INFINITY, sum = 0.0f;
  for (int64_t first = r.begin; first < r.limit; first += 32) {
    const int64_t key = first + lane;
    float score = -INFINITY;
    if (key < r.limit) {
      score = 0.0f;
      for (int64_t d = 0; d < p.head_size; d++)
        score = fmaf(queries[warp][d], to_float(k[key * p.k_row + d]), score);
      if (mask)
        score += mask_bias(mask[key * p.mask_key]);
    }
    float most = fmaxf(top, score);
    for (int shift = 16; shift > 0; shift /= 2)
      most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, shift));
    const float base = most == -INFINITY ? 0.0f : most;
    const float correction = fast_exp2(top - base), weight = fast_exp2(score - base);
    sum = fmaf(sum, correction, warp_join<join_sum>(weight));
    top = most;
#pragma unroll
    for (int i = 0; i < ANY_HEAD / 32; i++)
      acc[i] *= correction;
    const int count = (int)(r.limit - first < 32 ? r.limit - first : 32);
    for (int j = 0; j < count; j++) {
      const float w = __shfl_sync(0xffffffffu, weight, j);
      const KV* const from = v + (first + j) * p.v_row;
#pragma unroll
      for (int i = 0; i < ANY_HEAD / 32; i++) {
        if (i * 32 + lane < p.value_size)
          acc[i] = fmaf(w, to_float(from[i * 32 + lane]), acc[i]);
      }
    }
  }
  const float factor = sum == 0.0f ? 0.0f : 1.0f / sum;
  Q* const out = p.out + blockIdx.z * p.out_batch + r.head * p.out_head + r.position * p.out_row;
#pragma unroll
  for (int i = 0; i < ANY_HEAD / 32; i++) {
    if (i * 32 + lane < p.value_size)
      out[i * 32 + lane] = from_float<Q>(acc[i] * factor);
  }
}

} // namespace accrt_cuda

#define ACCRT_CUDA_ATTENTION_PARAMETERS(Q, KV, MASK)                                               \
  const Q *q, const KV *k, const KV *v, const MASK *mask, Q *out, int64_t q_len, int64_t kv_len,   \
      int64_t group, int64_t head_size, int64_t value_size, int64_t q_batch, int64_t q_head,       \
      int64_t q_row, int64_t k_batch, int64_t k_head, int64_t k_row, int64_t v_batch,              \
      int64_t v_head, int64_t v_row, int64_t out_batch, int64_t out_head, int64_t out_row,         \
      int64_t mask_batch, int64_t mask_head, int64_t mask_row, int64_t mask_key, int64_t causal,   \
      int64_t causal_offset, int64_t first_offset, float scale
#define ACCRT_CUDA_ATTENTION_ARGUMENTS                                                             \
  {q,         k,         v,       mask,       out,      q_len,     kv_len,     group,              \
   head_size, value_size, q_batch, q_head,    q_row,    k_batch,   k_head,     k_row,              \
   v_batch,   v_head,    v_row,   out_batch,  out_head, out_row,   mask_batch, mask_head,          \
   mask_row,  mask_key,  causal,  causal_offset, first_offset, scale}

#define ACCRT_CUDA_ATTENTION(ENTRY, T, MASK, HEAD, ROW_TILES, WARPS, WINDOW)                       \
  extern "C" __global__ void __launch_bounds__((WARPS) * 32)                                       \
      ENTRY(ACCRT_CUDA_ATTENTION_PARAMETERS(T, T, MASK)) {                                         \
    extern __shared__ __align__(128) unsigned char accrt_shared[];                                 \
    const accrt_cuda::attention_arguments<T, T, MASK, WINDOW> p = ACCRT_CUDA_ATTENTION_ARGUMENTS;  \
    accrt_cuda::wait_for_previous();                                                               \
    accrt_cuda::allow_next();                                                                      \
    accrt_cuda::attention<T, MASK, HEAD, ROW_TILES, WARPS>(p, accrt_shared);                       \
  }

#define ACCRT_CUDA_ATTENTION_FEW(ENTRY, T, MASK, HEAD, WINDOW)                                     \
  extern "C" __global__ void __launch_bounds__(accrt_cuda::attention_few_warps(HEAD) * 32)         \
      ENTRY(ACCRT_CUDA_ATTENTION_PARAMETERS(T, T, MASK)) {                                         \
    extern __shared__ __align__(128) unsigned char accrt_shared[];                                 \
    const accrt_cuda::attention_arguments<T, T, MASK, WINDOW> p = ACCRT_CUDA_ATTENTION_ARGUMENTS;  \
    accrt_cuda::wait_for_previous();                                                               \
    accrt_cuda::allow_next();                                                                      \
    accrt_cuda::attention_few<T, MASK, HEAD>(p, accrt_shared);                                     \
  }

#define ACCRT_CUDA_ATTENTION_ANY(ENTRY, Q, KV, MASK, WINDOW)                                       \
  extern "C" __global__ void __launch_bounds__(128)                                                \
      ENTRY(ACCRT_CUDA_ATTENTION_PARAMETERS(Q, KV, MASK)) {                                        \
    const accrt_cuda::attention_arguments<Q, KV, MASK, WINDOW> p = ACCRT_CUDA_ATTENTION_ARGUMENTS; \
    accrt_cuda::wait_for_previous();                                                               \
    accrt_cuda::allow_next();                                                                      \
    __shared__ float queries[accrt_cuda::ANY_WARPS][accrt_cuda::ANY_HEAD];                         \
    accrt_cuda::attention_any<Q, KV, MASK>(p, queries);                                            \
  }
#endif
