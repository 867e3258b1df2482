/* write/layout_encode.c - quantization: from f32 to every layout that can be written. A region of
 * the weight shares a scale. The scale is chosen as it will be stored, and elements are rounded
 * with that value. It may not allocate. */
#include "write/layout_encode.h"
#include "format/layout_number.h"

#include <math.h>

#include "accrt/tensor.h"
#include "accrt/write/quantize.h"
#include "runtime/core/error.h"
#include "runtime/core/memory.h"
#include "runtime/core/struct.h"

/* The possible values of elements. */
typedef struct element {
  const accx_float_kind_t* kind; /* NULL: integers */
  float low, high;
} element_t;

/* The data type of a stored scale. */
typedef enum { SCALE_F32, SCALE_F16, SCALE_BF16, SCALE_E8M0, SCALE_E4M3 } scale_kind_t;

typedef struct sink {
  const accx_layout_view_t* view;
  const accrt_layout_tensor_t* tensor;
  const accrt_quantize_options_t* options;
  accrt_quantize_report_t* report;
  element_t element;
  scale_kind_t scale_kind;
  float global;       /* factor of all stored scales; 1 except for NVFP4 */
  bool asymmetric;    /* elements have an integer zero point, which is subtracted */
  bool affine;        /* Q4_1: a float offset is added */
  bool signed_scale;  /* Q4_0: the extreme value becomes the lowest element */
  uint64_t first_row; /* the weight's row with which `values` begins */
  const float* values;
} sink_t;

/* The rows and columns of the weight that share a scale. */
typedef struct region {
  uint64_t row, rows, column, columns;
} region_t;

/* The value of an element e: (e - zero) * scale + offset. */
typedef struct scaling {
  float scale, zero, offset;
} scaling_t;

static const float* row_of(const sink_t* sink, uint64_t row) {
  return sink->values + (row - sink->first_row) * sink->view->k;
}

static float weight_of(const sink_t* sink, uint64_t column) {
  return sink->options->importance != NULL ? sink->options->importance[column] : 1.0f;
}

static float nearest(const element_t* element, float value) {
  if (element->kind != NULL)
    return accx_round_float(element->kind, value);
  return accx_round(value < element->low    ? element->low
                    : value > element->high ? element->high
                                            : value);
}

/* ---- Storing elements ---- */

static unsigned char* component(const sink_t* sink, uint32_t role) {
  return sink->tensor->components[role].data;
}

static unsigned char* block_of(const sink_t* sink, uint64_t row, uint64_t column) {
  const accx_layout_t* layout = sink->view->layout;
  const uint64_t blocks = sink->view->k / layout->block_elements;
  return component(sink, ACCRT_LAYOUT_ROLE_DATA) +
         (row * blocks + column / layout->block_elements) * layout->block_bytes;
}

/* Stores a nibble. The low nibble of a byte comes before the high one and clears it, so that
 * padding is 0. */
static void store_nibble(unsigned char* byte, uint32_t shift, uint32_t code) {
  *byte = (unsigned char)(shift == 0 ? code : *byte | code << 4);
}

static uint32_t element_code(const sink_t* sink, float value) {
  const element_t* element = &sink->element;
  if (element->kind == NULL) /* unsigned 4-bit layouts store signed values plus 8 */
    return (uint32_t)((int32_t)value + (element->low == -8 ? 8 : 0));
  return accx_float_code(element->kind, element->kind == &accx_kind_e2m1 ? 4 : 8, value);
}

