/* paged_walk.cuh - paged_tiles.cuh for steps in which sequences have one token each, as in
 * decoding: few blocks walk all tokens, and what is read next is always on its way.
 *
 * ACCRT_CUDA_PAGED_WALK(ENTRY, T, KV, CHUNKS, HEADS, PLAIN): T is the type of queries and result,
 * KV that of the pages, CHUNKS the head in pieces of 64; for key heads that are a multiple of HEADS
 * and groups of up to 8 query heads. Needs bulk copies (sm_90).
 * ACCRT_CUDA_PAGED_WALK_TILES(ENTRY, T, KV, CHUNKS, PLAIN): the same by paged_tiles.cuh, in any
 * order.
 *
 * An item is a token and HEADS key heads; blocks take items in turn, as many as the machine holds.
 * `order`, where there is one, has the tokens in descending order of their keys: blocks take items
 * there and back, so that who has begun with a long one ends with a short one.
 * In a block some warps ask for keys and values, STEP keys at a time: the HEADS heads of a key lie
 * side by side, and are one bulk copy each for keys and values. (A warp asks for its lanes one
 * after another, some 60 cycles each, so that one warp is not enough.) STAGES such steps are under
 * way, whatever item they are of, so that memory does not wait while a block changes items. The
 * other warps have a key head each.
 *
 * What is calculated is what paged_tiles.cuh calculates for one token, bit for bit: parts of 128
 * keys, joined in ascending order, and the same products. Sequences with more tokens are right as
 * well, one token after another. */
#ifndef ACCRT_CUDA_PAGED_WALK_CUH_
#define ACCRT_CUDA_PAGED_WALK_CUH_

#include "paged_tiles.cuh"

namespace accrt_cuda {

constexpr int WALK_STAGES = 3;

/** Shared memory: the stages, each of keys and values, then barriers and which keys there are.
 * Distances of keys are such that the threads of a warp meet different banks. */
template <class T, class KV, int CHUNKS, int HEADS> struct walk_layout {
  static constexpr int STEP = 32 / CHUNKS * tiles_elements<T, KV>::FACTOR, HEAD = 64 * CHUNKS;
  static constexpr int ROW = HEADS * HEAD * (int)sizeof(KV);
  static constexpr int KEY = ROW + (sizeof(KV) == 1 ? 32 : 64), VALUE = ROW + 16;
  static constexpr int ASKERS = CHUNKS == 1 ? 4 : 2,
                       EACH = STEP / ASKERS; // warps that ask; keys of one
  static constexpr int STAGE = STEP * (KEY + VALUE), END = WALK_STAGES * STAGE;
  static constexpr int BYTES = END + WALK_STAGES * 24;
};

/** What a step's copies and the warps that use them wait for. */
struct walk_barriers {
  unsigned long long full[WALK_STAGES], empty[WALK_STAGES];
  unsigned short there[WALK_STAGES][4]; // a bit for each key of the step, by warps that ask
};

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
static __device__ __forceinline__ void barrier_make(unsigned long long* at, uint32_t count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(at)), "r"(count)
               : "memory");
}
static __device__ __forceinline__ void barrier_arrive(unsigned long long* at) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(at)) : "memory");
}
static __device__ __forceinline__ void barrier_expect(unsigned long long* at, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(at)),
               "r"(bytes)
               : "memory");
}
static __device__ __forceinline__ void barrier_wait(unsigned long long* at, uint32_t parity) {
  asm volatile("{\n"
               ".reg .pred done;\n"
               "again:\n"
               "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
               "@!done bra again;\n"
               "}" ::"r"(shared_address(at)),
               "r"(parity)
               : "memory");
}
/** `bytes` and both addresses are multiples of 16. */
static __device__ __forceinline__ void copy_bulk(uint32_t to, const void* from, uint32_t bytes,
                                                 unsigned long long* barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
               "[%0], [%1], %2, [%3];" ::"r"(to),
               "l"(from), "r"(bytes), "r"(shared_address(barrier))
               : "memory");
}

/** c[8 x 8] += a[8 x 16] b[16 x 8]: the upper half of the product of 16 rows. */
template <class T>
static __device__ __forceinline__ void walk_multiply(float& c0, float& c1, uint32_t a0, uint32_t a1,
                                                     uint32_t b0, uint32_t b1);
