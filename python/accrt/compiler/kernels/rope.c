/* rope.c - rotary position embedding on [batch, length, heads, size], half-split or interleaved
 * pairs.
 *
 * Instantiated with X_TAG (input and result), POSITION_TAG (i32 or i64) and ENTRY. Angle of pair i
 * at position t: t * ratio^i, or t * frequencies[i] when that buffer is given. Angles are formed
 * and reduced in double and rotated in f32, by cosines and sines times `scale`. The position is
 * `start` + the index along length, or + positions[batch][index]. Sizes past `rotary` are copied.
 * May run in place. x of the grid walks groups of (batch, length). */
#include "types.h"
#include "vmath.h"

typedef TYPE(X_TAG) x_t;
typedef TYPE(POSITION_TAG) position_t;

typedef struct {
  const x_t* x;
  const position_t* positions;
  const float* frequencies;
  x_t* out;
  int64_t batch, length, heads, size, rotary, interleaved, start;
  int64_t x_batch, x_row, x_head, out_batch, out_row, out_head, positions_batch, positions_row;
  double ratio;
  float scale;
} rope_params_t;

#define MAX_PAIRS 256

/* sin and cos of angles up to about 2^40 in magnitude: the quarter turns are counted in double. */
static void turn(const double* frequency, double position, float scale, float* cosine, float* sine,
                 int64_t pairs) {
  INDEPENDENT for (int64_t i = 0; i < pairs; i++) {
    double angle = position * frequency[i];
    double quarters = angle * 0.63661977236758134308 + ROUND_MAGIC_D;
    double n = quarters - ROUND_MAGIC_D;
    double r = FMAD(n, -0x1.921fb54442d18p0, angle);
    r = FMAD(n, -0x1.1a62633145c07p-54, r);
    int32_t quadrant = (int32_t)(uint32_t)bits_f64(quarters);
    sine[i] = scale * trig_quadrant((float)r, quadrant);
    cosine[i] = scale * trig_quadrant((float)r, quadrant + 1);
  }
}

static void rotate_halves(const x_t* x, x_t* out, const float* cosine, const float* sine,
                          int64_t pairs) {
  INDEPENDENT for (int64_t i = 0; i < pairs; i++) {
    float a = LOAD(X_TAG)(x[i]), b = LOAD(X_TAG)(x[i + pairs]);
    out[i] = STORE(X_TAG)(a * cosine[i] - b * sine[i]);
    out[i + pairs] = STORE(X_TAG)(b * cosine[i] + a * sine[i]);
  }
}

static void rotate_pairs(const x_t* x, x_t* out, const float* cosine, const float* sine,
                         int64_t pairs) {
  INDEPENDENT for (int64_t i = 0; i < pairs; i++) {
    float a = LOAD(X_TAG)(x[2 * i]), b = LOAD(X_TAG)(x[2 * i + 1]);
    out[2 * i] = STORE(X_TAG)(a * cosine[i] - b * sine[i]);
    out[2 * i + 1] = STORE(X_TAG)(b * cosine[i] + a * sine[i]);
  }
}

static void rotate_token(const rope_params_t* p, int64_t batch, int64_t row, const float* cosine,
                         const float* sine) {
  int64_t pairs = p->rotary / 2;
  for (int64_t h = 0; h < p->heads; h++) {
    const x_t* x = p->x + batch * p->x_batch + row * p->x_row + h * p->x_head;
    x_t* out = p->out + batch * p->out_batch + row * p->out_row + h * p->out_head;
    if (p->interleaved) {
      rotate_pairs(x, out, cosine, sine, pairs);
    } else {
      rotate_halves(x, out, cosine, sine, pairs);
    }
    for (int64_t i = p->rotary; i < p->size; i++)
      out[i] = x[i];
  }
}

KERNEL_ENTRY(ENTRY) {
  (void)environment;
  const rope_params_t* p = (const rope_params_t*)dispatch->params;
  int64_t pairs = min_i64(p->rotary / 2, MAX_PAIRS), total = p->batch * p->length;
  int64_t first = part_begin(total, workgroup->workgroup_id[0], dispatch->workgroup_count[0]);
  int64_t end = part_begin(total, workgroup->workgroup_id[0] + 1, dispatch->workgroup_count[0]);
  double frequency[MAX_PAIRS], power = 1.0;
  float cosine[MAX_PAIRS], sine[MAX_PAIRS];
  for (int64_t i = 0; i < pairs; i++, power *= p->ratio) {
    frequency[i] = p->frequencies ? (double)p->frequencies[i] : power;
  }
  for (int64_t at = first; at < end; at++) {
    int64_t batch = at / p->length, row = at % p->length, position = p->start;
    position += p->positions
                    ? (int64_t)p->positions[batch * p->positions_batch + row * p->positions_row]
                    : row;
    turn(frequency, (double)position, p->scale, cosine, sine, pairs);
    rotate_token(p, batch, row, cosine, sine);
  }
  return KERNEL_OK;
}
