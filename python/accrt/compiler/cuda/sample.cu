// sample.cu - the next token of each row of logits, and what is said of it: kernels/sample.c on a
// GPU, with the same noise. A block of 512 threads has one row.
//
// Instantiated with ENTRY, and PART, which is 1 for what goes before where rows are few: there a
// block has a piece of a row, 16 elements to a thread, and hands on to the row's block what its
// threads found. A row gives the same bytes both ways.
//
// The first pass finds the largest of each thread and log-sum-exp. Where few of the largest are
// wanted, that pass keeps what may be among them: what k threads reach in a part of the row bounds
// the k-th largest of all. Else what k threads reach bounds the k-th largest, and what threads sum
// up to bounds top-p; so a second pass collects few candidates, which are sorted in shared memory
// and cut there. Where they are many, cut() of largest.cuh finds the exact key, and noise is made
// for the whole row.
//
// A row with edits or a mask has a bitmap of tokens that are not what they were (in `work`), and
// its edited tokens as a list. A device cannot fail one dispatch: edits outside the vocabulary,
// rows of edits that are none and masks that are not there are as if they had not been given.
#define NAN_BITS 0xFF800000u
#include "largest.cuh"

#define NOISE_LIMIT 23.0f // no noise is larger: v is at least 2^-33
#define LOWEST ((row_key_t)(MINUS_INFINITY_ORDER + 1) << 32)

DEVICE float exp_or_zero(float y) {
  float e;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(y * 1.44269504f));
  return fmaxf(e, 0.0f); // of NaN: 0
}

// How a row is sampled. Weights are exp of (x - top) / temperature.
struct how_t {
  float top, temperature, top_p, min_p;
  index_t top_k; // 0: off
};
DEVICE float heated(const how_t& h, float x) {
  const float y = (x - h.top) / h.temperature;
  return x == h.top ? 0.0f : y != y ? NEGATIVE_INFINITY : y;
}

struct stats_t {
  row_key_t own, best; // the largest of this thread, and of the row
  float sum, heated_sum;
};

// Of some elements: the largest, with the lowest place, and the sums of exp of what is below it: as
// it is and, where `temperature` is not 0, divided by that.
struct part_t {
  float top, sum, heated_sum;
  uint32_t order, place;
};
#define NO_PART                                                                                    \
  { NEGATIVE_INFINITY, 0.0f, 0.0f, 0, 0 }

DEVICE part_t part_of(const float (&q)[4][4], float temperature) {
  part_t p = NO_PART;
  float sums[4], heated[4];
#pragma unroll
  for (int i = 0; i < 4; i++)
    p.top = fmaxf(p.top, fmaxf(fmaxf(q[i][0], q[i][1]), fmaxf(q[i][2], q[i][3])));
  const float base = p.top == NEGATIVE_INFINITY ? 0.0f : p.top;
#pragma unroll
  for (int i = 0; i < 4; i++) {
    sums[i] = heated[i] = 0.0f;
#pragma unroll
    for (int j = 0; j < 4; j++) {
      sums[i] += exp_or_zero(q[i][j] - base);
      if (temperature != 0.0f)
        heated[i] += exp_or_zero((q[i][j] - base) / temperature);
    }
  }
  p.sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
  p.heated_sum = (heated[0] + heated[1]) + (heated[2] + heated[3]);
  p.order = order_of_float(p.top);
  return p;
}

// The place of the largest; group: of the first four elements.
DEVICE uint32_t place_of(const float (&q)[4][4], index_t group, float top) {
  index_t place = 4 * group;
#pragma unroll
  for (int i = 3; i >= 0; i--)
#pragma unroll
    for (int j = 3; j >= 0; j--)
      place = q[i][j] == top ? 4 * (group + i * THREADS) + j : place;
  return (uint32_t)place;
}