template <>
__device__ __forceinline__ void walk_multiply<bf16>(float& c0, float& c1, uint32_t a0, uint32_t a1,
                                                    uint32_t b0, uint32_t b1) {
  asm("{\n"
      ".reg .f32 x, y;\n"
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, x, y}, "
      "{%2, %6, %3, %6}, {%4, %5}, {%0, %1, %7, %7};\n"
      "}"
      : "+f"(c0), "+f"(c1)
      : "r"(a0), "r"(a1), "r"(b0), "r"(b1), "r"(0), "f"(0.0f));
}
template <>
__device__ __forceinline__ void walk_multiply<f16>(float& c0, float& c1, uint32_t a0, uint32_t a1,
                                                   uint32_t b0, uint32_t b1) {
  asm("{\n"
      ".reg .f32 x, y;\n"
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, x, y}, "
      "{%2, %6, %3, %6}, {%4, %5}, {%0, %1, %7, %7};\n"
      "}"
      : "+f"(c0), "+f"(c1)
      : "r"(a0), "r"(a1), "r"(b0), "r"(b1), "r"(0), "f"(0.0f));
}

/** Where a block stands in its round of stages. */
struct walk_turn {
  int stage;
  uint32_t parity;

  __device__ __forceinline__ void next() {
    stage = stage + 1 == WALK_STAGES ? 0 : stage + 1;
    parity ^= stage == 0;
  }
};

/** An item's token, its first key head, and the keys that the token sees. */
struct walk_item {
  index_t token, first_head;
  int row_id, low, high;
  bool is_wanted;
};

/** As tiles_find, by a warp. */
static __device__ __forceinline__ walk_item
walk_find(const int32_t* row_ids, const int32_t* row_starts, const int32_t* kv_lengths,
          const paged_sizes& s, int token, uint32_t part, uint32_t heads, index_t most_keys,
          index_t table_rows, index_t which) {
  const int lane = threadIdx.x % 32;
  tiles_place place = {-1, 0, 0, 0};
  if (token < s.rows)
    place = tiles_of_row(row_ids, row_starts, kv_lengths, token, most_keys, table_rows);
  if (!(token < s.rows && place.begin == token && place.count == 1)) {
    int row = -1;
    for (int r = lane; r < s.rows; r += 32)
      row = token >= row_starts[r] && token < row_starts[r + 1] ? r : row;
    const uint32_t found = __ballot_sync(0xffffffffu, row >= 0);
    row = __shfl_sync(0xffffffffu, row, found ? __ffs((int)found) - 1 : 0);
    place = {-1, 0, 0, 0};
    if (found)
      place = tiles_of_row(row_ids, row_starts, kv_lengths, row, most_keys, table_rows);
  }
  const bool is_wanted = which != TILES_ALONE || place.count == 1;
  const int own = token - place.begin;
  return {token,
          (index_t)(part * heads),
          place.row_id,
          place.low(own, s.window),
          place.row_id < 0 ? 0 : place.high(own),
          is_wanted};
}

/** What warp `asker` of those that ask does: the first EACH lanes ask for keys, the next EACH for
 * values. */
