/* loader/layout_decode.c - decodes every layout to f32, exactly: docs/layouts.md has the order of
 * f32 operations of each formula. format/layout_block.c decodes blocks of one component. This file
 * is built without contraction (a * b + c is two operations), and may not allocate. */
#include "format/layout.h"
#include "format/layout_number.h"

#include "accrt/tensor.h"
#include "runtime/core/error.h"
#include "runtime/core/fork.h"
#include "runtime/core/memory.h"

/* State for decoding rows. */
typedef struct source {
  const accx_layout_view_t* view;
  const accrt_layout_component_t* components; /* by role */
  const unsigned char* data;
  const unsigned char* index; /* GROUP_INDEX, or NULL */
  float global;
  float table[256]; /* values of the elements with 8 or 4 bits */
} source_t;

static void decode_blocks(const source_t* source, uint64_t first, uint64_t count, float* out) {
  const accx_layout_t* layout = source->view->layout;
  const uint64_t row_blocks = source->view->k / layout->block_elements;
  const unsigned char* block = source->data + first * row_blocks * layout->block_bytes;
  for (uint64_t i = 0; i < count * row_blocks; ++i, block += layout->block_bytes) {
    accx_layout_decode_block(layout->id, block, out);
    out += layout->block_elements;
  }
}

/* ---- Elements with scales beside them ---- */

static uint64_t scale_index(const accx_layout_view_t* view, uint64_t row, uint64_t group) {
  switch (view->layout->id) {
  case ACCRT_LAYOUT_F8_TENSOR:
    return 0;
  case ACCRT_LAYOUT_F8_BLOCK128: {
    const uint64_t tiles = view->n / 128 + (view->n % 128 != 0);
    return (row / view->n * tiles + row % view->n / 128) * view->groups + group;
  }
  case ACCRT_LAYOUT_GPTQ_V1:
  case ACCRT_LAYOUT_GPTQ_V2:
  case ACCRT_LAYOUT_AWQ:
    return group * view->n + row;
  default:
    return row * view->groups + group;
  }
}

/* The scale, multiplied by the global scale if the layout has one. */
static float scale_of(const source_t* source, uint64_t row, uint64_t group) {
  const accrt_layout_component_t* scales = &source->components[ACCRT_LAYOUT_ROLE_SCALES];
  const float scale = accx_load(scales->data, scales->dtype, scale_index(source->view, row, group));
  return source->view->layout->id == ACCRT_LAYOUT_NVFP4 ? scale * source->global : scale;
}

/* AWQ's order of the eight elements in a word: the shift of column c % 8. */
static uint32_t awq_shift(uint64_t column) {
  static const uint8_t shifts[8] = {0, 16, 4, 20, 8, 24, 12, 28};
  return shifts[column % 8];
}

static uint32_t load_word(const unsigned char* base, uint64_t index) {
  uint32_t word;
  memcpy(&word, base + 4 * index, sizeof word);
  return word;
}

/* The zero point: subtracted from an element before scaling. */
static float zero_of(const source_t* source, uint64_t row, uint64_t group) {
  const accx_layout_view_t* view = source->view;
  const unsigned char* zeros = source->components[ACCRT_LAYOUT_ROLE_ZEROS].data;
  const uint64_t words = view->n / 8;
  switch (view->layout->id) {
  case ACCRT_LAYOUT_I4_GROUP:
    return 8.0f;
  case ACCRT_LAYOUT_I4_GROUP_ASYM: {
    const uint64_t at = row * (view->groups + view->groups % 2) + group;
    return (float)(zeros[at / 2] >> 4 * (at & 1) & 15);
  }
  case ACCRT_LAYOUT_GPTQ_V1:
    return (float)((load_word(zeros, group * words + row / 8) >> 4 * (row % 8) & 15) + 1);
  case ACCRT_LAYOUT_GPTQ_V2:
    return (float)(load_word(zeros, group * words + row / 8) >> 4 * (row % 8) & 15);
  case ACCRT_LAYOUT_AWQ:
    return (float)(load_word(zeros, group * words + row / 8) >> awq_shift(row) & 15);
  default:
    return 0.0f;
  }
}

/* Loads the elements of a row as numbers, before scaling. */
static void load_elements(const source_t* source, uint64_t row, uint64_t count, float* out) {
  const accx_layout_view_t* view = source->view;
  const unsigned char* data = source->data;
  const uint32_t bits = accrt_dtype_bits(source->components[ACCRT_LAYOUT_ROLE_DATA].dtype);
  const uint64_t at = row * count;
  if (bits == 32) {
    const bool awq = view->layout->id == ACCRT_LAYOUT_AWQ;
    for (uint64_t i = 0; i < count; ++i) {
      const uint64_t place = awq ? i * (view->n / 8) + row / 8 : i / 8 * view->n + row;
      out[i] = (float)(load_word(data, place) >> (awq ? awq_shift(row) : 4 * (i % 8)) & 15);
    }
  } else if (bits == 8) {
    for (uint64_t i = 0; i < count; ++i)
      out[i] = source->table[data[at + i]];
  } else {
    for (uint64_t i = 0; i < count; ++i)
      out[i] = source->table[data[(at + i) / 2] >> 4 * ((at + i) & 1) & 15];
  }
}

#define CACHED_GROUPS 256u

