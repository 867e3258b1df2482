// rope_scatter.cu - what attention of a serving step needs first, in one kernel: queries [tokens,
// heads, size] turned by their positions as rope_at.cu does it, keys turned and written to a state
// at slots that a tensor gives, and values written to another state at the same slots. Keys and
// values begin k_first and v_first elements behind their buffers' begin.
//
// Instantiated with X_TAG (of all and of the states), POSITION_TAG, SLOT_TAG and ENTRY. A block has
// a token. Where all of a head is turned, and everything lies in whole pieces of 16 bytes, a thread
// turns two pieces of a head at once (`turn_wide`): they are asked for first, then each angle is
// made by one thread of the block. Else a lane of a warp turns one pair (or copies one element
// behind the pairs) of every eighth head, queries' heads first and then keys'. Both ways give the
// same bits. A device cannot fail one dispatch: a slot outside [0, rows) writes nothing; where a
// slot stands twice, any of its rows stays. Blocks of 256 threads; x of the grid walks tokens.
#include "common.cuh"

typedef TYPE(X_TAG) x_t;
typedef TYPE(POSITION_TAG) position_t;
typedef TYPE(SLOT_TAG) slot_t;

#define SLOTS 8        // heads that a block takes at once: its warps
#define AT_ONCE 5      // of each warp, on their way together
#define THREADS 256    // of a block
#define WIDE_AT_ONCE 2 // pieces of a thread that are on their way together
#define WIDE_PAIRS 256 // the most that turn_wide takes
#define PIECE ((int)(16 / sizeof(x_t)))

typedef vector_t<x_t, PIECE> piece_t;

struct heads_t {
  const x_t *q, *k; // of this token
  x_t *out, *keys;  // keys: null where the token has no slot
  index_t heads, all, q_head, k_head, out_head, size;

  __device__ __forceinline__ const x_t* from(index_t head) const {
    return head < heads ? q + head * q_head : k + (head - heads) * k_head;
  }
  __device__ __forceinline__ x_t* to(index_t head) const {
    return head < heads      ? out + head * out_head
           : keys == nullptr ? nullptr
                             : keys + (head - heads) * size;
  }
};

DEVICE void angle_of(double position, float frequency, float scale, float& sine, float& cosine) {
  const double angle = position * (double)frequency;
  const double turns = rint(angle * 0.15915494309189533577);
  double r = fma(turns, -6.283185307179586, angle);
  r = fma(turns, -2.4492935982947064e-16, r);
  sincosf((float)r, &sine, &cosine);
  sine *= scale, cosine *= scale;
}

DEVICE void turn(const heads_t& h, index_t first, index_t step, float sine, float cosine) {
  for (index_t base = threadIdx.x / 32; base < h.all; base += SLOTS * AT_ONCE) {
    x_t a[AT_ONCE], b[AT_ONCE];
#pragma unroll
    for (int i = 0; i < AT_ONCE; i++) {
      const index_t head = base + i * SLOTS;
      if (head < h.all)
        a[i] = h.from(head)[first], b[i] = h.from(head)[first + step];
    }
#pragma unroll
    for (int i = 0; i < AT_ONCE; i++) {
      const index_t head = base + i * SLOTS;
      x_t* const to = head < h.all ? h.to(head) : nullptr;
      if (to == nullptr)
        continue;
      const float x = LOAD(X_TAG)(a[i]), y = LOAD(X_TAG)(b[i]);
      to[first] = STORE(X_TAG)(x * cosine - y * sine);
      to[first + step] = STORE(X_TAG)(y * cosine + x * sine);
    }
  }
}

// What turn_wide needs to know beside the heads.
struct wide_t {
  const x_t* v; // of this token
  x_t* values;  // null where the token has no slot
  index_t v_head;
  int pairs, value_size, kv_heads;
};

