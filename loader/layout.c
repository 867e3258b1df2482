/* loader/layout.c - the table of weight layouts, and sizes. It may not allocate; every product is checked, since shapes come
 * from files. */
#include "loader/layout.h"

#include <stdio.h>
#include <string.h>

#include "accrt/tensor.h"
#include "runtime/core/error.h"
#include "runtime/core/memory.h"
#include "runtime/core/struct.h"

#define MAX_GROUP_ELEMENTS (1u << 24)

/* How many elements a component has. */
typedef enum {
  EXTENT_NONE,
  EXTENT_ELEMENTS, /* rows * k */
  EXTENT_BLOCKS,   /* rows * k / block blocks of bytes */
  EXTENT_WORDS,    /* rows * k / 8: eight 4-bit values each */
  EXTENT_ONE,
  EXTENT_ROWS,
  EXTENT_GROUPS,      /* rows * groups */
  EXTENT_GROUP_PAIRS, /* the same, each row filled up to an even number */
  EXTENT_GROUP_WORDS, /* rows * groups / 8 */
  EXTENT_TILES,       /* batch * ceil(n / tile_rows) * groups */
  EXTENT_COLUMNS,     /* k */
} extent_t;

#define BIT(dtype) (1u << (dtype))
#define FLOATS (BIT(ACCRT_DTYPE_F32) | BIT(ACCRT_DTYPE_F16) | BIT(ACCRT_DTYPE_BF16))
#define F8 (BIT(ACCRT_DTYPE_F8E4M3FN) | BIT(ACCRT_DTYPE_F8E5M2))
#define FREE ACCRT_LAYOUT_FLAG_FREE_GROUP
#define WRITE ACCRT_LAYOUT_FLAG_WRITABLE
#define RANK ACCRT_MAX_RANK
#define LAYOUT(name) ACCRT_LAYOUT_##name
#define TYPE(name) BIT(ACCRT_DTYPE_##name)
#define ELEMENTS EXTENT_ELEMENTS
#define BLOCKS EXTENT_BLOCKS
#define WORDS EXTENT_WORDS
#define GROUPS EXTENT_GROUPS
#define PAIRS EXTENT_GROUP_PAIRS
#define GROUP_WORDS EXTENT_GROUP_WORDS
#define COLUMNS EXTENT_COLUMNS