// place(): of what is added.
template <class PLACE>
static __device__ __forceinline__ void add_part(part_t& to, const part_t& p, float temperature,
                                                PLACE place) {
  if (p.order > to.order || (p.order == to.order && to.order > 0)) {
    const uint32_t other = place();
    to.place = p.order > to.order || other < to.place ? other : to.place;
    to.order = p.order;
  }
  const float more = fmaxf(to.top, p.top), base = more == NEGATIVE_INFINITY ? 0.0f : more;
  to.sum = to.sum * exp_or_zero(to.top - base) + p.sum * exp_or_zero(p.top - base);
  if (temperature != 0.0f)
    to.heated_sum = to.heated_sum * exp_or_zero((to.top - base) / temperature) +
                    p.heated_sum * exp_or_zero((p.top - base) / temperature);
  to.top = more;
}

DEVICE void keep_key(shared_t& s, row_key_t key) {
  const uint32_t at = atomicAdd(&s.count, 1u);
  if (at < LIST)
    s.keys[at] = key;
}

// What this thread has of a row. Keys of elements that are at least `low` (NaN: none are) are added
// to the list.
static __device__ __noinline__ part_t part_of_row(const row_t& r, shared_t& s, float temperature,
                                                  float low) {
  part_t all = NO_PART;
  walk_pieces(r, [&](const float(&q)[4][4], index_t group) {
    const part_t p = part_of(q, temperature);
    // Of equal ones the first stays.
    if (p.order > all.order)
      add_part(all, p, temperature, [&]() { return place_of(q, group, p.top); });
    else
      add_part(all, p, temperature, [&]() { return 0xFFFFFFFFu; });
    if (!(p.top >= low))
      return;
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
      for (int j = 0; j < 4; j++) {
        if (q[i][j] >= low)
          keep_key(s, key_of(order_of_float(q[i][j]), 4 * (group + i * THREADS) + j));
      }
  });
  // Edited tokens come last, in any order.
  for (index_t e = threadIdx.x; e < r.edits; e += THREADS) {
    const float x = r.edited[e];
    if (x != x)
      continue;
    part_t p = NO_PART;
    p.top = x, p.order = order_of_float(x);
    p.sum = p.heated_sum = exp_or_zero(x - (x == NEGATIVE_INFINITY ? 0.0f : x));
    add_part(all, p, temperature, [&]() { return (uint32_t)r.edited_ids[e]; });
  }
  return all;
}

// Of the row, what its threads have.
static __device__ __noinline__ stats_t joined(const part_t& own, shared_t& s, float temperature) {
  stats_t made;
  made.own = own.order ? key_of(own.order, own.place) : 0;
  made.best = largest_of_block(made.own, s);
  const float largest = float_of_order(order_of_key(made.best));
  const auto add = [](float a, float b) { return a + b; };
  made.sum = join_block(own.sum * exp_or_zero(own.top - largest), (float*)s.scratch, add);
  made.heated_sum = 0.0f;
  if (temperature != 0.0f)
    made.heated_sum = join_block(own.heated_sum * exp_or_zero((own.top - largest) / temperature),
                                 (float*)s.scratch, add);
  return made;
}

// What k elements reach, as a float: found from a part of the row, the same for all threads. NaN:
// nothing that is of use.
static __device__ __noinline__ float low_of(const row_t& r, shared_t& s, uint32_t k) {
  const index_t groups = r.n / 4;
  const bool aligned = is_aligned<x_t, 4>(r.x);
  float q[4][4], top = NEGATIVE_INFINITY;
#pragma unroll
  for (int i = 0; i < 4; i++)
    load_group(r, (groups / 4 * i & ~(index_t)31) + threadIdx.x, aligned, q[i]);
#pragma unroll
  for (int i = 0; i < 4; i++)
    top = fmaxf(top, fmaxf(fmaxf(q[i][0], q[i][1]), fmaxf(q[i][2], q[i][3])));
  sort_largest(key_of(order_of_float(top), 0), s);
  const uint32_t order = order_of_key(s.keys[k - 1]);
  __syncthreads();
  return order > MINUS_INFINITY_ORDER ? float_of_order(order) : __uint_as_float(0x7FC00000u);
}

// ---- Pieces of rows ----

#define KEPT 512                            // keys that a piece hands on
#define PIECE (16 * THREADS)                // elements of a piece
#define HANDED (4 * THREADS + 4 + 2 * KEPT) // words that it hands on
#define TOO_MANY 0xFFFFFFFFu

