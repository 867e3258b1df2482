// rope_scatter.cu - what attention of a serving step needs first, in one kernel: queries [tokens,
// heads, size] turned by their positions as rope_at.cu does it, keys turned and written to a state
// at slots that a tensor gives, and values written to another state at the same slots. Keys and
// values begin k_first and v_first elements behind their buffers' begin.
//
// Instantiated with X_TAG (of all and of the states), POSITION_TAG, SLOT_TAG and ENTRY. A block has
// a token: a lane of a warp turns one pair (or copies one element behind the pairs) of every eighth
// head, queries' heads first and then keys'. A device cannot fail one dispatch: a slot outside [0,
// rows) writes nothing; where a slot stands twice, any of its rows stays. Blocks of 256 threads; x
// of the grid walks tokens.
#include "common.cuh"

typedef TYPE(X_TAG) x_t;
typedef TYPE(POSITION_TAG) position_t;
typedef TYPE(SLOT_TAG) slot_t;

#define SLOTS 8   // heads that a block takes at once: its warps
#define AT_ONCE 5 // of each warp, on their way together

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

extern "C" __global__ void __launch_bounds__(256)
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
  for (index_t column = threadIdx.x % 32; column < columns; column += 32) {
    if (column >= pairs) {
      for (index_t head = threadIdx.x / 32; head < h.all; head += SLOTS) {
        if (h.to(head) != nullptr)
          h.to(head)[column + pairs] = h.from(head)[column + pairs];
      }
      continue;
    }
    const double angle = position * (double)frequencies[column];
    const double turns = rint(angle * 0.15915494309189533577);
    double r = fma(turns, -6.283185307179586, angle);
    r = fma(turns, -2.4492935982947064e-16, r);
    float sine, cosine;
    sincosf((float)r, &sine, &cosine);
    turn(h, interleaved ? 2 * column : column, interleaved ? 1 : pairs, sine * scale,
         cosine * scale);
  }
  x_t* const to = values + slot * kv_heads * value_size;
  for (index_t at = threadIdx.x; has_slot && at < kv_heads * value_size; at += 256)
    to[at] = v[v_first + token * v_token + at / value_size * v_head + at % value_size];
}