/* clang-format off */
static const accx_layout_t layouts[] = {
    /* id, flags, ranks, block elements and bytes, row multiple, tile rows, group, required roles, extents and types by role */
    {LAYOUT(PLAIN), WRITE, 0, RANK, 1, 0, 1, 1, 0, 1, {ELEMENTS}, {~1u}, "plain"},
    {LAYOUT(OPAQUE), 0, 0, RANK, 1, 0, 1, 1, 0, 1, {EXTENT_NONE}, {~1u}, "opaque"},
    {LAYOUT(F8_TENSOR), WRITE, 1, RANK, 1, 0, 1, 1, 0, 3, {ELEMENTS, EXTENT_ONE}, {F8, FLOATS}, "f8_tensor"},
    {LAYOUT(F8_CHANNEL), WRITE, 1, RANK, 1, 0, 1, 1, 0, 3, {ELEMENTS, EXTENT_ROWS}, {F8, FLOATS}, "f8_channel"},
    {LAYOUT(F8_BLOCK128), WRITE, 1, RANK, 1, 0, 1, 128, 128, 3, {ELEMENTS, EXTENT_TILES}, {F8, FLOATS}, "f8_block128"},
    {LAYOUT(I8_CHANNEL), WRITE, 1, RANK, 1, 0, 1, 1, 0, 3, {ELEMENTS, EXTENT_ROWS}, {TYPE(I8), FLOATS}, "i8_channel"},
    {LAYOUT(I8_GROUP), FREE | WRITE, 1, RANK, 1, 0, 1, 1, 0, 3, {ELEMENTS, GROUPS}, {TYPE(I8), FLOATS}, "i8_group"},
    {LAYOUT(I4_GROUP), FREE | WRITE, 1, RANK, 2, 0, 1, 1, 0, 3, {ELEMENTS, GROUPS, 0, COLUMNS},
     {TYPE(U4), FLOATS, 0, TYPE(I32)}, "i4_group"},
    {LAYOUT(I4_GROUP_ASYM), FREE | WRITE, 1, RANK, 2, 0, 1, 1, 0, 7, {ELEMENTS, GROUPS, PAIRS, COLUMNS},
     {TYPE(U4), FLOATS, TYPE(U4), TYPE(I32)}, "i4_group_asym"},
    {LAYOUT(GPTQ_V1), FREE, 2, 2, 8, 0, 8, 1, 0, 7, {WORDS, GROUPS, GROUP_WORDS, COLUMNS},
     {TYPE(I32), FLOATS, TYPE(I32), TYPE(I32)}, "gptq_v1"},
    {LAYOUT(GPTQ_V2), FREE, 2, 2, 8, 0, 8, 1, 0, 7, {WORDS, GROUPS, GROUP_WORDS, COLUMNS},
     {TYPE(I32), FLOATS, TYPE(I32), TYPE(I32)}, "gptq_v2"},
    {LAYOUT(AWQ), FREE, 2, 2, 1, 0, 8, 1, 0, 7, {WORDS, GROUPS, GROUP_WORDS}, {TYPE(I32), FLOATS, TYPE(I32)}, "awq"},
    {LAYOUT(Q8_0), WRITE, 1, RANK, 32, 34, 1, 1, 32, 1, {BLOCKS}, {TYPE(U8)}, "q8_0"},
    {LAYOUT(Q4_0), WRITE, 1, RANK, 32, 18, 1, 1, 32, 1, {BLOCKS}, {TYPE(U8)}, "q4_0"},
    {LAYOUT(Q4_1), WRITE, 1, RANK, 32, 20, 1, 1, 32, 1, {BLOCKS}, {TYPE(U8)}, "q4_1"},
    {LAYOUT(Q4_K), WRITE, 1, RANK, 256, 144, 1, 1, 32, 1, {BLOCKS}, {TYPE(U8)}, "q4_k"},
    {LAYOUT(Q5_K), WRITE, 1, RANK, 256, 176, 1, 1, 32, 1, {BLOCKS}, {TYPE(U8)}, "q5_k"},
    {LAYOUT(Q6_K), WRITE, 1, RANK, 256, 210, 1, 1, 16, 1, {BLOCKS}, {TYPE(U8)}, "q6_k"},
    {LAYOUT(GGML_MXFP4), WRITE, 1, RANK, 32, 17, 1, 1, 32, 1, {BLOCKS}, {TYPE(U8)}, "ggml_mxfp4"},
    {LAYOUT(GGML_NVFP4), WRITE, 1, RANK, 64, 36, 1, 1, 16, 1, {BLOCKS}, {TYPE(U8)}, "ggml_nvfp4"},
    {LAYOUT(MXFP4), WRITE, 1, RANK, 32, 0, 1, 1, 32, 3, {ELEMENTS, GROUPS}, {TYPE(F4E2M1), TYPE(F8E8M0)}, "mxfp4"},
    {LAYOUT(MXFP8), WRITE, 1, RANK, 32, 0, 1, 1, 32, 3, {ELEMENTS, GROUPS}, {F8, TYPE(F8E8M0)}, "mxfp8"},
    {LAYOUT(NVFP4), WRITE, 1, RANK, 16, 0, 1, 1, 16, 19, {ELEMENTS, GROUPS, 0, 0, EXTENT_ONE},
     {TYPE(F4E2M1), TYPE(F8E4M3FN), 0, 0, TYPE(F32)}, "nvfp4"},
};
/* clang-format on */

const accx_layout_t* accx_layout_at(uint32_t index) {
  return index < sizeof layouts / sizeof *layouts ? &layouts[index] : NULL;
}

/* Ids 12 to 15 are free: a table of weights asks for each of them several times. */
const accx_layout_t* accx_layout_find(uint32_t id) {
  const uint32_t index = id < 12 ? id : id - 4; /* wraps for none */
  return index < sizeof layouts / sizeof *layouts && layouts[index].id == id ? &layouts[index]
                                                                             : NULL;
}

/* ---- Checks ---- */

accx_layout_problem_t accx_layout_check_type(uint32_t id, accrt_dtype_t dtype, uint32_t group,
                                             uint32_t rank) {
  const accx_layout_t* layout = accx_layout_find(id);
  if (layout == NULL)
    return ACCX_LAYOUT_BAD_ID;
  if (accrt_dtype_bits(dtype) == 0)
    return ACCX_LAYOUT_BAD_DTYPE;
  if (id > ACCRT_LAYOUT_OPAQUE && (BIT(dtype) & FLOATS) == 0)
    return ACCX_LAYOUT_BAD_DTYPE;
  const bool free_group = (layout->flags & FREE) != 0;
  if (free_group ? group == 0 || group % 8 != 0 || group > MAX_GROUP_ELEMENTS : group != 0)
    return ACCX_LAYOUT_BAD_GROUP;
  if (rank < layout->min_rank || rank > layout->max_rank)
    return ACCX_LAYOUT_BAD_RANK;
  return ACCX_LAYOUT_GOOD;
}