// What threads have of a row, from pieces.
static __device__ __noinline__ part_t part_of_pieces(const uint32_t* handed, index_t pieces,
                                                     float temperature) {
  part_t all = NO_PART;
#pragma unroll 4
  for (index_t i = 0; i < pieces; i++) {
    const uint32_t* own = handed + i * HANDED + threadIdx.x;
    part_t p;
    p.top = __uint_as_float(own[0]), p.sum = __uint_as_float(own[THREADS]);
    p.heated_sum = __uint_as_float(own[2 * THREADS]), p.place = own[3 * THREADS];
    if (p.place == TOO_MANY)
      continue; // the piece has nothing for this thread
    p.order = order_of_float(p.top);
    add_part(all, p, temperature, [&]() { return p.place; });
  }
  return all;
}

// The keys of pieces, sorted; how many, or more than LIST where they are not all there.
static __device__ __noinline__ uint32_t list_of_pieces(const uint32_t* handed, index_t pieces,
                                                       shared_t& s) {
  uint32_t total = 0;
  __syncthreads();
  for (index_t i = 0; i < pieces; i++) {
    const uint32_t* own = handed + i * HANDED + 4 * THREADS;
    const uint32_t count = own[0];
    if (count == TOO_MANY || total + count > LIST)
      return LIST + 1;
    for (uint32_t at = threadIdx.x; at < count; at += THREADS)
      s.keys[total + at] = (row_key_t)own[4 + 2 * at] << 32 | own[5 + 2 * at];
    total += count;
  }
  sort_keys(s, total);
  return total;
}

// ---- Edits and masks ----

DEVICE float edit_once(float x, float multiply, float add) {
  return (x > 0.0f ? x / multiply : x * multiply) + add;
}

// Of a token with several edits the first makes them all, in order.
static __device__ float edit_in_order(const row_t& r, const float* multiply, const float* add,
                                      index_t own) {
  const int32_t id = r.edited_ids[own];
  float x = LOAD(X_TAG)(r.x[id]);
  x = x != x ? NEGATIVE_INFINITY : x;
  for (index_t e = 0; e < r.edits; e++) {
    if (r.edited_ids[e] != id)
      continue;
    if (e < own)
      return __uint_as_float(0x7FC00000u);
    x = edit_once(x, multiply[e], add[e]);
  }
  return x != x ? NEGATIVE_INFINITY : x;
}

// Fills the bitmap `gone` and the edited values of a row.
static __device__ __noinline__ void change(const row_t& r, shared_t& s, const uint32_t* bits,
                                           const float* multiply, const float* add, uint32_t* gone,
                                           float* edited) {
  const index_t words = (r.n + 31) / 32;
  for (index_t i = threadIdx.x; i < words; i += THREADS)
    gone[i] = bits == nullptr ? 0u : ~bits[i];
  if (threadIdx.x == 0)
    s.count = 0;
  __syncthreads();
  for (index_t e = threadIdx.x; e < r.edits; e += THREADS) {
    const int32_t id = r.edited_ids[e];
    edited[e] = __uint_as_float(0x7FC00000u);
    if (id < 0 || id >= r.n || (bits != nullptr && !(bits[id / 32] >> (id % 32) & 1u)))
      continue;
    if (atomicOr(&gone[id / 32], 1u << (id % 32)) >> (id % 32) & 1u)
      s.count = 1; // some token stands twice
    const float x = LOAD(X_TAG)(r.x[id]);
    const float y = edit_once(x != x ? NEGATIVE_INFINITY : x, multiply[e], add[e]);
    edited[e] = y != y ? NEGATIVE_INFINITY : y;
  }
  __syncthreads();
  if (s.count == 0)
    return;
  for (index_t e = threadIdx.x; e < r.edits; e += THREADS) {
    if (edited[e] == edited[e])
      edited[e] = edit_in_order(r, multiply, add, e);
  }
  __syncthreads();
}

// ---- Noise ----