template <class L>
static __device__ __forceinline__ void
walk_ask(unsigned char* memory, walk_barriers& barriers, walk_turn& turn, const walk_item& item,
         int asker, const unsigned char* k, const unsigned char* v, index_t row,
         const int32_t* own_pages, index_t pages, uint32_t page_keys) {
  static_assert(2 * L::EACH <= 32 && L::EACH <= 16, "lanes of a warp, bits of a number");
  const int lane = threadIdx.x % 32, own = asker * L::EACH + lane % L::EACH;
  const bool asks = lane < 2 * L::EACH, is_value = lane >= L::EACH;
  const auto look = [&](int base) {
    const int key = base + own;
    return asks && key >= item.low && key < item.high ? own_pages[(uint32_t)key / page_keys] : -1;
  };
  const unsigned char* from = is_value ? v : k;
  const uint32_t to =
      shared_address(memory) + (is_value ? L::STEP * L::KEY + own * L::VALUE : own * L::KEY);
  int32_t page = look(item.low / L::STEP * L::STEP);
  for (int base = item.low / L::STEP * L::STEP; base < item.high; base += L::STEP) {
    const bool is_there = page >= 0 && page < pages;
    const index_t slot = (uint32_t)page * page_keys + (uint32_t)(base + own) % page_keys;
    const uint32_t there = __ballot_sync(0xffffffffu, is_there);
    page = look(base + L::STEP); // beyond the end: none
    barrier_wait(&barriers.empty[turn.stage], turn.parity ^ 1u);
    unsigned long long* full = &barriers.full[turn.stage];
    if (lane == 0) {
      barriers.there[turn.stage][asker] = (unsigned short)(there & ((1u << L::EACH) - 1));
      barrier_expect(full, (uint32_t)__popc(there) * L::ROW);
    }
    __syncwarp();
    if (is_there)
      copy_bulk(to + turn.stage * L::STAGE, from + slot * row, L::ROW, full);
    turn.next();
  }
}

template <class KV>
static __device__ __forceinline__ void walk_load(uint32_t (&to)[4], const KV* p) {
  const uint4 x = *reinterpret_cast<const uint4*>(p);
  to[0] = x.x, to[1] = x.y, to[2] = x.z, to[3] = x.w;
}
template <class KV>
static __device__ __forceinline__ void walk_load(uint32_t (&to)[2], const KV* p) {
  const uint2 x = *reinterpret_cast<const uint2*>(p);
  to[0] = x.x, to[1] = x.y;
}