/* With GROUP_INDEX, a group's elements are anywhere in the row, so its scale is computed once. */
static void decode_indexed_row(const source_t* source, uint64_t row, float* out) {
  const accx_layout_view_t* view = source->view;
  float scales[CACHED_GROUPS], zeros[CACHED_GROUPS];
  for (uint32_t group = 0; group < CACHED_GROUPS && group < view->groups; ++group) {
    scales[group] = scale_of(source, row, group);
    zeros[group] = zero_of(source, row, group);
  }
  for (uint64_t i = 0; i < view->k; ++i) {
    const uint32_t group = load_word(source->index, i);
    const bool cached = group < CACHED_GROUPS;
    const float zero = cached ? zeros[group] : zero_of(source, row, group);
    out[i] = (out[i] - zero) * (cached ? scales[group] : scale_of(source, row, group));
  }
}

static void decode_scaled_row(const source_t* source, uint64_t row, float* out) {
  const accx_layout_view_t* view = source->view;
  load_elements(source, row, view->k, out);
  if (source->index != NULL) {
    decode_indexed_row(source, row, out);
    return;
  }
  for (uint64_t group = 0, i = 0; group < view->groups; ++group) {
    const float scale = scale_of(source, row, group), zero = zero_of(source, row, group);
    const uint64_t end = view->k - i < view->group ? view->k : i + view->group;
    for (; i < end; ++i)
      out[i] = (out[i] - zero) * scale;
  }
}

/* ---- PLAIN ---- */

static void decode_plain(const source_t* source, uint64_t first, uint64_t count, float* out) {
  const accrt_layout_component_t* data = &source->components[ACCRT_LAYOUT_ROLE_DATA];
  const uint64_t begin = first * source->view->k, elements = count * source->view->k;
  const uint32_t bits = accrt_dtype_bits(data->dtype);
  if (data->dtype == ACCRT_DTYPE_F32) {
    if (elements != 0)
      memcpy(out, source->data + 4 * begin, 4 * elements);
  } else if (bits == 16) {
    for (uint64_t i = 0; i < elements; ++i)
      out[i] = accx_load(source->data, data->dtype, begin + i);
  } else {
    const uint32_t wide = bits / 8; /* 1, or 0 when two elements share a byte */
    for (uint64_t i = begin; i < begin + elements; ++i)
      out[i - begin] =
          source->table[wide != 0 ? source->data[i] : source->data[i / 2] >> 4 * (i & 1) & 15];
  }
}

static bool has_numbers(accrt_dtype_t dtype) {
  return dtype == ACCRT_DTYPE_F32 || dtype == ACCRT_DTYPE_F16 || dtype == ACCRT_DTYPE_BF16 ||
         accrt_dtype_bits(dtype) <= 8;
}

/* ---- Entry ---- */

/* Checks that every entry of GROUP_INDEX is a group. The entries are data, which may be
 * anything. */
static accrt_status_t check_index(const source_t* source) {
  for (uint64_t i = 0; source->index != NULL && i < source->view->k; ++i) {
    const uint32_t group = load_word(source->index, i);
    if (group >= source->view->groups)
      return ACCRT_FAIL(OUT_OF_RANGE,
                        "group index %" PRIu64 " is %" PRId32 " of %" PRIu64 " groups", i,
                        (int32_t)group, source->view->groups);
  }
  return ACCRT_OK;
}

static void fill_table(source_t* source, accrt_dtype_t dtype) {
  const uint32_t bits = accrt_dtype_bits(dtype);
  for (uint32_t i = 0; bits <= 8 && i < 1u << bits; ++i)
    source->table[i] = accx_small(dtype, i);
}

accrt_status_t accrt_layout_dequantize(const accrt_layout_tensor_t* tensor, uint64_t row_first,
                                       uint64_t row_count, float* out) {
  ACCRT_ENTER(tensor);
  accrt_layout_tensor_t own;
  accx_layout_view_t view;
  ACCRT_TRY(accx_layout_read(tensor, &own, &view));
  if (own.layout == ACCRT_LAYOUT_OPAQUE ||
      (own.layout == ACCRT_LAYOUT_PLAIN && !has_numbers(own.dtype)))
    return ACCRT_FAIL(UNSUPPORTED, "layout %s of %s has no f32 form", view.layout->name,
                      accrt_dtype_name(own.dtype));
  ACCRT_TRY(accx_layout_check_components(&own, &view));
  ACCRT_TRY(accx_layout_check_rows(&view, row_first, row_count));
  if (row_count == 0 || view.k == 0)
    return ACCRT_OK;
  if (out == NULL)
    return ACCRT_FAIL(INVALID_ARGUMENT, "out is NULL");
  source_t source = {.view = &view,
                     .components = own.components,
                     .data = own.components[ACCRT_LAYOUT_ROLE_DATA].data};
  if (own.components[ACCRT_LAYOUT_ROLE_GROUP_INDEX].dtype != ACCRT_DTYPE_NONE)
    source.index = own.components[ACCRT_LAYOUT_ROLE_GROUP_INDEX].data;
  ACCRT_TRY(check_index(&source));
  if (view.layout->block_bytes != 0) {
    decode_blocks(&source, row_first, row_count, out);
    return ACCRT_OK;
  }
  fill_table(&source, own.components[ACCRT_LAYOUT_ROLE_DATA].dtype);
  if (own.layout == ACCRT_LAYOUT_PLAIN) {
    decode_plain(&source, row_first, row_count, out);
    return ACCRT_OK;
  }
  if (own.layout == ACCRT_LAYOUT_NVFP4)
    source.global =
        accx_load(own.components[ACCRT_LAYOUT_ROLE_GLOBAL_SCALE].data, ACCRT_DTYPE_F32, 0);
  for (uint64_t i = 0; i < row_count; ++i)
    decode_scaled_row(&source, row_first + i, out + i * view.k);
  return ACCRT_OK;
}