static void store_element(const sink_t* sink, uint64_t row, uint64_t column, float value) {
  const uint32_t code = element_code(sink, value);
  const accx_layout_view_t* view = sink->view;
  unsigned char* block = view->layout->block_bytes != 0 ? block_of(sink, row, column) : NULL;
  const uint64_t in_block = column % view->layout->block_elements;
  switch (view->layout->id) {
  case ACCRT_LAYOUT_Q8_0:
    block[2 + in_block] = (unsigned char)code;
    return;
  case ACCRT_LAYOUT_Q4_0:
  case ACCRT_LAYOUT_Q4_1:
  case ACCRT_LAYOUT_GGML_MXFP4: /* a header of 2, 4 or 1 bytes, then two halves */
    store_nibble(block + view->layout->block_bytes - 16 + in_block % 16, in_block >= 16 ? 4 : 0,
                 code);
    return;
  case ACCRT_LAYOUT_GGML_NVFP4:
    store_nibble(block + 4 + in_block / 16 * 8 + in_block % 8, in_block % 16 >= 8 ? 4 : 0, code);
    return;
  default:
    break;
  }
  unsigned char* data = component(sink, ACCRT_LAYOUT_ROLE_DATA);
  const uint64_t at = row * view->k + column;
  if (accrt_dtype_bits(sink->tensor->components[ACCRT_LAYOUT_ROLE_DATA].dtype) == 8)
    data[at] = (unsigned char)code;
  else
    store_nibble(data + at / 2, 4 * (at & 1), code);
}

/* ---- Scales ---- */

static uint32_t scale_code(const sink_t* sink, float scale) {
  switch (sink->scale_kind) {
  case SCALE_F16:
    return accx_code_f16(scale);
  case SCALE_BF16:
    return accx_code_bf16(scale);
  case SCALE_E8M0: { /* the largest power of two that is not above it */
    const uint32_t exponent = accx_bits_of_float(scale) >> 23 & 0xFF;
    return exponent > 254 ? 254 : exponent;
  }
  case SCALE_E4M3: {
    const float stored = sink->global > 0 ? scale / sink->global : 0;
    return accx_float_code(&accx_kind_e4m3, 8, accx_round_float(&accx_kind_e4m3, stored));
  }
  default:
    return accx_bits_of_float(scale);
  }
}

static float scale_value(const sink_t* sink, uint32_t code) {
  switch (sink->scale_kind) {
  case SCALE_F16:
    return accx_f16(code);
  case SCALE_BF16:
    return accx_float_of_bits(code << 16);
  case SCALE_E8M0:
    return accx_f8e8m0(code);
  case SCALE_E4M3:
    return accx_f8e4m3fn(code) * sink->global;
  default:
    return accx_float_of_bits(code);
  }
}

static void store_code(unsigned char* base, scale_kind_t kind, uint64_t index, uint32_t code) {
  if (kind == SCALE_F32)
    memcpy(base + 4 * index, &code, 4);
  else if (kind == SCALE_F16 || kind == SCALE_BF16)
    accx_store_u16(base + 2 * index, code);
  else
    base[index] = (unsigned char)code;
}

static void store_scale(const sink_t* sink, const region_t* region, uint32_t code,
                        const scaling_t* scaling) {
  const accx_layout_view_t* view = sink->view;
  const uint32_t id = view->layout->id;
  if (view->layout->block_bytes != 0) {
    unsigned char* block = block_of(sink, region->row, region->column);
    const uint64_t part = id == ACCRT_LAYOUT_GGML_NVFP4 ? region->column % 64 / 16 : 0;
    store_code(block, sink->scale_kind, part, code);
    if (sink->affine)
      accx_store_u16(block + 2, accx_code_f16(scaling->offset));
    return;
  }
  const uint64_t group = view->group != 0 ? region->column / view->group : 0;
  uint64_t index = region->row * view->groups + group;
  if (id == ACCRT_LAYOUT_F8_TENSOR) {
    if (region->row != 0) /* only the call with row 0 writes values that exist once per weight */
      return;
    index = 0;
  }
  if (id == ACCRT_LAYOUT_F8_BLOCK128) {
    const uint64_t tiles = view->n / 128 + (view->n % 128 != 0);
    index = (region->row / view->n * tiles + region->row % view->n / 128) * view->groups + group;
  }
  store_code(component(sink, ACCRT_LAYOUT_ROLE_SCALES), sink->scale_kind, index, code);
  if (sink->asymmetric) {
    const uint64_t at = region->row * (view->groups + view->groups % 2) + group;
    store_nibble(component(sink, ACCRT_LAYOUT_ROLE_ZEROS) + at / 2, 4 * (at & 1),
                 (uint32_t)scaling->zero);
  }
}

