/* loader/layout_decode.c - from every layout to f32, exactly: each formula has its own order of f32 operations, and
 * docs/layouts.md says it. It is built without contraction (a * b + c is two operations), and may not allocate. */
#include "loader/layout_encode.h"
#include "loader/layout_number.h"

#include "accrt/tensor.h"
#include "runtime/core/error.h"
#include "runtime/core/memory.h"

/* What decodes rows has in hand. */
typedef struct source {
  const accx_layout_view_t* view;
  const accrt_layout_component_t* components; /* by role */
  const unsigned char* data;
  const unsigned char* index; /* GROUP_INDEX, or NULL */
  float global;
  float table[256]; /* values of elements of 8 or 4 bits */
} source_t;

/* ---- Blocks: one component of bytes ---- */

static void decode_q8_0(const unsigned char* block, float* out) {
  const float d = accx_load_f16(block);
  for (int i = 0; i < 32; ++i)
    out[i] = d * (float)(int8_t)block[2 + i];
}

static void decode_q4_0(const unsigned char* block, float* out) {
  const float d = accx_load_f16(block);
  for (int i = 0; i < 16; ++i) {
    out[i] = d * (float)((block[2 + i] & 15) - 8);
    out[i + 16] = d * (float)((block[2 + i] >> 4) - 8);
  }
}

static void decode_q4_1(const unsigned char* block, float* out) {
  const float d = accx_load_f16(block), m = accx_load_f16(block + 2);
  for (int i = 0; i < 16; ++i) {
    out[i] = d * (float)(block[4 + i] & 15) + m;
    out[i + 16] = d * (float)(block[4 + i] >> 4) + m;
  }
}

/* The eight scales and minima of Q4_K and Q5_K: six bits each. */
static void unpack_scales(const unsigned char* s, float d, float dmin, float* scales,
                          float* minima) {
  for (int j = 0; j < 4; ++j) {
    scales[j] = d * (float)(s[j] & 63);
    minima[j] = dmin * (float)(s[j + 4] & 63);
    scales[j + 4] = d * (float)((s[j + 8] & 15) | s[j] >> 6 << 4);
    minima[j + 4] = dmin * (float)(s[j + 8] >> 4 | s[j + 4] >> 6 << 4);
  }
}

static void decode_q4_k(const unsigned char* block, float* out) {
  float scales[8], minima[8];
  unpack_scales(block + 4, accx_load_f16(block), accx_load_f16(block + 2), scales, minima);
  for (int j = 0; j < 8; ++j) {
    const unsigned char* q = block + 16 + 32 * (j / 2);
    for (int i = 0; i < 32; ++i)
      out[32 * j + i] = scales[j] * (float)(q[i] >> 4 * (j & 1) & 15) - minima[j];
  }
}

static void decode_q5_k(const unsigned char* block, float* out) {
  float scales[8], minima[8];
  unpack_scales(block + 4, accx_load_f16(block), accx_load_f16(block + 2), scales, minima);
  for (int j = 0; j < 8; ++j) {
    const unsigned char *high = block + 16, *q = block + 48 + 32 * (j / 2);
    for (int i = 0; i < 32; ++i) {
      const int value = (q[i] >> 4 * (j & 1) & 15) | (high[i] >> j & 1) << 4;
      out[32 * j + i] = scales[j] * (float)value - minima[j];
    }
  }
}

static void decode_q6_k(const unsigned char* block, float* out) {
  const float d = accx_load_f16(block + 208);
  for (int g = 0; g < 8; ++g) { /* 32 elements of two scales */
    const unsigned char* low = block + 64 * (g / 4) + 32 * (g & 1);
    const unsigned char* high = block + 128 + 32 * (g / 4);
    const int low_shift = 4 * (g >> 1 & 1), high_shift = 2 * (g & 3);
    const float scales[2] = {d * (float)(int8_t)block[192 + 2 * g],
                             d * (float)(int8_t)block[193 + 2 * g]};
    for (int i = 0; i < 32; ++i) {
      const int value = (low[i] >> low_shift & 15) | (high[i] >> high_shift & 3) << 4;
      out[32 * g + i] = scales[i / 16] * (float)(value - 32);
    }
  }
}

/* 2 * count elements in halves; GGML has no negative zero. */
static void decode_fp4_halves(const unsigned char* q, int count, float d, float* out) {
  static const int8_t values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
  for (int i = 0; i < count; ++i) {
    out[i] = d * (float)values[q[i] & 15];
    out[i + count] = d * (float)values[q[i] >> 4];
  }
}

static void decode_ggml_mxfp4(const unsigned char* block, float* out) {
  decode_fp4_halves(block + 1, 16, accx_f8e8m0_half(block[0]), out);
}

static void decode_ggml_nvfp4(const unsigned char* block, float* out) {
  for (int g = 0; g < 4; ++g)
    decode_fp4_halves(block + 4 + 8 * g, 8, accx_ue4m3_half(block[g]), out + 16 * g);
}

