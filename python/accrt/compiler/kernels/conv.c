/* conv.c - out = last(activation(convolution + bias) + residual), channels last, with weights
 * packed into panels by gemm_pack.c.
 *
 * Instantiated with X_TAG, W_TAG, C_TAG (f32, f16 or bf16) and ENTRY; computes in f32. A workgroup
 * makes block_h x block_w places of one image by `panels_per_group` panels of one group of
 * channels. What it sees of the image is copied to local memory, with its padding, unless it can be
 * read where it lies. There the places of one row of the kernel are contiguous, so that each row of
 * the kernel is one product with overlapping rows of A. x of the grid walks panels, y blocks of
 * places, z images. Writes nothing but the result. */
#include "activate.h"
#include "gemm_core.h"
#include "types.h"

typedef TYPE(X_TAG) x_t;
typedef TYPE(W_TAG) w_t;
typedef TYPE(C_TAG) c_t;

typedef struct {
  const x_t* x;
  const w_t* w;
  const float* bias;
  const c_t* residual;
  c_t* out;
  int64_t batch, height, width, channels, out_height, out_width, outputs;
  int64_t x_n, x_h, x_w, x_c, out_n, out_h, out_w, residual_n, residual_h, residual_w;
  int64_t kernel_h, kernel_w, stride_h, stride_w, dilation_h, dilation_w, above, left;
  int64_t block_h, block_w, slice, panels_per_group, activation, last;
} conv_params_t;

#define TILE_FLOATS 49152 /* as in conv.py */
#define IS_F32_f32 1
#define IS_F32_f16 0
#define IS_F32_bf16 0
#define X_IS_F32 CONCAT(IS_F32_, X_TAG)

DEFINE_ROW_BLOCK(w_t, CONCAT(load_b_, W_TAG))
DEFINE_MULTIPLY_PANEL(w_t)

/* What a workgroup makes, and the part of the image that it sees. */
typedef struct {
  int64_t image, group, row, rows, column, columns, panel, panels;
  int64_t seen_row, seen_rows, seen_column, seen_columns;
} block_t;

/* Where the products find the image: distances of rows and of places in f32. */
typedef struct {
  const float* at;
  int64_t row_step, place_step;
} seen_t;

static void zero(float* to, int64_t count) {
  INDEPENDENT for (int64_t i = 0; i < count; i++) to[i] = 0.0f;
}

static void copy_places(const conv_params_t* p, float* to, const x_t* from, int64_t places,
                        int64_t channels) {
  if (p->x_c == 1 && p->x_w == channels) {
    INDEPENDENT for (int64_t i = 0; i < places * channels; i++) to[i] = LOAD(X_TAG)(from[i]);
  } else if (p->x_c == 1) {
    for (int64_t j = 0; j < places; j++) {
      INDEPENDENT for (int64_t c = 0; c < channels; c++) to[j * channels + c] =
          LOAD(X_TAG)(from[j * p->x_w + c]);
    }
  } else if (X_IS_F32 && p->x_w == 1 && channels >= 4) {
    transpose_f32(to, channels, (const float*)(const void*)from, p->x_c, channels, places);
  } else if (channels == 3 && p->x_w == 1) { /* an image's colours */
    const x_t *second = from + p->x_c, *third = second + p->x_c;
    INDEPENDENT for (int64_t j = 0; j < places; j++) {
      to[j * 3] = LOAD(X_TAG)(from[j]);
      to[j * 3 + 1] = LOAD(X_TAG)(second[j]);
      to[j * 3 + 2] = LOAD(X_TAG)(third[j]);
    }
  } else {
    for (int64_t c = 0; c < channels; c++) {
      for (int64_t j = 0; j < places; j++)
        to[j * channels + c] = LOAD(X_TAG)(from[j * p->x_w + c * p->x_c]);
    }
  }
}