static accx_layout_problem_t look_at_shape(accx_layout_view_t* view, uint32_t rank,
                                           const int64_t* shape) {
  uint64_t batch = 1;
  bool fits = true;
  for (uint32_t i = 0; i < rank; ++i) {
    if (shape[i] < 0)
      return ACCX_LAYOUT_NEGATIVE;
    if (i + 2 < rank)
      fits = accrt_mul_u64(batch, (uint64_t)shape[i], &batch) && fits;
  }
  view->batch = batch;
  view->n = rank >= 2 ? (uint64_t)shape[rank - 2] : 1;
  view->k = rank >= 1 ? (uint64_t)shape[rank - 1] : 1;
  const uint32_t block = view->layout->block_elements, multiple = view->layout->row_multiple;
  if (block != 1 && view->k % block != 0)
    return ACCX_LAYOUT_BAD_COLUMNS;
  if (multiple != 1 && view->n % multiple != 0)
    return ACCX_LAYOUT_BAD_ROWS;
  return accrt_mul_u64(batch, view->n, &view->rows) && fits ? ACCX_LAYOUT_GOOD
                                                            : ACCX_LAYOUT_OVERFLOW;
}

/* With the widest type that each component may have. */
static bool sizes_fit(const accx_layout_view_t* view, accrt_dtype_t dtype) {
  const accx_layout_t* layout = view->layout;
  for (uint32_t role = 0; role < ACCRT_LAYOUT_ROLE_COUNT; ++role) {
    if (layout->extents[role] == EXTENT_NONE)
      continue;
    const uint32_t dtypes = layout->dtypes[role];
    accrt_dtype_t widest = dtype;
    if (layout->id > ACCRT_LAYOUT_OPAQUE)
      widest = (dtypes & BIT(ACCRT_DTYPE_F32)) != 0 ? ACCRT_DTYPE_F32
                                                    : (accrt_dtype_t)__builtin_ctz(dtypes);
    uint64_t size;
    if (!accx_layout_size(view, role, widest, &size))
      return false;
  }
  return true;
}

accx_layout_problem_t accx_layout_look_at(uint32_t id, accrt_dtype_t dtype, uint32_t group,
                                          uint32_t rank, const int64_t* shape,
                                          accx_layout_view_t* out_view) {
  memset(out_view, 0, sizeof *out_view);
  out_view->layout = accx_layout_find(id);
  const accx_layout_problem_t problem = look_at_shape(out_view, rank, shape);
  if (problem != ACCX_LAYOUT_GOOD)
    return problem;
  const uint32_t fixed = out_view->layout->group_elements;
  out_view->group = group != 0 ? group : fixed != 0 ? fixed : out_view->k;
  if (out_view->group == out_view->k) /* most are, and dividing is slow */
    out_view->groups = out_view->k != 0;
  else
    out_view->groups = out_view->k / out_view->group + (out_view->k % out_view->group != 0);
  return sizes_fit(out_view, dtype) ? ACCX_LAYOUT_GOOD : ACCX_LAYOUT_OVERFLOW;
}

accx_layout_problem_t accx_layout_look(uint32_t id, accrt_dtype_t dtype, uint32_t group,
                                       uint32_t rank, const int64_t* shape,
                                       accx_layout_view_t* out_view) {
  const accx_layout_problem_t problem = accx_layout_check_type(id, dtype, group, rank);
  return problem != ACCX_LAYOUT_GOOD ? problem
                                     : accx_layout_look_at(id, dtype, group, rank, shape, out_view);
}

const char* accx_layout_problem_text(accx_layout_problem_t problem) {
  static const char texts[][60] = {
      [ACCX_LAYOUT_GOOD] = "",
      [ACCX_LAYOUT_BAD_ID] = "no such layout",
      [ACCX_LAYOUT_BAD_DTYPE] = "a quantized weight is f32, f16 or bf16",
      [ACCX_LAYOUT_BAD_GROUP] = "a free group is a multiple of 8 up to 2^24, any other is 0",
      [ACCX_LAYOUT_BAD_RANK] = "the layout has no such rank",
      [ACCX_LAYOUT_NEGATIVE] = "a dimension is negative",
      [ACCX_LAYOUT_BAD_COLUMNS] = "the columns are no multiple of the layout's block",
      [ACCX_LAYOUT_BAD_ROWS] = "the rows are no multiple of what the layout packs",
      [ACCX_LAYOUT_OVERFLOW] = "a size does not fit 63 bits",
  };
  return texts[problem];
}