/** A warp's key head: the query heads of a group, rows of which each thread has g = lane / 4. */
template <class T, class KV, int CHUNKS, int HEADS> struct walk_head {
  typedef walk_layout<T, KV, CHUNKS, HEADS> L;
  typedef tiles_elements<T, KV> elements;
  typedef typename elements::type M;
  static constexpr int STEP = L::STEP, TILES = STEP / 8, PARTS = STEP / 16;
  static constexpr unsigned long long ALL = L::ASKERS == 4
                                                ? 0x0001000100010001ull * ((1u << L::EACH) - 1)
                                                : 0x00010001ull * ((1u << L::EACH) - 1);

  /** Whether a key of the step is there. */
  static __device__ __forceinline__ bool has(unsigned long long there, int key) {
    return there >> (16 * (key / L::EACH) + key % L::EACH) & 1u;
  }

  uint32_t query[2 * CHUNKS][4];
  float scale;                               // of a score
  float values[8 * CHUNKS][2], maximum, sum; // of a unit
  float kept[8 * CHUNKS][2], top, total;     // of all before it

  __device__ __forceinline__ void load(const T* from, bool is_there, bool wide, float by) {
    const int t = threadIdx.x % 4;
    words<T, 8> loaded[2 * CHUNKS];
#pragma unroll
    for (int i = 0; i < 2 * CHUNKS; i++) {
      loaded[i].fill(0);
      const T* own = from + 32 * i + 8 * t;
      if (is_there && wide) {
        loaded[i].load(own);
      } else if (is_there) {
#pragma unroll
        for (int w = 0; w < 4; w++)
          loaded[i].word[w] = pack_two<T>(to_float(own[2 * w]), to_float(own[2 * w + 1]));
      }
    }
    scale = by * tiles_query(loaded, M());
#pragma unroll
    for (int i = 0; i < 2 * CHUNKS; i++)
#pragma unroll
      for (int w = 0; w < 4; w++)
        query[i][w] = loaded[i].word[w];
    top = -INFINITY, total = 0.0f;
#pragma unroll
    for (int n = 0; n < 8 * CHUNKS; n++)
      kept[n][0] = kept[n][1] = 0.0f;
  }

  __device__ __forceinline__ void begin_unit() {
    maximum = -INFINITY, sum = 0.0f;
#pragma unroll
    for (int n = 0; n < 8 * CHUNKS; n++)
      values[n][0] = values[n][1] = 0.0f;
  }

  /** One step, as tiles_attend has it. `stage`: keys and values of this head. */
  __device__ __forceinline__ void step(const unsigned char* stage, walk_barriers& barriers,
                                       int index, float soft_cap) {
    constexpr float LOG2 = 1.4426950408889634f;
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    float score[TILES][2];
#pragma unroll
    for (int j = 0; j < TILES; j++)
      score[j][0] = score[j][1] = 0.0f;
      // Sums of several keys are made side by side: each waits for its last term.
#pragma unroll
    for (int i = 0; i < 2 * CHUNKS; i++) {
      uint32_t key[TILES][4];
#pragma unroll
      for (int j = 0; j < TILES; j++) {
        uint32_t loaded[elements::WORDS];
        walk_load(loaded,
                  reinterpret_cast<const KV*>(stage + (8 * j + g) * L::KEY) + 32 * i + 8 * t);
        tiles_key(key[j], loaded);
      }
#pragma unroll
      for (int w = 0; w < 4; w += 2)
#pragma unroll
        for (int j = 0; j < TILES; j++)
          walk_multiply<M>(score[j][0], score[j][1], query[i][w], query[i][w + 1], key[j][w],
                           key[j][w + 1]);
    }
    const unsigned long long there =
        *reinterpret_cast<const unsigned long long*>(barriers.there[index]);
    const bool all_there = there == ALL;
    if (soft_cap > 0.0f) {
#pragma unroll
      for (int j = 0; j < TILES; j++)
#pragma unroll
        for (int c = 0; c < 2; c++)
          score[j][c] = soft_cap * tanhf(__fmul_rn(score[j][c], scale) / soft_cap);
    }
    const float by = soft_cap > 0.0f ? LOG2 : scale * LOG2;
#pragma unroll
    for (int j = 0; j < TILES; j++)
#pragma unroll
      for (int c = 0; c < 2; c++)
        score[j][c] = __fmul_rn(score[j][c], by);
    if (!all_there) {
#pragma unroll
      for (int j = 0; j < TILES; j++)
#pragma unroll
        for (int c = 0; c < 2; c++)
          score[j][c] = has(there, 8 * j + 2 * t + c) ? score[j][c] : -INFINITY;
    }
    float next = maximum;
#pragma unroll
    for (int j = 0; j < TILES; j++)
      next = fmaxf(next, fmaxf(score[j][0], score[j][1]));
    next = fmaxf(next, __shfl_xor_sync(0xffffffffu, next, 1));
    next = fmaxf(next, __shfl_xor_sync(0xffffffffu, next, 2));
    const float safe = next == -INFINITY ? 0.0f : next, factor = fast_exp2(maximum - safe);
    maximum = next;
    sum = __fmul_rn(sum, factor);
#pragma unroll
    for (int j = 0; j < TILES; j++)
#pragma unroll
      for (int c = 0; c < 2; c++) {
        score[j][c] = fast_exp2(__fadd_rn(score[j][c], -safe));
        sum = __fadd_rn(sum, score[j][c]);
      }
#pragma unroll
    for (int n = 0; n < 8 * CHUNKS; n++)
#pragma unroll
      for (int c = 0; c < 2; c++)
        values[n][c] = __fmul_rn(values[n][c], factor);
#pragma unroll
    for (int m = 0; m < PARTS; m++) {
      const uint32_t a0 = pack_two<M>(score[2 * m][0], score[2 * m][1]);
      const uint32_t a1 = pack_two<M>(score[2 * m + 1][0], score[2 * m + 1][1]);
      uint32_t loaded[4][CHUNKS][elements::WORDS];
#pragma unroll
      for (int own = 0; own < 4; own++) {
        const int key = 16 * m + 8 * (own / 2) + 2 * t + own % 2;
        const unsigned char* row = stage + STEP * L::KEY + key * L::VALUE;
#pragma unroll
        for (int c = 0; c < CHUNKS; c++)
          walk_load(loaded[own][c], reinterpret_cast<const KV*>(row) + 64 * c + 8 * g);
        if (!all_there && !has(there, key)) {
#pragma unroll
          for (int x = 0; x < CHUNKS * elements::WORDS; x++)
            loaded[own][x / elements::WORDS][x % elements::WORDS] = 0;
        }
      }
#pragma unroll
      for (int c = 0; c < CHUNKS; c++)
#pragma unroll
        for (int j = 0; j < 8; j++)
          walk_multiply<M>(values[8 * c + j][0], values[8 * c + j][1], a0, a1,
                           tiles_pair(loaded[0][c], loaded[1][c], j),
                           tiles_pair(loaded[2][c], loaded[3][c], j));
    }
    __syncwarp();
    if (lane == 0)
      barrier_arrive(&barriers.empty[index]);
  }

  __device__ __forceinline__ void end_unit() {
    sum = __fadd_rn(sum, __shfl_xor_sync(0xffffffffu, sum, 1));
    sum = __fadd_rn(sum, __shfl_xor_sync(0xffffffffu, sum, 2));
    float before, now, next;
    paged_join(top, total, maximum, sum, before, now, next);
    top = next, total = paged_mix(total, before, sum, now);
#pragma unroll
    for (int n = 0; n < 8 * CHUNKS; n++)
#pragma unroll
      for (int c = 0; c < 2; c++)
        kept[n][c] = paged_mix(kept[n][c], before, values[n][c], now);
  }

  __device__ __forceinline__ void store(T* to, bool wide, const float* sinks, index_t head) const {
    const int t = threadIdx.x % 4;
    const float factor = paged_factor(top, total, sinks, head);
#pragma unroll
    for (int chunk = 0; chunk < CHUNKS; chunk++)
#pragma unroll
      for (int c = 0; c < 2; c++) {
        float x[8];
#pragma unroll
        for (int j = 0; j < 8; j++)
          x[j] = kept[8 * chunk + j][c];
        tiles_store(to + 64 * chunk + 8 * (2 * t + c), wide, x, factor);
      }
  }
};