/* Channels [first, first + channels) of what the block sees, with zeros around the image. */
static void stage(const conv_params_t* p, const block_t* b, float* to, int64_t first,
                  int64_t channels) {
  int64_t before = min_i64(max_i64(-b->seen_column, 0), b->seen_columns);
  int64_t end = max_i64(min_i64(b->seen_columns, p->width - b->seen_column), before);
  const x_t* x = p->x + b->image * p->x_n + (b->group * p->channels + first) * p->x_c;
  for (int64_t r = 0; r < b->seen_rows; r++, to += b->seen_columns * channels) {
    int64_t row = b->seen_row + r;
    if (row < 0 || row >= p->height) {
      zero(to, b->seen_columns * channels);
      continue;
    }
    zero(to, before * channels);
    copy_places(p, to + before * channels, x + row * p->x_h + (b->seen_column + before) * p->x_w,
                end - before, channels);
    zero(to + end * channels, (b->seen_columns - end) * channels);
  }
}

static int lies_right(const conv_params_t* p, const block_t* b) {
  return X_IS_F32 && p->x_c == 1 && (p->x_w == p->channels || p->kernel_w == 1) &&
         p->slice == p->channels && b->seen_row >= 0 && b->seen_column >= 0 &&
         b->seen_row + b->seen_rows <= p->height && b->seen_column + b->seen_columns <= p->width;
}

/* `depth` elements of each place, from tap (i, j) and channel `first` of the weights on, into or
 * onto the tile. */
static void multiply_tap(const conv_params_t* p, const block_t* b, const seen_t* s, const w_t* w,
                         float* tile, int64_t i, int64_t j, int64_t first, int64_t depth,
                         int onto) {
  int64_t width = b->panels * PANEL, lda = p->stride_w * s->place_step;
  int64_t k = p->kernel_h * p->kernel_w * p->channels;
  const w_t* from = w + ((i * p->kernel_w + j) * p->channels + first) * PANEL;
  const float* a = s->at + i * p->dilation_h * s->row_step + j * p->dilation_w * s->place_step;
  /* Of the weights that come next each row asks for another part: of the next panel, or of the next
   * tap in the first one. */
  int64_t part =
      ceildiv_i64(b->columns, BLOCK_ROWS) * (depth / 4) * AHEAD_LINES * 64 / (int64_t)sizeof(w_t);
  const w_t* next = from + depth * PANEL;
  /* Rows of half a block are taken by two. */
  int64_t pairs = b->columns == HALF_ROWS ? b->rows / 2 : 0, row_step = p->stride_h * s->row_step;
  for (int64_t panel = 0; panel < b->panels; panel++, from += k * PANEL) {
    const w_t* ahead = panel + 1 < b->panels ? from + k * PANEL : next;
    float* to = tile + panel * PANEL;
    for (int64_t i = 0; i < pairs; i++)
      row_block_halves(BLOCK_ROWS, depth, a + 2 * i * row_step, lda, row_step, from, PANEL,
                       to + 2 * i * b->columns * width, width, onto,
                       (const char*)(ahead + min_i64(i * part, depth * PANEL)));
    for (int64_t r = 2 * pairs; r < b->rows; r++)
      multiply_panel(b->columns, depth, a + r * row_step, lda, from, to + r * b->columns * width,
                     width, onto, ahead + min_i64((r - pairs) * part, depth * PANEL));
  }
}

