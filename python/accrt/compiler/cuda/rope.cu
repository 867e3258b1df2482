// rope.cu - rotary position embedding on [batch, length, heads, size], halves split: (a, b) turns
// by the angle t * ratio^i.
//
// Instantiated with X_TAG and ENTRY. Angles are formed and reduced in double and rotated in f32. A
// thread turns one pair of all heads, so that the angle is made once; it may run in place. Blocks
// of 128 threads; x of the grid walks (batch, length, pair).
#include "common.cuh"

typedef TYPE(X_TAG) x_t;

extern "C" __global__ void __launch_bounds__(128)
    ENTRY(const x_t* x, x_t* out, index_t batch, index_t length, index_t heads, index_t size,
          index_t start, index_t x_batch, index_t x_row, index_t x_head, index_t out_batch,
          index_t out_row, index_t out_head, double log2_ratio) {
  begin_kernel();
  const index_t pairs = size / 2;
  const index_t at = (index_t)blockIdx.x * 128 + threadIdx.x;
  if (at >= batch * length * pairs)
    return;
  const index_t pair = at % pairs, t = at / pairs % length, b = at / pairs / length;
  const double angle = (double)(start + t) * exp2(log2_ratio * (double)pair);
  const double turns = rint(angle * 0.15915494309189533577);
  double r = fma(turns, -6.283185307179586, angle);
  r = fma(turns, -2.4492935982947064e-16, r);
  float sine, cosine;
  sincosf((float)r, &sine, &cosine);
  const x_t* from = x + b * x_batch + t * x_row + pair;
  x_t* to = out + b * out_batch + t * out_row + pair;
  for (index_t head = 0; head < heads; head++, from += x_head, to += out_head) {
    const float lower = LOAD(X_TAG)(from[0]), upper = LOAD(X_TAG)(from[pairs]);
    to[0] = STORE(X_TAG)(lower * cosine - upper * sine);
    to[pairs] = STORE(X_TAG)(upper * cosine + lower * sine);
  }
}