// One token; by all threads of the block. NEIGHBOURS: the two of a pair lie beside one another.
template <bool NEIGHBOURS>
DEVICE void turn_wide(const heads_t& h, const wide_t& w, double position, const float* frequencies,
                      float scale) {
  __shared__ float sines[WIDE_PAIRS], cosines[WIDE_PAIRS];
  const int pieces = w.pairs / PIECE, items = (int)h.all * pieces;
  const int value_pieces = w.value_size / PIECE, value_items = w.kv_heads * value_pieces;
  const int second = NEIGHBOURS ? PIECE : w.pairs;
  uint4 a[WIDE_AT_ONCE], b[WIDE_AT_ONCE]; // whole: as elements they take more registers
  const auto first_of = [&](int item) { return item % pieces * (NEIGHBOURS ? 2 : 1) * PIECE; };
  const auto ask = [&](int base) {
#pragma unroll
    for (int i = 0; i < WIDE_AT_ONCE; i++) {
      const int item = base + i * THREADS;
      if (item >= items)
        continue;
      const x_t* const from = h.from(item / pieces) + first_of(item);
      a[i] = *reinterpret_cast<const uint4*>(from);
      b[i] = *reinterpret_cast<const uint4*>(from + second);
    }
  };
  const auto value_of = [&](int item) {
    return reinterpret_cast<const uint4*>(w.v + item / value_pieces * w.v_head +
                                          item % value_pieces * PIECE);
  };
  ask(threadIdx.x);
  uint4 value = {0, 0, 0, 0};
  const bool has_value = w.values != nullptr && (int)threadIdx.x < value_items;
  if (has_value)
    value = *value_of(threadIdx.x);
  if ((int)threadIdx.x < w.pairs)
    angle_of(position, frequencies[threadIdx.x], scale, sines[threadIdx.x], cosines[threadIdx.x]);
  __syncthreads();
#pragma unroll 1
  for (int base = threadIdx.x; base < items; base += WIDE_AT_ONCE * THREADS) {
    if (base != (int)threadIdx.x)
      ask(base);
#pragma unroll
    for (int i = 0; i < WIDE_AT_ONCE; i++) {
      const int item = base + i * THREADS;
      x_t* const to = item < items ? h.to(item / pieces) : nullptr;
      if (to == nullptr)
        continue;
      const int pair = item % pieces * PIECE, first = first_of(item);
      piece_t own, other, low, high;
      memcpy(&own, &a[i], 16);
      memcpy(&other, &b[i], 16);
#pragma unroll
      for (int e = 0; e < PIECE; e++) {
        // Of neighbours, a piece has half of the pairs, and b has the others.
        const x_t one = NEIGHBOURS ? (e < PIECE / 2 ? own : other).at[2 * e % PIECE] : own.at[e];
        const x_t two =
            NEIGHBOURS ? (e < PIECE / 2 ? own : other).at[2 * e % PIECE + 1] : other.at[e];
        const float x = LOAD(X_TAG)(one), y = LOAD(X_TAG)(two);
        const float sine = sines[pair + e], cosine = cosines[pair + e];
        const x_t now = STORE(X_TAG)(x * cosine - y * sine);
        const x_t then = STORE(X_TAG)(y * cosine + x * sine);
        if (NEIGHBOURS) {
          (e < PIECE / 2 ? low : high).at[2 * e % PIECE] = now;
          (e < PIECE / 2 ? low : high).at[2 * e % PIECE + 1] = then;
        } else {
          low.at[e] = now, high.at[e] = then;
        }
      }
      *reinterpret_cast<piece_t*>(to + first) = low;
      *reinterpret_cast<piece_t*>(to + first + second) = high;
    }
  }
  if (!has_value)
    return;
  reinterpret_cast<uint4*>(w.values)[threadIdx.x] = value;
#pragma unroll 1
  for (int item = threadIdx.x + THREADS; item < value_items; item += THREADS)
    reinterpret_cast<uint4*>(w.values)[item] = *value_of(item);
}

extern "C" __global__ void __launch_bounds__(THREADS, 4)
    ENTRY(const x_t* q, const x_t* k, const x_t* v, const position_t* positions,
          const float* frequencies, const slot_t* slots, x_t* keys, x_t* values, x_t* out,
          index_t tokens, index_t heads, index_t kv_heads, index_t size, index_t value_size,
          index_t pairs, index_t interleaved, index_t rows, index_t position_step,
          index_t slot_step, index_t q_token, index_t q_head, index_t k_token, index_t k_head,
          index_t v_token, index_t v_head, index_t out_token, index_t out_head, index_t k_first,
          index_t v_first, float scale) {
  begin_kernel();
  const index_t token = blockIdx.x, columns = size - pairs;
  if (token >= tokens)
    return;
  const index_t slot = (index_t)slots[token * slot_step];
  const double position = (double)positions[token * position_step];
  const bool has_slot = slot >= 0 && slot < rows;
  const heads_t h = {q + token * q_token,
                     k + k_first + token * k_token,
                     out + token * out_token,
                     has_slot ? keys + slot * kv_heads * size : nullptr,
                     heads,
                     heads + kv_heads,
                     q_head,
                     k_head,
                     out_head,
                     size};
  const index_t steps = pairs | value_size | q_token | q_head | k_token | k_head | v_token |
                        v_head | out_token | out_head | k_first | v_first;
  const bool lies_well = is_aligned<x_t, PIECE>(q) && is_aligned<x_t, PIECE>(k) &&
                         is_aligned<x_t, PIECE>(v) && is_aligned<x_t, PIECE>(keys) &&
                         is_aligned<x_t, PIECE>(values) && is_aligned<x_t, PIECE>(out);
  x_t* const own_values = has_slot ? values + slot * kv_heads * value_size : nullptr;
  if (lies_well && steps % PIECE == 0 && size == 2 * pairs && pairs <= WIDE_PAIRS && pairs > 0 &&
      heads + kv_heads <= 65536) {
    const wide_t wide = {v + v_first + token * v_token,
                         own_values,
                         v_head,
                         (int)pairs,
                         (int)value_size,
                         (int)kv_heads};
    if (interleaved)
      turn_wide<true>(h, wide, position, frequencies, scale);
    else
      turn_wide<false>(h, wide, position, frequencies, scale);
    return;
  }
  for (index_t column = threadIdx.x % 32; column < columns; column += 32) {
    if (column >= pairs) {
      for (index_t head = threadIdx.x / 32; head < h.all; head += SLOTS) {
        if (h.to(head) != nullptr)
          h.to(head)[column + pairs] = h.from(head)[column + pairs];
      }
      continue;
    }
    float sine, cosine;
    angle_of(position, frequencies[column], scale, sine, cosine);
    turn(h, interleaved ? 2 * column : column, interleaved ? 1 : pairs, sine, cosine);
  }
  for (index_t at = threadIdx.x; has_slot && at < kv_heads * value_size; at += THREADS)
    own_values[at] = v[v_first + token * v_token + at / value_size * v_head + at % value_size];
}
