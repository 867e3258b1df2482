/* window.c - what each channel makes of the places that a window shows, channels last: a sum with
 * weights (a convolution with one channel in each group), the largest, or the mean; then bias,
 * activation, residual and a last activation.
 *
 * Instantiated with X_TAG, C_TAG (f32, f16 or bf16), KIND and ENTRY; computes in f32. x of the grid
 * walks chunks of channels, y rows of the result, z images. Writes nothing but the result. */
#include "activate.h"
#include "simd.h"
#include "types.h"

#define KIND_DEPTHWISE 0
#define KIND_MAX 1
#define KIND_MEAN 2
#define CHUNK 64
#define BLOCK 4096 /* places that are one sum at most: of large windows such sums are added */

typedef TYPE(X_TAG) x_t;
typedef TYPE(C_TAG) c_t;

typedef struct {
  const x_t* x;
  const float* w;
  const float* bias;
  const c_t* residual;
  c_t* out;
  int64_t batch, height, width, channels, out_height, out_width;
  int64_t x_n, x_h, x_w, out_n, out_h, out_w, residual_n, residual_h, residual_w;
  int64_t kernel_h, kernel_w, stride_h, stride_w, dilation_h, dilation_w, above, left;
  int64_t rows_per_group, activation, last;
} window_params_t;

/* Places [begin, end) of a kernel of `size` whose first is at `start` that lie in the image. */
typedef struct {
  int64_t begin, end;
} span_t;

static span_t inside(int64_t start, int64_t size, int64_t step, int64_t extent) {
  span_t s = {start < 0 ? ceildiv_i64(-start, step) : 0, 0};
  s.end = start < extent ? min_i64(size, (extent - 1 - start) / step + 1) : 0;
  return s;
}

ALWAYS_INLINE float join(float total, float x, float w) {
#if KIND == KIND_DEPTHWISE
  return total + x * w;
#elif KIND == KIND_MAX
  (void)w;
  return total > x || total != total ? total : x; /* NaN stays */
#else
  (void)w;
  return total + x;
#endif
}

/* `channels` channels of one place; `x` is the kernel's first place, which may lie outside. */
ALWAYS_INLINE void reduce(const window_params_t* p, const x_t* x, const float* w, span_t rows,
                          span_t columns, float* total, int64_t channels) {
  for (int64_t c = 0; c < channels; c++)
    total[c] = KIND == KIND_MAX ? -__builtin_inff() : 0.0f;
  for (int64_t i = rows.begin; i < rows.end; i++) {
    for (int64_t j = columns.begin; j < columns.end; j++) {
      const x_t* from = x + i * p->dilation_h * p->x_h + j * p->dilation_w * p->x_w;
      const float* by = KIND == KIND_DEPTHWISE ? w + (i * p->kernel_w + j) * p->channels : total;
      INDEPENDENT for (int64_t c = 0; c < channels; c++) total[c] =
          join(total[c], LOAD(X_TAG)(from[c]), by[c]);
    }
  }
}

/* As `reduce`, of windows of any size. */
static void reduce_blocks(const window_params_t* p, const x_t* x, const float* w, span_t rows,
                          span_t columns, float* total, int64_t channels) {
  float part[CHUNK];
  int64_t wide = max_i64(min_i64(BLOCK, columns.end - columns.begin), 1), high = BLOCK / wide;
  for (int64_t c = 0; c < channels; c++)
    total[c] = 0.0f;
  for (int64_t i = rows.begin; i < rows.end; i += high) {
    for (int64_t j = columns.begin; j < columns.end; j += wide) {
      span_t these = {i, min_i64(i + high, rows.end)}, those = {j, min_i64(j + wide, columns.end)};
      reduce(p, x, w, these, those, part, channels);
      for (int64_t c = 0; c < channels; c++)
        total[c] += part[c];
    }
  }
}

static void finish_mean(const window_params_t* p, float* total, int64_t channels) {
  float share = 1.0f / (float)(p->kernel_h * p->kernel_w);
  for (int64_t c = 0; c < channels && KIND == KIND_MEAN; c++)
    total[c] *= share;
}

static void finish(const window_params_t* p, float* total, const c_t* add, c_t* to, int64_t first,
                   int64_t channels) {
  if (p->bias) {
    INDEPENDENT for (int64_t c = 0; c < channels; c++) total[c] += p->bias[first + c];
  }
  activate(total, channels, p->activation);
  if (add) {
    INDEPENDENT for (int64_t c = 0; c < channels; c++) total[c] += LOAD(C_TAG)(add[c]);
  }
  activate(total, channels, p->last);
  INDEPENDENT for (int64_t c = 0; c < channels; c++) to[c] = STORE(C_TAG)(total[c]);
}

static void make_row(const window_params_t* p, int64_t image, int64_t row, int64_t first,
                     int64_t channels) {
  float total[CHUNK];
  int64_t y = row * p->stride_h - p->above;
  span_t rows = inside(y, p->kernel_h, p->dilation_h, p->height);
  for (int64_t column = 0; column < p->out_width; column++) {
    int64_t x = column * p->stride_w - p->left;
    span_t columns = inside(x, p->kernel_w, p->dilation_w, p->width);
    const x_t* from = p->x + image * p->x_n + y * p->x_h + x * p->x_w + first;
    int64_t places = (rows.end - rows.begin) * (columns.end - columns.begin);
    if (KIND != KIND_MAX && places > BLOCK)
      reduce_blocks(p, from, p->w + first, rows, columns, total, channels);
    else if (channels == CHUNK)
      reduce(p, from, p->w + first, rows, columns, total, CHUNK);
    else
      reduce(p, from, p->w + first, rows, columns, total, channels);
    finish_mean(p, total, channels);
    const c_t* add = p->residual ? p->residual + image * p->residual_n + row * p->residual_h +
                                       column * p->residual_w + first
                                 : (const c_t*)0;
    finish(p, total, add, p->out + image * p->out_n + row * p->out_h + column * p->out_w + first,
           first, channels);
  }
}

KERNEL_ENTRY(ENTRY) {
  (void)environment;
  const window_params_t* p = (const window_params_t*)dispatch->params;
  int64_t first = (int64_t)workgroup->workgroup_id[0] * CHUNK;
  int64_t row = workgroup->workgroup_id[1] * p->rows_per_group;
  int64_t end = p->batch > 0 ? min_i64(row + p->rows_per_group, p->out_height) : 0;
  for (; row < end && first < p->channels; row++)
    make_row(p, workgroup->workgroup_id[2], row, first, min_i64(CHUNK, p->channels - first));
  return KERNEL_OK;
}