/* ---- Choosing a scale ---- */

/* The smallest and the largest value, with 0 included. */
static void range_of(const sink_t* sink, const region_t* region, float* out_low, float* out_high) {
  float low = 0, high = 0;
  for (uint64_t r = 0; r < region->rows; ++r) {
    const float* values = row_of(sink, region->row + r) + region->column;
    for (uint64_t i = 0; i < region->columns; ++i) {
      low = values[i] < low ? values[i] : low;
      high = values[i] > high ? values[i] : high;
    }
  }
  *out_low = low;
  *out_high = high;
}

static float quantized(const sink_t* sink, const scaling_t* scaling, float inverse, float value) {
  return nearest(&sink->element, (value - scaling->offset) * inverse + scaling->zero);
}

static float inverse_of(const scaling_t* scaling) {
  const float inverse = 1.0f / scaling->scale;
  return fabsf(inverse) <= 0x1.FFFFFEp127f ? inverse : 0.0f; /* the scale is 0 or subnormal */
}

/* The sum of weighted squared errors. It stops when the sum exceeds `limit`. */
static double error_of(const sink_t* sink, const region_t* region, const scaling_t* scaling,
                       double limit) {
  const float inverse = inverse_of(scaling);
  double sum = 0;
  for (uint64_t r = 0; r < region->rows && sum <= limit; ++r) {
    const float* values = row_of(sink, region->row + r) + region->column;
    for (uint64_t i = 0; i < region->columns; ++i) {
      const float back =
          (quantized(sink, scaling, inverse, values[i]) - scaling->zero) * scaling->scale +
          scaling->offset;
      const double error = (double)(values[i] - back);
      sum += (double)weight_of(sink, region->column + i) * error * error;
    }
  }
  return sum;
}

/* A scale from the largest value, reduced by `factor`; with zero point or offset if the layout has
 * one. */
static scaling_t scaling_by_range(const sink_t* sink, float low, float high, float factor) {
  scaling_t scaling = {0, 0, 0};
  const float amax = -low > high ? -low : high;
  if (sink->asymmetric) {
    scaling.scale = high * factor / 15.0f - low * factor / 15.0f;
  } else if (sink->signed_scale) {
    scaling.scale = (-low > high ? -low : -high) * factor / 8.0f;
  } else if (sink->scale_kind == SCALE_E8M0) {
    /* OCP: the power of two of the largest value, divided by that of the largest element. */
    const float top = accx_float_of_bits(accx_bits_of_float(sink->element.high) & 0x7F800000u);
    scaling.scale = amax / top;
  } else {
    scaling.scale = amax * factor / sink->element.high;
  }
  return scaling;
}

static void take_code(const sink_t* sink, scaling_t* scaling, float low, uint32_t code) {
  scaling->scale = scale_value(sink, code);
  if (sink->asymmetric && scaling->scale > 0) {
    const float zero = accx_round(-low / scaling->scale);
    scaling->zero = zero > 15.0f ? 15.0f : zero;
  }
}

/* Tries `code`, and uses it if its error is smaller. */
static void try_code(const sink_t* sink, const region_t* region, float low, uint32_t code,
                     scaling_t* best, uint32_t* best_code, double* best_error) {
  scaling_t scaling = {0, 0, 0};
  take_code(sink, &scaling, low, code);
  if (!(fabsf(scaling.scale) > 0))
    return;
  const double error = error_of(sink, region, &scaling, *best_error);
  if (error >= *best_error)
    return;
  *best = scaling;
  *best_code = code;
  *best_error = error;
}

