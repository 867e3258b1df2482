// rope_at.cu - rotary position embedding of [tokens, heads, size] at positions that a tensor gives,
// by frequencies that a tensor gives: pair i of token t turns by positions[t] * frequencies[i].
//
// Instantiated with X_TAG, POSITION_TAG and ENTRY. A pair is (i, i + pairs), or (2 i, 2 i + 1)
// where interleaved. Angles are formed and reduced in double and rotated in f32, by cosines and
// sines times `scale`. What is behind the pairs is copied. A thread turns one pair of all heads,
// so that the angle is made once; it may run in place. Blocks of 128 threads; x of the grid walks
// (token, pair or element behind the pairs).
#include "common.cuh"

typedef TYPE(X_TAG) x_t;
typedef TYPE(POSITION_TAG) position_t;

extern "C" __global__ void __launch_bounds__(128)
    ENTRY(const x_t* x, const position_t* positions, const float* frequencies, x_t* out,
          index_t tokens, index_t heads, index_t size, index_t pairs, index_t interleaved,
          index_t position_step, index_t x_token, index_t x_head, index_t out_token,
          index_t out_head, float scale) {
  begin_kernel();
  const index_t columns = size - pairs, at = (index_t)blockIdx.x * 128 + threadIdx.x;
  if (at >= tokens * columns)
    return;
  const index_t column = at % columns, token = at / columns;
  const x_t* from = x + token * x_token;
  x_t* to = out + token * out_token;
  if (column >= pairs) {
    const index_t behind = column + pairs;
    for (index_t head = 0; head < heads; head++)
      to[head * out_head + behind] = from[head * x_head + behind];
    return;
  }
  const double angle = (double)positions[token * position_step] * (double)frequencies[column];
  const double turns = rint(angle * 0.15915494309189533577);
  double r = fma(turns, -6.283185307179586, angle);
  r = fma(turns, -2.4492935982947064e-16, r);
  float sine, cosine;
  sincosf((float)r, &sine, &cosine);
  sine *= scale, cosine *= scale;
  const index_t first = interleaved ? 2 * column : column, step = interleaved ? 1 : pairs;
  for (index_t head = 0; head < heads; head++) {
    const x_t* pair = from + head * x_head + first;
    x_t* turned = to + head * out_head + first;
    const float a = LOAD(X_TAG)(pair[0]), b = LOAD(X_TAG)(pair[step]);
    turned[0] = STORE(X_TAG)(a * cosine - b * sine);
    turned[step] = STORE(X_TAG)(b * cosine + a * sine);
  }
}