/* ---- Components ---- */

bool accx_layout_takes(const accx_layout_t* layout, accrt_dtype_t constant_dtype, uint32_t role,
                       accrt_dtype_t dtype) {
  if (role >= ACCRT_LAYOUT_ROLE_COUNT || dtype >= 32 || (layout->dtypes[role] & BIT(dtype)) == 0)
    return false;
  return layout->id > ACCRT_LAYOUT_OPAQUE || dtype == constant_dtype;
}

static bool count_elements(const accx_layout_view_t* view, uint32_t extent, uint64_t* out) {
  const uint64_t tile = view->layout->tile_rows;
  switch (extent) {
  case EXTENT_ELEMENTS:
    return accrt_mul_u64(view->rows, view->k, out);
  case EXTENT_BLOCKS:
    return accrt_mul_u64(view->k / view->layout->block_elements, view->layout->block_bytes, out) &&
           accrt_mul_u64(view->rows, *out, out);
  case EXTENT_WORDS:
    return accrt_mul_u64(view->rows / 8, view->k, out);
  case EXTENT_ONE:
    *out = 1;
    return true;
  case EXTENT_ROWS:
    *out = view->rows;
    return true;
  case EXTENT_GROUPS:
    return accrt_mul_u64(view->rows, view->groups, out);
  case EXTENT_GROUP_PAIRS:
    return accrt_mul_u64(view->rows, view->groups + view->groups % 2, out);
  case EXTENT_GROUP_WORDS:
    return accrt_mul_u64(view->rows / 8, view->groups, out);
  case EXTENT_TILES:
    return accrt_mul_u64(view->batch, view->n / tile + (view->n % tile != 0), out) &&
           accrt_mul_u64(*out, view->groups, out);
  case EXTENT_COLUMNS:
    *out = view->k;
    return true;
  default:
    return false;
  }
}

bool accx_layout_size(const accx_layout_view_t* view, uint32_t role, accrt_dtype_t dtype,
                      uint64_t* out_size_bytes) {
  uint64_t elements, bits;
  if (!count_elements(view, view->layout->extents[role], &elements) ||
      !accrt_mul_u64(elements, accrt_dtype_bits(dtype), &bits) || bits > UINT64_MAX - 7)
    return false;
  *out_size_bytes = (bits + 7) / 8;
  return *out_size_bytes <= INT64_MAX;
}

/* ---- The public functions ---- */

accrt_status_t accrt_layout_info(uint32_t layout, accrt_layout_info_t* out_info) {
  const accx_layout_t* found = accx_layout_find(layout);
  if (found == NULL)
    return ACCRT_FAIL(NOT_FOUND, "no layout %" PRIu32 "; docs/layouts.md lists them", layout);
  accrt_layout_info_t info = {.id = found->id,
                              .name = found->name,
                              .flags = found->flags,
                              .block_elements = found->block_elements,
                              .block_bytes = found->block_bytes,
                              .row_multiple = found->row_multiple,
                              .tile_rows = found->tile_rows,
                              .group_elements = found->group_elements,
                              .required_roles = found->required_roles};
  memcpy(info.dtypes, found->dtypes, sizeof info.dtypes);
  return accrt_struct_write("accrt_layout_info_t", out_info, &info, sizeof info);
}

accrt_status_t accrt_layout_find(const char* name, uint32_t* out_layout) {
  if (out_layout == NULL || name == NULL)
    return ACCRT_FAIL(INVALID_ARGUMENT, "name or out_layout is NULL");
  *out_layout = 0;
  char all[320];
  size_t at = 0;
  for (uint32_t i = 0; i < sizeof layouts / sizeof *layouts; ++i) {
    const size_t length = strlen(layouts[i].name);
    if (strcmp(layouts[i].name, name) == 0) {
      *out_layout = layouts[i].id;
      return ACCRT_OK;
    }
    memcpy(all + at, layouts[i].name, length);
    all[at + length] = ' ';
    at += length + 1;
  }
  all[at - 1] = '\0';
  return ACCRT_FAIL(NOT_FOUND, "no layout is named '%.32s'; there are: %s", name, all);
}