/* For fixed elements the best scale is a quotient of sums. */
static float refit(const sink_t* sink, const region_t* region, const scaling_t* scaling) {
  const float inverse = inverse_of(scaling);
  double products = 0, squares = 0;
  for (uint64_t r = 0; r < region->rows; ++r) {
    const float* values = row_of(sink, region->row + r) + region->column;
    for (uint64_t i = 0; i < region->columns; ++i) {
      const double weight = (double)weight_of(sink, region->column + i);
      const double level = (double)(quantized(sink, scaling, inverse, values[i]) - scaling->zero);
      products += weight * level * (double)values[i];
      squares += weight * level * level;
    }
  }
  return squares > 0 ? (float)(products / squares) : scaling->scale;
}

static uint32_t search_scale(const sink_t* sink, const region_t* region, float low, float high,
                             uint32_t code, scaling_t* best) {
  uint32_t best_code = code;
  double best_error = error_of(sink, region, best, HUGE_VAL);
  if (sink->scale_kind == SCALE_E8M0 || sink->scale_kind == SCALE_E4M3) {
    const uint32_t most = sink->scale_kind == SCALE_E8M0 ? 254 : 0x7E;
    const uint32_t reach = sink->scale_kind == SCALE_E8M0 ? 1 : 5;
    for (uint32_t c = code > reach ? code - reach : 0; c <= code + reach && c <= most; ++c)
      try_code(sink, region, low, c, best, &best_code, &best_error);
    return best_code;
  }
  for (int step = 0; step < 20; ++step) {
    const float factor = 1.05f - 0.025f * (float)step;
    const scaling_t scaling = scaling_by_range(sink, low, high, factor);
    try_code(sink, region, low * factor, scale_code(sink, scaling.scale), best, &best_code,
             &best_error);
  }
  const uint32_t code_again = scale_code(sink, refit(sink, region, best));
  if (!sink->asymmetric)
    try_code(sink, region, low, code_again, best, &best_code, &best_error);
  return best_code;
}

/* ---- Regions ---- */

static void report_value(accrt_quantize_report_t* report, float value, float back, float weight) {
  const double v = (double)value, error = (double)value - (double)back;
  const double magnitude = fabs(v), distance = fabs(error);
  report->amax = magnitude > report->amax ? magnitude : report->amax;
  report->max_error = distance > report->max_error ? distance : report->max_error;
  report->weight_squares += v * v;
  report->error_squares += error * error;
  report->weighted_squares += (double)weight * v * v;
  report->weighted_error_squares += (double)weight * error * error;
  ++report->elements;
}

static void write_region(const sink_t* sink, const region_t* region, const scaling_t* scaling) {
  const float inverse = inverse_of(scaling);
  for (uint64_t r = 0; r < region->rows; ++r) {
    const float* values = row_of(sink, region->row + r);
    for (uint64_t c = region->column; c < region->column + region->columns; ++c) {
      const float level = quantized(sink, scaling, inverse, values[c]);
      store_element(sink, region->row + r, c, level);
      const float back = (level - scaling->zero) * scaling->scale + scaling->offset;
      report_value(sink->report, values[c], back, weight_of(sink, c));
    }
  }
}

/* Q4_1: 32 values as scale * (0..15) + offset. */
static scaling_t fit_block(const sink_t* sink, const region_t* region, float* out_scale) {
  float values[32], weights[32], fitted = 0;
  const float* from = row_of(sink, region->row) + region->column;
  float low = from[0], high = from[0];
  for (uint32_t i = 1; i < 32; ++i) {
    low = from[i] < low ? from[i] : low;
    high = from[i] > high ? from[i] : high;
  }
  *out_scale = (high - low) / 15.0f;
  if (sink->options->method == ACCRT_QUANTIZE_SEARCH) {
    for (uint32_t i = 0; i < 32; ++i) {
      values[i] = from[i] - low;
      weights[i] = weight_of(sink, region->column + i);
    }
    accx_layout_fit_affine(values, weights, 32, 15.0f, out_scale, &fitted);
  }
  const scaling_t scaling = {0, 0, accx_f16(accx_code_f16(low + fitted))};
  return scaling;
}