static void multiply(const conv_params_t* p, const block_t* b, const w_t* w, float* tile,
                     float* staged) {
  for (int64_t first = 0; first < p->channels; first += p->slice) {
    int64_t channels = min_i64(p->slice, p->channels - first);
    seen_t seen = {staged, b->seen_columns * channels, channels};
    if (lies_right(p, b)) {
      seen.at = (const float*)(const void*)(p->x + b->image * p->x_n + b->group * p->channels +
                                            b->seen_row * p->x_h + b->seen_column * p->x_w);
      seen.row_step = p->x_h;
      seen.place_step = p->x_w;
    } else {
      stage(p, b, staged, first, channels);
    }
    int joined = p->dilation_w == 1 && channels == p->channels && seen.place_step == channels;
    int64_t taps = joined ? 1 : p->kernel_w, depth = joined ? p->kernel_w * channels : channels;
    for (int64_t i = 0; i < p->kernel_h; i++) {
      for (int64_t j = 0; j < taps; j++)
        multiply_tap(p, b, &seen, w, tile, i, j, first, depth,
                     first + i + j > 0 ? ADD_TO_TILE : WRITE_TILE);
    }
  }
}

/* Bias, residual and activations over `columns` columns of each place, then the result. */
static void finish(const conv_params_t* p, const block_t* b, float* tile, int64_t column,
                   int64_t columns) {
  int64_t width = b->panels * PANEL, places = b->rows * b->columns;
  for (int64_t i = 0; i < places && p->bias; i++) {
    INDEPENDENT for (int64_t c = 0; c < columns; c++) tile[i * width + c] += p->bias[column + c];
  }
  activate(tile, places * width, p->activation);
  for (int64_t i = 0; i < places && p->residual; i++) {
    const c_t* add = p->residual + b->image * p->residual_n + column +
                     (b->row + i / b->columns) * p->residual_h +
                     (b->column + i % b->columns) * p->residual_w;
    INDEPENDENT for (int64_t c = 0; c < columns; c++) tile[i * width + c] += LOAD(C_TAG)(add[c]);
  }
  activate(tile, places * width, p->last);
  for (int64_t i = 0; i < places; i++) {
    c_t* to = p->out + b->image * p->out_n + column + (b->row + i / b->columns) * p->out_h +
              (b->column + i % b->columns) * p->out_w;
    INDEPENDENT for (int64_t c = 0; c < columns; c++) to[c] = STORE(C_TAG)(tile[i * width + c]);
  }
}

KERNEL_ENTRY(ENTRY) {
  (void)environment;
  const conv_params_t* p = (const conv_params_t*)dispatch->params;
  float* tile = (float*)workgroup->local_memory;
  int64_t panels = ceildiv_i64(p->outputs, PANEL);
  int64_t parts = ceildiv_i64(panels, p->panels_per_group);
  int64_t across = ceildiv_i64(p->out_width, p->block_w);
  int64_t place = workgroup->workgroup_id[1], part = workgroup->workgroup_id[0] % parts;
  if (across <= 0 || p->batch <= 0)
    return KERNEL_OK;
  block_t b = {.image = workgroup->workgroup_id[2], .group = workgroup->workgroup_id[0] / parts};
  b.row = place / across * p->block_h;
  b.rows = min_i64(p->block_h, p->out_height - b.row);
  b.column = place % across * p->block_w;
  b.columns = min_i64(p->block_w, p->out_width - b.column);
  b.panel = part * p->panels_per_group;
  b.panels = min_i64(p->panels_per_group, panels - b.panel);
  if (b.rows <= 0 || b.columns <= 0 || b.panels <= 0)
    return KERNEL_OK;
  b.seen_row = b.row * p->stride_h - p->above;
  b.seen_rows = (b.rows - 1) * p->stride_h + (p->kernel_h - 1) * p->dilation_h + 1;
  b.seen_column = b.column * p->stride_w - p->left;
  b.seen_columns = (b.columns - 1) * p->stride_w + (p->kernel_w - 1) * p->dilation_w + 1;
  int64_t k = p->kernel_h * p->kernel_w * p->channels;
  multiply(p, &b, p->w + (b.group * panels + b.panel) * k * PANEL, tile, tile + TILE_FLOATS);
  int64_t first = b.panel * PANEL, columns = min_i64(b.panels * PANEL, p->outputs - first);
  finish(p, &b, tile, b.group * p->outputs + first, columns);
  return KERNEL_OK;
}