// Four words of Philox4x32-10.
static __device__ __forceinline__ void philox(const uint32_t* seed, uint32_t quarter,
                                              uint32_t position, uint32_t (&words)[4]) {
  uint32_t a = quarter, b = position, c = 0, d = 0, k0 = seed[0], k1 = seed[1];
#pragma unroll
  for (int round = 0; round < 10; round++) {
    const uint32_t x = __umulhi(0xD2511F53u, a), x_low = 0xD2511F53u * a;
    const uint32_t y = __umulhi(0xCD9E8D57u, c), y_low = 0xCD9E8D57u * c;
    a = y ^ b ^ k0;
    b = y_low;
    c = x ^ d ^ k1;
    d = x_low;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  words[0] = a, words[1] = b, words[2] = c, words[3] = d;
}
DEVICE float uniform_of(uint32_t word) {
  return fminf((float)word * 0x1p-32f + 0x1p-33f, 0x1.fffffep-1f);
}
DEVICE float noise_of(float v) {
  return -logf(-log1pf(-v));
}
DEVICE uint32_t word_of(const uint32_t (&words)[4], index_t at) {
  const uint32_t low = at & 1 ? words[1] : words[0], high = at & 1 ? words[3] : words[2];
  return at & 2 ? high : low;
}

// ---- Choosing ----

// A key that no token to choose is below, so that few are above it; 0: there is none. s.keys: the
// largest of each thread, sorted.
static __device__ __noinline__ row_key_t bound_of(const how_t& h, shared_t& s, float heated_sum) {
  if (h.top_k > 0)
    return h.top_k <= THREADS ? s.keys[h.top_k - 1] & ~(row_key_t)0xFFFFFFFFu : 0;
  if (h.top_p < 1.0f) {
    const uint32_t order = order_of_key(s.keys[threadIdx.x]);
    const float own =
        order > MINUS_INFINITY_ORDER ? exp_or_zero(heated(h, float_of_order(order))) : 0.0f;
    float all;
    const float before = sum_before(own, (float*)s.scratch, &all);
    const int count = __syncthreads_count(!(before + own >= h.top_p * heated_sum * 1.0001f));
    return count < THREADS ? s.keys[count] & ~(row_key_t)0xFFFFFFFFu : 0;
  }
  if (!(h.min_p > 0.0f))
    return 0;
  const float below = h.temperature * logf(fminf(h.min_p, 1.0f));
  const float x = h.top + below - 1e-5f * (fabsf(h.top) - below);
  return x == x ? (row_key_t)order_of_float(x) << 32 : 0;
}

// The token among s.keys[0..count), which are sorted and hold all that may be chosen. `heated_sum`:
// the sum of all weights, if top-p is of all and these are not all; else 0.
static __device__ __noinline__ index_t choose_of_list(const how_t& h, shared_t& s, uint32_t count,
                                                      const uint32_t* seed, uint32_t position,
                                                      float heated_sum) {
  const uint32_t limit = h.top_k > 0 && h.top_k < count ? (uint32_t)h.top_k : count;
  float y[EACH], weight[EACH], own = 0.0f, all;
  for (uint32_t i = 0; i < EACH; i++) {
    const uint32_t at = EACH * threadIdx.x + i;
    const uint32_t order = at < limit ? order_of_key(s.keys[at]) : 0;
    y[i] = order > MINUS_INFINITY_ORDER ? heated(h, float_of_order(order)) : NEGATIVE_INFINITY;
    weight[i] = order > MINUS_INFINITY_ORDER ? exp_or_zero(y[i]) : -1.0f;
    own += fmaxf(weight[i], 0.0f);
  }
  float before = sum_before(own, (float*)s.scratch, &all);
  const float target = h.top_p * (heated_sum > 0.0f ? heated_sum : all);
  row_key_t best = 0;
  for (uint32_t i = 0; i < EACH; i++) {
    const uint32_t at = EACH * threadIdx.x + i;
    const bool within = !(h.top_p < 1.0f) || before < target || at == 0;
    before += fmaxf(weight[i], 0.0f);
    if (weight[i] < 0.0f || !within || (h.min_p > 0.0f && weight[i] < fminf(h.min_p, 1.0f)))
      continue;
    const index_t id = id_of_key(s.keys[at]);
    uint32_t words[4];
    philox(seed, (uint32_t)(id / 4), position, words);
    const row_key_t key =
        key_of(order_of_float(y[i] + noise_of(uniform_of(word_of(words, id)))), id);
    best = key > best ? key : best;
  }
  best = largest_of_block(best, s);
  return best ? id_of_key(best) : -1;
}

// The token among all of a row whose keys are at least `least`. Noise is at most -log(v): where
// that does not reach what was found, no more is calculated.
static __device__ __noinline__ index_t choose_of_row(const how_t& h, shared_t& s, const row_t& r,
                                                     row_key_t least, const uint32_t* seed,
                                                     uint32_t position) {
  row_key_t best = 0;
  float reached = NEGATIVE_INFINITY;
  const float lowest = h.min_p > 0.0f ? logf(fminf(h.min_p, 1.0f)) : NEGATIVE_INFINITY;
  const uint32_t low = order_of_key(least);
  walk(r, [&](const float(&q)[4], index_t at, int count) {
    float y[4], most = NEGATIVE_INFINITY;
#pragma unroll
    for (int j = 0; j < 4; j++) {
      const uint32_t order = order_of_float(q[j]);
      const bool in = j < count && order >= low && key_of(order, at + j) >= least;
      const float x = in ? heated(h, q[j]) : NEGATIVE_INFINITY;
      y[j] = in && x >= lowest ? x : __uint_as_float(0x7FC00000u);
      most = fmaxf(most, y[j]);
    }
    if (y[0] != y[0] && y[1] != y[1] && y[2] != y[2] && y[3] != y[3])
      return;
    if (most + NOISE_LIMIT < reached)
      return;
    uint32_t words[4];
    philox(seed, (uint32_t)(at / 4), position, words);
#pragma unroll
    for (int j = 0; j < 4; j++) {
      if (y[j] != y[j])
        continue;
      const float v = uniform_of(word_of(words, at + j));
      if (y[j] - __logf(v) + 1e-3f < reached)
        continue;
      const float score = y[j] + noise_of(v);
      const row_key_t key = key_of(order_of_float(score), at + j);
      reached = fmaxf(reached, score);
      best = key > best ? key : best;
    }
  });
  best = largest_of_block(best, s);
  return best ? id_of_key(best) : -1;
}

static __device__ __noinline__ index_t choose(const how_t& h, shared_t& s, const row_t& r,
                                              const uint32_t* seed, uint32_t position) {
  row_key_t least = LOWEST;
  if (h.top_k > 0) {
    const row_key_t key =
        cut(r, s, LOWEST, true, (double)h.top_k, [](uint32_t) { return (row_key_t)1; });
    least = key > least ? key : least;
  }
  if (h.top_p < 1.0f) {
    const auto weigh = [&](uint32_t order) { return fixed_exp(heated(h, float_of_order(order))); };
    const row_key_t key = cut(r, s, least, false, h.top_p > 0.0f ? (double)h.top_p : 0.0, weigh);
    least = key > least ? key : least;
  }
  return choose_of_row(h, s, r, least, seed, position);
}

// ---- What is said ----

static __device__ __noinline__ uint32_t count_at_least(const row_t& r, shared_t& s,
                                                       uint32_t least) {
  uint32_t own = 0;
  walk(r, [&](const float(&q)[4], index_t, int count) {
#pragma unroll
    for (int j = 0; j < 4; j++)
      own += j < count && order_of_float(q[j]) >= least;
  });
  return join_block(own, (uint32_t*)s.scratch, [](uint32_t a, uint32_t b) { return a + b; });
}

// ---- Rows ----

// How a row is sampled, and what of it is to be found in its first pass.
struct plan_t {
  how_t how;
  bool edited, has_mask, greedy;
  float divisor;   // for sums of weights, or 0
  uint32_t wanted; // of the largest, where that is all that is wanted; 0: more, or none
};
DEVICE plan_t plan_of(index_t row, const float* temperature, const int32_t* top_k,
                      const float* top_p, const int32_t* edit_starts, const int32_t* mask_rows,
                      index_t vocab, index_t edits, index_t masks, index_t top) {
  plan_t p;
  const index_t first = edit_starts[row], end = edit_starts[row + 1], masked = mask_rows[row];
  p.edited = first >= 0 && first < end && end <= edits;
  p.has_mask = masked >= 0 && masked < masks;
  p.how = {0.0f, temperature[row], top_p[row], 0.0f, top_k[row]};
  p.how.top_k = p.how.top_k > 0 && p.how.top_k < vocab ? p.how.top_k : 0;
  p.greedy = !(p.how.temperature > 0.0f);
  const bool changed = p.edited || p.has_mask, chooses = !changed && !p.greedy;
  const bool weighs = chooses && p.how.top_k == 0;
  p.divisor = weighs && p.how.top_p < 1.0f ? p.how.temperature : 0.0f;
  const index_t tops = min_index(top, vocab);
  const index_t least = p.greedy && !changed ? 1 : tops; // of the largest: its rank
  const index_t most = chooses && p.how.top_k > tops ? p.how.top_k : tops > least ? tops : least;
  p.wanted = !weighs && most <= THREADS && vocab >= 2 * PIECE ? (uint32_t)most : 0;
  return p;
}

#if PART
extern "C" __global__ void __launch_bounds__(THREADS, 2)
    ENTRY(const x_t* logits, const float* temperature, const int32_t* top_k, const float* top_p,
          const int32_t* edit_starts, const int32_t* mask_rows, uint32_t* partial, index_t samples,
          index_t vocab, index_t row_step, index_t edits, index_t masks, index_t top) {
  begin_kernel();
  __shared__ shared_t s;
  const index_t row = blockIdx.y, begin = (index_t)blockIdx.x * PIECE;
  if (row >= samples || begin >= vocab)
    return;
  const plan_t plan =
      plan_of(row, temperature, top_k, top_p, edit_starts, mask_rows, vocab, edits, masks, top);
  const row_t r = {logits + row * row_step, vocab, nullptr, nullptr, nullptr, 0};
  uint32_t* handed = partial + (row * gridDim.x + blockIdx.x) * HANDED;
  const bool aligned = is_aligned<x_t, 4>(r.x);
  const index_t group = begin / 4 + threadIdx.x;
  float q[4][4];
#pragma unroll
  for (int i = 0; i < 4; i++)
    load_group(r, group + i * THREADS, aligned, q[i]);
  const part_t own = part_of(q, plan.divisor);
  const bool has_any = 4 * group < vocab;
  handed[threadIdx.x] = __float_as_uint(own.top);
  handed[THREADS + threadIdx.x] = __float_as_uint(own.sum);
  handed[2 * THREADS + threadIdx.x] = __float_as_uint(own.heated_sum);
  handed[3 * THREADS + threadIdx.x] = has_any ? place_of(q, group, own.top) : TOO_MANY;
  uint32_t count = 0;
  if (plan.wanted > 0) {
    sort_largest(has_any ? key_of(own.order, 0) : 0, s);
    const uint32_t low = order_of_key(s.keys[plan.wanted - 1]);
    __syncthreads();
    if (threadIdx.x == 0)
      s.count = 0;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
      for (int j = 0; j < 4; j++) {
        const index_t at = 4 * (group + i * THREADS) + j;
        const uint32_t order = order_of_float(q[i][j]);
        if (at < vocab && order >= low)
          keep_key(s, key_of(order, at));
      }
    __syncthreads();
    count = s.count <= KEPT ? s.count : TOO_MANY;
    for (uint32_t i = threadIdx.x; count != TOO_MANY && i < count; i += THREADS) {
      handed[4 * THREADS + 4 + 2 * i] = (uint32_t)(s.keys[i] >> 32);
      handed[4 * THREADS + 5 + 2 * i] = (uint32_t)s.keys[i];
    }
  }
  if (threadIdx.x == 0)
    handed[4 * THREADS] = count;
}
#else
extern "C" __global__ void __launch_bounds__(THREADS, 2)
    ENTRY(const x_t* logits, const float* temperature, const int32_t* top_k, const float* top_p,
          const float* min_p, const uint32_t* seed, const int32_t* position,
          const int32_t* edit_starts, const int32_t* edit_tokens, const float* edit_multiply,
          const float* edit_add, const int32_t* mask_rows, const uint32_t* mask_bits,
          int32_t* token, float* logprob, int32_t* top_ids, float* top_logprobs, int32_t* rank,
          const uint32_t* partial, uint32_t* work, index_t samples, index_t vocab, index_t row_step,
          index_t edits, index_t masks, index_t top) {
  begin_kernel();
  __shared__ shared_t s;
  const index_t row = blockIdx.x;
  if (row >= samples)
    return;
  const plan_t plan =
      plan_of(row, temperature, top_k, top_p, edit_starts, mask_rows, vocab, edits, masks, top);
  const index_t words = (vocab + 31) / 32, first = edit_starts[row], end = edit_starts[row + 1];
  const index_t masked = mask_rows[row], pieces = (vocab + PIECE - 1) / PIECE;
  const bool edited = plan.edited, has_mask = plan.has_mask, changed = edited || has_mask;
  const bool greedy = plan.greedy;
  const uint32_t* own_seed = seed + 2 * row;
  how_t h = plan.how;
  h.min_p = min_p[row];

  const row_t raw = {logits + row * row_step, vocab, nullptr, nullptr, nullptr, 0};
  const uint32_t* handed = partial == nullptr ? nullptr : partial + row * pieces * HANDED;
  uint32_t listed = 0; // keys in the list, which has all down to `bound`
  bool has_list = false;
  stats_t of_raw;
  if (handed != nullptr) {
    of_raw = joined(part_of_pieces(handed, pieces, plan.divisor), s, plan.divisor);
    if (plan.wanted > 0) {
      listed = list_of_pieces(handed, pieces, s);
      has_list = listed <= LIST;
    }
  } else {
    const float low = plan.wanted > 0 ? low_of(raw, s, plan.wanted) : __uint_as_float(0x7FC00000u);
    if (threadIdx.x == 0)
      s.count = 0;
    __syncthreads();
    of_raw = joined(part_of_row(raw, s, plan.divisor, low), s, plan.divisor);
    listed = s.count;
    has_list = low == low && listed <= LIST;
    if (has_list)
      sort_keys(s, listed);
  }
  const float largest = float_of_order(order_of_key(of_raw.best));
  const float below = of_raw.sum > 0.0f ? logf(of_raw.sum) : 0.0f;
  const bool all_fit = vocab <= LIST;

  // The largest of the row as it came, and of one that was not changed the candidates as well.
  row_key_t bound = 0;
  bool can_choose = false;
  const bool wants_choice = !changed && !greedy;
  h.top = largest;
  const index_t tops = min_index(top, vocab);
  if (has_list) {
    // All that is as large as the last that is wanted is there, and no piece has left it out.
    bound = listed >= plan.wanted ? s.keys[plan.wanted - 1] & ~(row_key_t)0xFFFFFFFFu : 0;
    can_choose = wants_choice;
  } else if (tops > 0 || wants_choice) {
    listed = 0;
    bool useful = tops > 0 || all_fit;
    if (!all_fit) {
      sort_largest(of_raw.own, s);
      const row_key_t wanted = wants_choice ? bound_of(h, s, of_raw.heated_sum) : 0;
      bound = tops > 0 ? s.keys[tops - 1] & ~(row_key_t)0xFFFFFFFFu : ~(row_key_t)0;
      can_choose = wanted > 0;
      bound = can_choose && wanted < bound ? wanted : bound;
      useful = useful || can_choose;
      __syncthreads();
    }
    can_choose = can_choose || (all_fit && wants_choice);
    if (useful)
      listed = collect(raw, s, bound, ~(row_key_t)0);
    if (listed > LIST) {
      can_choose = false;
      if (tops > 0) {
        bound = cut(raw, s, 0, true, (double)tops, [](uint32_t) { return (row_key_t)1; });
        listed = collect(raw, s, bound, ~(row_key_t)0);
      } else {
        listed = 0;
      }
    }
  } else {
    listed = 0;
  }
  if (tops > 0 || wants_choice) {
    for (index_t i = threadIdx.x; i < top; i += THREADS) {
      const row_key_t key = i < tops ? s.keys[i] : 0;
      const float x = i < tops ? float_of_order(order_of_key(key)) : NEGATIVE_INFINITY;
      top_ids[row * top + i] = i < tops ? (int32_t)id_of_key(key) : -1;
      top_logprobs[row * top + i] = x == NEGATIVE_INFINITY ? x : x - largest - below;
    }
  }

  index_t chosen = -1;
  if (!changed) {
    if (order_of_key(of_raw.best) <= MINUS_INFINITY_ORDER)
      chosen = -1;
    else if (greedy)
      chosen = id_of_key(of_raw.best);
    else if (can_choose)
      chosen = choose_of_list(h, s, listed, own_seed, (uint32_t)position[row],
                              all_fit ? 0.0f : of_raw.heated_sum);
    else
      chosen = choose(h, s, raw, own_seed, (uint32_t)position[row]);
    listed = can_choose || greedy ? listed : 0; // choose() uses the memory of the list
  } else {
    __syncthreads();
    listed = 0;
    uint32_t* gone = work + row * words;
    float* values = (float*)(work + samples * words) + (edited ? first : 0);
    const row_t now = {
        raw.x, vocab, gone, values, edit_tokens + (edited ? first : 0), edited ? end - first : 0};
    change(now, s, has_mask ? mask_bits + masked * words : nullptr,
           edit_multiply + (edited ? first : 0), edit_add + (edited ? first : 0), gone, values);
    __syncthreads();
    const float divisor = !greedy && h.top_k == 0 && h.top_p < 1.0f ? h.temperature : 0.0f;
    const stats_t of_now =
        joined(part_of_row(now, s, divisor, __uint_as_float(0x7FC00000u)), s, divisor);
    h.top = float_of_order(order_of_key(of_now.best));
    if (order_of_key(of_now.best) <= MINUS_INFINITY_ORDER) {
      chosen = -1;
    } else if (greedy) {
      chosen = id_of_key(of_now.best);
    } else {
      row_key_t limit = LOWEST;
      if (!all_fit) {
        sort_largest(of_now.own, s);
        limit = bound_of(h, s, of_now.heated_sum);
        __syncthreads();
        limit = limit > 0 && limit < LOWEST ? LOWEST : limit;
      }
      const uint32_t count = limit > 0 ? collect(now, s, limit, ~(row_key_t)0) : LIST + 1;
      chosen = count <= LIST ? choose_of_list(h, s, count, own_seed, (uint32_t)position[row],
                                              all_fit ? 0.0f : of_now.heated_sum)
                             : choose(h, s, now, own_seed, (uint32_t)position[row]);
    }
  }

  // What stands in the list down to the token is all that is at least as large.
  uint32_t place = 0;
  const uint32_t least = chosen < 0 ? 0 : order_of_float(LOAD(X_TAG)(raw.x[chosen]));
  if (chosen >= 0 && listed > 0 && (least > order_of_key(bound) || (uint32_t)bound == 0)) {
    __syncthreads();
    uint32_t own = 0;
    for (uint32_t i = threadIdx.x; i < listed; i += THREADS)
      own += order_of_key(s.keys[i]) >= least;
    place = join_block(own, (uint32_t*)s.scratch, [](uint32_t a, uint32_t b) { return a + b; });
  } else if (chosen >= 0) {
    place = count_at_least(raw, s, least);
  }
  if (threadIdx.x == 0) {
    const float x = chosen < 0 ? NEGATIVE_INFINITY : float_of_order(least);
    token[row] = (int32_t)chosen;
    logprob[row] = chosen < 0 ? NEGATIVE_INFINITY : x - largest - below;
    rank[row] = chosen < 0 ? -1 : (int32_t)place;
  }
}
#endif