static void encode_region(const sink_t* sink, const region_t* region) {
  float low, high;
  scaling_t scaling;
  uint32_t code;
  range_of(sink, region, &low, &high);
  if (sink->affine) {
    float scale;
    scaling = fit_block(sink, region, &scale);
    code = accx_code_f16(scale);
    scaling.scale = accx_f16(code);
  } else {
    /* The scale is for the whole tensor, but only some of its rows are here. */
    const bool part = sink->view->layout->id == ACCRT_LAYOUT_F8_TENSOR && sink->options->amax > 0;
    if (part)
      high = sink->options->amax;
    scaling = scaling_by_range(sink, low, high, 1.0f);
    code = scale_code(sink, scaling.scale);
    take_code(sink, &scaling, low, code);
    if (sink->options->method == ACCRT_QUANTIZE_SEARCH && !part && low < high)
      code = search_scale(sink, region, low, high, code, &scaling);
  }
  store_scale(sink, region, code, &scaling);
  write_region(sink, region, &scaling);
}

static void encode_superblock(const sink_t* sink, const region_t* region) {
  const uint32_t id = sink->view->layout->id;
  const float* values = row_of(sink, region->row) + region->column;
  const float* importance = sink->options->importance;
  unsigned char* block = block_of(sink, region->row, region->column);
  float back[256];
  accx_layout_encode_k(id, values, importance != NULL ? importance + region->column : NULL,
                       sink->options->method == ACCRT_QUANTIZE_SEARCH, block);
  accx_layout_decode_block(id, block, back);
  for (uint32_t i = 0; i < 256; ++i)
    report_value(sink->report, values[i], back[i], weight_of(sink, region->column + i));
}

static void encode_plain(const sink_t* sink, uint64_t row) {
  const accrt_dtype_t dtype = sink->tensor->dtype;
  const float* values = row_of(sink, row);
  for (uint64_t i = 0; i < sink->view->k; ++i) {
    const uint64_t at = row * sink->view->k + i;
    store_code(component(sink, ACCRT_LAYOUT_ROLE_DATA), sink->scale_kind, at,
               scale_code(sink, values[i]));
    const float back = accx_load(component(sink, ACCRT_LAYOUT_ROLE_DATA), dtype, at);
    report_value(sink->report, values[i], back, weight_of(sink, i));
  }
}

static bool is_superblock(uint32_t id) {
  return id >= ACCRT_LAYOUT_Q4_K && id <= ACCRT_LAYOUT_Q6_K;
}

static void encode_rows(const sink_t* sink, uint64_t first, uint64_t count) {
  const accx_layout_view_t* view = sink->view;
  const uint32_t id = view->layout->id;
  if (id == ACCRT_LAYOUT_F8_TENSOR) {
    const region_t all = {first, count, 0, view->k};
    encode_region(sink, &all);
    return;
  }
  const uint64_t width = is_superblock(id) ? 256 : view->group;
  for (uint64_t row = first, height; row < first + count; row += height) {
    height = 1;
    if (id == ACCRT_LAYOUT_F8_BLOCK128)
      height = view->n - row % view->n < 128 ? view->n - row % view->n : 128;
    if (id == ACCRT_LAYOUT_PLAIN) {
      encode_plain(sink, row);
      continue;
    }
    for (uint64_t column = 0; column < view->k; column += width) {
      const uint64_t left = view->k - column;
      const region_t region = {row, height, column, left < width ? left : width};
      if (is_superblock(id))
        encode_superblock(sink, &region);
      else
        encode_region(sink, &region);
    }
  }
}

/* ---- Entry ---- */