template <class T, class KV, int CHUNKS, int HEADS>
static __device__ __forceinline__ void
walk_run(unsigned char* memory, const T* q, const KV* k, const KV* v, const int32_t* table,
         const int32_t* row_ids, const int32_t* row_starts, const int32_t* kv_lengths,
         const float* sinks, T* out, const paged_sizes& s, index_t pages, index_t page_size,
         index_t table_rows, index_t table_pages, index_t q_token, index_t q_head,
         index_t out_token, index_t out_head, float scale, float soft_cap, index_t which,
         const int32_t* order) {
  typedef walk_layout<T, KV, CHUNKS, HEADS> L;
  walk_barriers& barriers = *reinterpret_cast<walk_barriers*>(memory + L::END);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4;
  if (threadIdx.x == 0) {
    for (int i = 0; i < WALK_STAGES; i++)
      barrier_make(&barriers.full[i], L::ASKERS), barrier_make(&barriers.empty[i], HEADS);
    for (int i = 0; i < WALK_STAGES * 4; i++)
      barriers.there[i / 4][i % 4] = 0; // also of warps that there are not
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  wait_for_previous();
  allow_next();
  const uint32_t across = (uint32_t)s.kv_heads / HEADS, items = (uint32_t)s.tokens * across;
  /* Of round r, there and back; behind the last one where there is none. */
  const auto at_round = [&](uint32_t r) {
    return r * gridDim.x + (r % 2 ? gridDim.x - 1 - blockIdx.x : blockIdx.x);
  };
  const auto token_of = [&](uint32_t at) {
    const uint32_t token = at / across;
    return (int)(at >= items || !order ? token : order[token]);
  };
  const index_t most_keys = table_pages * page_size;
  walk_turn turn = {0, 0};
  /* The block's items, which those that ask and those that compute take in the same order. */
  const auto for_each = [&](const auto& take) {
    int next = token_of(at_round(0));
    for (uint32_t r = 0; r * gridDim.x < items; r++) {
      const uint32_t at = at_round(r);
      const int token = next;
      next = token_of(at_round(r + 1));
      if (at >= items)
        continue;
      const walk_item item = walk_find(row_ids, row_starts, kv_lengths, s, token, at % across,
                                       HEADS, most_keys, table_rows, which);
      if (item.is_wanted)
        take(item);
    }
  };
  if (warp >= HEADS) {
    asm volatile("fence.proxy.async;" ::: "memory"); // what kernels before this one wrote
    for_each([&](const walk_item& item) {
      if (item.row_id < 0)
        return;
      const index_t row = s.kv_heads * L::HEAD * (index_t)sizeof(KV);
      const index_t first = item.first_head * L::HEAD * (index_t)sizeof(KV);
      walk_ask<L>(memory, barriers, turn, item, warp - HEADS,
                  reinterpret_cast<const unsigned char*>(k) + first,
                  reinterpret_cast<const unsigned char*>(v) + first, row,
                  table + (index_t)item.row_id * table_pages, pages, (uint32_t)page_size);
    });
    return;
  }
  const bool wide_out = is_aligned(out, 16) && out_token % 8 == 0 && out_head % 8 == 0;
  const bool wide_in = is_aligned(q, 16) && q_token % 8 == 0 && q_head % 8 == 0;
  const bool is_row = g < s.group;
  walk_head<T, KV, CHUNKS, HEADS> own;
  for_each([&](const walk_item& item) {
    const index_t head = (item.first_head + warp) * s.group + g;
    own.load(q + item.token * q_token + head * q_head, is_row, wide_in, scale);
    const int begin = item.low / L::STEP * L::STEP;
#pragma unroll 1
    for (int base = begin; base < item.high; base += L::STEP) {
      if (base == begin || base % TILES_UNIT == 0)
        own.begin_unit();
      barrier_wait(&barriers.full[turn.stage], turn.parity);
      own.step(memory + turn.stage * L::STAGE + warp * L::HEAD * (int)sizeof(KV), barriers,
               turn.stage, soft_cap);
      turn.next();
      if (base + L::STEP >= item.high || (base + L::STEP) % TILES_UNIT == 0)
        own.end_unit();
    }
    if (is_row)
      own.store(out + item.token * out_token + head * out_head, wide_out, sinks, head);
  });
}
#endif

} // namespace accrt_cuda