/* ---- Weights in memory ---- */

static accrt_status_t status_of(accx_layout_problem_t problem) {
  switch (problem) {
  case ACCX_LAYOUT_GOOD:
    return ACCRT_OK;
  case ACCX_LAYOUT_BAD_ID:
    return ACCRT_ERROR_NOT_FOUND;
  case ACCX_LAYOUT_BAD_DTYPE:
    return ACCRT_ERROR_TYPE_MISMATCH;
  case ACCX_LAYOUT_BAD_GROUP:
    return ACCRT_ERROR_INVALID_ARGUMENT;
  case ACCX_LAYOUT_OVERFLOW:
    return ACCRT_ERROR_OVERFLOW;
  default:
    return ACCRT_ERROR_SHAPE_MISMATCH;
  }
}

accrt_status_t accx_layout_read(const accrt_layout_tensor_t* tensor, accrt_layout_tensor_t* out,
                                accx_layout_view_t* out_view) {
  if (tensor == NULL)
    return ACCRT_FAIL_INNER(INVALID_ARGUMENT, "tensor is NULL");
  const accrt_status_t status =
      accrt_struct_read("accrt_layout_tensor_t", tensor, out, sizeof *out);
  if (status != ACCRT_OK)
    return status;
  if (out->reserved != 0 || (out->shape == NULL && out->rank != 0))
    return ACCRT_FAIL_INNER(INVALID_ARGUMENT, "reserved is not 0, or shape is NULL");
  const accx_layout_problem_t problem = accx_layout_look(
      out->layout, out->dtype, out->group_elements, out->rank, out->shape, out_view);
  if (problem == ACCX_LAYOUT_GOOD)
    return ACCRT_OK;
  const accx_layout_t* layout = accx_layout_find(out->layout);
  char multiple[16] = "";
  if (problem == ACCX_LAYOUT_BAD_COLUMNS || problem == ACCX_LAYOUT_BAD_ROWS)
    (void)snprintf(multiple, sizeof multiple, ", %d",
                   problem == ACCX_LAYOUT_BAD_ROWS ? layout->row_multiple : layout->block_elements);
  const bool matrix = out->rank >= 2 && out->rank <= ACCRT_MAX_RANK;
  return accrt_error_fail(
      status_of(problem), NULL, __FILE__, (uint32_t)__LINE__,
      "layout %" PRIu32 " (%s) of %s, rank %" PRIu32 ", rows %" PRId64 ", columns %" PRId64
      ", group %" PRIu32 ": %s%s",
      out->layout, layout != NULL ? layout->name : "?", accrt_dtype_name(out->dtype), out->rank,
      matrix ? out->shape[out->rank - 2] : 1,
      out->rank >= 1 && out->rank <= ACCRT_MAX_RANK ? out->shape[out->rank - 1] : 1,
      out->group_elements, accx_layout_problem_text(problem), multiple);
}

accrt_status_t accrt_layout_component_size(const accrt_layout_tensor_t* tensor, uint32_t role,
                                           uint64_t* out_size_bytes) {
  if (out_size_bytes == NULL)
    return ACCRT_FAIL(INVALID_ARGUMENT, "out_size_bytes is NULL");
  *out_size_bytes = 0;
  accrt_layout_tensor_t own;
  accx_layout_view_t view;
  const accrt_status_t status = accx_layout_read(tensor, &own, &view);
  if (status != ACCRT_OK)
    return status;
  if (role >= ACCRT_LAYOUT_ROLE_COUNT || own.layout == ACCRT_LAYOUT_OPAQUE)
    return ACCRT_FAIL(INVALID_ARGUMENT, "role %" PRIu32 " of layout %s has no size of its own",
                      role, view.layout->name);
  const accrt_dtype_t dtype = own.components[role].dtype;
  if (dtype == ACCRT_DTYPE_NONE && (view.layout->required_roles & BIT(role)) == 0)
    return ACCRT_OK;
  if (!accx_layout_takes(view.layout, own.dtype, role, dtype))
    return ACCRT_FAIL(TYPE_MISMATCH, "layout %s takes no %s for role %" PRIu32, view.layout->name,
                      accrt_dtype_name(dtype), role);
  return accx_layout_size(&view, role, dtype, out_size_bytes)
             ? ACCRT_OK
             : ACCRT_FAIL(OVERFLOW, "the size of role %" PRIu32 " does not fit", role);
}