static element_t element_of(uint32_t id, accrt_dtype_t dtype) {
  element_t element = {NULL, -127, 127};
  if (dtype == ACCRT_DTYPE_F8E4M3FN)
    element.kind = &accx_kind_e4m3;
  else if (dtype == ACCRT_DTYPE_F8E5M2)
    element.kind = &accx_kind_e5m2;
  else if (dtype == ACCRT_DTYPE_F4E2M1 || id == ACCRT_LAYOUT_GGML_MXFP4 ||
           id == ACCRT_LAYOUT_GGML_NVFP4)
    element.kind = &accx_kind_e2m1;
  if (element.kind != NULL)
    element.high = element.kind->max;
  else if (id == ACCRT_LAYOUT_I4_GROUP_ASYM || id == ACCRT_LAYOUT_Q4_1)
    element = (element_t){NULL, 0, 15};
  else if (id == ACCRT_LAYOUT_I4_GROUP || id == ACCRT_LAYOUT_Q4_0)
    element = (element_t){NULL, -8, 7};
  return element;
}

static scale_kind_t scale_kind_of(uint32_t id, accrt_dtype_t dtype) {
  if (id == ACCRT_LAYOUT_GGML_MXFP4 || dtype == ACCRT_DTYPE_F8E8M0)
    return SCALE_E8M0;
  if (id == ACCRT_LAYOUT_GGML_NVFP4 || dtype == ACCRT_DTYPE_F8E4M3FN)
    return SCALE_E4M3;
  if (id >= ACCRT_LAYOUT_Q8_0 || dtype == ACCRT_DTYPE_F16)
    return SCALE_F16;
  return dtype == ACCRT_DTYPE_BF16 ? SCALE_BF16 : SCALE_F32;
}

/* Limit with which squares of values are finite in f32. */
#define MAX_MAGNITUDE 0x1p60f

static accrt_status_t check_values(const sink_t* sink, uint64_t count, float* out_amax) {
  const float* importance = sink->options->importance;
  const uint64_t k = sink->view->k;
  for (uint64_t i = 0; importance != NULL && i < k; ++i) {
    if (!(importance[i] >= 0 && importance[i] <= MAX_MAGNITUDE))
      return ACCRT_FAIL(INVALID_ARGUMENT, "importance[%" PRIu64 "] is %g", i,
                        (double)importance[i]);
  }
  *out_amax = 0;
  for (uint64_t i = 0; i < count * k; ++i) {
    const float magnitude = fabsf(sink->values[i]);
    if (!(magnitude <= MAX_MAGNITUDE))
      return ACCRT_FAIL(INVALID_ARGUMENT,
                        "the value at row %" PRIu64 ", column %" PRIu64
                        " is %g: not finite, or above 2^60",
                        sink->first_row + i / k, i % k, (double)sink->values[i]);
    *out_amax = magnitude > *out_amax ? magnitude : *out_amax;
  }
  return ACCRT_OK;
}

/* Checks that all values that share a scale are given together. */
static accrt_status_t check_parts(const sink_t* sink, uint64_t first, uint64_t count) {
  const accx_layout_view_t* view = sink->view;
  const uint32_t id = view->layout->id;
  const bool all = first == 0 && count == view->rows;
  if ((id == ACCRT_LAYOUT_F8_TENSOR || id == ACCRT_LAYOUT_NVFP4) && !all &&
      !(sink->options->amax > 0))
    return ACCRT_FAIL(INVALID_ARGUMENT, "layout %s in parts needs the amax of the whole weight",
                      view->layout->name);
  const uint64_t end = (first + count) % view->n;
  if (id == ACCRT_LAYOUT_F8_BLOCK128 && (first % view->n % 128 != 0 || end % 128 != 0))
    return ACCRT_FAIL(INVALID_ARGUMENT,
                      "%" PRIu64 " rows from %" PRIu64 " cut tiles of 128 rows of %s", count, first,
                      view->layout->name);
  return ACCRT_OK;
}

