/* group_norm.c - groups of channels of each image to mean 0 and variance 1, channels last; times
 * weight plus bias, activation, residual and a last activation.
 *
 * Instantiated with X_TAG, C_TAG (f32, f16 or bf16) and ENTRY. Each channel is summed up in f32
 * over SPAN places, and these sums in double. x of the grid walks `groups_per_group` groups of
 * channels, y images. Writes nothing but the result. */
#include "activate.h"
#include "types.h"

typedef TYPE(X_TAG) x_t;
typedef TYPE(C_TAG) c_t;

typedef struct {
  const x_t* x;
  const float* weight;
  const float* bias;
  const c_t* residual;
  c_t* out;
  int64_t batch, height, width, channels, groups, groups_per_group;
  int64_t x_n, x_h, x_w, out_n, out_h, out_w, residual_n, residual_h, residual_w;
  int64_t activation, last;
  double epsilon;
} group_norm_params_t;

#define MOST_CHANNELS 1024 /* of a workgroup, as in conv.py */
#define SPAN 64

/* Of each channel: what is taken off, the factor, and what is added; sums on the way. */
typedef struct {
  float mean[MOST_CHANNELS], factor[MOST_CHANNELS], add[MOST_CHANNELS], part[MOST_CHANNELS];
  double total[MOST_CHANNELS];
} channels_t;

static void add_span(const group_norm_params_t* p, channels_t* s, const x_t* x, int64_t places,
                     int64_t channels, int squares) {
  for (int64_t c = 0; c < channels; c++)
    s->part[c] = 0;
  for (int64_t j = 0; j < places; j++, x += p->x_w) {
    if (squares) {
      INDEPENDENT for (int64_t c = 0; c < channels; c++) {
        float d = LOAD(X_TAG)(x[c]) - s->mean[c];
        s->part[c] += d * d;
      }
    } else {
      INDEPENDENT for (int64_t c = 0; c < channels; c++) s->part[c] += LOAD(X_TAG)(x[c]);
    }
  }
  for (int64_t c = 0; c < channels; c++)
    s->total[c] += (double)s->part[c];
}

/* The mean over a group of the elements, or of the squares of their distances from s->mean; for
 * each of its channels. */
static void average(const group_norm_params_t* p, channels_t* s, const x_t* x, int64_t channels,
                    int squares) {
  int64_t each = p->channels / p->groups;
  double count = (double)(p->height * p->width * each);
  for (int64_t c = 0; c < channels; c++)
    s->total[c] = 0;
  for (int64_t i = 0; i < p->height; i++) {
    for (int64_t j = 0; j < p->width; j += SPAN)
      add_span(p, s, x + i * p->x_h + j * p->x_w, min_i64(SPAN, p->width - j), channels, squares);
  }
  for (int64_t first = 0; first < channels; first += each) {
    double sum = 0;
    for (int64_t c = 0; c < each; c++)
      sum += s->total[first + c];
    for (int64_t c = 0; c < each; c++)
      s->total[first + c] = sum / count;
  }
}

static void write_place(const group_norm_params_t* p, channels_t* s, const x_t* x, const c_t* add,
                        c_t* to, int64_t channels) {
  INDEPENDENT for (int64_t c = 0; c < channels; c++) s->part[c] =
      (LOAD(X_TAG)(x[c]) - s->mean[c]) * s->factor[c] + s->add[c];
  activate(s->part, channels, p->activation);
  if (add) {
    INDEPENDENT for (int64_t c = 0; c < channels; c++) s->part[c] += LOAD(C_TAG)(add[c]);
  }
  activate(s->part, channels, p->last);
  INDEPENDENT for (int64_t c = 0; c < channels; c++) to[c] = STORE(C_TAG)(s->part[c]);
}

KERNEL_ENTRY(ENTRY) {
  (void)environment;
  const group_norm_params_t* p = (const group_norm_params_t*)dispatch->params;
  channels_t* s = (channels_t*)workgroup->local_memory;
  int64_t each = p->channels / p->groups, image = workgroup->workgroup_id[1];
  int64_t group = workgroup->workgroup_id[0] * p->groups_per_group;
  int64_t first = group * each;
  int64_t channels = min_i64(p->groups_per_group, p->groups - group) * each;
  if (image >= p->batch || channels <= 0)
    return KERNEL_OK;
  const x_t* x = p->x + image * p->x_n + first;
  average(p, s, x, channels, 0);
  for (int64_t c = 0; c < channels; c++)
    s->mean[c] = (float)s->total[c];
  average(p, s, x, channels, 1);
  for (int64_t c = 0; c < channels; c++) {
    s->factor[c] = (float)(1.0 / __builtin_sqrt(s->total[c] + p->epsilon));
    s->factor[c] *= p->weight ? p->weight[first + c] : 1.0f;
    s->add[c] = p->bias ? p->bias[first + c] : 0.0f;
  }
  for (int64_t i = 0; i < p->height; i++) {
    for (int64_t j = 0; j < p->width; j++) {
      const c_t* add =
          p->residual ? p->residual + image * p->residual_n + i * p->residual_h + j * p->residual_w
                      : (const c_t*)0;
      write_place(p, s, x + i * p->x_h + j * p->x_w, add ? add + first : add,
                  p->out + image * p->out_n + i * p->out_h + j * p->out_w + first, channels);
    }
  }
  return KERNEL_OK;
}