void accx_layout_decode_block(uint32_t layout, const unsigned char* block, float* out) {
  static void (*const decoders[])(const unsigned char*, float*) = {
      decode_q8_0, decode_q4_0, decode_q4_1,       decode_q4_k,
      decode_q5_k, decode_q6_k, decode_ggml_mxfp4, decode_ggml_nvfp4};
  decoders[layout - ACCRT_LAYOUT_Q8_0](block, out);
}

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

/* The scale times the global one, where there is one. */
static float scale_of(const source_t* source, uint64_t row, uint64_t group) {
  const accrt_layout_component_t* scales = &source->components[ACCRT_LAYOUT_ROLE_SCALES];
  const float scale = accx_load(scales->data, scales->dtype, scale_index(source->view, row, group));
  return source->view->layout->id == ACCRT_LAYOUT_NVFP4 ? scale * source->global : scale;
}

/* Where eight neighbours of a word stand in AWQ: nibble of column c % 8. */
static uint32_t awq_shift(uint64_t column) {
  static const uint8_t shifts[8] = {0, 16, 4, 20, 8, 24, 12, 28};
  return shifts[column % 8];
}

static uint32_t load_word(const unsigned char* base, uint64_t index) {
  uint32_t word;
  memcpy(&word, base + 4 * index, sizeof word);
  return word;
}

/* What is taken off an element before it is scaled. */
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

/* The elements of a row as numbers, not scaled yet. */
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

/* With GROUP_INDEX, elements of a group are anywhere in the row: its scales are worked out once. */
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
    const uint32_t wide = bits / 8; /* 1, or 0 for two a byte */
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

accrt_status_t accx_layout_check_components(const accrt_layout_tensor_t* tensor,
                                            const accx_layout_view_t* view) {
  const accx_layout_t* layout = view->layout;
  for (uint32_t role = 0; role < ACCRT_LAYOUT_ROLE_COUNT; ++role) {
    const accrt_layout_component_t* component = &tensor->components[role];
    if (component->dtype == ACCRT_DTYPE_NONE && (layout->required_roles >> role & 1) == 0)
      continue;
    if (!accx_layout_takes(layout, tensor->dtype, role, component->dtype))
      return ACCRT_FAIL_INNER(TYPE_MISMATCH, "layout %s takes no %s for role %" PRIu32,
                              layout->name, accrt_dtype_name(component->dtype), role);
    uint64_t size;
    if (!accx_layout_size(view, role, component->dtype, &size))
      return ACCRT_FAIL_INNER(SHAPE_MISMATCH, "the size of role %" PRIu32 " does not fit", role);
    if (size != component->size_bytes || (component->data == NULL && size != 0))
      return ACCRT_FAIL_INNER(INVALID_ARGUMENT,
                              "role %" PRIu32 " of layout %s has %" PRIu64
                              " bytes at %p, expected %" PRIu64,
                              role, layout->name, component->size_bytes, component->data, size);
  }
  return ACCRT_OK;
}

accrt_status_t accx_layout_check_rows(const accx_layout_view_t* view, uint64_t first,
                                      uint64_t count) {
  return accrt_range_fits(first, count, view->rows)
             ? ACCRT_OK
             : ACCRT_FAIL_INNER(OUT_OF_RANGE,
                                "%" PRIu64 " rows from %" PRIu64 " of a weight with %" PRIu64,
                                count, first, view->rows);
}

/* Every entry of GROUP_INDEX names a group: it is data, and may hold anything. */
static accrt_status_t check_index(const source_t* source) {
  for (uint64_t i = 0; source->index != NULL && i < source->view->k; ++i) {
    const uint32_t group = load_word(source->index, i);
    if (group >= source->view->groups)
      return ACCRT_FAIL_INNER(OUT_OF_RANGE,
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
  accrt_layout_tensor_t own;
  accx_layout_view_t view;
  accrt_status_t status = accx_layout_read(tensor, &own, &view);
  if (status != ACCRT_OK)
    return status;
  if (own.layout == ACCRT_LAYOUT_OPAQUE ||
      (own.layout == ACCRT_LAYOUT_PLAIN && !has_numbers(own.dtype)))
    return ACCRT_FAIL(UNSUPPORTED, "layout %s of %s has no f32 form", view.layout->name,
                      accrt_dtype_name(own.dtype));
  status = accx_layout_check_components(&own, &view);
  if (status == ACCRT_OK)
    status = accx_layout_check_rows(&view, row_first, row_count);
  if (status != ACCRT_OK)
    return status;
  if (row_count == 0 || view.k == 0)
    return ACCRT_OK;
  if (out == NULL)
    return ACCRT_FAIL(INVALID_ARGUMENT, "out is NULL");
  source_t source = {.view = &view,
                     .components = own.components,
                     .data = own.components[ACCRT_LAYOUT_ROLE_DATA].data};
  if (own.components[ACCRT_LAYOUT_ROLE_GROUP_INDEX].dtype != ACCRT_DTYPE_NONE)
    source.index = own.components[ACCRT_LAYOUT_ROLE_GROUP_INDEX].data;
  status = check_index(&source);
  if (status != ACCRT_OK)
    return status;
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