static accrt_status_t check_target(const accrt_layout_tensor_t* target,
                                   const accx_layout_view_t* view) {
  const bool plain = target->layout == ACCRT_LAYOUT_PLAIN;
  const bool floats = target->dtype == ACCRT_DTYPE_F32 || target->dtype == ACCRT_DTYPE_F16 ||
                      target->dtype == ACCRT_DTYPE_BF16;
  if ((view->layout->flags & ACCRT_LAYOUT_FLAG_WRITABLE) == 0 || (plain && !floats) ||
      target->components[ACCRT_LAYOUT_ROLE_GROUP_INDEX].dtype != ACCRT_DTYPE_NONE)
    return ACCRT_FAIL(UNSUPPORTED, "layout %s of %s is not written, nor is a group index",
                      view->layout->name, accrt_dtype_name(target->dtype));
  return accx_layout_check_components(target, view);
}

static void prepare(sink_t* sink, float amax) {
  const accrt_layout_tensor_t* tensor = sink->tensor;
  const uint32_t id = tensor->layout;
  const uint32_t scales =
      id == ACCRT_LAYOUT_PLAIN ? ACCRT_LAYOUT_ROLE_DATA : ACCRT_LAYOUT_ROLE_SCALES;
  sink->element = element_of(id, tensor->components[ACCRT_LAYOUT_ROLE_DATA].dtype);
  sink->scale_kind = scale_kind_of(id, tensor->components[scales].dtype);
  sink->asymmetric = id == ACCRT_LAYOUT_I4_GROUP_ASYM;
  sink->affine = id == ACCRT_LAYOUT_Q4_1;
  sink->signed_scale = id == ACCRT_LAYOUT_Q4_0 || id == ACCRT_LAYOUT_I4_GROUP;
  sink->global = 1.0f;
  if (id != ACCRT_LAYOUT_NVFP4)
    return;
  sink->global = (sink->options->amax > 0 ? sink->options->amax : amax) / (448.0f * 6.0f);
  if (sink->first_row == 0)
    memcpy(component(sink, ACCRT_LAYOUT_ROLE_GLOBAL_SCALE), &sink->global, sizeof sink->global);
}

accrt_status_t accrt_layout_quantize(const accrt_layout_tensor_t* target, const float* source,
                                     uint64_t row_first, uint64_t row_count,
                                     const accrt_quantize_options_t* options,
                                     accrt_quantize_report_t* out_report) {
  accrt_error_enter(ACCRT_THIS_FUNCTION);
  accrt_layout_tensor_t own;
  accx_layout_view_t view;
  accrt_quantize_options_t chosen;
  accrt_quantize_report_t report = {0};
  ACCRT_TRY(accrt_struct_read("accrt_quantize_options_t", options, &chosen, sizeof chosen));
  ACCRT_TRY(accx_layout_read(target, &own, &view));
  ACCRT_TRY(check_target(&own, &view));
  ACCRT_TRY(accx_layout_check_rows(&view, row_first, row_count));
  if (chosen.method > ACCRT_QUANTIZE_SEARCH || chosen.reserved != 0 || !(chosen.amax >= 0) ||
      chosen.amax > MAX_MAGNITUDE)
    return ACCRT_FAIL(INVALID_ARGUMENT, "method %" PRIu32 ", amax %g: no such options",
                      chosen.method, (double)chosen.amax);
  if (row_count != 0 && view.k != 0) {
    if (source == NULL)
      return ACCRT_FAIL(INVALID_ARGUMENT, "source is NULL");
    sink_t sink = {.view = &view,
                   .tensor = &own,
                   .options = &chosen,
                   .report = &report,
                   .first_row = row_first,
                   .values = source};
    float amax = 0;
    ACCRT_TRY(check_parts(&sink, row_first, row_count));
    ACCRT_TRY(check_values(&sink, row_count, &amax));
    prepare(&sink, amax);
    encode_rows(&sink, row_first, row_count);
  }
  return out_report != NULL
             ? accrt_struct_write("accrt_quantize_report_t", out_report, &report, sizeof report)
             : ACCRT_OK;
}