#define ACCRT_CUDA_PAGED_WALK(ENTRY, T, KV, CHUNKS, HEADS, PLAIN)                                  \
  extern "C" __global__ void __launch_bounds__(32 * (HEADS + (CHUNKS == 1 ? 4 : 2)), 8 / HEADS)    \
      ENTRY(ACCRT_CUDA_PAGED_TILES_PARAMETERS(T, KV), const int32_t* order) {                      \
    extern __shared__ __align__(128) unsigned char memory[];                                       \
    ACCRT_CUDA_PAGED_SIZES(PLAIN)                                                                  \
    (void)head_size, (void)partial;                                                                \
    accrt_cuda::walk_run<T, KV, CHUNKS, HEADS>(                                                    \
        memory, q, k, v, table, row_ids, row_starts, kv_lengths, PLAIN ? nullptr : sinks, out,     \
        sizes, pages, page_size, table_rows, table_pages, q_token, q_head, out_token, out_head,    \
        scale, soft_cap, which, order);                                                            \
  }

#define ACCRT_CUDA_PAGED_WALK_TILES(ENTRY, T, KV, CHUNKS, PLAIN)                                   \
  extern "C" __global__ void __launch_bounds__(128, 2)                                             \
      ENTRY(ACCRT_CUDA_PAGED_TILES_PARAMETERS(T, KV), const int32_t* order) {                      \
    accrt_cuda::wait_for_previous();                                                               \
    accrt_cuda::allow_next();                                                                      \
    __shared__ accrt_cuda::tiles_block<CHUNKS> shared;                                             \
    ACCRT_CUDA_PAGED_SIZES(PLAIN)                                                                  \
    (void)head_size, (void)partial, (void)order;                                                   \
    for (long long item = blockIdx.x; item < tokens * kv_heads; item += gridDim.x) {               \
      accrt_cuda::tiles_run<T, KV, CHUNKS>(                                                        \
          shared, q, k, v, table, row_ids, row_starts, kv_lengths, PLAIN ? nullptr : sinks, out,   \
          nullptr, sizes, pages, page_size, table_rows, table_pages, q_token, q_head, out_token,   \
          out_head, scale, soft_cap, which, item / kv_heads, (uint32_t)(item % kv_heads));         \
      __syncthreads();                                                                             \
    }                                                                                              \
  }

#endif /* ACCRT_CUDA_PAGED_WALK_CUH_ */
